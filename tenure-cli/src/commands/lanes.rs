//! `tenure queues lanes`.

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{
    ANY, Cli, Output, Usage, print,
    queues::if_unknown,
    table::{Table, pairs, table},
    values::{LimitChange, Rate, WeightChange, limit_change, number, rate, weight},
};
use crate::lanes::{self, key};
use tenure::{
    Tenure,
    internals::Parts as _,
    lanes::{LaneOptions, Lanes, LanesError},
    names::check_queue,
    rows::{LaneRow, LanesRow},
};

#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Debug, Args)]
pub(super) struct LanesArgs {
    /// The queue. Default: list the queues with lanes.
    queue: Option<String>,
    /// The most jobs of each lane to run at once, on all workers together: 1 to 10000. With --lane: of this lane, or
    /// none, for as many as the others.
    #[arg(
        long, value_name = "N", value_parser = limit_change::<10_000>, allow_negative_numbers = true,
        requires = "queue"
    )]
    running: Option<LimitChange>,
    /// How many jobs of each lane may start in a time: N/s, N/min, N/h or N/d. Up to N start at once, see --burst.
    #[arg(long, value_name = "N/s", value_parser = rate, allow_hyphen_values = true, requires = "queue")]
    rate: Option<Rate>,
    /// The most jobs of a lane that start at once, after a pause. Default: the N of the rate.
    #[arg(long, value_name = "N", value_parser = number::<0, ANY>, allow_negative_numbers = true, requires = "queue")]
    burst: Option<u32>,
    /// How many jobs of all lanes together may start in a time.
    #[arg(long, value_name = "N/s", value_parser = rate, allow_hyphen_values = true, requires = "queue")]
    queue_rate: Option<Rate>,
    /// The most jobs of all lanes together that start at once, after a pause.
    #[arg(long, value_name = "N", value_parser = number::<0, ANY>, allow_negative_numbers = true, requires = "queue")]
    queue_burst: Option<u32>,
    /// Lanes take turns: one with a long backlog delays no other.
    #[arg(long, requires = "queue")]
    turns: bool,
    /// The jobs of a lane run strictly one after another, in order of enqueue, retries included.
    #[arg(long, requires = "queue")]
    ordered: bool,
    /// Refuse each new job that names no lane.
    #[arg(long, requires = "queue")]
    required: bool,
    /// Take the queue's lanes away: nothing limits its jobs any more, and those that are held are released.
    #[arg(
        long, requires = "queue",
        conflicts_with_all = [
            "running", "rate", "burst", "queue_rate", "queue_burst", "turns", "ordered", "required", "lane"
        ]
    )]
    none: bool,
    /// Set or show this lane alone; '' is the lane of the jobs that name none.
    #[arg(
        long, value_name = "KEY", requires = "queue",
        conflicts_with_all = ["rate", "burst", "queue_rate", "queue_burst", "turns", "ordered", "required"]
    )]
    lane: Option<String>,
    /// The share of the turns of this lane: 0.01 to 100, or none for 1.
    #[arg(long, value_name = "W", value_parser = weight, allow_negative_numbers = true, requires = "lane")]
    weight: Option<WeightChange>,
    /// Set them for an unknown queue, too: before its first worker, job or message.
    #[arg(long, requires = "queue")]
    create: bool,
    /// The maximum number of lanes to show.
    #[arg(
        long, value_name = "N", default_value_t = 20, value_parser = number::<1, ANY>, allow_negative_numbers = true
    )]
    limit: u32,
}

/// The lanes of a queue, as JSON.
#[derive(Serialize)]
struct Shown<'s> {
    settings: &'s LanesRow,
    lanes: Vec<LaneRow>,
}

impl LanesArgs {
    pub(super) fn queue(&self) -> Option<&str> {
        self.queue.as_deref()
    }

