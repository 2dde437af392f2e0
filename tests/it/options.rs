//! What a job's type says of each enqueue, what a queue asks of each job, and what a schedule keeps for its jobs.

use std::time::Duration;

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{
    EnqueueError, Job, JobId, JobRequest, KindOptions, OnExpiry, Status, Worker, lanes::Lanes,
    options::JobOptions, schedules::Schedule,
};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Child, Running, bench},
};

#[derive(Serialize, Deserialize)]
struct Invoice {
    tenant: String,
    number: u32,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";
    const QUEUE: &'static str = "q";

    fn options(&self) -> JobOptions {
        let tag = format!("tenant={}", self.tenant);
        let options = JobOptions::new().lane(&self.tenant).priority(7).tag(tag);
        options.unique_key(format!("{}/{}", self.tenant, self.number)).expires_in(Duration::from_secs(600))
    }
}

fn invoice(number: u32) -> Invoice {
    Invoice { tenant: "acme".into(), number }
}

/// Lane, priority, tags, seconds from when it is due to its expiry, and what it becomes then.
async fn options_of(bench: &Bench, id: JobId) -> String {
    bench
        .value(&format!(
            "SELECT concat_ws(' ', lane, priority,
                    (SELECT string_agg(tag, ',' ORDER BY tag) FROM tenure.job_tags t WHERE t.job_id = j.id),
                    round(extract(epoch FROM not_after - scheduled_at)), expires_as)
               FROM tenure.jobs j WHERE id = '{id}'"
        ))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_says_the_options_of_its_jobs_and_a_call_says_others() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let tenure = &bench.tenure;
    let first = tenure.enqueue(invoice(1)).await.unwrap();
    assert_eq!(options_of(&bench, first.id).await, "acme 7 tenant=acme 600");
    assert!(tenure.enqueue(invoice(1)).await.unwrap().duplicate, "by the key of the type");
    let mut tx = bench.pool.begin().await.unwrap();
    assert!(tenure.enqueue(invoice(1)).tx(&mut tx).await.unwrap().duplicate);
    tx.rollback().await.unwrap();
    let many = tenure.enqueue_many([invoice(1), invoice(2)]).await.unwrap();
    assert_eq!(many.iter().map(|one| one.duplicate).collect::<Vec<_>>(), [true, false]);
    assert_eq!(options_of(&bench, many[1].id).await, "acme 7 tenant=acme 600");
    // The key of the type is left out of a group, and the expiry of what follows.
    let group = tenure
        .group([JobRequest::from(invoice(3)), invoice(3).into()])
        .then(JobRequest::new("q", "sum", json!(1)))
        .await
        .unwrap();
    assert_eq!(options_of(&bench, group.jobs[0]).await, "acme 7 tenant=acme 600");

    // What the call says comes after: another lane, priority, expiry and key; and a tag more.
    let other = tenure
        .enqueue(invoice(1))
        .lane("other")
        .priority(-1)
        .tag("urgent")
        .delay(Duration::from_secs(60))
        .expires_in(Duration::from_secs(5))
        .on_expiry(OnExpiry::Cancel)
        .unique_while_live("mine")
        .await
        .unwrap();
    assert!(!other.duplicate);
    assert_eq!(options_of(&bench, other.id).await, "other -1 tenant=acme,urgent 5 cancelled");
    let at = chrono::Utc::now() + chrono::TimeDelta::seconds(900);
    let named = tenure.enqueue(invoice(4)).not_after(at).await.unwrap();
    assert_eq!(options_of(&bench, named.id).await, "acme 7 tenant=acme 900");
    let two = tenure.enqueue(invoice(5)).unique_key("a").unique_while_live("b").await.unwrap_err();
    assert!(matches!(two, EnqueueError::Option { .. }), "the keys of the call are two: {two}");
    let follower = JobRequest::from(invoice(6));
    let typed = tenure.group([JobRequest::new("q", "k", json!(1))]).then(follower.clone()).await.unwrap();
    assert_eq!(options_of(&bench, typed.id).await, "acme 7 tenant=acme");
    let follower = follower.expires_in(Duration::from_secs(600));
    let late = tenure.group([JobRequest::new("q", "k", json!(1))]).then(follower).await.unwrap_err();
    assert!(late.to_string().contains("expires_in is 600 s, but must be left out"), "{late}");
    let replaced = tenure.enqueue(invoice(8)).replace("doc").await.unwrap_err();
    assert!(replaced.to_string().contains("left out of a job with `replace`"), "{replaced}");
    let endless = tenure.enqueue(invoice(7)).expires_in(Duration::MAX).await.unwrap_err();
    assert!(endless.to_string().contains("at most ten years"), "{endless}");
    let far = tenure.enqueue(invoice(7)).expires_in(Duration::from_hours(24 * 4_000)).await.unwrap_err();
    assert!(far.to_string().contains("at most ten years"), "{far}");
}

