//! Settings: the program reads them from a file, the environment and flags.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Bench, bench};

/// A working folder with a `tenure.toml`.
fn folder(bench: &Bench, name: &str, toml: &str) -> PathBuf {
    let folder = bench.config.runtime_dir.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tenure.toml"), toml).unwrap();
    folder
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn run(command: &mut tokio::process::Command) -> Ran {
    let output = command.output().await.unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The line of `tenure config` about a setting.
async fn said(command: &mut tokio::process::Command, names: &[&str]) -> Vec<Value> {
    let ran = run(command).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all: Vec<Value> = serde_json::from_str(&ran.out).unwrap();
    let of = |name: &&str| all.iter().find(|setting| setting["name"] == **name).unwrap().clone();
    names.iter().map(of).collect()
}

fn setting(name: &str, value: impl Into<Value>, from: &str) -> Value {
    let value: Value = value.into();
    json!({ "name": name, "value": value, "from": from })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_overrides_the_environment_which_overrides_the_file() {
    let bench = bench().await;
    let toml = "handler_connections = 3\nstream = \"OF_FILE\"\nnats_url = \"nats://of-file\"\n";
    let here = folder(&bench, "here", toml);
    let names = ["TENURE_HANDLER_CONNECTIONS", "TENURE_STREAM", "NATS_URL", "TENURE_PAYLOAD_BYTES_MAX"];
    let arguments = ["config", "--output", "json"];
    let default = setting(names[3], "262144", "default");
    let of_file = setting(names[0], "3", "tenure.toml");
    let stream = setting(names[1], bench.config.stream.as_str(), "environment");

    let mut command = bench.program(&arguments);
    command.args(["--nats-url", "nats://of-flag:4222"]).current_dir(&here);
    let url = setting(names[2], "nats://of-flag:4222", "flag");
    assert_eq!(said(&mut command, &names).await, [of_file.clone(), stream.clone(), url, default.clone()]);

    let mut command = bench.program(&arguments);
    command.current_dir(&here);
    let url = setting(names[2], bench.config.nats_url.as_str(), "environment");
    assert_eq!(said(&mut command, &names).await, [of_file.clone(), stream, url, default.clone()]);

    let mut command = bench.program(&arguments);
    command.current_dir(&here).env_remove("NATS_URL").env_remove("TENURE_STREAM");
    let url = setting(names[2], "nats://of-file", "tenure.toml");
    let stream = setting(names[1], "OF_FILE", "tenure.toml");
    assert_eq!(said(&mut command, &names).await, [of_file, stream, url, default.clone()]);

    // The flag or the variable names another file, which replaces this one.
    let other = folder(&bench, "other", "handler_connections = 7\n").join("tenure.toml");
    let path = other.to_str().unwrap();
    let connections = |n: &str, from: &str| setting(names[0], n, from);
    let mut command = bench.program(&arguments);
    command.args(["--config", path]).current_dir(&here).env("TENURE_CONFIG", "/nowhere");
    assert_eq!(said(&mut command, &names[..1]).await, [connections("7", path)]);
    let mut command = bench.program(&arguments);
    command.current_dir(&here).env("TENURE_CONFIG", path);
    assert_eq!(said(&mut command, &names[..1]).await, [connections("7", path)]);
    let mut command = bench.program(&arguments);
    command.current_dir(&here).env("TENURE_CONFIG", "/dev/null");
    assert_eq!(said(&mut command, &names[..1]).await, [connections("10", "default")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_enqueued_with_the_urls_of_a_file_and_of_a_secret() {
    let bench = bench().await;
    let here = folder(&bench, "urls", &format!("nats_url = {:?}\n", bench.config.nats_url));
    std::fs::write(here.join("secret"), format!("{}\n", bench.config.database_url)).unwrap();
    let mut command = bench.program(&["enqueue", "q", "k", "1"]);
    command.env_remove("DATABASE_URL").env_remove("NATS_URL").env("DATABASE_URL_FILE", "secret");
    let ran = run(command.current_dir(&here)).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(bench.count("tenure.jobs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_refused_with_what_to_write_instead() {
    let bench = bench().await;
    let nowhere = Path::new("/");
    let typo = folder(&bench, "typo", "# Timers.\nstale_aftr = \"5min\"\n");
    let number = folder(&bench, "number", "stale_after = 300\n");
    let broken = folder(&bench, "broken", "stale_after = 5min\n");
    for (here, variable, code, says) in [
        (
            nowhere,
            "TENURE_STALE_AFTR",
            2,
            "TENURE_STALE_AFTR is not a setting; did you mean TENURE_STALE_AFTER?",
        ),
        (nowhere, "TENURE_COLOUR_OF_THE_SKY", 2, "is not a setting; `tenure config` lists them"),
        (
            typo.as_path(),
            "UNSUSPICIOUS",
            2,
            "stale_aftr (tenure.toml, line 2) is not a setting; did you mean stale_after?",
        ),
        (
            number.as_path(),
            "UNSUSPICIOUS",
            2,
            "stale_after (tenure.toml, line 1) is an integer, but must be a duration",
        ),
        (broken.as_path(), "UNSUSPICIOUS", 2, "tenure.toml, line 1: string values must be quoted"),
        (nowhere, "NATS_URL_FILE", 2, "NATS_URL and NATS_URL_FILE are both set; remove one of them"),
        (nowhere, "TENURE_CONFIG", 2, "TENURE_CONFIG: 5min must be a file that can be read: No such file"),
    ] {
        for arguments in [&["config"][..], &["jobs", "list"]] {
            let mut command = bench.program(arguments);
            let ran = run(command.current_dir(here).env(variable, "5min")).await;
            assert_eq!(ran.code, Some(code), "{variable}: {}", ran.err);
            assert!(ran.err.contains(says) && ran.out.is_empty(), "{}{}", ran.err, ran.out);
        }
    }
    // The variables that Kubernetes sets for a Service named tenure, and those around a command of `work --exec`.
    let mut command = bench.program(&["enqueue", "q", "k", "1"]);
    for name in ["TENURE_SERVICE_HOST", "TENURE_PORT_80_TCP_ADDR", "TENURE_JOB_ID", "TENURE_CHECKPOINT_FILE"]
    {
        command.env(name, "10.0.0.1");
    }
    let ran = run(&mut command).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_are_printed_without_their_secrets_and_also_if_they_contradict_each_other() {
    let bench = bench().await;
    for output in ["table", "json"] {
        let mut command = bench.program(&["config", "--output", output]);
        command
            .env("DATABASE_URL", "postgres://me:s3cr3t@h/d?password=s3cr3t")
            .env("NATS_URL", "nats://s3cr3t@n");
        let ran = run(&mut command).await;
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(!ran.out.contains("s3cr3t") && !ran.err.contains("s3cr3t"), "{}", ran.out);
        assert!(ran.out.contains("postgres://***@h/d") && ran.out.contains("nats://***@n"), "{}", ran.out);
    }
    // No URL, no server, and timers that a worker would refuse.
    let mut command = bench.program(&["config"]);
    command.env_remove("DATABASE_URL").env_remove("NATS_URL");
    let ran = run(&mut command).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let line = ran.out.lines().find(|line| line.contains("DATABASE_URL")).unwrap();
    assert!(line.contains("not set"), "{line}");
    assert!(ran.out.contains("SETTING") && ran.out.contains("TENURE_UNKNOWN_KIND_AFTER"), "{}", ran.out);
    let ran = run(command.env("TENURE_ACK_WAIT", "1s")).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("ack_wait (1s) must be longer than stale_after (1s 500ms)"), "{}", ran.err);
    let line = ran.out.lines().find(|line| line.contains("TENURE_ACK_WAIT")).unwrap();
    assert!(line.contains("1s") && line.contains("environment"), "{line}");
}
