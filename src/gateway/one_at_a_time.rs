//! One at a time: keeps two writes about one job from being in one statement, or from overtaking each other, in this
//! process. A request may arrive twice.

use std::{
    collections::HashSet,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

pub(super) struct OneAtATime<K> {
    busy: Mutex<HashSet<K>>,
    freed: Notify,
}

impl<K> Default for OneAtATime<K> {
    fn default() -> Self {
        Self { busy: Mutex::default(), freed: Notify::new() }
    }
}

/// The turn of one key, until it is dropped.
pub(super) struct TurnOf<'t, K: Hash + Eq> {
    table: &'t OneAtATime<K>,
    key: K,
}

impl<K: Hash + Eq + Copy> OneAtATime<K> {
    fn busy(&self) -> MutexGuard<'_, HashSet<K>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of this key.
    ///
    /// Cancel safe.
    pub(super) async fn turn(&self, key: K) -> TurnOf<'_, K> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Enabled before the look, or a turn that ends in between would be missed.
            freed.as_mut().enable();
            if self.busy().insert(key) {
                return TurnOf { table: self, key };
            }
            freed.await;
        }
    }
}

impl<K: Hash + Eq> Drop for TurnOf<'_, K> {
    fn drop(&mut self) {
        self.table.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.table.freed.notify_waiters();
    }
}
