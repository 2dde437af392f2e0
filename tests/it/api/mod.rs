//! The HTTP API: each address, each bad input, and a comparison of every answer with the document of the API.

mod follow;
mod outages;
mod roles;
mod wrong;

use std::{
    collections::BTreeSet,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Outcome, Worker, queues::QueueLimits};
use tokio::{io::AsyncWriteExt, process::Command, sync::Semaphore};
use uuid::Uuid;

use crate::{
    dashboard::Dashboard,
    harness::{Answer, Bench, ROOT, Running, bench, bench_with, statement},
};

const DOCUMENT: &str = include_str!("../../../tenure-cli/src/api/openapi.json");
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// The program of Python that reads this script, with what `scripts/setup test` installs for it.
fn python(script: &str) -> Command {
    let packages = format!("{ROOT}/.tools/openapi");
    assert!(std::path::Path::new(&packages).exists(), "run scripts/setup test: it installs {packages}");
    let mut command = Command::new("python3");
    command.arg(format!("{ROOT}/tests/it/api/{script}")).env("PYTHONPATH", packages).kill_on_drop(true);
    command
}

/// An answer of the API.
struct Reply {
    answer: Answer,
    json: Value,
}

impl Reply {
    fn status(&self) -> u16 {
        self.answer.status
    }

    /// The code of an error.
    fn code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or_else(|| panic!("no error: {}", self.answer.body))
    }

    /// Message and hint of an error.
    fn said(&self) -> String {
        let error = &self.json["error"];
        format!("{} {}", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap_or_default())
    }

    /// The ID of a job that was enqueued.
    fn id(&self) -> String {
        self.json["id"].as_str().unwrap_or_else(|| panic!("no ID: {}", self.answer.body)).to_owned()
    }
}

/// `tenure serve` with the API, and what it has answered.
struct Api {
    dashboard: Dashboard,
    base: &'static str,
    /// Sent with each request.
    headers: Vec<(&'static str, String)>,
    answers: Mutex<Vec<Value>>,
    events: Mutex<Vec<Value>>,
}

impl Api {
    async fn start(bench: &Bench, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let dashboard = Dashboard::start(bench, &[&["--api"], arguments].concat(), variables).await;
        Self::of(dashboard)
    }

    fn of(dashboard: Dashboard) -> Self {
        Self {
            dashboard,
            base: "/api/v1",
            headers: vec![],
            answers: Mutex::default(),
            events: Mutex::default(),
        }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let own = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let headers: Vec<_> = own.chain(headers.iter().copied()).collect();
        let path = if path.starts_with("/api") { path.to_owned() } else { format!("{}{path}", self.base) };
        let answer = self.dashboard.ask(method, &path, &headers, body).await;
        let named: serde_json::Map<_, _> =
            answer.headers().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        self.answers.lock().unwrap().push(json!({
            "method": method, "path": path, "status": answer.status, "headers": named, "body": answer.body,
        }));
        let json = serde_json::from_str(&answer.body).unwrap_or_default();
        Reply { answer, json }
    }

    async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "").await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("POST", path, &[JSON], &body.to_string()).await
    }

    async fn enqueue(&self, payload: Value) -> String {
        let enqueued = self.post("/jobs", &json!({ "queue": "q", "kind": "k", "payload": payload })).await;
        assert_eq!(enqueued.status(), 201, "{}", enqueued.answer.body);
        enqueued.id()
    }

    /// Compares every answer so far with the document.
    async fn is_as_documented(&self) {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let answers = self.answers.lock().unwrap().clone();
        let events = self.events.lock().unwrap().clone();
        assert!(!answers.is_empty());
        let given = json!({ "document": document, "answers": answers, "events": events }).to_string();
        let mut check = python("check.py")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = check.stdin.take().unwrap();
        stdin.write_all(given.as_bytes()).await.unwrap();
        drop(stdin);
        let output = check.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
}

fn worker(bench: &Bench) -> Running {
    worker_of_steps(bench, Arc::new(Semaphore::new(0)))
}

