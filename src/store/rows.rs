//! Rows: what goes into the statements and what comes out. Plain values.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use crate::job::{
    JobId, Status,
    claim::{ClaimKey, FencingToken},
    storable,
};

/// Longer ago is for ever, and more than Postgres's time can hold.
pub(super) const AGE_MAX: Duration = Duration::from_hours(24 * 365_000);

/// Who publishes the first message of a new job.
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
    pub(crate) id: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) max_attempts: u32,
    pub(crate) run_at: Option<DateTime<Utc>>,
    pub(crate) delay: Option<Duration>,
    pub(crate) trace_context: Option<String>,
    /// Scope and key.
    pub(crate) key: Option<(String, String)>,
    /// Of a submission: its message's sequence and time.
    pub(crate) message: Option<(u64, DateTime<Utc>)>,
    pub(crate) told: PublishedBy,
}

impl NewJob {
    /// Due, without a key, and published by whoever enqueues it.
    pub(super) fn is_plain(&self) -> bool {
        let is_due = self.run_at.is_none() && self.delay.is_none();
        is_due && self.key.is_none() && self.message.is_none() && self.told == PublishedBy::Caller
    }
}

/// What a statement for many jobs does about a row that somebody has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPolicy {
    /// Waits for a moment.
    Wait,
    /// Passes it over.
    Skip,
}

/// A claim to be made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClaimRequest {
    pub(crate) job: JobId,
    /// What the message's subject says; a row of another queue or kind is not claimed.
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) stale_after: Duration,
    /// `retry` or `dead_letter`.
    pub(crate) on_crash: &'static str,
}

impl ClaimRequest {
    /// Whether one statement can make both.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.queue == other.queue
            && self.kind == other.kind
            && self.stale_after == other.stale_after
            && self.on_crash == other.on_crash
    }
}

/// A progress write. `None` leaves what is there.
#[derive(Debug, Clone)]
pub(crate) struct ProgressWrite {
    pub(crate) key: ClaimKey,
    pub(crate) stage: Option<String>,
    pub(crate) percent: Option<f32>,
    pub(crate) message: Option<String>,
    /// JSON text.
    pub(crate) checkpoint: Option<String>,
}

impl ProgressWrite {
    /// As JSON text, if there is anything to say. The checkpoint as it is: numbers keep all their digits.
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
pub(crate) struct Completion {
    pub(crate) key: ClaimKey,
    pub(crate) output: Option<String>,
    /// What the handler said last, if that is not written yet.
    pub(crate) report: Option<ProgressWrite>,
}

/// How an attempt ended that did not complete.
#[derive(Debug, Clone)]
pub(crate) struct AttemptEnd {
    pub(crate) key: ClaimKey,
    /// `retried`, `snoozed`, `released`, `failed` or `cancelled`.
    pub(crate) verdict: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) category: Option<&'static str>,
    pub(crate) delay: Duration,
    /// Why a recovery event is written, if one is.
    pub(crate) reason: Option<&'static str>,
}

/// Where a job went when its attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Queued,
    Failed,
    Cancelled,
}

/// What a cancellation did to a live job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CancelAnswer {
    /// It was queued, and is cancelled.
    Cancelled,
    /// It runs, on this worker, which is to be told.
    Asked(String),
}

/// An attempt that ended without completing.
#[derive(Debug, Clone)]
pub(crate) struct EndedAttempt {
    pub(crate) ord: usize,
    pub(crate) job: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) token: FencingToken,
    pub(crate) owner: Option<String>,
    pub(crate) route: Route,
    pub(crate) silence: Duration,
}

/// A job whose message shall be published.
#[derive(Debug, Clone)]
pub(crate) struct DueJob {
    pub(crate) id: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) dispatch: i32,
    pub(crate) clear_reason: Option<String>,
    pub(crate) trace_context: Option<String>,
}

/// A queue in which a message may have been lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) queue: String,
    pub(crate) is_paused: bool,
    pub(crate) is_limited: bool,
}

/// What a look for lost messages goes by.
#[derive(Debug)]
pub(crate) struct Suspects {
    /// What is committed.
    pub(crate) committed: String,
    pub(crate) queues: Vec<Suspect>,
    /// The last queue that was looked at, if there are more.
    pub(crate) cut_at: Option<String>,
}

