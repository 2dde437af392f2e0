//! Port: a worker's own port, at which Prometheus asks for metrics, and the platform for health.

use std::net::SocketAddr;

use super::error::WorkerError;
use crate::observe::health::Health;

#[cfg(feature = "http")]
pub(crate) use crate::observe::http::Server;
/// No server: without the feature `http`, no port opens.
#[cfg(not(feature = "http"))]
pub(crate) enum Server {}

/// Answers at the address of the settings until the server is dropped. `None`: they have no address.
pub(crate) fn open(listen: Option<SocketAddr>, health: &Health) -> Result<Option<Server>, WorkerError> {
    let Some(address) = listen else { return Ok(None) };
    serve(address, health).map(Some).map_err(|reason| WorkerError::Listen { address, reason })
}

#[cfg(feature = "http")]
fn serve(address: SocketAddr, health: &Health) -> Result<Server, String> {
    use crate::observe::http::{metrics, probes};
    let router = probes(health.clone()).route("/metrics", metrics());
    let server = Server::start(address, router, "/metrics, /livez, /readyz and /startupz");
    server.map_err(|error| error.to_string())
}

#[cfg(not(feature = "http"))]
fn serve(_: SocketAddr, _: &Health) -> Result<Server, String> {
    Err("this program was built without tenure's feature `http`".to_owned())
}
