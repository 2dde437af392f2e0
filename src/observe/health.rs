//! Health: whether a worker has started, is ready for jobs, and is alive at all.
//!
//! *Alive* says nothing about Postgres and NATS: else an outage would restart every worker, and lose all running jobs.
//! It says that the worker's own loops run: only a restart cures a runtime that hangs, or a loop that has ended.
//!
//! *Ready* says that this worker can claim a job that is published now: both servers answer, the stream and the
//! consumers exist, the database lets this worker claim, and it is not shutting down.
//!
//! Invariants, each held by the test of that name:
//!
//! - `an_outage_makes_a_worker_unready_and_leaves_it_alive`
//! - `a_worker_whose_runtime_hangs_is_not_alive`

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::job::duration::measured;

/// The health of one worker. Cheap to clone, and answers without awaiting: ask it from a thread or a runtime that is
/// not the worker's, or a hung runtime takes the answer with it.
///
/// With the feature `http`, and `TENURE_LISTEN` set, the worker itself answers `/livez`, `/readyz` and `/startupz`.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// A runtime without a sign of life for longer than this hangs.
    hung_after: Duration,
    has_started: AtomicBool,
    is_draining: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    beat_at: Instant,
    /// A loop that ended and should not have.
    ended: Option<&'static str>,
    /// The conditions that are missing, each with the reason.
    missing: BTreeMap<String, String>,
}

impl Health {
    /// For a process of tenure that has no worker, as `tenure serve`.
    #[doc(hidden)]
    #[must_use]
    pub fn new(hung_after: Duration) -> Self {
        let missing = [("worker".to_owned(), "starting".to_owned())].into();
        Self(Arc::new(Inner {
            hung_after,
            has_started: AtomicBool::new(false),
            is_draining: watch::Sender::new(false),
            state: Mutex::new(State { beat_at: Instant::now(), ended: None, missing }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the worker's own loops run.
    ///
    /// # Errors
    ///
    /// Names the loop that has ended, or says for how long the runtime has hung. Only a restart helps.
    pub fn live(&self) -> Result<(), String> {
        let state = self.state();
        if let Some(ended) = state.ended {
            return Err(format!("the worker's loop {ended:?} has ended"));
        }
        let silent = state.beat_at.elapsed();
        if silent > self.0.hung_after {
            return Err(format!(
                "the worker's runtime has not run for {}: something blocks its threads",
                measured(silent)
            ));
        }
        Ok(())
    }

    /// Returns whether the worker takes jobs.
    ///
    /// # Errors
    ///
    /// Lists the conditions that are missing, each with the reason.
    pub fn ready(&self) -> Result<(), Vec<String>> {
        let mut reasons: Vec<_> =
            self.state().missing.iter().map(|(what, why)| format!("{what}: {why}")).collect();
        if self.is_draining() {
            reasons.push("worker: stopping".to_owned());
        }
        reasons.extend(self.live().err());
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// What keeps the worker from taking jobs, each with the reason, unless it is shutting down. For other processes.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = &self.state().missing;
        let all: Vec<_> = missing.iter().map(|(what, why)| format!("{what}: {why}")).collect();
        (!all.is_empty() && !self.is_draining()).then(|| all.join("; "))
    }

    /// Returns whether the worker has reached both servers, registered, and reset the jobs that dead processes of its
    /// host left.
    pub fn has_started(&self) -> bool {
        self.0.has_started.load(Ordering::Acquire)
    }

    /// Returns whether the worker is shutting down.
    pub fn is_draining(&self) -> bool {
        *self.0.is_draining.borrow()
    }

    /// Records that it has started.
    #[doc(hidden)]
    pub fn started(&self) {
        self.0.has_started.store(true, Ordering::Release);
        self.has("worker");
    }

    /// Records that it is shutting down.
    #[doc(hidden)]
    pub fn draining(&self) {
        self.0.is_draining.send_replace(true);
    }

    /// Waits until it is shutting down. Cancel safe.
    pub(crate) async fn drains(&self) {
        // The sender lives as long as `self`.
        drop(self.0.is_draining.subscribe().wait_for(|is_draining| *is_draining).await);
    }

    /// Records that the runtime runs.
    #[doc(hidden)]
    pub fn beat(&self) {
        self.state().beat_at = Instant::now();
    }

    /// Records a loop that ended and should not have.
    pub(crate) fn loop_ended(&self, name: &'static str) {
        self.state().ended.get_or_insert(name);
    }

    /// Records a missing condition, and the reason.
    #[doc(hidden)]
    pub fn lacks(&self, what: &str, why: impl Into<String>) {
        self.state().missing.insert(what.to_owned(), why.into());
    }

    /// Records that a condition is met.
    #[doc(hidden)]
    pub fn has(&self, what: &str) {
        self.state().missing.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_ready_when_nothing_is_missing_and_until_it_stops() {
        let health = Health::new(Duration::from_secs(60));
        assert!(!health.has_started() && health.ready().is_err() && health.live().is_ok());
        health.lacks("Postgres", "away");
        health.started();
        assert_eq!(health.ready(), Err(vec!["Postgres: away".to_owned()]));
        health.has("Postgres");
        assert_eq!((health.ready(), health.has_started()), (Ok(()), true));
        health.draining();
        assert!(health.ready().is_err() && health.live().is_ok());
    }

    #[test]
    fn a_loop_that_ended_and_a_silent_runtime_are_not_alive() {
        let health = Health::new(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(health.live().is_err_and(|why| why.contains("has not run")));
        let health = Health::new(Duration::from_secs(60));
        health.loop_ended("relay");
        assert!(health.live().is_err_and(|why| why.contains("relay")));
        assert!(health.ready().is_err());
    }
}
