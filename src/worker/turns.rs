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
/// When the work of a turn has failed for this long, and succeeded never, its worker leaves the turn to others.
const FAILS_FOR: Duration = Duration::from_secs(5);
/// For how many lengths of a turn. It ends during the first, and another worker asks for it during the next ones.
const LEFT_FOR: u32 = 4;

/// How long a turn lasts that its worker does not keep.
fn turn_lasts(timing: &Timing) -> Duration {
    keep_every(timing) * 3
}

/// How the work of a turn went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    Well,
    /// There was nothing to do, or Postgres was away, as it is for all workers: neither says anything of this one.
    Unsaid,
    /// It failed here. Another worker may have better luck: other rights, another connection, another configuration.
    Badly,
}

/// The turns of this worker, and what it was told with them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Notify,
    asked: Notify,
    offered: Notify,
}

#[derive(Debug, Default)]
struct State {
    until: [Option<Instant>; Turn::ALL.len()],
    workers: u32,
    next_tick: Option<Instant>,
    has_silent: bool,
    settings: Option<String>,
    /// Since when the work has failed without a success.
    failing_since: [Option<Instant>; Turn::ALL.len()],
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

    /// Notes how work of a turn went that was begun at `began`. A worker on which it fails leaves the turn to others,
    /// if there are any.
    pub(super) fn note(&self, turn: Turn, went: Went, began: Instant, timing: &Timing) {
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
                left_until[turn as usize] = Instant::now().checked_add(turn_lasts(timing) * LEFT_FOR);
                drop(state);
                tracing::warn!(
                    turn = turn.name(),
                    "the fleet's work fails on this worker; another one may do it"
                );
            }
        }
    }

    fn is_left(&self, turn: Turn) -> bool {
        self.state().left_until[turn as usize].is_some_and(|until| Instant::now() < until)
    }

    /// Asks for turns now: some may be free, or there is more to do.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Asks for turns within a moment: one has become free, and every worker of the fleet has heard of it.
    pub(super) fn offer(&self) {
        self.offered.notify_one();
    }

    /// Takes over how many workers there are. Where most have gone, a turn may be free for which this worker, as one of
    /// many, would not have asked for long.
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
                // Not all at once.
                () = self.turns.offered.notified() => sleep(every.mul_f64(rand::random())).await,
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn turns_of(workers: u32) -> Turns {
        let turns = Turns::default();
        turns.workers(workers);
        turns
    }

    fn ago(time: Duration) -> Instant {
        Instant::now().checked_sub(time).unwrap_or_else(Instant::now)
    }

    #[test]
    fn a_worker_leaves_a_turn_whose_work_fails_here_and_only_here() {
        let (timing, long) = (Timing::DEFAULT, FAILS_FOR + Duration::from_millis(1));
        let note = |turns: &Turns, went, began| turns.note(Turn::Relay, went, began, &timing);
        let turns = turns_of(2);
        note(&turns, Went::Badly, ago(Duration::ZERO));
        assert!(!turns.is_left(Turn::Relay), "it has not failed for long");
        note(&turns, Went::Badly, ago(long));
        assert!(!turns.is_left(Turn::Relay), "it fails since it failed first");
        let turns = turns_of(2);
        note(&turns, Went::Badly, ago(long));
        assert!(turns.is_left(Turn::Relay) && !turns.is_left(Turn::Scan));
        let left_for = turns.state().left_until[0].map(|until| until - Instant::now());
        assert!(left_for.is_some_and(|time| time > turn_lasts(&timing) * 3), "{left_for:?}");
        let turns = turns_of(1);
        note(&turns, Went::Badly, ago(long));
        assert!(!turns.is_left(Turn::Relay), "a lone worker keeps its turn");
        // Between two failures there may be nothing to do; a success begins anew.
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
