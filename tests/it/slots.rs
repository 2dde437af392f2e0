//! Slots of a limited queue: claims lock different ones and wait for none, and the limit is exact.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row, postgres::PgPoolOptions};
use tenure::{JobContext, JobRequest, KindOptions, Tenure, Worker, queues::QueueLimits};
use uuid::Uuid;

use crate::{
    harness::{Bench, Child, Running, bench, statement},
    scenarios::Step,
};

const NONE: [Uuid; 0] = [];
const RUNNING: &str = "tenure.jobs WHERE status = 'processing'";

async fn limited(bench: &Bench, max_running: u32) {
    bench.tenure.limit_queue("q", QueueLimits::new().max_running(max_running)).await.unwrap();
}

/// Enqueues jobs of `q`, and returns their ids in order.
async fn enqueue(bench: &Bench, n: usize) -> Vec<Uuid> {
    bench.tenure.enqueue_many((0..n).map(|_| JobRequest::new("q", "k", json!(1)))).await.unwrap();
    sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY id").fetch_all(&bench.pool).await.unwrap()
}

/// The first statement of a claim. Returns the slots that it locked.
async fn lock(connection: &mut PgConnection, jobs: usize) -> Vec<i32> {
    let lock = sqlx::query(statement("lock_slots")).bind("q").bind(i64::try_from(jobs).unwrap());
    let rows = lock.fetch_all(connection).await.unwrap();
    rows.iter().filter_map(|row| row.get(1)).collect()
}

/// The second statement of a claim. Returns the jobs that it won.
async fn claim(connection: &mut PgConnection, jobs: &[Uuid], slots: &[i32]) -> Vec<Uuid> {
    let claim =
        sqlx::query(statement("claim_limited")).bind(jobs).bind("q").bind("k").bind(300.0).bind("retry");
    let rows = claim.bind("w").bind("h").bind(slots).fetch_all(connection).await.unwrap();
    let mut won: Vec<Uuid> = rows.iter().filter_map(|row| row.get(0)).collect();
    won.sort_unstable();
    won
}

/// A whole claim. Returns the jobs that it won.
async fn claimed(pool: &PgPool, jobs: &[Uuid]) -> Vec<Uuid> {
    let mut transaction = pool.begin().await.unwrap();
    let slots = lock(&mut transaction, jobs.len()).await;
    let won = claim(&mut transaction, jobs, &slots).await;
    transaction.commit().await.unwrap();
    won
}

async fn end(pool: &PgPool, jobs: &[Uuid]) {
    sqlx::query("DELETE FROM tenure.jobs WHERE id = ANY ($1)").bind(jobs).execute(pool).await.unwrap();
}

/// The jobs in the slots, in order of slot.
async fn in_slots(bench: &Bench) -> Vec<Option<Uuid>> {
    let slots = "SELECT job_id FROM tenure.queue_slots WHERE queue = 'q' ORDER BY slot";
    sqlx::query_scalar(slots).fetch_all(&bench.pool).await.unwrap()
}

/// Each of the claims takes what it gets, and gives back what it did not: a busy queue in small.
async fn claim_and_end(
    pool: PgPool,
    waiting: Arc<Mutex<Vec<Uuid>>>,
    at_most: usize,
    running: Arc<AtomicUsize>,
) {
    loop {
        let mut some: Vec<Uuid> = {
            let mut waiting = waiting.lock().unwrap();
            let left = waiting.len();
            waiting.split_off(left.saturating_sub(1 + left % 3))
        };
        if some.is_empty() {
            return;
        }
        some.sort_unstable();
        let won = claimed(&pool, &some).await;
        some.retain(|job| !won.contains(job));
        waiting.lock().unwrap().splice(0..0, some);
        let now = running.fetch_add(won.len(), Ordering::SeqCst) + won.len();
        assert!(now <= at_most, "{now} jobs run");
        tokio::time::sleep(Duration::from_millis(2)).await;
        running.fetch_sub(won.len(), Ordering::SeqCst);
        end(&pool, &won).await;
    }
}

