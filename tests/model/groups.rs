//! Groups as a state machine: two jobs, one that follows both, and the calls that work off their ends. The second job may
//! be one that the first one adds while it runs.
//!
//! A step is atomic where the real system's is: a commit, a look, a write under a lock, a death. A job that completes
//! settles its edge itself, and notes the follower; any other end, and that of a job with many followers, is noted, and a
//! call settles the edge. A call of `release_followers` has four steps: it takes notes, it settles edges and judges the
//! follower by those that it sees, it locks the follower's job and writes, and it commits. It shows at its commit alone. It
//! releases a follower of one job that has completed without a look at its other edges: there are none, nor will be any.
//! Claims and owners have their own model: here a job runs and ends, and may be redriven once it is dead.

use crate::explore::Model;

/// A deliberate mistake in the groups, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// An end leaves no note.
    NoNote,
    /// A call deletes its notes before it commits.
    NotesBeforeTheCommit,
    /// A job settles its edge, and leaves no note of the follower.
    NoNoteOfTheFollower,
    /// A call that has settled an edge, and does not release the follower, does not have it looked at once more.
    NoSecondLook,
    /// A call finds the follower cancelled that it was to release, and does not tell the next one.
    FindsItCut,
    /// A call is told of a failure that is over, and does not have the follower looked at again.
    KeepsTheLateCut,
    /// A call that meets a lock forgets the follower.
    ForgetsTheLocked,
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
    /// A job adds another one although its attempt has ended.
    AddsWithoutFence,
    /// A call that settles an edge by a completion does not look at the follower, although it has other edges.
    LooksAtNone,
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
    /// Whether the second job is there only once the first one adds it.
    pub(crate) adds: bool,
}

const MEMBERS: usize = 2;
const CALLS: usize = 2;

/// From the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fate {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Follower {
    Held,
    /// Cancelled by a failure.
    Cut,
    Released,
    Ended,
}

/// What is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Told {
    /// The job has ended so; its edge is not settled.
    End(usize, Fate),
    /// The follower is to be looked at: a job before it has ended, without completing if there is a fate.
    Look(Option<Fate>),
}

/// A note, and the call that has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Note {
    told: Told,
    taken_by: Option<usize>,
}

/// What a call has found of the follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Verdict {
    Nothing,
    Release {
        was_cut: bool,
    },
    /// The worst of what it has seen.
    Cut(Fate),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    None,
    /// It has taken notes.
    Began(Vec<Told>),
    /// It has settled these edges, and judged the follower.
    Looked {
        edges: Vec<(usize, Fate)>,
        verdict: Verdict,
        looks_again: bool,
    },
    /// It holds the lock of the follower's job, if that becomes something. `tells` is noted.
    Wrote {
        edges: Vec<(usize, Fate)>,
        becomes: Option<Follower>,
        tells: Vec<Told>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// `None`: live, or not there.
    members: [Option<Fate>; MEMBERS],
    /// How many members there are.
    count: usize,
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
    /// A job completes, and settles its edge.
    Settles(usize),
    Redrive(usize),
    /// The first job adds the second one.
    Adds,
    Take(usize),
    Look(usize),
    Write(usize),
    Commit(usize),
    Dies(usize),
    FollowerEnds,
}

impl State {
    /// Whether a call is about to settle the edge of this job.
    fn locks_edge(&self, job: usize) -> bool {
        self.calls.iter().any(|call| match call {
            Call::Looked { edges, .. } | Call::Wrote { edges, .. } => edges.iter().any(|(of, _)| *of == job),
            _ => false,
        })
    }

    /// Whether the follower has started, or a call is about to release it.
    fn releases(&self) -> bool {
        let has_started = matches!(self.follower, Follower::Released | Follower::Ended);
        has_started
            || self.calls.iter().any(|call| match call {
                Call::Looked { verdict, .. } => matches!(verdict, Verdict::Release { .. }),
                Call::Wrote { becomes, .. } => *becomes == Some(Follower::Released),
                _ => false,
            })
    }

    /// Of states that differ in the numbers of the calls, or in the order of notes that does not matter, only one is
    /// explored. Of two ends of one job, the order matters.
    fn in_order(mut self) -> Self {
        if self.calls[0] > self.calls[1] {
            self.calls.swap(0, 1);
            for note in &mut self.notes {
                note.taken_by = note.taken_by.map(|call| 1 - call);
            }
        }
        self.notes.sort_by_key(|note| match note.told {
            Told::Look(fate) => (MEMBERS, fate, note.taken_by),
            Told::End(job, _) => (job, None, None),
        });
        self
    }

    /// Shows what a call has written. `false`: it has not written.
    fn commit(&mut self, call: usize) -> bool {
        let Call::Wrote { edges, becomes, tells } = std::mem::replace(&mut self.calls[call], Call::None)
        else {
            return false;
        };
        for (job, fate) in edges {
            self.edges[job] = Some(fate);
        }
        self.notes.retain(|note| note.taken_by != Some(call));
        for told in tells {
            self.tell(told);
        }
        if let Some(becomes) = becomes {
            self.follower = becomes;
            self.starts += u8::from(becomes == Follower::Released);
        }
        true
    }

