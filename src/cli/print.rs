//! Print: to standard output, whose reader may have had enough, and without steering the terminal.

use std::io::Write;

use serde::Serialize;

pub(super) use crate::timeline::seconds;
use crate::{JobId, JobRow};

/// Prints a line. When nobody reads any more (`| head`), the program is done.
pub(super) fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// How far a job is, in its handler's words.
pub(super) fn progress(job: &JobRow) -> String {
    let percent = job.progress.map(|percent| format!("{percent:.0} %"));
    let parts = [percent, job.stage.clone(), job.message.clone()];
    printable(&parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · "))
}

/// A text of a user's, without what could steer the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if (c.is_control() && c != '\n') || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether it changes the direction of the text around it.
fn turns(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// What was done to one job, as JSON.
pub(super) fn answer(id: JobId, answer: &impl Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(answer).unwrap_or_default();
    value["id"] = id.to_string().into();
    value
}
