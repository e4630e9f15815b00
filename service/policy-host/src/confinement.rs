//! Common parts of the confinement of compile workers ([`crate::worker`]) and of policy processes
//! ([`crate::isolated`]). Each module states its own further permissions and its list of system
//! calls.

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

/// The step of a confinement that failed. The process must end then.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused a step.
    #[error("{step}: {error}")]
    Step {
        /// What wasn't dropped, set or limited.
        step: &'static str,
        /// The kernel's answer.
        error: Errno,
    },
    /// The parent ended while the process started.
    #[error("the daemon that started this {who} is gone")]
    DaemonGone {
        /// The kind of process.
        who: &'static str,
    },
    /// The engine doesn't start.
    #[error("engine: {0:#}")]
    Engine(wasmtime::Error),
    /// The system call filter is wrong.
    #[error("system call filter: {0}")]
    Filter(#[from] BackendError),
    /// The kernel refused the system call filter.
    #[error("system call filter: {0}")]
    Unfiltered(#[from] seccompiler::Error),
}

/// The user and group of a root daemon's children, unless the operator names a user: 2,147,000,000.
/// No system allots it: it is above systemd's range for containers (524,288 to 1,879,048,191) and
/// below 2^31. So no other process has it and could send those children signals.
pub const RESERVED_ID: u32 = 2_147_000_000;

/// The user of services without a user of their own, in every namespace that maps 65,536 users. Its
/// processes may signal each other.
const NOBODY: u32 = 65_534;

/// The user and group of a root daemon's children. Children of other daemons keep the daemon's
/// user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildUser {
    /// Its user.
    pub user: u32,
    /// Its only group.
    pub group: u32,
}

impl Default for ChildUser {
    fn default() -> ChildUser {
        ChildUser {
            user: RESERVED_ID,
            group: RESERVED_ID,
        }
    }
}

impl ChildUser {
    /// This user if this process's user namespace has it, otherwise the user `nobody`. Other
    /// processes of `nobody` may signal the children.
    ///
    /// # Errors
    /// The user `nobody`.
    pub fn in_this_namespace(self) -> Result<ChildUser, ChildUser> {
        // A kernel without user namespaces has no such files.
        let map = |file| std::fs::read_to_string(file).unwrap_or_else(|_| IDENTITY.to_owned());
        let (users, groups) = (map("/proc/self/uid_map"), map("/proc/self/gid_map"));
        match maps(&users, self.user) && maps(&groups, self.group) {
            true => Ok(self),
            false => Err(ChildUser {
                user: NOBODY,
                group: NOBODY,
            }),
        }
    }
}

/// The map of the first user namespace: all users map to themselves.
const IDENTITY: &str = "0 0 4294967295";

/// Whether a `uid_map` or `gid_map` contains this user or group. Each line has the first id inside,
/// the first id outside, and the count (user_namespaces(7)).
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

/// Drops this process's inherited rights: root's identity, all capabilities, and every descriptor
/// but the standard ones. Must be called before anything is opened and any thread is started, since
/// each thread has its own.
///
/// A daemon that isn't root can't change its user, and neither can one that is root by name only
/// (in a namespace, or without the right). Then the user stays, without any capability.
///
/// # Errors
/// States the step that the kernel refused. The process must end then.
pub(crate) fn drop_privileges(child: ChildUser) -> Result<(), ConfineError> {
    // Kernels without the call (5.8 and older) leave inherited descriptors open.
    let _not_there = close_inherited();
    set_no_new_privs(true).map_err(failed("new privileges"))?;
    // Must run while the process has the right. A process without it can't drop the bounding set,
    // and has no use for it.
    for capability in (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        let _unknown_or_not_allowed = remove_capability_from_bounding_set(capability);
    }
    if geteuid().is_root() {
        become_user(child)?;
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
fn become_user(child: ChildUser) -> Result<(), ConfineError> {
    let (user, group) = (Uid::from_raw(child.user), Gid::from_raw(child.group));
    let became = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    match became {
        // Root by name only: without the right, or in a namespace without such a user.
        Err(Errno::PERM | Errno::INVAL) => Ok(()),
        became => became.map_err(failed("user")),
    }
}

/// States the step that the kernel refused.
pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> ConfineError {
    move |error| ConfineError::Step { step, error }
}

/// Makes this process die with the thread that started it, and forbids inspection by other
/// processes.
pub(crate) fn tie_to(parent: i32, who: &'static str) -> Result<(), ConfineError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("no death signal"))?;
    // Checked after the signal was set, so that a parent that died in between is noticed.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err(ConfineError::DaemonGone { who });
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))
}

/// Sets limits that can't be raised again: the given ones, one on the stack, and no new processes,
/// descriptors, locked memory, queues or core dumps.
pub(crate) fn limit_resources(own: &[(Resource, u64)]) -> Result<(), ConfineError> {
    let common = [
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Stack, limits::COMPILER_STACK_BYTES),
    ];
    for &(resource, most) in common.iter().chain(own) {
        // The kernel sends SIGXCPU at the lower limit of CPU time and SIGKILL at the upper one:
        // SIGXCPU tells the reason.
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
    /// The given calls with any arguments; reading descriptor 0; private memory that isn't
    /// executable; and SIGABRT to the process itself, which abort uses. So if SIGKILL has ended a
    /// process, another process or the kernel sent it.
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

    /// Also allows this call, if all conditions hold.
    pub(crate) fn allow(
        &mut self,
        call: c_long,
        conditions: Vec<SeccompCondition>,
    ) -> Result<(), BackendError> {
        let rule = SeccompRule::new(conditions)?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    /// Also allows this call, if its first argument is this descriptor or process.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_users_of_its_map() {
        assert!(maps(IDENTITY, RESERVED_ID));
        let container = "         0       1000          1\n         1     100000      65536\n";
        for (id, is_there) in [(0, true), (1, true), (65_536, true), (65_537, false)] {
            assert_eq!(maps(container, id), is_there, "{id}");
        }
        assert!(!maps(container, RESERVED_ID));
        assert!(!maps("", 0));
        assert!(!maps("0 0", 0));
    }
}
