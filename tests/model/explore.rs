//! The walk through all reachable states of a model.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

/// A state machine with faults.
pub(crate) trait Model: Debug {
    type State: Clone + Debug + Eq + Hash;
    type Action: Copy + Debug;

    fn first(&self) -> Self::State;

    /// The actions that are possible next.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;

    /// The state after an action; `None` if nothing changes.
    fn next(&self, before: &Self::State, action: Self::Action) -> Option<Self::State>;

    /// Whether this is a fault, which need never happen.
    fn is_fault(action: Self::Action) -> bool;

    fn wrong(state: &Self::State) -> Option<&'static str>;

    fn has_ended(state: &Self::State) -> bool;
}

/// The result of a walk through all reachable states.
pub(crate) struct Checked<M: Model> {
    pub(crate) states: usize,
    /// The shortest way to a wrong state.
    pub(crate) wrong: Option<(&'static str, Vec<M::Action>)>,
    /// A state from which no end can be reached, even without further faults, and the way to it.
    pub(crate) stuck: Option<(M::State, Vec<M::Action>)>,
}

/// Goes through every state, nearest first.
///
/// A job that has a way to its end from every state ends under fair scheduling: faults cease, and the steps that lead
/// to the end stay possible. The walk stops at the first wrong state.
pub(crate) fn explore<M: Model>(model: &M) -> Checked<M> {
    let mut known: HashMap<M::State, usize> = HashMap::new();
    let mut states: Vec<M::State> = vec![model.first()];
    let mut from: Vec<Option<(usize, M::Action)>> = vec![None];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    known.insert(model.first(), 0);
    let way = |from: &[Option<(usize, M::Action)>], mut at: usize| {
        let mut way = Vec::new();
        while let Some((earlier, action)) = from[at] {
            way.push(action);
            at = earlier;
        }
        way.reverse();
        way
    };
    let mut at = 0;
    while at < states.len() {
        let state = states[at].clone();
        for action in model.actions(&state) {
            let Some(next) = model.next(&state, action) else { continue };
            let wrong = M::wrong(&next);
            let to = *known.entry(next.clone()).or_insert(states.len());
            if to == states.len() {
                states.push(next);
                from.push(Some((at, action)));
                before.push(Vec::new());
            }
            if let Some(wrong) = wrong {
                return Checked { states: states.len(), wrong: Some((wrong, way(&from, to))), stuck: None };
            }
            if !M::is_fault(action) {
                before[to].push(at);
            }
        }
        at += 1;
    }
    let mut ends: Vec<bool> = states.iter().map(M::has_ended).collect();
    let mut queue: VecDeque<usize> = (0..states.len()).filter(|at| ends[*at]).collect();
    while let Some(at) = queue.pop_front() {
        for earlier in &before[at] {
            if !std::mem::replace(&mut ends[*earlier], true) {
                queue.push_back(*earlier);
            }
        }
    }
    let stuck = ends.iter().position(|ends| !ends).map(|at| (states[at].clone(), way(&from, at)));
    Checked { states: states.len(), wrong: None, stuck }
}

pub(crate) fn check<M: Model>(model: &M) {
    let checked = explore(model);
    if let Some((wrong, way)) = checked.wrong {
        panic!("{wrong}, after {way:#?}");
    }
    if let Some((state, way)) = checked.stuck {
        panic!("no way to an end from {state:#?}, after {way:#?}");
    }
    // A model without any steps would pass, too.
    assert!(checked.states > 1_000, "only {} states", checked.states);
    println!("{} states: {model:?}", checked.states);
}

/// Checks that a mistake leads to this wrong state; `None`: to states without a way to an end.
pub(crate) fn find<M: Model>(mistake: &M, wrong: Option<&'static str>) {
    let checked = explore(mistake);
    assert_eq!(checked.wrong.map(|(wrong, _)| wrong), wrong, "{mistake:?}, {} states", checked.states);
    assert!(
        wrong.is_some() || checked.stuck.is_some(),
        "{mistake:?} is not found in {} states",
        checked.states
    );
    println!("{mistake:?}: found in {} states", checked.states);
}
