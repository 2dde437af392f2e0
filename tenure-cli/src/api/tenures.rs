//! Tenures: the only tenure, or those of all cells, and the way to the one that has a job or a queue.
//!
//! A cell that is away must not hold up a request for another: each is asked at the same time as the others, and for
//! [`WITHIN`] at most.

use std::{cmp::Reverse, time::Duration};

use axum::http::StatusCode;
use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::time::timeout;

use super::Failure;
use crate::access::{Scope, Who};
use tenure::{
    Enqueued, Health, JobId, JobRequest, StoreError, Tenure,
    cells::Cells,
    internals::{Parts as _, chained, duration::written},
    rows::{JobFilter, JobRow},
};

/// How long to wait for the answer of a cell.
const WITHIN: Duration = Duration::from_secs(2);

/// A tenure, and what the last look at its servers found.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) tenure: Tenure,
    pub(crate) health: Health,
}

impl Part {
    fn cell(&self) -> &str {
        self.tenure.config().cell.as_deref().unwrap_or_default()
    }

    /// Asks its Postgres, unless the last look has found the cell unusable.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
        if self.health.has_started()
            && let Err(reasons) = self.health.ready()
        {
            return Err(reasons.join("; "));
        }
        match timeout(WITHIN, question).await {
            Ok(answer) => answer.map_err(|error| chained(&error)),
            Err(_) => Err(format!("Postgres did not answer within {}", written(WITHIN))),
        }
    }
}

/// Refuses an act on a queue that is not among those of the user.
pub(super) fn check(who: &Who, queue: &str) -> Result<(), Failure> {
    who.scope
        .check(&who.name, Some(queue))
        .map_err(|why| Failure::new(StatusCode::FORBIDDEN, "other_queue", why))
}

/// Refuses a look at a queue that is not among those of the user.
pub(super) fn check_look(who: &Who, queue: &str) -> Result<(), Failure> {
    if who.looks.has(queue) {
        return Ok(());
    }
    let why = who.looks.unseen(&format!("not at {queue}"));
    tracing::warn!(who = who.name, queue, why, "a look was refused");
    Err(Failure::new(StatusCode::FORBIDDEN, "other_queue", why))
}

/// The only tenure, or those of all cells.
#[derive(Debug)]
pub(super) struct Tenures {
    parts: Vec<Part>,
    /// What routes new jobs; `None`: there is one tenure.
    cells: Option<Cells>,
}

impl Tenures {
    /// `parts` is not empty; with `cells`, these are its cells.
    pub(super) fn new(parts: Vec<Part>, cells: Option<Cells>) -> Self {
        Self { parts, cells }
    }

    /// The only tenure; `None`: there are cells.
    fn only(&self) -> Option<&Tenure> {
        self.parts.first().filter(|_| self.cells.is_none()).map(|part| &part.tenure)
    }

    /// Enqueues a job, in the cell of its queue. `has_key`: to repeat it is safe.
    pub(super) async fn enqueue(&self, request: JobRequest, has_key: bool) -> Result<Enqueued, Failure> {
        if let Some(cells) = &self.cells {
            return cells.enqueue(request).await.map_err(|error| Failure::of_cells(error, has_key));
        }
        let only = self.only().ok_or_else(Failure::broken)?;
        only.enqueue(request).await.map_err(|error| Failure::of_enqueue(error, has_key))
    }

    /// Returns a job, and the tenure that has it. A job of a queue that the user may not look at does not exist.
    pub(super) async fn find(&self, id: JobId, looks: &Scope) -> Result<(&Tenure, JobRow), Failure> {
        let is_seen = |job: &JobRow| looks.has(&job.queue);
        if let Some(only) = self.only() {
            return Ok((only, only.job(id).await?.filter(is_seen).ok_or_else(|| Failure::no_job(id))?));
        }
        let asked = self.parts.iter().map(async |part| (part, part.ask(part.tenure.job(id)).await));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut silent = Vec::new();
        while let Some((part, answer)) = asked.next().await {
            match answer {
                Ok(Some(job)) if is_seen(&job) => return Ok((&part.tenure, job)),
                Ok(_) => {}
                Err(why) => silent.push(format!("{} ({why})", part.cell())),
            }
        }
        if silent.is_empty() {
            return Err(Failure::no_job(id));
        }
        silent.sort_unstable();
        let message =
            format!("no cell that answers has job {id}; these do not answer: {}", silent.join(", "));
        Err(Failure::unavailable(message))
    }

    /// Returns the tenure of a job that a user wants to act on. Does not ask if there is only one, and the user may act
    /// on every job.
    pub(super) async fn acted_on(&self, id: JobId, who: &Who) -> Result<&Tenure, Failure> {
        if let Some(only) = self.only().filter(|_| who.scope.is_all()) {
            return Ok(only);
        }
        let (tenure, job) = self.find(id, &who.looks).await?;
        check(who, &job.queue)?;
        Ok(tenure)
    }

    /// Returns at most `limit` jobs, newest first: of all cells, or of the one with this name.
    pub(super) async fn list(
        &self,
        filter: &JobFilter,
        limit: u32,
        has_payloads: bool,
        cell: Option<&str>,
    ) -> Result<Vec<JobRow>, Failure> {
        let list = |tenure: &Tenure| {
            let (tenure, filter) = (tenure.clone(), filter.clone());
            async move { tenure.store().list_jobs(&filter, limit.into(), has_payloads).await }
        };
        if let Some(only) = self.only() {
            if cell.is_some() {
                return Err(Failure::invalid(
                    "the parameter cell names one of several cells, but there is only one",
                ));
            }
            return Ok(list(only).await?);
        }
        let asked: Vec<_> =
            self.parts.iter().filter(|part| cell.is_none_or(|cell| part.cell() == cell)).collect();
        if asked.is_empty() {
            let known: Vec<_> = self.parts.iter().map(Part::cell).collect();
            return Err(Failure::invalid(format!("there is no such cell; expected: {}", known.join(", "))));
        }
        let answers = join_all(asked.iter().map(|part| part.ask(list(&part.tenure)))).await;
        let mut jobs = Vec::new();
        for (part, answer) in asked.iter().zip(answers) {
            // A list without the jobs of a cell would look like one of a fleet that has none there.
            jobs.extend(answer.map_err(|why| {
                let failure = Failure::unavailable(format!("cell {} does not answer: {why}", part.cell()));
                failure.hint("name another cell with the parameter cell, to list its jobs alone")
            })?);
        }
        jobs.sort_unstable_by_key(|job| Reverse(job.id));
        jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(jobs)
    }
}
