//! Recovery: reconcile, scanner, relay and redelivery, each with its races.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};
use tenure::{JobRequest, KindOptions, Tenure, Worker, internals::Recovery};
use tokio::sync::Barrier;

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, bench_with_servers, statement, until_file},
    scenarios::{Step, step},
};

async fn running_job(bench: &Bench) -> (Step, tenure::JobId) {
    let job = Step::new(bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    (job, id)
}

/// Long timers: the scanner recovers no job here.
fn patient(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(300);
    config.timing.scan_every = Duration::from_secs(30);
    config.timing.ack_wait = Duration::from_secs(600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_worker_resets_its_own_jobs_at_once() {
    let bench = bench_with(patient).await;
    let mut first = Child::on(&bench, "web-1", "worker");
    let (_, job) = running_job(&bench).await;
    first.kill().await;
    let _second = Child::on(&bench, "web-1", "worker");
    bench.until_finished(job).await;
    let event = bench.text("SELECT path, owner_before LIKE 'web-1-%', recovered_by LIKE 'web-1-%' FROM tenure.recovery_events").await;
    assert_eq!(event, "(reconcile,t,t)");
    // The dead process's row is deleted, too.
    bench.until_count("tenure.workers", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_sibling_on_the_same_host_keeps_its_jobs() {
    let bench = bench_with(patient).await;
    let sibling = Child::on(&bench, "web-1", "worker");
    let (job, id) = running_job(&bench).await;
    // A frozen process is not dead: its file stays locked, its pid exists.
    sibling.signal(Signal::STOP);
    let mut second = Child::on(&bench, "web-1", "worker");
    second.until_log("worker started").await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing' AND fencing_token = 1").await, 1);
    sibling.signal(Signal::CONT);
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_name_starts_with_ours_or_holds_a_wildcard_is_not_us() {
    for (dead, ours) in [("web-1-2", "web-1"), ("webX1", "web_1"), ("web-1", "web%"), ("%", "_")] {
        let bench = bench_with(patient).await;
        let mut first = Child::on(&bench, dead, "worker");
        let (_, id) = running_job(&bench).await;
        first.kill().await;
        let mut other = Child::on(&bench, ours, "worker");
        other.until_log("worker started").await;
        assert_eq!(bench.count("tenure.recovery_events").await, 0, "{ours} took a job of {dead}");
        let owner: String =
            bench.value(&format!("SELECT worker_host FROM tenure.jobs WHERE id = '{id}'")).await;
        assert_eq!(owner, dead);
        // The right host resets it.
        let _again = Child::on(&bench, dead, "worker");
        bench.until_finished(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n_scanners_at_once_reset_each_job_once() {
    let bench = bench().await;
    let requests = (0..1_000).map(|n| JobRequest::new("q", "k", serde_json::json!(n)));
    bench.tenure.enqueue_many(requests).await.unwrap();
    bench.tenure.flush().await;
    bench
        .execute(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = gen_random_uuid(),
                    worker_id = 'gone', worker_host = 'gone', stale_after = '1 s', started_at = now() - interval '1 min',
                    last_activity_at = now() - interval '1 min'",
        )
        .await;
    let reset = statement("reset_stale");
    let ids: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY id").fetch_all(&bench.pool).await.unwrap();
    let ids = Arc::new(ids);
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(8)
        .connect(&bench.config.database_url)
        .await
        .unwrap();
    let barrier = Arc::new(Barrier::new(8));
    let scanners: Vec<_> = (0..8)
        .map(|n| {
            let (pool, barrier, ids) = (pool.clone(), barrier.clone(), ids.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                let mut total = 0;
                // Twice: each scan skips rows that another has locked.
                for part in ids.chunks(100).chain(ids.chunks(100)) {
                    let reset = sqlx::query(reset).bind(part).bind(format!("s{n}"));
                    total += reset.fetch_all(&pool).await.unwrap().len();
                }
                total
            })
        })
        .collect();
    let mut total = 0;
    for scanner in scanners {
        total += scanner.await.unwrap();
    }
    assert_eq!(total, 1_000);
    assert_eq!(bench.count("tenure.job_executions WHERE outcome = 'lost'").await, 1_000);
    assert_eq!(bench.count("tenure.recovery_events WHERE event = 'reset' AND path = 'scanner'").await, 1_000);
    assert_eq!(
        bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 1 AND losses = 1").await,
        1_000
    );
}

/// The owner writes right before the reset locks its row: the reset must see that write.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_shows_a_sign_of_life_while_it_is_being_reset_is_not_reset() {
    let bench = bench().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(step).recovery(&[Recovery::Relay]));
    let (job, id) = running_job(&bench).await;
    bench.until_count("tenure.jobs WHERE progress = 50", 1).await;
    // The takeover waits for the lock of the owner's write; the scanner would skip the row.
    let owner = loop {
        let stale =
            format!("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h' WHERE id = '{id}'");
        bench.execute(&stale).await;
        let mut owner = bench.pool.begin().await.unwrap();
        sqlx::query(AssertSqlSafe(format!(
            "UPDATE tenure.jobs SET last_activity_at = clock_timestamp() WHERE id = '{id}'"
        )))
        .execute(&mut *owner)
        .await
        .unwrap();
        // The worker writes, too; a write between the two statements would leave no takeover to test.
        if bench
            .count(&format!("tenure.jobs WHERE id = '{id}' AND last_activity_at < now() - stale_after"))
            .await
            == 1
        {
            break owner;
        }
    };
    let take_over = statement("take_over");
    let pool = bench.pool.clone();
    let taken = tokio::spawn(async move {
        let take_over = sqlx::query(take_over).bind(id).bind("rival").bind(30.0_f64).bind(0.0_f64);
        take_over.fetch_all(&pool).await.unwrap().len()
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    owner.commit().await.unwrap();
    assert_eq!(taken.await.unwrap(), 0);
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_gap_between_scans_live_owners_get_time_to_write() {
    let bench = bench().await;
    let gate = statement("scan_gate");
    let scan = || async {
        let row = sqlx::query_as::<_, (bool, bool, i64)>(gate).bind(1.0_f64).bind(60.0_f64).bind(100_i64);
        row.fetch_optional(&bench.pool)
            .await
            .unwrap()
            .map(|(in_grace, breaker_open, _)| (in_grace, breaker_open))
    };
    assert_eq!(scan().await, Some((false, false)), "the first scan ever");
    assert_eq!(scan().await, None, "another worker has just scanned");
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '2 s'").await;
    assert_eq!(scan().await, Some((false, false)));
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '4 s'").await;
    assert_eq!(scan().await, Some((true, false)), "no worker scanned for more than three intervals");
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 s'").await;
    assert_eq!(scan().await, Some((true, false)), "the grace lasts");
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 s', grace_until = NULL, server_started_at = '2000-01-01'").await;
    assert_eq!(scan().await, Some((true, false)), "the server was restarted");
    // The breaker: 30 of 40 jobs look stale at once.
    bench
        .execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 s', grace_until = NULL")
        .await;
    bench
        .tenure
        .enqueue_many((0..40).map(|n| JobRequest::new("q", "k", serde_json::json!(n))))
        .await
        .unwrap();
    bench.tenure.flush().await;
    bench
        .execute(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, claim_id = gen_random_uuid(), worker_id = 'w',
                    worker_host = 'h', stale_after = '1 min', started_at = now(),
                    last_activity_at = now() - CASE WHEN payload::text::int < 30 THEN interval '2 min' ELSE '0 s' END",
        )
        .await;
    assert_eq!(scan().await, Some((false, true)));
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 s', breaker_since = now() - interval '61 s'").await;
    assert_eq!(scan().await, Some((false, false)), "the breaker holds for stale_after only");
}

/// Live jobs: the age of their last sign of life, and their `stale_after`.
async fn silent_jobs(bench: &Bench, jobs: u32, silent: &str, stale_after: &str) {
    bench.execute("DELETE FROM tenure.jobs").await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at, status, attempt,
                    fencing_token, claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at)
             SELECT gen_random_uuid(), 'q', 'k', '1', 5, now(), now(), 'processing', 1, 1, gen_random_uuid(), 'w', 'h',
                    interval '{stale_after}', now() - interval '{silent}', now() - interval '1 h'
               FROM generate_series(1, {jobs})"
        ))
        .await;
}

/// Scans every 30 s, jobs that are stale after a minute, and Postgres unreachable for more than one.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_makes_short_silences_look_stale_starts_the_grace_too() {
    let bench = bench().await;
    let gate = statement("scan_gate");
    // Returns whether there is a grace, and how many stale jobs the scan names.
    let scan = |gap: &'static str| {
        let bench = &bench;
        async move {
            bench
                .execute(&format!(
                    "UPDATE tenure.scanner_state SET last_scan_at = now() - interval '{gap}', grace_until = NULL,
                            server_started_at = pg_postmaster_start_time()"
                ))
                .await;
            let row = sqlx::query(gate).bind(30.0_f64).bind(300.0_f64).bind(100_i64);
            let row = row.fetch_one(&bench.pool).await.unwrap();
            (row.get::<bool, _>("in_grace"), row.get::<Vec<uuid::Uuid>, _>("silent").len())
        }
    };
    silent_jobs(&bench, 12, "71 s", "60 s").await;
    assert_eq!(scan("80 s").await, (true, 12), "none of their owners could write");
    assert_eq!(scan("46 s").await, (true, 12), "a scan in time would have found them fresh");
    assert_eq!(scan("40 s").await, (false, 12), "no gap: scans are jittered");
    silent_jobs(&bench, 12, "310 s", "5 min").await;
    assert_eq!(
        scan("80 s").await,
        (false, 12),
        "owners with a stale_after of five minutes had time to write"
    );
    assert_eq!(scan("91 s").await, (true, 12), "three intervals");
    bench.execute("DELETE FROM tenure.jobs").await;
    assert_eq!(scan("80 s").await, (false, 0), "no owner needs a grace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_for_the_grace_that_the_next_scan_will_start() {
    let bench = bench().await;
    let take_over = statement("take_over");
    let taken = |state: &'static str, up_for: f64| {
        let bench = &bench;
        async move {
            silent_jobs(bench, 1, "320 s", "5 min").await;
            bench.execute(&format!("UPDATE tenure.scanner_state SET {state}")).await;
            let id: uuid::Uuid = bench.value("SELECT id FROM tenure.jobs").await;
            let query = sqlx::query(take_over).bind(id).bind("w").bind(30.0_f64).bind(up_for);
            query.fetch_all(&bench.pool).await.unwrap().len()
        }
    };
    assert_eq!(
        taken("last_scan_at = now() - interval '20 s', server_started_at = pg_postmaster_start_time()", 61.0)
            .await,
        1
    );
    assert_eq!(taken("grace_until = now() + interval '1 min'", 1e6).await, 0, "the grace lasts");
    let gap = "grace_until = NULL, last_scan_at = now() - interval '6 min'";
    assert_eq!(taken(gap, 61.0).await, 0, "no worker has scanned since the outage");
    assert_eq!(taken(gap, 301.0).await, 1, "every scanner is dead, and the owner had time to write");
    let restart = "last_scan_at = now() - interval '20 s', server_started_at = '2000-01-01'";
    assert_eq!(taken(restart, 61.0).await, 0, "nor since the restart");
    assert_eq!(taken("last_scan_at = NULL, server_started_at = NULL", 61.0).await, 1, "no worker ever scans");
}

/// A role for which every read of some rows takes 0.3 s: the pass over the live jobs takes longer than a call may.
#[tokio::test(flavor = "multi_thread")]
async fn live_jobs_that_take_long_to_read_stop_neither_the_scanner_nor_the_worker() {
    let bench = bench_with_servers(|_| {}).await;
    silent_jobs(&bench, 4, "0 s", "1 h").await;
    bench.execute("UPDATE tenure.jobs SET queue = 'slow'").await;
    for statement in [
        "CREATE ROLE slow LOGIN PASSWORD 'slow'",
        "GRANT USAGE ON SCHEMA tenure TO slow",
        "GRANT ALL ON ALL TABLES IN SCHEMA tenure TO slow",
        "CREATE FUNCTION public.slowly(queue text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
            IF queue = 'slow' THEN PERFORM pg_sleep(0.3); END IF; RETURN true; END $$",
        "ALTER TABLE tenure.jobs ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY slow ON tenure.jobs TO slow USING (public.slowly(queue)) WITH CHECK (true)",
    ] {
        bench.execute(statement).await;
    }
    let mut config = bench.config.clone();
    config.timing.database_within = Duration::from_secs(1);
    let (_, server) = bench.config.database_url.rsplit_once('@').unwrap();
    config.database_url = format!("postgres://slow:slow@{server}");
    let tenure = Tenure::connect(&config).await.unwrap();
    let worker = Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1);
    let health = worker.health();
    let worker = Running::start(worker);
    bench.until("EXISTS (SELECT FROM tenure.workers)").await;
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at, status, attempt,
                    fencing_token, claim_id, worker_id, worker_host, stale_after, last_activity_at, started_at)
             SELECT gen_random_uuid(), 'q', 'k', '1', 5, now(), now(), 'processing', 1, 1, gen_random_uuid(), 'w', 'h',
                    interval '1 s', now() - interval '1 min', now() - interval '1 h'",
        )
        .await;
    let mut was_away = false;
    let deadline = Instant::now() + Duration::from_secs(20);
    while bench.count("tenure.job_history").await == 0 {
        assert!(Instant::now() < deadline, "the job is not reset");
        was_away |= health.ready().is_err_and(|lacks| lacks.iter().any(|line| line.contains("Postgres")));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!was_away, "a pass that takes long is no outage");
    assert_eq!(bench.text("SELECT event, path FROM tenure.recovery_events").await, "(reset,scanner)");
    worker.stop().await;
}

/// A job whose move to the dead letters Postgres refuses, among others of the same lost worker.
#[tokio::test(flavor = "multi_thread")]
async fn one_job_that_cannot_be_reset_stops_no_other_reset() {
    let bench = bench().await;
    bench
        .execute("ALTER TABLE tenure.dead_letter_jobs ADD CONSTRAINT no_poison CHECK (kind <> 'poison')")
        .await;
    silent_jobs(&bench, 15, "1 min", "1 s").await;
    bench
        .execute(
            "UPDATE tenure.jobs SET kind = 'poison', max_attempts = 1 WHERE id = (SELECT id FROM tenure.jobs ORDER BY id OFFSET 7 LIMIT 1)",
        )
        .await;
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 20),
    );
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 14", Duration::from_secs(15)).await;
    assert_eq!(bench.text("SELECT kind, status FROM tenure.jobs").await, "(poison,processing)");
    // After the repair, the next scan resets it.
    bench.execute("ALTER TABLE tenure.dead_letter_jobs DROP CONSTRAINT no_poison").await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    worker.stop().await;
}

