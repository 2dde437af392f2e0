//! Child: a producer or a worker in a process of its own, as this program holds it.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

use crate::speak::{Ask, GO, READY, Seen, Spans};

/// Any start or end of a child takes less, or it has failed.
const QUICKLY: Duration = Duration::from_secs(30);

/// Killed when it is dropped.
struct Spoken {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    errors: JoinHandle<String>,
}

impl Spoken {
    async fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start a child")?;
        let stdout = child.stdout.take().context("a child has an output")?;
        let mut stderr = child.stderr.take().context("a child has an output for errors")?;
        let errors = tokio::spawn(async move {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).await.ok();
            last_words(&String::from_utf8_lossy(&text))
        });
        let stdin = child.stdin.take();
        let mut child = Self { child, stdin, lines: BufReader::new(stdout).lines(), errors };
        let first =
            tokio::time::timeout(QUICKLY, child.hear()).await.context("a child did not start in time")??;
        if first != READY {
            bail!("a child began with {first:?}");
        }
        Ok(child)
    }

    async fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("a child still listens")?;
        // A child that has ended says why in `hear`.
        stdin.write_all(format!("{line}\n").as_bytes()).await.ok();
        Ok(())
    }

    async fn hear(&mut self) -> anyhow::Result<String> {
        if let Some(line) = self.lines.next_line().await? {
            return Ok(line);
        }
        let (status, errors) = (self.child.wait().await?, (&mut self.errors).await?);
        bail!("{status}: {errors}")
    }
}

/// The last lines, as one: a panic of a library may come with a page of them.
fn last_words(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join(" / ")
}

pub(crate) struct Producer(Spoken);

impl Producer {
    pub(crate) async fn start(command: Command) -> anyhow::Result<Self> {
        Ok(Self(Spoken::start(command).await.context("the producer")?))
    }

    pub(crate) async fn ask(&mut self, ask: Ask) -> anyhow::Result<Spans> {
        self.0.say(&serde_json::to_string(&ask)?).await?;
        let answer = self.0.hear().await.context("the producer")?;
        serde_json::from_str(&answer).context("read what the producer has answered")
    }

    /// Does what has one span.
    pub(crate) async fn span(&mut self, ask: Ask) -> anyhow::Result<(i64, i64)> {
        self.ask(ask).await?.first().copied().context("the producer has answered nothing")
    }
}

pub(crate) struct Worker {
    pid: u32,
    count: Arc<AtomicUsize>,
    stdin: Option<ChildStdin>,
    heard: JoinHandle<anyhow::Result<Seen>>,
}

impl Worker {
    /// It is there, but takes no jobs yet.
    pub(crate) async fn start(command: Command) -> anyhow::Result<Self> {
        let mut child = Spoken::start(command).await.context("the worker")?;
        let count = Arc::new(AtomicUsize::new(0));
        let (pid, stdin) = (child.child.id().context("a worker runs")?, child.stdin.take());
        let counted = count.clone();
        let heard = tokio::spawn(async move {
            loop {
                let seen: Seen = serde_json::from_str(&child.hear().await.context("the worker")?)?;
                counted.store(seen.count, Ordering::Relaxed);
                if seen.is_all {
                    return Ok(seen);
                }
            }
        });
        Ok(Self { pid, count, stdin, heard })
    }

    pub(crate) async fn go(&mut self) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("a worker begins once")?;
        Ok(stdin.write_all(format!("{GO}\n").as_bytes()).await?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How many jobs it has begun.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(crate) async fn count(&mut self) -> anyhow::Result<usize> {
        if self.heard.is_finished() {
            (&mut self.heard).await??;
            bail!("the worker has ended");
        }
        Ok(self.count.load(Ordering::Relaxed))
    }

    /// Ends it. Returns what its handlers have seen.
    pub(crate) async fn end(mut self) -> anyhow::Result<Seen> {
        drop(self.stdin.take());
        tokio::time::timeout(QUICKLY, &mut self.heard).await.context("a worker did not end in time")??
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The task holds the process, which is killed with it.
        self.heard.abort();
    }
}
