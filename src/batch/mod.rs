//! Batch: group commit in the client.
//!
//! Items that come while a statement of their kind is in flight go out together in the next one. There is no
//! timer: a caller that finds no statement in flight sends its own at once, which saves the way to another task and
//! back. A task sends the items that wait; it also finishes what a caller began and does not go on with, because the
//! caller gave up, or is not polled.

pub(crate) mod joint;

use std::{
    collections::VecDeque,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    task::yield_now,
};

use crate::{batch::joint::Joint, observe::panics};

/// The most items of one statement: it should stay below some 50 ms.
pub(crate) const ITEMS_MAX: usize = 1_024;
/// The most bytes that they may carry together; an item that is larger goes alone.
const BYTES_MAX: usize = 2 << 20;

/// Collects items, runs them together, and gives each caller its own answer. Cheap to clone.
pub(crate) struct Batcher<I: Send + 'static, O: Send + 'static>(Arc<Handles<I, O>>);

/// Dropped with the last batcher, which ends the task.
struct Handles<I: Send + 'static, O: Send + 'static>(Arc<Lane<I, O>>);

impl<I: Send + 'static, O: Send + 'static> Drop for Handles<I, O> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.wake.notify_one();
    }
}

impl<I: Send + 'static, O: Send + 'static> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What the callers and the task share.
struct Lane<I, O> {
    state: Mutex<State<I, O>>,
    /// Tells the task that something waits, or that a caller may not go on.
    wake: Notify,
    run: Box<dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync>,
    bytes: fn(&I) -> usize,
    /// A caller that has its answer comes again at once, as a rule.
    callers_return: bool,
    /// Where the task is. A caller from another runtime leaves everything to it.
    home: Handle,
}

struct State<I, O> {
    in_flight: InFlight,
    /// Empty while nothing is in flight.
    waiting: VecDeque<(I, oneshot::Sender<O>)>,
    closed: bool,
    /// The task has ended with its runtime: nobody is left to answer.
    dead: bool,
}

/// Who runs the statement that is in flight.
enum InFlight {
    Nothing,
    /// Any task that polls it brings it on.
    Caller(Joint<()>),
    Task,
}

impl<I: Send + 'static, O: Send + 'static> Lane<I, O> {
    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: it panicked, which is told of.
    async fn answers(&self, items: Vec<I>) -> Option<Vec<O>> {
        let answers = AssertUnwindSafe((self.run)(items)).catch_unwind().await;
        answers.map_err(|panic| panics::tell("batch", &*panic)).ok()
    }

    /// Runs one item by itself; the task runs those that wait by then.
    async fn run_one(self: Arc<Self>, item: I, answer: oneshot::Sender<O>) {
        // A panic is of this item; those that come after it are answered all the same.
        if let Some(one) = self.answers(vec![item]).await.and_then(|mut answers| answers.pop()) {
            drop(answer.send(one));
        }
        let mut state = self.state();
        if state.waiting.is_empty() {
            state.in_flight = InFlight::Nothing;
        } else {
            state.in_flight = InFlight::Task;
            self.wake.notify_one();
        }
    }

    /// Runs what waits, together.
    async fn run_waiting(&self, batch: Vec<(I, oneshot::Sender<O>)>) {
        let (items, callers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let Some(answers) = self.answers(items).await else { return };
        debug_assert_eq!(answers.len(), callers.len());
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller that gave up does not want its answer.
            drop(caller.send(answer));
        }
    }

    /// Callers that come again go out together: the first of them alone would make the others wait for a statement
    /// more.
    async fn let_them_return(&self, callers: usize) {
        if !self.callers_return {
            return;
        }
        let mut returned = self.state().waiting.len();
        while returned < callers {
            yield_now().await;
            let before = std::mem::replace(&mut returned, self.state().waiting.len());
            if returned == before {
                return;
            }
        }
    }

