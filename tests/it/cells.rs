//! Several cells: routes, moves that die, a cell that is killed.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::{
    EnqueueError, JobContext, JobId, JobRequest, KindOptions, Worker,
    cells::{Cells, CellsError, Layout, MoveError},
    doctor::DoctorOptions,
    queues::{QueueEvents, QueueLimits},
    schedules::Schedule,
};
use tokio::{sync::oneshot, time::sleep};

use crate::harness::{Bench, Child, bench_with, bench_with_servers, run_folder};

/// Two cells on the shared servers, `main` with all queues and `eu` with those that end with `-eu`.
async fn two() -> (Bench, Bench, Layout, PathBuf) {
    let quick = |config: &mut tenure::Config| config.timing.renew_every = Duration::from_millis(500);
    let (main, eu) = (bench_with(quick).await, bench_with(quick).await);
    let layout = Layout::new().cell("main", main.config.clone(), ["*"]).unwrap();
    let layout = layout.cell("eu", eu.config.clone(), ["*-eu"]).unwrap();
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    (main, eu, layout, file)
}

/// [`two`], and a third one, `asia`, with the queues that end with `-asia`.
async fn three() -> (Bench, Bench, Bench, Layout, PathBuf) {
    let (main, eu, layout, _) = two().await;
    let asia = bench_with(|config| config.timing.renew_every = Duration::from_millis(500)).await;
    let layout = layout.cell("asia", asia.config.clone(), ["*-asia"]).unwrap();
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu"), ("asia", &asia, "*-asia")]);
    (main, eu, asia, layout, file)
}

/// Writes the file of these cells, each with its queues.
pub fn write(cells: &[(&str, &Bench, &str)]) -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let file = run_folder().join(format!("cells-{}.toml", NEXT.fetch_add(1, Ordering::Relaxed)));
    let mut text = String::new();
    for (name, bench, queues) in cells {
        text += &format!(
            "[cells.{name}]\ndatabase_url = {:?}\nnats_url = {:?}\nstream = {:?}\nsubject_prefix = {:?}\nqueues = [{queues:?}]\n",
            bench.config.database_url,
            bench.config.nats_url,
            bench.config.stream,
            bench.config.subject_prefix
        );
    }
    std::fs::write(&file, text).unwrap();
    file
}

