//! Inspect: reads the state of the server, the stream and a consumer, and changes nothing.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    ErrorCode, consumer, context::RequestErrorKind, message::StreamMessage, response::Response, stream,
};
use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    connect::{Queue, Said},
    publish::JOB_ID,
    topology::{consumer_definition, consumer_drift, stream_definition, stream_drift},
};
use crate::{
    job::{check_kind, check_queue},
    store::KindMessages,
};

/// The first release that does not lose whole streams when its process is killed.
const OLDEST: (i64, i64, i64) = (2, 10, 23);

/// The most requests for one count of the messages; the server lists 100,000 subjects in an answer.
const PAGES_MAX: usize = 10;
/// The most kinds that a count names: those with the most messages.
const KINDS_MAX: usize = 10_000;
/// The most tickets to pass over in the search for a submission.
const TICKETS_MAX: usize = 8;

/// The server that this client is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NatsSeen {
    pub(crate) version: String,
    pub(crate) is_too_old: bool,
    pub(crate) is_clustered: bool,
}

/// Why the state cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// The stream or consumer does not exist.
    Missing,
    /// The server, or this account, has no JetStream.
    NoJetStream,
    /// The server denied this user the request on this subject.
    Denied(String),
    /// No answer came on this subject.
    NoAnswer(String),
    /// Any other answer.
    Refused(String),
}

/// The stream, compared with its definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamSeen {
    /// The differences.
    pub(crate) drift: Vec<String>,
    pub(crate) messages: u64,
    pub(crate) replicas: usize,
    pub(crate) duplicate_window: Duration,
    pub(crate) duplicate_window_defined: Duration,
    /// The time of the answer by the server's clock.
    pub(crate) answered_at: Option<DateTime<Utc>>,
    /// The time of the request by this host's clock, and how long the answer took.
    pub(crate) asked_at: DateTime<Utc>,
    pub(crate) took: Duration,
}

/// A queue's consumer, compared with its definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerSeen {
    /// The differences.
    pub(crate) drift: Vec<String>,
    pub(crate) ack_wait: Duration,
    /// The number of undelivered messages.
    pub(crate) pending: u64,
    pub(crate) unacknowledged: u64,
    /// The most unacknowledged messages before NATS stops delivering. `None`: no limit.
    pub(crate) unacknowledged_max: Option<u64>,
    /// Whether the consumer is paused in NATS itself.
    pub(crate) is_paused: bool,
}

/// The number of messages that the stream holds, by queue and kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamCounts {
    pub(crate) kinds: Vec<KindMessages>,
    /// The time of the answer by the server's clock.
    pub(crate) at: Option<DateTime<Utc>>,
}

impl Queue {
    /// The server's state at the time of the connection.
    pub(crate) fn nats_seen(&self) -> NatsSeen {
        let (major, minor, patch) = OLDEST;
        let info = self.client.server_info();
        NatsSeen {
            version: info.version,
            is_too_old: !self.client.is_server_compatible(major, minor, patch),
            is_clustered: info.cluster.is_some_and(|name| !name.is_empty()),
        }
    }

    /// Whether NATS has a consumer or a message of this queue. `None`: NATS does not say.
    #[cfg(feature = "internals")]
    pub async fn knows(&self, queue: &str) -> Option<bool> {
        match self.consumer_seen(queue).await {
            Ok(_) => return Some(true),
            Err(Unseen::Missing) => {}
            Err(_) => return None,
        }
        let stream = format!("STREAM.INFO.{}", self.stream);
        let question = json!({ "subjects_filter": format!("{}.{queue}.>", self.prefix) });
        let asked = self.context.request::<_, _, Response<Value>>(stream, &question);
        match timeout(self.publish_within * 2, asked).await {
            Ok(Ok(Response::Ok(answer))) => {
                let subjects = answer.pointer("/state/subjects").and_then(Value::as_object);
                Some(subjects.is_some_and(|subjects| !subjects.is_empty()))
            }
            // There is no stream.
            Ok(Ok(Response::Err { error })) if error.code() == 404 => Some(false),
            _ => None,
        }
    }

    /// The last error of the connection. Empty: none.
    pub(crate) fn last_said(&self) -> String {
        self.said.borrow().last()
    }

