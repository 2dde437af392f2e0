//! Page: the frame of every page, and the markup of times, statuses and workers.

use chrono::{DateTime, Datelike as _, Utc};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Ask, EDITION, Failure, View, clock::now, look, params::encoded};
use tenure::{
    JobId, StoreError,
    internals::{Event, duration::coarse},
};

pub(super) const READ_ONLY: &str =
    "Nothing was changed: this dashboard is read-only; `tenure serve --actions` allows actions.";

/// Refuses a page of forms to those who may only look.
pub(super) fn for_actors(view: &View, ask: &Ask) -> Result<(), Failure> {
    match &ask.only_looks {
        _ if view.has_actions => Ok(()),
        Some(why) => Err(Failure::Refused(sentence(why))),
        None => Err(Failure::Refused(READ_ONLY.into())),
    }
}

/// A part of a page that live updates replace. Its element has this ID.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) id: &'static str,
    pub(super) markup: Markup,
}

/// The content of a page.
#[derive(Debug)]
pub(super) struct Page {
    title: String,
    /// Its name in the navigation.
    of: &'static str,
    body: Markup,
    regions: Vec<Region>,
    aging: Option<Aging>,
    is_final: bool,
}

/// A region with the age of what the page shows, and that age in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aging {
    pub(super) region: fn(Option<f64>) -> Region,
    pub(super) age_s: f64,
}

/// Collects the regions of a page while its body is built.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Regions {
    /// Adds a region; `markup` is one element with this ID.
    pub(super) fn put(&mut self, id: &'static str, markup: Markup) -> Markup {
        self.0.push(Region { id, markup: markup.clone() });
        markup
    }

    pub(super) fn page(self, title: impl Into<String>, of: &'static str, body: Markup) -> Page {
        Page { title: title.into(), of, body, regions: self.0, aging: None, is_final: false }
    }
}

impl Page {
    /// `is_final`: the subject of the page no longer changes.
    pub(super) fn finally(self, is_final: bool) -> Self {
        Self { is_final, ..self }
    }

    /// While the page cannot be read again, this region shows that its data grow old.
    pub(super) fn aging(self, aging: Option<Aging>) -> Self {
        Self { aging, ..self }
    }

    pub(super) fn ages(&self) -> Option<Aging> {
        self.aging
    }

    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    pub(super) fn into_regions(self) -> Vec<Region> {
        self.regions.into_iter().chain([notice(None)]).collect()
    }
}

/// The notice above a page while its updates fail.
pub(super) fn notice(text: Option<&str>) -> Region {
    let markup = html! {
        div.stack #notice hidden[text.is_none()] {
            @if let Some(text) = text { p.notice.bad { span { (text) } } }
        }
    };
    Region { id: "notice", markup }
}

/// The pages of the navigation: key, name, address, label.
pub(super) const PAGES: [(&str, &str, &str, &str); 9] = [
    ("o", "overview", "/", "Overview"),
    ("j", "jobs", "/jobs", "Jobs"),
    ("q", "queues", "/queues", "Queues"),
    ("k", "kinds", "/kinds", "Kinds"),
    ("w", "workers", "/workers", "Workers"),
    ("d", "dead", "/dead", "Dead letters"),
    ("r", "recovery", "/recovery", "Recovery"),
    ("s", "schedules", "/schedules", "Schedules"),
    ("a", "audit", "/audit", "Audit"),
];

const KEYS: [(&[&str], &str); 17] = [
    (&["?"], "this help"),
    (&["/"], "search"),
    (&["j", "k"], "next, previous row"),
    (&["g", "o"], "Overview"),
    (&["Enter"], "open the row"),
    (&["g", "j"], "Jobs"),
    (&["x"], "select the row"),
    (&["g", "q"], "Queues"),
    (&["p"], "pause live updates"),
    (&["g", "w"], "Workers"),
    (&["Esc"], "leave a field, a dialog"),
    (&["g", "d"], "Dead letters"),
    (&["Tab"], "everything else"),
    (&["g", "r"], "Recovery"),
    (&["g", "k"], "Kinds"),
    (&["g", "s"], "Schedules"),
    (&["g", "a"], "Audit"),
];

