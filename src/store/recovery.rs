//! Recovery: the statements of scanner, reconcile, takeover and relay. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::FutureExt;
use sqlx::{Row, postgres::PgRow, query};

use super::{
    ADD_MARK, CREATE_PARTITIONS, DUE_IDS, FLEET, FOLLOW_CLOCK, FORGET_WORKERS, LEAVE_TURNS, LOST_IDS,
    MEASURE, MEASURE_ALONE, NOTE_REFUSED, NOTE_WAITING, OWNED_IDS, PASSED_MARK, PUBLISHED_QUEUES,
    RECLAIM_LOST, REGISTER_WORKER, RENEW_WORKER, RESET_STALE, RESET_VANISHED, RESET_WORKERS, SCAN_DUE,
    SCAN_GATE, SILENT_WORKERS, SUSPECT, SUSPECTS, TAKE_DUE, TAKE_OVER, TAKE_TURNS, WORKERS_OF_HOST,
    call::{Store, StoreError},
    rows::{DueJob, EndedAttempt, Gate, HostWorker, Registration, Suspect, Suspects, Turns, due_jobs, ended},
    waiting::{
        Fleet, Found, KindMessages, Misnamed, QueueStats, QueueSubmitted, Unserved, Waiting, bind_messages,
    },
};
use crate::job::{JobId, claim::ClaimKey};

/// How long the scanner's pass over all live jobs may take: Postgres reads large jobs from a cold disk at its pace.
const SCANNED_WITHIN: Duration = Duration::from_mins(3);
/// How long counting all live jobs may take.
const MEASURED_WITHIN: Duration = Duration::from_secs(20);

/// The most queues that one look for lost messages covers.
const NAMES_MAX: i64 = 1_000;

impl Store {
    /// Resets the jobs that are still silent.
    pub(crate) async fn reset_stale(
        &self,
        jobs: &[JobId],
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        Ok(ended(&self.rows(query(RESET_STALE).bind(jobs).bind(worker_id)).await?)?)
    }

    /// Resets the jobs of dead processes of one host.
    pub async fn reset_workers(
        &self,
        dead: &[String],
        hostname: &str,
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        // The statement reads all live jobs, as the scanner does.
        let query = query(RESET_WORKERS).bind(dead).bind(hostname).bind(worker_id);
        Ok(ended(&self.rows_aside(SCANNED_WITHIN, query).await?)?)
    }

    /// Resets one silent job whose message was redelivered.
    pub(crate) async fn take_over(
        &self,
        job: JobId,
        worker_id: &str,
        scan_every: Duration,
    ) -> Result<Option<EndedAttempt>, StoreError> {
        let query = query(TAKE_OVER).bind(job).bind(worker_id).bind(scan_every.as_secs_f64());
        Ok(ended(&self.rows(query.bind(self.up_for().as_secs_f64())).await?)?.pop())
    }

    /// Takes at most `limit` due jobs to publish now, in the order in which they are due.
    pub async fn take_due(&self, limit: i64) -> Result<Vec<DueJob>, StoreError> {
        let list = |passed_over: Vec<JobId>| self.rows(query(DUE_IDS).bind(limit).bind(passed_over));
        let take = |passed_over: Vec<JobId>, only: Option<Vec<JobId>>| {
            self.rows(query(TAKE_DUE).bind(limit).bind(passed_over).bind(only))
        };
        Ok(due_jobs(&self.past_refused("publish", list, take).await?)?)
    }

    /// Records what the stream held at a moment.
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

    /// Returns the time before which no published job can have a message left, as the passed marks prove.
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

