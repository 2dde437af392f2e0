//! Lanes whose jobs have ended: their slots are free, and other jobs may have them.
//!
//! What is noted here is a hint. If this process dies first, the relay finds the free slots by their jobs.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::job::JobId;

/// The jobs of one queue that have ended, and their lanes.
#[derive(Debug, Default)]
pub(crate) struct EndedOfQueue {
    /// In order, as `tenure.admit` wants them.
    pub(crate) lanes: BTreeSet<Box<str>>,
    pub(crate) jobs: Vec<JobId>,
}

/// The ended jobs that have a lane, until one call takes all of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndedLanes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queues: Mutex<HashMap<String, EndedOfQueue>>,
    noted: Notify,
}

impl EndedLanes {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, EndedOfQueue>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an attempt of a job has ended.
    pub(crate) fn note(&self, queue: &str, lane: &str, job: JobId) {
        let mut queues = self.queues();
        let of_queue = match queues.get_mut(queue) {
            Some(of_queue) => of_queue,
            None => queues.entry(queue.to_owned()).or_default(),
        };
        if !of_queue.lanes.contains(lane) {
            of_queue.lanes.insert(lane.into());
        }
        of_queue.jobs.push(job);
        drop(queues);
        self.0.noted.notify_one();
    }

    /// Waits until jobs have ended, and takes them. Cancel safe: they are taken as this returns.
    pub(crate) async fn take(&self) -> HashMap<String, EndedOfQueue> {
        loop {
            let taken = std::mem::take(&mut *self.queues());
            if !taken.is_empty() {
                return taken;
            }
            self.0.noted.notified().await;
        }
    }
}
