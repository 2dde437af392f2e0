//! Command line: for the operator, and for workers that are not written in Rust.
//!
//! Data goes to standard output, messages to standard error. Exit codes: 0 done, 1 the answer is no, or a server
//! failed, 2 usage.

mod audit;
mod bench;
mod cells;
mod config;
mod connect;
mod dead;
mod dev;
mod doctor;
mod enqueue;
mod follow;
mod groups;
mod gateway;
mod init;
mod jobs;
mod kinds;
mod lanes;
mod log;
mod print;
mod queues;
mod redrives;
mod schedules;
mod serve;
mod shell;
mod table;
mod values;
mod verify;
mod watch;
mod work;
mod workers;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use self::values::{Missed, Overlaps, StatusWord, duration, moment, number, tag};
use crate::{
    bench::{Work, WorkerMode},
    exec::guard,
};
use tenure::{
    EnqueueError, JobId, WorkerError,
    handlers::HandlerError,
    internals::{MAX_ATTEMPTS_DEFAULT, chained},
    jobs::ActionError,
    lanes::LanesError,
    names::NameError,
    queues::QueueSettingsError,
    schedules::ScheduleError,
    settings::ConfigError,
};

/// The heading in a command's help for the options of every command, after its own.
const GLOBAL: &str = "Global options";

/// The most jobs that a worker may run at once from one queue.
const SLOTS_MAX: u32 = 100_000;
/// The most attempts of a job.
const ATTEMPTS_MAX: u32 = 1_000;
/// No bound.
const ANY: u32 = u32::MAX;
/// Possible reasons why a job has no row.
const NO_ROW: &str = "it never did, or retention removed it, or it completed and its kind keeps no history";

