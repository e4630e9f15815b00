//! The daemon that hands over.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::{timeout, timeout_at};
use tollgate_admin::proto::UpgradeDaemonStep;
use tollgate_admin::{Steps, socket_beside};
use tollgate_control::Store;
use tollgate_control::audit::{self, Actor};
use tollgate_engine::Status;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::status::Code;

use super::transfer::{self, Standstill};
use crate::control::apps::requests::Pause;
use crate::control::apps::socket_file::SocketFile;
use crate::control::error::{DaemonError, system};
use crate::control::refusals::{internal, invalid, store_failed};
use crate::control::state::Control;
use crate::control::supervisor;
use crate::control::takeover::protocol::{
    ARGUMENT, Channel, FORMAT, HearResult, Message, Offer, TransferError, borrowed,
};
use crate::limits::{API_PATIENCE, MAX_UPGRADE_TIMEOUT, TAKE_OVER_TIMEOUT, UPGRADE_TIMEOUT};
use tollgate_datapath::limits::HAND_OVER_TIMEOUT;

/// `tollgate upgrade` and SIGUSR2: starts another process and lets it take over, or continues if
/// that fails: `program`, or the file that this process was started from, with its current content.
/// After a success the caller stops serving. The supervisor is notified of the result.
pub(crate) async fn upgrade(
    control: &Rc<Control>,
    by: Actor,
    program: Option<PathBuf>,
    limit: Duration,
    steps: &Steps<UpgradeDaemonStep>,
) -> Result<Value, Status> {
    supervisor::reloads();
    let replaced = replace(control, by, program, limit, steps).await;
    match &replaced {
        Ok(_) => supervisor::replaced_by(control.replacement.pid()),
        Err(status) => {
            let sentence = format!("no upgrade: {}", status.message);
            supervisor::goes_on(&sentence);
            let at = audit::rfc3339(SystemTime::now());
            let problem = format!("{at}: {sentence}");
            control.replacement.refused(problem);
        }
    }
    replaced
}

