//! Turns: what the fleet does in common is done by one worker at a time.
//!
//! ```text
//! relay      publishes what is due, looks for lost messages and for ticks
//! vanished   looks for workers that are gone
//! scan       resets silent jobs, sweeps, counts
//! ```
//!
//! A worker that has a turn keeps it, statement by statement, for as long as it lives; the others ask now and then,
//! the less often the more there are. So an idle fleet costs what one worker costs, and the renewals. No leader, no
//! session, no lock: a turn ends by itself, and whatever is done under it may be done by two workers at once. A worker
//! that freezes with a turn holds its work up for [`turn_lasts`], and until another one asks.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_turn_is_one_workers_until_it_ends_or_is_left`
//! - `a_worker_that_freezes_with_the_turn_holds_up_nothing_beyond_its_length`
//! - `a_scanner_that_is_killed_leaves_no_gap_after_which_owners_are_given_time`
//! - `an_idle_fleet_costs_what_its_renewals_cost_and_one_relay`

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{loops::jittered, serve::Shared};
use crate::{config::Timing, store};

/// What one worker does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Relay,
    Vanished,
    Scan,
}

impl Turn {
    const ALL: [Self; 3] = [Self::Relay, Self::Vanished, Self::Scan];

    /// As its row is called.
    fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Vanished => "vanished",
            Self::Scan => "scan",
        }
    }
}

/// How often the relay looks for lost messages. At least five times in a renewal, however seldom it looks for others.
pub(super) fn reclaim_every(timing: &Timing) -> Duration {
    (timing.relay_every * 10).min(timing.renew_every / 5)
}

/// How often a worker keeps its turn, and how often the fleet asks for one that may be free. At least five times in a
/// renewal: the search for vanished workers needs that. And ten times between two scans: otherwise the turn of a worker
/// that is killed leaves a gap of three of them, after which all owners are given time to write, and nothing of that
/// worker is taken back meanwhile. (Where a job is stale after less than two and a half scans, a gap of one and a half
/// is enough for that; it can still come about.)
pub(super) fn keep_every(timing: &Timing) -> Duration {
    reclaim_every(timing).min((timing.scan_every / 10).max(KEPT_AT_MOST_EVERY))
}

/// However close together scans are: a turn is three times as long, and must outlast a statement that takes it.
const KEPT_AT_MOST_EVERY: Duration = Duration::from_millis(80);
/// The longest that a worker without a turn waits before it asks for one: of a large fleet only a few may be left.
const ASKED_WITHIN: Duration = Duration::from_secs(60);
/// After as many failures in a row, a worker leaves a turn to others for a while.
const FAILURES_MAX: u32 = 5;
/// For how many lengths of a turn.
const LEFT_FOR: u32 = 10;

/// How long a turn lasts that its worker does not keep.
fn turn_lasts(timing: &Timing) -> Duration {
    keep_every(timing) * 3
}

