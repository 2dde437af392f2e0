//! A web page that shows a job's progress: the request's transaction enqueues the job, and server-sent events push each
//! change to the browser. `tenure dev`, then `cargo run --example axum_progress`, then open <http://127.0.0.1:3000>.
//!
//! ```text
//! POST /pictures           writes the picture and its job in one transaction; answers with the job's id
//! GET  /jobs/{id}/events   the job's progress and its end, pushed
//! ```
//!
//! Kill the program in the middle, and start it again: the page connects again by itself, and the bar goes on where the
//! job's checkpoint was.

use std::{convert::Infallible, error::Error, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{
        Html, IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use tenure::{Config, Job, JobContext, JobError, JobId, Outcome, Tenure, Worker, jobs::WaitError};

type Failure = Box<dyn Error + Send + Sync>;

// ANCHOR: job
#[derive(Debug, Serialize, Deserialize)]
struct Render {
    picture: i64,
    frames: u32,
}

impl Job for Render {
    const KIND: &'static str = "render";
    const QUEUE: &'static str = "pictures";
}

async fn render(job: Render, ctx: JobContext) -> Result<Outcome, JobError> {
    // An attempt that follows a crash begins at the last checkpoint.
    for frame in ctx.checkpoint().unwrap_or(0)..job.frames {
        tokio::time::sleep(Duration::from_millis(50)).await; // a frame
        ctx.save_checkpoint(&(frame + 1)).await?;
        let percent = f64::from(frame + 1) / f64::from(job.frames) * 100.0;
        #[expect(clippy::cast_possible_truncation, reason = "a percentage")]
        ctx.progress("rendering", percent as f32, &format!("frame {} of {}", frame + 1, job.frames)).await?;
    }
    Outcome::done(format!("/pictures/{}.png", job.picture))
}
// ANCHOR_END: job

#[derive(Clone)]
struct App {
    tenure: Tenure,
    pool: PgPool,
}

#[derive(Deserialize)]
struct NewPicture {
    name: String,
    frames: u32,
}

/// Every error is a 500 whose cause stands in the log.
struct Unexpected(Failure);

impl<E: Into<Failure>> From<E> for Unexpected {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Unexpected {
    fn into_response(self) -> Response {
        eprintln!("a request failed: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

// ANCHOR: routes
async fn create(State(app): State<App>, Json(new): Json<NewPicture>) -> Result<Json<JobId>, Unexpected> {
    let mut tx = app.pool.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO pictures (name) VALUES ($1) RETURNING id");
    let picture: i64 = insert.bind(&new.name).fetch_one(&mut *tx).await?;
    let job = app.tenure.enqueue(Render { picture, frames: new.frames }).tx(&mut tx).await?;
    tx.commit().await?;
    Ok(Json(job.id))
}

async fn events(State(app): State<App>, Path(id): Path<JobId>) -> Result<Response, Unexpected> {
    let feed = match app.tenure.watch(id).await {
        Ok(feed) => feed,
        Err(WaitError::NotFound(_)) => return Ok(StatusCode::NOT_FOUND.into_response()),
        Err(error) => return Err(error.into()),
    };
    let events = feed.map(|now| {
        let name = if now.status.is_finished() { "end" } else { "progress" };
        // Not `last_error`: it is for you, not for the browser.
        let (status, progress, message, output) = (now.status, now.progress, now.message, now.output);
        let shown = json!({"status": status, "progress": progress, "message": message, "output": output});
        Ok::<_, Infallible>(Event::default().event(name).json_data(shown).unwrap_or_default())
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}
// ANCHOR_END: routes

const PAGE: &str = r#"<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Render a picture</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 1rem system-ui; max-width: 30rem; margin: 2rem auto; padding: 0 1rem }
progress { width: 100% }
label { white-space: nowrap }
</style>
<h1>Render a picture</h1>
<form><label>Name <input name="name" value="sunset" required></label>
<label>Frames <input name="frames" type="number" value="60" min="1"></label> <button>Render</button></form>
<p><progress max="100" value="0" aria-label="Progress of the picture"></progress></p>
<p role="status"></p>
<script>
const form = document.forms[0], bar = document.querySelector("progress")
const status = document.querySelector("[role=status]")
const follow = id => {
  location.hash = id
  const source = new EventSource(`/jobs/${id}/events`)  // a browser reconnects by itself
  const show = job => {
    bar.value = job.status === "completed" ? 100 : job.progress ?? 0
    status.textContent = job.status === "completed" ? `done: ${job.output}`
      : job.status === "failed" ? "it could not be rendered" : job.message ?? job.status
  }
  source.addEventListener("progress", event => show(JSON.parse(event.data)))
  source.addEventListener("end", event => { show(JSON.parse(event.data)); source.close() })
}
form.addEventListener("submit", async event => {
  event.preventDefault()
  const body = JSON.stringify({ name: form.name.value, frames: Number(form.frames.value) })
  const answer = await fetch("/pictures", { method: "POST", headers: { "content-type": "application/json" }, body })
  if (answer.ok) follow(await answer.json())
  else status.textContent = `the server answered ${answer.status}`
})
if (location.hash.length > 1) follow(location.hash.slice(1))
</script></html>"#;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = Config::from_env()?;
    let pool = PgPool::connect(&config.database_url).await?;
    let tenure = Tenure::builder(&config).handler_pool(pool.clone()).connect().await?;
    tenure.migrate().await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS pictures (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)",
    )
    .execute(&pool)
    .await?;
    let routes = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/pictures", post(create))
        .route("/jobs/{id}/events", get(events))
        .with_state(App { tenure: tenure.clone(), pool });
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("open http://{}", listener.local_addr()?);
    // A page that is open has a stream that does not end by itself: the program does not wait for it.
    tokio::select! {
        served = axum::serve(listener, routes) => served?,
        worked = Worker::builder(&tenure).handle(render).run_until(tenure::shutdown_signal()) => worked?,
    }
    tenure.close().await;
    Ok(())
}
