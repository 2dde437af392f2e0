//! Faults between the steps of a job.

use super::matrix::{Fault, fault};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "killed between the end of a step and its record, and after its record",
        "a recorded step does not run again; work without a record does",
        &["steps::no_recorded_step_runs_again_though_its_worker_is_killed_at_each_boundary"],
    ),
    fault(
        "killed when a job falls asleep",
        "it sleeps until the time that was recorded, no longer",
        &["steps::a_deploy_and_a_crash_do_not_prolong_a_sleep"],
    ),
];
