//! Waiting: what waits in the fleet, as a scan or doctor counts it. Plain values.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

/// The measurements of the last scan.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    pub queues: Vec<QueueStats>,
    pub relay_lag_s: f64,
    pub dead: i64,
    /// Whether a kind is watched.
    pub has_quarantines: bool,
    /// Live workers that do not drain, and those that do.
    pub workers: i64,
    pub draining: i64,
    /// Workers that have missed their renewals within the last hour, and still have a row.
    pub silent: i64,
    /// How long ago any worker last renewed its row. `None`: there is no row.
    pub last_seen_s: Option<f64>,
    /// How many live workers take no jobs, and what keeps one of them from it.
    pub not_ready: i64,
    pub why_not_ready: Option<String>,
    /// How long ago a worker last looked for silent jobs. `None`: none ever did.
    pub last_scan_s: Option<f64>,
    /// The oldest migration that a program must know to work with the schema.
    pub breaks_before: i64,
    /// The age of the measurements; `None`: no worker has ever measured.
    pub age_s: Option<f64>,
    /// Whether a grace or the breaker keeps the scanner from resetting.
    pub is_held_back: bool,
    /// Whether Postgres refuses writes: it is a standby, or set to read-only.
    pub is_read_only: bool,
    /// What waits for a worker that is not there, as the last scan found it.
    pub unserved: Vec<Unserved>,
    /// What waits because workers that do not know its kind got it: others do.
    pub put_off: Vec<Unserved>,
    /// Why these two could not be read: a later release may write more.
    pub unread: Option<String>,
    /// What the last scan has found wrong with lanes, groups and running jobs. `None`: none has looked of late.
    pub findings: Option<Vec<Finding>>,
    /// Messages whose subject names no valid queue or kind, and one such subject.
    pub misnamed: i64,
    pub misnamed_subject: Option<String>,
    /// The time of the answer, by the database's clock.
    pub now: Option<DateTime<Utc>>,
}

/// A finding of `doctor`, as a scan has noted it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    pub check: String,
    pub queue: Option<String>,
    /// `warning` or `wrong`.
    pub state: String,
    pub found: String,
    pub to_do: Option<String>,
}

/// Waiting jobs and submissions of one kind that no live worker runs, or that workers without the kind put off.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Unserved {
    pub queue: String,
    pub kind: String,
    /// Whether a live worker serves the queue, and only the kind is unknown to all of them.
    pub is_queue_served: bool,
    pub due: i64,
    /// `None`: NATS did not answer.
    pub submitted: Option<i64>,
    /// How long the oldest of them has waited, if that is known.
    pub oldest_s: Option<f64>,
    /// How many of its jobs were put off, if a live worker runs the kind.
    #[serde(default)]
    pub put_off: Option<i64>,
}

impl Unserved {
    /// The number of jobs and submissions that wait.
    pub fn waiting(&self) -> i64 {
        self.due + self.submitted.unwrap_or_default()
    }
}

/// The number of messages that the stream holds of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KindMessages {
    pub(crate) queue: String,
    pub(crate) kind: String,
    /// The messages that name one job, or are submissions.
    pub(crate) messages: i64,
    /// The jobs that messages of several name.
    pub(crate) named: i64,
}

/// Messages whose subject names no valid queue or kind: no worker reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Misnamed {
    pub(crate) messages: i64,
    /// One of their subjects.
    pub(crate) subject: Option<String>,
}

/// What waits of one kind, and whether a live worker runs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Waiting {
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) due: i64,
    /// The messages that no live row accounts for. `None`: NATS did not answer.
    pub(crate) submitted: Option<i64>,
    /// All messages that the stream holds.
    pub(crate) messages: i64,
    /// Whether some of the kind's messages name several jobs.
    pub(crate) has_several: bool,
    /// How long the oldest due job has been due.
    pub(crate) oldest_due_s: Option<f64>,
    /// How many jobs workers that do not know the kind have put off for more than a minute, and since when the first.
    pub(crate) put_off: i64,
    pub(crate) put_off_s: Option<f64>,
    pub(crate) is_queue_served: bool,
    pub(crate) is_served: bool,
}

