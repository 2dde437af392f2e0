//! Inspect: reads the state of the server, the stream and a consumer, and changes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
    time::{Duration, Instant},
};

use async_nats::{
    HeaderName,
    jetstream::{
        ErrorCode, consumer, context::RequestErrorKind, message::StreamMessage, response::Response, stream,
    },
};
use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    connect::{Nats, Said},
    message::id_of_submission,
    publish::{JOB_ID, kind_and_jobs},
    topology::{Place, consumer_definition, consumer_drift, stream_definition, stream_drift},
};
use crate::{
    job::{JobId, check_kind, check_queue, storable},
    store::{KindMessages, Misnamed},
};

/// The first release that does not lose whole streams when its process is killed.
const OLDEST: (i64, i64, i64) = (2, 10, 23);

/// What a message of the stream needs of its bytes, about.
const MESSAGE_BYTES: u64 = 1_024;

/// The most requests for one count of the messages; the server lists 100,000 subjects in an answer.
const PAGES_MAX: usize = 10;
/// The most kinds that a count names. The others are counted by queue.
const KINDS_MAX: usize = 10_000;

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
    /// The limits at which NATS refuses messages.
    pub(crate) limits: Vec<Limit>,
    /// Why those of the account are not known.
    pub(crate) account: Option<Unseen>,
    pub(crate) replicas: usize,
    pub(crate) duplicate_window: Duration,
    pub(crate) duplicate_window_defined: Duration,
    /// The time of the answer by the server's clock.
    pub(crate) answered_at: Option<DateTime<Utc>>,
    /// The time of the request by this host's clock, and how long the answer took.
    pub(crate) asked_at: DateTime<Utc>,
    pub(crate) took: Duration,
}

/// A limit of the stream or the account, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    /// What it limits, such as "bytes of the stream".
    pub(crate) of: &'static str,
    pub(crate) used: u64,
    pub(crate) most: u64,
    /// About what a message needs of it.
    pub(crate) message: u64,
}

/// A queue's consumer, compared with its definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerSeen {
    /// The differences.
    pub(crate) drift: Vec<String>,
    pub(crate) place: Place,
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
    /// An empty kind stands for the kinds of its queue that are not listed.
    pub(crate) kinds: Vec<KindMessages>,
    /// Of the subjects that name no valid queue or kind.
    pub(crate) misnamed: Misnamed,
    /// Whether there are too many kinds to list them all.
    pub(crate) is_cut: bool,
    /// The time of the answer by the server's clock.
    pub(crate) at: Option<DateTime<Utc>>,
}

/// How much of a queue has been delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// The last message that was delivered for the first time.
    pub(crate) sequence: u64,
    /// The number of deliveries, repeated ones included.
    pub(crate) deliveries: i64,
    /// The number of undelivered messages. `None`: there is no consumer.
    pub(crate) pending: Option<i64>,
    /// When NATS created the consumer. Empty if the queue has no consumer.
    pub(crate) created: String,
}

/// A message of the stream: what it says about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageSeen {
    pub(crate) sequence: u64,
    pub(crate) is_ticket: bool,
    /// The job that it names, or would become. `None`: a ticket without a valid id.
    pub(crate) job: Option<JobId>,
    /// The time of storage, by the server's clock.
    pub(crate) published_at: DateTime<Utc>,
    pub(crate) bytes: usize,
}

