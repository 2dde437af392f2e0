//! Duration: the forms in which people read one. Every text and every page takes its form from here.
//!
//! | form | for | example |
//! |---|---|---|
//! | [`written`] | limits and timers: exact, as a setting is written | `1s 500ms`, `5m` |
//! | [`measured`] | times that passed, in texts | `2s 990ms`, `1m 30s` |
//! | [`rounded`] | times that passed, on pages: two units at most | `0.08 s`, `5 min 2 s` |
//! | [`whole`] | the same in whole seconds, for what grows while it is looked at | `3 s`, `5 min 2 s` |
//! | [`coarse`] | the same in one unit, so that it changes seldom | `53 s`, `5 min` |
//! | [`about`] | estimates | `0.08 s`, `5 min`, `3.1 h` |

use std::time::Duration;

/// Formats a limit or a timer exactly, in the form in which a setting is written: `500ms`, `1s 500ms`, `5m`.
#[must_use]
pub fn written(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Formats a time that passed: `120ms`, `2s 990ms`, `1m 30s`, `1h 4m 12s`. From ten seconds on, without its
/// milliseconds.
#[must_use]
pub fn measured(duration: Duration) -> String {
    written(match duration.as_secs() {
        seconds @ 10.. => Duration::from_secs(seconds),
        seconds => Duration::new(seconds, duration.subsec_millis() * 1_000_000),
    })
}

pub use pages::{about, coarse, rounded, whole};

mod pages {
    /// The units of a page: their seconds, and their names after a space that does not break.
    const UNITS: [(u64, &str); 4] =
        [(86_400, "\u{a0}d"), (3_600, "\u{a0}h"), (60, "\u{a0}min"), (1, "\u{a0}s")];

    /// Formats a time that passed: `0.08 s`, `12 s`, `5 min 2 s`, `3 h 4 min`, `2 d 1 h`.
    #[must_use]
    pub fn rounded(seconds: f64) -> String {
        match seconds {
            s if s >= 10.0 => units(floor(s), 2),
            s if s >= 1.0 => format!("{s:.1}\u{a0}s"),
            s if s >= 0.01 => format!("{s:.2}\u{a0}s"),
            s if s > 0.0 => format!("{:.1}\u{a0}ms", s * 1_000.0),
            _ => units(0, 1),
        }
    }

    /// Formats a time that passed, in whole seconds.
    #[must_use]
    pub fn whole(seconds: f64) -> String {
        units(floor(seconds), 2)
    }

    /// Formats a time that passed in one unit, so that it changes seldom.
    #[must_use]
    pub fn coarse(seconds: f64) -> String {
        units(floor(seconds), 1)
    }

    /// Formats an estimate, in one unit: its histogram counts in steps that double, so it is not exact to the second.
    #[must_use]
    pub fn about(seconds: f64) -> String {
        match seconds {
            s if s < 60.0 => rounded(s),
            s if s < 3_600.0 => format!("{:.0}\u{a0}min", s / 60.0),
            s if s < 86_400.0 => format!("{:.1}\u{a0}h", s / 3_600.0),
            s => format!("{:.1}\u{a0}d", s / 86_400.0),
        }
    }

    /// Returns whole seconds; clocks differ, and a time that passed is never negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, NaN is 0")]
    fn floor(seconds: f64) -> u64 {
        seconds.min(1e12) as u64
    }

    /// Formats whole seconds in their largest unit, and the next one if there are `parts` for it and it is not zero.
    fn units(seconds: u64, parts: usize) -> String {
        let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
        let mut left = seconds;
        let shown = UNITS[largest..].iter().take(parts).enumerate().filter_map(|(place, (unit, name))| {
            let count = left / unit;
            left %= unit;
            (place == 0 || count > 0).then(|| format!("{count}{name}"))
        });
        shown.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_duration_is_as_exact_as_it_is_short() {
        for (ms, text) in [
            (0, "0s"),
            (120, "120ms"),
            (2_990, "2s 990ms"),
            (9_999, "9s 999ms"),
            (10_999, "10s"),
            (90_000, "1m 30s"),
            (3_852_500, "1h 4m 12s"),
        ] {
            assert_eq!(measured(Duration::from_millis(ms)), text);
        }
        assert_eq!(measured(Duration::from_micros(999)), "0s");
    }

    #[test]
    fn a_written_duration_is_exact() {
        for (ms, text) in [(500, "500ms"), (1_500, "1s 500ms"), (10_999, "10s 999ms"), (300_000, "5m")] {
            assert_eq!(written(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_page_shows_a_duration_in_its_larger_units() {
        // The seconds, and how they are rounded, whole, coarse, and about right.
        for (seconds, [is_rounded, is_whole, is_coarse, is_about]) in [
            (0.0, ["0 s"; 4]),
            (-3.0, ["0 s"; 4]),
            (0.000_4, ["0.4 ms", "0 s", "0 s", "0.4 ms"]),
            (0.08, ["0.08 s", "0 s", "0 s", "0.08 s"]),
            (1.44, ["1.4 s", "1 s", "1 s", "1.4 s"]),
            (12.9, ["12 s"; 4]),
            (302.0, ["5 min 2 s", "5 min 2 s", "5 min", "5 min"]),
            (300.0, ["5 min"; 4]),
            (11_040.0, ["3 h 4 min", "3 h 4 min", "3 h", "3.1 h"]),
            (176_400.0, ["2 d 1 h", "2 d 1 h", "2 d", "2.0 d"]),
            (86_430.0, ["1 d", "1 d", "1 d", "1.0 d"]),
        ] {
            let shown = [rounded, whole, coarse, about].map(|form| form(seconds).replace('\u{a0}', " "));
            assert_eq!(shown, [is_rounded, is_whole, is_coarse, is_about], "{seconds}");
        }
        let extremes = [rounded(f64::NAN), rounded(f64::MAX)].map(|shown| shown.replace('\u{a0}', " "));
        assert_eq!(extremes, ["0 s", "11574074 d 1 h"]);
    }
}
