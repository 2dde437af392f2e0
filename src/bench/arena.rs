//! Arena: the servers that are measured, the workers that are started, and what both cost.

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rand::distr::{Alphanumeric, SampleString};
use tempfile::TempDir;
use tokio::time::sleep;

use super::{Plan, cpu, produce::request, worker::WorkerMode};
use crate::{
    config::Config,
    dev::{Nats, Postgres, Servers, postgres_user},
    job::JobId,
    store::BenchState,
    tenure::Tenure,
};

/// What a private Postgres is given: as a small server of its own would have it. A log that is recycled,
/// not created anew, or every new 16 MB of it would be zeroed under the commits.
const SETTINGS: [&str; 3] = ["shared_buffers=256MB", "min_wal_size=2GB", "max_wal_size=8GB"];

/// No work takes longer.
const LONGEST: Duration = Duration::from_mins(10);

/// The servers, and a handle to them.
pub(super) struct Arena {
    pub(super) tenure: Tenure,
    config: Config,
    private: Option<(Servers, TempDir)>,
    program: std::path::PathBuf,
    random: String,
    queues: AtomicU32,
    /// No row of this bench has a lower id.
    first: JobId,
}

impl Arena {
    pub(super) async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let (config, private) = if let Some(config) = &plan.servers {
            (config.clone(), None)
        } else {
            let folder = private_folder()?;
            let postgres = Postgres::start_with(&folder.path().join("postgres"), true, &SETTINGS)?;
            let nats = Nats::start(&folder.path().join("nats"))?;
            let servers = Servers { postgres, nats };
            let config = Config::new(servers.postgres.url(), servers.nats.url());
            (config, Some((servers, folder)))
        };
        let tenure = Tenure::connect(&config).await?;
        tenure.setup(&[]).await.context("set up the schema and the stream")?;
        Ok(Self {
            tenure,
            config,
            private,
            program: plan.program.clone(),
            random: Alphanumeric.sample_string(&mut rand::rng(), 6).to_lowercase(),
            queues: AtomicU32::new(0),
            first: JobId::generate(),
        })
    }

    /// A queue that nobody has used.
    pub(super) fn queue(&self) -> String {
        format!("bench-{}-{}", self.random, self.queues.fetch_add(1, Ordering::Relaxed))
    }

    /// A table for raw INSERTs that nobody else has.
    pub(super) fn raw_table(&self) -> String {
        format!("bench_raw_{}", self.random)
    }

    /// What the database holds of a queue.
    pub(super) async fn state(&self, queue: &str) -> anyhow::Result<BenchState> {
        Ok(self.tenure.store().bench_state(queue, self.first).await?)
    }

    /// The outputs of a queue's finished jobs.
    pub(super) async fn outputs(&self, queue: &str) -> anyhow::Result<BTreeMap<JobId, i64>> {
        Ok(self.tenure.store().bench_outputs(queue, self.first).await?)
    }

    /// How many messages the stream has of a queue that no worker has.
    pub(super) async fn messages(&self, queue: &str) -> anyhow::Result<u64> {
        let queues = self.tenure.queue();
        queues.ensure_consumer(queue).await?;
        Ok(queues.progress(queue).await?.pending)
    }

    /// Starts a worker in a process of its own.
    pub(super) fn worker(
        &self,
        queue: &str,
        slots: usize,
        mode: WorkerMode,
    ) -> anyhow::Result<WorkerProcess> {
        let mut command = Command::new(&self.program);
        // The settings of this process, wherever they are from: a flag or a file that the worker is not given.
        for (name, value) in self.config.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command
            .args(["bench-worker", queue, "--slots", &slots.to_string(), "--mode", mode.name()])
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "error,tenure::trace=off".into()))
            // It ends when we do, however we do.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {} as a worker", self.program.display()))?;
        Ok(WorkerProcess { child, stopped: false })
    }

    /// Waits until a worker of this queue is registered, so that its start is not measured.
    pub(super) async fn workers_ready(&self, queue: &str, workers: usize) -> anyhow::Result<()> {
        self.wait("the workers' start", || async {
            Ok(self.tenure.store().bench_workers(queue).await? >= workers)
        })
        .await
    }

    /// Waits until every message of a queue has been acknowledged. Asks NATS, so that Postgres, which is
    /// being measured, has nothing to count meanwhile.
    pub(super) async fn drained(&self, queue: &str) -> anyhow::Result<()> {
        self.wait("the queue to be drained", || async {
            let progress = self.tenure.queue().progress(queue).await?;
            Ok(progress.pending == 0 && progress.unacknowledged == 0)
        })
        .await
    }

    /// Waits until so many jobs of a queue run.
    pub(super) async fn running(&self, queue: &str, jobs: i64) -> anyhow::Result<()> {
        self.wait("the jobs to run", || async { Ok(self.state(queue).await?.processing >= jobs) }).await
    }

    async fn wait<F>(&self, what: &str, is_so: impl Fn() -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<bool>>,
    {
        let since = Instant::now();
        while !is_so().await? {
            if since.elapsed() > LONGEST {
                bail!("{what} took longer than {LONGEST:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// CPU seconds so far: of the servers, if they are private, and of these workers, or of this process.
    pub(super) fn cpu(&self, workers: &[WorkerProcess]) -> BTreeMap<&'static str, f64> {
        let mut parts = BTreeMap::new();
        if let Some((servers, _)) = &self.private {
            let pids = [("postgres", servers.postgres.pid()), ("nats", servers.nats.pid())];
            for (part, pid) in pids {
                if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
                    parts.insert(part, cpu::seconds_of(pid));
                }
            }
            let clients: f64 = workers.iter().map(|worker| cpu::seconds_of(worker.child.id())).sum();
            let own = cpu::seconds_of_self();
            parts.insert("client", if workers.is_empty() { own } else { clients });
        }
        parts
    }

    /// The servers' versions.
    pub(super) async fn versions(&self) -> (String, String) {
        let postgres = self.tenure.store().bench_version().await.unwrap_or_default();
        (postgres, self.tenure.queue().server_version())
    }

    /// Removes what was made, and ends what was started.
    pub(super) async fn close(self) {
        if self.private.is_none() {
            // Enqueues that nobody waits for any more may be in a batch. This one comes after them.
            self.tenure.enqueue(request(&self.queue(), 1)).await.ok();
            self.tenure.flush().await;
            if let Err(error) = self.tenure.store().bench_raw_table(&self.raw_table(), false).await {
                tracing::warn!(%error, "the bench's table was not removed");
            }
            for n in 0..self.queues.load(Ordering::Relaxed) {
                let queue = format!("bench-{}-{n}", self.random);
                let removed = self.tenure.store().bench_clear(&queue, self.first).await;
                if let Err(error) = removed {
                    tracing::warn!(%error, queue, "the bench's jobs were not removed");
                }
                if let Err(error) = self.tenure.queue().forget(&queue).await {
                    tracing::warn!(%error, queue, "the bench's messages were not removed");
                }
            }
        }
        self.tenure.close().await;
    }
}

/// The CPU time of each part between two looks, in microseconds a job.
pub(super) fn cost(
    before: &BTreeMap<&'static str, f64>,
    after: &BTreeMap<&'static str, f64>,
    jobs: usize,
) -> BTreeMap<&'static str, f64> {
    after
        .iter()
        .map(|(part, seconds)| {
            let spent = seconds - before.get(part).copied().unwrap_or_default();
            (*part, spent * 1e6 / count(jobs))
        })
        .collect()
}

/// A number of things, to compute with.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 of them")]
pub(super) fn count(n: usize) -> f64 {
    n as f64
}

fn private_folder() -> anyhow::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("tenure-bench-").tempdir().context("create a folder")?;
    if postgres_user().is_some() {
        // Postgres runs as another user, who must be able to reach its own folder.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}

/// A worker's process. Dropped, it is killed.
pub(super) struct WorkerProcess {
    pub(super) child: Child,
    stopped: bool,
}

impl WorkerProcess {
    pub(super) fn memory_mb(&self) -> anyhow::Result<f64> {
        cpu::memory_mb(self.child.id()).context("read a worker's memory: only Linux tells")
    }

    /// Kills it, as a crash does.
    pub(super) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        self.stopped = true;
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if !self.stopped {
            self.kill();
        }
    }
}
