//! A span for each tenant. `cargo run --features testing --example tenant_spans`
//!
//! Runs on private servers, and ends by itself in seconds. A layer reads the tenant from the payload of every job, and
//! each log line of the handlers names it, also those of code that knows no tenant. The example fails if a line names
//! none, or another one.

use std::{
    error::Error,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, Outcome, Tenure, Worker, WorkerBuilder,
    layers::{Call, Next},
    testing::TestTenure,
};
use tracing::Instrument;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    tenant: String,
    number: i64,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";
    const QUEUE: &'static str = "documents";
}

#[derive(Debug, Serialize, Deserialize)]
struct Remind {
    tenant: String,
}

impl Job for Remind {
    const KIND: &'static str = "remind";
    const QUEUE: &'static str = "documents";
}

// ANCHOR: layer
/// The field that the payloads of all kinds have.
#[derive(Deserialize)]
struct OfTenant {
    tenant: String,
}

async fn in_span_of_tenant(call: Call, next: Next) -> Result<Outcome, JobError> {
    let OfTenant { tenant } = call.read()?;
    let span = tracing::info_span!("tenant", tenant);
    next.run(call).instrument(span).await
}

fn worker(tenure: &Tenure) -> WorkerBuilder {
    Worker::builder(tenure)
        .layer(in_span_of_tenant)
        .handle(invoice)
        .handle(remind)
        .concurrency("documents", 8)
}
// ANCHOR_END: layer

async fn invoice(job: Invoice, _ctx: JobContext) -> Result<Outcome, JobError> {
    tracing::info!(number = job.number, "writing an invoice");
    render().await;
    Outcome::done(job.number)
}

async fn remind(_job: Remind, _ctx: JobContext) {
    render().await;
}

/// A library: it knows no tenant.
async fn render() {
    tokio::time::sleep(Duration::from_millis(20)).await;
    tracing::info!("rendered a page");
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("warn,tenant_spans=info,tenure::trace=info"))
        .with_ansi(false)
        .with_writer(log.clone())
        .init();
    let test = TestTenure::start().await;
    // The jobs of both tenants run at once, on the same threads.
    for number in 0..10 {
        for tenant in ["acme", "globex"] {
            test.enqueue(Invoice { tenant: tenant.into(), number }).await?;
            test.enqueue(Remind { tenant: tenant.into() }).await?;
        }
    }
    let ended = test.drain(worker(&test)).await;
    assert_eq!(ended.len(), 40);

    let logged = log.text();
    print!("{logged}");
    for job in ended {
        let lines: Vec<_> = logged.lines().filter(|line| line.contains(&job.id.to_string())).collect();
        assert_eq!(lines.len(), if job.kind == Invoice::KIND { 2 } else { 1 }, "{job:?}: {lines:#?}");
        let tenant = job.payload.as_ref().map(|payload| payload["tenant"].to_string()).unwrap_or_default();
        let tenant = format!("tenant{{tenant={tenant}}}");
        for line in lines {
            assert!(line.contains(&tenant), "{tenant}: {line}");
        }
    }
    Ok(())
}

/// The log of this process, which the example reads.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}
