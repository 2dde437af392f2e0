//! Recorder: records the metrics of this process, and renders them for Prometheus.

use std::{sync::OnceLock, thread, time::Duration};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::{BUCKETS, METRICS, Type};

/// How often the recorder merges the samples of its histograms.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The recorder of this process; `None`: the program has one of its own.
static OF_THIS_PROCESS: OnceLock<Option<Metrics>> = OnceLock::new();

/// The recorder of this process's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Returns all metrics recorded so far, as text for Prometheus (`text/plain; version=0.0.4`).
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }
}

/// The program has a recorder of metrics already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this program has a recorder of metrics already, and it records tenure's, too: give it the buckets of \
     tenure::metrics::BUCKETS, and read the metrics there"
)]
pub struct InstallError;

/// Records the metrics of this process from now on, for Prometheus. A worker with `TENURE_LISTEN` calls it when it
/// starts; call it earlier to record earlier events, such as enqueues, or to serve the metrics from a server of your
/// own. Metrics that your program records through the same facade are among them. Every call returns the same recorder.
///
/// # Errors
///
/// [`InstallError`] if another recorder was installed first.
pub fn install() -> Result<Metrics, InstallError> {
    OF_THIS_PROCESS.get_or_init(recorder).clone().ok_or(InstallError)
}

fn recorder() -> Option<Metrics> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets).ok()?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    for (name, of, about) in METRICS {
        match of {
            Type::Counter => metrics::describe_counter!(name, about),
            Type::Gauge => metrics::describe_gauge!(name, about),
            Type::Histogram => metrics::describe_histogram!(name, about),
        }
    }
    let upkept = handle.clone();
    let upkeep = move || loop {
        thread::sleep(UPKEEP_EVERY);
        upkept.run_upkeep();
    };
    // If the thread cannot start, each rendering does the same.
    thread::Builder::new().name("tenure-metrics".into()).spawn(upkeep).ok();
    Some(Metrics(handle))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::{
        super::{QueueMeasures, batch, settled},
        *,
    };
    use crate::job::attempt::AttemptOutcome;

    /// Not as summaries, in which the dashboard and the alerts find nothing: by tenure's recorder, and by a recorder
    /// with the shipped buckets.
    #[test]
    fn the_installed_recorder_and_one_with_the_shipped_buckets_render_histograms() {
        let record = || {
            QueueMeasures::new("q").wait.record(Duration::from_millis(3));
            QueueMeasures::new("q").pickup.record(Duration::from_millis(3));
            QueueMeasures::new("q").reset_to_running.record(Duration::from_millis(3));
            QueueMeasures::new("q").slot_idle.record(Duration::from_millis(3));
            settled("k", AttemptOutcome::Failed, Duration::from_millis(3), None);
            batch("claim", 3);
        };
        let installed = install().unwrap();
        record();
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in BUCKETS {
            builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets).unwrap();
        }
        let own = builder.build_recorder();
        metrics::with_local_recorder(&own, record);
        for text in [installed.render(), install().unwrap().render(), own.handle().render()] {
            for (name, buckets) in BUCKETS {
                assert!(text.contains(&format!("# TYPE {name} histogram\n")), "{name}: {text}");
                for bound in buckets {
                    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}_bucket{{")));
                    let of_it = lines.filter(|line| line.contains(&format!("le=\"{bound}\"")));
                    assert_eq!(of_it.count(), 1, "{name} {bound}: {text}");
                }
            }
        }
    }
}
