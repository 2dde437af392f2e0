//! Vanished workers: their jobs run elsewhere within seconds, and no others are reset.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use futures::future::join_all;
use rustix::process::Signal;
use tenure::{JobId, Status, Timing};

use crate::{
    harness::{Bench, Child, Proxy, bench_with, bench_with_servers, run_folder, until_file},
    scenarios::Step,
};

/// A worker in a separate process and on a separate host, with some variables changed.
fn worker_on(bench: &Bench, host: &str, variables: &[(&str, String)]) -> Child {
    let host = [("TENURE_HOSTNAME", host.to_owned())];
    Child::start_with(bench, "worker", &[&host, variables].concat())
}

async fn running_job(bench: &Bench) -> (Step, JobId) {
    let job = Step::new(bench, "report");
    let id = bench.tenure.enqueue(job.clone()).await.unwrap().id;
    until_file(&job.file("started")).await;
    (job, id)
}

/// Kills a worker at a random phase of its renewals, a second after the other has started. Returns the time until its
/// job runs there.
async fn trial(n: u32) -> Duration {
    let bench = bench_with(|config| config.timing = Timing::DEFAULT).await;
    let mut victim = worker_on(&bench, "web-a", &[]);
    let (_, id) = running_job(&bench).await;
    // A different phase of the victim's renewals each time.
    tokio::time::sleep(Duration::from_millis(u64::from(n) * 1_237 % 6_000)).await;
    let mut survivor = worker_on(&bench, "web-b", &[]);
    survivor.until_log("worker started").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed_at = Instant::now();
    victim.kill().await;
    let elsewhere = format!(
        "EXISTS (SELECT FROM tenure.job_executions_all WHERE job_id = '{id}' AND fencing_token = 2 AND worker_id LIKE 'web-b-%')"
    );
    bench.until_within(&elsewhere, Duration::from_secs(60)).await;
    let took = killed_at.elapsed();
    let event = bench.text("SELECT path, owner_before LIKE 'web-a-%', recovered_by LIKE 'web-b-%' FROM tenure.recovery_events").await;
    assert_eq!(event, "(vanished,t,t)");
    took
}

/// With every setting at its default. Five trials here; `make trials` runs a hundred.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_jobs_run_elsewhere_within_15_seconds() {
    let trials = std::env::var("TENURE_TRIALS").ok().map_or(5, |trials| trials.parse::<u32>().unwrap());
    let mut took = Vec::new();
    for group in (0..trials).collect::<Vec<_>>().chunks(10) {
        took.extend(join_all(group.iter().map(|n| trial(*n))).await);
    }
    took.sort_unstable();
    let at = |part: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = (part * took.len() as f64).ceil() as usize;
        took[index.clamp(1, took.len()) - 1].as_secs_f64()
    };
    eprintln!(
        "from SIGKILL to running elsewhere, {trials} trials: median {:.1} s, 99th of 100 {:.1} s, longest {:.1} s",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    assert!(at(0.99) < 15.0, "{took:?}");
}

/// `make trials` runs with default timers, in real minutes.
fn in_real_time() -> bool {
    std::env::var_os("TENURE_TRIALS").is_some()
}

/// Timers in the defaults' proportions: gone after 2 renewals, stale after 60; an outage lasts 12.
fn quick(config: &mut tenure::Config) {
    if in_real_time() {
        config.timing = Timing::DEFAULT;
        return;
    }
    config.timing.renew_every = Duration::from_millis(500);
    config.timing.stale_after = Duration::from_secs(30);
    config.timing.scan_every = Duration::from_secs(1);
    config.timing.ack_wait = Duration::from_secs(60);
}

/// The length of an outage: a minute with the defaults.
fn outage() -> Duration {
    Duration::from_secs(if in_real_time() { 60 } else { 6 })
}

/// The time after which every prober has been connected for long enough to judge, and has probed more than twice.
fn judged() -> Duration {
    Duration::from_secs(if in_real_time() { 30 } else { 4 })
}

/// An SQL condition: this many workers have been silent for this part of an outage.
fn silent(part: f64, workers: u32) -> String {
    let seconds = outage().as_secs_f64() * part;
    format!(
        "(SELECT count(*) FROM tenure.workers WHERE last_seen_at < clock_timestamp() - interval '{seconds} s') = {workers}"
    )
}

