//! Publish: sends tickets, the messages for rows that exist.
//!
//! Of jobs that were enqueued together, one message names several (`together`): the stream stores, delivers and
//! acknowledges one message where it would handle sixteen. The subject says how many, so that the stream's counts by
//! subject tell how many jobs its messages name.
//!
//! Producers and the relay send thousands of tickets before the stream confirms the first. One subscription receives
//! all confirmations of a sender: a request for each message would cost the client as much again as the message.

use std::{collections::HashMap, sync::Arc};

use async_nats::{HeaderMap, HeaderName, Message, StatusCode, Subject, Subscriber, header::NATS_MESSAGE_ID};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::connect::{Nats, NatsError};
use crate::{config::JOBS_PER_MESSAGE_MAX, job::JobId, store::DueJob};

/// How many messages of one kind a burst has before one of them names two jobs: idle workers share the burst.
pub(super) const SPREAD: usize = 8;

/// The header that makes a message a ticket.
pub(crate) const JOB_ID: &str = "Tenure-Job-Id";
const JOB_ID_HEADER: HeaderName = HeaderName::from_static(JOB_ID);
const TRACE_HEADER: HeaderName = HeaderName::from_static("traceparent");

/// A message that says: this row may be runnable.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) job: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) dispatch: i32,
    /// Why the job was reset or released, if it was.
    pub(crate) clear_reason: Option<String>,
    pub(crate) trace_context: Option<String>,
    /// The most jobs that its message may name.
    pub(crate) jobs_per_message: usize,
}

impl From<&DueJob> for Ticket {
    fn from(job: &DueJob) -> Self {
        Self {
            job: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            dispatch: job.dispatch,
            clear_reason: job.clear_reason.clone(),
            trace_context: job.trace_context.clone(),
            jobs_per_message: 1,
        }
    }
}

impl Ticket {
    /// Whether its message may name other jobs, too. A job that was published before, or was reset, goes alone: it may
    /// have come back because its message named too many.
    pub(super) fn is_sociable(&self) -> bool {
        self.dispatch == 1 && self.clear_reason.is_none()
    }
}

/// The body of a ticket.
#[derive(Debug, Deserialize)]
pub(crate) struct TicketBody {
    pub(crate) job_id: JobId,
    pub(crate) dispatch: i32,
    #[serde(default)]
    pub(crate) cleared: bool,
    /// The other jobs that the message names, each with its dispatch.
    #[serde(default)]
    pub(crate) more: Vec<(JobId, i32)>,
}

/// A message that is ready to send.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The jobs that it names.
    pub(crate) jobs: Vec<JobId>,
    subject: Subject,
    headers: HeaderMap,
    body: Bytes,
}

/// The address of a sender's confirmations. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReplyTo(Arc<str>);

/// The stream's answers to a sender's messages, in order of arrival.
///
/// Answers that were on their way when the connection broke never arrive.
pub(crate) struct Confirmations {
    answers: Subscriber,
    reply_to: ReplyTo,
    groups: u64,
}

/// The stream's answer to one message.
#[derive(Debug)]
pub(crate) struct Confirmation {
    /// The sender's number of the message's group.
    pub(crate) group: u64,
    pub(crate) place: usize,
    pub(crate) said: Result<(), NatsError>,
}

impl Nats {
    /// Returns the subject of a job's messages.
    pub(crate) fn subject(&self, queue: &str, kind: &str) -> String {
        format!("{}.{queue}.{kind}", self.prefix)
    }

    /// Builds the messages of tickets.
    pub(crate) fn prepare(&self, tickets: &[Ticket]) -> Vec<Prepared> {
        together(tickets, self.jobs_per_message).iter().map(|some| self.message_for(some)).collect()
    }

