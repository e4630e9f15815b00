//! The policy process itself: two threads, and the instances that pass between them.
//!
//! ```text
//!   set-up thread:  socket ─▶ load, instantiate ─▶ instance ──(queue)──▶ evaluate thread:  order ─▶ instance ─▶ answer
//! ```
//!
//! Invariant: an instance is in the evaluate thread's queue before the daemon is told of it, so
//! every order's instance is there. The process trusts the daemon. Invalid input from the daemon
//! ends the process, and the daemon notices the end.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tollgate_shm_abi::Misbehaved;
use tollgate_shm_abi::ring::PushError;
use tollgate_shm_abi::segment::SegmentError;
use tollgate_shm_abi::session::{AppEnd, SessionFds};
use tollgate_shm_abi::wait::{For, Patience, Step, now_ns};

use crate::artifact::Artifact;
use crate::confinement::{ConfineError, drop_privileges};
use crate::host::HostError;
use crate::isolated::confine::{DescriptorAccess, ProcessLimits, confine};
use crate::isolated::wire::{
    AnswerEntry, InstanceId, InstanceReply, InstanceRequest, OrderEntry, Result8, Task, Writer,
    receive, receive_part, send, view,
};
use crate::worker::{self, ArgumentError};
use crate::{
    BatchError, Capabilities, EvaluateError, Fault, Hook, Host, Instance, LoadError, LogLine,
    Manifest, MetricChange, Metrics, Policy, PolicyTime, Setup, SharedState, StateLimits,
    TenantLimits, limits,
};

/// The first argument of a process that runs a tenant's policies.
pub const ARGUMENT: &str = "policy-process";

