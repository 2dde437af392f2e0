//! The example: killed at 60 %, the next attempt resumes from the last checkpoint; its graph finds what one job finds.

use tenure::Status;

use crate::harness::{Bench, Child, bench};

#[path = "../../examples/code_evolution/repositories.rs"]
#[allow(dead_code, reason = "the demo uses the rest")]
mod repositories;

/// The number of commits in the repository: some five to thirty seconds of work for a debug build, and so more than one
/// checkpoint.
const COMMITS: u64 = 12_000;

/// The folder of these examples, built.
pub async fn built(names: &[&str]) -> std::path::PathBuf {
    // The examples of this program's own build, made if they are missing.
    let mut cargo = tokio::process::Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        // Cargo's variables about this package would make build scripts run again.
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "LD_LIBRARY_PATH"]
            .iter()
            .any(|of_cargo| name.starts_with(of_cargo))
        {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .args(["build", "--quiet", "--locked", "--all-features"])
        .args(names.iter().flat_map(|name| ["--example", name]))
        .current_dir(crate::harness::ROOT)
        .status()
        .await
        .unwrap();
    assert!(built.success());
    let this = std::env::current_exe().unwrap();
    this.parent().unwrap().parent().unwrap().join("examples")
}

fn start(bench: &Bench, program: &std::path::Path) -> Child {
    let mut command = tokio::process::Command::new(program);
    command.arg("work").envs(bench.environment());
    Child::spawn(command, "example")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_killed_at_60_percent_resumes_and_repeats_less_than_half() {
    let program = built(&["code_evolution"]).await.join("code_evolution");
    let bench = bench().await;
    let repo = bench.config.runtime_dir.join("repo");
    let path = repo.clone();
    tokio::task::spawn_blocking(move || repositories::make(&path, 7, COMMITS).unwrap()).await.unwrap();

    let mut first = start(&bench, &program);
    let mut enqueue = tokio::process::Command::new(&program);
    enqueue.args(["enqueue", repo.to_str().unwrap()]).envs(bench.environment());
    let id = String::from_utf8(enqueue.output().await.unwrap().stdout).unwrap();
    let id = id.trim().parse().unwrap();
    let is_on_its_way = "SELECT progress >= 60 AND checkpoint IS NOT NULL FROM tenure.jobs";
    bench.until(&format!("({is_on_its_way} WHERE id = '{id}')")).await;
    first.kill().await;
    let killed_at: f32 = bench.value("SELECT progress FROM tenure.jobs").await;
    let saved: i64 = bench.value("SELECT (checkpoint->>'commits')::bigint FROM tenure.jobs").await;
    let _second = start(&bench, &program);
    let done = bench.until_finished(id).await;
    assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 2), "{done:?}");

    let (commits, here): (i32, i32) =
        sqlx::query_as("SELECT commits, analyzed_here FROM code_evolution.results")
            .fetch_one(&bench.pool)
            .await
            .unwrap();
    let commits = f64::from(commits);
    #[expect(clippy::cast_precision_loss, reason = "a number of commits")]
    let all = COMMITS as f64;
    assert!((commits - all).abs() < 0.5, "{commits}");
    let done_before = f64::from(killed_at) / 100.0 * commits;
    let resumed_at = commits - f64::from(here);
    let repeated = (done_before - resumed_at) / done_before;
    eprintln!(
        "killed at {killed_at:.0} %, resumed at {:.0} %: {:.0} % of the work was repeated",
        resumed_at / commits * 100.0,
        repeated * 100.0
    );
    #[expect(clippy::cast_precision_loss, reason = "a number of commits")]
    let saved = saved as f64;
    assert!((resumed_at - saved).abs() < 0.5, "from the checkpoint");
    assert!(killed_at < 99.0 && repeated < 0.5, "killed at {killed_at}, resumed at {resumed_at}");
}

/// The graph of the example finds in the parts what the job that walks all commits finds.
#[tokio::test(flavor = "multi_thread")]
async fn the_report_of_parts_is_that_of_the_whole_and_waits_for_its_approval() {
    let program = built(&["code_evolution"]).await.join("code_evolution");
    let bench = bench().await;
    let repo = bench.config.runtime_dir.join("repo");
    let path = repo.clone();
    tokio::task::spawn_blocking(move || repositories::make(&path, 7, 500).unwrap()).await.unwrap();
    let _worker = start(&bench, &program);
    let enqueue = async |what: &str| -> tenure::JobId {
        let mut enqueue = tokio::process::Command::new(&program);
        enqueue.args([what, repo.to_str().unwrap()]).envs(bench.environment());
        let said = enqueue.output().await.unwrap();
        String::from_utf8(said.stdout).unwrap().trim().parse().unwrap()
    };
    let (whole, publish) = (enqueue("enqueue").await, enqueue("report").await);
    let whole = bench.until_finished(whole).await.output.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.effects WHERE step_kind = 'awaited' AND key = 'approved')").await;
    let merged: serde_json::Value =
        bench.value("SELECT output FROM tenure.job_history WHERE kind = 'code_evolution.merge'").await;
    for what in ["commits", "lines", "languages"] {
        assert_eq!(merged[what], whole[what], "{what}");
    }
    let approval = bench.program(&["jobs", "signal", &publish.to_string(), "approved", r#"{"by": "ann"}"#]);
    assert!({ approval }.status().await.unwrap().success());
    let said = bench.until_finished(publish).await.output.unwrap();
    assert_eq!(said, format!("{} lines in 500 commits, approved by ann", merged["lines"]));
}
