//! Hinter: sends hints by a task of its own: no attempt and no heartbeat waits for NATS because of one.

use async_nats::Subject;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{nats::Nats, observe::repeats::Repeats};

/// The most hints that wait for the connection. More are dropped: their jobs are seen at the next poll.
const WAITING_MAX: usize = 16_384;
/// How many hints the task sends before it looks at the connection again.
const TOGETHER: usize = 256;

/// Sends hints, without making the caller wait. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hinter {
    waiting: mpsc::Sender<(Subject, Bytes)>,
}

impl Hinter {
    /// Starts the task that sends them. It ends when the last clone is dropped, once it has sent what waits.
    pub(crate) fn start(nats: Nats) -> Self {
        let (waiting, hints) = mpsc::channel(WAITING_MAX);
        tokio::spawn(send(nats, hints));
        Self { waiting }
    }

    /// Sends a hint, if not too many wait.
    pub(crate) fn send(&self, subject: Subject, body: Bytes) {
        static FULL: std::sync::LazyLock<Repeats> = std::sync::LazyLock::new(Repeats::default);
        if self.waiting.try_send((subject, body)).is_err()
            && let Some(left_out) = FULL.tell("hints")
        {
            tracing::debug!(left_out, "dropped a hint: too many wait for NATS");
        }
    }
}

/// Sends hints while NATS is connected; drops them while it is away.
async fn send(nats: Nats, mut hints: mpsc::Receiver<(Subject, Bytes)>) {
    let mut some = Vec::with_capacity(TOGETHER);
    while hints.recv_many(&mut some, TOGETHER).await > 0 {
        if !nats.is_connected() {
            some.clear();
            continue;
        }
        let publish = async {
            for (subject, body) in some.drain(..) {
                if nats.client.publish(subject, body).await.is_err() {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(nats.publish_within, publish).await);
        some.clear();
    }
}
