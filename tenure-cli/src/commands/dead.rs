//! `tenure dead`.

use std::{io::Write, process::ExitCode, time::Duration};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{json, value::RawValue};

use super::{
    ANY, Cli, Output, Usage, jobs, print,
    redrives::{self, CalmArgs},
    table::{Table, pairs, table},
    values::{category, check_unless_lacking, duration, group, number, tag},
};
use tenure::{
    JobId, Tenure,
    internals::{DeadGroup, Parts as _},
    jobs::RetryOutcome,
    names::{check_kind, check_queue},
    rows::{DeadFilter, DeadLetter},
};
use uuid::Uuid;

/// The most characters of an error in a list.
const ERROR_MAX: usize = 80;
/// How many of the latest dead letters to group.
const GROUPED: i64 = 10_000;

#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead letters, latest first.
    List {
        #[command(flatten)]
        selection: DeadSelection,
        /// The maximum number of dead letters.
        #[arg(
            long, value_name = "N", default_value_t = 50, value_parser = number::<1, ANY>,
            allow_negative_numbers = true
        )]
        limit: u32,
    },
    /// Count dead letters by queue, kind and category.
    Count,
    /// Group the latest 10,000 dead letters by queue, kind, category and error, the largest group first. Errors of one
    /// group read alike but for numbers, IDs and quoted texts.
    Groups {
        #[command(flatten)]
        selection: DeadSelection,
        /// The maximum number of groups.
        #[arg(
            long, value_name = "N", default_value_t = 50, value_parser = number::<1, ANY>,
            allow_negative_numbers = true
        )]
        limit: u32,
    },
    /// Show a dead letter and its attempts.
    Show {
        /// The dead letter's ID.
        id: JobId,
        /// Print only the bytes of a refused message.
        #[arg(long)]
        raw: bool,
    },
    /// Queue dead letters again, under the same ID. Exit 1 if one of these IDs was not queued.
    Redrive {
        /// The dead letters' IDs.
        #[arg(value_name = "ID")]
        ids: Vec<JobId>,
        /// Redrive all dead letters.
        #[arg(long)]
        all: bool,
        /// Print how many dead letters would be queued again, and change nothing.
        #[arg(long, conflicts_with = "ids")]
        dry_run: bool,
        #[command(flatten)]
        selection: DeadSelection,
        #[command(flatten)]
        calm: CalmArgs,
    },
    /// List redrives with a canary, the latest first.
    Redrives {
        /// The maximum number of redrives.
        #[arg(
            long, value_name = "N", default_value_t = 20, value_parser = number::<1, ANY>,
            allow_negative_numbers = true
        )]
        limit: u32,
    },
    /// Show the progress of a redrive with a canary until it ends. Exit 1 if it did not redrive all.
    Follow {
        /// The redrive's ID; `tenure dead redrives` shows them.
        id: Uuid,
    },
    /// Stop a redrive with a canary: the jobs that it has queued run on, the others stay dead. Exit 1 if it has ended.
    Stop {
        /// The redrive's ID; `tenure dead redrives` shows them.
        id: Uuid,
    },
    /// Remove dead letters for good.
    Purge {
        /// Only dead letters that died at least this long ago, for example 30d; 0s means all.
        #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
        older_than: Duration,
        /// Print how many dead letters would be purged, and change nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        selection: DeadSelection,
    },
}

#[derive(Debug, Args)]
pub(super) struct DeadSelection {
    /// Only dead letters of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only dead letters of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only dead letters of this category: why they died.
    #[arg(long, value_parser = category())]
    category: Option<String>,
    /// Only dead letters of this group: of one queue, kind and category, with errors that read alike. `tenure dead
    /// groups` shows the groups.
    #[arg(long, value_parser = group)]
    group: Option<String>,
    /// Only jobs with this tag, such as customer=7. Repeat it for jobs that have all of several tags.
    #[arg(long, value_name = "TAG", value_parser = tag)]
    tag: Vec<String>,
}

