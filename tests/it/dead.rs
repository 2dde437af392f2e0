//! Dead letters: found, counted, redriven and purged; nothing of them is lost before.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{
    JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Status, Worker, jobs::RetryOutcome,
    rows::DeadFilter,
};

use crate::harness::{Bench, Running, bench, statement};

/// A worker whose handlers obey the payload; a token above 1 completes.
fn worker(bench: &Bench) -> Running {
    let handler = |payload: Value, ctx: JobContext| async move {
        if ctx.token().0 > 1 {
            let kept: Option<u32> = ctx.checkpoint();
            return Outcome::done(json!({"attempt": ctx.attempt(), "checkpoint": kept, "payload": payload}));
        }
        ctx.save_checkpoint(&40).await?;
        Err(if payload["how"] == json!("permanent") {
            JobError::permanent("no such customer")
        } else {
            JobError::msg("try again")
        })
    };
    Running::start(Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 4))
}

async fn dead(bench: &Bench, kind: &str, how: &str) -> JobId {
    let payload = json!({"how": how, "large": 12_345_678_901_234_567_u64, "text": "ü\n\"", "none": null});
    let request = JobRequest::new("q", kind, payload).max_attempts(1).unique_key(format!("{kind}-{how}"));
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    assert_eq!(bench.until_finished(id).await.status, Status::Failed);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_job_keeps_its_id_and_its_token_goes_on() {
    let bench = bench().await;
    let worker = worker(&bench);
    let id = dead(&bench, "k", "permanent").await;
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!((letter.category.as_str(), letter.last_error.as_str()), ("permanent", "no such customer"));
    assert_eq!((letter.attempt, letter.fencing_token.0, letter.refused), (1, 1, false));
    let payload =
        json!({"how": "permanent", "large": 12_345_678_901_234_567_u64, "text": "ü\n\"", "none": null});
    let kept: Value = serde_json::from_str(letter.payload.unwrap().get()).unwrap();
    assert_eq!(kept, payload);
    assert_eq!(letter.checkpoint.unwrap().get(), "40");
    let history = letter.execution_history.unwrap();
    assert_eq!(history.as_array().unwrap().len(), 1);
    assert_eq!((&history[0]["outcome"], &history[0]["fencing_token"]), (&json!("failed"), &json!(1)));
    // The dead letter holds the key.
    let again = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).unique_key("k-permanent"));
    let again = again.await.unwrap();
    assert!(again.duplicate && again.id == id);

    assert_eq!(bench.tenure.redrive(&[id]).await.unwrap(), [RetryOutcome::Redriven]);
    let done = bench.until_finished(id).await;
    let output = json!({"attempt": 1, "checkpoint": 40, "payload": payload});
    assert_eq!((done.status, done.fencing_token.0, done.output), (Status::Completed, 2, Some(output)));
    let attempts = bench.tenure.executions(id).await.unwrap();
    let outcomes: Vec<_> =
        attempts.iter().map(|a| (a.fencing_token.0, a.attempt, a.outcome.as_deref())).collect();
    assert_eq!(outcomes, [(1, 1, Some("failed")), (2, 1, Some("completed"))]);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    // For a job that is not dead, the answer is its state.
    assert_eq!(
        bench.tenure.redrive(&[id]).await.unwrap(),
        [RetryOutcome::Finished { status: Status::Completed }]
    );
    assert_eq!(bench.tenure.retry(JobId::generate()).await.unwrap(), RetryOutcome::NotFound);
    bench.until_stream_is_empty(Duration::from_secs(5)).await;
    worker.stop().await;
}

