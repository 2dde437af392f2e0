//! The tests of tenure against real servers. One program, so that they share what they start.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod harness;
mod life;
