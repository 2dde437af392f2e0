//! An application's own pool and NATS client: tenure works over them, and leaves them open.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobRequest, KindOptions, Status, Tenure, Worker, WorkerError,
    async_nats::{self, Client},
    errors::ConnectError,
    sqlx::{
        self, PgPool,
        postgres::{PgConnectOptions, PgPoolOptions},
    },
};

use tokio::sync::Semaphore;

use crate::harness::{Bench, Proxy, Running, bench, bench_with, run_folder};

/// Returns an application's pool, whose connections have the application's name.
async fn pool(bench: &Bench) -> PgPool {
    let options: PgConnectOptions = bench.config.database_url.parse().unwrap();
    let options = options.application_name("the-application");
    PgPoolOptions::new().max_connections(3).connect_with(options).await.unwrap()
}

async fn client(url: &str) -> Client {
    let options = async_nats::ConnectOptions::new().name("the-application").custom_inbox_prefix("_INBOX_app");
    options.connect(url).await.unwrap()
}

/// Closed until a job that waits may go on.
static GATE: Semaphore = Semaphore::const_new(0);

/// Returns the name of the connection of each of the two kinds of transaction of a handler.
async fn whose_transactions(payload: Value, ctx: JobContext) -> Result<tenure::Outcome, JobError> {
    if payload == "waits" {
        drop(GATE.acquire().await);
    }
    const WHOSE: &str = "SELECT current_setting('application_name')";
    let fenced: String = ctx.fenced_tx(async |tx| Ok(sqlx::query_scalar(WHOSE).fetch_one(tx).await?)).await?;
    let once: String =
        ctx.once("whose", async |tx| Ok(sqlx::query_scalar(WHOSE).fetch_one(tx).await?)).await?;
    tenure::Outcome::done([fenced, once])
}

