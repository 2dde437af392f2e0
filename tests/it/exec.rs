//! `tenure work --exec`: any program as the handler.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobContext, JobRequest, KindOptions, Outcome, Status, Worker};

use crate::harness::{Bench, Child, Running, ask, bench, bench_with, free_address, until_file};

fn work(bench: &Bench, arguments: &[&str]) -> Child {
    let mut all = vec!["work", "q"];
    all.extend(arguments);
    Child::spawn(bench.program(&all), "work")
}

fn folder(bench: &Bench) -> PathBuf {
    let folder = bench.config.runtime_dir.join("exec");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

async fn enqueue(bench: &Bench, kind: &str, payload: serde_json::Value) -> tenure::JobId {
    bench.tenure.enqueue(JobRequest::new("q", kind, payload).max_attempts(2)).await.unwrap().id
}

/// Whether a process runs; a zombie does not.
fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

pub(crate) async fn until_dead(pid: i32, within: Duration) {
    let deadline = std::time::Instant::now() + within;
    while alive(pid) {
        assert!(std::time::Instant::now() < deadline, "process {pid} outlives its worker");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A parser keeps sixteen digits of a number; Postgres keeps all.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_keeps_every_digit_from_the_payload_to_the_output_wherever_it_is_printed() {
    let pi = "3.141592653589793238462643383279";
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let script = r#"read pi; echo "{\"checkpoint\": $pi}"; case $TENURE_KIND in
        dies) sleep 0.3; exit 65;;
        resumes) [ $TENURE_ATTEMPT = 2 ] || { sleep 0.3; exit 1; }; pi=$(cat $TENURE_CHECKPOINT_FILE);; esac
        echo "{\"output\": $pi}""#;
    let mut worker = work(&bench, &["--exec", script]);
    let print = async |arguments: &[&str]| {
        let output = bench.program(arguments).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let times = |text: &str| text.matches(pi).count();
    for (format, shown) in [("table", 1), ("json", 2)] {
        let out = print(&["enqueue", "q", "done", pi, "--wait", "--output", format]).await;
        assert_eq!(times(&out), shown, "{out}");
    }
    let dies = print(&["enqueue", "q", "dies", pi]).await.trim().to_owned();
    let resumes = print(&["enqueue", "q", "resumes", pi]).await.trim().to_owned();
    bench.until_finished(dies.parse().unwrap()).await;
    bench
        .until_count(&format!("tenure.jobs WHERE id = '{resumes}' AND attempt = 1 AND status = 'queued'"), 1)
        .await;
    bench
        .execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now() WHERE status = 'queued'")
        .await;
    let row = bench.until_finished(resumes.parse().unwrap()).await;
    for json in [row.payload_json(), row.output_json()] {
        assert_eq!(json.unwrap().get(), pi, "the second attempt had it from its checkpoint");
    }
    print(&["schedules", "add", "nightly", "0 3 * * *", "q", "k", pi]).await;
    let listed = ["jobs", "list", "--status", "completed", "--output"];
    for (arguments, table, json) in [
        (&["jobs", "show", &resumes, "--output"][..], 2, 2),
        // Two were printed by `--wait`, and this one; a table of jobs shows no payloads.
        (&listed, 0, 6),
        (&["dead", "show", &dies, "--output"], 2, 2),
        (&["schedules", "list", "--output"], 0, 1),
    ] {
        for (format, shown) in [("table", table), ("json", json)] {
            let out = print(&[arguments, &[format]].concat()).await;
            assert_eq!(times(&out), shown, "{arguments:?} {format}: {out}");
            assert_eq!(out.matches("3.1415").count(), shown, "{arguments:?} {format}: {out}");
        }
    }
    let address = free_address();
    let mut serve = Child::spawn(bench.program(&["serve", "--listen", &address.to_string()]), "serve");
    serve.until_log("serving the dashboard").await;
    for id in [dies, resumes] {
        let path = format!("/jobs/{id}");
        let page =
            tokio::task::spawn_blocking(move || ask(address, "GET", &path, &[], "")).await.unwrap().unwrap();
        assert_eq!(times(&page.body), 2, "{}", page.body);
    }
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
}

/// Text that is not JSON is no output, and no further attempt could change that.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_output_as_json_text_is_stored_as_it_is_or_makes_a_dead_letter() {
    let bench = bench().await;
    let handler = |json: serde_json::Value, _: JobContext| async move {
        Outcome::DoneJson(json.as_str().unwrap().into())
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let job = bench.until_finished(enqueue(&bench, "k", json!("[1.00000000000000000000001]")).await).await;
    assert_eq!(job.output_json().unwrap().get(), "[1.00000000000000000000001]");
    for wrong in ["{", "\"\\u0000\""] {
        let job = bench.until_finished(enqueue(&bench, "k", json!(wrong)).await).await;
        assert_eq!((job.status, job.attempt), (Status::Failed, 1));
        assert!(job.last_error.unwrap().contains("the output cannot be stored: it "));
    }
    assert_eq!(bench.count("tenure.dead_letter_jobs WHERE category = 'invalid_output'").await, 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_gets_the_payload_and_its_environment_and_reports_progress_output_and_logs() {
    let bench = bench().await;
    let folder = folder(&bench);
    let script = format!(
        r#"cat > {0}/payload
        env | grep ^TENURE_ | grep -v -e _AFTER -e _EVERY > {0}/env
        echo 'a plain line'
        echo '{{"unknown": "is logged"}}'
        echo '{{"stage": "half", "progress": 50, "message": "on the way"}}'
        while [ ! -e {0}/go ]; do sleep 0.02; done
        echo '{{"output": {{"lines": 3}}}}'"#,
        folder.display()
    );
    let mut worker = work(&bench, &["--exec", &script]);
    let id = enqueue(&bench, "any.kind", json!({"a": [1, "ü"]})).await;
    bench
        .until_count("tenure.jobs WHERE stage = 'half' AND progress = 50 AND message = 'on the way'", 1)
        .await;
    let claim: uuid::Uuid = bench.value("SELECT claim_id FROM tenure.jobs").await;
    std::fs::write(folder.join("go"), "").unwrap();
    let job = bench.until_finished(id).await;
    assert_eq!((job.status, job.output), (Status::Completed, Some(json!({"lines": 3}))));
    let payload = std::fs::read_to_string(folder.join("payload")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&payload).unwrap(), json!({"a": [1, "ü"]}));
    let env = std::fs::read_to_string(folder.join("env")).unwrap();
    for line in [
        &format!("TENURE_JOB_ID={id}"),
        "TENURE_QUEUE=q",
        "TENURE_KIND=any.kind",
        "TENURE_ATTEMPT=1",
        "TENURE_FENCING_TOKEN=1",
        &format!("TENURE_CLAIM_ID={claim}"),
        "TENURE_CHECKPOINT_FILE=/",
    ] {
        assert!(env.contains(line), "no {line} in\n{env}");
    }
    worker.until_log("a plain line").await;
    worker.until_log("is logged").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_complete_fail_for_good_and_retry() {
    let bench = bench().await;
    let script = r#"echo "the reason" >&2; exit "$(cat)""#;
    let _worker = work(&bench, &["--exec", script, "--concurrency", "3"]);
    let done = enqueue(&bench, "k", json!(0)).await;
    let wrong = enqueue(&bench, "k", json!(65)).await;
    let again = enqueue(&bench, "k", json!(3)).await;
    assert_eq!(bench.until_finished(done).await.status, Status::Completed);
    let failed = bench.until_finished(wrong).await;
    assert_eq!((failed.status, failed.attempt), (Status::Failed, 1));
    assert_eq!(failed.last_error.as_deref(), Some("exit 65: the reason"));
    bench.until_count(&format!("tenure.jobs WHERE id = '{again}' AND status = 'queued' AND attempt = 1 AND last_error = 'exit 3: the reason'"), 1).await;
    // Run the second attempt without its wait of 5 s.
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    let dead = bench.until_finished(again).await;
    assert_eq!((dead.status, dead.attempt), (Status::Failed, 2));
}

/// Each of these jobs would be completed without its output.
#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_cannot_be_read_fails_the_attempt_and_bad_bytes_of_a_text_are_replaced() {
    let bench = bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    let script = r#"import json, sys
kind, _ = json.load(sys.stdin)
deep = "[" * 200 + "]" * 200
lines = {
    "nan": b'{"output": NaN}', "huge": b'{"output": 1e400}', "half": b'{"output": "\\ud800"}',
    "latin-1": b'{"output": "M\xfcller"}', "checkpoint": b'{"stage": "s", "checkpoint": Infinity}',
    "deep": b'{"output": %s}' % deep.encode(), "long": b'{"output": "%s"}' % (b"x" * (5 << 20)),
    "python": b"{'output': 5}",
    "log": b'{"level": "info", "value": NaN}', "text": b"x" * (5 << 20),
}
sys.stdout.buffer.write(lines.get(kind, b"M\xfcller") + b"\n")
sys.stderr.buffer.write(b"no customer M\xfcller\r\n")
sys.exit(65 if kind == "stderr" else 0)"#;
    let file = folder(&bench).join("prints.py");
    std::fs::write(&file, script).unwrap();
    let command = format!("python3 {}", file.display());
    let worker = work(&bench, &["--exec", &command, "--concurrency", "4"]);
    let mut ids = Vec::new();
    for kind in
        ["nan", "huge", "half", "latin-1", "checkpoint", "deep", "python", "long", "log", "text", "stderr"]
    {
        let request = JobRequest::new("q", "k", json!([kind, 1])).max_attempts(1);
        ids.push((kind, bench.tenure.enqueue(request).await.unwrap().id));
    }
    for (kind, id) in ids {
        let job = bench.until_finished(id).await;
        let error = job.last_error.unwrap_or_default();
        match kind {
            "log" | "text" => assert_eq!((job.status, error.as_str()), (Status::Completed, ""), "{kind}"),
            "stderr" => assert_eq!(error, "exit 65: no customer M\u{fffd}ller"),
            "long" => {
                assert!(error.starts_with("a line of the output is above 4 MiB: no customer"), "{error}");
            }
            _ => {
                assert_eq!((job.status, &job.output), (Status::Failed, &None), "{kind}");
                assert!(error.contains("is no JSON that can be kept: "), "{kind}: {error}");
                assert!(error.contains("at most 127 levels: no customer"), "{kind}: {error}");
            }
        }
    }
    let log = worker.log();
    assert!(log.contains("M\u{fffd}ller"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_in_the_file_of_the_next_attempt() {
    let bench = bench().await;
    let script = r#"n=$(cat "$TENURE_CHECKPOINT_FILE"); if [ -n "$n" ]; then echo "{\"output\": $n}"; exit 0; fi
                    echo '{"checkpoint": {"page": 7}}'; exit 1"#;
    let _worker = work(&bench, &["--exec", script]);
    let id = enqueue(&bench, "k", json!(1)).await;
    bench
        .until_count(
            "tenure.jobs WHERE status = 'queued' AND attempt = 1 AND checkpoint = '{\"page\": 7}'",
            1,
        )
        .await;
    bench.execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now()").await;
    assert_eq!(bench.until_finished(id).await.output, Some(json!({"page": 7})));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_named_kinds_are_run() {
    let bench = bench().await;
    let _worker = work(&bench, &["--exec", "true", "--kind", "mine", "--kind", "ours"]);
    let theirs = enqueue(&bench, "theirs", json!(1)).await;
    for kind in ["mine", "ours"] {
        let id = enqueue(&bench, kind, json!(1)).await;
        assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    }
    assert_eq!(bench.count(&format!("tenure.jobs WHERE id = '{theirs}' AND status = 'queued'")).await, 1);
}

/// A script that writes its own pid and that of a child, and ignores SIGTERM.
fn stubborn(folder: &std::path::Path) -> String {
    format!(
        r#"trap '' TERM; sh -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $! > {0}/child.new; mv {0}/child.new {0}/child
           echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid; while :; do sleep 0.1; done"#,
        folder.display()
    )
}

async fn pids(folder: &std::path::Path) -> [i32; 2] {
    let mut pids = [0; 2];
    for (pid, name) in pids.iter_mut().zip(["pid", "child"]) {
        until_file(&folder.join(name)).await;
        *pid = std::fs::read_to_string(folder.join(name)).unwrap().trim().parse().unwrap();
    }
    pids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_outlive_a_worker_that_was_killed() {
    let bench = bench().await;
    let folder = folder(&bench);
    let files = folder.join("tmp");
    std::fs::create_dir_all(&files).unwrap();
    let mut program = bench.program(&["work", "q", "--exec", &stubborn(&folder), "--keepalive"]);
    program.env("TMPDIR", &files);
    let mut worker = Child::spawn(program, "work");
    enqueue(&bench, "k", json!(1)).await;
    let pids = pids(&folder).await;
    assert!(pids.iter().all(|pid| alive(*pid)));
    let left =
        || std::fs::read_dir(&files).unwrap().flatten().map(|file| file.file_name()).collect::<Vec<_>>();
    assert_eq!(left().len(), 2, "{:?}", left());
    worker.kill().await;
    // SIGTERM, which they ignore; 10 s later SIGKILL.
    for pid in pids {
        until_dead(pid, Duration::from_secs(14)).await;
    }
    // The guard, which ends right after them, removes what the worker cannot any more.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !left().is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}", left());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_job_was_reset_is_ended() {
    let bench = bench().await;
    let folder = folder(&bench);
    let script = format!(
        "echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid; while :; do echo '{{\"message\": \"working\"}}'; sleep 0.05; done",
        folder.display()
    );
    let _worker = work(&bench, &["--exec", &script]);
    let id = enqueue(&bench, "k", json!(1)).await;
    until_file(&folder.join("pid")).await;
    let pid: i32 = std::fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    bench.until_count("tenure.jobs WHERE message = 'working'", 1).await;
    // The row as another worker's reset leaves it, due in an hour.
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET status = 'queued', claim_id = NULL, worker_id = NULL, worker_host = NULL, stale_after = NULL,
                    last_activity_at = NULL, started_at = NULL, scheduled_at = now() + interval '1 h',
                    publish_at = now() + interval '1 h', published_at = NULL WHERE id = '{id}'"
        ))
        .await;
    until_dead(pid, Duration::from_secs(5)).await;
    bench.until_count("tenure.recovery_events WHERE event = 'refused_write'", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_the_command() {
    let bench = bench().await;
    let folder = folder(&bench);
    let script = format!("echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid; sleep 600", folder.display());
    let _worker = work(&bench, &["--exec", &script, "--timeout", "500ms"]);
    let id = enqueue(&bench, "k", json!(1)).await;
    until_file(&folder.join("pid")).await;
    let pid: i32 = std::fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    bench
        .until_count(
            &format!("tenure.jobs WHERE id = '{id}' AND last_error LIKE 'it ran longer than the 500ms%'"),
            1,
        )
        .await;
    until_dead(pid, Duration::from_secs(5)).await;
}

/// The command ends at once; its child ignores SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn the_children_of_a_command_do_not_outlive_the_worker_either() {
    let bench = bench().await;
    let folder = folder(&bench);
    let script = format!(
        r#"(trap "" TERM; sh -c 'echo $PPID > {0}/pid.new; mv {0}/pid.new {0}/pid'; while :; do sleep 0.1; done) & wait"#,
        folder.display()
    );
    let mut worker = work(&bench, &["--exec", &script, "--keepalive"]);
    enqueue(&bench, "k", json!(1)).await;
    until_file(&folder.join("pid")).await;
    let pid: i32 = std::fs::read_to_string(folder.join("pid")).unwrap().trim().parse().unwrap();
    assert!(alive(pid));
    worker.kill().await;
    until_dead(pid, Duration::from_secs(14)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_is_kept_beside_leftover_children_and_wrong_fields_and_numbers_keep_their_digits() {
    let bench = bench().await;
    // A child that keeps the pipe open for a minute; a field of the wrong type beside the output.
    let script =
        r#"sleep 60 & payload=$(cat); echo "{\"output\": {\"got\": \"$payload\"}, \"progress\": \"50\"}""#;
    let _worker = work(&bench, &["--exec", script]);
    let id =
        bench.tenure.enqueue(JobRequest::from_json("q", "k", "12345678901234567890123")).await.unwrap().id;
    let job = bench.until_finished(id).await;
    assert_eq!(job.output, Some(json!({"got": "12345678901234567890123"})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_program_was_replaced_goes_on() {
    let bench = bench().await;
    let copy = folder(&bench).join("tenure");
    std::fs::copy(env!("CARGO_BIN_EXE_tenure"), &copy).unwrap();
    let mut command = tokio::process::Command::new(&copy);
    command.args(["work", "q", "--exec", "true"]).envs(bench.environment());
    let mut worker = Child::spawn(command, "work");
    worker.until_log("worker started").await;
    std::fs::remove_file(&copy).unwrap();
    let id = enqueue(&bench, "k", json!(1)).await;
    let job = bench.until_finished(id).await;
    assert_eq!((job.status, job.attempt), (Status::Completed, 1));
}

/// systemd stops a service so: every process of it gets SIGTERM at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_the_guard_as_well_does_not_end_the_command_early() {
    let bench = bench().await;
    let folder = folder(&bench);
    let script = format!(
        r#"echo $PPID > {0}/guard.new; mv {0}/guard.new {0}/guard; while [ ! -e {0}/go ]; do sleep 0.05; done; echo '{{"output": 1}}'"#,
        folder.display()
    );
    let mut worker = work(&bench, &["--exec", &script, "--keepalive"]);
    let id = enqueue(&bench, "k", json!(1)).await;
    until_file(&folder.join("guard")).await;
    let guard: i32 = std::fs::read_to_string(folder.join("guard")).unwrap().trim().parse().unwrap();
    worker.signal(Signal::TERM);
    rustix::process::kill_process(rustix::process::Pid::from_raw(guard).unwrap(), Signal::TERM).unwrap();
    worker.until_log("stopping: no new jobs").await;
    assert!(alive(guard));
    std::fs::write(folder.join("go"), "").unwrap();
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    let job = bench.tenure.job(id).await.unwrap().unwrap();
    assert_eq!((job.status, job.output, job.attempt), (Status::Completed, Some(json!(1)), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_ends_its_command_with_sigterm() {
    let bench = bench().await;
    let command =
        "trap 'echo ended >&2; exit 0' TERM; echo '{\"progress\": 1}'; while :; do sleep 0.05; done";
    let worker = work(&bench, &["--exec", command]);
    let id = enqueue(&bench, "loops", json!(1)).await;
    bench.until_count("tenure.jobs WHERE progress = 1", 1).await;
    let asked = std::time::Instant::now();
    bench.tenure.cancel(id).await.unwrap();
    let job = bench.until_finished(id).await;
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(job.status, Status::Cancelled, "{}", worker.log());
    assert!(worker.log().contains("ended"), "{}", worker.log());
}

/// SIGTERM in the middle makes a dead letter of a kind that must not run twice. A command that still prints its output
/// completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_ended_in_the_middle_counts_as_interrupted_unless_it_prints_its_output() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_millis(100)).await;
    for (trap, status) in [("exit 1", "failed"), ("echo '{\"output\": 7}'; exit 0", "completed")] {
        let trap = trap.replace('\'', "'\\''");
        let command = format!("trap '{trap}' TERM; echo '{{\"progress\": 1}}'; while :; do sleep 0.05; done");
        let mut worker = work(&bench, &["--on-crash", "dead-letter", "--exec", &command]);
        let id = enqueue(&bench, "loops", json!(1)).await;
        bench.until_count("tenure.jobs WHERE progress = 1", 1).await;
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
        let job = bench.tenure.job(id).await.unwrap().unwrap();
        assert_eq!(job.status.as_str(), status, "{job:?}\n{}", worker.log());
        if status == "failed" {
            assert_eq!(bench.tenure.dead_letter(id).await.unwrap().unwrap().category, "interrupted");
        } else {
            assert_eq!(job.output, Some(json!(7)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_too_large_is_reported_on_the_job_and_the_rest_of_its_line_is_a_sign_of_life() {
    let bench = bench().await;
    let command = "for n in 1 2 3 4 5 6 7 8; do echo '{\"stage\": \"s\", \"checkpoint\": \"more than twenty bytes of text\"}'; sleep 0.4; done";
    let mut program = bench.program(&["work", "q", "--exec", command]);
    program.env("TENURE_CHECKPOINT_BYTES_MAX", "20");
    let worker = Child::spawn(program, "work");
    let id = enqueue(&bench, "loops", json!(1)).await;
    bench.until_count("tenure.jobs WHERE stage = 's' AND message LIKE '%at most 20 are allowed%'", 1).await;
    // Twice the silence after which the job would be reset.
    let done = bench.until_finished(id).await;
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 1), "{}", worker.log());
}

/// Where the worker is the first process of a container, it inherits daemons and forgotten children of commands.
#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_of_a_container_the_worker_reaps_every_child() {
    let alone = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let may = std::process::Command::new("unshare").args(alone).arg("true").output();
    if !may.is_ok_and(|may| may.status.success()) {
        eprintln!("skipped: only root may have process ids of its own");
        return;
    }
    let bench = bench().await;
    let script = r#"case $TENURE_KIND in
        leaves) setsid sleep 0.1 & sleep 0.1 & ;;
        counts) sleep 0.5; echo "{\"output\": [$(grep -l '^State:.Z' /proc/[0-9]*/status | wc -l), $(ls -d /proc/[0-9]* | wc -l)]}" ;;
        esac"#;
    let mut command = tokio::process::Command::new("unshare");
    command.args(alone).arg(env!("CARGO_BIN_EXE_tenure")).args(["work", "q", "--exec", script]);
    command.envs(bench.environment());
    let mut worker = Child::spawn(command, "first");
    for _ in 0..5 {
        let id = enqueue(&bench, "leaves", json!(1)).await;
        assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    }
    let id = enqueue(&bench, "counts", json!(1)).await;
    let counted = bench.until_finished(id).await.output.unwrap();
    // The processes that may run: the first, the worker, the guard, and the script that counts.
    assert!(counted[0] == json!(0) && counted[1].as_i64().unwrap() < 10, "dead, and all: {counted}");
    // The first process passes a signal on to the worker, once.
    let unshared = worker.pid();
    let first = std::fs::read_to_string(format!("/proc/{unshared}/task/{unshared}/children")).unwrap();
    let first = rustix::process::Pid::from_raw(first.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(first, Signal::TERM).unwrap();
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    assert!(worker.log().contains("worker stopped"), "{}", worker.log());
}

/// A worker whose machine has no place for a file, or for a process, says so and is not ready until it can work again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_can_start_no_command_is_not_ready() {
    for stay in [&[][..], &["--stay"]] {
        let bench = bench_with(|config| config.timing.renew_every = Duration::from_millis(300)).await;
        let folder = bench.config.runtime_dir.join("missing");
        let mut arguments = vec!["work", "q", "--exec", "true"];
        arguments.extend(stay);
        let mut program = bench.program(&arguments);
        program.env("TMPDIR", &folder);
        let mut worker = Child::spawn(program, "work");
        enqueue(&bench, "k", json!(1)).await;
        bench
            .until(
                "EXISTS (SELECT FROM tenure.workers WHERE not_ready LIKE '%command could not be started%')",
            )
            .await;
        std::fs::create_dir_all(&folder).unwrap();
        bench
            .execute(
                "UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now() WHERE status = 'queued'",
            )
            .await;
        bench.until("EXISTS (SELECT FROM tenure.workers WHERE not_ready IS NULL)").await;
        worker.kill().await;
    }
}
