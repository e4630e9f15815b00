//! What a policy process may do once it is confined: compute, get private memory up to its limit, be woken, ring its doorbell, and
//! read and write the one socket it has. Any other system call kills it, also through a descriptor that it shouldn't have
//! inherited, whose number no rule names.
//!
//! Unlike a compile worker it may make its own memory executable: it exists to run code. That gives nothing away, since whoever can call
//! `mprotect` runs code of their own already. `memfd_create` fails instead of killing: the engine asks for one to begin instances
//! from, and does without.
//!
//! The limit is on writable private memory (`RLIMIT_DATA`), because every instance reserves gigabytes of addresses. Memory
//! that was made executable after it was written escapes it, and so the daemon looks at the process's resident size, too
//! ([`super::Process::resident_bytes`]).

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::c_long;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Signal, getpid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::limits;
use crate::worker::limit_resources;

/// What a policy process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of writable memory.
    pub memory_bytes: u64,
}

/// The descriptors that a confined process keeps, by number; and 0, 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    /// Written to wake the daemon.
    pub doorbell: RawFd,
    /// Waited on.
    pub wake: RawFd,
}

/// System calls that are allowed whatever their arguments.
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

/// System calls that are allowed with some arguments only, or fail instead of killing.
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

/// Takes from this process, all its threads included, what running policies doesn't need.
///
/// # Errors
/// Says which step the kernel refused. The process must end then.
pub fn confine(parent: i32, limits: &ProcessLimits, doors: Doors) -> Result<(), String> {
    let failed = |step: &'static str| move |error: rustix::io::Errno| format!("{step}: {error}");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("no death signal"))?;
    // Asked after the signal was ordered, so a parent that died in between is noticed.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err("the daemon that started this policy process is gone".to_owned());
    }
    // Should the machine run out of memory, this goes first. Where that can't be said, the kernel's own choice stands.
    let _unsaid = std::fs::write("/proc/self/oom_score_adj", "1000");
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
    limit_resources(&[
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Fsize, limits::APART_WORDS_BYTES),
        (Resource::Stack, limits::COMPILER_STACK_BYTES),
        (Resource::Data, limits.memory_bytes),
    ])
    .map_err(failed("resource limits"))?;
    let refused = |error: String| format!("system call filter: {error}");
    for filter in [without_memfds(), filter(doors)] {
        let filter = filter.map_err(|error| refused(error.to_string()))?;
        let applied = seccompiler::apply_filter_all_threads(&filter);
        applied.map_err(|error| refused(error.to_string()))?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Of two filters the one that forbids more wins.
fn without_memfds() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = Rules::from([(libc::SYS_memfd_create, Vec::new())]);
    let fails = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, fails, target)?.try_into()
}

fn filter(doors: Doors) -> Result<BpfProgram, seccompiler::BackendError> {
    let argument = SeccompCondition::new;
    let bits = |bits: i32| MaskedEq(u64::from(bits.cast_unsigned()));
    let number = |fd: RawFd| u64::from(fd.cast_unsigned());
    let exec = u64::from(libc::PROT_EXEC.cast_unsigned());
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let own = number(getpid().as_raw_nonzero().get());
    let mut rules: Rules = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    // The other filter has answered it.
    rules.insert(libc::SYS_memfd_create, Vec::new());
    let mut allow = |call, conditions| -> Result<(), seccompiler::BackendError> {
        let rule = SeccompRule::new(conditions)?;
        rules.entry(call).or_default().push(rule);
        Ok(())
    };
    allow(libc::SYS_read, vec![argument(0, Dword, Eq, 0)?])?;
    for fd in [0, 1, 2, number(doors.doorbell)] {
        allow(libc::SYS_write, vec![argument(0, Dword, Eq, fd)?])?;
    }
    for wait in [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ] {
        allow(wait, vec![argument(0, Dword, Eq, number(doors.wake))?])?;
    }
    let never_executable = argument(2, Qword, MaskedEq(exec), 0)?;
    let anonymous = argument(3, Dword, bits(private), u64::from(private.cast_unsigned()))?;
    allow(libc::SYS_mmap, vec![never_executable, anonymous])?;
    // Aborting is a signal to oneself.
    allow(libc::SYS_tgkill, vec![argument(0, Dword, Eq, own)?])?;
    let kill = SeccompAction::KillProcess;
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, kill, SeccompAction::Allow, target)?.try_into()
}
