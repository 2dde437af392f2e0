//! Servers: those that all tests of this process share, and those of one test alone.
//!
//! Both begin as a copy of one folder, in which the cluster's database `postgres` is migrated: it is made once for each
//! schema and each Postgres, and kept in the target folder. No test server waits for the disk, but those of `make faults`.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, OnceLock, mpsc},
    thread,
};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tenure::{
    Config, Tenure,
    dev::{Nats, Postgres, Servers, postgres_bin},
    internals::{BASELINE, FUNCTIONS, MIGRATIONS},
};

/// The migrated database that each test's own is a copy of.
pub const TEMPLATE: &str = "template_tenure";
/// Databases of tests are dropped soon: autovacuum would have nothing to do but to look at each.
const SETTINGS: &[&str] = &["autovacuum_naptime=1h"];

pub struct Shared {
    pub servers: Servers,
    pub folder: PathBuf,
    /// Takes the names of databases to drop.
    dropped: mpsc::Sender<String>,
}

/// The folder of this run.
pub fn run_folder() -> PathBuf {
    std::env::temp_dir().join(format!("tenure-it-{}", std::process::id()))
}

/// The servers of this process, which the first test starts. They end with it, even if it is killed.
pub fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        super::counters::install();
        // It may take minutes: no test waits for it.
        thread::spawn(sweep);
        let folder = run_folder();
        fs::create_dir_all(&folder).unwrap();
        let servers = own_with(&folder, SETTINGS);
        let url = servers.postgres.url();
        apart(create(url.clone(), format!("CREATE DATABASE {TEMPLATE} TEMPLATE postgres")), &url);
        let (dropped, names) = mpsc::channel();
        thread::spawn(move || drop_all(&url, &names));
        Shared { servers, folder, dropped }
    })
}

/// Starts servers of one test alone, with their data in a folder.
pub fn own(folder: &Path) -> Servers {
    own_with(folder, &[])
}

fn own_with(folder: &Path, settings: &[&str]) -> Servers {
    let postgres = folder.join("postgres");
    copy(seed(), &postgres);
    Servers {
        postgres: Postgres::start_with(&postgres, is_durable(), settings).unwrap(),
        nats: Nats::start(&folder.join("nats")).unwrap(),
    }
}

/// Whether Postgres waits for the disk: `make faults` says so.
fn is_durable() -> bool {
    std::env::var_os("DURABLE").is_some()
}

impl Shared {
    /// Creates a database of this name. Several may be created at once: no session uses the template.
    pub async fn create(&self, name: String) -> Database {
        create(self.servers.postgres.url(), format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}")).await;
        Database(name)
    }
}

/// A database of the shared server. Its drop has it removed.
pub struct Database(pub String);

impl Drop for Database {
    fn drop(&mut self) {
        shared().dropped.send(std::mem::take(&mut self.0)).ok();
    }
}

async fn create(url: String, sql: String) {
    let mut admin = PgConnection::connect(&url).await.unwrap();
    admin.execute(AssertSqlSafe(sql)).await.unwrap();
    admin.close().await.unwrap();
}

fn drop_all(url: &str, names: &mpsc::Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Ok(mut admin) = PgConnection::connect(url).await else { return };
        while let Ok(name) = names.recv() {
            // It is left where a test holds it, and goes with the server.
            admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.ok();
        }
    });
}

/// Runs this on a separate runtime: the first caller's ends with its test.
fn apart(work: impl Future<Output = ()> + Send + 'static, what: &str) {
    let done = thread::spawn(move || tokio::runtime::Runtime::new().unwrap().block_on(work)).join();
    assert!(done.is_ok(), "preparing {what} failed");
}

/// The folder of a cluster that is migrated and stopped.
fn seed() -> &'static Path {
    static SEED: LazyLock<PathBuf> = LazyLock::new(|| {
        let bin = postgres_bin().unwrap();
        let version = Command::new(bin.join("postgres")).arg("--version").output().unwrap().stdout;
        let mut hasher = DefaultHasher::new();
        (BASELINE, FUNCTIONS, MIGRATIONS, version).hash(&mut hasher);
        let seeds = target().join("test-clusters");
        fs::create_dir_all(&seeds).unwrap();
        // Several test programs may start at once.
        let lock = fs::File::create(seeds.join("lock")).unwrap();
        lock.lock().unwrap();
        let seed = seeds.join(format!("{:016x}", hasher.finish()));
        if !seed.is_dir() {
            make(&run_folder().join("seed"), &seed);
        }
        seed
    });
    &SEED
}

/// The target folder, in which this program lies.
fn target() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(3).unwrap().to_owned()
}

fn make(folder: &Path, seed: &Path) {
    fs::create_dir_all(folder).unwrap();
    let mut servers = Servers {
        postgres: Postgres::start(&folder.join("postgres"), false).unwrap(),
        nats: Nats::start(&folder.join("nats")).unwrap(),
    };
    let config = Config::new(servers.postgres.url(), servers.nats.url());
    let migrate = async move {
        let tenure = Tenure::connect(&config).await.unwrap();
        let version = MIGRATIONS.last().map_or(0, |migration| migration.0);
        assert_eq!(tenure.migrate().await.unwrap().last(), Some(&version));
        tenure.close().await;
    };
    apart(migrate, "the migrated cluster");
    servers.stop();
    // Only the newest stays.
    for old in fs::read_dir(seed.parent().unwrap()).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        fs::remove_dir_all(old.path()).ok();
    }
    let half = seed.with_extension("half");
    copy(&folder.join("postgres"), &half);
    fs::rename(half, seed).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// Copies a folder with its owners and modes.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success(), "copying {} failed", from.display());
}

/// Removes the remains of killed runs.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("tenure-it-").and_then(|pid| pid.parse::<i32>().ok());
        if let Some(pid) = pid
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}