    /// Takes at most `limit` jobs whose message was lost, to republish them.
    pub(crate) async fn reclaim_lost(
        &self,
        queue: &str,
        before: DateTime<Utc>,
        visible_in: &str,
        limit: i64,
        worker_id: &str,
    ) -> Result<Vec<DueJob>, StoreError> {
        let list = |passed_over: Vec<JobId>| {
            self.rows(query(LOST_IDS).bind(queue).bind(before).bind(limit).bind(passed_over))
        };
        let take = |passed_over: Vec<JobId>, only: Option<Vec<JobId>>| {
            let reclaim = query(RECLAIM_LOST).bind(queue).bind(before).bind(limit).bind(worker_id);
            self.rows(reclaim.bind(visible_in).bind(passed_over).bind(only))
        };
        Ok(due_jobs(&self.past_refused("publish again", list, take).await?)?)
    }

    /// Returns at most `limit` queues in which a due job has counted as published for longer than `margin`, the last
    /// name first; with `before`, only names before it.
    pub(crate) async fn suspects(
        &self,
        margin: Duration,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Suspects, StoreError> {
        let rows = self.rows(query(PUBLISHED_QUEUES).bind(before).bind(NAMES_MAX)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (queues, committed): (Vec<String>, String) = (row.try_get("queues")?, row.try_get("committed")?);
        let is_cut = i64::try_from(queues.len()).is_ok_and(|n| n == NAMES_MAX);
        let cut_at = queues.last().filter(|_| is_cut).cloned();
        if queues.is_empty() {
            return Ok(Suspects { committed, queues: Vec::new(), cut_at });
        }
        let rows = self.rows(query(SUSPECTS).bind(margin.as_secs_f64()).bind(queues).bind(limit)).await?;
        let suspect = |row: &PgRow| {
            Ok(Suspect {
                queue: row.try_get("queue")?,
                is_paused: row.try_get("paused")?,
                is_limited: row.try_get("limited")?,
            })
        };
        let queues = rows.iter().map(suspect).collect::<Result<_, sqlx::Error>>()?;
        Ok(Suspects { committed, queues, cut_at })
    }

    /// Takes or keeps, for `length`, the turns that no other worker has.
    pub(crate) async fn take_turns(
        &self,
        turns: &[&str],
        worker_id: &str,
        length: Duration,
    ) -> Result<Turns, StoreError> {
        let rows = self
            .rows(
                query(TAKE_TURNS)
                    .bind(turns.iter().map(|turn| (*turn).to_owned()).collect::<Vec<_>>())
                    .bind(worker_id)
                    .bind(length.as_secs_f64()),
            )
            .await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Turns {
            taken: row.try_get("taken")?,
            workers: row.try_get("workers")?,
            next_tick_s: row.try_get("next_tick_s")?,
            has_silent: row.try_get("has_silent")?,
            has_lanes: row.try_get("has_lanes")?,
            has_groups: row.try_get("has_groups")?,
            has_redrives: row.try_get("has_redrives")?,
            has_quarantines: row.try_get("has_quarantines")?,
            has_expiries: row.try_get("has_expiries")?,
            settings: row.try_get("settings")?,
        })
    }

    /// Ends this worker's turns, so that no other worker waits for their end. Returns whether it had any.
    pub(crate) async fn leave_turns(&self, worker_id: &str) -> Result<bool, StoreError> {
        Ok(!self.rows(query(LEAVE_TURNS).bind(worker_id)).await?.is_empty())
    }

    /// Whether a scan may be due; and whether the last one lies ahead of the clock, which then has stepped back.
    pub(crate) async fn scan_due(&self, scan_every: Duration) -> Result<Option<bool>, StoreError> {
        let rows = self.rows(query(SCAN_DUE).bind(scan_every.as_secs_f64())).await?;
        Ok(rows.first().map(|row| row.try_get("is_ahead")).transpose()?)
    }

    /// Lets no time of before decide: the clock has stepped back. The call may take long, as that of `scan_gate`.
    pub(crate) async fn follow_clock(&self) -> Result<(), StoreError> {
        self.rows_aside(SCANNED_WITHIN, query(FOLLOW_CLOCK)).await.map(drop)
    }

    /// Asks whether this worker scans now, and finds the quietest silent jobs, at most `limit`. `None`: another worker
    /// scans in this interval.
    ///
    /// The call may take long without being a sign of a sick server: it reads all live jobs.
    pub(crate) async fn scan_gate(
        &self,
        scan_every: Duration,
        stale_after: Duration,
        limit: i64,
    ) -> Result<Option<Gate>, StoreError> {
        let gate = query(SCAN_GATE).bind(scan_every.as_secs_f64()).bind(stale_after.as_secs_f64());
        let rows = self.rows_aside(SCANNED_WITHIN, gate.bind(limit)).await?;
        let gate = |row: &PgRow| {
            Ok::<_, sqlx::Error>(Gate {
                in_grace: row.try_get("in_grace")?,
                breaker_open: row.try_get("breaker_open")?,
                stale: row.try_get("stale")?,
                silent: row.try_get("silent")?,
            })
        };
        Ok(rows.first().map(gate).transpose()?)
    }

    /// Deletes the rows of processes that own no job and have been silent for `silence`: of these, or of all. Returns
    /// the deleted ones.
    pub(crate) async fn forget_workers(
        &self,
        workers: Option<&[String]>,
        silence: Duration,
    ) -> Result<Vec<String>, StoreError> {
        let query = query(FORGET_WORKERS).bind(workers.map(<[String]>::to_vec)).bind(silence.as_secs_f64());
        // The statement reads all live jobs, as the scanner does; with a few ids it runs often.
        let rows = match workers {
            Some(_) => self.rows_within(self.within().mul_f64(0.8), query).await?,
            None => self.rows_aside(SCANNED_WITHIN, query).await?,
        };
        Ok(rows.iter().map(|row| row.try_get("worker_id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns processes that have been silent for too long, each with the subject to probe it on.
    pub(crate) async fn silent_workers(
        &self,
        between_looks: Duration,
        worker_id: &str,
        heard_within: Option<Duration>,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let query = query(SILENT_WORKERS)
            .bind(between_looks.as_secs_f64())
            .bind(worker_id)
            .bind(heard_within.map(|heard| heard.as_secs_f64()));
        let rows = self.rows(query).await?;
        let worker = |row: &PgRow| Ok((row.try_get("worker_id")?, row.try_get("probe_subject")?));
        Ok(rows.iter().map(worker).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Records for each probed process whether it is gone.
    pub(crate) async fn suspect(&self, looked: &[(String, bool)]) -> Result<(), StoreError> {
        self.rows(
            query(SUSPECT)
                .bind(looked.iter().map(|(worker, _)| worker.clone()).collect::<Vec<_>>())
                .bind(looked.iter().map(|(_, gone)| *gone).collect::<Vec<_>>()),
        )
        .await
        .map(drop)
    }

    /// Resets the jobs of processes that are gone.
    pub(crate) async fn reset_vanished(
        &self,
        gone: &[String],
        between_looks: Duration,
        scan_every: Duration,
        stale_after: Duration,
        worker_id: &str,
    ) -> Result<Vec<EndedAttempt>, StoreError> {
        // If the live jobs take too long to read, the scanner resets them.
        let within = self.within().mul_f64(0.8);
        let list = |passed_over: Vec<JobId>| {
            self.rows_within(within, query(OWNED_IDS).bind(gone.to_vec()).bind(passed_over)).boxed()
        };
        let take = |passed_over: Vec<JobId>, only: Option<Vec<JobId>>| {
            let query = query(RESET_VANISHED)
                .bind(gone.to_vec())
                .bind(between_looks.as_secs_f64())
                .bind(scan_every.as_secs_f64())
                .bind(stale_after.as_secs_f64())
                .bind(worker_id.to_owned())
                .bind(passed_over)
                .bind(only);
            self.rows_within(within, query).boxed()
        };
        Ok(ended(&self.past_refused("reset", list, take).await?)?)
    }

    /// Counts live jobs by queue, for the whole fleet. `messages` are those that the stream holds; `None`: NATS did not
    /// answer. Returns the kinds that have messages beyond their rows, those that no live worker runs, and the queues
    /// that have such messages. `ends_scan`: the gap to the next scan begins here.
    pub(crate) async fn measure(
        &self,
        messages: Option<&[KindMessages]>,
        holds_for: Duration,
        ends_scan: bool,
    ) -> Result<(Vec<Waiting>, Vec<QueueSubmitted>), StoreError> {
        let query = bind_messages(query(MEASURE), messages).bind(holds_for.as_secs_f64()).bind(ends_scan);
        let (mut kinds, mut queues) = (Vec::new(), Vec::new());
        for row in &self.rows_aside(MEASURED_WITHIN, query).await? {
            if row.try_get::<Option<&str>, _>("kind")?.is_some() {
                kinds.push(Waiting::read(row)?);
            } else {
                queues.push(QueueSubmitted {
                    queue: row.try_get("queue")?,
                    submitted: row.try_get("submitted")?,
                    queued: row.try_get("due")?,
                    max_queued: row.try_get("max_queued")?,
                });
            }
        }
        Ok((kinds, queues))
    }

    /// Whether this process, which is no worker, may measure the fleet: no process has for `after`, and no other begins
    /// within `length`.
    pub(crate) async fn measure_alone(&self, after: Duration, length: Duration) -> Result<bool, StoreError> {
        let turn = query(MEASURE_ALONE).bind(after.as_secs_f64()).bind(length.as_secs_f64());
        Ok(!self.rows(turn).await?.is_empty())
    }

    /// Records the submissions of each queue that has any, what no live worker runs, and the messages whose subject
    /// names no valid queue or kind. `found` and `misnamed` are `None` if NATS did not answer.
    pub(crate) async fn note_waiting(
        &self,
        found: Option<&[Found]>,
        unserved: &[Unserved],
        misnamed: Option<&Misnamed>,
        holds_for: Duration,
    ) -> Result<(), StoreError> {
        let each = found.unwrap_or_default();
        let standing = || each.iter().map(|of| of.standing.as_ref());
        let query = query(NOTE_WAITING)
            .bind(found.map(|found| found.iter().map(|of| of.queue.clone()).collect::<Vec<_>>()))
            .bind(each.iter().map(|of| of.submitted).collect::<Vec<_>>())
            .bind(each.iter().map(|of| of.oldest_s).collect::<Vec<_>>())
            .bind(standing().map(|of| of.map(|of| of.messages)).collect::<Vec<_>>())
            .bind(standing().map(|of| of.map(|of| of.deliveries)).collect::<Vec<_>>())
            .bind(standing().map(|of| of.map(|of| of.of.clone())).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.queue.clone()).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.kind.clone()).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.is_queue_served).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.due).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.submitted).collect::<Vec<_>>())
            .bind(unserved.iter().map(|of| of.oldest_s).collect::<Vec<_>>())
            .bind(holds_for.as_secs_f64())
            .bind(unserved.iter().map(|of| of.put_off).collect::<Vec<_>>())
            .bind(misnamed.map(|of| of.messages))
            .bind(misnamed.and_then(|of| of.subject.clone()));
        self.rows(query).await.map(drop)
    }

    /// Returns the latest measurements of the fleet.
    pub async fn fleet(&self) -> Result<Fleet, StoreError> {
        let mut fleet = Fleet::default();
        for row in &self.rows(query(FLEET)).await? {
            let (lag_s, held) = (row.try_get("lag_s")?, row.try_get("held")?);
            if let Some(queue) = row.try_get::<Option<String>, _>("queue")? {
                let jobs = [row.try_get("due")?, row.try_get("scheduled")?, row.try_get("processing")?];
                fleet.queues.push(QueueStats {
                    queue,
                    jobs,
                    held: row.try_get("in_lanes")?,
                    held_due: row.try_get("in_lanes_due")?,
                    lanes_waiting: row.try_get("lanes_waiting")?,
                    submitted: row.try_get("submitted")?,
                    standing: row.try_get::<Option<i64>, _>("standing")?.unwrap_or_default(),
                    oldest_due_s: lag_s,
                    is_paused: held,
                    workers: row.try_get("workers")?,
                    draining: row.try_get("draining")?,
                    last_seen_s: row.try_get("last_seen_s")?,
                    max_running: row.try_get("max_running")?,
                    max_queued: row.try_get("max_queued")?,
                });
            } else {
                (fleet.relay_lag_s, fleet.is_held_back) = (lag_s, held);
                (fleet.dead, fleet.workers) = (row.try_get("dead")?, row.try_get("workers")?);
                fleet.draining = row.try_get("draining")?;
                fleet.silent = row.try_get("silent")?;
                (fleet.age_s, fleet.now) = (row.try_get("age_s")?, Some(row.try_get("now")?));
                fleet.is_read_only = row.try_get("is_read_only")?;
                fleet.has_quarantines = row.try_get("has_quarantines")?;
                (fleet.last_seen_s, fleet.last_scan_s) =
                    (row.try_get("last_seen_s")?, row.try_get("last_scan_s")?);
                (fleet.not_ready, fleet.why_not_ready) =
                    (row.try_get("not_ready")?, row.try_get("why_not_ready")?);
                fleet.breaks_before = row.try_get::<Option<i64>, _>("breaks_before")?.unwrap_or_default();
                let unserved: Option<String> = row.try_get("unserved")?;
                match serde_json::from_str::<Vec<Unserved>>(unserved.as_deref().unwrap_or("[]")) {
                    Ok(all) => {
                        (fleet.put_off, fleet.unserved) =
                            all.into_iter().partition(|of| of.put_off.is_some());
                    }
                    Err(error) => fleet.unread = Some(error.to_string()),
                }
                let findings: Option<String> = row.try_get("findings")?;
                // A later release may write more: what cannot be read is shown by it, and by its doctor.
                fleet.findings = findings.and_then(|all| serde_json::from_str(&all).ok());
                fleet.misnamed = row.try_get::<Option<i64>, _>("misnamed")?.unwrap_or_default();
                fleet.misnamed_subject = row.try_get("misnamed_subject")?;
            }
        }
        Ok(fleet)
    }

    /// Creates the partitions of the history for a week ahead.
    pub(crate) async fn create_partitions(&self) -> Result<(), StoreError> {
        self.rows(query(CREATE_PARTITIONS)).await.map(drop)
    }

    /// Records refused writes: this worker no longer owned the jobs.
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

    /// Registers this process.
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
                .bind(&worker.probe_subject)
                .bind(&worker.queues)
                .bind(worker.slots)
                .bind(worker.client.as_ref().map_or(env!("CARGO_PKG_VERSION"), |(_, version)| version))
                .bind(&worker.kinds)
                .bind(worker.renew_every.as_secs_f64())
                .bind(&worker.unkept)
                .bind(worker.client.as_ref().map(|(language, _)| language))
                .bind(&worker.jobs_per_message),
        )
        .await
        .map(drop)
    }

    /// Renews this process's row, or registers the process again. `not_ready`: what keeps it from taking jobs, unless
    /// it drains. Returns the number of live workers.
    pub(crate) async fn renew_worker(
        &self,
        worker: &Registration,
        not_ready: Option<String>,
        is_draining: bool,
    ) -> Result<u32, StoreError> {
        let renewal = query(RENEW_WORKER)
            .bind(&worker.worker_id)
            .bind(&worker.probe_subject)
            .bind(not_ready)
            .bind(is_draining)
            .bind(&worker.queues)
            .bind(&worker.jobs_per_message);
        match self.rows(renewal).await?.first() {
            Some(renewed) => Ok(u32::try_from(renewed.try_get::<i64, _>("workers")?).unwrap_or(u32::MAX)),
            None => self.register_worker(worker).await.map(|()| 1),
        }
    }

    /// Returns the other processes that registered from this host.
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
}
