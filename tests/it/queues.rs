//! Queues: paused, limited, bounded, and served by weight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use tenure::{
    EnqueueError, JobContext, JobRequest, KindOptions, Worker, WorkerError, internals::Recovery,
    queues::QueueLimits,
};
use tokio::sync::Semaphore;

use crate::harness::{Bench, Child, Running, bench, bench_with, statement};

fn job(queue: &str) -> JobRequest {
    JobRequest::new(queue, "k", json!(1))
}

async fn enqueue(bench: &Bench, queue: &str, n: usize) {
    bench.tenure.enqueue_many((0..n).map(|_| job(queue))).await.unwrap();
}

/// A worker whose jobs take `ms` milliseconds.
fn taking(bench: &Bench, ms: u64, slots: u32) -> Running {
    let handler = move |_: Value, _: JobContext| tokio::time::sleep(Duration::from_millis(ms));
    Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", slots),
    )
}

/// The most attempts that ran at once, by the database's clock.
async fn at_once(bench: &Bench) -> i64 {
    bench
        .value(
            "SELECT max(n)::bigint FROM (
              SELECT sum(step) OVER (ORDER BY at, step) AS n FROM (
                 SELECT started_at AS at, 1 AS step FROM tenure.job_executions_all
                  UNION ALL SELECT coalesce(finished_at, 'infinity'), -1 FROM tenure.job_executions_all) ends
             ) running",
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_of_a_paused_queue_starts_and_all_run_once_it_is_resumed() {
    let bench = bench().await;
    let worker = taking(&bench, 1, 5);
    enqueue(&bench, "q", 5).await;
    bench.until_count("tenure.job_history", 5).await;

    let paused = bench.tenure.pause_queue("q").await.unwrap();
    assert!(!paused.was_paused);
    assert!(bench.tenure.pause_queue("q").await.unwrap().was_paused);
    enqueue(&bench, "q", 40).await;
    bench.publish("q.k", "2").await;
    // A worker that does not know of the pause yet: its claim changes nothing.
    let claim = statement("claim_one");
    let id: uuid::Uuid = bench.value("SELECT id FROM tenure.jobs LIMIT 1").await;
    let query = sqlx::query(claim).bind(id).bind("q").bind("k").bind(300.0).bind("retry").bind("w").bind("h");
    assert!(query.fetch_optional(&bench.pool).await.unwrap().is_none());
    // A worker that starts during the pause serves its other queues.
    let second = taking(&bench, 1, 5);
    let other = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("other", 1),
    );
    enqueue(&bench, "other", 3).await;
    bench.until_count("tenure.job_history WHERE queue = 'other'", 3).await;
    // Longer than the relay needs to notice a lost message: a message that waits for the resumption is not lost.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.count("tenure.job_executions_all WHERE started_at > (SELECT paused_at FROM tenure.queues WHERE queue = 'q') AND job_id IN (SELECT id FROM tenure.all_jobs WHERE queue = 'q')").await, 0);
    assert_eq!(bench.count("tenure.recovery_events").await, 0);

    let resumed = Instant::now();
    for was_paused in [true, false] {
        let outcome = bench.tenure.resume_queue("q").await.unwrap();
        assert_eq!((outcome.was_paused, outcome.paused_at), (was_paused, None));
    }
    bench.until("EXISTS (SELECT FROM tenure.job_history h JOIN tenure.queues q USING (queue) WHERE h.queue = 'q' AND h.id <> ALL (SELECT id FROM tenure.job_history ORDER BY finished_at LIMIT 8))").await;
    assert!(resumed.elapsed() < Duration::from_secs(2), "{:?}", resumed.elapsed());
    bench.until_count("tenure.job_history WHERE queue = 'q'", 46).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
    second.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_runs_at_most_max_running_jobs_whichever_worker_claims_or_dies() {
    let bench = bench_with(|config| config.timing.renew_every = Duration::from_millis(500)).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(3)).await.unwrap();
    enqueue(&bench, "q", 60).await;
    let mut dies = Child::start(&bench, "sleepy");
    let workers: Vec<_> = (0..3).map(|_| taking(&bench, 60, 5)).collect();
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE status = 'processing' AND kind = 'k')").await;
    bench.until("(SELECT count(*) FROM tenure.job_history) > 10").await;
    dies.kill().await;
    bench.until_count("tenure.job_history", 60).await;
    assert_eq!(at_once(&bench).await, 3);
    bench.until_stream_is_empty(Duration::from_secs(20)).await;

    // Without the limit, all slots run jobs.
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(None)).await.unwrap();
    bench.execute("TRUNCATE tenure.job_history, tenure.job_executions, tenure.recovery_events").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    enqueue(&bench, "q", 60).await;
    bench.until_count("tenure.job_history", 60).await;
    assert!(at_once(&bench).await > 8);
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_run_when_a_limit_is_set_count_and_a_lowered_limit_waits_for_them() {
    let bench = bench().await;
    let go = Arc::new(Semaphore::new(0));
    let waits = go.clone();
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new().keepalive(), move |_: Value, _: JobContext| {
                let waits = waits.clone();
                async move { waits.acquire().await.unwrap().forget() }
            })
            .concurrency("q", 10),
    );
    enqueue(&bench, "q", 4).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 4).await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    enqueue(&bench, "q", 4).await;
    let running = "tenure.jobs WHERE status = 'processing'";
    // Two of the four end: the limit of two is still reached.
    go.add_permits(2);
    bench.until_count("tenure.job_history", 2).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(bench.count(running).await, 2);
    // The third ends: one job takes its place.
    go.add_permits(1);
    bench.until_count("tenure.job_history", 3).await;
    bench.until_count(running, 2).await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(4)).await.unwrap();
    bench.until_count(running, 4).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(bench.count(running).await, 4);
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    go.add_permits(10);
    bench.until_count("tenure.job_history", 8).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

