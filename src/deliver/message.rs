//! Read: classifies a message by its subject, headers and body. Pure: all untrusted input passes here.

use chrono::{DateTime, Utc};

use crate::{
    job::{
        AHEAD_MAX, JobId, MAX_ATTEMPTS_DEFAULT, PRIORITY_MAX, TAGS_MAX, attempt::Category, check_key,
        check_kind, check_lane, check_queue, check_tag, options::JobOptions, sizes::stored_bytes, unstorable,
    },
    nats::{Delivery, JOB_ID, TicketBody},
    observe::trace,
    store::{NewJob, PublishedBy},
};

/// A message, classified.
#[derive(Debug)]
pub(crate) enum Message {
    /// A message for a row that exists.
    Ticket(JobRef),
    /// A message for a row that the worker must insert.
    Submission(Box<NewJob>),
    /// A message that is neither.
    Rejected { category: Category, reason: String },
}

/// The job that a message names, with the queue and kind of its subject.
#[derive(Debug)]
pub(crate) struct JobRef {
    pub(crate) job: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    /// `None` for a submission.
    pub(crate) dispatch: Option<i32>,
    /// Whether the ticket was published because the job was reset or released.
    pub(crate) cleared: bool,
}

/// The parts of a message that [`read`] looks at.
pub(crate) trait RawMessage {
    fn subject(&self) -> &str;
    fn body(&self) -> &[u8];
    /// A header's value. The case of its name does not matter.
    fn header(&self, name: &str) -> Option<&str>;
    /// The names, each as often as it has a value.
    fn header_names(&self) -> impl Iterator<Item = &str>;
    fn origin(&self) -> Origin;

    /// Why the client could not read the subject or the headers.
    fn unreadable(&self) -> Option<&str> {
        None
    }

    /// The job and its dispatch, if this is the part of one job in a message that names several.
    fn part(&self) -> Option<(JobId, i32)> {
        None
    }
}

/// The values that distinguish a submission from every other.
pub(crate) struct Origin {
    pub(crate) id: JobId,
    pub(crate) identity: String,
    pub(crate) sequence: u64,
    pub(crate) published: DateTime<Utc>,
}

impl RawMessage for Delivery {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn body(&self) -> &[u8] {
        &self.body
    }

    fn header(&self, name: &str) -> Option<&str> {
        Self::header(self, name)
    }

    fn header_names(&self) -> impl Iterator<Item = &str> {
        Self::header_names(self)
    }

    fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    fn origin(&self) -> Origin {
        Origin {
            id: self.derived_id(),
            identity: self.identity(),
            sequence: self.sequence,
            published: self.published(),
        }
    }

    fn part(&self) -> Option<(JobId, i32)> {
        self.part
    }
}

/// Returns the queue and the kind that a subject names.
pub(crate) fn names<'s>(subject: &'s str, prefix: &str) -> Option<(&'s str, &'s str)> {
    subject.strip_prefix(prefix)?.strip_prefix('.')?.split_once('.')
}

