//! Sidekiq and Celery on a real Redis: the program that moves their jobs is killed between Redis and Postgres.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use tokio::process::{Child, Command};

use super::{PAYLOAD, answers, due_jobs_run, fixture, output, root, sorted, there, waiting};
use crate::harness::{Bench, bench, free_address};

/// A server that ends with its test, even if that is killed: its shell waits for the end of a pipe.
struct Redis {
    address: SocketAddr,
    _shell: Child,
}

impl Redis {
    async fn start(bench: &Bench) -> Option<Self> {
        let mut python = python();
        python.args(["-c", "import celery, redis, psycopg"]).stderr(Stdio::null());
        let libraries = python.status().await.is_ok_and(|status| status.success());
        if !there("redis-server", answers("redis-server").await && answers("redis-cli").await)
            || !there("celery, redis and psycopg for Python", libraries)
        {
            return None;
        }
        let (address, folder) = (free_address(), bench.config.runtime_dir.join("redis"));
        std::fs::create_dir_all(&folder).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "redis-server --bind 127.0.0.1 --save '' --port $1 >log & cat; kill $!", "redis"]);
        shell.arg(address.port().to_string()).current_dir(folder).stdin(Stdio::piped());
        let redis = Self { address, _shell: shell.spawn().unwrap() };
        for _ in 0..500 {
            if redis.tries(&["PING"]).await == "PONG" {
                return Some(redis);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server does not answer");
    }

    fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    async fn tries(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.address.port().to_string()]).args(words).stdin(Stdio::null());
        String::from_utf8(command.output().await.unwrap().stdout).unwrap().trim().to_owned()
    }

    async fn says(&self, words: &str) -> String {
        self.tries(&words.split(' ').collect::<Vec<_>>()).await
    }

    async fn fill(&self, program: &str) {
        let mut command = python();
        command.arg(fixture(program)).env("REDIS_URL", self.url()).env("PAYLOAD", PAYLOAD);
        output(command).await;
    }

    fn import(&self, bench: &Bench, arguments: &str) -> Command {
        let mut command = python();
        command.arg(root().join("examples/import/from_redis.py")).args(arguments.split(' '));
        command
            .env("REDIS_URL", self.url())
            .env("DATABASE_URL", &bench.config.database_url)
            .kill_on_drop(true);
        command
    }
}

fn python() -> Command {
    let own = root().join(".tools/python").to_string_lossy().into_owned();
    let path = std::env::var("PYTHONPATH").map_or(own.clone(), |path| format!("{own}:{path}"));
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    command
}

const SIDEKIQ: &str = "sidekiq --rename-kind Billing::Charge=billing.charge";

