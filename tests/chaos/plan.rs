//! The plan: which faults happen, when and for how long. The seed alone decides it.

use std::{collections::BTreeMap, fmt, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// How many workers run at a time, each of which is a gateway, too.
pub const WORKERS: usize = 4;
/// How many workers run behind the gateways, in other languages.
pub const FOREIGN: usize = 3;
/// The number of the producer.
pub const PRODUCER: usize = WORKERS + FOREIGN;

/// The links of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    Postgres,
    Nats,
    Both,
}

/// What happens to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    Cut,
    AnswersCut,
    RequestsCut,
    Slow(u32),
    BrokenOff,
    CommitsUnanswered,
}

/// A fault. A process is a worker, by its number, then one behind the gateways, or the producer: [`PRODUCER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Kill {
        process: usize,
    },
    /// The process is started again and kills itself at a point of its code.
    KillAt {
        process: usize,
        point: &'static str,
    },
    Pause {
        process: usize,
    },
    Stop {
        worker: usize,
    },
    /// SIGKILL in the middle of a shutdown.
    StopThenKill {
        worker: usize,
    },
    Disturb {
        process: usize,
        link: Link,
        trouble: Trouble,
    },
    PostgresRestarted,
    PostgresKilled,
    PostgresFrozen,
    SessionsEnded,
    TableLocked,
    NatsRestarted,
    NatsKilled,
    NatsFrozen,
    NatsWiped,
    /// NATS goes back by as many seconds as the fault lasts.
    NatsRestored,
    StreamDeleted,
    ConsumerDeleted,
    Duplicates,
}

impl Fault {
    /// The label under which the report counts this fault.
    pub fn kind(&self) -> String {
        match self {
            Self::Kill { process: PRODUCER } => "producer killed".into(),
            Self::Kill { process: WORKERS.. } => "worker in another language killed".into(),
            Self::Kill { .. } => "worker killed".into(),
            Self::KillAt { point, .. } => format!("killed at the point `{point}`"),
            Self::Pause { process: PRODUCER } => "producer paused".into(),
            Self::Pause { process: WORKERS.. } => "worker in another language paused".into(),
            Self::Pause { .. } => "worker paused".into(),
            Self::Stop { worker: WORKERS.. } => "worker in another language stopped".into(),
            Self::Stop { .. } => "worker stopped".into(),
            Self::StopThenKill { .. } => "worker killed in its shutdown".into(),
            Self::Disturb { process, link, trouble } => {
                let link = match link {
                    _ if (WORKERS..PRODUCER).contains(process) => "link of a worker in another language",
                    Link::Postgres => "link to Postgres",
                    Link::Nats => "link to NATS",
                    Link::Both => "both links",
                };
                match trouble {
                    Trouble::Cut => format!("{link} cut"),
                    Trouble::AnswersCut => format!("{link} cut, answers only"),
                    Trouble::RequestsCut => format!("{link} cut, requests only"),
                    Trouble::Slow(_) => format!("{link} slow"),
                    Trouble::BrokenOff => format!("{link} broken off"),
                    Trouble::CommitsUnanswered => "commits unanswered".into(),
                }
            }
            Self::PostgresRestarted => "Postgres restarted".into(),
            Self::PostgresKilled => "Postgres killed".into(),
            Self::PostgresFrozen => "Postgres frozen".into(),
            Self::SessionsEnded => "all sessions of Postgres ended".into(),
            Self::TableLocked => "the jobs' table locked".into(),
            Self::NatsRestarted => "NATS restarted".into(),
            Self::NatsKilled => "NATS killed".into(),
            Self::NatsFrozen => "NATS frozen".into(),
            Self::NatsWiped => "NATS lost all it stored".into(),
            Self::NatsRestored => "NATS restored from a copy".into(),
            Self::StreamDeleted => "stream deleted".into(),
            Self::ConsumerDeleted => "consumer deleted".into(),
            Self::Duplicates => "duplicate and forged messages".into(),
        }
    }
}

/// One fault of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub after: Duration,
    pub fault: Fault,
    /// How long the fault lasts, if it lasts at all.
    pub lasts: Duration,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s  {:?}, {} ms", self.after.as_secs_f64(), self.fault, self.lasts.as_millis())
    }
}

/// The points at which a worker can be killed.
const POINTS: &[&str] = &[
    "delivered",
    "batch_claimed",
    "claimed",
    "attempt_ended",
    "settled",
    "batch_completed",
    "acknowledged",
    "reset",
    "reconciled",
    "relayed",
    "gateway_pulled",
    "gateway_claimed",
    "gateway_answered",
];

/// The plan of a seed for a run of this length.
pub fn plan(seed: u64, length: Duration) -> Vec<Event> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut after = Duration::from_secs(2);
    let mut events = Vec::new();
    while after < length {
        let fault = fault(&mut random);
        // Shorter and longer than stale_after, and than a call's deadline.
        let lasts = Duration::from_millis(pick(&mut random, &[150, 600, 1_500, 2_500, 4_500, 8_000]));
        events.push(Event { after, fault, lasts });
        after += Duration::from_millis(random.random_range(100..3_500));
    }
    events
}

fn fault(random: &mut StdRng) -> Fault {
    let process = random.random_range(0..=PRODUCER);
    let worker = random.random_range(0..PRODUCER);
    match random.random_range(0..100) {
        0..12 => Fault::Kill { process },
        12..14 => Fault::KillAt { process: PRODUCER, point: "enqueued" },
        14..26 => Fault::KillAt { process: worker % WORKERS, point: pick(random, POINTS) },
        26..34 => Fault::Pause { process },
        34..39 => Fault::Stop { worker },
        39..42 => Fault::StopThenKill { worker },
        42..70 => {
            let link = pick(random, &[Link::Postgres, Link::Nats, Link::Both]);
            let trouble = match random.random_range(0..7) {
                0 | 1 => Trouble::Cut,
                2 => Trouble::AnswersCut,
                3 => Trouble::RequestsCut,
                4 => Trouble::Slow(random.random_range(20..400)),
                5 => Trouble::BrokenOff,
                _ => Trouble::CommitsUnanswered,
            };
            match process {
                // It has no link to Postgres.
                WORKERS..PRODUCER if trouble == Trouble::CommitsUnanswered => Fault::Kill { process },
                WORKERS..PRODUCER => Fault::Disturb { process, link: Link::Nats, trouble },
                _ if trouble == Trouble::CommitsUnanswered => {
                    Fault::Disturb { process, link: Link::Postgres, trouble }
                }
                _ => Fault::Disturb { process, link, trouble },
            }
        }
        70..73 => Fault::PostgresRestarted,
        73..75 => Fault::PostgresKilled,
        75..78 => Fault::PostgresFrozen,
        78..82 => Fault::SessionsEnded,
        82..84 => Fault::TableLocked,
        84..87 => Fault::NatsRestarted,
        87..89 => Fault::NatsKilled,
        89..91 => Fault::NatsFrozen,
        91..92 => Fault::NatsWiped,
        92..94 => Fault::NatsRestored,
        94..95 => Fault::StreamDeleted,
        95..96 => Fault::ConsumerDeleted,
        _ => Fault::Duplicates,
    }
}

fn pick<T: Copy>(random: &mut StdRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

/// Counts the faults of each kind.
pub fn counts<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(event.fault.kind()).or_default() += 1;
    }
    counts
}
