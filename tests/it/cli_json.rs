//! The program's JSON output has the keys that docs/cli.md names.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, Worker};

use crate::harness::{Bench, Running, bench};

const DOCS: &str = include_str!("../../docs/cli.md");

/// The keys of a shape, each with whether it is optional.
pub type Shape = BTreeMap<&'static str, bool>;

/// The shapes of docs/cli.md: "#### shape", then its table: "| `key` | (optional) … |".
pub fn shapes() -> BTreeMap<&'static str, Shape> {
    let mut shapes: BTreeMap<&str, Shape> = BTreeMap::new();
    let mut heading = None;
    for line in DOCS.lines() {
        if line.starts_with('#') {
            heading = line.strip_prefix("#### ");
        } else if let Some(shape) = heading
            && let Some((key, about)) = line.strip_prefix("| `").and_then(|rest| rest.split_once("` |"))
        {
            let known =
                shapes.entry(shape).or_default().insert(key, about.trim_start().starts_with("(optional)"));
            assert!(known.is_none(), "{shape} has {key} twice");
        }
    }
    shapes
}

/// Compares output with the docs, shape by shape.
struct Compared {
    shapes: BTreeMap<&'static str, Shape>,
    seen: BTreeSet<&'static str>,
}

impl Compared {
    fn one(&mut self, shape: &'static str, value: &Value) {
        let known = self.shapes.get(shape).unwrap_or_else(|| panic!("docs/cli.md has no {shape:?}"));
        let keys: BTreeSet<&str> = value
            .as_object()
            .unwrap_or_else(|| panic!("{shape}: {value}"))
            .keys()
            .map(String::as_str)
            .collect();
        for key in &keys {
            assert!(known.contains_key(key), "docs/cli.md does not know {key:?} of {shape}: {value}");
        }
        for (key, optional) in known {
            assert!(*optional || keys.contains(key), "{shape} has no {key:?}: {value}");
        }
        self.seen.insert(shape);
    }

    /// Compares each item; the list must not be empty, or nothing would be compared.
    fn many(&mut self, shape: &'static str, value: &Value) {
        let items = value.as_array().unwrap_or_else(|| panic!("{shape}: {value}"));
        assert!(!items.is_empty(), "no {shape} to look at");
        for item in items {
            self.one(shape, item);
        }
    }

    /// The shapes of lanes. The job is due later: its lane holds it, and no message waits for a worker.
    async fn lanes(&mut self, bench: &Bench) {
        let set = run(bench, &["queues", "lanes", "laned", "--running", "1", "--create"], 0).await;
        self.one("queue's lanes", &set);
        self.one("lane settings", &set["settings"]);
        let enqueue = ["enqueue", "laned", "k", "1", "--lane", "a", "--delay", "1h"];
        let held = run(bench, &enqueue, 0).await["id"].as_str().unwrap().to_owned();
        self.one("held", &run(bench, &["jobs", "show", &held], 0).await["held"]);
        self.one("lane", &run(bench, &["queues", "lanes", "laned", "--lane", "a", "--weight", "2"], 0).await);
        run(bench, &["jobs", "cancel", &held], 0).await;
        self.one("removed lanes", &run(bench, &["queues", "lanes", "laned", "--none"], 0).await);
    }

    /// The shapes of groups. The member is due later, and the queue has no worker.
    async fn redrives(&mut self, bench: &Bench) {
        let calm = ["dead", "redrive", "--all", "--canary", "1", "--stop-at", "100%", "--detach"];
        let calm = run(bench, &calm, 0).await;
        self.one("redrive", &calm);
        let id = calm["id"].as_str().unwrap();
        let ended =
            format!("EXISTS (SELECT FROM tenure.redrives WHERE id = '{id}' AND ended_at IS NOT NULL)");
        bench.until(&ended).await;
        self.one("redrive", &run(bench, &["dead", "follow", id], 1).await);
        self.many("redrive", &run(bench, &["dead", "redrives"], 0).await);
        self.one("stopped redrive", &run(bench, &["dead", "stop", id], 1).await);
    }

    async fn kinds(&mut self, bench: &Bench) {
        let when = ["kinds", "quarantine", "k", "--when", "failed > 50% of 50 in 5m"];
        self.one("changed kind", &run(bench, &when, 0).await);
        self.many("watched kind", &run(bench, &["kinds", "list"], 0).await);
        self.one("changed kind", &run(bench, &["kinds", "release", "k"], 1).await);
        self.one("changed kind", &run(bench, &["kinds", "quarantine", "k", "--off"], 0).await);
    }

