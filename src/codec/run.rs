//! Sealing: opens what a claimed job carries before its handler sees it, and seals what the handler leaves.
//!
//! A worker that lacks a key or a codec puts the job off, uncharged, for one that has it. What cannot be opened
//! otherwise fails the attempt.
//!
//! Not here: the form of a sealed value (`codec::job`).

use std::time::Duration;

use serde_json::Value;

use super::job::{CodecError, Codecs, Part, misfit};
use crate::{
    job::{JobError, Outcome, causes, claim::Claim, unstorable, unstorable_text},
    observe::{metrics, repeats},
    run::{
        context::JobContext,
        handlers::{Ended, PayloadError},
    },
};

/// How long a job waits that this worker cannot open: a worker with the key may be about to start. Twice as long each
/// time, up to five minutes: a hundred thousand such jobs must leave room for others.
const WAITS: Duration = Duration::from_secs(30);
const WAITS_MAX: Duration = Duration::from_mins(5);

/// A value that was not opened or sealed.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be {done}: {error}")]
struct NotDone {
    what: String,
    done: &'static str,
    error: CodecError,
}

/// Opens the payload and the checkpoint of a job.
pub(crate) fn open_claim(codecs: &Codecs, claim: &mut Claim) -> Result<(), JobError> {
    let payload = codecs.open_of(&claim.kind, Part::Payload, &claim.payload).map_err(PayloadError::Closed)?;
    let checkpoint = claim.checkpoint.as_deref();
    let checkpoint = checkpoint.map(|text| codecs.open_of(&claim.kind, Part::Checkpoint, text)).transpose();
    let checkpoint = checkpoint.map_err(|error| not_opened("the checkpoint", error))?;
    if let Some(payload) = payload {
        claim.payload = payload;
    }
    if let Some(checkpoint) = checkpoint.flatten() {
        claim.checkpoint = Some(checkpoint);
    }
    Ok(())
}

fn not_opened(what: impl Into<String>, error: CodecError) -> JobError {
    NotDone { what: what.into(), done: "opened", error }.into()
}

/// Returns why this worker cannot run the job, and how long it is put off for another one.
pub(crate) fn put_off(error: &JobError, claim: &Claim) -> Option<(String, Duration)> {
    let why = lacks(error)?;
    // The claims that were not charged: most are those that ended here.
    let before = claim.key.token.0.unsigned_abs().saturating_sub(claim.attempt.into());
    let wait = WAITS.saturating_mul(1 << before.min(4)).min(WAITS_MAX);
    Some((why, wait.mul_f64(rand::random_range(0.75..1.25))))
}

/// Returns what this process lacks to open a value, if that is why the attempt has failed.
fn lacks(error: &JobError) -> Option<String> {
    let of_codec = causes(&*error.source).find_map(|cause| match cause.downcast_ref::<NotDone>() {
        Some(NotDone { error, .. }) => Some(error),
        None => match cause.downcast_ref::<PayloadError>() {
            Some(PayloadError::Closed(error)) => Some(error),
            _ => None,
        },
    })?;
    of_codec.is_of_this_process().then(|| error.to_string())
}

/// Says that this worker has put a job off.
pub(crate) fn say_put_off(kind: &str, ended: &Ended) {
    if let Ended::Returned(Err(error)) = ended
        && let Some(why) = lacks(error)
    {
        metrics::lacked_key(kind);
        if let Some(left_out) = repeats::tell("sealed", &why) {
            tracing::warn!(
                error = why,
                left_out,
                "this worker cannot open what the job carries; the job waits for a worker that can"
            );
        }
    }
}

/// Seals the output of a job that its handler has not completed itself.
pub(crate) fn seal_output(codecs: &Codecs, kind: &str, ended: Ended) -> Ended {
    let json = match ended {
        Ended::Returned(Ok(Outcome::Done(Some(ref output))))
            if codecs.has(kind) && unstorable(output).is_none() =>
        {
            output.to_string()
        }
        Ended::Returned(Ok(Outcome::DoneJson(ref json)))
            if codecs.has(kind) && unstorable_text(json).is_none() =>
        {
            json.clone()
        }
        ended => return ended,
    };
    Ended::Returned(sealed(codecs, kind, Part::Output, "the output", json).map(Outcome::DoneJson))
}

fn sealed(codecs: &Codecs, kind: &str, part: Part, what: &str, json: String) -> Result<String, JobError> {
    // Another process could do no better: the handler has run.
    let failed = |error: CodecError| CodecError::failed(error.to_string());
    let sealed = codecs.seal(kind, part, json).map_err(failed);
    sealed.map_err(|error| NotDone { what: what.into(), done: "sealed", error }.into())
}

impl<S> JobContext<S> {
    /// Seals what this job leaves. `what` is for an error.
    pub(crate) fn seal(&self, part: Part, what: &str, json: String) -> Result<String, JobError> {
        sealed(&self.codecs, &self.job.claim.kind, part, what, json)
    }

    /// Opens what an earlier attempt of this job left.
    pub(crate) fn open(&self, part: Part, what: &str, json: String) -> Result<String, JobError> {
        let opened = self.codecs.open_of(&self.job.claim.kind, part, &json);
        Ok(opened.map_err(|error| not_opened(what, error))?.unwrap_or(json))
    }

    /// Opens the output of another job.
    pub(crate) fn open_output(&self, what: &str, json: String) -> Result<String, JobError> {
        self.codecs.open(Part::Output, json).map_err(|error| not_opened(what, error))
    }

    /// [`JobContext::seal`] for an output that is a value.
    pub(crate) fn seal_value(&self, output: &Value) -> Result<String, JobError> {
        self.seal(Part::Output, "the output", output.to_string())
    }

    /// The error for a payload that does not fit the type of the handler.
    pub(crate) fn misfits(&self, error: &serde_json::Error) -> JobError {
        PayloadError::Misfit(self.misfit(error)).into()
    }

    /// What is wrong with JSON of this job that does not fit a type.
    pub(crate) fn misfit(&self, error: &serde_json::Error) -> String {
        misfit(error, self.codecs.has(&self.job.claim.kind))
    }
}
