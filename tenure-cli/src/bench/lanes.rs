//! Lanes: how fast held jobs are released, how soon another lane gets its turn, how exact a rate is.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{
    Order, Plan, Ratio, Values,
    arena::{Arena, count},
    consume::all_completed,
    percentile,
    produce::BATCH,
    worker::WorkerMode,
};
use tenure::{JobId, JobRequest, internals::Parts as _, lanes::Lanes, queues::QueueLimits};

/// Jobs of each lane of the drain.
const JOBS_PER_LANE: usize = 20;
/// Slots of each lane.
const RUNNING: u32 = 2;
/// The limit of the queue beside which a lane drains.
const LIMIT: u32 = 80;
/// How many workers, and the slots of each.
const WORKERS_OF_LIMIT: [(usize, u32); 3] = [(1, LIMIT), (4, LIMIT), (80, 4)];
/// How often another lane enqueues one job.
const PACE: Duration = Duration::from_millis(50);
/// Starts a second.
const RATE: u32 = 10;

fn request(queue: &str, lane: &str, order: usize) -> JobRequest {
    // The payload says the lane, so that the count of running jobs needs no table of lanes.
    let order = Order { customer: lane.to_owned(), ..Order::example(order) };
    JobRequest::from(order).queue(queue).lane(lane)
}

/// Enqueues jobs, the first of each lane, then the second of each; without lanes, jobs that name none.
async fn fill(arena: &Arena, queue: &str, jobs: usize, lanes: usize) -> anyhow::Result<()> {
    for first in (0..jobs).step_by(BATCH) {
        let some = first..(first + BATCH).min(jobs);
        let requests = some.map(|n| match lanes {
            0 => JobRequest::from(Order::example(n)).queue(queue),
            lanes => request(queue, &format!("lane-{}", n % lanes), n),
        });
        let requests = requests.collect();
        arena.enqueue_many(requests).await?;
    }
    arena.tenure.flush().await;
    Ok(())
}

/// Waits until all jobs of a queue have completed. Returns the jobs a second from the first start to the last end.
async fn drained(arena: &Arena, queue: &str, jobs: usize) -> anyhow::Result<f64> {
    loop {
        let state = arena.state(queue).await?;
        if state.queued + state.processing == 0 && usize::try_from(state.completed)? >= jobs {
            all_completed(&state, jobs)?;
            return Ok(count(jobs) / (state.last_finished - state.first_started));
        }
        sleep(Duration::from_millis(250)).await;
    }
}

pub(super) async fn lanes(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    many(arena, plan, values).await?;
    turns(arena, plan, values).await?;
    rate(arena, plan, values).await?;
    limited(arena, plan, values).await?;
    held(arena, plan, values).await
}

/// Two workers drain many lanes of two slots each.
async fn many(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let (queue, lanes) = (arena.queue(), (plan.jobs / JOBS_PER_LANE).max(1));
    arena.tenure.put_lanes(&queue, Lanes::new().running(RUNNING)).await?;
    let began = Instant::now();
    fill(arena, &queue, plan.jobs, lanes).await?;
    values.add(
        "enqueue into lanes, batches of 1,000",
        "jobs/s",
        count(plan.jobs) / began.elapsed().as_secs_f64(),
    );
    let before = arena.cpu(&[]);
    let workers = [
        arena.worker(&queue, plan.slots, WorkerMode::Decode)?,
        arena.worker(&queue, plan.slots, WorkerMode::Decode)?,
    ];
    let rate = drained(arena, &queue, plan.jobs).await?;
    let mut cpu = super::arena::cost(&before, &arena.cpu(&[]), plan.jobs);
    let clients = arena.cpu(&workers).get("client").copied().unwrap_or_default();
    cpu.insert("client", clients * 1e6 / count(plan.jobs));
    values.add(format!("drain, two workers, {lanes} lanes of two slots"), "jobs/s", rate).cpu_us = cpu;
    let most = arena.tenure.store().bench_most_at_once(&queue).await?;
    values.add("the most jobs of a lane that ran at once", "jobs", most);
    drop(workers);
    Ok(())
}

/// One lane has a backlog, and another one enqueues a job now and then.
async fn turns(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    arena.tenure.put_lanes(&queue, Lanes::new().turns()).await?;
    fill(arena, &queue, plan.jobs.max(2), 1).await?;
    let worker = arena.worker(&queue, 50, WorkerMode::Brief)?;
    arena.workers_ready(&queue, 1).await?;
    sleep(Duration::from_secs(1)).await;
    let samples = if plan.quick { 20 } else { 200 };
    let mut jobs: Vec<(JobId, i64)> = Vec::with_capacity(samples);
    for n in 0..samples {
        sleep(PACE).await;
        let job = arena.tenure.enqueue(request(&queue, &format!("other-{n}"), n)).await?;
        jobs.push((job.id, super::pickup::now_us() + arena.clock_ahead_us()));
    }
    sleep(Duration::from_secs(2)).await;
    let waited = arena.state(&queue).await?.queued;
    let started = arena.started(jobs[0].0).await?;
    let waits: Vec<f64> = jobs
        .iter()
        .filter_map(|(job, committed)| {
            let start = started.get(job)?.started_us + arena.clock_ahead_us();
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a bench")]
            let ms = (start - committed).max(0) as f64 / 1e3;
            Some(ms)
        })
        .collect();
    anyhow::ensure!(waits.len() == samples, "{} of {samples} jobs of other lanes have run", waits.len());
    drop(worker);
    values.add("jobs of the first lane that still waited", "jobs", count(usize::try_from(waited)?));
    values.add("a job of another lane, commit to start, p50", "ms", percentile(&waits, 0.5));
    values.add("a job of another lane, commit to start, p99", "ms", percentile(&waits, 0.99));
    arena.clear(&queue).await
}

