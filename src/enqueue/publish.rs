//! Publish: the first messages of new rows, on their way to the stream.
//!
//! ```text
//! insert ──► send ──► enqueue returns once the socket has the message
//!              └────► confirmed, or handed to the relay      a task, in the order of the commits
//! ```
//!
//! A process may end or freeze right after `enqueue` has returned: by then the kernel has its messages, and sends
//! them without it. A task notes the stream's confirmations. While NATS is away the task keeps the messages, and
//! sends them once NATS is back. At most [`WAITING_MAX`] messages wait for their confirmation: a producer that is
//! faster than the stream waits a little, and then leaves its jobs to the relay.
//!
//! No job depends on any of this: the relay of any worker finds the rows whose messages were lost.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_process_that_ends_right_after_enqueue_leaves_its_messages_with_the_kernel`
//! - `a_fresh_process_leaves_no_row_to_the_relay`
//! - `jobs_enqueued_before_nats_is_there_are_published_by_their_own_process`

mod publisher;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
    vec,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use self::publisher::Publisher;
use crate::{
    job::JobId,
    nats::{Confirmation, Confirmations, Nats, NatsError, Prepared, ReplyTo, Ticket, WRITTEN_WITHIN},
    observe::{panics, repeats::Repeats},
    store::Store,
};

/// The most messages that wait to be sent and confirmed. Their rows are committed already. A group takes at
/// most a quarter of this room.
const WAITING_MAX: usize = 16_384;
/// How long a producer waits for room, once: a stream that confirms nothing must not hold up every call.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// How long sending pauses after the stream was silent about a message.
const GIVES_UP_FOR: Duration = Duration::from_secs(1);

/// Room for a group, and the sign that it is under way.
struct InFlight {
    _room: Room,
    _token: TaskTrackerToken,
}

/// Room for the messages of one insert.
pub(crate) struct Room(#[expect(dead_code, reason = "dropping it frees the room")] OwnedSemaphorePermit);

/// A producer's message to the task.
enum Handed {
    /// The unsent messages of a group: the task sends them once there is a connection.
    Unsent(Unsent),
    /// A message of a group that was not sent, and will not be.
    Failed(Confirmation),
    /// A group has come after a time without any: the task must watch deadlines again.
    First,
}

/// The messages of one insert.
struct Group {
    /// The jobs of each message, by place; `None` once the message is confirmed or has failed.
    jobs: Vec<Option<Vec<JobId>>>,
    left: usize,
    confirmed: usize,
    failed: Vec<JobId>,
    /// Why the last of these failed.
    error: Option<NatsError>,
    held: InFlight,
    /// A sent message that is not confirmed by then has failed.
    until: Instant,
}

/// Groups under way. A producer adds its group before it sends it, and wakes only the client's task, by sending: the
/// publisher wakes up when the confirmations come. Waking both tasks at once takes another thread, and costs more than
/// the message.
#[derive(Clone, Default)]
struct Groups(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    next: u64,
    groups: HashMap<u64, Group>,
    /// When each group was to be confirmed when it was added. A group that was sent later has more time.
    deadlines: VecDeque<(Instant, u64)>,
    /// The task watches deadlines.
    is_watched: bool,
    /// The task has ended: nothing is confirmed any more.
    is_over: bool,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a group. Returns its number, and whether to wake the task. `None`: the task has ended.
    fn add(&self, group: Group) -> Option<(u64, bool)> {
        let mut under_way = self.lock();
        if under_way.is_over {
            return None;
        }
        let number = under_way.next;
        under_way.next += 1;
        under_way.deadlines.push_back((group.until, number));
        under_way.groups.insert(number, group);
        Some((number, !std::mem::replace(&mut under_way.is_watched, true)))
    }
}

/// Messages of a group that wait for a connection.
struct Unsent {
    group: u64,
    /// The place of the first message.
    place: usize,
    messages: vec::IntoIter<Prepared>,
    /// How long the task keeps them while NATS is away.
    until: Instant,
}

/// First messages on their way. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Publications {
    nats: Nats,
    reply_to: ReplyTo,
    groups: Groups,
    handed: mpsc::UnboundedSender<Handed>,
    room: Arc<Semaphore>,
    /// The stream confirms so little that producers do not wait for room.
    stalled: Arc<AtomicBool>,
    /// The server reads so little that producers do not wait for the socket.
    unread: Arc<AtomicBool>,
    gives_up: GivesUp,
    pending: Pending,
    publish_within: Duration,
}

