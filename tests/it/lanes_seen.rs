//! Lanes, as people and programs see them: the command line, doctor, the figures of the fleet.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use tenure::{
    JobContext, JobRequest, KindOptions, Worker,
    doctor::{CheckState, DoctorOptions},
    lanes::Lanes,
};

use crate::{
    cli_json::shapes,
    harness::{Bench, Running, bench},
};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn run(bench: &Bench, arguments: &str) -> Ran {
    let output = bench.program(&arguments.split(' ').collect::<Vec<_>>()).output().await.unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn read(bench: &Bench, arguments: &str) -> Value {
    let ran = run(bench, &format!("{arguments} --output json")).await;
    assert_eq!(ran.code, Some(0), "{arguments}: {}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

/// The keys are those of docs/cli.md, but for the optional ones.
#[track_caller]
fn is_as_documented(shape: &str, value: &Value) {
    let known: BTreeSet<_> = shapes()[shape]
        .iter()
        .filter(|(_, optional)| !**optional)
        .map(|(key, _)| (*key).to_owned())
        .collect();
    let keys: BTreeSet<_> = value.as_object().unwrap_or_else(|| panic!("{value}")).keys().cloned().collect();
    assert_eq!(keys, known, "{shape}");
}

/// A queue whose lane `org-7` runs two jobs of four; no worker runs.
async fn two_of_four() -> Bench {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(2)).await.unwrap();
    for n in 0..4 {
        bench.tenure.enqueue(JobRequest::new("q", "k", json!(n)).lane("org-7")).await.unwrap();
    }
    bench.until_count("tenure.lane_slots", 2).await;
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_sets_and_shows_lanes() {
    let bench = bench().await;
    let none = run(&bench, "queues lanes").await;
    assert_eq!(none.code, Some(0));
    assert!(none.err.contains("no queue has lanes"), "{}", none.err);
    let long = "x".repeat(257);
    for (arguments, code, words) in [
        ("queues lanes q".to_owned(), 1, "queue \"q\" has no lanes"),
        ("queues lanes q --lane a --weight 2".into(), 1, "queue \"q\" has no lanes"),
        ("queues lanes q --running 2".into(), 1, "add --create"),
        ("queues lanes q --running 0 --create".into(), 2, "running is 0, but must be 1 to 10000"),
        ("queues lanes q --rate 0/s --create".into(), 2, "rate is 0 in 1s, but must be at least 1 job"),
        ("queues lanes q --burst 3 --create".into(), 2, "burst is 3, but must be left out without a rate"),
        ("queues lanes q --ordered --running 2 --create".into(), 2, "1 or left out in ordered lanes"),
        ("queues lanes q --rate fast".into(), 2, "such as 10/s"),
        ("queues lanes q --none --running 2".into(), 2, "cannot be used with"),
        ("queues lanes --running 2".into(), 2, "<QUEUE>"),
        ("queues lanes a.b --running 2".into(), 2, "queue \"a.b\" is not valid"),
        (format!("queues lanes q --lane {long} --weight 2"), 2, "(257 bytes)"),
        ("queues lanes q --lane a --weight 0".into(), 2, "weight is 0, but must be 0.01 to 100"),
        (format!("enqueue q k 1 --lane {long}"), 2, "(257 bytes)"),
        ("enqueue q k 1 --priority 101".into(), 2, "priority is 101"),
        ("enqueue q k 1 --longest-wait 1m".into(), 2, "--replace"),
    ] {
        let ran = run(&bench, &arguments).await;
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments}: {}", ran.err);
    }
    assert_eq!(bench.count("tenure.lane_settings").await, 0);

    let set = run(&bench, "queues lanes q --running 2 --rate 100/min --burst 4 --turns --create").await;
    assert_eq!(set.code, Some(0), "{}", set.err);
    for words in ["running, each lane", "100/min, burst 4", "turns", "yes"] {
        assert!(set.out.contains(words), "no {words} in\n{}", set.out);
    }
    for n in 0..4 {
        assert_eq!(run(&bench, &format!("enqueue q k {n} --lane org-7 --priority 3")).await.code, Some(0));
    }
    bench.until_count("tenure.lane_slots", 2).await;
    let shown = read(&bench, "queues lanes q").await;
    is_as_documented("queue's lanes", &shown);
    is_as_documented("lane settings", &shown["settings"]);
    is_as_documented("lane", &shown["lanes"][0]);
    let of = &shown["settings"];
    assert_eq!([&of["running"], &of["held"], &of["released"]], [&json!(2); 3], "{shown}");
    let of = &shown["lanes"][0];
    assert_eq!([&of["slots"], &of["most"], &of["waiting"]], [&json!(2); 3], "{shown}");
    assert_eq!((&of["lane"], &of["running"]), (&json!("org-7"), &json!(0)));
    let table = run(&bench, "queues lanes q --limit 1").await.out;
    assert!(table.contains("org-7") && table.contains("2 of 2") && table.contains("a slot"), "{table}");
    assert_eq!(read(&bench, "queues lanes").await[0]["queue"], "q");

    let one = read(&bench, "queues lanes q --lane org-7 --running 5 --weight 2.5").await;
    is_as_documented("lane", &one);
    assert_eq!((&one["own_limit"], &one["weight"], &one["most"]), (&json!(5), &json!(2.5), &json!(5)));
    let again = read(&bench, "queues lanes q --lane org-7 --running none").await;
    assert_eq!((&again["own_limit"], &again["weight"]), (&Value::Null, &json!(2.5)));

    let removed = read(&bench, "queues lanes q --none").await;
    is_as_documented("removed lanes", &removed);
    assert_eq!(removed["removed"], true);
    assert_eq!(read(&bench, "queues lanes q --none").await["removed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_job_is_shown_with_what_it_waits_for_and_never_with_a_time_that_does_not_come() {
    let bench = two_of_four().await;
    let later = JobRequest::new("q", "k", json!("later")).lane("org-8").delay(Duration::from_secs(3_600));
    let later = bench.tenure.enqueue(later).await.unwrap().id;
    let held = read(&bench, "jobs list --status held").await;
    assert_eq!(held.as_array().unwrap().len(), 3, "{held}");
    assert_eq!(read(&bench, "jobs list --status scheduled").await, json!([]));
    assert_eq!(read(&bench, "jobs list --status retrying").await, json!([]));
    let of = &held[1];
    assert_eq!(
        (&of["is_held"], &of["lane"], &of["status"]),
        (&json!(true), &json!("org-7"), &json!("queued"))
    );
    let listed = run(&bench, "jobs list").await.out;
    assert_eq!(listed.matches("held").count(), 3, "{listed}");
    let id = of["id"].as_str().unwrap();
    let shown = run(&bench, &format!("jobs show {id}")).await.out;
    assert!(shown.contains("held") && shown.contains("lane org-7 runs 2 of 2"), "{shown}");
    let shown = read(&bench, &format!("jobs show {id}")).await;
    is_as_documented("held", &shown["held"]);
    assert_eq!((&shown["held"]["slots"], &shown["held"]["most"]), (&json!(2), &json!(2)));
    let later = read(&bench, &format!("jobs show {later}")).await;
    let says = later["held"]["says"].as_str().unwrap();
    assert!(says.starts_with("due in "), "{says}");

    let queues = read(&bench, "queues list").await;
    let of = &queues[0];
    let counts = ["due", "held", "held_due", "scheduled"].map(|name| of[name].as_i64().unwrap());
    assert_eq!((counts, &of["has_lanes"]), ([2, 3, 2, 0], &json!(true)), "{of}");
    bench.tenure.pause_queue("q").await.unwrap();
    let paused = read(&bench, &format!("jobs show {id}")).await;
    assert_eq!(paused["held"]["says"], "its queue is paused");
    for everything in ["jobs list", "queues list", "queues lanes q", &format!("jobs show {id}")] {
        for form in ["table", "json"] {
            let text = run(&bench, &format!("{everything} --output {form}")).await.out;
            assert!(!text.contains("9999-"), "{everything}: {text}");
        }
    }
    // A held job that is due cannot be made due; a later one can.
    let dry = read(&bench, "jobs cancel --queue q --dry-run").await;
    assert_eq!(dry["would_cancel"], 5);
    let cancelled = read(&bench, &format!("jobs cancel {id}")).await;
    assert_eq!(cancelled["result"], "cancelled");
    let ended = run(&bench, &format!("jobs show {id}")).await.out;
    assert!(ended.contains("cancelled") && !ended.contains("9999-"), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_takes_the_options_of_lanes_time_and_lasting_keys() {
    let bench = bench().await;
    let enqueue = async |options: &str| {
        let ran = run(&bench, &format!("enqueue q k {options} --output json")).await;
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.err);
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    let of = enqueue("1 --lane a --priority -3 --not-after 2036-01-01T00:00:00Z --on-expiry cancel").await;
    let row = format!(
        "SELECT lane, priority, not_after, expires_as FROM tenure.jobs WHERE id = '{}'",
        of["id"].as_str().unwrap()
    );
    assert_eq!(bench.text(&row).await, "(a,-3,\"2036-01-01 00:00:00+00\",cancelled)");
    let shown = read(&bench, &format!("jobs show {}", of["id"].as_str().unwrap())).await;
    assert_eq!((&shown["job"]["lane"], &shown["job"]["priority"]), (&json!("a"), &json!(-3)));
    assert!(shown["job"]["not_after"].as_str().unwrap().starts_with("2036-01-01"), "{shown}");
    assert_eq!((&shown["job"]["is_held"], &shown["held"]), (&json!(false), &Value::Null));
    let first = enqueue("2 --replace doc --delay 1h --longest-wait 2h").await;
    let again = enqueue("3 --replace doc --delay 1h").await;
    assert_eq!((&again["id"], &again["duplicate"]), (&first["id"], &json!(true)));
    let payload = format!("SELECT payload FROM tenure.jobs WHERE id = '{}'", first["id"].as_str().unwrap());
    assert_eq!(bench.text(&payload).await, "(3)");
    for option in ["--unique-while-queued", "--unique-while-live"] {
        let first = enqueue(&format!("4 {option} u")).await;
        assert_eq!(enqueue(&format!("5 {option} u")).await["id"], first["id"], "{option}");
    }
    let both = run(&bench, "enqueue q k 1 --unique-key a --replace b").await;
    assert_eq!(both.code, Some(2));
    assert!(both.err.contains("--replace"), "{}", both.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_lanes_that_a_queue_lacks_that_nothing_tends_and_that_are_blocked() {
    let bench = two_of_four().await;
    bench.tenure.enqueue(JobRequest::new("plain", "k", json!(1)).lane("org-9")).await.unwrap();
    let look = async || {
        let checks = bench.tenure.doctor(&DoctorOptions::default()).await;
        checks.into_iter().filter(|of| of.check == "lanes").collect::<Vec<_>>()
    };
    let found = look().await;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].state, found[0].queue.as_deref()), (CheckState::Warning, Some("plain")));
    assert!(found[0].found.contains("1 job names a lane, as \"org-9\""), "{found:#?}");
    bench.execute("DELETE FROM tenure.jobs WHERE queue = 'plain'").await;
    assert_eq!(look().await[0].state, CheckState::Ok);
    // No worker runs: a wake of a minute ago is still there.
    let wake =
        "INSERT INTO tenure.lane_wakes (at, queue, lane) VALUES (now() - interval '1 min', 'q', 'org-7')";
    bench.execute(wake).await;
    let found = look().await;
    assert_eq!((found.len(), found[0].state), (1, CheckState::Wrong), "{found:#?}");
    assert!(found[0].found.starts_with("no worker looks after 1 lane, the first for 1m"), "{found:#?}");
    bench.execute("DELETE FROM tenure.lane_wakes").await;
    bench.execute("UPDATE tenure.lane_jobs SET due_at = due_at - interval '1 hour'").await;
    let found = look().await;
    assert_eq!((found.len(), found[0].state), (1, CheckState::Warning), "{found:#?}");
    assert!(found[0].found.contains("all its slots are taken; job "), "{found:#?}");
    let holder: String = bench.value("SELECT job_id::text FROM tenure.lane_slots s JOIN tenure.jobs j ON j.id = s.job_id ORDER BY scheduled_at LIMIT 1").await;
    assert!(found[0].to_do.as_ref().unwrap().contains(&holder), "{found:#?} {holder}");
}

/// The fleet counts held jobs apart from those that wait for their time.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_counts_held_jobs_apart_and_metrics_say_so() {
    let bench = bench().await;
    bench.tenure.put_lanes("q", Lanes::new().running(1)).await.unwrap();
    let handler = |_: Value, ctx: JobContext| async move {
        ctx.cancelled().await;
    };
    let worker = Worker::builder(&bench.tenure)
        .handle_any(KindOptions::new().keepalive(), handler)
        .concurrency("q", 4);
    let worker = Running::start(worker);
    let job = |lane: &str| JobRequest::new("q", "k", json!(1)).lane(lane);
    for lane in ["a", "a", "b", "b", "b"] {
        bench.tenure.enqueue(job(lane)).await.unwrap();
    }
    bench.tenure.enqueue(job("c").delay(Duration::from_secs(3_600))).await.unwrap();
    bench
        .until(
            "EXISTS (SELECT FROM tenure.queue_stats WHERE queue = 'q' AND held = 4 AND held_due = 3
                        AND lanes_waiting = 2 AND scheduled = 0 AND due = 0 AND processing = 2)",
        )
        .await;
    let dashboard = crate::dashboard::Dashboard::start(&bench, &[], &[]).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = dashboard.get("/metrics").await.body;
        let has = |line: &str| metrics.lines().any(|own| own == line);
        if has("tenure_queue_held{queue=\"q\"} 4") && has("tenure_lanes_waiting{queue=\"q\"} 2") {
            assert!(has("tenure_queue_jobs{queue=\"q\",state=\"scheduled\"} 0"), "{metrics}");
            assert!(!metrics.contains("lane=\""), "a lane's key is no label");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{metrics}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.tenure.cancel_all("q", None).await.unwrap();
    bench.until_count("tenure.jobs", 0).await;
    worker.stop().await;
}