/// Runs the program in these cells: its exit code, output and messages.
async fn tenure(bench: &Bench, file: &PathBuf, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = bench.program(arguments).env("TENURE_CELLS", file).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A producer that enqueues, in turn, a new key and an old one until it is told to stop. Returns the answers by key.
fn produce(
    cells: &Cells,
    queue: &'static str,
    stop: Arc<AtomicBool>,
) -> tokio::task::JoinHandle<HashMap<String, Vec<(JobId, bool)>>> {
    let cells = cells.clone();
    tokio::spawn(async move {
        let mut answers: HashMap<String, Vec<(JobId, bool)>> = HashMap::new();
        let mut n: u64 = 0;
        while !stop.load(Ordering::Relaxed) {
            let key = format!("key-{}", if n.is_multiple_of(2) { n } else { n / 2 * 7_919 % n });
            n += 1;
            let job = JobRequest::new(queue, "count", json!(key)).unique_key(&key);
            let enqueued = cells.enqueue(job).await.unwrap_or_else(|error| panic!("{error:?}"));
            answers.entry(key).or_default().push((enqueued.id, enqueued.duplicate));
        }
        answers
    })
}

/// A queue is moved while producers enqueue and workers run; the mover is killed after this step, and runs again.
async fn move_killed(point: &str) {
    let (main, eu, layout, file) = two().await;
    let cells = Cells::connect(&layout).await.unwrap();
    main.tenure.limit_queue("q", QueueLimits::new().max_queued(1_000_000)).await.unwrap();
    let tick = JobRequest::new("q", "tick", json!(null));
    main.tenure.put_schedule(Schedule::new("nightly", "0 3 * * *", tick.clone())).await.unwrap();
    main.tenure.put_schedule(Schedule::new("paused", "0 3 * * *", tick)).await.unwrap();
    main.tenure.pause_schedule("paused").await.unwrap();
    let before = main.tenure.schedules().await.unwrap();

    let ran: Arc<Mutex<HashMap<JobId, u32>>> = Arc::default();
    let (stop_workers, stopped) = oneshot::channel::<()>();
    let workers = tokio::spawn({
        let (cells, ran) = (cells.clone(), ran.clone());
        async move {
            let describe = |tenure: &tenure::Tenure| {
                let ran = ran.clone();
                let count = move |_: Value, ctx: JobContext| {
                    *ran.lock().unwrap().entry(ctx.id()).or_default() += 1;
                    async {}
                };
                Worker::builder(tenure).handle_any(KindOptions::new(), count).concurrency("q", 50)
            };
            let stopped = async { drop(stopped.await) };
            cells.work(describe).run_until(stopped).await
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let old = Cells::connect(&layout).await.unwrap();
    let producers = [produce(&cells, "q", stop.clone()), produce(&old, "q", stop.clone())];
    main.until("(SELECT count(*) FROM tenure.job_keys WHERE scope = 'q') > 20").await;

    let mover = ["--output", "json", "queues", "move", "q", "--to", "eu"];
    let mut killed = main.program(&mover);
    killed.env("TENURE_CELLS", &file).env("TENURE_FAULT", format!("{point}=kill"));
    let killed = killed.output().await.unwrap();
    assert_eq!(killed.status.code(), None, "{point}: {}", String::from_utf8_lossy(&killed.stderr));
    sleep(Duration::from_millis(200)).await;
    let (code, out, err) = tenure(&main, &file, &mover).await;
    assert_eq!(code, Some(0), "{point}: {err}");
    let moved: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&moved["from"], &moved["to"]), (&json!("main"), &json!("eu")), "{point}");
    eu.until("(SELECT count(*) FROM tenure.all_jobs WHERE queue = 'q') > 20").await;
    stop.store(true, Ordering::Relaxed);

    let mut ids: HashMap<String, JobId> = HashMap::new();
    let mut created = 0;
    for answers in join_all(producers).await {
        for (key, answers) in answers.unwrap() {
            for (id, duplicate) in answers {
                assert_eq!(*ids.entry(key.clone()).or_insert(id), id, "{point}: {key} has two jobs");
                created += usize::from(!duplicate);
            }
        }
    }
    assert_eq!(created, ids.len(), "{point}: each key made one job");
    // A third move changes nothing: it was done.
    let (code, out, err) = tenure(&main, &file, &mover).await;
    assert_eq!(code, Some(0), "{point}: {err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["keys"], 0, "{point}");

    let all = |bench: &Bench| {
        let pool = bench.pool.clone();
        async move {
            let sql = "SELECT id FROM tenure.job_history WHERE status = 'completed'";
            sqlx::query_scalar::<_, JobId>(sql).fetch_all(&pool).await.unwrap()
        }
    };
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let (here, there) = (all(&main).await, all(&eu).await);
        if here.len() + there.len() == ids.len() {
            assert!(!here.is_empty() && !there.is_empty(), "{point}: each cell ran some");
            break;
        }
        assert!(Instant::now() < until, "{point}: {} and {} of {}", here.len(), there.len(), ids.len());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(ran.lock().unwrap().values().all(|runs| *runs == 1), "{point}: a job ran twice");
    // The schedules went along, as they were.
    assert!(main.tenure.schedules().await.unwrap().is_empty(), "{point}");
    let after = eu.tenure.schedules().await.unwrap();
    let of = |of: &[tenure::rows::ScheduleRow]| {
        of.iter().map(|of| (of.name.clone(), of.next_at, of.paused_at)).collect::<Vec<_>>()
    };
    assert_eq!(of(&after), of(&before), "{point}");
    let queues = eu.tenure.queues().await.unwrap();
    assert_eq!(queues.iter().find(|of| of.queue == "q").unwrap().max_queued, Some(1_000_000), "{point}");
    // Nothing is left in the way of the new cell's enqueues.
    assert_eq!(eu.count("pg_trigger WHERE tgname LIKE 'mark_%'").await, 0, "{point}");
    stop_workers.send(()).unwrap();
    workers.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_dies_after_any_step_is_repeated_and_loses_or_doubles_nothing() {
    for points in [
        ["move: arriving", "move: keys", "move: moved"],
        ["move: late keys", "move: settings", "move: schedule"],
        ["move: schedules", "move: open", "move: done"],
    ] {
        join_all(points.map(move_killed)).await;
    }
}

/// A transaction that has enqueued a job and has not ended: the move waits for it, and takes its key along.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_open_transactions_and_an_old_snapshot_meets_the_mark() {
    let (main, eu, layout, _) = two().await;
    let cells = Cells::connect(&layout).await.unwrap();
    let job = |key: &str| JobRequest::new("q", "k", json!(1)).unique_key(key);
    // Its snapshot is from before the move.
    let mut late = main.pool.begin().await.unwrap();
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *late).await.unwrap();
    sqlx::query("SELECT count(*) FROM tenure.queues").execute(&mut *late).await.unwrap();
    let mut open = main.pool.begin().await.unwrap();
    let first = main.tenure.enqueue(job("a")).tx(&mut open).await.unwrap();
    let mover = tokio::spawn({
        let cells = cells.clone();
        async move { cells.move_queue("q", None, "eu").await }
    });
    sleep(Duration::from_secs(1)).await;
    assert!(!mover.is_finished());
    // Others do not wait behind the move for long.
    let began = Instant::now();
    main.tenure.enqueue(JobRequest::new("other", "k", json!(1))).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    open.commit().await.unwrap();
    let moved = mover.await.unwrap().unwrap();
    assert_eq!((moved.keys, moved.live), (1, 1));
    let again = cells.enqueue(job("a")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (first.id, true));
    let refused = main.tenure.enqueue(job("b")).tx(&mut late).await.unwrap_err();
    assert!(matches!(&refused, EnqueueError::Moved { cell, .. } if cell == "eu"), "{refused}");
    late.rollback().await.unwrap();
    // One caller's moved queue is no other caller's error, though one statement had both.
    let both = join_all((0..50).map(|n| {
        let queue = if n % 2 == 0 { "q" } else { "other" };
        let main = main.tenure.clone();
        async move { (n, main.enqueue(JobRequest::new(queue, "k", json!(1))).await) }
    }));
    for (n, answer) in both.await {
        assert_eq!(answer.is_err(), n % 2 == 0, "{n}: {answer:?}");
    }
    let many = [JobRequest::new("q", "k", json!(1)), JobRequest::new("other", "k", json!(1))];
    let apart = cells.enqueue_many(many).await.unwrap_err();
    assert!(matches!(apart, CellsError::Apart { .. }), "{apart}");
    // A submission stands in the old cell's stream, and runs there.
    let worker = crate::harness::Running::start(
        Worker::builder(&main.tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2),
    );
    main.tenure.setup(&["q".into()]).await.unwrap();
    main.publish("q.k", "{}").await;
    main.until_count("tenure.job_history WHERE queue = 'q'", 2).await;
    worker.stop().await;
    // A dead letter is redriven where it died, also one that never had an attempt.
    main.execute(
        "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
                scheduled_at, died_at, last_error, category, execution_history)
         SELECT tenure.id_of_time(now() + n * interval '1 ms'), 'q', 'k', '1', 5 * n, 5, 5 * n, now(), now(), now(), 'no',
                'exhausted', '[]' FROM generate_series(0, 1) n",
    )
    .await;
    assert_eq!(main.tenure.redrive_all(&tenure::rows::DeadFilter::new().queue("q")).await.unwrap(), 2);
    // And back again: the new jobs' keys come along.
    let second = cells.enqueue(job("c")).await.unwrap();
    assert_eq!(eu.count("tenure.jobs WHERE queue = 'q'").await, 1);
    let back = cells.move_queue("q", None, "main").await.unwrap();
    assert_eq!((back.from.as_str(), back.keys), ("eu", 1));
    let again = cells.enqueue(job("c")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (second.id, true));
    let new = cells.enqueue(job("d")).await.unwrap();
    assert!(main.tenure.job(new.id).await.unwrap().is_some());
    let same = cells.move_queue("q", None, "main").await.unwrap_err();
    assert!(matches!(same, MoveError::Same { .. }), "{same}");
    // A key whose job is in another cell is no lost job.
    for tenure in [&main.tenure, &eu.tenure] {
        for rule in tenure.verify().await.unwrap() {
            assert!(rule.rule != "is_not_lost" || rule.jobs == 0, "{rule:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_new_cell_has_jobs_of_its_own_is_not_moved() {
    let (main, eu, layout, file) = two().await;
    let cells = Cells::connect(&layout).await.unwrap();
    eu.tenure.enqueue(JobRequest::new("q", "k", json!(1)).unique_key("a")).await.unwrap();
    let error = cells.move_queue("q", None, "eu").await.unwrap_err();
    assert!(matches!(error, MoveError::InUse { live: 1, .. }), "{error}");
    // The programs of an operator who has changed the layout first still find every queue.
    main.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    let (code, _, err) = tenure(&main, &file, &["queues", "move", "q", "--to", "eu"]).await;
    assert!(code == Some(1) && err.contains("accepted jobs of queue \"q\" already (1 are live)"), "{err}");
    let (code, _, err) = tenure(&main, &file, &["queues", "move", "mail-eu", "--to", "eu"]).await;
    assert!(code == Some(1) && err.contains("is in cell \"eu\" already"), "{err}");
    let (code, _, err) = tenure(&main, &file, &["queues", "move", "q", "--to", "asia"]).await;
    assert!(code == Some(1) && err.contains("no cell \"asia\"; the layout has: main, eu"), "{err}");
}

/// Commands find the cell of a queue or a job; lists show every cell; the rest needs `--cell`.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_routes_by_queue_and_id_and_lists_every_cell() {
    let (main, eu, _, file) = two().await;
    let run = async |arguments: &[&str]| tenure(&main, &file, arguments).await;
    let mut ids = vec![];
    for queue in ["mail", "mail-eu"] {
        let (code, out, err) = run(&["enqueue", queue, "send", "{}"]).await;
        assert_eq!(code, Some(0), "{err}");
        ids.push(out.trim().to_owned());
    }
    assert_eq!(main.count("tenure.jobs WHERE queue = 'mail'").await, 1);
    assert_eq!(eu.count("tenure.jobs WHERE queue = 'mail-eu'").await, 1);
    for id in &ids {
        let (code, out, err) = run(&["jobs", "show", id]).await;
        assert!(code == Some(0) && out.contains(id.as_str()), "{err}");
    }
    let (code, out, _) = run(&["jobs", "list"]).await;
    assert_eq!(code, Some(0));
    let (at_main, at_eu) = (out.find("cell main:").unwrap(), out.find("cell eu:").unwrap());
    assert!(out[at_main..at_eu].contains(&ids[0]) && out[at_eu..].contains(&ids[1]), "{out}");
    let (_, out, _) = run(&["--cell", "eu", "--output", "json", "jobs", "list"]).await;
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(listed[0]["id"], ids[1].as_str());
    let (code, _, err) = run(&["--output", "json", "jobs", "list"]).await;
    assert!(code == Some(2) && err.contains("--cell: main, eu"), "{err}");
    let (code, _, err) = run(&["--cell", "asia", "jobs", "list"]).await;
    assert!(code == Some(2) && err.contains("no cell \"asia\""), "{err}");
    let (code, _, err) = run(&["queues", "pause", "mail-eu"]).await;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(eu.count("tenure.queues WHERE paused_at IS NOT NULL").await, 1);
    let (code, _, err) = run(&["queues", "pause", "mail", "mail-eu"]).await;
    assert!(code == Some(2) && err.contains("several cells"), "{err}");
    // A cell that is away does not hide the other.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen(&main.config.database_url, "postgres://u@127.0.0.1:1/d", 1)).unwrap();
    let (code, out, err) = run(&["jobs", "list"]).await;
    assert!(code == Some(1) && out.contains(&ids[1]) && err.contains("cell main"), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_of_cells_is_refused_with_the_place_and_what_to_write() {
    let (main, eu, _, file) = two().await;
    let good = std::fs::read_to_string(&file).unwrap();
    let stream = format!("stream = {:?}\n", eu.config.stream);
    for (text, said) in [
        (String::new(), "it lists no cell"),
        (format!("default = \"asia\"\n{good}"), "the default names cell \"asia\""),
        (format!("{good}listen = \"127.0.0.1:1\"\n"), "belongs to the whole process"),
        (format!("{good}sream = \"X\"\n"), "did you mean stream?"),
        (good.replace("[\"*-eu\"]", "\"*-eu\""), "a list of names and patterns"),
        (good.replace("[\"*-eu\"]", "[\"*\"]"), "both have \"*\""),
        (good.replace(&stream, &format!("stream = {:?}\n", main.config.stream)), "the same stream"),
        (good.replace("cells.eu", "cell.eu"), "[cells.NAME]"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let (code, _, err) = tenure(&main, &file, &["jobs", "list"]).await;
        assert!(code == Some(2) && err.contains(said), "{said}: {err}");
    }
    std::fs::remove_file(&file).unwrap();
    let (code, _, err) = tenure(&main, &file, &["jobs", "list"]).await;
    assert!(code == Some(2) && err.contains("must be a file that can be read"), "{err}");
}

/// Both servers of one cell are killed: the other cell's jobs go on as before, and the killed cell's once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_cell_stops_its_own_queues_only() {
    let quick = |config: &mut tenure::Config| config.timing.renew_every = Duration::from_millis(500);
    let (main, mut eu) = tokio::join!(bench_with_servers(quick), bench_with_servers(quick));
    let layout = Layout::new().cell("main", main.config.clone(), ["*"]).unwrap();
    let layout = layout.cell("eu", eu.config.clone(), ["*-eu"]).unwrap();
    let cells = Cells::connect(&layout).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let describe = |tenure: &tenure::Tenure| {
        let worker = Worker::builder(tenure).handle_any(KindOptions::new(), |_, _| async {});
        worker.concurrency("mail", 10).concurrency("mail-eu", 10)
    };
    let worker = cells.work(describe);
    let health = worker.health();
    let worker = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    // How long each of some jobs takes from the call to its end.
    let round = async |queue: &'static str, jobs: u32| {
        let mut took = vec![];
        for _ in 0..jobs {
            let began = Instant::now();
            let id = cells.enqueue(JobRequest::new(queue, "k", json!(1))).await.unwrap().id;
            let tenure = cells.of(queue).unwrap().tenure();
            tenure.wait(id, Duration::from_secs(20)).await.unwrap();
            took.push(began.elapsed());
        }
        took.sort();
        took
    };
    round("mail", 5).await;
    round("mail-eu", 5).await;
    let before = round("mail", 100).await;

    let servers = eu.own.as_ref().unwrap();
    let pids = [servers.postgres.pid().unwrap(), servers.nats.pid().unwrap()];
    for pid in pids {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
    let meanwhile = round("mail", 100).await;
    println!("a job's way: median {:?} before, {:?} while the other cell is dead", before[50], meanwhile[50]);
    assert!(
        meanwhile[50] < before[50] * 3 + Duration::from_millis(20),
        "{:?} {:?}",
        before[50],
        meanwhile[50]
    );
    assert!(meanwhile[99] < Duration::from_secs(2), "{meanwhile:?}");
    let refused = cells.enqueue(JobRequest::new("mail-eu", "k", json!(1))).await.unwrap_err();
    assert!(matches!(&refused, CellsError::Enqueue { cell, .. } if cell == "eu"), "{refused:?}");
    assert!(health.ready().is_ok(), "{:?}", health.ready());
    assert!(!worker.is_finished());
    let own = eu.own.as_mut().unwrap();
    own.postgres.restart().unwrap();
    own.nats.restart().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while cells.enqueue(JobRequest::new("mail-eu", "k", json!(1))).await.is_err() {
        assert!(Instant::now() < until, "the cell is back, and takes no job");
        sleep(Duration::from_millis(100)).await;
    }
    round("mail-eu", 5).await;
    stop.send(()).unwrap();
    worker.await.unwrap().unwrap();
}

/// A mover that died: no other move begins, and the queue goes on to the new cell or back to the old one.
#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_move_is_undone_or_finished_and_no_other_begins() {
    for (point, is_closed) in [("move: keys", false), ("move: late keys", true), ("move: schedules", true)] {
        let (main, eu, asia, layout, file) = three().await;
        let cells = Cells::connect(&layout).await.unwrap();
        let job = |key: &str| JobRequest::new("q", "k", json!(1)).unique_key(key);
        let first = cells.enqueue(job("a")).await.unwrap();
        main.tenure.limit_queue("q", QueueLimits::new().max_running(7)).await.unwrap();
        main.tenure
            .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
            .await
            .unwrap();
        let mut killed = main.program(&["queues", "move", "q", "--to", "eu"]);
        killed.env("TENURE_CELLS", &file).env("TENURE_FAULT", format!("{point}=kill"));
        assert_eq!(killed.output().await.unwrap().status.code(), None, "{point}");
        let refused = main.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await;
        assert_eq!(refused.is_err(), is_closed, "{point}: {refused:?}");
        for (from, to) in [(None, "asia"), (Some("main"), "asia"), (Some("eu"), "asia")] {
            let error = cells.move_queue("q", from, to).await.unwrap_err();
            let is_refused = matches!(error, MoveError::Unfinished { .. } | MoveError::Left { .. });
            assert!(is_refused, "{point}: {from:?} to {to}: {error}");
        }
        let doctor = eu.tenure.doctor(&DoctorOptions::default()).await;
        let said = doctor.iter().find(|check| check.found.contains("about to arrive from cell main"));
        assert!(
            said.is_some_and(|check| check.to_do.as_ref().unwrap().contains("--from main")),
            "{doctor:?}"
        );
        // Back: as if it had never begun.
        let undone = cells.move_queue("q", Some("eu"), "main").await.unwrap();
        assert_eq!((undone.from.as_str(), undone.to.as_str()), ("eu", "main"), "{point}");
        let again = main.tenure.enqueue(job("a")).await.unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true), "{point}");
        main.tenure.enqueue(job("b")).await.unwrap();
        assert_eq!(main.tenure.schedules().await.unwrap().len(), 1, "{point}");
        assert!(eu.tenure.schedules().await.unwrap().is_empty(), "{point}");
        let row = main.tenure.queues().await.unwrap().into_iter().find(|of| of.queue == "q").unwrap();
        assert_eq!((row.max_running, row.moved_to, row.arrives_from), (Some(7), None, None), "{point}");
        // And now to the third cell, and on to the second.
        let moved = cells.move_queue("q", None, "asia").await.unwrap();
        assert_eq!((moved.from.as_str(), moved.schedules.len()), ("main", 1), "{point}");
        let moved = cells.move_queue("q", None, "eu").await.unwrap();
        assert_eq!((moved.from.as_str(), moved.schedules.len()), ("asia", 1), "{point}");
        let again = cells.enqueue(job("a")).await.unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true), "{point}");
        assert!(eu.tenure.job(cells.enqueue(job("d")).await.unwrap().id).await.unwrap().is_some(), "{point}");
        // Back to one that it had left on the way to another.
        let moved = cells.move_queue("q", None, "asia").await.unwrap();
        assert_eq!((moved.from.as_str(), moved.schedules.len()), ("eu", 1), "{point}");
        assert!(
            asia.tenure.job(cells.enqueue(job("e")).await.unwrap().id).await.unwrap().is_some(),
            "{point}"
        );
        for bench in [&main, &eu] {
            assert!(bench.tenure.enqueue(job("f")).await.is_err(), "{point}");
        }
    }
}

