//! Batch: group commit in the client.
//!
//! Items that come while a statement of their kind is in flight go out together in the next one. There is no
//! timer: a caller that finds no statement in flight sends its own at once, which saves the way to another task and
//! back. A task sends the items that wait; it also finishes the statement of a caller that gave up, or is not polled.
//!
//! ```text
//!          run, on the task's runtime          run, elsewhere
//!  Caller ◄─────────────────────────── Idle ──────────────────► Task
//!   │  │                                ▲ ▲                     │ ▲
//!   │  └── answered, nothing waits ─────┘ └── nothing waits ────┘ │
//!   └───── answered, items wait ──────────────────────────────────┘
//!
//!  Idle ── no batcher is left ──► Ended ◄── the runtime ends ── Idle, Caller, Task
//! ```

pub(crate) mod joint;

use std::{
    collections::VecDeque,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    task::yield_now,
};

use self::joint::Joint;
use crate::observe::panics;

/// The most items of one statement, which should take less than some 50 ms.
pub(crate) const ITEMS_MAX: usize = 1_024;
/// The most bytes that the items of one statement may carry together; a larger item goes alone.
const BYTES_MAX: usize = 2 << 20;

/// Collects items, runs them together, and gives each caller its own answer. Cheap to clone.
pub(crate) struct Batcher<I: Send + 'static, O: Send + 'static>(Arc<Handles<I, O>>);

/// Dropped with the last batcher, which ends the task.
struct Handles<I: Send + 'static, O: Send + 'static>(Arc<Lane<I, O>>);

impl<I: Send + 'static, O: Send + 'static> Drop for Handles<I, O> {
    fn drop(&mut self) {
        self.0.wake.notify_one();
    }
}

impl<I: Send + 'static, O: Send + 'static> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The state that the callers and the task share.
struct Lane<I, O> {
    queue: Mutex<Queue<I, O>>,
    /// Tells the task that items wait, or that a caller may not go on.
    wake: Notify,
    run: Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync>,
    bytes: fn(&I) -> usize,
    /// Whether a caller that has its answer comes again at once, as a rule.
    callers_return: bool,
    /// The task's runtime. A caller on another runtime leaves its item to the task.
    home: Handle,
}

struct Queue<I, O> {
    state: State,
    /// Empty in [`State::Idle`].
    waiting: VecDeque<(I, oneshot::Sender<O>)>,
}

/// The runner of the statement that is in flight.
enum State {
    /// No statement is in flight.
    Idle,
    /// The caller that began it. Any task that polls the work drives it.
    Caller(Joint<()>),
    /// The task.
    Task,
    /// The task has ended: items get no answer any more.
    Ended,
}

impl<I: Send + 'static, O: Send + 'static> Lane<I, O> {
    fn queue(&self) -> MutexGuard<'_, Queue<I, O>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the items; `None` after a panic, which is reported.
    async fn answers(&self, items: Vec<I>) -> Option<Vec<O>> {
        let answers = AssertUnwindSafe((self.run)(items)).catch_unwind().await;
        answers.map_err(|panic| panics::tell("batch", &*panic)).ok()
    }

    /// Runs one item by itself; the task then runs the items that wait.
    async fn run_one(self: Arc<Self>, item: I, answer: oneshot::Sender<O>) {
        // A panic concerns this item alone; the items after it are answered.
        if let Some(one) = self.answers(vec![item]).await.and_then(|mut answers| answers.pop()) {
            drop(answer.send(one));
        }
        let mut queue = self.queue();
        if matches!(queue.state, State::Ended) {
            return;
        }
        if queue.waiting.is_empty() {
            queue.state = State::Idle;
        } else {
            queue.state = State::Task;
            self.wake.notify_one();
        }
    }

    /// Runs the items of a batch together.
    async fn run_waiting(&self, batch: Vec<(I, oneshot::Sender<O>)>) {
        let (items, callers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let Some(answers) = self.answers(items).await else { return };
        debug_assert_eq!(answers.len(), callers.len());
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller that gave up does not want its answer.
            drop(caller.send(answer));
        }
    }

    /// Waits for callers that come again, so that their items go out together: the first item alone would make the
    /// others wait for one more statement.
    async fn let_them_return(&self, callers: usize) {
        if !self.callers_return {
            return;
        }
        let mut returned = self.queue().waiting.len();
        while returned < callers {
            yield_now().await;
            let before = std::mem::replace(&mut returned, self.queue().waiting.len());
            if returned == before {
                return;
            }
        }
    }

