//! The protocol, checked exhaustively for small bounds: no wrong state is reachable, and every state can reach an end.
//! A list of deliberate mistakes shows that the check finds each of them.

mod explore;
mod groups;
mod lanes;
mod protocol;
mod waits;

use explore::{check, find};
use groups::{Groups, OnFailure};
use lanes::Lanes;
use protocol::Protocol;
use waits::Waits;

/// One death, lost answer or wiped stream, at any moment; two attempts.
const USUAL: Protocol =
    Protocol { mutation: None, submission: false, faults: 1, attempts_max: 2, alone: false, cancels: false };

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
    use protocol::Mutation::*;
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
        find(&Protocol { mutation: Some(mutation), ..protocol.clone() }, wrong);
    }
}

/// Two lanes with a limit of one; one death, pause or lost call at any moment.
const LANES: Lanes = Lanes {
    mutation: None,
    limit: 1,
    window: 2,
    rate: false,
    faults: 1,
    cancels: false,
    attempts_max: 1,
    jobs: 3,
    admissions: 2,
    turns: None,
};

#[test]
fn a_lane_keeps_its_limit_and_each_job_gets_its_slot() {
    check(&LANES);
}

/// One lane, two attempts.
const RETRIES: Lanes = Lanes { attempts_max: 2, jobs: 2, ..LANES };

#[test]
fn a_retried_job_goes_back_to_its_lane() {
    check(&RETRIES);
}

/// A bucket of one token, and a job that is cancelled at any moment.
const RATE: Lanes = Lanes { rate: true, cancels: true, faults: 0, ..RETRIES };

#[test]
fn a_token_starts_one_attempt_and_none_is_lost() {
    check(&RATE);
    check(&Lanes { attempts_max: 1, faults: 1, ..RATE });
}

#[test]
fn a_lane_that_waits_is_passed_over_once_at_most() {
    check(&TURNS);
}

/// One message at a time; lane B had three turns before.
const TURNS: Lanes =
    Lanes { limit: 2, window: 1, attempts_max: 2, faults: 0, admissions: 1, turns: Some(3), ..LANES };

/// Each mistake leads to a wrong state, or to states without a way to an end.
#[test]
fn every_mistake_in_the_lanes_is_found() {
    use lanes::Mutation::*;
    let calm = Lanes { faults: 0, ..RETRIES };
    let one_lane = Lanes { jobs: 2, ..LANES };
    let mistakes = [
        (SlotIsKept, &LANES, None),
        (CallerIsBelieved, &RETRIES, Some("a lane runs more jobs than its limit")),
        (LooksBeforeItLocks, &LANES, Some("a lane runs more jobs than its limit")),
        (NamedLaneIsPassedOver, &one_lane, None),
        (WakeBeforeTheLook, &RETRIES, None),
        (RetryWithoutWake, &calm, None),
        (RetryPastTheLane, &calm, Some("a lane runs more jobs than its limit")),
        (ResetForgetsTheLane, &RETRIES, None),
        (HeldJobIsClaimed, &RETRIES, Some("a held job runs")),
        (TokenTakenTwice, &RATE, Some("a token was made of nothing")),
        (TokenIsLost, &RATE, Some("a token was lost")),
        (TokenComesBackTwice, &RATE, Some("a token was made of nothing")),
        (TokenOfAnAttempt, &RATE, Some("a token was made of nothing")),
        (NoLookForTheToken, &RATE, None),
        (TurnNeverMoves, &TURNS, Some("a lane in the line was passed over twice")),
        (TurnsAreHeldAgainstALane, &TURNS, Some("a lane in the line was passed over twice")),
    ];
    for (mutation, lanes, wrong) in mistakes {
        find(&Lanes { mutation: Some(mutation), ..lanes.clone() }, wrong);
    }
}

/// A job may be redriven twice, and a call may die.
const GROUPS: Groups =
    Groups { mutation: None, on_failure: OnFailure::Cancel, faults: 1, redrives: 2, adds: false };

