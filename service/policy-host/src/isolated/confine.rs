//! Permissions of a confined policy process: compute, get private memory up to its limit, be woken,
//! ring its doorbell, and read and write its one socket. Any other system call kills it, also one
//! on an inherited descriptor, because no rule names its number.
//!
//! Unlike a compile worker, it may make its own memory executable, because it exists to run code.
//! This gives nothing away: code that can call `mprotect` already runs. `memfd_create` fails
//! instead of killing: the engine asks for one to begin instances from, and works without it.
//!
//! The limit is on writable private memory (`RLIMIT_DATA`), because every instance reserves
//! gigabytes of addresses. It doesn't count memory that was made executable after it was written,
//! so the daemon checks the process's resident size, too ([`super::Process::resident_bytes`]).

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::c_long;
use rustix::process::Resource;
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::confinement::{self, Calls, ConfineError, limit_resources};
use crate::limits;

/// The limits of a policy process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of writable memory.
    pub memory_bytes: u64,
}

/// The descriptors that a confined process keeps, by number; it also keeps 0, 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorAccess {
    /// Written to wake the daemon.
    pub doorbell: RawFd,
    /// Waited on.
    pub wake: RawFd,
}

/// System calls allowed with any arguments.
pub const ALLOWED: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// System calls allowed with some arguments only, or failing instead of killing.
pub const ALLOWED_IN_PART: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_mmap,
    libc::SYS_tgkill,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_memfd_create,
];

/// Drops all rights of this process, including all its threads, except those that running policies
/// needs.
///
/// # Errors
/// States the step that the kernel refused. The process must end then.
pub fn confine(
    parent: i32,
    limits: &ProcessLimits,
    access: DescriptorAccess,
) -> Result<(), ConfineError> {
    confinement::tie_to(parent, "policy process")?;
    limit_resources(&[
        (Resource::Fsize, limits::ISOLATED_OUTPUT_BYTES),
        (Resource::Data, limits.memory_bytes),
    ])?;
    for filter in [without_memfds(), filter(access)] {
        seccompiler::apply_filter_all_threads(&filter?)?;
    }
    Ok(())
}

/// Of two filters the more restrictive one wins.
fn without_memfds() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_memfd_create, Vec::new())]);
    let fails = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, fails, target)?.try_into()
}

fn filter(access: DescriptorAccess) -> Result<BpfProgram, BackendError> {
    // The other filter decides on `memfd_create`.
    let mut calls = Calls::new(&[ALLOWED, &[libc::SYS_memfd_create]].concat())?;
    for fd in [0, 1, 2, access.doorbell] {
        calls.allow_for(libc::SYS_write, fd)?;
    }
    for wait in [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ] {
        calls.allow_for(wait, access.wake)?;
    }
    calls.or_kill()
}
