//! Exec: a command as the handler.

use std::{
    collections::{HashMap, VecDeque},
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, value::RawValue};
use tokio::{
    io::{AsyncRead, AsyncWriteExt},
    process::{Child, Command},
};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tracing::Instrument;

use crate::{JobContext, JobError, Outcome, observe::trace, run::handlers::EndedInTheMiddle};

/// The longest line that is read.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How much of the end of standard error is recorded with a failure.
const STDERR_LINES_KEPT: usize = 20;
/// `EX_DATAERR` of sysexits.h: the input is wrong, and will be the next time.
const EXIT_PERMANENT: i32 = 65;
/// How long a job waits again when the worker itself could not start its command.
const NOT_STARTED: Duration = Duration::from_secs(10);
/// How long the pipes of a command that has ended are read on.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);

/// What a command has said.
#[derive(Debug, Default)]
struct Said {
    output: Option<String>,
    last_words: VecDeque<String>,
}

type Heard = Arc<Mutex<Said>>;

fn heard(said: &Heard) -> std::sync::MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command under its guard.
struct Started {
    guard: Child,
    stdin: tokio::process::ChildStdin,
    checkpoint: tempfile::NamedTempFile,
    group: tempfile::NamedTempFile,
}

/// This very program, even after an upgrade has put another in its place.
pub(super) fn this_program() -> std::io::Result<PathBuf> {
    let this = Path::new("/proc/self/exe");
    if this.exists() { Ok(this.to_path_buf()) } else { std::env::current_exe() }
}

/// What would be wrong with the worker's machine, not with the job.
fn start(command: &str, ctx: &JobContext) -> std::io::Result<Started> {
    let mut checkpoint = tempfile::NamedTempFile::with_prefix("tenure-checkpoint-")?;
    if let Some(json) = ctx.raw_checkpoint() {
        checkpoint.write_all(json.as_bytes())?;
    }
    let group = tempfile::NamedTempFile::with_prefix("tenure-group-")?;
    let mut guard = Command::new::<PathBuf>(this_program()?)
        .args(["exec-guard", "--group-file"])
        .arg(group.path())
        .args(["--", command])
        .env("TENURE_JOB_ID", ctx.id().to_string())
        .env("TENURE_QUEUE", ctx.queue())
        .env("TENURE_KIND", ctx.kind())
        .env("TENURE_ATTEMPT", ctx.attempt().to_string())
        .env("TENURE_FENCING_TOKEN", ctx.token().to_string())
        .env("TENURE_CHECKPOINT_FILE", checkpoint.path())
        // Of this very attempt, if somebody listens to it.
        .env("TRACEPARENT", trace::here().as_deref().or(ctx.trace_context()).unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for the worker, which then ends its commands in good order.
        .process_group(0)
        .spawn()?;
    let stdin = guard.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    Ok(Started { guard, stdin, checkpoint, group })
}

/// Runs one job by a command.
pub(super) async fn run(command: &str, ctx: JobContext) -> Result<Outcome, JobError> {
    let Started { mut guard, mut stdin, checkpoint, group } = match start(command, &ctx) {
        Ok(started) => started,
        Err(error) => {
            tracing::error!(%error, "the command could not be started; the attempt is given back");
            return Ok(Outcome::Snooze(NOT_STARTED));
        }
    };
    let (Some(stdout), Some(stderr)) = (guard.stdout.take(), guard.stderr.take()) else {
        return Err(JobError::msg("the command's pipes are missing"));
    };
    // The payload as it was enqueued: a parser would round large numbers.
    let body = ctx.raw_payload().as_bytes();
    stdin.write_all(&(body.len() as u64).to_be_bytes()).await?;
    stdin.write_all(body).await?;
    // From here on the pipe says that we live, and want the command to go on. Dropped with this future,
    // too: then the guard ends the command.
    let alive = stdin;

    let said = Heard::default();
    let mut readers = tokio::task::JoinSet::new();
    readers.spawn(read_stdout(stdout, ctx.clone(), said.clone()).in_current_span());
    readers.spawn(read_stderr(stderr, said.clone()).in_current_span());
    // One that has ended has ended, whoever is about to end it.
    let status = tokio::select! { biased;
        status = guard.wait() => status?,
        reason = ctx.cancelled() => {
            drop(alive);
            let status = guard.wait().await?;
            if status.code().is_none() {
                end_group(group.path());
            }
            let read = async { while readers.join_next().await.is_some() {} };
            drop(tokio::time::timeout(LAST_WORDS, read).await);
            // It ended well, and said so: with exit 0 alone, many programs only say that they heard SIGTERM.
            let output = std::mem::take(&mut *heard(&said)).output;
            if status.success()
                && let Some(json) = output
            {
                return Ok(Outcome::DoneJson(json));
            }
            return Err(JobError::from(EndedInTheMiddle(format!("the command was ended: {reason}"))));
        }
    };
    drop(alive);
    if status.code().is_none() {
        // The guard was killed, and what it guarded was not.
        end_group(group.path());
    }
    drop((checkpoint, group));
    // Only a process that left the group can still hold the pipes.
    let read = async { while readers.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, read).await.is_err() {
        tracing::warn!("something still holds the command's output open; it is read no further");
    }
    let Said { output, last_words } = std::mem::take(&mut *heard(&said));
    let last_words = Vec::from(last_words).join("\n");
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(output.map_or(Outcome::Done(None), Outcome::DoneJson)),
        (Some(EXIT_PERMANENT), _) => Err(JobError::permanent(format!("exit {EXIT_PERMANENT}: {last_words}"))),
        (Some(code), _) => Err(JobError::msg(format!("exit {code}: {last_words}"))),
        (None, signal) => {
            Err(JobError::msg(format!("the guard was killed by signal {signal:?}: {last_words}")))
        }
    }
}

