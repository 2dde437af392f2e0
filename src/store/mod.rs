//! Store: the statements that tenure sends to Postgres. The rooms of capabilities have theirs beside them, in a file
//! `store.rs` each; one other module sends statements: `run::context::effects`, in the transactions of handlers.
//!
//! One file, one statement, with its contract on top. `ls src/store/job` is the state machine: every change of a job's
//! status, but for its creation by a tick of a schedule (`schedules/sql/tick.sql`).
//! A statement that shares text with others includes it: the line `-- include job/parts/end_attempt.sql` stands for
//! that file. `scripts/statement NAME` prints any statement whole, as tenure sends it. The other folders:
//!
//! | | |
//! |---|---|
//! | `job/forms` | the same acts for one job, or for jobs whose rows may be locked for long |
//! | `job/parts`, `read/parts`, `recover/parts`, `history/parts` | text that several statements include |
//! | `attempt` | a worker's questions about its own attempts, and an attempt's other writes |
//! | `recover` | missing messages, workers that are gone, turns and scans |
//! | `queue` | pauses and limits |
//! | `history` | finished jobs, retention, counts |
//! | `read` | views for people |
//! | `session` | limits of transactions, the clock, the schema |
//! | `test` | statements of `tenure::testing` |
//!
//! Every call goes through [`Store::rows`] or [`Store::in_transaction`]. They put a
//! deadline on it, and close the connection of a call that was cut off: sqlx 0.9 would hand it out again,
//! and a silently dead connection would wedge the pool.
//!
//! Not here: the meaning of the answers (`claim`, `settle`, `recover`).

pub(crate) mod batch;
mod call;
pub(crate) mod include;
pub(crate) mod rows;
mod jobs;
mod recovery;
mod refused;
mod retention;
mod queues;
pub(crate) mod views;
pub(crate) mod waiting;
mod handlers;
mod dead;
mod bench;
mod bench_pages;
mod testing;
mod migrate;
mod schema;
mod activity;
pub(crate) mod show;
mod kinds;

pub use activity::Unit;
pub use bench::{BenchCounters, BenchRelayed, BenchStarted, BenchState};
pub(crate) use call::Availability;
pub use call::{Isolation, Store, StoreError};
pub use dead::{DeadCount, DeadFilter, DeadLetter};
pub(crate) use handlers::HandlerPool;
pub use kinds::{DeadKind, FinishedKind, LiveKind};
pub use migrate::MigrateError;
pub use queues::QueueRow;
pub(crate) use queues::{Change, QueueLimit};
pub(crate) use retention::Purged;
pub(crate) use rows::{
    AttemptEnd, HostWorker, NewJob, PublishedBy, Refused, Registration, Suspect, Suspects, Turns,
};
pub use rows::{
    CancelAnswer, ClaimRequest, Completion, DueJob, EndedAttempt, ExecutionRow, JobRow, Keeps, LockPolicy,
    ProgressWrite, RecoveryRow,
};
pub use schema::{BASELINE, FUNCTIONS, MIGRATIONS, NEEDS};
pub use show::{
    DeadGroup, DeadMatches, Event, EventCount, EventFilter, JobAction, JobTexts, ListedJob, WaitingJobs,
    WhoRuns,
};
pub(crate) use testing::pool_of_test;
pub use views::{JobFilter, Schema, WorkerRow, WorkerState};
pub use waiting::{Finding, Fleet, QueueStats, Unserved};
pub(crate) use waiting::{Found, KindMessages, Misnamed, QueueSubmitted, Standing, Waiting};

/// The text of a statement or a part.
macro_rules! text {
    ($folder:literal, $name:literal) => {
        include_str!(concat!($folder, "/", $name, ".sql"))
    };
}

macro_rules! parts {
    ($($folder:literal $name:literal;)+) => {
        /// What statements include, by its path.
        const PARTS: &[(&str, &str)] = &[$((concat!($folder, "/", $name, ".sql"), text!($folder, $name))),+];
    };
}

/// Statements by their constants, each with its folder and its name, in the room that sends them; and a list of them.
macro_rules! statement_list {
    ($($constant:ident = $folder:literal $name:literal;)+) => {
        $(pub(crate) const $constant: &str = {
            const TEXT: &str = include_str!(concat!($folder, "/", $name, ".sql"));
            const WHOLE: [u8; $crate::store::include::length(TEXT)] = $crate::store::include::whole(TEXT);
            $crate::store::include::text(&WHOLE)
        };)+
        /// The statements of this room.
        pub(crate) const STATEMENTS: &[(&str, &str)] = &[$(($name, $constant)),+];
    };
}

pub(crate) use statement_list;

