//! Arena: the servers and workers under measurement, and the cost of both.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rand::distr::{Alphanumeric, SampleString};
use tempfile::TempDir;
use tokio::{
    sync::RwLock,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Plan, Work, cpu,
    monitor::Monitor,
    pickup::now_us,
    produce::request,
    worker::{READY, WorkerMode},
};
use tenure::{
    Config, JobId, JobRequest, Tenure,
    dev::{Nats, Postgres, Servers, postgres_user},
    internals::{BenchStarted, BenchState, Parts as _},
};

/// The settings of a private Postgres, like those of a small dedicated server. Such a server recycles its log. A new
/// one would write zeros into each new 16 MB of it, during the commits, until its first checkpoint.
const SETTINGS: [&str; 4] =
    ["shared_buffers=256MB", "min_wal_size=2GB", "max_wal_size=8GB", "wal_init_zero=off"];

/// Enough for two hundred workers with some six connections each.
const MANY_CONNECTIONS: &str = "max_connections=1500";

/// The longest that any step may take.
pub(super) const LONGEST: Duration = Duration::from_mins(10);

/// The servers, and a handle to them.
pub(super) struct Arena {
    pub(super) tenure: Tenure,
    config: Config,
    private: Option<(Servers, TempDir)>,
    clock_ahead_us: i64,
    /// The monitor of the private NATS, if a measurement needs it.
    monitor: Option<Monitor>,
    program: std::path::PathBuf,
    random: String,
    queues: AtomicU32,
    /// Each batch in flight holds it: a batch ends even if its caller is gone.
    batches: Arc<RwLock<()>>,
    /// No row of this bench has a lower id.
    first: JobId,
}

impl Arena {
    pub(super) async fn open(plan: &Plan) -> anyhow::Result<Self> {
        let (config, private, monitor) = if let Some(config) = &plan.servers {
            (config.clone(), None, None)
        } else {
            let folder = private_folder()?;
            let is_of_fleets = plan.works.iter().any(|work| matches!(work, Work::Idle | Work::Grow));
            let has_many = is_of_fleets || plan.works.contains(&Work::Lanes);
            let settings: Vec<_> = SETTINGS.into_iter().chain(has_many.then_some(MANY_CONNECTIONS)).collect();
            let postgres = Postgres::start_with(&folder.path().join("postgres"), true, &settings)?;
            let nats = folder.path().join("nats");
            let (nats, monitor) = if is_of_fleets {
                let (nats, monitor) = Monitor::start(&nats)?;
                (nats, Some(monitor))
            } else {
                (Nats::start(&nats)?, None)
            };
            let servers = Servers { postgres, nats };
            let config = Config::new(servers.postgres.url(), servers.nats.url());
            (config, Some((servers, folder)), monitor)
        };
        let tenure = Tenure::connect(&config).await?;
        tenure.setup(&[]).await.context("set up the schema and the stream")?;
        // A private Postgres has this machine's clock.
        let clock_ahead_us = if private.is_some() { 0 } else { clock_ahead_us(&tenure).await? };
        Ok(Self {
            clock_ahead_us,
            tenure,
            config,
            private,
            monitor,
            program: plan.program.clone(),
            random: Alphanumeric.sample_string(&mut rand::rng(), 6).to_lowercase(),
            queues: AtomicU32::new(0),
            batches: Arc::default(),
            first: JobId::generate(),
        })
    }

    /// The name of an unused queue.
    pub(super) fn queue(&self) -> String {
        format!("{}{}", self.prefix(), self.queues.fetch_add(1, Ordering::Relaxed))
    }

    /// The prefix of the names of the bench's queues.
    fn prefix(&self) -> String {
        format!("bench-{}-", self.random)
    }

    /// Whether the servers are this bench's own, which may do them harm.
    pub(super) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// The name of the bench's own table for raw INSERTs.
    pub(super) fn raw_table(&self) -> String {
        format!("bench_raw_{}", self.random)
    }

    /// The state of a queue in the database.
    pub(super) async fn state(&self, queue: &str) -> anyhow::Result<BenchState> {
        Ok(self.tenure.store().bench_state(queue, self.first).await?)
    }

    /// The database's time, in seconds.
    pub(super) async fn now(&self) -> anyhow::Result<f64> {
        let now = self.tenure.store().database_time().await?;
        #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 are below 2^53")]
        let seconds = now.timestamp_micros() as f64 / 1e6;
        Ok(seconds)
    }

    /// Removes a queue's jobs.
    pub(super) async fn clear(&self, queue: &str) -> anyhow::Result<()> {
        Ok(self.tenure.store().bench_clear(queue, self.first).await?)
    }

    /// The finished jobs from this ID on whose handlers have recorded when they began.
    pub(super) async fn started(&self, since: JobId) -> anyhow::Result<BTreeMap<JobId, BenchStarted>> {
        Ok(self.tenure.store().bench_started(&self.prefix(), since).await?)
    }

