//! Charts: what workers have counted in a range of time, as charts and figures.

use std::fmt::Write;

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{self, number},
};
use tenure::internals::{
    EventCount, QueueCounts, Unit,
    duration::{about, rounded},
    quantile,
};

/// The outcomes of attempts, in the order in which the chart stacks them.
const ENDS: [&str; 5] = ["completed", "cancelled", "retried", "lost", "failed"];
const WIDE: f64 = 600.0;
const HIGH: f64 = 120.0;

/// A range of time up to now, in units.
#[derive(Debug)]
pub(super) struct Range {
    /// Its name in an address.
    pub(super) word: &'static str,
    /// Such as "hour": the last one.
    pub(super) name: &'static str,
    pub(super) units: i64,
    pub(super) unit_s: i64,
    /// The unit, in words.
    unit: &'static str,
    axis: &'static [&'static str],
    /// How many units are recent enough for a figure of now; 0: the whole range.
    lately: usize,
}

pub(super) const HOUR: Range = Range {
    word: "1h",
    name: "hour",
    units: 60,
    unit_s: 60,
    unit: "minute",
    axis: &["60 min ago", "45", "30", "15", "now"],
    lately: 5,
};
const DAY: Range = Range {
    word: "1d",
    name: "day",
    units: 96,
    unit_s: 900,
    unit: "15 min",
    axis: &["24 h ago", "18", "12", "6", "now"],
    lately: 0,
};
const WEEK: Range = Range {
    word: "7d",
    name: "week",
    units: 84,
    unit_s: 7_200,
    unit: "2 h",
    axis: &["7 d ago", "6", "5", "4", "3", "2", "1", "now"],
    lately: 0,
};
const RANGES: [&Range; 3] = [&HOUR, &DAY, &WEEK];

impl Range {
    /// The range that an address names; without one, an hour.
    pub(super) fn of(ask: &Ask) -> Result<&'static Self, Failure> {
        let Some(word) = ask.query.get("range") else { return Ok(&HOUR) };
        let found = RANGES.into_iter().find(|of| of.word == word);
        found.ok_or_else(|| Failure::Bad(format!("Unknown range {word:?}; use 1h, 1d or 7d.")))
    }

    pub(super) fn seconds(&self) -> i64 {
        self.units * self.unit_s
    }

    /// The links to the other ranges of this page.
    pub(super) fn links(&self, view: &View, ask: &Ask) -> Markup {
        let here: Vec<_> = ask.path.iter().map(|part| super::params::encoded(part)).collect();
        let address = |word| format!("{}/{}?{}", view.base, here.join("/"), ask.query.with("range", word));
        html! {
            nav.tabs #ranges aria-label="Range" {
                @for of in RANGES {
                    @let word = (of.word != HOUR.word).then_some(of.word);
                    a href=(address(word)) aria-current=[(of.word == self.word).then_some("true")] {
                        "Last " (of.name)
                    }
                }
            }
        }
    }
}

/// What happened in a range, unit by unit: the oldest first, the current unit last.
pub(super) struct Activity {
    range: &'static Range,
    units: Vec<QueueCounts>,
    /// How many attempts were lost; `None`: not known, of one queue.
    lost: Option<Vec<i64>>,
}

