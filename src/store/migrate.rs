//! Migrate: brings the schema up to date. Safe to run from many processes at once, and while workers work.
//!
//! An `ALTER TABLE` waits for all transactions that use the table, and every later statement waits behind it: one long
//! transaction of a user's would stop all claims. So no statement of a migration waits for a lock for longer than half
//! a second. Then `migrate` rolls the migration back, lets the other sessions go on, and tries it again.
//!
//! An index over a table that may be large is no migration: `migrate` builds it beside them, while other sessions go on
//! writing, and nothing needs it.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_migration_behind_a_long_transaction_stops_no_worker`
//! - `an_index_of_live_jobs_is_built_while_others_write`
//! - `a_migration_that_never_gets_its_lock_says_who_holds_it`
//! - `a_released_migration_never_changes`
//! - `a_migration_only_adds`

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, query, raw_sql};
use tokio::time::{sleep, timeout};

use super::{
    BLOCKERS, UNBUILT_INDEXES, UNINDEXED_PARTITIONS,
    call::{Store, StoreError},
};
use crate::job::duration::measured;

/// A migration: version, name, SQL.
type Migration = (i64, &'static str, &'static str);

/// All migrations. Append-only; a released one never changes.
const MIGRATIONS: &[Migration] = &[
    (1, "tenure", include_str!("../../migrations/0001_tenure.sql")),
    (2, "every_end", include_str!("../../migrations/0002_every_end.sql")),
    (3, "lean_checks", include_str!("../../migrations/0003_lean_checks.sql")),
    (4, "operate", include_str!("../../migrations/0004_operate.sql")),
    (5, "show", include_str!("../../migrations/0005_show.sql")),
    (6, "review", include_str!("../../migrations/0006_review.sql")),
    (7, "turns", include_str!("../../migrations/0007_turns.sql")),
    (8, "stream", include_str!("../../migrations/0008_stream.sql")),
    (9, "standing", include_str!("../../migrations/0009_standing.sql")),
    (10, "no_history", include_str!("../../migrations/0010_no_history.sql")),
    (11, "not_ready", include_str!("../../migrations/0011_not_ready.sql")),
    (12, "cells", include_str!("../../migrations/0012_cells.sql")),
    (13, "ends", include_str!("../../migrations/0013_ends.sql")),
    (14, "functions", include_str!("../../migrations/0014_functions.sql")),
    (15, "lanes", include_str!("../../migrations/0015_lanes.sql")),
    (16, "gateway", include_str!("../../migrations/0016_gateway.sql")),
    (17, "steps", include_str!("../../migrations/0017_steps.sql")),
    (18, "groups", include_str!("../../migrations/0018_groups.sql")),
    (19, "lean_groups", include_str!("../../migrations/0019_lean_groups.sql")),
    (20, "calm", include_str!("../../migrations/0020_calm.sql")),
    (21, "audit", include_str!("../../migrations/0021_audit.sql")),
    (22, "slots", include_str!("../../migrations/0022_slots.sql")),
    (23, "quarantine", include_str!("../../migrations/0023_quarantine.sql")),
    (24, "tags", include_str!("../../migrations/0024_tags.sql")),
    (25, "logs", include_str!("../../migrations/0025_logs.sql")),
    (26, "settled_edges", include_str!("../../migrations/0026_settled_edges.sql")),
    (27, "waits_of_several", include_str!("../../migrations/0027_waits_of_several.sql")),
    (28, "messages_of_groups", include_str!("../../migrations/0028_messages_of_groups.sql")),
    (29, "lean_ends", include_str!("../../migrations/0029_lean_ends.sql")),
    (30, "early_events", include_str!("../../migrations/0030_early_events.sql")),
];

/// Indexes over tables that may be large: the name, how to drop it, how to build it. CONCURRENTLY waits for other
/// transactions, and none waits for it; it cannot be a part of a transaction.
const INDEXES: &[(&str, &str, &str)] = &[(
    "tenure.jobs_unpublished_of_queue",
    "DROP INDEX CONCURRENTLY IF EXISTS tenure.jobs_unpublished_of_queue",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_unpublished_of_queue ON tenure.jobs (queue, publish_at)
      WHERE publish_at IS NOT NULL",
)];

/// "tenureix" in ASCII: the key of the lock of the process that builds them. `migrate` polls for it and never waits for
/// it: the build waits for every open statement, and a statement that waited for the lock would be one.
const INDEX_LOCK_KEY: i64 = 0x7465_6e75_7265_6978;

/// How long `migrate` waits for the indexes. Then Postgres goes on building them alone.
const BUILT_WITHIN: Duration = Duration::from_secs(60);

/// The migrations that take something away, each with the oldest one that a program must know to work afterwards.
/// None does so far. The first needs a release before it whose programs do without what it removes.
const CONTRACTING: &[(i64, i64)] = &[];

