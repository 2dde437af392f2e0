//! NATS: a private server with JetStream.

use std::{
    fs,
    io::Read,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Signal, kill_process};

use super::{DevError, Guarded, find, free_port, pid_in, wait_ready};

/// A private NATS server. Its drop ends it.
#[derive(Debug)]
pub struct Nats {
    folder: PathBuf,
    program: PathBuf,
    port: u16,
    config: Option<PathBuf>,
    guard: Guarded,
}

impl Nats {
    /// Starts a server with its data in this folder, which it creates if it is missing.
    ///
    /// # Errors
    ///
    /// [`DevError`]: the program was not found, the folder cannot be used, or the server did not start; its log is in
    /// the folder.
    pub fn start(folder: &Path) -> Result<Self, DevError> {
        Self::start_with(folder, None)
    }

    /// [`Nats::start`] with a configuration file; the port and the folder override it.
    ///
    /// # Errors
    ///
    /// Those of [`Nats::start`].
    pub fn start_with(folder: &Path, config: Option<&Path>) -> Result<Self, DevError> {
        Self::start_at(free_port()?, folder, config)
    }

    pub(super) fn start_at(port: u16, folder: &Path, config: Option<&Path>) -> Result<Self, DevError> {
        fs::create_dir_all(folder).map_err(DevError::io(format!("create {}", folder.display())))?;
        let mut server = Self {
            folder: folder.into(),
            program: find::nats_server()?,
            port,
            config: config.map(Path::to_path_buf),
            guard: Guarded { shell: None },
        };
        server.restart()?;
        Ok(server)
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns its port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Shuts it down in good order.
    pub fn stop(&mut self) {
        self.guard.stop();
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.guard.stop();
    }

    /// Returns the id of its process while it runs.
    pub fn pid(&self) -> Option<i32> {
        pid_in(&self.folder.join("nats.pid")).map(|pid| pid.as_raw_nonzero().get())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = pid_in(&self.folder.join("nats.pid")) {
            // The process may have ended by itself.
            kill_process(pid, signal).ok();
        }
    }

    /// Removes its stored data. Stop it first.
    ///
    /// # Errors
    ///
    /// [`DevError::Io`]: the folder cannot be removed.
    pub fn wipe(&self) -> Result<(), DevError> {
        fs::remove_dir_all(self.folder.join("data")).map_err(DevError::io("wipe NATS"))
    }

    /// Starts it again on the same port.
    ///
    /// # Errors
    ///
    /// [`DevError`]: the server did not start; its log is in the folder.
    pub fn restart(&mut self) -> Result<(), DevError> {
        let path = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        let log = self.folder.join("nats.log");
        let port = self.port.to_string();
        let mut arguments: Vec<String> =
            ["-a", "127.0.0.1", "-p", &port, "-js", "-sd", &path("data"), "-P", &path("nats.pid")]
                .map(String::from)
                .to_vec();
        if let Some(config) = &self.config {
            arguments.extend(["-c".into(), config.to_string_lossy().into_owned()]);
        }
        fs::remove_file(self.folder.join("nats.pid")).ok();
        self.guard = Guarded::start(&self.program, &arguments, &[], "TERM", None, &self.folder, &log)?;
        let port = self.port;
        wait_ready("nats-server", &log, || greets(port), || self.guard.has_ended())
    }
}

/// Returns whether a NATS server greets on this port.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
    let mut hello = [0; 4];
    stream.read_exact(&mut hello).is_ok() && &hello == b"INFO"
}
