//! Presence: shows other workers that this process is there, and judges their silence.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    config::Timing,
    nats::{Control, Nats, Probed},
    observe::repeats::Repeats,
    recover::vanished,
    store::{Registration, Store},
};

pub(super) struct Presence {
    store: Store,
    nats: Nats,
    timing: Timing,
    /// The subject on which this process answers probes.
    subject: String,
    reaches_itself: AtomicBool,
    repeats: Repeats,
}

impl Presence {
    pub(super) fn new(store: Store, nats: Nats, timing: Timing) -> Self {
        let subject = nats.new_probe_subject();
        Self {
            store,
            nats,
            timing,
            subject,
            reaches_itself: AtomicBool::new(false),
            repeats: Repeats::default(),
        }
    }

    /// Subscribes to probes and announcements; retries until NATS permits it.
    pub(super) async fn listen(&self) -> Control {
        loop {
            match self.nats.listen(&self.subject).await {
                Ok(control) => return control,
                Err(error) => {
                    if let Some(left_out) = self.repeats.tell(&format!("listen: {error}")) {
                        tracing::warn!(%error, left_out,
                            "the worker gets no cancellations and probes over NATS yet; it will retry");
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    /// Registers the subject only while this process reaches itself over it: if the process may not subscribe, its
    /// silence proves nothing.
    pub(super) async fn probe_ourselves(&self, registration: &mut Registration) {
        let before = registration.probe_subject.take();
        registration.probe_subject = match self.probe().await {
            Probed::Answered => Some(self.subject.clone()),
            Probed::NoAnswer => before,
            Probed::Gone => {
                if let Some(left_out) = self.repeats.tell("does not reach itself") {
                    tracing::warn!(
                        subject = self.subject,
                        left_out,
                        "this worker does not reach itself over NATS; \
                    if it dies, its jobs are reset after stale_after, not within seconds"
                    );
                }
                None
            }
        };
        self.reaches_itself.store(registration.probe_subject.is_some(), Ordering::Release);
    }

    /// Probes this process itself.
    pub(super) async fn probe(&self) -> Probed {
        self.nats.probe(&self.subject).await
    }

    /// Whether this worker may take the silence of others for their death: it hears itself, and both servers have been
    /// there for long enough.
    pub(super) fn can_judge(&self) -> bool {
        self.reaches_itself.load(Ordering::Acquire)
            && vanished::has_settled(&self.store, &self.nats, &self.timing)
    }
}
