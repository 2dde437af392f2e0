//! Faults around jobs that wait for others, or for events.

use super::matrix::{Fault, fault};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "killed between the end of a member and the release of its follower",
        "another worker releases it",
        &["groups::a_worker_that_dies_between_an_end_and_its_release_leaves_no_follower_behind"],
    ),
    fault(
        "workers killed again and again while thousands of members run",
        "the follower runs once, with each output",
        &["groups::a_follower_of_thousands_runs_once_though_workers_are_killed_again_and_again"],
    ),
    fault(
        "the last two members end at the same moment",
        "one of the ends releases the follower",
        &["groups::of_two_last_jobs_that_end_at_once_one_releases_the_follower"],
    ),
    fault(
        "a member dies, and is redriven later",
        "the graph goes on from there; nothing that has completed runs again",
        &["groups::a_failure_cancels_what_follows_and_a_redrive_resumes_the_graph"],
    ),
    fault(
        "a member ends without a note, as one that an older program has redriven",
        "found within ten seconds; with more than 10,000 held followers, ten seconds for each 10,000",
        &["groups::an_end_that_no_trigger_noted_is_found"],
    ),
    fault(
        "an event, or the end of a job's own job, comes before its wait, between the wait and its settle, or during the settle",
        "the job gets it",
        &[
            "events::an_event_that_comes_before_its_wait_is_there",
            "events::a_signal_between_the_wait_and_its_settle_is_not_lost",
            "events::a_signal_during_the_settle_finds_the_job_held",
            "groups::settled::an_end_that_an_attempt_of_several_waits_did_not_see_wakes_the_job",
        ],
    ),
    fault(
        "thousands follow a job of a large output, which each of them keeps",
        "copied part by part, 16 MiB in a call, which ends in time",
        &["groups::settled::a_large_output_is_copied_to_many_followers_part_by_part"],
    ),
    fault(
        "an open transaction holds the row of a follower, of a job before it, or of the wait itself",
        "other groups go on; this one when the transaction has ended",
        &[
            "groups::settled::an_edge_that_is_locked_holds_up_no_other_group",
            "groups::settled::an_open_transaction_holds_up_no_other_group",
            "groups::troubles::one_follower_that_cannot_be_released_keeps_back_no_other",
        ],
    ),
    fault(
        "somebody's trigger or constraint refuses the row of one follower, or of one dead letter of a calm redrive",
        "other followers and other redrives go on; doctor names the jobs",
        &[
            "groups::troubles::a_follower_that_postgres_refuses_to_write_keeps_back_no_other_and_doctor_names_it",
            "redrives::a_dead_letter_that_postgres_refuses_to_redrive_holds_up_nothing",
        ],
    ),
    fault(
        "a producer names a job of somebody else as its own, by a snapshot of before that job",
        "refused, and to be begun again",
        &["sql_lanes::a_producer_changes_no_job_by_the_functions_that_run_with_the_owners_rights"],
    ),
];
