//! `tenure queues`.

use std::process::ExitCode;

use anyhow::bail;
use clap::{
    Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::json;

use super::{
    Cli, Output, Usage,
    jobs::time,
    lanes, print,
    table::{Table, table},
    values::{LimitChange, limit_change},
};
use crate::dashboard::QueueState;
use tenure::{
    Tenure,
    internals::{Fleet, Parts as _},
    names::{NameError, check_queue},
    queues::{PauseOutcome, QueueEvents, QueueLimits, QueueSettingsError},
    rows::QueueRow,
};

#[derive(Debug, Subcommand)]
pub(super) enum QueuesCommand {
    /// List the queues that have jobs, workers or settings.
    List,
    /// Pause queues: no worker starts their jobs until they are resumed. Running jobs continue. Exit 1 if a queue is
    /// unknown; the others are paused.
    Pause {
        /// The queues.
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
        /// Pause unknown queues, too: before their first worker, job or message.
        #[arg(long)]
        create: bool,
    },
    /// Resume paused queues. Exit 1 if a queue is unknown; the others are resumed.
    Resume {
        /// The queues.
        #[arg(required = true, value_name = "QUEUE")]
        queues: Vec<String>,
    },
    /// Limit how many jobs of a queue run at once, on all workers together, and how many may be queued. Exit 1 if the
    /// queue is unknown.
    Limit {
        /// The queue.
        queue: String,
        /// Limit an unknown queue, too: before its first worker, job or message.
        #[arg(long)]
        create: bool,
        /// The most jobs to run at once: 1 to 10000, or none.
        #[arg(long, value_name = "N|none", value_parser = limit_change::<10_000>, allow_negative_numbers = true)]
        max_running: Option<LimitChange>,
        /// The most jobs to queue: 1 to 10000000, or none. Further enqueues are refused.
        #[arg(
            long, value_name = "N|none", value_parser = limit_change::<10_000_000>,
            allow_negative_numbers = true
        )]
        max_queued: Option<LimitChange>,
    },
    /// Show or set the lanes of a queue: limits, rates and turns by the key of --lane in `tenure enqueue`. Without a
    /// queue, list the queues with lanes; without a setting, show those of the queue, and the lanes that wait longest.
    Lanes(lanes::LanesArgs),
    /// Set what workers publish of a queue's jobs for any NATS subscriber: nothing, ends, or progress and ends. Exit 1
    /// if the queue is unknown.
    Events {
        /// The queue.
        queue: String,
        /// `nothing`, `ends` or `progress`.
        #[arg(value_parser = events())]
        events: QueueEvents,
        /// Set it for an unknown queue, too: before its first worker, job or message.
        #[arg(long)]
        create: bool,
    },
}

/// Reads the word of the events.
fn events() -> impl TypedValueParser<Value = QueueEvents> {
    PossibleValuesParser::new(["nothing", "ends", "progress"]).try_map(|word| word.parse::<QueueEvents>())
}

pub(super) async fn run(cli: &Cli, command: &QueuesCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let mut code = ExitCode::SUCCESS;
    match command {
        QueuesCommand::List => {
            let queues = tenure.queues().await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&queues)?),
                Output::Table => print::line(list(&queues, &tenure.store().fleet().await?)),
            }
        }
        QueuesCommand::Lanes(args) => lanes::run(cli, &tenure, args).await?,
        QueuesCommand::Pause { queues, create } => code = pause(cli, &tenure, queues, *create).await?,
        QueuesCommand::Resume { queues } => code = resume(cli, &tenure, queues).await?,
        QueuesCommand::Events { queue, events, create } => {
            if !create && let Some(text) = if_unknown(&tenure, queue).await? {
                bail!("{text}; to set it before its first job, add --create");
            }
            tenure.set_events(queue, *events).await?;
            match cli.output {
                Output::Json => print::line(json!({ "queue": queue, "events": events })),
                Output::Table => print::line(format!("{queue}: workers publish {}", said(*events))),
            }
        }
        QueuesCommand::Limit { queue, max_running, max_queued, create } => {
            if max_running.is_none() && max_queued.is_none() {
                return Err(
                    Usage("give --max-running N or --max-queued N; `none` removes a limit".into()).into()
                );
            }
            let mut limits = QueueLimits::new();
            if let Some(LimitChange(jobs)) = max_running {
                let jobs = jobs.map(|jobs| {
                    let large = format!("--max-running {jobs} is too many; take 1 to 10000, or none");
                    u32::try_from(jobs).map_err(|_| Usage(large))
                });
                limits = limits.max_running(jobs.transpose()?);
            }
            if let Some(LimitChange(jobs)) = max_queued {
                limits = limits.max_queued(*jobs);
            }
            if !create && let Some(text) = if_unknown(&tenure, queue).await? {
                bail!("{text}; to limit it before its first job, add --create");
            }
            let limits = tenure.limit_queue(queue, limits).await?;
            match cli.output {
                Output::Json => {
                    let (running, queued) = (limits.max_running, limits.max_queued);
                    print::line(json!({ "queue": queue, "max_running": running, "max_queued": queued }));
                }
                Output::Table => {
                    let shown =
                        |jobs: Option<u64>| jobs.map_or_else(|| "unlimited".into(), |jobs| jobs.to_string());
                    let running = shown(limits.max_running.map(u64::from));
                    print::line(format!(
                        "{queue}: max running {running}, max queued {}",
                        shown(limits.max_queued)
                    ));
                }
            }
        }
    }
    tenure.close().await;
    Ok(code)
}

