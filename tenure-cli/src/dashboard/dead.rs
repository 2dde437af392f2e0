//! Dead: dead letters, their errors, and the forms that redrive or purge them.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{
    Ask, Failure, View,
    actions::{all_shown, dead_filter},
    look,
    page::{self, Page, Regions, job_link, number, stamped, telling},
    redrives,
};
use tenure::{
    StoreError,
    internals::{DeadGroup, Parts as _},
    rows::DeadLetter,
};

const ON_A_PAGE: i64 = 50;
const GROUPS: i64 = 20;
/// The most dead letters to count, and the most of the latest to group.
const COUNTED: i64 = 10_000;
/// The filters that the form of an action repeats, so that it acts on the letters shown.
const FIELDS: [&str; 6] = ["queue", "kind", "category", "tag", "error", "group"];

pub(super) async fn page(view: &View, ask: &Ask) -> Result<Page, Failure> {
    let mut filter = dead_filter(|name| ask.query.get(name));
    let shown = filter.clone();
    if let Some(before) = ask.query.get("before") {
        let bad = || Failure::Bad(format!("Invalid place in the list {before:?}."));
        let (micros, id) = before.split_once('-').ok_or_else(bad)?;
        let died_at =
            micros.parse().ok().and_then(chrono::DateTime::from_timestamp_micros).ok_or_else(bad)?;
        filter = filter.before(died_at, id.parse().map_err(|_| bad())?);
    }
    let store = view.tenure.store();
    // In this order: a letter that dies in between is shown, but not acted on.
    let listed = async {
        let counted = store.count_dead(&shown, COUNTED).await?;
        Ok::<_, StoreError>((counted, store.dead_letters(&filter, ON_A_PAGE + 1).await?))
    };
    // A live update would read the groups every second.
    let of_a_group = ask.query.get("group").is_some();
    let grouped_by_error = async {
        if ask.is_live || of_a_group {
            return Ok(vec![]);
        }
        store.dead_groups(&shown, GROUPS, COUNTED).await
    };
    let (listed, groups, redrives) = tokio::join!(listed, grouped_by_error, redrives::latest(view));
    let (counted, letters) = listed?;
    let most = usize::try_from(ON_A_PAGE).unwrap_or(usize::MAX);
    let (has_more, letters) = (letters.len() > most, &letters[..letters.len().min(most)]);
    // On the first page, the time of the latest letter: so the form stays the same until another job dies. A letter
    // that died after the count was not counted.
    let latest = letters.first().filter(|_| !ask.query.has("before"));
    let shown_at = latest.map_or(counted.now, |latest| latest.died_at.min(counted.now));
    let is_more = counted.jobs >= COUNTED;
    let all = if is_more { format!("{} or more", number(COUNTED)) } else { number(counted.jobs) };
    // The address that counts them all, for the question before an action.
    let counts = is_more.then(|| format!("{}/dead/count", view.base));
    let mut live = Regions::default();
    let older = letters.last().filter(|_| has_more).map(|last| {
        let place = format!("{}-{}", last.died_at.timestamp_micros(), last.id);
        format!("{}/dead?{}", view.base, ask.query.with("before", Some(&place)))
    });
    let newest =
        ask.query.has("before").then(|| format!("{}/dead?{}", view.base, ask.query.with("before", None)));
    let selected: Vec<_> =
        FIELDS.into_iter().filter_map(|field| Some(format!("{field} {}", ask.query.get(field)?))).collect();
    // What a person is asked before the letters are gone.
    let selected = if selected.is_empty() { String::new() } else { format!(" of {}", selected.join(", ")) };
    let purge = format!("Purge {{n}} dead letters{selected} for good, with all history?");
    let said = format!("{} of {}", number(i64::try_from(letters.len()).unwrap_or(i64::MAX)), all);
    let list = html! {
        div #list {
            @if letters.is_empty() {
                section.panel { div.empty { strong { "No dead letters" } p { "Nothing here has failed for good." } } }
            } @else if view.has_actions {
                form.panel method="post" data-bulk {
                    (page::own(ask))
                    input type="hidden" name="shown" value=(shown_at.timestamp_micros());
                    @for field in FIELDS {
                        @if let Some(value) = ask.query.get(field) { input type="hidden" name=(field) value=(value); }
                    }
                    div.bulk {
                        label.check {
                            input type="checkbox" name="all" value="1" data-matching;
                            " all " (all) @if of_a_group { " of this group" } @else { " that match" }
                        }
                        span.actions {
                            button.primary formaction={ (view.base) "/dead/redrive" } data-count="Redrive"
                                data-can="redrive" data-all=(counted.redrivable) data-more=[&counts]
                                data-confirm="Redrive {n} jobs, with new attempts?" {
                                    "Redrive"
                                }
                            button.danger formaction={ (view.base) "/dead/purge" } data-count="Purge"
                                data-can="purge" data-all=(counted.jobs) data-more=[&counts]
                                data-confirm=(purge) {
                                    "Purge"
                                }
                        }
                    }
                    (table(view, letters))
                    (page::pager(&said, newest, older))
                }
            } @else {
                section.panel { (table(view, letters)) (page::pager(&said, newest, older)) }
            }
        }
    };
    let about = html! {
        "Jobs that used up their attempts or failed permanently, and refused messages. \
         Kept until you redrive or purge them."
    };
    let body = html! {
        (page::head("Dead letters", about))
        @if of_a_group { (group(view, ask, letters.first())) }
        // The page is useful without the groups.
        @match groups {
            Err(error) => section.panel #groups { div.body { (page::unread("The groups", &error.into())) } },
            Ok(groups) => @if !groups.is_empty() { (grouped(view, ask, &groups)) },
        }
        (live.put("redrives", redrives::progress(view, ask, redrives.as_deref())))
        @if of_a_group && view.has_actions && counted.redrivable > 0 {
            (redrives::form(view, ask, &FIELDS, shown_at.timestamp_micros()))
        }
        (filters(view, ask))
        (live.put("list", list))
    };
    Ok(live.page("Dead letters", "dead", body))
}

