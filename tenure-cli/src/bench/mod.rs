//! Bench: measures what tenure costs. The work of `tenure bench`.
//!
//! Workers are separate processes, as they are for users. Every rate comes from the rows and the clock of the database:
//! it counts what was committed, not what the program believes.
//!
//! Not here: the arguments and the printed table (`cli::bench`).

mod age;
mod arena;
mod call;
mod consume;
mod cpu;
mod endure;
mod exec;
mod foreign;
mod gateway;
mod groups;
mod grow;
mod idle;
mod lanes;
mod monitor;
mod pages;
mod pickup;
mod produce;
mod purge;
mod relay;
mod steps;
mod worker;

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use arena::Arena;
use tenure::{Config, Job};
pub(crate) use worker::{WorkerMode, work};

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Work {
    /// Enqueue one by one, beside raw INSERTs.
    OneByOne,
    /// Enqueue one by one from each of 32 tasks, beside raw INSERTs over 32 connections.
    Tasks,
    /// Enqueue in batches of 1,000.
    Batches,
    /// One worker, then two, drain a queue.
    Drain,
    /// One worker drains a queue of a kind that keeps no history, beside one that keeps it.
    NoHistory,
    /// 32 tasks enqueue while one worker runs the jobs.
    Mixed,
    /// From a job's commit, or its due time, to its handler's start, for each way to enqueue.
    Pickup,
    /// From a call to its output; the statements of many waiters; draining while ends are published. Not part of the
    /// default.
    Call,
    /// Lanes: draining many, the turn of another lane, a rate, a limit, many held jobs. Private servers only; not part
    /// of the default.
    Lanes,
    /// The steps of jobs: of one alone, and of many at once. Not part of the default.
    Steps,
    /// Jobs that wait for each other, beside plain ones. Not part of the default.
    Groups,
    /// Plain jobs while many are suspended, and how late these wake. Not part of the default.
    Suspended,
    /// Commands in Python as handlers: a process for each job, beside processes that stay. Not part of the default.
    Exec,
    /// Workers in other languages behind one gateway: draining, pick-up, a thousand workers, recovery. Private servers
    /// only; not part of the default.
    Gateway,
    /// From the kill of a worker until its job runs elsewhere.
    Recovery,
    /// 1,000 jobs report ten times a second each.
    Progress,
    /// The memory of a worker, idle and with 1,000 jobs in flight.
    Memory,
    /// Many jobs that fall due at one moment, or whose stream was deleted. Not part of the default.
    Relay,
    /// The cost of idle workers, and of a worker of many queues. Not part of the default.
    Idle,
    /// How the cost of workers and of queues grows with their number. Private servers only; not part of the default.
    Grow,
    /// Claims and scans: empty, with many finished jobs, and with many that wait. Private servers only; not part of the
    /// default.
    Age,
    /// Draining while retention removes many finished jobs. Private servers only; not part of the default.
    Retention,
    /// The dashboard's pages with many jobs, queues and workers. Private servers only; not part of the default.
    Pages,
}

impl Work {
    /// The default measurements.
    pub(crate) const DEFAULT: [Self; 10] = [
        Self::OneByOne,
        Self::Tasks,
        Self::Batches,
        Self::Drain,
        Self::NoHistory,
        Self::Mixed,
        Self::Pickup,
        Self::Recovery,
        Self::Progress,
        Self::Memory,
    ];
}

/// The plan of a bench.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) works: Vec<Work>,
    /// Runs of each measurement; the median is printed.
    pub(crate) runs: usize,
    /// Jobs per run; some measurements use a part of them.
    pub(crate) jobs: usize,
    /// Whether to use smaller fleets, fewer queues, shorter observations and shorter timers.
    pub(crate) quick: bool,
    /// How many jobs a worker runs at once.
    pub(crate) slots: u32,
    /// Finished jobs in an old database.
    pub(crate) finished: usize,
    /// Workers in other languages, each a name and a command.
    pub(crate) clients: Vec<(String, String)>,
    /// The user's own servers; `None`: a private pair.
    pub(crate) servers: Option<Config>,
    /// This program, which is started again as a worker.
    pub(crate) program: PathBuf,
}

/// A measured figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) work: Cow<'static, str>,
    /// The median of the runs.
    pub(crate) median: f64,
    pub(crate) unit: &'static str,
    pub(crate) runs: Vec<f64>,
    /// Compares it with another figure of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<Ratio>,
    /// CPU time of each part, in microseconds per job. Only with private servers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) cpu_us: BTreeMap<&'static str, f64>,
}

/// The ratio of one figure to another.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    pub(crate) of: Cow<'static, str>,
}

impl Ratio {
    fn of(of: impl Into<Cow<'static, str>>, value: f64) -> Self {
        Self { value, of: of.into() }
    }
}

/// The figures, and where they were measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) tenure: &'static str,
    pub(crate) servers: &'static str,
    pub(crate) postgres: String,
    pub(crate) nats: String,
    pub(crate) cores: usize,
    pub(crate) runs: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) figures: Vec<Figure>,
}

/// One run's values, by the name of what they measure.
#[derive(Debug, Default)]
struct Values(Vec<Measured>);

#[derive(Debug)]
struct Measured {
    work: Cow<'static, str>,
    unit: &'static str,
    value: f64,
    ratio: Option<Ratio>,
    cpu_us: BTreeMap<&'static str, f64>,
}

impl Values {
    fn add(&mut self, work: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) -> &mut Measured {
        let at = self.0.len();
        self.0.push(Measured { work: work.into(), unit, value, ratio: None, cpu_us: BTreeMap::new() });
        &mut self.0[at]
    }
}

