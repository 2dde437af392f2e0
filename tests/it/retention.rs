//! Retention: rows that are old enough leave, and no others.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Worker};

use crate::harness::{Bench, Running, bench, bench_with, statement};

/// Makes every row this many days older, including the times in the ids.
async fn age(bench: &Bench, days: u32) {
    let id = |column: &str| {
        format!(
            "(lpad(to_hex((('x' || left(replace({column}::text, '-', ''), 12))::bit(48)::bigint - {days}::bigint * 86400000)), 12, '0')
              || substr(replace({column}::text, '-', ''), 13))::uuid"
        )
    };
    // Rows of the past belong to partitions of their days.
    bench
        .execute(
            "DO $$ DECLARE day date; low uuid; high uuid; BEGIN
                 FOR n IN 0 .. 45 LOOP
                     day := (now() AT TIME ZONE 'UTC')::date - n;
                     CONTINUE WHEN to_regclass('tenure.job_history_' || to_char(day, 'YYYYMMDD')) IS NOT NULL;
                     low := tenure.id_of_time(day::timestamp AT TIME ZONE 'UTC');
                     high := tenure.id_of_time((day + 1)::timestamp AT TIME ZONE 'UTC');
                     EXECUTE format('CREATE TABLE tenure.job_history_%s PARTITION OF tenure.job_history FOR VALUES FROM (%L) TO (%L)',
                                    to_char(day, 'YYYYMMDD'), low, high);
                 END LOOP;
             END $$",
        )
        .await;
    for (table, column, times) in [
        ("job_history", "id", vec!["created_at", "finished_at"]),
        ("dead_letter_jobs", "id", vec!["created_at", "died_at"]),
        ("job_executions", "job_id", vec!["started_at", "finished_at"]),
        ("effects", "job_id", vec!["created_at"]),
        ("job_keys", "job_id", vec!["created_at"]),
        ("recovery_events", "job_id", vec!["at"]),
        ("job_tags", "job_id", vec![]),
    ] {
        let times = times.iter().map(|at| format!(", {at} = {at} - interval '{days} days'"));
        bench
            .execute(&format!(
                "UPDATE tenure.{table} SET {column} = {}{}",
                id(column),
                times.collect::<String>()
            ))
            .await;
    }
}

fn worker(bench: &Bench) -> Running {
    let handler = |how: Value, ctx: JobContext| async move {
        match how.as_str().unwrap_or_default() {
            "twice" if ctx.attempt() == 1 => Err(JobError::retry_after(Duration::ZERO, "once more")),
            "cancel" => Ok(Outcome::Cancel("it says so".into())),
            "die" => Err(JobError::permanent("never")),
            "effect" => {
                ctx.once("effect", async |_| Ok::<_, JobError>(json!(1))).await?;
                Ok(Outcome::Done(None))
            }
            _ => Ok(Outcome::Done(None)),
        }
    };
    Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 10),
    )
}

async fn one_of_each(bench: &Bench) {
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let worker = worker(bench);
    for how in ["done", "twice", "cancel", "die", "effect"] {
        let job = JobRequest::new("q", "way", json!(how)).unique_key(how).tag(how).tag("all");
        bench.tenure.enqueue(job).await.unwrap();
    }
    bench.publish("q.way", "\"done\"").await;
    bench.until("(SELECT count(*) FROM tenure.all_jobs WHERE finished_at IS NOT NULL) = 6").await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
    bench.execute("INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, reason, recovered_by) SELECT 'reset', 'scanner', id, 1, 'x', 'x' FROM tenure.job_history LIMIT 1").await;
}

const HELD: &str = "SELECT (SELECT count(*) FROM tenure.job_history WHERE status = 'completed'),
    (SELECT count(*) FROM tenure.job_history WHERE status = 'cancelled'), (SELECT count(*) FROM tenure.dead_letter_jobs),
    (SELECT count(*) FROM tenure.job_executions), (SELECT count(*) FROM tenure.effects),
    (SELECT count(*) FROM tenure.job_keys), (SELECT count(*) FROM tenure.recovery_events),
    (SELECT count(*) FROM tenure.job_tags)";

