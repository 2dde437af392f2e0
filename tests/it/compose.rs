//! Compose: the services of docker-compose.yml, run without Docker: its command lines, its environment, its checks.
//!
//! The test takes them from the file as they stand, and replaces only the names of hosts and the ports.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tenure::dev::{Nats, Postgres, free_port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

use crate::harness::{Child, run_folder};

fn root() -> PathBuf {
    crate::harness::ROOT.into()
}

/// Replaces `${NAME:-default}` by its default, as on a machine where no variable is set.
fn resolved(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, after) = after.split_once('}').unwrap();
        out.push_str(before);
        out.push_str(variable.split_once(":-").unwrap().1);
        rest = after;
    }
    out + rest
}

/// The file, and the real addresses of its servers.
struct Compose {
    text: String,
    services: Value,
    postgres: u16,
    nats: u16,
    folder: PathBuf,
}

impl Compose {
    fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(root().join("docker-compose.yml")).unwrap();
        let mut document: Value = serde_saphyr::from_str(&resolved(&text)).unwrap();
        Self { text, services: document["services"].take(), postgres: 0, nats: 0, folder: folder.into() }
    }

    fn words(&self, service: &str, of: &str) -> Vec<String> {
        let words = self.services[service][of].as_array().unwrap_or_else(|| panic!("{service} has no {of}"));
        words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    fn variable(&self, service: &str, name: &str) -> String {
        self.services[service]["environment"][name].as_str().unwrap().to_owned()
    }

    /// A program with only the environment of a service, and this machine's addresses in place of the file's.
    fn program(&self, service: &str, program: &str, arguments: &[String], port: u16) -> Command {
        let here = |text: &str| {
            text.replace("@postgres:5432", &format!("@127.0.0.1:{}", self.postgres))
                .replace("@nats:4222", &format!("@127.0.0.1:{}", self.nats))
                .replace(":9090", &format!(":{port}"))
                .replace("/9090", &format!("/{port}"))
        };
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).kill_on_drop(true);
        command.args(arguments.iter().map(|word| here(word)));
        for (name, value) in self.services[service]["environment"].as_object().unwrap() {
            command.env(name, here(value.as_str().unwrap()));
        }
        // Each container is a separate host.
        command
            .env("TENURE_HOSTNAME", format!("compose-{service}"))
            .env("TENURE_RUNTIME_DIR", self.folder.join(service));
        command
    }

    fn start(&self, service: &str, port: u16) -> Child {
        let program = env!("CARGO_BIN_EXE_tenure");
        let command = self.program(service, program, &self.words(service, "command"), port);
        Child::spawn(command, &format!("compose-{service}"))
    }

    /// Runs the service's own health check until it passes.
    async fn until_healthy(&self, service: &str, port: u16, child: &Child) {
        let test =
            serde_json::from_value::<Vec<String>>(self.services[service]["healthcheck"]["test"].clone());
        let test = test.unwrap();
        assert_eq!(test[0], "CMD", "{service}");
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ran = self.program(service, &test[1], &test[2..], port).output().await.unwrap();
            if ran.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(Instant::now() < deadline, "{service} is not healthy: {said}\n{}", child.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The service's grace, such as `45s` or `2m`.
    fn stop_grace(&self, service: &str) -> Duration {
        let text = self.services[service]["stop_grace_period"].as_str().unwrap_or("10s");
        humantime::parse_duration(text).unwrap()
    }

    /// The command that the file's first lines tell a reader to type, without its Docker part.
    fn documented(&self, service: &str) -> String {
        let typed = format!("docker compose run --rm {service} ");
        let line = self.text.lines().find_map(|line| Some(line.split_once(&typed)?.1));
        line.unwrap_or_else(|| panic!("docker-compose.yml no longer says {typed:?}")).to_owned()
    }
}

/// The status line of a path, requested without a password.
async fn status(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

/// Starts the servers that the file describes: its users, passwords, database and configuration of NATS.
async fn servers(compose: &Compose) -> (Postgres, Nats) {
    let folder = compose.folder.clone();
    let mount = compose.words("nats", "volumes").into_iter().find(|mount| mount.contains(".conf")).unwrap();
    let (source, inside) = mount.trim_end_matches(":ro").split_once(':').unwrap();
    assert_eq!(compose.words("nats", "command"), ["-c", inside]);
    let mut conf = std::fs::read_to_string(root().join(source)).unwrap();
    for (name, value) in compose.services["nats"]["environment"].as_object().unwrap() {
        assert!(conf.contains(&format!("${name}\n")), "{name} is not in {source}");
        conf = conf.replace(&format!("${name}\n"), &format!("{}\n", value.as_str().unwrap()));
    }
    assert!(!conf.contains("_PASSWORD\n"), "a password of {source} is not set");
    // The test chooses the port and the folder.
    for line in ["listen: 0.0.0.0:4222\n", "http: 127.0.0.1:8222\n", "  store_dir: \"/data\"\n"] {
        assert!(conf.contains(line), "the shipped configuration has changed: {line}");
        conf = conf.replace(line, "");
    }
    let servers = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("server.conf");
        std::fs::write(&path, conf).unwrap();
        let postgres = Postgres::start(&folder.join("postgres"), false).unwrap();
        (postgres, Nats::start_with(&folder.join("nats"), Some(&path)).unwrap())
    });
    let (postgres, nats) = servers.await.unwrap();
    let of = |name| compose.variable("postgres", name);
    assert_eq!(of("POSTGRES_USER"), "tenure", "the test's own server has that user");
    let admin = PgPool::connect(&postgres.url()).await.unwrap();
    for sql in [
        format!("CREATE DATABASE {}", of("POSTGRES_DB")),
        format!("ALTER ROLE {} PASSWORD '{}'", of("POSTGRES_USER"), of("POSTGRES_PASSWORD")),
    ] {
        sqlx::query(AssertSqlSafe(sql)).execute(&admin).await.unwrap();
    }
    admin.close().await;
    (postgres, nats)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_compose_file_migrates_works_serves_and_stops_in_time() {
    let folder = run_folder().join("compose");
    let mut compose = Compose::read(&folder);
    let (postgres, nats) = servers(&compose).await;
    (compose.postgres, compose.nats) = (postgres.port(), nats.port());

    let mut migrate = compose.start("migrate", 0);
    assert_eq!(migrate.wait().await, Some(0), "{}", migrate.log());

    let [worker_port, serve_port] = [(); 2].map(|()| free_port().unwrap());
    let mut worker = compose.start("worker", worker_port);
    let mut serve = compose.start("serve", serve_port);
    compose.until_healthy("worker", worker_port, &worker).await;
    compose.until_healthy("serve", serve_port, &serve).await;
    // Probes need no password; every other page does.
    assert!(status(serve_port, "/livez").await.contains("200"));
    assert!(status(serve_port, "/metrics").await.contains("401"));

    let typed = format!("exec {} {}", env!("CARGO_BIN_EXE_tenure"), compose.documented("worker"));
    let ran = compose.program("worker", "sh", &["-c".into(), typed], 0).output().await.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let id: tenure::JobId = String::from_utf8(ran.stdout).unwrap().trim().parse().unwrap();

    let database = compose.variable("worker", "DATABASE_URL");
    let database = database.replace("@postgres:5432", &format!("@127.0.0.1:{}", postgres.port()));
    let pool = PgPool::connect(&database).await.unwrap();
    let sql = format!("SELECT status::text FROM tenure.all_jobs WHERE id = '{id}'");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let is: String = sqlx::query_scalar(AssertSqlSafe(sql.as_str())).fetch_one(&pool).await.unwrap();
        if is == "completed" {
            break;
        }
        assert!(Instant::now() < deadline, "it is {is}:\n{}", worker.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    pool.close().await;

    for (name, child) in [("worker", &mut worker), ("serve", &mut serve)] {
        let (told, grace) = (Instant::now(), compose.stop_grace(name));
        child.signal(Signal::TERM);
        assert_eq!(child.wait().await, Some(0), "{name}: {}", child.log());
        assert!(told.elapsed() < grace, "{name} took {:?} of {grace:?} to stop", told.elapsed());
    }
}