/// Measures, unless `stop` completes first. Calls `tick` with the name of the measurement once for each of the
/// [`steps`].
pub(crate) async fn run(
    plan: &Plan,
    stop: impl Future<Output = ()>,
    mut tick: impl FnMut(&str),
) -> anyhow::Result<Report> {
    let arena = Arena::open(plan).await?;
    let measured = tokio::select! {
        measured = measure(plan, &arena, &mut tick) => measured,
        () = stop => Err(anyhow::anyhow!("stopped before the end; the bench has removed what it created")),
    };
    let (postgres, nats) = arena.versions().await;
    arena.close().await;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Report {
        tenure: env!("CARGO_PKG_VERSION"),
        servers: if plan.servers.is_some() { "yours" } else { "a private pair on this machine" },
        postgres,
        nats,
        cores,
        runs: plan.runs,
        payload_bytes: serde_json::to_vec(&Order::example(1))?.len(),
        figures: figures(measured?),
    })
}

/// The number of measurements of a plan.
pub(crate) fn measurements(plan: &Plan) -> u64 {
    (plan.works.len() * plan.runs) as u64
}

async fn measure(plan: &Plan, arena: &Arena, tick: &mut impl FnMut(&str)) -> anyhow::Result<Values> {
    let mut values = Values::default();
    for run in 0..plan.runs {
        for work in &plan.works {
            tick(&format!("{work:?}, run {} of {}", run + 1, plan.runs).to_lowercase());
            match work {
                Work::OneByOne => produce::one_by_one(arena, plan, &mut values).await?,
                Work::Tasks => produce::from_tasks(arena, plan, &mut values).await?,
                Work::Batches => produce::in_batches(arena, plan, &mut values).await?,
                Work::Drain => {
                    consume::drain(arena, plan, 1, &mut values).await?;
                    consume::drain(arena, plan, 2, &mut values).await?;
                }
                Work::NoHistory => consume::without_history(arena, plan, &mut values).await?,
                Work::Mixed => consume::mixed(arena, plan, &mut values).await?,
                Work::Pickup => pickup::pickup(arena, plan, &mut values).await?,
                Work::Call => call::call(arena, plan, &mut values).await?,
                Work::Lanes => lanes::lanes(arena, plan, &mut values).await?,
                Work::Steps => steps::steps(arena, plan, &mut values).await?,
                Work::Groups => groups::groups(arena, plan, &mut values).await?,
                Work::Suspended => groups::suspended(arena, plan, &mut values).await?,
                Work::Exec => exec::exec(arena, plan, &mut values).await?,
                Work::Gateway => gateway::gateway(arena, plan, &mut values).await?,
                Work::Recovery => endure::recovery(arena, &mut values).await?,
                Work::Progress => endure::progress(arena, &mut values).await?,
                Work::Memory => endure::memory(arena, &mut values).await?,
                Work::Relay => relay::relay(arena, plan, &mut values).await?,
                Work::Idle => idle::idle(arena, plan, &mut values).await?,
                Work::Grow => grow::grow(arena, plan, &mut values).await?,
                // The history only grows, and the database is filled once: one run is enough.
                Work::Age | Work::Pages if run > 0 => {}
                Work::Age => age::age(arena, plan, &mut values).await?,
                Work::Retention => purge::retention(arena, plan, &mut values).await?,
                Work::Pages => pages::pages(arena, plan, &mut values).await?,
            }
        }
    }
    Ok(values)
}

fn figures(values: Values) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut all: BTreeMap<Cow<'static, str>, Vec<Measured>> = BTreeMap::new();
    for value in values.0 {
        if !all.contains_key(&value.work) {
            figures.push(Figure {
                work: value.work.clone(),
                unit: value.unit,
                median: 0.0,
                runs: Vec::new(),
                ratio: None,
                cpu_us: BTreeMap::new(),
            });
        }
        all.entry(value.work.clone()).or_default().push(value);
    }
    for figure in &mut figures {
        let of_work = all.remove(&figure.work).unwrap_or_default();
        figure.runs = of_work.iter().map(|value| value.value).collect();
        figure.median = median(&figure.runs);
        let ratios: Vec<_> = of_work.iter().filter_map(|value| value.ratio.as_ref()).collect();
        figure.ratio = ratios.first().map(|first| Ratio {
            of: first.of.clone(),
            value: median(&ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>()),
        });
        let parts: Vec<_> = of_work.iter().flat_map(|value| value.cpu_us.keys().copied()).collect();
        for part in parts {
            let of_part: Vec<_> =
                of_work.iter().filter_map(|value| value.cpu_us.get(part).copied()).collect();
            figure.cpu_us.insert(part, median(&of_part));
        }
    }
    figures
}

/// The median; the mean of the middle two of an even number of values; 0 without values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The value below which this share of the others lies.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let at = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// The payload of every job of the bench: some 200 bytes of JSON, which the handler decodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    number: u64,
    customer: String,
    lines: Vec<Line>,
    note: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    sku: String,
    quantity: u32,
    cents: u64,
}

impl Job for Order {
    const KIND: &'static str = "order";
}

impl Order {
    /// The note of a job whose first attempt fails.
    const RETRIES: &'static str = "tried again in a second";

    fn example(number: usize) -> Self {
        let line = |sku: &str, quantity, cents| Line { sku: sku.into(), quantity, cents };
        Self {
            number: number as u64,
            customer: "customer-00042".into(),
            lines: vec![line("socket-12", 3, 1_250), line("wrench-09", 1, 4_999)],
            note: "deliver to the back door, please ring".into(),
        }
    }

    /// Reads the whole order, as a handler would.
    fn total(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.quantity) * line.cents).sum()
    }
}
