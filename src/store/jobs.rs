//! Jobs: the statements of a job's life, from its row to its end. One method, one statement.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};

use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use super::{
    BURY, CANCEL, CLAIM, CLAIM_ONE, CLAIM_SKIP, COMPLETE, COMPLETE_GROUPED, COMPLETE_GROUPED_TOLD,
    COMPLETE_ONE, COMPLETE_SKIP, COMPLETE_TOLD, COMPLETE_UNKEPT, COMPLETE_UNKEPT_ONE, COMPLETE_UNKEPT_SKIP,
    ENQUEUE, ENQUEUE_ONE, ENQUEUE_PLAIN, ENQUEUE_SUBMITTED, EXPIRE, EXPIRED_IDS, HELD_KEYS, LIVE_JOBS,
    MISSED, PROGRESS, PUT_OFF, REFUSE, RUN_NOW, SETTLE, SETTLE_SUSPENDED, SETTLED_AS, STATUSES, STILL_MINE,
    UNANSWERED, UNPUBLISHED, VISIBLE, WAS_RESET,
    call::{Line, Rows, Store, StoreError},
    rows::{
        AttemptEnd, CancelAnswer, ClaimRequest, Completion, EndedAttempt, Keeps, Keys, LockPolicy, NewJob,
        ProgressWrite, PublishedBy, Refused, Shapes, ended, ord, ordinals, status,
    },
};
use crate::{
    groups::store::KEEP_CANCELLED,
    job::{
        JobId, Status,
        actor::Actor,
        attempt::{AttemptOutcome, Category, RELEASES_MAX, Reason},
        claim::{Claim, ClaimKey, Missed},
        options::JobOptions,
        storable,
    },
};

/// Builds the one query for many new jobs.
macro_rules! enqueue_query {
    ($jobs:expr, $within:expr) => {
        enqueue_query!(ENQUEUE, $jobs, $within)
    };
    ($statement:expr, $jobs:expr, $within:expr) => {{
        let jobs: &[NewJob] = $jobs;
        macro_rules! column {
            ($of:expr) => {
                jobs.iter().map($of).collect::<Vec<_>>()
            };
        }
        query($statement)
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
            .bind(column!(|job| match job.published_by {
                PublishedBy::Relay => "relay",
                PublishedBy::Caller => "ticket",
                PublishedBy::Sender => "message",
            }))
            .bind($within)
            .bind(options_of(jobs))
    }};
}

/// Returns the rarer options of each job as JSON; `None` if no job has any.
fn options_of(jobs: &[NewJob]) -> Option<Vec<Option<String>>> {
    let text = |rare: &JobOptions| serde_json::to_string(rare).ok();
    jobs.iter()
        .any(|job| job.rare.is_some())
        .then(|| jobs.iter().map(|job| job.rare.as_deref().and_then(text)).collect())
}

fn enqueue_one(job: &NewJob) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    query(ENQUEUE_ONE)
        .bind(job.id)
        .bind(&job.queue)
        .bind(&job.kind)
        .bind(&job.payload)
        .bind(i32::try_from(job.max_attempts).unwrap_or(i32::MAX))
        .bind(&job.trace_context)
}

fn enqueue_plain(jobs: &[NewJob]) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    let mut shapes = Shapes::default();
    let places: Vec<_> = jobs
        .iter()
        .map(|job| {
            let is_same = |(queue, kind, max_attempts): &(&str, &str, u32)| {
                *queue == job.queue && *kind == job.kind && *max_attempts == job.max_attempts
            };
            shapes.place(is_same, || (job.queue.as_str(), job.kind.as_str(), job.max_attempts))
        })
        .collect();
    query(ENQUEUE_PLAIN)
        .bind(jobs.iter().map(|job| job.id).collect::<Vec<_>>())
        .bind(places)
        .bind(jobs.iter().map(|job| job.payload.as_str()).collect::<Vec<_>>())
        .bind(jobs.iter().map(|job| job.trace_context.as_deref()).collect::<Vec<_>>())
        .bind(shapes.column(|shape| shape.0))
        .bind(shapes.column(|shape| shape.1))
        .bind(shapes.column(|shape| i32::try_from(shape.2).unwrap_or(i32::MAX)))
}

