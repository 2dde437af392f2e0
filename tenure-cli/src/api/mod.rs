//! Api: jobs over HTTP, for programs that have neither NATS nor SQL. JSON as the command line prints it.
//!
//! `openapi.json` describes it. A test compares that document with the routes here, and every answer with its schema.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_viewer_may_look_and_a_page_of_another_site_may_do_nothing`
//! - `a_key_makes_one_job_however_often_and_from_wherever_it_is_sent`

mod body;
mod enqueue;
mod failure;
mod follow;
mod jobs;
mod list;
mod query;
mod tenures;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{ConnectInfo, FromRequestParts, Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, get, post},
};
use axum_extra::headers::{Authorization, HeaderMapExt, authorization::Bearer};
use serde::Serialize;
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

pub(crate) use self::tenures::Part;
use self::{failure::Failure, tenures::Tenures};
use crate::access::{For, Gate, Places, Who, is_of_this_site};
use tenure::{JobId, cells::Cells, internals::Parts as _};

/// The document that describes the API.
const OPENAPI: &str = include_str!("openapi.json");
/// Where the document says that the API is.
const AT: &str = "\"url\": \"/api/v1\"";
/// The most requests that wait for jobs or watch them at once, and the most of one client: it may be a whole web site.
const FOLLOWED_MAX: usize = 200;
const FOLLOWED_OF_ONE: usize = 100;
/// The most lists that are read at once: each may hold many payloads.
const LISTED_MAX: usize = 4;
/// How long the responses of those that wait or watch may take when the program ends, also on a busy machine.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// The state of the API.
#[derive(Debug)]
struct Api {
    gate: Arc<Gate>,
    tenures: Tenures,
    /// The path of its version.
    base: String,
    is_on: bool,
    has_actions: bool,
    shows_payloads: bool,
    payload_bytes_max: usize,
    /// The runtime of the connections, which does the work.
    main: Handle,
    followed: Arc<Places>,
    listed: Semaphore,
    closing: Closing,
}

/// Ends the requests that wait or watch when the program ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closing {
    begun: CancellationToken,
    responses: TaskTracker,
}

impl Closing {
    /// Answers those that wait or watch, and returns once their responses are written, or three seconds have passed.
    pub(crate) async fn close(&self) {
        self.begun.cancel();
        self.responses.close();
        let _ = tokio::time::timeout(CLOSED_WITHIN, self.responses.wait()).await;
    }
}

/// The routes: each method and path below `/api`, with what answers it.
fn routes() -> [(Method, &'static str, MethodRouter<Arc<Api>>); 9] {
    [
        (Method::GET, "/v1/openapi.json", get(document)),
        (Method::POST, "/v1/jobs", post(enqueue::enqueue)),
        (Method::GET, "/v1/jobs", get(list::list)),
        (Method::GET, "/v1/jobs/{id}", get(jobs::show)),
        (Method::GET, "/v1/jobs/{id}/logs", get(jobs::logs)),
        (Method::POST, "/v1/jobs/{id}/cancel", post(jobs::cancel)),
        (Method::POST, "/v1/jobs/{id}/retry", post(jobs::retry)),
        (Method::GET, "/v1/jobs/{id}/wait", get(follow::wait)),
        (Method::GET, "/v1/jobs/{id}/watch", get(follow::watch)),
    ]
}

/// The routes that answer a user of some queues: they leave out, or refuse, what is of another queue. A route that is
/// not listed is for users of all, also one that is added later.
const OF_SOME_QUEUES: [&str; 8] = [
    "/v1/openapi.json",
    "/v1/jobs",
    "/v1/jobs/{id}",
    "/v1/jobs/{id}/logs",
    "/v1/jobs/{id}/cancel",
    "/v1/jobs/{id}/retry",
    "/v1/jobs/{id}/wait",
    "/v1/jobs/{id}/watch",
];

/// The routes of the API, and what ends its long requests. `cells`: the parts are its cells. While the API is off, each
/// of its addresses says so.
pub(crate) fn router(parts: Vec<Part>, cells: Option<Cells>, gate: Arc<Gate>) -> (Router, Closing) {
    let closing = Closing::default();
    let Some(first) = parts.first() else { return (Router::new(), closing) };
    let config = first.tenure.config();
    let (serve, above) = (&config.serve, format!("{}/api", config.serve.base_path));
    let api = Arc::new(Api {
        gate,
        base: format!("{above}/v1"),
        is_on: serve.has_api,
        has_actions: serve.has_actions,
        shows_payloads: serve.shows_payloads,
        payload_bytes_max: config.payload_bytes_max,
        main: Handle::current(),
        followed: Places::new(FOLLOWED_MAX, FOLLOWED_OF_ONE),
        listed: Semaphore::new(LISTED_MAX),
        closing: closing.clone(),
        tenures: Tenures::new(parts, cells),
    });
    let mut router = Router::new();
    for (_, path, method) in routes() {
        let of_all = !OF_SOME_QUEUES.contains(&path);
        let method = if of_all { method.layer(middleware::from_fn(check_all)) } else { method };
        router = router.route(&format!("{above}{path}"), method);
    }
    router = router
        .route_layer(middleware::from_fn_with_state(api.clone(), check_act))
        .method_not_allowed_fallback(wrong_method);
    for rest in ["", "/", "/{*rest}"] {
        router = router.route(&format!("{above}{rest}"), any(unknown));
    }
    let router = router
        .layer(middleware::from_fn_with_state(api.clone(), check))
        .layer(middleware::map_response(guarded))
        .with_state(api);
    (router, closing)
}

/// Passes a request on if its sender may look, and the API is on.
async fn check(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let (headers, path) = (request.headers().clone(), request.uri().path().to_owned());
    let who = match api.gate.enter(peer.ip(), headers, path, For::Api).await {
        Ok(who) => who,
        Err(why) => return Failure::refused(why, api.gate.challenge()).into_response(),
    };
    if !api.is_on {
        let failure = Failure::new(StatusCode::NOT_FOUND, "api_off", "the HTTP API is off");
        return failure.hint("start `tenure serve` with --api, or set TENURE_SERVE_API=true").into_response();
    }
    request.extensions_mut().insert(who);
    next.run(request).await
}

/// Refuses what shows all queues to users of some.
async fn check_all(Extension(who): Extension<Who>, request: Request, next: Next) -> Response {
    if who.looks.is_all() {
        return next.run(request).await;
    }
    let (path, why) = (request.uri().path(), who.looks.unseen("and this shows others, too"));
    tracing::warn!(who = who.name, path, why, "a look was refused");
    Failure::new(StatusCode::FORBIDDEN, "other_queue", why).into_response()
}

/// Passes a request that acts on if its sender may act, and no page of another site has made a browser send it.
async fn check_act(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    match api.may_act(&who, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            let (path, why) = (request.uri().path(), &failure.message);
            tracing::warn!(who = who.name, path, why, "an action of the API was refused");
            failure.into_response()
        }
    }
}

