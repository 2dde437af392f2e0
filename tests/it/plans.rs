//! Plans: every hot statement goes by primary key, under any statistics.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::harness::{Bench, bench, bench_with_servers, statement};

/// The plan of a prepared statement with these arguments.
async fn plan(connection: &mut PgConnection, name: &str, arguments: &str) -> String {
    let prepare = format!("PREPARE hot AS {}", text(name));
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    let explain = format!("EXPLAIN EXECUTE hot ({arguments})");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *connection).await;
    let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}"));
    sqlx::raw_sql("DEALLOCATE hot").execute(connection).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

/// The text of a statement, or of the function that does its work.
fn text(name: &str) -> String {
    if name != "unpublished" {
        return statement(name).to_owned();
    }
    let function = include_str!("../../migrations/functions/enqueue/unpublished.sql");
    let body = function.split("$$").nth(1).unwrap();
    body.replace("(ids", "($1::uuid[]").replace("dispatches)", "$2::int[])").replace("seconds", "$3::float8")
}

/// Every hot statement with its arguments for these jobs.
fn hot(ids: &[String]) -> Vec<(&'static str, String)> {
    let n = ids.len();
    let array = |of: &str, cast: &str| format!("ARRAY[{}]::{cast}[]", vec![of; n].join(","));
    let id = format!("'{}'::uuid", ids[0]);
    let keys = format!("ARRAY['{}']::uuid[]", ids.join("','"));
    let (tokens, nulls, texts) = (array("1", "bigint"), array("NULL", "text"), array("'x'", "text"));
    let ords = format!("ARRAY[{}]", (0..n).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
    let mine = format!("{keys}, {tokens}, {keys}");
    let mut all = vec![
        ("claim", format!("{keys}, 'q', 'k', 300, 'retry', 'w', 'h'")),
        ("claim_skip", format!("{keys}, 'q', 'k', 300, 'retry', 'w', 'h'")),
        ("progress", format!("{mine}, {}", array("'{\"progress\": 50}'", "text"))),
        ("complete", format!("{mine}, {nulls}")),
        ("complete_skip", format!("{mine}, {nulls}")),
        ("complete_told", format!("{mine}, {nulls}, {}", array("'{\"progress\": 50}'", "text"))),
        ("complete_grouped", format!("{mine}, {nulls}")),
        ("complete_grouped_told", format!("{mine}, {nulls}, {}", array("'{\"progress\": 50}'", "text"))),
        ("complete_in", format!("{mine}, {nulls}")),
        ("complete_unkept", format!("{mine}, {keys}")),
        ("complete_unkept_skip", format!("{mine}, {keys}")),
        ("unpublished", format!("{keys}, {}, 0", array("1", "int"))),
        ("visible", keys.clone()),
        (
            "settle",
            format!(
                "{mine}, {texts}, {nulls}, {nulls}, {}, {nulls}, {ords}, 'w', 20, 'an outage'",
                array("1", "float8")
            ),
        ),
        (
            "settle_suspended",
            format!(
                "{mine}, {texts}, {nulls}, {nulls}, {}, {nulls}, {ords}, 'w', 20, 'an outage', {texts}",
                array("1", "float8")
            ),
        ),
        ("still_mine", mine.clone()),
        ("reset_stale", format!("{keys}, 'w'")),
        ("settled_as", format!("{mine}, {ords}")),
        ("missed", format!("{keys}, {ords}")),
        ("queue_settings", "ARRAY['limited']".into()),
        ("claim_limited", format!("{keys}, 'q', 'k', 300, 'retry', 'w', 'h'")),
    ];
    if n == 1 {
        all.extend([
            ("claim_one", format!("{id}, 'q', 'k', 300, 'retry', 'w', 'h'")),
            ("complete_one", format!("{id}, 1, {id}, NULL")),
            ("complete_unkept_one", format!("{id}, 1, {id}, {keys}, '100ms'")),
            ("fence", format!("{id}, 1, {id}")),
        ]);
    }
    all
}

async fn finished(bench: &Bench, rows: usize) {
    bench
        .execute(&format!(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT gen_random_uuid(), 'q', 'k', '{{}}', 'completed', 1, 5, 1, gen_random_uuid(), 'w', now(), now(),
                    now(), now(), now()
               FROM generate_series(1, {rows})"
        ))
        .await;
}

async fn burst(bench: &Bench, queued: usize, processing: usize) {
    bench
        .execute(&format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, dispatch, published_at,
                    status, attempt, fencing_token, claim_id, worker_id, worker_host, stale_after, last_activity_at,
                    started_at)
             SELECT gen_random_uuid(), 'q', 'k', '{{\"order\": 1}}', 5, now(), 1, now(),
                    CASE WHEN runs THEN 'processing' ELSE 'queued' END, runs::int, runs::int,
                    CASE WHEN runs THEN gen_random_uuid() END, CASE WHEN runs THEN 'w' END,
                    CASE WHEN runs THEN 'h' END, CASE WHEN runs THEN interval '5 min' END,
                    CASE WHEN runs THEN now() END, CASE WHEN runs THEN now() END
               FROM (SELECT n <= {processing} AS runs FROM generate_series(1, {processing} + {queued}) n) AS jobs"
        ))
        .await;
}