    /// The task: until the last batcher is dropped, and nothing is in flight any more.
    async fn serve(self: Arc<Self>) {
        let _end = End(&self);
        loop {
            self.wake.notified().await;
            loop {
                let next = {
                    let mut state = self.state();
                    match &state.in_flight {
                        InFlight::Nothing if state.closed => return,
                        InFlight::Nothing => break,
                        InFlight::Caller(work) => Err(work.clone()),
                        InFlight::Task => {
                            // A caller that gave up before its item was sent no longer wants it.
                            state.waiting.retain(|(_, caller)| !caller.is_closed());
                            if state.waiting.is_empty() {
                                state.in_flight = InFlight::Nothing;
                                continue;
                            }
                            let n = fitting(state.waiting.iter().map(|(item, _)| (self.bytes)(item)));
                            Ok(state.waiting.drain(..n).collect::<Vec<_>>())
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
    /// `bytes` is how many an item carries, as far as they may be many. `run` answers every item, in order.
    /// It is never cancelled: an item that was sent is done, whether or not its caller still waits.
    pub(crate) fn spawn<F, Fut>(bytes: fn(&I) -> usize, run: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<O>> + Send + 'static,
    {
        Self::start(bytes, run, false)
    }

    /// The same for callers each of which comes again as soon as it has its answer.
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
        let state =
            State { in_flight: InFlight::Nothing, waiting: VecDeque::new(), closed: false, dead: false };
        let lane = Arc::new(Lane {
            state: Mutex::new(state),
            wake: Notify::new(),
            run: Box::new(move |items| Box::pin(run(items))),
            bytes,
            callers_return,
            home: Handle::current(),
        });
        tokio::spawn(lane.clone().serve());
        Self(Arc::new(Handles(lane)))
    }

    /// Runs one item with whatever else waits. `None`: nobody answered, because its batch panicked or the
    /// runtime shuts down. What was to be done may have been.
    ///
    /// Cancel safe: an item whose caller gives up is sent, whole, or is not.
    pub(crate) async fn run(&self, item: I) -> Option<O> {
        let lane = &self.0.0;
        let (answer, answered) = oneshot::channel();
        let is_home = Handle::try_current().is_ok_and(|here| here.id() == lane.home.id());
        let own = {
            let mut state = lane.state();
            if state.dead {
                return None;
            }
            if is_home && matches!(state.in_flight, InFlight::Nothing) {
                let work = Joint::new(lane.clone().run_one(item, answer));
                state.in_flight = InFlight::Caller(work.clone());
                Some(work)
            } else {
                state.waiting.push_back((item, answer));
                if matches!(state.in_flight, InFlight::Nothing) {
                    state.in_flight = InFlight::Task;
                }
                None
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

/// Dropped with the task, it answers everybody who waits: there will be no answer.
struct End<'l, I: Send + 'static, O: Send + 'static>(&'l Lane<I, O>);

impl<I: Send + 'static, O: Send + 'static> Drop for End<'_, I, O> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.dead = true;
        let unanswered = std::mem::take(&mut state.waiting);
        // It holds the lane that holds it.
        let in_flight = std::mem::replace(&mut state.in_flight, InFlight::Nothing);
        drop(state);
        drop((unanswered, in_flight));
    }
}

/// Dropped, it has the task look after what is in flight.
struct HandOver<'l>(&'l Notify);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// How many of these items go into one statement: as many as its bytes allow, but one at least.
pub(crate) fn fitting(bytes: impl Iterator<Item = usize>) -> usize {
    let mut total = 0_usize;
    let within = bytes.take(ITEMS_MAX).take_while(|bytes| {
        total = total.saturating_add(*bytes);
        total <= BYTES_MAX
    });
    within.count().max(1)
}

/// Splits a batch that was refused: its halves are tried next, in order, down to the item that is at fault.
pub(crate) fn halve<I>(mut batch: Vec<I>, rest: &mut Vec<Vec<I>>) {
    let second = batch.split_off(batch.len() / 2);
    rest.extend([second, batch]);
}

/// Puts answers back where their questions stood.
pub(crate) fn in_order<T>(places: Vec<usize>, answers: Vec<T>) -> Vec<T> {
    let mut sorted: Vec<_> = places.into_iter().zip(answers).collect();
    sorted.sort_unstable_by_key(|(place, _)| *place);
    sorted.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(all(test, feature = "dev"))]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Mutex, Semaphore};

    use super::*;
    use crate::proof::Counts;

    #[tokio::test]
    async fn what_waits_while_a_statement_is_in_flight_goes_out_together_and_each_gets_its_own_answer() {
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
        while batcher.0.0.state().waiting.len() < 19 {
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
        // The first alone; then the three that waited, and the first again; then those three.
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
        // It is in flight: the batch has been handed over, and nobody has answered.
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

    /// A batcher whose items wait at a gate, and what has been done.
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
    async fn a_caller_that_is_not_polled_holds_up_nobody() {
        let (batcher, gate, done) = gated();
        let mut first = Box::pin(batcher.run(1));
        assert!(first.as_mut().now_or_never().is_none());
        gate.add_permits(10);
        // In the same task, so that nobody polls the first one meanwhile.
        assert_eq!(batcher.run(2).await, Some(2));
        assert_eq!(*done.lock().await, [1, 2]);
        assert_eq!(first.await, Some(1));
    }

    #[test]
    fn a_caller_on_another_runtime_or_on_none_leaves_its_item_to_the_task() -> std::io::Result<()> {
        let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
        let (batcher, gate, done) = home.block_on(async { gated() });
        let other = tokio::runtime::Builder::new_current_thread().build()?;
        // Given up, on a runtime that nobody drives from then on.
        assert!(other.block_on(async { batcher.run(1).now_or_never() }).is_none());
        gate.add_permits(10);
        assert_eq!(futures::executor::block_on(batcher.run(2)), Some(2));
        home.block_on(async {
            // Its caller had gone before it was sent, or it was sent.
            assert!(done.lock().await.ends_with(&[2]));
        });
        Ok(())
    }
}
