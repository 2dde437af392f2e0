//! Idle: the cost of idle fleets, how soon they notice a worker's death, and the cost and speed of a worker of very
//! many queues.

use std::{collections::BTreeMap, time::Duration};
use tenure::internals::Parts as _;

use anyhow::Context;
use tokio::time::{Instant, sleep};

use super::{
    Plan, Ratio, Values,
    arena::{Arena, WorkerProcess, count, stop},
    endure, percentile,
    pickup::{Begins, latencies, paced},
    produce::request,
    worker::WorkerMode,
};

/// The slots of each idle worker.
const SLOTS: u32 = 10;
/// How many connections a worker has, at most, while it is idle.
const CONNECTIONS_EACH: usize = 7;
/// The interval between the jobs whose latency is measured.
const PACE: Duration = Duration::from_millis(20);

/// The size of the measurement.
struct Scale {
    fleets: &'static [usize],
    /// How many workers of each fleet are killed, one after the other.
    kills: usize,
    queues: &'static [usize],
    /// After this time the cost of a start is over, and the late counters of the server have arrived.
    settles: Duration,
    /// How long to count.
    counted: Duration,
    samples: usize,
}

const FULL: Scale = Scale {
    fleets: &[1, 2, 20, 200],
    kills: 5,
    queues: &[1_000, 10_000],
    // Workers know the size of their fleet after a minute; the larger it is, the less often each asks.
    settles: Duration::from_secs(70),
    counted: Duration::from_secs(20),
    samples: 200,
};

const QUICK: Scale = Scale {
    fleets: &[1, 5],
    kills: 1,
    queues: &[50],
    settles: Duration::from_secs(1),
    counted: Duration::from_secs(2),
    samples: 20,
};

/// Usage per second.
pub(super) struct Used {
    pub(super) transactions: f64,
    pub(super) messages: Option<f64>,
    /// Seconds of CPU.
    pub(super) cpu: BTreeMap<&'static str, f64>,
}

/// Fleets of idle workers, each a process of its own; then one worker of very many queues beside one of a single one.
pub(super) async fn idle(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let scale = if plan.quick { &QUICK } else { &FULL };
    // The fleets would look for workers that other measurements have killed.
    arena.forget_workers().await?;
    // The baseline: the bench itself and the server's own processes.
    sleep(scale.settles).await;
    let without_workers = used(arena, &[], scale.counted).await?;
    for &workers in scale.fleets {
        let (free, needs) = (arena.free_connections().await?, workers * CONNECTIONS_EACH);
        if free < needs {
            tracing::warn!(
                workers,
                free,
                needs,
                "Postgres has too few connections for this many workers; the bench leaves this fleet out"
            );
            continue;
        }
        let queue = arena.queue();
        let mut started: Vec<_> = (0..workers)
            .map(|_| arena.worker(&queue, SLOTS, WorkerMode::Hold))
            .collect::<anyhow::Result<_>>()?;
        arena.workers_ready(&queue, workers).await?;
        sleep(scale.settles).await;
        let fleet = if workers == 1 {
            "1 idle worker".to_owned()
        } else {
            format!("{workers} idle worker processes")
        };
        add_usage(values, &fleet, &used(arena, &started, scale.counted).await?, &without_workers, workers);
        let took = killed(arena, &queue, &mut started, scale.kills).await?;
        let how = if workers == 1 { "and a new start to running again" } else { "to running elsewhere" };
        values.add(format!("{fleet}: SIGKILL {how}, p50"), "s", percentile(&took, 0.5));
        values.add(format!("{fleet}: SIGKILL {how}, longest"), "s", percentile(&took, 1.0));
        stop(started).await?;
    }
    many_queues(arena, plan, scale, &without_workers, values).await
}

/// How soon a job runs again after its worker is killed, in seconds. Each killed worker is replaced: in a fleet once
/// the job runs elsewhere; a single one at once, because no other worker would run the job.
async fn killed(
    arena: &Arena,
    queue: &str,
    workers: &mut Vec<WorkerProcess>,
    kills: usize,
) -> anyhow::Result<Vec<f64>> {
    let (mut took, mut jobs) = (Vec::new(), Vec::new());
    for kill in 0..kills {
        // A job that was lost before would wait longer each time, so each kill gets a new one.
        let job = arena.tenure.enqueue(request(queue, kill)).await?.id;
        jobs.push(job);
        arena.running(queue, i64::try_from(kill)? + 1).await?;
        // Kill at a random moment between renewals.
        sleep(Duration::from_millis(rand::random_range(500..6_000))).await;
        let attempts = arena.tenure.executions(job).await?;
        let owner = &attempts.last().context("a job that runs has an attempt")?.worker_id;
        let is_owner = |worker: &WorkerProcess| owner.contains(&format!("-{}-", worker.child.id()));
        let at = workers.iter().position(is_owner).context("the job's owner is a worker of this fleet")?;
        let killed = arena.now().await?;
        workers.swap_remove(at).kill();
        let is_alone = workers.is_empty();
        if is_alone {
            workers.push(arena.worker(queue, SLOTS, WorkerMode::Hold)?);
        }
        took.push(endure::runs_again(arena, job, killed).await?.since_killed);
        if !is_alone {
            workers.push(arena.worker(queue, SLOTS, WorkerMode::Hold)?);
        }
    }
    // Workers that stop wait for their running jobs.
    for job in jobs {
        arena.tenure.cancel(job).await?;
    }
    Ok(took)
}