/// Fails unless live jobs are found by id alone. A walk over the whole primary key would have no condition.
fn goes_by_id(plan: &str) -> bool {
    let lines: Vec<_> = plan.lines().collect();
    let mut scans =
        lines.iter().enumerate().filter(|(_, line)| line.contains("Scan") && line.contains(" on jobs"));
    let by_id = |(at, _): (usize, &&str)| {
        lines.get(at + 1).is_some_and(|next| {
            ["(id = ", "((id = ", "(j.id = "].iter().any(|by_id| next.contains(&format!("Cond: {by_id}")))
        })
    };
    scans.clone().count() > 0 && scans.all(by_id) && !plan.contains("Seq Scan on job_keys")
}

/// A million finished, statistics of an idle time, then a burst: what made a claim 500 times slower where an
/// index told of the status, and where a join could be walked the wrong way round.
#[tokio::test(flavor = "multi_thread")]
async fn every_hot_statement_goes_by_primary_key_under_any_statistics() {
    // A million rows keep a server busy and would delay all tests that share it.
    let bench = bench_with_servers(|_| {}).await;
    // Autovacuum would sometimes correct the statistics in the middle of the test.
    bench.execute("ALTER TABLE tenure.jobs SET (autovacuum_enabled = false)").await;
    finished(&bench, 1_000_000).await;
    burst(&bench, 1_000, 0).await;
    bench.execute("DELETE FROM tenure.jobs").await;
    bench.execute("VACUUM ANALYZE tenure.jobs").await;
    bench.execute("ANALYZE tenure.job_history").await;
    // Workers that have been idle for long have planned their statements on a table that looked empty.
    let absent = [uuid::Uuid::now_v7().to_string()];
    let mut idle = Vec::new();
    for (name, arguments) in hot(&absent) {
        let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
        let prepare = format!("PREPARE hot AS {}", text(name));
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.unwrap();
        for _ in 0..10 {
            let execute = format!("EXECUTE hot ({arguments})");
            sqlx::raw_sql(AssertSqlSafe(execute)).execute(&mut connection).await.unwrap();
        }
        idle.push((name, connection));
    }
    burst(&bench, 100_000, 10_000).await;
    let ids: Vec<String> = sqlx::query_scalar("SELECT id::text FROM tenure.jobs ORDER BY id LIMIT 500")
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    for (name, mut connection) in idle {
        let n = if name.contains("_one") || name == "fence" { 1 } else { 500 };
        let (_, arguments) = hot(&ids[..n]).into_iter().find(|(known, _)| *known == name).unwrap();
        let explain = format!("EXPLAIN EXECUTE hot ({arguments})");
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert!(goes_by_id(&plan.join("\n")), "{name}, planned while idle:\n{}", plan.join("\n"));
    }
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    for statistics in ["of an idle time", "of the burst"] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let set = format!("SET plan_cache_mode = {mode}");
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut connection).await.unwrap();
            for n in [1, 500] {
                for (name, arguments) in hot(&ids[..n]) {
                    let plan = plan(&mut connection, name, &arguments).await;
                    assert!(goes_by_id(&plan), "{name}, {n} jobs, {mode}, statistics {statistics}:\n{plan}");
                }
            }
        }
        bench.execute("ANALYZE tenure.jobs").await;
    }
}

