//! Security: roles of Postgres, TLS and credentials with both servers, and no secrets in the logs.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use data_encoding::BASE64URL_NOPAD;
use nkeys::{KeyPair, KeyPairType};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tenure::{
    Config, JobContext, JobError, JobRequest, KindOptions, Outcome, Status, Tenure, Worker,
    dev::{Nats, Postgres, postgres_user},
    doctor::{CheckState, DoctorOptions},
    groups::Signalled,
    lanes::{LaneOptions, Lanes},
    redrives::CalmRedrive,
    rows::DeadFilter,
};

use crate::harness::{Bench, Child, Proxy, Running, bench, bench_with_servers, run_folder};

fn request(kind: &str) -> JobRequest {
    JobRequest::new("q", kind, json!({ "n": 1 }))
}

fn with(config: &Config, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config.clone();
    change(&mut config);
    config
}

/// The shipped roles, each with a login role and its client.
pub async fn with_roles(bench: &Bench) -> impl AsyncFn(&str) -> (Tenure, PgPool) {
    sqlx::raw_sql(include_str!("../../postgres/roles.sql")).execute(&bench.pool).await.unwrap();
    for role in ["producer", "worker", "operator", "viewer"] {
        bench.execute(&format!("CREATE ROLE a_{role} LOGIN PASSWORD 'pw' IN ROLE tenure_{role}")).await;
    }
    let (before, host) = bench.config.database_url.split_once('@').unwrap();
    let before = before.split_once("//").unwrap().0.to_owned();
    let (host, config) = (host.to_owned(), bench.config.clone());
    async move |role: &str| {
        let url = format!("{before}//a_{role}:pw@{host}");
        let pool = PgPool::connect(&url).await.unwrap();
        (Tenure::connect(&with(&config, |config| config.database_url = url)).await.unwrap(), pool)
    }
}

