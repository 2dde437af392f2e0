//! Hooks: the program's own functions that hear what happened to jobs.
//!
//! ```text
//! settle · recover · deliver · enqueue ──► event ──► a queue for each hook ──► the hook's own thread
//! ```
//!
//! The worker's side never waits: it puts an event into a queue with a limit, and drops the event if the queue is full.
//! A hook that hangs holds up its own thread and no other hook.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_hook_that_hangs_holds_up_neither_the_worker_nor_another_hook`
//! - `a_hook_that_panics_hears_the_next_event`
//! - `an_attempt_is_told_of_after_its_end_is_committed`

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures::future::join_all;
use tokio::{
    runtime::Handle,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::{Instant, timeout_at},
};

pub use crate::job::attempt::{AttemptOutcome, Category, RecoveryPath};
use crate::{
    job::{JobError, JobId, claim::FencingToken},
    observe::{metrics, panics, repeats::Repeats},
};

/// The most events that wait for one hook.
pub(crate) const WAITING_MAX: usize = 4_096;
/// How long a worker that stops, or a [`Tenure`](crate::Tenure) that closes, waits for events that its hooks have not
/// handled.
pub(crate) const FINISHED_WITHIN: Duration = Duration::from_secs(5);

/// An attempt whose end this worker has written. See [`WorkerBuilder::on_attempt_end`].
///
/// [`WorkerBuilder::on_attempt_end`]: crate::WorkerBuilder::on_attempt_end
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttemptEnded {
    /// The job.
    pub id: JobId,
    /// The job's queue.
    pub queue: String,
    /// The job's kind.
    pub kind: String,
    /// The job's lane, if its queue has lanes.
    pub lane: Option<String>,
    /// The worker that ran the attempt.
    pub worker: Arc<str>,
    /// The number of the attempt; 1 is the first.
    pub attempt: u32,
    /// The most attempts that the job may have.
    pub max_attempts: u32,
    /// The attempt's fencing token.
    pub token: FencingToken,
    /// How the attempt ended. Never [`AttemptOutcome::Lost`], about which [`JobLost`] tells.
    pub outcome: AttemptOutcome,
    /// The error that the attempt records: the handler's own, with its causes, or a text of tenure's, as after a panic
    /// or a timeout. `None` if the attempt records none.
    pub error: Option<Arc<JobError>>,
    /// How long the handler ran.
    pub ran: Duration,
    /// How long after this end, by the database's clock, the job is due again. `None`: it does not run again.
    pub again_in: Option<Duration>,
}

/// A job whose attempt lost its worker. See [`WorkerBuilder::on_lost`](crate::WorkerBuilder::on_lost).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobLost {
    /// The job.
    pub id: JobId,
    /// The job's queue.
    pub queue: String,
    /// The job's kind.
    pub kind: String,
    /// The worker that tells: the former owner, or the one that reset the job.
    pub worker: Arc<str>,
    /// The worker that lost the job.
    pub owner: Option<String>,
    /// The fencing token of the lost attempt.
    pub token: FencingToken,
    /// Who found out. [`RecoveryPath::Worker`]: the former owner itself, after its handler has ended.
    pub path: RecoveryPath,
    /// How long the owner had been silent when the job was reset. `None` if the former owner tells.
    pub silence: Option<Duration>,
}

/// A job or a message that this worker has made a dead letter. See
/// [`WorkerBuilder::on_dead`](crate::WorkerBuilder::on_dead).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobDied {
    /// The job, or the refused message's dead letter.
    pub id: JobId,
    /// The queue; `?` if a refused message's subject names none.
    pub queue: String,
    /// The kind; `?` if a refused message's subject names none.
    pub kind: String,
    /// The worker that wrote the dead letter.
    pub worker: Arc<str>,
    /// Why it is a dead letter.
    pub category: Category,
    /// The error of the last attempt, with its causes, or tenure's reason if no handler failed.
    pub error: Arc<JobError>,
}

