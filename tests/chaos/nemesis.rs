//! The nemesis: it carries out the plan.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use async_nats::jetstream;
use rustix::process::Signal;
use sqlx::PgPool;
use tenure::{Config, dev::Servers};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    plan::{Event, Fault, Link, Trouble},
    process::{Death, Journal, Process},
    proxy::Proxy,
    roles::{FOREIGN_QUEUE, LANES},
};

pub struct Nemesis {
    servers: Arc<tokio::sync::Mutex<Servers>>,
    processes: Vec<Process>,
    config: Config,
    pool: PgPool,
    journal: Arc<Mutex<Journal>>,
    hold: PathBuf,
    done: Mutex<Vec<Event>>,
    skipped: Mutex<u32>,
}

impl Nemesis {
    pub fn new(
        servers: Servers,
        processes: Vec<Process>,
        config: Config,
        pool: PgPool,
        journal: Arc<Mutex<Journal>>,
        hold: PathBuf,
    ) -> Self {
        let servers = Arc::new(tokio::sync::Mutex::new(servers));
        Self {
            servers,
            processes,
            config,
            pool,
            journal,
            hold,
            done: Mutex::default(),
            skipped: Mutex::default(),
        }
    }

    pub async fn inflict(&self, event: Event) {
        if Box::pin(self.try_to_inflict(event)).await {
            self.done.lock().unwrap().push(event);
        } else {
            *self.skipped.lock().unwrap() += 1;
        }
    }

    async fn try_to_inflict(&self, Event { fault, lasts, .. }: Event) -> bool {
        let process = match fault {
            Fault::Kill { process }
            | Fault::KillAt { process, .. }
            | Fault::Pause { process }
            | Fault::Disturb { process, .. } => process,
            Fault::Stop { worker } | Fault::StopThenKill { worker } => worker,
            _ => return Box::pin(self.to_a_server(fault, lasts)).await,
        };
        let process = &self.processes[process];
        if process.busy.swap(true, Ordering::SeqCst) {
            return false;
        }
        let happened;
        match fault {
            Fault::Kill { .. } => happened = process.signal(Signal::KILL),
            Fault::KillAt { point, .. } => {
                process.arm(point);
                process.signal(Signal::KILL);
                let before = process.fired().len();
                // No other fault touches the process until it has reached the point.
                for _ in 0..50 {
                    sleep(Duration::from_millis(100)).await;
                    if process.fired().len() > before {
                        break;
                    }
                }
                happened = process.fired().len() > before;
            }
            Fault::Pause { .. } => {
                happened = process.signal(Signal::STOP);
                sleep(lasts).await;
                process.signal(Signal::CONT);
            }
            Fault::Stop { .. } => happened = process.signal(Signal::TERM),
            Fault::StopThenKill { .. } => {
                process.signal(Signal::TERM);
                sleep(lasts / 4).await;
                happened = process.signal(Signal::KILL);
            }
            Fault::Disturb { link, trouble, .. } => {
                let links: &[&Proxy] = match link {
                    Link::Postgres => &[&process.postgres],
                    Link::Nats => &[&process.nats],
                    Link::Both => &[&process.postgres, &process.nats],
                };
                for link in links {
                    match trouble {
                        Trouble::Cut => link.cut(),
                        Trouble::AnswersCut => link.cut_answers(),
                        Trouble::RequestsCut => link.cut_requests(),
                        Trouble::Slow(ms) => link.delay(Duration::from_millis(ms.into())),
                        Trouble::BrokenOff => link.break_off(),
                        // The text that sqlx sends.
                        Trouble::CommitsUnanswered => link.lose_answer_to(b"COMMIT"),
                    }
                }
                let before: u32 = links.iter().map(|link| link.lost()).sum();
                sleep(lasts).await;
                for link in links {
                    link.mend();
                }
                let lost = links.iter().map(|link| link.lost()).sum::<u32>() > before;
                happened = trouble != Trouble::CommitsUnanswered || lost;
            }
            _ => unreachable!("a server's"),
        }
        process.busy.store(false, Ordering::SeqCst);
        happened
    }

