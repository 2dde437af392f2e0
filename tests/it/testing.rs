//! `tenure::testing`, the kit for users' tests, on the servers that it starts itself.

mod waits;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::{
    Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Tenure, Worker, WorkerBuilder,
    schedules::{MissedTicks, Schedule},
    testing::TestTenure,
};
use tokio::sync::{Notify, mpsc};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Step {
    n: u32,
}

impl Job for Step {
    const KIND: &'static str = "step";
    const QUEUE: &'static str = "steps";
}

/// Enqueues the next step, down to 0, which enqueues one for in an hour.
fn stepper(tenure: &Tenure) -> WorkerBuilder<Tenure> {
    Worker::builder(tenure).state(tenure.clone()).handle(|job: Step, ctx: JobContext<Tenure>| async move {
        let next = Step { n: job.n.saturating_sub(1) };
        let delay = if job.n == 0 { HOUR } else { Duration::ZERO };
        ctx.state().enqueue(next).delay(delay).await?;
        Outcome::done(job.n)
    })
}

/// Fails if `verify` finds anything, also after `advance`.
async fn is_whole(test: &TestTenure) {
    let rules = test.verify().await.unwrap();
    assert!(rules.iter().all(|rule| rule.jobs == 0), "{rules:?}");
}

/// The panic's text, which a user's test would print.
async fn panic_of(work: impl Future<Output = ()> + Send + 'static) -> String {
    let panic = tokio::spawn(work).await.unwrap_err().into_panic();
    *panic.downcast::<String>().unwrap()
}

