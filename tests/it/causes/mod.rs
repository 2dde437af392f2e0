//! Causes: a wrong setting is named where people look, in the error's text and in the log, and not twice a second for
//! ever.

mod incidents;
mod outages;

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{JobContext, JobError, JobRequest, KindOptions, StoreError, Tenure, Worker};
use tokio::sync::Semaphore;

use crate::harness::{Bench, Child, Proxy, Running, bench, bench_with, bench_with_servers};

const SECRET: &str = "s3cr3t-8f1c";

/// The address of this bench's Postgres with another password, database or host.
fn wrong(bench: &Bench, what: &str) -> String {
    let url = &bench.config.database_url;
    let (scheme, rest) = url.split_once("://").unwrap();
    let (user, rest) = rest.split_once('@').unwrap();
    let (user, own) = user.split_once(':').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    match what {
        "password" => format!("{scheme}://{user}:{SECRET}@{host}/{database}"),
        "database" => format!("{scheme}://{user}:{own}@{host}/nowhere"),
        "host" => format!("{scheme}://{user}:{SECRET}@nowhere.invalid/{database}"),
        "port" => format!("{scheme}://{user}:{SECRET}@127.0.0.1:1/{database}"),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_database_host_or_port_is_named_in_the_error_without_the_password() {
    let bench = bench().await;
    for (what, words) in [
        ("password", "password authentication failed for user"),
        ("database", "database \"nowhere\" does not exist"),
        ("host", "failed to lookup address information"),
        ("port", "Connection refused"),
    ] {
        let mut config = bench.config.clone();
        config.database_url = wrong(&bench, what);
        config.timing.database_within = Duration::from_secs(1);
        let tenure = Tenure::connect(&config).await.unwrap();
        // Over a connection of its own, and over the pool.
        let enqueued = tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap_err().to_string();
        let listed = tenure.schedules().await.unwrap_err().to_string();
        for text in [enqueued, listed] {
            assert!(
                text.starts_with("the database is unavailable: ") && text.contains(words),
                "{what}: {text}"
            );
            assert!(!text.contains(SECRET), "{text}");
        }
        let mut command = bench.program(&["schedules", "list"]);
        command.env("DATABASE_URL", &config.database_url).env("TENURE_DATABASE_WITHIN", "1s");
        let said = String::from_utf8(command.output().await.unwrap().stderr).unwrap();
        assert_eq!(said.matches(words).count(), 1, "{said}");
        assert!(!said.contains(SECRET), "{said}");
        tenure.close().await;
    }
}

/// Two jobs, one connection: the second's transaction waits in vain.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_released_because_handlers_hold_all_connections_names_the_setting() {
    let bench = bench_with(|config| {
        config.handler_connections = 1;
        config.timing.database_within = Duration::from_millis(500);
    })
    .await;
    let go = Arc::new(Semaphore::new(0));
    let handler = |payload: Value, ctx: JobContext<Arc<Semaphore>>| async move {
        let go = ctx.state().clone();
        let waits = payload == json!("holds");
        ctx.fenced_tx(async |_| {
            if waits {
                drop(go.acquire().await);
            }
            Ok::<_, JobError>(())
        })
        .await
    };
    let options = KindOptions::new().keepalive();
    let worker = Running::start(
        Worker::builder(&bench.tenure).state(go.clone()).handle_any(options, handler).concurrency("q", 2),
    );
    let job = |how: &str| JobRequest::new("q", "k", json!(how));
    bench.tenure.enqueue(job("holds")).await.unwrap();
    bench
        .until_count(
            "pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'",
            1,
        )
        .await;
    let id = bench.tenure.enqueue(job("waits")).await.unwrap().id;
    bench.until_count("tenure.job_executions WHERE outcome = 'released'", 1).await;
    let error = bench.text(&format!("SELECT error FROM tenure.job_executions WHERE job_id = '{id}'")).await;
    for part in ["within 500ms", "hold all 1;", "raise TENURE_HANDLER_CONNECTIONS"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(error.matches("no connection").count(), 1, "{error}");
    go.add_permits(9);
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;
    worker.stop().await;
    let busy = StoreError::NoneFree { connections: 1, within: Duration::ZERO };
    assert!(busy.is_unavailable(), "the same call may succeed later");
}

/// The lines of a child's log with this text.
fn lines(child: &Child, text: &str) -> Vec<String> {
    child.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_warns_at_its_start_of_a_mistyped_queue_and_of_more_slots_than_connections() {
    let bench = bench().await;
    let few = [("TENURE_HANDLER_CONNECTIONS", "5".to_owned())];
    let mut mistyped = Child::start_with(&bench, "mistyped queue", &few);
    mistyped.until_log("worker started").await;
    let queues = lines(&mistyped, "no handler's type names this queue");
    assert!(
        queues.len() == 1 && queues[0].contains(" WARN ") && queues[0].contains("\"stepps\""),
        "{queues:?}"
    );
    let slots = lines(&mistyped, "raise TENURE_HANDLER_CONNECTIONS");
    assert!(
        slots.len() == 1 && slots[0].contains(" INFO "),
        "a program without transactions may ignore it: {slots:?}"
    );
    assert!(slots[0].contains("slots=17") && slots[0].contains("handler_connections=5"), "{slots:?}");
    // Four slots and typed handlers; a handler for any kind; commands, which open no transactions.
    let commands = bench.program(&["work", "q", "--exec", "true", "--concurrency", "60"]);
    let fine = ["worker", "fails"].map(|scenario| Child::start_with(&bench, scenario, &few));
    for mut fine in fine.into_iter().chain([Child::spawn(commands, "work")]) {
        fine.until_log("worker started").await;
        let log = fine.log();
        assert!(!log.contains("names this queue") && !log.contains("HANDLER_CONNECTIONS"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_waits_repeats_its_warnings_less_and_less_often_and_names_the_servers_without_passwords()
 {
    let bench = bench().await;
    let mut postgres = bench.program(&["work", "q", "--exec", "true"]);
    postgres.env("DATABASE_URL", wrong(&bench, "password"));
    let mut nats = bench.program(&["work", "q", "--exec", "true"]);
    nats.env("NATS_URL", format!("nats://u:{SECRET}@127.0.0.1:1"));
    for command in [&mut postgres, &mut nats] {
        command.env("TENURE_LOG_FORMAT", "json").env("RUST_LOG", "warn,tenure=info");
    }
    let mut postgres = Child::spawn(postgres, "no-postgres");
    let mut nats = Child::spawn(nats, "no-nats");
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    for child in [&mut postgres, &mut nats] {
        child.signal(Signal::TERM);
        child.wait().await;
        assert!(!child.log().contains(SECRET), "{}", child.log());
    }
    let field = |line: &String, name: &str| serde_json::from_str::<Value>(line).unwrap()[name].clone();
    // At once, after a second, after three; the fourth would come after seven.
    let told = lines(&postgres, "waiting for Postgres");
    assert!((2..=3).contains(&told.len()), "{}", postgres.log());
    assert!(told.iter().all(|line| line.contains("password authentication failed")), "{told:#?}");
    assert!(field(&told[1], "left_out").as_u64().unwrap() >= 1, "{told:#?}");
    let told = lines(&nats, "NATS connection");
    assert!(!told.is_empty(), "{}", nats.log());
    assert!(told.iter().all(|line| field(line, "servers") == "nats://***@127.0.0.1:1"), "{told:#?}");
    let mut events: Vec<_> = told.iter().map(|line| field(line, "event").to_string()).collect();
    events.sort_unstable();
    events.dedup();
    assert!(told.len() <= events.len() * 3, "{told:#?}");
    assert!(told.iter().any(|line| field(line, "left_out").as_u64().unwrap() >= 1), "{told:#?}");
}

/// The server may still be loading its streams at the first request, or the link may break: neither means that the
/// stream is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_answer_that_does_not_arrive_is_not_reported_as_a_missing_stream() {
    let bench = bench_with_servers(|config| config.timing.publish_within = Duration::from_secs(1)).await;
    bench.tenure.setup(&["idle".into()]).await.unwrap();
    let proxy = Proxy::to_url(&bench.config.nats_url).await;
    proxy.lose_answer_to(b"$JS.API.STREAM.INFO");
    let url = ("NATS_URL", proxy.of(&bench.config.nats_url));
    let mut worker = Child::start_with(&bench, "idle", &[url]);
    worker.until_log("worker started").await;
    assert_eq!(proxy.lost(), 1);
    assert!(!worker.log().contains("the stream is missing"), "{}", worker.log());
}

/// Callers at once: the pool counts the connections that it tries to open, which are not busy.
#[tokio::test(flavor = "multi_thread")]
async fn many_callers_at_once_of_a_server_that_refuses_all_learn_the_cause() {
    let bench = bench().await;
    let mut config = bench.config.clone();
    config.database_url = wrong(&bench, "port");
    config.timing.database_within = Duration::from_secs(2);
    let tenure = Tenure::connect(&config).await.unwrap();
    let callers: Vec<_> = (0..12)
        .map(|_| {
            let tenure = tenure.clone();
            tokio::spawn(async move { tenure.schedules().await.unwrap_err().to_string() })
        })
        .collect();
    for caller in callers {
        let text = caller.await.unwrap();
        assert!(text.contains("Connection refused"), "{text}");
    }
}

/// A pool whose connections are all at work is no server that is away: the text says what holds them.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_gets_no_connection_because_others_hold_all_says_so() {
    let bench = bench_with(|config| config.timing.database_within = Duration::from_secs(2)).await;
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(0))).await.unwrap().id;
    let mut lock = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *lock).await.unwrap();
    let calls: Vec<_> = (0..7)
        .map(|_| {
            let tenure = bench.tenure.clone();
            tokio::spawn(async move { tenure.job(id).await.unwrap_err().to_string() })
        })
        .collect();
    let mut texts = Vec::new();
    for call in calls {
        texts.push(call.await.unwrap());
    }
    let of = |what: &str| texts.iter().filter(|text| text.contains(what)).count();
    let busy = of(
        "no connection came free within 2s: statements that Postgres has not answered hold all 5 of the pool",
    );
    assert!(busy >= 1 && busy + of("no answer within 2s") == texts.len(), "{texts:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_the_scheme_of_another_server_is_refused_at_the_start_with_the_right_one() {
    let bench = bench().await;
    for (name, url, says) in [
        ("DATABASE_URL", "mysql://me:s3cr3t-8f1c@host/db", "postgres://user:password@host/database"),
        ("DATABASE_URL", "host=db user=me password=s3cr3t-8f1c", "postgres://user:password@host/database"),
        ("NATS_URL", "http://me:s3cr3t-8f1c@host:4222", "nats://host:4222, or tls://host:4222"),
        ("NATS_URL", "nats://host:4222, amqp://me:s3cr3t-8f1c@host", "separate several by commas"),
    ] {
        for command in [&["queues", "list"][..], &["work", "q", "--exec", "true"][..]] {
            let ran = bench.program(command).env(name, url).output().await.unwrap();
            let said = String::from_utf8(ran.stderr).unwrap();
            assert!(
                said.contains(&format!("{name} is \"***\", but must be")) && said.contains(says),
                "{said}"
            );
            assert!(!said.contains(SECRET), "{said}");
            assert_eq!(ran.status.code(), Some(2), "{said}");
        }
        let mut config = bench.config.clone();
        match name {
            "DATABASE_URL" => config.database_url = url.into(),
            _ => config.nats_url = url.into(),
        }
        let refused = Tenure::connect(&config).await.unwrap_err().to_string();
        let says = if name == "NATS_URL" { "write nats://host:4222" } else { "write postgres://" };
        assert!(refused.contains(name) && refused.contains(says) && !refused.contains(SECRET), "{refused}");
    }
    // Both names of the scheme are right.
    let mut command = bench.program(&["queues", "list"]);
    let ran =
        command.env("DATABASE_URL", bench.config.database_url.replacen("postgres://", "postgresql://", 1));
    assert!(ran.output().await.unwrap().status.success());
}
