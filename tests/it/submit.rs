//! Submissions: producers that have only a NATS client.

use std::time::Duration;

use async_nats::HeaderMap;
use serde_json::json;
use tenure::{KindOptions, Status, Worker};

use crate::harness::{Bench, Running, bench, bench_with, bench_with_servers};

fn worker(bench: &Bench) -> Running {
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    Running::start(
        Worker::builder(&bench.tenure).handle_kind("known", KindOptions::new(), echo).concurrency("q", 10),
    )
}

async fn publish(bench: &Bench, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, *value);
    }
    let subject = format!("{}.q.known", bench.config.subject_prefix);
    let body: Vec<u8> = body.into();
    bench.js.publish_with_headers(subject, map, body.into()).await.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_message_goes_to_the_dead_letters_with_its_bytes_and_the_worker_goes_on() {
    let bench = bench().await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    let deep = "[".repeat(100_000);
    let long_key = "x".repeat(513);
    let long: &[(&str, &str)] = &[("Tenure-Idempotency-Key", &long_key)];
    let bad: [(&str, &[(&str, &str)], Vec<u8>); 15] = [
        ("not JSON", &[], b"{oops".to_vec()),
        ("not UTF-8", &[], vec![b'"', 0xff, b'"']),
        ("empty", &[], vec![]),
        ("NUL", &[], br#"{"a": "\u0000"}"#.to_vec()),
        ("deep", &[], deep.into_bytes()),
        ("too large", &[], format!("\"{}\"", "x".repeat(299_998)).into_bytes()),
        // 200 bytes here, 327,660 in Postgres.
        ("grows", &[], format!("[{}1]", "1e-16383,".repeat(20)).into_bytes()),
        ("bad attempts", &[("Tenure-Max-Attempts", "many")], b"{}".to_vec()),
        ("bad time", &[("Tenure-Run-At", "tomorrow")], b"{}".to_vec()),
        ("no ticket", &[("Tenure-Job-Id", "1")], b"{}".to_vec()),
        ("no key", &[("Tenure-Idempotency-Key", ""), ("Nats-Msg-Id", "good")], b"{}".to_vec()),
        ("long key", long, b"{}".to_vec()),
        ("two lanes", &[("Tenure-Lane", "a"), ("Tenure-Lane", "b")], b"{}".to_vec()),
        ("two priorities", &[("Tenure-Priority", "1"), ("tenure-priority", "2")], b"{}".to_vec()),
        ("two ids", &[("Tenure-Job-Id", "1"), ("Tenure-Job-Id", "2")], b"{}".to_vec()),
    ];
    for (_, headers, body) in &bad {
        publish(&bench, headers, body.clone()).await;
    }
    publish(&bench, &[], b"{\"good\": 1}".to_vec()).await;
    bench.until_count("tenure.dead_letter_jobs", 15).await;
    bench.until_count("tenure.job_history WHERE output = '{\"good\": 1}'", 1).await;
    for (what, _, body) in &bad {
        let found: i64 = sqlx::query_scalar("SELECT count(*) FROM tenure.dead_letter_jobs WHERE raw_payload = $1 AND queue = 'q' AND kind = 'known'")
            .bind(body)
            .fetch_one(&bench.pool)
            .await
            .unwrap();
        assert!(found >= 1, "{what}");
    }
    let reasons =
        bench.text("SELECT category, left(last_error, 60) FROM tenure.dead_letter_jobs ORDER BY 1, 2").await;
    for reason in [
        "(malformed,\"the payload is not JSON",
        "(too_large,\"the payload has 300000 bytes",
        "(too_large,\"the payload has 3278",
        "Tenure-Max-Attempts is",
        "Tenure-Run-At is",
        "Tenure-Job-Id, but is not a ticket",
        "Tenure-Idempotency-Key (0 bytes)",
        "Tenure-Idempotency-Key (513 bytes)",
        "contains the character",
        "Tenure-Lane occurs more than once",
        "Tenure-Priority occurs more than once",
        "Tenure-Job-Id occurs more than once",
    ] {
        assert!(reasons.contains(reason), "{reason} is not in\n{reasons}");
    }
    // The messages are terminated, not redelivered for ever.
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_set_the_attempts_the_time_the_key_and_the_trace() {
    let bench = bench().await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    let at = (chrono::Utc::now() + chrono::TimeDelta::seconds(1)).to_rfc3339();
    let headers = [
        ("Tenure-Max-Attempts", "9"),
        ("tenure-run-at", at.as_str()),
        ("Nats-Msg-Id", "order-1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    publish(&bench, &headers, b"1".to_vec()).await;
    bench.until_count("tenure.jobs WHERE status = 'queued'", 1).await;
    let job = bench
        .text("SELECT max_attempts, trace_context LIKE '00-0af%', scheduled_at > created_at FROM tenure.jobs")
        .await;
    assert_eq!(job, "(9,t,t)");
    bench.until_count("tenure.job_history WHERE started_at >= scheduled_at", 1).await;
    // The same message, after the stream has forgotten its id: the key still holds.
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    stream.purge().await.unwrap();
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), async {
        while bench.js.get_stream(&bench.config.stream).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    publish(&bench, &[("Nats-Msg-Id", "order-1")], b"1".to_vec()).await;
    publish(&bench, &[("Nats-Msg-Id", "order-2")], b"2".to_vec()).await;
    bench.until_count("tenure.job_history WHERE output = '2'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 2);
    worker.stop().await;
}

/// A `Tenure-Idempotency-Key` counts within its queue. NATS drops a `Nats-Msg-Id` that it has seen in the stream within
/// two minutes, in any queue, as the docs say.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_queue_and_the_streams_own_id_does_not() {
    let bench = bench().await;
    bench.tenure.setup(&["mail".into(), "billing".into()]).await.unwrap();
    let publish = |queue: &'static str, headers: &[(&str, &str)]| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let subject = format!("{}.{queue}.known", bench.config.subject_prefix);
        let js = bench.js.clone();
        async move {
            let ack = js.publish_with_headers(subject, map, format!("\"{queue}\"").into()).await.unwrap();
            ack.await.unwrap().duplicate
        }
    };
    let key = ("Tenure-Idempotency-Key", "order-17");
    assert!(!publish("mail", &[key]).await);
    assert!(!publish("mail", &[key]).await, "the stream stores it; Postgres knows the key");
    assert!(!publish("billing", &[key]).await);
    // Beside the key, the stream's id has no other meaning: a different id makes no other job.
    assert!(!publish("billing", &[key, ("Nats-Msg-Id", "another")]).await);
    // The trap that the docs name: the second job would never exist.
    assert!(!publish("mail", &[("Nats-Msg-Id", "order-18")]).await);
    assert!(publish("billing", &[("Nats-Msg-Id", "order-18")]).await);
    // An id that contains the queue avoids the trap.
    assert!(
        !publish("mail", &[("Tenure-Idempotency-Key", "order-19"), ("Nats-Msg-Id", "mail:order-19")]).await
    );
    assert!(
        !publish("billing", &[("Tenure-Idempotency-Key", "order-19"), ("Nats-Msg-Id", "billing:order-19")])
            .await
    );
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    let worker = Worker::builder(&bench.tenure).handle_kind("known", KindOptions::new(), echo);
    let worker = Running::start(worker.concurrency("mail", 2).concurrency("billing", 2));
    bench.until_stream_is_empty(Duration::from_secs(30)).await;
    let keys =
        "SELECT scope, key FROM tenure.job_keys JOIN tenure.job_history h ON h.id = job_id ORDER BY 1, 2";
    assert_eq!(
        bench.text(keys).await,
        "(billing,order-17)\n(billing,order-19)\n(mail,order-17)\n(mail,order-18)\n(mail,order-19)"
    );
    assert_eq!(bench.count("tenure.all_jobs").await, 5);
    // An enqueue with the key of a submission returns the submission's job.
    let again =
        bench.tenure.enqueue(tenure::JobRequest::new("mail", "known", json!(1))).unique_key("order-17").await;
    assert!(again.unwrap().duplicate);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn submissions_during_an_outage_of_postgres_become_jobs_when_it_is_back() {
    let mut bench = bench_with_servers(|_| {}).await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    bench.own.as_mut().unwrap().postgres.stop();
    for n in 0..50 {
        publish(&bench, &[], n.to_string()).await;
    }
    bench.own.as_mut().unwrap().postgres.restart().unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 50).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 50);
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_kind_waits_for_a_worker_that_handles_it() {
    let bench = bench().await;
    let old = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    bench.publish("q.new.kind", "1").await;
    let ticket = bench.tenure.enqueue(tenure::JobRequest::new("q", "new.kind", json!(2))).await.unwrap();
    publish(&bench, &[], b"3".to_vec()).await;
    bench.until_count("tenure.job_history WHERE output = '3'", 1).await;
    // Put off: row and message exist, no worker ran the job, and the relay does not publish it over and over.
    bench
        .until_count("tenure.jobs WHERE kind = 'new.kind' AND published_at > now() + interval '10 s'", 2)
        .await;
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    bench.until("(SELECT last_scan_at FROM tenure.scanner_state) IS NOT NULL").await;
    let scanned: String = bench.value("SELECT last_scan_at::text FROM tenure.scanner_state").await;
    bench
        .until(&format!(
            "(SELECT last_scan_at FROM tenure.scanner_state) > timestamptz '{scanned}' + interval '2 s'"
        ))
        .await;
    assert_eq!(bench.count("tenure.jobs WHERE dispatch > 1").await, 0);
    // The messages would reach the new worker in 20 to 40 s; the relay is faster.
    let new = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    old.stop().await;
    bench
        .execute("UPDATE tenure.jobs SET published_at = now() - interval '1 min' WHERE kind = 'new.kind'")
        .await;
    assert_eq!(bench.until_finished(ticket.id).await.status, Status::Completed);
    bench.until_count("tenure.job_history WHERE kind = 'new.kind'", 2).await;
    new.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_stays_unknown_for_too_long_is_a_dead_letter_with_its_payload() {
    let bench = bench_with(|config| config.timing.unknown_kind_after = Duration::from_secs(2)).await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    bench.publish("q.typo", "{\"keep\": true}").await;
    bench
        .until_count(
            "tenure.dead_letter_jobs WHERE category = 'unknown_kind' AND payload = '{\"keep\": true}'",
            1,
        )
        .await;
    let error: String = bench.value("SELECT last_error FROM tenure.dead_letter_jobs").await;
    assert!(error.contains("\"typo\"") && error.contains("redrive"), "{error}");
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_program_with_nothing_but_nats_py_is_a_producer() {
    let bench = bench().await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    let program = "
import asyncio, json, os, nats
async def main():
    nc = await nats.connect(os.environ['NATS_URL'])
    js = nc.jetstream()
    subject = os.environ['TENURE_SUBJECT_PREFIX'] + '.q.known'
    await js.publish(subject, json.dumps({'from': 'python'}).encode())
    for _ in range(2):
        await js.publish(subject, b'{\"once\": 1}', headers={'Nats-Msg-Id': 'order-9'})
    await nc.close()
asyncio.run(main())
";
    let output = tokio::process::Command::new("python3")
        .args(["-c", program])
        .envs(bench.environment())
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}\nIs nats-py installed? `make test` installs it.",
        String::from_utf8_lossy(&output.stderr)
    );
    bench.until_count("tenure.job_history WHERE output = '{\"from\": \"python\"}'", 1).await;
    bench.until_count("tenure.job_history WHERE output = '{\"once\": 1}'", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_a_busy_worker_handles_never_becomes_a_dead_letter() {
    let bench = bench_with(|config| config.timing.unknown_kind_after = Duration::from_secs(2)).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let slow = |_, ctx: tenure::JobContext| async move {
        while ctx.progress("busy", 0.0, "").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let busy = Running::start(
        Worker::builder(&bench.tenure).handle_kind("rare", KindOptions::new(), slow).concurrency("q", 1),
    );
    bench.tenure.enqueue(tenure::JobRequest::new("q", "rare", json!(1))).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    let waiting = bench.tenure.enqueue(tenure::JobRequest::new("q", "rare", json!(2))).await.unwrap().id;
    let other = worker(&bench);
    // Put off for longer than the limit after which an unknown kind becomes a dead letter.
    bench.until(&format!("EXISTS (SELECT FROM tenure.jobs WHERE id = '{waiting}' AND put_off_since < now() - interval '4 s')")).await;
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    drop(busy);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_ticket_claims_nothing_and_a_finished_job_of_an_unknown_kind_is_acknowledged() {
    let bench = bench().await;
    let worker = worker(&bench);
    bench.until_count("tenure.workers", 1).await;
    let other =
        bench.tenure.enqueue(tenure::JobRequest::new("elsewhere", "other", json!(1))).await.unwrap().id;
    let done = bench.tenure.enqueue(tenure::JobRequest::new("q", "known", json!(1))).await.unwrap().id;
    bench.until_finished(done).await;
    let absent = tenure::JobId::generate();
    // Tickets under a known subject for a job of another queue and kind; under an unknown kind, for a finished job and
    // for one that does not exist.
    for (n, (kind, job)) in [("known", other), ("strange", done), ("strange", absent)].into_iter().enumerate()
    {
        let mut headers = HeaderMap::new();
        headers.insert("Tenure-Job-Id", job.to_string());
        headers.insert("Nats-Msg-Id", format!("forged-{n}"));
        let body = json!({"job_id": job, "dispatch": 1}).to_string();
        let subject = format!("{}.q.{kind}", bench.config.subject_prefix);
        bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
    }
    // Only the ticket of the other queue's own job is left; no worker here serves that queue.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let info = bench.consumer("q").await;
        if info.num_pending == 0 && info.num_ack_pending == 0 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{info:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        bench.count(&format!("tenure.jobs WHERE id = '{other}' AND attempt = 0 AND fencing_token = 0")).await,
        1
    );
    worker.stop().await;
}
