//! Steps: what it costs to record the steps of jobs.

use std::time::Duration;

use super::{
    Plan, Values,
    arena::{Arena, cost, count},
    consume::all_completed,
    percentile,
    produce::{fill, request},
    worker::WorkerMode,
};

/// The steps of a job of [`WorkerMode::Steps`].
pub(super) const STEPS_OF_A_JOB: usize = 20;
/// How many jobs are called one after the other.
const ALONE: usize = 40;

const WITHIN: Duration = Duration::from_secs(10);

/// Measures steps of a job that runs alone, then those of many jobs at once.
pub(super) async fn steps(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let worker = arena.worker(&queue, 1, WorkerMode::Steps)?;
    arena.workers_ready(&queue, 1).await?;
    let mut took = Vec::with_capacity(ALONE);
    for order in 0..ALONE {
        let micros: u32 = arena.tenure.call(request(&queue, order)).within(WITHIN).await?;
        took.push(f64::from(micros) / 1e3);
    }
    drop(worker);
    values.add("a step of a job alone, p50 of its mean", "ms", percentile(&took, 0.5));

    let queue = arena.queue();
    let jobs = (plan.jobs / STEPS_OF_A_JOB).max(50);
    fill(arena, &queue, jobs).await?;
    let before = arena.cpu(&[]);
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Steps)?;
    arena.workers_ready(&queue, 1).await?;
    arena.drained(&queue).await?;
    let steps = jobs * STEPS_OF_A_JOB;
    let mut cpu = cost(&before, &arena.cpu(&[]), steps);
    let client = arena.cpu(&[worker]).get("client").copied().unwrap_or_default();
    cpu.insert("client", client * 1e6 / count(steps));
    let state = arena.state(&queue).await?;
    all_completed(&state, jobs)?;
    let rate = count(steps) / (state.last_finished - state.first_started);
    values.add("steps of many jobs at once", "steps/s", rate).cpu_us = cpu;
    Ok(())
}
