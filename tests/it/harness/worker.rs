//! Workers of a test: in this process, or in a separate one that can be killed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{WorkerBuilder, WorkerHandle};

/// A worker in this process.
pub struct Running(WorkerHandle);

impl Running {
    pub fn start<S: Send + Sync + 'static>(worker: WorkerBuilder<S>) -> Self {
        Self(worker.start().unwrap())
    }

    /// Drops the worker with its jobs, as a crash does.
    pub async fn abandon(self) {
        self.0.abort();
        while !self.0.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the worker has ended in good order.
    pub async fn ended(self) {
        self.0.wait().await.unwrap();
    }

    /// Stops the worker in good order.
    pub async fn stop(self) {
        self.0.stop();
        self.0.wait().await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A worker in a separate process: this test program, started again with a scenario's name.
pub struct Child {
    process: tokio::process::Child,
    pid: Pid,
    log: PathBuf,
}

impl Child {
    /// Starts `tests/it/scenarios.rs`'s worker of this name.
    pub fn start(bench: &super::Bench, scenario: &str) -> Self {
        Self::start_with(bench, scenario, &[])
    }

    /// [`Child::start`] with some variables changed.
    pub fn start_with(bench: &super::Bench, scenario: &str, variables: &[(&str, String)]) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut command = tokio::process::Command::new(exe);
        command
            .args(["--exact", "scenarios::child", "--nocapture", "--test-threads=1"])
            .envs(bench.environment())
            .env("TENURE_SCENARIO", scenario)
            .envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        Self::spawn(command, scenario)
    }

    /// [`Child::start`] on a host of this name.
    pub fn on(bench: &super::Bench, host: &str, scenario: &str) -> Self {
        Self::start_with(bench, scenario, &[("TENURE_HOSTNAME", host.to_owned())])
    }

    pub fn spawn(mut command: tokio::process::Command, name: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = super::run_folder().join(format!("{name}-{n}.log"));
        let file = std::fs::File::create(&log).unwrap();
        command
            .stdin(std::process::Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .kill_on_drop(true);
        let process = command.spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(process.id().unwrap()).unwrap()).unwrap();
        Self { process, pid, log }
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Kills the process and waits until it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Waits for the end of the process. Returns its exit code.
    pub async fn wait(&mut self) -> Option<i32> {
        let waited = tokio::time::timeout(Duration::from_secs(60), self.process.wait()).await;
        waited.unwrap_or_else(|_| panic!("the process does not end:\n{}", self.log())).unwrap().code()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log holds a text.
    pub async fn until_log(&mut self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no {text:?} in:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits until a file exists, by which a child shows its progress.
pub async fn until_file(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} does not appear", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
