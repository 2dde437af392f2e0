//! Migrate: brings the schema up to date. Safe to run from many processes at once.

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, raw_sql};

use super::call::{Store, StoreError};

/// Every migration: version, name, SQL. Append-only; a released one never changes.
pub(crate) const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "tenure", include_str!("../../migrations/0001_tenure.sql")),
    (2, "every_end", include_str!("../../migrations/0002_every_end.sql")),
    (3, "lean_checks", include_str!("../../migrations/0003_lean_checks.sql")),
    (4, "operate", include_str!("../../migrations/0004_operate.sql")),
    (5, "show", include_str!("../../migrations/0005_show.sql")),
];

/// "tenure" in ASCII: the key of the lock that makes migrations wait for each other.
const LOCK_KEY: i64 = 0x7465_6e75_7265;

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Postgres gave no answer. Run it again: each migration is applied whole or not at all.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A migration failed, and was rolled back.
    #[error("migration {version} ({name}) failed and was rolled back")]
    Failed {
        /// Its number.
        version: i64,
        /// Its name.
        name: &'static str,
        /// What Postgres said.
        source: StoreError,
    },
    /// An applied migration is not the one in this program.
    #[error(
        "migration {version} was applied to this database with other contents; \
         use the tenure release that applied it, or a fresh database"
    )]
    Changed {
        /// Its number.
        version: i64,
    },
}

impl Store {
    /// Applies what is missing, and returns the versions that were.
    ///
    /// Runs in one transaction under a transaction-level lock, so that it works behind PgBouncer too.
    pub(crate) async fn migrate(&self) -> Result<Vec<i64>, MigrateError> {
        let mut connection = self.migration_connection().await?;
        let applied = apply(&mut connection).await;
        // The work is committed or rolled back by now; a failing goodbye changes nothing.
        drop(connection.close().await);
        applied
    }
}

async fn apply(connection: &mut PgConnection) -> Result<Vec<i64>, MigrateError> {
    let mut transaction = connection.begin().await.map_err(StoreError::from)?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK_KEY)
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::from)?;
    raw_sql(
        "SET LOCAL client_min_messages = warning;
         CREATE SCHEMA IF NOT EXISTS tenure;
         CREATE TABLE IF NOT EXISTS tenure.migrations (
             version    bigint      PRIMARY KEY,
             name       text        NOT NULL,
             checksum   bytea       NOT NULL,
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
    )
    .execute(&mut *transaction)
    .await
    .map_err(StoreError::from)?;

    let mut applied = Vec::new();
    for &(version, name, sql) in MIGRATIONS {
        let checksum = Sha256::digest(sql.as_bytes()).to_vec();
        let known = sqlx::query("SELECT checksum FROM tenure.migrations WHERE version = $1")
            .bind(version)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(StoreError::from)?;
        if let Some(row) = known {
            if row.try_get::<Vec<u8>, _>(0).map_err(StoreError::from)? != checksum {
                return Err(MigrateError::Changed { version });
            }
            continue;
        }
        // The text is a constant of this program; there is nothing in it from outside.
        raw_sql(AssertSqlSafe(sql).into_sql_str())
            .execute(&mut *transaction)
            .await
            .map_err(|error| MigrateError::Failed { version, name, source: error.into() })?;
        sqlx::query("INSERT INTO tenure.migrations (version, name, checksum) VALUES ($1, $2, $3)")
            .bind(version)
            .bind(name)
            .bind(checksum)
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::from)?;
        applied.push(version);
    }
    transaction.commit().await.map_err(StoreError::from)?;
    Ok(applied)
}
