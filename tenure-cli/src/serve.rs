//! Serve: the dashboard, the fleet's metrics and the health of both connections, from a process that runs no jobs, so
//! that they are available without a worker.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use tokio::time::sleep;

use crate::dashboard;
use tenure::{
    Health, StoreError, Tenure,
    internals::{Memory, NEEDS, Parts as _, Server, chained, counts as fleet, http, measure_alone},
    metrics,
};

/// How often to check both servers.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A check that is later than this means that the runtime hangs.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// How long a process whose role may not measure waits until it tries again: its rights may have changed.
const MEASURED_AGAIN_AFTER: Duration = Duration::from_hours(1);

/// `tenure serve` cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    NotServed(#[from] dashboard::NotServed),
    #[error("cannot listen on {address}; choose another address with --listen")]
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
        let mut logged = None;
        loop {
            health.beat();
            let (asked, nats_up) = (tenure.store().schema().await, tenure.nats().is_connected());
            // Each change is logged once: this loop runs every second.
            let why = asked.as_ref().err().map(|error| chained(error));
            match (&why, &logged) {
                (Some(why), logged) if Some(why) != logged.as_ref() => {
                    tracing::warn!(error = why, "Postgres is unavailable; the pages show the error");
                }
                (None, Some(_)) => tracing::info!("Postgres is available again"),
                _ => {}
            }
            logged.clone_from(&why);
            match &asked {
                Ok(schema) => {
                    health.has("Postgres");
                    match (schema.version, schema.breaks_before) {
                        (is, _) if is < NEEDS => {
                            let why = format!("it is at version {is}, but this program needs {NEEDS}");
                            health.lacks("schema", format!("{why}; run `tenure migrate`"));
                        }
                        (is, before) if before > NEEDS => {
                            health.lacks("schema", format!("version {is} needs a newer program than this"));
                        }
                        _ => health.has("schema"),
                    }
                }
                Err(StoreError::NotMigrated(_)) => {
                    health.lacks("schema", "it does not exist; run `tenure migrate`");
                }
                Err(_) => health.lacks("Postgres", why.unwrap_or_default()),
            }
            // NATS does not count: every page and nearly every action works without it, and operators need them most
            // during an outage.
            health.started();
            metrics::servers(asked.is_ok(), nats_up);
            sleep(LOOK_EVERY).await;
        }
    };
    let every = tenure.config().timing.scan_every / 3;
    tokio::select! {
        () = looks => {}
        () = fleet::show(tenure.store(), || every) => {}
        () = measure(tenure) => {}
        () = shutdown => health.draining(),
    }
    drop(server);
    Ok(())
}

/// Measures the fleet where no worker does: the pages of a fleet without workers must not go blank.
async fn measure(tenure: &Tenure) {
    let (every, memory) = (tenure.config().timing.scan_every, Memory::default());
    loop {
        let mut wait = every / 4;
        if let Err(error) = measure_alone(tenure.store(), tenure.nats(), &memory, every).await {
            if error.is_denied() {
                // A role that only reads: workers alone measure.
                wait = MEASURED_AGAIN_AFTER;
            }
            tracing::debug!(%error, "could not measure the fleet in place of its workers");
        }
        sleep(wait.mul_f64(rand::random_range(0.8..1.2))).await;
    }
}
