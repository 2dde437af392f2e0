//! Protocol: what requests and answers look like. Pure: all untrusted input passes here.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{gateway::nats::Requests, job::AHEAD_MAX};

/// The version of the protocol.
const VERSION: u64 = 1;

/// The names of the requests.
pub(super) const REQUESTS: Requests = Requests {
    of_workers: &[
        "ping", "hello", "take", "payload", "report", "settle", "beat", "goodbye", "recorded", "step",
        "sleep", "event", "all", "outputs",
    ],
    of_producers: &["ping", "enqueue", "job", "wait", "cancel", "signal"],
};

/// The fields that every new job may have.
pub(super) const OF_EVERY_JOB: [&str; 6] = ["kind", "payload", "max_attempts", "lane", "priority", "tags"];

/// The fields that a producer's job may have besides those.
const OF_RARE_JOBS: [&str; 6] =
    ["not_after", "on_expiry", "replace", "longest_wait_ms", "unique_while_queued", "unique_while_live"];

/// The fields that a request may have besides `v`.
fn fields_of(request: &str) -> Vec<&'static str> {
    let of_attempt = |more: &[&'static str]| [&["worker", "job", "token", "receipt", "name"], more].concat();
    match request {
        "hello" => vec!["worker", "hostname", "language", "version", "pid", "slots", "kinds"],
        "take" => vec!["worker", "slots", "wait_ms", "kinds"],
        "payload" => vec!["worker", "job", "token", "receipt", "part"],
        "report" => vec!["worker", "reports"],
        "settle" => vec!["worker", "settles"],
        "beat" => vec!["worker", "draining", "running", "as_of"],
        "ping" | "goodbye" => vec!["worker"],
        "recorded" => of_attempt(&[]),
        "step" => of_attempt(&["result", "took_ms"]),
        "sleep" => of_attempt(&["lasts_ms"]),
        "event" => of_attempt(&["within_ms"]),
        "all" => of_attempt(&["jobs"]),
        "outputs" => of_attempt(&["after"]),
        "enqueue" => {
            [&OF_EVERY_JOB[..], &["key", "delay_ms", "run_at", "traceparent"], &OF_RARE_JOBS].concat()
        }
        "job" | "cancel" => vec!["job"],
        "wait" => vec!["job", "wait_ms"],
        "signal" => vec!["job", "name", "payload"],
        _ => Vec::new(),
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    NotJson,
    UnsupportedVersion,
    BadRequest,
    ForgedReceipt,
    HelloFirst,
    NoSuchJob,
    QueueFull,
    KeyHeld,
    Refused,
    Unavailable,
}

impl Code {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::UnsupportedVersion => "unsupported_version",
            Self::BadRequest => "bad_request",
            Self::ForgedReceipt => "forged_receipt",
            Self::HelloFirst => "hello_first",
            Self::NoSuchJob => "no_such_job",
            Self::QueueFull => "queue_full",
            Self::KeyHeld => "key_held",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }

    /// Whether the same request may succeed later.
    const fn may_be_repeated(self) -> bool {
        matches!(self, Self::HelloFirst | Self::QueueFull | Self::KeyHeld | Self::Unavailable)
    }
}

/// An error of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }

    /// The error as JSON.
    pub(super) fn json(&self) -> String {
        let (code, message) = (self.code.as_str(), serde_json::Value::from(self.message.as_str()));
        let versions = if self.code == Code::UnsupportedVersion {
            format!(",\"versions\":[{VERSION}]")
        } else {
            String::new()
        };
        format!(
            r#"{{"error":{{"code":"{code}","message":{message},"retry":{}{versions}}}}}"#,
            self.code.may_be_repeated()
        )
    }
}

/// The body of an answer. `Ok` is a JSON text.
pub(super) fn answer(answered: Result<String, Refusal>) -> Bytes {
    match answered {
        Ok(json) => format!(r#"{{"ok":{json}}}"#).into(),
        Err(refusal) => refusal.json().into(),
    }
}

/// Writes a value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Refusal::new(Code::Refused, error.to_string()))
}

/// The fields of a JSON object. `null` counts as absent.
#[derive(Debug)]
pub(super) struct Fields<'b> {
    /// Where the object stands, for errors: empty, or `settles[3].`.
    at: String,
    of: HashMap<Cow<'b, str>, &'b RawValue>,
}

impl<'b> Fields<'b> {
    /// Reads the body of a request, and checks its version.
    pub(super) fn request(body: &'b [u8]) -> Result<Self, Refusal> {
        let of = serde_json::from_slice(body).map_err(|error| {
            Refusal::new(Code::NotJson, format!("the body must be a JSON object: {error}"))
        })?;
        let fields = Self { at: String::new(), of };
        match fields.get("v").map(RawValue::get) {
            Some("1" | "1.0") => Ok(fields),
            found => {
                let found = found.map_or_else(|| "absent".to_owned(), shortened);
                let message = format!("\"v\" is {found}, but this gateway speaks version {VERSION}");
                Err(Refusal::new(Code::UnsupportedVersion, message))
            }
        }
    }