/// A worker whose jobs take a step for each permit of `steps`.
fn worker_of_steps(bench: &Bench, steps: Arc<Semaphore>) -> Running {
    let handler = move |payload: Value, ctx: JobContext| {
        let steps = steps.clone();
        async move {
            match payload["do"].as_str() {
                Some("fail") => Err(JobError::permanent("no such customer")),
                Some("steps") => {
                    for (percent, stage) in [(10.0, "first"), (60.0, "second")] {
                        ctx.progress(stage, percent, "a step").await?;
                        steps.acquire().await.unwrap().forget();
                    }
                    Outcome::done(json!({ "big": 9_007_199_254_740_993_u64 }))
                }
                Some("wait") => {
                    ctx.progress("waiting", 40.0, "").await?;
                    ctx.cancelled().await;
                    Ok(Outcome::Cancel("told to stop".into()))
                }
                _ => Outcome::done(payload["with"].clone()),
            }
        }
    };
    let left = |_: Value, ctx: JobContext| async move {
        ctx.progress("here", 1.0, "").await?;
        ctx.cancelled().await;
        Ok::<_, JobError>(Outcome::Done(None))
    };
    Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("forgotten", KindOptions::new().no_history().keepalive(), left)
            .handle_any(KindOptions::new().keepalive(), handler)
            .concurrency("q", 4),
    )
}

/// The database's time.
async fn now(bench: &Bench) -> String {
    bench.value("SELECT clock_timestamp()::text").await
}

/// Waits until a wait of the API that was sent after this time has begun: it has looked for the end of its job.
async fn until_waiting(bench: &Bench, after: &str) {
    let looks = statement("looks");
    let condition = format!(
        "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query_start > '{after}'
                 AND left(query, 300) = left($q${looks}$q$, 300))"
    );
    bench.until(&condition).await;
}

