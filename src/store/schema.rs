//! Schema: the files of `migrations/`, in the order in which `migrate.rs` applies them.

/// A migration: version, name, SQL.
pub(super) type Migration = (i64, &'static str, &'static str);

/// The version of the baseline. Migrations 1 to 30 of older checkouts made the same tables.
pub(super) const BASELINE_VERSION: i64 = 30;

/// The checksum of migration 30 of those checkouts: a database that has it is taken over as it is.
pub(super) const TAKEN_OVER: [u8; 32] = [
    0x43, 0xb5, 0xfb, 0xc3, 0x17, 0xc7, 0x37, 0x58, 0x47, 0xcb, 0x92, 0x73, 0xbe, 0x2a, 0x4e, 0x9c, 0x4f,
    0xe2, 0xc4, 0x76, 0x61, 0x22, 0x09, 0x2d, 0x9b, 0xfa, 0x90, 0x88, 0x7e, 0xbc, 0x3e, 0x30,
];

/// The checksum that ledgers have of the baseline: that of its files at their release. Their comments have been written
/// since, and a test holds their statements.
pub(super) const BASELINE_CHECKSUM: [u8; 32] = [
    0x58, 0x6a, 0x6a, 0x97, 0x06, 0xaf, 0x96, 0x10, 0xa8, 0x5e, 0xba, 0x36, 0xd1, 0x32, 0xeb, 0xa9, 0x14,
    0x13, 0x8a, 0x8d, 0x2a, 0xb0, 0x30, 0xb6, 0xef, 0x76, 0x37, 0x91, 0x17, 0xa6, 0xc9, 0xdc,
];

/// The roles, and the grants to them.
pub(super) const ROLES: &str = include_str!("../../postgres/roles.sql");

macro_rules! files {
    ($folder:literal, $($path:literal)+) => {
        &[$(($path, include_str!(concat!("../../migrations/", $folder, "/", $path, ".sql")))),+]
    };
}

/// The migrations after the baseline. Append-only; a released one never changes.
pub const MIGRATIONS: &[Migration] = &[
    (31, "older_forms", include_str!("../../migrations/0031_older_forms.sql")),
    (32, "one_trigger_for_lanes", include_str!("../../migrations/0032_one_trigger_for_lanes.sql")),
    (33, "moved_queues", include_str!("../../migrations/0033_moved_queues.sql")),
    (34, "looks_in_parts", include_str!("../../migrations/0034_looks_in_parts.sql")),
    (35, "looks_from", include_str!("../../migrations/0035_looks_from.sql")),
    (36, "notes_that_rest", include_str!("../../migrations/0036_notes_that_rest.sql")),
    (37, "options_from_the_type", include_str!("../../migrations/0037_options_from_the_type.sql")),
    (38, "findings", include_str!("../../migrations/0038_findings.sql")),
];

/// The schema that this program needs.
pub const NEEDS: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// The tables of a fresh database, by subject; each with its indexes, triggers and views.
pub const BASELINE: &[(&str, &str)] = files! {
    "baseline",
    "jobs"
    "keys"
    "history"
    "attempts"
    "tags"
    "logs"
    "queues"
    "workers"
    "recovery"
    "schedules"
    "lanes"
    "groups"
    "redrives"
    "quarantine"
    "gateway"
    "audit"
    "activity"
    "views"
};

