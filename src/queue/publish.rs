//! Publish: a ticket is a message for a row that exists.

use std::future::IntoFuture;

use async_nats::{
    HeaderMap,
    header::NATS_MESSAGE_ID,
    jetstream::context::{PublishAckFuture, PublishErrorKind},
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::connect::{Queue, QueueError};
use crate::job::JobId;

/// The header that makes a message a ticket.
pub(crate) const JOB_ID: &str = "Tenure-Job-Id";

/// "This row may be runnable."
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) job: JobId,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) dispatch: i32,
    /// Why the job was taken back, if it was.
    pub(crate) clear_reason: Option<String>,
    pub(crate) trace_context: Option<String>,
}

/// What stands in a ticket's body.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TicketBody {
    pub(crate) job_id: JobId,
    pub(crate) dispatch: i32,
    #[serde(default)]
    pub(crate) cleared: bool,
    #[serde(default)]
    pub(crate) clear_reason: Option<String>,
}

impl Queue {
    /// The subject of a job's messages.
    pub(crate) fn subject(&self, queue: &str, kind: &str) -> String {
        format!("{}.{queue}.{kind}", self.prefix)
    }

    /// Publishes tickets, many at a time; tells for each whether the stream confirmed it.
    pub(crate) async fn publish(&self, tickets: &[Ticket]) -> Vec<Result<(), QueueError>> {
        let mut sent = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            sent.push(self.send(ticket).await);
        }
        let mut answers = Vec::with_capacity(sent.len());
        for unconfirmed in sent {
            answers.push(match unconfirmed {
                Ok(mut unconfirmed) => unconfirmed.confirmed().await.map_err(|not| not.error),
                Err(error) => Err(error),
            });
        }
        answers
    }

    /// Waits until the socket has taken every message that was sent so far.
    ///
    /// Without a connection it waits for the next one: give it a limit. Cancel safe.
    pub(crate) async fn written(&self) {
        // An error says that the client is closed: nothing will be written any more.
        self.client.flush().await.ok();
    }

    /// Sends one ticket, whose confirmation is still to come.
    ///
    /// The id of a message holds its dispatch: under the job's id alone the stream would drop a
    /// legitimate re-publication as a duplicate.
    pub(crate) async fn send(&self, ticket: &Ticket) -> Result<Unconfirmed, QueueError> {
        if !self.is_connected() {
            return Err(QueueError::Unavailable("not connected".into()));
        }
        let body = TicketBody {
            job_id: ticket.job,
            dispatch: ticket.dispatch,
            cleared: ticket.clear_reason.is_some(),
            clear_reason: ticket.clear_reason.clone(),
        };
        let body = serde_json::to_vec(&body).map_err(|error| unavailable(&error))?;
        let mut headers = HeaderMap::new();
        headers.insert(JOB_ID, ticket.job.to_string());
        headers.insert(NATS_MESSAGE_ID, format!("{}:{}", ticket.job, ticket.dispatch));
        if let Some(context) = &ticket.trace_context {
            headers.insert("traceparent", context.as_str());
        }
        let subject = self.subject(&ticket.queue, &ticket.kind);
        let sent = self.context.publish_with_headers(subject, headers, body.into()).await;
        let confirmation = sent.map_err(|error| unavailable(&error))?;
        // Its own limit would begin when it is first asked, which may be late.
        let within = Instant::now() + self.publish_within;
        Ok(Unconfirmed { confirmation: confirmation.into_future(), within })
    }
}

/// A message that was sent, and not confirmed yet.
pub(crate) struct Unconfirmed {
    confirmation: <PublishAckFuture as IntoFuture>::IntoFuture,
    within: Instant,
}

/// Why a message counts as not published.
#[derive(Debug)]
pub(crate) struct NotConfirmed {
    pub(crate) error: QueueError,
    /// Whether the stream said nothing at all: the next message would wait as long in vain.
    pub(crate) is_silence: bool,
}

impl Unconfirmed {
    /// Waits for the stream's answer, within the time that a publication may take.
    ///
    /// Cancel safe. Not to be called again after it answered.
    pub(crate) async fn confirmed(&mut self) -> Result<(), NotConfirmed> {
        match timeout_at(self.within, &mut self.confirmation).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let is_silence = error.kind() == PublishErrorKind::TimedOut;
                Err(NotConfirmed { error: unavailable(&error), is_silence })
            }
            Err(_) => {
                let error = unavailable(&"the stream did not confirm in time");
                Err(NotConfirmed { error, is_silence: true })
            }
        }
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> QueueError {
    QueueError::Unavailable(error.to_string())
}
