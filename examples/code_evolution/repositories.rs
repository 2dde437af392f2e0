//! Repositories to analyze: this one, the one that `REPO` names, and large generated ones, the same in every run.

use std::{
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

/// Pseudo-random numbers, the same in every run (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Returns the repositories on this machine: `REPO`, and the one that this program was built from.
pub(crate) fn found() -> Vec<PathBuf> {
    let has_commits = |folder: &Path| {
        let mut git = Command::new("git");
        git.arg("-C").arg(folder).args(["rev-parse", "--quiet", "--verify", "HEAD"]);
        git.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let mut found = Vec::new();
    if let Some(own) = std::env::var_os("REPO").filter(|own| !own.is_empty()) {
        // The job itself clones a URL; a path is checked now.
        if own.to_string_lossy().contains("://") || has_commits(Path::new(&own)) {
            found.push(std::fs::canonicalize(&own).unwrap_or(own.into()));
        } else {
            eprintln!("REPO={} is neither a git repository nor a URL", Path::new(&own).display());
        }
    }
    let this = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    if has_commits(this) {
        found.push(this.to_owned());
    }
    found
}

/// Makes a repository of `commits` commits: a hundred files in five languages, seven authors; each commit
/// rewrites a part of some files. `git fast-import` writes it in a second or two.
pub(crate) fn make(folder: &Path, seed: u64, commits: u64) -> anyhow::Result<()> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(arguments).stderr(Stdio::null());
        command
    };
    std::fs::create_dir_all(folder)?;
    let made = git(&["init", "-q", "-b", "main", "--bare"]).status().context("run git; is it installed?")?;
    ensure!(made.success(), "git init failed in {}", folder.display());
    let mut import = git(&["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn()?;
    let mut out = BufWriter::new(import.stdin.take().context("git's standard input")?);
    let mut numbers = Numbers(seed);
    let mut sizes = [0_u64; 100];
    // Made once: there are millions of lines.
    let lines: Vec<Vec<String>> = (0..100)
        .map(|file| (0..400).map(|line| format!("line {line} of file {file}, version ")).collect())
        .collect();
    for n in 0..commits {
        let author = numbers.below(7);
        let at = 1_500_000_000 + n * 3_600;
        let message = format!("change {n}");
        writeln!(out, "commit refs/heads/main")?;
        writeln!(out, "committer author{author} <author{author}@example.com> {at} +0000")?;
        writeln!(out, "data {}\n{message}", message.len())?;
        for _ in 0..=numbers.below(4) {
            // The square makes some files hot.
            let file = usize::try_from(numbers.below(10) * numbers.below(10))?;
            sizes[file] = (sizes[file] + numbers.below(12)).clamp(1, 400);
            let mut text = Vec::new();
            let part = numbers.below(8);
            let (old, new) = (b"0\n".to_vec(), format!("{n}\n").into_bytes());
            for (line, start) in lines[file].iter().take(usize::try_from(sizes[file])?).enumerate() {
                text.extend_from_slice(start.as_bytes());
                text.extend_from_slice(if line as u64 % 8 == part { &new } else { &old });
            }
            let extension = ["rs", "go", "py", "sql", "md"][file % 5];
            writeln!(out, "M 100644 inline src/file{file}.{extension}\ndata {}", text.len())?;
            out.write_all(&text)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    drop(out);
    ensure!(import.wait()?.success(), "git fast-import failed in {}", folder.display());
    Ok(())
}
