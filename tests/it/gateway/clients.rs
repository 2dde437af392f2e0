//! The clients of `clients/`, each under the same cases: a black box over NATS and SQL. `kit.py` and its like are the
//! programs under test.

use std::{path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, Status, rows::JobRow};

use super::{enqueue, gateway, outcomes};
use crate::harness::{Bench, Child, Proxy, bench_with};

/// The command of a client's program under test.
struct Client {
    name: &'static str,
    command: Vec<String>,
    path: Option<(&'static str, String)>,
    /// Whether a handler may block its thread.
    has_threads: bool,
}

/// The clients whose language this machine has. `scripts/setup test` installs what they need.
fn clients() -> Vec<Client> {
    let folder = Path::new(crate::harness::ROOT).join("clients");
    let libraries = std::env::var("PYTHONPATH").unwrap_or_default();
    let path = format!("{}:{libraries}", folder.join("python/src").display());
    let mut imports = std::process::Command::new("python3");
    let has_library = imports.args(["-c", "import nats"]).env("PYTHONPATH", &path).output();
    assert!(has_library.is_ok_and(|of| of.status.success()), "python3 lacks nats-py: run scripts/setup test");
    let python = vec!["python3".into(), folder.join("python/kit.py").display().to_string()];
    let mut clients =
        vec![Client { name: "python", command: python, path: Some(("PYTHONPATH", path)), has_threads: true }];
    if std::process::Command::new("node").arg("--version").output().is_ok() {
        let kit = folder.join("node/dist/kit.js");
        assert!(kit.exists(), "{} is not built: run scripts/setup test", kit.display());
        clients.push(Client {
            name: "node",
            command: vec!["node".into(), kit.display().to_string()],
            path: None,
            has_threads: false,
        });
    } else {
        eprintln!("node was not found: its client is not tested");
    }
    clients
}

impl Client {
    fn start(&self, bench: &Bench, nats: &str, slots: u32) -> Child {
        let mut command = tokio::process::Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .args(["q", &slots.to_string()])
            .env("NATS_URL", nats)
            .env("TENURE_SUBJECT_PREFIX", &bench.config.subject_prefix)
            .envs(self.path.clone());
        Child::spawn(command, self.name)
    }

    async fn ready(&self, bench: &Bench) -> Child {
        let mut child = self.start(bench, &bench.config.nats_url, 8);
        child.until_log("\"ready\"").await;
        child
    }
}

/// The events that a program under test has shown.
fn events(child: &Child, event: &str, job: JobId) -> Vec<Value> {
    let log = child.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == json!(event) && line["job"] == json!(job)).collect()
}

async fn until_event(child: &Child, event: &str, job: JobId) -> Value {
    for _ in 0..3_000 {
        if let Some(shown) = events(child, event, job).pop() {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no {event} of {job}:\n{}", child.log());
}

/// A process that starts slowly is silent for a while.
async fn patient() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
        config.timing.renew_every = Duration::from_millis(500);
    })
    .await
}

