//! `tenure doctor`: no finding in a healthy world, and one for each fault, forced with real servers.

use std::time::Duration;

use async_nats::jetstream::consumer::{FromConsumer, pull};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use tenure::{
    Config, JobRequest, KindOptions, Tenure, Timing, Worker,
    doctor::{Check, CheckState, DoctorOptions},
};

use crate::harness::{Bench, Running, bench, bench_with, bench_with_servers, statement};

fn job() -> JobRequest {
    JobRequest::new("q", "k", json!(1))
}

fn with(config: &Config, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config.clone();
    change(&mut config);
    config
}

async fn look(bench: &Bench) -> Vec<Check> {
    bench.tenure.doctor(&DoctorOptions::default()).await
}

/// Runs the doctor for this queue.
async fn look_at(tenure: &Tenure, queue: &str) -> Vec<Check> {
    let mut options = DoctorOptions::default();
    options.queues.push(queue.into());
    tenure.doctor(&options).await
}

#[track_caller]
fn of<'c>(checks: &'c [Check], check: &str) -> &'c Check {
    checks.iter().find(|checked| checked.check == check).unwrap_or_else(|| panic!("no {check}: {checks:#?}"))
}

/// The names of the checks in this state.
fn that_are(state: CheckState, checks: &[Check]) -> Vec<&'static str> {
    checks.iter().filter(|checked| checked.state == state).map(|checked| checked.check).collect()
}

/// Returns the one wrong check. Fails unless this alone is wrong and says what to do.
#[track_caller]
fn only_wrong<'c>(checks: &'c [Check], check: &str) -> &'c Check {
    assert_eq!(that_are(CheckState::Wrong, checks), [check], "{checks:#?}");
    let wrong = of(checks, check);
    assert!(wrong.to_do.is_some(), "{wrong:?}");
    wrong
}

