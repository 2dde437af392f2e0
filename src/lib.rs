//! Durable background jobs: *the queue delivers; the database owns.*
//!
//! Producers publish to NATS JetStream; a delivery is a hint that a job may be runnable. Who runs it is
//! decided by one conditional `UPDATE` in Postgres, under a fencing token that every later write must
//! name. Progress is the heartbeat: a job that is silent too long is taken back, by any worker, with no
//! leader, and whoever lost it can write nothing any more.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tenure::{Config, Job, JobContext, JobError, Outcome, Tenure, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Resize { image: String }
//!
//! impl Job for Resize {
//!     const KIND: &'static str = "resize";
//!     const QUEUE: &'static str = "images";
//! }
//!
//! async fn resize(job: Resize, ctx: JobContext) -> Result<Outcome, JobError> {
//!     for percent in 0..100 {
//!         // … some work; an error means: try again
//!         ctx.progress("resizing", percent as f32, &job.image).await?;
//!     }
//!     Outcome::done("800x600")
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tenure = Tenure::connect(&Config::from_env()?).await?;
//! tenure.migrate().await?;
//! tenure.enqueue(Resize { image: "cat.png".into() }).unique_key("cat").await?;
//! Worker::builder(&tenure).handle(resize).concurrency("images", 8).run_until(tenure::shutdown_signal()).await?;
//! # Ok(()) }
//! ```
//!
//! What is promised: a job is delivered at least once, owned by one worker at a time, *run* at least once,
//! and settled once. Effects written through [`JobContext::complete_in`] and [`JobContext::once`] happen
//! exactly once.

// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The rooms, in the order in which a job meets them; below each what it stands on.
mod client;
mod enqueue;
mod nats;
mod deliver;
mod run;
mod recover;
mod worker;

mod store;
mod batch;
mod observe;
mod config;
mod job;
mod fault;

#[cfg(feature = "cli")]
mod timeline;
#[cfg(feature = "cli")]
mod dashboard;
#[cfg(feature = "cli")]
mod serve;
#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "dev")]
pub mod dev;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(all(test, feature = "dev"))]
mod proof;

pub use client::{
    ConnectError, SetupError, Tenure,
    doctor::{CheckState, Checked, DoctorOptions},
    enqueue::{Enqueue, EnqueueMany, Enqueued, JobRequest},
    jobs::{Cancelled, CancelledMany, ManageError, Retried, WaitError},
    queues::{Limited, Paused, QueueLimits, QueueSettingsError},
    schedules::{Schedule, ScheduleError, Scheduled},
    verify::Verified,
};
pub use config::{Config, ConfigError, Retention, Timing, TimingError, TraceParent};
pub use enqueue::insert::EnqueueError;
pub use job::{
    Job, JobError, JobId, JobIdError, MissedTicks, NameError, Outcome, Status, backoff::Backoff, check_kind,
    check_queue, claim::FencingToken,
};
pub use nats::QueueError;
#[cfg(feature = "otel")]
pub use observe::otel;
pub use observe::{health::Health, metrics};
pub use run::{
    context::{ContextError, JobContext},
    handlers::{HandlerError, IntoOutcome, KindOptions, Retry},
    running::{CancelReason, OnCrash, OnWriteLoss},
};
pub use store::{
    DeadCount, DeadFilter, DeadLetter, ExecutionRow, Isolation, JobFilter, JobRow, MigrateError, QueueRow,
    RecoveryRow, ScheduleRow, StoreError, WorkerRow, WorkerState,
};
pub use worker::{Worker, WorkerBuilder, WorkerError, shutdown_signal};

#[doc(hidden)]
pub use store::STATEMENTS;

/// The README's Rust is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// And that of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/jobs.md")]
struct JobsGuide;

/// And those of the pages for operators.
#[cfg(doctest)]
#[doc = include_str!("../docs/operations.md")]
#[doc = include_str!("../docs/schedules.md")]
struct OperatorsPages;

/// And that of the page about traces.
#[cfg(all(doctest, feature = "otel"))]
#[doc = include_str!("../docs/traces.md")]
struct TracesGuide;

/// And that of the page about tests.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../docs/testing.md")]
struct TestingGuide;
