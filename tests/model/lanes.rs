//! Lanes as a state machine: three jobs, two of lane A and one of lane B, and the admissions that release them.
//!
//! A step is atomic where the real system's is: a commit, a look under locks, a message, a death. An admission
//! has two: it locks its lanes and looks at them, and it commits what the look allows. It shows at its commit
//! alone, so that a death before leaves nothing behind, and an admission that waits for a lock is one that has
//! not begun. The model has no clock: what is due later may be due at any moment. Claims, owners and publications
//! have their own model: here the message of a released job arrives in the end, by its publisher or by the relay,
//! and a paused owner's end is refused.

use crate::explore::Model;

/// A deliberate mistake in the lanes, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// No admission gives back the slot of a job that has ended.
    SlotIsKept,
    /// An admission gives back the slots of the jobs that its caller names, without judging them.
    CallerIsBelieved,
    /// An admission takes its look before it holds the lanes' locks.
    LooksBeforeItLocks,
    /// An admission passes over a lane that it was to look at, because another admission has locked it.
    NamedLaneIsPassedOver,
    /// The wakes are deleted in a transaction before the one that looks at their lanes.
    WakeBeforeTheLook,
    /// A job that goes back to its lane and waits wakes no lane.
    RetryWithoutWake,
    /// A retry gives its slot back, and leaves the job to the relay.
    RetryPastTheLane,
    /// A reset holds the job, and puts it into no lane.
    ResetForgetsTheLane,
    /// A message that is left over starts a job that is held.
    HeldJobIsClaimed,
    /// A release leaves its token in the bucket, and the next release takes it again.
    TokenTakenTwice,
    /// A job that is cancelled before it ran keeps its token.
    TokenIsLost,
    /// Each look at the lane gives the token of a cancelled job back.
    TokenComesBackTwice,
    /// A held job that is cancelled gives back the token of its last attempt.
    TokenOfAnAttempt,
    /// A lane that waits for a token is not looked at again.
    NoLookForTheToken,
    /// A lane keeps its turn when it has released a job.
    TurnNeverMoves,
    /// A lane that joins the line pays for the turns that it had while the others had no job.
    TurnsAreHeldAgainstALane,
}

/// The bounds of a check.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    pub(crate) mutation: Option<Mutation>,
    /// How many jobs of a lane may be released or run.
    pub(crate) limit: u8,
    /// How many jobs of the queue may be released or run.
    pub(crate) window: u8,
    /// Lane A has a bucket of one token.
    pub(crate) rate: bool,
    /// Deaths, pauses, wake-ups that the caller of an admission forgets.
    pub(crate) faults: u8,
    /// A user cancels a job at some moment.
    pub(crate) cancels: bool,
    pub(crate) attempts_max: u8,
    /// How many jobs there are: three, or only the two of lane A.
    pub(crate) jobs: usize,
    /// How many admissions there may be at once: two at most.
    pub(crate) admissions: usize,
    /// Whether lanes take turns, and how many turns lane B had before.
    pub(crate) turns: Option<u8>,
}

const JOBS: usize = 3;
const LANES: usize = 2;
/// The tokens that lane A's bucket holds.
const BURST: i8 = 1;
/// A turn, in the units of `Lane::turn`. A lane that joins the line is at most half a turn behind the first.
const TURN: u8 = 2;

/// A set of jobs or lanes, a bit each.
type Set = u8;

fn has(set: Set, at: usize) -> bool {
    set & 1 << at != 0
}

fn lane_of(job: usize) -> usize {
    job / 2
}

