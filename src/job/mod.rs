//! Job: the nouns that producers and handlers share.
//!
//! Not here: who may run a job (`claim`), when it is tried again (`backoff`), any I/O.

pub(crate) mod backoff;
pub(crate) mod claim;

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use uuid::Uuid;

/// The most characters a queue's name, or one part of a kind, may have.
const NAME_CHARS_MAX: usize = 64;

/// Names one job, for ever. A UUID v7: ids sort by the time they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type)]
#[serde(transparent)]
#[sqlx(transparent)]
pub struct JobId(pub Uuid);

impl JobId {
    /// A new id, of this moment.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no job's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no job's id, such as 019a3c5e-7d1b-7c3a-9f00-2b1c5d6e7f80; `tenure jobs list` shows them")]
pub struct JobIdError;

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(text).map(Self).map_err(|_| JobIdError)
    }
}

/// A type of work: its payload is the value, its name the constant.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendMail { to: String }
///
/// impl tenure::Job for SendMail {
///     const KIND: &'static str = "send_mail";
///     const QUEUE: &'static str = "mail";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// Which handler runs it. One or more names of `[A-Za-z0-9_-]{1,64}` joined by dots.
    const KIND: &'static str;
    /// Which queue it waits in. A name of `[A-Za-z0-9_-]{1,64}`.
    const QUEUE: &'static str = "default";
    /// How often it is tried, at most, the first attempt included.
    const MAX_ATTEMPTS: u32 = 5;
}

/// A name that is not one: it would be unsafe in a NATS subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not valid: {rule}")]
pub struct NameError {
    what: &'static str,
    name: String,
    rule: &'static str,
}

fn is_name(text: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Checks the name of a queue.
pub fn check_queue(name: &str) -> Result<(), NameError> {
    let rule = "use 1 to 64 of A-Z a-z 0-9 _ -";
    if is_name(name) { Ok(()) } else { Err(NameError { what: "queue", name: name.into(), rule }) }
}

/// Checks the name of a kind: names joined by dots, at most 200 characters.
pub fn check_kind(name: &str) -> Result<(), NameError> {
    let rule = "use 1 to 64 of A-Z a-z 0-9 _ -, or several such parts joined by dots, 200 characters in all";
    if name.len() <= 200 && name.split('.').all(is_name) {
        Ok(())
    } else {
        Err(NameError { what: "kind", name: name.into(), rule })
    }
}

/// The longest unique key, or key of an effect.
const KEY_BYTES_MAX: usize = 512;

/// Checks a key; says what is wrong with it.
pub(crate) fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err("must have 1 to 512 bytes; hash a longer one");
    }
    // They are shown, and NUL cannot be stored.
    if key.chars().any(char::is_control) {
        return Err("must not contain control characters; escape or hash it");
    }
    Ok(())
}

/// Where a job stands.
///
/// ```text
///  enqueue          claim                complete
/// ─────────► queued ─────► processing ──────────────► completed
///              ▲              │ ├── fail, attempts used up ──► failed (a dead letter)
///              │              │ └── cancel ─────────────────► cancelled
///              └──────────────┘
///      retry · snooze · release · reset
/// ```
///
/// There is no `retrying` and no `scheduled`: both are queued, with a `scheduled_at` still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Runnable once `scheduled_at` has passed. Owned by nobody.
    Queued,
    /// Owned by one worker under one fencing token.
    Processing,
    /// The handler succeeded.
    Completed,
    /// Out of attempts, or failed for good: a dead letter, with its whole history.
    Failed,
    /// Asked to stop, and stopped.
    Cancelled,
}

impl Status {
    /// Every status, in the order a job meets them.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Processing, Self::Completed, Self::Failed, Self::Cancelled];

    /// The word that the database and the command line use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the job has reached an end.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        match self {
            Self::Queued | Self::Processing => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|status| status.as_str()).collect();
            format!("{text:?} is not a status; it is one of {}", known.join(", "))
        })
    }
}

/// What a handler says when it did not fail.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is completed. The output, if any, stands on the finished job.
    Done(Option<Value>),
    /// The job is completed, with an output that is JSON text, stored as it is: a number keeps all its digits, which
    /// a [`Value`] rounds. A text that is no JSON makes a dead letter.
    DoneJson(String),
    /// Not now: run again after this time. The attempt is given back.
    Snooze(Duration),
    /// Never mind: the job is cancelled, for this reason.
    Cancel(String),
}

impl Outcome {
    /// Completed, with an output that others can read.
    ///
    /// # Errors
    ///
    /// A value that is no JSON fails the attempt for good: another attempt would compute the same.
    pub fn done<T: Serialize>(output: T) -> Result<Self, JobError> {
        serde_json::to_value(output)
            .map(|value| Self::Done(Some(value)))
            .map_err(|error| JobError::permanent(format!("the output is not JSON: {error}")))
    }
}

/// Why an attempt failed. Any error turns into one with `?`, and means: try again.
///
/// Not an [`std::error::Error`] itself, so that every error can turn into it (as `anyhow::Error` does).
pub struct JobError {
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
    pub(crate) permanent: bool,
    pub(crate) retry_after: Option<Duration>,
    /// Of SQL over a connection that worked afterwards: whatever it says, Postgres had not gone away.
    pub(crate) answered: bool,
}

