//! Options: what few jobs have: a lane, a priority, tags, a key, an expiry. A job's type says them from its fields, and
//! an enqueue for itself.
//!
//! Not here: their checks (`client::enqueue`), the statement that reads them (`store/job/enqueue.sql`).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// What becomes of a job that was not started by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExpiry {
    /// A dead letter of the category `expired`.
    #[default]
    DeadLetter,
    /// A cancelled job, whose error says that it has expired.
    Cancel,
}

/// Options of the jobs of a type, from their fields: see [`Job::options`](super::Job::options). Each is described at
/// [`JobRequest`](crate::JobRequest), whose methods have the same names and are called after these.
// Serialized as enqueue.sql reads it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[must_use = "return it from `Job::options`"]
pub struct JobOptions {
    #[serde(skip)]
    pub(crate) unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_after: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_in_s: Option<f64>,
    /// `cancelled`; `None`: a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_as: Option<&'static str>,
    /// `queued`, `live` or `replace`: see `tenure.take_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_while: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lasting_key: Option<String>,
    /// The longest wait of a job whose time is moved on, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) longest_s: Option<f64>,
    /// Without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    /// The group whose jobs wait for it, or for which it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group_id: Option<Uuid>,
}

impl JobOptions {
    /// Has none yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`JobRequest::unique_key`](crate::JobRequest::unique_key).
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// See [`JobRequest::unique_while_queued`](crate::JobRequest::unique_while_queued).
    pub fn unique_while_queued(self, key: impl Into<String>) -> Self {
        self.key_while("queued", key)
    }

    /// See [`JobRequest::unique_while_live`](crate::JobRequest::unique_while_live).
    pub fn unique_while_live(self, key: impl Into<String>) -> Self {
        self.key_while("live", key)
    }

    /// See [`JobRequest::replace`](crate::JobRequest::replace).
    pub fn replace(self, key: impl Into<String>) -> Self {
        self.key_while("replace", key)
    }

    fn key_while(mut self, lasts: &'static str, key: impl Into<String>) -> Self {
        (self.key_while, self.lasting_key) = (Some(lasts), Some(key.into()));
        self
    }

    /// See [`JobRequest::lane`](crate::JobRequest::lane).
    pub fn lane(mut self, key: impl Into<String>) -> Self {
        self.lane = Some(key.into());
        self
    }

    /// See [`JobRequest::priority`](crate::JobRequest::priority).
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = Some(priority);
        self
    }

    /// See [`JobRequest::tag`](crate::JobRequest::tag).
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        let tag = tag.into();
        if !self.tags.contains(&tag) {
            self.tags.push(tag);
        }
        self
    }

    /// See [`JobRequest::not_after`](crate::JobRequest::not_after). In the place of [`JobOptions::expires_in`].
    pub fn not_after(mut self, at: DateTime<Utc>) -> Self {
        (self.not_after, self.expires_in_s) = (Some(at), None);
        self
    }

    /// See [`JobRequest::expires_in`](crate::JobRequest::expires_in). In the place of [`JobOptions::not_after`].
    pub fn expires_in(mut self, within: Duration) -> Self {
        (self.not_after, self.expires_in_s) = (None, Some(within.as_secs_f64()));
        self
    }

    /// See [`JobRequest::on_expiry`](crate::JobRequest::on_expiry).
    pub fn on_expiry(mut self, becomes: OnExpiry) -> Self {
        self.expires_as = match becomes {
            OnExpiry::DeadLetter => None,
            OnExpiry::Cancel => Some("cancelled"),
        };
        self
    }

    /// Reads what a schedule keeps: see `schedules/sql/put_schedule.sql`.
    pub(crate) fn of_schedule(options: &Value) -> Self {
        let text = |name: &str| options[name].as_str().map(str::to_owned);
        let tags = options["tags"].as_array().into_iter().flatten();
        Self {
            lane: text("lane"),
            priority: options["priority"].as_i64().and_then(|priority| priority.try_into().ok()),
            expires_in_s: options["expires_in_s"].as_f64(),
            expires_as: text("expires_as").filter(|becomes| becomes == "cancelled").map(|_| "cancelled"),
            tags: tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect(),
            ..Self::new()
        }
    }

    /// The key that may keep the job from being enqueued.
    pub(crate) fn any_key(&self) -> Option<&str> {
        self.unique_key.as_deref().or(self.lasting_key.as_deref())
    }

    pub(crate) fn without_key(self) -> Self {
        Self { unique_key: None, key_while: None, lasting_key: None, ..self }
    }
}
