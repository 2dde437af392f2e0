//! Outages: while a server is away, the log stays short, and readiness names exactly the server that is away.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{JobRequest, KindOptions, Tenure, Worker};

use crate::harness::{Bench, Child, Proxy, Running, bench_with};

/// No server listens there.
const NOWHERE: u16 = 1;

fn port(url: &str) -> u16 {
    url.rsplit('@')
        .next()
        .unwrap()
        .rsplit("//")
        .next()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// Links to both servers of a bench.
struct Links {
    postgres: Proxy,
    nats: Proxy,
}

impl Links {
    async fn of(bench: &Bench) -> Self {
        let postgres = Proxy::to_url(&bench.config.database_url).await;
        Self { postgres, nats: Proxy::to_url(&bench.config.nats_url).await }
    }
}

/// Twenty jobs end while Postgres is away, and the worker tries to write each end again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_twenty_jobs_writes_few_lines_in_an_outage_and_says_how_many_it_left_out() {
    let bench = bench_with(|config| {
        config.timing.database_within = Duration::from_secs(1);
        config.timing.renew_every = Duration::from_millis(300);
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(40);
    })
    .await;
    let links = Links::of(&bench).await;
    let stop = bench.config.runtime_dir.join("stop");
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", stop.display());
    let mut command = bench.program(&["work", "q", "r", "--exec", &wait, "--concurrency", "20"]);
    command
        .env("DATABASE_URL", links.postgres.of(&bench.config.database_url))
        .env("NATS_URL", links.nats.of(&bench.config.nats_url))
        .env("RUST_LOG", "warn,tenure=info")
        .env("TENURE_LOG_FORMAT", "json");
    let mut worker = Child::spawn(command, "outage");
    worker.until_log("worker started").await;
    let jobs = (0..20).map(|n| JobRequest::new("q", "k", json!(n)));
    bench.tenure.enqueue_many(jobs).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 20).await;
    let troubles = |log: &str| {
        let lines = log.lines().filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\""));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = troubles(&worker.log()).len();
    links.postgres.lead_to(NOWHERE);
    links.nats.lead_to(NOWHERE);
    std::fs::write(&stop, "").unwrap();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let told = troubles(&worker.log()).split_off(before);
    links.postgres.lead_to(port(&bench.config.database_url));
    links.nats.lead_to(port(&bench.config.nats_url));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 20).await;
    assert!(told.len() <= 40, "{} lines:\n{}", told.len(), told.join("\n"));
    for what in ["could not write a completion", "could not renew the worker's row", "NATS connection event"]
    {
        let of_it: Vec<_> = told.iter().filter(|line| line.contains(what)).collect();
        assert!(!of_it.is_empty() && of_it.len() <= 12, "{what}: {told:#?}");
    }
    let left_out = told.iter().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["left_out"].as_u64().unwrap_or_default()
    });
    assert!(left_out.sum::<u64>() >= 20, "{told:#?}");
}

/// Waits until readiness names exactly this server, and then looks for a while whether it names the other one again.
async fn names_only(health: &tenure::Health, named: &str, not: [&str; 2]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut right_since: Option<Instant> = None;
    loop {
        let said = health.ready().err().unwrap_or_default().join("; ");
        let is_right = said.contains(named) && !not.iter().any(|not| said.contains(not));
        right_since = if is_right { right_since.or(Some(Instant::now())) } else { None };
        if right_since.is_some_and(|since| since.elapsed() > Duration::from_millis(1_500)) {
            return;
        }
        assert!(Instant::now() < deadline, "only {named} is away, but: {said}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_the_server_that_is_away_and_not_the_one_that_is_back() {
    let bench = bench_with(|config| {
        config.timing.database_within = Duration::from_secs(1);
        // A reason that only the next renewal removed would stay for longer than this test waits.
        config.timing.renew_every = Duration::from_secs(20);
        config.timing.stale_after = Duration::from_secs(120);
        config.timing.ack_wait = Duration::from_secs(130);
    })
    .await;
    let links = Links::of(&bench).await;
    let mut config = bench.config.clone();
    config.database_url = links.postgres.of(&config.database_url);
    config.nats_url = links.nats.of(&config.nats_url);
    let tenure = Tenure::connect(&config).await.unwrap();
    let builder =
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2);
    let health = builder.health();
    let worker = Running::start(builder);
    let until = async |wanted: &[&str]| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let said = health.ready().err().unwrap_or_default().join("; ");
            if wanted.iter().all(|wanted| said.contains(wanted)) && wanted.is_empty() == said.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{wanted:?}: {said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (postgres, nats) = (["Postgres", "database"], ["NATS", "nats"]);
    until(&[]).await;
    links.postgres.lead_to(NOWHERE);
    names_only(&health, "Postgres: ", nats).await;
    links.nats.lead_to(NOWHERE);
    until(&["Postgres: ", "NATS: not connected to nats://"]).await;
    links.postgres.lead_to(port(&bench.config.database_url));
    names_only(&health, "NATS: ", postgres).await;
    links.postgres.lead_to(NOWHERE);
    until(&["Postgres: ", "NATS: "]).await;
    links.nats.lead_to(port(&bench.config.nats_url));
    names_only(&health, "Postgres: ", nats).await;
    links.postgres.lead_to(port(&bench.config.database_url));
    until(&[]).await;
    worker.stop().await;
}
