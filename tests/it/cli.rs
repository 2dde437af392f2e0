//! The program, with the commands that a user types.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::{JobContext, JobError, KindOptions, Outcome, Worker};

use crate::harness::{Bench, Child, Running, bench, bench_with};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn run(bench: &Bench, arguments: &[&str]) -> Ran {
    let output = bench.program(arguments).output().await.unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_prints_the_id_and_says_when_the_key_was_taken() {
    let bench = bench().await;
    let first =
        run(&bench, &["enqueue", "q", "k", "{\"a\": 1}", "--unique-key", "u", "--max-attempts", "9"]).await;
    assert_eq!(first.code, Some(0), "{}", first.err);
    let id: tenure::JobId = first.out.trim().parse().unwrap();
    let again = run(&bench, &["enqueue", "q", "k", "2", "--unique-key", "u", "--output", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&again.out).unwrap(), json!({"id": id, "duplicate": true}));
    assert!(again.err.contains("nothing was enqueued"), "{}", again.err);
    let later = run(&bench, &["enqueue", "q", "k", "3", "--delay", "1h"]).await;
    assert_eq!(later.code, Some(0));
    let rows = bench.text("SELECT payload, max_attempts, scheduled_at > now() + interval '50 min' FROM tenure.jobs ORDER BY id").await;
    assert_eq!(rows, "(\"{\"\"a\"\": 1}\",9,f)\n(3,5,t)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_may_be_a_negative_number() {
    let bench = bench().await;
    for (number, shown) in [("-5", "-5"), ("-0.25", "-0.25"), ("-1e3", "-1000")] {
        let ran = run(&bench, &["enqueue", "q", "k", number]).await;
        assert_eq!(ran.code, Some(0), "{number}: {}", ran.err);
        let id = ran.out.trim();
        assert_eq!(
            bench.text(&format!("SELECT payload FROM tenure.jobs WHERE id = '{id}'")).await,
            format!("({shown})")
        );
    }
    let add = ["schedules", "add", "nightly", "0 3 * * *", "q", "k", "-5"];
    assert_eq!(run(&bench, &add).await.code, Some(0));
    // An unknown flag is still an error.
    let wrong = run(&bench, &["enqueue", "q", "k", "-x"]).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.out);
}

/// Checks every command and subcommand.
#[tokio::test(flavor = "multi_thread")]
async fn the_help_of_each_command_shows_its_own_options_first_and_the_global_ones_last() {
    let bench = bench().await;
    let mut rest = vec![vec![]];
    let mut seen = 0;
    while let Some(command) = rest.pop() {
        let mut arguments = command.clone();
        arguments.push("--help".to_owned());
        let ran = run(&bench, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(ran.code, Some(0), "{command:?}: {}", ran.err);
        let (own, global) =
            ran.out.split_once("\nGlobal options:\n").unwrap_or_else(|| panic!("{}", ran.out));
        for option in ["--output", "--config", "--database-url", "--nats-url", "--cell"] {
            let line = format!("      {option} <");
            assert!(global.contains(&line) && !own.contains(&line), "{command:?}: {option}: {}", ran.out);
        }
        assert_eq!(global.matches("\n      --").count(), 4, "{}", ran.out);
        assert!(!global.contains(":\n\n") && own.contains("\nOptions:\n"), "{}", ran.out);
        seen += 1;
        let names = own.split_once("\nCommands:\n").map_or("", |(_, names)| names);
        let names = names.lines().take_while(|line| !line.is_empty());
        let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        rest.extend(names.map(|name| command.iter().cloned().chain([name.to_owned()]).collect()));
    }
    assert!(seen > 25, "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_exits_1_or_2_and_says_what_to_do() {
    let bench = bench().await;
    let cases: [(&[&str], i32, &str); 6] = [
        (&["enqueue", "q", "k", "oops"], 2, "not JSON"),
        (&["enqueue", "a.b", "k", "1"], 2, "queue \"a.b\" is not valid"),
        (&["enqueue", "q", "k", "1", "--delay", "soon"], 2, "--delay"),
        (
            &["jobs", "show", "01a1fb9b-f0d9-7081-8339-62abe2722240"],
            1,
            "01a1fb9b-f0d9-7081-8339-62abe2722240 does not exist",
        ),
        (&["jobs", "list", "--status", "done"], 2, "completed"),
        (&["work", "q"], 2, "--exec"),
    ];
    for (arguments, code, text) in cases {
        let ran = run(&bench, arguments).await;
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(text), "{arguments:?}: {}", ran.err);
        assert!(ran.out.is_empty());
    }
    // A reader that closes the pipe early causes no failure.
    let closed = format!("{} jobs list | true", env!("CARGO_BIN_EXE_tenure"));
    let piped = tokio::process::Command::new("sh")
        .args(["-c", &closed])
        .envs(bench.environment())
        .output()
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(&piped.stderr).contains("panicked"));
    let nowhere = bench.program(&["jobs", "list"]).env_remove("DATABASE_URL").output().await.unwrap();
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("DATABASE_URL is not set"));
    let wrong =
        bench.program(&["work", "q", "--exec", "true"]).env("TENURE_ACK_WAIT", "1s").output().await.unwrap();
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert!(text.contains("ack_wait (1s)") && text.contains("stale_after (1s 500ms)"), "{text}");
    assert_eq!(wrong.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_list_show_and_watch_tell_a_jobs_story() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let handler = |payload: Value, ctx: JobContext| async move {
        if payload == json!("bad") {
            return Err(JobError::permanent("\u{1b}[31mno\u{1b}[0m"));
        }
        for percent in [20_u8, 60, 90] {
            ctx.progress("walking", f32::from(percent), "a step").await?;
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        Outcome::done("there")
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 2),
    );
    let good = bench.tenure.enqueue(tenure::JobRequest::new("q", "walk", json!("good"))).await.unwrap().id;
    let watched = run(&bench, &["jobs", "watch", &good.to_string()]).await;
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    // Without a terminal, each change is one line.
    for part in ["processing · attempt 1 · 60 % · walking · a step", "completed · attempt 1"] {
        assert!(watched.out.contains(part), "no {part:?} in\n{}", watched.out);
    }
    let bad = bench.tenure.enqueue(tenure::JobRequest::new("q", "walk", json!("bad"))).await.unwrap().id;
    assert_eq!(run(&bench, &["jobs", "watch", &bad.to_string()]).await.code, Some(1));

    let list = run(&bench, &["jobs", "list"]).await.out;
    assert!(
        list.contains(&good.to_string()) && list.contains(&bad.to_string()) && list.contains("completed"),
        "{list}"
    );
    assert!(!list.contains('\u{1b}'), "an error text must not steer the terminal");
    let failed: Value = serde_json::from_str(
        &run(&bench, &["jobs", "list", "--status", "failed", "--output", "json"]).await.out,
    )
    .unwrap();
    assert_eq!((failed.as_array().unwrap().len(), &failed[0]["id"]), (1, &json!(bad)));
    let show = run(&bench, &["jobs", "show", &good.to_string()]).await.out;
    for part in ["completed", "1 of 5", "\"there\"", "TOKEN", "walk"] {
        assert!(show.contains(part), "no {part:?} in\n{show}");
    }
    let shown: Value =
        serde_json::from_str(&run(&bench, &["jobs", "show", &bad.to_string(), "--output", "json"]).await.out)
            .unwrap();
    assert_eq!(shown["executions"][0]["outcome"], "failed");
    worker.stop().await;
}

/// A real terminal, made by `script`, so that the bar is drawn.
#[tokio::test(flavor = "multi_thread")]
async fn watching_on_a_terminal_draws_a_bar_that_moves() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let handler = |_, ctx: JobContext| async move {
        for percent in [30_u8, 60] {
            ctx.progress("walking", f32::from(percent), "").await?;
            tokio::time::sleep(Duration::from_millis(800)).await;
        }
        Ok::<_, JobError>(())
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 2),
    );
    let id = bench.tenure.enqueue(tenure::JobRequest::new("q", "walk", json!(1))).await.unwrap().id;
    let command = format!("{} jobs watch {id}", env!("CARGO_BIN_EXE_tenure"));
    let output = tokio::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .envs(bench.environment())
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["█", "30 %", "60 %", "completed"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("% processing"), "the percentage stands once:\n{text}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_private_servers_prints_their_urls_and_ends_them() {
    let bench = bench().await;
    let folder = bench.config.runtime_dir.join("dev");
    std::fs::create_dir_all(&folder).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(&bench.config.runtime_dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let path = folder.to_string_lossy().into_owned();
    let urls_of = |dev: &Child| {
        let log = dev.log();
        ["DATABASE_URL", "NATS_URL"].map(|name| {
            let line = log.lines().find_map(|line| line.strip_prefix(&format!("export {name}="))).unwrap();
            (name.to_owned(), line.to_owned())
        })
    };
    let mut dev = Child::spawn(bench.program(&["dev", "--folder", &path]), "dev");
    dev.until_log("export NATS_URL=").await;
    let urls = urls_of(&dev);
    let tenure = |arguments: &'static [&'static str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).envs(urls.clone()).stdin(Stdio::null());
        command
    };
    // The servers are migrated and run a first job without any Rust.
    let enqueued = tenure(&["enqueue", "demo", "hello", "{\"name\": \"world\"}"]).output().await.unwrap();
    assert!(enqueued.status.success(), "{}", String::from_utf8_lossy(&enqueued.stderr));
    let id = String::from_utf8(enqueued.stdout).unwrap().trim().to_owned();
    let mut worker =
        Child::spawn(tenure(&["work", "demo", "--exec", "echo '{\"output\": \"hello\"}'"]), "dev-work");
    let watched = tenure(&["jobs", "watch", "--output", "json"]).arg(&id).output().await.unwrap();
    assert!(String::from_utf8(watched.stdout).unwrap().contains("\"output\":\"hello\""));
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().await, Some(0));
    // A second `tenure dev` in the same folder prints where the first one is.
    let second = bench.program(&["dev", "--folder", &path]).output().await.unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8(second.stderr).unwrap().contains(&urls[1].1));

    let pids: Vec<i32> = ["postgres/data/postmaster.pid", "nats/nats.pid"]
        .iter()
        .map(|file| {
            std::fs::read_to_string(folder.join(file))
                .unwrap()
                .lines()
                .next()
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        })
        .collect();
    dev.signal(Signal::INT);
    assert_eq!(dev.wait().await, Some(0), "{}", dev.log());
    for pid in &pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "server {pid} was left behind");
    }
    // Killed, `tenure dev` leaves no server behind either; the next one finds the stored data.
    let mut dev = Child::spawn(bench.program(&["dev", "--folder", &path]), "dev");
    dev.until_log("export NATS_URL=").await;
    let pid: i32 = std::fs::read_to_string(folder.join("postgres/data/postmaster.pid"))
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(urls_of(&dev), urls, "the variables of a terminal go on to work");
    let listed = tenure(&["jobs", "list", "--output", "json"]).output().await.unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains(&id));
    dev.kill().await;
    // At once: the old server may still hold its port.
    let mut next = Child::spawn(bench.program(&["dev", "--folder", &path]), "dev");
    next.until_log("export NATS_URL=").await;
    assert_eq!(urls_of(&next), urls);
    next.kill().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(std::time::Instant::now() < deadline, "postgres outlives a killed `tenure dev`");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The README's second job, word for word.
