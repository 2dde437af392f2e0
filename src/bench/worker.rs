//! Worker: the process that runs the bench's jobs.

use std::time::Duration;

use anyhow::bail;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, stdin, stdout},
    time::sleep,
};

use super::{Order, pickup::now_us};
use crate::{
    client::Tenure,
    config::Config,
    job::{JobError, Outcome},
    run::{context::JobContext, handlers::KindOptions},
    worker::Worker,
};

/// What the handler does with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub(crate) enum WorkerMode {
    /// Decodes it, and is done.
    Decode,
    /// Tells when it began. A job that says [`Order::RETRIES`] fails first, and is tried again a second later.
    Stamp,
    /// Reports once, then waits to be stopped.
    Hold,
    /// Reports ten times a second, until it is stopped.
    Report,
}

impl WorkerMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Stamp => "stamp",
            Self::Hold => "hold",
            Self::Report => "report",
        }
    }
}

/// What a worker prints when it takes jobs of all its queues.
pub(super) const READY: &str = "ready";

/// Runs the jobs of these queues until the standard input ends. Each has this many slots.
pub(crate) async fn work(
    config: &Config,
    queues: &[String],
    slots: usize,
    mode: WorkerMode,
) -> anyhow::Result<()> {
    let Some((first, others)) = queues.split_first() else { bail!("a worker needs a queue") };
    let tenure = Tenure::connect(config).await?;
    let ended = async {
        let mut nothing = [0; 16];
        while stdin().read(&mut nothing).await.is_ok_and(|n| n > 0) {}
    };
    let options = KindOptions::new();
    // Silent, and not dead: also where silence is not allowed for long.
    let options = if mode == WorkerMode::Hold { options.keepalive() } else { options };
    let mut worker = Worker::builder(&tenure)
        .handle_with(options, move |order: Order, ctx: JobContext| handle(order, ctx, mode))
        .only_queue(first, slots);
    for queue in others {
        worker = worker.concurrency(queue, slots);
    }
    let health = worker.health();
    let told = tokio::spawn(async move {
        while health.ready().is_err() {
            sleep(Duration::from_millis(20)).await;
        }
        let mut stdout = stdout();
        // Nobody may be listening.
        stdout.write_all(format!("{READY}\n").as_bytes()).await.ok();
        stdout.flush().await.ok();
    });
    worker.run_until(ended).await?;
    told.abort();
    tenure.close().await;
    Ok(())
}

async fn handle(order: Order, ctx: JobContext, mode: WorkerMode) -> Result<Outcome, JobError> {
    let began = now_us();
    std::hint::black_box(order.total());
    match mode {
        WorkerMode::Decode => Ok(Outcome::Done(None)),
        WorkerMode::Stamp if order.note == Order::RETRIES && ctx.attempt() == 1 => {
            Err(JobError::retry_after(Duration::from_secs(1), "tried again, as this job says"))
        }
        WorkerMode::Stamp => Outcome::done(began),
        WorkerMode::Hold => {
            ctx.progress("held", 0.0, "").await?;
            Err(JobError::from(format!("stopped: {}", ctx.cancelled().await)))
        }
        WorkerMode::Report => {
            for n in 0_u32.. {
                let percent = f32::from(u8::try_from(n % 100).unwrap_or_default());
                ctx.progress("reporting", percent, "a line of some forty characters, as usual").await?;
                if ctx.cancel_reason().is_some() {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            Outcome::done(())
        }
    }
}
