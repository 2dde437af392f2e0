//! Handled: what the handlers of this process have seen. They all call [`handle`], and do nothing else.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use crate::order::Order;

// For the whole process, which does one work of one library: how a handler is handed its state differs
// from library to library, and shall not be measured.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
static FIRST: OnceLock<Instant> = OnceLock::new();
static STARTS: OnceLock<Vec<OnceLock<Instant>>> = OnceLock::new();

/// The handler of every library.
pub(crate) fn handle(order: &Order) {
    let now = Instant::now();
    FIRST.get_or_init(|| now);
    if let (Some(starts), Ok(at)) = (STARTS.get(), usize::try_from(order.order))
        && let Some(start) = starts.get(at)
    {
        // A second execution tells nothing about the pick-up.
        start.set(now).ok();
    }
    TOTAL.fetch_add(order.total(), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Release);
}

/// From now on, note when the handlers of the orders below this number start.
pub(crate) fn note_starts(orders: usize) {
    STARTS.get_or_init(|| (0..orders).map(|_| OnceLock::new()).collect());
}

/// When the handler of an order started.
pub(crate) fn start_of(order: usize) -> Option<Instant> {
    STARTS.get()?.get(order)?.get().copied()
}

/// When the first handler started.
pub(crate) fn first() -> Option<Instant> {
    FIRST.get().copied()
}

/// How often a handler has run.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// What the handlers have summed up.
pub(crate) fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}
