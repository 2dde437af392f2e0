//! Body: receives the JSON that a request sends.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
};
use futures::StreamExt;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use tokio::time::timeout;

use super::Failure;
use tenure::internals::duration::written;

/// How long a body may take to arrive.
const WITHIN: Duration = Duration::from_secs(10);
/// The largest body of a request that has nothing to say.
const EMPTY_MAX: usize = 1024;
/// How many bytes beyond its limit to read of a body and drop: a connection that closes with unread bytes may take the
/// answer along.
const DROPPED_MAX: usize = 16 * 1024 * 1024;

/// Whether the request says that its body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let named = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = named.and_then(|named| named.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

pub(super) fn not_json() -> Failure {
    let failure = Failure::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "the request does not say that it sends JSON",
    );
    failure.hint(
        "send the header Content-Type: application/json; without a body, too, unless you send a bearer token",
    )
}

/// Receives a body of at most `most` bytes.
pub(super) async fn received(body: Body, most: usize, what: &str) -> Result<Bytes, Failure> {
    let receive = async {
        let (mut bytes, mut dropped) = (Vec::new(), 0_usize);
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let Ok(part) = part else {
                let cut = "the connection broke off before the whole body had arrived";
                return Err(Failure::new(StatusCode::BAD_REQUEST, "bad_request", cut));
            };
            if dropped == 0 && bytes.len() + part.len() <= most {
                bytes.extend_from_slice(&part);
                continue;
            }
            bytes = Vec::new();
            dropped = dropped.saturating_add(part.len());
            if dropped > DROPPED_MAX {
                break;
            }
        }
        if dropped > 0 {
            let message = format!("the body has more than {most} bytes");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint(what));
        }
        Ok(bytes.into())
    };
    timeout(WITHIN, receive).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {}; nothing was changed", written(WITHIN));
        Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
    })
}

/// Reads the JSON object of a body.
pub(super) fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    // A list of values would do for a structure, too.
    let is_object = bytes.trim_ascii_start().first() == Some(&b'{');
    if !is_object && serde_json::from_slice::<IgnoredAny>(bytes).is_ok() {
        return Err(Failure::invalid("the body is JSON, but no object"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            return Failure::invalid(format!("the body is not what this address takes: {error}"));
        }
        let message = format!("the body is not JSON: {error}");
        Failure::new(StatusCode::BAD_REQUEST, "bad_request", message)
    })
}

/// A body that says nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

/// Takes a body that says nothing: none, or `{}`.
pub(super) async fn empty(body: Body) -> Result<(), Failure> {
    let bytes = received(body, EMPTY_MAX, "this address takes no body, or {}").await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(());
    }
    parsed::<Empty>(&bytes).map(drop)
}
