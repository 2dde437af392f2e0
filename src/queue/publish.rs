//! Publish: a ticket is a message for a row that exists.

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::connect::{Queue, QueueError};
use crate::job::JobId;

/// The header that makes a message a ticket.
pub(crate) const JOB_ID: &str = "Tenure-Job-Id";

/// How many publications may be unconfirmed at once.
const UNCONFIRMED_MAX: usize = 512;

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
    ///
    /// The id of a message holds its dispatch: under the job's id alone the stream would drop a
    /// legitimate re-publication as a duplicate.
    pub(crate) async fn publish(&self, tickets: Vec<Ticket>) -> Vec<Result<(), QueueError>> {
        if !self.is_connected() {
            return tickets.iter().map(|_| Err(QueueError::Unavailable("not connected".into()))).collect();
        }
        stream::iter(tickets).map(|ticket| self.publish_one(ticket)).buffered(UNCONFIRMED_MAX).collect().await
    }

    async fn publish_one(&self, ticket: Ticket) -> Result<(), QueueError> {
        let unavailable = |error: &dyn std::fmt::Display| QueueError::Unavailable(error.to_string());
        let body = TicketBody {
            job_id: ticket.job,
            dispatch: ticket.dispatch,
            cleared: ticket.clear_reason.is_some(),
            clear_reason: ticket.clear_reason,
        };
        let body = serde_json::to_vec(&body).map_err(|error| unavailable(&error))?;
        let mut headers = HeaderMap::new();
        headers.insert(JOB_ID, ticket.job.to_string());
        headers.insert(NATS_MESSAGE_ID, format!("{}:{}", ticket.job, ticket.dispatch));
        if let Some(context) = &ticket.trace_context {
            headers.insert("traceparent", context.as_str());
        }
        let confirmation = self
            .context
            .publish_with_headers(self.subject(&ticket.queue, &ticket.kind), headers, body.into())
            .await
            .map_err(|error| unavailable(&error))?;
        confirmation.await.map(drop).map_err(|error| unavailable(&error))
    }
}
