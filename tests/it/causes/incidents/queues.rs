//! Incidents of queues: those that are set to hold jobs back, a full stream, and jobs that fail.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tenure::{JobRequest, queues::QueueLimits};

use super::{Scene, job, stage};
use crate::harness::{Bench, bench_with};

/// A job keeps its slot while a busy machine lets its worker stand for seconds.
async fn held() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(60);
        config.timing.ack_wait = Duration::from_secs(90);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_a_limited_and_a_laned_queue_are_named_at_each_place() {
    let [paused, limited, laned, plain] = [held().await, held().await, held().await, held().await];
    paused.tenure.pause_queue("q").await.unwrap();
    limited.tenure.limit_queue("q", QueueLimits::new().max_running(1)).await.unwrap();
    for bench in [&paused, &limited] {
        job(bench).await;
    }
    laned.tenure.put_lanes("q", tenure::lanes::Lanes::new().running(1)).await.unwrap();
    let of_lane = || JobRequest::new("q", "k", json!(1)).lane("org-7");
    for bench in [&laned, &plain] {
        bench.tenure.enqueue(of_lane()).await.unwrap();
    }
    let work = ["work", "q", "--exec", "sleep 100", "--keepalive"];
    let mut scenes = [
        ("a queue is paused", Scene::new(&paused, &work, &[])),
        ("a queue runs as many jobs as it may", Scene::new(&limited, &work, &[])),
        ("a lane runs as many jobs as it may", Scene::new(&laned, &work, &[])),
        ("a job names a lane, and its queue has none", Scene::new(&plain, &work, &[])),
    ];
    limited.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    scenes[1].1.job = Some(job(&limited).await);
    laned.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    scenes[2].1.job = Some(laned.tenure.enqueue(of_lane()).await.unwrap().id);
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_and_jobs_that_fail_are_named_at_each_place() {
    let [full, failing] = [stage().await, stage().await];
    full.tenure.setup(&["q".into()]).await.unwrap();
    let mut stream = full.js.get_stream(&full.config.stream).await.unwrap().cached_info().config.clone();
    stream.max_bytes = 1;
    full.js.update_stream(stream).await.unwrap();
    for bench in [&full, &failing, &failing, &failing] {
        bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(1)).await.unwrap();
    }
    let fails = ["work", "q", "--exec", "echo no such customer >&2; exit 1"];
    let scenes = [
        ("the stream is full", Scene::new(&full, &["work", "q", "--exec", "true"], &[])),
        ("jobs fail for good", Scene::new(&failing, &fails, &[])),
    ];
    join_all(scenes.iter().map(|(name, scene)| scene.shows(name))).await;
}
