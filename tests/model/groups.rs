//! Groups as a state machine: two jobs, one that follows both, and the calls that work off their ends.
//!
//! A step is atomic where the real system's is: a commit, a look under a lock, a death. A call of `release_followers`
//! has three: it takes notes, it locks the follower and looks at the edges, and it commits. It shows at its commit
//! alone. Claims and owners have their own model: here a job runs and ends, and may be redriven once it is dead.

use crate::explore::Model;

/// A deliberate mistake in the groups, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// An end leaves no note.
    NoNote,
    /// A call deletes its notes before it commits.
    NotesBeforeTheCommit,
    /// A call looks at the edges without the follower's lock.
    LooksWithoutTheLock,
    /// A fate replaces one that is better: an older note comes last.
    LastNoteCounts,
    /// A redrive leaves the edge of the job failed.
    RedriveKeepsTheFailure,
    /// A failed job counts as one that has completed.
    FailureReleases,
    /// A follower that was cancelled does not come back.
    CutForEver,
    /// A cancellation does not replace the failure before it.
    FailureStays,
    /// A follower is released once more for each call that finds no edge open.
    ReleasedByEach,
}

/// What the follower does when a job before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Cancel,
    Run,
    Hold,
}

/// The bounds of a check.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    pub(crate) mutation: Option<Mutation>,
    pub(crate) on_failure: OnFailure,
    /// Deaths of calls.
    pub(crate) faults: u8,
    /// How often a dead job is redriven.
    pub(crate) redrives: u8,
}

const MEMBERS: usize = 2;
const CALLS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Follower {
    Held,
    /// Cancelled by a failure.
    Cut,
    Released,
    Ended,
}

/// A note that a job has ended so, and the call that has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Note {
    job: usize,
    fate: Fate,
    taken_by: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    None,
    /// It has taken notes.
    Began(Vec<(usize, Fate)>),
    /// It holds the follower's lock, and knows what to do with the edges and the follower.
    Looked {
        edges: Vec<(usize, Fate)>,
        becomes: Option<Follower>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// `None`: live.
    members: [Option<Fate>; MEMBERS],
    redrives: u8,
    notes: Vec<Note>,
    edges: [Option<Fate>; MEMBERS],
    follower: Follower,
    starts: u8,
    calls: [Call; CALLS],
    faults: u8,
    wrong: Option<&'static str>,
    on_failure_holds: bool,
    runs_in_any_case: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Ends(usize, Fate),
    Redrive(usize),
    Take(usize),
    Look(usize),
    Commit(usize),
    Dies(usize),
    FollowerEnds,
}

impl Groups {
    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether a fate may replace what an edge has.
    fn replaces(&self, fate: Fate, edge: Option<Fate>) -> bool {
        match (fate, edge) {
            (_, None) => true,
            _ if self.has(Mutation::LastNoteCounts) => edge != Some(fate),
            (Fate::Completed, Some(edge)) => edge != Fate::Completed,
            (Fate::Cancelled, Some(Fate::Failed)) => !self.has(Mutation::FailureStays),
            _ => false,
        }
    }

    /// What becomes of the follower, by these edges.
    fn decide(&self, state: &State, edges: [Option<Fate>; MEMBERS]) -> Option<Follower> {
        let waits = edges.contains(&None);
        let lacks = |fate| edges.contains(&Some(fate)) && !self.has(Mutation::FailureReleases);
        let any = lacks(Fate::Failed) || lacks(Fate::Cancelled);
        let is_over = match self.on_failure {
            OnFailure::Cancel => any,
            OnFailure::Run => false,
            OnFailure::Hold => lacks(Fate::Cancelled),
        };
        if is_over {
            return (state.follower == Follower::Held).then_some(Follower::Cut);
        }
        if waits || any && self.on_failure != OnFailure::Run {
            return None;
        }
        match state.follower {
            Follower::Held => Some(Follower::Released),
            Follower::Cut if !self.has(Mutation::CutForEver) => Some(Follower::Released),
            Follower::Ended if self.has(Mutation::ReleasedByEach) => Some(Follower::Released),
            _ => None,
        }
    }

    fn look(&self, state: &mut State, call: usize, notes: &[(usize, Fate)]) {
        let mut seen = state.edges;
        let mut edges = Vec::new();
        for (job, fate) in notes {
            // A job that is live again has not ended.
            let is_live = state.members[*job].is_none() && *fate != Fate::Completed;
            if !is_live && self.replaces(*fate, seen[*job]) {
                seen[*job] = Some(*fate);
                edges.push((*job, *fate));
            }
        }
        let becomes = if edges.is_empty() { None } else { self.decide(state, seen) };
        if becomes == Some(Follower::Released) {
            let is_early = state.members.iter().any(|member| match member {
                Some(Fate::Completed) => false,
                Some(_) => self.on_failure != OnFailure::Run,
                None => true,
            });
            if is_early {
                state.wrong = Some("a follower starts before its time");
            }
        }
        state.calls[call] = Call::Looked { edges, becomes };
    }
}

