//! Connect: one client, which reconnects for ever.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{
    Client, ConnectOptions, Event, ServerAddr,
    connection::State,
    jetstream::{self, context::ContextBuilder},
};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use tokio::sync::watch;

use super::{tls, written::Flushes};
use crate::{
    config::{Config, masked},
    observe::repeats::Repeats,
};

/// NATS gave no answer, or refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The address is none.
    #[error("NATS_URL {url:?} is not a NATS address; write nats://host:4222, several joined by commas")]
    Address {
        /// What was given, without its password.
        url: String,
    },
    /// The credentials, or a certificate or key, cannot be read.
    #[error("{name}: {path} cannot be read: {reason}")]
    Credentials {
        /// The setting.
        name: &'static str,
        /// Which file.
        path: String,
        /// Why not.
        reason: String,
    },
    /// No answer. A message may have been stored all the same: publish it again under the same id.
    #[error("NATS is unavailable: {0}")]
    Unavailable(String),
    /// The server refused.
    #[error("NATS refused to {what}: {reason}")]
    Refused {
        /// What was asked.
        what: String,
        /// What it said.
        reason: String,
    },
}

/// The connection, and where the jobs' messages live. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Queue(Arc<Inner>);

impl std::ops::Deref for Queue {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

pub(crate) struct Inner {
    pub(super) client: Client,
    pub(super) context: jetstream::Context,
    /// Their addresses, without passwords.
    servers: Arc<str>,
    pub(super) stream: String,
    pub(super) prefix: String,
    pub(super) ack_wait: Duration,
    pub(super) publish_within: Duration,
    /// Grows with every connection that was made.
    pub(super) connections: watch::Receiver<u64>,
    /// What went wrong last, in the server's words or the client's: a denied permission is told in no other way.
    pub(super) said: watch::Receiver<Said>,
    /// Since when the connection has been up.
    up_since: Arc<Mutex<Option<Instant>>>,
    flushes: Flushes,
    /// Grows when the stream turns out to be a new one: receipts of the old must not be sent.
    pub(super) epoch: AtomicU64,
    pub(super) stream_created: Mutex<Option<String>>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// How long a process that starts waits for its connection.
const CONNECTED_SOON: Duration = Duration::from_secs(2);
/// The same once a server has refused it.
const CONNECTED_AFTER_REFUSAL: Duration = Duration::from_millis(300);

/// The latest that went wrong. More than one: two may come before whoever listens has his turn.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// How many there have been.
    pub(super) count: usize,
    texts: VecDeque<String>,
}

impl Said {
    /// How many are kept.
    const KEPT: usize = 16;

    fn add(&mut self, text: String) {
        self.count += 1;
        self.texts.push_back(text);
        if self.texts.len() > Self::KEPT {
            self.texts.pop_front();
        }
    }

    /// Those that came after the first so many.
    pub(super) fn since(&self, count: usize) -> impl Iterator<Item = &String> {
        let new = (self.count - count).min(self.texts.len());
        self.texts.iter().skip(self.texts.len() - new)
    }

    pub(super) fn last(&self) -> String {
        self.texts.back().cloned().unwrap_or_default()
    }
}

/// What the log says of the connection: the same again less and less often, for the client tries for ever.
fn tell(event: &Event, is_first: bool, servers: &str, repeats: &Repeats) {
    if matches!(event, Event::Closed) || matches!(event, Event::Connected) && is_first {
        return tracing::debug!(%event, servers, "NATS connection");
    }
    let Some(left_out) = repeats.tell(&event.to_string()) else { return };
    match event {
        Event::Connected => tracing::info!(servers, left_out, "connected to NATS again"),
        Event::ServerError(error) => tracing::error!(%error, servers, left_out, "NATS reports an error"),
        Event::SlowConsumer(_) => {
            tracing::error!(servers, left_out, "messages were dropped: the process is too slow");
        }
        event => tracing::warn!(%event, servers, left_out, "NATS connection"),
    }
}

impl Queue {
    /// Starts connecting, and returns at once: NATS may be away.
    pub(crate) async fn open(config: &Config) -> Result<Self, QueueError> {
        let addresses = config
            .nats_url
            .split(',')
            .map(|url| url.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| QueueError::Address { url: masked(&config.nats_url) })?;
        let (connected, connections) = watch::channel(0);
        let (say, said) = watch::channel(Said::default());
        let up_since = Arc::new(Mutex::new(None));
        let (noted, known) = (up_since.clone(), AtomicBool::new(false));
        let servers: Arc<str> = masked(&config.nats_url).into();
        let (named, repeats) = (servers.clone(), Repeats::default());
        let mut options = ConnectOptions::new()
            .name("tenure")
            .retry_on_initial_connect()
            .ping_interval(Duration::from_secs(10))
            .request_timeout(Some(config.timing.publish_within))
            .reconnect_delay_callback(|attempt| {
                let step = 50_u64 << attempt.min(6);
                Duration::from_millis(rand::random_range(step / 2..=step))
            })
            .event_callback(move |event| {
                match event {
                    Event::Connected => {
                        *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                        connected.send_modify(|n| *n += 1);
                    }
                    Event::Disconnected => *noted.lock().unwrap_or_else(PoisonError::into_inner) = None,
                    Event::ServerError(_) | Event::ClientError(_) => {
                        say.send_modify(|said| said.add(event.to_string()));
                    }
                    _ => {}
                }
                // That it is there at all goes without saying, and so does that it ends with the program.
                let is_first = !known.fetch_or(matches!(event, Event::Connected), Ordering::Relaxed);
                tell(&event, is_first, &named, &repeats);
                std::future::ready(())
            });
        // async-nats leaves what stands before the @ of a URL unused.
        if let Some(server) = addresses.iter().find(|server| server.has_user_pass()) {
            let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let user = decoded(server.username().unwrap_or_default());
            options = match server.password() {
                Some(password) => options.user_and_password(user, decoded(password)),
                None => options.token(user),
            };
        }
        if let Some(path) = &config.nats_credentials {
            options = options.credentials_file(path).await.map_err(|error| QueueError::Credentials {
                name: "TENURE_NATS_CREDENTIALS",
                path: path.display().to_string(),
                reason: error.to_string(),
            })?;
        }
        options = options
            .tls_client_config(tls::client(config)?)
            .require_tls(config.nats_ca.is_some() || config.nats_certificate.is_some());
        if let Some(prefix) = &config.inbox_prefix {
            options = options.custom_inbox_prefix(prefix);
        }
        let client =
            options.connect(addresses).await.map_err(|error| QueueError::Unavailable(error.to_string()))?;
        let context = ContextBuilder::new()
            .timeout(config.timing.publish_within)
            .ack_timeout(config.timing.publish_within)
            .max_ack_inflight(16_384)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Self(Arc::new(Inner {
            client,
            context,
            servers,
            stream: config.stream.clone(),
            prefix: config.subject_prefix.clone(),
            ack_wait: config.timing.ack_wait,
            publish_within: config.timing.publish_within,
            connections,
            said,
            up_since,
            flushes: Flushes::start(),
            epoch: AtomicU64::new(0),
            stream_created: Mutex::default(),
        })))
    }

