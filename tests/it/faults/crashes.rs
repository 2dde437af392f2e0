//! kill -9, exits and aborts at the steps of a job's life that `crash.rs` leaves out.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tenure::{JobId, JobRequest, KindOptions, Status, Worker};

use crate::{
    harness::{Bench, Child, Running, bench, bench_with, until_file},
    scenarios::{Step, step},
};

fn killed_at(bench: &Bench, host: &str, point: &str) -> Child {
    let fault = ("TENURE_FAULT", format!("{point}=kill"));
    Child::start_with(bench, "worker", &[fault, ("TENURE_HOSTNAME", host.to_owned())])
}

/// Waits until the victim has killed itself.
async fn killed(victim: &mut Child) {
    assert_eq!(victim.wait().await, None, "killed by the signal:\n{}", victim.log());
}

/// Fails unless the job's attempts ended like this, in order.
async fn completed_after(bench: &Bench, job: JobId, outcomes: &str) {
    assert_eq!(bench.until_finished(job).await.status, Status::Completed);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    let sql = format!(
        "SELECT string_agg(outcome, ' ' ORDER BY fencing_token) FROM tenure.job_executions_all WHERE job_id = '{job}'"
    );
    assert_eq!(bench.value::<String>(&sql).await, outcomes);
}

async fn enqueue(bench: &Bench, first: &str) -> (Step, JobId) {
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let job = Step::new(bench, first);
    if first != "complete in" {
        std::fs::write(job.file("go"), "").unwrap();
    }
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    (job, id)
}

