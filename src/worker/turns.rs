//! Turns: one worker at a time does the fleet's common work.
//!
//! ```text
//! relay      publishes due jobs, looks for lost messages and for ticks
//! vanished   looks for workers that are gone
//! scan       resets silent jobs, sweeps, counts
//! ```
//!
//! A worker that has a turn keeps it, statement by statement, for as long as it lives; the others ask now and then,
//! less often in a larger fleet. So an idle fleet costs as much as one worker, plus the renewals. There is no leader,
//! no session and no lock: a turn ends by itself, and two workers may do its work at once. A worker that freezes with
//! a turn holds up the work for [`turn_lasts`], and until another worker asks.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_turn_belongs_to_one_worker_until_it_ends_or_is_left`
//! - `a_worker_that_freezes_with_the_turn_holds_up_nothing_beyond_its_length`
//! - `a_scanner_that_is_killed_leaves_no_gap_that_starts_a_grace`
//! - `an_idle_fleet_costs_its_renewals_and_one_relay`

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{config::Timing, store};

/// Work that one worker does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Relay,
    Vanished,
    Scan,
}

impl Turn {
    pub(super) const ALL: [Self; 3] = [Self::Relay, Self::Vanished, Self::Scan];

    /// The name of the turn's row.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Vanished => "vanished",
            Self::Scan => "scan",
        }
    }
}

/// How often the relay looks for lost messages: at least five times in a renewal, even if `relay_every` is long.
pub(super) fn reclaim_every(timing: &Timing) -> Duration {
    (timing.relay_every * 10).min(timing.renew_every / 5)
}

/// How often a worker keeps its turn, and how often the fleet asks for one that may be free. At least five times in a
/// renewal, because the search for vanished workers needs that; and ten times between two scans. Otherwise the turn of
/// a killed worker would leave a gap of three scans, after which all owners get time to write, and none of that
/// worker's jobs is reset meanwhile. (Where jobs are stale after less than two and a half scans, a gap of one and a
/// half scans has the same effect; such a gap can still occur.)
fn keep_every(timing: &Timing) -> Duration {
    reclaim_every(timing).min((timing.scan_every / 10).max(KEPT_AT_MOST_EVERY))
}

/// The shortest interval, however close together scans are: a turn lasts three times as long, and must outlast the
/// statement that takes it.
const KEPT_AT_MOST_EVERY: Duration = Duration::from_millis(80);
/// A worker leaves a turn to others when the work has failed for this long without a success.
const FAILS_FOR: Duration = Duration::from_secs(5);
/// A worker leaves it for this many lengths of a turn: the turn ends during the first, and another worker asks for it
/// during the next ones.
const LEFT_FOR: u32 = 4;

/// Returns how long a turn lasts if its worker does not keep it.
fn turn_lasts(timing: &Timing) -> Duration {
    keep_every(timing) * 3
}

/// The result of a turn's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    Well,
    /// There was nothing to do, or Postgres was away, as it was for all workers. Neither is this worker's doing.
    Unsaid,
    /// It failed on this worker. Another worker may succeed, with other rights, connections or settings.
    Badly,
}

/// The turns of this worker, and the rest of the database's latest answer.
#[derive(Debug)]
pub(crate) struct Turns {
    /// How often this worker keeps its turn.
    pub(super) every: Duration,
    /// How long a turn lasts if its worker does not keep it.
    pub(super) lasts: Duration,
    state: Mutex<State>,
    changed: Notify,
    asked: Notify,
    offered: Notify,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
struct State {
    until: [Option<Instant>; Turn::ALL.len()],
    workers: u32,
    next_tick: Option<Instant>,
    has_silent: bool,
    has_lanes: bool,
    has_groups: bool,
    has_redrives: bool,
    has_quarantines: bool,
    has_expiries: bool,
    settings: Option<String>,
    /// Since when the work has failed without a success.
    failing_since: [Option<Instant>; Turn::ALL.len()],
    /// Until when this worker leaves the turn to others: its work failed here.
    left_until: [Option<Instant>; Turn::ALL.len()],
}

impl Turns {
    pub(super) fn new(timing: &Timing) -> Self {
        Self {
            every: keep_every(timing),
            lasts: turn_lasts(timing),
            state: Mutex::default(),
            changed: Notify::new(),
            asked: Notify::new(),
            offered: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this worker has the turn.
    pub(crate) fn has(&self, turn: Turn) -> bool {
        self.state().until[turn as usize].is_some_and(|until| Instant::now() < until)
    }

    /// Completes when this worker has the turn. Cancel safe.
    pub(crate) async fn wait_for(&self, turn: Turn) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enable it before the look, or a change between the look and the wait would be missed.
            changed.as_mut().enable();
            if self.has(turn) {
                return;
            }
            changed.await;
        }
    }

