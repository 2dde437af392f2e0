//! The functions of the schema for programs in any language: what they leave, what they refuse, and under whose rights.
//!
//! Not here: the functions of a running attempt (`sql_attempts`), lanes and their like (`sql_lanes`), and what drivers of
//! other languages do (`effects_sql`).

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use tenure::{JobId, JobRequest, KindOptions, Worker, jobs::CancelOutcome};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench, bench_with_servers, statement};

/// What Postgres says of a refused statement: its code, message, detail and hint.
#[derive(Debug)]
pub struct Refusal {
    pub code: String,
    pub message: String,
    pub rest: String,
}

pub fn refusal(error: &sqlx::Error) -> Refusal {
    let error = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
    let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    let (detail, hint) = (error.detail().unwrap_or_default(), error.hint().unwrap_or_default());
    Refusal {
        code: error.code().to_owned(),
        message: error.message().to_owned(),
        rest: format!("{detail} {hint}"),
    }
}

pub async fn refused<'e>(by: impl sqlx::PgExecutor<'e>, sql: &str) -> Refusal {
    match sqlx::query(AssertSqlSafe(sql)).execute(by).await {
        Ok(_) => panic!("not refused: {sql}"),
        Err(error) => refusal(&error),
    }
}

/// The attempt of a job that a worker of the database alone has claimed: the arguments of the functions.
pub async fn claimed(bench: &Bench, job: JobId) -> String {
    let claim = sqlx::query(statement("claim"))
        .bind(vec![job])
        .bind("q")
        .bind("k")
        .bind(300.0_f64)
        .bind("retry")
        .bind("w-1-x")
        .bind("w")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let (token, claim): (i64, Uuid) = (claim.get("fencing_token"), claim.get("claim_id"));
    format!("'{job}', {token}, '{claim}'")
}

/// Programs, and the workers of the release before while a schema is migrated, call functions by their signature. A
/// changed contract has a new name, and `signatures.txt` a line more; a part that only other functions call may change.
#[tokio::test]
async fn a_function_that_others_call_keeps_its_signature() {
    let bench = bench().await;
    let is: Vec<String> = sqlx::query_scalar(
        "SELECT format('%s(%s) -> %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid))
           FROM pg_proc
          WHERE pronamespace = 'tenure'::regnamespace AND prorettype <> 'trigger'::regtype
            AND (has_function_privilege('public', oid, 'EXECUTE') OR strpos($1, 'tenure.' || proname || '(') > 0)
          ORDER BY proname",
    )
    .bind(include_str!("../../postgres/roles.sql"))
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let kept: Vec<&str> = include_str!("signatures.txt").lines().collect();
    let gone: Vec<_> = kept.iter().filter(|line| !is.iter().any(|is| is == **line)).collect();
    let new: Vec<_> = is.iter().filter(|line| !kept.contains(&line.as_str())).collect();
    assert!(gone.is_empty() && new.is_empty(), "gone or changed: {gone:#?}\nnew: {new:#?}");
}

async fn enqueued(bench: &Bench) -> JobId {
    JobId(bench.value("SELECT tenure.enqueue('q', 'k')").await)
}

pub async fn running(bench: &Bench) -> (JobId, String) {
    let job = enqueued(bench).await;
    (job, claimed(bench, job).await)
}

/// Resets the job as the scanner does.
pub async fn reset(bench: &Bench, job: JobId) {
    let sql = format!("UPDATE tenure.jobs SET last_activity_at = now() - interval '1 h' WHERE id = '{job}'");
    bench.execute(&sql).await;
    // A session answers that it refuses before it has given up its locks, and the scanner passes over a locked row.
    for _ in 0..100 {
        let reset = sqlx::query(statement("reset_stale")).bind(vec![job]).bind("the test");
        if reset.fetch_all(&bench.pool).await.unwrap().len() == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the scanner does not reset {job}");
}

pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

pub async fn begin(pool: &PgPool, level: &str) -> sqlx::PgTransaction<'static> {
    pool.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap()
}

