//! No gateway: without the feature `gateway`, no worker serves workers in other languages.

#![expect(clippy::unused_async, clippy::unused_self, reason = "as with the feature")]

use std::time::Duration;

use super::{attempt::Attempts, loops::Loops};
use crate::{client::Tenure, observe::health::Health};

/// No gateway.
#[derive(Clone)]
pub(super) struct OwnGateway;

impl OwnGateway {
    pub(super) fn of<S>(_is_gateway: bool, _: &Tenure, _: &Attempts<S>) -> Self {
        Self
    }

    pub(super) fn spawn(&self, _: &mut Loops, _: &Health, _: Duration) {}

    pub(super) async fn stop(&self) {}

    pub(super) async fn report_rates(&self) {}
}
