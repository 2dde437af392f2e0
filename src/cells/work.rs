//! Work: a worker in each cell that has a queue of it.
//!
//! A queue that moves is served in both cells: its new jobs run in the new one, the rest in the old one. The marks say
//! so; this looks for them now and then, and starts a worker where one is missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
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
    /// worker in each of those cells, with the slots that the closure gives to a queue. A queue that moves is served in
    /// its old cell, too: there it has as many slots again.
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

    /// Returns the cells in which each of these queues may have jobs: the one that accepts new ones, and those that it
    /// has left.
    async fn places(&self, queues: &[String]) -> Result<BTreeMap<usize, BTreeSet<String>>, CellsError> {
        let marks = self.marks().await;
        let mut places: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for queue in queues {
            for place in self.places_of(queue, &marks)? {
                places.entry(place).or_default().insert(queue.clone());
            }
        }
        Ok(places)
    }

    /// The cells by the layout alone: where to begin before any cell has answered.
    fn layout_places(&self, queues: &[String]) -> Result<BTreeMap<usize, BTreeSet<String>>, CellsError> {
        let mut places: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for queue in queues {
            places.entry(self.layout_place_of(queue)?).or_default().insert(queue.clone());
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
        let mut workers =
            Workers { cells: &cells, build, started: BTreeMap::new(), ended: FuturesUnordered::new() };
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let (mut stops, mut failed) = (false, None);
        // As often as a worker shows that it is alive, in the cell where it does so most often.
        let look_every = cells.iter().map(|cell| cell.tenure().config().timing.renew_every).min();
        let look_every = look_every.unwrap_or(HUNG_AFTER);
        // A cell that is away must hold up neither the start of the others nor the shutdown.
        workers.start(cells.layout_places(&queues)?)?;
        let look = || {
            async {
                let places = cells.places(&queues).await;
                sleep(look_every).await;
                places
            }
            .boxed()
        };
        let mut looks = cells.places(&queues).boxed();
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
                places = &mut looks, if !stops => {
                    looks = look();
                    match places {
                        Ok(places) => workers.start(places).err(),
                        Err(error) => Some(error.into()),
                    }
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

type Ended<'c> = futures::future::BoxFuture<'c, (String, Result<(), WorkerError>)>;

/// The workers that run.
struct Workers<'c, B> {
    cells: &'c Cells,
    build: B,
    /// By the place of their cell: their queues, and the handles.
    started: BTreeMap<usize, (BTreeSet<String>, Vec<std::sync::Arc<WorkerHandle>>)>,
    ended: FuturesUnordered<Ended<'c>>,
}

impl<B> Workers<'_, B> {
    /// Starts workers for the queues that none serves in their cells.
    fn start<S>(&mut self, places: BTreeMap<usize, BTreeSet<String>>) -> Result<(), CellsWorkerError>
    where
        S: Send + Sync + 'static,
        B: Fn(&Tenure) -> WorkerBuilder<S>,
    {
        for (place, queues) in places {
            let (served, handles) = self.started.entry(place).or_default();
            let missing: BTreeSet<_> = queues.difference(served).cloned().collect();
            if missing.is_empty() {
                continue;
            }
            let Some(cell) = self.cells.iter().nth(place) else { continue };
            let name = cell.name().to_owned();
            tracing::info!(cell = name, queues = ?missing, "starting a worker in this cell");
            let worker = (self.build)(cell.tenure()).keep_queues(|queue| missing.contains(queue));
            let failed = |source| CellsWorkerError::Worker { cell: name.clone(), source };
            let worker = std::sync::Arc::new(worker.start().map_err(failed)?);
            served.extend(missing);
            handles.push(worker.clone());
            self.ended.push(async move { (name, worker.wait().await) }.boxed());
        }
        Ok(())
    }

    fn stop(&self) {
        for (_, handles) in self.started.values() {
            for worker in handles {
                worker.stop();
            }
        }
    }

    /// Tells the health of all: what each lacks, if none is ready.
    fn tell(&self, health: &Health) {
        health.beat();
        let all = || self.started.values().flat_map(|(_, handles)| handles);
        if all().any(|worker| worker.health().has_started()) {
            health.started();
        }
        let mut lacks = Vec::new();
        for (place, (_, handles)) in &self.started {
            let cell = self.cells.iter().nth(*place).map_or("", Cell::name);
            for worker in handles.iter().filter(|worker| !worker.is_finished()) {
                match worker.health().ready() {
                    Ok(()) => return health.has("cells"),
                    Err(why) => lacks.push(format!("{cell}: {}", why.join(", "))),
                }
            }
        }
        health.lacks("cells", lacks.join("; "));
    }
}
