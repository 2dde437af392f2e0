//! Calm redrives: a canary first, then the others at a rate, and a stop before much is spent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tenure::{
    JobContext, JobError, JobId, KindOptions, Worker, redrives::CalmRedrive, rows::DeadFilter,
    rows::RedriveRow,
};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench};

/// A dependency that works or not, and how often it was called.
#[derive(Clone, Default)]
struct Shop {
    works: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

impl Shop {
    fn worker(&self, bench: &Bench) -> Running {
        self.worker_of(bench, 50)
    }

    fn worker_of(&self, bench: &Bench, slots: u32) -> Running {
        let shop = self.clone();
        let charge = move |_: Value, _: JobContext| {
            let shop = shop.clone();
            async move {
                shop.calls.fetch_add(1, Ordering::Relaxed);
                if shop.works.load(Ordering::Relaxed) {
                    Ok(())
                } else {
                    Err(JobError::msg("no route to the shop"))
                }
            }
        };
        // A retry comes long after the redrive has judged.
        let options = KindOptions::new()
            .backoff(tenure::Backoff { first: Duration::from_secs(600), ..tenure::Backoff::DEFAULT });
        let worker = Worker::builder(&bench.tenure).handle_kind("charge", options, charge);
        Running::start(worker.concurrency("shop", slots))
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// This many dead letters, as the statement that buries them writes them.
async fn dead(bench: &Bench, n: u32) {
    let sql = format!(
        "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
                scheduled_at, died_at, dispatch, last_error, category, execution_history)
         SELECT gen_random_uuid(), 'shop', 'charge', to_jsonb(n), 0, 5, 0, now(), now(), now() - n * interval '1 ms', 0,
                'no route to host ' || n, 'exhausted', '[]'
           FROM generate_series(1, {n}) n"
    );
    assert_eq!(bench.execute(&sql).await, u64::from(n));
}

async fn until_ended(bench: &Bench, id: Uuid) -> RedriveRow {
    let ended = format!("EXISTS (SELECT FROM tenure.redrives WHERE id = '{id}' AND ended_at IS NOT NULL)");
    bench.until_within(&ended, Duration::from_secs(60)).await;
    bench.tenure.redrive_row(id).await.unwrap().unwrap()
}

async fn begun(bench: &Bench, calm: CalmRedrive) -> RedriveRow {
    bench.tenure.redrive_calmly(&DeadFilter::new().queue("shop"), calm).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_that_is_still_broken_costs_the_canary() {
    let bench = bench().await;
    dead(&bench, 100_000).await;
    let shop = Shop::default();
    let worker = shop.worker(&bench);
    let begun = begun(&bench, CalmRedrive::new().canary(20)).await;
    assert_eq!((begun.jobs, begun.state.as_str()), (100_000, "canary"));
    let ended = until_ended(&bench, begun.id).await;
    assert_eq!((ended.state.as_str(), ended.redriven), ("stopped", 20));
    let reason = ended.reason.unwrap();
    assert!(reason.ends_with("of the latest 20 jobs failed"), "{reason}");
    assert_eq!(shop.calls(), 20, "one attempt of each of the canary, and no other");
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 99_980);
    assert_eq!(bench.count("tenure.redrive_jobs").await, 0);
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_breaks_meanwhile_costs_the_canary_and_a_share() {
    let bench = bench().await;
    dead(&bench, 3_000).await;
    let shop = Shop::default();
    shop.works.store(true, Ordering::Relaxed);
    let worker = shop.worker(&bench);
    let begun = begun(&bench, CalmRedrive::new().canary(30)).await;
    bench.until(&format!("(SELECT completed >= 100 FROM tenure.redrives WHERE id = '{}')", begun.id)).await;
    shop.works.store(false, Ordering::Relaxed);
    let ended = until_ended(&bench, begun.id).await;
    assert_eq!(ended.state, "stopped");
    let failed = u64::from(shop.calls()) - bench.count("tenure.job_history").await.cast_unsigned();
    let most = 30 + ended.completed / 10;
    assert!(failed <= most, "{failed} failed, but at most the canary and a tenth of {} may", ended.completed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_go_when_few_fail_and_another_worker_goes_on_after_a_death() {
    let bench = bench().await;
    dead(&bench, 300).await;
    let shop = Shop::default();
    shop.works.store(true, Ordering::Relaxed);
    // The attempt that the death costs counts as a failure, and with one slot it costs one.
    let worker = shop.worker_of(&bench, 1);
    let begun = begun(&bench, CalmRedrive::new().canary(10)).await;
    bench.until(&format!("(SELECT completed >= 10 FROM tenure.redrives WHERE id = '{}')", begun.id)).await;
    worker.abandon().await;
    let worker = shop.worker(&bench);
    let ended = until_ended(&bench, begun.id).await;
    assert_eq!((ended.state.as_str(), ended.redriven, ended.missing), ("done", 300, 0), "{ended:?}");
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
    worker.stop().await;
    bench.every_job_is_as_it_must_be().await;
}

/// By the statement alone: no worker, no clock but the database's.
async fn tend(bench: &Bench) -> String {
    bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
    how(bench).await
}

async fn how(bench: &Bench) -> String {
    bench
        .value("SELECT redriven || ' ' || completed || ' ' || failed || ' ' || state FROM tenure.redrives")
        .await
}

/// Sets how long ago the last job went, and goes on in the same moment.
async fn tend_after(bench: &Bench, ago: &str) -> String {
    let sql = format!(
        "UPDATE tenure.redrives SET paced_from = clock_timestamp() - interval '{ago}';
         SELECT FROM tenure.tend_redrives(1000)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&bench.pool).await.unwrap();
    how(bench).await
}

async fn ids(bench: &Bench) -> Vec<JobId> {
    sqlx::query_scalar("SELECT id FROM tenure.jobs ORDER BY payload::int DESC")
        .fetch_all(&bench.pool)
        .await
        .unwrap()
}

/// Ends queued jobs as their handlers would.
async fn end(bench: &Bench, jobs: &[JobId], how: &str) {
    let ids = jobs.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
    let sql = match how {
        "completed" => format!("DELETE FROM tenure.jobs WHERE id IN ({ids})"),
        "retried" => format!("UPDATE tenure.jobs SET attempt = 1 WHERE id IN ({ids})"),
        _ => panic!("{how}"),
    };
    assert_eq!(bench.execute(&sql).await, jobs.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_canary_is_awaited_and_the_others_keep_to_the_rate() {
    let bench = bench().await;
    dead(&bench, 100).await;
    let calm = CalmRedrive::new().canary(4).then_rate(10, Duration::from_secs(1)).stop_at(0.5);
    let begun = begun(&bench, calm).await;
    assert_eq!(tend(&bench).await, "4 0 0 canary");
    let canary = ids(&bench).await;
    end(&bench, &canary[..2], "completed").await;
    assert_eq!(tend(&bench).await, "4 2 0 canary");
    // One of four failed: less than half.
    end(&bench, &canary[2..3], "retried").await;
    assert_eq!(tend(&bench).await, "4 2 1 canary");
    end(&bench, &canary[3..], "completed").await;
    let began = tend(&bench).await;
    assert_eq!(began, "4 3 1 running");
    // One second allows ten, but no more than the canary and half of those that completed are out: 4 + 1.
    bench.execute("UPDATE tenure.redrives SET paced_from = clock_timestamp() - interval '1 second'").await;
    assert_eq!(tend(&bench).await, "9 3 1 running");
    // 0.3 s allow three, which fewer out would.
    let out: Vec<_> = ids(&bench).await.into_iter().filter(|id| !canary.contains(id)).collect();
    end(&bench, &out, "completed").await;
    assert_eq!(tend_after(&bench, "310 ms").await, "12 8 1 running");
    // A gap of an hour does not let an hour's jobs go at once: five seconds' are fifty, and 4 + 5 may be out.
    let out: Vec<_> = ids(&bench).await.into_iter().filter(|id| !canary.contains(id)).collect();
    end(&bench, &out, "completed").await;
    bench.execute("UPDATE tenure.redrives SET paced_from = clock_timestamp() - interval '1 hour'").await;
    assert_eq!(tend(&bench).await, "21 11 1 running");
    // A time ahead is of a clock that has stepped back: the rate counts from now.
    bench.execute("UPDATE tenure.redrives SET paced_from = clock_timestamp() + interval '1 hour'").await;
    assert_eq!(tend(&bench).await, "21 11 1 running");
    assert_eq!(bench.count("tenure.redrives WHERE paced_from > clock_timestamp()").await, 0);
    assert!(bench.tenure.stop_redrive(begun.id).await.unwrap());
    assert!(!bench.tenure.stop_redrive(begun.id).await.unwrap());
    assert_eq!(tend(&bench).await, "21 11 1 cancelled");
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 79);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_redriven_or_purged_meanwhile_is_passed_over() {
    let bench = bench().await;
    dead(&bench, 3).await;
    begun(&bench, CalmRedrive::new().canary(1)).await;
    assert_eq!(tend(&bench).await, "1 0 0 canary");
    bench.execute("DELETE FROM tenure.dead_letter_jobs WHERE payload = '2'").await;
    end(&bench, &ids(&bench).await, "completed").await;
    assert_eq!(tend(&bench).await, "1 1 0 running");
    assert_eq!(tend(&bench).await, "2 1 0 running");
    end(&bench, &ids(&bench).await, "completed").await;
    assert_eq!(tend(&bench).await, "2 2 0 done");
    assert_eq!(bench.count("tenure.redrives WHERE missing = 1 AND ended_at IS NOT NULL").await, 1);
    // Nothing matches: no redrive begins.
    let none = bench.tenure.redrive_calmly(&DeadFilter::new(), CalmRedrive::new()).await.unwrap();
    assert!(none.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_or_was_cancelled_holds_up_no_canary_and_counts_neither_way() {
    let bench = bench().await;
    dead(&bench, 5).await;
    begun(&bench, CalmRedrive::new().canary(3)).await;
    assert_eq!(tend(&bench).await, "3 0 0 canary");
    let canary = ids(&bench).await;
    // One sleeps, or waits for others; one is cancelled; one completes with its second attempt before it is looked at.
    let sleeps = "scheduled_at = now() + interval '1 day', publish_at = now() + interval '1 day'";
    bench.execute(&format!("UPDATE tenure.jobs SET {sleeps} WHERE id = '{}'", canary[0])).await;
    bench.tenure.cancel(canary[1]).await.unwrap();
    assert_eq!(tend(&bench).await, "3 0 0 canary");
    end(&bench, &canary[2..], "completed").await;
    assert_eq!(tend(&bench).await, "5 1 0 running");
    let counted = "tenure.redrives WHERE waiting = 1 AND cancelled = 1 AND completed = 1";
    assert_eq!(bench.count(counted).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_takes_others_for_missing_jobs_and_may_be_larger_than_the_list() {
    let bench = bench().await;
    dead(&bench, 4).await;
    let first = begun(&bench, CalmRedrive::new().canary(2)).await;
    bench.execute("DELETE FROM tenure.dead_letter_jobs WHERE payload IN ('4', '3')").await;
    assert_eq!(tend(&bench).await, "0 0 0 canary");
    assert_eq!(tend(&bench).await, "2 0 0 canary");
    bench.tenure.stop_redrive(first.id).await.unwrap();
    bench.execute("DELETE FROM tenure.redrives").await;
    bench.execute("DELETE FROM tenure.jobs").await;
    dead(&bench, 3).await;
    begun(&bench, CalmRedrive::new().canary(50)).await;
    assert_eq!(tend(&bench).await, "3 0 0 canary");
    end(&bench, &ids(&bench).await, "completed").await;
    assert_eq!(tend(&bench).await, "3 3 0 done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_below_one_a_second_is_kept_and_two_redrives_share_no_job() {
    let bench = bench().await;
    dead(&bench, 4).await;
    begun(&bench, CalmRedrive::new().canary(1).then_rate(1, Duration::from_secs(60))).await;
    assert_eq!(tend(&bench).await, "1 0 0 canary");
    end(&bench, &ids(&bench).await, "completed").await;
    assert_eq!(tend(&bench).await, "1 1 0 running");
    let paced = "UPDATE tenure.redrives SET paced_from = clock_timestamp() - interval";
    bench.execute(&format!("{paced} '55 s'")).await;
    assert_eq!(tend(&bench).await, "1 1 0 running");
    bench.execute(&format!("{paced} '61 s'")).await;
    assert_eq!(tend(&bench).await, "2 1 0 running");
    // Another one lists the two that are left; each is redriven once.
    begun(&bench, CalmRedrive::new().canary(1)).await;
    for _ in 0..8 {
        bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
        bench.execute(&format!("{paced} '61 s'")).await;
        bench.execute("DELETE FROM tenure.jobs").await;
    }
    assert_eq!(bench.count("tenure.redrives WHERE state = 'done'").await, 2);
    assert_eq!(bench.value::<i64>("SELECT sum(redriven)::bigint FROM tenure.redrives").await, 4);
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 0);
}

/// Two workers may think that it is their turn, and one may die before it commits.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_at_once_and_one_that_dies_redrive_each_job_once() {
    let bench = bench().await;
    dead(&bench, 3).await;
    begun(&bench, CalmRedrive::new().canary(2)).await;
    let mut dies = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.tend_redrives(1000)").execute(&mut *dies).await.unwrap();
    // The other one does not wait, and sees nothing to do.
    assert_eq!(tend(&bench).await, "0 0 0 canary");
    dies.rollback().await.unwrap();
    assert_eq!(tend(&bench).await, "2 0 0 canary");
    assert_eq!(tend(&bench).await, "2 0 0 canary");
    assert_eq!(bench.count("tenure.dead_letter_jobs").await, 1);
}

/// One transaction that holds a dead letter holds up its redrive, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_dead_letter_holds_up_its_redrive_alone() {
    let bench = bench().await;
    dead(&bench, 1).await;
    begun(&bench, CalmRedrive::new().canary(1)).await;
    bench.execute("UPDATE tenure.dead_letter_jobs SET queue = 'locked'").await;
    dead(&bench, 1).await;
    begun(&bench, CalmRedrive::new().canary(1)).await;
    let mut tx = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.dead_letter_jobs WHERE queue = 'locked' FOR UPDATE")
        .execute(&mut *tx)
        .await
        .unwrap();
    bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
    assert_eq!(bench.count("tenure.redrives WHERE redriven = 1").await, 1);
    tx.rollback().await.unwrap();
    bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
    assert_eq!(bench.count("tenure.redrives WHERE redriven = 1").await, 2);
}

/// Somebody's trigger refuses one dead letter of many: it stays, and neither its redrive nor another one waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_postgres_refuses_to_redrive_holds_up_nothing() {
    let bench = bench().await;
    dead(&bench, 5).await;
    let refused: Uuid = bench.value("SELECT id FROM tenure.dead_letter_jobs LIMIT 1").await;
    begun(&bench, CalmRedrive::new().canary(5)).await;
    bench.execute("UPDATE tenure.dead_letter_jobs SET queue = 'odd'").await;
    dead(&bench, 1).await;
    begun(&bench, CalmRedrive::new().canary(1)).await;
    bench.refuse("INSERT ON tenure.jobs", &format!("NEW.id = '{refused}'")).await;
    bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
    let went = "SELECT string_agg(redriven || '/' || missing, ' ' ORDER BY jobs DESC) FROM tenure.redrives";
    assert_eq!(bench.value::<String>(went).await, "4/1 1/0");
    assert_eq!(bench.value::<Uuid>("SELECT id FROM tenure.dead_letter_jobs").await, refused);
    // And if the redrive itself cannot be written.
    bench.refuse("UPDATE ON tenure.redrives", "NEW.jobs = 5").await;
    let others = ids(&bench).await;
    end(&bench, &others, "completed").await;
    let why: String = bench.value("SELECT string_agg(why, ' ') FROM tenure.tend_redrives(1000)").await;
    assert_eq!(why, "too odd");
    bench.execute("SELECT FROM tenure.tend_redrives(1000)").await;
    assert_eq!(bench.count("tenure.redrives WHERE state = 'done'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_shows_the_progress_and_says_why_it_stopped() {
    let bench = bench().await;
    dead(&bench, 50).await;
    let shop = Shop::default();
    let worker = shop.worker(&bench);
    let run = async |arguments: &[&str]| {
        let output = bench.program(arguments).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let calm =
        ["dead", "redrive", "--queue", "shop", "--canary", "5", "--then-rate", "1000/s", "--stop-at", "20%"];
    let (code, out, err) = run(&calm).await;
    assert_eq!(code, 1, "{out}{err}");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("stopped: ") && last.ends_with("; 45 stay dead letters"), "{out}");
    assert!(err.contains("tenure dead follow"), "{err}");
    let (code, out, _) = run(&["dead", "redrives"]).await;
    assert!(code == 0 && out.contains("stopped") && out.contains("5 of 50"), "{out}");

    // The shop works again.
    shop.works.store(true, Ordering::Relaxed);
    let (code, id, _) = run(&["dead", "redrive", "--queue", "shop", "--canary", "5", "--detach"]).await;
    assert_eq!(code, 0);
    let (code, out, _) = run(&["dead", "follow", id.trim()]).await;
    assert!(
        code == 0 && out.ends_with("done: 45 of 45 queued again: 45 completed, 0 failed an attempt\n"),
        "{out}"
    );
    let (code, out, _) = run(&["dead", "stop", id.trim()]).await;
    assert!(code == 1 && out.contains("no redrive"), "{out}");

    for (arguments, says) in [
        (&["dead", "redrive", "--all", "--then-rate", "5/s"][..], "--canary"),
        (&["dead", "redrive", "--canary", "5"], "name what to redrive"),
        (&["dead", "redrive", "--all", "--canary", "5", "--stop-at", "10"], "a percentage such as 10%"),
        (&["dead", "redrive", "--all", "--canary", "5", "--stop-at", "0%"], "above 0 %"),
        (&["dead", "redrive", "--all", "--canary", "5", "--then-rate", "fast"], "a rate such as 10/s"),
    ] {
        let (code, _, err) = run(arguments).await;
        assert!(code == 2 && err.contains(says), "{arguments:?}: {err}");
    }
    worker.stop().await;
}
