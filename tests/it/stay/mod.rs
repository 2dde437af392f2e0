//! `tenure work --exec --stay`: a process that runs many jobs.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    io::ioctl_fionread,
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};
use tenure::{JobId, JobRequest, Status, rows::JobRow};

use crate::{
    exec::until_dead,
    harness::{Bench, Child, bench_with, until_file},
};

/// A process that starts slowly is silent: its job is not reset.
async fn patient() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(90);
        config.timing.shutdown_grace = Duration::from_millis(50);
    })
    .await
}

fn folder(bench: &Bench) -> PathBuf {
    let folder = bench.config.runtime_dir.join("stay");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn work(bench: &Bench, arguments: &[&str]) -> Child {
    let process = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/it/stay/process.py");
    let command = format!("exec python3 {} {}", process.display(), folder(bench).display());
    let all = [&["work", "q", "--exec", &command, "--stay"], arguments].concat();
    Child::spawn(bench.program(&all), "work")
}

async fn enqueue(bench: &Bench, kind: &str, payload: Value) -> JobId {
    bench.tenure.enqueue(JobRequest::new("q", kind, payload).max_attempts(2)).await.unwrap().id
}

/// Runs a job to its end.
async fn run(bench: &Bench, kind: &str, payload: Value) -> JobRow {
    let id = enqueue(bench, kind, payload).await;
    bench.until_finished(id).await
}

/// The process that runs the next job.
async fn pid(bench: &Bench) -> i64 {
    run(bench, "echo", json!(null)).await.output.unwrap()["pid"].as_i64().unwrap()
}

/// Waits until the first attempt has failed, and returns its error.
async fn first_error(bench: &Bench, id: JobId) -> String {
    bench
        .until_count(&format!("tenure.jobs WHERE id = '{id}' AND status = 'queued' AND attempt = 1"), 1)
        .await;
    bench.value(&format!("SELECT last_error FROM tenure.jobs WHERE id = '{id}'")).await
}

async fn stop(mut worker: Child) {
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_runs_job_after_job_and_reads_each_as_a_line() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let pi = "3.141592653589793238462643383279";
    // U+2028 ends a line for some readers.
    let with_lines = format!("{{\n  \"pi\": {pi},\r\n  \"text\": \"two\\nlines\u{2028}\"\n}}");
    let id = bench.tenure.enqueue(JobRequest::from_json("q", "echo", &with_lines)).await.unwrap().id;
    let first = bench.until_finished(id).await;
    let output = first.output.unwrap();
    let job = &output["job"];
    assert_eq!(job["id"], json!(id.to_string()));
    assert_eq!((&job["queue"], &job["kind"]), (&json!("q"), &json!("echo")));
    assert_eq!(
        (&job["attempt"], &job["max_attempts"], &job["fencing_token"]),
        (&json!(1), &json!(5), &json!(1))
    );
    assert_eq!((&job["checkpoint"], &job["payload"]["text"]), (&Value::Null, &json!("two\nlines\u{2028}")));
    let claim: uuid::Uuid =
        bench.value(&format!("SELECT claim_id FROM tenure.job_history WHERE id = '{id}'")).await;
    assert_eq!(job["claim_id"], json!(claim.to_string()));
    let mut ids = Vec::new();
    for n in 0..200 {
        ids.push(enqueue(&bench, "earlier", json!(n)).await);
    }
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(
            bench.until_finished(id).await.output,
            Some(json!({ "n": n })),
            "the last output line counts"
        );
    }
    assert_eq!(json!(pid(&bench).await), output["pid"]);
    assert_eq!(bench.count("tenure.job_history WHERE attempt <> 1").await, 0);
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_verdict_ends_its_attempt_and_the_process_goes_on() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let before = pid(&bench).await;
    let failed = run(&bench, "settle", json!({"verdict": "fail", "error": "no such page"})).await;
    assert_eq!((failed.status, failed.attempt), (Status::Failed, 1));
    assert_eq!(failed.last_error.as_deref(), Some("no such page"));
    let cancelled = run(&bench, "settle", json!({"verdict": "cancel", "error": "not wanted"})).await;
    assert_eq!(cancelled.status, Status::Cancelled);
    let retried =
        enqueue(&bench, "settle", json!({"verdict": "retry", "error": "busy", "after_seconds": 3600})).await;
    assert_eq!(first_error(&bench, retried).await, "busy");
    let by_policy = enqueue(&bench, "settle", json!({"verdict": "retry", "error": "again"})).await;
    assert_eq!(first_error(&bench, by_policy).await, "again");
    let snoozed = enqueue(&bench, "settle", json!({"verdict": "snooze", "after_seconds": 1800.5})).await;
    bench
        .until_count(
            &format!(
                "tenure.jobs WHERE id = '{snoozed}' AND status = 'queued' AND attempt = 0
         AND scheduled_at BETWEEN now() + interval '29 minutes' AND now() + interval '31 minutes'"
            ),
            1,
        )
        .await;
    let due = format!(
        "tenure.jobs WHERE id = '{retried}' AND scheduled_at BETWEEN now() + interval '59 minutes' AND now() + interval '1 hour'"
    );
    assert_eq!(bench.count(&due).await, 1);
    assert_eq!(pid(&bench).await, before);
    // With its last job, the process says that it takes no other.
    let done = run(&bench, "settle", json!({"verdict": "complete", "output": 7, "last": true})).await;
    assert_eq!(done.output, Some(json!(7)));
    until_file(&folder(&bench).join(format!("ended-{before}"))).await;
    assert_ne!(pid(&bench).await, before);
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ends_its_process_is_charged_and_the_next_job_gets_another() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let mut pids = HashSet::from([pid(&bench).await]);
    let crashed = enqueue(&bench, "exit", json!(3)).await;
    let error = "the process ended (exit 3) before it settled the job: the reason";
    assert_eq!(first_error(&bench, crashed).await, error);
    assert!(pids.insert(pid(&bench).await));
    let half = enqueue(&bench, "half", json!(null)).await;
    assert_eq!(first_error(&bench, half).await, "the process ended (exit 0) before it settled the job");
    assert!(pids.insert(pid(&bench).await));
    let wrong = run(&bench, "exit", json!(65)).await;
    assert_eq!((wrong.status, wrong.last_error.as_deref()), (Status::Failed, Some("exit 65: the reason")));
    assert!(pids.insert(pid(&bench).await));
    let resumed = enqueue(&bench, "checkpoint", json!(null)).await;
    first_error(&bench, resumed).await;
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now() WHERE id = '{resumed}'"
        ))
        .await;
    assert_eq!(bench.until_finished(resumed).await.output, Some(json!({"page": 7})));
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_cannot_settle_the_job_says_why_and_ends_the_process() {
    let bench = patient().await;
    let worker = work(&bench, &["--concurrency", "8"]);
    let settled = "the process did not settle the job: ";
    for (line, error) in [
        (r#"{"settle": "complete"}"#, format!("{settled}the line has no claim_id; copy that of the job")),
        (
            r#"{"settle": "done", "claim_id": "CLAIM"}"#,
            format!("{settled}settle is \"done\"; write complete, retry, snooze, fail or cancel"),
        ),
        (
            r#"{"settle": 1, "claim_id": "CLAIM"}"#,
            format!("{settled}settle is 1; write complete, retry, snooze, fail or cancel"),
        ),
        (
            r#"{"settle": "retry", "claim_id": "CLAIM"}"#,
            format!("{settled}settle \"retry\" has no error; write why, as text"),
        ),
        (
            r#"{"settle": "snooze", "claim_id": "CLAIM"}"#,
            format!("{settled}settle \"snooze\" has no after_seconds; write a number of seconds"),
        ),
        (
            r#"{"settle": "snooze", "claim_id": "CLAIM", "after_seconds": -1}"#,
            format!("{settled}after_seconds is -1; write a number of seconds, 0 or more"),
        ),
        (
            r#"{"settle": "complete", "claim_id": "CLAIM", "last": 1}"#,
            format!("{settled}last is 1; write true or false"),
        ),
        (
            r#"{"settle": "retry", "claim_id": "CLAIM", "error": "busy", "after": 60}"#,
            format!(
                "{settled}\"after\" is no field of a line with settle; those are settle, output, after_seconds, \
                 error, last, claim_id, stage, progress, message, checkpoint"
            ),
        ),
    ] {
        let id = enqueue(&bench, "raw", json!(line)).await;
        assert_eq!(first_error(&bench, id).await, error, "{line}");
    }
    let not_a_number = r#"{"settle": "complete", "claim_id": "CLAIM", "output": NaN}"#;
    let not_a_number = enqueue(&bench, "raw", json!(not_a_number)).await;
    let error = first_error(&bench, not_a_number).await;
    let begins = format!("{settled}a line with \"settle\" is no JSON that can be kept: expected value");
    assert!(error.starts_with(&begins), "{error}");
    // A result that cannot be kept is not lost behind an end that says nothing of it.
    for lost in [r#"{"output": 1e400}"#, r#"{"checkpoint": "\ud800"}"#] {
        let lines = format!("{lost}\n{{\"settle\": \"complete\", \"claim_id\": \"CLAIM\"}}");
        let lost = enqueue(&bench, "raw", json!(lines)).await;
        let error = first_error(&bench, lost).await;
        assert!(error.contains("is no JSON that can be kept: "), "{error}");
    }
    let long = enqueue(&bench, "long", json!(null)).await;
    assert_eq!(first_error(&bench, long).await, "a line of the output is above 4 MiB");
    let closed = enqueue(&bench, "closed", json!(null)).await;
    let error = first_error(&bench, closed).await;
    assert_eq!(error, "the process closed its standard output before it settled the job");
    stop(worker).await;
}

/// The second line comes while the next job runs, and would end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_settle_line_does_not_end_the_next_job() {
    let bench = patient().await;
    let mut worker = work(&bench, &[]);
    let twice = enqueue(&bench, "twice", json!(null)).await;
    assert_eq!(bench.until_finished(twice).await.output, Some(json!(1)));
    let slow = enqueue(&bench, "slow", json!(null)).await;
    until_file(&folder(&bench).join("slow-began")).await;
    // The line is read while the job runs, or was read before it began.
    assert_eq!(bench.count(&format!("tenure.jobs WHERE id = '{slow}' AND status = 'processing'")).await, 1);
    std::fs::write(folder(&bench).join("go"), "").unwrap();
    assert_eq!(bench.until_finished(slow).await.output, Some(json!(3)));
    // Forced: a line that names another claim, in the middle of a job.
    let line = format!("{{\"settle\": \"fail\", \"error\": \"x\", \"claim_id\": \"{}\"}}", uuid::Uuid::nil());
    let both = format!("{line}\n{{\"settle\": \"complete\", \"claim_id\": \"CLAIM\", \"output\": 4}}");
    assert_eq!(run(&bench, "raw", json!(both)).await.output, Some(json!(4)));
    worker.until_log("about a job that has ended").await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_between_two_jobs_charges_no_job() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    for _ in 0..20 {
        let before = pid(&bench).await;
        let process = i32::try_from(before).unwrap();
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
        // Until then it may read. The worker may still give it the next job before it knows.
        until_dead(process, Duration::from_secs(5)).await;
        let next = run(&bench, "echo", json!(null)).await;
        assert_eq!(next.attempt, 1, "{}", worker.log());
        assert_ne!(next.output.unwrap()["pid"], json!(before));
    }
    // These end with their job, and the next one is there already.
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(enqueue(&bench, "last", json!(null)).await);
    }
    for id in ids {
        bench.until_finished(id).await;
    }
    assert_eq!(bench.count("tenure.job_history WHERE attempt = 1 AND kind = 'last'").await, 40);
    stop(worker).await;
}

