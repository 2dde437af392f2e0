//! The faults that jobs in lanes meet.

use super::matrix::{Fault, fault};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "two releases want the last slot of a lane at once",
        "one gets it",
        &["lanes::faults::of_two_calls_at_once_one_gets_the_last_slot"],
    ),
    fault(
        "a worker is killed while its jobs have slots",
        "the slots are free when the jobs are, and no sooner",
        &["lanes::faults::a_killed_workers_slots_are_free_when_its_jobs_are_and_no_sooner"],
    ),
    fault(
        "a job of a lane is retried, or redriven",
        "it waits in its lane for a slot; in an ordered lane it keeps its slot",
        &[
            "lanes::faults::a_retried_job_gives_its_slot_to_the_next_and_comes_back_to_its_lane",
            "lanes::faults::a_redriven_job_waits_in_its_lane",
            "lanes::an_ordered_lane_runs_its_jobs_one_after_another_retries_included",
        ],
    ),
    fault(
        "the worker that looks after the lanes is frozen or dies",
        "another one stands in within half a second",
        &["lanes::faults::a_lane_with_a_rate_goes_on_when_the_relay_dies"],
    ),
    fault(
        "a job that has a token is cancelled before it ran",
        "the token comes back once",
        &["lanes::faults::a_job_that_is_cancelled_before_it_ran_gives_its_token_back"],
    ),
    fault(
        "the database's clock jumps back while a lane has a rate",
        "no bucket is filled twice, and no lane stops",
        &["lanes::faults::a_clock_that_jumps_back_fills_no_bucket_twice_and_stops_no_lane"],
    ),
    fault(
        "a transaction that has enqueued into a lane stays open",
        "the lane goes on without it",
        &["lanes::faults::a_long_transaction_that_enqueues_stops_no_lane"],
    ),
    fault(
        "a queue gets lanes, or loses them, while jobs stand in it and producers insert",
        "all its jobs are counted and held, and let go again",
        &["lanes::faults::lanes_take_hold_of_what_stands_in_the_queue_and_let_go_of_it"],
    ),
    fault(
        "a queue with lanes is paused",
        "nothing is released until it is resumed",
        &["lanes::faults::a_paused_queue_releases_nothing_and_goes_on_once_it_is_resumed"],
    ),
    fault(
        "a job of a lane arrives as a message",
        "it waits in its lane as any other",
        &["lanes::faults::a_submission_names_its_lane_in_a_header"],
    ),
    fault(
        "a limit of zero, a rate of nothing, a bad key or priority",
        "an error that says what is wrong; nothing is stored",
        &["lanes::faults::a_lane_of_its_own_limit_follows_it_and_bad_settings_are_refused"],
    ),
    fault(
        "no worker runs until after a job's `not_after`",
        "it never starts, and ends as expired",
        &["lanes::a_job_that_was_not_started_by_its_time_expires_and_says_so"],
    ),
    fault(
        "a producer dies before it releases its job, or before it publishes what it has released",
        "the relay releases and publishes the job",
        &["lanes::faults::a_producer_that_dies_before_or_after_it_released_its_job_loses_nothing"],
    ),
    fault(
        "a worker dies, or freezes, between a release and its message",
        "the relay publishes the job; the late message runs nothing",
        &["lanes::faults::a_worker_that_dies_or_freezes_after_it_released_a_job_delays_it_and_runs_it_once"],
    ),
];
