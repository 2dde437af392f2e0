//! Fault: points at which a test kills or stops this very process.
//!
//! With the feature `faults`, `TENURE_FAULT=<point>=kill` or `=stop` chooses a point. Without it the points do nothing.

/// Triggers the named fault point.
#[cfg(feature = "faults")]
pub(crate) fn point(name: &str) {
    use rustix::process::{Signal, getpid, kill_process};
    let Ok(fault) = std::env::var("TENURE_FAULT") else { return };
    let signal = match fault.split_once('=') {
        Some((point, "kill")) if point == name => Signal::KILL,
        Some((point, "stop")) if point == name => Signal::STOP,
        _ => return,
    };
    // If the signal fails, the test does, too.
    kill_process(getpid(), signal).ok();
    if signal == Signal::STOP {
        // Another thread may take the signal, and this one would go on for a moment.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Returns whether a test chose this point.
pub(crate) fn is_near(name: &str) -> bool {
    cfg!(feature = "faults") && std::env::var("TENURE_FAULT").is_ok_and(|fault| fault.starts_with(name))
}

/// Triggers the named fault point of a task, which then panics: `TENURE_FAULT=<point>=panic`, or `=panic once`.
pub(crate) fn end_by_panic(name: &str) {
    use std::sync::atomic::{AtomicBool, Ordering};
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !cfg!(feature = "faults") {
        return;
    }
    let Ok(fault) = std::env::var("TENURE_FAULT") else { return };
    let wants = match fault.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
        Some("panic") => true,
        Some("panic once") => !ONCE.swap(true, Ordering::Relaxed),
        _ => false,
    };
    assert!(!wants, "a test wants {name:?} to panic");
}

/// Does nothing without the feature `faults`.
#[cfg(not(feature = "faults"))]
pub(crate) fn point(_name: &str) {}
