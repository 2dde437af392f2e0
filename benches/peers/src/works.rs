//! Works: what every library does, and what is measured of it.

use std::{collections::BTreeMap, fmt};

use clap::ValueEnum;
use serde::Serialize;

/// How many tasks enqueue at once, each over a connection of its own.
pub(crate) const TASKS: usize = 32;
/// The size of a batch.
pub(crate) const BATCH: usize = 1_000;
/// How many jobs tell their latency.
pub(crate) const SAMPLES: usize = 300;
/// How many jobs precede them, so that connections, plans and caches are there.
pub(crate) const WARM: usize = 50;
/// The names of the queues; most works use the first one only.
pub(crate) static QUEUES: [&str; 2] = ["orders", "returns"];

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
    /// One worker runs jobs of a kind of which nothing is kept.
    DrainUnkept,
    /// One worker runs jobs with payloads of 4 KB.
    DrainLarge,
    /// One worker runs the jobs of two queues.
    DrainTwoQueues,
    /// Four workers of 500 slots run what is queued.
    DrainFourWorkers,
    /// One worker runs jobs that report their progress.
    DrainProgress,
    /// 32 tasks enqueue while one worker runs the jobs.
    Mixed,
    /// One task enqueues in batches of 1,000 while one worker runs the jobs.
    MixedBatches,
    /// From the commit, and from the call of the insert, to the first line of the handler.
    Pickup,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().ok_or(fmt::Error)?.get_name().fmt(f)
    }
}

impl Work {
    /// How many jobs it takes when the whole run has `jobs`.
    pub(crate) const fn jobs(self, jobs: usize) -> usize {
        match self {
            Self::OneByOne => jobs / 10,
            Self::Tasks | Self::Mixed => jobs / 5,
            Self::DrainLarge => jobs / 2,
            Self::Pickup => SAMPLES,
            _ => jobs,
        }
    }

    pub(crate) const fn workers(self) -> usize {
        match self {
            Self::OneByOne | Self::Tasks | Self::Batches => 0,
            Self::DrainFourWorkers => 4,
            _ => 1,
        }
    }

    /// The queues that the worker serves.
    pub(crate) fn queues(self) -> &'static [&'static str] {
        if self == Self::DrainTwoQueues { &QUEUES } else { &QUEUES[..1] }
    }

    /// The size of a job's payload, in bytes; 0: as small as the order is.
    pub(crate) const fn payload(self) -> usize {
        if matches!(self, Self::DrainLarge) { 4_096 } else { 0 }
    }

    /// The rows of its rates.
    pub(crate) const fn row(self) -> Row {
        match self {
            Self::OneByOne => Row::OneByOne,
            Self::Tasks => Row::Tasks,
            Self::Batches => Row::Batches,
            Self::Drain => Row::Drain,
            Self::DrainUnkept => Row::DrainUnkept,
            Self::DrainLarge => Row::DrainLarge,
            Self::DrainTwoQueues => Row::DrainTwoQueues,
            Self::DrainFourWorkers => Row::DrainFourWorkers,
            Self::DrainProgress => Row::DrainProgress,
            Self::Mixed => Row::Mixed,
            Self::MixedBatches => Row::MixedBatches,
            Self::Pickup => Row::CommitP50,
        }
    }
}

/// One figure of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    OneByOne,
    Tasks,
    Batches,
    Drain,
    DrainUnkept,
    DrainLarge,
    DrainTwoQueues,
    DrainFourWorkers,
    DrainProgress,
    Mixed,
    MixedBatches,
    CommitP50,
    CommitP99,
    CallP50,
    CallP99,
    Cpu,
    CpuClient,
    CpuPostgres,
    CpuBroker,
    CpuGateway,
}

impl Row {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 20] = [
        Self::OneByOne,
        Self::Tasks,
        Self::Batches,
        Self::Drain,
        Self::DrainUnkept,
        Self::DrainLarge,
        Self::DrainTwoQueues,
        Self::DrainFourWorkers,
        Self::DrainProgress,
        Self::Mixed,
        Self::MixedBatches,
        Self::CommitP50,
        Self::CommitP99,
        Self::CallP50,
        Self::CallP99,
        Self::Cpu,
        Self::CpuClient,
        Self::CpuPostgres,
        Self::CpuBroker,
        Self::CpuGateway,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "enqueue, one by one",
            Self::Tasks => "enqueue, one by one, from 32 tasks",
            Self::Batches => "enqueue, batches of 1,000",
            Self::Drain => "drain, one worker",
            Self::DrainUnkept => "drain, a kind that keeps no history",
            Self::DrainLarge => "drain, payloads of 4 KB",
            Self::DrainTwoQueues => "drain, two queues",
            Self::DrainFourWorkers => "drain, four workers",
            Self::DrainProgress => "drain, handlers that report progress",
            Self::Mixed => "enqueue from 32 tasks while one worker drains",
            Self::MixedBatches => "enqueue in batches of 1,000 while one worker drains",
            Self::CommitP50 => "pick-up when idle, from the commit, p50",
            Self::CommitP99 => "pick-up when idle, from the commit, p99",
            Self::CallP50 => "pick-up when idle, from the call, p50",
            Self::CallP99 => "pick-up when idle, from the call, p99",
            Self::Cpu => "CPU for a drained job, all parts",
            Self::CpuClient => "CPU for a drained job, worker",
            Self::CpuPostgres => "CPU for a drained job, Postgres",
            Self::CpuBroker => "CPU for a drained job, NATS or Redis",
            Self::CpuGateway => "CPU for a drained job, gateway",
        }
    }

    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::CommitP50 | Self::CommitP99 | Self::CallP50 | Self::CallP99 => "ms",
            Self::Cpu | Self::CpuClient | Self::CpuPostgres | Self::CpuBroker | Self::CpuGateway => "µs",
            _ => "jobs/s",
        }
    }

    /// Latencies and costs.
    pub(crate) fn less_is_better(self) -> bool {
        self.unit() != "jobs/s"
    }
}

/// What one run of a work has brought.
pub(crate) type Values = BTreeMap<Row, f64>;
