//! Dev: starts private Postgres and NATS servers in a folder, with programs of this machine. For `tenure dev`, demos
//! and tests; never for production.
//!
//! Each server listens on a free loopback port, under a small shell that ends it when this process ends, even by a
//! kill: the shell waits on a pipe whose other end is here.

mod find;
mod nats;
mod postgres;

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom},
    net::{Ipv4Addr, TcpListener},
    num::NonZeroU16,
    ops::Range,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use find::{nats_server, postgres_bin, postgres_user};
pub use nats::Nats;
pub use postgres::Postgres;

/// An error of starting a private server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// The program is not on this machine.
    #[error("{what} was not found; {hint}")]
    NotFound {
        /// The program.
        what: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// The server ended, or did not answer in time.
    #[error("{what} did not start; the end of {}:\n{tail}", .log.display())]
    NotStarted {
        /// The server.
        what: &'static str,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// An operation on a file or a process failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: String,
        /// The error of the operation.
        #[source]
        source: io::Error,
    },
}

impl DevError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// A private Postgres and a private NATS.
#[derive(Debug)]
pub struct Servers {
    /// The database.
    pub postgres: Postgres,
    /// The queue.
    pub nats: Nats,
}

impl Servers {
    /// Starts both servers in a folder, which it creates if it is missing. Data of an earlier start are used again, and
    /// its ports if they are free.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::start`] and [`Nats::start`].
    pub fn start(folder: &Path) -> Result<Self, DevError> {
        // Before anything is written.
        find::postgres_bin()?;
        find::nats_server()?;
        fs::create_dir_all(folder).map_err(DevError::io(format!("create {}", folder.display())))?;
        let named = ["postgres.port", "nats.port"].map(|name| folder.join(name));
        let [of_postgres, of_nats] = named.each_ref().map(|file| port_of(file));
        let postgres = Postgres::start_at(of_postgres?, &folder.join("postgres"), true, &[])?;
        let nats = Nats::start_at(of_nats?, &folder.join("nats"), None)?;
        for (file, port) in named.iter().zip([postgres.port(), nats.port()]) {
            fs::write(file, port.to_string()).map_err(DevError::io(format!("write {}", file.display())))?;
        }
        Ok(Self { postgres, nats })
    }

    /// Shuts both servers down in good order.
    pub fn stop(&mut self) {
        self.nats.stop();
        self.postgres.stop();
    }
}

/// A server under its shell. Its drop ends the server.
#[derive(Debug)]
struct Guarded {
    shell: Option<Child>,
}

impl Guarded {
    /// Starts a server that gets `signal` when this process ends or drops it.
    fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(String, String)],
        signal: &str,
        user: Option<(u32, u32)>,
        folder: &Path,
        log: &Path,
    ) -> Result<Self, DevError> {
        let failed = || DevError::io(format!("start {}", program.display()));
        let output = fs::OpenOptions::new().create(true).append(true).open(log).map_err(failed())?;
        let mut command = Command::new("sh");
        command
            .arg("-c")
            // The shell ends when the server does; a second shell waits for the end of the pipe. A frozen server takes
            // its signal once SIGCONT wakes it.
            .arg(format!(
                r#"exec 3<&0
                "$@" 3<&- &
                server=$!
                (read -r _ <&3; kill -{signal} $server; kill -CONT $server) 2>/dev/null &
                watcher=$!
                wait $server
                kill $watcher 2>/dev/null"#
            ))
            .arg("sh")
            .arg(program)
            .args(arguments)
            .envs(environment.iter().cloned())
            .current_dir(folder)
            // Ctrl-C ends only this process; the server ends afterwards.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().map_err(failed())?)
            .stderr(output);
        if let Some((uid, gid)) = user {
            command.gid(gid).uid(uid);
        }
        Ok(Self { shell: Some(command.spawn().map_err(failed())?) })
    }

    /// Ends the server, and waits until it has ended.
    fn stop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            // The shell cannot be waited for twice, and an error here leaves nothing to do.
            shell.wait().ok();
        }
    }

    fn has_ended(&mut self) -> bool {
        self.shell.as_mut().is_none_or(|shell| !matches!(shell.try_wait(), Ok(None)))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How long a server may take to end after the process that started it.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Below the ports that Linux (from 32,768) and the others (from 49,152) give to outgoing connections.
const PORTS: Range<u16> = 20_000..32_768;

/// Returns a loopback port that no process listens on.
///
/// No outgoing connection gets it, so that a server can begin to listen there later, or again.
///
/// # Errors
///
/// [`DevError`]: no port is free.
pub fn free_port() -> Result<u16, DevError> {
    // Each process begins elsewhere, and goes on from there: it returns no port twice.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));
    let next = |_| PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
    if let Some(port) = PORTS.map(next).find(|port| is_free(*port)) {
        return Ok(port);
    }
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(bound.map_err(DevError::io("find a free port"))?.port())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Returns the port that this file names, if it is free, or another one. The server of a process that was killed a
/// moment ago may still hold it.
fn port_of(file: &Path) -> Result<u16, DevError> {
    let named = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<NonZeroU16>().ok());
    let Some(port) = named.map(NonZeroU16::get) else { return free_port() };
    let began = Instant::now();
    while !is_free(port) {
        if began.elapsed() > ENDS_WITHIN {
            return free_port();
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(port)
}

/// Waits until a server answers.
fn wait_ready(
    what: &'static str,
    log: &Path,
    mut is_ready: impl FnMut() -> bool,
    mut has_ended: impl FnMut() -> bool,
) -> Result<(), DevError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_ready() {
        if has_ended() || Instant::now() > deadline {
            return Err(DevError::NotStarted { what, log: log.into(), tail: tail(log) });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn tail(log: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(2_000)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| error.to_string())
}

/// Returns the process that wrote this pid file, if the file can be read.
fn pid_in(file: &Path) -> Option<rustix::process::Pid> {
    let text = fs::read_to_string(file).ok()?;
    rustix::process::Pid::from_raw(text.lines().next()?.trim().parse().ok()?)
}
