//! `tenure workers`.

use std::process::ExitCode;

use super::{Cli, Output, jobs::table, jobs::time, print};
use tenure::rows::WorkerRow;

pub(super) async fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let workers = tenure.workers().await?;
    tenure.close().await;
    if workers.is_empty() {
        eprintln!("no worker is registered; `tenure work QUEUE --exec COMMAND` starts one");
    }
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&workers)?),
        Output::Table => print::line(list(&workers)),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(workers: &[WorkerRow]) -> comfy_table::Table {
    let header = ["WORKER", "STATE", "HOST", "PID", "VERSION", "QUEUES", "RUNNING", "STARTED", "SEEN"];
    let mut table = table(&header);
    for worker in workers {
        table.add_row([
            print::printable(&worker.worker_id),
            worker.state.as_str().to_owned(),
            print::printable(&worker.hostname),
            worker.pid.to_string(),
            print::printable(&worker.version),
            worker.queues.join(", "),
            format!("{}/{}", worker.running, worker.slots),
            time(Some(worker.started_at)),
            format!("{} ago", print::seconds(worker.last_seen_s)),
        ]);
    }
    table
}
