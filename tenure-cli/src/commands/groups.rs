//! Groups: draws the jobs of a group, and tells a job of an event.

use std::{collections::HashMap, process::ExitCode};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{Cli, Output, Usage, print, table::table};
use crate::lanes;
use tenure::{
    JobId, Tenure,
    groups::{GroupEdge, GroupJob, GroupView},
};

/// The most jobs that a table shows.
const SHOWN_MAX: usize = 500;
/// The most predecessors that a line names.
const NAMED_MAX: usize = 6;

/// The output of `tenure jobs graph --output json`.
#[derive(Serialize)]
struct Drawn<'g> {
    jobs: &'g [GroupJob],
    edges: &'g [GroupEdge],
    is_cut: bool,
}

pub(super) async fn graph(cli: &Cli, tenure: &Tenure, id: JobId) -> anyhow::Result<ExitCode> {
    let Some(group) = tenure.group_of(id).await? else {
        anyhow::bail!("job {id} is in no group: it waits for no job, and none waits for it");
    };
    if cli.output == Output::Json {
        let GroupView { jobs, edges, is_cut, .. } = &group;
        print::line(serde_json::to_string_pretty(&Drawn { jobs, edges, is_cut: *is_cut })?);
        return Ok(ExitCode::SUCCESS);
    }
    let places: HashMap<JobId, usize> =
        group.jobs.iter().zip(1..).map(|(job, place)| (job.id, place)).collect();
    let mut befores: HashMap<JobId, Vec<usize>> = HashMap::new();
    for edge in &group.edges {
        befores.entry(edge.after).or_default().extend(places.get(&edge.before));
    }
    let mut rows =
        table(&["NO", "ID", "QUEUE", "KIND", "STATUS", "PROGRESS", "AFTER"]).spare(&["QUEUE", "PROGRESS"]);
    // The job that was asked for always has a line.
    let is_shown = |(job, place): &(&GroupJob, usize)| *place <= SHOWN_MAX || job.id == id;
    for (job, place) in group.jobs.iter().zip(1..).filter(is_shown) {
        rows.add_row([
            format!("{place}"),
            job.id.to_string(),
            job.queue.clone(),
            job.kind.clone(),
            job.state().to_owned(),
            print::percent(job.progress, job.has_ended()).unwrap_or_default(),
            befores.get_mut(&job.id).map(|befores| named(befores)).unwrap_or_default(),
        ]);
    }
    print::line(rows);
    let ended = group.jobs.iter().filter(|job| job.has_ended()).count();
    let of = if group.is_cut { "of the first" } else { "of" };
    print::line(format!("\n{ended} {of} {} jobs have ended", group.jobs.len()));
    if group.is_cut || group.jobs.len() > SHOWN_MAX {
        eprintln!("the group is larger than this table; --output json has more of it");
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the jobs before another one by their places: `1 to 4, 7`.
fn named(places: &mut [usize]) -> String {
    places.sort_unstable();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in places.iter().copied() {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == place => *last = place,
            _ => runs.push((place, place)),
        }
    }
    let more = runs.len().saturating_sub(NAMED_MAX);
    let mut words: Vec<_> = runs
        .iter()
        .take(NAMED_MAX)
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first} to {last}"),
        })
        .collect();
    if more > 0 {
        words.push("…".into());
    }
    words.join(", ")
}

pub(super) async fn signal(
    cli: &Cli,
    tenure: &Tenure,
    id: JobId,
    name: &str,
    payload: Option<&str>,
) -> anyhow::Result<ExitCode> {
    // As text: a value would round its numbers.
    let payload: &RawValue = serde_json::from_str(payload.unwrap_or("null")).map_err(|error| {
        Usage(format!("the payload is not JSON: {error}; quote a text twice, as in '\"text\"'"))
    })?;
    let answer = tenure.signal(id, name, payload).await?;
    let (has_it, text) = lanes::told(answer, name);
    match cli.output {
        Output::Json => print::line(serde_json::json!({ "id": id, "answer": answer })),
        Output::Table => print::line(format!("{id} {text}")),
    }
    Ok(if has_it { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_runs() {
        assert_eq!(named(&mut []), "");
        assert_eq!(named(&mut [3]), "3");
        assert_eq!(named(&mut [7, 2, 1, 4, 3, 8]), "1 to 4, 7, 8");
        assert_eq!(named(&mut [1, 3, 5, 7, 9, 11, 13]), "1, 3, 5, 7, 9, 11, …");
    }
}
