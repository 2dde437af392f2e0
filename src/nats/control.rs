//! Control: probes and announcements between processes. Plain NATS messages, never stored.
//!
//! A *probe* asks whether a process still runs. Each process subscribes to its own subject, and the server answers at
//! once if the subject has no subscriber. A frozen process is subscribed, but does not answer.
//! A *drain request* comes on the same subject; the worker's answer says that it stops.
//! An *announcement* of cancellations is a hint: each worker asks Postgres about its own jobs.

use std::time::Duration;

use async_nats::{Request, Subject, Subscriber, client::RequestErrorKind};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::connect::{Nats, NatsError};
use crate::{config::OWN_SUBJECTS, job::JobId, observe::repeats, watch::nats::WatchRequest};

/// The longest that a probe waits for an answer. A process that takes longer is not gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// The longest that a drain request waits for an answer: a busy worker takes longer than an idle one.
const DRAIN_ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The body of a drain request. That of a probe is empty.
const DRAIN: &[u8] = b"drain";
/// The longest that an announcement waits for the connection. Later it would be useless.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(1);
/// The most jobs of one announcement: some 40 KB.
const ANNOUNCED_MAX: usize = 1_000;

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probed {
    /// The process answered.
    Answered,
    /// Unknown: the process may be frozen, or NATS slow or away.
    NoAnswer,
    /// The process's subject has no subscriber.
    Gone,
}

/// A worker's answer to a drain request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drains {
    /// Whether it was stopping before.
    pub(crate) was_draining: bool,
    /// How many jobs it runs.
    pub(crate) running: u64,
}

/// The result of a drain request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AskedToDrain {
    /// The worker stops.
    Drains(Drains),
    /// The worker answered as to a probe: its release knows no drain requests.
    TooOld,
    /// NATS denies this process the publication, so no request went out.
    Denied,
    /// Unknown: the worker may be frozen, or its NATS user may not answer. It may get the request later.
    NoAnswer,
    /// The subject has no subscriber.
    Gone,
    /// This process has no connection to NATS, so no request went out.
    Away(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Announcement {
    #[serde(default)]
    cancelled: Vec<JobId>,
    /// Whether the settings of queues may have changed.
    #[serde(default)]
    settings: bool,
    /// Whether turns have become free.
    #[serde(default)]
    turns: bool,
    /// Whether a schedule was added or resumed.
    #[serde(default)]
    schedules: bool,
}

/// An announcement to all workers, or a request to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Announced {
    /// These jobs may have been cancelled.
    Cancelled(Vec<JobId>),
    /// The settings of queues may have changed.
    Settings,
    /// A worker that stops has left its turns.
    Turns,
    /// A schedule was added or resumed.
    Schedules,
    /// A process watches these jobs.
    Watched(WatchRequest),
    /// An operator asks this worker to stop, and waits for the answer on this subject.
    Drain(Option<Subject>),
}

/// The control messages to this process.
pub(crate) struct Control {
    nats: Nats,
    probes: Subscriber,
    announcements: Subscriber,
    watches: Subscriber,
}

impl Nats {
    /// Makes up a subject for one process.
    pub(crate) fn new_probe_subject(&self) -> String {
        format!("{OWN_SUBJECTS}.{}.worker.{}", self.prefix, uuid::Uuid::new_v4().simple())
    }

    pub(crate) fn cancel_subject(&self) -> String {
        format!("{OWN_SUBJECTS}.{}.cancel", self.prefix)
    }

    /// Subscribes to probes on this subject, and to announcements.
    pub(crate) async fn listen(&self, probe_subject: &str) -> Result<Control, NatsError> {
        let subscribe = |subject: String| async move {
            self.client.subscribe(subject).await.map_err(|error| NatsError::Unavailable(error.to_string()))
        };
        Ok(Control {
            nats: self.clone(),
            probes: subscribe(probe_subject.to_owned()).await?,
            announcements: subscribe(self.cancel_subject()).await?,
            watches: subscribe(self.watch_subject()).await?,
        })
    }

    /// Asks whether the process of this subject still runs.
    pub(crate) async fn probe(&self, subject: &str) -> Probed {
        if !self.is_connected() {
            return Probed::NoAnswer;
        }
        let request = Request::new().timeout(Some(ANSWER_WITHIN));
        // The request's own timeout begins once the client has accepted it.
        let asked = self.client.send_request(subject.to_owned(), request);
        match tokio::time::timeout(ANSWER_WITHIN * 2, asked).await {
            Ok(Ok(_)) => Probed::Answered,
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Probed::Gone,
            Ok(Err(_)) | Err(_) => Probed::NoAnswer,
        }
    }

