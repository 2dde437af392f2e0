//! Together: which jobs of groups may share messages.
//!
//! A message of several jobs goes to one worker, and costs NATS and its clients as much as a message of one job. Jobs
//! that become due together may share messages where every worker of their queue has many slots, as `tenure.workers`
//! tells. There are several messages for each of these workers.

use std::collections::{BTreeMap, HashMap};

use super::publish::{SPREAD, Ticket};
use crate::store::Store;

/// For some queues, how many jobs one message may name; of all others, one.
pub(crate) type Allowed = BTreeMap<String, usize>;

/// Asks the database for the queues that have many of these jobs, each given by its queue and kind.
///
/// Without an answer, each job has a message of its own.
pub(crate) async fn allowed<'a>(store: &Store, jobs: impl Iterator<Item = (&'a str, &'a str)>) -> Allowed {
    let bursts = large_bursts(jobs);
    if bursts.is_empty() {
        return Allowed::new();
    }
    let queues: Vec<_> = bursts.keys().copied().collect();
    let told = store.jobs_per_message(&queues).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "each job has a message of its own");
        HashMap::new()
    });
    let of = |(queue, (workers, jobs)): (String, (usize, usize))| {
        let burst = bursts.get(queue.as_str()).copied().unwrap_or_default();
        (queue, jobs.min(burst / (SPREAD * workers.max(1))).max(1))
    };
    told.into_iter().map(of).collect()
}

/// Lets these tickets share messages.
pub(crate) fn share_messages(tickets: &mut [Ticket], allowed: &Allowed) {
    for ticket in tickets {
        ticket.jobs_per_message = allowed.get(&ticket.queue).copied().unwrap_or(1);
    }
}

/// For each queue with enough jobs of one kind for messages of two, the least such number.
fn large_bursts<'a>(jobs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, usize> {
    let mut kinds: HashMap<_, usize> = HashMap::new();
    for alike in jobs {
        *kinds.entry(alike).or_default() += 1;
    }
    let mut bursts = BTreeMap::new();
    for ((queue, _), jobs) in kinds.into_iter().filter(|(_, jobs)| *jobs >= 2 * SPREAD) {
        let least = bursts.entry(queue).or_insert(jobs);
        *least = jobs.min(*least);
    }
    bursts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_many_jobs_of_one_kind() {
        let jobs = |queue, kind, n| std::iter::repeat_n((queue, kind), n);
        let all =
            jobs("a", "x", 40).chain(jobs("a", "y", 16)).chain(jobs("a", "z", 15)).chain(jobs("b", "x", 15));
        assert_eq!(large_bursts(all), [("a", 16)].into());
    }
}
