//! Groups: draining jobs that wait for each other, beside plain ones; and many jobs that are suspended.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Plan, Ratio, Values,
    arena::{Arena, LONGEST, WorkerProcess, cost, count},
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
    let ready = Ready::new(arena, plan).await?;
    fill(arena, &ready.queue, plan.jobs).await?;
    let beside = ready.drain(None, plan.jobs).await?;
    values.add(PLAIN, "jobs/s", beside.rate).cpu_us = beside.cpu_us;
    let mut add = |name: &'static str, groups: Drained| {
        let value = values.add(name, "jobs/s", groups.rate);
        (value.ratio, value.cpu_us) = (Some(Ratio::of(PLAIN, groups.rate / beside.rate)), groups.cpu_us);
    };

    let ready = Ready::new(arena, plan).await?;
    let members = (0..plan.jobs - 1).map(|order| request(&ready.queue, order));
    let last = arena.tenure.group(members).then(request(&ready.queue, plan.jobs)).await?.id;
    add("drain, one worker, all jobs before one follower", ready.drain(Some(last), plan.jobs).await?);

    let ready = Ready::new(arena, plan).await?;
    let last = fan_out_and_in(arena, &ready.queue, plan.jobs).await?;
    add("drain, one worker, one job before all, and one after", ready.drain(Some(last), plan.jobs).await?);

    let ready = Ready::new(arena, plan).await?;
    let mut last = None;
    for _ in 0..plan.jobs / MEMBERS {
        last = Some(fan_out_and_in(arena, &ready.queue, MEMBERS).await?);
    }
    let many = ready.drain(last, plan.jobs / MEMBERS * MEMBERS).await?;
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

/// A worker of a queue that is paused until its jobs are there: as in a fleet, a worker lives when jobs are enqueued.
struct Ready<'a> {
    arena: &'a Arena,
    queue: String,
    worker: [WorkerProcess; 1],
}

struct Drained {
    /// Jobs a second.
    rate: f64,
    cpu_us: BTreeMap<&'static str, f64>,
}

impl<'a> Ready<'a> {
    async fn new(arena: &'a Arena, plan: &Plan) -> anyhow::Result<Self> {
        let queue = arena.queue();
        arena.tenure.pause_queue(&queue).await?;
        let worker = [arena.worker(&queue, plan.slots, WorkerMode::Decode)?];
        arena.workers_ready(&queue, 1).await?;
        Ok(Self { arena, queue, worker })
    }

    /// Measures from the first start to the last end in the rows. `last`: a job that runs as one of the last.
    async fn drain(self, last: Option<JobId>, jobs: usize) -> anyhow::Result<Drained> {
        let Self { arena, queue, worker } = self;
        arena.tenure.flush().await;
        let before = arena.cpu(&worker);
        arena.tenure.resume_queue(&queue).await?;
        if let Some(last) = last {
            arena.tenure.wait(last, LONGEST).await?;
        }
        arena.drained(&queue).await?;
        // A moment without a message may come before the last release.
        let all = i64::try_from(jobs)?;
        arena
            .wait("all jobs to complete", || async { Ok(arena.state(&queue).await?.completed >= all) })
            .await?;
        let after = arena.cpu(&worker);
        drop(worker);
        let state = arena.state(&queue).await?;
        all_completed(&state, jobs)?;
        let rate = count(jobs) / (state.last_finished - state.first_started);
        Ok(Drained { rate, cpu_us: cost(&before, &after, jobs) })
    }
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
