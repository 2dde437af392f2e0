//! Waits as a state machine: one job that waits for an event and for a job of its own, and who tells it of them.
//!
//! A step is atomic where the real system's is: a call under the lock of the job's row, a read, a commit, a death. The
//! call `await_event`, a signal, the settle of an attempt and the look of `release_followers` lock the row. The end of
//! the job's own job does not: it writes when it ended, commits, and leaves a note for the look. An attempt reads that
//! end without a lock. The settle compares when things ended with when the attempt began; here that is whether they
//! ended before it.

use crate::explore::Model;

/// A deliberate mistake in the waits, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The settle holds the job by what its snapshot showed, from before the lock.
    LooksBeforeItLocks,
    /// A signal writes the event, and does not wake the job that is held.
    SignalWithoutWake,
    /// A later signal of the name replaces the event.
    SecondReplaces,
    /// An event may come after the end of its wait.
    ComesTooLate,
    /// The settle looks only at what the attempt was said to wait for.
    OnlyTheNamedCounts,
    /// A look that finds the job running does not tell its attempt.
    RunningIsNotTold,
    /// An attempt that waits is charged.
    WaitIsCharged,
    /// The settle does not check whose the job is.
    SettleWithoutFence,
    /// The relay does not wake the job when the time of its wait is over.
    TimeIsForgotten,
}

/// The bounds of a check.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    pub(crate) mutation: Option<Mutation>,
    /// The handler goes on with the first of both; otherwise it waits for the event, and then for the job.
    pub(crate) either: bool,
    /// The wait for the event has an end.
    pub(crate) ends: bool,
    /// The job's own job ends at last.
    pub(crate) own_ends: bool,
    /// Deaths and pauses.
    pub(crate) faults: u8,
    pub(crate) signals: u8,
}

/// Attempts that are started: enough for each wait, each fault, and a wake for nothing.
const ATTEMPTS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    Due,
    Running,
    Held,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Unknown,
    Awaited,
    /// With the number of the signal.
    Came(u8),
    Late,
}

/// The job's own job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Own {
    Runs,
    /// Its end is written, and not committed.
    Written,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum For {
    Event,
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Not begun, or over.
    Gone,
    AsksForTheEvent,
    /// What it knows of the event: whether it is over.
    AsksForTheJob {
        has_event: bool,
    },
    /// It is about to be settled, and waits for this.
    Suspends(For),
    /// Its settle has begun, before the lock: what its snapshot shows.
    Settles(For, bool),
    Completes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    job: Job,
    /// The token of the job: how many attempts have begun.
    token: usize,
    attempts: [Phase; ATTEMPTS],
    event: Event,
    own: Own,
    /// Whether the event, and the end of the job's own job, came since the current attempt began.
    is_new: [bool; 2],
    /// The end of the job's own job is noted.
    noted: bool,
    time_is_over: bool,
    /// What an attempt has seen: how the wait for the event has ended.
    seen: Option<Event>,
    charged: u8,
    signals: u8,
    faults: u8,
    wrong: Option<&'static str>,
    faults_max: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Claim,
    /// The attempt takes its next step.
    Step(usize),
    /// Of two waits, the handler returns this one.
    Returns(usize, For),
    Signal,
    OwnWrites,
    OwnCommits,
    Look,
    TimePasses,
    Wake,
    /// The process of the attempt dies.
    Dies(usize),
    /// The job of a process that is silent is reset, dead or not.
    Reset,
}

impl State {
    fn owns(&self, attempt: usize) -> bool {
        self.job == Job::Running && self.token == attempt + 1
    }

    fn see(&mut self, what: Event) {
        if *self.seen.get_or_insert(what) != what {
            self.wrong = Some("two attempts saw two answers");
        }
    }
}

impl Waits {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether what an attempt waits for has come, so that it is not held.
    fn has_come(&self, state: &State, what: For) -> bool {
        let named = match what {
            For::Event => state.event != Event::Awaited,
            For::Own => state.own == Own::Ended,
        };
        let any = matches!(state.event, Event::Came(_)) && state.is_new[For::Event as usize]
            || state.own == Own::Ended && state.is_new[For::Own as usize];
        named
            || any && !self.is(Mutation::OnlyTheNamedCounts)
            || self.ends && state.time_is_over && state.event == Event::Awaited
    }

    /// The call of `await_event`. Returns whether the attempt knows how the wait has ended.
    fn ask(&self, state: &mut State) -> bool {
        match state.event {
            Event::Unknown => state.event = Event::Awaited,
            Event::Awaited => {}
            known @ (Event::Came(_) | Event::Late) => {
                state.see(known);
                return true;
            }
        }
        if self.ends && state.time_is_over {
            state.event = Event::Late;
            state.see(Event::Late);
            return true;
        }
        false
    }