/// The relay, and an enqueue that met a key, go by index, however many other jobs are queued.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_and_unique_keys_go_by_their_index() {
    let bench = bench_with_servers(|_| {}).await;
    bench.execute("ALTER TABLE tenure.jobs SET (autovacuum_enabled = false)").await;
    burst(&bench, 50_000, 5_000).await;
    bench
        .execute("INSERT INTO tenure.job_keys (scope, key, job_id) SELECT 'q', id::text, id FROM tenure.jobs")
        .await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    for statistics in ["none", "of the burst"] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let set = format!("SET plan_cache_mode = {mode}");
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut connection).await.unwrap();
            for (name, arguments, index) in [
                ("take_due", "500, '{}', NULL", "jobs_unpublished"),
                ("reclaim_lost", "'q', now(), 500, 'w', '1:1:', '{}', NULL", "jobs_published"),
                ("published_queues", "NULL, 1000", "jobs_published"),
                ("published_queues", "'x', 1000", "jobs_published"),
                ("suspects", "2, ARRAY['q'], 100", "jobs_published"),
                ("held_keys", "ARRAY['q', 'q'], ARRAY['a', 'b'], ARRAY[0, 1]", "job_keys_pkey"),
                ("count_queued", "'q', 101", "jobs_unpublished_of_queue"),
                ("count_queued", "'q', 101", "jobs_published"),
            ] {
                let plan = plan(&mut connection, name, arguments).await;
                let by_index =
                    plan.contains(&format!("using {index}")) || plan.contains(&format!("on {index}"));
                assert!(
                    by_index && !plan.contains("Seq Scan"),
                    "{name}, {mode}, statistics {statistics}:\n{plan}"
                );
                // A list of ids that is scanned once for each id.
                let joins = plan.contains("Nested Loop") && plan.contains("= ANY");
                assert!(!joins, "{name}, {mode}, statistics {statistics}:\n{plan}");
            }
        }
        bench.execute("ANALYZE tenure.jobs").await;
        bench.execute("ANALYZE tenure.job_keys").await;
    }
}

/// Counting an empty queue does not read another queue's many scheduled jobs.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_scheduled_in_other_queues_are_not_read_to_count_a_queue() {
    let bench = bench_with_servers(|_| {}).await;
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at)
             SELECT gen_random_uuid(), CASE WHEN n <= 5 THEN 'q' ELSE 'reminders' END, 'k', '1', 5,
                    now() + n * interval '1 s', now() + n * interval '1 s'
               FROM generate_series(1, 30000) n",
        )
        .await;
    bench.execute("VACUUM ANALYZE tenure.jobs").await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let prepare = format!("PREPARE hot AS {}", statement("count_queued"));
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.unwrap();
    for mode in ["force_generic_plan", "force_custom_plan"] {
        let explain = format!(
            "SET plan_cache_mode = {mode}; EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE hot ('q', 101)"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
        let buffers = plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared hit=")).unwrap();
        let read: u32 = buffers.split(' ').next().unwrap().parse().unwrap();
        assert!(read < 30, "{mode}:\n{plan}");
    }
}

