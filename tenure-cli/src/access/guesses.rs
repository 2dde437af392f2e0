//! Guesses: limits how fast passwords and tokens can be guessed.
//!
//! Each client may be wrong a few times at once, and then seldom; all clients together have a limit of their own, so
//! that many addresses do not help. A client beyond a limit is refused before its password is compared: else the
//! answer to a right password would be faster, and guesses in parallel would cost nothing.
//!
//! Strangers must not lock those out who have the right password. So the limit of all is for strangers alone: a network
//! from which a right password or token came has only its own limit. The mistakes of a browser that has signed in
//! ([`known`](super::known)) count for it alone, even beside other clients of its address.

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hashlink::LruCache;
use uuid::Uuid;

use tenure::internals::http::network;

/// How often a client may be wrong.
const OF_ONE: Limit = Limit { at_once: 10.0, per_s: 0.5 };
/// How often all strangers together may be wrong.
const OF_ALL: Limit = Limit { at_once: 50.0, per_s: 5.0 };
/// The same where a comparison takes a good part of a second, and one is made at a time.
const OF_ALL_SLOW: Limit = Limit { at_once: 20.0, per_s: 1.0 };
/// The most clients of each sort to remember: a megabyte. Beyond it, the client that was seen longest ago is forgotten.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Clone, Copy)]
struct Limit {
    at_once: f64,
    per_s: f64,
}

/// The mistakes that a client may still make; they come back with time.
#[derive(Debug, Clone, Copy)]
struct Left {
    mistakes: f64,
    at: Instant,
}

impl Left {
    fn all_of(limit: Limit, at: Instant) -> Self {
        Self { mistakes: limit.at_once, at }
    }

    fn until(&mut self, now: Instant, limit: Limit) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        *self = Self {
            mistakes: (self.mistakes + passed * limit.per_s).min(limit.at_once),
            at: self.at.max(now),
        };
    }

    /// How long until one more mistake is allowed; `None`: it is allowed now.
    fn wait(&self, limit: Limit) -> Option<Duration> {
        (self.mistakes < 1.0).then(|| Duration::from_secs_f64((1.0 - self.mistakes) / limit.per_s))
    }
}

/// The source of a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Guesser {
    /// The network of the client's address.
    Network(IpAddr),
    /// A browser that has signed in, by the number in its cookie.
    Known(Uuid),
}

impl Guesser {
    pub(super) fn of(address: IpAddr) -> Self {
        Self::Network(network(address))
    }
}

/// The limit that a client has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// The client's own limit.
    OfOne,
    /// The limit of all unknown clients together.
    OfAll,
}

impl Met {
    /// For the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::OfOne => "client",
            Self::OfAll => "all clients",
        }
    }
}

/// Why a client is not signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotSignedIn {
    Wrong,
    /// Nothing was compared; the client may try again after this time.
    TooMany(Duration, Met),
}

/// The mistakes of all clients.
#[derive(Debug)]
pub(super) struct Guesses(Mutex<State>);

#[derive(Debug)]
struct State {
    of_all: Limit,
    all: Left,
    networks: LruCache<IpAddr, Left>,
    browsers: LruCache<Uuid, Left>,
    /// Networks from which a right password or token came.
    signed_in: LruCache<IpAddr, ()>,
}

impl State {
    fn own(&mut self, by: Guesser, now: Instant) -> Left {
        let known = match by {
            Guesser::Network(address) => self.networks.get(&address),
            Guesser::Known(browser) => self.browsers.get(&browser),
        };
        let mut own = known.copied().unwrap_or(Left::all_of(OF_ONE, now));
        own.until(now, OF_ONE);
        own
    }

    fn is_stranger(&mut self, by: Guesser) -> bool {
        matches!(by, Guesser::Network(address) if self.signed_in.get(&address).is_none())
    }

    fn was_right(&mut self, by: Guesser) {
        if let Guesser::Network(address) = by {
            self.signed_in.insert(address, ());
        }
    }

    fn was_wrong(&mut self, by: Guesser, mut own: Left, is_stranger: bool) {
        own.mistakes -= 1.0;
        if is_stranger {
            self.all.mistakes -= 1.0;
        }
        self.note(by, own);
    }

