//! Pickup: how soon a job begins, for each way to enqueue.
//!
//! A job that may begin at once counts from its commit; one that falls due counts from the due time in its row, the job
//! of a tick from the tick. Its handler records when it began.

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
use tenure::{
    Job, JobId, JobRequest,
    internals::{BenchStarted, Parts as _},
    schedules::Schedule,
};

/// The interval between the jobs whose latency is measured.
const PACE: Duration = Duration::from_millis(20);
/// The most enqueues of the load in flight: half a second's worth of a worker that keeps up.
const LOAD_WAITING_MAX: u16 = 5_000;
/// How many schedules tick, each once a second.
const SCHEDULES: usize = 10;

/// Measures plain enqueues, idle and at half load; then every other way.
pub(super) async fn pickup(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue: Arc<str> = arena.queue().into();
    let worker = arena.worker(&queue, plan.slots, WorkerMode::Stamp)?;
    arena.workers_ready(&queue, 1).await?;
    // Warms up connections, plans and caches.
    latencies(arena, &queue, 50, Duration::from_millis(5)).await?;
    // On an idle machine every hop wakes a sleeping processor: the cost of one hop to Postgres is measured beside it.
    let samples = (plan.jobs / 100).clamp(100, 500);
    let raw = idle_inserts(arena, samples / 2).await?;
    values.add("raw INSERT, one every 20 ms, p50", "ms", raw);
    let idle = latencies(arena, &queue, samples, PACE).await?;
    let p50 = percentile(&idle, 0.5);
    values.add("pick-up when idle, p50", "ms", p50).ratio =
        Some(Ratio::of("raw INSERT, one every 20 ms, p50", p50 / raw));
    values.add("pick-up when idle, p99", "ms", percentile(&idle, 0.99));

    // Half of the rate of `mixed` on this machine; in a short run, at most its jobs in a second.
    let rate = half_load(values).min(count(plan.jobs));
    // The load has the same queue and the same worker as the measured jobs.
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
            // A machine that falls behind gets no more load: the waiting enqueues would fill the memory.
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

/// Measures each other way, beside the median of plain enqueues.
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
        ("enqueued by SQL", enqueued_by_sql(arena, queue, samples).await?),
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

/// Enqueues in the user's own transaction, which then commits.
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
    begins.latencies().await
}

/// Enqueues by SQL, as any driver does.
async fn enqueued_by_sql(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
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
    begins.latencies().await
}

/// Enqueues with a delay of one second.
async fn delayed(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let job = arena.tenure.enqueue(request(queue, order)).delay(Duration::from_secs(1)).await?;
        begins.after_due(job.id);
    }
    begins.latencies().await
}

/// Enqueues jobs whose first attempt fails and whose second is due a second later.
async fn retried(arena: &Arena, queue: &str, samples: usize) -> anyhow::Result<Vec<f64>> {
    let mut begins = Begins::look(arena);
    let mut pace = paced(PACE);
    for order in 0..samples {
        pace.tick().await;
        let order = Order { note: Order::RETRIES.into(), ..Order::example(order) };
        let job = arena.tenure.enqueue(JobRequest::from(order).queue(queue)).await?;
        begins.after_due(job.id);
    }
    begins.latencies().await
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
    // Does not wait for the jobs of the last tick, which may still be in flight.
    Ok(begins.all().await?.values().map(|began| begins.since_due(began)).collect())
}

/// Starts a program that enqueues one job and ends.
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
        // The job may begin before the process has ended.
        latencies.extend(begins.all().await?.values().map(|began| ms((began.started_us - ended).max(0))));
    }
    Ok(latencies)
}

/// Records when the jobs begin that are enqueued after its creation.
pub(super) struct Begins<'a> {
    arena: &'a Arena,
    /// No measured job has a lower ID.
    since: JobId,
    /// The moment from which each job counts; `None`: its due time.
    from: BTreeMap<JobId, Option<i64>>,
}

impl<'a> Begins<'a> {
    pub(super) fn look(arena: &'a Arena) -> Self {
        Self { arena, since: JobId::generate(), from: BTreeMap::new() }
    }

    /// Counts a job from now: it has just been committed.
    pub(super) fn after_now(&mut self, id: JobId) {
        // The id may be the database's, whose clock is another.
        self.since = self.since.min(id);
        self.from.insert(id, Some(now_us()));
    }

    fn after_due(&mut self, id: JobId) {
        self.from.insert(id, None);
    }

    /// The jobs that have ended so far, of every queue of the bench.
    async fn all(&self) -> anyhow::Result<BTreeMap<JobId, BenchStarted>> {
        self.arena.started(self.since).await
    }

    /// Waits until every job has ended. Returns how long each took to begin, in milliseconds.
    pub(super) async fn latencies(&self) -> anyhow::Result<Vec<f64>> {
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

/// Ticks that are this far apart, even after a late one.
pub(super) fn paced(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The median time of a raw INSERT on an idle machine, in milliseconds.
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

/// The latencies of jobs enqueued one by one at this interval, in milliseconds.
pub(super) async fn latencies(
    arena: &Arena,
    queue: &str,
    jobs: usize,
    every: Duration,
) -> anyhow::Result<Vec<f64>> {
    latencies_beside(arena, queue, jobs, every, JoinSet::new()).await
}

/// [`latencies`] beside other tasks.
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
    begins.latencies().await
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a few seconds")]
fn ms(us: i64) -> f64 {
    us as f64 / 1e3
}

/// The time of the machine's clock in microseconds, which both processes read.
#[expect(clippy::disallowed_methods, reason = "the moments are two processes', not the database's")]
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
