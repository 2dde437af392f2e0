//! Servers: a private Postgres and NATS for all tests of this process, and a database and a stream for each.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::OnceLock,
    thread::{self, JoinHandle},
    time::Duration,
};

use rand::distr::{Alphanumeric, SampleString};
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use tokio::{sync::Mutex, time::timeout};
use uuid::Uuid;

use crate::{
    config::{Config, Timing, masked},
    dev::{DevError, Nats, Postgres, Servers, postgres_user},
    job::chained,
    nats,
    store::{JobFilter, Store, StoreError},
};

/// The prefix of the servers' folders, before the process's id.
const FOLDERS: &str = "tenure-testing-";
/// The template database of the tests' databases.
const TEMPLATE: &str = "tenure_template";
/// How long the removal of a test's database and stream may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// The servers of this process. They end with it, even if it is killed.
struct Private {
    servers: Servers,
    folder: PathBuf,
}

static PRIVATE: OnceLock<Result<Private, String>> = OnceLock::new();

/// The database and the stream of one test. Its drop removes both.
pub(super) struct Place {
    pub(super) config: Config,
    database: String,
    /// The database of the same server over which `database` is created and removed.
    server: Config,
    /// Whether the servers end with this process.
    is_private: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let (server, database, config) = (self.server.clone(), self.database.clone(), self.config.clone());
        // The test's own runtime may be about to end, and a drop cannot await in it.
        let removed = apart(async move {
            if timeout(REMOVED_WITHIN, remove(&server, &database, &config)).await.is_err() {
                tracing::warn!(database, "a test's database was not removed in time");
            }
        });
        if !self.is_private {
            drop(removed.join());
        }
    }
}

/// Opens a place on the private servers, which the first test starts.
pub(super) async fn on_private() -> Result<Place, String> {
    let started = tokio::task::spawn_blocking(|| PRIVATE.get_or_init(start)).await;
    let private = match started {
        Ok(Ok(private)) => private,
        Ok(Err(reason)) => return Err(reason.clone()),
        Err(error) => return Err(error.to_string()),
    };
    let Servers { postgres, nats } = &private.servers;
    let server = Config::new(postgres.url(), nats.url());
    let mut place = new_place(server, Some(TEMPLATE), true).await?;
    place.config.runtime_dir = private.folder.join("run");
    Ok(place)
}

/// Opens a place on servers that run already.
pub(super) async fn on(database_url: &str, nats_url: &str) -> Result<Place, String> {
    let server = Config::new(database_url, nats_url);
    let (store, shown) = (open(&server)?, masked(database_url));
    let found = store.list_jobs(&JobFilter::new(), 1, false).await;
    store.close().await;
    match found {
        Ok(jobs) if jobs.is_empty() => {}
        Err(StoreError::NotMigrated(_)) => {}
        Ok(_) => {
            return Err(format!(
                "there are tenure jobs in {shown}, so it may not be a server for tests; name a database without \
                 tenure jobs, such as postgres"
            ));
        }
        Err(error) => return Err(format!("{shown} cannot be used: {}", chained(&error))),
    }
    new_place(server, None, false).await
}

async fn new_place(server: Config, template: Option<&str>, is_private: bool) -> Result<Place, String> {
    // Postgres copies a template only while no other session uses it: one copy at a time.
    static CREATING: Mutex<()> = Mutex::const_new(());
    let id: String = Uuid::new_v4().simple().to_string().chars().take(12).collect();
    let database = format!("tenure_test_{id}");
    let store = open(&server)?;
    let created = {
        let _one = CREATING.lock().await;
        store.create_database(&database, template).await
    };
    store.close().await;
    created.map_err(|error| {
        let shown = masked(&server.database_url);
        format!(
            "creating a test's database over {shown} failed; its user needs CREATEDB: {}",
            chained(&error)
        )
    })?;
    let mut config = Config::new(url_of(&server.database_url, &database), server.nats_url.clone());
    config.stream = format!("TEST_{id}");
    config.subject_prefix = format!("test_{id}");
    hasten(&mut config.timing);
    Ok(Place { config, database, server, is_private })
}

/// Sets the timers of a test: waits are short, but a job that computes for a while does not look stale.
fn hasten(timing: &mut Timing) {
    timing.scan_every = Duration::from_millis(300);
    timing.flush_every = Duration::from_millis(50);
    timing.relay_every = Duration::from_millis(50);
    timing.publish_within = Duration::from_secs(1);
    timing.pull_for = Duration::from_millis(200);
    timing.shutdown_grace = Duration::from_secs(5);
    timing.cancel_grace = Duration::from_millis(500);
    // So long that every kind's own `stale_after` is shorter.
    timing.ack_wait = Duration::from_hours(24);
}

