//! Rows: the parameters and the results of the statements. Plain values.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{
    Decode, Encode, Postgres, Row,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef},
};
use uuid::Uuid;

use crate::job::{
    JobId, Status,
    attempt::{AttemptOutcome, Category, Reason, Route},
    claim::{ClaimKey, FencingToken},
    options::JobOptions,
    storable,
};

/// The greatest age that a statement gets. A longer one means for ever, and Postgres's time could not hold it.
pub(crate) const AGE_MAX: Duration = Duration::from_hours(24 * 365_000);

/// The publisher of the first message of a new job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishedBy {
    /// The relay, when the job is due.
    Relay,
    /// The caller, as dispatch 1, once the row is committed.
    Caller,
    /// The sender of the message that became this job.
    Sender,
}

/// A job to be created.
#[derive(Debug, Clone)]
pub(crate) struct NewJob {
    pub id: JobId,
    pub queue: String,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) max_attempts: u32,
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) delay: Option<Duration>,
    pub(crate) trace_context: Option<String>,
    /// Scope and key.
    pub(crate) key: Option<(String, String)>,
    /// The sequence and the time of a submission's message.
    pub(crate) message: Option<(u64, DateTime<Utc>)>,
    pub(crate) published_by: PublishedBy,
    /// `None`: none of them.
    pub(crate) rare: Option<Box<JobOptions>>,
}

impl NewJob {
    /// Whether it waits for other jobs of its group.
    pub(crate) fn is_held(&self) -> bool {
        let in_group = self.rare.as_ref().is_some_and(|rare| rare.group_id.is_some());
        in_group && self.published_by == PublishedBy::Relay
    }

    /// The lane that its producer said.
    pub(crate) fn lane(&self) -> Option<&str> {
        self.rare.as_ref()?.lane.as_deref()
    }

    /// The scope and the key that may keep this job from being created.
    pub(crate) fn any_key(&self) -> Option<(String, String)> {
        self.key.clone().or_else(|| {
            let rare = self.rare.as_ref()?;
            let lasts = if rare.key_while == Some("live") { "live" } else { "queued" };
            Some((format!("{}/{lasts}", self.queue), rare.lasting_key.clone()?))
        })
    }

    /// Whether the job is due as it is created.
    pub(crate) fn is_due(&self) -> bool {
        // The database rounds a delay below a microsecond to zero.
        let has_passed = |at: DateTime<Utc>| at <= Utc::now();
        self.run_at.is_none_or(has_passed) && self.delay.is_none_or(|delay| delay.is_zero())
    }

    /// Whether the job is due, without a key, and published by its caller.
    pub(crate) fn is_plain(&self) -> bool {
        let is_due = self.run_at.is_none() && self.delay.is_none();
        is_due
            && self.key.is_none()
            && self.message.is_none()
            && self.rare.is_none()
            && self.published_by == PublishedBy::Caller
    }
}

/// The policy of a statement for many jobs about a row that another session has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockPolicy {
    /// Waits for a moment.
    Wait,
    /// Passes it over.
    Skip,
}

/// A claim to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    pub job: JobId,
    /// The queue in the message's subject. A row of another queue or kind is not claimed.
    pub queue: String,
    pub kind: String,
    pub stale_after: Duration,
    /// `retry` or `dead_letter`.
    pub on_crash: &'static str,
}

impl ClaimRequest {
    /// Whether one statement can make both claims.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.queue == other.queue
            && self.kind == other.kind
            && self.stale_after == other.stale_after
            && self.on_crash == other.on_crash
    }
}

/// A progress write. `None` leaves a column as it is.
#[derive(Debug, Clone)]
pub struct ProgressWrite {
    pub(crate) key: ClaimKey,
    pub(crate) stage: Option<String>,
    pub(crate) percent: Option<f32>,
    pub(crate) message: Option<String>,
    /// JSON text.
    pub(crate) checkpoint: Option<String>,
}

impl ProgressWrite {
    /// A write that says only that the job lives.
    pub(crate) const fn sign_of_life(key: ClaimKey) -> Self {
        Self { key, stage: None, percent: None, message: None, checkpoint: None }
    }

