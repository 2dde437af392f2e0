//! `tenure workers`: `list`, for which it is short, and `drain`.

use std::process::ExitCode;

use serde_json::json;

use super::{Cli, Output, jobs::time, print, table::Table, table::table};
use tenure::{
    rows::WorkerRow,
    workers::{DrainError, DrainOutcome},
};

pub(super) async fn list(cli: &Cli) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let workers = tenure.workers().await?;
    tenure.close().await;
    if workers.is_empty() {
        eprintln!("no worker is registered; `tenure work QUEUE --exec COMMAND` starts one");
    }
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&workers)?),
        Output::Table => print::line(table_of(&workers)),
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn drain(cli: &Cli, ids: &[String]) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        match tenure.drain_worker(id).await {
            Ok(done) => print_drained(cli, id, done),
            Err(DrainError::Store(error)) => return Err(error.into()),
            // A worker that does not answer keeps none of the others.
            Err(error) => {
                eprintln!("tenure: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    tenure.close().await;
    Ok(code)
}

fn print_drained(cli: &Cli, id: &str, DrainOutcome { was_draining, running, .. }: DrainOutcome) {
    let jobs = match running {
        0 => "runs no job".to_owned(),
        1 => "finishes its 1 running job".into(),
        jobs => format!("finishes its {jobs} running jobs"),
    };
    match cli.output {
        Output::Json => {
            print::line(json!({ "worker_id": id, "was_draining": was_draining, "running": running }));
        }
        Output::Table if was_draining => print::line(format!("{id} was already stopping; it {jobs}")),
        Output::Table => print::line(format!("{id} drains: it takes no new jobs, {jobs}, and exits")),
    }
}

fn table_of(workers: &[WorkerRow]) -> Table {
    let header = [
        "WORKER",
        "STATE",
        "LAST SEEN",
        "HOST",
        "PID",
        "VERSION",
        "QUEUES",
        "KINDS",
        "SLOTS BUSY",
        "STARTED",
    ];
    let spare = &["VERSION", "STARTED", "KINDS", "PID", "HOST", "QUEUES", "SLOTS BUSY"];
    let mut table = table(&header).spare(spare).wrap(&["STATE", "QUEUES", "KINDS"]);
    for worker in workers {
        table.add_row([
            print::printable(&worker.worker_id),
            match &worker.not_ready {
                Some(why) => print::printable(&format!("{}, not ready: {why}", worker.state.as_str())),
                None => worker.state.as_str().to_owned(),
            },
            format!("{} ago", print::seconds(worker.last_seen_s)),
            print::printable(&worker.hostname),
            worker.pid.to_string(),
            print::printable(&worker.program()),
            print::printable(&worker.queues.join(", ")),
            worker.kinds.as_ref().map_or_else(|| "all".into(), |kinds| print::printable(&kinds.join(", "))),
            format!("{}/{}", worker.running, worker.slots),
            time(Some(worker.started_at)),
        ]);
    }
    table
}
