//! Prompt publication: the process that commits a row publishes its message within milliseconds.

use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use tenure::{Config, JobRequest, KindOptions, Tenure, Worker, WorkerBuilder, internals::Recovery};
use tokio::runtime;

use crate::harness::{Bench, Child, Proxy, Running, bench, bench_with, bench_with_servers};

fn request(n: usize) -> JobRequest {
    JobRequest::new("q", "k", json!(n))
}

/// A worker that publishes nothing: it has no relay and does not search for lost messages.
fn worker(bench: &Bench) -> WorkerBuilder {
    Worker::builder(&bench.tenure)
        .recovery(&[Recovery::Scanner, Recovery::Vanished, Recovery::Reconcile])
        .handle_any(KindOptions::new(), |_, _| async {})
        .concurrency("q", 100)
}

/// Fails unless producers alone have published.
async fn published_by_producers_alone(bench: &Bench) {
    assert_eq!(bench.count("tenure.jobs WHERE publish_at IS NOT NULL OR dispatch <> 1").await, 0);
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
}

/// One task, 32 tasks, batches: each by a process that has just connected.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_process_leaves_no_row_to_the_relay() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let fresh = || async { Tenure::connect(&bench.config).await.unwrap() };
    let one = fresh().await;
    for n in 0..200 {
        one.enqueue(request(n)).await.unwrap();
    }
    let many = fresh().await;
    join_all((0..32).map(|task| {
        let many = many.clone();
        async move {
            for n in 0..20 {
                many.enqueue(request(task * 100 + n)).await.unwrap();
            }
        }
    }))
    .await;
    let batches = fresh().await;
    for _ in 0..50 {
        batches.enqueue_many((0..1_000).map(request)).await.unwrap();
    }
    for tenure in [one, many, batches] {
        tenure.flush().await;
        tenure.close().await;
    }
    let shell = bench.program(&["enqueue", "q", "k", "1"]).output().await.unwrap();
    assert!(shell.status.success(), "{shell:?}");
    assert_eq!(bench.count("tenure.jobs").await, 200 + 640 + 50_000 + 1);
    published_by_producers_alone(&bench).await;
    assert_eq!(bench.named().await, 200 + 640 + 50_000 + 1);
}

/// No `flush`, no `close`: processes that exit, and runtimes that are dropped with all their tasks.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_right_after_enqueue_leaves_its_messages_with_the_kernel() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let runtimes = 100;
    let config = bench.config.clone();
    tokio::task::spawn_blocking(move || {
        for n in 0..runtimes {
            let mut builder = if n % 2 == 0 {
                runtime::Builder::new_multi_thread()
            } else {
                runtime::Builder::new_current_thread()
            };
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(enqueue_and_leak(&config, n));
            runtime.shutdown_background();
        }
    })
    .await
    .unwrap();
    for _ in 0..10 {
        let mut processes: Vec<_> = (0..10).map(|_| Child::start(&bench, "enqueue and exit")).collect();
        for process in &mut processes {
            assert_eq!(process.wait().await, Some(0), "{}", process.log());
        }
    }
    let all = runtimes as u64 + 100;
    // The kernel has sent its bytes, or is about to.
    let deadline = Instant::now() + Duration::from_secs(5);
    while bench.named().await < all {
        assert!(Instant::now() < deadline, "the messages name {} of {all} jobs", bench.named().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    published_by_producers_alone(&bench).await;
}

/// Leaks the handle, as a static does.
async fn enqueue_and_leak(config: &Config, n: usize) {
    let tenure = Tenure::connect(config).await.unwrap();
    tenure.enqueue(request(n)).await.unwrap();
    std::mem::forget(tenure);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_enqueued_before_nats_is_there_are_published_by_their_own_process() {
    let bench = bench_with_servers(|config| config.timing.publish_within = Duration::from_secs(20)).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let proxy = Proxy::to_url(&bench.config.nats_url).await;
    proxy.cut();
    let mut config = bench.config.clone();
    config.nats_url = proxy.of(&config.nats_url);
    let began = Instant::now();
    let tenure = Tenure::connect(&config).await.unwrap();
    for n in 0..10 {
        tenure.enqueue(request(n)).await.unwrap();
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "enqueues waited for NATS: {took:?}");
    assert_eq!(bench.messages().await, 0);
    proxy.mend();
    tenure.flush().await;
    published_by_producers_alone(&bench).await;
    assert_eq!(bench.named().await, 10);
}

/// A refused message has no effect on the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_message_that_fails_does_not_send_the_next_away() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let deleted = bench.js.delete_stream(&bench.config.stream).await.unwrap();
    assert!(deleted.success);
    bench.tenure.enqueue(request(0)).await.unwrap();
    bench.tenure.flush().await;
    assert_eq!(
        bench.count("tenure.jobs WHERE publish_at IS NOT NULL").await,
        1,
        "the message was not stored"
    );
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.enqueue(request(1)).await.unwrap();
    bench.tenure.flush().await;
    assert_eq!(bench.count("tenure.jobs WHERE published_at IS NOT NULL").await, 1);
    assert_eq!(bench.messages().await, 1);
}

/// In the user's transaction, in batches and one by one, and in one that tenure commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_enqueued_in_a_transaction_runs_within_milliseconds_of_its_commit() {
    let bench = bench().await;
    let worker = Running::start(worker(&bench));
    bench.until_count("tenure.workers", 1).await;
    let mut waits = Vec::new();
    for n in 0..20 {
        let mut tx = bench.pool.begin().await.unwrap();
        let one = bench.tenure.enqueue(request(n)).tx(&mut tx).await.unwrap();
        let two = bench.tenure.enqueue_many([request(n)]).tx(&mut tx).await.unwrap();
        // The user's own work takes time, too.
        tokio::time::sleep(Duration::from_millis(n as u64 % 5)).await;
        tx.commit().await.unwrap();
        let committed = Instant::now();
        for id in [one.id, two[0].id] {
            bench.until(&format!("EXISTS (SELECT FROM tenure.job_history WHERE id = '{id}')")).await;
        }
        waits.push(committed.elapsed());
    }
    waits.sort_unstable();
    // No relay runs here; the limit leaves room for a busy machine.
    assert!(waits[10] < Duration::from_millis(200), "{waits:?}");
    assert_eq!(bench.count("tenure.job_history").await, 40);
    published_by_producers_alone(&bench).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_transactions_at_once_cost_a_few_statements() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(100);
    let pool = pool.connect(&bench.config.database_url).await.unwrap();
    let begun = join_all((0..100).map(|_| async {
        let mut tx = pool.begin().await.unwrap();
        for n in 0..10 {
            bench.tenure.enqueue(request(n)).tx(&mut tx).await.unwrap();
        }
        tx
    }))
    .await;
    // The process asks less and less often.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = transactions(&bench).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let open = transactions(&bench).await - before;
    let before = transactions(&bench).await;
    join_all(begun.into_iter().map(|tx| async { tx.commit().await.unwrap() })).await;
    bench.tenure.flush().await;
    let committed = transactions(&bench).await - before;
    published_by_producers_alone(&bench).await;
    assert_eq!(bench.named().await, 1_000);
    // The interval between questions is a quarter of a transaction's age.
    assert!(open < 60, "{open} statements in half a second for a thousand jobs");
    assert!(committed < 100 + 40, "{committed} transactions, of which a hundred are the user's");
}