    /// Returns the fields that are set as a JSON object; `None` if none is. The checkpoint stays as it is: numbers keep
    /// all their digits.
    pub(crate) fn report(&self) -> Option<String> {
        let text =
            |text: &Option<String>| text.as_deref().map(|text| Value::from(storable(text)).to_string());
        let parts = [
            ("stage", text(&self.stage)),
            ("progress", self.percent.map(|percent| Value::from(percent).to_string())),
            ("message", text(&self.message)),
            ("checkpoint", self.checkpoint.clone()),
        ];
        let said: Vec<_> =
            parts.into_iter().filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?))).collect();
        (!said.is_empty()).then(|| format!("{{{}}}", said.join(",")))
    }
}

/// A completion to be written.
#[derive(Debug, Clone)]
pub struct Completion {
    pub key: ClaimKey,
    pub output: Option<String>,
    /// The handler's last progress, if it is not written yet.
    pub report: Option<ProgressWrite>,
    pub keeps: Keeps,
    /// Whether jobs may wait for it. Only the time of the statement depends on it.
    pub in_group: bool,
}

/// What stays of a job that completes, besides its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Keeps {
    /// Its row in the history, with its attempts and effects.
    #[default]
    History,
    /// Nothing, and there may be attempts or effects to delete.
    NothingWithTraces,
    /// Nothing; it has had one attempt, without effects.
    Nothing,
}

/// The end of an attempt that did not complete.
#[derive(Debug, Clone)]
pub(crate) struct AttemptEnd {
    pub(crate) key: ClaimKey,
    /// Neither completed nor lost. Where the job goes decides what the outcome is: [`AttemptOutcome::by`].
    pub(crate) verdict: AttemptOutcome,
    pub(crate) error: Option<String>,
    /// Of the dead letter, if it becomes one.
    pub(crate) category: Option<Category>,
    pub(crate) delay: Duration,
    /// Why the attempt is released; a recovery event says so.
    pub(crate) reason: Option<Reason>,
    /// The name of the event or of the step that the job waits for. If it has come, Postgres sets the delay to zero.
    pub(crate) awaits: Option<String>,
    /// Its kind is in quarantine, whose end calls the job.
    pub(crate) in_quarantine: bool,
}

impl AttemptEnd {
    /// An end without an error, after which the job is due at once.
    pub(crate) const fn new(key: ClaimKey, verdict: AttemptOutcome) -> Self {
        Self {
            key,
            verdict,
            error: None,
            category: None,
            delay: Duration::ZERO,
            reason: None,
            awaits: None,
            in_quarantine: false,
        }
    }
}

/// The effect of a cancellation on a live job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelAnswer {
    /// The job was queued, and is cancelled.
    Cancelled,
    /// The job runs on this worker, which the caller has to notify.
    Asked(String),
}

/// An attempt that ended without completing.
#[derive(Debug, Clone)]
pub struct EndedAttempt {
    pub(crate) ord: usize,
    pub(crate) job: JobId,
    pub queue: String,
    pub(crate) kind: String,
    pub(crate) token: FencingToken,
    pub(crate) owner: Option<String>,
    pub(crate) route: Route,
    /// Why its job is a dead letter, if it is one now and no usual category fits.
    pub(crate) category: Option<Category>,
    pub(crate) silence: Duration,
}

/// A job to publish.
#[derive(Debug, Clone)]
pub struct DueJob {
    pub id: JobId,
    pub queue: String,
    pub(crate) kind: String,
    pub(crate) dispatch: i32,
    pub(crate) clear_reason: Option<String>,
    pub(crate) trace_context: Option<String>,
}

/// A queue in which a message may have been lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub queue: String,
    pub(crate) is_paused: bool,
    pub(crate) is_limited: bool,
}

/// The input of a look for lost messages.
#[derive(Debug)]
pub(crate) struct Suspects {
    /// A snapshot, in Postgres's text form: the transactions that are committed.
    pub(crate) committed: String,
    pub(crate) queues: Vec<Suspect>,
    /// The last queue that the look covered, if there are more.
    pub(crate) cut_at: Option<String>,
}