impl Nats {
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
        let mut limits = vec![
            limit("messages of the stream", info.state.messages, info.config.max_messages, 1),
            limit("bytes of the stream", info.state.bytes, info.config.max_bytes, MESSAGE_BYTES),
        ];
        // NATS does not tell a client the server's own limits.
        let account = match self.ask("INFO".into(), json!({})).await {
            Ok(account) => {
                let number = |at: &str| account.pointer(at).and_then(Value::as_i64).unwrap_or_default();
                let used = number("/storage").max(0).cast_unsigned();
                let most = number("/limits/max_storage");
                limits.push(limit("bytes of the account's JetStream", used, most, MESSAGE_BYTES));
                None
            }
            Err(unseen) => Some(unseen),
        };
        Ok(StreamSeen {
            drift: stream_drift(&info.config, &should),
            messages: info.state.messages,
            limits: limits.into_iter().flatten().collect(),
            account,
            replicas: info.config.num_replicas,
            duplicate_window: info.config.duplicate_window,
            duplicate_window_defined: should.duplicate_window,
            answered_at,
            asked_at,
            took,
        })
    }

    /// Reads the state of a queue's consumer. Whether it is ahead of its stream says [`Nats::ahead_of`].
    pub(crate) async fn consumer_seen(&self, name: &str) -> Result<ConsumerSeen, Unseen> {
        let should = consumer_definition(self, name).map_err(|error| Unseen::Refused(error.to_string()))?;
        let answer = self.ask(format!("CONSUMER.INFO.{}.{name}", self.stream), json!({})).await?;
        // NATS reports it from 2.11 on.
        let is_paused = answer.get("paused").and_then(Value::as_bool).unwrap_or_default();
        let info: consumer::Info = read(answer)?;
        Ok(ConsumerSeen {
            drift: consumer_drift(&info.config, &should),
            place: Place::of(name, &info),
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
        let mut kinds: BTreeMap<(String, String), (i64, i64)> = BTreeMap::new();
        let mut offset = 0;
        for page in 0..PAGES_MAX {
            let question = json!({ "subjects_filter": format!("{}.>", self.prefix), "offset": offset });
            let answer = self.ask(format!("STREAM.INFO.{}", self.stream), question).await?;
            counts.at = counts.at.or(time_in(&answer, "ts"));
            // Without messages there is no list.
            let subjects = answer.pointer("/state/subjects").and_then(Value::as_object);
            let Some(subjects) = subjects.filter(|subjects| !subjects.is_empty()) else { break };
            offset += subjects.len();
            for (subject, messages) in subjects {
                let messages = messages.as_i64().unwrap_or_default();
                let Some((queue, kind, jobs)) = self.named_by(subject) else {
                    counts.misnamed.messages += messages;
                    counts.misnamed.subject.get_or_insert_with(|| storable(subject).into_owned());
                    continue;
                };
                let (alone, named) = kinds.entry((queue.to_owned(), kind.to_owned())).or_default();
                match jobs {
                    1 => *alone += messages,
                    jobs => *named += messages * jobs,
                }
            }
            let total = answer.get("total").and_then(Value::as_u64).unwrap_or_default();
            if total <= offset as u64 {
                break;
            }
            counts.is_cut = page + 1 == PAGES_MAX;
        }
        let of_kind = |((queue, kind), (messages, named))| KindMessages { queue, kind, messages, named };
        counts.kinds = kinds.into_iter().map(of_kind).collect();
        if counts.kinds.len() > KINDS_MAX {
            (counts.kinds, counts.is_cut) = (cut(counts.kinds, KINDS_MAX), true);
        }
        Ok(counts)
    }

    /// Counts the jobs that the messages of a queue name, for the bench. `None`: NATS does not say.
    pub async fn jobs_named(&self, queue: &str) -> Option<u64> {
        let kinds = self.messages_by_kind().await.ok()?.kinds;
        let jobs = kinds.iter().filter(|of| of.queue == queue).map(|of| of.messages + of.named);
        Some(jobs.sum::<i64>().cast_unsigned())
    }

    /// Returns the queue, the kind and the number of jobs of each message that a subject names.
    fn named_by<'s>(&self, subject: &'s str) -> Option<(&'s str, &'s str, i64)> {
        let (queue, kind) = subject.strip_prefix(&self.prefix)?.strip_prefix('.')?.split_once('.')?;
        let (kind, jobs) = kind_and_jobs(kind)?;
        // NATS allows more names than tenure, of any length and character: no worker could serve them.
        check_queue(queue).and_then(|()| check_kind(kind)).ok()?;
        Some((queue, kind, i64::try_from(jobs).ok()?))
    }

    /// Returns the command that removes the messages of a queue, of one kind or of all.
    pub(crate) fn purge_command(&self, queue: &str, kind: Option<&str>) -> String {
        self.purge_subject(&self.subject_of(queue, kind))
    }

    /// Returns the command that removes one message.
    pub(crate) fn remove_command(&self) -> String {
        format!("nats stream rmm {} SEQUENCE", self.stream)
    }

    /// Returns the command that removes the messages of a subject.
    pub(crate) fn purge_subject(&self, subject: &str) -> String {
        // A subject may contain a quote.
        format!("nats stream purge {} --subject '{}'", self.stream, subject.replace('\'', r"'\''"))
    }

    /// Reads how much of a queue NATS has delivered. A queue that no worker has ever served has no consumer.
    pub(crate) async fn delivered(&self, queue: &str) -> Result<Delivered, Unseen> {
        match self.ask(format!("CONSUMER.INFO.{}.{queue}", self.stream), json!({})).await {
            Ok(answer) => {
                let created = answer.get("created").and_then(Value::as_str).unwrap_or_default().to_owned();
                let info: consumer::Info = read(answer)?;
                Ok(Delivered {
                    sequence: info.delivered.stream_sequence,
                    deliveries: info.delivered.consumer_sequence.cast_signed(),
                    pending: Some(info.num_pending.cast_signed()),
                    created,
                })
            }
            Err(Unseen::Missing) => {
                Ok(Delivered { sequence: 0, deliveries: 0, pending: None, created: String::new() })
            }
            Err(unseen) => Err(unseen),
        }
    }

    /// Returns the first message on this subject from this sequence on.
    pub(crate) async fn message_from(
        &self,
        subject: &str,
        sequence: u64,
    ) -> Result<Option<MessageSeen>, Unseen> {
        // The server takes sequence 0 for a question without one.
        self.message(json!({ "seq": sequence.max(1), "next_by_subj": subject })).await
    }

    /// Returns the last message on this subject.
    pub(crate) async fn last_message(&self, subject: &str) -> Result<Option<MessageSeen>, Unseen> {
        self.message(json!({ "last_by_subj": subject })).await
    }

    async fn message(&self, question: Value) -> Result<Option<MessageSeen>, Unseen> {
        let answer = match self.ask(format!("STREAM.MSG.GET.{}", self.stream), question).await {
            Ok(answer) => answer,
            Err(Unseen::Missing) => return Ok(None),
            Err(unseen) => return Err(unseen),
        };
        let message = answer.get("message").cloned().unwrap_or_default();
        let published_at = time_in(&message, "time").unwrap_or_default();
        let raw: stream::RawMessage = read(message)?;
        let (sequence, bytes) = (raw.sequence, raw.payload.len() / 4 * 3);
        let is_id = |name: &HeaderName| AsRef::<str>::as_ref(name).eq_ignore_ascii_case(JOB_ID);
        // A message whose headers the client cannot read is a submission that a worker refuses.
        let message = StreamMessage::try_from(raw).ok();
        let named = message.as_ref().and_then(|message| message.headers.iter().find(|(name, _)| is_id(name)));
        let named = named.map(|(_, ids)| ids.first().and_then(|id| id.as_str().parse().ok()));
        let published_ns = published_at.timestamp_nanos_opt().unwrap_or_default();
        Ok(Some(MessageSeen {
            sequence,
            is_ticket: named.is_some(),
            job: named.unwrap_or_else(|| Some(id_of_submission(published_ns.into(), sequence))),
            published_at,
            bytes: message.map_or(bytes, |message| message.payload.len()),
        }))
    }

    /// The subject of a queue's messages, of one kind or of all.
    pub(crate) fn subject_of(&self, queue: &str, kind: Option<&str>) -> String {
        format!("{}.{queue}.{}", self.prefix, kind.unwrap_or(">"))
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
    pub(super) async fn denied(&self, subject: &str, before: usize) {
        let mut said = self.said.clone();
        let is_denied = |said: &Said| said.since(before).any(|text| is_denial(text, subject));
        if said.wait_for(is_denied).await.is_err() {
            // The client is closed, and reports nothing any more.
            pending::<()>().await;
        }
    }
}

/// `None`: there is no limit.
fn limit(of: &'static str, used: u64, most: i64, message: u64) -> Option<Limit> {
    let most = u64::try_from(most).ok().filter(|most| *most > 0)?;
    Some(Limit { of, used, most, message })
}

/// Lists the kinds of the queues with the fewest kinds first: a mistyped name is one of few. Of the queue that does not
/// fit, the kinds with the most messages are listed; its others, and those of later queues, count under an empty kind.
fn cut(mut kinds: Vec<KindMessages>, most: usize) -> Vec<KindMessages> {
    let mut sizes: HashMap<String, usize> = HashMap::new();
    for of in &kinds {
        *sizes.entry(of.queue.clone()).or_default() += 1;
    }
    kinds.sort_unstable_by(|one, other| {
        let place = |of: &KindMessages| (sizes.get(&of.queue).copied(), -of.messages - of.named);
        let ((size, messages), (other_size, other_messages)) = (place(one), place(other));
        (size, &one.queue, messages, &one.kind).cmp(&(other_size, &other.queue, other_messages, &other.kind))
    });
    let mut unlisted: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for of in kinds.drain(most..) {
        let (messages, named) = unlisted.entry(of.queue).or_default();
        (*messages, *named) = (*messages + of.messages, *named + of.named);
    }
    let of_queue = |(queue, (messages, named))| KindMessages { queue, kind: String::new(), messages, named };
    kinds.extend(unlisted.into_iter().map(of_queue).take(most));
    kinds
}

/// Reads a time of the server.
fn time_in(answer: &Value, field: &str) -> Option<DateTime<Utc>> {
    let text = answer.get(field).and_then(Value::as_str)?;
    DateTime::parse_from_rfc3339(text).ok().map(|at| at.with_timezone(&Utc))
}

/// Whether this error of the server denies a publication to this subject.
pub(super) fn is_denial(said: &str, subject: &str) -> bool {
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
    fn of_too_many_kinds_those_of_small_queues_are_listed_and_the_others_counted_by_queue() {
        let of = |queue: &str, kind: &str, messages| KindMessages {
            queue: queue.into(),
            kind: kind.into(),
            messages,
            named: 0,
        };
        let mut all: Vec<_> = (1..=5).map(|n| of("large", &format!("k{n}"), n)).collect();
        all.extend([of("small", "a", 1), of("small", "b", 2), of("tpyo", "send", 1)]);
        let listed = cut(all, 5);
        let expected = [
            of("tpyo", "send", 1),
            of("small", "b", 2),
            of("small", "a", 1),
            of("large", "k5", 5),
            of("large", "k4", 4),
            of("large", "", 6),
        ];
        assert_eq!(listed, expected);
    }

    #[test]
    fn only_an_error_that_names_the_subject_is_a_denial() {
        let said = "server error: nats: Permissions Violation for Publish to \"$JS.API.STREAM.INFO.JOBS\"";
        assert!(is_denial(said, "$JS.API.STREAM.INFO.JOBS"));
        assert!(!is_denial(said, "$JS.API.STREAM.INFO.JOB"));
        assert!(!is_denial("client error: nats: IO error", "$JS.API.STREAM.INFO.JOBS"));
    }
}
