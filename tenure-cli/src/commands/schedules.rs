//! `tenure schedules`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::{
    Cli, Output, ScheduleArgs, SchedulesCommand, enqueue, jobs::time, print, table::Table, table::table,
};
use crate::dashboard::{UNSERVED, schedule_state};
use tenure::{
    JobRequest, Tenure,
    internals::{Parts as _, Replaces, UnservedSchedule},
    names::check_queue,
    rows::ScheduleRow,
    schedules::{PauseOutcome, Schedule, ScheduleError},
};

pub(super) async fn run(cli: &Cli, command: &SchedulesCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let mut code = ExitCode::SUCCESS;
    match command {
        SchedulesCommand::List => {
            let schedules = tenure.schedules().await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&schedules)?),
                Output::Table => {
                    let unserved = tenure.store().unserved_schedules(UNSERVED).await?;
                    print::line(list(&schedules, &unserved));
                }
            }
        }
        SchedulesCommand::Add(args) => add(cli, &tenure, args).await?,
        SchedulesCommand::Pause { names } => {
            check_names(names)?;
            for name in names {
                let Some(paused) = if_known(tenure.pause_schedule(name).await)? else {
                    code = ExitCode::FAILURE;
                    continue;
                };
                let what = if paused.was_paused { "was already paused" } else { "is paused" };
                print_pause(cli, name, paused, &format!("{name} {what}"));
            }
        }
        SchedulesCommand::Resume { names } => {
            check_names(names)?;
            for name in names {
                let Some(resumed) = if_known(tenure.resume_schedule(name).await)? else {
                    code = ExitCode::FAILURE;
                    continue;
                };
                let what = if resumed.was_paused { "is resumed" } else { "was not paused" };
                let text = format!("{name} {what}; its next tick is at {}", time(resumed.next_at));
                print_pause(cli, name, resumed, &text);
            }
        }
        SchedulesCommand::Run { name } => {
            let enqueued = tenure.run_schedule(name).await?;
            match cli.output {
                Output::Json => print::line(json!({ "id": enqueued.id, "duplicate": enqueued.duplicate })),
                Output::Table => print::line(enqueued.id),
            }
        }
        SchedulesCommand::Remove { names } => {
            check_names(names)?;
            for name in names {
                let removed = tenure.remove_schedule(name).await?;
                if !removed {
                    eprintln!("tenure: {}", ScheduleError::NotFound { name: name.clone() });
                    code = ExitCode::FAILURE;
                }
                match cli.output {
                    Output::Json => print::line(json!({ "name": name, "removed": removed })),
                    Output::Table if removed => print::line(format!("{name} is removed; its jobs stay")),
                    Output::Table => {}
                }
            }
        }
    }
    tenure.close().await;
    Ok(code)
}

/// Refuses an invalid name before the command acts on any.
fn check_names(names: &[String]) -> Result<(), ScheduleError> {
    match names.iter().find(|name| check_queue(name).is_err()) {
        Some(name) => Err(ScheduleError::Name { name: name.clone() }),
        None => Ok(()),
    }
}

/// Returns what was done, or says that the schedule is unknown.
fn if_known<T>(done: Result<T, ScheduleError>) -> Result<Option<T>, ScheduleError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(unknown @ ScheduleError::NotFound { .. }) => {
            eprintln!("tenure: {unknown}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn print_pause(cli: &Cli, name: &str, PauseOutcome { was_paused, next_at, .. }: PauseOutcome, text: &str) {
    match cli.output {
        Output::Json => print::line(json!({ "name": name, "was_paused": was_paused, "next_at": next_at })),
        Output::Table => print::line(text),
    }
}

async fn add(cli: &Cli, tenure: &Tenure, args: &ScheduleArgs) -> anyhow::Result<()> {
    let payload = enqueue::payload(&args.json)?;
    let job = JobRequest::from_json(&args.queue, &args.kind, payload).max_attempts(args.max_attempts);
    let job = args.expires_in.into_iter().fold(args.place.of(job), JobRequest::expires_in);
    let mut schedule = Schedule::new(&args.name, &args.cron, job)
        .time_zone(&args.time_zone)
        .missed(args.missed.into())
        .overlap(args.overlap.into());
    if let Some(field) = &args.tick_field {
        schedule = schedule.tick_field(field);
    }
    if let Some(within) = args.spread {
        schedule = schedule.spread(within);
    }
    let replaces = if args.replace { Replaces::Any } else { Replaces::Nothing };
    let Some(done) = tenure.put_schedule_over(schedule, replaces).await? else {
        bail!("schedule {:?} already exists; --replace changes it", args.name);
    };
    match cli.output {
        Output::Json => {
            let (next_at, is_new, paused_at) = (done.next_at, done.is_new, done.paused_at);
            print::line(
                json!({ "name": args.name, "next_at": next_at, "is_new": is_new, "paused_at": paused_at }),
            );
        }
        Output::Table if done.paused_at.is_some() => {
            print::line(format!(
                "{} is changed; it is paused, and has no tick until it is resumed",
                args.name
            ));
        }
        Output::Table => {
            let what = if done.is_new { "is scheduled" } else { "is changed" };
            print::line(format!("{} {what}; its next tick is at {}", args.name, time(Some(done.next_at))));
        }
    }
    Ok(())
}

fn list(schedules: &[ScheduleRow], unserved: &[UnservedSchedule]) -> Table {
    let header = [
        "NAME",
        "STATE",
        "CRON",
        "TIME ZONE",
        "QUEUE",
        "KIND",
        "MISSED",
        "OVERLAP",
        "NEXT",
        "LAST",
        "LAST JOB",
    ];
    let spare = &["LAST JOB", "LAST", "OVERLAP", "MISSED", "TIME ZONE", "KIND", "QUEUE"];
    let mut table = table(&header).spare(spare);
    for schedule in schedules {
        table.add_row([
            schedule.name.clone(),
            schedule_state(schedule, unserved).to_owned(),
            schedule.cron.clone(),
            schedule.time_zone.clone(),
            schedule.queue.clone(),
            schedule.kind.clone(),
            schedule.missed.to_string(),
            schedule.overlap.to_string(),
            schedule.paused_at.map_or_else(|| time(Some(schedule.next_at)), |_| String::new()),
            time(schedule.last_tick_at),
            schedule.last_job_id.map(|id| id.to_string()).unwrap_or_default(),
        ]);
    }
    table
}
