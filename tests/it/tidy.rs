//! The rules of the code base, as tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use tenure::internals::FUNCTIONS;

/// The rooms of the library, in layers, the lowest first. A room uses those below it, never its own layer or above.
const LIBRARY: &[&[&str]] = &[
    &["job", "proof", "dev"],
    &["config"],
    &["observe"],
    &["store"],
    &["nats"],
    &["enqueue", "run", "recover"],
    &["client", "deliver"],
    &["gateway"],
    &["worker"],
    &["cells"],
    &["testing", "internals"],
];

/// The rooms of the program.
const PROGRAM: &[&[&str]] = &[
    &["timeline", "lanes", "shapes", "access"],
    &["exec", "dashboard", "api", "bench"],
    &["serve"],
    &["commands"],
];

fn sources(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(path, text);
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(crate::harness::ROOT)
}

/// The sources of the library and of the program.
fn of_both_crates() -> BTreeMap<PathBuf, String> {
    let mut all = sources(&root().join("src"));
    all.extend(sources(&root().join("tenure-cli/src")));
    all
}

/// The name of a library's file below `src`; of the program's, below the repository.
fn inside(path: &Path) -> String {
    let below = path.strip_prefix(root()).unwrap();
    below.strip_prefix("src").unwrap_or(below).to_string_lossy().into_owned()
}

/// The part of a file before its own tests. An item for tests among the others belongs to it.
fn production(text: &str) -> &str {
    let is_of_tests = |at: &usize| {
        let mut lines = text[*at..].lines().skip_while(|line| line.starts_with("#["));
        lines.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    let own_tests = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at + 1).find(is_of_tests);
    &text[..own_tests.unwrap_or(text.len())]
}

/// Whether a file of the library is one of those that only its tests use, such as `proof/place.rs`.
fn is_of_tests(inside: &Path) -> bool {
    inside.ends_with("tests.rs")
        || ["proof/place.rs", "proof/fuzz.rs"].iter().any(|own| inside.ends_with(own))
}

#[test]
fn dependencies_point_down() {
    rooms_use_what_is_below_them("src", LIBRARY);
    rooms_use_what_is_below_them("tenure-cli/src", PROGRAM);
}

fn rooms_use_what_is_below_them(folder: &str, layers: &[&[&str]]) {
    let layer = |module: &str| layers.iter().position(|names| names.contains(&module));
    let src = root().join(folder);
    for (path, text) in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        // Tests of a step use the steps before and after it.
        if ["lib", "main"].contains(&module) || is_of_tests(inside) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("{module} has no layer"));
        // `use crate::{a::B, c}` over several lines, and paths in the code.
        let flat = production(&text).replace(['\n', ' '], "");
        let mut used: Vec<String> = Vec::new();
        for part in flat.split("crate::").skip(1) {
            if let Some(group) = part.strip_prefix('{') {
                let mut depth = 0;
                let mut name = String::new();
                let mut names = vec![];
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => names.push(std::mem::take(&mut name)),
                        _ if depth == 0 => name.push(c),
                        _ => {}
                    }
                }
                names.push(name);
                used.extend(names.iter().filter_map(|name| name.split("::").next()).map(str::to_owned));
            } else {
                used.push(part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            }
        }
        for name in used {
            let Some(theirs) = layer(&name) else { continue };
            let fine = theirs < own || name == module;
            assert!(fine, "{}: uses {name}, which is not below it", inside.display());
        }
    }
}

#[test]
fn sql_and_nats_have_one_home_each() {
    for (path, text) in of_both_crates() {
        let inside = inside(&path);
        if is_of_tests(&path) {
            continue;
        }
        let code = production(&text);
        // The bench's worker behind a gateway plays a user's program, which has only a client of NATS.
        if !inside.starts_with("nats/") && inside != "tenure-cli/src/bench/foreign.rs" {
            let names = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .any(|line| line.contains("async_nats::"));
            assert!(!names, "{inside} names async_nats");
        }
        if !inside.starts_with("store/") {
            for word in ["SELECT ", "INSERT INTO", "DELETE FROM", "UPDATE tenure"] {
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                assert!(!lines.into_iter().any(|line| line.contains(word)), "{inside} holds SQL");
            }
        }
    }
}

