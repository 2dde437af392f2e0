//! Answers: each ack, nak and term reaches the message that it is for, or none.
//!
//! NATS takes an answer by the message's sequence alone. A stream may go back: to a restored copy, or to what the disk
//! had at a power cut. It then gives the sequences of the lost messages to others, and an answer to a lost message
//! would remove a submission that no worker has claimed. Therefore:
//!
//! - Answers have a connection of their own, the *line*, which the client never makes again. What the client still
//!   holds when the line breaks is gone with it: the client would send it to the server that is there next.
//! - An answer leaves at once if its message was requested while this line was up, and arrived less than [`FRESH_FOR`]
//!   ago. In between no server has restarted that the line leads to, nor one behind it: that takes longer.
//! - A process that was frozen does not know how long a message has lain in its socket: it counts none as fresh that it
//!   reads in the next seconds.
//! - Each other answer waits until the stream has shown, over the line, that its sequence still belongs to its message.
//!
//! An answer that is lost is harmless: NATS redelivers the message, and the claim finds its job as it is.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{
    Client, ConnectOptions, Event, ReconnectToServer, ServerAddr, Subject,
    connection::State,
    jetstream::{self, AckKind, context::GetStreamErrorKind, response::Response},
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use crate::observe::repeats;

/// How long after its arrival a message is answered without a look. A server that lost what it had written has come up
/// again since, and the leader of several is elected by a timer of four seconds or more.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// How often the process notes that it runs, and after how long without a note it counts as frozen. The timer of an
/// election leaves room for both this and [`FRESH_FOR`].
const NOTED_EVERY: Duration = Duration::from_millis(100);
const FROZEN_AFTER: Duration = Duration::from_secs(1);
/// The most answers that wait.
const WAITING_MAX: usize = 65_536;
/// How many looks are on their way at once.
const LOOKS: usize = 32;
/// The pause after a look without an answer, and after a connection that was not made: it doubles up to the longest.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(4);
/// How often the task looks whether the other connection is up: the line is made only then.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);
/// No server listens there: with no other address, the client gives a broken line up.
const NOWHERE: &str = "nats://127.0.0.1:0";
/// What the server answers for a sequence without a message.
const NO_MESSAGE: u64 = 10_037;

/// The connection for answers.
pub(crate) struct Line {
    pub(super) client: Client,
    context: jetstream::Context,
    broken: Arc<(AtomicBool, Notify)>,
    /// The application's client, and the number of its connection: after the next, the line is checked anew.
    beside: Option<(Client, u64)>,
    id: u64,
    made_at: Instant,
    wake: Mutex<Wake>,
}

/// When the process last noted that it runs, and when it noted that it had been frozen.
#[derive(Debug)]
struct Wake {
    noted_at: Instant,
    woke_at: Option<Instant>,
}

impl Wake {
    fn note(&mut self, now: Instant) {
        if now.duration_since(self.noted_at) >= FROZEN_AFTER {
            self.woke_at = Some(now);
        }
        self.noted_at = now;
    }