/// The turns that a worker has, and the work that waits. Without a turn, all is empty but `workers`, `has_lanes` and
/// `has_groups`.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub(crate) struct Turns {
    pub(crate) taken: Vec<String>,
    /// How many workers are alive.
    pub(crate) workers: i64,
    /// In how many seconds the next tick of a schedule is due.
    pub(crate) next_tick_s: Option<f64>,
    /// Whether a worker has missed its renewal.
    pub(crate) has_silent: bool,
    /// Whether a queue has lanes.
    pub(crate) has_lanes: bool,
    /// Whether a job follows others.
    pub(crate) has_groups: bool,
    /// Whether a calm redrive is open.
    pub(crate) has_redrives: bool,
    /// Whether a kind is watched.
    pub(crate) has_quarantines: bool,
    /// Whether a job may expire.
    pub(crate) has_expiries: bool,
    /// A hash of the queues' settings.
    pub(crate) settings: Option<String>,
}

/// The answer of the scan gate to the worker that scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) in_grace: bool,
    pub(crate) breaker_open: bool,
    /// How many jobs look stale.
    pub(crate) stale: i64,
    /// The jobs among them that have been silent for longest.
    pub(crate) silent: Vec<JobId>,
}

impl Gate {
    /// The jobs to reset: none in a grace, or while the breaker is open.
    pub(crate) fn may_be_reset(&self) -> &[JobId] {
        if self.in_grace || self.breaker_open { &[] } else { &self.silent }
    }
}

/// A submission that cannot be a job.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub id: JobId,
    pub queue: String,
    pub(crate) kind: String,
    pub(crate) subject: String,
    pub(crate) raw: Vec<u8>,
    pub(crate) category: Category,
    pub reason: String,
    pub(crate) published: DateTime<Utc>,
}

/// A worker's description of itself.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) worker_id: String,
    pub(crate) hostname: String,
    pub(crate) pid: i32,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) pid_started_at: Option<String>,
    pub(crate) lock_file: Option<String>,
    /// `None`: the process could not reach itself over NATS.
    pub(crate) probe_subject: Option<String>,
    pub(crate) queues: Vec<String>,
    /// `None`: every kind.
    pub(crate) kinds: Option<Vec<String>>,
    /// Those that keep no history; `*`: the kinds without a handler of their own. `None`: all keep theirs.
    pub(crate) unkept: Option<Vec<String>>,
    pub(crate) slots: i32,
    /// For each queue, how many jobs one message may name. `None`: one.
    pub(crate) jobs_per_message: Option<Vec<i32>>,
    pub(crate) renew_every: Duration,
    /// The language and the version of a client behind a gateway. `None`: the process is tenure itself.
    pub(crate) client: Option<(String, String)>,
}

/// Another process of the same host.
#[derive(Debug, Clone)]
pub(crate) struct HostWorker {
    pub(crate) worker_id: String,
    pub(crate) pid: i32,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) pid_started_at: Option<String>,
    pub(crate) lock_file: Option<String>,
}

/// A row of `tenure.all_jobs`: a job in any status.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the view's columns")]
#[non_exhaustive]
pub struct JobRow {
    pub id: JobId,
    pub queue: String,
    pub kind: String,
    /// The payload with numbers rounded to `f64`; [`JobRow::payload_json`] has all their digits.
    #[serde(skip)]
    pub payload: Option<Value>,
    #[serde(rename = "payload")]
    pub(crate) payload_json: Option<Box<RawValue>>,
    pub status: Status,
    pub attempt: u32,
    pub max_attempts: u32,
    pub fencing_token: FencingToken,
    pub worker_id: Option<String>,
    pub created_at: DateTime<Utc>,
    pub scheduled_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub last_activity_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub stage: Option<String>,
    pub progress: Option<f32>,
    pub message: Option<String>,
    /// The output with numbers rounded to `f64`; [`JobRow::output_json`] has all their digits.
    #[serde(skip)]
    pub output: Option<Value>,
    #[serde(rename = "output")]
    pub(crate) output_json: Option<Box<RawValue>>,
    pub last_error: Option<String>,
    /// Its lane; empty: it named none, in a queue with lanes. `None`, too, of a job that has finished.
    pub lane: Option<String>,
    pub priority: Option<i16>,
    /// No attempt starts after this time.
    pub not_after: Option<DateTime<Utc>>,
    /// Whether its lane holds it. `scheduled_at` is then when it is due in its lane;
    /// [`Tenure::held_for`](crate::Tenure::held_for) says for what it waits.
    pub is_held: bool,
    /// Its tags, sorted: see [`JobRequest::tag`](crate::JobRequest::tag).
    pub tags: Vec<String>,
}

