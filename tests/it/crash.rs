//! kill -9 at each step of a job's life: no job is lost, and none completes twice.

use std::time::Duration;

use tenure::{Status, Worker};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, until_file},
    scenarios::{Step, step},
};

/// A worker process that dies at a point of the production code.
fn killed_at(bench: &Bench, scenario: &str, point: &str) -> Child {
    let fault = ("TENURE_FAULT", format!("{point}=kill"));
    // A host of its own: otherwise reconcile would be faster than the path under test.
    let host = ("TENURE_HOSTNAME", "elsewhere".to_owned());
    Child::start_with(bench, scenario, &[fault, host])
}

async fn completed_once(bench: &Bench, job: tenure::JobId, attempts: i64) {
    let row = bench.until_finished(job).await;
    assert_eq!(row.status, Status::Completed);
    let all = format!("tenure.job_executions_all WHERE job_id = '{job}'");
    assert_eq!(bench.count(&format!("{all} AND outcome = 'completed'")).await, 1);
    assert_eq!(bench.count(&all).await, attempts);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_right_after_the_claim_the_job_runs_elsewhere() {
    let bench = bench().await;
    let mut victim = killed_at(&bench, "worker", "claimed");
    let step_job = Step::new(&bench, "report");
    let job = bench.tenure.enqueue(step_job.clone()).await.unwrap().id;
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing' AND fencing_token = 1").await, 1);
    assert!(!step_job.file("started").exists(), "its handler never ran");
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    completed_once(&bench, job, 2).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_mid_run_the_job_runs_elsewhere() {
    let bench = bench().await;
    let mut victim = Child::start(&bench, "worker");
    let step_job = Step::new(&bench, "report");
    let job = bench.tenure.enqueue(step_job.clone()).await.unwrap().id;
    until_file(&step_job.file("started")).await;
    bench.until_count("tenure.jobs WHERE progress = 50", 1).await;
    victim.kill().await;
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    completed_once(&bench, job, 2).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_handlers_own_commit_the_commit_stands_once_and_the_job_runs_elsewhere() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let mut victim = Child::start(&bench, "worker");
    let step_job = Step::new(&bench, "commit");
    let job = bench.tenure.enqueue(step_job.clone()).await.unwrap().id;
    until_file(&step_job.file("committed")).await;
    victim.kill().await;
    assert_eq!(bench.count("public.app_effects WHERE token = 1").await, 1);
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    completed_once(&bench, job, 2).await;
    // The second attempt tried the effect, too, and found it done.
    assert_eq!(bench.count("public.app_effects").await, 1);
    assert_eq!(bench.count("tenure.effects WHERE fencing_token = 1").await, 1);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_completed_was_written_but_before_the_ack_the_redelivery_is_not_run() {
    let bench = bench().await;
    let mut victim = killed_at(&bench, "worker", "settled");
    let step_job = Step::new(&bench, "report");
    std::fs::write(step_job.file("go"), "").unwrap();
    let job = bench.tenure.enqueue(step_job).await.unwrap().id;
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    assert_eq!(bench.count("tenure.job_history WHERE output = '\"first\"'").await, 1);
    assert_eq!(bench.messages().await, 1, "the message was not acknowledged");
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    // The redelivery comes after ack_wait; its worker finds the job finished and acknowledges it.
    completed_once(&bench, job, 1).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_killed_between_row_and_message_loses_no_job() {
    let bench = bench().await;
    let noop = |_, _| async {};
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(tenure::KindOptions::new(), noop).concurrency("steps", 1),
    );
    bench.until_count("tenure.workers", 1).await;
    let mut victim = killed_at(&bench, "enqueue", "enqueued");
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    // The row says that a message exists; the relay finds that none does.
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    assert_eq!(bench.count("tenure.recovery_events WHERE event = 'republished' AND path = 'relay'").await, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_a_reset_and_its_publication_the_job_is_published_by_another() {
    // The relay of the worker that dies must not publish between the commit of the reset and its answer.
    let bench = bench_with(|config| config.timing.relay_every = Duration::from_secs(5)).await;
    let mut owner = Child::start(&bench, "worker");
    let step_job = Step::new(&bench, "report");
    let job = bench.tenure.enqueue(step_job.clone()).await.unwrap().id;
    until_file(&step_job.file("started")).await;
    owner.kill().await;
    let mut scanner = killed_at(&bench, "worker", "reset");
    assert_eq!(scanner.wait().await, None, "killed by the signal:\n{}", scanner.log());
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND publish_at IS NOT NULL").await, 1);
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    completed_once(&bench, job, 2).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_a_publication_and_its_record_the_job_runs_once() {
    let bench = bench().await;
    let mut owner = Child::start(&bench, "worker");
    let step_job = Step::new(&bench, "report");
    let job = bench.tenure.enqueue(step_job.clone()).await.unwrap().id;
    until_file(&step_job.file("started")).await;
    owner.kill().await;
    // The relay must not run the job that it publishes before it dies.
    let mut relay = killed_at(&bench, "idle", "relayed");
    assert_eq!(relay.wait().await, None, "killed by the signal:\n{}", relay.log());
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    completed_once(&bench, job, 2).await;
    other.stop().await;
}

/// The job is completed, its ack lost, and its row purged: only its key remembers the submission.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_delivered_again_after_its_job_completed_is_not_run_again() {
    let bench = bench().await;
    let mut victim = killed_at(&bench, "worker", "settled");
    let step_job = Step::new(&bench, "report");
    std::fs::write(step_job.file("go"), "").unwrap();
    bench.until_count("tenure.workers", 1).await;
    bench.publish("steps.step", &serde_json::to_string(&step_job).unwrap()).await;
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    assert_eq!(bench.execute("DELETE FROM tenure.job_history").await, 1);
    std::fs::remove_file(step_job.file("started")).unwrap();
    assert_eq!(bench.messages().await, 1, "the message was not acknowledged");
    let other = Running::start(Worker::builder(&bench.tenure).handle(step));
    // The redelivery comes after ack_wait; its worker derives the same id and finds the key.
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, 0, "no second job was created");
    assert!(!step_job.file("started").exists());
    other.stop().await;
}
