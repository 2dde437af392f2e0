//! Servers that return in an older state, or empty: docs/disaster-recovery.md describes each case.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::HeaderMap;
use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Tenure, Worker, WorkerBuilder};

use crate::harness::{Bench, Running, bench_with_servers};

/// Effects outside Postgres, which a restore does not undo.
type Outside = Arc<Mutex<Vec<String>>>;

async fn done(payload: Value, ctx: JobContext<Outside>) -> Result<Outcome, JobError> {
    let name = payload["name"].as_str().unwrap_or_default().to_owned();
    ctx.state().lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
    if name.starts_with("fails") {
        return Err(JobError::retry_after(Duration::from_secs(3_600), "as it was told"));
    }
    ctx.once("effect", async |tx| {
        sqlx::query("INSERT INTO public.effects (name) VALUES ($1)").bind(name).execute(tx).await?;
        Ok(())
    })
    .await?;
    Ok(Outcome::Done(None))
}

fn worker(bench: &Bench, outside: &Outside) -> WorkerBuilder<Outside> {
    Worker::builder(&bench.tenure).state(outside.clone()).handle_any(KindOptions::new(), done)
}

fn sorted(outside: &Outside) -> String {
    let mut names = outside.lock().unwrap_or_else(PoisonError::into_inner).clone();
    names.sort();
    names.join(" ")
}

