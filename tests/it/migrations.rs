//! Migrations: frozen once released, additive, and applied while workers work.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, SqlSafeStr};
use tenure::{
    JobRequest, KindOptions, Worker,
    errors::MigrateError,
    internals::{self, FUNCTIONS, MIGRATIONS},
};

use crate::{
    additive::{objections, statements},
    harness::{Bench, Running, bench, bench_with_servers},
    sql::run,
};

/// Every migration, each with its SHA-256. A release adds lines; existing lines never change. The baseline: of its files,
/// one after the other.
const RELEASED: &[(i64, &str, &str)] = &[
    (30, "baseline", "586a6a9706af9610a85eba36d132eba914138a8d2ab030b6ef76379117a6c9dc"),
    (31, "older_forms", "d6e20ce3ad9eb986397a3e6978f2135e5461c4eb03e9d8d8a2b54aff7ccc66e8"),
    (32, "one_trigger_for_lanes", "487c750b1a7523b7d361e695f1a471d820bd4e1f39b1f0002b22707eed06a045"),
    (33, "moved_queues", "0e19df757c7228dca677d4431f63384ae81e3242fa1c611145d5407617f02bf4"),
    (34, "looks_in_parts", "254e125f0ca675b9f14978533093b78f872da634c568074345e2dc9d5a1ca454"),
    (35, "looks_from", "b0bbf7d9c8ad8e8f14ffa1595a094aea1e128cffa083445860dd605c7ce6b9b1"),
    (36, "notes_that_rest", "dd0a489797ede978808869684c2d1ce229a2330711db3d82ef2dda738099841f"),
    (37, "options_from_the_type", "5e078d24719f6e179d014d0b116a696a36fb3e3eeb82ce207e4b9872e08f83c7"),
    (38, "findings", "883d3b676a52240de72bd3e1365bb261300731819c9f038201f88b64afe1055f"),
];

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

/// The ledger of a migrated database has this program's migrations, and those are the released ones and the files.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_migration_never_changes() {
    let bench = bench().await;
    let ledger: Vec<(i64, String, String)> = sqlx::query_as(
        "SELECT version, name, encode(checksum, 'hex') FROM tenure.migrations ORDER BY version",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let ledger: Vec<_> = ledger.iter().map(|row| (row.0, row.1.as_str(), row.2.as_str())).collect();
    assert_eq!(ledger, RELEASED, "a migration has changed, or stands in no line of RELEASED");
    let folder = PathBuf::from(crate::harness::ROOT).join("migrations");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".sql"))
        .collect();
    let known = MIGRATIONS.iter().map(|(version, name, _)| format!("{version:04}_{name}.sql")).collect();
    assert_eq!(files, known, "every file is applied");
}

/// Of the baseline's text only the comments may change.
#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_baseline_never_change() {
    let lines = internals::BASELINE.iter().flat_map(|(_, sql)| sql.lines());
    let lines = lines.map(|line| line.split("--").next().unwrap_or_default().trim_end());
    let statements = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let hash: String = sqlx::query_scalar("SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')")
        .bind(statements)
        .fetch_one(&bench().await.pool)
        .await
        .unwrap();
    assert_eq!(hash, "bb0f481a4c19e0b7413ef7da53c482334456c358a0f89fb14c9f4b198ba6dfc1");
}

#[test]
fn every_column_says_what_it_holds() {
    // The texts of those up to 35 were released without.
    let migrations = MIGRATIONS.iter().filter(|(version, ..)| *version > 35);
    let migrations = migrations.map(|(_, name, sql)| (*name, *sql));
    for (file, sql) in internals::BASELINE.iter().copied().chain(migrations) {
        let mut before = "";
        for line in sql.lines() {
            let added = line.trim_start().strip_prefix("ADD COLUMN ");
            let column =
                line.strip_prefix("    ").filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
            let is_column = added.is_some()
                || column.is_some_and(|line| {
                    line.split_whitespace()
                        .nth(1)
                        .is_some_and(|word| TYPES.contains(&word.trim_end_matches(',')))
                });
            let is_said = line.contains("--") || before.trim_start().starts_with("--");
            assert!(!is_column || is_said, "{file}: no comment says what this column holds: {line}");
            before = line;
        }
    }
}

