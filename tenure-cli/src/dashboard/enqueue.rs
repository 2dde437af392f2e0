//! Enqueue: a form for a new job, empty or filled in with what another job has.

use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::{
    Ask, Failure, View, jobs,
    page::{self, Page, Regions},
};
use crate::access::digest;
use tenure::{
    EnqueueError, JobId, JobRequest,
    internals::{MAX_ATTEMPTS_DEFAULT, Parts as _},
};

/// What a form has in its fields.
#[derive(Debug, Default)]
struct Fields {
    queue: String,
    kind: String,
    payload: String,
    run_at: String,
    max_attempts: String,
    unique_key: String,
    tags: String,
}

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    page::for_actors(view, ask)?;
    let mut note = None;
    let fields = if ask.form.has("queue") {
        filled_in(ask)
    } else if let Some(from) = ask.query.get("from") {
        let fields = of_job(view, &from).await?;
        note = Some(match (view.shows_payloads, fields.payload.is_empty()) {
            (true, false) => "A copy of the job, without its unique key. Change what should differ.",
            (true, true) => {
                "The job's payload is too large for this form, or it is a message that was no JSON."
            }
            (false, _) => "A copy of the job. This dashboard shows no payloads: enter its payload again.",
        });
        fields
    } else {
        Fields {
            queue: ask.query.get("queue").unwrap_or_default(),
            kind: ask.query.get("kind").unwrap_or_default(),
            payload: "{}".into(),
            max_attempts: MAX_ATTEMPTS_DEFAULT.to_string(),
            ..Fields::default()
        }
    };
    let body = html! {
        header.head {
            div {
                p.crumbs { a href={ (view.base) "/jobs" } { "Jobs" } }
                h1 { "Enqueue a job" }
                @if let Some(note) = note { p { (note) } }
            }
        }
        form.panel.form method="post" action={ (view.base) "/enqueue" } {
            (page::own(ask))
            (line("queue", "Queue", &fields.queue, "mail", ""))
            (line("kind", "Kind", &fields.kind, "welcome", "it selects the handler"))
            (payload(&fields.payload, "JSON; a string needs its own quotes"))
            (line("run_at", "Run at", &fields.run_at, "now",
                "empty for now; or 10m, 2h, 3d from now; or 2030-01-31T12:00:00Z"))
            (line("max_attempts", "Attempts", &fields.max_attempts, &MAX_ATTEMPTS_DEFAULT.to_string(),
                "at most, the first one included"))
            (line("tags", "Tags", &fields.tags, "none", "words or key=value, such as customer=7; spaces between them"))
            (line("unique_key", "Unique key", &fields.unique_key, "none",
                "empty for none; a second job of the same key is not enqueued"))
            div.actions { button.primary { "Enqueue" } }
        }
    };
    Ok(Regions::default().page("Enqueue a job", "jobs", body))
}

/// A field of one line.
pub(super) fn line(name: &str, label: &str, value: &str, example: &str, about: &str) -> Markup {
    html! {
        label for=(name) { (label) }
        div {
            input type="text" id=(name) name=(name) value=(value) placeholder=(example) autocomplete="off"
                spellcheck="false";
            @if !about.is_empty() { p.soft { (about) } }
        }
    }
}

pub(super) fn payload(value: &str, about: &str) -> Markup {
    let rows = value.lines().count().clamp(6, 24);
    html! {
        label for="payload" { "Payload" }
        div {
            // A browser drops a newline right after the tag.
            textarea id="payload" name="payload" rows=(rows) spellcheck="false" { "\n" (value) }
            p.soft { (about) }
        }
    }
}

fn filled_in(ask: &Ask) -> Fields {
    let field = |name| ask.form.filled_in(name).unwrap_or_default();
    Fields {
        queue: field("queue"),
        kind: field("kind"),
        payload: field("payload"),
        run_at: field("run_at"),
        max_attempts: field("max_attempts"),
        unique_key: field("unique_key"),
        tags: field("tags"),
    }
}