/// Measures how soon a worker of very many queues is ready, its cost when idle, and its pick-up latency.
async fn many_queues(
    arena: &Arena,
    plan: &Plan,
    scale: &Scale,
    without_workers: &Used,
    values: &mut Values,
) -> anyhow::Result<()> {
    let queue = arena.queue();
    let mut worker = arena.worker(&queue, SLOTS, WorkerMode::Stamp)?;
    worker.ready().await?;
    // Warms up connections, plans and caches.
    latencies(arena, &queue, 50, Duration::from_millis(5)).await?;
    let alone = percentile(&latencies(arena, &queue, scale.samples, PACE).await?, 0.5);
    values.add("worker of one queue: pick-up, p50", "ms", alone);
    stop(vec![worker]).await?;

    for &queues in scale.queues {
        of_queues(arena, plan, scale, without_workers, queues, alone, values).await?;
    }
    Ok(())
}

/// `alone` is the pick-up latency of a worker of a single queue, in milliseconds.
async fn of_queues(
    arena: &Arena,
    plan: &Plan,
    scale: &Scale,
    without_workers: &Used,
    queues: usize,
    alone: f64,
    values: &mut Values,
) -> anyhow::Result<()> {
    arena.forget_queues().await?;
    let name = format!("worker of {queues} queues");
    let queues: Vec<_> = (0..queues).map(|_| arena.queue()).collect();
    let since = Instant::now();
    let mut worker = arena.worker_of(&queues, SLOTS.min(plan.slots), WorkerMode::Stamp, &[])?;
    worker.ready().await?;
    values.add(format!("{name}: until it takes jobs of all"), "s", since.elapsed().as_secs_f64());
    sleep(scale.settles).await;
    let workers = [worker];
    add_usage(
        values,
        &format!("{name}, idle"),
        &used(arena, &workers, scale.counted).await?,
        without_workers,
        1,
    );
    latencies(arena, &queues[0], 50, Duration::from_millis(5)).await?;
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..scale.samples {
        pace.tick().await;
        let queue = &queues[rand::random_range(0..queues.len())];
        begins.after_now(arena.tenure.enqueue(request(queue, order)).await?.id);
    }
    let of_many = percentile(&begins.latencies().await?, 0.5);
    values.add(format!("{name}: pick-up in any of them, p50"), "ms", of_many).ratio =
        Some(Ratio::of("worker of one queue: pick-up, p50", of_many / alone));
    stop(workers.into()).await
}

/// Adds the figures of `who`. The transactions are those that `pg_stat_database` counts as committed, minus its count
/// without workers. Outside a user's transaction, each statement of tenure is one transaction.
fn add_usage(values: &mut Values, who: &str, used: &Used, without_workers: &Used, workers: usize) {
    let transactions = (used.transactions - without_workers.transactions).max(0.0);
    values.add(format!("{who}: statements (xact_commit)"), "/s", transactions);
    let percent = |part: &str| used.cpu.get(part).map(|seconds| seconds * 100.0);
    if let Some(percent) = percent("postgres") {
        values.add(format!("{who}: Postgres"), "% of a core", percent);
    }
    if let Some(percent) = percent("nats") {
        values.add(format!("{who}: NATS"), "% of a core", percent);
    }
    if let Some(percent) = percent("client") {
        values.add(format!("{who}: each worker"), "% of a core", percent / count(workers));
    }
    if let Some(messages) = used.messages {
        values.add(format!("{who}: NATS messages, in and out"), "/s", messages);
    }
}

/// Counts for this long.
pub(super) async fn used(
    arena: &Arena,
    workers: &[WorkerProcess],
    counted: Duration,
) -> anyhow::Result<Used> {
    let before = counters(arena, workers).await?;
    let since = Instant::now();
    sleep(counted).await;
    let after = counters(arena, workers).await?;
    let seconds = since.elapsed().as_secs_f64();
    let rate = |before: f64, after: f64| (after - before) / seconds;
    let of_part = |(part, after): (&&'static str, &f64)| {
        (*part, rate(before.cpu.get(part).copied().unwrap_or_default(), *after))
    };
    Ok(Used {
        transactions: rate(before.transactions, after.transactions),
        messages: before.messages.zip(after.messages).map(|(before, after)| rate(before, after)),
        cpu: after.cpu.iter().map(of_part).collect(),
    })
}

async fn counters(arena: &Arena, workers: &[WorkerProcess]) -> anyhow::Result<Used> {
    let transactions = arena.tenure.store().bench_counters().await?.transactions;
    Ok(Used {
        transactions: count(usize::try_from(transactions)?),
        messages: arena.nats_messages().await?,
        cpu: arena.cpu(workers),
    })
}
