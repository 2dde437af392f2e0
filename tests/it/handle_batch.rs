//! Handlers of batches: each job ends by itself, and one job cannot take the others with it.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::{
    Job, JobError, JobRequest, KindOptions, Outcome, Status, Worker, WorkerError,
    batches::{Batch, BatchContext, Item, Verdict},
    handlers::{CancelReason, OnCrash},
    testing::TestTenure,
};
use tokio::sync::Notify;

use crate::harness::{Child, Running, bench, bench_with, statement};

#[derive(Debug, Serialize, Deserialize)]
pub struct Shot {
    number: u32,
    /// The batch with this job does this.
    does: Option<String>,
    /// The sizes of the calls, one to a line.
    calls: PathBuf,
}

impl Job for Shot {
    const KIND: &'static str = "shot";
    const QUEUE: &'static str = "shots";
}

/// The batch handler of the separate process.
pub async fn shoot(jobs: Vec<Item<Shot>>, _: BatchContext) -> Vec<Verdict> {
    use std::io::Write;
    let mut calls = std::fs::OpenOptions::new().append(true).create(true).open(&jobs[0].calls).unwrap();
    writeln!(calls, "{}", jobs.len()).unwrap();
    if jobs.iter().any(|job| job.does.as_deref() == Some("abort")) {
        std::process::abort();
    }
    jobs.into_iter()
        .map(|job| {
            let number = job.number;
            job.done(number)
        })
        .collect()
}

fn shots(n: u32, at: u32, does: &str) -> impl Iterator<Item = JobRequest> {
    shots_noting(n, at, does, PathBuf::new())
}

