//! Groups, graphs and events: jobs that wait for others, for jobs of their own, and for a person.
//! `cargo run --features testing --example groups`
//!
//! Runs on private servers, and ends by itself in seconds. The score of one part fails: the report of its graph is
//! cancelled, and comes back when the dead letter is redriven. The example fails if a follower sees anything but what
//! the jobs before it have left.

use std::{
    error::Error,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, JobId, Outcome, Status, Tenure, Worker, WorkerBuilder,
    groups::{OnFailure, Signalled},
    testing::TestTenure,
};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
struct Fetch {
    url: String,
}

impl Job for Fetch {
    const KIND: &'static str = "fetch";
    const QUEUE: &'static str = "scores";
}

async fn fetch(job: Fetch, _: JobContext) -> Result<Outcome, JobError> {
    Outcome::done(job.url.len())
}

#[derive(Debug, Serialize, Deserialize)]
struct Score {
    part: u32,
}

impl Job for Score {
    const KIND: &'static str = "score";
    const QUEUE: &'static str = "scores";
    const MAX_ATTEMPTS: u32 = 1;
}

/// Whether a part cannot be scored, until somebody has mended it.
static IS_BROKEN: AtomicBool = AtomicBool::new(true);

async fn score(job: Score, _: JobContext) -> Result<Outcome, JobError> {
    if job.part == 3 && IS_BROKEN.load(SeqCst) {
        return Err(JobError::permanent("part 3 has no scores yet"));
    }
    Outcome::done(f64::from(job.part))
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    day: u32,
}

impl Job for Report {
    const KIND: &'static str = "report";
    const QUEUE: &'static str = "scores";
}

// ANCHOR: follower
async fn report(_: Report, ctx: JobContext) -> Result<Outcome, JobError> {
    let scores: Vec<f64> = ctx.outputs().await?;
    Outcome::done(scores.iter().sum::<f64>())
}
// ANCHOR_END: follower

#[derive(Debug, Serialize, Deserialize)]
struct Tidy {}

impl Job for Tidy {
    const KIND: &'static str = "tidy";
    const QUEUE: &'static str = "scores";
}

async fn tidy(_: Tidy, ctx: JobContext) -> Result<Outcome, JobError> {
    Outcome::done(ctx.failed_before().await?.len())
}

#[derive(Debug, Serialize, Deserialize)]
struct Approval {
    by: String,
}

/// Scores parts of its own, and waits for a person.
#[derive(Debug, Serialize, Deserialize)]
struct Publish {
    parts: u32,
}

impl Job for Publish {
    const KIND: &'static str = "publish";
    const QUEUE: &'static str = "scores";
}

async fn publish(job: Publish, ctx: JobContext) -> Result<Outcome, JobError> {
    // ANCHOR: all
    let parts = (1..=job.parts).map(|part| Score { part });
    let scores: Vec<f64> = ctx.all("scores", parts).await?;
    // ANCHOR_END: all
    // ANCHOR: event
    let approval: Approval = ctx.event("approved").await?;
    let note: Option<String> = ctx.event_within("note", Duration::from_millis(200)).await?;
    // ANCHOR_END: event
    Outcome::done((scores.len(), approval.by, note))
}

async fn group(tenure: &Tenure) -> Result<JobId, Failure> {
    // ANCHOR: group
    let parts = (0..100).map(|part| Score { part });
    let report = tenure.group(parts).then(Report { day: 7 }).await?;
    // ANCHOR_END: group
    Ok(report.id)
}

async fn graph(tenure: &Tenure, url: String) -> Result<[JobId; 3], Failure> {
    // ANCHOR: graph
    let graph = tenure.graph();
    let fetch = graph.add(Fetch { url });
    let parts: Vec<_> = (0..4).map(|part| graph.add(Score { part }).after([&fetch])).collect();
    let report = graph.add(Report { day: 7 }).after(&parts);
    let tidy = graph.add(Tidy {}).after([&report]).on_failure(OnFailure::Run);
    graph.await?;
    // ANCHOR_END: graph
    Ok([parts[3].id(), report.id(), tidy.id()])
}

fn worker(tenure: &Tenure) -> WorkerBuilder {
    Worker::builder(tenure)
        .handle(fetch)
        .handle(score)
        .handle(report)
        .handle(tidy)
        .handle(publish)
        .concurrency("scores", 10)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;

    // One part becomes a dead letter, and so the report is cancelled.
    let [bad, merged, tidied] = graph(&test, "https://example.com".into()).await?;
    let tidied = test.finish(worker(&test), tidied).await;
    assert_eq!(tidied.output, Some(1.into()), "{tidied:?}");
    let cut = test.job(merged).await?.ok_or("there is no such job")?;
    assert_eq!(cut.status, Status::Cancelled, "{cut:?}");
    println!("cancelled: {}", cut.last_error.unwrap_or_default());
    IS_BROKEN.store(false, SeqCst);
    test.redrive(&[bad]).await?;
    let bad = test.finish(worker(&test), bad).await;
    assert_eq!(bad.status, Status::Completed, "{bad:?}");
    let merged = test.finish(worker(&test), merged).await;
    assert_eq!(merged.output, Some(6.0.into()), "{merged:?}");
    println!("redriven: the sum is 6");

    let publish = test.enqueue(Publish { parts: 3 }).await?.id;
    let (published, told) = tokio::join!(test.finish(worker(&test), publish), async {
        // ANCHOR: signal
        let approval = Approval { by: "ann".into() };
        let told = test.signal(publish, "approved", &approval).await?;
        // ANCHOR_END: signal
        Ok::<_, Failure>(told)
    });
    assert_eq!(told?, Signalled::Delivered);
    assert_eq!(published.output, Some(serde_json::json!([3, "ann", null])), "{published:?}");
    println!("published, approved by ann");

    let all = group(&test).await?;
    let all = test.finish(worker(&test), all).await;
    assert_eq!(all.output, Some(4_950.0.into()), "{all:?}");
    println!("a group of a hundred: the sum is 4950");
    Ok(())
}