impl JobError {
    /// A failure that no further attempt can mend: the job goes to the dead letters at once.
    pub fn permanent(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: error.into(), permanent: true, retry_after: None, answered: false }
    }

    /// A failure to be retried after just this time, whatever the kind's policy says.
    pub fn retry_after(after: Duration, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: error.into(), permanent: false, retry_after: Some(after), answered: false }
    }

    /// A failure described by a text, to be retried.
    pub fn msg(text: impl Into<String>) -> Self {
        Self { source: text.into().into(), permanent: false, retry_after: None, answered: false }
    }

    /// The error and its causes, as they are recorded.
    pub(crate) fn text(&self) -> String {
        chained(&*self.source)
    }
}

/// An error and its causes. One whose text its effect has taken over is not said twice.
pub(crate) fn chained(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.ends_with(&error_text) {
            text.push_str(": ");
            text.push_str(&error_text);
        }
        cause = error.source();
    }
    text
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// Every error, `anyhow::Error` included, and plain texts.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        Self { source: error.into(), permanent: false, retry_after: None, answered: false }
    }
}

/// The most bytes of a text that is stored about a job.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Makes any text storable: Postgres refuses NUL, and an error of a megabyte helps nobody.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let clean = text.replace('\0', "\u{fffd}");
    if clean.len() <= TEXT_BYTES_MAX {
        return Cow::Owned(clean);
    }
    let half = TEXT_BYTES_MAX / 2 - 32;
    let head = &clean[..clean.floor_char_boundary(half)];
    let tail = &clean[clean.ceil_char_boundary(clean.len() - half)..];
    Cow::Owned(format!("{head}\n… {} bytes left out …\n{tail}", clean.len() - head.len() - tail.len()))
}

/// Postgres's jsonb has no NUL character.
const NUL: &str = "it contains the character \\u0000, which Postgres cannot store";

/// Why a JSON value cannot be stored, if it cannot.
pub(crate) fn unstorable(value: &Value) -> Option<&'static str> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
        Value::String(text) => text.contains('\0').then_some(NUL),
        Value::Array(items) => items.iter().find_map(unstorable),
        Value::Object(fields) => fields
            .iter()
            .find_map(|(key, value)| key.contains('\0').then_some(NUL).or_else(|| unstorable(value))),
    }
}

/// Why a text cannot be stored as JSON, if it cannot. It builds no value: this is done for every job.
pub(crate) fn unstorable_text(json: &str) -> Option<String> {
    let error = serde_json::from_str::<Storable>(json).err()?;
    Some(if error.is_data() { NUL.to_owned() } else { format!("it is not JSON: {error}") })
}

/// Any JSON without the character NUL.
struct Storable;

impl<'de> Deserialize<'de> for Storable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Storable {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self, E> {
        if text.contains('\0') { Err(E::custom(NUL)) } else { Ok(self) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while let Some(Self) = items.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while let Some((Self, Self)) = fields.next_entry()? {}
        Ok(self)
    }
}

/// What becomes of ticks for which nobody was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissedTicks {
    /// Nothing: the next one is in the future.
    Skip,
    /// One job, for the latest of them.
    #[default]
    Once,
    /// A job for each of them.
    All,
}

impl MissedTicks {
    /// The word that the database knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

impl fmt::Display for MissedTicks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MissedTicks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Skip, Self::Once, Self::All]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| format!("{text:?} is none of skip, once and all"))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_be_a_wildcard_or_a_second_token_is_refused() {
        for bad in ["", "a.b", "*", ">", "a b", "ü", &"x".repeat(65)] {
            assert!(check_queue(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "A-b_9", &"x".repeat(64)] {
            check_queue(good).unwrap();
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", "a.>"] {
            assert!(check_kind(bad).is_err(), "{bad:?}");
        }
        check_kind("video.transcode.v2").unwrap();
    }

    #[test]
    fn a_text_can_be_stored_where_its_value_can() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for json in [
            "null",
            r#"{"a": [1, -2, 3.5, 18446744073709551615, true, null, "\ud83d\ude00\n"], "": {}}"#,
            r#""a\u0000b""#,
            r#"{"a\u0000": 1}"#,
            r#"[[{"a": ["\u0000"]}]]"#,
            "1e999",
            "[1, 2",
            "1 2",
            "",
            &deep,
        ] {
            let of_value = match serde_json::from_str::<Value>(json) {
                Ok(value) => unstorable(&value).map(str::to_owned),
                Err(error) => Some(format!("it is not JSON: {error}")),
            };
            assert_eq!(unstorable_text(json), of_value, "{json}");
        }
    }

    #[test]
    fn a_text_with_nul_or_of_a_megabyte_becomes_storable() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        let long = storable(&"ä".repeat(1_000_000)).into_owned();
        assert!(long.len() <= TEXT_BYTES_MAX, "{}", long.len());
        assert!(long.contains("bytes left out"));
    }

    #[test]
    fn every_status_reads_back_and_a_wrong_one_lists_the_right_ones() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert!("done".parse::<Status>().unwrap_err().contains("completed"));
    }

    #[test]
    fn an_error_is_told_with_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        let error: JobError = Outer(std::io::Error::other("inner")).into();
        assert_eq!(error.text(), "outer: inner");
        assert!(!error.permanent);
    }
}
