//! Handle: starts what a builder describes, and holds what is running.

use std::{fmt, future::Future, panic::AssertUnwindSafe};

use futures::FutureExt;
use tokio::{sync::watch, task::AbortHandle};
use tokio_util::sync::CancellationToken;

use super::{builder::WorkerBuilder, error::WorkerError, life::Life};
use crate::observe::{health::Health, panics};

/// A worker that runs in the background. See [`WorkerBuilder::start`].
///
/// Dropping the handle asks the worker to stop, as [`WorkerHandle::stop`] does, and does not wait for it. A program
/// that ends meanwhile takes the worker with it, as a crash does: call [`WorkerHandle::wait`] before `main` returns.
#[must_use = "dropping the handle stops the worker"]
pub struct WorkerHandle {
    stop: CancellationToken,
    ended: watch::Receiver<Option<Result<(), WorkerError>>>,
    task: AbortHandle,
    health: Health,
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

impl WorkerHandle {
    /// Asks the worker to stop, and returns at once. The worker takes no new jobs; running jobs may finish within
    /// [`Timing::shutdown_grace`](crate::Timing::shutdown_grace). The worker then releases the rest: those jobs are
    /// queued again at once, and their attempts are not charged. A second call changes nothing.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the worker has ended, on request, by a drain or by an error. Any number of callers may wait, even
    /// long after the end; all get the same answer.
    ///
    /// Cancel safe: a wait that is dropped changes nothing.
    ///
    /// # Errors
    ///
    /// The error that ended the worker: see [`WorkerError`].
    pub async fn wait(&self) -> Result<(), WorkerError> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or(Ok(())),
            // The worker's task was dropped before it could answer.
            Err(_) => Err(WorkerError::Aborted),
        }
    }

    /// Whether the worker has ended.
    pub fn is_finished(&self) -> bool {
        self.ended.borrow().is_some() || self.task.is_finished()
    }

    /// The worker's health: [`WorkerBuilder::health`].
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Ends the worker at once, as a crash does: it writes nothing about its running jobs, and other workers recover
    /// them. For tests of recovery; [`WorkerHandle::wait`] then returns [`WorkerError::Aborted`].
    pub fn abort(&self) {
        self.task.abort();
    }
}

/// Answers with the error of a panic. A panic in the worker's own life is a bug; the caller must learn of it.
async fn ended_by(life: impl Future<Output = Result<(), WorkerError>>) -> Result<(), WorkerError> {
    AssertUnwindSafe(life).catch_unwind().await.unwrap_or_else(|panic| {
        panics::tell("worker", &*panic);
        Err(WorkerError::Panicked { text: panics::text(&*panic).into() })
    })
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Starts the worker in the background, on the runtime that calls this, and returns at once. The worker waits for
    /// servers that are away, and for the schema, if `tenure migrate` has not run yet; [`WorkerHandle::health`] shows
    /// whether it takes jobs.
    ///
    /// ```no_run
    /// # use tenure::{Tenure, WorkerBuilder, WorkerError};
    /// # async fn f(tenure: Tenure, worker: WorkerBuilder) -> Result<(), WorkerError> {
    /// let worker = worker.start()?;
    /// // … serve requests
    /// worker.stop();
    /// worker.wait().await?;
    /// tenure.close().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A setting or a handler that cannot be used. [`WorkerHandle::wait`] returns later errors.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn start(self) -> Result<WorkerHandle, WorkerError> {
        let health = self.health();
        let life = Life::of(self)?;
        let stop = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let answer = ended_by(Box::pin(life.run(stopped))).await;
            tell.send_replace(Some(answer));
        });
        Ok(WorkerHandle { stop, ended, task: task.abort_handle(), health })
    }

    /// Starts the worker as [`WorkerBuilder::start`] does, and runs jobs until `shutdown` completes, or an operator
    /// drains the worker ([`Tenure::drain_worker`](crate::Tenure::drain_worker)). Then stops the worker as
    /// [`WorkerHandle::stop`] does, and returns when it has ended.
    ///
    /// Dropping this future asks the worker to stop, and does not wait: the worker goes on in the background, and keeps
    /// the port of `TENURE_LISTEN`, until its jobs have ended or are released. A runtime that shuts down
    /// meanwhile ends the worker as a crash does.
    ///
    /// # Errors
    ///
    /// Those of [`WorkerBuilder::start`] and of [`WorkerHandle::wait`].
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let worker = self.start()?;
        tokio::select! {
            ended = worker.wait() => return ended,
            () = shutdown => worker.stop(),
        }
        worker.wait().await
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[tokio::test]
    async fn a_panic_in_the_workers_own_life_is_an_error_with_its_text() {
        let life = async { panic!("out of {}", "order") };
        let error = ended_by(life).await.unwrap_err();
        assert!(matches!(&error, WorkerError::Panicked { text } if text == "out of order"), "{error}");
        ended_by(async { Ok(()) }).await.unwrap();
    }
}
