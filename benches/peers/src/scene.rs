//! Scene: one work of one library: a producer's process, the workers' processes, and what is measured of them.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::{process::Command, time::sleep};

use crate::{
    child::{Producer, Worker},
    cpu::seconds_of,
    order::Order,
    peers::{self, Library, Role, Servers},
    servers::{Arena, Broker, Database, Gateway},
    speak::{Ask, Seen},
    works::{Row, SAMPLES, TASKS, Values, WARM, Work},
};

/// No work takes longer, or it has failed.
const LONGEST: Duration = Duration::from_mins(2);
/// How often this process looks at what the workers have told it.
const LOOKED_EVERY: Duration = Duration::from_millis(1);

/// Does one work on servers of its own, which are removed afterwards, also after an error.
pub(crate) async fn play(arena: &Arena, library: Library, work: Work, jobs: usize) -> anyhow::Result<Values> {
    let database = arena.create_database().await?;
    let broker = arena.start_broker(library).await?;
    let jobs = library.jobs(work, jobs);
    let scene = Scene { arena, database: &database, broker: &broker, library, work, jobs };
    let played = tokio::time::timeout(LONGEST, scene.play()).await;
    drop(broker);
    database.drop().await?;
    match played {
        Ok(values) => values,
        Err(_) => bail!("not done after {} s", LONGEST.as_secs()),
    }
}

struct Scene<'a> {
    arena: &'a Arena,
    database: &'a Database,
    broker: &'a Broker,
    library: Library,
    work: Work,
    jobs: usize,
}

