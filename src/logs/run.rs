//! Log: keeps the end of what an attempt prints, for workers that were asked to.
//!
//! Lines gather in memory, the last 64 KiB of an attempt. A loop writes those of running attempts every few seconds, so
//! that they outlive a worker that is killed, and each attempt writes its own before it is settled.
//!
//! Not here: where the lines come from (`JobContext::log`, `logs::observe`).

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::time::timeout;

use super::store::LogWrite;
use crate::{
    observe::repeats,
    run::{context::JobContext, running::RunningJob},
    store::{Store, StoreError, batch::Batcher},
};

/// The most bytes that are kept of an attempt.
const BYTES_MAX: usize = 64 * 1024;
/// How many logs of running jobs are written at once.
const AT_ONCE: usize = 8;
/// How long a settle waits for the last write of its attempt's log.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// The last lines of an attempt. Keeps nothing until it is told to.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    is_kept: AtomicBool,
    lines: Mutex<Lines>,
    /// One write at a time: the last one of an attempt must not be overtaken by an earlier one, which would find the
    /// attempt settled.
    writing: tokio::sync::Mutex<()>,
    was_written: AtomicBool,
}

#[derive(Debug, Default)]
struct Lines {
    text: String,
    is_cut: bool,
    /// Whether lines came since the last write.
    has_more: bool,
}

impl Tail {
    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Relaxed)
    }

    /// Whether the job's row in `job_logs` may be there.
    pub(crate) fn was_written(&self) -> bool {
        self.was_written.load(Relaxed)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line. NUL, which Postgres cannot store, is replaced.
    pub(crate) fn push(&self, line: &str) {
        if !self.is_kept() {
            return;
        }
        let mut lines = self.lines();
        let line = line.trim_end_matches(['\n', '\r']);
        // Of a line of megabytes, no more is copied than stays.
        let from = line.ceil_char_boundary(line.len().saturating_sub(BYTES_MAX));
        lines.is_cut |= from > 0;
        if line.contains('\0') {
            lines.text.push_str(&line[from..].replace('\0', "\u{fffd}"));
        } else {
            lines.text.push_str(&line[from..]);
        }
        lines.text.push('\n');
        lines.has_more = true;
        // Not at each line: moving the text costs as much as it has bytes.
        if lines.text.len() > 2 * BYTES_MAX {
            lines.shorten();
        }
    }

    /// Takes what is to be written; `None`: nothing since the last time.
    fn take(&self) -> Option<(String, bool)> {
        let mut lines = self.lines();
        if !std::mem::take(&mut lines.has_more) {
            return None;
        }
        lines.shorten();
        Some((lines.text.clone(), lines.is_cut))
    }

    /// What was taken is not written.
    fn put_back(&self) {
        self.lines().has_more = true;
    }
}

impl Lines {
    /// Cuts the first lines off, so that the rest begins with a whole line, if one is short enough.
    fn shorten(&mut self) {
        let surplus = self.text.len().saturating_sub(BYTES_MAX);
        if surplus == 0 {
            return;
        }
        let from = self.text.ceil_char_boundary(surplus);
        let whole = self.text[from..].find('\n').map(|at| from + at + 1).filter(|at| *at < self.text.len());
        self.text.drain(..whole.unwrap_or(from));
        self.is_cut = true;
    }
}

type Writes = Batcher<LogWrite, Result<(), StoreError>>;

/// Writes logs, many in one statement. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogWriter {
    running: Writes,
    /// Those of attempts that end wait behind no others.
    ended: Writes,
}

impl LogWriter {
    pub(crate) fn new(store: &Store) -> Self {
        let writes = || {
            let store = store.clone();
            Batcher::spawn(
                |log: &LogWrite| log.text.len(),
                move |batch: Vec<LogWrite>| {
                    let store = store.clone();
                    async move {
                        let written = store.write_logs(&batch).await;
                        batch.iter().map(|_| written.clone()).collect()
                    }
                },
            )
        };
        Self { running: writes(), ended: writes() }
    }

