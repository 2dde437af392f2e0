//! Traces: the spans that reach a collector.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_nats::HeaderMap;
use axum::{Router, body::Bytes, extract::State, routing::post};
use data_encoding::HEXLOWER;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::status::StatusCode,
};
use prost::Message;
use rustix::process::Signal;
use serde_json::json;
use tenure::JobId;

use crate::harness::{Bench, Child, bench};

/// A span's trace id and its own id, in hexadecimal.
type Ids = (String, String);

/// A span that the collector received.
#[derive(Debug, Clone)]
struct Arrived {
    name: String,
    kind: i32,
    ids: Ids,
    parent: String,
    links: Vec<Ids>,
    attributes: BTreeMap<String, String>,
    is_error: bool,
}

impl Arrived {
    fn has(&self, attributes: &[(&str, &str)]) {
        for (name, value) in attributes {
            assert_eq!(self.attributes.get(*name).map(String::as_str), Some(*value), "{name} of {self:#?}");
        }
    }
}

fn text(attribute: KeyValue) -> (String, String) {
    let value = match attribute.value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        other => format!("{other:?}"),
    };
    (attribute.key, value)
}

/// Receives spans by OTLP over HTTP and keeps them.
struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Bytes>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Collector {
    async fn start() -> Self {
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let keep = |State(bodies): State<Arc<Mutex<Vec<Bytes>>>>, body: Bytes| async move {
            bodies.lock().unwrap().push(body);
        };
        let router = Router::new().route("/v1/traces", post(keep)).with_state(bodies.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, bodies, server }
    }

    /// All received spans, in order of their beginning.
    fn spans(&self) -> Vec<Arrived> {
        let bodies = self.bodies.lock().unwrap().clone();
        let requests = bodies.into_iter().map(|body| ExportTraceServiceRequest::decode(body).unwrap());
        let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|of| of.scope_spans);
        let mut spans: Vec<_> = scopes.flat_map(|scope| scope.spans).collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        let ids = |trace: &[u8], span: &[u8]| (HEXLOWER.encode(trace), HEXLOWER.encode(span));
        spans
            .into_iter()
            .map(|span| Arrived {
                ids: ids(&span.trace_id, &span.span_id),
                parent: HEXLOWER.encode(&span.parent_span_id),
                links: span.links.iter().map(|link| ids(&link.trace_id, &link.span_id)).collect(),
                attributes: span.attributes.into_iter().map(text).collect(),
                is_error: span.status.is_some_and(|status| status.code == StatusCode::Error as i32),
                name: span.name,
                kind: span.kind,
            })
            .collect()
    }

    fn named(&self, name: &str) -> Vec<Arrived> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    /// Whether a text occurs anywhere in the received data.
    fn holds(&self, text: &str) -> bool {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().any(|body| body.windows(text.len()).any(|window| window == text.as_bytes()))
    }
}

/// The program in this world, with this collector.
fn program(bench: &Bench, endpoint: &str, arguments: &[&str]) -> tokio::process::Command {
    let mut command = bench.program(arguments);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "100");
    command
}

/// A started worker that runs this command.
async fn work(bench: &Bench, endpoint: &str, command: &str, variables: &[(&str, &str)]) -> Child {
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut work = program(bench, endpoint, &["work", "q", "--exec", command, "--concurrency", "4"]);
    work.envs(variables.iter().copied());
    let mut worker = Child::spawn(work, "work");
    worker.until_log("worker started").await;
    worker
}

async fn publish(bench: &Bench, kind: &str, traceparent: &str) {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", traceparent);
    let subject = format!("{}.q.{kind}", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, "1".into()).await.unwrap().await.unwrap();
}

