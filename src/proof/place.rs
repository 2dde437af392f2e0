//! Place: the servers and jobs of the tests of one step, with a real Postgres and a real NATS.
//!
//! The tests of whole jobs are in tests/it. A test here calls one step by itself, on a database that it has prepared:
//! it can provoke an answer that comes once in a million jobs.

#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests use it")]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, LazyLock, Mutex, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};

use crate::{
    JobRequest,
    client::Tenure,
    config::Config,
    dev::Servers,
    job::{JobId, claim::Claim},
    nats::Delivery,
    run::running::{LocalJob, Message, OnCrash, OnWriteLoss, Reservation, Rules, Running, RunningJob},
    store::{ClaimRequest, LockPolicy},
};

struct Shared {
    servers: Servers,
    folder: PathBuf,
}

static SHARED: OnceLock<Shared> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);
/// The migrated database that each test's own is a copy of.
const TEMPLATE: &str = "template_tenure";

/// Starts the servers at the first call. They end with this process, even if it is killed.
fn shared() -> &'static Shared {
    SHARED.get_or_init(|| {
        sweep();
        let folder = std::env::temp_dir().join(format!("tenure-it-{}", std::process::id()));
        let postgres =
            crate::dev::Postgres::start_with(&folder.join("postgres"), false, &["autovacuum_naptime=1h"])
                .unwrap();
        let nats = crate::dev::Nats::start(&folder.join("nats")).unwrap();
        let (url, config) = (postgres.url(), Config::new(postgres.url_of(TEMPLATE), nats.url()));
        // A separate runtime: the first caller's ends with its test.
        std::thread::spawn(move || {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                create(&url, &format!("CREATE DATABASE {TEMPLATE}")).await;
                let tenure = Tenure::connect(&config).await.unwrap();
                tenure.migrate().await.unwrap();
                tenure.close().await;
            });
        })
        .join()
        .unwrap();
        Shared { servers: Servers { postgres, nats }, folder }
    })
}

async fn create(url: &str, sql: &str) {
    let mut admin = PgConnection::connect(url).await.unwrap();
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
    admin.close().await.unwrap();
}

/// Removes the folders of processes that are gone.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("tenure-it-").and_then(|pid| pid.parse::<i32>().ok());
        if pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// The database and the stream of one test.
pub(crate) struct Place {
    pub(crate) config: Config,
    pub(crate) tenure: Tenure,
    pub(crate) pool: PgPool,
}

pub(crate) async fn place() -> Place {
    place_with(|_| {}).await
}

pub(crate) async fn place_with(change: impl FnOnce(&mut Config)) -> Place {
    LazyLock::force(&SUBSCRIBERS);
    let shared = tokio::task::spawn_blocking(shared).await.unwrap();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    create(&shared.servers.postgres.url(), &format!("CREATE DATABASE p{n} TEMPLATE {TEMPLATE}")).await;
    let mut config = Config::new(shared.servers.postgres.url_of(&format!("p{n}")), shared.servers.nats.url());
    config.stream = format!("P{n}");
    config.subject_prefix = format!("p{n}");
    config.runtime_dir = shared.folder.join(format!("run{n}"));
    change(&mut config);
    let tenure = Tenure::connect(&config).await.unwrap();
    let pool = PgPool::connect(&config.database_url).await.unwrap();
    Place { config, tenure, pool }
}

/// Enters a job as running in this process until the returned reservation is dropped.
pub(crate) fn run_in(running: &Running, job: &Arc<RunningJob>) -> Reservation {
    match running.reserve(job.key.job) {
        LocalJob::Unknown(reservation) => {
            reservation.run(job.clone());
            reservation
        }
        LocalJob::Claiming | LocalJob::Running(_) | LocalJob::Ending => panic!("{:?} is there", job.key),
    }
}

/// Returns the instant this long ago.
pub(crate) fn ago(time: Duration) -> Instant {
    Instant::now().checked_sub(time).unwrap()
}

pub(crate) const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Opens a place with a NATS of its own, which the test can end.
pub(crate) async fn place_with_nats() -> (Place, crate::dev::Nats) {
    let folder = std::env::temp_dir().join(format!("tenure-it-{}", std::process::id()));
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let start = move || crate::dev::Nats::start(&folder.join(format!("nats{n}"))).unwrap();
    let nats = tokio::task::spawn_blocking(start).await.unwrap();
    let url = nats.url();
    (place_with(|config| config.nats_url = url).await, nats)
}

