//! No bridge: without the feature `otel`, no layer listens, and the spans are those of `tracing` alone.

use tracing::Span;

use super::{Sending, TraceContext};
use crate::{
    config::TraceParent,
    job::{JobId, attempt::AttemptOutcome, claim::Claim},
};

pub(super) fn here() -> Option<TraceContext> {
    None
}

pub(super) fn send(_: &Span, _: Sending<'_>, given: Option<TraceContext>) -> Option<TraceContext> {
    given
}

pub(super) fn sent(_: &Span, _: JobId, _is_duplicate: bool) {}

pub(super) fn failed(_: &Span, _why: &'static str) {}

pub(super) fn process(_: &Span, _: &Claim, _worker: &str, _: TraceParent) {}

pub(super) fn ended(_: &Span, _: AttemptOutcome) {}
