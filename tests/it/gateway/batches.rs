//! Batches of the client for Python: the same promises as those of `tests/it/handle_batch.rs`.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::{JobRequest, Status, rows::JobRow};

use crate::kit::{
    Client,
    world::{QUEUE, World},
};

async fn world() -> World {
    World::patient(Client::python("odd", "../tests/it/clients/odd.py")).await
}

/// Eight jobs, the fifth of which `does` this.
async fn enqueue(world: &World, kind: &str, does: &str) -> Vec<tenure::JobId> {
    let jobs = (0..8).map(|n| {
        let payload = json!({ "n": n, "does": if n == 4 { does } else { "" } });
        JobRequest::new(QUEUE, kind, payload).max_attempts(1)
    });
    world.bench.tenure.enqueue_many(jobs).await.unwrap().into_iter().map(|job| job.id).collect()
}

async fn ended(world: &World, jobs: &[tenure::JobId]) -> Vec<JobRow> {
    let mut rows = Vec::new();
    for job in jobs {
        rows.push(world.ended(*job).await);
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poison_among_eight_aborts_a_few_processes_and_the_others_complete() {
    let world = world().await;
    let _gateway = world.gateway();
    let jobs = enqueue(&world, "batch", "abort").await;
    let (mut deaths, deadline) = (0, Instant::now() + Duration::from_secs(120));
    let mut worker = world.ready(8).await;
    while world.bench.count("tenure.jobs").await > 0 {
        assert!(Instant::now() < deadline, "{deaths} deaths, and jobs are left:\n{}", worker.log());
        if let Ok(code) = tokio::time::timeout(Duration::from_millis(100), worker.wait()).await {
            assert_eq!(code, None, "aborted:\n{}", worker.log());
            deaths += 1;
            worker = world.ready(8).await;
        }
    }
    assert!(deaths <= 4, "eight, four, two, and alone: {deaths}");
    let rows = ended(&world, &jobs).await;
    let completed = rows.iter().filter(|row| row.status == Status::Completed && row.attempt == 1);
    assert_eq!(completed.count(), 7);
    assert_eq!(rows[4].status, Status::Failed);
    assert_eq!(world.bench.count("tenure.dead_letter_jobs WHERE category = 'lost'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_raises_comes_back_in_halves_and_every_item_ends_by_its_own_output() {
    let world = world().await;
    let _gateway = world.gateway();
    let worker = world.ready(8).await;
    for kind in ["batch", "batch_sync"] {
        let rows = ended(&world, &enqueue(&world, kind, "raise").await).await;
        let calls = |row: &JobRow| row.output.as_ref().map(|output| output["calls"].clone());
        assert_eq!(rows.iter().filter(|row| row.status == Status::Completed).count(), 7, "{}", worker.log());
        let said = rows[4].last_error.as_deref().unwrap();
        assert!(said.contains("ValueError: all of them"), "{kind}: {said}");
        // No step was done again in the halves.
        let first: std::collections::HashSet<_> = rows
            .iter()
            .filter_map(|row| row.output.as_ref())
            .map(|output| output["first"].to_string())
            .collect();
        assert_eq!(first.len(), 1, "{kind}: {first:?}");
        // The jobs of one half have ended by one call.
        assert_eq!(calls(&rows[0]), calls(&rows[1]), "{kind}");

        let rows = ended(&world, &enqueue(&world, kind, "fail").await).await;
        assert_eq!(rows[4].last_error.as_deref(), Some("too long"), "{kind}");
        for (n, row) in rows.iter().enumerate().filter(|(n, _)| *n != 4) {
            assert_eq!(
                (row.status, &row.output.as_ref().unwrap()["n"]),
                (Status::Completed, &json!(n)),
                "{kind}"
            );
        }
    }
    let job = world.enqueue("batch_sync", json!({ "does": "short" })).await;
    let said = world.ended(job).await.last_error.unwrap();
    assert!(said.contains("a list with an output for each of its 1 jobs, not 0 outputs"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_of_a_batch_is_cancelled_and_the_others_complete() {
    let world = world().await;
    let _gateway = world.gateway();
    let worker = world.ready(8).await;
    for kind in ["batch", "batch_sync"] {
        let jobs = enqueue(&world, kind, "wait").await;
        world.bench.until("(SELECT count(*) = 8 FROM tenure.jobs WHERE stage = 'together')").await;
        world.bench.tenure.cancel(jobs[0]).await.unwrap();
        let rows = ended(&world, &jobs).await;
        let statuses: Vec<_> = rows.iter().map(|row| row.status).collect();
        assert_eq!(statuses[0], Status::Cancelled, "{kind}: {}", worker.log());
        assert!(statuses[1..].iter().all(|status| *status == Status::Completed), "{kind}: {statuses:?}");
        assert_eq!(rows[4].output, Some(json!("saw the cancellation")), "{kind}");
    }
}