pub async fn run(connection: &mut PgConnection, sql: &str) {
    let done = sqlx::query(AssertSqlSafe(sql)).execute(connection).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// An API for ever: a change of this list breaks programs. New functions, and new arguments with a default at the end,
/// may be added.
#[tokio::test(flavor = "multi_thread")]
async fn the_functions_that_programs_call_stay_and_describe_themselves() {
    let bench = bench().await;
    let functions: Vec<(String, bool, Option<String>)> = sqlx::query_as(
        "SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') ' || pg_get_function_result(p.oid),
                p.prosecdef, obj_description(p.oid)
           FROM pg_proc p
          WHERE p.pronamespace = 'tenure'::regnamespace AND obj_description(p.oid) IS NOT NULL ORDER BY 1",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let signatures: Vec<_> = functions.iter().map(|(signature, ..)| signature.as_str()).collect();
    assert_eq!(
        signatures,
        [
            "cancel(job uuid) text",
            "complete(job uuid, token bigint, claim uuid, output jsonb DEFAULT NULL::jsonb) void",
            "enqueue(queue text, kind text, payload jsonb DEFAULT 'null'::jsonb, unique_key text DEFAULT NULL::text, \
             run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT \
             NULL::interval, max_attempts integer DEFAULT NULL::integer, trace_context text DEFAULT NULL::text, lane \
             text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, not_after timestamp with time zone \
             DEFAULT NULL::timestamp with time zone, on_expiry text DEFAULT NULL::text, replace text DEFAULT \
             NULL::text, longest_wait interval DEFAULT NULL::interval, unique_while_queued text DEFAULT NULL::text, \
             unique_while_live text DEFAULT NULL::text, \
             tags text[] DEFAULT NULL::text[]) uuid",
            "enqueue_many(jobs jsonb) SETOF uuid",
            "fence(job uuid, token bigint, claim uuid) void",
            "hold(job uuid, token bigint, claim uuid) void",
            "once(job uuid, token bigint, claim uuid, key text) boolean",
            "once_result(job uuid, key text) jsonb",
            "once_store(job uuid, token bigint, claim uuid, key text, result jsonb) void",
            "progress(job uuid, token bigint, claim uuid, stage text DEFAULT NULL::text, progress double precision \
             DEFAULT NULL::double precision, message text DEFAULT NULL::text, checkpoint jsonb DEFAULT NULL::jsonb) \
             boolean",
            "signal(job uuid, name text, payload jsonb DEFAULT 'null'::jsonb) text",
        ]
    );
    for (signature, is_definer, description) in &functions {
        // Who approves a job need not be able to change it.
        let may_be = signature.starts_with("signal(");
        assert!(!is_definer || may_be, "{signature} runs with rights that are not the caller's");
        assert!(description.as_ref().unwrap().len() > 60, "{signature}");
    }
    let open =
        "pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND obj_description(p.oid) IS NOT NULL
                  AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))";
    assert_eq!(bench.count(open).await, 0, "PUBLIC may call it");
    // Each function finds its own tables under any search_path of the caller, and no table of the caller.
    let lost =
        "pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND obj_description(p.oid) IS NOT NULL
                  AND NOT 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig)";
    assert_eq!(bench.count(lost).await, 0);
}

