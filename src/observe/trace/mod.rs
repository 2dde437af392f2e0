//! Trace: the spans of sending and of processing a job, and the W3C context that links them.
//!
//! ```text
//! send {queue} ──► trace_context: the row, the ticket ──► process {queue}, one an attempt
//!      └──────────────◄── link, or parent ────────────────┘      └──◄── link ── the next attempt
//! ```
//!
//! A span of `tracing` costs next to nothing without a subscriber. A log line inside a span carries the span's fields,
//! so that a line about a running job names the job. Payloads, and errors, which may quote them, are never a field.
//!
//! Claims and settles have no spans: each is one statement for many jobs of many traces, and a span has one parent. The
//! metrics say how long they take, and the time between two spans is how long a job waited.
//!
//! Not here: the export (`otel`).

#[cfg_attr(not(feature = "otel"), path = "no_bridge.rs")]
pub(super) mod bridge;

use std::fmt;

use tracing::{Span, field::Empty};

use crate::{
    config::TraceParent,
    job::{JobId, attempt::AttemptOutcome, claim::Claim},
};

/// The content of a W3C `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// Parses a `traceparent`. `None`: the text is not valid; W3C says to ignore it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let [version, trace, span, flags] =
            [text.get(..2)?, text.get(3..35)?, text.get(36..52)?, text.get(53..55)?];
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let dashes = [2, 35, 52].into_iter().all(|at| text.as_bytes().get(at) == Some(&b'-'));
        let ends = match (version, text.as_bytes().get(55)) {
            ("ff", _) => false,
            (_, None) => true,
            // A later version may add fields.
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

/// Returns a `traceparent` as tenure passes it on; `None` if it is not valid.
pub(crate) fn valid(text: &str) -> Option<String> {
    TraceContext::parse(text).map(|context| context.to_string())
}

/// The jobs that are about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sending<'s> {
    /// `None`: several queues.
    pub(crate) queue: Option<&'s str>,
    /// `None`: several kinds.
    pub(crate) kind: Option<&'s str>,
    pub(crate) jobs: usize,
    /// The caller's own `traceparent`.
    pub(crate) given: Option<&'s str>,
}

/// The target of the spans, for filters.
const TARGET: &str = "tenure::trace";

/// Returns the span of sending jobs, and the `traceparent` that the jobs carry: this span's if a layer listens, else
/// the caller's.
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
    let given = bridge::send(&span, sending, given);
    (span, given.map(|context| context.to_string()))
}

/// Records the result of sending a job.
pub(crate) fn sent(span: &Span, job: JobId, is_duplicate: bool) {
    if span.is_disabled() {
        return;
    }
    span.record("job", tracing::field::display(job));
    span.record("duplicate", is_duplicate);
    bridge::sent(span, job, is_duplicate);
}

/// Records that sending failed.
pub(crate) fn not_sent(span: &Span) {
    bridge::failed(span, "not_enqueued");
}

/// Returns the span of one attempt.
pub(crate) fn process(claim: &Claim, worker: &str, parent: TraceParent) -> Span {
    // A filter that drops a span drops its fields, and a warning would not name its job: so the span has the level that
    // filters drop last.
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
    bridge::process(&span, claim, worker, parent);
    span
}

/// Records the outcome of an attempt in the current span.
pub(crate) fn ended(outcome: AttemptOutcome) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("outcome", outcome.as_str());
    bridge::ended(&span, outcome);
}

/// Returns the `traceparent` of the current span, for a program that is started here. `None`: no layer listens.
pub fn here() -> Option<String> {
    bridge::here().map(|context| context.to_string())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_context_is_kept_as_it_is() {
        assert_eq!(valid(VALID).as_deref(), Some(VALID));
        assert_eq!(valid(&format!(" {VALID}\n")).as_deref(), Some(VALID));
        let unsampled = VALID.replace("-01", "-00");
        assert_eq!(valid(&unsampled), Some(unsampled));
    }

    #[test]
    fn the_known_part_of_a_later_version_is_kept() {
        for later in [VALID.replacen("00", "cc", 1), format!("{}-what-else", VALID.replacen("00", "01", 1))] {
            assert_eq!(valid(&later).unwrap(), VALID, "{later}");
        }
    }

    #[test]
    fn an_invalid_context_is_ignored() {
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
