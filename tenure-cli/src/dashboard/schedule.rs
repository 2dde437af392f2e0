//! Schedule: one schedule, and the form that adds or changes one.

use std::fmt::Display;

use chrono::Utc;
use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    actions::Said,
    enqueue::{attempts, json, line, once, payload},
    jobs::word,
    page::{self, Page, Regions, dated, seconds_between, stamped},
    params::encoded,
};
use crate::access::digest;
use tenure::{
    JobRequest, StoreError,
    internals::{MAX_ATTEMPTS_DEFAULT, Parts as _, Replaces, UnservedSchedule, next_ticks},
    rows::{JobRow, ScheduleRow},
    schedules::{MissedTicks, Overlap, Schedule, ScheduleError},
};

/// How many of the next ticks to show.
const TICKS: usize = 3;
/// How many of the latest jobs to show.
const JOBS: i64 = 20;
/// The most schedules without a worker to read.
pub(crate) const UNSERVED: i64 = 1_000;
/// How often a save looks again at a schedule that others change meanwhile.
const TRIES: u32 = 3;
const POLICIES: [(MissedTicks, &str); 3] = [
    (MissedTicks::Once, "once: one job makes up for all that were missed"),
    (MissedTicks::Skip, "skip: no job makes up for them"),
    (MissedTicks::All, "all: a job for each"),
];

const OVERLAPS: [(Overlap, &str); 4] = [
    (Overlap::Allow, "allow: enqueue the job, both may run at once"),
    (Overlap::Skip, "skip: enqueue no job"),
    (Overlap::Queue, "queue: wait for the end of the last job"),
    (Overlap::Cancel, "cancel: cancel the last job, and enqueue this one"),
];

async fn of_name(view: &View, name: &str) -> Result<ScheduleRow, Failure> {
    let schedules = view.tenure.schedules().await?;
    let found = schedules.into_iter().find(|of| of.name == name);
    found.ok_or_else(|| Failure::NotFound(format!("Schedule {name:?} does not exist.")))
}

pub(super) async fn page(view: &View, ask: &Ask, name: &str) -> Result<Page, Failure> {
    let schedule = of_name(view, name).await?;
    let unserved = view.tenure.store().unserved_schedules(UNSERVED).await?;
    // The page is useful without the jobs.
    let ticks = last_ticks(&schedule);
    let jobs = view.tenure.store().schedule_jobs(&schedule, JOBS, &ticks).await.map_err(Failure::from);
    let mut live = Regions::default();
    let body = html! {
        (live.put("head", head(view, ask, &schedule, &unserved)))
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

/// The word for the state of a schedule, given those that no live worker would run. The command line has it, too.
pub(crate) fn state(of: &ScheduleRow, unserved: &[UnservedSchedule]) -> &'static str {
    match unserved.iter().find(|lacks| lacks.name == of.name) {
        _ if of.paused_at.is_some() => "paused",
        Some(of) if of.is_queue_served => "unknown kind",
        Some(_) => "no worker",
        None => "active",
    }
}

/// The colour of that word.
pub(super) fn colour(state: &str) -> &'static str {
    match state {
        "paused" => "paused",
        "active" => "open",
        _ => "silent",
    }
}

