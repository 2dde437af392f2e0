//! Peers: the libraries, how each is set up, and what is known about each.

mod apalis;
mod awa;
mod graphile_worker;
mod riverqueue;
pub(crate) mod tenure;

use std::fmt;

use anyhow::bail;
use clap::ValueEnum;
use serde::Serialize;
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::works::{self, Values, Work};

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
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().ok_or(fmt::Error)?.get_name().fmt(f)
    }
}

/// What a reader must know beside the numbers.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct About {
    /// What becomes of a finished job's row.
    pub(crate) finished_rows: &'static str,
    /// What tells a worker that has lost a job, and comes back, that it may not finish it.
    pub(crate) fence: &'static str,
    /// What it was given.
    pub(crate) settings: &'static str,
}

impl Library {
    pub(crate) const fn about(self) -> About {
        match self {
            Self::Tenure => tenure::ABOUT,
            Self::GraphileWorker => graphile_worker::ABOUT,
            Self::Apalis => apalis::ABOUT,
            Self::Riverqueue => riverqueue::ABOUT,
            Self::Awa => awa::ABOUT,
        }
    }

    /// The package whose version is told.
    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::Tenure => "tenure",
            Self::GraphileWorker => "graphile_worker",
            Self::Apalis => "apalis-postgres",
            Self::Riverqueue => "riverqueue",
            Self::Awa => "awa",
        }
    }
}

/// Does one work of one peer, in this process.
pub(crate) async fn measure(library: Library, work: Work, jobs: usize, url: &str) -> anyhow::Result<Values> {
    match library {
        Library::Tenure => bail!("tenure is measured by its own program"),
        Library::GraphileWorker => works::measure::<graphile_worker::GraphileWorker>(work, jobs, url).await,
        Library::Apalis => works::measure::<apalis::Apalis>(work, jobs, url).await,
        Library::Riverqueue => works::measure::<riverqueue::River>(work, jobs, url).await,
        Library::Awa => works::measure::<awa::Awa>(work, jobs, url).await,
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
/// trip. Producers and workers have pools of their own, as if they were programs of their own.
async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(options.connect(url).await?)
}

/// How many connections the producers have: one for each task.
const PRODUCERS: u32 = 32;
/// How many connections a worker has.
const WORKER: u32 = 20;
