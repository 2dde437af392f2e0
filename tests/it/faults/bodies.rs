//! Payloads: any JSON comes back equal or is refused with a reason, and nothing is half done.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config as Proptest, TestRunner},
};
use serde_json::{Value, json};
use tenure::{EnqueueError, JobRequest};

use crate::harness::bench;

/// Any JSON, with characters that are hard for databases.
fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        ".{0,20}",
        Just("\0".to_owned()),
        Just("\u{ffff}\u{10ffff}\u{feff}".to_owned()),
        Just("\\u0000 '; DROP TABLE tenure.jobs; -- {}$1".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| if number.is_finite() { json!(number) } else { json!(0) }),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Equal as JSON: 1e3 and 1000 are one number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}

fn holds_nul(value: &Value) -> bool {
    value.to_string().replace("\\\\", "").contains("\\u0000")
}

#[tokio::test(flavor = "multi_thread")]
async fn any_payload_comes_back_equal_or_is_refused_with_a_reason() {
    let bench = bench().await;
    let mut runner = TestRunner::new(Proptest::default());
    let payloads: Vec<Value> =
        (0..400).map(|_| any_json().new_tree(&mut runner).unwrap().current()).collect();
    let mut stored = 0;
    for payload in &payloads {
        match bench.tenure.enqueue(JobRequest::new("q", "k", payload.clone())).await {
            Ok(enqueued) => {
                let back: Value = bench
                    .value(&format!("SELECT payload FROM tenure.jobs WHERE id = '{}'", enqueued.id))
                    .await;
                assert!(same(&back, payload), "{back} is not {payload}");
                stored += 1;
            }
            Err(EnqueueError::Payload(why)) => {
                assert!(holds_nul(payload) && why.contains("u0000"), "{payload}: {why}");
            }
            Err(error) => panic!("{payload}: {error}"),
        }
    }
    assert!(stored > 100 && stored < 400, "{stored}: both were tried");
    assert_eq!(bench.count("tenure.jobs").await, stored);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_no_database_can_hold_is_refused_by_producers_and_workers_alike() {
    let bench = bench().await;
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let bad = [
        ("deep", deep(10_000)),
        ("half a pair", r#""\ud800""#.to_owned()),
        ("a number without end", format!("1e{}", "9".repeat(10))),
        ("a large number", "1e400000".to_owned()),
        ("two megabytes", format!("\"{}\"", "x".repeat(2 << 20))),
        ("nothing", String::new()),
        ("two values", "1 2".to_owned()),
        ("NUL", r#"{"a":"\u0000"}"#.to_owned()),
    ];
    for (what, text) in &bad {
        let refused = bench.tenure.enqueue(JobRequest::from_json("q", "k", text.clone())).await;
        let error = refused.expect_err(what);
        let typed = matches!(error, EnqueueError::Payload(_) | EnqueueError::TooLarge { .. });
        assert!(typed, "{what}: {error:?}");
    }
    assert_eq!(bench.count("tenure.jobs").await, 0);
}