/// The types of columns.
const TYPES: [&str; 13] = [
    "text",
    "text[]",
    "uuid",
    "uuid[]",
    "int",
    "bigint",
    "smallint",
    "boolean",
    "timestamptz",
    "interval",
    "jsonb",
    "bytea",
    "float8",
];

#[test]
fn a_migration_only_adds() {
    for (version, name, sql) in MIGRATIONS {
        // Migration 31 drops functions that no released program calls, 32 puts triggers in the place of others, and 33
        // drops what moved queues: see their files.
        let allowed: &[&str] =
            if *version <= 33 { &["not on the list of statements that only add: do $$"] } else { &[] };
        assert_eq!(objections(sql), allowed, "migration {version} ({name})");
    }
    assert_eq!(objections(NEXT), [""; 0]);
    assert!(statements(NEXT).len() > 10);
}

/// What the schema of a database is made of.
async fn catalogue(pool: &PgPool) -> Vec<(String, Option<String>)> {
    sqlx::query_as(include_str!("catalogue.sql")).fetch_all(pool).await.unwrap()
}

fn differ_in_nothing(one: &[(String, Option<String>)], other: &[(String, Option<String>)]) {
    let lacks = |of: &[(String, Option<String>)], row| !of.contains(row);
    let differ = one.iter().filter(|row| lacks(other, row)).chain(other.iter().filter(|row| lacks(one, row)));
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty(), "{differ:#?}");
}

