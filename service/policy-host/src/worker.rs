//! The compile worker: a process that turns one module into machine code, and ends.
//!
//! ```text
//!   daemon ── exec /proc/self/exe compile-worker PARENT MEMORY CPU USER GROUP ──▶ worker
//!     0 ◀── the module     1 ──▶ machine code, or a refusal     2 ──▶ last words     (three memfds, nothing else)
//! ```
//!
//! Invariant: the process reads no byte of the module before it is confined for the rest of its
//! life. Then it can compute, get private memory up to its limit that is never executable, read
//! descriptor 0 and write descriptors 1 and 2. Any other system call kills it, also one on an
//! inherited descriptor, because no rule names its number. Where the daemon is root, the worker
//! runs as a user without other processes ([`ChildUser`]). It has no capability, no environment and
//! no other descriptor. Its directory is `/`, it yields the processor to all other processes, and
//! it dies with the thread that started it.
//!
//! There is one process per compilation rather than one that is kept: its start takes a few
//! milliseconds, which is negligible for a push, and nothing of one tenant's module is present when
//! another's is compiled.
//!
//! Limitation: the resulting code runs in the daemon, so an attacker that controls the compiler
//! reaches the guests' sandbox. The worker isolates the daemon from the compiler's crashes, time
//! and memory.

use std::ffi::OsString;
use std::io::{self, Read};
use std::num::TryFromIntError;
use std::os::fd::AsFd;
use std::process::ExitCode;

use libc::c_long;
use rustix::process::{Resource, getpriority_process, setpriority_process};
use seccompiler::{BackendError, BpfProgram};
use wasmtime::Engine;

use crate::confinement::{
    self, Calls, ChildUser, ConfineError, drop_privileges, failed, limit_resources, not_executable,
};
use crate::host::compiler_config;
use crate::limits;

/// The first argument of a worker process.
pub const ARGUMENT: &str = "compile-worker";

/// Exit status: descriptor 1 has a refusal, in words.
pub(crate) const REFUSED: u8 = 2;
/// Exit status: the process couldn't be confined, or got no module, so it did nothing.
pub(crate) const UNCONFINED: u8 = 3;

/// How much nicer a worker is than its daemon: a tenth of the weight of the datapath, which still
/// allows progress on a fully loaded machine.
const NICER: i32 = 10;

/// The kernel's largest nice value.
const NICEST: i32 = 19;

/// A worker's limits, from the daemon's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Bytes of address space.
    pub memory_bytes: u64,
    /// Seconds of CPU.
    pub cpu_seconds: u64,
}

/// A wrong argument of a child process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("{who} is started by the daemon; {name} is missing")]
    Missing {
        who: &'static str,
        name: &'static str,
    },
    #[error("{what} {number}: {error}")]
    Range {
        what: &'static str,
        number: u64,
        error: TryFromIntError,
    },
}

/// Why there is no machine code. Either the worker couldn't begin, or it refuses the module.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error("the module can't be read: {0}")]
    Module(io::Error),
    #[error("{0:#}")]
    Compile(wasmtime::Error),
    #[error("the code can't be written: {0}")]
    Code(io::Error),
}

/// The main function of a process whose first argument is [`ARGUMENT`]: `arguments` are the
/// following ones.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match compile(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (stream, status) = match error {
                WorkerError::Compile(_) | WorkerError::Code(_) => (1, REFUSED),
                _ => (2, UNCONFINED),
            };
            // A failure to write can't be reported anywhere.
            let _unsaid = write_all(stream, error.to_string().as_bytes());
            ExitCode::from(status)
        }
    }
}

fn compile(arguments: impl Iterator<Item = OsString>) -> Result<(), WorkerError> {
    let (parent, limits, child) = parse(arguments)?;
    drop_privileges(child)?;
    let engine = confine(parent, &limits)?;
    let mut module = Vec::new();
    let read = io::stdin()
        .take(limits::COMPAT_MODULE_BYTES as u64)
        .read_to_end(&mut module);
    read.map_err(WorkerError::Module)?;
    let code = engine.precompile_module(&module);
    write_all(1, &code.map_err(WorkerError::Compile)?).map_err(WorkerError::Code)
}

fn parse(
    arguments: impl Iterator<Item = OsString>,
) -> Result<(i32, WorkerLimits, ChildUser), ArgumentError> {
    let names = [
        "the daemon's process id",
        "the limit of memory",
        "the limit of CPU time",
        "the user",
        "the group",
    ];
    let [parent, memory_bytes, cpu_seconds, user, group] =
        numbers(arguments, "a compile worker", names)?;
    let limits = WorkerLimits {
        memory_bytes,
        cpu_seconds,
    };
    Ok((process_id(parent)?, limits, child_user(user, group)?))
}

/// The user that the arguments name for a root process.
pub(crate) fn child_user(user: u64, group: u64) -> Result<ChildUser, ArgumentError> {
    Ok(ChildUser {
        user: in_range("user", user)?,
        group: in_range("group", group)?,
    })
}

/// The daemon's process id among the arguments.
pub(crate) fn process_id(number: u64) -> Result<i32, ArgumentError> {
    in_range("process id", number)
}

fn in_range<T: TryFrom<u64, Error = TryFromIntError>>(
    what: &'static str,
    number: u64,
) -> Result<T, ArgumentError> {
    number.try_into().map_err(|error| ArgumentError::Range {
        what,
        number,
        error,
    })
}

/// The numbers in a child process's arguments, in order.
pub(crate) fn numbers<const N: usize>(
    mut arguments: impl Iterator<Item = OsString>,
    who: &'static str,
    names: [&'static str; N],
) -> Result<[u64; N], ArgumentError> {
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let word = arguments.next().and_then(|word| word.into_string().ok());
        let parsed = word.and_then(|word| word.parse().ok());
        *number = parsed.ok_or(ArgumentError::Missing { who, name })?;
    }
    Ok(numbers)
}

/// Drops all rights of this process except those that compiling needs. Returns the engine. It is
/// created before the last restriction because it installs signal handlers.
///
/// # Errors
/// States the step that the kernel refused. The process must end then.
pub fn confine(parent: i32, limits: &WorkerLimits) -> Result<Engine, ConfineError> {
    confinement::tie_to(parent, "worker")?;
    let daemon = getpriority_process(None).map_err(failed("priority"))?;
    setpriority_process(None, (daemon + NICER).min(NICEST)).map_err(failed("priority"))?;
    limit_resources(&[
        (Resource::Fsize, limits::ARTIFACT_BYTES as u64),
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
    ])?;
    let engine = Engine::new(&compiler_config()).map_err(ConfineError::Engine)?;
    seccompiler::apply_filter(&filter()?)?;
    Ok(engine)
}

/// System calls allowed with any arguments: memory, random seeds for hash tables, the clock, ending
/// the process, and reporting a stack overflow.
pub const ALLOWED: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
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

/// System calls allowed with some arguments only; see [`filter`].
pub const ALLOWED_IN_PART: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_tgkill,
];

fn filter() -> Result<BpfProgram, BackendError> {
    let mut calls = Calls::new(ALLOWED)?;
    for fd in [1, 2] {
        calls.allow_for(libc::SYS_write, fd)?;
    }
    calls.allow(libc::SYS_mprotect, vec![not_executable()?])?;
    calls.or_kill()
}

fn write_all(stream: u8, mut bytes: &[u8]) -> io::Result<()> {
    let (out, error) = (io::stdout(), io::stderr());
    let stream = if stream == 1 {
        out.as_fd()
    } else {
        error.as_fd()
    };
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
