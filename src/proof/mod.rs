//! Proof: what tests of tenure itself need inside the library: points at which they end the process, the fuzzer's
//! targets, and the servers and jobs of the tests of one step.
//!
//! For the tests of applications there is `testing`.

pub(crate) mod fault;
#[cfg(any(fuzzing, test))]
pub mod fuzz;
#[cfg(test)]
mod place;

#[cfg(test)]
pub(crate) use place::*;
