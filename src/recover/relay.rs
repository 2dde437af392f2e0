//! Relay: publishes jobs that are queued and due, but have no message. One worker of the fleet at a time (`turns`).
//!
//! There are two kinds of rows. The relay publishes *unpublished* rows (scheduled, retried, reset, written by SQL) when
//! they are due. It leaves *published* rows alone: it must not publish a backlog of a million again and again. Only
//! evidence makes a message lost, never age: the stream no longer holds a message of the queue, or everything that it
//! held at a moment of Postgres's time has been delivered (or that stream is gone), and a job that was published well
//! before that moment still is queued. The relay looks for evidence once a second, in the queues where a job has waited
//! for some seconds.
//!
//! The margins allow for a publication that is under way. If it takes longer, its job is published twice, which is
//! harmless. So a producer that is killed between its commit and its publication costs its jobs a few seconds.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_row_that_was_never_published_is_found`
//! - `a_backlog_is_not_published_again`
//! - `a_deleted_stream_loses_no_job`
//! - `a_producer_killed_before_it_published_costs_its_job_a_few_seconds`

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Timing,
    job::{
        JobError, JobId,
        attempt::{Reason, RecoveryPath},
    },
    nats::{Confirmations, Nats, NatsError, Progress, Ticket},
    observe::{metrics, panics, repeats},
    proof::fault,
    store::{DueJob, Store, StoreError, Suspect, Suspects},
};

/// The most jobs of one statement, and so of one burst. The relay publishes one burst while it takes the next.
const BURST: i64 = 1_000;
/// The same for lost messages. There may be very many at once, and until Postgres's statistics show them, each
/// statement sorts all that are left.
const BURST_OF_LOST: i64 = 5_000;
/// The same of a queue with lanes: others wait for the lanes of one statement.
const BURST_OF_HELD: i64 = 200;
/// The most bursts without a job in a row: lanes were looked at, and released none.
const EMPTY_BURSTS: u32 = 20;
/// The wait before a failed publication is retried.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The most queues of one look; the next look continues with those that follow.
const QUEUES_MAX: i64 = 100;

/// An error that ended a look; the next look goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RelayError {
    pub(crate) fn is_a_server_away(&self) -> bool {
        self.is_postgres_away() || matches!(self, Self::Nats(_))
    }

    /// Whether Postgres did not answer: it would not answer another worker, either.
    pub(crate) fn is_postgres_away(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable())
    }
}

/// Ends the publishing tasks after the burst that they have taken, and waits for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    asked: CancellationToken,
    publishing: TaskTracker,
}

impl Stop {
    /// Returns when every job that was taken is published.
    pub(crate) async fn stop(&self) {
        self.asked.cancel();
        self.publishing.close();
        self.publishing.wait().await;
    }
}

/// Publishes unpublished jobs that are due, until none is left. Returns how many.
///
/// Cancel safe: a task goes on to the end of the jobs that it has taken, whose rows say that they are published.
pub(crate) async fn publish_due(store: &Store, nats: &Nats, stop: &Stop) -> Result<usize, RelayError> {
    publish_in_task(store, nats, Take::Due, stop).await
}

pub(crate) async fn publish_in_task(
    store: &Store,
    nats: &Nats,
    take: Take,
    stop: &Stop,
) -> Result<usize, RelayError> {
    let (of_task, nats, asked) = (store.clone(), nats.clone(), stop.asked.clone());
    let work = async move { publish_all(&of_task, &nats, &take, &asked).await };
    let caught = async {
        AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
            panics::tell("publish", &*panic);
            Err(StoreError::from(sqlx::Error::WorkerCrashed).into())
        })
    };
    // Only the shutdown of the runtime ends the task early.
    let publishing = store.spawn(stop.publishing.track_future(caught));
    publishing.await.unwrap_or_else(|_| Err(StoreError::from(sqlx::Error::WorkerCrashed).into()))
}

