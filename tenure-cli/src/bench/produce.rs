//! Produce: how fast jobs are enqueued, beside raw INSERTs of the same rows.

use std::{sync::Arc, time::Instant};

use anyhow::bail;

use super::{
    Order, Plan, Ratio, Values,
    arena::{Arena, cost, count},
};
use tenure::{JobRequest, internals::Parts as _};

/// How many tasks enqueue at once.
pub(super) const TASKS: usize = 32;
/// The size of a batch.
pub(super) const BATCH: usize = 1_000;

pub(super) fn request(queue: &str, order: usize) -> JobRequest {
    JobRequest::from(Order::example(order)).queue(queue)
}

pub(super) async fn one_by_one(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let raw = raw(arena, plan.jobs / 10, 1).await?;
    values.add("raw INSERT, one by one", "rows/s", raw);
    let (rate, cpu) = by_tasks(arena, plan.jobs / 10, 1).await?;
    let value = values.add("enqueue, one by one", "jobs/s", rate);
    (value.ratio, value.cpu_us) = (Some(Ratio::of("raw INSERT, one by one", rate / raw)), cpu);
    Ok(())
}

pub(super) async fn from_tasks(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let raw = raw(arena, plan.jobs / 5, TASKS).await?;
    values.add("raw INSERT, 32 connections", "rows/s", raw);
    let (rate, cpu) = by_tasks(arena, plan.jobs / 2, TASKS).await?;
    let value = values.add("enqueue, one by one, from 32 tasks", "jobs/s", rate);
    (value.ratio, value.cpu_us) = (Some(Ratio::of("raw INSERT, 32 connections", rate / raw)), cpu);
    Ok(())
}

/// Measures until every row is committed and every message confirmed.
pub(super) async fn in_batches(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let before = arena.state(&queue).await?;
    let cpu = arena.cpu(&[]);
    fill(arena, &queue, plan.jobs).await?;
    let after = arena.state(&queue).await?;
    all_confirmed(arena, &queue, &after, plan.jobs).await?;
    let rate = count(plan.jobs) / (after.now - before.now);
    let cpu = cost(&cpu, &arena.cpu(&[]), plan.jobs);
    values.add("enqueue, batches of 1,000, published and confirmed", "jobs/s", rate).cpu_us = cpu;
    Ok(())
}

/// Measures INSERTs of rows of the same size, one per statement, into a plain table.
async fn raw(arena: &Arena, rows: usize, connections: usize) -> anyhow::Result<f64> {
    let payload = serde_json::to_string(&Order::example(1))?;
    let store = arena.tenure.store();
    let table = arena.raw_table();
    store.bench_raw_table(&table, true).await?;
    let since = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let (store, table, payload) = (store.clone(), table.clone(), payload.clone());
        let rows = rows / connections;
        tasks.spawn(async move { store.bench_raw_inserts(&table, &payload, rows, None).await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let seconds = store.bench_raw_seconds(&table).await?;
    tracing::debug!(?seconds, elapsed = ?since.elapsed(), "raw inserts");
    store.bench_raw_table(&table, false).await?;
    Ok(count(rows / connections * connections) / seconds)
}

/// Each task enqueues one job at a time. Returns the rate at which rows appear; in the end all are published.
async fn by_tasks(
    arena: &Arena,
    jobs: usize,
    tasks: usize,
) -> anyhow::Result<(f64, std::collections::BTreeMap<&'static str, f64>)> {
    let queue: Arc<str> = arena.queue().into();
    // Warms up connections, plans and caches.
    enqueue_from(arena, &queue, tasks, tasks).await?;
    arena.tenure.flush().await;
    let before = arena.state(&queue).await?;
    let cpu = arena.cpu(&[]);
    enqueue_from(arena, &queue, jobs, tasks).await?;
    arena.tenure.flush().await;
    let cpu = cost(&cpu, &arena.cpu(&[]), jobs);
    let after = arena.state(&queue).await?;
    all_confirmed(arena, &queue, &after, jobs + tasks).await?;
    Ok((count(jobs) / (after.last_created - before.now), cpu))
}

pub(super) async fn enqueue_from(
    arena: &Arena,
    queue: &Arc<str>,
    jobs: usize,
    tasks: usize,
) -> anyhow::Result<()> {
    let mut producers = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (tenure, queue) = (arena.tenure.clone(), queue.clone());
        producers.spawn(async move {
            for order in (task..jobs).step_by(tasks) {
                tenure.enqueue(request(&queue, order)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    Ok(())
}

/// Enqueues in batches, and waits until all is published.
pub(super) async fn fill(arena: &Arena, queue: &str, jobs: usize) -> anyhow::Result<()> {
    for batch in (0..jobs).step_by(BATCH) {
        let orders = batch..(batch + BATCH).min(jobs);
        arena.enqueue_many(orders.map(|order| request(queue, order)).collect()).await?;
    }
    arena.tenure.flush().await;
    Ok(())
}

/// Checks that the database has every row, and that the stream's messages name every job.
pub(super) async fn all_confirmed(
    arena: &Arena,
    queue: &str,
    state: &tenure::internals::BenchState,
    jobs: usize,
) -> anyhow::Result<()> {
    let named = arena.jobs_named(queue).await?;
    let all = [state.queued.cast_unsigned(), named].iter().all(|found| *found == jobs as u64);
    if !all || state.unpublished != 0 {
        bail!(
            "{jobs} jobs were enqueued, but the messages of the stream name {named}, and the database has {state:?}"
        );
    }
    Ok(())
}
