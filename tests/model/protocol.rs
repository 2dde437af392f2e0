//! The protocol as a state machine: one job, two workers, a stream, and everything that can go wrong between them.
//!
//! A step is atomic in the real system: one statement, one message, one death. Steps of different parts come in any
//! order, so a paused worker is one whose next step comes late. The model has no clock: a job may look stale at any
//! moment at which its owner has not just written, and an `ack_wait` may end at any moment.

use crate::explore::Model;

/// A deliberate mistake in the protocol, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A progress write does not name its token.
    ProgressWithoutToken,
    /// A completion does not name its token.
    CompletionWithoutToken,
    /// A retry does not name its token.
    RetryWithoutToken,
    /// The fence of a handler's transaction does not name the token.
    FenceWithoutToken,
    /// A reset starts the tokens again at 0.
    TokenStartsAnew,
    /// A submission is acknowledged before its row is there.
    AckBeforeTheRow,
    /// A ticket is acknowledged when its job is claimed, not when it has ended.
    AckAtTheClaim,
    /// A duplicate is acknowledged while the owner is alive.
    AckOfADuplicate,
    /// A worker that finds the row locked treats the job as finished.
    LockedIsFinished,
    /// A worker that starts resets the jobs of hosts whose names begin with its own.
    ReconcileByPrefix,
    /// One missing answer counts as a worker's death.
    VanishedOnOneLook,
    /// The scanner resets the job it found without checking it again.
    ResetWithoutCondition,
    /// A takeover trusts the answer "stale" without checking it again.
    TakeOverWithoutCondition,
    /// A reset does not hand its job to the relay, and no worker searches for lost messages.
    OnlyProcessingIsScanned,
    /// A message that is published again has the id of the first, and the stream drops it.
    OneMessageId,
    /// Messages count as lost by their age.
    LostByAge,
    /// An attempt is charged when it ends, not when it begins.
    ChargedAtTheEnd,
    /// A reset forgets a requested cancellation.
    ResetForgetsTheCancellation,
    /// A submission makes a row whenever the row is absent, without asking for its key.
    RowWithoutKey,
}

/// The bounds of a check: how many faults may happen, and which helpers exist.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) mutation: Option<Mutation>,
    /// The job begins as a submission, from a producer with only a NATS client; otherwise as a row.
    pub(crate) submission: bool,
    /// Deaths, lost answers, wiped streams.
    pub(crate) faults: u8,
    pub(crate) attempts_max: u8,
    /// No worker scans, reconciles or relays: redelivery alone must suffice. Handlers succeed.
    pub(crate) alone: bool,
    /// A user cancels the job at some moment.
    pub(crate) cancels: bool,
}

/// One life of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) worker: usize,
    pub(crate) life: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owned {
    pub(crate) owner: Life,
    pub(crate) token: u8,
    pub(crate) stale: bool,
}

/// The live row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Row {
    /// `None`: queued.
    pub(crate) owned: Option<Owned>,
    pub(crate) token: u8,
    pub(crate) attempt: u8,
    pub(crate) losses: u8,
    pub(crate) cancel: bool,
    pub(crate) due: bool,
    pub(crate) dispatch: u8,
    /// The row says that its message was published; otherwise the relay publishes one.
    pub(crate) told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    Completed,
    Cancelled,
    Dead,
}

/// A message in the stream; dispatch 0 is a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    dispatch: u8,
    held: Option<Life>,
}

/// Where a worker is with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Step {
    Idle,
    Got {
        dispatch: u8,
    },
    /// The claim was refused, or not answered.
    Asking {
        dispatch: u8,
    },
    /// The database answered that the owner is stale.
    TakingOver {
        dispatch: u8,
    },
    Running {
        token: u8,
    },
    /// Its end was written, and not answered.
    Settling {
        token: u8,
        failed: bool,
    },
    Acking,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Worker {
    pub(crate) life: u8,
    pub(crate) up: bool,
    pub(crate) step: Step,
    /// The dispatches of the messages it may acknowledge, even once another worker holds them.
    pub(crate) receipts: Vec<u8>,
}