/// Jobs whose rows Postgres refuses to write: first in the order in which they are due, and in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_written_keeps_no_other_from_its_publication_or_its_expiry() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into(), "late".into()]).await.unwrap();
    bench.tenure.pause_queue("late").await.unwrap();
    bench
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END $$",
        )
        .await;
    bench
        .execute(
            "CREATE TRIGGER refused BEFORE UPDATE OR DELETE ON tenure.jobs FOR EACH ROW
                WHEN (OLD.kind = 'poison') EXECUTE FUNCTION public.refuse()",
        )
        .await;
    let due = chrono::Utc::now() + Duration::from_secs(5);
    let job = |queue: &str, n: u64| {
        JobRequest::new(queue, if n.is_multiple_of(9) { "poison" } else { "k" }, json!(n))
    };
    let at = |n| due + Duration::from_millis(n);
    bench.tenure.enqueue_many((0..20).map(|n| job("q", n).run_at(at(n)))).await.unwrap();
    bench.tenure.enqueue_many((0..20).map(|n| job("late", n).not_after(at(n)))).await.unwrap();
    assert_eq!(bench.count("tenure.jobs WHERE publish_at > now() AND queue = 'q'").await, 20);
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 20),
    );
    bench.until_count("tenure.job_history WHERE queue = 'q'", 17).await;
    bench.until_count("tenure.dead_letter_jobs WHERE queue = 'late'", 17).await;
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'poison' AND status = 'queued'").await, 6);
    // After the repair, the next looks find them, too.
    bench.execute("DROP TRIGGER refused ON tenure.jobs").await;
    bench.until_count("tenure.job_history WHERE queue = 'q'", 20).await;
    bench.until_count("tenure.dead_letter_jobs WHERE queue = 'late'", 20).await;
    worker.stop().await;
}

