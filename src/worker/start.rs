//! Start: waits for both servers, registers, and resets the jobs of earlier processes of this host.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{error::WorkerError, presence::Presence, topology::Topology};
use crate::{
    nats::Control,
    observe::{
        health::Health,
        hooks::Hooks,
        repeats::{self, Repeats},
    },
    recover::reconcile::reconcile,
    store::{HandlerPool, NEEDS, Registration, Schema, Store, StoreError},
};

/// The start of a worker.
pub(super) struct Start {
    pub(super) store: Store,
    pub(super) topology: Arc<Topology>,
    pub(super) presence: Arc<Presence>,
    pub(super) health: Health,
    pub(super) reconciles: bool,
    pub(super) runtime_dir: PathBuf,
    pub(super) hooks: Hooks,
}

impl Start {
    /// Returns the worker's registration, and its subscriptions. The start does not wait for every consumer: a queue
    /// that cannot be served must not keep the others from being served. `pull` asks again.
    pub(super) async fn run(self, mut us: Registration) -> Result<(Registration, Control), WorkerError> {
        self.await_schema().await?;
        self.check_handlers().await?;
        self.topology.look_after_stream().await;
        // Consumers come first: from its registration on, the worker should serve its queues.
        self.topology.find_consumers().await;
        let mut control = self.presence.listen().await;
        tokio::select! {
            () = self.presence.probe_ourselves(&mut us) => {}
            // Reading answers the probe. No job runs yet, so no announcement matters.
            () = async { while control.next().await.is_some() {} } => {}
        }
        // Register before the first claim, so that every owner can be found.
        loop {
            match self.register(&us).await {
                Ok(()) => {
                    self.health.has("registration");
                    return Ok((us, control));
                }
                Err(error) if error.is_unavailable() => {
                    if let Some(left_out) = repeats::tell("register", &error) {
                        tracing::warn!(%error, left_out, "could not register the worker; it will retry");
                    }
                    self.health.lacks("registration", error.to_string());
                    sleep(Duration::from_millis(500)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refuses an application's pool whose transactions could not be fenced.
    async fn check_handlers(&self) -> Result<(), WorkerError> {
        let refused = |reason| Err(WorkerError::HandlerPool { reason });
        match self.store.check_handlers().await {
            Ok(None) => {}
            Ok(Some(HandlerPool::Closed)) => {
                return refused("it is closed; close it after the worker has stopped");
            }
            Ok(Some(HandlerPool::Elsewhere)) => {
                return refused(
                    "it leads to another database than DATABASE_URL, where jobs are not fenced; give a pool of the \
                     same database",
                );
            }
            Ok(Some(HandlerPool::Fits { writes, may_write })) => {
                if !writes {
                    tracing::warn!(
                        "the given pool cannot write: `once` and `fenced_tx` fail until it connects to the primary"
                    );
                }
                if !may_write {
                    tracing::warn!(
                        "the role of the given pool may not write tenure's tables: `once` and `fenced_tx` fail; \
                         grant it tenure_worker of postgres/roles.sql"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not check the given pool; `once` and `fenced_tx` may fail");
            }
        }
        Ok(())
    }

    async fn register(&self, us: &Registration) -> Result<(), StoreError> {
        self.store.register_worker(us).await?;
        if self.reconciles {
            match reconcile(&self.store, us, &self.runtime_dir, &self.hooks).await {
                // The scanner resets them later.
                Err(error) if !error.is_unavailable() => {
                    tracing::error!(
                        %error,
                        "could not reset the jobs of earlier processes of this host; the scanner will reset them"
                    );
                }
                answer => drop(answer?),
            }
        }
        Ok(())
    }

    /// Waits for Postgres, and for the schema: in a deploy `tenure migrate` may run a little after the workers start,
    /// and a platform delays the restarts of a worker that exits more and more. Accepts a newer schema, unless that
    /// excludes this program.
    async fn await_schema(&self) -> Result<(), WorkerError> {
        let repeats = Repeats::default();
        loop {
            let lacks = match self.store.schema().await {
                Ok(is) if is.breaks_before > NEEDS => {
                    let Schema { version, breaks_before, .. } = is;
                    return Err(WorkerError::TooOld { version, breaks_before, knows: NEEDS });
                }
                Ok(is) => {
                    let Some(lack) = is.lack() else {
                        self.health.has("schema");
                        return Ok(());
                    };
                    lack
                }
                Err(StoreError::NotMigrated(_)) => {
                    "this database has no tenure schema; run `tenure migrate`".to_owned()
                }
                Err(error) if error.is_unavailable() => {
                    let reason = self.store.last_error();
                    if let Some(left_out) = repeats.tell(&reason) {
                        tracing::warn!(reason, left_out, "waiting for Postgres");
                    }
                    sleep(Duration::from_millis(500)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(left_out) = repeats.tell(&lacks) {
                tracing::warn!(
                    reason = lacks,
                    left_out,
                    "waiting for the schema; no job runs here until then"
                );
            }
            self.health.lacks("schema", lacks);
            sleep(Duration::from_millis(500)).await;
        }
    }
}