/// The number of transactions that the database has ended; each count is one, too.
async fn transactions(bench: &Bench) -> i64 {
    bench.execute("SELECT pg_stat_force_next_flush()").await;
    bench
        .value("SELECT (xact_commit + xact_rollback)::bigint FROM pg_stat_database WHERE datname = current_database()")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_rolled_back_or_lasts_leaves_its_jobs_to_the_relay() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut undone = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(request(0)).tx(&mut undone).await.unwrap();
    undone.rollback().await.unwrap();
    bench.tenure.flush().await;
    assert_eq!((bench.count("tenure.jobs").await, bench.messages().await), (0, 0));
    // The process is gone before the commit: only the relay finds its job.
    let process = Tenure::connect(&bench.config).await.unwrap();
    let mut lasting = bench.pool.begin().await.unwrap();
    let id = process.enqueue(request(1)).tx(&mut lasting).await.unwrap().id;
    process.close().await;
    drop(process);
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 1).await;
    lasting.commit().await.unwrap();
    bench.until_finished(id).await;
    worker.stop().await;
}

/// A producer is killed between its commit and its message, which only the missing message shows. A hundred producers
/// die at every phase of the relay's rounds.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_killed_before_it_published_costs_its_job_a_few_seconds() {
    let bench = bench_with(|config| config.timing = tenure::Timing::DEFAULT).await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("steps", 4),
    );
    bench.until_count("tenure.workers", 1).await;
    for _ in 0..100 {
        let fault = ("TENURE_FAULT", "enqueued=kill".to_owned());
        let mut producer = Child::start_with(&bench, "enqueue", &[fault]);
        assert_eq!(producer.wait().await, None, "killed by the signal:\n{}", producer.log());
    }
    bench.until_count("tenure.job_history", 100).await;
    let again = "SELECT count(DISTINCT job_id) FROM tenure.recovery_events WHERE event = 'republished'";
    assert_eq!(bench.value::<i64>(again).await, 100);
    let waits: Vec<f64> = bench
        .value(
            "SELECT percentile_disc(array[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at)::float8) \
             FROM tenure.job_history",
        )
        .await;
    println!("between the kill and the start of the job: p50 {:.1} s, p99 {:.1} s", waits[0], waits[1]);
    assert!(waits[1] < 10.0, "{waits:?}");
    worker.stop().await;
}

/// A NATS that accepts connections and reads nothing: producers wait for it once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_reads_nothing_holds_up_no_producer_for_long() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let pid = bench.own.as_ref().unwrap().nats.pid().unwrap();
    let nats = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(nats, Signal::STOP).unwrap();
    let began = Instant::now();
    let body = "x".repeat(2_000);
    for _ in 0..3 {
        let jobs =
            (0..1_000).map(|_| JobRequest::new("q", body.chars().take(20).collect::<String>(), json!(body)));
        bench.tenure.enqueue_many(jobs).await.unwrap();
    }
    let took = began.elapsed();
    rustix::process::kill_process(nats, Signal::CONT).unwrap();
    assert!(took < Duration::from_secs(20), "{took:?}");
    bench.tenure.flush().await;
    assert_eq!(bench.count("tenure.jobs").await, 3_000);
}
