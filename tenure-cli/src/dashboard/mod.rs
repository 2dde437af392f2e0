//! Dashboard: the fleet as pages for operators. Rendered on the server, readable without a script, live with one.
//!
//! One function per page reads and renders it, both for a browser's request and for live updates ([`live`]).
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_dashboard_that_only_reads_has_no_buttons_and_takes_no_forms`
//! - `user_input_is_text_on_every_page`

mod actions;
mod audit;
mod cells;
mod charts;
mod clock;
mod cookies;
mod dead;
mod enqueue;
mod graph;
mod job;
mod jobs;
mod kinds;
mod lanes;
mod live;
mod look;
mod notices;
mod overview;
mod page;
mod params;
mod quarantine;
mod queue;
mod queues;
mod recovery;
mod redrives;
mod schedule;
mod schedules;
mod scope;
mod selections;
mod shared;
mod worker;
mod workers;

use std::{
    fmt::{Display, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::MethodRouter,
};
use axum_extra::extract::cookie::{Cookie, CookieJar, SameSite};
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, time::timeout};
use uuid::Uuid;

use cells::Cell;
use clock::Clock;
use cookies::{arrived_by_tls, cookie, keep_cookies_to_tls, set};
use page::Page;
use params::Params;
pub(crate) use queues::State as QueueState;
pub(crate) use schedule::{UNSERVED, state as schedule_state};
use selections::Selections;
use shared::Shared;

use crate::access::{self, For, Gate, Places, Refused, Remember, Scope, Who};
use tenure::{
    Health, StoreError, Tenure,
    internals::{Parts as _, chained, duration::written},
};

/// No resources of other sites, no scripts but ours, no frames.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const ASSETS: [(&str, &str, &str); 3] = [
    ("style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js")),
    ("idiomorph.min.js", "text/javascript; charset=utf-8", include_str!("assets/idiomorph.min.js")),
];
/// A hash of the assets, which their addresses hold so that browsers may keep them for ever.
static EDITION: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
    let mut all = Sha256::new();
    for (.., text) in ASSETS {
        all.update(text);
    }
    let mut edition = String::new();
    for byte in all.finalize().iter().take(6) {
        // Writing to a string does not fail.
        let _ = write!(edition, "{byte:02x}");
    }
    edition
});
/// The cookie that proves that a form is ours.
const CSRF: &str = "tenure_csrf";
/// The cookie with the outcome of the last action, for the page after it.
const SAID: &str = "tenure_said";
/// The largest form in bytes, without a payload: a thousand IDs, and more.
const FORM_MAX: usize = 256 * 1024;
/// The bytes of a form for each byte of its payload: `"` is sent as `%22`, and other bytes likewise.
const ENCODED: usize = 3;
/// How long a form may take to arrive.
const FORM_WITHIN: Duration = Duration::from_secs(10);
/// The most characters of an outcome: browsers keep no cookie of more than 4 KiB.
const SAID_MAX: usize = 700;
/// When a browser asks again for a page that could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The same for a search, which may be what takes too long.
const SEARCH_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The most searches at once, and the most of one client: each may read a table for as long as a statement may take.
const SEARCHES_MAX: usize = 16;
const SEARCHES_OF_ONE: usize = 4;

/// A tenure to serve, and its health.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) tenure: Tenure,
    pub(crate) health: Health,
}

/// What a request meets before its page.
#[derive(Debug)]
struct Door {
    gate: Arc<Gate>,
    /// Where every page is: browsers send the cookie of a sign-in to all of them.
    base: String,
    /// The first one at whose address a path begins has its page.
    rooms: Vec<Room>,
}

/// The pages at one address: those of the only tenure, of a cell, or of all cells together.
#[derive(Debug)]
struct Room {
    /// The pages of those who may act.
    actors: Arc<View>,
    /// The same pages without forms.
    viewers: Arc<View>,
}

impl Room {
    fn new(viewers: View, has_actions: bool) -> Self {
        Self { actors: Arc::new(View { has_actions, ..viewers.clone() }), viewers: Arc::new(viewers) }
    }

