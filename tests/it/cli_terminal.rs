//! What a person reads: lists on narrow screens, help, the messages of wrong usage, and exit codes.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Worker, queues::QueueLimits, schedules::Schedule,
};
use tokio::io::AsyncReadExt;

use crate::harness::{Bench, Running, bench, bench_with};

/// Returns the exit code, standard output and standard error, on a screen of this width or, without one, in a pipe.
async fn run(bench: &Bench, columns: Option<u16>, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = bench.program(arguments);
    command.env_remove("COLUMNS");
    if let Some(columns) = columns {
        // A real terminal, made by `script`.
        let quoted = format!("{} '{}'", env!("CARGO_BIN_EXE_tenure"), arguments.join("' '"));
        command = tokio::process::Command::new("script");
        command.args(["-qec", &quoted, "/dev/null"]).envs(bench.environment()).stdin(Stdio::null());
        command.env("TERM", "dumb").env("COLUMNS", columns.to_string());
    }
    let output = command.output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn code(bench: &Bench, arguments: &[&str]) -> Option<i32> {
    run(bench, None, arguments).await.0
}

fn job(queue: &str, kind: &str) -> JobRequest {
    JobRequest::new(queue, kind, json!(1))
}

/// A worker of this queue. Its jobs do as their kind says.
fn worker(bench: &Bench, queue: &str) -> Running {
    let handler = |_: Value, ctx: JobContext| async move {
        match ctx.kind() {
            "dies" => Err(JobError::permanent("no such customer\n  at line 1\n  at line 2")),
            "retries" => Err(JobError::retry_after(Duration::from_secs(3_600), "not\nyet")),
            "waits" => {
                ctx.progress("walking", 30.0, "a long way through the woods and home again").await?;
                ctx.cancelled().await;
                Ok(())
            }
            _ => Ok(()),
        }
    };
    let options = KindOptions::new().keepalive();
    Running::start(Worker::builder(&bench.tenure).handle_any(options, handler).concurrency(queue, 2))
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_fits_a_narrow_screen_and_goes_whole_into_a_pipe() {
    let bench = bench().await;
    let worker = worker(&bench, "mail");
    let dead = bench.tenure.enqueue(job("mail", "dies")).await.unwrap().id.to_string();
    let waits = bench.tenure.enqueue(job("mail", "waits")).await.unwrap().id;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    bench.until_count("tenure.jobs WHERE progress > 0", 1).await;
    bench.tenure.pause_queue("bulk").await.unwrap();
    bench.tenure.limit_queue("mail", QueueLimits::new().max_running(7)).await.unwrap();
    let nightly = Schedule::new("nightly", "0 3 * * *", job("mail", "report.nightly"));
    bench.tenure.put_schedule(nightly).await.unwrap();
    let runs_on = bench.tenure.workers().await.unwrap().pop().unwrap().worker_id;

    // Each list with what each of its items must show, at any width.
    let lists: [(&[&str], &[&str]); 9] = [
        (&["jobs", "list"], &[&dead, "failed", "processing", "dies", "mail"]),
        (&["jobs", "show", &dead], &[&dead, "no such customer", "at line 2"]),
        (&["dead", "list"], &[&dead, "permanent"]),
        (&["dead", "count"], &["permanent", "dies"]),
        (&["dead", "show", &dead], &[&dead, "no such customer", "at line 2"]),
        (&["queues", "list"], &["mail", "active", "bulk", "paused"]),
        (&["schedules", "list"], &["nightly", "0 3 * * *"]),
        (&["workers", "list"], &[&runs_on, "alive"]),
        (&["config"], &["TENURE_STALE_AFTER", "environment"]),
    ];
    for (arguments, shown) in lists {
        for width in [60, 80, 120, 200] {
            let (code, out, err) = run(&bench, Some(width), arguments).await;
            assert_eq!(code, Some(0), "{arguments:?}: {err}");
            assert!(widest(&out) <= width.into(), "{arguments:?} at {width}:\n{out}");
            for part in shown {
                assert!(out.contains(part), "no {part:?} in {arguments:?} at {width}:\n{out}");
            }
        }
        let (_, out, _) = run(&bench, None, arguments).await;
        for part in shown {
            assert!(out.contains(part), "no {part:?} in {arguments:?}:\n{out}");
        }
    }
    // The header and one line per item: an error of several lines breaks no row.
    let (_, out, _) = run(&bench, None, &["jobs", "list"]).await;
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(out.contains("no such customer…") && !out.contains("at line 1"), "{out}");
    let (_, out, _) = run(&bench, None, &["dead", "list"]).await;
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.contains("no such customer…"), "{out}");
    let header = out.lines().next().unwrap();
    for column in ["ID", "QUEUE", "KIND", "CATEGORY", "ATTEMPT", "DIED", "LAST ERROR"] {
        assert!(header.contains(column), "no {column} in {header}");
    }
    // In a pipe COLUMNS cuts nothing.
    let piped = bench.program(&["jobs", "list"]).env("COLUMNS", "60").output().await.unwrap();
    let (_, whole, _) = run(&bench, None, &["jobs", "list"]).await;
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), whole);
    // Too narrow for the columns that matter: a record for each item.
    let (_, out, _) = run(&bench, Some(60), &["jobs", "list"]).await;
    assert!(out.contains(&format!("id:          {dead}\n queue:       mail\n")), "{out}");
    bench.tenure.cancel(waits).await.unwrap();
    bench.until_finished(waits).await;
    worker.stop().await;
}