/// Until when sending pauses because the stream was silent about a message: each of the next ones would wait as long
/// in vain.
#[derive(Clone, Default)]
struct GivesUp(Arc<Mutex<Option<Instant>>>);

impl GivesUp {
    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    fn begin(&self) {
        *self.until() = Some(Instant::now() + GIVES_UP_FOR);
    }

    fn end(&self) {
        *self.until() = None;
    }
}

/// The work under way, by when it began: a caller that waits for all of it does not wait for work that begins later.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<Trackers>>);

#[derive(Default)]
struct Trackers {
    now: TaskTracker,
    /// Closed; callers wait for them.
    before: Vec<TaskTracker>,
}

impl Pending {
    fn trackers(&self) -> MutexGuard<'_, Trackers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self) -> TaskTrackerToken {
        self.trackers().now.token()
    }

    async fn wait(&self) {
        let all = {
            let mut trackers = self.trackers();
            let now = std::mem::take(&mut trackers.now);
            now.close();
            trackers.before.retain(|tracker| !tracker.is_empty());
            trackers.before.push(now);
            trackers.before.clone()
        };
        for tracker in all {
            tracker.wait().await;
        }
    }
}

impl Publications {
    /// Starts the task. It ends when the last handle is dropped.
    ///
    /// # Errors
    ///
    /// The client is closed.
    pub(crate) async fn start(store: Store, nats: Nats, publish_within: Duration) -> Result<Self, NatsError> {
        let (publications, publisher, waiting, confirmations) =
            Self::with_publisher(store, nats, publish_within).await?;
        tokio::spawn(publisher.run_on(waiting, confirmations));
        Ok(publications)
    }

    /// Builds the publisher that the task runs, and the channels that it reads.
    async fn with_publisher(
        store: Store,
        nats: Nats,
        publish_within: Duration,
    ) -> Result<(Self, Publisher, mpsc::UnboundedReceiver<Handed>, Confirmations), NatsError> {
        let (handed, waiting) = mpsc::unbounded_channel();
        let gives_up = GivesUp::default();
        let confirmations = nats.confirmations().await?;
        let reply_to = confirmations.reply_to();
        let groups = Groups::default();
        let publisher = Publisher {
            store,
            nats: nats.clone(),
            reply_to: reply_to.clone(),
            publish_within,
            gives_up: gives_up.clone(),
            groups: groups.clone(),
            unsent: VecDeque::new(),
            failed: Vec::new(),
            of_failed: Vec::new(),
            failed_at: None,
            repeats: Repeats::default(),
            heard_at: None,
        };
        let publications = Self {
            nats,
            reply_to,
            groups,
            handed,
            room: Arc::new(Semaphore::new(WAITING_MAX)),
            stalled: Arc::default(),
            unread: Arc::default(),
            gives_up,
            pending: Pending::default(),
            publish_within,
        };
        Ok((publications, publisher, waiting, confirmations))
    }

    /// Lets jobs share messages: see `nats::together`.
    pub(crate) async fn share_messages(&self, store: &Store, tickets: &mut [Ticket]) {
        self.nats.share_messages(store, tickets).await;
    }

    /// Makes the messages of tickets.
    pub(crate) fn prepare(&self, tickets: &[Ticket]) -> Vec<Prepared> {
        self.nats.prepare(tickets)
    }

    /// Takes room for the messages of `rows` rows that are about to be inserted. `None`: the relay must publish them.
    pub(crate) async fn room(&self, rows: usize) -> Option<Room> {
        // One caller with very many rows leaves room for others.
        let permits = u32::try_from(rows.min(WAITING_MAX / 4)).unwrap_or(u32::MAX);
        // The task has ended: nothing would be confirmed.
        if self.handed.is_closed() {
            return None;
        }
        let within = if self.stalled.load(Ordering::Acquire) { Duration::ZERO } else { ROOM_WITHIN };
        let room = timeout(within, self.room.clone().acquire_many_owned(permits)).await;
        if self.stalled.swap(room.is_err(), Ordering::AcqRel) != room.is_err() {
            if room.is_err() {
                tracing::warn!("NATS confirms too slowly; until it keeps up, the relay publishes new jobs");
            } else {
                tracing::info!("NATS keeps up again; this process publishes its new jobs itself");
            }
        }
        room.ok()?.ok().map(Room)
    }