    /// The rest of a path that begins at its address.
    fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_prefix(&self.viewers.base).filter(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The state that the pages of actors, or those of viewers, share.
#[derive(Debug, Clone)]
struct View {
    tenure: Tenure,
    base: String,
    /// The name of the cell that it shows; `None`: there is only one tenure, or it shows all cells.
    cell: Option<String>,
    /// The base of the page of all cells; `None`: there is only one tenure.
    top: Option<String>,
    /// All cells, if it shows them. It then has the `tenure` of the first one, and does not use it.
    cells: Arc<[Cell]>,
    has_actions: bool,
    shows_payloads: bool,
    /// The queues that its user may look at.
    looks: Scope,
    /// The address of a trace, with `{trace_id}` for its ID.
    trace_url: Option<String>,
    /// The address of a job's whole log, with `{job_id}` for its ID.
    log_url: Option<String>,
    /// The runtime of the connections, which renders every page.
    main: Handle,
    streams: Arc<Places>,
    searches: Arc<Places>,
    figures: Arc<Figures>,
}

impl View {
    fn shows_all_cells(&self) -> bool {
        !self.cells.is_empty()
    }

    /// The same pages, as this user sees them.
    fn seen_by(self: &Arc<Self>, who: &Who) -> Arc<Self> {
        if who.looks.is_all() {
            return self.clone();
        }
        Arc::new(Self { looks: who.looks.clone(), ..Self::clone(self) })
    }
}

/// What actors and viewers share: nothing of it depends on who looks.
#[derive(Debug, Default)]
struct Figures {
    clock: Arc<Clock>,
    selections: Selections,
    overview: Shared<&'static str, overview::Figures>,
    overdue: overview::Overdue,
    kinds: Shared<&'static str, kinds::Figures>,
    queue: Shared<(String, &'static str), queue::Figures>,
    lanes: Shared<String, lanes::Figures>,
}

/// A request for a page or an action.
#[derive(Debug, Clone)]
struct Ask {
    /// The parts of the path, decoded.
    path: Vec<String>,
    query: Params,
    form: Params,
    /// The token for the forms of the page; `None`: it has no forms.
    csrf: Option<String>,
    /// Why the user may only look, although others may act.
    only_looks: Option<String>,
    /// Made up for each page that is opened: two clicks on one of its buttons send the same.
    once: String,
    /// Whether the last action succeeded, and its outcome in words.
    said: Option<(bool, String)>,
    /// Whether the page is followed: then its constant parts are not read again.
    is_live: bool,
    /// Whose request it is, to count by.
    client: String,
}

impl Ask {
    /// Whether the page reads more than an index has.
    fn searches(&self) -> bool {
        self.query.has("q") || self.query.has("error")
    }
}

/// Why a request fails.
#[derive(Debug)]
enum Failure {
    NotFound(String),
    Bad(String),
    Refused(String),
    /// The user may look at some queues, and this shows another.
    Unseen(String),
    /// Postgres did not answer an action; the text says what is known, and what to do.
    Unanswered(String),
    Store(StoreError),
    Busy,
}

/// Why Postgres did not answer, or did not take a write.
fn cause(error: &StoreError) -> String {
    chained(error)
}

/// What is known of a write that failed. `done`: what Postgres may have done if it has not answered.
fn unwritten(error: &StoreError, done: &str) -> String {
    let why = cause(error);
    if error.is_answered() {
        format!(
            "Postgres refused the write ({why}). Nothing was changed: repeat it once the cause has passed."
        )
    } else {
        format!("Postgres did not answer in time ({why}), and {done}")
    }
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Self::NotFound(text)
            | Self::Bad(text)
            | Self::Refused(text)
            | Self::Unseen(text)
            | Self::Unanswered(text) => text.clone(),
            Self::Store(error) if error.is_unavailable() => {
                let why = cause(error);
                format!(
                    "Postgres does not answer, or took too long ({why}). This page tries again by itself; \
                     if it is a search, narrow it by queue, kind or age."
                )
            }
            Self::Store(error) if error.is_denied() => {
                "Postgres denies this program the right: give its role the rights of tenure_viewer, \
                 and for actions those of tenure_operator (postgres/roles.sql)."
                    .into()
            }
            Self::Store(error) => format!("{error}."),
            Self::Busy => "The dashboard is too busy; try again in a moment.".into(),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::Refused(_) | Self::Unseen(_) => StatusCode::FORBIDDEN,
            Self::Store(error) if error.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            // `tenure migrate` ends this as a restart of Postgres ends an outage.
            Self::Store(StoreError::NotMigrated(_)) | Self::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status(), self.text() + "\n").into_response()
    }
}

/// The routes of the dashboard, and of `metrics` for every user who may see its pages. If there are several cells, the
/// pages of each are below `/cells/NAME`.
pub(crate) fn router(served: &[Served], gate: Arc<Gate>, metrics: MethodRouter) -> Router {
    let Some(first) = served.first() else { return Router::new() };
    // These settings are the process's: all cells have the same.
    let serve = &first.tenure.config().serve;
    let top = (served.len() > 1).then(|| serve.base_path.clone());
    let streams = Places::new(live::STREAMS_MAX, live::STREAMS_OF_ONE);
    let searches = Places::new(SEARCHES_MAX, SEARCHES_OF_ONE);
    let viewers = |of: &Served| {
        let cell = of.tenure.config().cell.clone();
        let base = match (&top, &cell) {
            (Some(top), Some(cell)) => format!("{top}/cells/{cell}"),
            _ => serve.base_path.clone(),
        };
        View {
            tenure: of.tenure.clone(),
            base,
            cell,
            top: top.clone(),
            cells: Arc::default(),
            has_actions: false,
            shows_payloads: serve.shows_payloads,
            looks: Scope::default(),
            trace_url: serve.trace_url.clone(),
            log_url: serve.log_url.clone(),
            main: Handle::current(),
            streams: streams.clone(),
            searches: searches.clone(),
            figures: Arc::default(),
        }
    };
    let mut rooms: Vec<_> = served.iter().map(|of| Room::new(viewers(of), serve.has_actions)).collect();
    if let Some(top) = &top {
        let cells =
            served.iter().zip(&rooms).map(|(of, room)| Cell::new(&room.viewers, &of.health)).collect();
        rooms.push(Room::new(View { base: top.clone(), cell: None, cells, ..viewers(first) }, false));
    }
    let door = Arc::new(Door { gate, base: serve.base_path.clone(), rooms });
    Router::new()
        .fallback(answer)
        .with_state(door.clone())
        .route("/metrics", metrics.layer(middleware::from_fn(look::all_queues)))
        .layer(middleware::from_fn_with_state(door, check))
        .layer(middleware::map_response(guarded))
}

/// Passes a request on if its sender may see the dashboard.
async fn check(
    State(door): State<Arc<Door>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let (headers, path) = (request.headers().clone(), request.uri().path().to_owned());
    match door.gate.enter(peer.ip(), headers, path, For::Pages).await {
        Ok(who) => {
            let remember = who.remember.as_ref().map(|Remember { name, value, kept_for }| {
                let mut remember = cookie(&door.base, name.clone(), value.clone());
                // Also for the first request after a link on another site.
                remember.set_same_site(SameSite::Lax);
                if let Ok(age) = (*kept_for).try_into() {
                    remember.set_max_age(Some(age));
                }
                remember
            });
            let is_tls = arrived_by_tls(request.headers());
            request.extensions_mut().insert(who);
            let mut response = next.run(request).await;
            if let Some(remember) = remember {
                set(&mut response, &remember);
            }
            if is_tls {
                keep_cookies_to_tls(&mut response);
            }
            response
        }
        Err(why) => door.refusal(why, request.method()),
    }
}

impl Door {
    fn refusal(&self, why: Refused, method: &Method) -> Response {
        let text = why.text() + "\n";
        match why {
            Refused::Unknown | Refused::Wrong => {
                (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, self.gate.challenge())], text)
                    .into_response()
            }
            Refused::TooMany(..) => {
                let wait = why.wait_s().unwrap_or_default();
                let mut response = (StatusCode::TOO_MANY_REQUESTS, text).into_response();
                response.headers_mut().insert(header::RETRY_AFTER, wait.into());
                if method == Method::GET {
                    // A browser asks again with the same password, and then shows the page or asks for another.
                    response.headers_mut().insert(header::REFRESH, wait.into());
                }
                response
            }
            Refused::OtherHost | Refused::NotListed { .. } => (StatusCode::FORBIDDEN, text).into_response(),
        }
    }
}

