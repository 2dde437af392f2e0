//! Exec: runs a command as the handler, a process for each job, or (`stay`) one for many.

pub(crate) mod guard;
mod output;
pub(crate) mod stay;

use std::{
    collections::VecDeque,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
};
use tracing::Instrument;

use output::{Line, Unread, lines, text};
use tenure::{
    Health, JobContext, JobError, Outcome,
    internals::{EndedInTheMiddle, trace},
};

/// How many last lines of standard error a failure records.
const STDERR_LINES_KEPT: usize = 20;
/// `EX_DATAERR` of sysexits.h: the input is wrong, so a retry cannot help.
const EXIT_PERMANENT: i32 = 65;
/// What a worker lacks that cannot start its command.
const COMMANDS: &str = "commands";
/// How long a worker counts as one that cannot start its command after the last time that it could not.
const TRUSTED_AFTER: Duration = Duration::from_secs(60);
/// How long to snooze a job when the worker could not start its command.
const NOT_STARTED: Duration = Duration::from_secs(10);
/// How long to read the pipes of a command that has ended.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(5);

/// The output of a command that the worker keeps.
#[derive(Debug, Default)]
struct Captured {
    output: Option<String>,
    /// Why a line was not read whose loss is that of a result.
    unread: Option<String>,
    last_words: VecDeque<String>,
}

impl Captured {
    /// The end of a command that says that all went well.
    fn done(self) -> Result<Outcome, JobError> {
        match self.unread {
            Some(why) => Err(JobError::msg(format!("{why}{}", said(self.last_words)))),
            None => Ok(self.output.map_or(Outcome::Done(None), Outcome::DoneJson)),
        }
    }
}

type SharedCapture = Arc<Mutex<Captured>>;

fn lock(captured: &SharedCapture) -> std::sync::MutexGuard<'_, Captured> {
    captured.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running command and its guard.
struct Started {
    guard: Child,
    stdin: ChildStdin,
    checkpoint: tempfile::NamedTempFile,
    group: tempfile::NamedTempFile,
}

/// The path of this program, even after an upgrade has replaced the file.
pub(crate) fn this_program() -> std::io::Result<PathBuf> {
    let this = Path::new("/proc/self/exe");
    if this.exists() { Ok(this.to_path_buf()) } else { std::env::current_exe() }
}

/// Starts the guard of a command. The guard starts the command with its first frame, and writes its process group to
/// the file. An error is the fault of the worker's machine, not of the job.
fn spawn(
    command: &str,
    group: &Path,
    checkpoint: Option<&Path>,
    environment: impl FnOnce(&mut Command),
) -> std::io::Result<Child> {
    let mut guard = Command::new::<PathBuf>(this_program()?);
    guard.args(["exec-guard", "--worker", &std::process::id().to_string(), "--group-file"]).arg(group);
    if let Some(checkpoint) = checkpoint {
        guard.arg("--checkpoint-file").arg(checkpoint);
    }
    guard.args(["--", command]);
    environment(&mut guard);
    // Ctrl-C must reach only the worker, which then ends its commands in an orderly way.
    guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
}

/// Starts the command of one job.
fn start(command: &str, ctx: &JobContext) -> std::io::Result<Started> {
    let mut checkpoint = tempfile::NamedTempFile::with_prefix("tenure-checkpoint-")?;
    if let Some(json) = ctx.raw_checkpoint() {
        checkpoint.write_all(json.as_bytes())?;
    }
    let group = tempfile::NamedTempFile::with_prefix("tenure-group-")?;
    let mut guard = spawn(command, group.path(), Some(checkpoint.path()), |guard| {
        guard
            .env("TENURE_JOB_ID", ctx.id().to_string())
            .env("TENURE_QUEUE", ctx.queue())
            .env("TENURE_KIND", ctx.kind())
            .env("TENURE_ATTEMPT", ctx.attempt().to_string())
            .env("TENURE_FENCING_TOKEN", ctx.token().to_string())
            .env("TENURE_CLAIM_ID", ctx.claim_id().to_string())
            .env("TENURE_CHECKPOINT_FILE", checkpoint.path())
            .env("TRACEPARENT", traceparent(ctx).unwrap_or_default());
    })?;
    let stdin = guard.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    Ok(Started { guard, stdin, checkpoint, group })
}

/// The attempt's own span if a subscriber records it, otherwise the job's context.
fn traceparent(ctx: &JobContext) -> Option<String> {
    trace::here().or_else(|| ctx.trace_context().map(str::to_owned))
}

/// Sends bytes to the command's standard input. No bytes close it.
async fn write_frame(guard: &mut ChildStdin, bytes: &[u8]) -> std::io::Result<()> {
    guard.write_all(&(bytes.len() as u64).to_be_bytes()).await?;
    guard.write_all(bytes).await
}

/// Puts a job off whose command could not be started: no process, no file, no memory. The worker is not ready until a
/// command starts, or none has failed to for a while: the job may go elsewhere, and none come after it.
fn not_started(error: &std::io::Error, health: &Health) -> Outcome {
    static FAILURES: AtomicU64 = AtomicU64::new(0);
    tracing::error!(%error, "could not start the command; the worker snoozed the job");
    health.lacks(COMMANDS, format!("the command could not be started: {error}"));
    let (this, health) = (FAILURES.fetch_add(1, Ordering::Relaxed) + 1, health.clone());
    tokio::spawn(async move {
        tokio::time::sleep(TRUSTED_AFTER).await;
        if FAILURES.load(Ordering::Relaxed) == this {
            health.has(COMMANDS);
        }
    });
    Outcome::Snooze(NOT_STARTED)
}

