//! The world of one case: servers, gateways, a program under test, and what can be seen of it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{Config, JobId, JobRequest, Worker, rows::JobRow};
use tokio::time::sleep;

use super::Client;
use crate::harness::{Bench, Child, Proxy, Running, bench_with};

/// How long anything may take that takes a moment on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// The queue of a program under test.
pub const QUEUE: &str = "q";

/// A request that a gateway was sent.
#[derive(Debug, Clone)]
pub struct Request {
    pub name: String,
    pub body: Value,
}

pub struct World {
    pub bench: Bench,
    client: Client,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl World {
    /// A world in which a program that starts slowly is not taken for dead.
    pub async fn patient(client: Client) -> Self {
        Self::with(client, |_| {}).await
    }

    pub async fn with(client: Client, change: impl FnOnce(&mut Config)) -> Self {
        let bench = bench_with(|config| {
            config.timing.stale_after = Duration::from_secs(60);
            config.timing.ack_wait = Duration::from_secs(120);
            config.timing.renew_every = Duration::from_millis(500);
            // On a busy machine, late scans would begin a grace, in which nothing is reset.
            config.timing.scan_every = Duration::from_secs(2);
            config.timing.database_within = Duration::from_secs(10);
            change(config);
        })
        .await;
        Self { bench, client, requests: Arc::default() }
    }

    /// Notes the requests from now on. NATS then knows of someone who listens, and says of no request that there are
    /// no responders: not every case watches.
    pub async fn watch(&self) {
        let nats = async_nats::connect(&self.bench.config.nats_url).await.unwrap();
        let subject = format!("tenure.{}.w.{QUEUE}.*", self.bench.config.subject_prefix);
        let mut sent = nats.subscribe(subject).await.unwrap();
        nats.flush().await.unwrap();
        let seen = self.requests.clone();
        tokio::spawn(async move {
            while let Some(message) = sent.next().await {
                // Without the address of a gateway.
                let name = message.subject.rsplit('.').next().and_then(|name| name.split('@').next());
                let name = name.unwrap_or_default().to_owned();
                // A client may ask at any time whether its gateway is there.
                if name == "ping" {
                    continue;
                }
                let body = serde_json::from_slice(&message.payload).unwrap_or(Value::Null);
                seen.lock().unwrap().push(Request { name, body });
            }
        });
    }

    /// How many small jobs the case is to have.
    pub fn jobs(&self) -> usize {
        self.client.jobs
    }

    /// A gateway in this process.
    pub fn gateway(&self) -> Running {
        Running::start(Worker::builder(&self.bench.tenure).gateway())
    }

    /// A gateway of its own process.
    pub fn gateway_process(&self) -> Child {
        Child::spawn(self.bench.program(&["gateway"]), "gateway")
    }

    /// Starts a program under test.
    pub fn start(&self, nats: &str, slots: u32, variables: &[(&str, &str)]) -> Child {
        let mut command = tokio::process::Command::new(&self.client.command[0]);
        command
            .args(&self.client.command[1..])
            .args([QUEUE, &slots.to_string()])
            .env("NATS_URL", nats)
            .env("TENURE_SUBJECT_PREFIX", &self.bench.config.subject_prefix)
            .envs(self.client.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied());
        Child::spawn(command, &self.client.name)
    }

    /// Starts a program under test, and waits until it has said hello.
    pub async fn ready(&self, slots: u32) -> Child {
        self.ready_with(slots, &[]).await
    }

    pub async fn ready_with(&self, slots: u32, variables: &[(&str, &str)]) -> Child {
        let mut child = self.start(&self.bench.config.nats_url, slots, variables);
        child.until_log("\"ready\"").await;
        child
    }

    /// [`World::ready`], by way of a link that can be disturbed.
    pub async fn ready_behind(&self, slots: u32) -> (Proxy, Child) {
        let nats = &self.bench.config.nats_url;
        let proxy = Proxy::to_url(nats).await;
        let mut child = self.start(&proxy.of(nats), slots, &[]);
        child.until_log("\"ready\"").await;
        (proxy, child)
    }

    pub async fn enqueue(&self, kind: &str, payload: Value) -> JobId {
        self.bench.tenure.enqueue(JobRequest::new(QUEUE, kind, payload).max_attempts(2)).await.unwrap().id
    }

    /// Waits until a job has ended.
    pub async fn ended(&self, job: JobId) -> JobRow {
        let ended =
            format!("EXISTS (SELECT FROM tenure.all_jobs WHERE id = '{job}' AND finished_at IS NOT NULL)");
        self.bench.until_within(&ended, SOON).await;
        self.bench.until_finished(job).await
    }

    /// Runs a job to its end.
    pub async fn run(&self, kind: &str, payload: Value) -> JobRow {
        let job = self.enqueue(kind, payload).await;
        self.ended(job).await
    }

    /// How many jobs complete in a second, over the next three.
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    pub async fn jobs_a_second(&self) -> f64 {
        let completed = || self.bench.count("tenure.job_history WHERE status = 'completed'");
        let (began_at, before) = (std::time::Instant::now(), completed().await);
        sleep(Duration::from_secs(3)).await;
        (completed().await - before) as f64 / began_at.elapsed().as_secs_f64()
    }

    /// How the attempts of a job ended, in order.
    pub async fn outcomes(&self, job: JobId) -> String {
        let sql = format!(
            "SELECT outcome FROM tenure.job_executions_all WHERE job_id = '{job}' ORDER BY fencing_token"
        );
        self.bench.text(&sql).await
    }

    /// The requests of a name since [`World::watch`].
    pub fn requests(&self, name: &str) -> Vec<Value> {
        let all = self.requests.lock().unwrap();
        all.iter().filter(|request| request.name == name).map(|request| request.body.clone()).collect()
    }

    /// All requests since [`World::watch`], in order.
    pub fn all_requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until there are these many requests of a name.
    pub async fn until_requests(&self, name: &str, count: usize) {
        let until = tokio::time::Instant::now() + SOON;
        while self.requests(name).len() < count {
            assert!(
                tokio::time::Instant::now() < until,
                "{} of {count} requests {name:?} were sent",
                self.requests(name).len()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The events that a program under test has shown.
pub fn events(child: &Child, event: &str, job: JobId) -> Vec<Value> {
    let of_job = |line: &Value| line["event"] == json!(event) && line["job"] == json!(job);
    shown(child).into_iter().filter(of_job).collect()
}

/// All that a program under test has shown so far.
pub fn shown(child: &Child) -> Vec<Value> {
    child.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until a program under test has shown an event of a job. Returns the first.
pub async fn until_event(child: &Child, event: &str, job: JobId) -> Value {
    let until = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(shown) = events(child, event, job).into_iter().next() {
            return shown;
        }
        assert!(
            tokio::time::Instant::now() < until,
            "the program shows no event {event:?} of the job {job}:\n{}",
            child.log()
        );
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the end of a program under test, which stops in order.
pub async fn stopped(child: &mut Child) {
    let code = tokio::time::timeout(SOON, child.wait()).await;
    let code = code.unwrap_or_else(|_| panic!("the program does not end:\n{}", child.log()));
    assert_eq!(code, Some(0), "the code with which the program ended:\n{}", child.log());
}

/// Asks a program under test to stop.
pub fn ask_to_stop(child: &Child) {
    child.signal(Signal::TERM);
}
