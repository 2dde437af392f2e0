//! Speak: what this program and its producers and workers say to each other, a line of JSON each, over the
//! standard input and output of a child. The scripts of `node/` and `python/` speak it as well.

use serde::{Deserialize, Serialize};

/// What a producer is asked to do. It answers with [`Spans`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(crate) enum Ask {
    /// Enqueue this many orders from this number on, one at a time by each task. Answers with one span.
    Enqueue { first: usize, jobs: usize, tasks: usize },
    /// Enqueue this many orders in batches, spread over the queues. Answers with one span.
    Batches { jobs: usize },
    /// Enqueue an order after every interval. Answers with a span for each.
    Paced { first: usize, jobs: usize, every_ms: u64 },
    /// Wait until this many jobs are finished in the database. Answers with the span of the last look.
    Finished { jobs: usize },
}

/// From when to when something took, in microseconds since 1970.
pub(crate) type Spans = Vec<(i64, i64)>;

/// What a worker says: now and then how many jobs it has begun, and all of it when its standard input ends.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) count: usize,
    /// Whether these are its last words.
    #[serde(default)]
    pub(crate) is_all: bool,
    #[serde(default)]
    pub(crate) total: u64,
    #[serde(default)]
    pub(crate) first_us: i64,
    /// When the handler of each order began; 0: not yet. Only where the work asks for it.
    #[serde(default)]
    pub(crate) starts_us: Vec<i64>,
}

/// The line with which a child says that it is there.
pub(crate) const READY: &str = "ready";
/// The line upon which a worker begins.
pub(crate) const GO: &str = "go";
