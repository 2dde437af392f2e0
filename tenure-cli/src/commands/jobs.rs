//! `tenure jobs`.

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::{
    CancelArgs, Cli, JobsCommand, ListArgs, NO_ROW, Output, SelectionArgs, StatusWord, Usage, dead, follow,
    groups, print,
    table::{Table, pairs, table},
    values::check_unless_lacking,
    watch,
};
use crate::{
    lanes::{Held, key},
    timeline,
};
use tenure::{
    JobId, Status, Tenure,
    codec::SealedWith,
    internals::{JobAction, Parts as _, duration::written},
    jobs::{CancelCounts, CancelOutcome, RetryOutcome},
    names::{check_kind, check_queue},
    rows::{ExecutionRow, JobFilter, JobRow, RecoveryRow, StepRow},
};

/// The most characters of an error in a list.
const ERROR_MAX: usize = 60;

pub(super) async fn run(cli: &Cli, command: &JobsCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let code = match command {
        JobsCommand::List(args) => {
            let jobs = tenure.jobs(&args.filter()?, args.limit).await?;
            match cli.output {
                Output::Json => print::line(serde_json::to_string_pretty(&jobs)?),
                Output::Table => print::line(list(&jobs)),
            }
            if let Some(hint) = args.hint(cli.output, &jobs) {
                eprintln!("{hint}");
            }
            ExitCode::SUCCESS
        }
        JobsCommand::Show { id } => show(cli, &tenure, *id).await?,
        JobsCommand::Log { id, all } => log(cli, &tenure, *id, *all).await?,
        JobsCommand::Watch { ids } => watch::run(cli, &tenure, ids).await?,
        JobsCommand::Follow(args) => follow::run(cli, &tenure, args).await?,
        JobsCommand::Cancel(args) => cancel(cli, &tenure, args).await?,
        JobsCommand::Graph { id } => groups::graph(cli, &tenure, *id).await?,
        JobsCommand::Signal { id, name, payload } => {
            groups::signal(cli, &tenure, *id, name, payload.as_deref()).await?
        }
        JobsCommand::Again { id } => {
            let enqueued = tenure.run_again(*id).await?;
            match cli.output {
                Output::Json => print::line(json!({ "id": enqueued.id, "duplicate": enqueued.duplicate })),
                Output::Table => print::line(enqueued.id),
            }
            ExitCode::SUCCESS
        }
        JobsCommand::Retry { ids } => {
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                answers.push(tenure.retry(*id).await?);
            }
            dead::print_retried(cli, ids, &answers);
            // A job that runs or is due counts as retried.
            let good = |answer: &RetryOutcome| {
                matches!(answer, RetryOutcome::Due | RetryOutcome::Redriven | RetryOutcome::Live { .. })
            };
            if answers.iter().all(good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    };
    tenure.close().await;
    Ok(code)
}

impl SelectionArgs {
    fn filter(&self) -> anyhow::Result<JobFilter> {
        let mut filter = JobFilter::new();
        if let Some(status) = self.status {
            filter = status.choose(filter);
        }
        if let Some(queue) = &self.queue {
            check_unless_lacking(queue, check_queue)?;
            filter = filter.queue(queue);
        }
        if let Some(kind) = &self.kind {
            check_unless_lacking(kind, check_kind)?;
            filter = filter.kind(kind);
        }
        if let Some(worker) = &self.worker {
            if worker.is_empty() {
                return Err(Usage("--worker is empty; `tenure workers list` shows the IDs".into()).into());
            }
            filter = filter.worker(worker);
        }
        if let (Some(older), Some(newer)) = (self.older_than, self.newer_than)
            && older >= newer
        {
            let [older, newer] = [older, newer].map(written);
            let text = format!("no job is both older than {older} and newer than {newer}; swap the two");
            return Err(Usage(text).into());
        }
        if let Some(age) = self.older_than {
            filter = filter.older_than(age);
        }
        if let Some(age) = self.newer_than {
            filter = filter.newer_than(age);
        }
        if let Some(text) = &self.error {
            filter = filter.error(text);
        }
        Ok(self.tag.iter().fold(filter, JobFilter::tag))
    }
}

impl ListArgs {
    fn filter(&self) -> anyhow::Result<JobFilter> {
        let filter = self.of.filter()?;
        Ok(match self.before {
            Some(id) => filter.before(id),
            None => filter,
        })
    }

    /// Suggests the next command when the list is empty or cut off.
    fn hint(&self, output: Output, jobs: &[JobRow]) -> Option<String> {
        match jobs.last() {
            None if self.before.is_some() => {
                Some("no jobs come after that one; leave out --before to begin with the newest".into())
            }
            None if self.of != SelectionArgs::default() => {
                Some("no jobs match; leave out a filter, or look in `tenure dead list`".into())
            }
            None => Some("no jobs yet; `tenure enqueue QUEUE KIND JSON` adds one".into()),
            // A program sees the same from a full page.
            Some(last) if output == Output::Table && u32::try_from(jobs.len()) == Ok(self.limit) => {
                Some(format!("there may be more; next page: --before {}", last.id))
            }
            Some(_) => None,
        }
    }
}

async fn cancel(cli: &Cli, tenure: &Tenure, args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let answers = match (&args.of.queue, &args.unique_key) {
        (Some(queue), Some(key)) => match tenure.cancel_key(queue, key).await? {
            Some(answer) => vec![answer],
            None => anyhow::bail!("no job holds the unique key {key:?} in queue {queue:?}"),
        },
        _ if args.all || args.of != SelectionArgs::default() => {
            return cancel_selected(cli, tenure, args).await;
        }
        _ if args.ids.is_empty() => {
            return Err(Usage(
                "name what to cancel: IDs, a selection such as --queue, --kind or --tag, --unique-key in a queue, or \
                 --all"
                    .into(),
            )
            .into());
        }
        _ if args.group => {
            let mut answers = Vec::new();
            for id in &args.ids {
                answers.extend(tenure.cancel_group(*id).await?);
            }
            answers
        }
        _ => {
            let answers = tenure.cancel_many(&args.ids).await?;
            args.ids.iter().copied().zip(answers).collect()
        }
    };
    let mut code = ExitCode::SUCCESS;
    for (id, answer) in answers {
        let text = match &answer {
            CancelOutcome::Cancelled => "is cancelled".into(),
            CancelOutcome::Asked { worker } => format!("runs on {worker}, which is asked to stop it"),
            CancelOutcome::Finished { status } => {
                // What was asked for is so already: a repeated cancellation succeeds.
                if *status != Status::Cancelled {
                    code = ExitCode::FAILURE;
                }
                format!("is already {status}")
            }
            CancelOutcome::NotFound => {
                code = ExitCode::FAILURE;
                "does not exist".into()
            }
            other => format!("has an answer that this version cannot name: {other:?}"),
        };
        match cli.output {
            Output::Json => print::line(print::answer(id, &answer)),
            Output::Table => print::line(format!("{id} {text}")),
        }
    }
    Ok(code)
}

fn print_cancelled(cli: &Cli, done: CancelCounts) {
    match cli.output {
        Output::Json => print::line(json!(done)),
        Output::Table => {
            print::line(format!("{} cancelled, {} running and asked to stop", done.cancelled, done.asked));
        }
    }
}

/// Cancels the live jobs of a selection, or prints how many a cancellation would find.
async fn cancel_selected(cli: &Cli, tenure: &Tenure, args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let SelectionArgs { queue, kind, .. } = &args.of;
    queue.as_deref().map(check_queue).transpose()?;
    kind.as_deref().map(check_kind).transpose()?;
    let filter = args.of.filter()?;
    // Of a whole queue, page by page: it may hold millions.
    let is_whole =
        args.of == SelectionArgs { queue: queue.clone(), kind: kind.clone(), ..SelectionArgs::default() };
    if !args.dry_run {
        let done = match queue {
            Some(queue) if is_whole => tenure.cancel_all(queue, kind.as_deref()).await?,
            _ => tenure.cancel_matching(&filter).await?,
        };
        print_cancelled(cli, done);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(queue) = queue.as_ref().filter(|_| is_whole) {
        let mut kinds = tenure.store().live_kinds(i64::MAX).await?;
        kinds.retain(|of| of.queue == *queue && kind.as_ref().is_none_or(|kind| of.kind == *kind));
        let queued: i64 = kinds.iter().map(|of| of.due + of.scheduled + of.held).sum();
        let running: i64 = kinds.iter().map(|of| of.processing).sum();
        print_would_cancel(cli, [queued, running].map(|jobs| usize::try_from(jobs).unwrap_or_default()));
        return Ok(ExitCode::SUCCESS);
    }
    let count = async |filter: JobFilter| {
        tenure.store().match_jobs(&filter, JobAction::Cancel, i64::MAX).await.map(|jobs| jobs.len())
    };
    print_would_cancel(
        cli,
        match args.of.status {
            Some(StatusWord::Processing) => [0, count(filter).await?],
            Some(_) => [count(filter).await?, 0],
            None => [
                count(filter.clone().status(Status::Queued)).await?,
                count(filter.status(Status::Processing)).await?,
            ],
        },
    );
    Ok(ExitCode::SUCCESS)
}

fn print_would_cancel(cli: &Cli, [queued, running]: [usize; 2]) {
    match cli.output {
        Output::Json => print::line(json!({ "would_cancel": queued, "would_ask": running })),
        Output::Table => print::line(format!(
            "{queued} queued would be cancelled, {running} running would be asked to stop"
        )),
    }
}

/// A job's status, or, while it is queued for a later time or by its lane, its state: the words of `--status`.
fn state(job: &JobRow) -> &'static str {
    match job.status {
        Status::Queued if job.is_held => "held",
        Status::Queued if job.scheduled_at <= Utc::now() => "queued",
        Status::Queued if job.attempt > 0 => "retrying",
        Status::Queued => "scheduled",
        other => other.as_str(),
    }
}

fn list(jobs: &[JobRow]) -> Table {
    let header = ["ID", "QUEUE", "KIND", "STATUS", "ATTEMPT", "PROGRESS", "CREATED", "LAST ERROR"];
    let spare = &["CREATED", "PROGRESS", "ATTEMPT", "LAST ERROR"];
    let mut table = table(&header).spare(spare).cut("LAST ERROR");
    for job in jobs {
        table.add_row([
            job.id.to_string(),
            job.queue.clone(),
            job.kind.clone(),
            state(job).to_owned(),
            format!("{}/{}", job.attempt, job.max_attempts),
            print::percent(job.progress, job.status == Status::Completed).unwrap_or_default(),
            time(Some(job.created_at)),
            print::brief(job.last_error.as_deref().unwrap_or_default(), ERROR_MAX),
        ]);
    }
    table
}

/// The output of `tenure jobs show --output json`.
#[derive(Serialize)]
struct Shown {
    job: JobRow,
    executions: Vec<ExecutionRow>,
    recoveries: Vec<RecoveryRow>,
    steps: Vec<StepRow>,
    timeline: Vec<timeline::Entry>,
    checkpoint_bytes: Option<usize>,
    held: Option<Held>,
}

async fn show(cli: &Cli, tenure: &Tenure, id: JobId) -> anyhow::Result<ExitCode> {
    let Some(job) = tenure.job(id).await? else {
        anyhow::bail!("job {id} does not exist; {NO_ROW}. `tenure jobs list` shows the newest");
    };
    let executions = tenure.executions(id).await?;
    let recoveries = tenure.recoveries(id).await?;
    let steps = match tenure.steps(id).await {
        Err(error) if error.is_denied() => Vec::new(),
        steps => steps?,
    };
    let checkpoint_bytes = tenure.checkpoint_bytes(id).await?;
    let held = Held::read(tenure, &job, Utc::now(), timeline::seconds).await?;
    let timeline = timeline::merged(&job, &executions, &recoveries, &steps, timeline::seconds);
    if cli.output == Output::Json {
        // Not through `serde_json::Value`, which would round the numbers of payload and output.
        let all = Shown { job, executions, recoveries, steps, timeline, checkpoint_bytes, held };
        print::line(serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["AT", "EVENT", "ATTEMPT", "TOKEN", "WORKER", "DETAILS"];
    let mut events = table(&header).spare(&["TOKEN", "ATTEMPT", "WORKER"]).wrap(&["DETAILS"]);
    for entry in timeline {
        events.add_row([
            time(Some(entry.at)),
            entry.event,
            entry.attempt.map(|attempt| attempt.to_string()).unwrap_or_default(),
            entry.token.map(|token| token.to_string()).unwrap_or_default(),
            entry.worker.unwrap_or_default(),
            print::printable(&entry.text),
        ]);
    }
    print::line(format!("{events}\n"));
    let json = |value: Option<&RawValue>| value.map(shown).unwrap_or_default();
    let why = match job.status {
        Status::Queued if job.scheduled_at <= Utc::now() && !job.is_held => {
            match tenure.store().who_runs(&job.queue, &job.kind, job.id).await {
                Ok(who_runs) => timeline::waits_for(&job, &who_runs, timeline::seconds),
                Err(error) if error.is_denied() => String::new(),
                Err(error) => return Err(error.into()),
            }
        }
        _ => String::new(),
    };
    let about = [
        ("id", job.id.to_string()),
        ("queue", job.queue.clone()),
        ("kind", job.kind.clone()),
        ("status", job.status.to_string()),
        ("attempt", format!("{} of {}", job.attempt, job.max_attempts)),
        ("worker", job.worker_id.clone().unwrap_or_default()),
        ("created", time(Some(job.created_at))),
        ("scheduled", time(Some(job.scheduled_at))),
        ("why it waits", why),
        ("held", held.map(|held| held.says).unwrap_or_default()),
        ("lane", job.lane.as_deref().map(key).unwrap_or_default().to_owned()),
        ("priority", job.priority.filter(|n| *n != 0).map(|n| n.to_string()).unwrap_or_default()),
        ("not after", time(job.not_after)),
        ("tags", job.tags.join(", ")),
        ("started", time(job.started_at)),
        ("last activity", time(job.last_activity_at)),
        ("finished", time(job.finished_at)),
        ("progress", print::progress(&job)),
        ("checkpoint", checkpoint_bytes.map(|bytes| format!("{bytes} bytes")).unwrap_or_default()),
        ("payload", json(job.payload_json())),
        ("output", json(job.output_json())),
        ("last error", job.last_error.clone().unwrap_or_default()),
    ];
    print::line(pairs(about.map(|(name, value)| (name, print::printable(&value)))));
    Ok(ExitCode::SUCCESS)
}

async fn log(cli: &Cli, tenure: &Tenure, id: JobId, all: bool) -> anyhow::Result<ExitCode> {
    let mut logs = tenure.job_logs(id).await?;
    if !all {
        logs.truncate(1);
    }
    if logs.is_empty() && tenure.job(id).await?.is_none() {
        anyhow::bail!("job {id} does not exist; {NO_ROW}. `tenure jobs list` shows the newest");
    }
    if cli.output == Output::Json {
        print::line(serde_json::to_string_pretty(&logs)?);
        return Ok(ExitCode::SUCCESS);
    }
    if logs.is_empty() {
        eprintln!(
            "nothing is kept of what job {id} has printed; a worker or gateway with TENURE_JOB_LOGS=true keeps it"
        );
    }
    for log in logs.iter().rev() {
        if all {
            print::line(format!(
                "attempt with token {}, until {}:",
                log.fencing_token,
                time(Some(log.written_at))
            ));
        }
        if log.is_cut {
            eprintln!("earlier lines are missing");
        }
        for line in log.text.lines() {
            print::line(print::printable(line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// JSON as people read it: of a sealed value, the id of its key.
pub(super) fn shown(json: &RawValue) -> String {
    SealedWith::of(json.get()).map_or_else(|| json.to_string(), |sealed| sealed.to_string())
}

/// Attempts as a table.
pub(super) fn attempts(executions: Vec<ExecutionRow>) -> Table {
    let header = ["TOKEN", "ATTEMPT", "STARTED", "FINISHED", "OUTCOME", "WORKER", "ERROR"];
    let mut attempts = table(&header).spare(&["FINISHED", "TOKEN", "WORKER"]).wrap(&["ERROR"]);
    for attempt in executions {
        attempts.add_row([
            attempt.fencing_token.to_string(),
            attempt.attempt.to_string(),
            time(Some(attempt.started_at)),
            time(attempt.finished_at),
            attempt.outcome.unwrap_or_else(|| "running".into()),
            attempt.worker_id,
            print::printable(&attempt.error.unwrap_or_default()),
        ]);
    }
    attempts
}

pub(super) fn time(at: Option<DateTime<Utc>>) -> String {
    at.map(|at| at.format("%Y-%m-%d %H:%M:%S%.3fZ").to_string()).unwrap_or_default()
}
