//! Rows: what goes into the statements and what comes out. One method, one statement.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use super::{
    ADD_MARK, BURY_UNKNOWN, CLAIM, COMPLETE, CREATE_PARTITIONS, DATABASE_TIME, ENQUEUE, EXECUTIONS,
    HELD_KEYS, LIST_JOBS, MISSED, NOTE_REFUSED, PASSED_MARK, PROGRESS, PUBLISHED, PUT_OFF, RECLAIM_LOST,
    RECOVERIES, REFUSE, REGISTER_WORKER, REMOVE_WORKER, RESET_STALE, RESET_WORKERS, SCAN_GATE,
    SCHEMA_VERSION, SETTLE, SETTLED_AS, SHOW_JOB, STILL_MINE, TAKE_DUE, TAKE_OVER, UNPUBLISHED,
    WORKERS_OF_HOST,
    call::{Store, StoreError},
};
use crate::{
    claim::{Claim, ClaimKey, FencingToken, Missed},
    job::{JobId, Status, storable},
};

/// Who publishes the first message of a new job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The relay, when the job is due.
    Relay,
    /// The caller, as dispatch 1, once the row is committed.
    Ticket,
    /// Nobody: the job came as a message.
    Message,
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
    pub(crate) told: Told,
}

/// A claim to be made.
#[derive(Debug, Clone)]
pub(crate) struct ClaimRequest {
    pub(crate) job: JobId,
    pub(crate) claim: Uuid,
    pub(crate) stale_after: Duration,
}

/// A progress write. `None` leaves what is there.
#[derive(Debug, Clone)]
pub(crate) struct ProgressWrite {
    pub(crate) key: ClaimKey,
    pub(crate) stage: Option<String>,
    pub(crate) percent: Option<f32>,
    pub(crate) message: Option<String>,
    pub(crate) checkpoint: Option<String>,
}

/// A completion to be written.
#[derive(Debug, Clone)]
pub(crate) struct Completion {
    pub(crate) key: ClaimKey,
    pub(crate) output: Option<String>,
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
    pub(crate) token: FencingToken,
    pub(crate) clear_reason: Option<String>,
    pub(crate) trace_context: Option<String>,
}

/// What the scanner may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) in_grace: bool,
    pub(crate) breaker_open: bool,
    pub(crate) running: i64,
    pub(crate) stale: i64,
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
    pub(crate) queues: Vec<String>,
    pub(crate) slots: i32,
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
    pub payload: Option<Value>,
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
    pub output: Option<Value>,
    pub last_error: Option<String>,
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
fn ordinals(n: usize) -> Vec<i32> {
    (0..i32::try_from(n).unwrap_or(i32::MAX)).collect()
}

fn ord(row: &PgRow) -> Result<usize, sqlx::Error> {
    Ok(usize::try_from(row.try_get::<i32, _>("ord")?).unwrap_or(usize::MAX))
}

fn json(text: Option<String>) -> Option<Value> {
    // It comes from a jsonb column: it is JSON. A number too large for f64 is shown as null.
    text.map(|text| serde_json::from_str(&text).unwrap_or_default())
}

struct Keys {
    jobs: Vec<JobId>,
    tokens: Vec<FencingToken>,
    claims: Vec<Uuid>,
    ords: Vec<i32>,
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

/// Builds the one query for many new jobs.
macro_rules! enqueue_query {
    ($jobs:expr) => {{
        let jobs: &[NewJob] = $jobs;
        macro_rules! column {
            ($of:expr) => {
                jobs.iter().map($of).collect::<Vec<_>>()
            };
        }
        query(ENQUEUE)
            .bind(column!(|job| job.id))
            .bind(column!(|job| job.queue.clone()))
            .bind(column!(|job| job.kind.clone()))
            .bind(column!(|job| job.payload.clone()))
            .bind(column!(|job| i32::try_from(job.max_attempts).unwrap_or(i32::MAX)))
            .bind(column!(|job| job.run_at))
            .bind(column!(|job| job.delay.map(|delay| delay.as_secs_f64())))
            .bind(column!(|job| job.trace_context.clone()))
            .bind(column!(|job| job.key.as_ref().map(|(scope, _)| scope.clone())))
            .bind(column!(|job| job.key.as_ref().map(|(_, key)| key.clone())))
            .bind(column!(|job| job.message.map(|(seq, _)| seq.cast_signed())))
            .bind(column!(|job| job.message.map(|(_, at)| at)))
            .bind(column!(|job| match job.told {
                Told::Relay => "relay",
                Told::Ticket => "ticket",
                Told::Message => "message",
            }))
    }};
}

fn created(rows: &[PgRow]) -> Result<HashMap<JobId, bool>, sqlx::Error> {
    rows.iter().map(|row| Ok((row.try_get("id")?, row.try_get("has_message")?))).collect()
}

fn held_keys_query(
    keys: &[(String, String)],
) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    query(HELD_KEYS)
        .bind(keys.iter().map(|(scope, _)| scope.clone()).collect::<Vec<_>>())
        .bind(keys.iter().map(|(_, key)| key.clone()).collect::<Vec<_>>())
        .bind(ordinals(keys.len()))
}

