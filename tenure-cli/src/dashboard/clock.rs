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

    /// Compares the clocks, unless that was done a moment ago. While Postgres is away, the last comparison goes on: a
    /// form that was not saved is shown again with its entries.
    pub(super) async fn compare(&self, store: &Store) -> Result<(), StoreError> {
        let before = *self.compared();
        if before.is_some_and(|(at, _)| at.elapsed() < EVERY) {
            return Ok(());
        }
        let asked_at = Utc::now();
        match (store.database_time().await, before) {
            (Ok(theirs), _) => self.note(theirs, asked_at),
            (Err(_), Some((_, ahead))) => *self.compared() = Some((Instant::now(), ahead)),
            (Err(error), None) => return Err(error),
        }
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
    use tenure::{Config, Tenure, internals::Parts as _};

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

    #[tokio::test]
    async fn while_postgres_is_away_the_last_comparison_goes_on() {
        let mut config = Config::new("postgres://tenure@127.0.0.1:1/tenure", "nats://127.0.0.1:1");
        config.timing.database_within = Duration::from_millis(200);
        let Ok(tenure) = Tenure::connect(&config).await else { panic!("the settings are refused") };
        let clock = Clock::default();
        assert!(clock.compare(tenure.store()).await.is_err(), "nothing is known yet");
        let ahead = TimeDelta::hours(2);
        *clock.compared() = Instant::now().checked_sub(2 * EVERY).map(|at| (at, ahead));
        assert!(clock.compare(tenure.store()).await.is_ok());
        assert!(clock.compared().is_some_and(|(at, is)| at.elapsed() < EVERY && is == ahead));
    }
}