    fn tell(&mut self, told: Told) {
        let note = Note { told, taken_by: None };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
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

    /// What a call finds of the follower, by these edges, if it knows of a failure or not.
    fn judge(&self, state: &State, edges: [Option<Fate>; MEMBERS], hurt: Option<Fate>) -> Verdict {
        let is_open = edges[..state.count].contains(&None);
        let lacks = |fate| edges.contains(&Some(fate)) && !self.has(Mutation::FailureReleases);
        let worst = [Fate::Cancelled, Fate::Failed].into_iter().find(|fate| lacks(*fate));
        let ends_it = |fate| match self.on_failure {
            OnFailure::Cancel => true,
            OnFailure::Run => false,
            OnFailure::Hold => fate == Fate::Cancelled,
        };
        let was_cut = state.follower == Follower::Cut;
        match (hurt.filter(|fate| ends_it(*fate) && !was_cut), worst) {
            (Some(fate), _) => Verdict::Cut(fate),
            _ if is_open => Verdict::Nothing,
            (None, Some(fate)) if ends_it(fate) => Verdict::Cut(fate),
            (None, Some(_)) if self.on_failure == OnFailure::Hold => Verdict::Nothing,
            _ => Verdict::Release { was_cut },
        }
    }

    /// Takes the notes that no other call has.
    fn take(&self, state: &mut State, call: usize) -> Vec<Told> {
        let mut taken = Vec::new();
        for note in state.notes.iter_mut().filter(|note| note.taken_by.is_none()) {
            note.taken_by = Some(call);
            // Of two ends of one job, the later one counts.
            if let Told::End(job, _) = note.told {
                taken.retain(|told| !matches!(told, Told::End(of, _) if *of == job));
            }
            taken.push(note.told);
        }
        if self.has(Mutation::NotesBeforeTheCommit) {
            state.notes.retain(|note| note.taken_by != Some(call));
        }
        taken
    }

    fn look(&self, state: &mut State, call: usize, notes: &[Told]) {
        let mut seen = state.edges;
        let mut edges = Vec::new();
        let mut hurt = None;
        for told in notes {
            match *told {
                Told::Look(fate) => hurt = hurt.max(fate),
                Told::End(job, fate) => {
                    // A job that is live again has not ended.
                    let is_live = state.members[job].is_none() && fate != Fate::Completed;
                    if !is_live && self.replaces(fate, seen[job]) {
                        seen[job] = Some(fate);
                        edges.push((job, fate));
                        if fate != Fate::Completed && !self.has(Mutation::FailureReleases) {
                            hurt = hurt.max(Some(fate));
                        }
                    }
                }
            }
        }
        let is_told = notes.iter().any(|told| matches!(told, Told::Look(_)));
        // The real call counts the edges in the statement that settles one.
        let is_sole = state.count == 1 || self.has(Mutation::LooksAtNone);
        let completes = edges.len() == 1 && edges[0].1 == Fate::Completed && state.follower == Follower::Held;
        let verdict = match edges.as_slice() {
            [] if !is_told => Verdict::Nothing,
            _ if is_sole && completes => Verdict::Release { was_cut: false },
            _ => self.judge(state, seen, hurt),
        };
        let is_released = matches!(verdict, Verdict::Release { .. });
        // What a note has said of a failure may be over.
        let is_late = notes.iter().any(|told| matches!(told, Told::Look(Some(_))));
        let looks_again = !edges.is_empty() && !self.has(Mutation::NoSecondLook)
            || is_late && !self.has(Mutation::KeepsTheLateCut);
        let looks_again = looks_again && !is_released;
        if is_released && matches!(state.follower, Follower::Held | Follower::Cut) {
            let is_early = state.members[..state.count].iter().any(|member| match member {
                Some(Fate::Completed) => false,
                Some(_) => self.on_failure != OnFailure::Run,
                None => true,
            });
            if is_early {
                state.wrong = Some("a follower starts before its time");
            }
        }
        state.calls[call] = Call::Looked { edges, verdict, looks_again };
    }

    /// What a call writes once it has met the lock of the follower's job, and what it notes.
    fn write(
        &self,
        state: &State,
        edges: &[(usize, Fate)],
        verdict: Verdict,
        is_locked: bool,
    ) -> (Option<Follower>, Option<Told>) {
        let mut now = state.edges;
        for (job, fate) in edges {
            now[*job] = Some(*fate);
        }
        let lacks = now.iter().flatten().any(|fate| *fate != Fate::Completed);
        match verdict {
            Verdict::Nothing => (None, None),
            _ if is_locked && self.has(Mutation::ForgetsTheLocked) => (None, None),
            Verdict::Release { .. } if is_locked => (None, Some(Told::Look(None))),
            Verdict::Cut(fate) if is_locked => (None, Some(Told::Look(Some(fate)))),
            Verdict::Release { was_cut } => match state.follower {
                Follower::Held => (Some(Follower::Released), None),
                Follower::Cut if self.has(Mutation::CutForEver) => (None, None),
                Follower::Cut if was_cut => (Some(Follower::Released), None),
                Follower::Cut if self.has(Mutation::FindsItCut) => (None, None),
                Follower::Cut => (None, Some(Told::Look(None))),
                Follower::Ended if self.has(Mutation::ReleasedByEach) => (Some(Follower::Released), None),
                Follower::Ended | Follower::Released => (None, None),
            },
            Verdict::Cut(_) if state.follower != Follower::Held => (None, None),
            Verdict::Cut(_) if lacks => (Some(Follower::Cut), None),
            Verdict::Cut(_) => (None, None),
        }
    }
}

impl Model for Groups {
    type State = State;
    type Action = Action;