/// Adds the headers that limit what a browser may do with a response.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn asset(name: &str) -> Response {
    let Some((_, of, text)) = ASSETS.iter().find(|(own, ..)| *own == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kept = "private, max-age=31536000, immutable";
    ([(header::CONTENT_TYPE, *of), (header::CACHE_CONTROL, kept)], *text).into_response()
}

/// Answers requests for pages, forms and assets.
async fn answer(
    State(door): State<Arc<Door>>,
    who: axum::Extension<Who>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    jar: CookieJar,
    body: Body,
) -> Response {
    let found = door.rooms.iter().find_map(|room| Some((room, room.rest(uri.path())?)));
    let Some((room, path)) = found else { return StatusCode::NOT_FOUND.into_response() };
    let actors = room.actors.seen_by(&who);
    let view = if who.only_looks.is_none() { actors.clone() } else { room.viewers.seen_by(&who) };
    let path: Vec<_> = path.split('/').filter(|part| !part.is_empty()).map(params::decoded).collect();
    if let [folder, name] = &path[..]
        && folder == "assets"
    {
        return asset(name);
    }
    let ask = Ask {
        path,
        query: Params::read(uri.query().unwrap_or_default().as_bytes()),
        form: Params::default(),
        csrf: None,
        only_looks: who.only_looks.clone().filter(|_| room.actors.has_actions),
        once: Uuid::new_v4().simple().to_string(),
        said: None,
        is_live: false,
        client: who.client.clone(),
    };
    if matches!(method, Method::GET | Method::HEAD)
        && let Some(turned_away) = look::turned_away(&view, &ask, &who)
    {
        return turned_away;
    }
    if view.shows_all_cells() {
        return cells::answer(view, ask, method, jar).await;
    }
    if method == Method::GET
        && let [of @ ("dead" | "jobs"), "count"] = ask.path.iter().map(String::as_str).collect::<Vec<_>>()[..]
    {
        let counted =
            if of == "dead" { dead::count(&view, &ask).await } else { jobs::count(&view, &ask).await };
        return match counted {
            Ok(counted) => {
                ([(header::CONTENT_TYPE, "application/json")], counted.to_string()).into_response()
            }
            Err(failure) => failure.into_response(),
        };
    }
    match method {
        Method::GET | Method::HEAD => show(view, ask, jar).await,
        Method::POST => match received(&view, &ask, body).await {
            Ok(form) => act(&actors, ask, &who, &headers, jar, &form).await,
            Err(failure) => failed(&view, &ask, &failure),
        },
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Receives the body of a form.
async fn received(view: &View, ask: &Ask, body: Body) -> Result<Bytes, Failure> {
    let payload_max = view.tenure.config().payload_bytes_max;
    let has_payload = actions::is_filled_in(ask);
    let most = FORM_MAX.saturating_add(if has_payload { payload_max.saturating_mul(ENCODED) } else { 0 });
    match timeout(FORM_WITHIN, axum::body::to_bytes(body, most)).await {
        Ok(Ok(form)) => Ok(form),
        Ok(Err(_)) if has_payload => Err(Failure::Bad(format!(
            "The form is too large: a payload has at most {payload_max} bytes (TENURE_PAYLOAD_BYTES_MAX). Nothing was \
             changed."
        ))),
        Ok(Err(_)) => Err(Failure::Bad(format!("The form has more than {most} bytes. Nothing was changed."))),
        Err(_) => Err(Failure::Bad(format!(
            "The form did not arrive within {}. Nothing was changed; send it again.",
            written(FORM_WITHIN)
        ))),
    }
}

async fn show(view: Arc<View>, mut ask: Ask, jar: CookieJar) -> Response {
    let csrf = jar.get(CSRF).map_or_else(|| Uuid::new_v4().simple().to_string(), |is| is.value().to_owned());
    ask.csrf = view.has_actions.then_some(csrf.clone());
    if ask.query.has("live") {
        ask.is_live = true;
        // The page stays as it is while nothing changes.
        ask.once = ask.query.get("live").unwrap_or(ask.once);
        return live::stream(view, ask);
    }
    ask.said = jar.get(SAID).and_then(|said| {
        let (is_done, text) = said.value().split_once('-')?;
        Some((is_done == "1", params::decoded(text)))
    });
    let rendered = match ask.searches().then(|| view.searches.take(&ask.client)).transpose() {
        Err(_) => Ok(Err(Failure::Busy)),
        Ok(place) => {
            let (main, view, ask) = (view.main.clone(), view.clone(), ask.clone());
            let rendering = async move {
                let _place = place;
                page(&view, &ask).await
            };
            main.spawn(rendering).await
        }
    };
    let mut response = match rendered {
        Ok(Ok(page)) => html(StatusCode::OK, page::layout(&view, &ask, &page)),
        Ok(Err(failure)) => {
            let mut response = failed(&view, &ask, &failure);
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                // Every browser heeds it, with or without a script.
                let again = if ask.searches() { SEARCH_AGAIN_AFTER } else { AGAIN_AFTER };
                response.headers_mut().insert(header::REFRESH, again.as_secs().into());
            }
            response
        }
        // The page panicked, or the program is ending.
        Err(_) => failed(&view, &ask, &Failure::Busy),
    };
    if view.has_actions && jar.get(CSRF).is_none() {
        set(&mut response, &cookie(&view.base, CSRF, csrf));
    }
    if ask.said.is_some() {
        let mut gone = cookie(&view.base, SAID, String::new());
        gone.make_removal();
        set(&mut response, &gone);
    }
    response
}

async fn act(
    view: &Arc<View>,
    mut ask: Ask,
    who: &Who,
    headers: &HeaderMap,
    jar: CookieJar,
    form: &Bytes,
) -> Response {
    ask.form = Params::read(form);
    if !view.has_actions {
        return failed(view, &ask, &Failure::Refused(page::READ_ONLY.into()));
    }
    ask.once = ask.form.get("once").unwrap_or(ask.once);
    let refused =
        |why: &dyn Display| failed(view, &ask, &Failure::Refused(format!("Nothing was changed: {why}")));
    if let Some(why) = &who.only_looks {
        tracing::warn!(
            cell = view.cell,
            who = who.name,
            action = ask.path.join("/"),
            "an action was refused: this user may only look"
        );
        return refused(why);
    }
    let cookie_token = jar.get(CSRF).map(Cookie::value);
    if let Err(why) = access::is_own(headers, ask.form.get("csrf").as_deref(), cookie_token) {
        let action = ask.path.join("/");
        tracing::warn!(cell = view.cell, who = who.name, action, why, "a form was refused");
        return refused(&format_args!("{why}."));
    }
    let is_filled_in = actions::is_filled_in(&ask);
    if is_filled_in && ask.form.has("preview") {
        return again(view.clone(), ask, cookie_token, None).await;
    }
    let done = {
        let (view, ask, who) = (view.clone(), ask.clone(), who.clone());
        view.main
            .clone()
            .spawn(async move {
                scope::check(&view, &ask, &who).await?;
                actions::act(&view, &ask, &who).await
            })
            .await
    };
    let mut to = None;
    let (is_done, said) = match done {
        Ok(Ok(done)) => {
            to = done.to;
            (1, done.said)
        }
        Ok(Err(failure @ Failure::Refused(_))) => {
            let action = ask.path.join("/");
            tracing::warn!(
                cell = view.cell,
                who = who.name,
                action,
                why = failure.text(),
                "an action was refused"
            );
            return failed(view, &ask, &failure);
        }
        Ok(Err(failure)) if is_filled_in => {
            return again(view.clone(), ask, cookie_token, Some(failure)).await;
        }
        Ok(Err(Failure::Store(error))) if error.is_unavailable() => {
            (0, unwritten(&error, "may have done part of it. Check, and repeat it: that is safe."))
        }
        Ok(Err(failure)) => (0, failure.text()),
        Err(_) => (0, "The action failed; see the log of `tenure serve`.".into()),
    };
    let said: String = said.chars().take(SAID_MAX).collect();
    // Back to the page that sent the form, which must be one of ours.
    let back = ask.form.get("back").filter(|back| is_ours(back)).unwrap_or_else(|| "/".into());
    let back = to.unwrap_or(back);
    let said = cookie(&view.base, SAID, format!("{is_done}-{}", params::encoded(&said)));
    let location = format!("{}{back}", view.base);
    (StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, said.to_string())])
        .into_response()
}

