//! Given: the application's client.
//!
//! The client sends its events to the application. tenure therefore polls the two facts that it needs: whether there is
//! a connection, and whether that is a new one. Only the application learns of a denied permission; tenure just gets no
//! answer.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use async_nats::{Client, connection::State};
use tokio::{sync::watch, time::sleep};

use super::{
    answers::Dial,
    connect::{Nats, NatsError, Said, Seen, dial},
};
use crate::config::Config;

/// How often tenure looks at the connection.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The name of the client's servers in logs and in `doctor`.
const SERVERS: &str = "the application's own client";

impl Nats {
    /// Uses this client, and never closes it, for all but answers: it makes its connection again, and would send
    /// what it still holds to a server that went back. NATS may be away.
    pub(crate) async fn given(config: &Config, client: Client) -> Result<Self, NatsError> {
        if let Some(prefix) = &config.inbox_prefix {
            let inbox = client.new_inbox();
            if !inbox.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('.')) {
                let own = inbox.rsplit_once('.').map_or(inbox.as_str(), |(own, _)| own);
                let reason = format!(
                    "its inboxes begin with {own:?}, but TENURE_NATS_INBOX_PREFIX is {prefix:?}; connect it with \
                     custom_inbox_prefix, or leave the setting out"
                );
                return Err(NatsError::Client { reason });
            }
        }
        let inbox = client.new_inbox();
        let inboxes = inbox.rsplit_once('.').map_or(inbox.as_str(), |(inboxes, _)| inboxes);
        let mut dial = Dial { beside: Some(client.clone()), ..dial(config).await? };
        dial.options = dial.options.custom_inbox_prefix(inboxes);
        let seen = look(client.clone());
        Ok(Self::over(config, client, dial, SERVERS.into(), seen))
    }
}

/// Watches the connection until the last receiver of `connections` is dropped.
fn look(client: Client) -> Seen {
    let is_up = move |client: &Client| client.connection_state() == State::Connected;
    let made = |client: &Client| client.statistics().connects.load(Ordering::Relaxed);
    // An existing connection counts as the first.
    let before = made(&client).saturating_sub(u64::from(is_up(&client)));
    let (connected, connections) = watch::channel(made(&client) - before);
    let up_since = Arc::new(Mutex::new(is_up(&client).then(Instant::now)));
    let (say, said) = watch::channel(Said::default());
    let noted = up_since.clone();
    tokio::spawn(async move {
        // This task never sends, but the channel must stay open for its receivers.
        let _say = say;
        loop {
            tokio::select! {
                () = connected.closed() => return,
                () = sleep(LOOK_EVERY) => {}
            }
            let (is_up, count) = (is_up(&client), made(&client) - before);
            let is_new = *connected.borrow() != count;
            let mut since = noted.lock().unwrap_or_else(PoisonError::into_inner);
            match (*since, is_up) {
                (Some(_), false) => {
                    tracing::warn!(servers = SERVERS, "disconnected from NATS; the client will reconnect");
                    *since = None;
                }
                (None, true) => *since = Some(Instant::now()),
                (Some(_), true) if is_new => *since = Some(Instant::now()),
                _ => {}
            }
            drop(since);
            if is_new {
                if count > 1 {
                    tracing::info!(servers = SERVERS, "reconnected to NATS");
                }
                connected.send_replace(count);
            }
        }
    });
    Seen { connections, said, up_since }
}
