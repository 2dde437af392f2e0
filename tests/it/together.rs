//! Together: one message names several jobs, and no job suffers for another.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tenure::{JobContext, JobRequest, KindOptions, Tenure, Worker, queues::QueueLimits};
use tokio::{sync::Semaphore, time::sleep};

use crate::harness::{self, Bench, Running, bench_with};

fn order(n: usize) -> JobRequest {
    JobRequest::new("q", "order", json!({ "number": n }))
}

async fn bench() -> Bench {
    bench_with(|config| config.jobs_per_message = 16).await
}

async fn burst(bench: &Bench, jobs: usize) {
    bench.tenure.enqueue_many((0..jobs).map(order)).await.unwrap();
    bench.tenure.flush().await;
}

/// A worker whose handlers wait for a permit each.
fn gated(bench: &Bench, slots: u32) -> (Running, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let handler = move |_: Value, _: JobContext| {
        let held = held.clone();
        async move { held.acquire().await.unwrap().forget() }
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("order", KindOptions::new().keepalive(), handler)
        .concurrency("q", slots);
    (Running::start(worker), gate)
}

/// Without a setting: jobs of one call, jobs that single calls enqueue at once, and jobs whose time comes.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_share_messages_by_default_where_every_worker_has_many_slots() {
    let bench = harness::bench().await;
    let (worker, gate) = gated(&bench, 2_000);
    bench.until_count("tenure.workers", 1).await;
    let running = async |jobs: i64| {
        bench.until_count("tenure.jobs WHERE status = 'processing'", jobs).await;
        bench.messages().await
    };
    burst(&bench, 200).await;
    assert_eq!(running(200).await, 13, "twelve of sixteen jobs, and one of eight");
    let delay = Duration::from_millis(500);
    bench.tenure.enqueue_many((0..64).map(|n| order(n).delay(delay))).await.unwrap();
    let due = running(264).await - 13;
    assert!(due < 64, "{due} messages of the relay");
    futures::future::join_all((0..320).map(async |n| bench.tenure.enqueue(order(n)).await)).await;
    bench.tenure.flush().await;
    let alone = running(584).await - 13 - due;
    assert!(alone < 320, "{alone} messages of jobs that were committed together");
    // A worker that has few slots comes, and another process asks.
    let few =
        "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, jobs_per_message)
               VALUES ('few', 'h', 1, '{q}', 10, '0.2.0', '{1}')";
    bench.execute(few).await;
    let before = bench.messages().await;
    let tenure = Tenure::connect(&bench.config).await.unwrap();
    tenure.enqueue_many((0..100).map(order)).await.unwrap();
    assert_eq!(running(684).await - before, 100);
    gate.add_permits(684);
    bench.until_count("tenure.job_history WHERE attempt = 1", 684).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_a_few_messages_and_each_of_its_jobs_ends_once() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 200).await;
    assert_eq!(bench.messages().await, 13, "twelve of sixteen jobs, and one of eight");
    burst(&bench, 7).await;
    assert_eq!(bench.messages().await, 13 + 7, "idle workers share a small burst");
    let (worker, gate) = gated(&bench, 300);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 207).await;
    // One of a message's jobs still runs: the message stays.
    gate.add_permits(206);
    bench.until_count("tenure.job_history WHERE attempt = 1", 206).await;
    while bench.messages().await > 1 {
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bench.messages().await, 1);
    gate.add_permits(1);
    bench.until_count("tenure.job_history WHERE attempt = 1", 207).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

/// The rest of a message goes to the relay, whole messages go to another worker, and the jobs that run keep their own.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_a_slot_run_elsewhere_while_the_others_of_their_message_still_run() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 64).await;
    assert_eq!(bench.messages().await, 8);
    let (small, gate) = gated(&bench, 2);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 2).await;
    let (large, free) = gated(&bench, 100);
    free.add_permits(100);
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 62", Duration::from_secs(15)).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 2);
    gate.add_permits(2);
    bench.until_count("tenure.job_history WHERE attempt = 1", 64).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    small.stop().await;
    large.stop().await;
}