fn holders(rows: &[PgRow], keys: usize) -> Result<Vec<Option<JobId>>, sqlx::Error> {
    let mut holders = vec![None; keys];
    for row in rows {
        if let Some(holder) = holders.get_mut(ord(row)?) {
            *holder = Some(row.try_get("job_id")?);
        }
    }
    Ok(holders)
}

impl Store {
    /// Creates jobs. Returns those that were created, and whether each needs its ticket published now.
    pub(crate) async fn enqueue(&self, jobs: &[NewJob]) -> Result<HashMap<JobId, bool>, StoreError> {
        Ok(created(&self.rows(enqueue_query!(jobs)).await?)?)
    }

    /// [`Store::enqueue`] inside the user's transaction.
    pub(crate) async fn enqueue_in(
        connection: &mut sqlx::PgConnection,
        jobs: &[NewJob],
    ) -> Result<HashMap<JobId, bool>, StoreError> {
        Ok(created(&enqueue_query!(jobs).fetch_all(connection).await?)?)
    }

    /// Who holds each key.
    pub(crate) async fn held_keys(
        &self,
        keys: &[(String, String)],
    ) -> Result<Vec<Option<JobId>>, StoreError> {
        Ok(holders(&self.rows(held_keys_query(keys)).await?, keys.len())?)
    }

    /// [`Store::held_keys`] inside the user's transaction.
    pub(crate) async fn held_keys_in(
        connection: &mut sqlx::PgConnection,
        keys: &[(String, String)],
    ) -> Result<Vec<Option<JobId>>, StoreError> {
        Ok(holders(&held_keys_query(keys).fetch_all(connection).await?, keys.len())?)
    }

    /// Hands jobs to the relay whose first publication failed.
    pub(crate) async fn unpublished(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        self.rows(query(UNPUBLISHED).bind(jobs)).await.map(drop)
    }

    /// Claims jobs. The answer stands at the place of its request. `requests` is sorted by job, without
    /// duplicates.
    pub(crate) async fn claim(
        &self,
        requests: &[ClaimRequest],
        worker_id: &str,
        worker_host: &str,
    ) -> Result<Vec<Option<Claim>>, StoreError> {
        let rows = self
            .rows(
                query(CLAIM)
                    .bind(requests.iter().map(|r| r.job).collect::<Vec<_>>())
                    .bind(requests.iter().map(|r| r.claim).collect::<Vec<_>>())
                    .bind(requests.iter().map(|r| r.stale_after.as_secs_f64()).collect::<Vec<_>>())
                    .bind(ordinals(requests.len()))
                    .bind(worker_id)
                    .bind(worker_host),
            )
            .await?;
        let mut claims = vec![None; requests.len()];
        for row in &rows {
            let claim = Claim {
                key: ClaimKey {
                    job: row.try_get("id")?,
                    token: row.try_get("fencing_token")?,
                    claim: row.try_get("claim_id")?,
                },
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                payload: row.try_get("payload")?,
                attempt: row.try_get::<i32, _>("attempt")?.cast_unsigned(),
                max_attempts: row.try_get::<i32, _>("max_attempts")?.cast_unsigned(),
                checkpoint: json(row.try_get("checkpoint")?),
                trace_context: row.try_get("trace_context")?,
            };
            if let Some(place) = claims.get_mut(ord(row)?) {
                *place = Some(claim);
            }
        }
        Ok(claims)
    }

