//! The process that takes over from a running daemon.

use std::cell::OnceCell;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use serde_json::json;
use tokio::time::timeout;
use tollgate_control::Store;
use tollgate_control::audit::{Actor, Event};
use tollgate_shm_abi::control::{ControlListener, ControlSocket};

use crate::config::Config;
use crate::control::apps::accepting;
use crate::control::error::{DaemonError, store, system};
use crate::control::state::Control;
use crate::control::takeover::error::TakeOverError;
use crate::control::takeover::protocol::{Channel, FORMAT, Message, Offer, TransferError};
use crate::control::takeover::taking::{Beginning, Heard, learn};
use crate::limits::{
    MAX_RUNTIMES, MAX_UPGRADE_TIMEOUT, OFFER_TIMEOUT, REFUSAL_CHARS, TAKE_OVER_TIMEOUT,
};

/// The daemon that serves until this one takes over.
pub(crate) struct Predecessor {
    channel: Channel,
    offer: OnceCell<Offer>,
    schemas: OnceCell<OwnedFd>,
}

/// What the predecessor hands over before the datapath.
pub(crate) struct HandoverState {
    pub(crate) store: Store,
    pub(crate) applications: ControlListener,
    pub(crate) peers: Option<TcpListener>,
}

impl Predecessor {
    /// Takes the socket to the predecessor from standard input, which is replaced by /dev/null.
    pub(crate) fn on_stdin() -> Result<Predecessor, DaemonError> {
        let failed = system("a running daemon can't be reached");
        let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3);
        let taken = taken.map_err(|errno| failed(errno.into()))?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty());
        null.and_then(rustix::stdio::dup2_stdin)
            .map_err(|errno| failed(errno.into()))?;
        let channel = Channel::new(ControlSocket::from(taken));
        Ok(Predecessor {
            channel: channel.map_err(failed)?,
            offer: OnceCell::new(),
            schemas: OnceCell::new(),
        })
    }

    /// The predecessor's number of runtimes. It is kept for the hand-over, then changed to the
    /// configured one.
    pub(in crate::control) fn runtimes(&self) -> usize {
        let offered = self.offer.get().map_or(1, |offer| offer.runtimes);
        offered.clamp(1, MAX_RUNTIMES)
    }

    /// The age of the predecessor's state, if it is in memory only.
    pub(crate) fn state_since(&self) -> Option<String> {
        self.offer.get()?.state_since.clone()
    }

    /// Whether this process has inherited the filter of system calls.
    pub(crate) fn is_filtered(&self) -> bool {
        self.offer.get().is_some_and(|offer| offer.is_filtered)
    }

    /// Whether the predecessor tells the supervisor about this process.
    pub(crate) fn tells_supervisor(&self) -> bool {
        self.offer.get().is_some_and(|offer| offer.tells_supervisor)
    }

    /// The predecessor's offer, if it matches the configuration.
    pub(crate) async fn handover_state(
        &self,
        config: &Config,
    ) -> Result<HandoverState, DaemonError> {
        let wrong = |why: &str| TakeOverError::NoOffer(why.to_owned());
        let heard = match timeout(OFFER_TIMEOUT, self.channel.hear()).await {
            Ok(heard) => heard.map_err(|error| wrong(&error.to_string()))?,
            Err(_elapsed) => return Err(wrong("no offer came in time").into()),
        };
        let Some((Message::Offer(offer), fds)) = heard else {
            return Err(wrong("no offer came").into());
        };
        if offer.format != FORMAT {
            let Offer {
                version, format, ..
            } = offer;
            return Err(TakeOverError::Format { version, format }.into());
        }
        let mut fds = fds.into_iter();
        let (Some(applications), Some(copy), Some(schemas)) = (fds.next(), fds.next(), fds.next())
        else {
            return Err(wrong("its offer lacks descriptors").into());
        };
        same("socket", &offer.socket, &config.socket_path())?;
        same("state directory", &offer.state, &config.state)?;
        let copied = Store::of_copy(copy.into());
        let store = copied.map_err(TakeOverError::State)?;
        let peers = fds.next().filter(|_| listens_there(config, &offer));
        let _first = self.offer.set(offer);
        let _first = self.schemas.set(schemas);
        Ok(HandoverState {
            store,
            applications: ControlListener::from(applications),
            peers: peers.map(TcpListener::from),
        })
    }

    /// Announces that everything is ready, and serves when the predecessor has let go.
    pub(crate) async fn take_over(&self, control: &Rc<Control>) -> Result<(), DaemonError> {
        if control.changes.store().was_touched() {
            return Err(TakeOverError::Policies.into());
        }
        let lost = |what| DaemonError::from(TakeOverError::Predecessor(what));
        if let Some(schemas) = self.schemas.get() {
            let learnt = learn(&control.apps.schemas, schemas).await;
            learnt.map_err(TakeOverError::Schema)?;
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let told = async {
            let ready = Message::Ready {
                version,
                links: true,
            };
            self.channel.say(&ready, &[]).await?;
            self.channel.hear().await
        };
        match timeout(MAX_UPGRADE_TIMEOUT, told).await {
            Ok(Ok(Some((Message::Yours, _)))) => {}
            Ok(Ok(None)) => return Err(lost("ended before it had handed over")),
            Ok(Ok(Some(_)) | Err(_)) => return Err(lost("sent an unexpected message")),
            Err(_elapsed) => return Err(lost("didn't hand over")),
        }
        let resumed = control
            .changes
            .store()
            .resume(control.config().state.as_deref());
        let restored = resumed.map_err(store("opened"))?;
        if let Some(sentence) = restored {
            tracing::error!("{sentence}");
        }
        let said = self.channel.say(&Message::Opened, &[]).await;
        said.map_err(|_| lost("ended before it had handed over"))?;
        let beginning = self.datapath(control).await;
        let beginning = beginning.map_err(TakeOverError::Datapath)?;
        let said = self.channel.say(&Message::Taken, &[]).await;
        said.map_err(|_| lost("ended before it had handed over"))?;
        match timeout(TAKE_OVER_TIMEOUT, self.channel.hear()).await {
            Ok(Ok(Some((Message::Go, _)))) => {}
            _ => return Err(lost("didn't let go")),
        }
        beginning.begin(control);
        accepting::open(control);
        // If the predecessor has just ended, this process serves anyway.
        let _said = self.channel.say(&Message::Serving, &[]).await;
        self.record(control.changes.store());
        Ok(())
    }

    /// The sessions and runtimes that the predecessor hands over.
    async fn datapath(&self, control: &Control) -> Result<Beginning, TransferError> {
        let mut heard = Heard::default();
        loop {
            let next = timeout(TAKE_OVER_TIMEOUT, self.channel.hear()).await;
            let next = next.map_err(|_elapsed| TransferError::NotInTime)??;
            let (message, mut fds) = next.ok_or(TransferError::Ended)?;
            if heard.note(message, &mut fds)? {
                return heard.take_over(control, &fds).await;
            }
        }
    }

    fn record(&self, store: &Store) {
        let Some(offer) = self.offer.get() else {
            return;
        };
        let details = json!({
            "from": offer.version, "from_pid": offer.pid, "to": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "by": offer.by,
        });
        let recorded = store.record(Actor::Daemon, Event::DaemonUpgrade, details);
        if let Err(error) = recorded {
            tracing::error!("the upgrade can't be recorded: {error}");
        }
    }

    /// Tells the predecessor why this process doesn't take over. After the hand-over nobody
    /// listens.
    pub(crate) async fn refuse(&self, why: &DaemonError) {
        let why = shortened(&why.to_string());
        let _said = self.channel.say(&Message::Refused { why }, &[]).await;
    }
}

/// Like [`Predecessor::refuse`], for a process that failed at its arguments or its configuration.
pub fn refuse(why: &str) {
    let Ok(predecessor) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else {
        return;
    };
    let why = shortened(why);
    if let Ok(said) = serde_json::to_vec(&Message::Refused { why }) {
        // Without a predecessor nobody listens.
        let _said = ControlSocket::from(predecessor).send(&said, &[]);
    }
}

/// The reason has to fit into a packet.
fn shortened(why: &str) -> String {
    why.chars().take(REFUSAL_CHARS).collect()
}

/// Whether the configuration wants the predecessor's listener.
fn listens_there(config: &Config, offer: &Offer) -> bool {
    match (config.listen, offer.listen) {
        (Some(wanted), Some(bound)) => {
            wanted == bound || (wanted.port() == 0 && wanted.ip() == bound.ip())
        }
        _ => false,
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    running: &T,
    configured: &T,
) -> Result<(), TakeOverError> {
    if running == configured {
        return Ok(());
    }
    Err(TakeOverError::Differs {
        what,
        configured: format!("{configured:?}"),
        running: format!("{running:?}"),
    })
}