fn other(bench: &Bench) -> Running {
    Running::start(Worker::builder(&bench.tenure).handle(step))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_killed_before_its_commit_leaves_no_job() {
    let bench = bench().await;
    let mut victim = Child::start(&bench, "enqueue in a transaction");
    victim.until_log("about to commit").await;
    victim.kill().await;
    bench.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database())").await;
    assert_eq!(bench.count("tenure.jobs").await, 0);
    assert_eq!(bench.messages().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_claim_the_message_comes_again_and_the_job_runs_once() {
    let bench = bench().await;
    let (_, id) = enqueue(&bench, "report").await;
    killed(&mut killed_at(&bench, "a", "delivered")).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND fencing_token = 0").await, 1);
    let other = other(&bench);
    completed_after(&bench, id, "completed").await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_inside_the_transaction_that_completes_the_job_both_are_rolled_back() {
    let bench = bench().await;
    bench.execute("CREATE TABLE public.app_effects (job uuid, token bigint)").await;
    let mut victim = Child::on(&bench, "a", "worker");
    let (job, id) = enqueue(&bench, "complete in").await;
    until_file(&job.file("inside")).await;
    victim.kill().await;
    let other = Child::on(&bench, "b", "worker");
    completed_after(&bench, id, "lost completed").await;
    assert_eq!(bench.text("SELECT token FROM public.app_effects").await, "(2)");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_ack_nothing_is_left_to_do() {
    let bench = bench().await;
    let (_, id) = enqueue(&bench, "report").await;
    killed(&mut killed_at(&bench, "a", "acknowledged")).await;
    assert_eq!(bench.messages().await, 0, "the server has read the ack");
    let other = other(&bench);
    completed_after(&bench, id, "completed").await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_a_failed_attempt_was_written_it_is_tried_again_once() {
    let bench = bench().await;
    let (_, id) = enqueue(&bench, "then fail").await;
    killed(&mut killed_at(&bench, "a", "attempt_ended")).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 1").await, 1);
    bench.tenure.retry(id).await.unwrap();
    let other = other(&bench);
    completed_after(&bench, id, "retried completed").await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_moves_a_job_to_the_dead_letters_it_is_there_once_with_its_history() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let job = Step::new(&bench, "then fail");
    std::fs::write(job.file("go"), "").unwrap();
    bench.tenure.enqueue(job).max_attempts(1).await.unwrap();
    killed(&mut killed_at(&bench, "a", "attempt_ended")).await;
    let other = other(&bench);
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
    let dead = bench
        .text("SELECT attempt, category, jsonb_array_length(execution_history) FROM tenure.dead_letter_jobs")
        .await;
    assert_eq!(dead, "(1,exhausted,1)");
    assert_eq!(bench.count("tenure.all_jobs").await, 1);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_reconcile_the_jobs_are_reset_once() {
    let bench = bench().await;
    let mut owner = Child::on(&bench, "a", "worker");
    let (job, id) = {
        let job = Step::new(&bench, "report");
        let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
        (job, id)
    };
    until_file(&job.file("started")).await;
    owner.kill().await;
    killed(&mut killed_at(&bench, "a", "reconciled")).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued'").await, 1);
    assert_eq!(bench.text("SELECT path, fencing_token FROM tenure.recovery_events").await, "(reconcile,1)");
    let next = Child::on(&bench, "a", "worker");
    completed_after(&bench, id, "lost completed").await;
    drop(next);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_right_after_it_released_a_job_no_attempt_is_charged() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_millis(200)).await;
    let mut victim = killed_at(&bench, "a", "attempt_ended");
    let job = Step::new(&bench, "until cancelled");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    victim.signal(Signal::TERM);
    killed(&mut victim).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued' AND attempt = 0").await, 1);
    let other = other(&bench);
    completed_after(&bench, id, "released completed").await;
    other.stop().await;
}

/// An exit, an abort, a stack overflow, memory beyond the limit: each ends the whole process, with all jobs in it.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_end_their_process_end_in_the_dead_letters_and_the_others_complete() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let good: Vec<_> = (0..20).map(|_| Step::new(&bench, "report")).collect();
    for job in &good {
        std::fs::write(job.file("go"), "").unwrap();
    }
    bench
        .tenure
        .enqueue_many(good.into_iter().map(|job| JobRequest::from(job).max_attempts(10)))
        .await
        .unwrap();
    // No victim gets to the end of its test: exit 0 comes from the handler itself.
    for (way, code, says) in [
        ("exits", Some(0), ""),
        ("aborts", None, ""),
        ("overflows", None, "overflowed its stack"),
        ("devours", None, "memory allocation of"),
    ] {
        let job = Step::new(&bench, way);
        // Dead after its first loss.
        let id = bench.tenure.enqueue(job.clone()).max_attempts(1).await.unwrap().id;
        let mut command = tokio::process::Command::new("prlimit");
        command
            .args(["--data=2147483648", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "scenarios::child", "--nocapture", "--test-threads=1"])
            .envs(bench.environment())
            .env("TENURE_SCENARIO", "worker")
            .env("TENURE_HOSTNAME", "a");
        let mut victim = Child::spawn(command, way);
        assert_eq!(victim.wait().await, code, "{way}: {}", victim.log());
        assert!(job.file("started").exists() && victim.log().contains(says), "{way}: {}", victim.log());
        assert!(!victim.log().contains("worker stopped"), "{way}: nothing asked the worker to stop");
        let other = other(&bench);
        assert_eq!(bench.until_finished(id).await.status, Status::Failed, "{way}");
        other.stop().await;
    }
    let dead = bench.text("SELECT category, payload->>'first' FROM tenure.dead_letter_jobs ORDER BY 2").await;
    assert_eq!(dead, "(lost,aborts)\n(lost,devours)\n(lost,exits)\n(lost,overflows)");
    // A job that was lost more than once waits a little for its next attempt.
    let other = other(&bench);
    bench.until_count("tenure.job_history WHERE status = 'completed'", 20).await;
    other.stop().await;
}

/// Two containers with one name and a process 1 each prove nothing about each other.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: it makes pid namespaces"]
async fn two_containers_of_one_name_with_pid_1_each_do_not_reset_each_others_jobs() {
    let bench = bench().await;
    let contained = |n: u32| {
        let mut command = tokio::process::Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "scenarios::child", "--nocapture", "--test-threads=1"])
            .envs(bench.environment())
            .env("TENURE_SCENARIO", "worker")
            .env("TENURE_HOSTNAME", "web")
            // Containers share no folder.
            .env("TENURE_RUNTIME_DIR", bench.config.runtime_dir.join(n.to_string()));
        Child::spawn(command, "contained")
    };
    let mut first = contained(1);
    let job = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    first.until_log("worker started").await;
    let mut second = contained(2);
    second.until_log("worker started").await;
    assert_eq!(bench.text("SELECT DISTINCT pid FROM tenure.workers").await, "(1)");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    std::fs::write(job.file("go"), "").unwrap();
    completed_after(&bench, id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostnames_of_any_length_are_told_apart_and_an_empty_one_is_refused() {
    {
        let bench = bench().await;
        let mut nameless = Child::on(&bench, "", "worker");
        assert_ne!(nameless.wait().await, Some(0));
        assert!(nameless.log().contains("a name, not empty"), "{}", nameless.log());
    }
    let long = "h".repeat(253);
    for host in [long.as_str(), "ä ö\u{1F600}", "a'b\"c\\d"] {
        let bench = bench().await;
        let mut owner = Child::on(&bench, host, "worker");
        owner.until_log("worker started").await;
        let job = Step::new(&bench, "report");
        let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
        until_file(&job.file("started")).await;
        // A live host whose name begins with this one.
        let other_host = format!("{host}x");
        let mut sibling = Child::on(&bench, &other_host, "worker");
        sibling.until_log("worker started").await;
        assert_eq!(bench.count("tenure.recovery_events").await, 0, "{host}");
        owner.kill().await;
        let next = Child::on(&bench, host, "worker");
        completed_after(&bench, id, "lost completed").await;
        let path = bench.text("SELECT path FROM tenure.recovery_events").await;
        assert!(path == "(reconcile)" || path == "(scanner)", "{host}: {path}");
        drop(next);
    }
}

/// Three workers are replaced one by one in the middle of many jobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_charges_no_attempt() {
    let bench = bench_with(|config| config.timing.shutdown_grace = Duration::from_secs(10)).await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let jobs: Vec<_> = (0..300).map(|_| Step::new(&bench, "takes its time")).collect();
    let mut old = Vec::new();
    for n in 0..3 {
        let mut worker = Child::on(&bench, &format!("old-{n}"), "worker");
        worker.until_log("worker started").await;
        old.push(worker);
    }
    bench
        .tenure
        .enqueue_many(jobs.into_iter().map(|job| JobRequest::from(job).max_attempts(1)))
        .await
        .unwrap();
    let mut new = Vec::new();
    for (n, mut worker) in old.into_iter().enumerate() {
        let mut next = Child::on(&bench, &format!("new-{n}"), "worker");
        next.until_log("worker started").await;
        new.push(next);
        assert!(bench.count("tenure.jobs").await > 12, "in the middle of the jobs");
        worker.signal(Signal::TERM);
        assert_eq!(worker.wait().await, Some(0), "{}", worker.log());
    }
    bench.until_count("tenure.job_history WHERE status = 'completed'", 300).await;
    super::none_was_charged(&bench).await;
    bench.until_stream_is_empty(Duration::from_secs(15)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_gets_the_jobs_that_a_busy_one_has_no_slot_for() {
    let bench = bench().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let slow = |_, _| async { tokio::time::sleep(Duration::from_millis(300)).await };
    let start = || {
        Running::start(
            Worker::builder(&bench.tenure).handle_any(KindOptions::new(), slow).concurrency("q", 1),
        )
    };
    let workers = [start(), start()];
    bench.until_count("tenure.workers", 2).await;
    bench.tenure.enqueue_many((0..10).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
    bench.until_count("tenure.job_history", 10).await;
    let least: i64 = bench
        .value("SELECT min(n) FROM (SELECT count(*) AS n FROM tenure.job_history GROUP BY worker_id) t")
        .await;
    assert!(least >= 3, "{least} of 10");
    assert_eq!(bench.consumer("q").await.num_redelivered, 0);
    for worker in workers {
        worker.stop().await;
    }
}
