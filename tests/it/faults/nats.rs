//! NATS that is killed, frozen, restored from a backup, full, changed by hand, or a cluster that loses its leader.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    self,
    consumer::{FromConsumer, PullConsumer, pull},
};
use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::{
    Config, JobContext, JobRequest, KindOptions, Tenure, Worker,
    dev::{Nats, free_port},
    doctor::DoctorOptions,
};

use super::{all_done_once, enqueue, linked, none_was_charged, worker};
use crate::{
    harness::{Bench, Child, Running, bench, bench_with, bench_with_servers, run_folder, until_file},
    scenarios::{Step, step},
};

fn steady(config: &mut Config) {
    config.timing.stale_after = Duration::from_secs(20);
    config.timing.ack_wait = Duration::from_secs(25);
    config.timing.scan_every = Duration::from_secs(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_is_killed_and_frozen_in_the_middle_and_nothing_is_lost() {
    let mut bench = bench_with_servers(steady).await;
    enqueue(&bench, 600, 5).await;
    let workers = [Running::start(worker(&bench.tenure, 10)), Running::start(worker(&bench.tenure, 10))];
    bench.until("(SELECT count(*) FROM tenure.job_history) > 100").await;
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.kill();
    nats.restart().unwrap();
    bench.until("(SELECT count(*) FROM tenure.job_history) > 250").await;
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    bench.own.as_mut().unwrap().nats.signal(Signal::CONT);
    all_done_once(&bench, 600).await;
    none_was_charged(&bench).await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_full_refuses_messages_and_no_job() {
    let bench = bench_with(|config| config.jobs_per_message = 1).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.max_messages = 3;
    bench.js.update_stream(config).await.unwrap();
    enqueue(&bench, 20, 1).await;
    bench.tenure.flush().await;
    assert_eq!(bench.messages().await, 3);
    assert_eq!(bench.count("tenure.jobs WHERE published_at IS NULL").await, 17, "the relay has them");
    // A producer of messages gets an error, and the accepted messages stay.
    let subject = format!("{}.q.k", bench.config.subject_prefix);
    let refused = bench.js.publish(subject, "1".into()).await.unwrap().await.unwrap_err().to_string();
    assert!(refused.contains("maximum messages exceeded"), "{refused}");
    let working = Running::start(worker(&bench.tenure, 2));
    all_done_once(&bench, 20).await;
    working.stop().await;
}

/// An operator's mistake: every limit that tenure leaves open is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_changed_by_hand_is_worked_with_and_reported() {
    let bench = bench().await;
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    let mut config: pull::Config =
        FromConsumer::try_from_consumer_config(bench.consumer("steps").await.config).unwrap();
    config.max_deliver = 1;
    config.max_ack_pending = 2;
    bench.js.update_consumer_on_stream(config, &bench.config.stream).await.unwrap();
    let mut victim = Child::on(&bench, "a", "worker");
    let first = Step::new(&bench, "report");
    let id = bench.tenure.enqueue(first.clone()).await.unwrap().id;
    until_file(&first.file("started")).await;
    assert!(
        victim.log().contains("the consumer's configuration is not what tenure expects"),
        "{}",
        victim.log()
    );
    victim.kill().await;
    // The first message never comes again; the reset publishes a new one.
    let next = Running::start(tenure::Worker::builder(&bench.tenure).handle(step).concurrency("steps", 8));
    let many: Vec<_> = (0..20).map(|_| Step::new(&bench, "report")).collect();
    for job in &many {
        std::fs::write(job.file("go"), "").unwrap();
    }
    bench.tenure.enqueue_many(many).await.unwrap();
    bench.until_finished(id).await;
    bench.until_count("tenure.job_history WHERE status = 'completed'", 21).await;
    // `migrate` restores the definition.
    bench.tenure.setup(&["steps".into()]).await.unwrap();
    assert_eq!(bench.consumer("steps").await.config.max_deliver, -1);
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_paused_delivers_when_it_is_resumed() {
    let bench = bench().await;
    enqueue(&bench, 1, 1).await;
    let subject = format!("$JS.API.CONSUMER.PAUSE.{}.q", bench.config.stream);
    let client = async_nats::connect(&bench.config.nats_url).await.unwrap();
    let until = (chrono::Utc::now() + chrono::TimeDelta::hours(1)).to_rfc3339();
    let answer =
        client.request(subject.clone(), json!({ "pause_until": until }).to_string().into()).await.unwrap();
    assert!(std::str::from_utf8(&answer.payload).unwrap().contains("\"paused\":true"), "{answer:?}");
    let working = Running::start(worker(&bench.tenure, 2));
    bench.until_count("tenure.workers", 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.count("tenure.jobs WHERE status = 'queued'").await, 1);
    client.request(subject, "{}".into()).await.unwrap();
    all_done_once(&bench, 1).await;
    working.stop().await;
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// A backup, or the remains after a power cut: the stream has its old messages, and none of the newer ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_restored_to_an_earlier_point_loses_no_job_and_repeats_none() {
    let mut bench = bench_with_servers(steady).await;
    enqueue(&bench, 20, 1).await;
    bench.tenure.flush().await;
    let folder = bench.config.runtime_dir.parent().unwrap().join("nats");
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.stop();
    copy(&folder.join("data"), &folder.join("before"));
    nats.restart().unwrap();
    // These twenty run; the backup lacks the next twenty.
    let working = Running::start(worker(&bench.tenure, 10));
    bench.until_count("tenure.job_history", 20).await;
    working.stop().await;
    enqueue(&bench, 20, 1).await;
    bench.tenure.flush().await;
    assert_eq!(bench.count("tenure.jobs WHERE published_at IS NULL").await, 0);
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.stop();
    nats.wipe().unwrap();
    copy(&folder.join("before"), &folder.join("data"));
    nats.restart().unwrap();
    let working = Running::start(worker(&bench.tenure, 10));
    all_done_once(&bench, 40).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 40);
    working.stop().await;
}

/// A server of 2.12, which `scripts/setup test` installs beside the newest one.
struct Old {
    process: Option<std::process::Child>,
    folder: PathBuf,
    port: u16,
}

impl Old {
    fn start(folder: &Path) -> Self {
        let mut old = Self { process: None, folder: folder.into(), port: free_port().unwrap() };
        old.restart();
        old
    }

    fn restart(&mut self) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/nats-2.12/bin/nats-server");
        let port = self.port.to_string();
        let mut command = std::process::Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &port, "-js", "-sd"]).arg(self.folder.join("data"));
        command.stderr(std::fs::File::create(self.folder.join("log")).unwrap());
        self.process = Some(command.spawn().expect("`make test` installs it into .tools/nats-2.12"));
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            rustix::process::kill_process(rustix::process::Pid::from_child(&process), Signal::TERM).unwrap();
            process.wait().unwrap();
        }
    }

    /// Puts the messages back to an earlier copy, and not what the consumers have delivered, as a power cut may.
    fn go_back(&mut self, stream: &str) {
        self.stop();
        let messages = format!("jetstream/$G/streams/{stream}/msgs");
        std::fs::remove_dir_all(self.folder.join("data").join(&messages)).unwrap();
        copy(&self.folder.join("before").join(&messages), &self.folder.join("data").join(&messages));
        self.restart();
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the stream accepts next has sequences that the consumer has delivered already.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_ahead_of_its_stream_is_made_anew() {
    let folder = run_folder().join(format!("old-nats-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut old = Old::start(&folder);
    let url = format!("nats://127.0.0.1:{}", old.port);
    for _ in 0..100 {
        if async_nats::connect(&url).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let bench = bench_with(|config| {
        steady(config);
        config.nats_url.clone_from(&url);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    old.stop();
    copy(&folder.join("data"), &folder.join("before"));
    old.restart();
    until_up(&bench).await;
    let subject = format!("{}.q.k", bench.config.subject_prefix);
    let submit = async || {
        for _ in 0..5 {
            bench.js.publish(subject.clone(), "1".into()).await.unwrap().await.unwrap();
        }
    };
    let does_nothing = || {
        let worker = Worker::builder(&bench.tenure);
        worker.handle_any(KindOptions::new(), |_: Value, _| async {}).concurrency("q", 10)
    };
    let done = async |jobs: i64| bench.until_count("tenure.job_history", jobs).await;
    submit().await;
    let working = Running::start(does_nothing());
    done(5).await;
    working.stop().await;
    old.go_back(&bench.config.stream);
    until_up(&bench).await;
    let mut options = DoctorOptions::default();
    options.queues.push("q".into());
    let found = bench.tenure.doctor(&options).await;
    let of_consumer = found.iter().find(|check| check.check == "consumer").unwrap();
    assert!(of_consumer.found.starts_with("the consumer is ahead of its stream"), "{of_consumer:?}");
    submit().await;
    let working = Running::start(does_nothing());
    done(10).await;
    // The same with a worker that lives through it.
    old.go_back(&bench.config.stream);
    until_up(&bench).await;
    submit().await;
    done(15).await;
    working.stop().await;
}

/// What the server loses, workers still hold: running jobs, an ack and a term on their way, the parts of a message. The
/// restored stream gives the sequences of those messages to submissions that no worker has claimed: of the same queue, where
/// a worker has received them and died, of a paused one, and of one without workers.
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_messages_that_a_restored_stream_has_lost_remove_no_other_message() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(10);
        config.timing.ack_wait = Duration::from_secs(12);
        config.jobs_per_message = 4;
    })
    .await;
    bench.tenure.setup(&["q".into(), "paused".into(), "unserved".into()]).await.unwrap();
    bench.tenure.pause_queue("paused").await.unwrap();
    let folder = bench.config.runtime_dir.parent().unwrap().join("nats");
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.stop();
    copy(&folder.join("data"), &folder.join("before"));
    nats.restart().unwrap();
    until_up(&bench).await;

    let link = linked(&bench).await;
    let (open, gates) = tokio::sync::watch::channel(0);
    let wait = move |gate: Value, _: JobContext| {
        let mut gates = gates.clone();
        async move {
            drop(gates.wait_for(|open| *open >= gate.as_i64().unwrap()).await.unwrap());
        }
    };
    let builder = Worker::builder(&link.tenure).handle_any(KindOptions::new(), wait);
    let working = Running::start(builder.concurrency("q", 100).concurrency("paused", 4));
    let subject = |queue: &str| format!("{}.{queue}.k", bench.config.subject_prefix);
    let (js, prefix) = (bench.js.clone(), bench.config.subject_prefix.clone());
    let submit = async |queue: &str, gate: u8, count: usize| {
        for _ in 0..count {
            let subject = format!("{prefix}.{queue}.k");
            js.publish(subject, gate.to_string().into()).await.unwrap().await.unwrap();
        }
    };
    // Each gate: five submissions, and forty jobs in ten messages.
    for gate in [1, 2] {
        submit("q", gate, 5).await;
        bench.tenure.enqueue_many((0..40).map(|_| JobRequest::new("q", "k", json!(gate)))).await.unwrap();
    }
    bench.until_count("tenure.jobs WHERE status = 'processing'", 90).await;
    assert_eq!(bench.messages().await, 30);
    let mut locked = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenure.jobs").execute(&mut *locked).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Tenure-Job-Id", uuid::Uuid::now_v7().to_string());
    let forged = bench.js.publish_with_headers(subject("q"), headers, "{}".into());
    forged.await.unwrap().await.unwrap();
    let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencing_token%'";
    bench.until(&format!("(SELECT count(*) FROM {waits}) > 0")).await;

    // While nothing reaches the server, a claim that ends a message, and 45 jobs of fifteen messages.
    link.nats.lead_to(free_port().unwrap());
    locked.rollback().await.unwrap();
    open.send(1).unwrap();
    bench.until_count("tenure.job_history", 45).await;
    let nats = &mut bench.own.as_mut().unwrap().nats;
    nats.kill();
    nats.wipe().unwrap();
    copy(&folder.join("before"), &folder.join("data"));
    nats.restart().unwrap();
    until_up(&bench).await;
    submit("q", 0, 7).await;
    submit("unserved", 0, 20).await;
    submit("paused", 0, 10).await;
    let stream = bench.js.get_stream(&bench.config.stream).await.unwrap();
    let dying: PullConsumer = stream.get_consumer("q").await.unwrap();
    let received = dying.fetch().max_messages(7).messages().await.unwrap().take(7).count().await;
    assert_eq!(received, 7);
    submit("q", 0, 1).await;
    link.nats.lead_to(bench.own.as_ref().unwrap().nats.port());
    bench.until_count("tenure.job_history", 46).await;
    // And those that still run.
    open.send(2).unwrap();
    bench.until_count("tenure.job_history", 91).await;
    working.stop().await;
    assert_eq!(bench.messages().await, 37, "each message that no worker has claimed is there");

    bench.tenure.resume_queue("paused").await.unwrap();
    let builder =
        Worker::builder(&bench.tenure).handle_any(KindOptions::new(), async |_: Value, _: JobContext| {});
    let builder = builder.concurrency("q", 10).concurrency("unserved", 10).concurrency("paused", 10);
    let working = Running::start(builder);
    bench.until_count("tenure.job_history", 128).await;
    assert_eq!(bench.count("tenure.job_executions_all").await, 128);
    working.stop().await;
}

/// Waits until the bench's own client has found the server again.
async fn until_up(bench: &Bench) {
    for _ in 0..200 {
        if bench.js.get_stream(&bench.config.stream).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("NATS is not back");
}

const ACCOUNTS: &str = r"
accounts { A { jetstream: enabled, users: [ { user: u, password: p PERMISSIONS } ] } }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_taken_away_stops_deliveries_and_work_goes_on_when_it_is_back() {
    let bench = bench_with_servers(steady).await;
    let folder = run_folder().join(format!("rights-{}", bench.own.as_ref().unwrap().nats.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let conf = folder.join("server.conf");
    let write =
        |permissions: &str| std::fs::write(&conf, ACCOUNTS.replace("PERMISSIONS", permissions)).unwrap();
    write("");
    let nats = tokio::task::spawn_blocking({
        let (folder, conf) = (folder.clone(), conf.clone());
        move || Nats::start_with(&folder.join("nats"), Some(&conf)).unwrap()
    })
    .await
    .unwrap();
    let mut config = bench.config.clone();
    config.nats_url = format!("nats://u:p@127.0.0.1:{}", nats.port());
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE IF NOT EXISTS public.effects (job uuid, token bigint)").await;
    let working = Running::start(worker(&tenure, 2));
    bench.until_count("tenure.workers", 1).await;
    write(", permissions: { publish: { deny: [\"$JS.API.CONSUMER.MSG.NEXT.>\"] } }");
    nats.signal(Signal::HUP);
    // Until the reload has reached every connection, a job may still be delivered.
    let many = (0..50).map(|_| JobRequest::new("q", "k", json!({ "steps": 40 })));
    tenure.enqueue_many(many).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(bench.count("tenure.jobs").await > 20, "the worker may not request jobs");
    write("");
    nats.signal(Signal::HUP);
    bench.until_count("tenure.job_history WHERE status = 'completed'", 50).await;
    none_was_charged(&bench).await;
    working.stop().await;
}

/// Three servers in a folder, each with every message.
struct Cluster {
    servers: Vec<Nats>,
    folder: PathBuf,
    js: jetstream::Context,
}

impl Cluster {
    async fn start(config: &Config) -> Self {
        let folder = run_folder().join(format!("cluster-{}", config.stream));
        std::fs::create_dir_all(&folder).unwrap();
        let ports = [(); 3].map(|()| free_port().unwrap());
        let routes: Vec<_> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let mut servers = Vec::new();
        for (n, port) in ports.iter().enumerate() {
            let conf = folder.join(format!("{n}.conf"));
            let text = format!(
                "server_name: n{n}\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{}] }}\n",
                routes.join(", ")
            );
            std::fs::write(&conf, text).unwrap();
            let folder = folder.join(n.to_string());
            let start = move || Nats::start_with(&folder, Some(&conf)).unwrap();
            servers.push(tokio::task::spawn_blocking(start).await.unwrap());
        }
        let js = connected(&servers).await;
        // The operator chooses the replicas; tenure keeps them.
        let mut definition: jetstream::stream::Config =
            serde_json::from_str(include_str!("../../../nats/stream.json")).unwrap();
        definition.name.clone_from(&config.stream);
        definition.subjects = vec![format!("{}.*.>", config.subject_prefix)];
        definition.num_replicas = 3;
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = js.create_stream(definition.clone()).await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Self { servers, folder, js }
    }

    fn folder(&self, server: usize, of: &str) -> PathBuf {
        self.folder.join(server.to_string()).join(of)
    }
}

async fn connected(servers: &[Nats]) -> jetstream::Context {
    let addresses: Vec<async_nats::ServerAddr> =
        servers.iter().map(|nats| nats.url().parse().unwrap()).collect();
    jetstream::new(
        async_nats::ConnectOptions::new().ignore_discovered_servers().connect(addresses).await.unwrap(),
    )
}

/// Waits until these servers know the stream's leader, and returns its number.
async fn leader(js: &jetstream::Context, stream: &str) -> usize {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found = js.get_stream(stream).await;
        let cluster = found.ok().and_then(|found| found.cached_info().cluster.clone());
        if let Some(leader) = cluster.and_then(|cluster| cluster.leader) {
            return leader.trim_start_matches('n').parse().unwrap();
        }
        assert!(Instant::now() < deadline, "the stream has no leader");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_without_the_streams_leader_and_without_a_majority_enqueues_are_kept() {
    let bench = bench_with(steady).await;
    let mut cluster = Cluster::start(&bench.config).await;
    let mut config = bench.config.clone();
    config.nats_url = cluster.servers.iter().map(Nats::url).collect::<Vec<_>>().join(",");
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE IF NOT EXISTS public.effects (job uuid, token bigint)").await;
    let job = || JobRequest::new("q", "k", json!({ "steps": 5 }));
    tenure.enqueue_many((0..300).map(|_| job())).await.unwrap();
    let working = Running::start(worker(&tenure, 10));
    bench.until("(SELECT count(*) FROM tenure.job_history) > 50").await;
    let leader = leader(&cluster.js, &config.stream).await;
    let servers = &mut cluster.servers;
    servers[leader].kill();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 300).await;
    // With one more server gone, there is no majority.
    let second = (leader + 1) % 3;
    servers[second].kill();
    for _ in 0..5 {
        tenure.enqueue(job()).await.unwrap();
    }
    servers[leader].restart().unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 305).await;
    none_was_charged(&bench).await;
    working.stop().await;
}

/// The server of a worker is frozen while the two others go back to an older copy, elect a leader and accept more. It then
/// follows that leader, without a break of the worker's connections.
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_messages_that_a_new_leader_has_never_had_remove_no_other_message() {
    let bench = bench_with(steady).await;
    let mut cluster = Cluster::start(&bench.config).await;
    let mut config = bench.config.clone();
    config.nats_url = cluster.servers[0].url();
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into(), "unserved".into()]).await.unwrap();
    cluster.servers.iter_mut().for_each(Nats::stop);
    for n in [1, 2] {
        copy(&cluster.folder(n, "data"), &cluster.folder(n, "before"));
    }
    for server in &mut cluster.servers {
        server.restart().unwrap();
    }
    leader(&cluster.js, &config.stream).await;

    let (open, opened) = tokio::sync::watch::channel(false);
    let wait = move |_: Value, _: JobContext| {
        let mut opened = opened.clone();
        async move { drop(opened.wait_for(|open| *open).await.unwrap()) }
    };
    let builder = Worker::builder(&tenure).handle_any(KindOptions::new(), wait);
    let working = Running::start(builder.concurrency("q", 10));
    let submit = async |js: &jetstream::Context, queue: &str, count: usize| {
        for _ in 0..count {
            let subject = format!("{}.{queue}.k", config.subject_prefix);
            js.publish(subject, "1".into()).await.unwrap().await.unwrap();
        }
    };
    submit(&cluster.js, "q", 5).await;
    bench.until_count("tenure.jobs WHERE status = 'processing'", 5).await;
    cluster.servers[0].signal(Signal::STOP);
    for n in [1, 2] {
        cluster.servers[n].kill();
        cluster.servers[n].wipe().unwrap();
        copy(&cluster.folder(n, "before"), &cluster.folder(n, "data"));
    }
    for n in [1, 2] {
        cluster.servers[n].restart().unwrap();
    }
    let others = connected(&cluster.servers[1..]).await;
    assert_ne!(leader(&others, &config.stream).await, 0);
    submit(&others, "unserved", 20).await;
    cluster.servers[0].signal(Signal::CONT);
    let follower = connected(&cluster.servers[..1]).await;
    while leader(&follower, &config.stream).await == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    open.send(true).unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 5).await;
    working.stop().await;
    let stream = others.get_stream(&config.stream).await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 20, "each message that no worker has claimed is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_second_of_latency_to_both_servers_resets_nothing() {
    let bench = bench_with(|config| {
        steady(config);
        config.timing.publish_within = Duration::from_secs(5);
        // A connection is five round trips, and a part of the call that needs it.
        config.timing.database_within = Duration::from_secs(10);
        // Each transaction is six round trips.
        config.handler_connections = 20;
    })
    .await;
    enqueue(&bench, 20, 10).await;
    let link = linked(&bench).await;
    link.postgres.delay(Duration::from_millis(250));
    link.nats.delay(Duration::from_millis(250));
    let working = Running::start(worker(&link.tenure, 20));
    all_done_once(&bench, 20).await;
    none_was_charged(&bench).await;
    // Only a message that is long on its way may be published again.
    let events = "SELECT event, path, reason FROM tenure.recovery_events WHERE event <> 'republished'";
    assert_eq!(bench.text(events).await, "");
    link.postgres.mend();
    link.nats.mend();
    working.stop().await;
}
