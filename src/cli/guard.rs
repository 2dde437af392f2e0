//! Guard: stands between a worker and a command, so that the command never outlives the worker.
//!
//! The worker holds the other end of our standard input: first the payload with its length in front,
//! then nothing until the worker wants the command ended, or dies. The guard leads the process group.

use std::{
    io::{Read, Write},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use rustix::process::{Signal, getpgrp, kill_process_group};

/// How long a command may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(10);

/// A command was ended by a signal: its number is added to this, as shells do.
const SIGNAL_BASE: u8 = 128;

pub(super) fn run(command: &str) -> ExitCode {
    match guard(command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("tenure: the command could not be run: {error}");
            ExitCode::from(126)
        }
    }
}

fn guard(command: &str) -> std::io::Result<u8> {
    // SIGTERM goes to the whole group, and must not end the guard before the command.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _ignored = {
        let _entered = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
    };
    let mut worker = std::io::stdin();
    let mut length = [0; 8];
    worker.read_exact(&mut length)?;
    let mut payload = vec![0; usize::try_from(u64::from_be_bytes(length)).unwrap_or(usize::MAX)];
    worker.read_exact(&mut payload)?;

    let mut child = Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its payload is no error; nor may it hold us up.
        std::thread::spawn(move || stdin.write_all(&payload).ok());
    }
    std::thread::spawn(move || {
        // Whatever comes now, the worker wants an end: the end of the pipe, or an error.
        std::io::copy(&mut worker, &mut std::io::sink()).ok();
        let group = getpgrp();
        kill_process_group(group, Signal::TERM).ok();
        std::thread::sleep(TERM_GRACE);
        kill_process_group(group, Signal::KILL).ok();
    });
    let status = child.wait()?;
    let signal =
        std::os::unix::process::ExitStatusExt::signal(&status).and_then(|signal| u8::try_from(signal).ok());
    Ok(match (status.code(), signal) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => SIGNAL_BASE.saturating_add(signal),
        (None, None) => 1,
    })
}