/// Forces claims of one slot at the same time, each of which would find it free alone.
#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_claims_of_one_free_slot_at_once_one_wins() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(1)).await.unwrap();
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..20)
        .map(|_| {
            let started = started.clone();
            Running::start(
                Worker::builder(&bench.tenure)
                    .handle_any(KindOptions::new().keepalive(), move |_: Value, _: JobContext| {
                        started.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_secs(2))
                    })
                    .concurrency("q", 2),
            )
        })
        .collect();
    // All workers have their pull requests on the server.
    tokio::time::sleep(Duration::from_millis(300)).await;
    enqueue(&bench, "q", 20).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((started.load(Ordering::SeqCst), at_once(&bench).await), (1, 1));
    drop(workers);
}

/// A session holds the lock of a limited queue for three seconds. A claim that waits for it in vain keeps its
/// connection and tries again.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_in_vain_for_a_limited_queue_open_no_new_connections() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(40)).await.unwrap();
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..5 {
        let tenure = tenure::Tenure::connect(&bench.config).await.unwrap();
        let worker = Worker::builder(&tenure)
            .handle_any(KindOptions::new(), |_: Value, _: JobContext| async {})
            // A scan may open a connection of its own.
            .recovery(&[Recovery::Reconcile])
            .concurrency("q", 8);
        workers.push((Running::start(worker), tenure));
    }
    enqueue(&bench, "q", 40).await;
    bench.until_count("tenure.job_history", 40).await;
    let mut line = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.queue_slots WHERE queue = 'q' FOR UPDATE")
        .execute(&mut *line)
        .await
        .unwrap();
    enqueue(&bench, "q", 40).await;
    let mut seen = std::collections::HashSet::new();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let sessions: Vec<String> = sqlx::query_scalar(
            "SELECT pid || ' ' || backend_start FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure'",
        )
        .fetch_all(&bench.pool)
        .await
        .unwrap();
        seen.extend(sessions);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Each process has at most five connections in its pool, and five lines.
    assert!(seen.len() <= 6 * 10, "{} connections", seen.len());
    line.commit().await.unwrap();
    bench.until_count("tenure.job_history", 80).await;
    for (worker, _) in workers {
        worker.stop().await;
    }
}

