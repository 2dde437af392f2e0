//! `tenure enqueue`.

use std::{io::Read, process::ExitCode};

use anyhow::Context;

use super::{Cli, EnqueueArgs, Output, Usage, print};
use tenure::{JobRequest, Status, internals::Parts as _, jobs::WaitError};

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
    // `work --exec` sets the variable for its commands, as other launchers that trace do.
    if let Some(context) = args.traceparent.clone().or_else(|| std::env::var("TRACEPARENT").ok()) {
        request = request.trace_context(context);
    }
    let cells = cli.cells().await?;
    let tenure = match &cells {
        Some(cells) => cells.of(&args.queue)?.tenure().clone(),
        None => cli.connect().await?,
    };
    // The row is enough, but if NATS is up, the message should go out before this process ends.
    drop(tokio::time::timeout(std::time::Duration::from_secs(1), tenure.nats().connected()).await);
    let (tenure, enqueued) = if let Some(cells) = &cells {
        let enqueued = cells.enqueue(request).await?;
        // The queue may have moved, and the job that holds the key may be where it was before.
        let holder = if enqueued.duplicate { cells.find(enqueued.id).await? } else { None };
        let cell = match &holder {
            Some((cell, _)) => *cell,
            None => cells.of(&args.queue)?,
        };
        (cell.tenure().clone(), enqueued)
    } else {
        let enqueued = tenure.enqueue(request).await?;
        (tenure, enqueued)
    };
    if enqueued.duplicate {
        eprintln!("job {} holds the unique key; nothing was enqueued", enqueued.id);
    }
    let mut code = ExitCode::SUCCESS;
    if args.wait {
        eprintln!("waiting for {}", enqueued.id);
        let job = match tenure.wait(enqueued.id, std::time::Duration::MAX).await {
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
