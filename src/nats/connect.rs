//! Connect: one client, which reconnects without end.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
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
use tokio::{io::AsyncReadExt, net::TcpStream, sync::watch, time::timeout};

use super::{
    answers::{Answers, Dial},
    tls,
    together::Told,
    written::Flushes,
};
use crate::{
    config::{Config, masked},
    job::duration,
    observe::repeats::Repeats,
};

/// NATS did not answer, or refused a request.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The address is not valid.
    #[error("NATS_URL {url:?} is not a NATS address; write nats://host:4222, separate several by commas")]
    Address {
        /// The given address, without its password.
        url: String,
    },
    /// The credentials, or a certificate or key, cannot be read.
    #[error("{name}: {path} cannot be read: {reason}")]
    Credentials {
        /// The setting.
        name: &'static str,
        /// The file.
        path: String,
        /// Why the file cannot be read.
        reason: String,
    },
    /// The client that [`TenureBuilder::nats`](crate::TenureBuilder::nats) was given cannot be used.
    #[error("the given NATS client cannot be used: {reason}")]
    Client {
        /// The reason, and what to do.
        reason: String,
    },
    /// NATS did not answer. It may have stored a message nevertheless: publish it again under the same id.
    #[error("NATS is unavailable: {0}")]
    Unavailable(String),
    /// NATS refused a request.
    #[error("NATS refused to {what}: {reason}")]
    Refused {
        /// The request.
        what: String,
        /// The reason, in the words of NATS.
        reason: String,
    },
}

/// The connection to NATS, and the stream with the jobs' messages. Cheap to clone.
#[derive(Clone)]
pub struct Nats(Arc<Inner>);

impl std::ops::Deref for Nats {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

pub struct Inner {
    pub(crate) client: Client,
    pub(super) context: jetstream::Context,
    /// The servers' addresses, without passwords.
    servers: Arc<str>,
    pub(super) stream: String,
    pub(crate) prefix: String,
    pub(super) ack_wait: Duration,
    pub(crate) publish_within: Duration,
    /// The most jobs that one message names. `None`: as the workers of the queue have told.
    pub(super) jobs_per_message: Option<usize>,
    pub(super) told: Told,
    /// The number of connections made so far.
    pub(super) connections: watch::Receiver<u64>,
    /// The latest errors, in the words of the server or the client. A denied permission appears only here.
    pub(super) said: watch::Receiver<Said>,
    /// The start of the current connection. `None`: not connected.
    up_since: Arc<Mutex<Option<Instant>>>,
    flushes: Flushes,
    pub(crate) answers: Answers,
    pub(super) stream_created: Mutex<Option<String>>,
}

/// What is seen of a connection.
pub(super) struct Seen {
    pub(super) connections: watch::Receiver<u64>,
    pub(super) said: watch::Receiver<Said>,
    pub(super) up_since: Arc<Mutex<Option<Instant>>>,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The longest that a process waits for its connection at its start.
const CONNECTED_SOON: Duration = Duration::from_secs(2);
/// The same after a server has refused the connection.
const CONNECTED_AFTER_REFUSAL: Duration = Duration::from_millis(300);

/// The latest errors of the connection. More than one: two may arrive before a listener runs.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The number of errors so far.
    pub(super) count: usize,
    texts: VecDeque<String>,
    /// Why there is no connection. `None`: there is one, or no attempt has failed yet.
    away: Option<String>,
}

impl Said {
    /// The most errors that are kept.
    const KEPT: usize = 16;

    fn add(&mut self, text: String) {
        self.count += 1;
        self.texts.push_back(text);
        if self.texts.len() > Self::KEPT {
            self.texts.pop_front();
        }
    }

    /// The errors after the first `count`.
    pub(super) fn since(&self, count: usize) -> impl Iterator<Item = &String> {
        let new = (self.count - count).min(self.texts.len());
        self.texts.iter().skip(self.texts.len() - new)
    }

