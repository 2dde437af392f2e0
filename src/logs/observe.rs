//! Job log: finds the running job of an event of `tracing`, so that what a handler logs is kept with its job.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tracing::span::Id;

/// What keeps the lines of a job.
pub(crate) trait Keeps: Send + Sync {
    fn keep(&self, line: &str);
}

/// The jobs that keep their logs, by the spans of their attempts.
static LISTED: LazyLock<Mutex<HashMap<Id, Weak<dyn Keeps>>>> = LazyLock::new(Mutex::default);
/// How many there are: the one question of an event while there are none.
static LISTED_NOW: AtomicUsize = AtomicUsize::new(0);

fn listed() -> MutexGuard<'static, HashMap<Id, Weak<dyn Keeps>>> {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job on the list. Dropped, it leaves.
pub(crate) struct Listed(Id);

impl Drop for Listed {
    fn drop(&mut self) {
        if listed().remove(&self.0).is_some() {
            LISTED_NOW.fetch_sub(1, Relaxed);
        }
    }
}

/// Lists an attempt by its span. `None`: the span is disabled.
pub(crate) fn list(span: Option<&Id>, job: &Arc<impl Keeps + 'static>) -> Option<Listed> {
    let span = span?.clone();
    let job: Weak<dyn Keeps> = Arc::downgrade(&(job.clone() as Arc<dyn Keeps>));
    if listed().insert(span.clone(), job).is_none() {
        LISTED_NOW.fetch_add(1, Relaxed);
    }
    Some(Listed(span))
}

mod layer {
    use std::fmt::{Debug, Write as _};

    use chrono::{SecondsFormat, Utc};
    use tracing::{
        Event, Subscriber,
        field::{Field, Visit},
    };
    use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

    use super::{LISTED_NOW, Relaxed, listed};

    /// A layer of `tracing` that adds what a handler logs to the log of its job: see
    /// [`JobContext::log`](crate::JobContext::log). Events of tenure itself stay out. Give it a filter of its own: it
    /// takes each event that it gets.
    ///
    /// ```
    /// use tracing_subscriber::{Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};
    ///
    /// tracing_subscriber::registry()
    ///     .with(tracing_subscriber::fmt::layer())
    ///     .with(tenure::JobLogLayer::new().with_filter(LevelFilter::INFO))
    ///     .init();
    /// ```
    #[derive(Debug, Clone, Copy, Default)]
    #[non_exhaustive]
    pub struct JobLogLayer;

    impl JobLogLayer {
        /// Returns the layer.
        #[must_use]
        pub fn new() -> Self {
            Self
        }
    }

    impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for JobLogLayer {
        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let target = event.metadata().target();
            if LISTED_NOW.load(Relaxed) == 0 || target == "tenure" || target.starts_with("tenure::") {
                return;
            }
            let Some(mut scope) = context.event_scope(event) else { return };
            let job = {
                let listed = listed();
                scope.find_map(|span| listed.get(&span.id()).and_then(std::sync::Weak::upgrade))
            };
            if let Some(job) = job {
                job.keep(&line(event));
            }
        }
    }

    /// An event as a line: time, level, target, message and fields.
    fn line(event: &Event<'_>) -> String {
        let metadata = event.metadata();
        let at = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
        let mut line = Line(format!("{at} {} {}:", metadata.level(), metadata.target()));
        event.record(&mut line);
        line.0
    }

    struct Line(String);

    impl Visit for Line {
        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == "message" {
                self.record_debug(field, &format_args!("{value}"));
            } else {
                self.record_debug(field, &value);
            }
        }

        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            // Writing to a String cannot fail.
            let _ = match field.name() {
                "message" => write!(self.0, " {value:?}"),
                name => write!(self.0, " {name}={value:?}"),
            };
        }
    }
}

pub use layer::JobLogLayer;
