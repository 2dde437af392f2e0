//! Store: every statement that tenure sends to Postgres, and nothing else does.
//!
//! One file, one thing that can happen to a job, with its contract on top: `ls src/store/*.sql` is the
//! state machine. Every call goes through [`Store::rows`] or [`Store::in_transaction`], which put a
//! deadline on it and close the connection of a call that was cut off: sqlx 0.9 would hand it out again,
//! and a silently dead connection would wedge the pool.
//!
//! Not here: what the answers mean (`claim`, `settle`, `recover`).

mod call;
mod rows;
mod jobs;
mod recovery;
mod retention;
mod queues;
mod schedules;
mod views;
mod doctor;
mod dead;
#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "testing")]
mod testing;
mod migrate;
mod activity;
#[cfg(feature = "cli")]
mod show;

#[cfg(feature = "cli")]
pub(crate) use activity::Minute;
#[cfg(feature = "cli")]
pub(crate) use bench::{BenchCounters, BenchStarted, BenchState};
pub(crate) use call::Store;
pub use call::{Isolation, StoreError};
pub use dead::{DeadCount, DeadFilter, DeadLetter};
pub(crate) use doctor::{Holder, JobsSeen, PostgresSeen, QueueSeen, RightsSeen, WorkerSeen};
pub use migrate::MigrateError;
pub(crate) use migrate::NEEDS;
pub(crate) use queues::Change;
pub use queues::QueueRow;
pub(crate) use retention::Purged;
#[cfg(feature = "cli")]
pub(crate) use rows::Fleet;
pub(crate) use rows::{
    AttemptEnd, CancelAnswer, ClaimRequest, Completion, DueJob, EndedAttempt, HostWorker, NewJob, OfLocked,
    ProgressWrite, Refused, Registration, Route, RuleBroken, Suspect, Told, Turns,
};
pub use rows::{ExecutionRow, JobRow, RecoveryRow};
pub use schedules::ScheduleRow;
pub(crate) use schedules::{DueSchedule, NewSchedule};
#[cfg(feature = "cli")]
pub(crate) use show::{DeadGroup, Event, EventCount, EventFilter, JobTexts};
#[cfg(feature = "testing")]
pub(crate) use testing::pool_of_test;
pub(crate) use views::Schema;
pub use views::{JobFilter, WorkerRow, WorkerState};

macro_rules! statements {
    ($($name:ident = $($part:literal)+;)+) => {
        $(pub(crate) const $name: &str = concat!($(include_str!(concat!($part, ".sql")), "\n"),+);)+
        /// Every statement, under the name of its first file. For tests that prepare and explain them.
        #[doc(hidden)]
        pub const STATEMENTS: &[(&str, &str)] = &[$((concat!($($part, " "),+), $name)),+];
    };
}