    /// Whether the process has not been frozen since then, and for this long before it.
    fn was_awake(&self, since: Instant, before: Duration, now: Instant) -> bool {
        now.duration_since(self.noted_at) < FROZEN_AFTER
            && self.woke_at.is_none_or(|woke_at| since >= woke_at + before)
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Line {
    /// Whether this is still the connection that it was.
    pub(super) fn is_up(&self) -> bool {
        !self.broken.0.load(Ordering::Acquire)
            && self.client.connection_state() == State::Connected
            && self.beside.as_ref().is_none_or(|(client, connects)| *connects == connects_of(client))
    }

    /// Whether a message that was requested over it and arrived then may be answered without a look.
    pub(super) fn is_fresh(&self, arrived_at: Instant) -> bool {
        // What is read right after a freeze may have arrived before it.
        self.has_held(arrived_at, FRESH_FOR)
    }

    /// Whether an answer of the stream to what was asked then still holds.
    fn proves(&self, asked_at: Instant) -> bool {
        self.has_held(asked_at, Duration::ZERO)
    }

    fn has_held(&self, since: Instant, before: Duration) -> bool {
        let now = Instant::now();
        let is_recent = now.duration_since(since) < FRESH_FOR && self.is_up();
        is_recent && self.wake().was_awake(since, before, now)
    }

    fn wake(&self) -> MutexGuard<'_, Wake> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the process runs, for as long as the line is up.
    async fn note(line: Weak<Self>) {
        while let Some(line) = line.upgrade().filter(|line| line.is_up()) {
            line.wake().note(Instant::now());
            drop(line);
            sleep(NOTED_EVERY).await;
        }
    }

    /// Names the line and an arrival, for a receipt that leaves the process.
    pub(super) fn mark(&self, arrived_at: Instant) -> String {
        format!("{:x}.{}", self.id, arrived_at.saturating_duration_since(self.made_at).as_millis())
    }

    /// Returns the arrival that a mark names. `None`: it names another line.
    pub(super) fn arrival(&self, mark: &str) -> Option<Instant> {
        let (id, millis) = mark.split_once('.')?;
        let is_this = u64::from_str_radix(id, 16) == Ok(self.id);
        self.made_at.checked_add(Duration::from_millis(millis.parse().ok().filter(|_| is_this)?))
    }

    fn give_up(&self) {
        self.broken.0.store(true, Ordering::Release);
        self.broken.1.notify_waiters();
    }

    /// Waits until it is not up.
    async fn broken(&self) {
        while self.is_up() {
            // It may break before this listens, and the application's client tells of no break.
            drop(timeout(AGAIN_AFTER, self.broken.1.notified()).await);
        }
    }
}

fn connects_of(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

/// How a line is made.
pub(super) struct Dial {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) options: ConnectOptions,
    /// The application's client, if everything else goes over it: it may lead elsewhere.
    pub(super) beside: Option<Client>,
}

impl Dial {
    async fn line(&self) -> Option<Line> {
        let broken = Arc::new((AtomicBool::new(false), Notify::new()));
        let beside = self.beside.as_ref().map(|client| (client.clone(), connects_of(client)));
        let client = connect_once(&self.servers, self.options.clone(), broken.clone()).await?;
        let context = jetstream::new(client.clone());
        let made_at = Instant::now();
        let wake = Mutex::new(Wake { noted_at: made_at, woke_at: None });
        let line = Line { client, context, broken, beside, id: rand::random(), made_at, wake };
        line.is_up().then_some(line)
    }
}

/// Makes a connection that ends for good when it breaks.
async fn connect_once(
    servers: &[ServerAddr],
    options: ConnectOptions,
    broken: Arc<(AtomicBool, Notify)>,
) -> Option<Client> {
    let options = options
        .name("tenure answers")
        .max_reconnects(servers.len())
        .ignore_discovered_servers()
        .reconnect_delay_callback(|_| Duration::ZERO)
        // Unlike the default, which looks for a server itself, this counts its attempts without an ERROR in the log.
        .reconnect_to_server_callback(|servers, _| {
            let nowhere = servers.into_iter().find(|server| server.addr.port() == 0);
            std::future::ready(
                nowhere.map(|server| ReconnectToServer { addr: server.addr, delay: Some(Duration::ZERO) }),
            )
        })
        .event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed => {
                    broken.0.store(true, Ordering::Release);
                    broken.1.notify_waiters();
                }
                Event::ServerError(error) => {
                    if let Some(left_out) = repeats::tell("answers", &error) {
                        tracing::error!(%error, left_out, "NATS reported an error on the connection for answers");
                    }
                }
                _ => {}
            }
            std::future::ready(())
        });
    let client = timeout(CONNECTED_WITHIN, options.connect(servers)).await.ok()?;
    let client = client.inspect_err(|error| tracing::debug!(%error, "no connection for answers yet")).ok()?;
    let nowhere = NOWHERE.parse::<ServerAddr>().ok()?;
    client.set_server_pool(nowhere).await.ok()?;
    // It may have broken, and have been made again, before that.
    (connects_of(&client) == 1).then_some(client)
}

/// An answer to one message.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Subject,
    pub(super) sequence: u64,
    pub(super) published_ns: i128,
    pub(super) kind: AckKind,
}

enum Told {
    Answer(Instant, Answer),
    /// Messages will arrive: make the line.
    Expect,
    Flush(oneshot::Sender<()>),
}

/// Where answers go. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Answers {
    told: mpsc::Sender<Told>,
    line: watch::Receiver<Option<Arc<Line>>>,
    is_expected: Arc<AtomicBool>,
}

impl Answers {
    /// `client` is the one of everything else.
    pub(super) fn start(dial: Dial, client: Client, stream: String, ack_wait: Duration) -> Self {
        let (told, mut tells) = mpsc::channel(WAITING_MAX);
        let (lines, line) = watch::channel(None);
        tokio::spawn(async move {
            // A producer answers nothing, and needs no line.
            if let Some(first) = tells.recv().await {
                let left = VecDeque::from([first]);
                Sender { dial, client, stream, ack_wait, tells, left, lines }.run().await;
            }
        });
        Self { told, line, is_expected: Arc::default() }
    }

