//! Together: which jobs share messages.
//!
//! A message of several jobs goes to one worker, and the stream stores and delivers one message instead of up to 16.
//! Jobs that become due together share messages where every worker of their queue has many slots, as `tenure.workers`
//! tells. There are several messages for each of these workers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{
    connect::Nats,
    publish::{SPREAD, Ticket},
};
use crate::{observe::repeats, store::Store};

/// How long jobs wait for the first answer about their queue: a message each is better than a late one.
const TOLD_WITHIN: Duration = Duration::from_millis(500);
/// How old an answer may be before the next burst asks anew, and until when it holds.
const ASKED_EVERY: Duration = Duration::from_secs(1);
const TOLD_LASTS: Duration = Duration::from_secs(10);
/// How long this process does not ask again after Postgres has refused to answer.
const REFUSAL_LASTS: Duration = Duration::from_mins(10);
/// The most queues of which answers are kept.
const QUEUES_MAX: usize = 10_000;

/// What the database has told of queues.
#[derive(Debug, Clone, Default)]
pub(super) struct Told(Arc<Mutex<HashMap<String, OfQueue>>>);

/// What it has told of a queue.
#[derive(Debug)]
struct OfQueue {
    /// When a burst may ask again. `None`: none has asked.
    ask_at: Option<Instant>,
    /// When it was told, the live workers, and how many jobs one message may name.
    told: Option<(Instant, usize, usize)>,
}

impl Told {
    fn queues(&self) -> MutexGuard<'_, HashMap<String, OfQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queues that the caller is to ask about now; other callers leave them alone for [`ASKED_EVERY`]. Also
    /// returns whether the caller waits for the answer: this process has not asked about one of them for
    /// [`TOLD_LASTS`].
    fn to_ask<'a>(&self, queues: impl Iterator<Item = &'a String>) -> (Vec<String>, bool) {
        let now = Instant::now();
        let mut known = self.queues();
        if known.len() > QUEUES_MAX {
            known.retain(|_, of| of.ask_at.is_some_and(|ask_at| ask_at > now));
        }
        let (mut to_ask, mut waits) = (Vec::new(), false);
        for queue in queues {
            let of = known.entry(queue.clone()).or_insert(OfQueue { ask_at: None, told: None });
            if of.ask_at.is_none_or(|ask_at| ask_at <= now) {
                waits |= of.ask_at.is_none_or(|ask_at| ask_at + TOLD_LASTS <= now);
                of.ask_at = Some(now + ASKED_EVERY);
                to_ask.push(queue.clone());
            }
        }
        (to_ask, waits)
    }

    /// Notes what was told of these queues. A queue that `told` lacks has no worker.
    fn note(&self, queues: &[String], told: &HashMap<String, (usize, usize)>) {
        let now = Instant::now();
        let mut known = self.queues();
        for queue in queues {
            let (workers, most) = told.get(queue).copied().unwrap_or((0, 1));
            if let Some(of) = known.get_mut(queue) {
                of.told = Some((now, workers, most));
            }
        }
    }

    /// Notes that Postgres refuses to tell.
    fn refused(&self, queues: &[String]) {
        let ask_at = Some(Instant::now() + REFUSAL_LASTS);
        let mut known = self.queues();
        for queue in queues {
            if let Some(of) = known.get_mut(queue) {
                of.ask_at = ask_at;
            }
        }
    }

    fn of(&self, queue: &str) -> Option<(usize, usize)> {
        let (at, workers, most) = self.queues().get(queue)?.told?;
        (at.elapsed() < TOLD_LASTS).then_some((workers, most))
    }

    /// Asks the database. An answer that is late serves the next burst.
    async fn ask(self, store: Store, queues: Vec<String>) {
        match store.jobs_per_message(&queues).await {
            Ok(told) => self.note(&queues, &told),
            Err(error) if error.is_unavailable() => {
                tracing::debug!(%error, "each job has a message of its own");
            }
            Err(error) => {
                self.refused(&queues);
                if let Some(left_out) = repeats::tell("messages", &error) {
                    tracing::warn!(
                        %error, left_out,
                        "could not ask what the workers can take, so each job has a message of its own; grant EXECUTE \
                         on tenure.jobs_per_message, as postgres/roles.sql does, or set TENURE_JOBS_PER_MESSAGE=1"
                    );
                }
            }
        }
    }
}