async fn run(bench: &Bench, kind: &str, payload: Value) -> JobRow {
    let job = enqueue(bench, kind, payload).await;
    bench.until_finished(job).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_ends_a_job_in_each_way() {
    for client in clients() {
        let bench = patient().await;
        let _gateways = (gateway(&bench), gateway(&bench));
        let worker = client.ready(&bench).await;
        let odd = json!({"text": "ü \u{1} \" \\ 😀\n", "n": [1, -0.5, 1e100, null, true], "": {}});
        for (kind, payload, status, output, ends) in [
            ("echo", odd.clone(), Status::Completed, Some(odd), "(completed)"),
            (
                "report",
                json!({"reports": 3, "every_ms": 80}),
                Status::Completed,
                Some(json!({"from": null})),
                "(completed)",
            ),
            (
                "retry",
                json!({"after_ms": 10}),
                Status::Completed,
                Some(json!({"attempt": 2})),
                "(retried)\n(completed)",
            ),
            ("fail", json!({}), Status::Failed, None, "(failed)"),
            (
                "snooze",
                json!({"ms": 10}),
                Status::Completed,
                Some(json!({"attempt": 1})),
                "(snoozed)\n(completed)",
            ),
            ("cancel", json!({}), Status::Cancelled, None, "(cancelled)"),
            (
                "sleep",
                json!({"ms": 200, "every_ms": 50}),
                Status::Completed,
                Some(json!("slept")),
                "(completed)",
            ),
            (
                "block",
                json!({"ms": 200, "every_ms": 50}),
                Status::Completed,
                Some(json!("slept")),
                "(completed)",
            ),
        ] {
            if kind == "block" && !client.has_threads {
                continue;
            }
            let row = run(&bench, kind, payload).await;
            assert_eq!((row.status, &row.output), (status, &output), "{kind}: {row:?}\n{}", worker.log());
            assert_eq!(outcomes(&bench, row.id).await, ends, "{kind}");
            let owner = row.worker_id.unwrap_or_default();
            assert!(owner.starts_with("q/"), "{owner}");
        }
        let row = run(&bench, "report", json!({"reports": 2, "every_ms": 80})).await;
        assert_eq!((row.stage.as_deref(), row.message.as_deref()), (Some("working"), Some("2 of 2")));
        let row = run(&bench, "once_key", json!({})).await;
        assert_eq!(row.output.unwrap()["key"], json!(format!("{}/x", row.id)));
        // The usual backoff is too long for a test.
        let job = enqueue(&bench, "error", json!({})).await;
        bench.until_count(&format!("tenure.job_executions WHERE job_id = '{job}'"), 1).await;
        bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
        assert_eq!(bench.until_finished(job).await.attempt, 2);
        let error =
            bench.text(&format!("SELECT error FROM tenure.job_executions WHERE job_id = '{job}'")).await;
        assert!(error.contains("boom"), "{error}");
        bench.until_stream_is_empty(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_clients_job_runs_elsewhere_from_its_checkpoint() {
    for client in clients() {
        let bench = patient().await;
        let _gateway = gateway(&bench);
        let mut first = client.ready(&bench).await;
        let (job, other) = (
            enqueue(&bench, "resume", json!({})).await,
            enqueue(&bench, "sleep", json!({"ms": 60_000, "every_ms": 50})).await,
        );
        // Its handler kills the whole process.
        first.wait().await;
        let second = client.ready(&bench).await;
        let row = bench.until_finished(job).await;
        assert_eq!((row.attempt, row.output), (2, Some(json!({"from": {"i": 3}}))), "{}", second.log());
        until_event(&second, "began", other).await;
        bench.tenure.cancel(other).await.unwrap();
        bench.until_finished(other).await;
        bench.every_job_is_as_it_must_be().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_clients_handler_is_told_that_its_job_is_lost() {
    for client in clients() {
        let bench = bench_with(|config| {
            config.timing.stale_after = Duration::from_secs(4);
            config.timing.ack_wait = Duration::from_secs(60);
            config.timing.renew_every = Duration::from_secs(1);
        })
        .await;
        let _gateway = gateway(&bench);
        let first = client.ready(&bench).await;
        let job = enqueue(&bench, "sleep", json!({"ms": 30_000, "every_ms": 50})).await;
        until_event(&first, "began", job).await;
        first.signal(Signal::STOP);
        let second = client.ready(&bench).await;
        let again = until_event(&second, "began", job).await;
        // The request of the frozen one may have brought it the job once more: that attempt does not count.
        assert_eq!(again["attempt"], json!(2));
        first.signal(Signal::CONT);
        let stopped = until_event(&first, "stopped", job).await;
        assert_eq!((&stopped["why"], &stopped["token"]), (&json!("lost"), &json!(1)));
        until_event(&first, "lost", job).await;
        assert!(events(&first, "settled", job).is_empty(), "it settles nothing");
        bench.tenure.cancel(job).await.unwrap();
        assert_eq!(bench.until_finished(job).await.status, Status::Cancelled);
        let ends = outcomes(&bench, job).await;
        assert_eq!(ends.replace("(released)\n", ""), "(lost)\n(cancelled)");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_stops_a_clients_handler_within_a_second() {
    for client in clients() {
        let bench = patient().await;
        let _gateway = gateway(&bench);
        let worker = client.ready(&bench).await;
        // A handler that reports nothing, too.
        for every in [0, 50] {
            let job = enqueue(&bench, "sleep", json!({"ms": 30_000, "every_ms": every})).await;
            until_event(&worker, "began", job).await;
            bench.tenure.cancel(job).await.unwrap();
            bench
                .until_within(
                    &format!(
                        "EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{job}' AND status = 'cancelled')"
                    ),
                    Duration::from_secs(1),
                )
                .await;
            assert_eq!(until_event(&worker, "stopped", job).await["why"], json!("cancelled"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_goes_on_after_its_gateway_was_killed() {
    for client in clients() {
        let bench = patient().await;
        let mut first = Child::spawn(bench.program(&["gateway"]), "gateway");
        let worker = client.ready(&bench).await;
        let job = enqueue(&bench, "sleep", json!({"ms": 2_000, "every_ms": 50})).await;
        until_event(&worker, "began", job).await;
        first.kill().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _second = gateway(&bench);
        let row = bench.until_finished(job).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
        assert_eq!(outcomes(&bench, job).await, "(completed)");
        // It takes jobs again, as well.
        assert_eq!(run(&bench, "echo", json!(7)).await.output, Some(json!(7)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_goes_on_when_it_is_back() {
    for client in clients() {
        let bench = patient().await;
        let _gateway = gateway(&bench);
        let proxy = Proxy::to_url(&bench.config.nats_url).await;
        let mut worker = client.start(&bench, &proxy.of(&bench.config.nats_url), 8);
        worker.until_log("\"ready\"").await;
        let job = enqueue(&bench, "sleep", json!({"ms": 2_000, "every_ms": 50})).await;
        until_event(&worker, "began", job).await;
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.mend();
        // Its subject had no subscriber for a moment, and its beats go on: it keeps its job, or another attempt runs.
        let row = bench.until_finished(job).await;
        assert_eq!(row.status, Status::Completed, "{}", worker.log());
        assert_eq!(run(&bench, "echo", json!(7)).await.output, Some(json!(7)));
        bench.every_job_is_as_it_must_be().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_stops_in_order_and_when_it_is_drained() {
    for client in clients() {
        let bench = patient().await;
        let _gateway = gateway(&bench);
        for drains in [false, true] {
            let mut worker = client.ready(&bench).await;
            let job = enqueue(&bench, "sleep", json!({"ms": 1_500, "every_ms": 50})).await;
            until_event(&worker, "began", job).await;
            if drains {
                let name: String =
                    bench.value("SELECT worker_id FROM tenure.workers WHERE worker_id LIKE 'q/%'").await;
                bench.tenure.drain_worker(&name).await.unwrap();
            } else {
                worker.signal(Signal::TERM);
            }
            let waits = enqueue(&bench, "echo", json!(1)).await;
            assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
            // The running job ended, and the row is gone.
            let row = bench.tenure.job(job).await.unwrap().unwrap();
            assert_eq!((row.status, row.attempt), (Status::Completed, 1));
            assert_eq!(bench.count("tenure.workers WHERE worker_id LIKE 'q/%'").await, 0);
            let next = client.ready(&bench).await;
            assert_eq!(bench.until_finished(waits).await.attempt, 1, "{}", next.log());
            next.signal(Signal::KILL);
            bench.until_count("tenure.workers WHERE worker_id LIKE 'q/%'", 0).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_run_each_of_many_jobs_once() {
    for client in clients() {
        let bench = patient().await;
        let _gateways = (gateway(&bench), gateway(&bench));
        let workers = (
            client.start(&bench, &bench.config.nats_url, 64),
            client.start(&bench, &bench.config.nats_url, 64),
        );
        let jobs = (0..3_000).map(|n| JobRequest::new("q", "echo", json!(n)));
        bench.tenure.enqueue_many(jobs).await.unwrap();
        bench.until_count("tenure.all_jobs WHERE status = 'completed' AND attempt = 1", 3_000).await;
        assert_eq!(bench.count("tenure.job_executions_all WHERE outcome <> 'completed'").await, 0);
        bench.until_stream_is_empty(Duration::from_secs(5)).await;
        drop(workers);
    }
}
