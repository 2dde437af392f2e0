//! Steps: records a handler's work outside SQL, so that no later attempt repeats it, and lets a job sleep without a
//! slot.
//!
//! ```text
//! step("fetch") ── recorded by an earlier attempt? ── yes ──► its result
//!                                  └── no ──► the work ──► its result, recorded under the fence
//! sleep("cool") ── over? ── yes ──► go on
//!                    └── no ──► recorded ──► Suspended, which ends the attempt uncharged; a later one goes on here
//! ```
//!
//! No replay: a handler may do anything between its steps, and does it again in each attempt. The idea of a recorded
//! step is that of DBOS and of Rails' job continuations; here its record is one more fenced write.
//!
//! Invariants, each held by the test of that name:
//!
//! - `no_recorded_step_runs_again`
//! - `the_step_of_a_stale_attempt_is_refused`

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::store::{Recorded, Recording, Step, StepWrite};
use crate::{
    codec::job::Part,
    job::{JobError, causes, check_key, sizes::stored_bytes, unstorable},
    logs::run::Tail,
    observe::metrics,
    run::{
        context::{ContextError, JobContext, WITHOUT_END},
        running::Steps,
        settle::DELAY_MAX,
    },
    store::{
        Store, StoreError,
        batch::{Batcher, halve},
    },
};

/// The pause before a record is tried again that Postgres did not take.
pub(crate) const AGAIN: Duration = Duration::from_millis(200);

/// Records the steps of all jobs of this process, many in one statement. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recorder(Batcher<StepWrite, Result<Recording, StoreError>>);

impl Recorder {
    pub(crate) fn new(store: &Store) -> Self {
        let store = store.clone();
        let bytes = |write: &StepWrite| write.result.len();
        Self(Batcher::spawn_for_callers_that_return(bytes, move |batch| {
            let store = store.clone();
            async move { record_all(&store, batch).await }
        }))
    }
}

