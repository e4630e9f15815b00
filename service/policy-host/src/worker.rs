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
use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;

use libc::c_long;
use rustix::process::{Resource, setpriority_process};
use seccompiler::{BackendError, BpfProgram};
use wasmtime::Engine;

use crate::confinement::{
    self, Calls, ChildUser, drop_privileges, failed, limit_resources, not_executable,
};
use crate::host::compiler_config;
use crate::limits;

/// The first argument of a worker process.
pub const ARGUMENT: &str = "compile-worker";

/// Exit status: descriptor 1 has a refusal, in words.
pub(crate) const REFUSED: u8 = 2;
/// Exit status: the process couldn't be confined, or got no module, so it did nothing.
pub(crate) const UNCONFINED: u8 = 3;

/// A worker's nice value: a tenth of the weight of the datapath, which still allows progress on a
/// fully loaded machine.
const NICE: i32 = 10;

/// A worker's limits, from the daemon's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Bytes of address space.
    pub memory_bytes: u64,
    /// Seconds of CPU.
    pub cpu_seconds: u64,
}

/// The main function of a process whose first argument is [`ARGUMENT`]: `arguments` are the
/// following ones.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match compile(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, text)) => {
            let stream = if status == REFUSED { 1 } else { 2 };
            // A failure to write can't be reported anywhere.
            let _unsaid = write_all(stream, text.as_bytes());
            ExitCode::from(status)
        }
    }
}

fn compile(arguments: impl Iterator<Item = OsString>) -> Result<(), (u8, String)> {
    let unconfined = |text: String| (UNCONFINED, text);
    let (parent, limits, child) = parse(arguments).map_err(unconfined)?;
    drop_privileges(child).map_err(unconfined)?;
    let engine = confine(parent, &limits).map_err(unconfined)?;
    let refused = |text: String| (REFUSED, text);
    let mut module = Vec::new();
    let read = std::io::stdin()
        .take(limits::COMPAT_MODULE_BYTES as u64)
        .read_to_end(&mut module);
    read.map_err(|error| unconfined(format!("the module can't be read: {error}")))?;
    let code = engine.precompile_module(&module);
    let code = code.map_err(|error| refused(format!("{error:#}")))?;
    write_all(1, &code).map_err(|error| refused(format!("the code can't be written: {error}")))
}

fn parse(
    arguments: impl Iterator<Item = OsString>,
) -> Result<(i32, WorkerLimits, ChildUser), String> {
    let names = [
        "the daemon's process id",
        "the limit of memory",
        "the limit of CPU time",
        "the user",
        "the group",
    ];
    let [parent, memory_bytes, cpu_seconds, user, group] =
        numbers(arguments, "a compile worker", names)?;
    let parent = i32::try_from(parent).map_err(|error| format!("process id {parent}: {error}"))?;
    let limits = WorkerLimits {
        memory_bytes,
        cpu_seconds,
    };
    Ok((parent, limits, child_user(user, group)?))
}

/// The user that the arguments name for a root process.
pub(crate) fn child_user(user: u64, group: u64) -> Result<ChildUser, String> {
    let id = |number: u64| u32::try_from(number).map_err(|error| format!("user {number}: {error}"));
    Ok(ChildUser {
        user: id(user)?,
        group: id(group)?,
    })
}

/// The numbers in a child process's arguments, in order.
pub(crate) fn numbers<const N: usize>(
    mut arguments: impl Iterator<Item = OsString>,
    who: &str,
    names: [&str; N],
) -> Result<[u64; N], String> {
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let word = arguments.next().and_then(|word| word.into_string().ok());
        let parsed = word.and_then(|word| word.parse().ok());
        *number =
            parsed.ok_or_else(|| format!("{who} is started by the daemon; {name} is missing"))?;
    }
    Ok(numbers)
}

/// Drops all rights of this process except those that compiling needs. Returns the engine. It is
/// created before the last restriction because it installs signal handlers.
///
/// # Errors
/// States the step that the kernel refused. The process must end then.
pub fn confine(parent: i32, limits: &WorkerLimits) -> Result<Engine, String> {
    confinement::tie_to(parent, "worker")?;
    setpriority_process(None, NICE).map_err(failed("priority"))?;
    limit_resources(&[
        (Resource::Fsize, limits::ARTIFACT_BYTES as u64),
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
    ])?;
    let engine = Engine::new(&compiler_config()).map_err(|error| format!("engine: {error:#}"))?;
    let filter = filter().map_err(|error| format!("system call filter: {error}"))?;
    seccompiler::apply_filter(&filter).map_err(|error| format!("system call filter: {error}"))?;
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

fn write_all(stream: u8, mut bytes: &[u8]) -> std::io::Result<()> {
    let (out, error) = (std::io::stdout(), std::io::stderr());
    let stream = if stream == 1 {
        out.as_fd()
    } else {
        error.as_fd()
    };
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