    /// Reads the stream's state.
    pub(crate) async fn stream_seen(&self) -> Result<StreamSeen, Unseen> {
        let should = stream_definition(self).map_err(|error| Unseen::Refused(error.to_string()))?;
        let (asked_at, since) = (Utc::now(), Instant::now());
        let answer = self.ask(format!("STREAM.INFO.{}", self.stream), json!({})).await?;
        let took = since.elapsed();
        let answered_at = time_in(&answer, "ts");
        let info: stream::Info = read(answer)?;
        Ok(StreamSeen {
            drift: stream_drift(&info.config, &should),
            messages: info.state.messages,
            replicas: info.config.num_replicas,
            duplicate_window: info.config.duplicate_window,
            duplicate_window_defined: should.duplicate_window,
            answered_at,
            asked_at,
            took,
        })
    }

    /// Reads the state of a queue's consumer.
    pub(crate) async fn consumer_seen(&self, name: &str) -> Result<ConsumerSeen, Unseen> {
        let should = consumer_definition(self, name).map_err(|error| Unseen::Refused(error.to_string()))?;
        let answer = self.ask(format!("CONSUMER.INFO.{}.{name}", self.stream), json!({})).await?;
        // NATS reports it from 2.11 on.
        let is_paused = answer.get("paused").and_then(Value::as_bool).unwrap_or_default();
        let info: consumer::Info = read(answer)?;
        Ok(ConsumerSeen {
            drift: consumer_drift(&info.config, &should),
            ack_wait: info.config.ack_wait,
            pending: info.num_pending,
            unacknowledged: info.num_ack_pending as u64,
            unacknowledged_max: u64::try_from(info.config.max_ack_pending).ok(),
            is_paused,
        })
    }

    /// Counts the messages that the stream holds, by queue and kind: in one request, unless there are more than 100,000
    /// subjects.
    pub(crate) async fn messages_by_kind(&self) -> Result<StreamCounts, Unseen> {
        let mut counts = StreamCounts::default();
        let mut offset = 0;
        for _ in 0..PAGES_MAX {
            let question = json!({ "subjects_filter": format!("{}.>", self.prefix), "offset": offset });
            let answer = self.ask(format!("STREAM.INFO.{}", self.stream), question).await?;
            counts.at = counts.at.or(time_in(&answer, "ts"));
            // Without messages there is no list.
            let subjects = answer.pointer("/state/subjects").and_then(Value::as_object);
            let Some(subjects) = subjects.filter(|subjects| !subjects.is_empty()) else { break };
            offset += subjects.len();
            counts.kinds.extend(subjects.iter().filter_map(|(subject, messages)| {
                let (queue, kind) = subject.strip_prefix(&self.prefix)?.strip_prefix('.')?.split_once('.')?;
                let messages = messages.as_i64()?;
                // NATS allows more names than tenure, of any length and character: no worker could serve them.
                let is_named = check_queue(queue).and_then(|()| check_kind(kind)).is_ok();
                is_named.then(|| KindMessages { queue: queue.to_owned(), kind: kind.to_owned(), messages })
            }));
            let total = answer.get("total").and_then(Value::as_u64).unwrap_or_default();
            if total <= offset as u64 {
                break;
            }
        }
        if counts.kinds.len() > KINDS_MAX {
            counts.kinds.sort_unstable_by_key(|of| -of.messages);
            counts.kinds.truncate(KINDS_MAX);
        }
        Ok(counts)
    }

    /// Returns the command that removes all messages of a queue.
    pub(crate) fn purge_command(&self, queue: &str) -> String {
        format!("nats stream purge {} --subject '{}.{queue}.>'", self.stream, self.prefix)
    }

    /// Returns the sequence from which on no message of this queue has been delivered.
    pub(crate) async fn undelivered_from(&self, queue: &str) -> Result<u64, Unseen> {
        let asked = self.ask(format!("CONSUMER.INFO.{}.{queue}", self.stream), json!({})).await;
        match asked {
            Ok(answer) => {
                let info: consumer::Info = read(answer)?;
                Ok(info.delivered.stream_sequence + 1)
            }
            // No worker has ever served the queue.
            Err(Unseen::Missing) => Ok(1),
            Err(unseen) => Err(unseen),
        }
    }

