//! Relay: very many jobs without a message at once, which fall due at one moment or whose stream is deleted.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tenure::internals::Parts as _;

use anyhow::{Context, bail};
use chrono::DateTime;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Plan, Values,
    arena::{Arena, count},
    consume::all_completed,
    percentile,
    pickup::{Begins, latencies, paced},
    produce::{BATCH, all_confirmed, fill, request},
    worker::WorkerMode,
};

/// The interval between single jobs in another queue of the worker meanwhile.
const PACE: Duration = Duration::from_millis(20);
/// How often to ask the database whether a job still waits for its message.
const LOOKS_EVERY: Duration = Duration::from_millis(10);
/// How often to ask whether republishing has begun: less often, because it takes a minute or longer, and workers are
/// waiting for it.
const LOOKS_FOR_A_BEGINNING_EVERY: Duration = Duration::from_millis(50);
/// The enqueue rate in jobs/s that lets all jobs exist before they fall due. A slower machine gets more time.
const ENQUEUED_PER_S: f64 = 20_000.0;
/// With these timers, workers notice within seconds that messages are gone, and the grace after a gap between the scans
/// of two workers ends within seconds, too.
const SHORT_TIMERS: [(&str, &str); 4] = [
    ("TENURE_SCAN_EVERY", "1s"),
    ("TENURE_PUBLISH_WITHIN", "1s"),
    ("TENURE_STALE_AFTER", "5s"),
    ("TENURE_KEEPALIVE_EVERY", "1s"),
];

/// The names of the figures of one run.
struct Names {
    published: &'static str,
    run: Option<&'static str>,
    p50: &'static str,
    p99: &'static str,
}

/// Measures jobs that fall due at one moment, first for other workers and then for the one that publishes them; then,
/// on private servers, jobs whose stream is deleted.
pub(super) async fn relay(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let names = Names {
        published: "due at one moment, not run: published",
        run: None,
        p50: "due at one moment, not run: pick-up of others meanwhile, p50",
        p99: "due at one moment, not run: pick-up of others meanwhile, p99",
    };
    due(arena, plan, &names, values).await?;
    let names = Names {
        published: "due at one moment: published",
        run: Some("due at one moment: run"),
        p50: "due at one moment: pick-up of others meanwhile, p50",
        p99: "due at one moment: pick-up of others meanwhile, p99",
    };
    due(arena, plan, &names, values).await?;
    // The stream of the user's servers must stay.
    if arena.is_private() { lost(arena, plan, values).await } else { Ok(()) }
}

/// Measures from the moment at which all are due to the last message. With `names.run`, the worker that publishes them
/// runs them, too.
async fn due(arena: &Arena, plan: &Plan, names: &Names, values: &mut Values) -> anyhow::Result<()> {
    let (live, many) = (arena.queue(), arena.queue());
    let queues = if names.run.is_some() { vec![live.clone(), many.clone()] } else { vec![live.clone()] };
    let worker = arena.worker_of(&queues, plan.slots, WorkerMode::Stamp, &[])?;
    arena.workers_ready(&live, 1).await?;
    // Warms up connections, plans and caches.
    latencies(arena, &live, 50, Duration::from_millis(5)).await?;
    let due = enqueue_ahead(arena, &many, plan.jobs).await?;
    let (published, beside) = beside(arena, &live, until_published(arena, &many, 0.0)).await?;
    let rate = |until: f64| count(plan.jobs) / (until - due);
    if let Some(name) = names.run {
        values.add(names.published, "jobs/s", rate(published));
        arena.drained(&many).await?;
        let state = arena.state(&many).await?;
        all_completed(&state, plan.jobs)?;
        values.add(name, "jobs/s", rate(state.last_finished));
    } else {
        // Every row still exists, and has the time at which its message was confirmed.
        let last = arena.tenure.store().bench_last_published(&many).await?;
        values.add(names.published, "jobs/s", rate(last));
    }
    values.add(names.p50, "ms", percentile(&beside, 0.5));
    values.add(names.p99, "ms", percentile(&beside, 0.99));
    drop(worker);
    Ok(())
}

