//! Moving: a queue goes to another cell while it is in use. New jobs are accepted there, old ones run where they are.
//!
//! | step | in | what it does | if the program dies after it |
//! |---|---|---|---|
//! | 1 | new cell | marks the queue as arriving: no job is accepted | jobs go to the old cell, as before |
//! | 2 | both | copies the unique keys; there may be many | the same |
//! | 3 | old cell | marks the queue as moved: no job is accepted | enqueues wait or fail, until the move is repeated |
//! | 4 | both | copies the keys that came meanwhile, the limits and the pause; takes the schedules along | the same |
//! | 5 | new cell | removes its mark: jobs are accepted | the move is done |
//!
//! Each step may be repeated, and a repeated move begins with the first. No job is accepted by two cells under one key:
//! the old cell has refused all since step 3, and the new one knows all keys before step 5. No tick is lost or doubled:
//! a schedule is copied once its old cell can no longer tick, and removed there once the new cell has it.
//!
//! Invariant, held by the test of that name:
//!
//! - `a_move_that_dies_after_any_step_is_repeated_and_loses_or_doubles_nothing`

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use tokio::time::sleep;

use super::{Cell, Cells, CellsError};
use crate::{
    client::queues::{QueueLimits, QueueSettingsError},
    proof::fault,
    store::{Mark, QueueRow, StoreError},
};

/// How many keys to copy at once.
const KEYS_AT_ONCE: usize = 5_000;
/// How far before the first copy the second one begins: a transaction that was open then may have taken keys.
const KEYS_SINCE: TimeDelta = TimeDelta::hours(1);

/// How long to try for the lock of a mark, and the pause in between, in which others go on.
const MARKED_WITHIN: Duration = Duration::from_secs(60);
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A queue that has moved.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Moved {
    /// The cell that it has left.
    pub from: String,
    /// The cell that accepts its new jobs.
    pub to: String,
    /// How many unique keys were copied by this call.
    pub keys: u64,
    /// The schedules that this call took along.
    pub schedules: Vec<String>,
    /// The schedules that stayed, because the new cell has others of these names.
    pub kept: Vec<String>,
    /// How many live jobs its old cell still has. Workers that have both cells run them there.
    pub live: u64,
    /// How many dead letters its old cell has. They stay; a redriven one runs there.
    pub dead: u64,
}

/// A queue was not moved, or not to the end: the call may be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// A cell is unknown.
    #[error(transparent)]
    Cells(#[from] CellsError),
    /// The queue is there already.
    #[error("queue {queue:?} is in cell {cell:?} already; to finish a move, name the cell that it has left")]
    Same {
        /// The queue.
        queue: String,
        /// The cell.
        cell: String,
    },
    /// The new cell holds jobs of this queue that it has accepted itself: their keys may be those of other jobs.
    #[error(
        "cell {cell:?} has accepted jobs of queue {queue:?} already ({live} are live), so that unique keys may have \
         been taken twice; let programs send it to cell {from:?} again, wait until those jobs have ended, then repeat \
         the move"
    )]
    InUse {
        /// The queue.
        queue: String,
        /// The new cell.
        cell: String,
        /// The old cell.
        from: String,
        /// How many of its jobs are live there.
        live: u64,
    },
    /// A transaction that has enqueued jobs did not end.
    #[error(
        "cell {cell:?}: transactions that have enqueued jobs have not ended for {} s, and the move waits for them; end \
         them, then repeat the move",
        waited.as_secs()
    )]
    Blocked {
        /// The cell.
        cell: String,
        /// How long the move has tried.
        waited: Duration,
    },
    /// The limits could not be copied.
    #[error("cell {cell:?}")]
    Settings {
        /// The cell.
        cell: String,
        /// The cause.
        source: QueueSettingsError,
    },
    /// A Postgres did not answer, or refused.
    #[error("cell {cell:?}")]
    Store {
        /// The cell.
        cell: String,
        /// The cause.
        source: StoreError,
    },
}

fn of(cell: &Cell) -> impl Fn(StoreError) -> MoveError {
    let cell = cell.name.clone();
    move |source| MoveError::Store { cell: cell.clone(), source }
}