/// A mover is stopped in the middle; an operator moves the queue back; then the mover goes on.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_movers_one_gets_to_the_end_and_a_frozen_one_takes_nothing() {
    join_all(["move: keys", "move: late keys", "move: schedule", "move: schedules"].map(frozen_at)).await;
}

async fn frozen_at(point: &str) {
    let (main, eu, layout, file) = two().await;
    let cells = Cells::connect(&layout).await.unwrap();
    main.tenure
        .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
        .await
        .unwrap();
    let mut frozen = main.program(&["queues", "move", "q", "--to", "eu"]);
    frozen.env("TENURE_CELLS", &file).env("TENURE_FAULT", format!("{point}=stop"));
    let mut frozen = Child::spawn(frozen, "mover");
    let stat = format!("/proc/{}/stat", frozen.pid());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        sleep(Duration::from_millis(10)).await;
    }
    cells.move_queue("q", Some("eu"), "main").await.unwrap();
    frozen.signal(Signal::CONT);
    assert_eq!(frozen.wait().await, Some(1), "{point}: {}", frozen.log());
    assert!(frozen.log().contains("another move of queue \"q\" is under way"), "{}", frozen.log());
    assert_eq!(main.tenure.schedules().await.unwrap().len(), 1, "{point}");
    assert!(eu.tenure.schedules().await.unwrap().is_empty(), "{point}");
    main.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    // Several at once: one queue, one cell.
    let movers = join_all((0..4).map(|_| cells.move_queue("q", None, "eu"))).await;
    assert!(movers.iter().any(Result::is_ok), "{movers:?}");
    assert!(main.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.is_err());
    eu.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await.unwrap();
    assert_eq!(eu.tenure.schedules().await.unwrap().len(), 1);
}

