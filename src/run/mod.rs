//! Run: runs a handler, writes its reports, and settles its attempt.

pub(crate) mod context;
pub(crate) mod handlers;
pub(crate) mod heartbeat;
pub(crate) mod layers;
pub(crate) mod running;
pub(crate) mod settle;
pub(crate) mod threads;
