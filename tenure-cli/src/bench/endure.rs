//! Endure: a worker's death, its reports, its memory.

use std::time::Duration;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use tokio::time::sleep;

use super::{
    Values,
    arena::{Arena, cost},
    produce::request,
    worker::WorkerMode,
};
use tenure::{JobId, internals::Parts as _};

/// How many jobs are in flight.
const IN_FLIGHT: u32 = 1_000;
/// For how long reports are counted.
const COUNTED_S: u32 = 10;

/// Measures, with default timers, from the kill to the next start of the job by the database's clock.
pub(super) async fn recovery(arena: &Arena, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let mut first = arena.worker(&queue, 1, WorkerMode::Hold)?;
    let id = arena.tenure.enqueue(request(&queue, 1)).await?.id;
    arena.running(&queue, 1).await?;
    let second = arena.worker(&queue, 1, WorkerMode::Hold)?;
    arena.workers_ready(&queue, 2).await?;
    // One second is enough: a fresh worker notices a dead one as soon as an older worker does.
    sleep(Duration::from_secs(1)).await;
    let killed = arena.now().await?;
    first.kill();
    let again = runs_again(arena, id, killed).await?;
    values.add("from SIGKILL to running elsewhere", "s", again.since_killed);
    values.add("of these, from the reset on", "ms", again.since_reset * 1e3);
    drop(second);
    Ok(())
}

/// How soon a job ran again after its worker was killed, in seconds by the database's clock.
pub(super) struct Again {
    pub(super) since_killed: f64,
    pub(super) since_reset: f64,
}

/// Waits until the job that ran at the moment `killed` runs again.
pub(super) async fn runs_again(arena: &Arena, job: JobId, killed: f64) -> anyhow::Result<Again> {
    #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 are below 2^52")]
    let seconds = |at: DateTime<Utc>| at.timestamp_micros() as f64 / 1e6;
    for _ in 0..1_200 {
        sleep(Duration::from_millis(50)).await;
        let attempts = arena.tenure.executions(job).await?;
        let mut starts = attempts.iter().map(|attempt| seconds(attempt.started_at));
        if let Some(started) = starts.find(|started| *started > killed) {
            let events = arena.tenure.recoveries(job).await?;
            let reset = events.iter().map(|event| seconds(event.at)).rfind(|at| *at < started);
            let since_reset = started - reset.context("a job runs again only after a reset")?;
            return Ok(Again { since_killed: started - killed, since_reset });
        }
    }
    bail!("the job of a killed worker did not run again within a minute");
}

/// 1,000 jobs report ten times a second each.
pub(super) async fn progress(arena: &Arena, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let worker = arena.worker(&queue, IN_FLIGHT, WorkerMode::Report)?;
    arena.workers_ready(&queue, 1).await?;
    // Postgres reports its counters late: earlier work must not count for this worker.
    sleep(Duration::from_secs(2)).await;
    let idle = counted(arena, std::slice::from_ref(&worker)).await?;
    start_jobs(arena, &queue).await?;
    sleep(Duration::from_secs(3)).await;
    let busy = counted(arena, std::slice::from_ref(&worker)).await?;
    values.add("1,000 jobs report 10 times a second: rows written", "rows/s", busy.updates);
    values.add("1,000 jobs report 10 times a second: HOT updates", "%", busy.hot_percent);
    values.add(
        "1,000 jobs report 10 times a second: statements beyond an idle worker's",
        "/s",
        (busy.transactions - idle.transactions).max(0.0),
    );
    for (part, name) in [
        ("postgres", "1,000 jobs report 10 times a second: Postgres"),
        ("client", "1,000 jobs report 10 times a second: the worker"),
    ] {
        if let Some(percent) = busy.cpu_percent(part) {
            values.add(name, "% of a core", percent);
        }
    }
    drop(worker);
    Ok(())
}

/// The resident memory of one worker.
pub(super) async fn memory(arena: &Arena, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let worker = arena.worker(&queue, IN_FLIGHT, WorkerMode::Hold)?;
    arena.workers_ready(&queue, 1).await?;
    sleep(Duration::from_secs(3)).await;
    values.add("memory of a worker, idle", "MB", worker.memory_mb()?);
    start_jobs(arena, &queue).await?;
    sleep(Duration::from_secs(2)).await;
    values.add("memory of a worker, 1,000 in flight", "MB", worker.memory_mb()?);
    drop(worker);
    Ok(())
}

async fn start_jobs(arena: &Arena, queue: &str) -> anyhow::Result<()> {
    arena.tenure.enqueue_many((0..IN_FLIGHT).map(|order| request(queue, order as usize))).await?;
    arena.running(queue, IN_FLIGHT.into()).await
}

/// Rates per second.
struct Counted {
    updates: f64,
    hot_percent: f64,
    transactions: f64,
    cpu_us: std::collections::BTreeMap<&'static str, f64>,
}

impl Counted {
    fn cpu_percent(&self, part: &str) -> Option<f64> {
        Some(self.cpu_us.get(part)? / 1e6 / f64::from(COUNTED_S) * 100.0)
    }
}

async fn counted(arena: &Arena, workers: &[super::arena::WorkerProcess]) -> anyhow::Result<Counted> {
    // Postgres reports its counters up to a second late.
    let before = (arena.tenure.store().bench_counters().await?, arena.cpu(workers));
    sleep(Duration::from_secs(COUNTED_S.into())).await;
    let after = (arena.tenure.store().bench_counters().await?, arena.cpu(workers));
    let per_second = |counter: fn(&tenure::internals::BenchCounters) -> i64| {
        let grown = counter(&after.0) - counter(&before.0);
        f64::from(i32::try_from(grown).unwrap_or(i32::MAX)) / f64::from(COUNTED_S)
    };
    let updates = per_second(|counters| counters.updates);
    let hot = per_second(|counters| counters.hot_updates);
    Ok(Counted {
        updates,
        hot_percent: if updates > 0.0 { hot / updates * 100.0 } else { 0.0 },
        transactions: per_second(|counters| counters.transactions),
        cpu_us: cost(&before.1, &after.1, 1),
    })
}
