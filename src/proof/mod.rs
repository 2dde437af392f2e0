//! Proof: what tests of tenure itself need inside the library: points at which they end the process, the fuzzer's
//! targets, and the servers and jobs of the tests of one step.
//!
//! For the tests of applications there is `testing`.

pub(crate) mod fault;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
#[cfg(all(test, feature = "dev"))]
mod place;

#[cfg(all(test, feature = "dev"))]
pub(crate) use place::*;
