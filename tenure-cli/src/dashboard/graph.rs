//! Graph: the group of a job, drawn. Jobs that wait for the same ones, and for which the same ones wait, are one box.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use maud::{Markup, html};

use super::{
    Ask, Failure, View,
    page::{Page, Regions, number},
};
use tenure::{
    JobId, Status,
    groups::{GroupJob, GroupView},
    internals::group_view,
};

/// The most edges to read: a drawing of more says little.
const EDGES_MAX: u32 = 20_000;
/// The most boxes of a drawing.
const BOXES_MAX: usize = 300;
/// The sides of a box, and the space between boxes, in pixels.
const WIDE: usize = 208;
const HIGH: usize = 60;
const ASIDE: usize = 16;
const BELOW: usize = 44;

/// Jobs that are drawn as one box.
struct Drawn<'g> {
    jobs: Vec<&'g GroupJob>,
    /// How many boxes the longest way from a job that waits for none has.
    level: usize,
    x: usize,
    y: usize,
}

impl Drawn<'_> {
    /// The state of the worst of its jobs.
    fn state(&self) -> &'static str {
        let states: BTreeSet<_> = self.jobs.iter().map(|job| job.state()).collect();
        let worst = ["failed", "cancelled", "processing", "queued", "held", "gone", "completed"];
        worst.into_iter().find(|state| states.contains(state)).unwrap_or("queued")
    }

    /// The job to which it leads: the one that a person wants to see first.
    fn first(&self) -> JobId {
        let state = self.state();
        let job = self.jobs.iter().find(|job| job.state() == state).or(self.jobs.first());
        job.map_or(JobId(uuid::Uuid::nil()), |job| job.id)
    }

    fn name(&self) -> String {
        let kind = self.jobs.first().map_or("", |job| job.kind.as_str());
        let short: String = kind.chars().take(22).collect();
        let kind = if short.len() < kind.len() { format!("{short}…") } else { short };
        match self.jobs.len() {
            _ if kind.is_empty() => "gone".to_owned(),
            1 => kind,
            jobs => format!("{kind} × {}", number(jobs as u64)),
        }
    }

    fn says(&self) -> String {
        if let [job] = self.jobs[..] {
            let percent = job.progress.filter(|_| job.status == Some(Status::Processing));
            return percent
                .map_or(job.state().to_owned(), |percent| format!("{} {percent:.0} %", job.state()));
        }
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &self.jobs {
            *counts.entry(job.state()).or_default() += 1;
        }
        let words: Vec<_> = counts.iter().map(|(state, jobs)| format!("{} {state}", number(*jobs))).collect();
        words.join(", ")
    }
}

/// What jobs of one box have in common: queue, kind, and the jobs before and after them.
type Alike<'a> = (&'a str, &'a str, Option<&'a BTreeSet<JobId>>, Option<&'a BTreeSet<JobId>>);

/// The boxes, and which leads to which.
struct Drawing<'g> {
    boxes: Vec<Drawn<'g>>,
    lines: BTreeSet<(usize, usize)>,
    wide: usize,
    high: usize,
}

impl<'g> Drawing<'g> {
    fn of(group: &'g GroupView) -> Self {
        let mut befores: HashMap<JobId, BTreeSet<JobId>> = HashMap::new();
        let mut afters: HashMap<JobId, BTreeSet<JobId>> = HashMap::new();
        for edge in &group.edges {
            befores.entry(edge.after).or_default().insert(edge.before);
            afters.entry(edge.before).or_default().insert(edge.after);
        }
        // The jobs stand in order: those before one have their levels already.
        let mut levels: HashMap<JobId, usize> = HashMap::new();
        let mut boxes: Vec<Drawn<'g>> = Vec::new();
        let mut alike: HashMap<Alike<'_>, usize> = HashMap::new();
        let mut places: HashMap<JobId, usize> = HashMap::new();
        for job in &group.jobs {
            let before = befores.get(&job.id);
            let level =
                before.into_iter().flatten().filter_map(|id| levels.get(id)).max().map_or(0, |max| max + 1);
            levels.insert(job.id, level);
            let key = (job.queue.as_str(), job.kind.as_str(), before, afters.get(&job.id));
            let place = *alike.entry(key).or_insert_with(|| {
                boxes.push(Drawn { jobs: vec![], level, x: 0, y: 0 });
                boxes.len() - 1
            });
            boxes[place].jobs.push(job);
            places.insert(job.id, place);
        }
        let mut of_level: BTreeMap<usize, usize> = BTreeMap::new();
        for drawn in &mut boxes {
            let place = of_level.entry(drawn.level).or_default();
            (drawn.x, drawn.y) = (*place * (WIDE + ASIDE), drawn.level * (HIGH + BELOW));
            *place += 1;
        }
        let most = of_level.values().copied().max().unwrap_or(1);
        for drawn in &mut boxes {
            // Each level stands in the middle.
            drawn.x += (most - of_level[&drawn.level]) * (WIDE + ASIDE) / 2;
        }
        let line =
            |edge: &tenure::groups::GroupEdge| Some((*places.get(&edge.before)?, *places.get(&edge.after)?));
        let lines = group.edges.iter().filter_map(line).collect();
        let (wide, high) =
            (most * (WIDE + ASIDE) - ASIDE, (of_level.len() * (HIGH + BELOW)).saturating_sub(BELOW));
        Self { boxes, lines, wide, high }
    }

