//! Ends: reads the end of each job once, in pages, from a cursor that the reader keeps.
//!
//! Times alone would not do: a transaction that completes a job may commit long after another whose end is later. Each
//! end has the number of the transaction that wrote it, and a page reads a *window*: the ends that one snapshot of the
//! server shows and an earlier one did not. A transaction is in exactly one window, however late it commits.
//! (The idea is that of `pg_visible_in_snapshot`, once `txid_visible_in_snapshot`, which pgq was made of.)
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_follower_that_is_killed_again_and_again_reads_each_end_once`
//! - `an_end_that_commits_late_is_read_although_later_ends_were`

use std::{fmt, str::FromStr};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::store::{EndsPage, JobEnd};
use crate::{client::Tenure, job::JobId, store::StoreError};

/// The most ends of one page.
const PAGE_MAX: u32 = 10_000;
/// The first slice of time that a page looks through, and by how much the next one is longer.
const SLICE_FIRST: TimeDelta = TimeDelta::seconds(2);
const SLICE_GROWTH: i32 = 8;
/// The longest time between the start of a statement and the time that it writes, and by which a clock may jump back
/// between two pages without being seen.
const SLACK: TimeDelta = TimeDelta::minutes(5);
/// The version of the text of a cursor.
const VERSION: &str = "1";

/// A place in the sequence of all ends: what a reader has read. Keep its text, and go on from there, in any process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// All ends that this snapshot shows are read. `None`: none are.
    read: Option<Snapshot>,
    /// No end that is not read has an earlier time.
    floor: DateTime<Utc>,
    /// A transaction that had not begun at this time: once all before it are read, this time is the floor.
    mark: Option<(u64, DateTime<Utc>)>,
    /// The window that is being read: what it shows, and the time and job of its last end that was read.
    window: Option<(Snapshot, DateTime<Utc>, JobId)>,
}

/// A snapshot of a server: which transactions had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Snapshot {
    /// As Postgres writes it: `oldest:next:open,open`.
    text: String,
    /// All transactions before this one had ended.
    oldest: u64,
    /// This one had not begun.
    next: u64,
    /// When it was taken.
    at: DateTime<Utc>,
    /// Since when the server had run.
    started_at: DateTime<Utc>,
}

impl Snapshot {
    /// Reads what Postgres has written. `None`: it is no snapshot.
    fn read(text: &str, at: DateTime<Utc>, started_at: DateTime<Utc>) -> Option<Self> {
        let [oldest, next, open] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let number = |text: &str| text.parse::<u64>().ok();
        let (oldest, next) = (number(oldest)?, number(next)?);
        // Postgres refuses a list that is not in order between both.
        let mut least = oldest;
        for xid in open.split(',').filter(|_| !open.is_empty()) {
            let xid = number(xid)?;
            if xid < least || xid >= next {
                return None;
            }
            least = xid + 1;
        }
        (oldest > 0 && next >= oldest).then(|| Self { text: text.into(), oldest, next, at, started_at })
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, at, started_at, .. } = self;
        write!(f, "{text}:{}:{}", at.timestamp_micros(), started_at.timestamp_micros())
    }
}

impl FromStr for Snapshot {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let time = |text: &str| DateTime::from_timestamp_micros(text.parse().ok()?);
        let mut parts = text.rsplitn(3, ':');
        let (started_at, at, text) = (parts.next(), parts.next(), parts.next());
        let read = || Self::read(text?, time(at?)?, time(started_at?)?);
        read().ok_or(())
    }
}

/// The text is no cursor, or not one of this database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CursorError {
    /// The text is no cursor.
    #[error(
        "{0:?} is not a cursor; pass one that `ends_since` or `tenure jobs follow` has returned, or a time"
    )]
    Text(String),
    /// The cursor is ahead of the database.
    #[error(
        "the cursor is ahead of this database: it is another database's, or this one was restored; start again from a \
         time"
    )]
    Ahead,
}

/// Selects ends. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct EndsFilter {
    queue: Option<String>,
    kind: Option<String>,
}

impl EndsFilter {
    /// Creates a filter that selects all ends.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only ends of this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Selects only ends of this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }
}

/// A page of ends.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ends {
    /// The ends, each with the cursor to go on after it.
    pub ends: Vec<(JobEnd, Cursor)>,
    /// Where the next page begins. Keep it even if there are no ends.
    pub next: Cursor,
    /// Whether more ends may be there already.
    pub has_more: bool,
}

/// Why [`Tenure::ends_since`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndsError {
    /// The cursor cannot be used.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// Postgres did not answer, or refused. Try again with the same cursor.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cursor {
    /// Before the first end that the database still has.
    #[must_use]
    pub fn beginning() -> Self {
        Self::at(DateTime::UNIX_EPOCH)
    }

    /// Before the first end at this time or later, by the database's clock.
    #[must_use]
    pub fn at(time: DateTime<Utc>) -> Self {
        Self { read: None, floor: time, mark: None, window: None }
    }

    /// Opens a window, if none is open: all that has ended by now.
    fn open(&mut self, now: &Snapshot) -> Result<(Snapshot, DateTime<Utc>, JobId), CursorError> {
        let furthest = self.window.as_ref().map(|(shows, ..)| shows).or(self.read.as_ref());
        // After a crash or a failover, numbers may come again: see `ends.sql`.
        if furthest.is_some_and(|furthest| furthest.next > now.next && furthest.started_at == now.started_at)
        {
            return Err(CursorError::Ahead);
        }
        // The clock has stepped back: what ends now has a time before the floor. A floor after the mark was asked for.
        if let Some((_, marked_at)) = self.mark
            && now.at < marked_at
            && self.floor <= marked_at
        {
            self.floor = self.floor.min(now.at - SLACK);
        }
        let floor = self.floor;
        Ok(self.window.get_or_insert_with(|| (now.clone(), floor, JobId(Uuid::nil()))).clone())
    }

    /// Closes the window: all that it shows is read.
    fn close(&mut self, shows: Snapshot, now: &Snapshot) {
        self.window = None;
        match self.mark {
            Some((mark, _)) if mark > shows.oldest => {}
            mark => {
                if let Some((_, marked_at)) = mark
                    && marked_at <= now.at
                {
                    self.floor = self.floor.max(marked_at - SLACK);
                }
                self.mark = Some((now.next, now.at));
            }
        }
        self.read = Some(shows);
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |at: &DateTime<Utc>| at.timestamp_micros();
        write!(f, "{VERSION}.")?;
        match &self.read {
            Some(read) => write!(f, "{read}")?,
            None => f.write_str("-")?,
        }
        write!(f, ".{}", micros(&self.floor))?;
        match &self.mark {
            Some((mark, at)) => write!(f, ".{mark}.{}", micros(at))?,
            None => f.write_str(".-.-")?,
        }
        if let Some((shows, at, job)) = &self.window {
            write!(f, ".{shows}.{}.{}", micros(at), job.0.simple())?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let parts: Vec<_> = text.split('.').collect();
            let number = |text: &str| text.parse::<u64>().ok();
            let time = |text: &str| DateTime::from_timestamp_micros(text.parse().ok()?);
            let (head, window) = match parts.as_slice() {
                [head @ .., shows, at, job] if head.len() == 5 => {
                    let job = JobId(Uuid::try_parse(job).ok()?);
                    (head, Some((shows.parse().ok()?, time(at)?, job)))
                }
                head => (head, None),
            };
            let [VERSION, read, floor, mark, mark_at] = head else { return None };
            let read = if *read == "-" { None } else { Some(read.parse().ok()?) };
            let mark = if *mark == "-" { None } else { Some((number(mark)?, time(mark_at)?)) };
            Some(Self { read, floor: time(floor)?, mark, window })
        };
        parse().ok_or_else(|| CursorError::Text(text.chars().take(100).collect()))
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Tenure {
    /// Returns a cursor before all ends that commit from now on.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn ends_from_now(&self) -> Result<Cursor, StoreError> {
        let now = self.snapshot().await?;
        // A transaction that is open now may have written its end's time long ago.
        let (floor, mark) = (now.at - TimeDelta::days(1), Some((now.next, now.at)));
        Ok(Cursor { read: Some(now), floor, mark, window: None })
    }

    async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let (text, at, started_at) = self.store().ends_snapshot().await?;
        let unread = || sqlx::Error::Protocol(format!("the snapshot {text:?}")).into();
        Snapshot::read(&text, at, started_at).ok_or_else(unread)
    }

    /// Returns the next ends of jobs after a cursor, at most `limit` (and 10,000). It reads the database: nothing needs
    /// to be subscribed, and NATS may be away. A reader that keeps the cursor reads each end once, over restarts, on
    /// any host; one that acts on an end before it has kept its cursor may act twice.
    ///
    /// The ends of one page are in order of their times. A later page may have an earlier one, whose transaction has
    /// committed later.
    ///
    /// Not read: the ends of kinds that keep no history; an end that retention has removed, or a redrive has undone,
    /// before it was read. A job that is redriven ends again, and that end is read, too.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure::{Tenure, jobs::{Cursor, EndsError, EndsFilter}};
    /// # async fn f(tenure: Tenure, mut cursor: Cursor) -> Result<(), EndsError> {
    /// loop {
    ///     let page = tenure.ends_since(&cursor, &EndsFilter::new().queue("mail"), 1_000).await?;
    ///     for (end, _) in &page.ends {
    ///         println!("{} {}", end.id, end.status);
    ///     }
    ///     cursor = page.next; // Keep it where the effects of the loop's body are kept.
    ///     if !page.has_more {
    ///         tokio::time::sleep(Duration::from_millis(500)).await;
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`EndsError::Cursor`] if the cursor is ahead of the database; [`EndsError::Store`] if Postgres did not answer in
    /// time, or refused the read.
    pub async fn ends_since(
        &self,
        cursor: &Cursor,
        filter: &EndsFilter,
        limit: u32,
    ) -> Result<Ends, EndsError> {
        let mut next = cursor.clone();
        let now = self.snapshot().await?;
        let (shows, mut at, mut last) = next.open(&now)?;
        let limit = limit.clamp(1, PAGE_MAX);
        if next
            .read
            .as_ref()
            .is_some_and(|read| read.text == shows.text && read.started_at == shows.started_at)
        {
            next.close(shows, &now);
            return Ok(Ends { ends: vec![], next, has_more: false });
        }
        let before_start = next.read.as_ref().filter(|read| read.started_at != shows.started_at);
        let read_before_start = before_start.map(|read| read.at);
        // A slice of time at a time: a page after a long absence need not sort all that has ended since.
        let mut slice = SLICE_FIRST;
        // All that a window of before a crash or a failover shows had ended by then.
        let last_at = (shows.started_at != now.started_at).then_some(shows.at);
        loop {
            let until = at.checked_add_signed(slice).filter(|until| *until < last_at.unwrap_or(now.at));
            let page = EndsPage {
                read: next.read.as_ref().map(|read| read.text.as_str()),
                shows: &shows.text,
                after: (at, last),
                until: until.or(last_at),
                limit,
                queue: filter.queue.as_deref(),
                kind: filter.kind.as_deref(),
                read_before_start,
            };
            let ends = self.store().ends(&page).await?;
            let is_full = ends.len() == limit as usize;
            let ends: Vec<_> = ends
                .into_iter()
                .map(|end| {
                    let window = Some((shows.clone(), end.finished_at, end.id));
                    let cursor = Cursor { window, ..next.clone() };
                    (end, cursor)
                })
                .collect();
            if is_full && let Some((_, cursor)) = ends.last() {
                return Ok(Ends { next: cursor.clone(), ends, has_more: true });
            }
            let Some(until) = until else {
                // More may have ended since the window was opened.
                let has_more = now.text != shows.text;
                next.close(shows, &now);
                return Ok(Ends { ends, next, has_more });
            };
            if !ends.is_empty() {
                next.window = Some((shows, until, JobId(Uuid::nil())));
                return Ok(Ends { ends, next, has_more: true });
            }
            (at, last) = (until, JobId(Uuid::nil()));
            slice = slice.checked_mul(SLICE_GROWTH).unwrap_or(TimeDelta::MAX);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn snapshot(text: &str, s: i64) -> Snapshot {
        let at = |s| DateTime::from_timestamp(s, 0).unwrap();
        Snapshot::read(text, at(s), at(5)).unwrap()
    }

    #[test]
    fn a_cursor_survives_its_text() {
        let at = DateTime::from_timestamp_micros(1_800_000_000_123_456).unwrap();
        let (job, open) = (JobId::generate(), snapshot("7:12:8,11", 9));
        let read = Some(snapshot("7:7:", 9));
        for cursor in [
            Cursor::beginning(),
            Cursor::at(at),
            Cursor { read: read.clone(), floor: at, mark: Some((9, at)), window: None },
            Cursor { read, floor: at, mark: Some((9, at)), window: Some((open.clone(), at, job)) },
            Cursor { read: None, floor: at, mark: None, window: Some((open, at, job)) },
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()));
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        for wrong in [
            "",
            "1",
            "2.-.0.-.-",
            "1.x.0.-.-",
            "1.7.0.-.-",
            "1.7:6::1:1.0.-.-",
            "1.7:9:9:1:1.0.-.-",
            "1.7:12:9,8:1:1.0.-.-",
            "1.0:9::1:1.0.-.-",
            "1.-.0.-.-.1:1::1:1.2",
            "1.-.0.-.-.1:1::1:1.2.z",
            "now",
        ] {
            assert_eq!(wrong.parse::<Cursor>(), Err(CursorError::Text(wrong.into())), "{wrong}");
        }
    }

    /// Reads a window of which this is the snapshot. Returns the time from which it is read.
    fn read(cursor: &mut Cursor, text: &str, s: i64) -> DateTime<Utc> {
        let now = snapshot(text, s);
        let (shows, from, _) = cursor.open(&now).unwrap();
        cursor.close(shows, &now);
        from
    }

    /// An end of after the step has a time before the floor, and would not be read.
    #[test]
    fn the_floor_follows_a_clock_that_steps_back() {
        let at = |s: i64| DateTime::from_timestamp(s, 0).unwrap();
        let mut cursor = Cursor::at(at(0));
        read(&mut cursor, "10:10:", 10_000);
        read(&mut cursor, "20:20:", 20_000);
        assert_eq!(cursor.floor, at(10_000) - SLACK);
        // Back by 15,000 s.
        assert_eq!(read(&mut cursor, "30:30:", 5_000), at(5_000) - SLACK);
        assert_eq!(read(&mut cursor, "40:40:", 5_001), at(5_000) - SLACK);
        assert_eq!(cursor.floor, at(5_000) - SLACK);
        // A time that was asked for stays, also one ahead.
        let mut cursor = Cursor::at(at(90_000));
        read(&mut cursor, "10:10:", 10_000);
        assert_eq!(read(&mut cursor, "20:20:", 9_000), at(90_000));
    }

    #[test]
    fn the_floor_follows_the_marks_that_are_passed() {
        let at = |s: i64| DateTime::from_timestamp(s, 0).unwrap();
        let mut cursor = Cursor::at(at(0));
        read(&mut cursor, "10:20:10", 10_000);
        assert_eq!((cursor.floor, cursor.mark), (at(0), Some((20, at(10_000)))));
        // A transaction of before the mark is still open.
        read(&mut cursor, "15:30:15", 20_000);
        assert_eq!((cursor.floor, cursor.mark), (at(0), Some((20, at(10_000)))));
        read(&mut cursor, "25:40:25", 30_000);
        assert_eq!((cursor.floor, cursor.mark), (at(10_000) - SLACK, Some((40, at(30_000)))));
        assert_eq!(cursor.open(&snapshot("5:24:5", 40_000)), Err(CursorError::Ahead));
    }
}
