//! `tenure work --exec`: a worker that needs no Rust.

use std::{process::ExitCode, sync::Arc, time::Duration};

use super::{Cli, CrashPolicy, Usage, WorkArgs};
use crate::exec::{self, guard};
use tenure::{Health, JobContext, KindOptions, Tenure, Worker, handlers::OnCrash, shutdown_signal};

pub(super) async fn run(cli: &Cli, args: &WorkArgs) -> anyhow::Result<ExitCode> {
    // The grace covers all the time that a command may take to end; otherwise its job could run elsewhere before.
    let mut options =
        KindOptions::new().cancel_grace(guard::TERM_GRACE + exec::LAST_WORDS + Duration::from_secs(2));
    if args.keepalive {
        options = options.keepalive();
        if let Some(every) = args.keepalive_every {
            options = options.keepalive_every(every);
        }
    }
    if let Some(silence) = args.stale_after {
        options = options.stale_after(silence);
    }
    if args.on_crash == CrashPolicy::DeadLetter {
        options = options.on_crash(OnCrash::DeadLetter);
    }
    if args.no_history {
        options = options.no_history();
    }
    if let Some(timeout) = args.timeout {
        options = options.timeout(timeout);
    }
    let processes =
        args.stay.then(|| Arc::new(exec::stay::Processes::new(args.exec.clone(), args.restart_after)));
    let handler = |health: Health| {
        let (command, processes) = (args.exec.clone(), processes.clone());
        move |_payload: serde_json::Value, ctx: JobContext| {
            let (command, processes, health) = (command.clone(), processes.clone(), health.clone());
            async move {
                match processes {
                    Some(processes) => processes.run(ctx, &health).await,
                    None => exec::run(&command, ctx, &health).await,
                }
            }
        }
    };
    let slots = args.concurrency;
    let is_weighted = args.queues.iter().any(|queue| queue.contains('='));
    let weighted = if is_weighted { weights(&args.queues)? } else { Vec::new() };
    let describe = |tenure: &Tenure| {
        let mut worker = Worker::builder(tenure).without_transactions();
        if args.gateway {
            worker = worker.gateway();
        }
        if is_weighted {
            worker = worker.shared(slots, weighted.clone());
        } else {
            for queue in &args.queues {
                worker = worker.concurrency(queue, slots);
            }
        }
        let health = worker.health();
        if args.kinds.is_empty() {
            return worker.handle_any(options.clone(), handler(health));
        }
        for kind in &args.kinds {
            worker = worker.handle_kind(kind, options.clone(), handler(health.clone()));
        }
        worker
    };
    let stopping = processes.clone();
    let stopped = async move {
        shutdown_signal().await;
        if let Some(processes) = stopping {
            processes.stop();
        }
    };
    let worked = if let Some(cells) = cli.cells().await? {
        let worked = cells.work(describe).run_until(stopped).await.map_err(anyhow::Error::from);
        cells.close().await;
        worked
    } else {
        let tenure = cli.connect_to_any().await?;
        let worked = describe(&tenure).run_until(stopped).await.map_err(anyhow::Error::from);
        tenure.close().await;
        worked
    };
    if let Some(processes) = processes {
        processes.close().await;
    }
    worked?;
    Ok(ExitCode::SUCCESS)
}

fn weights(queues: &[String]) -> Result<Vec<(&str, u32)>, Usage> {
    let weight = |text: &String| {
        Usage(format!(
            "{text:?} has no weight; write QUEUE=WEIGHT for each queue, such as urgent=8, or for none"
        ))
    };
    let weighted = queues.iter().map(|text| {
        let (queue, of) = text.split_once('=').ok_or_else(|| weight(text))?;
        Ok((queue, of.parse().map_err(|_| weight(text))?))
    });
    weighted.collect()
}
