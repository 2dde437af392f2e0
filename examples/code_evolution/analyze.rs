//! The analysis of one repository's history, from its first commit on: in one job, or in jobs for its parts.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{Job, JobContext, JobError, Outcome};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// The shortest time between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// The number of points of the timeline of lines by language.
const TIMELINE_POINTS: usize = 50;

/// Analyze a repository: a path on this machine, or a URL to clone.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AnalyzeRepo {
    pub repo: String,
}

impl Job for AnalyzeRepo {
    const KIND: &'static str = "code_evolution";
    const QUEUE: &'static str = "repos";
}

/// Clone a repository, or fetch what is new, and count its commits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CloneRepo {
    pub repo: String,
}

impl Job for CloneRepo {
    const KIND: &'static str = "code_evolution.clone";
    const QUEUE: &'static str = "repos";
}

/// Analyze a part of the commits that the clone before it has counted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AnalyzePart {
    pub repo: String,
    /// From 0.
    pub part: usize,
    /// How many parts there are.
    pub of: usize,
}

impl Job for AnalyzePart {
    const KIND: &'static str = "code_evolution.part";
    const QUEUE: &'static str = "repos";
}

/// What [`CloneRepo`] leaves: the parts walk the same history, also if a commit comes meanwhile.
#[derive(Debug, Serialize, Deserialize)]
struct Cloned {
    head: String,
    commits: usize,
}

/// The handlers' shared state.
pub(crate) struct App {
    /// The folder of the clones.
    clones: PathBuf,
}

impl App {
    /// Creates the application's own table of results.
    pub(crate) async fn connect() -> anyhow::Result<Self> {
        let pool =
            PgPool::connect(&std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?).await?;
        Self::create_table(&pool).await?;
        pool.close().await;
        Ok(Self { clones: std::env::temp_dir().join("code-evolution-clones") })
    }

    /// Creates the table of results.
    pub(crate) async fn create_table(pool: &PgPool) -> anyhow::Result<()> {
        sqlx::raw_sql(
            "BEGIN;
             SELECT pg_advisory_xact_lock(7071);
             CREATE SCHEMA IF NOT EXISTS code_evolution;
             CREATE TABLE IF NOT EXISTS code_evolution.results (
                 job_id        uuid        NOT NULL,
                 fencing_token bigint      NOT NULL,
                 worker_pid    int         NOT NULL,
                 repo          text        NOT NULL,
                 commits       int         NOT NULL,
                 analyzed_here int         NOT NULL,  -- by this attempt; the rest came from a checkpoint
                 report        jsonb       NOT NULL,
                 written_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
                 PRIMARY KEY (job_id, fencing_token));
             COMMIT",
        )
        .execute(pool)
        .await
        .context("create the table of results")?;
        Ok(())
    }
}

/// The result after some commits; also the checkpoint.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Evolution {
    commits: usize,
    lines: BTreeMap<String, i64>,
    churn_by_file: BTreeMap<String, u64>,
    churn_by_author: BTreeMap<String, u64>,
    timeline: Vec<(i64, BTreeMap<String, i64>)>,
}

pub(crate) async fn analyze(job: AnalyzeRepo, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    analyze_some(&job.repo, None, &ctx).await
}

pub(crate) async fn part(job: AnalyzePart, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    let Cloned { head, commits } = ctx.outputs().await?.pop().ok_or("the clone has left nothing")?;
    let size = commits.div_ceil(job.of);
    let from = (job.part * size).min(commits);
    let some = Some((head, from..(from + size).min(commits)));
    analyze_some(&job.repo, some, &ctx).await
}

pub(crate) async fn clone(job: CloneRepo, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    let repository = open(&job.repo, true, &ctx).await?;
    let head = head(&repository).await?;
    Outcome::done(Cloned { commits: commits(&repository, &head).await?.len(), head })
}