    /// Completes when the database has answered about the turns. Cancel safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns when the next tick of a schedule is due, if that is known.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        self.state().next_tick
    }

    /// Forgets the tick, which has been handled; the next answer names the one after it.
    pub(super) fn ticked(&self) {
        self.state().next_tick = None;
    }

    /// Notes the result of a turn's work that began at `began`. A worker on which the work fails leaves the turn to
    /// others, if there are any.
    pub(super) fn note(&self, turn: Turn, went: Went, began: Instant) {
        let mut state = self.state();
        let State { failing_since, left_until, workers, .. } = &mut *state;
        let since = &mut failing_since[turn as usize];
        match went {
            Went::Well => *since = None,
            Went::Unsaid => {}
            Went::Badly => {
                if since.get_or_insert(began).elapsed() < FAILS_FOR || *workers <= 1 {
                    return;
                }
                *since = None;
                left_until[turn as usize] = Instant::now().checked_add(self.lasts * LEFT_FOR);
                drop(state);
                tracing::warn!(
                    turn = turn.name(),
                    "work that the fleet shares fails on this worker; the worker leaves it to another one"
                );
            }
        }
    }

    pub(super) fn is_left(&self, turn: Turn) -> bool {
        self.state().left_until[turn as usize].is_some_and(|until| Instant::now() < until)
    }

    /// Returns how many workers are alive, as far as the database has told: at least one.
    pub(crate) fn live_workers(&self) -> u32 {
        self.state().workers.max(1)
    }

    /// Whether a queue has lanes, as far as the database has told.
    pub(crate) fn has_lanes(&self) -> bool {
        self.state().has_lanes
    }

    /// Whether a calm redrive is open, as far as the database has told.
    pub(crate) fn has_redrives(&self) -> bool {
        self.state().has_redrives
    }

    /// Whether a kind is watched, as far as the database has told.
    pub(crate) fn has_quarantines(&self) -> bool {
        self.state().has_quarantines
    }

    /// Whether a job follows others, as far as the database has told.
    pub(crate) fn has_groups(&self) -> bool {
        self.state().has_groups
    }

    /// Whether a job may expire, as far as the database has told.
    pub(crate) fn has_expiries(&self) -> bool {
        self.state().has_expiries
    }

    /// Asks for turns now: some may be free, or there is more to do.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Asks for turns after a short, random wait: one has become free, and every worker of the fleet has heard of it.
    pub(super) fn offer(&self) {
        self.offered.notify_one();
    }

    /// Waits until this worker should ask for turns. Cancel safe.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until this worker should ask for turns after a short, random wait. Cancel safe.
    pub(super) async fn offered(&self) {
        self.offered.notified().await;
    }

    /// Notes how many workers there are, and asks for turns if half of them have gone: a turn may be free, and as one
    /// of many this worker would have waited long before it asked.
    pub(super) fn workers(&self, now: u32) {
        let before = std::mem::replace(&mut self.state().workers, now);
        if now <= before / 2 {
            self.ask();
        }
    }

    /// Whether a worker has missed its renewal.
    pub(super) fn has_silent(&self) -> bool {
        self.state().has_silent
    }

