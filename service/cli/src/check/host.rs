//! The kernel and the limits of this host.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::check::finding::{Finding, Verdict, bad, fine};
use crate::limits::{DESCRIPTORS, MAPPINGS};

/// Whether sealed memory works, which has a fixed size.
pub(super) fn sealed_memory() -> bool {
    let made = memfd_create(
        "tollgate-check",
        MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC,
    );
    made.is_ok_and(|memory| fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).is_ok())
}

/// The hard limit of open files in a process's table of limits.
pub(super) fn open_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    match line.split_whitespace().nth(4)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

pub(super) fn kernel(release: &str, sealed: bool) -> Finding {
    if sealed {
        return fine("host", format!("Linux {release} has sealed memory"));
    }
    bad(
        Verdict::Failure,
        "host",
        format!(
            "Linux {release} has no sealed memory (memfd_create), which the daemon shares with applications"
        ),
        "a kernel of 4.14 or newer, or a container that allows memfd_create",
    )
}

pub(super) fn system_call_filters(actions: &str) -> Finding {
    if actions
        .split_whitespace()
        .any(|action| action == "kill_process")
    {
        return fine("host", "processes can be confined by system call filters");
    }
    bad(
        Verdict::Failure,
        "host",
        "system call filters (seccomp) are missing: without them, the daemon compiles no policy",
        "a kernel with CONFIG_SECCOMP_FILTER",
    )
}

pub(super) fn overcommit(mode: &str) -> Finding {
    if mode != "2" {
        return fine("host", "addresses can be reserved without memory");
    }
    bad(
        Verdict::Failure,
        "host",
        "vm.overcommit_memory is 2: reserved addresses count as memory, and each policy instance reserves 4 GiB",
        "sysctl vm.overcommit_memory=0",
    )
}

pub(super) fn mappings(most: Option<u64>) -> Finding {
    let Some(most) = most else {
        return bad(
            Verdict::Warning,
            "limits",
            "vm.max_map_count can't be read",
            "mount /proc",
        );
    };
    if most >= MAPPINGS {
        return fine("limits", format!("{most} memory mappings per process"));
    }
    bad(
        Verdict::Warning,
        "limits",
        format!(
            "{most} memory mappings per process: 10,000 policy instances and their sessions need {MAPPINGS}"
        ),
        format!("sysctl vm.max_map_count={MAPPINGS}"),
    )
}

pub(super) fn address_space(limit: Option<u64>) -> Finding {
    match limit {
        None => fine("limits", "the address space is unlimited"),
        Some(bytes) => bad(
            Verdict::Failure,
            "limits",
            format!(
                "a process has {} GiB of address space, and each policy instance reserves 4 GiB",
                bytes >> 30
            ),
            "ulimit -Hv unlimited, or LimitAS=infinity in the unit",
        ),
    }
}

/// `None` as the limit: unlimited.
pub(super) fn descriptors(hard: Option<u64>) -> Finding {
    match hard.filter(|hard| *hard < DESCRIPTORS) {
        None => fine("limits", format!("at least {DESCRIPTORS} open files")),
        Some(hard) => bad(
            Verdict::Warning,
            "limits",
            format!(
                "{hard} open files: a session takes 5, so there is room for about {} of 4,096 applications",
                hard.saturating_sub(100) / 5
            ),
            format!("ulimit -Hn {DESCRIPTORS}, or LimitNOFILE={DESCRIPTORS} in the unit"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max cpu time              unlimited            unlimited            seconds\n\
                          Max open files            1024                 4096                 files\n";

    #[test]
    fn what_is_wrong_with_a_host_is_said_with_what_to_do() {
        assert_eq!(open_files(LIMITS), Some(4096));
        assert_eq!(
            open_files(&LIMITS.replace("4096", "unlimited")),
            Some(u64::MAX)
        );
        assert_eq!(open_files(""), None);
        for (finding, verdict, words) in [
            (kernel("4.4.0", false), Verdict::Failure, "4.4.0"),
            (kernel("6.1.0", true), Verdict::Ok, "6.1.0"),
            (system_call_filters("errno"), Verdict::Failure, "seccomp"),
            (
                system_call_filters("kill_process kill_thread errno"),
                Verdict::Ok,
                "",
            ),
            (
                overcommit("2"),
                Verdict::Failure,
                "vm.overcommit_memory is 2",
            ),
            (overcommit("0"), Verdict::Ok, ""),
            (
                mappings(Some(1_000)),
                Verdict::Warning,
                "1000 memory mappings",
            ),
            (mappings(Some(65_530)), Verdict::Ok, "65530"),
            (mappings(None), Verdict::Warning, "can't be read"),
            (address_space(Some(8 << 30)), Verdict::Failure, "8 GiB"),
            (address_space(None), Verdict::Ok, ""),
            (
                descriptors(Some(4_096)),
                Verdict::Warning,
                "about 799 of 4,096 applications",
            ),
            (descriptors(Some(25_000)), Verdict::Ok, ""),
            (descriptors(None), Verdict::Ok, ""),
        ] {
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.sentence.contains(words), "{finding:?}");
            assert_eq!(finding.fix.is_none(), verdict == Verdict::Ok, "{finding:?}");
        }
    }
}
