//! Pool: connections, and the cause when a server gives none.

use std::{
    borrow::Cow,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{
    ConnectOptions, Connection, PgConnection, Postgres,
    error::{DatabaseError, ErrorKind},
    pool::PoolConnection,
    postgres::PgPool,
};
use tokio::time::timeout;

use super::{Store, error::StoreError};
use crate::job::duration::written;

/// Connections for tenure's own statements, beside the lines. Handlers' transactions have another pool, so that
/// handlers that hold all of its connections cannot stop a heartbeat.
pub(super) const OWN_CONNECTIONS: u32 = 5;

/// How long a server may take to say why it gave a pool no connection.
const ONE_MORE_WITHIN: Duration = Duration::from_secs(1);

/// How long a server's answer to that question holds for other callers.
const CAUSE_LASTS: Duration = Duration::from_secs(1);

/// The connections of a pool that tenure's callers hold now. The pool itself also counts those that it tries to open.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldCount(Arc<AtomicU32>);

/// Why the server gave a pool no connection, as the last caller that asked has learned it; `None`: it gives one.
pub(super) type Cause = tokio::sync::Mutex<Option<(Instant, Option<Arc<sqlx::Error>>)>>;

/// A connection from a pool; it is closed, not reused, unless its call has finished.
pub(super) struct Held {
    pub(super) connection: PoolConnection<Postgres>,
    pub(super) finished: bool,
    count: HeldCount,
}

impl Held {
    pub(super) fn new(connection: PoolConnection<Postgres>, count: &HeldCount) -> Self {
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
        match self.acquire(&self.own, (&self.own_held, &self.own_cause), false, until).await {
            Err(sqlx::Error::PoolTimedOut) => {
                let text = format!(
                    "no connection came free within {}: statements that Postgres has not answered hold all \
                     {OWN_CONNECTIONS} of the pool",
                    written(self.within)
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
        let held = (&self.handlers_held, &self.handlers_cause);
        self.acquire(&self.handlers, held, self.handlers_given, until).await
    }

    /// A pool whose server refuses connections retries, and then only says that its time is up; one more attempt
    /// outside the pool returns the server's error, which is the cause.
    async fn acquire(
        &self,
        pool: &PgPool,
        (held, cause): (&HeldCount, &Cause),
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
        match timeout(one_more_within, ask(pool, cause)).await {
            Ok(Some(cause)) => Err(again(&cause)),
            Ok(None) => Err(sqlx::Error::PoolTimedOut),
            Err(_) => Err(self.no_answer()),
        }
    }
}

/// Asks the server why it gives no connection. Of many callers that wait, one asks, and all learn the answer: a server
/// in trouble must not get a connection from each of them.
async fn ask(pool: &PgPool, cause: &Cause) -> Option<Arc<sqlx::Error>> {
    let mut last = cause.lock().await;
    if let Some((at, cause)) = &*last
        && at.elapsed() < CAUSE_LASTS
    {
        return cause.clone();
    }
    let cause = match pool.connect_options().connect().await {
        Ok(connection) => {
            drop(connection.close().await);
            None
        }
        Err(error) => Some(Arc::new(error)),
    };
    *last = Some((Instant::now(), cause.clone()));
    cause
}

/// Returns an error that many callers share, for one of them.
fn again(cause: &Arc<sqlx::Error>) -> sqlx::Error {
    match &**cause {
        sqlx::Error::Io(error) => sqlx::Error::Io(io::Error::new(error.kind(), error.to_string())),
        sqlx::Error::Tls(error) => sqlx::Error::Tls(error.to_string().into()),
        sqlx::Error::Protocol(text) => sqlx::Error::Protocol(text.clone()),
        sqlx::Error::Database(_) => sqlx::Error::Database(Box::new(Shared(cause.clone()))),
        other => sqlx::Error::Io(io::Error::other(other.to_string())),
    }
}

/// An error of the server that many callers share.
#[derive(Debug)]
struct Shared(Arc<sqlx::Error>);

impl std::fmt::Display for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Shared {}

impl DatabaseError for Shared {
    fn message(&self) -> &str {
        self.0.as_database_error().map_or("", DatabaseError::message)
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.0.as_database_error().and_then(DatabaseError::code)
    }

    fn kind(&self) -> ErrorKind {
        self.0.as_database_error().map_or(ErrorKind::Other, DatabaseError::kind)
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use futures::{future::join_all, poll};
    use sqlx::postgres::PgPoolOptions;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A server that is starting up refuses each connection; it is asked once.
    #[tokio::test]
    async fn of_many_callers_one_asks_the_server_for_the_cause_and_all_learn_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://u@{}/d?sslmode=disable", listener.local_addr().unwrap());
        let pool = PgPoolOptions::new().connect_lazy(&url).unwrap();
        let cause = Cause::default();
        let mut callers = Box::pin(join_all((0..40).map(|_| ask(&pool, &cause))));
        // All of them wait before the server answers the first.
        assert!(poll!(&mut callers).is_pending());
        let connections = Arc::new(AtomicU32::new(0));
        let counted = connections.clone();
        let server = tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::AcqRel);
                drop(connection.read(&mut [0; 1024]).await);
                let mut refusal = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0".to_vec();
                let length = u32::try_from(refusal.len() + 4).unwrap().to_be_bytes();
                refusal.splice(0..0, [b"E".as_slice(), &length].concat());
                drop(connection.write_all(&refusal).await);
            }
        });
        for cause in callers.await {
            let error = again(&cause.unwrap());
            assert_eq!(error.as_database_error().and_then(DatabaseError::code).unwrap(), "57P03", "{error}");
            assert!(error.to_string().contains("starting up"), "{error}");
        }
        assert_eq!(connections.load(Ordering::Acquire), 1);
        server.abort();
    }
}
