//! Quarantine: while a kind mostly fails its jobs wait, and one at a time is tried.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use sqlx::Row as _;
use tenure::{
    Backoff, Job, JobContext, JobError, JobRequest, KindOptions, Worker,
    audit::AuditFilter,
    batches::{Batch, BatchContext, Item, Verdict},
    kinds::Quarantine,
    lanes::Lanes,
    queues::QueueLimits,
    rows::QuarantineRow,
};

use crate::{
    dashboard::Dashboard,
    harness::{Bench, Running, bench, statement},
};

/// A dependency that works or not, and how often it was called.
#[derive(Clone, Default)]
struct Bank {
    works: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Bank {
    fn worker(&self, bench: &Bench) -> Running {
        let bank = self.clone();
        let charge = move |_: Value, _: JobContext| {
            let bank = bank.clone();
            async move {
                bank.calls.fetch_add(1, Ordering::SeqCst);
                if bank.works.load(Ordering::SeqCst) {
                    Ok(())
                } else {
                    Err(JobError::msg("no route to the bank"))
                }
            }
        };
        let at_once = Backoff {
            first: Duration::from_millis(50),
            longest: Duration::from_millis(50),
            ..Backoff::DEFAULT
        };
        let greet = async |_: Value, _: JobContext| Ok::<_, JobError>(());
        let worker = Worker::builder(&bench.tenure)
            .handle_kind("charge", KindOptions::new().backoff(at_once), charge)
            .handle_kind("greet", KindOptions::new(), greet);
        Running::start(worker.concurrency("q", SLOTS))
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

const SLOTS: u32 = 4;

/// More than 30 % of at least ten attempts within a minute.
fn rule() -> Quarantine {
    Quarantine::when_failed(0.3).of(10).within(Duration::from_secs(60)).probe_every(Duration::from_secs(1))
}

async fn enqueue(bench: &Bench, kind: &str, jobs: usize) {
    // Each attempt that fails before the quarantine is charged.
    let job = |n| JobRequest::new("q", kind, json!(n)).max_attempts(1_000);
    bench.tenure.enqueue_many((0..jobs).map(job)).await.unwrap();
}

async fn watched(bench: &Bench) -> QuarantineRow {
    bench.tenure.quarantines().await.unwrap().pop().unwrap()
}

const IN_QUARANTINE: &str = "EXISTS (SELECT FROM tenure.quarantines WHERE began_at IS NOT NULL)";

/// A kind in quarantine, all jobs of which wait.
async fn in_quarantine(bench: &Bench, bank: &Bank, jobs: usize) -> Running {
    assert!(bench.tenure.put_quarantine("charge", rule()).await.unwrap());
    let worker = bank.worker(bench);
    enqueue(bench, "charge", jobs).await;
    bench.until(IN_QUARANTINE).await;
    bench
        .until("(SELECT count(*) FROM tenure.jobs WHERE kind = 'charge' AND scheduled_at > now() + '5 minutes') >= 20")
        .await;
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_mostly_fails_waits_but_for_one_job_at_a_time_and_runs_again_once_that_completes() {
    let bench = bench().await;
    let bank = Bank::default();
    let worker = in_quarantine(&bench, &bank, 60).await;
    let began = watched(&bench).await;
    assert!(began.failed >= Some(10) && began.failed == began.ended, "{began:?}");
    // From here on, the probes alone call the bank.
    bench.until("(SELECT count(*) FROM tenure.jobs WHERE kind = 'charge' AND scheduled_at > now() + '1 minute') >= 59").await;
    let (calls, probes) = (bank.calls(), watched(&bench).await.probes);
    enqueue(&bench, "greet", 5).await;
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE kind = 'greet') = 5").await;
    for n in 0..40 {
        let job = JobRequest::new("q", "charge", json!({ "later": n })).max_attempts(2);
        bench.tenure.enqueue(job).await.unwrap();
    }
    bench.until(&format!("(SELECT probes FROM tenure.quarantines) >= {}", probes + 3)).await;
    let (called, probed) = (u64::from(bank.calls() - calls), watched(&bench).await.probes - probes);
    assert!(called <= probed + 1, "{called} calls for {probed} probes");
    assert_eq!(watched(&bench).await.last_probe.as_deref(), Some("failed"));
    assert_eq!(bench.count("tenure.job_history WHERE kind = 'charge'").await, 0);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    let charged = "tenure.jobs WHERE kind = 'charge' AND payload ? 'later' AND attempt > 0";
    assert!(u64::try_from(bench.count(charged).await).unwrap() <= probed, "a job that waits pays no attempt");
    let errors = bench.text("SELECT DISTINCT last_error FROM tenure.jobs WHERE last_error IS NOT NULL").await;
    assert_eq!(errors, "(\"no route to the bank\")", "the last error of a job that waits stays");

    bank.works.store(true, Ordering::SeqCst);
    bench
        .until_within(
            "(SELECT count(*) FROM tenure.job_history WHERE kind = 'charge') = 100",
            Duration::from_secs(30),
        )
        .await;
    let ended = watched(&bench).await;
    assert_eq!((ended.began_at, ended.last_probe.as_deref(), ended.waiting), (None, Some("completed"), 0));
    let why = "SELECT error FROM tenure.job_executions_all WHERE outcome = 'snoozed' LIMIT 1";
    let why: String = bench.value(why).await;
    assert!(why.starts_with("the kind is in quarantine: ") && why.ends_with(" attempts had failed"), "{why}");
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_a_quarantine_and_watches_a_kind_no_more() {
    let bench = bench().await;
    let bank = Bank::default();
    assert!(!bench.tenure.end_quarantine("charge").await.unwrap(), "the kind is not in quarantine");
    assert!(!bench.tenure.remove_quarantine("charge").await.unwrap(), "it is not watched");
    let worker = in_quarantine(&bench, &bank, 40).await;
    assert!(!bench.tenure.put_quarantine("charge", rule()).await.unwrap(), "nothing has changed");
    assert!(watched(&bench).await.began_at.is_some(), "the quarantine goes on");
    bank.works.store(true, Ordering::SeqCst);
    assert!(bench.tenure.end_quarantine("charge").await.unwrap());
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 40", Duration::from_secs(30)).await;

    bank.works.store(false, Ordering::SeqCst);
    enqueue(&bench, "charge", 40).await;
    bench.until(IN_QUARANTINE).await;
    bench
        .until("(SELECT count(*) FROM tenure.jobs WHERE kind = 'charge' AND scheduled_at > now() + '5 minutes') >= 20")
        .await;
    bank.works.store(true, Ordering::SeqCst);
    assert!(bench.tenure.remove_quarantine("charge").await.unwrap());
    assert!(bench.tenure.quarantines().await.unwrap().is_empty());
    assert!(!bench.tenure.remove_quarantine("charge").await.unwrap());
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 80", Duration::from_secs(30)).await;
    let acts = bench.tenure.audit(&AuditFilter::new().subject("charge"), 10).await.unwrap();
    let acts: Vec<_> = acts.iter().rev().map(|of| of.act.as_str()).collect();
    assert_eq!(acts, ["put_quarantine", "end_quarantine", "remove_quarantine"]);
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

/// Puts a rule into quarantine by hand, with a probe that is due.
async fn due(bench: &Bench) {
    bench.tenure.put_quarantine("charge", rule()).await.unwrap();
    bench
        .execute(
            "UPDATE tenure.quarantines SET began_at = now(), ended = 10, failed = 9, next_probe_at = now(), \
             probe_job = NULL, probe_token = NULL, last_probe = NULL",
        )
        .await;
}

const JOB: &str = "00000000-0000-7000-8000-000000000001";

/// Two workers ask at the same moment: the second waits for the first one's answer.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_workers_that_ask_at_once_one_tries_its_job() {
    let bench = bench().await;
    due(&bench).await;
    let ask = |token: i64| {
        sqlx::query(statement("take_probe"))
            .bind("charge")
            .bind(JOB.parse::<uuid::Uuid>().unwrap())
            .bind(token)
            .bind(false)
    };
    let mut first = bench.pool.begin().await.unwrap();
    let answer: String = ask(1).fetch_one(&mut *first).await.unwrap().get("answer");
    assert_eq!(answer, "probe");
    let pool = bench.pool.clone();
    let second =
        tokio::spawn(async move { ask(2).fetch_one(&pool).await.unwrap().get::<String, _>("answer") });
    bench.until("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())").await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), "wait");
    bench.execute("UPDATE tenure.quarantines SET began_at = NULL").await;
    let answer: String = ask(3).fetch_one(&bench.pool).await.unwrap().get("answer");
    assert_eq!(answer, "ended");
}

/// By the statement alone: each end that a probe can have.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_ends_a_quarantine_only_if_its_job_has_completed_under_its_token() {
    let bench = bench().await;
    let live = |status: &str, token: u32| {
        let claim = match status {
            "processing" => "gen_random_uuid(), 'w', 'h', interval '1 minute', now(), now()",
            _ => "NULL, NULL, NULL, NULL, NULL, NULL",
        };
        format!(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, attempt, fencing_token, status, claim_id,
                    worker_id, worker_host, stale_after, last_activity_at, started_at, scheduled_at, publish_at)
             SELECT '{JOB}', 'q', 'charge', '1', 5, 1, {token}, '{status}', {claim}, now(),
                    CASE '{status}' WHEN 'queued' THEN now() END"
        )
    };
    let execution = |outcome: &str, token: u32| {
        format!(
            "INSERT INTO tenure.job_executions (job_id, fencing_token, attempt, claim_id, worker_id, started_at,
                    finished_at, outcome)
             VALUES ('{JOB}', {token}, 1, gen_random_uuid(), 'w', now(), now(), '{outcome}')"
        )
    };
    let finished = |status: &str, token: u32| {
        format!(
            "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
                    claim_id, worker_id, created_at, scheduled_at, started_at, finished_at)
             VALUES ('{JOB}', 'q', 'charge', '1', '{status}', 1, 5, {token}, gen_random_uuid(), 'w', now(), now(), now(),
                     now())"
        )
    };
    let dead = format!(
        "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
                scheduled_at, died_at, dispatch, last_error, category, execution_history)
         VALUES ('{JOB}', 'q', 'charge', '1', 5, 5, 7, now(), now(), now(), 0, 'no', 'permanent', '[]')"
    );
    let cases: [(&str, Vec<String>, Option<&str>); 11] = [
        ("it runs", vec![live("processing", 7)], None),
        ("it has completed", vec![finished("completed", 7)], Some("ended")),
        ("it has completed, and its kind keeps nothing", vec![], Some("ended")),
        ("it is gone", vec![], Some("undecided")),
        ("it has failed", vec![live("queued", 7), execution("retried", 7)], Some("failed")),
        ("its worker has died", vec![live("processing", 8), execution("lost", 7)], Some("failed")),
        ("it is dead", vec![dead], Some("failed")),
        ("it waits for an event", vec![live("queued", 7), execution("snoozed", 7)], Some("undecided")),
        (
            "its worker has given it back",
            vec![live("processing", 8), execution("released", 7)],
            Some("undecided"),
        ),
        ("it was cancelled", vec![finished("cancelled", 7)], Some("undecided")),
        ("a later attempt has completed", vec![finished("completed", 8)], Some("undecided")),
    ];
    for (case, rows, expected) in cases {
        due(&bench).await;
        let keeps_nothing = case.ends_with("keeps nothing");
        let of = format!(
            "UPDATE tenure.quarantines SET probe_job = '{JOB}', probe_token = 7, next_probe_at = NULL, probe_keeps_nothing = {keeps_nothing}"
        );
        bench.execute(&of).await;
        for row in &rows {
            assert_eq!(bench.execute(row).await, 1, "{case}: {row}");
        }
        let changes = sqlx::query(statement("tend_quarantines")).fetch_all(&bench.pool).await.unwrap();
        let changes: Vec<String> = changes.iter().map(|row| row.get("change")).collect();
        assert_eq!(changes, expected.into_iter().collect::<Vec<_>>(), "{case}");
        let row = watched(&bench).await;
        assert_eq!(row.began_at.is_none(), expected == Some("ended"), "{case}");
        assert_eq!(row.probe_job.is_none(), expected.is_some(), "{case}");
        // After a failure, and after a job that waits by itself, the next probe waits, too.
        let is_due = row.next_probe_at.is_some_and(|at| at <= chrono::Utc::now());
        let is_at_once = expected == Some("undecided") && case != "it waits for an event";
        assert_eq!(is_due, is_at_once, "{case}");
        for table in ["jobs", "job_history", "job_executions", "dead_letter_jobs"] {
            bench.execute(&format!("DELETE FROM tenure.{table}")).await;
        }
    }
}

