//! Failover to a streaming replica: a synchronous one keeps every commit, an asynchronous one may lose some.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tenure::{
    EnqueueError, JobContext, JobId, JobRequest, KindOptions, Tenure, Worker, dev::Postgres, jobs::EndsFilter,
};

use super::{enqueue, worker};
use crate::{
    ends,
    harness::{Bench, Proxy, Running, bench_with_servers, counted, run_folder},
};

fn steady(config: &mut tenure::Config) {
    config.timing.stale_after = Duration::from_secs(3);
    config.timing.ack_wait = Duration::from_secs(6);
    config.timing.scan_every = Duration::from_millis(500);
    config.timing.database_within = Duration::from_secs(1);
}

/// Starts a replica of the bench's Postgres, which follows it over this link.
async fn replica(bench: &Bench, link: &Proxy) -> Postgres {
    let folder: PathBuf =
        run_folder().join(format!("replica-{}", bench.own.as_ref().unwrap().postgres.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let url = link.of(&bench.config.database_url);
    let password = url.split(':').nth(2).unwrap().split('@').next().unwrap().to_owned();
    std::fs::write(folder.join("password"), &password).unwrap();
    if rustix::process::geteuid().is_root() {
        let status =
            std::process::Command::new("chown").args(["-R", "postgres"]).arg(&folder).status().unwrap();
        assert!(status.success());
    }
    tokio::task::spawn_blocking(move || {
        use std::os::unix::process::CommandExt;
        let mut command =
            std::process::Command::new(tenure::dev::postgres_bin().unwrap().join("pg_basebackup"));
        command.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", &url, "-D"]);
        command.arg(folder.join("data")).current_dir(&folder);
        if let Some((uid, gid)) = tenure::dev::postgres_user() {
            command.uid(uid).gid(gid);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Settings on the command line override those in the backup.
        Postgres::start_with(&folder, false, &["hot_standby=on"]).unwrap()
    })
    .await
    .unwrap()
}

/// A bench whose client reaches the primary over a link, with a replica.
async fn with_a_replica() -> (Bench, Tenure, Proxy, Proxy, Postgres) {
    let bench = bench_with_servers(steady).await;
    let to_primary = Proxy::to_url(&bench.config.database_url).await;
    let replication = Proxy::to_url(&bench.config.database_url).await;
    let replica = replica(&bench, &replication).await;
    let mut config = bench.config.clone();
    config.database_url = to_primary.of(&config.database_url);
    // A handler that has lost its job keeps its slot, so that its own worker cannot take the job again.
    config.timing.cancel_grace = Duration::from_secs(60);
    let tenure = Tenure::connect(&config).await.unwrap();
    (bench, tenure, to_primary, replication, replica)
}

async fn promoted(bench: &mut Bench, link: &Proxy, replica: &Postgres) {
    bench.own.as_mut().unwrap().postgres.kill();
    let pool = PgPool::connect(&replica.url()).await.unwrap();
    let done: bool = sqlx::query_scalar("SELECT pg_promote()").fetch_one(&pool).await.unwrap();
    assert!(done);
    link.lead_to(replica.port());
    bench.pool = pool;
}

async fn reconfigured(bench: &Bench, setting: &str) {
    for sql in [setting, "SELECT pg_reload_conf()"] {
        bench.execute(sql).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_synchronous_replica_loses_nothing() {
    let (mut bench, tenure, link, _replication, replica) = with_a_replica().await;
    reconfigured(&bench, "ALTER SYSTEM SET synchronous_standby_names = '*'").await;
    bench.until("EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").await;
    enqueue(&bench, 200, 20).await;
    let workers = [Running::start(worker(&tenure, 20)), Running::start(worker(&tenure, 20))];
    let mut known = Vec::new();
    while bench.count("tenure.job_history").await < 60 {
        known.push(tenure.enqueue(JobRequest::new("q", "k", json!({}))).await.unwrap().id);
    }
    promoted(&mut bench, &link, &replica).await;
    bench.until_count("tenure.jobs", 0).await;
    let all = 200 + i64::try_from(known.len()).unwrap();
    assert_eq!(bench.count("tenure.job_history WHERE status = 'completed'").await, all);
    assert_eq!(bench.count("(SELECT DISTINCT job FROM public.effects) e").await, all);
    assert_eq!(bench.count("public.effects").await, all);
    let wrong: Vec<_> = tenure.verify().await.unwrap().into_iter().filter(|rule| rule.jobs > 0).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for worker in workers {
        worker.stop().await;
    }
}

/// Commits that had not reached the replica are gone, among them a claim, whose token is issued again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_commits_repeats_jobs_and_lets_no_stale_worker_write() {
    let (mut bench, tenure, link, replication, replica) = with_a_replica().await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.effects (job uuid, token bigint)").await;
    let queued = bench.tenure.enqueue(JobRequest::new("q", "k", json!("before"))).await.unwrap().id;
    bench.until("(SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication)").await;
    replication.cut();
    // From here on the replica receives nothing: it will lack a claim, a completion, and an enqueued job.
    let go = bench.config.runtime_dir.join("go");
    let begun = bench.config.runtime_dir.join("begun");
    std::fs::create_dir_all(&bench.config.runtime_dir).unwrap();
    let (waits, tells) = (go.clone(), begun.clone());
    let stale = Running::start(
        Worker::builder(&tenure)
            .handle_any(KindOptions::new(), move |payload: Value, ctx: JobContext| {
                let (waits, tells) = (waits.clone(), tells.clone());
                async move {
                    std::fs::write(&tells, ctx.token().0.to_string())?;
                    while payload == json!("before") && !waits.exists() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    tenure::Outcome::done("stale")
                }
            })
            .concurrency("q", 1)
            .recovery(&[]),
    );
    crate::harness::until_file(&begun).await;
    assert_eq!(std::fs::read_to_string(&begun).unwrap(), "1");
    let said = counted("tenure_claims_total{result=no_such_row}");
    let lost = tenure.enqueue(JobRequest::new("q", "k", json!("lost"))).await.unwrap().id;
    promoted(&mut bench, &link, &replica).await;
    // On the new primary, the first job is queued and the other does not exist.
    assert_eq!(
        bench.text("SELECT id, status, fencing_token FROM tenure.jobs").await,
        format!("({queued},queued,0)")
    );
    let mut config = bench.config.clone();
    config.database_url = replica.url();
    config.hostname = Some("next".into());
    let next_tenure = Tenure::connect(&config).await.unwrap();
    let hold = bench.config.runtime_dir.join("hold");
    let held = hold.clone();
    let next = Running::start(
        Worker::builder(&next_tenure)
            .handle_any(KindOptions::new(), move |_: Value, ctx: JobContext| {
                let held = held.clone();
                async move {
                    while !held.exists() {
                        ctx.progress("again", 1.0, "").await?;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Ok::<_, tenure::JobError>(tenure::Outcome::Done(Some(json!("next"))))
                }
            })
            .concurrency("q", 1),
    );
    // The same token is issued again, under another claim.
    bench.until("EXISTS (SELECT FROM tenure.jobs WHERE stage = 'again' AND fencing_token = 1)").await;
    std::fs::write(&go, "").unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.count("tenure.job_history").await, 0, "the stale completion was refused");
    std::fs::write(&hold, "").unwrap();
    bench.until_count("tenure.job_history", 1).await;
    assert_eq!(
        bench.text("SELECT id, output FROM tenure.job_history").await,
        format!("({queued},\"\"\"next\"\"\")")
    );
    // The loss is counted: the job's message names a row that does not exist.
    assert_eq!(bench.count(&format!("tenure.all_jobs WHERE id = '{lost}'")).await, 0);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while counted("tenure_claims_total{result=no_such_row}") == said {
        assert!(std::time::Instant::now() < deadline, "no worker counts the missing row");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    next.stop().await;
    drop(stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_synchronous_standby_calls_end_in_time_and_nothing_happens_twice() {
    let bench = bench_with_servers(|config| {
        steady(config);
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(30);
    })
    .await;
    enqueue(&bench, 40, 20).await;
    let working = Running::start(worker(&bench.tenure, 20));
    bench.until("(SELECT count(*) FROM tenure.job_history) > 5").await;
    reconfigured(&bench, "ALTER SYSTEM SET synchronous_standby_names = 'gone'").await;
    // The primary commits but does not confirm.
    let request = || JobRequest::new("q", "k", json!({ "steps": 1 })).unique_key("order-1");
    let mut error = None;
    let mut answered = 0;
    for n in 0..50 {
        // The setting takes effect a moment later.
        let early = JobRequest::new("q", "k", json!({ "steps": 1 })).unique_key(format!("early-{n}"));
        match bench.tenure.enqueue(early).await {
            Ok(_) => answered += 1,
            Err(_) => break,
        }
    }
    if let Err(unanswered) = bench.tenure.enqueue(request()).await {
        error = Some(unanswered);
    }
    let error = error.expect("a commit that waits for its standby is not answered");
    assert!(matches!(&error, EnqueueError::Store(error) if error.is_unavailable()), "{error:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let admin = PgPool::connect(&bench.config.database_url).await.unwrap();
    for sql in ["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"] {
        sqlx::query(AssertSqlSafe(sql)).execute(&admin).await.unwrap();
    }
    while bench.tenure.enqueue(request()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.until_count("tenure.jobs", 0).await;
    // The first unanswered enqueue may have been committed anyway.
    let done = bench.count("tenure.job_history WHERE status = 'completed'").await;
    assert!(done == 41 + answered || done == 42 + answered, "{done}, and {answered} early ones");
    assert_eq!(bench.count("public.effects").await, done);
    super::none_was_charged(&bench).await;
    bench.until_stream_is_empty(Duration::from_secs(40)).await;
    working.stop().await;
}

/// A replica does not tell which transactions are open: a page must not count one of them as read.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_on_a_replica_reads_each_end_once() {
    let (bench, tenure, _link, _replication, replica) = with_a_replica().await;
    let mut config = bench.config.clone();
    config.database_url = replica.url();
    let reader = Tenure::connect(&config).await.unwrap();
    let mut cursor = reader.ends_from_now().await.unwrap();
    let jobs = tenure.enqueue_many((0..2).map(|n| JobRequest::new("q", "k", json!(n)))).await.unwrap();
    let [late, prompt] = [jobs[0].id, jobs[1].id];
    let claims = ends::claim(&bench, &[late, prompt]).await;
    let mut slow = PgConnection::connect(&bench.config.database_url).await.unwrap();
    let mut slow = slow.begin().await.unwrap();
    ends::complete(&mut slow, late, claims[&late.0]).await;
    let mut quick = PgConnection::connect(&bench.config.database_url).await.unwrap();
    ends::complete(&mut quick, prompt, claims[&prompt.0]).await;
    let mut read = Vec::new();
    let mut page = async |reader: &Tenure| {
        let page = reader.ends_since(&cursor, &EndsFilter::new(), 100).await.unwrap();
        read.extend(page.ends.iter().map(|(end, _)| end.id));
        cursor = page.next;
        read.clone()
    };
    // The replica shows the later end; the earlier one is still open.
    let shown = async |job: JobId| {
        while !reader.job(job).await.unwrap().is_some_and(|row| row.status.is_finished()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown(prompt)).await.unwrap();
    page(&reader).await;
    page(&reader).await;
    slow.commit().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), shown(late)).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let mut all = page(&reader).await;
    while all.len() < 2 && std::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
        all = page(&reader).await;
    }
    all.sort();
    assert_eq!(all, [late, prompt]);
}