/// Returns the URL of another database of the same server.
fn url_of(url: &str, database: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (server, _) = rest.split_once('/').unwrap_or((rest, ""));
    // The parameters may name the database, too.
    let kept =
        parameters.split('&').filter(|parameter| !parameter.is_empty() && !parameter.starts_with("dbname="));
    let kept = kept.collect::<Vec<_>>().join("&");
    let mark = if kept.is_empty() { "" } else { "?" };
    format!("{scheme}://{server}/{database}{mark}{kept}")
}

fn start() -> Result<Private, String> {
    sweep();
    let folder =
        new_folder().map_err(|error| format!("creating a folder for the private servers failed: {error}"))?;
    let failed = |error: DevError| {
        format!(
            "the private servers of tenure::testing did not start: {}\nTo use your own servers, call \
             TestTenure::on(database_url, nats_url).",
            chained(&error)
        )
    };
    let postgres = Postgres::start(&folder.join("postgres"), false).map_err(failed)?;
    let nats = Nats::start(&folder.join("nats")).map_err(failed)?;
    let server = Config::new(postgres.url(), nats.url());
    let template = Config::new(postgres.url_of(TEMPLATE), nats.url());
    match apart(async move { make_template(&server, &template).await }).join() {
        Ok(Ok(made)) => made?,
        Ok(Err(error)) => return Err(format!("starting a runtime for the private servers failed: {error}")),
        Err(_) => return Err("creating the template of the tests' databases panicked".into()),
    }
    Ok(Private { servers: Servers { postgres, nats }, folder })
}

async fn make_template(server: &Config, template: &Config) -> Result<(), String> {
    let store = open(server)?;
    let created = store.create_database(TEMPLATE, None).await;
    store.close().await;
    created.map_err(|error| chained(&error))?;
    let store = open(template)?;
    let migrated = store.migrate().await;
    // Postgres copies a database only while no session is connected to it.
    store.close().await;
    migrated.map(drop).map_err(|error| chained(&error))
}

fn open(config: &Config) -> Result<Store, String> {
    Store::open(config, None)
        .map_err(|error| format!("{}: {}", masked(&config.database_url), chained(&error)))
}

async fn remove(server: &Config, database: &str, config: &Config) {
    match Store::open(server, None) {
        Ok(store) => {
            if let Err(error) = store.drop_database(database).await {
                tracing::warn!(%error, database, "a test's database was not removed");
            }
            store.close().await;
        }
        Err(error) => tracing::warn!(%error, database, "a test's database was not removed"),
    }
    match nats::Nats::open(config).await {
        Ok(nats) => {
            nats.connected().await;
            if let Err(error) = nats.remove_stream().await {
                tracing::warn!(%error, stream = config.stream, "a test's stream was not removed");
            }
        }
        Err(error) => tracing::warn!(%error, stream = config.stream, "a test's stream was not removed"),
    }
}

/// Runs `work` on a thread and a runtime of its own: the caller's end with its test.
fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<io::Result<T>> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(work))
    })
}

fn new_folder() -> io::Result<PathBuf> {
    let random = Alphanumeric.sample_string(&mut rand::rng(), 8);
    let folder = env::temp_dir().join(format!("{FOLDERS}{}-{random}", std::process::id()));
    fs::create_dir(&folder)?;
    // Root's Postgres runs as another user, which must be able to enter its own folder inside.
    let mode = if postgres_user().is_some() { 0o711 } else { 0o700 };
    fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
    Ok(folder)
}

/// Removes the folders of processes that are gone.
fn sweep() {
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(FOLDERS).and_then(|rest| rest.split('-').next()?.parse::<i32>().ok());
        let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
        if pid.and_then(Pid::from_raw).is_some_and(is_gone) {
            // The folder may belong to another user, or another process may be removing it.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_form_of_url_can_name_another_database_of_the_same_server() {
        for (url, expected) in [
            ("postgres://u:p@h:1/jobs", "postgres://u:p@h:1/new"),
            ("postgres://u:p@h", "postgres://u:p@h/new"),
            ("postgres:///jobs?host=/run/pg&dbname=jobs", "postgres:///new?host=/run/pg"),
            ("postgresql://h/jobs?sslmode=require", "postgresql://h/new?sslmode=require"),
        ] {
            assert_eq!(url_of(url, "new"), expected);
        }
    }
}
