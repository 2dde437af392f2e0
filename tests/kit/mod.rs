//! The conformance kit: any client of `docs/worker-protocol.md` under the same cases, as a black box over NATS and SQL.
//!
//! The programs under test serve the kinds of `docs/conformance.md`. `clients/wrong.py` makes one mistake at a time:
//! each case names those that it must find.

mod cases;
mod ends;
mod faults;
pub mod world;

use std::{any::Any, path::Path, sync::Arc};

use futures::future::BoxFuture;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::harness::ROOT;

/// A client's program under test, and how it is started.
#[derive(Debug, Clone)]
pub struct Client {
    pub name: String,
    pub command: Vec<String>,
    pub variables: Vec<(String, String)>,
    /// How many small jobs its workers share.
    pub jobs: usize,
}

/// How many small jobs a client has by default.
pub const JOBS: usize = 3_000;

impl Client {
    /// A program of `clients/`, which reads tenure's client for Python, and others, from there.
    pub fn python(name: &str, program: &str) -> Self {
        let folder = Path::new(ROOT).join("clients");
        let libraries = std::env::var("PYTHONPATH").unwrap_or_default();
        let path = format!("{}:{libraries}", folder.join("python/src").display());
        let command = vec!["python3".into(), folder.join(program).display().to_string()];
        Self { name: name.into(), command, variables: vec![("PYTHONPATH".into(), path)], jobs: JOBS }
    }

    /// [`Client::python`], which makes one mistake.
    #[allow(dead_code, reason = "the kit's own program does")]
    pub fn wrong(mistake: &str) -> Self {
        let mut client = Self::python(mistake, "wrong.py");
        client.variables.push(("TENURE_KIT_MISTAKE".into(), mistake.into()));
        client
    }

    /// The mistakes that `clients/wrong.py` knows: one that it did not know would seem to be found.
    #[allow(dead_code, reason = "the kit's own program does")]
    pub fn mistakes() -> Vec<String> {
        let wrong = Self::python("wrong.py", "wrong.py");
        let mut list = std::process::Command::new(&wrong.command[0]);
        list.args(&wrong.command[1..]).arg("--mistakes").envs(wrong.variables);
        let listed = String::from_utf8(list.output().unwrap().stdout).unwrap();
        listed.lines().filter_map(|line| Some(line.split_once('\t')?.0.to_owned())).collect()
    }

    /// The clients of `clients/` whose language this machine has. `scripts/setup test` installs what they need.
    pub fn all() -> Vec<Self> {
        let python = Self::python("python", "python/kit.py");
        let mut imports = std::process::Command::new("python3");
        let has_library = imports.args(["-c", "import nats"]).envs(python.variables.clone()).output();
        assert!(
            has_library.is_ok_and(|of| of.status.success()),
            "python3 lacks nats-py: run scripts/setup test"
        );
        let mut clients = vec![python];
        if std::process::Command::new("node").arg("--version").output().is_ok() {
            let program = Path::new(ROOT).join("clients/node/dist/kit.js");
            assert!(program.exists(), "{} is not built: run scripts/setup test", program.display());
            clients.push(Self {
                name: "node".into(),
                command: vec!["node".into(), program.display().to_string()],
                variables: Vec::new(),
                jobs: JOBS,
            });
        } else {
            eprintln!("node was not found: its client is not tested");
        }
        clients
    }
}

/// One thing that every client must do.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// What a client does that passes.
    pub what: &'static str,
    /// The mistakes of `clients/wrong.py` that this case must find.
    pub finds: &'static [&'static str],
    run: fn(Client) -> BoxFuture<'static, ()>,
}