/// A publication under way: by the producer first, then by relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Publication {
    pub(crate) dispatch: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    pub(crate) row: Option<Row>,
    pub(crate) end: Option<(End, u8)>,
    /// The tokens of attempts that their own workers settled.
    pub(crate) settled: Vec<u8>,
    pub(crate) key: bool,
    pub(crate) messages: Vec<Message>,
    pub(crate) workers: [Worker; 2],
    pub(crate) publication: Option<Publication>,
    /// The scanner found the job and has not reset it yet; only with `ResetWithoutCondition`.
    pub(crate) found: bool,
    pub(crate) faults: u8,
    pub(crate) cancelled: bool,
    pub(crate) wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Publish,
    /// The publisher gets no answer and leaves the row to the relay.
    PublishUnanswered {
        stored: bool,
    },
    PublisherDies,
    Wipe,
    Deliver {
        worker: usize,
        at: usize,
    },
    Redeliver {
        at: usize,
    },
    MakeRow {
        worker: usize,
    },
    Claim {
        worker: usize,
    },
    ClaimUnanswered {
        worker: usize,
    },
    FindLocked {
        worker: usize,
    },
    Ask {
        worker: usize,
    },
    TakeOver {
        worker: usize,
    },
    Progress {
        worker: usize,
    },
    Effect {
        worker: usize,
    },
    Settle {
        worker: usize,
        failed: bool,
    },
    SettleUnanswered {
        worker: usize,
        failed: bool,
    },
    Ack {
        worker: usize,
    },
    GiveUp {
        worker: usize,
    },
    Crash {
        worker: usize,
    },
    Restart {
        worker: usize,
    },
    Stale,
    Scan,
    ResetFound,
    Vanished,
    Due,
    Relay,
    Reclaim,
    Cancel,
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::PublishUnanswered { .. }
                | Self::PublisherDies
                | Self::Wipe
                | Self::ClaimUnanswered { .. }
                | Self::SettleUnanswered { .. }
                | Self::Crash { .. }
                | Self::Cancel
        )
    }
}

impl State {
    /// The same state with the two workers exchanged: the workers are alike.
    fn mirrored(&self) -> Self {
        let mut mirror = self.clone();
        let exchange = |life: Life| Life { worker: 1 - life.worker, ..life };
        mirror.workers.swap(0, 1);
        for message in &mut mirror.messages {
            message.held = message.held.map(exchange);
        }
        mirror.messages.sort_unstable();
        if let Some(owned) = mirror.row.as_mut().and_then(|row| row.owned.as_mut()) {
            owned.owner = exchange(owned.owner);
        }
        mirror
    }

    fn life(&self, worker: usize) -> Life {
        Life { worker, life: self.workers[worker].life }
    }

    fn is_alive(&self, life: Life) -> bool {
        self.workers[life.worker].up && self.workers[life.worker].life == life.life
    }

    fn owned(&self) -> Option<Owned> {
        self.row.and_then(|row| row.owned)
    }

    /// Whether this worker's claim is the current one: what every write must name.
    fn is_mine(&self, worker: usize, token: u8) -> bool {
        self.owned().is_some_and(|owned| owned.owner == self.life(worker) && owned.token == token)
    }

    /// Whether the database accepts a write. Marks the state as wrong if it should not.
    fn accepts(&mut self, worker: usize, token: u8, without_token: bool) -> bool {
        let is_mine = self.is_mine(worker, token);
        // With the token left out, any claim will do.
        let accepted = is_mine || without_token && self.owned().is_some();
        // With tokens that start again, another worker's claim has the same one.
        let same_token = self.owned().is_some_and(|owned| owned.token == token);
        if (accepted || same_token) && !is_mine {
            self.wrong = Some("a stale worker wrote");
        }
        accepted
    }