fn jobs_of(lane: usize) -> std::ops::Range<usize> {
    if lane == 0 { 0..2 } else { 2..3 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum At {
    /// Not enqueued yet.
    Nowhere,
    Held(Line),
    /// Its message is there, or is being published.
    Released,
    Running {
        owner_is_alive: bool,
    },
    /// `unclaimed`: cancelled while it was queued.
    Ended {
        unclaimed: bool,
    },
}

/// The row of `lane_jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Line {
    /// A mistake has left the job without a row.
    Missing,
    /// Not due when it was written; the wake places it.
    Later,
    Placed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Job {
    at: At,
    token: u8,
    /// The row of `lane_slots`: the job's token at its release.
    slot: Option<u8>,
    /// A committed wake that no admission has taken.
    wake: bool,
    /// A message of an earlier release that no worker has answered.
    stray: bool,
    /// A paused worker that believes it owns the job.
    ghost: bool,
}

impl Job {
    fn is_held(self) -> bool {
        matches!(self.at, At::Held(_))
    }

    fn is_placed(self) -> bool {
        self.at == At::Held(Line::Placed)
    }

    fn is_out(self) -> bool {
        matches!(self.at, At::Released | At::Running { .. })
    }

    /// Whether it has a slot that an admission gives back.
    fn is_over(self) -> bool {
        self.slot.is_some() && !self.is_out()
    }

    /// Whether a token was taken for it with which no attempt has started.
    fn keeps_a_token(self) -> bool {
        let unstarted = matches!(self.at, At::Released | At::Ended { unclaimed: true });
        unstarted && self.slot == Some(self.token)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lane {
    /// Its place in the line of the lanes that may release a job.
    turn: Option<u8>,
    passed: u8,
    /// It has a time at which to look again.
    later: bool,
    /// The calls that a producer or a worker is about to make: the jobs that have ended, none for a producer.
    asked: Option<Set>,
}

/// An admission under way: a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Admission {
    /// The lanes that it must look at.
    names: Set,
    /// The jobs that have ended, as its caller says; all jobs in a relay's.
    ended: Set,
    /// The wakes that it deletes.
    wakes: Set,
    look: Look,
}

/// What the admission's last statement saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Look {
    /// Held jobs that are due.
    due: Set,
    /// Jobs with slots.
    slots: Set,
    /// Jobs with slots that are given back.
    over: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    jobs: [Job; JOBS],
    lanes: [Lane; LANES],
    /// Two at once; the order has no meaning.
    admissions: [Option<Admission>; 2],
    /// Of lane A.
    tokens: i8,
    /// Time has passed in which a token came.
    accrued: bool,
    /// The tokens that lane A was given and that started no attempt.
    owed: i8,
    faults: u8,
    may_cancel: bool,
    /// The jobs of lane A that were released while lane B stood in the line.
    passed_over: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Enqueue {
        job: usize,
    },
    /// A producer or a worker begins the admission that it is about to make.
    Ask {
        lane: usize,
    },
    /// That process dies first.
    AskerDies {
        lane: usize,
    },
    /// A relay's turn begins.
    Tend,
    Commit {
        admission: usize,
    },
    AdmissionDies {
        admission: usize,
    },
    Claim {
        job: usize,
    },
    /// A message of an earlier release is delivered.
    Stray {
        job: usize,
    },
    Settle {
        job: usize,
        failed: bool,
    },
    /// A paused worker wakes up and settles.
    GhostSettles {
        job: usize,
    },
    Crash {
        job: usize,
    },
    /// The owner is paused so long that its job is reset.
    Pause {
        job: usize,
    },
    Recover {
        job: usize,
    },
    Cancel {
        job: usize,
    },
    /// Time passes.
    Accrue,
}

impl Model for Lanes {
    type State = State;
    type Action = Action;

    fn first(&self) -> State {
        let job = Job { at: At::Nowhere, token: 0, slot: None, wake: false, stray: false, ghost: false };
        let mut lanes = [Lane::default(); LANES];
        lanes[1].passed = TURN * self.turns.unwrap_or(0);
        let mut jobs = [job; JOBS];
        for job in &mut jobs[self.jobs..] {
            job.at = At::Ended { unclaimed: false };
        }
        State {
            jobs,
            lanes,
            admissions: [None; 2],
            tokens: BURST,
            accrued: false,
            owed: BURST,
            faults: self.faults,
            may_cancel: self.cancels,
            passed_over: 0,
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
        for (job, of) in state.jobs.iter().enumerate() {
            // The jobs of a lane are alike until they are enqueued.
            let is_next =
                job == 0 || lane_of(job - 1) != lane_of(job) || state.jobs[job - 1].at != At::Nowhere;
            add(of.at == At::Nowhere && is_next, Action::Enqueue { job });
            add(of.at == At::Released, Action::Claim { job });
            add(of.stray, Action::Stray { job });
            if let At::Running { owner_is_alive } = of.at {
                add(owner_is_alive, Action::Settle { job, failed: false });
                add(owner_is_alive, Action::Settle { job, failed: true });
                add(owner_is_alive && may_fail, Action::Crash { job });
                add(owner_is_alive && may_fail, Action::Pause { job });
                add(!owner_is_alive, Action::Recover { job });
            }
            add(of.ghost, Action::GhostSettles { job });
            add(state.may_cancel && (of.is_held() || of.at == At::Released), Action::Cancel { job });
        }
        let is_free = state.admissions.iter().flatten().count() < self.admissions;
        let locked = self.locked(state);
        let waits = |names: Set| names & locked != 0 && !self.has(Mutation::NamedLaneIsPassedOver);
        for (lane, of) in state.lanes.iter().enumerate() {
            add(of.asked.is_some() && is_free && !waits(1 << lane), Action::Ask { lane });
            add(of.asked.is_some() && may_fail, Action::AskerDies { lane });
        }
        // A relay's turn sees what `tend_lanes` sees: it searches no held jobs.
        let is_in_line = state.lanes.iter().any(|lane| lane.turn.is_some());
        let names = self.to_look_at(state);
        add(is_free && (is_in_line || names != 0) && !waits(names), Action::Tend);
        for (admission, of) in state.admissions.iter().enumerate() {
            // A mistaken one locks its lanes only now.
            add(of.is_some(), Action::Commit { admission });
            add(of.is_some() && may_fail, Action::AdmissionDies { admission });
        }
        add(self.rate && !state.accrued && state.tokens < BURST, Action::Accrue);
        actions
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = *before;
        if Self::is_fault(action) && !matches!(action, Action::Cancel { .. }) {
            state.faults -= 1;
        }
        self.step(&mut state, action);
        // Those of an ended job could only bring looks that find nothing.
        for job in state.jobs.iter_mut().filter(|job| matches!(job.at, At::Ended { .. })) {
            (job.wake, job.stray, job.ghost) = (false, false, false);
        }
        state.admissions.sort_unstable();
        self.judge(&mut state);
        (state != *before).then_some(state)
    }

    fn is_fault(action: Action) -> bool {
        matches!(
            action,
            Action::AskerDies { .. }
                | Action::AdmissionDies { .. }
                | Action::Crash { .. }
                | Action::Pause { .. }
                | Action::Cancel { .. }
        )
    }

    fn wrong(state: &State) -> Option<&'static str> {
        state.wrong
    }

    /// Each job has ended, and no slot is left.
    fn has_ended(state: &State) -> bool {
        state.jobs.iter().all(|job| matches!(job.at, At::Ended { .. }) && job.slot.is_none())
    }
}

impl State {
    fn look(&self) -> Look {
        let those = |is: fn(Job) -> bool| {
            (0..JOBS).filter(|job| is(self.jobs[*job])).fold(0, |all, job| all | 1 << job)
        };
        Look { due: those(Job::is_placed), slots: those(|job| job.slot.is_some()), over: those(Job::is_over) }
    }

    fn ask(&mut self, job: usize, ended: Set) {
        let asked = &mut self.lanes[lane_of(job)].asked;
        *asked = Some(asked.unwrap_or(0) | ended);
    }
}

impl Lanes {
    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The lanes that admissions have locked.
    fn locked(&self, state: &State) -> Set {
        let none = self.has(Mutation::LooksBeforeItLocks);
        state.admissions.iter().flatten().filter(|_| !none).fold(0, |all, of| all | of.names)
    }

    /// The lanes that a relay's turn looks at.
    fn to_look_at(&self, state: &State) -> Set {
        let by_job = |job: &Job| job.wake || job.is_over() && !self.has(Mutation::SlotIsKept);
        let woken =
            (0..JOBS).filter(|job| by_job(&state.jobs[*job])).fold(0, |all, job| all | 1 << lane_of(job));
        (0..LANES).filter(|lane| state.lanes[*lane].later).fold(woken, |all, lane| all | 1 << lane)
    }

    /// What must hold in each state.
    fn judge(&self, state: &mut State) {
        for lane in 0..LANES {
            if state.jobs[jobs_of(lane)].iter().filter(|job| job.is_out()).count() > usize::from(self.limit) {
                state.wrong = Some("a lane runs more jobs than its limit");
            }
        }
        if self.rate && state.wrong.is_none() {
            let kept = state.jobs[jobs_of(0)].iter().map(|job| i8::from(job.keeps_a_token())).sum::<i8>();
            state.wrong = match state.owed - state.tokens - kept {
                ..0 => Some("a token was made of nothing"),
                0 => None,
                1.. => Some("a token was lost"),
            };
        }
        if self.turns.is_some() && state.passed_over > 1 {
            state.wrong = Some("a lane in the line was passed over twice");
        }
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Enqueue { job } => {
                (state.jobs[job].at, state.jobs[job].wake) = (At::Held(Line::Placed), true);
                state.ask(job, 0);
            }
            Action::Ask { lane } => {
                let ended = state.lanes[lane].asked.take().unwrap_or(0);
                self.begin(state, 1 << lane, ended, 0);
            }
            Action::AskerDies { lane } => state.lanes[lane].asked = None,
            Action::Tend => {
                let names = self.to_look_at(state);
                let wakes = (0..JOBS).filter(|job| state.jobs[*job].wake).fold(0, |all, job| all | 1 << job);
                for job in &mut state.jobs {
                    job.wake = false;
                }
                self.begin(state, names, Set::MAX, wakes);
            }
            Action::Commit { admission } => {
                if let Some(of) = state.admissions[admission].take() {
                    self.commit(state, of, self.locked(state));
                }
            }
            Action::AdmissionDies { admission } => {
                let Some(of) = state.admissions[admission].take() else { return };
                for job in
                    (0..JOBS).filter(|job| has(of.wakes, *job) && !self.has(Mutation::WakeBeforeTheLook))
                {
                    state.jobs[job].wake = true;
                }
            }
            Action::Claim { job } => Self::claim(state, job),
            Action::Stray { job } => {
                state.jobs[job].stray = false;
                let of = state.jobs[job];
                if of.at == At::Released || of.is_held() && self.has(Mutation::HeldJobIsClaimed) {
                    Self::claim(state, job);
                }
            }
            Action::Settle { job, failed } => {
                if failed && state.jobs[job].token < self.attempts_max {
                    self.hold(state, job, Line::Later);
                    if self.has(Mutation::RetryPastTheLane) {
                        let of = &mut state.jobs[job];
                        (of.at, of.slot, of.wake) = (At::Released, None, false);
                    }
                } else {
                    state.jobs[job].at = At::Ended { unclaimed: false };
                }
                state.ask(job, 1 << job);
            }
            Action::GhostSettles { job } => {
                // Its write is refused. It may call the admission all the same.
                state.jobs[job].ghost = false;
                state.ask(job, 1 << job);
            }
            Action::Crash { job } => state.jobs[job].at = At::Running { owner_is_alive: false },
            Action::Pause { job } => {
                state.jobs[job].ghost = true;
                self.recover(state, job);
            }
            Action::Recover { job } => self.recover(state, job),
            Action::Cancel { job } => {
                state.may_cancel = false;
                let of = &mut state.jobs[job];
                of.at = At::Ended { unclaimed: true };
            }
            Action::Accrue => state.accrued = true,
        }
    }

    fn claim(state: &mut State, job: usize) {
        let of = &mut state.jobs[job];
        if of.is_held() {
            state.wrong = Some("a held job runs");
        }
        of.token += 1;
        of.at = At::Running { owner_is_alive: true };
        if lane_of(job) == 0 {
            state.owed -= 1;
        }
    }

    /// Puts a job back into its lane: the end of an attempt.
    fn hold(&self, state: &mut State, job: usize, line: Line) {
        let of = &mut state.jobs[job];
        of.at = At::Held(line);
        of.wake = !self.has(Mutation::RetryWithoutWake);
    }

    /// Resets a job whose owner is lost. Its message was not answered, and comes again.
    fn recover(&self, state: &mut State, job: usize) {
        state.jobs[job].stray = true;
        if state.jobs[job].token < self.attempts_max {
            let forgets = self.has(Mutation::ResetForgetsTheLane);
            self.hold(state, job, if forgets { Line::Missing } else { Line::Placed });
        } else {
            state.jobs[job].at = At::Ended { unclaimed: false };
        }
    }

    fn begin(&self, state: &mut State, names: Set, ended: Set, wakes: Set) {
        let mut look = state.look();
        // In the same transaction: the job of a wake is placed, and the look sees it.
        for job in (0..JOBS).filter(|job| has(wakes, *job) && state.jobs[*job].at == At::Held(Line::Later)) {
            look.due |= 1 << job;
        }
        let admission = Admission { names: names & !self.locked(state), ended, wakes, look };
        if let Some(free) = state.admissions.iter_mut().find(|of| of.is_none()) {
            *free = Some(admission);
        }
    }

    /// What an admission does, by what it saw. `locked`: the lanes that another one has.
    fn commit(&self, state: &mut State, of: Admission, locked: Set) {
        let mut look = of.look;
        for job in (0..JOBS).filter(|job| has(of.wakes, *job)) {
            if state.jobs[job].at == At::Held(Line::Later) {
                state.jobs[job].at = At::Held(Line::Placed);
            }
        }
        // 1. What has ended frees its slot; which of these lanes may release a job?
        let first = state.lanes.iter().filter_map(|lane| lane.turn).min().unwrap_or(0);
        for lane in (0..LANES).filter(|lane| has(of.names, *lane)) {
            self.free_slots(state, lane, of.ended, &mut look);
            if lane == 0 && self.rate {
                Self::refill(state);
            }
            let Lane { turn, passed, .. } = state.lanes[lane];
            let joins = if self.has(Mutation::TurnsAreHeldAgainstALane) {
                passed.max(first)
            } else {
                passed.min(first + TURN / 2).max(first)
            };
            self.put_in_line(state, lane, look, turn.unwrap_or(joins));
        }
        // 2. How many jobs may go?
        let taken = state.jobs.iter().filter(|job| job.slot.is_some()).count();
        let room = usize::from(self.window).saturating_sub(taken);
        // 3. The lanes in the line that no other admission has locked, by turn.
        let mut unnamed = state.look();
        for _ in 0..room {
            let in_line = (0..LANES).filter(|lane| !has(locked, *lane));
            let Some((turn, lane)) = in_line.filter_map(|lane| Some((state.lanes[lane].turn?, lane))).min()
            else {
                return;
            };
            // Lanes that it did not name are locked and looked at now.
            let look = if has(of.names, lane) { &mut look } else { &mut unnamed };
            self.release(state, lane, look, turn, locked);
        }
    }

    fn free_slots(&self, state: &mut State, lane: usize, ended: Set, look: &mut Look) {
        for job in jobs_of(lane) {
            let of = &mut state.jobs[job];
            let by_caller = self.has(Mutation::CallerIsBelieved) && ended != Set::MAX && has(ended, job);
            let is_over =
                has(look.over, job) && has(ended, job) && !self.has(Mutation::SlotIsKept) || by_caller;
            let was_cancelled = of.at == At::Ended { unclaimed: true };
            let unused = match self.mutation {
                Some(Mutation::TokenIsLost) => false,
                Some(Mutation::TokenComesBackTwice) => was_cancelled,
                Some(Mutation::TokenOfAnAttempt) => was_cancelled && is_over,
                _ => is_over && of.keeps_a_token() && was_cancelled,
            };
            if is_over {
                of.slot = None;
                look.slots &= !(1 << job);
            }
            if unused && self.rate && lane == 0 {
                state.tokens += 1;
            }
        }
    }

    /// The bucket of lane A. Messages that no worker has taken keep their place in it.
    fn refill(state: &mut State) {
        let unclaimed = state.jobs[jobs_of(0)].iter().filter(|job| matches!(job.at, At::Released)).count();
        let room = BURST - i8::try_from(unclaimed).unwrap_or(BURST);
        let before = state.tokens;
        // Of the tokens that came back and those that came with time, the bucket keeps what it holds.
        let spilled = (before - room).max(0);
        state.tokens -= spilled;
        state.owed -= spilled;
        if std::mem::take(&mut state.accrued) && state.tokens < room {
            state.tokens += 1;
            state.owed += 1;
        }
    }

    /// Writes whether the lane may release a job, and at which turn.
    fn put_in_line(&self, state: &mut State, lane: usize, look: Look, turn: u8) {
        let is_waiting = jobs_of(lane).any(|job| has(look.due, job) && state.jobs[job].is_placed());
        let is_free = jobs_of(lane).filter(|job| has(look.slots, *job)).count() < usize::from(self.limit);
        let is_paid = !self.rate || lane != 0 || state.tokens >= 1;
        let of = &mut state.lanes[lane];
        of.turn = (is_waiting && is_free && is_paid).then_some(turn);
        of.later = is_waiting && is_free && !is_paid && !self.has(Mutation::NoLookForTheToken);
        if lane == 1 && of.turn.is_none() {
            state.passed_over = 0;
        }
    }

    /// Releases a lane's first job, if what the admission saw of the lane allows it.
    fn release(&self, state: &mut State, lane: usize, look: &mut Look, turn: u8, locked: Set) {
        let is_waiting = |job: &usize| has(look.due, *job) && state.jobs[*job].is_placed();
        let is_free = jobs_of(lane).filter(|job| has(look.slots, *job)).count() < usize::from(self.limit);
        let job = jobs_of(lane).find(is_waiting).filter(|_| is_free);
        let mut moved = turn;
        if let Some(job) = job {
            let of = &mut state.jobs[job];
            (of.at, of.slot) = (At::Released, Some(of.token));
            look.slots |= 1 << job;
            if self.rate && lane == 0 && !self.has(Mutation::TokenTakenTwice) {
                state.tokens -= 1;
            }
            if self.turns.is_some() && !self.has(Mutation::TurnNeverMoves) {
                moved += TURN;
            }
            if self.turns.is_some() && lane == 0 && state.lanes[1].turn.is_some() && !has(locked, 1) {
                state.passed_over += 1;
            }
        }
        state.lanes[lane].passed = moved;
        self.put_in_line(state, lane, *look, moved);
        if lane == 1 {
            state.passed_over = 0;
        }
    }
}
