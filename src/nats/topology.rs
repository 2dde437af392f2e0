//! Topology: the stream and its consumers, as `nats/*.json` define them.
//!
//! A worker creates a missing stream or consumer and reports differences, but changes nothing: two versions would
//! fight. `tenure migrate` makes the changes.

use std::{
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::{
    self,
    consumer::{PullConsumer, pull},
    context::{CreateStreamErrorKind, GetStreamErrorKind},
    stream::{self, ConsumerErrorKind, PersistenceMode},
};
use futures::{StreamExt, future::ready, stream as streams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    connect::{Nats, NatsError},
    inspect::is_denial,
};
use crate::{job::duration::written, observe::repeats};

/// How long a consumer must be ahead of its stream at least: a message goes a moment after its acknowledgement.
const AHEAD_FOR: Duration = Duration::from_secs(2);
/// How long a look at a queue's first message may take.
const LOOKED_WITHIN: Duration = Duration::from_secs(1);
/// How many requests about consumers are under way at once.
pub(crate) const ASKED_AT_ONCE: usize = 64;
/// What is wrong with a consumer that has delivered what its stream does not have.
pub(crate) const AHEAD: &str = "the consumer is ahead of its stream, which went back: what the stream accepts next is \
                                not delivered until the consumer is made anew";

const STREAM: &str = include_str!("../../nats/stream.json");
const CONSUMER: &str = include_str!("../../nats/consumer.json");

/// The progress of a queue's consumer in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// When the stream was created, in the server's words.
    pub(crate) stream_created: String,
    pub(crate) last_seq: u64,
    /// The sequence last delivered to any worker.
    pub(crate) delivered: u64,
    /// The number of undelivered messages.
    pub pending: u64,
    /// The number of messages that are delivered and not acknowledged yet.
    pub unacknowledged: u64,
}

/// How far a queue's consumer has got, by the stream's sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// When it was created, in nanoseconds.
    created: i128,
    delivered: u64,
    /// Every message up to this one is acknowledged.
    floor: u64,
}

impl Place {
    pub(super) fn of(name: &str, info: &jetstream::consumer::Info) -> Self {
        Self {
            name: name.to_owned(),
            created: info.created.unix_timestamp_nanos(),
            delivered: info.delivered.stream_sequence,
            floor: info.ack_floor.stream_sequence,
        }
    }
}

pub(super) fn stream_definition(nats: &Nats) -> Result<stream::Config, NatsError> {
    let mut config: stream::Config =
        serde_json::from_str(STREAM).map_err(|error| definition_error(&error))?;
    config.name.clone_from(&nats.stream);
    config.subjects = vec![format!("{}.*.>", nats.prefix)];
    Ok(config)
}

pub(super) fn consumer_definition(nats: &Nats, name: &str) -> Result<pull::Config, NatsError> {
    let mut config: pull::Config =
        serde_json::from_str(CONSUMER).map_err(|error| definition_error(&error))?;
    config.durable_name = Some(name.into());
    config.name = Some(name.into());
    config.filter_subject = format!("{}.{name}.>", nats.prefix);
    config.ack_wait = nats.ack_wait;
    Ok(config)
}

fn definition_error(error: &serde_json::Error) -> NatsError {
    NatsError::Refused { what: "use the definitions under nats/".into(), reason: error.to_string() }
}

/// Compares the parts of a stream's definition that tenure's guarantees rest on, and returns the differences.
pub(super) fn stream_drift(is: &stream::Config, should: &stream::Config) -> Vec<String> {
    let mut drift = Vec::new();
    let mut compare = |what: &str, is: String, should: String| {
        if is != should {
            drift.push(format!("{what} is {is}, expected {should}"));
        }
    };
    compare("subjects", format!("{:?}", is.subjects), format!("{:?}", should.subjects));
    compare("retention", format!("{:?}", is.retention), format!("{:?}", should.retention));
    compare("storage", format!("{:?}", is.storage), format!("{:?}", should.storage));
    compare("discard", format!("{:?}", is.discard), format!("{:?}", should.discard));
    compare("max_age", written(is.max_age), written(should.max_age));
    let most = |of: &stream::Config| match of.max_messages_per_subject {
        most @ 1.. => most.to_string(),
        _ => "unlimited".to_owned(),
    };
    compare("max_msgs_per_subject", most(is), most(should));
    let largest = |of: &stream::Config| match of.max_message_size {
        largest @ 1.. => format!("{largest} bytes"),
        _ => "unlimited".to_owned(),
    };
    compare("max_msg_size", largest(is), largest(should));
    let per_subject = |of: &stream::Config| of.discard_new_per_subject.to_string();
    compare("discard_new_per_subject", per_subject(is), per_subject(should));
    compare("no_ack", is.no_ack.to_string(), should.no_ack.to_string());
    compare("sealed", is.sealed.to_string(), should.sealed.to_string());
    compare("allow_rollup_hdrs", is.allow_rollup.to_string(), should.allow_rollup.to_string());
    let other = |of: &stream::Config| {
        let sources = of.mirror.iter().chain(of.sources.iter().flatten()).map(|source| source.name.as_str());
        let transform = of.subject_transform.iter().map(|transform| transform.destination.as_str());
        sources.chain(transform).collect::<Vec<_>>().join(", ")
    };
    compare("its mirror, source or subject_transform", other(is), other(should));
    let writes_late = |of: &stream::Config| of.persist_mode == Some(PersistenceMode::Async);
    compare("an asynchronous persist_mode", writes_late(is).to_string(), writes_late(should).to_string());
    drift
}

