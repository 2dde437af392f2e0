//! Store: every statement that tenure sends to Postgres, and nothing else does.
//!
//! One file, one statement or a part of one, with its contract on top. `ls src/store/job` is the state machine:
//! what can happen to a job. The other folders:
//!
//! | | |
//! |---|---|
//! | `attempt` | what a worker asks of its own attempts, and what an attempt writes besides |
//! | `recover` | messages that are missing, workers that are gone, turns and scans |
//! | `queue` | pauses, limits, schedules |
//! | `history` | what has ended, and when it leaves |
//! | `read`, `doctor` | what people ask |
//! | `session` | limits of transactions, the clock, the schema |
//!
//! Every call goes through [`Store::rows`] or [`Store::in_transaction`], which put a
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
    AttemptEnd, CancelAnswer, ClaimRequest, Completion, DueJob, EndedAttempt, HostWorker, LockPolicy, NewJob,
    ProgressWrite, PublishedBy, Refused, Registration, Route, RuleBroken, Suspect, Suspects, Turns,
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
    ($($name:ident = $($folder:ident $part:literal)+;)+) => {
        $(pub(crate) const $name: &str =
            concat!($(include_str!(concat!(stringify!($folder), "/", $part, ".sql")), "\n"),+);)+
        /// Every statement, under the name of its first file. For tests that prepare and explain them.
        #[doc(hidden)]
        pub const STATEMENTS: &[(&str, &str)] = &[$((concat!($($part, " "),+), $name)),+];
    };
}

