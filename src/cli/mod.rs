//! Command line: for the operator, and for workers that are not written in Rust.
//!
//! Data go to standard output, words to standard error. Exit codes: 0 done, 1 failed, 2 usage.

mod bench;
mod config;
mod dead;
mod dev;
mod doctor;
mod enqueue;
mod exec;
mod guard;
mod init;
mod jobs;
mod log;
mod print;
mod queues;
mod schedules;
mod serve;
mod shell;
mod verify;
mod watch;
mod work;
mod workers;

#[cfg(any(fuzzing, test))]
pub(crate) use exec::lines as lines_of_a_command;
#[cfg(any(fuzzing, test))]
pub(crate) fn said_by_a_command(text: &str) -> exec::Line {
    exec::Line::read(text)
}

use std::{path::PathBuf, process::ExitCode, time::Duration};

use chrono::{DateTime, Utc};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    Config, ConfigError, EnqueueError, HandlerError, JobId, ManageError, MissedTicks, NameError,
    QueueSettingsError, ScheduleError, Status, Tenure, WorkerError,
    bench::{Work, WorkerMode},
    config::Settings,
    job::chained,
};

/// Where a command's help shows what every command takes: after what is its own.
const GLOBAL: &str = "Global options";

/// Durable background jobs: NATS JetStream delivers, Postgres owns.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, max_term_width = 100)]
struct Cli {
    /// How to print.
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// A file of settings, in TOML. Default: `TENURE_CONFIG`, or tenure.toml in the working directory, if it is there.
    #[arg(long = "config", global = true, help_heading = GLOBAL, value_name = "FILE")]
    settings_file: Option<PathBuf>,
    // Not clap's `env`: it would hide which of the two a URL is from.
    /// Postgres, for example `postgres://user:password@host/database`. Default: `DATABASE_URL`.
    #[arg(long, global = true, help_heading = GLOBAL)]
    database_url: Option<String>,
    /// NATS, for example `nats://host:4222`; several joined by commas. Default: `NATS_URL`.
    #[arg(long, global = true, help_heading = GLOBAL)]
    nats_url: Option<String>,
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
    /// Run a private Postgres and NATS from a folder, until Ctrl-C.
    Dev(DevArgs),
    /// Create or update the schema, the stream and the consumers of these queues.
    Migrate {
        /// Queues whose consumers are created or changed. Workers create missing ones by themselves.
        #[arg(long = "queue")]
        queues: Vec<String>,
    },
    /// Enqueue a job.
    Enqueue(EnqueueArgs),
    /// Run the jobs of these queues, each by a command.
    Work(WorkArgs),
    /// Show the dashboard, and answer /metrics with the fleet's figures, and /livez, /readyz and /startupz.
    Serve(ServeArgs),
    /// Look at jobs, cancel them, have them tried again.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Jobs that failed for good, and messages that could not become jobs.
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Look at queues; pause, resume and limit them, on all workers.
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// A job at each tick of a cron expression: add, list, pause, resume, remove.
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    /// The worker processes that are known: where they run, what they serve, and whether they are there.
    Workers,
    /// Look at every job for what must never be: lost jobs, two owners at once, a second completion. Exit 1 if
    /// anything is wrong.
    Verify,
    /// Print the settings that are in force, and where each comes from. Passwords are masked.
    Config,
    /// Look at both servers, the schema, rights, timers, workers and queues for what is wrong around the jobs, and say
    /// what to do. Changes nothing. Exit 1 if anything is wrong.
    Doctor {
        /// Only these queues. Default: all that a worker serves or in which a job waits.
        #[arg(long = "queue")]
        queues: Vec<String>,
    },
    /// Measure tenure on this machine: a private pair of servers, unless --on-servers is given.
    Bench(BenchArgs),
    /// Print a script that completes this command line in a shell.
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page; or write a page for each command.
    Man {
        /// The folder to write them to; it is made if need be.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
    /// Runs jobs for `bench`.
    #[command(hide = true)]
    BenchWorker {
        #[arg(required = true)]
        queues: Vec<String>,
        #[arg(long)]
        slots: usize,
        #[arg(long, value_enum)]
        mode: WorkerMode,
    },
    /// Runs one command for `work`, and ends it when the worker goes.
    #[command(hide = true)]
    ExecGuard {
        #[arg(long)]
        group_file: PathBuf,
        command: String,
    },
}

#[derive(Debug, Args)]
struct DevArgs {
    /// Where the data are kept. Default: tenure/dev in your data folder.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Keep nothing: use a temporary folder.
    #[arg(long, conflicts_with = "folder")]
    ephemeral: bool,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Where. Default: `TENURE_LISTEN`, or 127.0.0.1:9090.
    #[arg(long)]
    listen: Option<std::net::SocketAddr>,
    /// Allow what changes something: cancel, retry, redrive, purge, pause, limit. Default: `TENURE_SERVE_ACTIONS`.
    #[arg(long)]
    actions: bool,
    /// Show no payload, output or checkpoint. Default: `TENURE_SERVE_PAYLOADS`.
    #[arg(long)]
    hide_payloads: bool,
}

#[derive(Debug, Args)]
struct EnqueueArgs {
    /// The queue.
    queue: String,
    /// The kind: which handler runs it.
    kind: String,
    /// The payload, as JSON; `-` reads it from standard input.
    #[arg(allow_negative_numbers = true)]
    json: String,
    /// At most one job of this key in its queue, until `TENURE_KEEP_KEYS` after its end: 30 days.
    #[arg(long)]
    unique_key: Option<String>,
    /// Not before this time has passed, for example 90s or 2h.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Not before this time, for example 2030-01-31T12:00:00Z.
    #[arg(long)]
    run_at: Option<DateTime<Utc>>,
    /// How often it is tried, at most.
    #[arg(long, default_value_t = 5, value_parser = limit, allow_negative_numbers = true)]
    max_attempts: u32,
    /// The W3C trace context that it is enqueued in. Default: `TRACEPARENT`. One that is not valid is ignored.
    #[arg(long)]
    traceparent: Option<String>,
    /// Wait until the job has ended, and print its output. Exit 1 if it failed or was cancelled.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
struct WorkArgs {
    /// The queues to serve. With weights (`urgent=8 bulk=1`) they share the slots of --concurrency: where all have
    /// jobs waiting, each gets its part.
    #[arg(required = true, value_name = "QUEUE[=WEIGHT]")]
    queues: Vec<String>,
    /// The command, run by `sh -c`. The payload is its standard input; see the README.
    #[arg(long)]
    exec: String,
    /// Only jobs of these kinds; others wait for a worker that knows them. Default: all.
    #[arg(long = "kind")]
    kinds: Vec<String>,
    /// How many jobs of each queue run at once; with weights, of all of them.
    #[arg(long, default_value_t = 1, value_parser = limit, allow_negative_numbers = true)]
    concurrency: u32,
    /// Report for a command that says nothing for long. Use --timeout as well.
    #[arg(long)]
    keepalive: bool,
    /// Report so often. Default: `TENURE_KEEPALIVE_EVERY`, at most a third of --stale-after.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, requires = "keepalive")]
    keepalive_every: Option<Duration>,
    /// How long one attempt may run, for example 30m.
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// Silence after which a job is taken back, for example 90s. Default: `TENURE_STALE_AFTER`.
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    stale_after: Option<Duration>,
    /// What becomes of a job whose worker is lost while it runs.
    #[arg(long, value_enum, default_value_t = CrashPolicy::Retry)]
    on_crash: CrashPolicy,
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// What to measure. Default: all but `relay`, `idle`, `age` and `retention`.
    #[arg(value_enum)]
    works: Vec<Work>,
    /// How often each is measured; the median is printed. Default 3, or 1 with --quick.
    #[arg(long, value_parser = limit, allow_negative_numbers = true)]
    runs: Option<u32>,
    /// How many jobs of a run; some works take a part of them. Default 100000, or 20000 with --quick.
    #[arg(long, value_parser = limit, allow_negative_numbers = true)]
    jobs: Option<u32>,
    /// How many jobs a worker runs at once.
    #[arg(long, default_value_t = 1_000, value_parser = limit, allow_negative_numbers = true)]
    slots: u32,
    /// How many finished jobs make an old database, for `age` and `retention`.
    #[arg(long, default_value_t = 1_000_000, value_parser = limit, allow_negative_numbers = true)]
    finished: u32,
    /// Fewer jobs, and one run of each: about a minute. Smaller fleets and shorter timers for `idle` and `relay`.
    #[arg(long)]
    quick: bool,
    /// Measure `DATABASE_URL` and `NATS_URL`. It enqueues jobs into queues of its own, named bench-…, and
    /// removes them afterwards; the load is real.
    #[arg(long)]
    on_servers: bool,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Jobs, newest first.
    List(ListArgs),
    /// One job, with all that happened to it in order of time.
    Show {
        /// The job's id.
        id: JobId,
    },
    /// Jobs as they run, until they have ended. Exit 1 if one failed or was cancelled.
    Watch {
        /// The jobs' ids. Default: the newest fifty that run, and the newest fifty that are queued.
        ids: Vec<JobId>,
    },
    /// Cancel jobs: queued ones at once, running ones within a second. A message that no worker has received
    /// yet is no job yet, and is not cancelled.
    Cancel(CancelArgs),
    /// Have jobs tried now: what waits becomes due, what is dead is queued again.
    Retry {
        /// The jobs' ids.
        #[arg(required = true)]
        ids: Vec<JobId>,
    },
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only jobs of this status.
    #[arg(long)]
    status: Option<Status>,
    /// Only jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs that this worker runs, or was the last to run; `tenure workers` lists the ids.
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Only jobs created at least so long ago, for example 2h or 30d.
    #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
    older_than: Option<Duration>,
    /// Only jobs created at most so long ago. In a large history it makes every other filter quick.
    #[arg(long, value_name = "AGE", value_parser = duration, allow_hyphen_values = true)]
    newer_than: Option<Duration>,
    /// Only jobs whose last error contains this text, just as it is written.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error: Option<String>,
    /// Only what comes after this job in the list: the next page.
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    /// How many, at most.
    #[arg(long, default_value_t = 50, value_parser = limit, allow_negative_numbers = true)]
    limit: u32,
}

#[derive(Debug, Args)]
struct CancelArgs {
    /// The jobs' ids.
    #[arg(conflicts_with = "queue")]
    ids: Vec<JobId>,
    /// All jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only those of this kind.
    #[arg(long, requires = "queue", conflicts_with = "unique_key")]
    kind: Option<String>,
    /// Only the one that holds this unique key.
    #[arg(long, requires = "queue")]
    unique_key: Option<String>,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// Dead letters, the latest first.
    List {
        #[command(flatten)]
        selection: DeadSelection,
        /// How many, at most.
        #[arg(long, default_value_t = 50, value_parser = limit, allow_negative_numbers = true)]
        limit: u32,
    },
    /// How many there are, by queue, kind and category.
    Count,
    /// One of them, with every attempt.
    Show {
        /// Its id.
        id: JobId,
        /// Print the bytes of a refused message, and nothing else.
        #[arg(long)]
        raw: bool,
    },
    /// Put dead jobs back in the queue, under the same id. Exit 1 if one of these ids was not.
    Redrive {
        /// Their ids.
        ids: Vec<JobId>,
        /// All of them.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        selection: DeadSelection,
    },
    /// Remove dead letters for good.
    Purge {
        /// Only those that died so long ago, for example 30d; 0s is all.
        #[arg(long, value_parser = duration, allow_hyphen_values = true)]
        older_than: Duration,
        #[command(flatten)]
        selection: DeadSelection,
    },
}

#[derive(Debug, Subcommand)]
enum QueuesCommand {
    /// Every queue that has jobs, workers or settings.
    List,
    /// Start none of their jobs, until they are resumed. What runs goes on.
    Pause {
        /// The queues.
        #[arg(required = true)]
        queues: Vec<String>,
    },
    /// Start their jobs again.
    Resume {
        /// The queues.
        #[arg(required = true)]
        queues: Vec<String>,
    },
    /// How many jobs of a queue may run at once, on all workers together, and how many may wait.
    Limit {
        /// The queue.
        queue: String,
        /// 1 to 10,000, or none.
        #[arg(long, allow_negative_numbers = true)]
        max_running: Option<LimitChange>,
        /// 1 to 10,000,000, or none. More are refused when they are enqueued.
        #[arg(long, allow_negative_numbers = true)]
        max_queued: Option<LimitChange>,
    },
}

/// A limit, or that there is to be none.
#[derive(Debug, Clone, Copy)]
struct LimitChange(Option<u64>);

impl std::str::FromStr for LimitChange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            number => {
                number.parse().map(|n| Self(Some(n))).map_err(|_| "it must be a number above 0, or none")
            }
        }
    }
}

