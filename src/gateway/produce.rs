//! Produce: what producers ask by way of a gateway.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Gateway, WAIT_MAX,
    protocol::{Code, Fields, OF_EVERY_JOB, Refusal, json},
};
use crate::{
    EnqueueError, OnExpiry, Tenure,
    client::{
        enqueue::JobRequest,
        jobs::{CancelOutcome, WaitError},
    },
    groups::{api::SignalError, store::Signalled},
    job::{JobId, Status, actor::Actor},
    store::JobRow,
};

/// The bytes of an answer that are not the output.
const OVERHEAD: usize = 8_192;

/// A job as producers see it.
#[derive(Serialize)]
struct Told<'j> {
    job: JobId,
    kind: &'j str,
    status: &'static str,
    attempt: u32,
    max_attempts: u32,
    stage: Option<&'j str>,
    progress: Option<f32>,
    message: Option<&'j str>,
    output: Option<&'j RawValue>,
    output_omitted: bool,
    last_error: Option<&'j str>,
    ended: bool,
}

impl From<EnqueueError> for Refusal {
    fn from(error: EnqueueError) -> Self {
        let code = match &error {
            EnqueueError::QueueFull { .. } => Code::QueueFull,
            EnqueueError::KeyBusy { .. } => Code::KeyHeld,
            EnqueueError::Store(error) if !error.is_the_datas_fault() => Code::Unavailable,
            EnqueueError::Store(_) => Code::Refused,
            _ => Code::BadRequest,
        };
        Self::new(code, error.to_string())
    }
}

/// Reads a job of a step, which has no field but these.
pub(super) fn job_in(queue: &str, of: &Fields<'_>) -> Result<JobRequest, Refusal> {
    of.only("a job", &[&OF_EVERY_JOB[..], &["queue"]].concat())?;
    if of.optional::<String>("queue", "a text")?.is_some_and(|named| named != queue) {
        return Err(of.wrong("queue", "the queue of the job itself, or absent"));
    }
    every_job(queue, of)
}

fn every_job(queue: &str, of: &Fields<'_>) -> Result<JobRequest, Refusal> {
    let kind: String = of.value("kind", "the name of a kind")?;
    let payload = of.raw("payload").unwrap_or_else(|| "null".to_owned());
    let mut job = JobRequest::from_json(queue, kind, payload);
    if let Some(attempts) = of.optional::<u32>("max_attempts", "an integer from 1 to 1000")? {
        job = job.max_attempts(attempts);
    }
    if let Some(lane) = of.optional::<String>("lane", "a text")? {
        job = job.lane(lane);
    }
    if let Some(priority) = of.optional::<i16>("priority", "an integer from -100 to 100")? {
        job = job.priority(priority);
    }
    let tags = of.optional::<Vec<String>>("tags", "an array of texts")?.unwrap_or_default();
    Ok(tags.into_iter().fold(job, JobRequest::tag))
}

/// Sets until when a job may start, and the key that it has while it waits or runs.
fn rare_job(mut job: JobRequest, of: &Fields<'_>) -> Result<JobRequest, Refusal> {
    let time = "a time such as 2030-01-31T12:00:00Z";
    let not_after = of.optional::<DateTime<Utc>>("not_after", time)?;
    let expected = "\"dead_letter\" or \"cancel\"";
    let on_expiry = match of.optional::<String>("on_expiry", expected)?.as_deref() {
        None => None,
        Some("dead_letter") => Some(OnExpiry::DeadLetter),
        Some("cancel") => Some(OnExpiry::Cancel),
        Some(_) => return Err(of.wrong("on_expiry", expected)),
    };
    match (not_after, on_expiry) {
        (Some(at), becomes) => job = job.not_after(at).on_expiry(becomes.unwrap_or(OnExpiry::DeadLetter)),
        (None, Some(_)) => return Err(of.wrong("not_after", &format!("{time}, beside \"on_expiry\""))),
        (None, None) => {}
    }
    let key = |name| of.optional::<String>(name, "a text");
    job = match (key("replace")?, key("unique_while_queued")?, key("unique_while_live")?) {
        (None, None, None) => job,
        (Some(key), None, None) => job.replace(key),
        (None, Some(key), None) => job.unique_while_queued(key),
        (None, None, Some(key)) => job.unique_while_live(key),
        _ => {
            let why = "a job has one of \"replace\", \"unique_while_queued\" and \"unique_while_live\"";
            return Err(Refusal::new(Code::BadRequest, why));
        }
    };
    Ok(match of.duration("longest_wait_ms")? {
        Some(wait) => job.longest_wait(wait),
        None => job,
    })
}

