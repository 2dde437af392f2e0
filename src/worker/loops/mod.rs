//! Loops: a worker's work besides its jobs. Each loop has its own task, from the start to the last job's end.
//!
//! A loop is a struct of the parts that it needs. Not here: when loops begin and end (`life`), the steps that they call
//! (`recover`).

pub(super) mod alive;
pub(super) mod claims;
pub(super) mod consumers;
pub(super) mod control;
pub(super) mod figures;
pub(super) mod recovery;
pub(crate) mod relay;
pub(super) mod turns;

use std::{collections::HashMap, fmt::Display, future::Future, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::{
    task::{self, JoinSet},
    time::sleep,
};

use crate::observe::{panics::Panics, repeats};

/// Says that a look of a loop has failed; the loop goes on. While a server is away, the worker says so itself.
pub(crate) fn failed(what: &'static str, error: &impl Display, is_away: bool) {
    if is_away {
        tracing::debug!(%error, "could not {what}; the worker will retry");
    } else if let Some(left_out) = repeats::tell(what, error) {
        tracing::warn!(%error, left_out, "could not {what}; the worker will retry");
    }
}

/// A loop of the worker.
pub(crate) trait Work: Clone + Send + 'static {
    /// Its name in logs, metrics and the worker's health.
    const NAME: &'static str;

    /// Runs for ever.
    fn run(self) -> impl Future<Output = ()> + Send;
}

/// The worker's loops by name. Dropping it ends them.
#[derive(Default)]
pub(crate) struct Loops {
    tasks: JoinSet<()>,
    names: HashMap<task::Id, &'static str>,
}

impl Loops {
    /// Runs `work` for ever. After a panic, which is logged and counted, the loop starts again. A loop that panics too
    /// often ends; only a restart of the process may help then.
    pub(crate) fn spawn<W: Work>(&mut self, work: W) {
        let restarting = async move {
            let mut panics = Panics::new(W::NAME);
            loop {
                match AssertUnwindSafe(work.clone().run()).catch_unwind().await {
                    Ok(()) => return,
                    Err(panic) => {
                        let Some(pause) = panics.note(&*panic) else { return };
                        sleep(pause).await;
                    }
                }
            }
        };
        self.names.insert(self.tasks.spawn(restarting).id(), W::NAME);
    }

    /// Returns the name of the next loop that ends. Cancel safe.
    pub(super) async fn ended(&mut self) -> &'static str {
        match self.tasks.join_next_with_id().await {
            Some(ended) => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                self.names.get(&id).copied().unwrap_or("?")
            }
            None => std::future::pending().await,
        }
    }

    /// Ends all loops.
    pub(super) async fn end(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Returns `every`, spread by ±20 %, so that many workers do not act in step.
pub(crate) fn jittered(every: Duration) -> Duration {
    every.mul_f64(rand::random_range(0.8..1.2))
}