async fn end(mut worker: Child) {
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn parent() -> Ids {
    ("0af7651916cd43dd8448eb211c80319c".into(), "b7ad6b7169203331".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_once_is_three_spans_that_are_linked() {
    let (bench, collector) = (bench().await, Collector::start().await);
    let endpoint = format!("http://{}", collector.address);
    let secret = "s3cr3t-2d41";
    // The payload also appears in the errors, the output and the lines of the command.
    let script = format!(
        r#"read payload; echo "$payload"; echo "$payload" >&2; echo "$TRACEPARENT" > {}/trace-$TENURE_ATTEMPT
           [ $TENURE_ATTEMPT = 2 ] || exit 1; echo "{{\"output\": $payload}}""#,
        bench.config.runtime_dir.display()
    );
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let payload = json!({ "card": secret }).to_string();
    let mut enqueue = program(&bench, &endpoint, &["enqueue", "q", "k", payload.as_str()]);
    let enqueued = enqueue.env("TRACEPARENT", PARENT).output().await.unwrap();
    let id: JobId = String::from_utf8(enqueued.stdout).unwrap().trim().parse().unwrap();

    let worker = work(&bench, &endpoint, &script, &[]).await;
    bench.until_count("tenure.jobs WHERE status = 'queued' AND attempt = 1", 1).await;
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    bench.until_finished(id).await;
    let worker_id: String = bench.value("SELECT worker_id FROM tenure.job_history").await;
    end(worker).await;

    let spans = collector.spans();
    let [send, first, second] = &spans[..] else { panic!("{spans:#?}") };
    let job = id.to_string();
    let of_all =
        [("messaging.system", "nats"), ("messaging.destination.name", "q"), ("tenure.job.kind", "k")];
    for span in &spans {
        span.has(&of_all);
        span.has(&[("tenure.job.id", job.as_str())]);
    }
    // SPAN_KIND_PRODUCER, in the caller's trace.
    assert_eq!((send.name.as_str(), send.kind), ("send q", 4));
    assert_eq!((&send.ids.0, &send.parent), (&parent().0, &parent().1));
    send.has(&[("messaging.operation.type", "send"), ("messaging.operation.name", "send")]);
    // SPAN_KIND_CONSUMER, each in its own trace.
    for (span, attempt) in [(first, "1"), (second, "2")] {
        assert_eq!((span.name.as_str(), span.kind, span.parent.as_str()), ("process q", 5, ""));
        span.has(&[("messaging.operation.type", "process"), ("tenure.worker", worker_id.as_str())]);
        span.has(&[("tenure.attempt", attempt), ("tenure.token", attempt)]);
        let told =
            std::fs::read_to_string(bench.config.runtime_dir.join(format!("trace-{attempt}"))).unwrap();
        assert_eq!(
            told.trim(),
            format!("00-{}-{}-01", span.ids.0, span.ids.1),
            "the context that the command got"
        );
    }
    assert_eq!(first.links, std::slice::from_ref(&send.ids));
    assert_eq!(second.links, [send.ids.clone(), first.ids.clone()]);
    let traces = [&send.ids.0, &first.ids.0, &second.ids.0];
    assert!(traces[0] != traces[1] && traces[1] != traces[2] && traces[0] != traces[2], "{traces:?}");
    first.has(&[("tenure.outcome", "retried"), ("error.type", "retried")]);
    second.has(&[("tenure.outcome", "completed")]);
    assert!(first.is_error && !second.is_error && !send.is_error, "{spans:#?}");

    assert!(collector.holds(&job) && !collector.holds(secret), "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_producers_context_is_linked_or_the_parent_as_configured() {
    for (setting, is_child) in [("link", false), ("child", true)] {
        let (bench, collector) = (bench().await, Collector::start().await);
        let endpoint = format!("http://{}", collector.address);
        let worker = work(&bench, &endpoint, "true", &[("TENURE_TRACE_PARENT", setting)]).await;
        publish(&bench, "k", PARENT).await;
        bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
        end(worker).await;
        let spans = collector.spans();
        let [process] = &spans[..] else { panic!("{spans:#?}") };
        assert_eq!(process.links, [parent()], "{process:#?}");
        assert_eq!(process.parent, if is_child { parent().1 } else { String::new() }, "{process:#?}");
        assert_eq!(process.ids.0 == parent().0, is_child, "{process:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_trace_context_makes_no_dead_letter_and_no_link() {
    let (bench, collector) = (bench().await, Collector::start().await);
    let endpoint = format!("http://{}", collector.address);
    let worker = work(&bench, &endpoint, "true", &[]).await;
    let long = "0".repeat(2_000);
    let wrong = ["garbage", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", long.as_str()];
    for traceparent in wrong {
        publish(&bench, "k", traceparent).await;
    }
    let mut enqueue = program(&bench, &endpoint, &["enqueue", "q", "k", "1", "--traceparent", "garbage"]);
    assert!(enqueue.status().await.unwrap().success());
    let done = "tenure.job_history WHERE status = 'completed'";
    bench.until_count(done, 4).await;
    assert_eq!(bench.count(&format!("{done} AND trace_context IS NULL")).await, 3);
    end(worker).await;
    let process = collector.named("process q");
    assert_eq!(
        process.iter().map(|span| span.links.len()).sum::<usize>(),
        1,
        "the trace of the program's own span"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_enqueues_does_so_in_the_trace_of_its_attempt() {
    let (bench, collector) = (bench().await, Collector::start().await);
    let endpoint = format!("http://{}", collector.address);
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let script = format!("[ $TENURE_KIND = child ] || {tenure} enqueue q child 1 >&2");
    let worker = work(&bench, &endpoint, &script, &[]).await;
    publish(&bench, "parent", PARENT).await;
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;
    end(worker).await;
    let (process, send) = (collector.named("process q"), collector.named("send q"));
    assert_eq!((process.len(), send.len()), (2, 1), "{:#?}", collector.spans());
    assert_eq!((&send[0].ids.0, &send[0].parent), (&process[0].ids.0, &process[0].ids.1));
    assert_eq!(process[1].links, std::slice::from_ref(&send[0].ids));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_or_hangs_costs_spans_and_no_job() {
    // Takes connections, and never answers.
    let hangs = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let hangs_at = format!("http://{}", hangs.local_addr().unwrap());
    for endpoint in ["http://127.0.0.1:1", hangs_at.as_str(), "no url"] {
        let bench = bench().await;
        // The smallest queues, so that they overflow.
        let small = [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ];
        let mut worker = work(&bench, endpoint, "true", &small).await;
        let began = Instant::now();
        for n in 0..40 {
            bench.publish("q.k", &n.to_string()).await;
        }
        bench.until_count("tenure.job_history WHERE status = 'completed' AND attempt = 1", 40).await;
        let took = began.elapsed();
        worker.until_log(if endpoint == "no url" { "not set up" } else { "exporting traces failed" }).await;
        let told = Instant::now();
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0), "{endpoint}: {}", worker.log());
        assert!(told.elapsed() < Duration::from_secs(8), "{endpoint}: it took {:?} to end", told.elapsed());
        assert!(took < Duration::from_secs(20), "{endpoint}: 40 jobs took {took:?}");
        assert_eq!(
            worker.log().matches("exporting traces failed").count(),
            usize::from(endpoint != "no url")
        );
    }
}

/// The example: a handler in Rust with a span inside the attempt's, and an enqueuer with one around its call.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_spans_hang_together() {
    let collector = Collector::start().await;
    let folder = crate::example::built(&["traced"]).await;
    let mut example = tokio::process::Command::new(folder.join("traced"));
    example
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let ran = tokio::time::timeout(Duration::from_secs(90), example.output()).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.contains("is completed after 2 attempts"), "{out}\n{err}");
    let [request] = &collector.named("POST /orders")[..] else { panic!("{:?}", collector.spans()) };
    let [send] = &collector.named("send payments")[..] else { panic!("{:?}", collector.spans()) };
    assert_eq!(send.parent, request.ids.1);
    let attempts = collector.named("process payments");
    assert_eq!(attempts.len(), 2, "{:?}", collector.spans());
    for attempt in &attempts {
        assert!(attempt.links.contains(&send.ids), "{attempt:?}");
    }
    assert!(attempts[1].links.contains(&attempts[0].ids), "a retry is linked to the attempt before");
    let asked = collector.named("ask the bank");
    let parents: Vec<_> = asked.iter().map(|span| &span.parent).collect();
    assert_eq!(parents, attempts.iter().map(|attempt| &attempt.ids.1).collect::<Vec<_>>());
}
