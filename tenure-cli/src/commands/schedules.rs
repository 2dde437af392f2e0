//! `tenure schedules`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::{
    Cli, Output, ScheduleArgs, SchedulesCommand, enqueue, jobs::time, print, table::Table, table::table,
};
use tenure::{JobRequest, Schedule, Tenure, rows::ScheduleRow};

pub(super) async fn run(cli: &Cli, command: &SchedulesCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let mut code = ExitCode::SUCCESS;
    match command {
        SchedulesCommand::List => {
            let schedules = tenure.schedules().await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&schedules)?),
                Output::Table => print::line(list(&schedules)),
            }
        }
        SchedulesCommand::Add(args) => add(cli, &tenure, args).await?,
        SchedulesCommand::Pause { names } => {
            for name in names {
                let was_paused = tenure.pause_schedule(name).await?;
                match cli.output {
                    Output::Json => print::line(json!({ "name": name, "was_paused": was_paused })),
                    Output::Table if was_paused => print::line(format!("{name} was already paused")),
                    Output::Table => print::line(format!("{name} is paused")),
                }
            }
        }
        SchedulesCommand::Resume { names } => {
            for name in names {
                let next_at = tenure.resume_schedule(name).await?;
                match cli.output {
                    Output::Json => print::line(json!({ "name": name, "next_at": next_at })),
                    Output::Table => {
                        print::line(format!(
                            "{name} is resumed; its next tick is at {}",
                            time(Some(next_at))
                        ));
                    }
                }
            }
        }
        SchedulesCommand::Remove { names } => {
            for name in names {
                let removed = tenure.remove_schedule(name).await?;
                if !removed {
                    code = ExitCode::FAILURE;
                }
                match cli.output {
                    Output::Json => print::line(json!({ "name": name, "removed": removed })),
                    Output::Table if removed => print::line(format!("{name} is removed; its jobs stay")),
                    Output::Table => print::line(format!("schedule {name:?} does not exist")),
                }
            }
        }
    }
    tenure.close().await;
    Ok(code)
}

async fn add(cli: &Cli, tenure: &Tenure, args: &ScheduleArgs) -> anyhow::Result<()> {
    let known = tenure.schedules().await?.iter().any(|schedule| schedule.name == args.name);
    if known && !args.replace {
        bail!("schedule {:?} already exists; --replace changes it", args.name);
    }
    let payload = enqueue::payload(&args.json)?;
    let job = JobRequest::from_json(&args.queue, &args.kind, payload).max_attempts(args.max_attempts);
    let mut schedule =
        Schedule::new(&args.name, &args.cron, job).time_zone(&args.time_zone).missed(args.missed.into());
    if let Some(field) = &args.tick_field {
        schedule = schedule.tick_field(field);
    }
    let done = tenure.put_schedule(schedule).await?;
    match cli.output {
        Output::Json => {
            let (next_at, is_new) = (done.next_at, done.is_new);
            print::line(json!({ "name": args.name, "next_at": next_at, "is_new": is_new }));
        }
        Output::Table => {
            let what = if done.is_new { "is scheduled" } else { "is changed" };
            print::line(format!("{} {what}; its next tick is at {}", args.name, time(Some(done.next_at))));
        }
    }
    Ok(())
}

fn list(schedules: &[ScheduleRow]) -> Table {
    let header = ["NAME", "CRON", "TIME ZONE", "QUEUE", "KIND", "MISSED", "NEXT", "LAST", "LAST JOB"];
    let spare = &["LAST JOB", "LAST", "MISSED", "TIME ZONE", "KIND", "QUEUE"];
    let mut table = table(&header).spare(spare);
    for schedule in schedules {
        table.add_row([
            schedule.name.clone(),
            schedule.cron.clone(),
            schedule.time_zone.clone(),
            schedule.queue.clone(),
            schedule.kind.clone(),
            schedule.missed.to_string(),
            match schedule.paused_at {
                Some(_) => "paused".into(),
                None => time(Some(schedule.next_at)),
            },
            time(schedule.last_tick_at),
            schedule.last_job_id.map(|id| id.to_string()).unwrap_or_default(),
        ]);
    }
    table
}
