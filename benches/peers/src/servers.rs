//! Servers: one private Postgres and one NATS for the whole run, and a new database for every work.

use std::{
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tenure::dev::{Nats, Postgres, postgres_user};
use tokio::process::Command;

/// As `tenure bench` gives its own: a small server of its own, and a log that is recycled, not created
/// anew, or every new 16 MB of it would be zeroed under the commits.
const SETTINGS: [&str; 3] = ["shared_buffers=256MB", "min_wal_size=2GB", "max_wal_size=8GB"];

pub(crate) struct Arena {
    postgres: Postgres,
    nats: Nats,
    databases: AtomicU32,
    // Dropped last: it removes the folder.
    _folder: TempDir,
}

impl Arena {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let folder = private_folder()?;
        let postgres = Postgres::start_with(&folder.path().join("postgres"), true, &SETTINGS)?;
        let nats = Nats::start(&folder.path().join("nats"))?;
        Ok(Self { postgres, nats, databases: AtomicU32::new(0), _folder: folder })
    }

    pub(crate) fn nats_url(&self) -> String {
        self.nats.url()
    }

    pub(crate) async fn create_database(&self) -> anyhow::Result<Database> {
        let name = format!("peers_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let database = Database { url: self.postgres.url_of(&name), server: self.postgres.url(), name };
        database.administer(&format!("CREATE DATABASE {}", database.name)).await?;
        Ok(database)
    }

    pub(crate) async fn postgres_version(&self) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(&self.postgres.url()).await?;
        Ok(sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?)
    }

    /// Ends both in good order.
    pub(crate) fn close(&mut self) {
        self.nats.stop();
        self.postgres.stop();
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

/// What a program prints, if it succeeds in time. It is killed otherwise.
pub(crate) async fn output_of(mut command: Command, longest: Duration) -> anyhow::Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().context("start a child")?;
    let Ok(output) = tokio::time::timeout(longest, child.wait_with_output()).await else {
        bail!("not done after {} s", longest.as_secs());
    };
    let output = output.context("wait for the child")?;
    if output.status.success() {
        return String::from_utf8(output.stdout).context("read what the child has printed");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The last words, as one line: a panic of a library may come with a page of them.
    bail!("{}: {}", output.status, lines[lines.len().saturating_sub(8)..].join(" / "))
}
