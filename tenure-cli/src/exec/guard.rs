//! Guard: stands between a worker and a command, so that the command never outlives the worker.
//!
//! The worker writes to the guard's standard input: the payload's length, then the payload. The input ends when the
//! worker wants the command ended, or dies. The command leads its own process group; the guard ends when that group is
//! empty.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

/// How long a command may take to end after SIGTERM.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(10);

/// The exit code of a command that a signal ended is this plus the number of the signal, as in shells.
const SIGNAL_BASE: u8 = 128;

/// Runs a command, and writes its process group to a file, so that the worker can end it if the guard is killed.
pub(crate) fn run(command: &str, group_file: &Path) -> ExitCode {
    match guard(command, group_file) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("tenure: the command could not be run: {error}");
            ExitCode::from(126)
        }
    }
}

fn guard(command: &str, group_file: &Path) -> io::Result<u8> {
    // A supervisor that signals every process (systemd does) means the worker, which then closes our standard input.
    // The signals are caught, not ignored: the command would inherit an ignored signal.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let _caught = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
        .map(signal)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?;
    let mut worker = io::stdin();
    let mut length = [0; 8];
    worker.read_exact(&mut length)?;
    let mut payload = vec![0; usize::try_from(u64::from_be_bytes(length)).unwrap_or(usize::MAX)];
    worker.read_exact(&mut payload)?;

    let mut group_file = fs::OpenOptions::new().write(true).open(group_file)?;
    let mut child =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).process_group(0).spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    if let Err(error) = write!(group_file, "{}", group.as_raw_nonzero()) {
        // Without the file the worker could not end the command if the guard died.
        kill_process_group(group, Signal::KILL).ok();
        child.wait()?;
        return Err(error);
    }
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read its payload, and must not block the guard if it does not.
        std::thread::spawn(move || stdin.write_all(&payload).ok());
    }
    let ending = Arc::new(AtomicBool::new(false));
    let end_requested = ending.clone();
    std::thread::spawn(move || {
        // The end of the pipe and an error both mean that the command must end.
        io::copy(&mut worker, &mut io::sink()).ok();
        end_requested.store(true, Ordering::SeqCst);
        kill_process_group(group, Signal::TERM).ok();
        std::thread::sleep(TERM_GRACE);
        kill_process_group(group, Signal::KILL).ok();
    });
    let status = child.wait()?;
    if ending.load(Ordering::SeqCst) {
        // The command's children get the same grace to clean up.
        let deadline = Instant::now() + TERM_GRACE;
        while is_alive(group) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // A job that has ended leaves no process behind.
    kill_process_group(group, Signal::KILL).ok();
    Ok(code_of(status))
}

/// The exit code that passes on how another process ended.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let ended_by = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code(), ended_by) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => SIGNAL_BASE.saturating_add(signal),
        (None, None) => 1,
    }
}

/// Whether any process of a group still runs. A zombie does not count: in a container without an init process it may
/// stay for ever.
fn is_alive(group: Pid) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return test_kill_process_group(group).is_ok();
    };
    let group = group.as_raw_nonzero().to_string();
    processes.flatten().any(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: state, parent, group.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next();
        state.is_some_and(|state| state != "Z") && fields.nth(1) == Some(&group)
    })
}