impl Scene<'_> {
    async fn play(&self) -> anyhow::Result<Values> {
        let mut producer = Producer::start(self.command(Role::Produce)?).await?;
        // The producer has created the schema.
        let gateway = if self.library.has_gateway() {
            Some(self.arena.start_gateway(self.database, self.broker)?)
        } else {
            None
        };
        match self.work {
            Work::OneByOne => self.enqueue(&mut producer, 1).await,
            Work::Tasks => self.enqueue(&mut producer, TASKS).await,
            Work::Batches => {
                producer.span(Ask::Batches { jobs: 1 }).await?;
                let span = producer.span(Ask::Batches { jobs: self.jobs }).await?;
                Ok(Values::from([(Row::Batches, rate(self.jobs, span))]))
            }
            Work::Mixed => {
                let ask = Ask::Enqueue { first: TASKS, jobs: self.jobs, tasks: TASKS };
                self.mixed(&mut producer, ask).await
            }
            Work::MixedBatches => self.mixed(&mut producer, Ask::Batches { jobs: self.jobs }).await,
            Work::Pickup => self.pickup(&mut producer).await,
            _ => self.drain(&mut producer, gateway.as_ref()).await,
        }
    }

    /// After a job of each task: connections, plans and caches are there from then on.
    async fn enqueue(&self, producer: &mut Producer, tasks: usize) -> anyhow::Result<Values> {
        producer.span(Ask::Enqueue { first: 0, jobs: tasks, tasks }).await?;
        let span = producer.span(Ask::Enqueue { first: tasks, jobs: self.jobs, tasks }).await?;
        Ok(Values::from([(self.work.row(), rate(self.jobs, span))]))
    }

    /// From the first start of a handler to the last end in the database.
    ///
    /// What precedes the first start, the workers' own start and their first fetch, is not in the rate; it is in the
    /// CPU time.
    async fn drain(&self, producer: &mut Producer, gateway: Option<&Gateway>) -> anyhow::Result<Values> {
        producer.span(Ask::Batches { jobs: self.jobs }).await?;
        let mut workers = Vec::new();
        for _ in 0..self.work.workers() {
            workers.push(Worker::start(self.command(Role::Work)?).await?);
        }
        let pids: Vec<_> = workers.iter().map(Worker::pid).collect();
        let before = self.cpu(&pids, gateway);
        for worker in &mut workers {
            worker.go().await?;
        }
        let end = self.all_done(producer, &mut workers, self.jobs).await?;
        let after = self.cpu(&pids, gateway);
        let seen = self.seen(workers, self.jobs).await?;
        let mut values = Values::from([(self.work.row(), rate(self.jobs, (seen.first_us, end)))]);
        if self.work == Work::Drain {
            let parts = before.into_iter().zip(after).map(|((row, before), (_, after))| {
                let us = (after - before) * 1e6 / count(self.jobs);
                (row, us)
            });
            let parts: Values = parts.collect();
            values.insert(Row::Cpu, parts.values().sum());
            values.extend(parts);
        }
        Ok(values)
    }

    /// From the first enqueue to the last end.
    async fn mixed(&self, producer: &mut Producer, ask: Ask) -> anyhow::Result<Values> {
        let mut workers = self.one_worker().await?;
        producer.span(Ask::Enqueue { first: 0, jobs: TASKS, tasks: TASKS }).await?;
        self.all_done(producer, &mut workers, TASKS).await?;
        let (begin, _) = producer.span(ask).await?;
        let end = self.all_done(producer, &mut workers, TASKS + self.jobs).await?;
        self.seen(workers, TASKS + self.jobs).await?;
        Ok(Values::from([(self.work.row(), rate(self.jobs, (begin, end)))]))
    }

    async fn pickup(&self, producer: &mut Producer) -> anyhow::Result<Values> {
        if let Some(table) = self.library.jobs_table() {
            self.database.note_commits(table).await?;
        }
        let mut workers = self.one_worker().await?;
        // Beyond the samples: the worker notes no figures of these.
        producer.ask(Ask::Paced { first: SAMPLES, jobs: WARM, every_ms: 5 }).await?;
        self.all_done(producer, &mut workers, WARM).await?;
        let calls = producer.ask(Ask::Paced { first: 0, jobs: SAMPLES, every_ms: 20 }).await?;
        self.all_done(producer, &mut workers, WARM + SAMPLES).await?;
        let starts = self.seen(workers, WARM + SAMPLES).await?.starts_us;
        let calls: Vec<_> = calls.iter().map(|(called, _)| *called).collect();
        let [p50, p99] = latencies(&starts, &calls)?;
        let mut values = Values::from([(Row::CallP50, p50), (Row::CallP99, p99)]);
        if self.library.jobs_table().is_some() {
            let commits = self.database.commits().await?;
            let commits = commits.get(WARM..).context("every commit was noted")?;
            let [p50, p99] = latencies(&starts, commits)?;
            values.extend([(Row::CommitP50, p50), (Row::CommitP99, p99)]);
        }
        Ok(values)
    }

    async fn one_worker(&self) -> anyhow::Result<Vec<Worker>> {
        let mut worker = Worker::start(self.command(Role::Work)?).await?;
        worker.go().await?;
        Ok(vec![worker])
    }

    /// Waits until the workers have begun this many jobs, and the database says that they are finished. Returns the
    /// moment of that look.
    async fn all_done(
        &self,
        producer: &mut Producer,
        workers: &mut [Worker],
        jobs: usize,
    ) -> anyhow::Result<i64> {
        loop {
            let mut count = 0;
            for worker in &mut *workers {
                count += worker.count().await?;
            }
            if count >= jobs {
                // Not before: the database is being measured.
                return Ok(producer.span(Ask::Finished { jobs }).await?.1);
            }
            sleep(LOOKED_EVERY).await;
        }
    }

    /// Ends the workers, and checks that every job has run once.
    async fn seen(&self, workers: Vec<Worker>, jobs: usize) -> anyhow::Result<Seen> {
        let mut all = Seen { first_us: i64::MAX, ..Seen::default() };
        for worker in workers {
            let seen = worker.end().await?;
            all.count += seen.count;
            all.total += seen.total;
            all.first_us = all.first_us.min(seen.first_us);
            all.starts_us.extend(seen.starts_us);
        }
        let (count, total) = (all.count, all.total);
        ensure!(
            count == jobs && total == Order::example(0, 0).total() * jobs as u64,
            "{jobs} jobs are finished, but {count} handlers have run, and summed up {total}"
        );
        Ok(all)
    }

    /// CPU seconds so far of the workers, of Postgres, of NATS or Redis, and of the gateway.
    fn cpu(&self, workers: &[u32], gateway: Option<&Gateway>) -> Vec<(Row, f64)> {
        let broker: Vec<_> = self.broker.pid().into_iter().collect();
        // The database of those on Redis is their Redis.
        let is_on_redis = self.library.redis_sync().is_some();
        let postgres = if is_on_redis { Vec::new() } else { self.arena.postgres_pid() };
        let mut parts = vec![
            (Row::CpuClient, seconds_of(workers)),
            (Row::CpuPostgres, seconds_of(&postgres)),
            (Row::CpuBroker, seconds_of(&broker)),
        ];
        parts.extend(gateway.map(|gateway| (Row::CpuGateway, seconds_of(&[gateway.pid()]))));
        parts
    }

    fn command(&self, role: Role) -> anyhow::Result<Command> {
        let (library, work) = (self.library, self.work);
        if let Some(script) = library.script(role, work, &self.broker.url()) {
            return Ok(script);
        }
        let servers = Servers { database: self.database.url().to_owned(), broker: self.broker.url() };
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command
            .arg(if role == Role::Produce { "produce" } else { "work" })
            .args([library.to_string(), work.to_string()])
            .args(["--database", &servers.database, "--broker", &servers.broker])
            .envs(peers::environment(library, work));
        Ok(command)
    }
}

/// The median and the 99th percentile of these starts after these moments, in milliseconds.
fn latencies(starts: &[i64], since: &[i64]) -> anyhow::Result<[f64; 2]> {
    ensure!(starts.len() == since.len(), "{} handlers noted for {} jobs", starts.len(), since.len());
    ensure!(starts.iter().all(|start| *start > 0), "a handler did not run");
    // A handler may start before its insert has returned.
    let mut all: Vec<_> = starts.iter().zip(since).map(|(start, since)| (start - since).max(0)).collect();
    all.sort_unstable();
    let ms =
        |at: usize| all.get(at - 1).map_or(0.0, |us| count(usize::try_from(*us).unwrap_or_default()) / 1e3);
    Ok([ms(all.len().div_ceil(2)), ms((all.len() * 99).div_ceil(100))])
}

fn rate(jobs: usize, (begin_us, end_us): (i64, i64)) -> f64 {
    let took = usize::try_from(end_us - begin_us).unwrap_or_default().max(1);
    count(jobs) * 1e6 / count(took)
}

#[expect(clippy::cast_precision_loss, reason = "jobs and microseconds of a run are fewer than 2^52")]
fn count(n: usize) -> f64 {
    n as f64
}
