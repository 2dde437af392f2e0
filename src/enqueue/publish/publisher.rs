//! Publisher: notes the stream's confirmations, sends the messages that waited for a connection, and hands those that
//! failed to the relay.

use std::{collections::VecDeque, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{GivesUp, Group, Groups, Handed, InFlight, UnderWay, Unsent};
use crate::{
    job::JobId,
    nats::{Confirmation, Confirmations, Nats, NatsError, ReplyTo, WRITTEN_WITHIN, silence},
    observe::{
        metrics,
        panics::{self, Panics},
        repeats::{self, Repeats},
    },
    proof::fault,
    store::Store,
};

/// The most jobs handed to the relay by one statement.
pub(super) const FAILED_MAX: usize = 500;
/// How long a failed message waits for others, to be handed over with them.
pub(super) const HANDED_OVER_WITHIN: Duration = Duration::from_millis(100);

/// The task that confirms, sends what waits for a connection, and hands over what failed.
pub(super) struct Publisher {
    pub(super) store: Store,
    pub(super) nats: Nats,
    pub(super) reply_to: ReplyTo,
    pub(super) publish_within: Duration,
    pub(super) gives_up: GivesUp,
    pub(super) groups: Groups,
    /// Messages that wait for a connection.
    pub(super) unsent: VecDeque<Unsent>,
    pub(super) failed: Vec<JobId>,
    /// The room of their groups.
    pub(super) of_failed: Vec<InFlight>,
    /// When the first of them failed.
    pub(super) failed_at: Option<Instant>,
    pub(super) repeats: Repeats,
    /// When the stream last confirmed a message.
    pub(super) heard_at: Option<Instant>,
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let mut under_way = self.groups.lock();
        under_way.is_over = true;
        let unconfirmed = std::mem::take(&mut under_way.groups);
        drop(under_way);
        drop(unconfirmed);
    }
}

impl Publisher {
    /// Goes on after a panic, with the groups that it has.
    pub(super) async fn run_on(
        mut self,
        mut waiting: mpsc::UnboundedReceiver<Handed>,
        mut confirmations: Confirmations,
    ) {
        let mut panics = Panics::new("publisher");
        loop {
            let run = self.run(&mut waiting, &mut confirmations);
            let panicked = AssertUnwindSafe(run).catch_unwind().await.err();
            let Some(pause) = panicked.and_then(|panic| panics.note(&*panic)) else {
                self.hand_over();
                return;
            };
            sleep(pause).await;
        }
    }

    pub(super) async fn run(
        &mut self,
        waiting: &mut mpsc::UnboundedReceiver<Handed>,
        confirmations: &mut Confirmations,
    ) {
        let mut is_open = true;
        // Set again when it has gone off, not with each group: a timer costs more than a message.
        let mut alarm = std::pin::pin!(sleep(Duration::ZERO));
        let mut is_set = true;
        while is_open || !self.groups.lock().groups.is_empty() {
            let Self { nats, unsent, failed_at, .. } = self;
            tokio::select! { biased;
                confirmation = confirmations.next() => match confirmation {
                    Some(confirmation) => self.note(confirmation),
                    None => return,
                },
                handed = waiting.recv(), if is_open => match handed {
                    Some(Handed::Unsent(unsent)) => self.unsent.push_back(unsent),
                    Some(Handed::Failed(failed)) => self.note(failed),
                    Some(Handed::First) => {}
                    // The last producer has gone; the task still finishes the groups that it has.
                    None => is_open = false,
                },
                () = &mut alarm, if is_set => {
                    is_set = false;
                    self.end_late();
                }
                () = can_send(nats, unsent) => self.send_first().await,
                () = sleep_until(failed_at.unwrap_or_else(Instant::now) + HANDED_OVER_WITHIN),
                    if failed_at.is_some() => self.hand_over(),
            }
            if !is_set && let Some(until) = self.next_deadline() {
                alarm.as_mut().reset(until);
                is_set = true;
            }
        }
    }