impl Gateway {
    pub(super) async fn enqueue(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let mut job = every_job(queue, request)?;
        if let Some(key) = request.optional::<String>("key", "a text")? {
            job = job.unique_key(key);
        }
        if let Some(delay) = request.duration("delay_ms")? {
            job = job.delay(delay);
        }
        if let Some(at) =
            request.optional::<DateTime<Utc>>("run_at", "a time such as 2030-01-31T12:00:00Z")?
        {
            job = job.run_at(at);
        }
        if let Some(trace) = request.optional::<String>("traceparent", "a text")? {
            job = job.trace_context(trace);
        }
        job = rare_job(job, request)?;
        let enqueued = self.0.tenure.enqueue(job).await?;
        Ok(format!(r#"{{"job":"{}","created":{}}}"#, enqueued.id, !enqueued.duplicate))
    }

    /// Returns a job of this queue.
    async fn job_of(&self, queue: &str, request: &Fields<'_>) -> Result<JobRow, Refusal> {
        let id: JobId = request.value("job", "the id of a job, a UUID")?;
        let job = self.0.tenure.job(id).await?.filter(|job| job.queue == queue);
        job.ok_or_else(|| Refusal::new(Code::NoSuchJob, format!("the queue {queue} has no job {id}")))
    }

    pub(super) async fn job(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let job = self.job_of(queue, request).await?;
        self.told(&job)
    }

    pub(super) async fn wait(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let wait = request.duration("wait_ms")?.unwrap_or_default();
        if wait > WAIT_MAX {
            return Err(request.wrong("wait_ms", "0 to 30000"));
        }
        let job = self.job_of(queue, request).await?;
        if job.status.is_finished() || wait.is_zero() {
            return self.told(&job);
        }
        let ended = tokio::select! {
            ended = self.0.tenure.wait(job.id, wait) => ended,
            () = self.0.stop.cancelled() => return self.told(&job),
        };
        match ended {
            Ok(Some(job)) => self.told(&job),
            Err(WaitError::TimedOut { .. }) => self.job(queue, request).await,
            Ok(None) | Err(WaitError::NoHistory(_)) => {
                Err(Refusal::new(Code::NoSuchJob, "the job has ended, and its kind keeps no history"))
            }
            Err(error) => Err(Refusal::new(Code::Unavailable, error.to_string())),
        }
    }

    /// A client is a program, which NATS does not name to the gateway.
    fn by_gateway(&self) -> Tenure {
        self.0.tenure.acting_as(Actor::default().via("gateway"))
    }

    pub(super) async fn cancel(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let job = self.job_of(queue, request).await?;
        let (cancelled, asked) = match self.by_gateway().cancel(job.id).await? {
            CancelOutcome::Cancelled => (true, false),
            CancelOutcome::Asked { .. } => (false, true),
            CancelOutcome::Finished { status } => (status == Status::Cancelled, false),
            CancelOutcome::NotFound => {
                return Err(Refusal::new(Code::NoSuchJob, format!("there is no job {} any more", job.id)));
            }
        };
        Ok(format!(r#"{{"cancelled":{cancelled},"asked":{asked}}}"#))
    }

    pub(super) async fn signal(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let name: String = request.value("name", "the name of an event")?;
        let payload = request.raw("payload").unwrap_or_else(|| "null".to_owned());
        let payload = RawValue::from_string(payload)
            .map_err(|error| Refusal::new(Code::BadRequest, error.to_string()))?;
        let job = self.job_of(queue, request).await?.id;
        let told = self.by_gateway().signal(job, &name, &payload).await.map_err(|error| match error {
            SignalError::Store(error) => error.into(),
            error => Refusal::new(Code::BadRequest, error.to_string()),
        })?;
        if told == Signalled::NotFound {
            return Err(Refusal::new(Code::NoSuchJob, format!("there is no job {job} any more")));
        }
        Ok(format!(r#"{{"answer":{}}}"#, json(&told)?))
    }

    /// Describes a job. What does not fit into a message is left out: its output, and the ends of its long texts.
    fn told(&self, job: &JobRow) -> Result<String, Refusal> {
        let mut room = self.0.nats.message_bytes_max().saturating_sub(OVERHEAD);
        // As JSON, a text may have six times its bytes: together they take three quarters at most.
        let most = room / 24;
        let cut = |text: Option<&'_ str>| text.map(|text| text[..text.floor_char_boundary(most)].to_owned());
        let texts = [&job.stage, &job.message, &job.last_error].map(|text| cut(text.as_deref()));
        room -= texts.iter().flatten().map(|text| 6 * text.len()).sum::<usize>();
        let [stage, message, last_error] = &texts;
        let is_too_long = job.output_json().is_some_and(|output| output.get().len() > room);
        json(&Told {
            job: job.id,
            kind: &job.kind,
            status: job.status.as_str(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            stage: stage.as_deref(),
            progress: job.progress,
            message: message.as_deref(),
            output: job.output_json().filter(|_| !is_too_long),
            output_omitted: is_too_long,
            last_error: last_error.as_deref(),
            ended: job.status.is_finished(),
        })
    }
}
