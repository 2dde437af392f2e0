//! Running a finished job again, and a schedule's job now.

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Worker, jobs::RunAgainError,
    schedules::Schedule,
};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Running, bench},
};

fn worker(bench: &Bench) -> Running {
    let handler = |payload: Value, _: JobContext| async move {
        match payload["how"].as_str() {
            Some("fail") => Err(JobError::permanent("no")),
            Some("cancel") => Ok(Outcome::Cancel("not today".into())),
            _ => Outcome::done(payload),
        }
    };
    Running::start(Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 4))
}

async fn ended(bench: &Bench, how: &str) -> JobId {
    // More digits than a number of JavaScript has.
    let payload = format!(r#"{{"how": "{how}", "n": 12345678901234567890}}"#);
    let request = JobRequest::from_json("q", "k", payload).max_attempts(3).unique_key(how);
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    bench.until_finished(id).await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_job_runs_again_as_a_new_one() {
    let bench = bench().await;
    let worker = worker(&bench);
    for how in ["done", "cancel"] {
        let first = ended(&bench, how).await;
        let again = bench.tenure.run_again(first).await.unwrap();
        assert!(again.id != first && !again.duplicate);
        let (old, new) = (bench.until_finished(first).await, bench.until_finished(again.id).await);
        assert_eq!(
            (new.status, &new.queue, &new.kind, new.max_attempts),
            (old.status, &old.queue, &old.kind, 3)
        );
        let text = |row: &tenure::rows::JobRow| row.payload_json().map(|json| json.get().to_owned());
        assert_eq!(text(&new), text(&old));
        assert!(text(&new).unwrap().contains("12345678901234567890"));
    }
    let dead = ended(&bench, "fail").await;
    let error = bench.tenure.run_again(dead).await.unwrap_err();
    assert!(
        matches!(error, RunAgainError::Dead(_)) && error.to_string().contains("tenure jobs retry"),
        "{error}"
    );
    let waits = JobRequest::new("q", "k", json!(1)).delay(std::time::Duration::from_secs(3_600));
    let waits = bench.tenure.enqueue(waits).await.unwrap().id;
    let error = bench.tenure.run_again(waits).await.unwrap_err();
    assert!(matches!(error, RunAgainError::Live { status: Status::Queued, .. }), "{error}");
    let error = bench.tenure.run_again(JobId::generate()).await.unwrap_err();
    assert!(matches!(error, RunAgainError::NotFound(_)), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_and_the_dashboard_run_it_again_once_for_each_page() {
    let bench = bench().await;
    let worker = worker(&bench);
    let done = ended(&bench, "done").await.to_string();
    let run = async |arguments: &[&str]| {
        let output = bench.program(arguments).output().await.unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, id) = run(&["jobs", "again", &done]).await;
    assert_eq!((code, bench.until_finished(id.trim().parse().unwrap()).await.status), (0, Status::Completed));
    let none = JobId::generate().to_string();
    let (code, said) = run(&["jobs", "again", &none]).await;
    assert!(code == 1 && said.contains("there is no job"), "{said}");

    let report = JobRequest::new("q", "report", json!({ "how": "daily" })).max_attempts(2);
    bench.tenure.put_schedule(Schedule::new("daily", "0 3 1 1 *", report)).await.unwrap();
    let (code, id) = run(&["schedules", "run", "daily"]).await;
    let row = bench.until_finished(id.trim().parse().unwrap()).await;
    assert_eq!((code, row.kind.as_str(), row.max_attempts), (0, "report", 2));
    let (code, said) = run(&["schedules", "run", "weekly"]).await;
    assert!(code == 1 && said.contains("there is no schedule"), "{said}");

    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    assert!(dashboard.get(&format!("/jobs/{done}")).await.body.contains(&format!("/jobs/{done}/again")));
    let ran = dashboard.post(&format!("/jobs/{done}/again"), "once=7").await;
    let job = ran.header("location").unwrap().strip_prefix("/jobs/").unwrap().to_owned();
    assert!(dashboard.said(&ran).await.starts_with("The job runs again"));
    assert_ne!(job, done);
    let twice = dashboard.post(&format!("/jobs/{done}/again"), "once=7").await;
    assert_eq!(twice.header("location"), Some(format!("/jobs/{job}").as_str()));
    let reader = Dashboard::start(&bench, &[], &[]).await;
    assert!(!reader.get(&format!("/jobs/{done}")).await.body.contains("/again"));
    worker.stop().await;
}
