//! Stay: a process runs many jobs, one at a time.
//!
//! A job is a line of JSON on its standard input. The process reports by lines of JSON, as the command of one job does,
//! and its `settle` line ends the job. It waits for the next one in between, for as long as it likes to live.

use std::{
    collections::VecDeque,
    process::ExitStatus,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use serde::Serialize;
use serde_json::value::RawValue;
use tempfile::NamedTempFile;
use tokio::{
    process::{Child, ChildStdin},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::bytes::Bytes;

use super::{
    COMMANDS, EXIT_PERMANENT, LAST_WORDS, end_group, guard, keep, not_started,
    output::{Line, Settlement, Unread, Verdict, lines, text},
    said, spawn, traceparent, write_frame,
};
use tenure::{Health, JobContext, JobError, Outcome, internals::EndedInTheMiddle};

/// How long an idle process gets to go on with the next job, before another one does.
const WAKES: Duration = Duration::from_secs(1);

const NO_CLAIM: &str = "the process did not settle the job: the line has no claim_id; copy that of the job";

type Lines = futures::stream::Fuse<BoxStream<'static, Result<Bytes, Unread>>>;

/// The processes of a worker: as many as jobs have run at the same time.
pub(crate) struct Processes {
    command: String,
    /// After how many jobs a process is replaced.
    restart_after: Option<u32>,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    /// The last one to become idle is the first to be taken: the others may be swapped out.
    idle: Vec<Idle>,
    /// Processes that end. A job waits for the end of one before it starts another, so that there are never more.
    ending: VecDeque<JoinHandle<()>>,
    /// The worker stops: no process waits for a job any more.
    stops: bool,
}

/// A process without a job, whose lines are read by a task.
struct Idle {
    take: oneshot::Sender<()>,
    watch: JoinHandle<Option<Process>>,
}

/// A job as the process reads it.
#[derive(Serialize)]
struct Job<'a> {
    id: String,
    queue: &'a str,
    kind: &'a str,
    attempt: u32,
    max_attempts: u32,
    fencing_token: i64,
    claim_id: &'a str,
    payload: &'a RawValue,
    checkpoint: Option<&'a RawValue>,
    traceparent: Option<&'a str>,
}

impl Processes {
    pub(crate) fn new(command: String, restart_after: Option<u32>) -> Self {
        Self { command, restart_after, pool: Mutex::default() }
    }

    /// Runs one job.
    pub(crate) async fn run(&self, ctx: JobContext, health: &Health) -> Result<Outcome, JobError> {
        let claim_id = ctx.claim_id().to_string();
        let job = line(&ctx, &claim_id)?;
        let (process, ended) = loop {
            let mut process = match self.hand_over(&job, &ctx).await {
                Ok(Some(process)) => {
                    health.has(COMMANDS);
                    process
                }
                Ok(None) => return Err(JobError::msg("the job was stopped before a process had it")),
                Err(error) => return Ok(not_started(&error, health)),
            };
            match process.work(&ctx, &claim_id).await {
                Ended::Exited(_) if process.jobs > 1 && process.is_unread() => {
                    tracing::info!("a process ended between two jobs; another takes the job");
                }
                ended => break (process, ended),
            }
        };
        self.judge(process, ended, &ctx, &claim_id).await
    }

    /// Says how the job has ended, and keeps or ends its process.
    async fn judge(
        &self,
        mut process: Process,
        ended: Ended,
        ctx: &JobContext,
        claim_id: &str,
    ) -> Result<Outcome, JobError> {
        match ended {
            Ended::Settled(Settlement { verdict, is_last }) => {
                let outcome = process.outcome(verdict);
                self.put_back(process, is_last);
                outcome
            }
            // The job may run elsewhere as soon as this returns: its process must have ended by then.
            Ended::Wrong(error) => {
                process.end().await;
                Err(JobError::msg(format!("{error}{}", said(process.last_words))))
            }
            Ended::Asked(reason) => match process.end_job(Some(ctx), claim_id).await {
                Some(settlement) => process.outcome(settlement.verdict),
                None => Err(JobError::from(EndedInTheMiddle::new(format!(
                    "the worker ended the process: {reason}"
                )))),
            },
            Ended::Exited(status) => {
                let last_words = said(process.last_words);
                match status.code() {
                    Some(EXIT_PERMANENT) => {
                        Err(JobError::permanent(format!("exit {EXIT_PERMANENT}{last_words}")))
                    }
                    Some(code) => Err(JobError::msg(format!(
                        "the process ended ({}) before it settled the job{last_words}",
                        super::exit(code)
                    ))),
                    None => Err(JobError::msg(format!("the guard was killed{last_words}"))),
                }
            }
        }
    }

    /// Gives a job to an idle process, or to a new one. Returns `None` if the job is stopped before.
    async fn hand_over(&self, job: &[u8], ctx: &JobContext) -> std::io::Result<Option<Process>> {
        loop {
            let (idle, ending) = {
                let mut pool = self.pool();
                let idle = pool.idle.pop();
                let ending = if idle.is_none() { pool.ending.pop_front() } else { None };
                (idle, ending)
            };
            let process = match (idle, ending) {
                (Some(idle), _) => tokio::select! {
                    process = self.wake(idle) => process,
                    _ = ctx.cancelled() => return Ok(None),
                },
                (None, Some(ending)) => tokio::select! {
                    _ = ending => None,
                    _ = ctx.cancelled() => return Ok(None),
                },
                (None, None) => Some(Process::start(&self.command)?),
            };
            if ctx.cancelled().now_or_never().is_some() {
                return Ok(None);
            }
            let Some(mut process) = process else { continue };
            match process.take(job).await {
                Ok(()) => return Ok(Some(process)),
                Err(error) if process.jobs == 0 => return Err(error),
                // It has ended between two jobs, and has not read this one.
                Err(error) => {
                    tracing::info!(%error, "a process ended between two jobs; another takes the job");
                    process.end().await;
                }
            }
        }
    }

    /// Returns an idle process, or `None` if it ends.
    async fn wake(&self, Idle { take, mut watch }: Idle) -> Option<Process> {
        take.send(()).ok();
        if let Ok(process) = timeout(WAKES, &mut watch).await {
            return process.ok().flatten();
        }
        self.pool().ending.push_back(tokio::spawn(end_watched(watch)));
        None
    }

    fn put_back(&self, process: Process, is_last: bool) {
        let mut pool = self.pool();
        if is_last || pool.stops || self.restart_after.is_some_and(|most| process.jobs >= most) {
            pool.ending.push_back(tokio::spawn(process.retire()));
        } else {
            let (take, taken) = oneshot::channel();
            pool.idle.push(Idle { take, watch: tokio::spawn(process.rest(taken)) });
        }
    }

    /// Lets the idle processes end: the worker takes no more jobs.
    pub(crate) fn stop(&self) {
        let mut pool = self.pool();
        pool.stops = true;
        for Idle { take, watch } in std::mem::take(&mut pool.idle) {
            take.send(()).ok();
            pool.ending.push_back(tokio::spawn(end_watched(watch)));
        }
    }

    /// Waits for a moment until the last processes have ended. The guards of the others end them.
    pub(crate) async fn close(&self) {
        self.stop();
        let ending = std::mem::take(&mut self.pool().ending);
        timeout(LAST_WORDS, futures::future::join_all(ending)).await.ok();
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.ending.retain(|ending| !ending.is_finished());
        pool
    }
}

async fn end_watched(watch: JoinHandle<Option<Process>>) {
    if let Ok(Some(process)) = watch.await {
        process.retire().await;
    }
}

fn line(ctx: &JobContext, claim_id: &str) -> Result<Vec<u8>, JobError> {
    let traceparent = traceparent(ctx);
    let job = Job {
        id: ctx.id().to_string(),
        queue: ctx.queue(),
        kind: ctx.kind(),
        attempt: ctx.attempt(),
        max_attempts: ctx.max_attempts(),
        fencing_token: ctx.token().0,
        claim_id,
        payload: serde_json::from_str(ctx.raw_payload())?,
        checkpoint: ctx.raw_checkpoint().map(serde_json::from_str).transpose()?,
        traceparent: traceparent.as_deref(),
    };
    // In JSON a line's end stands between tokens only, where a space does as well. The two that only JavaScript takes
    // for ends of lines may stand in a string.
    let line = serde_json::to_string(&job)?.replace(['\n', '\r'], " ");
    let line = line.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    Ok((line + "\n").into_bytes())
}

/// How a process has come to the end of a job.
enum Ended {
    Settled(Settlement),
    /// The worker wants the job stopped.
    Asked(tenure::handlers::CancelReason),
    Exited(ExitStatus),
    /// What the process wrote cannot be understood, or it can write no more.
    Wrong(String),
}

/// Logs a line, also with the job that the process has.
fn say(text: &str, ctx: Option<&JobContext>) {
    tracing::info!("{text}");
    if let Some(ctx) = ctx {
        ctx.log(text);
    }
}

/// A line that is to settle a job, and does not.
struct Refused {
    why: String,
    /// Otherwise it may be half a line, of a process that has ended meanwhile.
    is_whole: bool,
}

impl Refused {
    fn whole(why: String) -> Self {
        Self { why, is_whole: true }
    }
}

/// A process under its guard.
struct Process {
    guard: Child,
    /// While this is open, the guard lets the process live.
    stdin: Option<ChildStdin>,
    stdout: Lines,
    stderr: Lines,
    group: NamedTempFile,
    /// How many jobs it was given.
    jobs: u32,
    /// How many bytes it was given, with the job and before it.
    bytes: u64,
    earlier_bytes: u64,
    /// The last output of the job.
    output: Option<String>,
    /// Why a report of the job was not read whose loss is that of a result.
    unread: Option<String>,
    last_words: VecDeque<String>,
}

impl Process {
    fn start(command: &str) -> std::io::Result<Self> {
        let group = NamedTempFile::with_prefix("tenure-group-")?;
        let mut guard = spawn(command, group.path(), None, |_| {})?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
        else {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            guard,
            stdin: Some(stdin),
            stdout: lines(stdout).boxed().fuse(),
            stderr: lines(stderr).boxed().fuse(),
            group,
            jobs: 0,
            bytes: 0,
            earlier_bytes: 0,
            output: None,
            unread: None,
            last_words: VecDeque::new(),
        })
    }

    async fn take(&mut self, job: &[u8]) -> std::io::Result<()> {
        (self.output, self.unread) = (None, None);
        self.last_words.clear();
        let stdin = self.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        write_frame(stdin, job).await?;
        self.jobs += 1;
        self.earlier_bytes = self.bytes;
        self.bytes += job.len() as u64;
        Ok(())
    }

    /// Reads what the process writes until its job has ended.
    async fn work(&mut self, ctx: &JobContext, claim_id: &str) -> Ended {
        let mut cancelled = std::pin::pin!(ctx.cancelled());
        // Why it cannot settle the job any more, and when it must have ended by itself: a process that ends writes half
        // a line, and closes its output, before that.
        let mut wrong: Option<(Instant, String)> = None;
        let mut is_open = true;
        loop {
            let due = wrong.as_ref().map(|(at, _)| *at);
            tokio::select! {
                line = self.stdout.next(), if is_open => {
                    let error = match line {
                        Some(Ok(line)) => match self.understand(&line, Some(ctx), claim_id) {
                            Ok(None) => continue,
                            Ok(Some(settlement)) => return Ended::Settled(settlement),
                            Err(Refused { why, is_whole: true }) => return Ended::Wrong(why),
                            Err(Refused { why, .. }) => why,
                        },
                        Some(Err(error @ Unread::TooLong { .. })) => {
                            return Ended::Wrong(error.to_string());
                        }
                        Some(Err(error)) => {
                            tracing::warn!(%error, "the worker skipped a line of the process's output");
                            continue;
                        }
                        None => {
                            is_open = false;
                            "the process closed its standard output before it settled the job".into()
                        }
                    };
                    wrong.get_or_insert((Instant::now() + LAST_WORDS, error));
                }
                Some(line) = self.stderr.next() => self.hear(line, Some(ctx)),
                status = self.guard.wait() => {
                    let status = self.ended(status);
                    // What it wrote before its end counts.
                    return match (self.last_lines(Some(ctx), claim_id).await, status, wrong) {
                        (Some(settlement), ..) => Ended::Settled(Settlement { is_last: true, ..settlement }),
                        (None, Ok(status), _) => Ended::Exited(status),
                        (None, Err(error), _) => Ended::Wrong(format!("could not wait for the process: {error}")),
                    };
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    return Ended::Wrong(wrong.map(|(_, error)| error).unwrap_or_default());
                }
                reason = &mut cancelled => return Ended::Asked(reason),
            }
        }
    }

    /// Whether the process has ended before it read anything of its job.
    fn is_unread(&self) -> bool {
        let text = std::fs::read_to_string(self.group.path()).unwrap_or_default();
        let read = text.split_whitespace().nth(1).and_then(|read| read.parse::<u64>().ok());
        // A guard that was killed has not said it.
        read.is_some_and(|read| read <= self.earlier_bytes)
    }

    /// Looks after what is left of a process that has ended.
    fn ended(&mut self, status: std::io::Result<ExitStatus>) -> std::io::Result<ExitStatus> {
        self.stdin = None;
        if !matches!(&status, Ok(status) if status.code().is_some()) {
            // The guard was killed, but not its command.
            end_group(self.group.path());
        }
        status
    }

    /// Reads the pipes of a process that has ended. Returns how it settled its job. `ctx` is `None` if it has none.
    async fn last_lines(&mut self, ctx: Option<&JobContext>, claim_id: &str) -> Option<Settlement> {
        let mut settled = None;
        let mut are_open = (true, true);
        let read = async {
            while are_open != (false, false) {
                tokio::select! {
                    line = self.stdout.next(), if are_open.0 => match line {
                        Some(Ok(line)) => {
                            let understood = self.understand(&line, ctx, claim_id);
                            settled = settled.take().or(understood.ok().flatten());
                        }
                        Some(Err(_)) => {}
                        None => are_open.0 = false,
                    },
                    line = self.stderr.next(), if are_open.1 => match line {
                        Some(line) => self.hear(line, ctx),
                        None => are_open.1 = false,
                    },
                }
            }
        };
        // Only a process that left the group can still hold the pipes.
        timeout(LAST_WORDS, read).await.ok();
        settled
    }

    /// Reads a line of standard output. `ctx` is `None` if the process has no job.
    fn understand(
        &mut self,
        bytes: &[u8],
        ctx: Option<&JobContext>,
        claim_id: &str,
    ) -> Result<Option<Settlement>, Refused> {
        let line = Line::read(bytes);
        if let Some(why) = line.unread {
            if line.is_unread_end {
                let why = format!("the process did not settle the job: {why}");
                return Err(Refused { why, is_whole: false });
            }
            tracing::warn!(%why, "the worker could not read a report of the process");
            self.unread.get_or_insert(why);
        }
        if line.claim_id.as_deref().is_some_and(|named| named != claim_id) {
            tracing::warn!("a line of the process is about a job that has ended; the worker skipped it");
            return Ok(None);
        }
        if line.is_report
            && let Some(ctx) = ctx
            && let Err(error) = ctx.report_now(line.stage, line.percent, line.message, line.checkpoint)
        {
            tracing::warn!(error = ?error, "the worker rejected a report of the process");
        }
        if line.is_output {
            self.output = line.output;
        }
        match line.settle {
            None => {
                if !line.is_report && !line.is_output {
                    say(&text(bytes), ctx);
                }
                Ok(None)
            }
            Some(Err(error)) => Err(Refused::whole(format!("the process did not settle the job: {error}"))),
            Some(Ok(_)) if line.claim_id.is_none() => Err(Refused::whole(NO_CLAIM.into())),
            Some(Ok(settlement)) => Ok(Some(settlement)),
        }
    }

    /// Logs a line of standard error, of the job that the process has.
    fn hear(&mut self, line: Result<Bytes, Unread>, ctx: Option<&JobContext>) {
        if let Ok(line) = line {
            let text = text(&line);
            say(&text, ctx);
            keep(&mut self.last_words, text.into_owned());
        }
    }

    fn outcome(&mut self, verdict: Verdict) -> Result<Outcome, JobError> {
        match verdict {
            Verdict::Complete => match self.unread.take() {
                Some(why) => Err(JobError::msg(why)),
                None => Ok(self.output.take().map_or(Outcome::Done(None), Outcome::DoneJson)),
            },
            Verdict::Retry(None, error) => Err(JobError::msg(error)),
            Verdict::Retry(Some(after), error) => Err(JobError::retry_after(after, error)),
            Verdict::Snooze(after) => Ok(Outcome::Snooze(after)),
            Verdict::Fail(error) => Err(JobError::permanent(error)),
            Verdict::Cancel(why) => Ok(Outcome::Cancel(why)),
        }
    }

    /// Logs what the process writes between two jobs. Returns it when a job needs it, or `None` once it has ended.
    async fn rest(mut self, mut taken: oneshot::Receiver<()>) -> Option<Self> {
        loop {
            tokio::select! { biased;
                status = self.guard.wait() => {
                    let status = self.ended(status).map_or_else(|error| error.to_string(), |status| status.to_string());
                    self.last_lines(None, "").await;
                    tracing::info!(status, "a process ended between two jobs; the next job starts another");
                    return None;
                }
                // Before what it writes: it may write without end.
                _ = &mut taken => return Some(self),
                line = self.stdout.next() => match line {
                    Some(Ok(line)) => tracing::info!("{}", text(&line)),
                    Some(Err(_)) => {}
                    None => {
                        // It is ending, or can settle no job any more.
                        self.end().await;
                        tracing::info!("a process ended between two jobs; the next job starts another");
                        return None;
                    }
                },
                Some(line) = self.stderr.next() => self.hear(line, None),
            }
        }
    }

    /// Ends the process: SIGTERM, then SIGKILL for what is left. `claim_id` is that of its job, if it has one; the
    /// process may still settle it.
    async fn end_job(&mut self, ctx: Option<&JobContext>, claim_id: &str) -> Option<Settlement> {
        self.stdin = None;
        let mut settled = None;
        loop {
            tokio::select! {
                status = self.guard.wait() => {
                    self.ended(status).ok();
                    break;
                }
                // A full pipe must not keep it from ending.
                Some(line) = self.stdout.next() => if let Ok(line) = line {
                    let understood = self.understand(&line, ctx, claim_id);
                    settled = settled.or(understood.ok().flatten());
                },
                Some(line) = self.stderr.next() => self.hear(line, ctx),
            }
        }
        let last = self.last_lines(ctx, claim_id).await;
        settled.or(last)
    }

    async fn end(&mut self) {
        self.end_job(None, "").await;
    }

    /// Lets the process end by itself: its standard input has ended. After a while, ends it.
    async fn retire(mut self) {
        if let Some(stdin) = &mut self.stdin {
            write_frame(stdin, b"").await.ok();
        }
        let by_itself = async {
            loop {
                tokio::select! {
                    _ = self.guard.wait() => break,
                    Some(line) = self.stdout.next() => if let Ok(line) = line {
                        tracing::info!("{}", text(&line));
                    },
                    Some(line) = self.stderr.next() => self.hear(line, None),
                }
            }
        };
        timeout(guard::TERM_GRACE, by_itself).await.ok();
        self.end().await;
    }
}
