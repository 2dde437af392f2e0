//! Work: a worker in each cell that has a queue of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::sleep;

use super::{Cell, Cells, CellsError};
use crate::{
    client::Tenure,
    observe::health::Health,
    worker::{WorkerBuilder, WorkerError, WorkerHandle, port},
};

/// How often to look after the workers' health.
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// A runtime that has not looked after them for longer than this hangs.
const HUNG_AFTER: Duration = Duration::from_secs(60);

/// The workers of several cells did not start, or one of them failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CellsWorkerError {
    /// A queue has no cell.
    #[error(transparent)]
    Cells(#[from] CellsError),
    /// The workers cannot listen on the address of [`Layout::listen_at`](super::Layout::listen_at).
    #[error(transparent)]
    Listen(WorkerError),
    /// The worker of a cell did not start, or ended by an error.
    #[error("cell {cell:?}")]
    Worker {
        /// The cell.
        cell: String,
        /// The cause.
        source: WorkerError,
    },
    /// What the closure describes has no queue, or is invalid.
    #[error("the worker is described wrongly")]
    Described(#[source] WorkerError),
}

/// Workers in several cells. See [`Cells::work`].
#[must_use = "no worker runs until `run_until` is awaited"]
pub struct CellsWorker<S, B> {
    cells: Cells,
    build: B,
    health: Health,
    state: std::marker::PhantomData<fn() -> S>,
}

impl<S, B> std::fmt::Debug for CellsWorker<S, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellsWorker").field("cells", &self.cells).finish_non_exhaustive()
    }
}

impl Cells {
    /// Describes a worker by a closure, which is called for each cell that has one of its queues: so the process runs a
    /// worker in each of those cells, with the slots that the closure gives to a queue. A cell from which a queue
    /// drains needs workers of its own: those that still have the old layout, or a [`Worker`](crate::Worker) of
    /// [`Cells::named`].
    pub fn work<S, B>(&self, build: B) -> CellsWorker<S, B>
    where
        S: Send + Sync + 'static,
        B: Fn(&Tenure) -> WorkerBuilder<S>,
    {
        CellsWorker {
            cells: self.clone(),
            build,
            health: Health::new(HUNG_AFTER),
            state: std::marker::PhantomData,
        }
    }

    /// Returns the places of the cells of these queues, each with its queues.
    fn places(&self, queues: &[String]) -> Result<BTreeMap<usize, BTreeSet<String>>, CellsError> {
        let mut places: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for queue in queues {
            places.entry(self.place_of(queue)?).or_default().insert(queue.clone());
        }
        Ok(places)
    }
}

impl<S, B> CellsWorker<S, B>
where
    S: Send + Sync + 'static,
    B: Fn(&Tenure) -> WorkerBuilder<S>,
{
    /// Returns the health of all workers together: ready as long as one of them is, so that a cell that is away does
    /// not make a process unready that serves others.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs the workers until `shutdown` completes, or all have been drained.
    ///
    /// Dropping this future asks the workers to stop, and does not wait for them.
    ///
    /// # Errors
    ///
    /// A queue without a cell, and the error of a worker: the others are then stopped, too.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), CellsWorkerError> {
        let Self { cells, build, health, .. } = self;
        let described = cells.iter().next().map_or(Ok(Vec::new()), |cell| build(cell.tenure()).queue_names());
        let queues = described.map_err(CellsWorkerError::Described)?;
        if queues.is_empty() {
            return Err(CellsWorkerError::Described(WorkerError::Nothing("queue")));
        }
        let _server = port::open(cells.inner.layout.listen(), &health).map_err(CellsWorkerError::Listen)?;
        let mut workers = Workers { started: Vec::new(), ended: FuturesUnordered::new() };
        for (place, queues) in cells.places(&queues)? {
            workers.start(&cells.inner.cells[place], &build, &queues)?;
        }
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let (mut stops, mut failed) = (false, None);
        while !workers.ended.is_empty() {
            workers.tell(&health);
            let error = tokio::select! {
                Some((cell, ended)) = workers.ended.next() => {
                    let is_drained = !stops;
                    stops = true;
                    // Also after a drain: the platform starts the whole process again, and it serves all cells.
                    if is_drained {
                        health.draining();
                        workers.stop();
                    }
                    ended.err().map(|source| CellsWorkerError::Worker { cell, source })
                }
                () = &mut shutdown, if !stops => {
                    health.draining();
                    stops = true;
                    workers.stop();
                    None
                }
                () = sleep(HEALTH_EVERY) => None,
            };
            if let Some(error) = error {
                failed.get_or_insert(error);
                stops = true;
                workers.stop();
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

type Ended = futures::future::BoxFuture<'static, (String, Result<(), WorkerError>)>;

/// The workers that run, one in each cell that has a queue.
struct Workers<'c> {
    started: Vec<(&'c Cell, Arc<WorkerHandle>)>,
    ended: FuturesUnordered<Ended>,
}

impl<'c> Workers<'c> {
    /// Starts a worker in this cell for these of the queues that `build` describes.
    fn start<S, B>(
        &mut self,
        cell: &'c Cell,
        build: &B,
        queues: &BTreeSet<String>,
    ) -> Result<(), CellsWorkerError>
    where
        S: Send + Sync + 'static,
        B: Fn(&Tenure) -> WorkerBuilder<S>,
    {
        let name = cell.name().to_owned();
        tracing::info!(cell = name, ?queues, "starting a worker in this cell");
        let worker = build(cell.tenure()).keep_queues(|queue| queues.contains(queue)).start();
        let worker =
            Arc::new(worker.map_err(|source| CellsWorkerError::Worker { cell: name.clone(), source })?);
        self.started.push((cell, worker.clone()));
        self.ended.push(async move { (name, worker.wait().await) }.boxed());
        Ok(())
    }

    fn stop(&self) {
        for (_, worker) in &self.started {
            worker.stop();
        }
    }

    /// Tells the health of all: what each lacks, if none is ready.
    fn tell(&self, health: &Health) {
        health.beat();
        if self.started.iter().any(|(_, worker)| worker.health().has_started()) {
            health.started();
        }
        let mut lacks = Vec::new();
        for (cell, worker) in self.started.iter().filter(|(_, worker)| !worker.is_finished()) {
            match worker.health().ready() {
                Ok(()) => return health.has("cells"),
                Err(why) => lacks.push(format!("{}: {}", cell.name(), why.join(", "))),
            }
        }
        health.lacks("cells", lacks.join("; "));
    }
}
