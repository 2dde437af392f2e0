//! What a client does when it, its gateway or its connection fails.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobRequest, Status};
use tokio::time::sleep;

use super::{
    Client,
    world::{QUEUE, SOON, World, events, shown, until_event},
};

/// How soon a worker goes on with another gateway than one that freezes.
const FOUND_WITHIN: Duration = Duration::from_secs(3);

/// Dies with a request on its way: before it has reached the gateway, or with an answer that does not come back.
pub async fn crash(client: Client) {
    // A gateway gives back what was not confirmed after 3 s: before the others miss two beats.
    let world = World::with(client, |config| config.timing.renew_every = Duration::from_secs(2)).await;
    let _gateways = (world.gateway(), world.gateway());
    let reports = || json!({"reports": 20, "every_ms": 50});
    // Its confirmation is not on its way together with the settle.
    let briefly = || json!({"ms": 200, "every_ms": 0});
    let steps = [
        (".take", false, "echo", json!(1), "", "(completed)"),
        (".take", true, "echo", json!(1), "status = 'processing'", "(released)\n(completed)"),
        (".report", false, "report", reports(), "", "(lost)\n(completed)"),
        (".report", true, "report", reports(), "stage = 'working'", "(lost)\n(completed)"),
        (".settle", false, "sleep", briefly(), "", "(lost)\n(completed)"),
        (".settle", true, "sleep", briefly(), "status = 'completed'", "(completed)"),
    ];
    for (request, passes, kind, payload, acted, ends) in steps {
        let (proxy, mut first) = world.ready_behind(1).await;
        let stop = || proxy.stop_at(request.as_bytes(), passes);
        // A take that is on its way would bring the job.
        if request == ".take" {
            stop();
            proxy.stopped().await;
        }
        let job = world.enqueue(kind, payload).await;
        if request != ".take" {
            stop();
            proxy.stopped().await;
        }
        if passes {
            let acted = format!("EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{job}' AND {acted})");
            world.bench.until_within(&acted, SOON).await;
        }
        first.kill().await;
        // As the kernel does when a process dies; the link would hide it from the server.
        proxy.break_off();
        let mut second = world.ready(1).await;
        let row = world.ended(job).await;
        assert_eq!(row.status, Status::Completed, "killed at{request}({passes})");
        assert_eq!(world.outcomes(job).await, ends, "killed at{request}({passes}): how the attempts ended");
        second.signal(Signal::TERM);
        second.wait().await;
    }
    world.bench.every_job_is_as_it_must_be().await;
}

pub async fn frozen(client: Client) {
    let world = World::with(client, |config| {
        config.timing.stale_after = Duration::from_secs(4);
        config.timing.renew_every = Duration::from_secs(1);
    })
    .await;
    let _gateway = world.gateway();
    let first = world.ready(8).await;
    let job = world.enqueue("sleep", json!({"ms": 30_000, "every_ms": 50})).await;
    until_event(&first, "began", job).await;
    first.signal(Signal::STOP);
    let second = world.ready(8).await;
    let again = until_event(&second, "began", job).await;
    // The request of the frozen one may have brought it the job once more: that attempt does not count.
    assert_eq!(again["attempt"], json!(2));
    first.signal(Signal::CONT);
    let stopped = until_event(&first, "stopped", job).await;
    assert_eq!((&stopped["why"], &stopped["token"]), (&json!("lost"), &json!(1)));
    until_event(&first, "lost", job).await;
    assert!(events(&first, "settled", job).is_empty(), "it settles nothing");
    world.bench.tenure.cancel(job).await.unwrap();
    assert_eq!(world.ended(job).await.status, Status::Cancelled);
    let ends = world.outcomes(job).await;
    assert_eq!(ends.replace("(released)\n", ""), "(lost)\n(cancelled)");
}