/// The schema that this program needs.
pub const NEEDS: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// "tenure" in ASCII: the key of the lock that makes migrations wait for each other.
const LOCK_KEY: i64 = 0x7465_6e75_7265;

/// How long `migrate` tries to get the locks of one migration.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two tries, in which the sessions that waited behind the first go on. It grows.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often `migrate` looks for the holders of a lock; shorter than the wait for one.
const LOOK_EVERY: Duration = Duration::from_millis(150);

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
        /// The error of Postgres.
        source: StoreError,
    },
    /// Other sessions kept a lock that a migration needs. It was rolled back, and no session waits for it any more.
    #[error(
        "migration {version} ({name}) needs a lock that other sessions hold: {holders}; tenure tried for {} and \
         rolled it back. Wait for those sessions or end them with pg_terminate_backend(PID), then run \
         `tenure migrate` again",
        measured(*.waited)
    )]
    Blocked {
        /// Its number.
        version: i64,
        /// Its name.
        name: &'static str,
        /// The sessions that hold it, as far as the role may see them.
        holders: String,
        /// How long `migrate` tried.
        waited: Duration,
    },
    /// An applied migration differs from the one in this program.
    #[error(
        "migration {version} was applied to this database with other contents; \
         use the tenure release that applied it, or a fresh database"
    )]
    Changed {
        /// Its number.
        version: i64,
    },
}

impl MigrateError {
    /// Whether another try may succeed: a lock was missing.
    fn is_of_a_lock(&self) -> bool {
        let (Self::Store(source) | Self::Failed { source, .. }) = self else { return false };
        source.is_locked() || source.is_deadlock()
    }
}

