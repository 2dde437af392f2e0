//! The analysis of one repository's history, from its first commit on: in one job, or in jobs for its parts.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use git2::{
    Commit, DiffOptions, FetchOptions, Oid, Patch, RemoteCallbacks, Repository, Sort, build::RepoBuilder,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{Job, JobContext, JobError, Outcome};
use tokio::sync::mpsc;

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

/// A report of the walk.
enum Step {
    Clone { received: usize, of: usize },
    Commit { n: usize, of: usize },
    Checkpoint(Box<Evolution>),
}

pub(crate) async fn analyze(job: AnalyzeRepo, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    analyze_some(&job.repo, None, &ctx).await
}

pub(crate) async fn part(job: AnalyzePart, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    let Cloned { head, commits } = ctx.outputs().await?.pop().ok_or("the clone has left nothing")?;
    let size = commits.div_ceil(job.of);
    let from = (job.part * size).min(commits);
    let some = Some((Oid::from_str(&head)?, from..(from + size).min(commits)));
    analyze_some(&job.repo, some, &ctx).await
}

pub(crate) async fn clone(job: CloneRepo, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    ctx.progress("opening", 0.0, &job.repo).await?;
    let clones = ctx.state().clones.clone();
    let work = on_a_thread(&ctx, move |steps| {
        let repository = open(&job.repo, &clones, steps)?;
        let head = repository.head()?.peel_to_commit().context("the repository has no commits")?.id();
        Ok(Cloned { commits: commits(&repository, head)?.len(), head: head.to_string() })
    });
    Outcome::done(work.await?)
}

/// Runs work of libgit2, which blocks, on a separate thread, and reports its steps. It stops when the handler is
/// dropped, and with it the receiver.
async fn on_a_thread<T: Send + 'static>(
    ctx: &JobContext<App>,
    work: impl FnOnce(&mpsc::Sender<Step>) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, JobError> {
    let (steps, mut done) = mpsc::channel(64);
    let work = tokio::task::spawn_blocking(move || work(&steps));
    while let Some(step) = done.recv().await {
        match step {
            Step::Commit { n, of } => {
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let percent = n as f32 / of as f32 * 100.0;
                ctx.progress("walking", percent, &format!("commit {n} of {of}")).await?;
            }
            Step::Clone { received, of } => {
                ctx.progress("cloning", 0.0, &format!("object {received} of {of}")).await?;
            }
            Step::Checkpoint(evolution) => ctx.save_checkpoint(&evolution).await?,
        }
    }
    Ok(work.await??)
}

