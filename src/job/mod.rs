//! Job: the nouns that producers and handlers share.
//!
//! Not here: who may run a job (`claim`), how an attempt ends (`attempt`), when it is tried again (`backoff`), any I/O.

pub(crate) mod actor;
pub(crate) mod attempt;
pub(crate) mod backoff;
pub(crate) mod claim;
pub mod duration;
pub(crate) mod events;
pub(crate) mod options;
pub(crate) mod sizes;

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use uuid::Uuid;

/// The most characters a queue's name, or one part of a kind, may have.
const NAME_CHARS_MAX: usize = 64;

/// Names one job, for ever. A UUID v7: ids sort by the time of their making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub Uuid);

impl JobId {
    /// Returns a new id, of this moment.
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

/// A text is not a job ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid job ID; expected a UUID such as 019a3c5e-7d1b-7c3a-9f00-2b1c5d6e7f80; `tenure jobs list` shows them"
)]
pub struct JobIdError;

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(text).map(Self).map_err(|_| JobIdError)
    }
}

/// The attempts of a job whose producer does not say how many.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 5;

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
    /// The kind, which names its handler: one or more names of `[A-Za-z0-9_-]{1,64}` joined by dots.
    const KIND: &'static str;
    /// The queue in which it waits: a name of `[A-Za-z0-9_-]{1,64}`.
    const QUEUE: &'static str = "default";
    /// The most attempts, the first one included.
    const MAX_ATTEMPTS: u32 = MAX_ATTEMPTS_DEFAULT;

    /// The options that each enqueue of this type has, from the job's fields: its lane, tags, priority, key, expiry.
    /// What the call says comes after: its value is taken instead of this one, and its tags are added. None by default.
    ///
    /// ```
    /// use tenure::{Job, options::JobOptions};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Invoice { tenant: String, number: u64 }
    ///
    /// impl Job for Invoice {
    ///     const KIND: &'static str = "invoice";
    ///
    ///     fn options(&self) -> JobOptions {
    ///         JobOptions::new().lane(&self.tenant).unique_key(format!("{}/{}", self.tenant, self.number))
    ///     }
    /// }
    /// ```
    fn options(&self) -> options::JobOptions {
        options::JobOptions::new()
    }
}

/// An invalid name: it would be unsafe in a NATS subject.
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
///
/// # Errors
///
/// [`NameError`] says which characters a name may have.
pub fn check_queue(name: &str) -> Result<(), NameError> {
    let rule = "use 1 to 64 of A-Z a-z 0-9 _ -";
    if is_name(name) { Ok(()) } else { Err(NameError { what: "queue", name: name.into(), rule }) }
}

/// Checks the name of a kind: names joined by dots, at most 200 characters.
///
/// # Errors
///
/// [`NameError`] says which characters a name may have.
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

/// Checks a key. The error is the rule that it breaks.
pub(crate) fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err("must have 1 to 512 bytes; hash a longer one");
    }
    // Keys are shown, and Postgres cannot store NUL.
    if key.chars().any(char::is_control) {
        return Err("must not contain control characters; escape or hash it");
    }
    Ok(())
}

/// The longest key of a lane.
const LANE_BYTES_MAX: usize = 256;
/// Priorities go from its negative to it.
pub(crate) const PRIORITY_MAX: i16 = 100;

/// Checks the key of a lane. The error is the rule that it breaks.
pub(crate) fn check_lane(key: &str) -> Result<(), &'static str> {
    if key.is_empty() || key.len() > LANE_BYTES_MAX {
        return Err("1 to 256 bytes; hash a longer one");
    }
    if key.chars().any(char::is_control) {
        return Err("without control characters; escape or hash it");
    }
    Ok(())
}

/// The most bytes of a tag, and the most tags of a job.
const TAG_BYTES_MAX: usize = 100;
pub(crate) const TAGS_MAX: usize = 16;

/// How far ahead a job may be due, or expire: more is a mistake in a unit, or a time that stands for *never*.
pub(crate) const AHEAD_MAX: Duration = Duration::from_hours(24 * 365 * 10);

