//! The schema, its migrations, its statements, and the views for people and programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use sqlx::{AssertSqlSafe, Executor, PgPool, SqlSafeStr};
use tenure::{
    Tenure,
    internals::{FUNCTIONS, statements},
};

use crate::harness::{Running, bench, bench_with_servers};

/// The checks of `sqlx::query!`, without a database at build time.
#[tokio::test(flavor = "multi_thread")]
async fn every_statement_fits_the_schema_and_opens_with_its_name_and_contract() {
    let bench = bench().await;
    for (name, sql) in statements() {
        assert!(sql.starts_with(&format!("-- {name}: ")), "{name}.sql must open with its name and contract");
        (&bench.pool)
            .prepare(AssertSqlSafe(sql).into_sql_str())
            .await
            .unwrap_or_else(|error| panic!("{name}.sql: {error}"));
    }
}

/// The files under this folder: name to folder and text.
fn sql_files(folder: &Path, files: &mut BTreeMap<String, (PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sql_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "sql") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let other = files.insert(name, (folder.to_owned(), text));
            assert!(other.is_none(), "two of the name of {}", path.display());
        }
    }
}

#[test]
fn every_sql_file_is_a_statement_or_a_part_of_one() {
    let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"));
    let store = sources.join("store");
    let mut files = BTreeMap::new();
    sql_files(sources, &mut files);
    let included: BTreeSet<PathBuf> = files
        .values()
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| Some(store.join(line.strip_prefix("-- include ")?)))
        .collect();
    let mut listed: BTreeSet<&str> = statements().map(|(name, _)| name).collect();
    for (name, (folder, text)) in &files {
        assert!(text.starts_with(&format!("-- {name}: ")), "{name}.sql does not open with its name");
        if folder.ends_with("parts") {
            assert!(
                included.contains(&folder.join(format!("{name}.sql"))),
                "no statement includes {name}.sql"
            );
        } else {
            assert!(listed.remove(name.as_str()), "{name}.sql is not in the list of statements");
            // Its text alone cannot be pasted into psql.
            let says =
                text.contains(&format!("-- Made of parts: `scripts/statement {name}` prints it whole.\n"));
            assert_eq!(
                says,
                text.contains("-- include "),
                "{name}.sql does not name the command that prints it"
            );
        }
    }
    assert!(listed.is_empty(), "{listed:?} are no files");
}

