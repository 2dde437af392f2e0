//! The scripts of `examples/import`: what waits in another queue moves into tenure whole, once, and as it was.
//!
//! graphile-worker and pg-boss are the real ones, if `scripts/setup test` could install them. River's and Oban's tables
//! are those that their migrations make.

mod redis;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sqlx::AssertSqlSafe;
use tenure::{KindOptions, Worker};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::harness::{Bench, Running, bench, bench_with_servers};

/// A payload that no step may change.
const PAYLOAD: &str = r#"{"to": "ä😀\"\\", "list": [1, null, {"a": 1.5}], "most": 9007199254740991}"#;

fn root() -> &'static Path {
    Path::new(crate::harness::ROOT)
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/it/import").join(name)
}

async fn answers(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.is_ok_and(|status| status.success())
}

/// Whether the test can run; it says so if not.
fn there(what: &str, is_there: bool) -> bool {
    if !is_there {
        eprintln!("skipped: no {what} here (scripts/setup test)");
    }
    is_there
}

/// A script of `examples/import` in `psql`, whose session has another time zone than the server's.
fn script(bench: &Bench, file: &str, variables: &[&str]) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-A", "-t", "-F", " "]).arg(&bench.config.database_url);
    for variable in variables {
        command.args(["-v", variable]);
    }
    command.arg("-f").arg(root().join("examples/import").join(file));
    command.env("PGTZ", "Asia/Tokyo").stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Runs a command that must succeed, and returns what it printed.