    async fn to_a_server(&self, fault: Fault, lasts: Duration) -> bool {
        // One at a time: faults of servers exclude each other.
        let Ok(servers) = self.servers.clone().try_lock_owned() else { return false };
        match fault {
            Fault::PostgresRestarted => {
                blocking(servers, move |servers| {
                    servers.postgres.stop();
                    std::thread::sleep(lasts);
                    servers.postgres.restart().unwrap();
                })
                .await;
            }
            Fault::PostgresKilled => {
                blocking(servers, move |servers| {
                    servers.postgres.kill();
                    servers.postgres.restart().unwrap();
                })
                .await;
            }
            Fault::PostgresFrozen => {
                blocking(servers, move |servers| {
                    let frozen = family(servers.postgres.pid());
                    signal_all(&frozen, Signal::STOP);
                    std::thread::sleep(lasts);
                    signal_all(&frozen, Signal::CONT);
                })
                .await;
            }
            Fault::NatsRestarted => {
                blocking(servers, move |servers| {
                    servers.nats.stop();
                    std::thread::sleep(lasts);
                    servers.nats.restart().unwrap();
                })
                .await;
            }
            Fault::NatsKilled => {
                blocking(servers, move |servers| {
                    servers.nats.kill();
                    servers.nats.restart().unwrap();
                })
                .await;
            }
            Fault::NatsFrozen => {
                blocking(servers, move |servers| {
                    servers.nats.signal(Signal::STOP);
                    std::thread::sleep(lasts);
                    servers.nats.signal(Signal::CONT);
                })
                .await;
            }
            Fault::NatsWiped => {
                return self
                    .without_submissions(blocking(servers, |servers| {
                        servers.nats.stop();
                        servers.nats.wipe().unwrap();
                        servers.nats.restart().unwrap();
                    }))
                    .await
                    .is_some();
            }
            Fault::NatsRestored => {
                let data = self.hold.with_file_name("nats").join("data");
                let restore = blocking(servers, move |servers| restore_nats(servers, &data, lasts));
                let restored = Box::pin(self.without_submissions(restore)).await;
                let Some(servers) = restored else { return false };
                // The next submissions get sequences of messages whose jobs still run.
                drop(blocking(servers, |servers| servers.nats.restart().unwrap()).await);
            }
            Fault::StreamDeleted => {
                let delete = async {
                    drop(self.js().await.delete_stream(&self.config.stream).await);
                };
                return Box::pin(self.without_submissions(delete)).await.is_some();
            }
            Fault::ConsumerDeleted => {
                let js = self.js().await;
                for queue in ["chaos", LANES, FOREIGN_QUEUE] {
                    drop(js.delete_consumer_from_stream(queue, &self.config.stream).await);
                }
            }
            Fault::SessionsEnded => {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                            WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
                return sqlx::query(sql).execute(&self.pool).await.is_ok();
            }
            Fault::TableLocked => {
                let locked = async {
                    let mut tx = self.pool.begin().await?;
                    sqlx::query("LOCK TABLE tenure.jobs IN ACCESS EXCLUSIVE MODE").execute(&mut *tx).await?;
                    sleep(lasts).await;
                    tx.rollback().await
                };
                return locked.await.is_ok();
            }
            Fault::Duplicates => return self.publish_again().await,
            _ => unreachable!("a process's"),
        }
        true
    }

