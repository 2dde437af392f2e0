//! Slots: limit how many more jobs a worker may ask for, and of which queue.
//!
//! A *group* has a number of slots, for one queue or for several. Several queues share by weight. If all have jobs
//! waiting, each gets its part. If only one has, it gets all slots but one for each other queue, which stays reserved
//! while that queue runs nothing. A queue that holds more than its part loses the excess as its jobs end: a free slot
//! goes to a queue that lacks some of its part. So an urgent queue of great weight is served first, and none starves.
//!
//! A queue has jobs waiting if the server said so with its last message. An empty answer means that it has none.
//!
//! Invariants, each held by the test of that name:
//!
//! - `every_queue_of_a_group_can_run_one_job_beside_the_others`
//! - `no_slot_is_idle_while_a_queue_of_its_group_has_jobs_waiting`

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, futures::Notified};

/// The state of one queue of a group.
#[derive(Debug)]
struct Queue {
    weight: u32,
    /// Slots in which its jobs run, or for which it has requested jobs.
    taken: usize,
    /// Whether more of its jobs probably wait.
    has_more: bool,
    is_paused: bool,
    /// The number of its jobs that may still start in the whole fleet, as far as known. `None`: no limit.
    room: Option<usize>,
    /// How many of its jobs have ended here.
    ended: usize,
    /// How many workers share the room.
    sharers: usize,
    /// When a part of a message was handed back.
    handed_back_at: Option<Instant>,
}

impl Queue {
    fn may_start(&self) -> bool {
        !self.is_paused && self.room != Some(0)
    }

    fn wants_more(&self) -> bool {
        self.has_more && self.may_start()
    }

    /// Records the room that the database has told, after a question that was asked `since`.
    fn told(&mut self, room: Option<usize>, since: Ended) {
        // The database may have looked before these ended. Counted twice, they cost a claim in vain; not counted, they
        // would leave slots free until the next question.
        let own = self.ended.wrapping_sub(since.0);
        // If each worker requested jobs for all of the room, most of their messages would come in vain.
        self.room = room.map(|room| room.div_ceil(self.sharers.max(1)) + own);
    }
}

/// How many jobs of a queue had ended in this process, when it asked the database for the queue's room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended(usize);

#[derive(Debug)]
struct Group {
    slots: usize,
    queues: Mutex<Vec<Queue>>,
    /// Notified when a slot is free, or the state of a queue has changed.
    changed: Notify,
}