/// A job expires by the time of the type; one that starts in time goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_expires_in_a_time_from_when_it_is_due_is_not_started_later() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let request = || JobRequest::new("q", "k", json!(1)).expires_in(Duration::from_millis(1));
    let late = bench.tenure.enqueue(request()).await.unwrap().id;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let worker = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), async |_: Value, _| {})
            .concurrency("q", 5),
    );
    let expired = bench.until_finished(late).await;
    assert_eq!(expired.status, Status::Failed);
    let minute = bench.tenure.enqueue(request().expires_in(Duration::from_secs(60))).await.unwrap().id;
    assert_eq!(bench.until_finished(minute).await.status, Status::Completed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_requires_a_lane_takes_no_job_without_one_from_any_door() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into(), "plain".into()]).await.unwrap();
    let before = bench.tenure.enqueue(JobRequest::new("q", "k", json!(0))).await.unwrap().id;
    let without = || JobRequest::new("q", "k", json!(1));
    bench.tenure.put_schedule(Schedule::new("without", "* * * * * *", without())).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(2).required()).await.unwrap();
    let refused = |error: EnqueueError| {
        assert!(matches!(error, EnqueueError::LaneRequired(_)), "{error:?}");
        assert!(
            error.to_string().starts_with("queue \"q\" takes no job without a lane; name one"),
            "{error}"
        );
    };
    refused(bench.tenure.enqueue(without()).await.unwrap_err());
    let mut tx = bench.pool.begin().await.unwrap();
    refused(bench.tenure.enqueue(without()).tx(&mut tx).await.unwrap_err());
    tx.rollback().await.unwrap();
    refused(bench.tenure.enqueue_many([without().lane("a"), without()]).await.unwrap_err());
    refused(bench.tenure.group([without().lane("a")]).then(without()).await.unwrap_err());
    // Of single calls that share a statement, those that name a lane succeed.
    let calls = (0..20).map(|n| {
        let request = if n % 2 == 0 { without().lane("a") } else { without() };
        async { bench.tenure.enqueue(request).await.is_ok() }
    });
    let went = futures::future::join_all(calls).await;
    assert_eq!(went, (0..20).map(|n| n % 2 == 0).collect::<Vec<_>>());
    let sql = sqlx::query("SELECT tenure.enqueue('q', 'k')").execute(&bench.pool).await.unwrap_err();
    let sql = sql.into_database_error().unwrap();
    assert_eq!(sql.code().as_deref(), Some("TN009"), "{sql}");
    let said = bench.program(&["enqueue", "q", "k", "1"]).output().await.unwrap();
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("takes no job without a lane"), "{said:?}");

    let mut worker = Child::spawn(bench.program(&["work", "q", "plain", "--exec", "true"]), "work");
    // A submission becomes a dead letter that says why; one with a lane runs.
    bench.publish("q.k", "1").await;
    bench
        .until_count("tenure.dead_letter_jobs WHERE last_error LIKE '%takes no job without a lane%'", 1)
        .await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Lane", "a");
    let subject = format!("{}.q.k", bench.config.subject_prefix);
    bench.js.publish_with_headers(subject, headers, "2".into()).await.unwrap().await.unwrap();
    bench.until_count("tenure.job_history WHERE payload = '2'", 1).await;
    assert_eq!(bench.until_finished(before).await.status, Status::Completed, "it stood there before");
    // A schedule is refused, and the tick of one of before waits until it names a lane; it keeps no other from its own.
    let none = Schedule::new("none", "* * * * * *", without());
    assert!(
        bench
            .tenure
            .put_schedule(none)
            .await
            .unwrap_err()
            .to_string()
            .contains("takes no job without a lane")
    );
    for (name, request) in [("with", without().lane("a")), ("plain", without().queue("plain"))] {
        bench.tenure.put_schedule(Schedule::new(name, "* * * * * *", request)).await.unwrap();
    }
    worker.until_log("could not enqueue the job of a schedule's tick").await;
    for name in ["with", "plain"] {
        bench
            .until(&format!("(SELECT last_tick_at IS NOT NULL FROM tenure.schedules WHERE name = '{name}')"))
            .await;
    }
    let none = "(SELECT last_tick_at IS NULL FROM tenure.schedules WHERE name = 'without')";
    assert!(bench.value::<bool>(&format!("SELECT {none}")).await);
    let of_schedule = Schedule::new("without", "* * * * * *", without().lane("b"));
    bench.tenure.put_schedule(of_schedule).await.unwrap();
    bench.until(&format!("NOT {none}")).await;
    for name in ["with", "without", "plain"] {
        bench.tenure.remove_schedule(name).await.unwrap();
    }
    // A dead letter of before comes back.
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                 created_at, scheduled_at, died_at, last_error, category, execution_history)
             VALUES (gen_random_uuid(), 'q', 'old', '1', 1, 1, 1, now(), now(), now(), '', 'exhausted', '[]')",
        )
        .await;
    let old: JobId = JobId(bench.value("SELECT id FROM tenure.dead_letter_jobs WHERE kind = 'old'").await);
    bench.tenure.retry(old).await.unwrap();
    assert_eq!(bench.until_finished(old).await.status, Status::Completed);
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    let again = bench.tenure.enqueue(without()).await.unwrap().id;
    assert_eq!(bench.until_finished(again).await.status, Status::Completed);
    worker.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_schedule_have_the_options_of_its_request() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    // The key of the type is left out: each tick has its own job.
    bench.tenure.put_schedule(Schedule::new("typed", "* * * * * *", invoice(1))).await.unwrap();
    let added = bench.program(&[
        "schedules",
        "add",
        "by-hand",
        "0 0 * * *",
        "q",
        "k",
        "1",
        "--lane",
        "acme",
        "--priority",
        "-3",
        "--tag",
        "t",
    ]);
    let added = { added }.output().await.unwrap();
    assert!(added.status.success(), "{added:?}");
    let relays = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), async |_: Value, _| {})
            .concurrency("other", 1),
    );
    bench.until("(SELECT count(*) FROM tenure.jobs WHERE kind = 'invoice') >= 2").await;
    let ticked: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM tenure.jobs WHERE kind = 'invoice' ORDER BY id")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    relays.stop().await;
    for id in &ticked[..2] {
        let of = options_of(&bench, JobId(*id)).await;
        assert!(of.starts_with("acme 7 tenant=acme "), "{of}");
        let expires = format!(
            "tenure.job_expiries e JOIN tenure.jobs j ON j.id = e.job_id AND j.not_after = e.at WHERE j.id = '{id}'"
        );
        assert_eq!(bench.count(&expires).await, 1);
    }
    let by_hand = bench.tenure.run_schedule("by-hand").await.unwrap().id;
    assert_eq!(options_of(&bench, by_hand).await, "acme -3 t");
    let rows = bench.tenure.schedules().await.unwrap();
    let options: Vec<_> = rows.iter().map(|row| row.options.clone().unwrap()).collect();
    assert_eq!(options[0], json!({"lane": "acme", "priority": -3, "tags": ["t"]}));
    assert_eq!(options[1]["expires_in_s"], json!(600.0));
    // In a transaction, and spread over a time: none of many is due at the tick.
    let mut tx = bench.pool.begin().await.unwrap();
    for n in 0..20 {
        let spread =
            Schedule::new(format!("spread-{n}"), "* * * * * *", JobRequest::new("q", "spread", json!({})));
        let put = bench.tenure.put_schedule(spread.spread(Duration::from_secs(1_000)).tick_field("at"));
        assert!(put.tx(&mut tx).await.unwrap().is_new);
    }
    assert_eq!(bench.tenure.schedules().await.unwrap().len(), 2, "not committed yet");
    tx.commit().await.unwrap();
    let relays = Running::start(
        Worker::builder(&bench.tenure)
            .handle_any(KindOptions::new(), async |_: Value, _| {})
            .concurrency("other", 1),
    );
    bench
        .until("(SELECT count(DISTINCT last_job_id) FROM tenure.schedules WHERE name LIKE 'spread%') = 20")
        .await;
    relays.stop().await;
    let apart: f64 = bench
        .value(
            "SELECT extract(epoch FROM max(due_at) - min(due_at))::float8
               FROM (SELECT l.due_at FROM tenure.jobs j JOIN tenure.lane_jobs l ON l.job_id = j.id
                      WHERE j.kind = 'spread') d",
        )
        .await;
    assert!((300.0..1_010.0).contains(&apart), "{apart}");
    let day = Schedule::new("day", "* * * * *", JobRequest::new("q", "k", json!(1)))
        .spread(Duration::from_hours(25));
    assert!(bench.tenure.put_schedule(day).await.unwrap_err().to_string().contains("at most a day"));
    let keyed = JobRequest::new("q", "k", json!(1)).unique_key("k");
    let error = bench.tenure.put_schedule(Schedule::new("keyed", "* * * * *", keyed)).await.unwrap_err();
    assert!(error.to_string().contains("a key is k, but must be left out"), "{error}");
}

