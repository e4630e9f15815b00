//! `tollgate serve`: a server with fixed replies or an echo, until a signal comes.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate::{Session, Status, block_on};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::input::argument_or_stdin;
use crate::limits::REACH_AGAIN;
use crate::rpc::answers::{Answering, Answers};
use crate::rpc::args::Serve;
use crate::rpc::session::{ended, open};
use crate::schema::Service;
use crate::{stderr, token};

/// Serves until a signal comes, or the daemon ends the session for a reason that another daemon would have, too. If the daemon
/// goes away, it is served again as soon as there is another one, as applications do.
pub(crate) fn serve(socket: &Path, args: &Serve) -> Result<(), Failure> {
    let service = Service::load(&args.schema.files, &args.service)?;
    let token = token::token(&args.schema.token, args.answer.reply.as_deref().as_slice())?;
    let json = args.answer.reply.as_deref().map(argument_or_stdin);
    let answers = Arc::new(Answers::new(service, args, json.transpose()?.as_deref())?);
    // Installed before anything else happens, so that no moment is left in which a signal kills.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        Failure::new(Code::INTERNAL, format_args!("no signal handlers: {error}"))
    })?;
    let (sender, events) = channel();
    let signalled = sender.clone();
    thread::spawn(move || {
        for _which in signals.forever() {
            let _late = signalled.send(Event::Signal);
        }
    });
    let place = format!("{} on {}", args.service, socket.display());
    let server = Server {
        socket,
        token: &token,
        label: &args.label,
        answers: &answers,
        events: &sender,
    };
    let mut session = Some(server.begin()?);
    stderr::tell(&format!("serving {place}"));
    while let Some(serving) = session.take() {
        match events.recv() {
            Ok(Event::Ended(status)) if status.code() == Code::UNAVAILABLE => {
                let why = status.message();
                stderr::tell(&format!("not serving {place}: {why}; trying again"));
                drop(serving);
                session = server.begin_again(&events)?;
                if session.is_some() {
                    stderr::tell(&format!("serving {place} again"));
                }
            }
            Ok(Event::Ended(status)) => return Err(ended(status)),
            Ok(Event::Signal) => {
                drain(serving, sender);
                // Once what has come is answered; at another signal, or the session's end, at once.
                let _whichever = events.recv();
                return Ok(());
            }
            Ok(Event::Drained) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// What a server waits for.
enum Event {
    Signal,
    /// All that had come is answered.
    Drained,
    /// The session has.
    Ended(Status),
}

/// What its sessions have in common: the one that serves now, and those after it if the daemon goes away.
struct Server<'a> {
    socket: &'a Path,
    token: &'a str,
    label: &'a str,
    answers: &'a Arc<Answers>,
    events: &'a Sender<Event>,
}

impl Server<'_> {
    /// Opens a session that serves.
    fn begin(&self) -> Result<Session, Failure> {
        let session = open(self.socket, self.token, self.label)?;
        let served = session.bind_server(Answering(Arc::clone(self.answers)));
        block_on(&session, served).map_err(ended)?;
        let (watched, events) = (session.clone(), self.events.clone());
        thread::spawn(move || {
            let status = block_on(&watched, watched.closed());
            // Nobody waits any more if a signal was first.
            let _late = events.send(Event::Ended(status));
        });
        Ok(session)
    }

    /// Tries until there is a daemon; `None` if a signal comes first.
    fn begin_again(&self, events: &Receiver<Event>) -> Result<Option<Session>, Failure> {
        let (mut pause, longest) = REACH_AGAIN;
        loop {
            if events.recv_timeout(pause).is_ok() {
                return Ok(None);
            }
            match self.begin() {
                Ok(session) => return Ok(Some(session)),
                Err(failure) if failure.code() != Code::UNAVAILABLE => return Err(failure),
                Err(_) => pause = (pause * 3 / 2).min(longest),
            }
        }
    }
}

/// Has what has come answered, and says so.
fn drain(session: Session, events: Sender<Event>) {
    thread::spawn(move || {
        // A daemon that can't drain, or has gone, has nothing to wait for.
        let _whether = block_on(&session, session.drain());
        let _late = events.send(Event::Drained);
    });
}
