//! Dead: the statements of dead letters. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{Postgres, Row, postgres::PgArguments, postgres::PgRow, query, query::Query};

use super::{
    DEAD_COUNTS, DEAD_IDS, DEAD_LETTER, DEAD_LETTERS, PURGE_DEAD, REDRIVE,
    call::{Store, StoreError},
    rows::{AGE_MAX, json, raw},
};
use crate::job::JobId;

/// Which dead letters. The default is all of them.
///
/// ```
/// use std::time::Duration;
/// use tenure::DeadFilter;
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
    before: Option<(DateTime<Utc>, JobId)>,
}

impl DeadFilter {
    /// All.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those of this queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Only those of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Only those that died for this reason; [`DeadLetter::category`] lists them.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Only those that died at least this long ago, by the database's clock.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Only those whose error contains this text, just as it is written: `%` and `_` stand for themselves.
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Only what comes after this one in a list: of when it died, and its id. Redriving and purging take no heed of it.
    #[must_use]
    pub fn before(mut self, died_at: DateTime<Utc>, id: JobId) -> Self {
        self.before = Some((died_at, id));
        self
    }

    /// Only those that had died by then, by the database's clock. Of two such times the earlier holds.
    #[must_use]
    pub fn until(mut self, died_at: DateTime<Utc>) -> Self {
        self.until = Some(self.until.map_or(died_at, |until| until.min(died_at)));
        self
    }

    /// The same as of now: what gets old enough later is none of them.
    pub(crate) fn as_of(&self, now: DateTime<Utc>) -> Self {
        let age = chrono::TimeDelta::from_std(self.older_than).unwrap_or(chrono::TimeDelta::MAX);
        let until = now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
        Self { older_than: Duration::ZERO, ..self.clone().until(until) }
    }

    pub(super) fn bind<'q>(
        &self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        // Longer than Postgres's interval is for ever, too.
        let age = self.older_than.min(AGE_MAX);
        query
            .bind(self.queue.clone())
            .bind(self.kind.clone())
            .bind(self.category.clone())
            .bind(age.as_secs_f64())
            .bind(self.error.clone())
            .bind(self.until)
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
    /// Where a refused message was published.
    pub subject: Option<String>,
    /// How many attempts were made.
    pub attempt: i32,
    /// How many were allowed.
    pub max_attempts: i32,
    /// The token of the last attempt.
    pub fencing_token: i64,
    /// Who made the last attempt.
    pub worker_id: Option<String>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it died.
    pub died_at: DateTime<Utc>,
    /// How often its worker was lost.
    pub losses: i32,
    /// What the last attempt said, or why it was refused.
    pub last_error: String,
    /// Why, as a word to count and filter by: `exhausted` (no attempt left), `permanent` (the handler said
    /// so), `lost` (its worker was, too often or once too often for its kind), `interrupted` (ended in the
    /// middle, and its kind must not run twice), `invalid_payload` (not what the handler's type expects),
    /// `invalid_output`, `refused` (Postgres did not take what was to be written), `unknown_kind`; of
    /// messages: `malformed`, `too_large`.
    pub category: String,
    /// Whether it never was a job: it has bytes instead of a payload, and cannot be redriven.
    pub refused: bool,
    /// How many bytes a refused message has.
    pub raw_bytes: Option<i32>,
    /// What it was enqueued with, as the database has it: numbers keep all their digits. Not in a list.
    pub payload: Option<Box<RawValue>>,
    /// The bytes of a refused message. Not in a list.
    #[serde(skip)]
    pub raw_payload: Option<Vec<u8>>,
    /// What its last attempt had saved. Not in a list.
    pub checkpoint: Option<Box<RawValue>>,
    /// Every attempt, oldest first. Not in a list.
    pub execution_history: Option<Value>,
}

/// How many dead letters there are of one queue, kind and category.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the statement's columns")]
#[non_exhaustive]
pub struct DeadCount {
    pub queue: String,
    pub kind: String,
    pub category: String,
    pub jobs: i64,
    pub oldest: DateTime<Utc>,
    pub newest: DateTime<Utc>,
}

impl Store {
    /// Dead letters, the latest first, without their payloads.
    pub(crate) async fn dead_letters(
        &self,
        filter: &DeadFilter,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let (died_at, id) = filter.before.unzip();
        let query = filter.bind(query(DEAD_LETTERS)).bind(limit).bind(died_at).bind(id);
        let rows = self.rows(query).await?;
        Ok(rows.iter().map(letter).collect::<Result<_, _>>()?)
    }

    /// One dead letter, whole.
    pub(crate) async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
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

    /// How many there are.
    pub(crate) async fn dead_counts(&self) -> Result<Vec<DeadCount>, StoreError> {
        let rows = self.rows(query(DEAD_COUNTS)).await?;
        let count = |row: &PgRow| {
            Ok(DeadCount {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                category: row.try_get("category")?,
                jobs: row.try_get("jobs")?,
                oldest: row.try_get("oldest")?,
                newest: row.try_get("newest")?,
            })
        };
        Ok(rows.iter().map(count).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Those that can be redriven and died by then, the oldest first.
    pub(crate) async fn dead_ids(&self, filter: &DeadFilter, limit: i64) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(filter.bind(query(DEAD_IDS)).bind(limit)).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Puts dead jobs back in the queue; returns those that went.
    pub(crate) async fn redrive(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(query(REDRIVE).bind(jobs)).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Removes dead letters, the oldest first, of all or of these; returns how many.
    pub(crate) async fn purge_dead(
        &self,
        filter: &DeadFilter,
        limit: i64,
        of: Option<&[JobId]>,
    ) -> Result<u64, StoreError> {
        Ok(self.rows(filter.bind(query(PURGE_DEAD)).bind(limit).bind(of)).await?.len() as u64)
    }
}

fn letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        subject: row.try_get("subject")?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        fencing_token: row.try_get("fencing_token")?,
        worker_id: row.try_get("worker_id")?,
        created_at: row.try_get("created_at")?,
        died_at: row.try_get("died_at")?,
        losses: row.try_get("losses")?,
        last_error: row.try_get("last_error")?,
        category: row.try_get("category")?,
        refused: row.try_get("refused")?,
        raw_bytes: row.try_get("raw_bytes")?,
        payload: None,
        raw_payload: None,
        checkpoint: None,
        execution_history: None,
    })
}
