//! Requests that are wrong: each gets its reason, and changes nothing.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Api, DOCUMENT, JSON};
use crate::harness::bench;

/// Arrays in arrays.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_wrong_is_told_what_it_must_be() {
    let bench = bench().await;
    let most = ("TENURE_PAYLOAD_BYTES_MAX", "1000");
    let api = Api::start(&bench, &["--actions"], &[most]).await;
    let (large, deep) = ("x".repeat(1_500), nested(5_000));
    let huge = format!("\"{}\"", "x".repeat(3_000_000));
    let job = |rest: &str| format!(r#"{{"queue": "q", "kind": "k", "payload": 1{rest}}}"#);
    let with_payload = |payload: &str| format!(r#"{{"queue": "q", "kind": "k", "payload": {payload}}}"#);
    for (body, status, part) in [
        (String::new(), 400, "not JSON"),
        ("{".into(), 400, "not JSON"),
        ("\u{7f}".into(), 400, "not JSON"),
        ("[]".into(), 422, "no object"),
        (r#"["q", "k", 1, null, null, null, null]"#.into(), 422, "no object"),
        ("null".into(), 422, "no object"),
        ("{}".into(), 422, "missing field `queue`"),
        (r#"{"queue": "q", "kind": "k"}"#.into(), 422, "missing field `payload`"),
        (job(r#", "max_attemps": 3"#), 422, "unknown field `max_attemps`, expected one of"),
        (job(r#", "queue": "r""#), 422, "duplicate field `queue`"),
        (job(r#", "delay": "soon""#), 422, "a duration such as"),
        (job(r#", "delay": 5"#), 422, "expected a string"),
        (job(r#", "delay": "99999d""#), 422, "at most ten years"),
        (job(r#", "run_at": "tomorrow""#), 422, "invalid"),
        (job(r#", "run_at": "2030-01-01T00:00:00Z", "delay": "1s""#), 422, "leave one out"),
        (job(r#", "max_attempts": 0"#), 422, "1 to 1000"),
        (job(r#", "max_attempts": -1"#), 422, "invalid value"),
        (job(r#", "unique_key": """#), 422, "1 to 512 bytes"),
        (job(r#", "unique_key": "a\u0000b""#), 422, "control characters"),
        (job("").replace("\"q\"", "\"q.r\""), 422, "1 to 64 of"),
        (job("").replace("\"k\"", "\"\""), 422, "joined by dots"),
        (with_payload(r#""a\u0000b""#), 422, "which Postgres cannot store"),
        (with_payload(&deep), 413, "at most 1000 are allowed"),
        (with_payload(&nested(400)), 422, "recursion"),
        (with_payload(&format!("\"{large}\"")), 413, "1502 bytes, but at most 1000"),
        (with_payload(&huge), 413, "TENURE_PAYLOAD_BYTES_MAX"),
    ] {
        let refused = api.ask("POST", "/jobs", &[JSON], &body).await;
        let shown = &body[..body.len().min(200)];
        assert_eq!(refused.status(), status, "{shown}: {}", refused.answer.body);
        assert!(refused.said().contains(part), "{shown}: {}", refused.said());
    }
    // The document has the fields that there are.
    let said = api.ask("POST", "/jobs", &[JSON], &job(r#", "x": 3"#)).await.said();
    let fields: BTreeSet<_> =
        said.split("expected one of").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let known = document["components"]["schemas"]["NewJob"]["properties"].as_object().unwrap();
    assert_eq!(fields, known.keys().map(String::as_str).collect());

    // Fine: absent values may be null, and a content type may have parameters.
    let nulls = job(r#", "delay": null, "run_at": null, "max_attempts": null, "unique_key": null"#);
    let of_kind = ("Content-Type", "Application/JSON; charset=utf-8");
    assert_eq!(api.ask("POST", "/jobs", &[of_kind], &nulls).await.status(), 201);
    for of_kind in
        [&[][..], &[("Content-Type", "text/plain")], &[("Content-Type", "application/x-www-form-urlencoded")]]
    {
        let refused = api.ask("POST", "/jobs", of_kind, &job("")).await;
        assert_eq!((refused.status(), refused.code()), (415, "unsupported_media_type"), "{of_kind:?}");
    }
    assert_eq!(bench.count("tenure.jobs").await, 1, "a refused request enqueued a job");
    api.is_as_documented().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_or_a_method_that_is_wrong_is_told_what_there_is() {
    let bench = bench().await;
    let api = Api::start(&bench, &["--actions"], &[]).await;
    let unknown = Uuid::now_v7();
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    for (method, path, status, code) in [
        ("GET", "/jobs/17", 400, "bad_request"),
        ("GET", "/jobs/%ff", 400, "bad_request"),
        ("GET", "/jobs/17/wait", 400, "bad_request"),
        ("GET", "/jobs/17/watch", 400, "bad_request"),
        ("POST", "/jobs/17/cancel", 400, "bad_request"),
        ("GET", &format!("/jobs/{unknown}"), 404, "not_found"),
        ("GET", &format!("/jobs/{unknown}/wait"), 404, "not_found"),
        ("GET", &format!("/jobs/{unknown}/watch"), 404, "not_found"),
        ("POST", &format!("/jobs/{unknown}/cancel"), 404, "not_found"),
        ("POST", &format!("/jobs/{unknown}/retry"), 404, "not_found"),
        ("GET", &format!("/jobs/{unknown}?x=1"), 422, "invalid"),
        ("GET", &format!("/jobs/{unknown}/watch?x=1"), 422, "invalid"),
        ("POST", "/jobs?queue=q", 422, "invalid"),
        ("GET", &format!("/jobs/{unknown}/wait?timeout=61s"), 422, "invalid"),
        ("GET", &format!("/jobs/{unknown}/wait?timeout=30"), 422, "invalid"),
        ("GET", &format!("/jobs/{unknown}/nothing"), 404, "no_such_route"),
        ("GET", "/jobs/", 404, "no_such_route"),
        ("GET", "/queues", 404, "no_such_route"),
        ("POST", "/api/v2/jobs", 404, "no_such_route"),
        ("GET", "/api", 404, "no_such_route"),
        ("GET", "/api/", 404, "no_such_route"),
    ] {
        let refused = api.ask(method, path, &[JSON], "").await;
        assert_eq!(
            (refused.status(), refused.code()),
            (status, code),
            "{method} {path}: {}",
            refused.answer.body
        );
    }
    let refused = api.post(&format!("/jobs/{unknown}/cancel"), &json!([])).await;
    assert_eq!(refused.status(), 422, "{}", refused.answer.body);
    let refused = api.post(&format!("/jobs/{unknown}/cancel"), &json!({ "force": true })).await;
    assert!(
        refused.status() == 422 && refused.said().contains("unknown field `force`"),
        "{}",
        refused.said()
    );
    let refused = api.ask("POST", &format!("/jobs/{unknown}/retry"), &[JSON], &" ".repeat(3_000)).await;
    assert_eq!(refused.status(), 413);

    // Every other method of every address is refused, and the header says which are not.
    for (path, item) in document["paths"].as_object().unwrap() {
        let own: BTreeSet<_> = item
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "parameters")
            .map(|key| key.to_uppercase())
            .collect();
        let path = path.replace("{id}", &unknown.to_string());
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            if own.contains(method) {
                continue;
            }
            let refused = api.ask(method, &path, &[JSON], "").await;
            assert_eq!((refused.status(), refused.code()), (405, "method_not_allowed"), "{method} {path}");
            let allowed = refused.answer.header("allow").unwrap();
            let allowed = allowed.split(',').map(str::trim).filter(|of| *of != "HEAD").map(str::to_owned);
            assert_eq!(allowed.collect::<BTreeSet<_>>(), own, "{path}");
        }
    }
    let head = api.dashboard.ask("HEAD", "/api/v1/jobs", &[], "").await;
    assert!(head.status == 200 && head.body.is_empty());
    assert_eq!(bench.count("tenure.jobs").await, 0, "a refused request enqueued a job");
    api.is_as_documented().await;
}
