//! The compile worker: a process of its own that turns one module into machine code, and ends.
//!
//! ```text
//!   daemon ── exec /proc/self/exe compile-worker PARENT MEMORY CPU ──▶ worker
//!     0 ◀── the module     1 ──▶ machine code, or a refusal     2 ──▶ last words     (three memfds, nothing else)
//! ```
//!
//! Invariant: not a byte of the module is read before the process is confined for the rest of its life. Then it can compute,
//! get private memory up to its limit that is never executable, read descriptor 0 and write descriptors 1 and 2; any other
//! system call kills it, also through a descriptor that it shouldn't have inherited, whose number no rule names. It has no
//! environment, its directory is `/`, it yields to everybody else, and it dies with the thread that started it.
//!
//! One process per compilation, rather than one that is kept: starting it takes a few milliseconds, which a push
//! doesn't notice, and nothing of one tenant's module is there when another's is compiled.
//!
//! What this can't do: the code that comes out runs in the daemon, so who takes over the compiler has the guests' sandbox. The
//! worker keeps its crashes, its time and its memory away from the daemon.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;

use libc::c_long;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, getpid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setpriority_process, setrlimit,
};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use wasmtime::Engine;

use crate::host::compiler_config;
use crate::limits;

/// The first argument of a process that is to be a worker.
pub const ARGUMENT: &str = "compile-worker";

/// Exit status: what is on descriptor 1 is a refusal, in words.
pub(crate) const REFUSED: u8 = 2;
/// Exit status: the process couldn't be confined, or got no module, so it did nothing.
pub(crate) const UNCONFINED: u8 = 3;

/// How niced a worker is: a tenth of the weight of the datapath, and still some progress on a machine that is full.
const NICE: i32 = 10;

/// What a worker may use; the daemon's configuration says how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Bytes of address space.
    pub memory_bytes: u64,
    /// Seconds of CPU.
    pub cpu_seconds: u64,
}

/// What a process does whose first argument was [`ARGUMENT`]: `arguments` are those after it.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match compile(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, text)) => {
            let stream = if status == REFUSED { 1 } else { 2 };
            // Nobody is left to hear about a failure to say so.
            let _unsaid = write_all(stream, text.as_bytes());
            ExitCode::from(status)
        }
    }
}

fn compile(arguments: impl Iterator<Item = OsString>) -> Result<(), (u8, String)> {
    let unconfined = |text: String| (UNCONFINED, text);
    let (parent, limits) = parse(arguments).map_err(unconfined)?;
    let engine = confine(parent, &limits).map_err(unconfined)?;
    let refused = |text: String| (REFUSED, text);
    let mut module = Vec::new();
    let read = std::io::stdin()
        .take(limits::FOREIGN_MODULE_BYTES as u64)
        .read_to_end(&mut module);
    read.map_err(|error| unconfined(format!("the module can't be read: {error}")))?;
    let code = engine.precompile_module(&module);
    let code = code.map_err(|error| refused(format!("{error:#}")))?;
    write_all(1, &code).map_err(|error| refused(format!("the code can't be written: {error}")))
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<(i32, WorkerLimits), String> {
    let names = [
        "the daemon's process id",
        "the limit of memory",
        "the limit of CPU time",
    ];
    let [parent, memory_bytes, cpu_seconds] = numbers(arguments, "a compile worker", names)?;
    let parent = i32::try_from(parent).map_err(|error| format!("process id {parent}: {error}"))?;
    let limits = WorkerLimits {
        memory_bytes,
        cpu_seconds,
    };
    Ok((parent, limits))
}

/// The numbers that a process of the daemon's is started with, in their order.
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

/// Takes everything from this process but what compiling needs; returns the engine, which was made before the last door
/// closed because it installs signal handlers.
///
/// # Errors
/// Says which step the kernel refused. The process must end then.
pub fn confine(parent: i32, limits: &WorkerLimits) -> Result<Engine, String> {
    let failed = |step: &'static str| move |error: rustix::io::Errno| format!("{step}: {error}");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("no death signal"))?;
    // Asked after the signal was ordered, so a parent that died in between is noticed.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err("the daemon that started this worker is gone".to_owned());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
    setpriority_process(None, NICE).map_err(failed("priority"))?;
    limit_resources(&[
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Fsize, limits::ARTIFACT_BYTES as u64),
        (Resource::Stack, limits::COMPILER_STACK_BYTES),
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
    ])
    .map_err(failed("resource limits"))?;
    let engine = Engine::new(&compiler_config()).map_err(|error| format!("engine: {error:#}"))?;
    let filter = filter().map_err(|error| format!("system call filter: {error}"))?;
    seccompiler::apply_filter(&filter).map_err(|error| format!("system call filter: {error}"))?;
    Ok(engine)
}

/// Sets limits that can't be raised again.
pub(crate) fn limit_resources(limits: &[(Resource, u64)]) -> Result<(), rustix::io::Errno> {
    limits.iter().try_for_each(|&(resource, most)| {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)
    })
}

/// System calls that are allowed whatever their arguments: memory, random seeds for hash tables, the clock, and what ends a
/// process or reports that it overflowed its stack.
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

/// System calls that are allowed with some arguments only; see [`filter`].
pub const ALLOWED_IN_PART: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_tgkill,
];

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let argument = SeccompCondition::new;
    let bits = |bits: i32| MaskedEq(u64::from(bits.cast_unsigned()));
    let exec = u64::from(libc::PROT_EXEC.cast_unsigned());
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let own = u64::from(getpid().as_raw_nonzero().get().cast_unsigned());
    let never_executable = || argument(2, Qword, MaskedEq(exec), 0);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let mut allow = |call, conditions| -> Result<(), seccompiler::BackendError> {
        let rule = SeccompRule::new(conditions)?;
        rules.entry(call).or_default().push(rule);
        Ok(())
    };
    allow(libc::SYS_read, vec![argument(0, Dword, Eq, 0)?])?;
    allow(libc::SYS_write, vec![argument(0, Dword, Eq, 1)?])?;
    allow(libc::SYS_write, vec![argument(0, Dword, Eq, 2)?])?;
    let anonymous = argument(3, Dword, bits(private), u64::from(private.cast_unsigned()))?;
    allow(libc::SYS_mmap, vec![never_executable()?, anonymous])?;
    allow(libc::SYS_mprotect, vec![never_executable()?])?;
    // Aborting is a signal to oneself.
    allow(libc::SYS_tgkill, vec![argument(0, Dword, Eq, own)?])?;
    let kill = SeccompAction::KillProcess;
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, kill, SeccompAction::Allow, target)?.try_into()
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