/// SQL that is not a constant contains only names of tenure's own, and no input.
#[test]
fn no_sql_is_built_from_input() {
    let mut places = Vec::new();
    for (path, text) in of_both_crates() {
        let inside = inside(&path);
        if is_of_tests(&path) {
            continue;
        }
        let lines = production(&text).lines().filter(|line| !line.trim_start().starts_with("use "));
        places.extend(
            lines
                .filter(|line| line.contains("AssertSqlSafe("))
                .map(|line| format!("{inside}: {}", line.trim())),
        );
    }
    let known = [
        // The tables that `bench` creates, and its own numbers.
        "store/bench.rs: self.rows(query(AssertSqlSafe(drop))).await?;",
        "store/bench.rs: self.rows(query(AssertSqlSafe(create))).await?;",
        "store/bench.rs: let insert = query(AssertSqlSafe(insert.as_str())).bind(Uuid::now_v7()).bind(payload);",
        "store/bench.rs: let rows = self.rows(query(AssertSqlSafe(seconds))).await?;",
        // One of three levels, and a number.
        "store/call/transaction.rs: AssertSqlSafe(format!(",
        "store/call/transaction.rs: let limit = AssertSqlSafe(format!(\"SET LOCAL statement_timeout = {}\", milliseconds(within)));",
        "store/call/transaction.rs: sqlx::raw_sql(AssertSqlSafe(locks)).execute(&mut *transaction).await?;",
        // The files under migrations/.
        "store/migrate.rs: raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(&mut connection).await?;",
        "store/migrate.rs: let done = raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(transaction).await;",
        // Databases of tests, whose names `testing` makes up.
        "store/testing.rs: self.rows(query(AssertSqlSafe(create))).await.map(drop)",
        "store/testing.rs: self.rows(query(AssertSqlSafe(drop_it))).await.map(drop)",
        // The columns that `stored_times` lists, and a number.
        "store/testing.rs: async move { raw_sql(AssertSqlSafe(sql)).execute(transaction).await.map(drop) }.boxed()",
    ];
    assert_eq!(places, known);
}

#[test]
fn every_file_says_what_it_is_and_none_has_grown_too_long() {
    for folder in ["src", "tenure-cli/src", "tests/it", "examples"] {
        for (path, text) in sources(&root().join(folder)) {
            assert!(text.starts_with("//! "), "{} does not open with what it is", path.display());
            let lines = production(&text).lines().count();
            let most = if folder == "tests/it" { 800 } else { 720 };
            assert!(lines <= most, "{} has {lines} lines, more than {most}", path.display());
            // A table row cannot be broken, and a test's SQL reads better whole.
            let is_long =
                |line: &str| line.chars().count() > 120 && !line.contains("/// |") && !line.contains("//! |");
            let long = text.lines().position(is_long).filter(|_| folder != "tests/it" && !is_of_tests(&path));
            assert_eq!(long, None, "{}: a line of more than 120 characters", path.display());
        }
    }
}

/// The image is built with the oldest supported Rust, so that newer features do not slip in.
#[test]
fn every_file_that_names_a_version_of_rust_names_that_of_cargo_toml() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let cargo = read("Cargo.toml");
    let said =
        |text: &str| text.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let msrv = said(&cargo);
    assert_eq!(said(&read("benches/peers/Cargo.toml")), msrv);
    for (path, text) in [
        ("tenure-cli/Cargo.toml", format!("rust-version = \"{msrv}\"")),
        ("Dockerfile", format!("FROM rust:{msrv}-")),
        ("README.md", format!("Rust {msrv} or later")),
        ("docs/tutorial.md", format!("Rust {msrv} or later")),
        ("scripts/setup", format!("install Rust {msrv} or later")),
    ] {
        let (page, start) = (read(path), text.split(&msrv).next().unwrap().to_owned());
        assert_eq!(
            page.matches(&start).count(),
            page.matches(&text).count(),
            "{path} names another than {msrv}"
        );
        assert!(page.contains(&text), "{path} does not name {msrv}");
    }
    assert!(cargo.contains("\n[package.metadata.docs.rs]\nfeatures = ["));
}

