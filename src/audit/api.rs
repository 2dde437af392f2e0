//! Audit: lists who has done what.

use super::{AuditFilter, AuditRow};
use crate::{client::Tenure, store::StoreError};

impl Tenure {
    /// Returns at most `limit` acts, the latest first: who did what, when, from where, to how many jobs. For the next
    /// page, pass the last id to [`AuditFilter::before`].
    ///
    /// An act is what a person or a program does to jobs, queues, lanes, schedules, dead letters and workers by this
    /// library, the command line, the dashboard, the HTTP API, or `tenure.cancel` of SQL. The statement that acts notes
    /// it, so that neither is without the other; a drain of a worker and a move of a queue are noted before they begin.
    /// An act on many jobs has a row for each 500. What changes nothing has none; nor has an enqueue, nor what tenure
    /// does by itself. A signal has one if a user is named ([`Tenure::acting_as`]).
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn audit(&self, filter: &AuditFilter, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.store().list_audit(filter, limit.into()).await
    }
}
