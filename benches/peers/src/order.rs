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

    /// An order whose JSON is about `payload` bytes long, if that is more than it takes.
    pub(crate) fn example(order: usize, payload: usize) -> Self {
        let line = |sku: &str, quantity, cents| Line { sku: sku.into(), quantity, cents };
        let note = "deliver to the back door, please ring";
        Self {
            order: order as u64,
            customer: "customer-00042".into(),
            lines: vec![line("socket-12", 3, 1_250), line("wrench-09", 1, 4_999)],
            // Varied text, which Postgres does not compress away.
            note: match payload.saturating_sub(150) {
                0 => note.into(),
                bytes => (0_u64..)
                    .flat_map(|n| {
                        format!("{:x} ", (order as u64 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
                    })
                    .map(char::from)
                    .take(bytes)
                    .collect(),
            },
        }
    }

    /// Reads all of it, as a handler would.
    pub(crate) fn total(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.quantity) * line.cents).sum()
    }
}