/// Runs one job by a command.
pub(crate) async fn run(command: &str, ctx: JobContext, health: &Health) -> Result<Outcome, JobError> {
    let Started { mut guard, mut stdin, checkpoint, group } = match start(command, &ctx) {
        Ok(started) => {
            health.has(COMMANDS);
            started
        }
        Err(error) => return Ok(not_started(&error, health)),
    };
    let (Some(stdout), Some(stderr)) = (guard.stdout.take(), guard.stderr.take()) else {
        return Err(JobError::msg("the command's pipes are missing"));
    };
    // The payload as it was enqueued: a parser would round large numbers.
    if !ctx.raw_payload().is_empty() {
        write_frame(&mut stdin, ctx.raw_payload().as_bytes()).await?;
    }
    // A guard that has ended already says by its exit code what happened.
    write_frame(&mut stdin, b"").await.ok();
    // From here on the open pipe tells the guard that the worker lives and wants the command to go on. Dropping this
    // future closes it, and the guard ends the command.
    let alive = stdin;

    let captured = SharedCapture::default();
    let mut readers = tokio::task::JoinSet::new();
    readers.spawn(read_stdout(stdout, ctx.clone(), captured.clone()).in_current_span());
    readers.spawn(read_stderr(stderr, ctx.clone(), captured.clone()).in_current_span());
    // Biased: a command that has ended keeps its status, even if a cancellation arrives at the same moment.
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
            // Exit 0 with an output is a success. Without one it is not: many programs exit with 0 on SIGTERM.
            let captured = std::mem::take(&mut *lock(&captured));
            if status.success() && captured.output.is_some() {
                return captured.done();
            }
            return Err(JobError::from(EndedInTheMiddle::new(format!("the worker ended the command: {reason}"))));
        }
    };
    drop(alive);
    if status.code().is_none() {
        // The guard was killed, but not its command.
        end_group(group.path());
    }
    drop((checkpoint, group));
    // Only a process that left the group can still hold the pipes.
    let read = async { while readers.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, read).await.is_err() {
        tracing::warn!("a process still holds the command's output open; the worker stopped reading it");
    }
    let captured = std::mem::take(&mut *lock(&captured));
    if status.success() {
        return captured.done();
    }
    let last_words = said(captured.last_words);
    match (status.code(), status.signal()) {
        (Some(EXIT_PERMANENT), _) => Err(JobError::permanent(format!("exit {EXIT_PERMANENT}{last_words}"))),
        (Some(code), _) => Err(JobError::msg(format!("{}{last_words}", exit(code)))),
        (None, signal) => {
            Err(JobError::msg(format!("the guard was killed by signal {signal:?}{last_words}")))
        }
    }
}

/// Formats the last lines of standard error, for the end of an error's text. A command may end without a word.
fn said(last_words: VecDeque<String>) -> String {
    let said = Vec::from(last_words).join("\n");
    if said.trim().is_empty() { String::new() } else { format!(": {said}") }
}

/// Keeps a line of standard error, and no more than the last ones.
fn keep(last_words: &mut VecDeque<String>, line: String) {
    if last_words.len() == STDERR_LINES_KEPT {
        last_words.pop_front();
    }
    last_words.push_back(line);
}

fn end_group(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let group = text.split_whitespace().next().and_then(|group| group.parse().ok());
    if let Some(group) = group.and_then(Pid::from_raw) {
        // The group may have ended by itself.
        kill_process_group(group, Signal::KILL).ok();
    }
}

/// Reports the progress lines of standard output, and keeps the last output. Never waits for the database, which
/// would block the command's writes and could lose its last lines.
async fn read_stdout(stdout: impl AsyncRead + Unpin, ctx: JobContext, captured: SharedCapture) {
    let mut lines = lines(stdout);
    while let Some(line) = lines.next().await {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(%error, "could not read a line of the command's output; the worker skipped it");
                if matches!(error, Unread::TooLong { is_report: true }) {
                    lock(&captured).unread.get_or_insert(error.to_string());
                }
                continue;
            }
        };
        let text = text(&line);
        let Line { stage, percent, message, checkpoint, output, is_report, is_output, unread, .. } =
            Line::read(&line);
        if let Some(why) = unread {
            tracing::warn!(%why, "the worker could not read a report of the command");
            lock(&captured).unread.get_or_insert(why);
        }
        if is_report {
            if let Err(error) = ctx.report_now(stage, percent, message, checkpoint) {
                tracing::warn!(error = ?error, "the worker rejected a report of the command");
            }
        } else if !is_output && !text.is_empty() {
            tracing::info!("{text}");
            ctx.log(&text);
        }
        if output.is_some() {
            lock(&captured).output = output;
        }
    }
}

/// Logs standard error, and keeps its last lines.
async fn read_stderr(stderr: impl AsyncRead + Unpin, ctx: JobContext, captured: SharedCapture) {
    let mut lines = lines(stderr);
    while let Some(line) = lines.next().await {
        let Ok(line) = line else { continue };
        let text = text(&line);
        tracing::info!("{text}");
        ctx.log(&text);
        keep(&mut lock(&captured).last_words, text.into_owned());
    }
}

/// An exit code in words. A shell, and tenure's guard, give the number of a signal above 128.
fn exit(code: i32) -> String {
    match code {
        137 => "exit 137 (killed by signal 9, perhaps because it took too much memory)".into(),
        129..=192 => format!("exit {code} (ended by signal {})", code - 128),
        _ => format!("exit {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_names_its_signal() {
        assert_eq!(exit(1), "exit 1");
        assert_eq!(exit(143), "exit 143 (ended by signal 15)");
        assert!(exit(137).contains("killed by signal 9"));
    }
}
