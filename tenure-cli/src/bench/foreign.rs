//! Foreign: workers behind a gateway, in the fewest lines that keep to `docs/worker-protocol.md`. They have no
//! connection to Postgres.

use std::time::Duration;

use anyhow::{Context, bail};
use async_nats::{Client, Message, Request};
use futures::{StreamExt, future::try_join_all};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, stdin, stdout},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};

use super::{
    Order,
    pickup::now_us,
    worker::{READY, WorkerMode},
};
use tenure::Config;

/// How long an answer may take, beyond the time that the request itself waits.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(5);
const ENTRIES_MAX: usize = 1_000;
/// The bytes of one request that settles.
const SETTLE_BYTES_MAX: usize = 900_000;

/// Runs these many workers of a queue until the standard input ends, each with its own connection.
pub(crate) async fn work(
    config: &Config,
    queue: &str,
    slots: u32,
    mode: WorkerMode,
    workers: usize,
) -> anyhow::Result<()> {
    let slots = usize::try_from(slots)?;
    let ended = async {
        let mut nothing = [0; 16];
        while stdin().read(&mut nothing).await.is_ok_and(|n| n > 0) {}
    };
    let mut ready = Vec::new();
    for number in 0..workers {
        let worker = Worker::start(config, queue, slots, mode, number).await?;
        ready.push(worker.run());
    }
    let mut stdout = stdout();
    stdout.write_all(format!("{READY}\n").as_bytes()).await?;
    stdout.flush().await?;
    tokio::select! {
        ended = try_join_all(ready) => ended.map(drop),
        () = ended => Ok(()),
    }
}

struct Worker {
    client: Client,
    subject: String,
    name: String,
    slots: usize,
    mode: WorkerMode,
    beat_every: Duration,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    ok: Taken<'a>,
}

#[derive(Deserialize)]
struct Taken<'a> {
    #[serde(borrow)]
    jobs: Vec<Handed<'a>>,
    uncertain: bool,
}

#[derive(Deserialize)]
struct Handed<'a> {
    job: &'a str,
    token: i64,
    receipt: &'a str,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl Worker {
    async fn start(
        config: &Config,
        queue: &str,
        slots: usize,
        mode: WorkerMode,
        number: usize,
    ) -> anyhow::Result<Self> {
        let client = async_nats::connect(&config.nats_url).await.context("connect to NATS")?;
        let name = format!("bench-{}-{number}", std::process::id());
        let subject = format!("tenure.{}.w.{queue}", config.subject_prefix);
        let mut probes = client.subscribe(format!("{subject}.to.{name}")).await?;
        let answering = client.clone();
        tokio::spawn(async move {
            while let Some(probe) = probes.next().await {
                if let Some(reply) = probe.reply {
                    answering.publish(reply, "here".into()).await.ok();
                }
            }
        });
        client.flush().await?;
        let mut worker = Self { client, subject, name, slots, mode, beat_every: Duration::ZERO };
        let hello = json!({"hostname": "bench", "pid": std::process::id(), "language": "rust", "slots": slots,
            "version": env!("CARGO_PKG_VERSION"), "kinds": {"*": {}}});
        let answer: Value =
            serde_json::from_slice(&worker.ask("hello", &hello, ANSWERED_WITHIN).await?.payload)?;
        worker.beat_every =
            Duration::from_millis(answer["ok"]["beat_every_ms"].as_u64().context("a beat's interval")?);
        Ok(worker)
    }

    /// Sends one request, until it is answered.
    async fn ask(&self, request: &str, fields: &Value, within: Duration) -> anyhow::Result<Message> {
        let mut body = json!({"v": 1, "worker": self.name});
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.send(request, body.to_string(), within).await
    }

    async fn send(&self, request: &str, body: String, within: Duration) -> anyhow::Result<Message> {
        let subject = format!("{}.{request}", self.subject);
        loop {
            let asked = Request::new().payload(body.clone().into()).timeout(Some(within));
            match self.client.send_request(subject.clone(), asked).await {
                Ok(answer) if answer.payload.starts_with(br#"{"ok":"#) => {
                    return Ok(answer);
                }
                Ok(answer) if !String::from_utf8_lossy(&answer.payload).contains(r#""retry":true"#) => {
                    bail!("{request}: {}", String::from_utf8_lossy(&answer.payload));
                }
                // A take whose answer is lost would need beats; the bench has no such fault.
                Err(error) if request == "take" => bail!("take: {error}"),
                Ok(_) | Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn run(self) -> anyhow::Result<()> {
        let (settles, settled) = mpsc::unbounded_channel();
        let free = Semaphore::new(self.slots);
        tokio::try_join!(self.take(&free, settles), self.settle(&free, settled), self.beat()).map(drop)
    }

    async fn take(&self, free: &Semaphore, settles: mpsc::UnboundedSender<String>) -> anyhow::Result<()> {
        loop {
            free.acquire().await?.forget();
            let more = free.available_permits().min(ENTRIES_MAX - 1);
            if more > 0 {
                free.acquire_many(u32::try_from(more)?).await?.forget();
            }
            let asked = json!({"slots": more + 1, "wait_ms": 5_000, "kinds": {"*": {}}});
            let answer = self.ask("take", &asked, WAIT + ANSWERED_WITHIN).await?;
            if let Some(reply) = answer.reply {
                self.client.publish(reply, "".into()).await?;
            }
            let Answer { ok: taken } = serde_json::from_slice(&answer.payload)?;
            if taken.uncertain {
                bail!("the gateway could not say whether it has claimed jobs");
            }
            free.add_permits(more + 1 - taken.jobs.len());
            for job in taken.jobs {
                settles.send(self.handle(&job)?)?;
            }
        }
    }

    /// Handles a job, and returns its settle.
    fn handle(&self, job: &Handed<'_>) -> anyhow::Result<String> {
        let began = now_us();
        let order: Order = serde_json::from_str(job.payload.get())?;
        std::hint::black_box(order.total());
        let output =
            if self.mode == WorkerMode::Stamp { format!(r#","output":{began}"#) } else { String::new() };
        let Handed { job, token, receipt, .. } = job;
        Ok(format!(r#"{{"job":"{job}","token":{token},"receipt":"{receipt}","outcome":"complete"{output}}}"#))
    }

    /// Sends the settles that wait, together.
    async fn settle(
        &self,
        free: &Semaphore,
        mut settled: mpsc::UnboundedReceiver<String>,
    ) -> anyhow::Result<()> {
        let mut next = None;
        loop {
            let mut entries = next.take().or(settled.recv().await).context("the worker has ended")?;
            let mut count = 1;
            while count < ENTRIES_MAX
                && let Ok(entry) = settled.try_recv()
            {
                if entries.len() + entry.len() > SETTLE_BYTES_MAX {
                    next = Some(entry);
                    break;
                }
                entries.push(',');
                entries.push_str(&entry);
                count += 1;
            }
            let body = format!(r#"{{"v":1,"worker":"{}","settles":[{entries}]}}"#, self.name);
            let answer = self.send("settle", body, ANSWERED_WITHIN).await?;
            let answer: Value = serde_json::from_slice(&answer.payload)?;
            let results = answer["ok"]["results"].as_array().context("results of settles")?;
            if let Some(other) = results.iter().find(|result| **result != "settled") {
                bail!("a settle was answered by {other}");
            }
            free.add_permits(count);
        }
    }

    async fn beat(&self) -> anyhow::Result<()> {
        loop {
            sleep(self.beat_every).await;
            timeout(WAIT * 6, self.ask("beat", &json!({}), ANSWERED_WITHIN)).await.context("a beat")??;
        }
    }
}
