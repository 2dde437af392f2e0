//! The fleet's common work: one worker at a time does it, and another when that one is gone.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobRequest, KindOptions, Tenure, Worker};

use crate::harness::{Bench, Child, Proxy, Running, bench, bench_with, bench_with_servers};

async fn take(bench: &Bench, worker: &str, seconds: f64) -> Vec<String> {
    let statement = tenure::STATEMENTS.iter().find(|(name, _)| name.trim() == "take_turns").unwrap().1;
    let row = sqlx::query(statement)
        .bind(vec!["relay", "scan"])
        .bind(worker)
        .bind(seconds)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let mut taken: Vec<String> = sqlx::Row::get(&row, "taken");
    taken.sort_unstable();
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_one_workers_until_it_ends_or_is_left() {
    let bench = bench().await;
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"]);
    assert!(take(&bench, "b", 60.0).await.is_empty());
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"], "it keeps them");
    // Time passes.
    bench.execute("UPDATE tenure.turns SET until = now() - interval '1 second' WHERE turn = 'relay'").await;
    assert_eq!(take(&bench, "b", 60.0).await, ["relay"]);
    assert_eq!(take(&bench, "a", 60.0).await, ["scan"], "what another has taken is gone");
    let leave = tenure::STATEMENTS.iter().find(|(name, _)| name.trim() == "leave_turns").unwrap().1;
    sqlx::query(leave).bind("b").execute(&bench.pool).await.unwrap();
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"]);
}

/// Two workers look for free turns at the same moment: one gets each.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_workers_that_want_a_turn_one_has_it() {
    let bench = bench().await;
    let names: Vec<_> = (0..20).map(|n| format!("w{n}")).collect();
    let taken = futures::future::join_all(names.iter().map(|name| take(&bench, name, 60.0))).await;
    assert_eq!(taken.iter().flatten().count(), 2, "{taken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_freezes_with_the_turn_holds_up_nothing_beyond_its_length() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(40);
    })
    .await;
    let mut frozen = Child::on(&bench, "web-a", "idle");
    frozen.until_log("worker started").await;
    bench
        .until("(SELECT count(*) FROM tenure.turns WHERE worker_id LIKE 'web-a-%' AND until > now()) >= 2")
        .await;
    let other = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 2).await;
    frozen.signal(Signal::STOP);
    let began = Instant::now();
    // The relay's work.
    let job = JobRequest::new("q", "k", json!(1)).delay(Duration::from_millis(1));
    let id = bench.tenure.enqueue(job).await.unwrap().id;
    bench.until_finished(id).await;
    let took = began.elapsed();
    // Its length is 1.5 s here, and two workers ask every second.
    assert!(took < Duration::from_secs(10), "{took:?}");
    frozen.signal(Signal::CONT);
    other.stop().await;
}

/// A link that takes everything and gives nothing back: for half a minute the client believes that it is connected.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_publish_leaves_the_relays_turn() {
    let bench = bench_with_servers(|config| {
        config.timing = tenure::Timing::DEFAULT;
        config.timing.publish_within = Duration::from_secs(2);
    })
    .await;
    let proxy = Proxy::to_url(&bench.config.nats_url).await;
    let cut_off = ("NATS_URL", proxy.of(&bench.config.nats_url));
    let host = ("TENURE_HOSTNAME", "web-a".to_owned());
    let mut holder = Child::start_with(&bench, "idle", &[cut_off, host]);
    bench.until("EXISTS (SELECT FROM tenure.turns WHERE turn = 'relay' AND worker_id LIKE 'web-a-%')").await;
    let other = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 2).await;
    // Until the holder has heard of it.
    tokio::time::sleep(Duration::from_secs(6)).await;
    proxy.cut();
    let began = Instant::now();
    let job = JobRequest::new("q", "k", json!(1)).delay(Duration::from_millis(1));
    let id = bench.tenure.enqueue(job).await.unwrap().id;
    bench.until_finished(id).await;
    // Until it fails for 5 s, its turn has ended, and another one asks. The client gives a link up after 30 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    holder.until_log("the fleet's work fails on this worker").await;
    other.stop().await;
}

