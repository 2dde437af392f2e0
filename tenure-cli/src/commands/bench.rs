//! `tenure bench`.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use super::{BenchArgs, Cli, Output, Usage, print, table::table};
use crate::bench::{self, Plan, Report, Work};
use tenure::shutdown_signal;

pub(super) async fn run(cli: &Cli, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let jobs = args.jobs.unwrap_or(if args.quick { 20_000 } else { 100_000 });
    if jobs < 1_000 {
        return Err(Usage(format!("--jobs {jobs} is too few to measure anything; take 1000 or more")).into());
    }
    if args.on_servers
        && args.works.iter().any(|work| {
            matches!(work, Work::Age | Work::Retention | Work::Pages | Work::Grow | Work::Gateway)
        })
    {
        let why = "age, retention and pages fill the database with jobs, and grow and gateway count all that the \
                   servers do; run them without --on-servers";
        return Err(Usage(why.into()).into());
    }
    // A worker would refuse it, too, but only after the servers have started.
    if args.slots > 100_000 {
        return Err(Usage(format!("--slots {} is too many; a queue takes 1 to 100000", args.slots)).into());
    }
    let mut clients = Vec::new();
    for client in &args.clients {
        let Some((name, command)) = client.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            let why = format!("--client {client:?}: expected NAME=COMMAND, as in 'python=python3 worker.py'");
            return Err(Usage(why).into());
        };
        clients.push((name.to_owned(), command.to_owned()));
    }
    let plan = Plan {
        clients,
        works: if args.works.is_empty() { Work::DEFAULT.to_vec() } else { args.works.clone() },
        runs: usize::try_from(args.runs.unwrap_or(if args.quick { 1 } else { 3 }))?,
        jobs: usize::try_from(jobs)?,
        quick: args.quick,
        slots: args.slots,
        finished: usize::try_from(args.finished)?,
        servers: if args.on_servers { Some(cli.config()?) } else { None },
        program: std::env::current_exe().context("find this program, to start it as a worker")?,
    };
    let bar = ProgressBar::new(bench::measurements(&plan));
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}  {elapsed}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut begun = false;
    let report = bench::run(&plan, shutdown_signal(), |what| {
        if std::mem::replace(&mut begun, true) {
            bar.inc(1);
        }
        bar.set_message(what.to_owned());
    })
    .await;
    bar.finish_and_clear();
    let report = report?;
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&report)?),
        Output::Table => print::line(list(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(report: &Report) -> String {
    let header = ["work", "median", "unit", "lowest … highest", "against", "CPU µs a job"];
    let spare = &["CPU µs a job", "lowest … highest", "against"];
    let mut table = table(&header).spare(spare).with_lines("median");
    for figure in &report.figures {
        let spread = || {
            let (low, high) = figure
                .runs
                .iter()
                .fold((f64::MAX, f64::MIN), |(low, high), run| (low.min(*run), high.max(*run)));
            format!("{} … {}", number(low), number(high))
        };
        let against = figure.ratio.as_ref().map(|ratio| format!("{:.2} × {}", ratio.value, ratio.of));
        table.add_row([
            figure.work.to_string(),
            number(figure.median),
            figure.unit.to_owned(),
            if figure.runs.len() > 1 { spread() } else { String::new() },
            against.unwrap_or_default(),
            parts(&figure.cpu_us),
        ]);
    }
    let Report { tenure, servers, postgres, nats, cores, runs, payload_bytes, .. } = report;
    format!(
        "tenure {tenure} on {servers}: Postgres {postgres}, nats-server {nats}, {cores} cores, \
         payload {payload_bytes} bytes, median of {runs}\n{table}"
    )
}

fn parts(cpu_us: &BTreeMap<&'static str, f64>) -> String {
    let parts: Vec<_> = cpu_us.iter().map(|(part, us)| format!("{part} {us:.1}")).collect();
    parts.join(" · ")
}

/// Formats a number with its significant digits and thousands separators.
fn number(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut apart = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}
