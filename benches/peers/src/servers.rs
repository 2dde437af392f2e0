//! Servers: one private Postgres for the whole run, and a new database for every work; a new NATS or Redis for
//! every work whose library takes one, and a gateway for tenure's clients in other languages.

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tenure::dev::{Nats, Postgres, postgres_user};
use tokio::time::sleep;

use crate::peers::Library;

/// As `tenure bench` gives its own: a small server of its own, and a log that is recycled, not created
/// for each need, or every new 16 MB of it would be zeroed under the commits. Postgres notes when each transaction
/// committed: the pick-up counts from there.
const SETTINGS: [&str; 5] = [
    "shared_buffers=256MB",
    "min_wal_size=2GB",
    "max_wal_size=8GB",
    "max_connections=300",
    "track_commit_timestamp=on",
];

/// Notes the transaction of each new job, in the order of their inserts. The note's own row has that transaction's
/// number, and no later one changes it, however the job ends.
const NOTED: &str = "
CREATE TABLE public.peers_commits (n bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION public.peers_note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO public.peers_commits DEFAULT VALUES; RETURN NULL; END';
CREATE TRIGGER peers_note AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.peers_note();";

/// In microseconds since 1970.
const COMMITS: &str = "
SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM public.peers_commits ORDER BY n";

pub(crate) struct Arena {
    postgres: Postgres,
    number: AtomicU32,
    tenure_program: PathBuf,
    // Dropped last: it removes the folder.
    folder: TempDir,
}

impl Arena {
    pub(crate) fn open(tenure_program: PathBuf) -> anyhow::Result<Self> {
        let folder = private_folder()?;
        let postgres = Postgres::start_with(&folder.path().join("postgres"), true, &SETTINGS)?;
        Ok(Self { postgres, number: AtomicU32::new(0), tenure_program, folder })
    }

    pub(crate) async fn create_database(&self) -> anyhow::Result<Database> {
        let name = format!("peers_{}", self.number.fetch_add(1, Ordering::Relaxed));
        let database = Database { url: self.postgres.url_of(&name), server: self.postgres.url(), name };
        database.administer(&format!("CREATE DATABASE {}", database.name)).await?;
        Ok(database)
    }

    /// Starts what this library takes beside Postgres.
    pub(crate) async fn start_broker(&self, library: Library) -> anyhow::Result<Broker> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let folder =
            tempfile::Builder::new().prefix(&format!("broker-{number}-")).tempdir_in(self.folder.path())?;
        if library.is_tenure() {
            return Ok(Broker::Nats(Nats::start(folder.path())?, folder));
        }
        match library.redis_sync() {
            Some(sync) => Ok(Broker::Redis(Redis::start(&folder, sync).await?, folder)),
            None => Ok(Broker::None),
        }
    }

    /// Starts a gateway of this database.
    pub(crate) fn start_gateway(&self, database: &Database, broker: &Broker) -> anyhow::Result<Gateway> {
        let mut command = guarded();
        // Its settings are those of this program, which takes none from its environment or a file.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TENURE_"))
        {
            command.env_remove(name);
        }
        command.arg(&self.tenure_program).arg("gateway").current_dir(self.folder.path()).envs([
            ("DATABASE_URL", database.url()),
            ("NATS_URL", broker.url().as_str()),
            ("RUST_LOG", "error"),
        ]);
        Ok(Gateway(Guarded(command.spawn().context("start a gateway")?)))
    }

    pub(crate) fn postgres_pid(&self) -> Vec<u32> {
        self.postgres.pid().and_then(|pid| u32::try_from(pid).ok()).into_iter().collect()
    }

    pub(crate) async fn postgres_version(&self) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(&self.postgres.url()).await?;
        Ok(sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?)
    }

    /// Ends Postgres in good order.
    pub(crate) fn close(&mut self) {
        self.postgres.stop();
    }
}

/// The server that a library takes beside Postgres, or instead of it, in a folder of its own.
pub(crate) enum Broker {
    None,
    Nats(Nats, #[expect(dead_code, reason = "its drop removes the folder")] TempDir),
    Redis(Redis, #[expect(dead_code, reason = "its drop removes the folder")] TempDir),
}

impl Broker {
    /// NATS's or Redis's.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Nats(nats, _) => nats.url(),
            Self::Redis(redis, _) => format!("redis://127.0.0.1:{}", redis.port),
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Nats(nats, _) => nats.pid().and_then(|pid| u32::try_from(pid).ok()),
            Self::Redis(redis, _) => Some(redis.server.0.id()),
        }
    }
}

/// A server's shell, which kills it when this pipe closes: when this is dropped, or this program dies.
struct Guarded(Child);

/// Keeps the shell's standard input from the server.
const GUARD: &str = r#"exec 3<&0; "$@" <&- 3<&- & server=$!; read -r _ <&3; kill -KILL $server; wait"#;

/// The shell of a server, which is the command's next argument.
fn guarded() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "sh"]).stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

pub(crate) struct Redis {
    server: Guarded,
    port: u16,
}

impl Redis {
    async fn start(folder: &TempDir, sync: &str) -> anyhow::Result<Self> {
        // Free now; Redis cannot choose one and say which.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let shell = guarded()
            .arg("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", sync, "--maxmemory-policy", "noeviction"])
            .current_dir(folder.path())
            .spawn()
            .context("start redis-server")?;
        let redis = Self { server: Guarded(shell), port };
        for _ in 0..500 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(redis);
            }
            sleep(Duration::from_millis(10)).await;
        }
        bail!("redis-server does not answer on port {port}")
    }
}

/// A `tenure gateway`.
pub(crate) struct Gateway(Guarded);

impl Gateway {
    pub(crate) fn pid(&self) -> u32 {
        self.0.0.id()
    }
}

/// A new database.
pub(crate) struct Database {
    name: String,
    url: String,
    server: String,
}

impl Database {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// From now on, notes when the transaction of each new row of this table commits.
    pub(crate) async fn note_commits(&self, table: &str) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::raw_sql(AssertSqlSafe(NOTED.replace("{table}", table))).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// When each job was committed, in microseconds since 1970, by the clock of this machine.
    pub(crate) async fn commits(&self) -> anyhow::Result<Vec<i64>> {
        let mut connection = PgConnection::connect(&self.url).await?;
        Ok(sqlx::query_scalar(COMMITS).fetch_all(&mut connection).await?)
    }

    /// Ends the connections to it as well. Postgres writes a checkpoint first, so that no work pays for
    /// the one before.
    pub(crate) async fn drop(self) -> anyhow::Result<()> {
        self.administer(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await
    }

    async fn administer(&self, statement: &str) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.server).await?;
        let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await;
        done.with_context(|| statement.to_owned())?;
        Ok(connection.close().await?)
    }
}

fn private_folder() -> anyhow::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("tenure-peers-").tempdir().context("create a folder")?;
    if postgres_user().is_some() {
        // Postgres runs as another user, who must be able to reach its own folder.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}