async fn replace(
    control: &Rc<Control>,
    by: Actor,
    program: Option<PathBuf>,
    limit: Duration,
    steps: &Steps<UpgradeDaemonStep>,
) -> Result<Value, Status> {
    if limit > MAX_UPGRADE_TIMEOUT {
        return Err(invalid(format!(
            "a timeout of {limit:?} is too long: the limit is {MAX_UPGRADE_TIMEOUT:?}"
        )));
    }
    let program = program.unwrap_or_else(|| control.process.program.clone());
    if !program.is_absolute() {
        let text = format!("the program {} isn't an absolute path", program.display());
        return Err(invalid(text));
    }
    // Meanwhile policies don't change by themselves, either.
    if control.changes.store().is_held() {
        let text = "another change is in progress: try again in a moment";
        return Err(Status::new(Code::UNAVAILABLE, text));
    }
    steps.tell(UpgradeDaemonStep::Waiting);
    let nobody_else = tokio::time::timeout(limit, control.changes.begin(&by)).await;
    let _nobody_else = nobody_else.map_err(|_elapsed| {
        let text = format!("other changes have been in progress for {limit:?}: try again");
        Status::new(Code::UNAVAILABLE, text)
    })??;
    steps.tell(UpgradeDaemonStep::Preparing);
    let begun = Instant::now();
    control.changes.store().hold();
    let mut held = Held {
        store: control.changes.store(),
        gone: false,
    };
    let (mut successor, channel) = Successor::start(&program)?;
    let ready = match successor.prepare(&channel, control, by, limit).await {
        Ok(ready) => ready,
        Err(status) => return Err(successor.discard(&program, status).await),
    };
    let prepared = begun.elapsed();
    let api = SocketFile::at(socket_beside(&control.config().socket_path()));
    steps.tell(UpgradeDaemonStep::HandingOver);
    // From here on either the successor serves, or this process again.
    control.apps.listeners.shut();
    held.gone = true;
    if control.config().state.is_some() {
        control.changes.store().let_go();
    }
    let taken = match hand_over(control, &channel, &ready).await {
        Ok(taken) => taken,
        Err((status, still)) => {
            let status = successor.discard(&program, status).await;
            // Only now that the successor can't serve any more.
            drop(still);
            control.resume()?;
            return Err(status);
        }
    };
    let pause = taken.elapsed();
    // Whoever hears of the upgrade may administer the successor at once.
    while api.is_there() && taken.elapsed() < API_PATIENCE {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let pid = successor.child.as_ref().map(Child::id);
    tracing::info!(
        "process {} has taken over from {}, {} ms after its start; calls stood still for {} us",
        pid.unwrap_or_default(),
        std::process::id(),
        begun.elapsed().as_millis(),
        pause.as_micros()
    );
    control.replacement.succeeded(successor.child.take());
    Ok(json!({
        "from": {"pid": std::process::id(), "version": env!("CARGO_PKG_VERSION")},
        "to": {"pid": pid, "version": ready.version, "program": program},
        "prepared_ms": prepared.as_millis() as u64,
        "pause_us": pause.as_micros() as u64,
    }))
}

/// What the successor must have done before it may serve.
const TAKEN: &str = "taken everything over";

/// Runs until another process serves. Returns when calls began to stand still. An error carries the
/// guard that keeps everything still.
async fn hand_over<'c>(
    control: &'c Control,
    channel: &Channel,
    ready: &Ready,
) -> Result<Instant, (Status, Option<Still<'c>>)> {
    let opened = said(
        channel,
        &Message::Yours,
        TAKE_OVER_TIMEOUT,
        "opened the store",
    );
    match opened.await.map_err(|status| (status, None))? {
        Message::Opened => {}
        other => return Err((out_of_turn(&other), None)),
    }
    let pause = control.apps.requests.pause().await;
    let pause = pause.map_err(|status| (status, None))?;
    let stood = Instant::now();
    // One deadline for all steps: an application's calls wait for their sum.
    let until = stood + HAND_OVER_TIMEOUT;
    let datapath = timeout_at(
        until.into(),
        Standstill::of(&control.runtimes, ready.links, until),
    );
    let datapath = datapath.await.unwrap_or_else(|_elapsed| {
        let text = format!("the runtimes didn't hand everything over within {HAND_OVER_TIMEOUT:?}");
        Err(Status::new(Code::DEADLINE_EXCEEDED, text))
    });
    let mut still = Still {
        datapath: datapath.map_err(|status| (status, None))?,
        _requests: pause,
    };
    let taken = async {
        // The successor may not read, either.
        let all = timeout_at(
            until.into(),
            still
                .datapath
                .say(&control.apps, &control.policies, channel, &ready.offered),
        );
        let all = all
            .await
            .unwrap_or_else(|_elapsed| Err(TransferError::TooSlow));
        all.map_err(|error| Status::new(Code::FAILED_PRECONDITION, error.to_string()))?;
        let taken = timeout_at(until.into(), heard(channel, HAND_OVER_TIMEOUT, TAKEN));
        taken.await.unwrap_or_else(|_elapsed| {
            let text = format!("it hadn't {TAKEN} within {HAND_OVER_TIMEOUT:?}");
            Err(Status::new(Code::DEADLINE_EXCEEDED, text))
        })
    };
    match taken.await {
        Ok(Message::Taken) => {}
        Ok(other) => return Err((out_of_turn(&other), Some(still))),
        Err(status) => return Err((status, Some(still))),
    }
    if let Err(error) = channel.say(&Message::Go, &[]).await {
        let status = Status::new(Code::FAILED_PRECONDITION, error.to_string());
        return Err((status, Some(still)));
    }
    still.datapath.end();
    // This process reads no more requests.
    std::mem::forget(still._requests);
    let serves = heard(channel, TAKE_OVER_TIMEOUT, "served").await;
    if let Err(status) = serves {
        tracing::error!(
            "the successor has taken everything over, but hasn't confirmed that it serves: {}",
            status.message
        );
    }
    Ok(stood)
}

/// Keeps everything still while it exists.
struct Still<'c> {
    datapath: Standstill,
    _requests: Pause<'c>,
}

async fn said(
    channel: &Channel,
    message: &Message,
    limit: Duration,
    what: &str,
) -> Result<Message, Status> {
    let said = channel.say(message, &[]).await;
    said.map_err(|why| refusal(Err(why), what))?;
    heard(channel, limit, what).await
}

async fn heard(channel: &Channel, limit: Duration, what: &str) -> Result<Message, Status> {
    match timeout(limit, channel.hear()).await {
        Ok(Ok(Some((message, _)))) if !matches!(message, Message::Refused { .. }) => Ok(message),
        Ok(heard) => Err(refusal(heard, &format!("it had {what}"))),
        Err(_elapsed) => {
            let text = format!("it hadn't {what} within {limit:?}");
            Err(Status::new(Code::DEADLINE_EXCEEDED, text))
        }
    }
}

fn out_of_turn(message: &Message) -> Status {
    let text = format!("it sent {message:?} out of turn");
    Status::new(Code::FAILED_PRECONDITION, text)
}

