//! Durable background jobs: *the queue delivers; the database owns.*
//!
//! Producers publish to NATS JetStream; a delivery is a hint that a job may be runnable. One conditional
//! `UPDATE` in Postgres decides which worker runs it, and hands out a fencing token that every later write
//! must name. Progress is the heartbeat: any worker resets a job that stays silent too long, without a
//! leader, and Postgres then refuses every write of the former owner.
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
//! The guarantees: a job is delivered at least once, owned by one worker at a time, *run* at least once,
//! and settled once. Effects written through [`JobContext::complete_in`] and [`JobContext::once`] happen
//! exactly once.

// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// A feature guards the modules that need its crates, and what it adds to the API. The rest compiles in each build, also
// where nothing uses it: the lints of the build with all features, in `make check`, find what no build uses. The
// builds without `internals` lint the documentation of the API.
#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        clippy::struct_field_names,
        reason = "a feature that is off, or the program, uses it"
    )
)]
#![cfg_attr(
    feature = "internals",
    allow(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "the lints check the public API, without this feature"
    )
)]

// A plain job's way, in its order.
mod client;
mod enqueue;
mod nats;
#[cfg(feature = "worker")]
mod deliver;
#[cfg(feature = "worker")]
mod run;
#[cfg(feature = "worker")]
mod recover;
#[cfg(feature = "worker")]
mod worker;

// What it stands on.
mod store;
mod observe;
mod config;
mod job;
mod proof;

// Capabilities, a room each. In a room a file is named as the part of the way that uses it: `store`, `run`, `recover`,
// `worker`; `api` is what programs call, and `doctor` its checks.
pub mod lanes;
pub mod groups;
mod steps;
pub mod schedules;
#[cfg(feature = "worker")]
pub mod batches;
pub mod redrives;
mod quarantine;
mod tags;
mod logs;
pub mod codec;
pub mod audit;
mod watch;
#[cfg(feature = "gateway")]
mod gateway;
pub mod cells;
pub mod doctor;

#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
#[cfg(any(feature = "testing", test))]
pub mod dev;
#[cfg(feature = "testing")]
pub mod testing;

pub use client::{
    Tenure,
    connect::TenureBuilder,
    enqueue::{Enqueue, EnqueueMany, Enqueued, JobRequest},
};
pub use config::{Config, Timing};
pub use enqueue::insert::EnqueueError;
pub use job::{
    Job, JobError, JobId, Outcome, Status, backoff::Backoff, claim::FencingToken, options::OnExpiry,
};
#[cfg(feature = "worker")]
pub use logs::observe::JobLogLayer;
#[cfg(feature = "otel")]
pub use observe::otel;
pub use observe::{health::Health, metrics};
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub use proof::fuzz;
#[cfg(feature = "worker")]
pub use run::{
    context::JobContext,
    handlers::{KindOptions, Retry},
};
pub use store::StoreError;
#[cfg(feature = "worker")]
pub use worker::{Worker, WorkerBuilder, WorkerError, WorkerHandle, shutdown_signal};

/// The crates whose types tenure's API uses, in its versions.
pub use {async_nats, sqlx};

/// Options that a job's type says.
pub mod options {
    pub use crate::job::options::JobOptions;
}

/// The rules of the names of queues and kinds, and of IDs.
pub mod names {
    pub use crate::job::{JobIdError, NameError, check_kind, check_queue, check_tag};
}

/// Settings that few programs change, and what is wrong with one.
pub mod settings {
    pub use crate::config::{ConfigError, Retention, TimingError, TraceParent};
}

/// What hooks hear: see [`WorkerBuilder::on_attempt_end`] and [`TenureBuilder::on_enqueue`].
pub mod hooks {
    pub use crate::observe::hooks::{
        AttemptEnded, AttemptOutcome, Category, JobDied, JobEnqueued, JobLost, RecoveryPath,
    };
}

/// What a layer around handlers gets: see [`WorkerBuilder::layer`].
#[cfg(feature = "worker")]
pub mod layers {
    pub use crate::run::layers::{Call, Next};
}

/// How handlers answer, what a kind may choose, and why an attempt ends early.
pub mod handlers {
    #[cfg(feature = "worker")]
    pub use crate::run::{
        context::{ContextError, WITHOUT_END},
        handlers::{HandlerError, HandlerOutput, IntoOutcome},
        running::{CancelReason, OnCrash, OnWriteLoss},
    };
    pub use crate::store::Isolation;
}

/// Why connecting or setting up failed.
pub mod errors {
    pub use crate::{
        client::{SetupError, connect::ConnectError},
        nats::NatsError,
        store::MigrateError,
    };
}

/// What waiting for a job, cancelling it and retrying it answer.
pub mod jobs {
    pub use crate::client::{
        call::{Call, CallError},
        jobs::{ActionError, CancelCounts, CancelOutcome, RetryOutcome, RunAgainError, WaitError},
    };
    pub use crate::watch::{
        api::Watch,
        ends::{Cursor, CursorError, Ends, EndsError, EndsFilter},
    };
}

/// The limits of queues, and what changing them and pausing answer.
pub mod queues {
    pub use crate::{
        client::queues::{CurrentLimits, PauseOutcome, QueueLimits, QueueSettingsError},
        job::events::{QueueEvents, UnknownEvents},
    };
}

/// Kinds that are watched, and those in quarantine: see [`Tenure::put_quarantine`].
pub mod kinds {
    pub use crate::quarantine::api::{Quarantine, QuarantineError};
}

/// What draining a worker answers.
#[cfg(feature = "worker")]
pub mod workers {
    pub use crate::client::workers::{DrainError, DrainOutcome, Process};
}

/// The rows that [`Tenure`] reads, such as [`rows::JobRow`], and the filters that select them.
pub mod rows {
    pub use crate::{
        lanes::store::{HeldFor, LaneRow, LanesRow},
        logs::store::LogRow,
        quarantine::store::QuarantineRow,
        redrives::store::RedriveRow,
        schedules::store::ScheduleRow,
        steps::store::StepRow,
        store::{
            DeadCount, DeadFilter, DeadLetter, ExecutionRow, JobFilter, JobRow, QueueRow, RecoveryRow,
            WorkerRow, WorkerState,
        },
        watch::store::{JobEnd, JobUpdate},
    };
}

/// The documentation's tests compile the README's Rust.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// They compile the guide's Rust.
#[cfg(doctest)]
#[doc = include_str!("../docs/jobs.md")]
struct JobsGuide;

/// They compile the Rust of the page about cells.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/cells.md")]
struct CellsGuide;

/// They compile the Rust of the pages for operators.
#[cfg(doctest)]
#[doc = include_str!("../docs/operations.md")]
#[doc = include_str!("../docs/schedules.md")]
struct OperatorsPages;

/// They compile the Rust of the page about traces.
#[cfg(all(doctest, feature = "otel"))]
#[doc = include_str!("../docs/traces.md")]
struct TracesGuide;

/// They compile the Rust of the page about tests.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../docs/testing.md")]
struct TestingGuide;