/// A program with an old file, whose old cell is full: it finds the new one. Commands find both cells.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_old_cell_hides_no_move_and_a_pause_reaches_both_cells() {
    let (main, eu, layout, file) = two().await;
    let cells = Cells::connect(&layout).await.unwrap();
    let job = || JobRequest::new("q", "k", json!(1));
    main.tenure.enqueue(job()).await.unwrap();
    cells.move_queue("q", None, "eu").await.unwrap();
    main.tenure.limit_queue("q", QueueLimits::new().max_queued(1)).await.unwrap();
    Cells::connect(&layout).await.unwrap().enqueue(job()).await.unwrap();
    assert_eq!(eu.count("tenure.jobs").await, 1);
    let (code, out, err) = tenure(&main, &file, &["queues", "pause", "q"]).await;
    assert!(code == Some(0) && out.contains("cell eu:") && out.contains("cell main:"), "{out}{err}");
    for bench in [&main, &eu] {
        assert_eq!(bench.count("tenure.queues WHERE paused_at IS NOT NULL").await, 1);
    }
    let (_, out, _) = tenure(&main, &file, &["--cell", "main", "queues", "list"]).await;
    assert!(out.contains("moved to cell eu"), "{out}");
    let put = main.tenure.put_schedule(Schedule::new("s", "0 3 * * *", job())).await.unwrap_err();
    assert!(put.to_string().contains("has moved to cell \"eu\""), "{put}");
    let (code, _, err) = tenure(&main, &file, &["--cell", "eu", "queues", "move", "q", "--to", "main"]).await;
    assert!(code == Some(2) && err.contains("--from and --to"), "{err}");
    let (code, _, err) = tenure(&main, &file, &["work", "bad name", "--exec", "true"]).await;
    assert!(code == Some(2) && err.contains("bad name"), "{err}");
    // The holder of a key is found where it is.
    let enqueue = ["enqueue", "old", "k", "1", "--unique-key", "x"];
    let (_, id, _) = tenure(&main, &file, &enqueue).await;
    cells.move_queue("old", None, "eu").await.unwrap();
    main.tenure.cancel(id.trim().parse().unwrap()).await.unwrap();
    let (code, _, err) = tenure(&main, &file, &[&enqueue[..], &["--wait"]].concat()).await;
    assert!(code == Some(1) && err.contains("cancelled"), "{err}");
}

