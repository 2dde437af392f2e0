//! Queues: which queues a worker serves, and how many of their jobs it runs at once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use super::error::WorkerError;
use crate::{job::check_queue, nats::slots::Slots, observe::metrics::QueueMeasures};

/// The slots of a queue for which the builder names no number.
const SLOTS_DEFAULT: u32 = 10;
/// The most slots of one queue; the database limits the useful number to far less.
pub(super) const SLOTS_MAX: u32 = 100_000;

/// How many slots a worker needs for each job of a message. A worker hands a job back if it has no slot for it, and the
/// relay publishes that job alone.
const SLOTS_PER_JOB: usize = 64;
/// The most jobs of one message, however many slots a worker has.
const JOBS_PER_MESSAGE: usize = 16;

/// How long each job of a queue has a message of its own after a part of a message was handed back.
const ALONE_FOR: Duration = Duration::from_mins(10);

/// How many jobs one message may name for a queue with these slots.
fn jobs_per_message(slots: usize) -> i32 {
    i32::try_from((slots / SLOTS_PER_JOB).clamp(1, JOBS_PER_MESSAGE)).unwrap_or(1)
}

/// The queues that a builder names.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The queues that the handlers' types name. `None`: a handler without a type may be for jobs of any queue.
    typed: Option<BTreeSet<&'static str>>,
    /// The jobs of the largest batch of each queue whose jobs run in batches.
    batches: BTreeMap<&'static str, u32>,
    /// Each queue with its slots, if the builder names them and the queue does not share them.
    queues: BTreeMap<String, Option<u32>>,
    shared: Vec<(u32, Vec<(String, u32)>)>,
    /// If not empty, the worker serves these and none of the others.
    only: BTreeMap<String, Option<u32>>,
}

/// Checks the name of a queue and the number of its slots.
fn check(queue: &str, slots: u32) -> Result<(), WorkerError> {
    check_queue(queue)?;
    if slots == 0 || slots > SLOTS_MAX {
        return Err(WorkerError::Slots { queue: queue.into(), slots });
    }
    Ok(())
}

impl Wanted {
    pub(super) fn new() -> Self {
        let (queues, shared, only) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { typed: Some(BTreeSet::new()), batches: BTreeMap::new(), queues, shared, only }
    }

    /// Notes that the type of a handler names this queue.
    pub(super) fn typed(&mut self, queue: &'static str) {
        if let Some(typed) = &mut self.typed {
            typed.insert(queue);
        }
        self.queues.entry(queue.into()).or_default();
    }

    /// Notes that a handler takes up to `jobs` jobs of this queue in one call.
    pub(super) fn batches(&mut self, queue: &'static str, jobs: usize) {
        let of = self.batches.entry(queue).or_default();
        *of = (*of).max(u32::try_from(jobs).unwrap_or(u32::MAX));
    }

    /// Notes that a handler may be for jobs of any queue.
    pub(super) fn untyped(&mut self) {
        self.typed = None;
    }

    pub(super) fn alone(&mut self, queue: &str, slots: u32) -> Result<(), WorkerError> {
        check(queue, slots)?;
        self.shared.retain(|(_, shared)| !shared.iter().any(|(name, _)| name == queue));
        self.queues.insert(queue.into(), Some(slots));
        Ok(())
    }

