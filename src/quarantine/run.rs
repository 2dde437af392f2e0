//! Quarantine: snoozes the jobs of kinds that mostly fail, but for one at a time, which is tried.
//!
//! A worker knows the rules from its last look, about a second ago. The database alone decides when a quarantine begins
//! and ends, and which job is tried: a worker that knows less runs a few jobs more, and one whose question fails
//! snoozes the job.
//!
//! Not here: the look (`quarantine::worker`), and when a quarantine begins and ends
//! (`quarantine/sql/tend_quarantines.sql`).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::store::{KindCounts, ProbeAnswer, WatchedKind};
use crate::{
    job::{JobId, attempt::AttemptOutcome, claim::ClaimKey},
    store::{Store, StoreError},
};

/// How long a job of a kind in quarantine waits before it asks again, unless it is called earlier. The end of the
/// quarantine calls all: this bounds what a hundred thousand waiting jobs cost, and how long one waits that was not
/// noted.
const WAITS: Duration = Duration::from_mins(15);

/// The most jobs that are noted here while the database takes no notes.
const NOTED_MAX: usize = 100_000;

/// The kinds that are watched. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    store: Store,
    /// Whether a kind is watched: the one question of an attempt if none is.
    watches: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    kinds: HashMap<String, Kind>,
    /// The jobs that were snoozed since the last report.
    snoozed: Vec<(String, JobId)>,
}

#[derive(Debug, Default)]
struct Kind {
    /// Attempts since the last report.
    ended: i64,
    failed: i64,
    quarantined: Option<Quarantined>,
}

#[derive(Debug, Clone, Copy)]
struct Quarantined {
    ended: i64,
    failed: i64,
    /// When a job may be tried. `None`: one is, or this worker has asked since its last look.
    probe_at: Option<Instant>,
}

/// Why a job waits, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InQuarantine {
    pub(crate) why: String,
    pub(crate) delay: Duration,
}

impl Quarantine {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, watches: Arc::default(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a kind is watched.
    pub(crate) fn watches(&self) -> bool {
        self.watches.load(Relaxed)
    }

    /// Counts an attempt that has ended.
    pub(crate) fn ended(&self, kind: &str, outcome: AttemptOutcome) {
        if !self.watches() {
            return;
        }
        let failed = match outcome {
            AttemptOutcome::Completed => 0,
            AttemptOutcome::Retried | AttemptOutcome::Failed => 1,
            _ => return,
        };
        if let Some(of) = self.state().kinds.get_mut(kind) {
            of.ended += 1;
            of.failed += failed;
        }
    }

    /// Returns why a job that this worker has claimed may not run now. `None`: it may.
    /// `no_history`: the job leaves no row once it has completed.
    pub(crate) async fn holds(&self, kind: &str, key: ClaimKey, no_history: bool) -> Option<InQuarantine> {
        if !self.watches() {
            return None;
        }
        let (quarantined, may_ask) = {
            let mut state = self.state();
            let quarantined = state.kinds.get_mut(kind)?.quarantined.as_mut()?;
            let may_ask = quarantined.probe_at.is_some_and(|at| at <= Instant::now());
            if may_ask {
                quarantined.probe_at = None;
            }
            (*quarantined, may_ask)
        };
        if may_ask {
            match self.store.take_probe(kind, key, no_history).await {
                Ok(ProbeAnswer::Probe) => {
                    tracing::info!(kind, job = %key.job, "trying a job of a kind in quarantine");
                    return None;
                }
                Ok(ProbeAnswer::Ended) => {
                    if let Some(of) = self.state().kinds.get_mut(kind) {
                        of.quarantined = None;
                    }
                    return None;
                }
                Ok(ProbeAnswer::Wait) => {}
                // If this job is the probe, its snooze decides nothing, and the next one is due in its time.
                Err(error) => tracing::debug!(%error, kind, "could not ask whether to try a job"),
            }
        }
        let Quarantined { ended, failed, .. } = quarantined;
        Some(InQuarantine {
            why: format!("the kind is in quarantine: {failed} of {ended} attempts had failed"),
            delay: WAITS.mul_f64(rand::random_range(0.75..1.25)),
        })
    }

    /// Notes a job that was snoozed, for the end of the quarantine to call it.
    pub(crate) fn snoozed(&self, kind: &str, job: JobId) {
        self.state().snoozed.push((kind.to_owned(), job));
    }

    /// Tells the database what this worker has counted since the last report.
    pub(crate) async fn report(&self) -> Result<(), StoreError> {
        let (counts, snoozed) = {
            let mut state = self.state();
            let counts: Vec<_> = state
                .kinds
                .iter_mut()
                .filter(|(_, of)| of.ended > 0)
                .map(|(kind, of)| KindCounts {
                    kind: kind.clone(),
                    ended: std::mem::take(&mut of.ended),
                    failed: std::mem::take(&mut of.failed),
                })
                .collect();
            (counts, std::mem::take(&mut state.snoozed))
        };
        if counts.is_empty() && snoozed.is_empty() {
            return Ok(());
        }
        let reported = self.store.report_quarantine(&counts, &snoozed).await;
        if reported.is_err() {
            // To note a job twice does no harm. The counts are lost: Postgres may have added them.
            let mut state = self.state();
            let room = NOTED_MAX.saturating_sub(state.snoozed.len());
            state.snoozed.extend(snoozed.into_iter().take(room));
        }
        reported
    }

    /// Reads the rules. Returns each kind that is watched, and whether it is in quarantine; also those that were
    /// watched before, and are no more.
    pub(crate) async fn look(&self) -> Result<Vec<(String, bool)>, StoreError> {
        let read = self.store.watched_kinds().await?;
        Ok(self.learn(read))
    }

    /// Watches nothing. Returns the kinds that were watched.
    pub(crate) fn forget(&self) -> Vec<(String, bool)> {
        self.learn(Vec::new())
    }

    fn learn(&self, read: Vec<WatchedKind>) -> Vec<(String, bool)> {
        let now = Instant::now();
        let mut state = self.state();
        let mut old = std::mem::take(&mut state.kinds);
        self.watches.store(!read.is_empty(), Relaxed);
        let mut seen = Vec::with_capacity(read.len());
        for WatchedKind { kind, quarantined, probe_in } in read {
            seen.push((kind.clone(), quarantined.is_some()));
            let Kind { ended, failed, .. } = old.remove(&kind).unwrap_or_default();
            let probe_at = probe_in.map(|wait| now + wait);
            let quarantined = quarantined.map(|(ended, failed)| Quarantined { ended, failed, probe_at });
            state.kinds.insert(kind, Kind { ended, failed, quarantined });
        }
        seen.extend(old.into_keys().map(|kind| (kind, false)));
        seen
    }
}
