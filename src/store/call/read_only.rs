//! Read-only: a server that answers, and refuses each write: an old primary after a failover, or a full disk's guard.
//!
//! Its reads succeed. If each of them counted as a sign that Postgres is back, a process that reads and writes would
//! take it for alternately up and away. So after a refused write only a write that succeeds counts, or the passing of
//! some time without a refusal: a process may write seldom.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{SqlStr, error::DatabaseError};

/// For how long reads count for nothing; a worker writes every second.
const REFUSAL_LASTS: Duration = Duration::from_secs(10);

/// Whether the server has refused a write lately.
#[derive(Debug, Default)]
pub(super) struct ReadOnly {
    /// Read at each call, and cheap.
    is_noted: AtomicBool,
    refused_at: Mutex<Option<Instant>>,
}

impl ReadOnly {
    /// Whether the success of this statement proves that the server takes writes. Postgres refuses such a statement
    /// even if no row matches.
    pub(super) fn is_lifted_by(&self, sql: &SqlStr) -> bool {
        let changes = ["UPDATE tenure.", "INSERT INTO tenure.", "DELETE FROM tenure."];
        self.is_noted.load(Ordering::Acquire) && changes.iter().any(|change| sql.as_str().contains(change))
    }

    /// Notes that the server has taken a write.
    pub(super) fn lift(&self) {
        self.is_noted.store(false, Ordering::Release);
    }

    /// Notes the answer to a call, if the server has refused a write.
    pub(super) fn note_refusal<T>(&self, answer: &Result<T, sqlx::Error>) {
        let error = answer.as_ref().err().and_then(sqlx::Error::as_database_error);
        if error.and_then(DatabaseError::code).is_some_and(|code| code == "25006") {
            *self.refused_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.is_noted.store(true, Ordering::Release);
        }
    }

    /// Whether the server has refused a write, and taken none since.
    pub(super) fn is_on(&self) -> bool {
        if !self.is_noted.load(Ordering::Acquire) {
            return false;
        }
        let refused_at = *self.refused_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_on = refused_at.is_some_and(|at| at.elapsed() < REFUSAL_LASTS);
        if !is_on {
            self.is_noted.store(false, Ordering::Release);
        }
        is_on
    }
}
