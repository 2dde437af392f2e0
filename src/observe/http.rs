//! Http: answers Prometheus and the probes of the platform.
//!
//! On a thread and a runtime of its own: it has to answer when the worker's runtime hangs. Requests are not logged.

mod connections;

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::observe::{
    health::Health,
    metrics::{InstallError, Metrics, install},
    repeats::Repeats,
};
pub use connections::network;
use connections::{Asking, Connection, Connections};

/// How many connections the kernel may hold until this process accepts them.
const BACKLOG: u32 = 1024;
/// How long a new connection may take to send the head of its first request.
const FIRST_HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long an open connection may take from one response to the head of its next request.
const NEXT_HEAD_WITHIN: Duration = Duration::from_secs(15);
/// How many connections are accepted before those that are open may read.
const ACCEPTED_AT_ONCE: u32 = 16;
/// How long to wait for a file after the process had none left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Listens, and answers from a thread of its own. The log says that `what` is served.
    pub fn start(listen: SocketAddr, router: Router, what: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let bound = {
            let _within = runtime.enter();
            bind(listen)
        };
        let (listener, address) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                // Another runtime may be waiting for this function, and would panic if this one were dropped.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("tenure-http".into()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(listener, router) => {}
                    // Dropping the sender is the signal to stop.
                    _ = stopped => {}
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

fn bind(listen: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted process takes the port back, although connections of the last one linger.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn serve(listener: TcpListener, router: Router) {
    let (connections, repeats) = (Connections::new(), Repeats::default());
    let mut accepted: u32 = 0;
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let (connection, closed) = connections.open(client.ip());
                if let Some(closed) = closed
                    && let Some(left_out) = repeats.tell("full")
                {
                    tracing::warn!(
                        client = %closed,
                        left_out,
                        "too many connections are open; the listener closes idle ones, first those of the client \
                         with the most"
                    );
                }
                tokio::spawn(answer_on(stream, client, router.clone(), connection));
                accepted = accepted.wrapping_add(1);
                // Many connections at once must not close a new one before its request is read.
                if accepted.is_multiple_of(ACCEPTED_AT_ONCE) {
                    yield_now().await;
                }
            }
            // An error such as too many open files passes, and the port stays.
            Err(error) => {
                connections.close_one();
                if let Some(left_out) = repeats.tell("accept") {
                    tracing::warn!(%error, left_out, "accepting a connection failed; the listener will retry");
                }
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

/// Answers the requests of one connection.
async fn answer_on(stream: TcpStream, client: SocketAddr, router: Router, connection: Connection) {
    let answering = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(client));
        let (asking, answer) = (connection.asks(), answering.call(request));
        async move { answer.await.map(|response| response.map(|body| Answering { body, _asking: asking })) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let served = async {
        let mut served = pin!(served);
        // On an error the client has gone, and no answer can reach it.
        if timeout(FIRST_HEAD_WITHIN, &mut served).await.is_err() && connection.has_asked() {
            drop(served.await);
        }
    };
    tokio::select! {
        () = served => {}
        () = connection.closes() => {}
    }
}

/// The body of a response. Until it is dropped, its connection does not count as waiting for a request.
struct Answering {
    body: Body,
    _asking: Asking,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
