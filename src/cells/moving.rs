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
//! Each step may be repeated, and a repeated move begins with the first. Each step names the number of its move in that
//! cell, a fencing token: of two movers, and of one that was frozen for long, only the one that has begun last changes
//! anything. No enqueue is accepted by two cells under one key: the old cell has refused all since step 3, and the new
//! one knows all keys before step 5. A submission is accepted wherever its message stands. No tick is lost or doubled:
//! a schedule is copied once its old cell can no longer tick, and removed there once the new cell has it.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_move_that_dies_after_any_step_is_repeated_and_loses_or_doubles_nothing`
//! - `an_unfinished_move_is_undone_or_finished_and_no_other_begins`
//! - `of_two_movers_one_gets_to_the_end_and_a_frozen_one_takes_nothing`

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use super::{Cell, Cells, CellsError};
use crate::{
    client::queues::{QueueLimits, QueueSettingsError},
    job::{JobId, events::QueueEvents},
    proof::fault,
    store::{BegunMove, Mark, Marked, ScheduleOfQueue, StoreError},
};

/// How many keys to copy at once.
const KEYS_AT_ONCE: usize = 5_000;
/// How far before the first copy the second one begins: a transaction that was open then may have taken keys, and the
/// clocks of producers differ.
const KEYS_SINCE: TimeDelta = TimeDelta::hours(1);
/// How far to count what is left.
const COUNTED: i64 = 1_000_000;

/// How long to try for the lock of a mark, and the pause in between, in which others go on.
const MARKED_WITHIN: Duration = Duration::from_secs(60);
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long one try waits, while others wait behind it. Every few tries it waits for longer than it takes Postgres to
/// cancel an autovacuum that is in the way (`deadlock_timeout`, one second).
const PATIENCE: &str = "300ms";
const MORE_PATIENCE: &str = "1300ms";
const MORE_PATIENCE_EVERY: u32 = 5;
/// How often a move begins in its second cell: as often as others overtake it there and give up.
const BEGUN_AT_MOST: usize = 5;

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
    /// The schedules that stayed, because the new cell has others of these names, or they were changed just now.
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
    #[error("queue {queue:?} is in cell {cell:?} already")]
    Same {
        /// The queue.
        queue: String,
        /// The cell.
        cell: String,
    },
    /// The cell that it shall leave does not have it.
    #[error("queue {queue:?} has moved from cell {cell:?} to cell {now:?} before; move it from there")]
    Left {
        /// The queue.
        queue: String,
        /// The cell that it shall leave.
        cell: String,
        /// The cell to which it has moved.
        now: String,
    },
    /// Another move of the queue has begun, and has not ended.
    #[error(
        "a move of queue {queue:?} from cell {from:?} to cell {to:?} has not ended; finish it (`tenure queues move \
         {queue} --from {from} --to {to}`), or undo it (`--from {to} --to {from}`)"
    )]
    Unfinished {
        /// The queue.
        queue: String,
        /// The cell that it leaves.
        from: String,
        /// The cell that it has not reached.
        to: String,
    },
    /// The queue's mark in this cell has changed since this call has read it.
    #[error(
        "cell {cell:?}: another move of queue {queue:?} is under way; look at `tenure queues list`, then repeat this \
         one"
    )]
    Concurrent {
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
    /// Others hold the table of jobs.
    #[error(
        "cell {cell:?}: for {} s, transactions that have enqueued jobs and have not ended, or a VACUUM or an index \
         that is being built, have held the table of jobs; end them, then repeat the move",
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

/// A move, with the marks that it has found. Its number in each cell fences it: a later move of the queue ends it.
struct Move<'c> {
    queue: &'c str,
    from: &'c Cell,
    to: &'c Cell,
    at_from: BegunMove,
    at_to: BegunMove,
}

/// How a try to move a queue ended.
enum Tried {
    Moved(Moved),
    /// Another move has begun later in the second cell alone.
    Overtaken(MoveError),
}

