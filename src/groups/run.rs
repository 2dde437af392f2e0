//! Waits: what came before a job, and events from outside.
//!
//! ```text
//! event("approved") ── has it come? ── yes ──► its payload
//!                             └── no ──► noted ──► Suspended, which ends the attempt uncharged; a signal wakes the job
//! ```
//!
//! Not here: the jobs for which a job waits (`groups::api`).
//!
//! Invariants, each held by the test of that name:
//!
//! - `an_event_that_comes_before_its_wait_is_there`
//! - `a_signal_between_the_wait_and_its_settle_is_not_lost`

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::store::{EndBefore, EventSeen, StepStates};
use crate::{
    codec::job::{is_sealed, misfit},
    job::{JobError, JobId, check_key},
    run::context::{ContextError, JobContext, WITHOUT_END},
    steps::run::{AGAIN, taken},
};

/// The most ends of one statement.
const ENDS_AT_ONCE: i64 = 2_000;
/// How many ends the first statement reads: their outputs may be large.
const ENDS_AT_FIRST: i64 = 125;
/// A statement that reads more bytes of outputs is followed by a smaller one.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;

impl<S> JobContext<S> {
    /// Returns the outputs of the jobs that this one follows in its [group](crate::Tenure::group), in the order in
    /// which they were added. One that left no output has `null`, which is a `()` or a `None`; one of
    /// [`JobContext::failed_before`] is left out.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// A permanent [`JobError`] if an output does not fit the type; a [`JobError`] with [`ContextError::Store`] inside
    /// if Postgres does not answer.
    pub async fn outputs<T: DeserializeOwned>(&self) -> Result<Vec<T>, JobError> {
        self.outputs_of(None).await
    }

    /// Returns the jobs before this one that have failed or were cancelled, for a follower that
    /// [runs](crate::groups::OnFailure::Run) nevertheless.
    ///
    /// The first call of this or of [`JobContext::outputs`] decides for the whole attempt: a job that has not completed
    /// by then counts as failed, even if it is redriven and completes meanwhile. So each job is in one of the two.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// A [`JobError`] with [`ContextError::Store`] inside if Postgres does not answer.
    pub async fn failed_before(&self) -> Result<Vec<JobId>, JobError> {
        if self.job.failed_before.get().is_none() {
            self.ends_before(None).await?;
        }
        Ok(self.job.failed_before.get().into_iter().flat_map(BTreeMap::values).copied().collect())
    }

    /// Returns the outputs of the jobs that this one follows, or of those of its step.
    pub(crate) async fn outputs_of<T: DeserializeOwned>(
        &self,
        step: Option<&str>,
    ) -> Result<Vec<T>, JobError> {
        let ends = self.ends_before(step).await?;
        let completed = ends.into_iter().filter(|end| end.is_completed);
        let output = |end: EndBefore| {
            let output = end.output.unwrap_or_else(|| "null".to_owned());
            let is_sealed = is_sealed(&output);
            let output = self.open_output(&format!("the output of job {}", end.id), output)?;
            serde_json::from_str(&output).map_err(|error| {
                let error = misfit(&error, is_sealed);
                JobError::permanent(format!("the output of job {} does not fit its type: {error}", end.id))
            })
        };
        completed.map(output).collect()
    }

    async fn ends_before(&self, step: Option<&str>) -> Result<Vec<EndBefore>, JobError> {
        let mut all: Vec<EndBefore> = Vec::new();
        let (mut most, mut has_read_again) = (ENDS_AT_FIRST, false);
        loop {
            let after = all.last().map_or(0, |end| end.n);
            match self.store.outputs(self.id(), step, after, most).await {
                Ok(some) => {
                    let is_last = i64::try_from(some.len()).is_ok_and(|n| n < most);
                    let bytes: usize =
                        some.iter().filter_map(|end| end.output.as_ref().map(String::len)).sum();
                    all.extend(some);
                    if is_last {
                        if step.is_none() {
                            let failed = all.iter().filter(|end| !end.is_completed);
                            let decided = self
                                .job
                                .failed_before
                                .get_or_init(|| failed.map(|end| (end.n, end.id)).collect());
                            let differs =
                                |end: &EndBefore| !end.is_completed && !decided.contains_key(&end.n);
                            if !has_read_again && all.iter().any(differs) {
                                // Another call of this attempt has decided meanwhile, and had seen the job completed.
                                // What differs then has joined the group since.
                                has_read_again = true;
                                all.clear();
                                continue;
                            }
                            for end in &mut all {
                                end.is_completed &= !decided.contains_key(&end.n);
                            }
                        }
                        return Ok(all);
                    }
                    most = if bytes < BYTES_AT_ONCE { most * 4 } else { most / 2 };
                }
                Err(error) => {
                    most /= 4;
                    self.wait_for(error).await?;
                }
            }
            most = most.clamp(1, ENDS_AT_ONCE);
        }
    }

