//! Postgres that ends sessions, has no room, or refuses for a while.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, postgres::PgConnectOptions};
use tenure::{
    EnqueueError, JobContext, JobError, JobRequest, KindOptions, Tenure, Worker,
    dev::{Postgres, free_port},
    doctor::DoctorOptions,
    groups::Signalled,
    internals::chained,
};

use super::{all_done_once, enqueue, none_was_charged, worker};
use crate::harness::{Bench, Running, bench, bench_with, bench_with_servers, run_folder};

fn steady(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(20);
    config.timing.ack_wait = Duration::from_secs(30);
    config.timing.scan_every = Duration::from_secs(1);
}

fn database(bench: &Bench) -> String {
    bench.config.database_url.rsplit('/').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_ended_all_the_time_lose_nothing() {
    let bench = bench_with(steady).await;
    enqueue(&bench, 300, 5).await;
    let workers = [Running::start(worker(&bench.tenure, 10)), Running::start(worker(&bench.tenure, 10))];
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        bench
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE datname = current_database() AND application_name = 'tenure'",
            )
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    all_done_once(&bench, 300).await;
    none_was_charged(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

/// SIGKILL for one session: Postgres ends all others and recovers from its log.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_killed_takes_postgres_down_for_a_moment_and_nothing_else() {
    let bench = bench_with_servers(steady).await;
    enqueue(&bench, 300, 5).await;
    let working = Running::start(worker(&bench.tenure, 20));
    bench.until("(SELECT count(*) FROM tenure.job_history) > 50").await;
    let pid: i32 =
        bench.value("SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure' LIMIT 1").await;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    all_done_once(&bench, 300).await;
    none_was_charged(&bench).await;
    working.stop().await;
}

/// Every level that a database may have as its default.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_under_every_default_isolation_level() {
    for level in ["repeatable read", "serializable"] {
        let bench = bench_with(steady).await;
        let database = database(&bench);
        let set = format!("ALTER DATABASE {database} SET default_transaction_isolation = '{level}'");
        bench.execute(&set).await;
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        enqueue(&bench, 200, 2).await;
        let workers = [Running::start(worker(&tenure, 20)), Running::start(worker(&tenure, 20))];
        tenure
            .enqueue_many(
                (0..100).map(|n| JobRequest::new("q", "k", json!({})).unique_key(format!("{}", n % 50))),
            )
            .await
            .unwrap();
        all_done_once(&bench, 250).await;
        none_was_charged(&bench).await;
        for worker in workers {
            worker.stop().await;
        }
    }
}

