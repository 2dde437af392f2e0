//! Fault: points at which a test has this very process killed or stopped.
//!
//! Without the feature `faults` there are none. With it, `TENURE_FAULT=<point>=kill` or `=stop` names one.

/// Comes to a point.
#[cfg(feature = "faults")]
pub(crate) fn point(name: &str) {
    use rustix::process::{Signal, getpid, kill_process};
    let Ok(fault) = std::env::var("TENURE_FAULT") else { return };
    let signal = match fault.split_once('=') {
        Some((point, "kill")) if point == name => Signal::KILL,
        Some((point, "stop")) if point == name => Signal::STOP,
        _ => return,
    };
    // If even this fails, the test does.
    kill_process(getpid(), signal).ok();
}

/// Whether a test wants something at this point.
#[cfg(feature = "faults")]
pub(crate) fn is_near(name: &str) -> bool {
    std::env::var("TENURE_FAULT").is_ok_and(|fault| fault.starts_with(name))
}

/// Whether a test wants something at this point.
#[cfg(not(feature = "faults"))]
pub(crate) fn is_near(_name: &str) -> bool {
    false
}

/// Comes to a point at which a test has a task panic: `TENURE_FAULT=<point>=panic`, or `=panic once`.
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

/// Comes to a point.
#[cfg(not(feature = "faults"))]
pub(crate) fn point(_name: &str) {}