/// The jobs take long, and a slot becomes free now and then: a message waits until there is room for all of its jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_takes_a_message_when_it_has_a_slot_for_each_of_its_jobs() {
    let bench = bench_with(|config| config.jobs_per_message = 2).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 400).await;
    let (worker, gate) = gated(&bench, 64);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 64).await;
    for round in 1..=4 {
        gate.add_permits(1);
        bench.until_count("tenure.job_history", 2 * round - 1).await;
        // For longer than a part of a message waits for a slot, and is published again.
        sleep(Duration::from_millis(500)).await;
        gate.add_permits(1);
        bench.until_count("tenure.job_history", 2 * round).await;
        bench.until_count("tenure.jobs WHERE status = 'processing'", 64).await;
    }
    assert_eq!(bench.count("tenure.jobs WHERE dispatch > 1").await, 0, "the worker handed jobs back");
    gate.add_permits(400);
    bench.until_count("tenure.job_history WHERE attempt = 1", 400).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

/// It has asked for as many messages as it has slots, and the first slot to become free has room for half of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_takes_no_part_of_a_message() {
    let bench = bench_with(|config| config.jobs_per_message = 2).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 400).await;
    let (worker, gate) = gated(&bench, 64);
    gate.add_permits(1);
    bench.until_count("tenure.job_history", 1).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 63).await;
    // For longer than a part of a message waits for a slot, and is published again.
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.count("tenure.jobs WHERE dispatch > 1").await, 0, "the worker handed jobs back");
    gate.add_permits(400);
    bench.until_count("tenure.job_history WHERE attempt = 1", 400).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

/// After a burst, a job that comes alone does not wait for as many slots as the messages of the burst needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_alone_starts_at_once_while_jobs_of_a_burst_run() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    for shared in [false, true] {
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        let handler = move |_: Value, _: JobContext| {
            let held = held.clone();
            async move { held.acquire().await.unwrap().forget() }
        };
        let worker = Worker::builder(&bench.tenure).handle_kind("order", KindOptions::new(), handler);
        let worker = if shared {
            worker.shared(600, [("q", 8), ("other", 2)])
        } else {
            // Fewer are free, while those of the burst run, than a message of them needs.
            worker.concurrency("q", 520)
        };
        let worker = Running::start(worker);
        burst(&bench, 512).await;
        bench.until_count("tenure.jobs WHERE status = 'processing'", 512).await;
        // For longer than a request of a shared queue lasts.
        sleep(Duration::from_millis(400)).await;
        let began_at = std::time::Instant::now();
        bench.tenure.enqueue(order(0)).await.unwrap();
        bench.until_count("tenure.jobs WHERE status = 'processing'", 513).await;
        assert!(began_at.elapsed() < Duration::from_secs(3), "shared: {shared}: {:?}", began_at.elapsed());
        gate.add_permits(513);
        bench.until_count("tenure.jobs", 0).await;
        worker.stop().await;
    }
}

/// Where jobs take long, a part of a message is handed back; new jobs then have a message each.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_has_taken_a_part_tells_that_it_takes_one_job_a_message() {
    let bench = bench_with(|config| config.jobs_per_message = 8).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 200).await;
    let (worker, gate) = gated(&bench, 128);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 128).await;
    let tells = async |jobs: &str| {
        bench.until(&format!("(SELECT jobs_per_message FROM tenure.workers) = '{{{jobs}}}'")).await;
    };
    tells("2").await;
    gate.add_permits(1);
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE dispatch > 1)").await;
    tells("1").await;
    gate.add_permits(200);
    bench.until_count("tenure.job_history WHERE attempt = 1", 200).await;
    worker.stop().await;
}

