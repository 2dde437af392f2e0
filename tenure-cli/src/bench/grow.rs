//! Grow: how the cost of workers and of queues grows with their number, idle and under a load that stays the same.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    Plan, Ratio, Values,
    arena::{Arena, WorkerProcess, count, stop},
    idle::{Used, used},
    produce::request,
    worker::WorkerMode,
};

/// The slots of each worker in each queue.
const SLOTS: u32 = 10;
/// How often the load is enqueued.
const LOADED_EVERY: Duration = Duration::from_millis(10);

/// The size of the measurement.
struct Scale {
    /// How many workers serve one queue, each a process of its own.
    fleets: &'static [usize],
    /// How many queues one worker serves.
    queues: &'static [usize],
    /// Workers know the size of their fleet after a minute; the larger it is, the less often each asks.
    fleet_settles: Duration,
    /// After this time the cost of a start is over.
    settles: Duration,
    /// How long to count.
    counted: Duration,
    /// Jobs in each hundredth of a second of the load.
    load: usize,
}

const FULL: Scale = Scale {
    fleets: &[1, 4, 16, 64],
    queues: &[1, 10, 100],
    fleet_settles: Duration::from_secs(65),
    settles: Duration::from_secs(10),
    counted: Duration::from_secs(10),
    load: 5,
};

const QUICK: Scale = Scale {
    fleets: &[1, 2],
    queues: &[2],
    fleet_settles: Duration::from_millis(200),
    settles: Duration::from_millis(200),
    counted: Duration::from_secs(1),
    load: 1,
};

/// The figures of one row of the table, with their units; the first row of a kind is what the others are compared with.
type Costs = Vec<(&'static str, &'static str, f64)>;

/// The costs idle, then those under the load, each with its name.
type Both = [(&'static str, Costs); 2];

pub(super) async fn grow(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let scale = if plan.quick { &QUICK } else { &FULL };
    // Neither workers of other works nor their end count for these.
    arena.forget_workers().await?;
    sleep(scale.settles).await;
    let growth = Growth { arena, scale, without: used(arena, &[], scale.counted).await? };
    let mut first = None;
    for &workers in scale.fleets {
        let costs = growth.of(workers, 1, scale.fleet_settles).await?;
        let who = if workers == 1 { "worker" } else { "workers" };
        add(values, format!("{workers} {who} of one queue"), costs, &mut first);
    }
    let mut first = None;
    for &queues in scale.queues {
        let costs = growth.of(1, queues, scale.settles).await?;
        let what = if queues == 1 { "queue" } else { "queues" };
        add(values, format!("a worker of {queues} {what}"), costs, &mut first);
    }
    Ok(())
}

/// Adds the figures of a row, with their ratios to those of the first one.
fn add(values: &mut Values, who: String, costs: Both, first: &mut Option<(String, Both)>) {
    for (at, (how, costs)) in costs.iter().enumerate() {
        for (part, (what, unit, value)) in costs.iter().enumerate() {
            let ratio = first.as_ref().and_then(|(first, of)| {
                let base = of[at].1.get(part)?.2;
                // Of next to nothing, every multiple is large.
                (base >= 0.1).then(|| Ratio::of(format!("{first}, {how}: {what}"), value / base))
            });
            values.add(format!("{who}, {how}: {what}"), unit, *value).ratio = ratio;
        }
    }
    first.get_or_insert((who, costs));
}

struct Growth<'a> {
    arena: &'a Arena,
    scale: &'static Scale,
    /// What the servers do without any worker.
    without: Used,
}

impl Growth<'_> {
    /// The costs of these workers, each of which serves these queues: idle, then under the load.
    async fn of(&self, workers: usize, queues: usize, settle: Duration) -> anyhow::Result<Both> {
        let (arena, counted) = (self.arena, self.scale.counted);
        let free = arena.free_connections().await?;
        let queues: Arc<[String]> = (0..queues).map(|_| arena.queue()).collect();
        let mut started = Vec::new();
        for _ in 0..workers {
            started.push(arena.worker_of(&queues, SLOTS, WorkerMode::Decode, &[])?);
        }
        for worker in &mut started {
            worker.ready().await?;
        }
        sleep(settle).await;
        let idle = used(arena, &started, counted).await?;
        let idle = self.costs(&idle, &started, free).await?;
        let load = self.load(&queues);
        // Postgres reports its counters up to a second late.
        sleep(counted.min(Duration::from_secs(2))).await;
        let busy = used(arena, &started, counted).await?;
        let busy = self.costs(&busy, &started, free).await?;
        if load.is_finished() {
            bail!("the load has ended: {:?}", load.await?);
        }
        load.abort();
        for queue in &*queues {
            arena.drained(queue).await?;
        }
        stop(started).await?;
        arena.forget_workers().await?;
        let busy_name = if self.scale.load == FULL.load { "500 jobs/s" } else { "100 jobs/s" };
        Ok([("idle", idle), (busy_name, busy)])
    }

    /// Enqueues the same number of jobs in every moment, one queue after the other, until it is aborted.
    fn load(&self, queues: &Arc<[String]>) -> JoinHandle<anyhow::Result<()>> {
        let (tenure, queues, jobs) = (self.arena.tenure.clone(), queues.clone(), self.scale.load);
        tokio::spawn(async move {
            let mut ticks = interval(LOADED_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut turn = queues.iter().cycle();
            loop {
                ticks.tick().await;
                let orders = (0..jobs).zip(&mut turn).map(|(order, queue)| request(queue, order));
                let orders: Vec<_> = orders.collect();
                tenure.enqueue_many(orders).await?;
            }
        })
    }

    async fn costs(&self, used: &Used, workers: &[WorkerProcess], free: usize) -> anyhow::Result<Costs> {
        let mut costs = vec![("statements", "/s", (used.transactions - self.without.transactions).max(0.0))];
        for (part, name) in [("postgres", "Postgres"), ("nats", "NATS"), ("client", "all workers")] {
            let seconds = used.cpu.get(part).copied().unwrap_or_default();
            let before =
                if part == "client" { 0.0 } else { self.without.cpu.get(part).copied().unwrap_or_default() };
            costs.push((name, "% of a core", (seconds - before).max(0.0) * 100.0));
        }
        if let Some(messages) = used.messages {
            costs.push(("NATS messages, in and out", "/s", messages));
        }
        let taken = free.saturating_sub(self.arena.free_connections().await?);
        costs.push(("connections", "", count(taken)));
        let memory: f64 = workers.iter().map(WorkerProcess::memory_mb).sum::<anyhow::Result<f64>>()?;
        costs.push(("memory of a worker", "MB", memory / count(workers.len())));
        Ok(costs)
    }
}