    /// Whether there is a connection right now.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// The addresses of the servers, without passwords.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// For how long the connection has been up without a break.
    pub(crate) fn up_for(&self) -> Duration {
        let since = *self.up_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.filter(|_| self.is_connected()).map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Whether the first connection of this process still is the only one.
    pub(crate) fn is_up_since_the_start(&self) -> bool {
        self.is_connected() && *self.connections.borrow() == 1
    }

    /// Changes with every connection that is made.
    pub(crate) fn connections(&self) -> watch::Receiver<u64> {
        self.connections.clone()
    }

    /// Publishes a plain message, and says whether the client took it. While NATS is away the client takes some
    /// 2,000 and then makes its callers wait: nobody may, who also has to keep a job alive.
    pub(super) async fn tell(&self, subject: impl async_nats::subject::ToSubject, body: Bytes) -> bool {
        match tokio::time::timeout(self.publish_within, self.client.publish(subject, body)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a message was not sent");
                false
            }
            Err(_) => {
                tracing::debug!("a message was not sent: too many wait for NATS");
                false
            }
        }
    }

    /// Waits until there is a connection.
    ///
    /// Cancel safe.
    pub(crate) async fn connected(&self) {
        let mut connections = self.connections.clone();
        connections.mark_unchanged();
        while !self.is_connected() {
            // Either the event, or a look now and then: the event may have come just before.
            drop(tokio::time::timeout(Duration::from_millis(20), connections.changed()).await);
        }
    }

    /// Waits until there is a connection, but not for long: a server that is there answers at once.
    ///
    /// Cancel safe.
    pub(crate) async fn connected_soon(&self) {
        let mut said = self.said.clone();
        let refused = async {
            // Of several servers another may answer; one that restarts is back later.
            drop(said.wait_for(|said| said.count > 0).await);
            tokio::time::sleep(CONNECTED_AFTER_REFUSAL).await;
        };
        tokio::select! {
            _ = tokio::time::timeout(CONNECTED_SOON, self.connected()) => {}
            () = refused => {}
        }
    }

    /// Breaks the connection, and waits until there is another one.
    #[cfg(test)]
    pub(crate) async fn connect_anew(&self) {
        let mut connections = self.connections();
        connections.mark_unchanged();
        self.client.force_reconnect().await.ok();
        connections.changed().await.ok();
    }

    /// Which stream this is: receipts of another are void.
    pub(super) fn epoch_now(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Messages were sent: [`Queue::written`] waits for them, too.
    pub(crate) fn note_sent(&self) {
        self.flushes.note_sent();
    }

    /// Waits until the kernel has every message that was sent so far. `false`: it took too long.
    ///
    /// Cancel safe.
    pub(crate) async fn written(&self) -> bool {
        self.flushes.written(&self.client).await
    }

    /// Writes out what was published and acknowledged, and waits until the server has read it.
    pub(crate) async fn flush(&self) {
        let round_trip = async {
            self.client.flush().await.ok();
            // Any request will do: its answer comes after the server has read what went before.
            self.stream_state().await.ok();
        };
        if self.is_connected() {
            drop(tokio::time::timeout(Duration::from_secs(2), round_trip).await);
        }
    }
}