    pub(super) fn last(&self) -> String {
        self.away.as_ref().or(self.texts.back()).cloned().unwrap_or_default()
    }
}

/// How long the search for the cause of a failed connection waits for one server.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// Returns why these servers cannot be reached, in the words of the system: the client only says that there was an
/// error. `None`: one of them can be reached.
async fn unreachable(servers: &[ServerAddr], needs_tls: bool) -> Option<String> {
    let mut causes = Vec::new();
    for server in servers {
        let (host, port) = (server.host(), server.port());
        match timeout(CAUSE_WITHIN, TcpStream::connect((host, port))).await {
            Ok(Ok(stream)) => match cleartext(needs_tls || server.tls_required(), stream).await {
                Some(cause) => causes.push(format!("{host}:{port}: {cause}")),
                None => return None,
            },
            Ok(Err(error)) => causes.push(format!("{host}:{port}: {error}")),
            Err(_) => {
                causes.push(format!("{host}:{port}: no answer within {}", duration::written(CAUSE_WITHIN)));
            }
        }
    }
    Some(causes.join("; "))
}

/// Returns that a server offers no TLS, if it has to: a server that does says so in its first line, or waits for the
/// client.
async fn cleartext(needs_tls: bool, mut stream: TcpStream) -> Option<&'static str> {
    if !needs_tls {
        return None;
    }
    let mut first = vec![0; 4_096];
    let read = timeout(CAUSE_WITHIN, stream.read(&mut first)).await.ok()?.ok()?;
    let first = String::from_utf8_lossy(&first[..read]);
    let offers = |field: &str| first.contains(&format!("\"{field}\":true"));
    (first.starts_with("INFO ") && !offers("tls_required") && !offers("tls_available"))
        .then_some("the server does not support TLS")
}

/// Logs a failed attempt to connect, with its cause, which doctor and health report, too.
async fn log_failure(
    event: Event,
    (servers, needs_tls): (Arc<[ServerAddr]>, bool),
    named: Arc<str>,
    left_out: u64,
    say: watch::Sender<Said>,
) {
    let cause = unreachable(&servers, needs_tls).await;
    if let Some(cause) = &cause {
        // The connection may be up again: then there is nothing to explain.
        say.send_if_modified(|said| {
            said.away.as_mut().map(|away| *away = format!("{event}: {cause}")).is_some()
        });
    }
    tracing::warn!(%event, cause, servers = &*named, left_out, "NATS connection event");
}

/// Logs an event of the connection.
fn log(event: &Event, left_out: u64, servers: &str) {
    match event {
        Event::Connected => tracing::info!(servers, left_out, "reconnected to NATS"),
        Event::ServerError(error) => tracing::error!(%error, servers, left_out, "NATS reported an error"),
        Event::SlowConsumer(_) => {
            tracing::error!(
                servers,
                left_out,
                "the NATS client dropped messages: this process reads them too slowly"
            );
        }
        event => tracing::warn!(%event, servers, left_out, "NATS connection event"),
    }
}