    /// Asks the worker of this subject to stop.
    pub(crate) async fn ask_to_drain(&self, subject: &str) -> AskedToDrain {
        // A program that has just started may still be connecting.
        if tokio::time::timeout(ANNOUNCED_WITHIN, self.connected()).await.is_err() {
            return AskedToDrain::Away(self.why_away());
        }
        let request = Request::new().timeout(Some(DRAIN_ANSWER_WITHIN)).payload(DRAIN.into());
        let asked = self.client.send_request(subject.to_owned(), request);
        let before = self.said.borrow().count;
        let answer = tokio::select! {
            answer = tokio::time::timeout(DRAIN_ANSWER_WITHIN * 2, asked) => answer,
            () = self.denied(subject, before) => return AskedToDrain::Denied,
        };
        match answer {
            Ok(Ok(answer)) => {
                serde_json::from_slice(&answer.payload).map_or(AskedToDrain::TooOld, AskedToDrain::Drains)
            }
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => AskedToDrain::Gone,
            Ok(Err(_)) | Err(_) => AskedToDrain::NoAnswer,
        }
    }

    /// Answers a drain request.
    pub(crate) async fn answer_drain(&self, reply: Subject, answer: Drains) {
        if let Ok(body) = serde_json::to_vec(&answer) {
            self.tell(reply, body.into()).await;
        }
    }

    /// Announces to every worker that these jobs were cancelled. Without NATS, the workers find out by themselves.
    pub(crate) async fn announce_cancelled(&self, jobs: &[JobId]) {
        // A program that has just started may still be connecting.
        if tokio::time::timeout(ANNOUNCED_WITHIN, self.connected()).await.is_err() {
            return;
        }
        for some in jobs.chunks(ANNOUNCED_MAX) {
            self.announce(&Announcement { cancelled: some.to_vec(), ..Announcement::default() }).await;
        }
    }

    /// Announces that the settings of queues may have changed. Without NATS, the workers find out by themselves.
    pub(crate) async fn announce_settings(&self) {
        if tokio::time::timeout(ANNOUNCED_WITHIN, self.connected()).await.is_ok() {
            self.announce(&Announcement { settings: true, ..Announcement::default() }).await;
        }
    }

    /// Announces that turns have become free. Without NATS, the workers find out by themselves.
    pub(crate) async fn announce_turns(&self) {
        if self.is_connected() {
            self.announce(&Announcement { turns: true, ..Announcement::default() }).await;
        }
    }

    /// Announces that a schedule may have its next tick soon. Without NATS, the worker with the relay's turn finds out
    /// by itself.
    pub(crate) async fn announce_schedules(&self) {
        if tokio::time::timeout(ANNOUNCED_WITHIN, self.connected()).await.is_ok() {
            self.announce(&Announcement { schedules: true, ..Announcement::default() }).await;
        }
    }

    async fn announce(&self, announcement: &Announcement) {
        if let Ok(body) = serde_json::to_vec(announcement) {
            // One subject for all: an older worker reads an empty list of cancelled jobs, and does nothing.
            self.tell(self.cancel_subject(), body.into()).await;
        }
    }
}

/// Returns the jobs that an announcement says were cancelled.
pub(crate) fn announced_cancelled(body: &[u8]) -> Vec<JobId> {
    serde_json::from_slice::<Announcement>(body).map(|announced| announced.cancelled).unwrap_or_default()
}

impl Control {
    /// Returns the next announcement, and answers probes meanwhile. `None`: the client is closed.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Announced> {
        loop {
            tokio::select! {
                probe = self.probes.next() => {
                    let probe = probe?;
                    if *probe.payload == *DRAIN {
                        return Some(Announced::Drain(probe.reply));
                    }
                    if let Some(reply) = probe.reply {
                        self.nats.tell(reply, "here".into()).await;
                    }
                }
                request = self.watches.next() => {
                    // A request that is not valid has no watcher to tell.
                    if let Some(request) = WatchRequest::read(&request?.payload) {
                        return Some(Announced::Watched(request));
                    }
                }
                announcement = self.announcements.next() => {
                    match serde_json::from_slice::<Announcement>(&announcement?.payload) {
                        Ok(Announcement { settings: true, .. }) => return Some(Announced::Settings),
                        Ok(Announcement { turns: true, .. }) => return Some(Announced::Turns),
                        Ok(Announcement { schedules: true, .. }) => return Some(Announced::Schedules),
                        Ok(announcement) => return Some(Announced::Cancelled(announcement.cancelled)),
                        Err(error) => {
                            if let Some(left_out) = repeats::tell("announcement", &"") {
                                tracing::warn!(%error, left_out,
                                    "ignored an announcement that tenure did not write");
                            }
                        }
                    }
                }
            }
        }
    }
}
