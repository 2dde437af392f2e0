//! Observe: health, metrics, traces and logs of a process, for people and monitors.

#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
pub(crate) mod health;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
pub(crate) mod hooks;
#[cfg(feature = "job-log")]
pub(crate) mod job_log;
#[cfg(feature = "http")]
pub mod http;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;
pub(crate) mod panics;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
pub(crate) mod rates;
pub(crate) mod repeats;
#[cfg_attr(not(feature = "worker"), allow(dead_code, reason = "parts of it are a worker's"))]
pub mod trace;
