//! Quarantines: the statements of kinds that mostly fail. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use crate::{
    job::{JobId, actor::Actor, claim::ClaimKey},
    store::{
        Store, StoreError,
        rows::{u32_of, u64_of},
        statement_list,
    },
};

statement_list! {
    PUT_QUARANTINE = "sql" "put_quarantine";
    REMOVE_QUARANTINE = "sql" "remove_quarantine";
    END_QUARANTINE = "sql" "end_quarantine";
    LIST_QUARANTINES = "sql" "list_quarantines";
    WATCHED_KINDS = "sql" "watched_kinds";
    REPORT_QUARANTINE = "sql" "report_quarantine";
    TAKE_PROBE = "sql" "take_probe";
    TEND_QUARANTINES = "sql" "tend_quarantines";
    CALL_QUARANTINED = "sql" "call_quarantined";
}

/// A kind that is watched, or in quarantine.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct QuarantineRow {
    /// The kind.
    pub kind: String,
    /// The share of failed attempts, from 0 to 1, above which the quarantine begins.
    pub share: f64,
    /// How many attempts must have ended, at least.
    pub attempts: u32,
    /// The time within which they count, in seconds.
    pub within_s: f64,
    /// The time between two probes, in seconds.
    pub probe_every_s: f64,
    /// Since when it has been in quarantine. `None`: its jobs run.
    pub began_at: Option<DateTime<Utc>>,
    /// The attempts at which its last quarantine began.
    pub ended: Option<u64>,
    /// How many of these had failed.
    pub failed: Option<u64>,
    /// The attempts that count towards the rule now.
    pub lately_ended: u64,
    /// How many of these have failed.
    pub lately_failed: u64,
    /// How many jobs wait for the end of the quarantine, as far as the workers have noted them.
    pub waiting: u64,
    /// How many jobs were tried in the last quarantine.
    pub probes: u64,
    /// How the last of them ended: `completed`, `failed` or `undecided`.
    pub last_probe: Option<String>,
    /// The job that is tried now.
    pub probe_job: Option<Uuid>,
    /// When the next one is due.
    pub next_probe_at: Option<DateTime<Utc>>,
}

/// When to begin a quarantine, and how often to try a job in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuarantineRule {
    pub(crate) share: f64,
    pub(crate) attempts: i32,
    pub(crate) within: Duration,
    pub(crate) probe_every: Duration,
}

/// What a worker needs of a rule.
#[derive(Debug)]
pub(crate) struct WatchedKind {
    pub(crate) kind: String,
    /// The attempts at which the quarantine began, and those that had failed. `None`: the jobs run.
    pub(crate) quarantined: Option<(i64, i64)>,
    /// When a job may be tried. `None`: one is.
    pub(crate) probe_in: Option<Duration>,
}

/// What a worker has seen of a watched kind since its last report.
#[derive(Debug)]
pub(crate) struct KindCounts {
    pub(crate) kind: String,
    pub(crate) ended: i64,
    pub(crate) failed: i64,
}

/// A quarantine that has changed.
#[derive(Debug)]
pub(crate) struct QuarantineChange {
    pub(crate) kind: String,
    /// `began`, `ended`; of a probe that changed nothing: `failed` or `undecided`.
    pub(crate) change: String,
    pub(crate) ended: Option<i64>,
    pub(crate) failed: Option<i64>,
}

/// Whether a job of a kind in quarantine may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeAnswer {
    /// It is the one that is tried.
    Probe,
    /// It waits.
    Wait,
    /// The kind is in quarantine no more.
    Ended,
}

impl Store {
    /// Watches a kind, or changes its rule. Returns whether anything has changed.
    pub(crate) async fn put_quarantine(
        &self,
        kind: &str,
        rule: QuarantineRule,
        by: &Actor,
    ) -> Result<bool, StoreError> {
        let query = query(PUT_QUARANTINE).bind(kind.to_owned()).bind(rule.share).bind(rule.attempts);
        let query =
            query.bind(rule.within.as_secs_f64()).bind(rule.probe_every.as_secs_f64()).bind(by.bound());
        let rows = self.rows(query).await?;
        Ok(rows.first().map_or(Ok(false), |row| row.try_get("changed"))?)
    }

    /// Watches a kind no more. `false`: it was not watched.
    pub(crate) async fn remove_quarantine(&self, kind: &str, by: &Actor) -> Result<bool, StoreError> {
        Ok(!self.rows(query(REMOVE_QUARANTINE).bind(kind.to_owned()).bind(by.bound())).await?.is_empty())
    }

    /// Lets the jobs of a kind run again. `false`: it is not in quarantine.
    pub(crate) async fn end_quarantine(&self, kind: &str, by: &Actor) -> Result<bool, StoreError> {
        Ok(!self.rows(query(END_QUARANTINE).bind(kind.to_owned()).bind(by.bound())).await?.is_empty())
    }