/// Walks all commits, or these of the history of this head.
async fn analyze_some(
    repo: &str,
    some: Option<(String, Range<usize>)>,
    ctx: &JobContext<App>,
) -> Result<Outcome, JobError> {
    let resumed: Evolution = ctx.checkpoint().unwrap_or_default();
    let resumed_at = resumed.commits;
    // The clone before the parts has fetched what they walk.
    let repository = open(repo, some.is_none(), ctx).await?;
    let last = walk(&repository, some, resumed, ctx).await?;

    let report = report(&last);
    let summary = json!({
        "commits": last.commits,
        "lines": last.lines.values().sum::<i64>(),
        "languages": report["languages"],
        "hottest_files": report["hottest_files"],
    });
    let (id, token, repo) = (ctx.id(), ctx.token(), repo.to_owned());
    let commits = i32::try_from(last.commits)?;
    let here = i32::try_from(last.commits.saturating_sub(resumed_at))?;
    // Checks the fence in the same transaction: a worker that lost the job writes no result.
    ctx.fenced_tx(async |tx| {
        sqlx::query(
            "INSERT INTO code_evolution.results
                        (job_id, fencing_token, worker_pid, repo, commits, analyzed_here, report)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(id)
        .bind(token)
        .bind(i32::try_from(std::process::id())?)
        .bind(repo)
        .bind(commits)
        .bind(here)
        .bind(report)
        .execute(tx)
        .await?;
        Ok(())
    })
    .await?;
    Outcome::done(summary)
}

/// `git` in this folder. It ends with the handler: when the job is cancelled, or another worker owns it.
fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null()).kill_on_drop(true);
    git
}

/// Returns what `git` says.
async fn said(git: &mut Command) -> anyhow::Result<String> {
    let output = git.output().await.context("run git; is it installed?")?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(String::from_utf8(output.stdout)?)
    } else {
        Err(anyhow!("git: {}", error.trim()))
    }
}

async fn head(repository: &Path) -> anyhow::Result<String> {
    let head = said(git(repository).args(["rev-parse", "--verify", "HEAD^{commit}"])).await;
    Ok(head.context("the repository has no commits")?.trim().to_owned())
}

/// The first-parent history, so that the lines of a merged branch are counted once. The oldest commit first.
async fn commits(repository: &Path, head: &str) -> anyhow::Result<Vec<String>> {
    let ids = said(git(repository).args(["rev-list", "--first-parent", "--reverse", head])).await?;
    Ok(ids.lines().map(str::to_owned).collect())
}

async fn walk(
    repository: &Path,
    some: Option<(String, Range<usize>)>,
    mut evolution: Evolution,
    ctx: &JobContext<App>,
) -> Result<Evolution, JobError> {
    let (head, part) = match some {
        Some((head, part)) => (head, Some(part)),
        None => (head(repository).await?, None),
    };
    let commits = commits(repository, &head).await?;
    let Range { start, end } = part.unwrap_or(0..commits.len());
    let (first, of) = (start + evolution.commits, end - start);
    if first >= end {
        return Ok(evolution);
    }
    let mut log = git(repository);
    log.args(["-c", "core.quotePath=false", "-c", "log.showRoot=true", "log", "--first-parent", "--reverse"]);
    log.args(["--diff-merges=first-parent", "--numstat", "--no-renames", "--format=commit %ct %an"]);
    log.arg(commits.get(end - 1).context("the history is shorter than when it was counted")?);
    if let Some(before) = first.checked_sub(1) {
        log.arg(format!("^{}", commits.get(before).context("the history is shorter than it was")?));
    }
    let mut log = log.stdout(Stdio::piped()).spawn().context("run git; is it installed?")?;
    let mut lines = BufReader::new(log.stdout.take().context("git's output")?).split(b'\n');
    let (point_every, mut saved_at) = (of.div_ceil(TIMELINE_POINTS).max(1), Instant::now());
    let mut commit: Option<Change> = None;
    loop {
        let line = lines.next_segment().await?;
        let line = line.as_deref().map(String::from_utf8_lossy);
        let next = line.as_deref().map_or(Some(""), |line| line.strip_prefix("commit "));
        let Some(next) = next else {
            if let (Some(commit), Some(line)) = (&mut commit, line) {
                commit.add(&line, &mut evolution);
            }
            continue;
        };
        // Of the commit before, all is read.
        if let Some(Change { at, author, churn }) = commit.take() {
            *evolution.churn_by_author.entry(author).or_default() += churn;
            evolution.commits += 1;
            if evolution.commits.is_multiple_of(point_every) || evolution.commits == of {
                evolution.timeline.push((at, evolution.lines.clone()));
            }
            let n = evolution.commits;
            #[expect(clippy::cast_precision_loss, reason = "a percentage")]
            let percent = n as f32 / of as f32 * 100.0;
            ctx.progress("walking", percent, &format!("commit {n} of {of}")).await?;
            if saved_at.elapsed() >= CHECKPOINT_EVERY {
                ctx.save_checkpoint(&evolution).await?;
                saved_at = Instant::now();
            }
        }
        let Some((at, author)) = next.split_once(' ') else { break };
        commit = Some(Change { at: at.parse()?, author: author.to_owned(), churn: 0 });
    }
    if log.wait().await?.success() && evolution.commits == of {
        Ok(evolution)
    } else {
        Err(anyhow!("git log ended at commit {} of {of}", evolution.commits).into())
    }
}

