//! Handlers that run many jobs in one call: see [`WorkerBuilder::handle_batch`](crate::WorkerBuilder::handle_batch).

pub(crate) mod run;

pub use run::{Batch, BatchContext, IntoVerdicts, Item, Verdict};
