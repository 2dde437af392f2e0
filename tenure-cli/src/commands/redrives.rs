//! `tenure dead redrive --canary`, and what follows of it.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tenure::{Tenure, redrives::CalmRedrive, rows::RedriveRow};
use uuid::Uuid;

use super::{
    ANY, Cli, Output, Usage,
    dead::{self, DeadSelection},
    jobs, print,
    table::table,
    values::{Rate, number, percent, rate},
};

/// How often to look at a redrive that is followed.
const LOOKED_EVERY: Duration = Duration::from_millis(500);
/// A worker goes on with a redrive once a second: without a change for this long, a person may wonder.
const CHANGES_WITHIN: Duration = Duration::from_secs(30);

/// A redrive that stops by itself.
#[derive(Debug, Args)]
pub(super) struct CalmArgs {
    /// Queue this many first, and the others only if few of these fail; show the progress until the end. The workers
    /// go on with it, also when this command is interrupted.
    #[arg(
        long, value_name = "N", conflicts_with = "ids", value_parser = number::<1, ANY>,
        allow_negative_numbers = true
    )]
    pub(super) canary: Option<u32>,
    /// After the canary, queue at most this many, for example 5/s or 100/min. Default: as fast as they complete.
    #[arg(long, value_name = "RATE", requires = "canary", value_parser = rate)]
    then_rate: Option<Rate>,
    /// Stop once this share of the canary, or then of the latest hundred, has failed an attempt. Default: 10%.
    #[arg(long, value_name = "PERCENT", requires = "canary", value_parser = percent)]
    stop_at: Option<f64>,
    /// Do not show the progress: print the redrive's ID, and end.
    #[arg(long, requires = "canary")]
    detach: bool,
}

pub(super) async fn begin(
    cli: &Cli,
    tenure: &Tenure,
    all: bool,
    selection: &DeadSelection,
    args: &CalmArgs,
) -> anyhow::Result<ExitCode> {
    let filter = dead::selected(selection, all)?;
    let mut calm = CalmRedrive::new();
    if let Some(jobs) = args.canary {
        calm = calm.canary(jobs);
    }
    if let Some(Rate(jobs, per)) = args.then_rate {
        calm = calm.then_rate(jobs, per);
    }
    if let Some(share) = args.stop_at {
        calm = calm.stop_at(share);
    }
    let begun = match tenure.redrive_calmly(&filter, calm).await {
        Err(tenure::redrives::RedriveError::Invalid(why)) => return Err(Usage(why).into()),
        begun => begun?,
    };
    let Some(begun) = begun else {
        match cli.output {
            Output::Json => print::line(json!({ "redriven": 0 })),
            Output::Table => print::line("0 jobs are queued again: no dead letter matches"),
        }
        return Ok(ExitCode::SUCCESS);
    };
    if args.detach {
        match cli.output {
            Output::Json => print::line(serde_json::to_string(&begun)?),
            Output::Table => print::line(begun.id),
        }
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "redrive {0} has begun. The workers go on with it, also without this command: `tenure dead follow {0}` shows \
         it, `tenure dead stop {0}` stops it",
        begun.id
    );
    follow(cli, tenure, begun.id).await
}

/// Shows the progress of a redrive until it ends: a line for each change.
pub(super) async fn follow(cli: &Cli, tenure: &Tenure, id: Uuid) -> anyhow::Result<ExitCode> {
    let mut said = None;
    let mut changed_at = tokio::time::Instant::now();
    let mut has_hinted = false;
    loop {
        let Some(redrive) = tenure.redrive_row(id).await? else {
            bail!("redrive {id} does not exist; `tenure dead redrives` lists the latest");
        };
        let line = match cli.output {
            Output::Json => serde_json::to_string(&redrive)?,
            Output::Table => told(&redrive),
        };
        if said.as_ref() != Some(&line) {
            print::line(&line);
            said = Some(line);
            (changed_at, has_hinted) = (tokio::time::Instant::now(), false);
        }
        if redrive.ended_at.is_some() {
            return Ok(if redrive.state == "done" { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if changed_at.elapsed() > CHANGES_WITHIN && !has_hinted {
            has_hinted = true;
            eprintln!(
                "nothing has changed for {} s: either its jobs still run or wait, or no worker of this \
                 version runs. `tenure doctor` says what is wrong, `tenure jobs list` what they do",
                CHANGES_WITHIN.as_secs()
            );
        }
        tokio::time::sleep(LOOKED_EVERY).await;
    }
}

fn told(of: &RedriveRow) -> String {
    let out = of.redriven - of.completed - of.failed - of.cancelled - of.waiting;
    let mut parts = vec![format!("{} completed", of.completed), format!("{} failed an attempt", of.failed)];
    let others = [
        (of.cancelled, "cancelled"),
        (of.waiting, "waiting for a time or for others"),
        (out, "under way"),
        (of.missing, "no dead letters any more"),
    ];
    parts.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    let queued = format!("{} of {} queued again: {}", of.redriven, of.jobs, parts.join(", "));
    match (of.state.as_str(), &of.reason) {
        ("canary", _) => format!("canary: {queued}"),
        ("stopped", Some(reason)) => {
            let left = of.jobs - of.redriven - of.missing;
            format!("stopped: {reason}; {queued}; {left} stay dead letters")
        }
        (state, _) => format!("{state}: {queued}"),
    }
}

pub(super) async fn list(cli: &Cli, tenure: &Tenure, limit: u32) -> anyhow::Result<ExitCode> {
    let redrives = tenure.redrives(limit).await?;
    if cli.output == Output::Json {
        print::line(serde_json::to_string_pretty(&redrives)?);
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["ID", "BEGAN", "STATE", "REDRIVEN", "COMPLETED", "FAILED", "WHICH"];
    let mut table = table(&header).spare(&["BEGAN", "WHICH"]).cut("WHICH");
    for of in redrives {
        table.add_row([
            of.id.to_string(),
            jobs::time(Some(of.started_at)),
            of.state.clone(),
            format!("{} of {}", of.redriven, of.jobs),
            of.completed.to_string(),
            of.failed.to_string(),
            of.selection.as_ref().map(|of| print::printable(of.get())).unwrap_or_default(),
        ]);
    }
    print::line(table);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn stop(cli: &Cli, tenure: &Tenure, id: Uuid) -> anyhow::Result<ExitCode> {
    let stopped = tenure.stop_redrive(id).await?;
    match cli.output {
        Output::Json => print::line(json!({ "id": id, "stopped": stopped })),
        Output::Table if stopped => {
            print::line(format!("redrive {id} is stopped; what it has queued runs on"));
        }
        Output::Table => {
            print::line(format!("no redrive {id} is under way; `tenure dead redrives` lists the latest"));
        }
    }
    Ok(if stopped { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
