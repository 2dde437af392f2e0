//! Together: which jobs of groups share messages.
//!
//! A message of several jobs goes to one worker, and the stream stores and delivers one message instead of up to 16.
//! Jobs that become due together share messages where every worker of their queue has many slots, as `tenure.workers`
//! tells. There are several messages for each of these workers.

use std::{collections::HashMap, time::Duration};

use tokio::time::timeout;

use super::{
    connect::Nats,
    publish::{SPREAD, Ticket},
};
use crate::store::Store;

/// How long the jobs wait for the answer: a message each is better than a late one.
const TOLD_WITHIN: Duration = Duration::from_millis(500);

impl Nats {
    /// Lets those of these tickets share messages which are of large bursts of groups, unless the settings say how many
    /// jobs a message names.
    ///
    /// Without an answer of the database, each job has a message of its own.
    pub(crate) async fn share_messages(&self, store: &Store, tickets: &mut [Ticket]) {
        if self.jobs_per_message.is_some() {
            return;
        }
        let bursts = large_bursts(tickets);
        if bursts.is_empty() {
            return;
        }
        let queues: Vec<_> = bursts.iter().map(|burst| burst.queue.clone()).collect();
        let told = match timeout(TOLD_WITHIN, store.jobs_per_message(&queues)).await {
            Ok(Ok(told)) => told,
            Ok(Err(error)) => return tracing::debug!(%error, "each job has a message of its own"),
            Err(_) => return tracing::debug!("no answer in time; each job has a message of its own"),
        };
        for Burst { queue, kind, jobs } in bursts {
            let Some((workers, most)) = told.get(&queue) else { continue };
            let share = (*most).min(jobs / (SPREAD * (*workers).max(1))).max(1);
            let alike = tickets.iter_mut().filter(|ticket| ticket.queue == queue && ticket.kind == kind);
            for jobs_per_message in alike.filter_map(|ticket| ticket.jobs_per_message.as_mut()) {
                *jobs_per_message = share;
            }
        }
    }
}

/// Jobs of groups, of one queue and kind.
#[derive(Debug, PartialEq)]
struct Burst {
    queue: String,
    kind: String,
    jobs: usize,
}

/// Returns those that have enough jobs for messages of two.
fn large_bursts(tickets: &[Ticket]) -> Vec<Burst> {
    let mut bursts: HashMap<(&str, &str), usize> = HashMap::new();
    for ticket in tickets.iter().filter(|ticket| ticket.jobs_per_message.is_some() && ticket.is_sociable()) {
        *bursts.entry((&ticket.queue, &ticket.kind)).or_default() += 1;
    }
    let burst =
        |((queue, kind), jobs): ((&str, &str), _)| Burst { queue: queue.into(), kind: kind.into(), jobs };
    bursts.into_iter().filter(|(_, jobs)| *jobs >= 2 * SPREAD).map(burst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn tickets(kind: &str, dispatch: i32, jobs_per_message: Option<usize>, n: usize) -> Vec<Ticket> {
        let ticket = |_| Ticket {
            job: JobId::generate(),
            queue: "q".into(),
            kind: kind.into(),
            dispatch,
            clear_reason: None,
            trace_context: None,
            jobs_per_message,
        };
        (0..n).map(ticket).collect()
    }

    #[test]
    fn a_burst_is_many_jobs_of_groups_of_one_kind() {
        let all = [
            tickets("many", 1, Some(1), 16),
            tickets("many", 1, None, 100),
            tickets("many", 2, Some(1), 100),
            tickets("few", 1, Some(1), 15),
            tickets("plain", 1, None, 100),
        ];
        let large = large_bursts(&all.concat());
        assert_eq!(large, [Burst { queue: "q".into(), kind: "many".into(), jobs: 16 }]);
    }
}
