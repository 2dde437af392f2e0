//! Aims: what tenure has set itself, each a ratio of one run.

use clap::ValueEnum;
use serde::Serialize;

use crate::{
    peers::Library,
    report::{Figures, number},
    works::Row,
};

/// What a figure of tenure is compared with.
#[derive(Clone, Copy)]
enum Of {
    /// The best of the peers on Postgres.
    Peers,
    /// The best plain drain of the peers on Postgres.
    PeersDrain,
    /// Plain INSERTs of the same run.
    Raw,
    /// Its own drain, plain.
    Drain,
    /// Nothing: the aim is the figure itself.
    Itself,
    /// The best library for Node, of tenure's client for Node.
    Node,
    /// The best library for Python, of tenure's client for Python.
    Python,
}

impl Of {
    /// Whose figure it is.
    const fn tenure(self) -> Library {
        match self {
            Self::Node => Library::TenureNode,
            Self::Python => Library::TenurePython,
            _ => Library::Tenure,
        }
    }
}

/// The aims, in the order of the table. Rates have a lower bound, latencies and costs an upper one.
const AIMS: [(Row, Of, f64); 16] = [
    (Row::Drain, Of::Peers, 1.0),
    (Row::DrainUnkept, Of::PeersDrain, 1.2),
    (Row::CommitP50, Of::Peers, 1.0),
    (Row::CommitP99, Of::Peers, 1.0),
    (Row::OneByOne, Of::Raw, 0.7),
    (Row::Tasks, Of::Raw, 1.5),
    (Row::Batches, Of::Peers, 1.3),
    (Row::Mixed, Of::Peers, 3.0),
    (Row::MixedBatches, Of::Peers, 1.5),
    (Row::Cpu, Of::Itself, 30.0),
    (Row::DrainFourWorkers, Of::Drain, 0.7),
    (Row::DrainTwoQueues, Of::Drain, 0.7),
    (Row::DrainLarge, Of::Drain, 0.7),
    (Row::DrainProgress, Of::Drain, 0.7),
    (Row::Drain, Of::Node, 1.5),
    (Row::Drain, Of::Python, 1.5),
];

/// An aim, and what came of it.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the names in a report")]
pub(crate) struct Aim {
    pub(crate) work: &'static str,
    pub(crate) aim: String,
    /// tenure's figure and the other's, and their ratio; `None`: one of them was not measured.
    pub(crate) ratio: Option<f64>,
    pub(crate) figures: String,
    pub(crate) is_met: Option<bool>,
}

pub(crate) fn aims(figures: &Figures) -> Vec<Aim> {
    // Those of a client only where it was measured: most runs are not about it.
    let is_asked = |(row, of, _): &(Row, Of, f64)| {
        !of.tenure().is_extra() || figures.median(of.tenure(), *row).is_some()
    };
    AIMS.into_iter().filter(is_asked).map(|(row, of, bound)| aim(figures, row, of, bound)).collect()
}

fn aim(figures: &Figures, row: Row, of: Of, bound: f64) -> Aim {
    let tenure = figures.median(of.tenure(), row);
    // BullMQ promises less than a committed row.
    let best_peer = |row| best(figures, row, Library::is_on_postgres);
    let (what, other) = match of {
        Of::Peers => ("× the best peer", best_peer(row)),
        Of::PeersDrain => ("× the best peer's drain", best_peer(Row::Drain)),
        Of::Raw => {
            ("× raw INSERTs", figures.median(Library::Raw, row).map(|value| (value, "raw".to_owned())))
        }
        Of::Drain => {
            let plain = figures.median(Library::Tenure, Row::Drain);
            ("× its plain drain", plain.map(|value| (value, "plain".to_owned())))
        }
        Of::Itself => ("µs", Some((1.0, String::new()))),
        Of::Node => ("× BullMQ, by tenure_node", best(figures, row, |library| library == Library::Bullmq)),
        Of::Python => {
            ("× the best library for Python, by tenure_python", best(figures, row, Library::is_for_python))
        }
    };
    let ratio = tenure.zip(other.as_ref()).map(|(tenure, (other, _))| tenure / other);
    let is_met = ratio.map(|ratio| if row.less_is_better() { ratio <= bound } else { ratio >= bound });
    let sign = if row.less_is_better() { "≤" } else { "≥" };
    let compared = tenure.zip(other).map(|(tenure, (other, name))| match of {
        Of::Itself => format!("{} {}", number(tenure), row.unit()),
        _ => format!("{} to {} {} ({name})", number(tenure), number(other), row.unit()),
    });
    Aim {
        work: row.name(),
        aim: format!("{sign} {bound} {what}"),
        ratio,
        figures: compared.unwrap_or_else(|| "not measured".into()),
        is_met,
    }
}

/// The best of some libraries.
fn best(figures: &Figures, row: Row, is_one: impl Fn(Library) -> bool) -> Option<(f64, String)> {
    let peers = Library::value_variants().iter().copied().filter(|library| is_one(*library));
    let all = peers.filter_map(|library| Some((figures.median(library, row)?, library.to_string())));
    let better = |a: &(f64, String), b: &(f64, String)| a.0.total_cmp(&b.0);
    if row.less_is_better() { all.min_by(better) } else { all.max_by(better) }
}