/// A job that an enqueue of this process has created. See
/// [`TenureBuilder::on_enqueue`](crate::TenureBuilder::on_enqueue).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobEnqueued {
    /// The job.
    pub id: JobId,
    /// The job's queue.
    pub queue: String,
    /// The job's kind.
    pub kind: String,
    /// The most attempts that the job may have.
    pub max_attempts: u32,
    /// The unique key, if the enqueue gave one.
    pub unique_key: Option<String>,
    /// The lane, if the enqueue or the job's type gave one.
    pub lane: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The delay, if the enqueue gave one.
    pub delay: Option<Duration>,
    /// The time before which the job does not run, if the enqueue gave one.
    pub run_at: Option<DateTime<Utc>>,
    /// Whether the job was inserted in the program's own transaction, which may still roll back.
    pub in_transaction: bool,
}

/// A hook as the program gives it. It has a thread of its own, and so needs no lock for what it changes.
type Function<E> = Box<dyn FnMut(&E) + Send>;

enum Message<E> {
    Event(Arc<E>),
    /// No more events: the thread ends.
    End,
}

/// A hook whose thread runs. The thread ends after the last sender of its events, or when it is told to.
struct Hook<E> {
    name: &'static str,
    events: UnboundedSender<Message<E>>,
    /// How many more events may wait.
    room: Arc<AtomicUsize>,
    repeats: Repeats,
}

impl<E: Send + Sync + 'static> Hook<E> {
    /// `runtime` is the one on which the hook may spawn tasks.
    fn start(name: &'static str, function: Function<E>, runtime: Handle) -> io::Result<Self> {
        let (events, waiting) = mpsc::unbounded_channel();
        let room = Arc::new(AtomicUsize::new(WAITING_MAX));
        let freed = room.clone();
        let serve = move || {
            let _entered = runtime.enter();
            serve(name, function, waiting, &freed);
        };
        thread::Builder::new().name("tenure-hook".into()).spawn(serve)?;
        Ok(Self { name, events, room, repeats: Repeats::default() })
    }

    fn push(&self, event: Arc<E>) {
        let fits = self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, |room| room.checked_sub(1));
        if fits.is_ok() && self.events.send(Message::Event(event)).is_ok() {
            return;
        }
        metrics::hook_failed(self.name, "dropped");
        if let Some(left_out) = self.repeats.tell("dropped") {
            tracing::warn!(
                hook = self.name,
                waiting_max = WAITING_MAX,
                left_out,
                "dropped an event: its hook hangs or is too slow, or its worker has stopped"
            );
        }
    }

    /// Waits for the events so far to be handled, at most until `until`.
    async fn finish(&self, until: Instant) {
        drop(self.events.send(Message::End));
        if timeout_at(until, self.events.closed()).await.is_err() {
            let waiting = WAITING_MAX - self.room.load(Ordering::Acquire);
            tracing::warn!(
                hook = self.name,
                waiting,
                "a hook has not handled all events; the worker ends without waiting for it any longer"
            );
        }
    }
}

/// Calls a hook with each event, until the last.
fn serve<E>(
    name: &'static str,
    mut function: Function<E>,
    mut waiting: UnboundedReceiver<Message<E>>,
    room: &AtomicUsize,
) {
    let repeats = Repeats::default();
    while let Some(Message::Event(event)) = waiting.blocking_recv() {
        room.fetch_add(1, Ordering::AcqRel);
        // The last owner of the event drops the program's error, whose own code may panic as well.
        let called = std::panic::catch_unwind(AssertUnwindSafe(|| {
            function(&event);
            drop(event);
        }));
        if let Err(panic) = called {
            metrics::hook_failed(name, "panicked");
            if let Some(left_out) = repeats.tell("panicked") {
                let panic = panics::text(&*panic);
                tracing::error!(hook = name, panic, left_out, "a hook panicked; it hears the next event");
            }
            drop_caught(panic);
        }
    }
    drop_caught(function);
}

/// Drops a value of the program's, whose own code may panic.
fn drop_caught<T>(value: T) {
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // The payload of this panic may panic in turn, without an end: it is leaked.
        std::mem::forget(panic);
    }
}

/// The hooks of one event.
struct Each<E>(Vec<Hook<E>>);

