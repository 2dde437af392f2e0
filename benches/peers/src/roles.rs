//! Roles: a producer and a worker of a peer, each the whole work of a process. See `speak` for their words.

use std::time::Duration;

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, stdin, stdout},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    handled::{self, now_us},
    order::Order,
    peers::{Peer, Servers},
    speak::{Ask, GO, READY, Seen, Spans},
    works::{BATCH, Work},
};

/// How often the database is asked whether all is done, once every handler has run.
const ASKED_EVERY: Duration = Duration::from_millis(2);
/// How often a worker says how many jobs it has begun.
const TOLD_EVERY: Duration = Duration::from_millis(5);

/// Creates the schema, then does what it is asked until its standard input ends.
pub(crate) async fn produce<P: Peer>(servers: &Servers, work: Work) -> anyhow::Result<()> {
    let mut peer = P::open(servers, work).await.context("open")?;
    say(READY).await?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let spans = answer(&mut peer, work, serde_json::from_str(&line)?).await?;
        say(&serde_json::to_string(&spans)?).await?;
    }
    Ok(())
}

async fn answer<P: Peer>(peer: &mut P, work: Work, ask: Ask) -> anyhow::Result<Spans> {
    let since = now_us();
    match ask {
        Ask::Enqueue { first, jobs, tasks } => enqueue_from(peer, work, first, jobs, tasks).await?,
        Ask::Batches { jobs } => {
            for batch in (0..jobs).step_by(BATCH) {
                let queue = work.queues()[batch / BATCH % work.queues().len()];
                let orders = batch..(batch + BATCH).min(jobs);
                let orders = orders.map(|order| Order::example(order, work.payload())).collect();
                peer.enqueue_batch(queue, orders).await?;
            }
            peer.flush().await;
        }
        Ask::Paced { first, jobs, every_ms } => return paced(peer, first, jobs, every_ms).await,
        Ask::Finished { jobs } => loop {
            let asked = now_us();
            if peer.finished(jobs).await? >= jobs {
                return Ok(vec![(since, asked)]);
            }
            sleep(ASKED_EVERY).await;
        },
    }
    Ok(vec![(since, now_us())])
}

async fn enqueue_from<P: Peer>(
    peer: &mut P,
    work: Work,
    first: usize,
    jobs: usize,
    tasks: usize,
) -> anyhow::Result<()> {
    let mut producers = JoinSet::new();
    for task in 0..tasks {
        let mut peer = peer.clone();
        producers.spawn(async move {
            for order in (first + task..first + jobs).step_by(tasks) {
                peer.enqueue(Order::example(order, work.payload())).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    Ok(())
}

async fn paced<P: Peer>(peer: &mut P, first: usize, jobs: usize, every_ms: u64) -> anyhow::Result<Spans> {
    let mut ticks = interval(Duration::from_millis(every_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut spans = Spans::with_capacity(jobs);
    for order in first..first + jobs {
        ticks.tick().await;
        let order = Order::example(order, 0);
        let called = now_us();
        peer.enqueue(order).await?;
        spans.push((called, now_us()));
    }
    Ok(spans)
}

/// Works from the word on until its standard input ends, and fails if the library does.
pub(crate) async fn work<P: Peer>(servers: &Servers, work: Work) -> anyhow::Result<()> {
    handled::note_starts(work);
    say(READY).await?;
    let mut lines = BufReader::new(stdin()).lines();
    if lines.next_line().await?.as_deref() != Some(GO) {
        bail!("a worker begins upon the word {GO:?}");
    }
    tokio::select! {
        done = P::work(servers, work) => {
            done.context("the worker")?;
            bail!("the worker has ended");
        }
        told = tell(&mut lines) => told?,
    }
    say(&serde_json::to_string(&handled::seen())?).await
}

/// Says how many jobs have begun, until the standard input ends.
async fn tell(lines: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<()> {
    let mut ticks = interval(TOLD_EVERY);
    let mut told = 0;
    loop {
        tokio::select! {
            line = lines.next_line() => if line?.is_none() {
                return Ok(());
            },
            _ = ticks.tick() => {}
        }
        let count = handled::count();
        if count != told {
            told = count;
            say(&serde_json::to_string(&Seen { count, ..Seen::default() })?).await?;
        }
    }
}

async fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = stdout();
    stdout.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(stdout.flush().await?)
}
