//! The graph of a report: clones repositories, analyzes each by parts, merges what the parts have left, and publishes
//! it once a person has approved it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::{EnqueueError, Job, JobContext, JobError, JobId, Outcome, Tenure};

use crate::analyze::{AnalyzePart, App, CloneRepo};

/// How many jobs analyze one repository.
const PARTS: usize = 2;

/// The event that [`publish`] waits for.
pub(crate) const APPROVED: &str = "approved";

/// Merge the results of the analyses before it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MergeResults {}

impl Job for MergeResults {
    const KIND: &'static str = "code_evolution.merge";
    const QUEUE: &'static str = "repos";
}

/// Publish what the merge before it has left.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PublishReport {}

impl Job for PublishReport {
    const KIND: &'static str = "code_evolution.publish";
    const QUEUE: &'static str = "repos";
}

/// The result of one analysis, or of many.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) commits: usize,
    pub(crate) lines: i64,
    languages: BTreeMap<String, i64>,
}

/// A report whose jobs are enqueued.
pub(crate) struct Report {
    /// The jobs that end without a person, each with a name.
    pub(crate) jobs: Vec<(JobId, String)>,
    /// The one that waits for an approval.
    pub(crate) publish: JobId,
}

/// Enqueues the jobs of a report about these repositories, each with a name: all of them or none.
pub(crate) async fn enqueue(tenure: &Tenure, repos: &[(String, String)]) -> Result<Report, EnqueueError> {
    let graph = tenure.graph();
    let (mut jobs, mut parts) = (vec![], vec![]);
    for (repo, name) in repos {
        let cloned = graph.add(CloneRepo { repo: repo.clone() });
        jobs.push((cloned.id(), format!("{name}: clone")));
        for part in 0..PARTS {
            let part_of = AnalyzePart { repo: repo.clone(), part, of: PARTS };
            let node = graph.add(part_of).after([&cloned]);
            jobs.push((node.id(), format!("{name}: part {}", part + 1)));
            parts.push(node);
        }
    }
    let merge = graph.add(MergeResults {}).after(&parts);
    jobs.push((merge.id(), "merge".to_owned()));
    let publish = graph.add(PublishReport {}).after([&merge]).id();
    graph.await?;
    Ok(Report { jobs, publish })
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Approval {
    pub(crate) by: String,
}

pub(crate) async fn merge(_: MergeResults, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    let mut all = Summary::default();
    for one in ctx.outputs::<Summary>().await? {
        all.commits += one.commits;
        all.lines += one.lines;
        for (language, lines) in one.languages {
            *all.languages.entry(language).or_default() += lines;
        }
    }
    Outcome::done(all)
}

/// Its attempt ends while it waits: no slot, no message.
pub(crate) async fn publish(_: PublishReport, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    let merged: Vec<Summary> = ctx.outputs().await?;
    let text = ctx
        .step("write", async || {
            let all = merged.first().ok_or("the merge has left nothing")?;
            Ok(format!("{} lines in {} commits", all.lines, all.commits))
        })
        .await?;
    let approval: Approval = ctx.event(APPROVED).await?;
    Outcome::done(format!("{text}, approved by {}", approval.by))
}
