//! `tenure` itself, measured as its peers are.

use sqlx::PgPool;
use tenure::{Config, Job, JobContext, JobError, JobRequest, KindOptions, Outcome, Worker};

use super::{About, Peer, Servers, pool};
use crate::{handled, order::Order, works::Work};

pub(super) const ABOUT: About = About {
    history: "kept",
    fence: "the claim's number",
    synced: "each commit",
    settings: "defaults but for its slots: 2,000 for one worker, 1,000 for each of two queues, 500 for each of four \
               workers; delivered by NATS (JetStream, file storage). Rows: history is a table with a partition a day",
};

#[derive(Clone)]
pub(super) struct Tenure {
    client: tenure::Tenure,
    /// For what the bench alone asks.
    counts: PgPool,
    queue: &'static str,
}

impl Job for Order {
    const KIND: &'static str = Order::KIND;
}

const fn slots(work: Work) -> u32 {
    match work {
        Work::DrainTwoQueues => 1_000,
        Work::DrainFourWorkers => 500,
        _ => 2_000,
    }
}

impl Peer for Tenure {
    async fn open(servers: &Servers, work: Work) -> anyhow::Result<Self> {
        let client = tenure::Tenure::connect(&Config::new(&servers.database, &servers.broker)).await?;
        let queues: Vec<_> = work.queues().iter().map(ToString::to_string).collect();
        client.setup(&queues).await?;
        Ok(Self { client, counts: pool(&servers.database, 1).await?, queue: work.queues()[0] })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        self.client.enqueue(JobRequest::from(order).queue(self.queue)).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, queue: &str, orders: Vec<Order>) -> anyhow::Result<()> {
        let requests = orders.into_iter().map(|order| JobRequest::from(order).queue(queue));
        self.client.enqueue_many(requests).await?;
        Ok(())
    }

    async fn flush(&self) {
        self.client.flush().await;
    }

    /// A finished job has left this table for the history, in the statement that completed it.
    async fn finished(&self, jobs: usize) -> anyhow::Result<usize> {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM tenure.jobs").fetch_one(&self.counts).await?;
        Ok(jobs.saturating_sub(usize::try_from(left)?))
    }

    async fn work(servers: &Servers, work: Work) -> anyhow::Result<()> {
        let tenure = tenure::Tenure::connect(&Config::new(&servers.database, &servers.broker)).await?;
        let options = match work {
            Work::DrainUnkept => KindOptions::new().no_history(),
            _ => KindOptions::new(),
        };
        let handler = move |order: Order, ctx: JobContext| async move {
            handled::handle(&order);
            if work == Work::DrainProgress {
                ctx.progress("packing", 50.0, "half of the lines are packed").await?;
            }
            Ok::<_, JobError>(Outcome::Done(None))
        };
        let mut worker = Worker::builder(&tenure).handle_with(options, handler);
        for queue in work.queues() {
            worker = worker.only_queue(queue, slots(work));
        }
        worker.run_until(std::future::pending()).await?;
        Ok(())
    }
}