    /// Sends the messages of rows that are committed. [`Publications::written`] says when the kernel has them.
    ///
    /// Cancel safe: the task sends the unsent messages.
    pub(crate) async fn publish(&self, messages: Vec<Prepared>, room: Room) {
        if messages.is_empty() {
            return;
        }
        let until = Instant::now() + self.publish_within;
        let held = InFlight { _room: room, _token: self.pending.token() };
        let jobs = messages.iter().map(|message| Some(message.jobs.clone())).collect();
        let group =
            Group { left: messages.len(), jobs, confirmed: 0, failed: Vec::new(), error: None, held, until };
        let Some((group, is_first)) = self.groups.add(group) else { return };
        if is_first {
            drop(self.handed.send(Handed::First));
        }
        let unsent = Unsent { group, place: 0, messages: messages.into_iter(), until };
        let mut sending = Sending { unsent: Some(unsent), in_hand: None, handed: &self.handed };
        if !self.nats.is_connected() || self.gives_up.is_on() || self.unread.load(Ordering::Acquire) {
            return;
        }
        // The client takes messages until its buffers are full, and then makes its callers wait.
        if timeout(WRITTEN_WITHIN, sending.send_all(&self.nats, &self.reply_to)).await.is_err() {
            self.note_unread();
        }
        self.nats.note_sent();
    }

    /// Waits until the kernel has every message that was sent so far: it sends them even if this process dies. Does not
    /// wait for long, and not at all while NATS is away or reads nothing.
    ///
    /// Cancel safe.
    pub(crate) async fn written(&self) {
        if !self.nats.is_connected() || self.unread.load(Ordering::Acquire) {
            return;
        }
        if !self.nats.written().await {
            self.note_unread();
        }
    }

    /// Notes that the server reads too slowly: until it has caught up, no producer waits for it.
    fn note_unread(&self) {
        if self.unread.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::debug!(
            "NATS reads too slowly; enqueueing does not wait for the socket until it has caught up"
        );
        let (nats, unread) = (self.nats.clone(), Arc::downgrade(&self.unread));
        panics::spawn_logged("unread", async move {
            while !nats.written().await && unread.strong_count() > 0 {}
            if let Some(unread) = unread.upgrade() {
                unread.store(false, Ordering::Release);
            }
        });
    }

    /// Spawns work that [`Publications::wait`] waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let token = self.pending.token();
        panics::spawn_logged("publications", async move {
            work.await;
            drop(token);
        });
    }

    /// Waits until every message so far is confirmed, or left to the relay.
    pub(crate) async fn wait(&self) {
        self.pending.wait().await;
    }
}

/// A group that is being sent. Dropping it hands the unsent messages to the task.
struct Sending<'p> {
    unsent: Option<Unsent>,
    /// Group and place of the message that the client is taking.
    in_hand: Option<(u64, usize)>,
    handed: &'p mpsc::UnboundedSender<Handed>,
}

impl Sending<'_> {
    async fn send_all(&mut self, nats: &Nats, reply_to: &ReplyTo) {
        let Some(unsent) = &mut self.unsent else { return };
        for message in unsent.messages.by_ref() {
            let (group, place) = (unsent.group, unsent.place);
            unsent.place += 1;
            self.in_hand = Some((group, place));
            let said = nats.send(message, reply_to, group, place).await;
            self.in_hand = None;
            if said.is_err() {
                drop(self.handed.send(Handed::Failed(Confirmation { group, place, said })));
            }
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Some((group, place)) = self.in_hand {
            // It may have been sent: the relay's message is another dispatch.
            let said = Err(NatsError::Unavailable("the client takes no messages".into()));
            drop(self.handed.send(Handed::Failed(Confirmation { group, place, said })));
        }
        if let Some(unsent) = self.unsent.take().filter(|unsent| unsent.messages.len() > 0) {
            drop(self.handed.send(Handed::Unsent(unsent)));
        }
    }
}

#[cfg(test)]
mod tests;
