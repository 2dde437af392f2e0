//! Schedule: one schedule, and the form that adds or changes one.

use chrono::Utc;
use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    actions::Said,
    enqueue::{attempts, json, line, payload},
    page::{self, Page, Regions, dated, seconds_between, time},
    params::encoded,
};
use tenure::{
    JobRequest, MissedTicks, Schedule, ScheduleError,
    internals::{MAX_ATTEMPTS_DEFAULT, Parts as _, next_ticks},
    rows::{JobRow, ScheduleRow},
};

/// How many of the next ticks to show.
const TICKS: usize = 3;
/// How many of the latest jobs to show.
const JOBS: i64 = 20;
const POLICIES: [(MissedTicks, &str); 3] = [
    (MissedTicks::Once, "once: one job makes up for all that were missed"),
    (MissedTicks::Skip, "skip: no job makes up for them"),
    (MissedTicks::All, "all: a job for each"),
];

async fn of_name(view: &View, name: &str) -> Result<ScheduleRow, Failure> {
    let schedules = view.tenure.schedules().await?;
    let found = schedules.into_iter().find(|of| of.name == name);
    found.ok_or_else(|| Failure::NotFound(format!("Schedule {name:?} does not exist.")))
}

pub(super) async fn page(view: &View, ask: &Ask, name: &str) -> Result<Page, Failure> {
    let schedule = of_name(view, name).await?;
    // The page is useful without the jobs.
    let jobs = view.tenure.store().schedule_jobs(&schedule, JOBS).await.ok();
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(view, ask, &schedule)))
        (live.put("facts", facts(view, &schedule)))
        (live.put("jobs", latest(view, jobs.as_deref())))
        @if let Some(payload) = schedule.payload_json().filter(|_| view.shows_payloads) {
            section.panel {
                header { h2 { "Payload" } }
                pre tabindex="0" { (payload) }
            }
        }
    };
    Ok(live.page(name, "schedules", body))
}

fn head(view: &View, ask: &Ask, of: &ScheduleRow) -> Markup {
    let is_paused = of.paused_at.is_some();
    let verb = if is_paused { "resume" } else { "pause" };
    html! {
        header.head #head {
            div {
                p.crumbs { a href={ (view.base) "/schedules" } { "Schedules" } }
                div.title {
                    h1 { (of.name) }
                    @if is_paused { span.status.pill data-is="paused" { "paused" } }
                    @else { span.status.pill data-is="open" { "active" } }
                }
            }
            @if view.has_actions {
                div.actions {
                    a.button href={ (view.base) "/schedule?name=" (encoded(&of.name)) } { "Edit" }
                    form method="post" action={ (view.base) "/schedules/" (of.name) "/" (verb) } {
                        (page::own(ask))
                        button { @if is_paused { "Resume" } @else { "Pause" } }
                    }
                    (run_form(view, ask, of))
                }
            }
        }
    }
}

/// The form that runs a schedule now.
pub(super) fn run_form(view: &View, ask: &Ask, of: &ScheduleRow) -> Markup {
    html! {
        form method="post" action={ (view.base) "/schedules/" (of.name) "/run" }
            data-confirm={ "Enqueue a job of " (of.name) " now? Its next tick stays." } {
            (page::own(ask))
            button { "Run now" }
        }
    }
}

fn facts(view: &View, of: &ScheduleRow) -> Markup {
    html! {
        section.panel #facts {
            header { h2 { "Facts" } }
            div.body {
                dl.facts {
                    dt { "Expression" } dd { code { (of.cron) } " in " (of.time_zone) }
                    dt { "Enqueues" }
                    dd {
                        (of.kind) " in "
                        a href={ (view.base) "/jobs?queue=" (encoded(&of.queue)) } { (of.queue) }
                    }
                    dt { "Attempts" } dd { "at most " (of.max_attempts) }
                    @if let Some(field) = &of.tick_field { dt { "Field with the tick" } dd { code { (field) } } }
                    dt { "Missed ticks" } dd { (of.missed) }
                    dt { "Next ticks" }
                    dd {
                        @if of.paused_at.is_some() { "none while it is paused" }
                        @else { (dated(of.next_at)) (ticks(&of.cron, &of.time_zone, of.next_at, TICKS - 1)) }
                    }
                    @if let Some(at) = of.last_tick_at {
                        dt { "Last tick" }
                        dd {
                            (dated(at))
                            @if let Some(job) = of.last_job_id { " " (page::job_link(view, job, "its job")) }
                        }
                    }
                    dt { "Changed" } dd { (dated(of.changed_at)) }
                }
            }
        }
    }
}

