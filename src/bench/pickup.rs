//! Pickup: how soon a job begins, by each way that jobs come.
//!
//! A job that may begin at once counts from its commit; one that falls due counts from the moment at which it was due,
//! as its row says, a tick's job from the tick. When it began, its handler says.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use sqlx::Connection;
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    Order, Plan, Ratio, Values,
    arena::{Arena, count},
    percentile,
    produce::request,
    worker::WorkerMode,
};
use crate::{
    client::{enqueue::JobRequest, schedules::Schedule},
    job::{Job, JobId},
    store::BenchStarted,
};

/// How far apart the jobs are that tell their latency.
const PACE: Duration = Duration::from_millis(20);
/// How many enqueues of the load may be under way: half a second's, of a worker that keeps up.
const LOAD_WAITING_MAX: u16 = 5_000;
/// How many schedules tick, each once a second.
const SCHEDULES: usize = 10;

/// The plain way, when idle and at half load; then all others.
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
        Some(Ratio::of("raw INSERT, one every 20 ms, p50", p50 / raw));
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
            // A machine that falls behind gets no more than it takes: what waits for it would fill the memory.
            owed = owed.min(f64::from(LOAD_WAITING_MAX) - count(enqueues.len()));
            while owed >= 1.0 {
                owed -= 1.0;
                let (tenure, queue) = (tenure.clone(), loaded.clone());
                enqueues.spawn(async move { tenure.enqueue(request(&queue, 1)).await });
            }
        }
    });
    let busy = latencies_beside(arena, &queue, samples, PACE, load).await?;
    values.add("pick-up at half load, p50", "ms", percentile(&busy, 0.5));
    values.add("pick-up at half load, p99", "ms", percentile(&busy, 0.99));
    by_each_way(arena, &queue, plan, values, p50).await?;
    drop(worker);
    Ok(())
}

/// Beside the plain way's median.
async fn by_each_way(
    arena: &Arena,
    queue: &str,
    plan: &Plan,
    values: &mut Values,
    plain_p50: f64,
) -> anyhow::Result<()> {
    let samples = (plan.jobs / 1_000).clamp(20, 100);
    let ways = [
        ("tick of a schedule", ticked(arena, queue, samples).await?),
        ("own transaction", in_a_transaction(arena, queue, samples).await?),
        ("row written by SQL", written_by_sql(arena, queue, samples).await?),
        ("delay of 1 s", delayed(arena, queue, samples).await?),
        ("retry that falls due", retried(arena, queue, samples).await?),
        ("fresh process, from its end", by_a_process(arena, queue, samples / 5).await?),
    ];
    for (way, latencies) in ways {
        let p50 = percentile(&latencies, 0.5);
        values.add(format!("pick-up, {way}, p50"), "ms", p50).ratio =
            Some(Ratio::of("pick-up when idle, p50", p50 / plain_p50));
        values.add(format!("pick-up, {way}, p99"), "ms", percentile(&latencies, 0.99));
    }
    Ok(())
}

/// Enqueued in a transaction of the user's own, which then commits.
async fn in_a_transaction(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let mut connection = arena.tenure.store().bench_connection().await?;
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let mut transaction = connection.begin().await?;
        let id = arena.tenure.enqueue(request(queue, order)).tx(&mut transaction).await?.id;
        transaction.commit().await?;
        begins.after_now(id);
    }
    connection.close().await?;
    begins.told().await
}

/// A row that some program has written, due at once.
async fn written_by_sql(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let store = arena.tenure.store();
    let mut connection = store.bench_connection().await?;
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let payload = serde_json::to_string(&Order::example(order))?;
        begins.after_now(store.bench_plain_job(&mut connection, queue, &payload).await?);
    }
    connection.close().await?;
    begins.told().await
}

/// Not before a second has passed.
async fn delayed(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let job = arena.tenure.enqueue(request(queue, order)).delay(Duration::from_secs(1)).await?;
        begins.after_due(job.id);
    }
    begins.told().await
}

/// The first attempt fails; the second is due a second later.
async fn retried(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let order = Order { note: Order::RETRIES.into(), ..Order::example(order) };
        let job = arena.tenure.enqueue(JobRequest::from(order).queue(queue)).await?;
        begins.after_due(job.id);
    }
    begins.told().await
}

