//! Log: the program's log on standard error, for people or for programs, and the export of its spans.

#[cfg_attr(not(feature = "otel"), path = "log/no_traces.rs")]
mod traces;

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, Layer, Registry, prelude::*};

use self::traces::Traces;
use super::{Command, Usage};

/// The variable that sets the format of the log lines.
const FORMAT: &str = "TENURE_LOG_FORMAT";

type Layers = Vec<Box<dyn Layer<Registry> + Send + Sync>>;

/// The log, which must be finished before the program ends.
#[must_use = "pending spans are lost unless it is finished"]
pub(super) struct Log {
    traces: Traces,
}

impl Log {
    /// Starts logging.
    pub(super) fn start(command: &Command) -> Result<Self, Usage> {
        let mut layers: Layers = vec![lines(format()?, filter()?)];
        let traces = Traces::start(command, &mut layers);
        tracing_subscriber::registry().with(layers).init();
        traces.tell();
        Ok(Self { traces })
    }

    /// Exports the pending spans.
    pub(super) fn finish(self) {
        self.traces.finish();
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
        Ok(_) | Err(std::env::VarError::NotPresent) => {
            "warn,tenure=info,tenure::run::settle=debug,async_nats=error".into()
        }
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