/// Returns the folder of a repository, which is cloned if it is not on this machine. `anew`: with what came since.
async fn open(repo: &str, anew: bool, ctx: &JobContext<App>) -> Result<PathBuf, JobError> {
    ctx.progress("opening", 0.0, repo).await?;
    if Path::new(repo).exists() {
        return Ok(repo.into());
    }
    let name: String = repo.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let clones = &ctx.state().clones;
    let folder = clones.join(name);
    if folder.exists() && !anew {
        return Ok(folder);
    }
    if folder.exists() {
        let fetch = ["fetch", "--progress", "origin", "+HEAD:refs/heads/tenure"];
        transfer(git(&folder).args(fetch), ctx).await?;
        said(git(&folder).args(["symbolic-ref", "HEAD", "refs/heads/tenure"])).await?;
        return Ok(folder);
    }
    // Clones into a temporary folder first: an interrupted clone must not look like a complete one.
    std::fs::create_dir_all(clones)?;
    let unfinished = clones.join(format!("unfinished-{}", uuid::Uuid::new_v4()));
    let mut clone = git(clones);
    transfer(clone.args(["clone", "--bare", "--progress", "--", repo]).arg(&unfinished), ctx).await?;
    // Another worker may have been faster; then use its clone.
    if std::fs::rename(&unfinished, &folder).is_err() {
        std::fs::remove_dir_all(&unfinished).ok();
    }
    Ok(folder)
}

/// Reports what `git` says meanwhile: a large transfer takes long, and a silent job counts as stale.
async fn transfer(git: &mut Command, ctx: &JobContext<App>) -> Result<(), JobError> {
    let mut git = git.stderr(Stdio::piped()).spawn().context("run git; is it installed?")?;
    let mut lines = BufReader::new(git.stderr.take().context("git's errors")?).split(b'\r');
    let mut last = String::new();
    while let Some(line) = lines.next_segment().await? {
        last = String::from_utf8_lossy(&line).trim().to_owned();
        ctx.progress("cloning", 0.0, &last).await?;
    }
    if git.wait().await?.success() { Ok(()) } else { Err(anyhow!("git: {last}").into()) }
}

/// What one commit changed against its first parent.
struct Change {
    at: i64,
    author: String,
    churn: u64,
}

impl Change {
    /// Adds a file: lines added, lines removed, path. Of a binary file, there are no lines.
    fn add(&mut self, file: &str, evolution: &mut Evolution) {
        let mut fields = file.splitn(3, '\t');
        let mut number = || fields.next().and_then(|number| number.parse::<u32>().ok());
        let (Some(added), Some(removed), Some(path)) = (number(), number(), fields.next()) else { return };
        let changed = u64::from(added) + u64::from(removed);
        self.churn += changed;
        *evolution.lines.entry(language(Path::new(path)).to_owned()).or_default() +=
            i64::from(added) - i64::from(removed);
        *evolution.churn_by_file.entry(path.to_owned()).or_default() += changed;
    }
}

fn language(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
        "rs" => "Rust",
        "go" => "Go",
        "py" => "Python",
        "sh" | "bash" | "bats" => "Shell",
        "js" | "mjs" | "jsx" => "JavaScript",
        "ts" | "tsx" => "TypeScript",
        "c" | "h" => "C",
        "cc" | "cpp" | "hpp" => "C++",
        "java" => "Java",
        "rb" => "Ruby",
        "sql" => "SQL",
        "html" | "css" => "HTML and CSS",
        "md" | "rst" | "txt" => "Text",
        "json" | "toml" | "yml" | "yaml" => "Data",
        _ => "Other",
    }
}

fn report(evolution: &Evolution) -> serde_json::Value {
    json!({
        "commits": evolution.commits,
        "languages": evolution.lines,
        "timeline": evolution.timeline,
        "hottest_files": top(&evolution.churn_by_file),
        "churn_by_author": top(&evolution.churn_by_author),
    })
}

/// Returns the ten greatest.
fn top(churn: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut all: Vec<_> = churn.iter().map(|(name, lines)| (name.as_str(), *lines)).collect();
    all.sort_by_key(|(name, lines)| (std::cmp::Reverse(*lines), *name));
    all.truncate(10);
    all
}
