//! `tenure jobs follow`: the ends of jobs, one line each, from a cursor that the reader keeps.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{Cli, Output, Usage, jobs::time, print, values::moment};
use tenure::{
    Tenure,
    jobs::{Cursor, EndsError, EndsFilter},
    names::{check_kind, check_queue},
    rows::JobEnd,
};

/// How long to wait for further ends.
const EVERY: Duration = Duration::from_millis(500);
/// How often `--cursors` prints one.
const CURSOR_EVERY: Duration = Duration::from_secs(10);
/// The most ends of one page.
const PAGE: u32 = 5_000;
/// The most characters of an error.
const ERROR_MAX: usize = 100;

#[derive(Debug, Args)]
pub(super) struct FollowArgs {
    /// Where to begin: the cursor of the last line that was read (JSON has it in each line), a time in RFC 3339,
    /// `beginning`, or `now`.
    #[arg(long, value_name = "CURSOR|TIME|beginning|now", default_value = "now")]
    since: String,
    /// Only jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// With JSON: also print lines that have only a cursor, at the start and every ten seconds, so that a program that
    /// has read no end can go on, too.
    #[arg(long)]
    cursors: bool,
    /// Exit once all ends so far are printed.
    #[arg(long)]
    once: bool,
}

/// An end, as a line of JSON.
#[derive(Serialize)]
struct Line<'e> {
    #[serde(flatten)]
    end: &'e JobEnd,
    /// To go on after this line.
    cursor: &'e Cursor,
}

impl FollowArgs {
    fn filter(&self) -> anyhow::Result<EndsFilter> {
        let mut filter = EndsFilter::new();
        if let Some(queue) = &self.queue {
            check_queue(queue)?;
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            check_kind(kind)?;
            filter = filter.kind(kind);
        }
        Ok(filter)
    }

    async fn cursor(&self, tenure: &Tenure) -> anyhow::Result<Cursor> {
        match self.since.as_str() {
            "now" => Ok(tenure.ends_from_now().await?),
            "beginning" => Ok(Cursor::beginning()),
            text => text.parse().or_else(|_| moment(text).map(Cursor::at)).map_err(|_| {
                let text = format!(
                    "--since {text:?} is no cursor and no time; give the cursor of the last line that you have read, a \
                     time such as 2026-01-31T08:00:00Z, beginning, or now"
                );
                Usage(text).into()
            }),
        }
    }
}

pub(super) async fn run(cli: &Cli, tenure: &Tenure, args: &FollowArgs) -> anyhow::Result<ExitCode> {
    let filter = args.filter()?;
    let mut cursor = args.cursor(tenure).await?;
    let mut is_away = false;
    let mut cursor_due = Instant::now();
    loop {
        let page = match tenure.ends_since(&cursor, &filter, PAGE).await {
            Ok(page) => page,
            // An outage does not end it.
            Err(EndsError::Store(error)) if error.is_unavailable() && !args.once => {
                if !std::mem::replace(&mut is_away, true) {
                    eprintln!("tenure: {error}; it goes on when Postgres answers");
                }
                tokio::time::sleep(EVERY).await;
                continue;
            }
            Err(error) => return Err(error).context("--since"),
        };
        is_away = false;
        for (end, cursor) in &page.ends {
            match cli.output {
                Output::Json => print::line(serde_json::to_string(&Line { end, cursor })?),
                Output::Table => print::line(line(end)),
            }
        }
        cursor = page.next;
        if args.cursors && cli.output == Output::Json && cursor_due <= Instant::now() {
            print::line(json!({ "cursor": cursor }));
            cursor_due = Instant::now() + CURSOR_EVERY;
        }
        if page.has_more {
            continue;
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn line(end: &JobEnd) -> String {
    let JobEnd { id, queue, kind, status, attempt, .. } = end;
    let at = time(Some(end.finished_at));
    let error = end.last_error.as_deref().filter(|_| !matches!(status, tenure::Status::Completed));
    let error = error.map(|error| format!(" · {}", print::brief(error, ERROR_MAX))).unwrap_or_default();
    format!("{at} {id} {queue} {kind} {status} · attempt {attempt}{error}")
}
