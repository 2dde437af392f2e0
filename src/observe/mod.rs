//! Observe: what people and monitors see of a process.

pub(crate) mod health;
#[cfg(feature = "http")]
pub(crate) mod http;
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;
pub(crate) mod panics;
pub(crate) mod rates;
pub(crate) mod repeats;
pub(crate) mod trace;