    /// The settings of the queue's lanes; `None`: there is nothing to set.
    fn lanes(&self) -> Result<Option<Lanes>, Usage> {
        let Self { running, rate, burst, queue_rate, queue_burst, turns, ordered, required, .. } = self;
        let is_set = running.is_some()
            || rate.or(*queue_rate).is_some()
            || burst.or(*queue_burst).is_some()
            || *turns
            || *ordered
            || *required;
        if !is_set {
            return Ok(None);
        }
        let mut lanes = Lanes::new();
        if let Some(jobs) = self.most()? {
            lanes = lanes.running(jobs);
        }
        if let Some(Rate(jobs, per)) = *rate {
            lanes = lanes.rate(jobs, per);
        }
        if let Some(jobs) = *burst {
            lanes = lanes.burst(jobs);
        }
        if let Some(Rate(jobs, per)) = *queue_rate {
            lanes = lanes.queue_rate(jobs, per);
        }
        if let Some(jobs) = *queue_burst {
            lanes = lanes.queue_burst(jobs);
        }
        if *turns {
            lanes = lanes.turns();
        }
        if *required {
            lanes = lanes.required();
        }
        Ok(Some(if *ordered { lanes.ordered() } else { lanes }))
    }

    /// The limit to set; `None`: none.
    fn most(&self) -> Result<Option<u32>, Usage> {
        let Some(jobs) = self.running.and_then(|LimitChange(jobs)| jobs) else { return Ok(None) };
        let large = |_| Usage(format!("--running {jobs} is too many; take 1 to 10000, or none"));
        u32::try_from(jobs).map(Some).map_err(large)
    }
}

pub(super) async fn run(cli: &Cli, tenure: &Tenure, args: &LanesArgs) -> anyhow::Result<()> {
    let Some(queue) = &args.queue else {
        let all = tenure.lane_settings().await?;
        match cli.output {
            Output::Json => print::line(serde_json::to_string_pretty(&all)?),
            Output::Table => {
                print::line(list(&all));
                if all.is_empty() {
                    eprintln!("no queue has lanes; `tenure queues lanes QUEUE --running N` gives it some");
                }
            }
        }
        return Ok(());
    };
    check_queue(queue)?;
    if args.none {
        let removed = tenure.remove_lanes(queue).await?;
        let text = if removed {
            format!("{queue} has no lanes any more; its held jobs are being released")
        } else {
            format!("{queue} had no lanes")
        };
        match cli.output {
            Output::Json => print::line(json!({ "queue": queue, "removed": removed })),
            Output::Table => print::line(text),
        }
        return Ok(());
    }
    if let Some(lane) = &args.lane {
        return one(cli, tenure, queue, lane, args).await;
    }
    if let Some(lanes) = args.lanes()? {
        if !args.create
            && let Some(text) = if_unknown(tenure, queue).await?
        {
            bail!("{text}; to give it lanes before its first job, add --create");
        }
        tenure.put_lanes(queue, lanes).await?;
    }
    let settings = settings(tenure, queue).await?;
    let lanes = tenure.lanes(queue, args.limit).await?;
    match cli.output {
        Output::Json => {
            print::line(serde_json::to_string_pretty(&Shown { settings: &settings, lanes })?);
        }
        Output::Table => {
            print::line(about(&settings));
            if !lanes.is_empty() {
                print::line(format!("\n{}", longest(&lanes)));
                if u32::try_from(lanes.len()) == Ok(args.limit) {
                    eprintln!("there may be more lanes; --limit N shows N");
                }
            }
        }
    }
    Ok(())
}

/// Sets or shows one lane.
async fn one(cli: &Cli, tenure: &Tenure, queue: &str, lane: &str, args: &LanesArgs) -> anyhow::Result<()> {
    let mut options = LaneOptions::new();
    if let Some(WeightChange(weight)) = args.weight {
        options = options.weight(weight);
    }
    if args.running.is_some() {
        options = options.running(args.most()?);
    }
    if args.weight.is_some() || args.running.is_some() {
        tenure.set_lane(queue, lane, options).await?;
    } else {
        settings(tenure, queue).await?;
    }
    let Some(row) = tenure.store().lanes(queue, Some(lane), 1).await?.into_iter().next() else {
        bail!("lane {lane:?} of queue {queue} has no jobs and no settings of its own");
    };
    match cli.output {
        Output::Json => print::line(serde_json::to_string_pretty(&row)?),
        Output::Table => print::line(longest(&[row])),
    }
    Ok(())
}

