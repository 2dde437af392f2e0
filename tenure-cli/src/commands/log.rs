//! Log: the program's log on standard error, for people or for programs, and the export of its spans.

use std::{io::IsTerminal, time::Duration};

use tracing_subscriber::{EnvFilter, Layer, Registry, prelude::*};

use super::{Command, Usage};
#[cfg(feature = "otel")]
use tenure::otel::Traces;

/// The variable that sets the format of the log lines.
const FORMAT: &str = "TENURE_LOG_FORMAT";

/// How long the program waits at its end for a collector that does not answer.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);

type Layers = Vec<Box<dyn Layer<Registry> + Send + Sync>>;

/// The log, which must be finished before the program ends.
#[must_use = "pending spans are lost unless it is finished"]
pub(super) struct Log {
    #[cfg(feature = "otel")]
    traces: Option<Traces>,
}

impl Log {
    /// Starts logging.
    pub(super) fn start(command: &Command) -> Result<Self, Usage> {
        let mut layers: Layers = vec![lines(format()?, filter()?)];
        #[cfg(feature = "otel")]
        let traces = traces(command, &mut layers);
        #[cfg(not(feature = "otel"))]
        let _: &Command = command;
        tracing_subscriber::registry().with(std::mem::take(&mut layers)).init();
        #[cfg(feature = "otel")]
        let traces = traces.unwrap_or_else(|error| {
            // Jobs run without traces, too.
            tracing::warn!(%error, "could not set up the export of traces; this process exports none");
            None
        });
        Ok(Self {
            #[cfg(feature = "otel")]
            traces,
        })
    }

    /// Exports the pending spans, as many as the collector accepts within [`FLUSHED_WITHIN`].
    pub(super) fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(traces) = self.traces
            && let Err(error) = traces.finish(FLUSHED_WITHIN)
        {
            tracing::warn!(%error, "could not export the last traces; they are lost");
        }
        #[cfg(not(feature = "otel"))]
        let _: Duration = FLUSHED_WITHIN;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

fn format() -> Result<Format, Usage> {
    match std::env::var(FORMAT).as_deref() {
        Ok("text") => Ok(Format::Text),
        Err(std::env::VarError::NotPresent) if std::io::stderr().is_terminal() => Ok(Format::Text),
        Ok("json") | Err(std::env::VarError::NotPresent) => Ok(Format::Json),
        other => Err(Usage(format!("{FORMAT} is {:?}, but must be text or json", other.unwrap_or("?")))),
    }
}

fn filter() -> Result<EnvFilter, Usage> {
    let directives = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(directives) if !directives.trim().is_empty() => directives,
        Ok(_) | Err(std::env::VarError::NotPresent) => "warn,tenure=info,async_nats=error".into(),
        Err(error) => return Err(Usage(format!("{}: {error}", EnvFilter::DEFAULT_ENV))),
    };
    EnvFilter::try_new(&directives).map_err(|error| {
        let name = EnvFilter::DEFAULT_ENV;
        Usage(format!("{name} is {directives:?}: {error}; for example warn,tenure=debug"))
    })
}

/// The layer that writes one line per event.
fn lines(format: Format, filter: EnvFilter) -> Box<dyn Layer<Registry> + Send + Sync> {
    match format {
        Format::Text => {
            // Any value but the empty one counts. clap handles its own messages, and no other output has colours.
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal() && !no_color)
                .with_filter(filter)
                .boxed()
        }
        // The fields of the event and of its spans stand side by side, so that `job` is at the top level, where
        // searches expect it. An event within the span of an attempt repeats none of the span's fields.
        Format::Json => json_subscriber::fmt::layer::<Registry>()
            .with_writer(std::io::stderr)
            .flatten_event(true)
            .with_current_span(false)
            .flatten_span_list_on_top_level(true)
            .with_filter(filter)
            .boxed(),
    }
}

/// Starts the export of spans for the commands that have any.
#[cfg(feature = "otel")]
fn traces(command: &Command, layers: &mut Layers) -> Result<Option<Traces>, tenure::otel::TracesError> {
    if !matches!(command, Command::Work(_) | Command::Enqueue(_) | Command::Serve { .. }) {
        return Ok(None);
    }
    let traces = Traces::from_env()?;
    if let Some(traces) = &traces {
        layers.push(traces.layer::<Registry>().boxed());
    }
    Ok(traces)
}