    fn get(&self, name: &str) -> Option<&'b RawValue> {
        self.of.get(name).copied().filter(|value| value.get() != "null")
    }

    fn parsed<T: DeserializeOwned>(&self, name: &str, expected: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| self.wrong(name, expected))
    }

    /// The error of a field that is absent or wrong.
    pub(super) fn wrong(&self, name: &str, expected: &str) -> Refusal {
        let found = self.get(name).map_or_else(|| "absent".to_owned(), |value| shortened(value.get()));
        Refusal::bad(format!("\"{}{name}\" must be {expected}, but is {found}", self.at))
    }

    /// A JSON text as it is: numbers keep all their digits.
    pub(super) fn raw(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.get().to_owned())
    }

    pub(super) fn value<T: DeserializeOwned>(&self, name: &str, expected: &str) -> Result<T, Refusal> {
        self.parsed(name, expected)?.ok_or_else(|| self.wrong(name, expected))
    }

    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, Refusal> {
        self.parsed(name, expected)
    }

    /// A number from 0 to 100.
    pub(super) fn percent(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let expected = "a number from 0 to 100";
        let percent: Option<f64> = self.parsed(name, expected)?;
        if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            return Err(self.wrong(name, expected));
        }
        Ok(percent)
    }

    /// A text of at most `most` characters.
    pub(super) fn text(&self, name: &str, most: usize) -> Result<String, Refusal> {
        let expected = format!("a text of 1 to {most} characters");
        let text: String = self.value(name, &expected)?;
        if text.is_empty() || text.chars().count() > most || text.contains('\0') {
            return Err(self.wrong(name, &expected));
        }
        Ok(text)
    }

    pub(super) fn number(&self, name: &str, least: u64, most: u64) -> Result<u64, Refusal> {
        let expected = format!("an integer from {least} to {most}");
        let number: u64 = self.value(name, &expected)?;
        if (least..=most).contains(&number) { Ok(number) } else { Err(self.wrong(name, &expected)) }
    }

    pub(super) fn duration(&self, name: &str) -> Result<Option<Duration>, Refusal> {
        let expected = "a whole number of milliseconds, at most ten years";
        let millis: Option<u64> = self.parsed(name, expected)?;
        let duration = millis.map(Duration::from_millis);
        if duration.is_some_and(|duration| duration > AHEAD_MAX) {
            return Err(self.wrong(name, expected));
        }
        Ok(duration)
    }

    pub(super) fn flag(&self, name: &str, absent: bool) -> Result<bool, Refusal> {
        Ok(self.parsed(name, "true or false")?.unwrap_or(absent))
    }

    /// An object in this one.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let of = serde_json::from_str(value.get()).map_err(|_| self.wrong(name, "an object"))?;
        Ok(Some(Self { at: format!("{}{name}.", self.at), of }))
    }

    /// Refuses a request with a field of another name: its sender counts on it.
    pub(super) fn only_of(&self, request: &str) -> Result<(), Refusal> {
        let known = fields_of(request);
        let about = if request == "enqueue" { "a job".to_owned() } else { format!("`{request}`") };
        self.only(&about, &[&known[..], &["v"]].concat())
    }

    /// Refuses a field of another name.
    pub(super) fn only(&self, of: &str, known: &[&str]) -> Result<(), Refusal> {
        let mut unknown: Vec<_> = self.names().filter(|name| !known.contains(name)).collect();
        unknown.retain(|name| self.get(name).is_some());
        unknown.sort_unstable();
        match unknown.first() {
            None => Ok(()),
            Some(name) => Err(Refusal::bad(format!(
                "\"{}{}\" is no field of {of}; those are {}",
                self.at,
                shortened(name),
                known.join(", ")
            ))),
        }
    }

    /// The names in this object.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.of.keys().map(AsRef::as_ref)
    }

    /// A list of 1 to `most` objects.
    pub(super) fn objects(&self, name: &str, most: usize) -> Result<Vec<Self>, Refusal> {
        let expected = format!("a list of 1 to {most} objects");
        let Some(list) = self.get(name) else { return Err(self.wrong(name, &expected)) };
        let list: Vec<HashMap<Cow<'b, str>, &'b RawValue>> =
            serde_json::from_str(list.get()).map_err(|_| self.wrong(name, &expected))?;
        if list.is_empty() || list.len() > most {
            let found = list.len();
            return Err(Refusal::bad(format!("\"{}{name}\" must be {expected}, but has {found}", self.at)));
        }
        let at = |place| format!("{}{name}[{place}].", self.at);
        Ok(list.into_iter().enumerate().map(|(place, of)| Self { at: at(place), of }).collect())
    }
}

