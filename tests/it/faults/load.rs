//! Many at once: cancellations, a poison job among good ones.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::JobRequest;

use super::{enqueue, worker};
use crate::{
    harness::{Child, Running, bench, bench_with, statement},
    scenarios::Step,
};

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_jobs_are_cancelled_at_once_queued_and_running() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(30);
    })
    .await;
    enqueue(&bench, 100, 1_000).await;
    let working = Running::start(worker(&bench.tenure, 100));
    bench.until_count("tenure.jobs WHERE stage = 'working'", 100).await;
    for _ in 0..10 {
        let many = (0..990).map(|_| JobRequest::new("q", "k", json!({})));
        bench.tenure.enqueue_many(many).await.unwrap();
    }
    let began = Instant::now();
    let cancelled = bench.tenure.cancel_all("q", None).await.unwrap();
    assert_eq!((cancelled.cancelled, cancelled.asked), (9_900, 100));
    bench.until_count("tenure.job_history WHERE status = 'cancelled'", 10_000).await;
    eprintln!("10,000 jobs cancelled, 100 of them running, in {:?}", began.elapsed());
    assert_eq!(bench.count("tenure.jobs").await, 0);
    assert_eq!(bench.count("public.effects").await, 0);
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    working.stop().await;
}

/// A job that kills its worker each time ends in the dead letters, and all others complete.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_job_among_ten_thousand_good_ones_ends_alone() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let good = Step::new(&bench, "report");
    std::fs::write(good.file("go"), "").unwrap();
    let poison = Step::new(&bench, "aborts");
    for chunk in 0..10 {
        let many = (0..1_000).map(|n| match (chunk, n) {
            (2, 500) => JobRequest::from(poison.clone()).max_attempts(1),
            _ => JobRequest::from(good.clone()),
        });
        bench.tenure.enqueue_many(many).await.unwrap();
    }
    let mut workers: Vec<_> = (0..2).map(|n| Child::on(&bench, &format!("web-{n}"), "worker")).collect();
    let mut deaths = 0;
    while bench.count("tenure.jobs").await > 0 {
        for (n, worker) in workers.iter_mut().enumerate() {
            let ended = tokio::time::timeout(Duration::from_millis(100), worker.wait()).await;
            if ended.is_ok() {
                deaths += 1;
                *worker = Child::on(&bench, &format!("web-{n}"), "worker");
            }
        }
    }
    assert_eq!(deaths, 1);
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, 9_999);
    assert_eq!(
        bench.text("SELECT category, payload->>'first' FROM tenure.dead_letter_jobs").await,
        "(lost,aborts)"
    );
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
}

/// The peak memory of a process so far, in MB.
fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or_default() / 1024
}

/// `TENURE_MILLION=200000` enqueues fewer. Each worker is killed beyond 256 MB of data.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_million_jobs_are_drained_by_two_small_workers() {
    let jobs: u32 = std::env::var("TENURE_MILLION").map_or(1_000_000, |text| text.parse().unwrap());
    let bench = bench_with(|config| config.timing = tenure::Timing::DEFAULT).await;
    bench.tenure.setup(&["noops".into()]).await.unwrap();
    let began = Instant::now();
    for chunk in 0..jobs / 1_000 {
        let many = (0..1_000).map(|n| JobRequest::new("noops", "noop", json!({ "n": chunk * 1_000 + n })));
        bench.tenure.enqueue_many(many).await.unwrap();
    }
    bench.tenure.flush().await;
    let enqueued = began.elapsed();
    let stored: u64 = bench.js.get_stream(&bench.config.stream).await.unwrap().cached_info().state.messages;
    assert_eq!(stored, u64::from(jobs), "a message each");
    let bytes = |table: &str| format!("SELECT pg_total_relation_size('tenure.{table}')");
    let full: i64 = bench.value(&bytes("jobs")).await;
    // The relay and the scanner read all of them and leave them alone.
    let scan = statement("scan_gate");
    let mut scans = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        sqlx::query(scan).bind(0.0_f64).bind(0.0_f64).bind(100_i64).fetch_all(&bench.pool).await.unwrap();
        scans.push(began.elapsed());
    }
    scans.sort_unstable();
    let small = |host: &str| {
        let mut command = tokio::process::Command::new("prlimit");
        command
            .args(["--data=268435456", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "scenarios::child", "--nocapture", "--test-threads=1"])
            .envs(bench.environment())
            .env("TENURE_SCENARIO", "noops")
            .env("TENURE_HOSTNAME", host);
        Child::spawn(command, host)
    };
    let began = Instant::now();
    let workers = [small("small-a"), small("small-b")];
    let mut peaks = [0, 0];
    let mut longest_stream = stored;
    loop {
        let done: i64 = bench.count("tenure.job_history").await;
        let messages = bench.messages().await;
        longest_stream = longest_stream.max(messages);
        for (peak_so_far, worker) in peaks.iter_mut().zip(&workers) {
            *peak_so_far = peak(worker.pid()).max(*peak_so_far);
        }
        eprintln!(
            "{:>6.1} s  {done} done, {messages} messages, peaks {peaks:?} MB",
            began.elapsed().as_secs_f64()
        );
        if done == i64::from(jobs) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(1_800), "the backlog takes too long");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let drained = began.elapsed();
    bench.until_stream_is_empty(Duration::from_secs(60)).await;
    let empty: i64 = bench.value(&bytes("jobs")).await;
    let republished = bench.count("tenure.recovery_events").await;
    eprintln!(
        "{jobs} jobs: enqueued in {:.0} s ({:.0}/s), drained by two workers in {:.0} s ({:.0}/s); \
         a scan of the backlog {:.0} ms; most memory {peaks:?} MB; the live table had {} MB, and has {} MB; {republished} messages published again",
        enqueued.as_secs_f64(),
        f64::from(jobs) / enqueued.as_secs_f64(),
        drained.as_secs_f64(),
        f64::from(jobs) / drained.as_secs_f64(),
        scans[1].as_secs_f64() * 1_000.0,
        full >> 20,
        empty >> 20,
    );
    assert_eq!(longest_stream, stored, "nothing was published twice");
    assert_eq!(republished, 0);
    assert!(peaks.iter().all(|peak| *peak < 150), "{peaks:?} MB");
    assert!(empty <= full * 3 / 2, "the live table grows: {full} to {empty} bytes");
}
