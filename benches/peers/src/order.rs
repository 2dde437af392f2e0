//! Order: what every job carries, the same as in `tenure bench`.

use serde::{Deserialize, Serialize};

/// Some 190 bytes of JSON, which the handler decodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the same JSON as tenure's own bench")]
pub(crate) struct Order {
    pub(crate) order: u64,
    customer: String,
    lines: Vec<Line>,
    note: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    sku: String,
    quantity: u32,
    cents: u64,
}

impl Order {
    /// What the libraries call this kind of job.
    pub(crate) const KIND: &'static str = "order";

    pub(crate) fn example(order: usize) -> Self {
        let line = |sku: &str, quantity, cents| Line { sku: sku.into(), quantity, cents };
        Self {
            order: order as u64,
            customer: "customer-00042".into(),
            lines: vec![line("socket-12", 3, 1_250), line("wrench-09", 1, 4_999)],
            note: "deliver to the back door, please ring".into(),
        }
    }

    /// Reads all of it, as a handler would.
    pub(crate) fn total(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.quantity) * line.cents).sum()
    }
}
