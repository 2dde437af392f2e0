//! Pages: how long the dashboard takes to answer, with the jobs of a large fleet.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tenure::{dev::free_port, internals::Parts as _};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};

use super::{Plan, Values, arena::Arena, percentile};

/// How often to ask for each page.
const ROUNDS: usize = 11;
/// Longer than any figures serve other viewers: so each request reads its own.
const PAUSE: Duration = Duration::from_millis(2_500);
const WITHIN: Duration = Duration::from_secs(30);

/// Every page, with its filters. The kinds that the page of a queue reads serve the page of kinds of that range, too.
const PAGES: [&str; 29] = [
    "/",
    "/?range=1d",
    "/?range=7d",
    "/jobs",
    "/jobs?status=retrying",
    "/jobs?status=completed",
    "/jobs?queue=queue-7",
    "/jobs?kind=kind.3&since=1h",
    "/jobs?q=gateway",
    "/jobs?worker=host-7-1-aaaaaaaa",
    "/jobs?worker=host-7-1-aaaaaaaa&status=completed",
    "/queues",
    "/queues/queue-7",
    "/queues/queue-8?range=7d",
    "/queues/queue-9?range=1d",
    "/kinds",
    "/kinds?range=1d",
    "/kinds?range=7d",
    "/workers",
    "/workers/host-7-1-aaaaaaaa",
    "/dead",
    "/dead?queue=queue-7",
    "/jobs/count?action=cancel&kind=kind.3",
    "/recovery",
    "/recovery?path=scanner",
    "/schedules",
    "/schedules/schedule-7",
    "/enqueue",
    "/schedule?name=schedule-7",
];

/// The median of each page should be below this.
const AIM_MS: f64 = 200.0;

/// The median and the slowest answer of each page.
pub(super) async fn pages(arena: &Arena, plan: &Plan, values: &mut Values) -> anyhow::Result<()> {
    ensure!(arena.is_private(), "the pages are measured on private servers only");
    arena.tenure.store().bench_fill(plan.jobs).await.context("fill the database")?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut serve = Command::from(arena.command());
    let _serve = serve.args(["serve", "--listen", &address, "--actions"]).kill_on_drop(true).spawn()?;
    let since = Instant::now();
    while get(&address, "/livez").await.is_err() {
        ensure!(since.elapsed() < WITHIN, "the dashboard did not start");
        sleep(Duration::from_millis(50)).await;
    }
    let mut taken = vec![Vec::new(); PAGES.len()];
    for round in 0..if plan.quick { 3 } else { ROUNDS } {
        sleep(PAUSE).await;
        for (page, taken) in PAGES.iter().zip(&mut taken) {
            let since = Instant::now();
            get(&address, page).await.with_context(|| format!("ask for {page}"))?;
            // The first round finds cold connections and plans.
            if round > 0 {
                taken.push(since.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let mut slow = 0;
    for (page, taken) in PAGES.iter().zip(taken) {
        slow += u32::from(percentile(&taken, 0.5) > AIM_MS);
        values.add(format!("page {page}, p50"), "ms", percentile(&taken, 0.5));
        values.add(format!("page {page}, longest"), "ms", percentile(&taken, 1.0));
    }
    values.add(format!("pages whose median is above {AIM_MS:.0} ms"), "", f64::from(slow));
    Ok(())
}

/// Asks for a page, over a fresh connection.
async fn get(address: &str, path: &str) -> anyhow::Result<()> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = timeout(WITHIN, asked).await??;
    if !answer.starts_with("HTTP/1.1 200 ") {
        bail!("{}", answer.lines().next().unwrap_or_default());
    }
    Ok(())
}
