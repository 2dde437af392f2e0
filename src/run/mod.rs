//! Run: a handler, what it reports, and its end.

pub(crate) mod context;
pub(crate) mod handlers;
pub(crate) mod heartbeat;
pub(crate) mod running;
pub(crate) mod settle;
pub(crate) mod threads;