/// Durable background jobs: NATS JetStream delivers, Postgres owns.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 the answer is no, or a server failed; 2 wrong usage."
)]
struct Cli {
    /// The output format.
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// The settings file, in TOML. Default: `TENURE_CONFIG`, or tenure.toml in the working directory if it exists.
    #[arg(long = "config", global = true, help_heading = GLOBAL, value_name = "FILE")]
    settings_file: Option<PathBuf>,
    // Without clap's `env`, which would hide whether a URL comes from the flag or the environment.
    /// The URL of Postgres, for example `postgres://user:password@host/database`. Default: `DATABASE_URL`.
    #[arg(long, global = true, help_heading = GLOBAL)]
    database_url: Option<String>,
    /// The URL of NATS, for example `nats://host:4222`; separate several by commas. Default: `NATS_URL`.
    #[arg(long, global = true, help_heading = GLOBAL)]
    nats_url: Option<String>,
    /// The cell, where `TENURE_CELLS` lists several. A command that names a queue or a job finds its cell.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NAME")]
    cell: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a private Postgres and NATS in a folder, until Ctrl-C.
    Dev(DevArgs),
    /// Create or update the schema, the stream and the consumers of queues.
    Migrate {
        /// Create or update the consumer of this queue; repeatable. Workers create missing ones themselves.
        #[arg(long = "queue", value_name = "QUEUE")]
        queues: Vec<String>,
    },
    /// Enqueue a job, and print its ID.
    Enqueue(EnqueueArgs),
    /// Run the jobs of queues with a command.
    Work(WorkArgs),
    /// Serve workers in other languages: answer the worker protocol over NATS, and take part in recovery.
    Gateway,
    /// Serve the dashboard, an HTTP API, the fleet's /metrics, and /livez, /readyz and /startupz.
    Serve(serve::ServeArgs),
    /// List, show, watch, cancel and retry jobs.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// List, show, redrive and purge dead letters: failed jobs, and messages that could not become jobs.
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// List, pause, resume and limit queues, on all workers, and give them lanes.
    #[command(subcommand)]
    Queues(queues::QueuesCommand),
    /// Watch kinds, and hold back the jobs of one that mostly fails.
    #[command(subcommand)]
    Kinds(kinds::KindsCommand),
    /// List, add, pause, resume and remove schedules: a job at each tick of a cron expression.
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    /// List worker processes (whether they are alive, where they run, which queues they serve), or drain one. `tenure
    /// workers` alone is short for `tenure workers list`.
    Workers {
        #[command(subcommand)]
        command: Option<WorkersCommand>,
    },
    /// List who did what to jobs, queues, lanes, schedules and dead letters, when, from where, and to how many jobs:
    /// the latest first. JSON has every field, for an export.
    Audit(audit::AuditArgs),
    /// Check every job for what must never happen: a lost job, two owners at once, a second completion. Exit 1 if a
    /// job breaks a rule.
    Verify,
    /// Print the settings in force and the source of each. Passwords are masked.
    Config,
    /// Check both servers, the schema, rights, timers, workers and queues, and say what to do about each problem.
    /// Tries a write, rolls it back, and changes nothing. Exit 1 if anything is wrong.
    Doctor(DoctorArgs),
    /// Measure tenure on this machine, with a private pair of servers unless --on-servers is given.
    Bench(BenchArgs),
    /// Print a script that completes this command line in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write a page for each command.
    Man {
        /// Write the pages to this folder; create it if necessary.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
    /// Runs jobs for `bench`.
    #[command(hide = true)]
    BenchWorker {
        #[arg(required = true)]
        queues: Vec<String>,
        #[arg(long)]
        slots: u32,
        #[arg(long, value_enum)]
        mode: WorkerMode,
        /// Runs this many workers behind a gateway instead.
        #[arg(long)]
        foreign: Option<usize>,
    },
    /// Runs one command for `work`, and ends it when the worker dies.
    #[command(hide = true)]
    ExecGuard {
        #[arg(long)]
        worker: i32,
        #[arg(long)]
        group_file: PathBuf,
        #[arg(long)]
        checkpoint_file: Option<PathBuf>,
        command: String,
    },
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// Check only this queue; repeatable. Default: all that a worker serves or in which a job waits.
    #[arg(long = "queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Print only what is wrong, and warnings.
    #[arg(long)]
    problems: bool,
}

#[derive(Debug, Args)]
struct DevArgs {
    /// The folder for the data. Default: tenure/dev in your data folder; of root, /var/lib/tenure-dev.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Use a temporary folder, and keep nothing.
    #[arg(long, conflicts_with = "folder")]
    ephemeral: bool,
}

#[derive(Debug, Args)]
struct EnqueueArgs {
    /// The queue.
    queue: String,
    /// The kind, which selects the handler.
    kind: String,
    /// The payload, as JSON; `-` reads it from standard input.
    #[arg(allow_negative_numbers = true)]
    json: String,
    /// Enqueue at most one job with this key in the queue, until `TENURE_KEEP_KEYS` (30 days) after its end.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Run the job only after this delay, for example 90s or 2h.
    #[arg(
        long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true,
        conflicts_with = "run_at"
    )]
    delay: Option<Duration>,
    /// Run the job only after this time, for example 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    run_at: Option<DateTime<Utc>>,
    /// The maximum number of attempts: 1 to 1000.
    #[arg(
        long, value_name = "N", default_value_t = MAX_ATTEMPTS_DEFAULT,
        value_parser = number::<1, ATTEMPTS_MAX>, allow_negative_numbers = true
    )]
    max_attempts: u32,
    /// The W3C trace context of the caller. Default: `TRACEPARENT`. An invalid one is ignored.
    #[arg(long, value_name = "CONTEXT")]
    traceparent: Option<String>,
    #[command(flatten)]
    lane: enqueue::LaneArgs,
    /// Wait until the job has ended, and print its output. Exit 1 if it failed or was cancelled.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct WorkArgs {
    /// The queues to serve. With weights (`urgent=8 bulk=1`) they share the slots of --concurrency in this proportion
    /// while all have jobs waiting.
    #[arg(required = true, value_name = "QUEUE[=WEIGHT]")]
    queues: Vec<String>,
    /// The command, run by `sh -c`. It reads the payload from standard input, and may write progress and
    /// output as lines of JSON.
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Keep the command's process for the next job. It reads a line of JSON for each job, and ends each by a line with
    /// `settle` and the job's `claim_id`.
    #[arg(long)]
    stay: bool,
    /// Replace a process that stays after this many jobs.
    #[arg(
        long, value_name = "N", value_parser = number::<1, ANY>, allow_negative_numbers = true, requires = "stay"
    )]
    restart_after: Option<u32>,
    /// Run only jobs of this kind; repeatable. Others wait for a worker that knows them. Default: all.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// How many jobs of each queue run at once; with weights, of all queues together: 1 to 100000.
    #[arg(
        long, value_name = "N", default_value_t = 1, value_parser = number::<1, SLOTS_MAX>,
        allow_negative_numbers = true
    )]
    concurrency: u32,
    /// Send heartbeats for a command that is silent for long. Use --timeout as well.
    #[arg(long)]
    keepalive: bool,
    /// The time between these heartbeats. Default: `TENURE_KEEPALIVE_EVERY`, at most a third of --stale-after.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, requires = "keepalive")]
    keepalive_every: Option<Duration>,
    /// How long one attempt may run, for example 30m.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// The silence after which a job is reset, for example 90s. Default: `TENURE_STALE_AFTER`.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    stale_after: Option<Duration>,
    /// What to do with a job whose worker is lost while it runs.
    #[arg(long, value_enum, default_value_t = CrashPolicy::Retry)]
    on_crash: CrashPolicy,
    /// Keep nothing of a job that completes, neither its row nor its output. Jobs that fail or are cancelled are kept.
    #[arg(long)]
    no_history: bool,
    /// Also serve workers in other languages, as `tenure gateway` does.
    #[arg(long)]
    gateway: bool,
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// What to measure. Default: each that does not say otherwise.
    #[arg(value_enum)]
    works: Vec<Work>,
    /// Runs of each measurement; the median is printed. Default: 3, or 1 with --quick.
    #[arg(long, value_name = "N", value_parser = number::<1, ANY>, allow_negative_numbers = true)]
    runs: Option<u32>,
    /// Jobs per run, at least 1000; some measurements use a part of them. Default: 100000, or 20000 with --quick.
    #[arg(long, value_name = "N", value_parser = number::<1, ANY>, allow_negative_numbers = true)]
    jobs: Option<u32>,
    /// How many jobs a worker runs at once: 1 to 100000.
    #[arg(
        long, value_name = "N", default_value_t = 1_000, value_parser = number::<1, SLOTS_MAX>,
        allow_negative_numbers = true
    )]
    slots: u32,
    /// Finished jobs in the old database of `age` and `retention`; `age` adds a tenth as many that wait, and a
    /// thousandth as many dead ones.
    #[arg(
        long, value_name = "N", default_value_t = 1_000_000, value_parser = number::<1, ANY>,
        allow_negative_numbers = true
    )]
    finished: u32,
    /// For `gateway`: a worker in another language, as NAME=COMMAND. The bench runs COMMAND QUEUE SLOTS; repeatable.
    #[arg(long = "client", value_name = "NAME=COMMAND")]
    clients: Vec<String>,
    /// Use fewer jobs, and run each measurement once: about a minute. `idle`, `grow` and `relay` get smaller fleets and
    /// shorter timers.
    #[arg(long)]
    quick: bool,
    /// Measure the servers of `DATABASE_URL` and `NATS_URL`. The bench enqueues jobs into its own queues, named
    /// bench-…, and removes them afterwards; the load is real.
    #[arg(long)]
    on_servers: bool,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// List jobs, newest first.
    List(ListArgs),
    /// Show a job and its history in order of time.
    Show {
        /// The job's ID.
        id: JobId,
    },
    /// Print what the last attempt of a job has printed, if its worker or gateway keeps that (`TENURE_JOB_LOGS`).
    Log {
        /// The job's ID.
        id: JobId,
        /// Print what each of its last three attempts has printed.
        #[arg(long)]
        all: bool,
    },
    /// Watch jobs until they have ended. Exit 1 if one failed or was cancelled.
    Watch {
        /// The jobs' IDs. Default: the newest fifty running and the newest fifty queued jobs.
        #[arg(value_name = "ID")]
        ids: Vec<JobId>,
    },
    /// Follow the ends of jobs: one line each, none twice, none left out. A cursor goes on where an earlier run ended.
    Follow(follow::FollowArgs),
    /// Cancel jobs: queued ones at once, running ones within a second. A message that no worker has received is not a
    /// job yet, and is not cancelled. Exit 1 if one of these IDs does not exist, or has completed or failed.
    Cancel(CancelArgs),
    /// Show the group of a job: its jobs, and which waits for which.
    Graph {
        /// The ID of any of its jobs.
        id: JobId,
    },
    /// Tell a job of an event that it waits for, or will wait for. Exit 1 if it has ended, or waits no more.
    Signal {
        /// The job's ID.
        id: JobId,
        /// The event's name.
        name: String,
        /// What the job gets (JSON). Default: null.
        payload: Option<String>,
    },
    /// Retry jobs now: scheduled and retrying jobs become due, and dead letters are queued again. Exit 1 if one of
    /// these IDs does not exist, or has completed or was cancelled.
    Retry {
        /// The jobs' IDs.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<JobId>,
    },
    /// Enqueue a completed or cancelled job anew: another job of the same queue, kind and payload. Exit 1 if it does
    /// not exist, or has not ended, or is a dead letter.
    Again {
        /// The job's ID.
        id: JobId,
    },
}

