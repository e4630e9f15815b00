//! Privileges that the daemon drops itself, however it was started. The systemd unit drops more
//! (`service/daemon/systemd`).
//!
//! | dropped | when | purpose |
//! |---|---|---|
//! | new privileges, capabilities beyond [`KEPT`], descriptors for executed programs | first of all | a daemon under an attacker's control gains no rights |
//! | system calls of [`FORBIDDEN`] | before it reads any input | it can't reach other processes' memory, mounts or kernel internals |
//! | inspection by its own user | before it reads a key or an application's memory | secrets stay in the process |
//!
//! Invariant: a successor inherits everything but the last row, so its rights are the same.
//! Upgrades don't stack filters: the predecessor tells its successor that there is one.
//!
//! This module is next to the confinement of compile workers and policy processes because it uses
//! the same parts. The daemon doesn't change its user: to run it as another user, start it as that
//! user.

use std::collections::BTreeMap;

use libc::c_long;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::confinement::{ConfineError, failed};
use crate::descriptors::keep_to_oneself;

/// Capabilities that a root daemon may need: for configured files of other users, a low port,
/// memory that a device accesses, a socket for another group, and starting and ending processes of
/// another user.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP);

/// System calls that fail with EPERM, whatever their arguments.
const FORBIDDEN: &[c_long] = &[
    // Other processes' memory and descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // System calls that bypass this filter, or load code into the kernel.
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // Keys, clocks, and the machine as a whole.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_personality,
];

/// Must run before anything else, while there is one thread.
///
/// # Errors
/// States the step that the kernel refused.
pub fn give_up_privileges() -> Result<(), ConfineError> {
    set_no_new_privs(true).map_err(failed("new privileges"))?;
    // Kernels before 5.11 can't do this; descriptors stay as they were.
    let _not_there = keep_to_oneself();
    let others = (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    for capability in others.filter(|capability| !KEPT.contains(*capability)) {
        // A process without the right hasn't got the capability, either.
        let _unknown_or_not_allowed = remove_capability_from_bounding_set(capability);
    }
    let had = capabilities(None).map_err(failed("capabilities"))?;
    let kept = CapabilitySets {
        effective: had.effective & KEPT,
        permitted: had.permitted & KEPT,
        inheritable: had.inheritable & KEPT,
    };
    if kept != had {
        set_capabilities(None, kept).map_err(failed("capabilities"))?;
    }
    Ok(())
}

/// Forbids unneeded system calls, for all threads and executed programs. Without system call
/// filters in the kernel no policy is compiled either, and `tollgate check` reports it.
///
/// # Errors
/// The kernel has no filters.
pub fn forbid_system_calls() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter_all_threads(&filter()?)
}

fn filter() -> Result<BpfProgram, BackendError> {
    let rules = FORBIDDEN.iter().map(|&call| (call, Vec::new()));
    let fails = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    let rules = BTreeMap::from_iter(rules);
    SeccompFilter::new(rules, SeccompAction::Allow, fails, target)?.try_into()
}

/// From now on only root can inspect this process, and it dumps no core. Called after the
/// sandboxes' host exists: its creation opens a file of its own process, which afterwards only root
/// may do.
///
/// # Errors
/// The kernel refused.
pub fn hide() -> Result<(), ConfineError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_a_program_and_names_each_call_once() {
        assert!(filter().is_ok());
        let calls: std::collections::BTreeSet<_> = FORBIDDEN.iter().collect();
        assert_eq!(calls.len(), FORBIDDEN.len());
    }
}