/// Shows a form again with what its user filled in: with what is wrong, or as a preview.
async fn again(view: Arc<View>, mut ask: Ask, csrf: Option<&str>, wrong: Option<Failure>) -> Response {
    ask.csrf = csrf.map(str::to_owned);
    let status = wrong.as_ref().map_or(StatusCode::OK, Failure::status);
    ask.said = wrong.map(|failure| (false, failure.text()));
    let rendered = {
        let (view, ask) = (view.clone(), ask.clone());
        view.main.clone().spawn(async move { page(&view, &ask).await }).await
    };
    match rendered {
        Ok(Ok(page)) => html(status, page::layout(&view, &ask, &page)),
        Ok(Err(failure)) => failed(&view, &ask, &failure),
        Err(_) => failed(&view, &ask, &Failure::Busy),
    }
}

/// Whether this is a path on this host.
fn is_ours(back: &str) -> bool {
    back.starts_with('/')
        && !back.starts_with("//")
        && back.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>'))
}

fn html(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()
}

fn failed(view: &View, ask: &Ask, failure: &Failure) -> Response {
    html(failure.status(), page::failed(view, ask, failure))
}

/// Reads and renders the requested page, by the database's clock.
async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    // Not only where a request comes in: a form is shown again, and a page that is followed is read again.
    look::check(view, ask)?;
    if view.shows_all_cells() {
        return cells::page(view, ask).await;
    }
    // The overview reads the time with its figures.
    if !ask.path.is_empty() {
        view.figures.clock.compare(view.tenure.store()).await?;
    }
    view.figures.clock.clone().during(Box::pin(page_of(view, ask))).await
}

