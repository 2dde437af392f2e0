//! Jobs that run at fixed times.

#[cfg(feature = "worker")]
pub(crate) mod api;
#[cfg(feature = "worker")]
pub(crate) mod recover;
pub(crate) mod store;

#[cfg(feature = "worker")]
pub use api::{PauseOutcome, Schedule, ScheduleError, ScheduleOutcome};

pub use crate::job::{MissedTicks, Overlap};