/// While a backlog is worked off, each search would read the index entries of all jobs that ended since the last one.
#[tokio::test(flavor = "multi_thread")]
async fn the_search_for_lost_messages_does_not_read_the_remains_of_a_worked_off_backlog() {
    let bench = bench().await;
    bench.execute("ALTER TABLE tenure.jobs SET (autovacuum_enabled = false)").await;
    burst(&bench, 10_000, 0).await;
    bench.execute("UPDATE tenure.jobs SET published_at = now() - interval '1 min'").await;
    bench.execute("VACUUM tenure.jobs").await;
    burst(&bench, 1, 0).await;
    bench.execute("UPDATE tenure.jobs SET published_at = now() - interval '10 s' WHERE published_at > now() - interval '30 s'").await;
    bench.execute("DELETE FROM tenure.jobs WHERE published_at < now() - interval '30 s'").await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    for (name, arguments, mode) in [
        ("published_queues", "NULL, 1000", "force_generic_plan"),
        ("published_queues", "NULL, 1000", "force_custom_plan"),
        ("suspects", "2, ARRAY['q'], 100", "force_generic_plan"),
        ("suspects", "2, ARRAY['q'], 100", "force_custom_plan"),
    ] {
        let explain = format!(
            "SET plan_cache_mode = {mode}; DEALLOCATE ALL; PREPARE hot AS {}; \
             EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE hot ({arguments})",
            statement(name)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
        let buffers = plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared hit=")).unwrap();
        let read: u32 = buffers.split(' ').next().unwrap().parse().unwrap();
        assert!(read < 40, "{name}, {mode}:\n{plan}");
    }
}

/// The number of updates, and of those that touched no index.
async fn updates(connection: &mut PgConnection) -> (i64, i64) {
    // Otherwise the counters are up to a second late.
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(&mut *connection).await.unwrap();
    let counted =
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'tenure.jobs'::regclass";
    sqlx::query_as(counted).fetch_one(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_progress_touch_no_index() {
    let bench = bench().await;
    burst(&bench, 500, 0).await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let ids: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY id")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let claimed = sqlx::query(statement("claim"))
        .bind(&ids)
        .bind("q")
        .bind("k")
        .bind(300.0_f64)
        .bind("retry")
        .bind("w-1-aaaaaaaa")
        .bind("w")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(claimed.len(), 500);
    let (ids, claim_ids): (Vec<uuid::Uuid>, Vec<uuid::Uuid>) = claimed
        .iter()
        .map(|row| (row.get::<uuid::Uuid, _>("id"), row.get::<uuid::Uuid, _>("claim_id")))
        .unzip();
    // Half of each page was left free. A claimed row is larger than a queued one: the last of a page may find
    // it full. Were an index touched, none would be.
    let (claims, hot) = updates(&mut connection).await;
    assert_eq!(claims, 500);
    assert!(hot > 250, "{hot} of {claims} claims were HOT");
    for round in 0_u8..10 {
        // Postgres does not prune rows that any transaction of the server may still see, such as those of other tests
        // and of autovacuum; their pages have no room.
        let now: i64 = bench.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await;
        bench
            .until(&format!(
                "pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= {now} AND NOT EXISTS (
                    SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                       AND backend_xmin::text::bigint < {now})"
            ))
            .await;
        let report = format!("{{\"stage\": \"a stage\", \"progress\": {round}}}");
        let reported = sqlx::query(statement("progress"))
            .bind(&ids)
            .bind([1_i64])
            .bind(&claim_ids)
            .bind(vec![report; 500])
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(reported.len(), 500);
    }
    let (all, all_hot) = updates(&mut connection).await;
    let (reports, hot) = (all - claims, all_hot - hot);
    assert_eq!(reports, 5_000);
    assert!(hot * 100 > reports * 90, "{hot} of {reports} reports were HOT");
}

/// A list with an age reads the history from there on by primary key, under generic and custom plans.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_by_age_goes_by_primary_key() {
    let bench = bench_with_servers(|_| {}).await;
    bench
        .execute(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000'
                     || lpad(to_hex(n), 12, '0'))::uuid,
                    'q', 'k', '{}', 'completed', 1, 5, 1, gen_random_uuid(), 'w', at, at, at, at, at
               FROM (SELECT n, now() - n * interval '26 seconds' AS at FROM generate_series(1, 100000) n) jobs",
        )
        .await;
    bench.execute("ANALYZE tenure.job_history").await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let id = uuid::Uuid::now_v7();
    for mode in ["force_generic_plan", "force_custom_plan"] {
        let set = format!("SET plan_cache_mode = {mode}");
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut connection).await.unwrap();
        for arguments in [
            "NULL, NULL, NULL, NULL, 2000000, NULL, NULL, NULL, NULL, NULL, 50, true".to_owned(),
            "'cancelled', 'q', NULL, 'w', 2000000, 2003600, 'text', NULL, 'more', NULL, 50, false".to_owned(),
            format!("NULL, 'q', NULL, NULL, NULL, NULL, NULL, '{id}', NULL, NULL, 50, false"),
        ] {
            let plan = plan(&mut connection, "list_jobs", &arguments).await;
            let lines: Vec<_> = plan.lines().collect();
            let mut scans = lines
                .iter()
                .enumerate()
                .filter(|(_, line)| line.contains("Scan") && line.contains("job_history_default"));
            // Cancelled jobs are few and have an index of their own, which no other list uses.
            let of_cancelled = arguments.starts_with("'cancelled'");
            let by_id = |(at, line): (usize, &&str)| {
                lines.get(at + 1).is_some_and(|next| next.contains("Cond: ((id <= "))
                    || of_cancelled && line.contains("finished_at_idx")
            };
            assert!(scans.clone().count() > 0 && scans.all(by_id), "{mode}, {arguments}:\n{plan}");
        }
    }
}

