//! Print: to standard output, whose reader may have had enough.

use std::io::Write;

/// Prints a line. When nobody reads any more (`| head`), the program is done.
pub(super) fn line(text: impl std::fmt::Display) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
