//! Connections: the open connections of a listener, and which of them it closes to accept one more.
//!
//! A client that connects and sends no request holds a socket for as long as it stays. At the limit, a new connection
//! takes the place of one that waits for a request, so that other clients' idle connections never keep a probe out.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The most connections of one listener: a worker needs its files for Postgres, NATS and commands.
const OPEN_MAX: usize = 256;
/// The fewest, however few files the process may open.
const OPEN_MIN: usize = 16;

/// The open connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    most: usize,
    open: BTreeMap<u64, Open>,
    /// Counts what happens: a later event has a larger number.
    turn: u64,
}

#[derive(Debug)]
struct Open {
    client: IpAddr,
    /// The turn at which it was opened, or began to wait for its next request.
    since: u64,
    is_waiting: bool,
    has_asked: bool,
    close: CancellationToken,
}

/// One open connection. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    close: CancellationToken,
    all: Connections,
}

/// A request whose response is not yet complete.
#[derive(Debug)]
pub(super) struct Asking {
    id: u64,
    all: Connections,
}

impl Connections {
    /// At most a quarter of the files that this process may open.
    pub(super) fn new() -> Self {
        Self::of(files_max().map_or(OPEN_MAX, |files| (files / 4).clamp(OPEN_MIN, OPEN_MAX)))
    }

    fn of(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State { most, open: BTreeMap::new(), turn: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection of this client. At the limit, closes another one first and returns its client.
    pub(super) fn open(&self, client: IpAddr) -> (Connection, Option<IpAddr>) {
        let mut state = self.state();
        let closed = if state.open.len() < state.most { None } else { state.close_one() };
        let (id, close) = (state.next_turn(), CancellationToken::new());
        let open = Open {
            client: network(client),
            since: id,
            is_waiting: true,
            has_asked: false,
            close: close.clone(),
        };
        state.open.insert(id, open);
        (Connection { id, close, all: self.clone() }, closed)
    }

    /// Closes a connection, because the process has no file left for another.
    pub(super) fn close_one(&self) {
        self.state().close_one();
    }
}

impl State {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Closes the connection that has waited longest for a request, of the client with the most such connections. If
    /// none waits, the same rule picks one whose response is not yet complete.
    fn close_one(&mut self) -> Option<IpAddr> {
        let one_waits = self.open.values().any(|open| open.is_waiting);
        let mut clients: HashMap<IpAddr, (usize, u64, u64)> = HashMap::new();
        for (id, open) in self.open.iter().filter(|(_, open)| open.is_waiting || !one_waits) {
            let (count, oldest, its_id) = clients.entry(open.client).or_insert((0, u64::MAX, *id));
            *count += 1;
            if open.since < *oldest {
                (*oldest, *its_id) = (open.since, *id);
            }
        }
        let (.., id) = clients.into_values().max_by_key(|(count, oldest, _)| (*count, Reverse(*oldest)))?;
        let closed = self.open.remove(&id)?;
        closed.close.cancel();
        Some(closed.client)
    }
}

impl Connection {
    /// Completes when the connection must close.
    pub(super) fn closes(&self) -> impl Future<Output = ()> + use<> {
        self.close.clone().cancelled_owned()
    }

    /// Whether a request has arrived.
    pub(super) fn has_asked(&self) -> bool {
        self.all.state().open.get(&self.id).is_some_and(|open| open.has_asked)
    }

    /// Notes that a request has arrived. The connection waits again when the result is dropped.
    pub(super) fn asks(&self) -> Asking {
        if let Some(open) = self.all.state().open.get_mut(&self.id) {
            (open.is_waiting, open.has_asked) = (false, true);
        }
        Asking { id: self.id, all: self.all.clone() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.state().open.remove(&self.id);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.all.state();
        let now = state.next_turn();
        if let Some(open) = state.open.get_mut(&self.id) {
            (open.is_waiting, open.since) = (true, now);
        }
    }
}

/// The part of an address that tells clients apart: one IPv6 client may use any address of its /64.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(unix)]
fn files_max() -> Option<usize> {
    use rustix::process::{Resource, getrlimit};
    usize::try_from(getrlimit(Resource::Nofile).current?).ok()
}

#[cfg(not(unix))]
fn files_max() -> Option<usize> {
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_open(connection: &Connection) -> bool {
        !connection.close.is_cancelled()
    }

    #[test]
    fn at_the_limit_the_client_with_the_most_idle_connections_loses_its_oldest() {
        let all = Connections::of(4);
        let (probe, flood) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let first = all.open(probe).0;
        let others: Vec<_> = (0..3).map(|_| all.open(flood).0).collect();
        let (next, closed) = all.open(flood);
        assert_eq!(closed, Some(flood));
        assert!(is_open(&first) && is_open(&next));
        assert_eq!(others.iter().map(is_open).collect::<Vec<_>>(), [false, true, true]);
        drop(others);
        assert_eq!(all.open(flood).1, None, "there is room");
    }

    #[test]
    fn a_connection_with_a_request_is_closed_only_if_none_waits() {
        let all = Connections::of(2);
        let client = ip("10.0.0.1");
        let (busy, idle) = (all.open(client).0, all.open(client).0);
        let asking = busy.asks();
        let (next, _) = all.open(client);
        assert!(is_open(&busy) && !is_open(&idle) && busy.has_asked() && !next.has_asked());
        let also = next.asks();
        let (last, _) = all.open(client);
        assert!(!is_open(&busy) && is_open(&next), "the oldest of those with a request");
        // After its response it waits, for less long than the last.
        drop((asking, also));
        assert!(all.open(client).1.is_some() && !is_open(&last) && is_open(&next));
    }

    #[test]
    fn an_ipv6_client_is_its_network_and_a_mapped_address_that_of_ipv4() {
        assert_eq!(network(ip("2001:db8:1:2:3:4:5:6")), ip("2001:db8:1:2::"));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_eq!(network(ip("10.0.0.1")), ip("10.0.0.1"));
    }
}