    async fn js(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(&self.config.nats_url).await.unwrap())
    }

    /// Does the work once every submission has its row: otherwise it would be lost with the stream.
    async fn without_submissions<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        std::fs::write(&self.hold, "").unwrap();
        // Longer than one try to publish.
        sleep(Duration::from_secs(4)).await;
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut all_have_rows = false;
        while !all_have_rows && Instant::now() < deadline {
            sleep(Duration::from_millis(200)).await;
            let accepted = self.journal.lock().unwrap().accepted("submission");
            let missing = "SELECT count(*) FROM unnest($1::uuid[]) n
                            WHERE n NOT IN (SELECT (payload->>'n')::uuid FROM tenure.all_jobs WHERE payload ? 'n')";
            let missing: Result<i64, _> =
                sqlx::query_scalar(missing).bind(accepted).fetch_one(&self.pool).await;
            all_have_rows = missing.is_ok_and(|missing| missing == 0);
        }
        let done = if all_have_rows { Some(work.await) } else { None };
        std::fs::remove_file(&self.hold).unwrap();
        done
    }

    /// Publishes tickets of jobs that wait, run or have ended, with old dispatches too.
    async fn publish_again(&self) -> bool {
        let sql = "SELECT id, queue, kind FROM tenure.all_jobs ORDER BY random() LIMIT 40";
        let jobs: Result<Vec<(Uuid, String, String)>, _> = sqlx::query_as(sql).fetch_all(&self.pool).await;
        let Ok(jobs) = jobs else { return false };
        let js = self.js().await;
        for (id, queue, kind) in jobs {
            for dispatch in [0, 1, 1, 2] {
                let mut headers = async_nats::HeaderMap::new();
                headers.insert("Tenure-Job-Id", id.to_string());
                let body = format!(r#"{{"job_id": "{id}", "dispatch": {dispatch}, "cleared": false}}"#);
                drop(js.publish_with_headers(format!("jobs.{queue}.{kind}"), headers, body.into()).await);
            }
        }
        true
    }

    /// Ends all faults.
    pub async fn heal(&self) {
        for process in &self.processes {
            process.postgres.mend();
            process.nats.mend();
            process.signal(Signal::CONT);
        }
        let (producer, workers) = self.processes.split_last().unwrap();
        producer.stop(Signal::KILL).await;
        for worker in workers.iter().filter(|worker| worker.is_armed()) {
            worker.signal(Signal::KILL);
        }
    }

    pub async fn messages(&self) -> Option<u64> {
        let stream = self.js().await.get_stream(&self.config.stream).await.ok()?;
        Some(stream.cached_info().state.messages)
    }

    /// Ends all processes. Returns every death.
    pub async fn stop(&self) -> Vec<Death> {
        let mut deaths = Vec::new();
        for process in &self.processes {
            deaths.extend(process.stop(Signal::TERM).await);
        }
        deaths
    }

    pub fn injected(&self) -> (Vec<Event>, u32) {
        (self.done.lock().unwrap().clone(), *self.skipped.lock().unwrap())
    }
}

/// Does slow work on the servers.
async fn blocking(
    mut servers: tokio::sync::OwnedMutexGuard<Servers>,
    work: impl FnOnce(&mut Servers) + Send + 'static,
) -> tokio::sync::OwnedMutexGuard<Servers> {
    let work = move || {
        work(&mut servers);
        servers
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Copies what NATS has stored, lets it go on for this long, kills it, and puts the copy in its place.
fn restore_nats(servers: &mut Servers, data: &Path, lasts: Duration) {
    let before = data.with_file_name("before");
    servers.nats.signal(Signal::STOP);
    let copied = Command::new("cp").arg("-a").args([data, &before]).status().unwrap();
    servers.nats.signal(Signal::CONT);
    assert!(copied.success());
    std::thread::sleep(lasts);
    servers.nats.kill();
    servers.nats.wipe().unwrap();
    std::fs::rename(&before, data).unwrap();
}

/// A process and its children.
fn family(parent: Option<i32>) -> Vec<i32> {
    let Some(parent) = parent else { return vec![] };
    let output = std::process::Command::new("ps")
        .args(["-o", "pid=", "--ppid", &parent.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut pids: Vec<i32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    pids.push(parent);
    pids
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
            rustix::process::kill_process(pid, signal).ok();
        }
    }
}
