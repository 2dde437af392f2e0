//! `tenure serve`.

use std::process::ExitCode;

use futures::future::join_all;

use super::{Cli, ServeArgs};
use crate::serve::serve;
use tenure::{Config, Tenure, cells::Cells, shutdown_signal};

/// The default address, which only this host can reach.
pub(super) const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9090);

pub(super) async fn run(cli: &Cli, args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let change = |config: &mut Config| {
        config.serve.has_actions |= args.actions;
        config.serve.shows_payloads &= !args.hide_payloads;
    };
    let (tenures, listen): (Vec<_>, _) = if let Some(layout) = cli.layout()? {
        let listen = layout.listen();
        let cells = Cells::connect(&layout.each_config(change)).await?;
        (cells.iter().map(|cell| cell.tenure().clone()).collect(), listen)
    } else {
        let mut config = cli.config()?;
        change(&mut config);
        (vec![Tenure::connect(&config).await?], config.listen)
    };
    let address = args.listen.or(listen).unwrap_or_else(|| LISTEN.into());
    let served = serve(&tenures, address, shutdown_signal()).await;
    join_all(tenures.iter().map(Tenure::close)).await;
    served?;
    Ok(ExitCode::SUCCESS)
}
