//! Publish: the first messages of new rows, on their way to the stream.
//!
//! ```text
//! insert ──► send ──► enqueue returns once the socket has the message
//!              └────► confirmed, or handed to the relay      a task, in the order of the commits
//! ```
//!
//! A process may end, or be frozen, right after `enqueue` has returned: its messages are with the kernel by then,
//! and need it no longer. What the stream makes of them is noted by a task. While NATS is away the task keeps the
//! messages, and sends them once NATS is back. At most [`WAITING_MAX`] messages wait for their confirmation: a
//! producer that is faster than the stream waits a little, and its jobs are then left to the relay.
//!
//! No job depends on any of this: the relay of any worker finds the rows whose messages were lost.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_process_that_ends_right_after_enqueue_leaves_its_messages_with_the_kernel`
//! - `a_fresh_process_leaves_no_row_to_the_relay`
//! - `what_is_enqueued_before_nats_is_there_is_published_by_its_own_process`

use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    fault,
    job::JobId,
    metrics,
    panics::Panics,
    queue::{NotConfirmed, Queue, QueueError, Ticket, Unconfirmed},
    store::Store,
};

/// The most messages that wait to be sent and confirmed. Their rows are committed already. A group counts for a
/// quarter of them at most.
const WAITING_MAX: usize = 16_384;
/// How long a producer waits for room, once: a stream that confirms nothing must not hold up every call.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// How long a producer waits for the socket to take its messages, once: a server that reads nothing must not hold
/// up every call.
const WRITTEN_WITHIN: Duration = Duration::from_millis(200);
/// For how long nothing is sent after the stream was silent about a message.
const GIVES_UP_FOR: Duration = Duration::from_secs(1);
/// The most jobs handed to the relay by one statement.
const FAILED_MAX: usize = 500;

/// Tickets of one insert, and what is given back when the last of them is confirmed.
struct Group {
    tickets: VecDeque<Ticket>,
    held: Arc<Held>,
    /// The task keeps them for this long while NATS is away.
    until: Instant,
}

/// Room for a group, and the sign that it is under way.
struct Held {
    _room: Room,
    _token: TaskTrackerToken,
}

/// Room for the messages of one insert.
pub(crate) struct Room(#[expect(dead_code, reason = "given back when dropped")] OwnedSemaphorePermit);

/// What a producer hands to the task.
enum Handed {
    /// To be confirmed.
    Sent(Vec<Sent>),
    /// To be sent once there is a connection.
    Unsent(Group),
}

/// First messages on their way. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Publications {
    queue: Queue,
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

/// Until when nothing is sent, because the stream was silent about a message: each of the next ones would wait as
/// long in vain.
#[derive(Clone, Default)]
struct GivesUp(Arc<Mutex<Option<Instant>>>);

impl GivesUp {
    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }
}

/// What is under way, by when it began: a caller that waits for all of it does not wait for what begins later.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<Trackers>>);

#[derive(Default)]
struct Trackers {
    now: TaskTracker,
    /// Closed; somebody waits for them.
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
    /// Starts the task. It ends when the last of these is dropped.
    pub(crate) fn start(store: Store, queue: Queue, publish_within: Duration) -> Self {
        let (handed, waiting) = mpsc::unbounded_channel();
        let gives_up = GivesUp::default();
        let publisher = Publisher {
            store,
            queue: queue.clone(),
            gives_up: gives_up.clone(),
            sent: VecDeque::new(),
            unsent: VecDeque::new(),
            failed: Vec::new(),
            of_failed: Vec::new(),
            noted: 0,
        };
        tokio::spawn(publisher.run_on(waiting));
        Self {
            queue,
            handed,
            room: Arc::new(Semaphore::new(WAITING_MAX)),
            stalled: Arc::default(),
            unread: Arc::default(),
            gives_up,
            pending: Pending::default(),
            publish_within,
        }
    }