/// The claim of a limited queue, by hand. `text` is the statement, or one with a stop in it.
pub async fn claim_by<'c>(
    connection: impl sqlx::PgExecutor<'c>,
    text: &str,
    jobs: &[uuid::Uuid],
) -> (Vec<uuid::Uuid>, Option<i32>) {
    let query = sqlx::query(AssertSqlSafe(text)).bind(jobs).bind("q").bind("k").bind(300.0).bind("retry");
    let rows = query.bind("w").bind("h").fetch_all(connection).await.unwrap();
    let claimed = rows.iter().filter_map(|row| row.get::<Option<uuid::Uuid>, _>(0)).collect();
    (claimed, rows[0].get("room"))
}

async fn ids(bench: &Bench) -> Vec<uuid::Uuid> {
    sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY id").fetch_all(&bench.pool).await.unwrap()
}

/// The test forces the interleavings of two claims of one free slot: the second begins before the first commits, and
/// the second has a snapshot from before the first.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_claims_of_one_free_slot_one_wins_and_neither_waits() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(1)).await.unwrap();
    enqueue(&bench, "q", 3).await;
    let ids = ids(&bench).await;
    let claim = statement("claim_limited");
    // An unlimited claim changes nothing in a limited queue.
    let unlimited = statement("claim_one");
    let query = sqlx::query(unlimited).bind(ids[0]).bind("q").bind("k").bind(300.0).bind("retry");
    assert!(query.bind("w").bind("h").fetch_optional(&bench.pool).await.unwrap().is_none());
    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(claim_by(&mut *first, claim, &ids[..1]).await, (vec![ids[0]], Some(0)));
    // The slot is locked. The second passes over it: it would wait for ever otherwise.
    let second = tokio::time::timeout(Duration::from_secs(10), claim_by(&bench.pool, claim, &ids[1..2]));
    assert!(second.await.expect("it does not wait").0.is_empty());
    first.rollback().await.unwrap();

    // The second has seen the free slot, and stops before it locks it.
    let line = "WHERE NOT taken AND slot <= (SELECT max_running FROM room)";
    assert_eq!(claim.matches(line).count(), 1);
    let stops = claim.replace(line, &format!("{line} AND (SELECT pg_advisory_xact_lock(7)) IS NOT NULL"));
    let mut gate = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(7)").execute(&mut *gate).await.unwrap();
    let (pool, of) = (bench.pool.clone(), ids[1]);
    let second = tokio::spawn(async move { claim_by(&pool, &stops, &[of]).await });
    bench
        .until(
            "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                      AND wait_event = 'advisory' AND query LIKE '%claim_limited%')",
        )
        .await;
    assert_eq!(claim_by(&bench.pool, claim, &ids[..1]).await, (vec![ids[0]], Some(0)));
    gate.commit().await.unwrap();
    assert!(second.await.unwrap().0.is_empty(), "the slot was taken since its snapshot");
    assert_eq!(claim_by(&bench.pool, claim, &ids[1..]).await, (vec![], Some(0)));
    // Its job ends, and the slot is free.
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{}'", ids[0])).await;
    assert_eq!(claim_by(&bench.pool, claim, &ids[1..]).await, (vec![ids[1]], Some(0)));
}

/// Two jobs run above a limit that was lowered to three: one more may start, whichever of two claims at once gets it.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_claims_at_once_below_a_lowered_limit_one_wins() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(5)).await.unwrap();
    enqueue(&bench, "q", 8).await;
    let ids = ids(&bench).await;
    let claim = statement("claim_limited");
    assert_eq!(claim_by(&bench.pool, claim, &ids[..5]).await, (ids[..5].to_vec(), Some(0)));
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(3)).await.unwrap();
    assert_eq!(claim_by(&bench.pool, claim, &ids[5..]).await, (vec![], Some(0)));
    // Those in the first three slots end.
    bench
        .execute("DELETE FROM tenure.jobs j USING tenure.queue_slots s WHERE s.job_id = j.id AND s.slot <= 3")
        .await;
    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(claim_by(&mut *first, claim, &ids[5..6]).await, (vec![ids[5]], Some(0)));
    assert!(claim_by(&bench.pool, claim, &ids[6..]).await.0.is_empty(), "it would be the fourth");
    first.commit().await.unwrap();
    assert_eq!(claim_by(&bench.pool, claim, &ids[6..]).await, (vec![], Some(0)));
    bench
        .execute("DELETE FROM tenure.jobs j USING tenure.queue_slots s WHERE s.job_id = j.id AND s.slot > 3")
        .await;
    assert_eq!(claim_by(&bench.pool, claim, &ids[6..]).await, (ids[6..].to_vec(), Some(0)));
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 3);
}