/// By the statement alone: what begins a quarantine.
#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_begins_above_the_share_of_enough_attempts_of_late() {
    let bench = bench().await;
    bench.tenure.put_quarantine("charge", rule()).await.unwrap();
    let report = |ended: i64, failed: i64, ago: &'static str| {
        let pool = bench.pool.clone();
        async move {
            sqlx::query(statement("report_quarantine"))
                .bind(vec!["charge", "unwatched"])
                .bind(vec![ended, 9])
                .bind(vec![failed, 9])
                .bind(Vec::<String>::new())
                .bind(Vec::<uuid::Uuid>::new())
                .execute(&pool)
                .await
                .unwrap();
            let sql = format!("UPDATE tenure.quarantine_counts SET at = at - interval '{ago}'");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        }
    };
    // The rule counts from when it was made; the test moves its counts into the past.
    let cases = [
        ("too few", 9, 9, "5 s", false),
        ("exactly the share", 10, 3, "5 s", false),
        ("above it", 10, 4, "5 s", true),
        ("above it, long ago", 10, 4, "61 s", false),
    ];
    for (case, ended, failed, ago, begins) in cases {
        bench.execute("DELETE FROM tenure.quarantine_counts").await;
        bench
            .execute(
                "UPDATE tenure.quarantines SET began_at = NULL, counted_from = now() - interval '1 hour'",
            )
            .await;
        report(ended, failed, ago).await;
        let changes = sqlx::query(statement("tend_quarantines")).fetch_all(&bench.pool).await.unwrap();
        assert_eq!(changes.len(), usize::from(begins), "{case}");
        assert_eq!(watched(&bench).await.began_at.is_some(), begins, "{case}");
    }
    // What ended before the last quarantine's end does not count.
    bench.execute("UPDATE tenure.quarantines SET began_at = NULL, counted_from = now()").await;
    bench.execute("UPDATE tenure.quarantine_counts SET at = now() - interval '5 s'").await;
    assert!(sqlx::query(statement("tend_quarantines")).fetch_all(&bench.pool).await.unwrap().is_empty());
}

