//! What the confinement of a compile worker ([`crate::worker`]) and that of a policy process ([`crate::apart`]) have in common. What each may do
//! beyond it, and its list of system calls, is said beside it.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::c_long;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Pid, Resource, Rlimit, Signal, Uid, geteuid, getpid, getppid,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::descriptors::close_inherited;
use crate::limits;

/// Nobody: who owns no files and may do nothing. A process that was root is this user.
const NOBODY: u32 = 65_534;

/// Takes from this process what it has of its parent's: root's identity, all capabilities, and every descriptor but the standard ones. To be
/// called before anything is opened and any thread is started, since each thread has its own.
///
/// A daemon that isn't root can't become anybody else, and neither can one that is root by name only (in a namespace, or without the right to):
/// then the user stays, without a capability.
///
/// # Errors
/// Says which step the kernel refused. The process must end then.
pub(crate) fn drop_privileges() -> Result<(), String> {
    // Kernels that can't (5.8 and older) leave what somebody has left open.
    let _not_there = close_inherited();
    set_no_new_privs(true).map_err(failed("new privileges"))?;
    // While there are the rights to. Who has none can't give the bounding set away, and has no use for it.
    for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        let _unknown_or_not_allowed = remove_capability_from_bounding_set(capability);
    }
    if geteuid().is_root() {
        become_nobody()?;
    }
    let _none_or_too_old = clear_ambient_capability_set();
    let had = capabilities(None).map_err(failed("capabilities"))?;
    if had != WITHOUT_CAPABILITIES {
        set_capabilities(None, WITHOUT_CAPABILITIES).map_err(failed("capabilities"))?;
    }
    Ok(())
}

const WITHOUT_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Groups first: a user that isn't root can't give them up.
fn become_nobody() -> Result<(), String> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let became = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    match became {
        // Root by name only: without the right to, or in a namespace without such a user.
        Err(Errno::PERM | Errno::INVAL) => Ok(()),
        became => became.map_err(failed("user")),
    }
}

/// Says which step the kernel refused.
pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> String {
    move |error| format!("{step}: {error}")
}

/// Lets this process die with the thread that started it, and nobody look into it.
pub(crate) fn tie_to(parent: i32, who: &str) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("no death signal"))?;
    // Asked after the signal was ordered, so a parent that died in between is noticed.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err(format!("the daemon that started this {who} is gone"));
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))
}

/// Sets limits that can't be raised again: these, on the stack, and no new processes, descriptors, locked memory, queues or core dumps.
pub(crate) fn limit_resources(own: &[(Resource, u64)]) -> Result<(), String> {
    let common = [
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Stack, limits::COMPILER_STACK_BYTES),
    ];
    for &(resource, most) in common.iter().chain(own) {
        // The kernel sends SIGXCPU at the lower limit of CPU time and SIGKILL at the upper one: SIGXCPU tells why.
        let above = u64::from(resource == Resource::Cpu);
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most + above),
        };
        setrlimit(resource, limit).map_err(failed("resource limits"))?;
    }
    Ok(())
}

/// The system calls that a process keeps; any other kills it.
pub(crate) struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// These whatever their arguments; reading descriptor 0; private memory that isn't executable; and SIGABRT to oneself, which is what
    /// aborting does. So a process that SIGKILL has ended was killed by another process or by the kernel.
    pub(crate) fn new(always: &[c_long]) -> Result<Calls, BackendError> {
        let mut calls = Calls(always.iter().map(|&call| (call, Vec::new())).collect());
        calls.allow_for(libc::SYS_read, 0)?;
        let private = u64::from((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned());
        let anonymous = SeccompCondition::new(3, Dword, MaskedEq(private), private)?;
        calls.allow(libc::SYS_mmap, vec![not_executable()?, anonymous])?;
        let is =
            |at, value: i32| SeccompCondition::new(at, Dword, Eq, u64::from(value.cast_unsigned()));
        let itself = is(0, getpid().as_raw_nonzero().get())?;
        calls.allow(libc::SYS_tgkill, vec![itself, is(2, libc::SIGABRT)?])?;
        Ok(calls)
    }

    /// Also this one, where all the conditions hold.
    pub(crate) fn allow(
        &mut self,
        call: c_long,
        conditions: Vec<SeccompCondition>,
    ) -> Result<(), BackendError> {
        let rule = SeccompRule::new(conditions)?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    /// Also this one, if its first argument is this descriptor, or process.
    pub(crate) fn allow_for(&mut self, call: c_long, first: RawFd) -> Result<(), BackendError> {
        let is = SeccompCondition::new(0, Dword, Eq, u64::from(first.cast_unsigned()))?;
        self.allow(call, vec![is])
    }

    pub(crate) fn or_kill(self) -> Result<BpfProgram, BackendError> {
        let kill = SeccompAction::KillProcess;
        let target = TargetArch::try_from(std::env::consts::ARCH)?;
        SeccompFilter::new(self.0, kill, SeccompAction::Allow, target)?.try_into()
    }
}

/// The third argument doesn't ask for executable memory.
pub(crate) fn not_executable() -> Result<SeccompCondition, BackendError> {
    let exec = u64::from(libc::PROT_EXEC.cast_unsigned());
    SeccompCondition::new(2, Qword, MaskedEq(exec), 0)
}