async fn record_all(store: &Store, batch: Vec<StepWrite>) -> Vec<Result<Recording, StoreError>> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut rest = vec![batch];
    while let Some(part) = rest.pop() {
        match store.record_steps(&part).await {
            Ok(recorded) => {
                metrics::batch("steps", part.len());
                answers.extend(recorded.into_iter().map(Ok));
            }
            // Postgres refuses one of the results: record the others without it.
            Err(error) if part.len() > 1 && error.is_the_datas_fault() => halve(part, &mut rest),
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

impl<S> JobContext<S> {
    /// Does a step of the job, unless an earlier attempt has recorded it: then it returns the recorded result.
    ///
    /// The work may do anything: call a service, start a program, read a file. Its result is recorded when it has
    /// ended, under the fence, and no later attempt of the job runs it again. **It runs at least once, and is recorded
    /// once**: a worker that dies between the end of the work and its record leaves no trace, and the next attempt does
    /// the work again. For SQL in tenure's database, where both are one commit, use [`JobContext::once`].
    ///
    /// `name` names the step within the job: 1 to 512 bytes without control characters. An attempt records each name
    /// once, and no effect of [`JobContext::once`] has it. Steps need no order, and may run at the same time, but not
    /// between [`JobContext::lock_job`] and the commit. tenure keeps a record for as long as the job, through retries
    /// and redrives. When new code no longer calls a recorded step, the worker names that step in its log as the job
    /// completes; a step with a new name is a new step.
    ///
    /// ```no_run
    /// # use tenure::{JobContext, JobError};
    /// # async fn download(url: &str) -> Result<String, JobError> { Ok(url.into()) }
    /// # async fn train(data: &str) -> Result<f64, JobError> { Ok(0.0) }
    /// # async fn f(ctx: JobContext, url: String) -> Result<f64, JobError> {
    /// let data: String = ctx.step("fetch", async || download(&url).await).await?;
    /// let score = ctx.step("train", async || train(&data).await).await?;
    /// # Ok(score) }
    /// ```
    ///
    /// Cancel safe: dropped during its work, the step is not recorded, and may be called again; dropped later, it is
    /// recorded. A record is a sign of life, but a step that lasts longer than `stale_after` must report progress as
    /// any other work.
    ///
    /// # Errors
    ///
    /// - The work's own error: nothing is recorded. Call the step again, or return the error for the next attempt to.
    /// - A permanent [`JobError`] if the name is not valid or was used before, or if the result cannot be stored,
    ///   cannot be read back, has more bytes than
    ///   [`Config::checkpoint_bytes_max`](crate::Config::checkpoint_bytes_max), or, recorded earlier, does not fit the
    ///   type.
    /// - A [`JobError`] with [`ContextError::Lost`], [`ContextError::Ended`] or [`ContextError::CutOff`] inside: stop.
    ///   While Postgres does not answer, the call waits until the worker is cut off.
    pub async fn step<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let mut call = self.call(name).await?;
        if let Some(result) = self.recorded_step(name).await? {
            call.is_recorded = true;
            return serde_json::from_str(&result).map_err(|error| {
                let error = self.misfit(&error);
                JobError::permanent(format!(
                    "the recorded result of step {name:?} does not fit its type: {error}"
                ))
            });
        }
        let began_at = Instant::now();
        let result = work().await?;
        let text = self.storable_result(name, &result)?;
        call.is_recorded = true;
        self.record(name, text, Step::Step(began_at.elapsed())).await?;
        Ok(result)
    }

    /// Returns the result of a step that an earlier attempt has recorded, as JSON text.
    async fn recorded_step(&self, name: &str) -> Result<Option<String>, JobError> {
        let recorded = self.recorded(name).await?;
        let Some(result) = self.result(name, recorded.map(|(_, recorded)| recorded)).await? else {
            return Ok(None);
        };
        self.open(Part::Result, &format!("the recorded result of step {name:?}"), result).map(Some)
    }

    async fn result(&self, name: &str, recorded: Option<Recorded>) -> Result<Option<String>, JobError> {
        match recorded {
            Some(Recorded::Step(Some(result))) => Ok(Some(result)),
            Some(Recorded::Step(None)) => self.result_of(name).await.map(Some),
            Some(Recorded::Sleep(_) | Recorded::Other) => Err(taken(name)),
            None => Ok(None),
        }
    }

    /// Lets the job sleep, without a slot, a message or an attempt: returns the error [`ContextError::Suspended`],
    /// which the handler passes on. The job runs again after `lasts`, from its beginning, and this call then returns at
    /// once: put what comes before it into steps.
    ///
    /// The end of the sleep is recorded when it begins, by the clock of Postgres: a crash or a deploy does not prolong
    /// it. A sleep of zero suspends nothing. `name` follows the rules of [`JobContext::step`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure::{JobContext, JobError};
    /// # async fn remind(ctx: JobContext) -> Result<(), JobError> {
    /// ctx.step("mail", async || Ok(())).await?;
    /// ctx.sleep("a week", Duration::from_secs(7 * 24 * 3_600)).await?;
    /// ctx.step("reminder", async || Ok(())).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe: dropped, the sleep may have begun.
    ///
    /// # Errors
    ///
    /// [`ContextError::Suspended`] while the sleep lasts; otherwise those of [`JobContext::step`].
    pub async fn sleep(&self, name: &str, lasts: Duration) -> Result<(), JobError> {
        let mut call = self.call(name).await?;
        let recorded = self.recorded(name).await?;
        call.is_recorded = true;
        let left = match recorded {
            Some((read_at, Recorded::Sleep(left))) => left.saturating_sub(read_at.elapsed()),
            Some((_, Recorded::Step(_) | Recorded::Other)) => return Err(taken(name)),
            None => {
                let lasts = lasts.min(DELAY_MAX);
                self.record(name, "null".into(), Step::Sleep(lasts)).await?;
                lasts
            }
        };
        if left.is_zero() {
            return Ok(());
        }
        Err(ContextError::Suspended { left, since: Instant::now(), awaits: None }.into())
    }

    /// Marks the name as in use.
    async fn call<'c>(&'c self, name: &'c str) -> Result<Call<'c>, JobError> {
        check_key(name)
            .map_err(|rule| JobError::permanent(format!("the name of a step {rule}: {name:?}")))?;
        self.check_owned("step").await?;
        let steps = &self.job.steps;
        if !steps.called.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            return Err(JobError::permanent(format!(
                "step {name:?} was called twice in one attempt: give each step of a job a name of its own"
            )));
        }
        Ok(Call { steps, name, is_recorded: false })
    }

    /// Returns what an earlier attempt has recorded under this name, and when that was read.
    async fn recorded(&self, name: &str) -> Result<Option<(Instant, Recorded)>, JobError> {
        self.job.has_effects.store(true, Ordering::Release);
        if self.job.steps.is_repeated.load(Ordering::Acquire) {
            let read_at = Instant::now();
            return Ok(self.one_recorded(name).await?.map(|recorded| (read_at, recorded)));
        }
        // Before the first attempt there was nothing to record.
        if self.token().0 == 1 {
            return Ok(None);
        }
        let read = || async {
            loop {
                let read_at = Instant::now();
                match self.store.steps(self.id(), None).await {
                    Ok(steps) => return Ok::<_, JobError>((read_at, steps.into_iter().collect())),
                    Err(error) => self.wait_for(error).await?,
                }
            }
        };
        let (read_at, recorded) = self.job.steps.recorded.get_or_try_init(read).await?;
        Ok(recorded.get(name).map(|recorded| (*read_at, recorded.clone())))
    }

    /// Reads what is recorded under this name.
    async fn one_recorded(&self, name: &str) -> Result<Option<Recorded>, JobError> {
        loop {
            match self.store.steps(self.id(), Some(name)).await {
                Ok(steps) => return Ok(steps.into_iter().next().map(|(_, recorded)| recorded)),
                Err(error) => self.wait_for(error).await?,
            }
        }
    }

    async fn result_of(&self, name: &str) -> Result<String, JobError> {
        loop {
            match self.store.step_result(self.id(), name).await {
                Ok(result) => return Ok(result),
                Err(error) => self.wait_for(error).await?,
            }
        }
    }

    async fn record(&self, name: &str, result: String, step: Step) -> Result<(), JobError> {
        let write = StepWrite { key: self.job.key, name: name.to_owned(), result, step };
        let mut was_taken = false;
        loop {
            self.check_owned("step").await?;
            // The record would change the row after the snapshot of a transaction of the handler.
            let held_until = self.job.pulse().held_until;
            if let Some(held) = held_until.and_then(|until| until.checked_duration_since(Instant::now())) {
                sleep(held.min(AGAIN)).await;
                continue;
            }
            let sent_at = Instant::now();
            match self.recorder.0.run(write.clone()).await {
                Some(Ok(Recording::Recorded)) => {
                    self.job.written(sent_at);
                    return Ok(());
                }
                // The first call may have waited for the commit of an earlier one, whose answer was lost.
                Some(Ok(Recording::NameTaken)) if !was_taken => was_taken = true,
                Some(Ok(Recording::NameTaken)) => return Err(taken(name)),
                Some(Ok(Recording::NotWritten)) => match self.store.still_mine(&[self.job.key]).await {
                    Ok(mine) if mine.first().copied().flatten().is_none() => {
                        return Err(self.refused("step").await.into());
                    }
                    // Another transaction has locked the row.
                    Ok(_) => sleep(AGAIN).await,
                    Err(error) => self.wait_for(error).await?,
                },
                Some(Err(error)) => self.wait_for(error).await?,
                // The statement was given up.
                None => sleep(AGAIN).await,
            }
        }
    }

    /// Waits before Postgres is asked again. The work of a step is worth more than the time, but no longer than the
    /// job is this worker's.
    pub(crate) async fn wait_for(&self, error: StoreError) -> Result<(), JobError> {
        if !error.is_unavailable() || self.job.cancellation.is_cancelled() {
            return self.note(Err(error.into()), "step").await;
        }
        tokio::select! {
            () = sleep(AGAIN) => {}
            () = self.job.cancellation.cancelled() => {}
        }
        Ok(())
    }

    /// Returns the result as text, not as a value, which would round its numbers.
    fn storable_result<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        result: &T,
    ) -> Result<String, JobError> {
        let refused =
            |why: &str| JobError::permanent(format!("the result of step {name:?} cannot be stored: {why}"));
        let text = serde_json::to_string(result).map_err(|error| refused(&error.to_string()))?;
        let value = serde_json::from_str(&text).map_err(|error| refused(&error.to_string()))?;
        if let Some(why) = unstorable(&value) {
            return Err(refused(why));
        }
        // The next attempt could not read it, and would not do the work again.
        if let Err(error) = serde_json::from_str::<T>(&text) {
            return Err(refused(&format!("it does not read back as its type: {}", self.misfit(&error))));
        }
        let text = self.seal(Part::Result, &format!("the result of step {name:?}"), text)?;
        let (bytes, bytes_max) = (stored_bytes(&text), self.checkpoint_bytes_max);
        if bytes > bytes_max {
            return Err(refused(&format!(
                "it has {bytes} bytes, but at most {bytes_max} are allowed; return the place of what is stored \
                 elsewhere, or raise TENURE_CHECKPOINT_BYTES_MAX"
            )));
        }
        Ok(text)
    }
}

