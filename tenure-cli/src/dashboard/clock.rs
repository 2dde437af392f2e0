//! Clock: the database's time. Ages on a page count from it, not from the clock of this host.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use tenure::{StoreError, internals::Store};

/// How often to compare the two clocks.
const EVERY: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// The clock of the page that this task renders.
    static CLOCK: Arc<Clock>;
}

/// By how much the database's clock is ahead of this host's, and when it was compared.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(Instant, TimeDelta)>>);

impl Clock {
    fn compared(&self) -> MutexGuard<'_, Option<(Instant, TimeDelta)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an answer of the database: its time, and this host's time of the question.
    pub(super) fn note(&self, theirs: DateTime<Utc>, asked_at: DateTime<Utc>) {
        *self.compared() = Some((Instant::now(), theirs - asked_at));
    }

    /// Compares the clocks, unless that was done a moment ago.
    pub(super) async fn compare(&self, store: &Store) -> Result<(), StoreError> {
        if self.compared().is_some_and(|(at, _)| at.elapsed() < EVERY) {
            return Ok(());
        }
        let asked_at = Utc::now();
        self.note(store.database_time().await?, asked_at);
        Ok(())
    }

    /// Renders a page by this clock.
    pub(super) async fn during<T>(self: Arc<Self>, page: impl Future<Output = T>) -> T {
        CLOCK.scope(self, page).await
    }
}

/// The database's time.
pub(super) fn now() -> DateTime<Utc> {
    let ahead = CLOCK.try_with(|clock| clock.compared().map(|(_, ahead)| ahead));
    Utc::now() + ahead.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose clock is two hours late shows the same ages.
    #[tokio::test]
    async fn ages_count_from_the_clock_of_the_database() {
        let clock = Arc::new(Clock::default());
        let theirs = Utc::now() + TimeDelta::hours(2);
        clock.note(theirs, Utc::now());
        let age = clock.during(async { super::super::page::time(theirs - TimeDelta::seconds(200)) }).await;
        assert!(age.0.contains(">3\u{a0}min ago<"), "{}", age.0);
        assert!((now() - Utc::now()).num_seconds() == 0, "beside a page it is this host's");
    }
}
