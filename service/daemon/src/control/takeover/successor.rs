//! The process that takes a running daemon's place.

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
use crate::control::doors;
use crate::control::error::{DaemonError, failed};
use crate::control::state::Control;
use crate::control::takeover::protocol::{ARGUMENT, Channel, FORMAT, Message, Offer};
use crate::control::takeover::taking::{Beginning, Heard, learn};
use crate::limits::{
    MAX_RUNTIMES, MAX_UPGRADE_TIMEOUT, OFFER_TIMEOUT, REFUSAL_CHARS, TAKE_OVER_TIMEOUT,
};

/// The daemon that runs until this one takes over.
pub(crate) struct Predecessor {
    channel: Channel,
    offer: OnceCell<Offer>,
    schemas: OnceCell<OwnedFd>,
}

/// What it leaves.
pub(crate) struct Estate {
    pub(crate) store: Store,
    pub(crate) applications: ControlListener,
    pub(crate) peers: Option<TcpListener>,
}

impl Predecessor {
    /// It is at the other end of standard input, which is nobody's from then on.
    pub(crate) fn on_stdin() -> Result<Predecessor, DaemonError> {
        let failed = failed("a running daemon can't be reached");
        let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3);
        let taken = taken.map_err(|errno| failed(&errno))?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty());
        null.and_then(rustix::stdio::dup2_stdin)
            .map_err(|errno| failed(&errno))?;
        let channel = Channel::new(ControlSocket::from(taken));
        Ok(Predecessor {
            channel: channel.map_err(|error| failed(&error))?,
            offer: OnceCell::new(),
            schemas: OnceCell::new(),
        })
    }

    /// How many runtimes it has: as many go on, until they are as many as is configured.
    pub(in crate::control) fn runtimes(&self) -> usize {
        let offered = self.offer.get().map_or(1, |offer| offer.runtimes);
        offered.clamp(1, MAX_RUNTIMES)
    }

    /// Since when it has kept what it has in memory only.
    pub(crate) fn state_since(&self) -> Option<String> {
        self.offer.get()?.state_since.clone()
    }

    /// Whether it has left its filter of system calls to this process.
    pub(crate) fn is_filtered(&self) -> bool {
        self.offer.get().is_some_and(|offer| offer.is_filtered)
    }

    /// Whether it tells the supervisor who has taken over.
    pub(crate) fn tells_supervisor(&self) -> bool {
        self.offer.get().is_some_and(|offer| offer.tells_supervisor)
    }

    /// What it offers, if it fits the configuration.
    pub(crate) async fn estate(&self, config: &Config) -> Result<Estate, DaemonError> {
        let wrong = |why: &str| {
            let text = format!("{ARGUMENT} is for daemons that start their successor, and {why}");
            DaemonError(text)
        };
        let heard = match timeout(OFFER_TIMEOUT, self.channel.hear()).await {
            Ok(heard) => heard.map_err(|why| wrong(&why))?,
            Err(_elapsed) => return Err(wrong("none said anything")),
        };
        let Some((Message::Offer(offer), fds)) = heard else {
            return Err(wrong("none did"));
        };
        if offer.format != FORMAT {
            return Err(DaemonError(format!(
                "the daemon that runs, of version {}, hands over by format {}, and this one, of version {}, takes over by {FORMAT}: \
                 restart it",
                offer.version,
                offer.format,
                env!("CARGO_PKG_VERSION")
            )));
        }
        let mut fds = fds.into_iter();
        let (Some(applications), Some(copy), Some(schemas)) = (fds.next(), fds.next(), fds.next())
        else {
            return Err(wrong("its offer lacks descriptors"));
        };
        same("socket", &offer.socket, &config.socket_path())?;
        same("state directory", &offer.state, &config.state)?;
        let store = Store::of_copy(copy.into());
        let store = store.map_err(|error| failed("the state can't be taken over")(&error))?;
        let peers = fds.next().filter(|_| listens_there(config, &offer));
        let _first = self.offer.set(offer);
        let _first = self.schemas.set(schemas);
        Ok(Estate {
            store,
            applications: ControlListener::from(applications),
            peers: peers.map(TcpListener::from),
        })
    }

    /// Says that everything is ready, and serves once it is told to.
    pub(crate) async fn take_over(&self, control: &Rc<Control>) -> Result<(), DaemonError> {
        if control.store.was_touched() {
            let text = "not every policy could be put in force as it is stored; the log says which";
            return Err(DaemonError(text.to_owned()));
        }
        let lost = |what: &str| DaemonError(format!("the daemon that ran {what}"));
        if let Some(schemas) = self.schemas.get() {
            let learnt = learn(control, schemas).await;
            learnt.map_err(|why| failed("a schema can't be taken over")(&why))?;
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
            Ok(Ok(Some(_)) | Err(_)) => return Err(lost("said something else")),
            Err(_elapsed) => return Err(lost("didn't hand over")),
        }
        let resumed = control.store.resume(control.config().state.as_deref());
        let restored = resumed.map_err(|error| failed("the store can't be opened")(&error))?;
        if let Some(sentence) = restored {
            tracing::error!("{sentence}");
        }
        let said = self.channel.say(&Message::Opened, &[]).await;
        said.map_err(|_| lost("ended before it had handed over"))?;
        let beginning = self.datapath(control).await?;
        let said = self.channel.say(&Message::Taken, &[]).await;
        said.map_err(|_| lost("ended before it had handed over"))?;
        match timeout(TAKE_OVER_TIMEOUT, self.channel.hear()).await {
            Ok(Ok(Some((Message::Go, _)))) => {}
            _ => return Err(lost("didn't let go")),
        }
        beginning.begin(control);
        doors::open(control);
        // Should it have ended just now, this one serves all the same.
        let _said = self.channel.say(&Message::Serving, &[]).await;
        self.record(control);
        Ok(())
    }

    /// What sessions and runtimes it leaves.
    async fn datapath(&self, control: &Control) -> Result<Beginning, DaemonError> {
        let wrong = failed("the datapath can't be taken over");
        let mut heard = Heard::default();
        loop {
            let next = timeout(TAKE_OVER_TIMEOUT, self.channel.hear()).await;
            let next = next.map_err(|_| wrong(&"the daemon that ran didn't say all"))?;
            let next = next.map_err(|why| wrong(&why))?;
            let Some((message, mut fds)) = next else {
                return Err(wrong(&"the daemon that ran ended before it had said all"));
            };
            if heard.note(message, &mut fds).map_err(|why| wrong(&why))? {
                let beginning = heard.take_over(control, &fds).await;
                return beginning.map_err(|why| wrong(&why));
            }
        }
    }

    fn record(&self, control: &Control) {
        let Some(offer) = self.offer.get() else {
            return;
        };
        let details = json!({
            "from": offer.version, "from_pid": offer.pid, "to": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "by": offer.by,
        });
        let recorded = control
            .store
            .record(Actor::Daemon, Event::DaemonUpgrade, details);
        if let Err(error) = recorded {
            tracing::error!("the upgrade can't be recorded: {error}");
        }
    }

    /// Says why this one doesn't take over. One that has already has nobody to tell.
    pub(crate) async fn refuse(&self, why: &DaemonError) {
        let why = shortened(&why.to_string());
        let _said = self.channel.say(&Message::Refused { why }, &[]).await;
    }
}

/// As [`Predecessor::refuse`], for a process that has come no further than its arguments or its configuration.
pub fn refuse(why: &str) {
    let Ok(predecessor) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else {
        return;
    };
    let why = shortened(why);
    if let Ok(said) = serde_json::to_vec(&Message::Refused { why }) {
        // It may be nobody's successor: then nobody is told.
        let _said = ControlSocket::from(predecessor).send(&said, &[]);
    }
}

/// It has to fit a packet.
fn shortened(why: &str) -> String {
    why.chars().take(REFUSAL_CHARS).collect()
}

/// Whether the configuration wants the listener that there is.
fn listens_there(config: &Config, offer: &Offer) -> bool {
    match (config.listen, offer.listen) {
        (Some(wanted), Some(bound)) => {
            wanted == bound || (wanted.port() == 0 && wanted.ip() == bound.ip())
        }
        _ => false,
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    running: &T,
    configured: &T,
) -> Result<(), DaemonError> {
    if running == configured {
        return Ok(());
    }
    Err(DaemonError(format!(
        "the configuration has another {what}, {configured:?}, than the daemon that runs, {running:?}: that takes a restart"
    )))
}
