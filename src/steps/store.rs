//! Steps: what handlers record of their work outside SQL.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{Row, postgres::PgRow, query};

use crate::{
    job::{
        JobId,
        claim::{ClaimKey, FencingToken},
    },
    store::{
        EFFECT, Store, StoreError,
        rows::{Keys, ord},
        statement_list,
    },
};

statement_list! {
    STEPS = "sql" "steps";
    RECORD_STEPS = "sql" "record_steps";
    LIST_STEPS = "sql" "list_steps";
}

/// A step that a handler has done, or a sleep that begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepWrite {
    pub(crate) key: ClaimKey,
    pub(crate) name: String,
    /// JSON text.
    pub(crate) result: String,
    pub(crate) step: Step,
}

/// What is recorded, with the time that the step has taken, or that the sleep lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Step(Duration),
    Sleep(Duration),
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Self::Step(_) => "step",
            Self::Sleep(_) => "sleep",
        }
    }

    fn seconds(self) -> f64 {
        let (Self::Step(lasts) | Self::Sleep(lasts)) = self;
        lasts.as_secs_f64()
    }
}

/// What became of a [`StepWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recording {
    Recorded,
    /// Another effect of the job has the name, or an earlier call has recorded the step meanwhile.
    NameTaken,
    /// The job is not this attempt's any more, or its row is locked.
    NotWritten,
}

/// What an attempt of the job has recorded under a name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Recorded {
    /// The result of a step, as JSON text; `None`: it is large, and read when it is asked for.
    Step(Option<String>),
    /// A sleep, and what is left of it.
    Sleep(Duration),
    /// Something else: an effect of `once`, or a step that this release does not know.
    Other,
}

impl Store {
    /// Records steps under the fence. Returns what became of each.
    pub(crate) async fn record_steps(&self, writes: &[StepWrite]) -> Result<Vec<Recording>, StoreError> {
        let mut claims: Vec<_> = writes.iter().map(|write| write.key).collect();
        claims.sort_unstable();
        claims.dedup();
        let keys: Keys = claims.iter().collect();
        let of = |each: fn(&StepWrite) -> &str| writes.iter().map(each).collect::<Vec<_>>();
        let query = query(RECORD_STEPS)
            .bind(keys.jobs)
            .bind(keys.tokens)
            .bind(keys.claims)
            .bind(writes.iter().map(|write| write.key.claim).collect::<Vec<_>>())
            .bind(of(|write| &write.name))
            .bind(of(|write| write.step.word()))
            .bind(of(|write| &write.result))
            .bind(writes.iter().map(|write| write.step.seconds()).collect::<Vec<_>>());
        let mut answers = vec![Recording::NotWritten; writes.len()];
        for row in self.rows(query).await? {
            if let Some(answer) = answers.get_mut(ord(&row)?) {
                let recorded = row.try_get("recorded")?;
                *answer = if recorded { Recording::Recorded } else { Recording::NameTaken };
            }
        }
        Ok(answers)
    }

    /// Returns the result of a recorded step, as JSON text.
    pub(crate) async fn step_result(&self, job: JobId, name: &str) -> Result<String, StoreError> {
        let rows = self.rows(query(EFFECT).bind(job).bind(name)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("result")?)
    }

    /// Returns what the attempts of a job have recorded, each with its name; or what they have under this name.
    pub(crate) async fn steps(
        &self,
        job: JobId,
        name: Option<&str>,
    ) -> Result<Vec<(String, Recorded)>, StoreError> {
        let rows = self.rows(query(STEPS).bind(job).bind(name)).await?;
        let step = |row: &PgRow| {
            let recorded = match row.try_get::<Option<&str>, _>("step_kind")? {
                Some("step") => Recorded::Step(row.try_get("result")?),
                Some("sleep") => {
                    let left: Option<f64> = row.try_get("left_s")?;
                    Recorded::Sleep(Duration::try_from_secs_f64(left.unwrap_or_default()).unwrap_or_default())
                }
                _ => Recorded::Other,
            };
            Ok((row.try_get("key")?, recorded))
        };
        Ok(rows.iter().map(step).collect::<Result<_, sqlx::Error>>()?)
    }
}

/// What an attempt of a job has recorded: a row of `tenure.effects`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StepRow {
    /// The name of a step or a sleep, or the key of an effect.
    pub name: String,
    /// `step`, `sleep`, or `effect`: the work of [`JobContext::once`](crate::JobContext::once).
    pub step: String,
    /// The token of the attempt that recorded it.
    pub fencing_token: FencingToken,
    /// When a step or a sleep began.
    pub began_at: Option<DateTime<Utc>>,
    /// When it was recorded: at the end of a step or an effect, at the beginning of a sleep.
    pub recorded_at: DateTime<Utc>,
    /// The end of a sleep.
    pub wakes_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Returns the latest `most` steps, sleeps and effects of one job, oldest first.
    pub async fn list_steps(&self, job: JobId, most: i64) -> Result<Vec<StepRow>, StoreError> {
        let rows = self.rows(query(LIST_STEPS).bind(job).bind(most)).await?;
        let step = |row: &PgRow| {
            Ok(StepRow {
                name: row.try_get("key")?,
                step: row.try_get("step")?,
                fencing_token: row.try_get("fencing_token")?,
                began_at: row.try_get("began_at")?,
                recorded_at: row.try_get("created_at")?,
                wakes_at: row.try_get("wakes_at")?,
            })
        };
        Ok(rows.iter().map(step).collect::<Result<_, sqlx::Error>>()?)
    }
}
