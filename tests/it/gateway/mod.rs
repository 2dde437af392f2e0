//! The gateway: the worker protocol of `docs/worker-protocol.md`, spoken by a client that does just what a test says.

mod addresses;
mod answers;
mod batches;
mod clients;
mod faults;
mod logs;
mod quarantine;
mod steps;

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, Status, Worker, queues::QueueLimits};

use crate::harness::{Bench, Running, bench, bench_with};

/// A worker of the queue `q` that speaks the protocol.
struct Foreign {
    nats: async_nats::Client,
    prefix: String,
    worker: String,
    /// Whether it renews its row on a `hello_first`.
    listens: tokio::task::JoinHandle<()>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.listens.abort();
    }
}

/// The kinds of a worker that knows all of them.
fn all() -> Value {
    json!({"*": {}})
}

impl Foreign {
    /// Connects, and says hello.
    async fn start(bench: &Bench, worker: &str) -> Self {
        let one = Self::connect(bench, worker).await;
        let hello = json!({"hostname": "web-1.example", "pid": 7, "language": "test", "version": "9", "slots": 8, "kinds": all()});
        let hello = one.ok("hello", hello).await;
        assert_eq!(hello["stale_after_ms"], json!(millis(bench.config.timing.stale_after)));
        one
    }

    async fn connect(bench: &Bench, worker: &str) -> Self {
        let nats = async_nats::connect(&bench.config.nats_url).await.unwrap();
        let prefix = format!("tenure.{}", bench.config.subject_prefix);
        let mut ours = nats.subscribe(format!("{prefix}.w.q.to.{worker}")).await.unwrap();
        let answers = nats.clone();
        let listens = tokio::spawn(async move {
            while let Some(message) = ours.next().await {
                if let Some(reply) = message.reply {
                    answers.publish(reply, "here".into()).await.unwrap();
                }
            }
        });
        Self { nats, prefix, worker: worker.into(), listens }
    }

