//! Raw: plain INSERTs of rows as wide as a job's, each over a connection of its own. What this Postgres can do.

use sqlx::{AssertSqlSafe, PgPool, Postgres, pool::PoolConnection};

use super::{About, PRODUCERS, Peer, Servers, pool};
use crate::{order::Order, works::Work};

pub(super) const ABOUT: About = About {
    history: "-",
    fence: "-",
    synced: "each commit",
    settings: "one prepared statement on a connection of each task, into a table with a primary key and no other index",
};

const TABLE: &str = "CREATE TABLE raw_jobs (
    id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    queue      text        NOT NULL,
    kind       text        NOT NULL,
    payload    jsonb       NOT NULL,
    status     text        NOT NULL DEFAULT 'queued',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp())";

pub(super) struct Raw {
    pool: PgPool,
    /// Of this task; taken with its first row.
    connection: Option<PoolConnection<Postgres>>,
}

impl Clone for Raw {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), connection: None }
    }
}

impl Peer for Raw {
    async fn open(servers: &Servers, _: Work) -> anyhow::Result<Self> {
        let pool = pool(&servers.database, PRODUCERS).await?;
        sqlx::raw_sql(AssertSqlSafe(TABLE)).execute(&pool).await?;
        Ok(Self { pool, connection: None })
    }

    async fn enqueue(&mut self, order: Order) -> anyhow::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.pool.acquire().await?),
        };
        let insert = "INSERT INTO raw_jobs (queue, kind, payload) VALUES ('orders', 'order', $1::jsonb)";
        sqlx::query(insert).bind(serde_json::to_string(&order)?).execute(&mut **connection).await?;
        Ok(())
    }

    async fn enqueue_batch(&mut self, _: &str, _: Vec<Order>) -> anyhow::Result<()> {
        anyhow::bail!("not measured")
    }

    async fn finished(&self, _: usize) -> anyhow::Result<usize> {
        anyhow::bail!("not measured")
    }

    async fn work(_: &Servers, _: Work) -> anyhow::Result<()> {
        anyhow::bail!("plain rows have no worker")
    }
}
