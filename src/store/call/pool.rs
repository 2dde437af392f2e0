//! Pool: connections, and the cause when a server gives none.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{ConnectOptions, Connection, PgConnection, Postgres, pool::PoolConnection, postgres::PgPool};
use tokio::time::timeout;

use super::{Store, error::StoreError};

/// Connections for tenure's own statements. Handlers' transactions have another pool, so that handlers that hold all of
/// its connections cannot stop a heartbeat.
pub(super) const OWN_CONNECTIONS: u32 = 6;

/// How long a server may take to say why it gave a pool no connection.
const ONE_MORE_WITHIN: Duration = Duration::from_secs(1);

/// The connections of a pool that tenure's callers hold now. The pool itself also counts those that it tries to open.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldCount(Arc<AtomicU32>);

/// A connection from a pool; it is closed, not reused, unless its call has finished.
pub(super) struct Held {
    pub(super) connection: PoolConnection<Postgres>,
    pub(super) finished: bool,
    count: HeldCount,
}

impl Held {
    fn new(connection: PoolConnection<Postgres>, count: &HeldCount) -> Self {
        count.0.fetch_add(1, Ordering::AcqRel);
        Self { connection, finished: false, count: count.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.finished {
            self.connection.close_on_drop();
        }
        self.count.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store {
    /// Opens a connection for a migration, which may take long.
    pub(crate) async fn migration_connection(&self) -> Result<PgConnection, StoreError> {
        let options = self.own.connect_options();
        let answer = self.deadline(options.connect()).await;
        self.observe(answer)
    }

    /// Returns a connection for tenure's own statements, by `until`.
    pub(super) async fn acquire_own(&self, until: Instant) -> Result<Held, sqlx::Error> {
        match self.acquire(&self.own, &self.own_held, false, until).await {
            Err(sqlx::Error::PoolTimedOut) => {
                let text = format!(
                    "no connection came free within {:?}: statements that Postgres has not answered hold all \
                     {OWN_CONNECTIONS}",
                    self.within
                );
                Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::ResourceBusy, text)))
            }
            answer => answer,
        }
    }

    /// Returns a connection for a handler's transaction, by `until`.
    ///
    /// # Errors
    ///
    /// `PoolTimedOut` means that handlers, or the application, hold all of the pool's connections.
    pub(super) async fn acquire_for_handlers(&self, until: Instant) -> Result<Held, sqlx::Error> {
        self.acquire(&self.handlers, &self.handlers_held, self.handlers_given, until).await
    }

    /// A pool whose server refuses connections retries, and then only says that its time is up; one more attempt
    /// outside the pool returns the server's error, which is the cause.
    async fn acquire(
        &self,
        pool: &PgPool,
        held: &HeldCount,
        is_shared: bool,
        until: Instant,
    ) -> Result<Held, sqlx::Error> {
        let left = until.saturating_duration_since(Instant::now());
        let one_more_within = ONE_MORE_WITHIN.min(left / 4);
        match timeout(left.saturating_sub(one_more_within), pool.acquire()).await {
            Ok(Ok(connection)) => return Ok(Held::new(connection, held)),
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {}
            Ok(Err(error)) => return Err(error),
        }
        // The application also takes connections from its pool, which are not counted here.
        let most = pool.options().get_max_connections();
        if held.0.load(Ordering::Acquire) >= most || is_shared && pool.size() >= most {
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