    /// Returns a receiver of the line, and asks the task to make one.
    pub(crate) fn line(&self) -> watch::Receiver<Option<Arc<Line>>> {
        if !self.is_expected.swap(true, Ordering::AcqRel) {
            self.told.try_send(Told::Expect).ok();
        }
        self.line.clone()
    }

    /// The line that is there now.
    pub(super) fn line_now(&self) -> Option<Arc<Line>> {
        self.line.borrow().clone()
    }

    /// Sends an answer once the stream has shown that its message is still the same.
    pub(super) fn send(&self, answer: Answer) {
        if self.told.try_send(Told::Answer(Instant::now(), answer)).is_err() {
            tracing::debug!("an answer was not sent: too many wait for NATS");
        }
    }

    /// Gives the line up, since the stream is or may be another one: each answer from before waits for a look.
    pub(crate) fn renew(&self) {
        if let Some(line) = self.line_now() {
            line.give_up();
        }
    }

    /// Waits until the server has every answer that was sent before.
    pub(super) async fn flush(&self) {
        // Without a line, nothing was sent; what waits, waits for the next one.
        if self.line_now().is_none() {
            return;
        }
        let (done, is_done) = oneshot::channel();
        if self.told.send(Told::Flush(done)).await.is_ok() {
            is_done.await.ok();
        }
    }
}

/// What the stream has at a sequence.
#[derive(Debug, PartialEq)]
enum Seen {
    Same,
    None,
    Another,
}

#[derive(Deserialize)]
struct Stored {
    message: Time,
}

#[derive(Deserialize)]
struct Time {
    time: DateTime<Utc>,
}

/// Reads from the stream whether a sequence is still that of this message.
async fn look(line: &Line, stream: &str, answer: &Answer) -> Result<Seen, String> {
    let question = json!({ "seq": answer.sequence });
    let asked = line.context.request(format!("STREAM.MSG.GET.{stream}"), &question).await;
    match asked.map_err(|error| error.to_string())? {
        Response::Ok(Stored { message }) => {
            let stored_ns = message.time.timestamp_nanos_opt().map(i128::from);
            Ok(if stored_ns == Some(answer.published_ns) { Seen::Same } else { Seen::Another })
        }
        Response::Err { error } if error.error_code().0 == NO_MESSAGE => Ok(Seen::None),
        Response::Err { error } => Err(error.to_string()),
    }
}

/// The task that keeps the line, and sends what needs a look.
struct Sender {
    dial: Dial,
    client: Client,
    stream: String,
    ack_wait: Duration,
    tells: mpsc::Receiver<Told>,
    left: VecDeque<Told>,
    lines: watch::Sender<Option<Arc<Line>>>,
}

