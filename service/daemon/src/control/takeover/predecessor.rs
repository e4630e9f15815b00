//! The daemon that is to be replaced.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;
use tollgate_control::audit::Actor;
use tollgate_engine::Status;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::messages;
use tollgate_shm_abi::status::Code;

use super::{ARGUMENT, Channel, FORMAT, Message, Offer, borrowed};
use crate::control::admin::{invalid, store_failed};
use crate::control::report::internal;
use crate::control::{Control, DaemonError, failed};
use crate::limits::{MAX_UPGRADE_TIMEOUT, TAKE_OVER_TIMEOUT, UPGRADE_TIMEOUT};

/// `tollgate upgrade`, and SIGUSR2: starts another process and lets it take over, or goes on. Who calls this stops serving when it
/// has succeeded.
pub(crate) async fn upgrade(
    control: &Rc<Control>,
    by: Actor,
    request: &messages::Upgrade,
) -> Result<Value, Status> {
    let limit = match request.timeout_ms {
        0 => UPGRADE_TIMEOUT,
        ms => Duration::from_millis(ms.into()),
    };
    if limit > MAX_UPGRADE_TIMEOUT {
        return Err(invalid(format!(
            "a time-out of {limit:?} is too long: at most {MAX_UPGRADE_TIMEOUT:?} are allowed"
        )));
    }
    let program = match request.binary.as_str() {
        "" => control.program.clone(),
        path => PathBuf::from(path),
    };
    if !program.is_absolute() {
        let text = format!("the program {} isn't an absolute path", program.display());
        return Err(invalid(text));
    }
    // For as long as this takes, no policy changes by itself, either.
    let Ok(_nobody_else) = control.changing.try_lock() else {
        let text = "something is being changed just now: try again in a moment";
        return Err(Status::new(Code::UNAVAILABLE, text));
    };
    let begun = Instant::now();
    control.store.hold();
    let mut held = Held {
        control,
        gone: false,
    };
    let (mut successor, channel) = Successor::start(&program)?;
    let version = match successor.prepare(&channel, control, by, limit).await {
        Ok(version) => version,
        Err(status) => return Err(successor.discard(&program, status).await),
    };
    let prepared = begun.elapsed();
    // From here on the next process serves, or this one again.
    let paused = Instant::now();
    control.doors.shut();
    held.gone = true;
    if control.config().state.is_some() {
        control.store.let_go();
    }
    if let Err(status) = take_over(&channel).await {
        let status = successor.discard(&program, status).await;
        control.resume()?;
        return Err(status);
    }
    let pause = paused.elapsed();
    let pid = successor.child.as_ref().map(Child::id);
    tracing::info!(
        "process {} has taken over from {}, {} ms after it was started; nobody was accepted for {} us",
        pid.unwrap_or_default(),
        std::process::id(),
        begun.elapsed().as_millis(),
        pause.as_micros()
    );
    *control.successor.borrow_mut() = successor.child.take();
    Ok(json!({
        "from": {"pid": std::process::id(), "version": env!("CARGO_PKG_VERSION")},
        "to": {"pid": pid, "version": version, "program": program},
        "prepared_ms": prepared.as_millis() as u64,
        "pause_us": pause.as_micros() as u64,
    }))
}

async fn take_over(channel: &Channel) -> Result<(), Status> {
    let said = async {
        channel.say(&Message::Yours, &[]).await?;
        channel.hear().await
    };
    match timeout(TAKE_OVER_TIMEOUT, said).await {
        Ok(Ok(Some((Message::Serving, _)))) => Ok(()),
        Ok(heard) => Err(refusal(heard, "it served")),
        Err(_elapsed) => Err(late("served", TAKE_OVER_TIMEOUT)),
    }
}

/// Gives changes free again if nothing was handed over.
struct Held<'c> {
    control: &'c Control,
    gone: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.gone {
            let _nothing_to_open = self.control.store.resume(None);
        }
    }
}

impl Control {
    /// Goes on after all.
    fn resume(self: &Rc<Control>) -> Result<(), Status> {
        let resumed = self.store.resume(self.config().state.as_deref());
        self.doors.open(self);
        resumed.map(drop).map_err(|error| {
            tracing::error!(
                "the store can't be opened again after a failed upgrade, so nothing can be changed: {error}"
            );
            store_failed(&error)
        })
    }
}

