//! Jobs: shows one job and what it has printed, cancels it, retries it.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::StatusCode,
    response::Response,
};

use super::{Api, Failure, Id, body, json, query::Query};
use chrono::Utc;
use serde::Serialize;

use crate::{access::Who, lanes::Held, shapes::Answer, timeline::seconds};
use tenure::{
    JobId, Status,
    audit::Actor,
    jobs::{CancelOutcome, RetryOutcome},
    rows::JobRow,
};

/// The words with which the library's error about a payload that does not fit begins. What follows quotes the payload.
const MISFIT: &str = "the payload does not fit the type of its handler";

/// A job, and for what its lane holds it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    job: JobRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Held>,
}

/// A job as JSON, without its payload and output where they are hidden.
pub(super) fn shown(api: &Api, status: StatusCode, job: JobRow) -> Response {
    json(status, &if api.shows_payloads { job } else { hidden(job) })
}

/// Removes the payload and the output of a job, also from its error.
pub(super) fn hidden(job: JobRow) -> JobRow {
    let mut job = job.without_payload();
    cut(&mut job.last_error);
    job
}

/// Cuts off what an error quotes of a payload that does not fit the handler's type.
pub(super) fn cut(error: &mut Option<String>) {
    if let Some(error) = error
        && let Some(at) = error.find(MISFIT)
    {
        error.truncate(at + MISFIT.len());
    }
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    let read = |api: Arc<Api>| async move {
        let (tenure, job) = api.tenures.find(id, &who.looks).await?;
        let held = Held::read(tenure, &job, Utc::now(), seconds).await?;
        Ok((job, held))
    };
    let (job, held) = api.read(read).await?;
    let job = if api.shows_payloads { job } else { hidden(job) };
    Ok(json(StatusCode::OK, &Shown { job, held }))
}

/// Answers with what the last attempts of a job have printed, the latest first.
pub(super) async fn logs(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    let read = |api: Arc<Api>| async move {
        let (tenure, _) = api.tenures.find(id, &who.looks).await?;
        if !api.shows_payloads {
            return Err(Failure::logs_hidden());
        }
        Ok(tenure.job_logs(id).await?)
    };
    Ok(json(StatusCode::OK, &api.read(read).await?))
}

pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    body::empty(body).await?;
    let (actor, of) = (Actor::new(&who.name).via("api"), who.clone());
    let outcome = api
        .act(|api| async move { Ok(api.tenures.acted_on(id, &of).await?.acting_as(actor).cancel(id).await?) })
        .await?;
    tracing::info!(who = who.name, job = %id, action = "cancel", ?outcome, "API action done");
    match outcome {
        CancelOutcome::NotFound => Err(Failure::no_job(id)),
        // What was asked for is so already.
        CancelOutcome::Finished { status } if status != Status::Cancelled => Err(has_ended(id, status)),
        outcome => Ok(json(StatusCode::OK, &Answer { id, outcome: &outcome })),
    }
}

pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Id(id): Id,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    body::empty(body).await?;
    let (actor, of) = (Actor::new(&who.name).via("api"), who.clone());
    let outcome = api
        .act(|api| async move { Ok(api.tenures.acted_on(id, &of).await?.acting_as(actor).retry(id).await?) })
        .await?;
    tracing::info!(who = who.name, job = %id, action = "retry", ?outcome, "API action done");
    match outcome {
        RetryOutcome::NotFound => Err(Failure::no_job(id)),
        RetryOutcome::Finished { status } => Err(has_ended(id, status)),
        RetryOutcome::Refused => {
            let message = format!("{id} is a message that was refused before it became a job");
            let failure = Failure::new(StatusCode::CONFLICT, "refused_message", message);
            Err(failure.hint("it would be refused again; publish a corrected one"))
        }
        outcome => Ok(json(StatusCode::OK, &Answer { id, outcome: &outcome })),
    }
}

/// The job has ended in a way that the action cannot change.
fn has_ended(id: JobId, status: Status) -> Failure {
    Failure::new(StatusCode::CONFLICT, "already_ended", format!("job {id} is already {status}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_payload_loses_what_it_quotes() {
        for (said, shown) in [
            ("the payload does not fit the type of its handler: invalid type: string \"secret\"", MISFIT),
            (MISFIT, MISFIT),
            ("no such customer", "no such customer"),
        ] {
            let mut error = Some(said.to_owned());
            cut(&mut error);
            assert_eq!(error.as_deref(), Some(shown));
        }
    }
}