impl Cells {
    /// Moves a queue to another cell while it is in use: new jobs are accepted there, old ones run where they are. Its
    /// unique keys, limits, pause and schedules go along; its dead letters and its history stay. `from` names the cell
    /// that it leaves; `None`: the one to which the layout or an earlier move has brought it.
    ///
    /// Programs with an old layout follow by themselves, if they know both cells: see [`Cells::enqueue`] and
    /// [`Cells::work`]. Enqueues wait while the last keys are copied, usually for less than a second. A unique key that
    /// was copied is kept for [`Retention::keys`](crate::settings::Retention::keys) from then on, whatever becomes of
    /// its job. Submissions that are published to the old cell run there.
    ///
    /// Change the layout afterwards, never before: a cell to which programs send jobs does not know the queue's keys.
    ///
    /// Cancel safe, in steps: repeat it. Each step is idempotent.
    ///
    /// # Errors
    ///
    /// [`MoveError`]. Repeat the call once the cause is gone: until then the queue may accept no jobs.
    pub async fn move_queue(&self, queue: &str, from: Option<&str>, to: &str) -> Result<Moved, MoveError> {
        let to = self.named(to)?;
        let from = match from {
            Some(name) => self.named(name)?,
            None => self.left(queue, to).await?,
        };
        if from.name == to.name {
            return Err(MoveError::Same { queue: queue.to_owned(), cell: to.name.clone() });
        }
        let marks = to.tenure.store().marked_queues().await.map_err(of(to))?;
        let mark_of_new = marks.into_iter().find(|(own, _)| own == queue).map(|(_, mark)| mark);
        let marks = from.tenure.store().marked_queues().await.map_err(of(from))?;
        let has_moved =
            marks.iter().any(|(own, mark)| own == queue && *mark == Mark::MovedTo(to.name.clone()));

        let mut moved = Moved {
            from: from.name.clone(),
            to: to.name.clone(),
            keys: 0,
            schedules: Vec::new(),
            kept: Vec::new(),
            live: 0,
            dead: 0,
        };
        // An earlier call has moved it to the end, if its old cell names the new one, and that accepts its jobs.
        if !has_moved || mark_of_new.is_some() {
            if mark_of_new.is_none() {
                let (live, _) = to.tenure.store().left_behind(queue).await.map_err(of(to))?;
                if live > 0 {
                    let (queue, cell, from) = (queue.to_owned(), to.name.clone(), from.name.clone());
                    return Err(MoveError::InUse { queue, cell, from, live });
                }
            }
            // The mark of a queue that comes back refuses its jobs as well.
            if !matches!(mark_of_new, Some(Mark::MovedTo(_))) {
                mark(to, queue, Some(&Mark::ArrivesFrom(from.name.clone()))).await?;
            }
            self.take(from, to, queue, has_moved, &mut moved).await?;
        }
        fault::point("move: done");
        // Without a mark its trigger does nothing; a later move removes it.
        if let Err(error) = to.tenure.store().forget_mark(queue).await {
            tracing::debug!(queue, %error, "the trigger of a queue that has arrived was not removed");
        }
        self.note_moved(queue, &to.name);
        (moved.live, moved.dead) = from.tenure.store().left_behind(queue).await.map_err(of(from))?;
        Ok(moved)
    }

    /// Takes all that belongs to a queue to a cell in which it is marked, and opens it there. `has_moved`: its old cell
    /// has refused new jobs since an earlier try.
    async fn take(
        &self,
        from: &Cell,
        to: &Cell,
        queue: &str,
        has_moved: bool,
        moved: &mut Moved,
    ) -> Result<(), MoveError> {
        fault::point("move: arriving");
        let began_at = from.tenure.store().database_time().await.map_err(of(from))?;
        if !has_moved {
            moved.keys = copy_keys(from, to, queue, None).await?;
        }
        fault::point("move: keys");
        mark(from, queue, Some(&Mark::MovedTo(to.name.clone()))).await?;
        fault::point("move: moved");
        // After an earlier try, nobody knows which keys came since its copy.
        let since = if has_moved { None } else { Some(began_at - KEYS_SINCE) };
        moved.keys += copy_keys(from, to, queue, since).await?;
        fault::point("move: late keys");
        copy_settings(from, to, queue).await?;
        fault::point("move: settings");
        (moved.schedules, moved.kept) = take_schedules(from, to, queue).await?;
        fault::point("move: schedules");
        mark(to, queue, None).await?;
        fault::point("move: open");
        Ok(())
    }

