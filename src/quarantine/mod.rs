//! Quarantine: the jobs of a kind that mostly fails wait, but for one at a time, which is tried.
//!
//! | file | what |
//! |---|---|
//! | [`api`] | puts, lists and ends them |
//! | [`store`], `sql` | their statements |
//! | [`run`] | counts a worker's attempts, and snoozes jobs |
//! | [`recover`] | begins and ends quarantines, and calls the jobs that need to wait no more |
//! | [`worker`] | the loops of both |
//! | [`doctor`] | the check |

pub(crate) mod api;
pub(crate) mod doctor;
#[cfg(feature = "worker")]
pub(crate) mod recover;
#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;
