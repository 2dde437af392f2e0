//! A Postgres whose clock steps by an hour, back and forth, under a fleet that uses each kind of stored time.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tenure::{
    Backoff, JobContext, JobError, JobId, JobRequest, KindOptions, Outcome, Worker, groups::Signalled,
    lanes::Lanes, redrives::CalmRedrive, rows::DeadFilter, schedules::Schedule,
};
use uuid::Uuid;

use crate::harness::{Bench, Running, bench_with_servers, run_folder};

/// Debian's package `faketime`; elsewhere `TENURE_FAKETIME` names the library.
fn library() -> String {
    std::env::var("TENURE_FAKETIME").unwrap_or_else(|_| {
        let folder = format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH);
        assert!(
            std::path::Path::new(&folder).exists(),
            "libfaketime was not found: apt-get install faketime"
        );
        folder
    })
}

/// The clock of one Postgres.
struct Clock(PathBuf);

impl Clock {
    /// How far it is from the machine's.
    fn step(&self, to: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, to).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

async fn handle(payload: Value, ctx: JobContext) -> Result<Outcome, JobError> {
    match payload.as_str().unwrap_or_default() {
        "retries" if ctx.attempt() == 1 => return Err(JobError::msg("once")),
        "snoozes" if ctx.token() == 1 => return Ok(Outcome::Snooze(Duration::from_secs(3))),
        "sleeps" => ctx.sleep("nap", Duration::from_secs(3)).await?,
        "waits" => drop(ctx.event::<Value>("go").await?),
        _ => {}
    }
    Outcome::done(())
}

/// A job of each kind, in the middle of its wait.
async fn wave(bench: &Bench, n: usize) -> (JobId, Vec<JobId>) {
    let mut ids = Vec::new();
    for (queue, what) in [
        ("q", "retries"),
        ("q", "snoozes"),
        ("q", "sleeps"),
        ("lanes", "retries"),
        ("lanes", "sleeps"),
        ("lanes", "plain"),
        ("lanes", "plain"),
        ("ordered", "retries"),
        ("ordered", "plain"),
        ("rated", "plain"),
        ("rated", "plain"),
        ("rated", "plain"),
        ("rated", "plain"),
    ] {
        let job = JobRequest::new(queue, "k", json!(what)).max_attempts(3);
        ids.push(bench.tenure.enqueue(if queue == "q" { job } else { job.lane("a") }).await.unwrap().id);
    }
    let waits = bench.tenure.enqueue(JobRequest::new("q", "k", json!("waits"))).await.unwrap().id;
    ids.push(waits);
    bench
        .execute(
            "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
                    scheduled_at, died_at, dispatch, last_error, category, execution_history)
             SELECT tenure.id_of_time(clock_timestamp() + n * interval '1 ms'), 'q', 'k', '\"dead\"', 0, 5, 0, now(), now(),
                    now(), 0, 'once', 'exhausted', '[]' FROM generate_series(1, 10) n",
        )
        .await;
    let calm = CalmRedrive::new().canary(2).then_rate(4, Duration::from_secs(1));
    bench.tenure.redrive_calmly(&DeadFilter::new(), calm).await.unwrap().unwrap();
    // Each of them has run once, but for the ordered one's successor and those for which a rate has no room yet.
    let ended = "tenure.job_executions_all WHERE finished_at IS NOT NULL AND job_id = ANY";
    let first = [ids[0], ids[1], ids[2], ids[3], ids[4], ids[7], waits].map(|id| format!("'{id}'")).join(",");
    bench.until(&format!("(SELECT count(DISTINCT job_id) FROM {ended} (ARRAY[{first}]::uuid[])) = 7")).await;
    eprintln!("wave {n} waits");
    (waits, ids)
}

/// The number of the last message that was published.
async fn last(bench: &Bench) -> u64 {
    let mut stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    stream.info().await.unwrap().state.last_sequence
}

