//! Works: what every peer does, in a process of its own on a database of its own.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{handled, order::Order};

/// How many tasks enqueue at once, each over a connection of its own.
pub(crate) const TASKS: usize = 32;
/// The size of a batch.
const BATCH: usize = 1_000;
/// How many jobs tell their latency.
const SAMPLES: usize = 200;
/// How often the database is asked whether all is done, once every handler has run.
const ASKED_EVERY: Duration = Duration::from_millis(2);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// One task enqueues one by one.
    OneByOne,
    /// 32 tasks enqueue one by one.
    Tasks,
    /// One task enqueues in batches of 1,000.
    Batches,
    /// One worker runs what is queued.
    Drain,
    /// 32 tasks enqueue while one worker runs the jobs.
    Mixed,
    /// From the return of the insert to the first line of the handler.
    Pickup,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().ok_or(fmt::Error)?.get_name().fmt(f)
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    OneByOne,
    Tasks,
    Batches,
    Drain,
    Mixed,
    PickupP50,
    PickupP99,
    /// Of no library: what this Postgres makes of plain INSERTs of the same rows, at that moment.
    RawOne,
    RawMany,
}

/// What was measured: jobs per second, or milliseconds.
pub(crate) type Values = BTreeMap<Row, f64>;

/// One of the libraries, connected to an empty database.
pub(crate) trait Peer: Clone + Send + Sync + 'static {
    /// Connects, and creates the schema. The settings may be those that are best for one work.
    fn open(url: &str, work: Work) -> impl Future<Output = anyhow::Result<Self>>;

    /// Returns when the job is committed.
    fn enqueue(&mut self, order: Order) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns when the jobs are committed.
    fn enqueue_batch(&mut self, orders: Vec<Order>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Runs a worker. Returns only if it fails.
    fn work(self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// How many of these jobs are finished, as the database says.
    fn finished(&self, jobs: usize) -> impl Future<Output = anyhow::Result<usize>> + Send;
}

/// Does one work.
pub(crate) async fn measure<P: Peer>(work: Work, jobs: usize, url: &str) -> anyhow::Result<Values> {
    let peer = P::open(url, work).await.context("open")?;
    match work {
        Work::OneByOne => by_tasks(peer, jobs / 10, 1, Row::OneByOne).await,
        Work::Tasks => by_tasks(peer, jobs / 5, TASKS, Row::Tasks).await,
        Work::Batches => in_batches(peer, jobs).await,
        Work::Drain => drain(peer, jobs).await,
        Work::Mixed => beside_worker(peer, |peer| mixed(peer, jobs / 5)).await,
        Work::Pickup => beside_worker(peer, pickup).await,
    }
}

async fn by_tasks<P: Peer>(peer: P, jobs: usize, tasks: usize, row: Row) -> anyhow::Result<Values> {
    // Connections, plans and caches are there from then on.
    enqueue_from(&peer, 0, tasks, tasks).await?;
    let since = Instant::now();
    enqueue_from(&peer, tasks, jobs, tasks).await?;
    Ok(Values::from([(row, rate(jobs, since.elapsed()))]))
}

async fn in_batches<P: Peer>(mut peer: P, jobs: usize) -> anyhow::Result<Values> {
    peer.enqueue_batch(vec![Order::example(0)]).await?;
    let since = Instant::now();
    fill(&mut peer, jobs).await?;
    Ok(Values::from([(Row::Batches, rate(jobs, since.elapsed()))]))
}

/// From the first start of a handler to the last end, as the rows say.
///
/// What precedes the first start, the worker's own start and its first fetch, is not measured.
async fn drain<P: Peer>(mut peer: P, jobs: usize) -> anyhow::Result<Values> {
    fill(&mut peer, jobs).await?;
    let end = beside_worker(peer, |peer| async move { all_done(&peer, jobs).await }).await?;
    let begin = handled::first().context("no handler has run")?;
    Ok(Values::from([(Row::Drain, rate(jobs, end - begin))]))
}

/// From the first enqueue to the last end.
async fn mixed<P: Peer>(peer: P, jobs: usize) -> anyhow::Result<Values> {
    // The worker is there from then on, and so are all connections.
    enqueue_from(&peer, 0, TASKS, TASKS).await?;
    all_done(&peer, TASKS).await?;
    let since = Instant::now();
    enqueue_from(&peer, TASKS, jobs, TASKS).await?;
    let end = all_done(&peer, TASKS + jobs).await?;
    Ok(Values::from([(Row::Mixed, rate(jobs, end - since))]))
}

async fn pickup<P: Peer>(mut peer: P) -> anyhow::Result<Values> {
    handled::note_starts(SAMPLES);
    // Connections, plans and caches are there from then on. The bench notes no figures of these.
    let warm = 50;
    for order in 0..warm {
        peer.enqueue(Order::example(SAMPLES + order)).await?;
        sleep(Duration::from_millis(5)).await;
    }
    all_done(&peer, warm).await?;
    let mut committed = Vec::with_capacity(SAMPLES);
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for order in 0..SAMPLES {
        ticks.tick().await;
        peer.enqueue(Order::example(order)).await?;
        committed.push(Instant::now());
    }
    all_done(&peer, warm + SAMPLES).await?;
    let mut latencies = Vec::with_capacity(SAMPLES);
    for (order, committed) in committed.into_iter().enumerate() {
        let start = handled::start_of(order).with_context(|| format!("order {order} has not run"))?;
        // A handler may start before its insert has returned.
        latencies.push(start.saturating_duration_since(committed).as_secs_f64() * 1e3);
    }
    latencies.sort_unstable_by(f64::total_cmp);
    Ok(Values::from([
        (Row::PickupP50, latencies[SAMPLES.div_ceil(2) - 1]),
        (Row::PickupP99, latencies[(SAMPLES * 99).div_ceil(100) - 1]),
    ]))
}

/// Does this while a worker runs, and fails if the worker does.
async fn beside_worker<P: Peer, F, T>(peer: P, what: impl FnOnce(P) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let worker = tokio::spawn(peer.clone().work());
    tokio::select! {
        ended = worker => {
            ended?.context("the worker")?;
            bail!("the worker has ended");
        }
        done = what(peer) => done,
    }
}

/// Enqueues this many orders from this number on, one at a time by each task.
async fn enqueue_from<P: Peer>(peer: &P, first: usize, jobs: usize, tasks: usize) -> anyhow::Result<()> {
    let mut producers = JoinSet::new();
    for task in 0..tasks {
        let mut peer = peer.clone();
        producers.spawn(async move {
            for order in (first + task..first + jobs).step_by(tasks) {
                peer.enqueue(Order::example(order)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    Ok(())
}

async fn fill<P: Peer>(peer: &mut P, jobs: usize) -> anyhow::Result<()> {
    for batch in (0..jobs).step_by(BATCH) {
        peer.enqueue_batch((batch..(batch + BATCH).min(jobs)).map(Order::example).collect()).await?;
    }
    Ok(())
}

/// Waits until this many jobs are finished, each having run once. Returns the moment at which they were.
async fn all_done<P: Peer>(peer: &P, jobs: usize) -> anyhow::Result<Instant> {
    // Not the database, which is being measured: it is asked only for what the handlers cannot tell.
    while handled::count() < jobs {
        sleep(ASKED_EVERY).await;
    }
    let end = loop {
        let asked = Instant::now();
        if peer.finished(jobs).await? >= jobs {
            break asked;
        }
        sleep(ASKED_EVERY).await;
    };
    let (count, total) = (handled::count(), handled::total());
    if count != jobs || total != Order::example(0).total() * jobs as u64 {
        bail!("{jobs} jobs are finished, but {count} handlers have run, and summed up {total}");
    }
    Ok(end)
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 of them")]
fn rate(jobs: usize, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}