const ALL_CELLS: (&[&str], &str) = (&["g", "c"], "All cells");

/// The page's address, without the base.
pub(super) fn here(ask: &Ask) -> String {
    let path: Vec<_> = ask.path.iter().map(|part| encoded(part)).collect();
    let query = ask.query.with("live", None);
    let mark = if query.is_empty() { "" } else { "?" };
    format!("/{}{mark}{query}", path.join("/"))
}

pub(super) fn layout(view: &View, ask: &Ask, page: &Page) -> String {
    let here = here(ask);
    let mark = if here.contains('?') { '&' } else { '?' };
    let live = format!("{}{here}{mark}live={}", view.base, ask.once);
    let body = html! {
        (notice(None).markup)
        @if let Some((is_done, said)) = &ask.said {
            p.flash.bad[!is_done] role="status" { span { (said) } }
        }
        (page.body)
    };
    document((view, ask), &page.title, page.of, (!page.regions.is_empty()).then_some(live.as_str()), &body)
}

/// The page of a failure.
pub(super) fn failed(view: &View, ask: &Ask, failure: &Failure) -> String {
    let status = failure.status();
    let title = match failure {
        Failure::NotFound(_) => "Not found",
        Failure::Bad(_) => "Invalid request",
        Failure::Refused(_) if ask.only_looks.is_some() => "You may only look",
        Failure::Refused(_) if !view.has_actions => "This dashboard is read-only",
        Failure::Refused(_) => "Refused",
        Failure::Unseen(_) => "You may not look here",
        Failure::Unanswered(_) => "Postgres is unavailable",
        Failure::Store(error) if error.is_unavailable() => "Postgres is unavailable",
        Failure::Store(StoreError::NotMigrated(_)) => "The schema is missing or too old",
        Failure::Store(_) => "The request failed",
        Failure::Busy => "Too busy",
    };
    let of = ask.path.first().map_or("overview", String::as_str);
    let of = PAGES.iter().find(|(_, name, ..)| *name == of).map_or("overview", |(_, name, ..)| name);
    let (of, back) = match () {
        () if view.shows_all_cells() => ("cells", "Back to all cells"),
        () if !view.looks.is_all() => (of, "Back to your queues"),
        () => (of, "Back to the overview"),
    };
    let body = html! {
        div.lonely {
            p.code { (status.as_u16()) }
            h1 { (title) }
            p { (failure.text()) }
            a.button href={ (view.base) "/" } { (back) }
        }
    };
    document((view, ask), title, of, None, &body)
}

fn document((view, ask): (&View, &Ask), title: &str, of: &str, live: Option<&str>, body: &Markup) -> String {
    let asset = |name: &str| format!("{}/assets/{name}?{}", view.base, *EDITION);
    let all = view.shows_all_cells();
    let pages: Vec<_> = look::pages(view).collect();
    let leads = |keys: &[&str]| pages.iter().any(|(key, ..)| keys.last() == Some(key));
    let keys = KEYS.into_iter().filter(|(keys, _)| keys.first() != Some(&"g") || leads(keys));
    let keys = keys.chain(view.top.as_ref().map(|_| ALL_CELLS));
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) @if let Some(cell) = &view.cell { " · " (cell) } " · tenure" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(asset("style.css"));
                script src=(asset("live.js")) {}
                script src=(asset("idiomorph.min.js")) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header.side {
                    a.brand href={ (view.base) "/" } {
                        svg viewBox="0 0 20 20" aria-hidden="true" {
                            path d="M2 2h16v5H2z" {}
                            path d="M7.5 9h5v9h-5z" {}
                        }
                        "tenure"
                    }
                    nav aria-label="Pages" {
                        ul {
                            @if let Some(top) = &view.top {
                                li {
                                    a href={ (top) "/" } data-key="c" aria-current=[all.then_some("page")] {
                                        "All cells"
                                    }
                                }
                            }
                            @if let Some(cell) = &view.cell { li.cell { "Cell " b { (cell) } } }
                            @for (key, name, path, label) in &pages {
                                li {
                                    a href={ (view.base) (path) } data-key=(key)
                                        aria-current=[(*name == of).then_some("page")] { (label) }
                                }
                            }
                        }
                    }
                    div.tools {
                        div.live.needs-js hidden[live.is_none()] {
                            span #live-state role="status" {}
                            button.plain #live-pause type="button" { "Pause" }
                        }
                        button.plain.needs-js #theme type="button" { "Theme: auto" }
                        button.plain.needs-js #keys-open type="button" { "Shortcuts " kbd { "?" } }
                        span.version {
                            "tenure " (env!("CARGO_PKG_VERSION"))
                            @if let Some(why) = &ask.only_looks {
                                span title=(sentence(why)) { " · you may only look" }
                            } @else if !view.has_actions && !all { " · read-only" }
                        }
                    }
                }
                main #main tabindex="-1" data-live=[live] { (body) }
                dialog #keys aria-labelledby="keys-title" {
                    header {
                        h2 #keys-title { "Keyboard shortcuts" }
                        form method="dialog" { button { "Close" } }
                    }
                    dl.keys {
                        @for (keys, does) in keys {
                            dt { @for key in keys { kbd { (key) } " " } }
                            dd { (does) }
                        }
                    }
                    label.check { input #keys-on type="checkbox" checked; " Use these keys" }
                }
            }
        }
    };
    markup.into_string()
}

