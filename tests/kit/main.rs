//! Conformance: the clients of `clients/`, or others, under the cases of the kit; and wrong clients, which it must find.
//!
//! ```sh
//! make conformance                                             # the clients of this repository, and the wrong ones
//! make conformance CLIENT='mine=./worker' KIT='--case crash'   # a program that serves the kinds of docs/conformance.md
//! ```
//!
//! Exits 1 if a client fails, or a mistake is not found.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(missing_docs, unreachable_pub, reason = "nothing here is published")]
#![allow(clippy::print_stdout, reason = "the table is its output")]
#![allow(
    clippy::format_push_string,
    clippy::items_after_statements,
    clippy::similar_names,
    reason = "as in the other tests"
)]

#[path = "../it/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod harness;
#[path = "mod.rs"]
mod kit;

use std::process::ExitCode;

use clap::Parser;
use comfy_table::{Table, presets::NOTHING};

use crate::kit::{CASES, Case, Client, JOBS, Verdict, run};

#[derive(Debug, Parser)]
struct Args {
    /// A client's program, as NAME=COMMAND. The kit runs COMMAND QUEUE SLOTS; repeatable. Default: those of clients/.
    #[arg(long, value_name = "NAME=COMMAND")]
    client: Vec<String>,
    /// Only this case; repeatable.
    #[arg(long)]
    case: Vec<String>,
    /// Only the wrong clients, and the client that they are made of: `make test` runs the others.
    #[arg(long, conflicts_with = "client")]
    mistakes: bool,
    /// How many small jobs the case `many` has.
    #[arg(long, default_value_t = JOBS)]
    jobs: usize,
    /// How many cases run at once.
    #[arg(long, default_value_t = 4)]
    at_once: usize,
    /// Print the whole text of each failure.
    #[arg(long)]
    long: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // A failed case is a line of the table.
    std::panic::set_hook(Box::new(|_| {}));
    let fine = runtime.block_on(conformance(&args));
    runtime.shutdown_background();
    match fine {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("conformance: {why}");
            ExitCode::from(2)
        }
    }
}

async fn conformance(args: &Args) -> Result<bool, String> {
    let mut clients = Vec::new();
    for client in &args.client {
        let (name, command) = client
            .split_once('=')
            .filter(|(name, command)| !name.is_empty() && !command.is_empty())
            .ok_or(format!("--client {client:?}: expected NAME=COMMAND, as in 'mine=./worker'"))?;
        // The shell replaces itself: signals go to the client.
        let command = ["sh".into(), "-c".into(), format!("exec {command} \"$@\""), "sh".into()];
        clients.push(Client { name: name.into(), command: command.to_vec(), variables: Vec::new(), jobs: 0 });
    }
    let has_own = !clients.is_empty();
    if !has_own {
        clients = if args.mistakes { vec![] } else { Client::all() };
        clients.push(Client::python("wrong.py", "wrong.py"));
    }
    for client in &mut clients {
        client.jobs = args.jobs;
    }
    let known = |name: &String| CASES.iter().any(|case| case.name == name);
    if let Some(name) = args.case.iter().find(|name| !known(name)) {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        return Err(format!("--case {name}: there is no such case; there are {}", names.join(", ")));
    }
    let is_chosen = |case: &&Case| args.case.is_empty() || args.case.iter().any(|name| name == case.name);
    let cases: Vec<Case> = CASES.iter().filter(is_chosen).copied().collect();
    let each = |client: &Client| cases.iter().map(|case| (client.clone(), *case)).collect::<Vec<_>>();
    let all: Vec<_> = clients.iter().flat_map(each).collect();
    let verdicts = run(all, args.at_once).await;
    let names = clients.iter().map(|client| client.name.clone());
    let mut table = table(["case", "a client that passes"].map(String::from).into_iter().chain(names));
    for (n, case) in cases.iter().enumerate() {
        let of = |client: usize| show(&verdicts[client * cases.len() + n], args.long);
        table.add_row(
            [case.name.to_owned(), case.what.to_owned()].into_iter().chain((0..clients.len()).map(of)),
        );
    }
    println!("{table}");
    let fine = verdicts.iter().all(Result::is_ok);
    if has_own {
        return Ok(fine);
    }
    Ok(wrong(&cases, args).await && fine)
}

/// Runs each wrong client under the case that must find it.
async fn wrong(cases: &[Case], args: &Args) -> bool {
    let mistakes: Vec<_> =
        cases.iter().flat_map(|case| case.finds.iter().map(|mistake| (*mistake, *case))).collect();
    let all = mistakes.iter().map(|(mistake, case)| (Client::wrong(mistake), *case)).collect();
    let listed = Client::mistakes();
    if !mistakes.iter().all(|(mistake, _)| listed.iter().any(|of| of == mistake))
        || !listed.iter().all(|of| CASES.iter().any(|case| case.finds.contains(&of.as_str())))
    {
        println!("clients/wrong.py and the cases name other mistakes: {listed:?}");
        return false;
    }
    let verdicts = run(all, args.at_once).await;
    let mut table = table(["a client that makes the mistake", "under", "is found by"].map(String::from));
    for ((mistake, case), verdict) in mistakes.iter().zip(&verdicts) {
        let found = match verdict {
            Ok(()) => "NOT FOUND".to_owned(),
            Err(why) => short(why, args.long),
        };
        table.add_row([(*mistake).to_owned(), case.name.to_owned(), found]);
    }
    let found = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    println!("{table}\n{found} of {} mistakes found", mistakes.len());
    found == mistakes.len()
}

fn table(header: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).force_no_tty().set_header(header.into_iter().collect::<Vec<_>>());
    table
}

fn show(verdict: &Verdict, long: bool) -> String {
    match verdict {
        Ok(()) => "passes".into(),
        Err(why) => format!("FAILS: {}", short(why, long)),
    }
}

/// The first lines of a failure.
fn short(why: &str, long: bool) -> String {
    if long {
        return why.to_owned();
    }
    let lines: Vec<_> = why.lines().take(3).map(str::trim).collect();
    lines.join(" ").chars().take(160).collect()
}