/// What a copy of a job starts with. Its unique key stays out: it would be the key of the same job.
async fn of_job(view: &View, id: &str) -> Result<Fields, Failure> {
    let gone = || Failure::NotFound(format!("Job {id:?} does not exist, so it cannot be cloned."));
    let id: JobId = id.parse().map_err(|_| gone())?;
    let store = view.tenure.store();
    let most = view.tenure.config().payload_bytes_max;
    let characters = i32::try_from(most).map_or(i32::MAX, |most| most.saturating_add(1));
    let (job, texts) = tokio::try_join!(store.show_job(id), store.job_texts(id, characters))?;
    let job = job.filter(|job| view.looks.has(&job.queue)).ok_or_else(gone)?;
    let payload = texts.and_then(|texts| texts.payload).filter(|_| view.shows_payloads);
    // Half a payload would be a wrong one.
    let is_whole = |text: &String| text.len() <= most;
    Ok(Fields {
        queue: job.queue,
        kind: job.kind,
        payload: payload.filter(is_whole).unwrap_or_default(),
        max_attempts: job.max_attempts.to_string(),
        tags: job.tags.join(" "),
        ..Fields::default()
    })
}

/// The unique key by which the clicks on one button of one page enqueue one job. `None`: the form is of an older page.
///
/// It depends on what the form has in its fields: a user who goes back and changes them wants another job.
pub(super) fn once(ask: &Ask, fields: &[&str]) -> Option<String> {
    let page = ask.form.get("once")?;
    Some(format!("form-{}", digest(&[&[page.as_str()], fields].concat().join("\0"))))
}

/// Enqueues the job of a form. Returns what to say, and the job to show.
pub(super) async fn enqueue(view: &View, ask: &Ask) -> Result<(String, JobId), Failure> {
    let fields = filled_in(ask);
    let Fields { queue, kind, payload, run_at: at, max_attempts, unique_key, tags } = &fields;
    let of_form =
        once(ask, &[queue, kind, payload, at, max_attempts, tags]).filter(|_| unique_key.is_empty());
    let mut request = JobRequest::from_json(fields.queue.trim(), fields.kind.trim(), json(&fields.payload)?)
        .max_attempts(attempts(&fields.max_attempts)?);
    request = jobs::tags(Some(tags.clone())).into_iter().fold(request, JobRequest::tag);
    match run_at(&fields.run_at)? {
        When::Now => {}
        When::After(delay) => request = request.delay(delay),
        When::At(at) => request = request.run_at(at),
    }
    let key = of_form.clone().or(Some(fields.unique_key).filter(|key| !key.is_empty()));
    let is_once = key.is_some();
    if let Some(key) = key {
        request = request.unique_key(key);
    }
    let enqueued = view.tenure.enqueue(request).await.map_err(|error| match error {
        EnqueueError::Store(error) if error.is_unavailable() => {
            let next = if is_once {
                "may have the job. Enqueue it again: it becomes one job."
            } else {
                "may have the job. Look at the newest jobs before you enqueue it again."
            };
            Failure::Unanswered(super::unwritten(&error, next))
        }
        error => error.into(),
    })?;
    let said = match (enqueued.duplicate, of_form) {
        (false, _) => "The job is enqueued.",
        (true, None) => "This job holds the unique key; nothing was enqueued.",
        (true, Some(_)) => {
            "This form has enqueued this job before; nothing more was enqueued. For another one, open the form again."
        }
    };
    Ok((said.into(), enqueued.id))
}

/// The payload of a form.
pub(super) fn json(text: &str) -> Result<String, Failure> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| {
        Failure::Bad(format!(
            "The payload is not JSON ({error}); a string needs its own quotes, as in \"text\"."
        ))
    })?;
    Ok(text.trim().to_owned())
}

/// The number of attempts of a form.
pub(super) fn attempts(text: &str) -> Result<u32, Failure> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(MAX_ATTEMPTS_DEFAULT);
    }
    let attempts = text.parse().ok().filter(|attempts| (1..=1_000).contains(attempts));
    attempts.ok_or_else(|| Failure::Bad(format!("Invalid number of attempts {text:?}; enter 1 to 1000.")))
}

enum When {
    Now,
    After(Duration),
    At(DateTime<Utc>),
}

fn run_at(text: &str) -> Result<When, Failure> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(When::Now);
    }
    if let Ok(delay) = humantime::parse_duration(text) {
        return Ok(When::After(delay));
    }
    DateTime::parse_from_rfc3339(text).map(|at| When::At(at.to_utc())).map_err(|_| {
        Failure::Bad(format!(
            "Invalid time {text:?}; enter a span such as 10m, 2h or 3d, a time with its zone such as \
             2030-01-31T12:00:00Z, or nothing for now."
        ))
    })
}

impl From<EnqueueError> for Failure {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::Store(error) => error.into(),
            error => Self::Bad(page::sentence(&error.to_string().replace("unique_key", "the unique key"))),
        }
    }
}
