//! Effects that happen exactly once, however many attempts a job takes.
//! `cargo run --features testing --example exactly_once`
//!
//! Runs on private servers, and ends by itself in seconds. One job fails in the middle, one loses its worker in the
//! middle; the example fails if the tables are then wrong.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{
    Job, JobContext, JobError, JobId, Outcome, Status, Tenure, Worker, WorkerBuilder, testing::TestTenure,
};
use tokio::time::sleep;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Stumble {
    Never,
    /// The first attempt fails after it has sent the mail.
    Fails,
    /// The first attempt loses its job after it has sent the mail, and goes on.
    IsLost,
}

#[derive(Debug, Serialize, Deserialize)]
struct Settle {
    order: i64,
    stumble: Stumble,
}

impl Job for Settle {
    const KIND: &'static str = "settle";
    const QUEUE: &'static str = "orders";
}

#[derive(Debug, Serialize, Deserialize)]
struct Thank {
    order: i64,
}

impl Job for Thank {
    const KIND: &'static str = "thank";
    const QUEUE: &'static str = "mail";
}

struct Shop {
    tenure: Tenure,
    pool: PgPool,
    /// The keys that the mail server received, by which it recognises a repetition.
    mails: Arc<Mutex<Vec<String>>>,
}

async fn settle(job: Settle, ctx: JobContext<Shop>) -> Result<Outcome, JobError> {
    let order = job.order;

    // ANCHOR: once
    // Once per job: a later attempt gets the receipt that this one wrote.
    let receipt: i64 = ctx
        .once("receipt", async |tx| {
            let insert = sqlx::query_scalar("INSERT INTO receipts (order_id) VALUES ($1) RETURNING id");
            Ok(insert.bind(order).fetch_one(tx).await?)
        })
        .await?;
    // ANCHOR_END: once

    // ANCHOR: outside
    // Outside Postgres: a retry may repeat the effect; the key lets the other side recognise that.
    let key = ctx.idempotency_key("mail");
    ctx.state().mails.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    // ANCHOR_END: outside

    if ctx.attempt() == 1 {
        match job.stumble {
            Stumble::Never => {}
            Stumble::Fails => return Err(JobError::msg("the printer is on fire")),
            // Learns from `progress` that it lost the job, and then tries to write.
            Stumble::IsLost => {
                while ctx.progress("sending", 50.0, "").await.is_ok() {
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    // ANCHOR: fenced
    // Commits only while this attempt owns the job; another attempt that gets this far does it again.
    ctx.fenced_tx(async |tx| {
        let update = sqlx::query("UPDATE orders SET visits = visits + 1 WHERE id = $1");
        update.bind(order).execute(tx).await?;
        Ok(())
    })
    .await?;
    // ANCHOR_END: fenced

    // ANCHOR: complete
    // The last write, the follow-up job and the completion are one commit, made by tenure.
    let shop = ctx.state();
    let mut tx = shop.pool.begin().await?;
    sqlx::query("UPDATE orders SET settled = settled + 1 WHERE id = $1")
        .bind(order)
        .execute(&mut *tx)
        .await?;
    shop.tenure.enqueue(Thank { order }).tx(&mut tx).await?;
    ctx.complete_in(tx, Some(json!({ "receipt": receipt }))).await
    // ANCHOR_END: complete
}

fn worker(tenure: &Tenure, pool: &PgPool, mails: &Arc<Mutex<Vec<String>>>) -> WorkerBuilder<Shop> {
    let shop = Shop { tenure: tenure.clone(), pool: pool.clone(), mails: mails.clone() };
    Worker::builder(tenure).state(shop).handle(settle)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;
    let pool = test.pool().clone();
    for table in [
        "CREATE TABLE orders (id bigint PRIMARY KEY, visits int NOT NULL DEFAULT 0, settled int NOT NULL DEFAULT 0)",
        "CREATE TABLE receipts (id bigint GENERATED ALWAYS AS IDENTITY, order_id bigint NOT NULL)",
    ] {
        sqlx::query(table).execute(&pool).await?;
    }
    let mails = Arc::new(Mutex::new(Vec::new()));

    for (order, stumble, attempts) in
        [(1, Stumble::Never, 1), (2, Stumble::Fails, 2), (3, Stumble::IsLost, 2)]
    {
        sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order).execute(&pool).await?;
        let id: JobId = test.enqueue(Settle { order, stumble }).await?.id;
        let finished = test.finish(worker(&test, &pool, &mails), id);
        let job = if stumble == Stumble::IsLost {
            let (job, ()) = tokio::join!(finished, test.lose(id));
            job
        } else {
            finished.await
        };
        assert_eq!((job.status, job.attempt), (Status::Completed, attempts), "{job:?}");

        let counted = "SELECT visits, settled, (SELECT count(*) FROM receipts WHERE order_id = orders.id)
                         FROM orders WHERE id = $1";
        let found: (i32, i32, i64) = sqlx::query_as(counted).bind(order).fetch_one(&pool).await?;
        assert_eq!(found, (1, 1, 1), "visits, settled and receipts of order {order}");
        let thanks = test.enqueued::<Thank>().await.iter().filter(|thank| thank.order == order).count();
        assert_eq!(thanks, 1, "jobs that follow on order {order}");
        let sent = mails.lock().unwrap_or_else(PoisonError::into_inner).split_off(0);
        assert!(sent.iter().all(|key| *key == format!("{id}:mail")), "one key for all attempts: {sent:?}");
        println!(
            "{stumble:?}: {attempts} attempts, one receipt, settled once, {} mails under one key",
            sent.len()
        );
    }
    Ok(())
}
