//! Chaos: workers, a producer and their servers run for a given time while faults happen; then comes an account.
//!
//! ```sh
//! make chaos                                    # a minute, another seed each time
//! make chaos MINUTES=60 SEED=7                  # an hour, with this plan
//! make chaos SEED=7 CHAOS=--plan                # only prints the plan
//! ```
//!
//! Exits 1 if a job was lost, an effect doubled, or anything else forbidden happened.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(missing_docs, unreachable_pub, reason = "nothing here is published")]
#![allow(clippy::print_stdout, reason = "the account is its output")]
#![allow(
    clippy::disallowed_methods,
    reason = "who died when is noted here, not in the database, which may be away"
)]

mod account;
mod graphs;
mod kinds;
mod nemesis;
mod plan;
mod process;
#[path = "../it/harness/proxy.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod proxy;
mod roles;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Parser;
use futures::StreamExt;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tenure::{Config, Job as _, Tenure, dev::Servers, lanes::Lanes, redrives::CalmRedrive, rows::DeadFilter};

use crate::{
    kinds::Batched,
    nemesis::Nemesis,
    plan::{FOREIGN, WORKERS, counts, plan},
    process::{Journal, Process, Program},
    roles::{FOREIGN_QUEUE, LANES, RUNNING, lane_rate},
};

