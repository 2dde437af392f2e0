//! Waits and streams of the API.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    JobContext, KindOptions, Worker,
    layers::{Call, Next},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{Api, now, until_running, until_waiting, worker, worker_of_steps};
use crate::harness::{Running, bench, bench_with};

/// The most waits and streams at once.
const PLACES: usize = 100;

/// A stream of events, over a connection of its own.
struct Events {
    lines: Lines<BufReader<TcpStream>>,
    status: u16,
    head: String,
}

#[derive(Debug, Default)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

impl Events {
    async fn open(address: SocketAddr, path: &str, headers: &str) -> Self {
        Self::open_from("127.0.0.1", address, path, headers).await
    }

    async fn open_from(client: &str, address: SocketAddr, path: &str, headers: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{client}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let request = format!("GET /api/v1{path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let mut head = String::new();
        loop {
            let line = timeout(Duration::from_secs(20), lines.next_line()).await.unwrap().unwrap().unwrap();
            if line.is_empty() {
                break;
            }
            head += &(line + "\n");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { lines, status, head }
    }

    /// The next line of an event, or a comment; `None` after the end that the protocol has.
    async fn line(&mut self) -> Option<String> {
        loop {
            let line =
                timeout(Duration::from_secs(20), self.lines.next_line()).await.expect("a line in time");
            let line = line.unwrap().expect("the connection broke off before the end of the stream");
            // The last chunk is empty; lengths of chunks and empty lines are of no interest.
            if line == "0" {
                return None;
            }
            if line.contains(':') {
                return Some(line);
            }
        }
    }

    async fn event(&mut self) -> Option<Event> {
        let mut event = Event::default();
        loop {
            let line = self.line().await?;
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut event.name);
            } else if let Some(id) = line.strip_prefix("id: ") {
                id.clone_into(&mut event.id);
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = serde_json::from_str(data).unwrap();
            }
            if !event.name.is_empty() && !event.id.is_empty() && !event.data.is_null() {
                return Some(event);
            }
        }
    }

