//! Consumers: whether NATS still delivers what the stream accepts, at the start and on each new connection.

use super::Work;
use crate::nats::Nats;

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
        loop {
            self.nats.look_at_consumers(&self.queues).await;
            if connections.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
