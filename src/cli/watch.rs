//! `tenure jobs watch`: a progress bar a job, until all have ended.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::bail;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{Cli, Output, print};
use crate::{JobId, JobRow, Status, Tenure};

/// How often the database is asked.
const EVERY: Duration = Duration::from_millis(250);

pub(super) async fn run(cli: &Cli, tenure: &Tenure, ids: &[JobId]) -> anyhow::Result<ExitCode> {
    let mut ids = ids.to_vec();
    if ids.is_empty() {
        for status in [Status::Processing, Status::Queued] {
            ids.extend(tenure.jobs(Some(status), None, None, 50).await?.iter().map(|job| job.id));
        }
        if ids.is_empty() {
            eprintln!("no job is queued or running");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut screen = Screen::new(cli.output);
    let mut worst = ExitCode::SUCCESS;
    while !ids.is_empty() {
        let mut rest = Vec::new();
        for id in ids {
            let job = match tenure.job(id).await {
                Ok(Some(job)) => job,
                Ok(None) => bail!("there is no job {id}"),
                // Whoever watches wants to see what comes after an outage.
                Err(error) if error.is_unavailable() => {
                    rest.push(id);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            screen.show(&job)?;
            match job.status {
                Status::Completed => {}
                Status::Failed | Status::Cancelled => worst = ExitCode::FAILURE,
                Status::Queued | Status::Processing => rest.push(id),
            }
        }
        ids = rest;
        if !ids.is_empty() {
            tokio::time::sleep(EVERY).await;
        }
    }
    Ok(worst)
}

struct Screen {
    output: Output,
    bars: MultiProgress,
    shown: BTreeMap<JobId, (ProgressBar, String)>,
    style: ProgressStyle,
}

impl Screen {
    fn new(output: Output) -> Self {
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos:>3} % {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { output, bars: MultiProgress::new(), shown: BTreeMap::new(), style }
    }

    fn show(&mut self, job: &JobRow) -> anyhow::Result<()> {
        let text = format!("{} · attempt {} · {}", job.status, job.attempt, print::progress(job));
        let (bar, before) = self.shown.entry(job.id).or_insert_with(|| {
            let bar = self.bars.add(ProgressBar::new(100).with_style(self.style.clone()));
            bar.set_prefix(format!("{} {}", job.id, job.kind));
            (bar, String::new())
        });
        if *before == text {
            return Ok(());
        }
        before.clone_from(&text);
        if self.output == Output::Json {
            print::line(serde_json::to_string(job)?);
            return Ok(());
        }
        if bar.is_hidden() {
            // Not a terminal: a line a change.
            print::line(format!("{} {} {text}", job.id, job.kind));
            return Ok(());
        }
        let percent = if job.status == Status::Completed { 100.0 } else { job.progress.unwrap_or(0.0) };
        bar.set_position(format!("{percent:.0}").parse().unwrap_or(0));
        bar.set_message(text.clone());
        if job.status.is_finished() {
            bar.abandon_with_message(text);
        }
        Ok(())
    }
}