    /// Returns how the jobs of one of this job's steps have ended.
    pub(crate) async fn step_states(&self, step: &str) -> Result<StepStates, JobError> {
        loop {
            match self.store.step_states(self.id(), step).await {
                Ok(states) => return Ok(states),
                Err(error) => self.wait_for(error).await?,
            }
        }
    }

    /// Waits for an event that a program or a person [signals](crate::Tenure::signal) to this job, and returns its
    /// payload. If it has not come, this returns the error [`ContextError::Suspended`], which the handler passes on:
    /// the job then waits without a slot, a message or an attempt, through deploys, until the event runs it again, from
    /// its beginning. Put what comes before into [steps](JobContext::step).
    ///
    /// An event that comes before its wait is kept. Of several of one name the first counts. `name` follows the rules
    /// of [`JobContext::step`].
    ///
    /// ```no_run
    /// # use serde::Deserialize;
    /// # use tenure::{JobContext, JobError};
    /// # #[derive(Deserialize)] struct Approval { by: String }
    /// # async fn f(ctx: JobContext) -> Result<(), JobError> {
    /// let approval: Approval = ctx.event("approved").await?;
    /// println!("approved by {}", approval.by);
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ContextError::Suspended`] while the event has not come; a permanent [`JobError`] if the name is not valid or
    /// is that of another effect, or if the payload does not fit the type; otherwise those of [`JobContext::step`].
    pub async fn event<T: DeserializeOwned>(&self, name: &str) -> Result<T, JobError> {
        match self.event_of(name, None).await? {
            Some(payload) => fits(name, &payload),
            None => Err(JobError::permanent(format!(
                "an earlier attempt has stopped waiting for event {name:?}: wait for it with `event_within`"
            ))),
        }
    }

    /// [`JobContext::event`], at most for `patience` from the first call on, by the clock of Postgres. `None`: the
    /// event has not come by then. From then on it counts as not come, so that each later attempt goes the same way.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`JobContext::event`].
    pub async fn event_within<T: DeserializeOwned>(
        &self,
        name: &str,
        patience: Duration,
    ) -> Result<Option<T>, JobError> {
        let payload = self.event_of(name, Some(patience.min(crate::run::settle::DELAY_MAX))).await?;
        payload.map(|payload| fits(name, &payload)).transpose()
    }

    /// Returns the payload of an event as JSON text; `None`: the job has stopped waiting for it.
    pub(crate) async fn event_of(
        &self,
        name: &str,
        patience: Option<Duration>,
    ) -> Result<Option<String>, JobError> {
        check_key(name)
            .map_err(|rule| JobError::permanent(format!("the name of an event {rule}: {name:?}")))?;
        loop {
            self.check_owned("event").await?;
            // It would change the row after the snapshot of a transaction of the handler.
            let held_until = self.job.pulse().held_until;
            if let Some(held) = held_until.and_then(|until| until.checked_duration_since(Instant::now())) {
                sleep(held.min(AGAIN)).await;
                continue;
            }
            self.job.has_effects.store(true, std::sync::atomic::Ordering::Release);
            let sent_at = Instant::now();
            let seen = match self.store.await_event(&self.job.key, name, patience).await {
                Ok(seen) => seen,
                Err(error) => {
                    self.wait_for(error).await?;
                    continue;
                }
            };
            if seen != EventSeen::Lost {
                self.job.written(sent_at);
            }
            return match seen {
                EventSeen::Came(payload) => Ok(Some(payload)),
                EventSeen::Late => Ok(None),
                EventSeen::Waits(left) => Err(suspended(name, left)),
                EventSeen::NameTaken => Err(taken(name)),
                EventSeen::Lost => Err(self.refused("event").await.into()),
            };
        }
    }
}

/// The error that ends an attempt that waits.
pub(crate) fn suspended(awaits: &str, left: Option<Duration>) -> JobError {
    let awaits = Some(awaits.to_owned());
    ContextError::Suspended { left: left.unwrap_or(WITHOUT_END), since: Instant::now(), awaits }.into()
}

fn fits<T: DeserializeOwned>(name: &str, payload: &str) -> Result<T, JobError> {
    serde_json::from_str(payload).map_err(|error| {
        JobError::permanent(format!("the payload of event {name:?} does not fit its type: {error}"))
    })
}
