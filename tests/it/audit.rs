//! The audit: who did what to how many jobs, noted by the statement that acts.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use tenure::{
    JobId, JobRequest, Tenure,
    audit::{Actor, AuditFilter},
    jobs::CancelOutcome,
    lanes::{LaneOptions, Lanes},
    queues::{QueueEvents, QueueLimits},
    redrives::CalmRedrive,
    rows::DeadFilter,
    schedules::{Overlap, Schedule},
};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Running, bench, bench_with, bench_with_servers},
};

fn later() -> JobRequest {
    JobRequest::new("q", "k", json!(1)).delay(Duration::from_secs(3_600))
}

async fn waits(bench: &Bench) -> JobId {
    bench.tenure.enqueue(later()).await.unwrap().id
}

async fn dead(bench: &Bench, jobs: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        let id = waits(bench).await;
        bench
            .execute(&format!(
                "WITH gone AS (DELETE FROM tenure.jobs WHERE id = '{id}' RETURNING *)
                 INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token,
                        losses, created_at, scheduled_at, died_at, last_error, category,
                        execution_history)
                 SELECT id, queue, kind, payload, 0, 1, 0, 0, created_at, now(), now(), 'no', 'permanent', '[]' FROM gone"
            ))
            .await;
        ids.push(id);
    }
    ids
}

