//! Lanes: for what a held job waits, and settings of lanes, in words. Pure.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use tenure::{
    Status, StoreError, Tenure,
    groups::{Signalled, WaitsFor},
    rows::{HeldFor, JobRow},
};

/// How a place writes a time that passes, in seconds.
type Spans = fn(f64) -> String;

/// The units of a rate: the word, and its seconds.
pub(crate) const UNITS: [(&str, f64); 4] = [("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)];

/// For what a held job waits: the facts, and a sentence about them.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    #[serde(flatten)]
    of: Option<HeldFor>,
    /// For what else it waits: then no lane releases it.
    waits: Vec<WaitsFor>,
    pub(crate) says: String,
}

impl Held {
    /// The events for which it waits.
    pub(crate) fn events(&self) -> impl Iterator<Item = &str> {
        self.waits.iter().filter_map(|waits| match waits {
            WaitsFor::Event { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// Reads for what a job waits; `None`: it is not held, or not any more.
    pub(crate) async fn read(
        tenure: &Tenure,
        job: &JobRow,
        now: DateTime<Utc>,
        spans: Spans,
    ) -> Result<Option<Self>, StoreError> {
        if job.status != Status::Queued || !job.is_held && job.scheduled_at <= now {
            return Ok(None);
        }
        let waits: Vec<_> = tenure.waits_for(&[job.id]).await?.into_iter().map(|(_, waits)| waits).collect();
        if !waits.is_empty() {
            let says = waits.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            return Ok(Some(Self { says, waits, of: None }));
        }
        if !job.is_held {
            return Ok(None);
        }
        let held = tenure.held_for(&[job.id]).await?.into_iter().next();
        Ok(held.map(|of| Self { says: says(&of, now, spans), of: Some(of), waits }))
    }
}

/// What a signal did, in words that follow the job's name, and whether the job has the event.
pub(crate) fn told(answer: Signalled, event: &str) -> (bool, String) {
    match answer {
        Signalled::Delivered => (true, format!("has the event {event:?}")),
        Signalled::Known => (true, format!("had an event {event:?} already; that one counts")),
        Signalled::Late => (false, format!("has stopped waiting for the event {event:?}")),
        Signalled::NameTaken => (false, format!("has a step or an effect of the name {event:?}")),
        Signalled::Finished => (false, "has ended".into()),
        Signalled::NotFound => (false, "does not exist".into()),
        other => (false, format!("has an answer that this version cannot name: {other:?}")),
    }
}

/// Says for what a held job waits: `lane org-7 runs 2 of 2`.
fn says(of: &HeldFor, now: DateTime<Utc>, spans: Spans) -> String {
    let lane = named(&of.lane);
    let before = match of.before {
        0 => String::new(),
        1 => ", and 1 job of it comes before this one".into(),
        n => format!(", and {n} jobs of it come before this one"),
    };
    let lacks = |tokens: Option<f64>| tokens.is_some_and(|tokens| tokens < 1.0);
    match of.most {
        _ if of.is_later => format!("due in {}", spans(seconds_to(of.due_at, now))),
        _ if of.paused => "its queue is paused".into(),
        _ if of.ordered && (of.before > 0 || of.slots > 0) => {
            let first = match of.before {
                0 => "one of it runs, or is still being retried".into(),
                1 => "1 comes before it, or one of it is still being retried".into(),
                n => format!("{n} come before it, or one of it is still being retried"),
            };
            format!("{lane} is ordered; {first}")
        }
        Some(most) if of.slots >= most.into() => format!("{lane} runs {} of {most}{before}", of.slots),
        _ if lacks(of.tokens) => {
            format!("{lane} waits for a token of its rate, {}{before}", rate(of.rate.unwrap_or_default()))
        }
        _ if lacks(of.queue_tokens) => {
            let rate = rate(of.queue_rate.unwrap_or_default());
            format!("{lane} waits for a token of the queue's rate, {rate}{before}")
        }
        _ if of.before == 1 => format!("1 job of {lane} comes before it"),
        _ if of.before > 1 => format!("{} jobs of {lane} come before it", of.before),
        _ if of.turns => "waits for its turn among the lanes of the queue".into(),
        _ => format!("{lane} is about to release it"),
    }
}

/// The seconds from now to a time to come.
#[expect(clippy::cast_precision_loss, reason = "a delay is shorter than 2^52 ms")]
fn seconds_to(at: DateTime<Utc>, now: DateTime<Utc>) -> f64 {
    ((at - now).num_milliseconds().max(0) as f64 / 1_000.0).ceil()
}

/// A lane, in the middle of a sentence.
fn named(lane: &str) -> String {
    if lane.is_empty() { "the lane without a key".into() } else { format!("lane {lane}") }
}

/// A lane alone.
pub(crate) fn key(lane: &str) -> &str {
    if lane.is_empty() { "(no key)" } else { lane }
}

/// A rate: how many jobs, and in what time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u32, pub(crate) Duration);

/// Reads a rate such as `10/s`, which the library checks.
pub(crate) fn rate_of(text: &str) -> Result<Rate, String> {
    let wrong = || "it must be a rate such as 10/s, 100/min, 1000/h or 5000/d".to_owned();
    let (jobs, unit) = text.split_once('/').ok_or_else(wrong)?;
    let (_, seconds) = UNITS.iter().find(|(word, _)| *word == unit).ok_or_else(wrong)?;
    jobs.parse().map(|jobs| Rate(jobs, Duration::from_secs_f64(*seconds))).map_err(|_| wrong())
}

/// Reads a share such as `10%`, which the library checks.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number.map(|percent: f64| percent / 100.0).ok_or_else(|| "it must be a percentage such as 10%".into())
}

/// A rate of tokens a second, in the unit in which it is a whole number: `10/s`, `100/h`.
pub(crate) fn rate(a_second: f64) -> String {
    let in_units = UNITS.map(|(word, seconds)| (word, a_second * seconds));
    let is_whole = |n: f64| n >= 0.5 && (n - n.round()).abs() < 1e-6 * n;
    if let Some((word, n)) = in_units.iter().find(|(_, n)| is_whole(*n)) {
        return format!("{n:.0}/{word}");
    }
    let (word, n) = in_units.into_iter().find(|(_, n)| *n >= 1.0).unwrap_or(in_units[3]);
    format!("{n:.2}/{word}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use tenure::internals::examples;

    #[test]
    fn a_held_job_says_for_what_it_waits() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let base = || examples::held_for(now);
        let cases: Vec<(HeldFor, &str)> = vec![
            (base(), "lane org-7 is about to release it"),
            (with(base(), |of| (of.most, of.slots) = (Some(2), 2)), "lane org-7 runs 2 of 2"),
            (
                with(base(), |of| (of.most, of.slots, of.before) = (Some(2), 2, 5)),
                "lane org-7 runs 2 of 2, and 5 jobs of it come before this one",
            ),
            (
                with(base(), |of| (of.rate, of.tokens) = (Some(10.0), Some(0.4))),
                "lane org-7 waits for a token of its rate, 10/s",
            ),
            (
                with(base(), |of| {
                    (of.rate, of.tokens) = (Some(10.0), Some(1.0));
                    (of.queue_rate, of.queue_tokens) = (Some(100.0 / 3_600.0), Some(0.0));
                }),
                "lane org-7 waits for a token of the queue's rate, 100/h",
            ),
            (
                with(base(), |of| {
                    of.is_later = true;
                    of.due_at = now + chrono::TimeDelta::seconds(180);
                }),
                "due in 180 s",
            ),
            (with(base(), |of| of.before = 1), "1 job of lane org-7 comes before it"),
            (with(base(), |of| of.before = 7), "7 jobs of lane org-7 come before it"),
            (
                with(base(), |of| (of.before, of.lane) = (7, String::new())),
                "7 jobs of the lane without a key come before it",
            ),
            (with(base(), |of| of.paused = true), "its queue is paused"),
            (with(base(), |of| of.turns = true), "waits for its turn among the lanes of the queue"),
            (
                with(base(), |of| (of.ordered, of.most, of.slots, of.before) = (true, Some(1), 0, 3)),
                "lane org-7 is ordered; 3 come before it, or one of it is still being retried",
            ),
        ];
        for (of, said) in cases {
            assert_eq!(says(&of, now, |s| format!("{s} s")), said);
        }
    }

    fn with(mut of: HeldFor, change: impl FnOnce(&mut HeldFor)) -> HeldFor {
        change(&mut of);
        of
    }

    #[test]
    fn a_rate_has_the_unit_in_which_it_is_whole() {
        for (a_second, said) in [
            (10.0, "10/s"),
            (1.5, "90/min"),
            (100.0 / 3_600.0, "100/h"),
            (7.0 / 86_400.0, "7/d"),
            (1.0 / 7.0, "8.57/min"),
        ] {
            assert_eq!(rate(a_second), said);
        }
    }
}
