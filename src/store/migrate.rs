//! Migrate: brings the schema up to date. Safe to run from many processes at once, and while workers work.
//!
//! One transaction applies the functions whose text has changed, then the baseline (in a fresh database) or the missing
//! migrations, then the grants of `postgres/roles.sql`: a session sees the old schema or the new one. `schema.rs` lists
//! the files. Functions come first, unchecked: tables, indexes and triggers use them, and each names tables only in its
//! body.
//!
//! An `ALTER TABLE` waits for all transactions that use the table, and every later statement waits behind it: one long
//! transaction of a user's would stop all claims. So no statement of a migration waits for a lock for longer than half
//! a second. Then `migrate` rolls back, lets the other sessions go on, and tries again.
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
//! - `a_function_whose_text_has_changed_is_applied_again`
//! - `a_database_of_migration_30_becomes_equal_to_a_fresh_one`
//! - `a_database_of_an_older_migration_is_refused`

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr, query, raw_sql};
use tokio::time::{sleep, timeout};

use super::{
    APPLIED_FUNCTIONS, BLOCKERS, GRANTABLE, NOTE_FUNCTION, SERVER_ENCODING, UNBUILT_INDEXES,
    UNINDEXED_PARTITIONS,
    call::{Store, StoreError},
    schema::{
        BASELINE, BASELINE_CHECKSUM, BASELINE_VERSION, FUNCTIONS, MIGRATIONS, Migration, NEEDS, ROLES,
        TAKEN_OVER,
    },
};
use crate::job::duration::measured;

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

/// The migrations that take away what a program of the release before uses, each with the oldest one that a program
/// must know to work afterwards. None does so far. The first needs a release before it that does without.
const CONTRACTING: &[(i64, i64)] = &[];

/// "tenure" in ASCII: the key of the lock that makes migrations wait for each other.
const LOCK_KEY: i64 = 0x7465_6e75_7265;

/// How long `migrate` tries to get the locks of the migrations.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two tries, in which the sessions that waited behind the first go on. It grows.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The name of the grants among what was applied.
const ROLES_FILE: &str = "postgres/roles.sql";

/// How often `migrate` looks for the holders of a lock; shorter than the wait for one.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Postgres gave no answer. Run it again: all that is missing is applied, or nothing.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A migration failed, or a file of the baseline or of a function; all was rolled back.
    #[error("migration {version} ({name}) failed and was rolled back")]
    Failed {
        /// Its number; of a function, the version of the schema that it belongs to.
        version: i64,
        /// Its name, or the path of the file below `migrations/`.
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
    /// The schema is older than the oldest that this program updates.
    #[error(
        "this database has version {version} of tenure's schema, and this program updates version {BASELINE_VERSION} \
         and later: run `tenure migrate` with the program built at commit ebf7e6a, then this one again; or use a fresh \
         database"
    )]
    TooOld {
        /// Its version.
        version: i64,
    },
    /// The database cannot hold every character.
    #[error(
        "this database has the encoding {encoding}, and tenure needs UTF8: nothing was changed. Create another one, as \
         by: createdb --encoding UTF8 --template template0 NAME"
    )]
    Encoding {
        /// Its encoding.
        encoding: String,
    },
    /// The schema is up to date, but an index could not be built. Without it everything works, and some statements take
    /// longer.
    #[error("an index could not be built; mend what the error says, and run `tenure migrate` again")]
    Index(#[source] StoreError),
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
    /// The migration that lacked a lock: another try may succeed.
    fn lacks_lock(&self) -> Option<(i64, &'static str)> {
        match self {
            Self::Store(source) if is_of_a_lock(source) => Some((NEEDS, "schema")),
            Self::Failed { version, name, source } if is_of_a_lock(source) => Some((*version, name)),
            _ => None,
        }
    }
}

/// Whether another session was in the way, by a lock or by a change of the same row of the catalogue.
fn is_of_a_lock(error: &StoreError) -> bool {
    error.is_locked() || error.is_deadlock() || error.to_string().contains("tuple concurrently updated")
}

