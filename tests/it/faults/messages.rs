//! Messages that come twice, late, in a different order, or for jobs that have ended.

use std::time::Duration;

use async_nats::HeaderMap;
use rand::seq::SliceRandom;
use tenure::{JobId, JobRequest};

use super::{all_done_once, enqueue, worker};
use crate::harness::{Bench, Running, bench};

/// Publishes a ticket again, as any client could.
async fn ticket(bench: &Bench, id: JobId, dispatch: i32) {
    let mut headers = HeaderMap::new();
    headers.insert("Tenure-Job-Id", id.to_string());
    let body = format!(r#"{{"job_id": "{id}", "dispatch": {dispatch}, "cleared": false}}"#);
    let subject = format!("{}.q.k", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, body.into()).await.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_that_come_five_times_and_in_any_order_run_their_jobs_once() {
    let bench = bench().await;
    let ids = enqueue(&bench, 40, 5).await;
    let mut again: Vec<_> = ids.iter().flat_map(|id| (0..5).map(|dispatch| (*id, dispatch))).collect();
    again.shuffle(&mut rand::rng());
    let workers = [Running::start(worker(&bench.tenure, 10)), Running::start(worker(&bench.tenure, 10))];
    for (id, dispatch) in again {
        ticket(&bench, id, dispatch).await;
    }
    all_done_once(&bench, 40).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 40);
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_for_jobs_that_have_ended_run_nothing_and_are_acknowledged() {
    let bench = bench().await;
    let ids = enqueue(&bench, 2, 1).await;
    let cancelled = bench
        .tenure
        .enqueue(JobRequest::new("q", "k", serde_json::json!({})).delay(Duration::from_secs(3_600)))
        .await
        .unwrap()
        .id;
    bench.tenure.cancel(cancelled).await.unwrap();
    let dead = bench
        .tenure
        .enqueue(JobRequest::new("q", "nobody", serde_json::json!({})).delay(Duration::from_secs(3_600)))
        .await
        .unwrap()
        .id;
    bench
        .execute(&format!(
            "WITH gone AS (DELETE FROM tenure.jobs WHERE id = '{dead}' RETURNING *)
             INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                    created_at, scheduled_at, died_at, last_error, category, execution_history)
             SELECT id, queue, 'k', payload, 0, 5, 0, created_at, scheduled_at, now(), 'e', 'permanent', '[]' FROM gone"
        ))
        .await;
    let working = Running::start(worker(&bench.tenure, 4));
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;
    // Dispatches of all times: one never published, the only one, and one of the future.
    for id in [ids[0], ids[1], cancelled, dead] {
        for dispatch in [0, 1, 7] {
            ticket(&bench, id, dispatch).await;
        }
    }
    all_done_once_but(&bench, dead).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 2);
    assert_eq!(bench.count("tenure.job_history WHERE status = 'cancelled'").await, 1);
    working.stop().await;
}

async fn all_done_once_but(bench: &Bench, dead: JobId) {
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    assert_eq!(bench.count(&format!("tenure.dead_letter_jobs WHERE id = '{dead}'")).await, 1);
    assert_eq!(bench.count("public.effects").await, 2);
}
