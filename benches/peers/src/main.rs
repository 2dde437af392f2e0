//! The `peers` program: tenure and four other job libraries do the same works on the same Postgres.

mod handled;
mod order;
mod peers;
mod report;
mod servers;
mod works;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};

use peers::{Library, tenure};
use report::{Figures, Report};
use servers::Arena;
use works::Work;

/// No work takes longer, or it has failed.
const LONGEST: Duration = Duration::from_mins(2);

/// Measures tenure and four other job libraries, side by side in one run.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// How often everything is measured; the median is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many jobs of a run; some works take a part of them.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    jobs: u32,
    /// Only these libraries.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<Library>,
    /// tenure's program, built for release.
    #[arg(long, value_name = "PATH", default_value_os_t = default_tenure())]
    tenure: PathBuf,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Subcommand)]
enum Command {
    /// Does one work of one library in this process, and prints the result: how `peers` measures.
    #[command(hide = true)]
    Measure {
        library: Library,
        work: Work,
        #[arg(long)]
        jobs: usize,
        #[arg(long)]
        database: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

fn default_tenure() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/tenure")
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Command::Measure { library, work, jobs, database }) = cli.command {
        let values = peers::measure(library, work, jobs, &database).await?;
        println!("{}", serde_json::to_string(&values)?);
        // Its worker still runs; it ends with the process.
        return Ok(ExitCode::SUCCESS);
    }
    let report = run(&cli).await?;
    match cli.output {
        Output::Table => println!("{}", report.table()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(cli: &Cli) -> anyhow::Result<Report> {
    let libraries = if cli.only.is_empty() { Library::value_variants() } else { &cli.only };
    if libraries.contains(&Library::Tenure) && !cli.tenure.is_file() {
        let path = cli.tenure.display();
        bail!("no tenure at {path}: run `cargo build --release -p tenure-cli` there, or pass --tenure");
    }
    let jobs = usize::try_from(cli.jobs)?;
    let mut figures = Figures::default();
    let mut arena = Arena::open()?;
    for round in 1..=cli.rounds {
        for library in libraries {
            let told = |work: &str| eprintln!("round {round} of {}: {library}, {work}", cli.rounds);
            if *library == Library::Tenure {
                told("all works");
                let done = tenure_once(&arena, &cli.tenure, jobs, &mut figures).await;
                figures.settle(*library, None, done);
                continue;
            }
            for work in Work::value_variants() {
                told(&work.to_string());
                let done = peer_once(&arena, *library, *work, jobs).await;
                figures.settle(*library, Some(*work), done);
            }
        }
    }
    let postgres = arena.postgres_version().await?;
    arena.close();
    Report::new(figures, libraries, postgres, cli.rounds, jobs)
}

/// On a database of its own, which is dropped afterwards, also after an error: nothing is left to the next.
async fn tenure_once(
    arena: &Arena,
    program: &Path,
    jobs: usize,
    figures: &mut Figures,
) -> anyhow::Result<works::Values> {
    let database = arena.create_database().await?;
    let done = tenure::measure(program, &database, &arena.nats_url(), jobs).await;
    database.drop().await?;
    let (values, versions) = done?;
    figures.versions = Some(versions);
    Ok(values)
}

async fn peer_once(
    arena: &Arena,
    library: Library,
    work: Work,
    jobs: usize,
) -> anyhow::Result<works::Values> {
    let database = arena.create_database().await?;
    let mut command = tokio::process::Command::new(std::env::current_exe().context("find this program")?);
    command
        .args(["measure", &library.to_string(), &work.to_string()])
        .args(["--jobs", &jobs.to_string(), "--database", database.url()])
        .envs(peers::environment(library, work));
    let done = servers::output_of(command, LONGEST).await;
    database.drop().await?;
    serde_json::from_str(done?.trim()).context("read what the child has printed")
}
