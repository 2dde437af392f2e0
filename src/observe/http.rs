//! Http: answers Prometheus and the probes of the platform.
//!
//! On a thread and a runtime of its own: it has to answer when the worker's runtime hangs. Requests are not logged.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::sync::{Semaphore, oneshot};

use crate::observe::{
    health::Health,
    metrics::{InstallError, Metrics, install},
};

/// How many connections may be open at once.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may take to send a request's headers, or the next request's.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);
/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Listens, and answers from a thread of its own. The log says that `what` is served.
    pub fn start(listen: SocketAddr, router: Router, what: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("tenure-http".into()).spawn(move || {
            runtime.block_on(async move {
                let served = tokio::select! {
                    served = serve(listener, router) => served,
                    // Dropping the sender is the signal to stop.
                    _ = stopped => Ok(()),
                };
                if let Err(error) = served {
                    tracing::error!(%error, "the listener failed; metrics and health are no longer served");
                }
            });
        })?;
        tracing::info!(%address, "serving {what}");
        Ok(Self { _stop: stop })
    }
}

/// Returns the routes of the probes: alive, ready and started. They ask for no password.
pub fn probes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/startupz", get(started))
        .with_state(health)
}

/// Starts to record this process's metrics, and returns the route that serves them.
pub fn metrics() -> MethodRouter {
    // If the program has a recorder of its own, the page says to read the metrics there.
    let metrics = install();
    get(|| std::future::ready(metrics_page(metrics)))
}

async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // An error such as too many open files passes, and the port stays.
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed; the listener will retry");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // A connection too many is closed at once: a worker needs its sockets for Postgres and NATS.
        let Ok(held) = free.clone().try_acquire_owned() else { continue };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_WITHIN)
                .serve_connection(TokioIo::new(stream), service);
            // On an error the client has gone, and no answer can reach it.
            drop(connection.await);
            drop(held);
        });
    }
}

fn metrics_page(metrics: Result<Metrics, InstallError>) -> Response {
    match metrics {
        Ok(metrics) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
                .into_response()
        }
        Err(error) => (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
    }
}

fn answer(health: Result<(), String>) -> Response {
    match health {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn live(State(health): State<Health>) -> Response {
    answer(health.live())
}

async fn ready(State(health): State<Health>) -> Response {
    answer(health.ready().map_err(|reasons| reasons.join("\n")))
}

async fn started(State(health): State<Health>) -> Response {
    answer(if health.has_started() { Ok(()) } else { Err("the worker is starting".into()) })
}
