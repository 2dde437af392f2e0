//! Tags: words by which jobs are found and counted. A job's stand in a table of their own, which
//! `migrations/functions/enqueue/create_jobs.sql` fills.

#[cfg(feature = "worker")]
pub(crate) mod run;
pub(crate) mod store;
#[cfg(feature = "worker")]
pub(crate) mod worker;
