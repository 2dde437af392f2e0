//! Enqueue: the row first, then the message.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use tenure::{
    EnqueueError, JobContext, JobError, JobRequest, KindOptions, Tenure, Worker, internals::Recovery,
};
use tokio::sync::Barrier;

use crate::harness::{Bench, Running, bench, bench_with, bench_with_servers};

fn request(payload: Value) -> JobRequest {
    JobRequest::new("q", "k", payload)
}

fn worker(bench: &Bench) -> Running {
    Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |value, _| async move { tenure::Outcome::done(value) })
            .concurrency("q", 10),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_enqueues_of_one_unique_key_one_creates_the_job_and_all_get_its_id() {
    let bench = bench().await;
    let barrier = Arc::new(Barrier::new(50));
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let (mut config, barrier) = (bench.config.clone(), barrier.clone());
            // One waits for the other, on a busy machine for seconds.
            config.timing.database_within = Duration::from_secs(10);
            tokio::spawn(async move {
                // One client each, or one batch would carry them all.
                let tenure = Tenure::connect(&config).await.unwrap();
                barrier.wait().await;
                let enqueued = tenure.enqueue(request(json!(n))).unique_key("order-7").await.unwrap();
                tenure.close().await;
                enqueued
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    assert_eq!(all.iter().filter(|enqueued| !enqueued.duplicate).count(), 1);
    assert!(all.iter().all(|enqueued| enqueued.id == all[0].id));
    assert_eq!(bench.count("tenure.jobs").await, 1);
}

type Family = Arc<(Tenure, PgPool)>;

/// Enqueues three children in the handler's transaction, which then ends as the last word of `way` says.
async fn children(tx: &mut PgConnection, ctx: &JobContext<Family>, way: &str) -> Result<(), JobError> {
    let (tenure, pool) = &**ctx.state();
    let child = |n| JobRequest::new("children", "child", json!([way, n]));
    tenure.enqueue(child(1)).unique_key(way).tx(tx).await?;
    tenure.enqueue_many([child(2), child(3)]).tx(tx).await?;
    match way.rsplit(' ').next() {
        Some("fails") => return Err(JobError::permanent("no")),
        Some("loses") => {
            let lose = "UPDATE tenure.jobs SET claim_id = gen_random_uuid() WHERE id = $1";
            sqlx::query(lose).bind(ctx.id()).execute(pool).await?;
        }
        _ => {}
    }
    Ok(())
}

/// The connection that `once` and `fenced_tx` hand out is a transaction: the job shares its fate, also when the
/// attempt turns out to be stale at the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_enqueued_inside_once_or_fenced_tx_exists_exactly_if_that_transaction_committed() {
    let bench = bench().await;
    let handler = |way: Value, ctx: JobContext<Family>| async move {
        let way = way.as_str().unwrap().to_owned();
        let is_once = way.starts_with("once");
        let work = async |tx: &mut PgConnection| children(tx, &ctx, &way).await;
        if is_once { ctx.once("enqueue", work).await } else { ctx.fenced_tx(work).await }
    };
    let app = Arc::new((bench.tenure.clone(), bench.pool.clone()));
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .state(app)
            .handle_kind("k", KindOptions::new(), move |how: Value, ctx| {
                handler(how.as_str().unwrap().into(), ctx)
            })
            .concurrency("q", 10)
            // Without a scanner, the attempt whose claim was replaced stays as it is.
            .recovery(&[Recovery::Relay]),
    );
    for how in ["once", "fenced_tx"] {
        for (end, children) in [("commits", 3), ("fails", 0), ("loses", 0)] {
            let way = format!("{how} {end}");
            let id = bench.tenure.enqueue(request(json!(way))).await.unwrap().id;
            if end == "loses" {
                bench.until_count(&format!("tenure.recovery_events WHERE job_id = '{id}'"), 1).await;
            } else {
                bench.until_finished(id).await;
            }
            let of_it = format!("tenure.jobs WHERE kind = 'child' AND payload ->> 0 = '{way}'");
            assert_eq!(bench.count(&of_it).await, children, "{way}");
        }
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_belongs_to_its_queue_and_is_held_after_the_job_completed() {
    let bench = bench().await;
    let worker = worker(&bench);
    let first = bench.tenure.enqueue(request(json!(1))).unique_key("k").await.unwrap();
    bench.until_finished(first.id).await;
    let again = bench.tenure.enqueue(request(json!(2))).unique_key("k").await.unwrap();
    assert_eq!((again.id, again.duplicate), (first.id, true));
    let elsewhere = bench.tenure.enqueue(request(json!(3))).queue("other").unique_key("k").await.unwrap();
    assert!(!elsewhere.duplicate);
    // In one statement, too: the second and the fourth are duplicates, of the first and of the third.
    let keys = ["a", "a", "b", "b"].map(|key| request(json!(key)).unique_key(key));
    let many = bench.tenure.enqueue_many(keys).await.unwrap();
    assert_eq!(many.iter().map(|one| one.duplicate).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!((many[0].id, many[2].id), (many[1].id, many[3].id));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_users_transaction_the_job_exists_if_and_when_it_commits() {
    let bench = bench().await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    let mut tx = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(request(json!("rolled back"))).tx(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = bench.pool.begin().await.unwrap();
    let one = bench.tenure.enqueue(request(json!("kept"))).unique_key("u").tx(&mut tx).await.unwrap();
    let two = bench
        .tenure
        .enqueue_many([request(json!(1)), request(json!(2)).unique_key("u")])
        .tx(&mut tx)
        .await
        .unwrap();
    assert_eq!((two[1].id, two[1].duplicate), (one.id, true), "the transaction sees its own key");
    assert_eq!(bench.count("tenure.all_jobs").await, 0, "no other session sees it yet");
    tx.commit().await.unwrap();
    bench.until_count("tenure.job_history", 2).await;
    assert_eq!(bench.count("tenure.all_jobs").await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_job_runs_when_it_is_due_and_not_before() {
    let bench = bench().await;
    let worker = worker(&bench);
    let delayed = bench.tenure.enqueue(request(json!(1))).delay(Duration::from_millis(1_500)).await.unwrap();
    let at = chrono::Utc::now() + chrono::TimeDelta::milliseconds(1_500);
    let dated = bench.tenure.enqueue(request(json!(2))).run_at(at).await.unwrap();
    let past = chrono::Utc::now() - chrono::TimeDelta::days(1);
    let overdue = bench.tenure.enqueue(request(json!(3))).run_at(past).await.unwrap();
    bench.until_finished(overdue.id).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued'").await, 2);
    for id in [delayed.id, dated.id] {
        bench.until_finished(id).await;
    }
    assert_eq!(bench.count("tenure.job_history WHERE started_at < scheduled_at").await, 0);
    // No extra deliveries: the job was published once, when due.
    assert_eq!(bench.count("tenure.job_executions_all").await, 3);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_is_refused_by_name_and_nothing_is_stored() {
    let bench = bench().await;
    let message = |request: JobRequest| {
        let tenure = bench.tenure.clone();
        async move { tenure.enqueue(request).await.unwrap_err().to_string() }
    };
    assert!(message(JobRequest::new("a.b", "k", json!(1))).await.contains("queue \"a.b\""));
    assert!(message(JobRequest::new("q", "a.*", json!(1))).await.contains("kind \"a.*\""));
    assert!(message(request(json!({"text": "a\0b"}))).await.contains("\\u0000"));
    assert!(message(request(json!({"a\0b": 1}))).await.contains("\\u0000"));
    let large = message(request(json!("x".repeat(300_000)))).await;
    assert!(large.contains("300002 bytes") && large.contains("262144"), "{large}");
    assert!(message(request(json!(1)).max_attempts(0)).await.contains("max_attempts is 0"));
    assert!(message(request(json!(1)).unique_key("")).await.contains("unique_key"));
    assert!(message(request(json!(1)).delay(Duration::MAX)).await.contains("ten years"));
    let late = "9999-12-31T00:00:00Z".parse().unwrap();
    assert!(message(request(json!(1)).run_at(late)).await.contains("ten years"));
    assert_eq!(bench.count("tenure.jobs").await, 0);
    // The limit itself is allowed.
    bench.tenure.enqueue(request(json!("x".repeat(262_142)))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_that_postgres_refuses_does_not_fail_the_others_of_its_batch() {
    let bench = bench().await;
    // Only Postgres refuses this job, by a check that tenure does not know.
    bench.execute("ALTER TABLE tenure.jobs ADD CONSTRAINT no_poison CHECK (payload <> '\"poison\"')").await;
    let jobs: Vec<_> = (0..64)
        .map(|n| {
            let tenure = bench.tenure.clone();
            let payload = if n == 13 { json!("poison") } else { json!(n) };
            tokio::spawn(async move { tenure.enqueue(request(payload)).await })
        })
        .collect();
    let mut failed = Vec::new();
    for (n, job) in jobs.into_iter().enumerate() {
        if let Err(error) = job.await.unwrap() {
            assert!(matches!(error, EnqueueError::Store(_)), "{error:?}");
            failed.push(n);
        }
    }
    assert_eq!(failed, [13]);
    assert_eq!(bench.count("tenure.jobs").await, 63);
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_succeeds_while_nats_is_away_and_the_job_runs_when_it_is_back() {
    let mut bench = bench_with_servers(|_| {}).await;
    bench.own.as_mut().unwrap().nats.stop();
    let started = std::time::Instant::now();
    let job = bench.tenure.enqueue(request(json!(1))).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "the enqueue does not wait for NATS");
    bench.tenure.flush().await;
    assert_eq!(bench.count("tenure.jobs WHERE publish_at IS NOT NULL").await, 1, "the relay has it");
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    let worker = worker(&bench);
    bench.until_finished(job.id).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_comes_back_equal_and_the_trace_context_with_it() {
    let bench = bench().await;
    let payload = json!({"big": 9_007_199_254_740_993_i64, "float": 1.5e-7, "text": "ü\u{1F600}\"\\", "none": null, "list": [[], {}]});
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |value, ctx| async move {
                tenure::Outcome::done(json!({"payload": value, "trace": ctx.trace_context()}))
            })
            .concurrency("q", 1),
    );
    let job = bench.tenure.enqueue(request(payload.clone())).trace_context(trace).await.unwrap();
    let output = bench.until_finished(job.id).await.output.unwrap();
    assert_eq!(output, json!({"payload": payload, "trace": trace}));
    worker.stop().await;
}

/// A double click is no outage: thirty callers with one key, and thirty with a key each, while an open transaction
/// holds all these keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_that_an_open_transaction_holds_is_busy_and_the_error_says_so_soon() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(10)).await;
    let mut tx = bench.pool.begin().await.unwrap();
    let holder = bench.tenure.enqueue(request(json!(0))).unique_key("one").tx(&mut tx).await.unwrap();
    for n in 0..30 {
        bench.tenure.enqueue(request(json!(0))).unique_key(format!("key {n}")).tx(&mut tx).await.unwrap();
    }
    for distinct in [false, true] {
        let callers: Vec<_> = (0..30)
            .map(|n| {
                let tenure = bench.tenure.clone();
                tokio::spawn(async move {
                    let key = if distinct { format!("key {n}") } else { "one".into() };
                    let began = std::time::Instant::now();
                    let error = tenure.enqueue(request(json!(1))).unique_key(&key).await.unwrap_err();
                    (key, error, began.elapsed())
                })
            })
            .collect();
        for caller in callers {
            let (key, error, took) = caller.await.unwrap();
            assert!(took < Duration::from_millis(2_500), "{key}: {took:?}");
            assert!(
                matches!(&error, EnqueueError::KeyBusy { queue, key: busy, others: 0 } if queue == "q" && *busy == key),
                "{error:?}"
            );
        }
    }
    let many = [request(json!(1)).unique_key("free"), request(json!(1)).unique_key("one")];
    let error = bench.tenure.enqueue_many(many).await.unwrap_err();
    assert!(matches!(error, EnqueueError::KeyBusy { others: 1, .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("queue \"q\"") && error.contains("try again"), "{error}");
    // In a transaction, the session's own limit ends the wait.
    let mut rival = bench.pool.begin().await.unwrap();
    sqlx::query("SET LOCAL lock_timeout = '50ms'").execute(&mut *rival).await.unwrap();
    let error = bench.tenure.enqueue(request(json!(1))).unique_key("one").tx(&mut rival).await.unwrap_err();
    assert!(matches!(error, EnqueueError::KeyBusy { .. }), "{error:?}");
    rival.rollback().await.unwrap();
    tx.commit().await.unwrap();
    let again = bench.tenure.enqueue(request(json!(1))).unique_key("one").await.unwrap();
    assert_eq!((again.id, again.duplicate), (holder.id, true));
    assert_eq!(bench.count("tenure.jobs").await, 31, "nothing was enqueued");
    // A locked table does not count as a busy key.
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.job_keys").execute(&mut *lock).await.unwrap();
    let error = bench.tenure.enqueue(request(json!(1))).unique_key("new").await.unwrap_err();
    assert!(matches!(error, EnqueueError::Store(_)), "{error:?}");
}
