//! Dead: the statements of dead letters. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{Postgres, Row, postgres::PgArguments, postgres::PgRow, query, query::Query};

use super::{
    DEAD_COUNTS, DEAD_IDS, DEAD_LETTER, DEAD_LETTERS, PURGE_DEAD, REDRIVE,
    call::{Store, StoreError},
    rows::{AGE_MAX, bytes_of, json, raw, u32_of, u64_of},
};
use crate::job::{JobId, actor::Actor, claim::FencingToken};

/// Selects dead letters. The default selects all.
///
/// ```
/// use std::time::Duration;
/// use tenure::rows::DeadFilter;
///
/// let filter = DeadFilter::new().kind("charge").category("lost").older_than(Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DeadFilter {
    queue: Option<String>,
    kind: Option<String>,
    category: Option<String>,
    older_than: Duration,
    error: Option<String>,
    until: Option<DateTime<Utc>>,
    group: Option<String>,
    tags: Vec<String>,
    before: Option<(DateTime<Utc>, JobId)>,
}

impl DeadFilter {
    /// Creates a filter that selects all dead letters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only dead letters of this queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Selects only dead letters of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Selects only dead letters of this category; [`DeadLetter::category`] lists the categories.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Selects only jobs that died at least this long ago, by the database's clock.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Selects only dead letters whose error contains this text literally: `%` and `_` stand for themselves.
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Selects only dead letters of one queue, kind and category whose errors read alike but for numbers, IDs and
    /// quoted texts. Takes the group's ID, which `tenure dead groups` lists and the dashboard's address of the group
    /// holds.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Selects only jobs with this tag; called several times, only jobs with all of these tags.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Selects only dead letters that a list shows after the one with this time of death and this id. A redrive or a
    /// purge ignores it.
    #[must_use]
    pub fn before(mut self, died_at: DateTime<Utc>, id: JobId) -> Self {
        self.before = Some((died_at, id));
        self
    }

    /// Selects only jobs that had died by this time, by the database's clock. Of two such times the earlier holds.
    #[must_use]
    pub fn until(mut self, died_at: DateTime<Utc>) -> Self {
        self.until = Some(self.until.map_or(died_at, |until| until.min(died_at)));
        self
    }

    /// Fixes the ages of this filter as of `now`: dead letters that get old enough later do not match.
    pub(crate) fn as_of(&self, now: DateTime<Utc>) -> Self {
        let age = chrono::TimeDelta::from_std(self.older_than).unwrap_or(chrono::TimeDelta::MAX);
        let until = now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
        Self { older_than: Duration::ZERO, ..self.clone().until(until) }
    }

    /// The fields that are set, as JSON text: what a person asked for.
    pub(crate) fn named(&self) -> String {
        let older_than = (!self.older_than.is_zero()).then_some(self.older_than.as_secs_f64());
        let all = serde_json::json!({
            "queue": self.queue, "kind": self.kind, "category": self.category, "group": self.group,
            "error": self.error, "older_than_s": older_than, "until": self.until, "tags": self.tags_bound(),
        });
        let set = all.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        Value::Object(set.map(|(name, value)| (name.clone(), value.clone())).collect()).to_string()
    }

    pub(crate) fn bind<'q>(
        &self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        // An age beyond Postgres's interval means for ever.
        let age = self.older_than.min(AGE_MAX);
        query
            .bind(self.queue.clone())
            .bind(self.kind.clone())
            .bind(self.category.clone())
            .bind(age.as_secs_f64())
            .bind(self.error.clone())
            .bind(self.until)
            .bind(self.group.clone())
            .bind(self.tags_bound())
    }

    fn tags_bound(&self) -> Option<Vec<String>> {
        (!self.tags.is_empty()).then(|| self.tags.clone())
    }
}

