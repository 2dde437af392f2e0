//! Repeats: limits repeated warnings. The first comes at once, later ones of the same cause less and less often.

use std::{
    collections::HashMap,
    fmt::Display,
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The first and the longest pause between two lines about the same cause. A cause that stays away for the longest
/// pause is new.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// How many causes are kept; beyond that, the quarter that has stayed away for longest is dropped, so that few calls
/// look at all causes. In an outage each queue of a worker has causes of its own: with fewer places than queues, each
/// would drop another, and all would be logged each time.
const CAUSES_MAX: usize = 4_096;

#[derive(Debug)]
struct Repeated {
    tell_at: Instant,
    pause: Duration,
    seen_at: Instant,
    left_out: u64,
}

/// The causes that were logged, and when the next line about each is due: at once, then after 1, 2, 4 … 60 s.
#[derive(Debug)]
pub struct Repeats {
    causes: Mutex<HashMap<String, Repeated>>,
    first: Duration,
    longest: Duration,
}

impl Default for Repeats {
    fn default() -> Self {
        Self::with_pauses(FIRST, LONGEST)
    }
}

impl Repeats {
    /// With other pauses than 1 to 60 s, for causes that come back at longer intervals.
    pub(crate) fn with_pauses(first: Duration, longest: Duration) -> Self {
        Self { causes: Mutex::default(), first, longest }
    }

    /// Returns whether to log this cause now: `Some` with the number of lines left out since the last one.
    pub fn tell(&self, cause: &str) -> Option<u64> {
        self.tell_at(cause, Instant::now())
    }

    fn tell_at(&self, cause: &str, now: Instant) -> Option<u64> {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = causes.get_mut(cause);
        if let Some(repeated) = known.filter(|repeated| now - repeated.seen_at < self.longest) {
            repeated.seen_at = now;
            if now < repeated.tell_at {
                repeated.left_out += 1;
                return None;
            }
            repeated.pause = (repeated.pause * 2).min(self.longest);
            repeated.tell_at = now + repeated.pause;
            return Some(std::mem::take(&mut repeated.left_out));
        }
        if causes.len() == CAUSES_MAX && !causes.contains_key(cause) {
            let mut seen: Vec<_> = causes.values().map(|repeated| repeated.seen_at).collect();
            let (_, last_dropped, _) = seen.select_nth_unstable(CAUSES_MAX / 4);
            causes.retain(|_, repeated| repeated.seen_at > *last_dropped);
        }
        let repeated = Repeated { tell_at: now + self.first, pause: self.first, seen_at: now, left_out: 0 };
        causes.insert(cause.to_owned(), repeated);
        Some(0)
    }
}

/// Returns whether to log now that `what` failed by this error, for the whole process: `Some` with the number of lines
/// left out since the last one. In an outage each job and each loop fails, again and again.
pub(crate) fn tell(what: &str, error: &impl Display) -> Option<u64> {
    static ALL: LazyLock<Repeats> = LazyLock::new(Repeats::default);
    ALL.tell(&format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_at_once_and_then_after_pauses_that_double_to_a_minute() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let at = |half_seconds: u64| start + Duration::from_millis(500 * half_seconds);
        let logged = |from: u64, to: u64| -> Vec<_> {
            let tell = |n| repeats.tell_at("a wrong password", at(n)).map(|left_out| (n / 2, left_out));
            (from..to).filter_map(tell).collect()
        };
        let all = [(0, 0), (1, 1), (3, 3), (7, 7), (15, 15), (31, 31), (63, 63), (123, 119), (183, 119)];
        assert_eq!(logged(0, 400), all);
        assert_eq!(repeats.tell_at("no such database", at(400)), Some(0), "another cause is logged at once");
        assert_eq!(logged(520, 524), [(260, 0), (261, 1)], "a cause is new after a minute without it");
    }

    /// In an outage each queue of a worker has a cause of its own.
    #[test]
    fn many_queues_do_not_drop_each_others_causes() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let round = |n: u64| {
            let at = start + Duration::from_millis(400 * n);
            (0..500).filter(|queue| repeats.tell_at(&format!("pull {queue}: refused"), at).is_some()).count()
        };
        assert_eq!((round(0), round(1), round(2), round(3)), (500, 0, 0, 500));
    }

    #[test]
    fn endless_causes_take_bounded_memory() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        for n in 0..5_000 {
            assert_eq!(repeats.tell_at(&n.to_string(), start + Duration::from_millis(n)), Some(0));
        }
        assert_eq!(repeats.tell_at("4999", start + Duration::from_millis(5_100)), None);
        let causes = |repeats: &Repeats| repeats.causes.lock().map(|causes| causes.len()).unwrap_or_default();
        assert!(causes(&repeats) <= CAUSES_MAX);
        // A call looks at its own cause alone, also when those of others are over.
        let before = causes(&repeats);
        assert_eq!(repeats.tell_at("4999", start + LONGEST * 3), Some(0));
        assert_eq!(causes(&repeats), before);
    }
}
