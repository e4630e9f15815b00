//! The control plane's end of a policy process: starts it, creates instances for policies in it,
//! reads its resource use, ends it.
//!
//! Functions here block (an instance's set-up takes up to its budget), except [`Process::start`],
//! which takes as long as a fork. Call it from a thread that lives as long as the process shall:
//! the kernel ends the process with that thread.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tollgate_shm_abi::session::{SessionFds, create};

use crate::isolated::channel::{Channel, InstanceHandle};
use crate::isolated::instances::ARGUMENT;
use crate::isolated::wire::{InstanceId, InstanceReply, InstanceRequest, receive, send};
use crate::text::cut;
use crate::{Capabilities, ChildUser, LoadError, Policy, TenantLimits, limits};

/// The settings for starting a policy process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Bytes of writable memory. Default 256 MiB, for all instances of a tenant together.
    pub memory_bytes: u64,
    /// How long it polls for orders before it sleeps. Default 50 us. A longer time gives faster
    /// answers and burns more CPU time.
    pub spin: Duration,
    /// Its user if the daemon is root.
    pub user: ChildUser,
    /// The program that becomes a policy process if its first argument is [`ARGUMENT`]. Default:
    /// the running one.
    pub program: PathBuf,
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig {
            memory_bytes: limits::ISOLATED_MEMORY_BYTES,
            spin: Duration::from_micros(50),
            user: ChildUser::default(),
            // The running executable, even if another file has its name by now.
            program: PathBuf::from("/proc/self/exe"),
        }
    }
}

/// The inputs for creating an instance.
#[derive(Clone, Copy, Debug)]
pub struct InstanceSetup<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Its instance's limits.
    pub limits: &'a TenantLimits,
    /// Its configuration.
    pub config: Option<&'a [u8]>,
    /// Its rights.
    pub granted: Capabilities,
    /// Instances in this process with the same name share their state.
    pub state: &'a str,
    /// Whether each call gets a new instance.
    pub fresh: bool,
}

/// Reasons for not creating an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstantiateError {
    /// The policy's or its configuration's fault, in the words of a [`LoadError`].
    #[error("{0}")]
    Refused(String),
    /// The maximum number of instances is reached.
    #[error("the tenant's policy process has {0} instances, which is the limit")]
    Full(usize),
    /// The process died, or isn't a policy process.
    #[error("the tenant's policy process failed: {0}")]
    Process(String),
}

/// A process that runs one tenant's policies; it is killed and reaped at the latest when this is
/// dropped.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    pid: i32,
    socket: Mutex<Socket>,
    words: File,
    /// The number of instances.
    taken: Arc<AtomicUsize>,
    /// Tells the channel which instances are given up.
    leave: mpsc::Sender<InstanceId>,
}

#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    ready: bool,
    next_instance: u32,
}

