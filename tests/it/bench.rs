//! `tenure bench`: each work is measured, and nothing stays behind.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

use crate::harness::{Bench, bench};

/// Limits the benches that run at a time: each takes what it gets of the processor, and the tests beside it wait.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// The measurements of a bench.
struct Report(Value);

impl Report {
    /// Runs a bench that succeeds.
    async fn of(mut command: tokio::process::Command) -> Self {
        let output = command.args(["--output", "json"]).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn find(&self, work: &str) -> Option<f64> {
        let mut figures = self.0["figures"].as_array().unwrap().iter();
        figures.find(|figure| figure["work"] == work).map(|figure| figure["median"].as_f64().unwrap())
    }

    fn median(&self, work: &str) -> f64 {
        self.find(work).unwrap_or_else(|| panic!("no {work} in {}", self.0))
    }

    fn all_are_positive(&self, works: &[&str]) {
        for work in works {
            assert!(self.median(work) > 0.0, "{work}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bench_measures_the_users_own_servers_and_removes_what_it_made() {
    let _one_of_few = AT_ONCE.acquire().await.unwrap();
    let bench = bench().await;
    bench.tenure.enqueue(tenure::JobRequest::new("users", "own", Value::Null)).await.unwrap();
    let works = ["one-by-one", "tasks", "batches", "drain", "mixed", "recovery"];
    let mut command =
        bench.program(&["bench", "--on-servers", "--jobs", "1000", "--slots", "50", "--runs", "1"]);
    command.args(works);
    let report = Report::of(command).await;
    report.all_are_positive(&[
        "raw INSERT, one by one",
        "enqueue, one by one",
        "enqueue, one by one, from 32 tasks",
        "enqueue, batches of 1,000, published and confirmed",
        "drain, one worker",
        "drain, two workers",
        "enqueue from 32 tasks while one worker drains",
    ]);
    // NATS was reachable: each enqueue has published its own row.
    assert!(report.median("drain, one worker: published by the relay") < 0.5);
    let seconds = report.median("from SIGKILL to running elsewhere");
    assert!(report.median("of these, from the reset on") > 0.0);
    assert!((0.1..60.0).contains(&seconds), "{seconds} s");
    assert_eq!(report.0["servers"], "yours");
    only_the_users_own_is_left(&bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bench_measures_how_soon_a_job_begins_by_each_way_to_enqueue_it() {
    let _one_of_few = AT_ONCE.acquire().await.unwrap();
    let bench = bench().await;
    bench.tenure.enqueue(tenure::JobRequest::new("users", "own", Value::Null)).await.unwrap();
    let arguments =
        ["bench", "pickup", "relay", "--on-servers", "--jobs", "1000", "--slots", "50", "--runs", "1"];
    let report = Report::of(bench.program(&arguments)).await;
    report.all_are_positive(&[
        "pick-up when idle, p50",
        "pick-up at half load, p99",
        "pick-up, own transaction, p50",
        "pick-up, enqueued by SQL, p50",
        "pick-up, delay of 1 s, p50",
        "pick-up, retry that falls due, p50",
        "pick-up, tick of a schedule, p50",
        "due at one moment, not run: published",
        "due at one moment: published",
        "due at one moment: run",
        "due at one moment: pick-up of others meanwhile, p99",
    ]);
    assert!(report.median("pick-up when idle, p50") < 5_000.0, "in milliseconds");
    for way in ["delay of 1 s", "retry that falls due", "tick of a schedule", "fresh process, from its end"] {
        let p99 = report.median(&format!("pick-up, {way}, p99"));
        assert!((0.0..30_000.0).contains(&p99), "{way}: {p99} ms");
    }
    assert_eq!(
        report.find("stream deleted: published again from then on"),
        None,
        "the user's stream is not ours"
    );
    only_the_users_own_is_left(&bench).await;
}

async fn only_the_users_own_is_left(bench: &Bench) {
    assert_eq!(bench.text("SELECT queue, kind FROM tenure.all_jobs").await, "(users,own)");
    assert_eq!(bench.count("tenure.workers").await + bench.count("tenure.schedules").await, 0);
    nothing_is_left(bench, 1).await;
}

async fn nothing_is_left(bench: &Bench, messages: u64) {
    assert_eq!(bench.count("pg_tables WHERE tablename LIKE 'bench_raw%'").await, 0);
    assert_eq!(bench.messages().await, messages);
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    assert_eq!(stream.cached_info().state.consumer_count, 0);
}

/// Interrupted in the middle of each kind of work, the bench removes that work's rows, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_bench_that_is_interrupted_removes_what_it_made() {
    let _one_of_few = AT_ONCE.acquire().await.unwrap();
    let bench = bench().await;
    let under_way = [
        ("one-by-one", "EXISTS (SELECT FROM pg_tables WHERE tablename LIKE 'bench_raw%')"),
        ("mixed", "(SELECT count(*) FROM tenure.job_history) > 100"),
        ("pickup", "EXISTS (SELECT FROM tenure.schedules)"),
        ("relay", "(SELECT count(*) FROM tenure.jobs WHERE scheduled_at > now()) > 1000"),
    ];
    for (work, is_under_way) in under_way {
        // `pickup` measures plain enqueues first.
        let jobs = if work == "pickup" { "1000" } else { "200000" };
        let arguments = ["bench", work, "--on-servers", "--jobs", jobs, "--slots", "50"];
        let mut command = bench.program(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        // `pickup` has measured two other ways by then, which takes a busy machine minutes.
        tokio::select! {
            () = bench.until_within(is_under_way, Duration::from_mins(6)) => {}
            status = child.wait() => panic!("{work} ended by itself: {status:?}"),
        }
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let output = timeout(Duration::from_secs(30), child.wait_with_output()).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{work}: {errors}");
        assert!(errors.contains("the bench has removed what it created"), "{work}: {errors}");
        assert_eq!(bench.text("SELECT queue, kind FROM tenure.all_jobs").await, "", "{work}");
        assert_eq!(bench.count("tenure.workers").await + bench.count("tenure.schedules").await, 0, "{work}");
        nothing_is_left(&bench, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bench_starts_servers_of_its_own_and_prints_a_table() {
    let _one_of_few = AT_ONCE.acquire().await.unwrap();
    let bench = bench().await;
    let works = ["batches", "memory", "progress", "age", "--finished", "10000"];
    let mut command = bench.program(&["bench", "--jobs", "1000", "--runs", "1"]);
    command.args(works);
    // The bench neither touches nor needs the user's servers.
    let output = command.env_remove("DATABASE_URL").env_remove("NATS_URL").output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "a private pair on this machine",
        "published and confirmed",
        "jobs/s",
        "postgres ",
        "in flight",
        "HOT updates",
        "old database: reconcile",
        "old and full database: scan",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert_eq!(bench.count("tenure.all_jobs").await, 0);
}

/// Private servers, whose stream the bench deletes; fleets, whose work both servers count.
#[tokio::test(flavor = "multi_thread")]
async fn the_bench_deletes_its_own_stream_and_counts_what_idle_workers_do() {
    let _one_of_few = AT_ONCE.acquire().await.unwrap();
    let bench = bench().await;
    let mut command =
        bench.program(&["bench", "relay", "idle", "grow", "--quick", "--jobs", "1000", "--slots", "50"]);
    command.env_remove("DATABASE_URL").env_remove("NATS_URL");
    let report = Report::of(command).await;
    report.all_are_positive(&[
        "stream deleted: until the first is published again",
        "stream deleted: published again from then on",
        "1 idle worker: statements (xact_commit)",
        "5 idle worker processes: statements (xact_commit)",
        "worker of one queue: pick-up, p50",
        "worker of 50 queues: until it takes jobs of all",
        "worker of 50 queues: pick-up in any of them, p50",
    ]);
    // The relay may be faster than the first job that comes meanwhile: the figure is 0 then.
    assert!(report.find("stream deleted: pick-up of others meanwhile, p50").is_some());
    for part in ["Postgres", "NATS", "each worker", "NATS messages, in and out"] {
        assert!(report.find(&format!("5 idle worker processes: {part}")).is_some(), "{part}");
    }
    for (who, how) in [("2 workers of one queue", "idle"), ("a worker of 2 queues", "100 jobs/s")] {
        // In a second, Postgres may not have reported a statement.
        for part in ["statements", "Postgres", "NATS", "all workers", "NATS messages, in and out"] {
            assert!(report.find(&format!("{who}, {how}: {part}")).is_some(), "{who}, {how}: {part}");
        }
        for part in ["connections", "memory of a worker"] {
            assert!(report.median(&format!("{who}, {how}: {part}")) > 0.0, "{who}, {how}: {part}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_with_impossible_options_is_refused() {
    let bench = bench().await;
    for (arguments, says) in [
        (&["bench", "--jobs", "10"][..], "take 1000 or more"),
        (&["bench", "age", "--on-servers"], "run them without --on-servers"),
        (&["bench", "grow", "--on-servers"], "run them without --on-servers"),
        (&["bench", "speed"], "possible values: one-by-one"),
        (&["bench", "--runs", "0"], "a number of at least 1"),
        (&["bench", "--slots", "1000000"], "1 to 100000"),
    ] {
        let output = bench.program(arguments).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}