/// The ticks after this time, a line for each.
fn ticks(cron: &str, zone: &str, after: chrono::DateTime<Utc>, most: usize) -> Markup {
    html! {
        @for at in next_ticks(cron, zone, after, most).unwrap_or_default() { br; (dated(at)) }
    }
}

fn latest(view: &View, jobs: Option<&[JobRow]>) -> Markup {
    let now = Utc::now();
    html! {
        section.panel #jobs {
            header { h2 { "Latest jobs" } p { "of its queue and kind, with its payload" } }
            @match jobs {
                None => { div.body { p.soft { "Too many jobs to look through." } } }
                Some([]) => { div.body { p.soft { "No job yet." } } }
                Some(jobs) => {
                    div.scroll { table.cards {
                        thead { tr {
                            th scope="col" { "Job" }
                            th scope="col" { "Status" }
                            th scope="col" { "Error" }
                            th.num scope="col" { "Attempt" }
                            th.num scope="col" { "Ran, s" }
                            th.num scope="col" { "Created" }
                        } }
                        tbody { @for job in jobs { (row(view, job, now)) } }
                    } }
                }
            }
        }
    }
}

fn row(view: &View, job: &JobRow, now: chrono::DateTime<Utc>) -> Markup {
    let ran = job.started_at.map(|from| seconds_between(from, job.finished_at.unwrap_or(now)));
    html! {
        tr id={ "job-" (job.id) } {
            th.tight scope="row" { (page::job_link(view, job.id, &job.kind)) }
            td data-label="Status" { (page::status(job.status.as_str(), job.status.as_str())) }
            td.text.full.none[job.last_error.is_none()] {
                @if let Some(error) = &job.last_error { (page::error(error)) }
            }
            td.num.tight data-label="Attempt" { (job.attempt) span.soft { "/" (job.max_attempts) } }
            td.num.tight.none[ran.is_none()] data-label="Ran, s" { @if let Some(ran) = ran { (ran) } }
            td.num.tight data-label="Created" { (time(job.created_at)) }
        }
    }
}

/// What the form has in its fields.
struct Fields {
    name: String,
    cron: String,
    time_zone: String,
    queue: String,
    kind: String,
    payload: String,
    max_attempts: String,
    missed: String,
    tick_field: String,
    is_new: bool,
}

impl Fields {
    fn of(schedule: &ScheduleRow, shows_payload: bool) -> Self {
        Self {
            name: schedule.name.clone(),
            cron: schedule.cron.clone(),
            time_zone: schedule.time_zone.clone(),
            queue: schedule.queue.clone(),
            kind: schedule.kind.clone(),
            payload: schedule
                .payload_json()
                .filter(|_| shows_payload)
                .map(ToString::to_string)
                .unwrap_or_default(),
            max_attempts: schedule.max_attempts.to_string(),
            missed: schedule.missed.to_string(),
            tick_field: schedule.tick_field.clone().unwrap_or_default(),
            is_new: false,
        }
    }

    fn empty() -> Self {
        Self {
            name: String::new(),
            cron: String::new(),
            time_zone: "UTC".into(),
            queue: String::new(),
            kind: String::new(),
            payload: "{}".into(),
            max_attempts: MAX_ATTEMPTS_DEFAULT.to_string(),
            missed: MissedTicks::default().to_string(),
            tick_field: String::new(),
            is_new: true,
        }
    }

    fn filled_in(ask: &Ask) -> Self {
        let field = |name| ask.form.filled_in(name).unwrap_or_default().trim().to_owned();
        Self {
            name: field("name"),
            cron: field("cron"),
            time_zone: field("time_zone"),
            queue: field("queue"),
            kind: field("kind"),
            payload: field("payload"),
            max_attempts: field("max_attempts"),
            missed: field("missed"),
            tick_field: field("tick_field"),
            is_new: ask.form.has("is_new"),
        }
    }
}

