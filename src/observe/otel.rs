//! Otel: sends spans to a collector, by OTLP over HTTP. Feature `otel`.
//!
//! Spans wait in a bounded queue, and a thread of its own sends them: a collector that is slow or away costs spans,
//! never a job. Module `trace` makes the spans, with or without this export.

use std::{
    fmt,
    future::{Future, ready},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, hyper::HyperClient};
use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tokio::runtime::Runtime;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use crate::observe::trace::bridge::DerivedIds;

/// How long one request to the collector may take, unless `OTEL_EXPORTER_OTLP_TIMEOUT` says otherwise: the default of
/// the specification.
const WITHIN: Duration = Duration::from_secs(10);

/// An error of the export of traces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracesError {
    /// A variable that starts with `OTEL_` cannot be used.
    #[error("the collector's settings cannot be used: {0}")]
    Settings(String),
    /// The system's certificates, or a runtime for the exporter, are missing.
    #[error("the exporter cannot be started: {0}")]
    Io(#[from] io::Error),
    /// The collector did not take all spans in time.
    #[error("not all spans were sent: {0}")]
    Unsent(String),
}

/// The export of spans to a collector.
///
/// Give its [`Traces::layer`] to the program's subscriber, and call [`Traces::finish`] at its end.
///
/// ```no_run
/// use std::time::Duration;
/// use tenure::otel::Traces;
/// use tracing_subscriber::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let traces = Traces::from_env()?;
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer())
///     .with(traces.as_ref().map(Traces::layer))
///     .init();
/// // … the program
/// if let Some(traces) = traces {
///     traces.finish(Duration::from_secs(2))?;
/// }
/// # Ok(()) }
/// ```
pub struct Traces {
    provider: SdkTracerProvider,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").finish_non_exhaustive()
    }
}

impl Traces {
    /// Reads the environment variables that OpenTelemetry specifies. `None`: neither `OTEL_EXPORTER_OTLP_ENDPOINT` nor
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, `OTEL_SDK_DISABLED` is `true`, or `OTEL_TRACES_EXPORTER` is `none`.
    ///
    /// # Errors
    ///
    /// [`TracesError::Settings`] if an endpoint is no URL; [`TracesError::Io`] if it is `https` and the system has no
    /// certificates. This call does not reach the collector yet.
    pub fn from_env() -> Result<Option<Self>, TracesError> {
        let off = variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
            || variable("OTEL_TRACES_EXPORTER").is_some_and(|text| text.eq_ignore_ascii_case("none"));
        let Some(endpoint) = either("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        else {
            return Ok(None);
        };
        if off {
            return Ok(None);
        }
        let client = Client::new(endpoint.starts_with("https:"))?;
        let otlp = Otlp::builder()
            .with_http()
            // Regardless of the variable: no other protocol is built in.
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client)
            .build()
            .map_err(|error| TracesError::Settings(error.to_string()))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(Exporter { otlp, is_failing: AtomicBool::new(false) })
            .with_id_generator(DerivedIds::default())
            .with_resource(resource())
            .build();
        Ok(Some(Self { provider }))
    }

    /// Returns a layer that sends spans of the levels `INFO`, `WARN` and `ERROR`, tenure's and the program's own.
    ///
    /// It leaves out events: they belong to the log. Add a filter to send fewer spans.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer::<S>()
            .with_tracer(self.provider.tracer("tenure"))
            // The place in tenure's source and the thread would tell a reader nothing.
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_sent).with_max_level_hint(Level::INFO))
    }

    /// Sends the spans that wait, for at most `within`, and ends the export. Blocks its thread: call it at the end of
    /// the program, or by `spawn_blocking`.
    ///
    /// # Errors
    ///
    /// [`TracesError::Unsent`] if the collector did not take everything in time. It has no other consequence.
    pub fn finish(self, within: Duration) -> Result<(), TracesError> {
        self.provider.shutdown_with_timeout(within).map_err(|error| TracesError::Unsent(error.to_string()))
    }
}

fn is_sent(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && *metadata.level() <= Level::INFO
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.trim().is_empty())
}

fn either(special: &str, general: &str) -> Option<String> {
    variable(special).or_else(|| variable(general))
}

/// The service that sends: `OTEL_SERVICE_NAME`, or `tenure`.
fn resource() -> Resource {
    let is_named = variable("OTEL_SERVICE_NAME").is_some()
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name="));
    let resource = Resource::builder();
    if is_named { resource.build() } else { resource.with_service_name("tenure").build() }
}

/// The exporter. It logs when it begins to fail, and when it works again.
#[derive(Debug)]
struct Exporter {
    otlp: Otlp,
    is_failing: AtomicBool,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let answer = self.otlp.export(batch).await;
        let was_failing = self.is_failing.swap(answer.is_err(), Ordering::AcqRel);
        match &answer {
            Err(error) if !was_failing => {
                tracing::warn!(%error, spans, "exporting traces failed; spans are lost until the collector answers");
            }
            Ok(()) if was_failing => tracing::info!("the collector takes traces again"),
            _ => {}
        }
        answer
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.otlp.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

/// An HTTP client with a runtime of its own: the exporter's thread has none.
#[derive(Debug)]
struct Client {
    hyper: Arc<dyn HttpClient>,
    /// `Some` until the drop.
    runtime: Option<Runtime>,
}

impl Client {
    fn new(encrypted: bool) -> Result<Self, TracesError> {
        let millis = either("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        let within = millis.and_then(|text| text.parse().ok()).map_or(WITHIN, Duration::from_millis);
        let hyper: Arc<dyn HttpClient> = if encrypted {
            let provider = rustls::crypto::ring::default_provider();
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)?
                .https_or_http()
                .enable_http1()
                .build();
            Arc::new(HyperClient::new(connector, within, None))
        } else {
            Arc::new(HyperClient::with_default_connector(within, None))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { hyper, runtime: Some(runtime) })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A plain drop would wait for it, which panics on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Client {
    // The signature that `#[async_trait]` makes of an `async fn`.
    fn send_bytes<'life0, 'async_trait>(&'life0 self, request: Request<Bytes>) -> Answer<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let answer = match &self.runtime {
            Some(runtime) => runtime.block_on(self.hyper.send_bytes(request)),
            None => Err("the exporter has ended".into()),
        };
        Box::pin(ready(answer))
    }
}
