//! Cells: several tenures as one. A *cell* is a Postgres and a stream; a queue lives in one cell.
//!
//! Nothing is shared but the list of the cells, the [`Layout`], which each program reads for itself. It says to which
//! cell a new job goes, by its queue. What crosses queues (a transaction, a unique key, one call for many jobs) stays
//! within a cell. A cell that is away stops its own queues only.
//!
//! A queue changes its cell by draining: a new layout sends its new jobs to the new cell, and workers of the old cell
//! run on until that has no more jobs of the queue (docs/cells.md).
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

pub(crate) mod config;
#[cfg(feature = "worker")]
mod work;

use std::sync::Arc;

use futures::future::{join_all, try_join_all};

pub use self::config::{Layout, LayoutError};
#[cfg(feature = "worker")]
pub use self::work::{CellsWorker, CellsWorkerError};
use crate::{
    client::{
        Tenure,
        connect::ConnectError,
        enqueue::{Enqueued, JobRequest},
    },
    codec::job::Codecs,
    enqueue::insert::EnqueueError,
    job::JobId,
    store::{JobRow, StoreError},
};

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

    fn refused(&self, source: EnqueueError) -> CellsError {
        CellsError::Enqueue { cell: self.name.clone(), source }
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
        Ok(Self { inner: Arc::new(Inner { layout: layout.clone(), cells }) })
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

    /// Returns the cell to which the layout sends the new jobs of a queue.
    ///
    /// # Errors
    ///
    /// [`CellsError::NoCell`].
    pub fn of(&self, queue: &str) -> Result<&Cell, CellsError> {
        self.place_of(queue).map(|at| &self.inner.cells[at])
    }

    fn place_of(&self, queue: &str) -> Result<usize, CellsError> {
        let no_cell = || CellsError::NoCell { queue: queue.to_owned(), known: self.names() };
        self.inner.layout.place_of(queue).ok_or_else(no_cell)
    }

    fn names(&self) -> Vec<String> {
        self.iter().map(|cell| cell.name.clone()).collect()
    }

    /// Enqueues a job in the cell of its queue, as [`Tenure::enqueue`] does: set its options on the [`JobRequest`].
    ///
    /// Cancel safe: if the future is dropped, the job was either enqueued or not.
    ///
    /// # Errors
    ///
    /// [`CellsError::NoCell`], and [`CellsError::Enqueue`] with the error of the cell.
    pub async fn enqueue(&self, job: impl Into<JobRequest>) -> Result<Enqueued, CellsError> {
        let job = job.into();
        let cell = self.of(job.queue_name())?;
        cell.tenure.enqueue(job).await.map_err(|source| cell.refused(source))
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
        let cell = self.of(first.queue_name())?;
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
        cell.tenure.enqueue_many(jobs).await.map_err(|source| cell.refused(source))
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
}