impl Activity {
    pub(super) fn range_name(&self) -> &'static str {
        self.range.name
    }

    pub(super) fn of(range: &'static Range, counted: &[Unit], events: Option<&[EventCount]>) -> Self {
        let count = usize::try_from(range.units).unwrap_or_default();
        let at = |ago: i64| count.checked_sub(usize::try_from(ago).ok()? + 1);
        let mut activity = Self { range, units: vec![QueueCounts::default(); count], lost: None };
        for unit in counted {
            if let Some(of) = at(unit.units_ago).and_then(|at| activity.units.get_mut(at)) {
                of.add(&unit.done);
            }
        }
        activity.lost = events.map(|events| {
            let mut lost = vec![0; count];
            for event in events.iter().filter(|event| event.event == "reset") {
                if let Some(lost) = at(event.units_ago).and_then(|at| lost.get_mut(at)) {
                    *lost += event.jobs;
                }
            }
            lost
        });
        activity
    }

    /// How many attempts finished in this unit, by outcome in the order of [`ENDS`].
    fn ends(&self, unit: usize) -> [i64; 5] {
        let of = &self.units[unit];
        let lost = self.lost.as_ref().map_or(0, |lost| lost[unit]);
        [of.completed, of.cancelled, of.retried + of.snoozed + of.released, lost, of.failed]
    }

    fn totals(&self) -> [i64; 5] {
        (0..self.units.len()).map(|unit| self.ends(unit)).fold([0; 5], |mut all, some| {
            for (all, some) in all.iter_mut().zip(some) {
                *all += some;
            }
            all
        })
    }

    pub(super) fn completed(&self) -> i64 {
        self.totals()[0]
    }

    pub(super) fn failed(&self) -> i64 {
        self.totals()[4]
    }

    /// The counts from which the latencies of now are computed.
    fn lately(&self) -> QueueCounts {
        let from =
            if self.range.lately == 0 { 0 } else { self.units.len().saturating_sub(self.range.lately) };
        self.units[from..].iter().fold(QueueCounts::default(), |mut all, some| {
            all.add(some);
            all
        })
    }

    /// The jobs completed per minute in the last whole unit.
    #[expect(clippy::cast_precision_loss, reason = "a unit's jobs are fewer than 2^52")]
    fn a_minute(&self) -> String {
        let last = self.units.len().checked_sub(2).map_or(0, |last| self.units[last].completed);
        let a_minute = last as f64 * 60.0 / self.range.unit_s as f64;
        if a_minute > 0.0 && a_minute < 10.0 && self.range.unit_s > 60 {
            return format!("{a_minute:.1}");
        }
        #[expect(clippy::cast_possible_truncation, reason = "it is less than the count of a unit")]
        number(a_minute as i64)
    }
}

/// The tiles of throughput and latency.
pub(super) fn tiles(activity: &Activity) -> Markup {
    let (range, lately) = (activity.range, activity.lately());
    let of = if range.lately == 0 { format!("the {}", range.name) } else { format!("{} min", range.lately) };
    let latency = |counts: &[i64]| {
        let share = |share| quantile(counts, share).map(|is| about(is.as_secs_f64()));
        html! {
            dd.big { (share(0.5).unwrap_or_else(|| "–".into())) }
            dd {
                @match share(0.95) {
                    Some(p95) => { "median of " (of) "; p95 about " (p95) }
                    None if range.lately == 0 => { "none in the last " (range.name) }
                    None => { "none in the last " (range.lately) " minutes" }
                }
            }
        }
    };
    html! {
        div {
            dt { "Completed" }
            dd.big { (activity.a_minute()) " " small { "per minute" } }
            dd { (number(activity.completed())) " in the last " (range.name) }
        }
        div { dt { "Queue latency" } (latency(&lately.waited)) }
        div { dt { "Run time" } (latency(&lately.ran)) }
    }
}