/// Schedules tick at every full second.
async fn ticked(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let begins = Begins::look(arena);
    let names: Vec<_> = (0..SCHEDULES).map(|n| format!("{queue}-{n}")).collect();
    for name in &names {
        let schedule = Schedule::new(name, "* * * * * *", request(queue, 1)).tick_field("tick");
        arena.tenure.put_schedule(schedule).await?;
    }
    arena.wait("the schedules' ticks", || async { Ok(begins.all().await?.len() >= samples) }).await?;
    for name in &names {
        arena.tenure.remove_schedule(name).await?;
    }
    // Those of the last tick may still be on their way: they are not waited for.
    Ok(begins.all().await?.values().map(|began| begins.since_due(began)).collect())
}

/// A program that is started, enqueues one job, and ends.
async fn by_a_process(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut latencies = Vec::with_capacity(samples);
    for order in 0..samples {
        let begins = Begins::look(arena);
        let payload = serde_json::to_string(&Order::example(order))?;
        let mut program = tokio::process::Command::from(arena.command());
        program.args(["enqueue", queue, Order::KIND, &payload]).kill_on_drop(true);
        let status = program.stdin(Stdio::null()).stdout(Stdio::null()).status().await;
        let ended = now_us();
        if !status.context("start `tenure enqueue`")?.success() {
            bail!("`tenure enqueue` has failed");
        }
        arena.wait("a process's job", || async { Ok(!begins.all().await?.is_empty()) }).await?;
        // It may begin before the process has ended.
        latencies.extend(begins.all().await?.values().map(|began| ms((began.started_us - ended).max(0))));
    }
    Ok(latencies)
}

/// When jobs began that are enqueued from a moment on.
pub(super) struct Begins<'a> {
    arena: &'a Arena,
    /// No job of this way has a lower id.
    since: JobId,
    /// From when on each counts; `None`: from the time at which it was due.
    from: BTreeMap<JobId, Option<i64>>,
}

impl<'a> Begins<'a> {
    pub(super) fn look(arena: &'a Arena) -> Self {
        Self { arena, since: JobId::generate(), from: BTreeMap::new() }
    }

    /// This job was committed just now.
    pub(super) fn after_now(&mut self, id: JobId) {
        self.from.insert(id, Some(now_us()));
    }

    fn after_due(&mut self, id: JobId) {
        self.from.insert(id, None);
    }

    /// All that have ended so far, of any queue of the bench.
    async fn all(&self) -> anyhow::Result<BTreeMap<JobId, BenchStarted>> {
        self.arena.started(self.since).await
    }

    /// Waits until every job has ended. How long each took to begin, in milliseconds.
    pub(super) async fn told(&self) -> anyhow::Result<Vec<f64>> {
        let has_ended = || async {
            let all = self.all().await?;
            Ok(self.from.keys().all(|id| all.contains_key(id)))
        };
        self.arena.wait("jobs to end", has_ended).await?;
        let all = self.all().await?;
        let latency = |(id, from): (&JobId, &Option<i64>)| {
            let began = all.get(id)?;
            Some(from.map_or_else(|| self.since_due(began), |from| ms((began.started_us - from).max(0))))
        };
        Ok(self.from.iter().filter_map(latency).collect())
    }

    fn since_due(&self, began: &BenchStarted) -> f64 {
        ms((began.started_us + self.arena.clock_ahead_us() - began.due_us).max(0))
    }
}

/// Ticks that are this far apart, also after one that came late.
pub(super) fn paced(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
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
pub(super) async fn latencies(
    arena: &Arena,
    queue: &str,
    jobs: usize,
    every: Duration,
) -> anyhow::Result<Vec<f64>> {
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
    let mut begins = Begins::look(arena);
    let mut pace = paced(every);
    for order in 0..jobs {
        pace.tick().await;
        begins.after_now(arena.tenure.enqueue(request(queue, order)).await?.id);
    }
    drop(others);
    arena.tenure.flush().await;
    arena.drained(queue).await?;
    begins.told().await
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