pub(super) async fn run(cli: &Cli, command: &DeadCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let code = match command {
        DeadCommand::List { selection, limit } => {
            let letters = tenure.dead_letters(&selection.filter()?, *limit).await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&letters)?),
                Output::Table => print::line(list(&letters)),
            }
            ExitCode::SUCCESS
        }
        DeadCommand::Count => count(cli, &tenure).await?,
        DeadCommand::Groups { selection, limit } => {
            groups(cli, &tenure, &selection.filter()?, *limit).await?
        }
        DeadCommand::Show { id, raw } => show(cli, &tenure, *id, *raw).await?,
        DeadCommand::Redrive { all, dry_run: false, selection, calm, .. } if calm.canary.is_some() => {
            redrives::begin(cli, &tenure, *all, selection, calm).await?
        }
        DeadCommand::Redrives { limit } => redrives::list(cli, &tenure, *limit).await?,
        DeadCommand::Follow { id } => redrives::follow(cli, &tenure, *id).await?,
        DeadCommand::Stop { id } => redrives::stop(cli, &tenure, *id).await?,
        DeadCommand::Redrive { ids, all, dry_run, selection, .. } if ids.is_empty() => {
            redrive_all(cli, &tenure, *all, *dry_run, selection).await?
        }
        DeadCommand::Redrive { ids, all, selection, .. } => {
            redrive(cli, &tenure, ids, *all || !selection.is_empty()).await?
        }
        DeadCommand::Purge { older_than, dry_run, selection } => {
            let filter = selection.filter()?.older_than(*older_than);
            if *dry_run {
                let would = tenure.store().count_dead(&filter, i64::MAX).await?.jobs;
                would_change(
                    cli,
                    "purge",
                    would,
                    "dead letter would be purged",
                    "dead letters would be purged",
                );
            } else {
                let purged = tenure.purge_dead(&filter).await?;
                match cli.output {
                    Output::Json => print::line(json!({ "purged": purged })),
                    Output::Table if purged == 1 => print::line("1 dead letter purged"),
                    Output::Table => print::line(format!("{purged} dead letters purged")),
                }
            }
            ExitCode::SUCCESS
        }
    };
    tenure.close().await;
    Ok(code)
}

impl DeadSelection {
    pub(super) fn filter(&self) -> anyhow::Result<DeadFilter> {
        let mut filter = DeadFilter::new();
        if let Some(queue) = &self.queue {
            check_unless_lacking(queue, check_queue)?;
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            check_unless_lacking(kind, check_kind)?;
            filter = filter.kind(kind);
        }
        if let Some(category) = &self.category {
            filter = filter.category(category);
        }
        if let Some(group) = &self.group {
            filter = filter.group(group);
        }
        Ok(self.tag.iter().fold(filter, DeadFilter::tag))
    }

    pub(super) fn is_empty(&self) -> bool {
        let texts = [&self.queue, &self.kind, &self.category, &self.group];
        self.tag.is_empty() && texts.into_iter().all(Option::is_none)
    }
}

fn list(letters: &[DeadLetter]) -> Table {
    let header = ["ID", "QUEUE", "KIND", "CATEGORY", "ATTEMPT", "DIED", "LAST ERROR"];
    let mut table = table(&header).spare(&["ATTEMPT", "DIED", "LAST ERROR"]).cut("LAST ERROR");
    for letter in letters {
        table.add_row([
            letter.id.to_string(),
            print::printable(&letter.queue),
            print::printable(&letter.kind),
            letter.category.clone(),
            format!("{}/{}", letter.attempt, letter.max_attempts),
            jobs::time(Some(letter.died_at)),
            print::brief(&letter.last_error, ERROR_MAX),
        ]);
    }
    table
}

