//! The tutorial's first job in Rust: `DATABASE_URL=… NATS_URL=… cargo run --example first_job work`, and in another
//! terminal the same without `work`, which enqueues a job.

// ANCHOR: all
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Config, Job, JobContext, JobError, Outcome, Tenure, Worker};

#[derive(Serialize, Deserialize)]
struct Resize {
    pictures: u16,
}

impl Job for Resize {
    const KIND: &'static str = "resize";
    const QUEUE: &'static str = "gallery";
}

async fn resize(job: Resize, ctx: JobContext) -> Result<Outcome, JobError> {
    // The checkpoint of the previous attempt, if there was one.
    let start: u16 = ctx.checkpoint().unwrap_or(0);
    for picture in start..job.pictures {
        tokio::time::sleep(Duration::from_secs(1)).await; // one second of work
        let percent = f32::from(picture + 1) / f32::from(job.pictures) * 100.0;
        ctx.save_checkpoint(&(picture + 1)).await?;
        ctx.progress("resizing", percent, "").await?; // also the heartbeat
    }
    Outcome::done(format!("{} pictures", job.pictures))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init(); // tenure's log
    let tenure = Tenure::connect(&Config::from_env()?).await?;
    tenure.migrate().await?;
    if std::env::args().nth(1).as_deref() == Some("work") {
        let worker = Worker::builder(&tenure).handle(resize).concurrency("gallery", 2);
        worker.run_until(tenure::shutdown_signal()).await?;
    } else {
        let job = tenure.enqueue(Resize { pictures: 20 }).await?;
        println!("{}", job.id);
    }
    tenure.close().await;
    Ok(())
}
// ANCHOR_END: all
