//! One job per tick: a cron expression in a time zone, and a policy for missed ticks.
//! `cargo run --features testing --example schedule`
//!
//! Runs on private servers, and ends by itself in seconds. It fails if a tick has two jobs, or none.

use std::{collections::BTreeSet, error::Error, time::Duration};

use chrono::{DateTime, Timelike, Utc};
use serde::{Deserialize, Serialize};
use tenure::{
    Job, JobContext, JobError, Outcome, Status, Tenure, Worker, WorkerBuilder,
    rows::JobFilter,
    schedules::{MissedTicks, Schedule},
    testing::TestTenure,
};

type Failure = Box<dyn Error + Send + Sync>;

// ANCHOR: put
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    format: String,
    /// The time of the tick, the same in every attempt; `None` for a job that was enqueued by hand.
    at: Option<DateTime<Utc>>,
}

impl Job for Report {
    const KIND: &'static str = "report";
    const QUEUE: &'static str = "reports";
}

/// A program puts its schedules whenever it starts; an identical schedule stays unchanged.
async fn put(tenure: &Tenure, hour: u32) -> Result<(), tenure::schedules::ScheduleError> {
    let report = |format: &str| Report { format: format.into(), at: None };
    let daily = Schedule::new("daily", format!("0 {hour} * * *"), report("pdf"))
        .time_zone("Europe/Berlin")
        .missed(MissedTicks::Once)
        .tick_field("at");
    tenure.put_schedule(daily).await?;
    // Six fields: the first is for seconds.
    let live =
        Schedule::new("live", "* * * * * *", report("html")).missed(MissedTicks::Skip).tick_field("at");
    tenure.put_schedule(live).await?;
    Ok(())
}
// ANCHOR_END: put

async fn report(job: Report, _ctx: JobContext) -> Result<Outcome, JobError> {
    let at = job.at.ok_or("no tick enqueued this report")?;
    Outcome::done(format!("the {} of {at}", job.format))
}

fn worker(tenure: &Tenure) -> WorkerBuilder {
    Worker::builder(tenure).handle(report)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let test = TestTenure::start().await;
    // Half a day away, so that no daily tick is due while this runs.
    let hour = (Utc::now().hour() + 12) % 24;
    put(&test, hour).await?;
    put(&test, hour).await?;
    assert_eq!(test.schedules().await?.len(), 2, "each schedule exists once");

    // Two workers see the same ticks; each tick has one job.
    let stop = || tokio::time::sleep(Duration::from_millis(3_500));
    let (one, other) = tokio::join!(worker(&test).run_until(stop()), worker(&test).run_until(stop()));
    one?;
    other?;
    test.pause_schedule("live").await?;
    // The last tick's job may still have to run.
    test.drain(worker(&test)).await;
    let jobs = test.jobs(&JobFilter::new().kind(Report::KIND), 100).await?;
    assert!(jobs.iter().all(|job| job.status == Status::Completed), "{jobs:?}");
    let ticks: BTreeSet<_> =
        jobs.iter().filter_map(|job| Some(job.payload.as_ref()?["at"].to_string())).collect();
    assert!(jobs.len() >= 2, "{} ticks in three seconds", jobs.len());
    assert_eq!(ticks.len(), jobs.len(), "a tick has two jobs: {jobs:?}");
    println!("{} ticks, one job each", jobs.len());

    // Two days without a worker: `Once` makes up for the latest missed tick only.
    test.advance(Duration::from_secs(2 * 24 * 3_600)).await;
    let ended = test.drain(worker(&test)).await;
    assert_eq!(ended.len(), 1, "{ended:?}");
    println!("after two days: {}", ended[0].output.clone().unwrap_or_default());
    Ok(())
}
