//! Table: writes the faults of [`matrix`](super::matrix) into `docs/reliability.md`, and compares the two with each other
//! and with the tests.

use std::{fmt::Write, path::PathBuf};

use super::matrix::{FAULTS, Fault};
use crate::harness::docs_hold;

fn root() -> PathBuf {
    PathBuf::from(crate::harness::ROOT)
}

/// Why `make test` leaves a test out; `None` if it runs it. Panics if there is no such test.
fn ignored(test: &str) -> Option<String> {
    let (module, name) = test.rsplit_once("::").unwrap();
    let path = root().join("tests/it").join(module.replace("::", "/")).with_extension("rs");
    let path = if path.exists() { path } else { path.with_extension("").join("mod.rs") };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (before, _) = text
        .split_once(&format!("fn {name}()"))
        .unwrap_or_else(|| panic!("{}: no test {name}", path.display()));
    let attributes = before.rsplit_once("\n\n").map_or(before, |(_, last)| last);
    assert!(attributes.contains("#[tokio::test") || attributes.contains("#[test]"), "{test} is no test");
    let (_, reason) = attributes.split_once("#[ignore = \"")?;
    Some(reason.split_once('"').unwrap().0.to_owned())
}

fn table() -> String {
    let mut table =
        String::from("| | fault | what must come of it | tests in `tests/it` |\n|---|---|---|---|\n");
    let mut n = 0;
    for (area, faults) in FAULTS {
        writeln!(table, "| | **{area}** | | |").unwrap();
        for Fault { what, must, tests } in *faults {
            n += 1;
            let tests: Vec<_> = tests
                .iter()
                .map(|test| match ignored(test) {
                    None => format!("`{test}`"),
                    Some(reason) => format!("`{test}` ({reason}: `make faults`)"),
                })
                .collect();
            writeln!(table, "| F{n} | {what} | {must} | {} |", tests.join(", ")).unwrap();
        }
    }
    table
}

const BEGIN: &str = "<!-- the table of faults: written by tests/it/faults/matrix.rs -->\n";
const END: &str = "<!-- the end of the table of faults -->";

#[test]
fn the_table_of_faults_is_that_of_the_docs_and_each_of_its_tests_exists() {
    docs_hold("reliability.md", (BEGIN, END), &table(), "the_table_of_faults");
}