/// Fails unless Postgres refuses each statement for a missing right.
pub async fn denied(pool: &PgPool, statements: &[&str]) {
    for sql in statements {
        let error = sqlx::query(AssertSqlSafe(*sql)).execute(pool).await.expect_err(sql);
        let code = error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
        assert_eq!(code.as_deref(), Some("42501"), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one role after the other")]
async fn each_role_of_postgres_can_do_its_work_and_no_more() {
    let bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(3);
        config.timing.ack_wait = Duration::from_secs(8);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    bench.execute("CREATE TABLE public.app (n int)").await;
    bench.execute("GRANT ALL ON public.app TO PUBLIC").await;
    let by = with_roles(&bench).await;

    let (producer, pool) = by("producer").await;
    producer.enqueue(request("done")).await.unwrap();
    let keyed = producer.enqueue(request("done").unique_key("one")).await.unwrap();
    assert!(producer.enqueue(request("done").unique_key("one")).await.unwrap().duplicate);
    producer.enqueue_many((0..10).map(|_| request("done"))).await.unwrap();
    producer.enqueue(request("done").delay(Duration::from_millis(100))).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    producer.enqueue(request("done")).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    for kind in ["fails", "dies", "once", "complete_in", "silent"] {
        producer.enqueue(request(kind).max_attempts(3)).await.unwrap();
    }
    producer.flush().await;
    denied(
        &pool,
        &[
            "SELECT payload FROM tenure.jobs",
            "SELECT * FROM tenure.all_jobs",
            "SELECT * FROM tenure.job_history",
            "SELECT * FROM tenure.dead_letter_jobs",
            "UPDATE tenure.jobs SET status = 'processing'",
            "UPDATE tenure.jobs SET payload = '1'",
            "DELETE FROM tenure.jobs",
            "DELETE FROM tenure.job_keys",
            "INSERT INTO tenure.job_history SELECT FROM tenure.jobs",
            "INSERT INTO tenure.jobs (id, queue, kind, payload, status) VALUES (gen_random_uuid(), 'q', 'k', '1', 'queued')",
            "INSERT INTO tenure.jobs (id, queue, kind, payload, worker_id) VALUES (gen_random_uuid(), 'q', 'k', '1', 'w')",
            "INSERT INTO tenure.jobs (id, queue, kind, payload, fencing_token) VALUES (gen_random_uuid(), 'q', 'k', '1', 9)",
            "SELECT tenure.create_history_partitions(400)",
            "SELECT tenure.purge_dead('1 day', 10)",
            "UPDATE tenure.queues SET max_queued = NULL",
            "CREATE TABLE tenure.mine (n int)",
        ],
    )
    .await;

    let (worker, pool) = by("worker").await;
    let app = pool.clone();
    let handler = move |_: Value, ctx: JobContext| {
        let app = app.clone();
        async move {
            match (ctx.kind(), ctx.attempt()) {
                ("fails", 1) => return Err(JobError::retry_after(Duration::from_millis(50), "once more")),
                ("dies", _) => return Err(JobError::permanent("for good")),
                ("once", _) => {
                    ctx.save_checkpoint(&1).await?;
                    let insert = "INSERT INTO public.app VALUES (1)";
                    ctx.once("k", async |tx| {
                        sqlx::query(insert).execute(tx).await?;
                        Ok(())
                    })
                    .await?;
                }
                ("complete_in", _) => {
                    let mut tx = app.begin().await?;
                    sqlx::query("INSERT INTO public.app VALUES (2)").execute(&mut *tx).await?;
                    return ctx.complete_in(tx, None).await;
                }
                // Reset by the scanner, or taken over on redelivery.
                ("silent", 1) => tokio::time::sleep(Duration::from_secs(7)).await,
                _ => ctx.progress("working", 50.0, "").await?,
            }
            Outcome::done(1)
        }
    };
    let working =
        Running::start(Worker::builder(&worker).handle_any(KindOptions::new(), handler).concurrency("q", 20));
    // The workers' work for operators: limited claims, ticks and sweeps.
    bench.tenure.limit_queue("q", tenure::queues::QueueLimits::new().max_running(8)).await.unwrap();
    let tick = JobRequest::new("q", "tick", json!({}));
    bench.tenure.put_schedule(tenure::schedules::Schedule::new("s", "* * * * * *", tick)).await.unwrap();
    bench.until("EXISTS (SELECT FROM tenure.job_history WHERE kind = 'tick')").await;
    bench.tenure.remove_schedule("s").await.unwrap();
    bench.until("(SELECT swept_at IS NOT NULL AND measured_at IS NOT NULL FROM tenure.scanner_state)").await;
    bench.until("NOT EXISTS (SELECT FROM tenure.jobs WHERE kind = 'tick')").await;
    bench.publish("q.done", "{}").await;
    bench.publish("q.done", "no JSON").await;
    bench.until_count("tenure.job_history WHERE status = 'completed' AND kind <> 'tick'", 19).await;
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    assert_eq!(bench.count("public.app").await, 2);
    let lost = "tenure.job_executions x JOIN tenure.all_jobs j ON j.id = x.job_id
                 WHERE x.outcome = 'lost' AND j.kind = 'silent'";
    assert!(bench.count(lost).await >= 1);
    bench.until_stream_is_empty(Duration::from_secs(20)).await;
    working.stop().await;
    denied(
        &pool,
        &[
            "UPDATE tenure.jobs SET payload = '1'",
            "UPDATE tenure.jobs SET queue = 'other'",
            "UPDATE tenure.jobs SET max_attempts = 1000",
            "UPDATE tenure.job_history SET output = '1'",
            "DELETE FROM tenure.job_history",
            "UPDATE tenure.queues SET max_running = NULL",
            "DELETE FROM tenure.queues",
            "UPDATE tenure.schedules SET payload = '1'",
            "DELETE FROM tenure.dead_letter_jobs",
            "DELETE FROM tenure.job_executions",
            "DELETE FROM tenure.recovery_events",
            "UPDATE tenure.recovery_events SET reason = ''",
            "DELETE FROM tenure.effects",
            "INSERT INTO tenure.migrations (version, name, checksum) VALUES (9, '', '')",
            "DROP TABLE tenure.job_history",
            "ALTER TABLE tenure.jobs DROP COLUMN payload",
            "CREATE TABLE tenure.mine (n int)",
        ],
    )
    .await;

    let (operator, pool) = by("operator").await;
    let later = operator.enqueue(request("done").delay(Duration::from_secs(600))).await.unwrap().id;
    assert_eq!(operator.cancel(later).await.unwrap(), tenure::jobs::CancelOutcome::Cancelled);
    let dies = DeadFilter::new().kind("dies");
    assert_eq!(operator.redrive_all(&dies).await.unwrap(), 1);
    assert_eq!(operator.purge_dead(&DeadFilter::default()).await.unwrap(), 1);
    assert!(operator.job(keyed.id).await.unwrap().is_some());
    denied(&pool, &["UPDATE tenure.jobs SET payload = '1'", "DELETE FROM tenure.job_history"]).await;

    let (viewer, pool) = by("viewer").await;
    assert!(!viewer.jobs(&tenure::rows::JobFilter::new(), 100).await.unwrap().is_empty());
    assert!(viewer.job(keyed.id).await.unwrap().is_some());
    assert!(viewer.verify().await.unwrap().iter().all(|rule| rule.jobs == 0));
    for (by, state, found) in [
        (&viewer, CheckState::Skipped, "not tried: a_viewer may not write jobs"),
        (&producer, CheckState::Ok, "Postgres took a write, which was rolled back"),
    ] {
        let checks = by.doctor(&DoctorOptions::default()).await;
        let writes = checks.iter().find(|of| of.check == "writes").unwrap();
        assert_eq!((writes.state, writes.found.as_str()), (state, found));
    }
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'tenure'",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    assert!(tables.len() > 10);
    for table in tables {
        denied(
            &pool,
            &[
                &format!("DELETE FROM {table}"),
                &format!("INSERT INTO {table} DEFAULT VALUES"),
                &format!("TRUNCATE {table}"),
            ],
        )
        .await;
    }
    denied(
        &pool,
        &["UPDATE tenure.jobs SET status = 'queued'", "UPDATE tenure.queues SET paused_at = now()"],
    )
    .await;
}

/// Lanes, expiry and debounce, with the shipped roles: the library and SQL enqueue, workers release and expire, an
/// operator sets the lanes.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_of_the_shipped_roles_uses_lanes_expiry_and_debounce() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let by = with_roles(&bench).await;
    let (operator, of_operator) = by("operator").await;
    operator.put_lanes("q", Lanes::new().running(1).rate(100, Duration::from_secs(1)).turns()).await.unwrap();
    operator.set_lane("q", "a", LaneOptions::new().weight(2.0)).await.unwrap();
    let (worker, of_worker) = by("worker").await;
    let handler = |of: Value, ctx: JobContext| async move {
        match of["n"].as_str() {
            Some("retried") if ctx.attempt() == 1 => {
                Err(JobError::retry_after(Duration::from_millis(50), "again"))
            }
            Some("dies") => Err(JobError::permanent("for good")),
            _ => Outcome::done(1),
        }
    };
    let working =
        Running::start(Worker::builder(&worker).handle_any(KindOptions::new(), handler).concurrency("q", 8));
    bench.until_count("tenure.workers", 1).await;

    let (producer, of_producer) = by("producer").await;
    let of = |n: &str| JobRequest::new("q", "k", json!({"n": n}));
    for n in 0..6 {
        producer.enqueue(of("lane").lane(["a", "b"][n % 2]).priority(1)).await.unwrap();
    }
    producer.enqueue(of("retried").lane("a")).await.unwrap();
    producer.enqueue(of("dies").lane("b")).await.unwrap();
    producer.enqueue(of("keyed").unique_key("u").lane("a")).await.unwrap();
    let soon = chrono::Utc::now() + chrono::TimeDelta::milliseconds(300);
    let late = of("late").delay(Duration::from_secs(3_600)).not_after(soon);
    producer.enqueue(late.clone()).await.unwrap();
    producer.enqueue(late.on_expiry(tenure::OnExpiry::Cancel)).await.unwrap();
    let debounced = |n: &str| of(n).replace("doc").after(Duration::from_millis(300)).lane("a");
    let first = producer.enqueue(debounced("old")).await.unwrap();
    assert_eq!(producer.enqueue(debounced("new")).await.unwrap().id, first.id);
    let mut tx = of_producer.begin().await.unwrap();
    producer.enqueue(of("in").unique_while_queued("x").lane("b")).tx(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let by_sql = [
        "enqueue('q', 'k', '{}', lane => 'c', priority => -1, not_after => now() + interval '1 h', replace => 's')",
        "enqueue('q', 'k', '{}', unique_while_live => 'l')",
        r#"enqueue_many('[{"queue": "q", "kind": "k", "payload": {}, "lane": "c", "on_expiry": "cancel"}]')"#,
    ];
    for pool in [&of_producer, &of_worker, &of_operator] {
        for call in by_sql {
            sqlx::query(AssertSqlSafe(format!("SELECT tenure.{call}"))).execute(pool).await.unwrap();
        }
    }
    bench.until_count("tenure.dead_letter_jobs", 2).await;
    // One dies again; the other has no time of its own any more.
    assert_eq!(operator.redrive_all(&DeadFilter::new().kind("k")).await.unwrap(), 2);
    bench.until_count("tenure.dead_letter_jobs WHERE payload->>'n' = 'dies'", 1).await;
    bench.until_count("tenure.job_history WHERE payload->>'n' = 'late' AND status = 'completed'", 1).await;
    bench.until_count("tenure.job_history WHERE status = 'cancelled'", 1).await;
    bench.until_count("tenure.jobs", 0).await;
    assert_eq!(bench.count("tenure.job_history WHERE payload->>'n' = 'old'").await, 0);
    assert_eq!(bench.count("tenure.job_history WHERE payload->>'n' = 'new'").await, 1);
    // A held job is cancelled, and one becomes due at once.
    let later = of("later").delay(Duration::from_secs(3_600)).lane("a");
    let held = producer.enqueue(later.clone()).await.unwrap().id;
    assert_eq!(operator.cancel(held).await.unwrap(), tenure::jobs::CancelOutcome::Cancelled);
    let held: uuid::Uuid = bench.value("SELECT tenure.enqueue('q', 'k', lane => 'a', delay => '1 h')").await;
    let cancel = format!("SELECT tenure.cancel('{held}')");
    sqlx::query(AssertSqlSafe(cancel)).execute(&of_operator).await.unwrap();
    assert_eq!(bench.count("tenure.lane_jobs").await, 0);
    // An empty lane is swept, and the lane with a weight stays.
    bench.until_count("tenure.lanes", 1).await;
    denied(
        &of_worker,
        &[
            "UPDATE tenure.lanes SET running = 100",
            "UPDATE tenure.lane_settings SET running = 100",
            "DELETE FROM tenure.lanes",
            "DELETE FROM tenure.lane_settings",
            "DELETE FROM tenure.lane_slots",
            "UPDATE tenure.lane_jobs SET priority = 1",
            "SELECT tenure.put_lanes('q', NULL, NULL, NULL, NULL, NULL, false, false, '1s')",
        ],
    )
    .await;
    let (viewer, _) = by("viewer").await;
    assert_eq!(viewer.lane_settings().await.unwrap().len(), 1);
    assert_eq!(viewer.lanes("q", 10).await.unwrap().len(), 1);
    assert!(operator.remove_lanes("q").await.unwrap());
    working.stop().await;
    for role in ["producer", "worker", "operator", "viewer"] {
        let rights = by(role).await.0.doctor(&DoctorOptions::default()).await;
        let rights = rights.iter().find(|of| of.check == "rights").unwrap();
        assert_eq!(rights.found, format!("a_{role} has the rights of tenure_{role}"));
    }
    bench.every_job_is_as_it_must_be().await;
}

/// A certificate authority, with a certificate for this machine and one for its client.
fn certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let openssl = |arguments: &str| {
        let output = std::process::Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(
        folder.join("names"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE",
    );
    for name in ["server", "client"] {
        openssl(&format!("req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN=tenure"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile names"
        ));
    }
    // Another authority, which no server trusts.
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout other.key -out other.pem -days 2 -subj /CN=other");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_servers_are_reached_by_tls_with_certificates_and_only_with_the_right_ones() {
    let folder = run_folder().join(format!("tls-{}", uuid::Uuid::new_v4()));
    let certs = folder.join("certs");
    certificates(&certs);
    // This program has both of rustls's providers, so neither is its default: code that uses the default panics.
    assert!(
        std::panic::catch_unwind(rustls::ClientConfig::builder).is_err(),
        "rustls found a default provider"
    );
    let (pg, nats_folder, conf) = (folder.join("postgres"), folder.join("nats"), folder.join("nats.conf"));
    let path = |name: &str| certs.join(name).display().to_string();
    std::fs::write(
        &conf,
        format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}\n",
            path("server.pem"),
            path("server.key"),
            path("ca.pem")
        ),
    )
    .unwrap();
    // The key file must belong to Postgres.
    std::fs::create_dir_all(&pg).unwrap();
    for name in ["server.pem", "server.key", "ca.pem"] {
        std::fs::copy(certs.join(name), pg.join(name)).unwrap();
        std::os::unix::fs::chown(pg.join(name), postgres_user().map(|user| user.0), None).unwrap();
    }
    std::process::Command::new("chmod").arg("600").arg(pg.join("server.key")).status().unwrap();
    let settings: Vec<String> =
        [("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key"), ("ssl_ca_file", "ca.pem")]
            .iter()
            .map(|(name, file)| format!("{name}={}", pg.join(file).display()))
            .chain(["ssl=on".to_owned()])
            .collect();
    let (postgres, nats) = tokio::task::spawn_blocking(move || {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        (
            Postgres::start_with(&pg, false, &settings).unwrap(),
            Nats::start_with(&nats_folder, Some(&conf)).unwrap(),
        )
    })
    .await
    .unwrap();
    let database = |ca: &str| format!("{}?sslmode=verify-full&sslrootcert={}", postgres.url(), path(ca));
    let mut config = Config::new(database("ca.pem"), format!("tls://localhost:{}", nats.port()));
    config.runtime_dir = folder.join("run");
    config.nats_ca = Some(certs.join("ca.pem"));
    config.nats_certificate = Some((certs.join("client.pem"), certs.join("client.key")));
    config.timing.database_within = Duration::from_secs(3);
    let tenure = Tenure::connect(&config).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    let pool = PgPool::connect(&config.database_url).await.unwrap();
    let working = Running::start(
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 2),
    );
    let id = tenure.enqueue(request("k")).await.unwrap().id;
    assert_eq!(tenure.wait(id, Duration::MAX).await.unwrap().unwrap().status, tenure::Status::Completed);
    let encrypted: bool =
        sqlx::query_scalar("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tenure'")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert!(encrypted);
    working.stop().await;

    // The servers reject another authority's certificate, and a client without one.
    let stranger =
        Tenure::connect(&with(&config, |config| config.database_url = database("other.pem"))).await.unwrap();
    let error = stranger.enqueue(request("k")).await.unwrap_err();
    assert!(format!("{:?}", JobError::from(error)).to_lowercase().contains("certificate"), "of Postgres");
    for wrong in [
        with(&config, |config| config.nats_ca = Some(certs.join("other.pem"))),
        with(&config, |config| config.nats_certificate = None),
    ] {
        let stranger = Tenure::connect(&wrong).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(3), stranger.setup(&["r".into()])).await;
        assert!(!matches!(answer, Ok(Ok(_))), "NATS let it in");
    }
    // The server has no TLS: Postgres stores the job, and the client tries again until it reaches a server with TLS.
    let plain = bench().await;
    let link = Proxy::to_url(&plain.config.nats_url).await;
    let url = link.of(&plain.config.nats_url).replace("nats://127.0.0.1", "tls://localhost");
    let refused = with(&config, |config| config.nats_url = url);
    let stranger = Tenure::connect(&refused).await.unwrap();
    assert!(stranger.setup(&["r".into()]).await.is_err(), "a server without TLS");
    let id = stranger.enqueue(request("k")).await.unwrap().id;
    assert_eq!(tenure.job(id).await.unwrap().unwrap().status, tenure::Status::Queued);
    link.lead_to(nats.port());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while stranger.setup(&["r".into()]).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the client does not come back");
    }
    let missing = with(&config, |config| config.nats_ca = Some(PathBuf::from("/nowhere/ca.pem")));
    let error = Tenure::connect(&missing).await.unwrap_err().to_string();
    assert!(error.contains("TENURE_NATS_CA") && error.contains("/nowhere/ca.pem"), "{error}");
    let no_key = (certs.join("client.pem"), certs.join("names"));
    let garbage = with(&config, |config| config.nats_certificate = Some(no_key));
    let error = Tenure::connect(&garbage).await.unwrap_err().to_string();
    assert!(error.contains("TENURE_NATS_KEY") && error.contains("no PRIVATE KEY in PEM"), "{error}");
}