impl Nats {
    /// Starts to connect, and returns at once: NATS may be away.
    pub(crate) async fn open(config: &Config) -> Result<Self, NatsError> {
        let dial = dial(config).await?;
        let (connected, connections) = watch::channel(0);
        let (say, said) = watch::channel(Said::default());
        let up_since = Arc::new(Mutex::new(None));
        let (noted, known) = (up_since.clone(), AtomicBool::new(false));
        let servers: Arc<str> = masked(&config.nats_url).into();
        let (named, repeats) = (servers.clone(), Repeats::default());
        let (tried, needs_tls): (Arc<[ServerAddr]>, _) = (dial.servers.clone().into(), needs_tls(config));
        let options = dial.options.clone();
        let options = options
            .name("tenure")
            .retry_on_initial_connect()
            .reconnect_delay_callback(|attempt| {
                let step = 50_u64 << attempt.min(6);
                Duration::from_millis(rand::random_range(step / 2..=step))
            })
            .event_callback(move |event| {
                match event {
                    Event::Connected => {
                        *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                        connected.send_modify(|n| *n += 1);
                        say.send_modify(|said| said.away = None);
                    }
                    Event::Disconnected => *noted.lock().unwrap_or_else(PoisonError::into_inner) = None,
                    Event::ServerError(_) => say.send_modify(|said| said.add(event.to_string())),
                    Event::ClientError(_) => say.send_modify(|said| {
                        said.add(event.to_string());
                        // A known cause stays until the connection is up.
                        said.away.get_or_insert_with(|| event.to_string());
                    }),
                    _ => {}
                }
                // The first connection is no news.
                let is_first = !known.fetch_or(matches!(event, Event::Connected), Ordering::Relaxed);
                if matches!(event, Event::Closed) || matches!(event, Event::Connected) && is_first {
                    tracing::debug!(%event, servers = &*named, "NATS connection event");
                } else if let Some(left_out) = repeats.tell(&event.to_string()) {
                    // Repeats appear less and less often, because the client retries without end.
                    if matches!(event, Event::ClientError(_)) {
                        let failure = log_failure(
                            event,
                            (tried.clone(), needs_tls),
                            named.clone(),
                            left_out,
                            say.clone(),
                        );
                        tokio::spawn(failure);
                    } else {
                        log(&event, left_out, &named);
                    }
                }
                std::future::ready(())
            });
        let connecting = options.connect(&dial.servers[..]);
        let client = connecting.await.map_err(|error| NatsError::Unavailable(error.to_string()))?;
        Ok(Self::over(config, client, dial, servers, Seen { connections, said, up_since }))
    }

    /// Over a client, and what is seen of its connection.
    pub(super) fn over(config: &Config, client: Client, dial: Dial, servers: Arc<str>, seen: Seen) -> Self {
        let Seen { connections, said, up_since } = seen;
        let context = ContextBuilder::new()
            .timeout(config.timing.publish_within)
            .ack_timeout(config.timing.publish_within)
            .max_ack_inflight(16_384)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let answers = Answers::start(dial, client.clone(), config.stream.clone(), config.timing.ack_wait);
        Self(Arc::new(Inner {
            client,
            context,
            servers,
            stream: config.stream.clone(),
            prefix: config.subject_prefix.clone(),
            ack_wait: config.timing.ack_wait,
            publish_within: config.timing.publish_within,
            jobs_per_message: Some(config.jobs_per_message).filter(|jobs| *jobs > 0),
            told: Told::default(),
            connections,
            said,
            up_since,
            flushes: Flushes::start(),
            answers,
            stream_created: Mutex::default(),
        }))
    }

    /// Whether the connection is up right now.
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// The addresses of the servers, without passwords.
    pub fn servers(&self) -> &str {
        &self.servers
    }

    /// Returns why the connection is down.
    pub fn why_away(&self) -> String {
        let why = self.said.borrow().away.clone();
        format!("not connected to {}{}", self.servers, why.map(|why| format!(": {why}")).unwrap_or_default())
    }

    /// Returns for how long the connection has been up without a break.
    pub(crate) fn up_for(&self) -> Duration {
        let since = *self.up_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.filter(|_| self.is_connected()).map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Whether the first connection of this process is still up.
    pub(crate) fn is_up_since_the_start(&self) -> bool {
        self.is_connected() && *self.connections.borrow() == 1
    }

    /// Returns a receiver that changes with every new connection.
    pub(crate) fn connections(&self) -> watch::Receiver<u64> {
        self.connections.clone()
    }

    /// Publishes a plain message. Returns whether the client accepted it. While NATS is away, the client accepts some
    /// 2,000 messages and then makes its callers wait; a task that keeps jobs alive must not wait so long.
    pub(crate) async fn tell(&self, subject: impl async_nats::subject::ToSubject, body: Bytes) -> bool {
        self.tell_over(&self.client, subject, body).await
    }

    /// The same, over this client.
    pub(super) async fn tell_over(
        &self,
        client: &Client,
        subject: impl async_nats::subject::ToSubject,
        body: Bytes,
    ) -> bool {
        match tokio::time::timeout(self.publish_within, client.publish(subject, body)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the NATS client refused a message");
                false
            }
            Err(_) => {
                tracing::debug!("a message was not sent: too many messages wait for NATS");
                false
            }
        }
    }