/// Limits that an administrator set for all sessions, shorter than the time for which rows are locked.
#[tokio::test(flavor = "multi_thread")]
async fn lock_and_statement_timeouts_of_the_database_delay_and_lose_nothing() {
    // What the test itself asks is not cut short: on a busy machine it takes longer.
    let own = "?options=-c%20lock_timeout=0%20-c%20statement_timeout=0";
    let bench = bench_with(|config| {
        steady(config);
        config.database_url += own;
    })
    .await;
    let mut config = bench.config.clone();
    config.database_url = config.database_url.replace(own, "");
    let database = config.database_url.rsplit('/').next().unwrap();
    for limit in ["lock_timeout = '150ms'", "statement_timeout = '400ms'"] {
        bench.execute(&format!("ALTER DATABASE {database} SET {limit}")).await;
    }
    let tenure = Tenure::connect(&config).await.unwrap();
    enqueue(&bench, 400, 20).await;
    let working = Running::start(worker(&tenure, 50));
    let mut holder = PgConnection::connect(&bench.config.database_url).await.unwrap();
    for lock in [
        "SELECT id FROM tenure.jobs WHERE status = 'processing' ORDER BY id LIMIT 50 FOR UPDATE",
        "LOCK TABLE tenure.jobs IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE tenure.job_history IN SHARE MODE",
    ] {
        // Their handlers, or their ends, meet the lock.
        bench.until("EXISTS (SELECT FROM tenure.jobs WHERE status = 'processing')").await;
        let mut tx = holder.begin().await.unwrap();
        sqlx::query(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        tx.rollback().await.unwrap();
        assert!(bench.count("tenure.jobs").await > 0, "jobs were waiting for it");
    }
    // An attempt fails if its fence comes too late for its transaction; the others waited.
    all_done_once(&bench, 400).await;
    assert_eq!(bench.count("tenure.job_executions WHERE outcome NOT IN ('retried', 'released')").await, 0);
    assert!(bench.count("tenure.job_executions").await > 0, "no statement met a limit");
    working.stop().await;
}

/// A user's transaction locks the rows in the opposite order, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_with_others_transactions_are_tried_again() {
    let bench = bench_with(steady).await;
    let database = database(&bench);
    bench.execute(&format!("ALTER DATABASE {database} SET deadlock_timeout = '20ms'")).await;
    let tenure = Tenure::connect(&bench.config).await.unwrap();
    enqueue(&bench, 60, 60).await;
    let working = Running::start(worker(&tenure, 60));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 60).await;
    let before: i64 =
        bench.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await;
    let mut other = PgConnection::connect(&bench.config.database_url).await.unwrap();
    // These jobs are not due for an hour: they are only cancelled.
    let later = (0..300).map(|_| JobRequest::new("q", "later", json!({})).delay(Duration::from_secs(3_600)));
    let later: Vec<_> =
        tenure.enqueue_many(later).await.unwrap().into_iter().map(|enqueued| enqueued.id).collect();
    for ids in later.chunks(30) {
        // A cancellation locks its rows in order of id; this locks from the last to the first, and waits in the middle.
        let backwards = async {
            let mut tx = other.begin().await?;
            for id in ids.iter().rev() {
                sqlx::query("UPDATE tenure.jobs SET message = 'touched' WHERE id = $1")
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tx.commit().await
        };
        let cancelled = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            tenure.cancel_many(ids).await
        };
        // If this is the deadlock's victim, tenure's statement goes on; otherwise tenure retries it.
        let (touched, cancelled) = tokio::join!(backwards, cancelled);
        drop(touched);
        assert_eq!(cancelled.unwrap().len(), 30);
    }
    assert_eq!(bench.count("tenure.job_history WHERE status = 'cancelled'").await, 300);
    let after: i64 =
        bench.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await;
    assert!(after > before, "no deadlock was forced");
    bench.until_count("tenure.job_history WHERE status = 'completed'", 60).await;
    none_was_charged(&bench).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_free_connection_enqueues_say_so_and_running_jobs_go_on() {
    let bench = bench_with_servers(|config| {
        steady(config);
        config.timing.database_within = Duration::from_secs(1);
    })
    .await;
    enqueue(&bench, 10, 1_200).await;
    let working = Running::start(worker(&bench.tenure, 10));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 10).await;
    // Opened while there is room.
    let mut admin = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut hogs = Vec::new();
    let mut accepted = 0;
    let error = loop {
        while let Ok(hog) = PgConnection::connect(&bench.config.database_url).await {
            hogs.push(hog);
            assert!(hogs.len() < 400);
        }
        let stranger = Tenure::connect(&bench.config).await.unwrap();
        match stranger.enqueue(JobRequest::new("q", "k", json!({}))).await {
            Err(error) => break error,
            // The test was faster than the worker, which had closed a connection and wants another.
            Ok(_) => accepted += 1,
        }
        stranger.close().await;
        assert!(accepted < 20);
    };
    assert!(matches!(&error, EnqueueError::Store(error) if error.is_unavailable()), "{error:?}");
    let quiet = "SELECT max(extract(epoch FROM clock_timestamp() - last_activity_at))::float8, count(*)
                   FROM tenure.jobs WHERE status = 'processing'";
    let (quiet, running): (Option<f64>, i64) = sqlx::query_as(quiet).fetch_one(&mut admin).await.unwrap();
    assert!(
        running == 10 && quiet.is_some_and(|quiet| quiet < 10.0),
        "{running} run, silent for {quiet:?} s"
    );
    drop(hogs);
    let stranger = Tenure::connect(&bench.config).await.unwrap();
    stranger.enqueue(JobRequest::new("q", "k", json!({}))).await.unwrap();
    all_done_once(&bench, 11 + accepted).await;
    none_was_charged(&bench).await;
    working.stop().await;
}