/// A database as the last program that had migrations 1 to 30 made it, with jobs of its own.
async fn taken_over(bench: &Bench) {
    let dump = std::process::Command::new("gzip")
        .args(["-dc", concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/migration_30.sql.gz")])
        .output()
        .unwrap();
    assert!(dump.status.success());
    bench.execute("DROP SCHEMA tenure CASCADE").await;
    // The dump leaves the session with settings of its own.
    let mut session = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let sql = String::from_utf8(dump.stdout).unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_migration_30_becomes_equal_to_a_fresh_one() {
    let (old, fresh) = (bench().await, bench().await);
    taken_over(&old).await;
    let tables = |rows: &[(String, Option<String>)]| -> Vec<_> {
        let is_table = |row: &&(String, Option<String>)| {
            let ledgers = [" migrations", " functions", "_functions", "_migrations"];
            !row.0.starts_with("function ") && !ledgers.iter().any(|ledger| row.0.contains(ledger))
        };
        rows.iter().filter(is_table).cloned().collect()
    };
    let is = catalogue(&fresh.pool).await;
    assert!(is.len() > 700, "{} rows", is.len());
    let rights_to_audit = |row: &(String, Option<String>)| row.0.starts_with("column audit.");
    let mut was = tables(&catalogue(&old.pool).await);
    let mut baseline = tables(&is);
    // Migration 31 takes one right back, 32, 34 and 36 to 38 add columns, and 35 a table: see their files.
    let new = [
        "lane_settings.holds",
        "followers.mended_to",
        "looks_from",
        "group_ends.rests_until",
        "lane_settings.required",
        "schedules.options",
        "scanner_state.findings",
    ];
    let is_new = |row: &(String, Option<String>)| new.iter().any(|new| row.0.contains(new));
    was.retain(|row| !rights_to_audit(row));
    baseline.retain(|row| !rights_to_audit(row) && !is_new(row));
    differ_in_nothing(&was, &baseline);
    // Its program had moved this queue to another cell: the migration drops the trigger that refuses its jobs.
    old.execute(
        "SELECT tenure.mark_queue('moved', moves, 'eu', NULL, NULL, '1s') FROM tenure.begin_move('moved')",
    )
    .await;
    assert!(old.tenure.enqueue(JobRequest::new("moved", "k", json!(1))).await.is_err());
    // And each queue with lanes had a trigger of its own.
    for queue in ["laned", "other"] {
        let put =
            format!("SELECT tenure.put_lanes('{queue}', 1, NULL, NULL, NULL, NULL, false, false, '1s')");
        old.execute(&put).await;
    }
    let triggers = "pg_trigger WHERE tgrelid = 'tenure.jobs'::regclass AND tgname LIKE 'lanes%'";
    assert_eq!(old.count(triggers).await, 2);
    assert_eq!(old.tenure.migrate().await.unwrap(), [31, 32, 33, 34, 35, 36, 37, 38]);
    assert_eq!(old.count(triggers).await, 1);
    old.execute("SELECT tenure.enqueue('laned', 'k')").await;
    assert_eq!(old.count("tenure.lane_jobs WHERE queue = 'laned'").await, 1);
    for table in ["jobs", "lane_jobs"] {
        old.execute(&format!("DELETE FROM tenure.{table} WHERE queue = 'laned'")).await;
    }
    for queue in ["laned", "other"] {
        old.execute(&format!("SELECT tenure.remove_lanes('{queue}'), tenure.forget_lanes('{queue}')")).await;
    }
    let mut open = old.pool.begin().await.unwrap();
    old.tenure.enqueue(JobRequest::new("moved", "k", json!(1))).tx(&mut open).await.unwrap();
    open.rollback().await.unwrap();
    differ_in_nothing(&catalogue(&old.pool).await, &is);
    assert_eq!(old.tenure.migrate().await.unwrap(), [0_i64; 0]);
    // Its jobs run on.
    assert_eq!(old.count("tenure.job_history").await, 3);
    old.tenure.setup(&["mail".into()]).await.unwrap();
    let working = Running::start(
        Worker::builder(&old.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("mail", 4),
    );
    old.until_count("tenure.job_history WHERE status = 'completed'", 4).await;
    working.stop().await;
    old.every_job_is_as_it_must_be().await;
}

/// The rights of a producer that somebody granted to a role of their own, by the release before.
const RIGHTS_OF_30: &str = "
    GRANT USAGE ON SCHEMA tenure TO app;
    GRANT INSERT (id, queue, kind, payload, max_attempts, scheduled_at, trace_context, dispatch, publish_at, published_at,
                  lane, priority, not_after, expires_as, group_id),
          SELECT (id, queue, publish_at, published_at, dispatch, fencing_token, status) ON tenure.jobs TO app;
    GRANT INSERT (at, job_id) ON tenure.job_expiries TO app;
    GRANT INSERT (job_id, tag) ON tenure.job_tags TO app;
    GRANT INSERT (scope, key, job_id, stream_seq, stream_published_at), SELECT (scope, key, job_id) ON tenure.job_keys TO app;
    GRANT SELECT (queue, max_queued) ON tenure.queues TO app;
    GRANT EXECUTE ON FUNCTION tenure.enqueue TO app WITH GRANT OPTION;
    GRANT EXECUTE ON FUNCTION tenure.enqueue_many, tenure.create_jobs, tenure.take_key TO app;";

#[tokio::test(flavor = "multi_thread")]
async fn calls_grants_and_objects_of_before_the_migration_go_on_after_it() {
    let bench = bench_with_servers(|_| {}).await;
    taken_over(&bench).await;
    bench.execute("CREATE ROLE app LOGIN PASSWORD 'pw'").await;
    for sql in [
        RIGHTS_OF_30,
        "CREATE VIEW public.older AS SELECT tenure.enqueue_8('q', 'older', '1', 'o', NULL, NULL, 3, NULL)",
        "CREATE VIEW public.calls AS SELECT tenure.enqueue('q', 'view', unique_key => 'v') AS job",
        "CREATE TABLE public.orders (n int, job uuid DEFAULT tenure.enqueue('q', 'default'));
         GRANT ALL ON public.orders, public.calls TO app",
        "CREATE FUNCTION public.confirm(n int) RETURNS uuid LANGUAGE plpgsql AS $$
         BEGIN RETURN tenure.enqueue('q', 'function', to_jsonb(n), max_attempts => 3); END $$",
        // From here on no role may execute a new function, unless its file says so.
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&bench.pool).await.unwrap();
    }
    let (before, host) = bench.config.database_url.split_once('@').unwrap();
    let url = format!("{}//app:pw@{host}", before.split_once("//").unwrap().0);
    let mut app = PgConnection::connect(&url).await.unwrap();
    // Six runs each, so that Postgres keeps a plan for all of them.
    let prepared = [
        ("by_place", "'q', 'place', '1', NULL, NULL, '1 s'::interval, 3, NULL"),
        ("by_name", "'q', 'name', delay => '1 s', max_attempts => 3"),
        ("two", "'q', 'two'"),
    ];
    for (name, arguments) in prepared {
        run(&mut app, &format!("PREPARE {name} AS SELECT tenure.enqueue({arguments})")).await;
    }
    run(&mut app, r#"PREPARE many AS SELECT tenure.enqueue_many('[{"queue": "q", "kind": "many", "unique_key": "m"}]')"#)
        .await;
    let calls = [
        "EXECUTE by_place",
        "EXECUTE by_name",
        "EXECUTE two",
        "EXECUTE many",
        "SELECT public.confirm(1)",
        "SELECT * FROM public.calls",
        "INSERT INTO public.orders (n) VALUES (1)",
        "SELECT tenure.enqueue('q', 'text', '1', 'u', now(), NULL, 3, NULL)",
        "SELECT tenure.enqueue('q', 'text', unique_key => 'u2', run_at => now())",
    ];
    for _ in 0..6 {
        for call in calls {
            run(&mut app, call).await;
        }
    }
    let count = async || bench.count("tenure.jobs WHERE queue = 'q'").await;
    // Five calls that create a job each time, and four whose key is then taken.
    assert_eq!(count().await, 6 * 5 + 4);
    // A transaction that has called it stays open over the migration's end: it only needs no lock that lasts.
    assert_eq!(bench.tenure.migrate().await.unwrap(), [31, 32, 33, 34, 35, 36, 37, 38]);
    for _ in 0..6 {
        for call in calls {
            run(&mut app, call).await;
        }
    }
    assert_eq!(count().await, 12 * 5 + 4);
    for arguments in ["lane => 'a'", "not_after => now()", "replace => 'a'", "tags => '{a}'"] {
        run(&mut app, &format!("SELECT tenure.enqueue('q', 'k', {arguments})")).await;
    }
    let rights = "SELECT has_function_privilege('app', p.oid, 'EXECUTE WITH GRANT OPTION')
                         AND NOT EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0)
                    FROM pg_proc p WHERE p.oid = to_regproc('tenure.enqueue')";
    assert!(bench.value::<bool>(rights).await, "the rights stay, with the right to grant them");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_an_older_migration_is_refused() {
    let bench = bench().await;
    bench.execute("DELETE FROM tenure.migrations").await;
    bench.execute("INSERT INTO tenure.migrations (version, name, checksum) VALUES (12, 'cells', '')").await;
    let before = catalogue(&bench.pool).await;
    let error = bench.tenure.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::TooOld { version: 12 }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "this database has version 12 of tenure's schema, and this program updates version 30 and later: run \
         `tenure migrate` with the program built at commit ebf7e6a, then this one again; or use a fresh database"
    );
    assert!(catalogue(&bench.pool).await == before);
    // Version 30 of somebody else.
    bench
        .execute("INSERT INTO tenure.migrations (version, name, checksum) VALUES (30, 'baseline', '')")
        .await;
    let error = bench.tenure.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::Changed { version: 30 }), "{error:?}");
}

/// Only that function: others keep their rows in the catalogue.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_whose_text_has_changed_is_applied_again() {
    let bench = bench().await;
    let before = catalogue(&bench.pool).await;
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    bench
        .execute(
            "CREATE OR REPLACE FUNCTION tenure.has_redrives() RETURNS boolean LANGUAGE sql STABLE \
             AS 'SELECT false'",
        )
        .await;
    bench.execute("UPDATE tenure.functions SET checksum = '' WHERE name = 'has_redrives'").await;
    let written = "SELECT string_agg(p.xmin::text, ' ' ORDER BY p.proname) FROM pg_proc p
                    WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname <> 'has_redrives'";
    let others: String = bench.value(written).await;
    assert!(catalogue(&bench.pool).await != before);
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    assert!(catalogue(&bench.pool).await == before);
    assert_eq!(bench.value::<String>(written).await, others);
    // Not by an older release, once a newer one has migrated: its functions are those of that release.
    bench.execute("UPDATE tenure.functions SET checksum = '' WHERE name = 'has_redrives'").await;
    bench
        .execute("INSERT INTO tenure.migrations (version, name, checksum) VALUES (90000, 'later', '')")
        .await;
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    assert_eq!(bench.count("tenure.functions WHERE checksum = ''").await, 1);
    bench.execute("DELETE FROM tenure.migrations WHERE version = 90000").await;
    // One that this program calls and the schema lacks.
    bench.execute("DROP FUNCTION tenure.admit").await;
    let health = Worker::builder(&bench.tenure)
        .handle_any(KindOptions::new(), |_, _| async {})
        .concurrency("q", 1)
        .start()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !format!("{:?}", health.health()).contains("it lacks functions that this program calls, admit") {
        assert!(Instant::now() < deadline, "{:?}", health.health());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bench.tenure.migrate().await.unwrap();
    bench.until_count("tenure.workers", 1).await;
    health.stop();
    health.wait().await.unwrap();
    assert!(catalogue(&bench.pool).await == before);
}

/// Each function in its file, under its name; with bodies that fit the tables, which `migrate` does not check.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_stands_in_its_own_file_and_fits_the_schema() {
    let bench = bench().await;
    let known: BTreeSet<&str> = FUNCTIONS.iter().map(|(path, _)| *path).collect();
    let folder = PathBuf::from(crate::harness::ROOT).join("migrations/functions");
    let mut files = BTreeSet::new();
    for subject in std::fs::read_dir(&folder).unwrap() {
        for file in std::fs::read_dir(subject.unwrap().path()).unwrap() {
            let path = file.unwrap().path().with_extension("");
            files.insert(path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned());
        }
    }
    assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
    let names: Vec<&str> = FUNCTIONS.iter().map(|(path, _)| path.split_once('/').unwrap().1).collect();
    let mut is: Vec<String> =
        sqlx::query_scalar("SELECT proname::text FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    is.sort();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(is, sorted, "two functions have one name, or a file is not applied");
    for ((path, sql), name) in FUNCTIONS.iter().zip(names) {
        let makes: Vec<_> = statements(sql);
        assert!(sql.starts_with("-- "), "{path} does not open with its contract");
        // For all roles, by postgres/roles.sql it is a worker's alone.
        let is_by_default = ["create_history_partitions", "keep_last_executions"].contains(&name);
        assert_eq!(
            sql.contains(" PUBLIC;"),
            !is_by_default,
            "{path} does not say whether all roles may execute it"
        );
        let creates = format!("create or replace function tenure.{name}(");
        let rest: Vec<_> = makes.iter().filter(|sql| !sql.starts_with(&creates)).collect();
        assert_eq!(makes.len() - rest.len(), 1, "{path} does not create {name}, once");
        let further = ["revoke all on function", "grant execute on function", "comment on function"]
            .map(|act| format!("{act} tenure.{name}("));
        assert!(rest.iter().all(|sql| further.iter().any(|act| sql.starts_with(act))), "{path}: {rest:?}");
        let checked = format!("SET check_function_bodies = on; {sql}");
        sqlx::raw_sql(AssertSqlSafe(checked))
            .execute(&bench.pool)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Where the roles of `postgres/roles.sql` exist, whatever changes the schema grants to them what they need.
#[tokio::test(flavor = "multi_thread")]
async fn the_roles_get_their_grants_with_the_migration_that_changes_the_schema() {
    let bench = bench_with_servers(|_| {}).await;
    let rights = "SELECT string_agg(role || ' ' || has_schema_privilege(role, 'tenure', 'USAGE') || ' '
                             || has_table_privilege(role, 'tenure.workers', 'UPDATE'), ', ' ORDER BY role)
                    FROM unnest('{tenure_operator,tenure_producer,tenure_viewer,tenure_worker}'::text[]) AS role";
    let granted = "tenure_operator true true, tenure_producer true false, tenure_viewer true false, \
                   tenure_worker true true";
    // Roles exist only once somebody has created them.
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    assert_eq!(bench.count("pg_roles WHERE rolname LIKE 'tenure\\_%'").await, 0);
    for role in ["tenure_operator", "tenure_producer", "tenure_viewer", "tenure_worker"] {
        bench.execute(&format!("CREATE ROLE {role}")).await;
        let is_last = role == "tenure_worker";
        assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
        let has = format!("SELECT has_schema_privilege('{role}', 'tenure', 'USAGE')");
        assert_eq!(bench.value::<bool>(&has).await, is_last, "all roles get their grants, or none does");
    }
    assert_eq!(bench.value::<String>(rights).await, granted);
    // A migration, or a function, that an older program has not granted yet.
    bench.execute("REVOKE UPDATE ON tenure.workers FROM tenure_worker").await;
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    assert_ne!(bench.value::<String>(rights).await, granted, "what a person revoked stays revoked");
    bench.execute("UPDATE tenure.functions SET checksum = '' WHERE name = 'admit'").await;
    assert_eq!(bench.tenure.migrate().await.unwrap(), [0_i64; 0]);
    assert_eq!(bench.value::<String>(rights).await, granted);
    // Another session grants, too: the change of one row of the catalogue fails, and `migrate` tries again.
    bench.execute("UPDATE tenure.functions SET checksum = '' WHERE name = 'admit'").await;
    let mut other = PgConnection::connect(&bench.config.database_url).await.unwrap();
    sqlx::raw_sql("BEGIN; GRANT SELECT ON tenure.jobs TO tenure_viewer").execute(&mut other).await.unwrap();
    let migrating = tokio::spawn({
        let tenure = bench.tenure.clone();
        async move { tenure.migrate().await }
    });
    bench
        .until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')")
        .await;
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(migrating.await.unwrap().unwrap(), [0_i64; 0]);
    assert_eq!(bench.value::<String>(rights).await, granted);
    // An owner who is no superuser, and may create no roles and add no members to them.
    bench.execute("CREATE ROLE keeper LOGIN PASSWORD 'pw'").await;
    bench.execute("GRANT CREATE ON DATABASE postgres TO keeper").await;
    own_all(&bench, "keeper").await;
    bench.execute("REVOKE tenure_worker FROM tenure_operator").await;
    bench.execute("REVOKE UPDATE ON tenure.workers FROM tenure_worker").await;
    bench.execute("UPDATE tenure.functions SET checksum = ''").await;
    let (before, host) = bench.config.database_url.split_once('@').unwrap();
    let mut config = bench.config.clone();
    config.database_url = format!("{}//keeper:pw@{host}", before.split_once("//").unwrap().0);
    let keeper = tenure::Tenure::connect(&config).await.unwrap();
    assert_eq!(keeper.migrate().await.unwrap(), [0_i64; 0]);
    // An operator is a worker by that membership alone.
    let granted = granted.replace("tenure_operator true true", "tenure_operator true false");
    assert_eq!(bench.value::<String>(rights).await, granted);
    keeper.close().await;
}

/// Makes a role the owner of the schema and of all that is in it.
async fn own_all(bench: &Bench, role: &str) {
    let relations: Vec<String> = sqlx::query_scalar(
        "SELECT format('ALTER %s %s OWNER TO %I', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END,
                       oid::regclass, $1)
           FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind IN ('r', 'p', 'v')
          UNION ALL
         SELECT format('ALTER FUNCTION %s OWNER TO %I', oid::regprocedure, $1)
           FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace
          UNION ALL
         SELECT format('ALTER SCHEMA tenure OWNER TO %I', $1)",
    )
    .bind(role)
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    for sql in relations {
        bench.execute(&sql).await;
    }
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
    for (name, sql) in internals::statements() {
        (&bench.pool)
            .prepare(AssertSqlSafe(sql).into_sql_str())
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
    // All of it or nothing, and no statement waits any more.
    assert_eq!(bench.count(&format!("tenure.migrations WHERE version >= {}", NEXT_VERSION - 1)).await, 0);
    assert!(bench.value::<bool>("SELECT to_regclass('tenure.next') IS NULL").await);
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    sqlx::query("COMMIT").execute(&mut reader).await.unwrap();
    assert_eq!(
        bench.tenure.migrate_with(&migrations, Duration::from_secs(2)).await.unwrap(),
        [NEXT_VERSION - 1, NEXT_VERSION]
    );
}