/// Timers in the defaults' proportions, so that a busy machine makes nothing late.
async fn unhurried() -> Bench {
    let bench = bench_with(|config| config.timing = Timing::DEFAULT).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_world_is_ok_and_the_program_exits_0() {
    let bench = unhurried().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2),
    );
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    bench.until_finished(id).await;
    let checks = look(&bench).await;
    let rest: Vec<_> = checks.iter().filter(|checked| checked.state != CheckState::Ok).collect();
    // The tests' Postgres has fsync off.
    assert_eq!(that_are(CheckState::Warning, &checks), ["durability"], "{rest:#?}");
    assert_eq!(rest.len(), 1, "{rest:#?}");
    assert_eq!(of(&checks, "durability").found, "off: fsync, full_page_writes");
    assert_eq!(of(&checks, "queue").queue.as_deref(), Some("q"));
    assert_eq!(of(&checks, "consumer").queue.as_deref(), Some("q"));
    for (check, part) in [
        ("postgres", "as tenure"),
        ("rights", "tenure_operator"),
        ("timers", "ack_wait 10m"),
        ("workers", "1 alive"),
        ("nats", "nats-server 2."),
        ("stream", "as defined"),
    ] {
        assert!(of(&checks, check).found.contains(part), "{:?}", of(&checks, check));
    }

    let table = bench.program(&["doctor"]).output().await.unwrap();
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.status.success(), "{text}\n{}", String::from_utf8_lossy(&table.stderr));
    for part in ["STATE", "consumer q", "warning", "1 warning, "] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let output = bench.program(&["doctor", "--queue", "q", "--output", "json"]).output().await.unwrap();
    assert!(output.status.success());
    let array: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let stream = array.iter().find(|checked| checked["check"] == "stream").unwrap();
    assert_eq!(
        (&stream["state"], &stream["queue"], &stream["to_do"]),
        (&json!("ok"), &json!(null), &json!(null))
    );
    assert!(!text.contains("wrong") && array.iter().all(|checked| checked["state"] != "wrong"));

    let usage = bench.program(&["doctor", "--queue", "a.b"]).output().await.unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert_eq!(only_wrong(&look_at(&bench.tenure, "a.b").await, "queue").queue.as_deref(), Some("a.b"));
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_one_finding_and_the_other_is_still_checked() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let nowhere = "postgres://u:s3cr3t@127.0.0.1:1/x";
    let no_postgres = with(&bench.config, |config| config.database_url = nowhere.into());
    let no_nats = with(&bench.config, |config| config.nats_url = "nats://u:s3cr3t@127.0.0.1:1".into());
    let neither = Tenure::connect(&no_postgres).await.unwrap();
    let checks = look_at(&neither, "q").await;
    let away = only_wrong(&checks, "postgres");
    assert!(away.found.contains("127.0.0.1:1") && away.found.contains("refused"), "{}", away.found);
    assert!(!away.found.contains("s3cr3t"));
    for check in ["nats", "stream", "consumer"] {
        assert_eq!(of(&checks, check).state, CheckState::Ok, "{checks:#?}");
    }
    for check in ["primary", "schema", "rights", "workers", "relay", "queue"] {
        assert_eq!(of(&checks, check).found, "Postgres was not reached");
    }

    let without = Tenure::connect(&no_nats).await.unwrap();
    let checks = look_at(&without, "q").await;
    let away = only_wrong(&checks, "nats");
    assert!(away.found.contains("127.0.0.1:1") && away.found.contains("IO error"), "{}", away.found);
    assert!(!away.found.contains("s3cr3t"));
    for check in ["postgres", "schema", "rights", "relay"] {
        assert_eq!(of(&checks, check).state, CheckState::Ok, "{checks:#?}");
    }
    for check in ["stream", "consumer", "nats_rights"] {
        assert_eq!(of(&checks, check).found, "NATS was not reached");
    }

    let program = bench.program(&["doctor"]).env("DATABASE_URL", nowhere).output().await.unwrap();
    let text = String::from_utf8_lossy(&program.stdout).into_owned();
    assert_eq!(program.status.code(), Some(1), "{text}");
    // Checks that were skipped for the same reason share one line.
    assert_eq!(text.matches("Postgres was not reached").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_missing_older_or_newer_says_what_to_do() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let empty = format!("empty_{}", uuid::Uuid::new_v4().simple());
    bench.execute(&format!("CREATE DATABASE {empty}")).await;
    let (server, _) = bench.config.database_url.rsplit_once('/').unwrap();
    let config = with(&bench.config, |config| config.database_url = format!("{server}/{empty}"));
    let elsewhere = Tenure::connect(&config).await.unwrap();
    let checks = elsewhere.doctor(&DoctorOptions::default()).await;
    let missing = only_wrong(&checks, "schema");
    assert!(missing.to_do.as_deref().is_some_and(|to_do| to_do.contains("tenure migrate")), "{missing:?}");
    assert_eq!(of(&checks, "relay").state, CheckState::Skipped);
    elsewhere.close().await;
    bench.execute(&format!("DROP DATABASE {empty} WITH (FORCE)")).await;

    let newest: i64 = bench.value("SELECT max(version) FROM tenure.migrations").await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.migrations (version, name, checksum) VALUES ({}, '', '')",
            newest + 1
        ))
        .await;
    let checks = look(&bench).await;
    assert_eq!(of(&checks, "schema").state, CheckState::Warning);
    assert_eq!(of(&checks, "relay").state, CheckState::Ok, "the relay's check goes on");
    bench.execute(&format!("DELETE FROM tenure.migrations WHERE version >= {newest}")).await;
    let checks = look(&bench).await;
    let older = only_wrong(&checks, "schema");
    let left: i64 = bench.value("SELECT max(version) FROM tenure.migrations").await;
    assert_eq!(older.found, format!("version {left}, but this program needs {newest}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_stream_and_a_changed_consumer_are_reported_and_left_alone() {
    let bench = bench().await;
    let checks = look_at(&bench.tenure, "q").await;
    only_wrong(&checks, "stream");
    assert_eq!(of(&checks, "consumer").found, "there is no stream");
    assert!(bench.js.get_stream(&bench.config.stream).await.is_err(), "doctor created no stream");

    bench.tenure.setup(&["q".into()]).await.unwrap();
    assert_eq!(that_are(CheckState::Wrong, &look_at(&bench.tenure, "q").await), [""; 0]);
    let mut config: pull::Config =
        FromConsumer::try_from_consumer_config(bench.consumer("q").await.config).unwrap();
    config.ack_wait = Duration::from_secs(1);
    (config.max_batch, config.inactive_threshold) = (5, Duration::from_secs(3_600));
    bench.js.update_consumer_on_stream(config, &bench.config.stream).await.unwrap();
    let checks = look_at(&bench.tenure, "q").await;
    let changed = only_wrong(&checks, "consumer");
    assert!(changed.found.contains("ack_wait is 1s, expected 4s"), "{}", changed.found);
    assert!(changed.found.contains("max_batch is 5, expected unlimited"), "{}", changed.found);
    assert!(changed.found.contains("inactive_threshold is 1h, expected 0s"), "{}", changed.found);
    assert!(changed.found.contains("before a scan can tell"), "{}", changed.found);
    assert!(changed.to_do.as_deref().is_some_and(|to_do| to_do.contains("tenure migrate --queue q")));
    bench.tenure.setup(&["q".into()]).await.unwrap();
    assert_eq!(of(&look_at(&bench.tenure, "q").await, "consumer").state, CheckState::Ok);

    // A queue that no worker has served has no consumer yet; a served queue must have one.
    let other = look_at(&bench.tenure, "other").await;
    assert_eq!(of(&other, "consumer").state, CheckState::Skipped);
    bench
        .execute("INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version) VALUES ('w', 'h', 1, '{other}', 1, '0.0.1')")
        .await;
    // The worker would have scanned by now.
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() + interval '1 min'").await;
    let checks = look_at(&bench.tenure, "other").await;
    assert_eq!(only_wrong(&checks, "consumer").queue.as_deref(), Some("other"));
    assert_eq!(of(&checks, "versions").state, CheckState::Warning);
    assert!(of(&checks, "versions").found.contains("1 runs 0.0.1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_holds_a_snapshot_or_sleeps_is_named() {
    let bench = bench().await;
    let mut report = bench.pool.begin().await.unwrap();
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *report).await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid() FROM (SELECT count(*) FROM tenure.jobs) AS read")
            .fetch_one(&mut *report)
            .await
            .unwrap();
    let mut sleeper = bench.pool.begin().await.unwrap();
    let sleeps: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *sleeper).await.unwrap();
    let mut options = DoctorOptions::default();
    options.old_after = Duration::ZERO;
    let checks = bench.tenure.doctor(&options).await;
    for (check, pid) in [("old_transactions", pid), ("idle_transactions", sleeps)] {
        let found = of(&checks, check);
        assert_eq!(found.state, CheckState::Warning, "{checks:#?}");
        assert!(found.found.contains(&format!("pid {pid} (")), "{found:?}");
        assert!(found.found.contains("idle in transaction"), "{found:?}");
        assert!(found.to_do.as_deref().is_some_and(|to_do| to_do.contains("pg_terminate_backend")));
    }
    // The transaction is not old yet.
    for check in ["old_transactions", "idle_transactions"] {
        assert_eq!(of(&look(&bench).await, check).state, CheckState::Ok);
    }
    report.rollback().await.unwrap();
    sleeper.rollback().await.unwrap();
    let checks = bench.tenure.doctor(&options).await;
    assert!(!of(&checks, "old_transactions").found.contains(&format!("pid {pid} (")));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_no_relay_publishes_no_worker_runs_or_that_died_are_counted() {
    let bench = unhurried().await;
    bench.tenure.enqueue(job().delay(Duration::from_secs(600))).await.unwrap();
    assert_eq!(that_are(CheckState::Wrong, &look(&bench).await), [""; 0]);
    let ago = "now() - interval '90 s'";
    bench.execute(&format!("UPDATE tenure.jobs SET publish_at = {ago}, scheduled_at = {ago}")).await;
    let checks = look(&bench).await;
    assert_eq!(that_are(CheckState::Wrong, &checks), ["relay", "queue"], "{checks:#?}");
    let overdue = of(&checks, "relay");
    assert!(overdue.found.starts_with("1 job due, the first for 1m 3"), "{}", overdue.found);
    bench.execute("DELETE FROM tenure.jobs").await;

    bench.tenure.enqueue(job()).await.unwrap();
    bench.tenure.enqueue(job()).await.unwrap();
    bench.tenure.flush().await;
    let checks = look(&bench).await;
    let unserved = only_wrong(&checks, "queue");
    assert!(
        unserved.found.starts_with("no worker serves this queue; 2 jobs due, the first for "),
        "{}",
        unserved.found
    );
    assert_eq!(unserved.queue.as_deref(), Some("q"));
    assert_eq!(of(&checks, "workers").state, CheckState::Warning);
    bench.tenure.pause_queue("q").await.unwrap();
    let checks = look(&bench).await;
    assert_eq!(that_are(CheckState::Wrong, &checks), [""; 0]);
    assert!(of(&checks, "queue").found.starts_with("paused for "), "{:?}", of(&checks, "queue"));
    bench.tenure.resume_queue("q").await.unwrap();
    bench.execute("INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version) VALUES ('w', 'h', 1, '{q}', 1, '0')").await;
    bench
        .tenure
        .limit_queue("q", tenure::queues::QueueLimits::new().max_queued(2).max_running(7))
        .await
        .unwrap();
    let checks = look(&bench).await;
    let full = &of(&checks, "queue").found;
    assert!(full.starts_with("full: 2 jobs queued, and enqueues are refused; 0 of 7 running; "), "{full}");
    let nightly = tenure::schedules::Schedule::new("nightly", "0 3 * * *", job());
    bench.tenure.put_schedule(nightly).await.unwrap();
    assert_eq!(of(&look(&bench).await, "schedules").found, "1 schedule is on time");
    bench.execute("UPDATE tenure.schedules SET next_at = now() - interval '5 min'").await;
    let checks = look(&bench).await;
    assert!(of(&checks, "schedules").found.starts_with("nightly was due 5m"), "{checks:?}");
    assert_eq!(of(&checks, "schedules").state, CheckState::Wrong);

    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             SELECT gen_random_uuid(), 'q', 'k', '1', 1, 1, 1, now(), now(), now() - n * interval '50 min', 'gone', 'lost', '[]'
               FROM generate_series(1, 2) n",
        )
        .await;
    let checks = look(&bench).await;
    let found = "1 job died within the last hour; 1 k of q (lost): gone";
    assert_eq!(of(&checks, "dead_letters").found, found);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_scan_a_grace_and_a_silent_owner_are_reported() {
    let bench = unhurried().await;
    assert_eq!(of(&look(&bench).await, "scans").state, CheckState::Skipped, "no worker has ever scanned");
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 h'").await;
    let checks = look(&bench).await;
    assert!(
        only_wrong(&checks, "scans").found.starts_with("the last scan was 1h"),
        "{:?}",
        of(&checks, "scans")
    );
    let grace = "UPDATE tenure.scanner_state SET last_scan_at = now(), grace_until = now() + interval '1 h'";
    bench.execute(grace).await;
    let checks = look(&bench).await;
    assert_eq!(of(&checks, "scans").state, CheckState::Warning);
    assert!(of(&checks, "scans").found.contains("for another 59m"), "{:?}", of(&checks, "scans"));

    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, last_seen_at)
             VALUES ('gone-1-abc', 'gone', 1, '{q}', 1, '0.0.1', now() - interval '1 h')",
        )
        .await;
    assert_eq!(that_are(CheckState::Wrong, &look(&bench).await), [""; 0], "the worker owns no job");
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at, status, attempt,
                    fencing_token, claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at)
             VALUES (gen_random_uuid(), 'q', 'k', '1', 5, now(), now(), 'processing', 1, 1, gen_random_uuid(),
                    'gone-1-abc', 'gone', '5 min', now(), now())",
        )
        .await;
    let checks = look(&bench).await;
    let silent = only_wrong(&checks, "workers");
    assert!(silent.found.contains("gone-1-abc (1 job, silent for 1h"), "{}", silent.found);
}

