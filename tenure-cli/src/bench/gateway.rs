//! Gateway: what workers in other languages get through one gateway, beside a worker in Rust with its own connections.
//!
//! A client is a program that keeps to `docs/worker-protocol.md` and serves the kinds of `docs/conformance.md`.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use futures::future::try_join_all;
use serde_json::json;
use tokio::time::sleep;

use super::{
    Plan, Ratio, Values,
    arena::{Arena, count},
    consume::{all_completed, rate_of_one_worker},
    cpu,
    endure::runs_again,
    percentile,
    pickup::latencies,
    produce::fill,
    worker::WorkerMode,
};
use tenure::JobRequest;

/// The interval between the jobs whose pick-up is measured.
const PACE: Duration = Duration::from_millis(20);
const BY_A_WORKER: &str = "drain, a worker in Rust";
const PICKED_UP: &str = "pick-up when idle, a worker in Rust, p50";

/// A program's process, which ends with it.
struct Program(Child);

impl Program {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(std::io::stderr()).spawn();
        Ok(Self(child.with_context(|| format!("start {command:?}"))?))
    }

    fn gateway(arena: &Arena) -> anyhow::Result<Self> {
        let mut command = arena.command();
        command.arg("gateway");
        Self::start(command)
    }

    fn memory_mb(&self) -> anyhow::Result<f64> {
        cpu::memory_mb(self.0.id()).context("read the gateway's memory: works on Linux only")
    }

    fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client's program, which serves one queue.
fn client(arena: &Arena, command: &str, queue: &str, slots: u32, stamps: bool) -> anyhow::Result<Program> {
    let mut program = Command::new("sh");
    program.args(["-c", &format!("exec {command} \"$@\""), "sh", queue, &slots.to_string()]);
    for (name, value) in arena.command().get_envs() {
        match value {
            Some(value) => program.env(name, value),
            None => program.env_remove(name),
        };
    }
    // A line for each step of a job would be part of the figure.
    program.env("TENURE_KIT_QUIET", "1").env("TENURE_KIT_STAMP", if stamps { "1" } else { "" });
    Program::start(program)
}

pub(super) async fn gateway(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    drains(arena, plan, values).await?;
    pickups(arena, plan, values).await?;
    for (name, command) in &plan.clients {
        recovery(arena, plan, (name, command), values).await?;
    }
    many(arena, plan, values).await
}

/// One worker process each, behind one gateway.
async fn drains(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let own = rate_of_one_worker(arena, plan).await?;
    values.add(BY_A_WORKER, "jobs/s", own);
    let _gateway = Program::gateway(arena)?;
    let queue = arena.queue();
    fill(arena, &queue, plan.jobs).await?;
    let mut worker = arena.foreign_workers(&queue, plan.slots, WorkerMode::Decode, 1)?;
    worker.ready().await?;
    let rate = drained(arena, &queue, plan.jobs).await?;
    drop(worker);
    let ratio = |rate| Some(Ratio::of(BY_A_WORKER, rate / own));
    values.add("drain through a gateway, a client in Rust", "jobs/s", rate).ratio = ratio(rate);
    for (name, command) in &plan.clients {
        let queue = arena.queue();
        fill(arena, &queue, plan.jobs).await?;
        let worker = client(arena, command, &queue, plan.slots, false)?;
        arena.workers_ready(&queue, 1).await?;
        let rate = drained(arena, &queue, plan.jobs).await?;
        drop(worker);
        let name = format!("drain through a gateway, a client in {name}");
        values.add(name, "jobs/s", rate).ratio = ratio(rate);
    }
    Ok(())
}

async fn drained(arena: &Arena, queue: &str, jobs: usize) -> anyhow::Result<f64> {
    let ended = || async {
        let state = arena.state(queue).await?;
        Ok(state.queued + state.processing == 0)
    };
    arena.wait("the queue to be drained", ended).await?;
    let state = arena.state(queue).await?;
    all_completed(&state, jobs)?;
    Ok(count(jobs) / (state.last_finished - state.first_started))
}

/// How soon a job begins on an idle machine.
async fn pickups(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let samples = (plan.jobs / 100).clamp(100, 500);
    let queue = arena.queue();
    let worker = arena.worker(&queue, 8, WorkerMode::Stamp)?;
    arena.workers_ready(&queue, 1).await?;
    let (own, late) = picked_up(arena, &queue, samples).await?;
    drop(worker);
    values.add(PICKED_UP, "ms", own);
    values.add("pick-up when idle, a worker in Rust, p99", "ms", late);
    let _gateway = Program::gateway(arena)?;
    let mut add = |name: &str, (p50, p99): (f64, f64)| {
        let of = format!("pick-up when idle, a client in {name}");
        values.add(format!("{of}, p50"), "ms", p50).ratio = Some(Ratio::of(PICKED_UP, p50 / own));
        values.add(format!("{of}, p99"), "ms", p99);
    };
    let queue = arena.queue();
    let mut worker = arena.foreign_workers(&queue, 8, WorkerMode::Stamp, 1)?;
    worker.ready().await?;
    add("Rust", picked_up(arena, &queue, samples).await?);
    drop(worker);
    for (name, command) in &plan.clients {
        let queue = arena.queue();
        let worker = client(arena, command, &queue, 8, true)?;
        arena.workers_ready(&queue, 1).await?;
        add(name, picked_up(arena, &queue, samples).await?);
        drop(worker);
    }
    Ok(())
}

