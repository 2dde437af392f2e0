//! Worker: runs jobs, from its start to its end. One file a phase of its life.
//!
//! ```text
//! builder ──► compose ──► start ──► pull ──► attempt ──► shutdown      `life` runs them in this order
//!                         loops: alive · claims · control · figures · turns · recovery · relay
//! ```
//!
//! `attempt` takes a delivery to its end: deliver, run, settle, ack. Each job has a task, and its handler has threads
//! of its own. Each loop has a task until the last job has ended. A part holds what it needs, and knows only the parts
//! that it uses: `turns` (which of the fleet's common work this worker does), `topology`, `presence`, `queues`.

pub(crate) mod attempt;
pub(crate) mod builder;
mod compose;
pub mod counts;
mod error;
mod handle;
mod life;
pub(crate) mod loops;
#[cfg(not(feature = "gateway"))]
mod no_gateway;
pub(crate) mod port;
mod presence;
mod pull;
mod queues;
mod shutdown;
mod signal;
mod start;
mod topology;
pub(crate) mod turns;

#[cfg(feature = "gateway")]
use crate::gateway::worker as gateway;
#[cfg(not(feature = "gateway"))]
use no_gateway as gateway;

pub use self::{
    builder::{Recovery, Worker, WorkerBuilder},
    error::WorkerError,
    handle::WorkerHandle,
    signal::shutdown_signal,
};
