//! The `peers` program: tenure and other job libraries do the same works on the same Postgres.

mod aims;
mod child;
mod cpu;
mod handled;
mod order;
mod peers;
mod report;
mod roles;
mod scene;
mod servers;
mod speak;
mod works;

use std::{
    collections::BTreeMap,
    path::{self, PathBuf},
    pin::pin,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::signal::ctrl_c;

use peers::{CLIENTS, Library, Role, Servers};
use report::{Figures, Report};
use servers::Arena;
use works::Work;

/// Measures tenure and other job libraries, side by side in one run.
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
    /// Instead: tenure's clients in other languages, and the libraries of these languages.
    #[arg(long, conflicts_with = "only")]
    clients: bool,
    /// Only these works.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    works: Vec<Work>,
    /// The program `tenure`, built for release, which is the gateway of the clients.
    #[arg(long, value_name = "PATH", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/tenure"))]
    tenure_program: PathBuf,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Cli {
    fn libraries(&self) -> Vec<Library> {
        if self.clients {
            return CLIENTS.to_vec();
        }
        if !self.only.is_empty() {
            return self.only.clone();
        }
        Library::value_variants().iter().copied().filter(|library| !library.is_extra()).collect()
    }

    fn works(&self) -> Vec<Work> {
        match (self.works.is_empty(), self.clients) {
            (false, _) => self.works.clone(),
            // Those that all of them do.
            (true, true) => vec![Work::Drain, Work::Pickup],
            (true, false) => Work::value_variants().to_vec(),
        }
    }
}

/// A part of a library in a process of its own: how `peers` measures.
#[derive(Subcommand)]
enum Command {
    /// Enqueues.
    #[command(hide = true)]
    Produce(Part),
    /// Runs jobs.
    #[command(hide = true)]
    Work(Part),
}

#[derive(Args)]
struct Part {
    library: Library,
    work: Work,
    #[command(flatten)]
    servers: Servers,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let (role, part) = match &cli.command {
        Some(Command::Produce(part)) => (Role::Produce, part),
        Some(Command::Work(part)) => (Role::Work, part),
        None => return compare(&cli).await,
    };
    let done = peers::be(role, part.library, part.work, &part.servers).await;
    if let Err(error) = &done {
        eprintln!("{error:#}");
    }
    // At once: a library may still work, and a thread may wait for the standard input.
    std::process::exit(i32::from(done.is_err()))
}

async fn compare(cli: &Cli) -> anyhow::Result<ExitCode> {
    let mut report = run(cli).await?;
    match cli.output {
        Output::Table => println!("{}", report.text()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    report.failures.retain(|failure| !failure.is_absence);
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(cli: &Cli) -> anyhow::Result<Report> {
    let (asked, works) = (cli.libraries(), cli.works());
    let (mut figures, mut versions) = (Figures::default(), BTreeMap::new());
    for library in asked {
        match library.prepare(&cli.tenure_program).await {
            Ok(version) => drop(versions.insert(library, version)),
            Err(error) => figures.absent(library, &error),
        }
    }
    let (mut libraries, jobs): (Vec<_>, _) = (versions.keys().copied().collect(), usize::try_from(cli.jobs)?);
    let mut arena = Arena::open(path::absolute(&cli.tenure_program)?)?;
    let postgres = arena.postgres_version().await?;
    // The report then has what was measured so far.
    let mut stop = pin!(ctrl_c());
    'rounds: for round in 0..cli.rounds {
        for work in &works {
            for library in &libraries {
                if library.does(*work) {
                    eprintln!("round {} of {}: {work}, {library}", round + 1, cli.rounds);
                    tokio::select! {
                        // Ctrl-C ends the children, too: that is no failure of the work.
                        biased;
                        _ = &mut stop => break 'rounds,
                        done = scene::play(&arena, *library, *work, jobs) => figures.settle(*library, *work, done),
                    }
                }
            }
            // The next work begins with another library: none always follows the same one.
            libraries.rotate_left(1);
        }
    }
    arena.close();
    Report::new(figures, versions, postgres, cli.rounds, jobs)
}
