//! Call: how long a caller waits for a job's output, and what telling of ends costs.

use std::time::{Duration, Instant};

use futures::{StreamExt, future::try_join_all};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{
    Order, Plan, Ratio, Values,
    arena::{Arena, cost, count},
    consume::all_completed,
    percentile,
    produce::{fill, request},
    worker::WorkerMode,
};
use tenure::{JobId, JobRequest, internals::Parts as _, queues::QueueEvents};

/// The interval between calls on an idle machine.
const PACE: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_secs(10);
/// How many callers call at once.
const CALLERS: usize = 32;
/// How many jobs are waited for at once.
const WAITERS: usize = 10_000;
/// By then the pauses between two looks have grown to their longest, and the server has counted what came before.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
const WATCHED_FOR: Duration = Duration::from_secs(5);
/// No more ends come after such a pause.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// Measures calls, idle and from many callers; then the statements of many waiters; then the cost of events.
pub(super) async fn call(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Stamp)?;
    arena.workers_ready(&queue, 1).await?;
    let samples = (plan.jobs / 60).clamp(50, 500);
    // Warms up connections, plans and caches.
    calls(arena, &queue, 30, Duration::from_millis(5)).await?;
    let idle = calls(arena, &queue, samples, PACE).await?;
    values.add("call when idle, enqueue to output, p50", "ms", percentile(&idle, 0.5));
    values.add("call when idle, enqueue to output, p99", "ms", percentile(&idle, 0.99));
    let each = (plan.jobs / CALLERS / 10).max(10);
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| calls(arena, &queue, each, Duration::ZERO));
    let busy: Vec<f64> = try_join_all(callers).await?.concat();
    let rate = count(CALLERS * each) / began.elapsed().as_secs_f64();
    values.add("calls from 32 callers", "calls/s", rate);
    values.add("call of one of 32 callers, p50", "ms", percentile(&busy, 0.5));
    values.add("call of one of 32 callers, p99", "ms", percentile(&busy, 0.99));
    drop(worker);
    waiters(arena, values).await?;
    events(arena, plan, values).await
}

/// Calls one after the other, at this pace. Returns how long each took, in milliseconds.
async fn calls(arena: &Arena, queue: &str, samples: usize, pace: Duration) -> anyhow::Result<Vec<f64>> {
    let mut ticks = interval(pace.max(Duration::from_micros(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut took = Vec::with_capacity(samples);
    for order in 0..samples {
        ticks.tick().await;
        let began = Instant::now();
        let stamp: i64 = arena.tenure.call(request(queue, order)).within(WITHIN).await?;
        std::hint::black_box(stamp);
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Counts the statements of one waiter, and of many.
async fn waiters(arena: &Arena, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let orders = (0..WAITERS).map(|n| JobRequest::from(Order::example(n)).queue(&queue));
    let mut jobs: Vec<JobId> = Vec::with_capacity(WAITERS);
    for some in orders.collect::<Vec<_>>().chunks(1_000) {
        jobs.extend(arena.tenure.enqueue_many(some.to_vec()).await?.iter().map(|job| job.id));
    }
    for (name, waiters) in [("transactions of one waiter", 1), ("transactions of 10,000 waiters", WAITERS)] {
        let waits: Vec<_> = jobs[..waiters]
            .iter()
            .map(|job| {
                let (tenure, job) = (arena.tenure.clone(), *job);
                tokio::spawn(async move { tenure.wait(job, Duration::MAX).await })
            })
            .collect();
        tokio::time::sleep(SETTLED_AFTER).await;
        let before = arena.tenure.store().bench_counters().await?.transactions;
        let began = Instant::now();
        tokio::time::sleep(WATCHED_FOR).await;
        let commits = arena.tenure.store().bench_counters().await?.transactions - before;
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds")]
        let rate = commits as f64 / began.elapsed().as_secs_f64();
        values.add(name, "1/s", rate);
        waits.iter().for_each(tokio::task::JoinHandle::abort);
    }
    arena.clear(&queue).await
}

/// Drains a queue that publishes its ends to a subscriber, beside one that publishes nothing.
async fn events(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let mut rates = [0.0; 2];
    for (events, name) in [
        (QueueEvents::Nothing, "drain, one worker, no events"),
        (QueueEvents::Ends, "drain, one worker, ends published"),
    ] {
        let queue = arena.queue();
        arena.tenure.set_events(&queue, events).await?;
        let mut ends = arena.tenure.nats().ends_of(&queue).await?;
        let counted = tokio::spawn(async move {
            let mut seen = 0_usize;
            while timeout(QUIET_AFTER, ends.next()).await.is_ok_and(|end| end.is_some()) {
                seen += 1;
            }
            seen
        });
        fill(arena, &queue, plan.jobs).await?;
        let before = arena.cpu(&[]);
        let worker = arena.worker(&queue, plan.slots, WorkerMode::Decode)?;
        arena.workers_ready(&queue, 1).await?;
        arena.drained(&queue).await?;
        let mut cpu = cost(&before, &arena.cpu(&[]), plan.jobs);
        let client = arena.cpu(&[worker]).get("client").copied().unwrap_or_default();
        cpu.insert("client", client * 1e6 / count(plan.jobs));
        let state = arena.state(&queue).await?;
        all_completed(&state, plan.jobs)?;
        let rate = count(plan.jobs) / (state.last_finished - state.first_started);
        let is_plain = events == QueueEvents::Nothing;
        rates[usize::from(!is_plain)] = rate;
        let value = values.add(name, "jobs/s", rate);
        value.cpu_us = cpu;
        if !is_plain {
            value.ratio = Some(Ratio::of("drain, one worker, no events", rate / rates[0]));
            values.add("ends that the subscriber received", "messages", count(counted.await?));
        }
    }
    Ok(())
}
