//! Guard: stands between a worker and a command, so that the command never outlives the worker.
//!
//! The worker writes frames to the guard's standard input: a length, then as many bytes for the command's own standard
//! input, which an empty frame closes. The guard's input ends when the worker wants the command ended, or dies. The
//! command leads its own process group; the guard ends when that group is empty.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitCode, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use rustix::{
    io::ioctl_fionread,
    process::{Pid, Signal, getppid, kill_process_group, test_kill_process_group},
    stdio::dup2_stdout,
};
use tokio::signal::unix::{SignalKind, signal};

/// How long a command may take to end after SIGTERM.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(10);

/// Linux and macOS write at least 512 bytes to a pipe as a whole.
const PIPE_BUF: usize = 512;

/// The exit code of a command that a signal ended is this plus the number of the signal, as in shells.
const SIGNAL_BASE: u8 = 128;

/// Runs a command, and writes its process group to a file, so that the worker can end it if the guard is killed. Adds
/// how many bytes the command has read when it has ended: a job of which it has read none can be given to another.
/// Removes the files of a worker that has died; a worker that lives does it itself.
pub(crate) fn run(command: &str, worker: i32, group_file: &Path, checkpoint_file: Option<&Path>) -> ExitCode {
    let code = guard(command, group_file);
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != worker) {
        for file in std::iter::once(group_file).chain(checkpoint_file) {
            fs::remove_file(file).ok();
        }
    }
    match code {
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
    // A worker that dies before it has sent a whole frame starts no command.
    let first = read_frame(&mut worker)?;

    let mut group_file = fs::OpenOptions::new().write(true).open(group_file)?;
    let (stdin, writer) = io::pipe()?;
    let input = Input::new(stdin.try_clone()?);
    let mut child = Command::new("sh").arg("-c").arg(command).stdin(stdin).process_group(0).spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    // The worker is to see when the command closes its standard output.
    let closed = fs::File::options().write(true).open("/dev/null").and_then(|null| Ok(dup2_stdout(null)?));
    if let Err(error) = closed.and_then(|()| write!(group_file, "{}", group.as_raw_nonzero())) {
        // Without the file the worker could not end the command if the guard died.
        kill_process_group(group, Signal::KILL).ok();
        child.wait()?;
        return Err(error);
    }
    // A command need not read its input, and must not block the guard if it does not.
    let frames = input.clone().write_to(writer);
    frames.send(first).ok();
    let ending = Arc::new(AtomicBool::new(false));
    let end_requested = ending.clone();
    std::thread::spawn(move || {
        // The end of the pipe and an error both mean that the command must end.
        while let Ok(frame) = read_frame(&mut worker) {
            frames.send(frame).ok();
        }
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
    // Not earlier: what is left of the group may read. Without it, the job is charged.
    input.read().and_then(|read| write!(group_file, " {read}")).ok();
    Ok(code_of(status))
}

/// What the worker has sent for the command's standard input. Cheap to clone.
#[derive(Clone)]
struct Input {
    /// The command's end of the pipe: it tells how much the command has not read.
    end: Arc<io::PipeReader>,
    /// Bytes of the parts that the writer has begun, and of those that are in the pipe as a whole.
    begun: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Input {
    fn new(end: io::PipeReader) -> Self {
        Self { end: Arc::new(end), begun: Arc::default(), written: Arc::default() }
    }

    /// Starts to write frames into the pipe, until an empty one closes it.
    fn write_to(self, mut pipe: io::PipeWriter) -> mpsc::Sender<Vec<u8>> {
        let (frames, to_write) = mpsc::channel::<Vec<u8>>();
        std::thread::spawn(move || {
            for frame in to_write {
                if frame.is_empty() {
                    break;
                }
                // A write of this size is in the pipe as a whole, or not at all.
                for part in frame.chunks(PIPE_BUF) {
                    self.begun.fetch_add(part.len() as u64, Ordering::SeqCst);
                    if pipe.write_all(part).is_err() {
                        return;
                    }
                    self.written.fetch_add(part.len() as u64, Ordering::SeqCst);
                }
            }
        });
        frames
    }

    /// How many bytes the command has read. It must have ended.
    fn read(&self) -> io::Result<u64> {
        // The writer may be between the pipe and its count, or it waits for room in a full pipe.
        let deadline = Instant::now() + Duration::from_millis(100);
        while self.begun.load(Ordering::SeqCst) != self.written.load(Ordering::SeqCst)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        // In this order: what is written in between has not been read.
        let written = self.written.load(Ordering::SeqCst);
        Ok(written.saturating_sub(ioctl_fionread(&*self.end)?))
    }
}

fn read_frame(worker: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    worker.read_exact(&mut length)?;
    let mut frame = vec![0; usize::try_from(u64::from_be_bytes(length)).unwrap_or(usize::MAX)];
    worker.read_exact(&mut frame)?;
    Ok(frame)
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
