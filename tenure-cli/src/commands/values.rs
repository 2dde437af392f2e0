//! Values: how the command line reads its arguments. Each error names what is accepted, with an example.

use std::{net::SocketAddr, time::Duration};

use chrono::{DateTime, Utc};
use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

pub(super) use crate::lanes::{Rate, percent, rate_of as rate};
use tenure::{
    Status,
    internals::Category,
    names::{NameError, check_tag},
    rows::JobFilter,
    schedules::{MissedTicks, Overlap},
};

/// Which jobs to list: a status, or one of the states of a queued job that waits for something else than a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum StatusWord {
    /// Waiting for a worker, for its time or for its lane: due, scheduled, retrying or held.
    Queued,
    /// Queued for a later time, before its first attempt.
    Scheduled,
    /// Queued for a later time, after an attempt that failed.
    Retrying,
    /// Queued, and held by its lane: it waits for a slot, a token, its turn or its time there.
    Held,
    /// Running on a worker.
    Processing,
    /// Done.
    Completed,
    /// In the dead letters.
    Failed,
    /// Ended without a result.
    Cancelled,
}

impl StatusWord {
    pub(super) fn choose(self, filter: JobFilter) -> JobFilter {
        match self {
            Self::Queued => filter.status(Status::Queued),
            Self::Scheduled => filter.scheduled(),
            Self::Retrying => filter.retrying(),
            Self::Held => filter.held(),
            Self::Processing => filter.status(Status::Processing),
            Self::Completed => filter.status(Status::Completed),
            Self::Failed => filter.status(Status::Failed),
            Self::Cancelled => filter.status(Status::Cancelled),
        }
    }
}

/// What to do about ticks that passed while no worker ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Missed {
    /// Enqueue no job for them.
    Skip,
    /// Enqueue one job, for the latest of them.
    Once,
    /// Enqueue a job for each of them.
    All,
}

impl From<Missed> for MissedTicks {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Skip => Self::Skip,
            Missed::Once => Self::Once,
            Missed::All => Self::All,
        }
    }
}

/// What a tick does while the job of the last one has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Overlaps {
    /// Enqueue the job: both may run at once.
    Allow,
    /// Enqueue no job.
    Skip,
    /// Wait until that job has ended.
    Queue,
    /// Cancel that job, and enqueue the job.
    Cancel,
}

impl From<Overlaps> for Overlap {
    fn from(policy: Overlaps) -> Self {
        match policy {
            Overlaps::Allow => Self::Allow,
            Overlaps::Skip => Self::Skip,
            Overlaps::Queue => Self::Queue,
            Overlaps::Cancel => Self::Cancel,
        }
    }
}

/// The categories of dead letters.
pub(super) fn category() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(Category::ALL.iter().map(|category| category.as_str()))
}

/// The name of a group of dead letters.
pub(super) fn group(text: &str) -> Result<String, String> {
    let is_name = text.len() == 12 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let wrong = "it must be the name of a group, 12 of 0-9 a-f; `tenure dead groups` shows the groups";
    if is_name { Ok(text.to_owned()) } else { Err(wrong.into()) }
}

/// A tag of a job.
pub(super) fn tag(text: &str) -> Result<String, NameError> {
    check_tag(text).map(|()| text.to_owned())
}

/// A number within bounds. `u32::MAX` is no bound.
pub(super) fn number<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (MIN..=MAX).contains(number));
    number.ok_or_else(|| match MAX {
        u32::MAX => format!("it must be a number of at least {MIN}, such as {}", MIN.max(50)),
        _ => format!("it must be a number from {MIN} to {MAX}"),
    })
}

/// A new limit; `None` removes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitChange(pub(super) Option<u64>);

/// A limit, which the library checks against `MAX`.
pub(super) fn limit_change<const MAX: u64>(text: &str) -> Result<LimitChange, String> {
    if text == "none" {
        return Ok(LimitChange(None));
    }
    let wrong = || format!("it must be a number from 1 to {MAX}, or none, which removes the limit");
    text.parse().map(|jobs| LimitChange(Some(jobs))).map_err(|_| wrong())
}

