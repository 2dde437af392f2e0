//! Gateway: serves workers in other languages, and reports what they have done.

use std::time::Duration;

use tokio::time::sleep;

use super::{Work, jittered};
use crate::{gateway::Gateway, observe::health::Health};

/// Serves the worker protocol.
#[derive(Clone)]
pub(crate) struct ServeOthers {
    pub(crate) gateway: Gateway,
}

impl Work for ServeOthers {
    const NAME: &'static str = "gateway";

    async fn run(self) {
        self.gateway.run().await;
    }
}

/// Reports the rates of the workers behind this gateway at intervals, and whether it can sign receipts.
#[derive(Clone)]
pub(crate) struct ReportOthers {
    pub(crate) gateway: Gateway,
    pub(crate) health: Health,
    pub(crate) every: Duration,
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
