//! The producers of `examples/producers`, in every language whose interpreter and library this machine has.
//!
//! Over NATS: the first answer is lost, the job is published twice more, and it runs once. By SQL: the job exists if and
//! when the producer's own transaction commits.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::json;
use tenure::{KindOptions, Worker};
use tokio::process::Command;

use uuid::Uuid;

use crate::{
    effects_sql::{node_program, psql},
    harness::{Bench, Proxy, Running, bench, bench_with_servers},
};

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

/// The programs of `examples/producers/sql`, each as its driver's users write it.
async fn by_sql(bench: &Bench) -> Vec<Producer> {
    let path = |file: &str| root().join("examples/producers/sql").join(file);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut all: Vec<Producer> = [
        ("psycopg", "python3", "order_psycopg.py"),
        ("SQLAlchemy", "python3", "order_sqlalchemy.py"),
        ("Django", "python3", "order_django.py"),
        ("psql", "sh", "order.sh"),
    ]
    .into_iter()
    .map(|(name, program, file)| Producer { name, command: vec![program.into(), text(&path(file))] })
    .collect();
    let folder = bench.config.runtime_dir.join("sql");
    if let Some(program) = node_program(&folder.join("pg"), &path("order_pg.mjs"), "node", "pg") {
        all.push(Producer { name: "node-postgres", command: vec!["node".into(), text(&program)] });
    }
    let folder = folder.join("prisma");
    if let Some(program) = node_program(&folder, &path("order_prisma.mjs"), "prisma", "@prisma/adapter-pg") {
        std::fs::copy(path("schema.prisma"), folder.join("schema.prisma")).unwrap();
        let mut generate = Command::new("node");
        generate.arg(folder.join("node_modules/prisma/build/index.js")).args([
            "generate",
            "--schema",
            "schema.prisma",
        ]);
        // It looks for the engine of `prisma migrate`, which this needs not.
        generate
            .current_dir(&folder)
            .env("PRISMA_SCHEMA_ENGINE_BINARY", "/bin/true")
            .env("CHECKPOINT_DISABLE", "1");
        let output = generate.output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        all.push(Producer { name: "Prisma", command: vec!["node".into(), text(&program)] });
    }
    all
}

/// Runs a program of `examples/producers/sql` as a role that may enqueue and write orders, and nothing else.
async fn place(url: &str, producer: &Producer, mail: &str) -> Result<Uuid, String> {
    let path = format!("{}:{}", psql().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(&producer.command[0]);
    command.args(&producer.command[1..]).arg(mail).env("DATABASE_URL", url).env("PATH", path);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await.unwrap().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(error.into_owned());
    }
    Ok(out.trim().parse().unwrap_or_else(|_| panic!("{}: {out}{error}", producer.name)))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_library_enqueues_by_sql_in_its_own_transaction_as_a_role_that_may_do_nothing_else() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["mail".into()]).await.unwrap();
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    for sql in [
        "CREATE TABLE public.orders (id serial PRIMARY KEY, mail text NOT NULL)",
        "CREATE ROLE web LOGIN PASSWORD 'pw' IN ROLE tenure_producer",
        "GRANT SELECT, INSERT ON public.orders TO web",
        "GRANT USAGE ON SEQUENCE public.orders_id_seq TO web",
    ] {
        bench.execute(sql).await;
    }
    let (before, host) = bench.config.database_url.split_once('@').unwrap();
    let url = format!("{}//web:pw@{host}", before.split_once("//").unwrap().0);
    let echo = |value, _| async move { tenure::Outcome::done(value) };
    let worker = Worker::builder(&bench.tenure).handle_kind("confirm", KindOptions::new(), echo);
    let worker = Running::start(worker.concurrency("mail", 4));
    let orders = async || bench.count("public.orders").await;
    for producer in &by_sql(&bench).await {
        let name = producer.name;
        let before = orders().await;
        let job = place(&url, producer, &format!("{name}@example.com"))
            .await
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let done = bench.until_finished(tenure::JobId(job)).await;
        let order: i32 = bench.value("SELECT max(id) FROM public.orders").await;
        assert_eq!(done.output, Some(json!({ "order": order })), "{name}");
        assert_eq!(orders().await, before + 1, "{name}");
        if name != "psql" {
            let error = place(&url, producer, "nowhere").await.unwrap_err();
            assert!(error.contains("nowhere is no address"), "{name}: {error}");
            assert_eq!(orders().await, before + 1, "{name}: rolled back");
        }
    }
    let trigger = std::fs::read_to_string(root().join("examples/producers/sql/trigger.sql")).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(trigger)).execute(&bench.pool).await.unwrap();
    let placed = bench.count("tenure.all_jobs").await;
    assert_eq!(placed, orders().await, "no job of an order that was rolled back");
    bench.execute("INSERT INTO public.orders (mail) VALUES ('trigger@example.com')").await;
    bench.until_count("tenure.job_history WHERE status = 'completed'", placed + 1).await;
    bench.until_stream_is_empty(Duration::from_secs(10)).await;
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