    /// Writes what running jobs have printed since the last write, a few at a time: the last write of an attempt may
    /// wait for one of these.
    pub(crate) async fn write_running(&self, jobs: Vec<Arc<RunningJob>>) {
        let writes = jobs.into_iter().map(|job| async move { write(&self.running, &job).await });
        stream::iter(writes).for_each_concurrent(AT_ONCE, |write| write).await;
    }

    /// Writes what an attempt that is about to be settled has printed. The settle waits for it, but not for long.
    pub(crate) async fn write_last(&self, job: &RunningJob) {
        in_time(write(&self.ended, job)).await;
    }

    /// Writes what a worker behind a gateway says that its attempt has printed. The answer waits for it, but not for
    /// long.
    pub(crate) async fn write_said(&self, said: LogWrite) {
        let mut lines =
            Lines { text: said.text.replace('\0', "\u{fffd}"), is_cut: said.is_cut, has_more: false };
        lines.shorten();
        let log = LogWrite { key: said.key, text: lines.text, is_cut: lines.is_cut };
        in_time(async {
            if let Some(Err(error)) = self.ended.run(log).await {
                tell(&error);
            }
        })
        .await;
    }
}

async fn in_time(write: impl Future<Output = ()>) {
    if timeout(LAST_WITHIN, write).await.is_err() {
        tracing::warn!("Postgres did not take the last lines of a job's log in time; they are not kept");
    }
}

/// An error is logged, and what was not written waits for the next call.
async fn write(writes: &Writes, job: &RunningJob) {
    let _one = job.log.writing.lock().await;
    let Some((text, is_cut)) = job.log.take() else { return };
    job.log.was_written.store(true, Relaxed);
    let Some(Err(error)) = writes.run(LogWrite { key: job.key, text, is_cut }).await else { return };
    job.log.put_back();
    tell(&error);
}

fn tell(error: &StoreError) {
    if let Some(left_out) = repeats::tell("logs", error) {
        let hint = if error.is_denied() { "; run postgres/roles.sql as the owner of the schema" } else { "" };
        tracing::warn!(%error, left_out, "could not keep what a job has printed{hint}");
    }
}

impl super::observe::Keeps for RunningJob {
    fn keep(&self, line: &str) {
        self.log.push(line);
    }
}

impl<S> JobContext<S> {
    /// Adds a line to the log that is kept with the job: the last 64 KiB of each of its last three attempts, which
    /// [`Tenure::job_logs`](crate::Tenure::job_logs), `tenure jobs log` and the dashboard show. Does nothing unless the
    /// worker keeps logs ([`Config::job_logs`](crate::Config::job_logs)), nor for a kind with a
    /// [codec](crate::codec): a log is plain text.
    ///
    /// Returns at once: the worker writes the log every few seconds, and when the attempt ends.
    pub fn log(&self, line: &str) {
        self.job.log.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_last_lines_whole() {
        let tail = Tail::default();
        tail.push("not kept");
        assert_eq!(tail.take(), None);
        tail.keep();
        tail.push("first\r\n");
        tail.push("nul \0");
        assert_eq!(tail.take(), Some(("first\nnul \u{fffd}\n".into(), false)));
        assert_eq!(tail.take(), None, "nothing is new");
        for n in 0..30_000 {
            tail.push(&format!("line {n:06}"));
        }
        let (text, is_cut) = tail.take().unwrap_or_default();
        assert!(is_cut && text.len() <= BYTES_MAX && text.len() > BYTES_MAX - 20, "{}", text.len());
        assert!(text.starts_with("line ") && text.ends_with("line 029999\n"));
        tail.push(&"ä".repeat(1_000_000));
        let (text, _) = tail.take().unwrap_or_default();
        assert!(text.len() <= BYTES_MAX && text.starts_with('ä') && text.ends_with("ä\n"), "{}", text.len());
    }
}