fn jwt(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: &Value) -> String {
    let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let head = encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let claims = encode(&json!({
        "jti": name, "iat": 1_700_000_000, "iss": issuer.public_key(), "name": name, "sub": subject.public_key(), "nats": nats,
    }));
    let text = format!("{head}.{claims}");
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// The files that `nsc` makes: an operator, an account, and a user's credentials.
#[tokio::test(flavor = "multi_thread")]
async fn a_credentials_file_opens_nats_and_another_users_does_not() {
    let bench = bench().await;
    let folder = run_folder().join(format!("creds-{}", bench.config.stream));
    std::fs::create_dir_all(&folder).unwrap();
    let key = |kind: KeyPairType| KeyPair::new(kind);
    let (operator, system, account) =
        (key(KeyPairType::Operator), key(KeyPairType::Account), key(KeyPairType::Account));
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let of_account = json!({ "type": "account", "version": 2, "limits": limits });
    let conf = folder.join("server.conf");
    std::fs::write(
        &conf,
        format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n  {}: {}\n  {}: {}\n}}\n",
            jwt(&operator, &operator, "O", &json!({ "type": "operator", "version": 2 })),
            system.public_key(),
            system.public_key(),
            jwt(&operator, &system, "SYS", &json!({ "type": "account", "version": 2, "limits": { "subs": -1, "conn": -1, "data": -1, "payload": -1 } })),
            account.public_key(),
            jwt(&operator, &account, "A", &of_account),
        ),
    )
    .unwrap();
    let credentials = |name: &str, issuer: &KeyPair| {
        let user = key(KeyPairType::User);
        let token = jwt(
            issuer,
            &user,
            name,
            &json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 }),
        );
        let file = folder.join(format!("{name}.creds"));
        let seed = user.seed().unwrap();
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(&file, text).unwrap();
        file
    };
    let (good, bad) = (credentials("good", &account), credentials("bad", &key(KeyPairType::Account)));
    let nats_folder = folder.join("nats");
    let nats = tokio::task::spawn_blocking(move || Nats::start_with(&nats_folder, Some(&conf)).unwrap())
        .await
        .unwrap();
    let config = |file: &Path| {
        with(&bench.config, |config| {
            config.nats_url = nats.url();
            config.nats_credentials = Some(file.to_path_buf());
        })
    };
    let tenure = Tenure::connect(&config(&good)).await.unwrap();
    tenure.setup(&["q".into()]).await.unwrap();
    let working = Running::start(
        Worker::builder(&tenure).handle_any(KindOptions::new(), |_, _| async {}).concurrency("q", 1),
    );
    let id = tenure.enqueue(request("k")).await.unwrap().id;
    assert_eq!(tenure.wait(id, Duration::MAX).await.unwrap().unwrap().status, tenure::Status::Completed);
    working.stop().await;
    let stranger = Tenure::connect(&config(&bad)).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(3), stranger.setup(&["r".into()])).await;
    assert!(!matches!(answer, Ok(Ok(_))), "NATS let it in");
    let error = Tenure::connect(&config(&folder.join("none.creds"))).await.unwrap_err().to_string();
    assert!(error.contains("TENURE_NATS_CREDENTIALS") && error.contains("none.creds"), "{error}");
}