/// A move back that dies is finished or undone, with all settings; and no old command opens a queue twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_back_that_dies_is_finished_or_undone_and_an_old_command_opens_nothing() {
    // The step at which the move back dies, those at which the next moves die, and where the queue is at the end.
    for (first, then, to) in [
        ("move: late keys", vec![("main", "move: settings"); 2], "main"),
        ("move: late keys", vec![("eu", "move: late keys"); 2], "eu"),
        ("move: moved", vec![("eu", "move: arriving")], "main"),
        ("move: moved", vec![("eu", "move: moved"), ("main", "move: keys")], "eu"),
        ("move: keys", vec![], "eu"),
        ("move: arriving", vec![("eu", "move: done")], "eu"),
    ] {
        let (main, eu, layout, file) = two().await;
        let cells = Cells::connect(&layout).await.unwrap();
        let job = |key: &str| JobRequest::new("q", "k", json!(1)).unique_key(key);
        main.tenure.limit_queue("q", QueueLimits::new().max_running(7)).await.unwrap();
        cells.enqueue(job("a")).await.unwrap();
        cells.move_queue("q", None, "eu").await.unwrap();
        eu.tenure.limit_queue("q", QueueLimits::new().max_running(9)).await.unwrap();
        eu.tenure.set_events("q", QueueEvents::Ends).await.unwrap();
        cells.enqueue(job("b")).await.unwrap();
        let killed = async |to: &str, at: &str| {
            let mut killed = main.program(&["queues", "move", "q", "--to", to]);
            killed.env("TENURE_CELLS", &file).env("TENURE_FAULT", format!("{at}=kill"));
            assert_eq!(killed.output().await.unwrap().status.code(), None, "{first} {then:?} {to} {at}");
        };
        killed("main", first).await;
        let doctor = main.tenure.doctor(&DoctorOptions::default()).await;
        assert!(
            doctor.iter().any(|check| check.found.contains("about to come back from cell eu")),
            "{doctor:?}"
        );
        for (to, at) in &then {
            killed(to, at).await;
        }
        let others = if to == "eu" { "main" } else { "eu" };
        cells.move_queue("q", Some(others), to).await.unwrap();
        let (open, closed) = if to == "eu" { (&eu, &main) } else { (&main, &eu) };
        assert!(closed.tenure.enqueue(job("c")).await.is_err(), "{first} {then:?} {to}");
        for key in ["a", "b"] {
            assert!(open.tenure.enqueue(job(key)).await.unwrap().duplicate, "{first} {then:?} {to}: {key}");
        }
        let row = open.tenure.queues().await.unwrap().into_iter().find(|of| of.queue == "q").unwrap();
        let settings = (row.max_running, row.events);
        assert_eq!(settings, (Some(9), QueueEvents::Ends), "{first} {then:?} {to}");
        let doctor = main.tenure.doctor(&DoctorOptions::default()).await;
        assert!(
            !doctor.iter().any(|check| check.found.contains("about to")),
            "{first} {then:?} {to}: {doctor:?}"
        );
    }
    // main to eu to asia: the old command from main to eu must not open eu beside asia.
    let (main, eu, asia, layout, file) = three().await;
    let cells = Cells::connect(&layout).await.unwrap();
    cells.move_queue("q", None, "eu").await.unwrap();
    cells.move_queue("q", None, "asia").await.unwrap();
    for (from, to) in [("main", "eu"), ("main", "asia"), ("eu", "main")] {
        let error = cells.move_queue("q", Some(from), to).await.unwrap_err();
        assert!(matches!(error, MoveError::Left { .. }), "{from} to {to}: {error}");
    }
    for (bench, is_open) in [(&main, false), (&eu, false), (&asia, true)] {
        let enqueued = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await;
        assert_eq!(enqueued.is_ok(), is_open, "{enqueued:?}");
    }
    // And back to main, with a mover that dies: the way back is to asia, not to eu, which main names still.
    for (at, to) in [("move: keys", "asia"), ("move: late keys", "asia"), ("move: late keys", "main")] {
        asia.tenure
            .put_schedule(Schedule::new("s", "0 3 * * *", JobRequest::new("q", "k", json!(1))))
            .await
            .unwrap();
        let mut killed = main.program(&["queues", "move", "q", "--to", "main"]);
        killed.env("TENURE_CELLS", &file).env("TENURE_FAULT", format!("{at}=kill"));
        assert_eq!(killed.output().await.unwrap().status.code(), None, "{at}");
        let error = cells.move_queue("q", Some("main"), "eu").await.unwrap_err();
        assert!(matches!(&error, MoveError::Unfinished { from, .. } if from == "asia"), "{at}: {error}");
        let doctor = main.tenure.doctor(&DoctorOptions::default()).await;
        assert!(doctor.iter().any(|check| check.found.contains("come back from cell asia")), "{doctor:?}");
        let from = if to == "asia" { "main" } else { "asia" };
        cells.move_queue("q", Some(from), to).await.unwrap();
        for (name, bench) in [("main", &main), ("eu", &eu), ("asia", &asia)] {
            let enqueued = bench.tenure.enqueue(JobRequest::new("q", "k", json!(1))).await;
            assert_eq!(enqueued.is_ok(), name == to, "{at}, {name}: {enqueued:?}");
            assert_eq!(
                bench.tenure.schedules().await.unwrap().len(),
                usize::from(name == to),
                "{at}, {name}"
            );
        }
    }
}
