//! Publish: the first messages of new rows, on their way to the stream.
//!
//! One task, in the order of the commits. Many messages are unconfirmed at once, and only so many: what is
//! enqueued faster than the stream confirms waits a little, and is then left to the relay. Nothing here is
//! needed for a job to run: a message that is lost is found missing by the relay of any worker.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
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

/// The most messages that wait to be sent and confirmed. Their rows are committed already. A group counts for a
/// quarter of them at most.
const WAITING_MAX: usize = 16_384;
/// The most of them that are sent, and not confirmed yet.
const UNCONFIRMED_MAX: usize = 4_096;
/// How long whoever enqueues waits for room, once: a stream that confirms nothing must not hold up every call.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// For how long nothing is sent after a message was not confirmed in time.
const GIVES_UP_FOR: Duration = Duration::from_secs(1);
/// The most jobs handed to the relay by one statement.
const FAILED_MAX: usize = 500;

/// Tickets of one insert; what stands behind them is given back when the last is confirmed.
struct Group {
    tickets: Vec<Ticket>,
    held: Arc<Held>,
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
    pending: Pending,
}

/// What is under way, by when it began: whoever waits for all of it does not wait for what begins later.
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
    pub(crate) fn start(store: Store, queue: Queue) -> Self {
        let (groups, waiting) = mpsc::unbounded_channel();
        let publisher = Publisher {
            store,
            queue,
            gives_up_until: None,
            failed: Vec::new(),
            of_failed: Vec::new(),
            noted: 0,
        };
        tokio::spawn(publisher.run(waiting));
        Self {
            groups,
            room: Arc::new(Semaphore::new(WAITING_MAX)),
            stalled: Arc::default(),
            pending: Pending::default(),
        }
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
        let held = Arc::new(Held { _room: room, _token: self.pending.token() });
        // The task ends only with the runtime; then the relay publishes.
        drop(self.groups.send(Group { tickets, held }));
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
    /// Until when nothing is sent, because the stream has just confirmed nothing: each message would wait for as
    /// long in vain. What comes meanwhile has failed.
    gives_up_until: Option<Instant>,
    failed: Vec<JobId>,
    /// Their groups': whoever waits for these waits until the relay has them.
    of_failed: Vec<Arc<Held>>,
    noted: usize,
}

impl Publisher {
    async fn run(mut self, mut waiting: mpsc::UnboundedReceiver<Group>) {
        let mut sent: VecDeque<Sent> = VecDeque::new();
        loop {
            tokio::select! { biased;
                answer = first(&mut sent), if !sent.is_empty() => self.note(&mut sent, answer),
                group = waiting.recv(), if sent.len() < UNCONFIRMED_MAX => match group {
                    Some(group) => self.send(group, &mut sent).await,
                    // Nobody enqueues any more; what was sent is still noted.
                    None if sent.is_empty() => break,
                    None => {
                        let answer = first(&mut sent).await;
                        self.note(&mut sent, answer);
                    }
                },
            }
        }
    }

    /// Sends a group, waiting for the oldest confirmations whenever too many are missing.
    async fn send(&mut self, group: Group, sent: &mut VecDeque<Sent>) {
        for ticket in group.tickets {
            while sent.len() >= UNCONFIRMED_MAX {
                let answer = first(sent).await;
                self.note(sent, answer);
            }
            let job = ticket.job;
            let confirmation = if self.gives_up_until.is_some_and(|until| Instant::now() < until) {
                Err(QueueError::Unavailable("the stream confirms nothing".into()))
            } else {
                self.queue.send(ticket).await
            };
            sent.push_back(Sent { job, confirmation, held: group.held.clone() });
        }
    }

    /// Notes the answer about the message that was sent first.
    fn note(&mut self, sent: &mut VecDeque<Sent>, answer: Result<(), QueueError>) {
        let Some(Sent { job, held, confirmation }) = sent.pop_front() else { return };
        let sent_at_all = confirmation.is_ok();
        match answer {
            Ok(()) => {
                metrics::published(1);
                self.gives_up_until = None;
            }
            Err(error) => {
                if sent_at_all {
                    self.gives_up_until = Some(Instant::now() + GIVES_UP_FOR);
                }
                if self.failed.is_empty() {
                    tracing::warn!(%error, "enqueued, but not published; the relay will");
                }
                self.failed.push(job);
                self.of_failed.push(held);
            }
        }
        self.noted += 1;
        if self.failed.is_empty() {
            return;
        }
        if sent.is_empty() || self.failed.len() >= FAILED_MAX || self.noted.is_multiple_of(FAILED_MAX) {
            let (store, failed) = (self.store.clone(), std::mem::take(&mut self.failed));
            let held = std::mem::take(&mut self.of_failed);
            tokio::spawn(async move {
                if let Err(error) = store.unpublished(&failed).await {
                    tracing::warn!(%error, "the relay will find out by itself, which takes longer");
                }
                drop(held);
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
