//! Jobs that wait for other jobs, and events that jobs wait for: see [`Tenure::group`](crate::Tenure::group),
//! [`Tenure::graph`](crate::Tenure::graph) and [`Tenure::signal`](crate::Tenure::signal).

pub(crate) mod api;
pub(crate) mod doctor;
#[cfg(feature = "worker")]
pub(crate) mod of_job;
#[cfg(feature = "worker")]
pub(crate) mod recover;
#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;

pub use api::{EnqueuedGroup, Graph, Group, GroupView, Node, OnFailure, SignalError, Then};
pub use store::{GroupEdge, GroupJob, Signalled, WaitsFor};
