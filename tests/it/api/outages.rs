//! The API while a server is away: what was accepted is there, and what was not can be sent again.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{Api, JSON, worker};
use crate::harness::{Proxy, bench, bench_with_servers};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_accepted_without_nats_and_refused_without_postgres_and_none_is_lost() {
    let mut bench = bench_with_servers(|_| {}).await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let before = api.enqueue(json!({ "with": "before" })).await;
    bench.own.as_mut().unwrap().nats.kill();
    let sent_at = Instant::now();
    let meanwhile = api.enqueue(json!({ "with": "meanwhile" })).await;
    assert!(sent_at.elapsed() < Duration::from_secs(3), "{:?}", sent_at.elapsed());
    let cancelled = api.enqueue(json!({ "with": "cancelled" })).await;
    let answer = api.post(&format!("/jobs/{cancelled}/cancel"), &json!({})).await;
    assert_eq!(answer.json["result"], "cancelled");
    bench.own.as_mut().unwrap().nats.restart().unwrap();

    bench.own.as_mut().unwrap().postgres.kill();
    let body = json!({ "queue": "q", "kind": "k", "payload": { "with": "after" } }).to_string();
    let key = ("Idempotency-Key", "of-the-outage");
    let refused = api.ask("POST", "/jobs", &[JSON, key], &body).await;
    assert_eq!((refused.status(), refused.code()), (503, "unavailable"), "{}", refused.answer.body);
    assert_eq!(refused.answer.header("retry-after"), Some("5"));
    assert!(refused.said().contains("send it again"), "{}", refused.said());
    let without = api.ask("POST", "/jobs", &[JSON], &body).await;
    assert!(without.status() == 503, "{}", without.answer.body);
    for (method, path) in [
        ("GET", "/jobs".to_owned()),
        ("GET", format!("/jobs/{before}")),
        ("GET", format!("/jobs/{before}/wait")),
        ("GET", format!("/jobs/{before}/watch")),
        ("POST", format!("/jobs/{before}/cancel")),
        ("POST", format!("/jobs/{before}/retry")),
    ] {
        let refused = api.ask(method, &path, &[JSON], "").await;
        assert_eq!(
            (refused.status(), refused.code()),
            (503, "unavailable"),
            "{path}: {}",
            refused.answer.body
        );
        assert_eq!(refused.answer.header("retry-after"), Some("5"));
    }
    bench.own.as_mut().unwrap().postgres.restart().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let after = loop {
        let repeated = api.ask("POST", "/jobs", &[JSON, key], &body).await;
        if repeated.status() != 503 {
            assert!([200, 201].contains(&repeated.status()), "{}", repeated.answer.body);
            break repeated.id();
        }
        assert!(Instant::now() < deadline, "{}", repeated.answer.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let working = worker(&bench);
    for (job, output) in [(&before, "before"), (&meanwhile, "meanwhile"), (&after, "after")] {
        let done = api.get(&format!("/jobs/{job}/wait?timeout=30s")).await;
        assert_eq!((done.status(), &done.json["output"]), (200, &json!(output)), "{}", done.answer.body);
    }
    let after = "tenure.all_jobs WHERE payload ->> 'with' = 'after'";
    assert_eq!(bench.count(&format!("{after} AND status = 'completed'")).await, 1);

    working.stop().await;
    // The server reads, too: Postgres may end either of the two.
    while sqlx::query("DROP SCHEMA tenure CASCADE").execute(&bench.pool).await.is_err() {}
    let missing = api.get("/jobs").await;
    assert_eq!((missing.status(), missing.code()), (503, "not_migrated"), "{}", missing.answer.body);
    assert!(missing.said().contains("tenure migrate"), "{}", missing.said());
    api.is_as_documented().await;
}

/// The answer to the insert is lost: the job is there, and the same request again finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_was_lost_may_be_sent_again() {
    let bench = bench().await;
    let link = Proxy::to_url(&bench.config.database_url).await;
    let url = link.of(&bench.config.database_url);
    let api = Api::start(&bench, &["--actions"], &[("DATABASE_URL", &url)]).await;
    api.enqueue(json!("warm")).await;
    let body = json!({ "queue": "q", "kind": "k", "payload": "lost-and-found" }).to_string();
    let key = ("Idempotency-Key", "lost");
    link.lose_answer_to(b"lost-and-found");
    let first = api.ask("POST", "/jobs", &[JSON, key], &body).await;
    assert_eq!(link.lost(), 1, "no answer was lost");
    if first.status() == 503 {
        assert!(first.said().contains("the same key"), "{}", first.said());
    }
    let again = api.ask("POST", "/jobs", &[JSON, key], &body).await;
    assert_eq!(again.status(), 200, "{}", again.answer.body);
    assert_eq!(bench.count("tenure.jobs WHERE payload = '\"lost-and-found\"'").await, 1);
    // Without a key, the answer says that the job may be there.
    let body = body.replace("lost-and-found", "lost-again");
    link.lose_answer_to(b"lost-again");
    let first = api.ask("POST", "/jobs", &[JSON], &body).await;
    assert_eq!(link.lost(), 2, "no answer was lost");
    assert!(first.status() == 201 || first.said().contains("may be enqueued"), "{}", first.said());
    api.is_as_documented().await;
}
