//! How a client stops.

use rustix::process::Signal;
use serde_json::json;
use tenure::Status;

use super::{
    Client,
    world::{SOON, World, ask_to_stop, events, stopped, until_event},
};

const ROWS: &str = "tenure.workers WHERE worker_id LIKE 'q/%'";

pub async fn stop(client: Client) {
    Box::pin(stops(client, false)).await;
}

pub async fn drain(client: Client) {
    Box::pin(stops(client, true)).await;
}

async fn stops(client: Client, drains: bool) {
    let world = World::patient(client).await;
    world.watch().await;
    let _gateway = world.gateway();
    let mut worker = world.ready(8).await;
    let job = world.enqueue("sleep", json!({"ms": 1_500, "every_ms": 50})).await;
    until_event(&worker, "began", job).await;
    if drains {
        let name: String = world.bench.value(&format!("SELECT worker_id FROM {ROWS}")).await;
        world.bench.tenure.drain_worker(&name).await.unwrap();
    } else {
        ask_to_stop(&worker);
    }
    let waits = world.enqueue("echo", json!(1)).await;
    stopped(&mut worker).await;
    // The running job has ended, and the row is gone.
    let row = world.bench.tenure.job(job).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempt), (Status::Completed, 1), "{}", worker.log());
    assert_eq!(world.bench.count(ROWS).await, 0, "rows of workers that have stopped");
    let goodbyes = world.requests("goodbye").len();
    assert_eq!(goodbyes, 1, "goodbyes that were said");
    let last = world.all_requests().pop().map(|request| request.name);
    assert_eq!(last.as_deref(), Some("goodbye"), "the last request");
    let next = world.ready(8).await;
    assert_eq!(world.ended(waits).await.attempt, 1, "{}", next.log());
}

pub async fn grace(client: Client) {
    let world = World::patient(client).await;
    let _gateway = world.gateway();
    let mut worker = world.ready_with(8, &[("TENURE_SHUTDOWN_GRACE_MS", "500")]).await;
    let job = world.enqueue("sleep", json!({"ms": 60_000, "every_ms": 50})).await;
    until_event(&worker, "began", job).await;
    ask_to_stop(&worker);
    let told = until_event(&worker, "stopped", job).await;
    assert_eq!(told["why"], json!("shutdown"));
    stopped(&mut worker).await;
    assert_eq!(world.outcomes(job).await, "(released)", "how the attempt ended");
    assert_eq!(world.bench.count(ROWS).await, 0, "rows of workers that have stopped");
    let second = world.ready(8).await;
    assert_eq!(
        until_event(&second, "began", job).await["attempt"],
        json!(1),
        "a released attempt does not count"
    );
}

pub async fn rolling(client: Client) {
    let world = World::patient(client).await;
    let _gateways = (world.gateway(), world.gateway());
    let mut workers = vec![world.ready(8).await];
    let mut jobs = Vec::new();
    for n in 0..4 {
        for _ in 0..60 {
            jobs.push(world.enqueue("sleep", json!({"ms": 100, "every_ms": 0})).await);
        }
        // In the middle of many jobs, one worker comes and the other goes.
        let first = jobs[60 * n];
        world.ended(first).await;
        let next = world.ready(8).await;
        let mut old = workers.pop().unwrap();
        ask_to_stop(&old);
        stopped(&mut old).await;
        assert!(events(&old, "stopped", first).is_empty());
        workers.push(next);
    }
    for job in &jobs {
        let row = world.ended(*job).await;
        assert_eq!((row.status, row.attempt), (Status::Completed, 1), "how a job ended in a rolling update");
    }
    let others =
        world.bench.count("tenure.job_executions_all WHERE outcome NOT IN ('completed', 'released')").await;
    assert_eq!(others, 0, "attempts that were lost");
    workers[0].signal(Signal::KILL);
    world.bench.until_within(&format!("NOT EXISTS (SELECT FROM {ROWS})"), SOON).await;
}
