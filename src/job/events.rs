//! Events: what workers publish of the jobs of a queue, for any program that subscribes.

use std::{fmt, str::FromStr};

use serde::Serialize;

/// What workers publish of a queue's jobs on plain NATS subjects. See
/// [`Tenure::set_events`](crate::Tenure::set_events).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueEvents {
    /// Nothing: the default.
    #[default]
    Nothing,
    /// A message for each job that has ended, on `tenure.<prefix>.end.<queue>.<kind>`.
    Ends,
    /// Also a message for each progress write, on `tenure.<prefix>.progress.<queue>.<kind>`: at most one a second and
    /// job.
    Progress,
}

impl QueueEvents {
    const ALL: [(Self, &str); 3] =
        [(Self::Nothing, "nothing"), (Self::Ends, "ends"), (Self::Progress, "progress")];

    /// The word of the setting.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for QueueEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no [`QueueEvents`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} are no events; write nothing, ends or progress")]
pub struct UnknownEvents(String);

impl FromStr for QueueEvents {
    type Err = UnknownEvents;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().find(|(_, word)| *word == text);
        known.map(|(events, _)| *events).ok_or_else(|| UnknownEvents(text.into()))
    }
}