    /// How many more connections Postgres takes.
    pub(super) async fn free_connections(&self) -> anyhow::Result<usize> {
        Ok(usize::try_from(self.tenure.store().bench_free_connections().await?).unwrap_or_default())
    }

    /// Removes the consumers of all queues so far, which must no longer be used.
    pub(super) async fn forget_queues(&self) -> anyhow::Result<()> {
        for n in 0..self.queues.load(Ordering::Relaxed) {
            self.tenure.nats().forget(&format!("{}{n}", self.prefix())).await?;
        }
        Ok(())
    }

    /// Removes the rows of killed workers, so that no worker looks for them.
    pub(super) async fn forget_workers(&self) -> anyhow::Result<()> {
        Ok(self.tenure.store().bench_forget_workers(&self.prefix()).await?)
    }

    /// How many messages NATS has received and sent so far; `None` without a monitor.
    pub(super) async fn nats_messages(&self) -> anyhow::Result<Option<f64>> {
        match &self.monitor {
            Some(monitor) => Ok(Some(monitor.messages().await?)),
            None => Ok(None),
        }
    }

    /// By how much the database's clock is ahead of this machine's.
    pub(super) fn clock_ahead_us(&self) -> i64 {
        self.clock_ahead_us
    }

    /// How many messages the stream has of a queue that no worker serves.
    pub(super) async fn messages(&self, queue: &str) -> anyhow::Result<u64> {
        let queues = self.tenure.nats();
        queues.ensure_consumer(queue).await?;
        Ok(queues.progress(queue).await?.pending)
    }

    /// How many jobs the messages of a queue name.
    pub(super) async fn jobs_named(&self, queue: &str) -> anyhow::Result<u64> {
        self.tenure.nats().jobs_named(queue).await.context("NATS does not count the messages of the stream")
    }

    /// Enqueues many jobs at once.
    pub(super) async fn enqueue_many(&self, requests: Vec<JobRequest>) -> anyhow::Result<()> {
        let (tenure, in_flight) = (self.tenure.clone(), self.batches.clone().read_owned().await);
        let enqueued = tokio::spawn(async move {
            let enqueued = tenure.enqueue_many(requests).await;
            drop(in_flight);
            enqueued
        });
        enqueued.await??;
        Ok(())
    }

    /// Starts a worker in its own process.
    pub(super) fn worker(&self, queue: &str, slots: u32, mode: WorkerMode) -> anyhow::Result<WorkerProcess> {
        self.worker_of(&[queue.to_owned()], slots, mode, &[])
    }

