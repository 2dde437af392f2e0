//! Scanners that freeze, find rows they cannot reset, or ten thousand at once; and clocks that jump.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use sqlx::Connection;
use tenure::{JobRequest, KindOptions, Worker};

use super::worker;
use crate::{
    harness::{Bench, Child, Running, bench, bench_with, until_file},
    scenarios::{Step, step},
};

/// Inserts jobs of a dead worker, silent for this long.
async fn orphans(bench: &Bench, jobs: usize, silent: &str) {
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE IF NOT EXISTS public.effects (job uuid, token bigint)").await;
    for chunk in (0..jobs).collect::<Vec<_>>().chunks(1_000) {
        let requests = chunk.iter().map(|n| JobRequest::new("q", "k", json!({ "steps": 0, "n": n })));
        let requests = requests.map(|request| request.delay(Duration::from_secs(3_600)));
        bench.tenure.enqueue_many(requests).await.unwrap();
    }
    bench
        .execute(&format!(
            "WITH gone AS (UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1,
                    claim_id = gen_random_uuid(), worker_id = 'gone-1-x', worker_host = 'gone', stale_after = '1 s',
                    started_at = now(), scheduled_at = now(), publish_at = NULL, published_at = NULL,
                    last_activity_at = now() - interval '{silent}' RETURNING 1)
             SELECT count(*) FROM gone"
        ))
        .await;
}

/// Lets the next scan reset jobs at once: a scan has just been, with no grace and no breaker.
async fn open_the_gate(bench: &Bench) {
    bench
        .execute(
            "UPDATE tenure.scanner_state SET last_scan_at = clock_timestamp(), grace_until = NULL,
                    breaker_since = now() - interval '1 h'",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_reset_stop_no_other_reset() {
    let bench = bench().await;
    orphans(&bench, 160, "1 min").await;
    // Another session locks the 150 oldest rows.
    let mut holder = sqlx::PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut tx = holder.begin().await.unwrap();
    sqlx::query("UPDATE tenure.jobs SET message = 'held' WHERE id IN (SELECT id FROM tenure.jobs ORDER BY id LIMIT 150)")
        .execute(&mut *tx)
        .await
        .unwrap();
    open_the_gate(&bench).await;
    let working = Running::start(worker(&bench.tenure, 10));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 10).await;
    tx.rollback().await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 160).await;
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    working.stop().await;
}

/// A whole node is gone; new jobs must not wait behind its old ones.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_jobs_of_a_lost_node_are_reset_and_a_new_job_does_not_wait_for_them() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(3);
        config.timing.scan_every = Duration::from_millis(300);
    })
    .await;
    orphans(&bench, 10_000, "1 min").await;
    bench.tenure.setup(&["urgent".into()]).await.unwrap();
    open_the_gate(&bench).await;
    let working = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("q", 100)
            .concurrency("urgent", 5),
    );
    bench.until("EXISTS (SELECT FROM tenure.recovery_events)").await;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let began = std::time::Instant::now();
        let id = bench.tenure.enqueue(JobRequest::new("urgent", "k", json!({}))).await.unwrap().id;
        bench.tenure.wait(id, Duration::MAX).await.unwrap();
        waits.push(began.elapsed());
    }
    waits.sort_unstable();
    let left = bench.count("tenure.jobs WHERE queue = 'q'").await;
    eprintln!(
        "a new job took {:?} in the middle, {:?} at most; {left} old ones were left by then",
        waits[10], waits[19]
    );
    assert!(waits[10] < Duration::from_secs(2), "{waits:?}");
    bench.until_count("tenure.job_history WHERE status = 'completed'", 10_020).await;
    // Each was reset once: one token for the lost owner, and one for its successor.
    assert_eq!(bench.count("tenure.job_history WHERE queue = 'q' AND fencing_token <> 2").await, 0);
    assert_eq!(bench.count("tenure.recovery_events WHERE event = 'reset'").await, 10_000);
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_freezes_stops_no_other_scanner() {
    let bench = bench().await;
    let mut owner = Child::on(&bench, "a", "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    owner.kill().await;
    let fault = ("TENURE_FAULT", "reset=stop".to_owned());
    let frozen = Child::start_with(&bench, "idle", &[fault, ("TENURE_HOSTNAME", "b".into())]);
    bench.until_count("tenure.jobs WHERE status = 'queued'", 1).await;
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    // The scanner that is awake resets jobs that are lost from now on.
    let mut second = Child::on(&bench, "c", "worker");
    next.stop().await;
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    second.kill().await;
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    frozen.signal(Signal::CONT);
    next.stop().await;
}

/// It freezes in the transaction that gives it the turn to scan. No message comes back in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_freezes_in_its_transaction_stops_no_other_scanner() {
    let bench = bench_with(|config| config.timing.ack_wait = Duration::from_secs(600)).await;
    let mut owner = Child::on(&bench, "a", "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    owner.kill().await;
    let fault = ("TENURE_FAULT", "aside=stop".to_owned());
    let frozen = Child::start_with(&bench, "idle", &[fault, ("TENURE_HOSTNAME", "b".into())]);
    bench
        .until(
            "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                        AND state = 'idle in transaction' AND query LIKE '%scanner_state%')",
        )
        .await;
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    assert_eq!(bench.text("SELECT path FROM tenure.recovery_events").await, "(scanner)");
    frozen.signal(Signal::CONT);
    next.stop().await;
}

/// All times are Postgres's: when its clock jumps, all stored times are that much older, or lie in the future.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_databases_clock_takes_no_job_from_its_owner() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(3);
        config.timing.ack_wait = Duration::from_secs(8);
    })
    .await;
    let mut owner = Child::on(&bench, "a", "worker");
    let other = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("other", 1),
    );
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    owner.until_log("worker started").await;
    bench.until("(SELECT last_scan_at IS NOT NULL FROM tenure.scanner_state)").await;
    for jump in ["- interval '1 h'", "+ interval '1 h'"] {
        let mut tx = bench.pool.begin().await.unwrap();
        for table in ["jobs", "workers", "scanner_state", "relay_marks"] {
            let columns: Vec<String> = sqlx::query_scalar(
                "SELECT column_name::text FROM information_schema.columns
                  WHERE table_schema = 'tenure' AND table_name = $1 AND data_type = 'timestamp with time zone'",
            )
            .bind(table)
            .fetch_all(&mut *tx)
            .await
            .unwrap();
            let set: Vec<_> = columns.iter().map(|column| format!("{column} = {column} {jump}")).collect();
            let sql = format!("UPDATE tenure.{table} SET {}", set.join(", "));
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(bench.text("SELECT * FROM tenure.recovery_events").await, "", "{jump}");
    }
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
    other.stop().await;
}
