//! Http: what a worker answers to Prometheus, and to the probes of whatever it is deployed on.
//!
//! On a thread and a runtime of its own: it has to answer when the worker's hangs. Requests are not logged.

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

/// How many connections are open at once.
const CONNECTIONS_MAX: usize = 256;
/// How long one may take to ask, or to ask again.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);
/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Listens, and answers from a thread of its own; the log says `what` is there.
    pub(crate) fn start(listen: SocketAddr, router: Router, what: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("tenure-http".into()).spawn(move || {
            runtime.block_on(async move {
                let served = tokio::select! {
                    served = serve(listener, router) => served,
                    // An error is what dropping the sender gives.
                    _ = stopped => Ok(()),
                };
                if let Err(error) = served {
                    tracing::error!(%error, "metrics and health are not served any more");
                }
            });
        })?;
        tracing::info!(%address, "serving {what}");
        Ok(Self { _stop: stop })
    }
}

/// Whether this process is alive, ready and started. Asks nobody who they are.
pub(crate) fn probes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/startupz", get(started))
        .with_state(health)
}

/// What this process measures, from now on.
pub(crate) fn metrics() -> MethodRouter {
    // A recorder of the program's own serves them elsewhere, and the page says so.
    let metrics = install();
    get(|| std::future::ready(metrics_page(metrics)))
}

async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Such as too many open files: it passes, and the port stays.
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // One too many is closed at once: the sockets of a worker are for its servers.
        let Ok(held) = free.clone().try_acquire_owned() else { continue };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_WITHIN)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asked has gone: nobody is there to be told.
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