    /// The task: runs until the last batcher is dropped and no statement is in flight any more.
    /// `_end` is an argument because a runtime that ends before it has polled the task drops only the arguments.
    async fn serve(self: Arc<Self>, batchers: Weak<Handles<I, O>>, _end: End<I, O>) {
        loop {
            self.wake.notified().await;
            loop {
                let next = {
                    let mut queue = self.queue();
                    match &queue.state {
                        // The last batcher wakes the task once it is gone.
                        State::Idle if batchers.strong_count() > 0 => break,
                        State::Idle | State::Ended => return,
                        State::Caller(work) => Err(work.clone()),
                        State::Task => {
                            // A caller that gave up before its item was sent no longer wants it.
                            queue.waiting.retain(|(_, caller)| !caller.is_closed());
                            if queue.waiting.is_empty() {
                                queue.state = State::Idle;
                                continue;
                            }
                            let n = fitting(queue.waiting.iter().map(|(item, _)| (self.bytes)(item)));
                            Ok(queue.waiting.drain(..n).collect::<Vec<_>>())
                        }
                    }
                };
                match next {
                    Ok(batch) => {
                        let callers = batch.len();
                        self.run_waiting(batch).await;
                        self.let_them_return(callers).await;
                    }
                    Err(work) => work.await,
                }
            }
        }
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the task. It ends when the last batcher is dropped.
    ///
    /// `bytes` returns the size of an item's parts that may be large. `run` answers every item, in order, and is never
    /// cancelled: an item that was sent is done, whether or not its caller still waits.
    pub(crate) fn spawn<F, Fut>(bytes: fn(&I) -> usize, run: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<O>> + Send + 'static,
    {
        Self::start(bytes, run, false)
    }

    /// Starts the task as [`Batcher::spawn`] does, for callers that come again as soon as they have their answers.
    pub(crate) fn spawn_for_callers_that_return<F, Fut>(bytes: fn(&I) -> usize, run: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<O>> + Send + 'static,
    {
        Self::start(bytes, run, true)
    }

    fn start<F, Fut>(bytes: fn(&I) -> usize, run: F, callers_return: bool) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<O>> + Send + 'static,
    {
        let lane = Arc::new(Lane {
            queue: Mutex::new(Queue { state: State::Idle, waiting: VecDeque::new() }),
            wake: Notify::new(),
            run: Box::new(move |items| Box::pin(run(items))),
            bytes,
            callers_return,
            home: Handle::current(),
        });
        let handles = Arc::new(Handles(lane.clone()));
        let end = End(lane.clone());
        tokio::spawn(lane.serve(Arc::downgrade(&handles), end));
        Self(handles)
    }

    /// Runs one item together with those that wait. `None`: the item's batch panicked or the runtime shuts down, and
    /// the item may be done or not.
    ///
    /// Cancel safe: if the caller gives up, the item is either sent or not.
    pub(crate) async fn run(&self, item: I) -> Option<O> {
        let lane = &self.0.0;
        let (answer, answered) = oneshot::channel();
        let is_home = Handle::try_current().is_ok_and(|here| here.id() == lane.home.id());
        let own = {
            let mut queue = lane.queue();
            match queue.state {
                State::Ended => return None,
                State::Idle if is_home => {
                    let work = Joint::new(lane.clone().run_one(item, answer));
                    queue.state = State::Caller(work.clone());
                    Some(work)
                }
                State::Idle => {
                    queue.state = State::Task;
                    queue.waiting.push_back((item, answer));
                    None
                }
                State::Caller(_) | State::Task => {
                    queue.waiting.push_back((item, answer));
                    None
                }
            }
        };
        if let Some(work) = own {
            let unfinished = HandOver(&lane.wake);
            work.await;
            std::mem::forget(unfinished);
        } else {
            lane.wake.notify_one();
        }
        answered.await.ok()
    }
}

/// Gives up the items that wait when the task is dropped: they get no answer.
struct End<I: Send + 'static, O: Send + 'static>(Arc<Lane<I, O>>);

impl<I: Send + 'static, O: Send + 'static> Drop for End<I, O> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        let unanswered = std::mem::take(&mut queue.waiting);
        // A caller's work and the lane hold each other: break the cycle.
        let was = std::mem::replace(&mut queue.state, State::Ended);
        drop(queue);
        drop((unanswered, was));
    }
}

/// Wakes the task when it is dropped, to finish the statement in flight.
struct HandOver<'l>(&'l Notify);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Returns how many of these items go into one statement: as many as the limits allow, but at least one.
pub(crate) fn fitting(bytes: impl Iterator<Item = usize>) -> usize {
    let mut total = 0_usize;
    let within = bytes.take(ITEMS_MAX).take_while(|bytes| {
        total = total.saturating_add(*bytes);
        total <= BYTES_MAX
    });
    within.count().max(1)
}