/// Frozen while its request waits for a job, until the gateway has given the job back.
pub async fn frozen_take(client: Client) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let worker = world.ready(8).await;
    world.until_requests("take", 1).await;
    worker.signal(Signal::STOP);
    let job = world.enqueue("echo", json!(1)).await;
    let is_back = format!(
        "EXISTS (SELECT FROM tenure.job_executions_all WHERE job_id = '{job}' AND outcome = 'released')"
    );
    world.bench.until_within(&is_back, SOON).await;
    worker.signal(Signal::CONT);
    let row = world.ended(job).await;
    assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
    let began: Vec<_> = events(&worker, "began", job)
        .iter()
        .map(|began| began["token"].as_i64().unwrap_or_default())
        .collect();
    let token: i64 =
        world.bench.value(&format!("SELECT fencing_token FROM tenure.all_jobs WHERE id = '{job}'")).await;
    assert_eq!(began, [token], "the tokens with which handlers began");
}

pub async fn lost_take(client: Client) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let (proxy, worker) = world.ready_behind(8).await;
    proxy.stop_at(b".take", true);
    proxy.stopped().await;
    let job = world.enqueue("echo", json!(1)).await;
    let is_claimed = format!("EXISTS (SELECT FROM tenure.jobs WHERE id = '{job}' AND status = 'processing')");
    world.bench.until_within(&is_claimed, SOON).await;
    let takes = world.requests("take").len();
    proxy.break_off();
    proxy.mend();
    world.until_requests("take", takes + 1).await;
    let all = world.all_requests();
    let reconciled = all.iter().any(|request| request.name == "beat" && !request.body["as_of"].is_null());
    assert!(reconciled, "no beat with as_of was sent after a lost answer to a take");
    let row = world.ended(job).await;
    assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
    world.bench.every_job_is_as_it_must_be().await;
}

pub async fn lost_settle(client: Client) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let (proxy, worker) = world.ready_behind(8).await;
    proxy.stop_at(b".settle", true);
    let job = world.enqueue("echo", json!(1)).await;
    proxy.stopped().await;
    let is_written =
        format!("EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{job}' AND status = 'completed')");
    world.bench.until_within(&is_written, SOON).await;
    proxy.break_off();
    proxy.mend();
    until_event(&worker, "settled", job).await;
    let row = world.ended(job).await;
    assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
    world.until_requests("settle", 2).await;
    assert_eq!(world.run("echo", json!(7)).await.output, Some(json!(7)));
}

pub async fn cut_off(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let (proxy, worker) = world.ready_behind(8).await;
    for breaks in [false, true] {
        let job = world.enqueue("sleep", json!({"ms": 2_000, "every_ms": 50})).await;
        until_event(&worker, "began", job).await;
        if breaks {
            proxy.break_off();
        } else {
            proxy.cut();
            sleep(Duration::from_millis(500)).await;
            proxy.mend();
        }
        // Its subject had no subscriber for a moment, and its beats go on: it keeps its job, or another attempt runs.
        let row = world.ended(job).await;
        assert_eq!(row.status, Status::Completed, "{}", worker.log());
        assert_eq!(world.run("echo", json!(7)).await.output, Some(json!(7)));
    }
    world.bench.every_job_is_as_it_must_be().await;
}

pub async fn gateway_killed(client: Client) {
    let world = World::patient(client).await;
    let mut first = world.gateway_process();
    let worker = world.ready(8).await;
    let mut jobs = Vec::new();
    for every in [0, 50] {
        jobs.push(world.enqueue("sleep", json!({"ms": 1_000, "every_ms": every})).await);
    }
    for job in &jobs {
        until_event(&worker, "began", *job).await;
    }
    first.kill().await;
    // Its handlers end meanwhile.
    sleep(Duration::from_secs(2)).await;
    let _second = world.gateway();
    for job in jobs {
        let row = world.ended(job).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
        assert_eq!(world.outcomes(job).await, "(completed)");
    }
    // It takes jobs again, as well.
    assert_eq!(world.run("echo", json!(7)).await.output, Some(json!(7)));
}