/// A limit changes while a claim is under way: the change waits, and counts the job of that claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_limit_waits_for_claims_under_way_and_counts_their_jobs() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    enqueue(&bench, "q", 4).await;
    let ids = ids(&bench).await;
    let claim = statement("claim_limited");
    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(claim_by(&mut *first, claim, &ids[..1]).await, (vec![ids[0]], Some(1)));
    let tenure = bench.tenure.clone();
    let change =
        tokio::spawn(
            async move { tenure.limit_queue("q", QueueLimits::new().max_running(3)).await.unwrap() },
        );
    bench
        .until(
            "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                      AND query LIKE '%empty_slots%')",
        )
        .await;
    first.commit().await.unwrap();
    change.await.unwrap();
    assert_eq!(claim_by(&bench.pool, claim, &ids[1..]).await, (ids[1..3].to_vec(), Some(0)));
}

/// A claim of an earlier release: it counts under the lock of the first slot, and takes the slots by number at its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_claim_takes_no_slot_that_another_has_taken_meanwhile() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    enqueue(&bench, "q", 3).await;
    let ids = ids(&bench).await;
    let mut older = bench.pool.begin().await.unwrap();
    let first = "SELECT FROM tenure.queue_slots WHERE queue = 'q' AND slot = 1 FOR NO KEY UPDATE";
    sqlx::query(first).execute(&mut *older).await.unwrap();
    // It has counted two free slots.
    assert_eq!(claim_by(&bench.pool, statement("claim_limited"), &ids[..1]).await.0, [ids[0]]);
    let skip = statement("claim_skip").replace("q.max_running IS NOT NULL", "false");
    let query = sqlx::query(AssertSqlSafe(skip)).bind(ids[1..].to_vec()).bind("q").bind("k").bind(300.0);
    let won = query.bind("retry").bind("w").bind("h").fetch_all(&mut *older).await.unwrap();
    assert_eq!(won.len(), 2);
    let take = "UPDATE tenure.queue_slots s SET job_id = u.job_id, fencing_token = 1
                  FROM unnest($1::int[], $2::uuid[]) AS u(slot, job_id) WHERE s.queue = 'q' AND s.slot = u.slot";
    let take = sqlx::query(take).bind(vec![1, 2]).bind(ids[1..].to_vec());
    let refused = take.execute(&mut *older).await.unwrap_err();
    let code = refused.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
    assert_eq!(code.as_deref(), Some("40001"), "{refused}");
    older.rollback().await.unwrap();
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 1);
    // An older change of the limit moves running jobs from slot to slot.
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now()").await;
    assert_eq!(claim_by(&bench.pool, statement("claim_limited"), &ids[1..2]).await.0, [ids[1]]);
    let moved = bench
        .execute(
            "UPDATE tenure.queue_slots s SET job_id = o.job_id, fencing_token = o.fencing_token
               FROM tenure.queue_slots o WHERE o.queue = s.queue AND o.slot = 3 - s.slot",
        )
        .await;
    assert_eq!(moved, 2);
}

