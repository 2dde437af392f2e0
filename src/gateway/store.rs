//! Gateway: the statements about workers behind a gateway. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow, query};

use crate::{
    job::{JobId, claim::ClaimKey},
    store::{Store, StoreError, statement_list},
};

statement_list! {
    GATEWAY_KEY = "sql" "gateway_key";
    HOST_OF_WORKER = "sql" "host_of_worker";
    RENEW_FOREIGN = "sql" "renew_foreign";
    CLAIMED_JOB = "sql" "claimed_job";
    CLAIMS_OF = "sql" "claims_of";
    OWNERS = "sql" "owners";
}

/// How long reading all live jobs may take.
const CLAIMS_WITHIN: Duration = Duration::from_secs(20);

impl Store {
    /// Returns the key with which gateways sign receipts.
    pub(crate) async fn gateway_key(&self) -> Result<Vec<u8>, StoreError> {
        let rows = self.rows(query(GATEWAY_KEY)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("key")?)
    }

    /// Returns the host that a worker named. `None`: the worker has no row.
    pub(crate) async fn host_of_worker(&self, worker_id: &str) -> Result<Option<String>, StoreError> {
        let rows = self.rows(query(HOST_OF_WORKER).bind(worker_id)).await?;
        Ok(rows.first().map(|row| row.try_get("hostname")).transpose()?)
    }

    /// Renews the row of a worker behind a gateway. Returns the database's time; `None`: the worker has no row.
    pub(crate) async fn renew_foreign(
        &self,
        worker_id: &str,
        probe_subject: Option<&str>,
        is_draining: bool,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let renewal = query(RENEW_FOREIGN).bind(worker_id).bind(probe_subject.map(str::to_owned));
        let rows = self.rows(renewal.bind(is_draining)).await?;
        Ok(rows.first().map(|row| row.try_get("now")).transpose()?)
    }

    /// Returns the payload and the checkpoint of a job, if this claim of it is current.
    pub(crate) async fn claimed_job(
        &self,
        key: &ClaimKey,
    ) -> Result<Option<(String, Option<String>)>, StoreError> {
        let rows = self.rows(query(CLAIMED_JOB).bind(key.job).bind(key.token).bind(key.claim)).await?;
        let texts = |row: &PgRow| Ok((row.try_get("payload")?, row.try_get("checkpoint")?));
        Ok(rows.first().map(texts).transpose().map_err(|error: sqlx::Error| error)?)
    }

    /// Returns the claims that each of these workers holds and made before its moment, each with the index of the
    /// question.
    pub(crate) async fn claims_of(
        &self,
        workers: &[(String, DateTime<Utc>)],
    ) -> Result<Vec<(usize, ClaimKey)>, StoreError> {
        let (ids, moments): (Vec<String>, Vec<DateTime<Utc>>) = workers.iter().cloned().unzip();
        let rows = self.rows_aside(CLAIMS_WITHIN, query(CLAIMS_OF).bind(ids).bind(moments)).await?;
        let claim = |row: &PgRow| {
            let key = ClaimKey {
                job: row.try_get("id")?,
                token: row.try_get("fencing_token")?,
                claim: row.try_get("claim_id")?,
            };
            let n: i64 = row.try_get("n")?;
            Ok((usize::try_from(n - 1).unwrap_or_default(), key))
        };
        Ok(rows.iter().map(claim).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the workers that run these jobs, each with its job.
    pub(crate) async fn owners(&self, jobs: &[JobId]) -> Result<Vec<(String, JobId)>, StoreError> {
        let rows = self.rows(query(OWNERS).bind(jobs)).await?;
        let owner = |row: &PgRow| Ok((row.try_get("worker_id")?, row.try_get("id")?));
        Ok(rows.iter().map(owner).collect::<Result<_, sqlx::Error>>()?)
    }
}
