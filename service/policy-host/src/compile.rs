//! From uploaded bytes to a policy, with the compiler in another process. The daemon uses this
//! instead of [`Host::load`].
//!
//! ```text
//!   bytes ─▶ refused before? ─▶ scan ─▶ compiled before? ─▶ worker process ─▶ load ─▶ Policy
//!              │ the reason      │ why    │ code               │ killed at its limits
//! ```
//!
//! Invariant: the compiler runs in a worker ([`crate::worker`]) and never in this process. When the
//! function that started a worker returns, the worker has ended and is reaped. Functions here
//! block. The caller decides how many compile at once, and in which order.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use sha2::{Digest, Sha256};

use crate::artifact::{Artifact, Key, engine_number};
use crate::cache::{Artifacts, Found, Refusals};
use crate::text::cut;
use crate::worker::{self, WorkerLimits};
use crate::{ChildUser, Host, LoadError, Manifest, Policy, limits};

/// The settings of a [`Compiler`]. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerConfig {
    /// CPU time that a worker may take before it is killed. Default 10 s. The scan refuses every
    /// module that takes longer than about 2 s. On a fully loaded machine a worker gets a tenth of
    /// a core or less. After [`limits::COMPILE_PATIENCE`] times this time by the clock, the
    /// compilation is given up for now.
    pub timeout: Duration,
    /// Bytes of address space of a worker. Default 512 MiB. Ordinary policies take 60 MB.
    pub memory_bytes: u64,
    /// Directory for compiled code. None (default): code is kept in memory and lost at the end.
    pub artifacts: Option<PathBuf>,
    /// A worker's user if the daemon is root.
    pub user: ChildUser,
    /// The program that becomes a worker if its first argument is [`worker::ARGUMENT`]. Default:
    /// the running one.
    pub program: PathBuf,
}

impl CompilerConfig {
    fn patience(&self) -> Duration {
        self.timeout * limits::COMPILE_PATIENCE
    }
}

impl Default for CompilerConfig {
    fn default() -> CompilerConfig {
        CompilerConfig {
            timeout: limits::COMPILE_TIMEOUT,
            memory_bytes: limits::COMPILE_MEMORY_BYTES,
            artifacts: None,
            user: ChildUser::default(),
            // The running executable, even if another file has its name by now.
            program: PathBuf::from("/proc/self/exe"),
        }
    }
}

/// Counts of a compiler's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CompilerCounters {
    /// Worker processes started.
    pub workers_started: u64,
    /// Workers that didn't end by themselves: out of time, out of memory, killed, crashed.
    pub workers_killed: u64,
    /// Modules whose code was found in the cache.
    pub found_compiled: u64,
    /// Modules with a remembered refusal.
    pub found_refused: u64,
    /// Damaged cache files that were deleted.
    pub damaged: u64,
    /// Modules whose code couldn't be kept (a full disk, for example) and will be compiled again.
    pub not_kept: u64,
}

/// Why nothing can be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompilerError {
    /// The directory for compiled code can't be used.
    #[error("{} can't keep compiled policies: {error}", .directory.display())]
    Directory {
        /// The configured directory.
        directory: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// The kernel gave no eventfd.
    #[error("no eventfd for the compiler: {0}")]
    NoEventfd(Errno),
}

/// Compiles policies for one [`Host`].
pub struct Compiler {
    host: Host,
    config: CompilerConfig,
    engine: u64,
    artifacts: Mutex<Artifacts>,
    problem: Option<String>,
    refusals: Mutex<Refusals>,
    counts: Counts,
    /// Becomes readable when all workers are to be killed.
    stop: OwnedFd,
}

