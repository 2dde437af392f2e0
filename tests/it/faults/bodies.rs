//! Payloads: any JSON comes back equal or is refused with a reason, and nothing is half done.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::atomic::Ordering,
};

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config as Proptest, TestRunner},
};
use serde_json::{Value, json};
use tenure::{EnqueueError, JobRequest, KindOptions, Tenure, Worker};

use crate::harness::{Bench, Running, bench};

/// Any JSON, with characters that are hard for databases.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        ".{0,20}",
        Just("\0".to_owned()),
        Just("\u{ffff}\u{10ffff}\u{feff}".to_owned()),
        Just("\\u0000 '; DROP TABLE tenure.jobs; -- {}$1".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| if number.is_finite() { json!(number) } else { json!(0) }),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Equal as JSON: 1e3 and 1000 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}

fn holds_nul(value: &Value) -> bool {
    value.to_string().replace("\\\\", "").contains("\\u0000")
}

#[tokio::test(flavor = "multi_thread")]
async fn any_payload_comes_back_equal_or_is_refused_with_a_reason() {
    let bench = bench().await;
    let mut runner = TestRunner::new(Proptest::default());
    let payloads: Vec<Value> =
        (0..400).map(|_| any_json().new_tree(&mut runner).unwrap().current()).collect();
    let mut stored = 0;
    for payload in &payloads {
        match bench.tenure.enqueue(JobRequest::new("q", "k", payload.clone())).await {
            Ok(enqueued) => {
                let back: Value = bench
                    .value(&format!("SELECT payload FROM tenure.jobs WHERE id = '{}'", enqueued.id))
                    .await;
                assert!(same(&back, payload), "{back} is not {payload}");
                stored += 1;
            }
            Err(EnqueueError::Payload(why)) => {
                assert!(holds_nul(payload) && why.contains("u0000"), "{payload}: {why}");
            }
            Err(error) => panic!("{payload}: {error}"),
        }
    }
    assert!(stored > 100 && stored < 400, "{stored}: both were tried");
    assert_eq!(bench.count("tenure.jobs").await, stored);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_no_database_can_hold_is_refused_by_producers_and_workers_alike() {
    let bench = bench().await;
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let bad = [
        ("deep", deep(10_000)),
        ("half a pair", r#""\ud800""#.to_owned()),
        ("a number without end", format!("1e{}", "9".repeat(10))),
        ("a large number", "1e400000".to_owned()),
        ("two megabytes", format!("\"{}\"", "x".repeat(2 << 20))),
        ("nothing", String::new()),
        ("two values", "1 2".to_owned()),
        ("NUL", r#"{"a":"\u0000"}"#.to_owned()),
    ];
    for (what, text) in &bad {
        let refused = bench.tenure.enqueue(JobRequest::from_json("q", "k", text.clone())).await;
        let error = refused.expect_err(what);
        let typed = matches!(error, EnqueueError::Payload(_) | EnqueueError::TooLarge { .. });
        assert!(typed, "{what}: {error:?}");
    }
    assert_eq!(bench.count("tenure.jobs").await, 0);
}

/// Sends these bytes to NATS as they are, and waits until the server has read them.
fn send_raw(bench: &Bench, bytes: &[u8]) {
    let mut server = TcpStream::connect(bench.config.nats_url.strip_prefix("nats://").unwrap()).unwrap();
    let hello = br#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"raw","version":"0"}"#;
    server.write_all(&[hello, &b"\r\n"[..], bytes, b"PING\r\n"].concat()).unwrap();
    let mut said = String::new();
    for line in BufReader::new(server).lines() {
        said = line.unwrap();
        if said == "PONG" {
            return;
        }
    }
    panic!("NATS has closed the connection: {said}");
}

/// A publication with these headers.
fn with_headers(subject: &str, headers: &[u8], body: &str) -> Vec<u8> {
    let (of_headers, all) = (headers.len(), headers.len() + body.len());
    let line = format!("HPUB {subject} {of_headers} {all}\r\n");
    [line.as_bytes(), headers, body.as_bytes(), b"\r\n"].concat()
}

fn without_headers(subject: &[u8], body: &str) -> Vec<u8> {
    let length = format!(" {}\r\n{body}\r\n", body.len());
    [b"PUB ", subject, length.as_bytes()].concat()
}

/// What any client may publish, and what no client can read: among good jobs, on a gateway's and a worker's subjects.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_client_can_read_costs_no_connection_and_no_other_job() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into(), "other".into()]).await.unwrap();
    // With the application's own client, each connection can be counted.
    let client = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let tenure = Tenure::builder(&bench.config).nats(client.clone()).connect().await.unwrap();
    let worker = Worker::builder(&tenure).handle_any(KindOptions::new(), async |_: Value, _| {});
    let working = Running::start(worker.concurrency("q", 8));
    bench.until_count("tenure.workers", 1).await;

    let prefix = &bench.config.subject_prefix;
    let q = format!("{prefix}.q.k");
    let latin: &[u8] = b"NATS/1.0\r\nTenure-Tags: customer=M\xfcller\r\n\r\n";
    let poison = [
        with_headers(&q, latin, "1"),
        with_headers(&q, b"NATS/1.0\r\nA Name: x\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0\r\nno colon\r\n\r\n", "1"),
        // Upstream's client panics at it, and stays dead.
        with_headers(&q, b"NATS/1.0\r\nTenure-Tags: a\rb\r\n\r\n", "1"),
        // What the server says of a request has such a status. Some releases of the server take it out: then it is a job.
        with_headers(&q, b"NATS/1.0 503\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0 404 No Messages\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 1000\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", "1"),
        without_headers(&[q.as_bytes(), b"\xff"].concat(), "1"),
        without_headers(&[q.as_bytes(), b"\0b"].concat(), "1"),
        without_headers(format!("{q}\u{a0}b").as_bytes(), "1"),
        with_headers(&q, b"NATS/1.0\r\nTenure-RunAt: 2030-01-31T12:00:00Z\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0\r\nTenure-Run-At: 9999-12-31T23:59:59Z\r\n\r\n", "1"),
        with_headers(&q, b"NATS/1.0\r\nTenure-Not-After: 9999-12-31T23:59:59Z\r\n\r\n", "1"),
    ];
    let mut bytes = Vec::new();
    for poison in &poison {
        bytes.extend((0..20).flat_map(|_| without_headers(q.as_bytes(), "1")));
        bytes.extend(poison);
    }
    for subject in ["watch", "cancel", "w.q.take", "w.q.to.x", "p.q.enqueue"] {
        let line = format!("tenure.{prefix}.{subject} _INBOX.x");
        bytes.extend(with_headers(&line, latin, "{}"));
    }
    send_raw(&bench, &bytes);
    // A queue without workers, whose messages a scan counts.
    send_raw(&bench, &without_headers(format!("{prefix}.other.a\0b").as_bytes(), "1"));

    let dead = "SELECT count(*) FROM tenure.dead_letter_jobs WHERE category = 'malformed'";
    bench.until(&format!("(SELECT count(*) FROM tenure.job_history) + ({dead}) = 294")).await;
    assert!((10..=14).contains(&bench.value::<i64>(dead).await));
    while bench.consumer("q").await.num_ack_pending > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let ran = bench.count("tenure.job_history WHERE status = 'completed'").await;
    assert_eq!(bench.count("tenure.job_executions_all").await, ran, "each job ran once");
    let letters = bench.text("SELECT last_error FROM tenure.dead_letter_jobs ORDER BY last_error").await;
    for reason in
        ["unreadable headers: ", "unreadable subject: ", "Tenure-RunAt is not known", "Tenure-Run-At is"]
    {
        assert!(letters.contains(reason), "{reason}: {letters}");
    }
    let raw: Vec<u8> = bench
        .value("SELECT raw_payload FROM tenure.dead_letter_jobs WHERE position('\\xfc'::bytea IN raw_payload) > 0")
        .await;
    assert_eq!(raw, [latin, b"1"].concat(), "the dead letter has the bytes of headers and body");
    // A scan after all that: the fleet's counts are there.
    bench.until("(SELECT misnamed > 0 FROM tenure.scanner_state)").await;
    assert_eq!(
        client.statistics().connects.load(Ordering::Relaxed),
        1,
        "the connection was never made again"
    );
    working.stop().await;
}
