//! Log: the fields of every line about a job, and the texts that no line may hold.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobRequest, Status};

use crate::harness::{Bench, Child, bench};

/// Lines about a job that this worker has not claimed have no token yet.
const BEFORE_THE_CLAIM: [&str; 2] =
    ["a message cannot be a job; the message is a dead letter now", "not claimed"];

fn lines(worker: &Child) -> Vec<(String, Value)> {
    let log = worker.log();
    log.lines()
        .map(|line| (line.to_owned(), serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))))
        .collect()
}

async fn enqueue(bench: &Bench, kind: &str, payload: &Value, attempts: u32) -> tenure::JobId {
    let request = JobRequest::new("q", kind, payload.clone()).max_attempts(attempts);
    bench.tenure.enqueue(request).await.unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_about_a_job_has_the_job_the_token_and_the_worker_and_none_has_the_payload() {
    let bench = bench().await;
    let secret = "s3cr3t-77ab";
    let script = r#"read line; echo "a plain line"; echo '{"stage": "s", "progress": 50}'
        case $TENURE_KIND in retries) [ $TENURE_ATTEMPT = 2 ] || { echo "in vain" >&2; exit 1; };; dies) exit 65;;
        waits) sleep 60;; esac
        echo "{\"output\": $line}""#;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let mut worker =
        Child::spawn(bench.program(&["work", "q", "--exec", script, "--concurrency", "4"]), "work");
    worker.until_log("worker started").await;
    let payload = json!({ "card": secret });
    let done = enqueue(&bench, "done", &payload, 1).await;
    let retries = enqueue(&bench, "retries", &payload, 2).await;
    let dies = enqueue(&bench, "dies", &payload, 3).await;
    let last = enqueue(&bench, "retries", &payload, 1).await;
    let waits = enqueue(&bench, "waits", &payload, 3).await;
    bench.publish("q.done", &format!("{{\"card\": \"{secret}\\u0000\"}}")).await;
    bench
        .until_count(&format!("tenure.jobs WHERE id = '{retries}' AND status = 'queued' AND attempt = 1"), 1)
        .await;
    bench
        .execute("UPDATE tenure.jobs SET scheduled_at = now(), publish_at = now() WHERE status = 'queued'")
        .await;
    assert_eq!(bench.until_finished(retries).await.status, Status::Completed);
    assert_eq!(bench.until_finished(done).await.status, Status::Completed);
    assert_eq!(bench.until_finished(dies).await.status, Status::Failed);
    bench.until_count("tenure.dead_letter_jobs", 3).await;
    // Another worker takes the job: this one learns from its next check.
    bench.until_count(&format!("tenure.jobs WHERE id = '{waits}' AND stage = 's'"), 1).await;
    bench
        .execute("UPDATE tenure.jobs SET fencing_token = fencing_token + 1 WHERE status = 'processing'")
        .await;
    worker.until_log("no longer owns the job").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());

    let lines = lines(&worker);
    let mut about = 0;
    for (line, fields) in &lines {
        assert!(fields["timestamp"].is_string() && fields["level"].is_string(), "{line}");
        assert!(!line.contains(secret), "{line}");
        if fields["job"].is_null() {
            continue;
        }
        about += 1;
        assert_eq!(line.matches("\"job\":").count(), 1, "{line}");
        assert!(fields["worker"].is_string(), "{line}");
        let message = fields["message"].as_str().unwrap();
        assert!(BEFORE_THE_CLAIM.contains(&message) || !fields["token"].is_null(), "{line}");
    }
    assert!(about >= 9, "{lines:#?}");
    // Lines of the heartbeat and of the command carry them, too.
    for text in ["a plain line", "in vain", "no longer owns the job"] {
        let told = lines.iter().filter(|(line, _)| line.contains(text));
        let told: Vec<_> = told.map(|(line, fields)| (line, fields["job"].is_string())).collect();
        assert!(!told.is_empty() && told.iter().all(|(_, of_a_job)| *of_a_job), "{text}: {told:#?}");
    }
    // One line for each attempt, with all its fields.
    let ends: Vec<_> = lines.iter().filter(|(_, fields)| fields["message"] == "attempt ended").collect();
    let end = |id: tenure::JobId, attempt: u32| {
        let of_it = ends.iter().filter(|(_, end)| end["job"] == id.to_string() && end["attempt"] == attempt);
        of_it.map(|(_, end)| end["outcome"].as_str().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(end(done, 1), ["completed"]);
    assert_eq!((end(retries, 1), end(retries, 2)), (vec!["retried"], vec!["completed"]));
    assert_eq!((end(dies, 1), end(last, 1)), (vec!["failed"], vec!["failed"]));
    for (line, end) in &ends {
        let level = match end["outcome"].as_str().unwrap() {
            "failed" => "ERROR",
            "retried" => "WARN",
            _ => "DEBUG",
        };
        assert_eq!(end["level"], level, "{line}");
        assert_eq!(end["error"].is_string(), level != "DEBUG", "{line}");
    }
    // The dashboard's rates count the same attempts.
    let counted = "SELECT sum(completed), sum(retried), sum(failed) FROM tenure.activity";
    assert_eq!(bench.text(counted).await, "(2,1,2)");
    for (line, end) in ends {
        assert!(end["ran_ms"].is_u64() && end["queue"] == "q" && end["kind"].is_string(), "{line}");
    }
}

/// Error trackers collect these lines: each failure once, with its causes, and without the payload, which serde quotes.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_error_is_logged_once_an_attempt_with_its_causes_and_never_with_the_payload() {
    let bench = bench().await;
    let secret = "s3cr3t-41fe";
    let mut worker = Child::start(&bench, "fails");
    worker.until_log("worker started").await;
    let last = enqueue(&bench, "error", &json!(1), 1).await;
    let retried = enqueue(&bench, "error", &json!(2), 2).await;
    let panics = enqueue(&bench, "panic", &json!(3), 1).await;
    let misfit = enqueue(&bench, "typed", &json!({ "number": secret }), 1).await;
    let gives_up = enqueue(&bench, "cancel", &json!(4), 1).await;
    for id in [last, retried, panics, misfit, gives_up] {
        bench.until_finished(id).await;
    }
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    let log = worker.log();
    assert!(!log.contains(secret), "{log}");
    let ends = |id: tenure::JobId| {
        let of_it =
            log.lines().filter(|line| line.contains("attempt ended") && line.contains(&id.to_string()));
        of_it.map(str::trim_start).collect::<Vec<_>>()
    };
    let chain = r#"error="charge the card: no route: the cable is out""#;
    for (id, level, attempts, error) in [
        (last, "ERROR", 1, chain),
        (panics, "ERROR", 1, r#"error="the handler panicked: the roof is on fire""#),
        (misfit, "ERROR", 1, r#"error="the payload does not fit the type of its handler;"#),
        (retried, "WARN", 2, chain),
        (gives_up, "INFO", 1, r#"error="never mind""#),
    ] {
        let ends = ends(id);
        assert!(ends.len() == attempts && ends[0].contains(&format!(" {level} ")), "{id}: {ends:#?}");
        assert!(ends[0].contains(error) && ends[0].contains("attempt=1"), "{id}: {ends:#?}");
    }
    assert!(ends(retried)[1].contains(" ERROR "), "the last attempt is final: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_can_be_set_and_invalid_settings_are_refused() {
    let bench = bench().await;
    let work = |format: &str| {
        let mut command = bench.program(&["work", "q", "--exec", "true"]);
        command.env("TENURE_LOG_FORMAT", format);
        Child::spawn(command, "work")
    };
    for (format, is_json) in [("text", false), ("json", true)] {
        let mut worker = work(format);
        worker.until_log("worker started").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
        let parsed = worker.log().lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
        assert_eq!(parsed > 0, is_json, "{}", worker.log());
    }
    let mut refused = work("xml");
    assert_eq!(refused.wait().await, Some(2), "{}", refused.log());
    assert!(
        refused.log().contains("TENURE_LOG_FORMAT is \"xml\", but must be text or json"),
        "{}",
        refused.log()
    );
    let mut command = bench.program(&["work", "q", "--exec", "true"]);
    command.env("RUST_LOG", "tenure=loud");
    let mut refused = Child::spawn(command, "work");
    assert_eq!(refused.wait().await, Some(2), "{}", refused.log());
    assert!(
        refused.log().contains("RUST_LOG is \"tenure=loud\": error parsing level filter"),
        "{}",
        refused.log()
    );
}