impl Cells {
    /// Moves a queue to another cell while it is in use: new jobs are accepted there, old ones run where they are. Its
    /// unique keys, limits, pause and schedules go along; its dead letters and its history stay. `from` names the cell
    /// that it leaves; `None`: the one to which the layout and earlier moves have brought it.
    ///
    /// Programs with an old layout follow by themselves, if they know both cells: see [`Cells::enqueue`] and
    /// [`Cells::work`]. Enqueues wait while the last keys are copied, usually for less than a second. A unique key that
    /// was copied is kept for [`Retention::keys`](crate::settings::Retention::keys) from then on, even if its job
    /// ends later. Submissions that are published to the old cell run there.
    ///
    /// Change the layout afterwards, never before: a cell to which programs send jobs does not know the queue's keys.
    ///
    /// To undo a move that has not ended, move the queue from the new cell to the old one.
    ///
    /// Cancel safe, in steps: repeat it. Each step is idempotent.
    ///
    /// # Errors
    ///
    /// [`MoveError`]. Repeat the call once the cause is gone: until then the queue may accept no jobs.
    pub async fn move_queue(&self, queue: &str, from: Option<&str>, to: &str) -> Result<Moved, MoveError> {
        for _ in 1..BEGUN_AT_MOST {
            if let Tried::Moved(moved) = self.try_to_move(queue, from, to).await? {
                return Ok(moved);
            }
        }
        match self.try_to_move(queue, from, to).await? {
            Tried::Moved(moved) => Ok(moved),
            Tried::Overtaken(error) => Err(error),
        }
    }

    async fn try_to_move(&self, queue: &str, from: Option<&str>, to: &str) -> Result<Tried, MoveError> {
        let to = self.named(to)?;
        let marks = self.marks().await;
        let from = match from {
            Some(name) => self.named(name)?,
            None => self.left(queue, to, &marks)?,
        };
        if from.name == to.name {
            return Err(MoveError::Same { queue: queue.to_owned(), cell: to.name.clone() });
        }
        // A mistaken move ends no other.
        self.check(&Move::look(queue, from, to).await?, &marks)?;
        let cells = json!({ "from": from.name, "to": to.name });
        let store = from.tenure.store();
        store
            .note_act(from.tenure.actor(), "move_queue", Some(queue), None, Some(&cells))
            .await
            .map_err(of(from))?;
        let it = Move::begin(queue, from, to).await?;
        let marks = self.marks().await;
        self.check(&it, &marks)?;
        match self.go_on(&it).await {
            // The other move has begun earlier in the first cell, and gives up: this one is to be repeated.
            Err(error @ MoveError::Concurrent { .. }) if it.check_holds(it.first()).await.is_ok() => {
                Ok(Tried::Overtaken(error))
            }
            moved => moved.map(Tried::Moved),
        }
    }

    /// Takes the steps of a move that has begun.
    async fn go_on(&self, it: &Move<'_>) -> Result<Moved, MoveError> {
        let Move { queue, from, to, .. } = *it;
        let mut moved = Moved {
            from: from.name.clone(),
            to: to.name.clone(),
            keys: 0,
            schedules: Vec::new(),
            kept: Vec::new(),
            live: 0,
            dead: 0,
        };
        let mut opened = to;
        if it.undoes_before_it_left() {
            // The other cell, or a third one, has accepted its jobs all the time.
            if it.undoes() {
                it.open(from).await?;
                opened = from;
            }
        } else if !it.is_done() {
            if it.undoes() || it.undoes_after_it_left() {
                // The settings have stayed where the queue was. So that a repeated try may copy them back:
                it.copy_settings(to, from, true).await?;
            }
            let since = it.close().await?;
            it.take(since, &mut moved).await?;
        }
        from.tenure.store().end_move(queue, it.number(from)).await.map_err(of(from))?;
        fault::point("move: done");
        it.forget(opened).await;
        if opened.name == to.name {
            self.note_moved(queue, &to.name);
        }
        (moved.live, moved.dead) = from.tenure.store().left_behind(queue, COUNTED).await.map_err(of(from))?;
        Ok(moved)
    }