/// Splits a refused batch: the caller tries the halves next, in order, down to the item at fault.
pub(crate) fn halve<I>(mut batch: Vec<I>, rest: &mut Vec<Vec<I>>) {
    let second = batch.split_off(batch.len() / 2);
    rest.extend([second, batch]);
}

/// Returns the answers in the order of their places.
pub(crate) fn in_order<T>(places: Vec<usize>, answers: Vec<T>) -> Vec<T> {
    let mut sorted: Vec<_> = places.into_iter().zip(answers).collect();
    sorted.sort_unstable_by_key(|(place, _)| *place);
    sorted.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Mutex, Semaphore};

    use super::*;
    use crate::proof::Counts;

    #[tokio::test]
    async fn items_that_wait_for_a_statement_go_out_together_and_each_gets_its_own_answer() {
        let gate = Arc::new(Semaphore::new(0));
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let (held, seen) = (gate.clone(), sizes.clone());
        let batcher = Batcher::spawn(
            |_| 0,
            move |items: Vec<u32>| {
                let (held, seen) = (held.clone(), seen.clone());
                async move {
                    seen.lock().await.push(items.len());
                    held.acquire().await.map(tokio::sync::SemaphorePermit::forget).ok();
                    items.into_iter().map(|n| n * 2).collect()
                }
            },
        );
        let first = tokio::spawn({
            let b = batcher.clone();
            async move { b.run(1).await }
        });
        while sizes.lock().await.is_empty() {
            tokio::task::yield_now().await;
        }
        let rest: Vec<_> = (2..=20)
            .map(|n| {
                let b = batcher.clone();
                tokio::spawn(async move { b.run(n).await })
            })
            .collect();
        while batcher.0.0.queue().waiting.len() < 19 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.ok().flatten(), Some(2));
        for (n, task) in (2..=20).zip(rest) {
            assert_eq!(task.await.ok().flatten(), Some(n * 2));
        }
        assert_eq!(*sizes.lock().await, [1, 19]);
    }

    #[tokio::test]
    async fn callers_that_come_again_at_once_go_out_together() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::spawn_for_callers_that_return(
            |_| 0,
            move |items: Vec<u32>| {
                let seen = seen.clone();
                async move {
                    seen.lock().await.push(items.len());
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    items
                }
            },
        );
        let callers = (0..4).map(|caller| {
            let batcher = batcher.clone();
            async move { (batcher.run(caller).await, batcher.run(10 + caller).await) }
        });
        let answers = futures::future::join_all(callers.map(tokio::spawn)).await;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        assert_eq!(answers, (0..4).map(|n| (Some(n), Some(10 + n))).collect::<Vec<_>>());
        // The first caller alone; then the three that waited, and the first again; then those three again.
        assert_eq!(*sizes.lock().await, [1, 4, 3]);
    }

    #[test]
    fn a_statement_carries_two_mebibytes_or_one_item() {
        assert_eq!(fitting(std::iter::repeat_n(BYTES_MAX / 4, 10)), 4);
        assert_eq!(fitting(std::iter::repeat_n(BYTES_MAX * 2, 10)), 1);
        assert_eq!(fitting([1, BYTES_MAX, 1].into_iter()), 1);
        assert_eq!(fitting(std::iter::repeat_n(0, ITEMS_MAX * 2)), ITEMS_MAX);
    }

    #[tokio::test]
    async fn large_items_go_apart_and_a_panic_ends_only_its_own_batch() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let batcher = Batcher::spawn(
            |bytes| *bytes,
            move |items: Vec<usize>| {
                let seen = seen.clone();
                async move {
                    assert_ne!(items[0], 13, "a panic that was asked for");
                    seen.lock().await.push(items.len());
                    items
                }
            },
        );
        let counts = Counts::default();
        let counted = {
            let _recording = counts.record();
            assert_eq!(batcher.run(13).await, None);
            counts.of("tenure_panics_total{task=batch}")
        };
        assert_eq!(counted, 1);
        let large = [BYTES_MAX / 2 + 1; 3].map(|bytes| {
            let batcher = batcher.clone();
            async move { batcher.run(bytes).await }
        });
        let answers = futures::future::join_all(large).await;
        assert_eq!(answers, [Some(BYTES_MAX / 2 + 1); 3]);
        assert_eq!(*sizes.lock().await, [1, 1, 1]);
    }

    #[tokio::test]
    async fn the_item_of_a_caller_that_gives_up_in_the_middle_is_done_and_the_next_one_waits_for_it() {
        let (batcher, gate, done) = gated();
        // The item is in flight, and has no answer yet.
        assert!(batcher.run(1).now_or_never().is_none());
        let third = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.run(3).await }
        });
        gate.add_permits(10);
        assert_eq!(third.await.ok().flatten(), Some(3));
        assert_eq!(*done.lock().await, [1, 3]);
    }

    type Gated = (Batcher<u32, u32>, Arc<Semaphore>, Arc<Mutex<Vec<u32>>>);

    /// Returns a batcher whose items wait at a gate, the gate, and the items that are done.
    fn gated() -> Gated {
        let gate = Arc::new(Semaphore::new(0));
        let done = Arc::new(Mutex::new(Vec::new()));
        let (held, seen) = (gate.clone(), done.clone());
        let run = move |items: Vec<u32>| {
            let (held, seen) = (held.clone(), seen.clone());
            async move {
                held.acquire().await.map(tokio::sync::SemaphorePermit::forget).ok();
                seen.lock().await.extend(items.clone());
                items
            }
        };
        (Batcher::spawn(|_| 0, run), gate, done)
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_holds_up_no_other() {
        let (batcher, gate, done) = gated();
        let mut first = Box::pin(batcher.run(1));
        assert!(first.as_mut().now_or_never().is_none());
        gate.add_permits(10);
        // The same task runs both, so that nothing polls the first one meanwhile.
        assert_eq!(batcher.run(2).await, Some(2));
        assert_eq!(*done.lock().await, [1, 2]);
        assert_eq!(first.await, Some(1));
    }

    #[test]
    fn a_caller_on_another_runtime_or_on_none_leaves_its_item_to_the_task() -> std::io::Result<()> {
        let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
        let (batcher, gate, done) = home.block_on(async { gated() });
        let other = tokio::runtime::Builder::new_current_thread().build()?;
        // The caller gives up, on a runtime that nothing drives from then on.
        assert!(other.block_on(async { batcher.run(1).now_or_never() }).is_none());
        gate.add_permits(10);
        assert_eq!(futures::executor::block_on(batcher.run(2)), Some(2));
        home.block_on(async {
            // The first item is done, unless its caller had gone before the task sent it.
            assert!(done.lock().await.ends_with(&[2]));
        });
        Ok(())
    }

    #[test]
    fn a_task_that_its_runtime_never_polls_leaves_no_caller_waiting() -> std::io::Result<()> {
        // A runtime of one thread polls its tasks in `block_on` alone.
        let home = tokio::runtime::Builder::new_current_thread().build()?;
        let guard = home.enter();
        let (batcher, ..) = gated();
        drop(guard);
        drop(home);
        assert_eq!(futures::executor::block_on(batcher.run(1)), None);
        Ok(())
    }

    #[test]
    fn a_caller_that_outlives_the_runtime_has_its_answer_and_later_ones_have_none() -> std::io::Result<()> {
        let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
        let (batcher, gate, done) = home.block_on(async { gated() });
        let mut first = Box::pin(batcher.run(1));
        assert!(home.block_on(async { first.as_mut().now_or_never() }).is_none());
        drop(home);
        assert_eq!(futures::executor::block_on(batcher.run(2)), None);
        gate.add_permits(10);
        assert_eq!(futures::executor::block_on(first), Some(1));
        assert_eq!(futures::executor::block_on(batcher.run(3)), None);
        assert_eq!(*done.blocking_lock(), [1]);
        Ok(())
    }

    #[tokio::test]
    async fn the_task_ends_with_the_last_batcher() {
        let (batcher, gate, _) = gated();
        let lane = Arc::downgrade(&batcher.0.0);
        let running = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.run(1).await }
        });
        tokio::task::yield_now().await;
        drop(batcher);
        gate.add_permits(1);
        assert_eq!(running.await.ok().flatten(), Some(1));
        while lane.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
