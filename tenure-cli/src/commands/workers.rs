//! `tenure workers list`, and `tenure workers`, which is short for it.

use std::process::ExitCode;

use super::{Cli, Output, jobs::time, print, table::Table, table::table};
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

fn list(workers: &[WorkerRow]) -> Table {
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
    let mut table = table(&header).spare(spare).wrap(&["QUEUES", "KINDS"]);
    for worker in workers {
        table.add_row([
            print::printable(&worker.worker_id),
            worker.state.as_str().to_owned(),
            format!("{} ago", print::seconds(worker.last_seen_s)),
            print::printable(&worker.hostname),
            worker.pid.to_string(),
            print::printable(&worker.version),
            print::printable(&worker.queues.join(", ")),
            worker.kinds.as_ref().map_or_else(|| "all".into(), |kinds| print::printable(&kinds.join(", "))),
            format!("{}/{}", worker.running, worker.slots),
            time(Some(worker.started_at)),
        ]);
    }
    table
}