async fn count(cli: &Cli, tenure: &Tenure) -> anyhow::Result<ExitCode> {
    let counts = tenure.dead_counts().await?;
    if cli.output == Output::Json {
        print::line(serde_json::to_string_pretty(&counts)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        table(&["JOBS", "QUEUE", "KIND", "CATEGORY", "OLDEST", "NEWEST"]).spare(&["OLDEST", "NEWEST"]);
    for count in counts {
        table.add_row([
            count.jobs.to_string(),
            print::printable(&count.queue),
            print::printable(&count.kind),
            count.category,
            jobs::time(Some(count.oldest)),
            jobs::time(Some(count.newest)),
        ]);
    }
    print::line(table);
    Ok(ExitCode::SUCCESS)
}

async fn groups(cli: &Cli, tenure: &Tenure, filter: &DeadFilter, limit: u32) -> anyhow::Result<ExitCode> {
    let groups = tenure.store().dead_groups(filter, limit.into(), GROUPED).await?;
    if cli.output == Output::Json {
        let json = |DeadGroup { fingerprint, of, line }: &DeadGroup| {
            json!({
                "group": fingerprint, "queue": of.queue, "kind": of.kind, "category": of.category, "error": line,
                "jobs": of.jobs, "oldest": of.oldest, "newest": of.newest,
            })
        };
        print::line(serde_json::to_string_pretty(&groups.iter().map(json).collect::<Vec<_>>())?);
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["GROUP", "JOBS", "QUEUE", "KIND", "CATEGORY", "OLDEST", "NEWEST", "ERROR"];
    let mut table = table(&header).spare(&["OLDEST", "NEWEST", "CATEGORY"]).cut("ERROR");
    for DeadGroup { fingerprint, of, line } in groups {
        table.add_row([
            fingerprint,
            of.jobs.to_string(),
            print::printable(&of.queue),
            print::printable(&of.kind),
            of.category,
            jobs::time(Some(of.oldest)),
            jobs::time(Some(of.newest)),
            print::brief(&line, ERROR_MAX),
        ]);
    }
    print::line(table);
    Ok(ExitCode::SUCCESS)
}

async fn show(cli: &Cli, tenure: &Tenure, id: JobId, raw: bool) -> anyhow::Result<ExitCode> {
    let Some(letter) = tenure.dead_letter(id).await? else {
        bail!("dead letter {id} does not exist; `tenure dead list` shows the latest");
    };
    if raw {
        let Some(bytes) = &letter.raw_payload else {
            bail!("{id} was a job, and its payload is JSON; `tenure dead show {id} --output json` prints it");
        };
        std::io::stdout().write_all(bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    if cli.output == Output::Json {
        // Not through `serde_json::Value`, which would round the payload's numbers.
        print::line(serde_json::to_string_pretty(&letter)?);
        return Ok(ExitCode::SUCCESS);
    }
    let json =
        |value: &Option<Box<RawValue>>| value.as_ref().map(|json| jobs::shown(json)).unwrap_or_default();
    let about = [
        ("id", letter.id.to_string()),
        ("queue", letter.queue.clone()),
        ("kind", letter.kind.clone()),
        ("subject", letter.subject.clone().unwrap_or_default()),
        ("category", letter.category.clone()),
        ("last error", letter.last_error.clone()),
        ("attempt", format!("{} of {}", letter.attempt, letter.max_attempts)),
        ("losses", letter.losses.to_string()),
        ("worker", letter.worker_id.clone().unwrap_or_default()),
        ("created", jobs::time(Some(letter.created_at))),
        ("died", jobs::time(Some(letter.died_at))),
        ("payload", json(&letter.payload)),
        ("checkpoint", json(&letter.checkpoint)),
        (
            "raw payload",
            letter.raw_bytes.map(|n| format!("{n} bytes; --raw prints them")).unwrap_or_default(),
        ),
    ];
    print::line(pairs(about.map(|(name, value)| (name, print::printable(&value)))));
    let attempts = tenure.executions(id).await?;
    if !attempts.is_empty() {
        print::line(format!("\n{}", jobs::attempts(attempts)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The filter of a selection that must name something.
pub(super) fn selected(selection: &DeadSelection, all: bool) -> anyhow::Result<DeadFilter> {
    if selection.is_empty() && !all {
        let text = "name what to redrive: IDs, --queue, --kind, --category, --group, --tag or --all";
        return Err(Usage(text.into()).into());
    }
    selection.filter()
}

/// Redrives the dead letters of a selection, or counts them.
async fn redrive_all(
    cli: &Cli,
    tenure: &Tenure,
    all: bool,
    dry_run: bool,
    selection: &DeadSelection,
) -> anyhow::Result<ExitCode> {
    let filter = selected(selection, all)?;
    if dry_run {
        let would = tenure.store().count_dead(&filter, i64::MAX).await?.redrivable;
        would_change(cli, "redrive", would, "job would be queued again", "jobs would be queued again");
        return Ok(ExitCode::SUCCESS);
    }
    let redriven = tenure.redrive_all(&filter).await?;
    match cli.output {
        Output::Json => print::line(json!({ "redriven": redriven })),
        Output::Table if redriven == 1 => print::line("1 job is queued again"),
        Output::Table => print::line(format!("{redriven} jobs are queued again")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints how many jobs an action would change.
fn would_change(cli: &Cli, act: &str, jobs: i64, one: &str, many: &str) {
    match cli.output {
        Output::Json => print::line(json!({ format!("would_{act}"): jobs })),
        Output::Table => print::line(format!("{jobs} {}", if jobs == 1 { one } else { many })),
    }
}

async fn redrive(cli: &Cli, tenure: &Tenure, ids: &[JobId], has_selection: bool) -> anyhow::Result<ExitCode> {
    if has_selection {
        return Err(Usage("give either IDs or a selection, not both".into()).into());
    }
    let answers = tenure.redrive(ids).await?;
    print_retried(cli, ids, &answers);
    let all = answers.iter().all(|answer| *answer == RetryOutcome::Redriven);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the outcome for each job.
pub(super) fn print_retried(cli: &Cli, ids: &[JobId], answers: &[RetryOutcome]) {
    for (id, answer) in ids.iter().zip(answers) {
        let text = match answer {
            RetryOutcome::Due => "is due now".into(),
            RetryOutcome::Redriven => "was a dead letter; it is queued again".into(),
            RetryOutcome::Live { status } => format!("is {status}; nothing to do"),
            RetryOutcome::Finished { status } => {
                format!("is {status}; a finished job does not run again, so enqueue a new one")
            }
            RetryOutcome::Refused => format!(
                "is a refused message; correct what `tenure dead show {id} --raw` prints, and publish it again"
            ),
            RetryOutcome::NotFound => "does not exist".into(),
            other => format!("has an answer that this version cannot name: {other:?}"),
        };
        match cli.output {
            Output::Json => print::line(print::answer(*id, answer)),
            Output::Table => print::line(format!("{id} {text}")),
        }
    }
}