    /// Waits until the connection is up.
    ///
    /// Cancel safe.
    pub async fn connected(&self) {
        let mut connections = self.connections.clone();
        connections.mark_unchanged();
        while !self.is_connected() {
            // Also checks now and then: the event may have come just before.
            drop(tokio::time::timeout(Duration::from_millis(20), connections.changed()).await);
        }
    }

    /// Waits until the connection is up, but not for long: a healthy server answers at once.
    ///
    /// Cancel safe.
    pub(crate) async fn connected_soon(&self) {
        let mut said = self.said.clone();
        let refused = async {
            // Another of several servers may answer; a server that restarts is back later.
            drop(said.wait_for(|said| said.count > 0).await);
            tokio::time::sleep(CONNECTED_AFTER_REFUSAL).await;
        };
        tokio::select! {
            _ = tokio::time::timeout(CONNECTED_SOON, self.connected()) => {}
            () = refused => {}
        }
    }

    /// Breaks the connection, and waits for the next one.
    #[cfg(test)]
    pub(crate) async fn connect_anew(&self) {
        let mut connections = self.connections();
        connections.mark_unchanged();
        self.client.force_reconnect().await.ok();
        connections.changed().await.ok();
    }

    /// Counts messages that were sent, for which [`Queue::written`] then waits.
    pub(crate) fn note_sent(&self) {
        self.flushes.note_sent();
    }

    /// Waits until the kernel has every message that was sent so far. `false`: it took too long.
    ///
    /// Cancel safe.
    pub(crate) async fn written(&self) -> bool {
        self.flushes.written(&self.client).await
    }

    /// Writes out all publications and acks, and waits until the server has read them.
    pub(crate) async fn flush(&self) {
        let round_trip = async {
            self.client.flush().await.ok();
            // The answer to any request comes after the server has read everything before it.
            tokio::join!(self.stream_state(), self.answers.flush()).0.ok();
        };
        if self.is_connected() {
            drop(tokio::time::timeout(Duration::from_secs(2), round_trip).await);
        }
    }
}

fn needs_tls(config: &Config) -> bool {
    config.nats_ca.is_some() || config.nats_certificate.is_some()
}

/// How each connection is made by the settings: the servers, the login, and TLS.
pub(super) async fn dial(config: &Config) -> Result<Dial, NatsError> {
    let servers = config.nats_url.split(',').map(|url| url.trim().parse::<ServerAddr>());
    let servers: Vec<_> = servers
        .collect::<Result<_, _>>()
        .map_err(|_| NatsError::Address { url: masked(&config.nats_url) })?;
    let mut options = ConnectOptions::new()
        .ping_interval(Duration::from_secs(10))
        .request_timeout(Some(config.timing.publish_within));
    // async-nats ignores the user and password of a URL.
    if let Some(server) = servers.iter().find(|server| server.has_user_pass()) {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = decoded(server.username().unwrap_or_default());
        options = match server.password() {
            Some(password) => options.user_and_password(user, decoded(password)),
            None => options.token(user),
        };
    }
    if let Some(path) = &config.nats_credentials {
        options = with_credentials(options, path).await.map_err(|reason| NatsError::Credentials {
            name: "TENURE_NATS_CREDENTIALS",
            path: path.display().to_string(),
            reason,
        })?;
    }
    options = options.tls_client_config(tls::client(config)?).require_tls(needs_tls(config));
    if let Some(prefix) = &config.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    Ok(Dial { servers, options, beside: None })
}

#[cfg(feature = "nkeys")]
async fn with_credentials(options: ConnectOptions, file: &Path) -> Result<ConnectOptions, String> {
    options.credentials_file(file).await.map_err(|error| error.to_string())
}

#[cfg(not(feature = "nkeys"))]
#[expect(clippy::unused_async, reason = "as with the feature")]
async fn with_credentials(_: ConnectOptions, _: &Path) -> Result<ConnectOptions, String> {
    Err("this program was built without tenure's feature nkeys; add it, or log in by a user in NATS_URL"
        .into())
}