/// Ends the NATS server, and waits until the client notices.
pub(crate) async fn end(nats: crate::dev::Nats, place: &Place) {
    tokio::task::spawn_blocking(move || drop(nats)).await.unwrap();
    let began = Instant::now();
    while place.tenure.nats().is_connected() {
        assert!(began.elapsed() < seconds(20), "the client did not notice that NATS ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The default rules of a kind, but with a `stale_after` of a minute.
pub(crate) const RULES: Rules = Rules {
    stale_after: Duration::from_secs(60),
    keepalive: None,
    on_crash: OnCrash::Retry,
    on_write_loss: OnWriteLoss::Cancel,
    no_history: false,
    halves: false,
};

impl Place {
    pub(crate) async fn execute(&self, sql: &str) {
        sqlx::query(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Returns the one value of a query, as text.
    pub(crate) async fn value(&self, sql: &str) -> String {
        let sql = format!("SELECT coalesce(({sql})::text, '')");
        sqlx::query_scalar(AssertSqlSafe(sql.as_str()))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Makes Postgres refuse to write this job.
    pub(crate) async fn refuses(&self, job: JobId) {
        let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
                      $$ BEGIN RAISE EXCEPTION 'too odd' USING ERRCODE = '22023'; END $$";
        self.execute(refuse).await;
        let trigger = format!(
            "CREATE TRIGGER refuse BEFORE UPDATE ON tenure.jobs FOR EACH ROW WHEN (NEW.id = '{job}') \
             EXECUTE FUNCTION refuse()"
        );
        self.execute(&trigger).await;
    }

    /// Makes Postgres raise this error at the next write of a job, and never again.
    pub(crate) async fn raise_once(&self, code: &str) {
        // A failed publication writes its job's row, too: let all of them end first.
        self.tenure.flush().await;
        self.execute("CREATE SEQUENCE tenure.raised").await;
        let function = format!(
            "CREATE FUNCTION raise_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('tenure.raised') = 1 THEN RAISE EXCEPTION 'once' USING ERRCODE = '{code}'; END IF; \
             RETURN NEW; END $$"
        );
        self.execute(&function).await;
        let trigger =
            "CREATE TRIGGER once BEFORE UPDATE ON tenure.jobs FOR EACH ROW EXECUTE FUNCTION raise_once()";
        self.execute(trigger).await;
    }

    /// Enqueues a job of queue `q` and kind `k`.
    pub(crate) async fn job(&self) -> JobId {
        self.tenure.enqueue(JobRequest::new("q", "k", serde_json::json!({}))).await.unwrap().id
    }

    /// Enqueues a job, and claims it for a worker.
    pub(crate) async fn claimed_by(&self, worker: &str) -> Claim {
        let job = self.job().await;
        self.claim(job, worker).await.unwrap()
    }

    pub(crate) async fn claim(&self, job: JobId, worker: &str) -> Option<Claim> {
        let request = ClaimRequest {
            job,
            queue: "q".into(),
            kind: "k".into(),
            stale_after: RULES.stale_after,
            on_crash: RULES.on_crash.as_str(),
        };
        let claims = self.tenure.store().claim(LockPolicy::Wait, &[request], worker, "host").await.unwrap();
        claims.into_iter().next().unwrap()
    }

    /// Returns a ticket of a job, of the dispatch `n`; each call makes another message.
    pub(crate) fn ticket(&self, job: JobId, n: i32) -> Delivery {
        let body = format!("{{\"job_id\":\"{job}\",\"dispatch\":{n}}}");
        let subject = format!("{}.q.k", self.config.subject_prefix);
        Delivery::made_up(self.tenure.nats(), (subject, body), Some(job), n, 1)
    }

    /// Enqueues a job, and claims it as a worker's running job.
    pub(crate) async fn running(&self, worker: &str) -> Arc<RunningJob> {
        self.running_under(RULES, worker).await
    }

    pub(crate) async fn running_under(&self, rules: Rules, worker: &str) -> Arc<RunningJob> {
        self.run_claim(self.claimed_by(worker).await, rules)
    }

    pub(crate) fn run_claim(&self, claim: Claim, rules: Rules) -> Arc<RunningJob> {
        let message = Message {
            receipt: self.ticket(claim.key.job, claim.dispatch).receipt,
            dispatch: Some(claim.dispatch),
        };
        Arc::new(RunningJob::new(claim, message, rules, None))
    }

    /// Makes a job's owner look silent for two minutes.
    pub(crate) async fn make_stale(&self, job: JobId) {
        let sql = format!(
            "UPDATE tenure.jobs SET last_activity_at = last_activity_at - interval '2 min' WHERE id = '{job}'"
        );
        self.execute(&sql).await;
    }
}

/// While a process has one subscriber, `tracing` asks the thread that first meets an event for its own: the thread of a
/// test that records no log has none, and so switches the event off for all. While a process has two, it asks both.
static SUBSCRIBERS: LazyLock<[tracing::Dispatch; 2]> =
    LazyLock::new(|| std::array::from_fn(|_| tracing::Dispatch::new(tracing_subscriber::registry())));

/// The log lines of a test's thread, from level DEBUG.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Records until the guard is dropped.
    pub(crate) fn record(&self) -> tracing::subscriber::DefaultGuard {
        LazyLock::force(&SUBSCRIBERS);
        let logs = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || logs.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// Returns the lines that contain this text.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        String::from_utf8_lossy(&all).lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    pub(crate) fn of(&self, text: &str) -> usize {
        self.lines(text).len()
    }
}

impl std::io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The counters of a test's thread.
#[derive(Default)]
pub(crate) struct Counts(Mutex<BTreeMap<String, Arc<Count>>>);

impl Counts {
    /// Records until the guard is dropped.
    pub(crate) fn record(&self) -> metrics::LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(self)
    }

    /// Returns the value of a counter by its name and labels, as in `tenure_jobs_total{kind=k}`.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.0.load(Ordering::Relaxed))
    }
}

#[derive(Default)]
struct Count(AtomicU64);

impl CounterFn for Count {
    fn increment(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn absolute(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(self.0.lock().unwrap().entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