    /// Sends a request as it is, until a gateway answers.
    async fn raw(&self, subject: &str, body: &str) -> Value {
        let subject = format!("{}.{subject}", self.prefix);
        for _ in 0..300 {
            match self.nats.request(subject.clone(), body.to_owned().into()).await {
                Ok(answer) => {
                    if let Some(reply) = answer.reply {
                        self.nats.publish(reply, "".into()).await.unwrap();
                    }
                    return serde_json::from_slice(&answer.payload).unwrap();
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        panic!("no gateway answers");
    }

    /// The answer to a request, whatever it is.
    async fn ask(&self, request: &str, mut body: Value) -> Value {
        body["v"] = json!(1);
        body["worker"] = json!(self.worker);
        self.raw(&format!("w.q.{request}"), &body.to_string()).await
    }

    /// Repeats a request until it succeeds, as the page says.
    async fn ok(&self, request: &str, body: Value) -> Value {
        for _ in 0..300 {
            let mut answer = self.ask(request, body.clone()).await;
            let results = answer["ok"]["results"].as_array();
            let to_repeat = |result: &Value| result["error"]["retry"] == json!(true);
            if answer["ok"].is_object() && !results.is_some_and(|results| results.iter().any(to_repeat)) {
                return answer["ok"].take();
            }
            assert!(answer["ok"].is_object() || to_repeat(&answer), "{request}: {answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{request} does not succeed");
    }

    async fn take(&self, slots: u64, wait: u64) -> Vec<Value> {
        let body = json!({"slots": slots, "wait_ms": wait, "kinds": all()});
        self.ok("take", body).await["jobs"].as_array().unwrap().clone()
    }

    /// Waits for one job.
    async fn one(&self) -> Value {
        for _ in 0..100 {
            if let Some(job) = self.take(1, 500).await.pop() {
                return job;
            }
        }
        panic!("no job comes");
    }

    async fn report(&self, job: &Value, report: Value) -> Value {
        self.ok("report", json!({"reports": [about(job, report)]})).await["results"][0].clone()
    }

    async fn settle(&self, job: &Value, end: Value) -> Value {
        self.ok("settle", json!({"settles": [about(job, end)]})).await["results"][0].clone()
    }

    async fn beat(&self, running: &[&Value], as_of: Value) -> Value {
        let running: Vec<_> =
            running.iter().map(|job| json!([job["job"], job["token"], job["claim"]])).collect();
        self.ok("beat", json!({"running": running, "as_of": as_of})).await
    }

    /// Gives back what the worker does not name, as after a lost answer.
    async fn reconcile(&self, running: &[&Value]) -> u64 {
        let first = self.beat(running, Value::Null).await;
        self.beat(running, first["now"].clone()).await["returned"].as_u64().unwrap()
    }
}

/// An entry about a job.
fn about(job: &Value, mut entry: Value) -> Value {
    for name in ["job", "token", "receipt"] {
        entry[name] = job[name].clone();
    }
    entry
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap()
}

/// A gateway in this process, which serves nothing else.
fn gateway(bench: &Bench) -> Running {
    Running::start(Worker::builder(&bench.tenure).gateway())
}

fn id(job: &Value) -> JobId {
    job["job"].as_str().unwrap().parse().unwrap()
}

async fn enqueue(bench: &Bench, kind: &str, payload: Value) -> JobId {
    bench.tenure.enqueue(JobRequest::new("q", kind, payload).max_attempts(2)).await.unwrap().id
}

/// How the attempts of a job ended, in order.
async fn outcomes(bench: &Bench, job: JobId) -> String {
    bench
        .text(&format!(
            "SELECT outcome FROM tenure.job_executions_all WHERE job_id = '{job}' ORDER BY fencing_token"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_its_way_by_the_protocol() {
    let bench = bench().await;
    let gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let text =
        r#"{"n": 1.000000000000000000001, "ü": "\u0001 \" \\ 😀", "big": 123456789012345678901234567890}"#;
    let enqueued = bench.tenure.enqueue(JobRequest::from_json("q", "a.b", text)).await.unwrap().id;
    let job = worker.one().await;
    assert_eq!(id(&job), enqueued);
    for (name, expected) in [
        ("kind", json!("a.b")),
        ("attempt", json!(1)),
        ("max_attempts", json!(5)),
        ("token", json!(1)),
        ("checkpoint", Value::Null),
        ("after_reset", json!(false)),
        ("stale_after_ms", json!(1_500)),
    ] {
        assert_eq!(job[name], expected, "{name}");
    }
    assert_eq!(job["payload"]["ü"], json!("\u{1} \" \\ 😀"));
    assert!(job["receipt"].as_str().unwrap().len() <= 2_000);
    let owner = bench.tenure.job(enqueued).await.unwrap().unwrap().worker_id;
    assert_eq!(owner.as_deref(), Some("q/one"), "the job is the worker's, not the gateway's");

    let report = json!({"stage": "half", "progress": 50.5, "message": "1 of 2", "checkpoint": {"i": 1}});
    assert_eq!(worker.report(&job, report).await, json!("ok"));
    assert_eq!(worker.report(&job, json!({})).await, json!("ok"), "a sign of life alone");
    let row = bench.tenure.job(enqueued).await.unwrap().unwrap();
    assert_eq!(
        (row.stage.as_deref(), row.progress, row.message.as_deref()),
        (Some("half"), Some(50.5), Some("1 of 2"))
    );

    let end =
        json!({"outcome": "complete", "output": {"sum": 1}, "ran_ms": 12, "report": {"message": "2 of 2"}});
    assert_eq!(worker.settle(&job, end).await, json!("settled"));
    let row = bench.tenure.job(enqueued).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Completed);
    assert_eq!((row.output, row.message.as_deref()), (Some(json!({"sum": 1})), Some("2 of 2")));
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    assert_eq!(worker.ok("goodbye", json!({})).await, json!({"gone": true}));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_ends_its_attempt() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    for (end, status, outcome) in [
        (json!({"outcome": "fail", "error": "no use"}), Status::Failed, "(failed)"),
        (json!({"outcome": "cancel", "error": "not needed"}), Status::Cancelled, "(cancelled)"),
        (json!({"outcome": "complete"}), Status::Completed, "(completed)"),
    ] {
        let job = enqueue(&bench, "k", json!(null)).await;
        let taken = worker.one().await;
        assert_eq!(worker.settle(&taken, end).await, json!("settled"));
        let row = bench.until_finished(job).await;
        assert_eq!((row.status, outcomes(&bench, job).await.as_str()), (status, outcome), "{row:?}");
    }
    // These run again, with the checkpoint of the last report.
    for (end, outcome, attempt) in [
        (json!({"outcome": "retry", "error": "boo", "after_ms": 10}), "(retried)", 2),
        (json!({"outcome": "snooze", "after_ms": 10}), "(snoozed)", 1),
        (json!({"outcome": "release"}), "(released)", 1),
        (json!({"outcome": "release", "began": false}), "(released)", 1),
    ] {
        let job = enqueue(&bench, "k", json!(null)).await;
        let taken = worker.one().await;
        let mut end = end;
        end["report"] = json!({"checkpoint": [7]});
        assert_eq!(worker.settle(&taken, end).await, json!("settled"));
        let again = worker.one().await;
        assert_eq!((id(&again), &again["token"], &again["checkpoint"]), (job, &json!(2), &json!([7])));
        assert_eq!(again["attempt"], json!(attempt), "{outcome}");
        worker.settle(&again, json!({"outcome": "complete"})).await;
        assert_eq!(outcomes(&bench, job).await, format!("{outcome}\n(completed)"));
    }
    // The backoff is the usual one, and the last attempt the last.
    let job = enqueue(&bench, "k", json!(null)).await;
    let taken = worker.one().await;
    worker.settle(&taken, json!({"outcome": "retry", "error": "boo"})).await;
    let wait: f64 = bench
        .value(
            &format!("extract(epoch FROM scheduled_at - now())::float8 FROM tenure.jobs WHERE id = '{job}'")
                .replacen("extract", "SELECT extract", 1),
        )
        .await;
    assert!((3.0..6.5).contains(&wait), "{wait}");
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    let taken = worker.one().await;
    worker.settle(&taken, json!({"outcome": "retry", "error": "boo again"})).await;
    assert_eq!(bench.until_finished(job).await.status, Status::Failed);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_is_refused_by_name_and_changes_nothing() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    enqueue(&bench, "k", json!(null)).await;
    let job = worker.one().await;
    let take = |change: Value| {
        let mut body = json!({"slots": 1, "kinds": all()});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        ("take", body)
    };
    let settle = |change: Value| {
        let mut entry = about(&job, json!({"outcome": "complete"}));
        entry.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        ("settle", json!({"settles": [entry]}))
    };
    for ((request, body), code, says) in [
        (take(json!({"slots": 0})), "bad_request", "\"slots\" must be an integer from 1 to 1000, but is 0"),
        (take(json!({"slots": 100_000})), "bad_request", "but is 100000"),
        (take(json!({"slots": "8"})), "bad_request", "but is \"8\""),
        (take(json!({"wait_ms": 40_000})), "bad_request", "wait_ms"),
        (take(json!({"wait_ms": -1})), "bad_request", "wait_ms"),
        (take(json!({"kinds": []})), "bad_request", "kinds"),
        (take(json!({"kinds": {}})), "bad_request", "kinds"),
        (take(json!({"kinds": {"a b": {}}})), "bad_request", "a b"),
        (take(json!({"kinds": {"k": {"stale_after_ms": 9_000_000}}})), "bad_request", "ack_wait"),
        (take(json!({"kinds": {"k": {"on_crash": "burn"}}})), "bad_request", "on_crash"),
        (("settle", json!({"settles": []})), "bad_request", "settles"),
        (("settle", json!({})), "bad_request", "settles"),
        (("report", json!({"reports": [7]})), "bad_request", "reports"),
        (("beat", json!({"running": [["x", 1, "y"]]})), "bad_request", "running"),
        (("beat", json!({"as_of": "yesterday"})), "bad_request", "as_of"),
        (("beat", json!({"as_of": "-5000-01-01T00:00:00Z"})), "bad_request", "as_of"),
        (
            ("payload", json!({"receipt": "x".repeat(20_000), "part": 0})),
            "bad_request",
            "at most 16384 bytes",
        ),
        (("hello", json!({"slots": 1})), "bad_request", "hostname"),
        (("payload", json!({"receipt": "AAAA", "part": 0})), "forged_receipt", "no gateway"),
        (take(json!({"wait": 5})), "bad_request", "\"wait\" is no field of `take`"),
        (("beat", json!({"runing": []})), "bad_request", "is no field of `beat`; those are worker, "),
        (take(json!({"kinds": {"k": {"stale": 5}}})), "bad_request", "\"kinds.k.stale\" is no field of"),
    ] {
        let answer = worker.ask(request, body.clone()).await;
        assert_eq!(answer["error"]["code"], json!(code), "{body}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(says), "{body}: {answer}");
        assert_eq!(answer["error"]["retry"], json!(false), "{body}");
    }
    for ((request, body), code, says) in [
        (settle(json!({"token": "seven"})), "bad_request", "\"settles[0].token\""),
        (settle(json!({"token": 2})), "forged_receipt", "with the token 1"),
        (settle(json!({"job": JobId::generate()})), "forged_receipt", "of the job"),
        (settle(json!({"receipt": "x".repeat(100_000)})), "forged_receipt", "no gateway"),
        (settle(json!({"receipt": null})), "bad_request", "receipt"),
        (settle(json!({"outcome": "done"})), "bad_request", "complete, retry"),
        (settle(json!({"outcome": "snooze"})), "bad_request", "after_ms"),
        (settle(json!({"report": {"progress": "half"}})), "bad_request", "settles[0].report.progress"),
        (settle(json!({"outcome": "retry", "report": {"checkpoint": "\0"}})), "bad_request", "checkpoint"),
        (settle(json!({"outcome": "retry", "after_ms": 1e30})), "bad_request", "after_ms"),
        (settle(json!({"after": 5})), "bad_request", "\"settles[0].after\" is no field of a settle"),
        (settle(json!({"report": {"percent": 5}})), "bad_request", "\"settles[0].report.percent\" is no"),
    ] {
        let answer = worker.ok(request, body.clone()).await;
        let error = &answer["results"][0]["error"];
        assert_eq!(error["code"], json!(code), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(says), "{answer}");
    }
    for (body, code) in [
        ("", "not_json"),
        ("[]", "not_json"),
        ("{\"v\":2}", "unsupported_version"),
        ("{}", "unsupported_version"),
    ] {
        assert_eq!(worker.raw("w.q.take", body).await["error"]["code"], json!(code), "{body}");
    }
    // A producer counts on each field of its job.
    let unknown = r#"{"v":1.0,"kind":"k","lane":null,"not_before":"2020-01-01T00:00:00Z"}"#;
    let answer = worker.raw("p.q.enqueue", unknown).await;
    assert_eq!(answer["error"]["code"], json!("bad_request"), "{answer}");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .starts_with("\"not_before\" is no field of a job; those are ")
    );
    let versions = &worker.raw("w.q.take", "{\"v\":99}").await["error"]["versions"];
    assert_eq!(*versions, json!([1]));
    let name = json!({"v": 1, "worker": "a.b", "slots": 1, "kinds": all()}).to_string();
    assert_eq!(worker.raw("w.q.take", &name).await["error"]["code"], json!("bad_request"));
    // After all that the job is still the worker's, in its first attempt.
    assert_eq!(worker.report(&job, json!({})).await, json!("ok"));
    assert_eq!(worker.settle(&job, json!({"outcome": "complete"})).await, json!("settled"));
    assert_eq!(outcomes(&bench, id(&job)).await, "(completed)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_receipt_settles_nothing() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let (worker, other) = (Foreign::start(&bench, "one").await, Foreign::start(&bench, "two").await);
    enqueue(&bench, "k", json!(1)).await;
    enqueue(&bench, "k", json!(2)).await;
    let (job, second) = (worker.one().await, worker.one().await);
    // Another worker's, with a job of one and the receipt of the other, through another queue, and with changed bytes.
    let end = json!({"outcome": "complete"});
    let mut forged = vec![(&other, about(&job, end.clone()))];
    let mut mixed = about(&job, end.clone());
    mixed["receipt"] = second["receipt"].clone();
    forged.push((&worker, mixed));
    let receipt = job["receipt"].as_str().unwrap();
    for at in [0, 20, 40, receipt.len() - 2] {
        let mut changed = receipt.as_bytes().to_vec();
        changed[at] = if changed[at] == b'a' { b'b' } else { b'a' };
        let mut entry = about(&job, end.clone());
        entry["receipt"] = json!(String::from_utf8(changed).unwrap());
        forged.push((&worker, entry));
    }
    for (by, entry) in forged {
        let answer = by.ok("settle", json!({"settles": [entry.clone()]})).await;
        assert_eq!(answer["results"][0]["error"]["code"], json!("forged_receipt"), "{answer}");
        let answer = by.ok("report", json!({"reports": [entry]})).await;
        assert_eq!(answer["results"][0]["error"]["code"], json!("forged_receipt"), "{answer}");
    }
    let body = json!({"v": 1, "worker": "one", "settles": [about(&job, end.clone())]}).to_string();
    let answer = worker.raw("w.other.settle", &body).await;
    assert_eq!(answer["ok"]["results"][0]["error"]["code"], json!("forged_receipt"), "{answer}");
    assert_eq!(bench.count("tenure.jobs WHERE status = 'processing'").await, 2);
    assert_eq!(bench.messages().await, 2, "no message was acknowledged");
    for job in [&job, &second] {
        assert_eq!(worker.settle(job, end.clone()).await, json!("settled"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_that_is_repeated_answers_as_the_first_did() {
    let bench = bench().await;
    // Requests go to any of them.
    let _gateways = (gateway(&bench), gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    for end in [
        json!({"outcome": "complete", "output": 1}),
        json!({"outcome": "retry", "error": "boo", "after_ms": 60_000}),
        json!({"outcome": "snooze", "after_ms": 60_000}),
        json!({"outcome": "fail", "error": "no"}),
        json!({"outcome": "cancel"}),
        json!({"outcome": "suspend", "left_ms": 60_000}),
    ] {
        let job = enqueue(&bench, "k", json!(null)).await;
        let taken = worker.one().await;
        // At once, by several gateways, and twice in one request.
        let twice = json!({"settles": [about(&taken, end.clone()), about(&taken, end.clone())]});
        let (first, second, both) = tokio::join!(
            worker.settle(&taken, end.clone()),
            worker.settle(&taken, end.clone()),
            worker.ok("settle", twice)
        );
        assert_eq!((first, second), (json!("settled"), json!("settled")), "{end}");
        assert_eq!(both["results"], json!(["settled", "settled"]));
        assert_eq!(worker.settle(&taken, end.clone()).await, json!("settled"));
        assert_eq!(
            bench.count(&format!("tenure.job_executions_all WHERE job_id = '{job}'")).await,
            1,
            "{end}"
        );
    }
    // Also of a kind that leaves nothing.
    let job = enqueue(&bench, "k", json!(null)).await;
    let kinds = json!({"k": {"history": false}});
    let taken =
        worker.ok("take", json!({"slots": 1, "wait_ms": 2_000, "kinds": kinds})).await["jobs"][0].clone();
    for _ in 0..3 {
        assert_eq!(worker.settle(&taken, json!({"outcome": "complete"})).await, json!("settled"));
    }
    assert!(bench.tenure.job(job).await.unwrap().is_none());
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_is_given_back_uncharged() {
    // Two jobs are held without a sign of life.
    let bench = bench_with(faults::patient).await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let (worker, other) = (Foreign::start(&bench, "one").await, Foreign::start(&bench, "two").await);
    let known = enqueue(&bench, "k", json!(1)).await;
    let held = worker.one().await;
    enqueue(&bench, "k", json!(2)).await;
    let of_other = other.one().await;
    let jobs = [enqueue(&bench, "k", json!(3)).await, enqueue(&bench, "k", json!(4)).await];
    // The worker does not look at this answer.
    bench.until_count("tenure.jobs WHERE status = 'queued' AND published_at IS NOT NULL", 2).await;
    assert_eq!(worker.take(2, 2_000).await.len(), 2);
    assert_eq!(worker.reconcile(&[&held]).await, 2);
    for job in jobs {
        bench.until(&format!("EXISTS (SELECT FROM tenure.job_executions_all WHERE job_id = '{job}' AND outcome = 'released')")).await;
    }
    for _ in jobs {
        let again = worker.one().await;
        assert_eq!((&again["attempt"], &again["token"]), (&json!(1), &json!(2)));
        assert_eq!(worker.settle(&again, json!({"outcome": "complete"})).await, json!("settled"));
    }
    // A claim that is newer than the moment stays, as do those that are named, and those of others.
    let first = worker.beat(&[&held], Value::Null).await;
    enqueue(&bench, "k", json!(5)).await;
    let newer = worker.one().await;
    assert_eq!(worker.beat(&[&held], first["now"].clone()).await["returned"], json!(0));
    for (by, job) in [(&worker, &held), (&worker, &newer), (&other, &of_other)] {
        assert_eq!(by.settle(job, json!({"outcome": "complete"})).await, json!("settled"));
    }
    assert_eq!(outcomes(&bench, known).await, "(completed)");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_silent_for_too_long_can_write_nothing() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let (frozen, other) = (Foreign::start(&bench, "frozen").await, Foreign::start(&bench, "other").await);
    let job = enqueue(&bench, "k", json!(null)).await;
    let taken = frozen.one().await;
    // Beats are no signs of life of a job.
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.recovery_events WHERE event = 'reset' AND job_id = '{job}')"
        ))
        .await;
    let again = other.one().await;
    assert_eq!((id(&again), &again["token"], &again["after_reset"]), (job, &json!(2), &json!(true)));
    let writes = async {
        assert_eq!(frozen.report(&taken, json!({"stage": "stale"})).await, json!("lost"));
        let beat = frozen.beat(&[&taken], Value::Null).await;
        assert_eq!((&beat["lost"], &beat["cancel"]), (&json!([job]), &json!([])));
        for outcome in ["complete", "retry", "fail", "snooze", "cancel", "suspend", "release"] {
            let end = json!({"outcome": outcome, "after_ms": 1, "left_ms": 1, "output": "stale"});
            assert_eq!(frozen.settle(&taken, end).await, json!("lost"), "{outcome}");
        }
        assert_eq!(
            frozen.ok("payload", json!({"receipt": taken["receipt"], "part": 0})).await,
            json!({"lost": true})
        );
    };
    let is_alive = async {
        loop {
            assert_eq!(other.report(&again, json!({})).await, json!("ok"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! { () = writes => {}, () = is_alive => {} }
    assert_eq!(
        other.settle(&again, json!({"outcome": "complete", "output": "good"})).await,
        json!("settled")
    );
    let row = bench.until_finished(job).await;
    assert_eq!((row.output, row.stage), (Some(json!("good")), None));
    bench.until_stream_is_empty(Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_reaches_the_worker_within_a_second() {
    let bench = bench().await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    let mut events = worker.nats.subscribe(format!("{}.w.q.to.one", worker.prefix)).await.unwrap();
    worker.nats.flush().await.unwrap();
    let job = enqueue(&bench, "k", json!(null)).await;
    let taken = worker.one().await;
    bench.tenure.cancel(job).await.unwrap();
    let event = async {
        loop {
            let event = events.next().await.unwrap();
            // Probes come on this subject, too.
            if let Ok(event) = serde_json::from_slice::<Value>(&event.payload) {
                return event;
            }
        }
    };
    let event = tokio::time::timeout(Duration::from_secs(1), event).await.unwrap();
    assert_eq!(event, json!({"event": "look", "jobs": [job]}));
    let beat = worker.beat(&[&taken], Value::Null).await;
    assert_eq!((&beat["cancel"], &beat["lost"]), (&json!([job]), &json!([])));
    assert_eq!(worker.report(&taken, json!({})).await, json!("cancel"));
    assert_eq!(
        worker.settle(&taken, json!({"outcome": "cancel", "error": "as you say"})).await,
        json!("settled")
    );
    assert_eq!(bench.until_finished(job).await.status, Status::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_comes_in_parts() {
    let bench = bench_with(|config| {
        faults::patient(config);
        config.payload_bytes_max = 8 << 20;
    })
    .await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    // Characters of several bytes, and ones that JSON escapes twice.
    let payload = json!({"text": "ü\"\\\n😀".repeat(200_000)});
    let job = enqueue(&bench, "k", payload.clone()).await;
    enqueue(&bench, "k", json!("small")).await;
    let taken = worker.one().await;
    assert!(id(&taken) == job && taken["payload"].is_null());
    let parts = taken["parts"].as_u64().unwrap();
    assert!(parts > 1, "{parts}");
    let mut text = String::new();
    for part in 0..parts {
        let body = json!({"receipt": taken["receipt"], "part": part});
        text += worker.ok("payload", body).await["text"].as_str().unwrap();
    }
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert!(whole == json!({"payload": payload, "checkpoint": null}), "{} bytes came", text.len());
    let beyond = worker.ask("payload", json!({"receipt": taken["receipt"], "part": parts})).await;
    assert_eq!(beyond["error"]["code"], json!("bad_request"));
    assert_eq!(worker.settle(&taken, json!({"outcome": "complete"})).await, json!("settled"));
    assert_eq!(worker.one().await["payload"], json!("small"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_brings_no_more_jobs_than_it_asks_for() {
    let bench = bench().await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    for n in 0..7 {
        enqueue(&bench, "k", json!(n)).await;
    }
    let first = worker.take(3, 2_000).await;
    assert!((1..=3).contains(&first.len()));
    let mut all = first;
    while all.len() < 7 {
        all.extend(worker.take(2, 2_000).await);
    }
    assert_eq!(bench.consumer("q").await.num_ack_pending, 7, "nothing waits in a gateway");
    let began_at = std::time::Instant::now();
    assert!(worker.take(2, 300).await.is_empty());
    assert!(began_at.elapsed() >= Duration::from_millis(290), "{:?}", began_at.elapsed());
    let settles: Vec<_> = all.iter().map(|job| about(job, json!({"outcome": "complete"}))).collect();
    let results = worker.ok("settle", json!({"settles": settles})).await["results"].clone();
    assert_eq!(results, json!(["settled", "settled", "settled", "settled", "settled", "settled", "settled"]));
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_or_full_queue_brings_nothing_and_bounces_nothing() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    bench.tenure.pause_queue("q").await.unwrap();
    bench.until_count("tenure.queues WHERE paused_at IS NOT NULL", 1).await;
    for n in 0..3 {
        enqueue(&bench, "k", json!(n)).await;
    }
    assert!(worker.take(3, 1_500).await.is_empty());
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    assert_eq!(
        stream.cached_info().state.consumer_count,
        0,
        "no message was pulled: the first pull makes it"
    );
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(1)).await.unwrap();
    bench.tenure.resume_queue("q").await.unwrap();
    let first = worker.one().await;
    assert!(worker.take(3, 1_000).await.is_empty(), "one runs already");
    let delivered = bench.consumer("q").await.delivered.consumer_sequence;
    assert!(delivered <= 4, "{delivered} deliveries");
    assert_eq!(worker.settle(&first, json!({"outcome": "complete"})).await, json!("settled"));
    let second = worker.one().await;
    assert_eq!(worker.settle(&second, json!({"outcome": "complete"})).await, json!("settled"));
}

/// Tickets that name several jobs are answered in one process: the relay publishes each of their jobs alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_message_that_names_several_come_alone() {
    let bench = bench_with(|config| config.jobs_per_message = 16).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let jobs = (0..32).map(|n| JobRequest::new("q", "k", json!(n)));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    // By its subject it names 64 jobs; by its body none.
    bench.publish("q.+64.k", "no ticket").await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 32 {
        for job in worker.take(4, 2_000).await {
            assert!(seen.insert(job["payload"].as_u64().unwrap()));
            assert_eq!(job["attempt"], json!(1));
            assert_eq!(worker.settle(&job, json!({"outcome": "complete"})).await, json!("settled"));
        }
    }
    assert_eq!(worker.take(4, 500).await, Vec::<Value>::new());
    assert_eq!(bench.count("tenure.dead_letter_jobs WHERE category = 'malformed'").await, 1);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_enqueue_look_wait_and_cancel() {
    let bench = bench().await;
    let gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let ask = async |request: &str, mut body: Value| {
        body["v"] = json!(1);
        worker.raw(&format!("p.q.{request}"), &body.to_string()).await
    };
    let enqueue = json!({"kind": "k", "payload": {"n": 1}, "key": "one", "max_attempts": 3, "priority": null, "tags": ["b=1", "a"]});
    let first = ask("enqueue", enqueue.clone()).await["ok"].clone();
    assert_eq!(first["created"], json!(true));
    let again = ask("enqueue", enqueue).await["ok"].clone();
    assert_eq!((&again["job"], &again["created"]), (&first["job"], &json!(false)));
    let named = json!({"job": first["job"]});
    let seen = ask("job", named.clone()).await["ok"].clone();
    assert_eq!(
        (&seen["status"], &seen["max_attempts"], &seen["ended"]),
        (&json!("queued"), &json!(3), &json!(false))
    );
    assert_eq!(bench.text("SELECT array_agg(tag ORDER BY tag) FROM tenure.job_tags").await, "(\"{a,b=1}\")");
    // A wait ends with the job.
    let wait = ask("wait", json!({"job": first["job"], "wait_ms": 20_000}));
    let run = async {
        let job = worker.one().await;
        worker.settle(&job, json!({"outcome": "complete", "output": {"a": 1.5}})).await
    };
    let (waited, settled) = tokio::join!(wait, run);
    assert_eq!(settled, json!("settled"));
    let waited = &waited["ok"];
    assert_eq!(
        (&waited["status"], &waited["output"], &waited["ended"]),
        (&json!("completed"), &json!({"a": 1.5}), &json!(true))
    );

    let later = ask("enqueue", json!({"kind": "k", "payload": null, "delay_ms": 60_000})).await["ok"].clone();
    let named = json!({"job": later["job"]});
    assert_eq!(ask("cancel", named.clone()).await["ok"], json!({"cancelled": true, "asked": false}));
    assert_eq!(
        ask("cancel", named.clone()).await["ok"],
        json!({"cancelled": true, "asked": false}),
        "a repetition"
    );
    assert_eq!(ask("job", named).await["ok"]["status"], json!("cancelled"));
    for (request, body, code) in [
        ("enqueue", json!({"payload": 1}), "bad_request"),
        ("enqueue", json!({"kind": "a b", "payload": 1}), "bad_request"),
        ("enqueue", json!({"kind": "k", "payload": 1, "max_attempts": 0}), "bad_request"),
        ("enqueue", json!({"kind": "k", "payload": 1, "run_at": "soon"}), "bad_request"),
        ("enqueue", json!({"kind": "k", "payload": 1, "tags": "a"}), "bad_request"),
        ("enqueue", json!({"kind": "k", "payload": 1, "tags": ["a b"]}), "bad_request"),
        ("enqueue", json!({"kind": "k", "payload": 1, "on_expiry": "cancel"}), "bad_request"),
        (
            "enqueue",
            json!({"kind": "k", "payload": 1, "not_after": "2999-01-01T00:00:00Z", "on_expiry": "x"}),
            "bad_request",
        ),
        (
            "enqueue",
            json!({"kind": "k", "payload": 1, "replace": "a", "unique_while_live": "b"}),
            "bad_request",
        ),
        ("enqueue", json!({"kind": "k", "payload": 1, "key": "a", "replace": "b"}), "bad_request"),
        ("job", json!({"job": JobId::generate()}), "no_such_job"),
        ("job", json!({"job": "x"}), "bad_request"),
    ] {
        assert_eq!(ask(request, body.clone()).await["error"]["code"], json!(code), "{request} {body}");
    }
    // A queue's users see that queue alone.
    let other = json!({"v": 1, "job": first["job"]}).to_string();
    for request in ["job", "wait", "cancel"] {
        let answer = worker.raw(&format!("p.other.{request}"), &other).await;
        assert_eq!(answer["error"]["code"], json!("no_such_job"), "{request}");
    }
    gateway.stop().await;
}

/// A worker without a row would be found by the silence of its jobs alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_must_say_hello_and_is_listed_as_any_worker() {
    let bench = bench().await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::connect(&bench, "one").await;
    let take = worker.ask("take", json!({"slots": 1, "kinds": all()})).await;
    assert_eq!((&take["error"]["code"], &take["error"]["retry"]), (&json!("hello_first"), &json!(true)));
    assert_eq!(worker.ask("beat", json!({})).await["error"]["code"], json!("hello_first"));
    let kinds =
        json!({"k": {"history": false}, "other": {"stale_after_ms": 2_000, "on_crash": "dead_letter"}});
    let hello = json!({"hostname": "web", "pid": 7, "language": "python", "version": "1.2", "slots": 8, "kinds": kinds});
    worker.ok("hello", hello.clone()).await;
    worker.ok("hello", hello).await;
    let row = bench.tenure.workers().await.unwrap().into_iter().find(|row| row.worker_id == "q/one").unwrap();
    assert_eq!((row.language.as_deref(), row.version.as_str(), row.slots), (Some("python"), "1.2", 8));
    assert_eq!(
        (row.hostname.as_str(), row.queues.as_slice(), row.unkept.as_slice()),
        ("web", ["q".to_owned()].as_slice(), ["k".to_owned()].as_slice())
    );
    assert_eq!(row.kinds.unwrap().len(), 2);
    worker.ok("beat", json!({"draining": true})).await;
    assert_eq!(bench.count("tenure.workers WHERE worker_id = 'q/one' AND draining_at IS NOT NULL").await, 1);
    // Its row was removed, as that of a worker that was silent for very long.
    bench.execute("DELETE FROM tenure.workers WHERE worker_id = 'q/one'").await;
    assert_eq!(worker.ask("beat", json!({})).await["error"]["code"], json!("hello_first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_cannot_read_its_key_is_not_ready() {
    let bench = bench_with(|config| config.timing.renew_every = Duration::from_millis(200)).await;
    bench.execute("CREATE TABLE public.kept AS SELECT * FROM tenure.gateway_keys").await;
    bench.execute("DELETE FROM tenure.gateway_keys").await;
    let worker = Worker::builder(&bench.tenure).gateway();
    let health = worker.health();
    let gateway = Running::start(worker);
    let until = async |what: fn(&str) -> bool, is_there: bool| {
        for _ in 0..200 {
            let lacks = health.ready().err().unwrap_or_default();
            if health.has_started() && lacks.iter().any(|lack| what(lack)) == is_there {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?}", health.ready());
    };
    until(|lack| lack.starts_with("gateway: ") && !lack.ends_with("not tried yet"), true).await;
    bench.execute("INSERT INTO tenure.gateway_keys SELECT * FROM public.kept").await;
    until(|_| true, false).await;
    gateway.stop().await;
}
