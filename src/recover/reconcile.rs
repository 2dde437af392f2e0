//! Reconcile: at its start, a worker resets the jobs that dead processes of its host left behind.
//!
//! A hostname proves nothing: two workers may share a host, containers share names, and names share
//! prefixes. A process is proven dead when its lock file can be locked (the kernel drops the lock on any
//! death), or when this very kernel and pid namespace has no process of its pid and start time. The scanner
//! resets the jobs of all others.
//!
//! A restarted container keeps its hostname and, on a shared volume, its lock files; a replaced pod keeps
//! neither.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_restarted_worker_resets_its_own_jobs_at_once`
//! - `a_live_sibling_on_the_same_host_keeps_its_jobs`
//! - `a_host_whose_name_starts_with_ours_or_holds_a_wildcard_is_not_us`

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use super::report_reset;
use crate::{
    job::attempt::{Reason, RecoveryPath},
    observe::hooks::Hooks,
    proof::fault,
    store::{HostWorker, Registration, Store, StoreError},
};

/// This process's proof of life: a file that it locks for as long as it lives.
#[derive(Debug)]
pub(crate) struct LifeSign {
    file: Option<(File, PathBuf)>,
}

impl LifeSign {
    /// Locks this worker's own file. Without the file, only the pid proves a death.
    pub(crate) fn create(folder: &Path, worker_id: &str) -> Self {
        let path = folder.join(format!("{worker_id}.lock"));
        let locked = fs::create_dir_all(folder).and_then(|()| File::create(&path)).and_then(|file| {
            file.lock()?;
            Ok(file)
        });
        match locked {
            Ok(file) => Self { file: Some((file, path)) },
            Err(error) => {
                let path = path.display();
                tracing::warn!(%error, %path,
                    "the worker has no lock file, so after a crash its jobs may wait longer; \
                     set TENURE_RUNTIME_DIR to a writable folder");
                Self { file: None }
            }
        }
    }

    pub(crate) fn path(&self) -> Option<String> {
        self.file.as_ref().map(|(_, path)| path.to_string_lossy().into_owned())
    }
}

impl Drop for LifeSign {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.file {
            // If the removal fails, the unlocked file proves the death.
            fs::remove_file(path).ok();
        }
    }
}

/// The kernel's identity of this process.
pub(crate) struct Identity {
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: Option<String>,
    pub(crate) pid_started_at: Option<String>,
}

impl Identity {
    pub(crate) fn of_this_process() -> Self {
        Self {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()
                .map(|id| id.trim().to_owned()),
            pid_namespace: fs::read_link("/proc/self/ns/pid")
                .ok()
                .map(|link| link.to_string_lossy().into_owned()),
            pid_started_at: started_at(i32::try_from(std::process::id()).unwrap_or_default()),
        }
    }
}

/// Returns when a process of this pid namespace started, in the kernel's ticks. `None`: no such process.
fn started_at(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the fields after it count from 3.
    let fields = &stat[stat.rfind(')')? + 1..];
    fields.split_whitespace().nth(22 - 3).map(str::to_owned)
}

/// Whether another process of this host is proven dead.
fn is_dead(other: &HostWorker, us: &Identity, folder: &Path) -> bool {
    let in_our_folder =
        other.lock_file.as_deref().map(Path::new).filter(|path| path.parent() == Some(folder));
    if let Some(path) = in_our_folder
        && let Ok(file) = File::open(path)
    {
        match file.try_lock() {
            Ok(()) => return true,
            Err(TryLockError::WouldBlock) => return false,
            // The file system has no locks: the kernel decides.
            Err(TryLockError::Error(_)) => {}
        }
    }
    // A kernel that hides other users' processes proves no death.
    if started_at(1).is_none() {
        return false;
    }
    let same_kernel = us.boot_id.is_some() && other.boot_id == us.boot_id;
    let same_namespace = us.pid_namespace.is_some() && other.pid_namespace == us.pid_namespace;
    same_kernel
        && same_namespace
        && other.pid_started_at.is_some()
        && started_at(other.pid) != other.pid_started_at
}