/// The cases, in the order of a job's way.
#[rustfmt::skip]
pub const CASES: &[Case] = &[
    Case { name: "hello", what: "says who it is, and answers probes", finds: &["deaf"], run: |c| Box::pin(cases::hello(c)) },
    Case { name: "hello-again", what: "says hello again when its row is gone", finds: &["hello_once"], run: |c| Box::pin(cases::hello_again(c)) },
    Case { name: "payload", what: "hands payloads and outputs on as they are", finds: &["payload", "no_output"], run: |c| Box::pin(cases::payload(c)) },
    Case { name: "parts", what: "reads a payload in parts", finds: &["parts"], run: |c| Box::pin(cases::parts(c)) },
    Case { name: "confirm", what: "confirms the jobs that it is given", finds: &["unconfirmed"], run: |c| Box::pin(cases::confirm(c)) },
    Case { name: "slots", what: "runs as many jobs as it has slots", finds: &["greedy"], run: |c| Box::pin(cases::slots(c)) },
    Case { name: "key", what: "gives an effect one key in all attempts", finds: &["key_by_attempt"], run: |c| Box::pin(cases::key(c)) },
    Case { name: "progress", what: "reports seldom, and the latest values", finds: &["chatty", "old_value", "settle_first"], run: |c| Box::pin(cases::progress(c)) },
    Case { name: "checkpoint", what: "goes on from a checkpoint", finds: &["no_checkpoint"], run: |c| Box::pin(cases::checkpoint(c)) },
    Case { name: "outcomes", what: "ends a job in each way, at its time", finds: &["retry_time", "snooze_charged", "fail_retried", "crash_swallowed"], run: |c| Box::pin(cases::outcomes(c)) },
    Case { name: "steps", what: "does a step once, and waits without a slot or an attempt", finds: &["step_again", "suspend_charged"], run: |c| Box::pin(cases::steps(c)) },
    Case { name: "cancel", what: "stops a cancelled handler within a second", finds: &["deaf_to_cancel"], run: |c| Box::pin(cases::cancel(c)) },
    Case { name: "timeout", what: "ends an attempt that lasts too long", finds: &["no_timeout"], run: |c| Box::pin(cases::timeout(c)) },
    Case { name: "hang", what: "reports nothing for a handler that hangs", finds: &["alive"], run: |c| Box::pin(cases::hang(c)) },
    Case { name: "many", what: "runs each of many small jobs once", finds: &["twice"], run: |c| Box::pin(cases::many(c)) },
    Case { name: "crash", what: "loses and doubles nothing, killed at each step", finds: &["same_worker"], run: |c| Box::pin(faults::crash(c)) },
    Case { name: "frozen", what: "stops what it lost while it was frozen", finds: &["deaf_to_lost"], run: |c| Box::pin(faults::frozen(c)) },
    Case { name: "frozen-take", what: "starts no job of an answer that it read late", finds: &["late_start"], run: |c| Box::pin(faults::frozen_take(c)) },
    Case { name: "lost-take", what: "gives back jobs whose answer was lost", finds: &["forgetful"], run: |c| Box::pin(faults::lost_take(c)) },
    Case { name: "lost-settle", what: "repeats a settle whose answer was lost", finds: &["impatient"], run: |c| Box::pin(faults::lost_settle(c)) },
    Case { name: "cut-off", what: "goes on when its connection is back", finds: &["gives_up"], run: |c| Box::pin(faults::cut_off(c)) },
    Case { name: "gateway-killed", what: "goes on with the next gateway", finds: &["impatient"], run: |c| Box::pin(faults::gateway_killed(c)) },
    Case { name: "gateway-frozen", what: "repeats what a frozen gateway did not answer", finds: &["impatient"], run: |c| Box::pin(faults::gateway_frozen(c)) },
    Case { name: "one-frozen", what: "goes on within 3 s when one of two or three gateways freezes", finds: &["unaddressed"], run: |c| Box::pin(faults::one_frozen(c)) },
    Case { name: "stop", what: "ends its jobs, and says goodbye", finds: &["rude", "no_goodbye"], run: |c| Box::pin(ends::stop(c)) },
    Case { name: "drain", what: "ends when it is drained", finds: &["undrained"], run: |c| Box::pin(ends::drain(c)) },
    Case { name: "grace", what: "releases jobs that outlast its grace", finds: &["never_released"], run: |c| Box::pin(ends::grace(c)) },
    Case { name: "rolling", what: "is replaced under load without a lost attempt", finds: &["unsettled_stop"], run: |c| Box::pin(ends::rolling(c)) },
];

/// What came of a case.
pub type Verdict = Result<(), String>;

/// Runs cases of clients, some at once. Returns the verdicts in order.
pub async fn run(all: Vec<(Client, Case)>, at_once: usize) -> Vec<Verdict> {
    let (permits, mut running) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
    let mut verdicts = vec![Ok(()); all.len()];
    for (n, (client, case)) in all.into_iter().enumerate() {
        let permits = permits.clone();
        running.spawn(async move {
            let _one = permits.acquire_owned().await;
            // Its own task: a case fails as a test does.
            let ended = tokio::spawn((case.run)(client)).await;
            (n, ended.map_err(|error| said(&*error.into_panic())))
        });
    }
    while let Some(ended) = running.join_next().await {
        let (n, verdict) = ended.unwrap();
        verdicts[n] = verdict;
    }
    verdicts
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