statements! {
    ENQUEUE = "enqueue";
    ENQUEUE_PLAIN = "enqueue_plain";
    ENQUEUE_ONE = "enqueue_one";
    HELD_KEYS = "held_keys";
    UNPUBLISHED = "unpublished";
    VISIBLE = "visible";
    CLAIM = "claim" "claim_wait" "claim_unlimited" "claim_won";
    CLAIM_ONE = "claim" "claim_one" "claim_unlimited" "claim_won";
    CLAIM_SKIP = "claim" "claim_skip" "claim_unlimited" "claim_won";
    CLAIM_LIMITED = "claim" "claim_skip" "claim_limited" "claim_won";
    LOCK_QUEUE = "lock_queue";
    QUEUE_ROOM = "queue_room";
    TAKE_SLOTS = "take_slots";
    QUEUE_SETTINGS = "queue_settings";
    PAUSE_QUEUE = "pause_queue";
    RESUME_QUEUE = "resume_queue";
    LIMIT_QUEUE = "limit_queue";
    QUEUE_LIMITS = "queue_limits";
    COUNT_QUEUED = "count_queued";
    LIST_QUEUES = "list_queues";
    DUE_SCHEDULES = "due_schedules";
    TICK = "tick";
    PUT_SCHEDULE = "put_schedule";
    LIST_SCHEDULES = "list_schedules";
    PAUSE_SCHEDULE = "pause_schedule";
    RESUME_SCHEDULE = "resume_schedule";
    REMOVE_SCHEDULE = "remove_schedule";
    MISSED = "missed";
    UNANSWERED = "unanswered";
    PROGRESS = "progress";
    STILL_MINE = "still_mine";
    LIMIT_IDLE = "limit_idle";
    FENCE = "fence";
    LIMIT_TRANSACTION = "limit_transaction";
    LIMIT_STATEMENT = "limit_statement";
    HOLD = "hold";
    END_TRANSACTION = "end_transaction";
    ONCE = "once";
    EFFECT = "effect";
    EFFECT_RESULT = "effect_result";
    COMPLETE = "complete" "complete_move";
    COMPLETE_ONE = "complete_one" "complete_move";
    COMPLETE_SKIP = "complete_locked" "complete_skip" "complete_taken" "complete_move";
    COMPLETE_IN = "complete_locked" "complete_wait" "complete_taken" "complete_move";
    COMPLETE_IN_TOLD = "complete_locked" "complete_wait" "complete_taken" "complete_told_move";
    SETTLE = "settle" "end_attempt";
    SETTLED_AS = "settled_as";
    RESET_STALE = "reset_stale" "end_attempt";
    RESET_WORKERS = "reset_workers" "end_attempt";
    RESET_VANISHED = "reset_vanished" "end_attempt";
    TAKE_OVER = "take_over" "end_attempt";
    CANCEL = "cancel" "end_attempt" "cancel_asked";
    BURY_UNKNOWN = "bury_unknown" "end_attempt";
    REFUSE = "refuse";
    PUT_OFF = "put_off";
    STILL_WAITS = "still_waits";
    TAKE_DUE = "take_due";
    TAKE_TURNS = "take_turns";
    LEAVE_TURNS = "leave_turns";
    SUSPECTS = "suspects";
    DATABASE_TIME = "database_time";
    ADD_MARK = "add_mark";
    PASSED_MARK = "passed_mark";
    RECLAIM_LOST = "reclaim_lost";
    SCAN_DUE = "scan_due";
    SCAN_GATE = "scan_gate";
    CREATE_PARTITIONS = "create_partitions";
    MEASURE = "measure";
    PURGE_GATE = "purge_gate";
    PURGE_TURN = "purge_turn";
    PURGE_DONE = "purge_done";
    PURGE_DAY = "purge_day";
    PURGE_ROWS = "purge_rows";
    PURGE_CANCELLED = "purge_cancelled";
    PURGE_OLD_DEAD = "purge_old_dead";
    PURGE_TRACES = "purge_traces";
    PURGE_KEYS = "purge_keys";
    PURGE_EVENTS = "purge_events";
    FLEET = "fleet";
    REPORT = "report";
    ACTIVITY = "activity";
    FORGET_ACTIVITY = "forget_activity";
    NOTE_REFUSED = "note_refused";
    REGISTER_WORKER = "register_worker";
    RENEW_WORKER = "renew_worker";
    FORGET_WORKERS = "forget_workers";
    WORKERS_OF_HOST = "workers_of_host";
    SILENT_WORKERS = "silent_workers";
    SUSPECT = "suspect";
    LIVE_JOBS = "live_jobs";
    STANDING = "standing";
    RUN_NOW = "run_now";
    DEAD_LETTERS = "dead_letters";
    DEAD_LETTER = "dead_letter";
    DEAD_COUNTS = "dead_counts";
    DEAD_IDS = "dead_ids";
    REDRIVE = "redrive";
    PURGE_DEAD = "purge_dead";
    SCHEMA_VERSION = "schema_version";
    IN_THE_WAY = "in_the_way";
    UNBUILT_INDEXES = "unbuilt_indexes";
    LIST_JOBS = "list_jobs";
    SHOW_JOB = "show_job";
    CHECKPOINT_SIZE = "checkpoint_size";
    LIST_WORKERS = "list_workers";
    EXECUTIONS = "executions";
    RECOVERIES = "recoveries";
    RECOVERY_EVENTS = "recovery_events";
    RECOVERY_COUNTS = "recovery_counts";
    DEAD_GROUPS = "dead_groups";
    COUNT_DEAD = "count_dead";
    JOB_TEXTS = "job_texts";
    VERIFY = "verify";
    DOCTOR_SERVER = "doctor_server";
    DOCTOR_HOLDERS = "doctor_holders";
    DOCTOR_RIGHTS = "doctor_rights";
    DOCTOR_JOBS = "doctor_jobs";
    DOCTOR_WORKERS = "doctor_workers";
    DOCTOR_QUEUES = "doctor_queues";
    ADVANCE = "advance";
    DUE_NOW = "due_now";
    LOSE = "lose" "end_attempt";
}
