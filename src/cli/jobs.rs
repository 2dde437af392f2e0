//! `tenure jobs`.

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use serde_json::json;

use super::{Cli, JobsCommand, Output, print, watch};
use crate::{JobId, JobRow, Tenure};

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
    };
    tenure.close().await;
    Ok(code)
}

fn table(header: &[&str]) -> Table {
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
        print::line(format!("\n{attempts}"));
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

fn time(at: Option<DateTime<Utc>>) -> String {
    at.map(|at| at.format("%Y-%m-%d %H:%M:%S%.3f").to_string()).unwrap_or_default()
}
