//! What the confinement of a compile worker ([`crate::worker`]) and that of a policy process ([`crate::apart`]) have in common. What each may do
//! beyond it, and its list of system calls, is said beside it.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::c_long;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getpid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::limits;

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
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(failed("resource limits"))?;
    }
    Ok(())
}

/// The system calls that a process keeps; any other kills it.
pub(crate) struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// These whatever their arguments; reading descriptor 0; private memory that isn't executable; and signals to oneself, which is what
    /// aborting does.
    pub(crate) fn new(always: &[c_long]) -> Result<Calls, BackendError> {
        let mut calls = Calls(always.iter().map(|&call| (call, Vec::new())).collect());
        calls.allow_for(libc::SYS_read, 0)?;
        let private = u64::from((libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned());
        let anonymous = SeccompCondition::new(3, Dword, MaskedEq(private), private)?;
        calls.allow(libc::SYS_mmap, vec![not_executable()?, anonymous])?;
        calls.allow_for(libc::SYS_tgkill, getpid().as_raw_nonzero().get())?;
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
