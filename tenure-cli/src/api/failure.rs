//! Failure: why a request fails, as JSON: `{"error": {"code", "message", "hint"}}`.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::access::Refused;
use tenure::{EnqueueError, JobId, StoreError, cells::CellsError, internals::chained};

/// After how many seconds to try again while Postgres is away.
pub(super) const AWAY_S: u64 = 5;
/// The same for what passes in a moment.
pub(super) const MOMENT_S: u64 = 1;

/// Why a request fails.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    /// For programs.
    code: &'static str,
    pub(super) message: String,
    /// What to do about it.
    hint: Option<String>,
    /// After how many seconds the client may try again.
    retry_after: Option<u64>,
    challenge: Option<&'static str>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None, retry_after: None, challenge: None }
    }

    /// A value that the API does not take.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    pub(super) fn no_job(id: JobId) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("job {id} does not exist")).hint(
            "it never did, or retention removed it, or it completed and its kind keeps no history, or its transaction \
             has not been committed",
        )
    }

    /// The requested job has ended, and its kind keeps nothing of it.
    pub(super) fn no_history(id: JobId) -> Self {
        let message = format!("job {id} has completed, and its kind keeps no history");
        Self::new(StatusCode::GONE, "no_history", message)
    }

    /// What a job prints may quote its payload.
    pub(super) fn logs_hidden() -> Self {
        let message = "this server hides payloads, and so what jobs have printed";
        let failure = Self::new(StatusCode::FORBIDDEN, "logs_hidden", message);
        failure.hint("use `tenure jobs log`, or a server without --hide-payloads")
    }

    /// A bug: the work panicked. Or the program is ending.
    pub(super) fn broken() -> Self {
        let failure = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request failed");
        failure.hint("see the log of `tenure serve`")
    }

    /// The sender may not look.
    pub(super) fn refused(why: Refused, challenge: &'static str) -> Self {
        let (status, code) = match why {
            Refused::Unknown | Refused::Wrong => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Refused::TooMany(..) => (StatusCode::TOO_MANY_REQUESTS, "too_many_guesses"),
            Refused::OtherHost => (StatusCode::FORBIDDEN, "other_host"),
            Refused::NotListed { .. } => (StatusCode::FORBIDDEN, "may_not_look"),
        };
        let challenge = (status == StatusCode::UNAUTHORIZED).then_some(challenge);
        Self { retry_after: why.wait_s(), challenge, ..Self::new(status, code, why.text()) }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after(AWAY_S)
    }

    /// A failure of an enqueue; `has_key`: to repeat it is safe.
    pub(super) fn of_enqueue(error: EnqueueError, has_key: bool) -> Self {
        let text = error.to_string();
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, text.clone());
        match error {
            EnqueueError::Store(error) if error.is_unavailable() => {
                let failure = Self::from(error.clone());
                if error.is_answered() {
                    return failure.hint("nothing was enqueued; send it again");
                }
                failure.hint(if has_key {
                    "the job may be enqueued; send it again with the same key: it becomes one job"
                } else {
                    "the job may be enqueued: look at the newest jobs before you send it again; a request with an \
                     Idempotency-Key is safe to repeat"
                })
            }
            EnqueueError::Store(error) => error.into(),
            EnqueueError::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text),
            EnqueueError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", text).retry_after(AWAY_S)
            }
            EnqueueError::KeyBusy { .. } => conflict("key_busy").retry_after(MOMENT_S),
            _ => Self::invalid(text),
        }
    }

    /// A failure of an enqueue into one of several cells.
    pub(super) fn of_cells(error: CellsError, has_key: bool) -> Self {
        match error {
            CellsError::Enqueue { source, .. } => Self::of_enqueue(source, has_key),
            CellsError::Store { source, .. } => source.into(),
            error => Self::invalid(chained(&error)),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let text = chained(&error);
        if error.is_unavailable() {
            return Self::unavailable(text);
        }
        if error.is_denied() {
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "denied", text).hint(
                "give the role of `tenure serve` the rights of tenure_operator, or of tenure_viewer to look \
                 (postgres/roles.sql)",
            );
        }
        match error {
            // `tenure migrate` ends this as a restart of Postgres ends an outage.
            StoreError::NotMigrated(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_migrated", text).retry_after(AWAY_S)
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self { status, code, message, hint, retry_after, challenge } = self;
        let mut error = json!({ "code": code, "message": message });
        if let Some(hint) = hint {
            error["hint"] = hint.into();
        }
        let mut response = super::json(status, &json!({ "error": error }));
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(challenge) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}