    /// Room for the messages of `rows` rows that are about to be inserted. `None`: the relay must publish them.
    pub(crate) async fn room(&self, rows: usize) -> Option<Room> {
        // One caller with very many rows leaves room for others.
        let permits = u32::try_from(rows.min(WAITING_MAX / 4)).unwrap_or(u32::MAX);
        let within = if self.stalled.load(Ordering::Acquire) { Duration::ZERO } else { ROOM_WITHIN };
        let room = timeout(within, self.room.clone().acquire_many_owned(permits)).await;
        if self.stalled.swap(room.is_err(), Ordering::AcqRel) != room.is_err() {
            tracing::warn!(
                stalled = room.is_err(),
                "the stream confirms too slowly; the relay publishes what is enqueued meanwhile"
            );
        }
        room.ok()?.ok().map(Room)
    }

    /// Sends the messages of rows that are committed. [`Publications::written`] says when the socket has them.
    ///
    /// Cancel safe: the task sends what was not sent.
    pub(crate) async fn publish(&self, tickets: Vec<Ticket>, room: Room) {
        let held = Arc::new(Held { _room: room, _token: self.pending.token() });
        let until = Instant::now() + self.publish_within;
        let mut sending = Sending {
            group: Some(Group { tickets: tickets.into(), held, until }),
            sent: Vec::new(),
            handed: &self.handed,
        };
        if !self.queue.is_connected() || self.gives_up.is_on() || self.unread.load(Ordering::Acquire) {
            return;
        }
        // The client takes messages until its buffers are full, and then makes its callers wait.
        if timeout(WRITTEN_WITHIN, sending.send_all(&self.queue)).await.is_err() {
            self.note_unread();
        }
    }

    /// Waits until the kernel has every message that was sent so far: they go out whatever becomes of this process.
    /// At most [`WRITTEN_WITHIN`]; not at all while NATS is away, or reads nothing.
    ///
    /// Cancel safe.
    pub(crate) async fn written(&self) {
        if !self.queue.is_connected() || self.unread.load(Ordering::Acquire) {
            return;
        }
        if timeout(WRITTEN_WITHIN, self.queue.written()).await.is_err() {
            self.note_unread();
        }
    }

    /// The server reads too slowly: until it has read what was sent, nobody waits for it.
    fn note_unread(&self) {
        if self.unread.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::debug!(
            "NATS reads too slowly; enqueueing does not wait for the socket until it has caught up"
        );
        let (queue, unread) = (self.queue.clone(), self.unread.clone());
        tokio::spawn(async move {
            queue.written().await;
            unread.store(false, Ordering::Release);
        });
    }

    /// Has something done that [`Publications::wait`] waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let token = self.pending.token();
        tokio::spawn(async move {
            work.await;
            drop(token);
        });
    }

    /// Waits until everything so far is confirmed, or left to the relay.
    pub(crate) async fn wait(&self) {
        self.pending.wait().await;
    }
}

/// A group that is being sent. Dropped, it hands what was sent, and what was not, to the task.
struct Sending<'p> {
    group: Option<Group>,
    sent: Vec<Sent>,
    handed: &'p mpsc::UnboundedSender<Handed>,
}

impl Sending<'_> {
    async fn send_all(&mut self, queue: &Queue) {
        let Some(group) = &mut self.group else { return };
        self.sent.reserve(group.tickets.len());
        // Cut off in the middle, it is sent once more: the stream knows the message by its id.
        while let Some(ticket) = group.tickets.front() {
            let confirmation = queue.send(ticket).await;
            self.sent.push(Sent { job: ticket.job, confirmation, held: group.held.clone() });
            group.tickets.pop_front();
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        // The task ends only with the runtime; then the relay publishes.
        if !self.sent.is_empty() {
            drop(self.handed.send(Handed::Sent(std::mem::take(&mut self.sent))));
        }
        if let Some(group) = self.group.take().filter(|group| !group.tickets.is_empty()) {
            drop(self.handed.send(Handed::Unsent(group)));
        }
    }
}

/// A message that was sent.
struct Sent {
    job: JobId,
    confirmation: Result<Unconfirmed, QueueError>,
    /// Of its group.
    held: Arc<Held>,
}

struct Publisher {
    store: Store,
    queue: Queue,
    gives_up: GivesUp,
    sent: VecDeque<Sent>,
    /// Waiting for a connection.
    unsent: VecDeque<Group>,
    failed: Vec<JobId>,
    /// Their groups': a caller that waits for these waits until the relay has them.
    of_failed: Vec<Arc<Held>>,
    noted: usize,
}

