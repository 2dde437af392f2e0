//! Audit: the acts that the statements have noted.
//!
//! Not here: the notes themselves. Each statement that acts inserts its own (`in_audit` in its text), so that no act is
//! without one, and no note without its act.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{Row, postgres::PgRow, query};

use crate::{
    job::actor::Actor,
    store::{
        Store, StoreError,
        rows::{AGE_MAX, raw},
        statement_list,
    },
};

statement_list! {
    LIST_AUDIT = "sql" "list_audit";
    NOTE_ACT = "sql" "note_act";
    PURGE_AUDIT = "sql" "purge_audit";
}

/// Which acts to list: see [`Tenure::audit`](crate::Tenure::audit). What is not set matches all.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use = "give it to `Tenure::audit`"]
pub struct AuditFilter {
    since: Option<Duration>,
    queue: Option<String>,
    act: Option<String>,
    by: Option<String>,
    subject: Option<String>,
    before: Option<i64>,
}

impl AuditFilter {
    /// All acts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Those of this time until now.
    pub fn since(mut self, age: Duration) -> Self {
        self.since = Some(age);
        self
    }

    /// Those on this queue, or on jobs of this queue alone.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Those of this name, such as `cancel`: see [`AuditRow::act`].
    pub fn act(mut self, act: impl Into<String>) -> Self {
        self.act = Some(act.into());
        self
    }

    /// Those of this user, or of this role of Postgres.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Those on this job, lane, schedule or redrive: see [`AuditRow::subject`].
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Those before this one ([`AuditRow::id`]): the next page.
    pub fn before(mut self, id: i64) -> Self {
        self.before = Some(id);
        self
    }
}

/// An act: who did what, to how many jobs.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AuditRow {
    /// Its number: later acts have higher ones.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// The role of Postgres that acted.
    pub role: String,
    /// The address from which its connection came; `None`: by a socket of the same host.
    pub address: Option<String>,
    /// By what: `command line`, `dashboard`, `api`, `gateway`, `library`, `sql`, or what
    /// [`Actor::via`](crate::audit::Actor::via) said.
    pub via: String,
    /// The user, as the program named them.
    pub actor: Option<String>,
    /// What: the name of the method of [`Tenure`](crate::Tenure), such as `cancel`, `redrive` or `pause_queue`.
    pub act: String,
    /// The queue; `None`: jobs of several.
    pub queue: Option<String>,
    /// The job, if it was one; the lane, the schedule or the redrive.
    pub subject: Option<String>,
    /// How many jobs, if it was about jobs.
    pub jobs: Option<u64>,
    /// What was set, or which jobs were asked for.
    pub details: Option<Box<RawValue>>,
}

impl Store {
    /// Notes an act that is no statement of its own, before it is done.
    pub(crate) async fn note_act(
        &self,
        by: &Actor,
        act: &str,
        queue: Option<&str>,
        subject: Option<&str>,
        details: Option<&Value>,
    ) -> Result<(), StoreError> {
        let note = query(NOTE_ACT).bind(by.bound()).bind(act).bind(queue).bind(subject);
        self.rows(note.bind(details.map(Value::to_string))).await.map(drop)
    }

    /// Returns at most `limit` acts, the latest first.
    pub(crate) async fn list_audit(
        &self,
        filter: &AuditFilter,
        limit: i64,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let AuditFilter { since, queue, act, by, subject, before } = filter;
        let query = query(LIST_AUDIT)
            .bind(since.map(|age| age.min(AGE_MAX).as_secs_f64()))
            .bind(queue)
            .bind(act)
            .bind(by)
            .bind(subject)
            .bind(before)
            .bind(limit);
        let rows = self.rows(query).await?;
        let act = |row: &PgRow| {
            Ok(AuditRow {
                id: row.try_get("id")?,
                at: row.try_get("at")?,
                role: row.try_get("role")?,
                address: row.try_get("address")?,
                via: row.try_get("via")?,
                actor: row.try_get("actor")?,
                act: row.try_get("act")?,
                queue: row.try_get("queue")?,
                subject: row.try_get("subject")?,
                jobs: row.try_get::<Option<i64>, _>("jobs")?.map(i64::unsigned_abs),
                details: raw(row.try_get("details")?),
            })
        };
        Ok(rows.iter().map(act).collect::<Result<_, sqlx::Error>>()?)
    }
}

impl Store {
    /// Removes at most `step` old acts.
    pub(crate) async fn purge_audit(&self, keep: Duration, step: i32) -> Result<u64, StoreError> {
        self.purge_some(PURGE_AUDIT, keep, step).await
    }
}