#[derive(Debug, Subcommand)]
enum SchedulesCommand {
    /// All schedules, with their next ticks.
    List,
    /// Enqueue a job at each tick of a cron expression, from now on.
    Add(ScheduleArgs),
    /// Have no ticks, until they are resumed.
    Pause {
        /// The schedules' names.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Have ticks again, from the next one on.
    Resume {
        /// The schedules' names.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove schedules; the jobs of their ticks stay. Exit 1 if there was none of a name.
    Remove {
        /// The schedules' names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct ScheduleArgs {
    /// Its name.
    name: String,
    /// Minute, hour, day, month and weekday, with or without seconds before them: '0 3 * * MON'.
    cron: String,
    /// The queue.
    queue: String,
    /// The kind: which handler runs its jobs.
    kind: String,
    /// The payload, as JSON; `-` reads it from standard input.
    #[arg(allow_negative_numbers = true)]
    json: String,
    /// The time zone of the cron expression, such as Europe/Berlin.
    #[arg(long, default_value = "UTC")]
    time_zone: String,
    /// What becomes of ticks that nobody was there for: `skip` them, make up for them `once`, or for `all` of them.
    #[arg(long, default_value_t = MissedTicks::Once)]
    missed: MissedTicks,
    /// The payload's field that gets the time of the tick.
    #[arg(long)]
    tick_field: Option<String>,
    /// How often each job is tried, at most.
    #[arg(long, default_value_t = 5, value_parser = limit, allow_negative_numbers = true)]
    max_attempts: u32,
    /// Change the schedule of this name, if there is one.
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Args)]
struct DeadSelection {
    /// Only those of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only those of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only those that died for this reason, for example lost, exhausted, permanent or malformed.
    #[arg(long)]
    category: Option<String>,
}

fn limit(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| "it must be a number from 1 to 4294967295, such as 50".into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrashPolicy {
    /// Try again, while there are attempts left.
    Retry,
    /// Make it a dead letter at once: it must not run twice.
    DeadLetter,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "it must be a duration such as 500ms, 30s, 2h or 30d".into())
}

impl Cli {
    /// What is given: in the file, over it in the environment, over that by flags.
    fn settings(&self) -> anyhow::Result<Settings> {
        let file = self.settings_file.as_deref().map(|path| (path, "--config"));
        let flags = [
            ("DATABASE_URL", "--database-url", self.database_url.as_deref()),
            ("NATS_URL", "--nats-url", self.nats_url.as_deref()),
        ];
        Ok(Settings::load(file, &flags)?)
    }

    fn config(&self) -> anyhow::Result<Config> {
        Ok(self.settings()?.config()?)
    }

    async fn connect(&self) -> anyhow::Result<Tenure> {
        Ok(Tenure::connect(&self.config()?).await?)
    }
}

/// Runs the program. Public for `src/main.rs` alone.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::ExecGuard { group_file, command } = &cli.command {
        return guard::run(command, group_file);
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
    // A hung connection must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    log.finish();
    answer.unwrap_or_else(|error| failed(&error))
}

/// What was asked for makes no sense, whatever the servers say.
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
            || matches!(cause.downcast_ref(), Some(ManageError::Name(_) | ManageError::Key { .. }))
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
                        | EnqueueError::Payload(_)
                        | EnqueueError::TooLarge { .. }
                )
            )
    });
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Dev(args) => dev::run(args).await,
        Command::Migrate { queues } => {
            let tenure = cli.connect().await?;
            let applied = tenure.setup(queues).await?;
            match cli.output {
                Output::Json => print::line(serde_json::json!({ "applied": applied, "queues": queues })),
                Output::Table if applied.is_empty() => {
                    print::line("the schema is current; consumers are created or changed by --queue NAME");
                }
                Output::Table => print::line(format!("applied migrations {applied:?}")),
            }
            tenure.close().await;
            Ok(ExitCode::SUCCESS)
        }
        Command::Enqueue(args) => enqueue::run(&cli, args).await,
        Command::Work(args) => work::run(&cli, args).await,
        Command::Serve(args) => serve::run(&cli, args).await,
        Command::Jobs(command) => jobs::run(&cli, command).await,
        Command::Dead(command) => dead::run(&cli, command).await,
        Command::Queues(command) => queues::run(&cli, command).await,
        Command::Schedules(command) => schedules::run(&cli, command).await,
        Command::Workers => workers::run(&cli).await,
        Command::Verify => verify::run(&cli).await,
        Command::Config => config::run(&cli),
        Command::Doctor { queues } => doctor::run(&cli, queues).await,
        Command::Completions { shell } => Ok(shell::completions(*shell)),
        Command::Man { dir } => shell::man(dir.as_deref()),
        Command::Bench(args) => bench::run(&cli, args).await,
        Command::BenchWorker { queues, slots, mode } => {
            crate::bench::work(&cli.config()?, queues, *slots, *mode).await?;
            Ok(ExitCode::SUCCESS)
        }
        // Run before there is a runtime.
        Command::ExecGuard { .. } => Ok(ExitCode::FAILURE),
    }
}
