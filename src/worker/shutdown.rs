//! Shutdown: stops pulling and sends back messages that were on their way; lets running jobs finish; asks the rest to
//! stop and releases them; publishes released jobs; signs off; lets the hooks finish. In this order.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::gateway::OwnGateway;
use super::loops::{Loops, figures::Report, relay::Relay};
use crate::{
    config::Timing, nats::Nats, observe::hooks::Hooks, quarantine::run::Quarantine, run::running::Running,
    store::Store, tags::run::TagCounts,
};

/// The end of a worker.
pub(super) struct Shutdown {
    pub(super) store: Store,
    pub(super) nats: Nats,
    pub(super) running: Running,
    pub(super) gateway: OwnGateway,
    pub(super) relay: Relay,
    /// Whether this worker takes part in relaying.
    pub(super) relays: bool,
    pub(super) report: Report,
    pub(super) quarantine: Quarantine,
    pub(super) tags: TagCounts,
    pub(super) timing: Timing,
    /// The longest time that a cancelled handler may take to end.
    pub(super) longest_grace: Duration,
    pub(super) hooks: Hooks,
    pub(super) worker_id: String,
}

/// The tasks that run when the shutdown begins.
pub(super) struct Busy {
    pub(super) pulls: JoinSet<JoinSet<()>>,
    pub(super) stop_pulling: CancellationToken,
    /// Jobs of queues whose pull has ended already.
    pub(super) jobs: Vec<JoinSet<()>>,
    pub(super) loops: Loops,
}

impl Shutdown {
    pub(super) async fn run(self, busy: Busy) {
        let Busy { mut pulls, stop_pulling, mut jobs, loops } = busy;
        let running = self.running.all().len();
        tracing::info!(worker = %self.worker_id, running, "stopping: no new jobs");
        stop_pulling.cancel();
        while let Some(pulled) = pulls.join_next().await {
            // A pull that panicked has dropped its jobs, which other workers recover.
            jobs.extend(pulled.ok());
        }
        // Workers behind its gateway turn to another one, and settle their jobs there.
        tokio::join!(self.end(&mut jobs), self.gateway.stop());
        self.gateway.report_rates().await;
        let relayed_by = Instant::now() + self.timing.publish_within;
        if self.relays {
            drop(timeout_at(relayed_by, self.relay.publish_due()).await);
        }
        // What it has counted and snoozed since its last report.
        drop(timeout(self.timing.database_within, self.quarantine.report()).await);
        drop(timeout(self.timing.database_within, self.tags.count()).await);
        loops.end().await;
        // Jobs that the relay has taken count as published: their messages go out before this process ends.
        drop(timeout_at(relayed_by, self.relay.stop.stop()).await);
        // Not earlier: the loop of turns, which has ended now, would take them again.
        self.leave_turns().await;
        self.sign_off().await;
        self.nats.flush().await;
        // Last: nothing waits for a hook that hangs.
        self.hooks.finish().await;
        tracing::info!(worker = %self.worker_id, "worker stopped");
    }

    /// Waits for running jobs until the grace is over, and asks the rest to stop.
    async fn end(&self, jobs: &mut [JoinSet<()>]) {
        if timeout(self.timing.shutdown_grace, ended(jobs)).await.is_ok() {
            return;
        }
        let rest = self.running.stop_all();
        tracing::warn!(
            jobs = rest,
            "handlers still run after `shutdown_grace`; the worker asks them to stop"
        );
        let within = self.longest_grace.saturating_add(self.timing.database_within);
        if timeout(within, ended(jobs)).await.is_err() {
            tracing::error!(
                jobs = self.running.all().len(),
                "could not release some jobs; other workers will recover them"
            );
        }
    }

    async fn leave_turns(&self) {
        let left = timeout(self.timing.database_within, self.store.leave_turns(&self.worker_id)).await;
        if matches!(left, Ok(Ok(true))) {
            self.nats.announce_turns().await;
        }
    }

    /// Removes the worker's row, unless it owns a job that was not released: others find the job by that row.
    async fn sign_off(&self) {
        let us = std::slice::from_ref(&self.worker_id);
        let signed_off =
            async { tokio::join!(self.report.now(), self.store.forget_workers(Some(us), Duration::ZERO)) };
        let removed = timeout(self.timing.database_within, signed_off).await;
        if !matches!(removed, Ok(((), Ok(forgotten))) if !forgotten.is_empty()) {
            tracing::warn!("could not delete the worker's row; other workers will find this worker vanished");
        }
    }
}

/// Waits for the end of all jobs. Cancel safe.
async fn ended(jobs: &mut [JoinSet<()>]) {
    for jobs in jobs {
        while jobs.join_next().await.is_some() {}
    }
}
