//! The faults that workers in other languages meet, and their gateways.

use super::matrix::{Fault, fault};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "a gateway dies, or freezes, between any two of its steps",
        "another goes on: nothing lost, nothing doubled",
        &[
            "gateway::faults::another_gateway_goes_on_after_one_that_dies_at_any_step",
            "gateway::faults::another_gateway_goes_on_beside_one_that_freezes_at_any_step",
            "gateway::faults::a_gateway_that_wakes_too_late_gives_back_what_it_has_claimed",
        ],
    ),
    fault(
        "a gateway stops while requests are on their way",
        "it answers them",
        &["gateway::faults::a_gateway_that_stops_answers_what_it_was_asked"],
    ),
    fault(
        "a worker behind a gateway dies",
        "its jobs run elsewhere within seconds",
        &[
            "gateway::faults::the_jobs_of_a_worker_that_is_gone_run_elsewhere_soon",
            "gateway::faults::a_worker_that_died_right_after_a_beat_is_still_probed",
        ],
    ),
    fault(
        "a worker dies or freezes while it waits for jobs, or its confirmation is lost",
        "what was claimed for it is given back, and no attempt counts",
        &["gateway::faults::a_worker_that_dies_or_freezes_while_it_waits_is_charged_for_no_job"],
    ),
    fault(
        "a client sends a forged receipt, asks for answers elsewhere, or asks about too much",
        "a typed error, or none; nothing lost",
        &[
            "gateway::a_forged_receipt_settles_nothing",
            "gateway::faults::a_request_that_wants_its_answer_elsewhere_is_ignored",
            "gateway::faults::an_answer_of_many_jobs_fits_into_a_message",
            "gateway::faults::an_answer_about_a_job_with_long_texts_fits_into_a_message",
        ],
    ),
    fault(
        "a client is killed at each step, frozen, cut off, drained, replaced under load; its gateway dies; answers are lost",
        "each client passes the [conformance kit](conformance.md)",
        &[
            "gateway::clients::the_client_for_python_passes_the_conformance_kit",
            "gateway::clients::the_client_for_node_passes_the_conformance_kit",
        ],
    ),
];
