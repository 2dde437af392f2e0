//! Kinds: the statements of the figures by kind. One method, one statement.

use sqlx::{Row, postgres::PgRow, query};

use super::{
    DEAD_KINDS, FINISHED_KINDS, LIVE_KINDS,
    call::{Store, StoreError},
};

/// The live jobs of a kind in a queue.
#[derive(Debug, Clone)]
pub struct LiveKind {
    pub queue: String,
    pub kind: String,
    pub due: i64,
    pub scheduled: i64,
    /// Those that their lanes hold.
    pub held: i64,
    pub processing: i64,
}

/// The dead letters of a kind in a queue.
#[derive(Debug, Clone)]
pub struct DeadKind {
    pub queue: String,
    pub kind: String,
    pub dead: i64,
    /// Those that died in the range.
    pub died: i64,
    /// The attempts of those: all of them failed.
    pub attempts: i64,
}

/// How the finished jobs of a kind in a queue have run.
#[derive(Debug, Clone)]
pub struct FinishedKind {
    pub queue: String,
    pub kind: String,
    /// Whether every finished job was read, and not a sample.
    pub is_whole: bool,
    /// How many jobs finished; an estimate, if they were not all read.
    pub jobs: i64,
    /// How many jobs were read; the rest is about these.
    pub read: i64,
    pub completed: i64,
    /// The attempts that were charged, and those of them that failed.
    pub attempts: i64,
    pub failed: i64,
    /// The run time of the last attempt of completed jobs.
    pub median_s: Option<f64>,
    pub p95_s: Option<f64>,
}

impl Store {
    /// Returns the numbers of live jobs of at most `limit` kinds, the largest first.
    pub async fn live_kinds(&self, limit: i64) -> Result<Vec<LiveKind>, StoreError> {
        let rows = self.rows_for_a_look(query(LIVE_KINDS).bind(limit)).await?;
        let kind = |row: &PgRow| {
            Ok(LiveKind {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                due: row.try_get("due")?,
                scheduled: row.try_get("scheduled")?,
                held: row.try_get("held")?,
                processing: row.try_get("processing")?,
            })
        };
        Ok(rows.iter().map(kind).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the numbers of dead letters of at most `limit` kinds, and of those that died in the last `seconds`.
    pub async fn dead_kinds(&self, seconds: i64, limit: i64) -> Result<Vec<DeadKind>, StoreError> {
        let rows = self.rows_for_a_look(query(DEAD_KINDS).bind(seconds).bind(limit)).await?;
        let kind = |row: &PgRow| {
            Ok(DeadKind {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                dead: row.try_get("dead")?,
                died: row.try_get("died")?,
                attempts: row.try_get("attempts")?,
            })
        };
        Ok(rows.iter().map(kind).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns how the finished jobs of at most `limit` kinds have run: of the jobs created in the last `slices` slices
    /// of `length_s` seconds, at most `most`.
    pub async fn finished_kinds(
        &self,
        slices: i64,
        length_s: i64,
        most: i64,
        limit: i64,
    ) -> Result<Vec<FinishedKind>, StoreError> {
        let query = query(FINISHED_KINDS).bind(slices).bind(length_s).bind(most).bind(limit);
        let rows = self.rows_for_a_look(query).await?;
        let kind = |row: &PgRow| {
            Ok(FinishedKind {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                is_whole: row.try_get("is_whole")?,
                jobs: row.try_get("jobs")?,
                read: row.try_get("read")?,
                completed: row.try_get("completed")?,
                attempts: row.try_get("attempts")?,
                failed: row.try_get("failed")?,
                median_s: row.try_get("median_s")?,
                p95_s: row.try_get("p95_s")?,
            })
        };
        Ok(rows.iter().map(kind).collect::<Result<_, sqlx::Error>>()?)
    }
}
