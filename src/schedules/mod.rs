//! Jobs that run at fixed times.

#[cfg(feature = "schedules")]
pub(crate) mod api;
#[cfg(feature = "schedules")]
pub(crate) mod job;
#[cfg(feature = "worker")]
pub(crate) mod recover;
pub(crate) mod store;

#[cfg(feature = "schedules")]
pub use api::{PauseOutcome, PutSchedule, Schedule, ScheduleError, ScheduleOutcome};

pub use crate::job::{MissedTicks, Overlap};
