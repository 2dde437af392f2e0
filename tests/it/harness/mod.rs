//! Harness: real servers for one run of the tests, a database and a stream for each test.

/// The folder of the repository. The tests belong to the program's crate, one below it.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

mod counters;
mod http;
mod proxy;
mod servers;
mod worker;

use std::{
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use async_nats::jetstream;
use futures::TryStreamExt;
use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};
use tenure::{Config, JobId, Tenure, dev::Servers};

pub use counters::{counted, named as counter_names};
pub use http::{Answer, ask, free_address};
pub use proxy::Proxy;
pub use servers::run_folder;
pub use worker::{Child, Running, until_file};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The text of a statement of the library.
pub fn statement(name: &str) -> &'static str {
    let found = tenure::internals::statements().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no statement {name}")).1
}

/// Compares a generated table with the part of a page between two marks. With `TENURE_WRITE_DOCS` set, writes it.
pub fn docs_hold(page: &str, (begin, end): (&str, &str), table: &str, test: &str) {
    let path = PathBuf::from(ROOT).join("docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begin).unwrap();
    let (is, after) = rest.split_once(end).unwrap();
    let should = format!("\n{table}\n");
    if std::env::var_os("TENURE_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{should}{end}{after}")).unwrap();
        return;
    }
    assert!(
        is == should,
        "{page} is out of date; write it: TENURE_WRITE_DOCS=1 cargo test --all-features --test it {test}"
    );
}

/// The world of one test.
pub struct Bench {
    pub config: Config,
    pub tenure: Tenure,
    pub pool: PgPool,
    pub js: jetstream::Context,
    /// Servers of this test alone, if it needs them.
    pub own: Option<Servers>,
    _database: Option<servers::Database>,
}

/// A world with the shared servers.
pub async fn bench() -> Bench {
    bench_with(|_| {}).await
}

/// [`bench`] with other settings.
pub async fn bench_with(change: impl FnOnce(&mut Config)) -> Bench {
    let shared = tokio::task::spawn_blocking(servers::shared).await.unwrap();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let database = shared.create(format!("t{n}")).await;
    let mut config = Config::new(shared.servers.postgres.url_of(&database.0), shared.servers.nats.url());
    config.stream = format!("T{n}");
    config.subject_prefix = format!("t{n}");
    config.runtime_dir = shared.folder.join(format!("run{n}"));
    Box::pin(world(config, None, Some(database), change)).await
}

/// A world with its own Postgres and NATS, to be stopped and killed.
pub async fn bench_with_servers(change: impl FnOnce(&mut Config)) -> Bench {
    let shared = tokio::task::spawn_blocking(servers::shared).await.unwrap();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = shared.folder.join(format!("own{n}"));
    let servers = tokio::task::spawn_blocking({
        let folder = folder.clone();
        move || servers::own(&folder)
    })
    .await
    .unwrap();
    let mut config = Config::new(servers.postgres.url(), servers.nats.url());
    config.runtime_dir = folder.join("run");
    Box::pin(world(config, Some(servers), None, change)).await
}

async fn world(
    mut config: Config,
    own: Option<Servers>,
    database: Option<servers::Database>,
    change: impl FnOnce(&mut Config),
) -> Bench {
    // Timers of a test: a stale job is recovered in a second or two.
    config.timing.stale_after = Duration::from_millis(1_500);
    config.timing.scan_every = Duration::from_secs(1);
    config.timing.ack_wait = Duration::from_secs(4);
    config.timing.flush_every = Duration::from_millis(50);
    config.timing.keepalive_every = Duration::from_millis(200);
    // Long enough that only tests that shorten it detect vanished workers.
    config.timing.renew_every = Duration::from_secs(5);
    config.timing.relay_every = Duration::from_millis(50);
    config.timing.publish_within = Duration::from_secs(1);
    config.timing.pull_for = Duration::from_millis(500);
    config.timing.shutdown_grace = Duration::from_secs(5);
    config.timing.cancel_grace = Duration::from_millis(500);
    config.timing.database_within = Duration::from_secs(3);
    change(&mut config);
    let pool = PgPoolOptions::new().max_connections(4).connect(&config.database_url).await.unwrap();
    let nats = async_nats::connect(&config.nats_url).await.unwrap();
    let js = jetstream::new(nats);
    let tenure = Tenure::connect(&config).await.unwrap();
    Bench { config, tenure, pool, js, own, _database: database }
}

