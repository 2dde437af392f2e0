//! Age: whether finished jobs slow anything down.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::Context;

use super::{Order, Plan, Ratio, Values, arena::Arena, produce::request};
use tenure::{
    Job, JobId, StoreError,
    internals::{ClaimRequest, Completion, LockPolicy, Parts as _, Store},
};

/// How often each statement is timed.
const TIMES: usize = 200;
/// How many jobs the queue holds meanwhile.
const QUEUED: usize = 1_000;

/// The names of the timed statements, in an empty and in an old database.
const STATEMENTS: [(&str, &str); 5] = [
    ("empty database: claim", "old database: claim"),
    ("empty database: complete", "old database: complete"),
    ("empty database: scan", "old database: scan"),
    ("empty database: relay", "old database: relay"),
    ("empty database: reconcile", "old database: reconcile"),
];

/// The same statements in an empty database, and in one with many finished jobs.
pub(super) async fn age(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let store = arena.tenure.store();
    // A first round, so that both later ones find a used table and warm connections.
    times(arena, store).await?;
    store.bench_vacuum().await?;
    let empty = times(arena, store).await?;
    store.bench_history(plan.finished, &serde_json::to_string(&Order::example(1))?).await?;
    // Autovacuum would have run by then.
    store.bench_vacuum().await?;
    let old = times(arena, store).await?;
    for ((names, empty), old) in STATEMENTS.iter().zip(empty).zip(old) {
        values.add(names.0, "ms", empty);
        values.add(names.1, "ms", old).ratio = Some(Ratio::of(names.0, old / empty));
    }
    Ok(())
}

async fn times(arena: &Arena, store: &Store) -> anyhow::Result<[f64; 5]> {
    let queue = arena.queue();
    let made = arena.tenure.enqueue_many((0..QUEUED).map(|order| request(&queue, order))).await?;
    arena.tenure.flush().await;
    let ids: Vec<JobId> = made.iter().map(|job| job.id).collect();
    let (next_claim, next_end) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let claims = std::sync::Mutex::new(Vec::new());
    let claim = store
        .bench_time(TIMES, async || {
            let job = ids[next_claim.fetch_add(1, Ordering::Relaxed)];
            let request = ClaimRequest {
                job,
                queue: queue.clone(),
                kind: Order::KIND.into(),
                stale_after: Duration::from_mins(5),
                on_crash: "retry",
            };
            let claimed = store.claim(LockPolicy::Wait, &[request], "bench-1-aaaaaaaa", "bench").await?;
            claims.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(claimed);
            Ok(())
        })
        .await?;
    let claims: Option<Vec<_>> = claims.into_inner()?.into_iter().collect();
    let claims = claims.context("a job that was just enqueued was not claimed")?;
    let complete = store
        .bench_time(TIMES / 2, async || {
            let key = claims[next_end.fetch_add(1, Ordering::Relaxed)].key;
            store
                .complete(&[Completion { key, output: None, report: None }], LockPolicy::Wait)
                .await
                .map(drop)
        })
        .await?;
    // The other half of the claimed jobs is running, and no job is stale, due or dead.
    let scan = store.bench_time(TIMES, async || store.bench_scan().await).await?;
    let relay = store.bench_time(TIMES, async || store.take_due(500).await.map(drop)).await?;
    let dead = ["bench-2-bbbbbbbb".to_owned()];
    let reconcile = store
        .bench_time(TIMES, async || store.reset_workers(&dead, "bench", "bench").await.map(drop))
        .await?;
    for part in ids.chunks(500) {
        let _: Result<_, StoreError> = store.cancel(part).await;
    }
    Ok([claim, complete, scan, relay, reconcile])
}