    /// Why a claim was refused. `dispatch` is the message's; `None` for a submission.
    pub(crate) async fn missed(&self, job: JobId, dispatch: Option<i32>) -> Result<Missed, StoreError> {
        let rows = self.rows(query(MISSED).bind(vec![job]).bind(vec![0])).await?;
        let Some(row) = rows.first() else { return Ok(Missed::NoSuchRow) };
        let Some(status) = row.try_get::<Option<String>, _>("status")? else {
            let finished = row.try_get::<bool, _>("finished")?;
            return Ok(if finished { Missed::Finished } else { Missed::NoSuchRow });
        };
        let newest: i32 = row.try_get("dispatch")?;
        let message_known: bool = row.try_get("message_known")?;
        if message_known && newest > dispatch.unwrap_or(0) {
            return Ok(Missed::Superseded);
        }
        if status == "processing" {
            let stale_in_s: f64 = row.try_get("stale_in_s")?;
            return Ok(match Duration::try_from_secs_f64(stale_in_s) {
                Ok(stale_in) => Missed::Held {
                    owner: row.try_get("worker_id")?,
                    claim: row.try_get("claim_id")?,
                    token: row.try_get("fencing_token")?,
                    stale_in,
                },
                Err(_) => Missed::Stale,
            });
        }
        Ok(match Duration::try_from_secs_f64(row.try_get("due_in_s")?) {
            Ok(due_in) if !due_in.is_zero() => Missed::NotDue { due_in, relayed: !message_known },
            _ => Missed::Free,
        })
    }

    /// Writes progress. `Some(cancel_requested)` at the place of each write whose job still is ours.
    /// `writes` is sorted by job, without duplicates.
    pub(crate) async fn progress(&self, writes: &[ProgressWrite]) -> Result<Vec<Option<bool>>, StoreError> {
        let keys: Keys = writes.iter().map(|write| &write.key).collect();
        let rows = self
            .rows(
                query(PROGRESS)
                    .bind(keys.jobs)
                    .bind(keys.tokens)
                    .bind(keys.claims)
                    .bind(
                        writes
                            .iter()
                            .map(|w| w.stage.as_deref().map(|s| storable(s).into_owned()))
                            .collect::<Vec<_>>(),
                    )
                    .bind(writes.iter().map(|w| w.percent).collect::<Vec<_>>())
                    .bind(
                        writes
                            .iter()
                            .map(|w| w.message.as_deref().map(|s| storable(s).into_owned()))
                            .collect::<Vec<_>>(),
                    )
                    .bind(writes.iter().map(|w| w.checkpoint.clone()).collect::<Vec<_>>())
                    .bind(keys.ords),
            )
            .await?;
        let mut answers = vec![None; writes.len()];
        for row in &rows {
            if let Some(answer) = answers.get_mut(ord(row)?) {
                *answer = Some(row.try_get("cancel_requested")?);
            }
        }
        Ok(answers)
    }

    /// Which of these claims are current.
    pub(crate) async fn still_mine(&self, claims: &[ClaimKey]) -> Result<Vec<bool>, StoreError> {
        let keys: Keys = claims.iter().collect();
        let rows = self
            .rows(query(STILL_MINE).bind(keys.jobs).bind(keys.tokens).bind(keys.claims).bind(keys.ords))
            .await?;
        let mut mine = vec![false; claims.len()];
        for row in &rows {
            if let Some(answer) = mine.get_mut(ord(row)?) {
                *answer = true;
            }
        }
        Ok(mine)
    }

    /// Completes jobs. `true` at the place of each that this call completed. Sorted, without duplicates.
    pub(crate) async fn complete(&self, completions: &[Completion]) -> Result<Vec<bool>, StoreError> {
        let keys: Keys = completions.iter().map(|completion| &completion.key).collect();
        let rows = self
            .rows(
                query(COMPLETE)
                    .bind(keys.jobs)
                    .bind(keys.tokens)
                    .bind(keys.claims)
                    .bind(completions.iter().map(|c| c.output.clone()).collect::<Vec<_>>())
                    .bind(keys.ords),
            )
            .await?;
        let mut done = vec![false; completions.len()];
        for row in &rows {
            if let Some(answer) = done.get_mut(ord(row)?) {
                *answer = true;
            }
        }
        Ok(done)
    }

