//! Counts: exports the counts of the last scan as metrics.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    doctor::OF_RUNNING,
    observe::metrics::{Gauges, NAMES_MAX, OTHER, has_series},
    store::{DeadGroup, Store, Unserved},
};

/// How often a process groups the dead letters of the last hour by their errors; how many, at most, and how many of the
/// largest groups it exports.
const GROUPED_EVERY: Duration = Duration::from_mins(1);
const GROUPED: i64 = 1_000;
const GROUPS: i64 = 20;
/// Each keeps its series until the process ends.
const GROUP_SERIES_MAX: usize = 200;

/// Exports the counts for as long as this future is polled.
pub async fn show(store: &Store, gauges: &Gauges, every: impl Fn() -> Duration) {
    let mut shown = HashSet::new();
    let mut ever_limited: HashSet<String> = HashSet::new();
    let mut ever_held: HashSet<String> = HashSet::new();
    let (mut unserved, mut put_off) = (Kinds::default(), Kinds::default());
    let mut groups = Groups::default();
    // Until the first count, its age is the time since this process began.
    let (mut age_s, mut read_at) = (0.0, Instant::now());
    loop {
        match store.fleet().await {
            Ok(fleet) => {
                if let Some(is) = fleet.age_s {
                    (age_s, read_at) = (is, Instant::now());
                }
                let mut gone = std::mem::take(&mut shown);
                let mut others: Option<([i64; 3], Option<i64>, f64)> = None;
                let mut queues = fleet.queues;
                // Those with workers, settings or jobs get the first series.
                queues
                    .sort_by_key(|of| of.workers == 0 && !of.is_paused && of.jobs == [0; 3] && of.held == 0);
                for of in queues {
                    if !has_series(&of.queue) {
                        let (jobs, submitted, oldest_due_s) = others.unwrap_or(([0; 3], Some(0), 0.0));
                        others = Some((
                            std::array::from_fn(|state| jobs[state] + of.jobs[state]),
                            submitted.zip(of.submitted).map(|(all, own)| all + own),
                            of.oldest_due_s.max(oldest_due_s),
                        ));
                        continue;
                    }
                    gauges.queue(&of.queue, of.jobs, of.submitted, of.oldest_due_s, of.is_paused);
                    // A queue without limits has no series of them, unless it has had some.
                    let is_limited = of.max_running.is_some() || of.max_queued.is_some();
                    if is_limited || ever_limited.contains(&of.queue) {
                        gauges.limits(&of.queue, of.max_running, of.max_queued);
                        ever_limited.insert(of.queue.clone());
                    }
                    if of.held > 0 || ever_held.contains(&of.queue) {
                        gauges.lanes(&of.queue, of.held, of.lanes_waiting);
                        ever_held.insert(of.queue.clone());
                    }
                    gone.remove(&of.queue);
                    shown.insert(of.queue);
                }
                if let Some((jobs, submitted, oldest_due_s)) = others {
                    gauges.queue(OTHER, jobs, submitted, oldest_due_s, false);
                    gone.remove(OTHER);
                    shown.insert(OTHER.to_owned());
                }
                for queue in gone {
                    gauges.queue(&queue, [0; 3], Some(0), 0.0, false);
                    if ever_held.contains(&queue) {
                        gauges.lanes(&queue, 0, 0);
                    }
                }
                if fleet.unread.is_none() {
                    unserved.show(
                        fleet.unserved,
                        |queue, kind, jobs| gauges.unserved(queue, kind, jobs),
                        Unserved::waiting,
                    );
                    put_off.show(
                        fleet.put_off,
                        |queue, kind, jobs| gauges.put_off(queue, kind, jobs),
                        |of| of.put_off.unwrap_or_default(),
                    );
                }
                gauges.misnamed(fleet.misnamed);
                // What no scan has found of late is not known: the gauge stays.
                for check in OF_RUNNING.iter().filter(|_| fleet.findings.is_some()) {
                    let found = fleet.findings.iter().flatten().filter(|found| found.check == *check).count();
                    gauges.findings(check, u32::try_from(found).unwrap_or(u32::MAX));
                }
                let alive = fleet.workers + fleet.draining;
                gauges.fleet(fleet.relay_lag_s, fleet.dead, alive, fleet.is_held_back);
                groups.show(store, gauges, fleet.dead > 0).await;
            }
            Err(error) => {
                tracing::debug!(%error, "could not read the counts of the last scan; the metrics keep the older ones");
            }
        }
        gauges.measured(age_s + read_at.elapsed().as_secs_f64());
        sleep(every().mul_f64(rand::random_range(0.8..1.2))).await;
    }
}

