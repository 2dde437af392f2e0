//! Counters: a recorder that a test can read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

static COUNTERS: Mutex<BTreeMap<String, Arc<Count>>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl CounterFn for Count {
    fn increment(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn absolute(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

struct Recording;

impl Recorder for Recording {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(COUNTERS.lock().unwrap().entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Installs the recorder for all tests of this process.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| metrics::set_global_recorder(Recording).unwrap());
}

/// How many counters have this in their names or labels.
pub fn named(part: &str) -> usize {
    COUNTERS.lock().unwrap().keys().filter(|name| name.contains(part)).count()
}

/// The value of a counter, by its name and labels: `tenure_recoveries_total{path=scanner,reason=silent}`.
pub fn counted(name: &str) -> u64 {
    COUNTERS.lock().unwrap().get(name).map_or(0, |count| count.0.load(Ordering::Relaxed))
}
