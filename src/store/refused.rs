//! Refused: a job that Postgres refuses to write keeps no other from a statement about many.
//!
//! A broken page, or somebody's trigger or constraint on tenure's tables, refuses a row, and with it the statement that
//! would write others, too. Such a statement takes a list of jobs to pass over. After a refusal the jobs at hand are
//! halved, down to the one; it stays on the list for ten seconds, and is tried again then.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use sqlx::Row;

use super::{
    batch::halve,
    call::{Rows, Store},
};
use crate::{
    job::{JobError, JobId},
    observe::repeats,
};

const PASSED_OVER_FOR: Duration = Duration::from_secs(10);
/// The most jobs on the list.
const PASSED_OVER_MAX: usize = 1_000;

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
    /// Executes a statement about many jobs, but for those that Postgres refuses to write. `take` gets the jobs to pass
    /// over; `list` reads which it may be about, and perhaps more. Returns the rows of all parts.
    pub(super) async fn past_refused<'t>(
        &self,
        what: &str,
        list: impl Fn() -> BoxFuture<'t, Rows> + Send + Sync,
        take: impl Fn(Vec<JobId>) -> BoxFuture<'t, Rows> + Send + Sync,
    ) -> Rows {
        let passed_over = self.passed_over.now();
        match take(passed_over.clone()).await {
            Err(error) if error.is_of_one_row() => {}
            answer => return answer,
        }
        let ids = list().await?.iter().map(|row| row.try_get(0)).collect::<Result<Vec<JobId>, _>>()?;
        let (mut taken, mut parts) = (Vec::new(), vec![ids.clone()]);
        while let Some(part) = parts.pop() {
            let others: HashSet<JobId> = part.iter().copied().collect();
            let others = ids.iter().filter(|id| !others.contains(id));
            match take(passed_over.iter().chain(others).copied().collect()).await {
                Ok(rows) => taken.extend(rows),
                Err(error) if error.is_of_one_row() && part.len() > 1 => halve(part, &mut parts),
                Err(error) if error.is_of_one_row() && part.len() == 1 => {
                    let (job, error) = (part[0], JobError::from(error).text());
                    self.passed_over.add(job);
                    if let Some(left_out) = repeats::tell(what, &error) {
                        tracing::error!(
                            %job,
                            error,
                            left_out,
                            "could not {what} a job, as Postgres refuses to write it; the others go on, and it is \
                             tried again after ten seconds"
                        );
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
