//! A kind in quarantine: a worker behind a gateway gets no job of it but the one to try.

use std::time::Duration;

use serde_json::json;
use tenure::kinds::Quarantine;

use super::{Foreign, enqueue, gateway, id};
use crate::harness::bench;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_a_gateway_gets_no_job_of_a_kind_in_quarantine_but_the_one_to_try() {
    let bench = bench().await;
    let rule = Quarantine::when_failed(0.3).probe_every(Duration::from_secs(3_600));
    bench.tenure.put_quarantine("charge", rule).await.unwrap();
    let probe_at = async |at: &str| {
        let sql = format!(
            "UPDATE tenure.quarantines SET began_at = now(), ended = 10, failed = 9, next_probe_at = {at}, probe_job = NULL"
        );
        bench.execute(&sql).await;
    };
    probe_at("now() + interval '1 hour'").await;
    let gateway = gateway(&bench);
    let worker = Foreign::start(&bench, "one").await;
    let snoozed = "tenure.job_executions WHERE outcome = 'snoozed' AND error LIKE 'the kind is in quarantine: 9 of 10 %'";
    // It hands jobs out until it has heard of the quarantine.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    for n in 0.. {
        assert!(std::time::Instant::now() < until, "no job waits");
        enqueue(&bench, "charge", json!(n)).await;
        for job in worker.take(1, 300).await {
            worker.settle(&job, json!({"outcome": "complete"})).await;
        }
        if bench.count(snoozed).await > 0 {
            break;
        }
    }
    let waiting = enqueue(&bench, "charge", json!("waits")).await;
    assert!(worker.take(1, 1_000).await.is_empty());
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.jobs WHERE id = '{waiting}' AND scheduled_at > now() + '5 minutes')"
        ))
        .await;

    probe_at("now()").await;
    // A waiting job is called.
    let probe = worker.one().await;
    bench.until(&format!("EXISTS (SELECT FROM tenure.quarantines WHERE probe_job = '{}')", id(&probe))).await;
    assert!(worker.take(1, 1_000).await.is_empty(), "one at a time");
    worker.settle(&probe, json!({"outcome": "complete"})).await;
    bench
        .until("EXISTS (SELECT FROM tenure.quarantines WHERE began_at IS NULL AND last_probe = 'completed')")
        .await;
    let left = bench.count("tenure.jobs").await;
    for _ in 0..left {
        let job = worker.one().await;
        worker.settle(&job, json!({"outcome": "complete"})).await;
    }
    assert_eq!(bench.count("tenure.jobs").await, 0);
    gateway.stop().await;
    bench.every_job_is_as_it_must_be().await;
}
