//! The output of a command: the lines of a pipe, and what a line of standard output reports.
//!
//! Not here: the command's process (`exec`). The fuzzer builds this file alone.

use std::{borrow::Cow, collections::HashMap, fmt, time::Duration};

use futures::{Stream, StreamExt};
use serde_json::{Value, value::RawValue};
use tokio::io::AsyncRead;
use tokio_util::{
    bytes::{Bytes, BytesMut},
    codec::{AnyDelimiterCodec, AnyDelimiterCodecError, Decoder, FramedRead},
};

/// The longest line that the worker reads.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The fields whose loss would be the loss of a job's result.
const KEPT: [&str; 3] = ["\"settle\"", "\"output\"", "\"checkpoint\""];
/// The fields of a line that settles a job.
const OF_SETTLE: [&str; 10] = [
    "settle",
    "output",
    "after_seconds",
    "error",
    "last",
    "claim_id",
    "stage",
    "progress",
    "message",
    "checkpoint",
];

/// Streams the lines of a pipe to its end. An unreadable line does not hide the lines after it.
pub(crate) fn lines(pipe: impl AsyncRead + Unpin) -> impl Stream<Item = Result<Bytes, Unread>> + Unpin {
    let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), LINE_BYTES_MAX);
    FramedRead::new(pipe, EachLine(codec)).map(|line| line.unwrap_or_else(|error| Err(Unread::Pipe(error))))
}

/// The text of a line, with U+FFFD for what is not UTF-8.
pub(crate) fn text(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line))
}

/// A line that could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    TooLong {
        /// Whether it begins as a report does. What it was to report is lost.
        is_report: bool,
    },
    Pipe(std::io::Error),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { .. } => f.write_str("a line of the output is above 4 MiB"),
            Self::Pipe(error) => error.fmt(f),
        }
    }
}

/// Passes a line that is too long on as a line: after an error, `FramedRead` waits for more bytes before it looks at
/// those that it has.
struct EachLine(AnyDelimiterCodec);

impl EachLine {
    /// `bytes`: what is not read yet. They begin with the line that is too long.
    fn pass(
        line: Result<Option<Bytes>, AnyDelimiterCodecError>,
        bytes: &[u8],
    ) -> std::io::Result<Option<Result<Bytes, Unread>>> {
        match line {
            Ok(line) => Ok(line.map(Ok)),
            Err(AnyDelimiterCodecError::MaxChunkLengthExceeded) => {
                Ok(Some(Err(Unread::TooLong { is_report: begins_as_report(bytes) })))
            }
            Err(AnyDelimiterCodecError::Io(error)) => Err(error),
        }
    }
}

impl Decoder for EachLine {
    type Item = Result<Bytes, Unread>;
    type Error = std::io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> std::io::Result<Option<Self::Item>> {
        Self::pass(self.0.decode(bytes), bytes)
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> std::io::Result<Option<Self::Item>> {
        Self::pass(self.0.decode_eof(bytes), bytes)
    }
}

fn begins_as_report(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{")
}

/// A line of standard output.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) stage: Option<String>,
    pub(crate) percent: Option<f32>,
    pub(crate) message: Option<String>,
    /// JSON text, like `output`, so that numbers keep all their digits.
    pub(crate) checkpoint: Option<String>,
    pub(crate) output: Option<String>,
    /// Whether the line reports progress.
    pub(crate) is_report: bool,
    /// Whether the line names an output, even `null`.
    pub(crate) is_output: bool,
    /// The claim that the line is about, if it says so.
    pub(crate) claim_id: Option<String>,
    /// How the job of a staying process has ended. The error is the rule that the line breaks.
    pub(crate) settle: Option<Result<Settlement, String>>,
    /// Why a line with an output, a checkpoint or an end cannot be read. It may be a part of a line.
    pub(crate) unread: Option<String>,
    /// Whether the unread line was to settle a job.
    pub(crate) is_unread_end: bool,
}

/// How a job of a process that stays has ended.
#[derive(Debug, PartialEq)]
pub(crate) struct Settlement {
    pub(crate) verdict: Verdict,
    /// The process takes no more jobs.
    pub(crate) is_last: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The job is completed, with the line's own output, or else the last one that the process has printed.
    Complete,
    /// Try again, after this time or by the kind's policy.
    Retry(Option<Duration>, String),
    /// Run again after this time, without a charge.
    Snooze(Duration),
    Fail(String),
    Cancel(String),
}

impl Line {
    pub(crate) fn read(line: &[u8]) -> Self {
        // Postgres cannot store JSON that does not parse as a `Value`.
        let fields = match serde_json::from_slice(line) {
            Ok(Value::Object(_)) => serde_json::from_slice::<HashMap<String, &RawValue>>(line),
            Ok(_) => return Self::default(),
            Err(error) => Err(error),
        };
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => {
                let (unread, is_unread_end) = unreadable(line, &error).unzip();
                return Self { unread, is_unread_end: is_unread_end == Some(true), ..Self::default() };
            }
        };
        let field = |name: &str| fields.get(name).map(|value| value.get());
        let text_of = |name: &str| field(name).and_then(|json| serde_json::from_str::<String>(json).ok());
        let percent = field("progress").and_then(|json| serde_json::from_str::<f64>(json).ok());
        #[expect(clippy::cast_possible_truncation, reason = "a percentage")]
        let percent = percent.map(|percent| percent.clamp(0.0, 100.0) as f32);
        let (stage, message) = (text_of("stage"), text_of("message"));
        let is_output = field("output").is_some();
        let json_of = |name: &str| field(name).filter(|json| *json != "null").map(str::to_owned);
        let (checkpoint, output) = (json_of("checkpoint"), json_of("output"));
        let is_report = stage.is_some() || percent.is_some() || message.is_some() || checkpoint.is_some();
        let unknown = fields.keys().filter(|name| !OF_SETTLE.contains(&name.as_str())).min();
        let settle = field("settle").map(|verdict| match unknown {
            Some(name) => {
                let known = OF_SETTLE.join(", ");
                Err(format!("{name:?} is no field of a line with settle; those are {known}"))
            }
            None => Settlement::read(verdict, &field, &text_of),
        });
        let claim_id = text_of("claim_id");
        Self {
            stage,
            percent,
            message,
            checkpoint,
            output,
            is_report,
            is_output,
            claim_id,
            settle,
            ..Self::default()
        }
    }
}