/// A list of a tag's jobs reads the newest of them by the tag, and each job by its id.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_by_tag_reads_as_many_jobs_as_it_shows() {
    let bench = bench_with_servers(|_| {}).await;
    finished(&bench, 50_000).await;
    burst(&bench, 2_000, 10).await;
    bench
        .execute(
            "INSERT INTO tenure.job_tags (job_id, tag) SELECT id, 'all' FROM tenure.all_jobs
             UNION ALL SELECT id, 'past' FROM tenure.job_history
             UNION ALL SELECT id, 'n=' || row_number() OVER () % 1000 FROM tenure.all_jobs",
        )
        .await;
    bench.execute("ANALYZE tenure.job_tags, tenure.jobs, tenure.job_history").await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let none = "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL";
    for mode in ["force_generic_plan", "force_custom_plan"] {
        for (name, arguments, most) in [
            ("list_tagged", format!("{none}, 50, false, '{{all}}'"), 1_200),
            ("list_tagged", format!("{none}, 50, false, '{{n=7}}'"), 1_200),
            // The rarer of two tags is read.
            ("list_tagged", format!("{none}, 50, false, '{{n=7,all}}'"), 4_000),
            ("list_tagged", format!("{none}, 50, false, '{{all,n=7}}'"), 4_000),
            // An action reads the live jobs, and not those that have finished with the tag.
            ("match_tagged", format!("{none}, 50, 'cancel', '{{all}}'"), 20_000),
            ("match_tagged", format!("{none}, 50, 'cancel', '{{past}}'"), 20_000),
            ("match_tagged", format!("{none}, 50, 'retry', '{{past}}'"), 20_000),
        ] {
            let explain = format!(
                "SET plan_cache_mode = {mode}; DEALLOCATE ALL; PREPARE hot AS {}; \
                 EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE hot ({arguments})",
                statement(name)
            );
            let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
            let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
            let buffers =
                plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared hit=")).unwrap();
            let scans_whole = plan.lines().any(|line| {
                (line.contains("Seq Scan on job_") || line.contains("Bitmap Heap Scan on job_tags c"))
                    && !line.contains("never executed")
            });
            let read: u64 = buffers.split(' ').next().unwrap().parse().unwrap();
            assert!(read < most && !scans_whole, "{name}, {mode}, {arguments}:\n{plan}");
        }
    }
}

