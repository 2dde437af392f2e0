//! Publish: sends tickets, the messages for rows that exist.
//!
//! Producers and the relay send thousands of tickets before the stream confirms the first. One subscription receives
//! all confirmations of a sender: a request for each message would cost the client as much again as the message.

use std::sync::Arc;

use async_nats::{HeaderMap, HeaderName, Message, StatusCode, Subject, Subscriber, header::NATS_MESSAGE_ID};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::connect::{Queue, QueueError};
use crate::job::JobId;

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
}

/// The body of a ticket.
#[derive(Debug, Deserialize)]
pub(crate) struct TicketBody {
    pub(crate) job_id: JobId,
    pub(crate) dispatch: i32,
    #[serde(default)]
    pub(crate) cleared: bool,
}

/// A ticket that is ready to send.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) job: JobId,
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
    pub(crate) said: Result<(), QueueError>,
}

impl Queue {
    /// Returns the subject of a job's messages.
    pub(crate) fn subject(&self, queue: &str, kind: &str) -> String {
        format!("{}.{queue}.{kind}", self.prefix)
    }

    /// Builds the message of a ticket.
    ///
    /// The message's id holds the dispatch: under the job's id alone, the stream would drop a legitimate republication
    /// as a duplicate.
    pub(crate) fn prepare(&self, ticket: &Ticket) -> Prepared {
        let job_id = ticket.job.to_string();
        let body = body(&job_id, ticket);
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, format!("{job_id}:{}", ticket.dispatch));
        headers.insert(JOB_ID_HEADER, job_id);
        if let Some(context) = &ticket.trace_context {
            headers.insert(TRACE_HEADER, context.as_str());
        }
        let subject = self.subject(&ticket.queue, &ticket.kind).into();
        Prepared { job: ticket.job, subject, headers, body: body.into() }
    }

    /// Subscribes to the confirmations of one sender, for messages that it sends from then on.
    pub(crate) async fn confirmations(&self) -> Result<Confirmations, QueueError> {
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
    ) -> Result<(), QueueError> {
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
    ) -> Vec<Result<(), QueueError>> {
        let mut answers = vec![Err(silence()); tickets.len()];
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
            for (place, ticket) in tickets.iter().enumerate() {
                let sent = if self.is_connected() {
                    self.send(self.prepare(ticket), &reply_to, group, place).await
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
        answers
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
pub(crate) fn silence() -> QueueError {
    unavailable(&"the stream did not confirm in time")
}

fn said(message: &Message) -> Result<(), QueueError> {
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

/// Builds the body that [`TicketBody`] reads.
fn body(job_id: &str, ticket: &Ticket) -> String {
    let cleared = ticket.clear_reason.is_some();
    let reason = ticket.clear_reason.as_deref().map_or(Value::Null, Value::from);
    let dispatch = ticket.dispatch;
    format!(r#"{{"job_id":"{job_id}","dispatch":{dispatch},"cleared":{cleared},"clear_reason":{reason}}}"#)
}

fn unavailable(error: &dyn std::fmt::Display) -> QueueError {
    QueueError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
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
            };
            let body = body(&ticket.job.to_string(), &ticket);
            let read: TicketBody = serde_json::from_str(&body)?;
            assert_eq!((read.job_id, read.dispatch, read.cleared), (ticket.job, 3, reason.is_some()));
            assert_eq!(serde_json::from_str::<Value>(&body)?["clear_reason"], Value::from(reason));
        }
        Ok(())
    }
}
