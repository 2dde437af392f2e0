//! Cpu: the CPU time of processes and their children, as the kernel counts it. Linux only; elsewhere 0.

use std::{collections::BTreeMap, fs};

/// The kernel's clock ticks of `/proc` in a second: 100 on every Linux that Rust's standard library knows.
const TICKS: f64 = 100.0;

/// The CPU seconds of these processes, their children, and those of their children that have ended.
pub(crate) fn seconds_of(pids: &[u32]) -> f64 {
    let mut all: BTreeMap<u32, f64> = BTreeMap::new();
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some((parent, ticks)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
            all.insert(pid, ticks);
        }
    }
    let (mut ticks, mut rest) = (0.0, pids.to_vec());
    while let Some(pid) = rest.pop() {
        ticks += all.get(&pid).copied().unwrap_or_default();
        rest.extend(children.get(&pid).into_iter().flatten());
    }
    ticks / TICKS
}

/// The parent of a process, and its ticks: its own and those of its ended children.
fn stat(pid: u32) -> Option<(u32, f64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<_> = text.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|text| text.parse::<f64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks))
}
