//! Include: puts a statement's parts in their places at compile time.
//!
//! A line `-- include PATH` stands for that file of [`PARTS`]; a part may include other parts.

use super::PARTS;

const INCLUDE: &[u8] = b"-- include ";

/// Returns the length in bytes of a statement with its parts.
pub(crate) const fn length(text: &str) -> usize {
    expand(text, &mut [], 0)
}

/// Returns a statement with its parts.
pub(crate) const fn whole<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let mut whole = [0; LENGTH];
    expand(text, &mut whole, 0);
    whole
}

/// Returns the bytes of [`whole`] as text.
///
/// # Panics
///
/// Never: a part replaces a whole line, which keeps the text UTF-8.
pub(crate) const fn text(whole: &[u8]) -> &str {
    match str::from_utf8(whole) {
        Ok(text) => text,
        Err(_) => panic!("a statement is not UTF-8"),
    }
}

/// Writes a text with its parts into `whole`, unless that is empty, from `at` on. Returns where it ends.
const fn expand(text: &str, whole: &mut [u8], mut at: usize) -> usize {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(line_length(rest));
        if let Some(part) = included(line) {
            at = expand(part, whole, at);
        } else {
            if !whole.is_empty() {
                whole.split_at_mut(at).1.split_at_mut(line.len()).0.copy_from_slice(line);
            }
            at += line.len();
        }
        rest = after;
    }
    at
}

/// Returns the length in bytes of the first line, with its end.
const fn line_length(text: &[u8]) -> usize {
    let mut length = 0;
    while length < text.len() {
        length += 1;
        if text[length - 1] == b'\n' {
            break;
        }
    }
    length
}

/// Returns the part that a line stands for.
///
/// # Panics
///
/// If [`PARTS`] lacks the part: the program then does not compile.
const fn included(line: &[u8]) -> Option<&'static str> {
    if line.len() <= INCLUDE.len() || !is_same(line.split_at(INCLUDE.len()).0, INCLUDE) {
        return None;
    }
    let path = line.split_at(INCLUDE.len()).1.trim_ascii_end();
    let mut n = 0;
    while n < PARTS.len() {
        if is_same(path, PARTS[n].0.as_bytes()) {
            return Some(PARTS[n].1);
        }
        n += 1;
    }
    panic!("a statement includes a file that PARTS lacks")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut n = 0;
    while n < one.len() && n < other.len() && one[n] == other[n] {
        n += 1;
    }
    n == one.len() && n == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_holds_its_parts_and_theirs() {
        const TEXT: &str = "SELECT\n-- include job/parts/lost_job.sql\n  FROM j";
        const WHOLE: [u8; length(TEXT)] = whole(TEXT);
        let (start, end) = text(&WHOLE).split_once("-- lost_job: ").unwrap_or_default();
        assert_eq!(start, "SELECT\n");
        assert!(end.contains("\n-- locked_job: ") && end.ends_with(" j.lane, j.priority\n  FROM j"), "{end}");
        assert!(!end.contains("include"));
    }

    #[test]
    fn a_comment_about_an_include_is_not_an_include() {
        for text in
            ["", "-- include ", "-- includes job/parts/lost_job.sql\n", "  -- include job/parts/lost_job.sql"]
        {
            assert_eq!(length(text), text.len(), "{text:?}");
        }
    }
}