/// Checks a tag of a job: a word, or `key=value`, such as `customer=7`.
///
/// # Errors
///
/// [`NameError`] says which characters a tag may have.
pub fn check_tag(tag: &str) -> Result<(), NameError> {
    let is_apart = |c: char| c == ' ' || c == ',' || c.is_control();
    if (1..=TAG_BYTES_MAX).contains(&tag.len()) && !tag.contains(is_apart) {
        return Ok(());
    }
    let shown = tag.chars().take(TAG_BYTES_MAX).collect();
    Err(NameError {
        what: "tag",
        name: shown,
        rule: "use 1 to 100 bytes without spaces, commas and control characters",
    })
}

/// The state of a job.
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
    /// Runnable once `scheduled_at` has passed. No worker owns it.
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
    /// Every status, in the order in which a job meets them.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Processing, Self::Completed, Self::Failed, Self::Cancelled];

    /// Returns the word that the database and the command line use.
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
            format!("{text:?} is not a status; expected one of {}", known.join(", "))
        })
    }
}

/// A handler's result when it did not fail.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is completed. The finished job has the output, if there is one.
    Done(Option<Value>),
    /// The job is completed, with an output that is JSON text, stored as it is: a number keeps all its digits, which
    /// a [`Value`] rounds. A text that is no JSON makes the job a dead letter.
    DoneJson(String),
    /// The job runs again after this time. The attempt does not count towards `max_attempts`.
    Snooze(Duration),
    /// The job is cancelled, for this reason.
    Cancel(String),
}

impl Outcome {
    /// Completes the job with an output that others can read.
    ///
    /// # Errors
    ///
    /// A value that does not serialize to JSON fails the job for good: another attempt would compute the same.
    pub fn done<T: Serialize>(output: T) -> Result<Self, JobError> {
        serde_json::to_value(output)
            .map(|value| Self::Done(Some(value)))
            .map_err(|error| JobError::permanent(format!("the output is not JSON: {error}")))
    }
}

/// Why an attempt failed. Any error turns into one with `?`, and tenure then retries the job: every
/// [`std::error::Error`], `anyhow::Error`, and a plain text.
///
/// Like `anyhow::Error` it is no [`std::error::Error`] itself: Rust allows either that or the `?` from every error. A
/// function that returns `Box<dyn Error>` still takes it with `?`. One that returns `anyhow::Result`, or needs a
/// real error, takes [`JobError::into_error`], and `?` in the handler finds the `JobError` in it again:
///
/// ```
/// # use tenure::JobError;
/// fn charge() -> Result<(), JobError> {
///     Err(JobError::permanent("the card is closed"))
/// }
///
/// fn helper() -> anyhow::Result<()> {
///     charge().map_err(JobError::into_error)?;
///     Ok(())
/// }
///
/// fn handler() -> Result<(), JobError> {
///     helper()?; // Still permanent: the job becomes a dead letter.
///     Ok(())
/// }
/// # assert!(handler().unwrap_err().is_permanent());
/// ```
pub struct JobError {
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
    pub(crate) permanent: bool,
    pub(crate) retry_after: Option<Duration>,
    /// The error came from SQL over a connection that worked afterwards: Postgres had not gone away, even if the
    /// error says so.
    pub(crate) answered: bool,
}

impl JobError {
    /// A failure that no further attempt can mend: the job becomes a dead letter at once.
    pub fn permanent(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: error.into(), permanent: true, retry_after: None, answered: false }
    }

    /// A failure to be retried after exactly this time, regardless of the kind's policy.
    pub fn retry_after(after: Duration, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: error.into(), permanent: false, retry_after: Some(after), answered: false }
    }

    /// A failure described by a text, to be retried.
    pub fn msg(text: impl Into<String>) -> Self {
        Self { source: text.into().into(), permanent: false, retry_after: None, answered: false }
    }

    /// Whether no further attempt can mend the failure.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The error itself, for tools that walk an error and its causes by [`std::error::Error::source`].
    #[must_use]
    pub fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.source
    }

    /// Returns this error as a [`std::error::Error`]. Turned into a `JobError` again, alone or as a cause of another
    /// error, it still says what this one says: that it is permanent, or when to retry.
    #[must_use]
    pub fn into_error(self) -> impl std::error::Error + Send + Sync + 'static {
        AsError(Kept(self))
    }

    /// Returns the error and its causes, as the attempt records them.
    pub(crate) fn text(&self) -> String {
        chained(&*self.source)
    }
}