pub(super) fn consumer_drift(is: &jetstream::consumer::Config, should: &pull::Config) -> Vec<String> {
    let mut drift = Vec::new();
    let mut compare = |what: &str, is: String, should: String| {
        if is != should {
            drift.push(format!("{what} is {is}, expected {should}"));
        }
    };
    compare("filter_subject", is.filter_subject.clone(), should.filter_subject.clone());
    compare("ack_policy", format!("{:?}", is.ack_policy), format!("{:?}", should.ack_policy));
    compare("ack_wait", written(is.ack_wait), written(should.ack_wait));
    compare("max_deliver", is.max_deliver.to_string(), should.max_deliver.to_string());
    compare("max_ack_pending", is.max_ack_pending.to_string(), should.max_ack_pending.to_string());
    compare("max_waiting", is.max_waiting.to_string(), should.max_waiting.to_string());
    compare("backoff", format!("{:?}", is.backoff), format!("{:?}", should.backoff));
    compare("filter_subjects", format!("{:?}", is.filter_subjects), format!("{:?}", should.filter_subjects));
    compare("deliver_policy", format!("{:?}", is.deliver_policy), format!("{:?}", should.deliver_policy));
    compare("replay_policy", format!("{:?}", is.replay_policy), format!("{:?}", should.replay_policy));
    compare("headers_only", is.headers_only.to_string(), should.headers_only.to_string());
    compare("rate_limit_bps", is.rate_limit.to_string(), should.rate_limit.to_string());
    compare("inactive_threshold", written(is.inactive_threshold), written(should.inactive_threshold));
    // NATS refuses a pull beyond these. A server may limit each consumer: what no worker asks for is no drift.
    let limit = |is: u64, asked: u64| match is {
        n if (1..asked).contains(&n) => n.to_string(),
        _ => "unlimited".to_owned(),
    };
    compare("max_batch", limit(is.max_batch.unsigned_abs(), 10_000), limit(0, 0));
    compare("max_bytes", limit(is.max_bytes.unsigned_abs(), u64::MAX), limit(0, 0));
    compare("max_expires in seconds", limit(is.max_expires.as_secs(), 60), limit(0, 0));
    drift
}

/// Whether the error is 10058: a stream of this name exists, with another first sequence.
fn is_there_already(error: &jetstream::context::CreateStreamError) -> bool {
    matches!(error.kind(), CreateStreamErrorKind::JetStream(e) if e.error_code().0 == 10058)
}

fn unavailable(what: &str, error: &dyn std::fmt::Display) -> NatsError {
    NatsError::Unavailable(format!("{what}: {error}"))
}

impl Nats {
    /// Why a request to JetStream failed. The server answers a denied one with an error on the connection alone, and
    /// the request times out. The first `before` errors are older.
    fn failed(
        &self,
        what: &str,
        asked: &[String],
        before: usize,
        error: &dyn std::fmt::Display,
    ) -> NatsError {
        let is_of_these = |said: &&String| asked.iter().any(|subject| is_denial(said, subject));
        match self.said.borrow().since(before).find(is_of_these) {
            Some(said) => NatsError::Refused { what: what.into(), reason: said.clone() },
            None => unavailable(what, error),
        }
    }

