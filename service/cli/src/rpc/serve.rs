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

/// Serves until a signal comes, or the daemon ends the session for a reason that another daemon
/// would have, too. If the daemon goes away, it serves again as soon as there is another daemon,
/// like applications.
pub(crate) fn serve(socket: &Path, args: &Serve) -> Result<(), Failure> {
    let service = Service::load(&args.schema.files, &args.service)?;
    let token = token::token(
        socket,
        &args.schema.token,
        args.answer.reply.as_deref().as_slice(),
    )?;
    let json = args.answer.reply.as_deref().map(argument_or_stdin);
    let answers = Arc::new(Answers::new(service, args, json.transpose()?.as_deref())?);
    // Installed first, so that there is no moment in which a signal kills the process.
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
                // Ends once all calls that came are answered. At another signal, or at the
                // session's end, it ends at once.
                let _whichever = events.recv();
                return Ok(());
            }
            Ok(Event::Drained) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The events of a server.
enum Event {
    Signal,
    /// All calls that came are answered.
    Drained,
    /// The session has ended.
    Ended(Status),
}

/// The common state of its sessions: the current one, and those after it if the daemon goes away.
struct Server<'a> {
    socket: &'a Path,
    token: &'a str,
    label: &'a str,
    answers: &'a Arc<Answers>,
    events: &'a Sender<Event>,
}

impl Server<'_> {
    /// Opens a session and serves on it.
    fn begin(&self) -> Result<Session, Failure> {
        let session = open(self.socket, self.token, self.label)?;
        let served = session.bind_server(Answering(Arc::clone(self.answers)));
        block_on(&session, served).map_err(ended)?;
        let (watched, events) = (session.clone(), self.events.clone());
        thread::spawn(move || {
            let status = block_on(&watched, watched.closed());
            // The receiver is gone if a signal came first.
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

/// Lets all calls that came be answered, and reports it.
fn drain(session: Session, events: Sender<Event>) {
    thread::spawn(move || {
        // If the daemon can't drain, or is gone, there is nothing to wait for.
        let _whether = block_on(&session, session.drain());
        let _late = events.send(Event::Drained);
    });
}
