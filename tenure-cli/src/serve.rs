//! Serve: the dashboard, the HTTP API, the fleet's metrics and the health of both connections, from a process that runs
//! no jobs, so that they are available without a worker. One process serves the only tenure, or all cells.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::sleep;

use crate::{
    access::{Gate, NotServed},
    api,
    dashboard::{self, Served},
};
use tenure::{
    Health, StoreError, Tenure,
    cells::Cells,
    internals::{Memory, NEEDS, Parts as _, Schema, Server, chained, counts as fleet, http, measure_alone},
    metrics::Gauges,
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
    NotServed(#[from] NotServed),
    #[error("cannot listen on {address}; choose another address with --listen")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Answers with the dashboard, the API, `/metrics`, `/livez`, `/readyz` and `/startupz` until `shutdown` completes.
/// `tenures` is the only one, or those of all `cells`.
pub(crate) async fn serve(
    tenures: &[Tenure],
    cells: Option<Cells>,
    address: SocketAddr,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let parts = tenures.iter().map(|of| Served { tenure: of.clone(), health: Health::new(HUNG_AFTER) });
    let parts: Vec<_> = parts.collect();
    let health = match &parts[..] {
        [only] => only.health.clone(),
        _ => Health::new(HUNG_AFTER),
    };
    let Some(first) = tenures.first() else { return Ok(()) };
    let settings = &first.config().serve;
    let gate = Arc::new(Gate::new(settings, address)?);
    let pages = dashboard::router(&parts, gate.clone(), http::metrics());
    let of_api = parts.iter().cloned().map(|Served { tenure, health }| api::Part { tenure, health });
    let (programs, closing) = api::router(of_api.collect(), cells, gate);
    let base = &settings.base_path;
    let and_api = if settings.has_api { format!(", the API at {base}/api/v1") } else { String::new() };
    let what = format!("the dashboard at {base}/{and_api}, and /metrics, /livez, /readyz and /startupz");
    let router = http::probes(health.clone()).merge(pages).merge(programs);
    let server =
        Server::start(address, router, &what).map_err(|source| ServeError::Listen { address, source })?;
    let looked = || {
        if parts.len() > 1 {
            tell(&health, &parts);
        }
    };
    tokio::select! {
        _ = join_all(parts.iter().map(|of| look_after(of, &looked))) => {}
        () = shutdown => health.draining(),
    }
    closing.close().await;
    drop(server);
    Ok(())
}

/// Keeps the health and the metrics of a tenure up to date. Calls `looked` after each look at its servers.
async fn look_after(Served { tenure, health }: &Served, looked: &impl Fn()) {
    let config = tenure.config();
    let gauges = Gauges::new(config.cell.as_deref());
    let every = config.timing.scan_every / 3;
    tokio::join!(
        look(tenure, health, &gauges, looked),
        fleet::show(tenure.store(), &gauges, || every),
        measure(tenure)
    );
}

/// Checks both servers again and again.
async fn look(tenure: &Tenure, health: &Health, gauges: &Gauges, looked: &impl Fn()) {
    let cell = tenure.config().cell.as_deref();
    let mut logged = None;
    loop {
        health.beat();
        let (asked, nats_up) = (tenure.store().schema().await, tenure.nats().is_connected());
        let why = match &asked {
            Ok(schema) => misfit(schema),
            Err(error) => Some(chained(error)),
        };
        // Each change is logged once: this loop runs every second.
        match (&why, &logged) {
            (Some(why), logged) if Some(why) != logged.as_ref() => {
                if asked.is_ok() {
                    tracing::warn!(cell, error = why, "this program cannot use the schema");
                } else {
                    tracing::warn!(cell, error = why, "Postgres is unavailable; the pages show the error");
                }
            }
            (None, Some(_)) => tracing::info!(cell, "Postgres is available again"),
            _ => {}
        }
        logged.clone_from(&why);
        match &asked {
            Ok(_) => {
                health.has("Postgres");
                match why {
                    Some(why) => health.lacks("schema", why),
                    None => health.has("schema"),
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
        gauges.servers(asked.is_ok(), nats_up);
        looked();
        sleep(LOOK_EVERY).await;
    }
}

/// Why this program cannot use a schema; `None`: it can.
fn misfit(schema: &Schema) -> Option<String> {
    if schema.breaks_before > NEEDS {
        return Some(format!("version {} needs a newer program than this", schema.version));
    }
    schema.lack()
}

/// Tells the health of all cells as that of the process: ready as long as one of them is, so that a cell that is away
/// does not take the others' pages along.
fn tell(health: &Health, cells: &[Served]) {
    health.beat();
    health.started();
    let mut lacks = Vec::new();
    for Served { tenure, health: own } in cells {
        match own.ready() {
            Ok(()) => return health.has("cells"),
            Err(why) => {
                let cell = tenure.config().cell.as_deref().unwrap_or_default();
                lacks.push(format!("{cell}: {}", why.join(", ")));
            }
        }
    }
    health.lacks("cells", lacks.join("; "));
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
            let cell = tenure.config().cell.as_deref();
            tracing::debug!(cell, %error, "could not measure the fleet in place of its workers");
        }
        sleep(wait.mul_f64(rand::random_range(0.8..1.2))).await;
    }
}