/// Which jobs.
#[derive(Debug, Default, PartialEq, Args)]
struct SelectionArgs {
    /// Only jobs of this status.
    #[arg(long, value_enum)]
    status: Option<StatusWord>,
    /// Only jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs that this worker runs or ran last; `tenure workers list` shows the IDs.
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Only jobs created at least AGE ago, for example 2h or 30d.
    #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
    older_than: Option<Duration>,
    /// Only jobs created at most AGE ago. In a large history it makes every other filter fast.
    #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
    newer_than: Option<Duration>,
    /// Only jobs whose last error contains exactly this text.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error: Option<String>,
    /// Only jobs with this tag, such as customer=7. Repeat it for jobs that have all of several tags.
    #[arg(long, value_name = "TAG", value_parser = tag)]
    tag: Vec<String>,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    of: SelectionArgs,
    /// Only jobs after this one in the list: the next page. Give the last ID of this page.
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    /// The maximum number of jobs.
    #[arg(
        long, value_name = "N", default_value_t = 50, value_parser = number::<1, ANY>,
        allow_negative_numbers = true
    )]
    limit: u32,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("many").multiple(true)
    .args(["all", "status", "queue", "kind", "worker", "older_than", "newer_than", "error", "tag"])))]
struct CancelArgs {
    /// The jobs' IDs.
    #[arg(conflicts_with = "many", value_name = "ID")]
    ids: Vec<JobId>,
    /// Also cancel all other jobs of their groups.
    #[arg(long, conflicts_with = "many")]
    group: bool,
    /// Cancel all live jobs, of every queue.
    #[arg(
        long,
        conflicts_with_all = [
            "unique_key", "status", "queue", "kind", "worker", "older_than", "newer_than", "error", "tag"
        ]
    )]
    all: bool,
    #[command(flatten)]
    of: SelectionArgs,
    /// Only the job that holds this unique key in the queue.
    #[arg(
        long, value_name = "KEY", requires = "queue",
        conflicts_with_all = ["status", "kind", "worker", "older_than", "newer_than", "error", "tag"]
    )]
    unique_key: Option<String>,
    /// Print how many jobs would be cancelled, and change nothing.
    #[arg(long, requires = "many", conflicts_with = "unique_key")]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// List worker processes, the latest started first. `tenure jobs list --worker ID` shows the jobs of one.
    List,
    /// Drain workers: each starts no new jobs, lets running ones finish as on SIGTERM, and exits with 0. A platform
    /// such as Kubernetes starts it again. Exit 1 if a worker is unknown or does not answer.
    Drain {
        /// The workers' IDs; `tenure workers list` shows them.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum SchedulesCommand {
    /// List schedules and their next ticks.
    List,
    /// Enqueue a job at each tick of a cron expression, from now on.
    Add(Box<ScheduleArgs>),
    /// Pause schedules: they do not tick until they are resumed. Exit 1 if one is unknown; the others are paused.
    Pause {
        /// The schedules' names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Resume paused schedules, from their next tick on. Exit 1 if one is unknown; the others are resumed.
    Resume {
        /// The schedules' names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Enqueue the job of a schedule now, outside its ticks. The next tick stays. Exit 1 if the schedule is unknown.
    Run {
        /// The schedule's name.
        name: String,
    },
    /// Remove schedules; their jobs stay. Exit 1 if one is unknown; the others are removed.
    Remove {
        /// The schedules' names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct ScheduleArgs {
    /// The schedule's name.
    name: String,
    /// Minute, hour, day, month and weekday, optionally preceded by seconds: '0 3 * * MON'.
    cron: String,
    /// The queue.
    queue: String,
    /// The kind, which selects the handler.
    kind: String,
    /// The payload, as JSON; `-` reads it from standard input.
    #[arg(allow_negative_numbers = true)]
    json: String,
    /// The time zone of the cron expression, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// What to do about ticks that passed while no worker ran.
    #[arg(long, value_enum, default_value_t = Missed::Once)]
    missed: Missed,
    /// What a tick does while the job of the last one is queued or runs.
    #[arg(long, value_enum, default_value_t = Overlaps::Allow)]
    overlap: Overlaps,
    /// The payload field that receives the time of the tick.
    #[arg(long, value_name = "FIELD")]
    tick_field: Option<String>,
    /// The maximum number of attempts of each job: 1 to 1000.
    #[arg(
        long, value_name = "N", default_value_t = MAX_ATTEMPTS_DEFAULT,
        value_parser = number::<1, ATTEMPTS_MAX>, allow_negative_numbers = true
    )]
    max_attempts: u32,
    #[command(flatten)]
    place: enqueue::PlaceArgs,
    /// Let each job be due within this time of its tick, at a moment that the schedule's name decides. At most 1d.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    spread: Option<Duration>,
    /// Start no attempt later than this long after a job is due.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    expires_in: Option<Duration>,
    /// Change an existing schedule of this name.
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrashPolicy {
    /// Retry it while attempts are left.
    Retry,
    /// Make it a dead letter at once, because it must not run twice.
    DeadLetter,
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::ExecGuard { worker, group_file, checkpoint_file, command } = &cli.command {
        return guard::run(command, *worker, group_file, checkpoint_file.as_deref());
    }
    if init::is_needed(&cli.command) {
        return init::run();
    }
    let log = match log::Log::start(&cli.command) {
        Ok(log) => log,
        Err(usage) => return failed(&usage.into()),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let answer = runtime.block_on(run(cli));
    // A hung connection must not delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    log.finish();
    answer.unwrap_or_else(|error| failed(&error))
}

/// A usage error: the request makes no sense in any state of the servers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("tenure: {}", chained(error.as_ref()));
    let usage = error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.is::<NameError>()
            || cause.is::<HandlerError>()
            || cause.is::<ConfigError>()
            || matches!(cause.downcast_ref(), Some(ActionError::Name(_) | ActionError::Key { .. }))
            || matches!(
                cause.downcast_ref(),
                Some(
                    WorkerError::Slots { .. }
                        | WorkerError::Shared { .. }
                        | WorkerError::Handler(_)
                        | WorkerError::Name(_)
                )
            )
            || matches!(
                cause.downcast_ref(),
                Some(QueueSettingsError::Name(_) | QueueSettingsError::Limit { .. })
            )
            || matches!(cause.downcast_ref(), Some(LanesError::Name(_) | LanesError::Option { .. }))
            || matches!(
                cause.downcast_ref(),
                Some(
                    ScheduleError::Name { .. }
                        | ScheduleError::Ticks(_)
                        | ScheduleError::Never { .. }
                        | ScheduleError::Option(_)
                )
            )
            || matches!(
                cause.downcast_ref(),
                Some(
                    EnqueueError::Name(_)
                        | EnqueueError::Option { .. }
                        | EnqueueError::LaneRequired(_)
                        | EnqueueError::Payload(_)
                        | EnqueueError::TooLarge { .. }
                )
            )
    });
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.layout()? {
        Some(layout) => Box::pin(cells::run(cli, &layout)).await,
        None => run_in(&cli).await,
    }
}

