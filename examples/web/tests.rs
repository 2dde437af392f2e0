//! The tests of the application: its routes and its jobs, on a real Postgres and a real NATS.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use serde_json::{Value, json};
use tenure::{JobId, Status, testing::TestTenure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::timeout,
};
use tower::ServiceExt;

use super::*;
use crate::jobs::{Report, TABLES, nightly, worker};

#[derive(Default)]
struct Outbox(Mutex<Vec<String>>);

impl Mailer for Outbox {
    fn send(&self, to: &str, text: &str) -> Result<(), Failure> {
        self.0.lock().map_err(|_| "the outbox broke")?.push(format!("{to}: {text}"));
        Ok(())
    }
}

async fn shop() -> Result<(TestTenure, Shop, Arc<Outbox>), Failure> {
    let test = TestTenure::start().await;
    sqlx::raw_sql(TABLES).execute(test.pool()).await?;
    let outbox = Arc::new(Outbox::default());
    let shop = Shop { tenure: test.tenure().clone(), pool: test.pool().clone(), mailer: outbox.clone() };
    Ok((test, shop, outbox))
}

async fn ask(shop: &Shop, request: Request<Body>) -> Result<(StatusCode, Value), Failure> {
    let health = worker(shop).health();
    let answer = routes(shop.clone(), health, None).oneshot(request).await?;
    let (status, body) = (answer.status(), to_bytes(answer.into_body(), 1 << 20).await?);
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}

fn order() -> Result<Request<Body>, Failure> {
    let new = json!({ "email": "ann@example.com", "cents": 1_250, "pictures": 3 });
    let request = Request::post("/orders").header("content-type", "application/json");
    Ok(request.body(Body::from(new.to_string()))?)
}

#[tokio::test]
async fn an_order_is_booked_its_pictures_are_made_and_its_page_shows_the_end() -> Result<(), Failure> {
    let (test, shop, outbox) = shop().await?;
    let (status, placed) = ask(&shop, order()?).await?;
    assert_eq!(status, StatusCode::OK);
    let placed: Placed = serde_json::from_value(placed)?;
    test.drain(worker(&shop)).await;

    assert_eq!(outbox.0.lock().map_err(|_| "broken")?.as_slice(), ["ann@example.com: order 1: 1250 cents"]);
    let page = Request::get(format!("/jobs/{}", placed.resize)).body(Body::empty())?;
    let (_, seen) = ask(&shop, page).await?;
    assert_eq!(seen, json!({ "status": "completed", "progress": 100.0, "message": "3 of 3", "output": 3 }));
    let unknown = Request::get(format!("/jobs/{}", JobId::generate())).body(Body::empty())?;
    assert_eq!(ask(&shop, unknown).await?.0, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn an_order_that_is_rolled_back_leaves_no_job() -> Result<(), Failure> {
    let (test, shop, _) = shop().await?;
    // Postgres refuses the second order at its commit, after the route has enqueued both jobs.
    let unique = "ALTER TABLE orders ADD UNIQUE (email) DEFERRABLE INITIALLY DEFERRED";
    sqlx::raw_sql(unique).execute(test.pool()).await?;
    assert_eq!(ask(&shop, order()?).await?.0, StatusCode::OK);
    assert_eq!(ask(&shop, order()?).await?.0, StatusCode::INTERNAL_SERVER_ERROR);
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM tenure.all_jobs").fetch_one(test.pool()).await?;
    assert_eq!(jobs, 2, "the jobs of the first order");
    Ok(())
}

#[tokio::test]
async fn an_order_is_booked_once_although_a_worker_dies_at_the_worst_moment() -> Result<(), Failure> {
    let (test, shop, outbox) = shop().await?;
    let insert = "INSERT INTO orders (email, cents) VALUES ('ann@example.com', 5) RETURNING id";
    let order: i64 = sqlx::query_scalar(insert).fetch_one(test.pool()).await?;
    let job = test.run_twice(worker(&shop), Receipt { order }).await;
    assert_eq!((job.status, job.attempt), (Status::Completed, 2));
    let bookings: i64 = sqlx::query_scalar("SELECT count(*) FROM bookings").fetch_one(test.pool()).await?;
    assert_eq!(bookings, 1);
    assert_eq!(outbox.0.lock().map_err(|_| "broken")?.len(), 2, "a mail may be repeated");
    Ok(())
}

#[tokio::test]
async fn each_night_has_its_report() -> Result<(), Failure> {
    let (test, shop, _) = shop().await?;
    shop.tenure.put_schedule(nightly()).await?;
    ask(&shop, order()?).await?;
    let job = test.run(worker(&shop), Report { night: None }).await;
    assert_eq!(job.output, Some(json!(1)));
    assert_eq!(shop.tenure.schedules().await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_that_watch_a_job_do_not_hold_up_the_end() -> Result<(), Failure> {
    let (test, shop, _) = shop().await?;
    let job = shop.tenure.enqueue(Resize { order: 1, pictures: 100_000 }).await?.id;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, (signal, signalled)) = (listener.local_addr()?, oneshot::channel::<()>());
    let until = async move { drop(signalled.await) };
    let serving = tokio::spawn(serve(listener, shop.clone(), None, until));
    let mut browsers = Vec::new();
    for _ in 0..10 {
        let mut browser = TcpStream::connect(address).await?;
        let request = format!("GET /jobs/{job}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
        browser.write_all(request.as_bytes()).await?;
        let mut seen = String::new();
        while !seen.contains(r#""status":"processing""#) {
            let mut some = [0; 4_096];
            let n = timeout(Duration::from_secs(20), browser.read(&mut some)).await??;
            assert!(n > 0, "the stream ended: {seen}");
            seen.push_str(&String::from_utf8_lossy(&some[..n]));
        }
        browsers.push(browser);
    }
    let told_at = Instant::now();
    signal.send(()).map_err(|()| "it has ended")?;
    for browser in &mut browsers {
        timeout(Duration::from_secs(5), browser.read_to_end(&mut Vec::new())).await??;
    }
    assert!(!serving.is_finished(), "the job was given no time to end");
    let grace = test.config().timing.shutdown_grace + Duration::from_secs(10);
    timeout(grace.saturating_sub(told_at.elapsed()), serving).await???;
    let outcomes: Vec<String> =
        sqlx::query_scalar("SELECT outcome FROM tenure.job_executions_all").fetch_all(test.pool()).await?;
    assert_eq!(outcomes, ["released"]);
    Ok(())
}