    /// Starts a worker of several queues, with its own settings.
    pub(super) fn worker_of(
        &self,
        queues: &[String],
        slots: u32,
        mode: WorkerMode,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<WorkerProcess> {
        let child = self
            .command()
            .arg("bench-worker")
            .args(queues)
            .args(["--slots", &slots.to_string(), "--mode", mode.name()])
            .envs(settings.iter().copied())
            // The worker ends when this pipe closes, even if the bench is killed.
            .stdin(Stdio::piped())
            // The worker prints here that it is ready.
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {} as a worker", self.program.display()))?;
        Ok(WorkerProcess { child, stopped: false })
    }

    /// Starts workers behind a gateway, all in one process.
    pub(super) fn foreign_workers(
        &self,
        queue: &str,
        slots: u32,
        mode: WorkerMode,
        workers: usize,
    ) -> anyhow::Result<WorkerProcess> {
        let child = self
            .command()
            .args(["bench-worker", queue, "--slots", &slots.to_string(), "--mode", mode.name()])
            .args(["--foreign", &workers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {} as a worker", self.program.display()))?;
        Ok(WorkerProcess { child, stopped: false })
    }

    /// This program, on these servers.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // The settings of this process: the other one gets neither its flags nor its file.
        for (name, value) in self.config.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let log = std::env::var("RUST_LOG").unwrap_or_else(|_| "error,tenure::trace=off".into());
        command.env("RUST_LOG", log);
        command
    }

    /// Waits until a worker of this queue is registered, so that its start is not measured.
    pub(super) async fn workers_ready(&self, queue: &str, workers: usize) -> anyhow::Result<()> {
        self.wait("the workers' start", || async {
            Ok(self.tenure.store().bench_workers(queue).await? >= workers)
        })
        .await
    }

    /// Waits until every message of a queue is acknowledged. Asks NATS, so as not to load Postgres, which is under
    /// measurement.
    pub(super) async fn drained(&self, queue: &str) -> anyhow::Result<()> {
        self.wait("the queue to be drained", || async {
            let progress = self.tenure.nats().progress(queue).await?;
            Ok(progress.pending == 0 && progress.unacknowledged == 0)
        })
        .await
    }

    /// Returns the seconds from the first delivery of these many messages of a queue to the last ack.
    pub(super) async fn drained_within(&self, queue: &str, messages: u64) -> anyhow::Result<f64> {
        let (since, mut began_at) = (Instant::now(), None);
        loop {
            let progress = self.tenure.nats().progress(queue).await?;
            if progress.pending < messages {
                let began_at = *began_at.get_or_insert_with(Instant::now);
                if progress.pending == 0 && progress.unacknowledged == 0 {
                    return Ok(began_at.elapsed().as_secs_f64());
                }
            }
            if since.elapsed() > LONGEST {
                bail!("the queue was not drained within {LONGEST:?}");
            }
            // Often enough to be exact within a few thousandths of the time, and cheap: it asks NATS alone.
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until `jobs` jobs of a queue run.
    pub(super) async fn running(&self, queue: &str, jobs: i64) -> anyhow::Result<()> {
        self.wait("the jobs to run", || async { Ok(self.state(queue).await?.processing >= jobs) }).await
    }

    pub(super) async fn wait<F>(&self, what: &str, is_so: impl Fn() -> F) -> anyhow::Result<()>
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
            let now = cpu::Processes::look();
            let pids = [("postgres", servers.postgres.pid()), ("nats", servers.nats.pid())];
            for (part, pid) in pids {
                if let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) {
                    parts.insert(part, now.seconds_of(pid));
                }
            }
            let clients: f64 = workers.iter().map(|worker| now.seconds_of(worker.child.id())).sum();
            let own = cpu::seconds_of_self();
            parts.insert("client", if workers.is_empty() { own } else { clients });
        }
        parts
    }

    /// The servers' versions.
    pub(super) async fn versions(&self) -> (String, String) {
        let postgres = self.tenure.store().bench_version().await.unwrap_or_default();
        (postgres, self.tenure.nats().server_version())
    }

    /// Removes everything that the bench created, and ends the servers.
    pub(super) async fn close(self) {
        if self.private.is_none() {
            drop(self.batches.write().await);
            // Enqueues whose caller is gone may be in a batch. This one comes after them.
            self.tenure.enqueue(request(&self.queue(), 1)).await.ok();
            self.tenure.flush().await;
            if let Err(error) = self.tenure.store().bench_raw_table(&self.raw_table(), false).await {
                tracing::warn!(%error, "the bench's table was not removed");
            }
            if let Err(error) = self.forget_workers().await {
                tracing::warn!(%error, "the rows of the bench's workers were not removed");
            }
            for n in 0..self.queues.load(Ordering::Relaxed) {
                let queue = format!("{}{n}", self.prefix());
                let removed = self.tenure.store().bench_clear(&queue, self.first).await;
                if let Err(error) = removed {
                    tracing::warn!(%error, queue, "the bench's jobs were not removed");
                }
                if let Err(error) = self.tenure.nats().forget(&queue).await {
                    tracing::warn!(%error, queue, "the bench's messages were not removed");
                }
            }
        }
        self.tenure.close().await;
    }
}

/// The CPU time of each part between two readings, in microseconds per job.
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

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 of them")]
pub(super) fn count(n: usize) -> f64 {
    n as f64
}

/// By how much the database's clock is ahead, from the quickest of 20 answers: exact within half of its round trip.
async fn clock_ahead_us(tenure: &Tenure) -> anyhow::Result<i64> {
    let mut answers = Vec::new();
    for _ in 0..20 {
        let asked = now_us();
        let theirs = tenure.store().database_time().await?.timestamp_micros();
        let answered = now_us();
        answers.push((answered - asked, theirs - i64::midpoint(asked, answered)));
    }
    Ok(answers.into_iter().min().map_or(0, |(_, ahead)| ahead))
}

fn private_folder() -> anyhow::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("tenure-bench-").tempdir().context("create a folder")?;
    if postgres_user().is_some() {
        // Postgres runs as another user, which must be able to reach its own folder.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}

/// A worker's process. Dropping it kills the process.
pub(super) struct WorkerProcess {
    pub(super) child: Child,
    stopped: bool,
}

impl WorkerProcess {
    pub(super) fn memory_mb(&self) -> anyhow::Result<f64> {
        cpu::memory_mb(self.child.id()).context("read a worker's memory: works on Linux only")
    }

    /// Waits until it takes jobs of all its queues.
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("a worker prints only once that it is ready")?;
        let line = spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = timeout(LONGEST, line).await.context("a worker did not become ready")???;
        if line.trim() != READY {
            bail!("a worker ended, or printed {line:?}, before it was ready");
        }
        Ok(())
    }

    /// Kills the process, as a crash does.
    pub(super) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        self.stopped = true;
    }
}

/// Stops workers in an orderly way, so that no other worker looks for them.
pub(super) async fn stop(mut workers: Vec<WorkerProcess>) -> anyhow::Result<()> {
    for worker in &mut workers {
        drop(worker.child.stdin.take());
    }
    for worker in &mut workers {
        let since = Instant::now();
        while worker.child.try_wait()?.is_none() {
            if since.elapsed() > LONGEST {
                bail!("a worker did not end");
            }
            sleep(Duration::from_millis(10)).await;
        }
        worker.stopped = true;
    }
    Ok(())
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if !self.stopped {
            self.kill();
        }
    }
}