    fn remove(&mut self, dispatch: u8) {
        self.messages.retain(|message| message.dispatch != dispatch);
    }

    /// Forgets the receipts once the message is answered.
    fn let_go(&mut self, worker: usize) -> Step {
        self.workers[worker].receipts.clear();
        Step::Idle
    }

    fn put_back(&mut self, worker: usize, dispatch: u8) {
        let life = self.life(worker);
        for message in &mut self.messages {
            if message.dispatch == dispatch && message.held == Some(life) {
                message.held = None;
            }
        }
        self.messages.sort_unstable();
    }

    fn store(&mut self, dispatch: u8) {
        if !self.messages.iter().any(|message| message.dispatch == dispatch) {
            self.messages.push(Message { dispatch, held: None });
            self.messages.sort_unstable();
        }
    }

    /// Ends an attempt that failed or was lost.
    fn end_attempt(&mut self, protocol: &Protocol, lost: bool) {
        let Some(row) = self.row.as_mut() else { return };
        let token = row.token;
        row.owned = None;
        if lost {
            row.losses = (row.losses + 1).min(2);
            if protocol.has(Mutation::TokenStartsAnew) {
                row.token = 0;
            }
        } else if protocol.has(Mutation::ChargedAtTheEnd) {
            row.attempt += 1;
        }
        let forgets = lost && protocol.has(Mutation::ResetForgetsTheCancellation);
        if row.cancel && !forgets {
            self.finish(End::Cancelled, token);
        } else if row.attempt >= protocol.attempts_max {
            self.finish(End::Dead, token);
        } else {
            // The job runs again at once after its first loss; otherwise it waits.
            row.due = lost && row.losses == 1;
            row.told = lost && protocol.has(Mutation::OnlyProcessingIsScanned);
        }
    }

    /// Releases the attempt of a claim whose answer was lost: no worker runs it.
    fn release(&mut self) {
        let Some(row) = self.row.as_mut() else { return };
        let token = row.token;
        row.owned = None;
        row.attempt = row.attempt.saturating_sub(1);
        (row.due, row.told) = (true, false);
        if row.cancel {
            self.finish(End::Cancelled, token);
        }
    }

    fn finish(&mut self, end: End, token: u8) {
        if self.end.is_some() {
            self.wrong = Some("it ended twice");
        }
        self.row = None;
        self.end = Some((end, token));
    }

    /// The database's answer about a message whose claim was refused.
    fn verdict(&self, worker: usize, dispatch: u8) -> Verdict {
        let Some(row) = self.row else {
            return if self.end.is_some() { Verdict::Finished } else { Verdict::Unknown };
        };
        if row.told && row.dispatch > dispatch {
            return Verdict::Finished;
        }
        match row.owned {
            Some(owned) if owned.owner == self.life(worker) => Verdict::Orphan,
            Some(owned) if owned.stale => Verdict::Stale,
            Some(_) => Verdict::Held,
            None if row.due => Verdict::Free,
            None if row.told => Verdict::Held,
            None => Verdict::Relayed,
        }
    }
}

enum Verdict {
    /// Or the message is superseded.
    Finished,
    Unknown,
    /// Claimed by this very worker, which does not run it.
    Orphan,
    Stale,
    Held,
    Free,
    /// Not due, and the relay will publish it.
    Relayed,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn is_fault(action: Action) -> bool {
        action.is_fault()
    }

