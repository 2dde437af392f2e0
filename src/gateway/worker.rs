//! Gateway: how a worker serves workers in other languages, and what it does for them at its end.
//!
//! Without the feature `gateway`, `no_gateway.rs` stands here.

use std::time::Duration;

use tokio::time::sleep;

use super::{Gateway, Parts};
use crate::{
    client::Tenure,
    observe::health::Health,
    worker::{
        attempt::Attempts,
        builder::WorkerBuilder,
        loops::{Loops, Work, jittered},
    },
};

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Also serves workers in other languages, which speak the
    /// [worker protocol](https://github.com/tenure-rs/tenure/blob/main/docs/worker-protocol.md) over NATS, of any
    /// queue. Such a worker needs no handler and no queue of its own. Any number of workers may do so: each request
    /// goes to one of them.
    pub fn gateway(mut self) -> Self {
        self.is_gateway = true;
        self
    }
}

/// The gateway of a worker that is one.
#[derive(Clone)]
pub(crate) struct OwnGateway(Option<Gateway>);

impl OwnGateway {
    pub(crate) fn of<S>(is_gateway: bool, tenure: &Tenure, attempts: &Attempts<S>) -> Self {
        Self(is_gateway.then(|| {
            Gateway::new(Parts {
                tenure: tenure.clone(),
                deliver: attempts.deliver.clone(),
                settle: attempts.settle.clone(),
                heartbeat: attempts.heartbeat.clone(),
                hints: attempts.hints.clone(),
                worker_id: attempts.worker_id.clone(),
            })
        }))
    }

    /// Spawns the loops that serve the worker protocol, and report every `every`.
    pub(crate) fn spawn(&self, loops: &mut Loops, health: &Health, every: Duration) {
        let Some(gateway) = &self.0 else { return };
        loops.spawn(ServeOthers { gateway: gateway.clone() });
        health.lacks("gateway", "not tried yet");
        loops.spawn(ReportOthers { gateway: gateway.clone(), health: health.clone(), every });
    }

    /// Takes no more requests, and waits until those that have arrived are answered.
    pub(crate) async fn stop(&self) {
        if let Some(gateway) = &self.0 {
            gateway.stop().await;
        }
    }

    /// Reports what the workers behind it have done since the last report.
    pub(crate) async fn report_rates(&self) {
        if let Some(gateway) = &self.0 {
            gateway.report_rates().await;
        }
    }
}

/// Serves the worker protocol.
#[derive(Clone)]
struct ServeOthers {
    gateway: Gateway,
}

impl Work for ServeOthers {
    const NAME: &'static str = "gateway";

    async fn run(self) {
        self.gateway.run().await;
    }
}

/// Reports the rates of the workers behind this gateway at intervals, and whether it can sign receipts.
#[derive(Clone)]
struct ReportOthers {
    gateway: Gateway,
    health: Health,
    every: Duration,
}

impl Work for ReportOthers {
    const NAME: &'static str = "report of the gateway";

    async fn run(self) {
        loop {
            match self.gateway.check().await {
                Ok(()) => self.health.has("gateway"),
                Err(why) => self.health.lacks("gateway", why),
            }
            sleep(jittered(self.every)).await;
            self.gateway.report_rates().await;
        }
    }
}
