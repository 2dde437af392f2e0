//! Cells: which cell a command is for, where there are several.
//!
//! A command that names a queue goes to its cell, and one that names a job finds it. One that only reads asks all of
//! them, one after the other. Any other needs `--cell`.

use std::process::ExitCode;

use anyhow::bail;

use super::{
    CancelArgs, Cli, Command, JobsCommand, Output, SchedulesCommand, Usage, WorkersCommand,
    dead::DeadCommand, print, queues::QueuesCommand,
};
use tenure::{
    JobId,
    cells::{Cells, CellsError, Layout},
};

/// What a command is about.
enum About<'c> {
    /// It knows how to use several cells, or needs none.
    Cells,
    /// Queues, of one cell.
    Queues(Vec<&'c str>),
    Job(JobId),
    /// It reads, and prints what every cell has.
    Every,
    /// The user must say which.
    One,
}

fn about(command: &Command) -> About<'_> {
    match command {
        Command::Work(_)
        | Command::Serve(_)
        | Command::Config
        | Command::Dev(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::ExecGuard { .. }
        | Command::BenchWorker { .. } => About::Cells,
        Command::Bench(args) if !args.on_servers => About::Cells,
        Command::Enqueue(args) => About::Queues(vec![&args.queue]),
        Command::Queues(QueuesCommand::Pause { queues, .. } | QueuesCommand::Resume { queues }) => {
            About::Queues(queues.iter().map(String::as_str).collect())
        }
        Command::Queues(QueuesCommand::Lanes(args)) => match args.queue() {
            Some(queue) => About::Queues(vec![queue]),
            None => About::Every,
        },
        Command::Queues(QueuesCommand::Events { queue, .. } | QueuesCommand::Limit { queue, .. }) => {
            About::Queues(vec![queue])
        }
        Command::Jobs(JobsCommand::Cancel(CancelArgs { of, .. })) if of.queue.is_some() => {
            About::Queues(of.queue.iter().map(String::as_str).collect())
        }
        Command::Schedules(SchedulesCommand::Add(args)) => About::Queues(vec![&args.queue]),
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
        About::Queues(queues) => {
            let mut found = Vec::new();
            for queue in queues {
                let known = || layout.names().map(str::to_owned).collect();
                let no_cell = || CellsError::NoCell { queue: queue.to_owned(), known: known() };
                found.push(layout.cell_of(queue).ok_or_else(no_cell)?);
            }
            found.dedup();
            let [cell] = found[..] else {
                return Err(Usage(
                    "these queues are in several cells; run the command for each queue alone".into(),
                )
                .into());
            };
            cli.cell = Some(cell.to_owned());
            super::run_in(&cli).await
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
