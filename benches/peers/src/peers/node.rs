//! The scripts of `node/`: BullMQ, and tenure's client for Node.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use tokio::process::Command;

use super::{Role, bullmq, clients, here, output, redis_version};
use crate::works::{BATCH, SAMPLES, Work};

/// A library with scripts for Node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Bullmq,
    /// Its jobs are enqueued by this program.
    Tenure,
}

fn folder() -> PathBuf {
    here("node")
}

fn client() -> PathBuf {
    here("../../clients/node")
}

/// A part of it, as a process.
pub(super) fn command(name: Name, role: Role, work: Work, url: &str) -> Command {
    let (library, concurrency) = match name {
        Name::Bullmq => ("bullmq", bullmq::concurrency(work)),
        Name::Tenure => ("tenure", clients::slots(work)),
    };
    let mut command = Command::new("node");
    command.current_dir(folder()).arg(if role == Role::Produce { "produce.js" } else { "work.js" });
    command.arg(library).envs([
        ("PEERS_URL", url.to_owned()),
        ("PEERS_QUEUES", work.queues().join(",")),
        ("PEERS_CONCURRENCY", concurrency.to_string()),
        ("PEERS_BATCH", BATCH.to_string()),
        ("PEERS_PAYLOAD", work.payload().to_string()),
        ("PEERS_SAMPLES", if work == Work::Pickup { SAMPLES } else { 0 }.to_string()),
        ("PEERS_PROGRESS", u8::from(work == Work::DrainProgress).to_string()),
    ]);
    command
}

/// Installs it where it is missing. Returns its version, with Node's, and Redis's for BullMQ.
///
/// # Errors
///
/// A program that it needs is missing, or the registry of packages does not answer.
pub(super) async fn prepare(name: Name) -> anyhow::Result<String> {
    match name {
        Name::Bullmq => {
            let redis = redis_version().await?;
            let node = version().await?;
            if !folder().join("node_modules/bullmq").is_dir() {
                output("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund"], &folder()).await?;
            }
            Ok(format!("{} (Redis {redis}, Node {node})", package("bullmq/package.json", &folder()).await?))
        }
        Name::Tenure => {
            let is_built = client().join("dist/index.js").is_file();
            ensure!(is_built, "build its client for Node: `npm ci && npm run build` in clients/node");
            let node = version().await?;
            Ok(format!("client {} (Node {node})", package("./package.json", &client()).await?))
        }
    }
}

async fn version() -> anyhow::Result<String> {
    Ok(output("node", &["--version"], &folder()).await?.trim().to_owned())
}

async fn package(file: &str, folder: &Path) -> anyhow::Result<String> {
    let script = format!("require('{file}').version");
    Ok(output("node", &["-p", &script], folder).await?.trim().to_owned())
}
