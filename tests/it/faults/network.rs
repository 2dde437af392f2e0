//! Links that are cut in one direction or both, and answers that are lost on their way.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{Config, JobContext, JobRequest, KindOptions, Status, Worker};

use super::{Linked, all_done_once, enqueue, linked, none_was_charged, worker};
use crate::harness::{Bench, Running, bench, bench_with};

fn timers(config: &mut Config) {
    config.timing.stale_after = Duration::from_secs(4);
    config.timing.ack_wait = Duration::from_secs(10);
    config.timing.database_within = Duration::from_millis(700);
}

/// Two workers with fifty slots, the first behind links; both have begun.
async fn two(bench: &Bench, steps: u32) -> (Linked, [Running; 2]) {
    let link = linked(bench).await;
    enqueue(bench, 100, steps).await;
    let workers = [Running::start(worker(&link.tenure, 50)), Running::start(worker(&bench.tenure, 50))];
    bench.until("(SELECT count(DISTINCT worker_id) FROM tenure.jobs WHERE stage = 'working') = 2").await;
    (link, workers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_cut_off_from_both_servers_for_long_leaves_its_jobs_to_others() {
    let bench = bench_with(timers).await;
    let (link, workers) = two(&bench, 100).await;
    link.postgres.cut();
    link.nats.cut();
    // The other worker finishes all of them.
    all_done_once_within(&bench, 100).await;
    link.postgres.mend();
    link.nats.mend();
    all_done_once(&bench, 100).await;
    for worker in workers {
        worker.stop().await;
    }
}

async fn all_done_once_within(bench: &Bench, jobs: i64) {
    bench
        .until_within(
            &format!("(SELECT count(*) FROM tenure.job_history WHERE status = 'completed') = {jobs}"),
            Duration::from_secs(40),
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_cut_off_from_both_servers_for_a_moment_loses_nothing() {
    let bench = bench_with(timers).await;
    let (link, workers) = two(&bench, 100).await;
    link.postgres.cut();
    link.nats.cut();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    link.postgres.mend();
    link.nats.mend();
    all_done_once(&bench, 100).await;
    none_was_charged(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

/// Longer than a call may take, shorter than `stale_after`; then longer.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_answers_and_answers_without_requests_double_no_effect() {
    let bench = bench_with(timers).await;
    let (link, workers) = two(&bench, 150).await;
    for seconds in [1.5, 6.0] {
        link.postgres.cut_answers();
        link.nats.cut_answers();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        link.postgres.mend();
        link.nats.mend();
        tokio::time::sleep(Duration::from_millis(300)).await;
        link.postgres.cut_requests();
        link.nats.cut_requests();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        link.postgres.mend();
        link.nats.mend();
    }
    all_done_once(&bench, 100).await;
    for worker in workers {
        worker.stop().await;
    }
}

/// Cut off for longer than `ack_wait`: NATS delivers the messages again, to the other worker.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_end_while_their_worker_is_cut_off_from_nats() {
    let bench = bench_with(|config| {
        timers(config);
        config.timing.scan_every = Duration::from_millis(300);
        config.timing.ack_wait = Duration::from_secs(5);
    })
    .await;
    enqueue(&bench, 20, 400).await;
    let link = linked(&bench).await;
    let working = Running::start(worker(&link.tenure, 20));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 20).await;
    let other = Running::start(worker(&bench.tenure, 20));
    link.nats.cut();
    let again = async {
        while bench.consumer("q").await.num_redelivered == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.expect("a redelivery");
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 20, "all of them run on");
    bench.until_count("tenure.job_history WHERE status = 'completed'", 20).await;
    link.nats.mend();
    all_done_once(&bench, 20).await;
    none_was_charged(&bench).await;
    for worker in [working, other] {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_database_resets_nothing() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
        config.timing.database_within = Duration::from_secs(10);
    })
    .await;
    enqueue(&bench, 4, 10).await;
    let link = linked(&bench).await;
    let working = Running::start(worker(&link.tenure, 4));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 4).await;
    link.postgres.delay(Duration::from_millis(500));
    all_done_once(&bench, 4).await;
    none_was_charged(&bench).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    link.postgres.mend();
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_counts_and_nothing_is_done_twice() {
    let bench = bench_with(timers).await;
    bench.execute("CREATE TABLE public.effects (job uuid, token bigint)").await;
    let link = linked(&bench).await;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .connect(&link.postgres.of(&bench.config.database_url))
        .await
        .unwrap();
    let job = move |payload: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            let (id, token) = (ctx.id(), ctx.token());
            let insert = "INSERT INTO public.effects (job, token) VALUES ($1, $2)";
            if payload == json!("complete_in") {
                let mut tx = pool.begin().await?;
                sqlx::query(insert).bind(id).bind(token).execute(&mut *tx).await?;
                return ctx.complete_in(tx, None).await;
            }
            ctx.once("effect", async |tx| {
                sqlx::query(insert).bind(id).bind(token).execute(tx).await?;
                Ok(())
            })
            .await?;
            tenure::Outcome::done(())
        }
    };
    let backoff = tenure::Backoff { first: Duration::from_millis(50), ..tenure::Backoff::DEFAULT };
    let options = KindOptions::new().backoff(backoff);
    let working = Running::start(Worker::builder(&link.tenure).handle_any(options, job).concurrency("q", 1));
    bench.until_count("tenure.workers", 1).await;
    for (n, way) in ["complete_in", "once"].into_iter().enumerate() {
        link.postgres.lose_answer_to(b"COMMIT");
        let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(way))).await.unwrap().id;
        let done = bench.until_finished(id).await;
        assert_eq!(done.status, Status::Completed, "{way}");
        assert_eq!(usize::try_from(link.postgres.lost()).unwrap(), n + 1, "{way}: its answer was lost");
        assert_eq!(bench.count(&format!("public.effects WHERE job = '{id}'")).await, 1, "{way}");
    }
    // tenure checks whether the commit happened: no completed job runs again.
    assert_eq!(bench.count("tenure.job_executions_all WHERE attempt > 1").await, 0);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    working.stop().await;
}

/// The producer repeats the enqueue under its unique key, and gets the job that it made.
#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_whose_answer_is_lost_is_found_again_by_its_key() {
    let bench = bench().await;
    let link = linked(&bench).await;
    let request = || JobRequest::new("q", "k", json!("mark-7f3a")).unique_key("order-1");
    // The first enqueue lets its connection prepare the statement.
    link.tenure.enqueue(JobRequest::new("q", "k", json!(0)).unique_key("order-0")).await.unwrap();
    link.postgres.lose_answer_to(b"mark-7f3a");
    let error = link.tenure.enqueue(request()).await.unwrap_err();
    assert!(matches!(&error, tenure::EnqueueError::Store(error) if error.is_unavailable()), "{error:?}");
    assert_eq!(link.postgres.lost(), 1);
    assert_eq!(bench.count("tenure.jobs").await, 2, "it was committed");
    let again = link.tenure.enqueue(request()).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(bench.count("tenure.jobs").await, 2);
}
