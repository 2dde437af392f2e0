//! A long job: progress as its sign of life, a checkpoint to go on from, a cancellation that is heard.
//! `cargo run --features testing --example long_job`
//!
//! On private servers, and it ends by itself in seconds: the first job loses its worker in the middle and goes on
//! from its checkpoint, the second is cancelled. It fails if a row is left out, or if the cancellation is not heard.

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

/// Where to go on; not what was found.
#[derive(Default, Serialize, Deserialize)]
struct Checkpoint {
    rows: u16,
}

async fn import(job: Import, ctx: JobContext<Target>) -> Result<Outcome, JobError> {
    let start: Checkpoint = ctx.checkpoint().unwrap_or_default();
    for row in start.rows..job.rows {
        tokio::select! {
            done = ctx.state().import(row) => done?,
            // Cancelled, lost, out of time, or the worker stops: what becomes of the job depends on which.
            reason = ctx.cancelled() => return Err(JobError::msg(format!("at row {row}: {reason}"))),
        }
        // Both are signs of life, and are written together, once a second at most.
        ctx.save_checkpoint(&Checkpoint { rows: row + 1 }).await?;
        let percent = f32::from(row + 1) / f32::from(job.rows) * 100.0;
        ctx.progress("importing", percent, &format!("{} of {} rows", row + 1, job.rows)).await?;
    }
    Outcome::done(job.rows)
}
// ANCHOR_END: handler

/// Where the rows go: each is written under its own number, so that a row that is imported twice is there once.
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
        // Silence after which it is taken back: longer than the longest step between two reports.
        .stale_after(Duration::from_secs(60))
        // However many signs of life it shows.
        .timeout(Duration::from_secs(4 * 3_600))
        // To tidy up, once it is told to stop.
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
        // As if its worker were frozen or cut off.
        test.lose(id).await;
        Ok::<_, Failure>(())
    });
    lost?;
    assert_eq!((job.status, job.attempt), (Status::Completed, 2), "{job:?}");
    let imported = target.imported();
    let distinct: BTreeSet<u16> = imported.iter().copied().collect();
    assert_eq!(distinct.len(), usize::from(rows), "every row is there");
    let repeated = imported.len() - distinct.len();
    assert!(repeated < 30, "it went on from its checkpoint, and yet repeated {repeated} rows");
    println!("lost at 40 %, and completed by its second attempt, which repeated {repeated} rows");

    let target = Target::default();
    let id = test.enqueue(Import { rows: 400 }).await?.id;
    let (job, cancelled) = tokio::join!(test.finish(worker(&test, &target), id), async {
        until_progress(&test, id, 5.0).await?;
        test.cancel(id).await?;
        Ok::<_, Failure>(())
    });
    cancelled?;
    assert_eq!(job.status, Status::Cancelled, "{job:?}");
    assert!(target.imported().len() < 400, "it went on all the same");
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
            return Err(format!("it has ended too soon: {job:?}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
