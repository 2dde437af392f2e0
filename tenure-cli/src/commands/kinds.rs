//! `tenure kinds`: which kinds are watched, and which are in quarantine.

use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use serde_json::json;
use tenure::{
    Tenure,
    internals::duration::written,
    kinds::{Quarantine, QuarantineError},
    rows::QuarantineRow,
};

use super::{
    Cli, Output, Usage,
    jobs::time,
    print,
    table::table,
    values::{Failures, duration, failures},
};

#[derive(Debug, Subcommand)]
pub(super) enum KindsCommand {
    /// List the kinds that are watched, and which of them are in quarantine.
    List,
    /// Watch a kind: once too many of its attempts fail, its jobs wait, and one at a time is tried. They run again when
    /// one of those completes.
    Quarantine {
        /// The kind.
        kind: String,
        /// When, for example 'failed > 30% of 50 in 5m': more than 30 % of at least 50 attempts within five minutes.
        #[arg(long, value_name = "RULE", value_parser = failures, required_unless_present = "off")]
        when: Option<Failures>,
        /// How often a job is tried meanwhile.
        #[arg(
            long, value_name = "DURATION", value_parser = duration, default_value = "1m", allow_hyphen_values = true
        )]
        probe: Duration,
        /// Watch the kind no more. If it is in quarantine, its jobs run again.
        #[arg(long, conflicts_with_all = ["when", "probe"])]
        off: bool,
    },
    /// End a quarantine by hand: the jobs of these kinds run again. The rule stays. Exit 1 if one is in no quarantine.
    Release {
        /// The kinds.
        #[arg(required = true, value_name = "KIND")]
        kinds: Vec<String>,
    },
}

pub(super) async fn run(cli: &Cli, command: &KindsCommand) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let answer = match command {
        KindsCommand::List => list(cli, &tenure).await,
        KindsCommand::Quarantine { kind, when: Some(when), probe, .. } => {
            watch(cli, &tenure, kind, *when, *probe).await
        }
        KindsCommand::Quarantine { kind, .. } => off(cli, &tenure, kind).await,
        KindsCommand::Release { kinds } => release(cli, &tenure, kinds).await,
    };
    tenure.close().await;
    answer
}

async fn watch(
    cli: &Cli,
    tenure: &Tenure,
    kind: &str,
    when: Failures,
    probe: Duration,
) -> anyhow::Result<ExitCode> {
    tenure::names::check_kind(kind)?;
    let rule = Quarantine::when_failed(when.share).of(when.of).within(when.within).probe_every(probe);
    let changed = match tenure.put_quarantine(kind, rule).await {
        Err(QuarantineError::Invalid(why)) => return Err(Usage(why).into()),
        changed => changed?,
    };
    match cli.output {
        Output::Json => print::line(json!({ "kind": kind, "changed": changed })),
        Output::Table if changed => print::line(format!("the kind {kind} is watched")),
        Output::Table => print::line(format!("the kind {kind} is watched by this rule already")),
    }
    Ok(ExitCode::SUCCESS)
}

async fn off(cli: &Cli, tenure: &Tenure, kind: &str) -> anyhow::Result<ExitCode> {
    tenure::names::check_kind(kind)?;
    let removed = tenure.remove_quarantine(kind).await?;
    match cli.output {
        Output::Json => print::line(json!({ "kind": kind, "changed": removed })),
        Output::Table if removed => print::line(format!("the kind {kind} is watched no more")),
        Output::Table => {
            print::line(format!("the kind {kind} is not watched; `tenure kinds list` shows those that are"));
        }
    }
    Ok(if removed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn release(cli: &Cli, tenure: &Tenure, kinds: &[String]) -> anyhow::Result<ExitCode> {
    for kind in kinds {
        tenure::names::check_kind(kind)?;
    }
    let mut code = ExitCode::SUCCESS;
    for kind in kinds {
        let released = tenure.end_quarantine(kind).await?;
        match cli.output {
            Output::Json => print::line(json!({ "kind": kind, "changed": released })),
            Output::Table if released => print::line(format!("the jobs of the kind {kind} run again")),
            Output::Table => print::line(format!("the kind {kind} is not in quarantine")),
        }
        if !released {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

async fn list(cli: &Cli, tenure: &Tenure) -> anyhow::Result<ExitCode> {
    let kinds = tenure.quarantines().await?;
    if cli.output == Output::Json {
        print::line(serde_json::to_string_pretty(&kinds)?);
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["KIND", "RULE", "QUARANTINE", "ATTEMPTS", "WAITING", "PROBES", "NEXT PROBE"];
    let mut table = table(&header).spare(&["PROBES", "NEXT PROBE"]).cut("RULE");
    for of in kinds {
        table.add_row([
            of.kind.clone(),
            rule(&of),
            of.began_at.map_or_else(|| "no".into(), |at| format!("since {}", time(Some(at)))),
            attempts(&of),
            of.waiting.to_string(),
            probes(&of),
            if of.probe_job.is_some() { "runs".into() } else { time(of.next_probe_at) },
        ]);
    }
    print::line(table);
    Ok(ExitCode::SUCCESS)
}

/// The rule, as `--when` takes it.
fn rule(of: &QuarantineRow) -> String {
    let percent = (of.share * 1e4).round() / 100.0;
    format!(
        "failed > {percent}% of {} in {}, a probe each {}",
        of.attempts,
        span(of.within_s),
        span(of.probe_every_s)
    )
}

fn span(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map(written).unwrap_or_default()
}

fn attempts(of: &QuarantineRow) -> String {
    let (failed, ended) = match (of.began_at, of.failed, of.ended) {
        (Some(_), Some(failed), Some(ended)) => (failed, ended),
        _ => (of.lately_failed, of.lately_ended),
    };
    format!("{failed} of {ended} failed")
}

fn probes(of: &QuarantineRow) -> String {
    match &of.last_probe {
        Some(how) if of.began_at.is_some() => format!("{}, the last {how}", of.probes),
        _ => String::new(),
    }
}