statements! {
    ENQUEUE = job "enqueue";
    ENQUEUE_PLAIN = job "enqueue_plain";
    ENQUEUE_ONE = job "enqueue_one";
    HELD_KEYS = attempt "held_keys";
    UNPUBLISHED = recover "unpublished";
    VISIBLE = recover "visible";
    CLAIM = job "claim" job "claim_wait" job "claim_unlimited" job "claim_won";
    CLAIM_ONE = job "claim" job "claim_one" job "claim_unlimited" job "claim_won";
    CLAIM_SKIP = job "claim" job "claim_skip" job "claim_unlimited" job "claim_won";
    CLAIM_LIMITED = job "claim" job "claim_skip" job "claim_limited" job "claim_won";
    LOCK_QUEUE = queue "lock_queue";
    QUEUE_ROOM = queue "queue_room";
    TAKE_SLOTS = queue "take_slots";
    QUEUE_SETTINGS = queue "queue_settings";
    PAUSE_QUEUE = queue "pause_queue";
    RESUME_QUEUE = queue "resume_queue";
    LIMIT_QUEUE = queue "limit_queue";
    QUEUE_LIMITS = queue "queue_limits";
    COUNT_QUEUED = queue "count_queued";
    LIST_QUEUES = queue "list_queues";
    DUE_SCHEDULES = queue "due_schedules";
    TICK = queue "tick";
    PUT_SCHEDULE = queue "put_schedule";
    LIST_SCHEDULES = queue "list_schedules";
    PAUSE_SCHEDULE = queue "pause_schedule";
    RESUME_SCHEDULE = queue "resume_schedule";
    REMOVE_SCHEDULE = queue "remove_schedule";
    MISSED = attempt "missed";
    UNANSWERED = attempt "unanswered";
    PROGRESS = job "progress";
    STILL_MINE = attempt "still_mine";
    LIMIT_IDLE = session "limit_idle";
    FENCE = attempt "fence";
    LIMIT_TRANSACTION = session "limit_transaction";
    LIMIT_STATEMENT = session "limit_statement";
    HOLD = attempt "hold";
    END_TRANSACTION = session "end_transaction";
    ONCE = attempt "once";
    EFFECT = attempt "effect";
    EFFECT_RESULT = attempt "effect_result";
    COMPLETE = job "complete" job "complete_move";
    COMPLETE_ONE = job "complete_one" job "complete_move";
    COMPLETE_SKIP = job "complete_locked" job "complete_skip" job "complete_taken" job "complete_move";
    COMPLETE_IN = job "complete_locked" job "complete_wait" job "complete_taken" job "complete_move";
    COMPLETE_IN_TOLD = job "complete_locked" job "complete_wait" job "complete_taken" job "complete_told_move";
    SETTLE = job "settle" job "end_attempt";
    SETTLED_AS = attempt "settled_as";
    RESET_STALE = job "reset_stale" job "end_attempt";
    RESET_WORKERS = job "reset_workers" job "end_attempt";
    RESET_VANISHED = job "reset_vanished" job "end_attempt";
    TAKE_OVER = job "take_over" job "end_attempt";
    CANCEL = job "cancel" job "end_attempt" job "cancel_asked";
    BURY_UNKNOWN = job "bury_unknown" job "end_attempt";
    REFUSE = job "refuse";
    PUT_OFF = job "put_off";
    TAKE_DUE = recover "take_due";
    TAKE_TURNS = recover "take_turns";
    LEAVE_TURNS = recover "leave_turns";
    PUBLISHED_QUEUES = recover "published_queues";
    SUSPECTS = recover "suspects";
    DATABASE_TIME = session "database_time";
    ADD_MARK = recover "add_mark";
    PASSED_MARK = recover "passed_mark";
    RECLAIM_LOST = recover "reclaim_lost";
    SCAN_DUE = recover "scan_due";
    SCAN_GATE = recover "scan_gate";
    CREATE_PARTITIONS = history "create_partitions";
    MEASURE = recover "measure";
    PURGE_GATE = history "purge_gate";
    PURGE_TURN = history "purge_turn";
    PURGE_DONE = history "purge_done";
    PURGE_DAY = history "purge_day";
    PURGE_ROWS = history "purge_rows";
    PURGE_CANCELLED = history "purge_cancelled";
    PURGE_OLD_DEAD = history "purge_old_dead";
    PURGE_TRACES = history "purge_traces";
    PURGE_KEYS = history "purge_keys";
    PURGE_EVENTS = history "purge_events";
    FLEET = history "fleet";
    REPORT = history "report";
    ACTIVITY = history "activity";
    FORGET_ACTIVITY = history "forget_activity";
    NOTE_REFUSED = attempt "note_refused";
    REGISTER_WORKER = recover "register_worker";
    RENEW_WORKER = recover "renew_worker";
    FORGET_WORKERS = recover "forget_workers";
    WORKERS_OF_HOST = recover "workers_of_host";
    SILENT_WORKERS = recover "silent_workers";
    SUSPECT = recover "suspect";
    LIVE_JOBS = read "live_jobs";
    STANDING = read "standing";
    RUN_NOW = job "run_now";
    DEAD_LETTERS = read "dead_letters";
    DEAD_LETTER = read "dead_letter";
    DEAD_COUNTS = read "dead_counts";
    DEAD_IDS = read "dead_ids";
    REDRIVE = job "redrive";
    PURGE_DEAD = history "purge_dead";
    SCHEMA_VERSION = session "schema_version";
    IN_THE_WAY = session "in_the_way";
    UNBUILT_INDEXES = session "unbuilt_indexes";
    LIST_JOBS = read "list_jobs";
    SHOW_JOB = read "show_job";
    CHECKPOINT_SIZE = read "checkpoint_size";
    LIST_WORKERS = read "list_workers";
    EXECUTIONS = read "executions";
    RECOVERIES = read "recoveries";
    RECOVERY_EVENTS = read "recovery_events";
    RECOVERY_COUNTS = read "recovery_counts";
    DEAD_GROUPS = read "dead_groups";
    COUNT_DEAD = read "count_dead";
    JOB_TEXTS = read "job_texts";
    VERIFY = read "verify";
    DOCTOR_SERVER = doctor "doctor_server";
    DOCTOR_HOLDERS = doctor "doctor_holders";
    DOCTOR_RIGHTS = doctor "doctor_rights";
    DOCTOR_JOBS = doctor "doctor_jobs";
    DOCTOR_WORKERS = doctor "doctor_workers";
    DOCTOR_QUEUES = doctor "doctor_queues";
    ADVANCE = test "advance";
    DUE_NOW = test "due_now";
    LOSE = test "lose" job "end_attempt";
}