/// The new process.
struct Successor {
    /// Taken when it is no longer this one's to end.
    child: Option<Child>,
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Successor {
    fn start(program: &Path) -> Result<(Successor, Channel), Status> {
        let (ours, theirs) = ControlSocket::pair().map_err(internal)?;
        let channel = Channel::new(ours).map_err(internal)?;
        let words = std::env::args_os().skip(1).filter(|word| word != ARGUMENT);
        let child = Command::new(program)
            .args(words)
            .arg(ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn();
        let child = child
            .map_err(|error| invalid(format!("{} can't be run: {error}", program.display())))?;
        let child = Some(child);
        Ok((Successor { child }, channel))
    }

    /// Until it is ready; its version.
    async fn prepare(
        &self,
        channel: &Channel,
        control: &Control,
        by: Actor,
        limit: Duration,
    ) -> Result<String, Status> {
        let copy = memfd_create("state", MemfdFlags::CLOEXEC).map_err(internal)?;
        let file = copy.try_clone().map_err(internal)?.into();
        let copied = control.store.copy_into(file);
        copied.map_err(|error| store_failed(&error))?;
        let offer = Offer {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: control.config().socket_path(),
            state: control.config().state.clone(),
            listen: control.listen,
            by: by.to_string(),
        };
        let mut fds = control.doors.descriptors().map_err(internal)?;
        fds.insert(fds.len().min(1), copy);
        let heard = async {
            let offered = channel.say(&Message::Offer(offer), &borrowed(&fds)).await;
            // One that ends at once has closed its end; what it says by that is heard.
            let heard = channel.hear().await?;
            match (&heard, offered) {
                (None, Err(error)) if !error.is_empty() => Ok(None),
                _ => Ok(heard),
            }
        };
        match timeout(limit, heard).await {
            Ok(Ok(Some((Message::Ready { version }, _)))) => Ok(version),
            Ok(heard) => Err(refusal(heard, "it was ready")),
            Err(_elapsed) => Err(late("ready", limit)),
        }
    }

    /// Ends it, whatever it does, and says of the failed upgrade how it ended.
    async fn discard(mut self, program: &Path, status: Status) -> Status {
        let Some(mut child) = self.child.take() else {
            return status;
        };
        let ended = tokio::task::spawn_blocking(move || {
            let _gone = child.kill();
            child.wait()
        });
        let how = match ended.await {
            Ok(Ok(ended)) => by_itself(ended),
            _ => String::new(),
        };
        let message = format!(
            "{} doesn't take over: {}{how}; the daemon goes on as it is",
            program.display(),
            status.message
        );
        tracing::error!("{message}");
        Status {
            message: message.into(),
            ..status
        }
    }
}

/// How it ended, unless it was killed here.
fn by_itself(ended: ExitStatus) -> String {
    match ended.code() {
        Some(_) => format!(" ({ended}; the daemon's log has what it said)"),
        None => String::new(),
    }
}

type Heard = Result<Option<(Message, Vec<OwnedFd>)>, String>;

fn refusal(heard: Heard, before: &str) -> Status {
    let why = match heard {
        Ok(Some((Message::Refused { why }, _))) => why,
        Ok(Some(_)) => format!("it said something else before {before}"),
        Ok(None) => format!("it ended before {before}"),
        Err(why) => why,
    };
    Status::new(Code::FAILED_PRECONDITION, why)
}

fn late(what: &str, limit: Duration) -> Status {
    let text = format!("it wasn't {what} within {limit:?}");
    Status::new(Code::DEADLINE_EXCEEDED, text)
}

/// SIGUSR2: an upgrade to the program that is where this one was started from.
pub(crate) async fn follow_signals(control: Rc<Control>) -> Result<(), DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = signal(SignalKind::user_defined2());
    let mut signals = signals.map_err(|error| failed("signals can't be watched")(&error))?;
    tokio::task::spawn_local(async move {
        while signals.recv().await.is_some() {
            match upgrade(&control, Actor::Daemon, &messages::Upgrade::default()).await {
                Ok(_) => control.retired.notify_one(),
                Err(status) => tracing::error!("no upgrade: {}", status.message),
            }
        }
    });
    Ok(())
}

/// The first process of a container mustn't end before the others: waits for its successor, and hands signals on.
pub(crate) async fn stand_in(mut successor: Child) -> Result<(), DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(|error| failed("signals can't be watched")(&error));
    let (mut terminate, mut interrupt, mut user) = (
        watch(SignalKind::terminate())?,
        watch(SignalKind::interrupt())?,
        watch(SignalKind::user_defined2())?,
    );
    let pid = i32::try_from(successor.id()).ok().and_then(Pid::from_raw);
    let mut ended = tokio::task::spawn_blocking(move || successor.wait());
    loop {
        let signal = tokio::select! {
            _ = &mut ended => return Ok(()),
            _ = terminate.recv() => Signal::TERM,
            _ = interrupt.recv() => Signal::INT,
            _ = user.recv() => Signal::USR2,
        };
        let _gone = pid.map(|pid| kill_process(pid, signal));
    }
}