impl Process {
    /// Starts one; also returns the channel for the runtime.
    ///
    /// # Errors
    /// If the machine is short of processes, memory or descriptors.
    pub fn start(config: &ProcessConfig) -> io::Result<(Process, Channel)> {
        let (end, fds) = create(&limits::isolated_shape()).map_err(io::Error::other)?;
        let (ours, theirs) = UnixStream::pair()?;
        let words = File::from(memfd_create("tollgate-policies", MemfdFlags::CLOEXEC)?);
        let child = Command::new(&config.program)
            .arg0("tollgated")
            .arg(ARGUMENT)
            .arg(std::process::id().to_string())
            .arg(config.memory_bytes.to_string())
            .arg(config.spin.as_micros().to_string())
            .arg(config.user.user.to_string())
            .arg(config.user.group.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(words.try_clone()?)
            .stderr(words.try_clone()?)
            .spawn()?;
        let pid = Pid::from_child(&child);
        let (leave, leaving) = mpsc::channel();
        // If a later step fails, dropping this kills the process.
        let process = Process {
            child: Mutex::new(child),
            pid: pid.as_raw_nonzero().get(),
            socket: Mutex::new(Socket {
                stream: ours,
                ready: false,
                next_instance: 0,
            }),
            words,
            taken: Arc::default(),
            leave,
        };
        send_fds(&lock(&process.socket).stream, &fds)?;
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        Ok((process, Channel::new(end, ended, leaving)))
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Makes the process load a policy and create an instance. Runs the guest's set-up in the
    /// process.
    ///
    /// # Errors
    /// See [`InstantiateError`]. After [`InstantiateError::Process`] the process has been killed.
    pub fn instantiate(
        &self,
        setup: &InstanceSetup<'_>,
    ) -> Result<InstanceHandle, InstantiateError> {
        let mut socket = lock(&self.socket);
        // Only this function increases it, one call at a time.
        let taken = self.taken.load(Ordering::Relaxed);
        if taken >= limits::ISOLATED_INSTANCES {
            return Err(InstantiateError::Full(taken));
        }
        if let Some(compat) = setup.policy.manifest().compat() {
            let abi = compat.abi().name();
            let text = format!("a module that speaks {abi} can't run in a process of its own yet");
            return Err(InstantiateError::Refused(text));
        }
        let code = setup.policy.code();
        let code = code.map_err(|error: LoadError| InstantiateError::Refused(error.to_string()))?;
        let id = InstanceId(socket.next_instance);
        socket.next_instance += 1;
        match socket.ask(id, setup, &code) {
            Ok(InstanceReply::Created(hosted)) if hosted == id => {
                self.taken.fetch_add(1, Ordering::Relaxed);
                Ok(InstanceHandle {
                    id,
                    taken: Arc::clone(&self.taken),
                    leave: self.leave.clone(),
                })
            }
            Ok(InstanceReply::Refused(why)) => Err(InstantiateError::Refused(cut(&why))),
            Ok(reply) => Err(self.useless(&format!("it answered {reply:?} out of turn"))),
            Err(error) => Err(self.useless(&error.to_string())),
        }
    }

    /// The number of instances.
    pub fn instances(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn useless(&self, why: &str) -> InstantiateError {
        self.kill();
        let status = lock(&self.child).wait();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let words = self.last_words();
        let text = format!("{why}, {status} {words}");
        InstantiateError::Process(cut(&text).trim_end().to_owned())
    }

    /// Ends it.
    pub fn kill(&self) {
        // Fails only if it is reaped already.
        let _gone = lock(&self.child).kill();
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().ok().flatten()
    }

    /// The end of its output, cut.
    pub fn last_words(&self) -> String {
        let mut words = Vec::new();
        let mut file = &self.words;
        let read = file.rewind().and_then(|()| {
            let mut limited = file.take(limits::CONFIG_ERROR_BYTES as u64);
            limited.read_to_end(&mut words)
        });
        match read {
            Ok(_) => cut(&String::from_utf8_lossy(&words)).trim_end().to_owned(),
            Err(error) => format!("(its output can't be read: {error})"),
        }
    }

    /// Its resident memory in bytes, as the kernel counts it; `None` once it is gone.
    pub fn resident_bytes(&self) -> Option<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        // Both fail only if it is reaped already.
        let _gone = child.kill();
        let _reaped = child.wait();
    }
}

impl Socket {
    fn ask(
        &mut self,
        instance: InstanceId,
        setup: &InstanceSetup<'_>,
        code: &[u8],
    ) -> io::Result<InstanceReply> {
        let mut stream = Timed {
            stream: &self.stream,
            end: Instant::now() + limits::ISOLATED_SETUP_TIMEOUT,
        };
        if !self.ready {
            match receive(&mut stream)? {
                InstanceReply::Ready => self.ready = true,
                reply => return Ok(reply),
            }
        }
        let limits = setup.policy.cut(setup.limits);
        let manifest = setup.policy.manifest().source();
        let request = InstanceRequest {
            instance,
            code_bytes: code.len(),
            manifest_bytes: manifest.len(),
            config_bytes: setup.config.map(<[u8]>::len),
            fresh: setup.fresh,
            granted: setup.granted.names().map(str::to_owned).collect(),
            state: setup.state.to_owned(),
            memory_bytes: limits.memory_bytes,
            table_elements: limits.table_elements,
            fuel_per_call: limits.fuel_per_call,
            fuel_for_setup: limits.fuel_for_setup,
            fuel_for_handover: limits.fuel_for_handover,
        };
        let config = setup.config.unwrap_or_default();
        send(&mut stream, &request, &[code, manifest, config])?;
        receive(&mut stream)
    }
}

/// A stream with a deadline: unusable after `end`, even if the peer reads or writes slowly until
/// then.
struct Timed<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(late()),
            left => Ok(Some(left)),
        }
    }
}

fn late() -> io::Error {
    let text = format!(
        "it took longer than {:?} to create an instance",
        limits::ISOLATED_SETUP_TIMEOUT
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// The kernel's error for a passed deadline.
fn of_kernel(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => late(),
        _ => error,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes).map_err(of_kernel)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(of_kernel)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hands over the shared memory.
fn send_fds(socket: &UnixStream, fds: &SessionFds) -> io::Result<()> {
    let fds = fds.as_array();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [IoSlice::new(&[0])];
    sendmsg(socket.as_fd(), &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn whoever_talks_a_byte_at_a_time_is_out_of_time_nevertheless() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let trickling = std::thread::spawn(move || {
            while theirs.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let end = Instant::now() + Duration::from_millis(50);
        let mut stream = Timed { stream: &ours, end };
        // At that rate it would take a minute.
        let error = stream.read_exact(&mut [0; 12_000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(end.elapsed() < Duration::from_secs(20));
        drop(ours);
        trickling.join().unwrap();
    }
}
