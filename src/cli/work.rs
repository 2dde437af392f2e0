//! `tenure work --exec`: a worker that needs no Rust.

use std::process::ExitCode;

use super::{Cli, WorkArgs, exec};
use crate::{KindOptions, Worker, shutdown_signal};

pub(super) async fn run(cli: &Cli, args: &WorkArgs) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let mut options = KindOptions::new();
    if args.keepalive {
        options = options.keepalive();
    }
    if let Some(timeout) = args.timeout {
        options = options.timeout(timeout);
    }
    let handler = || {
        let command = args.exec.clone();
        move |payload, ctx| {
            let command = command.clone();
            async move { exec::run(&command, payload, ctx).await }
        }
    };
    let mut worker = Worker::builder(&tenure);
    for queue in &args.queues {
        worker = worker.concurrency(queue, args.concurrency);
    }
    if args.kinds.is_empty() {
        worker = worker.handle_any(options, handler());
    } else {
        for kind in &args.kinds {
            worker = worker.handle_kind(kind, options.clone(), handler());
        }
    }
    worker.run_until(first_signal_stops_second_exits()).await?;
    tenure.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Completes with the first signal. The second one ends the process at once: its jobs are recovered.
async fn first_signal_stops_second_exits() {
    shutdown_signal().await;
    eprintln!("stopping; running jobs may finish. Once more to exit at once");
    tokio::spawn(async {
        shutdown_signal().await;
        eprintln!("exiting at once");
        std::process::exit(1);
    });
}