/// A job that failed for good, or a message that could not become one.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its id; a redriven job keeps it.
    pub id: JobId,
    /// The queue it was in; `?` if a refused message's subject names none.
    pub queue: String,
    /// Its kind; `?` likewise.
    pub kind: String,
    /// The subject of a refused message.
    pub subject: Option<String>,
    /// How many attempts were made.
    pub attempt: u32,
    /// How many were allowed.
    pub max_attempts: u32,
    /// The token of the last attempt.
    pub fencing_token: FencingToken,
    /// The worker that made the last attempt.
    pub worker_id: Option<String>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it died.
    pub died_at: DateTime<Utc>,
    /// How often it lost its worker.
    pub losses: u32,
    /// The error of the last attempt, or the reason why the message was refused.
    pub last_error: String,
    /// Why it died, as a word to count and filter by: `exhausted` (no attempt left), `permanent` (the handler said
    /// so), `lost` (it lost its worker too often, or once more than its kind allows), `silent` (the same, but the
    /// worker lives: the handler was silent for longer than `stale_after`), `interrupted` (the attempt ended in the
    /// middle, and the kind must not run twice), `invalid_payload` (not what the handler's type expects),
    /// `invalid_output`, `refused` (Postgres refused a value to be written), `unknown_kind`, `expired`
    /// (not started by its time); for messages: `malformed`, `too_large`.
    pub category: String,
    /// Whether it is a message that never became a job: it has bytes instead of a payload, and cannot be redriven.
    pub refused: bool,
    /// How many bytes a refused message has.
    pub raw_bytes: Option<usize>,
    /// The job's payload as the database holds it: numbers keep all their digits. Not in a list.
    pub payload: Option<Box<RawValue>>,
    /// The bytes of a refused message. Not in a list.
    #[serde(skip)]
    pub raw_payload: Option<Vec<u8>>,
    /// The last checkpoint. Not in a list.
    pub checkpoint: Option<Box<RawValue>>,
    /// Every attempt, oldest first. Not in a list.
    pub execution_history: Option<Value>,
}

/// The number of dead letters of one queue, kind and category.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the statement's columns")]
#[non_exhaustive]
pub struct DeadCount {
    pub queue: String,
    pub kind: String,
    pub category: String,
    pub jobs: u64,
    pub oldest: DateTime<Utc>,
    pub newest: DateTime<Utc>,
}

impl Store {
    /// Returns at most `limit` dead letters, the latest first, without their payloads.
    pub async fn dead_letters(&self, filter: &DeadFilter, limit: i64) -> Result<Vec<DeadLetter>, StoreError> {
        let (died_at, id) = filter.before.unzip();
        let query = filter.bind(query(DEAD_LETTERS)).bind(limit).bind(died_at).bind(id);
        let rows = self.rows(query).await?;
        Ok(rows.iter().map(letter).collect::<Result<_, _>>()?)
    }

    /// Returns one dead letter with its payload, checkpoint and attempts.
    pub async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        let rows = self.rows(query(DEAD_LETTER).bind(id)).await?;
        let whole = |row: &PgRow| {
            Ok::<_, sqlx::Error>(DeadLetter {
                payload: raw(row.try_get("payload")?),
                raw_payload: row.try_get("raw_payload")?,
                checkpoint: raw(row.try_get("checkpoint")?),
                execution_history: json(row.try_get("execution_history")?),
                ..letter(row)?
            })
        };
        Ok(rows.first().map(whole).transpose()?)
    }

    /// Returns the number of dead letters by queue, kind and category.
    pub(crate) async fn dead_counts(&self) -> Result<Vec<DeadCount>, StoreError> {
        let rows = self.rows(query(DEAD_COUNTS)).await?;
        let count = |row: &PgRow| {
            Ok(DeadCount {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                category: row.try_get("category")?,
                jobs: u64_of(row, "jobs")?,
                oldest: row.try_get("oldest")?,
                newest: row.try_get("newest")?,
            })
        };
        Ok(rows.iter().map(count).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns at most `limit` dead letters that can be redriven, the oldest first.
    pub(crate) async fn dead_ids(&self, filter: &DeadFilter, limit: i64) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(filter.bind(query(DEAD_IDS)).bind(limit)).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Redrives dead letters; returns those that went back to the queue.
    pub(crate) async fn redrive(&self, jobs: &[JobId], by: &Actor) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(query(REDRIVE).bind(jobs).bind(by.bound())).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Purges at most `limit` dead letters, the oldest first, of all or `of` these jobs; returns how many.
    pub(crate) async fn purge_dead(
        &self,
        filter: &DeadFilter,
        limit: i64,
        of: Option<&[JobId]>,
        by: &Actor,
    ) -> Result<u64, StoreError> {
        let purge = filter.bind(query(PURGE_DEAD)).bind(limit).bind(of).bind(by.bound());
        Ok(self.rows(purge).await?.len() as u64)
    }
}

fn letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        subject: row.try_get("subject")?,
        attempt: u32_of(row, "attempt")?,
        max_attempts: u32_of(row, "max_attempts")?,
        fencing_token: row.try_get("fencing_token")?,
        worker_id: row.try_get("worker_id")?,
        created_at: row.try_get("created_at")?,
        died_at: row.try_get("died_at")?,
        losses: u32_of(row, "losses")?,
        last_error: row.try_get("last_error")?,
        category: row.try_get("category")?,
        refused: row.try_get("refused")?,
        raw_bytes: bytes_of(row, "raw_bytes")?,
        payload: None,
        raw_payload: None,
        checkpoint: None,
        execution_history: None,
    })
}
