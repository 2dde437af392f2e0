//! A web application with jobs, as a team writes one: axum, sqlx and tenure in one process.
//! `cargo test --features http,testing --example web` runs its tests.
//!
//! ```text
//! POST /orders            writes the order and its jobs in one transaction; answers with their ids
//! GET  /jobs/{id}         a job's status and progress, for the page that waits
//! GET  /jobs/{id}/events  the same, pushed at each change
//! GET  /readyz /livez     for Kubernetes: whether orders can be placed, and whether a restart would help
//! GET  /workerz /metrics  for people and alerts: whether the worker takes jobs, and all figures
//! ```
//!
//! `receipt` books an order exactly once; `resize` makes pictures, reports its progress and resumes after a crash; a
//! schedule enqueues `report` each night. SIGTERM ends requests and jobs in good order.

mod jobs;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, error::Error, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{Config, Health, JobId, Tenure, jobs::WaitError, metrics::Metrics};
use tokio::net::TcpListener;

use jobs::{Receipt, Resize};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The state of the routes and of the handlers.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) tenure: Tenure,
    pub(crate) pool: PgPool,
    pub(crate) mailer: Arc<dyn Mailer>,
}

/// Sends mail. A test passes its own.
pub(crate) trait Mailer: Send + Sync {
    fn send(&self, to: &str, text: &str) -> Result<(), Failure>;
}

struct Printed;

impl Mailer for Printed {
    fn send(&self, to: &str, text: &str) -> Result<(), Failure> {
        println!("to {to}: {text}");
        Ok(())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct NewOrder {
    email: String,
    cents: i64,
    pictures: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    order: i64,
    receipt: JobId,
    resize: JobId,
}

/// Every error is a 500 whose cause stands in the log: a client learns nothing of the servers.
struct Unexpected(Failure);

impl<E: Into<Failure>> From<E> for Unexpected {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Unexpected {
    fn into_response(self) -> Response {
        tracing::error!(error = %self.0, "a request failed");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// The order and both jobs, or nothing of them: a rolled-back order leaves no job behind.
async fn place(State(shop): State<Shop>, Json(new): Json<NewOrder>) -> Result<Json<Placed>, Unexpected> {
    // ANCHOR: place
    let mut tx = shop.pool.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO orders (email, cents) VALUES ($1, $2) RETURNING id");
    let order: i64 = insert.bind(&new.email).bind(new.cents).fetch_one(&mut *tx).await?;
    let receipt = shop.tenure.enqueue(Receipt { order }).unique_key(format!("order-{order}"));
    let receipt = receipt.tx(&mut tx).await?.id;
    let resize = shop.tenure.enqueue(Resize { order, pictures: new.pictures }).tx(&mut tx).await?.id;
    tx.commit().await?;
    // ANCHOR_END: place
    Ok(Json(Placed { order, receipt, resize }))
}

async fn job(State(shop): State<Shop>, Path(id): Path<JobId>) -> Result<Response, Unexpected> {
    let Some(job) = shop.tenure.job(id).await? else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let seen = json!({ "status": job.status, "progress": job.progress, "message": job.message, "output": job.output });
    Ok(Json(seen).into_response())
}

/// Each change of a job until its end, or until the program is told to stop: the browser then asks the next process.
async fn events(State(shop): State<Shop>, Path(id): Path<JobId>) -> Result<Response, Unexpected> {
    let feed = match shop.tenure.watch(id).await {
        Ok(feed) => feed,
        Err(WaitError::NotFound(_)) => return Ok(StatusCode::NOT_FOUND.into_response()),
        Err(error) => return Err(error.into()),
    };
    let events = feed.map(|now| {
        // No error of a job for strangers.
        let seen = json!({ "status": now.status, "progress": now.progress, "message": now.message });
        // A page closes its EventSource at this event, or the browser would ask again.
        let event = Event::default().event(if now.status.is_finished() { "end" } else { "progress" });
        Ok::<_, Infallible>(event.json_data(seen).unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

// ANCHOR: ready
/// For the readiness probe: whether an order can be placed. While NATS is away, it can: its jobs wait.
async fn ready(State(shop): State<Shop>) -> Response {
    match shop.tenure.can_enqueue().await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// For people and alerts: whether this process takes jobs. As a readiness probe it would take the site away with NATS.
async fn takes_jobs(State(health): State<Health>) -> Response {
    match health.ready() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(lacks) => (StatusCode::SERVICE_UNAVAILABLE, lacks.join("\n")).into_response(),
    }
}

/// For the liveness probe: whether a restart would help.
async fn live(State(health): State<Health>) -> Response {
    match health.live() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}
// ANCHOR_END: ready

fn routes(shop: Shop, health: Health, metrics: Option<Metrics>) -> Router {
    let metrics = async move || metrics.map(|all| all.render()).unwrap_or_default();
    let orders = Router::new()
        .route("/orders", post(place))
        .route("/jobs/{id}", get(job))
        .route("/jobs/{id}/events", get(events))
        .route("/readyz", get(ready))
        .with_state(shop);
    let worker =
        Router::new().route("/livez", get(live)).route("/workerz", get(takes_jobs)).with_state(health);
    orders.merge(worker).route("/metrics", get(metrics))
}

// ANCHOR: serve
/// Answers requests and runs jobs until `signal`, and lets both end.
async fn serve(
    listener: TcpListener,
    shop: Shop,
    metrics: Option<Metrics>,
    signal: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let (worker, tenure) = (Arc::new(jobs::worker(&shop).start()?), shop.tenure.clone());
    let (running, watched) = (worker.clone(), tenure.clone());
    let until = async move {
        tokio::select! {
            () = signal => {}
            // A worker that ends by itself takes the process with it; its error is below.
            _ = running.wait() => {}
        }
        // No new job from now on, and no browser that watches one holds up the server: both end side by side.
        running.stop();
        watched.end_watches();
    };
    let answers = axum::serve(listener, routes(shop, worker.health(), metrics));
    let answered = answers.with_graceful_shutdown(until).await;
    // Jobs have `shutdown_grace` to end; other workers run the rest.
    let outcome = worker.wait().await;
    tenure.close().await;
    answered?;
    Ok(outcome?)
}
// ANCHOR_END: serve

#[tokio::main]
async fn main() -> Result<(), Failure> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let metrics = tenure::metrics::install()?;
    let config = Config::from_env()?;
    let pool = PgPool::connect(&config.database_url).await?;
    // Handlers' transactions use the application's own connections.
    let tenure = Tenure::builder(&config).handler_pool(pool.clone()).connect().await?;
    tenure.migrate().await?;
    sqlx::raw_sql(jobs::TABLES).execute(&pool).await?;
    tenure.put_schedule(jobs::nightly()).await?;

    let shop = Shop { tenure, pool, mailer: Arc::new(Printed) };
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    serve(listener, shop, Some(metrics), tenure::shutdown_signal()).await
}
