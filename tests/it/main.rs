//! The tests of tenure against real servers. One program, so that they share what they start.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is published")]

mod harness;
mod scenarios;

mod claim;
mod crash;
mod enqueue;
mod life;
mod outage;
mod recover;
mod run;
mod shutdown;
mod submit;
