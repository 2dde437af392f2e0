//! Print: writes to standard output, whose reader may go away, and keeps users' texts from steering the terminal.

use std::io::Write;

use serde::Serialize;

use crate::shapes::Answer;
pub(super) use crate::timeline::seconds;
use tenure::{JobId, Status, rows::JobRow};

/// Prints a line. Exits the program with 0 when the reader has gone (`| head`).
pub(super) fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// How far a job is. Nothing of one that is over: the last report of a completed one may say that half was done.
pub(super) fn percent(progress: Option<f32>, is_over: bool) -> Option<String> {
    progress.filter(|_| !is_over).map(|percent| format!("{percent:.0} %"))
}

/// A job's progress: percent, stage and message.
pub(super) fn progress(job: &JobRow) -> String {
    let percent = percent(job.progress, job.status == Status::Completed);
    let parts = [percent, job.stage.clone(), job.message.clone()];
    let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    brief(&parts.join(" · "), usize::MAX)
}

/// A user's text on one line, for a list: its first line with at most `most` characters. `…` stands for the rest.
pub(super) fn brief(text: &str, most: usize) -> String {
    let text = printable(text.trim());
    let first = text.lines().next().unwrap_or_default();
    if first.len() == text.len() && first.chars().count() <= most {
        return text;
    }
    let kept: String = first.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// A text in lines of this width; all lines but the first begin with `indent`. A word that is longer stays whole.
pub(super) fn wrapped(text: &str, width: u16, indent: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        let is_first = line.trim().is_empty();
        if !is_first && line.chars().count() + 1 + word.chars().count() > usize::from(width) {
            lines.push(std::mem::replace(&mut line, format!("{indent}{word}")));
        } else {
            line.extend([if is_first { "" } else { " " }, word]);
        }
    }
    lines.push(line);
    lines.join("\n")
}

/// A user's text without the characters that could steer the terminal.
pub(super) fn printable(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\t', "    ");
    text.chars().map(|c| if (c.is_control() && c != '\n') || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a character changes the direction of the text around it.
fn turns(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// The outcome for one job, as JSON.
pub(super) fn answer(id: JobId, outcome: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(Answer { id, outcome }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_text_breaks_between_words() {
        assert_eq!(wrapped("one two  three\nfour", 9, "  "), "one two\n  three\n  four");
        assert_eq!(wrapped("unbreakable is long", 5, ""), "unbreakable\nis\nlong");
        assert_eq!(wrapped("", 5, "  "), "");
    }

    #[test]
    fn a_text_of_many_lines_is_one_line_in_a_list() {
        for (text, shown) in [
            ("short", "short"),
            ("\n first \r\n\tsecond\n", "first…"),
            ("exactly ten", "exactly t…"),
            ("exactly 10", "exactly 10"),
            ("", ""),
        ] {
            assert_eq!(brief(text, 10), shown, "{text:?}");
        }
        assert_eq!(printable("a\r\n\tb\u{1b}[2J"), "a\n    b\u{fffd}[2J");
    }
}