/// Has a worker sweep, and waits until the sweep is done.
async fn sweep(bench: &Bench) {
    bench.execute("UPDATE tenure.scanner_state SET purged_at = NULL, swept_at = NULL").await;
    let worker = worker(bench);
    bench.until("(SELECT swept_at >= purged_at FROM tenure.scanner_state)").await;
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_old_enough_leave_and_no_others() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(100);
        config.retention.completed = Some(Duration::from_secs(10 * 86_400));
        config.retention.cancelled = Some(Duration::from_secs(5 * 86_400));
        config.retention.dead = Some(Duration::from_secs(20 * 86_400));
        config.retention.keys = Some(Duration::from_secs(15 * 86_400));
        config.retention.events = Some(Duration::from_secs(12 * 86_400));
    })
    .await;
    one_of_each(&bench).await;
    // Completed, cancelled, dead, attempts, effects, keys, events, tags.
    assert_eq!(bench.text(HELD).await, "(4,1,1,1,1,6,1,10)");
    sweep(&bench).await;
    assert_eq!(bench.text(HELD).await, "(4,1,1,1,1,6,1,10)");
    for (days, held) in [
        (6, "(4,0,1,1,1,6,1,8)"),
        (3, "(4,0,1,1,1,6,1,8)"),
        // Completed jobs leave by whole days.
        (3, "(0,0,1,0,0,6,0,2)"),
        // The dead letter holds its key.
        (5, "(0,0,1,0,0,1,0,2)"),
        (5, "(0,0,0,0,0,0,0,0)"),
    ] {
        age(&bench, days).await;
        sweep(&bench).await;
        assert_eq!(bench.text(HELD).await, held, "{days} days later");
    }
    let days = bench.count("pg_class WHERE relname ~ '^job_history_[0-9]{8}$' AND relname < 'job_history_' || to_char(now() - interval '12 days', 'YYYYMMDD')").await;
    assert_eq!(days, 0, "days without jobs leave, too");
}

/// The longest retention is beyond every time of Postgres: no sweep fails for it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_under_the_longest_possible_retention_stay() {
    let bench = bench_with(|config| {
        let kept = &mut config.retention;
        for age in
            [&mut kept.completed, &mut kept.cancelled, &mut kept.dead, &mut kept.keys, &mut kept.events]
        {
            *age = Some(Duration::MAX);
        }
    })
    .await;
    one_of_each(&bench).await;
    age(&bench, 40).await;
    sweep(&bench).await;
    assert_eq!(bench.text(HELD).await, "(4,1,1,1,1,6,1,10)");
}

/// A job of an old day that ended recently keeps its day; the other jobs of that day still leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ended_late_is_kept_and_its_day_leaves_around_it() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(100);
        config.retention.completed = Some(Duration::from_secs(2 * 86_400));
        config.retention.cancelled = Some(Duration::from_secs(40 * 86_400));
    })
    .await;
    one_of_each(&bench).await;
    age(&bench, 9).await;
    let late = "UPDATE tenure.job_history SET finished_at = now() WHERE payload = '\"effect\"'";
    assert_eq!(bench.execute(late).await, 1);
    sweep(&bench).await;
    // The late job with its effect stays, and the cancelled one, which is kept for longer.
    assert_eq!(bench.text(HELD).await, "(1,1,1,0,1,6,1,6)");
    age(&bench, 9).await;
    sweep(&bench).await;
    assert_eq!(bench.text(HELD).await, "(0,1,1,0,0,6,1,4)");
}

