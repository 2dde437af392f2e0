//! Limits, rates and turns by a key: see [`Tenure::put_lanes`](crate::Tenure::put_lanes).

pub(crate) mod api;
pub(crate) mod doctor;
#[cfg(feature = "worker")]
pub(crate) mod recover;
#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;

pub use api::{LaneOptions, Lanes, LanesError};