    fn wrong(state: &State) -> Option<&'static str> {
        state.wrong
    }

    fn has_ended(state: &State) -> bool {
        state.end.is_some() && state.messages.is_empty()
    }

    fn first(&self) -> State {
        let worker = Worker { life: 0, up: true, step: Step::Idle, receipts: Vec::new() };
        let queued = Row {
            owned: None,
            token: 0,
            attempt: 0,
            losses: 0,
            cancel: false,
            due: true,
            dispatch: 1,
            told: true,
        };
        let message = Message { dispatch: 0, held: None };
        State {
            row: (!self.submission).then_some(queued),
            end: None,
            settled: Vec::new(),
            key: false,
            messages: if self.submission { vec![message] } else { Vec::new() },
            workers: [worker.clone(), worker],
            publication: (!self.submission).then_some(Publication { dispatch: 1 }),
            found: false,
            faults: self.faults,
            cancelled: !self.cancels,
            wrong: None,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        let may_fail = state.faults > 0;
        let mut add = |possible: bool, action: Action| {
            if possible {
                actions.push(action);
            }
        };
        let unsent = state.publication.is_some();
        add(unsent, Action::Publish);
        add(unsent && may_fail && !self.alone, Action::PublishUnanswered { stored: true });
        add(unsent && may_fail && !self.alone, Action::PublishUnanswered { stored: false });
        add(unsent && may_fail && !self.alone, Action::PublisherDies);
        add(may_fail && !self.alone && !self.submission && !state.messages.is_empty(), Action::Wipe);
        for (at, message) in state.messages.iter().enumerate() {
            add(message.held.is_some(), Action::Redeliver { at });
            for worker in 0..2 {
                let takes = matches!(state.workers[worker].step, Step::Idle | Step::Running { .. });
                add(
                    message.held.is_none() && state.workers[worker].up && takes,
                    Action::Deliver { worker, at },
                );
            }
        }
        for worker in 0..2 {
            let Worker { up, step, life, .. } = state.workers[worker];
            if !up {
                add(life < 2, Action::Restart { worker });
                continue;
            }
            add(may_fail, Action::Crash { worker });
            match step {
                Step::Idle => {}
                Step::Got { dispatch } => {
                    let to_make = dispatch == 0 && state.row.is_none();
                    let key = state.key && !self.has(Mutation::RowWithoutKey);
                    add(to_make && !key, Action::MakeRow { worker });
                    add(!to_make || key, Action::Claim { worker });
                    add(state.row.is_some() && may_fail, Action::ClaimUnanswered { worker });
                    add(
                        state.row.is_some() && self.has(Mutation::LockedIsFinished),
                        Action::FindLocked { worker },
                    );
                }
                Step::Asking { .. } => add(true, Action::Ask { worker }),
                Step::TakingOver { .. } => add(true, Action::TakeOver { worker }),
                Step::Running { .. } => {
                    add(true, Action::Progress { worker });
                    add(true, Action::Effect { worker });
                    for failed in [false, true] {
                        add(!(failed && self.alone), Action::Settle { worker, failed });
                        add(may_fail && !(failed && self.alone), Action::SettleUnanswered { worker, failed });
                    }
                }
                Step::Settling { failed, .. } => add(true, Action::Settle { worker, failed }),
                Step::Acking => add(true, Action::Ack { worker }),
                Step::Lost => add(true, Action::GiveUp { worker }),
            }
        }
        add(state.owned().is_some_and(|owned| !owned.stale), Action::Stale);
        if !self.alone {
            add(state.owned().is_some_and(|owned| owned.stale), Action::Scan);
            add(state.found, Action::ResetFound);
            let silent = |owned: Owned| !state.is_alive(owned.owner) || self.has(Mutation::VanishedOnOneLook);
            add(state.owned().is_some_and(silent), Action::Vanished);
            add(state.row.is_some_and(|row| !row.due), Action::Due);
            let queued = state.row.filter(|row| row.owned.is_none());
            let relayed = queued.is_some_and(|row| row.due && !row.told && row.dispatch < 5);
            add(relayed && state.publication.is_none(), Action::Relay);
            let is_there = |row: Row| state.messages.iter().any(|message| message.dispatch == row.dispatch);
            let by_age = self.has(Mutation::LostByAge);
            let unscanned = self.has(Mutation::OnlyProcessingIsScanned);
            add(
                queued
                    .is_some_and(|row| row.told && row.due && row.dispatch < 7 && (!is_there(row) || by_age))
                    && state.publication.is_none()
                    && !unscanned,
                Action::Reclaim,
            );
        }
        add(!state.cancelled && state.row.is_some(), Action::Cancel);
        actions
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = self.after(before, action);
        // The workers differ only where the name of a host matters.
        if !self.has(Mutation::ReconcileByPrefix) {
            state = state.mirrored().min(state);
        }
        (state != *before).then_some(state)
    }
}

