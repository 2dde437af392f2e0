//! `riverqueue`: River's own client and worker for Rust.

use anyhow::Context;
use riverqueue::{
    Client, InsertOpts, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers,
    migrate::PostgresMigrator,
};
use sqlx::PgPool;

use super::{About, PRODUCERS, Peer, Servers, WORKER, ms, pool};
use crate::{handled, order::Order, works::Work};

pub(super) const ABOUT: About = About {
    history: "kept for 24 h",
    fence: "none: any running attempt",
    synced: "each commit",
    settings: "fetch_cooldown 1 ms (producers and worker); drain and mixed: 1,000 workers, poll 5 ms (500 for each of \
               two queues or of four workers); pick-up: 100 workers; its batches insert row by row in one transaction",
};

/// Its default of 100 ms holds back notifications and fetches alike.
const COOLDOWN: std::time::Duration = ms(1);

#[derive(Clone)]
pub(super) struct River {
    producer: Client,
    producers: PgPool,
    queue: &'static str,
}

impl JobArgs for Order {
    const KIND: &'static str = Order::KIND;
}

impl Peer for River {
    async fn open(servers: &Servers, work: Work) -> anyhow::Result<Self> {
        let producers = pool(&servers.database, PRODUCERS).await?;
        PostgresMigrator::new(producers.clone()).migrate_up().await.context("migrate")?;
        let producer = Client::builder(producers.clone()).fetch_cooldown(COOLDOWN).build()?;
        Ok(Self { producer, producers, queue: work.queues()[0] })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        self.producer.insert(order).opts(InsertOpts::default().with_queue(self.queue)).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, queue: &str, orders: Vec<Order>) -> anyhow::Result<()> {
        let item = |order| (order, InsertOpts::default().with_queue(queue));
        self.producer.insert_many(orders.into_iter().map(item)).await?;
        Ok(())
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        let finished: i64 = sqlx::query_scalar("SELECT count(*) FROM river_job WHERE state = 'completed'")
            .fetch_one(&self.producers)
            .await?;
        Ok(usize::try_from(finished)?)
    }

    async fn work(servers: &Servers, work: Work) -> anyhow::Result<()> {
        let mut workers = Workers::new();
        workers.add_fn(async |_: WorkContext, job: Job<Order>| {
            handled::handle(&job.args);
            anyhow::Ok(WorkOutcome::Complete)
        })?;
        let queue = || match work {
            Work::Pickup => QueueConfig::new(100),
            Work::DrainTwoQueues | Work::DrainFourWorkers => {
                QueueConfig::new(500).with_fetch_poll_interval(ms(5))
            }
            _ => QueueConfig::new(1_000).with_fetch_poll_interval(ms(5)),
        };
        let mut client = Client::builder(pool(&servers.database, WORKER).await?).workers(workers);
        for name in work.queues() {
            client = client.queue(*name, queue());
        }
        client.fetch_cooldown(COOLDOWN).build()?.start()?.wait().await?;
        Ok(())
    }
}
