//! The demo: three workers, one killed and one frozen, and every job completes exactly once.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sqlx::{PgPool, Row};
use tenure::{Config, Job, JobId, Status, Tenure, dev::Servers, groups::Signalled, rows::JobFilter};

use crate::{
    analyze::{AnalyzePart, AnalyzeRepo, App},
    report::{self, APPROVED, Approval},
    repositories,
};

/// Short timers, so that the demo is short. In production these are minutes.
const TIMERS: [(&str, &str); 7] = [
    ("TENURE_STALE_AFTER", "5s"),
    ("TENURE_SCAN_EVERY", "1s"),
    ("TENURE_ACK_WAIT", "15s"),
    ("TENURE_FLUSH_EVERY", "250ms"),
    ("TENURE_KEEPALIVE_EVERY", "1s"),
    ("TENURE_RENEW_EVERY", "1s"),
    ("TENURE_SHUTDOWN_GRACE", "10s"),
];

/// The name of the job that waits for an approval.
const PUBLISH: &str = "publish";

/// The demo gives up after this time.
const LONGEST: Duration = Duration::from_mins(6);

struct Worker {
    name: &'static str,
    process: Child,
    log: PathBuf,
}

impl Worker {
    fn start(name: &'static str, folder: &Path, urls: &[(&str, String)]) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = fs::File::create(&log)?;
        let process = Command::new(std::env::current_exe()?)
            .arg("work")
            .envs(urls.iter().map(|(name, url)| (*name, url.as_str())))
            .envs(TIMERS)
            .env("TENURE_RUNTIME_DIR", folder.join("run"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { name, process, log })
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid())?).context("a pid")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The demo leaves no process behind; SIGKILL also ends a stopped one.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The display while the jobs run.
struct Screen {
    bars: MultiProgress,
    shown: BTreeMap<JobId, ProgressBar>,
    style: ProgressStyle,
    said_at: Instant,
    started: Instant,
}

impl Screen {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            bars: MultiProgress::new(),
            shown: BTreeMap::new(),
            style: ProgressStyle::with_template("{prefix:24!} {bar:24} {pos:>3} % {wide_msg}")?,
            said_at: Instant::now(),
            started: Instant::now(),
        })
    }

    fn say(&self, text: &str) {
        let line = format!("[{:>5.1} s] {text}", self.started.elapsed().as_secs_f32());
        if self.bars.is_hidden() {
            println!("{line}");
        } else {
            // A line that cannot be shown is no reason to stop.
            self.bars.println(line).ok();
        }
    }

    fn show(&mut self, jobs: &[(JobId, String)], rows: &[tenure::rows::JobRow]) {
        let hidden = self.bars.is_hidden();
        let mut words = Vec::new();
        for row in rows {
            let name =
                jobs.iter().find(|(id, _)| *id == row.id).map_or("a submission", |(_, name)| name.as_str());
            let percent = if row.status == Status::Completed { 100.0 } else { row.progress.unwrap_or(0.0) };
            let bar = self.shown.entry(row.id).or_insert_with(|| {
                self.bars
                    .add(ProgressBar::new(100).with_style(self.style.clone()).with_prefix(name.to_owned()))
            });
            bar.set_position(format!("{percent:.0}").parse().unwrap_or(0));
            let message = row.message.clone().unwrap_or_default();
            bar.set_message(format!("{} · attempt {} · {message}", row.status, row.attempt));
            words.push(format!("{name} {percent:.0} %"));
        }
        if hidden && self.said_at.elapsed() > Duration::from_secs(3) {
            self.said_at = Instant::now();
            self.say(&words.join(" · "));
        }
    }
}

pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("tenure-demo-").tempdir()?;
    // Postgres may have to run as another user, which must reach its folder inside.
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let commits = std::env::var("DEMO_COMMITS").ok().map(|n| n.parse()).transpose()?.unwrap_or(12_000);

    println!("tenure demo: private Postgres and NATS, three workers, real repositories");
    println!("short timers: {}", TIMERS.map(|(name, value)| format!("{name}={value}")).join(" "));
    let mut servers = Servers::start(folder.path())?;
    let urls = [("DATABASE_URL", servers.postgres.url()), ("NATS_URL", servers.nats.url())];
    // The same timers as the workers read from the environment.
    let mut config = Config::new(&urls[0].1, &urls[1].1);
    config.timing.ack_wait = Duration::from_secs(15);
    config.timing.stale_after = Duration::from_secs(5);
    config.timing.scan_every = Duration::from_secs(1);
    config.timing.flush_every = Duration::from_millis(250);
    config.timing.keepalive_every = Duration::from_secs(1);
    let tenure = Tenure::connect(&config).await?;
    tenure.setup(&["repos".into()]).await?;
    let pool = PgPool::connect(&urls[0].1).await?;
    App::create_table(&pool).await?;

    let mut repositories = repositories::found();
    let made: Vec<_> = (1..=5).map(|seed| (seed, folder.path().join(format!("made-{seed}")))).collect();
    std::thread::scope(|scope| {
        let making: Vec<_> = made
            .iter()
            .map(|(seed, path)| scope.spawn(move || repositories::make(path, *seed, commits)))
            .collect();
        making
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    repositories.extend(made.into_iter().map(|(_, path)| path));
    let names: Vec<String> = repositories.iter().map(|path| path.display().to_string()).collect();
    println!("repositories: {}", names.join(", "));

    let mut workers = Vec::new();
    for name in ["worker-1", "worker-2", "worker-3"] {
        workers.push(Worker::start(name, folder.path(), &urls)?);
    }
    let jobs = enqueue(&tenure, &pool, &urls[1].1, &names).await?;
    // Those of plain messages have their ids from the workers.
    let expected = jobs.len() + names.len() / 3;
    let shown = show(&tenure, &pool, &mut workers, &jobs, expected).await;
    if let Err(error) = &shown {
        println!("\nthe demo failed: {error:#}");
        for worker in &workers {
            println!("--- {}\n{}", worker.name, fs::read_to_string(&worker.log).unwrap_or_default());
        }
    }
    for worker in &mut workers {
        // Fails for the killed worker.
        worker.signal(Signal::TERM).ok();
    }
    let mut clean = true;
    for worker in &mut workers {
        let code = worker.process.wait()?.code();
        // None: the one that was killed.
        clean &= matches!(code, Some(0) | None);
        println!("{} ended: {}", worker.name, code.map_or("killed".into(), |code| format!("exit {code}")));
    }
    let proven = report(&pool, expected).await?;
    tenure.close().await;
    pool.close().await;
    servers.stop();
    let good = shown.is_ok() && proven && clean;
    println!("{}", if good { "demo: every job completed exactly once" } else { "demo: FAILED" });
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Three ways in: a transaction of our own, the library, and a plain NATS message.
async fn enqueue(
    tenure: &Tenure,
    pool: &PgPool,
    nats_url: &str,
    names: &[String],
) -> anyhow::Result<Vec<(JobId, String)>> {
    let mut jobs = Vec::new();
    let (first, rest) = names.split_at(names.len().div_ceil(3));
    let (second, third) = rest.split_at(rest.len().div_ceil(2));
    let short = |name: &String| {
        Path::new(name).file_name().map_or(name.clone(), |n| n.to_string_lossy().into_owned())
    };

    let mut tx = pool.begin().await?;
    sqlx::query("CREATE TABLE code_evolution.requests (repo text)").execute(&mut *tx).await?;
    for name in first {
        sqlx::query("INSERT INTO code_evolution.requests VALUES ($1)").bind(name).execute(&mut *tx).await?;
        let enqueued =
            tenure.enqueue(AnalyzeRepo { repo: name.clone() }).unique_key(name.as_str()).tx(&mut tx).await?;
        jobs.push((enqueued.id, short(name)));
    }
    tx.commit().await?;
    println!("enqueued {} in a transaction, with a row of our own", first.len());

    let repositories: Vec<_> = second.iter().map(|name| (name.clone(), short(name))).collect();
    let report = report::enqueue(tenure, &repositories).await?;
    jobs.extend(report.jobs);
    jobs.push((report.publish, PUBLISH.to_owned()));
    println!(
        "enqueued a graph for {}: clone, analyze by parts, merge, and publish once it is approved",
        second.len()
    );

    let nats = async_nats::connect(nats_url).await?;
    let jetstream = async_nats::jetstream::new(nats);
    for name in third {
        let body = json!({ "repo": name }).to_string();
        jetstream.publish("jobs.repos.code_evolution", body.into()).await?.await?;
    }
    println!("published {} as plain NATS messages", third.len());
    Ok(jobs)
}

/// Runs the demo: kills one worker in the middle of a job of the graph, and freezes another there for longer than
/// `stale_after`.
async fn show(
    tenure: &Tenure,
    pool: &PgPool,
    workers: &mut [Worker],
    jobs: &[(JobId, String)],
    expected: usize,
) -> anyhow::Result<()> {
    let mut screen = Screen::new()?;
    let mut killed: Option<String> = None;
    let mut frozen: Option<(usize, String, JobId)> = None;
    let mut thawed = false;
    let mut approved = false;
    let publish = jobs.iter().find(|(_, name)| name == PUBLISH).map(|(id, _)| *id);
    loop {
        ensure!(screen.started.elapsed() < LONGEST, "not done after {LONGEST:?}");
        let rows = tenure.jobs(&JobFilter::new(), 100).await?;
        screen.show(jobs, &rows);
        let midway = |row: &&tenure::rows::JobRow| {
            let ran_for = row.last_activity_at.zip(row.started_at).map(|(last, started)| last - started);
            row.kind == AnalyzePart::KIND
                && row.status == Status::Processing
                && row.progress.is_some_and(|percent| (15.0..80.0).contains(&percent))
                && ran_for.is_some_and(|ran| ran > chrono::TimeDelta::seconds(1))
        };
        let owner_of = |row: &tenure::rows::JobRow| {
            let owner = row.worker_id.clone()?;
            let index = workers.iter().position(|worker| owner.contains(&format!("-{}-", worker.pid())))?;
            Some((index, owner, row.id))
        };
        if killed.is_none() {
            if let Some((index, owner, _)) = rows.iter().filter(midway).find_map(owner_of) {
                screen.say(&format!(
                    "SIGKILL for {} ({owner}), in the middle of a part of the graph",
                    workers[index].name
                ));
                workers[index].process.kill()?;
                workers[index].process.wait()?;
                killed = Some(owner);
            }
        } else if frozen.is_none() {
            let other = rows.iter().filter(midway).filter(|row| row.worker_id != killed).find_map(owner_of);
            if let Some((index, owner, job)) = other {
                screen.say(&format!(
                    "SIGSTOP for {} ({owner}), for longer than stale_after",
                    workers[index].name
                ));
                workers[index].signal(Signal::STOP)?;
                frozen = Some((index, owner, job));
            }
        } else if let (Some((index, owner, job)), false) = (&frozen, thawed) {
            // Frozen until its job has a new owner.
            let row = rows.iter().find(|row| row.id == *job);
            let taken = row.is_some_and(|row| row.fencing_token > 1 && row.worker_id.as_ref() != Some(owner));
            if taken {
                screen.say(&format!("another worker claimed its job; SIGCONT for {}", workers[*index].name));
                workers[*index].signal(Signal::CONT)?;
                thawed = true;
            }
        }
        // Its first attempt has ended to wait for the approval.
        let waits =
            |row: &&tenure::rows::JobRow| Some(row.id) == publish && row.is_held && row.fencing_token > 0;
        if let (Some(row), false) = (rows.iter().find(waits), approved) {
            screen.say("the merged result waits for an approval, without a slot or a message; approved");
            let approval = Approval { by: "the demo".into() };
            approved = tenure.signal(row.id, APPROVED, &approval).await? == Signalled::Delivered;
        }
        let done = rows.iter().filter(|row| row.status.is_finished()).count();
        if done == expected && rows.len() == expected {
            ensure!(
                killed.is_some(),
                "the jobs were done before a worker could be killed; raise DEMO_COMMITS"
            );
            ensure!(thawed, "the jobs were done before a worker could be frozen; raise DEMO_COMMITS");
            let refused: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM tenure.recovery_events WHERE event = 'refused_write'",
            )
            .fetch_one(pool)
            .await?;
            if refused > 0 {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What must hold in the end: each question has the number of jobs as $1.
const CHECKS: &[(&str, &str)] = &[
    ("every job is completed", "SELECT count(*) = $1 FROM tenure.all_jobs WHERE status = 'completed'"),
    ("no job has another status", "SELECT count(*) = $1 FROM tenure.all_jobs"),
    (
        "each was completed by exactly one attempt",
        "SELECT count(*) = $1 AND count(DISTINCT job_id) = $1
           FROM tenure.job_executions_all WHERE outcome = 'completed'",
    ),
    (
        "every result was written by the attempt that owned the job then",
        "SELECT count(*) FILTER (WHERE e.job_id IS NULL
                                    OR r.written_at < e.started_at OR r.written_at > e.finished_at) = 0
                AND $1 > 0 AND count(DISTINCT r.job_id) = (
                    SELECT count(*) FROM tenure.all_jobs WHERE kind IN ('code_evolution', 'code_evolution.part'))
           FROM code_evolution.results r
           LEFT JOIN tenure.job_executions_all e USING (job_id, fencing_token)",
    ),
    (
        "the parts have all commits that the clones counted; the merge has their sums, and was approved",
        "SELECT count(*) = 1 AND $1 > 0 AND bool_and((m.output->>'commits')::int = (
                    SELECT sum((a.output->>'commits')::int)
                      FROM tenure.job_edges e JOIN tenure.all_jobs a ON a.id = e.before WHERE e.after = m.id)
                AND (m.output->>'commits')::int = (
                    SELECT sum((c.output->>'commits')::int)
                      FROM tenure.all_jobs c WHERE c.kind = 'code_evolution.clone')
                AND (SELECT p.output #>> '{}' LIKE '%, approved by the demo' FROM tenure.all_jobs p
                      WHERE p.kind = 'code_evolution.publish'))
           FROM tenure.all_jobs m WHERE m.kind = 'code_evolution.merge'",
    ),
    (
        "a worker was killed, and one frozen, in the middle of a part of the graph",
        "SELECT count(DISTINCT owner_before) >= 2 AND $1 > 0
           FROM tenure.recovery_events r JOIN tenure.all_jobs j ON j.id = r.job_id
          WHERE event = 'reset' AND j.kind = 'code_evolution.part'",
    ),
    (
        "recovery reset jobs of at least two silent workers",
        "SELECT count(DISTINCT owner_before) >= 2 AND $1 > 0 FROM tenure.recovery_events WHERE event = 'reset'",
    ),
    (
        "Postgres refused writes, and only of workers that had lost the job",
        "SELECT count(*) > 0 AND $1 > 0 AND bool_and(EXISTS (
                    SELECT FROM tenure.job_executions e
                     WHERE e.job_id = r.job_id AND e.fencing_token = r.fencing_token
                       AND e.worker_id = r.owner_before AND e.outcome = 'lost'))
           FROM tenure.recovery_events r WHERE event = 'refused_write'",
    ),
];