/// Queue, kind, category and fingerprint of a group of dead letters.
type Group = (String, String, String, String);

/// The groups of dead letters that have a series.
#[derive(Default)]
struct Groups {
    shown: HashSet<Group>,
    ever: HashSet<Group>,
    read_at: Option<Instant>,
}

impl Groups {
    /// Sets the gauge of each large group, and that of each other one to 0.
    async fn show(&mut self, store: &Store, gauges: &Gauges, has_dead: bool) {
        let is_read = self.read_at.is_some_and(|at| at.elapsed() < GROUPED_EVERY);
        if is_read || (!has_dead && self.shown.is_empty()) {
            return;
        }
        let read = match store.dead_lately(GROUPS, GROUPED).await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "could not group the dead letters; the metrics keep the older ones");
                return;
            }
        };
        self.read_at = Some(Instant::now());
        let mut gone = std::mem::take(&mut self.shown);
        for DeadGroup { of, fingerprint, .. } in read {
            let jobs = of.jobs.cast_signed();
            let of = (of.queue, of.kind, of.category, fingerprint);
            if self.ever.len() >= GROUP_SERIES_MAX && !self.ever.contains(&of) {
                continue;
            }
            gauges.dead_group(&of.0, &of.1, &of.2, &of.3, jobs);
            gone.remove(&of);
            self.ever.insert(of.clone());
            self.shown.insert(of);
        }
        for of in gone {
            gauges.dead_group(&of.0, &of.1, &of.2, &of.3, 0);
        }
    }
}

/// The kinds of one sort that have a series. Those beyond the first [`NAMES_MAX`] share one.
#[derive(Default)]
struct Kinds {
    shown: HashSet<(String, String)>,
    ever: HashSet<(String, String)>,
}

impl Kinds {
    /// Sets the gauge of each of these kinds, and that of each other one to 0.
    fn show(
        &mut self,
        kinds: Vec<Unserved>,
        mut set: impl FnMut(&str, &str, i64),
        jobs: impl Fn(&Unserved) -> i64,
    ) {
        let mut gone = std::mem::take(&mut self.shown);
        let mut counted: HashMap<_, i64> = HashMap::new();
        for of in kinds {
            let count = jobs(&of);
            let mut key = (of.queue, of.kind);
            if self.ever.len() < NAMES_MAX {
                self.ever.insert(key.clone());
            } else if !self.ever.contains(&key) {
                key = (OTHER.to_owned(), OTHER.to_owned());
            }
            *counted.entry(key).or_default() += count;
        }
        for (key, count) in counted {
            set(&key.0, &key.1, count);
            gone.remove(&key);
            self.shown.insert(key);
        }
        for (queue, kind) in gone {
            set(&queue, &kind, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_beyond_the_most_share_a_series_and_their_sum_stays_right() {
        let (mut kinds, mut gauges) = (Kinds::default(), HashMap::new());
        for (from, to) in [(0, 10_000), (9_998, 10_000)] {
            let of = |n| Unserved {
                queue: "q".into(),
                kind: format!("k{n}"),
                is_queue_served: true,
                due: 2,
                submitted: None,
                oldest_s: None,
                put_off: None,
            };
            let set = |queue: &str, kind: &str, jobs| {
                gauges.insert(format!("{queue}/{kind}"), jobs);
            };
            kinds.show((from..to).map(of).collect(), set, Unserved::waiting);
            assert_eq!(gauges.len(), NAMES_MAX + 1);
            assert_eq!(gauges.values().sum::<i64>(), 2 * (to - from));
        }
    }
}
