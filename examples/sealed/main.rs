//! Payloads and outputs that neither Postgres nor NATS can read. `cargo run --features testing --example sealed`
//!
//! Runs on private servers, and ends by itself in seconds: it rotates a key while a job waits, and fails if a server
//! has seen a card number, or if a worker runs a job whose key it lacks.

mod keyring;

use std::{error::Error, time::Duration};

use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, Status, Tenure, Worker,
    codec::{Codecs, Part, SealedWith},
    testing::TestTenure,
};

use keyring::Keyring;

type Failure = Box<dyn Error + Send + Sync>;

const CARD: &str = "4111 1111 1111 1111";

#[derive(Serialize, Deserialize)]
struct Charge {
    card: String,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    const QUEUE: &'static str = "bank";
}

async fn charge(job: Charge, ctx: JobContext) -> Result<String, JobError> {
    // The result of a step is sealed, too.
    let receipt: String = ctx.step("charge", async || Ok(format!("receipt for {}", job.card))).await?;
    Ok(receipt)
}

// ANCHOR: connect
/// A process with these keys, the newest first.
async fn process(test: &TestTenure, keys: &[(&str, [u8; 32])]) -> Result<Tenure, Failure> {
    let codecs = Codecs::new().kind(Charge::KIND, Keyring::new(keys));
    Ok(Tenure::builder(test.config()).codecs(codecs).connect().await?)
}
// ANCHOR_END: connect

/// Runs a worker until the jobs have ended, or for two seconds.
async fn work(tenure: &Tenure, jobs: &[tenure::JobId]) -> Result<(), Failure> {
    let worker = Worker::builder(tenure).handle(charge).concurrency(Charge::QUEUE, 4).start()?;
    for job in jobs {
        drop(tenure.wait(*job, Duration::from_secs(2)).await);
    }
    worker.stop();
    worker.wait().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;
    let (older, newer) = (("2026-10", [7; 32]), ("2026-11", [9; 32]));

    let before = process(&test, &[older]).await?;
    let first = before.enqueue(Charge { card: CARD.into() }).await?.id;
    // All processes learn the new key, and then begin to seal with it.
    let rotated = process(&test, &[newer, older]).await?;
    let second = rotated.enqueue(Charge { card: CARD.into() }).await?.id;

    // A worker that was left behind runs the first job, and puts the other one off.
    work(&before, &[first, second]).await?;
    let waiting = rotated.job(second).await?.ok_or("the job is gone")?;
    assert_eq!((waiting.status, waiting.attempt), (Status::Queued, 0), "it waits, and has paid no attempt");
    let payload = waiting.payload_json().ok_or("no payload")?;
    println!("the waiting job is {}", SealedWith::of(payload.get()).ok_or("it is plain")?);

    rotated.retry(second).await?;
    work(&rotated, &[second]).await?;
    for job in [first, second] {
        let row = rotated.job(job).await?.ok_or("the job is gone")?;
        assert_eq!(row.status, Status::Completed);
        assert!(!serde_json::to_string(&row)?.contains("4111"), "Postgres has seen the card");
        // A process with the key reads the output.
        let receipt: String = rotated.wait_for(job, Duration::from_secs(1)).await?;
        assert_eq!(receipt, format!("receipt for {CARD}"));
        let sealed = row.output_json().ok_or("no output")?.to_string();
        println!(
            "{}: {}",
            SealedWith::of(&sealed).ok_or("it is plain")?,
            rotated.codecs().open(Part::Output, sealed)?
        );
    }
    for tenure in [before, rotated] {
        tenure.close().await;
    }
    Ok(())
}
