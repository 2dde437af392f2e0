//! The rules of the code base, as tests.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use tenure::internals::FUNCTIONS;

use crate::harness::docs_hold;

/// The parts of the library, in layers, the lowest first. A part uses those below it, never its own layer or above.
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

/// The rooms of capabilities. A file of a room belongs to the part of its name, and otherwise to `client`: it is what
/// programs call.
const ROOMS: &[&str] = &[
    "audit",
    "batches",
    "cells",
    "codec",
    "doctor",
    "gateway",
    "groups",
    "lanes",
    "logs",
    "quarantine",
    "redrives",
    "schedules",
    "steps",
    "tags",
    "watch",
];

/// The part of the library to which a path belongs: `lanes::store::LaneRow` to `store`.
fn part<'p>(path: &[&'p str], rooms: &[&str]) -> &'p str {
    let Some(first) = path.first() else { return "" };
    let known = |name: &str| LIBRARY.iter().flat_map(|layer| *layer).any(|part| *part == name);
    match path.get(1) {
        _ if !rooms.contains(first) => first,
        Some(&file) if known(file) && !rooms.contains(&file) => file,
        Some(&"hinter") => "nats",
        _ if known(first) => first,
        _ => "client",
    }
}

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
    parts_use_what_is_below_them("src", LIBRARY, ROOMS);
    parts_use_what_is_below_them("tenure-cli/src", PROGRAM, &[]);
}

fn parts_use_what_is_below_them(folder: &str, layers: &[&[&str]], rooms: &[&str]) {
    let layer = |part: &str| layers.iter().position(|names| names.contains(&part));
    let src = root().join(folder);
    let mut wrong = Vec::new();
    for (path, text) in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let place: Vec<_> = inside.iter().map(|name| name.to_str().unwrap()).collect();
        // Tests of a step use the steps before and after it.
        if ["lib", "main"].contains(&place[0]) || is_of_tests(path.strip_prefix(&src).unwrap()) {
            continue;
        }
        let own = part(&place, rooms);
        let floor = layer(own).unwrap_or_else(|| panic!("{} has no layer", inside.display()));
        let mut text = format!("\n{text}");
        if rooms.contains(&place[0]) && place.len() == 2 {
            text = text.replace("\nuse super::", &format!("\nuse crate::{}::", place[0]));
        }
        let flat = code_of(&text);
        for used in flat.split("crate::").skip(1).flat_map(|rest| paths(tree(rest))) {
            let name = part(&used.split("::").collect::<Vec<_>>(), rooms);
            if name != own && layer(name).is_some_and(|theirs| theirs >= floor) {
                wrong.push(format!("{}: uses {used} of {name}, which is not below {own}", inside.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How far each room is from being one: what outside it would have to change if it went.
#[test]
fn the_table_of_rooms() {
    let src = root().join("src");
    let code: Vec<_> = sources(&src)
        .into_iter()
        .map(|(path, text)| (path.strip_prefix(&src).unwrap().to_owned(), text))
        .filter(|(inside, _)| {
            !is_of_tests(inside) && !inside.starts_with("lib.rs") && !inside.ends_with("store/mod.rs")
        })
        .map(|(inside, text)| (inside, code_of(&text)))
        .collect();
    let statements = [sql_below(&src), sql_below(&root().join("migrations/functions"))].concat();
    let mut table = "| room | Rust outside that uses it | SQL outside that names it |\n\
                     |---|---|---|"
        .to_owned();
    for room in ROOMS {
        let is_inside = |path: &Path| path.starts_with(room);
        let uses = |text: &str| {
            text.split("crate::").skip(1).flat_map(|rest| paths(tree(rest))).any(|used| {
                used == *room || used.strip_prefix(room).is_some_and(|rest| rest.starts_with("::"))
            })
        };
        let outside = code.iter().filter(|(path, text)| !is_inside(path) && uses(text));
        let rust: Vec<_> = outside.map(|(path, _)| path.to_string_lossy().into_owned()).collect();
        // Events that jobs wait for are of the room of groups.
        let folders: &[&str] = if *room == "groups" { &["groups", "waits"] } else { &[room] };
        let is_own =
            |path: &Path| folders.iter().any(|own| path.parent().unwrap().ends_with(own)) || is_inside(path);
        let functions = statements.iter().filter(|(path, _)| path.components().count() == 2 && is_own(path));
        let mut names: Vec<_> =
            functions.map(|(path, _)| path.file_stem().unwrap().to_str().unwrap()).collect();
        let baseline =
            fs::read_to_string(root().join(format!("migrations/baseline/{room}.sql"))).unwrap_or_default();
        let tables = baseline
            .lines()
            .filter_map(|line| line.strip_prefix("CREATE TABLE tenure.")?.split([' ', '(']).next());
        names.extend(tables);
        let says = |text: &str| {
            let words = text.lines().filter(|line| !line.trim_start().starts_with("--"));
            let mut words =
                words.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')));
            words.any(|word| word.strip_prefix("tenure.").is_some_and(|name| names.contains(&name)))
        };
        let outside = statements.iter().filter(|(path, text)| !is_own(path) && says(text));
        let sql: Vec<_> =
            outside.map(|(path, _)| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        let listed = |files: &[String]| match files {
            [] => "–".to_owned(),
            _ => format!("{}: `{}`", files.len(), files.join("` `")),
        };
        write!(table, "\n| `{room}` | {} | {} |", listed(&rust), listed(&sql)).unwrap();
    }
    docs_hold("architecture.md", ("<!-- rooms -->", "<!-- end of rooms -->"), &table, "the_table_of_rooms");
}

/// The SQL files below a folder, by their paths from there.
fn sql_below(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "sql") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(folder).unwrap().to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

/// The code of a file without its own tests, comments, line ends and spaces.
fn code_of(text: &str) -> String {
    let code = production(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<String>().replace(' ', "")
}

/// The path or the tree of paths with which a text begins.
fn tree(text: &str) -> &str {
    let mut depth = 0_i32;
    let end = text.find(|c: char| match c {
        '{' => {
            depth += 1;
            false
        }
        '}' => {
            depth -= 1;
            depth < 0
        }
        ',' => depth == 0,
        _ => depth == 0 && !(c.is_alphanumeric() || ['_', ':', '*'].contains(&c)),
    });
    &text[..end.unwrap_or(text.len())]
}

/// The paths of a tree: of `a::{b, c::d}` `a::b` and `a::c::d`.
fn paths(text: &str) -> Vec<String> {
    let Some((stem, mut rest)) = text.split_once('{') else { return vec![text.to_owned()] };
    let mut all = Vec::new();
    loop {
        let one = tree(rest);
        if one.is_empty() {
            return all;
        }
        all.extend(paths(one).into_iter().map(|path| format!("{stem}{path}")));
        rest = rest[one.len()..].trim_start_matches([',', '}']);
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
        let file = path.file_name().unwrap();
        let is_of_nats = inside.starts_with("nats/") || file == "nats.rs" || file == "hinter.rs";
        if !is_of_nats && inside != "tenure-cli/src/bench/foreign.rs" {
            let names = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .any(|line| line.contains("async_nats::"));
            assert!(!names, "{inside} names async_nats");
        }
        if !inside.starts_with("store/") && file != "store.rs" {
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
        "store/call/transaction.rs: let limit = AssertSqlSafe(format!(\"SET LOCAL statement_timeout = {within}; SET LOCAL jit = off\"));",
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