/// The buffers that a statement reads.
async fn buffers(connection: &mut PgConnection, sql: &str) -> u32 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {sql}");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.unwrap();
    let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
    let read = plan.split("shared hit=").nth(1).and_then(|read| read.split([' ', ')', ',', '\n']).next());
    read.map_or(0, |read| read.parse().unwrap())
}

/// An open transaction keeps the rows that were worked off since it began. A look at an empty table does not pass them,
/// and one of a hundred still finds what a transaction brings that was open for long.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_look_does_not_pass_the_dead_rows_that_an_open_transaction_keeps() {
    let bench = bench_with_servers(|_| {}).await;
    let mut open = bench.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *open).await.unwrap();
    for dead in [
        "INSERT INTO tenure.lane_wakes (at, queue, lane) SELECT now() - interval '2 min', 'q', 'a' FROM generate_series(1, 20000)",
        "INSERT INTO tenure.job_expiries (at, job_id)
         SELECT now() - interval '2 min', gen_random_uuid() FROM generate_series(1, 20000)",
        "INSERT INTO tenure.group_ends (job_id, ended_as)
         SELECT gen_random_uuid(), 'completed' FROM generate_series(1, 20000)",
        "DELETE FROM tenure.lane_wakes",
        "DELETE FROM tenure.job_expiries",
        "DELETE FROM tenure.group_ends",
        // The last id of a minute ago.
        "UPDATE tenure.looks_from SET next_id = 20000",
        "SELECT count(tenure.look_from('lane_wakes')), count(tenure.look_from('job_expiries')),
                count(tenure.first_note()) FROM generate_series(1, 1000)",
    ] {
        bench.execute(dead).await;
    }
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let expire = statement("expire")
        .replace("$1", "NULL")
        .replace("$2", "1000")
        .replace("$3", "'{}'")
        .replace("$4", "NULL");
    let overdue = statement("lanes_overdue").replace("$1", "0.3");
    for look in [
        "SELECT * FROM tenure.tend_lanes(1000, false)",
        "SELECT * FROM tenure.release_followers(1000)",
        expire.as_str(),
        overdue.as_str(),
    ] {
        let mut read = Vec::new();
        for _ in 0..9 {
            read.push(buffers(&mut connection, look).await);
        }
        read.sort_unstable();
        // Each has twenty thousand dead entries in an index of some hundred pages, and as many in the table.
        assert!(read[4] < 60, "{read:?}: {look}");
    }
    for late in [
        "INSERT INTO tenure.lane_wakes (at, queue, lane) VALUES (now() - interval '90 s', 'q', 'late')",
        "INSERT INTO tenure.job_expiries (at, job_id) VALUES (now() - interval '90 s', gen_random_uuid())",
        "INSERT INTO tenure.group_ends (id, job_id, ended_as) OVERRIDING SYSTEM VALUE VALUES (7, gen_random_uuid(), 'settled')",
    ] {
        bench.execute(late).await;
    }
    for (look, table) in [
        ("SELECT * FROM tenure.tend_lanes(1000, false)", "tenure.lane_wakes"),
        ("SELECT * FROM tenure.release_followers(1000)", "tenure.group_ends"),
        (expire.as_str(), "tenure.job_expiries"),
    ] {
        let mut looks = 0;
        while bench.count(table).await > 0 {
            looks += 1;
            assert!(looks < 3_000, "{table}");
            sqlx::raw_sql(AssertSqlSafe(look)).execute(&mut connection).await.unwrap();
        }
    }
    open.rollback().await.unwrap();
}