/// The job dies, is redriven and dies again: its history holds every attempt of both lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_dies_again_has_the_attempts_of_all_its_lives() {
    let bench = bench().await;
    let handler = |_: Value, ctx: JobContext| async move {
        Err::<(), _>(JobError::retry_after(Duration::ZERO, format!("failure {}", ctx.token())))
    };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1)).max_attempts(2)).await.unwrap().id;
    bench.until_finished(id).await;
    bench.tenure.retry(id).await.unwrap();
    bench.until_count("tenure.dead_letter_jobs WHERE fencing_token = 4", 1).await;
    let history = bench
        .text("SELECT e->>'fencing_token', e->>'attempt', e->>'outcome', e->>'error' FROM tenure.dead_letter_jobs, jsonb_array_elements(execution_history) WITH ORDINALITY h(e, n) ORDER BY n")
        .await;
    assert_eq!(
        history,
        "(1,1,retried,\"failure 1\")\n(2,2,failed,\"failure 2\")\n(3,1,retried,\"failure 3\")\n(4,2,failed,\"failure 4\")"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_filtered_counted_redriven_by_kind_and_purged_by_age() {
    let bench = bench().await;
    let worker = worker(&bench);
    for (kind, how) in [("a", "permanent"), ("a", "x"), ("b", "permanent"), ("c", "x")] {
        dead(&bench, kind, how).await;
    }
    bench.publish("q.a", "no json").await;
    bench.until_count("tenure.dead_letter_jobs", 5).await;
    let all = bench.tenure.dead_letters(&DeadFilter::new(), 50).await.unwrap();
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|letter| letter.payload.is_none()), "a list has no payloads");
    assert_eq!(all[0].category, "malformed", "the latest first");
    assert_eq!(bench.tenure.dead_letters(&DeadFilter::new(), 2).await.unwrap().len(), 2);
    let of = |filter: DeadFilter| {
        let tenure = bench.tenure.clone();
        async move { tenure.dead_letters(&filter, 50).await.unwrap().len() }
    };
    assert_eq!(of(DeadFilter::new().kind("a")).await, 3);
    assert_eq!(of(DeadFilter::new().category("exhausted")).await, 2);
    assert_eq!(of(DeadFilter::new().queue("other")).await, 0);
    assert_eq!(of(DeadFilter::new().older_than(Duration::from_secs(3600))).await, 0);
    assert_eq!(of(DeadFilter::new().older_than(Duration::MAX)).await, 0);
    let counts = bench.tenure.dead_counts().await.unwrap();
    let counts: Vec<_> = counts.iter().map(|c| (c.kind.as_str(), c.category.as_str(), c.jobs)).collect();
    assert_eq!(
        counts,
        [
            ("a", "exhausted", 1),
            ("a", "malformed", 1),
            ("a", "permanent", 1),
            ("b", "permanent", 1),
            ("c", "exhausted", 1)
        ]
    );

    assert_eq!(
        bench.tenure.redrive_all(&DeadFilter::new().kind("a")).await.unwrap(),
        2,
        "the refused one stays"
    );
    bench.until_count("tenure.job_history WHERE status = 'completed' AND kind = 'a'", 2).await;
    bench
        .execute("UPDATE tenure.dead_letter_jobs SET died_at = died_at - interval '40 days' WHERE kind = 'b'")
        .await;
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(bench.tenure.purge_dead(&DeadFilter::new().kind("c").older_than(month)).await.unwrap(), 0);
    assert_eq!(bench.tenure.purge_dead(&DeadFilter::new().older_than(month)).await.unwrap(), 1);
    assert_eq!(bench.tenure.purge_dead(&DeadFilter::new()).await.unwrap(), 2);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    assert_eq!(bench.count("tenure.job_executions e WHERE NOT EXISTS (SELECT FROM tenure.all_jobs j WHERE j.id = e.job_id)").await, 0);
    worker.stop().await;
}