/// A tablespace on a small disk.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: it mounts a small disk"]
async fn a_disk_that_is_full_refuses_enqueues_by_name_and_loses_nothing() {
    let bench = bench_with_servers(steady).await;
    let disk = run_folder().join(format!("disk-{}", bench.own.as_ref().unwrap().postgres.port()));
    std::fs::create_dir_all(&disk).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        assert!(std::process::Command::new(program).args(arguments).status().unwrap().success(), "{program}");
    };
    let path = disk.to_str().unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=40m", "tmpfs", path]);
    struct Mounted(String);
    impl Drop for Mounted {
        fn drop(&mut self) {
            std::process::Command::new("umount").args(["-l", &self.0]).status().ok();
        }
    }
    let _mounted = Mounted(path.to_owned());
    run("chown", &["postgres", path]);
    bench.execute(&format!("CREATE TABLESPACE small LOCATION '{path}'")).await;
    bench.execute("CREATE DATABASE small TABLESPACE small").await;
    let mut config = bench.config.clone();
    config.database_url = config.database_url.replace("/postgres", "/small");
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    let pool = sqlx::PgPool::connect(&config.database_url).await.unwrap();
    sqlx::query("CREATE TABLE public.effects (job uuid, token bigint)").execute(&pool).await.unwrap();
    for _ in 0..20 {
        tenure.enqueue(JobRequest::new("q", "k", json!({ "steps": 100 }))).await.unwrap();
    }
    let working = Running::start(worker(&tenure, 10));
    sqlx::query("CREATE TABLE public.ballast (data text)").execute(&pool).await.unwrap();
    let fill =
        "INSERT INTO public.ballast SELECT repeat(md5(random()::text), 20) FROM generate_series(1, 500)";
    while sqlx::query(fill).execute(&pool).await.is_ok() {}
    let mut refused = None;
    let mut accepted = 20;
    for _ in 0..400 {
        let payload = json!({ "steps": 1, "pad": "x".repeat(50_000) });
        match tenure.enqueue(JobRequest::new("q", "k", payload)).await {
            Ok(_) => accepted += 1,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("the disk is full");
    assert!(matches!(&refused, EnqueueError::Store(error) if error.is_unavailable()), "{refused:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    sqlx::query("DROP TABLE public.ballast").execute(&pool).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let sql = "SELECT count(*) FROM tenure.job_history WHERE status = 'completed'";
        let done: Result<i64, _> = sqlx::query_scalar(sql).fetch_one(&pool).await;
        if done.as_ref().is_ok_and(|done| *done == accepted) {
            break;
        }
        assert!(Instant::now() < deadline, "{done:?} of {accepted}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let wrong: Vec<_> = tenure.verify().await.unwrap().into_iter().filter(|rule| rule.jobs > 0).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    working.stop().await;
    tenure.close().await;
    pool.close().await;
}

/// A user's session locks a job's row and sleeps: this one job waits, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_sleeps_in_its_transaction_holds_up_one_job() {
    let bench = bench_with(steady).await;
    let ids = enqueue(&bench, 50, 2).await;
    let mut holder = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    let held: Value = sqlx::query_scalar("SELECT payload FROM tenure.jobs WHERE id = $1 FOR UPDATE")
        .bind(ids[7])
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(held, json!({ "steps": 2 }));
    let working = Running::start(worker(&bench.tenure, 10));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 49).await;
    tx.rollback().await.unwrap();
    all_done_once(&bench, 50).await;
    working.stop().await;
}

/// A worker works on a newer schema; on an older one it waits, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_works_on_a_newer_schema_and_waits_for_an_older_one_to_be_migrated() {
    let bench = bench().await;
    enqueue(&bench, 5, 1).await;
    bench
        .execute(
            "INSERT INTO tenure.migrations SELECT (jsonb_populate_record(m, '{\"version\": 99}')).* FROM tenure.migrations m
              ORDER BY version DESC LIMIT 1",
        )
        .await;
    let working = Running::start(worker(&bench.tenure, 2));
    all_done_once(&bench, 5).await;
    working.stop().await;
    bench
        .execute(
            "CREATE TABLE public.applied AS SELECT * FROM tenure.migrations WHERE version BETWEEN 31 AND 98",
        )
        .await;
    bench.execute("DELETE FROM tenure.migrations WHERE version >= 31").await;
    let waiting = worker(&bench.tenure, 2);
    let health = waiting.health();
    let working = Running::start(waiting);
    let until = Instant::now() + Duration::from_secs(30);
    while !health.ready().is_err_and(|why| why.iter().any(|line| line.contains("it is at version 30"))) {
        assert!(Instant::now() < until, "{:?}", health.ready());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(health.ready().is_err_and(|why| why.iter().any(|line| line.contains("tenure migrate"))));
    assert!(health.live().is_ok() && !health.has_started());
    // Without `setup`, which migrates.
    bench
        .tenure
        .enqueue_many((0..3).map(|_| JobRequest::new("q", "k", json!({ "steps": 1 }))))
        .await
        .unwrap();
    bench.execute("INSERT INTO tenure.migrations SELECT * FROM public.applied").await;
    all_done_once(&bench, 8).await;
    working.stop().await;
}

/// A migration that removes something says so: a program that needs it ends and says why, and does not fail at every
/// job.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_too_old_for_the_schema_ends_and_says_so() {
    let bench = bench().await;
    let contracted =
        "INSERT INTO tenure.migrations (version, name, checksum, breaks_before) VALUES (99, 'less', '', 98)";
    bench.execute(contracted).await;
    let error = worker(&bench.tenure, 2).run_until(std::future::pending()).await.unwrap_err().to_string();
    assert!(error.contains("a program that knows version 98") && error.contains("newer"), "{error}");
    let checks = bench.tenure.doctor(&tenure::doctor::DoctorOptions::default()).await;
    let schema = checks.iter().find(|check| check.check == "schema").unwrap();
    assert_eq!(schema.state, tenure::doctor::CheckState::Wrong, "{schema:?}");
    assert!(schema.found.contains("98"), "{schema:?}");
}

