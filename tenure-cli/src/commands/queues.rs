//! `tenure queues`.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::{Cli, LimitChange, Output, QueuesCommand, Usage, jobs::time, print, table::Table, table::table};
use tenure::{PauseOutcome, QueueLimits, Tenure, check_queue, internals::Parts as _, rows::QueueRow};

pub(super) async fn run(cli: &Cli, command: &QueuesCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    match command {
        QueuesCommand::List => {
            let queues = tenure.queues().await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&queues)?),
                Output::Table => print::line(list(&queues)),
            }
        }
        QueuesCommand::Pause { queues, create } => {
            for queue in queues.iter().filter(|_| !create) {
                check_known(&tenure, queue, "; to pause it before its first job, add --create").await?;
            }
            for queue in queues {
                let paused = tenure.pause_queue(queue).await?;
                match cli.output {
                    Output::Json => {
                        let PauseOutcome { paused_at, was_paused, .. } = paused;
                        let answer =
                            json!({ "queue": queue, "paused_at": paused_at, "was_paused": was_paused });
                        print::line(answer);
                    }
                    Output::Table if paused.was_paused => {
                        print::line(format!(
                            "{queue} was already paused, since {}",
                            time(Some(paused.paused_at))
                        ));
                    }
                    Output::Table => {
                        print::line(format!("{queue} is paused; its running jobs continue"));
                    }
                }
            }
        }
        QueuesCommand::Resume { queues } => {
            // A mistyped name among others keeps none of them paused.
            let mut unknown = None;
            for queue in queues {
                let resumed = tenure.resume_queue(queue).await?;
                if !resumed && let Err(error) = check_known(&tenure, queue, "").await {
                    unknown.get_or_insert(error);
                    continue;
                }
                match cli.output {
                    Output::Json => print::line(json!({ "queue": queue, "was_paused": resumed })),
                    Output::Table if resumed => print::line(format!("{queue} is resumed")),
                    Output::Table => print::line(format!("{queue} was not paused")),
                }
            }
            if let Some(error) = unknown {
                return Err(error);
            }
        }
        QueuesCommand::Limit { queue, max_running, max_queued } => {
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

/// Fails if this queue is unknown, as a mistyped one is. It is known by its consumer or a message in NATS, or by a
/// job, a worker, a setting or a schedule in Postgres.
async fn check_known(tenure: &Tenure, queue: &str, hint: &str) -> anyhow::Result<()> {
    check_queue(queue)?;
    let in_nats = tenure.queue().knows(queue).await;
    if in_nats == Some(true)
        || tenure.queues().await?.iter().any(|known| known.queue == queue)
        || tenure.schedules().await?.iter().any(|schedule| schedule.queue == queue)
    {
        return Ok(());
    }
    let nats = if in_nats.is_none() { ", and NATS does not say whether it has messages of it" } else { "" };
    bail!(
        "queue {queue:?} is unknown: it has no worker, job, message or schedule{nats}; `tenure queues list` shows \
         the known ones{hint}"
    )
}

fn list(queues: &[QueueRow]) -> Table {
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
                None if queue.is_unserved() => "no worker".into(),
                None => "active".into(),
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