/// A real terminal of 60 columns, made by `script`.
#[tokio::test(flavor = "multi_thread")]
async fn watching_on_a_narrow_terminal_keeps_the_text() {
    let bench = bench().await;
    let worker = worker(&bench, "mail");
    let id = bench.tenure.enqueue(job("mail", "waits")).await.unwrap().id;
    bench.until_count("tenure.jobs WHERE progress > 0", 1).await;
    let command = format!("stty cols 60 rows 24; {} jobs watch {id}", env!("CARGO_BIN_EXE_tenure"));
    let mut script = tokio::process::Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).envs(bench.environment()).env("TERM", "xterm");
    script.env_remove("COLUMNS").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut script = script.spawn().unwrap();
    let (mut out, mut text) = (script.stdout.take().unwrap(), String::new());
    let drawn = tokio::time::timeout(Duration::from_secs(30), async {
        let (mut buffer, mut is_cancelled) = ([0; 4096], false);
        loop {
            let read = out.read(&mut buffer).await.unwrap();
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
            if read == 0 {
                break;
            }
            if !is_cancelled && text.contains("home again") {
                bench.tenure.cancel(id).await.unwrap();
                is_cancelled = true;
            }
        }
    })
    .await;
    assert!(drawn.is_ok(), "{text}");
    for part in ["█", "30 %", "processing · attempt 1", "walking", "the woods", "home again", "completed"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_shows_the_wrong_first_and_only_the_problems_on_demand() {
    let bench = bench().await;
    // No worker, and no stream.
    bench.tenure.enqueue(job("mail", "k")).await.unwrap();
    let (code, out, _) = run(&bench, None, &["doctor"]).await;
    assert_eq!(code, Some(1), "{out}");
    let words = ["wrong", "warning", "ok"];
    let states: Vec<_> = out
        .lines()
        .filter_map(|line| words.iter().position(|word| line.trim_start().starts_with(&format!("{word} "))))
        .collect();
    assert!(states.is_sorted() && states.first() == Some(&0) && states.last() == Some(&2), "{out}");
    let (code, problems, _) = run(&bench, None, &["doctor", "--problems"]).await;
    assert_eq!(code, Some(1), "{problems}");
    assert!(problems.contains("stream") && problems.contains("durability"), "{problems}");
    assert!(!problems.contains("timers") && !problems.contains("skipped:"), "{problems}");
    let (code, json, _) = run(&bench, None, &["doctor", "--problems", "--output", "json"]).await;
    let checks: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(code, Some(1));
    assert!(checks.iter().all(|check| check["state"] == "wrong" || check["state"] == "warning"), "{json}");

    let away = ["--database-url", "postgres://u:p@127.0.0.1:1/x", "doctor"];
    let (code, out, _) = run(&bench, Some(60), &away).await;
    assert!(widest(&out) <= 60 && code == Some(1), "{out}");
    for part in ["prepared_transactions", "replication_slots", "(Postgres", "refused"] {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
}

/// The tests' own server waits for no disk, which is a warning.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_that_there_are_no_problems() {
    let bench = bench_with(|config| config.timing = tenure::Timing::DEFAULT).await;
    let folder = bench.config.runtime_dir.with_extension("durable");
    let postgres = tokio::task::spawn_blocking(move || tenure::dev::Postgres::start(&folder, true).unwrap());
    let postgres = postgres.await.unwrap();
    let mut config = bench.config.clone();
    config.database_url = postgres.url();
    let tenure = tenure::Tenure::connect(&config).await.unwrap();
    tenure.setup(&["mail".into()]).await.unwrap();
    let worker = Running::start(
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("mail", 1),
    );
    let mut said = String::new();
    for _ in 0..100 {
        let mut doctor = bench.program(&["doctor", "--problems"]);
        let output = doctor.env("DATABASE_URL", postgres.url()).output().await.unwrap();
        said = String::from_utf8(output.stdout).unwrap();
        if said.starts_with("no problems: ") {
            break;
        }
        // The worker has not scanned yet.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(said.starts_with("no problems: ") && said.contains(" ok"), "{said}");
    worker.stop().await;
    tenure.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn help_and_errors_name_the_accepted_values() {
    let bench = bench().await;
    for (arguments, parts) in [
        (
            &["jobs", "list", "--help"] as &[&str],
            &["queued", "scheduled", "retrying", "processing", "failed"] as &[&str],
        ),
        (&["dead", "list", "--help"], &["exhausted", "permanent", "too_large"]),
        (&["schedules", "add", "--help"], &["skip", "once", "all", "1 to 1000"]),
        (&["enqueue", "--help"], &["1 to 1000", "2030-01-31T12:00:00Z", "<KEY>", "<DURATION>"]),
        (&["work", "--help"], &["retry", "dead-letter", "<COMMAND>", "1 to 100000"]),
        (&["--help"], &["Exit codes: 0 done; 1 ", "table", "json"]),
    ] {
        let (code, out, err) = run(&bench, None, arguments).await;
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        for part in parts {
            assert!(out.contains(part), "no {part:?} in {arguments:?}:\n{out}");
        }
    }
    for (arguments, part) in [
        (
            "jobs list --status done",
            "[possible values: queued, scheduled, retrying, held, processing, completed",
        ),
        ("jobs list --limit 0", "a number of at least 1"),
        ("enqueue q k 1 --max-attempts 0", "a number from 1 to 1000"),
        ("enqueue q k 1 --max-attempts 1001", "a number from 1 to 1000"),
        ("enqueue q k 1 --run-at tomorrow", "such as 2030-01-31T12:00:00Z"),
        ("enqueue q k 1 --run-at 2h", "belongs to --delay"),
        ("work q --exec true --concurrency 0", "a number from 1 to 100000"),
        ("queues limit q --max-running many", "a number from 1 to 10000, or none"),
        ("dead list --category gone", "[possible values: exhausted, permanent,"),
        ("schedules add s cron q k 1 --missed never", "[possible values: skip, once, all]"),
        ("serve --listen 9090", "such as 127.0.0.1:9090"),
        ("jobs list --output yaml", "[possible values: table, json]"),
    ] {
        let (code, out, err) = run(&bench, None, &arguments.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments}: {err}");
        assert!(err.contains(part), "no {part:?} after {arguments}:\n{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_those_of_the_docs() {
    let bench = bench().await;
    let worker = worker(&bench, "mail");
    let enqueue = async |kind: &str| bench.tenure.enqueue(job("mail", kind)).await.unwrap().id;
    let (completed, failed, retries, running) =
        (enqueue("k").await, enqueue("dies").await, enqueue("retries").await, enqueue("waits").await);
    let other = bench.tenure.enqueue(job("other", "k").delay(Duration::from_secs(900))).await.unwrap().id;
    let cancelled = bench.tenure.enqueue(job("other", "k")).await.unwrap().id;
    bench.tenure.cancel(cancelled).await.unwrap();
    bench.until_finished(completed).await;
    bench.until_finished(failed).await;
    bench.until_count("tenure.jobs WHERE progress > 0", 1).await;
    bench
        .until(&format!("(SELECT attempt = 1 AND status = 'queued' FROM tenure.jobs WHERE id = '{retries}')"))
        .await;

    // The states of a queued job that waits for its time.
    for (word, expected) in [
        ("retrying", &[retries] as &[JobId]),
        ("scheduled", &[other]),
        ("queued", &[other, retries]),
        ("processing", &[running]),
    ] {
        let (_, out, _) = run(&bench, None, &["jobs", "list", "--status", word, "--output", "json"]).await;
        let jobs: Vec<Value> = serde_json::from_str(&out).unwrap();
        let ids: Vec<_> = jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids, expected.iter().map(ToString::to_string).collect::<Vec<_>>(), "{word}");
    }

    let [completed, failed, running, cancelled] =
        [completed, failed, running, cancelled].map(|id| id.to_string());
    let absent = uuid::Uuid::now_v7().to_string();
    // In this order: a retry of the failed job queues it again.
    for (command, id, expected) in [
        (["jobs", "cancel"], &completed, 1),
        (["jobs", "cancel"], &failed, 1),
        (["jobs", "cancel"], &cancelled, 0),
        (["jobs", "cancel"], &absent, 1),
        (["jobs", "retry"], &completed, 1),
        (["jobs", "retry"], &cancelled, 1),
        (["jobs", "retry"], &absent, 1),
        (["jobs", "retry"], &running, 0),
        (["dead", "redrive"], &completed, 1),
        (["dead", "redrive"], &running, 1),
        (["dead", "redrive"], &absent, 1),
        (["jobs", "show"], &absent, 1),
        (["dead", "show"], &absent, 1),
        (["jobs", "retry"], &failed, 0),
    ] {
        let [a, b] = command;
        assert_eq!(code(&bench, &[a, b, id]).await, Some(expected), "{command:?} {id}");
    }
    // The worst answer counts.
    assert_eq!(code(&bench, &["jobs", "cancel", &completed, &running]).await, Some(1));
    bench.until(&format!("EXISTS (SELECT FROM tenure.job_history WHERE id = '{running}')")).await;
    assert_eq!(code(&bench, &["jobs", "cancel", "--queue", "empty"]).await, Some(0));
    assert_eq!(code(&bench, &["jobs", "list", "--queue", "empty"]).await, Some(0));
    worker.stop().await;
    // A selection, and all.
    for (kind, queue) in [("a", "one"), ("b", "one"), ("b", "two")] {
        bench.tenure.enqueue(job(queue, kind).delay(Duration::from_secs(600))).await.unwrap();
    }
    let live = "tenure.jobs WHERE queue IN ('one', 'two')";
    for (selection, left) in [
        (vec!["--status", "retrying"], 3),
        (vec!["--error", "no such text"], 3),
        (vec!["--older-than", "1h"], 3),
        (vec!["--all", "--dry-run"], 3),
        (vec!["--kind", "b", "--status", "scheduled", "--queue", "two"], 2),
        (vec!["--kind", "b"], 1),
        (vec!["--all"], 0),
    ] {
        assert_eq!(code(&bench, &[&["jobs", "cancel"], &selection[..]].concat()).await, Some(0));
        assert_eq!(bench.count(live).await, left, "{selection:?}");
    }
    for both in [["--kind", "b"], ["--unique-key", "b"]] {
        assert_eq!(
            code(&bench, &[&["jobs", "cancel", "--all"], &both[..]].concat()).await,
            Some(2),
            "{both:?}"
        );
    }
    assert_eq!(code(&bench, &["jobs", "cancel"]).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_queue_is_neither_paused_nor_created_and_the_others_are_paused() {
    let bench = bench().await;
    bench.tenure.enqueue(job("mail", "k")).await.unwrap();
    let (code_of_typo, out, err) = run(&bench, None, &["queues", "pause", "mial", "mail", "liam"]).await;
    assert_eq!(
        (code_of_typo, out.as_str()),
        (Some(1), "mail is paused; its running jobs continue\n"),
        "{err}"
    );
    for part in ["queue \"mial\" is unknown", "queue \"liam\" is unknown", "tenure queues list", "--create"] {
        assert!(err.contains(part), "no {part:?} in {err}");
    }
    assert_eq!(bench.count("tenure.queues").await, 1, "only the known one is paused");
    let limit = ["queues", "limit", "mial", "--max-running", "3"];
    let (limited, _, err) = run(&bench, None, &limit).await;
    assert!(limited == Some(1) && err.contains("\"mial\" is unknown") && err.contains("--create"), "{err}");
    assert_eq!(bench.count("tenure.queues").await, 1);
    assert_eq!(code(&bench, &["queues", "limit", "soon", "--max-queued", "9", "--create"]).await, Some(0));
    assert_eq!(bench.count("tenure.queues WHERE queue = 'soon' AND max_queued = 9").await, 1);
    let (resumed, _, err) = run(&bench, None, &["queues", "resume", "mial"]).await;
    assert!(resumed == Some(1) && err.contains("\"mial\" is unknown"), "{err}");
    let (invalid, out, _) = run(&bench, None, &["queues", "resume", "mail", "a.b"]).await;
    assert_eq!((invalid, out.as_str()), (Some(2), ""), "an invalid name: no queue is resumed");

    // Before the first deploy, and again after it.
    for _ in 0..2 {
        assert_eq!(code(&bench, &["queues", "pause", "new", "--create"]).await, Some(0));
    }
    let (resumed, out, err) = run(&bench, None, &["queues", "resume", "mial", "new"]).await;
    assert!(resumed == Some(1) && out.contains("new is resumed") && err.contains("\"mial\""), "{out}{err}");
    let (paused, out, _) = run(&bench, None, &["queues", "pause", "mail"]).await;
    assert!(paused == Some(0) && out.contains("mail was already paused"), "{out}");
    // Known by its consumer, by a message alone, and by a schedule.
    bench.tenure.setup(&["served".into()]).await.unwrap();
    bench.publish("sent.k", "1").await;
    bench.tenure.put_schedule(Schedule::new("s", "0 3 * * *", job("planned", "k"))).await.unwrap();
    for queue in ["served", "sent", "planned"] {
        let (code, _, err) = run(&bench, None, &["queues", "pause", queue]).await;
        assert_eq!(code, Some(0), "{queue}: {err}");
    }
    // Without NATS, Postgres answers alone, and the message says so.
    for (queue, expected) in [("mail", 0), ("mial", 1)] {
        let mut pause = bench.program(&["queues", "pause", queue]);
        let output = pause.env("NATS_URL", "nats://127.0.0.1:1").output().await.unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{queue}: {err}");
        assert_eq!(err.contains("NATS does not say"), expected == 1, "{queue}: {err}");
    }
}