/// Says why a line whose loss would be that of a result cannot be read, and whether it was to settle a job. `None` for
/// any other line.
fn unreadable(line: &[u8], why: &serde_json::Error) -> Option<(String, bool)> {
    // With the quotes of Python's `print`, too.
    let has = |field: &str| line.windows(field.len()).any(|part| part == field.as_bytes());
    let named = KEPT.into_iter().find(|field| has(field) || has(&field.replace('"', "'")))?;
    begins_as_report(line).then(|| {
        let why = format!(
            "a line with {named} is no JSON that can be kept: {why}. Such JSON is UTF-8, has no NaN, no number above \
             1.8e308, no half of a surrogate pair, names in double quotes, and at most 127 levels"
        );
        (why, named == KEPT[0])
    })
}

impl Settlement {
    fn read<'a>(
        verdict: &str,
        field: &impl Fn(&str) -> Option<&'a str>,
        text_of: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let after = field("after_seconds").filter(|json| *json != "null").map(|json| {
            let seconds = serde_json::from_str::<f64>(json).ok();
            let after = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            after.ok_or_else(|| format!("after_seconds is {json}; write a number of seconds, 0 or more"))
        });
        let after = after.transpose()?;
        let error = || {
            let text = text_of("error").filter(|text| !text.trim().is_empty());
            text.ok_or_else(|| format!("settle {verdict} has no error; write why, as text"))
        };
        let verdict = match serde_json::from_str::<String>(verdict).unwrap_or_default().as_str() {
            "complete" => Verdict::Complete,
            "retry" => Verdict::Retry(after, error()?),
            "snooze" => Verdict::Snooze(
                after.ok_or("settle \"snooze\" has no after_seconds; write a number of seconds")?,
            ),
            "fail" => Verdict::Fail(error()?),
            "cancel" => Verdict::Cancel(error()?),
            _ => return Err(format!("settle is {verdict}; write complete, retry, snooze, fail or cancel")),
        };
        let is_last = match field("last") {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => return Err(format!("last is {other}; write true or false")),
        };
        Ok(Self { verdict, is_last })
    }
}

/// Reads any bytes that a command may write. For the fuzzer and the test below.
///
/// # Panics
///
/// If a line breaks what the rest of the program relies on.
#[cfg(any(fuzzing, test))]
pub(crate) fn try_output(data: &[u8]) {
    let lines = futures::executor::block_on(lines(data).collect::<Vec<_>>());
    for bytes in lines.into_iter().flatten() {
        assert!(!bytes.contains(&b'\n') && !text(&bytes).contains('\n'));
        let line = Line::read(&bytes);
        assert!(line.percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{:?}", line.percent);
        assert!(line.checkpoint.is_none_or(|json| json != "null"));
        assert!(line.output.is_none_or(|json| json != "null"));
        if let Some(Ok(Settlement { verdict, .. })) = line.settle {
            let (Verdict::Retry(_, error) | Verdict::Fail(error) | Verdict::Cancel(error)) = verdict else {
                continue;
            };
            assert!(!error.trim().is_empty());
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn the_output_of_commands() {
        seeds::try_each("exec_output", super::try_output);
    }
}