    /// The first event for which this holds.
    async fn until(&mut self, is: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.event().await.expect("the stream goes on");
            if is(&event) {
                return event;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_each_step_of_a_job_and_ends_with_it() {
    let bench = bench().await;
    let steps = Arc::new(Semaphore::new(0));
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let job = api.enqueue(json!({ "do": "steps" })).await;
    let path = format!("/jobs/{job}/watch");
    let mut events = Events::open(api.dashboard.address, &path, "").await;
    assert_eq!(events.status, 200);
    for part in ["content-type: text/event-stream", "x-accel-buffering: no", "cache-control: no-store"] {
        assert!(events.head.to_lowercase().contains(part), "{}", events.head);
    }
    let mut hello = Vec::new();
    while hello.len() < 2 {
        hello.push(events.line().await.unwrap());
    }
    hello.sort();
    assert_eq!(hello, [": tenure", "retry: 3000"]);
    let queued = events.event().await.unwrap();
    assert_eq!((queued.name.as_str(), &queued.data["status"]), ("progress", &json!("queued")));
    let working = worker_of_steps(&bench, steps.clone());
    let first = events.until(|event| event.data["stage"] == "first").await;
    assert_eq!((first.name.as_str(), &first.data["progress"]), ("progress", &json!(10.0)));
    // A client that connects again and has seen this is not told it again.
    let mut again =
        Events::open(api.dashboard.address, &path, &format!("Last-Event-ID: {}\r\n", first.id)).await;
    let mut late = Events::open(api.dashboard.address, &path, "Last-Event-ID: other\r\n").await;
    let told = late.event().await.unwrap();
    assert_eq!((&told.id, &told.data), (&first.id, &first.data));
    // While nothing happens, comments keep proxies from closing the connection.
    assert_eq!(late.line().await.unwrap(), ":");
    steps.add_permits(1);
    for events in [&mut events, &mut again, &mut late] {
        let second = events.until(|event| event.data["stage"] != "first").await;
        assert_eq!((second.name.as_str(), &second.data["stage"]), ("progress", &json!("second")));
        api.events.lock().unwrap().push(second.data);
    }
    steps.add_permits(1);
    let mut ended = Vec::new();
    for events in [&mut events, &mut again, &mut late] {
        let end = events.until(|event| event.name == "end").await;
        assert_eq!(
            (&end.data["status"], &end.data["output"]["big"]),
            (&json!("completed"), &json!(9_007_199_254_740_993_u64))
        );
        assert!(events.event().await.is_none(), "the stream goes on after the end");
        ended.push(end.id.clone());
        api.events.lock().unwrap().push(end.data);
    }
    api.events.lock().unwrap().extend([queued.data, first.data]);
    // A client that comes after the end gets it at once; a browser that has it is told not to come again.
    let mut after = Events::open(api.dashboard.address, &path, "").await;
    let end = after.event().await.unwrap();
    assert!(end.name == "end" && ended.iter().all(|id| *id == end.id) && after.event().await.is_none());
    let seen = api.ask("GET", &path, &[("Last-Event-ID", &end.id)], "").await;
    assert_eq!((seen.status(), seen.answer.body.as_str()), (204, ""));

    // Hidden payloads are hidden here, too.
    let hiding = Api::start(&bench, &["--hide-payloads"], &[]).await;
    let mut hidden = Events::open(hiding.dashboard.address, &path, "").await;
    let end = hidden.event().await.unwrap();
    assert!(end.name == "end" && end.data["output"].is_null() && end.data["stage"] == "second", "{end:?}");
    // A job that leaves nothing has an end for those who have seen it.
    let gone = json!({ "queue": "q", "kind": "forgotten", "payload": null });
    let gone = api.post("/jobs", &gone).await.id();
    until_running(&bench, &gone).await;
    let mut of_gone = Events::open(api.dashboard.address, &format!("/jobs/{gone}/watch"), "").await;
    of_gone.until(|event| event.data["status"] == "processing").await;
    bench.execute(&format!("DELETE FROM tenure.jobs WHERE id = '{gone}'")).await;
    let end = of_gone.until(|event| event.name == "end").await;
    assert_eq!(end.data["status"], "completed");
    api.is_as_documented().await;
    drop(working);
}

/// serde's error quotes the payload: no answer shows that where payloads are hidden.
#[tokio::test(flavor = "multi_thread")]
async fn where_payloads_are_hidden_no_error_quotes_one() {
    const CUT: &str = "the payload does not fit the type of its handler";
    let bench = bench().await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let layer = |call: Call, next: Next| async move {
        call.read::<u32>()?;
        next.run(call).await
    };
    let handler = |_: Value, _: JobContext| async {};
    let working = Running::start(
        Worker::builder(&bench.tenure)
            .layer(layer)
            .handle_any(KindOptions::new(), handler)
            .concurrency("q", 1),
    );
    let body = json!({ "queue": "q", "kind": "k", "payload": "a secret", "max_attempts": 1 });
    let job = api.post("/jobs", &body).await.id();
    let whole = api.get(&format!("/jobs/{job}/wait")).await;
    let error = whole.json["last_error"].as_str().unwrap();
    assert!(error.starts_with(CUT) && error.contains("a secret"), "{error}");
    let hiding = Api::start(&bench, &["--hide-payloads"], &[]).await;
    let one = format!("/jobs/{job}");
    for path in [one.clone(), format!("{one}/wait"), "/jobs".into(), "/jobs?payloads=false".into()] {
        let shown = hiding.get(&path).await;
        let row = shown.json.get(0).unwrap_or(&shown.json);
        assert_eq!(row["last_error"], CUT, "{path}: {}", shown.answer.body);
        assert!(!shown.answer.body.contains("a secret"), "{path}: {}", shown.answer.body);
    }
    let mut events = Events::open(hiding.dashboard.address, &format!("{one}/watch"), "").await;
    let end = events.event().await.unwrap();
    assert_eq!((end.name.as_str(), &end.data["last_error"]), ("end", &json!(CUT)));
    working.stop().await;
}

/// Opens streams until there is no place left.
async fn fill(api: &Api, path: &str) -> Vec<Events> {
    let mut open = Vec::new();
    for _ in 0..PLACES {
        let events = Events::open(api.dashboard.address, path, "").await;
        assert_eq!(events.status, 200, "{} are open: {}", open.len(), events.head);
        open.push(events);
    }
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_have_a_limit_and_a_client_that_leaves_frees_its_place_at_once() {
    let bench = bench().await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let job = api.enqueue(json!(1)).await;
    let path = format!("/jobs/{job}/watch");
    let mut open = fill(&api, &path).await;
    for path in [path.clone(), format!("/jobs/{job}/wait")] {
        let refused = api.get(&path).await;
        assert_eq!((refused.status(), refused.code()), (503, "busy"), "{path}");
        assert!(refused.answer.header("retry-after").is_some());
    }
    // What is not followed has its answer, and another client still has its places.
    assert_eq!(api.get(&format!("/jobs/{job}")).await.status(), 200);
    assert_eq!(Events::open_from("127.0.0.2", api.dashboard.address, &path, "").await.status, 200);
    assert_eq!(api.dashboard.get("/readyz").await.status, 200);

    drop(open.pop());
    let left_at = Instant::now();
    let waits = loop {
        // A wait that is let in takes the place: it is not over when the next one comes.
        let waits = Events::open(api.dashboard.address, &path, "").await;
        if waits.status == 200 {
            break waits;
        }
        assert!(
            left_at.elapsed() < Duration::from_secs(2),
            "the place of a client that has left is not free"
        );
    };
    // Nor does a client that leaves in the middle of a wait keep its place.
    drop((waits, open.pop()));
    loop {
        let answer = api.get(&format!("/jobs/{job}/wait?timeout=1ms")).await;
        if answer.status() == 202 {
            break;
        }
        assert!(left_at.elapsed() < Duration::from_secs(4), "{}", answer.answer.body);
    }
    let mut stream = TcpStream::connect(api.dashboard.address).await.unwrap();
    let wait = format!("GET /api/v1/jobs/{job}/wait?timeout=60s HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let before = now(&bench).await;
    stream.write_all(wait.as_bytes()).await.unwrap();
    until_waiting(&bench, &before).await;
    open.push(Events::open(api.dashboard.address, &path, "").await);
    assert_eq!(open.last().unwrap().status, 200);
    assert_eq!(Events::open(api.dashboard.address, &path, "").await.status, 503);
    drop(stream);
    let left_at = Instant::now();
    while Events::open(api.dashboard.address, &path, "").await.status != 200 {
        assert!(
            left_at.elapsed() < Duration::from_secs(2),
            "the place of a wait whose client has left is not free"
        );
    }
    drop(open);
    api.is_as_documented().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_and_a_stream_that_outlive_the_server_are_answered() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_secs(30)).await;
    let mut api = Api::start(&bench, &["--actions"], &[]).await;
    let job = api.enqueue(json!({ "do": "wait" })).await;
    let working = worker(&bench);
    until_running(&bench, &job).await;
    let address = api.dashboard.address;
    let path = format!("/api/v1/jobs/{job}/wait?timeout=60s");
    let before = now(&bench).await;
    let waits = tokio::task::spawn_blocking(move || crate::harness::ask(address, "GET", &path, &[], ""));
    // Before the stream, which looks at the database as the wait does.
    until_waiting(&bench, &before).await;
    let mut events = Events::open(address, &format!("/jobs/{job}/watch"), "").await;
    events.event().await.unwrap();
    api.dashboard.serve.signal(Signal::TERM);
    let asked_at = Instant::now();
    let answer = waits.await.unwrap().expect("an answer");
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("\"ending\"") && answer.header("retry-after").is_some(), "{}", answer.body);
    assert!(events.event().await.is_none(), "the stream has no end");
    assert_eq!(api.dashboard.serve.wait().await, Some(0), "{}", api.dashboard.serve.log());
    assert!(asked_at.elapsed() < Duration::from_secs(5), "{:?}", asked_at.elapsed());
    // The job goes on.
    assert_eq!(bench.count(&format!("tenure.jobs WHERE id = '{job}' AND status = 'processing'")).await, 1);
    api.is_as_documented().await;
    drop(working);
}
