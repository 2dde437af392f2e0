//! Steps: what a worker's handler calls once in the life of its job, and what it waits for. Each request is the call of
//! a Rust handler, made under the receipt's claim.

use std::{future::Future, sync::Arc, time::Duration};

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
    job::JobError,
    proof::fault,
    run::{
        context::{JobContext, WITHOUT_END},
        running::RunningJob,
    },
};

/// The most ends of one answer to `outputs`.
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
        let context = self.context(&receipt);
        let answered = match name {
            "recorded" => within(recorded(&context, &of)).await,
            "step" => within(self.record(&context, &of, request)).await,
            "sleep" => {
                let lasts = request.duration("lasts_ms")?;
                let lasts =
                    lasts.ok_or_else(|| request.wrong("lasts_ms", "a whole number of milliseconds"))?;
                within(sleep(&context, &of, lasts)).await
            }
            "event" => {
                let patience = request.duration("within_ms")?;
                within(event(&context, &of, patience)).await
            }
            _ => {
                let jobs = request.objects("jobs", ENTRIES_MAX)?;
                let jobs =
                    jobs.iter().map(|job| job_in(&receipt.queue, job)).collect::<Result<Vec<_>, _>>()?;
                within(all(&context, &of, jobs)).await
            }
        }?;
        if answered != LOST {
            fault::point("gateway_stepped");
            self.extend(&receipt).await;
        }
        Ok(answered)
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
        }
    }

    async fn record(&self, context: &JobContext, name: &str, request: &Fields<'_>) -> Result<String, Called> {
        let took = request.duration("took_ms")?.unwrap_or_default();
        let result = request.raw("result").unwrap_or_else(|| "null".to_owned());
        let _turn = self.0.jobs.turn(context.id()).await;
        context.record_step(name, &result, took).await?;
        Ok(r#"{"recorded":true}"#.to_owned())
    }

    /// Answers with how the jobs of an `all`, or those that the job follows, have ended.
    pub(super) async fn outputs(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let job = self.signer().await?.of_worker(&id, request)?.job;
        let name: Option<String> = request.optional("name", "the name of an `all`")?;
        let after: i64 = request.optional("after", "an integer, as `next` has it")?.unwrap_or_default();
        let ends = self.0.store.outputs(job, name.as_deref(), after, ENDS_MAX).await?;
        let is_last = i64::try_from(ends.len()).is_ok_and(|n| n < ENDS_MAX);
        let mut room = self.0.nats.message_bytes_max().saturating_sub(OVERHEAD);
        let (mut texts, mut next) = (Vec::new(), None);
        let all = ends.len();
        for end in ends {
            let output = end.output.as_deref().unwrap_or("null");
            if !is_plain(output) || output.len() + END > room && texts.is_empty() {
                let why =
                    format!("the output of job {} ({} bytes) fits into no message", end.id, output.len());
                return Err(Refusal::new(Code::Refused, why));
            }
            if output.len() + END > room {
                break;
            }
            room -= output.len() + END;
            let (id, completed) = (end.id, end.is_completed);
            texts.push(format!(r#"{{"job":"{id}","completed":{completed},"output":{output}}}"#));
            next = Some(end.n);
        }
        let next = next.filter(|_| !is_last || texts.len() < all);
        let next = next.map_or_else(String::new, |next| format!(r#","next":{next}"#));
        Ok(format!(r#"{{"ends":[{}]{next}}}"#, texts.join(",")))
    }

    /// Tells of the recorded steps that an attempt has not called, though it has completed the job.
    pub(super) async fn warn_of_uncalled(&self, job: &RunningJob, called: Vec<String>) {
        // Before the first attempt there was nothing to record.
        if job.key.token.0 > 1
            && let Ok(steps) = self.0.store.steps(job.key.job, None).await
        {
            job.steps.called.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(called);
            job.steps.recorded.set((std::time::Instant::now(), steps.into_iter().collect())).ok();
            job.steps.warn_of_uncalled();
        }
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

async fn recorded(context: &JobContext, name: &str) -> Result<String, Called> {
    Ok(match context.recorded_alone(name).await? {
        Some(result) if is_plain(&result) => format!(r#"{{"recorded":true,"result":{result}}}"#),
        Some(_) => {
            let why = format!("the result of step {name:?} cannot be read by every program");
            return Err(Refusal::new(Code::Refused, why).into());
        }
        None => r#"{"recorded":false}"#.to_owned(),
    })
}

async fn sleep(context: &JobContext, name: &str, lasts: Duration) -> Result<String, Called> {
    let left = suspended(context.sleep(name, lasts).await)?.err().unwrap_or_default();
    // A rest of less than a millisecond is no reason to go on.
    let left = left.as_nanos().div_ceil(1_000_000);
    Ok(format!(r#"{{"left_ms":{left}}}"#))
}

async fn event(context: &JobContext, name: &str, patience: Option<Duration>) -> Result<String, Called> {
    Ok(match suspended(context.event_of(name, patience).await)? {
        Ok(Some(payload)) if is_plain(&payload) => format!(r#"{{"came":true,"payload":{payload}}}"#),
        Ok(Some(_)) => {
            let why = format!("the payload of event {name:?} cannot be read by every program");
            return Err(Refusal::new(Code::Refused, why).into());
        }
        Ok(None) => r#"{"came":false,"late":true}"#.to_owned(),
        Err(left) if left < WITHOUT_END => {
            format!(r#"{{"came":false,"left_ms":{}}}"#, left.as_nanos().div_ceil(1_000_000))
        }
        Err(_) => r#"{"came":false}"#.to_owned(),
    })
}

async fn all(context: &JobContext, name: &str, jobs: Vec<crate::JobRequest>) -> Result<String, Called> {
    let ended = suspended(context.all_end(name, jobs).await)?.is_ok();
    Ok(format!(r#"{{"ended":{ended}}}"#))
}

/// Returns how long the job waits, if that is what the error says.
fn suspended<T>(called: Result<T, JobError>) -> Result<Result<T, Duration>, JobError> {
    match called {
        Ok(value) => Ok(Ok(value)),
        Err(error) => error.suspended().map_or(Err(error), |left| Ok(Err(left))),
    }
}
