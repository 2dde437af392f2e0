//! Steps: parts of a job that an attempt after a failed one does not repeat.

#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