    /// Ends attempts that did not complete. Those that are missing from the answer were not ours.
    pub(crate) async fn settle(
        &self,
        ends: &[AttemptEnd],
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        let keys: Keys = ends.iter().map(|end| &end.key).collect();
        let rows = self
            .rows(
                query(SETTLE)
                    .bind(keys.jobs)
                    .bind(keys.tokens)
                    .bind(keys.claims)
                    .bind(ends.iter().map(|e| e.verdict).collect::<Vec<_>>())
                    .bind(
                        ends.iter()
                            .map(|e| e.error.as_deref().map(|s| storable(s).into_owned()))
                            .collect::<Vec<_>>(),
                    )
                    .bind(ends.iter().map(|e| e.category).collect::<Vec<_>>())
                    .bind(ends.iter().map(|e| e.delay.as_secs_f64()).collect::<Vec<_>>())
                    .bind(ends.iter().map(|e| e.reason).collect::<Vec<_>>())
                    .bind(keys.ords)
                    .bind(worker_id),
            )
            .await?;
        Ok(ended(&rows)?)
    }

    /// How exactly this claim ended: `None` if nothing is known of it, `Some(None)` while it runs.
    pub(crate) async fn settled_as(&self, claim: &ClaimKey) -> Result<Option<Option<String>>, StoreError> {
        let keys: Keys = [claim].into_iter().collect();
        let rows = self
            .rows(query(SETTLED_AS).bind(keys.jobs).bind(keys.tokens).bind(keys.claims).bind(keys.ords))
            .await?;
        Ok(rows.first().map(|row| row.try_get("outcome")).transpose()?)
    }

    /// Resets silent jobs, the quietest first.
    pub(crate) async fn reset_stale(
        &self,
        limit: i64,
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        Ok(ended(&self.rows(query(RESET_STALE).bind(limit).bind(worker_id)).await?)?)
    }

    /// Resets the jobs of dead processes of one host.
    pub(crate) async fn reset_workers(
        &self,
        dead: &[String],
        hostname: &str,
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        Ok(ended(&self.rows(query(RESET_WORKERS).bind(dead).bind(hostname).bind(worker_id)).await?)?)
    }

    /// Resets one silent job whose message came again.
    pub(crate) async fn take_over(
        &self,
        job: JobId,
        worker_id: &str,
    ) -> Result<Option<EndedAttempt>, StoreError> {
        Ok(ended(&self.rows(query(TAKE_OVER).bind(job).bind(worker_id)).await?)?.pop())
    }

    /// Buries a queued job whose kind nobody knew for too long.
    pub(crate) async fn bury_unknown(
        &self,
        job: JobId,
        longest: Duration,
        error: &str,
    ) -> Result<Option<EndedAttempt>, StoreError> {
        let rows = self.rows(query(BURY_UNKNOWN).bind(job).bind(longest.as_secs_f64()).bind(error)).await?;
        Ok(ended(&rows)?.pop())
    }

    /// Writes a submission that cannot be a job to the dead letters.
    pub(crate) async fn refuse(&self, refused: &Refused) -> Result<(), StoreError> {
        self.rows(
            query(REFUSE)
                .bind(refused.id)
                .bind(&refused.queue)
                .bind(&refused.kind)
                .bind(&refused.subject)
                .bind(&refused.raw)
                .bind(refused.category)
                .bind(storable(&refused.reason))
                .bind(refused.published),
        )
        .await
        .map(drop)
    }

    /// Tells the relay that a job's message is alive and comes again.
    pub(crate) async fn put_off(&self, job: JobId, again_in: Duration) -> Result<(), StoreError> {
        self.rows(query(PUT_OFF).bind(job).bind(again_in.as_secs_f64())).await.map(drop)
    }

