//! Watch: tells callers of this process when jobs change.
//!
//! ```text
//! callers ──► the jobs that are watched ──► one task looks, sleeps until a hint or the next poll, looks again
//!                                            ▲
//! workers ◄── asked to tell; their hints ──► one task talks with NATS
//! ```
//!
//! A hint causes a look, and proves nothing. All jobs of a process share one subscription and its statements: a look
//! reads all jobs that are due for one, and after [`LOOKS_AT_ONCE`] there is one every [`LOOKS_APART`].
//! Where no hint comes, each job is looked at by itself: soon, then less often, at least every [`PAUSE_LONGEST`].
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_wait_ends_without_nats_and_after_a_lost_hint`
//! - `ten_thousand_waiters_cost_a_constant_number_of_statements`

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, stream, stream::BoxStream};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, watch},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    nats::{Hint, Hinted, WATCHED_FOR},
    store::JobUpdate,
};
use crate::{
    client::{Tenure, jobs::WaitError},
    job::{JobId, Status},
    nats::Nats,
    observe::repeats,
    store::{Store, StoreError},
};

/// The longest pause between two looks at a job.
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// The first pause, and by how much the next one is longer: while no worker can tell of a change.
const PAUSE_ALONE: (Duration, f64) = (Duration::from_millis(10), 1.5);
/// The same while workers were asked to tell.
const PAUSE_HINTED: (Duration, f64) = (Duration::from_millis(20), 2.0);
/// How often the task may look once more, for one job or for all.
const LOOKS_APART: Duration = Duration::from_millis(5);
/// How many looks there may be at once after a pause: the hints of one call need no spacing.
const LOOKS_AT_ONCE: u32 = 20;
/// The most jobs of one look.
const LOOKED_AT_MAX: usize = 10_000;
/// How often the workers are asked again.
const ASK_EVERY: Duration = WATCHED_FOR.checked_div(3).expect("three is not zero");
/// How long a job that has ended is not looked at, while a watcher holds on to it.
const OVER_FOR: Duration = Duration::from_hours(1);
/// How soon the task asks again where it could not.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The most hints that wait for a look.
const HINTS_MAX: usize = 65_536;
/// How long the task outlives its last watcher: the next one finds the subscription made.
const IDLE_FOR: Duration = Duration::from_secs(30);
/// The longest wait for the NATS client to take a subscription.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(1);

/// The jobs that this process watches. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watches(Arc<Shared>);

struct Shared {
    store: Store,
    nats: Nats,
    /// The runtime of tenure's connections.
    home: Handle,
    /// The name of this watcher in NATS.
    name: String,
    state: Mutex<State>,
    /// Wakes the task that looks: a job has come.
    to_look: Notify,
    /// Wakes the task that asks the workers.
    to_ask: Notify,
    /// Whether the program is told to stop: no feed goes on.
    is_over: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    jobs: HashMap<JobId, Watched>,
    has_task: bool,
}

/// A job that is watched.
struct Watched {
    /// What the last look saw, and when that look began.
    seen: watch::Sender<(Instant, Seen)>,
    /// When watchers came that wait for their first look: the first and the last of them.
    fresh: Option<(Instant, Instant)>,
    watchers: usize,
    /// How many of them want more than the end.
    feeds: usize,
    look_at: Instant,
    pause: Duration,
    /// When the workers were asked to tell.
    asked_at: Option<Instant>,
    /// Since when the job is known to exist: to a look that began later, a missing row is an end.
    exists_since: Option<Instant>,
    /// Whether the job may be about to be created: then a missing row says nothing.
    is_expected: bool,
}

/// What the last look saw.
#[derive(Clone)]
enum Seen {
    /// No look has had an answer.
    Nothing,
    Job(Arc<JobUpdate>),
    /// There is no such job.
    Missing,
    /// The job existed, and is gone. What it was, if a look saw it.
    Gone(Option<Arc<JobUpdate>>),
    /// Postgres refused the look.
    Refused(StoreError),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watches {
    pub(crate) fn new(store: Store, nats: Nats) -> Self {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let (home, state) = (Handle::current(), Mutex::default());
        let (to_look, to_ask) = (Notify::new(), Notify::new());
        let is_over = watch::Sender::new(false);
        Self(Arc::new(Shared { store, nats, home, name, state, to_look, to_ask, is_over }))
    }

    /// Ends all feeds.
    pub(crate) fn end(&self) {
        self.0.is_over.send_replace(true);
    }

    /// Returns when feeds end.
    fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_over = self.0.is_over.subscribe();
        async move { drop(is_over.wait_for(|is_over| *is_over).await) }
    }

    /// Watches a job.
    pub(crate) fn watch(&self, job: JobId) -> Watching {
        self.add(job, false, false)
    }

    /// Watches a job, for a caller that wants to know more than its end.
    fn feed(&self, job: JobId) -> Watching {
        self.add(job, false, true)
    }

    /// Watches a job that may not exist yet. Say so when it does: [`Watching::exists`].
    pub(crate) fn expect(&self, job: JobId) -> Watching {
        self.add(job, true, false)
    }

    fn add(&self, job: JobId, is_expected: bool, is_feed: bool) -> Watching {
        let mut state = self.0.state();
        let now = Instant::now();
        let watched = state.jobs.entry(job).or_insert_with(|| Watched {
            seen: watch::Sender::new((now, Seen::Nothing)),
            fresh: None,
            watchers: 0,
            feeds: 0,
            look_at: if is_expected { now + PAUSE_HINTED.0 } else { now },
            pause: Duration::ZERO,
            asked_at: None,
            exists_since: None,
            is_expected,
        });
        watched.watchers += 1;
        watched.feeds += usize::from(is_feed);
        // What an earlier look saw may be old.
        watched.fresh = Some((watched.fresh.map_or(now, |(first, _)| first), now));
        watched.look_at = watched.look_at.min(if is_expected { now + PAUSE_HINTED.0 } else { now });
        watched.pause = Duration::ZERO;
        let seen = watched.seen.subscribe();
        if !std::mem::replace(&mut state.has_task, true) {
            let end = End { shared: self.0.clone(), is_done: false };
            self.0.home.spawn(run(end));
        }
        drop(state);
        self.0.to_look.notify_one();
        self.0.to_ask.notify_one();
        Watching { shared: self.0.clone(), job, seen, since: now, last: None, is_feed }
    }
}

/// A watched job. Dropped, it is not watched any more.
pub(crate) struct Watching {
    shared: Arc<Shared>,
    job: JobId,
    seen: watch::Receiver<(Instant, Seen)>,
    /// Looks that began earlier say nothing to this watcher.
    since: Instant,
    /// What the caller was told last.
    last: Option<Arc<JobUpdate>>,
    /// Whether the caller wants more than the end.
    is_feed: bool,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(watched) = state.jobs.get_mut(&self.job)
            && watched.seen.subscribe().same_channel(&self.seen)
        {
            watched.watchers -= 1;
            watched.feeds -= usize::from(self.is_feed);
            if watched.watchers == 0 {
                state.jobs.remove(&self.job);
            }
        }
    }
}

impl Watching {
    /// Notes that the expected job exists now.
    pub(crate) fn exists(&self) {
        if let Some(watched) = self.shared.state().jobs.get_mut(&self.job) {
            (watched.exists_since, watched.is_expected) = (Some(Instant::now()), false);
        }
    }

    /// Returns the state of the job when it has changed, at first as soon as it is known.
    ///
    /// Cancel safe.
    async fn next(&mut self) -> Seen {
        loop {
            let (looked_at, seen) = self.seen.borrow_and_update().clone();
            let is_news = match (&seen, &self.last) {
                (Seen::Nothing, _) => false,
                (Seen::Job(job), Some(last)) => !Arc::ptr_eq(job, last),
                _ => true,
            };
            if is_news && looked_at >= self.since {
                if let Seen::Job(job) = &seen {
                    self.last = Some(job.clone());
                }
                return seen;
            }
            if self.seen.changed().await.is_err() {
                // The task has panicked, which is reported, or its runtime has ended. Watch anew.
                tokio::time::sleep(PAUSE_LONGEST).await;
                let last = self.last.take();
                *self = Watches(self.shared.clone()).add(self.job, false, self.is_feed);
                self.last = last;
            }
        }
    }

    /// Returns the job once it has ended.
    pub(crate) async fn ended(mut self) -> Result<Arc<JobUpdate>, WaitError> {
        loop {
            match self.next().await {
                Seen::Job(job) if job.status.is_finished() => return Ok(job),
                Seen::Missing => return Err(WaitError::NotFound(self.job)),
                Seen::Gone(_) => return Err(WaitError::NoHistory(self.job)),
                Seen::Refused(error) => return Err(error.into()),
                Seen::Job(_) | Seen::Nothing => {}
            }
        }
    }
}

/// The task that looks: runs while jobs are watched, and a little longer. It never waits for NATS.
async fn run(mut end: End) {
    let shared = end.shared.clone();
    let (tell, mut told) = mpsc::channel(HINTS_MAX);
    let _talks = AbortOnDropHandle::new(tokio::spawn(talk(shared.clone(), tell)));
    let mut looks = Looks { left: LOOKS_AT_ONCE, counted_at: Instant::now(), most: LOOKED_AT_MAX };
    let mut idle_since = None;
    loop {
        let now = Instant::now();
        let free_at = looks.next_at(now);
        let (due, next) = {
            let mut state = shared.state();
            let due: Vec<_> = if free_at > now {
                vec![]
            } else {
                let is_due = state.jobs.values().any(|watched| watched.look_at <= now);
                // Those that will soon be due come along: so the looks at many jobs fall together.
                let soon = |watched: &Watched| now + watched.pause / 4;
                let due = state.jobs.iter().filter(|(_, watched)| is_due && watched.look_at <= soon(watched));
                due.map(|(job, _)| *job).take(looks.most).collect()
            };
            let next = state.jobs.values().map(|watched| watched.look_at).min();
            if next.is_some() {
                idle_since = None;
            } else if idle_since.get_or_insert(now).elapsed() >= IDLE_FOR {
                // Under the lock: a later watcher starts a new task.
                state.has_task = false;
                end.is_done = true;
                return;
            }
            (due, next)
        };
        if !due.is_empty() {
            looks.left -= 1;
            let is_seen = look(&shared, &due).await;
            // The outputs of fewer jobs may come in time.
            looks.most = if is_seen { looks.most * 2 } else { due.len() / 4 }.clamp(1, LOOKED_AT_MAX);
            continue;
        }
        let wake_at = next.map_or(now + IDLE_FOR, |at| at.max(free_at));
        tokio::select! {
            () = tokio::time::sleep_until(wake_at.into()) => {}
            () = shared.to_look.notified() => {}
            Some(hint) = told.recv() => note_hints(&shared, hint, &mut told),
        }
    }
}

/// The task that talks with the workers: asks them to tell of the jobs, and passes on what they tell. A NATS that takes
/// nothing delays this task, and no look.
async fn talk(shared: Arc<Shared>, tell: mpsc::Sender<Hint>) {
    let mut hinted: Option<Hinted> = None;
    let mut connections = shared.nats.connections();
    loop {
        if hinted.is_none() && shared.nats.is_connected() {
            let subscribed = timeout(SUBSCRIBED_WITHIN, shared.nats.hinted(&shared.name)).await;
            hinted = subscribed.ok().and_then(Result::ok);
        }
        if hinted.is_some() && shared.nats.is_connected() {
            ask(&shared).await;
        }
        let asks_at = Instant::now() + ASK_AGAIN_AFTER;
        loop {
            let hint = async {
                match &mut hinted {
                    Some(hinted) => hinted.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(asks_at.into()) => break,
                () = shared.to_ask.notified() => break,
                Ok(()) = connections.changed() => {
                    ask_anew(&shared);
                    break;
                }
                hint = hint => {
                    let Some(hint) = hint else {
                        hinted = None;
                        break;
                    };
                    // A hint that finds no room is lost: its job is looked at by itself.
                    drop(tell.try_send(hint));
                }
            }
        }
    }
}

/// How many looks there may be.
struct Looks {
    left: u32,
    counted_at: Instant,
    /// The most jobs of the next one.
    most: usize,
}

impl Looks {
    /// Returns when the next look may be.
    fn next_at(&mut self, now: Instant) -> Instant {
        let more =
            u32::try_from((now - self.counted_at).as_nanos() / LOOKS_APART.as_nanos()).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(LOOKS_AT_ONCE);
        self.counted_at = if self.left == LOOKS_AT_ONCE { now } else { self.counted_at + LOOKS_APART * more };
        if self.left > 0 { now } else { self.counted_at + LOOKS_APART }
    }
}

/// Makes the jobs of this hint, and of those that wait behind it, due for a look.
fn note_hints(shared: &Shared, first: Hint, told: &mut mpsc::Receiver<Hint>) {
    let mut state = shared.state();
    let now = Instant::now();
    let mut next = Some(first);
    while let Some(hint) = next {
        if let Some(watched) = state.jobs.get_mut(&hint.job_id)
            && (watched.feeds > 0 || hint.may_be_an_end())
        {
            watched.look_at = now;
        }
        next = told.try_recv().ok();
    }
}

/// A new connection: what was asked of the workers may be lost, and hints are.
fn ask_anew(shared: &Shared) {
    for watched in shared.state().jobs.values_mut() {
        watched.asked_at = None;
        watched.look_at = Instant::now();
    }
    shared.to_look.notify_one();
}

/// Asks the workers to tell of the jobs of which they were not asked, or too long ago.
async fn ask(shared: &Shared) {
    let now = Instant::now();
    let jobs: Vec<_> = {
        let state = shared.state();
        let is_due =
            |watched: &Watched| !watched.is_over() && watched.asked_at.is_none_or(|at| now - at >= ASK_EVERY);
        state.jobs.iter().filter(|(_, watched)| is_due(watched)).map(|(job, _)| *job).collect()
    };
    if !jobs.is_empty() && shared.nats.ask_to_watch(&shared.name, &jobs).await {
        let mut state = shared.state();
        for job in jobs {
            if let Some(watched) = state.jobs.get_mut(&job) {
                watched.asked_at = Some(now);
            }
        }
    }
}

/// Looks at these jobs, and tells their watchers what has changed. Returns whether Postgres has answered.
async fn look(shared: &Shared, jobs: &[JobId]) -> bool {
    let began_at = Instant::now();
    let looked = shared.store.looks(jobs).await;
    let mut state = shared.state();
    let now = Instant::now();
    let is_seen = looked.is_ok();
    let mut answers = match looked {
        Ok(seen) => seen.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(error) => {
            if let Some(left_out) = repeats::tell("watch", &error) {
                tracing::debug!(%error, jobs = jobs.len(), left_out,
                    "could not look at watched jobs; this process looks again");
            }
            jobs.iter().map(|_| Err(error.clone())).collect()
        }
    };
    for (job, answer) in jobs.iter().zip(answers.drain(..)) {
        let Some(watched) = state.jobs.get_mut(job) else { continue };
        let is_hinted = watched.asked_at.is_some() && shared.nats.is_connected();
        let (first, factor) = if is_hinted { PAUSE_HINTED } else { PAUSE_ALONE };
        watched.pause = watched.pause.mul_f64(factor).clamp(first, PAUSE_LONGEST);
        watched.look_at = now + watched.pause;
        watched.note(answer, began_at);
        if watched.is_over() && watched.fresh.is_none() {
            // It changes no more, unless a person redrives it: then a new watcher asks.
            watched.look_at = now + OVER_FOR;
        }
    }
    is_seen
}

impl Watched {
    /// Whether the last look saw its end.
    fn is_over(&self) -> bool {
        matches!(&*self.seen.borrow(), (_, Seen::Job(job)) if job.status.is_finished())
    }

    fn note(&mut self, answer: Result<Option<JobUpdate>, StoreError>, began_at: Instant) {
        let before = match &*self.seen.borrow() {
            (_, Seen::Job(job)) => Some(job.clone()),
            _ => None,
        };
        let (seen, is_news) = match answer {
            Ok(Some(job)) => {
                (self.exists_since, self.is_expected) = (Some(began_at), false);
                match before {
                    Some(before) if before.is_like(&job) => (Seen::Job(before), false),
                    _ => (Seen::Job(Arc::new(job)), true),
                }
            }
            // A job that has ended may be removed, by retention or a person.
            Ok(None) if before.as_ref().is_some_and(|job| job.status.is_finished()) => return,
            // Every other end leaves a row, for an hour at least.
            Ok(None) if self.exists_since.is_some_and(|since| began_at >= since) => {
                (Seen::Gone(before), true)
            }
            // A look may have begun before the job was inserted, and be answered after its caller heard of it.
            Ok(None) if self.is_expected || self.exists_since.is_some() => return,
            Ok(None) => (Seen::Missing, true),
            Err(error) if error.is_unavailable() => return,
            Err(error) => (Seen::Refused(error), true),
        };
        let is_awaited = self.fresh.is_some_and(|(first, _)| began_at >= first);
        if is_awaited {
            // Those that came during the look wait for the next one.
            self.fresh = self.fresh.filter(|(_, last)| began_at < *last).map(|(_, last)| (last, last));
        }
        if is_news || is_awaited {
            self.seen.send_replace((began_at, seen));
        }
    }
}

/// Dropped with the task: if that ended before its time, because it panicked or its runtime ended, watchers watch anew.
struct End {
    shared: Arc<Shared>,
    is_done: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.shared.state();
            state.has_task = false;
            state.jobs.clear();
        }
    }
}

/// A job's progress and end: a stream of what it was when this began, and of each change, the latest only if several
/// come at once. It ends after an update whose status is finished. See [`Tenure::watch`].
///
/// Dropped, it frees all that it used.
pub struct Watch {
    updates: BoxStream<'static, JobUpdate>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Stream for Watch {
    type Item = JobUpdate;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<JobUpdate>> {
        self.updates.poll_next_unpin(cx)
    }
}

impl Tenure {
    /// Watches a job: a stream of its state now, and after each change, until its end. For a web page, for example.
    ///
    /// The job's worker tells this process of a change over NATS; the job is then looked up. So its end arrives within
    /// milliseconds, and its progress as its worker writes it, about once a second. Without NATS this process looks by
    /// itself, twice a second. Any number of watchers of one process share one subscription and its statements; an
    /// outage of Postgres or NATS delays the stream, and does not end it.
    ///
    /// A job that is gone without an end that was seen, as one of a kind that keeps no history, ends as
    /// [`Status::Completed`] without an output. A job that is redriven after its end needs a new stream. A stream ends
    /// early, and the log says why, if Postgres comes to refuse the read, for example because a right was revoked; and
    /// by [`Tenure::end_watches`].
    ///
    /// ```no_run
    /// # use futures::StreamExt;
    /// # use tenure::{JobId, Tenure, jobs::WaitError};
    /// # async fn f(tenure: Tenure, id: JobId) -> Result<(), WaitError> {
    /// let mut feed = tenure.watch(id).await?;
    /// while let Some(now) = feed.next().await {
    ///     println!("{} {:?} {:?} %", now.status, now.stage, now.progress);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Waits for Postgres, also if it is away. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`WaitError::NotFound`]: there is no such job, or no longer. A job enqueued in a transaction exists once that
    /// has committed. [`WaitError::Store`]: Postgres refused, or had not answered when [`Tenure::end_watches`] was
    /// called.
    pub async fn watch(&self, job: JobId) -> Result<Watch, WaitError> {
        let mut watching = self.watches().feed(job);
        let seen = tokio::select! { biased;
            seen = watching.next() => seen,
            () = self.watches().over() => Seen::Refused(stopping()),
        };
        let first = match seen {
            Seen::Job(job) => job,
            Seen::Refused(error) => return Err(error.into()),
            Seen::Gone(Some(job)) => left_nothing(&job),
            Seen::Missing | Seen::Gone(None) | Seen::Nothing => return Err(WaitError::NotFound(job)),
        };
        let is_over = first.status.is_finished();
        let later = stream::unfold((watching, is_over), |(mut watching, is_over)| async move {
            if is_over {
                return None;
            }
            let update = loop {
                match watching.next().await {
                    Seen::Job(job) => break job,
                    Seen::Gone(Some(job)) => break left_nothing(&job),
                    // Cannot be: the job was seen.
                    Seen::Missing | Seen::Gone(None) => return None,
                    Seen::Refused(error) => {
                        tracing::warn!(%error, "Postgres refused to show a watched job; its stream ends early");
                        return None;
                    }
                    Seen::Nothing => {}
                }
            };
            let is_over = update.status.is_finished();
            Some((JobUpdate::clone(&update), (watching, is_over)))
        });
        let first = JobUpdate::clone(&first);
        let later = later.take_until(self.watches().over());
        Ok(Watch { updates: stream::once(async { first }).chain(later).boxed() })
    }
}

/// The error of a watch that had no answer when the program was told to stop.
fn stopping() -> StoreError {
    let why = "this program is stopping: Tenure::end_watches was called";
    StoreError::Unavailable(Arc::new(sqlx::Error::Protocol(why.into())))
}

/// The end of a job whose kind keeps no history.
fn left_nothing(last: &JobUpdate) -> Arc<JobUpdate> {
    Arc::new(JobUpdate { status: Status::Completed, progress: None, ..last.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_began_before_the_job_was_inserted_does_not_end_it() {
        let began_at = Instant::now();
        let later = began_at + Duration::from_millis(1);
        let mut watched = Watched {
            seen: watch::Sender::new((began_at, Seen::Nothing)),
            fresh: Some((began_at, began_at)),
            watchers: 1,
            feeds: 0,
            look_at: began_at,
            pause: Duration::ZERO,
            asked_at: None,
            exists_since: Some(later),
            is_expected: false,
        };
        watched.note(Ok(None), began_at);
        assert!(matches!(*watched.seen.borrow(), (_, Seen::Nothing)));
        watched.note(Ok(None), later);
        assert!(matches!(*watched.seen.borrow(), (_, Seen::Gone(None))));
    }
}
