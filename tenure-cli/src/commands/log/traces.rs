//! Traces: the export of the program's spans.
//!
//! Without the feature `otel`, `no_traces.rs` stands here.

use std::time::Duration;

use tenure::otel::{self, TracesError};
use tracing_subscriber::{Layer, Registry};

use super::{Command, Layers};

/// How long the program waits at its end for a collector that does not answer.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);

/// The export, or why there is none.
pub(super) struct Traces(Result<Option<otel::Traces>, TracesError>);

impl Traces {
    /// Starts the export of spans for the commands that have any.
    pub(super) fn start(command: &Command, layers: &mut Layers) -> Self {
        if !matches!(command, Command::Work(_) | Command::Enqueue(_) | Command::Serve { .. }) {
            return Self(Ok(None));
        }
        let traces = otel::Traces::from_env();
        if let Ok(Some(traces)) = &traces {
            layers.push(traces.layer::<Registry>().boxed());
        }
        Self(traces)
    }

    /// Logs why there is no export; the log must have started.
    pub(super) fn tell(&self) {
        if let Err(error) = &self.0 {
            // Jobs run without traces, too.
            tracing::warn!(%error, "could not set up the export of traces; this process exports none");
        }
    }

    /// Exports the pending spans, as many as the collector accepts within [`FLUSHED_WITHIN`].
    pub(super) fn finish(self) {
        if let Ok(Some(traces)) = self.0
            && let Err(error) = traces.finish(FLUSHED_WITHIN)
        {
            tracing::warn!(%error, "could not export the last traces; they are lost");
        }
    }
}
