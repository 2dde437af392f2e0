//! `apalis` on `apalis-postgres`.

use std::{pin::Pin, time::Duration};

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use futures::TryFutureExt;
use sqlx::PgPool;

use super::{About, PRODUCERS, WORKER, pool};
use crate::{
    handled,
    order::Order,
    works::{Peer, Work},
};

pub(super) const ABOUT: About = About {
    finished_rows: "kept",
    fence: "by the worker's name, not by the attempt",
    settings: "lock_tasks off, persist_results on (or nothing is marked as done), LISTEN and a poll each \
               second, parallelize(tokio::spawn); drain and mixed: batch and concurrency 5,000, 2 workers \
               in the process; pick-up: batch 100, concurrency 64, 1 worker",
};

#[derive(Clone)]
pub(super) struct Apalis {
    storage: PostgresStorage<Order>,
    url: String,
    work: Work,
}

fn config(work: Work) -> Config {
    let batch = if work == Work::Pickup { 100 } else { 5_000 };
    Config::default().queue("orders").batch_size(batch).lock_tasks(false).persist_results(true)
}

async fn handler(order: Order) -> Result<(), BoxDynError> {
    handled::handle(&order);
    Ok(())
}

/// One of its workers, until it fails. Boxed: the compiler cannot see through an async function that holds
/// it that it may be sent.
fn worker(name: &str, pool: &PgPool, work: Work) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>> {
    let storage = PostgresStorage::<Order>::new(pool).with_config(config(work));
    let worker = WorkerBuilder::new(name)
        .backend(storage.with_pubsub().poll_with_interval(Duration::from_secs(1)))
        .concurrency(if work == Work::Pickup { 64 } else { 5_000 })
        .parallelize(tokio::spawn)
        .build(handler);
    Box::pin(worker.run().map_err(Into::into))
}

impl Peer for Apalis {
    async fn open(url: &str, work: Work) -> anyhow::Result<Self> {
        let producers = pool(url, PRODUCERS).await?;
        PostgresStorage::setup(&producers).await?;
        let storage = PostgresStorage::new(&producers).with_config(config(work));
        Ok(Self { storage, url: url.into(), work })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        Ok(self.storage.push(order).await?)
    }

    async fn enqueue_batch(&mut self, orders: Vec<Order>) -> anyhow::Result<()> {
        Ok(self.storage.push_bulk(orders).await?)
    }

    async fn work(self) -> anyhow::Result<()> {
        let pool = pool(&self.url, WORKER).await?;
        if self.work == Work::Pickup {
            return worker("worker-1", &pool, self.work).await;
        }
        tokio::try_join!(worker("worker-1", &pool, self.work), worker("worker-2", &pool, self.work))?;
        Ok(())
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        let finished: i64 = sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status = 'Done'")
            .fetch_one(self.storage.pool())
            .await?;
        Ok(usize::try_from(finished)?)
    }
}
