//! Enqueue: a job from JSON, with a unique key from the body or from the header `Idempotency-Key`.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;

use super::{Api, Failure, body, json, query::Query, tenures::check};
use crate::access::Who;
use tenure::{JobRequest, OnExpiry, internals::MAX_ATTEMPTS_DEFAULT};

/// What a body may hold besides its payload.
const REST_MAX: usize = 64 * 1024;
const KEY: &str = "idempotency-key";

/// A job to enqueue.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewJob {
    queue: String,
    kind: String,
    /// As text: numbers keep all their digits.
    payload: Box<RawValue>,
    #[serde(default)]
    unique_key: Option<String>,
    #[serde(default)]
    run_at: Option<DateTime<Utc>>,
    #[serde(default, deserialize_with = "delay")]
    delay: Option<Duration>,
    #[serde(default)]
    max_attempts: Option<u32>,
    #[serde(default)]
    lane: Option<String>,
    #[serde(default)]
    priority: Option<i16>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    not_after: Option<DateTime<Utc>>,
    #[serde(default)]
    on_expiry: Option<Expires>,
    #[serde(default)]
    replace: Option<String>,
    #[serde(default, deserialize_with = "longest_wait")]
    longest_wait: Option<Duration>,
    #[serde(default)]
    unique_while_queued: Option<String>,
    #[serde(default)]
    unique_while_live: Option<String>,
}

/// What becomes of a job that was not started by its time.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Expires {
    DeadLetter,
    Cancel,
}

impl NewJob {
    /// Sets what the body says of the lane, the time and the lasting key. Returns whether it says such a key.
    fn rare(&self, mut request: JobRequest) -> Result<(JobRequest, bool), Failure> {
        if let Some(lane) = &self.lane {
            request = request.lane(lane);
        }
        if let Some(priority) = self.priority {
            request = request.priority(priority);
        }
        request = self.tags.iter().fold(request, JobRequest::tag);
        match (self.not_after, self.on_expiry) {
            (None, Some(_)) => {
                return Err(Failure::invalid("the job has `on_expiry` without `not_after`; add that time"));
            }
            (Some(at), becomes) => {
                let becomes = match becomes {
                    Some(Expires::Cancel) => OnExpiry::Cancel,
                    _ => OnExpiry::DeadLetter,
                };
                request = request.not_after(at).on_expiry(becomes);
            }
            (None, None) => {}
        }
        let (replace, queued, live) = (&self.replace, &self.unique_while_queued, &self.unique_while_live);
        let has_key = match (replace, queued, live) {
            (None, None, None) => false,
            (Some(key), None, None) => {
                request = request.replace(key);
                true
            }
            (None, Some(key), None) => {
                request = request.unique_while_queued(key);
                true
            }
            (None, None, Some(key)) => {
                request = request.unique_while_live(key);
                true
            }
            _ => {
                return Err(Failure::invalid(
                    "the job has two of `replace`, `unique_while_queued` and `unique_while_live`; \
                     leave all but one out",
                ));
            }
        };
        if let Some(wait) = self.longest_wait {
            request = request.longest_wait(wait);
        }
        Ok((request, has_key))
    }
}

fn longest_wait<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from, "longest_wait")
}

fn delay<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from, "delay")
}

fn duration<'de, D: Deserializer<'de>>(from: D, name: &str) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let wrong = |_| D::Error::custom(format!("`{name}` must be a duration such as 500ms, 30s, 2h or 30d"));
    humantime::parse_duration(&text).map(Some).map_err(wrong)
}