/// The beginning of a chart, with these attributes as its label.
fn chart(label: &str) -> String {
    let size = format!(r#"viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none""#);
    let mut svg = format!(r#"<svg class="chart" {size} role="img" {label}>"#);
    for y in [0.0, HIGH / 2.0, HIGH] {
        let _ = write!(svg, r#"<line x1="0" x2="{WIDE}" y1="{y}" y2="{y}"/>"#);
    }
    svg
}

fn axis(range: &Range) -> Markup {
    html! { div.axis aria-hidden="true" { @for mark in range.axis { span { (mark) } } } }
}

/// Attempts by outcome, stacked, a bar per unit. It holds only our own numbers and words.
#[expect(clippy::cast_precision_loss, reason = "the attempts of a range are fewer than 2^52")]
pub(super) fn finished(activity: &Activity) -> Markup {
    let (range, units) = (activity.range, activity.units.len());
    let most = (0..units).map(|unit| activity.ends(unit).iter().sum::<i64>()).max().unwrap_or_default();
    let scale = HIGH / (most.max(1) as f64 * 1.08);
    let step = WIDE / units.max(1) as f64;
    let mut svg = chart(r#"aria-labelledby="finished-title finished-text""#);
    for unit in 0..units {
        let (x, ends) = (unit as f64 * step, activity.ends(unit));
        let words: Vec<_> = ENDS
            .iter()
            .zip(ends)
            .filter(|(_, n)| *n > 0)
            .map(|(end, n)| format!("{} {end}", number(n)))
            .collect();
        let words = if words.is_empty() { "nothing".into() } else { words.join(", ") };
        let when = match units - 1 - unit {
            0 => format!("this {}", range.unit),
            ago => format!("{} ago", rounded(ago as f64 * range.unit_s as f64)),
        };
        let _ = write!(
            svg,
            r#"<g><title>{when}: {words}</title><rect class="hit" x="{x:.2}" width="{step:.2}" y="0" height="{HIGH}"/>"#
        );
        let mut y = HIGH;
        for (end, n) in ENDS.iter().zip(ends).filter(|(_, n)| *n > 0) {
            let high = (n as f64 * scale).max(1.5);
            y -= high;
            let _ = write!(
                svg,
                r#"<rect class="s-{end}" x="{:.2}" width="{:.2}" y="{y:.1}" height="{high:.1}"/>"#,
                x + step * 0.1,
                step * 0.8
            );
        }
        svg.push_str("</g>");
    }
    svg.push_str("</svg>");
    html! {
        section.panel #finished {
            header {
                h2 #finished-title { "Attempts finished per " (range.unit) }
                p #finished-text { "last " (range.name) " (peak " (number(most)) ")" }
            }
            div.body {
                ul.legend {
                    @for (end, n) in ENDS.iter().zip(activity.totals()) {
                        @if *end != "lost" || activity.lost.is_some() {
                            li {
                                svg aria-hidden="true" { rect class={ "s-" (end) } width="100%" height="100%" {} }
                                (end) " " b { (number(n)) }
                            }
                        }
                    }
                }
                (page::drawn(svg))
                (axis(range))
            }
        }
    }
}

/// Queue latency: the time from due to claimed. It holds only our own numbers and words.
#[expect(clippy::cast_precision_loss, reason = "a range has a hundred units")]
pub(super) fn waits(activity: &Activity) -> Markup {
    let range = activity.range;
    let step = WIDE / activity.units.len().max(1) as f64;
    let of = |share: f64| -> Vec<Option<f64>> {
        activity.units.iter().map(|of| quantile(&of.waited, share).map(|is| is.as_secs_f64())).collect()
    };
    let (median, p95) = (of(0.5), of(0.95));
    let top = p95.iter().flatten().copied().fold(0.001, f64::max);
    let points = |values: &[Option<f64>]| {
        let known = values.iter().enumerate().filter_map(|(unit, value)| value.map(|value| (unit, value)));
        let mut points: Vec<_> = known
            .map(|(unit, value)| {
                format!("{:.1},{:.1}", (unit as f64 + 0.5) * step, HIGH - value / top * HIGH)
            })
            .collect();
        // A line of one point would not be drawn.
        if points.len() == 1 {
            points.extend_from_within(..);
        }
        points.join(" ")
    };
    let last =
        |values: &[Option<f64>]| values.iter().rev().flatten().next().map_or("–".into(), |s| rounded(*s));
    let words = format!("last {}: median {}, p95 {}", range.name, last(&median), last(&p95));
    let mut svg = chart(&format!(r#"aria-label="Queue latency, {words}""#));
    let _ = write!(
        svg,
        r#"<polyline class="line-1" points="{}"/><polyline class="line-2" points="{}"/></svg>"#,
        points(&median),
        points(&p95)
    );
    html! {
        section.panel #waits {
            header { h2 { "Queue latency" } p {
                    "last " (range.name)
                    @if p95.iter().any(Option::is_some) { " (peak p95 " (rounded(top)) ")" }
                } }
            div.body {
                ul.legend {
                    li {
                        svg.stroke viewBox="0 0 20 10" aria-hidden="true" { path.line-1 d="M0 5h20" {} }
                        "median " b { (last(&median)) }
                    }
                    li {
                        svg.stroke viewBox="0 0 20 10" aria-hidden="true" { path.line-2 d="M0 5h20" {} }
                        "p95 " b { (last(&p95)) }
                    }
                }
                (page::drawn(svg))
                (axis(range))
            }
        }
    }
}
