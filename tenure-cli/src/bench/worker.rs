//! Worker: the process that runs the bench's jobs.

use std::time::Duration;

use anyhow::bail;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, stdin, stdout},
    time::sleep,
};

use super::{Order, groups::NAP, pickup::now_us, steps::STEPS_OF_A_JOB};
use tenure::{Config, JobContext, JobError, KindOptions, Outcome, Tenure, Worker};

/// The handler's work on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WorkerMode {
    /// Decodes the payload.
    Decode,
    /// Decodes the payload; the job keeps no history.
    Forget,
    /// Returns the time at which it began. A job whose note is [`Order::RETRIES`] fails first, and is retried a second
    /// later.
    Stamp,
    /// As `Stamp`, and takes 5 ms.
    Brief,
    /// Fails for good.
    Fail,
    /// Reports once, then waits to be stopped.
    Hold,
    /// Reports ten times a second, until it is stopped.
    Report,
    /// Records steps without work, and returns how many microseconds one took.
    Steps,
    /// Sleeps once, longer for each later job, and returns the time at which it began anew.
    Nap,
}

impl WorkerMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Forget => "forget",
            Self::Stamp => "stamp",
            Self::Brief => "brief",
            Self::Fail => "fail",
            Self::Hold => "hold",
            Self::Report => "report",
            Self::Steps => "steps",
            Self::Nap => "nap",
        }
    }
}

/// The line that a worker prints when it takes jobs of all its queues.
pub(super) const READY: &str = "ready";

/// Runs the jobs of these queues until the standard input ends. Each has this many slots.
pub(crate) async fn work(
    config: &Config,
    queues: &[String],
    slots: u32,
    mode: WorkerMode,
    foreign: Option<usize>,
) -> anyhow::Result<()> {
    let Some((first, others)) = queues.split_first() else { bail!("a worker needs a queue") };
    if let Some(workers) = foreign {
        return super::foreign::work(config, first, slots, mode, workers).await;
    }
    let tenure = Tenure::connect(config).await?;
    let ended = async {
        let mut nothing = [0; 16];
        while stdin().read(&mut nothing).await.is_ok_and(|n| n > 0) {}
    };
    let options = KindOptions::new();
    // The job is silent on purpose: it must not go stale, however short `stale_after` is.
    let options = match mode {
        WorkerMode::Hold => options.keepalive(),
        WorkerMode::Forget => options.no_history(),
        _ => options,
    };
    let mut worker = Worker::builder(&tenure)
        .handle_with(options, move |order: Order, ctx: JobContext| handle(order, ctx, mode))
        .only_queue(first, slots);
    for queue in others {
        worker = worker.only_queue(queue, slots);
    }
    let health = worker.health();
    let announced = tokio::spawn(async move {
        while health.ready().is_err() {
            sleep(Duration::from_millis(20)).await;
        }
        let mut stdout = stdout();
        // The bench may have closed the pipe.
        stdout.write_all(format!("{READY}\n").as_bytes()).await.ok();
        stdout.flush().await.ok();
    });
    worker.run_until(ended).await?;
    announced.abort();
    tenure.close().await;
    Ok(())
}

async fn handle(order: Order, ctx: JobContext, mode: WorkerMode) -> Result<Outcome, JobError> {
    let began = now_us();
    std::hint::black_box(order.total());
    match mode {
        WorkerMode::Decode | WorkerMode::Forget => Ok(Outcome::Done(None)),
        WorkerMode::Stamp if order.note == Order::RETRIES && ctx.attempt() == 1 => {
            Err(JobError::retry_after(Duration::from_secs(1), "this job asks for a retry"))
        }
        WorkerMode::Stamp => Outcome::done(began),
        WorkerMode::Brief => {
            sleep(Duration::from_millis(5)).await;
            Outcome::done(began)
        }
        WorkerMode::Fail => Err(JobError::permanent("this job is to become a dead letter")),
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
        WorkerMode::Nap => {
            ctx.sleep("nap", NAP + Duration::from_millis(order.number)).await?;
            Outcome::done(began)
        }
        WorkerMode::Steps => {
            for n in 0..STEPS_OF_A_JOB {
                ctx.step(&format!("step {n}"), async || Ok(n)).await?;
            }
            let took = usize::try_from(now_us() - began).unwrap_or_default();
            Outcome::done(took / STEPS_OF_A_JOB)
        }
    }
}
