//! Messages of groups: jobs that become due together share them, if every worker of their queue has many slots.

use tokio::sync::Semaphore;

use super::*;

const PARTS: u32 = 100;

/// A worker whose parts wait for a permit each.
fn gated(tenure: &Tenure, slots: u32) -> (Running, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let part = move |_: Value, _: JobContext| {
        let held = held.clone();
        async move { held.acquire().await.unwrap().forget() }
    };
    let nothing = async |_: Value, _: JobContext| {};
    let worker = Worker::builder(tenure)
        .handle_kind("part", KindOptions::new().keepalive(), part)
        .handle_kind("split", KindOptions::new(), nothing)
        .handle_kind("merge", KindOptions::new(), nothing)
        .concurrency("q", slots);
    (Running::start(worker), gate)
}

/// Enqueues a job, the parts that follow it, and the job that follows these. Returns the last one.
async fn enqueue(bench: &Bench) -> JobId {
    let graph = bench.tenure.graph();
    let split = graph.add(job("split", json!({})));
    let parts: Vec<_> =
        (0..PARTS).map(|n| graph.add(job("part", json!({ "n": n }))).after([&split])).collect();
    drop(graph.add(job("merge", json!({}))).after(&parts));
    graph.await.unwrap().id
}

/// Waits until all parts run, and returns how many messages named them: a message stays in the stream as long as one of
/// its jobs runs.
async fn messages_of_parts(bench: &Bench) -> u64 {
    bench.until_count("tenure.jobs WHERE status = 'processing' AND kind = 'part'", PARTS.into()).await;
    // None was handed back, and published again.
    assert_eq!(bench.count("tenure.jobs WHERE dispatch > 1").await, 0);
    // The message of the job before them may not be gone yet.
    let since = Instant::now();
    while bench.named().await != u64::from(PARTS) {
        assert!(since.elapsed() < SOON, "the messages name {} jobs", bench.named().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bench.messages().await
}

async fn ended(bench: &Bench, last: JobId, gate: &Semaphore) {
    gate.add_permits(PARTS as usize);
    assert_eq!(bench.until_finished(last).await.status, Status::Completed);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.all_jobs WHERE attempt > 1").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_released_together_share_messages_where_the_worker_has_many_slots() {
    let bench = bench().await;
    for (slots, messages) in [(PARTS + 20, PARTS), (256, PARTS / 4)] {
        // It has not asked yet what the workers can take.
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        let (worker, gate) = gated(&tenure, slots);
        let last = enqueue(&bench).await;
        assert_eq!(messages_of_parts(&bench).await, u64::from(messages), "{slots} slots");
        ended(&bench, last, &gate).await;
        worker.stop().await;
        bench.execute("DELETE FROM tenure.workers").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_enqueued_together_before_another_share_messages_where_the_worker_has_many_slots() {
    let bench = bench().await;
    let parts = || (0..PARTS).map(|n| job("part", json!({ "n": n })));
    let (worker, gate) = gated(&bench.tenure, 256);
    bench.until_count("tenure.workers", 1).await;
    let alone = bench.tenure.group(parts()).then(job("merge", json!({}))).await.unwrap();
    assert_eq!(messages_of_parts(&bench).await, u64::from(PARTS / 4));
    ended(&bench, alone.id, &gate).await;
    let mut tx = bench.pool.begin().await.unwrap();
    let in_tx = bench.tenure.group(parts()).then(job("merge", json!({}))).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(messages_of_parts(&bench).await, u64::from(PARTS / 4));
    ended(&bench, in_tx.id, &gate).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_has_its_own_message_if_the_settings_say_so() {
    let bench = bench_with(|config| config.jobs_per_message = 1).await;
    let (worker, gate) = gated(&bench.tenure, 256);
    bench.until_count("tenure.workers", 1).await;
    let last = enqueue(&bench).await;
    assert_eq!(messages_of_parts(&bench).await, u64::from(PARTS));
    ended(&bench, last, &gate).await;
    worker.stop().await;
}

/// A worker of several queues tells what it can take of each, by its slots: also of those that share them by weight.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_how_many_jobs_of_each_queue_one_message_may_name() {
    let bench = bench().await;
    let nothing = async |_: Value, _: JobContext| {};
    let worker = Worker::builder(&bench.tenure)
        .handle_kind("part", KindOptions::new(), nothing)
        .concurrency("few", 10)
        .concurrency("many", 2_000)
        .shared(1_000, [("heavy", 9), ("light", 1)]);
    let running = Running::start(worker);
    bench.until_count("tenure.workers", 1).await;
    let told: Vec<(String, i32)> = sqlx::query_as(
        "SELECT queue, jobs FROM tenure.jobs_per_message('{few,many,heavy,light}') ORDER BY queue COLLATE \"C\"",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let told: Vec<_> = told.iter().map(|(queue, jobs)| (queue.as_str(), *jobs)).collect();
    assert_eq!(told, [("few", 1), ("heavy", 14), ("light", 1), ("many", 16)]);
    running.stop().await;
}

/// A worker of an earlier release would take a message of several jobs for a malformed one.
#[tokio::test(flavor = "multi_thread")]
async fn each_job_has_its_own_message_beside_an_older_worker_and_when_the_database_does_not_tell() {
    let bench = bench().await;
    let as_older = "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version)
                    VALUES ('older', 'h', 1, '{q}', 256, '0.1.0')";
    let untold = "DROP FUNCTION tenure.jobs_per_message(text[])";
    for before in [as_older, untold] {
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        let (worker, gate) = gated(&tenure, 256);
        // It runs, and has found the schema whole.
        let first = bench.tenure.enqueue(job("split", json!({}))).await.unwrap();
        bench.until_finished(first.id).await;
        bench.execute(before).await;
        let last = enqueue(&bench).await;
        assert_eq!(messages_of_parts(&bench).await, u64::from(PARTS), "{before}");
        ended(&bench, last, &gate).await;
        worker.stop().await;
        bench.execute("DELETE FROM tenure.workers").await;
    }
}

/// The question waits for a lock. The jobs do not wait for the answer.
#[tokio::test(flavor = "multi_thread")]
async fn each_job_has_its_own_message_when_the_database_tells_too_late() {
    let bench = bench().await;
    let (worker, gate) = gated(&bench.tenure, 256);
    let first = bench.tenure.enqueue(job("split", json!({}))).await.unwrap();
    bench.until_finished(first.id).await;
    let mut tx = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.workers IN ACCESS EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    let last = enqueue(&bench).await;
    assert_eq!(messages_of_parts(&bench).await, u64::from(PARTS));
    tx.rollback().await.unwrap();
    ended(&bench, last, &gate).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_each_live_worker_can_take_is_told_by_queue() {
    let bench = bench().await;
    let told = async |queue: &str| -> (i64, i32) {
        let ask = "SELECT workers, jobs FROM tenure.jobs_per_message(ARRAY['other', $1]) WHERE queue = $1";
        sqlx::query_as(ask).bind(queue).fetch_one(&bench.pool).await.unwrap()
    };
    let worker = async |id: &str, queues: &str, jobs: Option<&str>| {
        let row =
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, jobs_per_message)
                   VALUES ($1, 'h', 1, $2::text[], 1000, '0.2.0', $3::int[])";
        sqlx::query(row).bind(id).bind(queues).bind(jobs).execute(&bench.pool).await.unwrap();
    };
    assert_eq!(told("a").await, (0, 1), "a queue without a worker");
    worker("one", "{a,b}", Some("{8,16}")).await;
    assert_eq!((told("a").await, told("b").await), ((1, 8), (1, 16)));
    worker("two", "{b}", Some("{4}")).await;
    assert_eq!((told("a").await, told("b").await), ((1, 8), (2, 4)));
    worker("older", "{b}", None).await;
    assert_eq!((told("a").await, told("b").await), ((1, 8), (3, 1)));
    let silent = async |since: &str| {
        let sql = format!(
            "UPDATE tenure.workers SET last_seen_at = now() - interval '{since}' WHERE worker_id = 'older'"
        );
        bench.execute(&sql).await;
    };
    silent("1 minute").await;
    assert_eq!(told("b").await, (2, 1), "a worker that may come back");
    silent("1 hour").await;
    assert_eq!(told("b").await, (2, 4), "a worker that has been silent for long");
    bench.execute("INSERT INTO tenure.queues (queue, max_running) VALUES ('b', 5)").await;
    assert_eq!((told("a").await, told("b").await), ((1, 8), (2, 1)), "a limited queue");
}