    /// Builds the message of tickets of one queue and kind.
    ///
    /// The message's id holds the dispatch: under the job's id alone, the stream would drop a legitimate republication
    /// as a duplicate.
    fn message_for(&self, tickets: &[&Ticket]) -> Prepared {
        let first = tickets[0];
        let job_id = first.job.to_string();
        let body = body(&job_id, tickets);
        let mut headers = HeaderMap::new();
        let (id, subject) = match tickets.len() {
            1 => (format!("{job_id}:{}", first.dispatch), self.subject(&first.queue, &first.kind)),
            n => {
                let last = tickets[n - 1].job;
                (format!("{job_id}:{}+{last}", first.dispatch), self.subject_of_several(first, n))
            }
        };
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert(JOB_ID_HEADER, job_id);
        if let [Ticket { trace_context: Some(context), .. }] = tickets {
            headers.insert(TRACE_HEADER, context.as_str());
        }
        let jobs = tickets.iter().map(|ticket| ticket.job).collect();
        Prepared { jobs, subject: subject.into(), headers, body: body.into() }
    }

    fn subject_of_several(&self, of: &Ticket, jobs: usize) -> String {
        format!("{}.{}.{SEVERAL}{jobs}.{}", self.prefix, of.queue, of.kind)
    }

    /// Subscribes to the confirmations of one sender, for messages that it sends from then on.
    pub(crate) async fn confirmations(&self) -> Result<Confirmations, NatsError> {
        let inbox = self.client.new_inbox();
        let answers =
            self.client.subscribe(format!("{inbox}.*")).await.map_err(|error| unavailable(&error))?;
        Ok(Confirmations { answers, reply_to: ReplyTo(inbox.into()), groups: 0 })
    }

    /// Sends one message, whose confirmation arrives at `reply_to` with this `group` and `place`.
    ///
    /// While NATS is away, the client accepts some messages and then makes its callers wait: check the connection
    /// first.
    pub(crate) async fn send(
        &self,
        message: Prepared,
        reply_to: &ReplyTo,
        group: u64,
        place: usize,
    ) -> Result<(), NatsError> {
        let reply_to = format!("{}.{group}-{place}", reply_to.0);
        let Prepared { subject, headers, body, .. } = message;
        let sent = self.client.publish_with_reply_and_headers(subject, reply_to, headers, body).await;
        sent.map_err(|error| unavailable(&error))
    }

    /// Publishes many tickets at a time. Returns for each whether the stream confirmed it. The first call fills
    /// `confirmations`, and later calls reuse it.
    pub(crate) async fn publish(
        &self,
        tickets: &[Ticket],
        confirmations: &mut Option<Confirmations>,
    ) -> Vec<Result<(), NatsError>> {
        let messages = self.prepare(tickets);
        let at = messages
            .iter()
            .enumerate()
            .flat_map(|(at, message)| message.jobs.iter().map(move |job| (*job, at)));
        let at: HashMap<JobId, usize> = at.collect();
        let mut answers = vec![Err(silence()); messages.len()];
        let mut unconfirmed = 0;
        let confirmed = async {
            let confirmations = match confirmations {
                Some(confirmations) => confirmations,
                none => match self.confirmations().await {
                    Ok(made) => none.insert(made),
                    Err(error) => return answers.fill(Err(error)),
                },
            };
            confirmations.groups += 1;
            let (group, reply_to) = (confirmations.groups, confirmations.reply_to.clone());
            for (place, message) in messages.into_iter().enumerate() {
                let sent = if self.is_connected() {
                    self.send(message, &reply_to, group, place).await
                } else {
                    Err(unavailable(&"not connected"))
                };
                match sent {
                    Ok(()) => unconfirmed += 1,
                    Err(error) => answers[place] = Err(error),
                }
            }
            while unconfirmed > 0 {
                let Some(confirmation) = confirmations.next().await else { break };
                // A late confirmation belongs to an earlier group.
                if confirmation.group == group
                    && let Some(answer) = answers.get_mut(confirmation.place)
                {
                    *answer = confirmation.said;
                    unconfirmed -= 1;
                }
            }
        };
        drop(timeout(self.publish_within, confirmed).await);
        tickets
            .iter()
            .map(|ticket| at.get(&ticket.job).map_or_else(|| Err(silence()), |at| answers[*at].clone()))
            .collect()
    }
}

impl Confirmations {
    pub(crate) fn reply_to(&self) -> ReplyTo {
        self.reply_to.clone()
    }

