//! Migrations: frozen once released, additive, and applied while workers work.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqlSafeStr};
use tenure::{JobRequest, KindOptions, Worker, errors::MigrateError, internals::STATEMENTS};

use crate::{
    additive::{objections, statements},
    harness::{Bench, Running, bench},
};

/// The released migrations, each with its SHA-256. A release adds lines; existing lines never change.
const RELEASED: &[(i64, &str, &str)] = &[
    (1, "tenure", "a693f880d5b102157d2baa2d055376a8d97a39522c8a0355e22a7f1f42c62f7d"),
    (2, "every_end", "bf68082272f9a0214bf9a5ad74f0a607d634b085bebb8e8e15fc5e0525dd3298"),
    (3, "lean_checks", "6ae0ec52100879eb0098000361a04322d95e09685af358b4169b6d74d2eaf6aa"),
    (4, "operate", "420c5860758018e3b61c49d89872566e7e307c3598941699af7ee119ff60fd22"),
    (5, "show", "5bc182297730b34b02a94c8fb34a0f0db6d9b27ef9d19baa5362fa54110a81ae"),
];

/// From this migration on, each one only adds. Before it, no installation had to update.
const ADDITIVE_FROM: i64 = 5;

/// A later release's migration, which changes every table, the busy ones first.
pub const NEXT: &str = "
    CREATE TABLE tenure.next (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
    ALTER TABLE tenure.jobs ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.job_history ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.dead_letter_jobs ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.job_keys ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.job_executions ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.recovery_events ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.effects ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.workers ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.queues ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.queue_slots ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.queue_stats ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.schedules ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.scanner_state ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.activity ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    ALTER TABLE tenure.relay_marks ADD COLUMN next_text text, ADD COLUMN next_number int NOT NULL DEFAULT 7;
    CREATE INDEX workers_next ON tenure.workers (pid);";

/// The number of [`NEXT`], beyond any real migration.
pub const NEXT_VERSION: i64 = 90_001;

fn files() -> Vec<(i64, String, String)> {
    let folder = PathBuf::from(crate::harness::ROOT).join("migrations");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let (version, name) = stem.split_once('_').unwrap();
            (version.parse().unwrap(), name.to_owned(), std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The ledger of a migrated database matches this program's migrations and the released ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_migration_never_changes() {
    let bench = bench().await;
    let ledger: Vec<(i64, String, String)> = sqlx::query_as(
        "SELECT version, name, encode(checksum, 'hex') FROM tenure.migrations ORDER BY version",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    for ((version, name, checksum), is) in RELEASED.iter().zip(&ledger) {
        assert_eq!(
            (*version, *name, *checksum),
            (is.0, is.1.as_str(), is.2.as_str()),
            "a released migration changed"
        );
    }
    assert!(ledger.len() >= RELEASED.len());
    let ledger: Vec<_> = ledger.into_iter().map(|(version, name, _)| (version, name)).collect();
    let files: Vec<_> = files().into_iter().map(|(version, name, _)| (version, name)).collect();
    assert_eq!(files, ledger, "every file is applied, in order, and nothing else");
}

#[test]
fn a_migration_only_adds() {
    for (version, name, sql) in files() {
        if version >= ADDITIVE_FROM {
            let objections = objections(&sql);
            assert!(objections.is_empty(), "migration {version} ({name}): {objections:#?}");
        }
    }
    assert!(!objections(&files()[2].2).is_empty(), "migration 3 drops constraints: the check is blind");
    assert_eq!(objections(NEXT), [""; 0]);
    assert!(statements(NEXT).len() > 10);
}

async fn apply_next(bench: &Bench) -> Result<Vec<i64>, MigrateError> {
    let tenure = tenure::Tenure::connect(&bench.config).await.unwrap();
    let applied = tenure.migrate_with(&[(NEXT_VERSION, "next", NEXT)], Duration::from_secs(60)).await;
    tenure.close().await;
    applied
}

/// Columns that this program does not know disturb none of its statements.
#[tokio::test(flavor = "multi_thread")]
async fn every_statement_fits_a_schema_that_has_more() {
    let bench = bench().await;
    assert_eq!(apply_next(&bench).await.unwrap(), [NEXT_VERSION]);
    assert_eq!(apply_next(&bench).await.unwrap(), [0_i64; 0]);
    for (name, sql) in STATEMENTS {
        (&bench.pool)
            .prepare(AssertSqlSafe(*sql).into_sql_str())
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The build blocks no writer: neither while it waits for a user's transaction, nor while it runs. An index that an
/// earlier try left unfinished is built again.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_of_live_jobs_is_built_while_others_write() {
    let bench = bench().await;
    let index = "pg_index WHERE indexrelid = to_regclass('tenure.jobs_unpublished_of_queue') AND indisvalid";
    assert_eq!(bench.count(index).await, 1);
    bench.execute("DROP INDEX tenure.jobs_unpublished_of_queue").await;
    let mut writer = bench.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at) VALUES (gen_random_uuid(), 'q', 'k', '1', 5, now(), now())")
        .execute(&mut *writer)
        .await
        .unwrap();
    let migration = tokio::spawn({
        let tenure = bench.tenure.clone();
        async move { tenure.migrate().await }
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'CREATE INDEX CONC%')").await;
    // The build waits for the writer; these enqueues do not wait.
    let since = Instant::now();
    for n in 0..20 {
        bench.tenure.enqueue(JobRequest::new("q", "k", serde_json::json!(n))).await.unwrap();
    }
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert!(!migration.is_finished());
    writer.commit().await.unwrap();
    assert_eq!(migration.await.unwrap().unwrap(), [0_i64; 0]);
    assert_eq!(bench.count(index).await, 1);
    // The state after an interrupted build: the index exists and is invalid.
    bench.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tenure.jobs_unpublished_of_queue'::regclass").await;
    bench.tenure.migrate().await.unwrap();
    assert_eq!(bench.count(index).await, 1);
}

/// A transaction of a user's that has read the live jobs, and stays open.
async fn reader(bench: &Bench) -> (PgConnection, i32) {
    let mut reader = PgConnection::connect(&bench.config.database_url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut reader).await.unwrap();
    let pid: (i32, i64) = sqlx::query_as("SELECT pg_backend_pid(), count(*) FROM tenure.jobs")
        .fetch_one(&mut reader)
        .await
        .unwrap();
    (reader, pid.0)
}

/// An ALTER TABLE that waits for its lock blocks all later statements.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_behind_a_long_transaction_stops_no_worker() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let working = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 4),
    );
    let done = Arc::new(AtomicBool::new(false));
    let producing = tokio::spawn({
        let (tenure, done) = (bench.tenure.clone(), done.clone());
        async move {
            let (mut longest, mut accepted) = (Duration::ZERO, 0_i64);
            while !done.load(Ordering::Relaxed) {
                let asked_at = Instant::now();
                tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
                longest = longest.max(asked_at.elapsed());
                accepted += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            (longest, accepted)
        }
    });
    bench.until("(SELECT count(*) FROM tenure.job_history) > 20").await;
    let (mut reader, pid) = reader(&bench).await;
    let migrating = tokio::spawn({
        let tenure = bench.tenure.clone();
        async move { tenure.migrate_with(&[(NEXT_VERSION, "next", NEXT)], Duration::from_secs(60)).await }
    });
    // The migration waits for its lock; between its tries, jobs start and end.
    bench
        .until(&format!(
            "EXISTS (SELECT FROM pg_locks l WHERE NOT l.granted AND {pid} = ANY (pg_blocking_pids(l.pid)))"
        ))
        .await;
    let before = bench.count("tenure.job_history").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!migrating.is_finished());
    let during = bench.count("tenure.job_history").await - before;
    assert!(during > 20, "{during} jobs have ended in 5 s");
    sqlx::query("COMMIT").execute(&mut reader).await.unwrap();
    assert_eq!(migrating.await.unwrap().unwrap(), [NEXT_VERSION]);
    done.store(true, Ordering::Relaxed);
    let (longest, accepted) = producing.await.unwrap();
    // Half a second of waiting, plus the delays of a busy machine.
    assert!(longest < Duration::from_secs(3), "an enqueue took {longest:?}");
    bench.until_count("tenure.job_history WHERE status = 'completed'", accepted).await;
    assert_eq!(bench.count("tenure.job_executions").await + bench.count("tenure.dead_letter_jobs").await, 0);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_never_gets_its_lock_says_who_holds_it() {
    let bench = bench().await;
    let (mut reader, pid) = reader(&bench).await;
    let asked_at = Instant::now();
    let migrations =
        [(NEXT_VERSION - 1, "before", "CREATE TABLE tenure.before (id int)"), (NEXT_VERSION, "next", NEXT)];
    let error = bench.tenure.migrate_with(&migrations, Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(error, MigrateError::Blocked { version: NEXT_VERSION, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("pid {pid} (tenure")) && text.contains("idle in transaction"), "{text}");
    assert!(asked_at.elapsed() < Duration::from_secs(20), "{:?}", asked_at.elapsed());
    // The migrations before it stay; the failed one leaves nothing, and no statement waits any more.
    let ledger = bench
        .text(&format!("SELECT version FROM tenure.migrations WHERE version >= {}", NEXT_VERSION - 1))
        .await;
    assert_eq!(ledger, format!("({})", NEXT_VERSION - 1));
    assert!(bench.value::<bool>("SELECT to_regclass('tenure.next') IS NULL").await);
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    sqlx::query("COMMIT").execute(&mut reader).await.unwrap();
    assert_eq!(bench.tenure.migrate_with(&migrations, Duration::from_secs(2)).await.unwrap(), [NEXT_VERSION]);
}
