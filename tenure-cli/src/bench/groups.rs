//! Groups: draining jobs that wait for each other, beside plain ones; and many jobs that are suspended.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Plan, Ratio, Values,
    arena::{Arena, LONGEST, cost, count},
    consume::{all_completed, rate_of_one_worker},
    percentile,
    pickup::now_us,
    produce::{fill, request},
    worker::WorkerMode,
};
use tenure::JobId;

/// How many jobs are suspended, and fewer of them.
const SUSPENDED: usize = 100_000;
const SUSPENDED_QUICK: usize = 5_000;
/// How long a job sleeps: so long, and longer by a millisecond for each job before it.
pub(super) const NAP: Duration = Duration::from_secs(60);

const PLAIN: &str = "drain, one worker, plain jobs";
/// The jobs of one of many groups.
const MEMBERS: usize = 100;

/// Measures jobs onto one follower, from one job over many onto one, and many such groups, beside plain jobs.
pub(super) async fn groups(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let beside = drained(arena, plan, &queue, &[], plan.jobs).await?;
    values.add(PLAIN, "jobs/s", beside.rate).cpu_us = beside.cpu_us;
    let mut add = |name: &'static str, groups: Drained| {
        let value = values.add(name, "jobs/s", groups.rate);
        (value.ratio, value.cpu_us) = (Some(Ratio::of(PLAIN, groups.rate / beside.rate)), groups.cpu_us);
    };

    let queue = arena.queue();
    let members = (0..plan.jobs - 1).map(|order| request(&queue, order));
    let last = arena.tenure.group(members).then(request(&queue, plan.jobs)).await?.id;
    arena.tenure.flush().await;
    let fan_in = drained(arena, plan, &queue, &[last], plan.jobs).await?;
    add("drain, one worker, all jobs before one follower", fan_in);

    let queue = arena.queue();
    let last = fan_out_and_in(arena, &queue, plan.jobs).await?;
    let one = drained(arena, plan, &queue, &[last], plan.jobs).await?;
    add("drain, one worker, one job before all, and one after", one);

    let queue = arena.queue();
    let mut last = Vec::new();
    for _ in 0..plan.jobs / MEMBERS {
        last.push(fan_out_and_in(arena, &queue, MEMBERS).await?);
    }
    arena.tenure.flush().await;
    let many = drained(arena, plan, &queue, &last, last.len() * MEMBERS).await?;
    add("drain, one worker, the same in groups of a hundred", many);
    Ok(())
}

/// Enqueues `jobs` jobs: one, those that follow it, and a last one that follows these. Returns the last one.
async fn fan_out_and_in(arena: &Arena, queue: &str, jobs: usize) -> anyhow::Result<JobId> {
    let graph = arena.tenure.graph();
    let first = graph.add(request(queue, 0));
    let parts: Vec<_> = (1..jobs - 1).map(|order| graph.add(request(queue, order)).after([&first])).collect();
    drop(graph.add(request(queue, jobs)).after(&parts));
    Ok(graph.await?.id)
}

struct Drained {
    /// Jobs a second.
    rate: f64,
    cpu_us: BTreeMap<&'static str, f64>,
}

/// Measures from the first start to the last end in the rows. `last`: the jobs that run last.
async fn drained(
    arena: &Arena,
    plan: &Plan,
    queue: &str,
    last: &[JobId],
    jobs: usize,
) -> anyhow::Result<Drained> {
    let before = arena.cpu(&[]);
    let worker = [arena.worker(queue, plan.slots, WorkerMode::Decode)?];
    arena.workers_ready(queue, 1).await?;
    for last in last {
        arena.tenure.wait(*last, LONGEST).await?;
    }
    arena.drained(queue).await?;
    // The worker's CPU time began at 0.
    let after = arena.cpu(&worker);
    let before = before.into_iter().filter(|(part, _)| *part != "client").collect();
    let cpu_us = cost(&before, &after, jobs);
    drop(worker);
    let state = arena.state(queue).await?;
    all_completed(&state, jobs)?;
    Ok(Drained { rate: count(jobs) / (state.last_finished - state.first_started), cpu_us })
}

/// Measures plain jobs while many others are suspended, and how late these wake.
pub(super) async fn suspended(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let (alone, before) = ("drain, one worker, nothing suspended", rate_of_one_worker(arena, plan).await?);
    values.add(alone, "jobs/s", before);
    let queue = arena.queue();
    let jobs = if plan.quick { SUSPENDED_QUICK } else { SUSPENDED };
    let since = JobId::generate();
    fill(arena, &queue, jobs).await?;
    let naps = arena.worker(&queue, plan.slots, WorkerMode::Nap)?;
    arena.workers_ready(&queue, 1).await?;
    let all = i64::try_from(jobs)?;
    arena
        .wait("all jobs to be suspended", || async {
            Ok(arena.state(&queue).await?.unpublished + arena.state(&queue).await?.completed >= all)
        })
        .await?;
    let while_suspended = rate_of_one_worker(arena, plan).await?;
    // The plain jobs kept both cores busy, and may have delayed the first wakes.
    let quiet_since = now_us() + arena.clock_ahead_us();
    let left = arena.state(&queue).await?.unpublished;
    values.add("jobs suspended meanwhile", "jobs", count(usize::try_from(left)?));
    values.add("drain, one worker, beside them", "jobs/s", while_suspended).ratio =
        Some(Ratio::of(alone, while_suspended / before));
    // To ask meanwhile would cost the database a part of its time.
    tokio::time::sleep(NAP + Duration::from_millis(jobs as u64)).await;
    let is_done = || async { Ok(arena.state(&queue).await?.completed >= all) };
    arena.wait("all jobs to be woken", is_done).await?;
    drop(naps);
    all_completed(&arena.state(&queue).await?, jobs)?;
    let started = arena.started(since).await?;
    let late: Vec<_> = started
        .values()
        .filter(|of| of.due_us > quiet_since)
        .map(|of| f64::from(i32::try_from(of.started_us - of.due_us).unwrap_or(i32::MAX)) / 1e3)
        .collect();
    values.add("woken after its time, p50", "ms", percentile(&late, 0.5));
    values.add("woken after its time, p99", "ms", percentile(&late, 0.99));
    Ok(())
}
