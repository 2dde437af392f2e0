//! No room: a server that reads, and refuses writes because its disk is full. People who look at the pages must learn
//! why nothing happens.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use sqlx::{SqlStr, error::DatabaseError};

/// How long a page shows the error after the last refused write. While the disk is full, `tenure serve` is refused at
/// each of its measurements, and so shows the error all the time. A process that seldom writes may not notice when the
/// disk has room again.
const SHOWN_FOR: std::time::Duration = std::time::Duration::from_mins(2);

/// The last write that Postgres had no room for.
#[derive(Debug, Default)]
pub(super) struct NoRoom {
    /// Read at each call, and cheap.
    is_noted: AtomicBool,
    last: Mutex<Option<(Instant, String)>>,
}

impl NoRoom {
    /// Whether the server was out of disk or memory, or could not write a file.
    pub(super) fn is_said_by(error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
        // Too many connections is of the same class, and says nothing about writes.
        (code.starts_with("53") && code != "53300") || code == "58030"
    }

    pub(super) fn note(&self, text: String) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), text));
        self.is_noted.store(true, Ordering::Release);
    }

    /// Whether a row that this statement wrote proves that there is room again. An update may find room in its page.
    pub(super) fn is_lifted_by(&self, sql: &SqlStr) -> bool {
        self.is_noted.load(Ordering::Acquire) && sql.as_str().contains("INSERT INTO tenure.")
    }

    /// Notes that the server has written a row.
    pub(super) fn lift(&self) {
        self.is_noted.store(false, Ordering::Release);
    }

    /// Returns how long ago that was, and the error.
    pub(super) fn last(&self) -> Option<(std::time::Duration, String)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (at, text) = last.filter(|_| self.is_noted.load(Ordering::Acquire))?;
        let ago = at.elapsed();
        (ago < SHOWN_FOR).then_some((ago, text))
    }
}