/// Two healthy workers, each with a job.
async fn two_workers(bench: &Bench, variables: [&[(&str, String)]; 2]) -> ([Child; 2], [(Step, JobId); 2]) {
    let mut first = worker_on(bench, "web-a", variables[0]);
    first.until_log("worker started").await;
    let one = running_job(bench).await;
    // The first worker has free slots: jobs are enqueued until the second one gets one.
    let mut second = worker_on(bench, "web-b", variables[1]);
    second.until_log("worker started").await;
    let mut others = vec![];
    let other = loop {
        let job = running_job(bench).await;
        let host: String =
            bench.value(&format!("SELECT worker_host FROM tenure.jobs WHERE id = '{}'", job.1)).await;
        if host == "web-b" {
            break job;
        }
        others.push(job);
        assert!(others.len() < 4, "web-b gets no job");
    };
    for (job, id) in others {
        std::fs::write(job.file("go"), "").unwrap();
        bench.until_finished(id).await;
    }
    ([first, second], [one, other])
}

/// Fails if a job was reset: both jobs must complete under their first token.
async fn nothing_was_taken(bench: &Bench, jobs: [(Step, JobId); 2]) {
    tokio::time::sleep(judged()).await;
    assert_eq!(bench.text("SELECT * FROM tenure.recovery_events").await, "");
    for (job, id) in jobs {
        std::fs::write(job.file("go"), "").unwrap();
        let done = bench.until_finished(id).await;
        assert_eq!((done.status, done.fencing_token.0), (Status::Completed, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_healthy_job_is_taken_when_nats_restarts() {
    let mut bench = bench_with_servers(quick).await;
    let (_workers, jobs) = two_workers(&bench, [&[], &[]]).await;
    let own = bench.own.as_mut().unwrap();
    own.nats.stop();
    tokio::time::sleep(outage()).await;
    own.nats.restart().unwrap();
    nothing_was_taken(&bench, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_healthy_job_is_taken_when_postgres_restarts() {
    let mut bench = bench_with_servers(quick).await;
    let (_workers, jobs) = two_workers(&bench, [&[], &[]]).await;
    let own = bench.own.as_mut().unwrap();
    own.postgres.stop();
    tokio::time::sleep(outage()).await;
    own.postgres.restart().unwrap();
    nothing_was_taken(&bench, jobs).await;
}

/// One worker cannot reach one of the servers; the other worker can, and probes it.
#[tokio::test(flavor = "multi_thread")]
async fn no_healthy_job_is_taken_when_its_worker_cannot_reach_one_of_the_servers() {
    let mut bench = bench_with_servers(|config| {
        quick(config);
        config.timing.database_within = config.timing.database_within.min(Duration::from_secs(2));
    })
    .await;
    let own = bench.own.as_ref().unwrap();
    let postgres = Proxy::to(own.postgres.port()).await;
    let nats = Proxy::to(own.nats.port()).await;
    let over = [
        ("DATABASE_URL", postgres.of(&bench.config.database_url)),
        ("NATS_URL", nats.of(&bench.config.nats_url)),
    ];
    let (_workers, jobs) = two_workers(&bench, [&over, &[]]).await;
    postgres.cut();
    // The worker's row is silent, but it answers over NATS.
    bench.until(&silent(0.5, 1)).await;
    tokio::time::sleep(outage() / 2).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    assert_eq!(bench.count("tenure.workers WHERE suspected_at IS NOT NULL").await, 0);
    // While its row is silent, NATS restarts, and for a moment the worker does not answer.
    bench.own.as_mut().unwrap().nats.stop();
    bench.own.as_mut().unwrap().nats.restart().unwrap();
    tokio::time::sleep(judged() / 2).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    postgres.mend();
    bench.until(&silent(0.15, 0)).await;
    nats.cut();
    tokio::time::sleep(outage()).await;
    nats.mend();
    nothing_was_taken(&bench, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_paused_for_less_than_stale_after_keeps_its_jobs() {
    let bench = bench_with(quick).await;
    let (workers, jobs) = two_workers(&bench, [&[], &[]]).await;
    workers[0].signal(Signal::STOP);
    bench.until_within(&silent(1.0, 1), outage() * 3).await;
    workers[0].signal(Signal::CONT);
    nothing_was_taken(&bench, jobs).await;
}

/// A library that shifts a process's clock.
fn wrong_clock() -> PathBuf {
    let folder = run_folder();
    std::fs::create_dir_all(&folder).unwrap();
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(
        &source,
        r#"
        #define _GNU_SOURCE
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <sys/time.h>
        #include <time.h>
        #include <unistd.h>
        static long shift(void) { const char *s = getenv("SHIFT_SECONDS"); return s ? atol(s) : 0; }
        int clock_gettime(clockid_t id, struct timespec *t) {
            int r = syscall(SYS_clock_gettime, id, t);
            if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += shift();
            return r;
        }
        int gettimeofday(struct timeval *t, void *z) {
            struct timespec now; (void)z; clock_gettime(CLOCK_REALTIME, &now);
            t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000; return 0;
        }
        time_t time(time_t *t) {
            struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
            if (t) *t = now.tv_sec;
            return now.tv_sec;
        }
        "#,
    )
    .unwrap();
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success());
    library
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clocks_of_workers_decide_nothing() {
    let library = tokio::task::spawn_blocking(wrong_clock).await.unwrap();
    let bench = bench_with(quick).await;
    let shifted = |seconds: &str| {
        [("LD_PRELOAD", library.to_string_lossy().into_owned()), ("SHIFT_SECONDS", seconds.to_owned())]
    };
    let (behind, ahead) = (shifted("-86400"), shifted("86400"));
    let (mut workers, jobs) = two_workers(&bench, [&behind, &ahead]).await;
    // The clocks are wrong, as the test needs.
    let log = workers[0].log();
    let today = chrono::Utc::now().format("%Y-%m-%dT").to_string();
    assert!(!log.contains(&today) && log.contains("worker started"), "{log}");
    tokio::time::sleep(outage()).await;
    assert_eq!(bench.text("SELECT * FROM tenure.recovery_events").await, "");
    // A death is still noticed.
    workers[0].kill().await;
    let dead = jobs[0].1;
    bench.until_within(&taken_once(dead), Duration::from_secs(20)).await;
    let (job, id) = &jobs[1];
    std::fs::write(job.file("go"), "").unwrap();
    assert_eq!(bench.until_finished(*id).await.fencing_token, 1);
}

/// The silence of a worker that cannot reach itself proves nothing: no other worker judges it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_reach_itself_names_no_subject() {
    let bench = bench_with(quick).await;
    let (mut workers, jobs) = two_workers(&bench, [&[], &[]]).await;
    assert_eq!(bench.count("tenure.workers WHERE probe_subject IS NOT NULL").await, 2);
    // The row of a worker that may not subscribe.
    workers[0].kill().await;
    bench.execute("UPDATE tenure.workers SET probe_subject = NULL WHERE hostname = 'web-a'").await;
    tokio::time::sleep(judged()).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0);
    drop(jobs);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_is_judged_during_a_grace() {
    let bench = bench_with(quick).await;
    let mut victim = worker_on(&bench, "web-a", &[]);
    let (_, id) = running_job(&bench).await;
    let mut survivor = worker_on(&bench, "web-b", &[]);
    survivor.until_log("worker started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.execute("UPDATE tenure.scanner_state SET grace_until = now() + interval '5 s'").await;
    victim.kill().await;
    tokio::time::sleep(judged()).await;
    assert_eq!(bench.count("tenure.recovery_events").await, 0, "in grace");
    assert_eq!(bench.count("tenure.workers WHERE suspected_at IS NOT NULL").await, 1, "but suspected");
    // The grace is over.
    bench.until_within(&taken_once(id), Duration::from_secs(30)).await;
}

fn taken_once(id: JobId) -> String {
    format!("EXISTS (SELECT FROM tenure.recovery_events WHERE path = 'vanished' AND job_id = '{id}')")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_is_judged_while_most_workers_look_gone() {
    let bench = bench_with(quick).await;
    let mut victim = worker_on(&bench, "web-a", &[]);
    let (_, id) = running_job(&bench).await;
    let mut survivor = worker_on(&bench, "web-b", &[]);
    survivor.until_log("worker started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Three more silent workers with a job each. The jobs come first: the row of a worker without jobs would be deleted
    // at once.
    bench
        .execute(
            "INSERT INTO tenure.jobs (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id,
                    worker_id, worker_host, stale_after, last_activity_at, scheduled_at, started_at)
             SELECT gen_random_uuid(), 'other', 'k', '1', 'processing', 1, 5, 1, gen_random_uuid(),
                    'x-' || n, 'x', '1 h', now(), now(), now() FROM generate_series(1, 3) n",
        )
        .await;
    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, probe_subject, queues, slots, version, last_seen_at)
             SELECT 'x-' || n, 'x', 1, 'tenure.nobody.' || n, '{}', 1, '0', now() - interval '1 min' FROM generate_series(1, 3) n",
        )
        .await;
    victim.kill().await;
    bench.until_count("tenure.workers WHERE suspected_at IS NOT NULL", 4).await;
    tokio::time::sleep(judged()).await;
    assert_eq!(
        bench.count(&format!("tenure.recovery_events WHERE job_id = '{id}'")).await,
        0,
        "4 of 5 look gone"
    );
    bench.execute("DELETE FROM tenure.jobs WHERE worker_id = 'x-1'").await;
    bench.execute("DELETE FROM tenure.workers WHERE worker_id = 'x-1'").await;
    bench.until_within(&taken_once(id), Duration::from_secs(10)).await;
}
