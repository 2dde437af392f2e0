//! `tenure jobs`.

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use serde_json::json;

use super::{CancelArgs, Cli, JobsCommand, Output, Usage, dead, print, watch};
use crate::{Cancelled, ExecutionRow, JobId, JobRow, Retried, Tenure};

pub(super) async fn run(cli: &Cli, command: &JobsCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let code = match command {
        JobsCommand::List { status, queue, kind, limit } => {
            let jobs = tenure.jobs(*status, queue.as_deref(), kind.as_deref(), *limit).await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&jobs)?),
                Output::Table => print::line(list(&jobs)),
            }
            ExitCode::SUCCESS
        }
        JobsCommand::Show { id } => show(cli, &tenure, *id).await?,
        JobsCommand::Watch { ids } => watch::run(cli, &tenure, ids).await?,
        JobsCommand::Cancel(args) => cancel(cli, &tenure, args).await?,
        JobsCommand::Retry { ids } => {
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                answers.push(tenure.retry(*id).await?);
            }
            dead::print_retried(cli, ids, &answers);
            // One that runs, or is about to, is as good as retried.
            let good =
                |answer: &Retried| matches!(answer, Retried::Due | Retried::Redriven | Retried::Live { .. });
            if answers.iter().all(good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    };
    tenure.close().await;
    Ok(code)
}

async fn cancel(cli: &Cli, tenure: &Tenure, args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let answers = match (&args.queue, &args.unique_key) {
        (Some(queue), Some(key)) => match tenure.cancel_key(queue, key).await? {
            Some(answer) => vec![answer],
            None => anyhow::bail!("no job holds the unique key {key:?} in queue {queue:?}"),
        },
        (Some(queue), None) => {
            let done = tenure.cancel_all(queue, args.kind.as_deref()).await?;
            match cli.output {
                Output::Json => print::line(json!(done)),
                Output::Table => {
                    print::line(format!(
                        "{} cancelled, {} running and told to stop",
                        done.cancelled, done.asked
                    ));
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        (None, _) if args.ids.is_empty() => {
            return Err(
                Usage("say which: ids, or --queue with or without --kind or --unique-key".into()).into()
            );
        }
        (None, _) => {
            let answers = tenure.cancel_many(&args.ids).await?;
            args.ids.iter().copied().zip(answers).collect()
        }
    };
    let mut code = ExitCode::SUCCESS;
    for (id, answer) in answers {
        let text = match &answer {
            Cancelled::Cancelled => "is cancelled".into(),
            Cancelled::Asked { worker } => format!("runs on {worker}, which is told to stop it"),
            Cancelled::Finished { status } => format!("is {status} already"),
            Cancelled::NotFound => {
                code = ExitCode::FAILURE;
                "does not exist".into()
            }
        };
        match cli.output {
            Output::Json => print::line(print::answer(id, &answer)),
            Output::Table => print::line(format!("{id} {text}")),
        }
    }
    Ok(code)
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(header);
    table
}

fn list(jobs: &[JobRow]) -> Table {
    let mut table = table(&["ID", "QUEUE", "KIND", "STATUS", "ATTEMPT", "PROGRESS", "CREATED", "LAST ERROR"]);
    for job in jobs {
        table.add_row([
            job.id.to_string(),
            job.queue.clone(),
            job.kind.clone(),
            job.status.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            job.progress.map(|percent| format!("{percent:.0} %")).unwrap_or_default(),
            time(Some(job.created_at)),
            print::printable(job.last_error.as_deref().unwrap_or_default()).chars().take(60).collect(),
        ]);
    }
    table
}

async fn show(cli: &Cli, tenure: &Tenure, id: JobId) -> anyhow::Result<ExitCode> {
    let Some(job) = tenure.job(id).await? else {
        anyhow::bail!("there is no job {id}; `tenure jobs list` shows the newest");
    };
    let executions = tenure.executions(id).await?;
    let recoveries = tenure.recoveries(id).await?;
    if cli.output == Output::Json {
        let all = json!({ "job": job, "executions": executions, "recoveries": recoveries });
        print::line(serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut about = table(&[]);
    let json =
        |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string).unwrap_or_default();
    for (name, value) in [
        ("id", job.id.to_string()),
        ("queue", job.queue.clone()),
        ("kind", job.kind.clone()),
        ("status", job.status.to_string()),
        ("attempt", format!("{} of {}", job.attempt, job.max_attempts)),
        ("worker", job.worker_id.clone().unwrap_or_default()),
        ("created", time(Some(job.created_at))),
        ("scheduled", time(Some(job.scheduled_at))),
        ("started", time(job.started_at)),
        ("last activity", time(job.last_activity_at)),
        ("finished", time(job.finished_at)),
        ("progress", print::progress(&job)),
        ("payload", json(&job.payload)),
        ("output", json(&job.output)),
        ("last error", job.last_error.clone().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            about.add_row([name.to_owned(), print::printable(&value)]);
        }
    }
    print::line(&about);
    if !executions.is_empty() {
        print::line(format!("\n{}", attempts(executions)));
    }
    if !recoveries.is_empty() {
        let mut events = table(&["AT", "EVENT", "PATH", "TOKEN", "OWNER BEFORE", "SILENCE", "REASON"]);
        for event in recoveries {
            events.add_row([
                time(Some(event.at)),
                event.event,
                event.path,
                event.fencing_token.to_string(),
                event.owner_before.unwrap_or_default(),
                event.silence_s.map(|s| format!("{s:.1} s")).unwrap_or_default(),
                print::printable(&event.reason),
            ]);
        }
        print::line(format!("\n{events}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Attempts as a table.
pub(super) fn attempts(executions: Vec<ExecutionRow>) -> Table {
    let mut attempts = table(&["TOKEN", "ATTEMPT", "STARTED", "FINISHED", "OUTCOME", "WORKER", "ERROR"]);
    for attempt in executions {
        attempts.add_row([
            attempt.fencing_token.to_string(),
            attempt.attempt.to_string(),
            time(Some(attempt.started_at)),
            time(attempt.finished_at),
            attempt.outcome.unwrap_or_else(|| "running".into()),
            attempt.worker_id,
            print::printable(&attempt.error.unwrap_or_default()),
        ]);
    }
    attempts
}

pub(super) fn time(at: Option<DateTime<Utc>>) -> String {
    at.map(|at| at.format("%Y-%m-%d %H:%M:%S%.3f").to_string()).unwrap_or_default()
}
