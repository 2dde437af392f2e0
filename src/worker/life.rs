//! Life: from the start of a worker to its end, and which loops it has.
//!
//! Not here: how its parts are made (`compose`).

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    attempt::Attempts,
    builder::Recovery,
    error::WorkerError,
    gateway::OwnGateway,
    loops::{
        Loops,
        alive::{Beat, Renew},
        claims::{ReleaseUnanswered, TryClaims},
        consumers::LookAtConsumers,
        control::{FollowSettings, Listen},
        figures::{MeasureMessages, Report, ShowFleet},
        recovery::{Look, Scan, Sweep},
        relay::{PublishDue, Reclaim, Relay, Tick},
        turns::TakeTurns,
    },
    port::Server,
    presence::Presence,
    pull::{PullQueue, queue_of},
    queues::Queues,
    shutdown::{Busy, Shutdown},
    start::Start,
    topology::Topology,
    turns::Turns,
};
use crate::{
    config::Config,
    enqueue::publish::Publications,
    groups::worker::{ReleaseFollowers, TendGroups},
    lanes::worker::{Admit, StandIn, Tidy},
    logs::worker::KeepLogs,
    nats::{Control, Nats},
    observe::{health::Health, hooks::Hooks, metrics::Gauges},
    quarantine::worker::{TendQuarantines, WatchKinds},
    recover::{
        reconcile::{Identity, LifeSign},
        relay,
    },
    redrives::worker::TendRedrives,
    run::running::Running,
    store::{Registration, Store},
    tags::worker::CountTags,
};

/// How often the worker goes on with redrives, and judges watched kinds, at least.
const TENDED_EVERY: Duration = Duration::from_secs(1);

/// A worker that is composed, but not started.
pub(super) struct Life<S> {
    pub(super) worker_id: String,
    pub(super) hostname: String,
    pub(super) config: Config,
    pub(super) store: Store,
    pub(super) nats: Nats,
    pub(super) publications: Publications,
    pub(super) recovery: Vec<Recovery>,
    pub(super) health: Health,
    pub(super) hooks: Hooks,
    pub(super) queues: Arc<Queues>,
    pub(super) running: Running,
    pub(super) attempts: Arc<Attempts<S>>,
    pub(super) gateway: OwnGateway,
    pub(super) _server: Option<Server>,
}

/// Parts that other parts of a started worker share.
struct Common {
    topology: Arc<Topology>,
    presence: Arc<Presence>,
    turns: Arc<Turns>,
    relay: Relay,
    report: Report,
}