async fn until_running(bench: &Bench, job: &str) {
    let condition = format!(
        "EXISTS (SELECT FROM tenure.jobs WHERE id = '{job}' AND status = 'processing' AND progress IS NOT NULL)"
    );
    bench.until(&condition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_address_does_what_its_command_does() {
    let bench = bench().await;
    let working = worker(&bench);
    let api = Api::start(&bench, &["--actions"], &[]).await;

    // Enqueue: every field, and numbers keep their digits.
    let body = r#"{"queue": "q", "kind": "k.with.dots", "payload": {"with": [12345678901234567890, 1.10]}, "max_attempts": 7,
        "unique_key": "k1", "delay": "1h"}"#;
    let context = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let enqueued = api.ask("POST", "/jobs", &[JSON, context], body).await;
    assert_eq!(
        (enqueued.status(), &enqueued.json["duplicate"]),
        (201, &json!(false)),
        "{}",
        enqueued.answer.body
    );
    let id = enqueued.id();
    assert_eq!(enqueued.answer.header("location"), Some(format!("/api/v1/jobs/{id}").as_str()));
    assert_eq!(
        bench.count(&format!("tenure.jobs WHERE id = '{id}' AND trace_context LIKE '00-0af7%'")).await,
        1
    );
    let again = api.ask("POST", "/jobs", &[JSON], body).await;
    assert_eq!((again.status(), again.id(), &again.json["duplicate"]), (200, id.clone(), &json!(true)));
    let shown = api.get(&format!("/jobs/{id}")).await;
    assert!(
        shown.answer.body.contains(r#""payload":{"with":[12345678901234567890,1.10]}"#),
        "{}",
        shown.answer.body
    );
    assert_eq!(shown.json["max_attempts"], 7);
    let line = bench.program(&["jobs", "show", &id, "--output", "json"]).output().await.unwrap();
    let line: Value = serde_json::from_slice(&line.stdout).unwrap();
    assert_eq!(shown.json, line["job"], "the command line has another JSON");

    // Retry: the job waits for its time, runs now, and has ended then.
    let retried = api.post(&format!("/jobs/{id}/retry"), &json!({})).await;
    assert_eq!((retried.status(), &retried.json["result"]), (200, &json!("due")));
    let done = api.get(&format!("/jobs/{id}/wait?timeout=20s")).await;
    assert_eq!((done.status(), &done.json["status"]), (200, &json!("completed")), "{}", done.answer.body);
    assert!(done.answer.body.contains(r#""output":[12345678901234567890,1.1"#), "{}", done.answer.body);
    assert_eq!(api.get(&format!("/jobs/{id}/wait?timeout=0s")).await.status(), 200);
    for action in ["cancel", "retry"] {
        let refused = api.post(&format!("/jobs/{id}/{action}"), &json!({})).await;
        assert_eq!((refused.status(), refused.code()), (409, "already_ended"));
        assert!(refused.said().contains("completed"), "{}", refused.said());
    }

    // A dead letter is redriven; a running job is asked to stop, once more without harm.
    let dead = api.enqueue(json!({ "do": "fail" })).await;
    let failed = api.get(&format!("/jobs/{dead}/wait")).await;
    assert_eq!(
        (&failed.json["status"], &failed.json["last_error"]),
        (&json!("failed"), &json!("no such customer"))
    );
    assert_eq!(api.post(&format!("/jobs/{dead}/cancel"), &json!({})).await.status(), 409);
    let redriven = api.post(&format!("/jobs/{dead}/retry"), &json!({})).await;
    assert_eq!((redriven.status(), &redriven.json["result"]), (200, &json!("redriven")));
    let running = api.enqueue(json!({ "do": "wait" })).await;
    until_running(&bench, &running).await;
    let live = api.post(&format!("/jobs/{running}/retry"), &json!({})).await;
    assert_eq!((&live.json["result"], &live.json["status"]), (&json!("live"), &json!("processing")));
    let waited = api.get(&format!("/jobs/{running}/wait?timeout=50ms")).await;
    assert_eq!((waited.status(), &waited.json["stage"]), (202, &json!("waiting")), "{}", waited.answer.body);
    let asked = api.ask("POST", &format!("/jobs/{running}/cancel"), &[JSON], "").await;
    assert_eq!((asked.status(), &asked.json["result"]), (200, &json!("asked")), "{}", asked.answer.body);
    assert!(asked.json["worker"].is_string());
    let stopped = api.get(&format!("/jobs/{running}/wait")).await;
    assert_eq!(stopped.json["status"], "cancelled");
    let repeated = api.post(&format!("/jobs/{running}/cancel"), &json!({})).await;
    assert_eq!((repeated.status(), &repeated.json["result"]), (200, &json!("finished")));

    // A job that leaves nothing.
    let gone = json!({ "queue": "q", "kind": "forgotten", "payload": null });
    let gone = api.post("/jobs", &gone).await.id();
    until_running(&bench, &gone).await;
    let before = now(&bench).await;
    let (waited, ()) =
        tokio::join!(async { api.get(&format!("/jobs/{gone}/wait?timeout=20s")).await }, async {
            until_waiting(&bench, &before).await;
            bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{gone}'")).await;
        });
    assert_eq!((waited.status(), waited.code()), (410, "no_history"), "{}", waited.answer.body);

    let log = api.dashboard.serve.log();
    assert!(log.contains("API action done") && log.contains(&running) && log.contains("this host"), "{log}");
    assert!(!log.contains("12345678901234567890"), "a payload is in the log");
    api.is_as_documented().await;
    drop(working);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_its_lane_and_a_held_one_says_for_what_it_waits() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", tenure::lanes::Lanes::new().running(1)).await.unwrap();
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let job = |rest: Value| {
        let mut job = json!({ "queue": "q", "kind": "k", "payload": 1 });
        job.as_object_mut().unwrap().append(&mut rest.as_object().unwrap().clone());
        job
    };
    let first = job(
        json!({ "lane": "org-7", "priority": -2, "not_after": "2036-01-01T00:00:00Z", "on_expiry": "cancel" }),
    );
    let first = api.post("/jobs", &first).await;
    assert_eq!(first.status(), 201, "{}", first.answer.body);
    bench.until_count("tenure.lane_slots", 1).await;
    let held = api.post("/jobs", &job(json!({ "lane": "org-7" }))).await.id();
    let shown = api.get(&format!("/jobs/{}", first.id())).await.json;
    assert_eq!(
        (&shown["lane"], &shown["priority"], &shown["is_held"]),
        (&json!("org-7"), &json!(-2), &json!(false))
    );
    assert!(
        shown.get("held").is_none() && shown["not_after"].as_str().unwrap().starts_with("2036-"),
        "{shown}"
    );
    assert_eq!(bench.text("SELECT expires_as FROM tenure.jobs WHERE priority = -2").await, "(cancelled)");
    let shown = api.get(&format!("/jobs/{held}")).await.json;
    assert_eq!(shown["held"]["says"], "lane org-7 runs 1 of 1", "{shown}");
    assert!(!shown.to_string().contains("9999-"), "{shown}");
    let listed = api.get("/jobs?status=held").await.json;
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &json!(held)));
    let debounced = |payload: u32| json!({ "queue": "other", "kind": "k", "payload": payload, "delay": "1h", "replace": "doc", "longest_wait": "2h" });
    let one = api.post("/jobs", &debounced(1)).await.id();
    let two = api.post("/jobs", &debounced(2)).await;
    assert_eq!((two.status(), two.id()), (200, one));
    for (rest, words) in [
        (json!({ "lane": "x".repeat(257) }), "257 bytes"),
        (json!({ "priority": 101 }), "priority is 101"),
        (json!({ "on_expiry": "cancel" }), "without `not_after`"),
        (json!({ "replace": "a", "unique_while_live": "b" }), "leave all but one out"),
        (json!({ "unique_key": "a", "unique_while_live": "b" }), "the job's only key"),
        (json!({ "replace": "a", "longest_wait": "soon" }), "`longest_wait` must be a duration"),
        (json!({ "longest_wait": "1m" }), "longest_wait"),
    ] {
        let refused = api.post("/jobs", &job(rest.clone())).await;
        assert!([400, 422].contains(&refused.status()), "{rest}: {}", refused.answer.body);
        assert!(refused.said().contains(words), "{rest}: {}", refused.said());
    }
    api.is_as_documented().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_the_filters_and_pages_of_the_command() {
    let bench = bench().await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(api.enqueue(json!(n)).await);
    }
    let other =
        json!({ "queue": "other", "kind": "k", "payload": "text", "run_at": "2030-01-01T00:00:00+01:00" });
    let other = api.post("/jobs", &other).await.id();
    bench.execute(&format!("UPDATE tenure.jobs SET last_error = '100% of it' WHERE id = '{}'", all[0])).await;
    let ids = |reply: &Reply| -> Vec<String> {
        let jobs = reply.json.as_array().unwrap_or_else(|| panic!("{}", reply.answer.body));
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
    };
    let newest_first: Vec<_> = all.iter().rev().cloned().collect();
    // Page after page, by the header.
    let (mut found, mut next) = (Vec::new(), Some("/jobs?queue=q&limit=2".to_owned()));
    while let Some(path) = next {
        let page = api.get(&path).await;
        assert_eq!(page.status(), 200, "{}", page.answer.body);
        found.extend(ids(&page));
        next = page.answer.header("link").map(|link| {
            let address = link.strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap();
            assert!(address.starts_with("/api/v1/jobs?queue=q&limit=2&before="), "{link}");
            address.to_owned()
        });
    }
    assert_eq!(found, newest_first);
    for (query, expected) in [
        ("queue=other", vec![other.clone()]),
        ("status=scheduled", vec![other.clone()]),
        ("status=queued&queue=q", newest_first.clone()),
        ("status=retrying", vec![]),
        ("status=completed", vec![]),
        ("kind=k&queue=other&newer_than=1h", vec![other.clone()]),
        ("older_than=1h", vec![]),
        ("error=100%25+of", vec![all[0].clone()]),
        ("worker=none", vec![]),
        ("queue=%3F", vec![]),
        (&format!("queue=q&before={}", all[1]), vec![all[0].clone()]),
    ] {
        let listed = api.get(&format!("/jobs?{query}")).await;
        assert_eq!(ids(&listed), expected, "{query}");
    }
    let with = api.get("/jobs?queue=other").await;
    assert_eq!(with.json[0]["payload"], "text");
    let without = api.get("/jobs?queue=other&payloads=false").await;
    assert_eq!(without.json[0]["payload"], Value::Null);
    let line = bench.program(&["jobs", "list", "--queue", "q", "--output", "json"]).output().await.unwrap();
    let line: Value = serde_json::from_slice(&line.stdout).unwrap();
    assert_eq!(api.get("/jobs?queue=q").await.json, line, "the command line has another JSON");
    for (query, part) in [
        ("status=done", "must be queued, scheduled, retrying"),
        ("queue=a+b", "1 to 64 of"),
        ("kind=a..b", "joined by dots"),
        ("worker=", "the ID of a worker"),
        ("older_than=soon", "an age such as 500ms"),
        ("older_than=1h&newer_than=2h&x=1", "unknown parameter \"x\""),
        ("older_than=2h&newer_than=1h", "swap the two"),
        ("before=17", "the ID of a job"),
        ("limit=0", "1 to 200"),
        ("limit=201", "1 to 200"),
        ("payloads=no", "true or false"),
        ("cell=eu", "there is only one"),
        ("queue=a&queue=b", "twice"),
        ("error=%00", "NUL"),
    ] {
        let refused = api.get(&format!("/jobs?{query}")).await;
        assert_eq!((refused.status(), refused.code()), (422, "invalid"), "{query}: {}", refused.answer.body);
        assert!(refused.said().contains(part), "{query}: {}", refused.said());
    }
    // The document has the parameters that there are.
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let said = api.get("/jobs?nothing=1").await.said();
    let known: BTreeSet<_> = said.trim().split("expected: ").nth(1).unwrap().split(", ").collect();
    let listed = document["paths"]["/jobs"]["get"]["parameters"].as_array().unwrap();
    assert_eq!(known, listed.iter().map(|of| of["name"].as_str().unwrap()).collect());
    api.is_as_documented().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_makes_one_job_however_often_and_from_wherever_it_is_sent() {
    let bench = bench().await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let job = |n: usize| json!({ "queue": "q", "kind": "k", "payload": n }).to_string();
    let keyed = json!({ "queue": "q", "kind": "k", "payload": "body", "unique_key": "one key" }).to_string();
    // All at once: in the header, in quotes, in the body, in both, and from Rust.
    let (job, keyed, api_of) = (&job, &keyed, &api);
    let requests = (0..24).map(|n| async move {
        let (headers, body) = match n % 4 {
            0 => (vec![JSON, ("Idempotency-Key", "one key")], job(n)),
            1 => (vec![JSON, ("idempotency-key", "\"one key\"")], job(n)),
            2 => (vec![JSON], keyed.clone()),
            _ => (vec![JSON, ("Idempotency-Key", "one key")], keyed.clone()),
        };
        let reply = api_of.ask("POST", "/jobs", &headers, &body).await;
        (reply.status(), reply.id())
    });
    let from_rust = bench.tenure.enqueue(JobRequest::new("q", "k", json!("rust")).unique_key("one key"));
    let (answers, of_rust) =
        tokio::join!(futures::future::join_all(requests), async { from_rust.await.unwrap() });
    let created = answers.iter().filter(|(status, _)| *status == 201).count();
    let duplicates = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(created + usize::from(!of_rust.duplicate), 1, "{answers:?} {of_rust:?}");
    assert_eq!(created + duplicates, 24, "{answers:?}");
    assert!(answers.iter().all(|(_, id)| *id == of_rust.id.to_string()), "{answers:?}");
    assert_eq!(bench.count("tenure.jobs").await, 1);

    for (headers, body, part) in [
        (&[JSON, ("Idempotency-Key", "another")][..], keyed.clone(), "differ"),
        (&[JSON, ("Idempotency-Key", "a"), ("Idempotency-Key", "a")], job(0), "twice"),
        (&[JSON, ("Idempotency-Key", "")], job(0), "1 to 512 bytes"),
    ] {
        let refused = api.ask("POST", "/jobs", headers, &body).await;
        assert_eq!((refused.status(), refused.code()), (422, "invalid"), "{}", refused.answer.body);
        assert!(refused.said().contains(part), "{}", refused.said());
    }
    // A full queue, and a key that a transaction is about to take.
    bench.tenure.limit_queue("full", QueueLimits::new().max_queued(Some(1))).await.unwrap();
    let full = json!({ "queue": "full", "kind": "k", "payload": 1 });
    let deadline = Instant::now() + Duration::from_secs(20);
    // A producer asks now and then for a queue's limit.
    let refused = loop {
        let reply = api.post("/jobs", &full).await;
        if reply.status() != 201 {
            break reply;
        }
        assert!(Instant::now() < deadline, "the queue is never full");
    };
    assert_eq!((refused.status(), refused.code()), (429, "queue_full"), "{}", refused.answer.body);
    assert!(refused.answer.header("retry-after").is_some());
    let mut open = bench.pool.begin().await.unwrap();
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).unique_key("busy")).tx(&mut open).await.unwrap();
    let busy = api.ask("POST", "/jobs", &[JSON, ("Idempotency-Key", "busy")], &job(0)).await;
    assert_eq!((busy.status(), busy.code()), (409, "key_busy"), "{}", busy.answer.body);
    assert!(busy.answer.header("retry-after").is_some());
    open.rollback().await.unwrap();
    let free = api.ask("POST", "/jobs", &[JSON, ("Idempotency-Key", "busy")], &job(0)).await;
    assert_eq!(free.status(), 201);
    api.is_as_documented().await;
}

/// The document is that of the docs, served with the base path of the server, and has the shapes of the command line.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_served_and_kept_in_the_docs() {
    let path = format!("{ROOT}/docs/openapi.json");
    if std::env::var_os("TENURE_WRITE_DOCS").is_some() {
        std::fs::write(&path, DOCUMENT).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == DOCUMENT,
        "docs/openapi.json is out of date; write it: TENURE_WRITE_DOCS=1 cargo test --all-features --test it \
         the_document_is_served"
    );
    let bench = bench().await;
    let mut api = Api::start(&bench, &["--actions"], &[]).await;
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    assert_eq!(api.get("/openapi.json").await.json, document);
    api.is_as_documented().await;
    for (shape, schema) in [("job", "Job"), ("enqueued", "Enqueued"), ("answer", "Answer")] {
        let known = &crate::cli_json::shapes()[shape];
        let schema = &document["components"]["schemas"][schema];
        let described: BTreeSet<_> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, known.keys().copied().collect(), "{shape}");
        let required: BTreeSet<_> =
            schema["required"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
        let always = known.iter().filter(|(_, optional)| !**optional).map(|(key, _)| *key);
        assert_eq!(required, always.collect(), "{shape}");
    }
    // Below the top: its own addresses have the path, too.
    api = Api::start(&bench, &["--actions"], &[("TENURE_SERVE_BASE_PATH", "/ops")]).await;
    let answer = api.dashboard.get("/ops/api/v1/openapi.json").await;
    let served: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(served["servers"][0]["url"], "/ops/api/v1");
    let body = json!({ "queue": "q", "kind": "k", "payload": 1 }).to_string();
    let enqueued = api.dashboard.ask("POST", "/ops/api/v1/jobs", &[JSON], &body).await;
    assert_eq!(enqueued.status, 201);
    assert_eq!(api.dashboard.get(enqueued.header("location").unwrap()).await.status, 200);
    let elsewhere = api.dashboard.get("/api/v1/jobs").await;
    assert!(elsewhere.status == 404 && !elsewhere.body.contains("api"), "{}", elsewhere.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_generated_from_the_document_works() {
    let bench = bench().await;
    let working = worker(&bench);
    let token = "a-token-of-programs-that-may-act-by-the-api";
    let api = Api::start(&bench, &["--actions"], &[("TENURE_SERVE_API_TOKEN", token)]).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, "post_hooks: []\n").unwrap();
    let mut generate = Command::new("python3");
    generate
        .args(["-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"])
        .args(["--path", &format!("{ROOT}/docs/openapi.json"), "--config", config.to_str().unwrap()])
        .args(["--output-path", folder.path().join("tenure_client").to_str().unwrap()])
        .env("PYTHONPATH", format!("{ROOT}/.tools/openapi"))
        .kill_on_drop(true);
    let output = generate.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let address = format!("http://{}", api.dashboard.address);
    let driven = python("client.py").arg(folder.path()).args([&address, token]).output().await.unwrap();
    let (out, error) = (text(&driven.stdout), text(&driven.stderr));
    assert!(driven.status.success() && out.trim() == "done", "{out}{error}\n{}", api.dashboard.serve.log());
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_run_as_they_are() {
    let bench = bench_with(|config| config.job_logs = true).await;
    let handler = |_: Value, ctx: JobContext| async move {
        ctx.log("sent by the mail server");
        ctx.progress("send", 40.0, "").await?;
        Outcome::done(json!({ "sent": 1 }))
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("welcome", KindOptions::new(), handler);
    let working = Running::start(worker.concurrency("mail", 2));
    let token = "a-token-of-programs-that-may-act-by-the-api";
    let api = Api::start(&bench, &["--actions"], &[("TENURE_SERVE_API_TOKEN", token)]).await;
    let page = crate::guide::page("http.md");
    let steps: Vec<&str> = crate::guide::blocks(&page, "sh")
        .into_iter()
        .filter_map(|(before, code)| (before == "<!-- run -->").then_some(code))
        .collect();
    assert_eq!(steps.len(), 7, "{steps:?}");
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &steps.concat()])
        .env("API", format!("http://{}/api/v1", api.dashboard.address))
        .env("TOKEN", token)
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    for part in [
        "\"result\":\"due\"",
        "{\n  \"sent\": 1\n}",
        "sent by the mail server",
        "event: end",
        "\"status\":\"completed\"",
    ] {
        assert!(out.contains(part), "no {part} in {out}{error}");
    }
    working.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_of_several_cells_finds_the_cell_of_a_queue_and_of_a_job() {
    let (main, eu) = (bench().await, bench().await);
    let file = crate::cells::write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    let file = file.to_str().unwrap();
    let api = Api::start(&main, &["--actions"], &[("TENURE_CELLS", file)]).await;
    let enqueue = async |queue: &str| {
        let job = json!({ "queue": queue, "kind": "k", "payload": queue, "unique_key": "k" });
        let enqueued = api.post("/jobs", &job).await;
        assert_eq!(enqueued.status(), 201, "{}", enqueued.answer.body);
        let again = api.post("/jobs", &job).await;
        assert_eq!((again.status(), again.id()), (200, enqueued.id()));
        enqueued.id()
    };
    let (first, second, third) = (enqueue("mail").await, enqueue("mail-eu").await, enqueue("post").await);
    assert_eq!((main.count("tenure.jobs").await, eu.count("tenure.jobs").await), (2, 1));
    let ids = |reply: &Reply| -> Vec<String> {
        let jobs = reply.json.as_array().unwrap_or_else(|| panic!("{}", reply.answer.body));
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&api.get("/jobs").await), [third.clone(), second.clone(), first.clone()]);
    let (newest, rest) = (api.get("/jobs?limit=2").await, api.get(&format!("/jobs?before={second}")).await);
    assert_eq!((ids(&newest), ids(&rest)), (vec![third.clone(), second.clone()], vec![first.clone()]));
    assert_eq!(ids(&api.get("/jobs?cell=eu").await), std::slice::from_ref(&second));
    let unknown = api.get("/jobs?cell=us").await;
    assert!(unknown.status() == 422 && unknown.said().contains("main, eu"), "{}", unknown.said());
    assert_eq!(api.get(&format!("/jobs/{second}")).await.json["queue"], "mail-eu");
    assert_eq!(api.get(&format!("/jobs/{second}/wait?timeout=50ms")).await.status(), 202);
    assert_eq!(api.post(&format!("/jobs/{second}/retry"), &json!({})).await.json["result"], "live");
    assert_eq!(api.post(&format!("/jobs/{second}/cancel"), &json!({})).await.json["result"], "cancelled");
    assert_eq!(api.get(&format!("/jobs/{second}/wait")).await.json["status"], "cancelled");
    let nowhere = api.get(&format!("/jobs/{}", Uuid::now_v7())).await;
    assert_eq!((nowhere.status(), nowhere.code()), (404, "not_found"));
    api.is_as_documented().await;
}