/// The row of a job without a message in the stream: the relay finds it, and a worker runs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_sql_enqueued_is_as_the_librarys_and_runs_once_committed() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let library = JobRequest::new("q", "k", json!({"n": 1})).max_attempts(3).unique_key("a");
    let mut tx = bench.pool.begin().await.unwrap();
    let library = bench.tenure.enqueue(library).tx(&mut tx).await.unwrap().id;
    let call = "SELECT tenure.enqueue('q', 'k', '{\"n\": 1}', max_attempts => 3, unique_key => 'b')";
    let by_sql: Uuid = sqlx::query_scalar(call).fetch_one(&mut *tx).await.unwrap();
    // All but what says that the library publishes, and the relay shall publish the other.
    let differ: String = sqlx::query_scalar(
        "SELECT string_agg(a.key, ' ' ORDER BY a.key)
           FROM tenure.jobs x, tenure.jobs y, jsonb_each(to_jsonb(x)) a, jsonb_each(to_jsonb(y)) b
          WHERE x.id = $1 AND y.id = $2 AND a.key = b.key AND a.value <> b.value",
    )
    .bind(library)
    .bind(by_sql)
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    assert_eq!(differ, "created_at dispatch id publish_at published_at scheduled_at");
    let waits: bool = sqlx::query_scalar(
        "SELECT dispatch = 0 AND published_at IS NULL AND publish_at = scheduled_at
                AND scheduled_at BETWEEN now() AND clock_timestamp() FROM tenure.jobs WHERE id = $1",
    )
    .bind(by_sql)
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    assert!(waits);
    assert_eq!((by_sql.get_version_num(), by_sql.get_variant()), (7, uuid::Variant::RFC4122));
    let worker = Worker::builder(&bench.tenure)
        .handle_any(KindOptions::new(), |value: Value, _| async move { tenure::Outcome::done(value) });
    let worker = Running::start(worker.concurrency("q", 4));
    bench.until_count("tenure.workers", 1).await;
    tx.commit().await.unwrap();
    let done = bench.until_finished(JobId(by_sql)).await;
    assert_eq!((done.output, done.max_attempts), (Some(json!({"n": 1})), 3));
    bench.until_finished(library).await;
    assert_eq!(bench.count("tenure.job_history_default").await, 0, "the id is of today");
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_follow_each_other_and_times_attempts_and_traces_are_those_of_the_call() {
    let bench = bench().await;
    let ids: Vec<Uuid> = sqlx::query_scalar(
        r#"SELECT tenure.enqueue_many((SELECT jsonb_agg('{"queue": "q", "kind": "k"}'::jsonb) FROM generate_series(1, 5000)))"#,
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    assert!(ids.len() == 5_000 && ids.is_sorted_by(|a, b| a < b));
    assert!(ids.iter().all(|id| id.get_version_num() == 7));
    bench.execute("DELETE FROM tenure.jobs").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let calls = [
        (
            "",
            "scheduled_at <= clock_timestamp() AND max_attempts = 5 AND trace_context IS NULL AND payload = 'null'",
        ),
        (", payload => NULL, max_attempts => NULL, delay => NULL", "payload = 'null' AND max_attempts = 5"),
        (
            ", delay => '90 s'",
            "scheduled_at - created_at BETWEEN '89 s' AND '90 s' AND publish_at = scheduled_at",
        ),
        (", run_at => '2001-01-01Z'", "scheduled_at = '2001-01-01Z'"),
        (", max_attempts => 1000", "max_attempts = 1000"),
        (&format!(", trace_context => ' {trace}'"), &format!("trace_context = '{trace}'")),
        (", trace_context => '00-x-y-01'", "trace_context IS NULL"),
        (&format!(", trace_context => '{trace}-more'"), "trace_context IS NULL"),
        (&format!(", trace_context => 'cc{}-more'", &trace[2..]), &format!("trace_context = '{trace}'")),
    ];
    for (arguments, holds) in calls {
        bench.execute(&format!("SELECT tenure.enqueue('q', 'k'{arguments})")).await;
        assert_eq!(bench.count(&format!("tenure.jobs WHERE {holds}")).await, 1, "{arguments}");
        bench.execute("DELETE FROM tenure.jobs").await;
    }
    // The same options by an array, beside a job without any.
    let many = json!([
        {"queue": "q", "kind": "k"},
        {"queue": "q", "kind": "k", "payload": [1], "delay": "90 s", "max_attempts": 7, "trace_context": trace,
         "unique_key": "a", "run_at": null},
    ]);
    bench.execute(&format!("SELECT tenure.enqueue_many('{many}')")).await;
    let holds = format!(
        "payload = '[1]' AND max_attempts = 7 AND trace_context = '{trace}'
         AND scheduled_at - created_at BETWEEN '89 s' AND '90 s'"
    );
    assert_eq!(bench.count(&format!("tenure.jobs WHERE {holds}")).await, 1);
    assert_eq!(bench.count("tenure.jobs WHERE payload = 'null' AND max_attempts = 5").await, 1);
    assert_eq!(bench.count("tenure.job_keys WHERE scope = 'q' AND key = 'a'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one list")]
async fn bad_input_is_refused_with_what_was_wrong_and_what_to_do() {
    let bench = bench().await;
    let long = "x".repeat(513);
    let refusals = [
        ("enqueue('a b', 'k')", "queue \"a b\" is not a valid name: it must be 1 to 64 of A-Z a-z 0-9 _ -"),
        ("enqueue(E'a\\n', 'k')", "queue \"a\\n\" is not a valid name"),
        ("enqueue('q*', 'k')", "queue \"q*\" is not a valid name"),
        ("enqueue(NULL, 'k')", "queue NULL is not a valid name"),
        ("enqueue('q', 'a..b')", "kind \"a..b\" is not a valid name"),
        ("enqueue('q', 'a.>')", "kind \"a.>\" is not a valid name"),
        ("enqueue('q', repeat('a.', 100) || 'a')", "kind \"a.a."),
        (
            "enqueue('q', 'k', to_jsonb(repeat('x', 262143)))",
            "the payload has 262145 bytes, but at most 262144",
        ),
        (
            "enqueue('q', 'k', (repeat('[', 128) || repeat(']', 128))::jsonb)",
            "the payload has more than 127 levels, which no worker can read",
        ),
        ("enqueue('q', 'k', '{\"a\": [-1e400]}')", "the payload has a number beyond 1.8e308"),
        (
            "enqueue('q', 'k', '[1e-16383, 1e-16383]'::jsonb || to_jsonb(ARRAY(SELECT 1e-16000 FROM generate_series(1, 20))))",
            "bytes, but at most 262144",
        ),
        (
            "enqueue('q', 'k', max_attempts => 0)",
            "max_attempts is 0, but must be a whole number from 1 to 1000",
        ),
        ("enqueue('q', 'k', max_attempts => 1001)", "max_attempts is 1001"),
        ("enqueue('q', 'k', delay => '-1 s')", "delay is -00:00:01, but must be from 0 to ten years"),
        ("enqueue('q', 'k', delay => '11 y')", "delay is 11 years"),
        (
            "enqueue('q', 'k', run_at => 'infinity')",
            "run_at is infinity, but must be at most ten years ahead",
        ),
        ("enqueue('q', 'k', run_at => '-infinity')", "run_at is -infinity"),
        ("enqueue('q', 'k', run_at => now() + interval '11 y')", "but must be at most ten years ahead"),
        ("enqueue('q', 'k', run_at => now(), delay => '1 s')", "run_at and delay are both given"),
        ("enqueue('q', 'k', unique_key => '')", "unique_key is \"\" (0 bytes), but must have 1 to 512 bytes"),
        ("enqueue('q', 'k', unique_key => E'a\\tb')", "unique_key is \"a\\tb\" (3 bytes)"),
        ("enqueue('q', 'k', unique_key => chr(133))", "and no control characters"),
        (&format!("enqueue('q', 'k', unique_key => '{long}')"), "(513 bytes)"),
        ("enqueue_many(NULL)", "jobs is NULL, but must be an array of objects"),
        ("enqueue_many('{}')", "jobs is of type object, but must be an array"),
        ("enqueue_many('[[]]')", "jobs[0] is of type array, but must be an object"),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "k", "prio": 1}]')"#,
            "jobs[1] has an unknown field, \"prio\"",
        ),
        (
            r#"enqueue_many('[{"queue": "q", "kind": 1}]')"#,
            "jobs[0] has a kind of type number, but it must be a string",
        ),
        (r#"enqueue_many('[{"queue": "q"}]')"#, "jobs[0]: kind NULL is not a valid name"),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k", "max_attempts": "1"}]')"#,
            "jobs[0] has a max_attempts of type string, but it must be a number",
        ),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k", "max_attempts": 1.5}]')"#,
            "jobs[0]: max_attempts is 1.5, but must be a whole number",
        ),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k", "delay": 5}]')"#,
            "jobs[0] has a delay of type number, but it must be a string",
        ),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k", "delay": "soon"}]')"#,
            "jobs[0] delay: invalid input syntax for type interval: \"soon\"",
        ),
        (
            r#"enqueue_many('[{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "k", "run_at": "2030-13-01"}]')"#,
            "jobs[1] run_at: date/time field value out of range",
        ),
        (
            r#"enqueue_many((SELECT jsonb_agg('{"queue": "q", "kind": "k"}'::jsonb) FROM generate_series(1, 10001)))"#,
            "jobs has 10001 jobs, but at most 10000",
        ),
        ("once(gen_random_uuid(), 1, gen_random_uuid(), E'a\\nb')", "key \"a\\nb\" is not a valid key"),
        ("once(gen_random_uuid(), 1, gen_random_uuid(), NULL)", "key NULL is not a valid key"),
        ("fence(NULL, 1, gen_random_uuid())", "job is NULL"),
        ("complete(gen_random_uuid(), NULL, gen_random_uuid())", "token is NULL"),
        ("progress(gen_random_uuid(), 1, NULL)", "claim is NULL"),
        (
            "progress(gen_random_uuid(), 1, gen_random_uuid(), checkpoint => to_jsonb(repeat('x', 1048575)))",
            "the checkpoint has 1048577 bytes, but at most 1048576",
        ),
    ];
    for (call, message) in refusals {
        let said = refused(&bench.pool, &format!("SELECT tenure.{call}")).await;
        assert_eq!(said.code, "TN003", "{call}: {said:?}");
        assert!(said.message.contains(message), "{call}: {said:?}");
        assert!(said.rest.len() > 30, "{call}: {said:?}");
    }
    // An unknown name is Postgres's own error.
    let said = refused(&bench.pool, "SELECT tenure.enqueue('q', 'k', prio => 1)").await;
    assert_eq!(said.code, "42883");
    assert_eq!(bench.count("tenure.jobs").await + bench.count("tenure.job_keys").await, 0);

    // The largest of each, and limits of one's own.
    let key = format!("unique_key => '{}'", "x".repeat(512));
    for call in [
        "enqueue('q', 'k', to_jsonb(repeat('x', 262142)))",
        "enqueue(repeat('q', 64), repeat('a', 64) || '.' || repeat('b', 64) || '.' || repeat('c', 64))",
        &format!("enqueue('q', 'k', {key}, delay => '3650 days')"),
        "enqueue_many('[]')",
    ] {
        bench.execute(&format!("SELECT tenure.{call}")).await;
    }
    let mut own = PgConnection::connect(&bench.config.database_url).await.unwrap();
    run(&mut own, "SET tenure.payload_bytes_max = '20'").await;
    let said = refused(&mut own, "SELECT tenure.enqueue('q', 'k', to_jsonb(repeat('x', 20)))").await;
    assert!(
        said.message.contains("22 bytes, but at most 20") && said.rest.contains("ALTER DATABASE"),
        "{said:?}"
    );
    run(&mut own, "SET tenure.payload_bytes_max = '1 MB'").await;
    let said = refused(&mut own, "SELECT tenure.enqueue('q', 'k')").await;
    assert!(said.message.contains("tenure.payload_bytes_max is \"1 MB\", but must be a number"), "{said:?}");
    run(&mut own, "SET tenure.checkpoint_bytes_max = '1 MB'").await;
    let call = "SELECT tenure.progress(gen_random_uuid(), 1, gen_random_uuid(), checkpoint => '1')";
    let said = refused(&mut own, call).await;
    assert!(said.message.contains("tenure.checkpoint_bytes_max is \"1 MB\""), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_holds_between_sql_and_the_library_and_follows_its_transaction() {
    let bench = bench().await;
    let first = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).unique_key("a")).await.unwrap().id;
    let call = "SELECT tenure.enqueue('q', 'other', unique_key => 'a')";
    assert_eq!(bench.value::<Uuid>(call).await, first.0);
    assert_ne!(
        bench.value::<Uuid>("SELECT tenure.enqueue('elsewhere', 'k', unique_key => 'a')").await,
        first.0
    );
    let by_sql: Uuid = bench.value("SELECT tenure.enqueue('q', 'k', unique_key => 'b')").await;
    let again = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).unique_key("b")).await.unwrap();
    assert_eq!((again.id.0, again.duplicate), (by_sql, true));
    // Within one call, and in the order of the array.
    let many = json!([
        {"queue": "q", "kind": "k", "unique_key": "c"}, {"queue": "q", "kind": "k"},
        {"queue": "q", "kind": "k", "unique_key": "c"}, {"queue": "q", "kind": "k", "unique_key": "a"},
    ]);
    let ids: Vec<Uuid> = sqlx::query_scalar(AssertSqlSafe(format!("SELECT tenure.enqueue_many('{many}')")))
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    assert!(ids[0] == ids[2] && ids[1] != ids[0] && ids[3] == first.0, "{ids:?}");
    assert_eq!(bench.count("tenure.jobs WHERE queue = 'q'").await, 4);

    // Another transaction is about to take the key: the call waits for its end.
    for commits in [true, false] {
        let key = if commits { "d" } else { "e" };
        let call = format!("SELECT tenure.enqueue('q', 'k', unique_key => '{key}')");
        let mut other = bench.pool.begin().await.unwrap();
        let holder: Uuid =
            sqlx::query_scalar(AssertSqlSafe(call.as_str())).fetch_one(&mut *other).await.unwrap();
        let pool = bench.pool.clone();
        let waits = tokio::spawn(async move {
            sqlx::query_scalar::<_, Uuid>(AssertSqlSafe(call)).fetch_one(&pool).await.unwrap()
        });
        bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
        if commits {
            other.commit().await.unwrap();
        } else {
            other.rollback().await.unwrap();
        }
        assert_eq!(waits.await.unwrap() == holder, commits);
        let jobs = format!("tenure.jobs j JOIN tenure.job_keys k ON k.job_id = j.id WHERE k.key = '{key}'");
        assert_eq!(bench.count(&jobs).await, 1);
    }
    // A snapshot that is older than the holder: begin again, as after any serialization failure.
    let mut old = begin(&bench.pool, "REPEATABLE READ").await;
    run(&mut old, "SELECT count(*) FROM tenure.jobs").await;
    bench.execute("SELECT tenure.enqueue('q', 'k', unique_key => 'f')").await;
    let said = refused(&mut *old, "SELECT tenure.enqueue('q', 'k', unique_key => 'f')").await;
    assert_eq!(said.code, "40001", "{said:?}");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_jobs_of_sql_too_and_a_transaction_counts_a_part_of_the_room() {
    let bench = bench().await;
    bench.execute("INSERT INTO tenure.queues (queue, max_queued) VALUES ('q', 30)").await;
    let one = "SELECT tenure.enqueue('q', 'k')";
    let many = |n: i32| {
        format!(
            r#"SELECT tenure.enqueue_many((SELECT jsonb_agg('{{"queue": "q", "kind": "k"}}'::jsonb) FROM generate_series(1, {n})))"#
        )
    };
    let said = refused(&bench.pool, &many(31)).await;
    assert_eq!(said.code, "TN004");
    assert_eq!(said.message, "queue \"q\" is full: 0 jobs wait, and 31 more would exceed its limit of 30");
    assert!(said.rest.contains("Enqueue fewer at once"), "{said:?}");
    bench.execute(&many(20)).await;
    // One transaction, which counts the queue now and then: not one job beyond the limit.
    let mut tx = bench.pool.begin().await.unwrap();
    for _ in 0..10 {
        run(&mut tx, one).await;
    }
    let said = refused(&mut *tx, one).await;
    assert_eq!(said.code, "TN004");
    assert!(said.rest.contains("Try again later"), "{said:?}");
    tx.rollback().await.unwrap();
    assert_eq!(bench.count("tenure.jobs").await, 20);
    for _ in 0..10 {
        bench.execute(one).await;
    }
    assert_eq!(refused(&bench.pool, one).await.code, "TN004");
    // Another queue is not limited.
    bench.execute("SELECT tenure.enqueue('other', 'k')").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cancelled_by_sql_is_as_one_that_the_library_cancels() {
    let bench = bench().await;
    let word = async |job: JobId| bench.value::<String>(&format!("SELECT tenure.cancel('{job}')")).await;
    let kept =
        "SELECT queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id, worker_id,
                       started_at, stage, progress, message, output, trace_context, last_error
                  FROM tenure.job_history WHERE id = ";
    let (mut rows, mut errors) = (Vec::new(), 0);
    for by_sql in [true, false] {
        let job = JobRequest::new("q", "k", json!({"n": 1}))
            .delay(Duration::from_secs(3_600))
            .unique_key(by_sql.to_string());
        let job = bench.tenure.enqueue(job).await.unwrap().id;
        bench.execute("UPDATE tenure.jobs SET attempt = 1, fencing_token = 3, last_error = 'broke', stage = 's', message = 'm'").await;
        if by_sql {
            assert_eq!(word(job).await, "cancelled");
            assert_eq!(word(job).await, "finished");
        } else {
            assert_eq!(bench.tenure.cancel(job).await.unwrap(), CancelOutcome::Cancelled);
        }
        let row = bench.text(&format!("{kept}'{job}'")).await;
        errors += usize::from(row.contains("broke"));
        rows.push(row);
    }
    assert!(rows[0] == rows[1] && errors == 2, "{rows:?}");
    assert_eq!(word(JobId(Uuid::now_v7())).await, "not_found");
    let (job, attempt) = running(&bench).await;
    assert_eq!(word(job).await, "asked");
    let since: chrono::DateTime<chrono::Utc> =
        bench.value("SELECT cancel_requested_at FROM tenure.jobs").await;
    assert_eq!(word(job).await, "asked", "safe to repeat");
    assert_eq!(
        since,
        bench.value::<chrono::DateTime<chrono::Utc>>("SELECT cancel_requested_at FROM tenure.jobs").await
    );
    assert!(bench.value::<bool>(&format!("SELECT tenure.progress({attempt})")).await, "the attempt is told");
    reset(&bench, job).await;
    assert_eq!(bench.count("tenure.job_history WHERE status = 'cancelled'").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producers_role_enqueues_and_nothing_else_and_a_worker_does_not_cancel() {
    let bench = bench_with_servers(|_| {}).await;
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    let by = async |role: &str| {
        bench.execute(&format!("CREATE ROLE a_{role} LOGIN PASSWORD 'pw' IN ROLE tenure_{role}")).await;
        let (before, host) = bench.config.database_url.split_once('@').unwrap();
        let scheme = before.split_once("//").unwrap().0;
        PgPool::connect(&format!("{scheme}//a_{role}:pw@{host}")).await.unwrap()
    };
    let [producer, worker, operator, viewer] =
        [by("producer").await, by("worker").await, by("operator").await, by("viewer").await];
    bench.execute("INSERT INTO tenure.queues (queue, max_queued) VALUES ('q', 100)").await;
    for pool in [&producer, &worker, &operator] {
        for call in [
            "enqueue('q', 'k', unique_key => 'a')",
            "enqueue('q', 'k', unique_key => 'a')",
            r#"enqueue_many('[{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "k", "unique_key": "b"}]')"#,
        ] {
            sqlx::query(AssertSqlSafe(format!("SELECT tenure.{call}"))).execute(pool).await.unwrap();
        }
    }
    let (job, attempt) = running(&bench).await;
    let of_worker = [
        format!("progress({attempt}, 'half', 50)"),
        format!("fence({attempt})"),
        format!("hold({attempt})"),
        format!("once({attempt}, 'a')"),
        format!("once_store({attempt}, 'a', '1')"),
        format!("once_result('{job}', 'a')"),
        format!("complete({attempt})"),
    ];
    let of_operator = [format!("cancel('{job}')")];
    let denied = async |pool: &PgPool, calls: &[String]| {
        for call in calls {
            let said = refused(pool, &format!("SELECT tenure.{call}")).await;
            let function = call.split('(').next().unwrap();
            assert_eq!(said.code, "42501", "{call}: {said:?}");
            assert_eq!(said.message, format!("permission denied for function {function}"));
        }
    };
    denied(&producer, &of_worker).await;
    denied(&producer, &of_operator).await;
    denied(&worker, &of_operator).await;
    denied(&viewer, &of_worker).await;
    denied(&viewer, &["enqueue('q', 'k')".into(), "enqueue_many('[]')".into()]).await;
    for pool in [&worker, &operator] {
        let (job, attempt) = running(&bench).await;
        for call in &of_worker {
            let call = call.split('(').next().unwrap();
            let arguments = match call {
                "once" => format!("{attempt}, 'a'"),
                "once_store" => {
                    format!("{attempt}, 'b', CASE WHEN tenure.once({attempt}, 'b') THEN '1'::jsonb END")
                }
                "once_result" => format!("'{job}', 'a'"),
                _ => attempt.clone(),
            };
            let sql = format!("SELECT tenure.{call}({arguments})");
            sqlx::query(AssertSqlSafe(sql.as_str()))
                .execute(pool)
                .await
                .unwrap_or_else(|e| panic!("{sql}: {e}"));
        }
        let said = refused(pool, &format!("SELECT tenure.fence({attempt})")).await;
        assert_eq!(said.code, "TN007", "it is told why");
    }
    sqlx::query(AssertSqlSafe(format!("SELECT tenure.cancel('{job}')"))).execute(&operator).await.unwrap();
}

/// Sessions that plan a function's statements while the tables look empty must not scan them when they are large.
#[tokio::test(flavor = "multi_thread")]
async fn no_function_scans_a_table_even_with_a_plan_of_an_empty_one() {
    let bench = bench_with_servers(|_| {}).await;
    for table in ["jobs", "job_keys", "effects"] {
        bench.execute(&format!("ALTER TABLE tenure.{table} SET (autovacuum_enabled = false)")).await;
        bench.execute(&format!("VACUUM ANALYZE tenure.{table}")).await;
    }
    bench.execute("INSERT INTO tenure.queues (queue, max_queued) VALUES ('q', 100000)").await;
    let mut session = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut all = async |n: i32| {
        let (job, attempt) = running(&bench).await;
        for call in [
            format!("enqueue('q', 'k', unique_key => 'a{n}')"),
            format!(
                "enqueue('q', 'k', replace => 'a{}', lane => 'a', not_after => now() + interval '1 h')",
                n / 2
            ),
            format!(r#"enqueue_many('[{{"queue": "q", "kind": "k", "unique_key": "b{n}"}}]')"#),
            format!("fence({attempt})"),
            format!("hold({attempt})"),
            format!("once({attempt}, 'a')"),
            format!("once_store({attempt}, 'b', CASE WHEN tenure.once({attempt}, 'b') THEN '1'::jsonb END)"),
            format!("once_result('{job}', 'a')"),
            format!("progress({attempt})"),
            format!("complete({attempt})"),
            "cancel(tenure.enqueue('q', 'k'))".into(),
        ] {
            let mut tx = session.begin().await.unwrap();
            run(&mut tx, &format!("SELECT tenure.{call}")).await;
            let scans: String = sqlx::query_scalar(
                "SELECT coalesce(string_agg(relname, ' '), '') FROM pg_stat_xact_user_tables
                  WHERE schemaname = 'tenure' AND relname IN ('jobs', 'job_keys', 'effects') AND seq_scan > 0",
            )
            .fetch_one(&mut *tx)
            .await
            .unwrap();
            assert_eq!(scans, "", "{call}");
            tx.commit().await.unwrap();
        }
    };
    for n in 0..12 {
        all(n).await;
    }
    let many = r"SELECT tenure.enqueue_many((SELECT jsonb_agg(jsonb_build_object('queue', 'r', 'kind', 'k', 'unique_key', n::text))
                    FROM generate_series(1, 10000) n))";
    bench.execute(many).await;
    for n in 12..24 {
        all(n).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_enqueues_in_the_transaction_of_the_row() {
    let bench = bench().await;
    for sql in [
        "CREATE TABLE public.orders (id serial PRIMARY KEY, mail text NOT NULL)",
        "CREATE FUNCTION public.confirm() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM tenure.enqueue('mail', 'confirm', jsonb_build_object('order', NEW.id), unique_key => 'order-' || NEW.id);
             RETURN NULL;
         END $$",
        "CREATE TRIGGER confirm AFTER INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.confirm()",
    ] {
        bench.execute(sql).await;
    }
    let mut tx = bench.pool.begin().await.unwrap();
    run(&mut tx, "INSERT INTO public.orders (mail) SELECT 'a@example.com' FROM generate_series(1, 3)").await;
    tx.rollback().await.unwrap();
    assert_eq!(bench.count("tenure.jobs").await, 0);
    bench.execute("INSERT INTO public.orders (mail) SELECT 'a@example.com' FROM generate_series(1, 3)").await;
    assert_eq!(
        bench
            .count("tenure.jobs j JOIN public.orders o ON j.payload = jsonb_build_object('order', o.id)")
            .await,
        3
    );
    let one = JobId(bench.value("SELECT id FROM tenure.jobs LIMIT 1").await);
    assert_eq!(bench.tenure.cancel(one).await.unwrap(), CancelOutcome::Cancelled);
}
