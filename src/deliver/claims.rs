//! Claims: the batches of a worker's claims, and what one job's trouble means for the others of its batch.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    job::claim::Claim,
    nats::slots::Slots,
    observe::metrics,
    proof::fault,
    store::{
        ClaimRequest, LockPolicy, Store, StoreError,
        batch::{Batcher, ITEMS_MAX, in_order},
    },
};

/// The most bytes of payloads and checkpoints that one answer should carry.
const CLAIMED_BYTES_MAX: usize = 16 << 20;

/// Makes the batches of a worker's claims.
pub(super) fn claims(
    store: Store,
    worker_id: Arc<str>,
    host: Arc<str>,
    slots: Arc<HashMap<String, Slots>>,
) -> Batcher<ClaimRequest, Result<Option<Claim>, StoreError>> {
    let fitting = Arc::new(AtomicUsize::new(ITEMS_MAX));
    Batcher::spawn(
        |_| 0,
        move |batch: Vec<ClaimRequest>| {
            let (store, worker_id, host) = (store.clone(), worker_id.clone(), host.clone());
            let (fitting, slots) = (fitting.clone(), slots.clone());
            async move { claim_batch(Claimant { store, worker_id, host, slots }, batch, &fitting).await }
        },
    )
}

/// The worker that claims, and its slots.
pub(super) struct Claimant {
    pub(super) store: Store,
    pub(super) worker_id: Arc<str>,
    pub(super) host: Arc<str>,
    pub(super) slots: Arc<HashMap<String, Slots>>,
}

/// Claims a batch with one statement a kind; a batch has few kinds. One statement claims at most `fitting` jobs.
async fn claim_batch(
    claimant: Claimant,
    mut batch: Vec<ClaimRequest>,
    fitting: &AtomicUsize,
) -> Vec<Result<Option<Claim>, StoreError>> {
    // In order of id, or two batches could wait for each other. A job occurs once: each claim holds the job's
    // reservation in this process.
    let mut places: Vec<usize> = (0..batch.len()).collect();
    places.sort_unstable_by_key(|&at| batch[at].job);
    batch.sort_unstable_by_key(|request| request.job);
    let mut answers: Vec<_> = batch.iter().map(|_| Ok(None)).collect();
    let mut rest: Vec<usize> = (0..batch.len()).collect();
    while let Some(&first) = rest.first() {
        let (mut alike, mut others): (Vec<usize>, Vec<usize>) =
            rest.iter().partition(|&&at| batch[at].is_like(&batch[first]));
        let fit = alike.len().min(fitting.load(Ordering::Relaxed));
        others.extend(alike.split_off(fit));
        others.sort_unstable();
        let part: Vec<_> = alike.iter().map(|&at| batch[at].clone()).collect();
        let limited = part.first().and_then(|first| claimant.slots.get(&first.queue));
        let claims = match limited.filter(|slots| slots.is_limited()) {
            Some(slots) => claim_limited(&claimant, slots, &part).await,
            None => claim_all(&claimant, &part).await,
        };
        fitting.store(claims_that_fit(&claims), Ordering::Relaxed);
        for (at, claim) in alike.into_iter().zip(claims) {
            answers[at] = claim;
        }
        rest = others;
    }
    in_order(places, answers)
}

/// Claims jobs of one kind. A row that is locked, or that Postgres refuses to write, keeps no other from being claimed.
pub(super) async fn claim_all(
    claimant: &Claimant,
    part: &[ClaimRequest],
) -> Vec<Result<Option<Claim>, StoreError>> {
    let Claimant { store, worker_id, host, .. } = claimant;
    let waited = store.claim(LockPolicy::Wait, part, worker_id, host).await;
    let answers: Vec<Result<Option<Claim>, StoreError>> = match waited {
        Ok(claims) => claims.into_iter().map(Ok).collect(),
        Err(locked) if part.len() > 1 && locked.is_locked() => {
            match store.claim(LockPolicy::Skip, part, worker_id, host).await {
                // Locked, or not free: the caller asks again when the lock may be gone.
                Ok(claims) => claims
                    .into_iter()
                    .map(|claim| claim.map_or_else(|| Err(locked.clone()), |claim| Ok(Some(claim))))
                    .collect(),
                Err(error) => vec![Err(error); part.len()],
            }
        }
        Err(error) if part.len() > 1 && error.may_be_of_one_row() => {
            let (one, other) = part.split_at(part.len() / 2);
            let mut answers = Box::pin(claim_all(claimant, one)).await;
            answers.extend(Box::pin(claim_all(claimant, other)).await);
            return answers;
        }
        Err(error) => vec![Err(error); part.len()],
    };
    let won = answers.iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
    metrics::claims("won", won);
    metrics::batch("claim", part.len());
    if won > 1 {
        fault::point("batch_claimed");
    }
    answers
}

/// Claims jobs of a queue with a `max_running`.
pub(super) async fn claim_limited(
    claimant: &Claimant,
    slots: &Slots,
    part: &[ClaimRequest],
) -> Vec<Result<Option<Claim>, StoreError>> {
    let since = slots.asks();
    match claimant.store.claim_limited(part, &claimant.worker_id, &claimant.host).await {
        Ok(limited) => {
            match limited.room {
                Some(room) => slots.has_room(room, since),
                None => slots.settings(false, None, since),
            }
            metrics::batch("claim", part.len());
            metrics::claims("won", limited.claims.iter().flatten().count());
            limited.claims.into_iter().map(Ok).collect()
        }
        Err(error) if part.len() > 1 && error.may_be_of_one_row() => {
            let (one, other) = part.split_at(part.len() / 2);
            let mut answers = Box::pin(claim_limited(claimant, slots, one)).await;
            answers.extend(Box::pin(claim_limited(claimant, slots, other)).await);
            answers
        }
        Err(error) => vec![Err(error); part.len()],
    }
}

/// Returns how many claims of jobs as large as these one answer should carry. An answer that did not arrive in time
/// may have been too large.
pub(super) fn claims_that_fit(claims: &[Result<Option<Claim>, StoreError>]) -> usize {
    if claims.iter().any(|claim| claim.as_ref().is_err_and(StoreError::is_outage)) {
        return (claims.len() / 2).max(1);
    }
    let bytes = |claim: &Claim| claim.payload.len() + claim.checkpoint.as_ref().map_or(0, String::len);
    let won = claims.iter().filter_map(|claim| claim.as_ref().ok()?.as_ref());
    let (n, bytes) = won.fold((0, 0), |(n, total), claim| (n + 1, total + bytes(claim)));
    let each = bytes.checked_div(n).unwrap_or_default().max(1);
    (CLAIMED_BYTES_MAX / each).clamp(1, ITEMS_MAX)
}