/// Compares the JSON texts: a parser would drop digits.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_payload_keeps_all_its_digits_and_a_purge_frees_its_key() {
    let bench = bench().await;
    let handler = |_: Value, _: JobContext| async { Err::<(), _>(JobError::permanent("no")) };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 1),
    );
    let exact = "{\"f\": 1.00000000000000000000001, \"n\": 123456789012345678901234567890}";
    let request = || JobRequest::from_json("q", "k", exact).unique_key("order 7");
    let id = bench.tenure.enqueue(request()).await.unwrap().id;
    bench.until_finished(id).await;
    let letter = bench.tenure.dead_letter(id).await.unwrap().unwrap();
    assert_eq!(letter.payload.unwrap().get(), exact);
    let shown = bench.program(&["dead", "show", &id.to_string(), "--output", "json"]).output().await.unwrap();
    assert!(String::from_utf8(shown.stdout).unwrap().contains("123456789012345678901234567890"));
    assert!(bench.tenure.enqueue(request()).await.unwrap().duplicate);
    bench.tenure.purge_dead(&DeadFilter::new()).await.unwrap();
    assert!(!bench.tenure.enqueue(request()).await.unwrap().duplicate, "the key is free again");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_dead_letters_than_one_statement_takes_are_all_redriven_each_once() {
    let bench = bench().await;
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, died_at, last_outcome, last_error, category, execution_history)
             SELECT gen_random_uuid(), 'q', 'k', to_jsonb(n), 1, 1, 1, gen_random_uuid(), 'w', now(), now(), now(), now(), 'failed', 'e', 'exhausted', '[]'
               FROM generate_series(1, 1300) n",
        )
        .await;
    let handler = |_: Value, _: JobContext| async { Err::<(), _>(JobError::permanent("still broken")) };
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), handler).concurrency("q", 50),
    );
    bench.until_count("tenure.workers", 1).await;
    // The jobs die again while the redrive goes on: it meets none twice.
    assert_eq!(bench.tenure.redrive_all(&DeadFilter::new()).await.unwrap(), 1_300);
    bench.until_count("tenure.dead_letter_jobs WHERE fencing_token = 2", 1_300).await;
    worker.stop().await;
}

