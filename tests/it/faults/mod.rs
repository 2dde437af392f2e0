//! Faults that no other test forces. [`matrix`] lists all faults, each with its test.

mod answers;
mod bodies;
mod clock;
mod crashes;
mod foreign;
mod groups;
mod lanes;
mod load;
pub mod matrix;
mod messages;
mod nats;
mod network;
mod postgres;
mod recovery;
mod replicas;
mod steps;
mod table;
mod watchers;

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Tenure, Worker, WorkerBuilder};

use crate::harness::{Bench, Proxy};

/// A client whose links to both servers can be disturbed.
struct Linked {
    tenure: Tenure,
    postgres: Proxy,
    nats: Proxy,
}

async fn linked(bench: &Bench) -> Linked {
    let postgres = Proxy::to_url(&bench.config.database_url).await;
    let nats = Proxy::to_url(&bench.config.nats_url).await;
    let mut config = bench.config.clone();
    config.database_url = postgres.of(&config.database_url);
    config.nats_url = nats.of(&config.nats_url);
    Linked { tenure: Tenure::connect(&config).await.unwrap(), postgres, nats }
}

/// A job that reports a few times, leaves an effect once, and completes.
async fn work(payload: Value, ctx: JobContext) -> Result<(), JobError> {
    for step in 0..payload["steps"].as_i64().unwrap_or(3) {
        ctx.progress("working", 10.0, &step.to_string()).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (id, token) = (ctx.id(), ctx.token());
    ctx.once("effect", async |tx| {
        let insert = sqlx::query("INSERT INTO public.effects (job, token) VALUES ($1, $2)");
        insert.bind(id).bind(token).execute(tx).await?;
        Ok(())
    })
    .await
}

fn worker(tenure: &Tenure, slots: u32) -> WorkerBuilder {
    Worker::builder(tenure).handle_any(KindOptions::new(), work).concurrency("q", slots)
}

/// Enqueues `jobs` of them.
async fn enqueue(bench: &Bench, jobs: usize, steps: u32) -> Vec<tenure::JobId> {
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE IF NOT EXISTS public.effects (job uuid, token bigint)").await;
    let requests = (0..jobs).map(|_| JobRequest::new("q", "k", json!({ "steps": steps })));
    let enqueued = bench.tenure.enqueue_many(requests).await.unwrap();
    enqueued.into_iter().map(|enqueued| enqueued.id).collect()
}

/// Waits until all have completed. Each must have its effect once, and nothing may be left or wrong.
async fn all_done_once(bench: &Bench, jobs: i64) {
    bench
        .until_within(
            &format!("(SELECT count(*) FROM tenure.job_history WHERE status = 'completed') = {jobs}"),
            Duration::from_secs(60),
        )
        .await;
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    assert_eq!(bench.count("public.effects").await, jobs);
    assert_eq!(bench.count("(SELECT DISTINCT job FROM public.effects) e").await, jobs);
    bench.until_stream_is_empty(Duration::from_secs(40)).await;
}

/// Fails if a job was charged for an attempt that it did not complete.
async fn none_was_charged(bench: &Bench) {
    let charged = "tenure.job_executions WHERE outcome NOT IN ('released', 'snoozed')";
    let which = bench.text("SELECT outcome, error, count(*) FROM tenure.job_executions GROUP BY 1, 2").await;
    assert_eq!(bench.count(charged).await, 0, "{which}");
}