async fn pool(bench: &Bench, connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(connections).connect(&bench.config.database_url).await.unwrap()
}

/// Each claimer has a connection, and an error of a statement fails the test: no claim waits for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn eighty_claimers_run_five_jobs_at_most_and_no_claim_waits_in_vain() {
    let bench = bench().await;
    limited(&bench, 5).await;
    let waiting = Arc::new(Mutex::new(enqueue(&bench, 300).await));
    let (pool, running) = (pool(&bench, 80).await, Arc::new(AtomicUsize::new(0)));
    let claimers: Vec<_> = (0..80)
        .map(|_| tokio::spawn(claim_and_end(pool.clone(), waiting.clone(), 5, running.clone())))
        .collect();
    for claimer in claimers {
        claimer.await.unwrap();
    }
    assert_eq!(bench.count("tenure.jobs").await, 0, "all have run");
}

/// The same with workers, which wait between two tries of a job. The handlers count themselves.
#[tokio::test(flavor = "multi_thread")]
async fn eighty_workers_run_five_jobs_at_most_and_complete_all() {
    let bench = bench().await;
    limited(&bench, 5).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let tenure = Tenure::connect(&bench.config).await.unwrap();
        for _ in 0..20 {
            let (running, most) = (running.clone(), most.clone());
            let handler = move |_: Value, _: JobContext| {
                let (running, most) = (running.clone(), most.clone());
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            };
            let worker = Worker::builder(&tenure).handle_any(KindOptions::new(), handler).concurrency("q", 2);
            workers.push(Running::start(worker));
        }
    }
    enqueue(&bench, 200).await;
    bench.until_within("(SELECT count(*) FROM tenure.job_history) = 200", Duration::from_secs(30)).await;
    assert_eq!(most.load(Ordering::SeqCst), 5);
    drop(workers);
}

/// A claim stops between its statements. Another has the other slot, and a third finds none; neither waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_stops_with_its_slot_locked_holds_up_no_other() {
    let bench = bench().await;
    limited(&bench, 2).await;
    let jobs = enqueue(&bench, 3).await;
    // An unlimited claim changes nothing in a limited queue.
    let unlimited =
        sqlx::query(statement("claim_one")).bind(jobs[0]).bind("q").bind("k").bind(300.0).bind("retry");
    assert!(unlimited.bind("w").bind("h").fetch_optional(&bench.pool).await.unwrap().is_none());

    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(lock(&mut first, 1).await, [1], "one slot for one job");
    // These would wait for ever: the first claim goes on after them.
    assert_eq!(claimed(&bench.pool, &jobs[1..2]).await, jobs[1..2]);
    assert_eq!(claimed(&bench.pool, &jobs[2..]).await, NONE);
    assert_eq!(claim(&mut first, &jobs[..1], &[1]).await, jobs[..1]);
    first.commit().await.unwrap();
    assert_eq!(in_slots(&bench).await, [Some(jobs[0]), Some(jobs[1])]);
    assert_eq!(claimed(&bench.pool, &jobs[2..]).await, NONE);
    // A slot is free as soon as its job has ended.
    end(&bench.pool, &jobs[..1]).await;
    assert_eq!(claimed(&bench.pool, &jobs[2..]).await, jobs[2..]);
    assert_eq!(in_slots(&bench).await, [Some(jobs[2]), Some(jobs[1])]);
}

