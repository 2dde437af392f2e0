//! Report: what was measured, as tables or as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

use crate::{
    aims::{Aim, aims},
    order::Order,
    peers::{About, Library},
    works::{Row, Values, Work},
};

/// What the rounds have brought so far.
#[derive(Default)]
pub(crate) struct Figures {
    values: BTreeMap<(Library, Row), Vec<f64>>,
    failures: Vec<Failure>,
}

impl Figures {
    /// Takes what a work has brought; of a failure, that it was one.
    pub(crate) fn settle(&mut self, library: Library, work: Work, done: anyhow::Result<Values>) {
        match done {
            Ok(values) => {
                for (row, value) in values {
                    self.values.entry((library, row)).or_default().push(value);
                }
            }
            Err(error) => {
                let (work, error) = (work.to_string(), format!("{error:#}"));
                eprintln!("failed: {library}, {work}: {error}");
                self.failures.push(Failure { library, work, error, is_absence: false });
            }
        }
    }

    /// A library that cannot be measured on this machine: no failure of this run.
    pub(crate) fn absent(&mut self, library: Library, error: &anyhow::Error) {
        let error = format!("not measured: {error:#}");
        eprintln!("{library}: {error}");
        self.failures.push(Failure { library, work: "all works".into(), error, is_absence: true });
    }

    pub(crate) fn median(&self, library: Library, row: Row) -> Option<f64> {
        self.values.get(&(library, row)).map(|runs| median(runs))
    }

    fn cell(&self, library: Library, row: Row) -> Option<Cell> {
        let runs = self.values.get(&(library, row))?;
        let median = median(runs);
        let ratio = |tenure: f64| if row.less_is_better() { median / tenure } else { tenure / median };
        let tenure = library.tenures().iter().find_map(|tenure| self.median(*tenure, row));
        Some(Cell { median, runs: runs.clone(), tenure_is: tenure.map(ratio) })
    }
}

/// What was measured, and where.
#[derive(Serialize)]
pub(crate) struct Report {
    postgres: String,
    cores: usize,
    rounds: u32,
    jobs: usize,
    payload_bytes: usize,
    libraries: Vec<Described>,
    works: Vec<Line>,
    aims: Vec<Aim>,
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
    /// How many times better the tenure of its language is: tenure's rate against this one, or this latency against
    /// tenure's.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenure_is: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct Failure {
    library: Library,
    work: String,
    error: String,
    /// The machine has no such library.
    pub(crate) is_absence: bool,
}

fn described((library, version): (Library, String)) -> Described {
    Described { library, version, about: library.about() }
}

impl Report {
    pub(crate) fn new(
        figures: Figures,
        versions: BTreeMap<Library, String>,
        postgres: String,
        rounds: u32,
        jobs: usize,
    ) -> anyhow::Result<Self> {
        let line = |row: Row| {
            let cells = versions.keys().filter_map(|library| Some((*library, figures.cell(*library, row)?)));
            Line { work: row.name(), unit: row.unit(), libraries: cells.collect() }
        };
        Ok(Self {
            postgres,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            rounds,
            jobs,
            payload_bytes: serde_json::to_vec(&Order::example(1, 0))?.len(),
            works: Row::ALL.into_iter().map(line).filter(|line| !line.libraries.is_empty()).collect(),
            libraries: versions.into_iter().map(described).collect(),
            aims: aims(&figures),
            failures: figures.failures,
        })
    }

    pub(crate) fn text(&self) -> String {
        let Self { postgres, cores, rounds, jobs, payload_bytes, .. } = self;
        let mut lines = vec![
            format!(
                "Postgres {postgres}, {cores} cores, {jobs} jobs, payload {payload_bytes} bytes, \
                 median of {rounds}"
            ),
            self.table().to_string(),
            "History, fence and synced say what a figure pays for: what is left of a finished job, what keeps a worker \
             that has lost a job from ending it, and when an accepted job is on disk."
                .into(),
        ];
        for Described { library, version, about } in &self.libraries {
            lines.push(format!("\n{library} {version}\n  set: {}", about.settings));
        }
        for Failure { library, work, error, .. } in &self.failures {
            lines.push(format!("\nFAILED: {library}, {work}: {error}"));
        }
        lines.push(format!("\ntenure's aims\n{}", self.aims_table()));
        lines.join("\n")
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header([
            "work",
            "library",
            "median",
            "unit",
            "lowest … highest",
            "tenure is",
            "history",
            "fence",
            "synced",
        ]);
        for line in &self.works {
            let mut work = line.work;
            for Described { library, about, .. } in &self.libraries {
                if let Some(cell) = line.libraries.get(library) {
                    let About { history, fence, synced, .. } = about;
                    table.add_row([
                        std::mem::take(&mut work).to_owned(),
                        library.to_string(),
                        number(cell.median),
                        line.unit.to_owned(),
                        cell.spread(),
                        cell.tenure_is.map(|ratio| format!("{ratio:.2} ×")).unwrap_or_default(),
                        (*history).to_owned(),
                        (*fence).to_owned(),
                        (*synced).to_owned(),
                    ]);
                }
            }
        }
        align(&mut table, &[2, 4, 5]);
        table
    }

    fn aims_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["work", "aim", "ratio", "met", "figures"]);
        for aim in &self.aims {
            table.add_row([
                aim.work.to_owned(),
                aim.aim.clone(),
                aim.ratio.map(number).unwrap_or_default(),
                aim.is_met.map_or("?", |is_met| if is_met { "yes" } else { "no" }).to_owned(),
                aim.figures.clone(),
            ]);
        }
        align(&mut table, &[2]);
        table
    }
}

fn align(table: &mut Table, columns: &[usize]) {
    for at in columns {
        if let Some(column) = table.column_mut(*at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

impl Cell {
    fn spread(&self) -> String {
        let (low, high) =
            self.runs.iter().fold((f64::MAX, f64::MIN), |(low, high), run| (low.min(*run), high.max(*run)));
        format!("{} … {}", number(low), number(high))
    }
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
pub(crate) fn number(value: f64) -> String {
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
