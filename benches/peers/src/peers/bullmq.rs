//! BullMQ on Redis: its producer and its worker are the scripts of `bullmq/`, run by Node.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail};
use tokio::process::Command;

use super::{About, Library, Role};
use crate::works::{BATCH, SAMPLES, Work};

const SETTINGS: &str = "removeOnComplete (its default keeps all, for ever); drain and mixed: concurrency 200 (100 for \
                        each of two queues, 500 for each of four workers); pick-up: concurrency 4";

pub(super) const EVERYSEC: About = About {
    history: "deleted",
    fence: "a lock's token, which expires",
    synced: "once a second",
    settings: SETTINGS,
};

pub(super) const ALWAYS: About = About { synced: "each reply", ..EVERYSEC };

pub(crate) fn is(library: Library) -> bool {
    sync_of(library).is_some()
}

/// `appendfsync` of its Redis.
pub(crate) fn sync_of(library: Library) -> Option<&'static str> {
    match library {
        Library::Bullmq => Some("everysec"),
        Library::BullmqAlways => Some("always"),
        _ => None,
    }
}

const fn concurrency(work: Work) -> usize {
    match work {
        Work::Pickup => 4,
        Work::DrainTwoQueues => 100,
        Work::DrainFourWorkers => 500,
        _ => 200,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bullmq")
}

/// A part of it, as a process.
pub(crate) fn command(role: Role, work: Work, port: &str) -> Command {
    let mut command = Command::new("node");
    command.current_dir(folder()).arg(if role == Role::Produce { "produce.js" } else { "work.js" }).envs([
        ("PEERS_PORT", port.to_owned()),
        ("PEERS_QUEUES", work.queues().join(",")),
        ("PEERS_CONCURRENCY", concurrency(work).to_string()),
        ("PEERS_BATCH", BATCH.to_string()),
        ("PEERS_PAYLOAD", work.payload().to_string()),
        ("PEERS_SAMPLES", if work == Work::Pickup { SAMPLES } else { 0 }.to_string()),
        ("PEERS_PROGRESS", u8::from(work == Work::DrainProgress).to_string()),
    ]);
    command
}

/// Installs it where it is missing. Returns its version, with Redis's and Node's.
///
/// # Errors
///
/// A program that it needs is missing, or the registry of packages does not answer.
pub(crate) async fn prepare() -> anyhow::Result<String> {
    let redis = output("redis-server", &["--version"]).await?;
    let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
    let node = output("node", &["--version"]).await?;
    if !folder().join("node_modules/bullmq").is_dir() {
        output("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).await?;
    }
    let package = output("node", &["-p", "require('bullmq/package.json').version"]).await?;
    Ok(format!("{} (Redis {redis}, Node {})", package.trim(), node.trim()))
}

async fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.current_dir(folder()).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
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