impl Store {
    /// Applies the missing migrations, and returns their versions.
    pub(crate) async fn migrate(&self) -> Result<Vec<i64>, MigrateError> {
        let applied = self.apply(MIGRATIONS, PATIENCE).await?;
        // Without the indexes everything works, and some statements take longer.
        match timeout(BUILT_WITHIN, self.build_indexes()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = crate::job::JobError::from(error).text();
                tracing::warn!(error, "building an index failed; run `tenure migrate` again");
            }
            Err(_) => tracing::warn!(
                "an index is not ready: it waits for open transactions, or the table is large; Postgres goes on \
                 building it, and the next `tenure migrate` checks it"
            ),
        }
        Ok(applied)
    }

    /// Builds the indexes that are missing, and rebuilds those that an earlier try left unfinished.
    async fn build_indexes(&self) -> Result<(), StoreError> {
        if self.rows(query(UNBUILT_INDEXES).bind(names_of_indexes())).await?.is_empty()
            && self.rows(query(UNINDEXED_PARTITIONS)).await?.is_empty()
        {
            return Ok(());
        }
        let mut guard = self.migration_connection().await?;
        let mut guard = guard.begin().await?;
        loop {
            let lock = query("SELECT pg_try_advisory_xact_lock($1)").bind(INDEX_LOCK_KEY);
            if lock.fetch_one(&mut *guard).await?.try_get(0)? {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        let unbuilt = self.rows(query(UNBUILT_INDEXES).bind(names_of_indexes())).await?;
        let mut connection = self.migration_connection().await?;
        for row in &unbuilt {
            let name: String = row.try_get("name")?;
            let Some(&(_, drop_it, create)) = INDEXES.iter().find(|index| index.0 == name) else { continue };
            if row.try_get("is_being_built")? {
                continue;
            }
            if row.try_get("is_there")? {
                raw_sql(drop_it).execute(&mut connection).await?;
            }
            raw_sql(create).execute(&mut connection).await?;
        }
        for row in &self.rows(query(UNINDEXED_PARTITIONS)).await? {
            // The server has made these texts, of its own names.
            for column in ["drop_it", "create_it", "attach_it"] {
                let sql: String = row.try_get(column)?;
                raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(&mut connection).await?;
            }
        }
        drop(connection.close().await);
        guard.rollback().await?;
        Ok(())
    }

    /// Applies the missing migrations of a list, each in a transaction of its own: a lock is held only while the
    /// migration that needs it runs.
    pub(crate) async fn apply(
        &self,
        migrations: &[Migration],
        patience: Duration,
    ) -> Result<Vec<i64>, MigrateError> {
        let mut connection = self.migration_connection().await?;
        let mut applied = Vec::new();
        let mut answer = Ok(());
        for &migration in migrations {
            match self.apply_one(&mut connection, migration, patience).await {
                Ok(true) => applied.push(migration.0),
                Ok(false) => {}
                Err(error) => {
                    answer = Err(error);
                    break;
                }
            }
        }
        // The work is committed or rolled back by now; a close that fails changes nothing.
        drop(connection.close().await);
        answer.map(|()| applied)
    }

    /// Applies one migration. Returns whether it was missing.
    async fn apply_one(
        &self,
        connection: &mut PgConnection,
        migration: Migration,
        patience: Duration,
    ) -> Result<bool, MigrateError> {
        let (version, name, _) = migration;
        let (mut since, mut pause) = (None, PAUSE);
        loop {
            let mut holders = "a session that this role could not see".to_owned();
            let error = match self.try_one(connection, migration, &mut holders).await {
                Err(error) if error.is_of_a_lock() => error,
                answer => return answer,
            };
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= patience {
                return Err(MigrateError::Blocked { version, name, holders, waited });
            }
            tracing::warn!(version, name, holders, %error, "other sessions hold a lock; the migration will retry");
            sleep(pause.min(patience.saturating_sub(waited))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_one(
        &self,
        connection: &mut PgConnection,
        migration: Migration,
        holders: &mut String,
    ) -> Result<bool, MigrateError> {
        let mut transaction = connection.begin().await.map_err(StoreError::from)?;
        let pid = alone(&mut transaction).await?;
        let answer = {
            let mut work = std::pin::pin!(apply(&mut transaction, migration));
            loop {
                match timeout(LOOK_EVERY, &mut work).await {
                    Ok(answer) => break answer,
                    Err(_) => self.look_for_holders(pid, holders).await,
                }
            }
        };
        match answer {
            Ok(was_missing) => {
                transaction.commit().await.map_err(StoreError::from)?;
                Ok(was_missing)
            }
            Err(error) => {
                // Now, not with the next statement of this connection: other sessions wait for its locks.
                drop(transaction.rollback().await);
                Err(error)
            }
        }
    }

    /// Notes the sessions that keep the session with this pid waiting. Keeps the last answer that named any.
    async fn look_for_holders(&self, pid: i32, holders: &mut String) {
        if let Ok(rows) = self.rows(query(BLOCKERS).bind(pid)).await {
            let seen: Vec<String> = rows.iter().filter_map(|row| row.try_get("holder").ok()).collect();
            if !seen.is_empty() {
                *holders = seen.join(", ");
            }
        }
    }
}

fn names_of_indexes() -> Vec<&'static str> {
    INDEXES.iter().map(|index| index.0).collect()
}

/// Waits until no other migration is under way, however long that takes: no session waits for this one meanwhile. The
/// transaction owns the lock, so that it works behind PgBouncer. Returns the session's pid.
async fn alone(transaction: &mut PgConnection) -> Result<i32, StoreError> {
    raw_sql("SET LOCAL lock_timeout = 0").execute(&mut *transaction).await?;
    query("SELECT pg_advisory_xact_lock($1)").bind(LOCK_KEY).execute(&mut *transaction).await?;
    raw_sql("SET LOCAL lock_timeout = '500ms'; SET LOCAL client_min_messages = warning")
        .execute(&mut *transaction)
        .await?;
    let row = query("SELECT pg_backend_pid() AS pid").fetch_one(&mut *transaction).await?;
    Ok(row.try_get("pid")?)
}

async fn apply(
    transaction: &mut PgConnection,
    (version, name, sql): Migration,
) -> Result<bool, MigrateError> {
    raw_sql(
        "CREATE SCHEMA IF NOT EXISTS tenure;
         CREATE TABLE IF NOT EXISTS tenure.migrations (
             version    bigint      PRIMARY KEY,
             name       text        NOT NULL,
             checksum   bytea       NOT NULL,
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
    )
    .execute(&mut *transaction)
    .await
    .map_err(StoreError::from)?;
    let checksum = Sha256::digest(sql.as_bytes()).to_vec();
    let known = query("SELECT checksum FROM tenure.migrations WHERE version = $1")
        .bind(version)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(StoreError::from)?;
    if let Some(row) = known {
        if row.try_get::<Vec<u8>, _>(0).map_err(StoreError::from)? != checksum {
            return Err(MigrateError::Changed { version });
        }
        return Ok(false);
    }
    let failed = |error: sqlx::Error| MigrateError::Failed { version, name, source: error.into() };
    // The text is a constant of this program; it holds no input.
    raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(&mut *transaction).await.map_err(failed)?;
    query("INSERT INTO tenure.migrations (version, name, checksum) VALUES ($1, $2, $3)")
        .bind(version)
        .bind(name)
        .bind(checksum)
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::from)?;
    if let Some((_, oldest)) = CONTRACTING.iter().find(|(contracting, _)| *contracting == version) {
        query("UPDATE tenure.migrations SET breaks_before = $2 WHERE version = $1")
            .bind(version)
            .bind(oldest)
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::from)?;
    }
    Ok(true)
}