async fn page_of(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let path: Vec<_> = ask.path.iter().map(String::as_str).collect();
    match path[..] {
        [] => overview::page(view, ask).await,
        ["jobs"] => jobs::page(view, ask).await,
        ["jobs", id] => job::page(view, ask, id).await,
        ["jobs", id, "graph"] => graph::page(view, ask, id).await,
        ["queues"] => queues::page(view, ask).await,
        ["queues", name] => queue::page(view, ask, name).await,
        ["queues", name, "lanes"] => lanes::page(view, ask, name).await,
        ["kinds"] => kinds::page(view, ask).await,
        ["enqueue"] => enqueue::page(view, ask).await,
        ["workers"] => workers::page(view, ask).await,
        ["workers", id] => worker::page(view, ask, id).await,
        ["dead"] => dead::page(view, ask).await,
        ["audit"] => audit::page(view, ask).await,
        ["recovery"] => recovery::page(view, ask).await,
        ["schedules"] => schedules::page(view, ask).await,
        ["schedules", name] => schedule::page(view, ask, name).await,
        ["schedule"] => schedule::form(view, ask).await,
        _ => Err(Failure::NotFound("This page does not exist.".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn no_redirect_leads_to_another_host() {
        for back in ["/", "/jobs?status=failed", "/jobs/0199#payload"] {
            assert!(is_ours(back), "{back}");
        }
        for back in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a b",
            "/\r\nset-cookie:a",
            "jobs",
        ] {
            assert!(!is_ours(back), "{back:?}");
        }
    }
}