/// The heading of a page.
pub(super) fn head(title: &str, about: Markup) -> Markup {
    html! { header.head { div { h1 { (title) } @if !about.0.is_empty() { p { (about) } } } } }
}

/// The fields of every form.
pub(super) fn own(ask: &Ask) -> Markup {
    html! {
        @if let Some(csrf) = &ask.csrf {
            input type="hidden" name="csrf" value=(csrf);
            input type="hidden" name="back" value=(here(ask));
            input type="hidden" name="once" value=(ask.once);
        }
    }
}

/// `12,345`.
pub(super) fn number(n: impl Into<i128>) -> String {
    let n = n.into();
    let digits = n.unsigned_abs().to_string();
    let mut text = if n < 0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How long ago, or how soon, in one unit.
fn relative(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    match (at - now).num_seconds() {
        0 => "now".into(),
        1.. => format!("in {}", coarse(passed(now, at))),
        _ => format!("{} ago", coarse(passed(at, now))),
    }
}

pub(super) fn time(at: DateTime<Utc>) -> Markup {
    moment(at, &relative(at, now()))
}

/// The time that has passed since a moment.
pub(super) fn since(at: DateTime<Utc>) -> Markup {
    moment(at, &coarse(passed(at, now())))
}

/// A text about a moment; the tooltip has its date.
fn moment(at: DateTime<Utc>, text: &str) -> Markup {
    html! { time datetime=(at.to_rfc3339()) title=(date(at)) { (text) } }
}

/// A moment in a list: relative to now, and below it the time of day, in UTC, with the day if that is another.
pub(super) fn stamped(at: DateTime<Utc>) -> Markup {
    let today = now();
    let form = match () {
        () if at.date_naive() == today.date_naive() => "%H:%M:%S",
        () if at.year() == today.year() => "%b %-d %H:%M",
        () => "%Y-%m-%d",
    };
    html! { (time(at)) span.sub.stamp { (at.format(form).to_string()) } }
}

/// A moment with its date.
pub(super) fn date(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S%.3f UTC").to_string()
}

/// A moment, relative to now and with its date.
pub(super) fn dated(at: DateTime<Utc>) -> Markup {
    html! { (time(at)) " " span.date { (date(at)) } }
}

/// Formats a time span for a column of seconds.
#[expect(clippy::cast_possible_truncation, reason = "a span is shorter than 2^63 hundredths")]
pub(super) fn seconds(span: f64) -> String {
    let hundredths = (span.max(0.0) * 100.0) as i64;
    format!("{}.{:02}", number(hundredths / 100), hundredths % 100)
}

/// Returns the seconds between two moments; 0 if a clock went backwards.
fn passed(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).to_std().unwrap_or_default().as_secs_f64()
}

/// Formats the time between two moments for a column of seconds.
pub(super) fn seconds_between(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    seconds(passed(from, to))
}

/// A word with a shape and a colour. `is` is a status of the style sheet.
pub(super) fn status(is: &str, word: &str) -> Markup {
    html! { span.status data-is=(is) { (word) } }
}