/// Which turns a worker has, and what there is to do. Of what there is to do, a worker that has taken no turn is told
/// nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Turns {
    pub(crate) taken: Vec<String>,
    /// How many workers are alive.
    pub(crate) workers: i64,
    /// In how many seconds the next tick of a schedule is due.
    pub(crate) next_tick_s: Option<f64>,
    /// Whether a worker has missed its renewal.
    pub(crate) has_silent: bool,
    /// Changes with what operators say of queues.
    pub(crate) settings: Option<String>,
}

/// What the scanner may do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) in_grace: bool,
    pub(crate) breaker_open: bool,
    /// How many jobs look stale.
    pub(crate) stale: i64,
    /// The quietest of them.
    pub(crate) silent: Vec<JobId>,
}

/// What the last scan counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fleet {
    pub(crate) queues: Vec<QueueStats>,
    pub(crate) relay_lag_s: f64,
    pub(crate) dead: i64,
    pub(crate) workers: i64,
    /// How long ago it did; `None`: never.
    pub(crate) age_s: Option<f64>,
    /// Whether a grace or the breaker keeps the scanner from resetting.
    pub(crate) is_held_back: bool,
}

/// What it counted of one queue.
#[derive(Debug, Clone)]
pub(crate) struct QueueStats {
    pub(crate) queue: String,
    /// Due, scheduled, processing.
    pub(crate) jobs: [i64; 3],
    pub(crate) oldest_due_s: f64,
    pub(crate) is_paused: bool,
    /// Workers that serve it.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the dashboard alone asks"))]
    pub(crate) workers: i64,
}

#[cfg(feature = "cli")]
impl QueueStats {
    /// What waits in it starts nowhere.
    pub(crate) fn is_unserved(&self) -> bool {
        self.workers == 0 && self.jobs[0] > 0
    }
}

/// A submission that cannot be a job.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) id: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) subject: String,
    pub(crate) raw: Vec<u8>,
    pub(crate) category: &'static str,
    pub(crate) reason: String,
    pub(crate) published: DateTime<Utc>,
}

/// What a worker says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) worker_id: String,
    pub(crate) hostname: String,
    pub(crate) pid: i32,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) pid_started_at: Option<String>,
    pub(crate) lock_file: Option<String>,
    /// `None`: the process could not reach itself over it.
    pub(crate) probe_subject: Option<String>,
    pub(crate) queues: Vec<String>,
    /// `None`: every kind.
    pub(crate) kinds: Option<Vec<String>>,
    pub(crate) slots: i32,
    pub(crate) renew_every: Duration,
}

/// What is known of another process of the same host.
#[derive(Debug, Clone)]
pub(crate) struct HostWorker {
    pub(crate) worker_id: String,
    pub(crate) pid: i32,
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) pid_started_at: Option<String>,
    pub(crate) lock_file: Option<String>,
}

/// A job as `tenure.all_jobs` shows it.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the view's columns")]
#[non_exhaustive]
pub struct JobRow {
    pub id: JobId,
    pub queue: String,
    pub kind: String,
    /// Its numbers are rounded to `f64`; [`JobRow::payload_json`] has all their digits.
    #[serde(skip)]
    pub payload: Option<Value>,
    #[serde(rename = "payload")]
    pub(crate) payload_json: Option<Box<RawValue>>,
    pub status: Status,
    pub attempt: i32,
    pub max_attempts: i32,
    pub fencing_token: i64,
    pub worker_id: Option<String>,
    pub created_at: DateTime<Utc>,
    pub scheduled_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub last_activity_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub stage: Option<String>,
    pub progress: Option<f32>,
    pub message: Option<String>,
    /// Its numbers are rounded to `f64`; [`JobRow::output_json`] has all their digits.
    #[serde(skip)]
    pub output: Option<Value>,
    #[serde(rename = "output")]
    pub(crate) output_json: Option<Box<RawValue>>,
    pub last_error: Option<String>,
}

impl JobRow {
    /// The payload as JSON text, as the database has it: numbers keep all their digits. Serializing the row writes it.
    #[must_use]
    pub fn payload_json(&self) -> Option<&RawValue> {
        self.payload_json.as_deref()
    }

    /// The output as JSON text, as the database has it: numbers keep all their digits. Serializing the row writes it.
    #[must_use]
    pub fn output_json(&self) -> Option<&RawValue> {
        self.output_json.as_deref()
    }
}

