//! Error: the errors of Postgres, and their meaning.

use std::{io, sync::Arc, time::Duration};

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};

use crate::job::duration::written;

/// Postgres gave no answer, or refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Postgres did not answer, or said "not now". The statement may have taken effect: ask, or try again.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] Arc<sqlx::Error>),
    /// No connection for a handler's transaction came free in time: other handlers' transactions hold them all.
    #[error(
        "no connection for this transaction came free within {}: other handlers' transactions hold all \
         {connections}; raise TENURE_HANDLER_CONNECTIONS (of a given pool, its max_connections), run fewer jobs at \
         once, or make the transactions shorter",
        written(*.within)
    )]
    NoneFree {
        /// The connections that handlers' transactions have:
        /// [`Config::handler_connections`](crate::Config::handler_connections), or those of the pool given to
        /// [`TenureBuilder::handler_pool`](crate::TenureBuilder::handler_pool).
        connections: u32,
        /// How long the transaction waited.
        within: Duration,
    },
    /// The schema is missing or too old.
    #[error("tenure's schema is missing or too old in this database; run `tenure migrate`")]
    NotMigrated(#[source] Arc<sqlx::Error>),
    /// A pooler in between does not keep the prepared statements of its clients apart.
    #[error(
        "a pooler between this program and Postgres mixes up prepared statements: PgBouncer in transaction mode has to \
         be 1.21 or later, with max_prepared_statements above 0; with an older one, use its session mode, or connect \
         to Postgres itself ({0})"
    )]
    Pooler(#[source] Arc<sqlx::Error>),
    /// Postgres refused the statement, and would refuse it again.
    #[error("the database refused the statement: {0}")]
    Refused(#[source] Arc<sqlx::Error>),
}

/// What `tenure.hold_in_lane` raises.
const LANE_REQUIRED: &str = "TN009";

impl StoreError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NoneFree { .. } | Self::Pooler(_))
    }

    /// Whether the server said "not now", or nothing at all.
    pub(crate) fn says_unavailable(error: &sqlx::Error) -> bool {
        if let Some(code) = error.as_database_error().and_then(DatabaseError::code) {
            // Connection, authorization, database, rollback (deadlock, serialization), resources, operator,
            // system, a lock that came too late; a read-only server is an old primary.
            let class = code.get(..2).unwrap_or_default();
            let passing = matches!(class, "08" | "28" | "3D" | "40" | "53" | "57" | "58");
            return passing || code == "55P03" || code == "25006";
        }
        matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
        )
    }

    /// Whether the connection or the server went away during the statement. That is no fault of the statement or its
    /// rows, as a deadlock or a timeout may be.
    pub(crate) fn says_gone(error: &sqlx::Error) -> bool {
        match error.as_database_error().and_then(DatabaseError::code) {
            Some(code) => code.starts_with("08") || matches!(&*code, "57P01" | "57P02" | "57P03"),
            None if is_busy(error) => false,
            None => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
            ),
        }
    }

    /// Returns the error for a standby, which may not have the latest rows.
    pub(in crate::store) fn standby() -> Self {
        let error = io::Error::other("this server is a standby; the primary was asked for");
        Self::Unavailable(Arc::new(sqlx::Error::Io(error)))
    }

    /// Whether Postgres refused the values themselves (a data exception, a limit), and always will.
    pub(crate) fn is_the_datas_fault(&self) -> bool {
        let Self::Refused(error) = self else { return false };
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
        code.starts_with("22") || code.starts_with("54") || code == LANE_REQUIRED
    }

    /// What Postgres says if a new job names no lane, and its queue takes no such job.
    pub(crate) fn lacks_a_lane(&self) -> Option<String> {
        let Self::Refused(error) = self else { return None };
        let said =
            error.as_database_error().filter(|said| said.code().is_some_and(|code| code == LANE_REQUIRED));
        Some(said?.message().to_owned())
    }

    fn has_code(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let (Self::Unavailable(error)
        | Self::NotMigrated(error)
        | Self::Pooler(error)
        | Self::Refused(error)) = self
        else {
            return false;
        };
        error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| wanted(&code))
    }

    /// Whether a transaction's snapshot was too old for what it touched.
    pub(crate) fn is_serialization_failure(&self) -> bool {
        self.has_code(|code| code == "40001")
    }

    /// Whether a lock did not come in time: another transaction holds one of the rows.
    pub(crate) fn is_locked(&self) -> bool {
        self.has_code(|code| code == "55P03")
    }

    /// Whether that lock belongs to a unique key that another transaction is about to take.
    pub(crate) fn is_of_a_key(&self) -> bool {
        let Self::Unavailable(error) = self else { return false };
        let said = error.as_database_error().and_then(|said| said.try_downcast_ref::<PgDatabaseError>());
        // Only the context names the table, and it does so in every language of the server.
        self.is_locked()
            && said.and_then(PgDatabaseError::r#where).is_some_and(|at| at.contains("\"job_keys"))
    }

    /// Whether one row of many may be at fault, rather than the statement or the server.
    pub(crate) fn may_be_of_one_row(&self) -> bool {
        let of_a_value = matches!(self, Self::Refused(_)) && !self.is_of_the_statement();
        of_a_value || self.is_locked()
    }

    /// The same of a statement that passes over locked rows: a lock that it waits for is the whole table's.
    pub(crate) fn is_of_one_row(&self) -> bool {
        self.may_be_of_one_row() && !self.is_locked()
    }

    /// Whether the statement fails for each row alike: a right, a table or a function is missing.
    pub(crate) fn is_of_the_statement(&self) -> bool {
        self.has_code(|code| code.starts_with("42"))
    }

    /// Whether Postgres refused the statement because the role lacks a right: see `postgres/roles.sql`.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.has_code(|code| code == "42501")
    }

    /// Whether Postgres answered with an error, and has changed nothing. Otherwise the statement may have taken effect.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        let (Self::Unavailable(error)
        | Self::NotMigrated(error)
        | Self::Pooler(error)
        | Self::Refused(error)) = self
        else {
            return false;
        };
        error.as_database_error().is_some() && !Self::says_gone(error)
    }

    pub(crate) fn is_deadlock(&self) -> bool {
        self.has_code(|code| code == "40P01")
    }

    /// Whether the same statement may succeed a moment later: the server was away, or other transactions in the way.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_locked() || self.is_outage() || self.has_code(|code| code.starts_with("40"))
    }

    /// Whether the call took longer than it may: the server may be slow, or this statement.
    pub(crate) fn is_late(&self) -> bool {
        let Self::Unavailable(error) = self else { return false };
        let is_io = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
        self.has_code(|code| code == "57014") || matches!(&**error, sqlx::Error::Io(error) if is_io(error))
    }

    /// Whether Postgres was away, or had no room. A lock that came too late is no outage, nor is a time limit of the
    /// statement.
    pub(crate) fn is_outage(&self) -> bool {
        // A deadlock or a time limit is an answer of a server that is there.
        let in_the_way = |code: &str| code.starts_with("40") || code == "55P03" || code == "57014";
        self.is_unavailable() && !self.has_code(in_the_way)
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if mixes_up_statements(&error) {
            return Self::Pooler(Arc::new(error));
        }
        if Self::says_unavailable(&error) {
            return Self::Unavailable(Arc::new(error));
        }
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
        // No such table, column, schema, function.
        if matches!(&*code, "42P01" | "42703" | "3F000" | "42883") {
            return Self::NotMigrated(Arc::new(error));
        }
        Self::Refused(Arc::new(error))
    }
}