    /// Takes jobs whose message shall be published now.
    pub(crate) async fn take_due(&self, limit: i64, again_in: Duration) -> Result<Vec<DueJob>, StoreError> {
        let rows = self.rows(query(TAKE_DUE).bind(limit).bind(again_in.as_secs_f64())).await?;
        let due = |row: &PgRow| {
            Ok(DueJob {
                id: row.try_get("id")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                dispatch: row.try_get("dispatch")?,
                token: row.try_get("fencing_token")?,
                clear_reason: row.try_get("clear_reason")?,
                trace_context: row.try_get("trace_context")?,
            })
        };
        Ok(rows.iter().map(due).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Records that the stream confirmed these messages.
    pub(crate) async fn published(&self, jobs: &[DueJob]) -> Result<(), StoreError> {
        self.rows(
            query(PUBLISHED)
                .bind(jobs.iter().map(|job| job.id).collect::<Vec<_>>())
                .bind(jobs.iter().map(|job| job.dispatch).collect::<Vec<_>>())
                .bind(jobs.iter().map(|job| job.token).collect::<Vec<_>>()),
        )
        .await
        .map(drop)
    }

    /// The only clock.
    pub(crate) async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = self.rows(query(DATABASE_TIME)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get("at")?)
    }

    /// Remembers what the stream held at a moment.
    pub(crate) async fn add_mark(
        &self,
        at: DateTime<Utc>,
        stream_created: &str,
        last_seq: u64,
        gap: Duration,
    ) -> Result<(), StoreError> {
        self.rows(
            query(ADD_MARK)
                .bind(at)
                .bind(stream_created)
                .bind(last_seq.cast_signed())
                .bind(gap.as_secs_f64()),
        )
        .await
        .map(drop)
    }

    /// Until when a published job cannot have a message left, by the marks that were passed.
    pub(crate) async fn passed_mark(
        &self,
        stream_created: &str,
        delivered: u64,
        margin: Duration,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let rows = self
            .rows(
                query(PASSED_MARK)
                    .bind(stream_created)
                    .bind(delivered.cast_signed())
                    .bind(margin.as_secs_f64()),
            )
            .await?;
        Ok(rows.first().map(|row| row.try_get("before")).transpose()?.flatten())
    }

    /// Gives jobs without a message back to the relay; returns how many.
    pub(crate) async fn reclaim_lost(
        &self,
        queue: &str,
        before: DateTime<Utc>,
        limit: i64,
        worker_id: &str,
    ) -> Result<u64, StoreError> {
        let rows =
            self.rows(query(RECLAIM_LOST).bind(queue).bind(before).bind(limit).bind(worker_id)).await?;
        Ok(rows.len() as u64)
    }

    /// Asks whether this worker scans now. `None`: another did.
    pub(crate) async fn scan_gate(
        &self,
        scan_every: Duration,
        stale_after: Duration,
    ) -> Result<Option<Gate>, StoreError> {
        let rows = self
            .rows(query(SCAN_GATE).bind(scan_every.as_secs_f64()).bind(stale_after.as_secs_f64()))
            .await?;
        let gate = |row: &PgRow| {
            Ok::<_, sqlx::Error>(Gate {
                in_grace: row.try_get("in_grace")?,
                breaker_open: row.try_get("breaker_open")?,
                running: row.try_get("running")?,
                stale: row.try_get("stale")?,
            })
        };
        Ok(rows.first().map(gate).transpose()?)
    }

    /// Makes sure that a week of history partitions exists.
    pub(crate) async fn create_partitions(&self) -> Result<(), StoreError> {
        self.rows(query(CREATE_PARTITIONS)).await.map(drop)
    }

    /// Records writes of a worker that no longer owned the job.
    pub(crate) async fn note_refused(
        &self,
        writes: &[(ClaimKey, String)],
        worker_id: &str,
    ) -> Result<(), StoreError> {
        self.rows(
            query(NOTE_REFUSED)
                .bind(writes.iter().map(|(key, _)| key.job).collect::<Vec<_>>())
                .bind(writes.iter().map(|(key, _)| key.token).collect::<Vec<_>>())
                .bind(writes.iter().map(|(_, what)| what.clone()).collect::<Vec<_>>())
                .bind(worker_id),
        )
        .await
        .map(drop)
    }

    /// Registers this process, or renews its row.
    pub(crate) async fn register_worker(&self, worker: &Registration) -> Result<(), StoreError> {
        self.rows(
            query(REGISTER_WORKER)
                .bind(&worker.worker_id)
                .bind(&worker.hostname)
                .bind(worker.pid)
                .bind(&worker.boot_id)
                .bind(&worker.pid_namespace)
                .bind(&worker.pid_started_at)
                .bind(&worker.lock_file)
                .bind(None::<String>)
                .bind(&worker.queues)
                .bind(worker.slots)
                .bind(env!("CARGO_PKG_VERSION")),
        )
        .await
        .map(drop)
    }

    /// Forgets processes that have ended.
    pub(crate) async fn remove_workers(&self, worker_ids: &[String]) -> Result<(), StoreError> {
        self.rows(query(REMOVE_WORKER).bind(worker_ids)).await.map(drop)
    }

    /// The other processes that registered from this host.
    pub(crate) async fn workers_of_host(
        &self,
        hostname: &str,
        worker_id: &str,
    ) -> Result<Vec<HostWorker>, StoreError> {
        let rows = self.rows(query(WORKERS_OF_HOST).bind(hostname).bind(worker_id)).await?;
        let worker = |row: &PgRow| {
            Ok(HostWorker {
                worker_id: row.try_get("worker_id")?,
                pid: row.try_get("pid")?,
                boot_id: row.try_get("boot_id")?,
                pid_namespace: row.try_get("pid_namespace")?,
                pid_started_at: row.try_get("pid_started_at")?,
                lock_file: row.try_get("lock_file")?,
            })
        };
        Ok(rows.iter().map(worker).collect::<Result<_, sqlx::Error>>()?)
    }

    /// The newest migration applied.
    pub(crate) async fn schema_version(&self) -> Result<i64, StoreError> {
        let rows = self.rows(query(SCHEMA_VERSION)).await?;
        Ok(rows.first().map(|row| row.try_get("version")).transpose()?.unwrap_or(0))
    }

    /// Jobs, newest first.
    pub(crate) async fn list_jobs(
        &self,
        status: Option<Status>,
        queue: Option<&str>,
        kind: Option<&str>,
        limit: i64,
    ) -> Result<Vec<JobRow>, StoreError> {
        let rows = self
            .rows(query(LIST_JOBS).bind(status.map(Status::as_str)).bind(queue).bind(kind).bind(limit))
            .await?;
        Ok(rows.iter().map(job_row).collect::<Result<_, _>>()?)
    }

    /// One job, wherever it stands.
    pub(crate) async fn show_job(&self, job: JobId) -> Result<Option<JobRow>, StoreError> {
        let rows = self.rows(query(SHOW_JOB).bind(job)).await?;
        Ok(rows.first().map(job_row).transpose()?)
    }

    /// Every attempt of one job.
    pub(crate) async fn executions(&self, job: JobId) -> Result<Vec<ExecutionRow>, StoreError> {
        let rows = self.rows(query(EXECUTIONS).bind(job)).await?;
        let execution = |row: &PgRow| {
            Ok(ExecutionRow {
                fencing_token: row.try_get("fencing_token")?,
                attempt: row.try_get("attempt")?,
                worker_id: row.try_get("worker_id")?,
                started_at: row.try_get("started_at")?,
                finished_at: row.try_get("finished_at")?,
                outcome: row.try_get("outcome")?,
                error: row.try_get("error")?,
            })
        };
        Ok(rows.iter().map(execution).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What was recovered or refused of one job.
    pub(crate) async fn recoveries(&self, job: JobId) -> Result<Vec<RecoveryRow>, StoreError> {
        let rows = self.rows(query(RECOVERIES).bind(job)).await?;
        let event = |row: &PgRow| {
            Ok(RecoveryRow {
                at: row.try_get("at")?,
                event: row.try_get("event")?,
                path: row.try_get("path")?,
                fencing_token: row.try_get("fencing_token")?,
                owner_before: row.try_get("owner_before")?,
                silence_s: row.try_get("silence_s")?,
                reason: row.try_get("reason")?,
                recovered_by: row.try_get("recovered_by")?,
            })
        };
        Ok(rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?)
    }
}

fn ended(rows: &[PgRow]) -> Result<Vec<EndedAttempt>, sqlx::Error> {
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

fn job_row(row: &PgRow) -> Result<JobRow, sqlx::Error> {
    let status: &str = row.try_get("status")?;
    Ok(JobRow {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        payload: json(row.try_get("payload")?),
        status: status.parse().map_err(|error: String| sqlx::Error::Decode(error.into()))?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        fencing_token: row.try_get("fencing_token")?,
        worker_id: row.try_get("worker_id")?,
        created_at: row.try_get("created_at")?,
        scheduled_at: row.try_get("scheduled_at")?,
        started_at: row.try_get("started_at")?,
        last_activity_at: row.try_get("last_activity_at")?,
        finished_at: row.try_get("finished_at")?,
        stage: row.try_get("stage")?,
        progress: row.try_get("progress")?,
        message: row.try_get("message")?,
        output: json(row.try_get("output")?),
        last_error: row.try_get("last_error")?,
    })
}
