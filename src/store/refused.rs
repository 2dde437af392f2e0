//! Refused: a job that Postgres refuses to write keeps no other from a statement about many.
//!
//! A broken page, or somebody's trigger or constraint on tenure's tables, refuses a row, and with it the statement that
//! would write others, too. Such a statement takes a list of jobs to pass over. After a refusal the jobs at hand are
//! halved, down to the one; it stays on the list for ten seconds, and is tried again then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use sqlx::Row;

use super::{
    batch::halve,
    call::{Rows, Store, StoreError},
};
use crate::{
    job::{JobError, JobId},
    observe::repeats,
};

const PASSED_OVER_FOR: Duration = Duration::from_secs(10);
/// The most jobs on the list.
const PASSED_OVER_MAX: usize = 1_000;
/// The most refusals of one look: twice as many as lead to one job of thousands.
const REFUSALS_MAX: usize = 32;

/// The jobs that Postgres has refused to write of late.
#[derive(Debug, Clone, Default)]
pub(super) struct PassedOver(Arc<Mutex<HashMap<JobId, Instant>>>);

impl PassedOver {
    fn now(&self) -> Vec<JobId> {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, since| since.elapsed() < PASSED_OVER_FOR);
        jobs.keys().copied().collect()
    }

    fn add(&self, job: JobId) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() < PASSED_OVER_MAX {
            jobs.insert(job, Instant::now());
        }
    }
}

impl Store {
    /// Executes a statement about many jobs, but for those that Postgres refuses to write. `list` reads which it may
    /// be about, and perhaps more. `take` executes it; both get the jobs to pass over, and `take` also the only ones
    /// that it is to be about, or `None`. Returns the rows of all parts.
    pub(super) async fn past_refused<'t>(
        &self,
        what: &str,
        list: impl Fn(Vec<JobId>) -> BoxFuture<'t, Rows> + Send + Sync,
        take: impl Fn(Vec<JobId>, Option<Vec<JobId>>) -> BoxFuture<'t, Rows> + Send + Sync,
    ) -> Rows {
        let passed_over = self.passed_over.now();
        match take(passed_over.clone(), None).await {
            Err(error) if error.is_of_one_row() => {}
            answer => return answer,
        }
        let ids = list(passed_over.clone()).await?;
        let ids = ids.iter().map(|row| row.try_get(0)).collect::<Result<Vec<JobId>, _>>()?;
        let (mut taken, mut parts, mut refusals) = (Vec::new(), vec![ids], 0);
        // The next look goes on. Meanwhile what is taken waits here.
        while refusals < REFUSALS_MAX
            && let Some(part) = parts.pop()
        {
            match take(passed_over.clone(), Some(part.clone())).await {
                Ok(rows) => taken.extend(rows),
                Err(error) if error.is_of_one_row() => {
                    refusals += 1;
                    if let [job] = part[..] {
                        self.passed_over.add(job);
                        tell(what, job, error);
                    } else if !part.is_empty() {
                        halve(part, &mut parts);
                    }
                }
                // What is taken is the caller's.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }
}

fn tell(what: &str, job: JobId, error: StoreError) {
    let error = JobError::from(error).text();
    if let Some(left_out) = repeats::tell(what, &error) {
        tracing::error!(
            %job,
            error,
            left_out,
            "could not {what} a job, as Postgres refuses to write it; the others go on, and it is tried again after \
             ten seconds"
        );
    }
}
