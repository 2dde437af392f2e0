//! The tests of tenure against real servers. One program, so that they share what they start.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, missing_docs, reason = "nothing here is published")]
#![allow(
    clippy::case_sensitive_file_extension_comparisons,
    clippy::format_push_string,
    clippy::items_after_statements,
    clippy::similar_names,
    clippy::type_complexity,
    reason = "a test reads better with its parts where they are used"
)]

mod harness;
#[path = "../kit/mod.rs"]
mod kit;
mod scenarios;

mod additive;
mod again;
mod audit;
mod api;
mod batches;
mod bench;
mod cancel;
mod cells;
mod causes;
mod claim;
mod cli;
mod cli_json;
mod cli_list;
mod cli_terminal;
mod compose;
mod config;
mod crash;
mod dashboard;
mod dead;
mod deploys;
mod disaster;
mod doctor;
mod effects;
mod effects_sql;
mod ends;
#[allow(dead_code, reason = "the model's own tests walk; this program takes single steps")]
#[path = "../model/explore.rs"]
mod explore;
mod enqueue;
mod example;
mod exec;
mod faults;
mod flaky;
mod fleet;
mod given;
mod guide;
mod health;
mod gateway;
mod hooks;
mod lanes;
mod lanes_seen;
mod layers;
mod import;
mod life;
mod limits;
mod migrations;
mod log;
mod logs;
mod options;
mod outage;
mod plans;
mod producers;
mod properties;
mod publish;
mod quarantine;
mod queues;
mod recover;
mod redrives;
mod retention;
mod rights;
mod roles;
mod run;
mod schedules;
mod schema;
mod sealed;
mod security;
mod shutdown;
mod sql;
mod sql_attempts;
mod sql_lanes;
mod stay;
mod events;
mod groups;
mod handle_batch;
mod steps;
mod submit;
mod tags;
mod testing;
mod tidy;
mod together;
#[cfg(feature = "otel")]
mod traces;
mod unkept;
mod vanished;
mod verify;
mod visible;
mod watch;
mod write_loss;