/// A worker with one slot runs a burst by itself, and a stop in between returns what it has not begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_one_slot_runs_a_burst_and_a_stop_returns_the_rest() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 64).await;
    let (worker, gate) = gated(&bench, 1);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    gate.add_permits(20);
    bench.until_within("(SELECT count(*) FROM tenure.job_history) >= 5", Duration::from_secs(10)).await;
    gate.add_permits(10);
    worker.stop().await;
    let done = bench.count("tenure.job_history WHERE attempt = 1").await;
    assert!((5..=31).contains(&done), "{done}");
    let (worker, gate) = gated(&bench, 1);
    gate.add_permits(64);
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.job_history WHERE attempt = 1) = 64",
            Duration::from_secs(20),
        )
        .await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_running_jobs_holds_for_jobs_of_one_message() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(3)).await.unwrap();
    burst(&bench, 128).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (running.clone(), most.clone());
    let handler = move |_: Value, _: JobContext| {
        let (running, most) = seen.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let start = || {
        let handler = handler.clone();
        let worker = Worker::builder(&bench.tenure).handle_kind("order", KindOptions::new(), handler);
        Running::start(worker.concurrency("q", 50))
    };
    let (one, other) = (start(), start());
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.job_history WHERE attempt = 1) = 128",
            Duration::from_secs(40),
        )
        .await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    one.stop().await;
    other.stop().await;
}

/// The worker that held the message is gone. No scanner runs: redelivery alone brings each job to its end, and none of
/// those that had ended runs again.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_worker_died_in_between_brings_the_rest_of_its_jobs_to_their_end() {
    let bench = bench_with(|config| {
        config.jobs_per_message = 16;
        config.timing.stale_after = Duration::from_secs(4);
        config.timing.ack_wait = Duration::from_secs(8);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let without_scanner = |bench: &Bench| {
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        let handler = move |_: Value, _: JobContext| {
            let held = held.clone();
            async move { held.acquire().await.unwrap().forget() }
        };
        let options = KindOptions::new();
        let worker = Worker::builder(&bench.tenure).handle_kind("order", options, handler).recovery(&[]);
        (Running::start(worker.concurrency("q", 100)), gate)
    };
    burst(&bench, 128).await;
    let (first, gate) = without_scanner(&bench);
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.jobs WHERE status = 'processing') >= 64",
            Duration::from_secs(10),
        )
        .await;
    gate.add_permits(40);
    bench.until_count("tenure.job_history WHERE attempt = 1", 40).await;
    first.abandon().await;
    let (second, gate) = without_scanner(&bench);
    gate.add_permits(200);
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 128", Duration::from_secs(40)).await;
    let again = bench.count("(SELECT FROM tenure.job_executions_all GROUP BY job_id HAVING count(*) FILTER (WHERE outcome = 'completed') > 1) AS twice").await;
    assert_eq!(again, 0);
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    second.stop().await;
}

/// A kind whose jobs a message names hides no submission, and its messages are none.
#[tokio::test(flavor = "multi_thread")]
async fn submissions_beside_messages_of_several_jobs_are_counted() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    burst(&bench, 128).await;
    assert_eq!(bench.messages().await, 8);
    let said = async || {
        let checks = bench.tenure.doctor(&tenure::doctor::DoctorOptions::default()).await;
        checks.into_iter().find(|check| check.queue.as_deref() == Some("q")).unwrap().found
    };
    assert!(!said().await.contains("submission"), "{}", said().await);
    for n in 0..3 {
        bench.publish("q.order", &n.to_string()).await;
    }
    assert!(said().await.contains("3 submissions"), "{}", said().await);
    // The messages of jobs that have ended stand there until a worker receives them.
    bench.tenure.cancel_all("q", None).await.unwrap();
    assert!(said().await.contains("3 submissions"), "{}", said().await);
}

/// One job of a message cannot be claimed while another runs for long: it goes to the relay, and does not wait for that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_could_not_be_claimed_does_not_wait_for_the_others_of_its_message() {
    let bench = bench_with(|config| {
        config.jobs_per_message = 16;
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    // In a limited queue the relay takes no message for lost before `ack_wait`.
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(100)).await.unwrap();
    burst(&bench, 64).await;
    let mut other = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut locks = other.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.jobs ORDER BY id LIMIT 1 FOR UPDATE").execute(&mut *locks).await.unwrap();
    let (worker, gate) = gated(&bench, 100);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 63).await;
    sleep(Duration::from_secs(1)).await;
    locks.rollback().await.unwrap();
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.jobs WHERE status = 'processing') = 64",
            Duration::from_secs(8),
        )
        .await;
    gate.add_permits(64);
    bench.until_count("tenure.job_history WHERE attempt = 1", 64).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}