impl Model for Groups {
    type State = State;
    type Action = Action;

    fn first(&self) -> State {
        State {
            members: [None; MEMBERS],
            redrives: 0,
            notes: vec![],
            edges: [None; MEMBERS],
            follower: Follower::Held,
            starts: 0,
            calls: [Call::None, Call::None],
            faults: 0,
            wrong: None,
            on_failure_holds: self.on_failure == OnFailure::Hold,
            runs_in_any_case: self.on_failure == OnFailure::Run,
        }
    }

    fn actions(&self, state: &State) -> Vec<Action> {
        let mut all = vec![Action::FollowerEnds];
        for job in 0..MEMBERS {
            all.push(Action::Redrive(job));
            all.extend([Fate::Completed, Fate::Failed, Fate::Cancelled].map(|fate| Action::Ends(job, fate)));
        }
        for call in 0..CALLS {
            match state.calls[call] {
                Call::None => all.push(Action::Take(call)),
                Call::Began(_) => all.extend([Action::Look(call), Action::Dies(call)]),
                Call::Looked { .. } => all.extend([Action::Commit(call), Action::Dies(call)]),
            }
        }
        all
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Ends(job, fate) => {
                if state.members[job].is_some() {
                    return None;
                }
                state.members[job] = Some(fate);
                if !self.has(Mutation::NoNote) {
                    state.notes.push(Note { job, fate, taken_by: None });
                }
            }
            Action::Redrive(job) => {
                if state.members[job] != Some(Fate::Failed) || state.redrives == self.redrives {
                    return None;
                }
                state.redrives += 1;
                state.members[job] = None;
                // It waits for the lock of an edge that a call is about to settle.
                let is_locked = state.calls.iter().any(|call| match call {
                    Call::Looked { edges, .. } => edges.iter().any(|(locked, _)| *locked == job),
                    _ => false,
                });
                if is_locked {
                    return None;
                }
                if state.edges[job] == Some(Fate::Failed) && !self.has(Mutation::RedriveKeepsTheFailure) {
                    state.edges[job] = None;
                }
            }
            Action::Take(call) => {
                let mut taken = Vec::new();
                for note in state.notes.iter_mut().filter(|note| note.taken_by.is_none()) {
                    note.taken_by = Some(call);
                    // Of two ends of one job, the later one counts.
                    taken.retain(|(job, _)| *job != note.job);
                    taken.push((note.job, note.fate));
                }
                if taken.is_empty() {
                    return None;
                }
                if self.has(Mutation::NotesBeforeTheCommit) {
                    state.notes.retain(|note| note.taken_by != Some(call));
                }
                state.calls[call] = Call::Began(taken);
            }
            Action::Look(call) => {
                let other = matches!(state.calls[1 - call], Call::Looked { .. });
                if other && !self.has(Mutation::LooksWithoutTheLock) {
                    return None;
                }
                let Call::Began(notes) = state.calls[call].clone() else { return None };
                self.look(&mut state, call, &notes);
            }
            Action::Commit(call) => {
                let Call::Looked { edges, becomes } = std::mem::replace(&mut state.calls[call], Call::None)
                else {
                    return None;
                };
                for (job, fate) in edges {
                    state.edges[job] = Some(fate);
                }
                state.notes.retain(|note| note.taken_by != Some(call));
                if let Some(becomes) = becomes {
                    state.follower = becomes;
                    state.starts += u8::from(becomes == Follower::Released);
                }
            }
            Action::Dies(call) => {
                if state.faults == self.faults {
                    return None;
                }
                state.faults += 1;
                state.calls[call] = Call::None;
                for note in state.notes.iter_mut().filter(|note| note.taken_by == Some(call)) {
                    note.taken_by = None;
                }
            }
            Action::FollowerEnds => {
                if state.follower != Follower::Released {
                    return None;
                }
                state.follower = Follower::Ended;
            }
        }
        Some(state)
    }

    fn is_fault(action: Action) -> bool {
        matches!(action, Action::Dies(_))
    }

    fn wrong(state: &State) -> Option<&'static str> {
        state.wrong.or((state.starts > 1).then_some("a follower ran twice"))
    }

    fn has_ended(state: &State) -> bool {
        let is_quiet = state.notes.is_empty() && state.calls.iter().all(|call| *call == Call::None);
        let ended: Option<Vec<Fate>> = state.members.iter().copied().collect();
        let Some(fates) = ended.filter(|_| is_quiet) else { return false };
        let has = |fate| fates.contains(&fate);
        // A follower that has run does not care what becomes of a job that was redriven afterwards.
        let expected =
            if state.starts > 0 || !has(Fate::Failed) && !has(Fate::Cancelled) || state.runs_in_any_case {
                Follower::Ended
            } else if state.on_failure_holds && !has(Fate::Cancelled) {
                Follower::Held
            } else {
                Follower::Cut
            };
        state.follower == expected
    }
}