impl Api {
    fn may_act(&self, who: &Who, headers: &HeaderMap) -> Result<(), Failure> {
        let refused = |code, why: &str| Failure::new(StatusCode::FORBIDDEN, code, why);
        if !self.has_actions {
            let failure = refused("read_only", "this API only reads");
            return Err(failure.hint("start `tenure serve` with --actions, or set TENURE_SERVE_ACTIONS=true"));
        }
        if let Some(why) = &who.only_looks {
            return Err(refused("may_only_look", why));
        }
        is_of_this_site(headers).map_err(|why| {
            refused("other_site", why)
                .hint("pages of another site need a server of their own that sends the request")
        })?;
        // A browser attaches a password that it knows to requests of every page, but no bearer token; and no page of
        // another site can send JSON without asking first.
        if headers.typed_get::<Authorization<Bearer>>().is_some() || body::is_json(headers) {
            return Ok(());
        }
        Err(body::not_json())
    }

    /// Reads on the main runtime. The work ends when the client leaves.
    async fn read<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Failure> {
        AbortOnDropHandle::new(self.main.spawn(work(self.clone())))
            .await
            .unwrap_or_else(|_| Err(Failure::broken()))
    }

    /// Acts on the main runtime. What has begun ends, even if the client leaves.
    async fn act<T: Send + 'static, F: Future<Output = Result<T, Failure>> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Failure> {
        self.main.spawn(work(self.clone())).await.unwrap_or_else(|_| Err(Failure::broken()))
    }
}

/// The ID in a path.
struct Id(JobId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        // A path that is no UTF-8 has none.
        let text = Path::<String>::from_request_parts(parts, state)
            .await
            .map_or_else(|_| String::new(), |path| path.0);
        text.parse().map(Self).map_err(|_| {
            let message = format!("invalid job ID {:?}", text.chars().take(80).collect::<String>());
            let failure = Failure::new(StatusCode::BAD_REQUEST, "bad_request", message);
            failure.hint(
                "send a UUID such as 019a3c5e-7d1b-7c3a-9f00-2b1c5d6e7f80, as an enqueue has returned it",
            )
        })
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "an answer of the API is not JSON");
            Failure::broken().into_response()
        }
    }
}

async fn document(State(api): State<Arc<Api>>) -> Response {
    let text = OPENAPI.replacen(AT, &format!("\"url\": \"{}\"", api.base), 1);
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn unknown(State(api): State<Arc<Api>>) -> Failure {
    let failure = Failure::new(StatusCode::NOT_FOUND, "no_such_route", "the API has nothing at this address");
    failure.hint(format!("{}/openapi.json lists its addresses", api.base))
}

async fn wrong_method(State(api): State<Arc<Api>>) -> Failure {
    let failure = Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this address does not take this method; the header Allow names those that it takes",
    );
    failure.hint(format!("{}/openapi.json lists the addresses and their methods", api.base))
}

/// Adds the headers that limit what a browser may do with a response.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        assert_eq!((OPENAPI.matches(AT).count(), &document["servers"][0]["url"]), (1, &"/api/v1".into()));
        let paths = document["paths"].as_object().unwrap();
        let described: BTreeSet<_> = paths
            .iter()
            .flat_map(|(path, of)| {
                let methods = of.as_object().unwrap().keys().filter(|key| *key != "parameters");
                methods.map(move |method| (method.to_uppercase(), format!("/v1{path}")))
            })
            .collect();
        let served: BTreeSet<_> =
            routes().into_iter().map(|(method, path, _)| (method.to_string(), path.to_owned())).collect();
        assert_eq!(described, served);
    }
}