    fn svg(&self, view: &View) -> Markup {
        // Room for the outline of a box that has the focus.
        let frame = format!("-4 -4 {} {}", self.wide + 8, self.high + 8);
        let path = |&(from, to): &(usize, usize)| {
            let (from, to) = (&self.boxes[from], &self.boxes[to]);
            let (x1, y1) = (from.x + WIDE / 2, from.y + HIGH);
            let (x2, y2) = (to.x + WIDE / 2, to.y);
            format!("M{x1} {y1}C{x1} {} {x2} {} {x2} {y2}", y1 + BELOW / 2, y2.saturating_sub(BELOW / 2))
        };
        html! {
            svg.graph viewBox=(frame) width=(self.wide + 8) height=(self.high + 8) role="group"
                aria-label="The jobs of the group, each above those that wait for it" {
                @for line in &self.lines { path d=(path(line)) {} }
                @for drawn in &self.boxes {
                    a href={ (view.base) "/jobs/" (drawn.first()) } data-is=(drawn.state()) {
                        rect x=(drawn.x) y=(drawn.y) width=(WIDE) height=(HIGH) rx="8" {}
                        rect.mark x=(drawn.x + 5) y=(drawn.y + 10) width="4" height=(HIGH - 20) rx="2" {}
                        text x=(drawn.x + 16) y=(drawn.y + 25) { (drawn.name()) }
                        text.says x=(drawn.x + 16) y=(drawn.y + 46) { (drawn.says()) }
                    }
                }
            }
        }
    }
}

pub(super) async fn page(view: &View, _: &Ask, id: &str) -> Result<Page, Failure> {
    let none =
        || Failure::NotFound("This job is in no group: it waits for no job, and none waits for it.".into());
    let id: JobId = id.parse().map_err(|_| none())?;
    let group = group_view(&view.tenure, id, EDGES_MAX).await?.ok_or_else(none)?;
    let is_seen = |job: &GroupJob| view.looks.has(&job.queue);
    if !view.looks.is_all() && !group.jobs.iter().any(|job| job.id == id && is_seen(job)) {
        return Err(none());
    }
    // A job that is gone has no queue: it may have been of another.
    if !group.jobs.iter().all(is_seen) {
        let what = "and this group has jobs of other queues, or jobs that are gone";
        return Err(Failure::Unseen(view.looks.unseen(what)));
    }
    let ended = group.jobs.iter().filter(|job| job.has_ended()).count();
    let drawing = Drawing::of(&group);
    let mut live = Regions::default();
    let drawn = html! {
        section.panel #graph {
            header {
                h2 { "Jobs" }
                p {
                    (number(ended as u64)) " of " @if group.is_cut { "the first " }
                    (number(group.jobs.len() as u64)) " have ended"
                }
            }
            @if drawing.boxes.len() > BOXES_MAX {
                div.empty {
                    strong { "This group is too large to draw" }
                    p { code { "tenure jobs graph " (id) " --output json" } }
                }
            } @else {
                div.scroll.drawing tabindex="0" role="region" aria-label="Drawing of the group" { (drawing.svg(view)) }
            }
            @if group.is_cut { p.body.soft { "The group has more jobs than these." } }
        }
    };
    let body = html! {
        header.head {
            div {
                p.crumbs {
                    a href={ (view.base) "/jobs" } { "Jobs" } " / "
                    a href={ (view.base) "/jobs/" (id) } { (id) }
                }
                h1 { "Group" }
            }
        }
        (live.put("graph", drawn))
    };
    let is_over = ended == group.jobs.len() && !group.is_cut;
    Ok(live.page("Group of a job", "jobs", body).finally(is_over))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_alike_are_one_box_below_what_they_wait_for() {
        let ids: Vec<_> = (0..6).map(|_| JobId(uuid::Uuid::now_v7())).collect();
        let group = tenure::internals::examples::group(
            &ids,
            &[(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (4, 5)],
            |place| match place {
                0 => Status::Completed,
                2 => Status::Failed,
                _ => Status::Queued,
            },
        );
        let drawing = Drawing::of(&group);
        let boxes: Vec<_> = drawing
            .boxes
            .iter()
            .map(|drawn| (drawn.jobs.len(), drawn.level, drawn.state(), drawn.says()))
            .collect();
        assert_eq!(
            boxes,
            [
                (1, 0, "completed", "completed".to_owned()),
                (3, 1, "failed", "1 failed, 2 queued".to_owned()),
                (1, 2, "queued", "queued".to_owned()),
                (1, 3, "queued", "queued".to_owned()),
            ]
        );
        assert_eq!(drawing.boxes[1].name(), "kind × 3");
        assert_eq!(drawing.boxes[1].first(), ids[2]);
        assert_eq!(drawing.lines.into_iter().collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 3)]);
    }
}
