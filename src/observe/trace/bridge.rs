//! Bridge: attributes, parents and links of spans for OpenTelemetry, if its layer (`tracing-opentelemetry`) is there.
//!
//! The names follow the conventions for messaging. They are attributes of the span, and not fields of `tracing`: a log
//! line has `job`, and not `tenure.job.id` as well.
//!
//! An attempt links to the one before it, which ran elsewhere, and may have died with its worker. So that no row has to
//! store ids of spans, the ids of an attempt's root span follow from its job and its token ([`DerivedIds`]). If another
//! generator makes the ids, which shows in the span itself, that link is left out.

use std::cell::Cell;

use opentelemetry::{
    Context, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, Status, TraceContextExt, TraceState},
};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use sha2::{Digest, Sha256};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{Sending, TraceContext};
use crate::{
    config::TraceParent,
    job::{JobId, attempt::AttemptOutcome, claim::Claim},
};

impl From<TraceContext> for SpanContext {
    fn from(context: TraceContext) -> Self {
        let TraceContext { trace, span, flags } = context;
        Self::new(TraceId::from(trace), SpanId::from(span), TraceFlags::new(flags), true, TraceState::NONE)
    }
}

/// Returns the span of a context, if it has one.
fn span_of(context: &Context) -> Option<TraceContext> {
    let span = context.span().span_context().clone();
    span.is_valid().then(|| TraceContext {
        trace: u128::from_be_bytes(span.trace_id().to_bytes()),
        span: u64::from_be_bytes(span.span_id().to_bytes()),
        flags: span.trace_flags().to_u8(),
    })
}

fn under(parent: TraceContext) -> Context {
    Context::new().with_remote_span_context(parent.into())
}

/// Returns the current context: of a span of `tracing`, or of one that the program began without it.
fn around() -> Context {
    let context = Span::current().context();
    if context.span().span_context().is_valid() { context } else { Context::current() }
}

pub(super) fn here() -> Option<TraceContext> {
    span_of(&around())
}

/// Returns the context that the jobs carry: this span's, or, if no layer listens to it, its parent's.
pub(super) fn send(span: &Span, sending: Sending<'_>, given: Option<TraceContext>) -> Option<TraceContext> {
    let parent = given.map_or_else(around, under);
    // Fails if no layer listens to this span. Unless `given`, the parent is the span's own.
    if span.set_parent(parent.clone()).is_err() {
        return span_of(&parent);
    }
    let to = sending.queue.unwrap_or("(several)");
    span.record("otel.kind", "producer");
    span.record("otel.name", format!("send {to}").as_str());
    span.set_attribute("messaging.system", "nats");
    span.set_attribute("messaging.operation.type", "send");
    span.set_attribute("messaging.operation.name", "send");
    if let Some(queue) = sending.queue {
        span.set_attribute("messaging.destination.name", queue.to_owned());
    }
    if let Some(kind) = sending.kind {
        span.set_attribute("tenure.job.kind", kind.to_owned());
    }
    if sending.jobs > 1 {
        span.set_attribute("messaging.batch.message_count", i64::try_from(sending.jobs).unwrap_or(i64::MAX));
    }
    // This begins the span; its parent and name stay from here on.
    span_of(&span.context()).or_else(|| span_of(&parent))
}

pub(super) fn sent(span: &Span, job: JobId, is_duplicate: bool) {
    span.set_attribute("tenure.job.id", job.to_string());
    span.set_attribute("tenure.duplicate", is_duplicate);
}

pub(super) fn failed(span: &Span, why: &'static str) {
    span.set_attribute("error.type", why);
    span.set_status(Status::error(why));
}

pub(super) fn process(span: &Span, claim: &Claim, worker: &str, parent: TraceParent) {
    let created = claim.trace_context.as_deref().and_then(TraceContext::parse);
    let (job, token) = (claim.key.job, claim.key.token.0);
    // Only for the first claim: a retry may come hours later, when the trace is long complete.
    let child_of = created.filter(|_| parent == TraceParent::Child);
    let root = child_of.filter(|_| token == 1).map_or_else(Context::new, under);
    if span.set_parent(root).is_err() {
        return;
    }
    span.record("otel.kind", "consumer");
    span.record("otel.name", format!("process {}", claim.queue).as_str());
    for (name, value) in [
        ("messaging.system", "nats"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
        ("messaging.destination.name", claim.queue.as_str()),
        ("tenure.job.kind", claim.kind.as_str()),
        ("tenure.worker", worker),
    ] {
        span.set_attribute(name, value.to_owned());
    }
    span.set_attribute("tenure.job.id", job.to_string());
    span.set_attribute("tenure.attempt", i64::from(claim.attempt));
    span.set_attribute("tenure.token", token);
    // Also if the sender is the parent: the conventions ask for the link, and allow the parent besides. Before the span
    // begins: a sampler may look at the links.
    if let Some(created) = created {
        span.add_link(created.into());
    }
    let own = Ids::of(job, token);
    let began = own.within(|| span_of(&span.context()));
    if let Some(began) = began.filter(|began| began.span == own.span && token > 1) {
        let before = Ids::of(job, token - 1);
        let trace = child_of.filter(|_| token == 2).map_or(before.trace, |created| created.trace);
        span.add_link(TraceContext { trace, span: before.span, flags: began.flags }.into());
    }
}

pub(super) fn ended(span: &Span, outcome: AttemptOutcome) {
    span.set_attribute("tenure.outcome", outcome.as_str());
    if matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::Retried | AttemptOutcome::Lost) {
        failed(span, outcome.as_str());
    }
}

/// The ids of an attempt's root span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ids {
    trace: u128,
    span: u64,
}