    /// Returns the cell that a queue leaves for `to`, by the marks of all cells.
    fn left(&self, queue: &str, to: &Cell, marks: &[(usize, Marked)]) -> Result<&Cell, CellsError> {
        let mark = |place: usize| {
            marks
                .iter()
                .find(|(at, marked)| *at == place && marked.queue == queue)
                .map(|(_, marked)| &marked.mark)
        };
        let place_of = |name: &str| self.iter().position(|cell| cell.name == name);
        let to = place_of(&to.name).unwrap_or_default();
        match mark(to) {
            Some(Mark::ArrivesFrom(from)) if place_of(from).is_some() => {
                return Ok(&self.inner.cells[place_of(from).unwrap_or_default()]);
            }
            // A move from `to` to a cell that it had left before has not ended: undo that one.
            Some(Mark::MovedTo(back))
                if marks.iter().any(|(at, of)| {
                    let is_back = of.queue == queue && self.inner.cells[*at].name == *back;
                    is_back && of.comes_from.as_ref() == Some(&self.inner.cells[to].name)
                }) =>
            {
                return self.named(back);
            }
            _ => {}
        }
        // The last cell from which it has gone to `to`: it may have been there before.
        let (mut place, mut before) = (self.layout_place_of(queue)?, None);
        for _ in 0..self.inner.cells.len() {
            let Some(Mark::MovedTo(next)) = mark(place) else { break };
            let Some(next) = place_of(next) else { break };
            if next == to {
                before = Some(place);
            }
            place = next;
        }
        let ends_here = !matches!(mark(place), Some(Mark::MovedTo(_)));
        let leaves = Mark::ArrivesFrom(self.inner.cells[to].name.clone());
        let undone = marks.iter().find(|(_, marked)| marked.queue == queue && marked.mark == leaves);
        Ok(&self.inner.cells[match (before, undone) {
            // It is there, or two marks lead in a circle: then a move back to `to` has not ended.
            (Some(before), _) if !ends_here || place == to => before,
            (None, Some((at, _))) if place == to && *at != to => *at,
            _ => place,
        }])
    }

    /// Refuses a move that would leave the queue in two cells.
    fn check(&self, it: &Move<'_>, marks: &[(usize, Marked)]) -> Result<(), MoveError> {
        let Move { queue, from, to, .. } = it;
        let unfinished = |from: &str, to: &str| MoveError::Unfinished {
            queue: (*queue).to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let left = |cell: &Cell, now: &str| MoveError::Left {
            queue: (*queue).to_owned(),
            cell: cell.name.clone(),
            now: now.to_owned(),
        };
        for (at, cell, other) in [(&it.at_from, from, to), (&it.at_to, to, from)] {
            if let Some(comes_from) = at.comes_from.as_ref().filter(|comes_from| **comes_from != other.name) {
                return Err(unfinished(comes_from, &cell.name));
            }
        }
        match &it.at_from.mark {
            Some(Mark::MovedTo(now)) if *now != to.name && !it.undoes_come_back() => {
                return Err(left(from, now));
            }
            Some(Mark::ArrivesFrom(other)) if *other != to.name => return Err(unfinished(other, &from.name)),
            _ => {}
        }
        match &it.at_to.mark {
            Some(Mark::ArrivesFrom(other)) if *other != from.name => return Err(unfinished(other, &to.name)),
            // It comes back only from where it has gone.
            Some(Mark::MovedTo(next)) if !it.undoes_before_it_left() => {
                let (mut next, mut passes) = (next.clone(), false);
                for _ in 0..self.inner.cells.len() {
                    passes |= next == from.name;
                    let place = self.iter().position(|cell| cell.name == next);
                    let marked = marks.iter().find(|(at, of)| Some(*at) == place && of.queue == **queue);
                    match marked.map(|(_, of)| &of.mark) {
                        Some(Mark::MovedTo(cell)) if !passes => next.clone_from(cell),
                        _ => break,
                    }
                }
                if !passes {
                    return Err(left(to, &next));
                }
            }
            _ => {}
        }
        let leaves = Mark::ArrivesFrom(from.name.clone());
        for (place, marked) in marks {
            let cell = &self.inner.cells[*place];
            if marked.queue == **queue && marked.mark == leaves && cell.name != to.name {
                return Err(unfinished(&from.name, &cell.name));
            }
        }
        Ok(())
    }
}

impl<'c> Move<'c> {
    /// Reads the marks, and begins nothing.
    async fn look(queue: &'c str, from: &'c Cell, to: &'c Cell) -> Result<Self, MoveError> {
        let look = async |cell: &Cell| {
            let marks = cell.tenure.store().marked_queues().await.map_err(of(cell))?;
            let marked = marks.into_iter().find(|marked| marked.queue == queue);
            Ok::<_, MoveError>(match marked {
                Some(Marked { mark, comes_from, since, .. }) => {
                    BegunMove { number: 0, mark: Some(mark), comes_from, since }
                }
                None => BegunMove { number: 0, mark: None, comes_from: None, since: None },
            })
        };
        Ok(Self { queue, from, to, at_from: look(from).await?, at_to: look(to).await? })
    }

