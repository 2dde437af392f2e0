//! Age: whether finished, dead and waiting jobs slow anything down.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::Context;

use super::{
    Order, Plan, Ratio, Values,
    arena::Arena,
    produce::{BATCH, fill, request},
    worker::WorkerMode,
};
use tenure::{
    Job, JobId, StoreError,
    internals::{ClaimRequest, Completion, Keeps, LockPolicy, Parts as _, Store},
};

/// How often each statement is timed.
const TIMES: usize = 200;
/// How many jobs the queue holds meanwhile.
const QUEUED: usize = 1_000;

/// The timed statements.
const STATEMENTS: [&str; 5] = ["claim", "complete", "scan", "relay", "reconcile"];

/// The finished jobs for each live one: a million live ones beside ten million.
const FINISHED_EACH_LIVE: usize = 10;
/// The finished jobs for each dead one: ten thousand dead ones beside ten million.
const FINISHED_EACH_DEAD: usize = 1_000;

/// The same statements in an empty database, in one with many finished jobs and some dead ones, and in one in which
/// many jobs wait as well.
pub(super) async fn age(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let store = arena.tenure.store();
    // A first round, so that all later ones find a used table and warm connections.
    times(arena, store).await?;
    store.bench_vacuum().await?;
    let empty = times(arena, store).await?;
    store.bench_history(plan.finished, &serde_json::to_string(&Order::example(1))?).await?;
    bury(arena, plan.finished / FINISHED_EACH_DEAD).await?;
    // Autovacuum would have run by then.
    store.bench_vacuum().await?;
    let old = times(arena, store).await?;
    wait_in_line(arena, plan.finished / FINISHED_EACH_LIVE).await?;
    store.bench_vacuum().await?;
    let full = times(arena, store).await?;
    for (at, statement) in STATEMENTS.into_iter().enumerate() {
        let name = format!("empty database: {statement}");
        values.add(name.clone(), "ms", empty[at]);
        for (database, ms) in [("old", old[at]), ("old and full", full[at])] {
            values.add(format!("{database} database: {statement}"), "ms", ms).ratio =
                Some(Ratio::of(name.clone(), ms / empty[at]));
        }
    }
    Ok(())
}

/// Runs this many jobs that fail for good.
async fn bury(arena: &Arena, jobs: usize) -> anyhow::Result<()> {
    let queue = arena.queue();
    fill(arena, &queue, jobs).await?;
    let worker = arena.worker(&queue, 1_000, WorkerMode::Fail)?;
    arena.workers_ready(&queue, 1).await?;
    arena.drained(&queue).await?;
    drop(worker);
    // No worker looks for the one that was killed.
    arena.forget_workers().await
}

/// Enqueues this many jobs that no worker runs: every tenth is due tomorrow, the others have their messages.
async fn wait_in_line(arena: &Arena, jobs: usize) -> anyhow::Result<()> {
    let queue = arena.queue();
    for batch in (0..jobs).step_by(BATCH) {
        let orders = (batch..(batch + BATCH).min(jobs)).map(|order| match order % 10 {
            0 => request(&queue, order).delay(Duration::from_hours(24)),
            _ => request(&queue, order),
        });
        arena.enqueue_many(orders.collect()).await?;
    }
    arena.tenure.flush().await;
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
                .complete(
                    &[Completion { key, output: None, report: None, keeps: Keeps::History, in_group: false }],
                    LockPolicy::Wait,
                )
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
        let _: Result<_, StoreError> = store.cancel(part, None).await;
    }
    Ok([claim, complete, scan, relay, reconcile])
}
