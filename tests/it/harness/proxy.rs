//! A proxy between a worker and a server, whose link can be disturbed as silently as a real network.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// The state of a link.
#[derive(Debug, Clone)]
struct State {
    to: u16,
    requests_pass: bool,
    answers_pass: bool,
    delay: Duration,
    /// Raised to break off every connection.
    broken: u32,
    /// The next connection that sends this is broken off once the server has answered, before the answer passes.
    fatal: Option<Arc<[u8]>>,
    /// The next request with these bytes stops the link: before it has passed, or once it has.
    stops_at: Option<(Arc<[u8]>, bool)>,
}

impl State {
    fn clear(to: u16, broken: u32) -> Self {
        Self {
            to,
            requests_pass: true,
            answers_pass: true,
            delay: Duration::ZERO,
            broken,
            fatal: None,
            stops_at: None,
        }
    }
}

/// A link to one port of the loopback interface. It ends when dropped.
pub struct Proxy {
    port: u16,
    to: u16,
    state: Arc<watch::Sender<State>>,
    lost: Arc<AtomicU32>,
    task: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let state = Arc::new(watch::Sender::new(State::clear(port, 0)));
        let shared = state.clone();
        let lost = Arc::new(AtomicU32::new(0));
        let counter = lost.clone();
        let task = tokio::spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let to = shared.borrow().to;
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else { continue };
                links.spawn(pass(client, server, shared.clone(), counter.clone()));
            }
        });
        Self { port: own, to: port, state, lost, task: task.abort_handle() }
    }

    /// A link to the server that a URL names.
    pub async fn to_url(url: &str) -> Self {
        let host = url.rsplit('@').next().unwrap().rsplit("//").next().unwrap();
        let port = host.split('/').next().unwrap().rsplit(':').next().unwrap();
        Self::to(port.parse().unwrap()).await
    }

    /// A URL of the server, by way of this link.
    pub fn of(&self, url: &str) -> String {
        let (before, after) = (format!(":{}", self.to), format!(":{}", self.port));
        assert!(url.contains(&before), "{url} is not where this link goes");
        url.replace(&before, &after)
    }

    /// Lets nothing pass, silently.
    pub fn cut(&self) {
        self.state.send_modify(|state| (state.requests_pass, state.answers_pass) = (false, false));
    }

    /// Lets requests pass and no answers.
    pub fn cut_answers(&self) {
        self.state.send_modify(|state| state.answers_pass = false);
    }

    /// Lets answers pass and no requests.
    pub fn cut_requests(&self) {
        self.state.send_modify(|state| state.requests_pass = false);
    }

    /// Delays everything by this much, each way.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Restores the link; held-back bytes pass, too.
    pub fn mend(&self) {
        self.state.send_modify(|state| *state = State::clear(state.to, state.broken));
    }

    /// Leads the link to another server and breaks off connections to the old one.
    pub fn lead_to(&self, port: u16) {
        self.state.send_modify(|state| *state = State::clear(port, state.broken + 1));
    }

    /// Breaks off every connection; new ones may be made.
    #[allow(dead_code, reason = "the chaos run does")]
    pub fn break_off(&self) {
        self.state.send_modify(|state| state.broken += 1);
    }

    /// Breaks off the next connection that sends these bytes, once the server has answered: the client never gets the
    /// answer.
    pub fn lose_answer_to(&self, bytes: &[u8]) {
        self.state.send_modify(|state| state.fatal = Some(bytes.into()));
    }

    /// Lets nothing pass from the next request with these bytes on, which does pass if `passes`.
    #[allow(dead_code, reason = "the conformance kit does")]
    pub fn stop_at(&self, bytes: &[u8], passes: bool) {
        self.state.send_modify(|state| state.stops_at = Some((bytes.into(), passes)));
    }

    /// Waits until the link has stopped.
    #[allow(dead_code, reason = "the conformance kit does")]
    pub async fn stopped(&self) {
        self.state.subscribe().wait_for(|state| !state.answers_pass).await.unwrap();
    }

    /// The number of answers lost in this way.
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: Arc<watch::Sender<State>>, lost: Arc<AtomicU32>) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let doomed = Arc::new(AtomicBool::new(false));
    let (watched, mut broken) = (state.subscribe(), state.subscribe());
    let before = broken.borrow().broken;
    tokio::select! {
        () = requests(from_client, to_server, &state, &doomed) => {}
        () = answers(from_server, to_client, watched, &doomed, &lost) => {}
        _ = broken.wait_for(|state| state.broken != before) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &watch::Sender<State>,
    doomed: &AtomicBool,
) {
    let mut state = shared.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        let place = |bytes: &[u8]| buffer[..n].windows(bytes.len()).position(|window| window == bytes);
        let mut rest = 0;
        shared.send_if_modified(|state| {
            let Some((at, passes)) =
                state.stops_at.as_ref().and_then(|(bytes, passes)| Some((place(bytes)?, *passes)))
            else {
                return false;
            };
            state.stops_at = None;
            (state.requests_pass, state.answers_pass) = (passes, false);
            // The line of the request. What the client has sent before it, arrives.
            rest = buffer[..at].windows(2).rposition(|end| end == b"\r\n").map_or(0, |end| end + 2);
            true
        });
        if to.write_all(&buffer[..rest]).await.is_err() {
            return;
        }
        let passes = state.wait_for(|state| state.requests_pass).await;
        let Ok((delay, fatal)) = passes.map(|state| (state.delay, state.fatal.clone())) else { return };
        tokio::time::sleep(delay).await;
        if fatal.is_some_and(|bytes| place(&bytes).is_some()) {
            // Only one connection: the first to take it.
            doomed.store(shared.send_if_modified(|state| state.fatal.take().is_some()), Ordering::SeqCst);
        }
        if n == 0 || to.write_all(&buffer[rest..n]).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    doomed: &AtomicBool,
    lost: &AtomicU32,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        let passes = state.wait_for(|state| state.answers_pass).await;
        let Ok(delay) = passes.map(|state| state.delay) else { return };
        tokio::time::sleep(delay).await;
        if doomed.load(Ordering::SeqCst) {
            // Counted before the client can notice.
            lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if n == 0 || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