impl JobRow {
    /// Removes the payload and the output, for those who may not see them.
    #[doc(hidden)]
    #[must_use]
    pub fn without_payload(self) -> Self {
        Self { payload: None, payload_json: None, output: None, output_json: None, ..self }
    }

    /// Returns the payload as the database's JSON text: numbers keep all their digits. Serializing the row writes it.
    #[must_use]
    pub fn payload_json(&self) -> Option<&RawValue> {
        self.payload_json.as_deref()
    }

    /// Returns the output as the database's JSON text: numbers keep all their digits. Serializing the row writes it.
    #[must_use]
    pub fn output_json(&self) -> Option<&RawValue> {
        self.output_json.as_deref()
    }
}

/// A row of `tenure.job_executions_all`: an attempt.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the view's columns")]
#[non_exhaustive]
pub struct ExecutionRow {
    pub fencing_token: FencingToken,
    pub attempt: u32,
    pub worker_id: String,
    pub started_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    pub outcome: Option<String>,
    pub error: Option<String>,
}

/// A row of `tenure.recovery_events`.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the table's columns")]
#[non_exhaustive]
pub struct RecoveryRow {
    pub at: DateTime<Utc>,
    pub event: String,
    pub path: String,
    pub fencing_token: FencingToken,
    pub owner_before: Option<String>,
    pub silence_s: Option<f64>,
    pub reason: String,
    pub recovered_by: String,
}

/// Returns the numbers from 0 to `n - 1` as Postgres's signed integers.
pub(crate) fn ordinals(n: usize) -> Vec<i32> {
    (0..i32::try_from(n).unwrap_or(i32::MAX)).collect()
}

pub(crate) fn ord(row: &PgRow) -> Result<usize, sqlx::Error> {
    Ok(usize::try_from(row.try_get::<i32, _>("ord")?).unwrap_or(usize::MAX))
}

/// Returns an `integer` column that is never negative.
pub(crate) fn u32_of(row: &PgRow, column: &str) -> Result<u32, sqlx::Error> {
    Ok(row.try_get::<i32, _>(column)?.unsigned_abs())
}

/// Returns a `bigint` column that is never negative.
pub(crate) fn u64_of(row: &PgRow, column: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}

/// Returns the size in an `integer` column.
pub(crate) fn bytes_of(row: &PgRow, column: &str) -> Result<Option<usize>, sqlx::Error> {
    Ok(row.try_get::<Option<i32>, _>(column)?.map(|bytes| usize::try_from(bytes).unwrap_or(0)))
}

pub(crate) fn status(row: &PgRow) -> Result<Status, sqlx::Error> {
    word(row.try_get("status")?)
}

/// A word of the database as what it stands for.
pub(crate) fn word<T: FromStr<Err: Into<BoxDynError>>>(word: &str) -> Result<T, sqlx::Error> {
    word.parse().map_err(|error: T::Err| sqlx::Error::Decode(error.into()))
}

pub(crate) fn json(text: Option<String>) -> Option<Value> {
    // The text comes from a jsonb column, so it is JSON. A number too large for f64 becomes null.
    text.map(|text| serde_json::from_str(&text).unwrap_or_default())
}

/// Returns the JSON of a jsonb column, untouched.
pub(crate) fn raw(text: Option<String>) -> Option<Box<RawValue>> {
    text.and_then(|text| RawValue::from_string(text).ok())
}

/// Removes the spaces between the tokens of JSON.
fn compact(json: &str) -> String {
    let (mut in_text, mut is_escaped) = (false, false);
    json.chars()
        .filter(|&c| {
            if in_text {
                in_text = is_escaped || c != '"';
                is_escaped = c == '\\' && !is_escaped;
                return true;
            }
            in_text = c == '"';
            !c.is_ascii_whitespace()
        })
        .collect()
}

/// Returns the JSON of a jsonb column as a value, whose numbers are rounded, and as text with all digits, as compact
/// as `serde_json` writes a value.
pub(crate) fn both(text: Option<String>) -> (Option<Value>, Option<Box<RawValue>>) {
    (json(text.clone()), raw(text.as_deref().map(compact)))
}

