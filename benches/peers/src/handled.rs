//! Handled: what the handlers of this process have seen. They all call [`handle`], and do little else.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    order::Order,
    speak::Seen,
    works::{SAMPLES, Work},
};

// For the whole process, which does one work of one library: how a handler is handed its state differs
// from library to library, and shall not be measured.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicI64 = AtomicI64::new(i64::MAX);
static STARTS: OnceLock<Vec<AtomicI64>> = OnceLock::new();

/// The handler of every library.
pub(crate) fn handle(order: &Order) {
    let now = now_us();
    // Read first: 50,000 writes of the same value by many threads would be measured, too.
    if FIRST.load(Ordering::Relaxed) > now {
        FIRST.fetch_min(now, Ordering::Relaxed);
    }
    if let (Some(starts), Ok(at)) = (STARTS.get(), usize::try_from(order.order))
        && let Some(start) = starts.get(at)
    {
        // A second execution tells nothing about the pick-up.
        start.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).ok();
    }
    TOTAL.fetch_add(order.total(), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Release);
}

/// From now on, note when each handler starts, if this work asks for it.
pub(crate) fn note_starts(work: Work) {
    if work == Work::Pickup {
        STARTS.get_or_init(|| (0..SAMPLES).map(|_| AtomicI64::new(0)).collect());
    }
}

/// How often a handler has run.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// All that the handlers have seen so far.
pub(crate) fn seen() -> Seen {
    Seen {
        count: count(),
        is_all: true,
        total: TOTAL.load(Ordering::Relaxed),
        first_us: FIRST.load(Ordering::Relaxed),
        starts_us: STARTS.get().into_iter().flatten().map(|start| start.load(Ordering::Relaxed)).collect(),
    }
}

/// This machine's clock in microseconds since 1970: the one that all processes and Postgres read.
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
