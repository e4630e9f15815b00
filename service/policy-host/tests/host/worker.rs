//! Operations forbidden to a compile worker: a process with a worker's confinement tries each, and
//! dies.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use tollgate_policy_host::{limits, worker};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_compile-worker");

fn attempt_to(stdout: Stdio, what: &[&str]) -> ExitStatus {
    let parent = std::process::id().to_string();
    let memory = limits::COMPILE_MEMORY_BYTES.to_string();
    Command::new(PROGRAM)
        .args(["try", &parent, &memory, "1"])
        .args(what)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

fn attempt(what: &[&str]) -> ExitStatus {
    attempt_to(Stdio::null(), what)
}

fn system_call(number: i64, arguments: [i64; 6]) -> ExitStatus {
    let mut words = vec!["system-call".to_owned(), number.to_string()];
    words.extend(arguments.map(|argument| argument.cast_unsigned().to_string()));
    attempt(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn check_killed(what: &str, status: ExitStatus, by: Signal) {
    assert_eq!(status.signal(), Some(by.as_raw()), "{what}: {status}");
}

#[test]
fn a_confined_process_that_tries_nothing_ends_well() {
    assert!(attempt(&["nothing"]).success());
}

#[test]
fn files_sockets_processes_and_threads_are_out_of_reach() {
    for what in ["open", "connect", "spawn", "exec", "thread"] {
        check_killed(what, attempt(&[what]), Signal::SYS);
    }
}

#[test]
fn every_system_call_that_is_not_listed_kills() {
    // Some kernels exempt the call of a user-space probe's trampoline from every filter; called
    // from elsewhere, it does nothing.
    let uprobe = if cfg!(target_arch = "x86_64") {
        336
    } else {
        -1
    };
    let listed =
        |number: &i64| worker::ALLOWED.contains(number) || worker::ALLOWED_IN_PART.contains(number);
    let unlisted = |number: &i64| !listed(number) && *number != uprobe;
    let mut tried = 0;
    // The highest number in any kernel was 470 in 2025.
    for number in (0..500).filter(unlisted) {
        check_killed(
            &format!("system call {number}"),
            system_call(number, [0; 6]),
            Signal::SYS,
        );
        tried += 1;
    }
    assert!(
        tried >= 500 - 20,
        "{tried}: the list of what is allowed has grown"
    );
}

#[test]
fn listed_system_calls_are_bound_to_their_arguments() {
    let (exec, private, shared) = (0x4, 0x22, 0x21);
    let own_parent = i64::from(std::process::id());
    let cases: [(&str, i64, [i64; 6]); 8] = [
        ("read from 3", libc::SYS_read, [3, 0, 0, 0, 0, 0]),
        ("write to 0", libc::SYS_write, [0, 0, 0, 0, 0, 0]),
        ("write to 3", libc::SYS_write, [3, 0, 0, 0, 0, 0]),
        (
            "executable memory",
            libc::SYS_mmap,
            [0, 4096, exec | 3, private, -1, 0],
        ),
        ("shared memory", libc::SYS_mmap, [0, 4096, 3, shared, -1, 0]),
        ("a file's memory", libc::SYS_mmap, [0, 4096, 1, 0x2, 0, 0]),
        (
            "making memory executable",
            libc::SYS_mprotect,
            [0, 4096, exec | 1, 0, 0, 0],
        ),
        (
            "a signal to the daemon",
            libc::SYS_tgkill,
            [own_parent, own_parent, 0, 0, 0, 0],
        ),
    ];
    for (what, number, arguments) in cases {
        check_killed(what, system_call(number, arguments), Signal::SYS);
    }
    check_killed("SIGKILL to itself", attempt(&["kill"]), Signal::SYS);
    for (what, number, arguments) in [
        ("read from 0", libc::SYS_read, [0; 6]),
        (
            "private memory",
            libc::SYS_mmap,
            [0, 4096, 3, private, -1, 0],
        ),
    ] {
        assert!(system_call(number, arguments).success(), "{what}");
    }
}

#[test]
fn resource_limits_bite() {
    check_killed("1 GiB of 512 MiB", attempt(&["allocate"]), Signal::ABORT);
    check_killed("endless loop", attempt(&["spin"]), Signal::XCPU);
    check_killed("endless recursion", attempt(&["recurse"]), Signal::ABORT);
    let file = File::from(memfd_create("artifact", MemfdFlags::CLOEXEC).unwrap());
    let status = attempt_to(file.try_clone().unwrap().into(), &["overflow-file"]);
    check_killed("an endless artifact", status, Signal::XFSZ);
    assert_eq!(
        file.metadata().unwrap().len(),
        limits::ARTIFACT_BYTES as u64
    );
}

#[test]
fn a_worker_without_its_daemon_does_nothing() {
    let status = Command::new(PROGRAM)
        .args([worker::ARGUMENT, "1", "536870912", "1", "0", "0"])
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(3));
    let said = String::from_utf8_lossy(&status.stderr);
    assert_eq!(said, "the daemon that started this worker is gone");
    let status = Command::new(PROGRAM)
        .arg(worker::ARGUMENT)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(
        said.contains("started by the daemon; the daemon's process id is missing"),
        "{said}"
    );
}
