//! Redrives: the statements of calm redrives. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use crate::{
    job::actor::Actor,
    store::{
        DeadFilter, Store, StoreError,
        rows::{raw, u32_of, u64_of},
        statement_list,
    },
};

statement_list! {
    START_REDRIVE = "sql" "start_redrive";
    LIST_REDRIVES = "sql" "list_redrives";
    STOP_REDRIVE = "sql" "stop_redrive";
    TEND_REDRIVES = "sql" "tend_redrives";
}

/// A million dead letters are listed in some 10 s.
const STARTED_WITHIN: Duration = Duration::from_mins(5);

/// A calm redrive: a part of the dead letters first, then the others for as long as few of them fail.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RedriveRow {
    /// Its id.
    pub id: Uuid,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// Which dead letters: the fields of the filter that it began with.
    pub selection: Option<Box<RawValue>>,
    /// The jobs of the canary.
    pub canary: u32,
    /// The most jobs a second after the canary. `None`: as fast as they end well.
    pub rate: Option<f64>,
    /// The share of failures, from 0 to 1, at which it stops.
    pub stop_at: f64,
    /// How many dead letters it has listed.
    pub jobs: u64,
    /// How many of them it has redriven.
    pub redriven: u64,
    /// How many of these have completed.
    pub completed: u64,
    /// How many have failed an attempt since. A job that completes with a later attempt counts, too.
    pub failed: u64,
    /// How many were cancelled.
    pub cancelled: u64,
    /// How many wait for a time, an event or other jobs, without a failure so far.
    pub waiting: u64,
    /// How many were no dead letters any more when their turn came.
    pub missing: u64,
    /// `canary`, `running`, `done`, `stopped` (too many have failed) or `cancelled` (a person has stopped it).
    pub state: String,
    /// Why it has stopped.
    pub reason: Option<String>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

/// What a calm redrive begins with.
#[derive(Debug)]
pub(crate) struct NewRedrive {
    pub(crate) canary: i32,
    pub(crate) rate: Option<f64>,
    pub(crate) stop_at: f64,
}

/// A redrive that has changed.
#[derive(Debug)]
pub(crate) struct RedriveChange {
    pub(crate) id: Uuid,
    /// Its new state, if it has changed.
    pub(crate) state: Option<String>,
    /// How many jobs it has just redriven.
    pub(crate) queued: usize,
    pub(crate) redriven: i64,
    pub(crate) failed: i64,
    pub(crate) jobs: i64,
    pub(crate) reason: Option<String>,
}

impl Store {
    /// Begins a calm redrive. `None`: no dead letter matches.
    pub(crate) async fn start_redrive(
        &self,
        filter: &DeadFilter,
        new: &NewRedrive,
        by: &Actor,
    ) -> Result<Option<RedriveRow>, StoreError> {
        let query = filter.bind(query(START_REDRIVE)).bind(filter.named()).bind(new.canary);
        let rows =
            self.rows_aside(STARTED_WITHIN, query.bind(new.rate).bind(new.stop_at).bind(by.bound())).await?;
        Ok(rows.first().map(redrive).transpose()?)
    }

    /// Returns calm redrives, the latest first, or the one with this id.
    pub(crate) async fn redrives(&self, id: Option<Uuid>, limit: i64) -> Result<Vec<RedriveRow>, StoreError> {
        let rows = self.rows(query(LIST_REDRIVES).bind(id).bind(limit)).await?;
        Ok(rows.iter().map(redrive).collect::<Result<_, _>>()?)
    }

    /// Stops a calm redrive. `false`: it is not open.
    pub(crate) async fn stop_redrive(&self, id: Uuid, by: &Actor) -> Result<bool, StoreError> {
        Ok(!self.rows(query(STOP_REDRIVE).bind(id).bind(by.bound())).await?.is_empty())
    }

    /// Goes on with the calm redrives that are open.
    pub(crate) async fn tend_redrives(&self, most: i32) -> Result<Vec<RedriveChange>, StoreError> {
        let rows = self.rows(query(TEND_REDRIVES).bind(most)).await?;
        let change = |row: &PgRow| {
            Ok(RedriveChange {
                id: row.try_get("redrive_id")?,
                state: row
                    .try_get::<bool, _>("has_changed")?
                    .then(|| row.try_get("now_state"))
                    .transpose()?,
                queued: usize::try_from(row.try_get::<i64, _>("queued")?).unwrap_or_default(),
                redriven: row.try_get("redriven")?,
                failed: row.try_get("failed")?,
                jobs: row.try_get("jobs")?,
                reason: row.try_get("why")?,
            })
        };
        Ok(rows.iter().map(change).collect::<Result<_, sqlx::Error>>()?)
    }
}

fn redrive(row: &PgRow) -> Result<RedriveRow, sqlx::Error> {
    Ok(RedriveRow {
        id: row.try_get("id")?,
        started_at: row.try_get("started_at")?,
        selection: raw(row.try_get("selection")?),
        canary: u32_of(row, "canary")?,
        rate: row.try_get("rate")?,
        stop_at: row.try_get("stop_at")?,
        jobs: u64_of(row, "jobs")?,
        redriven: u64_of(row, "redriven")?,
        completed: u64_of(row, "completed")?,
        failed: u64_of(row, "failed")?,
        cancelled: u64_of(row, "cancelled")?,
        waiting: u64_of(row, "waiting")?,
        missing: u64_of(row, "missing")?,
        state: row.try_get("state")?,
        reason: row.try_get("reason")?,
        ended_at: row.try_get("ended_at")?,
    })
}