    /// Creates the stream if it is missing. Returns the differences from its definition.
    pub(crate) async fn ensure_stream(&self) -> Result<Vec<String>, NatsError> {
        let mut should = stream_definition(self)?;
        let before = self.said.borrow().count;
        let asked = [format!("$JS.API.STREAM.INFO.{}", self.stream)];
        let info = match self.context.get_stream(self.stream.as_str()).await {
            Ok(stream) => stream.cached_info().clone(),
            Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(e) if e.code() == 404) => {
                // The sequences of an older stream of this name must not repeat: an old ack would remove a
                // new message.
                should.first_sequence = u64::try_from(chrono::Utc::now().timestamp_micros()).ok();
                match self.context.create_stream(should.clone()).await {
                    Ok(stream) => {
                        tracing::warn!(stream = %self.stream, "the stream was missing; created it");
                        stream.cached_info().clone()
                    }
                    // Another worker was faster.
                    Err(error) if is_there_already(&error) => {
                        let stream = self.context.get_stream(self.stream.as_str()).await;
                        let failed = |error| self.failed("get the stream", &asked, before, &error);
                        stream.map_err(failed)?.cached_info().clone()
                    }
                    Err(error) => {
                        return Err(NatsError::Refused {
                            what: "create the stream".into(),
                            reason: error.to_string(),
                        });
                    }
                }
            }
            Err(error) => return Err(self.failed("get the stream", &asked, before, &error)),
        };
        self.note_created(&info);
        Ok(stream_drift(&info.config, &should))
    }

    /// Creates a queue's consumer if it is missing. Returns the consumer, and the differences from its definition.
    pub async fn ensure_consumer(&self, name: &str) -> Result<(PullConsumer, Vec<String>), NatsError> {
        let should = consumer_definition(self, name)?;
        let before = self.said.borrow().count;
        let found =
            self.context.get_consumer_from_stream::<pull::Config, _, _>(name, self.stream.as_str()).await;
        let consumer = match found {
            Ok(consumer) => consumer,
            Err(_) => match self
                .context
                .create_consumer_strict_on_stream(should.clone(), self.stream.as_str())
                .await
            {
                Ok(consumer) => {
                    tracing::warn!(queue = name, "the consumer of a queue was missing; created it");
                    consumer
                }
                // Another worker was faster, or NATS is away: the second lookup finds out.
                Err(error) => self
                    .context
                    .get_consumer_from_stream::<pull::Config, _, _>(name, self.stream.as_str())
                    .await
                    .map_err(|_| {
                        let (stream, filter) = (&self.stream, &should.filter_subject);
                        let asked = [
                            format!("$JS.API.CONSUMER.CREATE.{stream}.{name}.{filter}"),
                            format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
                        ];
                        self.failed("create the consumer", &asked, before, &error)
                    })?,
            },
        };
        let drift = consumer_drift(&consumer.cached_info().config, &should);
        Ok((consumer, drift))
    }

    /// Looks once whether consumers are ahead of the stream, and says if one stays so. Returns whether NATS has
    /// answered for all of them.
    pub(crate) async fn look_at_consumers(&self, names: &[String]) -> bool {
        match self.renew_those_ahead(names).await {
            Ok(()) => true,
            Err(error @ NatsError::Refused { .. }) => {
                if let Some(left_out) = repeats::tell("ahead", &error) {
                    let to_do = "run `tenure migrate --queue NAME` as a user that may";
                    tracing::error!(%error, left_out, "{to_do}: {AHEAD}");
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Makes those consumers anew that count messages as delivered which they never had: the stream went back, and the
    /// server set no consumer back.
    ///
    /// Two at once: the second one finds a consumer that was created since, and leaves it alone.
    ///
    /// # Errors
    ///
    /// NATS does not answer, or this user may not delete such a consumer.
    pub(crate) async fn renew_those_ahead(&self, names: &[String]) -> Result<(), NatsError> {
        let (ahead, mut first_error) = self.ahead(names).await?;
        for (name, before) in ahead {
            // The error of one consumer keeps no other from its look.
            if let Err(error) = self.renew_one_ahead(&name, before).await {
                first_error = first_error.or(Some(error));
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    async fn renew_one_ahead(&self, name: &str, before: i128) -> Result<(), NatsError> {
        // Servers of a cluster may have answered, and an acknowledgement may not have removed its message yet.
        sleep(AHEAD_FOR.mul_f64(rand::random_range(1.0..2.0))).await;
        let (again, _) = self.ahead(&[name.to_owned()]).await?;
        if again.first().is_none_or(|(_, now)| *now != before) {
            return Ok(());
        }
        tracing::warn!(queue = name, "{AHEAD}");
        let deleted = self.context.delete_consumer_from_stream(name, self.stream.as_str()).await;
        deleted.map_err(|error| NatsError::Refused {
            what: format!("delete the consumer {name}, which is ahead of its stream"),
            reason: error.to_string(),
        })?;
        self.ensure_consumer(name).await.map(drop)
    }

    /// Returns those of these consumers that are ahead of the stream, each with the time of its creation. Either the
    /// stream ends before what they have delivered; or it has gone on since, and keeps messages that count as
    /// acknowledged.
    pub(super) async fn ahead(
        &self,
        names: &[String],
    ) -> Result<(Vec<(String, i128)>, Option<NatsError>), NatsError> {
        let (mut seen, mut first_error) = (Vec::new(), None);
        let asked = names.iter().cloned().map(|name| async move {
            let stream = self.stream.as_str();
            let consumer = self.context.get_consumer_from_stream::<pull::Config, _, _>(&name, stream).await;
            (name, consumer)
        });
        let mut asked = streams::iter(asked).buffered(ASKED_AT_ONCE);
        while let Some((name, consumer)) = asked.next().await {
            let consumer = match consumer {
                Ok(consumer) => consumer,
                // One that is missing is not ahead.
                Err(error) if matches!(error.kind(), ConsumerErrorKind::JetStream(_)) => continue,
                Err(error) => {
                    first_error = first_error.or_else(|| Some(unavailable("get the consumer", &error)));
                    continue;
                }
            };
            seen.push(Place::of(&name, consumer.cached_info()));
        }
        let created = |place: Place| (place.name, place.created);
        Ok((self.ahead_of(seen).await?.into_iter().map(created).collect(), first_error))
    }

    /// Returns those of these consumers that are ahead of the stream: see [`Nats::ahead`].
    pub(crate) async fn ahead_of(&self, seen: Vec<Place>) -> Result<Vec<Place>, NatsError> {
        // After the consumers: the stream may go on meanwhile.
        let stream = self.context.get_stream(self.stream.as_str()).await;
        let state =
            stream.map_err(|error| unavailable("get the stream", &error))?.cached_info().state.clone();
        // Without the right, NATS does not answer: the others are not asked for then.
        let may_look = AtomicBool::new(true);
        let judged = seen.into_iter().map(|place| async {
            if state.last_sequence < place.delivered {
                return Some(place);
            }
            let may_be = place.delivered > 0 && state.first_sequence <= place.floor;
            if !may_be || !may_look.load(Ordering::Relaxed) {
                return None;
            }
            let first = timeout(LOOKED_WITHIN, self.first_of(&place.name)).await.ok().flatten();
            if first.is_none() {
                may_look.store(false, Ordering::Relaxed);
            }
            first.flatten().is_some_and(|first| first <= place.floor).then_some(place)
        });
        Ok(streams::iter(judged).buffered(ASKED_AT_ONCE).filter_map(ready).collect().await)
    }

    /// Returns the sequence of a queue's first message; inside, `None` if it has none. `None`: NATS does not say.
    async fn first_of(&self, name: &str) -> Option<Option<u64>> {
        let question = json!({ "seq": 1, "next_by_subj": format!("{}.{name}.>", self.prefix) });
        let asked = self.context.request(format!("STREAM.MSG.GET.{}", self.stream), &question).await;
        let answer: serde_json::Value = asked.ok()?;
        Some(answer.pointer("/message/seq").and_then(serde_json::Value::as_u64))
    }

    /// Creates or changes the stream and the consumers of these queues, for `tenure migrate`.
    pub(crate) async fn apply_topology(&self, queues: &[String]) -> Result<(), NatsError> {
        let refused = |what: &str, error: &dyn std::fmt::Display| NatsError::Refused {
            what: what.into(),
            reason: error.to_string(),
        };
        let differs = !self.ensure_stream().await?.is_empty();
        let mut config = stream_definition(self)?;
        let stream = self.context.get_stream(self.stream.as_str()).await;
        let now = stream.map_err(|error| unavailable("get the stream", &error))?.cached_info().config.clone();
        if differs || now.max_consumers < config.max_consumers {
            // The operator decides about the replicas, limits of storage, the first sequence, and more consumers.
            config.max_consumers = config.max_consumers.max(now.max_consumers);
            config.num_replicas = now.num_replicas;
            (config.max_bytes, config.max_messages) = (now.max_bytes, now.max_messages);
            config.first_sequence = now.first_sequence;
            self.context.update_stream(config).await.map_err(|error| refused("change the stream", &error))?;
        }
        self.renew_those_ahead(queues).await?;
        for name in queues {
            let (_, drift) = self.ensure_consumer(name).await?;
            if !drift.is_empty() {
                let config = consumer_definition(self, name)?;
                self.context
                    .update_consumer_on_stream(config, self.stream.as_str())
                    .await
                    .map_err(|error| refused("change the consumer", &error))?;
            }
        }
        Ok(())
    }

    /// Returns the stream's creation time and its last sequence.
    pub(crate) async fn stream_state(&self) -> Result<(String, u64), NatsError> {
        let stream = self.context.get_stream(self.stream.as_str()).await;
        let stream = stream.map_err(|error| unavailable("get the stream", &error))?;
        let info = stream.cached_info();
        Ok((self.note_created(info), info.state.last_sequence))
    }

    /// Returns the first sequence that the stream still holds, or the next one if it is empty.
    pub(crate) async fn first_sequence(&self) -> Result<u64, NatsError> {
        let stream = self.context.get_stream(self.stream.as_str()).await;
        let stream = stream.map_err(|error| unavailable("get the stream", &error))?;
        Ok(stream.cached_info().state.first_sequence)
    }

    /// Returns the progress of a queue's consumer.
    ///
    /// # Errors
    ///
    /// NATS does not answer, or there is no such consumer.
    pub async fn progress(&self, name: &str) -> Result<Progress, NatsError> {
        let stream = self.stream_state().await?;
        self.progress_in(name, &stream).await
    }

    /// Returns the progress of a queue's consumer in this stream, given its creation time and its last sequence.
    pub(crate) async fn progress_in(
        &self,
        name: &str,
        (stream_created, last_seq): &(String, u64),
    ) -> Result<Progress, NatsError> {
        let consumer = self
            .context
            .get_consumer_from_stream::<pull::Config, _, _>(name, self.stream.as_str())
            .await
            .map_err(|error| unavailable("get the consumer", &error))?;
        let info = consumer.cached_info();
        Ok(Progress {
            stream_created: stream_created.clone(),
            last_seq: *last_seq,
            delivered: info.delivered.stream_sequence,
            pending: info.num_pending,
            unacknowledged: info.num_ack_pending as u64,
        })
    }

    /// Removes a queue's messages and its consumer.
    pub async fn forget(&self, name: &str) -> Result<(), NatsError> {
        let stream = self.context.get_stream(self.stream.as_str()).await;
        let stream = stream.map_err(|error| unavailable("get the stream", &error))?;
        let messages = stream.purge().filter(format!("{}.{name}.>", self.prefix)).await;
        messages.map_err(|error| unavailable("purge the queue", &error))?;
        // The queue may have no consumer.
        stream.delete_consumer(name).await.ok();
        Ok(())
    }

    /// Removes the stream with all its messages.
    pub async fn remove_stream(&self) -> Result<(), NatsError> {
        let removed = self.context.delete_stream(self.stream.as_str()).await;
        removed.map(drop).map_err(|error| unavailable("remove the stream", &error))
    }

    /// The server's version at the time of the connection.
    pub fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Remembers the stream's creation time. Sequences of a new stream may be those of the old one.
    fn note_created(&self, info: &stream::Info) -> String {
        let created = info.created.unix_timestamp_nanos().to_string();
        let mut known = self.stream_created.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| **known != created) {
            tracing::warn!(stream = %self.stream, known, created,
                "the stream was recreated; the worker drops its messages of the old stream, \
                 and the relay publishes their jobs again");
            self.answers.renew();
        }
        *known = Some(created.clone());
        created
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_definitions_hold_the_values_that_the_guarantees_rest_on() {
        let stream: stream::Config = serde_json::from_str(STREAM).unwrap();
        assert_eq!(stream.retention, stream::RetentionPolicy::WorkQueue);
        assert_eq!(stream.discard, stream::DiscardPolicy::New);
        assert_eq!(stream.storage, stream::StorageType::File);
        assert!(stream.max_age.is_zero());
        let consumer: pull::Config = serde_json::from_str(CONSUMER).unwrap();
        assert_eq!(consumer.max_deliver, -1);
        assert!(consumer.backoff.is_empty());
        assert_eq!(consumer.ack_wait, crate::config::Timing::DEFAULT.ack_wait);
    }
}