async fn settings(tenure: &Tenure, queue: &str) -> anyhow::Result<LanesRow> {
    let found = tenure.store().lane_settings(Some(queue)).await?.into_iter().next();
    Ok(found.ok_or_else(|| LanesError::NoLanes { queue: queue.to_owned() })?)
}

fn limit(most: Option<u32>) -> String {
    most.map_or_else(|| "unlimited".into(), |most| most.to_string())
}

/// A rate and its burst, if that is another number than the rate's.
fn limited(rate: Option<f64>, burst: Option<f64>) -> String {
    let Some(rate) = rate else { return "unlimited".into() };
    let said = lanes::rate(rate);
    match burst {
        Some(burst) if said.split('/').next() != Some(&burst.to_string()) => format!("{said}, burst {burst}"),
        _ => said,
    }
}

fn yes(is: bool) -> String {
    if is { "yes".into() } else { "no".into() }
}

fn tokens(tokens: Option<f64>) -> String {
    tokens.map(|tokens| format!("{tokens:.1}")).unwrap_or_default()
}

fn list(all: &[LanesRow]) -> Table {
    let header =
        ["QUEUE", "RUNNING EACH", "RATE EACH", "QUEUE RATE", "TURNS", "ORDERED", "LANES", "HELD", "RELEASED"];
    let mut table = table(&header).spare(&["RELEASED", "QUEUE RATE", "ORDERED", "TURNS", "LANES"]);
    for of in all {
        table.add_row([
            of.queue.clone(),
            limit(of.running),
            limited(of.rate, of.burst),
            limited(of.queue_rate, of.queue_burst),
            yes(of.turns),
            yes(of.ordered),
            of.lanes.to_string(),
            of.held.to_string(),
            of.released.to_string(),
        ]);
    }
    table
}

fn about(of: &LanesRow) -> String {
    pairs([
        ("queue", of.queue.clone()),
        ("running, each lane", limit(of.running.or(of.ordered.then_some(1)))),
        ("rate, each lane", limited(of.rate, of.burst)),
        ("rate, the queue", limited(of.queue_rate, of.queue_burst)),
        ("tokens, the queue", tokens(of.tokens)),
        ("turns", yes(of.turns)),
        ("ordered", yes(of.ordered)),
        ("names required", yes(of.required)),
        ("lanes", of.lanes.to_string()),
        ("held", of.held.to_string()),
        ("released", of.released.to_string()),
    ])
}

fn longest(lanes: &[LaneRow]) -> Table {
    let header = ["LANE", "WAITING", "SLOTS", "RUNNING", "TOKENS", "NEXT", "WAITED", "WEIGHT"];
    let mut table = table(&header).spare(&["WEIGHT", "RUNNING", "TOKENS"]);
    for of in lanes {
        let seconds = |s: f64| print::seconds(s);
        table.add_row([
            print::brief(key(&of.lane), 60),
            if of.waiting >= 10_000 { "10000+".into() } else { of.waiting.to_string() },
            match of.most {
                Some(most) => format!("{} of {most}", of.slots),
                None => of.slots.to_string(),
            },
            of.running.to_string(),
            match (of.tokens, of.burst) {
                (Some(tokens), Some(burst)) => format!("{tokens:.1} of {burst}"),
                _ => String::new(),
            },
            next(of),
            of.waited_s.map(seconds).unwrap_or_default(),
            of.weight.map(|weight| weight.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

/// What the lane waits for: its turn, a slot, or a time.
fn next(of: &LaneRow) -> String {
    match of.next_s {
        _ if of.in_turn => "in turn".into(),
        Some(s) if s > 0.0 => {
            format!("in {}", print::seconds(s))
        }
        Some(_) => "now".into(),
        None if of.most.is_some_and(|most| of.slots >= most.into()) => "a slot".into(),
        None => String::new(),
    }
}