thread_local! {
    /// The ids of the span that is just beginning on this thread.
    static NEXT: Cell<Option<Ids>> = const { Cell::new(None) };
}

impl Ids {
    fn of(job: JobId, token: i64) -> Self {
        let hash = Sha256::digest(format!("tenure attempt {job} {token}").as_bytes());
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&hash[..16]);
        span.copy_from_slice(&hash[16..24]);
        Self { trace: u128::from_be_bytes(trace), span: u64::from_be_bytes(span) }
    }

    /// Gives these ids to the span that `begin` begins, if [`DerivedIds`] makes them.
    fn within<T>(self, begin: impl FnOnce() -> T) -> T {
        NEXT.set(Some(self));
        let value = begin();
        NEXT.set(None);
        value
    }
}

/// A generator of random ids, except for attempts.
#[derive(Debug, Default)]
pub(crate) struct DerivedIds(RandomIdGenerator);

impl IdGenerator for DerivedIds {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().map_or_else(|| self.0.new_trace_id(), |ids| TraceId::from(ids.trace))
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.get().map_or_else(|| self.0.new_span_id(), |ids| SpanId::from(ids.span))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::{Duration, Instant};

    use opentelemetry::trace::{SpanKind, TracerProvider};
    use opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{SdkTracerProvider, SpanData, SpanExporter},
    };
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::job::claim::{ClaimKey, FencingToken};

    /// Keeps the spans that end.
    #[derive(Debug, Clone, Default)]
    struct Kept(std::sync::Arc<std::sync::Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    fn kept(derived: bool, work: impl FnOnce()) -> Vec<SpanData> {
        let kept = Kept::default();
        let mut provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone());
        if derived {
            provider = provider.with_id_generator(DerivedIds::default());
        }
        let provider = provider.build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        let spans = kept.0.lock().unwrap();
        spans.clone()
    }

    fn claim(job: JobId, token: i64, trace_context: Option<String>) -> Claim {
        Claim {
            lane: None,
            group: None,
            losses: 0,
            key: ClaimKey { job, token: FencingToken(token), claim: uuid::Uuid::nil() },
            queue: "q".into(),
            kind: "k".into(),
            payload: "\"secret\"".into(),
            attempt: 1,
            max_attempts: 5,
            waited: Duration::ZERO,
            after_reset: false,
            checkpoint: None,
            trace_context,
            dispatch: 1,
            sent_at: Instant::now(),
        }
    }

    fn spans(derived: bool, parent: TraceParent) -> Vec<SpanData> {
        kept(derived, || {
            let sending = Sending { queue: Some("q"), kind: Some("k"), jobs: 1, given: None };
            let (send, context) = super::super::send(sending);
            drop(send);
            let job = JobId::generate();
            for token in [1, 2, 3] {
                drop(super::super::process(&claim(job, token, context.clone()), "w", parent));
            }
        })
    }

    fn links(span: &SpanData) -> Vec<SpanId> {
        span.links.iter().map(|link| link.span_context.span_id()).collect()
    }

    #[test]
    fn each_attempt_is_a_separate_trace_linked_to_the_sender_and_to_the_attempt_before() {
        let spans = spans(true, TraceParent::Link);
        let [send, first, second, third] = &spans[..] else { panic!("{spans:#?}") };
        assert_eq!((send.name.as_ref(), &send.span_kind), ("send q", &SpanKind::Producer));
        assert_eq!((first.name.as_ref(), &first.span_kind), ("process q", &SpanKind::Consumer));
        let id = |span: &SpanData| span.span_context.span_id();
        assert_eq!(links(first), [id(send)]);
        assert_eq!(links(second), [id(send), id(first)]);
        assert_eq!(links(third), [id(send), id(second)]);
        assert_eq!(second.links[1].span_context.trace_id(), first.span_context.trace_id());
        assert_ne!(first.span_context.trace_id(), send.span_context.trace_id());
        assert_eq!(first.parent_span_id, SpanId::INVALID);
    }

    #[test]
    fn the_first_attempt_may_be_a_child_and_its_retry_is_linked_to_it() {
        let spans = spans(true, TraceParent::Child);
        let [send, first, second, third] = &spans[..] else { panic!("{spans:#?}") };
        let id = |span: &SpanData| span.span_context.span_id();
        assert_eq!((first.parent_span_id, links(first)), (id(send), vec![id(send)]));
        assert_eq!(first.span_context.trace_id(), send.span_context.trace_id());
        assert_eq!(links(second), [id(send), id(first)]);
        assert_eq!(second.links[1].span_context.trace_id(), first.span_context.trace_id());
        assert_eq!(third.links[1].span_context.trace_id(), second.span_context.trace_id());
    }

    #[test]
    fn with_ids_of_another_generator_only_the_sender_is_linked() {
        let spans = spans(false, TraceParent::Link);
        let [send, _, second, _] = &spans[..] else { panic!("{spans:#?}") };
        assert_eq!(links(second), [send.span_context.span_id()]);
        assert!(!format!("{spans:?}").contains("secret"));
    }

    #[test]
    fn a_given_context_goes_on_with_and_without_a_layer() {
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let sending = Sending { queue: Some("q"), kind: Some("k"), jobs: 1, given: Some(given) };
        assert_eq!(super::super::send(sending).1.as_deref(), Some(given));
        let spans = kept(true, || {
            let carried = super::super::send(sending).1.unwrap();
            assert!(
                carried.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && carried != given,
                "{carried}"
            );
        });
        assert_eq!(spans[0].parent_span_id.to_string(), "b7ad6b7169203331");
    }
}
