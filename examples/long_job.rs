//! A long job: progress as the heartbeat, a checkpoint to continue from, a response to cancellation.
//! `cargo run --features testing --example long_job`
//!
//! Runs on private servers, and ends by itself in seconds. The first job loses its worker in the middle and continues
//! from its checkpoint; the second is cancelled. The example fails if a row is missing, or if the second job goes on.

use std::{
    collections::BTreeSet,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, JobId, KindOptions, Outcome, Status, Worker, WorkerBuilder,
    testing::TestTenure,
};
use tokio::time::sleep;

type Failure = Box<dyn Error + Send + Sync>;

// ANCHOR: handler
#[derive(Debug, Serialize, Deserialize)]
struct Import {
    rows: u16,
}

impl Job for Import {
    const KIND: &'static str = "import";
    const QUEUE: &'static str = "imports";
}

/// The place to continue from, not the results so far.
#[derive(Default, Serialize, Deserialize)]
struct Checkpoint {
    rows: u16,
}

async fn import(job: Import, ctx: JobContext<Target>) -> Result<Outcome, JobError> {
    let start: Checkpoint = ctx.checkpoint().unwrap_or_default();
    for row in start.rows..job.rows {
        tokio::select! {
            done = ctx.state().import(row) => done?,
            // Cancelled, lost, out of time, or the worker stops: the reason decides what happens to the job.
            reason = ctx.cancelled() => return Err(JobError::msg(format!("at row {row}: {reason}"))),
        }
        // Both are heartbeats. One statement writes them together, at most once a second.
        ctx.save_checkpoint(&Checkpoint { rows: row + 1 }).await?;
        let percent = f32::from(row + 1) / f32::from(job.rows) * 100.0;
        ctx.progress("importing", percent, &format!("{} of {} rows", row + 1, job.rows)).await?;
    }
    Outcome::done(job.rows)
}
// ANCHOR_END: handler

/// The target of the rows. It stores each row under its own number, so that a row imported twice exists once.
#[derive(Clone, Default)]
struct Target {
    rows: Arc<Mutex<Vec<u16>>>,
}

impl Target {
    async fn import(&self, row: u16) -> Result<(), JobError> {
        sleep(Duration::from_millis(20)).await;
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        Ok(())
    }

    fn imported(&self) -> Vec<u16> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// ANCHOR: worker
fn worker(tenure: &tenure::Tenure, target: &Target) -> WorkerBuilder<Target> {
    let options = KindOptions::new()
        // The silence after which a scanner resets the job: longer than the longest step between two reports.
        .stale_after(Duration::from_secs(60))
        // The longest run time, even with heartbeats.
        .timeout(Duration::from_secs(4 * 3_600))
        // The time to clean up after a cancellation.
        .cancel_grace(Duration::from_secs(10));
    Worker::builder(tenure).state(target.clone()).handle_with(options, import).concurrency("imports", 2)
}
// ANCHOR_END: worker

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;

    let (target, rows) = (Target::default(), 100);
    let id = test.enqueue(Import { rows }).await?.id;
    let (job, lost) = tokio::join!(test.finish(worker(&test, &target), id), async {
        until_progress(&test, id, 40.0).await?;
        // Simulates a worker that is frozen or cut off.
        test.lose(id).await;
        Ok::<_, Failure>(())
    });
    lost?;
    assert_eq!((job.status, job.attempt), (Status::Completed, 2), "{job:?}");
    let imported = target.imported();
    let distinct: BTreeSet<u16> = imported.iter().copied().collect();
    assert_eq!(distinct.len(), usize::from(rows), "every row exists");
    let repeated = imported.len() - distinct.len();
    assert!(repeated < 30, "the second attempt repeated {repeated} rows despite the checkpoint");
    println!("lost at 40 %; the second attempt completed the job and repeated {repeated} rows");

    let target = Target::default();
    let id = test.enqueue(Import { rows: 400 }).await?.id;
    let (job, cancelled) = tokio::join!(test.finish(worker(&test, &target), id), async {
        until_progress(&test, id, 5.0).await?;
        test.cancel(id).await?;
        Ok::<_, Failure>(())
    });
    cancelled?;
    assert_eq!(job.status, Status::Cancelled, "{job:?}");
    assert!(target.imported().len() < 400, "the handler went on after the cancellation");
    println!("cancelled: {}", job.last_error.unwrap_or_default());
    Ok(())
}

/// Waits until the job's progress is at least this.
async fn until_progress(test: &TestTenure, id: JobId, percent: f32) -> Result<(), Failure> {
    loop {
        let job = test.job(id).await?.ok_or("there is no such job")?;
        if job.progress.is_some_and(|progress| progress >= percent) {
            return Ok(());
        }
        if job.status.is_finished() {
            return Err(format!("the job ended too soon: {job:?}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
