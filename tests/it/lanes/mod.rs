//! Lanes: limits by key, turns, rates, priority, order, debounce, expiry. A ledger of the test's own counts what ran.

mod faults;
mod snapshots;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Worker, WorkerBuilder,
    lanes::{LaneOptions, Lanes},
};

use crate::harness::{Bench, Running, bench, statement};

const PAUSE: Duration = Duration::from_millis(150);

/// What handlers have done: independent of every table of tenure's.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    now: HashMap<String, u32>,
    most: HashMap<String, u32>,
    /// Lane, name and time of each start.
    starts: Vec<(String, String, Instant)>,
}

impl Ledger {
    fn start(&self, of: &Value) -> String {
        let lane = of["lane"].as_str().unwrap_or_default().to_owned();
        let mut kept = self.0.lock().unwrap();
        let now = kept.now.entry(lane.clone()).or_default();
        *now += 1;
        let now = *now;
        let most = kept.most.entry(lane.clone()).or_default();
        *most = now.max(*most);
        kept.starts.push((lane.clone(), of["name"].to_string(), Instant::now()));
        lane
    }

    fn end(&self, lane: &str) {
        *self.0.lock().unwrap().now.get_mut(lane).unwrap() -= 1;
    }

    fn most(&self) -> u32 {
        self.0.lock().unwrap().most.values().copied().max().unwrap_or_default()
    }

    fn starts(&self) -> Vec<(String, String, Instant)> {
        self.0.lock().unwrap().starts.clone()
    }

    fn names(&self) -> Vec<String> {
        self.starts().into_iter().map(|(_, name, _)| name).collect()
    }
}

/// A worker whose handler takes `ms` of the payload.
fn worker(bench: &Bench, ledger: &Ledger, slots: u32) -> WorkerBuilder<()> {
    let ledger = ledger.clone();
    let handler = move |of: Value, _: JobContext| {
        let ledger = ledger.clone();
        async move {
            let lane = ledger.start(&of);
            tokio::time::sleep(Duration::from_millis(of["ms"].as_u64().unwrap_or(0))).await;
            ledger.end(&lane);
        }
    };
    Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", slots)
}

fn job(lane: &str, name: u32, ms: u64) -> JobRequest {
    JobRequest::new("q", "k", json!({"lane": lane, "name": name, "ms": ms})).lane(lane)
}