/// Joins an error and its causes. Leaves out a cause whose text the error before it has taken over.
pub fn chained(error: &dyn std::error::Error) -> String {
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

/// The error alone; with `{:#}` its causes, too.
impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { f.write_str(&self.text()) } else { self.source.fmt(f) }
    }
}

/// Every error, `anyhow::Error` included, and plain texts.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        let source = match error.into().downcast::<AsError>() {
            Ok(error) => return error.0.0,
            Err(source) => source,
        };
        let kept = causes(&*source).find_map(|cause| cause.downcast_ref::<Kept>());
        let (permanent, retry_after, answered) =
            kept.map_or((false, None, false), |Kept(of)| (of.permanent, of.retry_after, of.answered));
        Self { source, permanent, retry_after, answered }
    }
}

impl From<JobError> for Box<dyn std::error::Error> {
    fn from(error: JobError) -> Self {
        Box::new(error.into_error())
    }
}

/// Returns an error and its causes.
pub(crate) fn causes<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// A [`JobError`] as an error. It is the cause of itself, because a wrapper such as `anyhow::Error` shows no other
/// part of what it wraps.
struct AsError(Kept);

struct Kept(JobError);

impl std::error::Error for AsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl std::error::Error for Kept {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0.source)
    }
}

impl fmt::Debug for AsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for AsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The most bytes of a text that is stored about a job.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Makes any text storable: Postgres refuses NUL, and an error of a megabyte helps no reader.
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

/// Says why a JSON value cannot be stored, if it cannot.
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

/// Says why a text cannot be stored as JSON, if it cannot. Builds no value, because it checks every job.
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

/// The policy for ticks that came while no worker was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissedTicks {
    /// No job: the next tick is in the future.
    Skip,
    /// One job, for the latest missed tick.
    #[default]
    Once,
    /// A job for each missed tick.
    All,
}

impl MissedTicks {
    /// Returns the word that the database knows.
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
            .ok_or_else(|| format!("{text:?} is not a policy; expected skip, once or all"))
    }
}

/// The policy for a tick that comes while the job of the last tick is queued or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// Enqueues the job: both may run at once.
    #[default]
    Allow,
    /// Enqueues no job.
    Skip,
    /// Waits: the tick comes when that job has ended. [`MissedTicks`] decides about ticks that have waited for more
    /// than a minute.
    Queue,
    /// Cancels that job, and enqueues the job. A handler that is asked to stop may still run when the new job begins.
    Cancel,
}

impl Overlap {
    /// All policies.
    #[doc(hidden)]
    pub const ALL: [Self; 4] = [Self::Allow, Self::Skip, Self::Queue, Self::Cancel];

    /// Returns the word that the database knows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Cancel => "cancel",
        }
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Overlap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a policy; expected allow, skip, queue or cancel"))
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
    fn an_error_shows_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        let error: JobError = Outer(std::io::Error::other("inner")).into();
        assert_eq!(error.text(), "outer: inner");
        assert_eq!((error.to_string(), format!("{error:#}")), ("outer".into(), "outer: inner".into()));
        assert!(!error.permanent);
    }

    #[test]
    fn an_error_keeps_its_decision_on_its_way_through_other_errors() {
        let later = || JobError::retry_after(Duration::from_secs(7), std::io::Error::other("busy"));
        let same = JobError::from(later().into_error());
        assert_eq!((same.text(), same.retry_after), ("busy".into(), Some(Duration::from_secs(7))));
        let wrapped: anyhow::Error = anyhow::Error::from(later().into_error()).context("the bank");
        let error = JobError::from(wrapped);
        assert_eq!(
            (error.text(), error.retry_after),
            ("the bank: busy".into(), Some(Duration::from_secs(7)))
        );
        assert!(error.downcast_ref::<std::io::Error>().is_some());
        let alone = JobError::from(anyhow::Error::from(JobError::permanent("no").into_error()));
        assert_eq!((alone.text(), alone.permanent), ("no".into(), true));
        let boxed: Box<dyn std::error::Error> = JobError::msg("no").into();
        assert_eq!(boxed.to_string(), "no");
    }
}
