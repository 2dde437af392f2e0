//! `tenure enqueue`.

use std::{io::Read, process::ExitCode, time::Duration};

use anyhow::Context;
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};

use super::{
    Cli, EnqueueArgs, Output, Usage, print,
    values::{duration, moment, tag},
};
use tenure::{JobRequest, OnExpiry, Status, internals::Parts as _, jobs::WaitError};

/// What becomes of a job that was not started by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Expires {
    /// A dead letter of the category expired.
    DeadLetter,
    /// A cancelled job.
    Cancel,
}

/// Where a job stands in its queue, and how it is found.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// The lane of the queue, such as a customer or a document: 1 to 256 bytes. See `tenure queues lanes`.
    #[arg(long, value_name = "KEY")]
    lane: Option<String>,
    /// The place within the lane: -100 to 100, the lower, the sooner. Only a queue with lanes heeds it.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,
    /// A tag to find the job by: a word, or key=value, such as customer=7. Repeat it for several.
    #[arg(long, value_name = "TAG", value_parser = tag)]
    tag: Vec<String>,
}

impl PlaceArgs {
    pub(super) fn of(&self, mut request: JobRequest) -> JobRequest {
        if let Some(lane) = &self.lane {
            request = request.lane(lane);
        }
        if let Some(priority) = self.priority {
            request = request.priority(priority);
        }
        self.tag.iter().fold(request, JobRequest::tag)
    }
}

/// The options about the lane of a job, its time and its place.
#[derive(Debug, Args)]
pub(super) struct LaneArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Start no attempt after this time, for example 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    not_after: Option<DateTime<Utc>>,
    /// What becomes of the job then, if it has not started.
    #[arg(long, value_enum, requires = "not_after")]
    on_expiry: Option<Expires>,
    /// Queue at most one job with this key: a second enqueue puts its payload and its time on the queued one.
    #[arg(long, value_name = "KEY", conflicts_with = "unique_key")]
    replace: Option<String>,
    /// How long --replace may move a job on. Default: ten times its delay.
    #[arg(
        long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, requires = "replace"
    )]
    longest_wait: Option<Duration>,
    /// Queue at most one job with this key; once it runs, another may be queued.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["unique_key", "replace"])]
    unique_while_queued: Option<String>,
    /// Queue or run at most one job with this key.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["unique_key", "replace", "unique_while_queued"])]
    unique_while_live: Option<String>,
}

impl LaneArgs {
    fn of(&self, mut request: JobRequest) -> JobRequest {
        request = self.place.of(request);
        if let Some(at) = self.not_after {
            request = request.not_after(at);
        }
        if self.on_expiry == Some(Expires::Cancel) {
            request = request.on_expiry(OnExpiry::Cancel);
        }
        if let Some(key) = &self.replace {
            request = request.replace(key);
        }
        if let Some(wait) = self.longest_wait {
            request = request.longest_wait(wait);
        }
        if let Some(key) = &self.unique_while_queued {
            request = request.unique_while_queued(key);
        }
        if let Some(key) = &self.unique_while_live {
            request = request.unique_while_live(key);
        }
        request
    }
}

pub(super) async fn run(cli: &Cli, args: &EnqueueArgs) -> anyhow::Result<ExitCode> {
    let json = payload(&args.json)?;
    let mut request = JobRequest::from_json(&args.queue, &args.kind, json).max_attempts(args.max_attempts);
    if let Some(key) = &args.unique_key {
        request = request.unique_key(key);
    }
    if let Some(delay) = args.delay {
        request = request.delay(delay);
    }
    if let Some(at) = args.run_at {
        request = request.run_at(at);
    }
    request = args.lane.of(request);
    // `work --exec` sets the variable for its commands, as other launchers that trace do.
    if let Some(context) = args.traceparent.clone().or_else(|| std::env::var("TRACEPARENT").ok()) {
        request = request.trace_context(context);
    }
    let tenure = cli.connect().await?;
    // The row is enough, but if NATS is up, the message should go out before this process ends.
    drop(tokio::time::timeout(Duration::from_secs(1), tenure.nats().connected()).await);
    let enqueued = tenure.enqueue(request).await?;
    if enqueued.duplicate {
        match &args.lane.replace {
            Some(_) => eprintln!("job {} is queued under this key, and has the new payload", enqueued.id),
            None => eprintln!("job {} holds the unique key; nothing was enqueued", enqueued.id),
        }
    }
    let mut code = ExitCode::SUCCESS;
    if args.wait {
        eprintln!("waiting for {}", enqueued.id);
        let job = match tenure.wait(enqueued.id, Duration::MAX).await {
            // The job was there, and one that failed or was cancelled would have left a row.
            Ok(None) | Err(WaitError::NoHistory(_)) if !enqueued.duplicate => {
                eprintln!("{}", WaitError::NoHistory(enqueued.id));
                tenure.close().await;
                return Ok(code);
            }
            job => job?.ok_or(WaitError::NotFound(enqueued.id))?,
        };
        if job.status != Status::Completed {
            code = ExitCode::FAILURE;
            let error = print::printable(job.last_error.as_deref().unwrap_or_default());
            eprintln!("tenure: {} is {}: {error}", job.id, job.status);
        }
        match (cli.output, job.output_json()) {
            (Output::Json, _) => print::line(serde_json::to_string(&job)?),
            (Output::Table, Some(output)) => print::line(output),
            (Output::Table, None) => {}
        }
    } else {
        match cli.output {
            Output::Json => print::line(serde_json::to_string(&enqueued)?),
            Output::Table => print::line(enqueued.id),
        }
    }
    tenure.close().await;
    Ok(code)
}

/// Returns the payload as given; `-` reads it from standard input.
pub(super) fn payload(given: &str) -> anyhow::Result<String> {
    let mut json = given.to_owned();
    if json == "-" {
        json.clear();
        std::io::stdin().read_to_string(&mut json).context("read the payload from standard input")?;
    }
    // Parsed here to add the hint about quotes.
    serde_json::from_str::<serde::de::IgnoredAny>(&json).map_err(|error| {
        Usage(format!("the payload is not JSON; a string needs its own quotes, as in '\"text\"': {error}"))
    })?;
    Ok(json)
}
