//! Line: a connection for each kind of statement that runs all the time, and one for the others.

use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, PgConnection, Postgres, postgres::PgArguments, query::Query};
use tokio::sync::OwnedMutexGuard;

use super::{Rows, Store, error::is_answer};

/// A kind of statement that runs all the time, or all other kinds, and keeps a connection for itself.
///
/// A pool costs a task and some wake-ups a call, which is more than the statement itself when it is the only
/// one in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Enqueue,
    Claim,
    Progress,
    Complete,
    /// All others. A pool hands its connections out in turn, and each of them would parse and keep every statement; so
    /// it serves only while this one is busy.
    Other,
}

pub(super) const LINES: usize = 5;

/// A line's connection is replaced at this age: leftovers of a proxy or a failover go, and so do the plans, which
/// were made for the tables as they were then.
const LINE_LASTS: Duration = Duration::from_mins(1);

/// A connection that has been idle for so long may be dead without a sign: proxies and firewalls forget it.
pub(super) const LINE_KEPT: Duration = Duration::from_mins(5);

/// A statement that took longer may have a plan for other sizes of the tables: the next one gets a new connection, and
/// with it a new plan.
const LINE_SLOW: Duration = Duration::from_millis(500);

/// A line's connection.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: PgConnection,
    since: Instant,
    pub(super) used: Instant,
}

/// The connection of a line; `None` while a statement is in flight there, or before the first.
pub(super) type LineConnection = Option<Open>;

impl Store {
    /// Opens a line's connection. That of [`Line::Other`] leaves the pool half of the time, which may have one.
    pub(super) async fn open_line(&self, line: Line, until: Instant) -> Result<Open, sqlx::Error> {
        let now = Instant::now();
        let half = now + until.saturating_duration_since(now) / 2;
        let until = if line == Line::Other { half } else { until };
        let connection = self.deadline_at(until, self.own.connect_options().connect()).await?;
        Ok(Open { connection, since: now, used: now })
    }

    /// Sends a statement over a line. The line lacks its connection meanwhile, so that a dropped call leaves it empty.
    pub(super) async fn try_line(
        &self,
        line: Line,
        mut place: OwnedMutexGuard<LineConnection>,
        mut open: Open,
        query: Query<'_, Postgres, PgArguments>,
        until: Instant,
    ) -> Rows {
        let sent_at = Instant::now();
        let answer = self.deadline_at(until, query.fetch_all(&mut open.connection)).await;
        if is_answer(&answer) {
            open.used = Instant::now();
            let since = open.since;
            *place = Some(open);
            // Among the others are some that may be slow.
            let was_slow = sent_at.elapsed() > LINE_SLOW && line != Line::Other;
            if since.elapsed() > LINE_LASTS || was_slow {
                // In a task, so that no caller waits for it. Meanwhile the pool serves.
                let store = self.clone();
                self.home.spawn(async move {
                    if let Ok(open) = store.open_line(line, store.until()).await {
                        *place = Some(open);
                    }
                });
            }
        }
        self.observe_by(until, answer)
    }
}
