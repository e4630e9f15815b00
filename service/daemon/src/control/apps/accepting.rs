//! Accepts applications and peers.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tollgate_shm_abi::control::ControlListener;

use crate::control::apps::connection;
use crate::control::reactor::Watched;
use crate::control::state::Control;
use tollgate_datapath::limits::ACCEPTED_UNSEEN;
use tollgate_datapath::log_limited;
use tollgate_datapath::{Command, RuntimeIndex};

/// Pause after a connection couldn't be accepted: descriptors may be exhausted until others close
/// some.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens the listeners of `control`.
pub(crate) fn open(control: &Rc<Control>) {
    let control_of = Rc::downgrade(control);
    control
        .apps
        .listeners
        .open_with(move || control_of.upgrade().map_or_else(Vec::new, |of| accept(&of)));
}

/// Starts the tasks that accept connections.
fn accept(control: &Rc<Control>) -> Vec<JoinHandle<()>> {
    let mut accepting = Vec::new();
    if let Some(listener) = &control.apps.listeners.applications {
        let accept = applications(Rc::clone(control), Rc::clone(listener));
        accepting.push(tokio::task::spawn_local(accept));
    }
    if let Some(listener) = &control.apps.listeners.peers {
        let accept = peers(Rc::clone(control), Rc::clone(listener));
        accepting.push(tokio::task::spawn_local(accept));
        #[cfg(feature = "rdma")]
        if let Ok(address) = listener.local_addr() {
            let accept = crate::control::apps::by_rdma::peers(Rc::clone(control), address);
            accepting.push(tokio::task::spawn_local(accept));
        }
    }
    accepting
}

async fn applications(control: Rc<Control>, listener: Rc<AsyncFd<Watched<ControlListener>>>) {
    loop {
        let Ok(mut ready) = listener.readable().await else {
            return;
        };
        let accepted =
            ready.try_io(|inner| inner.get_ref().0.accept().map_err(std::io::Error::from));
        match accepted {
            Ok(Ok(socket)) => connection::welcome(&control, socket),
            Ok(Err(error)) => {
                log_limited!(
                    warn,
                    "not accepted",
                    "",
                    "an application's connection can't be accepted: {error}"
                );
                tokio::time::sleep(PAUSE).await;
            }
            Err(_would_block) => {}
        }
    }
}

async fn peers(control: Rc<Control>, listener: Rc<TcpListener>) {
    let mut turn = RuntimeIndex::FIRST;
    let places = Arc::new(Semaphore::new(ACCEPTED_UNSEEN));
    loop {
        let Ok(unseen) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener
            .accept()
            .await
            .and_then(|(stream, _)| stream.into_std())
        {
            Ok(stream) => {
                // The tenant is known after the first BIND; the link moves then.
                turn = turn.next_of(control.runtimes.count());
                control.runtimes.send(
                    turn,
                    Command::Accept {
                        stream,
                        unseen: Box::new(unseen),
                    },
                );
            }
            Err(error) => {
                log_limited!(
                    warn,
                    "peer not accepted",
                    "",
                    "a peer's connection can't be accepted: {error}"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