    async fn groups(&mut self, bench: &Bench) {
        let job = || JobRequest::new("grouped", "k", json!(1));
        let member = job().delay(std::time::Duration::from_secs(3_600));
        let follower = bench.tenure.group([member]).then(job()).await.unwrap().id.to_string();
        let shown = run(bench, &["jobs", "show", &follower], 0).await;
        self.many("wait", &shown["held"]["waits"]);
        let group = run(bench, &["jobs", "graph", &follower], 0).await;
        self.one("group", &group);
        self.many("job of a group", &group["jobs"]);
        self.many("edge", &group["edges"]);
        let signal = ["jobs", "signal", &follower, "approved", "true"];
        self.one("answer to a signal", &run(bench, &signal, 0).await);
        run(bench, &["jobs", "cancel", "--group", &follower], 0).await;
    }

    fn shown(&mut self, value: &Value) {
        self.one("shown job", value);
        self.one("job", &value["job"]);
        self.many("execution", &value["executions"]);
        self.many("event", &value["timeline"]);
        let recoveries = value["recoveries"].as_array().unwrap();
        assert!(recoveries.iter().filter_map(|row| row["silence_s"].as_f64()).all(|s| s >= 0.0), "{value}");
    }
}

/// The program's JSON; of several lines, the first.
async fn run(bench: &Bench, arguments: &[&str], code: i32) -> Value {
    let output = bench.program(arguments).args(["--output", "json"]).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}{said}");
    let first = serde_json::Deserializer::from_str(&text).into_iter().next();
    first.unwrap_or_else(|| panic!("{arguments:?} printed nothing")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn json_output_has_the_keys_that_the_docs_name() {
    let bench = bench().await;
    let mut compared = Compared { shapes: shapes(), seen: BTreeSet::new() };
    compared.one("migrated", &run(&bench, &["migrate", "--queue", "q"], 0).await);
    let handler = |payload: Value, ctx: JobContext| async move {
        if payload == json!("dies") {
            return Err(JobError::permanent("no such customer"));
        }
        ctx.step("legs", async || Ok(2)).await?;
        ctx.progress("walking", 50.0, "a step").await?;
        if payload == json!("waits") {
            ctx.cancelled().await;
        }
        Ok(())
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 3),
    );

    let done = run(&bench, &["enqueue", "q", "k", "1", "--wait"], 0).await;
    compared.one("job", &done);
    let done = done["id"].as_str().unwrap().to_owned();
    let dead = run(&bench, &["enqueue", "q", "k", "\"dies\""], 0).await;
    compared.one("enqueued", &dead);
    let dead = dead["id"].as_str().unwrap().to_owned();
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    compared.one("job", &run(&bench, &["jobs", "watch", &done], 0).await);
    compared.one("end", &run(&bench, &["jobs", "follow", "--once", "--since", "beginning"], 0).await);
    compared.one("queue events", &run(&bench, &["queues", "events", "q", "progress"], 0).await);
    compared.many("job", &run(&bench, &["jobs", "list"], 0).await);
    compared.shown(&run(&bench, &["jobs", "show", &done], 0).await);
    compared.shown(&run(&bench, &["jobs", "show", &dead], 0).await);
    compared.many("worker", &run(&bench, &["workers", "list"], 0).await);

    compared.many("dead letter", &run(&bench, &["dead", "list"], 0).await);
    compared.one("dead letter", &run(&bench, &["dead", "show", &dead], 0).await);
    compared.many("dead count", &run(&bench, &["dead", "count"], 0).await);
    compared.many("dead group", &run(&bench, &["dead", "groups"], 0).await);
    compared.one("answer", &run(&bench, &["dead", "redrive", &dead], 0).await);
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    let again = run(&bench, &["jobs", "show", &dead], 0).await;
    let events: Vec<_> = again["timeline"].as_array().unwrap().iter().map(|e| &e["event"]).collect();
    assert_eq!(
        events,
        ["enqueued", "claimed", "ended", "dead", "redriven", "claimed", "ended", "dead"],
        "{again}"
    );
    compared.one("redriven", &run(&bench, &["dead", "redrive", "--kind", "other"], 0).await);
    compared.redrives(&bench).await;
    compared.kinds(&bench).await;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    compared.one("dry run", &run(&bench, &["dead", "purge", "--older-than", "0s", "--dry-run"], 0).await);
    compared.one("purged", &run(&bench, &["dead", "purge", "--older-than", "0s"], 0).await);

    // A running job, one that has ended, and one that does not exist.
    let waits = bench.tenure.enqueue(JobRequest::new("q", "k", json!("waits"))).await.unwrap().id;
    bench.until(&format!("EXISTS (SELECT FROM tenure.jobs WHERE id = '{waits}' AND progress > 0)")).await;
    let asked = run(&bench, &["jobs", "cancel", &waits.to_string()], 0).await;
    assert_eq!(asked["result"], "asked");
    compared.one("answer", &asked);
    compared.one("answer", &run(&bench, &["jobs", "cancel", &done], 1).await);
    compared.one("answer", &run(&bench, &["jobs", "retry", &uuid::Uuid::now_v7().to_string()], 1).await);
    compared.one("cancelled", &run(&bench, &["jobs", "cancel", "--queue", "q"], 0).await);

    compared.many("queue", &run(&bench, &["queues", "list"], 0).await);
    compared.one("paused queue", &run(&bench, &["queues", "pause", "p", "--create"], 0).await);
    compared.one("resumed queue", &run(&bench, &["queues", "resume", "p"], 0).await);
    compared.lanes(&bench).await;
    compared.many("act", &run(&bench, &["audit"], 0).await);
    compared.groups(&bench).await;
    compared.one("limited queue", &run(&bench, &["queues", "limit", "p", "--max-running", "3"], 0).await);
    let add = ["schedules", "add", "s", "0 3 * * *", "q", "k", "1"];
    compared.one("scheduled", &run(&bench, &add, 0).await);
    compared.many("schedule", &run(&bench, &["schedules", "list"], 0).await);
    compared.one("paused schedule", &run(&bench, &["schedules", "pause", "s"], 0).await);
    compared.one("enqueued", &run(&bench, &["schedules", "run", "s"], 0).await);
    compared.one("enqueued", &run(&bench, &["jobs", "again", &done], 0).await);
    compared.one("resumed schedule", &run(&bench, &["schedules", "resume", "s"], 0).await);
    compared.one("removed schedule", &run(&bench, &["schedules", "remove", "s"], 0).await);
    compared.many("rule", &run(&bench, &["verify"], 0).await);
    // The tests' Postgres has fsync off, which is a warning; nothing is wrong while the worker runs.
    compared.many("check", &run(&bench, &["doctor"], 0).await);
    compared.many("setting", &run(&bench, &["config"], 0).await);
    let runs_on = bench.tenure.workers().await.unwrap().pop().unwrap().worker_id;
    compared.one("drained worker", &run(&bench, &["workers", "drain", &runs_on], 0).await);
    worker.ended().await;

    let insert = format!("INSERT INTO tenure.job_logs VALUES ('{done}', 1, 'said', false)");
    bench.execute(&insert).await;
    compared.many("log", &run(&bench, &["jobs", "log", &done], 0).await);
    // A recovery event as the scanner writes it.
    let insert = format!(
        "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, silence, reason, recovered_by)
         VALUES ('reset', 'scanner', '{done}', 1, 'w', interval '-1 second', 'silent', 'v')"
    );
    bench.execute(&insert).await;
    let recovered = run(&bench, &["jobs", "show", &done], 0).await;
    compared.many("recovery", &recovered["recoveries"]);
    compared.many("step", &recovered["steps"]);
    compared.shown(&recovered);

    let all: BTreeSet<_> = compared.shapes.keys().copied().collect();
    assert_eq!(all, compared.seen, "docs/cli.md has shapes that nothing was compared with");
}

/// The manual pages come from the command line itself, so that a new command must appear in the docs.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_is_in_the_docs_and_has_a_page_and_a_completion() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    // No server, and no settings.
    let program = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).env_clear().current_dir(folder.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    program(&["man", "--dir", pages.to_str().unwrap()]);
    let names: BTreeSet<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".1").to_owned())
        .collect();
    assert!(names.contains("tenure-jobs-list") && names.contains("tenure"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("guard") || name.contains("bench-worker")), "{names:?}");
    for name in &names {
        let is_group = names.iter().any(|other| other.starts_with(&format!("{name}-")));
        let command = format!("| `{}` |", name.replace('-', " "));
        assert!(is_group || DOCS.contains(&command), "docs/cli.md has no line for {command}");
    }
    let page = program(&["man"]);
    assert!(page.contains(".TH tenure 1") && page.contains("tenure\\-jobs(1)"), "{page}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = program(&["completions", shell]);
        assert!(script.contains("schedules") && script.contains("older-than"), "{shell}: {script}");
        assert!(!script.contains("exec-guard"), "{shell} offers what is not for people");
    }
}