/// A queue with messages that no live row accounts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueSubmitted {
    pub(crate) queue: String,
    pub(crate) submitted: i64,
    pub(crate) queued: i64,
    pub(crate) max_queued: Option<i64>,
}

/// Submissions of a queue that were read in the stream, and that no worker had received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) messages: i64,
    /// How many deliveries of the queue NATS had made.
    pub(crate) deliveries: i64,
    /// When NATS created the consumer that counts them; empty: there was none.
    pub(crate) of: String,
}

/// What a scan has found out about the submissions of a queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) queue: String,
    pub(crate) submitted: i64,
    /// How long the oldest of them has waited, if that is known.
    pub(crate) oldest_s: Option<f64>,
    pub(crate) standing: Option<Standing>,
}

impl Waiting {
    pub(crate) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            queue: row.try_get("queue")?,
            kind: row.try_get("kind")?,
            due: row.try_get("due")?,
            submitted: row.try_get("submitted")?,
            messages: row.try_get("messages")?,
            has_several: row.try_get("has_several")?,
            oldest_due_s: row.try_get("oldest_due_s")?,
            put_off: row.try_get("put_off")?,
            put_off_s: row.try_get("put_off_s")?,
            is_queue_served: row.try_get("is_queue_served")?,
            is_served: row.try_get("is_served")?,
        })
    }
}

/// The measurements of one queue.
#[derive(Debug, Clone)]
pub struct QueueStats {
    pub queue: String,
    /// The numbers of due, scheduled and processing jobs.
    pub jobs: [i64; 3],
    /// The jobs that lanes hold, those of them that are due, and the lanes that have any due one.
    pub held: i64,
    pub held_due: i64,
    pub lanes_waiting: i64,
    /// Messages that are no job yet. `None`: NATS did not answer the last scan.
    pub submitted: Option<i64>,
    /// Those of them that count towards `max_queued`.
    pub standing: i64,
    /// How long the oldest due job or submission has waited.
    pub oldest_due_s: f64,
    pub is_paused: bool,
    /// Live workers that serve it and do not drain, and those that drain.
    pub workers: i64,
    pub draining: i64,
    /// How long ago a worker that serves it was last seen. `None`: none within the last day.
    pub last_seen_s: Option<f64>,
    pub max_running: Option<i32>,
    pub max_queued: Option<i64>,
}

impl QueueStats {
    /// The number of due jobs, held ones included, and submissions.
    pub fn waiting(&self) -> i64 {
        self.jobs[0] + self.held_due + self.submitted.unwrap_or_default()
    }

    /// Whether no live worker serves it, though jobs wait or run, or its workers have just fallen silent.
    pub fn is_unserved(&self) -> bool {
        self.workers == 0 && (self.waiting() > 0 || self.jobs[2] > 0 || self.last_seen_s.is_some())
    }

    /// The number of jobs and submissions that count towards `max_queued`.
    pub fn queued(&self) -> i64 {
        self.jobs[0] + self.jobs[1] + self.held + self.standing
    }

    /// Whether as many jobs wait as its limit allows: enqueues are refused.
    pub fn is_full(&self) -> bool {
        self.max_queued.is_some_and(|most| self.queued() >= most)
    }

    /// Whether as many jobs run as its limit allows, and others wait for them.
    pub fn is_limited(&self) -> bool {
        self.jobs[0] > 0 && self.max_running.is_some_and(|most| self.jobs[2] >= most.into())
    }
}

/// Binds the messages of each kind as $1 to $4 of recover/parts/waiting.sql.
pub(crate) fn bind_messages<'q>(
    query: Query<'q, Postgres, PgArguments>,
    messages: Option<&[KindMessages]>,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(messages.map(|all| all.iter().map(|of| of.queue.clone()).collect::<Vec<_>>()))
        .bind(messages.map(|all| all.iter().map(|of| of.kind.clone()).collect::<Vec<_>>()))
        .bind(messages.map(|all| all.iter().map(|of| of.messages).collect::<Vec<_>>()))
        .bind(messages.map(|all| all.iter().map(|of| of.named).collect::<Vec<_>>()))
}
