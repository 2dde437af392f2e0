//! Tags: counts how attempts end by the tags that an operator asked for.
//!
//! Tags stay beside a job, so that no claim reads them. The jobs whose attempts have ended are noted here, and a loop
//! looks their tags up, many at a time.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    job::{JobId, attempt::AttemptOutcome},
    observe::metrics,
    store::{Store, StoreError},
};

/// The most ends that wait for their tags. While Postgres is away, later ones are not counted.
const NOTED_MAX: usize = 100_000;
/// The most jobs of one statement.
const LOOKED_UP_AT_ONCE: usize = 2_000;
/// The most values of all keys that have a series of their own. Others share the value `other`.
const VALUES_MAX: usize = 200;

#[derive(Debug)]
struct End {
    job: JobId,
    kind: String,
    outcome: AttemptOutcome,
}

/// The ends of attempts that wait for their tags. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TagCounts {
    store: Store,
    /// Keys, and tags without a value; empty: nothing is counted.
    asked: Arc<[String]>,
    ended: Arc<Mutex<Vec<End>>>,
    shown: Arc<Mutex<HashSet<String>>>,
}

impl TagCounts {
    pub(crate) fn new(store: Store, asked: &[String]) -> Self {
        Self { store, asked: asked.into(), ended: Arc::default(), shown: Arc::default() }
    }

    /// Whether an operator asked for a tag.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Notes an attempt that has ended.
    pub(crate) fn ended(&self, job: JobId, kind: &str, outcome: AttemptOutcome) {
        if self.is_asked() {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            if ended.len() < NOTED_MAX {
                ended.push(End { job, kind: kind.to_owned(), outcome });
            }
        }
    }

    /// Looks up the tags of the jobs that are noted, and counts. After an error, those that are left wait for the next
    /// call.
    pub(crate) async fn count(&self) -> Result<(), StoreError> {
        loop {
            let some: Vec<End> = {
                let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                let from = ended.len().saturating_sub(LOOKED_UP_AT_ONCE);
                ended.drain(from..).collect()
            };
            if some.is_empty() {
                return Ok(());
            }
            let jobs: Vec<JobId> = some.iter().map(|end| end.job).collect();
            match self.store.tags_of(&jobs, &self.asked).await {
                Ok(tags) => {
                    for End { job, kind, outcome } in &some {
                        for tag in tags.get(job).into_iter().flatten() {
                            self.count_one(tag, kind, *outcome);
                        }
                    }
                }
                Err(error) => {
                    self.ended.lock().unwrap_or_else(PoisonError::into_inner).extend(some);
                    return Err(error);
                }
            }
        }
    }

    fn count_one(&self, tag: &str, kind: &str, outcome: AttemptOutcome) {
        let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let has_series = shown.contains(tag) || shown.len() < VALUES_MAX && shown.insert(tag.to_owned());
        metrics::tagged(key, if has_series { value } else { metrics::OTHER }, kind, outcome);
    }
}