/// Every statement, under its name. For tests that prepare and explain them.
#[doc(hidden)]
pub fn statements() -> impl Iterator<Item = (&'static str, &'static str)> {
    [
        STATEMENTS,
        crate::audit::store::STATEMENTS,
        crate::doctor::store::STATEMENTS,
        #[cfg(feature = "gateway")]
        crate::gateway::store::STATEMENTS,
        crate::groups::store::STATEMENTS,
        crate::lanes::store::STATEMENTS,
        crate::logs::store::STATEMENTS,
        crate::quarantine::store::STATEMENTS,
        crate::redrives::store::STATEMENTS,
        crate::schedules::store::STATEMENTS,
        crate::steps::store::STATEMENTS,
        crate::tags::store::STATEMENTS,
        crate::watch::store::STATEMENTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

parts! {
    "history/parts" "activity_add";
    "history/parts" "activity_sums";
    "job/parts" "claim_set";
    "job/parts" "claim_unlimited";
    "job/parts" "claim_won";
    "job/parts" "complete_edges";
    "job/parts" "complete_forget";
    "job/parts" "complete_locked";
    "job/parts" "complete_mine";
    "job/parts" "complete_move";
    "job/parts" "complete_move_told";
    "job/parts" "complete_taken";
    "job/parts" "end_attempt";
    "job/parts" "ended_attempts";
    "job/parts" "enqueue_fresh";
    "job/parts" "locked_job";
    "job/parts" "lost_job";
    "job/parts" "silent_job";
    "read/parts" "can_cancel";
    "read/parts" "can_retry";
    "read/parts" "chosen_jobs";
    "read/parts" "in_lane";
    "read/parts" "dead_filter";
    "read/parts" "error_group";
    "read/parts" "error_line";
    "read/parts" "id_bounds";
    "read/parts" "job_columns";
    "read/parts" "job_filter";
    "read/parts" "tagged_jobs";
    "recover/parts" "waiting";
}

statement_list! {
    ENQUEUE = "job" "enqueue";
    ENQUEUE_SUBMITTED = "job/forms" "enqueue_submitted";
    ENQUEUE_PLAIN = "job/forms" "enqueue_plain";
    ENQUEUE_ONE = "job/forms" "enqueue_one";
    HELD_KEYS = "attempt" "held_keys";
    UNPUBLISHED = "recover" "unpublished";
    VISIBLE = "recover" "visible";
    CLAIM = "job" "claim";
    CLAIM_ONE = "job/forms" "claim_one";
    CLAIM_SKIP = "job/forms" "claim_skip";
    CLAIM_LIMITED = "job/forms" "claim_limited";
    EMPTY_SLOTS = "queue" "empty_slots";
    SET_EVENTS = "queue" "set_events";
    QUEUE_SETTINGS = "queue" "queue_settings";
    JOBS_PER_MESSAGE = "queue" "jobs_per_message";
    PAUSE_QUEUE = "queue" "pause_queue";
    RESUME_QUEUE = "queue" "resume_queue";
    LIMIT_QUEUE = "queue" "limit_queue";
    QUEUE_STANDING = "queue" "queue_standing";
    COUNT_QUEUED = "queue" "count_queued";
    LIST_QUEUES = "queue" "list_queues";
    MISSED = "attempt" "missed";
    UNANSWERED = "attempt" "unanswered";
    PROGRESS = "job" "progress";
    STILL_MINE = "attempt" "still_mine";
    LIMIT_IDLE = "session" "limit_idle";
    FENCE = "attempt" "fence";
    LIMIT_TRANSACTION = "session" "limit_transaction";
    LOCK_JOB = "attempt" "lock_job";
    END_TRANSACTION = "session" "end_transaction";
    ONCE = "attempt" "once";
    EFFECT = "attempt" "effect";
    EFFECT_RESULT = "attempt" "effect_result";
    RUNS_ALONE = "attempt" "runs_alone";
    COMPLETE = "job" "complete";
    COMPLETE_ONE = "job/forms" "complete_one";
    COMPLETE_SKIP = "job/forms" "complete_skip";
    COMPLETE_TOLD = "job/forms" "complete_told";
    COMPLETE_GROUPED = "job/forms" "complete_grouped";
    COMPLETE_GROUPED_TOLD = "job/forms" "complete_grouped_told";
    COMPLETE_IN = "job/forms" "complete_in";
    COMPLETE_IN_TOLD = "job/forms" "complete_in_told";
    COMPLETE_UNKEPT = "job" "complete_unkept";
    COMPLETE_UNKEPT_ONE = "job/forms" "complete_unkept_one";
    COMPLETE_UNKEPT_SKIP = "job/forms" "complete_unkept_skip";
    SETTLE = "job" "settle";
    SETTLE_SUSPENDED = "job/forms" "settle_suspended";
    SETTLED_AS = "attempt" "settled_as";
    WAS_RESET = "attempt" "was_reset";
    RESET_STALE = "job" "reset_stale";
    RESET_WORKERS = "job" "reset_workers";
    RESET_VANISHED = "job" "reset_vanished";
    TAKE_OVER = "job" "take_over";
    CANCEL = "job" "cancel";
    BURY = "job" "bury";
    REFUSE = "job" "refuse";
    PUT_OFF = "job" "put_off";
    TAKE_DUE = "recover" "take_due";
    DUE_IDS = "recover" "due_ids";
    EXPIRED_IDS = "recover" "expired_ids";
    LOST_IDS = "recover" "lost_ids";
    OWNED_IDS = "recover" "owned_ids";
    TAKE_TURNS = "recover" "take_turns";
    LEAVE_TURNS = "recover" "leave_turns";
    PUBLISHED_QUEUES = "recover" "published_queues";
    SUSPECTS = "recover" "suspects";
    DATABASE_TIME = "session" "database_time";
    ADD_MARK = "recover" "add_mark";
    PASSED_MARK = "recover" "passed_mark";
    RECLAIM_LOST = "recover" "reclaim_lost";
    SCAN_DUE = "recover" "scan_due";
    FOLLOW_CLOCK = "recover" "follow_clock";
    SCAN_GATE = "recover" "scan_gate";
    CREATE_PARTITIONS = "history" "create_partitions";
    MEASURE = "recover" "measure";
    MEASURE_ALONE = "recover" "measure_alone";
    KNOWN_JOBS = "recover" "known_jobs";
    NOTE_WAITING = "recover" "note_waiting";
    PURGE_GATE = "history" "purge_gate";
    PURGE_TURN = "history" "purge_turn";
    PURGE_DONE = "history" "purge_done";
    PURGE_DAY = "history" "purge_day";
    PURGE_ROWS = "history" "purge_rows";
    PURGE_CANCELLED = "history" "purge_cancelled";
    PURGE_OLD_DEAD = "history" "purge_old_dead";
    PURGE_TRACES = "history" "purge_traces";
    PURGE_KEYS = "history" "purge_keys";
    PURGE_EVENTS = "history" "purge_events";
    FLEET = "history" "fleet";
    REPORT = "history" "report";
    ACTIVITY = "history" "activity";
    THIN_ACTIVITY = "history" "thin_activity";
    NOTE_REFUSED = "attempt" "note_refused";
    REGISTER_WORKER = "recover" "register_worker";
    RENEW_WORKER = "recover" "renew_worker";
    FORGET_WORKERS = "recover" "forget_workers";
    WORKERS_OF_HOST = "recover" "workers_of_host";
    SILENT_WORKERS = "recover" "silent_workers";
    SUSPECT = "recover" "suspect";
    LIVE_JOBS = "read" "live_jobs";
    STATUSES = "read" "statuses";
    RUN_NOW = "job" "run_now";
    EXPIRE = "job" "expire";
    DEAD_LETTERS = "read" "dead_letters";
    DEAD_LETTER = "read" "dead_letter";
    DEAD_COUNTS = "read" "dead_counts";
    DEAD_IDS = "read" "dead_ids";
    REDRIVE = "job" "redrive";
    PURGE_DEAD = "history" "purge_dead";
    HANDLER_POOL = "session" "handler_pool";
    CAN_ENQUEUE = "session" "can_enqueue";
    SCHEMA_VERSION = "session" "schema_version";
    APPLIED_FUNCTIONS = "session" "applied_functions";
    NOTE_FUNCTION = "session" "note_function";
    GRANTABLE = "session" "grantable";
    BLOCKERS = "session" "blockers";
    UNINDEXED_PARTITIONS = "session" "unindexed_partitions";
    SERVER_ENCODING = "session" "server_encoding";
    UNBUILT_INDEXES = "session" "unbuilt_indexes";
    LIST_JOBS = "read" "list_jobs";
    LIST_TAGGED = "read/forms" "list_tagged";
    MATCH_JOBS = "read" "match_jobs";
    MATCH_TAGGED = "read/forms" "match_tagged";
    SHOW_JOB = "read" "show_job";
    CHECKPOINT_SIZE = "read" "checkpoint_size";
    LIST_WORKERS = "read" "list_workers";
    EXECUTIONS = "read" "executions";
    RECOVERIES = "read" "recoveries";
    RECOVERY_EVENTS = "read" "recovery_events";
    RECOVERY_COUNTS = "read" "recovery_counts";
    DEAD_GROUPS = "read" "dead_groups";
    DEAD_LATELY = "read" "dead_lately";
    COUNT_DEAD = "read" "count_dead";
    COUNT_WAITING = "read" "count_waiting";
    LIVE_KINDS = "read" "live_kinds";
    DEAD_KINDS = "read" "dead_kinds";
    FINISHED_KINDS = "read" "finished_kinds";
    JOB_TEXTS = "read" "job_texts";
    WHO_RUNS = "read" "who_runs";
    TIMES_THAT_PASS = "test" "times_that_pass";
    DUE_NOW = "test" "due_now";
    SKIP_SLEEPS = "test" "skip_sleeps";
    MOST_AT_ONCE = "test" "most_at_once";
    LOSE = "test" "lose";
}