/// A worker's log at its default level, while jobs complete, fail, die and are refused, and the servers go away.
#[tokio::test(flavor = "multi_thread")]
async fn neither_passwords_nor_payloads_stand_in_the_logs() {
    let mut bench = bench_with_servers(|config| {
        config.timing.stale_after = Duration::from_secs(20);
        config.timing.ack_wait = Duration::from_secs(30);
    })
    .await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    // In a payload, a checkpoint, an output, a key and a refused message.
    let secret = "s3cr3t-8f1c";
    let command = "case $TENURE_KIND in fails) exit 1;; dies) exit 65;; esac; \
                   read line; echo \"{\\\"checkpoint\\\": $line, \\\"stage\\\": \\\"s\\\"}\"; echo \"{\\\"output\\\": $line}\"";
    let program = bench.program(&["work", "q", "--exec", command, "--concurrency", "2"]);
    let mut worker = Child::spawn(program, "work");
    worker.until_log("worker started").await;
    for kind in ["done", "fails", "dies"] {
        let request = JobRequest::new("q", kind, json!({ "card": secret })).max_attempts(1);
        bench.tenure.enqueue(request.unique_key(format!("{secret}-{kind}"))).await.unwrap();
    }
    bench.publish("q.done", secret).await;
    bench.publish("q.done", &format!("{{\"card\": \"{secret}\\u0000\"}}")).await;
    bench.until_count("tenure.dead_letter_jobs", 4).await;
    bench
        .until_count("tenure.job_history WHERE status = 'completed' AND output->>'card' IS NOT NULL", 1)
        .await;
    let own = bench.own.as_mut().unwrap();
    own.postgres.stop();
    own.nats.stop();
    tokio::time::sleep(Duration::from_secs(2)).await;
    own.postgres.restart().unwrap();
    own.nats.restart().unwrap();
    // Its connections were open before the restart.
    while bench.tenure.enqueue(request("done")).await.is_err() {}
    bench.until_count("tenure.job_history WHERE status = 'completed'", 2).await;
    worker.signal(rustix::process::Signal::TERM);
    assert_eq!(worker.wait().await, Some(0));
    let log = worker.log();
    assert!(log.contains("dead letter") && log.contains("attempt ended"), "it is a real log:\n{log}");
    assert!(!log.contains(secret), "{log}");
    let password = bench.config.database_url.split(':').nth(2).unwrap().split('@').next().unwrap();
    assert!(password.len() > 10 && !log.contains(password), "{log}");
    // The command line's error without a connection holds none either.
    for (name, value) in
        [("DATABASE_URL", "postgres://u:s3cr3t-8f1c@127.0.0.1:1/x"), ("NATS_URL", "nats://u:s3cr3t-8f1c@:x")]
    {
        let output =
            bench.program(&["jobs", "list"]).env(name, value).env("TENURE_DATABASE_WITHIN", "500ms").output();
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !said.contains(secret), "{said}");
    }
}

