//! `tenure gateway`: serves workers in other languages, over NATS.

use std::process::ExitCode;

use super::{Cli, Usage};
use tenure::{Worker, shutdown_signal};

pub(super) async fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    if cli.layout()?.is_some() {
        let usage = "a gateway serves one cell, at that cell's NATS; run one for each, with --cell NAME";
        return Err(Usage(usage.into()).into());
    }
    let tenure = cli.connect_to_any().await?;
    let worker = Worker::builder(&tenure).without_transactions().gateway();
    let served = worker.run_until(shutdown_signal()).await;
    tenure.close().await;
    served?;
    Ok(ExitCode::SUCCESS)
}
