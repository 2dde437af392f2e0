//! Span: a duration as people read it.

use std::time::Duration;

/// Formats a duration: `120ms`, `2s 990ms`, `1m 30s`, `1h 4m 12s`. From ten seconds on, without its milliseconds.
#[must_use]
pub fn span(duration: Duration) -> String {
    let shown = match duration.as_secs() {
        seconds @ 10.. => Duration::from_secs(seconds),
        seconds => Duration::new(seconds, duration.subsec_millis() * 1_000_000),
    };
    humantime::format_duration(shown).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_as_exact_as_it_is_short() {
        for (ms, text) in [
            (0, "0s"),
            (120, "120ms"),
            (2_990, "2s 990ms"),
            (9_999, "9s 999ms"),
            (10_999, "10s"),
            (90_000, "1m 30s"),
            (3_852_500, "1h 4m 12s"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
        assert_eq!(span(Duration::from_micros(999)), "0s");
    }
}