/// Prints the results, and checks them by SQL alone.
async fn report(pool: &PgPool, expected: usize) -> anyhow::Result<bool> {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "repository",
        "commits",
        "status",
        "attempts",
        "recovered by",
        "after",
        "by the last attempt",
    ]);
    let rows = sqlx::query(
        "SELECT coalesce(j.payload->>'repo' || coalesce(': part ' || (j.payload->>'part')::int + 1,
                         CASE j.kind WHEN 'code_evolution.clone' THEN ': clone' END, ''), j.kind) AS repo,
                CASE jsonb_typeof(j.output) WHEN 'object' THEN j.output->>'commits' END AS commits, j.status,
                (SELECT string_agg(coalesce(outcome, 'running'), ', ' ORDER BY fencing_token)
                   FROM tenure.job_executions_all e WHERE e.job_id = j.id) AS attempts,
                (SELECT string_agg(path, ', ' ORDER BY r.id)
                   FROM tenure.recovery_events r WHERE r.job_id = j.id AND event = 'reset') AS recovered_by,
                (SELECT string_agg(round(extract(epoch FROM silence), 1) || ' s', ', ' ORDER BY r.id)
                   FROM tenure.recovery_events r WHERE r.job_id = j.id AND event = 'reset') AS after,
                (SELECT r.analyzed_here::text FROM code_evolution.results r
                  WHERE r.job_id = j.id ORDER BY fencing_token DESC LIMIT 1) AS redone
           FROM tenure.all_jobs j ORDER BY j.id",
    )
    .fetch_all(pool)
    .await?;
    for row in rows {
        let text = |name: &str| row.try_get::<Option<String>, _>(name).ok().flatten().unwrap_or_default();
        table.add_row(["repo", "commits", "status", "attempts", "recovered_by", "after", "redone"].map(text));
    }
    println!("\n{table}");
    let failed = sqlx::query(
        "SELECT payload->>'repo' AS repo, last_error FROM tenure.all_jobs WHERE status = 'failed'",
    );
    for row in failed.fetch_all(pool).await? {
        let (repo, error): (Option<String>, String) = (row.try_get("repo")?, row.try_get("last_error")?);
        println!("failed: {}: {error}", repo.unwrap_or_default());
    }
    let refused = sqlx::query(
        "SELECT reason, owner_before, count(*) AS writes FROM tenure.recovery_events
          WHERE event = 'refused_write' GROUP BY 1, 2 ORDER BY 1, 2",
    )
    .fetch_all(pool)
    .await?;
    for row in &refused {
        let (write, owner): (String, String) = (row.try_get("reason")?, row.try_get("owner_before")?);
        println!("refused: {write} of {owner} (stale), {} time(s)", row.try_get::<i64, _>("writes")?);
    }
    let mut proven = true;
    for (what, sql) in CHECKS {
        let holds: bool = sqlx::query_scalar(*sql).bind(i64::try_from(expected)?).fetch_one(pool).await?;
        println!("{} {what}", if holds { "ok  " } else { "FAIL" });
        proven &= holds;
    }
    Ok(proven)
}