    /// Returns this worker's interval, such that `each` workers of the fleet act in each `every`.
    pub(crate) fn in_step(&self, every: Duration, each: u32) -> Duration {
        every.mul_f64((f64::from(self.state().workers) / f64::from(each)).max(1.0))
    }

    /// Notes the database's answer; returns whether the settings of queues have changed.
    pub(super) fn take_over(&self, told: &store::Turns, until: Instant) -> bool {
        let mut state = self.state();
        for turn in Turn::ALL {
            state.until[turn as usize] = told.taken.iter().any(|taken| taken == turn.name()).then_some(until);
        }
        state.workers = u32::try_from(told.workers).unwrap_or(u32::MAX);
        state.has_silent = told.has_silent;
        (state.has_lanes, state.has_expiries) = (told.has_lanes, told.has_expiries);
        state.has_groups = told.has_groups;
        (state.has_redrives, state.has_quarantines) = (told.has_redrives, told.has_quarantines);
        state.next_tick = told.next_tick_s.and_then(|seconds| {
            // Look a little late rather than early: an early look finds nothing.
            let wait = Duration::try_from_secs_f64(seconds.max(0.0)).ok()? + Duration::from_millis(2);
            Instant::now().checked_add(wait)
        });
        let mut is_news = false;
        if !told.taken.is_empty() {
            // Unknown settings are news: they may have changed while another worker had the turn.
            let known = state.settings.replace(told.settings.clone().unwrap_or_default());
            is_news = known != state.settings;
        }
        drop(state);
        self.changed.notify_waiters();
        is_news
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn turns_of(workers: u32) -> Turns {
        let turns = Turns::new(&Timing::DEFAULT);
        turns.workers(workers);
        turns
    }

    fn ago(time: Duration) -> Instant {
        Instant::now().checked_sub(time).unwrap_or_else(Instant::now)
    }

    #[test]
    fn a_worker_leaves_a_turn_whose_work_fails_here_and_only_here() {
        let long = FAILS_FOR + Duration::from_millis(1);
        let note = |turns: &Turns, went, began| turns.note(Turn::Relay, went, began);
        let turns = turns_of(2);
        note(&turns, Went::Badly, ago(Duration::ZERO));
        assert!(!turns.is_left(Turn::Relay), "it has not failed for long");
        note(&turns, Went::Badly, ago(long));
        assert!(!turns.is_left(Turn::Relay), "the time counts from the first failure");
        let turns = turns_of(2);
        note(&turns, Went::Badly, ago(long));
        assert!(turns.is_left(Turn::Relay) && !turns.is_left(Turn::Scan));
        let left_for = turns.state().left_until[0].map(|until| until - Instant::now());
        assert!(left_for.is_some_and(|time| time > turns.lasts * 3), "{left_for:?}");
        let turns = turns_of(1);
        note(&turns, Went::Badly, ago(long));
        assert!(!turns.is_left(Turn::Relay), "a lone worker keeps its turn");
        // Between two failures there may be nothing to do; a success resets the count.
        for (between, is_left) in [(Went::Unsaid, true), (Went::Well, false)] {
            let turns = turns_of(2);
            turns.state().failing_since[Turn::Relay as usize] = Some(ago(long));
            note(&turns, between, ago(Duration::ZERO));
            note(&turns, Went::Badly, ago(Duration::ZERO));
            assert_eq!(turns.is_left(Turn::Relay), is_left, "{between:?}");
        }
    }

    #[test]
    fn a_worker_asks_at_once_where_half_of_the_fleet_has_gone() {
        let turns = turns_of(10);
        assert!(turns.asked.notified().now_or_never().is_none());
        turns.workers(6);
        assert!(turns.asked.notified().now_or_never().is_none());
        turns.workers(3);
        assert!(turns.asked.notified().now_or_never().is_some());
        assert_eq!(turns.in_step(Duration::from_secs(1), 1), Duration::from_secs(3));
    }
}
