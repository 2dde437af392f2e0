//! A process of a chaos run: restarted whenever it ends, and connected by links that can be disturbed.

use std::{
    collections::HashMap,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Config, JobId};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    task::JoinHandle,
};
use uuid::Uuid;

use crate::proxy::Proxy;

/// The producer's notes about its jobs.
#[derive(Debug, Default)]
pub struct Journal {
    entries: HashMap<Uuid, Entry>,
    youngest: Option<(Uuid, JobId)>,
}

#[derive(Debug, Default)]
pub struct Entry {
    pub way: String,
    pub accepted: bool,
    pub cancelled: bool,
}

impl Journal {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, way, n, _ms, id] = words[..] else { return };
        let Ok(n) = n.parse() else { return };
        let entry = self.entries.entry(n).or_default();
        way.clone_into(&mut entry.way);
        entry.accepted |= what == "accepted";
        if let Ok(id) = id.parse() {
            self.youngest = Some((n, id));
        }
    }

    /// Takes the last job whose id is known.
    pub fn youngest(&mut self) -> Option<(Uuid, JobId)> {
        self.youngest.take()
    }

    pub fn cancelled(&mut self, n: Uuid) {
        self.entries.entry(n).or_default().cancelled = true;
    }

    pub fn entries(&self) -> impl Iterator<Item = (&Uuid, &Entry)> {
        self.entries.iter()
    }

    /// The jobs that were accepted in this way.
    pub fn accepted(&self, way: &str) -> Vec<Uuid> {
        self.entries.iter().filter(|(_, entry)| entry.accepted && entry.way == way).map(|(n, _)| *n).collect()
    }
}

/// The end of a process that did not exit with 0.
#[derive(Debug, Clone)]
pub struct Death {
    pub host: String,
    pub pid: i32,
    pub at: SystemTime,
}

pub struct Process {
    pub postgres: Proxy,
    pub nats: Proxy,
    /// Whether a fault is under way.
    pub busy: AtomicBool,
    state: Arc<State>,
    supervisor: JoinHandle<()>,
}

/// What is run.
pub struct Program {
    /// With its pid, the beginning of its worker's id.
    pub name: String,
    pub log: PathBuf,
    /// Empty: this program, in a role.
    pub command: Vec<String>,
    pub variables: Vec<(String, String)>,
}

struct State {
    name: String,
    command: Vec<String>,
    variables: Vec<(String, String)>,
    log: PathBuf,
    journal: Option<Arc<Mutex<Journal>>>,
    pid: AtomicI32,
    /// The point at which the next process will kill itself.
    point: Mutex<Option<&'static str>>,
    /// The point at which this process will kill itself, unless another fault hits it first.
    armed: Mutex<Option<&'static str>>,
    deaths: Mutex<Vec<Death>>,
    /// The points at which its processes have killed themselves.
    fired: Mutex<Vec<&'static str>>,
    killed: AtomicBool,
    over: AtomicBool,
}

impl Process {
    pub async fn start(program: Program, config: &Config, journal: Option<Arc<Mutex<Journal>>>) -> Self {
        let Program { name, log, command, mut variables } = program;
        let postgres = Proxy::to_url(&config.database_url).await;
        let nats = Proxy::to_url(&config.nats_url).await;
        variables.push(("DATABASE_URL".into(), postgres.of(&config.database_url)));
        variables.push(("NATS_URL".into(), nats.of(&config.nats_url)));
        let state = Arc::new(State {
            name,
            command,
            variables,
            log,
            journal,
            pid: AtomicI32::new(0),
            point: Mutex::default(),
            armed: Mutex::default(),
            deaths: Mutex::default(),
            fired: Mutex::default(),
            killed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let supervisor = tokio::spawn(state.clone().supervise());
        Self { postgres, nats, busy: AtomicBool::new(false), state, supervisor }
    }

    /// Sends a signal. Returns whether the process was running.
    pub fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.state.pid.load(Ordering::SeqCst)) else { return false };
        if signal == Signal::KILL {
            self.state.killed.store(true, Ordering::SeqCst);
        }
        // The process may have ended by itself.
        kill_process(pid, signal).is_ok()
    }

    /// The points at which its processes have killed themselves.
    pub fn fired(&self) -> Vec<&'static str> {
        self.state.fired.lock().unwrap().clone()
    }

    /// Has the next process kill itself at this point.
    pub fn arm(&self, point: &'static str) {
        *self.state.point.lock().unwrap() = Some(point);
    }

    /// Whether the running process is going to kill itself.
    pub fn is_armed(&self) -> bool {
        self.state.armed.lock().unwrap().is_some()
    }

    /// Ends the process for good. Returns every death.
    pub async fn stop(&self, signal: Signal) -> Vec<Death> {
        self.state.over.store(true, Ordering::SeqCst);
        self.signal(signal);
        for _ in 0..1_000 {
            if self.supervisor.is_finished() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            self.supervisor.is_finished(),
            "{} does not end: {}",
            self.state.name,
            self.state.log.display()
        );
        self.state.deaths.lock().unwrap().clone()
    }
}

impl State {
    async fn supervise(self: Arc<Self>) {
        while !self.over.load(Ordering::SeqCst) {
            let point = self.point.lock().unwrap().take();
            *self.armed.lock().unwrap() = point;
            let mut log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
            writeln!(log, "--- a new process, killed at {point:?}").unwrap();
            let mut command = match self.command.split_first() {
                Some((program, arguments)) => {
                    let mut command = tokio::process::Command::new(program);
                    command.args(arguments);
                    command
                }
                None => tokio::process::Command::new(std::env::current_exe().unwrap()),
            };
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            if let Some(point) = point {
                command.env("TENURE_FAULT", format!("{point}=kill"));
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
            let mut child = command.spawn().unwrap();
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap();
            self.killed.store(false, Ordering::SeqCst);
            self.pid.store(pid, Ordering::SeqCst);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(journal) = &self.journal {
                    journal.lock().unwrap().note(&line);
                }
            }
            let ended = child.wait().await.unwrap();
            self.pid.store(0, Ordering::SeqCst);
            let by_itself = !self.killed.load(Ordering::SeqCst);
            if let Some(point) = point.filter(|_| by_itself && ended.signal() == Some(9)) {
                self.fired.lock().unwrap().push(point);
            }
            if !ended.success() {
                let death = Death { host: self.name.clone(), pid, at: SystemTime::now() };
                self.deaths.lock().unwrap().push(death);
            }
            if !self.over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
