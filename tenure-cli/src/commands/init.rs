//! Init: `tenure work` as the first process of a container.
//!
//! The kernel makes that process the parent of every process that the jobs' commands leave behind, and keeps each one
//! that ends as a zombie until its parent reaps it: a container whose first process never reaps runs out of process
//! IDs. The worker itself cannot reap, because it would take the exit statuses of its guards from the tasks that wait
//! for them; so it runs as a child of a process that does. `tini` and `docker run --init` do the same, and are not
//! needed here.

use std::{
    env, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command as Process, ExitCode, ExitStatus},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, wait},
};
use tokio::signal::unix::{SignalKind, signal};

use super::Command;
use crate::exec::{guard::code_of, this_program};

/// The signals that stop a container, which the worker must get.
const PASSED_ON: [(SignalKind, Signal); 4] = [
    (SignalKind::terminate(), Signal::TERM),
    (SignalKind::interrupt(), Signal::INT),
    (SignalKind::hangup(), Signal::HUP),
    (SignalKind::quit(), Signal::QUIT),
];

/// Whether this process must run the worker as its child.
pub(super) fn is_needed(command: &Command) -> bool {
    std::process::id() == 1 && matches!(command, Command::Work(_))
}

/// Runs the same command line in a child process, and exits when it does, with its exit code.
pub(super) fn run() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    runtime.block_on(supervise()).unwrap_or_else(|error| failed(&error))
}

fn failed(error: &io::Error) -> ExitCode {
    eprintln!("tenure: the worker could not be started, or waited for: {error}");
    ExitCode::FAILURE
}

async fn supervise() -> io::Result<ExitCode> {
    // Registered before the child starts, so that no signal is missed.
    let mut ended = signal(SignalKind::child())?;
    let (sender, mut signals) = tokio::sync::mpsc::unbounded_channel();
    for (kind, passed_on) in PASSED_ON {
        let (mut received, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(
            async move { while received.recv().await.is_some() && sender.send(passed_on).is_ok() {} },
        );
    }
    // Its own process group: otherwise Ctrl-C would reach the worker twice, and the second one stops it at once.
    let worker = Process::new(this_program()?).args(env::args_os().skip(1)).process_group(0).spawn()?;
    let worker = i32::try_from(worker.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    loop {
        tokio::select! {
            _ = ended.recv() => {}
            Some(signal) = signals.recv() => match kill_process(worker, signal) {
                // The worker has just ended.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            },
        }
        // One signal may stand for several ended children.
        while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
            if pid == worker {
                return Ok(ExitCode::from(code_of(ExitStatus::from_raw(status.as_raw()))));
            }
        }
    }
}
