//! Topology: the stream and the consumers of the queues that a worker serves, created where they are missing.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    nats::{Nats, NatsError, PullConsumer},
    observe::repeats::Repeats,
};

/// How long the start waits for the consumers.
const CONSUMERS_WITHIN: Duration = Duration::from_secs(2);
/// The most consumers that a worker asks for at once.
const ASKS_MAX: usize = 32;

pub(crate) struct Topology {
    nats: Nats,
    /// The queues that are served.
    names: Vec<String>,
    /// Limits how many consumers the worker asks for at once.
    asks: Semaphore,
    /// The consumers that the start found, until `pull` takes them.
    found: Mutex<HashMap<String, PullConsumer>>,
    repeats: Repeats,
}

impl Topology {
    pub(super) fn new(nats: Nats, names: Vec<String>) -> Self {
        Self {
            nats,
            names,
            asks: Semaphore::new(ASKS_MAX),
            found: Mutex::default(),
            repeats: Repeats::default(),
        }
    }

    /// Creates the stream if it is missing; retries until the stream exists.
    pub(super) async fn look_after_stream(&self) {
        let mut failures: u32 = 0;
        loop {
            // Requests that cannot be sent would pile up in the client.
            while timeout(Duration::from_secs(5), self.nats.connected()).await.is_err() {
                if let Some(left_out) = self.repeats.tell("waiting for NATS") {
                    let reason = self.nats.why_away();
                    tracing::warn!(reason, servers = self.nats.servers(), left_out, "waiting for NATS");
                }
            }
            match self.ensure_stream().await {
                Ok(()) => return,
                Err(error) => {
                    failures += 1;
                    // The first answer may be late: a server that has just started looks for its streams.
                    if failures > 1
                        && let Some(left_out) = self.repeats.tell(&format!("stream: {error}"))
                    {
                        if let NatsError::Unavailable(_) = error {
                            tracing::warn!(%error, left_out, "not ready: NATS does not answer about the stream; the \
                                worker will retry. A denied permission looks like this, too: nats/server.conf has the \
                                rights of a worker");
                        } else {
                            tracing::error!(%error, left_out, "not ready: the stream is missing and cannot be created; \
                                run `tenure migrate` with the admin role, or wait");
                        }
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    async fn ensure_stream(&self) -> Result<(), NatsError> {
        let drift = self.nats.ensure_stream().await?;
        if !drift.is_empty()
            && let Some(left_out) = self.repeats.tell(&format!("drift: {drift:?}"))
        {
            tracing::error!(
                ?drift,
                left_out,
                "the stream's configuration is not what tenure expects; run `tenure migrate` to change it"
            );
        }
        Ok(())
    }

    /// Asks for all consumers, but waits only a short time: `pull` asks again for the rest.
    pub(super) async fn find_consumers(&self) {
        let all = join_all(self.names.iter().map(|name| async move {
            if let Ok(consumer) = self.ensure_consumer(name).await {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), consumer);
            }
        }));
        drop(timeout(CONSUMERS_WITHIN, all).await);
    }

    /// Returns a queue's consumer: the one that the start found, else one that NATS has or creates now.
    pub(super) async fn consumer(&self, name: &str) -> Result<PullConsumer, NatsError> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        match found {
            Some(consumer) => Ok(consumer),
            None => self.ensure_consumer(name).await,
        }
    }

    async fn ensure_consumer(&self, name: &str) -> Result<PullConsumer, NatsError> {
        // A worker of very many queues asks for a few at a time.
        let _turn = self.asks.acquire().await;
        let (consumer, drift) = self.nats.ensure_consumer(name).await?;
        if !drift.is_empty()
            && let Some(left_out) = self.repeats.tell(&format!("drift of {name}: {drift:?}"))
        {
            tracing::error!(
                queue = name,
                ?drift,
                left_out,
                "the consumer's configuration is not what tenure expects; run `tenure migrate --queue NAME`"
            );
        }
        Ok(consumer)
    }

    /// Creates the stream and the consumers that are missing. Goes on after a consumer that cannot be created, and
    /// returns the first error.
    pub(super) async fn try_all(&self) -> Result<(), NatsError> {
        self.ensure_stream().await?;
        let mut all = Ok(());
        for name in &self.names {
            all = all.and(self.ensure_consumer(name).await.map(drop));
        }
        all
    }
}
