//! Report: what was measured, as a table or as JSON.

use std::collections::BTreeMap;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL};
use serde::Serialize;

use crate::{
    order::Order,
    peers::{About, Library, tenure::Versions},
    works::{Row, Values, Work},
};

/// The versions that this program was built with.
const LOCK: &str = include_str!("../Cargo.lock");

/// What the rows are called.
const ROWS: [(Row, &str, &str); 7] = [
    (Row::OneByOne, "enqueue, one by one", "jobs/s"),
    (Row::Tasks, "enqueue, one by one, from 32 tasks", "jobs/s"),
    (Row::Batches, "enqueue, batches of 1,000", "jobs/s"),
    (Row::Drain, "drain, one worker", "jobs/s"),
    (Row::Mixed, "enqueue from 32 tasks while one worker drains", "jobs/s"),
    (Row::PickupP50, "pick-up when idle, p50", "ms"),
    (Row::PickupP99, "pick-up when idle, p99", "ms"),
];

/// What the rounds have brought so far.
#[derive(Default)]
pub(crate) struct Figures {
    values: BTreeMap<(Library, Row), Vec<f64>>,
    failures: Vec<Failure>,
    pub(crate) versions: Option<Versions>,
}

impl Figures {
    /// Takes what a work has brought; of a failure, that it was one.
    pub(crate) fn settle(&mut self, library: Library, work: Option<Work>, done: anyhow::Result<Values>) {
        match done {
            Ok(values) => {
                for (row, value) in values {
                    self.values.entry((library, row)).or_default().push(value);
                }
            }
            Err(error) => {
                let work = work.map_or_else(|| "all works".to_owned(), |work| work.to_string());
                let error = format!("{error:#}");
                eprintln!("failed: {library}, {work}: {error}");
                self.failures.push(Failure { library, work, error });
            }
        }
    }

    fn cell(&self, library: Library, row: Row) -> Option<Cell> {
        let runs = self.values.get(&(library, row))?;
        let median = median(runs);
        let tenure = self.values.get(&(Library::Tenure, row)).map(|runs| self::median(runs));
        let less_is_better = matches!(row, Row::PickupP50 | Row::PickupP99);
        let ratio = |tenure: f64| if less_is_better { median / tenure } else { tenure / median };
        let tenure_is = (library != Library::Tenure).then(|| tenure.map(ratio)).flatten();
        Some(Cell { median, runs: runs.clone(), tenure_is })
    }
}

/// What was measured, and where.
#[derive(Serialize)]
pub(crate) struct Report {
    postgres: String,
    nats: Option<String>,
    cores: usize,
    rounds: u32,
    jobs: usize,
    payload_bytes: usize,
    libraries: Vec<Described>,
    works: Vec<Line>,
    /// Plain INSERTs of the same rows without any library, in rows a second; of tenure's runs.
    raw_inserts: BTreeMap<&'static str, Cell>,
    pub(crate) failures: Vec<Failure>,
}

#[derive(Serialize)]
struct Described {
    library: Library,
    version: String,
    #[serde(flatten)]
    about: About,
}

#[derive(Serialize)]
struct Line {
    work: &'static str,
    unit: &'static str,
    libraries: BTreeMap<Library, Cell>,
}

#[derive(Serialize)]
struct Cell {
    median: f64,
    runs: Vec<f64>,
    /// How many times better tenure is: tenure's rate against this one, or this latency against tenure's.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenure_is: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct Failure {
    library: Library,
    work: String,
    error: String,
}

impl Report {
    pub(crate) fn new(
        figures: Figures,
        libraries: &[Library],
        postgres: String,
        rounds: u32,
        jobs: usize,
    ) -> anyhow::Result<Self> {
        let mut described = Vec::new();
        for library in libraries {
            let version = match (&figures.versions, library) {
                (Some(versions), Library::Tenure) => versions.tenure.clone(),
                _ => locked(library.package())?,
            };
            described.push(Described { library: *library, version, about: library.about() });
        }
        let line = |(row, work, unit): (Row, &'static str, &'static str)| {
            let cells = libraries.iter().filter_map(|library| Some((*library, figures.cell(*library, row)?)));
            Line { work, unit, libraries: cells.collect() }
        };
        let raw = [("one by one", Row::RawOne), ("32 connections", Row::RawMany)];
        let raw = raw.into_iter().filter_map(|(how, row)| Some((how, figures.cell(Library::Tenure, row)?)));
        Ok(Self {
            postgres,
            nats: figures.versions.as_ref().map(|versions| versions.nats.clone()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            rounds,
            jobs,
            payload_bytes: serde_json::to_vec(&Order::example(1))?.len(),
            libraries: described,
            works: ROWS.into_iter().map(line).collect(),
            raw_inserts: raw.collect(),
            failures: figures.failures,
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL);
        let names = self.libraries.iter().map(|described| format!("{}", described.library));
        table.set_header([String::new(), "unit".into()].into_iter().chain(names));
        for line in &self.works {
            let mut cells = vec![line.work.to_owned(), line.unit.to_owned()];
            cells.extend(self.libraries.iter().map(|described| line.text(described.library)));
            table.add_row(cells);
        }
        for at in 2..2 + self.libraries.len() {
            if let Some(column) = table.column_mut(at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut lines = vec![self.head(), table.to_string()];
        lines.push("Below a number: how many times better tenure is.".into());
        lines.extend(self.raw_inserts.iter().map(|(how, cell)| {
            format!("Raw INSERTs without any library, {how}: {} rows/s.", number(cell.median))
        }));
        for Described { library, version, about } in &self.libraries {
            let About { finished_rows, fence, settings } = about;
            lines.push(format!("\n{library} {version}"));
            lines.push(format!("  finished rows: {finished_rows}"));
            lines.push(format!("  fence: {fence}"));
            lines.push(format!("  set: {settings}"));
        }
        for Failure { library, work, error } in &self.failures {
            lines.push(format!("\nFAILED: {library}, {work}: {error}"));
        }
        lines.join("\n")
    }

    fn head(&self) -> String {
        let nats = self.nats.as_ref().map(|nats| format!(", nats-server {nats}")).unwrap_or_default();
        let Self { postgres, cores, rounds, jobs, payload_bytes, .. } = self;
        format!(
            "Postgres {postgres}{nats}, {cores} cores, {jobs} jobs, payload {payload_bytes} bytes, \
             median of {rounds}"
        )
    }
}

impl Line {
    fn text(&self, library: Library) -> String {
        match self.libraries.get(&library) {
            None => "failed".into(),
            Some(Cell { median, tenure_is: Some(ratio), .. }) => {
                format!("{}\n{ratio:.2} ×", number(*median))
            }
            Some(cell) => number(cell.median),
        }
    }
}

/// The version of a package in this program's lock file.
fn locked(package: &str) -> anyhow::Result<String> {
    let name = format!("name = \"{package}\"\nversion = \"");
    let (_, rest) = LOCK.split_once(&name).with_context(|| format!("find {package} in Cargo.lock"))?;
    let (version, _) = rest.split_once('"').context("read Cargo.lock")?;
    Ok(version.to_owned())
}

/// The middle one; of an even number, the mean of the middle two. Of none, 0.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// With as many digits as mean something, and thousands apart.
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
