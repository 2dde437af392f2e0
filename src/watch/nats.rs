//! Hints: that a job has changed, for those who watch it. Plain NATS messages, never stored.
//!
//! ```text
//! a process that watches jobs ── "tell me of these" ──► tenure.<prefix>.watch ──► every worker
//!                       ▲                                                           │
//!                       └────── tenure.<prefix>.watcher.<name> ◄── a change ────────┘
//! tenure.<prefix>.end.<queue>.<kind>      ◄── a change, if the queue's setting says so
//! tenure.<prefix>.progress.<queue>.<kind> ◄──
//! ```
//!
//! A hint proves nothing, and may be lost or forged: a process that gets one asks Postgres.

use std::time::Duration;

use async_nats::{Subject, Subscriber};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::{
    config::OWN_SUBJECTS,
    job::JobId,
    nats::{Nats, NatsError},
};

/// The most jobs of one request: some 40 KB.
const ASKED_MAX: usize = 1_000;
/// How long a worker tells a watcher of a job that the watcher does not name again.
pub(crate) const WATCHED_FOR: Duration = Duration::from_secs(30);
/// The longest name of a watcher.
const NAME_MAX: usize = 64;

/// A request to tell a watcher of changes of these jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchRequest {
    pub(crate) jobs: Vec<JobId>,
    /// The watcher's name: the last part of its subject.
    to: String,
}

impl WatchRequest {
    /// Reads a request. `None`: it is not valid, or its name would lead to another subject than a watcher's.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let request: Self = serde_json::from_slice(body).ok()?;
        let is_name = (1..=NAME_MAX).contains(&request.to.len())
            && request.to.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        (is_name && request.jobs.len() <= ASKED_MAX).then_some(request)
    }
}

/// The part of a hint that its watcher reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Hint {
    pub(crate) job_id: JobId,
    #[serde(default)]
    event: String,
}

impl Hint {
    /// Whether it tells of the job's end, or of something unknown.
    pub(crate) fn may_be_an_end(&self) -> bool {
        !matches!(self.event.as_str(), "start" | "progress" | "retry")
    }
}

/// The hints to one process.
pub(crate) struct Hinted {
    hints: Subscriber,
}

impl Hinted {
    /// Returns the next hint. `None`: the client is closed.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Hint> {
        loop {
            let hint = self.hints.next().await?;
            if let Ok(hint) = serde_json::from_slice(&hint.payload) {
                return Some(hint);
            }
        }
    }
}

impl Nats {
    /// The subject of requests to watch jobs.
    pub(crate) fn watch_subject(&self) -> String {
        format!("{OWN_SUBJECTS}.{}.watch", self.prefix)
    }

    /// The subject of the watcher that asked.
    pub(crate) fn watcher_of(&self, request: &WatchRequest) -> Subject {
        self.watcher(&request.to)
    }

    fn watcher(&self, name: &str) -> Subject {
        format!("{OWN_SUBJECTS}.{}.watcher.{name}", self.prefix).into()
    }

    /// The subject of an event of a queue's jobs: `end` or `progress`.
    pub(crate) fn event_subject(&self, event: &str, queue: &str, kind: &str) -> Subject {
        format!("{OWN_SUBJECTS}.{}.{event}.{queue}.{kind}", self.prefix).into()
    }

    /// Subscribes to the ends of a queue's jobs.
    pub async fn ends_of(&self, queue: &str) -> Result<Subscriber, NatsError> {
        let subject = format!("{OWN_SUBJECTS}.{}.end.{queue}.>", self.prefix);
        let ends = self.client.subscribe(subject).await;
        ends.map_err(|error| NatsError::Unavailable(error.to_string()))
    }

    /// Subscribes to the hints to the watcher of this name.
    pub(crate) async fn hinted(&self, name: &str) -> Result<Hinted, NatsError> {
        let hints = self.client.subscribe(self.watcher(name)).await;
        Ok(Hinted { hints: hints.map_err(|error| NatsError::Unavailable(error.to_string()))? })
    }

    /// Asks all workers to tell the watcher of this name of changes of these jobs, for [`WATCHED_FOR`]. Returns whether
    /// the client accepted the request.
    pub(crate) async fn ask_to_watch(&self, name: &str, jobs: &[JobId]) -> bool {
        for some in jobs.chunks(ASKED_MAX) {
            let request = WatchRequest { jobs: some.to_vec(), to: name.to_owned() };
            let Ok(body) = serde_json::to_vec(&request) else { return false };
            if !self.tell(self.watch_subject(), body.into()).await {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_watcher_and_no_other_subject() {
        let read = |to: &str| {
            let body = serde_json::json!({"jobs": [JobId::generate()], "to": to}).to_string();
            WatchRequest::read(body.as_bytes())
        };
        assert!(read("w-1_a").is_some());
        for wrong in ["", "a.b", ">", "*", "a b", "ü", &"x".repeat(65)] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        let many: Vec<_> = (0..=ASKED_MAX).map(|_| JobId::generate()).collect();
        let body = serde_json::to_vec(&WatchRequest { jobs: many, to: "w".into() }).unwrap();
        assert_eq!(WatchRequest::read(&body), None);
        assert_eq!(WatchRequest::read(b"{}"), None);
    }
}
