//! Shapes: JSON that the command line and the HTTP API share, and that the library has no type for.

use serde::Serialize;

use tenure::JobId;

/// The outcome of an action for one job: `answer` in docs/cli.md.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<'a, T> {
    pub(crate) id: JobId,
    #[serde(flatten)]
    pub(crate) outcome: &'a T,
}
