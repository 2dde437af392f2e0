//! The program's lists: jobs by filter, a job's history, workers. No text of a job may control the terminal.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Status, Worker,
    rows::{JobFilter, WorkerState},
};

use crate::harness::{Bench, Running, bench};

/// Returns the exit code, standard output and standard error.
async fn run(bench: &Bench, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = bench.program(arguments).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The ids that `jobs list` prints.
async fn listed(bench: &Bench, filters: &[&str]) -> Vec<String> {
    let arguments = [&["jobs", "list", "--output", "json"][..], filters].concat();
    let (code, out, err) = run(bench, &arguments).await;
    assert_eq!(code, Some(0), "{filters:?}: {err}");
    let jobs: Vec<Value> = serde_json::from_str(&out).unwrap();
    jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// A job that finished this long ago; its id says so, too.
async fn past(bench: &Bench, minutes: i64, worker: &str, error: &str) -> String {
    let at = chrono::Utc::now() - chrono::TimeDelta::minutes(minutes);
    let millis = u64::try_from(at.timestamp_millis()).unwrap();
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid();
    let insert = format!(
        "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id,
                worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at, last_error)
         VALUES ('{id}', 'q', 'k', '1', 'cancelled', 1, 5, 1, gen_random_uuid(), '{worker}',
                now() - {minutes} * interval '1 minute', now(), now(), now(), now(), '{error}')"
    );
    bench.execute(&insert).await;
    id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_found_by_age_worker_and_error_a_page_at_a_time() {
    let bench = bench().await;
    let year = past(&bench, 365 * 24 * 60, "old-1-aa", "100% full").await;
    let hour = past(&bench, 60, "web-1-aa", "1000 full").await;
    let minute = past(&bench, 1, "web-1-aab", "a_b").await;
    let now = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id.to_string();
    let all = [&now, &minute, &hour, &year];
    assert_eq!(listed(&bench, &[]).await, all.map(Clone::clone));

    for (filters, expected) in [
        (["--older-than", "30m"], vec![&hour, &year]),
        (["--newer-than", "30m"], vec![&now, &minute]),
        (["--older-than", "5000d"], vec![]),
        // Before the earliest time of Postgres.
        (["--newer-than", "900000000d"], all.to_vec()),
        (["--older-than", "0s"], all.to_vec()),
        // Only this worker, and only this text.
        (["--worker", "web-1-aa"], vec![&hour]),
        (["--worker", "web-1"], vec![]),
        (["--error", "0% f"], vec![&year]),
        (["--error", "_"], vec![&minute]),
        (["--error", "full"], vec![&hour, &year]),
        (["--limit", "1"], vec![&now]),
        (["--before", hour.as_str()], vec![&year]),
        (["--status", "cancelled"], vec![&minute, &hour, &year]),
    ] {
        let found = listed(&bench, &filters).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filters:?}");
    }
    let both = ["--older-than", "30m", "--newer-than", "2h", "--queue", "q"];
    assert_eq!(listed(&bench, &both).await, std::slice::from_ref(&hour));
    let filter = JobFilter::new().status(Status::Cancelled).kind("k").newer_than(Duration::from_secs(600));
    assert_eq!(bench.tenure.jobs(&filter, 9).await.unwrap()[0].id.to_string(), minute);

    // Page by page, each job once, and then a hint.
    let mut pages = Vec::new();
    let mut before: Vec<&str> = vec![];
    loop {
        let page = listed(&bench, &[&["--limit", "3"][..], &before].concat()).await;
        let Some(last) = page.last().cloned() else { break };
        pages.extend(page);
        before = vec!["--before", &*String::leak(last)];
    }
    assert_eq!(pages, all.map(Clone::clone));
    let (code, out, err) = run(&bench, &["jobs", "list", "--limit", "4"]).await;
    assert!(code == Some(0) && out.contains(&year) && err.contains(&format!("--before {year}")), "{err}");
    for (arguments, said) in [
        (["jobs", "list", "--before", year.as_str()], "leave out --before"),
        (["jobs", "list", "--queue", "other"], "leave out a filter"),
    ] {
        let (code, _, err) = run(&bench, &arguments).await;
        assert!(code == Some(0) && err.contains(said), "{arguments:?}: {err}");
    }
    for (filters, said) in [
        (["--older-than", "2h", "--newer-than", "1h"].as_slice(), "swap the two"),
        (&["--older-than", "soon"], "it must be a duration"),
        (&["--queue", "a.b"], "queue \"a.b\" is not valid"),
        (&["--kind", "a..b"], "kind \"a..b\" is not valid"),
        (&["--worker", ""], "tenure workers"),
        (&["--before", "yesterday"], "--before"),
        (&["--status", "done"], "completed"),
    ] {
        let (code, out, err) = run(&bench, &[&["jobs", "list"][..], filters].concat()).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{filters:?}: {err}");
        assert!(err.contains(said), "{filters:?}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_job_is_one_list_in_order_of_time() {
    let bench = bench().await;
    let handler = |_: Value, ctx: JobContext| async move {
        if ctx.attempt() < 2 {
            ctx.save_checkpoint(&"where to go on").await?;
            return Err(JobError::retry_after(Duration::from_millis(1_200), "\u{1b}[31mtry again"));
        }
        if ctx.token().0 < 3 { Err(JobError::permanent("no such customer")) } else { Ok(()) }
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap().id;
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    let text = id.to_string();
    let show = ["jobs", "show", &text];
    let shown = run(&bench, &show).await.1;
    // These words, in this order; the second attempt waited until it was due.
    let mut rest = shown.as_str();
    for part in [
        "enqueued",
        "in queue q, of kind k",
        "claimed",
        "attempt 1 of 5",
        "retried after",
        "\u{fffd}[31mtry again",
        "scheduled",
        "attempt 2 of 5",
        "failed after",
        "no such customer",
        "dead",
        "checkpoint",
        "bytes",
    ] {
        let Some((_, after)) = rest.split_once(part) else { panic!("no {part:?}, or not there:\n{shown}") };
        rest = after;
    }
    // A waiting job shows the worker that ran it last, too.
    worker.stop().await;
    bench.tenure.redrive(&[id]).await.unwrap();
    let last = bench.tenure.executions(id).await.unwrap().pop().unwrap().worker_id;
    assert_eq!(listed(&bench, &["--worker", &last]).await, [id.to_string()]);
    let (_, shown, _) = run(&bench, &show).await;
    assert!(shown.contains("redriven") && shown.contains("its attempts start at 1"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_listed_with_what_they_do_and_whether_they_are_there() {
    let bench = bench().await;
    let (code, out, err) = run(&bench, &["workers", "--output", "json"]).await;
    assert_eq!((code, out.trim()), (Some(0), "[]"));
    assert!(err.contains("tenure work"), "{err}");
    let handler = |_: Value, ctx: JobContext| async move {
        ctx.cancelled().await;
        Ok::<_, JobError>(())
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new().keepalive(), handler)
            .concurrency("a", 2)
            .concurrency("b", 3),
    );
    let id = bench.tenure.enqueue(JobRequest::new("a", "k", json!(1))).await.unwrap().id;
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE status = 'processing')").await;
    let workers = bench.tenure.workers().await.unwrap();
    let [row] = &workers[..] else { panic!("{workers:?}") };
    assert_eq!((row.state, row.running, row.slots), (WorkerState::Alive, 1, 5));
    assert_eq!((row.queues.join(" ").as_str(), &row.kinds), ("a b", &None));
    assert_eq!(
        (row.pid.unsigned_abs(), row.version.as_str()),
        (std::process::id(), env!("CARGO_PKG_VERSION"))
    );
    assert!(row.last_seen_s >= 0.0 && row.last_seen_at >= row.started_at, "{row:?}");

    // Workers of other states: late with a renewal, silent for long, and without an answer to probes.
    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, started_at, last_seen_at,
                    suspected_at)
             SELECT id, 'h', 1, '{q}', 1, '0', now() - interval '1 hour', now() - ago * interval '1 second', since
               FROM (VALUES ('a', 6, NULL), ('s', 30, NULL), ('v', 20, now())) AS w(id, ago, since)",
        )
        .await;
    let states: Vec<_> = bench.tenure.workers().await.unwrap();
    let state = |id: &str| states.iter().find(|row| row.worker_id == id).map(|row| row.state.as_str());
    assert_eq!([state("a"), state("s"), state("v")], [Some("alive"), Some("silent"), Some("vanishing")]);
    for command in [&["workers", "list"][..], &["workers"]] {
        let (code, table, err) = run(&bench, command).await;
        assert_eq!(code, Some(0), "{command:?}: {err}");
        for part in ["WORKER", "LAST SEEN", "HOST", "PID", "SLOTS BUSY", "vanishing", "1/5", "a, b", " ago"] {
            assert!(table.contains(part), "no {part:?} in\n{table}");
        }
    }
    bench.tenure.cancel(id).await.unwrap();
    bench.until_finished(id).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_several_jobs_ends_when_all_of_them_have() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let handler = |payload: Value, _: JobContext| async move {
        tokio::time::sleep(Duration::from_millis(payload.as_u64().unwrap_or_default())).await;
        Ok::<_, JobError>(())
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 2),
    );
    let enqueue = async |ms: u64| -> JobId {
        bench.tenure.enqueue(JobRequest::new("q", "walk", json!(ms))).await.unwrap().id
    };
    let (short, long) = (enqueue(10).await, enqueue(1_500).await);
    let (code, out, err) = run(&bench, &["jobs", "watch", &long.to_string(), &short.to_string()]).await;
    assert_eq!(code, Some(0), "{err}");
    for id in [short, long] {
        // Queue, kind and, at the end, the duration.
        let end = format!("{id} q walk completed · attempt 1");
        let line = out.lines().find(|line| line.starts_with(&end));
        assert!(line.is_some_and(|line| line.len() > end.len() && line.ends_with('s')), "{id}:\n{out}");
    }
    worker.stop().await;
    let (code, _, err) = run(&bench, &["jobs", "watch"]).await;
    assert!(code == Some(0) && err.contains("no job is queued or running"), "{err}");
}

/// A pipe, or `NO_COLOR`, gets plain text.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_coloured_but_for_a_terminal_that_wants_it() {
    let bench = bench().await;
    let handler =
        |_: Value, _: JobContext| async { Err::<(), _>(JobError::permanent("\u{1b}[31mred\u{1b}[0m")) };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let id =
        bench.tenure.enqueue(JobRequest::new("q", "k", json!("\u{1b}[32m"))).await.unwrap().id.to_string();
    bench.until_count("tenure.dead_letter_jobs", 1).await;
    let lists: [&[&str]; 12] = [
        &["jobs", "list"],
        &["jobs", "show", &id],
        &["jobs", "watch", &id],
        &["dead", "list"],
        &["dead", "count"],
        &["dead", "show", &id],
        &["queues", "list"],
        &["schedules", "list"],
        &["workers"],
        &["verify"],
        &["config"],
        &["--help"],
    ];
    for arguments in lists {
        for output in ["table", "json"] {
            let (_, out, err) = run(&bench, &[arguments, &["--output", output]].concat()).await;
            assert!(!out.is_empty(), "{arguments:?}: {err}");
            assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{arguments:?}:\n{out}{err}");
        }
    }
    // A terminal, made by `script`.
    for (arguments, code) in [("jobs list", 0), ("--help", 0), ("jobs list --status none", 2)] {
        let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_tenure"));
        let output = tokio::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .envs(bench.environment())
            .envs([("TERM", "xterm-256color"), ("NO_COLOR", "1")])
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        // Clap may still make a heading bold, which is a style and not a colour.
        let coloured = text.split("\u{1b}[").skip(1).any(|style| {
            let codes = style.split('m').next().unwrap_or_default();
            codes.split(';').any(|code| code.len() == 2 && (code.starts_with('3') || code.starts_with('9')))
        });
        assert!(!coloured, "{arguments}: {text:?}");
    }
    worker.stop().await;
}
