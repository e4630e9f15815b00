//! Where and on what a run was measured: commit, processor, kernel, load.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tollgate_conformance::process::stat;

/// Whether a process runs only when no other process wants to: SCHED_IDLE.
pub fn is_idle_class(pid: u32) -> bool {
    // `policy` is field 41.
    stat(pid).get(38).is_some_and(|policy| policy == "5")
}

/// Memory of these processes, in MiB. A page that several of them share counts for a part in each.
pub fn memory_mib(pids: &[u32]) -> f64 {
    let kib = |&pid: &u32| {
        let rollup = read(&format!("/proc/{pid}/smaps_rollup"));
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse::<f64>().ok())
    };
    pids.iter().filter_map(kib).sum::<f64>() / 1024.0
}

/// The one-minute load average.
pub fn load() -> f64 {
    let text = read("/proc/loadavg");
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The machine and the commit, for the results.
pub fn describe(repository: &Path) -> Value {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "commit": commit(repository),
        "cpu": model,
        "cores": cores,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": load(),
    })
}

/// The short commit, with `+changes` if the tree differs from it.
fn commit(repository: &Path) -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(repository)
            .args(args)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
            }
            _ => None,
        }
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}+changes"),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_not_of_the_idle_class() {
        let me = std::process::id();
        let parent = std::os::unix::process::parent_id().to_string();
        assert_eq!(stat(me).get(1), Some(&parent));
        assert!(!is_idle_class(me) && !is_idle_class(u32::MAX));
    }

    #[test]
    fn what_a_process_keeps_is_seen() {
        let me = [std::process::id()];
        let before = memory_mib(&me);
        let kept = std::hint::black_box(vec![1u8; 64 << 20]);
        let grown = memory_mib(&me) - before;
        assert!((50.0..100.0).contains(&grown), "{grown} MiB");
        drop(kept);
        assert_eq!(memory_mib(&[u32::MAX]), 0.0);
    }

    #[test]
    fn the_machine_is_described() {
        let machine = describe(Path::new(env!("CARGO_MANIFEST_DIR")));
        assert!(machine["cores"].as_u64().is_some_and(|cores| cores > 0));
        for key in ["commit", "cpu", "kernel"] {
            assert!(
                machine[key].as_str().is_some_and(|text| !text.is_empty()),
                "{key}"
            );
        }
    }
}
