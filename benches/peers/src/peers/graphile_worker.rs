//! `graphile_worker`: the Rust port of Graphile Worker.

use std::time::Duration;

use anyhow::Context;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use sqlx::PgPool;

use super::{About, PRODUCERS, WORKER, pool};
use crate::{
    handled,
    order::Order,
    works::{Peer, Work},
};

pub(super) const ABOUT: About = About {
    finished_rows: "deleted",
    fence: "none: a completion deletes by id alone",
    settings: "local queue; drain: concurrency 200, 2 local queues of 2,000, completions batched for 2 ms; \
               mixed: concurrency 64, queue 500, 5 ms, poll 10 ms, ttl 200 ms; \
               pick-up: concurrency 4, queue 100, 5 ms, ttl 200 ms",
};

const SCHEMA: &str = "graphile_worker";

#[derive(Clone)]
pub(super) struct GraphileWorker {
    utils: WorkerUtils,
    producers: PgPool,
    url: String,
    work: Work,
}

impl TaskHandler for Order {
    const IDENTIFIER: &'static str = Order::KIND;

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        handled::handle(&self);
        Ok::<(), String>(())
    }
}

impl Peer for GraphileWorker {
    async fn open(url: &str, work: Work) -> anyhow::Result<Self> {
        let producers = pool(url, PRODUCERS).await?;
        let utils = WorkerUtils::new(producers.clone(), SCHEMA);
        utils.migrate().await.context("migrate")?;
        Ok(Self { utils, producers, url: url.into(), work })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        self.utils.add_job(order, JobSpec::default()).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, orders: Vec<Order>) -> anyhow::Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = orders.into_iter().map(|order| (order, &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn work(self) -> anyhow::Result<()> {
        let ms = Duration::from_millis;
        let options = WorkerOptions::default()
            .pg_pool(pool(&self.url, WORKER).await?)
            .schema(SCHEMA)
            .define_job::<Order>()
            .listen_os_shutdown_signals(false);
        // The local queue can stand still when jobs arrive while it runs, until its ttl has passed:
        // 5 minutes, unless it is told otherwise.
        let queue = LocalQueueConfig::default();
        let options = match self.work {
            Work::Mixed => options
                .concurrency(64)
                .poll_interval(ms(10))
                .complete_job_batch_delay(ms(5))
                .local_queue(queue.with_size(500).with_ttl(ms(200))),
            Work::Pickup => options
                .concurrency(4)
                .complete_job_batch_delay(ms(5))
                .local_queue(queue.with_size(100).with_ttl(ms(200))),
            _ => options
                .concurrency(200)
                .complete_job_batch_delay(ms(2))
                .local_queue(queue.with_size(2_000).with_queue_count(2)),
        };
        options.init().await?.run().await?;
        Ok(())
    }

    async fn finished(&self, jobs: usize) -> anyhow::Result<usize> {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs")
            .fetch_one(&self.producers)
            .await?;
        Ok(jobs.saturating_sub(usize::try_from(left)?))
    }
}
