//! Steps: what a worker's handler calls once in the life of its job, and what it waits for. Each request is the call of
//! a Rust handler, made under the receipt's claim.

use std::{
    future::Future,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{
    ENTRIES_MAX, Gateway,
    produce::job_in,
    protocol::{Code, Fields, Refusal, is_plain},
    receipt::Receipt,
    settle::WRITTEN_WITHIN,
    take::worker_of,
};
use crate::{
    codec::job::Codecs,
    job::{JobError, check_key, claim::ClaimKey, sizes::stored_bytes},
    proof::fault,
    run::{
        context::{JobContext, WITHOUT_END},
        running::Steps,
    },
};

/// How many ends an answer to `outputs` reads at first, and at most at once.
const ENDS_AT_FIRST: i64 = 16;
const ENDS_MAX: i64 = 1_000;
/// The bytes of an answer that are not ends, and those of an end that are not its output.
const OVERHEAD: usize = 4_096;
const END: usize = 100;
const LOST: &str = r#"{"lost":true}"#;

impl Gateway {
    /// Answers a call of a handler.
    pub(super) async fn step(
        &self,
        name: &str,
        queue: &str,
        request: &Fields<'_>,
    ) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let receipt = self.signer().await?.of_worker(&id, request)?;
        let of: String = request.value("name", "the name of the call, a text")?;
        check_name("name", &of)?;
        let context = self.context(&receipt);
        let answered = match name {
            "recorded" => within(self.recorded(&context, &of)).await,
            "step" => within(self.record(&context, &of, request)).await,
            "sleep" => {
                let lasts = request.duration("lasts_ms")?;
                let lasts =
                    lasts.ok_or_else(|| request.wrong("lasts_ms", "a whole number of milliseconds"))?;
                within(sleep(&context, &of, lasts)).await
            }
            "event" => {
                let patience = request.duration("within_ms")?;
                within(self.event(&context, &of, patience)).await
            }
            _ => {
                let jobs = request.objects("jobs", ENTRIES_MAX)?;
                let jobs =
                    jobs.iter().map(|job| job_in(&receipt.queue, job)).collect::<Result<Vec<_>, _>>()?;
                within(all(&context, &of, jobs)).await
            }
        }?;
        // These may only have read, what a later attempt has recorded, too.
        if matches!(name, "recorded" | "sleep" | "all") && self.is_lost(&receipt).await? {
            return Ok(LOST.to_owned());
        }
        if answered != LOST && name != "recorded" {
            fault::point("gateway_stepped");
            self.extend(&receipt).await;
        }
        Ok(answered)
    }

    /// Whether the job of a receipt is not its worker's any more. Ask after the answer is read.
    async fn is_lost(&self, receipt: &Receipt) -> Result<bool, Refusal> {
        let mine = self.0.store.still_mine(&[receipt.key()]).await?;
        Ok(mine.first().copied().flatten().is_none())
    }

    /// The calls of the attempt of a receipt.
    fn context(&self, receipt: &Receipt) -> JobContext {
        let config = self.0.tenure.config();
        JobContext {
            job: Arc::new(self.running(receipt)),
            state: Arc::new(()),
            store: self.0.store.clone(),
            heartbeat: self.0.heartbeat.clone(),
            recorder: self.0.recorder.clone(),
            checkpoint_bytes_max: config.checkpoint_bytes_max,
            payload_bytes_max: config.payload_bytes_max,
            // Its workers seal and open themselves.
            codecs: Codecs::new(),
        }
    }

    async fn record(&self, context: &JobContext, name: &str, request: &Fields<'_>) -> Result<String, Called> {
        let took = request.duration("took_ms")?.unwrap_or_default();
        let result = request.raw("result").unwrap_or_else(|| "null".to_owned());
        let (bytes, most) = (stored_bytes(&result), self.room_of_answer());
        if bytes > most || !is_plain(&result) {
            return Err(Refusal::new(
                Code::Refused,
                format!(
                    "the result of step {name:?} could not be handed to a later attempt: it must have at most {most} \
                     bytes as Postgres writes it, at most 100 levels, and no number of more than 1000 digits; it has \
                     {bytes} bytes. Return the place of what is stored elsewhere"
                ),
            )
            .into());
        }
        let _turn = self.0.jobs.turn(context.id()).await;
        context.record_step(name, &result, took).await?;
        Ok(r#"{"recorded":true}"#.to_owned())
    }

    /// Answers with how the jobs of an `all`, or those that the job follows, have ended.
    pub(super) async fn outputs(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let receipt = self.signer().await?.of_worker(&id, request)?;
        let name: Option<String> = request.optional("name", "the name of an `all`")?;
        name.as_deref().map_or(Ok(()), |name| check_name("name", name))?;
        let after: i64 = request.optional("after", "an integer, as `next` has it")?.unwrap_or_default();
        let most = self.room_of_answer();
        let (mut room, mut read, mut at_once) = (most, 0, ENDS_AT_FIRST);
        let (mut texts, mut next) = (Vec::new(), after);
        let has_more = 'all: loop {
            let ends = self.0.store.outputs(receipt.job, name.as_deref(), next, at_once).await?;
            let is_last = i64::try_from(ends.len()).is_ok_and(|n| n < at_once);
            for end in ends {
                let output = end.output.as_deref().unwrap_or("null");
                read += output.len();
                // A job that does not need it goes on.
                let is_omitted = !is_plain(output) || output.len() + END > most;
                let output = if is_omitted { r#"null,"output_omitted":true"# } else { output };
                if output.len() + END > room || texts.len() == ENTRIES_MAX {
                    break 'all true;
                }
                room -= output.len() + END;
                let (id, completed) = (end.id, end.is_completed);
                texts.push(format!(r#"{{"job":"{id}","completed":{completed},"output":{output}}}"#));
                next = end.n;
            }
            if is_last {
                break false;
            }
            at_once = ends_with_room(room, read / texts.len());
        };
        if self.is_lost(&receipt).await? {
            return Ok(LOST.to_owned());
        }
        let next = if has_more { format!(r#","next":{next}"#) } else { String::new() };
        Ok(format!(r#"{{"ends":[{}]{next}}}"#, texts.join(",")))
    }

    /// The bytes of an answer that its values may have.
    fn room_of_answer(&self) -> usize {
        self.0.nats.message_bytes_max().saturating_sub(OVERHEAD)
    }

    /// Checks that a value can be handed out.
    fn check_value(&self, what: &str, name: &str, value: &str) -> Result<(), Refusal> {
        if is_plain(value) && value.len() <= self.room_of_answer() {
            return Ok(());
        }
        let bytes = value.len();
        let why =
            format!("{what} {name:?} ({bytes} bytes) fits into no message, or not every program reads it");
        Err(Refusal::new(Code::Refused, why))
    }

    async fn recorded(&self, context: &JobContext, name: &str) -> Result<String, Called> {
        let Some(result) = context.recorded_alone(name).await? else {
            return Ok(r#"{"recorded":false}"#.to_owned());
        };
        self.check_value("the result of step", name, &result)?;
        Ok(format!(r#"{{"recorded":true,"result":{result}}}"#))
    }

    async fn event(
        &self,
        context: &JobContext,
        name: &str,
        patience: Option<Duration>,
    ) -> Result<String, Called> {
        Ok(match suspended(context.event_of(name, patience).await)? {
            Ok(Some(payload)) => {
                self.check_value("the payload of event", name, &payload)?;
                format!(r#"{{"came":true,"payload":{payload}}}"#)
            }
            Ok(None) => r#"{"came":false,"late":true}"#.to_owned(),
            Err(left) if left < WITHOUT_END => {
                format!(r#"{{"came":false,"left_ms":{}}}"#, whole_millis(left))
            }
            Err(_) => r#"{"came":false}"#.to_owned(),
        })
    }

    /// Tells of the recorded steps that an attempt has not called, though it has completed the job. Its worker does not
    /// wait for this.
    pub(super) fn warn_of_uncalled(&self, attempt: ClaimKey, called: Vec<String>) {
        // Before the first attempt there was nothing to record.
        if attempt.token.0 == 1 {
            return;
        }
        let store = self.0.store.clone();
        self.0.store.spawn(async move {
            let Ok(recorded) = store.steps(attempt.job, None).await else { return };
            let steps = Steps::default();
            steps.called.lock().unwrap_or_else(PoisonError::into_inner).extend(called);
            steps.recorded.set((Instant::now(), recorded.into_iter().collect())).ok();
            tracing::info_span!("job", job = %attempt.job).in_scope(|| steps.warn_of_uncalled());
        });
    }
}

/// Why a call was not answered with what it asked for.
enum Called {
    Failed(JobError),
    Refused(Refusal),
}

impl From<JobError> for Called {
    fn from(error: JobError) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for Called {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Waits for a call of the context, which goes on for as long as Postgres does not answer.
async fn within(call: impl Future<Output = Result<String, Called>>) -> Result<String, Refusal> {
    match timeout(WRITTEN_WITHIN, call).await {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(Called::Refused(refusal))) => Err(refusal),
        Ok(Err(Called::Failed(error))) if error.is_lost() => Ok(LOST.to_owned()),
        Ok(Err(Called::Failed(error))) if error.is_permanent() => {
            Err(Refusal::new(Code::Refused, error.text()))
        }
        Ok(Err(Called::Failed(error))) => Err(Refusal::new(Code::Unavailable, error.text())),
        Err(_) => Err(Refusal::new(Code::Unavailable, "Postgres did not answer the call in time")),
    }
}

async fn sleep(context: &JobContext, name: &str, lasts: Duration) -> Result<String, Called> {
    let left = context.sleep_alone(name, lasts).await?;
    Ok(format!(r#"{{"left_ms":{}}}"#, whole_millis(left)))
}

/// A rest of less than a millisecond is no reason to go on.
fn whole_millis(left: Duration) -> u128 {
    left.as_nanos().div_ceil(1_000_000)
}

/// Checks a field with the name of a call.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), Refusal> {
    check_key(name)
        .map_err(|rule| Refusal::new(Code::BadRequest, format!("\"{field}\" {rule}, but is {name:?}")))
}

async fn all(context: &JobContext, name: &str, jobs: Vec<crate::JobRequest>) -> Result<String, Called> {
    let ended = suspended(context.all_end(name, jobs).await)?.is_ok();
    Ok(format!(r#"{{"ended":{ended}}}"#))
}

/// Returns about as many ends as have room if each is as long as those so far: Postgres reads each output whole.
fn ends_with_room(room: usize, bytes_each: usize) -> i64 {
    i64::try_from(room / (bytes_each + END)).unwrap_or(1).clamp(1, ENDS_MAX)
}

/// Returns how long the job waits, if that is what the error says.
fn suspended<T>(called: Result<T, JobError>) -> Result<Result<T, Duration>, JobError> {
    match called {
        Ok(value) => Ok(Ok(value)),
        Err(error) => error.suspended().map_or(Err(error), |left| Ok(Err(left))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_ends_are_read_as_an_answer_has_room_for() {
        assert_eq!(ends_with_room(1_000_000, 500_000), 1);
        assert_eq!(ends_with_room(1_000_000, 9_900), 100);
        assert_eq!(ends_with_room(1_000_000, 0), ENDS_MAX);
        assert_eq!(ends_with_room(10, 500_000), 1, "the first that has no room begins the next answer");
    }
}