/// The beginning of a value, for an error.
fn shortened(text: &str) -> String {
    let mut beginning: String = text.chars().take(60).collect();
    if beginning.len() < text.len() {
        beginning.push('…');
    }
    beginning
}

/// The deepest JSON, and the longest number, that is handed out at once. Postgres holds more; a parser that refuses it
/// would refuse the whole answer.
const DEPTH_MAX: usize = 100;
const NUMBER_MAX: usize = 1_000;

/// Whether every parser reads this JSON.
pub(super) fn is_plain(json: &str) -> bool {
    let (mut depth, mut digits, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        if in_text {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX || digits > NUMBER_MAX {
            return false;
        }
    }
    true
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The page for those who write a client has each field of each request, and no other.
    #[test]
    fn the_page_names_every_field() {
        let page = include_str!("../../docs/worker-protocol.md");
        let (_, table) = page.split_once("## Fields").unwrap();
        let table = table.split("\n## ").next().unwrap();
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let mut named = BTreeSet::new();
        for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| of ")) {
            let cells: Vec<_> = row.split('|').collect();
            let about = if cells[1].contains("a settle") {
                vec!["a report".to_owned(), "a report of a settle".to_owned()]
            } else if cells[1].contains("an entry") {
                quoted(cells[1]).iter().map(|of| format!("a {of}")).collect()
            } else {
                quoted(cells[1])
            };
            named.extend(about.into_iter().map(|of| (of, quoted(cells[2])[0].clone())));
        }
        let mut known = BTreeSet::new();
        for request in REQUESTS.of_workers.iter().chain(REQUESTS.of_producers) {
            known.extend(fields_of(request).iter().map(|field| ((*request).to_owned(), (*field).to_owned())));
        }
        for (of, fields) in super::super::settle::OF_ENTRIES {
            known.extend(
                fields.iter().flat_map(|fields| *fields).map(|field| (of.to_owned(), (*field).to_owned())),
            );
        }
        let (more, fewer): (Vec<_>, Vec<_>) =
            (named.difference(&known).collect(), known.difference(&named).collect());
        assert!(more.is_empty() && fewer.is_empty(), "the page has more: {more:?}; it lacks: {fewer:?}");
    }

    #[test]
    fn a_body_that_is_no_request_is_refused_with_its_code() {
        for (body, code) in [
            (&b""[..], Code::NotJson),
            (b"[1]", Code::NotJson),
            (b"{\"v\":1,", Code::NotJson),
            (b"\xff\xfe", Code::NotJson),
            (b"{}", Code::UnsupportedVersion),
            (b"{\"v\":2}", Code::UnsupportedVersion),
            (b"{\"v\":\"1\"}", Code::UnsupportedVersion),
            (b"{\"v\":null}", Code::UnsupportedVersion),
        ] {
            assert_eq!(Fields::request(body).unwrap_err().code, code, "{:?}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn json_that_some_parser_refuses_is_not_plain() {
        let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for plain in
            ["{}", r#"{"a":[1,2.5e3,"]]\"[["]}"#, &nested(100), &"7".repeat(1_000), &"[]".repeat(500)]
        {
            assert!(is_plain(plain), "{plain}");
        }
        let text = format!("\"{}\"", "7[".repeat(5_000));
        assert!(is_plain(&text) && is_plain(&format!("[{text},{text}]")));
        for odd in [nested(101), "7".repeat(1_001), format!("[\"\\\\\",{}]", "7".repeat(1_001))] {
            assert!(!is_plain(&odd), "{odd}");
        }
    }

    #[test]
    fn an_error_names_the_field_what_was_expected_and_what_was_found() {
        let fields = Fields::request(br#"{"v":1,"slots":0,"worker":7,"settles":[{"token":"x"}]}"#).unwrap();
        let error = fields.number("slots", 1, 1_000).unwrap_err();
        assert_eq!(error.message, r#""slots" must be an integer from 1 to 1000, but is 0"#);
        let error = fields.text("worker", 100).unwrap_err();
        assert_eq!(error.message, r#""worker" must be a text of 1 to 100 characters, but is 7"#);
        let error = fields.text("language", 100).unwrap_err();
        assert_eq!(error.message, r#""language" must be a text of 1 to 100 characters, but is absent"#);
        let settles = fields.objects("settles", 10).unwrap();
        let error = settles[0].value::<i64>("token", "an integer").unwrap_err();
        assert_eq!(error.message, r#""settles[0].token" must be an integer, but is "x""#);
        assert_eq!(error.json().matches("\"retry\":false").count(), 1);
    }

    #[test]
    fn a_json_text_keeps_its_digits_and_null_is_absent() {
        let fields =
            Fields::request(br#"{"v":1,"output":{"a":1.000000000000000000001},"error":null}"#).unwrap();
        assert_eq!(fields.raw("output").unwrap(), r#"{"a":1.000000000000000000001}"#);
        assert_eq!(fields.raw("error"), None);
    }
}
