//! `awa`, on its queue-storage engine: what a new installation gets.

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
};
use sqlx_0_8::postgres::{PgPool, PgPoolOptions};

use super::{About, PRODUCERS, Peer, Servers, WORKER, ms};
use crate::{handled, order::Order, works::Work};

pub(super) const ABOUT: About = About {
    history: "kept, as rows of batches",
    fence: "the claim's number",
    synced: "each commit",
    settings: "deadline_duration 0, its short path; batches by COPY; drain and mixed: 2,000 workers (1,000 for each of \
               two queues, 500 for each of four workers), poll 50 ms, claims and completions in batches of 2,000; \
               pick-up: 50 workers",
};

/// Batches, single rows, and what has been pruned of both. Its own `queue_counts` answers the same, but
/// looks through all claims as well, beside the last completions, and takes longer than they do.
const FINISHED: &str = "SELECT ( \
    coalesce((SELECT sum(completed_count) FROM awa.receipt_completion_batches), 0) \
    + (SELECT count(*) FROM awa.done_entries) \
    + coalesce((SELECT sum(pruned_completed_count) FROM awa.queue_terminal_rollups), 0))::bigint";

#[derive(Clone)]
pub(super) struct Awa {
    producers: PgPool,
    storage: Arc<QueueStorage>,
    queue: &'static str,
}

impl JobArgs for Order {
    fn kind() -> &'static str {
        Order::KIND
    }
}

/// It takes this setting from its environment only.
pub(super) fn environment(work: Work) -> Vec<(&'static str, &'static str)> {
    match work {
        Work::Pickup => Vec::new(),
        _ => vec![("AWA_COMPLETION_BATCH_SIZE", "2000")],
    }
}

/// See `super::pool`; awa is built with an older sqlx.
async fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    Ok(options.connect(url).await?)
}

fn options(queue: &str) -> InsertOpts {
    InsertOpts { queue: queue.into(), ..InsertOpts::default() }
}

fn queue_config(work: Work) -> QueueConfig {
    let queue = QueueConfig { deadline_duration: Duration::ZERO, ..QueueConfig::default() };
    let max_workers = match work {
        Work::Pickup => return QueueConfig { max_workers: 50, ..queue },
        Work::DrainTwoQueues => 1_000,
        Work::DrainFourWorkers => 500,
        _ => 2_000,
    };
    QueueConfig { max_workers, poll_interval: ms(50), claim_batch_size: 2_000, ..queue }
}

impl Peer for Awa {
    async fn open(servers: &Servers, work: Work) -> anyhow::Result<Self> {
        let producers = pool(&servers.database, PRODUCERS).await?;
        awa::migrations::run(&producers).await.context("migrate")?;
        // What the first worker does on a new installation. Without it, single inserts that precede the first
        // worker go to the engine of earlier versions, and stay there.
        let is_active: bool = sqlx_0_8::query_scalar("SELECT awa.storage_auto_finalize_if_fresh('awa')")
            .fetch_one(&producers)
            .await?;
        ensure!(is_active, "the queue-storage engine was not activated");
        let storage = Arc::new(QueueStorage::new(QueueStorageConfig::default())?);
        Ok(Self { producers, storage, queue: work.queues()[0] })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        awa::insert_with(&self.producers, &order, options(self.queue)).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, queue: &str, orders: Vec<Order>) -> anyhow::Result<()> {
        let params = |order| {
            let args = serde_json::to_value(order)?;
            anyhow::Ok(InsertParams { kind: Order::KIND.into(), args, opts: options(queue) })
        };
        let params: Vec<_> = orders.into_iter().map(params).collect::<anyhow::Result<_>>()?;
        self.storage.enqueue_params_copy(&self.producers, &params).await?;
        Ok(())
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        let finished: i64 = sqlx_0_8::query_scalar(FINISHED).fetch_one(&self.producers).await?;
        Ok(usize::try_from(finished)?)
    }

    async fn work(servers: &Servers, work: Work) -> anyhow::Result<()> {
        let mut client = Client::builder(pool(&servers.database, WORKER).await?);
        for queue in work.queues() {
            client = client.queue(*queue, queue_config(work));
        }
        let client = client
            .register::<Order, _, _>(move |order, context| {
                if work == Work::DrainProgress {
                    context.set_progress(50, "half of the lines are packed");
                }
                async move {
                    handled::handle(&order);
                    Ok(JobResult::Completed)
                }
            })
            .build()?;
        client.start().await?;
        // It works while it is there, and does not report failures.
        pending().await
    }
}