fn said(events: QueueEvents) -> &'static str {
    match events {
        QueueEvents::Ends => "ends",
        QueueEvents::Progress => "progress and ends",
        _ => "nothing",
    }
}

/// Pauses the known queues, and with `create` the unknown ones, too.
async fn pause(cli: &Cli, tenure: &Tenure, queues: &[String], create: bool) -> anyhow::Result<ExitCode> {
    check_names(queues)?;
    let mut code = ExitCode::SUCCESS;
    for queue in queues {
        if !create && let Some(text) = if_unknown(tenure, queue).await? {
            eprintln!("tenure: {text}; to pause it before its first job, add --create");
            code = ExitCode::FAILURE;
            continue;
        }
        let paused = tenure.pause_queue(queue).await?;
        let text = match paused.paused_at.filter(|_| paused.was_paused) {
            Some(at) => format!("{queue} was already paused, since {}", time(Some(at))),
            None => format!("{queue} is paused; its running jobs continue"),
        };
        print_pause(cli, queue, paused, &text);
    }
    Ok(code)
}

/// Resumes the known queues.
async fn resume(cli: &Cli, tenure: &Tenure, queues: &[String]) -> anyhow::Result<ExitCode> {
    check_names(queues)?;
    let mut code = ExitCode::SUCCESS;
    for queue in queues {
        let resumed = tenure.resume_queue(queue).await?;
        if !resumed.was_paused
            && let Some(text) = if_unknown(tenure, queue).await?
        {
            eprintln!("tenure: {text}");
            code = ExitCode::FAILURE;
            continue;
        }
        let what = if resumed.was_paused { "is resumed" } else { "was not paused" };
        print_pause(cli, queue, resumed, &format!("{queue} {what}"));
    }
    Ok(code)
}

/// Refuses an invalid name before the command acts on any.
fn check_names(queues: &[String]) -> Result<(), NameError> {
    queues.iter().try_for_each(|queue| check_queue(queue))
}

fn print_pause(cli: &Cli, queue: &str, PauseOutcome { paused_at, was_paused, .. }: PauseOutcome, text: &str) {
    match cli.output {
        Output::Json => {
            print::line(json!({ "queue": queue, "paused_at": paused_at, "was_paused": was_paused }));
        }
        Output::Table => print::line(text),
    }
}

/// Returns what to say if this queue is unknown, as a mistyped one is.
pub(super) async fn if_unknown(tenure: &Tenure, queue: &str) -> Result<Option<String>, QueueSettingsError> {
    let unknown = tenure.known_queue(queue).await?.err();
    Ok(unknown.map(|unknown| format!("{unknown}; `tenure queues list` shows the known ones")))
}

fn state(queue: &QueueRow, fleet: &Fleet) -> String {
    match queue.paused_at {
        Some(at) => format!("paused since {}", time(Some(at))),
        None => QueueState::of(queue, fleet).word().into(),
    }
}

fn list(queues: &[QueueRow], fleet: &Fleet) -> Table {
    let header = [
        "QUEUE",
        "STATE",
        "DUE",
        "SUBMITTED",
        "OLDEST DUE",
        "SCHEDULED",
        "HELD",
        "RUNNING",
        "DEAD",
        "WORKERS",
        "LAST SEEN",
        "LIMITS",
    ];
    let spare = &[
        "LIMITS",
        "LAST SEEN",
        "HELD",
        "SCHEDULED",
        "OLDEST DUE",
        "DEAD",
        "SUBMITTED",
        "WORKERS",
        "RUNNING",
    ];
    let mut table = table(&header).spare(spare).wrap(&["STATE"]);
    for queue in queues {
        let limits = [
            queue.max_running.map(|jobs| format!("{jobs} running")),
            queue.max_queued.map(|jobs| format!("{jobs} queued")),
            queue.has_lanes.then(|| "lanes".into()),
            (queue.events != QueueEvents::Nothing).then(|| format!("publishes {}", said(queue.events))),
        ];
        table.add_row([
            queue.queue.clone(),
            state(queue, fleet),
            queue.due.to_string(),
            queue.submitted.map_or_else(|| "?".into(), |submitted| submitted.to_string()),
            queue.oldest_due_s.map(print::seconds).unwrap_or_default(),
            queue.scheduled.to_string(),
            queue.held.to_string(),
            queue.processing.to_string(),
            queue.dead.to_string(),
            match queue.draining {
                0 => queue.workers.to_string(),
                draining => format!("{}, {draining} draining", queue.workers),
            },
            queue.last_seen_s.map(|s| format!("{} ago", print::seconds(s))).unwrap_or_default(),
            limits.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}