/// The acts, oldest first: what, on which queue, on what, how many jobs.
async fn acts(tenure: &Tenure) -> Vec<(String, Option<String>, Option<String>, Option<u64>)> {
    let mut acts = tenure.audit(&AuditFilter::new(), 1_000).await.unwrap();
    acts.reverse();
    acts.into_iter().map(|act| (act.act, act.queue, act.subject, act.jobs)).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one act after the other")]
async fn each_act_is_noted_once_with_what_it_was_on_and_how_many_jobs() {
    let bench = bench().await;
    let by = bench.tenure.acting_as(Actor::new("alice").via("back office"));
    let mut expected: Vec<(&str, Option<&str>, Option<String>, Option<u64>)> = Vec::new();

    let one = waits(&bench).await;
    by.cancel(one).await.unwrap();
    expected.push(("cancel", Some("q"), Some(one.to_string()), Some(1)));
    let many = [waits(&bench).await, waits(&bench).await];
    let other = bench.tenure.enqueue(JobRequest::new("r", "k", json!(1)).delay(Duration::from_secs(9))).await;
    by.cancel_many(&[many[0], many[1]]).await.unwrap();
    expected.push(("cancel", Some("q"), None, Some(2)));
    // Of several queues.
    let third = waits(&bench).await;
    by.cancel_many(&[third, other.unwrap().id, one]).await.unwrap();
    expected.push(("cancel", None, None, Some(2)));
    let due = waits(&bench).await;
    by.retry(due).await.unwrap();
    expected.push(("run_now", Some("q"), Some(due.to_string()), Some(1)));

    let letters = dead(&bench, 5).await;
    by.redrive(&letters[..2]).await.unwrap();
    expected.push(("redrive", Some("q"), None, Some(2)));
    by.purge_dead_jobs(&letters[..3]).await.unwrap();
    expected.push(("purge_dead", Some("q"), Some(letters[2].to_string()), Some(1)));
    let calm = by.redrive_calmly(&DeadFilter::new().queue("q"), CalmRedrive::new()).await.unwrap().unwrap();
    expected.push(("redrive_calmly", Some("q"), Some(calm.id.to_string()), Some(2)));
    assert!(by.stop_redrive(calm.id).await.unwrap());
    expected.push(("stop_redrive", Some("q"), Some(calm.id.to_string()), Some(2)));

    by.pause_queue("q").await.unwrap();
    expected.push(("pause_queue", Some("q"), None, None));
    by.resume_queue("q").await.unwrap();
    expected.push(("resume_queue", Some("q"), None, None));
    by.limit_queue("q", QueueLimits::new().max_queued(100)).await.unwrap();
    expected.push(("limit_queue", Some("q"), None, None));
    by.set_events("q", QueueEvents::Ends).await.unwrap();
    expected.push(("set_events", Some("q"), None, None));

    by.put_lanes("l", Lanes::new().running(2)).await.unwrap();
    expected.push(("put_lanes", Some("l"), None, None));
    by.set_lane("l", "org-7", LaneOptions::new().weight(2.0)).await.unwrap();
    expected.push(("set_lane", Some("l"), Some("org-7".into()), None));
    by.set_lane("l", "org-7", LaneOptions::new().weight(2.0)).await.unwrap();
    by.remove_lanes("l").await.unwrap();
    expected.push(("remove_lanes", Some("l"), None, None));

    let nightly = || Schedule::new("nightly", "0 3 * * *", JobRequest::new("q", "k", json!(1)));
    by.put_schedule(nightly()).await.unwrap();
    expected.push(("put_schedule", Some("q"), Some("nightly".into()), None));
    by.pause_schedule("nightly").await.unwrap();
    expected.push(("pause_schedule", Some("q"), Some("nightly".into()), None));
    by.resume_schedule("nightly").await.unwrap();
    expected.push(("resume_schedule", Some("q"), Some("nightly".into()), None));

    let asked = bench.tenure.enqueue(JobRequest::new("w", "k", json!(1))).await.unwrap().id;
    let handler = async |_: Value, ctx: tenure::JobContext| {
        ctx.cancelled().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok::<_, tenure::JobError>(tenure::Outcome::Cancel("asked".into()))
    };
    let options = tenure::KindOptions::new().keepalive();
    let worker = tenure::Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("w", 1);
    let worker = Running::start(worker);
    bench.until_count("tenure.jobs WHERE status = 'processing'", 1).await;
    // Asked three times, once by SQL: the first is the act.
    assert!(matches!(by.cancel(asked).await.unwrap(), CancelOutcome::Asked { .. }));
    by.cancel(asked).await.unwrap();
    bench.execute(&format!("DO $$ BEGIN PERFORM tenure.cancel('{asked}'); END $$")).await;
    expected.push(("cancel", Some("w"), Some(asked.to_string()), Some(1)));
    bench.until_finished(asked).await;
    let id = bench.value::<String>("SELECT worker_id FROM tenure.workers").await;
    by.drain_worker(&id).await.unwrap();
    expected.push(("drain_worker", None, Some(id), None));
    worker.stop().await;

    // What changes nothing is no act: not what is so already, and not what a program says at each start.
    by.cancel(one).await.unwrap();
    by.redrive(&letters[..2]).await.unwrap();
    by.purge_dead_jobs(&letters[..3]).await.unwrap();
    by.stop_redrive(calm.id).await.unwrap();
    by.resume_queue("q").await.unwrap();
    by.limit_queue("q", QueueLimits::new().max_queued(100)).await.unwrap();
    by.set_events("q", QueueEvents::Ends).await.unwrap();
    by.remove_lanes("l").await.unwrap();
    by.put_schedule(nightly()).await.unwrap();
    by.resume_schedule("nightly").await.unwrap();
    by.put_lanes("m", Lanes::new().running(2)).await.unwrap();
    expected.push(("put_lanes", Some("m"), None, None));
    by.put_lanes("m", Lanes::new().running(2)).await.unwrap();
    by.pause_queue("q").await.unwrap();
    expected.push(("pause_queue", Some("q"), None, None));
    by.pause_queue("q").await.unwrap();

    by.put_schedule(nightly().overlap(Overlap::Skip)).await.unwrap();
    expected.push(("put_schedule", Some("q"), Some("nightly".into()), None));
    by.remove_schedule("nightly").await.unwrap();
    expected.push(("remove_schedule", Some("q"), Some("nightly".into()), None));
    by.remove_schedule("nightly").await.unwrap();

    let told = waits(&bench).await;
    // A program's own signal is the course of its jobs; a person's is an act.
    assert_eq!(bench.tenure.signal(told, "ready", &1).await.unwrap(), tenure::groups::Signalled::Delivered);
    assert_eq!(by.signal(told, "approved", &1).await.unwrap(), tenure::groups::Signalled::Delivered);
    expected.push(("signal", Some("q"), Some(told.to_string()), Some(1)));

    let noted = acts(&bench.tenure).await;
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(act, queue, on, jobs)| (act.to_owned(), queue.map(str::to_owned), on, jobs))
        .collect();
    assert_eq!(noted, expected);
    let rows = bench.tenure.audit(&AuditFilter::new(), 1_000).await.unwrap();
    let role = bench.text("SELECT (current_user::text)").await;
    for row in &rows {
        assert_eq!((row.actor.as_deref(), row.via.as_str()), (Some("alice"), "back office"));
        assert_eq!(format!("({})", row.role), role);
        assert!(row.address.as_deref() == Some("127.0.0.1"), "{:?}", row.address);
    }
    let of = |act: &str| {
        rows.iter().find(|row| row.act == act).unwrap().details.as_ref().unwrap().get().to_owned()
    };
    let details = |act: &str| serde_json::from_str::<Value>(&of(act)).unwrap();
    assert_eq!(details("limit_queue"), json!({ "max_running": null, "max_queued": 100 }));
    assert_eq!(details("set_events"), json!({ "events": "ends" }));
    assert_eq!(details("redrive_calmly"), json!({ "queue": "q" }));
    assert_eq!(details("signal"), json!({ "event": "approved" }));
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_that_cannot_be_noted_is_not_done() {
    let bench = bench().await;
    let job = waits(&bench).await;
    let letters = dead(&bench, 2).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'no room for the note'; END $$",
        )
        .await;
    bench
        .execute("CREATE TRIGGER refuse BEFORE INSERT ON tenure.audit FOR EACH ROW EXECUTE FUNCTION refuse()")
        .await;
    let by = &bench.tenure;
    let refused = |error: String| assert!(error.contains("no room for the note"), "{error}");
    refused(chain(&by.cancel(job).await.unwrap_err()));
    refused(chain(&by.retry(job).await.unwrap_err()));
    refused(chain(&by.redrive(&letters).await.unwrap_err()));
    // Postgres answers before it gives up the locks, and a purge passes over locked rows.
    bench
        .until(
            "NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'tenure.dead_letter_jobs'::regclass
                          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                          AND pid <> pg_backend_pid())",
        )
        .await;
    refused(chain(&by.purge_dead(&DeadFilter::new()).await.unwrap_err()));
    refused(chain(&by.pause_queue("q").await.unwrap_err()));
    refused(chain(&by.put_lanes("q", Lanes::new().running(1)).await.unwrap_err()));
    let sql = sqlx::query(AssertSqlSafe(format!("SELECT tenure.cancel('{job}')"))).execute(&bench.pool).await;
    refused(sql.unwrap_err().to_string());
    let row = by.job(job).await.unwrap().unwrap();
    assert!(row.scheduled_at > chrono::Utc::now(), "it was not made due");
    assert_eq!(bench.count("tenure.jobs").await, 1);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 2);
    assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 0);
    assert_eq!(bench.count("tenure.lane_settings").await, 0);
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn what_tenure_does_by_itself_is_no_act() {
    let bench = bench().await;
    let every = Schedule::new("often", "* * * * * *", JobRequest::new("q", "k", json!(1)));
    bench.tenure.put_schedule(every.overlap(Overlap::Cancel)).await.unwrap();
    let handler = async |_: Value, ctx: tenure::JobContext| {
        ctx.cancelled().await;
        Ok::<_, tenure::JobError>(tenure::Outcome::Cancel("the next one begins".into()))
    };
    let options = tenure::KindOptions::new().keepalive();
    let worker = tenure::Worker::builder(&bench.tenure).handle_any(options, handler).concurrency("q", 4);
    let worker = Running::start(worker);
    bench.until("(SELECT count(*) >= 2 FROM tenure.job_history WHERE status = 'cancelled')").await;
    worker.stop().await;
    let noted: Vec<_> = acts(&bench.tenure).await.into_iter().map(|(act, ..)| act).collect();
    assert_eq!(noted, ["put_schedule"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_notes_a_cancellation_with_its_transaction() {
    let bench = bench().await;
    let (kept, rolled_back) = (waits(&bench).await, waits(&bench).await);
    let cancel = |job: JobId| sqlx::query("SELECT tenure.cancel($1)").bind(job);
    let mut transaction = bench.pool.begin().await.unwrap();
    cancel(rolled_back).execute(&mut *transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    let mut transaction = bench.pool.begin().await.unwrap();
    cancel(kept).execute(&mut *transaction).await.unwrap();
    // Nothing to cancel: no act.
    cancel(kept).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    let rows = bench.tenure.audit(&AuditFilter::new(), 10).await.unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.via.as_str(), row.act.as_str(), row.jobs), ("sql", "cancel", Some(1)));
    assert_eq!((row.subject.clone(), row.queue.as_deref()), (Some(kept.to_string()), Some("q")));
    assert_eq!(row.actor, None);
}

/// The shipped roles act, and none of them writes history: not who or when, and nothing is changed or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn no_role_chooses_its_name_or_changes_the_audit() {
    let bench = bench_with_servers(|_| {}).await;
    let by = crate::security::with_roles(&bench).await;
    let (operator, of_operator) = by("operator").await;
    // A producer's user signals, and is noted.
    let (producer, _) = by("producer").await;
    let told = waits(&bench).await;
    assert_eq!(
        producer.acting_as(Actor::new("ann")).signal(told, "approved", &1).await.unwrap(),
        tenure::groups::Signalled::Delivered
    );
    assert_eq!(producer.signal(told, "ready", &1).await.unwrap(), tenure::groups::Signalled::Delivered);
    let rows = operator.audit(&AuditFilter::new().by("a_producer"), 10).await.unwrap();
    assert!(rows.len() == 1 && rows[0].actor.as_deref() == Some("ann"), "{rows:?}");
    bench.execute("DELETE FROM tenure.audit").await;
    operator.cancel(waits(&bench).await).await.unwrap();
    operator.pause_queue("q").await.unwrap();
    sqlx::query("SELECT tenure.cancel($1)").bind(waits(&bench).await).execute(&of_operator).await.unwrap();
    let rows = operator.audit(&AuditFilter::new().by("a_operator"), 10).await.unwrap();
    let acts: Vec<_> = rows.iter().map(|row| (row.act.as_str(), row.via.as_str())).collect();
    assert_eq!(acts, [("cancel", "sql"), ("pause_queue", "library"), ("cancel", "library")]);
    let (viewer, of_viewer) = by("viewer").await;
    assert_eq!(viewer.audit(&AuditFilter::new(), 10).await.unwrap().len(), 3);
    let (_, of_worker) = by("worker").await;
    for pool in [&of_operator, &of_worker] {
        crate::security::denied(
            pool,
            &[
                "INSERT INTO tenure.audit (role, via, act) VALUES ('somebody', 'sql', 'cancel')",
                "INSERT INTO tenure.audit (at, via, act) VALUES ('2020-01-01', 'sql', 'cancel')",
                "INSERT INTO tenure.audit (address, via, act) VALUES ('10.0.0.1', 'sql', 'cancel')",
                "UPDATE tenure.audit SET actor = 'somebody'",
                "DELETE FROM tenure.audit",
                "TRUNCATE tenure.audit",
            ],
        )
        .await;
    }
    crate::security::denied(
        &of_viewer,
        &[
            "INSERT INTO tenure.audit (via, act) VALUES ('sql', 'cancel')",
            "SELECT tenure.purge_audit('1 year', 1)",
        ],
    )
    .await;
    // A worker's right to purge hides nothing that is recent, by whichever setting.
    bench.execute("UPDATE tenure.audit SET at = at - interval '29 days'").await;
    let purge = "SELECT tenure.purge_audit('1 hour', 100)";
    let gone = sqlx::query(purge).fetch_one(&of_worker).await.unwrap().get::<i64, _>(0);
    assert_eq!(gone, 0);
    bench.execute("UPDATE tenure.audit SET at = at - interval '2 days'").await;
    let gone = sqlx::query(purge).fetch_one(&of_worker).await.unwrap().get::<i64, _>(0);
    assert_eq!(gone, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_acts_leave_after_their_time() {
    let bench = bench_with(|config| {
        config.timing.scan_every = Duration::from_millis(100);
        config.retention.audit = Some(Duration::from_secs(40 * 86_400));
    })
    .await;
    for days in [39, 41] {
        bench.tenure.cancel(waits(&bench).await).await.unwrap();
        let old = format!(
            "UPDATE tenure.audit SET at = at - interval '{days} days' WHERE at > now() - interval '1 day'"
        );
        bench.execute(&old).await;
    }
    bench.execute("UPDATE tenure.scanner_state SET purged_at = NULL, swept_at = NULL").await;
    let worker = tenure::Worker::builder(&bench.tenure)
        .handle_any(tenure::KindOptions::new(), async |_: Value, _: tenure::JobContext| {
            Ok::<_, tenure::JobError>(())
        })
        .concurrency("q", 1);
    let worker = Running::start(worker);
    bench.until("(SELECT swept_at >= purged_at FROM tenure.scanner_state)").await;
    worker.stop().await;
    assert_eq!(bench.count("tenure.audit").await, 1);
    assert_eq!(bench.count("tenure.audit WHERE at < now() - interval '40 days'").await, 0);
}

async fn run(bench: &Bench, arguments: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let mut command = bench.program(arguments);
    command.envs(variables.iter().copied());
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_names_its_user_and_finds_acts() {
    let bench = bench().await;
    let (first, second) = (waits(&bench).await.to_string(), waits(&bench).await.to_string());
    run(&bench, &["jobs", "cancel", &first], &[("USER", "grace")]).await;
    run(&bench, &["jobs", "cancel", &second], &[("TENURE_ACTOR", "deploy 17")]).await;
    run(&bench, &["queues", "pause", "q", "--create"], &[("USER", ""), ("LOGNAME", "")]).await;
    let list = async |more: &[&str]| -> Vec<Value> {
        let (out, errors) = run(&bench, &[&["audit", "--output", "json"], more].concat(), &[]).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{errors}"))
    };
    let all = list(&[]).await;
    let who: Vec<_> = all.iter().map(|act| act["actor"].as_str().unwrap().to_owned()).collect();
    assert!(who[0].starts_with("uid ") && who[1] == "deploy 17" && who[2].starts_with("grace@"), "{who:?}");
    assert!(all.iter().all(|act| act["via"] == "command line"));
    for (filter, found) in [
        (&["--by", "deploy 17"][..], 1),
        (&["--act", "cancel"], 2),
        (&["--on", &first], 1),
        (&["--queue", "q"], 3),
        (&["--queue", "other"], 0),
        (&["--since", "1h"], 3),
        (&["--since", "0s"], 0),
        (&["--limit", "2"], 2),
        (&["--before", &all[1]["id"].to_string()], 1),
        (&["--act", "nothing"], 0),
    ] {
        assert_eq!(list(filter).await.len(), found, "{filter:?}");
    }
    let (table, errors) = run(&bench, &["audit", "--limit", "3"], &[("COLUMNS", "200")]).await;
    for part in ["WHO", "deploy 17", "command line", "127.0.0.1", "cancel", "pause_queue", &first] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(errors.contains("--before"), "{errors}");
    let (_, errors) = run(&bench, &["audit", "--queue", "a b"], &[]).await;
    assert!(errors.contains("queue"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_api_name_their_users_and_a_page_shows_the_acts() {
    let bench = bench().await;
    let evil = "<script>pwned()</script>";
    let settings = [("TENURE_SERVE_AUTH", "proxy"), ("TENURE_SERVE_API", "true")];
    let dashboard = Dashboard::start(&bench, &["--actions"], &settings).await;
    let post = async |path: &str, user: &str| {
        let headers =
            [("Cookie", "tenure_csrf=abc"), ("Sec-Fetch-Site", "same-origin"), ("X-Forwarded-User", user)];
        dashboard.ask("POST", path, &headers, "csrf=abc&back=%2Fjobs").await
    };
    let (first, second) = (waits(&bench).await, waits(&bench).await);
    assert_eq!(post(&format!("/jobs/{first}/cancel"), "ada").await.status, 303);
    assert_eq!(post("/queues/q/pause", evil).await.status, 303);
    let headers = [("X-Forwarded-User", "robot"), ("Content-Type", "application/json")];
    let answer = dashboard.ask("POST", &format!("/api/v1/jobs/{second}/cancel"), &headers, "").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let rows = bench.tenure.audit(&AuditFilter::new(), 10).await.unwrap();
    let who: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| (row.act.as_str(), row.actor.as_deref().unwrap(), row.via.as_str()))
        .collect();
    assert_eq!(
        who,
        [("cancel", "ada", "dashboard"), ("pause_queue", evil, "dashboard"), ("cancel", "robot", "api")]
    );

    let get = async |path: &str| dashboard.ask("GET", path, &[("X-Forwarded-User", "ada")], "").await;
    let page = get("/audit").await.body;
    assert!(!page.contains("<script>pwned") && page.contains("&lt;script&gt;pwned"), "{page}");
    for part in ["ada", "robot", "dashboard", "pause_queue", &format!("/jobs/{first}\""), "/queues/q\""] {
        assert!(page.contains(part), "{part}");
    }
    let page = get("/audit?by=robot").await.body;
    assert!(page.contains(&second.to_string()) && !page.contains(&first.to_string()));
    let page = get("/audit?act=nothing").await.body;
    assert!(page.contains("No acts"));
    assert_eq!(get("/audit?before=x").await.status, 400);
    // Two pages.
    bench
        .execute(
            "INSERT INTO tenure.audit (via, act) SELECT 'sql', 'act_' || n FROM generate_series(1, 60) n",
        )
        .await;
    let page = get("/audit").await.body;
    assert!(page.contains("act_60<") && page.contains("act_11<") && !page.contains("act_10<"));
    let (_, older) = page.split_once("/audit?before=").unwrap();
    let older = older.split('"').next().unwrap();
    let page = get(&format!("/audit?before={older}")).await.body;
    assert!(page.contains("act_10<") && page.contains("ada") && page.contains("Newest"));
}
