//! Counts: exports the counts of the last scan as metrics.

use std::{collections::HashSet, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{observe::metrics, store::Store};

/// The most queues whose counts one process exports. Each keeps its series until the process ends, and any NATS client
/// can name a queue. Those with workers, settings or jobs come first.
const SERIES_MAX: usize = 2_000;

/// Exports the counts for as long as this future is polled.
pub async fn show(store: &Store, every: impl Fn() -> Duration) {
    let mut shown = HashSet::new();
    let mut ever: HashSet<String> = HashSet::new();
    let mut unserved = HashSet::new();
    let mut kinds_ever: HashSet<(String, String)> = HashSet::new();
    // Until the first count, its age is the time since this process began.
    let (mut age_s, mut read_at) = (0.0, Instant::now());
    loop {
        match store.fleet().await {
            Ok(fleet) => {
                if let Some(is) = fleet.age_s {
                    (age_s, read_at) = (is, Instant::now());
                }
                let mut gone = std::mem::take(&mut shown);
                let mut queues = fleet.queues;
                queues.sort_by_key(|of| of.workers == 0 && !of.is_paused && of.jobs == [0; 3]);
                for of in queues {
                    if ever.len() >= SERIES_MAX && !ever.contains(&of.queue) {
                        continue;
                    }
                    ever.insert(of.queue.clone());
                    metrics::queue(&of.queue, of.jobs, of.submitted, of.oldest_due_s, of.is_paused);
                    gone.remove(&of.queue);
                    shown.insert(of.queue);
                }
                for queue in gone {
                    metrics::queue(&queue, [0; 3], Some(0), 0.0, false);
                }
                let mut gone = std::mem::take(&mut unserved);
                for of in fleet.unserved {
                    if kinds_ever.len() >= SERIES_MAX
                        && !kinds_ever.contains(&(of.queue.clone(), of.kind.clone()))
                    {
                        continue;
                    }
                    kinds_ever.insert((of.queue.clone(), of.kind.clone()));
                    metrics::unserved(&of.queue, &of.kind, of.waiting());
                    let key = (of.queue, of.kind);
                    gone.remove(&key);
                    unserved.insert(key);
                }
                for (queue, kind) in gone {
                    metrics::unserved(&queue, &kind, 0);
                }
                metrics::fleet(fleet.relay_lag_s, fleet.dead, fleet.workers, fleet.is_held_back);
            }
            Err(error) => {
                tracing::debug!(%error, "could not read the counts of the last scan; the metrics keep the older ones");
            }
        }
        metrics::measured(age_s + read_at.elapsed().as_secs_f64());
        sleep(every().mul_f64(rand::random_range(0.8..1.2))).await;
    }
}