/// Classifies a message.
pub(crate) fn read(sent: &impl RawMessage, prefix: &str, payload_bytes_max: usize) -> Message {
    let malformed = |reason: String| Message::Rejected { category: Category::Malformed, reason };
    if let Some(reason) = sent.unreadable() {
        return malformed(reason.to_owned());
    }
    let Some((queue, kind)) = names(sent.subject(), prefix) else {
        return malformed(format!("the subject is not {prefix}.<queue>.<kind>"));
    };
    if let Err(error) = check_queue(queue).and_then(|()| check_kind(kind)) {
        return malformed(error.to_string());
    }
    if let Some((job, dispatch)) = sent.part() {
        let (queue, kind) = (queue.into(), kind.into());
        return Message::Ticket(JobRef { job, queue, kind, dispatch: Some(dispatch), cleared: false });
    }
    if let Some(id) = sent.header(JOB_ID) {
        if let Err(reason) = check_once(sent, JOB_ID) {
            return malformed(reason);
        }
        return match (id.parse(), serde_json::from_slice::<TicketBody>(sent.body())) {
            (Ok(job), Ok(body)) if job == body.job_id => {
                let dispatch = Some(body.dispatch);
                Message::Ticket(JobRef {
                    job,
                    queue: queue.into(),
                    kind: kind.into(),
                    dispatch,
                    cleared: body.cleared,
                })
            }
            _ => malformed(format!("it has the header {JOB_ID}, but is not a ticket of tenure")),
        };
    }
    let bytes = stored_bytes(sent.body());
    if bytes > payload_bytes_max {
        let reason = format!("the payload has {bytes} bytes, but at most {payload_bytes_max} are allowed");
        return Message::Rejected { category: Category::TooLarge, reason };
    }
    let payload = match serde_json::from_slice::<serde_json::Value>(sent.body()) {
        Ok(payload) => payload,
        Err(error) => return malformed(format!("the payload is not JSON: {error}")),
    };
    if let Some(why) = unstorable(&payload) {
        return malformed(format!("the payload cannot be stored: {why}"));
    }
    match Headers::read(sent) {
        Ok(headers) => {
            let Origin { id, identity, sequence, published } = sent.origin();
            Message::Submission(Box::new(NewJob {
                id,
                queue: queue.into(),
                kind: kind.into(),
                // The bytes as published, not as parsed: numbers keep all their digits.
                payload: String::from_utf8_lossy(sent.body()).into_owned(),
                max_attempts: headers.max_attempts,
                run_at: headers.run_at,
                delay: None,
                trace_context: headers.trace_context,
                key: Some(match headers.key {
                    Some(id) => (queue.into(), id),
                    None => (String::new(), identity),
                }),
                message: Some((sequence, published)),
                published_by: PublishedBy::Sender,
                rare: headers.rare,
            }))
        }
        Err(reason) => malformed(reason),
    }
}

/// What the names of tenure's own headers begin with.
const OWN: &str = "Tenure-";
/// The headers of a submission. A misspelt one is refused: its sender counts on it.
const KNOWN: [&str; 9] = [
    "Tenure-Idempotency-Key",
    "Tenure-Lane",
    "Tenure-Max-Attempts",
    "Tenure-Not-After",
    "Tenure-On-Expiry",
    "Tenure-Priority",
    "Tenure-Replace",
    "Tenure-Run-At",
    "Tenure-Tags",
];

/// The options in a submission's headers.
struct Headers {
    key: Option<String>,
    max_attempts: u32,
    run_at: Option<DateTime<Utc>>,
    trace_context: Option<String>,
    rare: Option<Box<JobOptions>>,
}

impl Headers {
    fn read(sent: &impl RawMessage) -> Result<Self, String> {
        let is_unknown = |name: &&str| {
            let is = |known: &&str| known.eq_ignore_ascii_case(name);
            name.get(..OWN.len()).is_some_and(|own| own.eq_ignore_ascii_case(OWN)) && !KNOWN.iter().any(is)
        };
        if let Some(name) = sent.header_names().find(is_unknown) {
            return Err(format!("the header {name} is not known; the known ones are {}", KNOWN.join(", ")));
        }
        KNOWN.iter().try_for_each(|name| check_once(sent, name))?;
        let max_attempts = match sent.header("Tenure-Max-Attempts") {
            None => MAX_ATTEMPTS_DEFAULT,
            Some(text) => match text.trim().parse() {
                Ok(attempts) if (1..=1_000).contains(&attempts) => attempts,
                _ => {
                    return Err(format!("the header Tenure-Max-Attempts is {text:?}, but must be 1 to 1000"));
                }
            },
        };
        let run_at = time(sent, "Tenure-Run-At")?;
        // Only Postgres reads the first header. The stream reads the second, too, and its duplicate window spans all
        // queues; where both are set, the second is for the stream alone.
        let (name, key) = match (sent.header("Tenure-Idempotency-Key"), sent.header("Nats-Msg-Id")) {
            (Some(key), _) => ("Tenure-Idempotency-Key", Some(key)),
            (None, key) => ("Nats-Msg-Id", key.filter(|key| !key.is_empty())),
        };
        if let Some(key) = key
            && let Err(rule) = check_key(key)
        {
            return Err(format!("the header {name} ({} bytes) {rule}", key.len()));
        }
        Ok(Self {
            key: key.map(str::to_owned),
            max_attempts,
            run_at,
            rare: rare(sent)?,
            // An invalid one is ignored: the job does not need it.
            trace_context: sent.header("traceparent").and_then(trace::valid),
        })
    }
}

