//! `apalis` on `apalis-postgres`.

use std::{pin::Pin, time::Duration};

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use futures::TryFutureExt;
use sqlx::PgPool;

use super::{About, PRODUCERS, Peer, Servers, WORKER, pool};
use crate::{
    handled,
    order::Order,
    works::{QUEUES, Work},
};

pub(super) const ABOUT: About = About {
    history: "kept",
    fence: "the worker's name, not the attempt",
    synced: "each commit",
    settings: "lock_tasks off, persist_results on (or nothing is marked as done), LISTEN and a poll each \
               second, parallelize(tokio::spawn); drain and mixed: batch and concurrency 5,000, 2 workers \
               in the process (of two queues one each; of four processes one each); pick-up: batch 100, \
               concurrency 64, 1 worker",
};

#[derive(Clone)]
pub(super) struct Apalis {
    /// One for each queue.
    storages: Vec<PostgresStorage<Order>>,
}

fn config(queue: &str, work: Work) -> Config {
    let batch = if work == Work::Pickup { 100 } else { 5_000 };
    Config::default().queue(queue).batch_size(batch).lock_tasks(false).persist_results(true)
}

async fn handler(order: Order) -> Result<(), BoxDynError> {
    handled::handle(&order);
    Ok(())
}

/// One of its workers, until it fails. Boxed: the compiler cannot see through an async function that holds
/// it that it may be sent.
fn worker(
    name: &str,
    queue: &str,
    pool: &PgPool,
    work: Work,
) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>> {
    let storage = PostgresStorage::<Order>::new(pool).with_config(config(queue, work));
    let worker = WorkerBuilder::new(name)
        .backend(storage.with_pubsub().poll_with_interval(Duration::from_secs(1)))
        .concurrency(if work == Work::Pickup { 64 } else { 5_000 })
        .parallelize(tokio::spawn)
        .build(handler);
    Box::pin(worker.run().map_err(Into::into))
}

impl Peer for Apalis {
    async fn open(servers: &Servers, work: Work) -> anyhow::Result<Self> {
        let producers = pool(&servers.database, PRODUCERS).await?;
        PostgresStorage::setup(&producers).await?;
        let storage = |queue: &&str| PostgresStorage::new(&producers).with_config(config(queue, work));
        Ok(Self { storages: work.queues().iter().map(storage).collect() })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        Ok(self.storages[0].push(order).await?)
    }

    async fn enqueue_batch(&mut self, queue: &str, orders: Vec<Order>) -> anyhow::Result<()> {
        let at = QUEUES.iter().position(|name| *name == queue).unwrap_or_default();
        Ok(self.storages[at].push_bulk(orders).await?)
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        let finished: i64 = sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status = 'Done'")
            .fetch_one(self.storages[0].pool())
            .await?;
        Ok(usize::try_from(finished)?)
    }

    async fn work(servers: &Servers, work: Work) -> anyhow::Result<()> {
        let pool = pool(&servers.database, WORKER).await?;
        let name = |n: u32| format!("worker-{}-{n}", std::process::id());
        if matches!(work, Work::Pickup | Work::DrainFourWorkers) {
            return worker(&name(1), QUEUES[0], &pool, work).await;
        }
        let second = work.queues().last().copied().unwrap_or(QUEUES[0]);
        tokio::try_join!(worker(&name(1), QUEUES[0], &pool, work), worker(&name(2), second, &pool, work))?;
        Ok(())
    }
}
