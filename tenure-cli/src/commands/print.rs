//! Print: writes to standard output, whose reader may go away, and keeps users' texts from steering the terminal.

use std::io::Write;

use serde::Serialize;

pub(super) use crate::timeline::seconds;
use tenure::{JobId, rows::JobRow};

/// Prints a line. Exits the program with 0 when the reader has gone (`| head`).
pub(super) fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A job's progress: percent, stage and message.
pub(super) fn progress(job: &JobRow) -> String {
    let percent = job.progress.map(|percent| format!("{percent:.0} %"));
    let parts = [percent, job.stage.clone(), job.message.clone()];
    printable(&parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · "))
}

/// A user's text without the characters that could steer the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if (c.is_control() && c != '\n') || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a character changes the direction of the text around it.
fn turns(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// The outcome for one job, as JSON.
pub(super) fn answer(id: JobId, answer: &impl Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(answer).unwrap_or_default();
    value["id"] = id.to_string().into();
    value
}