/// Allows changes again if nothing was handed over.
struct Held<'c> {
    store: &'c Store,
    gone: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.gone {
            let _nothing_to_open = self.store.resume(None);
        }
    }
}

impl Control {
    /// Serves again after a failed hand-over.
    fn resume(self: &Rc<Control>) -> Result<(), Status> {
        let resumed = self.changes.store().resume(self.config().state.as_deref());
        self.apps.listeners.open();
        resumed.map(drop).map_err(|error| {
            tracing::error!(
                "the store can't be opened again after a failed upgrade, so nothing can be changed: {error}"
            );
            store_failed(&error)
        })
    }
}

/// The successor's announcement that it is ready.
struct Ready {
    version: String,
    /// It can take links over.
    links: bool,
    /// The schemas in the offer.
    offered: HashSet<[u8; 32]>,
}

/// The successor's process.
struct Successor {
    /// Taken when this process must no longer end it.
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

    /// Sends the offer, and waits until the successor is ready.
    async fn prepare(
        &self,
        channel: &Channel,
        control: &Control,
        by: Actor,
        limit: Duration,
    ) -> Result<Ready, Status> {
        let copy = memfd_create("state", MemfdFlags::CLOEXEC).map_err(internal)?;
        let file = copy.try_clone().map_err(internal)?.into();
        let copied = control.changes.store().copy_into(file);
        copied.map_err(|error| store_failed(&error))?;
        let offer = Offer {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: control.config().socket_path(),
            state: control.config().state.clone(),
            listen: control.peers.listen(),
            runtimes: control.runtimes.count(),
            by: by.to_string(),
            state_since: control
                .state_is_in_memory()
                .then(|| control.process.state_since.clone()),
            tells_supervisor: true,
            is_filtered: true,
        };
        let mut fds = control.apps.listeners.descriptors().map_err(internal)?;
        let (schemas, offered) = transfer::schemas(&control.apps.schemas, &HashSet::new())?;
        let first = fds.len().min(1);
        fds.splice(first..first, [copy, schemas]);
        let heard = async {
            // A successor that ends at once has closed its end; its earlier messages are still
            // read. If it hasn't read the offer, the kernel reports a reset first.
            let _said = channel.say(&Message::Offer(offer), &borrowed(&fds)).await;
            match channel.hear().await? {
                None => channel.hear().await,
                heard => Ok(heard),
            }
        };
        match timeout(limit, heard).await {
            Ok(Ok(Some((Message::Ready { version, links }, _)))) => Ok(Ready {
                version,
                links,
                offered,
            }),
            Ok(heard) => Err(refusal(heard, "it was ready")),
            Err(_elapsed) => {
                let text = format!("it wasn't ready within {limit:?}");
                Err(Status::new(Code::DEADLINE_EXCEEDED, text))
            }
        }
    }

    /// Kills the successor, and adds to the error how it ended.
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
            "{} doesn't take over: {}{how}; the daemon continues unchanged",
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

/// How the successor ended, unless it was killed here.
fn by_itself(ended: ExitStatus) -> String {
    match ended.signal() {
        Some(signal) if signal == Signal::KILL.as_raw() => String::new(),
        _ => format!(" ({ended}; its output is in the daemon's log)"),
    }
}

fn refusal(heard: HearResult, before: &str) -> Status {
    let why = match heard {
        Ok(Some((Message::Refused { why }, _))) => why,
        Ok(Some(_)) => format!("it sent an unexpected message before {before}"),
        Ok(None) => format!("it ended before {before}"),
        Err(error) => error.to_string(),
    };
    Status::new(Code::FAILED_PRECONDITION, why)
}

/// SIGUSR2: upgrades to the program at the path from which this process was started.
pub(crate) async fn follow_signals(control: Rc<Control>) -> Result<(), DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = signal(SignalKind::user_defined2());
    let mut signals = signals.map_err(system("signals can't be watched"))?;
    tokio::task::spawn_local(async move {
        while signals.recv().await.is_some() {
            match upgrade(
                &control,
                Actor::Daemon,
                None,
                UPGRADE_TIMEOUT,
                &Steps::default(),
            )
            .await
            {
                Ok(_) => control.replacement.retire(),
                Err(status) => tracing::error!("no upgrade: {}", status.message),
            }
        }
    });
    Ok(())
}

/// The first process of a container must not end before the others: it waits for its successor and
/// forwards signals.
pub(crate) async fn stand_in(mut successor: Child) -> Result<(), DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(system("signals can't be watched"));
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
