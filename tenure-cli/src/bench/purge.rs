//! Purge: what retention costs running work.

use std::time::Duration;

use super::{Order, Plan, Ratio, Values, arena::Arena, arena::count, consume::rate_of_one_worker};
use tenure::{
    internals::{Parts as _, retention},
    settings::Retention,
};

/// How long the sweep keeps completed jobs.
const KEPT: Duration = Duration::from_hours(1);

/// One worker drains a queue; then another one, while a sweep removes finished jobs row by row, the slow way.
pub(super) async fn retention(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let store = arena.tenure.store();
    store.bench_history(plan.finished, &serde_json::to_string(&Order::example(1))?).await?;
    // Autovacuum would have run by then.
    store.bench_vacuum().await?;
    let alone = rate_of_one_worker(arena, plan).await?;
    // A job that ended just now keeps the partition of its day, so the sweep removes the others row by row.
    let before = store.bench_finish_late().await?;
    let sweeping = tokio::spawn({
        let tenure = arena.tenure.clone();
        async move {
            let mut keep = Retention::DEFAULT;
            keep.completed = Some(KEPT);
            loop {
                if let Err(error) =
                    retention::sweep(tenure.store(), tenure.nats(), &keep, Duration::ZERO).await
                {
                    tracing::warn!(%error, "the sweep of the bench was interrupted");
                }
            }
        }
    });
    let beside = rate_of_one_worker(arena, plan).await;
    sweeping.abort();
    let removed = before - store.bench_finish_late().await?;
    let beside = beside?;
    values.add("drain, nothing is swept", "jobs/s", alone);
    values.add("drain while finished jobs are swept", "jobs/s", beside).ratio =
        Some(Ratio::of("drain, nothing is swept", beside / alone));
    values.add("finished jobs swept meanwhile", "jobs", count(usize::try_from(removed.max(0))?));
    Ok(())
}