async fn output(mut command: Command) -> String {
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

async fn run(bench: &Bench, file: &str, variables: &[&str]) -> String {
    output(script(bench, file, variables)).await
}

/// Runs a script with the rights of a role.
async fn run_as(bench: &Bench, role: &str, file: &str, variables: &[&str]) -> String {
    let mut command = script(bench, file, variables);
    command.env("PGOPTIONS", format!("-c role={role}"));
    output(command).await
}

/// Runs a script that must fail, and returns its error.
async fn refused(bench: &Bench, file: &str, variables: &[&str]) -> String {
    let output = script(bench, file, variables).output().await.unwrap();
    assert_eq!(output.status.code(), Some(3), "{variables:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The jobs of tenure that wait: queue, kind, payload, attempts, when, key. An id that the source made up is `ID`.
async fn waiting(bench: &Bench) -> Vec<String> {
    let sql = "SELECT string_agg(concat_ws(' ', j.queue, j.kind, j.payload, 'x' || j.max_attempts,
                      CASE WHEN j.scheduled_at > now() THEN to_char(j.scheduled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')
                           ELSE 'due' END,
                      regexp_replace(k.key, '[0-9a-f]{8}-[0-9a-f-]{27}', 'ID')), E'\\n' ORDER BY j.payload, k.key)
                 FROM tenure.jobs j JOIN tenure.job_keys k ON k.job_id = j.id";
    let rows: Option<String> = bench.value(sql).await;
    rows.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Kills the script when it has enqueued all and waits for a lock before the source lets go of its jobs.
async fn a_script_that_is_killed_has_moved_nothing(
    bench: &Bench,
    file: &str,
    variables: &[&str],
    table: &str,
) {
    let source = format!("SELECT md5(string_agg(t::text, '' ORDER BY t::text)) FROM {table} t");
    let before: String = bench.value(&source).await;
    let jobs = bench.count("tenure.jobs").await;
    let mut lock = bench.pool.begin().await.unwrap();
    // It lets the script lock its rows, and not change them.
    let statement = format!("LOCK TABLE {table} IN SHARE MODE");
    sqlx::query(AssertSqlSafe(statement)).execute(&mut *lock).await.unwrap();
    let mut psql = script(bench, file, variables).stdout(Stdio::null()).spawn().unwrap();
    let of_script = "pg_stat_activity WHERE datname = current_database() AND application_name = 'psql'";
    bench
        .until(&format!(
            "EXISTS (SELECT FROM {of_script} AND wait_event_type = 'Lock' AND query LIKE '%import_gone%')"
        ))
        .await;
    psql.kill().await.unwrap();
    lock.rollback().await.unwrap();
    bench.until_count(of_script, 0).await;
    assert_eq!(bench.count("tenure.jobs").await, jobs);
    assert_eq!(bench.value::<String>(&source).await, before, "{file}");
}

/// A worker of tenure runs the jobs of a queue that are due.
async fn due_jobs_run(bench: &Bench, queue: &str, kind: &'static str, due: i64) {
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    let worker = Worker::builder(&bench.tenure).handle_kind(kind, KindOptions::new(), echo);
    let worker = Running::start(worker.concurrency(queue, 10));
    let ran =
        format!("tenure.job_history WHERE queue = '{queue}' AND status = 'completed' AND output = payload");
    bench.until_count(&ran, due).await;
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

/// A running program of Node that prints `ready`, or one that ends.
async fn fill(bench: &Bench, folder: &Path, program: &str, package: &str) -> Child {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(fixture(program), folder.join(program)).unwrap();
    // A module finds its libraries beside itself.
    std::os::unix::fs::symlink(root().join(".tools/queues/node_modules"), folder.join("node_modules"))
        .unwrap();
    let mut command = Command::new("node");
    command.arg(folder.join(program)).arg(package).kill_on_drop(true);
    command.env("DATABASE_URL", &bench.config.database_url).env("PAYLOAD", PAYLOAD);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await.unwrap().unwrap();
    match line {
        Some(line) => assert_eq!(line, "ready"),
        None => assert!(child.wait().await.unwrap().success()),
    }
    child
}

async fn has_package(package: &str) -> bool {
    let folder = root().join(".tools/queues/node_modules").join(package);
    there("psql", answers("psql").await) && there(package, answers("node").await && folder.exists())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_river_moves_once_and_as_it_was() {
    if !there("psql", answers("psql").await) {
        return;
    }
    let bench = bench().await;
    sqlx::raw_sql(include_str!("import/river.sql")).execute(&bench.pool).await.unwrap();
    bench
        .execute(&format!(
            "INSERT INTO river_job (args, kind, queue, state, attempt, max_attempts, scheduled_at, finalized_at, metadata) VALUES
             ('{PAYLOAD}', 'send', 'mail', 'available', 0, 25, now() - interval '1 hour', NULL, '{{}}'),
             ('{{\"n\": 2}}', 'send', 'mail', 'retryable', 3, 25, '2031-01-31 12:00:00.123Z', NULL, '{{\"by\": \"Ann\"}}'),
             ('{{\"n\": 3}}', 'send', 'mail', 'scheduled', 0, 1, '2031-01-31 12:00:00.123Z', NULL, '{{}}'),
             ('{{\"n\": 4}}', 'mail/send', 'mail', 'available', 0, 25, now(), NULL, '{{}}'),
             ('{{\"n\": 5}}', 'send', 'mail', 'running', 1, 25, now(), NULL, '{{}}'),
             ('{{\"n\": 6}}', 'send', 'mail', 'discarded', 25, 25, now(), now(), '{{}}'),
             ('{{\"n\": 7}}', 'send', 'mail', 'available', 0, 25, now(), NULL, '{{\"workflow_id\": \"w\"}}'),
             ('{{\"n\": 8}}', 'send', 'mail', 'pending', 0, 25, now(), NULL, '{{}}'),
             ('{{\"n\": 9}}', 'send', 'other', 'available', 0, 25, now(), NULL, '{{}}')"
        ))
        .await;
    let of_mail = ["queue=mail", "kinds={\"mail/send\": \"mail.send\"}"];

    let dry = run(&bench, "river.sql", &["queue=mail", "dry_run=on"]).await;
    assert!(dry.contains("mail mail/send kind \"mail/send\" is not a valid name: "), "{dry}");
    assert!(
        dry.contains("-v meta=FIELD") && dry.ends_with("This was a dry run: nothing was moved.\n"),
        "{dry}"
    );
    assert_eq!(bench.count("tenure.jobs").await, 0);
    a_script_that_is_killed_has_moved_nothing(&bench, "river.sql", &of_mail, "river_job").await;

    let said = run(&bench, "river.sql", &of_mail).await;
    assert!(said.contains("mail send available mail send 1\nmail send retryable mail send 1\n"), "{said}");
    for left in
        ["it runs 1 5", "it is discarded 1 6", "it belongs to others 1 7", "it waits for other jobs 1 8"]
    {
        assert!(said.contains(&format!("mail send {left} ")), "{said}");
    }
    let all = [
        format!("mail send {PAYLOAD} x25 due river-1"),
        "mail send {\"n\": 2} x22 2031-01-31 12:00:00.123 river-2".into(),
        "mail send {\"n\": 3} x1 2031-01-31 12:00:00.123 river-3".into(),
        "mail mail.send {\"n\": 4} x25 due river-4".into(),
    ];
    assert_eq!(sorted(waiting(&bench).await), sorted(all.to_vec()));
    let as_it_was = "river_job r JOIN tenure.jobs j ON j.id = (r.metadata ->> 'tenure_job_id')::uuid
                       AND j.scheduled_at = r.scheduled_at AND j.payload = r.args WHERE r.state = 'cancelled'";
    assert_eq!(bench.count(as_it_was).await, 4);
    assert_eq!(
        bench.count("river_job WHERE state <> 'cancelled' AND NOT metadata ? 'tenure_job_id'").await,
        5
    );

    run(&bench, "river.sql", &of_mail).await;
    assert_eq!(waiting(&bench).await.len(), 4);

    run(&bench, "back/river.sql", &[]).await;
    assert_eq!(bench.count("tenure.jobs").await, 0);
    let again = "river_job WHERE id <= 4 AND finalized_at IS NULL AND (metadata = '{}' OR id = 2)
                    AND state::text = CASE WHEN id IN (2, 3) THEN 'scheduled' ELSE 'available' END";
    assert_eq!(bench.count(again).await, 4);

    // The keys of the first move are held by the jobs that it made.
    let said = run(&bench, "river.sql", &of_mail).await;
    assert!(said.contains("mail send a job of tenure has its unique key already 3 1 "), "{said}");
    run(&bench, "river.sql", &[of_mail[0], of_mail[1], "prefix=again", "dead=on", "meta=_river"]).await;
    let rows = waiting(&bench).await.join("\n");
    assert!(
        rows.contains(
            "\"_river\": {\"id\": 2, \"tags\": [], \"attempt\": 3, \"metadata\": {\"by\": \"Ann\"}"
        ),
        "{rows}"
    );
    assert!(rows.contains(" x1 due again-6"), "{rows}");
    due_jobs_run(&bench, "mail", "send", 2).await;
}

/// The key of a waiting job is taken after the script has looked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_key_a_producer_takes_meanwhile_stays_where_it_is() {
    if !there("psql", answers("psql").await) {
        return;
    }
    let bench = bench().await;
    sqlx::raw_sql(include_str!("import/river.sql")).execute(&bench.pool).await.unwrap();
    bench
        .execute("INSERT INTO river_job (args, kind, queue) SELECT '{}', 'send', 'mail' FROM generate_series(1, 2)")
        .await;
    let mut producer = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT tenure.enqueue('mail', 'other', unique_key => 'river-2')")
        .execute(&mut *producer)
        .await
        .unwrap();
    let moves = tokio::spawn(output(script(&bench, "river.sql", &[])));
    bench
        .until(
            "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                        AND application_name = 'psql' AND wait_event_type = 'Lock')",
        )
        .await;
    producer.commit().await.unwrap();
    let said = moves.await.unwrap();
    assert!(said.contains("mail send a job of tenure has its unique key already 1 2 "), "{said}");
    assert_eq!(bench.count("river_job WHERE id = 2 AND state = 'available'").await, 1);
    assert_eq!(bench.count("river_job WHERE id = 1 AND state = 'cancelled'").await, 1);
    assert_eq!(bench.count("tenure.jobs").await, 2);
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_oban_moves_once_and_as_it_was() {
    if !there("psql", answers("psql").await) {
        return;
    }
    let bench = bench_with_servers(|_| {}).await;
    sqlx::raw_sql(include_str!("import/oban.sql")).execute(&bench.pool).await.unwrap();
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    for role in ["producer", "operator"] {
        bench.execute(&format!("CREATE ROLE a_{role} IN ROLE tenure_{role}")).await;
        bench.execute(&format!("GRANT SELECT, UPDATE ON oban_jobs TO a_{role}")).await;
    }
    bench
        .execute(&format!(
            "INSERT INTO oban_jobs (args, worker, queue, state, attempt, max_attempts, scheduled_at, meta) VALUES
             ('{PAYLOAD}', 'Shop.Mailer', 'mail', 'available', 0, 20, timezone('UTC', now()) - interval '1 hour', '{{}}'),
             ('{{\"n\": 2}}', 'Shop.Mailer', 'mail', 'retryable', 3, 20, '2031-01-31 12:00:00.123', '{{\"by\": \"Ann\"}}'),
             ('{{\"n\": 3}}', 'Shop.Mailer', 'mail', 'scheduled', 0, 1, '2031-01-31 12:00:00.123', NULL),
             ('{{\"n\": 4}}', 'Shop.Mailer', 'mail', 'executing', 1, 20, timezone('UTC', now()), '{{}}'),
             ('{{\"n\": 5}}', 'Shop.Mailer', 'mail', 'suspended', 0, 20, timezone('UTC', now()), '{{}}'),
             ('{{\"n\": 6}}', 'Shop.Mailer', 'mail', 'discarded', 20, 20, timezone('UTC', now()), '{{}}'),
             ('{{\"n\": 7}}', 'Shop.Mailer', 'mail', 'available', 0, 20, timezone('UTC', now()), '{{\"batch_id\": 1}}'),
             ('{{\"n\": 8}}', 'Shop.Mailer', 'other', 'available', 0, 20, timezone('UTC', now()), '{{}}')"
        ))
        .await;
    let given = ["queue=mail", "queues={\"mail\": \"post\"}"];
    a_script_that_is_killed_has_moved_nothing(&bench, "oban.sql", &given, "oban_jobs").await;

    let said = run_as(&bench, "a_producer", "oban.sql", &given).await;
    for left in
        ["it runs 1 4", "it waits for other jobs 1 5", "it is discarded 1 6", "it belongs to others 1 7"]
    {
        assert!(said.contains(&format!("mail Shop.Mailer {left} ")), "{said}");
    }
    let all = vec![
        format!("post Shop.Mailer {PAYLOAD} x20 due oban-1"),
        "post Shop.Mailer {\"n\": 2} x17 2031-01-31 12:00:00.123 oban-2".into(),
        "post Shop.Mailer {\"n\": 3} x1 2031-01-31 12:00:00.123 oban-3".into(),
    ];
    assert_eq!(sorted(waiting(&bench).await), sorted(all));
    let as_it_was = "oban_jobs o JOIN tenure.jobs j ON j.id = (o.meta ->> 'tenure_job_id')::uuid
                       AND j.scheduled_at = o.scheduled_at AT TIME ZONE 'UTC' WHERE o.state = 'cancelled'";
    assert_eq!(bench.count(as_it_was).await, 3);
    run(&bench, "oban.sql", &given).await;
    assert_eq!(waiting(&bench).await.len(), 3);
    due_jobs_run(&bench, "post", "Shop.Mailer", 1).await;

    // What has run in tenure stays there.
    run_as(&bench, "a_operator", "back/oban.sql", &[]).await;
    assert_eq!(bench.count("tenure.jobs").await, 0);
    assert_eq!(
        bench.count("oban_jobs WHERE id IN (2, 3) AND state = 'scheduled' AND cancelled_at IS NULL").await,
        2
    );
    assert_eq!(bench.count("oban_jobs WHERE id = 1 AND state = 'cancelled'").await, 1);
}

async fn graphile_worker_moves(package: &str) {
    if !has_package(package).await {
        return;
    }
    let bench = bench().await;
    let folder = bench.config.runtime_dir.join(package);
    // It runs two jobs until it is killed.
    let _worker = fill(&bench, &folder, "of_graphile_worker.mjs", package).await;
    bench.execute("CREATE TABLE before AS SELECT * FROM graphile_worker._private_jobs").await;
    let table = "graphile_worker._private_jobs";
    let given = ["kinds={\"mail:urgent\": \"mail.urgent\"}"];
    a_script_that_is_killed_has_moved_nothing(&bench, "graphile_worker.sql", &given, table).await;

    let said = run(&bench, "graphile_worker.sql", &given).await;
    for left in [
        "mail send its payload holds \\u0000 1",
        "serial slow it runs 1",
        "serial send a job of its queue runs 1",
    ] {
        assert!(said.contains(&format!("\n{left} ")), "{said}");
    }
    for left in ["doomed it has failed for good 1", "slow it runs 1"] {
        assert!(said.contains(&format!("\ndefault {left} ")), "{said}");
    }
    let flaky = "SELECT to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') FROM before WHERE attempts = 1 AND max_attempts = 5";
    let flaky: String = bench.value(flaky).await;
    let mut rows = waiting(&bench).await;
    // Its delay is a second or two, which may be over.
    for row in &mut rows {
        *row = row.replace(&flaky, "due");
    }
    let all = vec![
        format!("mail send {PAYLOAD} x5 due graphile-3"),
        "mail send {\"n\": 2} x1 2031-01-31 12:00:00.123 graphile-4".into(),
        "mail send {\"n\": 3} x25 due k-3".into(),
        "mail send [1, null, \"two\"] x2 due graphile-6".into(),
        "default mail.urgent {\"n\": 5} x25 due graphile-7".into(),
        "default flaky {\"n\": 8} x4 due graphile-1".into(),
    ];
    assert_eq!(sorted(rows), sorted(all));
    let as_it_was = "before b JOIN tenure.job_keys k ON k.key IN (b.key, 'graphile-' || b.id)
                       JOIN tenure.jobs j ON j.id = k.job_id AND j.scheduled_at = b.run_at";
    assert_eq!(bench.count(as_it_was).await, 6);
    assert_eq!(bench.count(table).await, 5);
    run(&bench, "graphile_worker.sql", &given).await;
    assert_eq!(waiting(&bench).await.len(), 6);
    due_jobs_run(&bench, "mail", "send", 3).await;

    assert_eq!(run(&bench, "back/graphile_worker.sql", &["queue=mail"]).await, "BEGIN\n1\nCOMMIT\n");
    let again =
        "graphile_worker.jobs WHERE task_identifier = 'send' AND queue_name = 'mail' AND max_attempts = 1
                    AND run_at = '2031-01-31 12:00:00.123Z' AND attempts = 0";
    assert_eq!(bench.count(again).await, 1);
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'mail'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_graphile_worker_moves_once_and_as_it_was() {
    graphile_worker_moves("graphile-worker-16").await;
    graphile_worker_moves("graphile-worker").await;
}

async fn pg_boss_moves(package: &str) {
    if !has_package(package).await {
        return;
    }
    let bench = bench().await;
    let folder = bench.config.runtime_dir.join(package);
    fill(&bench, &folder, "of_pg_boss.mjs", package).await;
    let given = ["queues={\"mail.urgent\": \"mail\"}"];
    a_script_that_is_killed_has_moved_nothing(&bench, "pg_boss.sql", &given, "pgboss.job").await;

    let said = run(&bench, "pg_boss.sql", &given).await;
    for left in ["slow slow it runs 1", "doomed doomed it has failed 1"] {
        assert!(said.contains(&format!("\n{left} ")), "{said}");
    }
    let flaky = "SELECT to_char(start_after AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') FROM pgboss.job WHERE name = 'flaky'";
    let flaky: String = bench.value(flaky).await;
    let all = vec![
        format!("mail mail {PAYLOAD} x5 due pg-boss-ID"),
        "mail mail {\"n\": 2} x1 2031-01-31 12:00:00.123 pg-boss-ID".into(),
        "mail mail {\"n\": 3} x3 due k-3".into(),
        "mail mail null x2 due pg-boss-ID".into(),
        "mail mail.urgent {\"n\": 5} x3 due pg-boss-ID".into(),
        "other other {\"n\": 6} x3 due pg-boss-ID".into(),
        format!("flaky flaky {{\"n\": 8}} x4 {flaky} pg-boss-ID"),
    ];
    assert_eq!(sorted(waiting(&bench).await), sorted(all));
    let as_it_was = "pgboss.job b JOIN tenure.jobs j ON j.id = (b.output ->> 'tenure_job_id')::uuid
                       AND j.scheduled_at = b.start_after WHERE b.state = 'cancelled'";
    assert_eq!(bench.count(as_it_was).await, 7);
    assert_eq!(bench.count("pgboss.job WHERE name = 'slow' AND state = 'active'").await, 1);
    run(&bench, "pg_boss.sql", &given).await;
    assert_eq!(waiting(&bench).await.len(), 7);
    due_jobs_run(&bench, "mail", "mail", 3).await;

    run(&bench, "back/pg_boss.sql", &[]).await;
    assert_eq!(bench.count("tenure.jobs").await, 0);
    let again = "pgboss.job WHERE completed_on IS NULL AND output IS NULL
                    AND state::text = CASE name WHEN 'flaky' THEN 'retry' ELSE 'created' END AND name <> 'slow'";
    assert_eq!(bench.count(again).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_pg_boss_moves_once_and_as_it_was() {
    pg_boss_moves("pg-boss-10").await;
    pg_boss_moves("pg-boss").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_tenure_refuses_stays_and_the_others_move() {
    if !there("psql", answers("psql").await) {
        return;
    }
    let bench = bench().await;
    let error = refused(&bench, "river.sql", &[]).await;
    assert!(error.contains("this database has no table public.river_job\nHINT:  Name the schema"), "{error}");
    sqlx::raw_sql(include_str!("import/river.sql")).execute(&bench.pool).await.unwrap();
    for (given, what) in [
        ("queues=[]", "queues and kinds map names to names, but one of them does not"),
        ("kinds={\"a\": 1}", "queues and kinds map names to names, but one of them does not"),
        ("keys=theirs", "keys is \"theirs\", but must be source or own"),
    ] {
        let error = refused(&bench, "river.sql", &[given]).await;
        assert!(error.contains(what) && error.contains("HINT:"), "{error}");
    }

    // Of 2,500 jobs, in three batches: one is too large, one's key is held, one is due too late; a queue has room for two.
    bench.execute("INSERT INTO river_job (args, kind, queue) SELECT jsonb_build_object('n', n), 'send', 'mail' FROM generate_series(1, 2500) n").await;
    bench
        .execute("UPDATE river_job SET args = jsonb_build_object('text', repeat('x', 300000)) WHERE id = 700")
        .await;
    bench.execute("UPDATE river_job SET scheduled_at = 'infinity' WHERE id = 701").await;
    bench.execute("UPDATE river_job SET queue = 'full' WHERE id BETWEEN 1500 AND 1509").await;
    bench.execute("INSERT INTO tenure.queues (queue, max_queued) VALUES ('full', 2)").await;
    bench.value::<sqlx::types::Uuid>("SELECT tenure.enqueue('mail', 'send', unique_key => 'river-5')").await;
    // A job that another transaction holds, as a client that takes it does.
    let mut taking = bench.pool.begin().await.unwrap();
    sqlx::query("UPDATE river_job SET state = 'running', attempt = 1 WHERE id = 9")
        .execute(&mut *taking)
        .await
        .unwrap();
    let said = run(&bench, "river.sql", &[]).await;
    taking.commit().await.unwrap();
    for left in [
        "mail send the payload has 300012 bytes, but at most 262144 are allowed 1 700 ",
        "mail send run_at is infinity, but must be at most ten years ahead 1 701 ",
        "mail send a job of tenure has its unique key already 1 5 ",
        "mail send another transaction has it, or it is above -v limit 1 9 ",
    ] {
        assert!(said.contains(&format!("\n{left}")), "{said}");
    }
    assert!(
        said.contains("\nfull send queue \"full\" is full: ") && said.contains(" 8 1502 Try again later"),
        "{said}"
    );
    assert_eq!(bench.count("river_job WHERE state = 'cancelled'").await, 2_500 - 4 - 8);
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'mail'").await, 2_500 - 4 - 10 + 1);
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'full'").await, 2);

    // A source that does not let go of a job keeps all.
    bench
        .execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        .await;
    bench.execute("CREATE TRIGGER keep BEFORE UPDATE ON river_job FOR EACH ROW WHEN (OLD.id = 1502) EXECUTE FUNCTION keep()").await;
    let error = refused(&bench, "river.sql", &["queue=full", "into=roomy"]).await;
    assert!(
        error.contains("tenure has 8 jobs, but only 7 of them could be taken from the source"),
        "{error}"
    );
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'roomy'").await, 0);
    bench.execute("DROP TRIGGER keep ON river_job").await;
    run(&bench, "river.sql", &["queue=full", "into=roomy", "limit=3"]).await;
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'roomy'").await, 3);
}
