//! The jobs that follow: merges what the analyses have left, and publishes it once a person has approved it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::{Job, JobContext, JobError, Outcome};

use crate::analyze::App;

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
