//! The example of a web page that shows a job's progress, in a real browser.

use serde_json::json;
use tenure::Status;
use tokio::process::Command;

use super::{browser::Browser, calm};
use crate::{
    example::built,
    harness::{Bench, Child, free_address},
};

fn start(bench: &Bench, program: &std::path::Path, address: std::net::SocketAddr) -> Child {
    let mut command = Command::new(program);
    command.env("LISTEN", address.to_string()).envs(bench.environment());
    Child::spawn(command, "axum_progress")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_pushes_a_jobs_progress_and_goes_on_after_the_server_is_killed() {
    let program = built(&["axum_progress"]).await.join("axum_progress");
    let bench = calm().await;
    let address = free_address();
    let mut first = start(&bench, &program, address);
    first.until_log("open http://").await;
    let browser = Browser::at(address).await;
    browser.open("/").await;
    browser.value("document.forms[0].frames.value = 80").await;
    browser.click("button").await;
    browser.until("document.querySelector('progress').value >= 10").await;
    browser.until_text("[role=status]", " of 80").await;
    // One page load: what moves is pushed.
    let polls = "performance.getEntriesByType('resource').filter(e => e.name.includes('/jobs/')).length";
    assert!(browser.value(polls).await.as_u64().unwrap() <= 1);
    // The worker dies with the page's server, in the middle of the job.
    first.kill().await;
    let saved: i32 = bench.value("SELECT checkpoint::int FROM tenure.jobs").await;
    assert!(saved >= 8, "{saved}");
    let mut second = start(&bench, &program, address);
    second.until_log("open http://").await;
    browser.until_text("[role=status]", "done: /pictures/1.png").await;
    assert_eq!(browser.value("document.querySelector('progress').value").await, json!(100));
    let jobs: Vec<(String, i64)> = sqlx::query_as("SELECT status, fencing_token FROM tenure.job_history")
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    assert_eq!(jobs, [(Status::Completed.to_string(), 2)]);
    // A second watcher that comes late sees the end.
    browser.open("/404").await;
    let id: uuid::Uuid = bench.value("SELECT id FROM tenure.job_history").await;
    browser.open(&format!("/#{id}")).await;
    browser.until_text("[role=status]", "done: ").await;
}
