//! Enqueue: a job's row, and its first message.
//!
//! Not here: what producers call (`client::enqueue`), jobs that arrive as messages (`deliver`).

pub(crate) mod backpressure;
pub(crate) mod insert;
pub(crate) mod publish;
pub(crate) mod uncommitted;
