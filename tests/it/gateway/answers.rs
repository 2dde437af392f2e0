//! Answers: what a gateway says of requests that come twice, of a lost attempt, of values that cannot be stored, and
//! when too many wait.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tenure::{JobId, Status};

use super::{Foreign, about, all, enqueue, faults::patient, gateway, id, outcomes};
use crate::harness::{Child, bench, bench_with};

impl Foreign {
    /// Sends as many takes with this body, and counts those that are refused with these words, to be repeated.
    async fn storm(&self, takes: usize, body: &str, refusal: &str) -> usize {
        let mut inbox = self.nats.subscribe("_INBOX.storm.*").await.unwrap();
        for n in 0..takes {
            let (subject, reply) = (format!("{}.w.q.take", self.prefix), format!("_INBOX.storm.{n}"));
            self.nats.publish_with_reply(subject, reply, body.to_owned().into()).await.unwrap();
        }
        let mut refused = 0;
        for _ in 0..takes {
            let answer = tokio::time::timeout(Duration::from_secs(60), inbox.next()).await.unwrap().unwrap();
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            if answer["error"]["message"] == json!(refusal) {
                assert_eq!(answer["error"]["retry"], json!(true));
                refused += 1;
            }
        }
        refused
    }

    /// Takes jobs until this one comes.
    async fn this(&self, job: JobId) -> Value {
        loop {
            let taken = self.one().await;
            if id(&taken) == job {
                return taken;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_after_another_one_of_its_attempt_is_told_that_it_came_too_late() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let end = |outcome: &str| json!({"outcome": outcome, "after_ms": 600_000, "error": outcome, "left_ms": 600_000});
    for (first, others) in [
        ("retry", ["fail", "complete", "snooze", "suspend"]),
        ("snooze", ["retry", "fail", "complete", "release"]),
        ("release", ["snooze", "fail", "complete", "suspend"]),
        ("complete", ["retry", "fail", "cancel", "snooze"]),
        ("fail", ["complete", "snooze", "suspend", "complete"]),
    ] {
        let job = enqueue(&bench, "k", json!(null)).await;
        let taken = worker.this(job).await;
        for _ in 0..2 {
            assert_eq!(worker.settle(&taken, end(first)).await, json!("settled"), "{first}, repeated");
        }
        let before = outcomes(&bench, job).await;
        for other in others {
            assert_eq!(worker.settle(&taken, end(other)).await, json!("lost"), "{other} after {first}");
        }
        assert_eq!(outcomes(&bench, job).await, before, "after {first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producers_job_may_expire_be_replaced_and_have_a_key_for_a_while() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let ask = async |request: &str, mut body: Value| {
        body["v"] = json!(1);
        worker.raw(&format!("p.q.{request}"), &body.to_string()).await
    };
    let soon = (chrono::Utc::now() + Duration::from_secs(600)).to_rfc3339();
    let rare = json!({"kind": "k", "payload": 1, "delay_ms": 60_000, "not_after": soon, "on_expiry": "cancel", "unique_while_queued": "w"});
    let one = ask("enqueue", rare.clone()).await["ok"].clone();
    let again = ask("enqueue", rare).await["ok"].clone();
    assert_eq!(
        (&one["created"], &again["created"], &again["job"]),
        (&json!(true), &json!(false), &one["job"])
    );
    let row = bench.tenure.job(id(&one)).await.unwrap().unwrap();
    assert!(row.not_after.is_some());
    for n in 1..=2 {
        let later =
            json!({"kind": "k", "payload": n, "delay_ms": 60_000, "replace": "r", "longest_wait_ms": 90_000});
        let replaced = ask("enqueue", later).await["ok"].clone();
        assert_eq!(bench.tenure.job(id(&replaced)).await.unwrap().unwrap().payload, Some(json!(n)));
    }
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued'").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_output_cannot_be_stored_is_told_so() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    // Only Postgres itself knows of the second one.
    for output in [r#""a\u0000b""#, "1e200000"] {
        let job = enqueue(&bench, "k", json!(null)).await;
        let taken = worker.this(job).await;
        let entry = about(&taken, json!({"outcome": "complete"})).to_string();
        let entry = entry.replacen('{', &format!(r#"{{"output":{output},"#), 1);
        let body = format!(r#"{{"v":1,"worker":"one","settles":[{entry}]}}"#);
        let answer = worker.raw("w.q.settle", &body).await;
        let error = &answer["ok"]["results"][0]["error"];
        assert_eq!((&error["code"], &error["retry"]), (&json!("refused"), &json!(false)), "{answer}");
        assert_eq!(bench.until_finished(job).await.status, Status::Failed);
        let category = format!("SELECT category FROM tenure.dead_letter_jobs WHERE id = '{job}'");
        assert_eq!(bench.text(&category).await, "(invalid_output)");
        // As a client does that is refused.
        assert_eq!(worker.settle(&taken, json!({"outcome": "fail", "error": "x"})).await, json!("settled"));
        assert_eq!(outcomes(&bench, job).await, "(failed)");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_lost_reads_nothing() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let stale = worker.one().await;
    let calls = [
        ("step", json!({"name": "step", "result": 7})),
        ("recorded", json!({"name": "step"})),
        ("sleep", json!({"name": "sleep", "lasts_ms": 1})),
        ("event", json!({"name": "event", "within_ms": 600_000})),
        ("all", json!({"name": "all", "jobs": [{"kind": "other", "payload": 1}]})),
        ("outputs", json!({"name": "all"})),
        ("payload", json!({"part": 0})),
    ];
    let with = |of: &Value, mut body: Value| {
        body["receipt"] = of["receipt"].clone();
        body
    };
    for (request, body) in &calls {
        let answer = worker.ok(request, with(&stale, body.clone())).await;
        assert!(answer["lost"].is_null(), "{request}: {answer}");
    }
    assert_eq!(worker.settle(&stale, json!({"outcome": "release"})).await, json!("settled"));
    for while_it_runs in [false, true] {
        if while_it_runs {
            let again = worker.this(job).await;
            assert_eq!(again["token"], json!(2));
            let answer = worker.ok("recorded", with(&again, json!({"name": "step"}))).await;
            assert_eq!(answer["result"], json!(7));
        }
        for (request, body) in &calls {
            let answer = worker.ok(request, with(&stale, body.clone())).await;
            assert_eq!(answer, json!({"lost": true}), "{request}, while it runs elsewhere: {while_it_runs}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_outside_of_its_range_is_refused_and_a_long_message_is_cut_in_the_middle() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let taken = worker.one().await;
    assert_eq!(worker.report(&taken, json!({"progress": 100.0, "stage": "s"})).await, json!("ok"));
    for wrong in [1e300, -0.5, 100.5] {
        let result = worker.report(&taken, json!({"progress": wrong, "stage": "wrong"})).await;
        assert_eq!(result["error"]["code"], json!("bad_request"), "{wrong}");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains("\"reports[0].progress\" must be a number from 0 to 100"), "{message}");
    }
    let long = format!("{}{}", "a".repeat(20_000), "z".repeat(20_000));
    assert_eq!(worker.report(&taken, json!({"message": long})).await, json!("ok"));
    let row = bench.tenure.job(job).await.unwrap().unwrap();
    assert_eq!((row.stage.as_deref(), row.progress), (Some("s"), Some(100.0)));
    let message = row.message.unwrap();
    let (head, tail) = ("a".repeat(8_000), "z".repeat(8_000));
    assert!(message.len() <= 16 << 10 && message.starts_with(&head) && message.ends_with(&tail));
    assert!(message.contains(" bytes left out "), "it says so");
}

/// A flood of one refusal hides no other.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_logged_once_by_their_queue_request_and_code() {
    let bench = bench_with(patient).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut gateway = Child::spawn(bench.program(&["gateway"]), "gateway");
    gateway.until_log("worker started").await;
    let worker = Foreign::start(&bench, "one").await;
    worker.take(1, 0).await;
    let refused = async |request: &str, body: &str| {
        for _ in 0..20 {
            let answer = worker.raw(&format!("w.{request}"), body).await;
            assert!(answer["error"].is_object(), "{answer}");
        }
    };
    let unknown = r#"{"v":1,"worker":"unknown","slots":1,"wait_ms":0,"kinds":{"*":{}}}"#;
    refused("q.take", "{}").await;
    refused("q.take", unknown).await;
    refused("q.beat", "{}").await;
    refused("other.take", unknown).await;
    let log = gateway.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("the gateway refused a request")).collect();
    for (queue, request, code) in [
        ("q", "take", "unsupported_version"),
        ("q", "take", "hello_first"),
        ("q", "beat", "unsupported_version"),
        ("other", "take", "hello_first"),
    ] {
        let is_it =
            |line: &&&str| [queue, request, code].iter().all(|word| line.contains(&format!("\"{word}\"")));
        let told = lines.iter().filter(is_it).count();
        assert!((1..=4).contains(&told), "{queue} {request} {code}: {told}\n{log}");
    }
}

/// What it is given comes back, and disturbs the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_confirms_no_answer_waits_longer_each_time() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let body = json!({"v": 1, "worker": "one", "slots": 1, "wait_ms": 10_000, "kinds": all()}).to_string();
    let subject = format!("{}.w.q.take", worker.prefix);
    let mut began_at = std::time::Instant::now();
    for n in 1..=5 {
        // No client has subscribed to this inbox.
        worker.nats.publish_with_reply(subject.clone(), "_INBOX.gone", body.clone().into()).await.unwrap();
        let released = "tenure.job_executions_all WHERE outcome = 'released'";
        bench.until_count(released, n).await;
        if n == 2 {
            began_at = std::time::Instant::now();
        }
    }
    // After two without a confirmation, 250 ms; then twice as long each time.
    let paused = began_at.elapsed();
    assert!(paused >= Duration::from_millis(1_750), "{paused:?}");
    let taken = worker.this(job).await;
    assert_eq!(taken["attempt"], json!(1), "none was charged");
    assert_eq!(worker.settle(&taken, json!({"outcome": "complete"})).await, json!("settled"));
}

/// They wait for up to 30 s, each with its body.
#[tokio::test(flavor = "multi_thread")]
async fn of_takes_with_large_bodies_fewer_may_wait() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let body = json!({"v": 1, "worker": "one", "slots": 1, "wait_ms": 10_000, "kinds": all()}).to_string();
    let body = format!("{body}{}", " ".repeat(1_000_000));
    let refused = worker.storm(150, &body, "the gateway serves too many requests").await;
    // 8,000 places of 16 KiB are for 129 of them.
    assert!((1..=21).contains(&refused), "{refused}");
    // A worker's own take is small.
    worker.take(1, 0).await;
}

/// Each costs memory that is not given back to the system, and the queue's consumer lets 8,192 requests wait.
#[tokio::test(flavor = "multi_thread")]
async fn takes_beyond_those_that_may_wait_of_a_queue_are_told_to_come_again() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let body = json!({"v": 1, "worker": "one", "slots": 1, "wait_ms": 6_000, "kinds": all()}).to_string();
    let words = "2000 takes of the queue wait in this gateway already";
    let refused = worker.storm(2_500, &body, words).await;
    // On a busy machine, some have come to their end before the last arrives.
    assert!((1..=500).contains(&refused), "{refused}");
    // Their places are free again.
    let job = enqueue(&bench, "k", json!(null)).await;
    assert_eq!(
        worker.settle(&worker.this(job).await, json!({"outcome": "complete"})).await,
        json!("settled")
    );
}
