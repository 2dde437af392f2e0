//! `graphile_worker`: the Rust port of Graphile Worker.

use anyhow::Context;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use sqlx::PgPool;

use super::{About, PRODUCERS, Peer, Servers, WORKER, ms, pool};
use crate::{handled, order::Order, works::Work};

pub(super) const ABOUT: About = About {
    history: "deleted",
    fence: "none: by id alone",
    synced: "each commit",
    settings: "local queue; drain: concurrency 200, 2 local queues of 2,000, completions batched for 2 ms (the same \
               for each of four workers); mixed: concurrency 64, queue 500, 5 ms, poll 10 ms, ttl 200 ms; \
               pick-up: concurrency 4, queue 100, 5 ms, ttl 200 ms",
};

const SCHEMA: &str = "graphile_worker";

#[derive(Clone)]
pub(super) struct GraphileWorker {
    utils: WorkerUtils,
    producers: PgPool,
}

impl TaskHandler for Order {
    const IDENTIFIER: &'static str = Order::KIND;

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        handled::handle(&self);
        Ok::<(), String>(())
    }
}

impl Peer for GraphileWorker {
    async fn open(servers: &Servers, _: Work) -> anyhow::Result<Self> {
        let producers = pool(&servers.database, PRODUCERS).await?;
        let utils = WorkerUtils::new(producers.clone(), SCHEMA);
        utils.migrate().await.context("migrate")?;
        Ok(Self { utils, producers })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        self.utils.add_job(order, JobSpec::default()).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, _: &str, orders: Vec<Order>) -> anyhow::Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = orders.into_iter().map(|order| (order, &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn finished(&self, jobs: usize) -> anyhow::Result<usize> {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs")
            .fetch_one(&self.producers)
            .await?;
        Ok(jobs.saturating_sub(usize::try_from(left)?))
    }

    async fn work(servers: &Servers, work: Work) -> anyhow::Result<()> {
        let options = WorkerOptions::default()
            .pg_pool(pool(&servers.database, WORKER).await?)
            .schema(SCHEMA)
            .define_job::<Order>()
            .listen_os_shutdown_signals(false);
        // The local queue can stand still when jobs arrive while it runs, until its ttl has passed:
        // 5 minutes, unless it is set otherwise.
        let queue = LocalQueueConfig::default();
        let options = match work {
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
        Box::pin(options.init()).await?.run().await?;
        Ok(())
    }
}
