//! Store: every statement that tenure sends to Postgres. One other module sends them: `run::context::effects`, in the
//! transactions of handlers.
//!
//! One file, one statement, with its contract on top. `ls src/store/job` is the state machine: every change of a job's
//! status, but for its creation by a tick of a schedule (`queue/tick.sql`).
//! A statement that shares text with others includes it: the line `-- include job/parts/end_attempt.sql` stands for
//! that file. `scripts/statement NAME` prints any statement whole, as tenure sends it. The other folders:
//!
//! | | |
//! |---|---|
//! | `job/forms` | the same acts for one job, or for jobs whose rows may be locked for long |
//! | `job/parts`, `read/parts`, `recover/parts`, `history/parts` | text that several statements include |
//! | `attempt` | a worker's questions about its own attempts, and an attempt's other writes |
//! | `recover` | missing messages, workers that are gone, turns and scans |
//! | `queue` | pauses, limits, schedules |
//! | `lane` | lanes: their settings, and the release of held jobs |
//! | `quarantine` | kinds that are watched, and those that mostly fail |
//! | `gateway` | workers behind a gateway: their rows, and their claims |
//! | `history` | finished jobs, retention, counts |
//! | `read`, `doctor` | views for people |
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
mod include;
mod rows;
mod jobs;
mod recovery;
mod gateway;
mod retention;
mod queues;
mod schedules;
mod views;
mod waiting;
mod watch;
mod doctor;
mod handlers;
mod steps;
mod audit;
mod dead;
mod logs;
mod quarantines;
mod tags;
mod redrives;
mod bench;
mod bench_pages;
mod testing;
mod migrate;
mod schema;
pub(crate) mod groups;
mod lanes;
mod activity;
mod show;
mod kinds;

pub use activity::Unit;
pub use audit::{AuditFilter, AuditRow};
pub use bench::{BenchCounters, BenchRelayed, BenchStarted, BenchState};
pub(crate) use call::Availability;
pub use call::{Isolation, Store, StoreError};
pub(crate) use dead::DeadLately;
pub use dead::{DeadCount, DeadFilter, DeadLetter};
pub use doctor::UnservedSchedule;
pub(crate) use doctor::{Holder, JobsSeen, PostgresSeen, QueueSeen, RightsSeen, WorkerSeen};
pub use groups::{GroupEdge, GroupJob, Signalled, WaitsFor};
pub(crate) use handlers::HandlerPool;
pub use kinds::{DeadKind, FinishedKind, LiveKind};
pub use lanes::{HeldFor, LaneRow, LanesRow};
pub(crate) use lanes::{LanesSeen, NewLanes};
pub use logs::LogRow;
pub(crate) use logs::LogWrite;
pub use migrate::MigrateError;
pub use quarantines::QuarantineRow;
pub(crate) use quarantines::{KindCounts, ProbeAnswer, QuarantineRule, WatchedKind};
pub use queues::QueueRow;
pub(crate) use queues::{Change, QueueLimit};
pub(crate) use redrives::NewRedrive;
pub use redrives::RedriveRow;
pub(crate) use retention::Purged;
pub(crate) use rows::{
    AttemptEnd, HostWorker, NewJob, PublishedBy, RareOptions, Refused, Registration, RuleBroken, Suspect,
    Suspects, Turns,
};
pub use rows::{
    CancelAnswer, ClaimRequest, Completion, DueJob, EndedAttempt, ExecutionRow, JobRow, Keeps, LockPolicy,
    ProgressWrite, RecoveryRow, StepRow,
};
pub(crate) use schedules::{DueSchedule, NewSchedule, Put};
pub use schedules::{Replaces, ScheduleRow};
pub use schema::{BASELINE, FUNCTIONS, MIGRATIONS, NEEDS};
pub use show::{
    DeadGroup, DeadMatches, Event, EventCount, EventFilter, JobAction, JobTexts, ListedJob, WaitingJobs,
    WhoRuns,
};
pub(crate) use steps::{Recorded, Recording, Step, StepWrite};
pub(crate) use testing::pool_of_test;
pub use views::{JobFilter, Schema, WorkerRow, WorkerState};
pub use waiting::{Fleet, QueueStats, Unserved};
pub(crate) use waiting::{Found, KindMessages, Misnamed, QueueSubmitted, Standing, Waiting};
pub(crate) use watch::EndsPage;
pub use watch::{JobEnd, JobUpdate};

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

