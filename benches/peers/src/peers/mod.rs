//! Peers: the libraries, how each is set up, and what is known about each.

mod apalis;
mod awa;
mod bullmq;
mod clients;
mod graphile_worker;
mod node;
mod python;
mod raw;
mod riverqueue;
mod tenure;

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::process::Command;

use crate::{order::Order, roles, works::Work};

/// The versions that this program was built with.
const LOCK: &str = include_str!("../../Cargo.lock");

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
    /// tenure's client for Node.
    #[value(name = "tenure_node")]
    TenureNode,
    /// tenure's client for Python.
    #[value(name = "tenure_python")]
    TenurePython,
    Celery,
    Arq,
    Rq,
    Dramatiq,
    Taskiq,
}

/// tenure's clients in other languages, and what they are compared with.
pub(crate) static CLIENTS: [Library; 9] = [
    Library::Tenure,
    Library::Bullmq,
    Library::TenureNode,
    Library::TenurePython,
    Library::Celery,
    Library::Arq,
    Library::Rq,
    Library::Dramatiq,
    Library::Taskiq,
];

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
            Self::TenureNode | Self::TenurePython => clients::ABOUT,
            Self::Celery => python::CELERY,
            Self::Arq => python::ARQ,
            Self::Rq => python::RQ,
            Self::Dramatiq => python::DRAMATIQ,
            Self::Taskiq => python::TASKIQ,
        }
    }

    /// Installs it where it is missing. Returns its version. The program is the one that is tenure's gateway.
    ///
    /// # Errors
    ///
    /// This machine cannot run it.
    pub(crate) async fn prepare(self, program: &Path) -> anyhow::Result<String> {
        let gateway = if self.has_gateway() { Some(clients::gateway_version(program).await?) } else { None };
        let version = match (self, self.scripts()) {
            (_, Some(Scripts::Node(name))) => node::prepare(name).await?,
            (_, Some(Scripts::Python(name))) => python::prepare(name).await?,
            (Self::GraphileWorker, _) => locked("graphile_worker")?,
            (Self::Apalis, _) => locked("apalis-postgres")?,
            (Self::Riverqueue, _) => locked("riverqueue")?,
            (Self::Awa, _) => locked("awa")?,
            (Self::Raw, _) => String::new(),
            _ => locked("tenure")?,
        };
        Ok(gateway.map_or(version.clone(), |gateway| format!("{gateway}, {version}")))
    }

    /// The scripts that are its worker, and its producer if it has one of its own.
    const fn scripts(self) -> Option<Scripts> {
        match self {
            Self::Bullmq | Self::BullmqAlways => Some(Scripts::Node(node::Name::Bullmq)),
            Self::TenureNode => Some(Scripts::Node(node::Name::Tenure)),
            Self::TenurePython => Some(Scripts::Python(python::Name::Tenure)),
            Self::Celery => Some(Scripts::Python(python::Name::Celery)),
            Self::Arq => Some(Scripts::Python(python::Name::Arq)),
            Self::Rq => Some(Scripts::Python(python::Name::Rq)),
            Self::Dramatiq => Some(Scripts::Python(python::Name::Dramatiq)),
            Self::Taskiq => Some(Scripts::Python(python::Name::Taskiq)),
            _ => None,
        }
    }

    /// Its part as a process of a script; `None`: it is a part of this program.
    pub(crate) fn script(self, role: Role, work: Work, url: &str) -> Option<Command> {
        // The clients' jobs are enqueued as tenure's own are.
        if role == Role::Produce && self.has_gateway() {
            return None;
        }
        match self.scripts()? {
            Scripts::Node(name) => Some(node::command(name, role, work, url)),
            Scripts::Python(name) => Some(python::command(name, role, work, url)),
        }
    }

    /// Whether its workers know no Postgres, but ask a gateway.
    pub(crate) const fn has_gateway(self) -> bool {
        matches!(self, Self::TenureNode | Self::TenurePython)
    }

    /// Whether it takes NATS.
    pub(crate) const fn is_tenure(self) -> bool {
        matches!(self, Self::Tenure) || self.has_gateway()
    }

    /// `appendfsync` of its Redis; `None`: it takes none.
    pub(crate) const fn redis_sync(self) -> Option<&'static str> {
        match self {
            Self::BullmqAlways => Some("always"),
            Self::Bullmq => Some("everysec"),
            _ if self.is_for_python() => Some("everysec"),
            _ => None,
        }
    }

    /// Whether it is one of those that tenure's client for Python is compared with.
    pub(crate) const fn is_for_python(self) -> bool {
        matches!(self, Self::Celery | Self::Arq | Self::Rq | Self::Dramatiq | Self::Taskiq)
    }

    /// Whether it runs only when it is asked for.
    pub(crate) const fn is_extra(self) -> bool {
        self.has_gateway() || self.is_for_python()
    }

    /// The tenures that it is compared with, of which the first one counts that was measured: that of its language.
    pub(crate) const fn tenures(self) -> &'static [Self] {
        match self {
            Self::Tenure => &[],
            Self::Bullmq | Self::BullmqAlways => &[Self::TenureNode, Self::Tenure],
            _ if self.is_for_python() => &[Self::TenurePython, Self::Tenure],
            _ => &[Self::Tenure],
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
            (library, work) if library.is_extra() => matches!(work, Work::Drain | Work::Pickup),
            // A peer keeps or deletes what is finished in every work alike.
            (library, Work::DrainUnkept) => matches!(library, Self::Tenure),
            // Jobs of one of its queues run one after the other: that is what its queues are for.
            (Self::GraphileWorker, Work::DrainTwoQueues)
            | (Self::GraphileWorker | Self::Apalis | Self::Riverqueue, Work::DrainProgress) => false,
            _ => true,
        }
    }

    /// How many jobs of this work it gets when the whole run has `jobs`. The rates do not depend on it.
    pub(crate) const fn jobs(self, work: Work, jobs: usize) -> usize {
        match (self, work) {
            // All of them would take longer than a work may.
            (Self::Rq, Work::Drain) => work.jobs(jobs) / 10,
            _ => work.jobs(jobs),
        }
    }

    /// The table whose new rows are new jobs.
    pub(crate) const fn jobs_table(self) -> Option<&'static str> {
        match self {
            Self::Tenure | Self::TenureNode | Self::TenurePython => Some("tenure.jobs"),
            Self::GraphileWorker => Some("graphile_worker._private_jobs"),
            Self::Apalis => Some("apalis.jobs"),
            Self::Riverqueue => Some("river_job"),
            Self::Awa => Some("awa.ready_entries"),
            _ => None,
        }
    }
}

