//! Run: runs a handler, writes its reports, and settles its attempt.

pub(crate) mod batches;
pub(crate) mod context;
pub(crate) mod handlers;
pub(crate) mod heartbeat;
pub(crate) mod hints;
pub(crate) mod lanes;
pub(crate) mod layers;
pub(crate) mod log;
pub(crate) mod quarantine;
pub(crate) mod running;
pub(crate) mod sealing;
pub(crate) mod settle;
pub(crate) mod tags;
pub(crate) mod threads;