/// Requests to a frozen gateway get no answer, and are lost when it dies.
pub async fn gateway_frozen(client: Client) {
    let world = World::patient(client).await;
    let mut first = world.gateway_process();
    let worker = world.ready(64).await;
    assert_eq!(world.run("echo", json!(7)).await.output, Some(json!(7)));
    let mut jobs = Vec::new();
    for n in 0..40 {
        jobs.push(world.enqueue("sleep", json!({"ms": 150 * n, "every_ms": 50 * (n % 2)})).await);
    }
    // The last of them were taken, too, as they come in order.
    until_event(&worker, "began", jobs[39]).await;
    first.signal(Signal::STOP);
    sleep(Duration::from_secs(6)).await;
    first.kill().await;
    let _second = world.gateway();
    for job in jobs {
        world.ended(job).await;
        assert_eq!(events(&worker, "began", job).len(), 1, "handlers of a job whose worker lived");
    }
    let others = "tenure.job_executions_all WHERE outcome NOT IN ('completed', 'released')";
    assert_eq!(world.bench.count(others).await, 0, "attempts that ended in another way:\n{}", worker.log());
    world.bench.every_job_is_as_it_must_be().await;
}

/// One gateway of several freezes while jobs flow, each in its turn, so that every worker loses its own once.
pub async fn one_frozen(client: Client) {
    for (gateways, share) in [(2, 0.4), (3, 0.6)] {
        let world = World::patient(client.clone()).await;
        let all: Vec<_> = (0..gateways).map(|_| world.gateway_process()).collect();
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(world.ready(8).await);
        }
        let (tenure, pool) = (world.bench.tenure.clone(), world.bench.pool.clone());
        let flow = tokio::spawn(async move {
            loop {
                let all: i64 =
                    sqlx::query_scalar("SELECT count(*) FROM tenure.jobs").fetch_one(&pool).await.unwrap();
                // More than run within a moment in 24 slots: a worker that takes finds jobs.
                let more = 100 - usize::try_from(all).unwrap().min(100);
                let job = || JobRequest::new(QUEUE, "sleep", json!({"ms": 200, "every_ms": 0}));
                tenure.enqueue_many((0..more).map(|_| job())).await.unwrap();
                sleep(Duration::from_millis(100)).await;
            }
        });
        world.jobs_a_second().await;
        for gateway in &all {
            let (mut rates, mut goes_on) = (Vec::new(), false);
            // A busy machine may slow down for other reasons: the first time, or both times after it.
            for time in 0..3 {
                let before = world.jobs_a_second().await;
                gateway.signal(Signal::STOP);
                sleep(FOUND_WITHIN).await;
                let after = world.jobs_a_second().await;
                gateway.signal(Signal::CONT);
                sleep(Duration::from_secs(1)).await;
                rates.push(format!("{after:.0} of {before:.0}"));
                goes_on = after >= share * before;
                if goes_on == (time == 0) {
                    break;
                }
            }
            eprintln!("jobs/s 3 s after one of {gateways} gateways froze: {}", rates.join(", "));
            assert!(goes_on, "jobs/s 3 s after one of {gateways} gateways froze: {}", rates.join(", "));
        }
        flow.abort();
        world.bench.until_within("NOT EXISTS (SELECT FROM tenure.jobs)", SOON * 3).await;
        // What a gateway does that wakes is about claims of the past.
        let ended = "tenure.job_executions_all WHERE outcome NOT IN ('completed', 'released')";
        assert_eq!(world.bench.count(ended).await, 0, "attempts that ended in another way");
        let mut began: Vec<_> = (workers.iter().flat_map(shown))
            .filter(|line| line["event"] == json!("began"))
            .map(|line| line["job"].to_string())
            .collect();
        let handlers = began.len();
        began.sort_unstable();
        began.dedup();
        assert_eq!(handlers, began.len(), "handlers that began, and jobs");
        world.bench.every_job_is_as_it_must_be().await;
    }
}