impl<S: Send + Sync + 'static> Life<S> {
    /// Runs until `stop` completes, then shuts down in order. Dropping this future leaves the jobs, as a crash does.
    pub(super) async fn run(self, stop: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let life_sign = LifeSign::create(&self.config.runtime_dir, &self.worker_id);
        let us = self.registration(&life_sign);
        let mut stop = std::pin::pin!(stop);
        self.health.lacks("claims", "not tried yet");
        for name in self.queues.names() {
            self.health.lacks(&queue_of(name), "not pulled yet");
        }
        // Every way out drops the loops, even dropping this future, so that no loop outlives the worker.
        let mut loops = Loops::default();
        loops.spawn(Beat {
            store: self.store.clone(),
            nats: self.nats.clone(),
            health: self.health.clone(),
            running: self.running.clone(),
            queues: self.queues.clone(),
            gauges: Gauges::new(self.config.cell.as_deref()),
        });
        let common = self.common();
        let start = Start {
            store: self.store.clone(),
            topology: common.topology.clone(),
            presence: common.presence.clone(),
            health: self.health.clone(),
            reconciles: self.takes_part(Recovery::Reconcile),
            runtime_dir: self.config.runtime_dir.clone(),
            hooks: self.hooks.clone(),
        };
        let (us, control) = tokio::select! {
            started = start.run(us) => started?,
            () = &mut stop => return Ok(()),
        };
        let drain = CancellationToken::new();
        self.spawn_loops(&mut loops, &common, us, (control, &drain));
        let stop_pulling = CancellationToken::new();
        let mut pulls = self.pull(&common.topology, &stop_pulling);
        let queues = self.queues.names().map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::info!(worker = %self.worker_id, queues, slots = self.queues.total, "worker started");

        self.health.started();
        let mut jobs = Vec::new();
        let threads = &self.attempts.handlers.threads;
        let mut all_lost = std::pin::pin!(threads.all_lost(self.config.timing.stale_after));
        let all_blocked = loop {
            tokio::select! {
                () = &mut stop => break false,
                () = drain.cancelled() => {
                    tracing::info!(worker = %self.worker_id, "an operator drains this worker; it stops as on SIGTERM");
                    break false;
                }
                () = &mut all_lost => break true,
                name = loops.ended() => self.lost_loop(name),
                Some(pulled) = pulls.join_next() => {
                    // The jobs that this pull has started go on.
                    jobs.extend(pulled.ok());
                    self.lost_loop("pull");
                }
            }
        };
        self.health.draining();
        if all_blocked {
            tracing::error!(
                threads = threads.count(),
                "handlers block every thread; the worker ends: restart the process"
            );
        }
        self.shutdown(common).run(Busy { pulls, stop_pulling, jobs, loops }).await;
        if all_blocked { Err(WorkerError::Blocked { threads: threads.count() }) } else { Ok(()) }
    }

    fn takes_part(&self, way: Recovery) -> bool {
        self.recovery.contains(&way)
    }

    fn registration(&self, life_sign: &LifeSign) -> Registration {
        let identity = Identity::of_this_process();
        let (queues, jobs_per_message) = self.queues.with_jobs_per_message();
        Registration {
            worker_id: self.worker_id.clone(),
            hostname: self.hostname.clone(),
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            boot_id: identity.boot_id,
            pid_namespace: identity.pid_namespace,
            pid_started_at: identity.pid_started_at,
            lock_file: life_sign.path(),
            probe_subject: None,
            renew_every: self.config.timing.renew_every,
            queues,
            kinds: self.attempts.handlers.kinds.names(),
            unkept: self.attempts.handlers.kinds.unkept(),
            slots: i32::try_from(self.queues.total).unwrap_or(i32::MAX),
            jobs_per_message: Some(jobs_per_message),
            client: None,
        }
    }

    fn common(&self) -> Common {
        let (store, nats, timing) = (self.store.clone(), self.nats.clone(), &self.config.timing);
        let turns = Arc::new(Turns::new(timing));
        Common {
            topology: Arc::new(Topology::new(nats.clone(), self.queues.names().cloned().collect())),
            presence: Arc::new(Presence::new(store.clone(), nats.clone(), timing.clone())),
            turns: turns.clone(),
            relay: Relay { store: store.clone(), nats, turns, stop: relay::Stop::default() },
            report: Report { store, queues: self.queues.clone(), every: timing.renew_every },
        }
    }

    /// `control`: the worker's subscriptions, and what a drain request cancels.
    fn spawn_loops(
        &self,
        loops: &mut Loops,
        common: &Common,
        us: Registration,
        (control, drain): (Control, &CancellationToken),
    ) {
        let timing = &self.config.timing;
        let (store, nats, queues) = (|| self.store.clone(), || self.nats.clone(), || self.queues.clone());
        let (turns, presence) = (|| common.turns.clone(), || common.presence.clone());
        let (relay, worker_id) = (|| common.relay.clone(), || self.worker_id.clone());
        let heartbeat = || self.attempts.heartbeat.clone();
        let settings_changed = Arc::new(Notify::new());

        loops.spawn(heartbeat());
        loops.spawn(Renew {
            store: store(),
            presence: presence(),
            turns: turns(),
            health: self.health.clone(),
            every: timing.renew_every,
            registration: us,
            queues: queues(),
        });
        loops.spawn(Listen {
            first: Arc::new(Mutex::new(Some(control))),
            nats: nats(),
            presence: presence(),
            heartbeat: heartbeat(),
            running: self.running.clone(),
            hints: self.attempts.hints.clone(),
            turns: turns(),
            settings_changed: settings_changed.clone(),
            health: self.health.clone(),
            drain: drain.clone(),
        });
        loops.spawn(TryClaims {
            store: store(),
            health: self.health.clone(),
            queues: queues(),
            turns: turns(),
            timing: timing.clone(),
            worker_id: worker_id(),
            hostname: self.hostname.clone(),
        });
        loops.spawn(common.report.clone());
        self.gateway.spawn(loops, &self.health, self.config.timing.renew_every);
        loops.spawn(Admit {
            store: store(),
            publications: self.publications.clone(),
            ended: self.attempts.settle.ended_lanes().clone(),
        });
        loops.spawn(ReleaseFollowers { relay: relay(), ended: self.attempts.settle.ended_members().clone() });
        loops.spawn(ReleaseUnanswered { deliver: self.attempts.deliver.clone() });
        loops.spawn(FollowSettings {
            store: store(),
            queues: queues(),
            hints: self.attempts.hints.clone(),
            turns: turns(),
            changed: settings_changed,
        });
        loops.spawn(TakeTurns {
            store: store(),
            nats: nats(),
            turns: turns(),
            presence: presence(),
            health: self.health.clone(),
            recovery: self.recovery.clone(),
            worker_id: worker_id(),
        });
        self.spawn_gauges(loops, common);
        if self.takes_part(Recovery::Scanner) {
            loops.spawn(Scan {
                store: store(),
                turns: turns(),
                nats: nats(),
                relay: relay(),
                every: timing.scan_every,
                stale_after: timing.stale_after,
                worker_id: worker_id(),
                hooks: self.hooks.clone(),
            });
            loops.spawn(Sweep {
                store: store(),
                nats: nats(),
                turns: turns(),
                retention: self.config.retention.clone(),
                scan_every: timing.scan_every,
            });
        }
        if self.takes_part(Recovery::Vanished) {
            loops.spawn(Look {
                store: store(),
                nats: nats(),
                turns: turns(),
                presence: presence(),
                relay: relay(),
                timing: timing.clone(),
                worker_id: worker_id(),
                hooks: self.hooks.clone(),
            });
        }
        if self.takes_part(Recovery::Relay) {
            self.spawn_relay(loops, common);
        }
    }

    /// Spawns the loops that export gauges of the fleet, and those of quarantines, tags and logs.
    fn spawn_gauges(&self, loops: &mut Loops, common: &Common) {
        let gauges = || Gauges::new(self.config.cell.as_deref());
        let (nats, queues, scan_every) =
            (self.nats.clone(), self.queues.clone(), self.config.timing.scan_every);
        let (store, turns) = (self.store.clone(), common.turns.clone());
        loops.spawn(ShowFleet { store, turns, scan_every, gauges: gauges() });
        loops.spawn(MeasureMessages { nats, queues, every: scan_every, gauges: gauges() });
        let every = (self.config.timing.relay_every * 10).min(TENDED_EVERY);
        let (quarantine, turns) = (self.attempts.settle.quarantine().clone(), common.turns.clone());
        loops.spawn(WatchKinds { quarantine, turns: turns.clone(), gauges: gauges(), every });
        if let Some(logs) = &self.attempts.handlers.logs {
            loops.spawn(KeepLogs { logs: logs.clone(), running: self.running.clone() });
        }
        let tags = self.attempts.settle.tags().clone();
        if tags.is_asked() {
            loops.spawn(CountTags { tags, every });
        }
        if self.takes_part(Recovery::Relay) {
            loops.spawn(TendQuarantines { store: self.store.clone(), turns, every });
        }
    }

    fn spawn_relay(&self, loops: &mut Loops, common: &Common) {
        let (relay, timing) = (|| common.relay.clone(), &self.config.timing);
        loops.spawn(PublishDue { relay: relay(), every: timing.relay_every });
        loops.spawn(StandIn { relay: relay(), every: timing.relay_every });
        loops.spawn(TendGroups { relay: relay(), every: timing.relay_every });
        loops.spawn(TendRedrives {
            store: self.store.clone(),
            turns: common.turns.clone(),
            every: (timing.relay_every * 10).min(TENDED_EVERY),
        });
        loops.spawn(Tick { relay: relay() });
        loops.spawn(Tidy {
            store: self.store.clone(),
            turns: common.turns.clone(),
            hooks: self.hooks.clone(),
            every: timing.relay_every * 10,
        });
        loops.spawn(LookAtConsumers {
            nats: self.nats.clone(),
            queues: self.queues.names().cloned().collect(),
        });
        loops.spawn(Reclaim {
            relay: relay(),
            topology: common.topology.clone(),
            timing: timing.clone(),
            worker_id: self.worker_id.clone(),
        });
    }

    fn pull(&self, topology: &Arc<Topology>, stop: &CancellationToken) -> JoinSet<JoinSet<()>> {
        let mut pulls = JoinSet::new();
        for (name, slots) in &*self.queues.slots {
            let pull = PullQueue {
                name: name.clone(),
                slots: slots.clone(),
                attempts: self.attempts.clone(),
                store: self.store.clone(),
                nats: self.nats.clone(),
                topology: topology.clone(),
                health: self.health.clone(),
                pull_for: self.config.timing.pull_for,
                stop: stop.clone(),
            };
            pulls.spawn(pull.run());
        }
        pulls
    }

    /// Reports a loop that has ended before the worker, after repeated panics. Only a restart of the worker starts it
    /// again.
    fn lost_loop(&self, name: &'static str) {
        tracing::error!(
            name,
            "a loop of the worker has ended; restart the worker, which reports itself as not alive"
        );
        self.health.loop_ended(name);
    }

    fn shutdown(&self, common: Common) -> Shutdown {
        Shutdown {
            store: self.store.clone(),
            nats: self.nats.clone(),
            running: self.running.clone(),
            gateway: self.gateway.clone(),
            relay: common.relay,
            relays: self.takes_part(Recovery::Relay),
            report: common.report,
            quarantine: self.attempts.settle.quarantine().clone(),
            tags: self.attempts.settle.tags().clone(),
            timing: self.config.timing.clone(),
            longest_grace: self.attempts.handlers.longest_grace(),
            hooks: self.hooks.clone(),
            worker_id: self.worker_id.clone(),
        }
    }
}
