//! Publish: the first messages of new rows, on their way to the stream.
//!
//! One task, in the order of the commits. Many messages are unconfirmed at once, and only so many: what is
//! enqueued faster than the stream confirms waits a little, and is then left to the relay. Nothing here is
//! needed for a job to run: a message that is lost is found missing by the relay of any worker.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    job::JobId,
    metrics,
    queue::{Queue, QueueError, Ticket, Unconfirmed},
    store::Store,
};

/// The most messages that wait to be sent and confirmed. Their rows are committed already.
const WAITING_MAX: usize = 16_384;
/// The most of them that are sent, and not confirmed yet.
const UNCONFIRMED_MAX: usize = 4_096;
/// How long whoever enqueues waits for room, once: a stream that confirms nothing must not hold up every call.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// The most jobs handed to the relay by one statement.
const FAILED_MAX: usize = 500;

/// Tickets of one insert; what stands behind them is given back when the last is confirmed.
struct Group {
    tickets: Vec<Ticket>,
    held: Held,
}

/// Room for a group, and whoever waits for all publications.
struct Held {
    _room: Room,
    _token: TaskTrackerToken,
}

/// Room for so many messages.
pub(crate) struct Room(#[expect(dead_code, reason = "given back when dropped")] OwnedSemaphorePermit);

/// First messages on their way. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Publications {
    groups: mpsc::UnboundedSender<Group>,
    room: Arc<Semaphore>,
    /// The stream confirms so little that nobody waits for room.
    stalled: Arc<AtomicBool>,
    tracker: TaskTracker,
}

impl Publications {
    /// Starts the task. It ends when the last of these is dropped.
    pub(crate) fn start(store: Store, queue: Queue) -> Self {
        let (groups, waiting) = mpsc::unbounded_channel();
        let tracker = TaskTracker::new();
        let publisher = Publisher { store, queue, tracker: tracker.clone(), failed: Vec::new(), noted: 0 };
        tokio::spawn(publisher.run(waiting));
        Self { groups, room: Arc::new(Semaphore::new(WAITING_MAX)), stalled: Arc::default(), tracker }
    }

    /// Room for the messages of so many rows that are about to be inserted. `None`: the relay must publish
    /// them.
    pub(crate) async fn room(&self, rows: usize) -> Option<Room> {
        // One caller with very many rows leaves room for others.
        let permits = u32::try_from(rows.min(WAITING_MAX / 4)).unwrap_or(u32::MAX);
        let within = if self.stalled.load(Ordering::Acquire) { Duration::ZERO } else { ROOM_WITHIN };
        let room = timeout(within, self.room.clone().acquire_many_owned(permits)).await;
        if self.stalled.swap(room.is_err(), Ordering::AcqRel) != room.is_err() {
            tracing::warn!(
                stalled = room.is_err(),
                "so many messages are not confirmed that the relay publishes"
            );
        }
        room.ok()?.ok().map(Room)
    }

    /// Publishes soon, in order. These rows are committed.
    pub(crate) fn publish(&self, tickets: Vec<Ticket>, room: Room) {
        let held = Held { _room: room, _token: self.tracker.token() };
        // The task ends only with the runtime; then the relay publishes.
        drop(self.groups.send(Group { tickets, held }));
    }

    /// Has something done that [`Publications::wait`] waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(work);
    }

    /// Waits until everything so far is confirmed, or left to the relay.
    pub(crate) async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
        self.tracker.reopen();
    }
}

/// A message that was sent.
struct Sent {
    job: JobId,
    confirmation: Result<Unconfirmed, QueueError>,
    /// With the last of its group.
    _held: Option<Held>,
}

struct Publisher {
    store: Store,
    queue: Queue,
    tracker: TaskTracker,
    failed: Vec<JobId>,
    noted: usize,
}

impl Publisher {
    async fn run(mut self, mut waiting: mpsc::UnboundedReceiver<Group>) {
        let mut sent: VecDeque<Sent> = VecDeque::new();
        loop {
            tokio::select! { biased;
                answer = first(&mut sent), if !sent.is_empty() => {
                    // Held until what follows from its answer is under way, or whoever waits for all of them
                    // would not wait for that.
                    let first = sent.pop_front();
                    self.note(first.as_ref().map(|sent| sent.job), answer, sent.is_empty());
                }
                group = waiting.recv(), if sent.len() < UNCONFIRMED_MAX => match group {
                    Some(group) => self.send(group, &mut sent).await,
                    // Nobody enqueues any more; what was sent is still noted.
                    None if sent.is_empty() => break,
                    None => {
                        let answer = first(&mut sent).await;
                        let first = sent.pop_front();
                        self.note(first.as_ref().map(|sent| sent.job), answer, sent.is_empty());
                    }
                },
            }
        }
    }

    /// Sends a group, waiting for the oldest confirmations whenever too many are missing.
    async fn send(&mut self, group: Group, sent: &mut VecDeque<Sent>) {
        let (mut held, last) = (Some(group.held), group.tickets.len());
        for (n, ticket) in group.tickets.into_iter().enumerate() {
            while sent.len() >= UNCONFIRMED_MAX {
                let answer = first(sent).await;
                let first = sent.pop_front();
                self.note(first.as_ref().map(|sent| sent.job), answer, false);
            }
            let job = ticket.job;
            let confirmation = self.queue.send(ticket).await;
            let held = if n + 1 == last { held.take() } else { None };
            sent.push_back(Sent { job, confirmation, _held: held });
        }
    }

    fn note(&mut self, job: Option<JobId>, answer: Result<(), QueueError>, is_last: bool) {
        match answer {
            Ok(()) => metrics::published(1),
            Err(error) => {
                if self.failed.is_empty() {
                    tracing::warn!(%error, "enqueued, but not published; the relay will");
                }
                self.failed.extend(job);
            }
        }
        self.noted += 1;
        let is_time = is_last || self.failed.len() >= FAILED_MAX || self.noted.is_multiple_of(FAILED_MAX);
        if !self.failed.is_empty() && is_time {
            let (store, failed) = (self.store.clone(), std::mem::take(&mut self.failed));
            self.tracker.spawn(async move {
                if let Err(error) = store.unpublished(&failed).await {
                    tracing::warn!(%error, "the relay will find out by itself, which takes longer");
                }
            });
        }
    }
}

/// The answer about the message that was sent first. Cancel safe: it stays in the list.
async fn first(sent: &mut VecDeque<Sent>) -> Result<(), QueueError> {
    match sent.front_mut() {
        Some(Sent { confirmation: Ok(unconfirmed), .. }) => unconfirmed.confirmed().await,
        Some(Sent { confirmation: Err(error), .. }) => Err(error.clone()),
        None => std::future::pending().await,
    }
}
