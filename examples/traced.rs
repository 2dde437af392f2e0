//! Traces: an enqueuer, a handler that fails once, and the export of both spans.
//!
//! ```sh
//! docker compose --profile traces up -d collector jaeger
//! export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
//! cargo run --features otel,testing --example traced      # then look at http://127.0.0.1:16686
//! ```
//!
//! Any collector that receives OTLP over HTTP will do; without one, the log shows the same spans around its lines.
//! The example starts a private Postgres and NATS, found on the machine, and stops them at its end.

use std::{error::Error, time::Duration};

use serde::{Deserialize, Serialize};
use tenure::{Job, JobContext, JobError, Outcome, Worker, otel::Traces, testing::TestTenure};
use tracing::Instrument;
use tracing_subscriber::{EnvFilter, prelude::*};

#[derive(Serialize, Deserialize)]
struct Charge {
    order: i64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    const QUEUE: &'static str = "payments";
}

/// Runs inside the span of its attempt: its log line has that span's fields, and its own span is a child of it.
async fn charge(job: Charge, ctx: JobContext) -> Result<Outcome, JobError> {
    let bank = tracing::info_span!("ask the bank", order = job.order);
    async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if ctx.attempt() == 1 {
            tracing::warn!("the bank is away");
            return Err(JobError::msg("the bank is away"));
        }
        Ok(())
    }
    .instrument(bank)
    .await?;
    Outcome::done("charged")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // `None` without an endpoint.
    let traces = Traces::from_env()?;
    let log = tracing_subscriber::fmt::layer().with_filter(EnvFilter::new("warn,tenure=info,traced=info"));
    tracing_subscriber::registry().with(log).with(traces.as_ref().map(Traces::layer)).init();

    let test = TestTenure::start().await;
    // For example a web server's span. The job carries the context of the enqueue span, which is a child of this one.
    let request = tracing::info_span!("POST /orders", order = 17);
    let enqueued = async { test.enqueue(Charge { order: 17 }).await }.instrument(request).await?;
    let job = test.finish(Worker::builder(&test).handle(charge), enqueued.id).await;
    println!("{} is {} after {} attempts", job.id, job.status, job.attempt);

    // Sends the waiting spans, if the collector accepts them within two seconds.
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.finish(Duration::from_secs(2))).await??;
    }
    Ok(())
}