/// Doctor names the shipped role whose rights a login role has; a role without rights gets an answer, too.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_the_rights_of_a_role_and_skips_statements_that_it_may_not_send() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    bench.execute("CREATE ROLE stranger LOGIN PASSWORD 'pw'").await;
    let (_, host) = bench.config.database_url.split_once('@').unwrap();
    let by = async |role: &str| {
        let url = format!("postgres://{role}:pw@{host}");
        let tenure = Tenure::connect(&with(&bench.config, |config| config.database_url = url)).await.unwrap();
        let checks = look_at(&tenure, "q").await;
        tenure.close().await;
        checks
    };
    for role in ["producer", "worker", "operator", "viewer"] {
        bench.execute(&format!("CREATE ROLE a_{role} LOGIN PASSWORD 'pw' IN ROLE tenure_{role}")).await;
        let checks = by(&format!("a_{role}")).await;
        assert_eq!(that_are(CheckState::Wrong, &checks), [""; 0], "{role}: {checks:#?}");
        assert_eq!(of(&checks, "rights").found, format!("a_{role} has the rights of tenure_{role}"));
        let reads = if role == "producer" { CheckState::Skipped } else { CheckState::Ok };
        for check in ["relay", "groups"] {
            assert_eq!(of(&checks, check).state, reads, "{role}: {check}");
        }
        let others = of(&checks, "old_transactions");
        assert_eq!(others.state, CheckState::Skipped, "the role does not see others' sessions");
        assert!(others.to_do.as_deref().is_some_and(|to_do| to_do.contains("pg_read_all_stats")));
        assert_eq!(of(&checks, "stream").state, CheckState::Ok);
    }
    let checks = by("stranger").await;
    let none = only_wrong(&checks, "rights");
    assert!(none.found.contains("of no role") && none.found.contains("and "), "{}", none.found);
    for check in ["schema", "workers", "scans", "queue"] {
        assert_eq!(of(&checks, check).state, CheckState::Skipped, "{checks:#?}");
        assert!(of(&checks, check).found.contains("permission denied"), "{:?}", of(&checks, check));
    }
    assert_eq!(of(&checks, "consumer").state, CheckState::Ok, "NATS has other users");

    // A migration was applied, and `postgres/roles.sql` was not run again.
    bench.execute("REVOKE UPDATE ON tenure.workers FROM tenure_worker").await;
    let checks = by("a_worker").await;
    let late = only_wrong(&checks, "rights");
    assert_eq!(late.found, "a_worker is in tenure_worker, but lacks UPDATE on workers");
    assert!(late.to_do.as_deref().is_some_and(|to_do| to_do.contains("postgres/roles.sql")));
}

