//! Cells: several tenures as one. A *cell* is a Postgres and a stream; a queue lives in one cell.
//!
//! Nothing is shared but the list of the cells, the [`Layout`], which each program reads for itself. It says to which
//! cell a new job goes, by its queue. What crosses queues (a transaction, a unique key, one call for many jobs) stays
//! within a cell. A cell that is away stops its own queues only.
//!
//! A queue may move while it is in use ([`Cells::move_queue`]): its old cell refuses new jobs from then on and names
//! the new one, so that a program with an old layout follows.
//!
//! ```no_run
//! use tenure::{Config, JobRequest, Worker, cells::{Cells, Layout}};
//!
//! # async fn f(main: Config, eu: Config, resize: JobRequest) -> Result<(), Box<dyn std::error::Error>> {
//! let layout = Layout::new().cell("main", main, ["*"])?.cell("eu", eu, ["mail-eu", "*-eu"])?;
//! let cells = Cells::connect(&layout).await?;
//! cells.enqueue(resize).await?;
//! // A worker in each cell that has one of its queues.
//! # #[cfg(feature = "worker")]
//! cells.work(|tenure| Worker::builder(tenure).concurrency("mail-eu", 8)).run_until(tenure::shutdown_signal()).await?;
//! # Ok(()) }
//! ```
//!
//! Not here: what a queue's mark does in its database (`store::cells`).

mod moving;
#[cfg(feature = "worker")]
mod work;

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::future::{join_all, try_join_all};
use tokio::time::sleep;

pub use self::moving::{MoveError, Moved};
#[cfg(feature = "worker")]
pub use self::work::{CellsWorker, CellsWorkerError};
pub use crate::config::layout::{Layout, LayoutError};
use crate::{
    client::{
        Tenure,
        connect::ConnectError,
        enqueue::{Enqueued, JobRequest},
    },
    enqueue::insert::EnqueueError,
    job::{JobId, codec::Codecs},
    store::{JobRow, Mark, Marked, StoreError},
};

/// How long an enqueue waits for a queue that is about to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// One of several tenures.
#[derive(Debug, Clone)]
pub struct Cell {
    name: String,
    tenure: Tenure,
}

impl Cell {
    /// Its name in the layout.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its connections: for all that concerns one cell.
    #[must_use]
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }
}

/// The connections to several cells. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cells {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    cells: Vec<Cell>,
    /// The queues that have moved since the layout was written, and the places of their cells.
    moved: RwLock<HashMap<String, usize>>,
}

/// A call to several cells failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CellsError {
    /// No cell has this queue.
    #[error(
        "no cell has queue {queue:?}, and there is no default cell; name it in the layout, or add a default: {}",
        known.join(", ")
    )]
    NoCell {
        /// The queue.
        queue: String,
        /// The cells of the layout.
        known: Vec<String>,
    },
    /// The jobs of one call belong to several cells. Nothing was enqueued.
    #[error(
        "queue {one:?} is in cell {cell:?}, but queue {other:?} is in cell {other_cell:?}: jobs that are enqueued all \
         or none must be in one cell; enqueue those of each cell by a call of their own"
    )]
    Apart {
        /// The queue of the first job.
        one: String,
        /// Its cell.
        cell: String,
        /// A queue of another cell.
        other: String,
        /// That cell.
        other_cell: String,
    },
    /// The layout has no cell of this name.
    #[error("there is no cell {name:?}; the layout has: {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The cells of the layout.
        known: Vec<String>,
    },
    /// The settings of a cell cannot be used.
    #[error("cell {cell:?}")]
    Connect {
        /// The cell.
        cell: String,
        /// The cause.
        source: ConnectError,
    },
    /// A job was not enqueued.
    #[error("cell {cell:?}")]
    Enqueue {
        /// The cell.
        cell: String,
        /// The cause.
        source: EnqueueError,
    },
    /// The Postgres of a cell did not answer, or refused.
    #[error("cell {cell:?}")]
    Store {
        /// The cell.
        cell: String,
        /// The cause.
        source: StoreError,
    },
}

impl<'c> IntoIterator for &'c Cells {
    type Item = &'c Cell;
    type IntoIter = std::slice::Iter<'c, Cell>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Cells {
    /// Connects to every cell, as [`Tenure::connect`] does, all at once. A cell whose servers are away is no error:
    /// its connections recover by themselves.
    ///
    /// # Errors
    ///
    /// [`CellsError::Connect`] if the settings of a cell cannot be used.
    pub async fn connect(layout: &Layout) -> Result<Self, CellsError> {
        Self::connect_with(layout, Codecs::new()).await
    }

