//! Tags: counts the attempts of jobs with the tags that an operator asked for.

use std::time::Duration;

use tokio::time::sleep;

use super::run::TagCounts;
use crate::{
    observe::repeats,
    worker::loops::{Work, jittered},
};

#[derive(Clone)]
pub(crate) struct CountTags {
    pub(crate) tags: TagCounts,
    pub(crate) every: Duration,
}

impl Work for CountTags {
    const NAME: &'static str = "tags";

    async fn run(self) {
        loop {
            sleep(jittered(self.every)).await;
            if let Err(error) = self.tags.count().await
                && let Some(left_out) = repeats::tell("tags", &error)
            {
                tracing::warn!(%error, left_out, "could not look up tags for the metrics; the worker will retry");
            }
        }
    }
}