/// An ID of which only the end is visible: the IDs of one page begin alike. The tooltip has the whole ID, and so has a
/// copy, because the start is only out of sight.
pub(super) fn short(id: JobId) -> Markup {
    const VISIBLE: usize = 8;
    let whole = id.to_string();
    let (start, end) = whole.split_at(whole.len() - VISIBLE);
    html! { span.id.short title=(whole) { span { (start) } (end) } }
}

pub(super) fn job_link(view: &View, id: JobId, text: &str) -> Markup {
    html! { a.row href={ (view.base) "/jobs/" (id) } title=(text) { (text) } " " (short(id)) }
}

/// The name of a queue as a link to its page. A refused message may have none: `?`.
pub(super) fn queue_link(view: &View, queue: &str) -> Markup {
    named(view, "queues", queue, "name queue")
}

/// The same, cut if space is short.
pub(super) fn queue_cell(view: &View, queue: &str) -> Markup {
    named(view, "queues", queue, "clip name queue")
}

/// The same as the link of a table's row.
pub(super) fn queue_row(view: &View, queue: &str) -> Markup {
    named(view, "queues", queue, "row")
}

/// The names of queues, as links.
pub(super) fn queue_links(view: &View, queues: &[String]) -> Markup {
    html! {
        @for (n, queue) in queues.iter().enumerate() { @if n > 0 { ", " } (queue_link(view, queue)) }
    }
}

/// The name of a schedule as a link to its page, for users of all queues.
pub(super) fn schedule_link(view: &View, name: &str) -> Markup {
    if !view.looks.is_all() {
        return html! { span.name { (name) } };
    }
    named(view, "schedules", name, "name")
}

fn named(view: &View, of: &str, name: &str, class: &str) -> Markup {
    html! {
        @if name == "?" {
            (name)
        } @else {
            a class=(class) href={ (view.base) "/" (of) "/" (encoded(name)) } title=(name) { (name) }
        }
    }
}

/// A worker's ID as a link to its page. If space is short, the name of its host is cut: the end tells the workers of a
/// host apart.
pub(super) fn owner(view: &View, worker: &str) -> Markup {
    worker_link(view, worker, "owner")
}

/// The same as the link of a table's row.
pub(super) fn worker_row(view: &View, worker: &str) -> Markup {
    worker_link(view, worker, "row owner")
}

fn worker_link(view: &View, worker: &str, class: &str) -> Markup {
    if !view.looks.is_all() {
        // A worker may serve other queues, too: its page is for users of all.
        return html! { span.owner title=(worker) { bdi dir="ltr" { (worker) } } };
    }
    html! {
        a class=(class) href={ (view.base) "/workers/" (encoded(worker)) } title=(worker) {
            bdi dir="ltr" { (worker) }
        }
    }
}

/// The first line of a user's text; the tooltip has more of it.
pub(super) fn clip(text: &str) -> Markup {
    clipped(text.lines().next().unwrap_or_default(), text)
}

/// The line of an error that says what went wrong; the tooltip has more of the error.
pub(super) fn error(text: &str) -> Markup {
    clipped(telling(text), text)
}

fn clipped(line: &str, text: &str) -> Markup {
    let line: String = line.chars().take(300).collect();
    html! { span.clip title=(text.chars().take(2_000).collect::<String>()) { (line) } }
}