/// The values that items of a batch have in common: sent once, and named by their place.
pub(crate) struct Shapes<T>(Vec<T>);

impl<T> Default for Shapes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Shapes<T> {
    /// Returns the place of a shape, counted from 1 as in SQL. A batch has few shapes; the search begins at the latest.
    pub(crate) fn place(&mut self, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> i32 {
        let found = self.0.iter().rposition(is_same).unwrap_or_else(|| {
            self.0.push(new());
            self.0.len() - 1
        });
        i32::try_from(found + 1).unwrap_or(i32::MAX)
    }

    pub(crate) fn column<C>(&self, of: impl Fn(&T) -> C) -> Vec<C> {
        self.0.iter().map(of).collect()
    }
}

pub(crate) struct Keys {
    pub(crate) jobs: Vec<JobId>,
    pub(crate) tokens: Vec<FencingToken>,
    pub(crate) claims: Vec<Uuid>,
    pub(crate) ords: Vec<i32>,
}

impl<'a> FromIterator<&'a ClaimKey> for Keys {
    fn from_iter<I: IntoIterator<Item = &'a ClaimKey>>(keys: I) -> Self {
        let mut all = Self { jobs: vec![], tokens: vec![], claims: vec![], ords: vec![] };
        for key in keys {
            all.jobs.push(key.job);
            all.tokens.push(key.token);
            all.claims.push(key.claim);
        }
        all.ords = ordinals(all.jobs.len());
        all
    }
}

pub(crate) fn ended(rows: &[PgRow]) -> Result<Vec<EndedAttempt>, sqlx::Error> {
    rows.iter()
        .map(|row| {
            let silence_s: Option<f64> = row.try_get("silence_s")?;
            Ok(EndedAttempt {
                ord: ord(row)?,
                job: row.try_get("id")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                token: row.try_get("fencing_token")?,
                owner: row.try_get("worker_id")?,
                route: word(row.try_get("route")?)?,
                category: row.try_get::<Option<&str>, _>("category")?.map(word).transpose()?,
                silence: Duration::try_from_secs_f64(silence_s.unwrap_or(0.0)).unwrap_or_default(),
            })
        })
        .collect()
}

/// Reads jobs that were taken to be published.
pub(crate) fn due_jobs(rows: &[PgRow]) -> Result<Vec<DueJob>, sqlx::Error> {
    let due = |row: &PgRow| {
        Ok(DueJob {
            id: row.try_get("id")?,
            queue: row.try_get("queue")?,
            kind: row.try_get("kind")?,
            dispatch: row.try_get("dispatch")?,
            clear_reason: row.try_get("clear_reason")?,
            trace_context: row.try_get("trace_context")?,
        })
    };
    rows.iter().map(due).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_removes_only_the_spaces_between_tokens() {
        for (json, compacted) in [
            (r#"{"a": [1, 2.50], "b c": "d  e"}"#, r#"{"a":[1,2.50],"b c":"d  e"}"#),
            (r#"{"quote \" and \\": "x \" y"}"#, r#"{"quote \" and \\":"x \" y"}"#),
            ("3.141592653589793238462643383279", "3.141592653589793238462643383279"),
        ] {
            assert_eq!(compact(json), compacted);
        }
    }
}

/// Stores a type as what it wraps. The derive of sqlx would compile all of sqlx once more, for its macros.
macro_rules! stored_as {
    ($outer:ident, $inner:ty) => {
        impl sqlx::Type<Postgres> for $outer {
            fn type_info() -> PgTypeInfo {
                <$inner as sqlx::Type<Postgres>>::type_info()
            }
        }

        impl PgHasArrayType for $outer {
            fn array_type_info() -> PgTypeInfo {
                <$inner as PgHasArrayType>::array_type_info()
            }
        }

        impl Encode<'_, Postgres> for $outer {
            fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
                <$inner as Encode<'_, Postgres>>::encode_by_ref(&self.0, buffer)
            }
        }

        impl<'r> Decode<'r, Postgres> for $outer {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                <$inner as Decode<'r, Postgres>>::decode(value).map(Self)
            }
        }
    };
}

stored_as!(JobId, Uuid);
stored_as!(FencingToken, i64);
