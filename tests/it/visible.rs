//! Visible: what stands in the stream, and what no live worker runs, is shown wherever jobs are.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tenure::{
    EnqueueError, JobRequest, KindOptions, Tenure, Timing, Worker,
    dev::Nats,
    doctor::{Check, CheckState, DoctorOptions},
    queues::QueueLimits,
};

use crate::harness::{
    Bench, Child, Running, ask, bench, bench_with, bench_with_servers, free_address, run_folder, statement,
};

/// Jobs that run stay so: nothing is recovered meanwhile.
async fn calm() -> Bench {
    bench_with(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await
}

/// A worker of every kind.
fn worker(tenure: &Tenure, queue: &str) -> Running {
    Running::start(
        Worker::builder(tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency(queue, 4),
    )
}

/// A page of `tenure serve`.
async fn page(address: SocketAddr, path: &'static str) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = tokio::task::spawn_blocking(move || ask(address, "GET", path, &[], "")).await.unwrap();
        match answer {
            Some(answer) if answer.status == 200 => return answer.body,
            _ => assert!(Instant::now() < deadline, "{path} is not there"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The text of a page, without its tags.
fn text(page: &str) -> String {
    page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

/// Reads a page until it or its text holds all of these.
async fn until_page(address: SocketAddr, path: &'static str, parts: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let body = page(address, path).await;
        let shown = text(&body);
        let is_missing = |part: &&&str| !body.contains(**part) && !shown.contains(**part);
        let Some(missing) = parts.iter().find(is_missing) else { return body + &shown };
        assert!(Instant::now() < deadline, "no {missing:?} in\n{body}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// `tenure queues list`, by queue.
async fn listed(bench: &Bench, queue: &str) -> Value {
    let output = bench.program(&["queues", "list", "--output", "json"]).output().await.unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    rows.iter().find(|row| row["queue"] == queue).cloned().unwrap_or_else(|| panic!("no {queue}: {rows:#?}"))
}

fn find<'c>(checks: &'c [Check], check: &str, queue: &str) -> &'c Check {
    let found = checks.iter().find(|of| of.check == check && of.queue.as_deref() == Some(queue));
    found.unwrap_or_else(|| panic!("no {check} of {queue}: {checks:#?}"))
}

/// Messages of a paused queue and of a mistyped one have no row: every place that shows jobs shows them, too.
#[tokio::test(flavor = "multi_thread")]
async fn submissions_stand_wherever_rows_do() {
    let bench = calm().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.pause_queue("q").await.unwrap();
    let own = free_address();
    let mut command = bench.program(&["work", "q", "--exec", "true"]);
    command.env("TENURE_LISTEN", own.to_string());
    let mut working = Child::spawn(command, "visible");
    // The worker knows that the queue is paused, and no earlier request of it is open.
    until_page(own, "/metrics", &["tenure_slots_free{queue=\"q\"} 0"]).await;
    while bench.consumer("q").await.num_waiting > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let address = free_address();
    let listen = address.to_string();
    let _serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "visible-serve");
    for n in 0..30 {
        bench.publish("q.k", &n.to_string()).await;
    }
    for n in 0..7 {
        bench.publish("tpyo.send", &n.to_string()).await;
    }
    bench.until_count("tenure.queue_stats WHERE (queue, submitted) IN (('q', 30), ('tpyo', 7))", 2).await;
    assert_eq!(bench.count("tenure.jobs").await, 0);
    bench
        .until_count(
            "tenure.queue_stats WHERE oldest_submitted_at BETWEEN now() - interval '1 min' AND now()",
            2,
        )
        .await;
    working.until_log("no live worker serves this queue").await;
    assert!(!working.log().contains("no live worker runs this kind"), "{}", working.log());

    let (q, tpyo) = (listed(&bench, "q").await, listed(&bench, "tpyo").await);
    assert_eq!((&q["submitted"], &q["due"], &q["workers"]), (&json!(30), &json!(0), &json!(1)));
    assert!(q["oldest_due_s"].as_f64().unwrap() > 0.0 && q["last_seen_s"].is_number(), "{q}");
    assert_eq!(
        (&tpyo["submitted"], &tpyo["workers"], &tpyo["last_seen_s"]),
        (&json!(7), &json!(0), &json!(null))
    );
    let table = bench.program(&["queues", "list"]).output().await.unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.contains("tpyo") && line.contains("no worker")), "{table}");

    let overview = until_page(
        address,
        "/",
        &[
            "No worker serves tpyo.",
            "7 submissions wait",
            "tenure work tpyo --exec COMMAND",
            "30 submissions wait",
        ],
    )
    .await;
    assert!(overview.contains("37 submitted") && overview.contains("q is paused"), "{overview}");
    let queues = page(address, "/queues").await;
    let row = queues.split("id=\"queue-tpyo\"").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(row.contains(">7<") && row.contains("no worker"), "{row}");
    until_page(
        address,
        "/metrics",
        &[
            "tenure_queue_jobs{queue=\"q\",state=\"submitted\"} 30",
            "tenure_queue_jobs{queue=\"tpyo\",state=\"submitted\"} 7",
            "tenure_unserved_jobs{queue=\"tpyo\",kind=\"send\"} 7",
        ],
    )
    .await;

    let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
    let wrong = find(&checks, "queue", "tpyo");
    assert_eq!(wrong.state, CheckState::Wrong);
    let beginning = "no worker serves this queue; 7 submissions in the stream, the first for ";
    assert!(wrong.found.starts_with(beginning), "{wrong:?}");
    let to_do = wrong.to_do.as_deref().unwrap();
    let purge = format!(
        "nats stream purge {} --subject '{}.tpyo.>'",
        bench.config.stream, bench.config.subject_prefix
    );
    assert!(to_do.contains("`tenure work tpyo --exec COMMAND`") && to_do.contains(&purge), "{to_do}");
    let paused = find(&checks, "queue", "q");
    assert!(
        paused.found.starts_with("paused for ") && paused.found.contains("; 30 submissions"),
        "{paused:?}"
    );
    assert_eq!(bench.program(&["doctor"]).output().await.unwrap().status.code(), Some(1));

    // What has become a job is no submission any more.
    bench.tenure.resume_queue("q").await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 30).await;
    bench.until("NOT EXISTS (SELECT FROM tenure.queue_stats WHERE queue = 'q' AND submitted > 0)").await;
    working.kill().await;
}

/// The tickets of cancelled jobs stay in the stream of a queue that no worker pulls. They count for nothing; submissions
/// that a scan has read there count towards the limit, until they are delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_counts_the_submissions_that_stand_in_the_stream_and_no_ticket_of_a_cancelled_job() {
    let bench = calm().await;
    bench.tenure.setup(&["q".into(), "tickets".into()]).await.unwrap();
    let limit = async |queue: &str, most| {
        bench.tenure.limit_queue(queue, QueueLimits::new().max_queued(most)).await.unwrap();
    };
    // Some of few are read whole, and some of many are spread over all of them.
    for (queue, jobs) in [("q", 10), ("tickets", 60)] {
        limit(queue, 1_000).await;
        bench.tenure.enqueue_many((0..jobs).map(|n| JobRequest::new(queue, "k", json!(n)))).await.unwrap();
        bench.tenure.flush().await;
        assert_eq!(bench.tenure.cancel_all(queue, None).await.unwrap().cancelled, jobs);
    }
    for n in 0..5 {
        bench.publish("q.k", &n.to_string()).await;
    }
    limit("q", 6).await;
    limit("tickets", 2).await;
    let scans = worker(&bench.tenure, "other");
    bench.until_count("tenure.queue_stats WHERE queue = 'q' AND submitted = 5 AND standing = 5", 1).await;
    bench
        .until_count("tenure.queue_stats WHERE queue = 'tickets' AND submitted = 0 AND standing IS NULL", 1)
        .await;
    let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
    assert_eq!(find(&checks, "queue", "tickets").found, "no worker serves this queue; no job is due");
    let found = &find(&checks, "queue", "q").found;
    assert!(found.contains("no worker serves this queue; 5 submissions in the stream"), "{found}");

    // As a program that has just started: it knows no limit yet.
    let producer = Tenure::connect(&bench.config).await.unwrap();
    let enqueue = async |queue: &str| producer.enqueue(JobRequest::new(queue, "k", json!(1))).await;
    enqueue("q").await.unwrap();
    let full = enqueue("q").await;
    assert!(matches!(full, Err(EnqueueError::QueueFull { queued: 6, max_queued: 6, .. })), "{full:?}");
    let rows = bench.tenure.queues().await.unwrap();
    let q = rows.iter().find(|row| row.queue == "q").unwrap();
    assert!(q.is_full() && (q.due, q.standing, q.queued()) == (1, 5, 6), "{q:?}");
    let address = free_address();
    let listen = address.to_string();
    let _serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "visible-serve");
    until_page(address, "/", &["It is full: enqueues are refused."]).await;
    enqueue("tickets").await.unwrap();
    enqueue("tickets").await.unwrap();
    assert!(matches!(enqueue("tickets").await, Err(EnqueueError::QueueFull { queued: 2, .. })));

    // A count that is older than their deliveries refuses nothing.
    let stale = "UPDATE tenure.queue_stats SET standing = 5, standing_deliveries = 0, standing_until = now() + interval '1 h'
                  WHERE queue = 'q'";
    scans.stop().await;
    let serves = worker(&bench.tenure, "q");
    bench.until_count("tenure.job_history WHERE queue = 'q' AND status = 'completed'", 6).await;
    serves.stop().await;
    bench.execute(stale).await;
    let producer = Tenure::connect(&bench.config).await.unwrap();
    producer.enqueue_many((0..6).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
}

/// Counts and pages of a fleet without a worker.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_worker_serve_measures() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    for n in 0..7 {
        bench.publish("tpyo.send", &n.to_string()).await;
    }
    let address = free_address();
    let listen = address.to_string();
    let mut serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "visible-serve");
    until_page(address, "/metrics", &["tenure_queue_jobs{queue=\"tpyo\",state=\"submitted\"} 7"]).await;
    until_page(address, "/", &["No worker is alive.", "7 submitted"]).await;
    assert_eq!(bench.count("tenure.scanner_state WHERE last_scan_at IS NULL").await, 1, "it is no scan");
    // What stands in the stream alone has no job, and is shown where jobs are.
    until_page(address, "/kinds", &["7 submissions stand in the stream", ">send<", "7 submitted"]).await;
    until_page(address, "/queues/tpyo", &["7 submissions stand in the stream", ">send<"]).await;
    until_page(address, "/jobs", &["No jobs yet", "7 submissions stand in the stream"]).await;
    until_page(address, "/recovery", &["not seen yet"]).await;
    bench.execute("UPDATE tenure.scanner_state SET last_scan_at = now() - interval '1 h'").await;
    until_page(address, "/recovery", &["not scanning", "no silent job is reset"]).await;
    serve.kill().await;
    bench.execute("UPDATE tenure.queue_stats SET submitted_until = now()").await;
    assert_eq!(listed(&bench, "tpyo").await["submitted"], json!(null), "the queue keeps its name");

    // A worker of an earlier release measures: it counts rows alone, and removes the rows of other queues.
    bench.tenure.limit_queue("tpyo", QueueLimits::new().max_queued(9)).await.unwrap();
    bench.execute("UPDATE tenure.scanner_state SET stream_until = now() + interval '1 h'").await;
    bench.execute("DELETE FROM tenure.queue_stats").await;
    assert_eq!(listed(&bench, "tpyo").await["submitted"], json!(0));
    bench.execute("UPDATE tenure.scanner_state SET measured_at = clock_timestamp()").await;
    assert_eq!(listed(&bench, "tpyo").await["submitted"], json!(null), "no process has counted the messages");
}