/// A job that polls: only the latest attempts are kept, in its dead letter, too.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_job_that_snoozes_for_ever_the_last_hundred_attempts_are_kept() {
    let bench = bench().await;
    let settle = statement("settle");
    silent_jobs(&bench, 1, "0 s", "1 h").await;
    let id: uuid::Uuid = bench.value("SELECT id FROM tenure.jobs").await;
    let end = |verdict: &'static str| {
        let bench = &bench;
        async move {
            let (token, claim): (i64, uuid::Uuid) =
                sqlx::query_as("SELECT fencing_token, claim_id FROM tenure.jobs")
                    .fetch_one(&bench.pool)
                    .await
                    .unwrap();
            let query =
                sqlx::query(settle).bind(vec![id]).bind(vec![token]).bind(vec![claim]).bind(vec![verdict]);
            let query = query.bind(vec![None::<String>]).bind(vec![None::<String>]).bind(vec![0.0_f64]);
            let query = query.bind(vec![None::<String>]).bind(vec![0]).bind("w").bind(20_i64);
            let query = query.bind("an outage");
            assert_eq!(query.fetch_all(&bench.pool).await.unwrap().len(), 1);
        }
    };
    for _ in 1..=320 {
        end("snoozed").await;
        bench
            .execute(
                "UPDATE tenure.jobs SET status = 'processing', attempt = attempt + 1, fencing_token = fencing_token + 1,
                        claim_id = gen_random_uuid(), worker_id = 'w', worker_host = 'h', stale_after = '1 h',
                        last_activity_at = clock_timestamp(), started_at = clock_timestamp()",
            )
            .await;
        assert!(bench.count("tenure.job_executions").await <= 150);
    }
    assert_eq!(
        bench.text("SELECT min(fencing_token), max(fencing_token) FROM tenure.job_executions").await,
        "(200,320)"
    );
    bench.every_job_is_as_it_must_be().await;
    // Rows of an older release: more than one call may delete.
    bench
        .execute(
            "WITH job AS (UPDATE tenure.jobs SET fencing_token = 5050)
             UPDATE tenure.job_executions SET fencing_token = fencing_token + 4729",
        )
        .await;
    bench
        .execute(&format!(
            "INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at, finished_at, outcome)
             SELECT '{id}', n, 1, gen_random_uuid(), 'w', now(), now(), 'snoozed' FROM generate_series(1, 4928) n"
        ))
        .await;
    assert_eq!(bench.count("tenure.job_executions").await, 5_049);
    end("failed").await;
    let letter = bench.text("SELECT jsonb_array_length(execution_history), execution_history->0->>'fencing_token', execution_history->-1->>'fencing_token' FROM tenure.dead_letter_jobs").await;
    assert_eq!(letter, "(101,4950,5050)");
    // For a live job, each call deletes a thousand.
    bench.tenure.redrive(&[tenure::JobId(id)]).await.unwrap();
    bench.execute("SELECT tenure.keep_last_executions(id) FROM tenure.jobs").await;
    assert_eq!(bench.count("tenure.job_executions").await, 4_050);
    for _ in 0..6 {
        bench.execute("SELECT tenure.keep_last_executions(id) FROM tenure.jobs").await;
    }
    assert_eq!(
        bench.text("SELECT count(*), max(fencing_token) FROM tenure.job_executions").await,
        "(100,5050)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_job_is_taken_over_on_redelivery_with_every_scanner_switched_off() {
    let bench = bench().await;
    let mut owner = Child::start(&bench, "worker");
    // Reconcile must not prove the owner's death either.
    let other =
        Running::start(Worker::builder(&bench.tenure).handle(step).recovery(&[]).concurrency("steps", 1));
    // Both workers get some of the jobs; those of the child are taken over.
    let jobs: Vec<_> = (0..8).map(|_| Step::new(&bench, "report")).collect();
    let ids = bench.tenure.enqueue_many(jobs.clone()).await.unwrap();
    bench
        .until(&format!("(SELECT count(*) FROM tenure.jobs WHERE worker_id LIKE '%-{}-%') > 0", owner.pid()))
        .await;
    owner.kill().await;
    for job in &jobs {
        std::fs::write(job.file("go"), "").unwrap();
    }
    for id in &ids {
        bench.until_finished(id.id).await;
    }
    let paths = bench.text("SELECT DISTINCT event, path FROM tenure.recovery_events").await;
    assert_eq!(paths, "(reset,redelivery)");
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    other.stop().await;
}

