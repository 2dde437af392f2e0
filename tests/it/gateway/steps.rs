//! Steps by the worker protocol: what a handler in another language does once, and what it waits for.

use serde_json::{Value, json};
use tenure::{JobRequest, Status, groups::Signalled};

use super::{Foreign, about, enqueue, faults::patient, gateway, id};
use crate::harness::{Bench, bench, bench_with};

/// The body of a call.
fn call(job: &Value, name: &str, mut fields: Value) -> Value {
    fields["receipt"] = job["receipt"].clone();
    fields["name"] = json!(name);
    fields
}

impl Foreign {
    async fn step(&self, job: &Value, name: &str, result: Value) -> Value {
        self.ok("step", call(job, name, json!({"result": result, "took_ms": 7}))).await
    }

    async fn suspend(&self, job: &Value, end: Value) {
        let mut end = end;
        end["outcome"] = json!("suspend");
        assert_eq!(self.settle(job, end).await, json!("settled"));
    }
}

async fn is_held(bench: &Bench, job: &Value) {
    let held = format!(
        "tenure.jobs WHERE id = '{}' AND status = 'queued' AND publish_at = '9999-01-01Z'",
        job["job"].as_str().unwrap()
    );
    assert_eq!(bench.count(&held).await, 1, "the job is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_recorded_once_and_handed_to_every_later_attempt() {
    let bench = bench().await;
    // Any gateway answers any request.
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let first = worker.one().await;
    let digits = r#"{"n": 1.000000000000000000001}"#;
    let text = format!(
        r#"{{"v":1,"worker":"one","receipt":{},"name":"fetch","result":{digits}}}"#,
        first["receipt"]
    );
    let recorded = json!({"ok": {"recorded": true}});
    let (one, two) = tokio::join!(worker.raw("w.q.step", &text), worker.raw("w.q.step", &text));
    assert_eq!((&one, &two), (&recorded, &recorded), "repeated, it does what the first one did");
    assert_eq!(worker.step(&first, "null", Value::Null).await, json!({"recorded": true}));
    // A worker in another language opens what it has sealed: the gateway has no codec.
    let sealed = json!({"tenure.sealed": {"key": "k", "kind": "k", "data": ""}});
    assert_eq!(worker.step(&first, "sealed", sealed.clone()).await, json!({"recorded": true}));
    assert_eq!(worker.settle(&first, json!({"outcome": "retry", "after_ms": 1})).await, json!("settled"));

    let second = worker.one().await;
    let ask = |name: &str| worker.ask("recorded", call(&second, name, json!({})));
    let answer = worker
        .nats
        .request(
            format!("{}.w.q.recorded", worker.prefix),
            json!({"v": 1, "worker": "one", "receipt": second["receipt"], "name": "fetch"})
                .to_string()
                .into(),
        )
        .await
        .unwrap();
    let answer = String::from_utf8(answer.payload.to_vec()).unwrap();
    assert!(answer.contains("1.000000000000000000001"), "all digits: {answer}");
    assert_eq!(ask("null").await["ok"], json!({"recorded": true, "result": null}));
    assert_eq!(ask("sealed").await["ok"], json!({"recorded": true, "result": sealed}));
    assert_eq!(ask("other").await["ok"], json!({"recorded": false}));
    let again = worker.ask("step", call(&second, "fetch", json!({"result": 2}))).await;
    assert_eq!((&again["error"]["code"], &again["error"]["retry"]), (&json!("refused"), &json!(false)));
    let took = format!(
        "SELECT extract(milliseconds FROM created_at - began_at) >= 7 FROM tenure.effects WHERE job_id = '{job}' AND key = 'null'"
    );
    assert!(bench.value::<bool>(&took).await, "its time is in the timeline");
    let end = json!({"outcome": "complete", "steps": ["other"]});
    assert_eq!(worker.settle(&second, end).await, json!("settled"));
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_stale_worker_change_nothing() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let (frozen, other) = (Foreign::start(&bench, "frozen").await, Foreign::start(&bench, "other").await);
    let job = enqueue(&bench, "k", json!(null)).await;
    let stale = frozen.one().await;
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.recovery_events WHERE event = 'reset' AND job_id = '{job}')"
        ))
        .await;
    let now = other.one().await;
    let lost = json!({"ok": {"lost": true}});
    for (request, fields) in [
        ("step", json!({"result": "stale"})),
        ("sleep", json!({"lasts_ms": 10})),
        ("event", json!({})),
        ("all", json!({"jobs": [{"kind": "part", "payload": 1}]})),
    ] {
        let answer = frozen.ask(request, call(&stale, request, fields)).await;
        assert_eq!(answer, lost, "{request}");
    }
    assert_eq!(bench.count("tenure.effects").await, 0);
    assert_eq!(bench.count("tenure.jobs").await, 1);
    let forged = other.ask("step", call(&stale, "one", json!({"result": 1}))).await;
    assert_eq!(forged["error"]["code"], json!("forged_receipt"), "of another worker: {forged}");
    assert_eq!(other.settle(&now, json!({"outcome": "complete"})).await, json!("settled"));
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_sleeps_and_waits_for_an_event_that_a_producer_signals() {
    let bench = bench_with(patient).await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let first = worker.one().await;
    let left = worker.ok("sleep", call(&first, "nap", json!({"lasts_ms": 200}))).await["left_ms"].as_u64();
    assert!(left.is_some_and(|left| (1..=200).contains(&left)), "{left:?}");
    worker.suspend(&first, json!({"left_ms": left})).await;
    let second = worker.one().await;
    assert_eq!((&second["attempt"], &second["token"]), (&json!(1), &json!(2)), "the attempt does not count");
    let awake = worker.ok("sleep", call(&second, "nap", json!({"lasts_ms": 200}))).await;
    assert_eq!(awake, json!({"left_ms": 0}));
    // Asked again, after a lost answer, it goes on from where it is; and a late settle prolongs no sleep.
    let first_left = worker.ok("sleep", call(&second, "long", json!({"lasts_ms": 60_000}))).await;
    bench.execute("UPDATE tenure.effects SET wakes_at = wakes_at - interval '20 s' WHERE key = 'long'").await;
    let left = worker.ok("sleep", call(&second, "long", json!({"lasts_ms": 60_000}))).await;
    let millis = |of: &Value| of["left_ms"].as_u64().unwrap();
    assert!(millis(&left) <= 40_000 && millis(&first_left) > 50_000, "{first_left}, {left}");

    let waits = worker.ok("event", call(&second, "go", json!({}))).await;
    assert_eq!(waits, json!({"came": false}));
    worker.suspend(&second, json!({"awaits": "go"})).await;
    let due = format!(
        "SELECT extract(epoch FROM scheduled_at - now())::float8 FROM tenure.jobs WHERE id = '{job}'"
    );
    assert!(bench.value::<f64>(&due).await <= 40.0, "no longer than until the end of its sleep");
    // By any program that may ask for jobs of this queue, and for none of another.
    let signal = |queue: &str, name: &str, payload: Value| {
        let body = json!({"v": 1, "job": job, "name": name, "payload": payload}).to_string();
        let subject = format!("p.{queue}.signal");
        let worker = &worker;
        async move { worker.raw(&subject, &body).await }
    };
    assert_eq!(signal("other", "go", json!(1)).await["error"]["code"], json!("no_such_job"));
    assert_eq!(signal("q", "", json!(1)).await["error"]["code"], json!("bad_request"));
    assert_eq!(signal("q", "nap", json!(1)).await["ok"], json!({"answer": "name_taken"}));
    assert_eq!(signal("q", "go", json!({"by": "ann"})).await["ok"], json!({"answer": "delivered"}));
    assert_eq!(signal("q", "go", json!({"by": "bob"})).await["ok"], json!({"answer": "known"}));
    let third = worker.one().await;
    let came = worker.ok("event", call(&third, "go", json!({}))).await;
    assert_eq!(came, json!({"came": true, "payload": {"by": "ann"}}));

    let never = worker.ok("event", call(&third, "never", json!({"within_ms": 50}))).await;
    assert!(never["left_ms"].as_u64().is_some_and(|left| left <= 50), "{never}");
    worker.suspend(&third, json!({"awaits": "never", "left_ms": never["left_ms"]})).await;
    let fourth = worker.one().await;
    let late = worker.ok("event", call(&fourth, "never", json!({"within_ms": 50}))).await;
    assert_eq!(late, json!({"came": false, "late": true}));
    assert_eq!(bench.tenure.signal(job, "never", &1).await.unwrap(), Signalled::Late);
    assert_eq!(worker.settle(&fourth, json!({"outcome": "complete"})).await, json!("settled"));
    assert_eq!(signal("q", "go", json!(1)).await["ok"], json!({"answer": "finished"}));
    bench.every_job_is_as_it_must_be().await;
}