/// The payloads without what the importer adds, and without attempts that differ.
fn without_meta(rows: Vec<String>) -> Vec<String> {
    let short = |row: String| {
        let (before, rest) = row.split_once("\"meta\": {").unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        format!("{}{}", before.trim_end_matches(", "), after)
    };
    sorted(rows.into_iter().map(short).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_sidekiq_moves_once_and_as_it_was() {
    let bench = bench().await;
    let Some(redis) = Redis::start(&bench).await else { return };
    redis.fill("of_sidekiq.py").await;
    let dry = output(redis.import(&bench, "sidekiq --dry-run")).await;
    assert!(
        dry.contains(
            "left 1 of kind Billing::Charge in queue other: kind \"Billing::Charge\" is not a valid name"
        ),
        "{dry}"
    );
    assert_eq!((waiting(&bench).await.len(), redis.says("LLEN queue:mail").await.as_str()), (0, "6"));

    let said = output(redis.import(&bench, SIDEKIQ)).await;
    assert!(said.contains("moved 4 of kind billing.charge into queue mail\n"), "{said}");
    for left in [
        "Billing::Charge in queue mail: it belongs to a batch",
        "? in queue mail: it is no message of sidekiq",
    ] {
        assert!(said.contains(&format!("left 1 of kind {left}")), "{said}");
    }
    let all = vec![
        format!("mail billing.charge {{\"args\": [{PAYLOAD}, \"ä\", null]}} x26 due sidekiq-j-1"),
        "mail billing.charge {\"args\": [2]} x26 2031-01-31 12:00:00.123 sidekiq-j-2".into(),
        "mail billing.charge {\"args\": [3]} x1 due sidekiq-j-3".into(),
        "mail Greet {\"args\": [\"Ann\"]} x5 due sidekiq-j-5".into(),
        "other billing.charge {\"args\": [7]} x3 due sidekiq-j-7".into(),
        "mail billing.charge {\"args\": [8]} x3 2031-01-31 13:00:00.500 sidekiq-j-8".into(),
    ];
    assert_eq!(without_meta(waiting(&bench).await), sorted(all));
    assert_eq!(redis.says("LLEN queue:mail").await, "3");
    assert_eq!(redis.says("EXISTS schedule retry queue:other tenure:import:queue:mail").await, "0");
    assert_eq!(redis.says("ZCARD dead").await, "1");

    output(redis.import(&bench, SIDEKIQ)).await;
    assert_eq!((waiting(&bench).await.len(), redis.says("LLEN queue:mail").await.as_str()), (6, "3"));
    output(redis.import(&bench, &format!("{SIDEKIQ} --dead"))).await;
    assert!(waiting(&bench).await.concat().contains("{\"args\": [9], "));
    due_jobs_run(&bench, "mail", "billing.charge", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_celery_moves_once_and_as_it_was() {
    let bench = bench().await;
    let Some(redis) = Redis::start(&bench).await else { return };
    redis.fill("of_celery.py").await;
    let import = "celery --queue mail --queue slow";
    let said = output(redis.import(&bench, import)).await;
    for left in [
        "shop.tasks.old in queue mail: it has expired",
        "shop.tasks.send in queue mail: it belongs to a group, a chain or a chord",
        "shop.tasks.send in queue mail: its body is compressed",
        "shop tasks in queue mail: kind \"shop tasks\" is not a valid name",
    ] {
        assert!(said.contains(&format!("left 1 of kind {left}")), "{said}");
    }
    assert!(said.contains("left 1 that workers have reserved"), "{said}");
    let all = vec![
        format!(
            "mail shop.tasks.send {{\"args\": [1, {PAYLOAD}], \"kwargs\": {{\"to\": \"ä\"}}}} x4 due celery-t-1"
        ),
        "mail shop.tasks.send {\"args\": [], \"kwargs\": {\"n\": 2}} x2 2031-01-31 12:00:00.123 celery-t-2"
            .into(),
        "mail shop.tasks.send {\"args\": [], \"kwargs\": {\"n\": 3}} x4 due celery-t-3".into(),
    ];
    assert_eq!(without_meta(waiting(&bench).await), sorted(all));
    output(redis.import(&bench, import)).await;
    assert_eq!((waiting(&bench).await.len(), redis.says("LLEN mail").await.as_str()), (3, "4"));
    assert_eq!(redis.says("HLEN unacked").await, "1");
    due_jobs_run(&bench, "mail", "shop.tasks.send", 2).await;
}

/// Starts the program, and returns it when it has taken jobs from Redis and waits for a lock in Postgres.
async fn between_both(bench: &Bench, redis: &Redis, lock: &mut sqlx::PgConnection) -> Child {
    sqlx::query("LOCK TABLE tenure.jobs IN ACCESS EXCLUSIVE MODE").execute(lock).await.unwrap();
    let program = redis.import(bench, SIDEKIQ).stdout(Stdio::null()).spawn().unwrap();
    let waits = "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    bench.until_count(waits, 1).await;
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_redis_and_postgres_loses_and_doubles_no_job() {
    let bench = bench().await;
    let Some(redis) = Redis::start(&bench).await else { return };
    redis.fill("of_sidekiq.py").await;

    // Before the commit: the jobs are in the program's own list.
    let mut lock = bench.pool.begin().await.unwrap();
    let mut program = between_both(&bench, &redis, &mut lock).await;
    assert_eq!(redis.says("LLEN queue:mail").await, "2");
    program.kill().await.unwrap();
    lock.rollback().await.unwrap();
    let of_program =
        "pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT tenure.enqueue%'";
    bench.until_count(of_program, 0).await;
    assert_eq!(waiting(&bench).await.len(), 0);
    assert_eq!(redis.says("LLEN tenure:import:queue:mail").await, "4");

    // After the commit: they are in both.
    let mut lock = bench.pool.begin().await.unwrap();
    let mut program = between_both(&bench, &redis, &mut lock).await;
    assert_eq!(redis.says("CLIENT PAUSE 60000 WRITE").await, "OK");
    lock.rollback().await.unwrap();
    bench.until_count("tenure.jobs WHERE queue = 'mail'", 3).await;
    program.kill().await.unwrap();
    while redis.says("CLIENT LIST").await.lines().count() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(redis.says("CLIENT UNPAUSE").await, "OK");
    assert_eq!(redis.says("LLEN tenure:import:queue:mail").await, "4");

    let said = output(redis.import(&bench, SIDEKIQ)).await;
    assert!(
        said.contains("already in tenure, with the same id: 2 of kind billing.charge in queue mail\n"),
        "{said}"
    );
    assert_eq!(waiting(&bench).await.len(), 6);
    assert_eq!(redis.says("KEYS tenure:*").await, "");
    assert_eq!(redis.says("LLEN queue:mail").await, "3");
}
