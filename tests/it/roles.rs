//! The shipped NATS configuration: each role has the rights that it needs, and no more.

use std::time::Duration;

use tenure::{
    KindOptions, Tenure, Worker,
    doctor::{CheckState, DoctorOptions},
    workers::DrainError,
};

use crate::harness::{Bench, Running, bench_with_servers, run_folder};

const CONF: &str = include_str!("../../nats/server.conf");

/// A server with the shipped roles, and the test's port, folder and passwords.
async fn server(bench: &Bench) -> (tenure::dev::Nats, impl Fn(&str) -> String + use<>) {
    server_with(bench, CONF).await
}

/// [`server`] with a different configuration.
async fn server_with(bench: &Bench, conf: &str) -> (tenure::dev::Nats, impl Fn(&str) -> String + use<>) {
    let folder = run_folder()
        .join(format!("roles-{}", bench.config.database_url.rsplit(':').next().unwrap().replace('/', "-")));
    std::fs::create_dir_all(&folder).unwrap();
    let mut conf = conf
        .replace("listen: 0.0.0.0:4222\n", "")
        .replace("http: 127.0.0.1:8222\n", "")
        .replace("  store_dir: \"/data\"\n", "");
    assert!(!conf.contains("4222") && !conf.contains("/data"), "the shipped configuration has changed");
    for role in ["producer", "worker", "admin"] {
        conf = conf
            .replace(&format!("$TENURE_NATS_{}_PASSWORD", role.to_uppercase()), &format!("{role}-password"));
    }
    let path = folder.join("server.conf");
    std::fs::write(&path, conf).unwrap();
    let nats = tokio::task::spawn_blocking(move || {
        tenure::dev::Nats::start_with(&folder.join("nats"), Some(&path)).unwrap()
    })
    .await
    .unwrap();
    let port = nats.port();
    (nats, move |role: &str| format!("nats://{role}:{role}-password@127.0.0.1:{port}"))
}

async fn client(url: &str, role: &str) -> async_nats::Client {
    async_nats::ConnectOptions::with_user_and_password(role.into(), format!("{role}-password"))
        .custom_inbox_prefix(format!("_INBOX_{role}"))
        .request_timeout(Some(Duration::from_millis(700)))
        .connect(url)
        .await
        .unwrap()
}