/// The statement that checks rights knows each right that `postgres/roles.sql` grants.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_the_shipped_roles_is_missed_when_it_is_taken_away() {
    let bench = bench_with_servers(|_| {}).await;
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    let judge = statement("doctor_rights");
    let mut revoked = 0;
    for role in ["producer", "worker", "operator", "viewer"] {
        bench.execute(&format!("CREATE ROLE a_{role} LOGIN IN ROLE tenure_{role}")).await;
        let grants: Vec<(String, String, Option<String>)> = sqlx::query_as(
            "SELECT c.relname::text, g.privilege_type, NULL::text FROM pg_class c, aclexplode(c.relacl) g
              WHERE c.relnamespace = 'tenure'::regnamespace AND NOT c.relispartition AND g.grantee = $1::regrole
              UNION ALL
             SELECT c.relname::text, g.privilege_type, a.attname::text
               FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) g
              WHERE c.relnamespace = 'tenure'::regnamespace AND g.grantee = $1::regrole",
        )
        .bind(format!("tenure_{role}"))
        .fetch_all(&bench.pool)
        .await
        .unwrap();
        assert!(!grants.is_empty());
        for (relation, privilege, column) in grants {
            let mut tx = bench.pool.begin().await.unwrap();
            let columns = column.as_ref().map(|column| format!("({column})")).unwrap_or_default();
            let revoke = format!("REVOKE {privilege} {columns} ON tenure.{relation} FROM tenure_{role}");
            let set = format!("SET LOCAL ROLE a_{role}");
            for sql in [&revoke, &set] {
                sqlx::query(AssertSqlSafe(sql.as_str())).execute(&mut *tx).await.unwrap();
            }
            let still = match &column {
                Some(column) => {
                    format!("SELECT has_column_privilege('tenure.{relation}', '{column}', '{privilege}')")
                }
                None => format!("SELECT has_table_privilege('tenure.{relation}', '{privilege}')"),
            };
            let still: bool = sqlx::query_scalar(AssertSqlSafe(still)).fetch_one(&mut *tx).await.unwrap();
            let judged = sqlx::query(judge).fetch_all(&mut *tx).await.unwrap();
            let of_role = judged.iter().find(|row| row.get::<String, _>("role") == role).unwrap();
            let lacks: Vec<String> = of_role.get("lacks");
            // A right that also comes from another role is not missed.
            assert_eq!(lacks.is_empty(), still, "{revoke}: {lacks:?}");
            revoked += 1;
            tx.rollback().await.unwrap();
        }
        let functions: Vec<String> = sqlx::query_scalar(
            "SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(p.proacl) g
              WHERE p.pronamespace = 'tenure'::regnamespace AND g.grantee = $1::regrole",
        )
        .bind(format!("tenure_{role}"))
        .fetch_all(&bench.pool)
        .await
        .unwrap();
        assert_eq!(functions.is_empty(), role == "viewer");
        for function in functions {
            let mut tx = bench.pool.begin().await.unwrap();
            let revoke = format!("REVOKE EXECUTE ON FUNCTION {function} FROM tenure_{role}");
            for sql in [revoke.clone(), format!("SET LOCAL ROLE a_{role}")] {
                sqlx::query(AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
            }
            let judged = sqlx::query(judge).fetch_all(&mut *tx).await.unwrap();
            let of_role = judged.iter().find(|row| row.get::<String, _>("role") == role).unwrap();
            assert_eq!(of_role.get::<Vec<String>, _>("lacks").len(), 1, "{revoke}");
            tx.rollback().await.unwrap();
        }
    }
    assert!(revoked > 100, "{revoked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_cannot_be_read_do_not_count_as_none() {
    let bench = unhurried().await;
    assert_eq!(of(&look(&bench).await, "scans").found, "no worker has run yet");
    bench.execute("ALTER TABLE tenure.workers RENAME TO hidden").await;
    let checks = look(&bench).await;
    let (workers, scans) = (of(&checks, "workers"), of(&checks, "scans"));
    assert_eq!(scans.state, CheckState::Skipped);
    assert_eq!(scans.found, workers.found, "the reason");
}