/// Runs a command in one cell, or one that needs none or several.
async fn run_in(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Migrate { queues } => {
            let tenure = cli.connect_to_any().await?;
            let applied = tenure.setup(queues).await?;
            match cli.output {
                Output::Json => print::line(serde_json::json!({ "applied": applied, "queues": queues })),
                Output::Table if applied.is_empty() => {
                    print::line(
                        "the schema is current; --queue NAME creates or updates the consumer of a queue",
                    );
                }
                Output::Table => print::line(format!("applied migrations {applied:?}")),
            }
            tenure.close().await;
            Ok(ExitCode::SUCCESS)
        }
        Command::Enqueue(args) => enqueue::run(cli, args).await,
        Command::Work(args) => work::run(cli, args).await,
        Command::Gateway => gateway::run(cli).await,
        Command::Serve(args) => serve::run(cli, args).await,
        Command::Jobs(command) => jobs::run(cli, command).await,
        Command::Dead(command) => dead::run(cli, command).await,
        Command::Queues(command) => queues::run(cli, command).await,
        Command::Schedules(command) => schedules::run(cli, command).await,
        Command::Workers { command: None | Some(WorkersCommand::List) } => workers::list(cli).await,
        Command::Workers { command: Some(WorkersCommand::Drain { ids }) } => workers::drain(cli, ids).await,
        Command::Kinds(command) => kinds::run(cli, command).await,
        Command::Audit(args) => audit::run(cli, args).await,
        Command::Verify => verify::run(cli).await,
        Command::Config => config::run(cli),
        Command::Doctor(args) => doctor::run(cli, args).await,
        Command::Completions { shell } => Ok(shell::completions(*shell)),
        Command::Man { dir } => shell::man(dir.as_deref()),
        Command::Bench(args) => bench::run(cli, args).await,
        Command::BenchWorker { queues, slots, mode, foreign } => {
            crate::bench::work(&cli.config()?, queues, *slots, *mode, *foreign).await?;
            Ok(ExitCode::SUCCESS)
        }
        // `main` runs it before it creates a runtime.
        Command::ExecGuard { .. } => Ok(ExitCode::FAILURE),
    }
}