    fn step(&self, state: &mut State, attempt: usize) -> bool {
        let owns = state.owns(attempt);
        let next = match state.attempts[attempt] {
            // Each call of a stale attempt is refused.
            Phase::AsksForTheEvent if !owns => Phase::Gone,
            Phase::AsksForTheEvent => match self.ask(state) {
                true if self.either => Phase::Completes,
                false if !self.either => Phase::Suspends(For::Event),
                has_event => Phase::AsksForTheJob { has_event },
            },
            Phase::AsksForTheJob { .. } if state.own == Own::Ended => Phase::Completes,
            Phase::AsksForTheJob { has_event: true } => Phase::Suspends(For::Own),
            // Of two waits, the handler chooses which it returns.
            Phase::Gone | Phase::AsksForTheJob { has_event: false } => return false,
            Phase::Suspends(what) => Phase::Settles(what, self.has_come(state, what)),
            Phase::Settles(what, shown) => {
                let is_checked = !self.is(Mutation::SettleWithoutFence);
                if owns || !is_checked && state.job != Job::Ended {
                    if !owns {
                        state.wrong = Some("a stale worker wrote");
                    }
                    let has_come = if self.is(Mutation::LooksBeforeItLocks) {
                        shown
                    } else {
                        self.has_come(state, what)
                    };
                    state.job = if has_come { Job::Due } else { Job::Held };
                    state.charged -= u8::from(!self.is(Mutation::WaitIsCharged));
                }
                Phase::Gone
            }
            Phase::Completes => {
                if owns {
                    state.job = Job::Ended;
                }
                Phase::Gone
            }
        };
        state.attempts[attempt] = next;
        true
    }

    fn signal(&self, state: &mut State) {
        let number = state.signals;
        state.signals += 1;
        let is_late = self.ends && state.time_is_over && !self.is(Mutation::ComesTooLate);
        match state.event {
            _ if state.job == Job::Ended => return,
            Event::Unknown => {}
            Event::Awaited if !is_late => {}
            Event::Came(_) if self.is(Mutation::SecondReplaces) => {}
            Event::Late if self.is(Mutation::ComesTooLate) => {}
            _ => return,
        }
        state.event = Event::Came(number);
        state.is_new[For::Event as usize] = true;
        if state.job == Job::Held && !self.is(Mutation::SignalWithoutWake) {
            state.job = Job::Due;
        }
    }
}

impl Model for Waits {
    type State = State;
    type Action = Action;

    fn first(&self) -> State {
        State {
            job: Job::Due,
            token: 0,
            attempts: [Phase::Gone; ATTEMPTS],
            event: Event::Unknown,
            own: Own::Runs,
            is_new: [false; 2],
            noted: false,
            time_is_over: false,
            seen: None,
            charged: 0,
            signals: 0,
            faults: 0,
            wrong: None,
            faults_max: self.faults,
        }
    }

    fn actions(&self, _: &State) -> Vec<Action> {
        let mut actions = vec![
            Action::Claim,
            Action::Signal,
            Action::OwnWrites,
            Action::OwnCommits,
            Action::Look,
            Action::TimePasses,
            Action::Wake,
            Action::Reset,
        ];
        for attempt in 0..ATTEMPTS {
            actions.extend([
                Action::Step(attempt),
                Action::Returns(attempt, For::Event),
                Action::Returns(attempt, For::Own),
                Action::Dies(attempt),
            ]);
        }
        actions
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Claim if state.job == Job::Due && state.token < ATTEMPTS => {
                state.job = Job::Running;
                state.attempts[state.token] = Phase::AsksForTheEvent;
                state.token += 1;
                state.charged += 1;
                // What is written by now ended before this attempt began, committed or not.
                state.is_new = [false; 2];
                if state.charged > 1 + state.faults_max {
                    state.wrong = Some("a wait was charged");
                }
            }
            Action::Step(attempt) => {
                if !self.step(&mut state, attempt) {
                    return None;
                }
            }
            Action::Returns(attempt, what) => {
                let asked = Phase::AsksForTheJob { has_event: false };
                if state.attempts[attempt] != asked || state.own == Own::Ended {
                    return None;
                }
                state.attempts[attempt] = Phase::Suspends(what);
            }
            Action::Signal if state.signals < self.signals => self.signal(&mut state),
            Action::OwnWrites if self.own_ends && state.own == Own::Runs && state.token > 0 => {
                state.own = Own::Written;
                state.is_new[For::Own as usize] = true;
            }
            Action::OwnCommits if state.own == Own::Written => {
                state.own = Own::Ended;
                state.noted = true;
            }
            Action::Look if state.noted => {
                state.noted = false;
                match state.job {
                    Job::Held => state.job = Job::Due,
                    Job::Running if !self.is(Mutation::RunningIsNotTold) => {
                        state.is_new[For::Own as usize] = true;
                    }
                    _ => {}
                }
            }
            Action::TimePasses if self.ends && !state.time_is_over && state.event == Event::Awaited => {
                state.time_is_over = true;
            }
            Action::Wake if state.time_is_over && state.job == Job::Held && state.event == Event::Awaited => {
                if self.is(Mutation::TimeIsForgotten) {
                    return None;
                }
                state.job = Job::Due;
            }
            Action::Dies(attempt) if state.faults < self.faults && state.attempts[attempt] != Phase::Gone => {
                state.faults += 1;
                state.attempts[attempt] = Phase::Gone;
            }
            Action::Reset if state.job == Job::Running => {
                let owner = state.attempts[state.token - 1];
                if owner != Phase::Gone {
                    if state.faults == self.faults {
                        return None;
                    }
                    state.faults += 1;
                }
                state.job = Job::Due;
            }
            _ => return None,
        }
        Some(state)
    }

    fn is_fault(action: Action) -> bool {
        matches!(action, Action::Dies(_))
    }

    fn wrong(state: &State) -> Option<&'static str> {
        state.wrong
    }

    fn has_ended(state: &State) -> bool {
        state.job == Job::Ended
    }
}