/// PUBLIC may not execute the schema's functions, even without the roles of `postgres/roles.sql`.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_use_the_schema_may_not_purge() {
    let bench = bench_with_servers(|_| {}).await;
    bench.execute("CREATE ROLE anybody").await;
    bench.execute("GRANT USAGE ON SCHEMA tenure TO anybody").await;
    let functions: Vec<String> = sqlx::query_scalar(
        "SELECT p.oid::regprocedure::text FROM pg_proc p
          WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname LIKE 'purge%'
            AND has_function_privilege('anybody', p.oid, 'EXECUTE')",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    assert_eq!(functions, [""; 0]);
    assert!(
        bench.count("pg_proc WHERE pronamespace = 'tenure'::regnamespace AND proname LIKE 'purge%'").await
            >= 7
    );
}

/// Groups and events, with the shipped roles.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_of_the_shipped_roles_uses_groups_and_events() {
    let bench = bench_with_servers(|_| {}).await;
    bench.tenure.setup(&["q".into()]).await.unwrap();
    let by = with_roles(&bench).await;
    let (worker, _) = by("worker").await;
    let handler = |of: Value, ctx: JobContext| async move {
        match of["n"].as_str() {
            Some("adds") => {
                let more = [JobRequest::new("q", "k", json!({"n": "more"}))];
                ctx.add_to_group("more", more).await?;
                Outcome::done(1)
            }
            Some("dies") => Err(JobError::permanent("for good")),
            Some("asks") => {
                let parts = (0..2).map(|_| JobRequest::new("q", "k", json!({"n": "part"})));
                let parts: Vec<u8> = ctx.all("parts", parts).await?;
                let come: u8 = ctx.event("come").await?;
                Outcome::done(parts.iter().sum::<u8>() + come)
            }
            Some("ends") => Outcome::done(ctx.outputs::<u8>().await?.len()),
            _ => Outcome::done(1),
        }
    };
    let working =
        Running::start(Worker::builder(&worker).handle_any(KindOptions::new(), handler).concurrency("q", 8));
    let (producer, of_producer) = by("producer").await;
    let (operator, _) = by("operator").await;
    producer.can_enqueue().await.unwrap();
    let (viewer, _) = by("viewer").await;
    let refused = viewer.can_enqueue().await.unwrap_err();
    assert!(refused.to_string().contains("may not add jobs"), "{refused}");
    let of = |n: &str| JobRequest::new("q", "k", json!({ "n": n })).max_attempts(1);
    let group = producer.group([of("adds"), of("part")]).then(of("ends").unique_key("once")).await.unwrap();
    assert_eq!(bench.until_finished(group.id).await.output, Some(json!(3)));
    let asks = producer.enqueue(of("asks")).await.unwrap().id;
    bench.until_count("tenure.effects WHERE step_kind = 'awaited'", 1).await;
    assert_eq!(producer.signal(asks, "come", &5).await.unwrap(), Signalled::Delivered);
    assert_eq!(bench.until_finished(asks).await.output, Some(json!(7)));
    let dies = producer.group([of("dies")]).then(of("ends")).await.unwrap();
    bench.until_count("tenure.followers WHERE cut_at IS NOT NULL", 1).await;
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{}'").await;
    assert_eq!(operator.redrive_all(&DeadFilter::new().kind("k")).await.unwrap(), 1);
    bench
        .until(&format!(
            "EXISTS (SELECT FROM tenure.job_history WHERE id = '{}' AND status = 'completed')",
            dies.id
        ))
        .await;
    // An operator begins a calm redrive, and the workers go on with it.
    let again = producer.enqueue(of("dies")).await.unwrap().id;
    assert_eq!(bench.until_finished(again).await.status, Status::Failed);
    bench.execute("UPDATE tenure.dead_letter_jobs SET payload = '{}'").await;
    let begun = operator.redrive_calmly(&DeadFilter::new(), CalmRedrive::new()).await.unwrap().unwrap();
    bench.until_count("tenure.redrives WHERE state = 'done' AND completed = 1", 1).await;
    assert!(!operator.stop_redrive(begun.id).await.unwrap());
    assert!(worker.redrive_calmly(&DeadFilter::new(), CalmRedrive::new()).await.is_err());
    // A producer makes no job of others wait.
    let other = bench.tenure.enqueue(of("part").delay(Duration::from_secs(3_600))).await.unwrap().id;
    let own = producer.enqueue(of("part").delay(Duration::from_secs(3_600))).await.unwrap().id;
    denied(
        &of_producer,
        &[
            "INSERT INTO tenure.job_edges (before, after, group_id) SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid()",
            "INSERT INTO tenure.followers (job_id, group_id, on_failure) SELECT gen_random_uuid(), gen_random_uuid(), 'cancel'",
            "SELECT tenure.wake_jobs('{}')",
            "SELECT tenure.release_followers(1)",
            "SELECT tenure.reopen_edges('{}')",
            "UPDATE tenure.jobs SET publish_at = 'infinity', published_at = NULL",
            "INSERT INTO tenure.audit (via, act) VALUES ('sql', 'cancel')",
        ],
    )
    .await;
    let link = "SELECT tenure.link_jobs(ARRAY[$1], ARRAY[$2], gen_random_uuid())";
    let refused = sqlx::query(link).bind(own).bind(other).execute(&of_producer).await.unwrap_err();
    assert!(refused.to_string().contains("no new job of this group"), "{refused}");
    let edges = "SELECT tenure.link_jobs(ARRAY[$1], ARRAY[gen_random_uuid()], gen_random_uuid())";
    let refused = sqlx::query(edges).bind(own).execute(&of_producer).await.unwrap_err();
    assert!(refused.to_string().contains("is no follower"), "what nothing would sweep: {refused}");
    // It hands a job to the relay, for an hour at most.
    bench
        .execute(&format!(
            "UPDATE tenure.jobs SET publish_at = NULL, published_at = now() WHERE id = '{own}'"
        ))
        .await;
    let put_off = "SELECT count(*) FROM tenure.unpublished(ARRAY[$1], ARRAY[0], 'infinity')";
    assert_eq!(sqlx::query_scalar::<_, i64>(put_off).bind(own).fetch_one(&of_producer).await.unwrap(), 1);
    let soon = format!("tenure.jobs WHERE id = '{own}' AND publish_at < now() + interval '61 min'");
    assert_eq!(bench.count(&soon).await, 1);
    working.stop().await;
}