impl Group {
    fn queues(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how many of `slots` the queue at index `of` may take now. It holds `asked` slots for jobs that it has
/// requested and not received. `has_more`: whether more of its jobs wait.
fn available(slots: usize, queues: &[Queue], of: usize, asked: usize, has_more: bool) -> usize {
    let free = slots.saturating_sub(queues.iter().map(|queue| queue.taken).sum());
    let queue = &queues[of];
    let room = if queue.is_paused { 0 } else { queue.room.unwrap_or(slots).saturating_sub(asked) };
    if queues.len() == 1 {
        return free.min(room);
    }
    // One open request finds out whether jobs wait.
    let wanted = if has_more { slots } else { 1_usize.saturating_sub(asked) };
    let (sharing, others): (Vec<usize>, Vec<usize>) =
        (0..queues.len()).partition(|&at| at == of || queues[at].wants_more());
    let to_share = slots.saturating_sub(others.iter().map(|&at| queues[at].taken.max(1)).sum());
    let parts = parts(to_share, queues, &sharing);
    // The slots that the others lack of their parts, and the first slots among these, which are reserved.
    let (mut kept, mut firsts) = (0, 0);
    for (at, other) in queues.iter().enumerate().filter(|(at, _)| *at != of) {
        kept += parts[at].saturating_sub(other.taken);
        firsts += usize::from(other.taken == 0);
    }
    // Two queues that have jobs waiting and lack slots must not both wait for the other to take them.
    let lacks = if has_more { parts[of].saturating_sub(queue.taken) } else { 0 };
    let of_its_part = free.saturating_sub(firsts).min(lacks);
    let own_first = usize::from(queue.taken == 0).min(free);
    free.saturating_sub(kept).max(of_its_part).max(own_first).min(room).min(wanted)
}

/// Returns the part of each queue of `slots`, by weight. A queue that would get none gets one at the expense of the
/// others, as does a queue that does not share. The parts add up to at most `slots`, if there is one for each queue.
fn parts(slots: usize, queues: &[Queue], sharing: &[usize]) -> Vec<usize> {
    let mut parts = vec![1; queues.len()];
    let mut by_weight = sharing.to_vec();
    loop {
        let left = slots.saturating_sub(sharing.len() - by_weight.len()) as u64;
        let weights: u64 = by_weight.iter().map(|&at| u64::from(queues[at].weight)).sum();
        let part = |at: usize| (left * u64::from(queues[at].weight)).checked_div(weights).unwrap_or_default();
        let before = by_weight.len();
        let (enough, _): (Vec<usize>, Vec<usize>) = by_weight.iter().partition(|&&at| part(at) > 0);
        if enough.len() == before {
            for at in enough {
                parts[at] = usize::try_from(part(at)).unwrap_or(usize::MAX);
            }
            return parts;
        }
        by_weight = enough;
    }
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
    /// Makes a group of `slots` for these queues, each with its weight. `slots` must be at least the number of queues.
    pub(crate) fn shared(slots: usize, queues: &[(String, u32)]) -> HashMap<String, Self> {
        let new = |weight| Queue {
            weight,
            taken: 0,
            has_more: false,
            is_paused: false,
            room: None,
            ended: 0,
            sharers: 1,
            handed_back_at: None,
        };
        let group = Arc::new(Group {
            slots,
            queues: Mutex::new(queues.iter().map(|(_, weight)| new(*weight)).collect()),
            changed: Notify::new(),
        });
        let of = |(at, (name, _)): (usize, &(String, u32))| (name.clone(), Self { group: group.clone(), at });
        queues.iter().enumerate().map(of).collect()
    }

    /// The number of slots of the group.
    pub(crate) fn slots(&self) -> usize {
        self.group.slots
    }

    /// Whether no job of the queue runs here, and none is requested.
    pub(crate) fn runs_nothing(&self) -> bool {
        self.group.queues()[self.at].taken == 0
    }

    /// The queue's part of them, by weight.
    pub(crate) fn part(&self) -> usize {
        let queues = self.group.queues();
        parts(self.group.slots, &queues, &(0..queues.len()).collect::<Vec<_>>())[self.at]
    }

    /// Returns how many slots may be taken now. The queue holds `asked` slots for jobs that it has requested and not
    /// received.
    pub(crate) fn available(&self, asked: usize) -> usize {
        let queues = self.group.queues();
        available(self.group.slots, &queues, self.at, asked, queues[self.at].has_more)
    }

    /// Takes `n` slots, or as many as are available.
    pub(crate) fn take(&self, n: usize, asked: usize) -> Vec<Slot> {
        let mut queues = self.group.queues();
        let has_more = queues[self.at].has_more;
        let n = n.min(available(self.group.slots, &queues, self.at, asked, has_more));
        self.taken_of(&mut queues, n)
    }

    /// Returns how many slots jobs may take that have arrived.
    pub(crate) fn room(&self) -> usize {
        available(self.group.slots, &self.group.queues(), self.at, 0, true)
    }

    /// Takes `n` slots for jobs that have arrived, or as many as [`Slots::room`] says.
    pub(crate) fn take_room(&self, n: usize) -> Vec<Slot> {
        let mut queues = self.group.queues();
        let n = n.min(available(self.group.slots, &queues, self.at, 0, true));
        self.taken_of(&mut queues, n)
    }

    fn taken_of(&self, queues: &mut [Queue], n: usize) -> Vec<Slot> {
        queues[self.at].taken += n;
        let taken_at = Instant::now();
        (0..n).map(|_| Slot { of: self.clone(), taken_at }).collect()
    }

    /// Records that a part of a message was handed back, as there was no slot for it.
    pub(crate) fn handed_back(&self) {
        self.group.queues()[self.at].handed_back_at = Some(Instant::now());
    }

    /// Whether that has happened within this time.
    pub(crate) fn has_handed_back(&self, within: Duration) -> bool {
        self.group.queues()[self.at].handed_back_at.is_some_and(|at| at.elapsed() < within)
    }

    /// Takes a slot for a message that has arrived, if any slot of the group is free.
    pub(crate) fn take_for_message(&self) -> Option<Slot> {
        let mut queues = self.group.queues();
        let taken: usize = queues.iter().map(|queue| queue.taken).sum();
        (taken < self.group.slots).then(|| {
            queues[self.at].taken += 1;
            Slot { of: self.clone(), taken_at: Instant::now() }
        })
    }

    /// Completes when slots may have become available. Enable the future before you call `available`.
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

    /// Records whether more of the queue's jobs wait, as the server said.
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

    /// Returns what to give to [`Slots::settings`] or [`Slots::has_room`] with the answer. Call it before you ask.
    pub(crate) fn asks(&self) -> Ended {
        Ended(self.group.queues()[self.at].ended)
    }

    /// Records the operator's settings of the queue, and how many more of its jobs may start, if it has a limit.
    pub(crate) fn settings(&self, is_paused: bool, room: Option<usize>, since: Ended) {
        self.change(|queue| {
            queue.is_paused = is_paused;
            queue.told(room, since);
        });
    }

    /// Records how many workers, this one among them, share the room that the next answers tell.
    pub(crate) fn shared_by(&self, workers: usize) {
        self.group.queues()[self.at].sharers = workers;
    }

    /// Records from a claim how many more jobs may start.
    pub(crate) fn has_room(&self, room: usize, since: Ended) {
        self.change(|queue| queue.told(Some(room), since));
    }

    /// Records from a claim that the queue is paused.
    pub(crate) fn pause(&self) {
        self.change(|queue| queue.is_paused = true);
    }

    /// Records the end of a job of the queue: another may start.
    pub(crate) fn ended(&self) {
        self.change(|queue| {
            queue.ended = queue.ended.wrapping_add(1);
            queue.room = queue.room.map(|room| room + 1);
        });
    }

    /// Whether the queue shares its slots with others.
    pub(crate) fn is_shared(&self) -> bool {
        self.group.queues().len() > 1
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.group.queues()[self.at].room.is_some()
    }

    /// An identity of the group: equal for all queues that share their slots.
    pub(crate) fn group(&self) -> usize {
        Arc::as_ptr(&self.group).addr()
    }

    /// Whether no job may start: the queue is paused, or at its `max_running`.
    pub(crate) fn is_held(&self) -> bool {
        let queue = &self.group.queues()[self.at];
        queue.is_paused || queue.room == Some(0)
    }

    /// Returns how many jobs of the queue could start while `running` jobs of the group run, whether or not they are
    /// requested.
    pub(crate) fn free(&self, running: usize) -> usize {
        let free = self.group.slots.saturating_sub(running);
        let queues = self.group.queues();
        let queue = &queues[self.at];
        if queue.is_paused { 0 } else { free.min(queue.room.unwrap_or(free)) }
    }

    /// The number of slots that the queue has taken.
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
    fn a_queue_alone_has_all_slots() {
        let all = group(3, &[1]);
        let two = all[0].take(2, 0);
        assert_eq!((two.len(), all[0].available(2), all[0].take(9, 2).len()), (2, 1, 1));
        drop(two);
        assert_eq!(all[0].available(0), 3);
    }

    #[test]
    fn jobs_that_have_arrived_take_what_is_free_also_in_a_queue_that_asks_for_one() {
        let all = group(10, &[8, 2]);
        assert_eq!((all[0].available(0), all[0].room()), (1, 9), "one stays for the other queue");
        let four = all[0].take_room(4);
        assert_eq!((four.len(), all[0].room(), all[1].room()), (4, 5, 6));
        assert_eq!(all[0].take_room(9).len(), 5);
    }

    #[test]
    fn a_paused_queue_and_a_queue_at_its_limit_request_nothing() {
        let all = group(3, &[1]);
        all[0].settings(true, None, all[0].asks());
        assert_eq!(all[0].available(0), 0);
        all[0].settings(false, Some(2), all[0].asks());
        assert_eq!((all[0].available(0), all[0].available(1)), (2, 1));
        all[0].has_room(0, all[0].asks());
        assert_eq!(all[0].available(0), 0);
        all[0].ended();
        assert_eq!(all[0].available(0), 1);
    }

    #[test]
    fn a_job_that_ends_while_the_database_looks_leaves_its_room() {
        let all = group(9, &[1]);
        all[0].settings(false, Some(0), all[0].asks());
        let before = all[0].asks();
        all[0].ended();
        all[0].has_room(2, before);
        assert_eq!(all[0].available(0), 3, "the look may have been before the end");
        all[0].has_room(2, all[0].asks());
        assert_eq!(all[0].available(0), 2, "this look was after it");
        let before = all[0].asks();
        all[0].ended();
        all[0].settings(false, Some(1), before);
        assert_eq!(all[0].available(0), 2);
        all[0].settings(false, None, before);
        assert!(!all[0].is_limited(), "the limit is gone");
    }

    #[test]
    fn workers_that_share_a_limit_request_a_part_of_its_room_each_and_at_least_one() {
        let all = group(9, &[1]);
        all[0].shared_by(4);
        for (room, part) in [(8, 2), (9, 3), (1, 1), (0, 0)] {
            all[0].has_room(room, all[0].asks());
            assert_eq!(all[0].available(0), part, "of {room}");
        }
        all[0].ended();
        all[0].ended();
        assert_eq!(all[0].available(0), 2, "what its own jobs have left is not shared");
        all[0].shared_by(0);
        all[0].settings(false, Some(3), all[0].asks());
        assert_eq!(all[0].available(0), 3);
    }

    #[test]
    fn queues_that_all_have_jobs_waiting_get_their_parts() {
        let all = group(10, &[4, 1]);
        all[1].has_more(true);
        let mut bulk = all[1].take(10, 0);
        assert_eq!(bulk.len(), 9, "one is left for the urgent queue");
        let first = all[0].take(10, 0);
        assert_eq!(first.len(), 1);
        all[0].has_more(true);
        let mut urgent = Vec::new();
        while bulk.len() > 2 {
            // One slot at a time, and the bulk queue asks first.
            bulk.pop();
            assert_eq!(all[1].take(1, 0).len(), 0, "{} of the bulk run", bulk.len());
            urgent.extend(all[0].take(1, 0));
        }
        assert_eq!((first.len() + urgent.len(), bulk.len()), (8, 2));
        // The slots go back when the urgent queue is empty.
        all[0].has_more(false);
        drop(urgent);
        assert_eq!(all[1].available(0), 7);
    }

    #[test]
    fn a_queue_that_may_start_nothing_keeps_one_slot_from_the_others_and_no_more() {
        for (state, is_paused, room) in [("paused", true, None), ("at its limit", false, Some(0))] {
            let all = group(10, &[8, 1]);
            for queue in &all {
                queue.has_more(true);
            }
            assert_eq!(all[1].available(0), 2, "the other has eight ninths");
            all[0].settings(is_paused, room, all[0].asks());
            assert_eq!(all[1].available(0), 9, "the other is {state}");
        }
    }

    /// Whether this change wakes a task that waits for a change.
    fn wakes(slots: &Slots, change: impl FnOnce()) -> bool {
        let mut changed = std::pin::pin!(slots.changed());
        changed.as_mut().enable();
        change();
        futures::FutureExt::now_or_never(changed).is_some()
    }

    #[test]
    fn a_change_that_may_make_slots_available_wakes_the_tasks_that_wait() {
        let (alone, shared) = (group(2, &[1]), group(4, &[1, 1]));
        assert!(!wakes(&alone[0], || alone[0].has_more(true)), "a queue alone always has all slots");
        assert!(wakes(&shared[0], || shared[1].has_more(true)));
        assert!(!wakes(&shared[0], || shared[1].has_more(true)), "nothing has changed");
        assert!(wakes(&shared[0], || shared[1].has_more(false)));
        for slots in [&alone[0], &shared[0]] {
            assert!(wakes(slots, || slots.settings(false, Some(0), slots.asks())));
            assert!(wakes(slots, || slots.has_room(1, slots.asks())));
            assert!(wakes(slots, || slots.ended()));
            assert!(wakes(slots, || slots.pause()));
            slots.settings(false, None, slots.asks());
            let taken = slots.take(1, 0);
            assert!(wakes(slots, || drop(taken)));
            assert_eq!(slots.taken(), 0);
        }
    }

    #[test]
    fn a_message_that_has_arrived_takes_any_free_slot() {
        let all = group(2, &[1, 1]);
        let first = all[0].take_for_message().map(|slot| slot.of.at);
        assert_eq!((first, all[0].taken()), (Some(0), 0), "the slot is dropped at once");
        let kept = [all[0].take_for_message(), all[0].take_for_message()];
        assert!(kept.iter().all(Option::is_some), "the other queue's, too");
        assert_eq!((all[0].taken(), all[1].taken()), (2, 0));
        assert!(all[1].take_for_message().is_none());
        drop(kept);
        assert!(all[1].take_for_message().is_some());
    }

    #[test]
    fn free_counts_the_jobs_that_may_start_not_those_requested() {
        let (alone, shared) = (group(5, &[1]), group(5, &[1, 1]));
        assert!(!alone[0].is_shared() && shared[0].is_shared());
        assert_eq!(shared[0].group(), shared[1].group());
        assert_ne!(shared[0].group(), alone[0].group());
        assert_eq!(alone[0].slots(), 5);
        let slots = &alone[0];
        let state = || (slots.is_limited(), slots.is_held(), slots.free(3), slots.free(9));
        assert_eq!(state(), (false, false, 2, 0));
        slots.settings(false, Some(1), slots.asks());
        assert_eq!(state(), (true, false, 1, 0));
        slots.ended();
        slots.ended();
        assert_eq!(state(), (true, false, 2, 0), "three may start, but two slots are free");
        slots.has_room(0, slots.asks());
        assert_eq!(state(), (true, true, 0, 0));
        slots.settings(true, None, slots.asks());
        assert_eq!(state(), (false, true, 0, 0));
        slots.ended();
        assert!(!slots.is_limited(), "there is no limit to count against");
    }

    /// Otherwise each would keep the free slot for the other, and slots would stay idle until both could have one.
    #[test]
    fn the_first_to_ask_of_two_queues_that_lack_slots_gets_the_free_slot() {
        let all = group(30, &[1, 1, 1]);
        all[2].has_more(true);
        let mut greedy = all[2].take(30, 0);
        let first = [all[0].take(9, 0), all[1].take(9, 0)];
        assert_eq!((greedy.len(), first[0].len(), first[1].len()), (28, 1, 1));
        for slots in &all {
            slots.has_more(true);
        }
        greedy.pop();
        assert_eq!(all[2].available(0), 0, "it has more than its part");
        assert_eq!((all[0].available(0), all[1].available(0)), (1, 1));
        greedy.truncate(15);
        assert_eq!(
            (all[0].available(0), all[2].available(0)),
            (9, 0),
            "its part, and no more while others lack slots"
        );
    }

    /// A request that only finds out whether jobs wait is no reason to hold a slot that another queue lacks.
    #[test]
    fn a_queue_that_runs_a_job_and_has_none_waiting_takes_no_slot_from_a_queue_that_lacks_one() {
        let all = group(30, &[1, 1, 1]);
        all[2].has_more(true);
        let mut greedy = all[2].take(30, 0);
        let runs = [all[0].take(1, 0), all[1].take(1, 0)];
        all[1].has_more(true);
        greedy.pop();
        assert_eq!((runs.len(), all[0].available(0), all[1].available(0)), (2, 0, 1));
    }

    /// The first slot of a queue that runs nothing stays reserved.
    #[test]
    fn a_queue_that_lacks_slots_leaves_every_other_queue_its_first() {
        let all = group(3, &[1, 1, 1]);
        let one = all[0].take(1, 0);
        for slots in &all {
            slots.has_more(true);
        }
        assert_eq!((one.len(), all[0].available(0), all[1].available(0)), (1, 0, 1));
    }

    #[test]
    fn each_part_is_at_least_one_and_the_parts_add_up_to_at_most_all_slots() {
        let of = |slots, weights: &[u32], sharing: &[usize]| {
            let queues = group(100, weights)[0].group.clone();
            parts(slots, &queues.queues(), sharing)
        };
        assert_eq!(of(7, &[36, 1, 16, 1], &[0, 1, 2, 3]), [3, 1, 1, 1]);
        assert_eq!(of(10, &[100, 60, 1], &[0, 1, 2]), [5, 3, 1]);
        assert_eq!(of(10, &[3, 1, 1], &[0, 2]), [7, 1, 2], "the second queue does not share");
        assert_eq!(of(1, &[1, 1], &[0, 1]), [1, 1], "there are fewer slots than queues");
        assert_eq!(of(0, &[1, 1], &[0, 1]), [1, 1]);
    }

    /// Only the ratio of the weights matters, not their size.
    #[test]
    fn the_parts_of_a_group_follow_the_weights() {
        for (weights, parts) in [([1, 1], [5, 5]), ([4, 1], [8, 2]), ([30, 10], [7, 2]), ([1, 100], [1, 9])] {
            let all = group(10, &weights);
            for slots in &all {
                slots.has_more(true);
            }
            let alone: Vec<_> = all.iter().map(|slots| slots.available(0)).collect();
            // Each queue leaves the other its part, which is rounded down.
            let kept = [10 - alone[1], 10 - alone[0]];
            assert_eq!(kept, parts, "{weights:?}");
        }
    }

    proptest! {
        #[test]
        fn every_queue_of_a_group_can_run_one_job_beside_the_others(
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
            before in prop::collection::vec(0..20_usize, 5),
            hungry in prop::collection::vec(any::<bool>(), 5),
        ) {
            let all = group(weights.len() + more, &weights);
            prop_assume!(hungry[..all.len()].contains(&true));
            // They run the jobs that they took when the others wanted less.
            let mut running = Vec::new();
            for (slots, before) in all.iter().zip(&before) {
                slots.has_more(true);
                running.extend(slots.take(*before, 0));
                slots.has_more(false);
            }
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
            prop_assert_eq!(running.len() + taken.len(), weights.len() + more);
        }
    }
}
