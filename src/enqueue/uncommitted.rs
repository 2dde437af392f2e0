//! Uncommitted: jobs that were enqueued in a user's transaction, published once it commits.
//!
//! Postgres does not announce that commit. So the producer's process looks for its own rows, all of them in one
//! statement: after a millisecond, and then the less often the longer a transaction lasts. A row that is visible is
//! committed, and the process publishes it. If a transaction lasts longer than [`GIVES_UP_AFTER`], or the process
//! dies, the relay finds the committed row that has no message.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_job_enqueued_in_a_transaction_runs_within_milliseconds_of_its_commit`
//! - `a_thousand_transactions_at_once_cost_a_few_statements`
//! - `a_transaction_that_is_rolled_back_or_lasts_leaves_its_jobs_to_the_relay`

use std::{collections::HashMap, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    enqueue::publish::Publications,
    job::JobId,
    nats::Ticket,
    observe::{panics::Panics, repeats},
    store::Store,
};

/// When the first look comes.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// A look comes after this part of the transaction's age: the job waits at most that much longer.
const PART_OF_AGE: u32 = 4;
/// But no later than this: after a fifth of `publish_within` the relay takes a committed job without a message for one
/// whose message was lost.
fn looks_at_least_every(publish_within: Duration) -> Duration {
    (publish_within * 3 / 20).max(FIRST_LOOK)
}
/// Looks keep the database busy for at most this part of the time.
const PART_OF_TIME: u32 = 4;
/// The longest rest after looks: a look that hung says nothing about the next.
const RESTS_AT_MOST: Duration = Duration::from_secs(5);
/// After this time the watcher leaves the job to the relay. Jobs of rolled-back transactions are looked for as long.
const GIVES_UP_AFTER: Duration = Duration::from_secs(60);
/// The most jobs in one statement.
const LOOKED_FOR_MAX: usize = 1_000;

/// Jobs whose transactions have not been seen to commit. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Uncommitted(mpsc::UnboundedSender<Asked>);

enum Asked {
    /// Look for these jobs.
    Watch(Vec<Ticket>),
    /// Look for all jobs now, then answer.
    Look(oneshot::Sender<()>),
}

struct Waiting {
    ticket: Ticket,
    since: Instant,
    look_at: Instant,
}

impl Uncommitted {
    /// Starts the task. It ends when the last handle is dropped, and no job waits any more.
    pub(crate) fn start(store: Store, publications: Publications, publish_within: Duration) -> Self {
        let (asked, requests) = mpsc::unbounded_channel();
        let watcher = Watcher {
            store,
            publications,
            waiting: HashMap::new(),
            rests_until: Instant::now(),
            looks_at_least_every: looks_at_least_every(publish_within),
        };
        tokio::spawn(watcher.run_on(requests));
        Self(asked)
    }

    /// Publishes these jobs once the transaction that holds them commits.
    pub(crate) fn watch(&self, tickets: Vec<Ticket>) {
        if !tickets.is_empty() {
            // The task ends only with the runtime; then the relay publishes.
            drop(self.0.send(Asked::Watch(tickets)));
        }
    }

    /// Looks now, because a transaction was just committed. Returns when the messages of the committed jobs are sent.
    pub(crate) async fn look(&self) {
        let (looked, answer) = oneshot::channel();
        if self.0.send(Asked::Look(looked)).is_ok() {
            answer.await.ok();
        }
    }
}

/// Returns the time from one look to the next, for a job of this age.
fn next_look(age: Duration, longest: Duration) -> Duration {
    (age / PART_OF_AGE).clamp(FIRST_LOOK, longest)
}

struct Watcher {
    store: Store,
    publications: Publications,
    waiting: HashMap<JobId, Waiting>,
    rests_until: Instant,
    looks_at_least_every: Duration,
}

impl Watcher {
    /// Goes on after a panic, with the jobs that it has.
    async fn run_on(mut self, mut requests: mpsc::UnboundedReceiver<Asked>) {
        let mut panics = Panics::new("uncommitted");
        while let Err(panic) = AssertUnwindSafe(self.run(&mut requests)).catch_unwind().await {
            let Some(pause) = panics.note(&*panic) else { return };
            sleep(pause).await;
        }
    }

