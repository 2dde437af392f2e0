//! Trace: the spans of sending and of processing a job, and the W3C context that ties them.
//!
//! ```text
//! send {queue} ──► trace_context: the row, the ticket ──► process {queue}, one an attempt
//!      └──────────────◄── link, or parent ────────────────┘      └──◄── link ── the next attempt
//! ```
//!
//! A span of `tracing` costs next to nothing while nobody listens. What is logged inside one carries its fields, so
//! that a line about a running job needs no others to say which. Payloads, and errors, which may quote them, are never
//! a field.
//!
//! Claims and settles have no spans: each is one statement for whatever waits, of many traces at once, and a statement
//! has one parent. How long they take is in the metrics, and the time between two spans is what a job waited.
//!
//! Not here: the export (`otel`).

#[cfg(feature = "otel")]
mod bridge;

use std::fmt;

use tracing::{Span, field::Empty};

use crate::{
    config::TraceParent,
    job::{JobId, claim::Claim},
};

#[cfg(feature = "otel")]
pub(crate) use bridge::DerivedIds;

/// What a W3C `traceparent` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// `None`: it is none, and W3C has it ignored.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let [version, trace, span, flags] =
            [text.get(..2)?, text.get(3..35)?, text.get(36..52)?, text.get(53..55)?];
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let dashes = [2, 35, 52].into_iter().all(|at| text.as_bytes().get(at) == Some(&b'-'));
        let ends = match (version, text.as_bytes().get(55)) {
            ("ff", _) => false,
            (_, None) => true,
            // A later version may say more.
            (version, next) => version != "00" && next == Some(&b'-'),
        };
        if !ends || !dashes || ![version, trace, span, flags].into_iter().all(is_hex) {
            return None;
        }
        Some(Self {
            trace: u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?,
            span: u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// A `traceparent` as it goes on: `None` if it is none.
pub(crate) fn valid(text: &str) -> Option<String> {
    TraceContext::parse(text).map(|context| context.to_string())
}

/// What is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sending<'s> {
    /// `None`: to several.
    pub(crate) queue: Option<&'s str>,
    /// `None`: of several.
    pub(crate) kind: Option<&'s str>,
    pub(crate) jobs: usize,
    /// The caller's own `traceparent`.
    pub(crate) given: Option<&'s str>,
}

/// What filters know the spans by.
const TARGET: &str = "tenure::trace";

/// The span of sending jobs, and the `traceparent` that they carry: of this span if somebody listens, else the
/// caller's.
pub(crate) fn send(sending: Sending<'_>) -> (Span, Option<String>) {
    let Sending { queue, kind, jobs, given } = sending;
    let span = tracing::info_span!(
        target: TARGET,
        "send",
        queue,
        kind,
        jobs,
        job = Empty,
        duplicate = Empty,
        otel.name = Empty,
        otel.kind = Empty,
    );
    let given = given.and_then(TraceContext::parse);
    #[cfg(feature = "otel")]
    let given = bridge::send(&span, sending, given);
    (span, given.map(|context| context.to_string()))
}

/// Notes what has come of sending a job.
pub(crate) fn sent(span: &Span, job: JobId, is_duplicate: bool) {
    if span.is_disabled() {
        return;
    }
    span.record("job", tracing::field::display(job));
    span.record("duplicate", is_duplicate);
    #[cfg(feature = "otel")]
    bridge::sent(span, job, is_duplicate);
}

/// Notes that nothing was sent.
pub(crate) fn not_sent(span: &Span) {
    #[cfg(feature = "otel")]
    bridge::failed(span, "not_enqueued");
    #[cfg(not(feature = "otel"))]
    let _: &Span = span;
}

/// The span of one attempt.
pub(crate) fn process(claim: &Claim, worker: &str, parent: TraceParent) -> Span {
    // A span that a filter leaves out takes its fields with it, and a warning about a job would not say which: so it
    // has the level that filters leave out last, whatever it is about.
    let span = tracing::error_span!(
        target: TARGET,
        parent: None,
        "process",
        queue = claim.queue,
        kind = claim.kind,
        job = %claim.key.job,
        token = claim.key.token.0,
        attempt = claim.attempt,
        worker,
        outcome = Empty,
        otel.name = Empty,
        otel.kind = Empty,
    );
    #[cfg(feature = "otel")]
    bridge::process(&span, claim, worker, parent);
    #[cfg(not(feature = "otel"))]
    let _: TraceParent = parent;
    span
}

/// Notes how an attempt ended, in the span we are in.
pub(crate) fn ended(outcome: &'static str) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("outcome", outcome);
    #[cfg(feature = "otel")]
    bridge::ended(&span, outcome);
}

/// The `traceparent` of the span we are in, for a program that is started here. `None`: nobody listens.
#[cfg(all(feature = "cli", feature = "otel"))]
pub(crate) fn here() -> Option<String> {
    bridge::here().map(|context| context.to_string())
}

/// Nobody listens.
#[cfg(all(feature = "cli", not(feature = "otel")))]
pub(crate) fn here() -> Option<String> {
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_context_comes_back_as_it_was() {
        assert_eq!(valid(VALID).as_deref(), Some(VALID));
        assert_eq!(valid(&format!(" {VALID}\n")).as_deref(), Some(VALID));
        let unsampled = VALID.replace("-01", "-00");
        assert_eq!(valid(&unsampled), Some(unsampled));
    }

    #[test]
    fn of_a_later_version_the_part_that_is_known_is_taken() {
        for later in [VALID.replacen("00", "cc", 1), format!("{}-what-else", VALID.replacen("00", "01", 1))] {
            assert_eq!(valid(&later).unwrap(), VALID, "{later}");
        }
    }

    #[test]
    fn what_is_no_context_is_none() {
        let upper = VALID.to_uppercase();
        let longer = format!("{VALID}-00");
        let wrong = [
            "",
            "00",
            "garbage",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-+1",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c80319ü-b7ad6b716920333-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
            upper.as_str(),
            longer.as_str(),
        ];
        for text in wrong {
            assert_eq!(valid(text), None, "{text:?}");
        }
    }
}
