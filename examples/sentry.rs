//! Errors in Sentry, with their causes. `cargo run --features testing --example sentry`
//!
//! Runs on private servers, sends to a sink in this process, and ends by itself in seconds. The example fails if an
//! error arrives without a cause or a tag. In production leave out the transport: Sentry's crate has one behind its
//! default features.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use sentry::{
    ClientOptions, Envelope, Level, Transport,
    protocol::{EnvelopeItem, Event},
};
use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, Outcome, Status, Tenure, Worker, WorkerBuilder,
    hooks::{AttemptEnded, JobDied},
    testing::TestTenure,
};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    order: i64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    const QUEUE: &'static str = "payments";
    const MAX_ATTEMPTS: u32 = 2;
}

#[derive(Debug, thiserror::Error)]
#[error("could not charge order {order}")]
struct ChargeError {
    order: i64,
    #[source]
    cause: std::io::Error,
}

async fn charge(job: Charge, _ctx: JobContext) -> Result<Outcome, JobError> {
    let cause = std::io::Error::other("the bank refused the connection");
    Err(ChargeError { order: job.order, cause }.into())
}

// ANCHOR: hook
/// Reports each failed attempt: a warning while the job is retried, an error once it is a dead letter.
fn report(end: &AttemptEnded) {
    let Some(error) = &end.error else { return };
    let tags = |scope: &mut sentry::Scope| {
        let is_last = end.again_in.is_none();
        scope.set_level(Some(if is_last { Level::Error } else { Level::Warning }));
        scope.set_tag("job", end.id);
        scope.set_tag("queue", &end.queue);
        scope.set_tag("kind", &end.kind);
        scope.set_tag("attempt", format!("{} of {}", end.attempt, end.max_attempts));
    };
    // Follows `source` from cause to cause: each is an exception of the event.
    sentry::with_scope(tags, || sentry::capture_error(error.as_error()));
}

/// Reports the dead letters that no handler has made, such as a job that has lost every worker.
fn report_dead(died: &JobDied) {
    use tenure::hooks::Category::{Lost, Malformed, Silent, TooLarge, UnknownKind};
    if matches!(died.category, Lost | Silent | UnknownKind | Malformed | TooLarge) {
        let text = format!("dead letter {} of {}/{}: {}", died.id, died.queue, died.kind, died.error);
        sentry::capture_message(&text, Level::Error);
    }
}

fn worker(tenure: &Tenure) -> WorkerBuilder {
    Worker::builder(tenure).handle(charge).on_attempt_end(report).on_dead(report_dead)
}
// ANCHOR_END: hook

/// A sink for events, in place of Sentry's servers.
#[derive(Default)]
struct Sink(Mutex<Vec<Event<'static>>>);

impl Transport for Sink {
    fn send_envelope(&self, envelope: Envelope) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(envelope.into_items().filter_map(|item| match item {
            EnvelopeItem::Event(event) => Some(*event),
            _ => None,
        }));
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let sink = Arc::new(Sink::default());
    // Before the worker starts: its hooks report to the client of the main thread.
    let options = ClientOptions::new().dsn("https://key@sentry.invalid/1").transport(sink.clone());
    let _sentry = sentry::init(options);
    let test = TestTenure::start().await;

    // A worker that stops waits for its hooks.
    let job = test.run(worker(&test), Charge { order: 17 }).await;
    assert_eq!((job.status, job.attempt), (Status::Failed, 2), "{job:?}");

    let events = std::mem::take(&mut *sink.0.lock().unwrap_or_else(PoisonError::into_inner));
    assert_eq!(events.len(), 2, "{events:#?}");
    for (event, (attempt, level)) in events.iter().zip([("1 of 2", Level::Warning), ("2 of 2", Level::Error)])
    {
        // Sentry shows the last one first: the error, then its cause.
        let chain: Vec<_> = event.exception.iter().map(|of| (&*of.ty, of.value.as_deref())).collect();
        assert_eq!(
            chain,
            [
                ("Custom", Some("the bank refused the connection")),
                ("ChargeError", Some("could not charge order 17")),
            ]
        );
        let id = job.id.to_string();
        for (name, value) in
            [("job", id.as_str()), ("queue", "payments"), ("kind", "charge"), ("attempt", attempt)]
        {
            assert_eq!(event.tags.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(event.level, level);
        println!("{level}, attempt {attempt}: {chain:?}");
    }
    Ok(())
}