/// Four workers share a lane with a rate, and one of them is killed half-way.
async fn rate(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let queue = arena.queue();
    let seconds = if plan.quick { 10 } else { 60 };
    arena.tenure.put_lanes(&queue, Lanes::new().rate(RATE, Duration::from_secs(1))).await?;
    let mut workers: Vec<_> =
        (0..4).map(|_| arena.worker(&queue, 5, WorkerMode::Decode)).collect::<anyhow::Result<_>>()?;
    arena.workers_ready(&queue, 4).await?;
    sleep(Duration::from_secs(2)).await;
    fill(arena, &queue, usize::try_from((seconds + 10) * u64::from(RATE))?, 1).await?;
    sleep(Duration::from_secs(seconds / 2)).await;
    workers[0].kill();
    sleep(Duration::from_secs(seconds - seconds / 2)).await;
    let (in_time, most) = arena.tenure.store().bench_starts(&queue, u32::try_from(seconds)?).await?;
    drop(workers);
    values.add(format!("starts in {seconds} s of a lane with 10 a second"), "jobs", in_time);
    values.add("the most of them in any second", "jobs", most);
    arena.clear(&queue).await
}

/// One worker, few, and then many drain a queue with a limit, and a queue that is one lane of that limit. Of many
/// workers, most find the queue full: their claims must not wait for each other in vain.
async fn limited(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    for (workers, slots) in WORKERS_OF_LIMIT {
        let plural = if workers == 1 { "" } else { "s" };
        let (lane, limit) = (
            format!("drain, {workers} worker{plural}, one lane of {LIMIT}"),
            format!("drain, {workers} worker{plural}, max_running {LIMIT}"),
        );
        let mut rates = [0.0; 2];
        for (at, name) in [lane.clone(), limit].into_iter().enumerate() {
            let (queue, jobs) = (arena.queue(), plan.jobs / 2);
            if at == 0 {
                arena.tenure.put_lanes(&queue, Lanes::new().running(LIMIT)).await?;
            } else {
                arena.tenure.limit_queue(&queue, QueueLimits::new().max_running(LIMIT)).await?;
            }
            let started: Vec<_> = (0..workers)
                .map(|_| arena.worker(&queue, slots, WorkerMode::Decode))
                .collect::<anyhow::Result<_>>()?;
            arena.workers_ready(&queue, workers).await?;
            let before = arena.tenure.store().bench_counters().await?.rollbacks;
            fill(arena, &queue, jobs, usize::from(at == 0)).await?;
            rates[at] = drained(arena, &queue, jobs).await?;
            drop(started);
            // A session tells of its transactions once it has been idle for a second, or has ended.
            sleep(Duration::from_secs(3)).await;
            let rollbacks = arena.tenure.store().bench_counters().await?.rollbacks - before;
            let given_up = format!("{name}: transactions given up");
            let value = values.add(name, "jobs/s", rates[at]);
            if at == 1 {
                value.ratio = Some(Ratio::of(lane.clone(), rates[1] / rates[0]));
            }
            values.add(given_up, "", f64::from(i32::try_from(rollbacks)?));
        }
    }
    Ok(())
}

/// Enqueues into a free lane, with few and with very many held jobs in the table.
async fn held(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    let held = if plan.quick { 20_000 } else { 1_000_000 };
    let (blocked, queue) = (arena.queue(), arena.queue());
    for queue in [&blocked, &queue] {
        arena.tenure.put_lanes(queue, Lanes::new().running(RUNNING)).await?;
    }
    let mut medians = [0.0; 2];
    let name = format!("enqueue and release, {held} held, p50");
    for (at, name) in ["enqueue and release, few held, p50".to_owned(), name].into_iter().enumerate() {
        if at == 1 {
            arena.tenure.store().bench_hold(&blocked, held).await?;
        }
        let mut took = Vec::new();
        for n in 0..400 {
            // Of the full queue, too: its other lanes are free.
            let began = Instant::now();
            arena
                .tenure
                .enqueue(request(if n % 2 == 0 { &queue } else { &blocked }, &format!("free-{at}-{n}"), n))
                .await?;
            if n >= 100 {
                took.push(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        medians[at] = percentile(&took, 0.5);
        let value = values.add(name, "ms", medians[at]);
        if at == 1 {
            value.ratio = Some(Ratio::of("enqueue and release, few held, p50", medians[1] / medians[0]));
        }
    }
    arena.clear(&queue).await?;
    arena.clear(&blocked).await
}