    /// Returns the cell that a queue leaves for `to`: one that has its mark already, or the one that accepts its jobs.
    async fn left(&self, queue: &str, to: &Cell) -> Result<&Cell, MoveError> {
        let marks = self.marks().await;
        let is_left =
            |mark: &(usize, String, Mark)| mark.1 == queue && mark.2 == Mark::MovedTo(to.name.clone());
        if let Some((place, ..)) = marks.iter().find(|mark| is_left(mark)) {
            return Ok(&self.inner.cells[*place]);
        }
        // Follow the marks of earlier moves.
        let mut place = self.place_of(queue)?;
        for _ in 0..self.inner.cells.len() {
            let moved = marks.iter().find_map(|(at, own, mark)| match mark {
                Mark::MovedTo(cell) if *at == place && own == queue => Some(cell),
                _ => None,
            });
            match moved.and_then(|cell| self.iter().position(|own| own.name == *cell)) {
                Some(next) => place = next,
                None => break,
            }
        }
        Ok(&self.inner.cells[place])
    }
}

/// Marks a queue, as soon as no transaction holds what it has inserted into the table of jobs.
async fn mark(cell: &Cell, queue: &str, mark: Option<&Mark>) -> Result<(), MoveError> {
    let began_at = Instant::now();
    loop {
        match cell.tenure.store().mark_queue(queue, mark).await {
            Err(error) if error.is_locked() && began_at.elapsed() < MARKED_WITHIN => {
                sleep(MARK_AGAIN_AFTER).await;
            }
            Err(error) if error.is_locked() => {
                return Err(MoveError::Blocked { cell: cell.name.clone(), waited: began_at.elapsed() });
            }
            marked => return marked.map_err(of(cell)),
        }
    }
}

async fn copy_keys(
    from: &Cell,
    to: &Cell,
    queue: &str,
    since: Option<chrono::DateTime<Utc>>,
) -> Result<u64, MoveError> {
    let (mut after, mut copied) = (String::new(), 0);
    let most = i64::try_from(KEYS_AT_ONCE).unwrap_or(i64::MAX);
    loop {
        let keys = from.tenure.store().keys_of_queue(queue, &after, since, most).await.map_err(of(from))?;
        copied += to.tenure.store().take_keys(queue, &keys).await.map_err(of(to))?;
        match keys.into_iter().nth(KEYS_AT_ONCE - 1) {
            Some((last, _)) => after = last,
            None => return Ok(copied),
        }
    }
}

/// Copies the limits and the pause, unless the new cell has settings of its own.
async fn copy_settings(from: &Cell, to: &Cell, queue: &str) -> Result<(), MoveError> {
    let row = async |cell: &Cell| {
        let rows = cell.tenure.store().list_queues(Some(queue)).await.map_err(of(cell))?;
        Ok::<Option<QueueRow>, MoveError>(rows.into_iter().next())
    };
    let (Some(old), new) = (row(from).await?, row(to).await?) else { return Ok(()) };
    // What an operator has set in the new cell already stays.
    let is_set =
        |row: &QueueRow| row.max_running.is_some() || row.max_queued.is_some() || row.paused_at.is_some();
    if new.as_ref().is_some_and(is_set) {
        return Ok(());
    }
    let settings = |source| MoveError::Settings { cell: to.name.clone(), source };
    if old.max_running.is_some() || old.max_queued.is_some() {
        let limits = QueueLimits::new().max_running(old.max_running).max_queued(old.max_queued);
        to.tenure.limit_queue(queue, limits).await.map_err(settings)?;
    }
    if old.paused_at.is_some() {
        to.tenure.pause_queue(queue).await.map_err(settings)?;
    }
    Ok(())
}

/// Takes a queue's schedules along; returns their names, and those of the schedules that stay.
async fn take_schedules(
    from: &Cell,
    to: &Cell,
    queue: &str,
) -> Result<(Vec<String>, Vec<String>), MoveError> {
    let (mut taken, mut kept) = (Vec::new(), Vec::new());
    for (name, schedule) in from.tenure.store().schedules_of_queue(queue).await.map_err(of(from))? {
        let is_new = to.tenure.store().take_schedule(&schedule).await.map_err(of(to))?;
        fault::point("move: schedule");
        // An earlier try may have copied it, and died before it could remove it here.
        let there = to.tenure.store().schedules_of_queue(queue).await.map_err(of(to))?;
        if is_new || there.iter().any(|(own, _)| *own == name) {
            from.tenure.store().remove_schedule(&name).await.map_err(of(from))?;
            taken.push(name);
        } else {
            kept.push(name);
        }
    }
    if !taken.is_empty() {
        to.tenure.nats().announce_schedules().await;
    }
    Ok((taken, kept))
}