/// Each worker of a fleet hears of each turn that is left, at a deploy many times within a second.
#[tokio::test(flavor = "multi_thread")]
async fn turns_that_are_left_hold_up_no_cancellation() {
    let bench = bench_with(|config| config.timing = tenure::Timing::DEFAULT).await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_: serde_json::Value, ctx: tenure::JobContext| async move {
                let reason = ctx.cancelled().await;
                Err::<(), _>(tenure::JobError::from(reason.to_string()))
            })
            .concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until(&format!("(SELECT status = 'processing' FROM tenure.jobs WHERE id = '{id}')")).await;
    let client = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let subject = format!("tenure.{}.cancel", bench.config.subject_prefix);
    for _ in 0..100 {
        client.publish(subject.clone(), "{\"cancelled\":[],\"turns\":true}".into()).await.unwrap();
    }
    client.flush().await.unwrap();
    let began = Instant::now();
    bench.tenure.cancel(id).await.unwrap();
    bench.until(&format!("NOT EXISTS (SELECT FROM tenure.jobs WHERE id = '{id}')")).await;
    // By its own looks a worker finds out within five seconds.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    worker.stop().await;
}

/// However long renewals are apart: after such a gap, nothing of the dead would be taken back for `stale_after`.
#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_is_killed_leaves_no_gap_after_which_owners_are_given_time() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_secs(1);
        config.timing.renew_every = Duration::from_secs(20);
        config.timing.relay_every = Duration::from_millis(200);
    })
    .await;
    let mut killed = Child::on(&bench, "web-a", "idle");
    killed.until_log("worker started").await;
    bench.until("EXISTS (SELECT FROM tenure.turns WHERE turn = 'scan' AND worker_id LIKE 'web-a-%')").await;
    let other = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 2).await;
    let scanned_at = "(SELECT last_scan_at FROM tenure.scanner_state)";
    // As long a gap as can be: the turn was kept just now, the scan is due.
    bench.until(&format!("{scanned_at} < clock_timestamp() - interval '700 ms'")).await;
    killed.kill().await;
    let killed_at: String = bench.value("SELECT clock_timestamp()::text").await;
    bench.until(&format!("{scanned_at} > '{killed_at}'")).await;
    assert_eq!(bench.count("tenure.scanner_state WHERE grace_until IS NOT NULL").await, 0);
    other.stop().await;
}

/// Of one that stops in good order nobody waits for the end of its turns.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_leaves_its_turns() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until("(SELECT count(*) FROM tenure.turns WHERE until > now()) >= 2").await;
    worker.stop().await;
    assert_eq!(bench.count("tenure.turns WHERE until > clock_timestamp()").await, 0);
}

/// In a second of nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_fleet_costs_what_its_renewals_cost_and_one_relay() {
    let bench = bench_with_servers(|config| config.timing = tenure::Timing::DEFAULT).await;
    let workers = 10;
    let mut running = Vec::new();
    for _ in 0..workers {
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        running.push(Running::start(
            Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
        ));
    }
    bench.until_count("tenure.workers", workers).await;
    bench.until("(SELECT count(*) FROM tenure.turns WHERE until > now()) = 3").await;
    // Those that have just started know of fewer others.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let transactions = || async {
        bench.execute("SELECT pg_stat_force_next_flush()").await;
        bench
            .value::<i64>(
                "SELECT xact_commit::bigint FROM pg_stat_database WHERE datname = current_database()",
            )
            .await
    };
    let before = transactions().await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(6)).await;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let a_second = (transactions().await - before) as f64 / began.elapsed().as_secs_f64();
    // Ten a second by the relay, one renewal of each every five seconds, and as much again. Each for itself would look
    // for all of it every second.
    assert!(a_second < 35.0, "{a_second} transactions a second");
    for worker in running {
        worker.stop().await;
    }
}

/// A panic is told, and the loop begins anew: the relay publishes all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_panics_begins_anew() {
    let bench = bench().await;
    let fault = ("TENURE_FAULT", "relay=panic once".to_owned());
    let mut worker = Child::start_with(&bench, "noops", &[fault]);
    worker.until_log("a task of tenure panicked").await;
    let job = JobRequest::new("noops", "k", json!(1)).delay(Duration::from_millis(1));
    let id = bench.tenure.enqueue(job).await.unwrap().id;
    bench.until_finished(id).await;
    assert!(!worker.log().contains("not alive any more"), "{}", worker.log());
}

