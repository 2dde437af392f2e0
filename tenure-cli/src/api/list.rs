//! List: the jobs that match, newest first, with the filters of `tenure jobs list`.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{RawQuery, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};

use super::{Api, Failure, jobs::hidden, json, query::Query, tenures::check_look};
use crate::access::Who;
use tenure::{
    JobId, Status,
    internals::duration::written,
    names::{NameError, check_kind, check_queue, check_tag},
    rows::JobFilter,
};

const PARAMETERS: [&str; 12] = [
    "status",
    "queue",
    "kind",
    "worker",
    "older_than",
    "newer_than",
    "error",
    "tag",
    "before",
    "limit",
    "payloads",
    "cell",
];
/// A status, or one of the two states of a queued job that waits for its time.
const STATES: &str = "queued, scheduled, retrying, held, processing, completed, failed or cancelled";
const AGE: &str = "an age such as 500ms, 30s, 2h or 30d";
/// How many jobs to list, if the client does not say.
const LIMIT: u32 = 50;
/// The most jobs to list: each may have a payload.
const LIMIT_MAX: u32 = 200;

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let query = Query::read(query.as_deref(), &PARAMETERS)?;
    let filters = seen(filter(&query)?, query.get("queue"), &who)?;
    let limit = query.parsed("limit", "a number from 1 to 200", |text| {
        text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit))
    })?;
    let limit = limit.unwrap_or(LIMIT);
    let wants_payloads = query.parsed("payloads", "true or false", |text| text.parse().ok())?;
    let has_payloads = api.shows_payloads && wants_payloads.unwrap_or(true);
    let cell = query.get("cell").map(str::to_owned);
    let read = |api: Arc<Api>| async move {
        let _one = api.listed.acquire().await;
        let mut jobs = Vec::new();
        for filter in &filters {
            jobs.extend(api.tenures.list(filter, limit, has_payloads, cell.as_deref()).await?);
        }
        if filters.len() > 1 {
            jobs.sort_unstable_by_key(|job| Reverse(job.id));
            jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        if !api.shows_payloads {
            jobs = jobs.into_iter().map(hidden).collect();
        }
        let is_full = u32::try_from(jobs.len()) == Ok(limit);
        Ok((json(StatusCode::OK, &jobs), jobs.last().map(|job| job.id).filter(|_| is_full)))
    };
    let (mut response, last) = api.read(read).await?;
    if let Some(last) = last {
        let next = query.with("before", &last.to_string());
        if let Ok(link) = HeaderValue::try_from(format!("<{}/jobs?{next}>; rel=\"next\"", api.base)) {
            response.headers_mut().insert(header::LINK, link);
        }
    }
    Ok(response)
}

/// The lists that answer a user: one, or without a queue one of each queue that the user may look at.
fn seen(filter: JobFilter, queue: Option<&str>, who: &Who) -> Result<Vec<JobFilter>, Failure> {
    match (who.looks.queues(), queue) {
        (None, _) => Ok(vec![filter]),
        (Some(_), Some(queue)) => check_look(who, queue).map(|()| vec![filter]),
        (Some(queues), None) => Ok(queues.iter().map(|queue| filter.clone().queue(queue)).collect()),
    }
}

/// Checks a name. `?` stands for one that a refused message's subject lacked.
fn name<'q>(
    query: &'q Query,
    name: &str,
    check: impl Fn(&str) -> Result<(), NameError>,
) -> Result<Option<&'q str>, Failure> {
    let Some(text) = query.get(name) else { return Ok(None) };
    if text != "?" {
        check(text).map_err(|error| Failure::invalid(error.to_string()))?;
    }
    Ok(Some(text))
}

fn filter(query: &Query) -> Result<JobFilter, Failure> {
    let mut filter = JobFilter::new();
    let state = query.parsed("status", STATES, |word| match word {
        "scheduled" => Some(JobFilter::new().scheduled()),
        "retrying" => Some(JobFilter::new().retrying()),
        "held" => Some(JobFilter::new().held()),
        word => word.parse::<Status>().ok().map(|status| JobFilter::new().status(status)),
    })?;
    if let Some(state) = state {
        filter = state;
    }
    if let Some(queue) = name(query, "queue", check_queue)? {
        filter = filter.queue(queue);
    }
    if let Some(kind) = name(query, "kind", check_kind)? {
        filter = filter.kind(kind);
    }
    let not_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    if let Some(worker) = query.parsed("worker", "the ID of a worker", not_empty)? {
        filter = filter.worker(worker);
    }
    let age = |name| query.parsed(name, AGE, |text| humantime::parse_duration(text).ok());
    let (older, newer): (Option<Duration>, Option<Duration>) = (age("older_than")?, age("newer_than")?);
    if let (Some(older), Some(newer)) = (older, newer)
        && older >= newer
    {
        let [older, newer] = [older, newer].map(written);
        let message = format!("no job is both older than {older} and newer than {newer}; swap the two");
        return Err(Failure::invalid(message));
    }
    if let Some(age) = older {
        filter = filter.older_than(age);
    }
    if let Some(age) = newer {
        filter = filter.newer_than(age);
    }
    if let Some(tags) = query.get("tag") {
        for tag in tags.split(',') {
            check_tag(tag).map_err(|error| Failure::invalid(error.to_string()))?;
            filter = filter.tag(tag);
        }
    }
    if let Some(text) = query.get("error") {
        filter = filter.error(text);
    }
    if let Some(id) = query.parsed("before", "the ID of a job", |text| text.parse::<JobId>().ok())? {
        filter = filter.before(id);
    }
    Ok(filter)
}
