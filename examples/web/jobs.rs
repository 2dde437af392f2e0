//! The application's jobs: what they are, and what a worker does with them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, KindOptions, Outcome, Worker, WorkerBuilder,
    schedules::{MissedTicks, Schedule},
};

use crate::Shop;

/// Books an order, and mails its receipt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) order: i64,
}

impl Job for Receipt {
    const KIND: &'static str = "receipt";
    const QUEUE: &'static str = "orders";
}

pub(crate) async fn receipt(job: Receipt, ctx: JobContext<Shop>) -> Result<Outcome, JobError> {
    let order = job.order;
    // ANCHOR: once
    // `once` books exactly once, however many attempts the job takes: the effect and its record are one commit.
    let (email, cents): (String, i64) = ctx
        .once("book", async |tx| {
            sqlx::query("INSERT INTO bookings (order_id) VALUES ($1)").bind(order).execute(&mut *tx).await?;
            let select = sqlx::query_as("SELECT email, cents FROM orders WHERE id = $1");
            Ok(select.bind(order).fetch_one(tx).await?)
        })
        .await?;
    // No transaction covers a mail: after a crash, the next attempt may send it again.
    ctx.state().mailer.send(&email, &format!("order {order}: {cents} cents"))?;
    // ANCHOR_END: once
    Outcome::done(cents)
}

/// Makes the pictures of an order, for minutes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resize {
    pub(crate) order: i64,
    pub(crate) pictures: u32,
}

impl Job for Resize {
    const KIND: &'static str = "resize";
    const QUEUE: &'static str = "pictures";
}

pub(crate) async fn resize(job: Resize, ctx: JobContext<Shop>) -> Result<u32, JobError> {
    // An attempt that follows a crash begins at the last checkpoint.
    let first: u32 = ctx.checkpoint().unwrap_or(0);
    for picture in first..job.pictures {
        tokio::time::sleep(Duration::from_millis(20)).await; // a picture
        ctx.save_checkpoint(&(picture + 1)).await?;
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let percent = (picture + 1) as f32 / job.pictures as f32 * 100.0;
        ctx.progress("resizing", percent, &format!("{} of {}", picture + 1, job.pictures)).await?;
    }
    Ok(job.pictures - first)
}

/// Counts a day's orders. The schedule sets `night` to its tick.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) night: Option<DateTime<Utc>>,
}

impl Job for Report {
    const KIND: &'static str = "report";
    const QUEUE: &'static str = "reports";
}

pub(crate) async fn report(job: Report, ctx: JobContext<Shop>) -> Result<i64, JobError> {
    let until = job.night.unwrap_or_else(Utc::now);
    let count = sqlx::query_scalar(
        "SELECT count(*) FROM orders WHERE created_at >= $1 - interval '1 day' AND created_at < $1",
    );
    Ok(count.bind(until).fetch_one(&ctx.state().pool).await?)
}

pub(crate) fn nightly() -> Schedule {
    Schedule::new("nightly-report", "0 3 * * *", Report { night: None })
        .time_zone("Europe/Berlin")
        .missed(MissedTicks::Once)
        .tick_field("night")
}

/// Builds the worker, for the program and for its tests.
pub(crate) fn worker(shop: &Shop) -> WorkerBuilder<Shop> {
    // ANCHOR: worker
    Worker::builder(&shop.tenure)
        .state(shop.clone())
        .handle(receipt)
        .handle_with(KindOptions::new().timeout(Duration::from_secs(3_600)), resize)
        .handle(report)
        .concurrency("orders", 8)
        .concurrency("pictures", 2)
        .concurrency("reports", 1)
    // ANCHOR_END: worker
}

pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        email text NOT NULL, cents bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE IF NOT EXISTS bookings (order_id bigint NOT NULL)";
