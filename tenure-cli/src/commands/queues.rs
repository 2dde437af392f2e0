//! `tenure queues`.

use std::process::ExitCode;

use serde_json::json;

use super::{Cli, LimitChange, Output, QueuesCommand, Usage, jobs::time, print, table::Table, table::table};
use crate::dashboard::QueueState;
use tenure::{
    Tenure,
    internals::{Fleet, Parts as _},
    queues::{PauseOutcome, QueueLimits},
    rows::QueueRow,
};

pub(super) async fn run(cli: &Cli, command: &QueuesCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    match command {
        QueuesCommand::List => {
            let queues = tenure.queues().await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&queues)?),
                Output::Table => print::line(list(&queues, &tenure.store().fleet().await?)),
            }
        }
        QueuesCommand::Pause { queues, create } => {
            for queue in queues.iter().filter(|_| !create) {
                check_known(&tenure, queue, "; to pause it before its first job, add --create").await?;
            }
            for queue in queues {
                let paused = tenure.pause_queue(queue).await?;
                let text = match paused.paused_at.filter(|_| paused.was_paused) {
                    Some(at) => format!("{queue} was already paused, since {}", time(Some(at))),
                    None => format!("{queue} is paused; its running jobs continue"),
                };
                print_pause(cli, queue, paused, &text);
            }
        }
        QueuesCommand::Resume { queues } => {
            // A mistyped name among others keeps none of them paused.
            let mut unknown = None;
            for queue in queues {
                let resumed = tenure.resume_queue(queue).await?;
                if !resumed.was_paused
                    && let Err(error) = check_known(&tenure, queue, "").await
                {
                    unknown.get_or_insert(error);
                    continue;
                }
                let what = if resumed.was_paused { "is resumed" } else { "was not paused" };
                print_pause(cli, queue, resumed, &format!("{queue} {what}"));
            }
            if let Some(error) = unknown {
                return Err(error);
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
            if !create {
                check_known(&tenure, queue, "; to limit it before its first job, add --create").await?;
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
    Ok(ExitCode::SUCCESS)
}

fn print_pause(cli: &Cli, queue: &str, PauseOutcome { paused_at, was_paused, .. }: PauseOutcome, text: &str) {
    match cli.output {
        Output::Json => {
            print::line(json!({ "queue": queue, "paused_at": paused_at, "was_paused": was_paused }));
        }
        Output::Table => print::line(text),
    }
}

/// Fails if this queue is unknown, as a mistyped one is.
async fn check_known(tenure: &Tenure, queue: &str, hint: &str) -> anyhow::Result<()> {
    let known = tenure.known_queue(queue).await?;
    known.map_err(|unknown| anyhow::anyhow!("{unknown}; `tenure queues list` shows the known ones{hint}"))
}

fn list(queues: &[QueueRow], fleet: &Fleet) -> Table {
    let header = [
        "QUEUE",
        "STATE",
        "DUE",
        "SUBMITTED",
        "OLDEST DUE",
        "SCHEDULED",
        "RUNNING",
        "DEAD",
        "WORKERS",
        "LAST SEEN",
        "LIMITS",
    ];
    let spare =
        &["LIMITS", "LAST SEEN", "SCHEDULED", "OLDEST DUE", "DEAD", "SUBMITTED", "WORKERS", "RUNNING"];
    let mut table = table(&header).spare(spare).wrap(&["STATE"]);
    for queue in queues {
        let limits = [
            queue.max_running.map(|jobs| format!("{jobs} running")),
            queue.max_queued.map(|jobs| format!("{jobs} queued")),
        ];
        table.add_row([
            queue.queue.clone(),
            match queue.paused_at {
                Some(at) => format!("paused since {}", time(Some(at))),
                None => QueueState::of(queue, fleet).word().into(),
            },
            queue.due.to_string(),
            queue.submitted.map_or_else(|| "?".into(), |submitted| submitted.to_string()),
            queue.oldest_due_s.map(print::seconds).unwrap_or_default(),
            queue.scheduled.to_string(),
            queue.processing.to_string(),
            queue.dead.to_string(),
            queue.workers.to_string(),
            queue.last_seen_s.map(|s| format!("{} ago", print::seconds(s))).unwrap_or_default(),
            limits.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}
