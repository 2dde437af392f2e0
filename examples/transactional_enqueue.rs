//! One commit writes an order and its jobs: both or neither.
//! `cargo run --features testing --example transactional_enqueue`
//!
//! Runs on private servers, and ends by itself in seconds. It fails if a rolled-back transaction leaves a job, or a
//! committed one leaves none.

use std::error::Error;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tenure::{Job, JobContext, JobError, Outcome, Tenure, Worker, testing::TestTenure};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Pack {
    order: i64,
    item: String,
}

impl Job for Pack {
    const KIND: &'static str = "pack";
    const QUEUE: &'static str = "orders";
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Confirm {
    order: i64,
}

impl Job for Confirm {
    const KIND: &'static str = "confirm";
    const QUEUE: &'static str = "orders";
}

// ANCHOR: place
async fn place_order(tenure: &Tenure, pool: &PgPool, items: &[&str]) -> Result<i64, Failure> {
    let mut tx = pool.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO orders DEFAULT VALUES RETURNING id");
    let order: i64 = insert.fetch_one(&mut *tx).await?;
    // The key makes it one job, even if a caller places the same order again.
    tenure.enqueue(Confirm { order }).unique_key(format!("confirm-{order}")).tx(&mut tx).await?;
    let packs = items.iter().map(|item| Pack { order, item: (*item).to_owned() });
    tenure.enqueue_many(packs).tx(&mut tx).await?;
    if items.contains(&"a unicorn") {
        // Dropping the transaction rolls it back, and both jobs with it.
        return Err("we have no unicorns".into());
    }
    tx.commit().await?;
    Ok(order)
}
// ANCHOR_END: place

async fn pack(job: Pack, _ctx: JobContext) -> Result<Outcome, JobError> {
    Outcome::done(format!("packed {}", job.item))
}

async fn confirm(job: Confirm, _ctx: JobContext) -> Result<Outcome, JobError> {
    Outcome::done(job.order)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;
    let pool = test.pool();
    sqlx::query("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
        .execute(pool)
        .await?;

    let refused = place_order(&test, pool, &["a book", "a unicorn"]).await;
    assert!(refused.is_err());
    test.assert_nothing_enqueued::<Pack>().await;
    test.assert_nothing_enqueued::<Confirm>().await;

    let order = place_order(&test, pool, &["a book", "a pen"]).await?;
    test.assert_enqueued(|job: &Pack| job.order == order && job.item == "a pen").await;
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(pool).await?;
    assert_eq!(orders, 1);

    // tenure publishes the jobs of the committed transaction, and the worker runs them.
    let ended = test.drain(Worker::builder(&test).handle(pack).handle(confirm)).await;
    assert_eq!(ended.len(), 3, "{ended:?}");
    println!("order {order} is confirmed and packed; the rolled-back order left no job");
    Ok(())
}