impl Sender {
    /// Ends when the last [`Answers`] is dropped.
    async fn run(mut self) {
        let mut pause = AGAIN_AFTER;
        while !self.tells.is_closed() {
            if self.client.connection_state() != State::Connected {
                sleep(LOOK_EVERY).await;
                continue;
            }
            let Some(line) = self.dial.line().await.map(Arc::new) else {
                // The other connection is up: this one may be one too many for the account.
                if pause > AGAIN_AFTER
                    && let Some(left_out) = repeats::tell("line", &self.stream)
                {
                    tracing::warn!(
                        left_out,
                        "messages stay unacknowledged, and NATS delivers them again after ack_wait: there is no second \
                         connection to NATS, for acknowledgements; does its account or user limit connections, or does \
                         NATS_URL lead elsewhere than the application's own client?"
                    );
                }
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AFTER_MAX);
                continue;
            };
            if self.leads_elsewhere(&line).await {
                if let Some(left_out) = repeats::tell("elsewhere", &self.stream) {
                    tracing::error!(
                        stream = self.stream,
                        left_out,
                        "messages stay unacknowledged, and NATS delivers them again after ack_wait: \
                         acknowledgements go over a connection of their own, and what NATS_URL leads to does not show \
                         the stream of the application's own client; set NATS_URL, and the login beside it, to that \
                         client's"
                    );
                }
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AFTER_MAX);
                continue;
            }
            pause = AGAIN_AFTER;
            tokio::spawn(Line::note(Arc::downgrade(&line)));
            self.lines.send_replace(Some(line.clone()));
            let goes_on = self.serve(&line).await;
            self.lines.send_replace(None);
            if !goes_on {
                return;
            }
        }
    }

    /// Whether the line does not show the stream that the application's client shows, or that client does not answer.
    async fn leads_elsewhere(&self, line: &Line) -> bool {
        let Some(beside) = &self.dial.beside else { return false };
        let theirs = match jetstream::new(beside.clone()).get_stream(self.stream.as_str()).await {
            Ok(theirs) => theirs,
            // There is no stream yet, and nothing to acknowledge.
            Err(error) => return !matches!(error.kind(), GetStreamErrorKind::JetStream(_)),
        };
        let own = line.context.get_stream(self.stream.as_str()).await;
        !own.is_ok_and(|own| own.cached_info().created == theirs.cached_info().created)
    }

    /// Sends answers over this line, until it breaks or is to be made anew. Returns whether more may come.
    async fn serve(&mut self, line: &Line) -> bool {
        let mut more = Vec::new();
        while line.is_up() {
            if self.left.is_empty() {
                tokio::select! {
                    count = self.tells.recv_many(&mut more, LOOKS) => if count == 0 { return false },
                    () = line.broken() => return true,
                }
                self.left.extend(more.drain(..));
            }
            match self.left.front() {
                Some(Told::Answer(..)) => {
                    if !self.send(line).await {
                        sleep(AGAIN_AFTER).await;
                    }
                }
                _ => {
                    if let Some(Told::Flush(done)) = self.left.pop_front() {
                        line.client.flush().await.ok();
                        // The answer to any request comes after the server has read everything before it.
                        line.context.get_stream(self.stream.as_str()).await.ok();
                        done.send(()).ok();
                    }
                }
            }
        }
        true
    }

    /// Sends the answers that come next and whose messages are the same. `false`: the stream did not show one of them.
    async fn send(&mut self, line: &Line) -> bool {
        let mut answers = Vec::new();
        while answers.len() < LOOKS
            && let Some(Told::Answer(..)) = self.left.front()
            && let Some(Told::Answer(told_at, answer)) = self.left.pop_front()
        {
            // NATS has redelivered the message.
            if told_at.elapsed() < self.ack_wait {
                answers.push((told_at, answer));
            }
        }
        let mut sent = Vec::with_capacity(answers.len());
        for (_, answer) in &answers {
            sent.push(self.send_one(line, answer));
        }
        let sent = join_all(sent).await;
        let unseen = answers.into_iter().zip(sent).filter(|(_, sent)| !sent);
        let unseen: Vec<_> = unseen.map(|((told_at, answer), _)| Told::Answer(told_at, answer)).collect();
        let all = unseen.is_empty();
        for told in unseen.into_iter().rev() {
            self.left.push_front(told);
        }
        all
    }

    /// Sends one answer after a look. `false`: the stream did not show its message, or not in time.
    async fn send_one(&self, line: &Line, answer: &Answer) -> bool {
        let asked_at = Instant::now();
        match look(line, &self.stream, answer).await {
            Ok(Seen::Same) => {
                let kind = Bytes::from(answer.kind);
                line.proves(asked_at) && line.client.publish(answer.reply.clone(), kind).await.is_ok()
            }
            Ok(Seen::None) => true,
            Ok(Seen::Another) => {
                if let Some(left_out) = repeats::tell("went back", &self.stream) {
                    tracing::warn!(
                        stream = self.stream,
                        sequence = answer.sequence,
                        left_out,
                        "the stream went back: it has given the sequence of a message to another one, and has lost \
                         what it stored in between; see docs/disaster-recovery.md"
                    );
                }
                true
            }
            Err(error) => {
                if line.is_up()
                    && let Some(left_out) = repeats::tell("look", &error)
                {
                    tracing::warn!(
                        error,
                        left_out,
                        "messages are answered later: the stream does not show whether it is as it was; NATS has to be \
                         up, and this user needs $JS.API.STREAM.MSG.GET.{}",
                        self.stream
                    );
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_frozen_knows_the_arrival_of_no_message_that_it_reads_then() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut wake = Wake { noted_at: start, woke_at: None };
        wake.note(at(100));
        assert!(wake.was_awake(at(50), FRESH_FOR, at(150)));
        // Frozen from here. The reader may come before the note.
        let read_at = at(9_000);
        assert!(!wake.was_awake(read_at, FRESH_FOR, read_at));
        wake.note(at(9_010));
        assert!(
            !wake.was_awake(read_at, FRESH_FOR, at(9_020))
                && !wake.was_awake(read_at, Duration::ZERO, at(9_020))
        );
        assert!(wake.was_awake(at(9_020), Duration::ZERO, at(9_030)), "a look after it proves");
        for millis in [9_500, 10_200, 11_000] {
            wake.note(at(millis));
        }
        assert!(
            !wake.was_awake(at(10_900), FRESH_FOR, at(11_100))
                && wake.was_awake(at(11_050), FRESH_FOR, at(11_100))
        );
    }
}
