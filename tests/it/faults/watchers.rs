//! The faults that those who watch jobs meet.

use super::matrix::{Fault, fault};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "NATS stops while a caller waits for a job",
        "the caller learns of the end by its own look",
        &["watch::a_wait_ends_without_nats_and_after_a_lost_hint"],
    ),
    fault(
        "a hint of an end that did not happen; a request to tell another subject",
        "a look, and nothing else",
        &[
            "watch::a_forged_hint_causes_a_look_and_nothing_else",
            "watch::a_worker_tells_no_subject_but_a_watchers",
        ],
    ),
    fault(
        "Postgres is away while a job is watched",
        "the stream is late, and goes on",
        &["watch::an_outage_of_postgres_delays_a_watch_and_ends_none"],
    ),
    fault(
        "a follower of ends is killed again and again; an end commits late",
        "each end is read once",
        &[
            "ends::a_follower_that_is_killed_again_and_again_reads_each_end_once",
            "ends::an_end_that_commits_late_is_read_although_later_ends_were",
        ],
    ),
];