#[derive(Default)]
struct Counts {
    workers_started: AtomicU64,
    workers_killed: AtomicU64,
    found_compiled: AtomicU64,
    found_refused: AtomicU64,
    damaged: AtomicU64,
    not_kept: AtomicU64,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Compiler {
    /// Opens the caches.
    ///
    /// # Errors
    /// The directory for compiled code can't be used.
    pub fn new(host: Host, config: CompilerConfig) -> Result<Compiler, CompilerError> {
        let engine = engine_number(host.engine());
        let opened = match &config.artifacts {
            None => Ok(Artifacts::in_memory()),
            Some(directory) => Artifacts::in_directory(directory, engine).map_err(|error| {
                let directory = directory.clone();
                CompilerError::Directory { directory, error }
            }),
        };
        let (artifacts, problem) = match opened {
            Ok(artifacts) => (artifacts, None),
            // A disk that refuses writes must not stop the service: modules are compiled again
            // after the next start.
            Err(refusal) => match &refusal {
                CompilerError::Directory { error, .. } if is_disks(error) => {
                    (Artifacts::in_memory(), Some(refusal.to_string()))
                }
                _ => return Err(refusal),
            },
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(CompilerError::NoEventfd)?;
        Ok(Compiler {
            host,
            config,
            engine,
            artifacts: Mutex::new(artifacts),
            problem,
            refusals: Mutex::default(),
            counts: Counts::default(),
            stop,
        })
    }

    /// The reason for keeping compiled policies in memory, if a directory is configured.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Answers without the compiler, if the module is known or the scan refuses it. Takes
    /// milliseconds.
    pub fn recall(&self, wasm: &[u8]) -> Option<Result<Policy, LoadError>> {
        let (module, manifest) = match self.look(wasm) {
            Ok(looked) => looked,
            Err(error) => return Some(Err(error)),
        };
        self.find(wasm, module, &manifest)
    }

    /// Answers, with a worker if needed. Takes up to the configured time.
    ///
    /// # Errors
    /// States the module's error, or the limit that its compilation met.
    pub fn compile(&self, wasm: &[u8]) -> Result<Policy, LoadError> {
        let (module, manifest) = self.look(wasm)?;
        if let Some(known) = self.find(wasm, module, &manifest) {
            return known;
        }
        let made = self.run(wasm).and_then(|artifact| {
            let policy = self.accept(&artifact, wasm, module, manifest)?;
            Ok((artifact, policy))
        });
        match made {
            Ok((artifact, policy)) => {
                let kept = lock(&self.artifacts).keep(self.key(module), &artifact);
                if kept.is_err() {
                    count(&self.counts.not_kept);
                }
                Ok(policy)
            }
            Err(error) => Err(self.refuse(module, error)),
        }
    }

    /// Kills all workers, including those started later.
    pub fn stop(&self) {
        // Fails only if the counter was full, and so readable.
        let _readable = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Counts of the work so far.
    pub fn counters(&self) -> CompilerCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompilerCounters {
            workers_started: read(&self.counts.workers_started),
            workers_killed: read(&self.counts.workers_killed),
            found_compiled: read(&self.counts.found_compiled),
            found_refused: read(&self.counts.found_refused),
            damaged: read(&self.counts.damaged),
            not_kept: read(&self.counts.not_kept),
        }
    }

    fn key(&self, module: [u8; 32]) -> Key {
        Key {
            module,
            engine: self.engine,
        }
    }

    /// The module's digest and manifest, or the reason for refusing it, which is remembered.
    fn look(&self, wasm: &[u8]) -> Result<([u8; 32], Manifest), LoadError> {
        if wasm.len() > limits::COMPAT_MODULE_BYTES {
            return Host::scan(wasm).map(|manifest| ([0; 32], manifest));
        }
        let module = Sha256::digest(wasm).into();
        if let Some(error) = lock(&self.refusals).find(&module, Instant::now()) {
            count(&self.counts.found_refused);
            return Err(error);
        }
        let manifest = Host::scan(wasm).map_err(|error| self.refuse(module, error))?;
        Ok((module, manifest))
    }

    fn refuse(&self, module: [u8; 32], error: LoadError) -> LoadError {
        let lasting = match error {
            LoadError::NoCompiler(_) => return error,
            LoadError::CompileTimeout { .. }
            | LoadError::CompileMemory { .. }
            | LoadError::CompilerDied { .. } => Some(limits::REFUSAL_PAUSE),
            _ => None,
        };
        lock(&self.refusals).keep(module, error.clone(), Instant::now(), lasting);
        error
    }

    fn find(
        &self,
        wasm: &[u8],
        module: [u8; 32],
        manifest: &Manifest,
    ) -> Option<Result<Policy, LoadError>> {
        let key = self.key(module);
        let artifact = match lock(&self.artifacts).find(&key) {
            Found::Nothing => return None,
            Found::Code(artifact) => artifact,
            Found::Damaged => {
                count(&self.counts.damaged);
                return None;
            }
        };
        match self.accept(&artifact, wasm, module, manifest.clone()) {
            // The engine refuses it, although the checksum was right.
            Err(LoadError::Compile(_)) => {
                lock(&self.artifacts).remove(&key);
                count(&self.counts.damaged);
                None
            }
            result => {
                count(&self.counts.found_compiled);
                Some(result)
            }
        }
    }

    fn accept(
        &self,
        artifact: &Artifact,
        wasm: &[u8],
        digest: [u8; 32],
        manifest: Manifest,
    ) -> Result<Policy, LoadError> {
        let module = artifact
            .load(self.host.engine())
            .map_err(|e| LoadError::Compile(cut(&format!("{e:#}"))))?;
        self.host.accept(&module, manifest, digest, wasm.len())
    }

    /// Compiles a module in a worker.
    fn run(&self, wasm: &[u8]) -> Result<Artifact, LoadError> {
        let missing = |error: io::Error| LoadError::NoCompiler(error.to_string());
        let module = memfd("tollgate-module").map_err(missing)?;
        module.write_all_at(wasm, 0).map_err(missing)?;
        let result = memfd("tollgate-artifact").map_err(missing)?;
        let stderr = memfd("tollgate-worker").map_err(missing)?;
        let mut worker = self.start(&module, &result, &stderr).map_err(missing)?;
        count(&self.counts.workers_started);
        let ended = worker.wait(&self.config, &self.stop).map_err(missing)?;
        drop(worker);
        let artifact = match ended {
            Ended::Itself(status) => self.outcome_of(status, result, stderr),
            Ended::TooSlow => Err(LoadError::CompileTimeout {
                ms: self.config.timeout.as_millis(),
            }),
            Ended::Starved(had) => Err(LoadError::NoCompiler(format!(
                "the host is overloaded: the compiler got {} ms of CPU in {} ms",
                had.as_millis(),
                self.config.patience().as_millis()
            ))),
            Ended::Stopped => Err(LoadError::NoCompiler("the daemon is ending".to_owned())),
        };
        if let Err(error) = &artifact
            && !matches!(error, LoadError::Compile(_))
        {
            count(&self.counts.workers_killed);
        }
        artifact
    }

    fn start(&self, module: &File, result: &File, stderr: &File) -> io::Result<Worker> {
        let mut command = Command::new(&self.config.program);
        command
            .arg0("tollgated")
            .arg(worker::ARGUMENT)
            .arg(std::process::id().to_string())
            .arg(self.config.memory_bytes.to_string())
            .arg(self.limits().cpu_seconds.to_string())
            .arg(self.config.user.user.to_string())
            .arg(self.config.user.group.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(module.try_clone()?)
            .stdout(result.try_clone()?)
            .stderr(stderr.try_clone()?);
        command.spawn().map(Worker)
    }

    fn limits(&self) -> WorkerLimits {
        WorkerLimits {
            memory_bytes: self.config.memory_bytes,
            // Reached only by a worker that is no longer watched.
            cpu_seconds: self.config.timeout.as_secs() + 2,
        }
    }

    /// The outcome of a worker that has ended.
    fn outcome_of(
        &self,
        status: ExitStatus,
        result: File,
        stderr: File,
    ) -> Result<Artifact, LoadError> {
        let read = |file, most| {
            read(file, most).map_err(|error| LoadError::CompilerDied {
                how: format!("what it wrote can't be read: {error}"),
            })
        };
        let text = |file| {
            read(file, limits::CONFIG_ERROR_BYTES).map(|text| cut(&String::from_utf8_lossy(&text)))
        };
        if status.success() {
            return read(result, limits::ARTIFACT_BYTES).map(Artifact::from_worker);
        }
        if status.code() == Some(worker::REFUSED.into()) {
            return Err(LoadError::Compile(text(result)?));
        }
        let last_words = text(stderr)?;
        if status.code() == Some(worker::UNCONFINED.into()) {
            return Err(LoadError::NoCompiler(last_words));
        }
        let signal = status.signal().and_then(Signal::from_named_raw);
        Err(match signal {
            Some(Signal::XCPU) => LoadError::CompileTimeout {
                ms: self.config.timeout.as_millis(),
            },
            // Neither the module nor the compiler can cause this: see `Calls::new`.
            Some(Signal::KILL) => LoadError::NoCompiler(
                "it was killed by another process, or because the machine is out of memory"
                    .to_owned(),
            ),
            // Rust's library ends a process this way when an allocation fails.
            Some(Signal::ABORT) if last_words.contains("memory allocation of") => {
                LoadError::CompileMemory {
                    bytes: self.config.memory_bytes,
                }
            }
            _ => LoadError::CompilerDied {
                how: cut(&format!("{status} {last_words}")).trim_end().to_owned(),
            },
        })
    }
}

/// A worker; it is killed and reaped at the latest when this is dropped.
struct Worker(Child);

enum Ended {
    Itself(ExitStatus),
    TooSlow,
    /// Its patience ended; it had this much CPU time.
    Starved(Duration),
    Stopped,
}

impl Worker {
    fn wait(&mut self, config: &CompilerConfig, stop: &OwnedFd) -> io::Result<Ended> {
        let pid = Pid::from_child(&self.0);
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let deadline = Instant::now() + config.patience();
        loop {
            // Where processes can't inspect others (`hidepid`), the worker's own limit of CPU time
            // ends it.
            let had = cpu_time(pid).unwrap_or_default();
            let left = deadline.saturating_duration_since(Instant::now());
            if had >= config.timeout {
                return Ok(Ended::TooSlow);
            }
            if left.is_zero() {
                return Ok(Ended::Starved(had));
            }
            // One thread uses no more CPU time than this; a tick is the resolution of the
            // measurement.
            let left = left.min(config.timeout - had).max(TICK);
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [
                PollFd::new(&ended, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) | Ok(0) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if fds[0].revents().is_empty() => return Ok(Ended::Stopped),
                Ok(_) => return self.0.wait().map(Ended::Itself),
            }
        }
    }
}

/// The unit of [`cpu_time`].
const TICK: Duration = Duration::from_millis(10);

/// CPU time, user and kernel, of a process that isn't reaped yet.
fn cpu_time(pid: Pid) -> io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    // The name, in parentheses, may contain any character. `utime` and `stime` are fields 14 and 15
    // of proc_pid_stat(5).
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    let millis = ticks * 1000 / rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(millis))
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it is reaped already.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn memfd(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// A file's bytes; an error if there are more than `most`.
fn read(mut file: File, most: usize) -> io::Result<Vec<u8>> {
    let bytes = file.metadata()?.len();
    if bytes > most as u64 {
        return Err(io::Error::other(format!(
            "{bytes} bytes, above the limit of {most}"
        )));
    }
    let mut content = Vec::new();
    file.rewind()?;
    file.take(most as u64).read_to_end(&mut content)?;
    Ok(content)
}

/// Whether the disk refuses writes (it is full or read-only), rather than the operator having
/// configured a wrong directory.
fn is_disks(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let eio = rustix::io::Errno::IO.raw_os_error();
    [FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull].contains(&error.kind())
        || error.raw_os_error() == Some(eio)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_disk_that_takes_nothing_is_told_from_a_wrong_directory() {
        for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem] {
            assert!(is_disks(&kind.into()), "{kind}");
        }
        assert!(is_disks(&Error::from_raw_os_error(5)));
        for kind in [ErrorKind::PermissionDenied, ErrorKind::NotADirectory] {
            assert!(!is_disks(&kind.into()), "{kind}");
        }
    }
}
