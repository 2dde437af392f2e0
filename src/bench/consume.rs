//! Consume: how fast jobs are run, and how soon.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    Order, Plan, Ratio, Values,
    arena::{Arena, cost, count},
    percentile,
    produce::{TASKS, enqueue_from, fill, request},
    worker::WorkerMode,
};

/// How far apart the jobs are that tell their latency.
const PACE: Duration = Duration::from_millis(20);

/// From the first start to the last end, as their rows say.
pub(super) async fn drain(
    arena: &Arena,
    plan: &Plan,
    workers: usize,
    values: &mut Values,
) -> anyhow::Result<()> {
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let before = arena.cpu(&[]);
    let started: Vec<_> = (0..workers)
        .map(|_| arena.worker(&queue, plan.slots, WorkerMode::Decode))
        .collect::<anyhow::Result<_>>()?;
    arena.workers_ready(&queue, workers).await?;
    arena.drained(&queue).await?;
    let mut cpu = cost(&before, &arena.cpu(&started), plan.jobs);
    // They began at nothing.
    let clients: f64 = arena.cpu(&started).get("client").copied().unwrap_or_default();
    cpu.entry("client").and_modify(|us| *us = clients * 1e6 / count(plan.jobs));
    let state = arena.state(&queue).await?;
    all_completed(&state, plan.jobs)?;
    let name = if workers == 1 { "drain, one worker" } else { "drain, two workers" };
    let rate = count(plan.jobs) / (state.last_finished - state.first_started);
    values.add(name, "jobs/s", rate).cpu_us = cpu;
    Ok(())
}

/// How fast one worker runs what is queued.
pub(super) async fn rate_of_one_worker(arena: &Arena, plan: &Plan) -> anyhow::Result<f64> {
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Decode)?;
    arena.workers_ready(&queue, 1).await?;
    arena.drained(&queue).await?;
    drop(worker);
    let state = arena.state(&queue).await?;
    all_completed(&state, plan.jobs)?;
    Ok(count(plan.jobs) / (state.last_finished - state.first_started))
}

/// From the first row to the last end.
pub(super) async fn mixed(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue: Arc<str> = arena.queue().into();
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Decode)?;
    arena.workers_ready(&queue, 1).await?;
    let jobs = plan.jobs / 3;
    enqueue_from(arena, &queue, jobs, TASKS).await?;
    arena.tenure.flush().await;
    arena.drained(&queue).await?;
    let state = arena.state(&queue).await?;
    all_completed(&state, jobs)?;
    let rate = count(jobs) / (state.last_finished - state.first_created);
    values.add("enqueue from 32 tasks while one worker drains", "jobs/s", rate);
    drop(worker);
    Ok(())
}

/// From the moment at which enqueue returns, its row being committed, to the first line of the handler.
pub(super) async fn pickup(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue: Arc<str> = arena.queue().into();
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Stamp)?;
    arena.workers_ready(&queue, 1).await?;
    // Connections, plans and caches are there from then on.
    latencies(arena, &queue, 50, Duration::from_millis(5)).await?;
    // Every hop of an idle machine wakes a processor that sleeps: what one to Postgres costs is told beside it.
    let samples = (plan.jobs / 100).clamp(100, 500);
    let raw = idle_inserts(arena, samples / 2).await?;
    values.add("raw INSERT, one every 20 ms, p50", "ms", raw);
    let idle = latencies(arena, &queue, samples, PACE).await?;
    let p50 = percentile(&idle, 0.5);
    values.add("pick-up when idle, p50", "ms", p50).ratio =
        Some(Ratio { value: p50 / raw, of: "raw INSERT, one every 20 ms, p50" });
    values.add("pick-up when idle, p99", "ms", percentile(&idle, 0.99));

    // Half of what a run of `mixed` takes on the machine at hand.
    let rate = half_load(values);
    // Of the same queue and the same worker, beside the jobs that are looked at.
    let mut load = JoinSet::new();
    let (tenure, loaded) = (arena.tenure.clone(), queue.clone());
    load.spawn(async move {
        let mut ticks = interval(Duration::from_millis(10));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut owed = 0.0;
        let mut enqueues = JoinSet::new();
        loop {
            ticks.tick().await;
            while enqueues.try_join_next().is_some() {}
            owed += rate / 100.0;
            while owed >= 1.0 {
                owed -= 1.0;
                let (tenure, queue) = (tenure.clone(), loaded.clone());
                enqueues.spawn(async move { tenure.enqueue(request(&queue, 1)).await });
            }
        }
    });
    let busy = latencies_beside(arena, &queue, samples, PACE, load).await;
    let busy = busy?;
    values.add("pick-up at half load, p50", "ms", percentile(&busy, 0.5));
    values.add("pick-up at half load, p99", "ms", percentile(&busy, 0.99));
    drop(worker);
    Ok(())
}

/// The time of a raw INSERT when nothing else happens.
async fn idle_inserts(arena: &Arena, rows: usize) -> anyhow::Result<f64> {
    let store = arena.tenure.store();
    let table = arena.raw_table();
    store.bench_raw_table(&table, true).await?;
    let payload = serde_json::to_string(&Order::example(1))?;
    let taken = store.bench_raw_inserts(&table, &payload, rows, Some(PACE)).await?;
    store.bench_raw_table(&table, false).await?;
    let taken: Vec<_> = taken.iter().map(|taken| taken.as_secs_f64() * 1e3).collect();
    Ok(percentile(&taken, 0.5))
}

fn half_load(values: &Values) -> f64 {
    let mixed = values.0.iter().rfind(|value| value.work == "enqueue from 32 tasks while one worker drains");
    mixed.map_or(5_000.0, |mixed| mixed.value / 2.0)
}

/// In milliseconds, of jobs enqueued one every so often.
async fn latencies(arena: &Arena, queue: &str, jobs: usize, every: Duration) -> anyhow::Result<Vec<f64>> {
    latencies_beside(arena, queue, jobs, every, JoinSet::new()).await
}

/// The same, while others do something.
async fn latencies_beside(
    arena: &Arena,
    queue: &str,
    jobs: usize,
    every: Duration,
    others: JoinSet<()>,
) -> anyhow::Result<Vec<f64>> {
    let mut committed = BTreeMap::new();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for order in 0..jobs {
        ticks.tick().await;
        let id = arena.tenure.enqueue(request(queue, order)).await?.id;
        committed.insert(id, now_us());
    }
    drop(others);
    arena.tenure.flush().await;
    arena.drained(queue).await?;
    let started = arena.outputs(queue).await?;
    let of_job = |(id, committed): (_, &i64)| started.get(id).map(|started| (started - committed).max(0));
    let latencies: Vec<_> = committed.iter().filter_map(of_job).map(ms).collect();
    if latencies.len() != jobs {
        bail!("{jobs} were enqueued, but {} have told when they began", latencies.len());
    }
    Ok(latencies)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a few seconds")]
fn ms(us: i64) -> f64 {
    us as f64 / 1e3
}

/// Of the machine's clock, which both processes read.
#[expect(clippy::disallowed_methods, reason = "the moments are two processes', not the database's")]
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn all_completed(state: &crate::store::BenchState, jobs: usize) -> anyhow::Result<()> {
    if usize::try_from(state.completed) != Ok(jobs) {
        bail!("{jobs} were enqueued, but the database says {state:?}");
    }
    Ok(())
}