#[test]
fn the_script_prints_each_statement_as_it_is_sent() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/statement");
    let printed =
        Command::new("python3").arg(script).args(statements().map(|(name, _)| name)).output().unwrap();
    assert!(printed.status.success());
    let of_that_name = |name: &str| {
        let function = FUNCTIONS.iter().find(|(path, _)| path.ends_with(&format!("/{name}")));
        function.map_or(String::new(), |(_, sql)| format!("\n{sql}"))
    };
    let sent: String = statements().flat_map(|(name, sql)| [sql.to_owned(), of_that_name(name)]).collect();
    assert!(String::from_utf8(printed.stdout).unwrap() == sent);
    let names = FUNCTIONS.iter().map(|(path, _)| format!("tenure.{}", path.rsplit('/').next().unwrap()));
    let printed = Command::new("python3").arg(script).args(names).output().unwrap();
    assert!(
        String::from_utf8(printed.stdout).unwrap()
            == FUNCTIONS.iter().map(|(_, sql)| *sql).collect::<String>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_migrations_at_once_apply_each_version_once() {
    let bench = bench_with_servers(|_| {}).await;
    let admin = &bench.pool;
    sqlx::query("CREATE DATABASE fresh").execute(admin).await.unwrap();
    let mut config = bench.config.clone();
    config.database_url = bench.own.as_ref().unwrap().postgres.url_of("fresh");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let config = config.clone();
            tokio::spawn(async move { Tenure::connect(&config).await.unwrap().migrate().await.unwrap() })
        })
        .collect();
    let mut applied = Vec::new();
    for task in tasks {
        applied.extend(task.await.unwrap());
    }
    assert_eq!(applied, [30, 31, 32, 33, 34, 35, 36, 37, 38]);
    let pool = PgPool::connect(&config.database_url).await.unwrap();
    let ledger: Vec<(i64, String)> = sqlx::query_as("SELECT version, name FROM tenure.migrations ORDER BY 1")
        .fetch_all(&pool)
        .await
        .unwrap();
    let names = [
        (30, "baseline"),
        (31, "older_forms"),
        (32, "one_trigger_for_lanes"),
        (33, "moved_queues"),
        (34, "looks_in_parts"),
        (35, "looks_from"),
        (36, "notes_that_rest"),
        (37, "options_from_the_type"),
        (38, "findings"),
    ];
    assert_eq!(ledger, names.map(|(version, name)| (version, name.to_owned())));
    // tenure has its own ledger and leaves the user's alone.
    let others: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(others, 0);
    // An applied migration with a different checksum is refused, with its number.
    sqlx::query("UPDATE tenure.migrations SET checksum = '\\x00' WHERE version = 31")
        .execute(&pool)
        .await
        .unwrap();
    let error = Tenure::connect(&config).await.unwrap().migrate().await.unwrap_err().to_string();
    assert!(error.contains("migration 31") && error.contains("other contents"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_schema_every_program_says_to_migrate() {
    let bench = bench_with_servers(|_| {}).await;
    bench.execute("DROP SCHEMA tenure CASCADE").await;
    let job = tenure::JobRequest::new("q", "k", serde_json::json!(1));
    let error = bench.tenure.enqueue(job).await.unwrap_err().to_string();
    assert!(error.contains("tenure migrate"), "{error}");
    // A worker waits for the schema, unready: in a deploy the migration may come later.
    let worker = tenure::Worker::builder(&bench.tenure)
        .handle_any(tenure::KindOptions::new(), |_, _| async {})
        .concurrency("q", 1);
    let health = worker.health();
    let working = Running::start(worker);
    let lacks = |text: &str| health.ready().is_err_and(|why| why.iter().any(|line| line.contains(text)));
    until(|| lacks("schema: this database has no tenure schema")).await;
    assert!(lacks("tenure migrate") && health.live().is_ok() && !health.has_started());
    bench.tenure.migrate().await.unwrap();
    until(|| health.ready().is_ok()).await;
    working.stop().await;
}

/// Waits until a condition holds.
async fn until(holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within 30 s");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_views_have_the_columns_that_readers_rely_on() {
    let bench = bench().await;
    let columns = |view: &'static str| {
        let pool = bench.pool.clone();
        async move {
            sqlx::query_scalar::<_, String>(
                "SELECT string_agg(column_name, ' ' ORDER BY ordinal_position) FROM information_schema.columns
                  WHERE table_schema = 'tenure' AND table_name = $1",
            )
            .bind(view)
            .fetch_one(&pool)
            .await
            .unwrap()
        }
    };
    assert_eq!(
        columns("all_jobs").await,
        "id queue kind payload status attempt max_attempts fencing_token worker_id created_at scheduled_at started_at \
         last_activity_at finished_at stage progress message output last_error"
    );
    assert_eq!(
        columns("job_executions_all").await,
        "job_id fencing_token attempt worker_id started_at finished_at outcome error"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_kept_by_day_and_a_missing_day_stops_no_completion() {
    let bench = bench().await;
    let partitions = "pg_inherits WHERE inhparent = 'tenure.job_history'::regclass";
    // Around midnight, the schema may be from the day before.
    let begun: i32 = bench.value("SELECT tenure.create_history_partitions(7)").await;
    assert!(begun <= 1, "{begun}");
    let existing = bench.count(partitions).await - i64::from(begun);
    assert_eq!(existing, 10, "yesterday, today, a week ahead, and the rest");
    assert_eq!(bench.value::<i32>("SELECT tenure.create_history_partitions(7)").await, 0);
    assert_eq!(bench.value::<i32>("SELECT tenure.create_history_partitions(9)").await, 2);
    assert_eq!(
        bench.value::<i32>("SELECT tenure.create_history_partitions(4000)").await,
        22,
        "a month at most"
    );
    // A job with an id of 2001, from a producer with a broken clock.
    let row = "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, created_at, scheduled_at, finished_at)
               VALUES ($1, 'q', 'k', '1', 'completed', 1, 1, 1, now(), now(), now())";
    for id in [uuid::Uuid::from_u128(0x00e7_0000_0000_7000_8000_0000_0000_0001), uuid::Uuid::now_v7()] {
        sqlx::query(row).bind(id).execute(&bench.pool).await.unwrap();
    }
    assert_eq!(bench.count("tenure.job_history_default").await, 1);
    let today = format!("tenure.job_history_{}", chrono::Utc::now().format("%Y%m%d"));
    assert_eq!(bench.count(&today).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_predicates_never_name_a_status() {
    let bench = bench().await;
    let predicates = bench
        .text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'tenure' AND tablename = 'jobs' AND indexdef LIKE '%WHERE%'")
        .await;
    assert!(!predicates.is_empty() && !predicates.contains("status"), "{predicates}");
}

/// A database that cannot hold every character is refused before anything is made in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_another_encoding_is_refused_by_name() {
    let bench = bench_with_servers(|_| {}).await;
    for (name, encoding) in [("latin", "LATIN1"), ("ascii", "SQL_ASCII")] {
        let create = format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        bench.execute(&create).await;
        let mut config = bench.config.clone();
        config.database_url = bench.own.as_ref().unwrap().postgres.url_of(name);
        let tenure = Tenure::connect(&config).await.unwrap();
        let error = tenure.migrate().await.unwrap_err().to_string();
        assert!(error.contains(&format!("has the encoding {encoding}, and tenure needs UTF8")), "{error}");
        let pool = PgPool::connect(&config.database_url).await.unwrap();
        let made: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname = 'tenure'")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(made, 0);
    }
}
