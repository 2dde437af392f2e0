//! Consumers: whether NATS still delivers what the stream accepts, at the start, on each new connection, and at times.

use std::time::Duration;

use tokio::time::timeout;

use super::{Work, jittered};
use crate::nats::Nats;

/// How often it looks without a new connection: a consumer that is ahead may show it only once a message of before is
/// acknowledged.
const LOOKED_EVERY: Duration = Duration::from_mins(5);
/// The pause after a look without an answer: a server that comes back takes connections before it serves the stream. It
/// doubles: a user without the right never gets one.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Makes a consumer anew that is ahead of its stream: the server may be one that went back. Its pull breaks, and finds
/// the new one.
#[derive(Clone)]
pub(crate) struct LookAtConsumers {
    pub(crate) nats: Nats,
    pub(crate) queues: Vec<String>,
}

impl Work for LookAtConsumers {
    const NAME: &'static str = "consumers";

    async fn run(self) {
        let mut connections = self.nats.connections();
        connections.mark_unchanged();
        let mut again_after = ASKED_AGAIN_AFTER;
        loop {
            let is_answered = self.nats.look_at_consumers(&self.queues).await;
            let pause = if is_answered { LOOKED_EVERY } else { again_after };
            again_after = (again_after * 2).min(LOOKED_EVERY);
            match timeout(jittered(pause), connections.changed()).await {
                Ok(Ok(())) => again_after = ASKED_AGAIN_AFTER,
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) => {}
            }
        }
    }
}