/// What a stranger's gateway client hears.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_and_the_api_refuse_a_job_without_a_lane_by_name() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.put_lanes("q", Lanes::new().required()).await.unwrap();
    let gateway = Running::start(Worker::builder(&bench.tenure).gateway());
    let nats = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let mut inbox = nats.subscribe("_INBOX.mine").await.unwrap();
    let subject = format!("tenure.{}.p.q.enqueue", bench.config.subject_prefix);
    let answer: Value = loop {
        let body = json!({"v": 1, "kind": "k", "payload": 1}).to_string();
        nats.publish_with_reply(subject.clone(), "_INBOX.mine", body.into()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(2), inbox.next()).await;
        match answer {
            Ok(Some(answer)) if !answer.payload.is_empty() => {
                break serde_json::from_slice(&answer.payload).unwrap();
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(answer.to_string().contains("takes no job without a lane"), "{answer}");
    assert!(answer.to_string().contains("bad_request"), "{answer}");
    gateway.stop().await;
    let served = Dashboard::start(&bench, &["--api", "--actions"], &[]).await;
    let post = async |body: Value| {
        let json = [("Content-Type", "application/json")];
        served.ask("POST", "/api/v1/jobs", &json, &body.to_string()).await
    };
    let refused = post(json!({"queue": "q", "kind": "k", "payload": 1})).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("takes no job without a lane"), "{}", refused.body);
    assert_eq!(post(json!({"queue": "q", "kind": "k", "payload": 1, "lane": "l"})).await.status, 201);
}