impl Publisher {
    /// After a panic it goes on with what it has.
    async fn run_on(mut self, mut waiting: mpsc::UnboundedReceiver<Handed>) {
        let mut panics = Panics::new("publisher");
        while let Err(panic) = AssertUnwindSafe(self.run(&mut waiting)).catch_unwind().await {
            let Some(pause) = panics.note(&*panic) else { return };
            sleep(pause).await;
        }
    }

    async fn run(&mut self, waiting: &mut mpsc::UnboundedReceiver<Handed>) {
        let mut is_open = true;
        while is_open || !self.sent.is_empty() || !self.unsent.is_empty() {
            let Self { queue, sent, unsent, .. } = self;
            tokio::select! { biased;
                answer = first(sent), if !sent.is_empty() => self.note(answer),
                handed = waiting.recv(), if is_open => match handed {
                    Some(Handed::Sent(more)) => self.sent.extend(more),
                    Some(Handed::Unsent(group)) => self.unsent.push_back(group),
                    // Nobody enqueues any more; what was handed over is still brought to its end.
                    None => is_open = false,
                },
                () = can_send(queue, unsent) => self.send_first().await,
            }
        }
    }

    /// Sends the group that has waited longest. What has waited too long for a connection has failed, and so has
    /// what comes while the stream is silent.
    async fn send_first(&mut self) {
        let Some(group) = self.unsent.pop_front() else { return };
        let gives_up = self.gives_up.is_on();
        for ticket in group.tickets {
            let confirmation = if gives_up {
                Err(QueueError::Unavailable("the stream confirms nothing".into()))
            } else {
                self.queue.send(&ticket).await
            };
            self.sent.push_back(Sent { job: ticket.job, confirmation, held: group.held.clone() });
        }
    }

    /// Notes the answer about the message that was sent first.
    fn note(&mut self, answer: Result<(), NotConfirmed>) {
        let Some(Sent { job, held, .. }) = self.sent.pop_front() else { return };
        fault::end_by_panic("publisher");
        match answer {
            Ok(()) => {
                metrics::published(1);
                *self.gives_up.until() = None;
            }
            Err(NotConfirmed { error, is_silence }) => {
                if is_silence {
                    *self.gives_up.until() = Some(Instant::now() + GIVES_UP_FOR);
                }
                if self.failed.is_empty() {
                    tracing::warn!(%error, "publish failed; the relay will retry");
                }
                self.failed.push(job);
                self.of_failed.push(held);
            }
        }
        self.noted += 1;
        if self.failed.is_empty() {
            return;
        }
        if self.sent.is_empty() || self.failed.len() >= FAILED_MAX || self.noted.is_multiple_of(FAILED_MAX) {
            let (store, failed) = (self.store.clone(), std::mem::take(&mut self.failed));
            let held = std::mem::take(&mut self.of_failed);
            tokio::spawn(async move {
                // The first dispatch: a relay may have been faster, and published a later one.
                let failed: Vec<_> = failed.into_iter().map(|job| (job, 1)).collect();
                if let Err(error) = store.unpublished(&failed, Duration::ZERO).await {
                    tracing::warn!(%error, "the relay will find these jobs by itself, which takes longer");
                }
                drop(held);
            });
        }
    }
}

/// The answer about the message that was sent first. Cancel safe: it stays in the list.
async fn first(sent: &mut VecDeque<Sent>) -> Result<(), NotConfirmed> {
    match sent.front_mut() {
        Some(Sent { confirmation: Ok(unconfirmed), .. }) => unconfirmed.confirmed().await,
        Some(Sent { confirmation: Err(error), .. }) => {
            Err(NotConfirmed { error: error.clone(), is_silence: false })
        }
        None => std::future::pending().await,
    }
}

/// Completes when the group that has waited longest can be sent, or has waited too long. Cancel safe.
async fn can_send(queue: &Queue, unsent: &VecDeque<Group>) {
    match unsent.front() {
        Some(group) => drop(timeout_at(group.until, queue.connected()).await),
        None => std::future::pending().await,
    }
}
