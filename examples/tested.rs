//! A small program with jobs, and its tests: an example to copy. `cargo test --features testing --example tested`.
//!
//! One commit writes an order and the job that confirms it. The job grants points once, sends a mail, and enqueues
//! another job for a week later. The tests run all of that on a real Postgres and a real NATS.

use std::{error::Error, time::Duration};

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tenure::{Config, Job, JobContext, JobError, Outcome, Tenure, Worker, WorkerBuilder};

type Failure = Box<dyn Error + Send + Sync>;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Confirm {
    order: i64,
    email: String,
}

impl Job for Confirm {
    const KIND: &'static str = "confirm";
    const QUEUE: &'static str = "mail";
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct AskOpinion {
    order: i64,
}

impl Job for AskOpinion {
    const KIND: &'static str = "ask_opinion";
    const QUEUE: &'static str = "mail";
}

/// The handlers' state. `send` sends a mail; a test passes its own.
struct Shop {
    tenure: Tenure,
    send: Box<SendMail>,
}

type SendMail = dyn Fn(&str) -> Result<(), Failure> + Send + Sync;

/// Writes the order and its job: both or neither.
async fn place_order(tenure: &Tenure, pool: &PgPool, email: &str) -> Result<i64, Failure> {
    let mut tx = pool.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO orders (email) VALUES ($1) RETURNING id");
    let order: i64 = insert.bind(email).fetch_one(&mut *tx).await?;
    tenure.enqueue(Confirm { order, email: email.into() }).tx(&mut tx).await?;
    tx.commit().await?;
    Ok(order)
}

async fn confirm(job: Confirm, ctx: JobContext<Shop>) -> Result<Outcome, JobError> {
    let order = job.order;
    // Once per job, however many attempts it takes.
    ctx.once("points", async |tx| {
        sqlx::query("UPDATE orders SET points = points + 10 WHERE id = $1").bind(order).execute(tx).await?;
        Ok(())
    })
    .await?;
    // Outside Postgres: a crash may repeat the mail.
    (ctx.state().send)(&job.email)?;
    let later = ctx.state().tenure.enqueue(AskOpinion { order });
    later.unique_key(format!("opinion-{order}")).delay(WEEK).await?;
    Outcome::done("confirmed")
}

async fn ask_opinion(_job: AskOpinion, _ctx: JobContext<Shop>) -> Result<Outcome, JobError> {
    Ok(Outcome::Done(None))
}

/// Builds the worker, for the program and for its tests.
fn worker(
    tenure: &Tenure,
    send: impl Fn(&str) -> Result<(), Failure> + Send + Sync + 'static,
) -> WorkerBuilder<Shop> {
    let shop = Shop { tenure: tenure.clone(), send: Box::new(send) };
    Worker::builder(tenure).state(shop).handle(confirm).handle(ask_opinion)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = Config::from_env()?;
    let tenure = Tenure::connect(&config).await?;
    tenure.migrate().await?;
    let pool = PgPool::connect(&config.database_url).await?;
    sqlx::query(ORDERS).execute(&pool).await?;
    place_order(&tenure, &pool, "ann@example.com").await?;
    let send = |email: &str| -> Result<(), Failure> {
        println!("a mail to {email}");
        Ok(())
    };
    worker(&tenure, send).run_until(tenure::shutdown_signal()).await?;
    Ok(())
}

const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL, points int NOT NULL DEFAULT 0)";

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use tenure::{Status, testing::TestTenure};

    use super::*;

    /// A database and a stream of this test's own, with the program's tables.
    async fn shop() -> Result<TestTenure, Failure> {
        let test = TestTenure::start().await;
        sqlx::query(ORDERS).execute(test.pool()).await?;
        Ok(test)
    }

    async fn points(test: &TestTenure, order: i64) -> Result<i32, Failure> {
        let select = sqlx::query_scalar("SELECT points FROM orders WHERE id = $1");
        Ok(select.bind(order).fetch_one(test.pool()).await?)
    }

    #[tokio::test]
    async fn an_order_is_confirmed_and_its_opinion_asked_for_a_week_later() -> Result<(), Failure> {
        let test = shop().await?;
        test.assert_nothing_enqueued::<Confirm>().await;
        let order = place_order(&test, test.pool(), "ann@example.com").await?;
        test.assert_enqueued(|job: &Confirm| job.order == order && job.email == "ann@example.com").await;

        let ended = test.drain(worker(&test, |_| Ok(()))).await;
        assert_eq!(ended.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["confirm"]);
        assert_eq!(test.enqueued::<AskOpinion>().await, [AskOpinion { order }]);

        test.advance(WEEK).await;
        let ended = test.drain(worker(&test, |_| Ok(()))).await;
        assert_eq!(ended.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["ask_opinion"]);
        Ok(())
    }

    #[tokio::test]
    async fn a_mail_that_cannot_be_sent_is_tried_again() -> Result<(), Failure> {
        let test = shop().await?;
        let tries = AtomicU32::new(0);
        let send = move |_: &str| -> Result<(), Failure> {
            if tries.fetch_add(1, Ordering::Relaxed) < 2 {
                Err("the mail server is away".into())
            } else {
                Ok(())
            }
        };
        let job = test.run(worker(&test, send), Confirm { order: 1, email: "ann@example.com".into() }).await;
        assert_eq!((job.status, job.attempt), (Status::Completed, 3));
        Ok(())
    }

    #[tokio::test]
    async fn points_are_granted_once_although_a_worker_dies_at_the_worst_moment() -> Result<(), Failure> {
        let test = shop().await?;
        let order = place_order(&test, test.pool(), "ann@example.com").await?;
        // Runs the order's own job first; `run_twice` runs a second one, so that two jobs grant points.
        test.drain(worker(&test, |_| Ok(()))).await;
        let mails = Arc::new(AtomicU32::new(0));
        let count = mails.clone();
        let send = move |_: &str| -> Result<(), Failure> {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let job =
            test.run_twice(worker(&test, send), Confirm { order, email: "ann@example.com".into() }).await;
        assert_eq!((job.status, job.attempt), (Status::Completed, 2));
        assert_eq!(points(&test, order).await?, 20, "10 for each of the two jobs");
        assert_eq!(mails.load(Ordering::Relaxed), 2, "a mail may be repeated");
        assert_eq!(test.enqueued::<AskOpinion>().await.len(), 1, "by its unique key");
        Ok(())
    }
}