impl Store {
    /// Applies what is missing, and returns the versions of the migrations among it.
    pub(crate) async fn migrate(&self) -> Result<Vec<i64>, MigrateError> {
        let rows = self.rows(query(SERVER_ENCODING)).await?;
        let encoding: String = match rows.first() {
            Some(row) => row.try_get("encoding").map_err(StoreError::from)?,
            None => String::new(),
        };
        if encoding != "UTF8" {
            return Err(MigrateError::Encoding { encoding });
        }
        let applied = self.apply(&[], PATIENCE).await?;
        // Without the indexes everything works, and some statements take longer.
        match timeout(BUILT_WITHIN, self.build_indexes()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if !error.may_pass() || matches!(error, StoreError::Pooler(_)) => {
                return Err(MigrateError::Index(error));
            }
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

    /// Applies what is missing, with `further` migrations after those of this program, in one transaction.
    pub(crate) async fn apply(
        &self,
        further: &[Migration],
        patience: Duration,
    ) -> Result<Vec<i64>, MigrateError> {
        let mut connection = self.migration_connection().await?;
        let answer = self.apply_over(&mut connection, further, patience).await;
        // The work is committed or rolled back by now; a close that fails changes nothing.
        drop(connection.close().await);
        answer
    }

    async fn apply_over(
        &self,
        connection: &mut PgConnection,
        further: &[Migration],
        patience: Duration,
    ) -> Result<Vec<i64>, MigrateError> {
        let (mut since, mut pause) = (None, PAUSE);
        loop {
            let mut holders = "a session that this role could not see".to_owned();
            let answer = self.try_once(connection, further, &mut holders).await;
            let Err(error) = &answer else { return answer };
            let Some((version, name)) = error.lacks_lock() else { return answer };
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= patience {
                return Err(MigrateError::Blocked { version, name, holders, waited });
            }
            tracing::warn!(version, name, holders, %error, "other sessions hold a lock; the migration will retry");
            sleep(pause.min(patience.saturating_sub(waited))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_once(
        &self,
        connection: &mut PgConnection,
        further: &[Migration],
        holders: &mut String,
    ) -> Result<Vec<i64>, MigrateError> {
        let mut transaction = connection.begin().await.map_err(StoreError::from)?;
        let pid = alone(&mut transaction).await?;
        let answer = {
            let mut work = std::pin::pin!(apply_missing(&mut transaction, further));
            loop {
                match timeout(LOOK_EVERY, &mut work).await {
                    Ok(answer) => break answer,
                    Err(_) => self.look_for_holders(pid, holders).await,
                }
            }
        };
        match answer {
            Ok(applied) => {
                transaction.commit().await.map_err(StoreError::from)?;
                Ok(applied)
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

/// Applies the changed functions, the baseline or the missing migrations, and the grants.
async fn apply_missing(
    transaction: &mut PgConnection,
    further: &[Migration],
) -> Result<Vec<i64>, MigrateError> {
    let ledger = open_ledger(transaction).await?;
    let is_fresh = ledger.is_empty();
    if let Some(version) = ledger.iter().map(|applied| applied.0).max().filter(|max| *max < BASELINE_VERSION)
    {
        return Err(MigrateError::TooOld { version });
    }
    let newest = MIGRATIONS.iter().chain(further).map(|migration| migration.0).max();
    if ledger.iter().map(|applied| applied.0).max() > newest.max(Some(BASELINE_VERSION)) {
        // Its functions and grants are those of that release, which this program works with unless its checks say so.
        tracing::warn!(
            needs = NEEDS,
            "a newer release has migrated this database: `migrate` of this one changes nothing"
        );
        return Ok(Vec::new());
    }
    let changed = apply_functions(transaction).await?;
    let mut applied = Vec::new();
    if is_fresh {
        for &(name, sql) in BASELINE {
            execute(transaction, (BASELINE_VERSION, name, sql)).await?;
        }
        note(transaction, BASELINE_VERSION, "baseline", &BASELINE_CHECKSUM).await?;
        applied.push(BASELINE_VERSION);
    } else {
        let known = &ledger.iter().find(|known| known.0 == BASELINE_VERSION).map(|known| &known.1);
        if !known.is_some_and(|known| *known == BASELINE_CHECKSUM || *known == TAKEN_OVER) {
            return Err(MigrateError::Changed { version: BASELINE_VERSION });
        }
    }
    for &migration in MIGRATIONS.iter().chain(further) {
        let (version, name, sql) = migration;
        match ledger.iter().find(|known| known.0 == version) {
            Some(known) if known.1 == checksum(sql) => {}
            Some(_) => return Err(MigrateError::Changed { version }),
            None => {
                execute(transaction, migration).await?;
                note(transaction, version, name, &checksum(sql)).await?;
                applied.push(version);
            }
        }
    }
    grant(transaction, changed > 0 || !applied.is_empty()).await?;
    Ok(applied)
}

/// Returns the versions that were applied, each with the checksum of its text.
async fn open_ledger(transaction: &mut PgConnection) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
    raw_sql(
        "CREATE SCHEMA IF NOT EXISTS tenure;
         CREATE TABLE IF NOT EXISTS tenure.migrations (
             version       bigint      PRIMARY KEY,
             name          text        NOT NULL,
             checksum      bytea       NOT NULL,
             applied_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
             -- Programs that know no migration of at least this number refuse to start. NULL: it takes nothing away.
             breaks_before bigint);
         CREATE TABLE IF NOT EXISTS tenure.functions (
             name       text        PRIMARY KEY,
             checksum   bytea       NOT NULL,
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
    )
    .execute(&mut *transaction)
    .await?;
    let rows = query("SELECT version, checksum FROM tenure.migrations").fetch_all(transaction).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Applies the functions whose text is not the one that was applied last, and returns how many.
async fn apply_functions(transaction: &mut PgConnection) -> Result<usize, MigrateError> {
    let rows = query(APPLIED_FUNCTIONS).fetch_all(&mut *transaction).await.map_err(StoreError::from)?;
    let applied = rows.iter().map(|row| Ok((row.try_get("name")?, row.try_get("checksum")?)));
    let applied: HashMap<String, Vec<u8>> =
        applied.collect::<Result<_, sqlx::Error>>().map_err(StoreError::from)?;
    raw_sql("SET LOCAL check_function_bodies = off")
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::from)?;
    let mut changed = 0;
    for &(path, sql) in FUNCTIONS {
        let (name, checksum) = (path.rsplit('/').next().unwrap_or(path), checksum(sql));
        if applied.get(name) == Some(&checksum) {
            continue;
        }
        execute(transaction, (NEEDS, path, sql)).await?;
        query(NOTE_FUNCTION)
            .bind(name)
            .bind(checksum)
            .execute(&mut *transaction)
            .await
            .map_err(StoreError::from)?;
        changed += 1;
    }
    if changed > 0 {
        tracing::info!(changed, "applied functions of the schema");
    }
    Ok(changed)
}

/// Executes a file of this program; it holds no input.
async fn execute(
    transaction: &mut PgConnection,
    (version, name, sql): Migration,
) -> Result<(), MigrateError> {
    let done = raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(transaction).await;
    done.map(drop).map_err(|error| MigrateError::Failed { version, name, source: error.into() })
}

async fn note(
    transaction: &mut PgConnection,
    version: i64,
    name: &str,
    checksum: &[u8],
) -> Result<(), StoreError> {
    let breaks_before =
        CONTRACTING.iter().find(|(contracting, _)| *contracting == version).map(|(_, oldest)| *oldest);
    query("INSERT INTO tenure.migrations (version, name, checksum, breaks_before) VALUES ($1, $2, $3, $4)")
        .bind(version)
        .bind(name)
        .bind(checksum)
        .bind(breaks_before)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Grants what `postgres/roles.sql` says, if its roles exist, this role may grant, and something has changed: the
/// schema, that file, or the roles, which have no rights yet.
async fn grant(transaction: &mut PgConnection, has_changed: bool) -> Result<(), StoreError> {
    let row = query(GRANTABLE).fetch_one(&mut *transaction).await?;
    let lacks: Vec<String> = row.try_get("lacks")?;
    if lacks.len() == row.try_get::<i64, _>("roles")?.unsigned_abs().try_into().unwrap_or(usize::MAX) {
        return Ok(());
    }
    if !lacks.is_empty() {
        let lacks = lacks.join(", ");
        tracing::warn!(
            lacks,
            "some roles of postgres/roles.sql do not exist, and none gets a grant; run that file"
        );
        return Ok(());
    }
    let is_granted = row.try_get::<Option<Vec<u8>>, _>("granted")? == Some(checksum(ROLES));
    if !row.try_get::<bool, _>("may_grant")? || is_granted && !has_changed && row.try_get("have_rights")? {
        return Ok(());
    }
    let mut savepoint = transaction.begin().await?;
    match raw_sql(ROLES).execute(&mut *savepoint).await.map_err(StoreError::from) {
        Ok(_) => savepoint.commit().await?,
        Err(error) if error.is_denied() => {
            savepoint.rollback().await?;
            tracing::warn!(%error, "may not grant all of postgres/roles.sql; run it with psql as a role that may");
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    query(NOTE_FUNCTION).bind(ROLES_FILE).bind(checksum(ROLES)).execute(transaction).await?;
    Ok(())
}

fn checksum(sql: &str) -> Vec<u8> {
    Sha256::digest(sql.as_bytes()).to_vec()
}
