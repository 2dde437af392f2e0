//! Postgres: a private server.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use rand::distr::{Alphanumeric, SampleString};
use rustix::process::{Signal, kill_process};

use super::{DevError, Guarded, find, free_port, pid_in, wait_ready};

/// A private Postgres. Its drop ends it.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    bin: PathBuf,
    port: u16,
    password: String,
    durable: bool,
    settings: Vec<String>,
    environment: Vec<(String, String)>,
    guard: Guarded,
}

impl Postgres {
    /// Starts a server with its data in this folder, which it creates if it is missing.
    ///
    /// If it is not `durable`, it does not wait for the disk: its data survive its own crash, not the machine's. And it
    /// stores its random password as MD5, since SCRAM takes some milliseconds of each new connection.
    ///
    /// # Errors
    ///
    /// [`DevError`]: the programs were not found, the folder cannot be used, or the server did not start; its log is
    /// in the folder.
    pub fn start(folder: &Path, durable: bool) -> Result<Self, DevError> {
        Self::start_with(folder, durable, &[])
    }

    /// [`Postgres::start`] with further settings, such as `shared_buffers=256MB`.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::start`].
    pub fn start_with(folder: &Path, durable: bool, settings: &[&str]) -> Result<Self, DevError> {
        Self::start_at(free_port()?, folder, durable, settings)
    }

    pub(super) fn start_at(
        port: u16,
        folder: &Path,
        durable: bool,
        settings: &[&str],
    ) -> Result<Self, DevError> {
        let bin = find::postgres_bin()?;
        let failed = |what: &str| DevError::io(format!("{what} {}", folder.display()));
        fs::create_dir_all(folder).map_err(failed("create"))?;
        // The folder gets another owner below: never through a link, and never another user's folder.
        let found = fs::symlink_metadata(folder).map_err(failed("look at"))?;
        let ours = [Some(rustix::process::geteuid().as_raw()), find::postgres_user().map(|(uid, _)| uid)];
        if !found.is_dir() || !ours.contains(&Some(found.uid())) {
            let source = std::io::Error::other("it is a link, or belongs to another user");
            return Err(failed("use")(source));
        }
        let folder = &fs::canonicalize(folder).map_err(failed("find"))?;
        if let Some((uid, gid)) = find::postgres_user() {
            std::os::unix::fs::chown(folder, Some(uid), Some(gid)).map_err(failed("give to postgres"))?;
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed("close"))?;
        let password_file = folder.join("password");
        if !folder.join("data/PG_VERSION").is_file() {
            let password = Alphanumeric.sample_string(&mut rand::rng(), 24);
            fs::write(&password_file, &password).map_err(failed("write the password to"))?;
            initdb(&bin, folder, &password_file, if durable { "scram-sha-256" } else { "md5" })?;
        }
        let password = fs::read_to_string(&password_file).map_err(failed("read the password in"))?;
        let mut server = Self {
            folder: folder.clone(),
            bin,
            port,
            password,
            durable,
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            environment: Vec::new(),
            guard: Guarded { shell: None },
        };
        server.restart()?;
        Ok(server)
    }

    /// Returns the URL of its database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Returns the URL of one of its databases.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://tenure:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// Returns its port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Shuts it down as `pg_ctl stop -m fast` does: it rolls back open transactions.
    pub fn stop(&mut self) {
        self.guard.stop();
    }

    /// Kills its first process with SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.guard.stop();
        // Its children notice and end; the next start waits for them.
    }

    /// Returns the id of its first process while it runs.
    pub fn pid(&self) -> Option<i32> {
        pid_in(&self.folder.join("data/postmaster.pid")).map(|pid| pid.as_raw_nonzero().get())
    }

    /// Sends its first process a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = pid_in(&self.folder.join("data/postmaster.pid")) {
            // The process may have ended by itself.
            kill_process(pid, signal).ok();
        }
    }

    /// [`Postgres::restart`] with these environment variables, from now on.
    ///
    /// # Errors
    ///
    /// Those of [`Postgres::restart`].
    pub fn restart_with(&mut self, environment: &[(&str, &str)]) -> Result<(), DevError> {
        self.environment =
            environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        self.restart()
    }

    /// Starts it again on the same port.
    ///
    /// # Errors
    ///
    /// [`DevError`]: the server did not start; its log is in the folder.
    pub fn restart(&mut self) -> Result<(), DevError> {
        let log = self.folder.join("postgres.log");
        let mut arguments: Vec<String> =
            vec!["-D".into(), self.folder.join("data").to_string_lossy().into_owned()];
        let port = format!("port={}", self.port);
        let settings =
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300", &port];
        let fast = ["fsync=off", "full_page_writes=off"];
        for setting in settings.iter().chain(if self.durable { [].iter() } else { fast.iter() }) {
            arguments.extend(["-c".into(), (*setting).to_owned()]);
        }
        for setting in &self.settings {
            arguments.extend(["-c".into(), setting.clone()]);
        }
        let length = || fs::metadata(&log).map_or(0, |file| file.len());
        for _ in 0..50 {
            let before_start = length();
            let program = self.bin.join("postgres");
            let data = self.folder.join("data/postmaster.pid");
            // A server that was killed leaves its file behind.
            let before = pid_in(&data);
            self.guard = Guarded::start(
                &program,
                &arguments,
                &self.environment,
                "INT",
                find::postgres_user(),
                &self.folder,
                &log,
            )?;
            // The eighth line tells a server that accepts queries from one that is still recovering.
            let is_ready = || {
                let text = fs::read_to_string(&data).unwrap_or_default();
                pid_in(&data) != before
                    && text.lines().nth(7).is_some_and(|status| ["ready", "standby"].contains(&status.trim()))
            };
            match wait_ready("Postgres", &log, is_ready, || self.guard.has_ended()) {
                // After a kill, the old server's children may hold its memory for a moment.
                Err(DevError::NotStarted { .. })
                    if said_since(&log, before_start, "pre-existing shared memory") =>
                {
                    self.guard.stop();
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                started => return started,
            }
        }
        Err(DevError::NotStarted {
            what: "Postgres",
            log,
            tail: "an old server's processes do not end".into(),
        })
    }
}

/// Returns whether a log holds a text after this place. Lines of the old server's dying children may follow it.
fn said_since(log: &Path, start: u64, text: &str) -> bool {
    let read = || {
        let mut file = fs::File::open(log)?;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).contains(text))
    };
    read().unwrap_or_default()
}

fn initdb(bin: &Path, folder: &Path, password_file: &Path, auth: &str) -> Result<(), DevError> {
    let mut command = Command::new(bin.join("initdb"));
    command
        .arg("-D")
        .arg(folder.join("data"))
        .args(["-U", "tenure", "-A", auth, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--pwfile"])
        .arg(password_file)
        .current_dir(folder);
    if let Some((uid, gid)) = find::postgres_user() {
        std::os::unix::fs::chown(password_file, Some(uid), Some(gid))
            .map_err(DevError::io("give to postgres"))?;
        command.gid(gid).uid(uid);
    }
    let output = command.output().map_err(DevError::io("run initdb"))?;
    if output.status.success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Err(DevError::NotStarted { what: "initdb", log: folder.into(), tail })
}