macro_rules! statements {
    ($($constant:ident = $folder:literal $name:literal;)+) => {
        $(pub(crate) const $constant: &str = {
            const TEXT: &str = text!($folder, $name);
            const WHOLE: [u8; include::length(TEXT)] = include::whole(TEXT);
            include::text(&WHOLE)
        };)+
        /// Every statement, under its name. For tests that prepare and explain them.
        #[doc(hidden)]
        pub const STATEMENTS: &[(&str, &str)] = &[$(($name, $constant)),+];
    };
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

statements! {
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
    DUE_SCHEDULES = "queue" "due_schedules";
    TICK = "queue" "tick";
    PUT_SCHEDULE = "queue" "put_schedule";
    LIST_SCHEDULES = "queue" "list_schedules";
    PAUSE_SCHEDULE = "queue" "pause_schedule";
    RESUME_SCHEDULE = "queue" "resume_schedule";
    REMOVE_SCHEDULE = "queue" "remove_schedule";
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
    STEPS = "attempt" "steps";
    RECORD_STEPS = "attempt" "record_steps";
    WRITE_LOGS = "attempt" "write_logs";
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
    PURGE_AUDIT = "history" "purge_audit";
    NOTE_ACT = "history" "note_act";
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
    LOOKS = "read" "looks";
    ENDS = "read" "ends";
    ENDS_SNAPSHOT = "read" "ends_snapshot";
    RUN_NOW = "job" "run_now";
    EXPIRE = "job" "expire";
    ADMIT = "lane" "admit";
    TEND_LANES = "lane" "tend_lanes";
    PUT_LANES = "lane" "put_lanes";
    ADOPT_JOBS = "lane" "adopt_jobs";
    REMOVE_LANES = "lane" "remove_lanes";
    FORGET_LANES = "lane" "forget_lanes";
    LANE_SETTINGS = "lane" "lane_settings";
    SET_LANE = "lane" "set_lane";
    LIST_LANES = "lane" "list_lanes";
    HELD_FOR = "lane" "held_for";
    LANES_OVERDUE = "lane" "lanes_overdue";
    SWEEP_LANES = "lane" "sweep_lanes";
    LINK_JOBS = "group" "link_jobs";
    ADD_EDGES = "group" "add_edges";
    ADD_FOLLOWERS = "group" "add_followers";
    BEHIND_OWN = "group" "behind_own";
    JOIN_EDGES = "group" "join_edges";
    KEEP_CANCELLED = "group" "keep_cancelled";
    RELEASE_FOLLOWERS = "group" "release_followers";
    MEND_GROUPS = "group" "mend_groups";
    SWEEP_GROUPS = "group" "sweep_groups";
    OUTPUTS = "group" "outputs";
    STEP_STATES = "group" "step_states";
    AWAIT_EVENT = "group" "await_event";
    SIGNAL = "group" "signal";
    SIGNAL_BY = "group" "signal_by";
    WAITS_FOR = "group" "waits_for";
    GRAPH = "group" "graph";
    NODES = "group" "nodes";
    GATEWAY_KEY = "gateway" "gateway_key";
    HOST_OF_WORKER = "gateway" "host_of_worker";
    RENEW_FOREIGN = "gateway" "renew_foreign";
    CLAIMED_JOB = "gateway" "claimed_job";
    CLAIMS_OF = "gateway" "claims_of";
    OWNERS = "gateway" "owners";
    DEAD_LETTERS = "read" "dead_letters";
    DEAD_LETTER = "read" "dead_letter";
    DEAD_COUNTS = "read" "dead_counts";
    DEAD_IDS = "read" "dead_ids";
    REDRIVE = "job" "redrive";
    LIST_AUDIT = "read" "list_audit";
    PUT_QUARANTINE = "quarantine" "put_quarantine";
    REMOVE_QUARANTINE = "quarantine" "remove_quarantine";
    END_QUARANTINE = "quarantine" "end_quarantine";
    LIST_QUARANTINES = "quarantine" "list_quarantines";
    WATCHED_KINDS = "quarantine" "watched_kinds";
    REPORT_QUARANTINE = "quarantine" "report_quarantine";
    TAKE_PROBE = "quarantine" "take_probe";
    TEND_QUARANTINES = "quarantine" "tend_quarantines";
    CALL_QUARANTINED = "quarantine" "call_quarantined";
    START_REDRIVE = "redrive" "start_redrive";
    LIST_REDRIVES = "redrive" "list_redrives";
    STOP_REDRIVE = "redrive" "stop_redrive";
    TEND_REDRIVES = "redrive" "tend_redrives";
    PURGE_DEAD = "history" "purge_dead";
    HANDLER_POOL = "session" "handler_pool";
    SCHEMA_VERSION = "session" "schema_version";
    APPLIED_FUNCTIONS = "session" "applied_functions";
    NOTE_FUNCTION = "session" "note_function";
    GRANTABLE = "session" "grantable";
    BLOCKERS = "session" "blockers";
    UNINDEXED_PARTITIONS = "session" "unindexed_partitions";
    UNBUILT_INDEXES = "session" "unbuilt_indexes";
    LIST_JOBS = "read" "list_jobs";
    LIST_TAGGED = "read/forms" "list_tagged";
    MATCH_JOBS = "read" "match_jobs";
    MATCH_TAGGED = "read/forms" "match_tagged";
    TAGS_OF = "read" "tags_of";
    JOB_LOGS = "read" "job_logs";
    SHOW_JOB = "read" "show_job";
    CHECKPOINT_SIZE = "read" "checkpoint_size";
    LIST_WORKERS = "read" "list_workers";
    EXECUTIONS = "read" "executions";
    LIST_STEPS = "read" "list_steps";
    RECOVERIES = "read" "recoveries";
    RECOVERY_EVENTS = "read" "recovery_events";
    RECOVERY_COUNTS = "read" "recovery_counts";
    DEAD_GROUPS = "read" "dead_groups";
    DEAD_LATELY = "read" "dead_lately";
    COUNT_DEAD = "read" "count_dead";
    COUNT_WAITING = "read" "count_waiting";
    SCHEDULE_JOBS = "read" "schedule_jobs";
    UNSERVED_SCHEDULES = "read" "unserved_schedules";
    LIVE_KINDS = "read" "live_kinds";
    DEAD_KINDS = "read" "dead_kinds";
    FINISHED_KINDS = "read" "finished_kinds";
    JOB_TEXTS = "read" "job_texts";
    WHO_RUNS = "read" "who_runs";
    VERIFY = "read" "verify";
    DOCTOR_SERVER = "doctor" "doctor_server";
    DOCTOR_HOLDERS = "doctor" "doctor_holders";
    DOCTOR_RIGHTS = "doctor" "doctor_rights";
    DOCTOR_JOBS = "doctor" "doctor_jobs";
    DOCTOR_WORKERS = "doctor" "doctor_workers";
    DOCTOR_QUEUES = "doctor" "doctor_queues";
    DOCTOR_LANES = "doctor" "doctor_lanes";
    DOCTOR_KINDS = "doctor" "doctor_kinds";
    DOCTOR_WRITE = "doctor" "doctor_write";
    TIMES_THAT_PASS = "test" "times_that_pass";
    DUE_NOW = "test" "due_now";
    LOSE = "test" "lose";
}