/// Each claim reads all slots: a limit that was high once leaves none behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_leaves_no_spare_slots() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(10_000)).await.unwrap();
    enqueue(&bench, "q", 3).await;
    let ids = ids(&bench).await;
    let claim = statement("claim_limited");
    bench
        .execute(
            "UPDATE tenure.queue_slots SET job_id = gen_random_uuid(), fencing_token = 1 WHERE slot < 10000",
        )
        .await;
    assert_eq!(claim_by(&bench.pool, claim, &ids[..1]).await, (ids[..1].to_vec(), Some(9_999)));
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    assert_eq!(bench.count("tenure.queue_slots").await, 2);
    assert_eq!(claim_by(&bench.pool, claim, &ids[1..]).await, (ids[1..2].to_vec(), Some(0)));
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(None)).await.unwrap();
    assert_eq!(bench.count("tenure.queue_slots").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_beyond_a_queues_limit_is_refused_with_a_typed_error_and_nothing_is_lost() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(5)).await.unwrap();
    for _ in 0..3 {
        bench.tenure.enqueue(job("q")).await.unwrap();
    }
    // All jobs of a call, or none.
    let many = bench.tenure.enqueue_many((0..3).map(|_| job("q"))).await;
    assert!(matches!(many, Err(EnqueueError::QueueFull { queued: 3, max_queued: 5, .. })), "{many:?}");
    bench.tenure.enqueue(job("q").delay(Duration::from_secs(3600))).await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(job("q")).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let refused = bench.tenure.enqueue(job("q")).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("\"q\" is full") && text.contains("tenure queues limit"), "{text}");
    let mut tx = bench.pool.begin().await.unwrap();
    assert!(matches!(bench.tenure.enqueue(job("q")).tx(&mut tx).await, Err(EnqueueError::QueueFull { .. })));
    tx.commit().await.unwrap();
    assert_eq!(bench.count("tenure.jobs").await, 5);
    // The limit affects neither other queues nor messages that the stream has accepted.
    bench.tenure.enqueue(job("other")).await.unwrap();
    let worker = taking(&bench, 1, 2);
    bench.publish("q.k", "1").await;
    bench.until_count("tenure.job_history", 5).await;
    // There is room again; the answer "full" is cached for a tenth of a second.
    tokio::time::sleep(Duration::from_millis(150)).await;
    bench.tenure.enqueue(job("q")).await.unwrap();
    // Only enqueues are refused, not a redrive or a tick.
    bench.execute("INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at) SELECT gen_random_uuid(), 'q', 'k', '1', 5, now() + interval '1 h', now() + interval '1 h' FROM generate_series(1, 9)").await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(matches!(bench.tenure.enqueue(job("q")).await, Err(EnqueueError::QueueFull { .. })));
    let tick = tenure::schedules::Schedule::new("s", "* * * * * *", JobRequest::new("q", "tick", json!({})));
    bench.tenure.put_schedule(tick).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.job_history WHERE kind = 'tick')").await;
    bench.tenure.remove_schedule("s").await.unwrap();
    // The limit is removed.
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(None)).await.unwrap();
    worker.stop().await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    bench.tenure.enqueue(job("q")).await.unwrap();
    enqueue(&bench, "q", 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_enqueues_at_once_fill_a_queue_to_its_limit() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(100)).await.unwrap();
    let enqueues = (0..1_000).map(|_| {
        let tenure = bench.tenure.clone();
        tokio::spawn(async move { tenure.enqueue(job("q")).await.is_ok() })
    });
    let mut accepted = 0;
    for enqueue in enqueues.collect::<Vec<_>>() {
        accepted += i64::from(enqueue.await.unwrap());
    }
    let queued = bench.count("tenure.jobs").await;
    assert_eq!(queued, accepted);
    assert!((90..=100).contains(&queued), "{queued}");
    let large = bench.tenure.enqueue_many((0..101).map(|_| job("q"))).await.unwrap_err().to_string();
    assert!(large.contains("fewer at once"), "{large}");
}

