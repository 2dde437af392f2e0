//! `tenure serve`.

use std::process::ExitCode;

use super::{Cli, ServeArgs};
use crate::serve::serve;
use tenure::{Tenure, shutdown_signal};

/// The default address, which only this host can reach.
pub(super) const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);

pub(super) async fn run(cli: &Cli, args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let mut config = cli.config()?;
    config.serve.has_actions |= args.actions;
    config.serve.shows_payloads &= !args.hide_payloads;
    let tenure = Tenure::connect(&config).await?;
    let address = args.listen.or(config.listen).unwrap_or_else(|| LISTEN.into());
    let served = serve(&tenure, address, shutdown_signal()).await;
    tenure.close().await;
    served?;
    Ok(ExitCode::SUCCESS)
}