/// The test forces it: a job of an old day is being completed while a sweep is about to drop that day.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_completes_while_its_day_leaves_is_not_lost() {
    let bench = bench().await;
    one_of_each(&bench).await;
    age(&bench, 9).await;
    let copy = "INSERT INTO tenure.job_history
                SELECT (left(id::text, 14) || '7fff-8000-000000000001')::uuid, queue, kind, payload, status, attempt,
                       max_attempts, fencing_token, claim_id, worker_id, created_at, scheduled_at, started_at,
                       last_activity_at, now(), stage, progress, message, output, trace_context, last_error
                  FROM tenure.job_history WHERE payload = '\"effect\"'";
    let purge = "SELECT completed FROM tenure.purge_day('2 days', '2 days')";
    let mut completing = bench.pool.begin().await.unwrap();
    sqlx::query(copy).execute(&mut *completing).await.unwrap();
    // Empty days leave.
    let purge_all = async || while !sqlx::query(purge).fetch_all(&bench.pool).await.unwrap().is_empty() {};
    // The sweep does not wait for long, and drops nothing else.
    purge_all().await;
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 4);
    // The completion commits while a sweep waits for it: the sweep must see its row before it drops the day.
    let purging = tokio::spawn({
        let pool = bench.pool.clone();
        async move { while !sqlx::query(purge).fetch_all(&pool).await.unwrap().is_empty() {} }
    });
    let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
    while !purging.is_finished() && !bench.value::<bool>(&format!("SELECT {waits}")).await {}
    completing.commit().await.unwrap();
    purging.await.unwrap();
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 5);
    // Now the sweep sees that one row of the day is new.
    purge_all().await;
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 5);
    bench.execute("DELETE FROM tenure.job_history WHERE finished_at > now() - interval '1 day'").await;
    // The other way round: the completion comes while the day is being dropped.
    let mut purging = bench.pool.begin().await.unwrap();
    assert_eq!(sqlx::query(purge).fetch_all(&mut *purging).await.unwrap().len(), 1);
    let late = tokio::spawn({
        let pool = bench.pool.clone();
        let copy = copy.replace(
            "FROM tenure.job_history WHERE payload = '\"effect\"'",
            "FROM tenure.dead_letter_jobs, LATERAL (SELECT 'completed' AS status, NULL::jsonb AS output) d",
        );
        async move { sqlx::query(sqlx::AssertSqlSafe(copy)).execute(&pool).await }
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    purging.commit().await.unwrap();
    assert_eq!(late.await.unwrap().unwrap().rows_affected(), 1);
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 1);
}

/// Without a leader: of many workers that ask at once, one sweeps, and each step is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_at_a_time_sweeps_in_bounded_steps() {
    let bench = bench().await;
    let gate = statement("purge_gate");
    let turns = (0..8).map(|_| {
        let pool = bench.pool.clone();
        tokio::spawn(async move {
            sqlx::query(gate).bind(600.0).bind(86_400.0).fetch_all(&pool).await.unwrap().len()
        })
    });
    let mut swept = 0;
    for turn in turns.collect::<Vec<_>>() {
        swept += turn.await.unwrap();
    }
    assert_eq!(swept, 1);
    one_of_each(&bench).await;
    bench
        .execute(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
             SELECT tenure.id_of_time(at), 'q', 'k', '1', 'completed', 1, 5, 1, gen_random_uuid(), 'w', at, at, at, at, at
               FROM (SELECT now() - interval '90 days' + n * interval '1 s' AS at FROM generate_series(1, 25) n) rows",
        )
        .await;
    let nil = uuid::Uuid::nil();
    let step = |after: uuid::Uuid| {
        format!(
            "SELECT completed::text || ' ' || coalesce(last::text, 'end') FROM tenure.purge_rows('9 days', '9 days', '{after}', 10)"
        )
    };
    let (mut after, mut steps) = (nil, Vec::new());
    loop {
        let answer: String = bench.value(&step(after)).await;
        let (gone, last) = answer.split_once(' ').unwrap();
        steps.push(gone.to_owned());
        match last.parse() {
            Ok(last) => after = last,
            Err(_) => break,
        }
    }
    assert_eq!(steps, ["10", "10", "5", "0"]);
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 4);
}

/// While one sweep waits for longer than the interval between sweeps, no worker begins another.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_takes_long_keeps_its_turn() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(50);
        config.timing.database_within = Duration::from_secs(60);
        config.retention.dead = Some(Duration::from_hours(24));
    })
    .await;
    bench.execute("UPDATE tenure.scanner_state SET purged_at = clock_timestamp()").await;
    let mut dead = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.dead_letter_jobs").execute(&mut *dead).await.unwrap();
    let workers: Vec<_> = (0..3).map(|_| worker(&bench)).collect();
    let waits = "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%purge_dead%'";
    bench.until_count(waits, 1).await;
    let began: chrono::DateTime<chrono::Utc> = bench.value("SELECT clock_timestamp()").await;
    // Three times the interval between sweeps.
    let renewed = format!(
        "purged_at > '{}'::timestamptz + interval '3 s' FROM tenure.scanner_state",
        began.to_rfc3339()
    );
    while !bench.value::<bool>(&format!("SELECT {renewed}")).await {
        assert_eq!(bench.count(waits).await, 1, "another sweep has begun");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bench.count(waits).await, 1, "one sweeps");
    dead.commit().await.unwrap();
    bench.until("swept_at IS NOT NULL FROM tenure.scanner_state").await;
    for worker in workers {
        worker.stop().await;
    }
}

