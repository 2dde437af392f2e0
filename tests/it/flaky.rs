//! The script that runs the tests: what it does of a test that fails once, and of one that always fails.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use crate::harness::ROOT;

const PLANTED: &str = r#"
#[test]
fn passes() {}

#[test]
fn fails_once() {
    let mark = std::path::Path::new(env!("MARK"));
    if !mark.exists() {
        std::fs::write(mark, "").unwrap();
        panic!("the first time");
    }
}

#[test]
fn fails() {
    assert!(!cfg!(fails), "each time");
}
"#;

/// Runs the script over planted tests, and then over those that failed. Returns both outcomes.
fn planted(folder: &Path, with: &[&str]) -> [(Option<i32>, String); 2] {
    fs::create_dir_all(folder).unwrap();
    let [source, tests, cargo] = ["planted.rs", "planted", "cargo"].map(|name| folder.join(name));
    fs::write(&source, PLANTED).unwrap();
    let built = Command::new("rustc")
        .args(["--test", "--edition", "2024", "-o"])
        .args([&tests, &source])
        .args(with)
        .env("MARK", folder.join("mark"))
        .status()
        .unwrap();
    assert!(built.success());
    let shown = tests.display();
    fs::write(
        &cargo,
        format!("#!/bin/sh\necho '     Running unittests src/lib.rs ({shown})'\nexec {shown}\n"),
    )
    .unwrap();
    allow(&cargo);
    let run = |arguments: &[&str]| -> Output {
        let mut script = Command::new("python3");
        script.arg(Path::new(ROOT).join("scripts/test")).args(arguments);
        script
            .env("CARGO", &cargo)
            .env("CARGO_TARGET_DIR", folder)
            .env_remove("RUST_BACKTRACE")
            .output()
            .unwrap()
    };
    [run(&["--all-features"]), run(&["--again"])]
        .map(|done| (done.status.code(), String::from_utf8(done.stdout).unwrap()))
}

/// Lets a file be executed.
fn allow(script: &Path) {
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_test_that_fails_once_is_run_again_alone_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let [first, again] = planted(folder.path(), &[]);
    assert_eq!(first.0, Some(1), "{}", first.1);
    assert!(first.1.ends_with("2 passed, 1 failed\n"), "{}", first.1);
    assert_eq!(again.0, Some(0), "{}", again.1);
    assert!(again.1.starts_with("FLAKY fails_once\n--- at first:\n"), "{}", again.1);
    assert!(again.1.contains("the first time") && again.1.contains("--- alone:\n"), "{}", again.1);
    assert!(again.1.ends_with("again: 1 passed, 0 failed\n"), "{}", again.1);
}

#[test]
fn a_test_that_fails_again_fails_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let [first, again] = planted(folder.path(), &["--cfg", "fails"]);
    assert_eq!(first.0, Some(1), "{}", first.1);
    assert!(first.1.ends_with("1 passed, 2 failed\n"), "{}", first.1);
    assert_eq!(again.0, Some(1), "{}", again.1);
    assert!(again.1.contains("FLAKY fails_once\n") && again.1.contains("FAILED fails\n"), "{}", again.1);
    assert_eq!(again.1.matches("each time").count(), 2, "both outputs: {}", again.1);
}

/// A build that breaks, or a process that crashes, is no flaky test.
#[test]
fn a_run_that_breaks_otherwise_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, "#!/bin/sh\necho 'error: could not compile'\nexit 101\n").unwrap();
    allow(&cargo);
    let run = |argument: &str| {
        let mut script = Command::new("python3");
        script.arg(Path::new(ROOT).join("scripts/test")).arg(argument);
        script.env("CARGO", &cargo).env("CARGO_TARGET_DIR", folder.path()).output().unwrap()
    };
    assert_eq!(run("--all-features").status.code(), Some(1));
    let again = run("--again");
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stdout).unwrap().contains("FAILED cargo test"));
}