/// Returns, at the place of each claim in the answer, whether a cancellation was requested.
fn answered(claims: &[Uuid], rows: &[PgRow]) -> Result<Vec<Option<bool>>, StoreError> {
    let answers: HashMap<Option<Uuid>, bool> =
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, sqlx::Error>>()?;
    if answers.contains_key(&None) {
        return Err(StoreError::standby());
    }
    Ok(claims.iter().map(|claim| answers.get(&Some(*claim)).copied()).collect())
}

/// Returns `true` at the place of each completion whose claim is among the rows. `completions` must be sorted.
fn completed(rows: &[PgRow], completions: &[Completion]) -> Result<Vec<bool>, sqlx::Error> {
    let mut done = vec![false; completions.len()];
    for row in rows {
        let (job, claim): (JobId, Uuid) = (row.try_get(0)?, row.try_get(1)?);
        let first = completions.partition_point(|c| c.key.job < job);
        let of_job = completions[first..].iter().take_while(|c| c.key.job == job);
        if let Some(at) = of_job.enumerate().find(|(_, c)| c.key.claim == claim).map(|(at, _)| at) {
            done[first + at] = true;
        }
    }
    Ok(done)
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
    /// Creates jobs. Returns those that were created, and whether the caller must publish the ticket of each now.
    ///
    /// Waits at most `patience` for another transaction that is about to take one of the keys; see
    /// [`StoreError::is_locked`].
    pub(crate) async fn enqueue(
        &self,
        jobs: &[NewJob],
        patience: Duration,
    ) -> Result<HashMap<JobId, bool>, StoreError> {
        // Shorter than the call itself: after the caller has gone, the statement would go on waiting, and insert.
        let patience = format!("{}ms", patience.min(self.within().mul_f64(0.8)).as_millis());
        let rows = match jobs {
            [job] if job.is_plain() => self.rows_over(Line::Enqueue, enqueue_one(job)).await?,
            jobs if jobs.iter().all(NewJob::is_plain) => {
                self.rows_over(Line::Enqueue, enqueue_plain(jobs)).await?
            }
            jobs if jobs.iter().all(|job| job.message.is_some()) => {
                let query = enqueue_query!(ENQUEUE_SUBMITTED, jobs, Some(&patience));
                self.rows_over(Line::Enqueue, query).await?
            }
            jobs => self.rows_over(Line::Enqueue, enqueue_query!(jobs, Some(&patience))).await?,
        };
        Ok(created(&rows)?)
    }

    /// [`Store::enqueue`] inside the user's transaction.
    pub(crate) async fn enqueue_in(
        connection: &mut sqlx::PgConnection,
        jobs: &[NewJob],
    ) -> Result<HashMap<JobId, bool>, StoreError> {
        Ok(created(&enqueue_query!(jobs, None::<&str>).fetch_all(connection).await?)?)
    }

    /// Returns the job that holds each key.
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

    /// Hands the relay jobs that have no message of this dispatch, or will have none. It publishes them after `wait`.
    /// Returns those that waited for that message.
    pub(crate) async fn unpublished(
        &self,
        jobs: &[(JobId, i32)],
        wait: Duration,
    ) -> Result<Vec<JobId>, StoreError> {
        let (ids, dispatches): (Vec<_>, Vec<_>) = jobs.iter().copied().unzip();
        let rows = self.rows(query(UNPUBLISHED).bind(ids).bind(dispatches).bind(wait.as_secs_f64())).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?)
    }

    /// Returns the jobs that are committed, and whether each still waits for its first message.
    pub(crate) async fn visible(&self, jobs: &[JobId]) -> Result<Vec<(JobId, bool)>, StoreError> {
        let rows = self.rows(query(VISIBLE).bind(jobs)).await?;
        let visible = |row: &PgRow| Ok((row.try_get("id")?, row.try_get("waits")?));
        Ok(rows.iter().map(visible).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Claims jobs. Each answer stands at the place of its request. `requests` must be sorted by job, without
    /// duplicates, and differ in nothing but the job.
    pub async fn claim(
        &self,
        policy: LockPolicy,
        requests: &[ClaimRequest],
        worker_id: &str,
        worker_host: &str,
    ) -> Result<Vec<Option<Claim>>, StoreError> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        let ids: Vec<_> = requests.iter().map(|r| r.job).collect();
        let query = match policy {
            LockPolicy::Wait if requests.len() == 1 => query(CLAIM_ONE).bind(first.job),
            LockPolicy::Wait => query(CLAIM).bind(&ids),
            LockPolicy::Skip => query(CLAIM_SKIP).bind(&ids),
        };
        let query = query.bind(&first.queue).bind(&first.kind).bind(first.stale_after.as_secs_f64());
        let query = query.bind(first.on_crash).bind(worker_id).bind(worker_host);
        let sent_at = Instant::now();
        Ok(claims_of(&self.rows_over(Line::Claim, query).await?, requests, sent_at)?)
    }

    /// Returns why a claim was refused. `dispatch` is the message's; `None` for a submission.
    pub(crate) async fn missed(
        &self,
        job: JobId,
        queue: &str,
        kind: &str,
        dispatch: Option<i32>,
    ) -> Result<Missed, StoreError> {
        let rows = self.rows(query(MISSED).bind(vec![job]).bind(vec![0])).await?;
        let Some(row) = rows.first() else { return Ok(Missed::NoSuchRow) };
        let Some(status) = row.try_get::<Option<String>, _>("status")? else {
            let finished = row.try_get::<bool, _>("finished")?;
            return Ok(if finished { Missed::Finished } else { Missed::NoSuchRow });
        };
        if row.try_get::<&str, _>("queue")? != queue || row.try_get::<&str, _>("kind")? != kind {
            return Ok(Missed::Foreign);
        }
        let newest: i32 = row.try_get("dispatch")?;
        let message_known: bool = row.try_get("message_known")?;
        if message_known && newest > dispatch.unwrap_or(0) {
            return Ok(Missed::Superseded);
        }
        if status == "processing" {
            let stale_in_s: f64 = row.try_get("stale_in_s")?;
            return Ok(match Duration::try_from_secs_f64(stale_in_s) {
                Ok(stale_in) => Missed::Owned {
                    owner: row.try_get("worker_id")?,
                    claim: row.try_get("claim_id")?,
                    token: row.try_get("fencing_token")?,
                    stale_in,
                },
                Err(_) => Missed::Stale,
            });
        }
        if row.try_get("expired")? {
            return Ok(Missed::Expired);
        }
        Ok(match Duration::try_from_secs_f64(row.try_get("due_in_s")?) {
            Ok(due_in) if !due_in.is_zero() => Missed::NotDue { due_in, relayed: !message_known },
            _ if row.try_get("paused")? => Missed::Paused,
            _ if row.try_get("limited")? => Missed::Full,
            _ => Missed::Free,
        })
    }

    /// Writes progress. Returns `Some(cancel_requested)` at the place of each write whose job this worker still owns.
    pub(crate) async fn progress(&self, writes: &[ProgressWrite]) -> Result<Vec<Option<bool>>, StoreError> {
        let mut sorted: Vec<_> = writes.iter().collect();
        sorted.sort_unstable_by_key(|write| write.key);
        let keys: Keys = sorted.iter().map(|write| &write.key).collect();
        let reports: Vec<_> = sorted.iter().map(|write| write.report()).collect();
        let query = query(PROGRESS).bind(&keys.jobs).bind(&keys.tokens).bind(&keys.claims).bind(reports);
        let claims: Vec<_> = writes.iter().map(|write| write.key.claim).collect();
        answered(&claims, &self.rows_over(Line::Progress, query).await?)
    }

    /// Returns the claims by which this worker holds some of these jobs.
    pub(crate) async fn unanswered(
        &self,
        jobs: &[JobId],
        worker_id: &str,
    ) -> Result<Vec<ClaimKey>, StoreError> {
        let rows = self.rows(query(UNANSWERED).bind(jobs).bind(worker_id)).await?;
        let key = |row: &PgRow| {
            Ok(ClaimKey {
                job: row.try_get("id")?,
                token: row.try_get("fencing_token")?,
                claim: row.try_get("claim_id")?,
            })
        };
        Ok(rows.iter().map(key).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns `Some(cancel_requested)` at the place of each claim that is current.
    pub(crate) async fn still_mine(&self, claims: &[ClaimKey]) -> Result<Vec<Option<bool>>, StoreError> {
        let keys: Keys = claims.iter().collect();
        let query = query(STILL_MINE).bind(&keys.jobs).bind(&keys.tokens).bind(&keys.claims);
        answered(&keys.claims, &self.rows(query).await?)
    }

    /// Has recovery charge the attempt of a job of a batch handler, because it runs alone. `false`: the claim is no
    /// longer current.
    pub(crate) async fn runs_alone(&self, of: ClaimKey) -> Result<bool, StoreError> {
        let query = query(super::RUNS_ALONE).bind(of.job).bind(of.token).bind(of.claim);
        Ok(!self.rows(query).await?.is_empty())
    }

    /// Completes jobs. Returns `true` at the place of each job that this call completed. `completions` must be sorted,
    /// without duplicates, and either all keep their history or none does.
    ///
    /// Passes over a row that another transaction has locked: it is not completed, and the claim stays valid.
    pub async fn complete(
        &self,
        completions: &[Completion],
        policy: LockPolicy,
    ) -> Result<Vec<bool>, StoreError> {
        if completions.first().is_some_and(|completion| completion.keeps != Keeps::History) {
            return self.complete_unkept(completions, policy).await;
        }
        let rows = match completions {
            _ if policy == LockPolicy::Skip => self.complete_pairwise(completions).await,
            [Completion { key, output, report: None, in_group: false, .. }] => {
                let query = query(COMPLETE_ONE).bind(key.job).bind(key.token).bind(key.claim);
                self.rows_over(Line::Complete, query.bind(output.as_deref())).await
            }
            // Of a stale and a current completion of one job, only the pairwise form tells which is which.
            many if many.is_sorted_by(|a, b| a.key.job < b.key.job) => {
                let mut keys: Keys = many.iter().map(|completion| &completion.key).collect();
                keys.tokens.sort_unstable();
                keys.tokens.dedup();
                let some = many.iter().any(|c| c.output.is_some());
                let outputs = some.then(|| many.iter().map(|c| c.output.as_deref()).collect::<Vec<_>>());
                let report = |of: &Completion| of.report.as_ref().and_then(ProgressWrite::report);
                let told = many.iter().any(|c| c.report.is_some());
                let in_group = many.iter().any(|c| c.in_group);
                let query = query(match (told, in_group) {
                    (false, false) => COMPLETE,
                    (false, true) => COMPLETE_GROUPED,
                    (true, false) => COMPLETE_TOLD,
                    (true, true) => COMPLETE_GROUPED_TOLD,
                });
                let query = query.bind(keys.jobs).bind(keys.tokens).bind(keys.claims).bind(outputs);
                let query =
                    if told { query.bind(many.iter().map(report).collect::<Vec<_>>()) } else { query };
                self.rows_over(Line::Complete, query).await
            }
            _ => self.complete_pairwise(completions).await,
        };
        let rows = match rows {
            Err(error) if error.is_locked() => self.complete_pairwise(completions).await?,
            rows => rows?,
        };
        Ok(completed(&rows, completions)?)
    }

    /// [`Store::complete`], past the rows that are locked, and for batches that name a job twice.
    async fn complete_pairwise(&self, completions: &[Completion]) -> Rows {
        let reports: Vec<_> = completions.iter().filter_map(|completion| completion.report.clone()).collect();
        if !reports.is_empty()
            && let Err(error) = self.progress(&reports).await
        {
            tracing::debug!(%error, jobs = reports.len(), "last reports not written; the jobs complete without them");
        }
        let keys: Keys = completions.iter().map(|completion| &completion.key).collect();
        let outputs: Vec<_> = completions.iter().map(|c| c.output.as_deref()).collect();
        let query = query(COMPLETE_SKIP).bind(keys.jobs).bind(keys.tokens).bind(keys.claims);
        self.rows_over(Line::Complete, query.bind(outputs)).await
    }

    /// [`Store::complete`] for jobs that keep no history.
    async fn complete_unkept(
        &self,
        completions: &[Completion],
        policy: LockPolicy,
    ) -> Result<Vec<bool>, StoreError> {
        let keys = || completions.iter().map(|completion| &completion.key).collect::<Keys>();
        let traced = completions.iter().filter(|c| c.keeps == Keeps::NothingWithTraces);
        let traced: Vec<_> = traced.map(|completion| completion.key.job).collect();
        let pairwise = || {
            let keys = keys();
            let query = query(COMPLETE_UNKEPT_SKIP).bind(keys.jobs).bind(keys.tokens).bind(keys.claims);
            self.rows_over(Line::Complete, query.bind(&traced))
        };
        let rows = match completions {
            _ if policy == LockPolicy::Skip => pairwise().await,
            [Completion { key, .. }] => {
                let query = query(COMPLETE_UNKEPT_ONE).bind(key.job).bind(key.token).bind(key.claim);
                self.rows_over(Line::Complete, query.bind(&traced).bind("100ms")).await
            }
            many if many.is_sorted_by(|a, b| a.key.job < b.key.job) => {
                let mut keys = keys();
                keys.tokens.sort_unstable();
                keys.tokens.dedup();
                let query = query(COMPLETE_UNKEPT).bind(keys.jobs).bind(keys.tokens).bind(keys.claims);
                self.rows_over(Line::Complete, query.bind(&traced)).await
            }
            _ => pairwise().await,
        };
        let rows = match rows {
            Err(error) if error.is_locked() => pairwise().await?,
            rows => rows?,
        };
        Ok(completed(&rows, completions)?)
    }

    /// Completes one job by a statement of its own, past its row if that is locked, as [`Store::claim_alone`] claims.
    pub(crate) async fn complete_alone(&self, completion: &Completion) -> Result<bool, StoreError> {
        if let Some(report) = &completion.report
            && let Err(error) = self.progress(std::slice::from_ref(report)).await
        {
            tracing::debug!(%error, "the last report was not written; the job completes without it");
        }
        let ClaimKey { job, token, claim } = completion.key;
        let keys = |sql: &'static str| query(sql).bind([job]).bind([token]).bind([claim]);
        let query = match completion.keeps {
            Keeps::History => keys(COMPLETE_SKIP).bind([completion.output.clone()]),
            Keeps::Nothing => keys(COMPLETE_UNKEPT_SKIP).bind([job; 0]),
            Keeps::NothingWithTraces => keys(COMPLETE_UNKEPT_SKIP).bind([job]),
        };
        let rows = self.rows_alone(query).await?;
        Ok(completed(&rows, std::slice::from_ref(completion))?.pop().unwrap_or_default())
    }

    /// Ends attempts that did not complete. Refused ones are missing from the answer.
    pub(crate) async fn settle(
        &self,
        ends: &[AttemptEnd],
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        let keys: Keys = ends.iter().map(|end| &end.key).collect();
        let text = |error: &Option<String>| error.as_deref().map(|text| storable(text).into_owned());
        let waits = ends.iter().any(|end| end.awaits.is_some());
        let query = query(if waits { SETTLE_SUSPENDED } else { SETTLE })
            .bind(keys.jobs)
            .bind(keys.tokens)
            .bind(keys.claims)
            .bind(ends.iter().map(|end| end.verdict.as_str()).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| text(&end.error)).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| end.category.map(Category::as_str)).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| end.delay.as_secs_f64()).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| end.reason.map(Reason::text)).collect::<Vec<_>>())
            .bind(keys.ords)
            .bind(worker_id)
            .bind(RELEASES_MAX)
            .bind(Reason::Outage.text());
        let awaits = || ends.iter().map(|end| end.awaits.as_deref()).collect::<Vec<_>>();
        let query = if waits { query.bind(awaits()) } else { query };
        let rows = self.rows(query).await?;
        Ok(ended(&rows)?)
    }

    /// Returns the outcome of exactly this claim: `None` if the database does not know it, `Some(None)` while it runs.
    /// An outcome that only a later release knows counts as lost: the owner of a claim knows all that it writes itself.
    pub(crate) async fn settled_as(
        &self,
        claim: &ClaimKey,
    ) -> Result<Option<Option<AttemptOutcome>>, StoreError> {
        let outcomes = self.all_settled_as(std::slice::from_ref(claim)).await?;
        Ok(outcomes.first().copied().flatten())
    }

    /// [`Store::settled_as`] of each of these claims.
    pub(crate) async fn all_settled_as(
        &self,
        claims: &[ClaimKey],
    ) -> Result<Vec<Option<Option<AttemptOutcome>>>, StoreError> {
        let keys: Keys = claims.iter().collect();
        let query = query(SETTLED_AS).bind(keys.jobs).bind(keys.tokens).bind(keys.claims).bind(keys.ords);
        let mut outcomes = vec![None; claims.len()];
        for row in self.rows(query).await? {
            let outcome: Option<&str> = row.try_get("outcome")?;
            if let Some(place) = outcomes.get_mut(ord(&row)?) {
                *place = Some(outcome.map(|word| word.parse().unwrap_or(AttemptOutcome::Lost)));
            }
        }
        Ok(outcomes)
    }

    /// Whether the job of a claim that is no longer current was completed under it, by `tenure.complete` of the schema.
    /// `None`: a standby answers, which may not know.
    pub(crate) async fn was_completed(
        &self,
        claim: &ClaimKey,
        keeps_history: bool,
    ) -> Result<Option<bool>, StoreError> {
        match self.settled_as(claim).await? {
            Some(None) => Ok(None),
            Some(Some(outcome)) => Ok(Some(outcome == AttemptOutcome::Completed)),
            None if keeps_history => Ok(Some(false)),
            None => {
                let rows = self.rows(query(WAS_RESET).bind(claim.job).bind(claim.token)).await?;
                let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                Ok(Some(!row.try_get::<bool, _>("was_reset")?))
            }
        }
    }

    /// Writes a submission that cannot be a job to the dead letters. Returns `false` if its job exists already.
    pub(crate) async fn refuse(&self, refused: &Refused) -> Result<bool, StoreError> {
        let rows = self
            .rows(
                query(REFUSE)
                    .bind(refused.id)
                    .bind(storable(&refused.queue))
                    .bind(storable(&refused.kind))
                    .bind(storable(&refused.subject))
                    .bind(&refused.raw)
                    .bind(refused.category.as_str())
                    .bind(storable(&refused.reason))
                    .bind(refused.published),
            )
            .await?;
        let is_known: bool = rows.first().map(|row| row.try_get("is_known")).transpose()?.unwrap_or_default();
        Ok(!is_known)
    }

    /// Tells the relay that a job's message exists and NATS will redeliver it. If another live worker knows the kind,
    /// the message comes again after `if_known` instead. Returns the wait.
    pub(crate) async fn put_off(
        &self,
        job: JobId,
        again_in: Duration,
        if_known: Option<Duration>,
    ) -> Result<Duration, StoreError> {
        let query = query(PUT_OFF).bind(job).bind(again_in.as_secs_f64());
        let rows = self.rows(query.bind(if_known.map(|wait| wait.as_secs_f64()))).await?;
        let seconds = rows.first().map(|row| row.try_get::<f64, _>("seconds")).transpose()?;
        Ok(seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(again_in))
    }

    /// Moves a queued job to the dead letters; with `longest`, only if no worker has known its kind for that time.
    pub(crate) async fn bury(
        &self,
        job: JobId,
        longest: Option<Duration>,
        error: &str,
        category: Category,
    ) -> Result<Option<EndedAttempt>, StoreError> {
        let query = query(BURY).bind(job).bind(longest.map(|longest| longest.as_secs_f64()));
        let rows = self.rows(query.bind(error).bind(category.as_str())).await?;
        Ok(ended(&rows)?.pop())
    }

    /// Claims one job by a statement of its own, which the server ends after half the time of a call: such an end says
    /// nothing about the server.
    pub(crate) async fn claim_alone(
        &self,
        request: &ClaimRequest,
        worker_id: &str,
        worker_host: &str,
    ) -> Result<Option<Claim>, StoreError> {
        let query = query(CLAIM_ONE).bind(request.job).bind(request.queue.clone()).bind(request.kind.clone());
        let query = query.bind(request.stale_after.as_secs_f64()).bind(request.on_crash);
        let query = query.bind(worker_id.to_owned()).bind(worker_host.to_owned());
        let sent_at = Instant::now();
        let rows = self.rows_alone(query).await?;
        Ok(claims_of(&rows, std::slice::from_ref(request), sent_at)?.pop().flatten())
    }

    /// Cancels the jobs that are queued, and requests the cancellation of those that run. The others are missing from
    /// the answer. `by`: who acts; `None`: tenure itself.
    pub async fn cancel(
        &self,
        jobs: &[JobId],
        by: Option<&Actor>,
    ) -> Result<HashMap<JobId, CancelAnswer>, StoreError> {
        let rows = self.rows(query(CANCEL).bind(jobs).bind(by.map(Actor::bound))).await?;
        let answer = |row: &PgRow| {
            let asked = row.try_get::<&str, _>("route")? == "asked";
            let worker: Option<String> = row.try_get("worker_id")?;
            let answer = match worker {
                Some(worker) if asked => CancelAnswer::Asked(worker),
                _ => CancelAnswer::Cancelled,
            };
            Ok((row.try_get("id")?, answer))
        };
        Ok(rows.iter().map(answer).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Lets the followers among these stay cancelled that a failure has cancelled.
    pub(crate) async fn keep_cancelled(&self, jobs: &[JobId], by: &Actor) -> Result<(), StoreError> {
        self.rows(query(KEEP_CANCELLED).bind(jobs).bind(by.bound())).await?;
        Ok(())
    }

    /// Returns at most `limit` ids of a queue's live jobs that were created no later than `created_by`, after `after`.
    pub(crate) async fn live_jobs(
        &self,
        queue: &str,
        kind: Option<&str>,
        after: JobId,
        limit: i64,
        created_by: DateTime<Utc>,
    ) -> Result<Vec<JobId>, StoreError> {
        let query = query(LIVE_JOBS).bind(queue).bind(kind).bind(after).bind(limit).bind(created_by);
        let rows = self.rows(query).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the status of jobs; `None` at the place of each that does not exist.
    pub(crate) async fn statuses(&self, jobs: &[JobId]) -> Result<Vec<Option<Status>>, StoreError> {
        let rows = self.rows(query(STATUSES).bind(jobs).bind(ordinals(jobs.len()))).await?;
        let mut statuses = vec![None; jobs.len()];
        for row in &rows {
            if let Some(place) = statuses.get_mut(ord(row)?) {
                *place = Some(status(row)?);
            }
        }
        Ok(statuses)
    }

    /// Ends queued jobs that must not start any more: these, or at most `limit` whose time has come.
    pub(crate) async fn expire(
        &self,
        jobs: Option<&[JobId]>,
        limit: i64,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        let list = |passed_over: Vec<JobId>| self.rows(query(EXPIRED_IDS).bind(limit).bind(passed_over));
        let take = |passed_over: Vec<JobId>, only: Option<Vec<JobId>>| {
            self.rows(query(EXPIRE).bind(jobs).bind(limit).bind(passed_over).bind(only))
        };
        let rows = match jobs {
            Some(_) => take(Vec::new(), None).await,
            None => self.past_refused("end", list, take).await,
        };
        Ok(ended(&rows?)?)
    }

    /// Makes jobs that wait for a later time due; returns those that waited.
    pub(crate) async fn run_now(&self, jobs: &[JobId], by: Option<&Actor>) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows(query(RUN_NOW).bind(jobs).bind(by.map(Actor::bound))).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }
}

/// Returns the claims that won, each at the place of its request. `requests` must be sorted by job, and differ in
/// nothing but the job.
pub(crate) fn claims_of(
    rows: &[PgRow],
    requests: &[ClaimRequest],
    sent_at: Instant,
) -> Result<Vec<Option<Claim>>, sqlx::Error> {
    let mut claims = vec![None; requests.len()];
    for row in rows {
        // By position, as the statement returns them: looking up each name costs as much as the rest.
        let job = row.try_get(0)?;
        let Ok(at) = requests.binary_search_by_key(&job, |request| request.job) else { continue };
        let of = &requests[at];
        claims[at] = Some(Claim {
            key: ClaimKey { job, token: row.try_get(1)?, claim: row.try_get(2)? },
            // The statement claims only jobs of the requested queue and kind.
            queue: of.queue.clone(),
            kind: of.kind.clone(),
            payload: row.try_get(3)?,
            attempt: row.try_get::<i32, _>(4)?.cast_unsigned(),
            max_attempts: row.try_get::<i32, _>(5)?.cast_unsigned(),
            checkpoint: row.try_get(6)?,
            trace_context: row.try_get(7)?,
            dispatch: row.try_get(8)?,
            waited: Duration::try_from_secs_f64(row.try_get(9)?).unwrap_or_default(),
            lane: row.try_get::<Option<Box<str>>, _>(10)?,
            group: row.try_get(11)?,
            losses: row.try_get::<i32, _>(12)?.cast_unsigned(),
            after_reset: false,
            sent_at,
        });
    }
    Ok(claims)
}
