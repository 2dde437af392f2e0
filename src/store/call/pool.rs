//! Pool: connections, and the cause when a server gives none.

use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection, PgConnection, Postgres, pool::PoolConnection, postgres::PgPool};
use tokio::time::timeout;

use super::{Store, error::StoreError};

/// Connections for tenure's own statements. Handlers' transactions have another pool, so that handlers that hold all of
/// its connections cannot stop a heartbeat.
pub(super) const OWN_CONNECTIONS: u32 = 6;

/// How long a server may take to say why it gave a pool no connection.
const ONE_MORE_WITHIN: Duration = Duration::from_secs(1);

/// A connection from a pool; it is closed, not reused, unless its call has finished.
pub(super) struct Held {
    pub(super) connection: PoolConnection<Postgres>,
    pub(super) finished: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.finished {
            self.connection.close_on_drop();
        }
    }
}

impl Store {
    /// Opens a connection for a migration, which may take long.
    pub(crate) async fn migration_connection(&self) -> Result<PgConnection, StoreError> {
        let options = self.own.connect_options();
        let answer = self.deadline(options.connect()).await;
        self.observe(answer)
    }

    /// Returns a connection of the pool, by `until`. A pool whose server refuses connections retries, and then only
    /// says that its time is up; one more attempt outside the pool returns the server's error, which is the cause.
    ///
    /// # Errors
    ///
    /// `PoolTimedOut` means that other callers hold all of the pool's connections.
    pub(super) async fn acquire(&self, pool: &PgPool, until: Instant) -> Result<Held, sqlx::Error> {
        let left = until.saturating_duration_since(Instant::now());
        let one_more_within = ONE_MORE_WITHIN.min(left / 4);
        match timeout(left.saturating_sub(one_more_within), pool.acquire()).await {
            Ok(Ok(connection)) => return Ok(Held { connection, finished: false }),
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {}
            Ok(Err(error)) => return Err(error),
        }
        // The pool has connections: other callers hold them.
        if pool.size() > 0 {
            return Err(sqlx::Error::PoolTimedOut);
        }
        match timeout(one_more_within, pool.connect_options().connect()).await {
            Ok(Ok(connection)) => drop(connection.close().await),
            Ok(Err(cause)) => return Err(cause),
            Err(_) => return Err(self.no_answer()),
        }
        Err(sqlx::Error::PoolTimedOut)
    }
}
