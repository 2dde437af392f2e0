//! Signal: waits for the signals that ask the process to stop.

/// Completes when the process gets SIGTERM or SIGINT (Ctrl-C).
///
/// From then on a second signal ends the process at once, with exit code 1; other workers recover its jobs.
pub async fn shutdown_signal() {
    signalled().await;
    tracing::info!("stopping on a signal; a second one exits at once");
    tokio::spawn(async {
        signalled().await;
        tracing::warn!("a second signal: exiting at once");
        std::process::exit(1);
    });
}

async fn signalled() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = match signal(SignalKind::terminate()) {
            Ok(signal) => signal,
            Err(error) => {
                tracing::error!(%error, "SIGTERM cannot be caught; stop with Ctrl-C");
                drop(tokio::signal::ctrl_c().await);
                return;
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    drop(tokio::signal::ctrl_c().await);
}