/// A weight to set; `None` removes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WeightChange(pub(super) Option<f64>);

/// A weight, which the library checks.
pub(super) fn weight(text: &str) -> Result<WeightChange, String> {
    if text == "none" {
        return Ok(WeightChange(None));
    }
    let number = text.parse().ok().filter(|weight: &f64| weight.is_finite());
    number
        .map(|weight| WeightChange(Some(weight)))
        .ok_or_else(|| "it must be a number from 0.01 to 100, or none, which removes it".into())
}

/// Checks the name of a queue or a kind in a filter. `?` stands for a name that a refused message's subject lacked.
pub(super) fn check_unless_lacking(
    name: &str,
    check: impl Fn(&str) -> Result<(), NameError>,
) -> Result<(), NameError> {
    if name == "?" { Ok(()) } else { check(name) }
}

/// `failed > 30% of 50 in 5m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Failures {
    pub(super) share: f64,
    pub(super) of: u32,
    pub(super) within: Duration,
}

pub(super) fn failures(text: &str) -> Result<Failures, String> {
    let read = || {
        let words: Vec<_> = text.split_whitespace().collect();
        let ["failed", ">", share, "of", of, "in", within] = words[..] else { return None };
        Some(Failures { share: percent(share).ok()?, of: of.parse().ok()?, within: duration(within).ok()? })
    };
    read().ok_or_else(|| {
        "it must be a rule such as 'failed > 30% of 50 in 5m': more than 30 % of at least 50 attempts within 5 minutes"
            .to_owned()
    })
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "it must be a duration such as 500ms, 30s, 2h or 30d".to_owned())
}

pub(super) fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    text.parse().map_err(|_| {
        "it must be a time with its zone, such as 2030-01-31T12:00:00Z or 2030-01-31T13:00:00+01:00; \
         a duration from now, such as 2h, belongs to --delay"
            .to_owned()
    })
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "it must be an IP address and a port, such as 127.0.0.1:9090, 0.0.0.0:9090 or [::1]:9090".to_owned()
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_names_those_that_are_accepted() {
        assert_eq!(number::<1, 1_000>("1000"), Ok(1_000));
        for text in ["0", "1001", "-1", "many"] {
            assert_eq!(number::<1, 1_000>(text).unwrap_err(), "it must be a number from 1 to 1000", "{text}");
        }
        assert_eq!(
            number::<1, { u32::MAX }>("0").unwrap_err(),
            "it must be a number of at least 1, such as 50"
        );
        let at = moment("2030-01-31T13:00:00+01:00");
        assert_eq!(at, moment("2030-01-31T12:00:00Z"));
        assert!(at.is_ok() && moment("tomorrow").unwrap_err().contains("2030-01-31T12:00:00Z"));
        assert!(moment("2h").unwrap_err().contains("--delay"));
        assert!(address("9090").unwrap_err().contains("127.0.0.1:9090") && address("[::1]:80").is_ok());
        assert_eq!(group("0123456789ab").as_deref(), Ok("0123456789ab"));
        assert!(group("0123456789AB").unwrap_err().contains("tenure dead groups"));
        assert!(duration("soon").unwrap_err().contains("30s"));
        assert_eq!(rate("10/s"), Ok(Rate(10, Duration::from_secs(1))));
        assert_eq!(rate("0/h"), Ok(Rate(0, Duration::from_hours(1))), "the library refuses it");
        for text in ["10", "10/", "/s", "ten/s", "10/week", "-1/s", "1.5/s"] {
            assert!(rate(text).unwrap_err().contains("100/min"), "{text}");
        }
        assert_eq!((weight("2.5"), weight("none")), (Ok(WeightChange(Some(2.5))), Ok(WeightChange(None))));
        assert!(weight("NaN").is_err() && weight("heavy").is_err());
        assert!(limit_change::<9>("-1").unwrap_err().contains("from 1 to 9, or none"));
    }
}
