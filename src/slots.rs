//! Slots: how many more jobs a worker may ask for, and of which queue.
//!
//! A *group* has so many slots, for one queue or for several. Several share by weight: where all have jobs waiting,
//! each gets its part; where only one has, it gets them all but one for each of the others, which is theirs for as
//! long as they run nothing. So an urgent queue of great weight is served first, and none starves.
//!
//! Whether a queue has jobs waiting is what the server said with its last message, or by sending none.
//!
//! Invariants, each held by the test of that name:
//!
//! - `every_queue_of_a_group_can_run_one_job_whatever_the_others_want`
//! - `no_slot_is_idle_while_a_queue_of_its_group_has_jobs_waiting`

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::{Notify, futures::Notified};

/// What a group knows of one of its queues.
#[derive(Debug)]
struct Queue {
    weight: u32,
    /// Slots in which its jobs run, or for which it has asked for jobs.
    taken: usize,
    /// Whether more of its jobs are believed to wait.
    has_more: bool,
    is_paused: bool,
    /// How many more of its jobs may start in the whole fleet, as far as known; `None`: it has no limit.
    room: Option<usize>,
}

impl Queue {
    fn may_start(&self) -> bool {
        !self.is_paused && self.room != Some(0)
    }

    fn wants_more(&self) -> bool {
        self.has_more && self.may_start()
    }
}

#[derive(Debug)]
struct Group {
    slots: usize,
    queues: Mutex<Vec<Queue>>,
    /// A slot is free, or what is known of a queue has changed.
    changed: Notify,
}

impl Group {
    fn queues(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many slots the queue of this place may take now, of so many. `asked` of those it has are for jobs that it
/// has asked for, and not got.
fn available(slots: usize, queues: &[Queue], of: usize, asked: usize) -> usize {
    let free = slots.saturating_sub(queues.iter().map(|queue| queue.taken).sum());
    let queue = &queues[of];
    let room = if queue.is_paused { 0 } else { queue.room.unwrap_or(slots).saturating_sub(asked) };
    if queues.len() == 1 {
        return free.min(room);
    }
    // One standing request finds out whether there are jobs.
    let wanted = if queue.has_more { slots } else { 1_usize.saturating_sub(asked) };
    let sharing = |at: usize| at == of || queues[at].wants_more();
    let to_share: usize = slots.saturating_sub(
        queues.iter().enumerate().filter(|(at, _)| !sharing(*at)).map(|(_, other)| other.taken.max(1)).sum(),
    );
    let weights: u64 = queues
        .iter()
        .enumerate()
        .filter(|(at, _)| sharing(*at))
        .map(|(_, other)| u64::from(other.weight))
        .sum();
    let share = |other: &Queue| {
        let share = to_share as u64 * u64::from(other.weight) / weights.max(1);
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    };
    let kept: usize = queues
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != of)
        .map(|(at, other)| if sharing(at) { share(other) } else { 1 }.saturating_sub(other.taken))
        .sum();
    // Its own first slot is nobody else's.
    let least = usize::from(queue.taken == 0).min(free);
    free.saturating_sub(kept).max(least).min(room).min(wanted)
}

/// The slots of one queue. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    group: Arc<Group>,
    at: usize,
}

/// One slot, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    of: Slots,
    pub(crate) taken_at: Instant,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.group.queues()[self.of.at].taken -= 1;
        self.of.group.changed.notify_waiters();
    }
}

impl Slots {
    /// So many slots for these queues, each with its weight. There are at least as many slots as queues.
    pub(crate) fn shared(slots: usize, queues: &[(String, u32)]) -> HashMap<String, Self> {
        let new = |weight| Queue { weight, taken: 0, has_more: false, is_paused: false, room: None };
        let group = Arc::new(Group {
            slots,
            queues: Mutex::new(queues.iter().map(|(_, weight)| new(*weight)).collect()),
            changed: Notify::new(),
        });
        let of = |(at, (name, _)): (usize, &(String, u32))| (name.clone(), Self { group: group.clone(), at });
        queues.iter().enumerate().map(of).collect()
    }

