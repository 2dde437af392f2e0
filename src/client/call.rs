//! Call: enqueues a job and waits for its output.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{
    Tenure,
    enqueue::JobRequest,
    jobs::{WaitError, output_of},
};
use crate::{enqueue::insert::EnqueueError, job::JobId};

/// A job to enqueue, whose output the caller waits for. See [`Tenure::call`].
#[derive(Debug)]
#[must_use = "nothing is enqueued until you await `within`"]
pub struct Call<'t> {
    tenure: &'t Tenure,
    request: JobRequest,
}

/// Why a [`Call`] has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The job was not enqueued, or perhaps it was: see [`Tenure::enqueue`].
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// The job has not completed in time, or it ended without an output.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl Tenure {
    /// Enqueues a job and waits for its output: a round trip through the queue, with all that a job has. If the caller
    /// ends, the job goes on.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Job, Tenure, jobs::CallError};
    /// # #[derive(Serialize, Deserialize)] struct Resize { image: String }
    /// # impl Job for Resize { const KIND: &'static str = "resize"; }
    /// # #[derive(Deserialize)] struct Thumb { url: String }
    /// # async fn f(tenure: Tenure, image: String) -> Result<(), CallError> {
    /// let thumb: Thumb = tenure.call(Resize { image }).within(Duration::from_secs(2)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// For options, pass a [`JobRequest`]: `JobRequest::from(job).unique_key("..")`. A call whose unique key is taken
    /// waits for the job that holds it; if that one has ended and left nothing, the error is [`WaitError::NotFound`].
    pub fn call(&self, job: impl Into<JobRequest>) -> Call<'_> {
        Call { tenure: self, request: job.into() }
    }
}

impl Call<'_> {
    /// Enqueues the job, and waits for its output, at most for `timeout` in all. A job without an output has `null`,
    /// which is a `()` or a `None`.
    ///
    /// Cancel safe: if the future is dropped, the job was enqueued or not, and goes on if it was.
    ///
    /// # Errors
    ///
    /// [`CallError::Enqueue`] as from [`Tenure::enqueue`]; [`CallError::Wait`] as from [`Tenure::wait_for`]. The error
    /// [`WaitError::TimedOut`] names the job, which goes on: wait again, or [cancel](Tenure::cancel) it.
    pub async fn within<T: DeserializeOwned>(self, timeout: Duration) -> Result<T, CallError> {
        let Self { tenure, request } = self;
        let id = JobId::generate();
        let mut job = id;
        let called = async {
            // The workers are asked before the job exists: it may end before this process could ask.
            let mut watching = tenure.watches().expect(id);
            let enqueued = tenure.enqueue(request.with_id(id)).await?;
            if enqueued.duplicate {
                job = enqueued.id;
                watching = tenure.watches().watch(enqueued.id);
            } else {
                watching.exists();
            }
            Ok::<_, CallError>(watching.ended().await?)
        };
        match tokio::time::timeout(timeout, called).await {
            Ok(ended) => Ok(output_of(&*ended?, tenure.codecs())?),
            Err(_) => Err(WaitError::TimedOut { job, timeout }.into()),
        }
    }
}
