//! tenure itself, by its own program: `tenure bench` on the same servers.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use tokio::process::Command;

use super::About;
use crate::{
    LONGEST,
    servers::{Database, output_of},
    works::{Row, Values},
};

pub(super) const ABOUT: About = About {
    finished_rows: "kept, in a history table with a partition a day",
    fence: "by the claim's number",
    settings: "2,000 slots; its worker is a process of its own; delivered by NATS",
};

/// How many works it does in one go.
const WORKS: [&str; 6] = ["one-by-one", "tasks", "batches", "drain", "mixed", "pickup"];

/// What its figures are called.
const FIGURES: [(&str, Row); 9] = [
    ("enqueue, one by one", Row::OneByOne),
    ("enqueue, one by one, from 32 tasks", Row::Tasks),
    ("enqueue, batches of 1,000, published and confirmed", Row::Batches),
    ("drain, one worker", Row::Drain),
    ("enqueue from 32 tasks while one worker drains", Row::Mixed),
    ("pick-up when idle, p50", Row::PickupP50),
    ("pick-up when idle, p99", Row::PickupP99),
    ("raw INSERT, one by one", Row::RawOne),
    ("raw INSERT, 32 connections", Row::RawMany),
];

/// What its program says about itself and its server.
#[derive(Debug, Clone)]
pub(crate) struct Versions {
    pub(crate) tenure: String,
    pub(crate) nats: String,
}

#[derive(Deserialize)]
struct Printed {
    tenure: String,
    nats: String,
    figures: Vec<Figure>,
}

#[derive(Deserialize)]
struct Figure {
    work: String,
    median: f64,
}

pub(crate) async fn measure(
    program: &Path,
    database: &Database,
    nats_url: &str,
    jobs: usize,
) -> anyhow::Result<(Values, Versions)> {
    let mut command = Command::new(program);
    command
        .arg("bench")
        .args(WORKS)
        .args(["--runs", "1", "--jobs", &jobs.to_string(), "--slots", "2000"])
        .args(["--output", "json", "--on-servers"])
        .env("DATABASE_URL", database.url())
        .env("NATS_URL", nats_url);
    let longest = LONGEST * u32::try_from(WORKS.len())?;
    let printed = output_of(command, longest).await?;
    let printed: Printed = serde_json::from_str(&printed).context("read what tenure has printed")?;
    let mut values = Values::new();
    for (name, row) in FIGURES {
        let figure = printed.figures.iter().find(|figure| figure.work == name);
        let figure = figure.with_context(|| format!("this tenure does not tell \"{name}\""))?;
        values.insert(row, figure.median);
    }
    Ok((values, Versions { tenure: printed.tenure, nats: printed.nats }))
}
