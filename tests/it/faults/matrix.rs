//! The faults, the required outcome of each, and the test that forces it. `docs/reliability.md` shows them as a table,
//! and a test compares it with this list: neither can drift from the other, nor from the tests.
//!
//! `TENURE_WRITE_DOCS=1 cargo test --all-features --test it the_table_of_faults` writes the table.

/// One fault.
pub(super) struct Fault {
    pub(super) what: &'static str,
    pub(super) must: &'static str,
    /// The names of its tests, with their module.
    pub(super) tests: &'static [&'static str],
}

pub(super) const fn fault(what: &'static str, must: &'static str, tests: &'static [&'static str]) -> Fault {
    Fault { what, must, tests }
}

pub(super) const FAULTS: &[(&str, &[Fault])] = &[
    (
        "Producers",
        &[
            fault(
                "killed before the commit",
                "no job and no message",
                &["faults::crashes::a_producer_killed_before_its_commit_leaves_no_job"],
            ),
            fault(
                "killed between the row and its message",
                "the relay finds out within seconds, and publishes",
                &[
                    "crash::a_producer_killed_between_row_and_message_loses_no_job",
                    "publish::a_producer_killed_before_it_published_costs_its_job_a_few_seconds",
                ],
            ),
            fault(
                "ends right after `enqueue` returned, without `flush`",
                "its messages are with the kernel; its jobs run at once",
                &["publish::a_process_that_ends_right_after_enqueue_leaves_its_messages_with_the_kernel"],
            ),
            fault(
                "gone before the user's transaction commits",
                "the relay finds the job, and publishes",
                &["publish::a_transaction_that_is_rolled_back_or_lasts_leaves_its_jobs_to_the_relay"],
            ),
            fault(
                "killed before the publication was confirmed",
                "the job runs once",
                &["crash::killed_between_a_publication_and_its_record_the_job_runs_once"],
            ),
            fault(
                "NATS away while enqueueing",
                "enqueue is Ok; the job runs when NATS is back",
                &["enqueue::enqueue_succeeds_while_nats_is_away_and_the_job_runs_when_it_is_back"],
            ),
            fault(
                "the user's transaction is rolled back",
                "no job",
                &["enqueue::in_the_users_transaction_the_job_exists_if_and_when_it_commits"],
            ),
            fault(
                "a message for a job that does not exist",
                "put off, then terminated and logged",
                &[
                    "submit::a_forged_ticket_claims_nothing_and_a_finished_job_of_an_unknown_kind_is_acknowledged",
                ],
            ),
            fault(
                "one key enqueued 50 times at once",
                "one job; all get its id",
                &["enqueue::of_fifty_enqueues_of_one_unique_key_one_creates_the_job_and_all_get_its_id"],
            ),
            fault(
                "the answer to an enqueue is lost",
                "an error that says so; its key finds the job again",
                &["faults::network::an_enqueue_whose_answer_is_lost_is_found_again_by_its_key"],
            ),
            fault(
                "a body that is not JSON, not UTF-8, empty, deep, too large, or with a bad header",
                "a dead letter with its bytes; the worker goes on",
                &[
                    "submit::an_invalid_message_goes_to_the_dead_letters_with_its_bytes_and_the_worker_goes_on",
                    "faults::bodies::what_no_client_can_read_costs_no_connection_and_no_other_job",
                ],
            ),
            fault(
                "a payload at, above and far above the limit",
                "a typed error before anything is sent",
                &["enqueue::an_invalid_request_is_refused_by_name_and_nothing_is_stored"],
            ),
            fault(
                "NUL, lone surrogates, 1e400000, ten thousand levels, 2 MiB, random JSON",
                "stored equal, or a typed error; nothing half written",
                &[
                    "faults::bodies::json_that_no_database_can_hold_is_refused_by_producers_and_workers_alike",
                    "faults::bodies::any_payload_comes_back_equal_or_is_refused_with_a_reason",
                ],
            ),
            fault(
                "an unknown kind",
                "put off until a worker knows it; a dead letter only after a long time",
                &[
                    "submit::an_unknown_kind_waits_for_a_worker_that_handles_it",
                    "submit::a_kind_that_stays_unknown_for_too_long_is_a_dead_letter_with_its_payload",
                ],
            ),
            fault(
                "a payload of another version of its type",
                "a failed attempt that says so",
                &["run::a_payload_of_another_type_a_panic_an_error_and_a_timeout_are_each_recorded_as_such"],
            ),
            fault(
                "two workers with other limits on one message",
                "the job that one of them made is left alone",
                &[
                    "faults::answers::a_refusal_by_a_worker_with_other_limits_leaves_the_job_alone",
                    "faults::answers::a_job_that_dies_replaces_the_refusal_of_its_own_message",
                ],
            ),
            fault(
                "a client outlives the runtime that it was made in",
                "an error, not silence",
                &["faults::answers::a_caller_whose_client_has_lost_its_runtime_gets_an_error"],
            ),
        ],
    ),
    (
        "Workers",
        &[
            fault(
                "killed before the claim",
                "delivered again, run once",
                &["faults::crashes::killed_before_the_claim_the_message_comes_again_and_the_job_runs_once"],
            ),
            fault(
                "killed after a claim was committed, its answer not read",
                "reset",
                &["batches::a_worker_killed_between_a_batch_of_claims_and_its_answer_loses_no_job"],
            ),
            fault(
                "the answer to a claim is lost, its worker lives",
                "released at once, not charged",
                &["faults::answers::a_claim_whose_answer_was_lost_is_released_by_its_worker"],
            ),
            fault(
                "killed right after the claim",
                "runs elsewhere",
                &["crash::killed_right_after_the_claim_the_job_runs_elsewhere"],
            ),
            fault(
                "killed in mid-run",
                "runs elsewhere, from its checkpoint",
                &[
                    "crash::killed_in_mid_run_the_job_runs_elsewhere",
                    "run::a_checkpoint_saved_right_before_a_failure_reaches_the_next_attempt",
                ],
            ),
            fault(
                "killed after the handler's own commit",
                "the effect stands once",
                &[
                    "crash::killed_after_the_handlers_own_commit_the_commit_stands_once_and_the_job_runs_elsewhere",
                ],
            ),
            fault(
                "killed inside the transaction of `complete_in`",
                "effect and completion are both rolled back",
                &[
                    "faults::crashes::killed_inside_the_transaction_that_completes_the_job_both_are_rolled_back",
                ],
            ),
            fault(
                "killed after `completed`, before the ack",
                "the redelivery is acknowledged and not run",
                &[
                    "crash::killed_after_completed_was_written_but_before_the_ack_the_redelivery_is_not_run",
                    "crash::a_submission_delivered_again_after_its_job_completed_is_not_run_again",
                    "effects_sql::a_command_that_is_killed_between_its_commit_and_the_ack_leaves_one_effect",
                ],
            ),
            fault(
                "killed after the ack",
                "nothing is left to do",
                &["faults::crashes::killed_after_the_ack_nothing_is_left_to_do"],
            ),
            fault(
                "killed after a failed attempt was written",
                "tried again once",
                &["faults::crashes::killed_after_a_failed_attempt_was_written_it_is_tried_again_once"],
            ),
            fault(
                "killed after the move to the dead letters",
                "there once, with its history",
                &[
                    "faults::crashes::killed_while_it_moves_a_job_to_the_dead_letters_it_is_there_once_with_its_history",
                ],
            ),
            fault(
                "killed after a batch of completions, its answer not read",
                "none completes twice",
                &[
                    "batches::a_worker_killed_between_a_batch_of_completions_and_its_answer_completes_none_twice",
                    "unkept::a_worker_killed_between_unkept_completions_and_their_acks_has_none_run_twice",
                ],
            ),
            fault(
                "killed between a reset and its publication",
                "published by another",
                &["crash::killed_between_a_reset_and_its_publication_the_job_is_published_by_another"],
            ),
            fault(
                "killed in the middle of reconcile",
                "each job is reset once",
                &["faults::crashes::killed_in_the_middle_of_reconcile_the_jobs_are_reset_once"],
            ),
            fault(
                "frozen beyond `stale_after`, then woken",
                "the successor completes; the old one can write nothing",
                &[
                    "claim::a_woken_worker_whose_job_was_taken_can_write_nothing",
                    "effects::a_worker_that_freezes_inside_once_does_not_hold_up_the_next_attempt",
                    "effects_sql::a_stale_attempts_commit_is_refused_each_time",
                ],
            ),
            fault(
                "frozen for less",
                "keeps its jobs",
                &["vanished::a_worker_that_is_paused_for_less_than_stale_after_keeps_its_jobs"],
            ),
            fault(
                "killed, with the default settings",
                "its jobs run elsewhere within 15 s",
                &["vanished::a_killed_workers_jobs_run_elsewhere_within_15_seconds"],
            ),
            fault(
                "handlers block every thread",
                "heartbeats, claims and the shutdown go on",
                &[
                    "limits::handlers_that_block_their_threads_stop_neither_heartbeats_nor_claims_nor_the_shutdown",
                    "limits::a_worker_whose_every_thread_is_held_by_abandoned_handlers_ends_and_says_so",
                ],
            ),
            fault(
                "a handler never returns",
                "its time limit ends it",
                &[
                    "run::a_payload_of_another_type_a_panic_an_error_and_a_timeout_are_each_recorded_as_such",
                    "limits::a_shutdown_does_not_wait_for_a_handler_that_blocks",
                ],
            ),
            fault(
                "a handler panics, with text and without",
                "a failed attempt",
                &["run::a_payload_of_another_type_a_panic_an_error_and_a_timeout_are_each_recorded_as_such"],
            ),
            fault(
                "a handler exits, aborts, overflows its stack, takes all memory",
                "the job dies after its attempts; the others complete",
                &[
                    "faults::crashes::handlers_that_end_their_process_end_in_the_dead_letters_and_the_others_complete",
                    "recover::a_job_that_kills_its_worker_each_time_ends_in_the_dead_letters",
                ],
            ),
            fault(
                "two workers on one host, one restarts",
                "the other keeps its jobs",
                &[
                    "recover::a_live_sibling_on_the_same_host_keeps_its_jobs",
                    "recover::a_restarted_worker_resets_its_own_jobs_at_once",
                ],
            ),
            fault(
                "a pod's name is used again",
                "its earlier jobs are reset at once",
                &["recover::a_restarted_worker_resets_its_own_jobs_at_once"],
            ),
            fault(
                "hostnames that start alike, with `_` and `%`, of 253 characters, empty",
                "told apart, or refused",
                &[
                    "recover::a_host_whose_name_starts_with_ours_or_holds_a_wildcard_is_not_us",
                    "faults::crashes::hostnames_of_any_length_are_told_apart_and_an_empty_one_is_refused",
                ],
            ),
            fault(
                "one hostname and pid 1 in two containers",
                "neither proves anything about the other",
                &[
                    "faults::crashes::two_containers_of_one_name_with_pid_1_each_do_not_reset_each_others_jobs",
                ],
            ),
            fault(
                "SIGTERM, the jobs finish in time",
                "no attempt lost, exit 0",
                &["shutdown::on_sigterm_running_jobs_finish_and_the_worker_exits_0"],
            ),
            fault(
                "SIGTERM, the jobs take too long",
                "released, no attempt charged",
                &["shutdown::jobs_that_outlast_the_grace_are_released_at_once_and_not_charged"],
            ),
            fault(
                "killed right after it released a job",
                "no attempt charged",
                &["faults::crashes::killed_right_after_it_released_a_job_no_attempt_is_charged"],
            ),
            fault(
                "a second SIGTERM",
                "ends at once; the job is recovered",
                &["shutdown::a_second_signal_exits_at_once_and_the_job_is_recovered"],
            ),
            fault(
                "stopped under load",
                "messages on their way return to the stream",
                &["shutdown::a_worker_that_stops_returns_the_messages_that_were_on_their_way_to_it"],
            ),
            fault(
                "a rolling deploy in the middle of hundreds of jobs",
                "no attempt charged",
                &["faults::crashes::a_rolling_deploy_charges_no_attempt"],
            ),
            fault(
                "a rolling update: kinds that only the new workers know, a migration in between",
                "all complete once, none charged, none dead",
                &["deploys::old_and_new_workers_side_by_side_with_a_migration_in_between_lose_nothing"],
            ),
            fault(
                "back to the old workers after the migration",
                "they go on; kinds that only the new ones know wait",
                &[
                    "deploys::after_a_rollback_the_old_workers_go_on_and_kinds_that_only_the_new_ones_know_wait",
                ],
            ),
            fault(
                "one busy worker, one idle",
                "no prefetch: the idle one gets the rest",
                &["faults::crashes::an_idle_worker_gets_the_jobs_that_a_busy_one_has_no_slot_for"],
            ),
            fault(
                "clocks of workers wrong by a day",
                "no effect",
                &["vanished::wrong_clocks_of_workers_decide_nothing"],
            ),
            fault(
                "cancelled while queued, running, finished, or its owner dead",
                "a defined end, never back to life",
                &[
                    "cancel::a_queued_job_is_cancelled_at_once_and_its_message_runs_nothing",
                    "cancel::a_running_job_is_cancelled_within_a_second_wherever_it_runs",
                    "cancel::a_cancelled_job_whose_worker_died_is_cancelled_by_its_reset",
                ],
            ),
            fault(
                "a cancellation races with the completion",
                "one winner",
                &["cancel::a_cancellation_that_races_with_the_completion_has_one_winner"],
            ),
            fault(
                "a command's worker is killed",
                "the command does not outlive it",
                &[
                    "exec::a_command_does_not_outlive_a_worker_that_was_killed",
                    "exec::the_children_of_a_command_do_not_outlive_the_worker_either",
                    "effects_sql::a_worker_that_is_killed_while_its_commands_commit_leaves_one_effect_of_each_job",
                ],
            ),
        ],
    ),
    (
        "NATS",
        &[
            fault(
                "restarted; wiped",
                "all complete, none charged",
                &["outage::nats_is_restarted_in_the_middle_of_a_thousand_jobs"],
            ),
            fault(
                "killed; frozen for seconds",
                "all complete once, none charged",
                &["faults::nats::nats_is_killed_and_frozen_in_the_middle_and_nothing_is_lost"],
            ),
            fault(
                "away while 2,400 jobs end",
                "heartbeats go on",
                &["faults::answers::a_nats_that_takes_nothing_does_not_stop_the_heartbeats"],
            ),
            fault(
                "confirms nothing",
                "a bounded number waits; the relay has the rest",
                &[
                    "batches::messages_that_a_frozen_stream_does_not_confirm_are_bounded_and_left_to_the_relay",
                ],
            ),
            fault(
                "the stream is deleted",
                "created again; every queued job published again",
                &["recover::a_deleted_stream_loses_no_job"],
            ),
            fault(
                "the consumer is deleted",
                "created again",
                &["recover::a_deleted_consumer_is_created_again"],
            ),
            fault(
                "a person lowers the consumer's limits to one delivery and two messages in flight",
                "the worker and `doctor` name the difference; jobs run",
                &[
                    "faults::nats::a_consumer_that_was_changed_by_hand_is_worked_with_and_reported",
                    "roles::migrate_as_admin_changes_a_definition_that_a_worker_only_reports",
                ],
            ),
            fault(
                "the consumer is paused",
                "delivered when it is resumed",
                &["faults::nats::a_consumer_that_is_paused_delivers_when_it_is_resumed"],
            ),
            fault(
                "the stream is full",
                "enqueue is Ok; published when there is room",
                &["faults::nats::a_stream_that_is_full_refuses_messages_and_no_job"],
            ),
            fault(
                "the stream comes back as it was before (power cut, backup)",
                "no job lost, none run twice; no answer to a lost message removes another one; a consumer that stays ahead of \
                 the stream is made anew",
                &[
                    "faults::nats::a_stream_restored_to_an_earlier_point_loses_no_job_and_repeats_none",
                    "faults::nats::answers_to_messages_that_a_restored_stream_has_lost_remove_no_other_message",
                    "faults::nats::a_consumer_that_is_ahead_of_its_stream_is_made_anew",
                    "faults::nats::answers_to_messages_that_a_new_leader_has_never_had_remove_no_other_message",
                    "disaster::a_stream_that_is_restored_from_a_backup_repeats_no_submission_and_loses_none_that_follows",
                    "given::an_applications_pool_and_client_serve_enqueues_workers_and_handlers_and_stay_open",
                ],
            ),
            fault(
                "three servers: the stream's leader is killed, then the majority",
                "goes on; without a majority enqueue is Ok",
                &[
                    "faults::nats::a_cluster_goes_on_without_the_streams_leader_and_without_a_majority_enqueues_are_kept",
                ],
            ),
            fault(
                "a permission is revoked and restored",
                "waits, and goes on",
                &[
                    "faults::nats::a_permission_that_is_taken_away_stops_deliveries_and_work_goes_on_when_it_is_back",
                    "roles::a_worker_that_may_not_listen_names_no_subject",
                ],
            ),
            fault(
                "messages five times and in any order",
                "each job runs once",
                &[
                    "faults::messages::tickets_that_come_five_times_and_in_any_order_run_their_jobs_once",
                    "run::a_delivery_of_a_job_that_runs_here_is_kept_for_the_ack_and_not_run",
                ],
            ),
            fault(
                "messages of jobs that are completed, cancelled or dead, of any time",
                "acknowledged; nothing runs",
                &["faults::messages::messages_for_jobs_that_have_ended_run_nothing_and_are_acknowledged"],
            ),
        ],
    ),
    (
        "Postgres",
        &[
            fault(
                "restarted; killed",
                "all complete, none charged",
                &["outage::postgres_is_restarted_in_the_middle_of_a_thousand_jobs"],
            ),
            fault(
                "one session is killed with SIGKILL",
                "recovers; all complete, none charged",
                &[
                    "faults::postgres::a_session_that_is_killed_takes_postgres_down_for_a_moment_and_nothing_else",
                ],
            ),
            fault(
                "every session is ended, every 50 ms",
                "all complete, none charged",
                &["faults::postgres::sessions_that_are_ended_all_the_time_lose_nothing"],
            ),
            fault(
                "frozen",
                "calls end in time; no pool is wedged",
                &["outage::postgres_that_does_not_answer_wedges_nothing"],
            ),
            fault(
                "away for twice `stale_after` with 200 jobs running; one of two workers dies meanwhile",
                "only the dead worker's jobs are lost",
                &["write_loss::after_an_outage_only_the_jobs_of_dead_workers_are_lost"],
            ),
            fault(
                "away for a while, at the defaults' proportions",
                "no healthy job is taken",
                &[
                    "vanished::no_healthy_job_is_taken_when_postgres_restarts",
                    "vanished::no_healthy_job_is_taken_when_nats_restarts",
                ],
            ),
            fault(
                "failover to a synchronous replica",
                "nothing is lost",
                &["faults::replicas::a_failover_to_a_synchronous_replica_loses_nothing"],
            ),
            fault(
                "failover to an asynchronous replica that lacks the last commits",
                "a token may come twice, a claim never: the stale worker writes nothing",
                &[
                    "faults::replicas::a_failover_that_loses_commits_repeats_jobs_and_lets_no_stale_worker_write",
                ],
            ),
            fault(
                "the synchronous standby is gone",
                "calls end in time; nothing happens twice",
                &[
                    "faults::replicas::without_its_synchronous_standby_calls_end_in_time_and_nothing_happens_twice",
                ],
            ),
            fault(
                "connected to a server that is read-only",
                "its connections are closed at its first refusal",
                &["faults::answers::a_server_that_was_read_only_for_a_while_is_left_as_soon_as_it_says_so"],
            ),
            fault(
                "no free connection",
                "enqueues say so; running jobs go on",
                &["faults::postgres::without_a_free_connection_enqueues_say_so_and_running_jobs_go_on"],
            ),
            fault(
                "the disk is full",
                "enqueues say so; workers wait; nothing is lost",
                &["faults::postgres::a_disk_that_is_full_refuses_enqueues_by_name_and_loses_nothing"],
            ),
            fault(
                "the schema's partition of the day is missing",
                "no completion is stopped",
                &["schema::history_is_kept_by_day_and_a_missing_day_stops_no_completion"],
            ),
            fault(
                "serializable or repeatable read by default",
                "all complete, none charged",
                &["faults::postgres::jobs_run_under_every_default_isolation_level"],
            ),
            fault(
                "lock and statement timeouts",
                "tried again; all complete",
                &["faults::postgres::lock_and_statement_timeouts_of_the_database_delay_and_lose_nothing"],
            ),
            fault(
                "deadlocks with others' transactions",
                "tried again, none charged",
                &[
                    "faults::postgres::deadlocks_with_others_transactions_are_tried_again",
                    "cancel::cancellations_and_batches_of_progress_never_wait_for_each_other_in_a_circle",
                ],
            ),
            fault(
                "a session sleeps in its transaction, holding rows",
                "one job waits, no other",
                &[
                    "faults::postgres::a_session_that_sleeps_in_its_transaction_holds_up_one_job",
                    "batches::many_locked_rows_delay_the_others_once",
                ],
            ),
            fault(
                "PgBouncer in transaction mode; before 1.21 in session mode",
                "everything works, with default settings; one that mixes up prepared statements (before 1.21) is named",
                &[
                    "faults::postgres::everything_works_behind_pgbouncer_in_the_mode_for_its_version",
                    "faults::postgres::a_pooler_that_mixes_up_prepared_statements_is_named",
                ],
            ),
            fault(
                "a newer schema; an older one, or none",
                "works; waits, unready, and says what to do",
                &[
                    "faults::postgres::a_worker_works_on_a_newer_schema_and_waits_for_an_older_one_to_be_migrated",
                    "schema::without_the_schema_every_program_says_to_migrate",
                ],
            ),
            fault(
                "a newer schema that this program cannot work with",
                "ends, and says so",
                &["faults::postgres::a_worker_that_is_too_old_for_the_schema_ends_and_says_so"],
            ),
            fault(
                "a migration behind a long transaction",
                "claims wait for at most half a second, between pauses; the session in the way is named",
                &[
                    "migrations::a_migration_behind_a_long_transaction_stops_no_worker",
                    "migrations::a_migration_that_never_gets_its_lock_says_who_holds_it",
                ],
            ),
            fault(
                "eight migrations at once",
                "each version once",
                &["schema::eight_migrations_at_once_apply_each_version_once"],
            ),
            fault(
                "a write is refused for a while (a right, a full index)",
                "written when it is mended",
                &["run::a_completion_that_postgres_refuses_for_a_while_is_written_when_it_is_mended"],
            ),
            fault(
                "a statement that never can be sent; SQL that ends its own session",
                "the attempt fails; in the end it is charged",
                &[
                    "faults::answers::a_statement_that_never_can_be_sent_is_the_attempts_failure",
                    "faults::answers::a_job_that_breaks_its_own_connection_again_and_again_is_charged_at_last",
                ],
            ),
            fault(
                "the database's clock jumps by an hour, either way",
                "no job is taken from its owner; nothing stops, and nothing is published again and again",
                &[
                    "faults::recovery::a_jump_of_the_databases_clock_takes_no_job_from_its_owner",
                    "faults::clock::a_clock_that_steps_back_and_forth_stops_nothing_and_storms_nowhere",
                ],
            ),
        ],
    ),
    (
        "Network",
        &[
            fault(
                "worker cut off from Postgres",
                "stops its handlers before others take the jobs; released afterwards",
                &[
                    "write_loss::a_worker_that_cannot_write_cancels_its_handlers_before_others_take_their_jobs_and_releases_them",
                    "write_loss::a_kind_that_keeps_running_completes_if_no_other_worker_took_its_job",
                ],
            ),
            fault(
                "a worker cannot reach one of the two servers",
                "the other workers leave its jobs alone",
                &["vanished::no_healthy_job_is_taken_when_its_worker_cannot_reach_one_of_the_servers"],
            ),
            fault(
                "worker cut off from NATS",
                "its jobs end",
                &["faults::network::jobs_end_while_their_worker_is_cut_off_from_nats"],
            ),
            fault(
                "worker cut off from both, for long",
                "others finish; no effect is doubled",
                &[
                    "faults::network::a_worker_that_is_cut_off_from_both_servers_for_long_leaves_its_jobs_to_others",
                ],
            ),
            fault(
                "worker cut off from both, for a moment",
                "nothing is lost or charged",
                &["faults::network::a_worker_that_is_cut_off_from_both_servers_for_a_moment_loses_nothing"],
            ),
            fault(
                "requests pass and answers do not, and the reverse",
                "no effect is doubled",
                &["faults::network::requests_without_answers_and_answers_without_requests_double_no_effect"],
            ),
            fault(
                "the connection is lost during COMMIT",
                "looked up; nothing done twice",
                &["faults::network::a_commit_whose_answer_is_lost_counts_and_nothing_is_done_twice"],
            ),
            fault(
                "half a second of latency to both servers",
                "nothing is reset",
                &["faults::nats::half_a_second_of_latency_to_both_servers_resets_nothing"],
            ),
            fault(
                "a second for each statement",
                "nothing is reset",
                &["faults::network::a_slow_database_resets_nothing"],
            ),
            fault(
                "a checkpoint is saved during an outage",
                "it reaches the next attempt",
                &["faults::answers::a_checkpoint_that_was_saved_during_an_outage_reaches_the_next_attempt"],
            ),
        ],
    ),
    (
        "Recovery and load",
        &[
            fault(
                "eight scanners and many stale jobs at once",
                "each is reset once",
                &["recover::n_scanners_at_once_reset_each_job_once"],
            ),
            fault(
                "a job shows a sign of life while it is being reset",
                "it is not reset",
                &["recover::a_job_that_shows_a_sign_of_life_while_it_is_being_reset_is_not_reset"],
            ),
            fault(
                "the oldest stale rows cannot be reset",
                "the others are",
                &["faults::recovery::rows_that_cannot_be_reset_stop_no_other_reset"],
            ),
            fault(
                "ten thousand jobs of a lost node",
                "each is reset once; a new job does not wait for them",
                &[
                    "faults::recovery::ten_thousand_jobs_of_a_lost_node_are_reset_and_a_new_job_does_not_wait_for_them",
                ],
            ),
            fault(
                "most jobs look stale at once, or after a gap",
                "recovery waits first",
                &[
                    "recover::after_a_gap_between_scans_live_owners_get_time_to_write",
                    "vanished::no_worker_is_judged_while_most_workers_look_gone",
                    "vanished::no_worker_is_judged_during_a_grace",
                ],
            ),
            fault(
                "a scanner freezes in the middle",
                "the others go on",
                &[
                    "faults::recovery::a_scanner_that_freezes_stops_no_other_scanner",
                    "faults::recovery::a_scanner_that_freezes_in_its_transaction_stops_no_other_scanner",
                ],
            ),
            fault(
                "a message comes again while the owner lives; the owner dies; no other message, no scanner",
                "that message comes back, and its worker takes the job over",
                &["recover::a_duplicate_that_meets_a_live_owner_stays_as_the_backstop"],
            ),
            fault(
                "every scanner is off",
                "redelivery takes the job over",
                &["recover::a_silent_job_is_taken_over_on_redelivery_with_every_scanner_switched_off"],
            ),
            fault("a backlog", "is not published again", &["recover::a_backlog_is_not_published_again"]),
            fault(
                "a million queued jobs, two workers under memory limits",
                "drained; nothing grows without bound",
                &["faults::load::a_million_jobs_are_drained_by_two_small_workers"],
            ),
            fault(
                "ten thousand jobs through two workers",
                "complete once each; nothing is left behind",
                &[
                    "outage::ten_thousand_jobs_through_two_workers_complete_once_each_and_leave_nothing_behind",
                ],
            ),
            fault(
                "a poison job among ten thousand good ones",
                "ends alone",
                &["faults::load::a_poison_job_among_ten_thousand_good_ones_ends_alone"],
            ),
            fault(
                "ten thousand jobs cancelled at once",
                "all cancelled",
                &["faults::load::ten_thousand_jobs_are_cancelled_at_once_queued_and_running"],
            ),
        ],
    ),
    ("Watchers", super::watchers::FAULTS),
    ("Lanes", super::lanes::FAULTS),
    ("Workers in other languages", super::foreign::FAULTS),
    ("Steps", super::steps::FAULTS),
    ("Groups and events", super::groups::FAULTS),
];