#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_job_in_a_shell_script_runs() {
    let bench = bench().await;
    let readme = include_str!("../../README.md");
    let script = readme
        .split("```sh")
        .find(|block| block.contains("word-count.sh"))
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let folder = bench.config.runtime_dir.join("readme");
    std::fs::create_dir_all(&folder).unwrap();
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = tokio::process::Command::new("sh")
        .args(["-euc", script])
        .current_dir(&folder)
        .envs(bench.environment())
        .env("PATH", path)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        bench.count("tenure.job_history WHERE output = '5' AND kind = 'word_count'").await,
        1,
        "{text}"
    );
    assert!(text.contains("completed"), "{text}");
}

/// Retention removes a key between the statement that found it taken and the one that asks for its holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_leaves_while_an_enqueue_asks_who_holds_it_is_free() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(30)).await;
    bench
        .execute("INSERT INTO tenure.job_keys (scope, key, job_id) VALUES ('q', 'old', gen_random_uuid())")
        .await;
    let mut enqueue = bench.program(&["enqueue", "q", "k", "1", "--unique-key", "old"]);
    enqueue.env("TENURE_FAULT", "enqueued=stop").stdout(Stdio::piped()).stderr(Stdio::piped());
    let enqueue = enqueue.spawn().unwrap();
    let pid = i32::try_from(enqueue.id().unwrap()).unwrap();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.execute("DELETE FROM tenure.job_keys").await, 1);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT).unwrap();
    let output = enqueue.wait_with_output().await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !error.contains("holds the unique key"), "{error}");
    let id = String::from_utf8(output.stdout).unwrap();
    let id = format!("({})", id.trim());
    assert_eq!(bench.text("SELECT job_id FROM tenure.job_keys WHERE key = 'old'").await, id);
    assert_eq!(bench.text("SELECT id FROM tenure.jobs").await, id);
}
