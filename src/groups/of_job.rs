//! What a running job does with groups: adds members to its own, and waits for jobs that it starts.

use serde::de::DeserializeOwned;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    api::{EDGES_AT_ONCE, EDGES_MAX, JOBS_AT_ONCE},
    run::suspended,
    store::{add_edges, behind_own, join_edges},
};
use crate::{
    client::enqueue::{Accepts, JobRequest},
    enqueue::insert::EnqueueError,
    job::{JobError, JobId},
    run::context::JobContext,
    store::{NewJob, PublishedBy, Store},
};

/// The most jobs that one call starts.
const JOBS_MAX: usize = 100_000;

impl<S> JobContext<S> {
    /// Adds jobs to the [group](crate::Tenure::group) of this one: those that follow it wait for the new jobs, too.
    /// Returns their ids.
    ///
    /// Written under the fence, once for each `key` in the job's life, as by [`JobContext::once`]: a later attempt adds
    /// none again, and gets the same ids. `key` follows the rules of [`JobContext::step`].
    ///
    /// Cancel safe: dropped, the jobs were added, all of them, or none.
    ///
    /// # Errors
    ///
    /// A permanent [`JobError`] if the job is in no group, a new job is not valid, or the new jobs times those that
    /// follow this one are more than 500,000; those of [`JobContext::once`].
    pub async fn add_to_group<R: Into<JobRequest>>(
        &self,
        key: &str,
        jobs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<JobId>, JobError> {
        let Some(group) = self.job.claim.group else {
            return Err(JobError::permanent("this job is in no group: no job follows it"));
        };
        let (own, jobs) = (self.id(), self.children(group, jobs)?);
        self.once(key, async move |tx| {
            let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
            if let Some((first, others)) = ids.split_first() {
                // As many edges as jobs follow this one.
                let follow = usize::try_from(join_edges(tx, &[*first], own).await?).unwrap_or(usize::MAX);
                if follow == 0 {
                    return Err(JobError::permanent("no job of its group follows this job"));
                }
                if ids.len().saturating_mul(follow) > EDGES_MAX as usize {
                    return Err(JobError::permanent(format!(
                        "{} jobs before the {follow} that follow this one are more than {EDGES_MAX} waits: put one \
                         job between, which waits for the new ones",
                        ids.len()
                    )));
                }
                for some in others.chunks((EDGES_AT_ONCE / follow).clamp(1, JOBS_AT_ONCE)) {
                    join_edges(tx, some, own).await?;
                }
            }
            insert(tx, &jobs).await?;
            Ok(ids)
        })
        .await
    }

    /// Starts jobs, and returns their outputs once all of them have completed, in this order. Until then this returns
    /// the error [`ContextError::Suspended`](crate::handlers::ContextError::Suspended), which the handler passes on:
    /// the job waits without a slot, a message or an attempt, and runs again, from its beginning, when the last of the
    /// jobs has ended. Put what comes before into [steps](JobContext::step).
    ///
    /// The jobs are enqueued under the fence, once for each `name` in the job's life, as by [`JobContext::once`]: a
    /// later attempt enqueues none again, also if it passes other jobs. They run as any jobs do; cancelling this job
    /// does not cancel them, [`Tenure::cancel_group`](crate::Tenure::cancel_group) does. `name` follows the rules of
    /// [`JobContext::step`].
    ///
    /// ```no_run
    /// # use serde_json::json;
    /// # use tenure::{JobContext, JobError, JobRequest};
    /// # async fn f(ctx: JobContext) -> Result<f64, JobError> {
    /// let parts = (0..8).map(|part| JobRequest::new("score", "score", json!({ "part": part })));
    /// let scores: Vec<f64> = ctx.all("scores", parts).await?;
    /// # Ok(scores.iter().sum()) }
    /// ```
    ///
    /// Cancel safe: dropped, the jobs were enqueued, all of them, or none.
    ///
    /// # Errors
    ///
    /// - [`ContextError::Suspended`](crate::handlers::ContextError::Suspended) until all of the jobs have ended.
    /// - A permanent [`JobError`] if one of them has failed or was cancelled. When you have redriven it, redrive this
    ///   job, too: it then goes on.
    /// - A permanent [`JobError`] if a job is not valid or has a unique key, if it is in the ordered lane of this job,
    ///   if there are more than 100,000, or if an output does not fit the type; those of [`JobContext::once`].
    pub async fn all<T: DeserializeOwned, R: Into<JobRequest>>(
        &self,
        name: &str,
        jobs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<T>, JobError> {
        self.all_end(name, jobs).await?;
        self.outputs_of(Some(name)).await
    }

    /// Starts jobs, and returns once all of them have completed: [`JobContext::all`] without their outputs.
    pub(crate) async fn all_end<R: Into<JobRequest>>(
        &self,
        name: &str,
        jobs: impl IntoIterator<Item = R>,
    ) -> Result<(), JobError> {
        let own = self.id();
        let group = self.job.claim.group.unwrap_or(own.0);
        let (jobs, step, queue) =
            (self.children(group, jobs)?, name.to_owned(), self.job.claim.queue.clone());
        let count: u64 = self
            .once(name, async move |tx| {
                let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
                for some in ids.chunks(JOBS_AT_ONCE) {
                    add_edges(tx, group, some, own, &step).await?;
                }
                insert(tx, &jobs).await?;
                if jobs.iter().any(|job| job.queue == queue)
                    && let Some((job, queue, lane)) = behind_own(tx, &ids, own).await?
                {
                    let why = "is in the ordered lane of this job, which waits for it: neither would go on";
                    return Err(JobError::permanent(format!(
                        "job {job} of step {step:?} {why}; give it another lane than {lane:?}, or another queue than \
                         {queue:?}"
                    )));
                }
                Ok(ids.len() as u64)
            })
            .await?;
        if count == 0 {
            return Ok(());
        }
        let states = self.step_states(name).await?;
        if states.open > 0 {
            return Err(suspended(name, None));
        }
        if let Some(first) = states.first_lacking {
            return Err(JobError::permanent(format!(
                "{} of {} jobs of step {name:?} did not complete, the first of them job {first}: redrive them, and \
                 then this job",
                states.lacking, states.jobs
            )));
        }
        Ok(())
    }

    fn children<R: Into<JobRequest>>(
        &self,
        group: Uuid,
        jobs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<NewJob>, JobError> {
        let child = |job: R| {
            let job = job.into();
            if let Some(key) = job.own_key() {
                let expected = "left out: a job enqueues each of its own jobs once";
                return Err(EnqueueError::Option { what: "unique_key", value: format!("{key:?}"), expected });
            }
            let accepts = Accepts { bytes_max: self.payload_bytes_max, codecs: &self.codecs };
            let job = job.in_group(accepts, Some(group), false)?;
            // This process does not hear of the commit.
            Ok(NewJob { published_by: PublishedBy::Relay, ..job })
        };
        let jobs: Vec<_> =
            jobs.into_iter().map(child).collect::<Result<_, _>>().map_err(JobError::permanent)?;
        if jobs.len() > JOBS_MAX {
            return Err(JobError::permanent(format!(
                "{} jobs, but at most {JOBS_MAX} in one call",
                jobs.len()
            )));
        }
        Ok(jobs)
    }
}

async fn insert(tx: &mut PgConnection, jobs: &[NewJob]) -> Result<(), JobError> {
    for some in jobs.chunks(JOBS_AT_ONCE) {
        Store::enqueue_in(tx, some).await?;
    }
    Ok(())
}
