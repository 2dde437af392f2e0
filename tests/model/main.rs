//! The protocol, checked exhaustively for small bounds: no wrong state is reachable, and every state can reach an end.
//! A list of deliberate mistakes shows that the check finds each of them.

mod protocol;

use std::collections::{HashMap, VecDeque};

use protocol::{Action, Mutation, Protocol, State};

/// One death, lost answer or wiped stream, at any moment; two attempts.
const USUAL: Protocol =
    Protocol { mutation: None, submission: false, faults: 1, attempts_max: 2, alone: false, cancels: false };

/// The result of a walk through all reachable states.
struct Checked {
    states: usize,
    /// The shortest way to a wrong state.
    wrong: Option<(&'static str, Vec<Action>)>,
    /// A state from which no end can be reached, even without further faults, and the way to it.
    stuck: Option<(State, Vec<Action>)>,
}

/// Goes through every state, nearest first.
///
/// A job that has a way to its end from every state ends under fair scheduling: faults cease, and the steps that lead
/// to the end stay possible. The walk stops at the first wrong state.
fn explore(protocol: &Protocol) -> Checked {
    let mut known: HashMap<State, usize> = HashMap::new();
    let mut states: Vec<State> = vec![protocol.first()];
    let mut from: Vec<Option<(usize, Action)>> = vec![None];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    known.insert(protocol.first(), 0);
    let way = |from: &[Option<(usize, Action)>], mut at: usize| {
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
        for action in protocol.actions(&state) {
            let Some(next) = protocol.next(&state, action) else { continue };
            let wrong = next.wrong();
            let to = *known.entry(next.clone()).or_insert(states.len());
            if to == states.len() {
                states.push(next);
                from.push(Some((at, action)));
                before.push(Vec::new());
            }
            if let Some(wrong) = wrong {
                return Checked { states: states.len(), wrong: Some((wrong, way(&from, to))), stuck: None };
            }
            if !action.is_fault() {
                before[to].push(at);
            }
        }
        at += 1;
    }
    let mut ends: Vec<bool> = states.iter().map(State::has_ended).collect();
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

fn check(protocol: &Protocol) {
    let checked = explore(protocol);
    if let Some((wrong, way)) = checked.wrong {
        panic!("{wrong}, after {way:#?}");
    }
    if let Some((state, way)) = checked.stuck {
        panic!("no way to an end from {state:#?}, after {way:#?}");
    }
    // A model without any steps would pass, too.
    assert!(checked.states > 1_000, "only {} states", checked.states);
    println!("{} states: {protocol:?}", checked.states);
}

#[test]
fn an_enqueued_job_has_one_owner_and_one_end() {
    check(&USUAL);
}

/// Two faults, and one attempt.
#[test]
fn two_faults_break_nothing_either() {
    check(&Protocol { faults: 2, attempts_max: 1, ..USUAL });
}

#[test]
fn a_submitted_job_has_one_owner_and_one_end() {
    check(&Protocol { submission: true, attempts_max: 1, ..USUAL });
}

#[test]
fn a_cancelled_job_ends_and_stays_ended() {
    check(&Protocol { cancels: true, attempts_max: 1, ..USUAL });
}

/// No scanner, no reconcile, no relay.
#[test]
fn redelivery_alone_brings_a_job_to_its_end() {
    check(&Protocol { alone: true, ..USUAL });
}

/// Each mistake leads to a wrong state, or to states without a way to an end.
#[test]
fn every_mistake_is_found() {
    use Mutation::*;
    let alone = Protocol { alone: true, ..USUAL };
    let submission = Protocol { submission: true, attempts_max: 1, ..USUAL };
    let cancels = Protocol { cancels: true, ..USUAL };
    let mistakes = [
        (ProgressWithoutToken, &USUAL, Some("a stale worker wrote")),
        (CompletionWithoutToken, &USUAL, Some("a stale worker wrote")),
        (RetryWithoutToken, &USUAL, Some("a stale worker wrote")),
        (FenceWithoutToken, &USUAL, Some("a stale worker wrote")),
        (TokenStartsAnew, &USUAL, Some("a stale worker wrote")),
        (AckBeforeTheRow, &submission, None),
        (AckAtTheClaim, &alone, None),
        (AckOfADuplicate, &alone, None),
        (LockedIsFinished, &alone, None),
        (ReconcileByPrefix, &USUAL, Some("a live owner's job was reset")),
        (VanishedOnOneLook, &USUAL, Some("a live owner's job was reset")),
        (ResetWithoutCondition, &USUAL, Some("a job was reset that had just shown a sign of life")),
        (TakeOverWithoutCondition, &USUAL, Some("a job was reset that had just shown a sign of life")),
        (OnlyProcessingIsScanned, &USUAL, None),
        (OneMessageId, &USUAL, None),
        (LostByAge, &USUAL, Some("a message was judged lost while it waited in the stream")),
        (ChargedAtTheEnd, &USUAL, Some("the job is tried for ever")),
        (ResetForgetsTheCancellation, &cancels, Some("a cancelled job is queued")),
        (RowWithoutKey, &submission, Some("an ended job exists again")),
    ];
    for (mutation, protocol, wrong) in mistakes {
        let checked = explore(&Protocol { mutation: Some(mutation), ..protocol.clone() });
        assert_eq!(checked.wrong.map(|(wrong, _)| wrong), wrong, "{mutation:?}, {} states", checked.states);
        assert!(
            wrong.is_some() || checked.stuck.is_some(),
            "{mutation:?} is not found in {} states",
            checked.states
        );
        println!("{mutation:?}: found in {} states", checked.states);
    }
}