/// Jobs of an unknown kind are put off, and their queue goes on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_kind_in_a_limited_queue_ends_as_a_dead_letter_and_holds_up_no_other_job() {
    let bench = bench_with(|config| config.timing.unknown_kind_after = Duration::from_secs(3)).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(2)).await.unwrap();
    let unknown = bench.tenure.enqueue(JobRequest::new("q", "unheard", json!(1))).await.unwrap().id;
    enqueue(&bench, "q", 50).await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("k", KindOptions::new(), |_: Value, _: JobContext| async {})
            .concurrency("q", 4),
    );
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 50", Duration::from_secs(15)).await;
    let job = bench.until_finished(unknown).await;
    assert_eq!(job.status, tenure::Status::Failed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_counts_each_running_job_once() {
    let bench = bench().await;
    let go = Arc::new(Semaphore::new(0));
    let waits = go.clone();
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new().keepalive(), move |payload: Value, _: JobContext| {
                let waits = waits.clone();
                async move {
                    if payload == json!("stays") {
                        waits.acquire().await.unwrap().forget();
                    }
                }
            })
            .concurrency("q", 10),
    );
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(10)).await.unwrap();
    bench.tenure.enqueue_many((0..2).map(|_| JobRequest::new("q", "k", json!("stays")))).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    // As if eight other jobs had taken the first slots.
    bench.execute("UPDATE tenure.queue_slots SET job_id = NULL, fencing_token = NULL").await;
    bench
        .execute(
            "UPDATE tenure.queue_slots s SET job_id = r.id, fencing_token = r.fencing_token
               FROM (SELECT id, fencing_token, 8 + row_number() OVER () AS slot FROM tenure.jobs) r
              WHERE s.slot = r.slot",
        )
        .await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(4)).await.unwrap();
    bench.tenure.enqueue_many((0..2).map(|_| JobRequest::new("q", "k", json!("stays")))).await.unwrap();
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.jobs WHERE status = 'processing') = 4",
            Duration::from_secs(10),
        )
        .await;
    go.add_permits(4);
    bench.until_count("tenure.job_history", 4).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_producers_fill_a_queue_to_its_limit_and_hardly_beyond() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(200)).await.unwrap();
    let other = tenure::Tenure::connect(&bench.config).await.unwrap();
    let fill = |tenure: tenure::Tenure| async move {
        let mut accepted = 0;
        while tenure.enqueue(job("q")).await.is_ok() {
            accepted += 1;
        }
        accepted
    };
    let (a, b) = tokio::join!(fill(bench.tenure.clone()), fill(other.clone()));
    let queued = bench.count("tenure.jobs").await;
    assert_eq!(queued, a + b);
    // Each producer may take a tenth of the room before it counts again.
    assert!((200..=220).contains(&queued), "{queued}");
    other.close().await;
}

/// Two calls over the same queues, neither of which leaves room for the other. Both wait for their counts: admitted to
/// the queues in different orders, each would wait for the other.
#[tokio::test(flavor = "multi_thread")]
async fn batches_over_the_same_limited_queues_never_deadlock() {
    let bench = bench().await;
    let names = |round: usize| (0..8).map(move |n| format!("q{round}-{n}"));
    for queue in (0..3).flat_map(names) {
        bench.tenure.limit_queue(&queue, QueueLimits::new().max_queued(10)).await.unwrap();
    }
    // The clients have read the limits: the next statement is a count.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    bench.tenure.enqueue(job("other")).await.unwrap();
    let mut counts = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *counts).await.unwrap();
    let began = Instant::now();
    let calls: Vec<_> = (0..6)
        .map(|call| {
            let tenure = bench.tenure.clone();
            let jobs: Vec<_> = names(call % 3).flat_map(|queue| (0..6).map(move |_| job(&queue))).collect();
            tokio::spawn(async move { tenure.enqueue_many(jobs).await.map(|jobs| jobs.len()) })
        })
        .collect();
    bench.until("(SELECT count(*) FROM pg_locks WHERE relation = 'tenure.jobs'::regclass AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) >= 3").await;
    counts.commit().await.unwrap();
    let mut enqueued = 0;
    for call in calls {
        let call =
            tokio::time::timeout(Duration::from_secs(10), call).await.expect("the calls wait for each other");
        match call.unwrap() {
            Ok(jobs) => enqueued += jobs,
            Err(error) => assert!(matches!(error, EnqueueError::QueueFull { jobs: 6, .. }), "{error:?}"),
        }
    }
    assert_eq!(enqueued, 3 * 8 * 6, "one call of each pair, after {:?}", began.elapsed());
    assert_eq!(bench.count("tenure.jobs").await, 3 * 8 * 6 + 1);
}

