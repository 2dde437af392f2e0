//! Exec: a command as the handler.

use std::{collections::VecDeque, io::Write, os::unix::process::ExitStatusExt, process::Stdio};

use futures::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWriteExt},
    process::Command,
};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

use crate::{JobContext, JobError, Outcome};

/// The longest line that is read as a report.
const LINE_BYTES_MAX: usize = 256 * 1024;
/// How much of the end of standard error is recorded with a failure.
const STDERR_LINES_KEPT: usize = 20;
/// `EX_DATAERR` of sysexits.h: the input is wrong, and will be the next time.
const EXIT_PERMANENT: i32 = 65;

/// A line of standard output that means something.
#[derive(Debug, Default, Deserialize)]
struct Line {
    stage: Option<String>,
    progress: Option<f32>,
    message: Option<String>,
    checkpoint: Option<Value>,
    output: Option<Value>,
}

impl Line {
    /// `None`: it is for the log.
    fn read(text: &str) -> Option<Self> {
        let is_object = text.trim_start().starts_with('{');
        let line: Self = if is_object { serde_json::from_str(text).ok()? } else { return None };
        let says = line.stage.is_some()
            || line.progress.is_some()
            || line.message.is_some()
            || line.checkpoint.is_some()
            || line.output.is_some();
        says.then_some(line)
    }
}

/// Runs one job by a command.
pub(super) async fn run(command: &str, payload: Value, ctx: JobContext) -> Result<Outcome, JobError> {
    let mut checkpoint = tempfile::NamedTempFile::with_prefix("tenure-checkpoint-")?;
    if let Some(value) = ctx.checkpoint::<Value>() {
        checkpoint.write_all(value.to_string().as_bytes())?;
    }
    let mut guard = Command::new(std::env::current_exe()?)
        .args(["exec-guard", "--", command])
        .env("TENURE_JOB_ID", ctx.id().to_string())
        .env("TENURE_QUEUE", ctx.queue())
        .env("TENURE_KIND", ctx.kind())
        .env("TENURE_ATTEMPT", ctx.attempt().to_string())
        .env("TENURE_FENCING_TOKEN", ctx.token().to_string())
        .env("TENURE_CHECKPOINT_FILE", checkpoint.path())
        .env("TRACEPARENT", ctx.trace_context().unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for the worker, which then ends its commands in good order.
        .process_group(0)
        .spawn()?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
    else {
        return Err(JobError::msg("the command's pipes are missing"));
    };
    let body = payload.to_string();
    stdin.write_all(&(body.len() as u64).to_be_bytes()).await?;
    stdin.write_all(body.as_bytes()).await?;
    // From here on the pipe says that we live, and want the command to go on. Dropped with this future,
    // too: then the guard ends the command.
    let alive = stdin;

    let reports = tokio::spawn(read_stdout(stdout, ctx.clone()));
    let errors = tokio::spawn(read_stderr(stderr, ctx.clone()));
    let status = tokio::select! {
        status = guard.wait() => status?,
        reason = ctx.cancelled() => {
            drop(alive);
            guard.wait().await?;
            return Err(JobError::msg(format!("the command was ended: {reason}")));
        }
    };
    drop(alive);
    // A grandchild may hold the pipes open; what the command itself wrote is read by then.
    let read = async { (reports.await, errors.await) };
    let (output, last_words) = match tokio::time::timeout(std::time::Duration::from_secs(2), read).await {
        Ok((output, words)) => (output??, words.unwrap_or_default()),
        Err(_) => (None, String::new()),
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(Outcome::Done(output)),
        (Some(EXIT_PERMANENT), _) => Err(JobError::permanent(format!("exit {EXIT_PERMANENT}: {last_words}"))),
        (Some(code), _) => Err(JobError::msg(format!("exit {code}: {last_words}"))),
        (None, signal) => {
            Err(JobError::msg(format!("the guard was killed by signal {signal:?}: {last_words}")))
        }
    }
}

/// The lines of a pipe, to its end: a line that cannot be read does not hide the next ones.
fn lines(pipe: impl AsyncRead + Unpin) -> impl Stream<Item = Result<String, LinesCodecError>> + Unpin {
    let framed = FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    Box::pin(futures::stream::unfold((framed, false), |(mut framed, failed)| async move {
        let line = match framed.next().await {
            // After an error the codec ends once, and goes on.
            None if failed => framed.next().await,
            line => line,
        }?;
        let failed = line.is_err();
        Some((line, (framed, failed)))
    }))
}

/// Reports what standard output says; returns the last output.
async fn read_stdout(stdout: impl AsyncRead + Unpin, ctx: JobContext) -> Result<Option<Value>, JobError> {
    let mut lines = lines(stdout);
    let mut output = None;
    while let Some(line) = lines.next().await {
        let text = match line {
            Ok(text) => text,
            Err(LinesCodecError::MaxLineLengthExceeded) => {
                tracing::warn!(job = %ctx.id(), "a line of more than {LINE_BYTES_MAX} bytes was left out");
                continue;
            }
            // Not UTF-8, or the pipe broke: the exit code decides.
            Err(LinesCodecError::Io(error)) => {
                tracing::warn!(job = %ctx.id(), %error, "a line of standard output cannot be read");
                continue;
            }
        };
        let Some(line) = Line::read(&text) else {
            tracing::info!(job = %ctx.id(), "{text}");
            continue;
        };
        if let Some(checkpoint) = line.checkpoint {
            ctx.save_checkpoint(&checkpoint).await?;
        }
        if line.stage.is_some() || line.progress.is_some() || line.message.is_some() {
            let percent =
                line.progress.filter(|percent| !percent.is_nan()).map(|percent| percent.clamp(0.0, 100.0));
            ctx.report(line.stage, percent, line.message, None).await?;
        }
        output = line.output.or(output);
    }
    Ok(output)
}

/// Logs standard error; returns its last lines.
async fn read_stderr(stderr: impl AsyncRead + Unpin, ctx: JobContext) -> String {
    let mut lines = lines(stderr);
    let mut last = VecDeque::new();
    while let Some(line) = lines.next().await {
        let Ok(text) = line else { continue };
        tracing::info!(job = %ctx.id(), "{text}");
        if last.len() == STDERR_LINES_KEPT {
            last.pop_front();
        }
        last.push_back(text);
    }
    Vec::from(last).join("\n")
}