/// Resets the jobs of dead processes of this host. Returns how many.
pub(crate) async fn reconcile(
    store: &Store,
    us: &Registration,
    folder: &Path,
    hooks: &Hooks,
) -> Result<usize, StoreError> {
    let identity = Identity {
        boot_id: us.boot_id.clone(),
        pid_namespace: us.pid_namespace.clone(),
        pid_started_at: us.pid_started_at.clone(),
    };
    let others = store.workers_of_host(&us.hostname, &us.worker_id).await?;
    let (dead, proofs): (Vec<_>, Vec<_>) = others
        .into_iter()
        .filter(|other| is_dead(other, &identity, folder))
        .map(|other| (other.worker_id, other.lock_file))
        .unzip();
    if dead.is_empty() {
        return Ok(0);
    }
    let reset = store.reset_workers(&dead, &us.hostname, &us.worker_id).await?;
    fault::point("reconciled");
    report_reset(RecoveryPath::Reconcile, Reason::ProcessDied, &reset, &us.worker_id, hooks);
    // Last: after a crash in between, the dead owners of the remaining jobs must still be known.
    // A process whose transaction still holds the row of a job stays known, too, for `vanished`.
    let forgotten = store.forget_workers(Some(&dead), Duration::ZERO).await?;
    for (worker, proof) in dead.iter().zip(proofs) {
        // Any worker may write a row: it names no file elsewhere that this one removes.
        let proof =
            proof.filter(|path| forgotten.contains(worker) && Path::new(path).parent() == Some(folder));
        if let Some(path) = proof {
            fs::remove_file(path).ok();
        }
    }
    Ok(reset.len())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn other(us: &Identity) -> HostWorker {
        HostWorker {
            worker_id: "web-1-1-abc".into(),
            pid: i32::try_from(std::process::id()).unwrap(),
            boot_id: us.boot_id.clone(),
            pid_namespace: us.pid_namespace.clone(),
            pid_started_at: us.pid_started_at.clone(),
            lock_file: None,
        }
    }

    #[test]
    fn a_death_is_believed_only_when_this_kernel_can_tell() {
        let us = Identity::of_this_process();
        let nowhere = Path::new("/nowhere");
        assert!(!is_dead(&other(&us), &us, nowhere), "it is this very process");
        assert!(
            is_dead(&HostWorker { pid_started_at: Some("1".into()), ..other(&us) }, &us, nowhere),
            "pid reused"
        );
        assert!(is_dead(&HostWorker { pid: 0x3fff_ffff, ..other(&us) }, &us, nowhere), "no such pid");
        let elsewhere = HostWorker { boot_id: Some("x".into()), pid: 0x3fff_ffff, ..other(&us) };
        assert!(!is_dead(&elsewhere, &us, nowhere), "another kernel");
        let contained = HostWorker { pid_namespace: Some("pid:[1]".into()), pid: 0x3fff_ffff, ..other(&us) };
        assert!(!is_dead(&contained, &us, nowhere), "another container");
        // Two unknown values are not equal.
        let gone = || HostWorker { pid: 0x3fff_ffff, ..other(&us) };
        let no_boot = Identity { boot_id: None, ..Identity::of_this_process() };
        assert!(!is_dead(&HostWorker { boot_id: None, ..gone() }, &no_boot, nowhere), "which kernel?");
        let no_namespace = Identity { pid_namespace: None, ..Identity::of_this_process() };
        assert!(
            !is_dead(&HostWorker { pid_namespace: None, ..gone() }, &no_namespace, nowhere),
            "which container?"
        );
        let never = HostWorker { pid_started_at: None, ..other(&us) };
        assert!(!is_dead(&never, &us, nowhere), "its start is unknown");
        assert!(is_dead(&gone(), &us, nowhere));
        let unknown = HostWorker { pid_started_at: None, boot_id: None, pid_namespace: None, ..other(&us) };
        assert!(!is_dead(&unknown, &us, nowhere), "nothing is known");
    }

    #[tokio::test]
    async fn reconcile_resets_the_jobs_of_a_process_that_is_proven_dead() {
        let place = crate::proof::place().await;
        let identity = Identity::of_this_process();
        let worker = |id: &str, pid: i32| Registration {
            worker_id: id.into(),
            hostname: "host".into(),
            pid,
            boot_id: identity.boot_id.clone(),
            pid_namespace: identity.pid_namespace.clone(),
            pid_started_at: identity.pid_started_at.clone(),
            lock_file: None,
            probe_subject: None,
            queues: vec!["q".into()],
            kinds: None,
            unkept: None,
            slots: 1,
            jobs_per_message: None,
            renew_every: Duration::from_secs(5),
            client: None,
        };
        let store = place.tenure.store();
        let us = worker("us", i32::try_from(std::process::id()).unwrap());
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        let lock_file = Some(elsewhere.path().to_string_lossy().into_owned());
        let dead = Registration { lock_file, ..worker("dead", 0x3fff_ffff) };
        for worker in [&us, &dead] {
            store.register_worker(worker).await.unwrap();
        }
        let folder = Path::new("/nowhere");
        assert_eq!(reconcile(store, &us, folder, &Hooks::default()).await.unwrap(), 0, "it owns nothing");
        store.register_worker(&dead).await.unwrap();
        for owner in ["dead", "dead", "us"] {
            place.claimed_by(owner).await;
        }
        place.execute("UPDATE tenure.jobs SET worker_host = 'host'").await;
        assert_eq!(reconcile(store, &us, folder, &Hooks::default()).await.unwrap(), 2);
        let left = place.value("SELECT string_agg(worker_id, ' ') FROM tenure.workers").await;
        assert_eq!(left, "us");
        assert!(elsewhere.path().exists(), "a row names a file of another folder");
        let owners = "SELECT string_agg(worker_id, ' ') FROM tenure.jobs WHERE status = 'processing'";
        assert_eq!(place.value(owners).await, "us");
    }

    #[test]
    fn the_start_of_a_process_is_the_kernels() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        // The name of the test binary holds no blank.
        let started = stat.split_whitespace().nth(21).map(str::to_owned);
        assert_eq!(started_at(i32::try_from(std::process::id()).unwrap()), started);
        assert_eq!(started_at(0x3fff_ffff), None);
    }

    #[test]
    fn a_locked_file_proves_life_and_an_unlocked_one_death_across_pid_namespaces() {
        let folder = std::env::temp_dir().join(format!("tenure-test-{}", uuid::Uuid::new_v4()));
        let us = Identity::of_this_process();
        let sign = LifeSign::create(&folder, "web-1-7-abc");
        let contained =
            || HostWorker { lock_file: sign.path(), pid_namespace: Some("pid:[1]".into()), ..other(&us) };
        assert!(!is_dead(&contained(), &us, &folder));
        assert!(!is_dead(&contained(), &us, Path::new("/another")), "not our folder: no proof either way");
        let path = PathBuf::from(sign.path().unwrap());
        let gone = contained();
        drop(sign);
        assert!(!is_dead(&gone, &us, &folder), "the file is gone: no proof");
        File::create(&path).unwrap();
        assert!(is_dead(&gone, &us, &folder), "the file is there and unlocked");
        fs::remove_dir_all(&folder).unwrap();
    }
}