/// The steps of the clock: an hour back, to the right time, an hour ahead, and to the right time.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_and_forth_stops_nothing_and_storms_nowhere() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(5);
        config.timing.ack_wait = Duration::from_secs(10);
        config.timing.scan_every = Duration::from_secs(1);
    })
    .await;
    let clock = Clock(run_folder().join("clock"));
    clock.step("+0");
    let own = bench.own.as_mut().unwrap();
    own.postgres.stop();
    let file = clock.0.display().to_string();
    let environment = [
        ("LD_PRELOAD", &*library()),
        ("FAKETIME_TIMESTAMP_FILE", &*file),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    own.postgres.restart_with(&environment).unwrap();
    bench.tenure.setup(&["q", "lanes", "ordered", "rated"].map(str::to_owned)).await.unwrap();
    bench.tenure.put_lanes("lanes", Lanes::new().running(1)).await.unwrap();
    bench.tenure.put_lanes("ordered", Lanes::new().ordered()).await.unwrap();
    bench.tenure.put_lanes("rated", Lanes::new().rate(1, Duration::from_secs(1)).burst(1)).await.unwrap();
    let ticks = Schedule::new("ticks", "* * * * * *", JobRequest::new("q", "tick", json!("tick")));
    bench.tenure.put_schedule(ticks).await.unwrap();
    let pause = Backoff { first: Duration::from_secs(3), ..Backoff::DEFAULT };
    let workers = [(); 2].map(|()| {
        let worker = Worker::builder(&bench.tenure).handle_any(KindOptions::new().backoff(pause), handle);
        Running::start(
            ["q", "lanes", "ordered", "rated"].into_iter().fold(worker, |of, queue| of.concurrency(queue, 5)),
        )
    });
    let first = last(&bench).await;
    for (n, offset) in ["-3600", "+0", "+3600", "+0"].iter().enumerate() {
        let (waits, mut ids) = wave(&bench, n).await;
        let ticked = bench.count("tenure.all_jobs WHERE kind = 'tick'").await;
        clock.step(offset);
        let began = std::time::Instant::now();
        assert_eq!(bench.tenure.signal(waits, "go", &json!(null)).await.unwrap(), Signalled::Delivered);
        // What is asked for now counts by the clock of now.
        let late = "SELECT tenure.enqueue('unserved', 'k', not_after => clock_timestamp() + interval '2 s')";
        let late: Uuid = bench.value(late).await;
        let delayed: Uuid = bench.value("SELECT tenure.enqueue('q', 'k', '\"plain\"', delay => '2 s')").await;
        ids.push(JobId(delayed));
        for id in ids {
            let ended =
                format!("EXISTS (SELECT FROM tenure.job_history WHERE id = '{id}' AND status = 'completed')");
            bench.until_within(&ended, Duration::from_secs(40)).await;
        }
        let dead = format!("tenure.dead_letter_jobs WHERE id = '{late}' AND category = 'expired'");
        bench.until(&format!("EXISTS (SELECT FROM {dead})")).await;
        // No worker serves its queue, so the next redrive must not take it.
        bench.execute(&format!("DELETE FROM {dead}")).await;
        bench.until("NOT EXISTS (SELECT FROM tenure.redrives WHERE ended_at IS NULL)").await;
        bench
            .until(&format!("(SELECT count(*) FROM tenure.all_jobs WHERE kind = 'tick') > {ticked} + 3"))
            .await;
        eprintln!("{offset}: all has gone on within {:?}", began.elapsed());
    }
    let published = i64::try_from(last(&bench).await - first).unwrap();
    let jobs = bench.count("tenure.all_jobs").await;
    assert!(published < 4 * jobs, "{published} messages of {jobs} jobs: some are published again and again");
    let resets = bench.text("SELECT * FROM tenure.recovery_events WHERE event = 'reset'").await;
    assert_eq!(resets, "", "no owner loses its job");
    for worker in workers {
        worker.stop().await;
    }
}
