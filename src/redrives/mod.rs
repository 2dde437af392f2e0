//! Redrives that stop by themselves: see [`Tenure::redrive_calmly`](crate::Tenure::redrive_calmly).

pub(crate) mod api;
#[cfg(feature = "worker")]
pub(crate) mod recover;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;

pub use api::{CalmRedrive, RedriveError};
