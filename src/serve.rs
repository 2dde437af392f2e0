//! Serve: the fleet's figures and the health of both connections, from a process that runs no jobs: so they are there
//! when no worker is.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use tokio::time::sleep;

use crate::{fleet, health::Health, http::Server, metrics, tenure::Tenure};

/// How often both servers are asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Without a turn for longer, the runtime hangs.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// Answers `/metrics`, `/livez`, `/readyz` and `/startupz` until `shutdown` completes.
pub(crate) async fn serve(
    tenure: &Tenure,
    address: SocketAddr,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let health = Health::new(HUNG_AFTER);
    let server = Server::start(address, health.clone())?;
    let looks = async {
        loop {
            health.beat();
            let (asked, nats_up) = (tenure.store().schema_version().await, tenure.queue().is_connected());
            match &asked {
                Ok(_) => health.has("Postgres"),
                Err(error) => health.lacks("Postgres", error.to_string()),
            }
            if nats_up {
                health.has("NATS");
            } else {
                health.lacks("NATS", "not connected");
            }
            health.started();
            metrics::servers(asked.is_ok(), nats_up);
            sleep(LOOK_EVERY).await;
        }
    };
    let every = tenure.config().timing.scan_every / 3;
    tokio::select! {
        () = looks => {}
        () = fleet::show(tenure.store().clone(), every) => {}
        () = shutdown => health.draining(),
    }
    drop(server);
    Ok(())
}
