//! The rarer arguments of `tenure.enqueue`: lanes, priorities, expiry, debounce, and keys that last while a job does.
//!
//! Not here: what lanes do with the jobs (`lanes`), and the other arguments (`sql`).

use std::time::Duration;

use chrono::{SubsecRound, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, PgTransaction};
use tenure::{JobId, JobRequest, KindOptions, OnExpiry, Outcome, Worker, lanes::Lanes};
use uuid::Uuid;

use crate::{
    harness::{Bench, Running, bench, bench_with_servers, statement},
    sql::{LEVELS, begin, claimed, refusal, refused, run},
};

/// A transaction of a session waits for a lock.
const WAITS: &str =
    "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";

async fn id(by: &mut PgConnection, arguments: &str) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT tenure.enqueue('q', 'k', {arguments})")))
        .fetch_one(by)
        .await
}

async fn queued(bench: &Bench) -> String {
    bench.text("SELECT payload FROM tenure.jobs WHERE status = 'queued' ORDER BY id").await
}

/// The session of this transaction, so that a task may go on with it while the test does something else.
fn enqueues(
    mut tx: PgTransaction<'static>,
    arguments: &'static str,
) -> tokio::task::JoinHandle<Result<Uuid, sqlx::Error>> {
    tokio::spawn(async move {
        let id = id(&mut tx, arguments).await?;
        tx.commit().await?;
        Ok(id)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_option_by_name_by_place_and_in_an_array_is_as_the_librarys() {
    let bench = bench().await;
    let at = Utc::now().trunc_subsecs(3) + TimeDelta::hours(1);
    let base = || JobRequest::new("q", "k", json!({"n": 1})).delay(Duration::from_secs(60));
    let cases: [(&str, JobRequest, Value); 8] = [
        ("NULL", base(), json!({})),
        ("lane => 'org-7'", base().lane("org-7"), json!({"lane": "org-7"})),
        ("priority => -100", base().priority(-100), json!({"priority": -100})),
        (&format!("not_after => '{at}'"), base().not_after(at), json!({"not_after": at})),
        (
            &format!("not_after => '{at}', on_expiry => 'cancel'"),
            base().not_after(at).on_expiry(OnExpiry::Cancel),
            json!({"not_after": at, "on_expiry": "cancel"}),
        ),
        (
            &format!("not_after => '{at}', on_expiry => 'dead_letter'"),
            base().not_after(at).on_expiry(OnExpiry::DeadLetter),
            json!({"not_after": at, "on_expiry": "dead_letter"}),
        ),
        ("unique_while_queued => 'u'", base().unique_while_queued("u"), json!({"unique_while_queued": "u"})),
        ("unique_while_live => 'u'", base().unique_while_live("u"), json!({"unique_while_live": "u"})),
    ];
    for (arguments, request, fields) in cases {
        let arguments = if arguments == "NULL" { String::new() } else { format!(", {arguments}") };
        let mut rows = Vec::new();
        for way in 0..3 {
            let id = match way {
                0 => bench.tenure.enqueue(request.clone()).await.unwrap().id.0,
                1 => {
                    let call = format!(
                        "SELECT tenure.enqueue('q', 'k', '{{\"n\": 1}}', delay => '60 s'{arguments})"
                    );
                    bench.value(&call).await
                }
                _ => {
                    let mut job = json!({"queue": "q", "kind": "k", "payload": {"n": 1}, "delay": "60 s"});
                    job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
                    bench.value(&format!("SELECT tenure.enqueue_many('[{job}]')")).await
                }
            };
            let seen = format!(
                "SELECT to_jsonb(j) - '{{id,created_at,scheduled_at,publish_at}}'::text[], x.at,
                        (SELECT string_agg(k.scope || ' ' || k.key, ',') FROM tenure.job_keys k WHERE k.job_id = j.id),
                        j.scheduled_at = j.publish_at AND j.scheduled_at - j.created_at BETWEEN '59 s' AND '61 s'
                   FROM tenure.jobs j LEFT JOIN tenure.job_expiries x ON x.job_id = j.id WHERE j.id = '{id}'"
            );
            rows.push(bench.text(&seen).await);
            for table in ["jobs", "job_keys", "job_expiries"] {
                bench.execute(&format!("DELETE FROM tenure.{table}")).await;
            }
        }
        assert!(
            rows[0] == rows[1] && rows[1] == rows[2] && rows[0].ends_with("t)"),
            "{arguments}: {rows:#?}"
        );
    }
    // By place: a later release adds arguments at the end alone.
    let by_place = format!(
        "SELECT tenure.enqueue('q', 'k', '1', NULL, NULL, '5 s', 3, NULL, 'org', 7, '{at}', 'cancel', 'key', '50 s', NULL, NULL)"
    );
    bench.execute(&by_place).await;
    let holds = format!(
        "tenure.jobs WHERE lane = 'org' AND priority = 7 AND not_after = '{at}' AND expires_as = 'cancelled'
                      AND max_attempts = 3"
    );
    assert_eq!(bench.count(&holds).await, 1);
    assert_eq!(bench.count("tenure.job_keys WHERE scope = 'q/queued' AND key = 'key'").await, 1);
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one list")]
async fn bad_options_are_refused_with_what_was_wrong_and_what_to_do() {
    let bench = bench().await;
    let refusals = [
        ("lane => ''", "lane is \"\" (0 bytes), but must have 1 to 256 bytes and no control characters"),
        ("lane => repeat('é', 129)", "(258 bytes), but must have 1 to 256 bytes and no control characters"),
        (
            r"lane => E'a\nb'",
            r#"lane is "a\nb" (3 bytes), but must have 1 to 256 bytes and no control characters"#,
        ),
        ("priority => 101", "priority is 101, but must be a whole number from -100 to 100"),
        ("priority => -101", "priority is -101, but must be a whole number from -100 to 100"),
        ("not_after => 'infinity'", "not_after is infinity, but must be at most ten years ahead"),
        ("not_after => '-infinity'", "not_after is -infinity, but must be at most ten years ahead"),
        ("not_after => now() + interval '11 y'", ", but must be at most ten years ahead"),
        ("on_expiry => 'drop'", "on_expiry is \"drop\", but must be dead_letter or cancel"),
        (
            "replace => ''",
            "replace is \"\" (0 bytes), but must have 1 to 512 bytes and no control characters",
        ),
        (
            "unique_while_queued => repeat('x', 513)",
            "(513 bytes), but must have 1 to 512 bytes and no control characters",
        ),
        (
            r"unique_while_live => E'\t'",
            r#"unique_while_live is "\t" (1 bytes), but must have 1 to 512 bytes and no control characters"#,
        ),
        (
            "unique_key => 'a', replace => 'b'",
            "unique_key and replace are both given, but a job has at most one key",
        ),
        (
            "unique_while_live => 'a', unique_while_queued => 'a'",
            "unique_while_queued and unique_while_live are both given, but a job has at most one key",
        ),
        ("longest_wait => '5 s'", "longest_wait is 00:00:05, but must be left out without replace"),
        (
            "replace => 'a', delay => '2 s', longest_wait => '1 s'",
            "longest_wait is 00:00:01, but must be at least the delay, and at most ten years",
        ),
        (
            "replace => 'a', longest_wait => '-1 s'",
            "longest_wait is -00:00:01, but must be at least the delay, and at most ten years",
        ),
        (
            "replace => 'a', longest_wait => '11 y'",
            "longest_wait is 11 years, but must be at least the delay, and at most ten years",
        ),
        ("queue => 'a b', kind => 'k', lane => ''", "queue \"a b\" is not a valid name"),
    ];
    for (arguments, message) in refusals {
        let names = if arguments.starts_with("queue") { "" } else { "'q', 'k', " };
        let said = refused(&bench.pool, &format!("SELECT tenure.enqueue({names}{arguments})")).await;
        assert_eq!(said.code, "TN003", "{arguments}: {said:?}");
        assert!(said.message.contains(message) && said.rest.len() > 35, "{arguments}: {said:?}");
    }
    let refusals = [
        (r#""priority": 1.5"#, "jobs[1]: priority is 1.5, but must be a whole number from -100 to 100"),
        (r#""priority": "1""#, "jobs[1] has a priority of type string, but it must be a number"),
        (r#""lane": 7"#, "jobs[1] has a lane of type number, but it must be a string"),
        (r#""replace": true"#, "jobs[1] has a replace of type boolean, but it must be a string"),
        (
            r#""not_after": "soon""#,
            "jobs[1] not_after: invalid input syntax for type timestamp with time zone: \"soon\"",
        ),
        (
            r#""longest_wait": "long""#,
            "jobs[1] longest_wait: invalid input syntax for type interval: \"long\"",
        ),
        (
            r#""lane": """#,
            "jobs[1]: lane is \"\" (0 bytes), but must have 1 to 256 bytes and no control characters",
        ),
        (
            r#""unique_key": "a", "replace": "b""#,
            "jobs[1]: unique_key and replace are both given, but a job has at most one key",
        ),
        (
            r#""delay": "2 s", "replace": "b", "longest_wait": "1 s""#,
            "jobs[1]: longest_wait is 00:00:01, but must be at least the delay, and at most ten years",
        ),
    ];
    for (fields, message) in refusals {
        let jobs = format!(
            r#"[{{"queue": "q", "kind": "k"}}, {{"queue": "q", "kind": "k", {fields}}}, {{"queue": "q", "kind": "k", "lane": ""}}]"#
        );
        let said = refused(&bench.pool, &format!("SELECT tenure.enqueue_many('{jobs}')")).await;
        assert_eq!((said.code.as_str(), said.message.as_str()), ("TN003", message));
        assert!(said.rest.len() > 35, "{said:?}");
    }
    // The error names the first fault in the array, of any kind.
    let jobs = r#"[{"queue": "q", "kind": "k", "lane": ""}, {"queue": "q!", "kind": "k"}]"#;
    let said = refused(&bench.pool, &format!("SELECT tenure.enqueue_many('{jobs}')")).await;
    assert!(said.message.starts_with("jobs[0]: lane is"), "{said:?}");
    for table in ["jobs", "job_keys", "job_expiries", "lane_jobs"] {
        assert_eq!(bench.count(&format!("tenure.{table}")).await, 0);
    }
    // The largest of each.
    for arguments in [
        "lane => repeat('x', 256), priority => 100, replace => repeat('x', 512), delay => '1 s', longest_wait => '1 s'",
        "priority => -100, not_after => now() - interval '1 y', unique_while_live => repeat('x', 512)",
        "replace => 'a', longest_wait => '0 s'",
    ] {
        bench.execute(&format!("SELECT tenure.enqueue('q', 'k', {arguments})")).await;
    }
}

/// No process of tenure hears of the commit: the relay's look releases the job and publishes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_free_lane_starts_within_a_look_or_two_of_the_commit() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 4),
    );
    bench.until_count("tenure.workers", 1).await;
    for n in 0..25 {
        bench.execute(&format!("SELECT tenure.enqueue('q', 'k', '{n}', lane => 'org-{}')", n % 3)).await;
        bench.until_count("tenure.job_history WHERE status = 'completed'", n + 1).await;
    }
    let median: f64 = bench
        .value(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at) * 1000)
               FROM tenure.job_history WHERE payload::int >= 5",
        )
        .await;
    println!("a laned job of SQL starts after {median:.0} ms (median)");
    assert!(median < 150.0, "{median} ms");
    // A held job that is cancelled by SQL leaves its lane, and its history says when it was due.
    let held: Uuid = bench.value("SELECT tenure.enqueue('q', 'k', lane => 'x', delay => '1 h')").await;
    assert_eq!(bench.value::<String>(&format!("SELECT tenure.cancel('{held}')")).await, "cancelled");
    assert_eq!(bench.count(&format!("tenure.lane_jobs WHERE job_id = '{held}'")).await, 0);
    let said = format!("tenure.job_history WHERE id = '{held}' AND scheduled_at <= finished_at");
    assert_eq!(bench.count(&said).await, 1);
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_follows_its_transaction_and_there_are_never_two_queued_jobs() {
    let bench = bench().await;
    for (laned, level) in [(false, LEVELS[0]), (true, LEVELS[0]), (false, LEVELS[1]), (true, LEVELS[1])] {
        if laned {
            bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
        }
        let mut own = PgConnection::connect(&bench.config.database_url).await.unwrap();
        let first = id(&mut own, "'1', replace => 'doc', delay => '1 h', lane => 'a'").await.unwrap();
        let due = "SELECT extract(epoch FROM coalesce(w.due_at, j.scheduled_at) - j.created_at)::float8
                     FROM tenure.jobs j LEFT JOIN tenure.lane_jobs w ON w.job_id = j.id";
        // Rolled back: the older payload and time stay.
        let mut tx = begin(&bench.pool, level).await;
        assert_eq!(id(&mut tx, "'2', replace => 'doc', delay => '2 h', lane => 'a'").await.unwrap(), first);
        tx.rollback().await.unwrap();
        assert_eq!(queued(&bench).await, "(1)");
        let waits: f64 = bench.value(due).await;
        assert!((waits - 3_600.0).abs() < 10.0, "{waits}");
        // One call is about to replace it; the other waits for that call's end. Above READ COMMITTED it begins again.
        for commits in [true, false] {
            let mut tx = begin(&bench.pool, level).await;
            id(&mut tx, "'3', replace => 'doc', delay => '3 h', lane => 'a'").await.unwrap();
            let mut impatient = begin(&bench.pool, level).await;
            run(&mut impatient, "SET LOCAL lock_timeout = '100ms'").await;
            let error =
                id(&mut impatient, "'4', replace => 'doc', delay => '3 h', lane => 'a'").await.unwrap_err();
            assert_eq!(refusal(&error).code, "55P03");
            drop(impatient);
            let mut second = begin(&bench.pool, level).await;
            run(&mut second, "SELECT 1 FROM tenure.jobs").await;
            let second = enqueues(second, "'5', replace => 'doc', delay => '3 h', lane => 'a'");
            bench.until(WAITS).await;
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            match second.await.unwrap() {
                Ok(id) => assert!(id == first && (!commits || level == LEVELS[0])),
                Err(error) => {
                    assert_eq!(refusal(&error).code, "40001");
                    assert!(commits && level == LEVELS[1]);
                    assert_eq!(queued(&bench).await, "(3)");
                }
            }
            assert_eq!(bench.count("tenure.jobs").await, 1);
        }
        assert_eq!(queued(&bench).await, "(5)");
        let waits: f64 = bench.value(due).await;
        assert!((waits - 10_800.0).abs() < 20.0, "{laned}: {waits}");
        // Never moved beyond its longest wait: by default ten times the delay, since it was created.
        id(&mut own, "'6', replace => 'doc', delay => '4 h', longest_wait => '4 h', lane => 'a'")
            .await
            .unwrap();
        bench.execute("UPDATE tenure.jobs SET created_at = created_at - interval '3 h'").await;
        id(&mut own, "'7', replace => 'doc', delay => '4 h', longest_wait => '5 h', lane => 'a'")
            .await
            .unwrap();
        let waits: f64 = bench.value(due).await;
        assert!((waits - 18_000.0).abs() < 20.0, "{laned}: {waits}");
        bench.execute("UPDATE tenure.jobs SET created_at = created_at - interval '9 h'").await;
        id(&mut own, "'8', replace => 'doc', delay => '1 h', lane => 'a'").await.unwrap();
        let waits: f64 = bench.value(due).await;
        assert!((waits - 36_000.0).abs() < 20.0, "{laned}: {waits}");
        // Two transactions that both find the key free.
        bench.execute("DELETE FROM tenure.jobs").await;
        bench.execute("DELETE FROM tenure.lane_jobs").await;
        bench.execute("DELETE FROM tenure.job_keys").await;
        let mut tx = begin(&bench.pool, level).await;
        let first = id(&mut tx, "'1', replace => 'doc', delay => '1 h'").await.unwrap();
        let mut second = begin(&bench.pool, level).await;
        run(&mut second, "SELECT 1 FROM tenure.jobs").await;
        let second = enqueues(second, "'2', replace => 'doc', delay => '1 h'");
        bench.until(WAITS).await;
        tx.commit().await.unwrap();
        match second.await.unwrap() {
            Ok(id) => assert!(id == first && level == LEVELS[0]),
            Err(error) => assert!(refusal(&error).code == "40001" && level == LEVELS[1], "{error}"),
        }
        assert_eq!(queued(&bench).await, if level == LEVELS[0] { "(2)" } else { "(1)" });
        bench.execute("DELETE FROM tenure.jobs").await;
        bench.execute("DELETE FROM tenure.lane_jobs").await;
        bench.execute("DELETE FROM tenure.job_keys").await;
        bench.execute("DELETE FROM tenure.lane_wakes").await;
        if laned {
            bench.tenure.remove_lanes("q").await.unwrap();
        }
    }
}

async fn claim(bench: &Bench, form: &str, job: Uuid) -> Result<usize, sqlx::Error> {
    let claim =
        sqlx::query(statement(form)).bind(vec![job]).bind("q").bind("k").bind(300.0_f64).bind("retry");
    Ok(claim.bind("w-1-x").bind("w").fetch_all(&bench.pool).await?.len())
}

/// What a transaction commits together with `unique_while_queued` is seen by the job that the call returns.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_unique_while_queued_starts_after_the_commit_of_each_call_that_returned_it() {
    let bench = bench().await;
    for level in &LEVELS[..2] {
        let first: Uuid =
            bench.value("SELECT tenure.enqueue('q', 'k', '1', unique_while_queued => 'u')").await;
        let mut tx = begin(&bench.pool, level).await;
        assert_eq!(id(&mut tx, "'2', unique_while_queued => 'u'").await.unwrap(), first);
        // The call has the job's row: no claim gets it, neither one that waits nor one that passes over.
        assert_eq!(refusal(&claim(&bench, "claim", first).await.unwrap_err()).code, "55P03");
        assert_eq!(claim(&bench, "claim_skip", first).await.unwrap(), 0);
        tx.commit().await.unwrap();
        assert_eq!(queued(&bench).await, "(1)");

        // The other way round: the claim has the row. The call waits for it, and creates a job of its own.
        let mut claims = bench.pool.begin().await.unwrap();
        let claim = sqlx::query(statement("claim")).bind(vec![first]).bind("q").bind("k").bind(300.0_f64);
        let claim = claim.bind("retry").bind("w-1-x").bind("w").fetch_all(&mut *claims).await.unwrap();
        assert_eq!(claim.len(), 1);
        let mut tx = begin(&bench.pool, level).await;
        run(&mut tx, "SELECT 1 FROM tenure.jobs").await;
        let call = enqueues(tx, "'3', unique_while_queued => 'u'");
        bench.until(WAITS).await;
        claims.commit().await.unwrap();
        let new = match call.await.unwrap() {
            Ok(new) => {
                assert_eq!(*level, LEVELS[0]);
                new
            }
            Err(error) => {
                assert_eq!((refusal(&error).code.as_str(), *level), ("40001", LEVELS[1]));
                bench.value("SELECT tenure.enqueue('q', 'k', '3', unique_while_queued => 'u')").await
            }
        };
        assert!(new != first);
        assert_eq!(queued(&bench).await, "(3)");
        // Both in one array, and of an older key's: the first.
        let many = r#"[{"queue": "q", "kind": "k", "payload": 4, "unique_while_queued": "v"},
                       {"queue": "q", "kind": "k", "payload": 5, "unique_while_queued": "v"},
                       {"queue": "q", "kind": "k", "payload": 6, "unique_while_queued": "u"},
                       {"queue": "q", "kind": "k", "payload": 7, "replace": "w"},
                       {"queue": "q", "kind": "k", "payload": 8, "replace": "w"}]"#;
        let ids: Vec<Uuid> =
            sqlx::query_scalar(AssertSqlSafe(format!("SELECT tenure.enqueue_many('{many}')")))
                .fetch_all(&bench.pool)
                .await
                .unwrap();
        assert!(ids[0] == ids[1] && ids[2] == new && ids[3] == ids[4], "{ids:?}");
        assert_eq!(queued(&bench).await, "(3)\n(4)\n(8)");
        for table in ["jobs", "job_keys"] {
            bench.execute(&format!("DELETE FROM tenure.{table}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_unique_while_live_holds_its_key_until_it_ends() {
    let bench = bench().await;
    let call = "SELECT tenure.enqueue('q', 'k', unique_while_live => 'u')";
    let first: Uuid = bench.value(call).await;
    assert_eq!(bench.value::<Uuid>(call).await, first);
    let attempt = claimed(&bench, JobId(first)).await;
    assert_eq!(bench.value::<Uuid>(call).await, first, "it runs");
    let library = JobRequest::new("q", "k", json!(1)).unique_while_live("u");
    let library = bench.tenure.enqueue(library).await.unwrap();
    assert_eq!((library.id.0, library.duplicate), (first, true));
    assert_ne!(
        bench.value::<Uuid>("SELECT tenure.enqueue('other', 'k', unique_while_live => 'u')").await,
        first
    );
    // A snapshot that is older than its end would see it live, and return a job that nothing runs any more.
    let mut old = begin(&bench.pool, LEVELS[1]).await;
    run(&mut old, "SELECT 1 FROM tenure.jobs").await;
    let mut other = begin(&bench.pool, LEVELS[1]).await;
    assert_eq!(id(&mut other, "'1', unique_while_live => 'u'").await.unwrap(), first);
    other.commit().await.unwrap();
    bench.execute(&format!("SELECT tenure.complete({attempt})")).await;
    let late = id(&mut old, "'1', unique_while_live => 'u'").await.unwrap_err();
    assert_eq!(refusal(&late).code, "40001");
    old.rollback().await.unwrap();
    let mut new = begin(&bench.pool, LEVELS[1]).await;
    let second = id(&mut new, "'1', unique_while_live => 'u'").await.unwrap();
    assert_ne!(second, first);
    // Another call waits for the one that takes the key.
    let other = enqueues(begin(&bench.pool, LEVELS[0]).await, "'1', unique_while_live => 'u'");
    bench.until(WAITS).await;
    new.commit().await.unwrap();
    assert_eq!(other.await.unwrap().unwrap(), second);
    // A dead letter holds no such key.
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_: Value, _| async {
        Err::<Outcome, _>(tenure::JobError::permanent("for good"))
    });
    let worker = Running::start(worker.concurrency("q", 2));
    bench.until_count(&format!("tenure.dead_letter_jobs WHERE id = '{second}'"), 1).await;
    worker.stop().await;
    assert_ne!(bench.value::<Uuid>(call).await, second);
}

/// The two functions that run with the owner's rights give a producer no power over jobs that it did not enqueue so.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_changes_no_job_by_the_functions_that_run_with_the_owners_rights() {
    let bench = bench_with_servers(|_| {}).await;
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    bench.execute("CREATE ROLE web LOGIN PASSWORD 'pw' IN ROLE tenure_producer").await;
    let (before, host) = bench.config.database_url.split_once('@').unwrap();
    let web =
        PgPool::connect(&format!("{}//web:pw@{host}", before.split_once("//").unwrap().0)).await.unwrap();
    let plain: Uuid =
        bench.value("SELECT tenure.enqueue('q', 'k', '\"plain\"', unique_key => 'u', delay => '1 h')").await;
    let other: Uuid = bench.value("SELECT tenure.enqueue('q', 'k', '\"other\"', delay => '1 h')").await;
    let forged = [
        // A row of job_keys of its own that names the job, and then a replacement.
        format!("INSERT INTO tenure.job_keys (scope, key, job_id) VALUES ('q/queued', 'f', '{other}')"),
        "SELECT tenure.take_key('replace', 'q/queued', 'f', gen_random_uuid(), '\"forged\"', now(), NULL)"
            .into(),
    ];
    for sql in &forged {
        sqlx::query(AssertSqlSafe(sql.as_str())).execute(&web).await.unwrap();
    }
    let said = refused(
        &web,
        "SELECT tenure.take_key('replace', 'q', 'u', gen_random_uuid(), '\"forged\"', now(), NULL)",
    )
    .await;
    assert_eq!(said.message, "\"q\" is no scope of keys that end with their jobs");
    // The job's id as that of the new job, so that the next call would find it.
    let said = refused(
        &web,
        &format!("SELECT tenure.take_key('replace', 'q/queued', 'g', '{other}', '\"forged\"', now(), NULL)"),
    )
    .await;
    assert_eq!((said.code.as_str(), said.message), ("23505", format!("job {other} exists already")));
    let said = refused(
        &web,
        &format!("INSERT INTO tenure.job_keys (scope, key, job_id, lasting) VALUES ('q/queued', 'h', '{other}', true)"),
    )
    .await;
    assert_eq!(said.code, "42501");
    assert_eq!(queued(&bench).await, "(\"\"\"plain\"\"\")\n(\"\"\"other\"\"\")");
    // By a snapshot that does not show the job; and of a job that has died.
    let mut old = crate::sql::begin(&web, "REPEATABLE READ").await;
    sqlx::query("SELECT count(*) FROM tenure.jobs").execute(&mut *old).await.unwrap();
    let unseen: Uuid = bench.value("SELECT tenure.enqueue('q', 'k', '\"other\"', delay => '1 h')").await;
    let group = Uuid::now_v7();
    for call in [
        format!("tenure.take_key('queued', 'q/queued', 'old', '{unseen}', 'null', now(), NULL)"),
        format!("tenure.add_followers('{{{unseen}}}', '{{cancel}}', '{group}')"),
    ] {
        let mut tried = old.begin().await.unwrap();
        let said = sqlx::query(AssertSqlSafe(format!("SELECT {call}"))).execute(&mut *tried).await;
        let said = said.unwrap_err().into_database_error().unwrap();
        assert_eq!(said.code().as_deref(), Some("40001"), "{call}: {said}");
        tried.rollback().await.unwrap();
    }
    // A job of its own is as it was.
    let own = "SELECT tenure.enqueue('q', 'k', '\"own\"', unique_while_queued => 'own', delay => '1 h')";
    sqlx::query(own).execute(&mut *old).await.unwrap();
    old.rollback().await.unwrap();
    let died = Uuid::now_v7();
    bench
        .execute(&format!(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                 created_at, scheduled_at, died_at, last_error, category, execution_history)
             VALUES ('{died}', 'q', 'k', '1', 1, 1, 1, now(), now(), now(), '', 'exhausted', '[]')"
        ))
        .await;
    let said = refused(
        &web,
        &format!("SELECT tenure.take_key('queued', 'q/queued', 'i', '{died}', 'null', now(), NULL)"),
    )
    .await;
    assert_eq!(said.code, "23505");
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{unseen}'")).await;
    assert_eq!(queued(&bench).await, "(\"\"\"plain\"\"\")\n(\"\"\"other\"\"\")");
    let again =
        refused(&web, "SELECT tenure.enqueue('q', 'k', '1', unique_key => 'u', lane => 'a', replace => 'a')")
            .await;
    assert_eq!(again.code, "TN003");
    assert_eq!(bench.value::<Uuid>("SELECT tenure.enqueue('q', 'k', unique_key => 'u')").await, plain);

    // `admit` in a producer's hand: never above the limit, and what it leaves without a message still runs.
    bench.execute("DELETE FROM tenure.jobs").await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    bench.execute("SELECT tenure.enqueue('q', 'k', lane => 'a') FROM generate_series(1, 5)").await;
    let released = async || {
        sqlx::query("SELECT tenure.admit('q', '{a}', NULL, 1000000)").fetch_all(&web).await.unwrap().len()
    };
    assert_eq!(released().await, 2);
    assert_eq!(released().await, 0);
    for sql in [
        "SELECT tenure.tend_lanes(10, true)",
        "SELECT tenure.sweep_lanes(10)",
        "SELECT tenure.follow_clock()",
        "SELECT tenure.put_lanes('q', NULL, NULL, NULL, NULL, NULL, false, false, '1s')",
        "SELECT tenure.remove_lanes('q')",
        "SELECT * FROM tenure.lane_jobs",
        "UPDATE tenure.lanes SET running = 9",
    ] {
        assert_eq!(refused(&web, sql).await.code, "42501", "{sql}");
    }
}
