//! Http: what a worker answers to Prometheus, and to the probes of whatever it is deployed on.
//!
//! On a thread and a runtime of its own: it has to answer when the worker's hangs. Requests are not logged.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, OnceLock},
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
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::{Semaphore, oneshot};

use crate::{
    health::Health,
    metrics::{METRICS, Type},
};

/// From a claim's round trip to a job of hours.
const SECONDS: [f64; 16] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0, 3_600.0,
    21_600.0,
];
const ITEMS: [f64; 8] = [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1_024.0];
/// How many connections are open at once.
const CONNECTIONS_MAX: usize = 256;
/// How long one may take to ask, or to ask again.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);
/// How often what histograms have gathered is brought together.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// `None`: this program has a recorder of its own.
static METRICS_OF_THIS_PROCESS: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Records the metrics of this process for `/metrics`, from now on. A worker does so when it starts; call it earlier
/// for what happens before, such as enqueues.
///
/// `false`: another recorder is installed, and `/metrics` is empty.
pub fn install_metrics() -> bool {
    METRICS_OF_THIS_PROCESS.get_or_init(recorder).is_some()
}

fn recorder() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_size".into()), &ITEMS));
    let recorder = builder.ok()?.build_recorder();
    let handle = recorder.handle();
    ::metrics::set_global_recorder(recorder).ok()?;
    for (name, of, about) in METRICS {
        match of {
            Type::Counter => metrics::describe_counter!(name, about),
            Type::Gauge => metrics::describe_gauge!(name, about),
            Type::Histogram => metrics::describe_histogram!(name, about),
        }
    }
    Some(handle)
}

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
    install_metrics();
    get(metrics_page)
}

async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    tokio::spawn(async {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            if let Some(Some(handle)) = METRICS_OF_THIS_PROCESS.get() {
                handle.run_upkeep();
            }
        }
    });
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

async fn metrics_page() -> Response {
    match METRICS_OF_THIS_PROCESS.get() {
        Some(Some(handle)) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.render())
                .into_response()
        }
        _ => (
            StatusCode::NOT_FOUND,
            "this program records its metrics by a recorder of its own; they are served where it says\n",
        )
            .into_response(),
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