    /// How many its group has.
    pub(crate) fn slots(&self) -> usize {
        self.group.slots
    }

    /// How many may be taken now. `asked` of the queue's are for jobs that it has asked for, and not got.
    pub(crate) fn available(&self, asked: usize) -> usize {
        available(self.group.slots, &self.group.queues(), self.at, asked)
    }

    /// Takes so many, or as many as there are.
    pub(crate) fn take(&self, n: usize, asked: usize) -> Vec<Slot> {
        let mut queues = self.group.queues();
        let n = n.min(available(self.group.slots, &queues, self.at, asked));
        queues[self.at].taken += n;
        let taken_at = Instant::now();
        (0..n).map(|_| Slot { of: self.clone(), taken_at }).collect()
    }

    /// Takes one for a message that is here already, if any is free at all.
    pub(crate) fn take_for_message(&self) -> Option<Slot> {
        let mut queues = self.group.queues();
        let taken: usize = queues.iter().map(|queue| queue.taken).sum();
        (taken < self.group.slots).then(|| {
            queues[self.at].taken += 1;
            Slot { of: self.clone(), taken_at: Instant::now() }
        })
    }

    /// Completes when slots may have become available. Enable it before asking whether they have.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.group.changed.notified()
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        {
            let queue = &mut self.group.queues()[self.at];
            change(queue);
        }
        self.group.changed.notify_waiters();
    }

    /// What the server has said: whether more of the queue's jobs wait.
    pub(crate) fn has_more(&self, has_more: bool) {
        let mut queues = self.group.queues();
        let others = queues.len() > 1;
        let queue = &mut queues[self.at];
        if others && queue.has_more != has_more {
            queue.has_more = has_more;
            drop(queues);
            self.group.changed.notify_waiters();
        }
    }

    /// What an operator has said of the queue, and how many more of its jobs may start, if they are limited.
    pub(crate) fn settings(&self, is_paused: bool, room: Option<usize>) {
        self.change(|queue| (queue.is_paused, queue.room) = (is_paused, room));
    }

    /// A claim has found out how many more may start.
    pub(crate) fn has_room(&self, room: usize) {
        self.change(|queue| queue.room = Some(room));
    }

    /// A claim has found out that the queue is paused.
    pub(crate) fn pause(&self) {
        self.change(|queue| queue.is_paused = true);
    }

    /// A job of the queue's has ended here: another may start.
    pub(crate) fn ended(&self) {
        self.change(|queue| queue.room = queue.room.map(|room| room + 1));
    }

    /// Whether it shares its slots with others.
    pub(crate) fn is_shared(&self) -> bool {
        self.group.queues().len() > 1
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.group.queues()[self.at].room.is_some()
    }

    /// The same for all queues that share their slots, and for no other.
    pub(crate) fn group(&self) -> usize {
        Arc::as_ptr(&self.group).addr()
    }

    /// Whether nothing may start: the queue is paused, or runs as many jobs as it may.
    pub(crate) fn is_held(&self) -> bool {
        let queue = &self.group.queues()[self.at];
        queue.is_paused || queue.room == Some(0)
    }

    /// How many jobs of the queue could start, if so many run of all that share its slots. Not what is asked for.
    pub(crate) fn free(&self, running: usize) -> usize {
        let free = self.group.slots.saturating_sub(running);
        let queues = self.group.queues();
        let queue = &queues[self.at];
        if queue.is_paused { 0 } else { free.min(queue.room.unwrap_or(free)) }
    }

    /// How many of the queue's are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.group.queues()[self.at].taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(slots: usize, weights: &[u32]) -> Vec<Slots> {
        let names: Vec<_> = weights.iter().enumerate().map(|(n, weight)| (n.to_string(), *weight)).collect();
        let mut all = Slots::shared(slots, &names);
        (0..weights.len()).filter_map(|n| all.remove(&n.to_string())).collect()
    }

    #[test]
    fn one_queue_has_all_its_slots() {
        let all = group(3, &[1]);
        let two = all[0].take(2, 0);
        assert_eq!((two.len(), all[0].available(2), all[0].take(9, 2).len()), (2, 1, 1));
        drop(two);
        assert_eq!(all[0].available(0), 3);
    }

    #[test]
    fn a_paused_queue_and_one_whose_limit_is_reached_ask_for_nothing() {
        let all = group(3, &[1]);
        all[0].settings(true, None);
        assert_eq!(all[0].available(0), 0);
        all[0].settings(false, Some(2));
        assert_eq!((all[0].available(0), all[0].available(1)), (2, 1));
        all[0].has_room(0);
        assert_eq!(all[0].available(0), 0);
        all[0].ended();
        assert_eq!(all[0].available(0), 1);
    }

    #[test]
    fn where_all_have_jobs_waiting_each_gets_its_part() {
        let all = group(10, &[4, 1]);
        all[1].has_more(true);
        let mut bulk = all[1].take(10, 0);
        assert_eq!(bulk.len(), 9, "one is left for the urgent queue");
        let first = all[0].take(10, 0);
        assert_eq!(first.len(), 1);
        all[0].has_more(true);
        let mut urgent = Vec::new();
        while bulk.len() > 2 {
            // A slot at a time, and the greedy one asks first.
            bulk.pop();
            assert_eq!(all[1].take(1, 0).len(), 0, "{} of the bulk run", bulk.len());
            urgent.extend(all[0].take(1, 0));
        }
        assert_eq!((first.len() + urgent.len(), bulk.len()), (8, 2));
        // And back, when the urgent queue is empty.
        all[0].has_more(false);
        drop(urgent);
        assert_eq!(all[1].available(0), 7);
    }

    #[test]
    fn a_queue_that_may_start_nothing_keeps_one_slot_from_the_others_and_no_more() {
        for (what, is_paused, room) in [("paused", true, None), ("at its limit", false, Some(0))] {
            let all = group(10, &[8, 1]);
            for queue in &all {
                queue.has_more(true);
            }
            assert_eq!(all[1].available(0), 2, "the other has eight ninths");
            all[0].settings(is_paused, room);
            assert_eq!(all[1].available(0), 9, "the other is {what}");
        }
    }

    proptest! {
        #[test]
        fn every_queue_of_a_group_can_run_one_job_whatever_the_others_want(
            weights in prop::collection::vec(1..100_u32, 2..5),
            more in 0..20_usize,
            order in prop::collection::vec((0..5_usize, any::<bool>(), 1..30_usize), 0..40),
        ) {
            let all = group(weights.len() + more, &weights);
            let mut taken: Vec<Vec<Slot>> = all.iter().map(|_| Vec::new()).collect();
            for (at, has_more, n) in order {
                let at = at % all.len();
                all[at].has_more(has_more);
                taken[at].extend(all[at].take(n, 0));
                for (other, slots) in all.iter().enumerate() {
                    prop_assert!(!taken[other].is_empty() || slots.available(0) >= 1, "{other} starves");
                }
                prop_assert!(taken.iter().map(Vec::len).sum::<usize>() <= weights.len() + more);
                // Some end.
                let left = taken[at].len() / 2;
                taken[at].truncate(left);
            }
        }

        #[test]
        fn no_slot_is_idle_while_a_queue_of_its_group_has_jobs_waiting(
            weights in prop::collection::vec(1..100_u32, 2..5),
            more in 0..20_usize,
            hungry in prop::collection::vec(any::<bool>(), 5),
        ) {
            let all = group(weights.len() + more, &weights);
            prop_assume!(hungry[..all.len()].contains(&true));
            for (slots, hungry) in all.iter().zip(&hungry) {
                slots.has_more(*hungry);
            }
            let mut taken = Vec::new();
            loop {
                let got: Vec<_> = all.iter().zip(&hungry).flat_map(|(slots, hungry)| {
                    slots.take(1, if *hungry { 0 } else { slots.taken() })
                }).collect();
                if got.is_empty() {
                    break;
                }
                taken.extend(got);
            }
            prop_assert_eq!(taken.len(), weights.len() + more);
        }
    }
}