/// Why the process ends; its last words.
#[derive(Debug, thiserror::Error)]
enum ProcessError {
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error(transparent)]
    Confine(#[from] ConfineError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("no shared memory: {0}")]
    NoMemory(io::Error),
    #[error(transparent)]
    Attach(#[from] SegmentError),
    #[error("no thread: {0}")]
    NoThread(io::Error),
    #[error("the set-up thread is gone")]
    SetUpGone,
    #[error("waiting: {0}")]
    Wait(Errno),
    #[error(transparent)]
    Memory(#[from] Misbehaved),
    #[error("the heap has no room for an answer")]
    NoRoom,
    #[error(transparent)]
    Push(#[from] PushError),
    #[error(transparent)]
    Order(#[from] OrderError),
}

/// The daemon's mistake in an order.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("an order of an unknown kind")]
    Kind,
    #[error("instance {0} doesn't exist")]
    NoInstance(u32),
    #[error("the successor of a hand-over doesn't exist")]
    NoSuccessor,
    #[error("a view is missing")]
    NoView,
    #[error(transparent)]
    Batch(#[from] EvaluateError<Infallible>),
}

/// The main function of a process whose first argument is [`ARGUMENT`]: `arguments` are the
/// following ones.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl Iterator<Item = OsString>) -> Result<(), ProcessError> {
    // If the machine runs out of memory, this process is killed first. Where this can't be set, the
    // kernel's own choice stands. It is set before the change of user and the ban on inspection,
    // because afterwards root owns its files in /proc.
    let _unsaid = std::fs::write("/proc/self/oom_score_adj", "1000");
    let [parent, memory_bytes, spin_us, user, group] = worker::numbers(
        arguments,
        "a policy process",
        [
            "the daemon's process id",
            "the limit of memory",
            "the time to spin",
            "the user",
            "the group",
        ],
    )?;
    drop_privileges(worker::child_user(user, group)?)?;
    let parent = worker::process_id(parent)?;
    let socket = Socket(io::stdin());
    let fds = receive_fds(&socket).map_err(ProcessError::NoMemory)?;
    let [.., doorbell, wake] = fds.as_array();
    let access = DescriptorAccess {
        doorbell: doorbell.as_raw_fd(),
        wake: wake.as_raw_fd(),
    };
    let end = AppEnd::attach(&limits::isolated_shape(), fds)?;
    let evaluate = Evaluate::new(end, Duration::from_micros(spin_us));
    // The first read of the clock asks the kernel where the clock is; later this would kill the
    // process.
    let _the_time = now_ns();
    let host = Host::for_process()?;
    let (instances, hosted) = mpsc::channel();
    let (confined, go) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel::<()>();
    // Created before the filter, which forbids new threads.
    let set_up = move || {
        if begun.send(()).is_ok() && go.recv().is_ok() {
            let ended = Setting {
                host,
                socket,
                instances,
                states: HashMap::new(),
            }
            .run();
            if let Err(error) = ended {
                eprintln!("set-up: {error}");
            }
        }
        // The daemon is gone, or this process is invalid.
        std::process::exit(0);
    };
    let spawned = std::thread::Builder::new()
        .name("set-up".to_owned())
        .spawn(set_up);
    spawned.map_err(ProcessError::NoThread)?;
    // A thread's first system calls are forbidden later.
    has_begun.recv().map_err(|_| ProcessError::SetUpGone)?;
    confine(parent, &ProcessLimits { memory_bytes }, access)?;
    confined.send(()).map_err(|_| ProcessError::SetUpGone)?;
    evaluate.run(&hosted)
}

/// Descriptor 0, which is a socket to the daemon: the filter allows no other number.
#[derive(Debug)]
struct Socket(io::Stdin);

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0.as_fd(), bytes)?)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0.as_fd(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The five descriptors of the shared memory, which come first.
fn receive_fds(socket: &Socket) -> io::Result<SessionFds> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(
        socket.0.as_fd(),
        &mut into,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    SessionFds::from_packet(fds).map_err(io::Error::other)
}

// ---- set-up ----

/// The content of an instance.
struct HostedInstance {
    policy: Policy,
    state: SharedState,
    request: InstanceRequest,
    config: Option<Vec<u8>>,
    /// None: each call gets a new instance.
    instance: Option<Instance>,
    /// The sum of the metrics of single calls' instances.
    gone: Metrics,
    /// The metrics that the daemon knows.
    told: Metrics,
}

impl HostedInstance {
    /// The changes of metrics since the last call.
    fn metric_changes(&mut self) -> Vec<MetricChange> {
        let now = match &self.instance {
            Some(instance) => instance.metrics(),
            None => &self.gone,
        };
        let changes = now.changes_since(&self.told);
        if !changes.is_empty() {
            self.told.clone_from(now);
        }
        changes
    }

    fn set_fuel_per_call(&mut self, fuel: u64) {
        self.request.fuel_per_call = fuel;
        if let Some(instance) = &mut self.instance {
            instance.set_fuel_per_call(fuel);
        }
    }

    fn instantiate(&self) -> Result<Instance, LoadError> {
        let request = &self.request;
        let granted = request.granted.iter().filter_map(|name| name.parse().ok());
        self.policy.instantiate(&Setup {
            limits: &TenantLimits {
                memory_bytes: request.memory_bytes,
                compat_memory_bytes: request.memory_bytes,
                table_elements: request.table_elements,
                fuel_per_call: request.fuel_per_call,
                fuel_for_setup: request.fuel_for_setup,
                fuel_for_handover: request.fuel_for_handover,
            },
            config: self.config.as_deref(),
            granted: granted.fold(Capabilities::ALWAYS, |all, one| all | one),
            state: Some(&self.state),
        })
    }
}

/// The set-up thread.
struct Setting {
    host: Host,
    socket: Socket,
    instances: mpsc::Sender<(InstanceId, Box<HostedInstance>)>,
    states: HashMap<String, SharedState>,
}

impl Setting {
    /// Runs until the daemon closes the socket.
    fn run(mut self) -> io::Result<()> {
        send(&mut self.socket, &InstanceReply::Ready, &[])?;
        loop {
            let request: InstanceRequest = receive(&mut self.socket)?;
            let code = receive_part(&mut self.socket, request.code_bytes)?;
            let manifest = receive_part(&mut self.socket, request.manifest_bytes)?;
            let config = match request.config_bytes {
                Some(bytes) => Some(receive_part(&mut self.socket, bytes)?),
                None => None,
            };
            let instance = request.instance;
            let reply = match self.instance(request, code, &manifest, config) {
                Ok(hosted) => {
                    let queued = self.instances.send((instance, Box::new(hosted)));
                    queued.map_err(io::Error::other)?;
                    InstanceReply::Created(instance)
                }
                Err(error) => InstanceReply::Refused(error.to_string()),
            };
            send(&mut self.socket, &reply, &[])?;
        }
    }

    fn instance(
        &mut self,
        request: InstanceRequest,
        code: Vec<u8>,
        manifest: &[u8],
        config: Option<Vec<u8>>,
    ) -> Result<HostedInstance, LoadError> {
        let manifest = Manifest::parse(manifest);
        let manifest = manifest.map_err(|error| LoadError::Manifest(error.to_string()))?;
        let module = Artifact::from_daemon(code).load(self.host.engine());
        let module = module.map_err(|error| LoadError::Compile(format!("{error:#}")))?;
        let policy = self.host.accept(&module, manifest, [0; 32], 0)?;
        let fresh = || SharedState::new(&StateLimits::default());
        let state = self
            .states
            .entry(request.state.clone())
            .or_insert_with(fresh);
        let mut hosted = HostedInstance {
            policy,
            state: state.clone(),
            request,
            config,
            instance: None,
            gone: Metrics::default(),
            told: Metrics::default(),
        };
        let instance = hosted.instantiate()?;
        hosted.instance = (!hosted.request.fresh).then_some(instance);
        Ok(hosted)
    }
}

// ---- evaluating ----

/// The evaluate thread.
struct Evaluate {
    end: AppEnd,
    patience: Patience,
    instances: HashMap<InstanceId, Box<HostedInstance>>,
    /// Answers whose parts the daemon may still read: their tickets and offsets.
    read_still: VecDeque<(u64, u64)>,
}

/// The result of an order.
struct Done {
    result: Result8,
    fuel: u64,
    part: Writer,
    log: (Vec<LogLine>, u64),
    metrics: Vec<MetricChange>,
}

impl Evaluate {
    fn new(end: AppEnd, spin: Duration) -> Evaluate {
        Evaluate {
            end,
            patience: Patience::new(spin),
            instances: HashMap::new(),
            read_still: VecDeque::new(),
        }
    }

    fn run(
        mut self,
        hosted: &mpsc::Receiver<(InstanceId, Box<HostedInstance>)>,
    ) -> Result<(), ProcessError> {
        loop {
            let Some(entry) = self.end.completions.pop()? else {
                self.wait()?;
                continue;
            };
            self.patience.reset();
            self.instances.extend(hosted.try_iter());
            let order = OrderEntry::of_entry(&entry).ok_or(OrderError::Kind)?;
            self.obey(&order)?;
        }
    }

    fn wait(&mut self) -> Result<(), ProcessError> {
        if self.patience.step(For::Anything) == Step::Look {
            return Ok(());
        }
        if self.end.completions.announce_sleep() {
            self.end.wake.wait(None).map_err(ProcessError::Wait)?;
        }
        self.end.completions.cancel_sleep();
        self.patience.reset();
        Ok(())
    }

    fn obey(&mut self, order: &OrderEntry) -> Result<(), ProcessError> {
        if order.task == Task::Leave {
            self.instances.remove(&order.instance);
            return Ok(());
        }
        while let Some(&(ticket, offset)) = self.read_still.front()
            && ticket < order.taken
        {
            self.read_still.pop_front();
            self.end.send_heap.free(offset)?;
        }
        let done = self.carry_out(order)?;
        self.answer(order.ticket, done)
    }

    fn answer(&mut self, ticket: u64, done: Done) -> Result<(), ProcessError> {
        let Done {
            result,
            fuel,
            mut part,
            log: (lines, dropped),
            metrics,
        } = done;
        let log_at = part.0.len();
        part.log(&lines);
        part.metrics(&metrics);
        let block = self.end.send_heap.alloc(part.0.len());
        let mut block = block.ok_or(ProcessError::NoRoom)?;
        block.copy_from_slice(&part.0);
        let offset = self.end.send_heap.commit(block);
        self.read_still.push_back((ticket, offset));
        let answer = AnswerEntry {
            result,
            ticket,
            fuel,
            offset,
            len: part.0.len() as u32,
            log_at: log_at as u32,
            log_lines: lines.len() as u32,
            log_dropped: dropped,
            metrics: metrics.len() as u32,
        };
        self.end.submissions.push(&answer.to_entry())?;
        if self.end.submissions.needs_wake() {
            self.end.doorbell.ring();
        }
        Ok(())
    }

    fn carry_out(&mut self, order: &OrderEntry) -> Result<Done, ProcessError> {
        let mut successor = match order.task {
            Task::HandOver { successor, .. } => Some(
                self.instances
                    .remove(&successor)
                    .ok_or(OrderError::NoSuccessor)?,
            ),
            _ => None,
        };
        let hosted = self.instances.get_mut(&order.instance);
        let hosted = hosted.ok_or(OrderError::NoInstance(order.instance.0))?;
        if order.fuel_per_call != 0 {
            hosted.set_fuel_per_call(order.fuel_per_call);
        }
        let mut fresh = None;
        let (ended, fuel) = match order.task {
            Task::Evaluate {
                hook,
                count,
                offset,
                len,
            } => {
                let views = self.end.receive_heap.claim(offset, len as usize);
                let mut evaluating = Evaluating {
                    hook,
                    time: order.time,
                    views: &views?,
                    fuel: 0,
                    part: Writer::new(count.into()),
                };
                let evaluated = evaluating.evaluate(hosted, &mut fresh, count.into());
                (evaluated.map(|()| evaluating.part), evaluating.fuel)
            }
            Task::Tick => tick(hosted, order.time),
            Task::HandOver { version, .. } => hand_over(hosted, successor.as_deref_mut(), version),
            Task::Leave => (Ok(Writer::new(0)), 0),
        };
        let logger = fresh.as_mut().or(hosted.instance.as_mut());
        let log = logger.map(Instance::take_log).unwrap_or_default();
        if let Some(last) = &fresh {
            hosted.gone.absorb(last.metrics());
        }
        let metrics = hosted.metric_changes();
        if let (
            Task::HandOver {
                successor: instance,
                ..
            },
            Some(successor),
        ) = (order.task, successor)
        {
            self.instances.insert(instance, successor);
        }
        let done = |result, part| Done {
            result,
            fuel,
            part,
            log,
            metrics,
        };
        let reason = |fault: Fault| Writer(crate::text::cut(&fault.to_string()).into());
        match ended {
            Ok(part) => Ok(done(Result8::Done, part)),
            Err(Failed::InstanceHandle(fault)) => Ok(done(Result8::Failed, reason(fault))),
            Err(Failed::Successor(fault)) => Ok(done(Result8::SuccessorFailed, reason(fault))),
            Err(Failed::Daemon(error)) => Err(error.into()),
        }
    }
}

/// The cause of a failure.
enum Failed {
    InstanceHandle(Fault),
    Successor(Fault),
    Daemon(OrderError),
}

/// The result, and the fuel used.
type Ended = (Result<Writer, Failed>, u64);

fn tick(hosted: &mut HostedInstance, time: PolicyTime) -> Ended {
    let Some(instance) = &mut hosted.instance else {
        return (Ok(Writer::new(0)), 0);
    };
    instance.set_time(time);
    let ticked = instance.tick();
    let ended = ticked
        .map(|()| Writer::new(0))
        .map_err(Failed::InstanceHandle);
    (ended, instance.fuel_used())
}

/// Gives the successor the instance's state; the fuel is that of both.
fn hand_over(
    hosted: &mut HostedInstance,
    successor: Option<&mut HostedInstance>,
    version: u32,
) -> Ended {
    let nothing = || Ok(Writer::new(0));
    let successor = successor.and_then(|successor| successor.instance.as_mut());
    let (Some(instance), Some(successor)) = (&mut hosted.instance, successor) else {
        // Nothing is kept: the successor starts with an empty state.
        return (nothing(), 0);
    };
    let saved = instance.save();
    let mut fuel = instance.fuel_used();
    let saved = match saved {
        Ok(saved) => saved,
        Err(fault) => return (Err(Failed::InstanceHandle(fault)), fuel),
    };
    let own_format = successor.policy().manifest().state_version();
    let (Some(saved), Some(_)) = (saved, own_format) else {
        return (nothing(), fuel);
    };
    let restored = successor.restore(version, &saved);
    fuel += successor.fuel_used();
    let ended = restored.map(|()| Writer::new(0)).map_err(Failed::Successor);
    (ended, fuel)
}

/// One batch.
struct Evaluating<'a> {
    hook: Hook,
    time: PolicyTime,
    views: &'a [u8],
    fuel: u64,
    part: Writer,
}

impl Evaluating<'_> {
    /// `fresh` is the last instance that was created for a call.
    fn evaluate(
        &mut self,
        hosted: &mut HostedInstance,
        fresh: &mut Option<Instance>,
        count: usize,
    ) -> Result<(), Failed> {
        if let Some(instance) = &mut hosted.instance {
            return self.ask(instance, 0..count);
        }
        for index in 0..count {
            let mut instance = hosted.instantiate().map_err(|error| {
                self.fuel += hosted.request.fuel_for_setup;
                Failed::InstanceHandle(Fault::Trap(error.to_string()))
            })?;
            self.fuel += instance.fuel_used();
            // Earlier instances are gone: their log lines move to the next one.
            if let Some(before) = fresh.as_mut() {
                instance.inherit_log(before);
                hosted.gone.absorb(before.metrics());
            }
            let asked = self.ask(&mut instance, index..index + 1);
            *fresh = Some(instance);
            asked?;
        }
        Ok(())
    }

    fn ask(&mut self, instance: &mut Instance, calls: Range<usize>) -> Result<(), Failed> {
        let (begin, count) = (calls.start, calls.len());
        let views = calls.map(|index| view(self.views, index));
        let views: Option<Vec<(u32, &[u8])>> = views.collect();
        let views = views.ok_or(Failed::Daemon(OrderError::NoView))?;
        instance.set_time(self.time);
        let sizes = views.iter().map(|(_, view)| view.len().next_multiple_of(8));
        let evaluated = match instance.batch(self.hook, count, sizes.sum()) {
            Err(BatchError::Fault(fault)) => Err(fault),
            Err(BatchError::Misuse(misuse)) => {
                return Err(Failed::Daemon(OrderError::Batch(misuse.into())));
            }
            Ok(mut batch) => {
                for (method, view) in views {
                    let pushed = batch.push(method, view.len(), |room| {
                        room[..view.len()].copy_from_slice(view);
                        Ok(view.len())
                    });
                    pushed.map_err(|error| Failed::Daemon(error.into()))?;
                }
                let part = &mut self.part;
                batch.evaluate(|index, verdict| part.verdict(begin + index, &verdict))
            }
        };
        self.fuel += instance.fuel_used();
        evaluated.map_err(Failed::InstanceHandle)
    }
}