/// The jobs to take and publish.
pub(crate) enum Take {
    Due,
    /// What lanes may release. `judge`: whether the first burst looks for slots of jobs that ended unseen.
    Held {
        judge: AtomicBool,
    },
    /// What may go because jobs before it have ended.
    Followers,
    Lost {
        of: String,
        published_before: DateTime<Utc>,
        visible_in: String,
        worker_id: String,
    },
}

impl Take {
    fn burst(&self) -> i64 {
        match self {
            Self::Due | Self::Followers => BURST,
            Self::Held { .. } => BURST_OF_HELD,
            Self::Lost { .. } => BURST_OF_LOST,
        }
    }

    /// Takes the next burst. Also returns whether there may be another one.
    async fn next(&self, store: &Store, nats: &Nats) -> Result<(Vec<DueJob>, bool), StoreError> {
        let taken = match self {
            Self::Due | Self::Held { .. } | Self::Followers if !nats.is_connected() => Vec::new(),
            Self::Due => store.take_due(self.burst()).await?,
            Self::Held { judge } => {
                let most = i32::try_from(self.burst()).unwrap_or(i32::MAX);
                let tended = store.tend_lanes(most, judge.swap(false, Ordering::Relaxed)).await?;
                for (queue, error) in &tended.troubles {
                    if let Some(left_out) = repeats::tell(&format!("lanes of {queue}"), error) {
                        tracing::warn!(
                            queue,
                            error,
                            left_out,
                            "could not look after the lanes of a queue; the worker will retry, and goes on with those \
                             of other queues. If this stays, `tenure doctor` may say who holds them up"
                        );
                    }
                }
                return Ok((tended.jobs, tended.has_more));
            }
            Self::Followers => {
                return store.release_followers(i32::try_from(self.burst()).unwrap_or(i32::MAX)).await;
            }
            Self::Lost { of, published_before, visible_in, worker_id } => {
                store.reclaim_lost(of, *published_before, visible_in, self.burst(), worker_id).await?
            }
        };
        let is_full = i64::try_from(taken.len()).is_ok_and(|n| n >= self.burst());
        Ok((taken, is_full))
    }
}

/// Publishes burst by burst, and takes the next burst meanwhile. A burst that is not full is the last.
async fn publish_all(
    store: &Store,
    nats: &Nats,
    take: &Take,
    stop: &CancellationToken,
) -> Result<usize, RelayError> {
    let (mut total, mut first_error) = (0, None);
    let mut confirmations = None;
    let (mut taken, mut has_more) = take.next(store, nats).await?;
    let mut empty = 0;
    while !taken.is_empty() || has_more {
        empty = if taken.is_empty() { empty + 1 } else { 0 };
        let goes_on = has_more && empty < EMPTY_BURSTS && !stop.is_cancelled();
        let next = async { if goes_on { take.next(store, nats).await } else { Ok((Vec::new(), false)) } };
        let (published, next) = tokio::join!(publish(store, nats, take, &taken, &mut confirmations), next);
        let (next, more) = next?;
        let (published, error) = published?;
        total += published;
        let is_of_all = error.is_some() && published == 0;
        first_error = first_error.or(error);
        if is_of_all {
            // NATS takes nothing: the burst that was taken meanwhile is not sent.
            let unsent: Vec<_> = next.iter().map(|job| (job.id, job.dispatch)).collect();
            if !unsent.is_empty() {
                store.unpublished(&unsent, AGAIN_AFTER).await?;
            }
            break;
        }
        (taken, has_more) = (next, more);
    }
    first_error.map_or(Ok(total), |error| Err(error.into()))
}