/// The turns of this worker, and what it was told with them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Notify,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    until: [Option<Instant>; Turn::ALL.len()],
    workers: u32,
    next_tick: Option<Instant>,
    has_silent: bool,
    settings: Option<String>,
    failures: [u32; Turn::ALL.len()],
    /// Until when this worker leaves the turn to others: its work failed here.
    left_until: [Option<Instant>; Turn::ALL.len()],
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this worker has the turn.
    pub(super) fn has(&self, turn: Turn) -> bool {
        self.state().until[turn as usize].is_some_and(|until| Instant::now() < until)
    }

    /// Completes when this worker has the turn. Cancel safe.
    pub(super) async fn wait_for(&self, turn: Turn) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Told of changes from here on, or one would be missed between the look and the wait.
            changed.as_mut().enable();
            if self.has(turn) {
                return;
            }
            changed.await;
        }
    }

    /// Completes when something was heard about the turns. Cancel safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// When the next tick of a schedule is due, as far as is known.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        self.state().next_tick
    }

    /// The tick was looked at; the next answer tells of the one after it.
    pub(super) fn ticked(&self) {
        self.state().next_tick = None;
    }

    /// Notes how the work of a turn went. A worker that fails again and again leaves the turn to others.
    pub(super) fn note(&self, turn: Turn, went_well: bool, timing: &Timing) {
        let mut state = self.state();
        let failures = &mut state.failures[turn as usize];
        *failures = if went_well { 0 } else { *failures + 1 };
        if *failures >= FAILURES_MAX {
            *failures = 0;
            let left_until = Instant::now().checked_add(turn_lasts(timing) * LEFT_FOR);
            state.left_until[turn as usize] = left_until;
            drop(state);
            tracing::warn!(
                turn = turn.name(),
                "the fleet's work fails on this worker; another one may do it"
            );
        }
    }

    fn is_left(&self, turn: Turn) -> bool {
        self.state().left_until[turn as usize].is_some_and(|until| Instant::now() < until)
    }

    /// Asks for turns now: some may be free, or there is more to do.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Whether a worker has missed its renewal.
    pub(super) fn has_silent(&self) -> bool {
        self.state().has_silent
    }

    /// `every`, for a fleet of which `each` workers may do something that often.
    pub(super) fn in_step(&self, every: Duration, each: u32) -> Duration {
        every.mul_f64((f64::from(self.state().workers) / f64::from(each)).max(1.0))
    }

    /// Takes these turns without having asked.
    fn take_all(&self, wanted: &[&str], until: Instant) {
        let mut state = self.state();
        for turn in Turn::ALL {
            state.until[turn as usize] = wanted.contains(&turn.name()).then_some(until);
        }
        (state.has_silent, state.next_tick) = (true, Some(Instant::now()));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Takes over what the database has said; returns whether operators have said something new of queues.
    fn take_over(&self, told: &store::Turns, until: Instant) -> bool {
        let mut state = self.state();
        for turn in Turn::ALL {
            state.until[turn as usize] = told.taken.iter().any(|taken| taken == turn.name()).then_some(until);
        }
        state.workers = u32::try_from(told.workers).unwrap_or(u32::MAX);
        state.has_silent = told.has_silent;
        state.next_tick = told.next_tick_s.and_then(|seconds| {
            // A little late rather than early: a look that comes too early finds nothing.
            let wait = Duration::try_from_secs_f64(seconds.max(0.0)).ok()? + Duration::from_millis(2);
            Instant::now().checked_add(wait)
        });
        let mut is_news = false;
        if !told.taken.is_empty() {
            // News to a worker that did not have the turn: something may have been said since another one had it.
            let known = state.settings.replace(told.settings.clone().unwrap_or_default());
            is_news = known != state.settings;
        }
        drop(state);
        self.changed.notify_waiters();
        is_news
    }
}

impl<S: Send + Sync + 'static> Shared<S> {
    /// Takes turns for as long as the worker lives.
    pub(super) async fn take_turns(self: Arc<Self>) {
        let (every, lasts) = (keep_every(&self.timing), turn_lasts(&self.timing));
        let mut was_denied = false;
        loop {
            let wanted = self.turns_that_fit();
            let mut wait = every;
            if !wanted.is_empty() {
                let asked_at = Instant::now();
                match self.store.take_turns(&wanted, &self.worker_id, lasts).await {
                    Ok(told) => {
                        if told.taken.is_empty() {
                            wait = self.turns.in_step(every, 1).min(ASKED_WITHIN);
                        }
                        if self.turns.take_over(&told, asked_at + lasts) {
                            self.queue.announce_settings().await;
                        }
                    }
                    // Nobody can: each worker does the work by itself, as the programs before this schema do.
                    Err(error) if error.is_denied() => {
                        if !std::mem::replace(&mut was_denied, true) {
                            tracing::warn!(
                                "this worker cannot take turns with others, and does all of the fleet's work: run \
                                postgres/roles.sql again, so that its role may write tenure.turns"
                            );
                        }
                        self.turns.take_all(&wanted, asked_at + lasts);
                    }
                    Err(error) => tracing::debug!(%error, "no turn was taken"),
                }
            }
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                () = self.turns.asked.notified() => {}
            }
        }
    }

    /// The turns that this worker may take: it does that work, and has what the work needs.
    fn turns_that_fit(&self) -> Vec<&'static str> {
        // One of whose loops has ended cannot say which work is not done any more.
        if self.health.live().is_err() {
            return Vec::new();
        }
        let fits = |turn: &Turn| match turn {
            _ if self.turns.is_left(*turn) => false,
            Turn::Relay => self.recovery.relay && self.queue.is_connected(),
            Turn::Vanished => self.recovery.vanished && self.can_judge(),
            Turn::Scan => self.recovery.scanner,
        };
        Turn::ALL.into_iter().filter(fits).map(Turn::name).collect()
    }
}