fn shots_noting(n: u32, at: u32, does: &str, calls: PathBuf) -> impl Iterator<Item = JobRequest> {
    let does = does.to_owned();
    (0..n).map(move |number| {
        let does = (number == at).then(|| does.clone());
        let shot = Shot { number, does, calls: calls.clone() };
        JobRequest::new("shots", "shot", serde_json::to_value(shot).unwrap())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poison_among_many_costs_a_few_batches_and_itself() {
    let bench = bench().await;
    let calls = bench.config.runtime_dir.join("calls");
    // One attempt each: to charge another job for a single loss would make it a dead letter.
    let jobs = shots_noting(64, 37, "abort", calls.clone()).map(|job| job.max_attempts(1));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    let mut deaths = 0;
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut child = Child::start(&bench, "batches");
    while bench.count("tenure.jobs").await > 0 {
        assert!(Instant::now() < deadline, "{deaths} deaths, and jobs are left:\n{}", child.log());
        if let Ok(code) = tokio::time::timeout(Duration::from_millis(100), child.wait()).await {
            assert_eq!(code, None, "aborted:\n{}", child.log());
            deaths += 1;
            child = Child::start(&bench, "batches");
        }
    }
    let sizes = std::fs::read_to_string(&calls).unwrap();
    let sizes: Vec<u32> = sizes.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes[0], 64, "all at once at first: {sizes:?}");
    assert!(deaths <= 7, "64, 32, 16, 8, 4, 2, and alone; not {deaths}: {sizes:?}");
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed' AND attempt = 1").await, 63);
    assert_eq!(bench.count("tenure.dead_letter_jobs WHERE category = 'lost' AND losses = 7").await, 1);
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_route_to_a_dead_letter_no_job_of_a_lost_batch_runs_twice() {
    let bench = bench().await;
    let began = Arc::new(Notify::new());
    let tell = began.clone();
    let options = KindOptions::new().on_crash(OnCrash::DeadLetter);
    let hangs = move |jobs: Vec<Item<Shot>>, ctx: BatchContext| {
        tell.notify_one();
        async move {
            ctx.cancelled().await;
            drop(jobs);
            Vec::new()
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_batch_with(Batch::up_to(3), options, hangs);
    let worker = Running::start(worker);
    bench.tenure.enqueue_many(shots(3, 9, "")).await.unwrap();
    began.notified().await;
    worker.abandon().await;
    let idle = Child::start(&bench, "idle");
    bench.until_count("tenure.dead_letter_jobs WHERE category = 'lost'", 3).await;
    drop(idle);
}

/// The sizes of the calls of a batch handler.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<usize>>>);

impl Calls {
    fn note(&self, jobs: &[Item<Shot>]) {
        self.0.lock().unwrap().push(jobs.len());
    }

    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_whole_comes_back_in_halves_then_alone() {
    for does in ["fail", "panic"] {
        let test = TestTenure::start().await;
        let calls = Calls::default();
        let noted = calls.clone();
        let handler = move |jobs: Vec<Item<Shot>>, _: BatchContext| {
            noted.note(&jobs);
            async move {
                match jobs.iter().find_map(|job| job.does.as_deref()) {
                    Some("fail") => return Err(JobError::permanent("too long")),
                    Some("panic") => panic!("too long"),
                    _ => {}
                }
                Ok(jobs.into_iter().map(|job| job.done(())).collect())
            }
        };
        let batch = Batch::up_to(64).within(Duration::from_secs(20));
        let worker = Running::start(Worker::builder(&test).handle_batch(batch, handler));
        let jobs = test.enqueue_many(shots(64, 5, does).map(|job| job.max_attempts(1))).await.unwrap();
        let mut ended = Vec::new();
        for job in jobs {
            ended.push(test.wait(job.id, Duration::from_secs(30)).await.unwrap().unwrap());
        }
        let completed = ended.iter().filter(|job| job.status == Status::Completed && job.attempt == 1);
        assert_eq!(completed.count(), 63, "{does}");
        let dead = ended.iter().find(|job| job.status == Status::Failed).unwrap();
        let error = dead.last_error.as_deref().unwrap();
        assert!(
            error.contains("too long") && dead.payload.as_ref().unwrap()["does"] == does,
            "{does}: {error}"
        );
        // Seven calls with the poison, the last of them alone, and one of each half without it.
        let mut calls = calls.take();
        calls.sort_unstable();
        assert_eq!(calls, [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64], "{does}");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_item_ends_by_its_own_verdict() {
    let test = TestTenure::start().await;
    let handler = |mut jobs: Vec<Item<Shot, String>>, ctx: BatchContext<String>| async move {
        assert_eq!(ctx.state(), "of all");
        ctx.progress("shooting", 40.0, "together").await?;
        jobs.sort_by_key(|job| job.number);
        let mut ends = Vec::new();
        for mut job in jobs {
            assert_eq!(job.context().state(), "of all");
            job.number += 100;
            ends.push(match job.number {
                100 => {
                    let number = job.number;
                    job.done(json!({ "number": number }))
                }
                101 => job.fail(JobError::permanent("missed")),
                102 => job.end(Outcome::Cancel("not worth it".into())),
                103 if job.context().attempt() == 1 => {
                    job.fail(JobError::retry_after(Duration::ZERO, "once more"))
                }
                103 => {
                    let at: i64 = job.context().checkpoint().unwrap_or(-1);
                    job.done(at)
                }
                // No verdict.
                _ => continue,
            });
        }
        Ok::<_, JobError>(ends)
    };
    let worker = Worker::builder(&test).state("of all".to_owned());
    let worker = Running::start(worker.handle_batch(Batch::up_to(5).within(Duration::from_secs(5)), handler));
    let jobs = test.enqueue_many(shots(5, 9, "").map(|job| job.max_attempts(2))).await.unwrap();
    let ended = async |at: usize| test.wait(jobs[at].id, Duration::from_secs(20)).await.unwrap().unwrap();
    let first = ended(0).await;
    assert_eq!((first.status, first.output.unwrap()), (Status::Completed, json!({ "number": 100 })));
    assert_eq!((first.stage.as_deref(), first.progress), (Some("shooting"), Some(40.0)));
    let second = ended(1).await;
    assert_eq!((second.status, second.last_error.as_deref()), (Status::Failed, Some("missed")));
    assert_eq!(ended(2).await.status, Status::Cancelled);
    let fourth = ended(3).await;
    assert_eq!((fourth.status, fourth.attempt, fourth.output.unwrap()), (Status::Completed, 2, json!(-1)));
    let fifth = test.job(jobs[4].id).await.unwrap().unwrap();
    assert!(fifth.last_error.as_deref().is_some_and(|error| error.contains("no verdict")), "{fifth:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_item_of_a_batch_is_cancelled_by_itself() {
    let test = TestTenure::start().await;
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, permission) = (began.clone(), go.clone());
    let handler = move |mut jobs: Vec<Item<Shot>>, ctx: BatchContext| {
        let (tell, permission) = (tell.clone(), permission.clone());
        async move {
            jobs.sort_by_key(|job| job.number);
            tell.notify_one();
            // The handler sees the cancellation of one, and goes on for the others.
            assert_eq!(jobs[1].context().cancelled().await, CancelReason::User);
            assert!(ctx.cancelled().now_or_never().is_none());
            tell.notify_one();
            permission.notified().await;
            jobs.into_iter().map(|job| job.done(())).collect::<Vec<_>>()
        }
    };
    let options = KindOptions::new().cancel_grace(Duration::from_millis(50));
    let batch = Batch::up_to(3).within(Duration::from_secs(5));
    let worker = Running::start(Worker::builder(&test).handle_batch_with(batch, options, handler));
    let jobs = test.enqueue_many(shots(3, 9, "")).await.unwrap();
    began.notified().await;
    test.cancel(jobs[1].id).await.unwrap();
    began.notified().await;
    // Its attempt ends while the batch runs.
    let cancelled = test.wait(jobs[1].id, Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!(cancelled.status, Status::Cancelled);
    go.notify_one();
    for at in [0, 2] {
        let ended = test.wait(jobs[at].id, Duration::from_secs(20)).await.unwrap().unwrap();
        assert_eq!(ended.status, Status::Completed);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_its_batch_is_released_when_the_worker_stops() {
    let bench = bench().await;
    let never =
        |_: Vec<Item<Shot>>, _: BatchContext| async { panic!("the batch must not begin") as Vec<Verdict> };
    let worker =
        Worker::builder(&bench.tenure).handle_batch(Batch::up_to(64).within(Duration::from_secs(60)), never);
    let worker = Running::start(worker);
    let job = bench.tenure.enqueue_many(shots(1, 9, "")).await.unwrap()[0].id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.stop().await;
    let row = bench.tenure.job(job).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempt), (Status::Queued, 0));
    assert_eq!(bench.count("tenure.job_executions WHERE outcome = 'released'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_not_possible_is_refused_with_a_reason() {
    let test = TestTenure::start().await;
    let idle = |_: Vec<Item<Shot>>, _: BatchContext| async { Vec::new() };
    for (batch, part) in [
        (Batch::up_to(0), "1 to 10000 jobs, not 0"),
        (Batch::up_to(10_001), "1 to 10000 jobs, not 10001"),
        (Batch::up_to(2).within(Duration::from_secs(61)), "at most 60 s"),
    ] {
        let error = Worker::builder(&test).handle_batch(batch, idle).start().unwrap_err();
        assert!(matches!(error, WorkerError::Handler(_)) && error.to_string().contains(part), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_and_checkpoints_of_an_item_outlive_a_call_that_failed() {
    let bench = bench().await;
    let done = Arc::new(AtomicU32::new(0));
    let counted = done.clone();
    let handler = move |jobs: Vec<Item<Shot>>, _: BatchContext| {
        let counted = counted.clone();
        async move {
            let mut ends = Vec::new();
            for job in &jobs {
                let ctx = job.context();
                ctx.step("once", async || Ok(counted.fetch_add(1, Ordering::SeqCst))).await?;
                if ctx.attempt() == 1 {
                    ctx.save_checkpoint(&job.number).await?;
                }
            }
            if jobs.len() > 1 && jobs.iter().any(|job| job.does.is_some()) {
                return Err(JobError::msg("all of them"));
            }
            for job in jobs {
                let ctx = job.context().clone();
                ends.push(match ctx.sleep("a while", Duration::from_millis(300)).await {
                    // It sleeps, and comes back with its step and its checkpoint.
                    Err(suspended) => job.fail(suspended),
                    Ok(()) => job.done(ctx.checkpoint::<u32>()),
                });
            }
            Ok(ends)
        }
    };
    let batch = Batch::up_to(4).within(Duration::from_secs(5));
    let worker = Running::start(Worker::builder(&bench.tenure).handle_batch(batch, handler));
    let jobs = shots(4, 2, "fails").map(|job| job.max_attempts(1));
    let jobs = bench.tenure.enqueue_many(jobs).await.unwrap();
    for (n, job) in jobs.iter().enumerate() {
        let row = bench.until_finished(job.id).await;
        assert_eq!((row.status, row.output), (Status::Completed, Some(json!(n))), "{:?}", row.last_error);
    }
    assert_eq!(done.load(Ordering::SeqCst), 4, "each step was done once");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_half_is_not_silent_while_the_first_one_runs() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(1);
        config.timing.scan_every = Duration::from_millis(200);
    })
    .await;
    let handler = |jobs: Vec<Item<Shot>>, ctx: BatchContext| async move {
        if jobs.len() > 1 {
            return Err(JobError::msg("all of them"));
        }
        // Each half reports for its own jobs, for longer than the other may be silent.
        for _ in 0..25 {
            ctx.progress("half", 50.0, "").await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(jobs.into_iter().map(|job| job.done(())).collect())
    };
    let options = KindOptions::new().on_crash(OnCrash::DeadLetter);
    let batch = Batch::up_to(2).within(Duration::from_secs(5));
    let worker = Running::start(Worker::builder(&bench.tenure).handle_batch_with(batch, options, handler));
    for job in bench.tenure.enqueue_many(shots(2, 9, "")).await.unwrap() {
        let row = bench.until_finished(job.id).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{:?}", row.last_error);
    }
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_time_is_up_while_it_waits_is_not_charged() {
    let bench = bench().await;
    let handler = |jobs: Vec<Item<Shot>>, _: BatchContext| async move {
        jobs.into_iter().map(|job| job.done(())).collect::<Vec<_>>()
    };
    let options = KindOptions::new().timeout(Duration::from_millis(300));
    let batch = Batch::up_to(2).within(Duration::from_secs(30));
    let worker = Running::start(Worker::builder(&bench.tenure).handle_batch_with(batch, options, handler));
    let request = || shots(1, 9, "").map(|job| job.max_attempts(1));
    let first = bench.tenure.enqueue_many(request()).await.unwrap()[0].id;
    bench.until("EXISTS (SELECT FROM tenure.job_executions WHERE outcome = 'snoozed')").await;
    // Until another one fills the batch.
    let row = loop {
        bench.tenure.enqueue_many(request()).await.unwrap();
        let row = bench.tenure.job(first).await.unwrap().unwrap();
        if row.status.is_finished() {
            break row;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{:?}", row.last_error);
    worker.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_says_when_to_retry_is_that_of_each_job_at_once() {
    let bench = bench().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let handler = move |jobs: Vec<Item<Shot>>, _: BatchContext| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                return Err(JobError::retry_after(Duration::from_millis(100), "the model is busy"));
            }
            Ok(jobs.into_iter().map(|job| job.done(())).collect())
        }
    };
    let batch = Batch::up_to(4).within(Duration::from_secs(2));
    let worker = Running::start(Worker::builder(&bench.tenure).handle_batch(batch, handler));
    for job in bench.tenure.enqueue_many(shots(4, 9, "")).await.unwrap() {
        let row = bench.until_finished(job.id).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 2));
    }
    let errors = "tenure.job_executions WHERE outcome = 'retried' AND error = 'the model is busy'";
    assert_eq!(bench.count(errors).await, 4);
    assert!(calls.load(Ordering::SeqCst) < 6, "no halves");
    worker.stop().await;
}

/// A kind that must not run twice by now, and did not say so when the job was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_suspect_keeps_the_route_to_a_dead_letter() {
    let bench = bench().await;
    let sql = |route: &str| {
        format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, status, max_attempts, attempt, fencing_token, claim_id,
                    worker_id, worker_host, stale_after, started_at, last_activity_at, scheduled_at, on_crash, published_at)
             SELECT gen_random_uuid(), 'q', 'k', '1', 'processing', 5, 1, 7, gen_random_uuid(), 'w', 'h', '1 h', now(),
                    now(), now(), '{route}', now()"
        )
    };
    for (route, then) in [("halve", "retry"), ("dead_letter", "dead_letter"), ("retry", "retry")] {
        bench.execute("DELETE FROM tenure.jobs").await;
        bench.execute(&sql(route)).await;
        let (id, claim): (uuid::Uuid, uuid::Uuid) =
            sqlx::query_as("SELECT id, claim_id FROM tenure.jobs").fetch_one(&bench.pool).await.unwrap();
        let marked = sqlx::query(statement("runs_alone")).bind(id).bind(7_i64).bind(claim);
        assert_eq!(marked.fetch_all(&bench.pool).await.unwrap().len(), 1);
        assert_eq!(bench.count(&format!("tenure.jobs WHERE on_crash = '{then}'")).await, 1, "{route}");
        let stale = sqlx::query(statement("runs_alone")).bind(id).bind(6_i64).bind(claim);
        assert!(stale.fetch_all(&bench.pool).await.unwrap().is_empty());
    }
}

/// The longest that a handler may go on: a job that has to wait for it would be dropped then.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_lone_suspect_is_cancelled_and_released_at_once() {
    let bench = bench().await;
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, permission) = (began.clone(), go.clone());
    let handler = move |jobs: Vec<Item<Shot>>, _: BatchContext| {
        let (tell, permission) = (tell.clone(), permission.clone());
        async move {
            if jobs[0].does.is_some() {
                tell.notify_one();
                permission.notified().await;
            }
            jobs.into_iter().map(|job| job.done(())).collect::<Vec<_>>()
        }
    };
    let options = KindOptions::new().keepalive().cancel_grace(Duration::from_secs(600));
    let batch = Batch::up_to(4).within(Duration::from_millis(20));
    let suspect = shots(1, 0, "hangs").next().unwrap().delay(Duration::from_millis(500));
    let suspect = bench.tenure.enqueue(suspect).await.unwrap().id;
    bench.execute("UPDATE tenure.jobs SET losses = 5").await;
    let worker = Worker::builder(&bench.tenure).handle_batch_with(batch, options, handler);
    let worker = Running::start(worker);
    began.notified().await;
    let unwanted = bench.tenure.enqueue_many(shots(1, 9, "")).await.unwrap()[0].id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    bench.tenure.cancel(unwanted).await.unwrap();
    assert_eq!(bench.until_finished(unwanted).await.status, Status::Cancelled);
    let waits = bench.tenure.enqueue_many(shots(1, 9, "")).await.unwrap()[0].id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    let stopping = tokio::spawn(worker.stop());
    bench
        .until(&format!("(SELECT status = 'queued' AND attempt = 0 FROM tenure.jobs WHERE id = '{waits}')"))
        .await;
    go.notify_one();
    stopping.await.unwrap();
    assert_eq!(bench.until_finished(suspect).await.status, Status::Completed);
}
