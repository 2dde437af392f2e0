//! Layers: the program's own code around handlers.
//!
//! A layer is a function of a [`Call`] and of what is [`Next`]: the layer below, or the handler. It runs in the
//! handler's own task, inside the attempt's span, so its panic is the attempt's and its future is dropped with the
//! handler's.
//!
//! A function, and not tower's `Service`: a handler is called by value and without readiness, `poll_ready` would always
//! say yes, and every layer would need a future type or a box of its own. A tower stack still fits into one layer, as
//! [`WorkerBuilder::layer`](crate::WorkerBuilder::layer) shows.
//!
//! Not here: the handler's own run and its limits (`handlers`).

use std::{fmt, future::Future, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;

use crate::{
    job::{JobError, Outcome},
    run::{
        context::JobContext,
        handlers::{IntoOutcome, Run},
    },
};

/// A call of a handler on its way through the layers: the payload and the context.
pub struct Call<S = ()> {
    payload: String,
    context: JobContext<S>,
}

impl<S> fmt::Debug for Call<S> {
    /// Without the payload, which logs should not hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<S> Call<S> {
    /// The payload, as JSON text: as it was enqueued, or as an outer layer has set it.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// Reads the payload into a type, for example into a struct with the few fields that the layer needs.
    ///
    /// # Errors
    ///
    /// The payload does not fit the type. Returned from the layer, the error has the category `invalid_payload`, as
    /// from a handler.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        serde_json::from_str(&self.payload).map_err(|error| self.context.misfits(&error))
    }

    /// Replaces the payload by this JSON text, for the layers below and the handler. The row in Postgres and
    /// [`JobContext::raw_payload`] keep the enqueued one. Text that is no JSON fails the attempt, as a payload does
    /// that does not fit the handler's type.
    pub fn set_payload(&mut self, json: impl Into<String>) {
        self.payload = json.into();
    }

    /// The running job: progress, fenced transactions, cancellation, as a handler has them. Clone it to keep it beyond
    /// the call of what is next.
    pub fn context(&self) -> &JobContext<S> {
        &self.context
    }
}

/// What a layer wraps: the next layer, or the handler.
pub struct Next<S = ()> {
    run: Arc<Run<S>>,
}

impl<S> fmt::Debug for Next<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

impl<S: Send + Sync + 'static> Next<S> {
    /// Runs the rest: the layers below, then the handler. All of their code runs while this future is polled, so a
    /// span, a task-local value or a time limit around it covers them.
    ///
    /// Cancel safe as the handler is: dropped, it drops the handler in the middle.
    ///
    /// # Errors
    ///
    /// The handler's error, or that of a layer below.
    pub async fn run(self, call: Call<S>) -> Result<Outcome, JobError> {
        (self.run)(call.payload, call.context).await
    }
}

/// A layer, as the worker keeps it.
pub(crate) type Layer<S> =
    Arc<dyn Fn(Call<S>, Next<S>) -> BoxFuture<'static, Result<Outcome, JobError>> + Send + Sync>;

/// Takes the program's function.
pub(crate) fn layer<S, F, Fut>(layer: F) -> Layer<S>
where
    F: Fn(Call<S>, Next<S>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |call, next| layer(call, next).map(IntoOutcome::into_outcome).boxed())
}

/// Puts layers around a handler, the first one outermost.
pub(crate) fn surround<S: Send + Sync + 'static>(layers: &[Layer<S>], handler: Arc<Run<S>>) -> Arc<Run<S>> {
    layers.iter().rev().cloned().fold(handler, |run, layer| {
        Arc::new(move |payload, context| layer(Call { payload, context }, Next { run: run.clone() }))
    })
}

/// The same layer beside a state: it sees the context without the state, and the handler below it gets it back.
pub(crate) fn beside_a_state<T: Send + Sync + 'static>(layer: Layer<()>) -> Layer<T> {
    Arc::new(move |Call { payload, context }, Next { run }| {
        let unstated = context.unstated();
        let state = context.state;
        let run = move |payload, below: JobContext| run(payload, below.with_state(state.clone()));
        layer(Call { payload, context: unstated }, Next { run: Arc::new(run) })
    })
}