fn end_group(file: &Path) {
    let group = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(group) = group.and_then(Pid::from_raw) {
        // It may have ended by itself.
        kill_process_group(group, Signal::KILL).ok();
    }
}

/// The lines of a pipe, to its end: a line that cannot be read does not hide the next ones.
pub(crate) fn lines(
    pipe: impl AsyncRead + Unpin,
) -> impl Stream<Item = Result<String, LinesCodecError>> + Unpin {
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

/// Reports what standard output says, and keeps the last output. Never waits for the database: a command
/// that writes must not be held up, nor what it says last be lost.
async fn read_stdout(stdout: impl AsyncRead + Unpin, ctx: JobContext, said: Heard) {
    let mut lines = lines(stdout);
    while let Some(line) = lines.next().await {
        let text = match line {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(%error, "a line of standard output was left out");
                continue;
            }
        };
        let Line { stage, percent, message, checkpoint, output, is_report, is_output } = Line::read(&text);
        if is_report {
            if let Err(error) = ctx.report_now(stage, percent, message, checkpoint) {
                tracing::warn!(error = ?error, "a report was not taken");
            }
        } else if !is_output {
            tracing::info!("{text}");
        }
        if output.is_some() {
            heard(&said).output = output;
        }
    }
}

/// A line of standard output.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) stage: Option<String>,
    pub(crate) percent: Option<f32>,
    pub(crate) message: Option<String>,
    /// JSON text, as is the output: numbers keep all their digits.
    pub(crate) checkpoint: Option<String>,
    pub(crate) output: Option<String>,
    /// Whether it says anything of the job's progress.
    pub(crate) is_report: bool,
    /// Whether it says what the result is, if only that there is none.
    pub(crate) is_output: bool,
}

impl Line {
    pub(crate) fn read(text: &str) -> Self {
        // What cannot be a value cannot be stored.
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

/// Logs standard error, and keeps its last lines.
async fn read_stderr(stderr: impl AsyncRead + Unpin, said: Heard) {
    let mut lines = lines(stderr);
    while let Some(line) = lines.next().await {
        let Ok(text) = line else { continue };
        tracing::info!("{text}");
        let last = &mut heard(&said).last_words;
        if last.len() == STDERR_LINES_KEPT {
            last.pop_front();
        }
        last.push_back(text);
    }
}