    /// Returns when the first submission of this queue and kind from this sequence on was published, by the server's
    /// clock. `None`: the queue has none, or many tickets stand before it.
    pub(crate) async fn first_submission(
        &self,
        queue: &str,
        kind: &str,
        mut sequence: u64,
    ) -> Result<Option<DateTime<Utc>>, Unseen> {
        let subject = format!("{}.{queue}.{kind}", self.prefix);
        for _ in 0..TICKETS_MAX {
            let question = json!({ "seq": sequence, "next_by_subj": subject });
            let answer = match self.ask(format!("STREAM.MSG.GET.{}", self.stream), question).await {
                Ok(answer) => answer,
                Err(Unseen::Missing) => return Ok(None),
                Err(unseen) => return Err(unseen),
            };
            let message = answer.get("message").cloned().unwrap_or_default();
            let published_at = time_in(&message, "time");
            let raw: stream::RawMessage = read(message)?;
            sequence = raw.sequence + 1;
            let message = StreamMessage::try_from(raw).map_err(|error| Unseen::Refused(error.to_string()))?;
            let is_ticket = message
                .headers
                .iter()
                .any(|(name, _)| AsRef::<str>::as_ref(name).eq_ignore_ascii_case(JOB_ID));
            if !is_ticket {
                return Ok(published_at);
            }
        }
        Ok(None)
    }

    /// Sends one request to JetStream. A denied request gets no answer, only an error on the connection.
    async fn ask(&self, what: String, question: Value) -> Result<Value, Unseen> {
        let subject = format!("$JS.API.{what}");
        let asked = self.context.request::<_, _, Response<Value>>(what, &question);
        // The request's own timeout begins once the client has accepted it.
        let before = self.said.borrow().count;
        let answer = tokio::select! {
            answer = timeout(self.publish_within * 2, asked) => answer,
            () = self.denied(&subject, before) => return Err(Unseen::Denied(subject)),
        };
        match answer {
            Ok(Ok(Response::Ok(answer))) => Ok(answer),
            Ok(Ok(Response::Err { error })) => Err(match error.error_code() {
                ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                    Unseen::NoJetStream
                }
                _ if error.code() == 404 => Unseen::Missing,
                _ => Unseen::Refused(error.to_string()),
            }),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::TimedOut => Unseen::NoAnswer(subject),
                RequestErrorKind::NoResponders => Unseen::NoJetStream,
                _ => Unseen::Refused(error.to_string()),
            }),
            Err(_) => Err(Unseen::NoAnswer(subject)),
        }
    }

    /// Waits until the server denies a publication to this subject. The first `before` errors are older.
    async fn denied(&self, subject: &str, before: usize) {
        let mut said = self.said.clone();
        let is_denied = |said: &Said| said.since(before).any(|text| is_denial(text, subject));
        if said.wait_for(is_denied).await.is_err() {
            // The client is closed, and reports nothing any more.
            pending::<()>().await;
        }
    }
}

/// Reads a time of the server.
fn time_in(answer: &Value, field: &str) -> Option<DateTime<Utc>> {
    let text = answer.get(field).and_then(Value::as_str)?;
    DateTime::parse_from_rfc3339(text).ok().map(|at| at.with_timezone(&Utc))
}

/// Whether this error of the server denies a publication to this subject.
fn is_denial(said: &str, subject: &str) -> bool {
    said.to_lowercase().contains("permissions violation for publish")
        && said.contains(&format!("\"{subject}\""))
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, Unseen> {
    serde_json::from_value(answer)
        .map_err(|error| Unseen::Refused(format!("the answer cannot be parsed: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_names_the_subject_is_a_denial() {
        let said = "server error: nats: Permissions Violation for Publish to \"$JS.API.STREAM.INFO.JOBS\"";
        assert!(is_denial(said, "$JS.API.STREAM.INFO.JOBS"));
        assert!(!is_denial(said, "$JS.API.STREAM.INFO.JOB"));
        assert!(!is_denial("client error: nats: IO error", "$JS.API.STREAM.INFO.JOBS"));
    }
}
