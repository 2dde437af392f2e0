//! Cpu: time and memory of processes, as the kernel counts them. Linux only; elsewhere empty.

use std::{collections::BTreeMap, fs};

/// The kernel's clock ticks of `/proc` in a second: 100 on every Linux that Rust's standard library knows.
const TICKS: f64 = 100.0;

/// The CPU time of every process at one moment.
pub(super) struct Processes {
    all: BTreeMap<u32, Stat>,
    children: BTreeMap<u32, Vec<u32>>,
}

impl Processes {
    pub(super) fn look() -> Self {
        let mut now = Self { all: BTreeMap::new(), children: BTreeMap::new() };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(stat) = Stat::read(pid) {
                now.children.entry(stat.parent).or_default().push(pid);
                now.all.insert(pid, stat);
            }
        }
        now
    }

    /// CPU seconds of a process and all its children, the ended ones included.
    pub(super) fn seconds_of(&self, pid: u32) -> f64 {
        let mut seconds = 0.0;
        let mut rest = vec![pid];
        while let Some(pid) = rest.pop() {
            seconds += self.all.get(&pid).map_or(0.0, |stat| stat.ticks / TICKS);
            rest.extend(self.children.get(&pid).into_iter().flatten());
        }
        seconds
    }
}

/// The resident memory of a process, in MB.
pub(super) fn memory_mb(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024.0 / 1e6)
}

struct Stat {
    parent: u32,
    /// The ticks of the process and of its ended children.
    ticks: f64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        let parent = fields.get(1)?.parse().ok()?;
        Some(Self { parent, ticks: number(11)? + number(12)? + number(13)? + number(14)? })
    }
}

/// CPU seconds of this process, its children not counted.
pub(super) fn seconds_of_self() -> f64 {
    let own = || {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        Some((number(11)? + number(12)?) / TICKS)
    };
    own().unwrap_or_default()
}
