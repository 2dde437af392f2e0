//! Health: whether a worker has started, is ready for jobs, and is alive at all.
//!
//! *Alive* says nothing of Postgres and NATS: an outage would have every worker restarted, and make of a pause the
//! loss of all that runs. It says that the worker's own loops run: a runtime that hangs, or a loop that has ended, can
//! only be mended by a restart.
//!
//! *Ready* says that a job that is published now can be claimed: both servers answer, the stream and the consumers are
//! there, the database lets this worker claim, and it was not told to stop.
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

/// The health of one worker. Cheap to clone, and answers without awaiting: ask it from a thread or a runtime that is
/// not the worker's, or a hung runtime takes the answer with it.
///
/// With the feature `http`, and `TENURE_LISTEN` set, a worker answers `/livez`, `/readyz` and `/startupz` by itself.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Without a sign of life for longer, the runtime hangs.
    hung_after: Duration,
    has_started: AtomicBool,
    is_draining: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    beat_at: Instant,
    /// A loop that ended and should not have.
    ended: Option<&'static str>,
    /// What is missing, and why.
    missing: BTreeMap<String, String>,
}

impl Health {
    pub(crate) fn new(hung_after: Duration) -> Self {
        let missing = [("worker".to_owned(), "it is starting".to_owned())].into();
        Self(Arc::new(Inner {
            hung_after,
            has_started: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            state: Mutex::new(State { beat_at: Instant::now(), ended: None, missing }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the worker's own loops run.
    ///
    /// # Errors
    ///
    /// Which do not. Only a restart helps.
    pub fn live(&self) -> Result<(), String> {
        let state = self.state();
        if let Some(ended) = state.ended {
            return Err(format!("the worker's loop {ended:?} has ended"));
        }
        let silent = state.beat_at.elapsed();
        if silent > self.0.hung_after {
            return Err(format!(
                "the worker's runtime has not run for {silent:.1?}: something blocks its threads"
            ));
        }
        Ok(())
    }

    /// Whether the worker takes jobs.
    ///
    /// # Errors
    ///
    /// What it lacks, and why.
    pub fn ready(&self) -> Result<(), Vec<String>> {
        let mut reasons: Vec<_> =
            self.state().missing.iter().map(|(what, why)| format!("{what}: {why}")).collect();
        if self.is_draining() {
            reasons.push("worker: it is stopping".to_owned());
        }
        reasons.extend(self.live().err());
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Whether the worker has found both servers, registered, and taken back what earlier processes of its host left.
    pub fn has_started(&self) -> bool {
        self.0.has_started.load(Ordering::Acquire)
    }

    /// Whether the worker was told to stop.
    pub fn is_draining(&self) -> bool {
        self.0.is_draining.load(Ordering::Acquire)
    }

    pub(crate) fn started(&self) {
        self.0.has_started.store(true, Ordering::Release);
        self.has("worker");
    }

    pub(crate) fn draining(&self) {
        self.0.is_draining.store(true, Ordering::Release);
    }

    /// The runtime runs.
    pub(crate) fn beat(&self) {
        self.state().beat_at = Instant::now();
    }

    /// A loop has ended that should not have.
    pub(crate) fn loop_ended(&self, name: &'static str) {
        self.state().ended.get_or_insert(name);
    }

    /// Something that jobs need is not there.
    pub(crate) fn lacks(&self, what: &str, why: impl Into<String>) {
        self.state().missing.insert(what.to_owned(), why.into());
    }

    /// It is there.
    pub(crate) fn has(&self, what: &str) {
        self.state().missing.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_ready_when_nothing_is_missing_and_until_it_is_told_to_stop() {
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
