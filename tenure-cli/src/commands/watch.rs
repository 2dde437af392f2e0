//! `tenure jobs watch`: a progress bar per job, until all have ended.

use std::{
    collections::{BTreeMap, HashMap},
    io::IsTerminal,
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use chrono::{DateTime, Utc};
use futures::{StreamExt, future::join_all, stream};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{Cli, NO_ROW, Output, print, table::width};
use tenure::{
    JobId, Status, Tenure,
    jobs::WaitError,
    rows::{JobFilter, JobRow},
};

/// How soon to read a job again while Postgres is away.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often the bars are drawn again.
const DRAWN_EVERY: Duration = Duration::from_secs(1);
/// How many jobs of each status to watch when the user names none.
const WATCHED_MAX: u32 = 50;
/// A job's name, its bar and its text, which has the percentage, on one line, if the text gets this much room;
/// otherwise below each other.
const WIDE: &str = "{prefix} {bar:20} {wide_msg}";
const NARROW: &str = "{prefix}\n  {bar:20}\n  {msg}";
const TEXT_MIN: usize = 50;
/// The width of the bar and the spaces in `WIDE`.
const BAR_WIDTH: usize = 22;
/// The width of a terminal that does not say it.
const WIDTH: u16 = 80;

pub(super) async fn run(cli: &Cli, tenure: &Tenure, ids: &[JobId]) -> anyhow::Result<ExitCode> {
    let mut ids = ids.to_vec();
    if ids.is_empty() {
        for status in [Status::Processing, Status::Queued] {
            let jobs = tenure.jobs(&JobFilter::new().status(status), WATCHED_MAX).await?;
            if u32::try_from(jobs.len()) == Ok(WATCHED_MAX) {
                eprintln!("watching the newest {WATCHED_MAX} {status} jobs; give IDs to watch others");
            }
            ids.extend(jobs.iter().map(|job| job.id));
        }
        if ids.is_empty() {
            eprintln!("no job is queued or running");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut screen = Screen::new(cli.output);
    let mut worst = ExitCode::SUCCESS;
    let watched = ids.iter().map(|id| async move { (*id, tenure.watch(*id).await) });
    let mut feeds = stream::SelectAll::new();
    for (id, feed) in join_all(watched).await {
        match feed {
            Ok(feed) => feeds.push(feed),
            Err(WaitError::NotFound(_)) => bail!("job {id} does not exist; {NO_ROW}"),
            Err(error) => return Err(error.into()),
        }
    }
    let mut open: HashMap<JobId, Option<JobRow>> = ids.into_iter().map(|id| (id, None)).collect();
    let mut ticks = tokio::time::interval(DRAWN_EVERY);
    loop {
        let update = tokio::select! {
            update = feeds.next() => update,
            // How long a job has run goes on, even if it reports nothing; and a group goes on while the row of its
            // follower stays as it is.
            _ = ticks.tick(), if screen.is_live || open.values().flatten().any(|job| job.is_held) => {
                let waits = waits(tenure, open.values().flatten()).await;
                open.values().flatten().try_for_each(|job| screen.show(job, waits.get(&job.id)))?;
                continue;
            }
        };
        let Some(update) = update else { break };
        // The row has what the screen shows beside it; an outage does not end the watch.
        let job = loop {
            match tenure.job(update.id).await {
                Ok(job) => break job,
                Err(error) if error.is_unavailable() => tokio::time::sleep(AGAIN_AFTER).await,
                Err(error) => return Err(error.into()),
            }
        };
        match &job {
            Some(job) => {
                screen.show(job, waits(tenure, [job]).await.get(&job.id))?;
                if matches!(update.status, Status::Failed | Status::Cancelled) {
                    worst = ExitCode::FAILURE;
                }
            }
            // Every other end leaves a row.
            None if update.status == Status::Completed => {
                eprintln!("{} has completed; its kind keeps no history", update.id);
            }
            None => {}
        }
        if update.status.is_finished() {
            open.remove(&update.id);
        } else {
            open.insert(update.id, job);
        }
    }
    if let Some(id) = open.keys().next() {
        bail!("Postgres no longer shows job {id}; the log says why");
    }
    Ok(worst)
}

/// For what those of the jobs wait that are held: other jobs, and how many of these have ended; or events.
async fn waits(tenure: &Tenure, jobs: impl IntoIterator<Item = &JobRow>) -> BTreeMap<JobId, String> {
    let held: Vec<_> = jobs.into_iter().filter(|job| job.is_held).map(|job| job.id).collect();
    let mut says = BTreeMap::<_, String>::new();
    if held.is_empty() {
        return says;
    }
    // Without an answer the line says what the row says.
    for (job, waits) in tenure.waits_for(&held).await.unwrap_or_default() {
        let text = says.entry(job).or_default();
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&waits.to_string());
    }
    says
}

/// A bar per job on a terminal, otherwise a line per change.
struct Screen {
    output: Output,
    is_live: bool,
    bars: MultiProgress,
    width: u16,
    shown: BTreeMap<JobId, (Option<Bar>, String)>,
}

struct Bar {
    bar: ProgressBar,
    is_wide: bool,
}

impl Screen {
    fn new(output: Output) -> Self {
        let bars = MultiProgress::new();
        // Bars go to standard error. If standard output is redirected, it gets lines instead.
        let is_live = output == Output::Table && std::io::stdout().is_terminal() && !bars.is_hidden();
        Self { output, is_live, bars, width: width().unwrap_or(WIDTH), shown: BTreeMap::new() }
    }

    fn show(&mut self, job: &JobRow, waits: Option<&String>) -> anyhow::Result<()> {
        let ran_for = ran_for(job, Utc::now()).map(|ran| print::seconds(ran.as_secs_f64()));
        let mut text = summary(job, ran_for.filter(|_| self.is_live || job.status.is_finished()));
        if let Some(waits) = waits.filter(|_| self.output == Output::Table) {
            text = format!("{text} · {waits}");
        }
        let name = format!("{} {} {}", job.id, job.queue, job.kind);
        let (bar, before) = self.shown.entry(job.id).or_insert_with(|| {
            let bar = self.is_live.then(|| Bar::new(&self.bars, &name, self.width));
            (bar, String::new())
        });
        if *before == text {
            return Ok(());
        }
        before.clone_from(&text);
        match (self.output, bar) {
            (Output::Json, _) => print::line(serde_json::to_string(job)?),
            (Output::Table, None) => print::line(format!("{name} {text}")),
            (Output::Table, Some(bar)) => bar.show(job, &text, self.width),
        }
        Ok(())
    }
}

impl Bar {
    fn new(bars: &MultiProgress, name: &str, width: u16) -> Self {
        let is_wide = name.chars().count() + BAR_WIDTH + TEXT_MIN <= usize::from(width);
        let style = ProgressStyle::with_template(if is_wide { WIDE } else { NARROW });
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = bars.add(ProgressBar::new(100).with_style(style));
        bar.set_prefix(if is_wide { name.to_owned() } else { print::wrapped(name, width, "  ") });
        Self { bar, is_wide }
    }

    fn show(&self, job: &JobRow, text: &str, width: u16) {
        let percent = if job.status == Status::Completed { 100.0 } else { job.progress.unwrap_or(0.0) };
        self.bar.set_position(format!("{percent:.0}").parse().unwrap_or(0));
        let text =
            if self.is_wide { text.to_owned() } else { print::wrapped(text, width.saturating_sub(2), "  ") };
        self.bar.set_message(text.clone());
        if job.status.is_finished() {
            self.bar.abandon_with_message(text);
        }
    }
}

/// How long the attempt has run, or ran; in whole seconds while it runs. Never negative, although this machine's clock
/// may differ from the database's.
fn ran_for(job: &JobRow, now: DateTime<Utc>) -> Option<Duration> {
    let started_at = job.started_at?;
    let ran = (job.finished_at.unwrap_or(now) - started_at).to_std().unwrap_or_default();
    Some(if job.finished_at.is_some() { ran } else { Duration::from_secs(ran.as_secs()) })
}

/// A job's state in one line.
fn summary(job: &JobRow, ran_for: Option<String>) -> String {
    let parts = [
        Some(job.status.to_string()),
        Some(format!("attempt {}", job.attempt)),
        Some(print::progress(job)).filter(|progress| !progress.is_empty()),
        ran_for,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tenure::internals::examples;

    use super::*;

    #[test]
    fn the_summary_of_a_job_has_its_progress_and_its_run_time() {
        let at = |ms: i64| DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap();
        let mut job = examples::job(at(0));
        job.status = Status::Processing;
        job.attempt = 2;
        job.max_attempts = 5;
        job.fencing_token = tenure::FencingToken(2);
        job.worker_id = Some("w".into());
        job.started_at = Some(at(0));
        job.last_activity_at = Some(at(0));
        job.stage = Some("walking\u{1b}[2J".into());
        job.progress = Some(60.0);
        let ran = ran_for(&job, at(61_500));
        assert_eq!(ran, Some(Duration::from_secs(61)));
        assert_eq!(
            summary(&job, Some("1m 1s".into())),
            "processing · attempt 2 · 60 % · walking\u{fffd}[2J · 1m 1s"
        );
        // The database's clock is ahead of this machine's.
        assert_eq!(ran_for(&job, at(-5_000)), Some(Duration::ZERO));
        job.finished_at = Some(at(1_834));
        assert_eq!(ran_for(&job, at(99_000)), Some(Duration::from_millis(1_834)));
        (job.started_at, job.stage, job.progress, job.status) = (None, None, None, Status::Queued);
        assert_eq!((ran_for(&job, at(0)), summary(&job, None)), (None, "queued · attempt 2".into()));
    }
}
