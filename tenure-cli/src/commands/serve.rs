//! `tenure serve`.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use futures::future::{join_all, try_join_all};

use super::{Cli, values::address};
use crate::serve::serve;
use tenure::{Config, Tenure, Worker, WorkerError, WorkerHandle, cells::Cells, shutdown_signal};

/// The default address, which only this host can reach.
pub(super) const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct ServeArgs {
    /// The address to listen on. Default: `TENURE_LISTEN`, or 127.0.0.1:9090.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Allow actions: enqueue, cancel, retry, redrive, purge, pause, limit, schedule. Default: `TENURE_SERVE_ACTIONS`.
    #[arg(long)]
    actions: bool,
    /// Serve an HTTP API for programs, too: enqueue with --actions, list, wait, watch. Default: `TENURE_SERVE_API`.
    #[arg(long)]
    api: bool,
    /// Hide payloads, outputs and checkpoints. Default: `TENURE_SERVE_PAYLOADS`.
    #[arg(long)]
    hide_payloads: bool,
    /// Also serve workers in other languages, as `tenure gateway` does.
    #[arg(long)]
    gateway: bool,
}

pub(super) async fn run(cli: &Cli, args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let change = |config: &mut Config| {
        config.serve.has_actions |= args.actions;
        config.serve.has_api |= args.api;
        config.serve.shows_payloads &= !args.hide_payloads;
    };
    let (tenures, cells, listen): (Vec<_>, _, _) = if let Some(layout) = cli.layout()? {
        let listen = layout.listen();
        let cells = Cells::connect(&layout.each_config(change)).await?;
        (cells.iter().map(|cell| cell.tenure().clone()).collect(), Some(cells), listen)
    } else {
        let mut config = cli.config()?;
        change(&mut config);
        // The pages have that address, not a gateway.
        let listen = config.listen.take();
        (vec![Tenure::connect(&config).await?], None, listen)
    };
    // Each with its own recovery, as every worker.
    let gateways = if args.gateway { gateways(&tenures)? } else { Vec::new() };
    let address = args.listen.or(listen).unwrap_or_else(|| LISTEN.into());
    let served = serve(&tenures, cells, address, shutdown_signal()).await;
    gateways.iter().for_each(WorkerHandle::stop);
    let stopped = try_join_all(gateways.iter().map(WorkerHandle::wait)).await;
    join_all(tenures.iter().map(Tenure::close)).await;
    served?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a gateway for each tenure.
fn gateways(tenures: &[Tenure]) -> Result<Vec<WorkerHandle>, WorkerError> {
    let start = |tenure: &Tenure| Worker::builder(tenure).without_transactions().gateway().start();
    tenures.iter().map(start).collect()
}