impl<E: Send + Sync + 'static> Each<E> {
    fn start(name: &'static str, functions: Vec<Function<E>>, runtime: &Handle) -> io::Result<Self> {
        let hooks = functions.into_iter().map(|function| Hook::start(name, function, runtime.clone()));
        hooks.collect::<Result<_, _>>().map(Self)
    }

    fn tell(&self, event: impl FnOnce() -> E) {
        if self.0.is_empty() {
            return;
        }
        let event = Arc::new(event());
        for hook in &self.0 {
            hook.push(event.clone());
        }
    }

    async fn finish(&self, until: Instant) {
        // Together: one that hangs must not keep the end from the others.
        join_all(self.0.iter().map(|hook| hook.finish(until))).await;
    }
}

/// The hooks of a worker that has not started.
#[derive(Default)]
pub(crate) struct WorkerHooks {
    pub(crate) ends: Vec<Function<AttemptEnded>>,
    pub(crate) losses: Vec<Function<JobLost>>,
    pub(crate) deaths: Vec<Function<JobDied>>,
}

impl WorkerHooks {
    /// Starts a thread for each hook; none without hooks. A hook may spawn tasks on `runtime`.
    pub(crate) fn start(self, worker: &str, runtime: &Handle) -> io::Result<Hooks> {
        let Self { ends, losses, deaths } = self;
        if ends.is_empty() && losses.is_empty() && deaths.is_empty() {
            return Ok(Hooks::default());
        }
        Ok(Hooks(Some(Arc::new(OfWorker {
            worker: worker.into(),
            ends: Each::start("on_attempt_end", ends, runtime)?,
            losses: Each::start("on_lost", losses, runtime)?,
            deaths: Each::start("on_dead", deaths, runtime)?,
        }))))
    }
}

/// The hooks of a worker that runs. Cheap to clone; without hooks, every call returns at once.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Option<Arc<OfWorker>>);

struct OfWorker {
    worker: Arc<str>,
    ends: Each<AttemptEnded>,
    losses: Each<JobLost>,
    deaths: Each<JobDied>,
}

impl Hooks {
    /// Whether a hook hears of this end of an attempt, or of its dead letter.
    pub(crate) fn hear_of(&self, outcome: AttemptOutcome) -> bool {
        self.0.as_ref().is_some_and(|of| {
            !of.ends.0.is_empty() || outcome == AttemptOutcome::Failed && !of.deaths.0.is_empty()
        })
    }

    /// Tells that an attempt has ended, once that is committed. The closures here get the worker's id.
    pub(crate) fn ended(&self, event: impl FnOnce(Arc<str>) -> AttemptEnded) {
        if let Some(of) = &self.0 {
            of.ends.tell(|| event(of.worker.clone()));
        }
    }

    /// Tells that a job was lost.
    pub(crate) fn lost(&self, event: impl FnOnce(Arc<str>) -> JobLost) {
        if let Some(of) = &self.0 {
            of.losses.tell(|| event(of.worker.clone()));
        }
    }

    /// Tells that a job or a message is a dead letter, once that is committed.
    pub(crate) fn died(&self, event: impl FnOnce(Arc<str>) -> JobDied) {
        if let Some(of) = &self.0 {
            of.deaths.tell(|| event(of.worker.clone()));
        }
    }

    /// Waits for the events so far to be handled, for a bounded time. Later events are dropped and counted.
    pub(crate) async fn finish(&self) {
        if let Some(of) = &self.0 {
            let until = Instant::now() + FINISHED_WITHIN;
            tokio::join!(of.ends.finish(until), of.losses.finish(until), of.deaths.finish(until));
        }
    }
}

/// The hooks of enqueues that have not started.
pub(crate) type EnqueueFunctions = Vec<Function<JobEnqueued>>;

/// The hooks of a producer's enqueues. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct EnqueueHooks(Option<Arc<Each<JobEnqueued>>>);

