//! Observe: health, metrics, traces and logs of a process, for people and monitors.

pub(crate) mod health;
pub(crate) mod hooks;
#[cfg(feature = "http")]
pub mod http;
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;
pub(crate) mod panics;
pub(crate) mod rates;
pub(crate) mod repeats;
pub mod trace;
