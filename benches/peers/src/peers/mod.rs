//! Peers: the libraries, how each is set up, and what is known about each.

mod apalis;
mod awa;
pub(crate) mod bullmq;
mod graphile_worker;
mod raw;
mod riverqueue;
mod tenure;

use std::{fmt, time::Duration};

use clap::{Args, ValueEnum};
use serde::Serialize;
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::{order::Order, roles, works::Work};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Library {
    Tenure,
    #[value(name = "graphile_worker")]
    GraphileWorker,
    Apalis,
    Riverqueue,
    Awa,
    /// Its Redis syncs its log once a second.
    Bullmq,
    /// Its Redis syncs its log before it answers.
    #[value(name = "bullmq_always")]
    BullmqAlways,
    /// No library: plain INSERTs of the same rows.
    Raw,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().ok_or(fmt::Error)?.get_name().fmt(f)
    }
}

/// What a reader must know beside the numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct About {
    /// What becomes of a finished job.
    pub(crate) history: &'static str,
    /// What tells a worker that has lost a job, and comes back, that it may not finish it.
    pub(crate) fence: &'static str,
    /// What a crash of the machine leaves of an accepted job.
    pub(crate) synced: &'static str,
    /// What it was given.
    pub(crate) settings: &'static str,
}

/// Where the servers are.
#[derive(Debug, Clone, Args)]
pub(crate) struct Servers {
    /// The database.
    #[arg(long)]
    pub(crate) database: String,
    /// NATS or Redis; empty: the library takes neither.
    #[arg(long, default_value = "")]
    pub(crate) broker: String,
}

/// One of the libraries for Rust, as a producer has it.
pub(crate) trait Peer: Clone + Send + 'static {
    /// Creates the schema, and connects. The settings may be those that are best for one work.
    fn open(servers: &Servers, work: Work) -> impl Future<Output = anyhow::Result<Self>>;

    /// Returns when the job is committed.
    fn enqueue(&mut self, order: Order) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns when the jobs are committed.
    fn enqueue_batch(
        &mut self,
        queue: &str,
        orders: Vec<Order>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns when the workers can get all jobs that were enqueued in batches.
    async fn flush(&self) {}

    /// How many of these jobs are finished, as the database says.
    fn finished(&self, jobs: usize) -> impl Future<Output = anyhow::Result<usize>>;

    /// Runs a worker. Returns only if it fails.
    fn work(servers: &Servers, work: Work) -> impl Future<Output = anyhow::Result<()>>;
}

/// A part of a library in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Produce,
    Work,
}

impl Library {
    pub(crate) const fn about(self) -> About {
        match self {
            Self::Tenure => tenure::ABOUT,
            Self::GraphileWorker => graphile_worker::ABOUT,
            Self::Apalis => apalis::ABOUT,
            Self::Riverqueue => riverqueue::ABOUT,
            Self::Awa => awa::ABOUT,
            Self::Bullmq => bullmq::EVERYSEC,
            Self::BullmqAlways => bullmq::ALWAYS,
            Self::Raw => raw::ABOUT,
        }
    }

    /// The package whose version is told; `None`: no crate of this build.
    pub(crate) const fn package(self) -> Option<&'static str> {
        match self {
            Self::Tenure => Some("tenure"),
            Self::GraphileWorker => Some("graphile_worker"),
            Self::Apalis => Some("apalis-postgres"),
            Self::Riverqueue => Some("riverqueue"),
            Self::Awa => Some("awa"),
            Self::Bullmq | Self::BullmqAlways | Self::Raw => None,
        }
    }

    /// Whether an accepted job is a committed row of Postgres: those that tenure's aims compare with.
    pub(crate) const fn is_on_postgres(self) -> bool {
        matches!(self, Self::GraphileWorker | Self::Apalis | Self::Riverqueue | Self::Awa)
    }

    /// Whether it has what this work needs.
    pub(crate) const fn does(self, work: Work) -> bool {
        match (self, work) {
            (Self::Raw, work) => matches!(work, Work::OneByOne | Work::Tasks),
            // A peer keeps or deletes what is finished in every work alike.
            (library, Work::DrainUnkept) => matches!(library, Self::Tenure),
            // Jobs of one of its queues run one after the other: that is what its queues are for.
            (Self::GraphileWorker, Work::DrainTwoQueues) => false,
            (Self::GraphileWorker | Self::Apalis | Self::Riverqueue, Work::DrainProgress) => false,
            _ => true,
        }
    }

    /// The table whose new rows are new jobs.
    pub(crate) const fn jobs_table(self) -> Option<&'static str> {
        match self {
            Self::Tenure => Some("tenure.jobs"),
            Self::GraphileWorker => Some("graphile_worker._private_jobs"),
            Self::Apalis => Some("apalis.jobs"),
            Self::Riverqueue => Some("river_job"),
            Self::Awa => Some("awa.ready_entries"),
            Self::Bullmq | Self::BullmqAlways | Self::Raw => None,
        }
    }
}

/// Does a part of one work of one library, in this process.
pub(crate) async fn be(role: Role, library: Library, work: Work, servers: &Servers) -> anyhow::Result<()> {
    match library {
        Library::Tenure => be_of::<tenure::Tenure>(role, work, servers).await,
        Library::GraphileWorker => be_of::<graphile_worker::GraphileWorker>(role, work, servers).await,
        Library::Apalis => be_of::<apalis::Apalis>(role, work, servers).await,
        Library::Riverqueue => be_of::<riverqueue::River>(role, work, servers).await,
        Library::Awa => be_of::<awa::Awa>(role, work, servers).await,
        Library::Raw => be_of::<raw::Raw>(role, work, servers).await,
        Library::Bullmq | Library::BullmqAlways => anyhow::bail!("BullMQ's parts are scripts of bullmq/"),
    }
}

async fn be_of<P: Peer>(role: Role, work: Work, servers: &Servers) -> anyhow::Result<()> {
    match role {
        Role::Produce => roles::produce::<P>(servers, work).await,
        Role::Work => roles::work::<P>(servers, work).await,
    }
}

/// What a library reads from its environment.
pub(crate) fn environment(library: Library, work: Work) -> Vec<(&'static str, &'static str)> {
    match library {
        Library::Awa => awa::environment(work),
        _ => Vec::new(),
    }
}

/// A pool as tenure's own is: a connection is not tried out before each use, which would cost a round
/// trip.
async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(options.connect(url).await?)
}

/// How many connections the producers have: one for each task.
const PRODUCERS: u32 = 32;
/// How many connections a worker has.
const WORKER: u32 = 20;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