    fn first(&self) -> State {
        State {
            members: [None; MEMBERS],
            count: if self.adds { 1 } else { MEMBERS },
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
        let mut all = vec![Action::FollowerEnds, Action::Adds];
        for job in 0..state.count {
            all.push(Action::Redrive(job));
            all.push(Action::Settles(job));
            all.extend([Fate::Completed, Fate::Failed, Fate::Cancelled].map(|fate| Action::Ends(job, fate)));
        }
        for call in 0..CALLS {
            match state.calls[call] {
                Call::None => all.push(Action::Take(call)),
                Call::Began(_) => all.extend([Action::Look(call), Action::Dies(call)]),
                Call::Looked { .. } => all.extend([Action::Write(call), Action::Dies(call)]),
                Call::Wrote { .. } => all.extend([Action::Commit(call), Action::Dies(call)]),
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
                    state.notes.push(Note { told: Told::End(job, fate), taken_by: None });
                }
            }
            Action::Settles(job) => {
                if state.members[job].is_some() || state.locks_edge(job) {
                    return None;
                }
                state.members[job] = Some(Fate::Completed);
                state.edges[job] = Some(Fate::Completed);
                if !self.has(Mutation::NoNoteOfTheFollower) {
                    state.tell(Told::Look(None));
                }
            }
            Action::Redrive(job) => {
                if state.members[job] != Some(Fate::Failed) || state.redrives == self.redrives {
                    return None;
                }
                state.redrives += 1;
                state.members[job] = None;
                // It waits for the lock of an edge that a call is about to settle.
                if state.locks_edge(job) {
                    return None;
                }
                if state.edges[job] == Some(Fate::Failed) && !self.has(Mutation::RedriveKeepsTheFailure) {
                    state.edges[job] = None;
                }
            }
            Action::Adds => {
                // Its row is locked until the edge is committed, and so is its end.
                let is_stale = state.members[0].is_some() && !self.has(Mutation::AddsWithoutFence);
                if state.count == MEMBERS || is_stale {
                    return None;
                }
                state.count = MEMBERS;
                // Of one whose job was redriven, the follower may have started because of the failure.
                if state.redrives == 0 && state.releases() {
                    state.wrong = Some("a follower starts before its time");
                }
            }
            Action::Take(call) => {
                let taken = self.take(&mut state, call);
                if taken.is_empty() {
                    return None;
                }
                state.calls[call] = Call::Began(taken);
            }
            Action::Look(call) => {
                let Call::Began(notes) = state.calls[call].clone() else { return None };
                // Two calls do not settle one edge at a time.
                let waits =
                    notes.iter().any(|told| matches!(told, Told::End(job, _) if state.locks_edge(*job)));
                if waits {
                    return None;
                }
                self.look(&mut state, call, &notes);
            }
            Action::Write(call) => {
                let Call::Looked { edges, verdict, looks_again } = state.calls[call].clone() else {
                    return None;
                };
                let is_locked = matches!(state.calls[1 - call], Call::Wrote { becomes: Some(_), .. });
                let (becomes, told) = self.write(&state, &edges, verdict, is_locked);
                let tells = told.into_iter().chain(looks_again.then_some(Told::Look(None))).collect();
                state.calls[call] = Call::Wrote { edges, becomes, tells };
            }
            Action::Commit(call) => {
                if !state.commit(call) {
                    return None;
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
        Some(state.in_order())
    }

    fn is_fault(action: Action) -> bool {
        matches!(action, Action::Dies(_))
    }

    fn wrong(state: &State) -> Option<&'static str> {
        state.wrong.or((state.starts > 1).then_some("a follower ran twice"))
    }

    fn has_ended(state: &State) -> bool {
        let is_quiet = state.notes.is_empty() && state.calls.iter().all(|call| *call == Call::None);
        let ended: Option<Vec<Fate>> = state.members[..state.count].iter().copied().collect();
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