    /// Returns the next deadline. `None`: a producer wakes the task when there is one.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let mut under_way = self.groups.lock();
        let next = under_way.deadlines.front().map(|(until, _)| *until);
        under_way.is_watched = next.is_some();
        next
    }

    /// Sends the messages that have waited longest. Messages that have waited too long for a connection fail, and so do
    /// those that come while the stream is silent.
    pub(super) async fn send_first(&mut self) {
        let Some(Unsent { group, place, messages, .. }) = self.unsent.pop_front() else { return };
        let until = Instant::now() + self.publish_within;
        {
            let mut under_way = self.groups.lock();
            let Some(sent) = under_way.groups.get_mut(&group) else { return };
            sent.until = until;
            under_way.deadlines.push_back((until, group));
        }
        let refusal = if self.gives_up.is_on() {
            Some("the stream confirms nothing")
        } else if !self.nats.is_connected() {
            Some("not connected")
        } else {
            None
        };
        let mut refusal = refusal.map(|why| NatsError::Unavailable(why.into()));
        let late = Instant::now() + WRITTEN_WITHIN;
        for (place, message) in (place..).zip(messages) {
            if refusal.is_none() {
                let sending = self.nats.send(message, &self.reply_to, group, place);
                refusal = match timeout_at(late, sending).await {
                    Ok(sent) => sent.err(),
                    Err(_) => Some(NatsError::Unavailable("NATS reads nothing".into())),
                };
            }
            if let Some(refusal) = &refusal {
                self.note(Confirmation { group, place, said: Err(refusal.clone()) });
            }
        }
        self.nats.note_sent();
    }

    /// Notes that a message was confirmed, or has failed.
    pub(super) fn note(&mut self, Confirmation { group: number, place, said }: Confirmation) {
        let is_confirmed = said.is_ok();
        let ended = {
            let mut under_way = self.groups.lock();
            let Some(group) = under_way.groups.get_mut(&number) else { return };
            // Of two confirmations of one message the first counts.
            let Some(jobs) = group.jobs.get_mut(place).and_then(Option::take) else { return };
            group.left -= 1;
            match said {
                Ok(()) => group.confirmed += jobs.len(),
                Err(error) => {
                    group.failed.extend(jobs);
                    group.error = Some(error);
                }
            }
            let is_last = group.left == 0;
            if is_last { under_way.groups.remove(&number) } else { None }
        };
        if is_confirmed {
            self.heard_at = Some(Instant::now());
            self.gives_up.end();
        }
        if let Some(group) = ended {
            self.end(group);
        }
        fault::end_by_panic("publisher");
    }

    /// Ends the groups with messages that the stream has not confirmed in time: these have failed.
    pub(super) fn end_late(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        {
            let UnderWay { groups, deadlines, .. } = &mut *self.groups.lock();
            while let Some(&(until, number)) = deadlines.front() {
                // A group with another deadline was sent later, and is on the list once more.
                let is_under_way = groups.get(&number).is_some_and(|group| group.until == until);
                if is_under_way && until > now {
                    break;
                }
                deadlines.pop_front();
                let waits = self.unsent.iter().any(|unsent| unsent.group == number);
                if is_under_way && !waits {
                    late.extend(groups.remove(&number));
                }
            }
        }
        for mut group in late {
            // A connection that broke in between took confirmations with it: then the stream was not silent.
            if self.heard_at.is_none_or(|heard_at| heard_at + self.publish_within < group.until) {
                self.gives_up.begin();
            }
            group.failed.extend(std::mem::take(&mut group.jobs).into_iter().flatten().flatten());
            group.error = Some(silence());
            self.end(group);
        }
    }

    /// Ends a group: each of its messages is confirmed, or has failed.
    pub(super) fn end(&mut self, group: Group) {
        metrics::published(group.confirmed);
        if let Some(error) = group.error {
            if self.failed.is_empty() {
                if let Some(left_out) = self.repeats.tell(&error.to_string()) {
                    tracing::warn!(%error, left_out, "could not publish; the relay will retry");
                }
                self.failed_at = Some(Instant::now());
            }
            // Together: a caller that waits for the group waits until the relay has these.
            self.failed.extend(group.failed);
            self.of_failed.push(group.held);
        }
        if self.failed.is_empty() {
            return;
        }
        let is_last = self.groups.lock().groups.is_empty();
        if is_last || self.failed.len() >= FAILED_MAX {
            self.hand_over();
        }
    }

    /// Leaves the failed messages to the relay.
    fn hand_over(&mut self) {
        self.failed_at = None;
        if self.failed.is_empty() {
            return;
        }
        let (store, failed) = (self.store.clone(), std::mem::take(&mut self.failed));
        let held = std::mem::take(&mut self.of_failed);
        panics::spawn_logged("hand over", async move {
            // The first dispatch: a relay may have been faster, and published a later one.
            let failed: Vec<_> = failed.into_iter().map(|job| (job, 1)).collect();
            for failed in failed.chunks(FAILED_MAX) {
                if let Err(error) = store.unpublished(failed, Duration::ZERO).await
                    && let Some(left_out) = repeats::tell("hand over", &error)
                {
                    tracing::warn!(%error, left_out,
                        "could not tell the relay about new jobs; it will find them later");
                }
            }
            drop(held);
        });
    }
}

/// Completes when the messages that have waited longest can be sent, or have waited too long. Cancel safe.
pub(super) async fn can_send(nats: &Nats, unsent: &VecDeque<Unsent>) {
    match unsent.front() {
        Some(unsent) => drop(timeout_at(unsent.until, nats.connected()).await),
        None => std::future::pending().await,
    }
}