async fn world() -> (Bench, Outside, PathBuf) {
    let bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(5);
        config.timing.ack_wait = Duration::from_secs(10);
    })
    .await;
    bench.tenure.setup(&["q".into(), "other".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.effects (name text)").await;
    let folder = bench.config.runtime_dir.parent().unwrap().to_path_buf();
    (bench, Outside::default(), folder)
}

async fn enqueue(bench: &Bench, queue: &str, name: &str) {
    bench.tenure.enqueue(JobRequest::new(queue, "k", json!({ "name": name }))).await.unwrap();
    bench.tenure.flush().await;
}

async fn submit(bench: &Bench, queue: &str, name: &str) {
    bench.publish(&format!("{queue}.k"), &json!({ "name": name }).to_string()).await;
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// Connects again, as a process that starts after the restore; an old connection would cost some job an attempt.
async fn reconnected(bench: &mut Bench) {
    bench.until("true").await;
    bench.tenure.close().await;
    bench.tenure = Tenure::connect(&bench.config).await.unwrap();
}

/// Copies the stopped server's files.
async fn backup_of_postgres(bench: &mut Bench, folder: &Path) {
    let postgres = &mut bench.own.as_mut().unwrap().postgres;
    postgres.stop();
    copy(&folder.join("postgres/data"), &folder.join("postgres/before"));
    postgres.restart().unwrap();
    reconnected(bench).await;
}

async fn restored_postgres(bench: &mut Bench, folder: &Path) {
    let postgres = &mut bench.own.as_mut().unwrap().postgres;
    postgres.stop();
    std::fs::remove_dir_all(folder.join("postgres/data")).unwrap();
    copy(&folder.join("postgres/before"), &folder.join("postgres/data"));
    postgres.restart().unwrap();
    reconnected(bench).await;
}

async fn names(bench: &Bench, sql: &str) -> String {
    bench
        .value::<Option<String>>(&format!("SELECT string_agg(name, ' ' ORDER BY name) FROM ({sql}) t"))
        .await
        .unwrap_or_default()
}

const STANDING: &str = "SELECT (payload->>'name') || ':' || status AS name FROM tenure.all_jobs";
const EFFECTS: &str = "SELECT name FROM public.effects";

#[tokio::test(flavor = "multi_thread")]
async fn postgres_restored_to_an_earlier_point_repeats_jobs_that_ended_since_and_lacks_those_enqueued_since()
{
    let (mut bench, outside, folder) = world().await;
    enqueue(&bench, "q", "queued").await;
    submit(&bench, "q", "submitted").await;
    enqueue(&bench, "other", "ended").await;
    let working = Running::start(worker(&bench, &outside).only_queue("other", 5));
    bench.until_count("tenure.job_history", 1).await;
    working.stop().await;
    backup_of_postgres(&mut bench, &folder).await;

    let keyed = || JobRequest::new("q", "k", json!({ "name": "since_ended" })).unique_key("since");
    assert!(!bench.tenure.enqueue(keyed()).await.unwrap().duplicate);
    submit(&bench, "q", "since_submitted_ended").await;
    submit(&bench, "q", "fails_since_submitted").await;
    let working = Running::start(worker(&bench, &outside).only_queue("q", 5));
    bench.until_count("tenure.job_history", 5).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND attempt = 1", 1).await;
    assert!(bench.tenure.enqueue(keyed()).await.unwrap().duplicate);
    working.stop().await;
    enqueue(&bench, "other", "since_queued").await;
    submit(&bench, "other", "since_submitted").await;

    restored_postgres(&mut bench, &folder).await;
    assert_eq!(names(&bench, STANDING).await, "ended:completed queued:queued");
    bench.every_job_is_as_it_must_be().await;
    let working = Running::start(worker(&bench, &outside).concurrency("q", 5).concurrency("other", 5));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 3).await;
    // The worker terminates tickets of jobs that do not exist.
    bench.until_stream_is_empty(Duration::from_secs(60)).await;
    working.stop().await;
    let standing = "ended:completed queued:completed since_submitted:completed";
    assert_eq!(names(&bench, STANDING).await, standing);
    assert_eq!(
        names(&bench, EFFECTS).await,
        "ended queued since_submitted",
        "in Postgres: once for each job that exists"
    );
    assert_eq!(
        sorted(&outside),
        "ended fails_since_submitted queued queued since_ended since_submitted since_submitted_ended submitted",
        "outside: the jobs that ended since are done twice"
    );
    // The restore has undone growth: a token comes twice, and a key is free again.
    let token = "SELECT max(fencing_token) FROM tenure.all_jobs WHERE payload->>'name' = 'queued'";
    assert_eq!(bench.value::<i64>(token).await, 1);
    assert!(!bench.tenure.enqueue(keyed()).await.unwrap().duplicate);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_restored_to_an_earlier_point_beside_an_empty_stream_runs_the_jobs_queued_then() {
    let (mut bench, outside, folder) = world().await;
    enqueue(&bench, "q", "queued").await;
    submit(&bench, "other", "submitted").await;
    backup_of_postgres(&mut bench, &folder).await;
    let working = Running::start(worker(&bench, &outside).only_queue("q", 5));
    bench.until_count("tenure.job_history", 1).await;
    working.stop().await;
    enqueue(&bench, "q", "since_queued").await;

    bench.own.as_mut().unwrap().nats.stop();
    restored_postgres(&mut bench, &folder).await;
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.wipe().unwrap();
    nats.restart().unwrap();
    let working = Running::start(worker(&bench, &outside).concurrency("q", 5).concurrency("other", 5));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    working.stop().await;
    assert_eq!(names(&bench, STANDING).await, "queued:completed");
    assert_eq!(names(&bench, EFFECTS).await, "queued");
    assert_eq!(sorted(&outside), "queued queued", "the submission was in the stream alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_restored_to_an_earlier_point_repeats_no_submission() {
    let (mut bench, outside, folder) = world().await;
    for n in 0..5 {
        submit(&bench, "q", &format!("plain{n}")).await;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("key{n}"));
        let subject = format!("{}.q.k", bench.config.subject_prefix);
        let body = json!({ "name": format!("keyed{n}") }).to_string();
        bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
    }
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.stop();
    copy(&folder.join("nats/data"), &folder.join("nats/before"));
    nats.restart().unwrap();
    let working = Running::start(worker(&bench, &outside).concurrency("q", 5));
    bench.until_count("tenure.job_history", 10).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    working.stop().await;

    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.stop();
    nats.wipe().unwrap();
    copy(&folder.join("nats/before"), &folder.join("nats/data"));
    nats.restart().unwrap();
    assert_eq!(restored_messages(&bench).await, 10);
    // The message gets a sequence that another one had.
    submit(&bench, "q", "new").await;
    let working = Running::start(worker(&bench, &outside).concurrency("q", 5));
    bench.until_count("tenure.job_history", 11).await;
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 11);
    assert_eq!(bench.count("public.effects").await, 11);
    working.stop().await;
}

/// Publishes as soon as the client has found the server again.
async fn restored_messages(bench: &Bench) -> u64 {
    for _ in 0..200 {
        let messages = bench.messages().await;
        if messages > 0 {
            return messages;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    0
}
