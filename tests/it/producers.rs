//! The producers of `examples/producers`, in every language whose interpreter and library this machine has: the first
//! answer is lost, the job is published twice more, and it runs once.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::json;
use tenure::{KindOptions, Worker};
use tokio::process::Command;

use crate::harness::{Bench, Proxy, Running, bench};

/// The command of a producer, without its four arguments.
struct Producer {
    name: &'static str,
    command: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(crate::harness::ROOT)
}

fn source(file: &str) -> String {
    root().join("examples/producers").join(file).to_string_lossy().into_owned()
}

async fn answers(command: &[&str]) -> bool {
    let (program, arguments) = command.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.is_ok_and(|status| status.success())
}

/// A module finds its libraries beside itself.
async fn in_node(folder: &Path) -> Option<Vec<String>> {
    let libraries = root().join(".tools/node/node_modules");
    if !answers(&["node", "--version"]).await || !libraries.join("@nats-io/jetstream").exists() {
        return None;
    }
    std::fs::copy(source("produce.mjs"), folder.join("produce.mjs")).unwrap();
    std::os::unix::fs::symlink(libraries, folder.join("node_modules")).unwrap();
    Some(vec!["node".into(), folder.join("produce.mjs").to_string_lossy().into_owned()])
}

/// Uses Debian's package of the library (golang-github-nats-io-go-nats-dev), or the one in `GOPATH`.
async fn in_go(folder: &Path) -> Option<Vec<String>> {
    let path = std::env::var("GOPATH").unwrap_or_else(|_| "/usr/share/gocode".into());
    let library = PathBuf::from(&path).join("src/github.com/nats-io/nats.go");
    if !answers(&["go", "version"]).await || !library.exists() {
        return None;
    }
    let program = folder.join("produce-go").to_string_lossy().into_owned();
    let mut build = Command::new("go");
    build
        .args(["build", "-o", &program, &source("produce.go")])
        .env("GOPATH", path)
        .env("GO111MODULE", "off");
    let output = build.env("GOCACHE", folder.join("go-cache")).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(vec![program])
}

async fn all(folder: &Path) -> Vec<Producer> {
    let interpreted = |program: &str, file: &str| Some(vec![program.to_owned(), source(file)]);
    let when = |is_there: bool, command: Option<Vec<String>>| command.filter(|_| is_there);
    let found = [
        // `make test` installs its library.
        ("python", interpreted("python3", "produce.py")),
        ("node", in_node(folder).await),
        ("go", in_go(folder).await),
        ("nats", when(answers(&["nats", "--version"]).await, interpreted("sh", "produce.sh"))),
        ("bash", when(answers(&["bash", "--version"]).await, interpreted("bash", "produce.bash"))),
    ];
    let mut producers = Vec::new();
    for (name, command) in found {
        match command {
            Some(command) => producers.push(Producer { name, command }),
            None => eprintln!("skipped: no {name} here, or not its library (scripts/setup test)"),
        }
    }
    producers
}

/// The producer's output, once the stream has confirmed the message.
async fn publish(bench: &Bench, producer: &Producer, nats_url: &str) -> String {
    let payload = json!({ "from": producer.name }).to_string();
    let (program, arguments) = producer.command.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).args(["q", "known", &payload, &format!("{}-1", producer.name)]);
    command.envs(bench.environment()).env("NATS_URL", nats_url).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{} does not end", producer.name)).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", producer.name);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_any_producer_publishes_again_after_a_lost_answer_runs_once() {
    let bench = bench().await;
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    let worker = Worker::builder(&bench.tenure).handle_kind("known", KindOptions::new(), echo);
    let worker = Running::start(worker.concurrency("q", 10));
    bench.until_count("tenure.workers", 1).await;
    let folder = bench.config.runtime_dir.join("producers");
    std::fs::create_dir_all(&folder).unwrap();
    let producers = all(&folder).await;
    for producer in &producers {
        let name = producer.name;
        let link = Proxy::to_url(&bench.config.nats_url).await;
        link.lose_answer_to(b"HPUB ");
        let first = publish(&bench, producer, &link.of(&bench.config.nats_url)).await;
        assert_eq!(link.lost(), 1, "{name}: no answer was lost");
        assert!(first.ends_with("(accepted before)"), "{name}: {first}");
        assert!(first.split(' ').next().unwrap().parse::<u64>().is_ok(), "{name}: {first}");
        let again = publish(&bench, producer, &bench.config.nats_url).await;
        assert_eq!(again, first, "{name}");
        bench.until_count(&format!("tenure.job_history WHERE output = '{{\"from\": \"{name}\"}}'"), 1).await;
    }
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, i64::try_from(producers.len()).unwrap());
    assert_eq!(bench.count("tenure.job_executions_all").await, i64::try_from(producers.len()).unwrap());
    worker.stop().await;
}

/// The stream forgets ids after a short time; the key in Postgres remains.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_known_after_the_stream_has_forgotten_it() {
    let bench = bench().await;
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    let worker = Worker::builder(&bench.tenure).handle_kind("known", KindOptions::new(), echo);
    let worker = Running::start(worker.concurrency("q", 10));
    bench.until_count("tenure.workers", 1).await;
    let python = Producer { name: "python", command: vec!["python3".into(), source("produce.py")] };
    let first = publish(&bench, &python, &bench.config.nats_url).await;
    bench.until_count("tenure.job_history", 1).await;
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    // A new stream remembers no key.
    bench.js.delete_stream(&bench.config.stream).await.unwrap();
    let again = publish(&bench, &python, &bench.config.nats_url).await;
    assert!(!again.contains("before") && again != first, "{again}");
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
    assert_eq!(bench.count("tenure.all_jobs").await, 1);
    worker.stop().await;
}