fn head(view: &View, ask: &Ask, of: &ScheduleRow, unserved: &[UnservedSchedule]) -> Markup {
    let state = state(of, unserved);
    let is_paused = of.paused_at.is_some();
    let verb = if is_paused { "resume" } else { "pause" };
    html! {
        header.head #head {
            div {
                p.crumbs { a href={ (view.base) "/schedules" } { "Schedules" } }
                div.title {
                    h1 { (of.name) }
                    span.status.pill data-is=(colour(state)) { (state) }
                    @if state == "no worker" { span.soft { "no live worker serves the queue " (of.queue) } }
                    @if state == "unknown kind" { span.soft { "no live worker runs the kind " (of.kind) } }
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
                        (of.kind) " in " (page::queue_link(view, &of.queue))
                    }
                    dt { "Attempts" } dd { "at most " (of.max_attempts) }
                    @if let Some(field) = &of.tick_field { dt { "Field with the tick" } dd { code { (field) } } }
                    dt { "Missed ticks" } dd { (of.missed) }
                    dt { "Overlap" } dd { (of.overlap) }
                    @if let Some(options) = &of.options { dt { "Options of its jobs" } dd { code { (options) } } }
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

/// The last ticks of a schedule, the latest last: where its jobs are.
fn last_ticks(of: &ScheduleRow) -> Vec<chrono::DateTime<Utc>> {
    const LONGEST: chrono::TimeDelta = chrono::TimeDelta::days(400);
    let (Some(last), wanted) = (of.last_tick_at, usize::try_from(JOBS).unwrap_or_default()) else {
        return vec![];
    };
    let mut back = chrono::TimeDelta::seconds(20);
    loop {
        // Four times as long holds about four times as many.
        let ticks = next_ticks(&of.cron, &of.time_zone, last - back, wanted * 8).unwrap_or_default();
        let mut past: Vec<_> = ticks.into_iter().take_while(|tick| *tick <= last).collect();
        if past.len() >= wanted || back > LONGEST {
            // The expression may have changed since the last tick.
            past.extend((past.last() != Some(&last)).then_some(last));
            return past.split_off(past.len().saturating_sub(wanted));
        }
        back = back * 4;
    }
}

fn latest(view: &View, jobs: Result<&[JobRow], &Failure>) -> Markup {
    let now = super::clock::now();
    html! {
        section.panel #jobs {
            header { h2 { "Latest jobs" } p { "of its queue and kind, with its payload" } }
            @match jobs {
                Err(failure) => { div.body { (page::unread("The jobs", failure)) } }
                Ok([]) => { div.body { p.soft { "No job yet." } } }
                Ok(jobs) => {
                    div.scroll { table.cards {
                        thead { tr {
                            th scope="col" { "Job" }
                            th scope="col" { "Status" }
                            th scope="col" { "Error" }
                            th.num scope="col" { "Attempt" }
                            th.num scope="col" { "Ran, s" }
                            th.num scope="col" { "Created, UTC" }
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
            td data-label="Status" { (page::status(word(job), word(job))) }
            td.text.full.none[job.last_error.is_none()] {
                @if let Some(error) = &job.last_error { (page::error(error)) }
            }
            td.num.tight data-label="Attempt" { (job.attempt) span.soft { "/" (job.max_attempts) } }
            td.num.tight.none[ran.is_none()] data-label="Ran, s" { @if let Some(ran) = ran { (ran) } }
            td.num.tight data-label="Created" { (stamped(job.created_at)) }
        }
    }
}

/// What the form has in its fields.
#[derive(Debug, Clone)]
struct Fields {
    name: String,
    cron: String,
    time_zone: String,
    queue: String,
    kind: String,
    payload: String,
    max_attempts: String,
    missed: String,
    overlap: String,
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
            overlap: schedule.overlap.to_string(),
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
            overlap: Overlap::default().to_string(),
            tick_field: String::new(),
            is_new: true,
        }
    }

    /// The label and the value of each field.
    fn all(&self) -> [(&'static str, &str); 9] {
        [
            ("Expression", &self.cron),
            ("Time zone", &self.time_zone),
            ("Queue", &self.queue),
            ("Kind", &self.kind),
            ("Payload", &self.payload),
            ("Field with the tick", &self.tick_field),
            ("Attempts", &self.max_attempts),
            ("Missed ticks", &self.missed),
            ("Overlap", &self.overlap),
        ]
    }

    /// The fields in which this form and what is stored differ: label, stored value and own value. A payload that reads
    /// the same as JSON does not differ.
    fn differing<'f>(&'f self, stored: &'f Self) -> Vec<(&'static str, &'f str, &'f str)> {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        let pairs = self.all().into_iter().zip(stored.all());
        let pairs = pairs.map(|((field, mine), (_, theirs))| (field, theirs, mine));
        let differ = |(field, theirs, mine): &(&str, &str, &str)| {
            mine != theirs && (*field != "Payload" || read(mine).is_none() || read(mine) != read(theirs))
        };
        pairs.filter(differ).collect()
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
            // A form of an older page has none.
            overlap: Some(field("overlap"))
                .filter(|word| !word.is_empty())
                .unwrap_or_else(|| Overlap::default().to_string()),
            tick_field: field("tick_field"),
            is_new: ask.form.has("is_new"),
        }
    }
}

/// The page with the form.
pub(super) async fn form(view: &View, ask: &Ask) -> Result<Page, Failure> {
    page::for_actors(view, ask)?;
    let mut stored = None;
    let fields = match ask.query.get("name") {
        _ if ask.form.has("cron") => {
            let fields = Fields::filled_in(ask);
            if !fields.is_new {
                // The form is useful without it, such as while Postgres is away.
                stored = of_name(view, &fields.name).await.ok();
            }
            fields
        }
        Some(name) => Fields::of(stored.insert(of_name(view, &name).await?), view.shows_payloads),
        None => Fields::empty(),
    };
    let version = stored.as_ref().map(version);
    // What the user has not seen yet.
    let loaded = ask.form.get("loaded");
    let changed = stored.as_ref().filter(|_| loaded.is_some() && loaded != version);
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
        @if let Some(stored) = changed { (both(view, &fields, stored)) }
        form.panel.form method="post" action={ (view.base) "/schedule" } {
            (page::own(ask))
            @if fields.is_new {
                input type="hidden" name="is_new" value="1";
                (line("name", "Name", &fields.name, "daily-report", "1 to 64 of A-Z a-z 0-9 _ -"))
            } @else {
                input type="hidden" name="name" value=(fields.name);
                @if let Some(version) = version.or(loaded) { input type="hidden" name="loaded" value=(version); }
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
            (line("max_attempts", "Attempts", &fields.max_attempts, &MAX_ATTEMPTS_DEFAULT.to_string(),
                "at most, the first one included"))
            (choice("missed", "Missed ticks", &fields.missed, &POLICIES,
                "ticks while no worker ran for more than a minute"))
            (choice("overlap", "Overlap", &fields.overlap, &OVERLAPS,
                "ticks while the job of the last one is queued or runs"))
            div.actions {
                button name="preview" value="1" { "Preview the ticks" }
                button.primary { @if fields.is_new { "Add" } @else { "Save" } }
            }
        }
    };
    Ok(Regions::default().page(title, "schedules", body))
}

/// A field with the words of a policy to choose from, each with what it does.
fn choice<P: Display>(name: &str, label: &str, chosen: &str, policies: &[(P, &str)], about: &str) -> Markup {
    html! {
        label for=(name) { (label) }
        div {
            select id=(name) name=(name) {
                @for (policy, does) in policies {
                    @let word = policy.to_string();
                    option value=(word) selected[chosen == word] { (does) }
                }
            }
            p.soft { (about) }
        }
    }
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

/// What identifies the content of a stored schedule. Not when it was changed: a program puts its schedules whenever it
/// starts.
fn version(of: &ScheduleRow) -> String {
    let fields = Fields::of(of, true);
    digest(&fields.all().map(|(_, value)| value).join("\0"))
}

/// What is stored beside what the form has, where they differ.
fn both(view: &View, form: &Fields, stored: &ScheduleRow) -> Markup {
    let stored = Fields::of(stored, view.shows_payloads);
    html! {
        section.panel #changed {
            header { h2 { "Changed meanwhile" } p { "what is stored now, and what this form would store" } }
            div.scroll { table.cards {
                thead { tr { th scope="col" { "Field" } th scope="col" { "Stored now" } th scope="col" { "Yours" } } }
                tbody {
                    @for (field, theirs, mine) in form.differing(&stored) {
                        tr {
                            th scope="row" { (field) }
                            td.text data-label="Stored now" { (theirs) }
                            td.text data-label="Yours" { (mine) }
                        }
                    }
                }
            } }
        }
    }
}

/// Adds or changes the schedule of a form. Returns what to say, and its name.
pub(super) async fn put(view: &View, ask: &Ask) -> Result<(String, String), Failure> {
    let mut fields = Fields::filled_in(ask);
    let loaded = ask.form.get("loaded");
    for _ in 0..TRIES {
        let schedules =
            view.tenure.schedules().await.map_err(|error| unanswered(error, "Nothing was saved"))?;
        let stored = schedules.iter().find(|of| of.name == fields.name);
        let replaces = match stored {
            None if fields.is_new => Replaces::Nothing,
            None => return Err(Failure::Bad(format!("Schedule {:?} does not exist any more.", fields.name))),
            Some(stored) => {
                if fields.payload.is_empty() && !view.shows_payloads && !fields.is_new {
                    // The form did not show it.
                    fields.payload = Fields::of(stored, true).payload;
                }
                check_version(&fields, stored, loaded.as_deref())?;
                Replaces::Version(stored.changed_at)
            }
        };
        let schedule = stored.iter().fold(schedule(&fields)?, |schedule, stored| schedule.options_of(stored));
        let put = view.tenure.put_schedule_over(schedule, replaces).await;
        let put = put.map_err(|error| match error {
            ScheduleError::Store(error) => unanswered(error, "The schedule may be saved or not"),
            error => error.into(),
        })?;
        // Another user or program was faster: look at what is stored now.
        if let Some(put) = put {
            let what = if fields.is_new { "is added" } else { "is changed" };
            let next = match put.paused_at {
                Some(_) => "it is paused, and has no tick until it is resumed".to_owned(),
                None => format!("its next tick is at {}", put.next_at.format("%Y-%m-%d %H:%M:%S UTC")),
            };
            return Ok((format!("{} {what}; {next}.", fields.name), fields.name));
        }
    }
    Err(Failure::Bad(format!("{} changes all the time; nothing was saved. Save it again.", fields.name)))
}

/// Refuses to overwrite what the user has not seen. What the form would store may stand there already: its first
/// answer was lost, or its button was clicked twice.
fn check_version(fields: &Fields, stored: &ScheduleRow, loaded: Option<&str>) -> Result<(), Failure> {
    let name = &fields.name;
    if fields.differing(&Fields::of(stored, true)).is_empty() {
        return Ok(());
    }
    if fields.is_new {
        return Err(Failure::Bad(format!("Schedule {name:?} already exists; edit it on its page.")));
    }
    if loaded.is_some_and(|loaded| loaded != version(stored)) {
        return Err(Failure::Bad(format!(
            "Another user or a program has changed {name} since you opened this form; nothing was saved. Compare both, \
             and save again to replace what is stored."
        )));
    }
    Ok(())
}

/// The error of a save that got no answer; a form can be sent again.
fn unanswered(error: StoreError, known: &str) -> Failure {
    if !error.is_unavailable() {
        return error.into();
    }
    let why = super::cause(&error);
    let did = if error.is_answered() { "refused the write" } else { "did not answer" };
    Failure::Unanswered(format!(
        "{known}: Postgres {did} ({why}). Your entries are still in the form; save it again, which is safe."
    ))
}

/// The schedule of a form.
fn schedule(fields: &Fields) -> Result<Schedule, Failure> {
    let missed: MissedTicks = fields.missed.parse().map_err(Failure::Bad)?;
    let overlap: Overlap = fields.overlap.parse().map_err(Failure::Bad)?;
    let job = JobRequest::from_json(&fields.queue, &fields.kind, json(&fields.payload)?)
        .max_attempts(attempts(&fields.max_attempts)?);
    let schedule = Schedule::new(&fields.name, &fields.cron, job)
        .time_zone(&fields.time_zone)
        .missed(missed)
        .overlap(overlap);
    let field = Some(&fields.tick_field).filter(|field| !field.is_empty());
    Ok(match field {
        Some(field) => schedule.tick_field(field),
        None => schedule,
    })
}

/// Enqueues a schedule's job now, once for each page that shows the button.
pub(super) async fn run(view: &View, ask: &Ask, name: &str) -> Said {
    let key = once(ask, &[name]);
    let enqueued = match view.tenure.run_schedule_keyed(name, key).await {
        // Not safe to repeat: the page that follows has another key.
        Err(ScheduleError::Store(error)) if error.is_unavailable() => {
            let done = "may have the job. Look at the latest jobs of the schedule before you run it again.";
            return Err(Failure::Unanswered(super::unwritten(&error, done)));
        }
        enqueued => enqueued?,
    };
    Ok(if enqueued.duplicate {
        format!(
            "Job {} of {name} is enqueued already by this page; reload it to run {name} again.",
            enqueued.id
        )
    } else {
        format!("Job {} of {name} is enqueued; the next tick stays.", enqueued.id)
    })
}
