//! Consume: how fast workers run jobs.

use std::sync::Arc;

use anyhow::bail;

use super::{
    Plan, Ratio, Values,
    arena::{Arena, cost, count},
    produce::{TASKS, enqueue_from, fill},
    worker::WorkerMode,
};

/// Measures from the first start to the last end in the rows.
pub(super) async fn drain(
    arena: &Arena,
    plan: &Plan,
    workers: usize,
    values: &mut Values,
) -> anyhow::Result<()> {
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let left = usize::try_from(arena.state(&queue).await?.unpublished)?;
    let before = arena.cpu(&[]);
    let started: Vec<_> = (0..workers)
        .map(|_| arena.worker(&queue, plan.slots, WorkerMode::Decode))
        .collect::<anyhow::Result<_>>()?;
    arena.workers_ready(&queue, workers).await?;
    arena.drained(&queue).await?;
    let mut cpu = cost(&before, &arena.cpu(&started), plan.jobs);
    // The workers' CPU time began at 0.
    let clients: f64 = arena.cpu(&started).get("client").copied().unwrap_or_default();
    cpu.entry("client").and_modify(|us| *us = clients * 1e6 / count(plan.jobs));
    let state = arena.state(&queue).await?;
    all_completed(&state, plan.jobs)?;
    let name = if workers == 1 { "drain, one worker" } else { "drain, two workers" };
    let rate = count(plan.jobs) / (state.last_finished - state.first_started);
    values.add(name, "jobs/s", rate).cpu_us = cpu;
    // While it drains, a worker publishes the messages that the enqueuer could not: that is part of the rate.
    values.add(format!("{name}: published by the relay"), "jobs", count(left));
    Ok(())
}

/// Measures how fast one worker drains a queue.
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

/// Measures from the first delivery to the last ack: no row says when its job began and ended.
pub(super) async fn without_history(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let (kept, with) = ("drain, one worker, history kept", rate_of_one_worker(arena, plan).await?);
    values.add(kept, "jobs/s", with);
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let messages = arena.messages(&queue).await?;
    let before = arena.cpu(&[]);
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Forget)?;
    let seconds = arena.drained_within(&queue, messages).await?;
    let mut cpu = cost(&before, &arena.cpu(&[]), plan.jobs);
    let client = arena.cpu(&[worker]).get("client").copied().unwrap_or_default();
    cpu.insert("client", client * 1e6 / count(plan.jobs));
    let state = arena.state(&queue).await?;
    if state.queued + state.processing + state.completed != 0 {
        bail!("of jobs that keep no history, the database has {state:?}");
    }
    let rate = count(plan.jobs) / seconds;
    let value = values.add("drain, one worker, no history", "jobs/s", rate);
    (value.ratio, value.cpu_us) = (Some(Ratio::of(kept, rate / with)), cpu);
    Ok(())
}

/// Measures from the first row to the last end.
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

pub(super) fn all_completed(state: &tenure::internals::BenchState, jobs: usize) -> anyhow::Result<()> {
    if usize::try_from(state.completed) != Ok(jobs) {
        bail!("{jobs} jobs were enqueued, but the database has {state:?}");
    }
    Ok(())
}