/// The only message left is a duplicate that met a live owner. The owner dies, and no worker scans.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_that_meets_a_live_owner_stays_as_the_backstop() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(4);
        config.timing.ack_wait = Duration::from_secs(8);
    })
    .await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let mut owner = Child::start(&bench, "worker");
    let (job, id) = running_job(&bench).await;
    let other =
        Running::start(Worker::builder(&bench.tenure).handle(step).recovery(&[]).concurrency("steps", 1));
    bench.until_count("tenure.workers", 2).await;
    owner.signal(rustix::process::Signal::STOP);
    // The owner's pull request has expired: the duplicate goes to the other worker.
    while bench.consumer("steps").await.num_waiting != 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    stream.delete_message(stream.cached_info().state.last_sequence).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Job-Id", id.to_string());
    let body = format!(r#"{{"job_id": "{id}", "dispatch": 1, "cleared": false}}"#);
    let subject = format!("{}.steps.step", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
    let delivered = async {
        while bench.consumer("steps").await.delivered.consumer_sequence < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), delivered).await.unwrap();
    owner.kill().await;
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    assert_eq!(bench.text("SELECT path FROM tenure.recovery_events").await, "(redelivery)");
    other.stop().await;
    drop(job);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_never_published_is_found() {
    let bench = bench().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(step));
    bench.until_count("tenure.workers", 1).await;
    // Rows of a producer that died between the row and the message, with its publication tried or not.
    let job = Step::new(&bench, "report");
    std::fs::write(job.file("go"), "").unwrap();
    let payload = serde_json::to_string(&job).unwrap();
    for publication in ["now(), NULL", "NULL, now()"] {
        bench
            .execute(&format!(
                "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, published_at)
                 VALUES (gen_random_uuid(), 'steps', 'step', '{payload}', 5, now(), {publication})"
            ))
            .await;
    }
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_not_published_again() {
    // On a busy machine the running job may be silent for a while, and a confirmation take its time: both publish again.
    let bench = bench_with(patient).await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let mut config = bench.config.clone();
    config.timing.publish_within = tenure::Timing::default().publish_within;
    let producer = Tenure::connect(&config).await.unwrap();
    // The backlog does not run: the only worker runs the first job without end, but scans and relays for all.
    let first = Step::new(&bench, "report");
    let mut requests: Vec<JobRequest> = vec![first.clone().into()];
    requests.extend((0..2_000).map(|n| JobRequest::new("steps", "step", serde_json::json!(n))));
    producer.enqueue_many(requests).await.unwrap();
    producer.flush().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(step).concurrency("steps", 1));
    until_file(&first.file("started")).await;
    // Long enough for many marks, and for every message to be older than any publication may take.
    bench.until("(SELECT count(*) FROM tenure.relay_marks) > 10").await;
    bench.until("(SELECT max(marked_at) - min(marked_at) FROM tenure.relay_marks) > interval '4 s'").await;
    assert_eq!(bench.count("tenure.jobs WHERE dispatch > 1").await, 0);
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    assert_eq!(bench.named().await, 2_001);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_stream_loses_no_job() {
    let bench = bench().await;
    let tenure = Tenure::connect(&bench.config).await.unwrap();
    tenure.setup(&["sums".into()]).await.unwrap();
    let requests = (0..1_000).map(|n| JobRequest::new("sums", "noop", serde_json::json!(n)));
    tenure.enqueue_many(requests).await.unwrap();
    tenure.flush().await;
    assert_eq!(bench.named().await, 1_000);
    let sequence = || async {
        bench.js.get_stream(&bench.config.stream).await.unwrap().cached_info().state.last_sequence
    };
    let before = sequence().await;
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(tenure::KindOptions::new(), |_, _| async {})
            .concurrency("sums", 20),
    );
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1_000).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 1_000);
    assert!(sequence().await > before, "no sequence number is reused");
    bench.until_stream_is_empty(Duration::from_secs(10)).await;

    // Once more, while a worker runs.
    let requests = (0..1_000)
        .map(|n| JobRequest::new("sums", "noop", serde_json::json!(n)).delay(Duration::from_millis(n / 4)));
    let enqueued = tokio::spawn({
        let tenure = tenure.clone();
        async move { tenure.enqueue_many(requests).await.unwrap() }
    });
    bench.until("(SELECT count(*) FROM tenure.job_history) > 1200").await;
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    enqueued.await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2_000).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 2_000);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_consumer_is_created_again() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(tenure::KindOptions::new(), |_, _| async {})
            .concurrency("sums", 2),
    );
    let one = || bench.tenure.enqueue(JobRequest::new("sums", "noop", serde_json::json!(1)));
    let first = one().await.unwrap();
    bench.until_finished(first.id).await;
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    stream.delete_consumer("sums").await.unwrap();
    let second = one().await.unwrap();
    bench.until_finished(second.id).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_worker_each_time_ends_in_the_dead_letters() {
    let bench = bench_with(|config| config.hostname = Some("one-host".into())).await;
    let job = Step::new(&bench, "report");
    let request: JobRequest = job.clone().into();
    let id = bench.tenure.enqueue(request.max_attempts(2)).await.unwrap().id;
    for _ in 0..2 {
        let fault = [("TENURE_FAULT", "claimed=kill".to_owned())];
        assert_eq!(Child::start_with(&bench, "worker", &fault).wait().await, None);
    }
    let worker = Running::start(Worker::builder(&bench.tenure).handle(step));
    let dead = bench.until_finished(id).await;
    assert_eq!(dead.status, tenure::Status::Failed);
    let letter = bench.text("SELECT category, last_outcome, jsonb_array_length(execution_history), execution_history->0->>'outcome', execution_history->1->>'outcome' FROM tenure.dead_letter_jobs").await;
    assert_eq!(letter, "(lost,lost,2,lost,lost)");
    assert!(dead.last_error.unwrap().contains("died"));
    worker.stop().await;
}