/// A library whose parts are scripts.
enum Scripts {
    Node(node::Name),
    Python(python::Name),
}

/// Does a part of one work of one library, in this process.
pub(crate) async fn be(role: Role, library: Library, work: Work, servers: &Servers) -> anyhow::Result<()> {
    match library {
        Library::Tenure => be_of::<tenure::Tenure>(role, work, servers).await,
        library if library.has_gateway() => be_of::<tenure::Tenure>(role, work, servers).await,
        Library::GraphileWorker => be_of::<graphile_worker::GraphileWorker>(role, work, servers).await,
        Library::Apalis => be_of::<apalis::Apalis>(role, work, servers).await,
        Library::Riverqueue => be_of::<riverqueue::River>(role, work, servers).await,
        Library::Awa => be_of::<awa::Awa>(role, work, servers).await,
        Library::Raw => be_of::<raw::Raw>(role, work, servers).await,
        library => bail!("the parts of {library} are scripts"),
    }
}

async fn be_of<P: Peer>(role: Role, work: Work, servers: &Servers) -> anyhow::Result<()> {
    match role {
        Role::Produce => roles::produce::<P>(servers, work).await,
        // A library's future may be large.
        Role::Work => Box::pin(roles::work::<P>(servers, work)).await,
    }
}

/// What a library reads from its environment.
pub(crate) fn environment(library: Library, work: Work) -> Vec<(&'static str, &'static str)> {
    match library {
        Library::Awa => awa::environment(work),
        _ => Vec::new(),
    }
}

/// A folder beside the sources of this program.
fn here(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// What a program prints.
async fn output(program: &str, arguments: &[&str], folder: &Path) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{program} {}` has failed: {}",
            arguments.join(" "),
            errors.lines().next().unwrap_or_default()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn redis_version() -> anyhow::Result<String> {
    let text = output("redis-server", &["--version"], Path::new(".")).await?;
    Ok(text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned())
}

/// The version of a package in this program's lock file.
fn locked(package: &str) -> anyhow::Result<String> {
    let name = format!("name = \"{package}\"\nversion = \"");
    let (_, rest) = LOCK.split_once(&name).with_context(|| format!("find {package} in Cargo.lock"))?;
    let (version, _) = rest.split_once('"').context("read Cargo.lock")?;
    Ok(version.to_owned())
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
