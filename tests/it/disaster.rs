//! Servers that return in an older state, or empty: docs/disaster-recovery.md describes each case.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap};
use futures::StreamExt;
use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Tenure, Worker, WorkerBuilder};

use crate::harness::{Bench, Running, bench_with, bench_with_servers};

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

/// What `nats stream backup` writes: the stream's configuration and state, and its chunks.
struct Backup {
    stream: Value,
    chunks: Vec<Vec<u8>>,
}

async fn asked(client: &Client, subject: String, body: Vec<u8>) -> Value {
    let answer = client.request(subject, body.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert!(answer["error"].is_null(), "{answer}");
    answer
}

impl Backup {
    async fn of(client: &Client, stream: &str) -> Self {
        let inbox = client.new_inbox();
        let mut sent = client.subscribe(inbox.clone()).await.unwrap();
        let request = json!({"deliver_subject": inbox, "no_consumers": false, "chunk_size": 65_536});
        let subject = format!("$JS.API.STREAM.SNAPSHOT.{stream}");
        let stream = asked(client, subject, request.to_string().into()).await;
        let mut chunks = Vec::new();
        while let Some(chunk) = sent.next().await.filter(|chunk| !chunk.payload.is_empty()) {
            if let Some(reply) = chunk.reply {
                client.publish(reply, "".into()).await.unwrap();
            }
            chunks.push(chunk.payload.to_vec());
        }
        Self { stream, chunks }
    }

    /// As `nats stream restore` does.
    async fn restore(self, client: &Client, stream: &str) {
        let request = json!({"config": self.stream["config"], "state": self.stream["state"]});
        let begun =
            asked(client, format!("$JS.API.STREAM.RESTORE.{stream}"), request.to_string().into()).await;
        let subject = begun["deliver_subject"].as_str().unwrap();
        for chunk in self.chunks {
            client.request(subject.to_owned(), chunk.into()).await.unwrap();
        }
        asked(client, subject.to_owned(), Vec::new()).await;
    }
}

/// The stream is another one within a moment, while no connection breaks: what it accepts then has the sequences of
/// messages that a worker has just received.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_restored_from_a_backup_repeats_no_submission_and_loses_none_that_follows() {
    let bench = bench_with(|_| {}).await;
    bench.tenure.setup(&["q".into(), "unserved".into()]).await.unwrap();
    let client = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let subject = |queue: &str| format!("{}.{queue}.k", bench.config.subject_prefix);
    for _ in 0..5 {
        bench.js.publish(subject("q"), "0".into()).await.unwrap().await.unwrap();
    }
    let backup = Backup::of(&client, &bench.config.stream).await;
    let (open, gates) = tokio::sync::watch::channel(0);
    let wait = move |gate: Value, _: JobContext| {
        let mut gates = gates.clone();
        async move {
            drop(gates.wait_for(|open| *open >= gate.as_i64().unwrap()).await.unwrap());
        }
    };
    let builder = Worker::builder(&bench.tenure).handle_any(KindOptions::new(), wait);
    let working = Running::start(builder.concurrency("q", 20));
    bench.until_count("tenure.job_history", 5).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;

    let began_at = Instant::now();
    let mut first = 0;
    for _ in 0..5 {
        let ack = bench.js.publish(subject("q"), "1".into()).await.unwrap().await.unwrap();
        first = if first == 0 { ack.sequence } else { first };
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 5).await;
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    backup.restore(&client, &bench.config.stream).await;
    for n in 0..10 {
        let ack = bench.js.publish(subject("unserved"), "0".into()).await.unwrap().await.unwrap();
        assert_eq!(ack.sequence, first + n);
    }
    open.send(1).unwrap();
    bench.until_count("tenure.job_history", 10).await;
    let took = began_at.elapsed();
    // The five of the backup come again, and go.
    while bench.messages().await > 10 && began_at.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // An answer that waits for a look would come in the next seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.messages().await, 10, "the jobs ended {took:?} after their messages came");
    assert_eq!(bench.count("tenure.job_executions_all").await, 10, "a submission of the backup is known");
    working.stop().await;
}
