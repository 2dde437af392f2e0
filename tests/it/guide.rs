//! The guide: the tutorial word for word, its examples, and the settings that a page shows.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tenure::Status;
use tokio::process::Command;

use crate::{
    example::built,
    harness::{Bench, Child, bench, bench_with},
};

const EXAMPLES: [&str; 9] = [
    "exactly_once",
    "groups",
    "long_job",
    "retry_policy",
    "schedule",
    "sealed",
    "sentry",
    "tenant_spans",
    "transactional_enqueue",
];

pub fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(crate::harness::ROOT).join("docs").join(name)).unwrap()
}

/// The blocks of code of a language, each with the line before it.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<(&'p str, &'p str)> {
    let open = format!("\n```{language}\n");
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(&open) {
        let before = rest[..at].rsplit('\n').next().unwrap();
        let code = &rest[at + open.len()..];
        let end = code.find("\n```").unwrap() + 1;
        found.push((before, &code[..end]));
        rest = &code[end..];
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_of_the_guide_reaches_the_end_that_it_checks() {
    let folder = built(&EXAMPLES).await;
    for name in EXAMPLES {
        let began_at = Instant::now();
        let mut command = Command::new(folder.join(name));
        command.stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(90), command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{name} does not end")).unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {out}\n{err}");
        eprintln!("{name}, in {:.1} s:\n{out}", began_at.elapsed().as_secs_f32());
    }
}

/// Timers that find a dead worker within seconds, and let no slow machine look dead.
async fn tutorial() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(40);
        config.timing.renew_every = Duration::from_secs(1);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorials_shell_script_runs_word_for_word() {
    let page = page("tutorial.md");
    let steps: Vec<&str> = blocks(&page, "sh")
        .into_iter()
        .filter_map(|(before, code)| (before == "<!-- run -->").then_some(code))
        .collect();
    assert_eq!(steps.len(), 5, "{steps:?}");
    let bench = tutorial().await;
    let folder = bench.config.runtime_dir.join("tutorial");
    std::fs::create_dir_all(&folder).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    // The trap leaves no worker behind, even after a failure.
    let script = format!("trap 'kill ${{first-}} ${{second-}} 2>/dev/null || :' EXIT\n{}", steps.concat());
    let mut command = Command::new("sh");
    command.args(["-euc", &script]).current_dir(&folder).envs(bench.environment()).env("PATH", path);
    let output = tokio::time::timeout(Duration::from_secs(180), command.kill_on_drop(true).output()).await;
    let output = output.expect("the tutorial does not end").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let ended = "SELECT payload, status, attempt, output FROM tenure.all_jobs ORDER BY id";
    assert_eq!(
        bench.text(ended).await,
        "(3,completed,1,\"\"\"3 pictures\"\"\")\n(20,completed,2,\"\"\"20 pictures\"\"\")",
        "{out}\n{err}"
    );
    assert_eq!(
        bench.count("tenure.recovery_events WHERE event = 'reset' AND path = 'vanished'").await,
        1,
        "{out}"
    );
    assert!(out.contains("how many pictures is \"many\"?"), "the dead letter says why:\n{out}");
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorials_job_in_rust_goes_on_from_its_checkpoint_after_a_kill() {
    let program = built(&["first_job"]).await.join("first_job");
    let bench = tutorial().await;
    let work = || {
        let mut command = Command::new(&program);
        command.arg("work").envs(bench.environment());
        Child::spawn(command, "first_job")
    };
    let mut first = work();
    let output = Command::new(&program).envs(bench.environment()).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let id = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE progress >= 20 AND checkpoint IS NOT NULL)").await;
    first.kill().await;
    let began_at = Instant::now();
    let _second = work();
    let done = bench.until_finished(id).await;
    assert_eq!((done.status, done.attempt), (Status::Completed, 2), "{done:?}");
    assert_eq!(done.output, Some("20 pictures".into()));
    assert!(
        began_at.elapsed() < Duration::from_secs(19),
        "it began at the start, and not from its checkpoint"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timers_that_the_guide_shows_are_accepted_or_refused_as_it_says() {
    let page = page("timers.md");
    let bench = bench().await;
    let folder = bench.config.runtime_dir.join("timers");
    std::fs::create_dir_all(&folder).unwrap();
    let mut said = String::new();
    let examples = blocks(&page, "toml");
    assert_eq!(examples.len(), 4, "{examples:?}");
    for (n, (before, settings)) in examples.into_iter().enumerate() {
        let file = folder.join(format!("{n}.toml"));
        std::fs::write(&file, settings).unwrap();
        // Without the bench's environment, which would override the file.
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(["config", "--config"]).arg(&file);
        command.env("DATABASE_URL", &bench.config.database_url).env("NATS_URL", &bench.config.nats_url);
        let output = command.output().await.unwrap();
        let expected = if before == "<!-- refused -->" { 2 } else { 0 };
        said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{settings}{said}");
    }
    let shown = blocks(&page, "text");
    assert!(said.contains(shown.last().unwrap().1.trim()), "{said}");
}

/// Runs `scripts/check_docs.py`.
#[tokio::test(flavor = "multi_thread")]
async fn links_lead_somewhere_and_code_on_the_pages_is_that_of_the_examples() {
    let script = Path::new(crate::harness::ROOT).join("scripts/check_docs.py");
    let output = Command::new("python3").arg(script).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