/// Walks all commits, or these of the history of this head.
async fn analyze_some(
    repo: &str,
    some: Option<(Oid, Range<usize>)>,
    ctx: &JobContext<App>,
) -> Result<Outcome, JobError> {
    ctx.progress("opening", 0.0, repo).await?;
    let resumed: Evolution = ctx.checkpoint().unwrap_or_default();
    let resumed_at = resumed.commits;
    let (of, clones) = (repo.to_owned(), ctx.state().clones.clone());
    let last = on_a_thread(ctx, move |steps| walk(&of, some, &clones, resumed, steps)).await?;

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

/// The first-parent history, so that the lines of a merged branch are counted once. The oldest commit first.
fn commits(repository: &Repository, head: Oid) -> anyhow::Result<Vec<Oid>> {
    let mut walk = repository.revwalk()?;
    walk.push(head)?;
    walk.simplify_first_parent()?;
    walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
    Ok(walk.collect::<Result<_, _>>()?)
}

fn walk(
    repo: &str,
    some: Option<(Oid, Range<usize>)>,
    clones: &Path,
    mut evolution: Evolution,
    steps: &mpsc::Sender<Step>,
) -> anyhow::Result<Evolution> {
    let repository = open(repo, clones, steps)?;
    let commits = if let Some((head, part)) = some {
        let of_all = commits(&repository, head)?;
        of_all.get(part).context("the history is shorter than when it was counted")?.to_vec()
    } else {
        let head = repository.head()?.peel_to_commit().context("the repository has no commits")?.id();
        commits(&repository, head)?
    };
    let point_every = commits.len().div_ceil(TIMELINE_POINTS).max(1);
    let mut saved_at = Instant::now();
    for oid in commits.iter().skip(evolution.commits) {
        let commit = repository.find_commit(*oid)?;
        add(&repository, &commit, &mut evolution)?;
        evolution.commits += 1;
        if evolution.commits.is_multiple_of(point_every) || evolution.commits == commits.len() {
            evolution.timeline.push((commit.time().seconds(), evolution.lines.clone()));
        }
        let mut sent = steps.blocking_send(Step::Commit { n: evolution.commits, of: commits.len() });
        if saved_at.elapsed() >= CHECKPOINT_EVERY {
            sent = sent.and_then(|()| steps.blocking_send(Step::Checkpoint(Box::new(evolution.clone()))));
            saved_at = Instant::now();
        }
        // The handler is gone: the job was cancelled, or another worker owns it.
        sent.context("the handler was dropped")?;
    }
    Ok(evolution)
}

fn open(repo: &str, clones: &Path, steps: &mpsc::Sender<Step>) -> anyhow::Result<Repository> {
    if Path::new(repo).exists() {
        return Repository::open(repo).with_context(|| format!("open {repo}"));
    }
    let name: String = repo.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let folder = clones.join(name);
    // A large clone takes long, and a silent job counts as stale.
    let fetch = || {
        let mut callbacks = RemoteCallbacks::new();
        callbacks.transfer_progress(|progress| {
            let (received, of) = (progress.received_objects(), progress.total_objects());
            // False stops the transfer: the handler is gone.
            steps.blocking_send(Step::Clone { received, of }).is_ok()
        });
        let mut fetch = FetchOptions::new();
        fetch.remote_callbacks(callbacks);
        fetch
    };
    if let Ok(known) = Repository::open_bare(&folder) {
        known.find_remote("origin")?.fetch(&["+HEAD:refs/heads/tenure"], Some(&mut fetch()), None)?;
        known.set_head("refs/heads/tenure")?;
        return Ok(known);
    }
    // Clones into a temporary folder first: an interrupted clone must not look like a complete one.
    std::fs::create_dir_all(clones)?;
    let unfinished = clones.join(format!("unfinished-{}", uuid::Uuid::new_v4()));
    RepoBuilder::new()
        .bare(true)
        .fetch_options(fetch())
        .clone(repo, &unfinished)
        .with_context(|| format!("clone {repo}"))?;
    // Another worker may have been faster; then use its clone.
    if std::fs::rename(&unfinished, &folder).is_err() {
        std::fs::remove_dir_all(&unfinished).ok();
    }
    Ok(Repository::open_bare(&folder)?)
}

/// Adds what one commit changed against its first parent.
fn add(repository: &Repository, commit: &Commit<'_>, evolution: &mut Evolution) -> anyhow::Result<()> {
    let before = commit.parent(0).ok().map(|parent| parent.tree()).transpose()?;
    let mut options = DiffOptions::new();
    options.context_lines(0).skip_binary_check(false);
    let diff = repository.diff_tree_to_tree(before.as_ref(), Some(&commit.tree()?), Some(&mut options))?;
    let mut churn = 0;
    for index in 0..diff.deltas().len() {
        // None: a binary file.
        let Some(file) = Patch::from_diff(&diff, index)? else { continue };
        let (_, added, removed) = file.line_stats()?;
        let delta = file.delta();
        let path = delta.new_file().path().or_else(|| delta.old_file().path()).unwrap_or(Path::new("?"));
        let changed = u64::try_from(added + removed)?;
        churn += changed;
        *evolution.lines.entry(language(path).to_owned()).or_default() +=
            i64::try_from(added)? - i64::try_from(removed)?;
        *evolution.churn_by_file.entry(path.to_string_lossy().into_owned()).or_default() += changed;
    }
    let author = String::from_utf8_lossy(commit.author().name_bytes()).into_owned();
    *evolution.churn_by_author.entry(author).or_default() += churn;
    Ok(())
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
