//! A job's life without faults.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::{Job, JobContext, JobError, JobRequest, Outcome, Status, Worker};

use crate::harness::{Running, bench};

#[derive(Debug, Serialize, Deserialize, Clone)]
struct Add {
    a: i64,
    b: i64,
}

impl Job for Add {
    const KIND: &'static str = "add";
    const QUEUE: &'static str = "sums";
}

async fn add(job: Add, _ctx: JobContext) -> Result<Outcome, JobError> {
    Outcome::done(job.a + job.b)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_job_is_enqueued_run_and_completed_with_its_output() {
    let bench = bench().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(add));
    let enqueued = bench.tenure.enqueue(Add { a: 2, b: 3 }).await.unwrap();
    assert!(!enqueued.duplicate);
    let job = bench.until_finished(enqueued.id).await;
    assert_eq!(job.status, Status::Completed);
    assert_eq!(job.output, Some(json!(5)));
    assert_eq!((job.attempt, job.fencing_token.0), (1, 1));
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
    assert_eq!(bench.count("tenure.workers").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_enqueued_in_one_statement_and_all_complete() {
    let bench = bench().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(add).concurrency("sums", 50));
    let jobs = bench.tenure.enqueue_many((0..1_000).map(|a| Add { a, b: 1 })).await.unwrap();
    assert_eq!(jobs.len(), 1_000);
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1_000).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.job_executions_all WHERE outcome = 'completed'").await, 1_000);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_nats_message_becomes_a_job() {
    let bench = bench().await;
    let worker = Running::start(Worker::builder(&bench.tenure).handle(add));
    bench.until_count("tenure.workers", 1).await;
    bench.publish("sums.add", r#"{"a": 20, "b": 22}"#).await;
    bench.until_count("tenure.job_history WHERE output = '42'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_rust_type_runs_too() {
    let bench = bench().await;
    let request = JobRequest::new("sums", "echo", json!({"x": [1, 2.5, "ü"]}));
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(tenure::KindOptions::new(), |value, _ctx| async move { Outcome::done(value) })
            .concurrency("sums", 1),
    );
    assert_eq!(bench.until_finished(id).await.output, Some(json!({"x": [1, 2.5, "ü"]})));
    worker.stop().await;
}