/// What a rule of a day counts from its first moment on, although its counts are kept in pieces of 24 minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_of_a_day_counts_from_its_beginning() {
    let bench = bench().await;
    bench.tenure.put_quarantine("charge", rule().within(Duration::from_secs(86_400))).await.unwrap();
    let report = sqlx::query(statement("report_quarantine"))
        .bind(vec!["charge"])
        .bind(vec![10_i64])
        .bind(vec![10_i64]);
    report.bind(Vec::<String>::new()).bind(Vec::<uuid::Uuid>::new()).execute(&bench.pool).await.unwrap();
    assert_eq!(sqlx::query(statement("tend_quarantines")).fetch_all(&bench.pool).await.unwrap().len(), 1);
}

/// By the statement alone: which jobs are called.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_is_due_calls_a_job_that_waits_and_passes_over_those_that_are_gone_or_paused() {
    let bench = bench().await;
    due(&bench).await;
    let later = |queue: &str| JobRequest::new(queue, "charge", json!(1)).delay(Duration::from_secs(3_600));
    let paused = bench.tenure.enqueue(later("paused")).await.unwrap().id;
    let waits = [
        bench.tenure.enqueue(later("q")).await.unwrap().id,
        bench.tenure.enqueue(later("q")).await.unwrap().id,
    ];
    bench.tenure.pause_queue("paused").await.unwrap();
    bench
        .execute(
            "INSERT INTO tenure.quarantined_jobs SELECT 'charge', gen_random_uuid() FROM generate_series(1, 20)
             UNION ALL SELECT 'charge', id FROM tenure.jobs"
        )
        .await;
    // Before the others.
    bench.execute("UPDATE tenure.quarantined_jobs SET job_id = overlay(job_id::text PLACING '00000000' FROM 1)::uuid
                    WHERE job_id NOT IN (SELECT id FROM tenure.jobs)").await;
    let call = async || -> Vec<uuid::Uuid> {
        let rows =
            sqlx::query(statement("call_quarantined")).bind(1_000_i64).fetch_all(&bench.pool).await.unwrap();
        rows.iter().map(|row| row.get("job_id")).collect()
    };
    let called = call().await;
    assert!(called.len() == 21 && called.contains(&waits[0].0), "{called:?}");
    assert!(call().await.is_empty(), "the job has some seconds to come");
    bench.execute("UPDATE tenure.quarantines SET called_at = now() - interval '6 s'").await;
    assert_eq!(call().await, [waits[1].0]);
    bench.execute("UPDATE tenure.quarantines SET called_at = now() - interval '6 s'").await;
    assert!(call().await.is_empty(), "no worker may claim a job of a paused queue");
    assert!(bench.tenure.end_quarantine("charge").await.unwrap());
    assert_eq!(call().await, [paused.0], "the end calls it, too");
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Charge(i64);

impl Job for Charge {
    const KIND: &'static str = "charge";
}

/// A job in quarantine holds neither the slot of its lane nor that of its queue, and its batch has no call.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_holds_no_slot_of_a_lane_a_queue_or_a_batch() {
    let bench = bench().await;
    bench.tenure.put_lanes("laned", Lanes::new().running(1)).await.unwrap();
    bench.tenure.limit_queue("limited", QueueLimits::new().max_running(1)).await.unwrap();
    due(&bench).await;
    bench.execute("UPDATE tenure.quarantines SET next_probe_at = now() + interval '1 second', probe_every = '1 hour'").await;
    bench.execute("UPDATE tenure.quarantines SET probe_job = gen_random_uuid(), probe_token = 1").await;
    // A probe that never ends, in another process.
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, attempt, fencing_token, status, claim_id,
                    worker_id, worker_host, stale_after, last_activity_at, started_at, scheduled_at)
             SELECT probe_job, 'elsewhere', 'charge', '1', 5, 1, 1, 'processing', gen_random_uuid(), 'w', 'h',
                    interval '1 hour', now(), now(), now() FROM tenure.quarantines",
        )
        .await;
    let batches = Arc::new(AtomicU32::default());
    let counted = batches.clone();
    let charge = move |jobs: Vec<Item<Charge>>, _: BatchContext| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { jobs.into_iter().map(|job| job.done(())).collect::<Vec<Verdict>>() }
    };
    let greet = async |_: Value, _: JobContext| Ok::<_, JobError>(());
    let worker = Worker::builder(&bench.tenure)
        .handle_batch(Batch::up_to(8), charge)
        .handle_kind("greet", KindOptions::new(), greet)
        .concurrency("laned", 4)
        .concurrency("limited", 4);
    let worker = Running::start(worker);
    // Until the worker has heard of the quarantine, it runs some.
    let snoozed = "tenure.job_executions WHERE outcome = 'snoozed'";
    for n in 0.. {
        assert!(n < 200, "no job waits");
        bench.tenure.enqueue(JobRequest::new("limited", "charge", json!(n))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        if bench.count(snoozed).await > 0 {
            break;
        }
    }
    let called = batches.load(Ordering::SeqCst);
    for queue in ["laned", "limited"] {
        for kind in ["charge", "charge", "greet"] {
            bench.tenure.enqueue(JobRequest::new(queue, kind, json!(1)).lane("one")).await.unwrap();
        }
    }
    bench.until("(SELECT count(*) FROM tenure.job_history WHERE kind = 'greet') = 2").await;
    bench.until("(SELECT count(*) FROM tenure.quarantined_jobs) >= 5").await;
    assert_eq!(batches.load(Ordering::SeqCst), called, "no call for jobs that wait");
    bench.execute("DELETE FROM tenure.jobs WHERE queue = 'elsewhere'").await;
    bench.tenure.end_quarantine("charge").await.unwrap();
    bench.until("NOT EXISTS (SELECT FROM tenure.jobs)").await;
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

/// The worker that tries a job dies in the middle: the probe has failed, and another worker tries the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_whose_worker_dies_has_failed() {
    let bench = bench().await;
    due(&bench).await;
    let pool = bench.pool.clone();
    let hangs = move |_: Value, ctx: JobContext| {
        let pool = pool.clone();
        async move {
            let is_tried = "SELECT EXISTS (SELECT FROM tenure.quarantines WHERE probe_job = $1)";
            if sqlx::query_scalar(is_tried).bind(ctx.id().0).fetch_one(&pool).await.unwrap_or(false) {
                std::future::pending::<()>().await;
            }
            Ok::<_, JobError>(())
        }
    };
    let worker = Worker::builder(&bench.tenure).handle_kind("charge", KindOptions::new(), hangs);
    let dies = Running::start(worker.concurrency("q", 1));
    // The worker runs jobs until it has heard of the quarantine.
    for n in 0.. {
        assert!(n < 200, "no job is tried");
        enqueue(&bench, "charge", 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if bench.count("tenure.quarantines WHERE probes > 0").await > 0 {
            break;
        }
    }
    dies.abandon().await;
    let bank = Bank::default();
    let worker = bank.worker(&bench);
    bench
        .until_within("EXISTS (SELECT FROM tenure.quarantines WHERE probes >= 2)", Duration::from_secs(60))
        .await;
    bank.works.store(true, Ordering::SeqCst);
    bench.until_within("NOT EXISTS (SELECT FROM tenure.jobs)", Duration::from_secs(60)).await;
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_says_what_is_wrong_with_a_rule_and_shows_the_quarantine() {
    let bench = bench().await;
    let run = async |arguments: &[&str]| {
        let output = bench.program(arguments).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (arguments, expected) in [
        (&["charge", "--when", "often"][..], "it must be a rule such as 'failed > 30% of 50 in 5m'"),
        (&["charge", "--when", "failed > 0% of 50 in 5m"], "between 0 % and 100 %"),
        (&["charge", "--when", "failed > 100% of 50 in 5m"], "between 0 % and 100 %, not 100 %"),
        (&["charge", "--when", "failed > 30% of 0 in 5m"], "judged by 1 to 100000 attempts, not by 0"),
        (&["charge", "--when", "failed > 30% of 50 in 5s"], "attempts count for 10 s to 24 h"),
        (
            &["charge", "--when", "failed > 30% of 50 in 5m", "--probe", "0s"],
            "a job is tried every 1 s to 24 h",
        ),
        (&["charge!", "--when", "failed > 30% of 50 in 5m"], "use 1 to 64 of"),
        (&["charge"], "--when"),
    ] {
        let (code, _, error) = run(&[&["kinds", "quarantine"], arguments].concat()).await;
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let when = ["kinds", "quarantine", "charge", "--when", "failed > 30% of 10 in 1m"];
    assert_eq!(run(&when).await, (Some(0), "the kind charge is watched\n".into(), String::new()));
    assert!(run(&["kinds", "list"]).await.1.contains("failed > 30% of 10 in 1m, a probe each 1m"));
    assert_eq!(run(&["kinds", "release", "charge"]).await.0, Some(1), "it is in no quarantine");
    due(&bench).await;
    let (_, list, _) = run(&["kinds", "list"]).await;
    assert!(list.contains("since ") && list.contains("9 of 10 failed"), "{list}");
    let doctor = run(&["doctor", "--problems"]).await.1;
    assert!(doctor.contains("in quarantine: charge") && doctor.contains("tenure kinds release"), "{doctor}");
    let released = run(&["kinds", "release", "charge"]).await;
    assert_eq!(released, (Some(0), "the jobs of the kind charge run again\n".into(), String::new()));
    let off = ["kinds", "quarantine", "charge", "--off"];
    assert_eq!(run(&off).await.1, "the kind charge is watched no more\n");
    assert_eq!(run(&off).await.0, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_says_it_on_its_first_page_and_releases_a_kind() {
    let bench = bench().await;
    due(&bench).await;
    let dashboard = Dashboard::start(&bench, &["--actions"], &[]).await;
    let overview = dashboard.get("/").await.body;
    assert!(overview.contains("The kind charge is in quarantine."), "{overview}");
    assert!(overview.contains("9 of 10 attempts had failed"), "{overview}");
    let kinds = dashboard.get("/kinds").await.body;
    assert!(kinds.contains("&gt; 30 % of 10 in 1m"), "{kinds}");
    assert!(kinds.contains("/kinds/charge/release"), "{kinds}");
    for said in ["The jobs of charge run again.", "charge is not in quarantine."] {
        let answer = dashboard.post("/kinds/charge/release", "").await;
        assert_eq!(dashboard.said(&answer).await, said);
    }
    assert!(watched(&bench).await.began_at.is_none());
    let acts = bench.tenure.audit(&AuditFilter::new().act("end_quarantine"), 10).await.unwrap();
    assert_eq!(acts.len(), 1);
    let looks = Dashboard::start(&bench, &[], &[]).await;
    assert_eq!(looks.post("/kinds/charge/release", "").await.status, 403);
}

/// Postgres refuses the list of the jobs that wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_report_still_learns_the_rules() {
    let bench = bench().await;
    let bank = Bank::default();
    bank.works.store(true, Ordering::SeqCst);
    bench.tenure.put_quarantine("charge", rule().probe_every(Duration::from_secs(3_600))).await.unwrap();
    let begin = "UPDATE tenure.quarantines SET began_at = now(), ended = 10, failed = 9, next_probe_at = now() + '50 min'";
    bench.execute(begin).await;
    let _worker = bank.worker(&bench);
    let snoozed = "(SELECT count(*) FROM tenure.jobs WHERE scheduled_at > now() + '5 minutes')";
    let until_snoozed = async |more: i64| {
        let before: i64 = bench.value(&format!("SELECT {snoozed}")).await;
        while bench.value::<i64>(&format!("SELECT {snoozed}")).await < before + more {
            enqueue(&bench, "charge", 1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until_snoozed(1).await;
    bench.execute("ALTER TABLE tenure.quarantined_jobs RENAME TO hidden").await;
    // This one is in every report from now on.
    until_snoozed(1).await;
    bench.execute("UPDATE tenure.quarantines SET began_at = NULL, next_probe_at = NULL").await;
    let before = bank.calls();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while bank.calls() == before {
        assert!(
            std::time::Instant::now() < deadline,
            "the worker does not learn that the quarantine has ended"
        );
        enqueue(&bench, "charge", 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