/// Counts all dead letters that a form on the page of dead letters would act on, as JSON by the names of its actions.
pub(super) async fn count(view: &View, ask: &Ask) -> Result<Value, Failure> {
    let counted = view.tenure.store().count_dead(&all_shown(&ask.query)?, i64::MAX).await?;
    Ok(json!({ "redrive": counted.redrivable, "purge": counted.jobs }))
}

/// What the page of one group says of it; `first` is one of its letters.
fn group(view: &View, ask: &Ask, first: Option<&DeadLetter>) -> Markup {
    html! {
        p.notice.plain {
            span {
                "One group: "
                @match first {
                    Some(letter) => { "errors that read like " code { (telling(&letter.last_error)) } ". " }
                    None => "no dead letter of it is left. ",
                }
                a href={ (view.base) "/dead?" (ask.query.with("group", None)) } { "Show other errors, too" }
            }
        }
    }
}

fn grouped(view: &View, ask: &Ask, groups: &[DeadGroup]) -> Markup {
    let address = |of: &DeadGroup| {
        let mut query = ask.query.clone();
        for (name, value) in [("queue", &of.of.queue), ("kind", &of.of.kind), ("category", &of.of.category)] {
            query = super::Params::read(query.with(name, Some(value)).as_bytes());
        }
        let query = super::Params::read(query.with("before", None).as_bytes());
        format!("{}/dead?{}", view.base, query.with("group", Some(&of.fingerprint)))
    };
    html! {
        section.panel #groups {
            header { h2 { "By kind and error" } p { "of the latest " (number(COUNTED)) ", largest group first" } }
            div.scroll { table.cards {
                thead { tr {
                    th scope="col" { "Kind" }
                    th scope="col" { "Queue" }
                    th scope="col" { "Category" }
                    th scope="col" { "Error" }
                    th.num scope="col" { "Count" }
                    th.num scope="col" { "First, UTC" }
                    th.num scope="col" { "Last, UTC" }
                } }
                tbody {
                    @for of in groups {
                        tr {
                            th.tight scope="row" { a.row href=(address(of)) { (of.of.kind) } }
                            td data-label="Queue" { (page::queue_cell(view, &of.of.queue)) }
                            td data-label="Category" { (of.of.category) }
                            td.text.full { span.clip title=(of.line) { (of.line) } }
                            td.num data-label="Count" { b { (number(of.of.jobs)) } }
                            td.num.tight data-label="First" { (stamped(of.of.oldest)) }
                            td.num.tight data-label="Last" { (stamped(of.of.newest)) }
                        }
                    }
                }
            } }
        }
    }
}

fn filters(view: &View, ask: &Ask) -> Markup {
    let value = |name: &str| ask.query.get(name);
    html! {
        form.filters method="get" action={ (view.base) "/dead" } role="search" {
            input #search type="search" name="error" value=[value("error")]
                placeholder="Search: text in the error" aria-label="Search";
            (look::queue_field(view, value("queue")))
            input type="text" name="kind" value=[value("kind")] placeholder="every kind" aria-label="Kind" size="14";
            input type="text" name="category" value=[value("category")] placeholder="every category"
                aria-label="Category" size="14";
            input type="text" name="tag" value=[value("tag")] placeholder="every tag" aria-label="Tags" size="14";
            @if let Some(group) = value("group") { input type="hidden" name="group" value=(group); }
            button { "Search" }
        }
    }
}

fn table(view: &View, letters: &[DeadLetter]) -> Markup {
    html! {
        div.scroll { table.cards {
            thead { tr {
                @if view.has_actions {
                    th.tick { input.needs-js type="checkbox" data-all aria-label="Select all on this page"; }
                }
                th scope="col" { "Job" }
                th scope="col" { "Queue" }
                th scope="col" { "Category" }
                th scope="col" { "Error" }
                th.num scope="col" { "Attempts" }
                th.num scope="col" { "Died, UTC" }
            } }
            tbody { @for letter in letters { (row(view, letter)) } }
        } }
    }
}

fn row(view: &View, letter: &DeadLetter) -> Markup {
    html! {
        tr id={ "job-" (letter.id) } {
            @if view.has_actions {
                td.tick {
                    // A refused message is no job, and cannot be one again.
                    input type="checkbox" name="id" value=(letter.id)
                        data-can=(if letter.refused { "purge" } else { "redrive purge" })
                        aria-label={ "Select " (letter.kind) " " (letter.id) };
                }
            }
            th.tight scope="row" { (job_link(view, letter.id, &letter.kind)) }
            td data-label="Queue" { (page::queue_cell(view, &letter.queue)) }
            td data-label="Category" { (letter.category) }
            td.text.full { (page::error(&letter.last_error)) }
            td.num data-label="Attempts" { (letter.attempt) }
            td.num.tight data-label="Died" { (stamped(letter.died_at)) }
        }
    }
}