/// A job from a submission is as old as its message, whichever worker receives it, whenever. A server's clock that is
/// ahead makes no negative latency.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_waits_from_its_publication_on() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.publish("q.k", "1").await;
    let working = worker(&bench.tenure, "q");
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    let times = "SELECT count(*) FROM tenure.job_history
                  WHERE left(id::text, 13) = left(tenure.id_of_time(created_at)::text, 13)
                    AND scheduled_at = created_at AND started_at > created_at";
    assert_eq!(bench.value::<i64>(times).await, 1, "the id, the creation and the due time are the message's");
    working.stop().await;

    let row = |key: &'static str, ago_ms: i64| {
        let (bench, none) = (&bench, || vec![None::<String>]);
        async move {
            let at = chrono::Utc::now() - chrono::TimeDelta::milliseconds(ago_ms);
            let made = sqlx::query(statement("enqueue_submitted"))
                .bind(vec![uuid::Uuid::now_v7()])
                .bind(vec!["rows".to_owned()])
                .bind(vec!["k".to_owned()])
                .bind(vec!["1".to_owned()])
                .bind(vec![5])
                .bind(vec![None::<chrono::DateTime<chrono::Utc>>])
                .bind(vec![None::<f64>])
                .bind(none())
                .bind(vec![String::new()])
                .bind(vec![key.to_owned()])
                .bind(vec![1_i64])
                .bind(vec![at])
                .bind(vec!["message".to_owned()])
                .bind("100ms")
                .bind(None::<Vec<String>>)
                .fetch_one(&bench.pool)
                .await
                .unwrap();
            assert!(made.get::<bool, _>("has_message"), "{key}");
        }
    };
    row("behind", 600_000).await;
    row("ahead", -600_000).await;
    let waited = "SELECT string_agg(round(extract(epoch FROM now() - scheduled_at) / 60)::text, ' ' ORDER BY scheduled_at)
                    FROM tenure.jobs WHERE created_at <= now() AND scheduled_at <= now()";
    assert_eq!(bench.value::<String>(waited).await, "10 0");
    // The latency of a claim says so.
    let claimed = sqlx::query(statement("claim"))
        .bind(
            sqlx::query_scalar::<_, Vec<uuid::Uuid>>("SELECT array_agg(id ORDER BY id) FROM tenure.jobs")
                .fetch_one(&bench.pool)
                .await
                .unwrap(),
        )
        .bind("rows")
        .bind("k")
        .bind(300.0_f64)
        .bind("retry")
        .bind("w-1-aaaaaaaa")
        .bind("w")
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    let mut waits: Vec<f64> = claimed.iter().map(|row| row.get("waited_s")).collect();
    waits.sort_by(f64::total_cmp);
    assert!((0.0..60.0).contains(&waits[0]) && (600.0..660.0).contains(&waits[1]), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_asks_nats_once_for_the_counts() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    for n in 0..40 {
        bench.publish(&format!("waits.k{n}"), "1").await;
    }
    let client = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let mut asked = client.subscribe(format!("$JS.API.STREAM.INFO.{}", bench.config.stream)).await.unwrap();
    client.flush().await.unwrap();
    let working = worker(&bench.tenure, "q");
    bench.until_count("tenure.queue_stats WHERE queue = 'waits' AND submitted = 40", 1).await;
    let mut scans = std::collections::BTreeSet::new();
    while scans.len() < 5 {
        let at: Option<String> = bench.value("SELECT measured_at::text FROM tenure.scanner_state").await;
        scans.extend(at);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    working.stop().await;
    client.flush().await.unwrap();
    asked.unsubscribe().await.unwrap();
    let mut counts = 0;
    while let Some(message) = asked.next().await {
        counts += usize::from(String::from_utf8_lossy(&message.payload).contains("subjects_filter"));
    }
    // The scans before the first look, and the last one, may not be among those that were seen.
    assert!((scans.len()..=scans.len() + 3).contains(&counts), "{counts} requests, {} scans", scans.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_a_scan_counts_the_rows_and_forgets_the_messages() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(30);
        config.timing.ack_wait = Duration::from_secs(60);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let working = worker(&bench.tenure, "q");
    bench.publish("tpyo.send", "1").await;
    bench.until_count("tenure.queue_stats WHERE queue = 'tpyo' AND submitted = 1", 1).await;
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at)
             VALUES (gen_random_uuid(), 'tpyo', 'row', '1', 5, now(), now())",
        )
        .await;
    bench.until_count("tenure.queue_stats WHERE queue = 'tpyo' AND due = 1 AND submitted = 1", 1).await;
    bench.own.as_mut().unwrap().nats.stop();
    bench.until_count("tenure.queue_stats WHERE queue = 'tpyo' AND due = 1 AND submitted IS NULL", 1).await;
    assert_eq!(listed(&bench, "tpyo").await["submitted"], json!(null));
    assert_eq!(bench.count("tenure.queue_stats WHERE oldest_submitted_at IS NOT NULL").await, 0);
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    bench.until_count("tenure.queue_stats WHERE queue = 'tpyo' AND due = 1 AND submitted = 1", 1).await;
    // Counts that no scan has followed for long are not shown.
    working.stop().await;
    bench.execute("UPDATE tenure.queue_stats SET submitted_until = now()").await;
    assert_eq!(listed(&bench, "tpyo").await["submitted"], json!(null));
}