#[derive(Debug, Parser)]
struct Args {
    /// Seed of the plan of faults. Default: random.
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Jobs per second, in total.
    #[arg(long, default_value_t = 30.0)]
    rate: f64,
    /// The most jobs that one message names. Default: 8 where the seed is odd, or else one.
    #[arg(long)]
    jobs_per_message: Option<usize>,
    /// Print the plan and exit.
    #[arg(long)]
    plan: bool,
    /// Keep the servers' data and all logs here.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Cargo passes this to benchmarks; it has no effect.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Ok(role) = std::env::var("TENURE_CHAOS_ROLE").as_deref() {
        let filter = tracing_subscriber::EnvFilter::new("warn,tenure=info,async_nats=error");
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        match role {
            "producer" => {
                let hold = std::env::var_os("TENURE_CHAOS_HOLD").expect("where to look for the hold");
                runtime.block_on(roles::producer(hold.as_ref()));
            }
            _ => runtime.block_on(roles::worker()),
        }
        ExitCode::SUCCESS
    } else {
        let fine = runtime.block_on(chaos(Args::parse()));
        runtime.shutdown_timeout(Duration::from_secs(1));
        if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The timers of a run: everything that takes minutes by default takes seconds.
const TIMERS: &[(&str, &str)] = &[
    ("TENURE_STALE_AFTER", "3s"),
    ("TENURE_SCAN_EVERY", "1s"),
    ("TENURE_ACK_WAIT", "8s"),
    ("TENURE_FLUSH_EVERY", "200ms"),
    ("TENURE_KEEPALIVE_EVERY", "500ms"),
    ("TENURE_RENEW_EVERY", "500ms"),
    ("TENURE_RELAY_EVERY", "200ms"),
    ("TENURE_PUBLISH_WITHIN", "1s"),
    ("TENURE_PULL_FOR", "1s"),
    ("TENURE_SHUTDOWN_GRACE", "2s"),
    ("TENURE_CANCEL_GRACE", "500ms"),
    ("TENURE_DATABASE_WITHIN", "1500ms"),
];
const CANCEL_EVERY: Duration = Duration::from_millis(700);
const CANCELS_PER_REDRIVE: u32 = 10;

/// Starts the workers, those in other languages, and the producer.
async fn start_all(
    args: &Args,
    jobs_per_message: usize,
    config: &Config,
    folder: &Path,
    hold: &Path,
    journal: &Arc<Mutex<Journal>>,
) -> Vec<Process> {
    let mut processes = Vec::new();
    for host in HOSTS {
        let mut variables: Vec<(String, String)> =
            TIMERS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        variables.push(("TENURE_CHAOS_ROLE".into(), "worker".into()));
        variables.push(("TENURE_JOB_LOGS".into(), "true".into()));
        variables.push(("TENURE_JOBS_PER_MESSAGE".into(), jobs_per_message.to_string()));
        variables.push(("TENURE_HOSTNAME".into(), host.into()));
        variables.push(("TENURE_RUNTIME_DIR".into(), folder.join("run").to_string_lossy().into_owned()));
        let log = folder.join(format!("{}.log", host.replace('%', "percent")));
        let program = Program { name: host.into(), log, command: Vec::new(), variables };
        processes.push(Process::start(program, config, None).await);
    }
    let host = std::process::Command::new("uname").arg("-n").output().unwrap().stdout;
    let host = String::from_utf8(host).unwrap();
    for (n, command) in foreign().into_iter().enumerate() {
        let name = format!("{FOREIGN_QUEUE}/{}", host.trim());
        let log = folder.join(format!("foreign-{n}.log"));
        let program = Program { name, log, command, variables: Vec::new() };
        processes.push(Process::start(program, config, None).await);
    }
    let producer = vec![
        ("TENURE_CHAOS_ROLE".into(), "producer".into()),
        ("TENURE_CHAOS_RATE".into(), args.rate.to_string()),
        ("TENURE_JOBS_PER_MESSAGE".into(), jobs_per_message.to_string()),
        ("TENURE_CHAOS_HOLD".into(), hold.to_string_lossy().into_owned()),
        ("TENURE_DATABASE_WITHIN".into(), "1500ms".into()),
        ("TENURE_PUBLISH_WITHIN".into(), "1s".into()),
    ];
    let log = folder.join("producer.log");
    let producer = Program { name: "producer".into(), log, command: Vec::new(), variables: producer };
    processes.push(Process::start(producer, config, Some(journal.clone())).await);
    processes
}

/// The commands of the workers behind the gateways. Without Node, all are in Python.
fn foreign() -> [Vec<String>; FOREIGN] {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/chaos");
    let of = |program: &str, file: &str| {
        [program, &format!("{folder}/{file}"), FOREIGN_QUEUE, "10"].map(String::from).to_vec()
    };
    let has_node = std::process::Command::new("node").arg("--version").output().is_ok();
    let last = if has_node { of("node", "worker.mjs") } else { of("python3", "worker.py") };
    [of("python3", "worker.py"), of("python3", "worker.py"), last]
}

/// Names that begin alike, and names with wildcards of SQL.
const HOSTS: [&str; WORKERS] = ["chaos-1", "chaos-1-2", "chaos_1", "chaos%"];

async fn chaos(args: Args) -> bool {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    let events = plan(seed, length);
    if args.plan {
        for event in &events {
            println!("{event}");
        }
        return true;
    }
    let jobs_per_message = args.jobs_per_message.unwrap_or(if seed % 2 == 1 { 8 } else { 1 });
    println!(
        "chaos: seed {seed}, {} minutes, {} faults planned, messages of up to {jobs_per_message} jobs",
        args.minutes,
        events.len()
    );
    let temporary = tempfile();
    let folder = args.folder.clone().unwrap_or_else(|| temporary.clone());
    std::fs::create_dir_all(&folder).unwrap();
    let servers = {
        let folder = folder.clone();
        tokio::task::spawn_blocking(move || {
            let postgres = tenure::dev::Postgres::start_with(
                &folder.join("postgres"),
                // Whether it waits for the disk.
                std::env::var_os("DURABLE").is_some(),
                &["track_commit_timestamp=on"],
            )
            .unwrap();
            let nats = tenure::dev::Nats::start(&folder.join("nats")).unwrap();
            Servers { postgres, nats }
        })
        .await
        .unwrap()
    };
    let mut config = Config::new(servers.postgres.url(), servers.nats.url());
    // The definition of the consumer depends on it.
    config.timing.ack_wait = Duration::from_secs(8);
    config.timing.stale_after = Duration::from_secs(3);
    config.timing.scan_every = Duration::from_secs(1);
    config.timing.flush_every = Duration::from_millis(200);
    config.timing.keepalive_every = Duration::from_millis(500);
    let pool = PgPoolOptions::new().max_connections(4).connect(&config.database_url).await.unwrap();
    let tenure = Tenure::connect(&config).await.unwrap();
    prepare(&tenure, &pool, lane_rate(args.rate)).await;

    let hold = folder.join("hold");
    let journal = Arc::new(Mutex::new(Journal::default()));
    let processes = start_all(&args, jobs_per_message, &config, &folder, &hold, &journal).await;
    let nemesis =
        Arc::new(Nemesis::new(servers, processes, config.clone(), pool.clone(), journal.clone(), hold));
    let over = Arc::new(AtomicBool::new(false));
    let canceller = tokio::spawn(cancel_some(tenure.clone(), journal.clone(), over.clone()));
    let person = tokio::spawn(graphs::person(tenure.clone(), pool.clone()));
    let of_several = Arc::new(AtomicU64::new(0));
    let counter = tokio::spawn(count_messages_of_several(config.nats_url.clone(), of_several.clone()));
    let began = Instant::now();
    let mut under_way = tokio::task::JoinSet::new();
    for event in &events {
        tokio::time::sleep(event.after.saturating_sub(began.elapsed())).await;
        let (nemesis, event) = (nemesis.clone(), *event);
        under_way.spawn(async move { nemesis.inflict(event).await });
        while under_way.try_join_next().is_some() {}
    }
    tokio::time::sleep(length.saturating_sub(began.elapsed())).await;
    while under_way.join_next().await.is_some() {}
    over.store(true, Ordering::SeqCst);
    canceller.await.unwrap();

    println!("chaos: no more faults; every job and message must end");
    nemesis.heal().await;
    while tenure.remove_schedule(kinds::TICK).await.is_err() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let ended = account::everything_ended(&pool, &nemesis, Duration::from_secs(180)).await;
    person.abort();
    counter.abort();
    let deaths = nemesis.stop().await;
    let (done, skipped) = nemesis.injected();
    let fine = account::account(&pool, &tenure, &journal, &deaths, ended).await;
    println!(
        "\nfaults that happened ({skipped} more did not: their target was in trouble already, or never reached the point):"
    );
    for (kind, n) in counts(&done) {
        println!("{n:>6}  {kind}");
    }
    println!("{:>6}  deaths of processes", deaths.len());
    println!("\nmessages of several jobs: {}", of_several.load(Ordering::SeqCst));
    let verdict = if fine { "nothing is wrong" } else { "SOMETHING IS WRONG" };
    println!("\nchaos: seed {seed}, {} minutes: {verdict}", args.minutes);
    tenure.close().await;
    pool.close().await;
    drop(nemesis);
    if args.folder.is_none() && fine {
        std::fs::remove_dir_all(&temporary).ok();
    } else {
        println!("logs and data: {}", folder.display());
    }
    fine
}

fn tempfile() -> PathBuf {
    std::env::temp_dir().join(format!("tenure-chaos-{}", std::process::id()))
}

/// Counts them as they are published. Does not see those of the moments in which its own connection is away.
async fn count_messages_of_several(nats_url: String, count: Arc<AtomicU64>) -> anyhow::Result<()> {
    let nats = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(nats_url).await?;
    let mut published = nats.subscribe("jobs.*.>").await?;
    while let Some(message) = published.next().await {
        let of_several = message.subject.split('.').nth(2).is_some_and(|part| part.starts_with('+'));
        count.fetch_add(u64::from(of_several), Ordering::SeqCst);
    }
    Ok(())
}

async fn prepare(tenure: &Tenure, pool: &PgPool, rate: u32) {
    tenure.setup(&["chaos".into(), LANES.into(), FOREIGN_QUEUE.into()]).await.unwrap();
    let lanes = Lanes::new().running(RUNNING).rate(rate, Duration::from_secs(1)).burst(rate);
    tenure.put_lanes(LANES, lanes).await.unwrap();
    tenure.put_schedule(kinds::ticks()).await.unwrap();
    for sql in [
        "CREATE SCHEMA chaos",
        "CREATE TABLE chaos.effects (way text, n uuid, token bigint, at timestamptz DEFAULT clock_timestamp())",
        "CREATE TABLE chaos.orders (n uuid)",
        "CREATE TABLE chaos.steps (n uuid, drawn uuid)",
        "CREATE TABLE chaos.answers (n uuid, answer uuid)",
        "CREATE TABLE chaos.heard (n uuid, hurried uuid, answer uuid)",
        "CREATE TABLE chaos.journal (n uuid PRIMARY KEY, way text, accepted bool, cancelled bool)",
        "CREATE TABLE chaos.limits (running bigint, starts bigint)",
    ] {
        sqlx::query(sql).execute(pool).await.unwrap();
    }
    // In any second: a full bucket, and what flows in.
    let limits = sqlx::query("INSERT INTO chaos.limits VALUES ($1, $2)");
    limits.bind(i64::from(RUNNING)).bind(i64::from(3 * rate)).execute(pool).await.unwrap();
}

/// Cancels a job now and then, and notes the jobs that were reported as cancelled. Redrives dead letters, calmly: most
/// fail again, as planned, and the redrive stops.
async fn cancel_some(tenure: Tenure, journal: Arc<Mutex<Journal>>, over: Arc<AtomicBool>) {
    for n in 0_u32.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        tokio::time::sleep(CANCEL_EVERY).await;
        if n % CANCELS_PER_REDRIVE == 0 {
            // A redrive that is under way, or a Postgres that is away, refuses it.
            let calm = CalmRedrive::new().canary(3).then_rate(5, Duration::from_secs(1)).stop_at(0.5);
            tenure.redrive_calmly(&DeadFilter::new().kind(Batched::KIND), calm).await.ok();
        }
        let Some((n, id)) = journal.lock().unwrap().youngest() else { continue };
        if let Ok(tenure::jobs::CancelOutcome::Cancelled) = tenure.cancel(id).await {
            journal.lock().unwrap().cancelled(n);
        }
    }
}
