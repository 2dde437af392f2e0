//! The output of a command: the lines of a pipe, and what a line of standard output reports.
//!
//! Not here: the command's process (`exec`). The fuzzer builds this file alone.

use std::collections::HashMap;

use futures::{Stream, StreamExt};
use serde_json::{Value, value::RawValue};
use tokio::io::AsyncRead;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

/// The longest line that the worker reads.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Streams the lines of a pipe to its end. An unreadable line does not hide the lines after it.
pub(crate) fn lines(
    pipe: impl AsyncRead + Unpin,
) -> impl Stream<Item = Result<String, LinesCodecError>> + Unpin {
    let framed = FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    Box::pin(futures::stream::unfold((framed, false), |(mut framed, failed)| async move {
        let line = match framed.next().await {
            // After an error the codec returns `None` once, then continues.
            None if failed => framed.next().await,
            line => line,
        }?;
        let failed = line.is_err();
        Some((line, (framed, failed)))
    }))
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
}

impl Line {
    pub(crate) fn read(text: &str) -> Self {
        // Postgres cannot store JSON that does not parse as a `Value`.
        let is_storable = matches!(serde_json::from_str(text), Ok(Value::Object(_)));
        let fields = is_storable.then(|| serde_json::from_str::<HashMap<String, &RawValue>>(text).ok());
        let Some(fields) = fields.flatten() else { return Self::default() };
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
        Self { stage, percent, message, checkpoint, output, is_report, is_output }
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
    for text in lines.into_iter().flatten() {
        assert!(!text.contains('\n'));
        let line = Line::read(&text);
        assert!(line.percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{:?}", line.percent);
        assert!(line.checkpoint.is_none_or(|json| json != "null"));
        assert!(line.output.is_none_or(|json| json != "null"));
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
