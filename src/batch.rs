//! Batch: group commit in the client.
//!
//! Whatever waits while the last statement of its kind was in flight goes out in the next one. There is no
//! timer: whoever finds none in flight sends at once, and by itself, which saves the way to another task and
//! back. What waits meanwhile is sent by a task.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc, oneshot},
};

/// The most items of one statement: it should stay below some 50 ms.
pub(crate) const ITEMS_MAX: usize = 1_024;
/// The most bytes that they may carry together; an item that is larger goes alone.
const BYTES_MAX: usize = 2 << 20;

/// Collects items, runs them together, and gives each caller its own answer. Cheap to clone.
pub(crate) struct Batcher<I, O> {
    items: mpsc::Sender<(I, oneshot::Sender<O>)>,
    run: Arc<Run<I, O>>,
    /// Held while a statement is in flight.
    turn: Arc<Mutex<()>>,
}

type Run<I, O> = dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync;

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), run: self.run.clone(), turn: self.turn.clone() }
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the task. It ends when the last batcher is dropped.
    ///
    /// `bytes` is how many an item carries, as far as they may be many. `run` answers every item, in order.
    /// It is never cancelled: a caller that gives up leaves its item in the batch, and nothing half done.
    pub(crate) fn spawn<F, Fut>(bytes: fn(&I) -> usize, run: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<O>> + Send + 'static,
    {
        let (items, mut waiting) = mpsc::channel::<(I, oneshot::Sender<O>)>(ITEMS_MAX);
        let run: Arc<Run<I, O>> = Arc::new(move |items| Box::pin(run(items)));
        let turn = Arc::new(Mutex::new(()));
        let (runs, turns) = (run.clone(), turn.clone());
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(ITEMS_MAX);
            while waiting.recv_many(&mut batch, 1).await > 0 {
                let turn = turns.lock().await;
                while batch.len() < ITEMS_MAX
                    && let Ok(item) = waiting.try_recv()
                {
                    batch.push(item);
                }
                while !batch.is_empty() {
                    let n = fitting(batch.iter().map(|(item, _)| bytes(item)));
                    let (items, callers): (Vec<_>, Vec<_>) = batch.drain(..n).unzip();
                    // A panic is of this batch; those that come after it are answered all the same.
                    let Ok(answers) = AssertUnwindSafe(runs(items)).catch_unwind().await else { continue };
                    debug_assert_eq!(answers.len(), callers.len());
                    for (caller, answer) in callers.into_iter().zip(answers) {
                        // A caller that gave up does not want its answer.
                        drop(caller.send(answer));
                    }
                }
                drop(turn);
            }
        });
        Self { items, run, turn }
    }

    /// Runs one item with whatever else waits. `None`: nobody answered, because its batch panicked or the
    /// runtime shuts down. What was to be done may have been.
    pub(crate) async fn run(&self, item: I) -> Option<O> {
        if let Ok(turn) = self.turn.clone().try_lock_owned() {
            let work = (self.run)(vec![item]);
            let answers = ToTheEnd::new(async move {
                let answers = AssertUnwindSafe(work).catch_unwind().await;
                drop(turn);
                answers.ok()
            });
            return answers.await?.pop();
        }
        let (answer, answered) = oneshot::channel();
        self.items.send((item, answer)).await.ok()?;
        answered.await.ok()
    }
}

/// Work that goes on, in a task, when its caller gives up.
struct ToTheEnd<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> ToTheEnd<T> {
    fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = self.0.as_mut() else { return Poll::Pending };
        let output = ready!(work.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(work);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Mutex, Semaphore};

    use super::*;

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
        // The task has taken one of them.
        while batcher.items.capacity() > ITEMS_MAX - 18 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.ok().flatten(), Some(2));
        for (n, task) in (2..=20).zip(rest) {
            assert_eq!(task.await.ok().flatten(), Some(n * 2));
        }
        assert_eq!(*sizes.lock().await, [1, 19]);
    }

    #[test]
    fn a_statement_carries_so_many_bytes_or_one_item() {
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
        assert_eq!(batcher.run(13).await, None);
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
        let gate = Arc::new(Semaphore::new(0));
        let done = Arc::new(Mutex::new(Vec::new()));
        let (held, seen) = (gate.clone(), done.clone());
        let batcher = Batcher::spawn(
            |_| 0,
            move |items: Vec<u32>| {
                let (held, seen) = (held.clone(), seen.clone());
                async move {
                    held.acquire().await.map(tokio::sync::SemaphorePermit::forget).ok();
                    seen.lock().await.extend(items.clone());
                    items
                }
            },
        );
        // It is in flight: the batch has been handed over, and nobody has answered.
        assert!(batcher.run(1).now_or_never().is_none());
        assert!(batcher.run(2).now_or_never().is_none());
        let third = tokio::spawn({
            let batcher = batcher.clone();
            async move { batcher.run(3).await }
        });
        gate.add_permits(10);
        assert_eq!(third.await.ok().flatten(), Some(3));
        assert_eq!(*done.lock().await, [1, 2, 3]);
    }
}