/// The last line of a Python traceback, and the first one of any other text, as `error_line.sql` has it.
pub(super) fn telling(error: &str) -> &str {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_frame = |line: &str| {
        let rest = line.split_once("File \"").and_then(|(_, rest)| rest.split_once("\", line "));
        rest.is_some_and(|(_, number)| number.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_traceback = error.contains("Traceback (most recent call last)") || error.lines().any(is_frame);
    let line = if is_traceback { lines.next_back() } else { lines.next() };
    line.unwrap_or_default()
}

/// The tabs above a list: one choice each.
pub(super) fn tabs(label: &str, tabs: &[(String, String, Option<i64>, bool)]) -> Markup {
    html! {
        nav.tabs #tabs aria-label=(label) {
            @for (address, text, count, is_current) in tabs {
                a href=(address) aria-current=[is_current.then_some("true")] {
                    (text)
                    @if let Some(count) = count { " " span.count { (number(*count)) } }
                }
            }
        }
    }
}

/// The word for a recovery event.
pub(super) fn event_word(of: &Event) -> &str {
    match (of.event.as_str(), of.path.as_str()) {
        ("reset", "redelivery") => "taken over",
        ("reset", _) => "reset",
        ("release", _) => "released",
        ("refused_write", _) => "write refused",
        (other, _) => other,
    }
}

/// A recovery event and its cause.
pub(super) fn event_title(of: &Event) -> &str {
    match (of.event.as_str(), of.path.as_str()) {
        ("reset", "vanished") => "Reset: worker gone",
        ("reset", "reconcile") => "Reset: worker restarted",
        ("reset", "scanner") => "Reset: heartbeat missed",
        ("reset", "redelivery") => "Taken over: heartbeat missed",
        ("release", _) => "Released",
        ("refused_write", _) => "Stale write refused",
        ("republished", _) => "Republished: message lost",
        _ => event_word(of),
    }
}

pub(super) fn event(of: &Event) -> Markup {
    html! { span.event data-is=(of.event) { (event_word(of)) } }
}

pub(super) fn handover(view: &View, of: &Event) -> Markup {
    html! {
        @match &of.owner_before {
            Some(before) => {
                span.handover {
                    (owner(view, before)) " " span.unseen { "then" } " "
                    @match &of.owner_after {
                        Some(after) => (owner(view, after)),
                        None => span.soft { "no owner yet" },
                    }
                }
            }
            None => span.soft { "had no owner" },
        }
    }
}

/// The token of the event, and the next one.
pub(super) fn tokens(of: &Event) -> Markup {
    html! {
        (of.token)
        @if let Some(after) = of.token_after { span.soft { " → " (after) } }
    }
}

/// The pager below a list.
pub(super) fn pager(said: &str, newest: Option<String>, older: Option<String>) -> Markup {
    html! {
        nav.pager aria-label="Older and newer" {
            span { (said) }
            div {
                @if let Some(newest) = newest { a.button href=(newest) { "Newest" } }
                @if let Some(older) = older { a.button href=(older) rel="next" { "Older" } }
            }
        }
    }
}

/// An error as a sentence.
pub(super) fn sentence(error: &str) -> String {
    let mut letters = error.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let end = if error.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

/// A text of doctor: what stands between backticks is code.
pub(super) fn with_code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// The line in place of what could not be read.
pub(super) fn unread(what: &str, failure: &Failure) -> Markup {
    html! { p.wrong { (what) " could not be read: " (failure.text()) } }
}

/// Passes our own markup through, such as a chart.
pub(super) fn drawn(svg: String) -> Markup {
    PreEscaped(svg)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_number_has_its_thousands_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(number(n), text);
        }
    }

    #[test]
    fn the_telling_line_of_a_traceback_is_its_last_and_of_any_other_error_its_first() {
        let traceback = "exit 1: Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\n\
                         KeyError: 'customer'\n\n";
        let cut = "exit 1:   File \"a.py\", line 3, in <module>\n    f()\nValueError: no";
        for (error, line) in [
            (traceback, "KeyError: 'customer'"),
            (cut, "ValueError: no"),
            ("\n  gateway answered 503\n  at line 7\n", "gateway answered 503"),
            ("open File \"a\", line x\nmore", "open File \"a\", line x"),
            (" \n", ""),
        ] {
            assert_eq!(telling(error), line, "{error}");
        }
    }

    #[test]
    fn a_column_of_seconds_has_one_unit() {
        for (span, text) in [(0.004, "0.00"), (1.449, "1.44"), (11_040.512, "11,040.51"), (-5.0, "0.00")] {
            assert_eq!(seconds(span), text);
        }
    }

    #[test]
    fn a_time_has_one_unit() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        for (ahead, text) in
            [(0, "now"), (-12, "12 s ago"), (-200, "3 min ago"), (840, "in 14 min"), (-90_000, "1 d ago")]
        {
            assert_eq!(relative(now + TimeDelta::seconds(ahead), now).replace('\u{a0}', " "), text);
        }
    }
}