    /// Begins in both cells, always in the same order. Of several movers, the last to begin in the first cell goes on.
    /// One that it has overtaken there may still begin later in the second cell, and then gives up: the last one begins
    /// anew in the second cell, or all of them would give up.
    async fn begin(queue: &'c str, from: &'c Cell, to: &'c Cell) -> Result<Self, MoveError> {
        let begin = async |cell: &Cell| cell.tenure.store().begin_move(queue).await.map_err(of(cell));
        let is_from_first = from.name < to.name;
        let (first, second) = if is_from_first { (from, to) } else { (to, from) };
        let at_first = begin(first).await?;
        let mut at_second = BegunMove { number: 0, mark: None, comes_from: None, since: None };
        for _ in 0..BEGUN_AT_MOST {
            let (at_from, at_to) = if is_from_first {
                (at_first.clone(), at_second.clone())
            } else {
                (at_second.clone(), at_first.clone())
            };
            let it = Self { queue, from, to, at_from, at_to };
            // Both marks are of one moment only if no other move has begun in between.
            it.check_holds(first).await?;
            if at_second.number > 0 && it.check_holds(second).await.is_ok() {
                return Ok(it);
            }
            at_second = begin(second).await?;
        }
        Err(MoveError::Concurrent { queue: queue.to_owned(), cell: second.name.clone() })
    }

    /// The cell in which each move between these two begins first.
    fn first(&self) -> &'c Cell {
        if self.from.name < self.to.name { self.from } else { self.to }
    }

    /// Refuses to go on if a later move has begun in this cell.
    async fn check_holds(&self, cell: &Cell) -> Result<(), MoveError> {
        let settings = cell.tenure.store().settings_of_queue(self.queue).await.map_err(of(cell))?;
        if settings.moves == self.number(cell) { Ok(()) } else { Err(self.concurrent(cell)) }
    }

    /// Whether the old cell has refused new jobs since an earlier try.
    fn has_moved(&self) -> bool {
        self.at_from.mark == Some(Mark::MovedTo(self.to.name.clone())) || self.undoes_after_it_left()
    }

    /// Whether an earlier try has got to the end.
    fn is_done(&self) -> bool {
        self.has_moved() && self.at_to.mark.is_none()
    }

    /// Whether this undoes a move from the new cell to the old one, which arrives there.
    fn undoes(&self) -> bool {
        self.at_from.mark == Some(Mark::ArrivesFrom(self.to.name.clone()))
    }

    /// Whether this undoes a move in which the queue was to come back to the old cell.
    fn undoes_come_back(&self) -> bool {
        self.at_from.comes_from.as_ref() == Some(&self.to.name)
    }

    /// Whether the move to be undone has not taken the queue from the new cell, or another one has.
    fn undoes_before_it_left(&self) -> bool {
        let has_left = self.at_to.mark == Some(Mark::MovedTo(self.from.name.clone()));
        (self.undoes() || self.undoes_come_back()) && !has_left
    }

    /// Whether this undoes a move in which the queue was to come back to the old cell, and had left the new one.
    fn undoes_after_it_left(&self) -> bool {
        self.undoes_come_back() && self.at_to.mark == Some(Mark::MovedTo(self.from.name.clone()))
    }