/// A worker whose NATS user may not read a message shows how many submissions wait, and not for how long.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_read_a_message_the_number_stays_and_the_age_is_absent() {
    let bench = bench_with_servers(|_| {}).await;
    let folder = run_folder().join(format!("visible-{}", bench.own.as_ref().unwrap().nats.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let conf = folder.join("server.conf");
    let deny = "permissions: { publish: { deny: [\"$JS.API.STREAM.MSG.GET.>\"] } }";
    let users =
        format!("accounts {{ A {{ jetstream: enabled, users: [ {{ user: u, password: p, {deny} }} ] }} }}");
    std::fs::write(&conf, users).unwrap();
    let start = move || Nats::start_with(&folder.join("nats"), Some(&conf)).unwrap();
    let nats = tokio::task::spawn_blocking(start).await.unwrap();
    let mut config = bench.config.clone();
    config.nats_url = format!("nats://u:p@127.0.0.1:{}", nats.port());
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    let working = worker(&tenure, "q");
    let user = async_nats::ConnectOptions::with_user_and_password("u".into(), "p".into());
    let client = user.connect(format!("nats://127.0.0.1:{}", nats.port())).await.unwrap();
    client.publish(format!("{}.tpyo.send", config.subject_prefix), "1".into()).await.unwrap();
    client.flush().await.unwrap();
    bench.until_count("tenure.queue_stats WHERE queue = 'tpyo' AND submitted = 1", 1).await;
    // Two more scans: the denied request is not repeated, and delays none.
    let measured: String = bench.value("SELECT measured_at::text FROM tenure.scanner_state").await;
    bench
        .until(&format!(
            "(SELECT measured_at > '{measured}'::timestamptz + interval '600 ms' FROM tenure.scanner_state)"
        ))
        .await;
    assert_eq!(
        bench
            .text("SELECT submitted, oldest_submitted_at FROM tenure.queue_stats WHERE queue = 'tpyo'")
            .await,
        "(1,)"
    );
    working.stop().await;
}

/// A kind that no worker of the queue runs: from a row, from a schedule, from the stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_no_live_worker_runs_is_named() {
    let bench = bench_with(|config| {
        config.timing = Timing::DEFAULT;
        config.timing.scan_every = Duration::from_millis(300);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let knows = Running::start(
        Worker::builder(&bench.tenure)
            .handle_kind("known", KindOptions::new(), |_: Value, _| async {})
            .concurrency("q", 4),
    );
    let id = bench.tenure.enqueue(JobRequest::new("q", "other.kind", json!(1))).await.unwrap().id;
    bench.publish("q.third", "1").await;
    bench.until("(SELECT jsonb_path_query_array(unserved, '$[*].kind') @> '[\"other.kind\", \"third\"]' FROM tenure.scanner_state)").await;
    let warning = bench.tenure.doctor(&DoctorOptions::default()).await;
    assert_eq!(find(&warning, "kinds", "q").state, CheckState::Warning, "a worker may be on its way");
    bench
        .execute("UPDATE tenure.jobs SET scheduled_at = now() - interval '2 min' WHERE kind = 'other.kind'")
        .await;
    let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
    let wrong = checks.iter().find(|of| of.check == "kinds" && of.state == CheckState::Wrong).unwrap();
    assert!(
        wrong.found.starts_with("no live worker runs the kind other.kind; 1 job due, the first for 2m"),
        "{wrong:?}"
    );
    let to_do = wrong.to_do.as_deref().unwrap();
    assert!(to_do.contains("`tenure work q --kind other.kind --exec COMMAND`"), "{to_do}");
    assert_eq!(find(&checks, "queue", "q").state, CheckState::Ok);
    assert_eq!(bench.program(&["doctor"]).output().await.unwrap().status.code(), Some(1));

    let address = free_address();
    let listen = address.to_string();
    let _serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "visible-serve");
    let overview = until_page(address, "/", &["No worker of q runs the kind other.kind."]).await;
    assert!(overview.contains("tenure work q --kind other.kind --exec COMMAND"), "{overview}");
    let of_job: &'static str = format!("/jobs/{id}").leak();
    let job = page(address, of_job).await;
    assert!(
        job.contains("no live worker runs the kind other.kind") && !job.contains("waiting for a worker"),
        "{job}"
    );
    until_page(address, "/metrics", &["tenure_unserved_jobs{queue=\"q\",kind=\"other.kind\"} 1"]).await;

    // A worker of every kind serves them all.
    let any = worker(&bench.tenure, "q");
    bench.until("(SELECT unserved IS NULL FROM tenure.scanner_state)").await;
    until_page(address, "/metrics", &["tenure_unserved_jobs{queue=\"q\",kind=\"other.kind\"} 0"]).await;
    any.stop().await;
    knows.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_without_a_worker_says_both() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.tenure.limit_queue("q", QueueLimits::new().max_queued(2)).await.unwrap();
    for n in 0..2 {
        bench.tenure.enqueue(JobRequest::new("q", "k", json!(n))).await.unwrap();
    }
    bench.tenure.flush().await;
    let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
    let wrong = find(&checks, "queue", "q");
    assert_eq!(wrong.state, CheckState::Wrong);
    let both = "full: 2 jobs queued, and enqueues are refused; no worker serves this queue; 2 jobs due, ";
    assert!(wrong.found.starts_with(both), "{wrong:?}");
    assert!(wrong.to_do.as_deref().unwrap().contains("start a worker that serves q"), "{wrong:?}");
    assert_eq!(bench.program(&["doctor"]).output().await.unwrap().status.code(), Some(1));
}

/// Its only worker is frozen, and still connected: its queue is not active.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_only_worker_is_seen() {
    let bench = calm().await;
    let others = worker(&bench.tenure, "other");
    let mut command = bench.program(&["work", "q", "--exec", "sleep 100"]);
    command.env("TENURE_RENEW_EVERY", "400ms");
    let mut only = Child::spawn(command, "visible-frozen");
    bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    bench.until_count("tenure.queue_stats WHERE queue = 'q' AND processing = 1", 1).await;
    only.signal(Signal::STOP);
    bench
        .until("(SELECT last_seen_at < now() - 3 * renew_every FROM tenure.workers WHERE 'q' = ANY (queues))")
        .await;
    let q = listed(&bench, "q").await;
    assert_eq!((&q["workers"], &q["processing"]), (&json!(0), &json!(1)));
    assert!(q["last_seen_s"].as_f64().unwrap() > 1.0, "{q}");
    let table = bench.program(&["queues", "list"]).output().await.unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().any(|line| line.contains("no worker") && line.contains(" ago")), "{table}");
    let address = free_address();
    let listen = address.to_string();
    let _serve = Child::spawn(bench.program(&["serve", "--listen", &listen]), "visible-serve");
    let parts =
        ["1 worker is silent.", "No worker serves q.", "Its last worker was seen ", "1 of its jobs count"];
    until_page(address, "/", &parts).await;
    let queues = page(address, "/queues").await;
    let row = queues.split("id=\"queue-q\"").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(row.contains("no worker") && row.contains("seen "), "{row}");
    only.signal(Signal::CONT);
    only.kill().await;
    others.stop().await;
}