/// A key outlives the end of its job by its retention, even if the job ended long after it was created.
#[tokio::test(flavor = "multi_thread")]
async fn the_retention_of_a_key_counts_from_the_end_of_its_job() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(100);
        config.retention.completed = Some(Duration::from_secs(7 * 86_400));
        config.retention.keys = Some(Duration::from_secs(30 * 86_400));
    })
    .await;
    one_of_each(&bench).await;
    age(&bench, 40).await;
    // All of them ended eight days ago.
    bench.execute("UPDATE tenure.job_history SET finished_at = now() - interval '8 days'").await;
    sweep(&bench).await;
    assert_eq!(bench.text(HELD).await, "(0,0,1,0,0,6,0,2)");
    bench.execute("UPDATE tenure.job_keys SET ended_at = ended_at - interval '23 days'").await;
    sweep(&bench).await;
    assert_eq!(bench.count("tenure.job_keys").await, 1, "the dead letter's");
}

/// A redelivered submission does not make a second job, however old its message is.
#[tokio::test(flavor = "multi_thread")]
async fn the_identity_of_a_submission_stays_as_long_as_its_message() {
    let bench = bench().await;
    one_of_each(&bench).await;
    age(&bench, 90).await;
    let identity: i64 =
        bench.value("SELECT stream_seq FROM tenure.job_keys WHERE stream_seq IS NOT NULL").await;
    let purge = |first: i64| {
        format!(
            "tenure.purge_keys('30 days', {first}, '00000000-0000-0000-0000-000000000000', 1000) WHERE gone > 0"
        )
    };
    assert_eq!(bench.count(&purge(identity)).await, 1, "the other keys");
    assert_eq!(bench.count("tenure.job_keys WHERE stream_seq IS NOT NULL").await, 1);
    assert_eq!(bench.count(&purge(identity + 1)).await, 1);
    assert_eq!(bench.count("tenure.job_keys WHERE stream_seq IS NOT NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_younger_than_an_hour_is_ever_purged() {
    let bench = bench().await;
    one_of_each(&bench).await;
    for call in [
        "tenure.purge_day('59 min', '1 day')",
        "tenure.purge_day('1 day', '0')",
        "tenure.purge_rows('1 day', '1 min', '00000000-0000-0000-0000-000000000000', 10)",
        "tenure.purge_cancelled('1 min', 10)",
        "tenure.purge_dead('1 min', 10)",
        "tenure.purge_keys('1 min', 1, '00000000-0000-0000-0000-000000000000', 10)",
        "tenure.purge_events('1 min', 10)",
    ] {
        let refused =
            sqlx::query(sqlx::AssertSqlSafe(format!("SELECT * FROM {call}"))).execute(&bench.pool).await;
        // An empty table raises no error.
        if let Err(error) = refused {
            assert!(error.to_string().contains("less than an hour"), "{call}: {error}");
        }
    }
    assert_eq!(bench.text(HELD).await, "(4,1,1,1,1,6,1,10)");
    let wrong = bench.program(&["jobs", "list"]).env("TENURE_KEEP_DEAD", "5min").output().await.unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("from 1h to a hundred years"), "{wrong:?}");
    let right = bench.program(&["jobs", "list"]).env("TENURE_KEEP_DEAD", "forever").output().await.unwrap();
    assert!(right.status.success());
}

/// An operator's view, for example, keeps a day of the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_that_cannot_leave_keeps_no_other_row() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(100);
        let kept = &mut config.retention;
        for age in [&mut kept.completed, &mut kept.cancelled, &mut kept.dead] {
            *age = Some(Duration::from_secs(2 * 86_400));
        }
    })
    .await;
    one_of_each(&bench).await;
    age(&bench, 9).await;
    let days = "SELECT min(relname::text) FROM pg_class WHERE relname ~ '^job_history_[0-9]{8}$'";
    let oldest: String = bench.value(days).await;
    bench.execute(&format!("CREATE VIEW public.of_a_day AS SELECT id FROM tenure.{oldest}")).await;
    sweep(&bench).await;
    assert_eq!(bench.count("tenure.job_history").await, 0, "of later days");
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0, "of later steps");
    assert_eq!(bench.value::<String>(days).await, oldest);
    bench.execute("DROP VIEW public.of_a_day").await;
    sweep(&bench).await;
    assert_ne!(bench.value::<String>(days).await, oldest);
}