    fn number(&self, cell: &Cell) -> i64 {
        if cell.name == self.from.name { self.at_from.number } else { self.at_to.number }
    }

    fn concurrent(&self, cell: &Cell) -> MoveError {
        MoveError::Concurrent { queue: self.queue.to_owned(), cell: cell.name.clone() }
    }

    /// Changes the mark in a cell, as soon as no transaction holds what it has inserted into the table of jobs.
    async fn mark(
        &self,
        cell: &Cell,
        mark: &Mark,
        comes_from: Option<(&str, DateTime<Utc>)>,
    ) -> Result<(), MoveError> {
        let began_at = Instant::now();
        for n in 1_u32.. {
            let patience = if n.is_multiple_of(MORE_PATIENCE_EVERY) { MORE_PATIENCE } else { PATIENCE };
            match cell
                .tenure
                .store()
                .mark_queue(self.queue, self.number(cell), mark, comes_from, patience)
                .await
            {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(self.concurrent(cell)),
                Err(error) if error.is_locked() && began_at.elapsed() < MARKED_WITHIN => {}
                Err(error) if error.is_locked() => break,
                Err(error) => return Err(of(cell)(error)),
            }
            sleep(MARK_AGAIN_AFTER).await;
        }
        Err(MoveError::Blocked { cell: cell.name.clone(), waited: began_at.elapsed() })
    }

    async fn open(&self, cell: &Cell) -> Result<(), MoveError> {
        let opened = cell.tenure.store().open_queue(self.queue, self.number(cell)).await.map_err(of(cell))?;
        if opened { Ok(()) } else { Err(self.concurrent(cell)) }
    }

    /// Removes the trigger of a cell that has been opened. While it is there, transactions with snapshots of their own
    /// are refused.
    async fn forget(&self, cell: &Cell) {
        let began_at = Instant::now();
        while let Err(error) = cell.tenure.store().forget_mark(self.queue).await {
            if began_at.elapsed() > MARKED_WITHIN / 4 {
                tracing::warn!(
                    cell = cell.name, queue = self.queue, %error,
                    "the trigger of a queue that has arrived was not removed: until this move is repeated, \
                     transactions of the isolation levels REPEATABLE READ and SERIALIZABLE cannot enqueue into it"
                );
                return;
            }
            sleep(MARK_AGAIN_AFTER).await;
        }
    }

    /// Step 1. Returns when the copy of the keys began, which an earlier try may have noted.
    async fn close(&self) -> Result<DateTime<Utc>, MoveError> {
        let Self { from, to, at_to, .. } = self;
        // A queue that has been here has jobs here.
        let is_new = !matches!(at_to.mark, Some(Mark::MovedTo(_)));
        if let Some(since) = at_to.since {
            self.refuse_in_use(is_new && !self.has_moved()).await?;
            return Ok(since);
        }
        self.refuse_in_use(is_new).await?;
        let began_at = from.tenure.store().database_time().await.map_err(of(from))?;
        let gate = match &at_to.mark {
            // The mark of a queue that comes back refuses its jobs as well, and leads to the cell that has it.
            Some(mark) => mark.clone(),
            None => Mark::ArrivesFrom(from.name.clone()),
        };
        self.mark(to, &gate, Some((&from.name, began_at))).await?;
        // Again: one that came before the mark is seen now.
        if let Err(error) = self.refuse_in_use(is_new).await {
            self.open(to).await?;
            self.forget(to).await;
            return Err(error);
        }
        Ok(began_at)
    }

    async fn refuse_in_use(&self, is_new: bool) -> Result<(), MoveError> {
        let Self { queue, from, to, .. } = self;
        let (live, _) = to.tenure.store().left_behind(queue, COUNTED).await.map_err(of(to))?;
        if !is_new || live == 0 {
            return Ok(());
        }
        let (queue, cell, from) = ((*queue).to_owned(), to.name.clone(), from.name.clone());
        Err(MoveError::InUse { queue, cell, from, live })
    }

