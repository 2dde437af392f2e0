//! Batch: group commit in the client.
//!
//! One task per kind of statement. Whatever waits while its last statement was in flight goes out in the
//! next one. There is no timer: an idle batcher sends at once.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};

/// The most items of one statement: it should stay below some 50 ms.
const ITEMS_MAX: usize = 1_024;

/// Collects items, runs them together, and gives each caller its own answer.
pub(crate) struct Batcher<I, O> {
    items: mpsc::Sender<(I, oneshot::Sender<O>)>,
}

impl<I, O> Clone for Batcher<I, O> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone() }
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Starts the task. It ends when the last batcher is dropped.
    ///
    /// `run` answers every item, in order. It is never cancelled: a caller that gives up leaves its item
    /// in the batch, and nothing half done.
    pub(crate) fn spawn<F, Fut>(run: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + 'static,
        Fut: Future<Output = Vec<O>> + Send,
    {
        let (items, mut waiting) = mpsc::channel::<(I, oneshot::Sender<O>)>(ITEMS_MAX);
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(ITEMS_MAX);
            while waiting.recv_many(&mut batch, ITEMS_MAX).await > 0 {
                let (items, callers): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
                let answers = run(items).await;
                debug_assert_eq!(answers.len(), callers.len());
                for (caller, answer) in callers.into_iter().zip(answers) {
                    // A caller that gave up does not want its answer.
                    drop(caller.send(answer));
                }
            }
        });
        Self { items }
    }

    /// Runs one item with whatever else waits. `None` only when the runtime shuts down.
    pub(crate) async fn run(&self, item: I) -> Option<O> {
        let (answer, answered) = oneshot::channel();
        self.items.send((item, answer)).await.ok()?;
        answered.await.ok()
    }
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
        let batcher = Batcher::spawn(move |items: Vec<u32>| {
            let (held, seen) = (held.clone(), seen.clone());
            async move {
                seen.lock().await.push(items.len());
                held.acquire().await.map(tokio::sync::SemaphorePermit::forget).ok();
                items.into_iter().map(|n| n * 2).collect()
            }
        });
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
        while batcher.items.capacity() > ITEMS_MAX - 19 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.ok().flatten(), Some(2));
        for (n, task) in (2..=20).zip(rest) {
            assert_eq!(task.await.ok().flatten(), Some(n * 2));
        }
        assert_eq!(*sizes.lock().await, [1, 19]);
    }
}