pub(super) async fn enqueue(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    Query::read(query.as_deref(), &[])?;
    if !body::is_json(&headers) {
        return Err(body::not_json());
    }
    let most = api.payload_bytes_max.saturating_add(REST_MAX);
    let what = format!("a payload has at most {} bytes (TENURE_PAYLOAD_BYTES_MAX)", api.payload_bytes_max);
    let mut job: NewJob = body::parsed(&body::received(body, most, &what).await?)?;
    let key = key(job.unique_key.take(), &headers)?;
    check(&who, &job.queue)?;
    let (queue, kind) = (job.queue.clone(), job.kind.clone());
    let payload = std::mem::take(&mut job.payload);
    let request = JobRequest::from_json(&job.queue, &job.kind, Box::<str>::from(payload))
        .max_attempts(job.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT));
    let (mut request, has_lasting_key) = job.rare(request)?;
    let has_key = key.is_some() || has_lasting_key;
    match (job.run_at, job.delay) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid("the job has both `run_at` and `delay`; leave one out"));
        }
        (Some(at), None) => request = request.run_at(at),
        (None, Some(delay)) => request = request.delay(delay),
        (None, None) => {}
    }
    if let Some(key) = key {
        request = request.unique_key(key);
    }
    // An invalid one is ignored, as the standard says.
    if let Some(context) = headers.get("traceparent").and_then(|value| value.to_str().ok()) {
        request = request.trace_context(context);
    }
    let enqueued = api.act(|api| async move { api.tenures.enqueue(request, has_key).await }).await?;
    let job = enqueued.id;
    // At debug level: a producer may send thousands a second.
    tracing::debug!(who = who.name, %job, queue, kind, duplicate = enqueued.duplicate, "a job came by the API");
    let status = if enqueued.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = json(status, &enqueued);
    if let Ok(location) = HeaderValue::try_from(format!("{}/jobs/{job}", api.base)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// The unique key of the body, or that of the header. Both may be there if they are the same.
fn key(of_body: Option<String>, headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut sent = headers.get_all(KEY).iter();
    let (first, more) = (sent.next(), sent.next());
    if more.is_some() {
        return Err(Failure::invalid("the header Idempotency-Key is there twice; send it once"));
    }
    let of_header = first
        .map(|value| {
            let text = std::str::from_utf8(value.as_bytes());
            text.map(unquoted).map_err(|_| Failure::invalid("the header Idempotency-Key is not UTF-8"))
        })
        .transpose()?;
    match (of_body, of_header) {
        (Some(body), Some(header)) if body != header => Err(Failure::invalid(
            "`unique_key` and the header Idempotency-Key differ; send one of them, or the same in both",
        )),
        (body, header) => Ok(body.or(header)),
    }
}

/// The text of a header that may be quoted, as the standard for this one asks for.
fn unquoted(text: &str) -> String {
    let text = text.trim();
    let Some(inside) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return text.to_owned();
    };
    let mut plain = String::with_capacity(inside.len());
    let mut characters = inside.chars();
    while let Some(c) = characters.next() {
        plain.push(if c == '\\' { characters.next().unwrap_or(c) } else { c });
    }
    plain
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_in_the_body_and_in_the_header_quoted_or_not() {
        let headers = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(KEY, HeaderValue::from_bytes(value).unwrap());
            }
            headers
        };
        let of = |body: Option<&str>, values: &[&[u8]]| key(body.map(str::to_owned), &headers(values));
        for (body, values, is) in [
            (None, &[][..], None),
            (Some("a"), &[], Some("a")),
            (None, &[&b"a"[..]], Some("a")),
            (None, &[b" \"a\" "], Some("a")),
            (Some("a"), &[b"\"a\""], Some("a")),
            (None, &[br#""a\"b\\c""#], Some("a\"b\\c")),
            (None, &["\u{fc}".as_bytes()], Some("\u{fc}")),
            (None, &[b"\""], Some("\"")),
            (None, &[b""], Some("")),
        ] {
            assert_eq!(of(body, values).unwrap().as_deref(), is, "{body:?} {values:?}");
        }
        assert!(of(Some("a"), &[b"b"]).unwrap_err().message.contains("differ"));
        assert!(of(None, &[b"a", b"a"]).unwrap_err().message.contains("twice"));
        assert!(of(None, &[b"\xff"]).unwrap_err().message.contains("UTF-8"));
    }
}
