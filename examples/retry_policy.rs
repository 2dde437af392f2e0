//! When tenure retries a failed attempt. `cargo run --features testing --example retry_policy`
//!
//! Runs on private servers, and ends by itself in seconds. Each address answers differently; the example fails if a job
//! gets too many or too few attempts, or gets one at the wrong time.

use std::{error::Error, time::Duration};

use chrono::Utc;
use serde::{Deserialize, Serialize};
use tenure::{
    Backoff, Job, JobContext, JobError, KindOptions, Outcome, Retry, Status, Tenure, Worker, WorkerBuilder,
    testing::TestTenure,
};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
struct Fetch {
    address: String,
}

impl Job for Fetch {
    const KIND: &'static str = "fetch";
    const QUEUE: &'static str = "web";
    const MAX_ATTEMPTS: u32 = 4;
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no answer")]
    NoAnswer,
    #[error("too many requests; again in {0:?}")]
    Busy(Duration),
    #[error("there is no such page")]
    Gone,
    #[error("the certificate has expired")]
    Certificate,
}

/// A simulated web: the address decides the answer.
fn get(address: &str, attempt: u32) -> Result<&'static str, FetchError> {
    match address {
        "busy" if attempt == 1 => Err(FetchError::Busy(Duration::from_secs(30))),
        "flaky" if attempt < 3 => Err(FetchError::NoAnswer),
        "gone" => Err(FetchError::Gone),
        "expired" => Err(FetchError::Certificate),
        _ => Ok("hello"),
    }
}

// ANCHOR: handler
async fn fetch(job: Fetch, ctx: JobContext) -> Result<Outcome, JobError> {
    match get(&job.address, ctx.attempt()) {
        Ok(page) => Outcome::done(page),
        // The server names the time of the retry.
        Err(FetchError::Busy(after)) => Err(JobError::retry_after(after, FetchError::Busy(after))),
        // No retry can succeed: the job becomes a dead letter at once.
        Err(error @ FetchError::Gone) => Err(JobError::permanent(error)),
        // Every other error: the kind's policy decides.
        Err(error) => Err(error.into()),
    }
}
// ANCHOR_END: handler

// ANCHOR: policy
fn worker(tenure: &Tenure) -> WorkerBuilder {
    let options = KindOptions::new()
        // 60 s, 120 s, 240 s, up to an hour, each plus or minus a tenth.
        .backoff(Backoff { first: Duration::from_secs(60), longest: Duration::from_secs(3_600), jitter: 0.1 })
        .retry(|error, attempt| match error.downcast_ref::<FetchError>() {
            // One retry after a second, in case the certificate has been renewed; then a dead letter for an operator.
            Some(FetchError::Certificate) if attempt == 1 => Retry::After(Duration::from_secs(1)),
            Some(FetchError::Certificate) => Retry::Never,
            _ => Retry::Usual,
        });
    Worker::builder(tenure).handle_with(options, fetch)
}
// ANCHOR_END: policy

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;

    // `run` skips the waits.
    for (address, status, attempts) in [
        ("fine", Status::Completed, 1),
        ("flaky", Status::Completed, 3),
        ("busy", Status::Completed, 2),
        ("gone", Status::Failed, 1),
        ("expired", Status::Failed, 2),
    ] {
        let job = test.run(worker(&test), Fetch { address: address.into() }).await;
        assert_eq!((job.status, job.attempt), (status, attempts), "{address}: {job:?}");
        println!("{address}: {status} at attempt {attempts}");
    }

    // `drain` skips no waits: these jobs wait for their next attempt.
    for (address, least, most) in [("busy", 29, 31), ("flaky", 53, 67)] {
        test.enqueue(Fetch { address: address.into() }).await?;
        test.drain(worker(&test)).await;
        let waiting = test.enqueued_kind(Fetch::KIND).await;
        let next = waiting.last().ok_or("the job does not wait for a retry")?;
        let seconds = (next.scheduled_at - Utc::now()).num_seconds();
        assert!((least - 5..=most).contains(&seconds), "{address} is due in {seconds} s");
        println!("{address}: retries in {seconds} s");
    }
    Ok(())
}
