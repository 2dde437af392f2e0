//! Guesses: limits how fast passwords and tokens can be guessed.
//!
//! Each client may be wrong a few times at once, and then seldom; all clients together have a limit of their own, so
//! that many addresses do not help. A client beyond a limit is refused before its password is compared: else the
//! answer to a right password would be faster, and guesses in parallel would cost nothing.
//!
//! A browser that has signed in holds a cookie that proves it. Its mistakes count for it alone, so other clients'
//! guesses never keep it out, even if they come from the same address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::access::hash;
use tenure::internals::http::network;

/// How often a client may be wrong.
const OF_ONE: Limit = Limit { at_once: 10.0, per_s: 0.5 };
/// How often all clients together may be wrong, without those that have signed in before.
const OF_ALL: Limit = Limit { at_once: 50.0, per_s: 5.0 };

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
        *self = Self { mistakes: (self.mistakes + passed * limit.per_s).min(limit.at_once), at: now };
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

/// Why a client is not signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotSignedIn {
    Wrong,
    /// Nothing was compared; the client may try again after this time.
    TooMany(Duration),
}

/// The mistakes of all clients.
#[derive(Debug)]
pub(super) struct Guesses {
    left: Mutex<State>,
    /// Proves that a cookie is ours. Random, so that a cookie tells nothing about a password.
    secret: [u8; 32],
}

#[derive(Debug)]
struct State {
    all: Left,
    clients: HashMap<Guesser, Left>,
}

impl Guesses {
    pub(super) fn new() -> Self {
        Self {
            left: Mutex::new(State { all: Left::all_of(OF_ALL, Instant::now()), clients: HashMap::new() }),
            secret: hash(&format!("{}{}", Uuid::new_v4(), Uuid::new_v4())),
        }
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
        // Held during the comparison, so that guesses in parallel are counted one by one.
        let mut state = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        state.all.until(now, OF_ALL);
        let mut own = state.clients.get(&by).copied().unwrap_or(Left::all_of(OF_ONE, now));
        own.until(now, OF_ONE);
        let is_unknown = matches!(by, Guesser::Network(_));
        let of_all = is_unknown.then(|| state.all.wait(OF_ALL)).flatten();
        if let Some(wait) = own.wait(OF_ONE).max(of_all) {
            return Err(NotSignedIn::TooMany(wait));
        }
        if let Some(found) = compare() {
            return Ok(found);
        }
        own.mistakes -= 1.0;
        if is_unknown {
            state.all.mistakes -= 1.0;
        }
        // Few remain: the limit of all bounds how many clients can be wrong before an earlier one has all left again.
        state.clients.retain(|_, left| {
            left.until(now, OF_ONE);
            left.mistakes < OF_ONE.at_once
        });
        state.clients.insert(by, own);
        Err(NotSignedIn::Wrong)
    }

    /// Returns the value of a cookie for a browser that has signed in as this user.
    pub(super) fn cookie(&self, user: &str) -> String {
        let number = Uuid::new_v4();
        format!("{}{}", number.simple(), self.seal(number, user))
    }

    /// Returns the browser that holds this cookie, if it has signed in as this user.
    pub(super) fn known(&self, cookie: &str, user: &str) -> Option<Guesser> {
        let (number, seal) = cookie.split_at_checked(32)?;
        let number = Uuid::try_parse(number).ok()?;
        let is_ours = bool::from(seal.as_bytes().ct_eq(self.seal(number, user).as_bytes()));
        is_ours.then_some(Guesser::Known(number))
    }

    fn seal(&self, number: Uuid, user: &str) -> String {
        let hex = |bytes: [u8; 32]| Uuid::from_slice(&bytes[..16]).unwrap_or_default().simple().to_string();
        // Hashed twice: nothing can be appended to what the secret seals.
        let inner = hex(hash(&format!("{}{user}", number.simple())));
        hex(hash(&format!("{}{inner}", hex(self.secret))))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const WRONG: fn() -> Option<()> = || None;

    fn network_of(n: u8) -> Guesser {
        Guesser::of([10, 0, 0, n].into())
    }

    #[test]
    fn a_client_has_ten_guesses_and_then_one_in_two_seconds_and_others_are_not_slowed() {
        let (guesses, start) = (Guesses::new(), Instant::now());
        let compared = |by, at| guesses.limited_at(by, at, WRONG) == Err(NotSignedIn::Wrong);
        let at_once = (0..300).filter(|_| compared(network_of(1), start)).count();
        assert_eq!(at_once, 10);
        let too_many = guesses.limited_at(network_of(1), start, || Some(()));
        assert_eq!(too_many, Err(NotSignedIn::TooMany(Duration::from_secs(2))), "not even a right one");
        assert_eq!(guesses.limited_at(network_of(2), start, || Some(())), Ok(()));
        let in_a_minute =
            (1..=600).filter(|n| compared(network_of(1), start + Duration::from_millis(100 * n))).count();
        assert_eq!(in_a_minute, 30);
    }

    #[test]
    fn many_addresses_together_have_a_limit_and_a_browser_that_signed_in_is_not_slowed_by_them() {
        let (guesses, start) = (Guesses::new(), Instant::now());
        let compared = |n| guesses.limited_at(network_of(n), start, WRONG) == Err(NotSignedIn::Wrong);
        assert_eq!((0..=255).filter(|n| compared(*n)).count(), 50);
        assert!(matches!(
            guesses.limited_at(network_of(1), start, || Some(())),
            Err(NotSignedIn::TooMany(_))
        ));
        let known = guesses.known(&guesses.cookie("ada"), "ada").unwrap();
        assert_eq!(guesses.limited_at(known, start, || Some(())), Ok(()));
        let own = |_: &i32| guesses.limited_at(known, start, WRONG) == Err(NotSignedIn::Wrong);
        assert_eq!((0..300).filter(own).count(), 10, "its own mistakes count");
        // A client with all its guesses left is forgotten.
        let later = start + Duration::from_secs(60);
        assert_eq!(guesses.limited_at(network_of(1), later, WRONG), Err(NotSignedIn::Wrong));
        assert_eq!(guesses.left.lock().unwrap().clients.len(), 1);
    }

    #[test]
    fn a_cookie_is_good_for_its_own_user_and_process() {
        let guesses = Guesses::new();
        let cookie = guesses.cookie("ada");
        assert!(guesses.known(&cookie, "ada").is_some());
        for (cookie, user) in [(cookie.as_str(), "grace"), ("", "ada"), (&cookie[..32], "ada"), ("é", "ada")]
        {
            assert_eq!(guesses.known(cookie, user), None, "{cookie} {user}");
        }
        assert_eq!(Guesses::new().known(&cookie, "ada"), None);
    }
}