    /// Charges strangers for the time of a guess, with its wait for those before it: together they may use half of each
    /// second.
    fn took(&mut self, took: Duration) {
        self.all.mistakes -= (2.0 * took.as_secs_f64() * self.of_all.per_s - 1.0).max(0.0);
    }

    /// The guess was right after all.
    fn give_back(&mut self, by: Guesser, is_stranger: bool, now: Instant) {
        let mut own = self.own(by, now);
        own.mistakes = (own.mistakes + 1.0).min(OF_ONE.at_once);
        if is_stranger {
            self.all.mistakes = (self.all.mistakes + 1.0).min(self.of_all.at_once);
        }
        self.note(by, own);
        self.was_right(by);
    }

    fn note(&mut self, by: Guesser, own: Left) {
        match by {
            Guesser::Network(address) => self.networks.insert(address, own),
            Guesser::Known(browser) => self.browsers.insert(browser, own),
        };
    }
}

impl Guesses {
    /// `takes_long`: each comparison of a password.
    pub(super) fn new(takes_long: bool) -> Self {
        let of_all = if takes_long { OF_ALL_SLOW } else { OF_ALL };
        Self(Mutex::new(State {
            of_all,
            all: Left::all_of(of_all, Instant::now()),
            networks: LruCache::new(REMEMBERED),
            browsers: LruCache::new(REMEMBERED),
            signed_in: LruCache::new(REMEMBERED),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a client that was right without a limit.
    pub(super) fn was_right(&self, by: Guesser) {
        self.state().was_right(by);
    }

    /// Returns what `compare` finds, unless this client has been wrong too often.
    pub(super) fn limited<T>(
        &self,
        by: Guesser,
        compare: impl FnOnce() -> Option<T>,
    ) -> Result<T, NotSignedIn> {
        self.limited_at(by, Instant::now(), compare)
    }

    fn limited_at<T>(
        &self,
        by: Guesser,
        now: Instant,
        compare: impl FnOnce() -> Option<T>,
    ) -> Result<T, NotSignedIn> {
        let is_stranger = self.charge(by, now)?;
        // Without the lock: bcrypt takes long, and a stranger's guesses must not hold up everybody.
        let began = Instant::now();
        let found = compare();
        let Some(found) = found else {
            if is_stranger {
                self.state().took(began.elapsed());
            }
            return Err(NotSignedIn::Wrong);
        };
        self.state().give_back(by, is_stranger, now);
        Ok(found)
    }

    /// Counts a mistake in advance, so that guesses in parallel are counted one by one. Returns whether it is a
    /// stranger's.
    fn charge(&self, by: Guesser, now: Instant) -> Result<bool, NotSignedIn> {
        let mut state = self.state();
        let of_all = state.of_all;
        state.all.until(now, of_all);
        let (own, is_stranger) = (state.own(by, now), state.is_stranger(by));
        if let Some(wait) = own.wait(OF_ONE) {
            return Err(NotSignedIn::TooMany(wait, Met::OfOne));
        }
        if let Some(wait) = state.all.wait(of_all).filter(|_| is_stranger) {
            return Err(NotSignedIn::TooMany(wait, Met::OfAll));
        }
        state.was_wrong(by, own, is_stranger);
        Ok(is_stranger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: fn() -> Option<()> = || None;

    fn network_of(n: u32) -> Guesser {
        Guesser::of((0x0a00_0000 + n).to_be_bytes().into())
    }

    #[test]
    fn a_client_has_ten_guesses_and_then_one_in_two_seconds_and_others_are_not_slowed() {
        let (guesses, start) = (Guesses::new(false), Instant::now());
        let compared = |by, at| guesses.limited_at(by, at, WRONG) == Err(NotSignedIn::Wrong);
        let at_once = (0..300).filter(|_| compared(network_of(1), start)).count();
        assert_eq!(at_once, 10);
        let too_many = guesses.limited_at(network_of(1), start, || Some(()));
        let wait = Duration::from_secs(2);
        assert_eq!(too_many, Err(NotSignedIn::TooMany(wait, Met::OfOne)), "not even a right one");
        assert_eq!(guesses.limited_at(network_of(2), start, || Some(())), Ok(()));
        let in_a_minute =
            (1..=600).filter(|n| compared(network_of(1), start + Duration::from_millis(100 * n))).count();
        assert_eq!(in_a_minute, 30);
    }

    /// Otherwise guesses would wait for each other, more and more of them.
    #[test]
    fn strangers_may_guess_less_often_where_a_comparison_takes_long() {
        let (guesses, start) = (Guesses::new(true), Instant::now());
        let slow = || -> Option<()> {
            std::thread::sleep(Duration::from_millis(1_500));
            None
        };
        assert_eq!(guesses.limited_at(network_of(1), start, slow), Err(NotSignedIn::Wrong));
        assert!(guesses.state().all.mistakes <= OF_ALL_SLOW.at_once - 3.0);
    }

    #[test]
    fn a_comparison_that_takes_long_holds_up_no_other_client_and_guesses_in_parallel_are_counted() {
        let (guesses, start) = (Guesses::new(false), Instant::now());
        let (begun, compares) = std::sync::mpsc::channel();
        let (over, end) = std::sync::mpsc::channel::<()>();
        let end = Mutex::new(end);
        std::thread::scope(|scope| {
            for _ in 0..20 {
                let (begun, end, guesses) = (begun.clone(), &end, &guesses);
                scope.spawn(move || {
                    guesses.limited_at(network_of(1), start, || {
                        begun.send(()).unwrap_or_default();
                        // Until each of the twenty has begun to compare, or was refused.
                        end.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
                        None::<()>
                    })
                });
            }
            assert_eq!((0..10).filter(|_| compares.recv().is_ok()).count(), 10);
            assert_eq!(
                guesses.limited_at(network_of(2), start, || Some(())),
                Ok(()),
                "it does not wait for the ten that compare"
            );
            let refused = guesses.limited_at(network_of(1), start, || Some(()));
            assert!(matches!(refused, Err(NotSignedIn::TooMany(_, Met::OfOne))), "{refused:?}");
            drop(over);
        });
        assert_eq!(compares.try_iter().count(), 0, "ten compared, and ten were refused");
    }

    #[test]
    fn the_limit_of_all_is_for_strangers_alone() {
        let (guesses, start) = (Guesses::new(false), Instant::now());
        let compared = |by, at| guesses.limited_at(by, at, WRONG) == Err(NotSignedIn::Wrong);
        let (office, scraper, browser) = (network_of(1_000), network_of(1_001), Guesser::Known(Uuid::nil()));
        assert_eq!(guesses.limited_at(office, start, || Some(())), Ok(()));
        guesses.was_right(scraper);
        assert_eq!((0..=255).filter(|n| compared(network_of(*n), start)).count(), 50);
        let stranger = guesses.limited_at(network_of(999), start, || Some(()));
        assert!(matches!(stranger, Err(NotSignedIn::TooMany(_, Met::OfAll))), "{stranger:?}");
        for (by, name) in [(office, "office"), (scraper, "scraper"), (browser, "browser")] {
            assert_eq!(guesses.limited_at(by, start, || Some(())), Ok(()), "{name}");
            assert_eq!(
                (0..300).filter(|_| compared(by, start)).count(),
                10,
                "{name}: its own mistakes count"
            );
        }
        // Their mistakes take nothing from strangers.
        let later = start + Duration::from_millis(250);
        assert!(compared(network_of(2_000), later) && !compared(network_of(2_001), later));
    }

    #[test]
    fn the_latest_clients_are_remembered_up_to_a_limit() {
        let (guesses, start) = (Guesses::new(false), Instant::now());
        let most = u32::try_from(REMEMBERED).unwrap_or(u32::MAX);
        for n in 0..=most {
            guesses.was_right(network_of(n));
            for by in [network_of(n), Guesser::Known(Uuid::from_u128(n.into()))] {
                assert_eq!(guesses.limited_at(by, start, WRONG), Err(NotSignedIn::Wrong));
            }
        }
        let mut state = guesses.state();
        let State { networks, browsers, signed_in, .. } = &*state;
        assert_eq!((networks.len(), browsers.len(), signed_in.len()), (REMEMBERED, REMEMBERED, REMEMBERED));
        assert!(state.is_stranger(network_of(0)) && !state.is_stranger(network_of(most)));
    }
}
