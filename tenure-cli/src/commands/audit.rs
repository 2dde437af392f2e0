//! `tenure audit`: who did what.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use tenure::audit::{AuditFilter, AuditRow};

use super::{
    ANY, Cli, Output,
    jobs::time,
    print,
    table::{Table, table},
    values::{duration, number},
};

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Only what was done in this time until now, for example 2h or 30d.
    #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
    since: Option<Duration>,
    /// Only what was done to this queue, or to jobs of this queue alone.
    #[arg(long)]
    queue: Option<String>,
    /// Only this act, for example cancel, redrive, `purge_dead` or `pause_queue`.
    #[arg(long)]
    act: Option<String>,
    /// Only what this user did, or this role of Postgres.
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
    /// Only what was done to this alone: the ID of a job, a redrive or a worker, or the name of a lane or a schedule.
    #[arg(long, value_name = "WHAT")]
    on: Option<String>,
    /// Only acts after this one in the list: the next page. Give the last ID of this page.
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// The maximum number of acts.
    #[arg(
        long, value_name = "N", default_value_t = 50, value_parser = number::<1, ANY>,
        allow_negative_numbers = true
    )]
    limit: u32,
}

pub(super) async fn run(cli: &Cli, args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let mut filter = AuditFilter::new();
    if let Some(age) = args.since {
        filter = filter.since(age);
    }
    if let Some(queue) = &args.queue {
        tenure::names::check_queue(queue)?;
        filter = filter.queue(queue);
    }
    if let Some(act) = &args.act {
        filter = filter.act(act);
    }
    if let Some(who) = &args.by {
        filter = filter.by(who);
    }
    if let Some(what) = &args.on {
        filter = filter.subject(what);
    }
    if let Some(id) = args.before {
        filter = filter.before(id);
    }
    let tenure = cli.connect().await?;
    let acts = tenure.audit(&filter, args.limit).await;
    tenure.close().await;
    let acts = acts?;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&acts)?),
        Output::Table => print::line(list(&acts)),
    }
    if u32::try_from(acts.len()) == Ok(args.limit)
        && let Some(last) = acts.last()
        && cli.output == Output::Table
    {
        eprintln!("there may be more: --before {}", last.id);
    }
    Ok(ExitCode::SUCCESS)
}

fn list(acts: &[AuditRow]) -> Table {
    let header = ["ID", "AT", "WHO", "BY", "FROM", "ACT", "QUEUE", "ON", "JOBS", "DETAILS"];
    let mut table =
        table(&header).spare(&["FROM", "ID", "DETAILS", "BY"]).wrap(&["WHO", "ON"]).cut("DETAILS");
    for act in acts {
        table.add_row([
            act.id.to_string(),
            time(Some(act.at)),
            print::printable(act.actor.as_ref().unwrap_or(&act.role)),
            print::printable(&act.via),
            act.address.clone().unwrap_or_else(|| "this host".into()),
            print::printable(&act.act),
            print::printable(act.queue.as_deref().unwrap_or_default()),
            print::printable(act.subject.as_deref().unwrap_or_default()),
            act.jobs.map(|jobs| jobs.to_string()).unwrap_or_default(),
            print::printable(act.details.as_ref().map_or("", |details| details.get())),
        ]);
    }
    table
}