/// Publishes jobs that were taken, and returns how many and the error of the others. A later look retries those: what
/// NATS does not take of one queue holds up no other for longer than a publication lasts.
async fn publish(
    store: &Store,
    nats: &Nats,
    take: &Take,
    jobs: &[DueJob],
    confirmations: &mut Option<Confirmations>,
) -> Result<(usize, Option<NatsError>), StoreError> {
    if jobs.is_empty() {
        return Ok((0, None));
    }
    fault::point("taken");
    let mut tickets: Vec<_> = jobs.iter().map(Ticket::from).collect();
    if !matches!(take, Take::Held { .. }) {
        nats.share_messages(store, &mut tickets).await;
    }
    let answers = nats.publish(&tickets, confirmations).await;
    fault::point("relayed");
    let mut last_error = None;
    let mut failed: Vec<(JobId, i32)> = Vec::new();
    for (job, answer) in jobs.iter().zip(answers) {
        if let Err(error) = answer {
            last_error = Some((&job.queue, error));
            failed.push((job.id, job.dispatch));
        }
    }
    let published = jobs.len() - failed.len();
    metrics::published(published);
    let Some((queue, error)) = last_error else { return Ok((published, None)) };
    if let Some(left_out) = repeats::tell("relay", &error) {
        tracing::warn!(queue, jobs = failed.len(), %error, left_out, "could not publish; the relay will retry");
    }
    store.unpublished(&failed, AGAIN_AFTER).await?;
    Ok((published, Some(error)))
}

/// The findings of one worker's looks for lost messages.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The age of a publication from which the relay looks for its message: before, it may be under way.
    under_way: Duration,
    /// The same if workers hold messages of the queue: a worker that cannot decide about a message returns it with a
    /// delay of up to five seconds.
    with_workers: Duration,
    ack_wait: Duration,
    publish_within: Duration,
    stop: Stop,
    /// The times of this relay's looks, and the transactions that were committed by then.
    seen: VecDeque<(Instant, String)>,
    /// When the last look found every message of a queue delivered, by Postgres's time.
    drained: HashMap<String, DateTime<Utc>>,
    /// For each queue that was paused, the time until which no look finds its messages.
    paused: HashMap<String, Instant>,
    /// The next look continues with the queues before this one. `None`: with the last.
    before: Option<String>,
}

impl Lost {
    pub(crate) fn new(timing: &Timing, stop: Stop) -> Self {
        Self {
            under_way: timing.publish_within / 5,
            with_workers: timing.publish_within * 3 / 5,
            ack_wait: timing.ack_wait,
            publish_within: timing.publish_within,
            stop,
            seen: VecDeque::new(),
            drained: HashMap::new(),
            paused: HashMap::new(),
            before: None,
        }
    }

    /// Republishes jobs whose message is lost. Returns how many.
    ///
    /// # Errors
    ///
    /// Postgres or the stream does not answer. An error about one queue only skips that queue.
    pub(crate) async fn look(
        &mut self,
        store: &Store,
        nats: &Nats,
        worker_id: &str,
    ) -> Result<usize, RelayError> {
        let are_all = self.before.is_none();
        let Suspects { committed, queues: suspects, cut_at } =
            store.suspects(self.under_way, self.before.as_deref(), QUEUES_MAX).await?;
        // The time of the answer, not of the question: the answer may be slow, and its snapshot is younger.
        let visible_in = self.visible_for(self.under_way, Instant::now(), committed);
        let is_last = i64::try_from(suspects.len()).is_ok_and(|n| n < QUEUES_MAX);
        self.before = if is_last { cut_at } else { suspects.last().map(|last| last.queue.clone()) };
        self.paused.retain(|_, until| *until > Instant::now());
        if suspects.is_empty() {
            // If this look began after other queues, those keep what is known of them.
            if are_all && self.before.is_none() {
                self.drained.clear();
            }
            return Ok(0);
        }
        // Postgres's time first, the stream's state after: a message that was published well before this moment is in
        // the stream by then, or never will be.
        let now = store.database_time().await?;
        let asked_at = Instant::now();
        let stream = nats.stream_state().await?;
        // A stream that is slow to answer is slow to store, too: the messages are on their way, not lost.
        if asked_at.elapsed() > self.under_way {
            return Ok(0);
        }
        store.add_mark(now, &stream.0, stream.1, self.under_way).await?;
        // Producers are still sending the messages that they kept while NATS was away.
        if nats.up_for() < self.publish_within && !nats.is_up_since_the_start() {
            return Ok(0);
        }
        let Some(visible_in) = visible_in else { return Ok(0) };
        let mut total = 0;
        for suspect in suspects {
            match self.look_at(store, nats, &suspect, now, &visible_in, &stream, worker_id).await {
                Ok(n) => total += n,
                Err(RelayError::Store(error)) if error.is_outage() => return Err(error.into()),
                // One queue's error keeps no other from its look.
                Err(RelayError::Store(error)) => {
                    let (queue, error) = (&suspect.queue, JobError::from(error).text());
                    if let Some(left_out) = repeats::tell(&format!("lost messages of {queue}"), &error) {
                        tracing::warn!(
                            queue,
                            error,
                            left_out,
                            "could not look for lost messages of a queue; the relay will retry, and goes on with other \
                             queues. If this stays, `tenure doctor` may say why"
                        );
                    }
                }
                // No worker serves the queue: without a consumer, the stream cannot say which messages were delivered.
                Err(error) => {
                    tracing::debug!(queue = suspect.queue, %error,
                        "cannot look for lost messages of a queue; the next look will retry");
                }
            }
        }
        Ok(total)
    }

