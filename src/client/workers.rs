//! Workers: draining one from outside.
//!
//! A drain is a request over NATS that the worker answers, so that it is never lost unnoticed: without an answer, the
//! caller gets an error that names the process.

use serde::Serialize;

use crate::{
    client::Tenure,
    nats::{AskedToDrain, Drains},
    store::{StoreError, WorkerRow},
};

/// The most workers that an error lists.
const LISTED_MAX: usize = 10;

/// The result of [`Tenure::drain_worker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DrainOutcome {
    /// Whether the worker was stopping before this call.
    pub was_draining: bool,
    /// How many jobs it runs. They may go on for its `shutdown_grace`.
    pub running: u64,
}

/// Why a worker was not drained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// No worker has this id: it was mistyped, or the worker has stopped.
    #[error("no worker has the ID {worker:?}; {}", listed(known))]
    NotFound {
        /// The given id.
        worker: String,
        /// The ids of all workers.
        known: Vec<String>,
    },
    /// The request did not go out.
    #[error(
        "worker {worker} was not asked, because this program has no connection to NATS ({why}); {}",
        instead(at)
    )]
    NotAsked {
        /// The worker's id.
        worker: String,
        /// Why there is no connection.
        why: String,
        /// The worker's process.
        at: Process,
    },
    /// NATS denies this program the request.
    #[error(
        "worker {worker} was not asked: NATS denies this program's user the right to publish to {subject}; use the \
         user of a worker or an admin in nats/server.conf; {}",
        instead(at)
    )]
    Denied {
        /// The worker's id.
        worker: String,
        /// The worker's subject.
        subject: String,
        /// The worker's process.
        at: Process,
    },
    /// The worker does not listen on NATS: it is dead, cut off from NATS, or may not subscribe there.
    #[error(
        "worker {worker} does not listen on NATS: it is dead, or cut off from NATS; `tenure workers list` shows its \
         state; {}",
        instead(at)
    )]
    NotListening {
        /// The worker's id.
        worker: String,
        /// The worker's process.
        at: Process,
    },
    /// The worker did not answer in time. If it is frozen, it stops once it runs again.
    #[error("worker {worker} did not answer, and may stop later: it is frozen or very busy; {}", instead(at))]
    NoAnswer {
        /// The worker's id.
        worker: String,
        /// The worker's process.
        at: Process,
    },
    /// The worker is of a release that cannot be drained.
    #[error("worker {worker} goes on: its release, {version}, cannot be drained; {}", instead(at))]
    TooOld {
        /// The worker's id.
        worker: String,
        /// Its version of tenure.
        version: String,
        /// The worker's process.
        at: Process,
    },
    /// Postgres did not say where the worker is. Try again: the call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where a worker's process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// The host.
    pub hostname: String,
    /// The process id on that host.
    pub pid: i32,
}

fn instead(at: &Process) -> String {
    format!("to stop it without NATS, send SIGTERM to process {} on {}", at.pid, at.hostname)
}

fn listed(known: &[String]) -> String {
    if known.is_empty() {
        return "no worker is registered".into();
    }
    let shown = known.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match known.len().saturating_sub(LISTED_MAX) {
        0 => format!("the workers are {shown}"),
        more => format!("some workers are {shown}; `tenure workers list` shows {more} more"),
    }
}

impl Tenure {
    /// Drains a worker: it takes no new jobs, lets its running jobs finish as on SIGTERM
    /// ([`Timing::shutdown_grace`](crate::Timing::shutdown_grace)), and ends. Returns once the worker has agreed.
    /// The worker's `run_until`, or the wait for its handle, then returns `Ok`, and `tenure work` exits with 0; a
    /// platform may start the process again.
    ///
    /// Safe to repeat.
    ///
    /// # Errors
    ///
    /// No worker has this id, or the worker did not answer; the error names its process.
    pub async fn drain_worker(&self, worker: &str) -> Result<DrainOutcome, DrainError> {
        let workers = self.workers().await?;
        let Some(row) = workers.iter().find(|row| row.worker_id == worker) else {
            let known = workers.into_iter().map(|row| row.worker_id).collect();
            return Err(DrainError::NotFound { worker: worker.to_owned(), known });
        };
        let WorkerRow { hostname, pid, version, probe_subject, .. } = row.clone();
        let (worker, at) = (worker.to_owned(), Process { hostname, pid });
        let Some(subject) = probe_subject else { return Err(DrainError::NotListening { worker, at }) };
        self.store().note_act(self.actor(), "drain_worker", None, Some(&worker), None).await?;
        match self.nats().ask_to_drain(&subject).await {
            AskedToDrain::Drains(Drains { was_draining, running }) => {
                Ok(DrainOutcome { was_draining, running })
            }
            AskedToDrain::TooOld => Err(DrainError::TooOld { worker, version, at }),
            AskedToDrain::Denied => Err(DrainError::Denied { worker, subject, at }),
            AskedToDrain::NoAnswer => Err(DrainError::NoAnswer { worker, at }),
            AskedToDrain::Gone => Err(DrainError::NotListening { worker, at }),
            AskedToDrain::Away(why) => Err(DrainError::NotAsked { worker, why, at }),
        }
    }
}