    /// Returns the next confirmation. `None`: the client is closed.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Confirmation> {
        loop {
            let message = self.answers.next().await?;
            let number = message.subject.rsplit('.').next().and_then(|last| last.split_once('-'));
            let Some((group, place)) =
                number.and_then(|(group, place)| Some((group.parse().ok()?, place.parse().ok()?)))
            else {
                continue;
            };
            return Some(Confirmation { group, place, said: said(&message) });
        }
    }
}

/// Returns the error about a message that the stream did not confirm.
pub(crate) fn silence() -> NatsError {
    unavailable(&"the stream did not confirm in time")
}

fn said(message: &Message) -> Result<(), NatsError> {
    /// A stream's answer to a publication.
    #[derive(Deserialize)]
    struct Answer {
        error: Option<async_nats::jetstream::Error>,
        /// The message's sequence.
        seq: Option<u64>,
    }
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(unavailable(
            &"no stream stores messages of this subject; run `tenure migrate`, or start a worker",
        ));
    }
    match serde_json::from_slice::<Answer>(&message.payload) {
        Ok(Answer { error: Some(error), .. }) => Err(unavailable(&error)),
        Ok(Answer { seq: Some(_), .. }) => Ok(()),
        Ok(Answer { seq: None, .. }) => {
            Err(unavailable(&"a subscriber that is no stream answered the publication"))
        }
        Err(error) => Err(unavailable(&error)),
    }
}

/// Divides tickets into the tickets of each message, in their order. A message names 1, 2, 4, 8 and so on: the stream
/// keeps count of each subject, and has few of them. `most`: as the settings say. `None`: as the tickets say.
fn together(tickets: &[Ticket], most: Option<usize>) -> Vec<Vec<&Ticket>> {
    let mut order: Vec<usize> = (0..tickets.len()).collect();
    let of = |at: &usize| {
        let ticket = &tickets[*at];
        (&ticket.queue, &ticket.kind, ticket.is_sociable(), ticket.jobs_per_message)
    };
    order.sort_by(|one, other| of(one).cmp(&of(other)));
    let mut messages: Vec<&[usize]> = Vec::new();
    for alike in order.chunk_by(|one, other| of(one) == of(other)) {
        let first = &tickets[alike[0]];
        let most = most.unwrap_or(first.jobs_per_message).clamp(1, JOBS_PER_MESSAGE_MAX);
        let mut each = if first.is_sociable() { (alike.len() / SPREAD).clamp(1, most) } else { 1 };
        let mut left = alike;
        while !left.is_empty() {
            each = 1 << each.min(left.len()).ilog2();
            let (message, others) = left.split_at(each);
            messages.push(message);
            left = others;
        }
    }
    messages.sort_unstable_by_key(|places| places[0]);
    messages.into_iter().map(|places| places.iter().map(|at| &tickets[*at]).collect()).collect()
}

/// Begins the part of a subject that says how many jobs its messages name. No kind can begin with it.
pub(crate) const SEVERAL: char = '+';

/// Splits the part of a subject behind its queue into the kind and the number of jobs that the message names.
pub(crate) fn kind_and_jobs(after_queue: &str) -> Option<(&str, usize)> {
    let Some(several) = after_queue.strip_prefix(SEVERAL) else { return Some((after_queue, 1)) };
    let (jobs, kind) = several.split_once('.')?;
    jobs.parse().ok().filter(|jobs| (2..=JOBS_PER_MESSAGE_MAX).contains(jobs)).map(|jobs| (kind, jobs))
}