/// The calls of handlers in other processes.
impl<S> JobContext<S> {
    /// Returns the result of a step that an earlier attempt has recorded, as JSON text, sealed or not: that process
    /// opens it. Keeps nothing for the next call.
    pub(crate) async fn recorded_alone(&self, name: &str) -> Result<Option<String>, JobError> {
        let recorded = self.one_recorded(name).await?;
        self.result(name, recorded).await
    }

    /// [`JobContext::sleep`] for a process that keeps nothing: returns what is left of the sleep. A second call changes
    /// nothing.
    pub(crate) async fn sleep_alone(&self, name: &str, lasts: Duration) -> Result<Duration, JobError> {
        self.job.has_effects.store(true, Ordering::Release);
        let recorded = self.one_recorded(name).await?;
        if recorded.is_none() {
            self.record(name, "null".into(), Step::Sleep(lasts.min(DELAY_MAX))).await?;
        }
        let recorded = if recorded.is_some() { recorded } else { self.one_recorded(name).await? };
        match recorded {
            Some(Recorded::Sleep(left)) => Ok(left),
            Some(Recorded::Step(_) | Recorded::Other) => Err(taken(name)),
            // It was recorded, and the job has been removed since.
            None => Err(self.refused("step").await.into()),
        }
    }

    /// Records a step that another process has done: its result, as JSON text, and how long it took. A second call
    /// changes nothing.
    pub(crate) async fn record_step(&self, name: &str, result: &str, took: Duration) -> Result<(), JobError> {
        check_key(name)
            .map_err(|rule| JobError::permanent(format!("the name of a step {rule}: {name:?}")))?;
        let result = RawValue::from_string(result.to_owned()).map_err(JobError::permanent)?;
        let text = self.storable_result(name, &result)?;
        self.job.has_effects.store(true, Ordering::Release);
        self.record(name, text, Step::Step(took)).await
    }
}