/// The same of the task that publishes what a producer has enqueued.
#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_of_a_producer_that_panics_begins_anew() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let fault = ("TENURE_FAULT", "publisher=panic once".to_owned());
    let mut producer = Child::start_with(&bench, "enqueue thrice", &[fault]);
    assert_eq!(producer.wait().await, Some(0), "{}", producer.log());
    assert!(producer.log().contains("a task of tenure panicked"), "{}", producer.log());
    assert_eq!(bench.messages().await, 3);
}

/// A queue whose consumer cannot be had keeps none of the others from being served, and is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_be_served_keeps_none_of_the_others_from_being_served() {
    let bench = bench_with_servers(|_| {}).await;
    // The server takes two consumers of this stream, and no third.
    let mut stream = bench.js.get_stream(&bench.config.stream).await;
    if stream.is_err() {
        bench.tenure.setup(&[]).await.unwrap();
        stream = bench.js.get_stream(&bench.config.stream).await;
    }
    let mut config = stream.unwrap().cached_info().config.clone();
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    config.max_consumers = 2;
    bench.js.create_stream(config).await.unwrap();
    // A worker takes both.
    let others = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), |_, _| async {})
            .concurrency("a", 1)
            .concurrency("b", 1),
    );
    for queue in ["a", "b"] {
        let id = bench.tenure.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap().id;
        bench.until_finished(id).await;
    }
    others.stop().await;
    let worker = Worker::builder(&bench.tenure)
        .handle_any(KindOptions::new(), |_, _| async {})
        .concurrency("a", 1)
        .concurrency("b", 1)
        .concurrency("c", 1);
    let health = worker.health();
    let worker = Running::start(worker);
    for queue in ["a", "b"] {
        let id = bench.tenure.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap().id;
        bench.until_finished(id).await;
    }
    let missing = health.ready().unwrap_err().join("; ");
    assert!(missing.contains("queue c") && missing.contains("maximum consumers"), "{missing}");
    assert!(!missing.contains("queue a") && !missing.contains("queue b"), "{missing}");
    let doctor = bench.program(&["doctor"]).output().await.unwrap();
    let seen = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(seen.contains("queue c"), "{seen}");
    // `tenure migrate` raises the limit, and the queue is served without a restart.
    let id = bench.tenure.enqueue(JobRequest::new("c", "k", json!(1))).await.unwrap().id;
    bench.tenure.setup(&[]).await.unwrap();
    bench.until_finished(id).await;
    assert_eq!(health.ready(), Ok(()));
    worker.stop().await;
}

/// What a server takes where a stream sets no limit is 1,000 consumers: less than a fleet may have queues.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_takes_more_consumers_than_servers_do_by_default() {
    let bench = bench().await;
    bench.tenure.setup(&[]).await.unwrap();
    let limit = async || {
        let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
        stream.cached_info().config.clone()
    };
    let mut config = limit().await;
    assert_eq!(config.max_consumers, 100_000);
    // One of before, and one whose operator wants more.
    for (before, after) in [(-1, 100_000), (200_000, 200_000)] {
        config.max_consumers = before;
        bench.js.update_stream(&config).await.unwrap();
        bench.tenure.setup(&[]).await.unwrap();
        assert_eq!(limit().await.max_consumers, after);
    }
}

/// An idle worker has a request open on the server, and need not wait for its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_stops_at_once() {
    let bench = bench_with_servers(|config| config.timing = tenure::Timing::DEFAULT).await;
    let start = || {
        let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {});
        Running::start(worker.concurrency("a", 3).concurrency("b", 3))
    };
    let worker = start();
    for queue in ["a", "b"] {
        let id = bench.tenure.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap().id;
        bench.until_finished(id).await;
    }
    let began = Instant::now();
    worker.stop().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}; a request lasts for 5 s");
    // What comes while nobody is there waits for the next worker, and for nobody else.
    let id = bench.tenure.enqueue(JobRequest::new("a", "k", json!(2))).await.unwrap().id;
    let worker = start();
    let began = Instant::now();
    bench.until_finished(id).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    worker.stop().await;
}