/// A PgBouncer before this bench's own Postgres, and the address of the database behind it.
async fn pooled(bench: &Bench, settings: &str) -> (tokio::process::Child, String) {
    let postgres: &Postgres = &bench.own.as_ref().unwrap().postgres;
    let folder = run_folder().join(format!("pgbouncer-{}", postgres.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let port = free_port().unwrap();
    let password = bench.config.database_url.split(':').nth(2).unwrap().split('@').next().unwrap();
    let users = folder.join("users.txt");
    std::fs::write(&users, format!("\"tenure\" \"{password}\"\n")).unwrap();
    let ini = folder.join("pgbouncer.ini");
    std::fs::write(
        &ini,
        format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = scram-sha-256\nauth_file = {}\n{settings}\n\
             max_client_conn = 500\nunix_socket_dir =\nlogfile = {}\n",
            postgres.port(),
            users.display(),
            folder.join("log").display(),
        ),
    )
    .unwrap();
    let status = std::process::Command::new("chown").args(["-R", "postgres"]).arg(&folder).status().unwrap();
    assert!(status.success());
    let mut command = tokio::process::Command::new("pgbouncer");
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "postgres"]);
    }
    let pooler = command.arg(&ini).kill_on_drop(true).spawn().unwrap();
    let url = bench.config.database_url.replace(&format!(":{}/", postgres.port()), &format!(":{port}/"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(Instant::now() < deadline, "PgBouncer does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (pooler, url)
}

/// Whether this machine's PgBouncer can keep the prepared statements of its clients apart.
fn keeps_statements_apart() -> bool {
    let version = std::process::Command::new("pgbouncer").arg("--version").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    version.split(['.', '\n']).nth(1).unwrap().parse::<u32>().unwrap() >= 21
}

/// A PgBouncer that leaves prepared statements to the sessions, as those before 1.21 do: `migrate`, `doctor` and a
/// producer name it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_mixes_up_prepared_statements_is_named() {
    let bench = bench_with_servers(steady).await;
    let off = if keeps_statements_apart() { "max_prepared_statements = 0" } else { "" };
    let transactions = format!("pool_mode = transaction\ndefault_pool_size = 20\n{off}");
    let (_pooler, url) = pooled(&bench, &transactions).await;
    let mut config = bench.config.clone();
    config.database_url = url;
    let named = |said: &str| said.contains("PgBouncer in transaction mode has to be 1.21 or later");
    let tenure = Tenure::connect(&config).await.unwrap();
    // Of several clients with one session, each prepares statements under names that the others have, too.
    let calls = (0..40).map(|_| tenure.enqueue(JobRequest::new("q", "k", json!({}))).into_future());
    let errors: Vec<_> = futures::future::join_all(calls).await.into_iter().filter_map(Result::err).collect();
    let other = Tenure::connect(&config).await.unwrap();
    let migrated = other.migrate().await.err().map(|error| chained(&error));
    let checks = other.doctor(&DoctorOptions::default()).await;
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let said = format!("{errors:?} {migrated:?} {checks:?}");
    assert!(named(&said), "{said}");
}

/// The pooler's transaction mode, with default settings: each transaction may get a different session. A PgBouncer before
/// 1.21 has its session mode for that.
#[tokio::test(flavor = "multi_thread")]
async fn everything_works_behind_pgbouncer_in_the_mode_for_its_version() {
    let bench = bench_with_servers(steady).await;
    let mode = if keeps_statements_apart() {
        "pool_mode = transaction\ndefault_pool_size = 20\nmax_prepared_statements = 200"
    } else {
        "pool_mode = session\ndefault_pool_size = 200"
    };
    let (_pooler, url) = pooled(&bench, mode).await;
    let mut config = bench.config.clone();
    config.database_url = url;
    let tenure = Tenure::connect(&config).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while tenure.migrate().await.is_err() {
        assert!(Instant::now() < deadline, "PgBouncer does not answer");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    enqueue(&bench, 100, 3).await;
    let workers = [Running::start(worker(&tenure, 10)), Running::start(worker(&tenure, 10))];
    let many = (0..200).map(|n| JobRequest::new("q", "k", json!({})).unique_key(format!("{n}")));
    tenure.enqueue_many(many).await.unwrap();
    let alone: Vec<_> =
        (0..50).map(|_| tenure.enqueue(JobRequest::new("q", "k", json!({}))).into_future()).collect();
    for enqueued in futures::future::join_all(alone).await {
        enqueued.unwrap();
    }
    // This process publishes once it sees the commit, which it asks for through the pooler, too.
    let options: PgConnectOptions = config.database_url.parse().unwrap();
    let mut user = PgConnection::connect_with(&options.extra_float_digits(None)).await.unwrap();
    for _ in 0..20 {
        let mut tx = user.begin().await.unwrap();
        tenure.enqueue(JobRequest::new("q", "k", json!({}))).tx(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    let id = tenure
        .enqueue(JobRequest::new("q", "k", json!({})).delay(Duration::from_secs(600)))
        .await
        .unwrap()
        .id;
    assert_eq!(tenure.cancel(id).await.unwrap(), tenure::jobs::CancelOutcome::Cancelled);
    // The trigger that notes ends fires as a transaction commits; its setting ends with that.
    for _ in 0..10 {
        let members = (0..4).map(|_| JobRequest::new("q", "k", json!({})));
        tenure.group(members).then(JobRequest::new("q", "k", json!({}))).await.unwrap();
    }
    all_done_once(&bench, 420).await;
    assert_eq!(bench.count("tenure.job_edges WHERE state = 'completed'").await, 40);
    // Jobs that wait for jobs of their own, sleep, and wait for an event.
    let asks = async |_: Value, ctx: JobContext| {
        let own = (0..3).map(|n| JobRequest::new("asks", "own", json!(n)));
        let own: Vec<i64> = ctx.all("own", own).await?;
        ctx.sleep("nap", Duration::from_millis(100)).await?;
        let said: i64 = ctx.event("said").await?;
        Ok::<_, JobError>(json!([own, said]))
    };
    let own = async |n: Value, _: JobContext| Ok::<_, JobError>(n);
    let of = KindOptions::new;
    let asking = Worker::builder(&tenure)
        .handle_kind("asks", of(), asks)
        .handle_kind("own", of(), own)
        .concurrency("asks", 4);
    let asking = Running::start(asking);
    let jobs = tenure.enqueue_many((0..5).map(|_| JobRequest::new("asks", "asks", json!({})))).await.unwrap();
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(tenure.signal(job.id, "said", &n).await.unwrap(), Signalled::Delivered);
    }
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(bench.until_finished(job.id).await.output, Some(json!([[0, 1, 2], n])));
    }
    asking.stop().await;
    none_was_charged(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}
