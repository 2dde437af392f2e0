//! Written: waits until the kernel has the messages.
//!
//! The client writes from a task of its own. All callers that ask while no message is sent share one flush. No caller
//! has a timer: a timer that is the next to fire wakes the runtime's driver, which costs more than the flush.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_nats::Client;
use futures::future::{AbortHandle, abortable};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::store::batch::joint::Joint;

/// The deadline of a flush. The watch ends a late flush at most half as long after that.
pub(crate) const WRITTEN_WITHIN: Duration = Duration::from_millis(200);

/// The flushes of one client. Cheap to clone.
#[derive(Clone)]
pub(super) struct Flushes(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Wakes the watch.
    begun: mpsc::Sender<()>,
}

#[derive(Default)]
struct State {
    /// Grows with every message that is sent.
    sent: u64,
    in_flight: VecDeque<Flush>,
}

#[derive(Clone)]
struct Flush {
    /// The value of `sent` when it began.
    covers: u64,
    began: Instant,
    done: Joint<bool>,
    gives_up: AbortHandle,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flushes {
    /// Starts the watch, which ends when the last clone is dropped.
    pub(super) fn start() -> Self {
        let (begun, wakes) = mpsc::channel(1);
        let inner = Arc::new(Inner { state: Mutex::default(), begun });
        tokio::spawn(watch(Arc::downgrade(&inner), wakes));
        Self(inner)
    }

    /// Counts a message that was sent, which no flush that has begun covers.
    pub(super) fn note_sent(&self) {
        self.0.state().sent += 1;
    }

    /// Waits until the kernel has every message that was sent so far. `false`: it took too long.
    ///
    /// If the socket is full to the byte, the client (0.51) may report the flush one message too early.
    ///
    /// Cancel safe.
    pub(super) async fn written(&self, client: &Client) -> bool {
        let done = {
            let mut state = self.0.state();
            let latest = state.in_flight.back().filter(|flush| flush.covers == state.sent);
            if let Some(flush) = latest {
                flush.done.clone()
            } else {
                state.in_flight.retain(|flush| !flush.done.is_done());
                let client = client.clone();
                // An error means that the client is closed, and writes nothing any more.
                let (flush, gives_up) = abortable(async move { client.flush().await.ok() });
                let done = Joint::new(async move { flush.await.is_ok() });
                let (covers, began) = (state.sent, Instant::now());
                state.in_flight.push_back(Flush { covers, began, done: done.clone(), gives_up });
                // If the channel is full, the watch wakes up anyway.
                self.0.begun.try_send(()).ok();
                done
            }
        };
        done.await
    }
}

/// Ends flushes that take too long, with one timer for all, and none while there is no flush.
async fn watch(flushes: Weak<Inner>, mut wakes: mpsc::Receiver<()>) {
    while wakes.recv().await.is_some() {
        sleep(WRITTEN_WITHIN / 2).await;
        let Some(flushes) = flushes.upgrade() else { return };
        let mut state = flushes.state();
        state.in_flight.retain(|flush| {
            let is_late = flush.began.elapsed() >= WRITTEN_WITHIN;
            if is_late {
                flush.gives_up.abort();
            }
            // Later callers start a new flush.
            !is_late && !flush.done.is_done()
        });
        if !state.in_flight.is_empty() {
            flushes.begun.try_send(()).ok();
        }
    }
}