/// An attempt as `tenure.job_executions_all` shows it.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the view's columns")]
#[non_exhaustive]
pub struct ExecutionRow {
    pub fencing_token: i64,
    pub attempt: i32,
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
    pub fencing_token: i64,
    pub owner_before: Option<String>,
    pub silence_s: Option<f64>,
    pub reason: String,
    pub recovered_by: String,
}

/// Postgres integers are signed; what tenure counts fits, and more would be a bug in a row.
pub(super) fn ordinals(n: usize) -> Vec<i32> {
    (0..i32::try_from(n).unwrap_or(i32::MAX)).collect()
}

pub(super) fn ord(row: &PgRow) -> Result<usize, sqlx::Error> {
    Ok(usize::try_from(row.try_get::<i32, _>("ord")?).unwrap_or(usize::MAX))
}

pub(super) fn status(row: &PgRow) -> Result<Status, sqlx::Error> {
    let status: &str = row.try_get("status")?;
    status.parse().map_err(|error: String| sqlx::Error::Decode(error.into()))
}

pub(super) fn json(text: Option<String>) -> Option<Value> {
    // It comes from a jsonb column: it is JSON. A number too large for f64 is shown as null.
    text.map(|text| serde_json::from_str(&text).unwrap_or_default())
}

/// JSON from a jsonb column, untouched.
pub(super) fn raw(text: Option<String>) -> Option<Box<RawValue>> {
    text.and_then(|text| RawValue::from_string(text).ok())
}

/// JSON without the spaces between its tokens.
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

/// JSON from a jsonb column as a value, whose numbers are rounded, and as text with all its digits, as compact as
/// `serde_json` writes a value.
pub(super) fn both(text: Option<String>) -> (Option<Value>, Option<Box<RawValue>>) {
    (json(text.clone()), raw(text.as_deref().map(compact)))
}

/// What the items of a batch have in common: sent once, and named by its place.
pub(super) struct Shapes<T>(Vec<T>);

impl<T> Default for Shapes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Shapes<T> {
    /// The place of a shape, from 1, as SQL counts. A batch has few: the latest are looked at first.
    pub(super) fn place(&mut self, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> i32 {
        let found = self.0.iter().rposition(is_same).unwrap_or_else(|| {
            self.0.push(new());
            self.0.len() - 1
        });
        i32::try_from(found + 1).unwrap_or(i32::MAX)
    }

    pub(super) fn column<C>(&self, of: impl Fn(&T) -> C) -> Vec<C> {
        self.0.iter().map(of).collect()
    }
}

pub(super) struct Keys {
    pub(super) jobs: Vec<JobId>,
    pub(super) tokens: Vec<FencingToken>,
    pub(super) claims: Vec<Uuid>,
    pub(super) ords: Vec<i32>,
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

pub(super) fn ended(rows: &[PgRow]) -> Result<Vec<EndedAttempt>, sqlx::Error> {
    rows.iter()
        .map(|row| {
            let route = match row.try_get::<&str, _>("route")? {
                "queued" => Route::Queued,
                "cancelled" => Route::Cancelled,
                _ => Route::Failed,
            };
            let silence_s: Option<f64> = row.try_get("silence_s")?;
            Ok(EndedAttempt {
                ord: ord(row)?,
                job: row.try_get("id")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                token: row.try_get("fencing_token")?,
                owner: row.try_get("worker_id")?,
                route,
                silence: Duration::try_from_secs_f64(silence_s.unwrap_or(0.0)).unwrap_or_default(),
            })
        })
        .collect()
}

/// How many jobs break a rule, and the first of them.
#[derive(Debug, Clone)]
pub(crate) struct RuleBroken {
    pub(crate) jobs: u64,
    pub(crate) examples: Vec<JobId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compacted_between_its_tokens_alone() {
        for (json, compacted) in [
            (r#"{"a": [1, 2.50], "b c": "d  e"}"#, r#"{"a":[1,2.50],"b c":"d  e"}"#),
            (r#"{"quote \" and \\": "x \" y"}"#, r#"{"quote \" and \\":"x \" y"}"#),
            ("3.141592653589793238462643383279", "3.141592653589793238462643383279"),
        ] {
            assert_eq!(compact(json), compacted);
        }
    }
}
