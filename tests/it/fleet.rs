//! The fleet's shared work: one worker at a time does it, and another takes over when that one is gone.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobRequest, KindOptions, Tenure, Worker};

use crate::harness::{Bench, Child, Proxy, Running, bench, bench_with, bench_with_servers, statement};

async fn take(bench: &Bench, worker: &str, seconds: f64) -> Vec<String> {
    let statement = statement("take_turns");
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
async fn a_turn_belongs_to_one_worker_until_it_ends_or_is_left() {
    let bench = bench().await;
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"]);
    assert!(take(&bench, "b", 60.0).await.is_empty());
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"], "the worker keeps its turns");
    // Advance time.
    bench.execute("UPDATE tenure.turns SET until = now() - interval '1 second' WHERE turn = 'relay'").await;
    assert_eq!(take(&bench, "b", 60.0).await, ["relay"]);
    assert_eq!(take(&bench, "a", 60.0).await, ["scan"], "the turn that another has taken is gone");
    let leave = statement("leave_turns");
    sqlx::query(leave).bind("b").execute(&bench.pool).await.unwrap();
    assert_eq!(take(&bench, "a", 60.0).await, ["relay", "scan"]);
}

/// The workers divide the looks for free turns among themselves: those that take none would make each look rarely.
#[tokio::test(flavor = "multi_thread")]
async fn workers_behind_gateways_do_not_count_where_the_fleet_divides_its_turns() {
    let bench = bench().await;
    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, language)
             SELECT 'w' || n, 'h', n, '{q}', 1, '0', CASE WHEN n > 2 THEN 'python' END FROM generate_series(1, 60) n",
        )
        .await;
    let workers = async |name: &str| {
        let query = if name == "take_turns" {
            sqlx::query(statement(name)).bind(vec!["relay"]).bind("w1").bind(60.0)
        } else {
            let renewal = sqlx::query(statement(name)).bind("w1").bind(None::<&str>).bind(None::<&str>);
            renewal.bind(false).bind(vec!["q"]).bind(None::<Vec<i32>>)
        };
        sqlx::Row::get::<i64, _>(&query.fetch_one(&bench.pool).await.unwrap(), "workers")
    };
    assert_eq!((workers("take_turns").await, workers("renew_worker").await), (2, 2));
}

/// Two workers ask for free turns at the same moment: each turn goes to one of them.
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
    // A turn lasts 1.5 s here, and two workers ask every second.
    assert!(took < Duration::from_secs(10), "{took:?}");
    frozen.signal(Signal::CONT);
    other.stop().await;
}

/// A link that swallows everything: for half a minute the client believes that it is connected.
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
    // The holder must know of the other worker.
    tokio::time::sleep(Duration::from_secs(6)).await;
    proxy.cut();
    let began = Instant::now();
    let job = JobRequest::new("q", "k", json!(1)).delay(Duration::from_millis(1));
    let id = bench.tenure.enqueue(job).await.unwrap().id;
    bench.until_finished(id).await;
    // The holder fails for 5 s, its turn ends, and the other worker asks. The client drops a dead link only after 30 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    holder.until_log("work that the fleet shares fails on this worker").await;
    other.stop().await;
}

/// Every worker receives a message about each turn that is left, during a deploy many times a second.
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
    // Without the message, a worker would find out within five seconds.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    worker.stop().await;
}

/// However rare renewals are: after such a gap, recovery would reset no job of a dead worker for `stale_after`.
#[tokio::test(flavor = "multi_thread")]
async fn a_scanner_that_is_killed_leaves_no_gap_that_starts_a_grace() {
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
    // The longest possible gap: the turn was renewed just now, and the scan is due.
    bench.until(&format!("{scanned_at} < clock_timestamp() - interval '700 ms'")).await;
    killed.kill().await;
    let killed_at: String = bench.value("SELECT clock_timestamp()::text").await;
    bench.until(&format!("{scanned_at} > '{killed_at}'")).await;
    assert_eq!(bench.count("tenure.scanner_state WHERE grace_until IS NOT NULL").await, 0);
    other.stop().await;
}

/// No worker waits for the turns of one that stopped in good order to end.
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

/// Measures the transactions per second of an idle fleet.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_fleet_costs_its_renewals_and_one_relay() {
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
    // Workers that have just started do not know all others yet.
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
    // Ten a second by the relay, one renewal per worker every five seconds, and twice as much again. Without turns, each
    // worker would do all shared work every second.
    assert!(a_second < 45.0, "{a_second} transactions a second");
    for worker in running {
        worker.stop().await;
    }
}

/// A panic is logged and the loop restarted: the relay still publishes.
#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_panics_is_restarted() {
    let bench = bench().await;
    let fault = ("TENURE_FAULT", "relay=panic once".to_owned());
    let mut worker = Child::start_with(&bench, "noops", &[fault]);
    worker.until_log("a task of tenure panicked").await;
    let job = JobRequest::new("noops", "k", json!(1)).delay(Duration::from_millis(1));
    let id = bench.tenure.enqueue(job).await.unwrap().id;
    bench.until_finished(id).await;
    assert!(!worker.log().contains("not alive any more"), "{}", worker.log());
}

/// The same for the task that publishes a producer's jobs.
#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_of_a_producer_is_restarted_after_a_panic() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let fault = ("TENURE_FAULT", "publisher=panic once".to_owned());
    let mut producer = Child::start_with(&bench, "enqueue thrice", &[fault]);
    assert_eq!(producer.wait().await, Some(0), "{}", producer.log());
    assert!(producer.log().contains("a task of tenure panicked"), "{}", producer.log());
    assert_eq!(bench.messages().await, 3);
}

/// A queue whose consumer cannot be created is named, and the worker serves the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_be_served_stops_no_other_queue() {
    let bench = bench_with_servers(|_| {}).await;
    // The server refuses a third consumer of this stream.
    let mut stream = bench.js.get_stream(&bench.config.stream).await;
    if stream.is_err() {
        bench.tenure.setup(&[]).await.unwrap();
        stream = bench.js.get_stream(&bench.config.stream).await;
    }
    let mut config = stream.unwrap().cached_info().config.clone();
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    config.max_consumers = 2;
    bench.js.create_stream(config).await.unwrap();
    // A worker creates both.
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

/// A server accepts 1,000 consumers where a stream sets no limit: fewer than a fleet may have queues.
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
    // A stream of an older release, and one whose operator wants more.
    for (before, after) in [(-1, 100_000), (200_000, 200_000)] {
        config.max_consumers = before;
        bench.js.update_stream(&config).await.unwrap();
        bench.tenure.setup(&[]).await.unwrap();
        assert_eq!(limit().await.max_consumers, after);
    }
}

/// An idle worker has a request open on the server, and its stop need not wait until the request ends.
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
    // A job that comes while no worker runs is delivered to the next worker at once.
    let id = bench.tenure.enqueue(JobRequest::new("a", "k", json!(2))).await.unwrap().id;
    let worker = start();
    let began = Instant::now();
    bench.until_finished(id).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    worker.stop().await;
}