    /// [`Cells::connect`] with codecs: see [`TenureBuilder::codecs`](crate::TenureBuilder::codecs).
    ///
    /// # Errors
    ///
    /// Those of [`Cells::connect`].
    pub async fn connect_with(layout: &Layout, codecs: Codecs) -> Result<Self, CellsError> {
        let codecs = &codecs;
        let connect = layout.cells().iter().map(async |of| {
            let tenure = Tenure::builder(&of.config).codecs(codecs.clone()).connect().await;
            let tenure = tenure.map_err(|source| CellsError::Connect { cell: of.name.clone(), source })?;
            Ok::<_, CellsError>(Cell { name: of.name.clone(), tenure })
        });
        let cells = try_join_all(connect).await?;
        Ok(Self { inner: Arc::new(Inner { layout: layout.clone(), cells, moved: RwLock::default() }) })
    }

    /// Returns the cells, in the order of the layout.
    pub fn iter(&self) -> std::slice::Iter<'_, Cell> {
        self.inner.cells.iter()
    }

    /// Returns the cell of this name.
    ///
    /// # Errors
    ///
    /// [`CellsError::Unknown`] with the names that there are.
    pub fn named(&self, name: &str) -> Result<&Cell, CellsError> {
        let found = self.iter().find(|cell| cell.name == name);
        found.ok_or_else(|| CellsError::Unknown { name: name.to_owned(), known: self.names() })
    }

    /// Returns the cell that accepts the new jobs of a queue: that of the layout, or the one to which it has moved, if
    /// this program has met its mark.
    ///
    /// # Errors
    ///
    /// [`CellsError::NoCell`].
    pub fn of(&self, queue: &str) -> Result<&Cell, CellsError> {
        self.place_of(queue).map(|at| &self.inner.cells[at])
    }

    fn place_of(&self, queue: &str) -> Result<usize, CellsError> {
        let moved = self.inner.moved.read().unwrap_or_else(PoisonError::into_inner).get(queue).copied();
        moved.map_or_else(|| self.layout_place_of(queue), Ok)
    }

    /// The place of a queue's cell by the layout alone.
    fn layout_place_of(&self, queue: &str) -> Result<usize, CellsError> {
        let no_cell = || CellsError::NoCell { queue: queue.to_owned(), known: self.names() };
        self.inner.layout.place_of(queue).ok_or_else(no_cell)
    }

    /// Returns the cells in which a queue may have jobs: the one that accepts new ones, and those that it has left.
    /// Asks all cells.
    #[doc(hidden)]
    pub async fn having(&self, queue: &str) -> Result<Vec<&Cell>, CellsError> {
        let places = self.places_of(queue, &self.marks().await)?;
        Ok(places.into_iter().map(|place| &self.inner.cells[place]).collect())
    }

    /// Returns the places of those cells, by these marks, that of new jobs first.
    fn places_of(&self, queue: &str, marks: &[(usize, Marked)]) -> Result<Vec<usize>, CellsError> {
        let mut places = vec![self.follow_marks(queue, marks)?];
        let left = marks.iter().filter(|(_, of)| of.queue == queue && matches!(of.mark, Mark::MovedTo(_)));
        for (place, _) in left {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        Ok(places)
    }

    /// Returns the place of the cell to which the marks lead from that of the layout, and remembers it.
    fn follow_marks(&self, queue: &str, marks: &[(usize, Marked)]) -> Result<usize, CellsError> {
        let mut place = self.layout_place_of(queue)?;
        for _ in 0..self.inner.cells.len() {
            let next = marks.iter().find_map(|(at, of)| match &of.mark {
                Mark::MovedTo(cell) if *at == place && of.queue == queue => Some(cell),
                _ => None,
            });
            let Some(next) = next.and_then(|name| self.iter().position(|cell| cell.name == *name)) else {
                break;
            };
            place = next;
            self.note_moved(queue, &self.inner.cells[place].name);
        }
        Ok(place)
    }

    fn names(&self) -> Vec<String> {
        self.iter().map(|cell| cell.name.clone()).collect()
    }

    /// Notes that a queue has moved to the cell of this name. Returns `false` if the layout has no such cell.
    fn note_moved(&self, queue: &str, cell: &str) -> bool {
        let Some(place) = self.iter().position(|own| own.name == cell) else { return false };
        let mut moved = self.inner.moved.write().unwrap_or_else(PoisonError::into_inner);
        if moved.insert(queue.to_owned(), place) != Some(place) {
            tracing::debug!(queue, cell, "this queue has moved; its new jobs go to that cell from now on");
        }
        true
    }

    /// Enqueues a job in the cell of its queue, as [`Tenure::enqueue`] does: set its options on the [`JobRequest`]. If
    /// the queue has moved, the job goes to its new cell; while it is being moved, this waits for up to ten seconds.
    ///
    /// Cancel safe: if the future is dropped, the job was either enqueued or not.
    ///
    /// # Errors
    ///
    /// [`CellsError::NoCell`], and [`CellsError::Enqueue`] with the error of the cell.
    pub async fn enqueue(&self, job: impl Into<JobRequest>) -> Result<Enqueued, CellsError> {
        let job = job.into();
        let until = Instant::now() + ARRIVES_WITHIN;
        loop {
            let cell = self.of(job.queue_name())?;
            match cell.tenure.enqueue(job.clone()).await {
                Ok(enqueued) => return Ok(enqueued),
                Err(error) => self.follow(cell, error, until).await?,
            }
            sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Enqueues many jobs in one statement, all or none, as [`Tenure::enqueue_many`] does. Their queues must be in one
    /// cell.
    ///
    /// Cancel safe: the jobs were either enqueued or not.
    ///
    /// # Errors
    ///
    /// [`CellsError::Apart`] if they are in several cells; otherwise those of [`Cells::enqueue`].
    pub async fn enqueue_many<R: Into<JobRequest>>(
        &self,
        jobs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Enqueued>, CellsError> {
        let jobs: Vec<JobRequest> = jobs.into_iter().map(Into::into).collect();
        let Some(first) = jobs.first() else { return Ok(Vec::new()) };
        let until = Instant::now() + ARRIVES_WITHIN;
        loop {
            let cell = self.of(first.queue_name())?;
            // Also after a refusal: a queue that has moved parts it from the others.
            for job in &jobs {
                let other = self.of(job.queue_name())?;
                if cell.name != other.name {
                    return Err(CellsError::Apart {
                        one: first.queue_name().to_owned(),
                        cell: cell.name.clone(),
                        other: job.queue_name().to_owned(),
                        other_cell: other.name.clone(),
                    });
                }
            }
            match cell.tenure.enqueue_many(jobs.clone()).await {
                Ok(enqueued) => return Ok(enqueued),
                Err(error) => self.follow(cell, error, until).await?,
            }
            sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Notes where a queue has gone if a cell refused its jobs for that. Then another try may succeed.
    ///
    /// # Errors
    ///
    /// The error, if it is another, or too many tries have failed: two cells that name each other are an operator's
    /// mistake, and no reason to go round for ever.
    async fn follow(&self, cell: &Cell, error: EnqueueError, until: Instant) -> Result<(), CellsError> {
        let may_succeed = Instant::now() < until
            && match &error {
                EnqueueError::Moved { queue, cell } => self.note_moved(queue, cell),
                EnqueueError::Arriving { .. } => true,
                // The old cell's backlog hides the mark: its limit refuses a job before Postgres can.
                EnqueueError::QueueFull { queue, .. } => {
                    let marks = cell.tenure.store().marked_queues().await.unwrap_or_default();
                    let mark = marks.into_iter().find(|of| of.queue == *queue).map(|of| of.mark);
                    matches!(mark, Some(Mark::MovedTo(to)) if self.note_moved(queue, &to))
                }
                _ => false,
            };
        if may_succeed {
            return Ok(());
        }
        Err(CellsError::Enqueue { cell: cell.name.clone(), source: error })
    }

    /// Returns the job of this id and its cell; `None`: no cell has it. Asks all cells at once.
    ///
    /// # Errors
    ///
    /// [`CellsError::Store`] if no cell has the job, but one did not answer: the job may be there.
    pub async fn find(&self, id: JobId) -> Result<Option<(&Cell, JobRow)>, CellsError> {
        let asked = join_all(self.iter().map(async |cell| (cell, cell.tenure.job(id).await))).await;
        let mut silent = None;
        for (cell, answer) in asked {
            match answer {
                Ok(Some(job)) => return Ok(Some((cell, job))),
                Ok(None) => {}
                Err(source) => silent = Some(CellsError::Store { cell: cell.name.clone(), source }),
            }
        }
        silent.map_or(Ok(None), Err)
    }

    /// Runs [`Tenure::close`] for every cell, all at once.
    pub async fn close(&self) {
        join_all(self.iter().map(|cell| cell.tenure.close())).await;
    }

    /// Asks every cell which of its queues have marks. Cells that do not answer are left out.
    async fn marks(&self) -> Vec<(usize, Marked)> {
        let asked = join_all(self.iter().map(|cell| cell.tenure.store().marked_queues())).await;
        let mut marks = Vec::new();
        for (place, answer) in asked.into_iter().enumerate() {
            match answer {
                Ok(of) => marks.extend(of.into_iter().map(|marked| (place, marked))),
                Err(error) => {
                    let cell = &self.inner.cells[place].name;
                    tracing::debug!(cell, %error, "could not read which queues of a cell have moved");
                }
            }
        }
        marks
    }
}
