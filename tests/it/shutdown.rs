//! Graceful shutdown: finish, release, drain, exit 0. A second signal exits at once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Worker};

use crate::{
    harness::{Child, Running, bench, bench_with, until_file},
    scenarios::{Step, step},
};

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_running_jobs_finish_and_the_worker_exits_0() {
    let bench = bench().await;
    let mut worker = Child::start(&bench, "worker");
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    worker.signal(Signal::TERM);
    worker.until_log("stopping: no new jobs").await;
    // What comes now is for others.
    let late = Step::new(&bench, "report");
    bench.tenure.enqueue(late.clone()).await.unwrap();
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    let done = bench.tenure.job(id).await.unwrap().unwrap();
    assert_eq!((done.output, done.fencing_token), (Some(json!("first")), 1));
    assert!(!late.file("started").exists());
    assert_eq!(bench.count("tenure.workers").await, 0);
    assert_eq!(bench.messages().await, 1, "only the late one is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_within_the_grace_is_released_at_once_with_no_attempt_burnt() {
    let bench = bench_with(|config| {
        config.timing.shutdown_grace = Duration::from_millis(300);
        // Long: nobody recovers these but their own worker.
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    // One listens to its cancellation, one does not and is dropped.
    let stubborn = |payload: serde_json::Value, ctx: JobContext| async move {
        if ctx.token().0 > 1 {
            return Outcome::done(ctx.attempt());
        }
        if payload == json!("polite") {
            let reason = ctx.cancelled().await;
            return Err(JobError::msg(format!("stopped: {reason}")));
        }
        std::future::pending().await
    };
    let build =
        || Worker::builder(&bench.tenure).handle_any(KindOptions::new(), stubborn).concurrency("q", 2);
    let worker = Running::start(build());
    let mut ids = vec![];
    for payload in ["polite", "stubborn"] {
        ids.push(bench.tenure.enqueue(JobRequest::new("q", "k", json!(payload))).await.unwrap().id);
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    let started = Instant::now();
    worker.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 0 AND fencing_token = 1 AND scheduled_at <= now()").await, 2);
    let events =
        bench.text("SELECT event, path, reason, count(*) FROM tenure.recovery_events GROUP BY 1, 2, 3").await;
    assert_eq!(events, "(release,worker,\"the worker was stopped\",2)");
    assert_eq!(bench.count("tenure.job_executions WHERE outcome = 'released'").await, 2);
    let next = Running::start(build());
    for id in ids {
        assert_eq!(bench.until_finished(id).await.output, Some(json!(1)), "it is the first attempt again");
    }
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    next.stop().await;
}

/// "As long as it needs" is a grace, too: the sum of graces must not be more than there is time.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_cancelled_handlers_have_for_ever_stops_when_they_have_ended() {
    let bench = bench_with(|config| {
        config.timing.shutdown_grace = Duration::ZERO;
        config.timing.cancel_grace = Duration::MAX;
    })
    .await;
    let polite = |_, ctx: JobContext| async move {
        let reason = ctx.cancelled().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err::<(), _>(JobError::msg(format!("stopped: {reason}")))
    };
    let options = KindOptions::new().cancel_grace(Duration::MAX).timeout(Duration::MAX);
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(options, polite).concurrency("q", 1));
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.stop().await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 0").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_exits_at_once_and_the_job_is_recovered() {
    let bench = bench().await;
    let command = bench.program(&["work", "steps", "--exec", "sleep 60"]);
    let mut worker = Child::spawn(command, "work");
    let id = bench
        .tenure
        .enqueue(JobRequest::new("steps", "step", json!({"folder": "/", "first": ""})))
        .await
        .unwrap()
        .id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    worker.signal(Signal::TERM);
    worker.until_log("stopping: no new jobs").await;
    let started = Instant::now();
    worker.signal(Signal::INT);
    assert_eq!(worker.wait().await, Some(1), "{}", worker.log());
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
    let next = Running::start(Worker::builder(&bench.tenure).handle(step));
    assert_eq!(bench.until_finished(id).await.fencing_token, 2);
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_gives_back_what_was_on_its_way_to_it() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(120);
    })
    .await;
    let build =
        || Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 5);
    // Stopped in the middle of a flood, again and again: with ack_wait at two minutes, one message kept
    // by a worker that is gone would show.
    let requests = (0..2_000).map(|n| JobRequest::new("q", "k", json!(n)));
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue_many(requests).await.unwrap();
    for _ in 0..5 {
        let before = bench.count("tenure.job_history").await;
        let worker = Running::start(build());
        bench
            .until(&format!("(SELECT count(*) FROM tenure.job_history) > {}", (before + 50).min(1_999)))
            .await;
        worker.stop().await;
    }
    let worker = Running::start(build());
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 2000", Duration::from_secs(20)).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 2_000);
    worker.stop().await;
}
