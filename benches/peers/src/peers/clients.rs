//! tenure's clients in other languages: workers behind a `tenure gateway`. Their jobs are enqueued by this program,
//! as tenure's own are.

use std::path::Path;

use anyhow::{Context, ensure};

use super::{About, output, tenure};
use crate::works::Work;

pub(super) const ABOUT: About = About {
    settings: "defaults but for its slots, and one `tenure gateway`; drain: 2,000 slots; pick-up: 8 slots",
    ..tenure::ABOUT
};

pub(super) const fn slots(work: Work) -> usize {
    match work {
        Work::Pickup => 8,
        _ => 2_000,
    }
}

/// The version of the program that is the gateway.
///
/// # Errors
///
/// There is no such program.
pub(super) async fn gateway_version(program: &Path) -> anyhow::Result<String> {
    ensure!(
        program.is_file(),
        "the program `tenure` is not at {}: build it by `cargo build --release --locked --bin tenure -p tenure-cli` in \
         the root of the repository, or name another by --tenure-program",
        program.display()
    );
    let program = program.to_str().context("the path of the program `tenure` is Unicode")?;
    let version = output(program, &["--version"], Path::new(".")).await?;
    Ok(version.split_whitespace().last().unwrap_or("?").to_owned())
}