/// A handler waits for two things at once, and its settle names the sleep.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_wakes_a_job_that_says_it_sleeps() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let first = worker.one().await;
    let left =
        worker.ok("sleep", call(&first, "nag", json!({"lasts_ms": 3_600_000}))).await["left_ms"].clone();
    assert_eq!(worker.ok("event", call(&first, "go", json!({}))).await, json!({"came": false}));
    assert_eq!(bench.tenure.signal(job, "go", &json!(1)).await.unwrap(), Signalled::Delivered);
    worker.suspend(&first, json!({"left_ms": left})).await;
    let second = worker.one().await;
    assert_eq!(id(&second), job);
    worker.suspend(&second, json!({"left_ms": left})).await;
    let waits =
        format!("SELECT scheduled_at > now() + interval '50 min' FROM tenure.jobs WHERE id = '{job}'");
    assert!(bench.value::<bool>(&waits).await, "the next attempt sleeps on");
}

/// The event comes after the handler has asked for it, and before its attempt ends.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_between_the_call_and_the_settle_is_not_lost() {
    let bench = bench().await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let job = enqueue(&bench, "k", json!(null)).await;
    let first = worker.one().await;
    assert_eq!(worker.ok("event", call(&first, "go", json!({}))).await, json!({"came": false}));
    assert_eq!(bench.tenure.signal(job, "go", &json!(1)).await.unwrap(), Signalled::Delivered);
    worker.suspend(&first, json!({"awaits": "go"})).await;
    let second = worker.one().await;
    let came = worker.ok("event", call(&second, "go", json!({}))).await;
    assert_eq!(came, json!({"came": true, "payload": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_job_run_before_it_goes_on_and_stay_in_its_queue() {
    let bench = bench_with(patient).await;
    let _gateways = (gateway(&bench), gateway(&bench));
    let worker = Foreign::start(&bench, "one").await;
    let parent = JobRequest::new("q", "parent", json!(null));
    let group = bench.tenure.group([parent]).then(JobRequest::new("q", "after", json!(null))).await.unwrap();
    let first = worker.one().await;
    let elsewhere = json!({"jobs": [{"kind": "part", "queue": "other"}]});
    let refused = worker.ask("all", call(&first, "parts", elsewhere)).await;
    assert_eq!(refused["error"]["code"], json!("bad_request"), "{refused}");
    let jobs =
        json!({"jobs": [{"kind": "part", "payload": 3}, {"kind": "part", "payload": 1, "max_attempts": 1}]});
    for _ in 0..2 {
        let all = worker.ok("all", call(&first, "parts", jobs.clone())).await;
        assert_eq!(all, json!({"ended": false}), "asked again, it enqueues none again");
    }
    assert_eq!(bench.count("tenure.jobs WHERE kind = 'part' AND queue = 'q'").await, 2);
    let group_id = bench.text("SELECT DISTINCT group_id::text FROM tenure.job_edges").await;
    assert!(!group_id.contains('\n'), "the parts are of the parent's own group: {group_id}");
    worker.suspend(&first, json!({"awaits": "parts"})).await;
    for _ in 0..2 {
        let part = worker.one().await;
        assert_eq!(part["kind"], json!("part"));
        is_held(&bench, &first).await;
        let end = json!({"outcome": "complete", "output": {"n": part["payload"]}});
        assert_eq!(worker.settle(&part, end).await, json!("settled"));
    }
    let second = worker.one().await;
    assert_eq!(id(&second), id(&first));
    assert_eq!(worker.ok("all", call(&second, "parts", jobs)).await, json!({"ended": true}));
    let ends = worker.ok("outputs", call(&second, "parts", json!({}))).await;
    assert!(ends["next"].is_null(), "{ends}");
    let outputs: Vec<_> = ends["ends"].as_array().unwrap().iter().map(|end| &end["output"]).collect();
    assert_eq!(outputs, [&json!({"n": 3}), &json!({"n": 1})]);
    let large = json!({"outcome": "complete", "output": "x".repeat(600_000)});
    assert_eq!(worker.settle(&second, large).await, json!("settled"));

    let after = worker.one().await;
    assert_eq!(id(&after), group.id);
    let ends = worker.ok("outputs", json!({"receipt": after["receipt"]})).await;
    assert_eq!(ends["ends"][0]["output"].as_str().map(str::len), Some(600_000));
    assert_eq!(worker.settle(&after, json!({"outcome": "complete"})).await, json!("settled"));
    bench.every_job_is_as_it_must_be().await;
}

/// More than fits into one message.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_come_in_as_many_answers_as_they_need() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let members = (0..5).map(|n| JobRequest::new("q", "member", json!(n)));
    let group = bench.tenure.group(members).then(JobRequest::new("q", "after", json!(null))).await.unwrap();
    for _ in 0..5 {
        let member = worker.one().await;
        let output = format!("{}{}", member["payload"], "x".repeat(300_000));
        let end = json!({"outcome": "complete", "output": output});
        assert_eq!(worker.settle(&member, end).await, json!("settled"));
    }
    let after = worker.one().await;
    assert_eq!(id(&after), group.id);
    let (mut next, mut firsts, mut answers) = (json!(0), Vec::new(), 0);
    while !next.is_null() {
        let ends = worker.ok("outputs", json!({"receipt": after["receipt"], "after": next})).await;
        for end in ends["ends"].as_array().unwrap() {
            firsts.push(end["output"].as_str().unwrap()[..1].to_owned());
        }
        next = ends["next"].clone();
        answers += 1;
    }
    assert_eq!((firsts.concat().as_str(), answers), ("01234", 2));
}

/// Postgres writes JSON with more bytes than it was sent with.
#[tokio::test(flavor = "multi_thread")]
async fn what_fits_into_no_message_is_left_out_or_refused_at_once() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let member = JobRequest::new("q", "member", json!(1));
    let group = bench.tenure.group([member]).then(JobRequest::new("q", "after", json!(null))).await.unwrap();
    let member = worker.one().await;
    let ones = format!("[{}1]", "1,".repeat(399_999));
    let body =
        format!(r#"{{"v":1,"worker":"one","receipt":{},"name":"big","result":{ones}}}"#, member["receipt"]);
    let refused = worker.raw("w.q.step", &body).await;
    assert_eq!((&refused["error"]["code"], &refused["error"]["retry"]), (&json!("refused"), &json!(false)));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("1200000 bytes"), "{message}");
    let end = json!({"outcome": "complete", "output": vec![1; 400_000]});
    assert_eq!(worker.settle(&member, end).await, json!("settled"));
    let after = worker.one().await;
    assert_eq!(id(&after), group.id);
    let ends = worker.ok("outputs", json!({"receipt": after["receipt"]})).await;
    let expected = json!({"job": member["job"], "completed": true, "output": null, "output_omitted": true});
    assert_eq!(ends["ends"], json!([expected]));
    assert_eq!(worker.settle(&after, json!({"outcome": "complete"})).await, json!("settled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_wrong_says_what_was_expected() {
    let bench = bench_with(patient).await;
    let _gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    enqueue(&bench, "k", json!(null)).await;
    let job = worker.one().await;
    for (request, fields, code, says) in [
        (
            "step",
            json!({"name": 7}),
            "bad_request",
            "\"name\" must be the name of the call, a text, but is 7",
        ),
        ("step", json!({"name": "", "result": 1}), "bad_request", "\"name\" must have 1 to 512 bytes"),
        (
            "recorded",
            json!({"name": "a\u{0}"}),
            "bad_request",
            "\"name\" must not contain control characters",
        ),
        ("outputs", json!({"name": "a\u{0}"}), "bad_request", "\"name\" must not contain control characters"),
        ("step", json!({"name": "zero", "result": "\u{0}"}), "refused", "cannot be stored"),
        (
            "sleep",
            json!({"name": "nap"}),
            "bad_request",
            "\"lasts_ms\" must be a whole number of milliseconds",
        ),
        ("event", json!({"name": "go", "within_ms": -1}), "bad_request", "\"within_ms\" must be"),
        ("all", json!({"name": "parts"}), "bad_request", "\"jobs\" must be a list of 1 to 1000 objects"),
        (
            "all",
            json!({"name": "parts", "jobs": [{"payload": 1}]}),
            "bad_request",
            "\"jobs[0].kind\" must be",
        ),
        ("all", json!({"name": "parts", "jobs": [{"kind": "no kind"}]}), "refused", "kind"),
        ("outputs", json!({"name": null, "after": "x"}), "bad_request", "\"after\" must be an integer"),
    ] {
        let mut body = fields.clone();
        body["receipt"] = job["receipt"].clone();
        let answer = worker.ask(request, body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(answer["error"]["code"], json!(code), "{request} {fields}: {answer}");
        assert!(message.contains(says), "{request} {fields}: {message}");
    }
    let none = worker.ok("settle", json!({"settles": [about(&job, json!({"outcome": "suspend"}))]})).await;
    let message = none["results"][0]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(".left_ms\" must be a whole number of milliseconds, if `awaits` is absent"),
        "{message}"
    );
    assert_eq!(bench.count("tenure.effects").await, 0, "nothing is recorded");
    assert_eq!(worker.settle(&job, json!({"outcome": "complete"})).await, json!("settled"));
    assert_eq!(bench.tenure.job(id(&job)).await.unwrap().unwrap().status, Status::Completed);
}
