//! Logs: keeps what running jobs have printed, so that it outlives their process.

use std::time::Duration;

use tokio::time::sleep;

use super::run::LogWriter;
use crate::{
    run::running::Running,
    worker::loops::{Work, jittered},
};

const EVERY: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct KeepLogs {
    pub(crate) logs: LogWriter,
    pub(crate) running: Running,
}

impl Work for KeepLogs {
    const NAME: &'static str = "logs";

    async fn run(self) {
        loop {
            sleep(jittered(EVERY)).await;
            self.logs.write_running(self.running.all()).await;
        }
    }
}