/// Admitted jobs that wait for another transaction delay a producer only for a moment, in a transaction of its own or
/// not.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_an_uncommitted_enqueue_fill_a_queue_and_delay_no_other_enqueue() {
    let bench = bench().await;
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(10)).await.unwrap();
    let mut holder = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(job("elsewhere")).unique_key("k").tx(&mut holder).await.unwrap();
    let stuck = tokio::spawn({
        let (tenure, pool) = (bench.tenure.clone(), bench.pool.clone());
        async move {
            let mut tx = pool.begin().await.unwrap();
            let mut jobs: Vec<_> = (0..6).map(|_| job("q")).collect();
            jobs.push(job("elsewhere").unique_key("k"));
            tenure.enqueue_many(jobs).tx(&mut tx).await.unwrap();
            tx.commit().await.unwrap();
        }
    });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").await;
    let began = Instant::now();
    let mut tx = bench.pool.begin().await.unwrap();
    let within = Duration::from_secs(3);
    let (many, in_tx) = tokio::time::timeout(within, async {
        tokio::join!(async { bench.tenure.enqueue_many((0..6).map(|_| job("q"))).await }, async {
            bench.tenure.enqueue_many((0..6).map(|_| job("q"))).tx(&mut tx).await
        },)
    })
    .await
    .expect("they wait for an unrelated transaction");
    assert!(matches!(many, Err(EnqueueError::QueueFull { queued: 6, .. })), "{many:?}");
    assert!(matches!(in_tx, Err(EnqueueError::QueueFull { queued: 6, .. })), "{in_tx:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!stuck.is_finished());
    holder.rollback().await.unwrap();
    stuck.await.unwrap();
    assert_eq!(bench.count("tenure.jobs").await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_queue_is_served_first_and_a_slow_one_does_not_starve() {
    let bench = bench().await;
    bench.tenure.setup(&["urgent".into(), "bulk".into()]).await.unwrap();
    enqueue(&bench, "bulk", 300).await;
    enqueue(&bench, "urgent", 80).await;
    let handler = |_: Value, _: JobContext| tokio::time::sleep(Duration::from_millis(40));
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), handler)
            .shared(10, [("urgent", 8), ("bulk", 2)]),
    );
    bench.until_count("tenure.job_history WHERE queue = 'urgent'", 80).await;
    let bulk = bench.count("tenure.job_history WHERE queue = 'bulk' AND started_at < (SELECT max(started_at) FROM tenure.job_history WHERE queue = 'urgent')").await;
    // A fifth of the slots, and some more at the beginning, before the worker knew which jobs wait.
    assert!((10..=60).contains(&bulk), "{bulk} of the bulk beside 80 urgent ones");
    // Then all slots but one.
    bench.until_count("tenure.job_history", 380).await;
    assert!(at_once(&bench).await >= 9, "{}", at_once(&bench).await);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_endless_jobs_leaves_the_other_a_slot() {
    let bench = bench().await;
    bench.tenure.setup(&["slow".into(), "quick".into()]).await.unwrap();
    enqueue(&bench, "slow", 20).await;
    let ends = Arc::new(AtomicBool::new(false));
    let over = ends.clone();
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new().keepalive(), move |_: Value, ctx: JobContext| {
                let over = over.clone();
                async move {
                    while ctx.queue() == "slow" && !over.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            })
            .shared(3, [("slow", 100), ("quick", 1)]),
    );
    bench.until_count("tenure.jobs WHERE queue = 'slow' AND status = 'processing'", 2).await;
    enqueue(&bench, "quick", 30).await;
    bench.until_count("tenure.job_history WHERE queue = 'quick'", 30).await;
    assert_eq!(bench.count("tenure.job_history WHERE queue = 'slow'").await, 0);
    ends.store(true, Ordering::SeqCst);
    bench.until_count("tenure.job_history", 50).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_shares_are_refused() {
    let bench = bench().await;
    for (slots, queues, why) in [
        (1, vec![("a", 1), ("b", 1)], "at least one slot"),
        (5, vec![("a", 1), ("b", 0)], "weight"),
        (5, vec![("a", 1), ("a", 2)], "twice"),
        (5, vec![("a.b", 1)], "a.b"),
    ] {
        let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {});
        let refused = worker.shared(slots, queues).run_until(async {}).await.unwrap_err();
        assert!(matches!(refused, WorkerError::Shared { .. } | WorkerError::Name(_)));
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let limits = QueueLimits::new().max_running(0);
    let refused = bench.tenure.limit_queue("q", limits).await.unwrap_err().to_string();
    assert!(refused.contains("max_running is 0") && refused.contains("pause"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_lists_pauses_resumes_and_limits_queues() {
    let bench = bench().await;
    let run = |arguments: &'static [&'static str]| {
        let mut program = bench.program(arguments);
        async move {
            let output = program.output().await.unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        }
    };
    enqueue(&bench, "q", 3).await;
    let (code, out, err) = run(&["queues", "pause", "q", "new", "--create"]).await;
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{err}");
    assert_eq!(run(&["queues", "limit", "q", "--max-running", "7", "--max-queued", "9"]).await.0, Some(0));
    let listed: Value = serde_json::from_str(&run(&["queues", "list", "--output", "json"]).await.1).unwrap();
    let q = &listed[1];
    assert_eq!(
        (&q["queue"], &q["due"], &q["max_running"], &q["max_queued"]),
        (&json!("q"), &json!(3), &json!(7), &json!(9))
    );
    assert!(q["paused_at"].is_string() && q["oldest_due_s"].as_f64().unwrap() >= 0.0);
    let (_, out, _) = run(&["queues", "list"]).await;
    assert!(out.contains("paused since") && out.contains("7 running, 9 queued"), "{out}");
    assert_eq!(run(&["queues", "resume", "q"]).await.1.trim(), "q is resumed");
    assert_eq!(run(&["queues", "limit", "q", "--max-running", "none"]).await.0, Some(0));
    assert_eq!(
        bench.text("SELECT max_running, max_queued, paused_at FROM tenure.queues WHERE queue = 'q'").await,
        "(,9,)"
    );
    for (arguments, text) in [
        (["queues", "limit", "q", "--max-running", "0"].as_slice(), "max_running is 0"),
        (&["queues", "limit", "q", "--max-running", "-1"], "a number from 1 to 10000, or none"),
        (&["queues", "limit", "q"], "give --max-running"),
        (&["queues", "pause", "a b"], "not valid"),
        (&["work", "a=1", "b", "--exec", "true"], "\"b\" has no weight"),
        (&["work", "a=1", "b=x", "--exec", "true"], "\"b=x\" has no weight"),
        (&["work", "a=1", "b=2", "--exec", "true"], "cannot share 1 slots"),
    ] {
        let output = bench.program(arguments).output().await.unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && err.contains(text), "{arguments:?}: {err}");
    }
}

/// What `only_queue` leaves out is left out wherever it is called.
#[tokio::test(flavor = "multi_thread")]
async fn only_queue_serves_its_queues_alone_whether_it_comes_before_or_after_the_others() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Of;
    impl tenure::Job for Of {
        const KIND: &'static str = "of";
        const QUEUE: &'static str = "typed";
    }
    let bench = bench().await;
    let handler = |_: Of, _: JobContext| async {};
    let first = Worker::builder(&bench.tenure).only_queue("a", 2).only_queue("b", 3);
    let first = first.handle(handler).concurrency("c", 5).shared(5, [("d", 1), ("e", 1)]);
    let last =
        Worker::builder(&bench.tenure).handle(handler).concurrency("c", 5).shared(5, [("d", 1), ("e", 1)]);
    let last = last.only_queue("b", 3).only_queue("a", 2);
    for worker in [first, last] {
        let worker = Running::start(worker);
        bench.until_count("tenure.workers", 1).await;
        let served = "SELECT (SELECT string_agg(name, ' ' ORDER BY name) FROM unnest(queues) name) || ' ' || slots FROM tenure.workers";
        assert_eq!(bench.value::<String>(served).await, "a b 5");
        worker.stop().await;
    }
    let worker = Worker::builder(&bench.tenure).handle(handler).only_queue("a", 0);
    assert!(matches!(worker.start().unwrap_err(), WorkerError::Slots { slots: 0, .. }));
}