/// The first claim has its snapshot, and no lock yet, while another takes the slot and commits. The first then gets the
/// lock of a slot that looks free to it. A row policy of its role makes it stop there.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_taken_between_a_claims_snapshot_and_its_lock_is_not_taken_twice() {
    let bench = bench().await;
    limited(&bench, 1).await;
    let jobs = enqueue(&bench, 2).await;
    let role = bench.value::<String>("SELECT 'stops_in_' || current_database()").await;
    for sql in [
        "CREATE FUNCTION public.gate() RETURNS boolean LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(20); RETURN true; END $$",
        &format!("CREATE ROLE \"{role}\""),
        &format!("GRANT USAGE ON SCHEMA tenure TO \"{role}\""),
        &format!("GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA tenure TO \"{role}\""),
        "ALTER TABLE tenure.queue_slots ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY stops ON tenure.queue_slots USING (public.gate())",
    ] {
        bench.execute(sql).await;
    }
    let mut gate = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(20)").execute(&mut *gate).await.unwrap();
    let first = tokio::spawn({
        let (pool, job) = (bench.pool.clone(), jobs[0]);
        async move {
            let mut first = pool.begin().await.unwrap();
            let role = AssertSqlSafe(format!("SET LOCAL ROLE \"{role}\""));
            sqlx::query(role).execute(&mut *first).await.unwrap();
            let slots = lock(&mut first, 1).await;
            let won = claim(&mut first, &[job], &slots).await;
            first.commit().await.unwrap();
            (slots, won)
        }
    });
    let stopped =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    bench.until(&format!("EXISTS ({stopped})")).await;
    assert_eq!(claimed(&bench.pool, &jobs[1..]).await, jobs[1..]);
    gate.commit().await.unwrap();
    let (slots, won) = first.await.unwrap();
    assert_eq!(slots, [1], "the slot looked free, and the claim has locked it");
    assert_eq!(won, NONE, "but a job runs in it");
    assert_eq!((bench.count(RUNNING).await, in_slots(&bench).await), (1, vec![Some(jobs[1])]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_lowered_from_ten_to_three_while_ten_run_starts_none_until_two_are_left() {
    let bench = bench().await;
    limited(&bench, 10).await;
    let jobs = enqueue(&bench, 14).await;
    assert_eq!(claimed(&bench.pool, &jobs).await, jobs[..10]);
    limited(&bench, 3).await;
    assert_eq!(in_slots(&bench).await.len(), 10, "they keep slots, above the limit");
    // The first ends first: the others stand above the limit, and move down.
    for n in 1..=7 {
        end(&bench.pool, &jobs[n - 1..n]).await;
        assert_eq!(claimed(&bench.pool, &jobs[10..12]).await, NONE, "{} run", 10 - n);
    }
    let mut left = in_slots(&bench).await;
    left.truncate(3);
    left.sort_unstable();
    assert_eq!(left, [Some(jobs[7]), Some(jobs[8]), Some(jobs[9])]);
    end(&bench.pool, &jobs[9..10]).await;
    assert_eq!(claimed(&bench.pool, &jobs[10..]).await, [jobs[10]]);
    assert_eq!(bench.count(RUNNING).await, 3);
    // Raised again: the slots above are new.
    limited(&bench, 5).await;
    assert_eq!(claimed(&bench.pool, &jobs[11..]).await, jobs[11..13]);
}

/// While one claim moves a job into its slot, another must not take the slot that is left for the job's start.
#[tokio::test(flavor = "multi_thread")]
async fn no_job_starts_while_another_claim_moves_one_that_stands_above_the_limit() {
    let bench = bench().await;
    limited(&bench, 3).await;
    let jobs = enqueue(&bench, 5).await;
    assert_eq!(claimed(&bench.pool, &jobs[..3]).await, jobs[..3]);
    limited(&bench, 2).await;
    end(&bench.pool, &jobs[..1]).await;
    // One job stands in slot 2, one in slot 3, above the limit. A claim is about to move the latter into slot 1.
    let mut first = bench.pool.begin().await.unwrap();
    assert_eq!(lock(&mut first, 1).await, [1, 3]);
    end(&bench.pool, &jobs[1..2]).await;
    // Slot 2 is free now, but the other claim's job is not seen in slot 1 yet.
    assert_eq!(claimed(&bench.pool, &jobs[3..4]).await, NONE);
    assert_eq!(claim(&mut first, &jobs[4..], &[1, 3]).await, NONE, "its slot went to the job that it moved");
    first.commit().await.unwrap();
    assert_eq!(in_slots(&bench).await, [Some(jobs[2]), Some(jobs[1]), None]);
    assert_eq!(claimed(&bench.pool, &jobs[3..]).await, jobs[3..4]);
}

/// The limit goes up and down while claims are under way. With all slots held, no claim is: the count is exact.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_is_exact_while_it_changes_under_claims() {
    let bench = bench().await;
    limited(&bench, 9).await;
    let waiting = Arc::new(Mutex::new(enqueue(&bench, 1_000).await));
    let (pool, running) = (pool(&bench, 16).await, Arc::new(AtomicUsize::new(0)));
    let claimers: Vec<_> = (0..16)
        .map(|_| tokio::spawn(claim_and_end(pool.clone(), waiting.clone(), 9, running.clone())))
        .collect();
    let (mut allowed, mut changes) = (9, 0);
    for limit in [3, 7, 1, 2, 9, 4].into_iter().cycle() {
        if claimers.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        let mut change = bench.pool.begin().await.unwrap();
        let row = sqlx::query(statement("limit_queue")).bind("q").bind(true).bind(limit).bind(false);
        row.bind(None::<i64>).execute(&mut *change).await.unwrap();
        sqlx::query(statement("hold_slots")).bind("q").execute(&mut *change).await.unwrap();
        let count = AssertSqlSafe(format!("SELECT count(*)::int FROM {RUNNING}"));
        let now: i32 = sqlx::query_scalar(count).fetch_one(&mut *change).await.unwrap();
        assert!(now <= allowed, "{now} jobs run, {allowed} may");
        sqlx::query(statement("fill_slots")).bind("q").bind(limit).execute(&mut *change).await.unwrap();
        change.commit().await.unwrap();
        // Those that run when the limit is lowered go on.
        (allowed, changes) = (now.max(limit), changes + 1);
    }
    for claimer in claimers {
        claimer.await.unwrap();
    }
    assert!(changes > 20, "{changes} changes while claims were under way");
    assert_eq!(bench.count("tenure.jobs").await, 0, "all have run");
}

/// The only slot is free again as soon as the server sees that the process is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_its_claim_leaves_its_slot_free() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    bench.tenure.limit_queue("steps", QueueLimits::new().max_running(1)).await.unwrap();
    let step = Step::new(&bench, "report");
    std::fs::write(step.file("go"), "").unwrap();
    let job = bench.tenure.enqueue(step.clone()).await.unwrap().id;
    let mut victim = Child::start_with(&bench, "worker", &[("TENURE_FAULT", "slots_locked=kill".to_owned())]);
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
    bench
        .until_within(
            "EXISTS (SELECT FROM tenure.queue_slots WHERE queue = 'steps' FOR NO KEY UPDATE SKIP LOCKED)",
            Duration::from_secs(2),
        )
        .await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND fencing_token = 0").await, 1);
    let other = Running::start(Worker::builder(&bench.tenure).handle(crate::scenarios::step));
    bench.until_finished(job).await;
    other.stop().await;
}

/// A frozen process keeps the slot of its claim, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_in_the_middle_of_its_claim_holds_up_no_other() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    bench.tenure.limit_queue("steps", QueueLimits::new().max_running(2)).await.unwrap();
    let steps: Vec<_> = (0..4).map(|_| Step::new(&bench, "report")).collect();
    let first = bench.tenure.enqueue(steps[0].clone()).await.unwrap().id;
    let _frozen = Child::start_with(&bench, "worker", &[("TENURE_FAULT", "slots_locked=stop".to_owned())]);
    let locked = "SELECT FROM tenure.queue_slots WHERE queue = 'steps' FOR NO KEY UPDATE SKIP LOCKED";
    bench.until(&format!("(SELECT count(*) FROM ({locked}) free) = 1")).await;
    let other = Running::start(Worker::builder(&bench.tenure).handle(crate::scenarios::step));
    for step in &steps[1..] {
        std::fs::write(step.file("go"), "").unwrap();
        let job = bench.tenure.enqueue(step.clone()).await.unwrap().id;
        bench.until_finished(job).await;
    }
    assert_eq!(bench.count(&format!("tenure.jobs WHERE id = '{first}' AND status = 'queued'")).await, 1);
    other.stop().await;
}
