//! Serve: the dashboard, the fleet's figures and the health of both connections, from a process that runs no jobs: so
//! they are there when no worker is.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use tokio::time::sleep;

use crate::{
    client::Tenure,
    dashboard,
    job::JobError,
    observe::{
        health::Health,
        http::{self, Server},
        metrics,
    },
    store::{NEEDS, StoreError},
    worker::counts as fleet,
};

/// How often both servers are asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Without a turn for longer, the runtime hangs.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// It is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    NotServed(#[from] dashboard::NotServed),
    #[error("listen on {address}; --listen says where else")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Answers with the dashboard, `/metrics`, `/livez`, `/readyz` and `/startupz` until `shutdown` completes.
pub(crate) async fn serve(
    tenure: &Tenure,
    address: SocketAddr,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let health = Health::new(HUNG_AFTER);
    let pages = dashboard::router(tenure, address, http::metrics())?;
    let base = &tenure.config().serve.base_path;
    let what = format!("the dashboard at {base}/, and /metrics, /livez, /readyz and /startupz");
    let server = Server::start(address, http::probes(health.clone()).merge(pages), &what)
        .map_err(|source| ServeError::Listen { address, source })?;
    let looks = async {
        let mut told = None;
        loop {
            health.beat();
            let (asked, nats_up) = (tenure.store().schema().await, tenure.queue().is_connected());
            // Each change is told once: this asks every second.
            let why = asked.as_ref().err().map(|error| JobError::from(error.clone()).text());
            match (&why, &told) {
                (Some(why), told) if Some(why) != told.as_ref() => {
                    tracing::warn!(error = why, "Postgres cannot be used; the pages say so");
                }
                (None, Some(_)) => tracing::info!("Postgres can be used again"),
                _ => {}
            }
            told.clone_from(&why);
            match &asked {
                Ok(schema) => {
                    health.has("Postgres");
                    match (schema.version, schema.breaks_before) {
                        (is, _) if is < NEEDS => {
                            let why = format!("it is at version {is}, but this program needs {NEEDS}");
                            health.lacks("schema", format!("{why}; run `tenure migrate`"));
                        }
                        (is, before) if before > NEEDS => {
                            health.lacks(
                                "schema",
                                format!("at version {is} it needs a newer program than this"),
                            );
                        }
                        _ => health.has("schema"),
                    }
                }
                Err(StoreError::NotMigrated(_)) => {
                    health.lacks("schema", "there is none; run `tenure migrate`");
                }
                Err(_) => health.lacks("Postgres", why.unwrap_or_default()),
            }
            // Not NATS: every page and nearly every action is there without it, and just then they are wanted.
            health.started();
            metrics::servers(asked.is_ok(), nats_up);
            sleep(LOOK_EVERY).await;
        }
    };
    let every = tenure.config().timing.scan_every / 3;
    tokio::select! {
        () = looks => {}
        () = fleet::show(tenure.store(), || every) => {}
        () = shutdown => health.draining(),
    }
    drop(server);
    Ok(())
}