/// A name in use. Dropped before its record was sent, it may be called again.
struct Call<'c> {
    steps: &'c Steps,
    name: &'c str,
    is_recorded: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.steps.called.lock().unwrap_or_else(PoisonError::into_inner).remove(self.name);
        }
    }
}

pub(crate) fn taken(name: &str) -> JobError {
    JobError::permanent(format!(
        "the name {name:?} is that of another effect of this job: of `once`, or of another sort of step"
    ))
}

impl Steps {
    /// Names the recorded steps that the handler has not called, in the log of the job.
    pub(crate) fn log_uncalled(&self, log: &Tail) {
        let uncalled = self.uncalled();
        if !uncalled.is_empty() {
            log.push(&format!(
                "completed without these recorded steps: {uncalled:?}; a renamed step has run again"
            ));
        }
    }

    /// Names the recorded steps that the handler has not called: its code may have been changed.
    pub(crate) fn warn_of_uncalled(&self) {
        let uncalled = self.uncalled();
        if !uncalled.is_empty() {
            tracing::warn!(
                steps = ?uncalled,
                "the job has completed without steps that an earlier attempt has recorded: if they were renamed, they \
                 ran again under their new names"
            );
        }
    }
}

impl JobError {
    /// How long the job sleeps by [`JobContext::sleep`], or waits for an event or for jobs of its own, if that is what
    /// the error says; [`WITHOUT_END`](crate::handlers::WITHOUT_END) for a wait that has none. A layer that reports
    /// errors leaves it out: the handler has not failed.
    #[must_use]
    pub fn suspended(&self) -> Option<Duration> {
        self.suspension().map(|(left, _)| left)
    }

    /// [`JobError::suspended`], and the name of the event or the step for which the job waits.
    pub(crate) fn suspension(&self) -> Option<(Duration, Option<&str>)> {
        causes(&*self.source).find_map(|cause| match cause.downcast_ref() {
            Some(ContextError::Suspended { left, since, awaits }) => {
                let left = if *left < WITHOUT_END { left.saturating_sub(since.elapsed()) } else { *left };
                Some((left, awaits.as_deref()))
            }
            _ => None,
        })
    }
}
