//! The scripts of `python/`: the job libraries for Python, all on Redis, and tenure's client for Python.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use tokio::process::Command;

use super::{About, Role, clients, here, output, redis_version};
use crate::works::{BATCH, SAMPLES, Work};

/// A library with scripts for Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Celery,
    Arq,
    Rq,
    Dramatiq,
    Taskiq,
    /// Its jobs are enqueued by this program.
    Tenure,
}

pub(super) const CELERY: About = About {
    history: "deleted",
    fence: "none",
    synced: "once a second",
    settings: "pool solo, prefetch multiplier 100, ignore_result, acknowledges before a job runs (its default); no \
               events, gossip, mingle or heartbeat",
};

pub(super) const ARQ: About =
    About { settings: "100 jobs at once, keep_result 0, poll_delay 10 ms (pick-up: 1 ms), uvloop", ..CELERY };

pub(super) const RQ: About = About { settings: "SimpleWorker, which does not fork; result_ttl 0", ..CELERY };

pub(super) const DRAMATIQ: About = About {
    fence: "its process's name",
    settings: "1 thread, prefetch 1,000; pick-up: looks every 2 to 4 ms",
    ..CELERY
};

pub(super) const TASKIQ: About = About {
    history: "stays in the stream",
    settings: "RedisStreamBroker, 100 tasks at once, no results, uvloop",
    ..CELERY
};

impl Name {
    const fn text(self) -> &'static str {
        match self {
            Self::Celery => "celery",
            Self::Arq => "arq",
            Self::Rq => "rq",
            Self::Dramatiq => "dramatiq",
            Self::Taskiq => "taskiq",
            Self::Tenure => "tenure",
        }
    }

    /// Each has a folder of its own: two of them want different versions of the same package.
    fn packages(self) -> PathBuf {
        folder().join("packages").join(self.text())
    }
}

fn folder() -> PathBuf {
    here("python")
}

fn client() -> PathBuf {
    here("../../clients/python")
}

/// A part of it, as a process.
pub(super) fn command(name: Name, role: Role, work: Work, url: &str) -> Command {
    let mut paths = name.packages().into_os_string();
    if name == Name::Tenure {
        paths.push(":");
        paths.push(client().join("src"));
    }
    let mut command = Command::new("python3");
    command.current_dir(folder()).arg(if role == Role::Produce { "produce.py" } else { "work.py" });
    command.arg(name.text()).env("PYTHONPATH", paths).envs([
        ("PEERS_URL", url.to_owned()),
        ("PEERS_QUEUE", work.queues()[0].to_owned()),
        ("PEERS_WORK", work.to_string()),
        ("PEERS_SLOTS", clients::slots(work).to_string()),
        ("PEERS_BATCH", BATCH.to_string()),
        ("PEERS_SAMPLES", if work == Work::Pickup { SAMPLES } else { 0 }.to_string()),
        // Dramatiq takes this from its environment only.
        ("dramatiq_queue_prefetch", "1000".to_owned()),
    ]);
    command
}

/// Installs it where it is missing. Returns its version, with Python's, and Redis's for those that take it.
///
/// # Errors
///
/// A program that it needs is missing, or the registry of packages does not answer.
pub(super) async fn prepare(name: Name) -> anyhow::Result<String> {
    let redis = if name == Name::Tenure { None } else { Some(redis_version().await?) };
    let python = output("python3", &["--version"], &folder()).await?.trim().to_owned();
    let wanted = fs::read_to_string(folder().join("requirements").join(format!("{}.txt", name.text())))?;
    install(name, &format!("{python}\n{wanted}")).await?;
    let version = match name {
        Name::Tenure => {
            let project = fs::read_to_string(client().join("pyproject.toml"))?;
            let version = after(&project, "version = \"").context("find the client's version")?;
            format!("client {}", version.trim_end_matches('"'))
        }
        _ => after(&wanted, &format!("{}==", name.text())).context("find its version")?.to_owned(),
    };
    let redis = redis.map(|version| format!("Redis {version}, ")).unwrap_or_default();
    Ok(format!("{version} ({redis}{python})"))
}

/// Again whenever a version has changed.
async fn install(name: Name, wanted: &str) -> anyhow::Result<()> {
    let packages = name.packages();
    let installed = packages.join(".installed");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if packages.exists() {
        fs::remove_dir_all(&packages)?;
    }
    let (target, list) = (path(&packages)?, format!("requirements/{}.txt", name.text()));
    // The lists are complete: nothing is resolved, and no other package of the machine is compared with.
    let options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", target, "-r", &list];
    output("python3", &[&["-m", "pip", "install"], &options[..]].concat(), &folder()).await?;
    Ok(fs::write(installed, wanted)?)
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the path of this program's sources is Unicode")
}

/// The rest of the line that begins so.
fn after<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(begin))
}
