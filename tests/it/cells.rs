//! Several cells: routes, a queue that drains, a cell that is killed.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::{
    JobRequest, KindOptions, Worker,
    cells::{Cells, CellsError, Layout},
};
use tokio::{sync::oneshot, time::sleep};

use crate::harness::{Bench, bench_with, bench_with_servers, run_folder};

/// Two cells on the shared servers, `main` with all queues and `eu` with those that end with `-eu`.
async fn two() -> (Bench, Bench, Layout, PathBuf) {
    let quick = |config: &mut tenure::Config| config.timing.renew_every = Duration::from_millis(500);
    let (main, eu) = (bench_with(quick).await, bench_with(quick).await);
    let layout = Layout::new().cell("main", main.config.clone(), ["*"]).unwrap();
    let layout = layout.cell("eu", eu.config.clone(), ["*-eu"]).unwrap();
    let file = write(&[("main", &main, "*"), ("eu", &eu, "*-eu")]);
    (main, eu, layout, file)
}

/// Writes the file of these cells, each with its queues.
pub fn write(cells: &[(&str, &Bench, &str)]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
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
    let (code, _, err) = run(&["work", "bad name", "--exec", "true"]).await;
    assert!(code == Some(2) && err.contains("bad name"), "{err}");
    // A cell that is away does not hide the other.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen(&main.config.database_url, "postgres://u@127.0.0.1:1/d", 1)).unwrap();
    let (code, out, err) = run(&["jobs", "list"]).await;
    assert!(code == Some(1) && out.contains(&ids[1]) && err.contains("cell main"), "{out}{err}");
}

/// A queue changes its cell: a new layout sends its new jobs to the new cell, and a worker that still has the old one
/// works the old cell off.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_changes_its_cell_by_draining() {
    let (main, eu, layout, _) = two().await;
    let job = |key: &str| JobRequest::new("mail", "k", json!(1)).unique_key(key);
    let old = Cells::connect(&layout).await.unwrap();
    let waiting = old.enqueue(job("a")).await.unwrap().id;
    let changed = Layout::new().cell("main", main.config.clone(), ["*"]).unwrap();
    let changed = changed.cell("eu", eu.config.clone(), ["*-eu", "mail"]).unwrap();
    let new = Cells::connect(&changed).await.unwrap();
    let newer = new.enqueue(job("b")).await.unwrap().id;
    assert_eq!((main.count("tenure.jobs").await, eu.count("tenure.jobs").await), (1, 1));
    // The new cell knows no key of the old one, and a job is found wherever it is.
    assert!(!new.enqueue(job("a")).await.unwrap().duplicate);
    for (id, name) in [(waiting, "main"), (newer, "eu")] {
        assert_eq!(new.find(id).await.unwrap().unwrap().0.name(), name);
    }
    let apart = new.enqueue_many([job("c"), JobRequest::new("post", "k", json!(1))]).await.unwrap_err();
    assert!(matches!(apart, CellsError::Apart { .. }), "{apart}");
    let run = |cells: &Cells| {
        let (cells, (stop, stopped)) = (cells.clone(), oneshot::channel::<()>());
        let describe = |tenure: &tenure::Tenure| {
            Worker::builder(tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("mail", 2)
        };
        (
            stop,
            tokio::spawn(async move { cells.work(describe).run_until(async { drop(stopped.await) }).await }),
        )
    };
    // A worker with the new layout leaves the old cell's job alone.
    let (stop_new, worker_of_new) = run(&new);
    eu.until_count("tenure.job_history", 2).await;
    assert_eq!((main.count("tenure.jobs").await, main.count("tenure.workers").await), (1, 0));
    let (stop_old, worker_of_old) = run(&old);
    main.until_count("tenure.job_history", 1).await;
    let queues = main.tenure.queues().await.unwrap();
    let left = queues.iter().find(|of| of.queue == "mail").unwrap();
    assert_eq!((left.due, left.scheduled, left.held, left.processing, left.dead), (0, 0, 0, 0, 0));
    for (stop, worker) in [(stop_new, worker_of_new), (stop_old, worker_of_old)] {
        stop.send(()).unwrap();
        worker.await.unwrap().unwrap();
    }
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