    /// Returns the snapshot of the newest look that is at least `least` old. `None`: no look is that old.
    ///
    /// A job that was enqueued in a transaction counts as published before its commit, and its producer publishes it
    /// after the commit. So the relay must measure the time since the commit.
    fn visible_for(&mut self, least: Duration, now: Instant, committed: String) -> Option<String> {
        self.seen.push_back((now, committed));
        let is_old = |(at, _): &(Instant, String)| now.saturating_duration_since(*at) >= least;
        while self.seen.get(1).is_some_and(is_old) {
            self.seen.pop_front();
        }
        self.seen.front().filter(|of| is_old(of)).map(|(_, committed)| committed.clone())
    }

    #[expect(clippy::too_many_arguments, reason = "the findings of one look, for each of its queues")]
    async fn look_at(
        &mut self,
        store: &Store,
        nats: &Nats,
        suspect: &Suspect,
        now: DateTime<Utc>,
        visible_in: &str,
        stream: &(String, u64),
        worker_id: &str,
    ) -> Result<usize, RelayError> {
        let name = &suspect.queue;
        if suspect.is_paused {
            // A message that arrived after the pause waits on the server: delivered, but not lost.
            self.paused.insert(name.clone(), Instant::now() + self.with_workers);
        }
        if self.paused.contains_key(name) {
            return Ok(0);
        }
        let progress = nats.progress_in(name, stream).await?;
        // A message that arrived while the queue was at its `max_running` waits on the server, too, for `ack_wait`:
        // without room, no worker asks for it.
        let margin = if suspect.is_limited { self.ack_wait } else { self.with_workers };
        let Some(before) = self.lost_before(store, name, &progress, now, margin).await? else { return Ok(0) };
        let lost = Take::Lost {
            of: name.clone(),
            published_before: before,
            visible_in: visible_in.to_owned(),
            worker_id: worker_id.to_owned(),
        };
        let total = publish_in_task(store, nats, lost, &self.stop).await?;
        if total > 0 {
            metrics::recovered(RecoveryPath::Relay, Reason::MessageLost, total);
            tracing::warn!(
                jobs = total,
                queue = name,
                "messages were lost; the relay republished their jobs"
            );
        }
        Ok(total)
    }

    /// Returns the time before which no published job of this queue can have a message left. `None`: unknown.
    async fn lost_before(
        &mut self,
        store: &Store,
        name: &str,
        progress: &Progress,
        now: DateTime<Utc>,
        margin: Duration,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let earlier =
            |at: DateTime<Utc>, by: Duration| at - TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
        if progress.pending > 0 {
            self.drained.remove(name);
            return store.passed_mark(&progress.stream_created, progress.delivered, margin).await;
        }
        // Every message of the queue has been delivered, but perhaps not claimed yet. Messages that were delivered by
        // the last look have had time for that.
        let last = self.drained.insert(name.to_owned(), now);
        if progress.unacknowledged == 0 {
            return Ok(Some(earlier(now, self.under_way)));
        }
        Ok(last.map(|last| earlier(last, margin)))
    }
}

#[cfg(test)]
mod tests;