/// NATS refuses each message of a full stream, and each refusal moves the time of the next try. The jobs are late all the
/// same, since they were due.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_is_named_and_its_due_jobs_are_late() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2),
    );
    let change = async |max_bytes| {
        let mut stream =
            bench.js.get_stream(&bench.config.stream).await.unwrap().cached_info().config.clone();
        stream.max_bytes = max_bytes;
        bench.js.update_stream(stream).await.unwrap();
    };
    change(1).await;
    let job = bench.tenure.enqueue(job()).await.unwrap().id;
    let late = async {
        while of(&look(&bench).await, "relay").state != CheckState::Wrong {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), late).await.unwrap();
    // The relay tries all the time; while it does, for milliseconds of a second, the job counts as published.
    let mut late = 0;
    for _ in 0..5 {
        let checks = look(&bench).await;
        late += usize::from(that_are(CheckState::Wrong, &checks) == ["relay", "storage"]);
        let full = &of(&checks, "storage").found;
        assert_eq!(full, "full: 0 of 1 bytes of the stream: NATS refuses messages");
    }
    assert!(late >= 3, "{late} of 5");
    change(-1).await;
    bench.until_finished(job).await;
    assert_eq!(that_are(CheckState::Wrong, &look(&bench).await), [""; 0]);
    worker.stop().await;
}

/// What can lose, hide or hold messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_keeps_one_message_a_subject_is_wrong_and_mended_by_migrate() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut stream = bench.js.get_stream(&bench.config.stream).await.unwrap().cached_info().config.clone();
    (stream.max_messages_per_subject, stream.allow_rollup, stream.max_message_size) = (1, true, 1_000);
    bench.js.update_stream(stream).await.unwrap();
    let checks = look(&bench).await;
    assert_eq!(
        only_wrong(&checks, "stream").found,
        "max_msgs_per_subject is 1, expected unlimited; max_msg_size is 1000 bytes, expected unlimited; \
         allow_rollup_hdrs is true, expected false"
    );
    bench.tenure.setup(&["q".into()]).await.unwrap();
    assert_eq!(of(&look(&bench).await, "stream").state, CheckState::Ok);
}