impl Protocol {
    /// The state after an action, without exchanging the workers.
    pub(crate) fn after(&self, before: &State, action: Action) -> State {
        let mut state = before.clone();
        if action.is_fault() && action != Action::Cancel {
            state.faults -= 1;
        }
        self.step(&mut state, action);
        if state.end.is_some() && state.row.is_some() {
            state.wrong = Some("an ended job exists again");
        }
        if let Some(row) = state.row {
            // A released attempt is not charged; each follows a fault.
            if row.token > self.attempts_max + self.faults {
                state.wrong = Some("the job is tried for ever");
            }
            if row.owned.is_none() && row.cancel {
                state.wrong = Some("a cancelled job is queued");
            }
        }
        state
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Publish | Action::PublishUnanswered { .. } => {
                let Some(Publication { dispatch }) = state.publication.take() else { return };
                let is_stored = action != Action::PublishUnanswered { stored: false };
                if is_stored && !(dispatch > 1 && self.has(Mutation::OneMessageId)) {
                    state.store(dispatch);
                }
                if action != Action::Publish
                    && let Some(row) = state.row.as_mut()
                    && row.owned.is_none()
                    && row.dispatch == dispatch
                {
                    row.told = false;
                }
            }
            Action::PublisherDies => state.publication = None,
            Action::Wipe => state.messages.clear(),
            Action::Deliver { worker, at } => self.deliver(state, worker, at),
            Action::Redeliver { at } => {
                state.messages[at].held = None;
                state.messages.sort_unstable();
            }
            Action::Crash { worker } => {
                // The stream delivers its messages again, at any later moment.
                let life = state.life(worker);
                for message in state.messages.iter_mut().filter(|message| message.held == Some(life)) {
                    message.held = None;
                }
                state.messages.sort_unstable();
                let Worker { up, step, receipts, .. } = &mut state.workers[worker];
                (*up, *step) = (false, Step::Idle);
                receipts.clear();
            }
            Action::Restart { .. }
            | Action::Stale
            | Action::Scan
            | Action::ResetFound
            | Action::Vanished
            | Action::Due
            | Action::Relay
            | Action::Reclaim
            | Action::Cancel => self.look_after(state, action),
            Action::MakeRow { worker }
            | Action::Claim { worker }
            | Action::ClaimUnanswered { worker }
            | Action::FindLocked { worker }
            | Action::Ask { worker }
            | Action::TakeOver { worker }
            | Action::Progress { worker }
            | Action::Effect { worker }
            | Action::Settle { worker, .. }
            | Action::SettleUnanswered { worker, .. }
            | Action::Ack { worker }
            | Action::GiveUp { worker } => self.work(state, worker, action),
        }
    }

    /// A step of time, of recovery, or of a user.
    fn look_after(&self, state: &mut State, action: Action) {
        match action {
            Action::Restart { worker } => {
                state.workers[worker].up = true;
                state.workers[worker].life += 1;
                if self.alone {
                    return;
                }
                let dead = |owned: Owned| {
                    owned.owner.worker == worker || self.has(Mutation::ReconcileByPrefix) && worker == 0
                };
                if let Some(owned) = state.owned().filter(|owned| dead(*owned)) {
                    self.reset(state, owned, false);
                }
            }
            Action::Stale => {
                if let Some(owned) = state.row.as_mut().and_then(|row| row.owned.as_mut()) {
                    owned.stale = true;
                }
            }
            Action::Scan if self.has(Mutation::ResetWithoutCondition) => state.found = true,
            Action::Scan => {
                if let Some(owned) = state.owned() {
                    self.reset(state, owned, true);
                }
            }
            Action::ResetFound => {
                state.found = false;
                if let Some(owned) = state.owned() {
                    self.reset(state, owned, true);
                }
            }
            Action::Vanished => {
                if let Some(owned) = state.owned() {
                    self.reset(state, owned, false);
                }
            }
            Action::Due => {
                if let Some(row) = state.row.as_mut() {
                    row.due = true;
                }
            }
            Action::Relay => {
                let Some(row) = state.row.as_mut() else { return };
                // From here on the row says that its message is on its way.
                row.dispatch += 1;
                row.told = true;
                state.publication = Some(Publication { dispatch: row.dispatch });
            }
            Action::Reclaim => {
                let Some(row) = state.row.as_mut() else { return };
                if state
                    .messages
                    .iter()
                    .any(|message| message.dispatch == row.dispatch && message.held.is_none())
                {
                    state.wrong = Some("a message was judged lost while it waited in the stream");
                }
                row.dispatch += 1;
                state.publication = Some(Publication { dispatch: row.dispatch });
            }
            Action::Cancel => {
                state.cancelled = true;
                let Some(row) = state.row.as_mut() else { return };
                if row.owned.is_some() {
                    row.cancel = true;
                } else {
                    let token = row.token;
                    state.finish(End::Cancelled, token);
                }
            }
            _ => {}
        }
    }

    /// Resets a job that another worker owns. `silent`: because it looks stale.
    fn reset(&self, state: &mut State, owned: Owned, silent: bool) {
        if silent && !owned.stale {
            state.wrong = Some("a job was reset that had just shown a sign of life");
        }
        if !silent && state.is_alive(owned.owner) {
            state.wrong = Some("a live owner's job was reset");
        }
        state.end_attempt(self, true);
    }

    fn deliver(&self, state: &mut State, worker: usize, at: usize) {
        let life = state.life(worker);
        let dispatch = state.messages[at].dispatch;
        state.messages[at].held = Some(life);
        state.messages.sort_unstable();
        let Worker { step, receipts, .. } = &mut state.workers[worker];
        if *step == Step::Idle {
            *step = Step::Got { dispatch };
            if dispatch == 0 && self.has(Mutation::AckBeforeTheRow) {
                state.remove(0);
                return;
            }
        }
        // While the job runs here, the worker keeps a newer delivery until the job ends.
        if !receipts.contains(&dispatch) {
            receipts.push(dispatch);
            receipts.sort_unstable();
        }
    }

    /// A worker's step on the job.
    fn work(&self, state: &mut State, worker: usize, action: Action) {
        let step = state.workers[worker].step;
        let next = match (action, step) {
            (Action::MakeRow { .. }, _) => {
                state.key = true;
                state.row = Some(Row {
                    owned: None,
                    token: 0,
                    attempt: 0,
                    losses: 0,
                    cancel: false,
                    due: true,
                    dispatch: 0,
                    told: true,
                });
                step
            }
            (Action::Claim { .. } | Action::ClaimUnanswered { .. }, Step::Got { dispatch }) => {
                let claimed = self.claim(state, worker);
                match claimed {
                    Some(token) if matches!(action, Action::Claim { .. }) => {
                        if self.has(Mutation::AckAtTheClaim) {
                            state.remove(dispatch);
                        }
                        Step::Running { token }
                    }
                    _ => Step::Asking { dispatch },
                }
            }
            (Action::FindLocked { .. }, Step::Got { dispatch }) => {
                state.remove(dispatch);
                state.let_go(worker)
            }
            (Action::Ask { .. }, Step::Asking { dispatch }) => self.ask(state, worker, dispatch),
            (Action::TakeOver { .. }, Step::TakingOver { dispatch }) => {
                let unlooked = self.has(Mutation::TakeOverWithoutCondition);
                if let Some(owned) = state.owned().filter(|owned| owned.stale || unlooked) {
                    self.reset(state, owned, true);
                }
                Step::Got { dispatch }
            }
            (Action::Progress { .. }, Step::Running { token }) => {
                if state.accepts(worker, token, self.has(Mutation::ProgressWithoutToken)) {
                    if let Some(owned) = state.row.as_mut().and_then(|row| row.owned.as_mut()) {
                        owned.stale = false;
                    }
                    // The write's answer carries the cancellation; the handler stops.
                    let cancelled = state.row.is_some_and(|row| row.cancel);
                    if cancelled { self.settle(state, worker, token, true) } else { step }
                } else {
                    Step::Lost
                }
            }
            (Action::Effect { .. }, Step::Running { token }) => {
                if state.accepts(worker, token, self.has(Mutation::FenceWithoutToken)) {
                    step
                } else {
                    Step::Lost
                }
            }
            (
                Action::Settle { failed, .. } | Action::SettleUnanswered { failed, .. },
                Step::Running { token } | Step::Settling { token, .. },
            ) => {
                let settled = self.settle(state, worker, token, failed);
                if matches!(action, Action::Settle { .. }) {
                    settled
                } else {
                    Step::Settling { token, failed }
                }
            }
            (Action::Ack { .. }, _) => {
                for dispatch in std::mem::take(&mut state.workers[worker].receipts) {
                    state.remove(dispatch);
                }
                Step::Idle
            }
            (Action::GiveUp { .. }, _) => {
                for dispatch in state.workers[worker].receipts.clone() {
                    match state.verdict(worker, dispatch) {
                        Verdict::Finished => state.remove(dispatch),
                        _ => state.put_back(worker, dispatch),
                    }
                }
                state.workers[worker].receipts.clear();
                Step::Idle
            }
            _ => step,
        };
        state.workers[worker].step = next;
    }

    fn claim(&self, state: &mut State, worker: usize) -> Option<u8> {
        let owner = state.life(worker);
        let row = state.row.as_mut().filter(|row| row.owned.is_none() && row.due)?;
        row.token += 1;
        if !self.has(Mutation::ChargedAtTheEnd) {
            row.attempt += 1;
        }
        row.owned = Some(Owned { owner, token: row.token, stale: false });
        Some(row.token)
    }

    /// Asks why a claim was refused, and answers its message.
    fn ask(&self, state: &mut State, worker: usize, dispatch: u8) -> Step {
        match state.verdict(worker, dispatch) {
            Verdict::Free => return Step::Got { dispatch },
            Verdict::Orphan => {
                state.release();
                return Step::Got { dispatch };
            }
            Verdict::Stale => return Step::TakingOver { dispatch },
            Verdict::Finished | Verdict::Relayed => state.remove(dispatch),
            Verdict::Held if self.has(Mutation::AckOfADuplicate) => state.remove(dispatch),
            Verdict::Held | Verdict::Unknown => state.put_back(worker, dispatch),
        }
        state.let_go(worker)
    }

    fn settle(&self, state: &mut State, worker: usize, token: u8, failed: bool) -> Step {
        let mistake = if failed { Mutation::RetryWithoutToken } else { Mutation::CompletionWithoutToken };
        if state.accepts(worker, token, self.has(mistake)) {
            if failed {
                state.end_attempt(self, false);
            } else {
                state.finish(End::Completed, token);
            }
            if !state.settled.contains(&token) {
                state.settled.push(token);
                state.settled.sort_unstable();
            }
            return Step::Acking;
        }
        // A repeated settle under the same claim answers as the first did.
        if state.settled.contains(&token) { Step::Acking } else { Step::Lost }
    }
}
