//! One at a time: keeps two writes about one job from being in one statement, or from overtaking each other, in this
//! process. A request may arrive twice.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

/// The turns of each key that is in use. Those who wait for one key wake one after the other, and no others with them.
pub(super) struct OneAtATime<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for OneAtATime<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The turn of one key, or a place in the line for it, until it is dropped.
pub(super) struct TurnOf<'t, K: Hash + Eq> {
    table: &'t OneAtATime<K>,
    key: K,
    held: Option<OwnedMutexGuard<()>>,
}

impl<K: Hash + Eq> OneAtATime<K> {
    fn keys(&self) -> MutexGuard<'_, HashMap<K, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of this key.
    ///
    /// Cancel safe.
    pub(super) async fn turn(&self, key: K) -> TurnOf<'_, K>
    where
        K: Copy,
    {
        // Before the wait: one that gives up tidies up as well.
        let mut turn = TurnOf { table: self, key, held: None };
        let of_key = self.keys().entry(key).or_default().clone();
        turn.held = Some(of_key.lock_owned().await);
        turn
    }
}

impl<K: Hash + Eq> Drop for TurnOf<'_, K> {
    fn drop(&mut self) {
        let mut keys = self.table.keys();
        self.held = None;
        // Those who wait have it, too.
        if keys.get(&self.key).is_some_and(|of_key| Arc::strong_count(of_key) == 1) {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Wake, Waker},
    };

    use futures::FutureExt;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_end_of_a_turn_wakes_one_who_waits_for_its_key_and_leaves_no_key_behind() {
        let table = OneAtATime::default();
        let [first, other] = [1, 2].map(|key| table.turn(key).now_or_never());
        let woken = Arc::new(Wakes::default());
        let waker = Waker::from(woken.clone());
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(table.turn(1))).collect();
        for turn in &mut waiting {
            assert!(turn.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(other);
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "the turn of another key has ended");
        drop(first);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "its turn has ended");
        drop(waiting);
        assert_eq!(table.keys().len(), 0, "keys that no one uses");
        assert!(pin!(table.turn(1)).now_or_never().is_some(), "the next one waits for no one who gave up");
    }
}
