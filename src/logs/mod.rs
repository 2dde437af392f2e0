//! Logs: what the last attempts of a job have printed, if its worker keeps that.

#[cfg(feature = "worker")]
pub(crate) mod observe;
#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;