fn job() -> JobRequest {
    JobRequest::new("q", "k", json!(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applications_pool_and_client_serve_enqueues_workers_and_handlers_and_stay_open() {
    let bench = bench().await;
    let link = Proxy::to_url(&bench.config.nats_url).await;
    let (pool, client) = (pool(&bench).await, client(&link.of(&bench.config.nats_url)).await);
    let mut config = bench.config.clone();
    config.inbox_prefix = Some("_INBOX_app".into());
    let given = Tenure::builder(&config).handler_pool(pool.clone()).nats(client.clone());
    let tenure = given.connect().await.unwrap();
    let worker =
        Worker::builder(&tenure).handle_any(KindOptions::new(), whose_transactions).concurrency("q", 2);
    let worker = worker.start().unwrap();
    let health = worker.health();
    let within = Instant::now() + Duration::from_secs(10);
    while let Err(lacks) = health.ready() {
        assert!(Instant::now() < within, "{lacks:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The worker hears itself over that client, so that other workers would notice its death at once.
    bench.until_count("tenure.workers WHERE probe_subject IS NOT NULL", 1).await;
    let at_once = tenure.enqueue(job()).await.unwrap().id;
    let mut tx = pool.begin().await.unwrap();
    let with_commit = tenure.enqueue(job()).tx(&mut tx).await.unwrap().id;
    tx.commit().await.unwrap();
    for id in [at_once, with_commit] {
        let done = bench.until_finished(id).await;
        assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 1), "{:?}", done.last_error);
        assert_eq!(done.output, Some(json!(["the-application", "the-application"])));
    }

    // While the client is away, the end of a job is acknowledged: what a client holds may reach another stream.
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    let running = tenure.enqueue(JobRequest::new("q", "k", json!("waits"))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    link.cut();
    GATE.add_permits(1);
    bench.until_finished(running).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;

    // After a reconnect of the client, the worker asks for jobs over the new connection.
    let connects = || client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed);
    let before = connects();
    link.mend();
    link.break_off();
    let within = Instant::now() + Duration::from_secs(10);
    while connects() == before {
        assert!(Instant::now() < within);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.fencing_token, 1);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop();
    worker.wait().await.unwrap();
    tenure.close().await;
    drop(tenure);

    assert!(!pool.is_closed());
    let one: i32 = sqlx::query_scalar("SELECT 1").fetch_one(&pool).await.unwrap();
    assert_eq!(one, 1);
    let mut heard = client.subscribe("the.application").await.unwrap();
    client.publish("the.application", "still here".into()).await.unwrap();
    let message = tokio::time::timeout(Duration::from_secs(5), futures::StreamExt::next(&mut heard)).await;
    assert_eq!(message.unwrap().unwrap().payload, "still here");
}

/// The settings lead to a server whose stream has the same name and sequences: an acknowledgement there would remove work
/// that was accepted.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_go_to_no_other_stream_than_that_of_the_applications_client() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let folder = run_folder().join("elsewhere");
    let start = move || tenure::dev::Nats::start(&folder).unwrap();
    let elsewhere = tokio::task::spawn_blocking(start).await.unwrap();
    let there = async_nats::jetstream::new(async_nats::connect(elsewhere.url()).await.unwrap());
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap().cached_info().clone();
    let mut twin = there.create_stream(stream.config).await.unwrap();
    for n in 0..3 {
        let subject = format!("{}.q.k", bench.config.subject_prefix);
        there.publish(subject, n.to_string().into()).await.unwrap().await.unwrap();
    }
    let mut config = bench.config.clone();
    (config.nats_url, config.inbox_prefix) = (elsewhere.url(), Some("_INBOX_app".into()));
    let client = client(&bench.config.nats_url).await;
    let given = Tenure::builder(&config).handler_pool(pool(&bench).await).nats(client);
    let tenure = given.connect().await.unwrap();
    let worker = Worker::builder(&tenure).handle_any(KindOptions::new(), whose_transactions);
    let worker = Running::start(worker.concurrency("q", 2));
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    worker.stop().await;
    assert_eq!(twin.info().await.unwrap().state.messages, 3, "work that was accepted elsewhere");
    assert_eq!(bench.messages().await, 1, "it comes again, and is refused as the end of its job is known");
    tenure.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_another_inbox_prefix_than_the_settings_is_refused() {
    let bench = bench_with(|_| {}).await;
    let client = client(&bench.config.nats_url).await;
    for prefix in ["_INBOX_worker", "_INBOX"] {
        let mut config = bench.config.clone();
        config.inbox_prefix = Some(prefix.into());
        let refused = Tenure::builder(&config).nats(client.clone()).connect().await.unwrap_err();
        let ConnectError::Nats(refused) = refused else { panic!("{refused}") };
        let text = refused.to_string();
        assert!(text.contains(&format!("{prefix:?}")) && text.contains("\"_INBOX_app\""), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_another_database_or_a_closed_one_is_refused_when_a_worker_starts() {
    let [here, elsewhere] = [bench().await, bench().await];
    let admin = here.config.database_url.rsplit_once('/').unwrap().0.to_owned() + "/postgres";
    let without_schema = PgPoolOptions::new().connect_lazy(&admin).unwrap();
    let closed = pool(&here).await;
    closed.close().await;
    let given = [
        (pool(&elsewhere).await, "another database"),
        (without_schema, "another database"),
        (closed, "closed"),
    ];
    for (pool, why) in given {
        let tenure = Tenure::builder(&here.config).handler_pool(pool).connect().await.unwrap();
        let worker = Worker::builder(&tenure).handle_any(KindOptions::new(), whose_transactions);
        let worker = worker.concurrency("q", 1).start().unwrap();
        let refused = worker.wait().await.unwrap_err();
        assert!(matches!(refused, WorkerError::HandlerPool { .. }), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

/// A closed pool of the application is no outage: tenure's own connections show whether Postgres is up.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_fails_later_keeps_no_other_job_from_running() {
    let bench = bench().await;
    let pool = pool(&bench).await;
    let tenure = Tenure::builder(&bench.config).handler_pool(pool.clone()).connect().await.unwrap();
    let handler = |payload: Value, ctx: JobContext| async move {
        if payload == json!("plain") {
            return Ok(());
        }
        loop {
            let failed = ctx.fenced_tx(async |_| Ok(())).await;
            if ctx.cancel_reason().is_some() {
                return failed;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let worker =
        Worker::builder(&tenure).handle_any(KindOptions::new().keepalive(), handler).concurrency("q", 2);
    let health = worker.health();
    let worker = Running::start(worker);
    bench.until_count("tenure.workers", 1).await;
    let fails = tenure.enqueue(JobRequest::new("q", "k", json!("fenced"))).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    while health.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool.close().await;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(health.ready(), Ok(()));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let plain = tenure.enqueue(JobRequest::new("q", "k", json!("plain"))).await.unwrap().id;
    assert_eq!(bench.until_finished(plain).await.fencing_token, 1);
    tenure.cancel(fails).await.unwrap();
    assert_eq!(bench.until_finished(fails).await.status, Status::Cancelled);
    worker.stop().await;
}