impl Bench {
    /// One value of the database.
    pub async fn value<T>(&self, sql: &str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.value(&format!("SELECT count(*) FROM {sql}")).await
    }

    pub async fn execute(&self, sql: &str) -> u64 {
        sqlx::query(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
            .rows_affected()
    }

    /// Makes Postgres refuse rows, as somebody's trigger may: `on` says which, as in `UPDATE ON tenure.jobs`, and the
    /// condition. Its name is `refuse`.
    pub async fn refuse(&self, on: &str, when: &str) {
        let function = "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                            $$ BEGIN RAISE EXCEPTION 'too odd' USING ERRCODE = '22023'; END $$";
        self.execute(function).await;
        let trigger = "EXECUTE FUNCTION public.refuse()";
        self.execute(&format!("CREATE TRIGGER refuse BEFORE {on} FOR EACH ROW WHEN ({when}) {trigger}"))
            .await;
    }

    /// Rows as one text, for an assertion that shows them all.
    pub async fn text(&self, sql: &str) -> String {
        self.value::<Option<String>>(&format!("SELECT string_agg(t::text, E'\\n') FROM ({sql}) t"))
            .await
            .unwrap_or_default()
    }

    /// Waits until a count is reached; on failure it prints the database.
    pub async fn until_count(&self, sql: &str, n: i64) {
        self.until(&format!("(SELECT count(*) FROM {sql}) = {n}")).await;
    }

    /// Waits until a condition over the database holds.
    pub async fn until(&self, condition: &str) {
        self.until_within(condition, Duration::from_secs(60)).await;
    }

    pub async fn until_within(&self, condition: &str, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            let sql = format!("SELECT {condition}");
            // The server may be away in this test.
            if let Ok(true) = sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql)).fetch_one(&self.pool).await {
                return;
            }
            if Instant::now() >= deadline {
                let jobs = self.text("SELECT id, kind, status, attempt, fencing_token, worker_id, last_error FROM tenure.all_jobs ORDER BY id LIMIT 20").await;
                let executions = self.text("SELECT * FROM tenure.job_executions_all LIMIT 20").await;
                let rows = self.text("SELECT id, status, scheduled_at - now() AS due_in, publish_at, published_at, dispatch FROM tenure.jobs LIMIT 20").await;
                panic!(
                    "not within {within:?}: {condition}\njobs:\n{jobs}\nexecutions:\n{executions}\nlive:\n{rows}"
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn until_finished(&self, id: JobId) -> tenure::rows::JobRow {
        self.until(&format!(
            "EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{id}' AND finished_at IS NOT NULL)"
        ))
        .await;
        loop {
            // The pool may first hand out a connection from before the server's restart.
            match self.tenure.job(id).await {
                Ok(job) => return job.unwrap(),
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
        }
    }

    /// The state of a queue's consumer.
    pub async fn consumer(&self, queue: &str) -> jetstream::consumer::Info {
        let consumer = self.js.get_consumer_from_stream(queue, &self.config.stream).await;
        let consumer: jetstream::consumer::PullConsumer = consumer.unwrap();
        consumer.cached_info().clone()
    }

    /// The number of messages in the stream.
    pub async fn messages(&self) -> u64 {
        match self.js.get_stream(&self.config.stream).await {
            Ok(stream) => stream.cached_info().state.messages,
            Err(_) => 0,
        }
    }

    /// The number of jobs that the messages in the stream name.
    pub async fn named(&self) -> u64 {
        let Ok(stream) = self.js.get_stream(&self.config.stream).await else { return 0 };
        let mut subjects = stream.info_with_subjects(">").await.unwrap();
        let mut named = 0;
        while let Some((subject, messages)) = subjects.try_next().await.unwrap() {
            let jobs = subject.split('.').find_map(|part| part.strip_prefix('+')?.parse::<u64>().ok());
            named += messages as u64 * jobs.unwrap_or(1);
        }
        named
    }

    /// Fails if `verify` finds anything.
    pub async fn every_job_is_as_it_must_be(&self) {
        let mut rules = self.tenure.verify().await.unwrap();
        rules.retain(|rule| rule.jobs > 0);
        assert!(rules.is_empty(), "{rules:#?}");
    }

    /// Waits until every message has been acknowledged, after which nothing changes any more.
    pub async fn until_stream_is_empty(&self, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            let left = self.messages().await;
            if left == 0 {
                return self.every_job_is_as_it_must_be().await;
            }
            if Instant::now() >= deadline {
                let events =
                    self.text("SELECT * FROM tenure.recovery_events ORDER BY id DESC LIMIT 10").await;
                let stream = self.js.get_stream(&self.config.stream).await.unwrap();
                let state = &stream.cached_info().state;
                let mut rest = String::new();
                for sequence in (state.first_sequence..=state.last_sequence).take(5_000) {
                    if let Ok(message) = stream.get_raw_message(sequence).await {
                        rest.push_str(&format!("{sequence} {} {:?}\n", message.subject, message.payload));
                        if rest.len() > 2_000 {
                            break;
                        }
                    }
                }
                panic!("{left} messages are left in the stream after {within:?}:\n{rest}\nevents:\n{events}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Publishes a submission as any NATS client does.
    pub async fn publish(&self, subject: &str, body: &str) {
        let subject = format!("{}.{subject}", self.config.subject_prefix);
        self.js.publish(subject, body.to_owned().into()).await.unwrap().await.unwrap();
    }

    /// The environment of a process that works in this world.
    pub fn environment(&self) -> Vec<(String, String)> {
        let timing = &self.config.timing;
        let ms = |duration: Duration| format!("{}ms", duration.as_millis());
        let mut vars: Vec<(String, String)> = [
            ("DATABASE_URL", self.config.database_url.clone()),
            ("NATS_URL", self.config.nats_url.clone()),
            ("TENURE_STREAM", self.config.stream.clone()),
            ("TENURE_SUBJECT_PREFIX", self.config.subject_prefix.clone()),
            ("TENURE_RUNTIME_DIR", self.config.runtime_dir.to_string_lossy().into_owned()),
            ("TENURE_STALE_AFTER", ms(timing.stale_after)),
            ("TENURE_SCAN_EVERY", ms(timing.scan_every)),
            ("TENURE_ACK_WAIT", ms(timing.ack_wait)),
            ("TENURE_FLUSH_EVERY", ms(timing.flush_every)),
            ("TENURE_KEEPALIVE_EVERY", ms(timing.keepalive_every)),
            ("TENURE_RENEW_EVERY", ms(timing.renew_every)),
            ("TENURE_RELAY_EVERY", ms(timing.relay_every)),
            ("TENURE_PUBLISH_WITHIN", ms(timing.publish_within)),
            ("TENURE_PULL_FOR", ms(timing.pull_for)),
            ("TENURE_SHUTDOWN_GRACE", ms(timing.shutdown_grace)),
            ("TENURE_CANCEL_GRACE", ms(timing.cancel_grace)),
            ("TENURE_DATABASE_WITHIN", ms(timing.database_within)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
        if let Some(hostname) = &self.config.hostname {
            vars.push(("TENURE_HOSTNAME".into(), hostname.clone()));
        }
        vars
    }

    /// The `tenure` program in this world.
    pub fn program(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).envs(self.environment()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}