/// "Invariants, each held by the test of that name".
#[test]
fn every_invariant_that_a_module_names_has_its_test() {
    let mut tests: String = sources(&root().join("tests/it")).into_values().collect();
    let steps = sources(&root().join("src"));
    // The tests beside the step.
    tests.extend(steps.iter().filter(|(path, _)| path.ends_with("tests.rs")).map(|(_, text)| text.as_str()));
    for (path, text) in steps {
        for line in text.lines().take_while(|line| line.starts_with("//!")) {
            let Some(name) = line.strip_prefix("//! - `").and_then(|rest| rest.split('`').next()) else {
                continue;
            };
            let name = name.trim_end_matches("()");
            assert!(
                tests.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}(")),
                "{}: no test {name}",
                path.display()
            );
        }
    }
}

/// SQL as Rust: a reader finds the text of a function in its file, and sees it whole.
#[test]
fn sql_has_short_functions_and_short_lines() {
    for (path, sql) in FUNCTIONS {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("--");
        let (_, function) = sql.split_once("CREATE OR REPLACE FUNCTION").unwrap();
        let (function, _) = function.rsplit_once("$$;").unwrap();
        let lines = function.lines().filter(is_code).count();
        assert!(lines <= 80, "{path} has {lines} lines of code, more than 80");
    }
    for (path, text) in files(&root().join("migrations")) {
        let long = text.lines().position(|line| line.chars().count() > 120).map(|at| at + 1);
        assert_eq!(long, None, "{path}: a line of more than 120 characters");
    }
}

/// Files of a user's own that a page tells them to make, or of what they install.
const OTHERS_FILES: &[&str] = &[
    "clients/node/dist",
    "greeter.mjs",
    "greeter.py",
    "nats.go",
    "schema/compose-spec.json",
    "tenure.toml",
    "migrations/NNNN_name.sql",
];

/// A path in backticks is that of a file, or its end: `store/mod.rs`.
#[test]
fn every_path_on_a_page_is_that_of_a_file() {
    let known = files(&root());
    let is_known = |path: &str| {
        known.keys().any(|file| file == path || format!("/{file}").ends_with(&format!("/{path}")))
    };
    let is_folder = |path: &str| known.keys().any(|file| format!("/{file}").contains(&format!("/{path}/")));
    let mut seen = 0;
    for (page, text) in known.iter().filter(|(path, _)| path.ends_with(".md") && *path != "CHANGELOG.md") {
        let prose: String = text.split("\n```").step_by(2).collect();
        for path in prose.split('`').skip(1).step_by(2) {
            let is_plain = path.chars().all(|c| c.is_alphanumeric() || "_./-".contains(c));
            let kind = path.rsplit_once('.').map_or("", |(_, kind)| kind);
            let is_file = ["conf", "go", "json", "md", "mjs", "py", "rs", "sh", "sql", "toml", "yaml", "yml"]
                .contains(&kind);
            let top = path.split('/').next().unwrap_or_default();
            let is_inside =
                path.contains('/') && known.keys().any(|file| file.starts_with(&format!("{top}/")));
            if !is_plain || !(is_file || is_inside) || path.starts_with('/') || OTHERS_FILES.contains(&path) {
                continue;
            }
            let path = path.trim_start_matches("./").trim_start_matches("../").trim_end_matches('/');
            assert!(is_known(path) || is_folder(path), "{page} names {path}, which is no file");
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen} paths");
}

/// The text files of the repository below a folder, by their path in it.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if ![".git", ".tools", "node_modules", "target", "dist", "__pycache__"].contains(&name.as_str()) {
                found.extend(files(&path));
            }
        } else {
            let bytes = fs::read(&path).unwrap_or_default();
            let inside = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            found.insert(inside, String::from_utf8(bytes).unwrap_or_default());
        }
    }
    found
}