    /// Steps 2 to 5.
    async fn take(&self, since: DateTime<Utc>, moved: &mut Moved) -> Result<(), MoveError> {
        let Self { from, to, .. } = self;
        fault::point("move: arriving");
        if !self.has_moved() || self.undoes_after_it_left() {
            moved.keys = self.copy_keys(None).await?;
        }
        fault::point("move: keys");
        if !self.has_moved() {
            self.mark(from, &Mark::MovedTo(to.name.clone()), None).await?;
        }
        fault::point("move: moved");
        moved.keys += self.copy_keys(Some(since - KEYS_SINCE)).await?;
        fault::point("move: late keys");
        self.copy_settings(from, to, matches!(self.at_to.mark, Some(Mark::MovedTo(_)))).await?;
        fault::point("move: settings");
        self.take_schedules(moved).await?;
        fault::point("move: schedules");
        self.open(to).await?;
        fault::point("move: open");
        Ok(())
    }

    async fn copy_keys(&self, since: Option<DateTime<Utc>>) -> Result<u64, MoveError> {
        let Self { queue, from, to, .. } = self;
        let (mut after, mut copied) = (JobId(Uuid::nil()), 0);
        let most = i64::try_from(KEYS_AT_ONCE).unwrap_or(i64::MAX);
        loop {
            let keys =
                from.tenure.store().keys_of_queue(queue, after, since, most).await.map_err(of(from))?;
            copied += to.tenure.store().take_keys(queue, &keys).await.map_err(of(to))?;
            match keys.get(KEYS_AT_ONCE - 1) {
                Some((_, last)) => after = *last,
                None => return Ok(copied),
            }
        }
    }

    /// Copies the limits, the events and the pause. A setting that the other cell has already stays, unless `exactly`:
    /// then it is from before the queue has left.
    async fn copy_settings(&self, of_cell: &Cell, to: &Cell, exactly: bool) -> Result<(), MoveError> {
        let queue = self.queue;
        let old = of_cell.tenure.store().settings_of_queue(queue).await.map_err(of(of_cell))?;
        let new = to.tenure.store().settings_of_queue(queue).await.map_err(of(to))?;
        let mut limits = QueueLimits::new();
        if exactly || new.max_running.is_none() {
            limits = limits.max_running(old.max_running);
        }
        if exactly || new.max_queued.is_none() {
            limits = limits.max_queued(old.max_queued);
        }
        let wrong = |source| MoveError::Settings { cell: to.name.clone(), source };
        if new.moves != self.number(to) {
            return Err(self.concurrent(to));
        }
        to.tenure.limit_queue(queue, limits).await.map_err(wrong)?;
        if old.events != new.events && (exactly || new.events == QueueEvents::Nothing) {
            to.tenure.set_events(queue, old.events).await.map_err(wrong)?;
        }
        if old.is_paused {
            to.tenure.pause_queue(queue).await.map_err(wrong)?;
        } else if exactly {
            to.tenure.resume_queue(queue).await.map_err(wrong)?;
        }
        Ok(())
    }

    /// Takes the queue's schedules along.
    async fn take_schedules(&self, moved: &mut Moved) -> Result<(), MoveError> {
        let Self { queue, from, to, .. } = self;
        for schedule in from.tenure.store().schedules_of_queue(queue).await.map_err(of(from))? {
            let is_new =
                to.tenure.store().take_schedule(&schedule.whole, self.number(to)).await.map_err(of(to))?;
            fault::point("move: schedule");
            // An earlier try may have copied it, and died before it could remove it in the old cell.
            let is_there = |there: &[ScheduleOfQueue]| there.iter().any(|own| own.name == schedule.name);
            let may_leave =
                is_new || is_there(&to.tenure.store().schedules_of_queue(queue).await.map_err(of(to))?);
            let left = may_leave
                && from
                    .tenure
                    .store()
                    .leave_schedule(&schedule, queue, self.number(from))
                    .await
                    .map_err(of(from))?;
            if left { &mut moved.schedules } else { &mut moved.kept }.push(schedule.name);
        }
        if !moved.schedules.is_empty() {
            to.tenure.nats().announce_schedules().await;
        }
        Ok(())
    }
}
