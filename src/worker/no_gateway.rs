//! No gateway: without the feature `gateway`, no worker serves workers in other languages.

#![expect(clippy::unused_async, clippy::unused_self, reason = "as with the feature")]

use std::time::Duration;

use crate::{
    client::Tenure,
    observe::health::Health,
    worker::{attempt::Attempts, loops::Loops},
};

/// No gateway.
#[derive(Clone)]
pub(crate) struct OwnGateway;

impl OwnGateway {
    pub(crate) fn of<S>(_is_gateway: bool, _: &Tenure, _: &Attempts<S>) -> Self {
        Self
    }

    pub(crate) fn spawn(&self, _: &mut Loops, _: &Health, _: Duration) {}

    pub(crate) async fn stop(&self) {}

    pub(crate) async fn report_rates(&self) {}
}
