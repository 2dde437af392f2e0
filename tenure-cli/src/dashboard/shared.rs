//! Shared: figures that are read once for all who look at them at the same time.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync, time::Instant};

use tenure::StoreError;

/// How long figures serve every viewer.
const LASTS: Duration = Duration::from_secs(1);
/// Figures that took long to read serve for longer: all their viewers cost the database at most a tenth of its time.
const REST: u32 = 10;
const LASTS_MAX: Duration = Duration::from_secs(30);
/// The figures of how many pages to keep.
const KEPT: usize = 64;

/// The latest figures of each page, by its name.
#[derive(Debug)]
pub(super) struct Shared<K, T, E = StoreError>(Mutex<HashMap<K, Arc<Slot<T, E>>>>);

/// Locked while one viewer reads: the others wait for the answer.
type Slot<T, E> = sync::Mutex<Option<Reading<T, E>>>;

#[derive(Debug)]
struct Reading<T, E> {
    figures: Result<Arc<T>, E>,
    began_at: Instant,
    ended_at: Instant,
}

/// Who may get figures that were read before the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// An answer from a moment ago is good enough.
    AMoment,
    /// The viewer may have changed something just now, and must see that.
    New,
}

impl<K, T, E> Default for Shared<K, T, E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T, E> Reading<T, E> {
    fn serves(&self, asked_at: Instant, age: Age) -> bool {
        let lasts = ((self.ended_at - self.began_at) * REST).clamp(LASTS, LASTS_MAX);
        match &self.figures {
            Ok(_) if self.began_at >= asked_at => true,
            Ok(_) => age == Age::AMoment && self.ended_at.elapsed() < lasts,
            // A failure serves those who have waited for it: each of them would wait as long again.
            Err(_) => self.ended_at >= asked_at,
        }
    }
}

impl<K: Hash + Eq, T, E: Clone> Shared<K, T, E> {
    fn slot(&self, key: K) -> Arc<Slot<T, E>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&key) {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(slots.entry(key).or_default())
    }

    /// Returns the figures of this name, and how old they are. Reads them if no other viewer does or has done so.
    pub(super) async fn get(
        &self,
        key: K,
        age: Age,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<(Arc<T>, Duration), E> {
        let asked_at = Instant::now();
        let slot = self.slot(key);
        let mut latest = slot.lock().await;
        let reading = if let Some(reading) = latest.take().filter(|of| of.serves(asked_at, age)) {
            reading
        } else {
            let began_at = Instant::now();
            let figures = read.await.map(Arc::new);
            Reading { figures, began_at, ended_at: Instant::now() }
        };
        let reading = latest.insert(reading);
        reading.figures.clone().map(|figures| (figures, reading.ended_at.elapsed()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn of_all_who_ask_at_once_one_reads() {
        let (shared, reads) = (Shared::<&str, usize, &str>::default(), AtomicUsize::new(0));
        let many = async |age, answer: Result<usize, &'static str>| {
            let ask = || {
                shared.get("page", age, async {
                    reads.fetch_add(1, Relaxed);
                    tokio::task::yield_now().await;
                    answer
                })
            };
            futures::future::join_all((0..20).map(|_| ask())).await
        };
        assert!(many(Age::AMoment, Ok(1)).await.iter().all(|is| *is.as_ref().unwrap().0 == 1));
        assert_eq!(reads.swap(0, Relaxed), 1);
        // A moment later the figures still serve, but not those who must see what is new. All of these who ask while
        // one reads share the next reading.
        many(Age::AMoment, Ok(2)).await;
        assert_eq!(reads.swap(0, Relaxed), 0);
        assert!(many(Age::New, Ok(3)).await.iter().all(|is| *is.as_ref().unwrap().0 == 3));
        assert!((1..=2).contains(&reads.swap(0, Relaxed)));
        // All who wait for a failure get it; the next one asks again.
        assert!(many(Age::New, Err("away")).await.iter().all(Result::is_err));
        assert_eq!(reads.swap(0, Relaxed), 1);
        assert!(shared.get("page", Age::AMoment, async { Ok(4) }).await.is_ok());
    }

    #[test]
    fn figures_that_took_long_to_read_serve_for_longer() {
        let now = Instant::now();
        let serves = |took: u64, ago: u64| {
            let ended_at = now - Duration::from_millis(ago);
            let began_at = ended_at - Duration::from_millis(took);
            Reading::<_, &str> { figures: Ok(Arc::new(1)), began_at, ended_at }.serves(now, Age::AMoment)
        };
        assert!(serves(10, 900) && !serves(10, 1_100), "a second");
        assert!(serves(500, 4_500) && !serves(500, 5_500), "ten times as long as the reading");
        assert!(serves(10_000, 29_000) && !serves(10_000, 31_000), "half a minute at most");
    }
}