impl Nats {
    /// Lets those of these tickets share messages which are of large bursts, unless the settings say how many jobs a
    /// message names.
    ///
    /// Without an answer of the database, each job has a message of its own.
    pub(crate) async fn share_messages(&self, store: &Store, tickets: &mut [Ticket]) {
        if self.jobs_per_message.is_some() {
            return;
        }
        let bursts = large_bursts(tickets);
        let (to_ask, waits) = self.told.to_ask(bursts.keys().map(|(queue, _)| queue));
        if !to_ask.is_empty() {
            let asked = store.spawn(self.told.clone().ask(store.clone(), to_ask));
            if waits {
                drop(timeout(TOLD_WITHIN, asked).await);
            }
        }
        let shares: HashMap<_, _> = bursts
            .into_iter()
            .filter_map(|((queue, kind), jobs)| {
                let (workers, most) = self.told.of(&queue)?;
                Some(((queue, kind), most.min(jobs / (SPREAD * workers.max(1))).max(1)))
            })
            .filter(|(_, share)| *share > 1)
            .collect();
        if shares.is_empty() {
            return;
        }
        for ticket in tickets {
            let key = (std::mem::take(&mut ticket.queue), std::mem::take(&mut ticket.kind));
            ticket.jobs_per_message = shares.get(&key).copied().unwrap_or(1);
            (ticket.queue, ticket.kind) = key;
        }
    }
}

/// Returns how many jobs of a queue and kind may share messages, where they are enough for messages of two.
fn large_bursts(tickets: &[Ticket]) -> HashMap<(String, String), usize> {
    let mut bursts: HashMap<(&str, &str), usize> = HashMap::new();
    for ticket in tickets.iter().filter(|ticket| ticket.is_sociable()) {
        *bursts.entry((&ticket.queue, &ticket.kind)).or_default() += 1;
    }
    let large = bursts.into_iter().filter(|(_, jobs)| *jobs >= 2 * SPREAD);
    large.map(|((queue, kind), jobs)| ((queue.to_owned(), kind.to_owned()), jobs)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn tickets(kind: &str, dispatch: i32, n: usize) -> Vec<Ticket> {
        let ticket = |_| Ticket {
            job: JobId::generate(),
            queue: "q".into(),
            kind: kind.into(),
            dispatch,
            clear_reason: None,
            trace_context: None,
            jobs_per_message: 1,
        };
        (0..n).map(ticket).collect()
    }

    #[test]
    fn a_burst_is_many_new_jobs_of_one_kind() {
        let all = [tickets("many", 1, 16), tickets("again", 2, 100), tickets("few", 1, 15)];
        let large = large_bursts(&all.concat());
        assert_eq!(large, HashMap::from([(("q".to_owned(), "many".to_owned()), 16)]));
    }

    #[test]
    fn one_asks_for_all_and_a_late_answer_takes_none_away() {
        let told = Told::default();
        let both = ["a".to_owned(), "b".to_owned()];
        assert_eq!(told.to_ask(both.iter()), (both.to_vec(), true));
        assert_eq!(told.to_ask(both.iter()), (vec![], false), "another asks");
        assert_eq!(told.of("a"), None);
        told.note(&both, &HashMap::from([("a".to_owned(), (3, 16))]));
        assert_eq!((told.of("a"), told.of("b"), told.of("c")), (Some((3, 16)), Some((0, 1)), None));
        told.queues().entry("a".into()).and_modify(|of| of.ask_at = Some(Instant::now()));
        assert_eq!(told.to_ask(both.iter()), (vec!["a".into()], false), "in the background");
        assert_eq!(told.of("a"), Some((3, 16)), "until the next answer");
        told.refused(&both);
        assert_eq!(told.to_ask(both.iter()), (vec![], false));
    }
}
