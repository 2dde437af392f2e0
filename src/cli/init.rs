//! Init: what `tenure work` does as the first process of a container.
//!
//! The kernel gives that process whatever the commands of jobs leave behind, and keeps each of these, once it has
//! ended, until it is asked for: a container in which nobody asks runs out of process ids. The worker itself cannot
//! ask, for it would take the ends of its own guards from those who wait for them; so it runs as a child of one that
//! does. As `tini` and `docker run --init` do, which are not needed here.

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

use super::{Command, exec::this_program, guard::code_of};

/// What a container is told to stop with, by whoever.
const PASSED_ON: [(SignalKind, Signal); 4] = [
    (SignalKind::terminate(), Signal::TERM),
    (SignalKind::interrupt(), Signal::INT),
    (SignalKind::hangup(), Signal::HUP),
    (SignalKind::quit(), Signal::QUIT),
];

/// Whether this process is to stand above the worker.
pub(super) fn is_needed(command: &Command) -> bool {
    std::process::id() == 1 && matches!(command, Command::Work(_))
}

/// Runs this command line once more, in a process of its own; ends with it, and as it does.
pub(super) fn run() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    runtime.block_on(above_the_worker()).unwrap_or_else(|error| failed(&error))
}

fn failed(error: &io::Error) -> ExitCode {
    eprintln!("tenure: the worker could not be started, or waited for: {error}");
    ExitCode::FAILURE
}

async fn above_the_worker() -> io::Result<ExitCode> {
    // Heard from before there is anything to hear of.
    let mut ended = signal(SignalKind::child())?;
    let (told, mut signals) = tokio::sync::mpsc::unbounded_channel();
    for (kind, passed_on) in PASSED_ON {
        let (mut heard, told) = (signal(kind)?, told.clone());
        tokio::spawn(async move { while heard.recv().await.is_some() && told.send(passed_on).is_ok() {} });
    }
    // A group of its own: Ctrl-C would come to it twice, and a second one means at once.
    let worker = Process::new(this_program()?).args(env::args_os().skip(1)).process_group(0).spawn()?;
    let worker = i32::try_from(worker.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    loop {
        tokio::select! {
            _ = ended.recv() => {}
            Some(signal) = signals.recv() => match kill_process(worker, signal) {
                // It has just ended.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            },
        }
        // One signal may stand for many ends.
        while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
            if pid == worker {
                return Ok(ExitCode::from(code_of(ExitStatus::from_raw(status.as_raw()))));
            }
        }
    }
}
