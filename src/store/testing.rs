//! Testing: the statements of `tenure::testing`. One method, one statement.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, Row, postgres::PgPoolOptions, query};

use super::{
    ADVANCE, DUE_NOW, LOSE,
    call::{Store, StoreError},
};
use crate::job::JobId;

/// The most connections of a test's own.
const CONNECTIONS: u32 = 5;

/// Opens a pool for a test's own statements. It connects at the first one.
pub(crate) fn pool_of_test(database_url: &str, within: Duration) -> Result<PgPool, StoreError> {
    let options = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(within);
    Ok(options.connect_lazy(database_url)?)
}

impl Store {
    /// Creates a database, as a copy of `of` if that is given. `testing` has made up both names.
    pub(crate) async fn create_database(&self, name: &str, of: Option<&str>) -> Result<(), StoreError> {
        let of = of.map(|template| format!(" TEMPLATE {template}")).unwrap_or_default();
        let create = format!("CREATE DATABASE {name}{of}");
        self.rows(query(AssertSqlSafe(create))).await.map(drop)
    }

    /// Removes a database that [`Store::create_database`] made, even while sessions are connected to it.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<(), StoreError> {
        let drop_it = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        self.rows(query(AssertSqlSafe(drop_it))).await.map(drop)
    }

    /// Moves all times in the database back by `by`.
    pub(crate) async fn advance(&self, by: Duration) -> Result<(), StoreError> {
        self.rows(query(ADVANCE).bind(by.as_secs_f64())).await.map(drop)
    }

    /// Returns how many jobs of these queues and kinds run or are due.
    pub(crate) async fn due_now(
        &self,
        queues: &[String],
        kinds: Option<&[String]>,
    ) -> Result<i64, StoreError> {
        let rows = self.rows(query(DUE_NOW).bind(queues).bind(kinds)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get("jobs")?)
    }

    /// Resets a running job. Returns `false` if it does not run.
    pub(crate) async fn lose(&self, job: JobId) -> Result<bool, StoreError> {
        Ok(!self.rows(query(LOSE).bind(job)).await?.is_empty())
    }
}
