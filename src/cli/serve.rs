//! `tenure serve`.

use std::{net::SocketAddr, process::ExitCode};

use anyhow::Context;

use super::Cli;
use crate::{serve::serve, shutdown_signal};

/// Where it listens, unless told otherwise: on this host alone.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);

pub(super) async fn run(cli: &Cli, listen: Option<SocketAddr>) -> anyhow::Result<ExitCode> {
    let tenure = cli.connect().await?;
    let address = listen.or(tenure.config().listen).unwrap_or_else(|| LISTEN.into());
    let served = serve(&tenure, address, shutdown_signal()).await;
    tenure.close().await;
    served.with_context(|| format!("listen on {address}; --listen says where else"))?;
    Ok(ExitCode::SUCCESS)
}
