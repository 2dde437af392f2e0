//! `riverqueue`: River's own client and worker for Rust.

use std::time::Duration;

use anyhow::Context;
use riverqueue::{
    Client, Job, JobArgs, QueueConfig, WorkContext, WorkOutcome, Workers, migrate::PostgresMigrator,
};
use sqlx::PgPool;

use super::{About, PRODUCERS, WORKER, pool};
use crate::{
    handled,
    order::Order,
    works::{Peer, Work},
};

pub(super) const ABOUT: About = About {
    finished_rows: "kept for 24 h",
    fence: "none: a completion asks for a running job, not for its attempt",
    settings: "fetch_cooldown 1 ms (producers and worker); drain and mixed: 1,000 workers, poll 5 ms; \
               pick-up: 100 workers; its batches insert row by row in one transaction",
};

/// Its default of 100 ms holds back notifications and fetches alike.
const COOLDOWN: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(super) struct River {
    /// Not the worker's: a client wakes its own worker without Postgres.
    producer: Client,
    producers: PgPool,
    url: String,
    work: Work,
}

impl JobArgs for Order {
    const KIND: &'static str = Order::KIND;
}

impl Peer for River {
    async fn open(url: &str, work: Work) -> anyhow::Result<Self> {
        let producers = pool(url, PRODUCERS).await?;
        PostgresMigrator::new(producers.clone()).migrate_up().await.context("migrate")?;
        let producer = Client::builder(producers.clone()).fetch_cooldown(COOLDOWN).build()?;
        Ok(Self { producer, producers, url: url.into(), work })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        self.producer.insert(order).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, orders: Vec<Order>) -> anyhow::Result<()> {
        self.producer.insert_many(orders).await?;
        Ok(())
    }

    async fn work(self) -> anyhow::Result<()> {
        let mut workers = Workers::new();
        workers.add_fn(async |_: WorkContext, job: Job<Order>| {
            handled::handle(&job.args);
            anyhow::Ok(WorkOutcome::Complete)
        })?;
        let queue = match self.work {
            Work::Pickup => QueueConfig::new(100),
            _ => QueueConfig::new(1_000).with_fetch_poll_interval(Duration::from_millis(5)),
        };
        let client = Client::builder(pool(&self.url, WORKER).await?)
            .workers(workers)
            .queue("default", queue)
            .fetch_cooldown(COOLDOWN)
            .build()?;
        client.start()?.wait().await?;
        Ok(())
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        let finished: i64 = sqlx::query_scalar("SELECT count(*) FROM river_job WHERE state = 'completed'")
            .fetch_one(&self.producers)
            .await?;
        Ok(usize::try_from(finished)?)
    }
}
