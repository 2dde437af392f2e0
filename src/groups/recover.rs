//! Groups: releases the jobs whose predecessors have ended.
//!
//! The transaction that ends a job of a group notes it. The worker that has ended the job works the notes off at once.
//! The worker that has the relay's turn works off the rest ten times a second: what a worker that died has left, a
//! command line, SQL, an older program. It asks nothing while there is no group.
//!
//! Those that a call releases may share messages: see `nats::together`.
//!
//! Not here: who may run. `tenure.release_followers` in `migrations/functions/groups` decides it.

use uuid::Uuid;

use crate::{
    nats::Nats,
    recover::relay::{self, RelayError, Stop},
    store::{Store, StoreError},
};

/// How many followers one look for unnoted ends covers.
pub(crate) const MENDED_AT_ONCE: i32 = 200;
/// How many followers one statement looks at that forgets those which are gone.
pub(crate) const SWEPT_AT_ONCE: i32 = 1_000;

/// Works off the ends that are noted, and publishes the jobs that this releases. Returns how many.
///
/// Cancel safe, as [`relay::publish_due`] is.
pub(crate) async fn release(store: &Store, nats: &Nats, stop: &Stop) -> Result<usize, RelayError> {
    relay::publish_in_task(store, nats, relay::Take::Followers, stop).await
}

/// Looks for ends that were not noted, before at most `most` followers after this one. Returns where the next look goes
/// on; nil: at the start.
pub(crate) async fn mend(store: &Store, after: Uuid, most: i32) -> Result<Uuid, StoreError> {
    Ok(store.mend_groups(after, most).await?.unwrap_or_default())
}

/// Forgets groups whose jobs retention has removed, of at most `most` followers after this one. Returns where the next
/// look goes on; nil: at the start.
pub(crate) async fn sweep(store: &Store, after: Uuid, most: i32) -> Result<Uuid, StoreError> {
    Ok(store.sweep_groups(after, most).await?.unwrap_or_default())
}