/// Whether a prepared statement of that name exists already, does not exist, or is another one. A pooler gives its own
/// errors the code of the last kind, and says where they come from in none.
fn mixes_up_statements(error: &sqlx::Error) -> bool {
    let Some(said) = error.as_database_error().and_then(|said| said.try_downcast_ref::<PgDatabaseError>())
    else {
        return false;
    };
    matches!(said.code(), "42P05" | "26000")
        || said.code() == "08P01" && said.routine() == Some("exec_bind_message")
}

/// Whether other callers held all connections.
fn is_busy(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut)
        || matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::ResourceBusy)
}

/// Returns the label of an error for a counter: the class of Postgres's code (its first two characters), or a word for
/// the way in which the answer stayed out.
pub(super) fn class(error: &sqlx::Error) -> String {
    match error {
        error if is_busy(error) => "pool".into(),
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => "timeout".into(),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) => "connection".into(),
        other => match other.as_database_error().and_then(DatabaseError::code) {
            Some(code) => code.get(..2).unwrap_or_default().to_owned(),
            None => "other".into(),
        },
    }
}

/// Whether the server answered, so that the connection can be used again. An answer of a server that is going, or that
/// does not write, does not count: after a failover another connection leads to its successor.
pub(super) fn is_answer<T>(answer: &Result<T, sqlx::Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => error.as_database_error().is_some_and(|said| {
            !StoreError::says_gone(error) && said.code().is_none_or(|code| code != "25006")
        }),
    }
}