    pub(super) fn together(&mut self, slots: u32, queues: Vec<(String, u32)>) -> Result<(), WorkerError> {
        let names: Vec<_> = queues.iter().map(|(name, _)| name.clone()).collect();
        let wrong = |reason| Err(WorkerError::Shared { queues: names.clone(), slots, reason });
        if (slots as usize) < queues.len() || slots > SLOTS_MAX {
            return wrong("give each queue at least one slot, and all at most 100000");
        }
        if queues.iter().any(|(_, weight)| *weight == 0) {
            return wrong("a weight must be at least 1; serve a queue of weight 0 by another worker");
        }
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return wrong("a queue is named twice");
        }
        for name in &names {
            check_queue(name)?;
        }
        self.shared.retain(|(_, others)| !others.iter().any(|(name, _)| names.contains(name)));
        self.queues.extend(names.into_iter().map(|name| (name, None)));
        self.shared.push((slots, queues));
        Ok(())
    }

    pub(super) fn only(&mut self, queue: &str, slots: u32) -> Result<(), WorkerError> {
        check(queue, slots)?;
        self.only.insert(queue.into(), Some(slots));
        Ok(())
    }

    /// Leaves out all other queues.
    pub(super) fn keep(&mut self, keep: impl Fn(&str) -> bool) {
        // The queues of a worker of several cells need not be those that the handlers' types name.
        self.typed = None;
        self.queues.retain(|name, _| keep(name));
        self.only.retain(|name, _| keep(name));
        for (_, queues) in &mut self.shared {
            queues.retain(|(name, _)| keep(name));
        }
        self.shared.retain(|(_, queues)| !queues.is_empty());
    }

    /// Returns the names of the queues that are served.
    pub(super) fn names(&self) -> Vec<String> {
        let served = if self.only.is_empty() { &self.queues } else { &self.only };
        served.keys().cloned().collect()
    }

    /// Warns of a queue whose name may be mistyped.
    fn warn(&self) {
        let Some(typed) = &self.typed else { return };
        for queue in self.queues.keys().filter(|queue| !typed.contains(queue.as_str())) {
            tracing::warn!(
                queue,
                named = ?typed,
                "no handler's type names this queue: only jobs that were enqueued into it by its name run here; \
                 if that is a mistake, correct the name given to `concurrency` or `shared`"
            );
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    /// Makes the slots of each queue, and its measures in the recorder that is installed by now.
    pub(super) fn serve(mut self) -> Queues {
        if !self.only.is_empty() {
            // No warning about these queues: jobs may be enqueued into them by name, whichever queue their type names.
            self.typed = None;
            self.shared.clear();
            let named = std::mem::replace(&mut self.queues, std::mem::take(&mut self.only));
            let left_out: Vec<_> = named.into_keys().filter(|name| !self.queues.contains_key(name)).collect();
            if !left_out.is_empty() {
                tracing::info!(
                    ?left_out,
                    "only_queue was called: the worker does not serve its other queues"
                );
            }
        }
        self.warn();
        let shares =
            |name: &str| self.shared.iter().any(|(_, queues)| queues.iter().any(|(of, _)| of == name));
        let alone = self.queues.iter().filter(|(name, _)| !shares(name));
        let usual =
            |name: &str| self.batches.get(name).map_or(SLOTS_DEFAULT, |jobs| SLOTS_DEFAULT.max(*jobs));
        let alone =
            alone.map(|(name, slots)| (slots.unwrap_or_else(|| usual(name)), vec![(name.clone(), 1)]));
        let (mut all, mut total) = (HashMap::new(), 0);
        for (slots, queues) in self.shared.iter().cloned().chain(alone) {
            total += slots;
            for (queue, jobs) in
                queues.iter().filter_map(|(name, _)| self.batches.get_key_value(name.as_str()))
            {
                if *jobs > slots {
                    tracing::warn!(
                        queue,
                        jobs,
                        slots,
                        "a batch takes a slot for each of its jobs, and none will be full; raise the queue's slots, or \
                         lower `Batch::up_to`"
                    );
                }
            }
            all.extend(Slots::shared(slots as usize, &queues));
        }
        let measures = all.keys().map(|name| (name.clone(), QueueMeasures::served(name))).collect();
        Queues { slots: Arc::new(all), total, measures }
    }
}

/// The queues that a worker serves.
pub(super) struct Queues {
    /// The slots of each queue.
    pub(super) slots: Arc<HashMap<String, Slots>>,
    /// The most jobs of all queues that run at once.
    pub(super) total: u32,
    pub(super) measures: HashMap<String, QueueMeasures>,
}

impl Queues {
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.slots.keys()
    }

    /// The names, and for each of them how many jobs one message may name. One, where a part of a message was handed
    /// back lately: the jobs take long, and the rest of such a message goes to the end of the queue.
    pub(super) fn with_jobs_per_message(&self) -> (Vec<String>, Vec<i32>) {
        let jobs = |slots: &Slots| {
            if slots.has_handed_back(ALONE_FOR) { 1 } else { jobs_per_message(slots.part()) }
        };
        self.slots.iter().map(|(name, slots)| (name.clone(), jobs(slots))).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_several_jobs_only_where_a_worker_has_many_slots() {
        for (slots, jobs) in [(1, 1), (10, 1), (127, 1), (128, 2), (1_000, 15), (1_024, 16), (100_000, 16)] {
            assert_eq!(jobs_per_message(slots), jobs, "{slots} slots");
        }
    }
}