/// Fails unless the server refuses this role's messages to these subjects, and says so.
async fn refused(url: &str, role: &str, subjects: &[&str]) {
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let client = async_nats::ConnectOptions::with_user_and_password(role.into(), format!("{role}-password"))
        .custom_inbox_prefix(format!("_INBOX_{role}"))
        .event_callback(move |event| {
            let said = said.clone();
            async move {
                said.send(event.to_string()).ok();
            }
        })
        .connect(url)
        .await
        .unwrap();
    for subject in subjects {
        client.publish((*subject).to_owned(), "x".into()).await.unwrap();
        let violation = async {
            loop {
                let event = heard.recv().await.unwrap();
                if event.to_lowercase().contains("permissions violation") && event.contains(subject) {
                    return;
                }
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(5), violation).await;
        assert!(told.is_ok(), "{role} wrote to {subject}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_role_creates_what_is_missing_works_and_changes_and_deletes_nothing() {
    let bench = bench_with_servers(|_| {}).await;
    let (_nats, url) = server(&bench).await;
    let mut config = bench.config.clone();
    config.nats_url = url("worker");
    config.inbox_prefix = Some("_INBOX_worker".into());
    let tenure = Tenure::connect(&config).await.unwrap();
    let worker = Running::start(
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2),
    );
    // The worker reaches itself, so that its death can be noticed at once.
    bench.until_count("tenure.workers WHERE probe_subject LIKE 'tenure.jobs.worker.%'", 1).await;
    // Tickets by the worker role, submissions by the producer role.
    tenure.enqueue(tenure::JobRequest::new("q", "k", serde_json::json!(1))).await.unwrap();
    let producer = client(&url("producer"), "producer").await;
    let js = async_nats::jetstream::new(producer.clone());
    js.publish("jobs.q.k", "2".into()).await.unwrap().await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;

    // Subjects that neither of the two may use.
    let denied = |client: async_nats::Client, subject: &'static str, body: &'static str| async move {
        let answer = client.request(subject, body.into()).await;
        assert!(answer.is_err(), "{subject}: {answer:?}");
    };
    let as_worker = client(&url("worker"), "worker").await;
    for subject in [
        "$JS.API.STREAM.DELETE.JOBS",
        "$JS.API.STREAM.PURGE.JOBS",
        "$JS.API.STREAM.UPDATE.JOBS",
        "$JS.API.CONSUMER.DELETE.JOBS.q",
        "$JS.API.STREAM.CREATE.OTHER",
        "$JS.API.STREAM.MSG.DELETE.JOBS",
    ] {
        denied(as_worker.clone(), subject, "{}").await;
    }
    for subject in ["$JS.API.STREAM.INFO.JOBS", "$JS.API.CONSUMER.MSG.NEXT.JOBS.q", "$JS.API.STREAM.NAMES"] {
        denied(producer.clone(), subject, "").await;
    }
    // A producer can read neither jobs nor answers to others.
    for subject in ["jobs.>", "_INBOX_worker.>", "_INBOX.>", ">"] {
        let mut spy = producer.subscribe(subject).await.unwrap();
        producer.flush().await.unwrap();
        js.publish("jobs.q.k", "3".into()).await.unwrap().await.unwrap();
        let heard =
            tokio::time::timeout(Duration::from_millis(300), futures::StreamExt::next(&mut spy)).await;
        assert!(!matches!(heard, Ok(Some(_))), "{subject}: {heard:?}");
    }
    bench.until_count("tenure.job_history WHERE status = 'completed'", 6).await;
    worker.stop().await;

    // Neither can publish to foreign subjects. Among them is the reply subject of a message that a worker holds, which
    // is easy to guess.
    let held = async_nats::jetstream::new(client(&url("worker"), "worker").await);
    js.publish("jobs.q.k", "4".into()).await.unwrap().await.unwrap();
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        held.get_consumer_from_stream("q", "JOBS").await.unwrap();
    let mut messages = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = futures::StreamExt::next(&mut messages).await.unwrap().unwrap();
    let ack = message.reply.clone().unwrap().to_string();
    let of_producer = [
        ack.as_str(),
        "$JS.API.CONSUMER.MSG.NEXT.JOBS.q",
        "$JS.API.STREAM.PURGE.JOBS",
        "$JS.API.STREAM.DELETE.JOBS",
        "_INBOX_worker.x",
        "other.x",
    ];
    refused(&url("producer"), "producer", &of_producer).await;
    refused(&url("worker"), "worker", &["other.x", "_INBOX_admin.x", "$SYS.REQ.SERVER.PING"]).await;
    let pending = held
        .get_consumer_from_stream::<async_nats::jetstream::consumer::pull::Config, _, _>("q", "JOBS")
        .await;
    assert_eq!(pending.unwrap().cached_info().num_ack_pending, 1, "the producer acknowledged nothing");
    message.ack().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_as_admin_changes_a_definition_that_a_worker_only_reports() {
    let bench = bench_with_servers(|_| {}).await;
    let (_nats, url) = server(&bench).await;
    let mut config = bench.config.clone();
    config.nats_url = url("admin");
    config.inbox_prefix = Some("_INBOX_admin".into());
    let admin = Tenure::connect(&config).await.unwrap();
    admin.setup(&["q".into()]).await.unwrap();
    let ack_wait = || async {
        let js = async_nats::jetstream::new(client(&url("admin"), "admin").await);
        let consumer: async_nats::jetstream::consumer::PullConsumer =
            js.get_consumer_from_stream("q", "JOBS").await.unwrap();
        consumer.cached_info().config.ack_wait
    };
    assert_eq!(ack_wait().await, Duration::from_secs(4));
    // The new release has a longer ack_wait. Its worker reports the difference and changes nothing.
    config.timing.ack_wait = Duration::from_secs(9);
    let newer = Tenure::connect(&config).await.unwrap();
    let worker = Running::start(
        Worker::builder(&newer).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until_count("tenure.workers", 1).await;
    assert_eq!(ack_wait().await, Duration::from_secs(4));
    worker.stop().await;
    newer.setup(&["q".into()]).await.unwrap();
    assert_eq!(ack_wait().await, Duration::from_secs(9));
}

/// The silence of a worker that may not subscribe proves nothing: it names no subject, and judges no other worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_not_listen_names_no_subject() {
    let bench = bench_with_servers(|config| config.timing.renew_every = Duration::from_millis(300)).await;
    let deaf = CONF.replace("[\"_INBOX_worker.>\", \"tenure.>\"]", "[\"_INBOX_worker.>\"]");
    assert_ne!(deaf, CONF);
    let (_nats, url) = server_with(&bench, &deaf).await;
    let mut config = bench.config.clone();
    config.nats_url = url("worker");
    config.inbox_prefix = Some("_INBOX_worker".into());
    let tenure = Tenure::connect(&config).await.unwrap();
    let worker = Running::start(
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    bench.until("(SELECT max(last_seen_at) - min(started_at) > interval '1 s' FROM tenure.workers)").await;
    assert_eq!(bench.count("tenure.workers WHERE probe_subject IS NULL").await, 1);
    tenure.enqueue(tenure::JobRequest::new("q", "k", serde_json::json!(1))).await.unwrap();
    bench.until_count("tenure.job_history WHERE status = 'completed'", 1).await;
    worker.stop().await;
}

/// A denied permission looks like a missing answer; the server's error tells the two apart.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_the_subjects_that_a_user_may_not_publish_to() {
    let bench = bench_with_servers(|_| {}).await;
    let (_nats, url) = server(&bench).await;
    let by = async |role: &str| {
        let mut config = bench.config.clone();
        config.nats_url = url(role);
        config.inbox_prefix = Some(format!("_INBOX_{role}"));
        let tenure = Tenure::connect(&config).await.unwrap();
        if role == "admin" {
            tenure.setup(&["q".into()]).await.unwrap();
        }
        let mut options = DoctorOptions::default();
        options.queues.push("q".into());
        let checks = tenure.doctor(&options).await;
        move |check: &str| checks.iter().find(|checked| checked.check == check).unwrap().clone()
    };
    for role in ["admin", "worker"] {
        let of = by(role).await;
        for check in ["nats", "jetstream", "stream", "consumer", "nats_rights"] {
            assert_eq!(of(check).state, CheckState::Ok, "{role}: {:?}", of(check));
        }
    }
    let of = by("producer").await;
    assert_eq!(of("nats").state, CheckState::Ok);
    let rights = of("nats_rights");
    assert_eq!(
        (rights.state, rights.found.as_str()),
        (CheckState::Warning, "this user may not publish to $JS.API.STREAM.INFO.JOBS")
    );
    for check in ["jetstream", "stream"] {
        assert_eq!(of(check).state, CheckState::Skipped, "{:?}", of(check));
    }
    assert_eq!(of("consumer").state, CheckState::Ok, "a producer may ask how much has been delivered");

    bench
        .execute(
            "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, slots, version, probe_subject)
             VALUES ('w', 'h', 1, '{q}', 1, '', 'tenure.jobs.worker.w')",
        )
        .await;
    let mut config = bench.config.clone();
    (config.nats_url, config.inbox_prefix) = (url("producer"), Some("_INBOX_producer".into()));
    let producer = Tenure::connect(&config).await.unwrap();
    let refused = producer.drain_worker("w").await.unwrap_err();
    assert!(matches!(refused, DrainError::Denied { .. }), "{refused}");
    let why = "NATS denies this program's user the right to publish to tenure.jobs.worker.w";
    assert!(refused.to_string().contains(why), "{refused}");
}