/// Single-threaded, as most users' tests are.
#[tokio::test]
async fn three_attempts_wait_for_no_backoff() {
    let test = TestTenure::start().await;
    let worker = Worker::builder(&test).handle(|_: Step, ctx: JobContext| async move {
        if ctx.attempt() < 3 { Err(JobError::msg("not yet")) } else { Outcome::done(ctx.attempt()) }
    });
    let job = test.run(worker, Step { n: 1 }).await;
    assert_eq!((job.status, job.attempt, job.output), (Status::Completed, 3, Some(json!(3))));
    let attempts = test.executions(job.id).await.unwrap();
    assert_eq!(attempts[0].error.as_deref(), Some("not yet"));
    is_whole(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_does_not_end_in_time_is_shown_with_its_attempts() {
    let test = TestTenure::start().await;
    let text = panic_of(async move {
        let worker = Worker::builder(&test)
            .handle(|_: Step, _: JobContext| async { Ok::<_, JobError>(Outcome::Snooze(HOUR)) });
        test.run_within(Duration::from_secs(2), worker, Step { n: 7 }).await;
    })
    .await;
    for part in ["tests/it/testing.rs:", "not ended within 2s", "step in steps", r#"{"n":7}"#, "snoozed"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let test = TestTenure::start().await;
    let text = panic_of(async move {
        test.run(Worker::builder(&test), Step { n: 1 }).await;
    })
    .await;
    assert!(text.contains("the worker has no handler"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_runs_the_jobs_that_handlers_enqueue_and_not_those_for_later() {
    let test = TestTenure::start().await;
    test.enqueue(Step { n: 3 }).await.unwrap();
    test.enqueue(JobRequest::new("steps", "unknown", json!(null))).await.unwrap();
    let ended = test.drain(stepper(&test)).await;
    let mut outputs: Vec<_> = ended.iter().filter_map(|job| job.output.as_ref()?.as_u64()).collect();
    // A step may end right before the step that enqueued it.
    outputs.sort_unstable();
    assert_eq!(outputs, [0, 1, 2, 3]);
    assert_eq!(test.enqueued::<Step>().await, [Step { n: 0 }], "for in an hour");
    assert_eq!(test.enqueued_kind("unknown").await.len(), 1, "no handler of this worker knows it");
    assert!(test.drain(stepper(&test)).await.is_empty());
    test.advance(HOUR).await;
    assert_eq!(test.drain(stepper(&test)).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assertion_that_fails_shows_the_jobs_that_are_there() {
    let test = TestTenure::start().await;
    test.assert_nothing_enqueued::<Step>().await;
    let mut tx = test.pool().begin().await.unwrap();
    test.enqueue(Step { n: 4 }).tx(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    test.assert_nothing_enqueued::<Step>().await;
    let mut tx = test.pool().begin().await.unwrap();
    test.enqueue(Step { n: 5 }).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    test.enqueue(Step { n: 6 }).await.unwrap();
    assert_eq!(test.assert_enqueued(|step: &Step| step.n >= 5).await, Step { n: 5 }, "the oldest");
    let other = test.clone();
    let text = panic_of(async move {
        other.assert_enqueued(|step: &Step| step.n == 9).await;
    })
    .await;
    for part in ["tests/it/testing.rs:", "of 2 waiting jobs", "\"step\"", r#"{"n":5}"#, r#"{"n":6}"#] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let other = test.clone();
    let text = panic_of(async move { other.assert_nothing_enqueued::<Step>().await }).await;
    assert!(text.contains("2 jobs of kind \"step\" wait, expected none"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_that_passes_makes_schedules_tick_and_silent_jobs_stale() {
    let test = TestTenure::start().await;
    let job = JobRequest::new("q", "tick", json!({}));
    test.put_schedule(Schedule::new("daily", "0 3 * * *", job).missed(MissedTicks::Once)).await.unwrap();
    let ticker =
        || Worker::builder(&test).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1);
    assert!(test.drain(ticker()).await.is_empty());
    test.advance(24 * HOUR).await;
    let ticks = test.drain(ticker()).await;
    assert_eq!(ticks.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["tick"]);

    // A silent job is reset after `stale_after`, which is 5 minutes.
    let begun = Arc::new(Notify::new());
    let worker = Worker::builder(&test).state(begun.clone()).handle(
        |_: Step, ctx: JobContext<Arc<Notify>>| async move {
            if ctx.attempt() == 1 {
                ctx.state().notify_one();
                ctx.cancelled().await;
            }
            Outcome::done(ctx.attempt())
        },
    );
    let (job, ()) = tokio::join!(test.run(worker, Step { n: 1 }), async {
        begun.notified().await;
        test.advance(Duration::from_secs(301)).await;
    });
    assert_eq!((job.status, job.output), (Status::Completed, Some(json!(2))));
    let outcomes: Vec<_> = test.executions(job.id).await.unwrap().into_iter().map(|of| of.outcome).collect();
    assert_eq!(outcomes, [Some("lost".to_owned()), Some("completed".to_owned())]);
    is_whole(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_a_lost_attempt_are_refused_while_another_runs() {
    let test = TestTenure::start().await;
    sqlx::query("CREATE TABLE marks (n bigint)").execute(test.pool()).await.unwrap();
    let (written, mut refused) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let worker = || {
        let (written, go_on) = (written.clone(), go_on.clone());
        Worker::builder(&test).handle(move |_: Step, ctx: JobContext| {
            let (written, go_on) = (written.clone(), go_on.clone());
            async move {
                let attempt = ctx.token().0;
                if attempt == 1 {
                    go_on.notified().await;
                }
                let done = ctx
                    .fenced_tx(async |tx| {
                        let mark = sqlx::query("INSERT INTO marks VALUES ($1)").bind(attempt);
                        mark.execute(tx).await?;
                        Ok(())
                    })
                    .await;
                written.send((attempt, done.as_ref().is_err_and(JobError::is_lost))).unwrap();
                done
            }
        })
    };
    let id = test.enqueue(Step { n: 1 }).await.unwrap().id;
    let first = {
        let (test, worker) = (test.clone(), worker());
        tokio::spawn(async move { test.finish(worker, id).await })
    };
    test.lose(id).await;
    let job = test.finish(worker(), id).await;
    assert_eq!((job.status, job.fencing_token.0), (Status::Completed, 2));
    go_on.notify_one();
    assert_eq!(first.await.unwrap().fencing_token, 2);
    let mut all = Vec::new();
    while let Ok(one) = refused.try_recv() {
        all.push(one);
    }
    all.sort_unstable();
    // The first attempt may have been cancelled and dropped before it could try.
    assert!(all == [(1, true), (2, false)] || all == [(2, false)], "{all:?}");
    let marks: Vec<i64> = sqlx::query_scalar("SELECT n FROM marks").fetch_all(test.pool()).await.unwrap();
    assert_eq!(marks, [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_run_twice_has_the_effects_of_once_once() {
    let test = TestTenure::start().await;
    sqlx::query("CREATE TABLE points (n int)").execute(test.pool()).await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let worker = Worker::builder(&test).state(runs.clone()).handle(
        |_: Step, ctx: JobContext<Arc<AtomicU32>>| async move {
            ctx.state().fetch_add(1, Ordering::Relaxed);
            ctx.once("points", async |tx| {
                sqlx::query("INSERT INTO points VALUES (1)").execute(tx).await?;
                Ok(())
            })
            .await
        },
    );
    let job = test.run_twice(worker, Step { n: 1 }).await;
    assert_eq!((job.status, job.attempt, job.fencing_token.0), (Status::Completed, 2, 2));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let points: i64 = sqlx::query_scalar("SELECT count(*) FROM points").fetch_one(test.pool()).await.unwrap();
    assert_eq!(points, 1);
    is_whole(&test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_were_there_before_are_left_as_they_were_and_one_with_jobs_is_refused() {
    let host = TestTenure::start().await;
    let config = host.config().clone();
    let guest = TestTenure::on(&config.database_url, &config.nats_url).await;
    assert_ne!(guest.config().database_url, config.database_url);
    let job = guest.run(stepper(&guest), Step { n: 0 }).await;
    assert_eq!(job.status, Status::Completed);
    assert_eq!(guest.enqueued::<Step>().await.len(), 1);
    host.assert_nothing_enqueued::<Step>().await;
    let database = guest.config().database_url.rsplit('/').next().unwrap().to_owned();
    let is_there = || async {
        sqlx::query_scalar::<_, bool>("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&database)
            .fetch_one(host.pool())
            .await
            .unwrap()
    };
    assert!(is_there().await);
    drop(guest);
    assert!(!is_there().await);

    host.enqueue(Step { n: 1 }).await.unwrap();
    let text = panic_of(async move {
        TestTenure::on(&config.database_url, &config.nats_url).await;
    })
    .await;
    assert!(text.contains("there are tenure jobs in") && !text.contains("tenure:"), "{text}");
}