/// Resets a silent job with this change by the scanner's own statement. Returns its new status and delay.
async fn reset_silent(bench: &Bench, change: &str) -> String {
    bench.execute("DELETE FROM tenure.jobs").await;
    bench.tenure.enqueue(JobRequest::new("q", "k", serde_json::json!(1))).await.unwrap();
    // Recording the publication locks the row for a moment, and the reset skips locked rows.
    bench.tenure.flush().await;
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = gen_random_uuid(),
                    worker_id = 'gone', worker_host = 'gone', stale_after = '1 s', started_at = now() - interval '1 min',
                    last_activity_at = now() - interval '1 min', {change}"
        ))
        .await;
    let reset = statement("reset_stale");
    let ids: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM tenure.jobs").fetch_all(&bench.pool).await.unwrap();
    assert_eq!(sqlx::query(reset).bind(ids).bind("s").fetch_all(&bench.pool).await.unwrap().len(), 1);
    bench
        .text(
            "SELECT status, CASE WHEN scheduled_at <= clock_timestamp() THEN 'now'
                                 WHEN scheduled_at < clock_timestamp() + interval '3.5 s' THEN 'too soon'
                                 WHEN scheduled_at < clock_timestamp() + interval '6.3 s' THEN '5 s'
                                 WHEN scheduled_at < clock_timestamp() + interval '220 s' THEN 'too soon'
                                 WHEN scheduled_at < clock_timestamp() + interval '376 s' THEN '300 s' END
               FROM tenure.all_jobs ORDER BY id DESC LIMIT 1",
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_loss_is_retried_at_once_repeated_ones_back_off_and_a_cancelled_job_stays_cancelled() {
    let bench = bench().await;
    assert_eq!(reset_silent(&bench, "losses = 0").await, "(queued,now)");
    assert_eq!(reset_silent(&bench, "losses = 1").await, "(queued,\"5 s\")");
    assert_eq!(reset_silent(&bench, "losses = 1000000, max_attempts = 9").await, "(queued,\"300 s\")");
    assert_eq!(reset_silent(&bench, "cancel_requested_at = now()").await, "(cancelled,now)");
    assert_eq!(reset_silent(&bench, "max_attempts = 1").await, "(failed,now)");
    assert_eq!(bench.count("tenure.jobs").await, 0);
}

/// The clock was a year ahead until now.
#[tokio::test(flavor = "multi_thread")]
async fn times_that_lie_ahead_hold_up_neither_a_sweep_nor_a_measurement() {
    let bench = bench().await;
    bench
        .execute(
            "UPDATE tenure.scanner_state
                SET (measured_at, measuring_until, purged_at, purged_until) =
                    (now() + interval '1 y', now() + interval '1 y', now() + interval '1 y', now() + interval '1 y')",
        )
        .await;
    for (name, of, rows) in [("measure_alone", 60.0, [1, 0]), ("purge_gate", 3_600.0, [1, 0])] {
        for rows in rows {
            let took =
                sqlx::query(statement(name)).bind(of).bind(30.0_f64).fetch_all(&bench.pool).await.unwrap();
            assert_eq!(took.len(), rows, "{name}");
        }
    }
    let soon = "tenure.scanner_state WHERE greatest(measuring_until, purged_at, purged_until) < now() + interval '2 h'";
    assert_eq!(bench.count(soon).await, 1);
}
