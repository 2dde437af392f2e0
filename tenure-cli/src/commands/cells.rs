//! Cells: which cell a command is for, where there are several.
//!
//! A command that names a queue or a job finds its cell. One that only reads asks all of them, one after the other. Any
//! other needs `--cell`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::{
    CancelArgs, Cli, Command, JobsCommand, Output, SchedulesCommand, Usage, WorkersCommand,
    dead::DeadCommand, print, queues::QueuesCommand, table::table,
};
use tenure::{
    JobId,
    cells::{Cells, Layout},
};

#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// The queue.
    queue: String,
    /// The cell that shall accept its new jobs.
    #[arg(long, value_name = "CELL")]
    to: String,
    /// The cell that it leaves. Default: the one that accepts its jobs.
    #[arg(long, value_name = "CELL")]
    from: Option<String>,
}

/// What a command is about.
enum About<'c> {
    /// It knows how to use several cells, or needs none.
    Cells,
    /// A queue, in the cell that accepts its new jobs.
    Queue(&'c str),
    /// Queues, in every cell that may have jobs of them.
    Queues(Vec<&'c str>),
    Job(JobId),
    /// It reads, and prints what every cell has.
    Every,
    /// The user must say which.
    One,
}

fn about(command: &Command) -> About<'_> {
    match command {
        Command::Enqueue(_)
        | Command::Work(_)
        | Command::Serve(_)
        | Command::Config
        | Command::Dev(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::ExecGuard { .. }
        | Command::BenchWorker { .. }
        | Command::Queues(QueuesCommand::Move(_)) => About::Cells,
        Command::Bench(args) if !args.on_servers => About::Cells,
        Command::Queues(QueuesCommand::Pause { queues, .. } | QueuesCommand::Resume { queues }) => {
            About::Queues(queues.iter().map(String::as_str).collect())
        }
        Command::Queues(QueuesCommand::Lanes(args)) => match args.queue() {
            Some(queue) => About::Queue(queue),
            None => About::Every,
        },
        Command::Queues(QueuesCommand::Events { queue, .. }) => About::Queues(vec![queue]),
        Command::Queues(QueuesCommand::Limit { queue, .. }) => About::Queue(queue),
        Command::Schedules(SchedulesCommand::Add(args)) => About::Queue(&args.queue),
        Command::Jobs(JobsCommand::Cancel(CancelArgs { queue: Some(queue), .. })) => {
            About::Queues(vec![queue])
        }
        Command::Jobs(
            JobsCommand::Show { id }
            | JobsCommand::Again { id }
            | JobsCommand::Graph { id }
            | JobsCommand::Signal { id, .. },
        )
        | Command::Dead(DeadCommand::Show { id, .. }) => About::Job(*id),
        Command::Jobs(
            JobsCommand::Watch { ids }
            | JobsCommand::Cancel(CancelArgs { ids, .. })
            | JobsCommand::Retry { ids },
        )
        | Command::Dead(DeadCommand::Redrive { ids, .. })
            if !ids.is_empty() =>
        {
            About::Job(ids[0])
        }
        Command::Jobs(JobsCommand::List(_))
        | Command::Dead(
            DeadCommand::List { .. }
            | DeadCommand::Count
            | DeadCommand::Groups { .. }
            | DeadCommand::Redrives { .. },
        )
        | Command::Queues(QueuesCommand::List)
        | Command::Schedules(SchedulesCommand::List)
        | Command::Workers { command: None | Some(WorkersCommand::List) }
        | Command::Migrate { .. }
        | Command::Kinds(_)
        | Command::Audit(_)
        | Command::Verify
        | Command::Doctor(_) => About::Every,
        _ => About::One,
    }
}

/// Runs a command in the cells that it is for.
pub(super) async fn run(mut cli: Cli, layout: &Layout) -> anyhow::Result<ExitCode> {
    let known = layout.names().collect::<Vec<_>>().join(", ");
    match about(&cli.command) {
        About::Cells => super::run_in(&cli).await,
        About::Queue(queue) => {
            let cells = Cells::connect(layout).await?;
            let cell = cells.having(queue).await?.first().map(|cell| cell.name().to_owned());
            cells.close().await;
            cli.cell = cell;
            super::run_in(&cli).await
        }
        About::Queues(queues) => {
            let cells = Cells::connect(layout).await?;
            let mut found: Vec<Vec<String>> = Vec::new();
            for queue in queues {
                let having = cells.having(queue).await?;
                found.push(having.into_iter().map(|cell| cell.name().to_owned()).collect());
            }
            cells.close().await;
            found.dedup();
            let [having] = &found[..] else {
                return Err(Usage(
                    "these queues are in several cells; run the command for each queue alone".into(),
                )
                .into());
            };
            // A queue that has moved: its new cell, and those in which its old jobs run.
            let mut code = ExitCode::SUCCESS;
            for cell in having {
                if having.len() > 1 && cli.output == Output::Table {
                    print::line(format!("cell {cell}:"));
                }
                cli.cell = Some(cell.clone());
                let ended = Box::pin(super::run_in(&cli)).await?;
                if ended != ExitCode::SUCCESS {
                    code = ended;
                }
            }
            Ok(code)
        }
        About::Job(id) => {
            let cells = Cells::connect(layout).await?;
            let found = cells.find(id).await?.map(|(cell, _)| cell.name().to_owned());
            cells.close().await;
            let Some(cell) = found else { bail!("no cell has job {id}; asked: {known}") };
            cli.cell = Some(cell);
            super::run_in(&cli).await
        }
        About::Every if cli.output == Output::Table => {
            let mut code = ExitCode::SUCCESS;
            for (n, cell) in layout.names().enumerate() {
                print::line(format!("{}cell {cell}:", if n == 0 { "" } else { "\n" }));
                cli.cell = Some(cell.to_owned());
                // A cell that is away does not hide the others.
                match Box::pin(super::run_in(&cli)).await {
                    Ok(ended) if ended == ExitCode::SUCCESS => {}
                    Ok(ended) => code = ended,
                    Err(error) => code = super::failed(&error.context(format!("cell {cell}"))),
                }
            }
            Ok(code)
        }
        About::Every | About::One => {
            Err(Usage(format!("there are several cells; name one with --cell: {known}")).into())
        }
    }
}

/// `tenure queues move`.
pub(super) async fn move_queue(cli: &Cli, args: &MoveArgs) -> anyhow::Result<ExitCode> {
    if cli.cell.is_some() {
        return Err(
            Usage("`queues move` is for two cells: give --from and --to instead of --cell".into()).into()
        );
    }
    let Some(layout) = cli.layout()? else {
        return Err(Usage(
            "a queue moves from one cell to another; list the cells in a file, and name it by TENURE_CELLS"
                .into(),
        )
        .into());
    };
    tenure::names::check_queue(&args.queue)?;
    let cells = Cells::connect(&layout).await?;
    for cell in &cells {
        if [Some(args.to.as_str()), args.from.as_deref()].contains(&Some(cell.name())) {
            cli.check(cell.tenure()).await.with_context(|| format!("cell {}", cell.name()))?;
        }
    }
    let moved = cells.move_queue(&args.queue, args.from.as_deref(), &args.to).await;
    cells.close().await;
    let moved = moved?;
    match cli.output {
        Output::Json => print::line(serde_json::to_string(&moved)?),
        Output::Table => {
            let mut of = table(&["QUEUE", "FROM", "TO", "KEYS", "SCHEDULES", "LEFT LIVE", "LEFT DEAD"]);
            of.add_row([
                args.queue.clone(),
                moved.from.clone(),
                moved.to.clone(),
                moved.keys.to_string(),
                moved.schedules.join(", "),
                moved.live.to_string(),
                moved.dead.to_string(),
            ]);
            print::line(of);
            for name in &moved.kept {
                eprintln!(
                    "tenure: schedule {name:?} stays in cell {}, and does not tick there: cell {} has another \
                     one of this name; rename one of them",
                    moved.from, moved.to
                );
            }
        }
    }
    if layout.cell_of(&args.queue) != Some(moved.to.as_str()) {
        eprintln!(
            "new jobs go to cell {}; now name queue {} there in TENURE_CELLS, so that programs need not find out",
            moved.to, args.queue
        );
    }
    Ok(ExitCode::SUCCESS)
}
