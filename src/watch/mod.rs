//! Watch: tells the progress and the ends of jobs to those who ask.

pub(crate) mod api;
pub(crate) mod ends;
pub(crate) mod hinter;
pub(crate) mod nats;
#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