async fn drained(bench: &Bench, jobs: u32) {
    bench.until_count("tenure.job_history WHERE status = 'completed'", i64::from(jobs)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_never_runs_more_jobs_than_its_limit() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    let ledger = Ledger::default();
    let workers = [worker(&bench, &ledger, 8), worker(&bench, &ledger, 8)].map(Running::start);
    let jobs = (0..60).map(|n| job(["a", "b", "c"][n as usize % 3], n, 10));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    for n in 60..90 {
        bench.tenure.enqueue(job("a", n, 5)).await.unwrap();
    }
    drained(&bench, 90).await;
    assert_eq!(ledger.most(), 2, "and both slots were used");
    bench.until_count("tenure.lane_jobs", 0).await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_take_turns_whatever_their_backlog() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().turns()).await.unwrap();
    bench.tenure.enqueue_many((0..400).map(|n| job("a", n, 20))).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 20").await;
    let before = ledger.starts().len();
    bench.tenure.enqueue(job("b", 1000, 0)).await.unwrap();
    let started = loop {
        if let Some(place) = ledger.starts().iter().position(|(lane, ..)| lane == "b") {
            break place;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // Sixteen have messages already; and a busy machine takes its time until the next look at the lanes.
    assert!(started - before < 120, "{} jobs of the backlog started before it", started - before);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_of_a_greater_weight_gets_more_turns() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().turns()).await.unwrap();
    bench.tenure.set_lane("q", "heavy", LaneOptions::new().weight(3.0)).await.unwrap();
    let jobs = (0..400).map(|n| job(["heavy", "light"][n as usize % 2], n, 2));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    bench.until("(SELECT count(*) FROM tenure.job_history) >= 160").await;
    worker.stop().await;
    let starts = ledger.starts();
    let heavy = starts[..160].iter().filter(|(lane, ..)| lane == "heavy").count();
    assert!((110..=130).contains(&heavy), "{heavy} of 160");
}

/// Each call releases one job, so that the turn must be kept from call to call.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_had_its_turn_goes_behind_the_others() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().turns()).await.unwrap();
    bench.tenure.pause_queue("q").await.unwrap();
    let jobs = (0..30).map(|n| job(["a", "b", "c"][n as usize / 10], n, 0));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    bench.tenure.resume_queue("q").await.unwrap();
    let mut turns = Vec::new();
    for _ in 0..40 {
        let release =
            "SELECT j.lane FROM tenure.tend_lanes(1, false) t JOIN tenure.jobs j ON j.id = t.id ORDER BY 1";
        turns.extend(bench.text(release).await.lines().map(str::to_owned));
    }
    assert!(turns.len() >= 9, "{turns:?}");
    for of_three in turns[..9].chunks(3) {
        let lanes: std::collections::HashSet<_> = of_three.iter().collect();
        assert_eq!(lanes.len(), 3, "{turns:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_starts_no_more_jobs_than_it_has_tokens() {
    let bench = bench().await;
    let lanes = Lanes::new().rate(20, Duration::from_secs(1)).burst(5);
    bench.tenure.put_lanes("q", lanes).await.unwrap();
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 50));
    bench.until_count("tenure.workers", 1).await;
    let began = Instant::now();
    bench.tenure.enqueue_many((0..45).map(|n| job("a", n, 0))).await.unwrap();
    drained(&bench, 45).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let mut starts: Vec<_> = ledger.starts().into_iter().map(|(.., at)| at).collect();
    starts.sort();
    // 5 at once, and 40 at 20 a second. A busy machine starts a job later than its token came, and never earlier.
    for (n, at) in (1_u32..).zip(&starts) {
        let tokens = 5.0 + 20.0 * at.duration_since(began).as_secs_f64();
        assert!(f64::from(n) <= tokens, "{n} jobs had begun with {tokens:.1} tokens");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_lane_run_by_priority() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    for (name, priority) in [(0, 0), (1, 5), (2, 0), (3, -1), (4, 5)] {
        bench.tenure.enqueue(job("a", name, 0).priority(priority)).await.unwrap();
    }
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    drained(&bench, 5).await;
    // The first was released before the others came.
    assert_eq!(ledger.names(), ["0", "3", "2", "1", "4"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_lane_runs_its_jobs_one_after_another_retries_included() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().ordered()).await.unwrap();
    let ledger = Ledger::default();
    let of_handler = ledger.clone();
    let handler = move |of: Value, ctx: JobContext| {
        let ledger = of_handler.clone();
        async move {
            let lane = ledger.start(&of);
            ledger.end(&lane);
            if of["name"] == json!(1) && ctx.attempt() < 3 { Err("again") } else { Ok(()) }
        }
    };
    let retry = KindOptions::new().backoff(tenure::Backoff { first: PAUSE, longest: PAUSE, jitter: 0.0 });
    let worker =
        Running::start(Worker::builder(&bench.tenure).handle_any(retry, handler).concurrency("q", 8));
    bench.tenure.enqueue_many((0..4).map(|n| job("a", n, 0))).await.unwrap();
    bench.tenure.enqueue_many((0..2).map(|n| job("b", 10 + n, 0))).await.unwrap();
    drained(&bench, 6).await;
    let of = |lane: &str| -> Vec<_> {
        ledger.starts().into_iter().filter(|(of, ..)| of == lane).map(|(_, name, _)| name).collect()
    };
    assert_eq!(of("a"), ["0", "1", "1", "1", "2", "3"]);
    assert_eq!(of("b"), ["10", "11"]);
    assert_eq!(ledger.most(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debounced_job_runs_once_with_its_last_payload() {
    let bench = bench().await;
    let debounced = |name| {
        let longest = Duration::from_secs(60);
        job("a", name, 0).replace("doc").after(Duration::from_secs(30)).longest_wait(longest)
    };
    let first = bench.tenure.enqueue(debounced(0)).await.unwrap();
    for n in 1..6 {
        let again = bench.tenure.enqueue(debounced(n)).await.unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true));
    }
    let moved = "scheduled_at > created_at + interval '30 seconds' AND scheduled_at < created_at + interval '40 seconds'";
    let row = "SELECT created_at, scheduled_at FROM tenure.jobs";
    assert_eq!(
        bench.text(&format!("SELECT {moved}, payload->>'name' FROM tenure.jobs")).await,
        "(t,5)",
        "{}",
        bench.text(row).await
    );
    // Moved on again and again, it waits no longer than the longest wait.
    bench.execute("UPDATE tenure.jobs SET created_at = created_at - interval '59 seconds'").await;
    bench.tenure.enqueue(debounced(6)).await.unwrap();
    let bound = "scheduled_at = created_at + interval '60 seconds' AND publish_at = scheduled_at";
    assert_eq!(bench.text(&format!("SELECT {bound} FROM tenure.jobs")).await, "(t)");
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    drained(&bench, 1).await;
    assert_eq!(ledger.names(), ["6"]);
    let next = bench.tenure.enqueue(job("a", 7, 0).replace("doc")).await.unwrap();
    assert!(!next.duplicate && next.id != first.id);
    drained(&bench, 2).await;
    worker.stop().await;
}

/// The pause of a retry that a lane holds is as long as one without lanes.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_payload_does_not_shorten_the_pause_of_a_retry_in_a_lane() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let id = bench.tenure.enqueue(job("a", 0, 0).replace("doc")).await.unwrap().id;
    let fails = async |_: Value, _: JobContext| -> Result<(), JobError> {
        Err(JobError::retry_after(Duration::from_secs(60), "later"))
    };
    let builder = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), fails);
    let worker = Running::start(builder.concurrency("q", 1));
    bench.until_count("tenure.lane_jobs WHERE due_at > now() + interval '30 s'", 1).await;
    let again = bench.tenure.enqueue(job("a", 1, 0).replace("doc")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (id, true));
    let pause =
        "SELECT due_at > now() + interval '30 s', payload->>'name' FROM tenure.lane_jobs, tenure.jobs";
    assert_eq!(bench.text(pause).await, "(t,1)");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_not_started_by_its_time_expires_and_says_so() {
    let bench = bench().await;
    let soon = chrono::Utc::now() + chrono::TimeDelta::milliseconds(300);
    let dead = bench.tenure.enqueue(job("a", 1, 0).not_after(soon)).await.unwrap().id;
    let later = job("a", 2, 0).not_after(soon).delay(Duration::from_secs(1));
    let cancelled = bench.tenure.enqueue(later.on_expiry(tenure::OnExpiry::Cancel)).await.unwrap().id;
    let fine =
        bench.tenure.enqueue(job("a", 3, 0).not_after(soon + chrono::TimeDelta::hours(1))).await.unwrap().id;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let ledger = Ledger::default();
    let worker = Running::start(worker(&bench, &ledger, 4));
    let dead = bench.until_finished(dead).await;
    assert!(dead.last_error.unwrap().contains("expired: not started by"));
    assert_eq!(bench.text("SELECT category, last_outcome FROM tenure.dead_letter_jobs").await, "(expired,)");
    let cancelled = bench.until_finished(cancelled).await;
    assert_eq!(cancelled.status, tenure::Status::Cancelled);
    bench.until_finished(fine).await;
    assert_eq!(ledger.names(), ["3"]);
    worker.stop().await;
}

/// It ran when its time came, and is suspended later: no claim would refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ran_at_its_time_and_is_suspended_expires() {
    let bench = bench().await;
    let gate = Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();
    let handler = move |_: Value, ctx: JobContext| {
        let held = held.clone();
        async move {
            held.notified().await;
            ctx.sleep("an hour", Duration::from_secs(3600)).await
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new().keepalive(), handler);
    let worker = Running::start(worker.concurrency("q", 1));
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).not_after(later)).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    // Its time has come, and a look has passed over it.
    bench.execute("UPDATE tenure.jobs SET not_after = now()").await;
    bench.execute("UPDATE tenure.job_expiries SET at = now()").await;
    bench.until("EXISTS (SELECT FROM tenure.job_expiries WHERE at > now() + interval '30 s' AND at < now() + interval '2 min')").await;
    gate.notify_one();
    bench.until_count("tenure.jobs WHERE status = 'queued'", 1).await;
    bench.execute("UPDATE tenure.job_expiries SET at = now()").await;
    let job = bench.until_finished(id).await;
    assert!(job.last_error.unwrap().contains("expired: not started by"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_each_rule_of_lanes_that_is_broken() {
    let bench = bench().await;
    bench.tenure.setup(&["q".to_owned()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    bench.tenure.enqueue_many([job("a", 1, 0), job("a", 2, 0)]).await.unwrap();
    bench.tenure.flush().await;
    bench.every_job_is_as_it_must_be().await;
    let a_worker = "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version) \
                    VALUES ('w', 'h', 1, '{q}', 1, '0')";
    bench.execute(a_worker).await;
    let runs = "UPDATE tenure.jobs SET status = 'processing', attempt = 1, fencing_token = 1, claim_id = \
                gen_random_uuid(), worker_id = 'w', worker_host = 'h', stale_after = '1 hour', \
                last_activity_at = clock_timestamp(), started_at = clock_timestamp(), publish_at = NULL";
    for (rule, wrong) in [
        ("runs_within_the_limit_of_its_lane", runs),
        ("has_a_place_while_held", "DELETE FROM tenure.lane_jobs"),
        ("has_a_place_while_held", "UPDATE tenure.lane_jobs SET place = NULL"),
        (
            "leaves_no_lane_free",
            "WITH gone AS (DELETE FROM tenure.lane_slots) \
             UPDATE tenure.lane_jobs SET due_at = clock_timestamp() - interval '3 seconds'",
        ),
    ] {
        let mut tx = bench.pool.begin().await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(wrong)).execute(&mut *tx).await.unwrap();
        let rules: Vec<(String, i64, Option<Vec<uuid::Uuid>>)> =
            sqlx::query_as(statement("verify")).fetch_all(&mut *tx).await.unwrap();
        let broken = rules.iter().find(|(name, ..)| name == rule).unwrap();
        assert!(broken.1 > 0, "{rule}, after {wrong}: {rules:?}");
        tx.rollback().await.unwrap();
    }
}
