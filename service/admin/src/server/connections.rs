//! Connections: who is at the other end, and how many there may be; and places in general.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS, CONNECTIONS_PER_USER, OPERATORS_CONNECTIONS, PREFACE_TIME,
};

/// The bytes with which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// The process at the other end of a connection, when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process id; 0 if the kernel doesn't tell it.
    pub pid: i32,
}

/// How many of something there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// In all.
    pub(super) all: usize,
    /// Of those, the ones that only operators get.
    pub(super) operators: usize,
    /// Of one user that isn't an operator.
    pub(super) of_user: usize,
}

/// Counts something, in all and of each user that isn't an operator.
#[derive(Debug)]
pub(super) struct Places {
    most: Most,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of_users: HashMap<u32, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    user: Option<u32>,
}

impl Places {
    pub(super) fn new(most: Most) -> Arc<Places> {
        let taken = Mutex::default();
        Arc::new(Places { most, taken })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// `None`: there is no room for another one of this user.
    pub(super) fn take(places: &Arc<Places>, user: u32, is_operator: bool) -> Option<Place> {
        let (most, mut taken) = (places.most, places.taken());
        let all = match is_operator {
            true => most.all,
            false => most.all - most.operators,
        };
        if taken.all >= all {
            return None;
        }
        if !is_operator {
            let its = taken.of_users.entry(user).or_default();
            if *its >= most.of_user {
                return None;
            }
            *its += 1;
        }
        taken.all += 1;
        Some(Place {
            places: Arc::clone(places),
            user: (!is_operator).then_some(user),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(user) = self.user
            && let Some(its) = taken.of_users.get_mut(&user)
        {
            *its -= 1;
            if *its == 0 {
                taken.of_users.remove(&user);
            }
        }
    }
}

/// A connection with its place.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    peer: Peer,
    /// Until HTTP/2's preface has come, and how much of it is missing. From then on, the server's
    /// pings find a dead client.
    silent: Option<(Pin<Box<Sleep>>, usize)>,
    _place: Place,
}

/// The connections that have a place. Others are closed at once. Runs until nobody takes them.
pub(super) fn accepted(
    listener: UnixListener,
    is_operator: fn(u32) -> bool,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    let places = Places::new(Most {
        all: CONNECTIONS,
        operators: OPERATORS_CONNECTIONS,
        of_user: CONNECTIONS_PER_USER,
    });
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let Ok((stream, _)) = accepted else {
                // There may be no descriptor for it. It stays in the backlog.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(credentials) = stream.peer_cred() else {
                continue;
            };
            let (uid, pid) = (credentials.uid(), credentials.pid().unwrap_or(0));
            let Some(place) = Place::take(&places, uid, is_operator(uid)) else {
                continue;
            };
            let connection = Connection {
                stream,
                peer: Peer { uid, pid },
                silent: Some((Box::pin(tokio::time::sleep(PREFACE_TIME)), PREFACE_BYTES)),
                _place: place,
            };
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut connection.stream).poll_read(cx, into);
        if let Some((silent, missing)) = &mut connection.silent {
            *missing = missing.saturating_sub(into.filled().len() - before);
            if *missing == 0 {
                connection.silent = None;
            } else if read.is_pending() && silent.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