/// Refuses a header that occurs more than once: its sender may count on any of the values.
fn check_once(sent: &impl RawMessage, name: &str) -> Result<(), String> {
    match sent.header_names().filter(|own| own.eq_ignore_ascii_case(name)).nth(1) {
        Some(_) => Err(format!("the header {name} occurs more than once")),
        None => Ok(()),
    }
}

/// Reads a header that is a time.
fn time(sent: &impl RawMessage, name: &str) -> Result<Option<DateTime<Utc>>, String> {
    let Some(text) = sent.header(name) else { return Ok(None) };
    let wrong = |_| format!("the header {name} is {text:?}, but must be a time such as 2030-01-31T12:00:00Z");
    let at: DateTime<Utc> = DateTime::parse_from_rfc3339(text.trim()).map_err(wrong)?.into();
    if at.signed_duration_since(sent.origin().published).to_std().is_ok_and(|ahead| ahead > AHEAD_MAX) {
        return Err(format!("the header {name} is {text:?}, but must be at most ten years ahead"));
    }
    Ok(Some(at))
}

/// Reads the tags, which commas separate.
fn tags(sent: &impl RawMessage) -> Result<Vec<String>, String> {
    let mut tags: Vec<String> = Vec::new();
    for tag in sent.header("Tenure-Tags").unwrap_or_default().split(',').map(str::trim) {
        if tag.is_empty() || tags.iter().any(|other| other == tag) {
            continue;
        }
        check_tag(tag).map_err(|error| format!("the header Tenure-Tags: {error}"))?;
        tags.push(tag.to_owned());
    }
    if tags.len() > TAGS_MAX {
        return Err(format!(
            "the header Tenure-Tags has {} tags, but at most {TAGS_MAX} are allowed",
            tags.len()
        ));
    }
    Ok(tags)
}

/// Reads the headers that few submissions have.
fn rare(sent: &impl RawMessage) -> Result<Option<Box<JobOptions>>, String> {
    let lane = sent.header("Tenure-Lane");
    if let Some(Err(rule)) = lane.map(check_lane) {
        let bytes = lane.map_or(0, str::len);
        return Err(format!("the header Tenure-Lane ({bytes} bytes) must have {rule}"));
    }
    let priority = match sent.header("Tenure-Priority") {
        None => None,
        Some(text) => match text.trim().parse() {
            Ok(priority) if (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) => Some(priority),
            _ => return Err(format!("the header Tenure-Priority is {text:?}, but must be -100 to 100")),
        },
    };
    let expires_as = match sent.header("Tenure-On-Expiry") {
        None | Some("dead_letter") => None,
        Some("cancel") => Some("cancelled"),
        Some(text) => {
            return Err(format!(
                "the header Tenure-On-Expiry is {text:?}, but must be dead_letter or cancel"
            ));
        }
    };
    let replace = sent.header("Tenure-Replace");
    if let Some(Err(rule)) = replace.map(check_key) {
        return Err(format!("the header Tenure-Replace ({} bytes) {rule}", replace.map_or(0, str::len)));
    }
    let rare = JobOptions {
        lane: lane.map(str::to_owned),
        priority,
        not_after: time(sent, "Tenure-Not-After")?,
        expires_as,
        key_while: replace.map(|_| "replace"),
        lasting_key: replace.map(str::to_owned),
        tags: tags(sent)?,
        ..JobOptions::new()
    };
    Ok((rare != JobOptions::new()).then(|| Box::new(rare)))
}