/// The kinds that the list of the stream leaves out count under an empty kind, less the rows of those kinds; and no join
/// is a loop over the kinds of the stream and those of the workers.
#[tokio::test(flavor = "multi_thread")]
async fn many_kinds_of_messages_and_of_workers_are_counted_quickly() {
    let bench = bench().await;
    for n in 0..10 {
        let worker = format!(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, boot_id, lock_file, queues, kinds, renew_every, slots, version)
             SELECT 'w{n}', 'h', 1, '', '', ARRAY['q', 'q{n}'], array_agg('kind.' || k), '1 h', 1, ''
               FROM generate_series({n}, 10000) k"
        );
        bench.execute(&worker).await;
    }
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, published_at)
             SELECT gen_random_uuid(), 'q', 'unlisted.' || n % 2, '1', 5, now(), now() FROM generate_series(1, 8) n",
        )
        .await;
    let began = Instant::now();
    let kinds: Vec<String> = (0..10_000).map(|n| format!("kind.{}", 2 * n)).chain([String::new()]).collect();
    let rows = sqlx::query(statement("measure"))
        .bind(vec!["q"; kinds.len()])
        .bind(&kinds)
        .bind(vec![10_i64; kinds.len()])
        .bind(vec![0_i64; kinds.len()])
        .bind(60.0)
        .bind(false)
        .fetch_all(&bench.pool)
        .await
        .unwrap();
    let took = began.elapsed();
    let of_queue = rows.iter().find(|row| row.get::<Option<&str>, _>("kind").is_none()).unwrap();
    assert_eq!(
        of_queue.get::<i64, _>("submitted"),
        100_000 + 2,
        "ten of each, less the rows of the unlisted kinds"
    );
    let unserved = rows.iter().filter(|row| row.get::<Option<bool>, _>("is_served") == Some(false));
    let is_known =
        |kind: &str| kind.strip_prefix("kind.").is_some_and(|n| n.parse::<u32>().unwrap() <= 10_000);
    assert!(unserved.clone().all(|row| !is_known(row.get("kind"))));
    assert_eq!(unserved.count(), 200);
    // A loop over both would compare 500 million names.
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// A scan reads the live jobs once for all of its counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_counts_rows_and_messages_in_one_pass() {
    let bench = bench().await;
    let mut connection = PgConnection::connect(&bench.config.database_url).await.unwrap();
    for name in ["measure", "doctor_kinds"] {
        let last = if name == "measure" { "150, true" } else { "NULL" };
        let explain = format!(
            "PREPARE counts AS {}; EXPLAIN EXECUTE counts (ARRAY['q'], ARRAY['k'], ARRAY[1], ARRAY[0], {last})",
            statement(name)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
        assert_eq!(plan.matches(" on jobs").count(), 1, "{name}:\n{plan}");
        sqlx::raw_sql("DEALLOCATE counts").execute(&mut connection).await.unwrap();
    }
}