async fn picked_up(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<(f64, f64)> {
    // Warms up connections, plans and caches.
    latencies(arena, queue, 50, Duration::from_millis(5)).await?;
    let all = latencies(arena, queue, samples, PACE).await?;
    Ok((percentile(&all, 0.5), percentile(&all, 0.99)))
}

/// From the SIGKILL of each of some workers, with default timers, until its job runs elsewhere.
async fn recovery(
    arena: &Arena,
    plan: &Plan,
    (name, command): (&str, &str),
    values: &mut Values,
) -> anyhow::Result<()> {
    let doomed = if plan.quick { 3 } else { 20 };
    // The workers of an earlier measurement are gone, all at once: that would hold this one back, too.
    arena.forget_workers().await?;
    let _gateway = Program::gateway(arena)?;
    // When more than half of all workers vanish at once, nothing is reset before stale_after: most stay.
    let mut others = arena.foreign_workers(&arena.queue(), 1, WorkerMode::Decode, 2 * doomed)?;
    others.ready().await?;
    let queue = arena.queue();
    let mut workers: Vec<_> =
        (0..doomed).map(|_| client(arena, command, &queue, 1, false)).collect::<anyhow::Result<_>>()?;
    arena.workers_ready(&queue, doomed).await?;
    let mut jobs = Vec::new();
    for _ in 0..doomed {
        let payload = json!({"ms": 600_000, "every_ms": 1_000});
        jobs.push(arena.tenure.enqueue(JobRequest::new(&queue, "sleep", payload)).await?.id);
    }
    arena.running(&queue, i64::try_from(doomed)?).await?;
    let _survivor = client(arena, command, &queue, u32::try_from(doomed)?, false)?;
    arena.workers_ready(&queue, doomed + 1).await?;
    sleep(Duration::from_secs(1)).await;
    let mut again = Vec::new();
    for worker in &mut workers {
        let runs_here = format!("-{}-", worker.0.id());
        let mut job = None;
        for id in &jobs {
            let row = arena.tenure.job(*id).await?.context("the row of a job")?;
            if row.worker_id.is_some_and(|owner| owner.contains(&runs_here)) {
                job = Some(*id);
            }
        }
        let job = job.context("each worker has a job, and its pid in its id")?;
        let killed = arena.now().await?;
        worker.kill();
        again.push(async move { runs_again(arena, job, killed).await });
        sleep(Duration::from_millis(300)).await;
    }
    let again: Vec<_> = try_join_all(again).await?.iter().map(|again| again.since_killed).collect();
    let within = again.iter().filter(|seconds| **seconds <= 15.0).count();
    let of = format!("from SIGKILL of a client in {name} to running elsewhere");
    values.add(format!("{of}, p50"), "s", percentile(&again, 0.5));
    values.add(format!("{of}, the longest of {doomed}"), "s", percentile(&again, 1.0));
    values.add(format!("{of}, within 15 s"), "%", 100.0 * count(within) / count(doomed));
    for job in jobs {
        arena.tenure.cancel(job).await?;
    }
    Ok(())
}

/// Many workers of one slot, each with its own connection, behind one gateway.
async fn many(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let workers = if plan.quick { 100 } else { 1_000 };
    let before = arena.free_connections().await?;
    let gateway = Program::gateway(arena)?;
    let queue = arena.queue();
    let mut clients = arena.foreign_workers(&queue, 1, WorkerMode::Decode, workers)?;
    clients.ready().await?;
    arena.workers_ready(&queue, workers).await?;
    // Each waits for a job by then.
    sleep(Duration::from_secs(10)).await;
    let idle = gateway.memory_mb()?;
    fill(arena, &queue, plan.jobs).await?;
    let (mut memory, mut free) = (idle, before);
    loop {
        memory = memory.max(gateway.memory_mb()?);
        free = free.min(arena.free_connections().await?);
        let state = arena.state(&queue).await?;
        if state.queued + state.processing == 0 {
            all_completed(&state, plan.jobs)?;
            let rate = count(plan.jobs) / (state.last_finished - state.first_started);
            values.add(format!("drain through a gateway, {workers} clients of one slot"), "jobs/s", rate);
            break;
        }
        if clients.child.try_wait()?.is_some() {
            bail!("the workers behind the gateway have ended");
        }
        sleep(Duration::from_millis(100)).await;
    }
    values.add(
        format!("Postgres connections of {workers} clients and their gateway"),
        "",
        count(before - free),
    );
    values.add(format!("memory of the gateway of {workers} clients, idle"), "MB", idle);
    values.add(format!("memory of the gateway of {workers} clients, at most"), "MB", memory);
    Ok(())
}