#[test]
fn a_follower_starts_once_when_all_before_it_have_ended_as_it_wants() {
    check(&GROUPS);
    check(&Groups { on_failure: OnFailure::Run, ..GROUPS });
    check(&Groups { on_failure: OnFailure::Hold, ..GROUPS });
    for on_failure in [OnFailure::Cancel, OnFailure::Run, OnFailure::Hold] {
        check(&Groups { on_failure, adds: true, redrives: 1, ..GROUPS });
    }
}

/// Each mistake leads to a wrong state, or to states without a way to an end.
#[test]
fn every_mistake_in_the_groups_is_found() {
    use groups::Mutation::*;
    // As few faults and redrives as the mistake needs: a search takes ten times as long with one more of each.
    let calm = Groups { faults: 0, redrives: 1, ..GROUPS };
    let dies = Groups { faults: 1, redrives: 0, ..GROUPS };
    let runs = Groups { on_failure: OnFailure::Run, ..calm };
    let holds = Groups { on_failure: OnFailure::Hold, ..calm };
    let adds = Groups { adds: true, ..calm };
    let early = Some("a follower starts before its time");
    let mistakes = [
        (NoNote, &calm, None),
        (NotesBeforeTheCommit, &dies, None),
        (NoNoteOfTheFollower, &calm, None),
        (NoSecondLook, &calm, None),
        (FindsItCut, &GROUPS, None),
        (KeepsTheLateCut, &GROUPS, None),
        (ForgetsTheLocked, &GROUPS, None),
        (LastNoteCounts, &calm, None),
        (RedriveKeepsTheFailure, &runs, early),
        (FailureReleases, &calm, early),
        (CutForEver, &calm, None),
        (FailureStays, &holds, None),
        (ReleasedByEach, &runs, Some("a follower ran twice")),
        (AddsWithoutFence, &adds, early),
        (LooksAtNone, &adds, early),
    ];
    for (mutation, groups, wrong) in mistakes {
        find(&Groups { mutation: Some(mutation), ..groups.clone() }, wrong);
    }
}

/// One death or pause at any moment, and two signals.
const WAITS: Waits =
    Waits { mutation: None, either: true, ends: false, own_ends: true, faults: 1, signals: 2 };

#[test]
fn a_job_that_waits_is_woken_by_each_of_its_waits_and_sees_one_answer() {
    check(&WAITS);
    // Neither saves a job that was not woken by the other.
    check(&Waits { own_ends: false, ends: true, faults: 2, ..WAITS });
    check(&Waits { signals: 0, faults: 2, ..WAITS });
    check(&Waits { ends: true, ..WAITS });
    check(&Waits { either: false, ..WAITS });
    check(&Waits { either: false, ends: true, ..WAITS });
}

/// Each mistake leads to a wrong state, or to states without a way to an end.
#[test]
fn every_mistake_in_the_waits_is_found() {
    use waits::Mutation::*;
    let ends = Waits { ends: true, ..WAITS };
    let both = Waits { either: false, ..WAITS };
    let both_ends = Waits { either: false, ends: true, ..WAITS };
    let answers = Some("two attempts saw two answers");
    let mistakes = [
        (LooksBeforeItLocks, &both, None),
        (SignalWithoutWake, &both, None),
        (SecondReplaces, &both, answers),
        (ComesTooLate, &both_ends, answers),
        (OnlyTheNamedCounts, &Waits { own_ends: false, ..WAITS }, None),
        (RunningIsNotTold, &Waits { signals: 0, ..WAITS }, None),
        (WaitIsCharged, &both, Some("a wait was charged")),
        (SettleWithoutFence, &WAITS, Some("a stale worker wrote")),
        (TimeIsForgotten, &Waits { signals: 0, own_ends: false, ..ends }, None),
    ];
    for (mutation, waits, wrong) in mistakes {
        find(&Waits { mutation: Some(mutation), ..waits.clone() }, wrong);
    }
}