/// The functions, each in its own file under its name. None changes its arguments or its result: a function with others
/// gets another name, and the old one stays while the release before calls it.
pub const FUNCTIONS: &[(&str, &str)] = files! {
    "functions",
    "attempt/cancel"
    "attempt/check_growth"
    "attempt/complete"
    "attempt/end_queued"
    "attempt/fence"
    "attempt/hold"
    "attempt/is_own"
    "attempt/limit_idle"
    "attempt/once"
    "attempt/once_result"
    "attempt/once_store"
    "attempt/progress"
    "attempt/raise_lost"
    "audit/purge_audit"
    "clock/follow_clock"
    "clock/stored_times"
    "enqueue/check_unseen_jobs"
    "enqueue/create_jobs"
    "enqueue/enqueue"
    "enqueue/enqueue_many"
    "enqueue/fault_in_fields"
    "enqueue/fault_in_job"
    "enqueue/fault_in_options"
    "enqueue/fault_in_tags"
    "enqueue/fault_in_times"
    "enqueue/is_key"
    "enqueue/options_of"
    "enqueue/read_options"
    "enqueue/replace_job"
    "enqueue/take_key"
    "enqueue/take_lasting_keys"
    "enqueue/take_room"
    "enqueue/take_unique_keys"
    "enqueue/unpublished"
    "enqueue/valid_traceparent"
    "groups/add_followers"
    "groups/cancel_followers"
    "groups/check_new_jobs"
    "groups/defer_locked_jobs"
    "groups/defer_redriven_jobs"
    "groups/edges_to_mend"
    "groups/find_open_edges"
    "groups/first_note"
    "groups/follow_one_job"
    "groups/forget_settled_notes"
    "groups/jobs_per_message"
    "groups/judge_followers"
    "groups/judge_step_jobs"
    "groups/keep_cancelled"
    "groups/link_jobs"
    "groups/lock_edges"
    "groups/lock_followers"
    "groups/mend_groups"
    "groups/note_group_end"
    "groups/read_group_ends"
    "groups/redriven_at"
    "groups/release_followers"
    "groups/release_held_jobs"
    "groups/release_into_lanes"
    "groups/reopen_edges"
    "groups/rest_group_note"
    "groups/restore_followers"
    "groups/settle_edges"
    "groups/settle_edges_at"
    "groups/settle_noted_edges"
    "groups/sweep_groups"
    "groups/take_group_notes"
    "groups/wake_jobs"
    "groups/wake_step_jobs"
    "lanes/admit"
    "lanes/adopt_jobs"
    "lanes/count_room"
    "lanes/create_free_lanes"
    "lanes/forget_lanes"
    "lanes/free_slots"
    "lanes/hold_in_lane"
    "lanes/hold_new_jobs"
    "lanes/keep_slot"
    "lanes/lock_named_lanes"
    "lanes/look_from"
    "lanes/lost_slots"
    "lanes/offered_jobs"
    "lanes/pass_over_lanes"
    "lanes/place_anew"
    "lanes/place_due_jobs"
    "lanes/put_lanes"
    "lanes/release_jobs"
    "lanes/remove_lanes"
    "lanes/require_lanes"
    "lanes/sweep_lanes"
    "lanes/tend_lanes"
    "quarantine/has_quarantines"
    "redrives/has_redrives"
    "redrives/note_redriven_ends"
    "redrives/redrive"
    "redrives/redrive_failure"
    "redrives/redrive_next"
    "redrives/tend_redrive"
    "redrives/tend_redrives"
    "retention/check_age"
    "retention/create_history_partitions"
    "retention/forget_traces"
    "retention/id_of_time"
    "retention/keep_last_executions"
    "retention/purge_cancelled"
    "retention/purge_day"
    "retention/purge_dead"
    "retention/purge_events"
    "retention/purge_keys"
    "retention/purge_rows"
    "retention/purge_traces"
    "waits/await_event"
    "waits/signal"
    "waits/signal_by"
    "waits/suspended_for"
};

/// The functions that statements of this program call: it does not start on a schema that lacks one.
pub(super) const CALLED_FUNCTIONS: &[&str] = &[
    "purge_audit",
    "follow_clock",
    "stored_times",
    "take_key",
    "unpublished",
    "add_followers",
    "jobs_per_message",
    "keep_cancelled",
    "link_jobs",
    "mend_groups",
    "release_followers",
    "rest_group_note",
    "settle_edges",
    "sweep_groups",
    "admit",
    "adopt_jobs",
    "forget_lanes",
    "look_from",
    "put_lanes",
    "remove_lanes",
    "require_lanes",
    "sweep_lanes",
    "tend_lanes",
    "has_quarantines",
    "has_redrives",
    "redrive",
    "tend_redrives",
    "create_history_partitions",
    "forget_traces",
    "id_of_time",
    "keep_last_executions",
    "purge_cancelled",
    "purge_day",
    "purge_dead",
    "purge_events",
    "purge_keys",
    "purge_rows",
    "purge_traces",
    "await_event",
    "signal",
    "signal_by",
    "suspended_for",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::statements;

    #[test]
    fn the_list_of_called_functions_is_whole() {
        let names = FUNCTIONS.iter().map(|(path, _)| path.rsplit('/').next().unwrap_or(path));
        let is_called = |name: &&str| {
            let call = format!("tenure.{name}(");
            statements().any(|(_, sql)| sql.contains(&call))
        };
        assert_eq!(names.filter(is_called).collect::<Vec<_>>(), CALLED_FUNCTIONS);
    }
}