/// A settle whose answer was lost is repeated, even after the job was redriven.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_redriven_jobs_last_life_is_still_known() {
    let bench = bench().await;
    let worker = worker(&bench);
    let id = dead(&bench, "k", "permanent").await;
    worker.stop().await;
    let claim: uuid::Uuid =
        bench.value(&format!("SELECT claim_id FROM tenure.dead_letter_jobs WHERE id = '{id}'")).await;
    bench.tenure.redrive(&[id]).await.unwrap();
    let settled_as = statement("settled_as");
    let row: (i32, Option<String>) = sqlx::query_as(settled_as)
        .bind(vec![id])
        .bind(vec![1_i64])
        .bind(vec![claim])
        .bind(vec![0])
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(row.1.as_deref(), Some("failed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_makes_a_waiting_job_due() {
    let bench = bench().await;
    let worker = Running::start(
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    let request = JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(3600));
    let id = bench.tenure.enqueue(request).await.unwrap().id;
    assert_eq!(bench.tenure.retry(id).await.unwrap(), RetryOutcome::Due);
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    assert_eq!(bench.tenure.retry(id).await.unwrap(), RetryOutcome::Finished { status: Status::Completed });
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_redrives_and_purges() {
    let bench = bench().await;
    let worker = worker(&bench);
    let id = dead(&bench, "k", "permanent").await;
    let raw = b"\xff\x00not json";
    let subject = format!("{}.q.bad", bench.config.subject_prefix);
    bench.js.publish(subject, raw.as_slice().into()).await.unwrap().await.unwrap();
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    let refused: JobId =
        bench.value("SELECT id FROM tenure.dead_letter_jobs WHERE raw_payload IS NOT NULL").await;
    let run = |arguments: String| {
        let mut command = bench.program(&arguments.split_whitespace().collect::<Vec<_>>());
        async move {
            let output = command.output().await.unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), output.stdout, error)
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (code, out, _) = run("dead list".into()).await;
    let out = text(out);
    assert!(code == 0 && out.contains(&id.to_string()) && out.contains("malformed"), "{out}");
    let (_, out, _) = run("dead list --category permanent --output json".into()).await;
    let list: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((list.as_array().unwrap().len(), &list[0]["id"]), (1, &json!(id)));
    let (_, out, _) = run("dead count --output json".into()).await;
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap().as_array().unwrap().len(), 2);
    let (_, out, _) = run(format!("dead show {id}")).await;
    let out = text(out);
    assert!(
        out.contains("no such customer") && out.contains("12345678901234567") && out.contains("failed"),
        "{out}"
    );
    let (code, out, _) = run(format!("dead show {refused} --raw")).await;
    assert_eq!((code, out.as_slice()), (0, raw.as_slice()), "byte for byte");
    let (code, out, _) = run(format!("dead redrive {refused}")).await;
    let out = text(out);
    assert!(code == 1 && out.contains("correct what `tenure dead show"), "{out}");
    let (code, out, _) = run(format!("dead redrive {id}")).await;
    assert!(code == 0 && text(out).contains("it is queued again"));
    assert_eq!(bench.until_finished(id).await.status, Status::Completed);
    let (code, out, _) = run(format!("jobs retry {id}")).await;
    assert!(code == 1 && text(out).contains("enqueue a new one"));
    for (arguments, code, expected) in [
        (
            "dead redrive",
            2,
            "name what to redrive: IDs, --queue, --kind, --category, --group, --tag or --all",
        ),
        ("dead purge", 2, "--older-than"),
        ("dead purge --older-than -3d", 2, "older-than"),
        ("dead list --category lots", 2, "possible values: exhausted, permanent, lost, silent"),
        ("dead list --queue a.b", 2, "use 1 to 64 of"),
        ("dead list --limit 0", 2, "a number of at least 1"),
        ("dead list --limit -1", 2, "a number of at least 1"),
        ("dead show 00000000-0000-0000-0000-000000000000", 1, "`tenure dead list` shows the latest"),
    ] {
        let (is, _, error) = run(arguments.into()).await;
        assert!(is == code && error.contains(expected), "{arguments}: {error}");
    }
    let (code, out, _) = run("dead purge --older-than 0s".into()).await;
    assert_eq!((code, text(out).trim()), (0, "1 dead letter purged"));
    worker.stop().await;
}

/// Two queues fail alike: a group is of one of them, and a dry run counts exactly what the act then touches.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_of_one_queue_and_kind_and_a_dry_run_says_how_many_an_act_would_touch() {
    let bench = bench().await;
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, raw_payload, attempt, max_attempts,
                    fencing_token, created_at, scheduled_at, died_at, last_error, category, execution_history)
             SELECT gen_random_uuid(), q, k, CASE WHEN n < 4 THEN to_jsonb(n) END, CASE WHEN n = 4 THEN '\\x00'::bytea END,
                    0, 1, 0, now(), now(), now(), 'timeout after ' || n || ' s', 'exhausted', '[]'
               FROM generate_series(1, 4) n, unnest(ARRAY['mail', 'shop']) q, unnest(ARRAY['k', 'l']) k",
        )
        .await;
    let run = async |arguments: &[&str]| -> Value {
        let output = bench.program(arguments).args(["--output", "json"]).output().await.unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    };
    let groups = run(&["dead", "groups"]).await;
    let groups = groups.as_array().unwrap();
    assert_eq!(groups.len(), 4);
    let id = |queue: &str| {
        let of = groups.iter().find(|of| of["queue"] == queue && of["kind"] == "k").unwrap();
        assert_eq!(of["jobs"], 4);
        of["group"].as_str().unwrap()
    };
    let (mail, shop) = (id("mail"), id("shop"));
    assert_ne!(mail, shop);
    let purge = ["dead", "purge", "--older-than", "0s", "--group", mail];
    assert_eq!(run(&[&purge[..], &["--dry-run"]].concat()).await, json!({ "would_purge": 4 }));
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 16, "a dry run changes nothing");
    assert_eq!(run(&purge).await, json!({ "purged": 4 }));
    assert_eq!(bench.count("tenure.dead_letter_jobs WHERE queue = 'mail' AND kind = 'k'").await, 0);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 12, "no other group was touched");
    let redrive = ["dead", "redrive", "--group", shop];
    assert_eq!(run(&[&redrive[..], &["--dry-run"]].concat()).await, json!({ "would_redrive": 3 }));
    assert_eq!(run(&redrive).await, json!({ "redriven": 3 }));
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 9);
    let cancel = ["jobs", "cancel", "--queue", "shop", "--kind", "k"];
    let would = run(&[&cancel[..], &["--dry-run"]].concat()).await;
    assert_eq!(would, json!({ "would_cancel": 3, "would_ask": 0 }));
    assert_eq!(bench.count("tenure.jobs").await, 3);
    assert_eq!(run(&cancel).await, json!({ "cancelled": 3, "asked": 0 }));
}
