//! Testing: the statements of `tenure::testing`. One method, one statement.

use std::time::Duration;

use futures::FutureExt;
use sqlx::{
    AssertSqlSafe, PgPool, Row,
    postgres::{PgPoolOptions, PgRow},
    query, raw_sql,
};

use super::{
    DUE_NOW, LOSE, MOST_AT_ONCE, SKIP_SLEEPS, TIMES_THAT_PASS,
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
        let rows = self.rows(query(TIMES_THAT_PASS)).await?;
        let of = |row: &PgRow| Ok((row.try_get("relation")?, row.try_get("names")?));
        let times: Vec<(String, Vec<String>)> = rows.iter().map(of).collect::<Result<_, sqlx::Error>>()?;
        let by = format!("interval '{} s'", by.as_secs_f64());
        // In order of id, as claims lock them.
        let mut statements = vec!["SELECT FROM tenure.jobs ORDER BY id FOR NO KEY UPDATE".to_owned()];
        for (relation, names) in times {
            // What is held waits for no time.
            let moved = names.iter().map(|name| {
                format!("{name} = CASE WHEN {name} < '9998-01-01' THEN {name} - {by} ELSE {name} END")
            });
            // By way of another century: the time is in the key, and rows move one after the other.
            if relation == "quarantine_counts" {
                let (far, back) = ("at + interval '100000 days'", "at - interval '100000 days'");
                statements.push(format!("UPDATE tenure.quarantine_counts SET at = {far}"));
                statements.push(format!("UPDATE tenure.quarantine_counts SET at = {back} - {by}"));
                continue;
            }
            let mut moved = moved.collect::<Vec<_>>();
            if relation == "lane_jobs" {
                // In a lane that is not ordered: since when the job is due, in microseconds.
                let earlier = format!("place - (extract(epoch FROM {by}) * 1000000)::bigint");
                moved.push(format!("place = CASE WHEN place > 0 THEN {earlier} ELSE place END"));
            }
            let moved = moved.join(", ");
            statements.push(format!("UPDATE tenure.{relation} SET {moved}"));
        }
        // Live workers would have scanned: without a last scan there is no gap after which owners get time to write.
        statements.push("UPDATE tenure.scanner_state SET last_scan_at = NULL".to_owned());
        let sql = statements.join(";");
        self.own_transaction(move |transaction| {
            async move { raw_sql(AssertSqlSafe(sql)).execute(transaction).await.map(drop) }.boxed()
        })
        .await
    }

    /// Returns how many jobs of these queues and kinds run or are due, and how many are due that their lanes hold.
    pub(crate) async fn due_now(
        &self,
        queues: &[String],
        kinds: Option<&[String]>,
    ) -> Result<(i64, i64), StoreError> {
        let rows = self.rows(query(DUE_NOW).bind(queues).bind(kinds)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get("jobs")?, row.try_get("in_lanes")?))
    }

    /// Ends the sleeps of a job now.
    pub(crate) async fn skip_sleeps(&self, job: JobId) -> Result<(), StoreError> {
        self.rows(query(SKIP_SLEEPS).bind(job)).await.map(drop)
    }

    /// Returns how many of these jobs ran at once, at most. `None`: none ran.
    pub(crate) async fn most_at_once(&self, jobs: &[JobId]) -> Result<Option<i64>, StoreError> {
        let rows = self.rows(query(MOST_AT_ONCE).bind(jobs)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("jobs")?)
    }

    /// Resets a running job. Returns `false` if it does not run.
    pub(crate) async fn lose(&self, job: JobId) -> Result<bool, StoreError> {
        Ok(!self.rows(query(LOSE).bind(job)).await?.is_empty())
    }
}
