//! Error: why a worker did not start, or ended before it was asked to.

use std::{io, sync::Arc};

use super::queues::SLOTS_MAX;
use crate::{job::NameError, run::handlers::HandlerError, store::StoreError};

/// A worker did not start, or ended before it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The name of a queue is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A handler cannot be used.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// A queue has too few or too many slots.
    #[error("queue {queue:?} has {slots} slots, but must have between 1 and {SLOTS_MAX}")]
    Slots {
        /// The queue.
        queue: String,
        /// Its slots, as given.
        slots: u32,
    },
    /// Queues cannot share slots as given.
    #[error("{queues:?} cannot share {slots} slots: {reason}")]
    Shared {
        /// The names of the queues.
        queues: Vec<String>,
        /// The slots to share.
        slots: u32,
        /// The reason, and what to do.
        reason: &'static str,
    },
    /// The worker has no handler, or no queue.
    #[error("the worker has no {0}; give it at least one")]
    Nothing(&'static str),
    /// A migration has removed something that this program uses.
    #[error(
        "this program is too old: it knows version {knows} of the schema, but the database is at version {version}, \
         which requires a program that knows version {breaks_before}; deploy a newer release"
    )]
    TooOld {
        /// The version of the database's schema.
        version: i64,
        /// The oldest version that a program must know.
        breaks_before: i64,
        /// The version that this program knows.
        knows: i64,
    },
    /// Postgres refused a statement.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// For `stale_after`, abandoned handlers that block held every thread, so no job could run. The worker stopped in
    /// good order. Restart the process: it cannot end a blocked thread from inside.
    #[error(
        "all {threads} threads for handlers are held by handlers that block and were given up; \
         restart the process, and use tokio::task::spawn_blocking for what does not await"
    )]
    Blocked {
        /// The number of threads.
        threads: usize,
    },
    /// The pool given to [`TenureBuilder::handler_pool`](crate::TenureBuilder::handler_pool) cannot serve handlers.
    #[error("the given pool cannot serve handlers' transactions: {reason}")]
    HandlerPool {
        /// The reason, and what to do.
        reason: &'static str,
    },
    /// The worker cannot listen on the address of [`Config::listen`](crate::Config::listen).
    #[error("cannot listen on TENURE_LISTEN, {address}: {reason}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The system has no threads left for handlers or hooks.
    #[error("the threads for handlers and hooks could not be started: {0}")]
    Threads(Arc<io::Error>),
    /// The worker's task ended before the worker had stopped; other workers recover its jobs.
    #[error(
        "the worker ended without stopping: it was aborted, or its runtime was shut down; \
         other workers recover its jobs"
    )]
    Aborted,
    /// tenure itself panicked, which is a bug in tenure; other workers recover the jobs.
    #[error("the worker ended by a bug in tenure: {text}; please report it; other workers recover its jobs")]
    Panicked {
        /// The text of the panic.
        text: String,
    },
    /// The host's name cannot be read.
    #[error("the host's name cannot be read; set TENURE_HOSTNAME")]
    Hostname,
}