    /// Returns the rules of all kinds, in order of the kinds.
    pub(crate) async fn quarantines(&self) -> Result<Vec<QuarantineRow>, StoreError> {
        let rows = self.rows(query(LIST_QUARANTINES)).await?;
        let count = |row: &PgRow, column| -> Result<Option<u64>, sqlx::Error> {
            Ok(row.try_get::<Option<i64>, _>(column)?.map(i64::unsigned_abs))
        };
        let quarantine = |row: &PgRow| {
            Ok(QuarantineRow {
                kind: row.try_get("kind")?,
                share: row.try_get("share")?,
                attempts: u32_of(row, "attempts")?,
                within_s: row.try_get("within_s")?,
                probe_every_s: row.try_get("probe_every_s")?,
                began_at: row.try_get("began_at")?,
                ended: count(row, "ended")?,
                failed: count(row, "failed")?,
                lately_ended: u64_of(row, "lately_ended")?,
                lately_failed: u64_of(row, "lately_failed")?,
                waiting: u64_of(row, "waiting")?,
                probes: u64_of(row, "probes")?,
                last_probe: row.try_get("last_probe")?,
                probe_job: row.try_get("probe_job")?,
                next_probe_at: row.try_get("next_probe_at")?,
            })
        };
        Ok(rows.iter().map(quarantine).collect::<Result<_, sqlx::Error>>()?)
    }
}

impl Store {
    /// Returns the kinds that are watched.
    pub(crate) async fn watched_kinds(&self) -> Result<Vec<WatchedKind>, StoreError> {
        let rows = self.rows(query(WATCHED_KINDS)).await?;
        let watched = |row: &PgRow| {
            let attempts =
                |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.unwrap_or_default());
            let quarantined: bool = row.try_get("quarantined")?;
            let probe_in: Option<f64> = row.try_get("probe_in_s")?;
            Ok(WatchedKind {
                kind: row.try_get("kind")?,
                quarantined: quarantined
                    .then(|| Ok::<_, sqlx::Error>((attempts("ended")?, attempts("failed")?)))
                    .transpose()?,
                probe_in: probe_in.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
            })
        };
        Ok(rows.iter().map(watched).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Adds a worker's counts, and notes the jobs that it has snoozed.
    pub(crate) async fn report_quarantine(
        &self,
        counts: &[KindCounts],
        snoozed: &[(String, JobId)],
    ) -> Result<(), StoreError> {
        let kinds: Vec<_> = counts.iter().map(|of| of.kind.clone()).collect();
        let (ended, failed): (Vec<_>, Vec<_>) = counts.iter().map(|of| (of.ended, of.failed)).unzip();
        let (of, jobs): (Vec<_>, Vec<_>) = snoozed.iter().map(|(kind, job)| (kind.clone(), job.0)).unzip();
        let query = query(REPORT_QUARANTINE).bind(kinds).bind(ended).bind(failed).bind(of).bind(jobs);
        self.rows(query).await.map(drop)
    }

    /// Asks whether a job of a kind in quarantine is the one to try.
    pub(crate) async fn take_probe(
        &self,
        kind: &str,
        key: ClaimKey,
        no_history: bool,
    ) -> Result<ProbeAnswer, StoreError> {
        let query =
            query(TAKE_PROBE).bind(kind.to_owned()).bind(key.job.0).bind(key.token.0).bind(no_history);
        let rows = self.rows(query).await?;
        let answer: String = rows.first().map_or_else(|| Ok(String::new()), |row| row.try_get("answer"))?;
        Ok(match answer.as_str() {
            "probe" => ProbeAnswer::Probe,
            "ended" => ProbeAnswer::Ended,
            _ => ProbeAnswer::Wait,
        })
    }

    /// Begins and ends quarantines.
    pub(crate) async fn tend_quarantines(&self) -> Result<Vec<QuarantineChange>, StoreError> {
        let rows = self.rows(query(TEND_QUARANTINES)).await?;
        let change = |row: &PgRow| {
            Ok(QuarantineChange {
                kind: row.try_get("kind")?,
                change: row.try_get("change")?,
                ended: row.try_get("ended")?,
                failed: row.try_get("failed")?,
            })
        };
        Ok(rows.iter().map(change).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Takes from the list at most `most` jobs that need to wait no more, and those to try.
    pub(crate) async fn call_quarantined(&self, most: i64) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(query(CALL_QUARANTINED).bind(most)).await?;
        let job = |row: &PgRow| Ok(JobId(row.try_get("job_id")?));
        Ok(rows.iter().map(job).collect::<Result<_, sqlx::Error>>()?)
    }
}