    async fn run(&mut self, requests: &mut mpsc::UnboundedReceiver<Asked>) {
        loop {
            let next = self.waiting.values().map(|waiting| waiting.look_at).min();
            let request = tokio::select! { biased;
                request = requests.recv(), if !requests.is_closed() || !requests.is_empty() => request,
                () = sleep_until(next.unwrap_or_else(Instant::now).max(self.rests_until)), if next.is_some() => {
                    self.look_for_due().await;
                    continue;
                }
                // tenure itself has committed a transaction, such as a handler's.
                () = self.store.commit(), if next.is_some() => {
                    sleep_until(self.rests_until).await;
                    self.look_for(self.waiting.keys().copied().collect()).await;
                    continue;
                }
                else => return,
            };
            let Some(request) = request else { continue };
            self.take(request).await;
            // Takes all requests that have come, to search for the next look once.
            while let Ok(request) = requests.try_recv() {
                self.take(request).await;
            }
        }
    }

    async fn take(&mut self, request: Asked) {
        match request {
            Asked::Watch(tickets) => {
                let since = Instant::now();
                let look_at = since + FIRST_LOOK;
                let waiting = |ticket: Ticket| (ticket.job, Waiting { ticket, since, look_at });
                self.waiting.extend(tickets.into_iter().map(waiting));
            }
            Asked::Look(looked) => {
                self.look_for(self.waiting.keys().copied().collect()).await;
                // The caller may have gone.
                looked.send(()).ok();
            }
        }
    }

    async fn look_for_due(&mut self) {
        // Takes along the jobs that would be due soon for their age: a thousand transactions fall into step.
        let now = Instant::now();
        let is_due = |waiting: &Waiting| {
            let soon = (next_look(now - waiting.since, self.looks_at_least_every) / 2).max(FIRST_LOOK);
            waiting.look_at <= now + soon
        };
        let due = self.waiting.iter().filter(|(_, waiting)| is_due(waiting));
        self.look_for(due.map(|(job, _)| *job).collect()).await;
    }

    async fn look_for(&mut self, jobs: Vec<JobId>) {
        let began = Instant::now();
        for some in jobs.chunks(LOOKED_FOR_MAX) {
            match self.store.visible(some).await {
                Ok(visible) => self.publish(visible).await,
                // The next look tries again, as after one that found nothing.
                Err(error) => {
                    tracing::debug!(%error, "did not look for jobs of transactions; the next look will retry");
                    break;
                }
            }
        }
        let now = Instant::now();
        self.rests_until = now + ((now - began) * (PART_OF_TIME - 1)).min(RESTS_AT_MOST);
        for job in jobs {
            let Some(waiting) = self.waiting.get_mut(&job) else { continue };
            let age = now - waiting.since;
            if age > GIVES_UP_AFTER {
                self.waiting.remove(&job);
            } else {
                waiting.look_at = now + next_look(age, self.looks_at_least_every);
            }
        }
    }

    /// Publishes the committed jobs that still wait for their first message.
    async fn publish(&mut self, visible: Vec<(JobId, bool)>) {
        let mut tickets = Vec::with_capacity(visible.len());
        for (job, waits) in visible {
            let waiting = self.waiting.remove(&job);
            tickets.extend(waiting.filter(|_| waits).map(|waiting| waiting.ticket));
        }
        if tickets.is_empty() {
            return;
        }
        self.publications.share_messages(&self.store, &mut tickets).await;
        if let Some(room) = self.publications.room(tickets.len()).await {
            self.publications.publish(self.publications.prepare(&tickets), room).await;
            return;
        }
        let jobs: Vec<_> = tickets.iter().map(|ticket| (ticket.job, ticket.dispatch)).collect();
        if let Err(error) = self.store.unpublished(&jobs, Duration::ZERO).await
            && let Some(left_out) = repeats::tell("hand over", &error)
        {
            tracing::warn!(%error, left_out, "could not tell the relay about new jobs; it will find them later");
        }
    }
}
