//! Watching and calling: pushed ends and progress, and what happens when no hint comes.

use std::time::{Duration, Instant};

use futures::{StreamExt, future::join_all};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{
    Job, JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Tenure, Worker,
    jobs::{CallError, WaitError},
    queues::QueueEvents,
    rows::JobUpdate,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::mpsc,
    time::timeout,
};

use crate::harness::{Bench, Proxy, Running, bench, bench_with, bench_with_servers};

const SOON: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
struct Double {
    n: u64,
}

impl Job for Double {
    const KIND: &'static str = "double";
    const QUEUE: &'static str = "q";
}

async fn double(job: Double, _: JobContext) -> Result<Outcome, JobError> {
    match job.n {
        13 => Err(JobError::permanent("unlucky")),
        n => Ok(Outcome::done(n * 2)?),
    }
}

fn doubles(tenure: &Tenure) -> Running {
    Running::start(Worker::builder(tenure).handle(double).concurrency("q", 16))
}

/// A job that does what it is told: reports, and ends when its channel closes.
fn told(bench: &Bench) -> (Running, mpsc::UnboundedSender<(f32, &'static str)>) {
    let (tell, told) = mpsc::unbounded_channel();
    let told = std::sync::Arc::new(tokio::sync::Mutex::new(told));
    let handler = move |_: Value, ctx: JobContext| {
        let told = told.clone();
        async move {
            while let Some((percent, message)) = told.lock().await.recv().await {
                ctx.progress("work", percent, message).await?;
            }
            Outcome::done("an output")
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("k", KindOptions::new(), handler).handle(double);
    (Running::start(worker.concurrency("q", 2)), tell)
}

fn job() -> JobRequest {
    JobRequest::new("q", "k", json!({}))
}

/// A subject of tenure's own.
fn subject(bench: &Bench, rest: &str) -> String {
    format!("tenure.{}.{rest}", bench.config.subject_prefix)
}

/// The number of transactions that the test's database has committed.
async fn transactions(bench: &Bench) -> i64 {
    bench.execute("SELECT pg_stat_clear_snapshot()").await;
    bench.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_job_tells_its_progress_and_its_end_to_each_of_its_watchers() {
    let bench = bench_with(|config| config.timing.flush_every = Duration::from_millis(20)).await;
    let (worker, tell) = told(&bench);
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    let mut feeds = vec![];
    for _ in 0..3 {
        feeds.push(bench.tenure.watch(id).await.unwrap());
    }
    for (percent, message) in [(10.0, "one"), (60.0, "two")] {
        tell.send((percent, message)).unwrap();
        for feed in &mut feeds {
            let seen = async {
                loop {
                    let now = feed.next().await.unwrap();
                    assert!(!now.status.is_finished(), "{now:?}");
                    if now.progress == Some(percent) {
                        return now;
                    }
                }
            };
            let now = timeout(SOON, seen).await.unwrap();
            assert_eq!((now.status, now.stage.as_deref()), (Status::Processing, Some("work")));
            assert_eq!((now.message.as_deref(), now.attempt), (Some(message), 1));
        }
    }
    drop(tell);
    for feed in feeds {
        let rest: Vec<JobUpdate> = timeout(SOON, feed.collect()).await.unwrap();
        let last = rest.last().unwrap();
        assert_eq!((last.status, last.progress), (Status::Completed, Some(60.0)));
        assert_eq!(last.output.as_ref().unwrap().get(), "\"an output\"");
        assert!(rest[..rest.len() - 1].iter().all(|now| !now.status.is_finished()), "{rest:?}");
    }
    // A watcher that came late sees the end, and nothing else.
    let late: Vec<_> = bench.tenure.watch(id).await.unwrap().collect().await;
    assert_eq!(late.iter().map(|now| now.status).collect::<Vec<_>>(), [Status::Completed]);
    let missing = bench.tenure.watch(JobId::generate()).await.err().unwrap();
    assert!(matches!(missing, WaitError::NotFound(_)), "{missing}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_keeps_no_history_ends_for_its_watchers_too() {
    let bench = bench().await;
    let (release, held) = tokio::sync::watch::channel(false);
    let handler = move |_: Value, _: JobContext| {
        let mut held = held.clone();
        async move {
            held.wait_for(|go| *go).await.ok();
        }
    };
    let options = KindOptions::new().no_history();
    let worker = Worker::builder(&bench.tenure).handle_kind("k", options, handler).concurrency("q", 1);
    let worker = Running::start(worker);
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    let mut feed = bench.tenure.watch(id).await.unwrap();
    assert!(!feed.next().await.unwrap().status.is_finished());
    release.send(true).unwrap();
    let rest: Vec<_> = timeout(SOON, feed.collect()).await.unwrap();
    assert_eq!(rest.last().unwrap().status, Status::Completed);
    let called = bench.tenure.call(job()).within::<()>(SOON).await;
    assert!(matches!(called, Err(CallError::Wait(WaitError::NoHistory(_)))), "{called:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_returns_the_typed_output_or_says_why_not() {
    let bench = bench().await;
    let worker = doubles(&bench.tenure);
    assert_eq!(bench.tenure.call(Double { n: 21 }).within::<u64>(SOON).await.unwrap(), 42);
    let many = (0..200).map(|n| bench.tenure.call(Double { n: n * 100 }).within::<u64>(SOON));
    for (n, answer) in join_all(many).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), n as u64 * 200);
    }
    let failed = bench.tenure.call(Double { n: 13 }).within::<u64>(SOON).await.unwrap_err();
    let CallError::Wait(WaitError::Failed { last_error, .. }) = failed else { panic!("{failed}") };
    assert!(last_error.contains("unlucky"), "{last_error}");
    let unfit = bench.tenure.call(Double { n: 1 }).within::<String>(SOON).await.unwrap_err();
    assert!(matches!(unfit, CallError::Wait(WaitError::Output { .. })), "{unfit}");
    let named = JobRequest::new("no queue", "k", json!(null));
    let refused = bench.tenure.call(named).within::<u64>(SOON).await.unwrap_err();
    assert!(matches!(refused, CallError::Enqueue(_)), "{refused}");
    // A key that is taken: the answer of the job that holds it.
    let keyed = |n| JobRequest::from(Double { n }).unique_key("k");
    assert_eq!(bench.tenure.call(keyed(5)).within::<u64>(SOON).await.unwrap(), 10);
    assert_eq!(bench.tenure.call(keyed(6)).within::<u64>(SOON).await.unwrap(), 10);
    // No worker: the error names the job, which goes on.
    let other = JobRequest::from(Double { n: 4 }).queue("other");
    let late = bench.tenure.call(other).within::<u64>(Duration::from_millis(300)).await.unwrap_err();
    let CallError::Wait(WaitError::TimedOut { job, .. }) = late else { panic!("{late}") };
    assert_eq!(bench.tenure.job(job).await.unwrap().unwrap().status, Status::Queued);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_without_nats_and_after_a_lost_hint() {
    // Long timers: nothing is reset while a server is away.
    let patient = |config: &mut tenure::Config| {
        config.timing.stale_after = Duration::from_secs(180);
        config.timing.ack_wait = Duration::from_secs(360);
    };
    let mut bench = bench_with_servers(patient).await;
    let (worker, tell) = told(&bench);
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let (tenure, twin) = (bench.tenure.clone(), bench.tenure.clone());
    let waiting = tokio::spawn(async move { tenure.wait(id, SOON).await });
    // By now the waiter looks twice a second.
    let mut feed = twin.watch(id).await.unwrap();
    feed.next().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.own.as_mut().unwrap().nats.stop();
    let ended = Instant::now();
    drop(tell);
    let row = waiting.await.unwrap().unwrap().unwrap();
    assert_eq!(row.status, Status::Completed);
    let took = ended.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    let rest: Vec<_> = timeout(SOON, feed.collect()).await.unwrap();
    assert_eq!(rest.last().unwrap().status, Status::Completed);
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    worker.stop().await;
}

/// A connection that is up and takes nothing: the client says that it is connected.
#[tokio::test(flavor = "multi_thread")]
async fn a_nats_that_stalls_delays_no_look() {
    let bench = bench().await;
    let mut config = bench.config.clone();
    let proxy = Proxy::to_url(&config.nats_url).await;
    config.nats_url = proxy.of(&config.nats_url);
    let tenure = Tenure::connect(&config).await.unwrap();
    proxy.cut();
    // Until the client's queue is full: from then on its callers wait.
    while timeout(Duration::from_millis(500), tenure.pause_queue("idle")).await.is_ok() {}
    let id = bench.tenure.enqueue(JobRequest::new("idle", "k", json!(1))).await.unwrap().id;
    let waiting = tokio::spawn(async move { tenure.wait(id, SOON).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ended = Instant::now();
    bench.tenure.cancel(id).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().unwrap().status, Status::Cancelled);
    assert!(ended.elapsed() < Duration::from_millis(1_500), "{:?}", ended.elapsed());
    proxy.mend();
}

/// A watcher that comes later is not told what an earlier look saw.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_redriven_while_it_is_watched_has_not_ended_for_the_next_caller() {
    let bench = bench().await;
    let worker = doubles(&bench.tenure);
    let id = bench.tenure.enqueue(Double { n: 13 }).await.unwrap().id;
    let mut feed = bench.tenure.watch(id).await.unwrap();
    while !feed.next().await.unwrap().status.is_finished() {}
    worker.stop().await;
    // `feed` still holds on to the job, as a page does that has not been closed.
    bench.tenure.redrive(&[id]).await.unwrap();
    let late = bench.tenure.wait_for::<u64>(id, Duration::from_millis(700)).await.unwrap_err();
    assert!(matches!(late, WaitError::TimedOut { .. }), "{late}");
    assert_eq!(bench.tenure.watch(id).await.unwrap().next().await.unwrap().status, Status::Queued);
    drop(feed);
}

/// A right that is missing is an error, and no wait until the time is up.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_role_may_not_read_ends_is_told_so() {
    let bench = bench().await;
    let worker = doubles(&bench.tenure);
    let role = format!("blind_{}", uuid::Uuid::new_v4().simple());
    for sql in [
        format!("CREATE ROLE {role} LOGIN PASSWORD 'x'"),
        format!("GRANT USAGE ON SCHEMA tenure TO {role}"),
        format!("GRANT ALL ON ALL TABLES IN SCHEMA tenure TO {role}"),
        format!("REVOKE SELECT ON tenure.job_history FROM {role}"),
    ] {
        bench.execute(&sql).await;
    }
    let mut config = bench.config.clone();
    let (_, server) = config.database_url.split_once('@').unwrap();
    config.database_url = format!("postgres://{role}:x@{server}");
    let tenure = Tenure::connect(&config).await.unwrap();
    let began = Instant::now();
    let refused = tenure.call(Double { n: 2 }).within::<u64>(SOON).await.unwrap_err();
    assert!(
        matches!(&refused, CallError::Wait(WaitError::Store(error)) if !error.is_unavailable()),
        "{refused}"
    );
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    tenure.close().await;
    worker.stop().await;
    bench.execute(&format!("DROP OWNED BY {role}")).await;
    bench.execute(&format!("DROP ROLE {role}")).await;
}

/// A message is no proof of an end: any program with the right to publish could have sent it.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_hint_causes_a_look_and_nothing_else() {
    let bench = bench().await;
    let client = bench.js.client();
    let mut requests = client.subscribe(subject(&bench, "watch")).await.unwrap();
    client.flush().await.unwrap();
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    let mut feed = bench.tenure.watch(id).await.unwrap();
    assert_eq!(feed.next().await.unwrap().status, Status::Queued);
    let request = timeout(SOON, requests.next()).await.unwrap().unwrap();
    let request: Value = serde_json::from_slice(&request.payload).unwrap();
    assert_eq!(request["jobs"], json!([id]));
    let watcher = subject(&bench, &format!("watcher.{}", request["to"].as_str().unwrap()));
    let forged = json!({"event": "end", "job_id": id, "status": "completed", "attempt": 1, "output": 1});
    let other = json!({"event": "end", "job_id": JobId::generate(), "status": "completed"});
    for body in [forged.to_string(), other.to_string(), "{".into(), String::new()] {
        client.publish(watcher.clone(), body.into()).await.unwrap();
    }
    client.flush().await.unwrap();
    assert!(timeout(Duration::from_secs(1), feed.next()).await.is_err(), "the job has not changed");
    // A hint is what makes the difference: without it, a change is seen at the next poll.
    bench.execute("UPDATE tenure.jobs SET stage = 'seen'").await;
    client.publish(watcher, forged.to_string().into()).await.unwrap();
    let seen = timeout(SOON, feed.next()).await.unwrap().unwrap();
    assert_eq!((seen.status, seen.stage.as_deref()), (Status::Queued, Some("seen")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_no_subject_but_a_watchers() {
    let bench = bench().await;
    let client = bench.js.client();
    let worker = doubles(&bench.tenure);
    let request = JobRequest::from(Double { n: 2 }).delay(Duration::from_secs(3_600));
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    let mut all = client.subscribe(subject(&bench, "watcher.>")).await.unwrap();
    // It listens before it registers.
    bench.until_count("tenure.workers", 1).await;
    for to in ["jobs.q.double", "../jobs", "a.b", ">", "", "me"] {
        let request = json!({"jobs": [id], "to": to}).to_string();
        client.publish(subject(&bench, "watch"), request.into()).await.unwrap();
    }
    client.flush().await.unwrap();
    // Its message comes after the requests: the worker has them by then.
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    bench.until_finished(id).await;
    // The hints of one job come in order: after this one, no other of the first job is on its way.
    assert_eq!(bench.tenure.call(Double { n: 3 }).within::<u64>(SOON).await.unwrap(), 6);
    let mut told = std::collections::BTreeSet::new();
    while let Ok(Some(hint)) = timeout(Duration::from_millis(200), all.next()).await {
        let body: Value = serde_json::from_slice(&hint.payload).unwrap();
        if body["job_id"] == json!(id) {
            told.insert(hint.subject.to_string());
        }
    }
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [subject(&bench, "watcher.me")]);
    bench.until_stream_is_empty(SOON).await;
    assert_eq!(bench.count("tenure.all_jobs").await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_publishes_its_events_where_its_setting_says_so() {
    let bench = bench_with(|config| config.timing.flush_every = Duration::from_millis(20)).await;
    let client = bench.js.client();
    let mut events = client.subscribe(subject(&bench, "*.q.>")).await.unwrap();
    client.flush().await.unwrap();
    let (worker, tell) = told(&bench);
    let tenure = &bench.tenure;
    assert_eq!(tenure.call(Double { n: 2 }).within::<u64>(SOON).await.unwrap(), 4);
    tenure.set_events("q", QueueEvents::Progress).await.unwrap();
    let queue = tenure.queues().await.unwrap().into_iter().find(|row| row.queue == "q").unwrap();
    assert_eq!(queue.events, QueueEvents::Progress);
    let id = tenure.enqueue(job()).await.unwrap().id;
    // The workers hear of the setting within a second; until then they publish nothing.
    let (percent, message) = (50.0, "half \"way\"");
    let progress = loop {
        tell.send((percent, message)).unwrap();
        if let Ok(Some(event)) = timeout(Duration::from_millis(200), events.next()).await {
            break event;
        }
    };
    assert_eq!(progress.subject.as_str(), subject(&bench, "progress.q.k"));
    let body: Value = serde_json::from_slice(&progress.payload).unwrap();
    let expected = json!({"event": "progress", "job_id": id, "queue": "q", "kind": "k", "status": "processing",
        "attempt": 1, "stage": "work", "progress": 50.0, "message": message});
    assert_eq!(body, expected);
    drop(tell);
    let end = async {
        loop {
            let event = events.next().await.unwrap();
            if event.subject.as_str() == subject(&bench, "end.q.k") {
                return serde_json::from_slice::<Value>(&event.payload).unwrap();
            }
            assert_eq!(event.subject.as_str(), subject(&bench, "progress.q.k"));
        }
    };
    let expected =
        json!({"event": "end", "job_id": id, "queue": "q", "kind": "k", "status": "completed", "attempt": 1});
    assert_eq!(timeout(SOON, end).await.unwrap(), expected);
    // A failure is an end, too; with `ends` alone, nothing else is published.
    tenure.set_events("q", QueueEvents::Ends).await.unwrap();
    assert!(tenure.call(Double { n: 13 }).within::<u64>(SOON).await.is_err());
    let failed = timeout(SOON, events.next()).await.unwrap().unwrap();
    assert_eq!(failed.subject.as_str(), subject(&bench, "end.q.double"));
    assert_eq!(serde_json::from_slice::<Value>(&failed.payload).unwrap()["status"], "failed");
    assert!(tenure.set_events("no queue", QueueEvents::Ends).await.is_err());
    worker.stop().await;
}

/// The examples of docs/watching.md, where their interpreters and libraries are.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_in_other_languages_print_what_workers_publish() {
    let bench = bench().await;
    let root = std::path::Path::new(crate::harness::ROOT);
    let folder = bench.config.runtime_dir.join("watch");
    std::fs::create_dir_all(&folder).unwrap();
    let libraries = root.join(".tools/node/node_modules");
    std::fs::copy(root.join("examples/watch/watch.mjs"), folder.join("watch.mjs")).unwrap();
    std::os::unix::fs::symlink(&libraries, folder.join("node_modules")).unwrap();
    let unknown = bench.program(&["queues", "events", "qq", "ends"]).output().await.unwrap();
    assert!(!unknown.status.success());
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("to set it before its first job, add --create")
    );
    let set = bench.program(&["queues", "events", "q", "ends", "--create"]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&set.stdout), "q: workers publish ends\n");
    let start = async |program: &str, file: std::path::PathBuf, argument: String, first: &str| {
        let mut command = tokio::process::Command::new(program);
        command.arg(file).arg(&bench.config.nats_url).arg(argument);
        command.env("SUBJECT_PREFIX", &bench.config.subject_prefix);
        let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().ok()?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some(first));
        Some((child, lines))
    };
    // The worker reads the setting at its start.
    let (worker, tell) = told(&bench);
    let id = bench.tenure.enqueue(job()).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let mut python =
        start("python3", root.join("examples/watch/ends.py"), "q".into(), "subscribed").await.unwrap();
    let has_node = libraries.join("@nats-io/transport-node").exists();
    let node = if has_node {
        start("node", folder.join("watch.mjs"), id.to_string(), "watching").await
    } else {
        eprintln!("skipped: no Node here, or not its library (scripts/setup test)");
        None
    };
    drop(tell);
    if let Some((_, mut lines)) = node {
        // The worker may publish the start after the row says so.
        let end = async {
            loop {
                let line = lines.next_line().await.unwrap().unwrap();
                if !line.starts_with("start") {
                    return line;
                }
            }
        };
        assert_eq!(timeout(SOON, end).await.unwrap().trim(), "end completed");
    }
    let line = timeout(SOON, python.1.next_line()).await.unwrap().unwrap().unwrap();
    assert_eq!(line, format!("{id} k completed"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_cost_a_constant_number_of_statements() {
    // All of them end within seconds of each other: on a busy machine a statement waits for a connection.
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(30)).await;
    let tenure = &bench.tenure;
    let ids: Vec<_> = (0..10_000).map(|n| JobRequest::new("idle", "k", json!(n))).collect();
    let ids: Vec<_> = tenure.enqueue_many(ids).await.unwrap().into_iter().map(|job| job.id).collect();
    let per_second = async |waiters: usize| {
        let waits: Vec<_> = ids[..waiters]
            .iter()
            .map(|id| {
                let (tenure, id) = (tenure.clone(), *id);
                tokio::spawn(async move { tenure.wait(id, Duration::MAX).await })
            })
            .collect();
        // By then the pauses have grown to their longest.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, began) = (transactions(&bench).await, Instant::now());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let sent = u32::try_from(transactions(&bench).await - before).unwrap();
        let rate = f64::from(sent) / began.elapsed().as_secs_f64();
        (rate, waits)
    };
    let (one, waits) = per_second(1).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    let (many, waits) = per_second(10_000).await;
    eprintln!("transactions a second: one waiter {one:.1}, 10,000 waiters {many:.1}");
    // Two looks a second, for one waiter as for all; the test's own question and the driver's make a few more.
    assert!(many <= one + 10.0, "one waiter: {one:.1} transactions a second; 10,000: {many:.1}");
    // All of them end.
    for some in ids.chunks(500) {
        tenure.cancel_many(some).await.unwrap();
    }
    for wait in waits {
        let row = timeout(SOON, wait).await.unwrap().unwrap().unwrap().unwrap();
        assert_eq!(row.status, Status::Cancelled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_postgres_delays_a_watch_and_ends_none() {
    let bench = bench().await;
    let mut config = bench.config.clone();
    let proxy = Proxy::to_url(&config.database_url).await;
    config.database_url = proxy.of(&config.database_url);
    config.timing.database_within = Duration::from_millis(500);
    let tenure = Tenure::connect(&config).await.unwrap();
    let id = bench.tenure.enqueue(JobRequest::new("idle", "k", json!(1))).await.unwrap().id;
    let mut feed = tenure.watch(id).await.unwrap();
    assert_eq!(feed.next().await.unwrap().status, Status::Queued);
    proxy.cut();
    bench.tenure.cancel(id).await.unwrap();
    assert!(timeout(Duration::from_millis(1_500), feed.next()).await.is_err());
    proxy.mend();
    let last = timeout(SOON, feed.next()).await.unwrap().unwrap();
    assert_eq!(last.status, Status::Cancelled);
    assert!(feed.next().await.is_none());
}