/// Builds the body that [`TicketBody`] reads.
fn body(job_id: &str, tickets: &[&Ticket]) -> String {
    let Ticket { dispatch, clear_reason, .. } = tickets[0];
    let cleared = clear_reason.is_some();
    let reason = clear_reason.as_deref().map_or(Value::Null, Value::from);
    let mut body =
        format!(r#"{{"job_id":"{job_id}","dispatch":{dispatch},"cleared":{cleared},"clear_reason":{reason}"#);
    for (n, Ticket { job, dispatch, .. }) in tickets[1..].iter().enumerate() {
        let before = if n == 0 { r#","more":["# } else { "," };
        body.extend([before, "[\"", &job.to_string(), "\",", &dispatch.to_string(), "]"]);
    }
    body.push_str(if tickets.len() > 1 { "]}" } else { "}" });
    body
}

fn unavailable(error: &dyn std::fmt::Display) -> NatsError {
    NatsError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_body_is_read_as_it_was_written() -> serde_json::Result<()> {
        for reason in [None, Some(r#"the worker said "no""#.to_owned())] {
            let ticket = Ticket {
                job: JobId::generate(),
                queue: "mail".into(),
                kind: "send".into(),
                dispatch: 3,
                clear_reason: reason.clone(),
                trace_context: None,
                jobs_per_message: 1,
            };
            let body = body(&ticket.job.to_string(), &[&ticket]);
            let read: TicketBody = serde_json::from_str(&body)?;
            assert_eq!((read.job_id, read.dispatch, read.cleared), (ticket.job, 3, reason.is_some()));
            assert_eq!(read.more, []);
            assert_eq!(serde_json::from_str::<Value>(&body)?["clear_reason"], Value::from(reason));
        }
        Ok(())
    }

    fn tickets(queue: &str, kind: &str, dispatch: i32, n: usize) -> Vec<Ticket> {
        let ticket = |_| Ticket {
            job: JobId::generate(),
            queue: queue.into(),
            kind: kind.into(),
            dispatch,
            clear_reason: None,
            trace_context: None,
            jobs_per_message: 1,
        };
        (0..n).map(ticket).collect()
    }

    #[test]
    fn one_message_names_several_jobs_of_a_burst_and_a_burst_is_several_messages() {
        let sizes =
            |n, most| together(&tickets("q", "k", 1, n), Some(most)).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(0, 16), [0; 0]);
        assert_eq!(sizes(15, 16), [1; 15]);
        assert_eq!(sizes(35, 16), [4, 4, 4, 4, 4, 4, 4, 4, 2, 1]);
        assert_eq!(sizes(100, 16).iter().collect::<HashSet<_>>(), [8, 4].iter().collect());
        assert_eq!(sizes(1_000, 16).len(), 63);
        assert_eq!(sizes(1_000, 10).len(), 125);
        assert_eq!(sizes(1_000, 1), [1; 1_000]);
        let again = tickets("q", "k", 2, 100);
        assert_eq!(together(&again, Some(16)).len(), 100, "a job that was published before goes alone");
    }

    #[test]
    fn a_message_names_jobs_of_one_queue_and_kind_in_the_order_of_their_tickets() {
        let all: Vec<_> =
            (0..40).flat_map(|_| ["a", "b"].into_iter().flat_map(|kind| tickets("q", kind, 1, 1))).collect();
        let messages = together(&all, Some(16));
        assert_eq!(messages.len(), 20);
        assert!(messages.iter().all(|some| some.iter().all(|ticket| ticket.kind == some[0].kind)));
        let firsts: Vec<_> = messages.iter().map(|some| some[0].job).collect();
        let place = |job| all.iter().position(|ticket| ticket.job == job);
        assert!(firsts.is_sorted_by_key(|job| place(*job)));
        let named = messages.iter().flatten().count();
        assert_eq!(named, all.len());
    }

    #[test]
    fn the_body_and_the_subject_of_several_are_read_as_they_were_written() -> serde_json::Result<()> {
        let all = tickets("q", "k", 1, 3);
        let body = body(&all[0].job.to_string(), &all.iter().collect::<Vec<_>>());
        let read: TicketBody = serde_json::from_str(&body)?;
        assert_eq!((read.job_id, read.more), (all[0].job, vec![(all[1].job, 1), (all[2].job, 1)]));
        for (text, expected) in [
            ("k", Some(("k", 1))),
            ("+3.k", Some(("k", 3))),
            ("+16.a.b", Some(("a.b", 16))),
            ("+1.k", None),
            ("+65.k", None),
            ("+3", None),
            ("+x.k", None),
        ] {
            assert_eq!(kind_and_jobs(text), expected, "{text}");
        }
        Ok(())
    }
}
