//! Idle: what fleets cost while there is nothing to do, and how soon they notice a worker's death; and what a worker of
//! very many queues does.

use std::{collections::BTreeMap, time::Duration};

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

/// How many jobs a worker that has none could run at once.
const SLOTS: usize = 10;
/// How many connections a worker has, at most, while it is idle.
const CONNECTIONS_EACH: usize = 7;
/// How far apart the jobs are that tell their latency.
const PACE: Duration = Duration::from_millis(20);

/// How much is looked at.
struct Scale {
    fleets: &'static [usize],
    /// How many workers of each fleet are killed, one after the other.
    kills: usize,
    queues: &'static [usize],
    /// What a start costs, and what the server counts late, is over after this.
    settles: Duration,
    /// For how long is counted.
    counted: Duration,
    samples: usize,
}

const FULL: Scale = Scale {
    fleets: &[1, 2, 20, 200],
    kills: 5,
    queues: &[1_000, 10_000],
    // A fleet is as large as its workers know it to be after a minute: they ask the less often the larger it is.
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

/// What was used in one second.
struct Used {
    transactions: f64,
    messages: Option<f64>,
    /// Seconds of CPU.
    cpu: BTreeMap<&'static str, f64>,
}

/// Fleets of idle workers, each a process of its own; then one worker of very many queues beside one of a single one.
pub(super) async fn idle(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let scale = if plan.quick { &QUICK } else { &FULL };
    // Workers that other works have killed would be looked for.
    arena.forget_workers().await?;
    // What the bench itself and the server's own processes do.
    sleep(scale.settles).await;
    let without_workers = used(arena, &[], scale).await?;
    for &workers in scale.fleets {
        let (free, needs) = (arena.free_connections().await?, workers * CONNECTIONS_EACH);
        if free < needs {
            tracing::warn!(
                workers,
                free,
                needs,
                "Postgres has too few connections for this many workers: left out"
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
        tell(values, &fleet, &used(arena, &started, scale).await?, &without_workers, workers);
        let took = killed(arena, &queue, &mut started, scale.kills).await?;
        let how = if workers == 1 { "and a new start to running again" } else { "to running elsewhere" };
        values.add(format!("{fleet}: SIGKILL {how}, p50"), "s", percentile(&took, 0.5));
        values.add(format!("{fleet}: SIGKILL {how}, longest"), "s", percentile(&took, 1.0));
        stop(started).await?;
    }
    many_queues(arena, plan, scale, &without_workers, values).await
}

/// How soon a job runs again whose worker is killed, in seconds. After each kill a new worker is started: that of a
/// fleet once the job runs elsewhere; a single one at once, since nothing else would run the job.
async fn killed(
    arena: &Arena,
    queue: &str,
    workers: &mut Vec<WorkerProcess>,
    kills: usize,
) -> anyhow::Result<Vec<f64>> {
    let (mut took, mut jobs) = (Vec::new(), Vec::new());
    for kill in 0..kills {
        // A job that was lost before would wait longer each time.
        let job = arena.tenure.enqueue(request(queue, kill)).await?.id;
        jobs.push(job);
        arena.running(queue, i64::try_from(kill)? + 1).await?;
        // At any moment of the rhythm of renewals.
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
    // Workers that stop wait for what they run.
    for job in jobs {
        arena.tenure.cancel(job).await?;
    }
    Ok(took)
}

/// How soon a worker of very many queues is ready, what it costs when idle, and how soon a job of one of them begins.
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
    // Connections, plans and caches are there from then on.
    latencies(arena, &queue, 50, Duration::from_millis(5)).await?;
    let alone = percentile(&latencies(arena, &queue, scale.samples, PACE).await?, 0.5);
    values.add("worker of one queue: pick-up, p50", "ms", alone);
    stop(vec![worker]).await?;

    for &queues in scale.queues {
        of_queues(arena, plan, scale, without_workers, queues, alone, values).await?;
    }
    Ok(())
}

/// `alone` is how soon the job of a worker of a single queue begins, in milliseconds.
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
    tell(values, &format!("{name}, idle"), &used(arena, &workers, scale).await?, without_workers, 1);
    latencies(arena, &queues[0], 50, Duration::from_millis(5)).await?;
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..scale.samples {
        pace.tick().await;
        let queue = &queues[rand::random_range(0..queues.len())];
        begins.after_now(arena.tenure.enqueue(request(queue, order)).await?.id);
    }
    let of_many = percentile(&begins.told().await?, 0.5);
    values.add(format!("{name}: pick-up in any of them, p50"), "ms", of_many).ratio =
        Some(Ratio::of("worker of one queue: pick-up, p50", of_many / alone));
    stop(workers.into()).await
}

/// The transactions are those that `pg_stat_database` counts as committed, less what it counts without any worker.
/// Outside a user's transaction tenure's statements are one each.
fn tell(values: &mut Values, who: &str, used: &Used, without_workers: &Used, workers: usize) {
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

async fn used(arena: &Arena, workers: &[WorkerProcess], scale: &Scale) -> anyhow::Result<Used> {
    let before = counters(arena, workers).await?;
    let since = Instant::now();
    sleep(scale.counted).await;
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
