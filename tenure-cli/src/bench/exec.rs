//! Exec: how many jobs a second commands run, with a process for each job and with processes that stay.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::{
    Plan, Ratio, Values,
    arena::{Arena, count},
    consume::all_completed,
    produce::fill,
};

/// How many commands run at once.
const SLOTS: &str = "4";
const EACH: &str = "exec python3 -c 'import sys; sys.stdin.read()'";
const STAYS: &str = r#"exec python3 -c '
import json, sys
for line in sys.stdin:
    print(json.dumps({"settle": "complete", "claim_id": json.loads(line)["claim_id"]}), flush=True)'"#;
/// What a process for each job costs is known after fewer jobs.
const JOBS_OF_PROCESSES: usize = 500;

/// Python, because it is installed nearly everywhere, and starts as slowly as most.
pub(super) async fn exec(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let each = "commands in Python, a process for each job";
    let of_each = drain(arena, plan.jobs.min(JOBS_OF_PROCESSES), &["--exec", EACH]).await?;
    values.add(each, "jobs/s", of_each);
    let stay = drain(arena, plan.jobs.min(20_000), &["--exec", STAYS, "--stay"]).await?;
    values.add("commands in Python that stay", "jobs/s", stay).ratio = Some(Ratio::of(each, stay / of_each));
    Ok(())
}

/// Returns the jobs a second from the first start to the last end.
async fn drain(arena: &Arena, jobs: usize, arguments: &[&str]) -> anyhow::Result<f64> {
    let queue = arena.queue();
    fill(arena, &queue, jobs).await?;
    let mut worker = arena
        .command()
        .args(["work", &queue, "--concurrency", SLOTS])
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .context("start a worker")?;
    let drained = loop {
        let state = arena.state(&queue).await?;
        if state.queued + state.processing == 0 {
            break all_completed(&state, jobs)
                .map(|()| count(jobs) / (state.last_finished - state.first_started));
        }
        if worker.try_wait()?.is_some() {
            bail!("the worker of commands has ended");
        }
        sleep(Duration::from_millis(250)).await;
    };
    if let Some(worker) = i32::try_from(worker.id()).ok().and_then(Pid::from_raw) {
        kill_process(worker, Signal::TERM)?;
    }
    tokio::task::spawn_blocking(move || worker.wait()).await??;
    drained
}