impl EnqueueHooks {
    /// Starts a thread for each hook; none without hooks. A hook may spawn tasks on `runtime`.
    pub(crate) fn start(functions: EnqueueFunctions, runtime: &Handle) -> io::Result<Self> {
        if functions.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self(Some(Arc::new(Each::start("on_enqueue", functions, runtime)?))))
    }

    /// Whether a hook hears of enqueues.
    pub(crate) fn hear(&self) -> bool {
        self.0.is_some()
    }

    /// Tells that a job was inserted.
    pub(crate) fn enqueued(&self, event: impl FnOnce() -> JobEnqueued) {
        if let Some(hooks) = &self.0 {
            hooks.tell(event);
        }
    }

    /// Waits for the events so far to be handled, for a bounded time. Later events are dropped and counted.
    pub(crate) async fn finish(&self) {
        if let Some(hooks) = &self.0 {
            hooks.finish(Instant::now() + FINISHED_WITHIN).await;
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::sync::mpsc as channel;

    use super::*;
    use crate::proof::Counts;

    fn job(n: u32) -> JobEnqueued {
        JobEnqueued {
            id: JobId::generate(),
            queue: "q".into(),
            kind: "k".into(),
            max_attempts: n,
            unique_key: None,
            lane: None,
            tags: Vec::new(),
            delay: None,
            run_at: None,
            in_transaction: false,
        }
    }

    fn dropped(counts: &Counts) -> u64 {
        counts.of("tenure_hook_failures_total{hook=on_enqueue,why=dropped}")
    }

    #[tokio::test]
    async fn a_hook_hears_each_event_in_order_and_the_last_ones_before_the_end() {
        let (heard, all) = channel::channel();
        let hook = move |job: &JobEnqueued| heard.send(job.max_attempts).unwrap();
        let hooks = EnqueueHooks::start(vec![Box::new(hook)], &Handle::current()).unwrap();
        for n in 0..1_000 {
            hooks.enqueued(|| job(n));
        }
        hooks.finish().await;
        assert_eq!(all.iter().collect::<Vec<_>>(), (0..1_000).collect::<Vec<_>>());
        // The thread has ended: a later event is dropped, and a second end waits for nothing.
        let counts = Counts::default();
        let _recording = counts.record();
        hooks.enqueued(|| job(0));
        hooks.finish().await;
        assert_eq!(dropped(&counts), 1);
    }

    #[tokio::test]
    async fn a_hook_that_hangs_costs_its_own_events_and_no_time() {
        let counts = Counts::default();
        let _recording = counts.record();
        let (began, calls) = channel::channel();
        let (release, released) = channel::channel::<()>();
        let (heard, all) = channel::channel();
        let hangs = move |_: &JobEnqueued| {
            began.send(()).unwrap();
            released.recv().ok();
        };
        let quick = move |job: &JobEnqueued| heard.send(job.max_attempts).unwrap();
        let hooks = EnqueueHooks::start(vec![Box::new(hangs), Box::new(quick)], &Handle::current()).unwrap();
        hooks.enqueued(|| job(0));
        calls.recv().unwrap();
        assert_eq!(all.recv().unwrap(), 0);
        let more = u32::try_from(WAITING_MAX).unwrap() + 10;
        for n in 1..=more {
            hooks.enqueued(|| job(n));
            assert_eq!(all.recv().unwrap(), n, "the other hook hears all of them");
        }
        assert_eq!(dropped(&counts), 10);
        drop(release);
        hooks.finish().await;
        assert_eq!(calls.iter().count(), WAITING_MAX, "what waited is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_hook_that_hangs_for_a_bounded_time() {
        let (_release, released) = channel::channel::<()>();
        let hangs = move |_: &JobEnqueued| {
            released.recv().ok();
        };
        let hooks = EnqueueHooks::start(vec![Box::new(hangs)], &Handle::current()).unwrap();
        hooks.enqueued(|| job(0));
        let began_at = Instant::now();
        hooks.finish().await;
        let waited = began_at.elapsed();
        assert!((FINISHED_WITHIN..FINISHED_WITHIN * 2).contains(&waited), "{waited:?}");
    }

    #[tokio::test]
    async fn a_hook_that_panics_hears_the_next_event() {
        let (heard, all) = channel::channel();
        let hook = move |job: &JobEnqueued| {
            assert!(job.max_attempts.is_multiple_of(2), "odd");
            heard.send(job.max_attempts).unwrap();
        };
        let hooks = EnqueueHooks::start(vec![Box::new(hook)], &Handle::current()).unwrap();
        for n in 0..4 {
            hooks.enqueued(|| job(n));
        }
        hooks.finish().await;
        assert_eq!(all.iter().collect::<Vec<_>>(), [0, 2]);
    }

    #[tokio::test]
    async fn a_hook_whose_panic_panics_when_it_is_dropped_hears_the_next_event() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let (heard, all) = channel::channel();
        let of_hook = Bomb;
        let hook = move |job: &JobEnqueued| {
            let _kept = &of_hook;
            heard.send(job.max_attempts).unwrap();
            if job.max_attempts < 3 {
                std::panic::panic_any(Bomb);
            }
        };
        let hooks = EnqueueHooks::start(vec![Box::new(hook)], &Handle::current()).unwrap();
        for n in 0..3 {
            hooks.enqueued(|| job(n));
        }
        hooks.finish().await;
        assert_eq!(all.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    /// The first hangs. The second has ended long before the time is over.
    #[tokio::test]
    async fn hooks_are_ended_together() {
        let (release, released) = channel::channel::<()>();
        let (heard, all) = channel::channel();
        let hangs = move |_: &JobEnqueued| {
            released.recv().ok();
        };
        let quick = move |job: &JobEnqueued| heard.send(job.max_attempts).unwrap();
        let hooks = EnqueueHooks::start(vec![Box::new(hangs), Box::new(quick)], &Handle::current()).unwrap();
        hooks.enqueued(|| job(7));
        let began_at = Instant::now();
        let ends = tokio::spawn(async move { hooks.finish().await });
        // Its thread drops the hook, and with it the sender, only once it is told of the end.
        let told = tokio::task::spawn_blocking(move || all.iter().collect::<Vec<_>>()).await.unwrap();
        assert_eq!(told, [7]);
        assert!(began_at.elapsed() < FINISHED_WITHIN);
        assert!(!ends.is_finished(), "it waits for the one that hangs");
        drop(release);
        ends.await.unwrap();
    }

    /// The thread ends by itself with the last handle, after the last event.
    #[tokio::test]
    async fn a_hook_without_a_producer_ends() {
        let (heard, all) = channel::channel();
        let hook = move |job: &JobEnqueued| heard.send(job.max_attempts).unwrap();
        let hooks = EnqueueHooks::start(vec![Box::new(hook)], &Handle::current()).unwrap();
        hooks.enqueued(|| job(7));
        drop(hooks);
        assert_eq!(all.iter().collect::<Vec<_>>(), [7]);
    }

    #[tokio::test]
    async fn a_hook_may_spawn_tasks() {
        let (heard, all) = channel::channel();
        let hook = move |job: &JobEnqueued| {
            let (heard, n) = (heard.clone(), job.max_attempts);
            tokio::spawn(async move { heard.send(n).unwrap() });
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let hooks = EnqueueHooks::start(vec![Box::new(hook)], runtime.handle()).unwrap();
        hooks.enqueued(|| job(7));
        assert_eq!(all.recv_timeout(Duration::from_secs(10)).unwrap(), 7);
        runtime.shutdown_background();
    }

    #[tokio::test]
    async fn without_hooks_no_event_is_made() {
        let hooks = WorkerHooks::default().start("w", &Handle::current()).unwrap();
        assert!(hooks.0.is_none() && !hooks.hear_of(AttemptOutcome::Failed));
        hooks.ended(|_| panic!("made"));
        let only_deaths = WorkerHooks { deaths: vec![Box::new(|_| {})], ..WorkerHooks::default() };
        let hooks = only_deaths.start("w", &Handle::current()).unwrap();
        assert!(hooks.hear_of(AttemptOutcome::Failed) && !hooks.hear_of(AttemptOutcome::Retried));
        hooks.ended(|_| panic!("made"));
    }
}