/// Deletes the stream after all messages are confirmed and before a worker starts.
async fn lost(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let (live, many) = (arena.queue(), arena.queue());
    fill(arena, &many, plan.jobs).await?;
    all_confirmed(arena, &many, &arena.state(&many).await?, plan.jobs).await?;
    arena.tenure.nats().remove_stream().await?;
    let lost = arena.now().await?;
    let settings: &[_] = if plan.quick { &SHORT_TIMERS } else { &[] };
    let queues = [live.clone(), many.clone()];
    let worker = arena.worker_of(&queues, plan.slots, WorkerMode::Stamp, settings)?;
    arena.workers_ready(&live, 1).await?;
    let started = arena.now().await?;
    latencies(arena, &live, 50, Duration::from_millis(5)).await?;
    let begun = loop {
        let relayed = arena.tenure.store().bench_relayed(&many, lost).await?;
        if relayed.has_begun {
            break relayed.now;
        }
        sleep(LOOKS_FOR_A_BEGINNING_EVERY).await;
    };
    let (published, beside) = beside(arena, &live, until_published(arena, &many, lost)).await?;
    values.add("stream deleted: until the first is published again", "s", begun - started);
    values.add(
        "stream deleted: published again from then on",
        "jobs/s",
        count(plan.jobs) / (published - begun),
    );
    values.add("stream deleted: pick-up of others meanwhile, p50", "ms", percentile(&beside, 0.5));
    values.add("stream deleted: pick-up of others meanwhile, p99", "ms", percentile(&beside, 0.99));
    arena.drained(&many).await?;
    all_completed(&arena.state(&many).await?, plan.jobs)?;
    drop(worker);
    Ok(())
}

/// Enqueues jobs that all fall due at one moment a little later, and waits for that moment. Returns it.
async fn enqueue_ahead(arena: &Arena, queue: &str, jobs: usize) -> anyhow::Result<f64> {
    let mut ahead = 2.0 + count(jobs) / ENQUEUED_PER_S;
    for _ in 0..4 {
        let due = arena.now().await? + ahead;
        #[expect(clippy::cast_possible_truncation, reason = "microseconds since 1970 are below 2^53")]
        let run_at = DateTime::from_timestamp_micros((due * 1e6) as i64)
            .context("the database's time is out of range")?;
        for batch in (0..jobs).step_by(BATCH) {
            let orders = batch..(batch + BATCH).min(jobs);
            arena.enqueue_many(orders.map(|order| request(queue, order).run_at(run_at)).collect()).await?;
        }
        let left = due - arena.now().await?;
        if let Ok(left) = Duration::try_from_secs_f64(left) {
            sleep_until(Instant::now() + left).await;
            return Ok(due);
        }
        // Some have run already: try again with more time.
        arena.clear(queue).await?;
        ahead *= 2.0;
    }
    bail!("{jobs} jobs were not enqueued within {ahead:.0} s")
}

/// Waits until no job of a queue waits for its message. Returns the database's time.
async fn until_published(arena: &Arena, queue: &str, lost_before: f64) -> anyhow::Result<f64> {
    loop {
        let relayed = arena.tenure.store().bench_relayed(queue, lost_before).await?;
        if !relayed.waits {
            return Ok(relayed.now);
        }
        sleep(LOOKS_EVERY).await;
    }
}

/// Enqueues single jobs into another queue until `what` ends. Returns its result, and how long each job took to begin.
async fn beside(
    arena: &Arena,
    live: &str,
    what: impl Future<Output = anyhow::Result<f64>>,
) -> anyhow::Result<(f64, Vec<f64>)> {
    let has_ended = AtomicBool::new(false);
    let mut begins = Begins::look(arena);
    let single_ones = async {
        let mut pace = paced(PACE);
        loop {
            pace.tick().await;
            begins.after_now(arena.tenure.enqueue(request(live, 1)).await?.id);
            if has_ended.load(Ordering::Relaxed) {
                return anyhow::Ok(());
            }
        }
    };
    let what = async {
        let ended = what.await;
        has_ended.store(true, Ordering::Relaxed);
        ended
    };
    let (ended, enqueued) = tokio::join!(what, single_ones);
    enqueued?;
    Ok((ended?, begins.latencies().await?))
}