/// A process that is stopped has not read the job that it got; one that has read it is charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_charged_only_if_its_process_has_read_of_it() {
    let bench = patient().await;
    let mut worker = work(&bench, &[]);
    let before = i32::try_from(pid(&bench).await).unwrap();
    let process = Pid::from_raw(before).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let id = enqueue(&bench, "echo", json!("x".repeat(200_000))).await;
    bench.until_count(&format!("tenure.jobs WHERE id = '{id}' AND status = 'processing'"), 1).await;
    let input = std::fs::File::open(format!("/proc/{before}/fd/0")).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while ioctl_fionread(&input).unwrap() == 0 {
        assert!(std::time::Instant::now() < deadline, "the guard writes nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill_process(process, Signal::KILL).unwrap();
    let row = bench.until_finished(id).await;
    assert_eq!((row.status, row.attempt), (Status::Completed, 1));
    worker.until_log("a process ended between two jobs; another takes the job").await;
    // A command that never reads is charged, and not started for ever.
    let deaf = Child::spawn(bench.program(&["work", "deaf", "--exec", "true", "--stay"]), "work");
    let id = bench.tenure.enqueue(JobRequest::new("deaf", "k", json!(1)).max_attempts(1)).await.unwrap().id;
    let row = bench.until_finished(id).await;
    assert_eq!(row.last_error.as_deref(), Some("the process ended (exit 0) before it settled the job"));
    stop(deaf).await;
    stop(worker).await;
}

/// Neither its payload nor its silence stops the worker: the job's timeout ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_reads_nothing_is_ended_by_the_timeout_of_its_job() {
    let bench = patient().await;
    let pids = folder(&bench).join("deaf");
    let command = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 600", pids.display());
    let arguments = ["work", "q", "--exec", &command, "--stay", "--timeout", "1s"];
    let worker = Child::spawn(bench.program(&arguments), "work");
    let id = enqueue(&bench, "k", json!("x".repeat(200_000))).await;
    until_file(&pids).await;
    let deaf: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    let error = first_error(&bench, id).await;
    assert!(error.starts_with("it ran longer than the 1s"), "{error}");
    until_dead(deaf, Duration::from_secs(5)).await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_has_started_ends_with_it() {
    let bench = patient().await;
    let mut worker = work(&bench, &["--concurrency", "2"]);
    let output = run(&bench, "forks", json!(null)).await.output.unwrap();
    // A line that is no text is skipped.
    assert_eq!(run(&bench, "bytes", json!(null)).await.status, Status::Completed);
    let [child, process] =
        ["child", "pid"].map(|name| i32::try_from(output[name].as_i64().unwrap()).unwrap());
    // The child holds the standard output open.
    let killed = kill_process(Pid::from_raw(process).unwrap(), Signal::KILL);
    assert!(killed.is_ok(), "{}", worker.log());
    until_dead(child, Duration::from_secs(14)).await;
    let output = run(&bench, "forks", json!(null)).await.output.unwrap();
    let child = i32::try_from(output["child"].as_i64().unwrap()).unwrap();
    worker.kill().await;
    until_dead(child, Duration::from_secs(14)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_ends_its_process_unless_it_settles_in_time() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let stopped = enqueue(&bench, "stopped", json!(null)).await;
    let file = folder(&bench).join("stopped-pid");
    until_file(&file).await;
    let process: i32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    bench.tenure.cancel(stopped).await.unwrap();
    assert_eq!(bench.until_finished(stopped).await.status, Status::Cancelled);
    until_dead(process, Duration::from_secs(2)).await;
    let in_time = enqueue(&bench, "in.time", json!(null)).await;
    until_file(&folder(&bench).join("in-time-began")).await;
    bench.tenure.cancel(in_time).await.unwrap();
    let row = bench.until_finished(in_time).await;
    assert_eq!((row.status, row.output), (Status::Completed, Some(json!("in time"))));
    assert_ne!(pid(&bench).await, i64::from(process));
    // What it saves before its end is there for the next attempt.
    let saves = enqueue(&bench, "saves", json!(null)).await;
    until_file(&folder(&bench).join("saves-began")).await;
    stop(worker).await;
    let checkpoint = "tenure.jobs WHERE status = 'queued' AND checkpoint = '{\"page\": 9}'";
    let rows = bench.text("SELECT status, attempt, checkpoint, last_error FROM tenure.jobs").await;
    assert_eq!(bench.count(checkpoint).await, 1, "{rows}");
    let worker = work(&bench, &[]);
    assert_eq!(bench.until_finished(saves).await.output, Some(json!({"page": 9})));
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_soon_beside_an_idle_process_that_does_not_end() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let output = run(&bench, "stubborn", json!(null)).await.output.unwrap();
    let began = std::time::Instant::now();
    stop(worker).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    until_dead(i32::try_from(output["pid"].as_i64().unwrap()).unwrap(), Duration::from_secs(14)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_does_not_outlive_a_guard_that_was_killed() {
    let bench = patient().await;
    let worker = work(&bench, &[]);
    let id = enqueue(&bench, "guarded", json!(null)).await;
    let mut pids = [0; 2];
    for (pid, name) in pids.iter_mut().zip(["guard", "guarded"]) {
        let file = folder(&bench).join(name);
        until_file(&file).await;
        *pid = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    }
    kill_process(Pid::from_raw(pids[0]).unwrap(), Signal::KILL).unwrap();
    assert_eq!(first_error(&bench, id).await, "the guard was killed");
    until_dead(pids[1], Duration::from_secs(2)).await;
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_replaced_after_its_number_of_jobs_and_ends_by_itself() {
    let bench = patient().await;
    let worker = work(&bench, &["--restart-after", "2"]);
    let mut pids = Vec::new();
    for _ in 0..6 {
        pids.push(pid(&bench).await);
    }
    assert!(pids[0] == pids[1] && pids[2] == pids[3] && pids[4] == pids[5], "{pids:?}");
    assert_eq!(HashSet::from([pids[0], pids[2], pids[4]]).len(), 3, "{pids:?}");
    let last = pid(&bench).await;
    // The worker closes the standard input of each, also of the one that is idle at the end.
    stop(worker).await;
    for pid in pids.into_iter().chain([last]) {
        assert!(folder(&bench).join(format!("ended-{pid}")).exists(), "{pid}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_processes_run_than_jobs_at_once() {
    let bench = patient().await;
    let worker = work(&bench, &["--concurrency", "3"]);
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(enqueue(&bench, "echo", json!(null)).await);
    }
    let mut pids = HashSet::new();
    for id in ids {
        pids.insert(bench.until_finished(id).await.output.unwrap()["pid"].to_string());
    }
    assert!((1..=3).contains(&pids.len()), "{pids:?}");
    stop(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_a_staying_process_belong_together() {
    let bench = patient().await;
    for (arguments, error) in [
        (&["work", "q", "--exec", "true", "--restart-after", "2"][..], "--stay"),
        (&["work", "q", "--exec", "true", "--stay", "--restart-after", "0"], "at least 1"),
    ] {
        let output = bench.program(arguments).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(error), "{said}");
    }
}

/// The programs of docs/workers.md.
#[tokio::test(flavor = "multi_thread")]
async fn the_workers_of_the_guide_embed_texts_and_resume_at_their_checkpoint() {
    let bench = patient().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/workers");
    let mut outputs = Vec::new();
    for (queue, command) in [("python", "python3 embed.py"), ("node", "node embed.mjs")] {
        let line = format!("cd {} && exec {command}", examples.display());
        let worker = Child::spawn(bench.program(&["work", queue, "--exec", &line, "--stay"]), "work");
        let enqueue =
            async |payload| bench.tenure.enqueue(JobRequest::new(queue, "texts", payload)).await.unwrap().id;
        let done = bench.until_finished(enqueue(json!({"texts": ["a", "b"]})).await).await;
        assert_eq!(
            (done.status, done.stage.as_deref(), done.progress),
            (Status::Completed, Some("embedding"), Some(100.0))
        );
        outputs.push(done.output);
        let wrong = bench.until_finished(enqueue(json!({"text": "a"})).await).await;
        assert_eq!((wrong.status, wrong.attempt), (Status::Failed, 1), "{queue}: {:?}", wrong.last_error);
        assert!(wrong.last_error.unwrap().contains("the payload needs texts"), "{queue}");
        // An attempt of before has done the first of two texts.
        let job = enqueue_with_checkpoint(&bench, queue).await;
        assert_eq!(bench.until_finished(job).await.output.unwrap()["vectors"][0], json!([1]), "{queue}");
        stop(worker).await;
    }
    assert_eq!(outputs[0], outputs[1]);
}

async fn enqueue_with_checkpoint(bench: &Bench, queue: &str) -> JobId {
    let request =
        JobRequest::new(queue, "texts", json!({"texts": ["a", "b"]})).delay(Duration::from_secs(3600));
    let job = bench.tenure.enqueue(request).await.unwrap().id;
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET checkpoint = '[[1]]', scheduled_at = now(), publish_at = now() WHERE id = '{job}'"
        ))
        .await;
    job
}