/// The page with the form.
pub(super) async fn form(view: &View, ask: &Ask) -> Result<Page, Failure> {
    if !view.has_actions {
        return Err(Failure::Refused(page::READ_ONLY.into()));
    }
    let fields = match ask.query.get("name") {
        _ if ask.form.has("cron") => Fields::filled_in(ask),
        Some(name) => Fields::of(&of_name(view, &name).await?, view.shows_payloads),
        None => Fields::empty(),
    };
    let title = if fields.is_new { "Add a schedule".to_owned() } else { format!("Edit {}", fields.name) };
    let about_payload = if view.shows_payloads || fields.is_new {
        "JSON"
    } else {
        "JSON; empty: it stays, and is not shown here"
    };
    let body = html! {
        header.head {
            div {
                p.crumbs { a href={ (view.base) "/schedules" } { "Schedules" } }
                h1 { (title) }
            }
        }
        form.panel.form method="post" action={ (view.base) "/schedule" } {
            (page::own(ask))
            @if fields.is_new {
                input type="hidden" name="is_new" value="1";
                (line("name", "Name", &fields.name, "daily-report", "1 to 64 of A-Z a-z 0-9 _ -"))
            } @else {
                input type="hidden" name="name" value=(fields.name);
            }
            (line("cron", "Expression", &fields.cron, "0 3 * * MON-FRI",
                "minute hour day month weekday, with seconds before them or without"))
            (line("time_zone", "Time zone", &fields.time_zone, "UTC", "a name such as Europe/Berlin"))
            span { "Next ticks" }
            div #ticks { (preview(&fields)) }
            (line("queue", "Queue", &fields.queue, "reports", ""))
            (line("kind", "Kind", &fields.kind, "daily", ""))
            (payload(&fields.payload, about_payload))
            (line("tick_field", "Field with the tick", &fields.tick_field, "none",
                "empty, or the name of a field that gets the time of the tick"))
            (line("max_attempts", "Attempts", &fields.max_attempts, "5", "at most, the first one included"))
            label for="missed" { "Missed ticks" }
            div {
                select id="missed" name="missed" {
                    @for (policy, about) in POLICIES {
                        @let word = policy.to_string();
                        option value=(word) selected[fields.missed == word] { (about) }
                    }
                }
                p.soft { "ticks while no worker ran for more than a minute" }
            }
            div.actions {
                button name="preview" value="1" { "Preview the ticks" }
                button.primary { @if fields.is_new { "Add" } @else { "Save" } }
            }
        }
    };
    Ok(Regions::default().page(title, "schedules", body))
}

fn preview(fields: &Fields) -> Markup {
    html! {
        @if fields.cron.is_empty() {
            p.soft { "after the expression is entered: Preview" }
        } @else {
            @match next_ticks(&fields.cron, &fields.time_zone, Utc::now(), TICKS).as_deref() {
                Ok([]) => p.wrong { "The expression has no tick in the future." },
                Ok(all) => ol { @for at in all { li { (dated(*at)) } } },
                Err(wrong) => p.wrong { (page::sentence(wrong)) },
            }
        }
    }
}

/// Adds or changes the schedule of a form. Returns what to say, and its name.
pub(super) async fn put(view: &View, ask: &Ask) -> Result<(String, String), Failure> {
    let fields = Fields::filled_in(ask);
    let known = view.tenure.schedules().await?.into_iter().find(|of| of.name == fields.name);
    let json = match (&known, fields.is_new) {
        (Some(_), true) => {
            return Err(Failure::Bad(format!(
                "Schedule {:?} already exists; edit it on its page.",
                fields.name
            )));
        }
        (None, false) => {
            return Err(Failure::Bad(format!("Schedule {:?} does not exist any more.", fields.name)));
        }
        // The form did not show it.
        (Some(known), false) if fields.payload.is_empty() && !view.shows_payloads => {
            known.payload_json().map_or("null", |json| json.get()).to_owned()
        }
        _ => json(&fields.payload)?,
    };
    let missed: MissedTicks = fields.missed.parse().map_err(Failure::Bad)?;
    let job =
        JobRequest::from_json(fields.queue, fields.kind, json).max_attempts(attempts(&fields.max_attempts)?);
    let mut schedule =
        Schedule::new(&fields.name, fields.cron, job).time_zone(fields.time_zone).missed(missed);
    if !fields.tick_field.is_empty() {
        schedule = schedule.tick_field(fields.tick_field);
    }
    let next = view.tenure.put_schedule(schedule).await?.next_at.format("%Y-%m-%d %H:%M:%S UTC");
    let what = if fields.is_new { "is added" } else { "is changed" };
    Ok((format!("{} {what}; its next tick is at {next}.", fields.name), fields.name))
}

/// Enqueues a schedule's job now.
pub(super) async fn run(view: &View, name: &str) -> Said {
    let enqueued = match view.tenure.run_schedule(name).await {
        // Not safe to repeat: each run is a job.
        Err(ScheduleError::Store(error)) if error.is_unavailable() => {
            return Err(Failure::Bad(
                "Postgres did not answer in time, and may have the job. Look at the latest jobs of the schedule before \
                 you run it again."
                    .into(),
            ));
        }
        enqueued => enqueued?,
    };
    Ok(format!("Job {} of {name} is enqueued; the next tick stays.", enqueued.id))
}
