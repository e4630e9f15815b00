//! A compile worker and a policy process without the daemon, for this crate's tests; and a mode
//! that tries forbidden operations.
//!
//! ```text
//!   compile-worker compile-worker PARENT MEMORY CPU USER GROUP   the worker, as the daemon starts it
//!   compile-worker policy-process PARENT MEMORY SPIN USER GROUP  the policy process, as the daemon starts it
//!   compile-worker try PARENT MEMORY CPU WHAT...      confined as a worker is, then WHAT
//!   compile-worker try-apart PARENT MEMORY 0 WHAT...  confined as a policy process is, then WHAT
//! ```
//!
//! Never installed: the daemon becomes both by executing itself.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use tollgate_policy_host::ConfineError;
use tollgate_policy_host::isolated::{self, DescriptorAccess, ProcessLimits};
use tollgate_policy_host::worker::{self, WorkerLimits};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == worker::ARGUMENT => worker::main(arguments),
        Some(first) if first == isolated::ARGUMENT => isolated::main(arguments),
        Some(first) if first == "try" => attempt(arguments, |parent, limits| {
            worker::confine(parent, &limits).map(|_| ())
        }),
        Some(first) if first == "try-apart" => attempt(arguments, |parent, limits| {
            let memory_bytes = limits.memory_bytes;
            let access = DescriptorAccess {
                doorbell: 3,
                wake: 4,
            };
            isolated::confine(parent, &ProcessLimits { memory_bytes }, access)
        }),
        _ => ExitCode::from(64),
    }
}

fn attempt(
    arguments: impl Iterator<Item = OsString>,
    confine: impl FnOnce(i32, WorkerLimits) -> Result<(), ConfineError>,
) -> ExitCode {
    let words: Vec<String> = arguments
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let number = |at: usize| words.get(at).and_then(|word: &String| word.parse().ok());
    let (Some(parent), Some(memory_bytes), Some(cpu_seconds)) = (number(0), number(1), number(2))
    else {
        return ExitCode::from(64);
    };
    let limits = WorkerLimits {
        memory_bytes,
        cpu_seconds,
    };
    let parent = i32::try_from(parent).unwrap_or_default();
    if let Err(error) = confine(parent, limits) {
        eprintln!("{error}");
        return ExitCode::from(65);
    }
    match words.get(3).map_or("", String::as_str) {
        "nothing" => {}
        "open" => drop(File::open("/dev/null")),
        "connect" => drop(UnixStream::connect("/run/anything.sock")),
        "spawn" => drop(Command::new("/bin/true").spawn()),
        "exec" => drop(Command::new("/bin/true").exec()),
        "thread" => drop(std::thread::Builder::new().spawn(|| {})),
        "allocate" => drop(std::hint::black_box(vec![1u8; 1 << 30])),
        "spin" => loop {
            std::hint::spin_loop();
        },
        "kill" => {
            let (pid, tid) = (std::process::id(), rustix::thread::gettid());
            let tid = i64::from(tid.as_raw_nonzero().get());
            let kill = i64::from(libc::SIGKILL);
            system_call([libc::SYS_tgkill, pid.into(), tid, kill, 0, 0, 0]);
        }
        "recurse" => _ = recurse(1),
        "overflow-file" => {
            let _refused = std::io::Write::write_all(&mut std::io::stdout(), &[0; 1 << 20]);
            for _ in 0..64 {
                let _refused = std::io::Write::write_all(&mut std::io::stdout(), &[0; 1 << 20]);
            }
        }
        "system-call" => {
            let word = |at| number(at).unwrap_or_default().cast_signed();
            system_call([3, 4, 5, 6, 7, 8, 9].map(|at| word(at + 1)));
        }
        _ => return ExitCode::from(64),
    }
    ExitCode::SUCCESS
}

/// Uses up the stack.
fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 128]);
    if frame[7] == 0 {
        0
    } else {
        recurse(depth + 1) + frame[9]
    }
}

fn system_call([number, a, b, c, d, e, f]: [i64; 7]) {
    // SAFETY: the process is confined. What its filter lets pass can't touch memory that Rust knows
    // of with the arguments that the tests give (zeros, or addresses of nothing); everything else
    // ends the process. It ends here anyway.
    unsafe { libc::syscall(number, a, b, c, d, e, f) };
}
