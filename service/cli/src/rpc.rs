//! `tollgate call` and `tollgate serve`: any method of any `.proto`, by reflection.
//!
//! They drive the same client library as generated stubs do, by its raw interface: blocks in,
//! blocks out. JSON exists on this side of it only.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate::codec::RawBlock;
use tollgate::{MetadataBuf, Opening, Session, SessionOptions, Status, block_on};
use tollgate_shm_abi::status::Code;

use crate::admin::unreachable;
use crate::answers::{Answering, Answers};
use crate::args::{Call, Cli, Serve};
use crate::failure::Failure;
use crate::metadata;
use crate::output;
use crate::schema::Service;

/// What comes of a call, in this order.
enum Came {
    Reply(Vec<u8>),
    /// It ended well, with this beside the replies and behind them.
    End(MetadataBuf, MetadataBuf),
}

/// Calls the method once, and prints each reply as a line of JSON when it comes; returns what is to be printed at the end.
pub(crate) fn call(cli: &Cli, args: &Call) -> Result<String, Failure> {
    let begin = Instant::now();
    let service = Service::load(&args.schema.files, &args.method.service)?;
    let method = service.method(&args.method.method)?;
    let argument = argument_or_stdin(&args.request)?;
    let requests = match method.takes_many() {
        true => argument
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect(),
        false => vec![argument.as_str()],
    };
    let requests = requests.into_iter().map(|json| method.request(json));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let sent = metadata::collect(&args.metadata)?;
    let session = open(cli, &args.schema.token, "")?;
    // The deadline is for everything from here on, binding included: a daemon or peer that takes
    // its time must not keep a script waiting. So the work has a thread, and this one the clock.
    let (sender, receiver) = channel();
    let (descriptor_set, name) = (
        service.descriptor_set().to_owned(),
        service.name().to_owned(),
    );
    let (target, method_name) = (args.to.clone(), method.name().to_owned());
    let (deadline, is_stream) = (args.deadline, method.is_stream());
    thread::spawn(move || {
        let exchange = async {
            let binding = session.bind_client(&descriptor_set, &name, &target).await?;
            let handle = binding.handle(&method_name).ok_or_else(|| {
                Status::new(
                    Code::UNIMPLEMENTED,
                    format!("the daemon bound {name} without {method_name}"),
                )
            })?;
            let left = deadline
                .saturating_sub(begin.elapsed())
                .max(Duration::from_millis(1));
            let came = |came| drop(sender.send(Ok(came)));
            if is_stream {
                return stream(&session, handle, requests, (sent, left), came).await;
            }
            let request = requests.into_iter().next().unwrap_or_default();
            let call = session.call_raw(handle, &request, Some(left));
            let mut reply = call.with_metadata(sent).await?;
            let (beside, behind) = (reply.take_metadata(), reply.take_trailers());
            came(Came::Reply(reply.to_vec()));
            came(Came::End(beside, behind));
            Ok(())
        };
        if let Err(status) = block_on(&session, exchange) {
            // The receiver is gone when the deadline has passed, and the process with it.
            let _late = sender.send(Err(status));
        }
    });
    // The daemon answers at the deadline itself, with more to say; it gets a moment to do so.
    const GRACE: Duration = Duration::from_millis(500);
    loop {
        let came = receiver
            .recv_timeout(deadline.saturating_sub(begin.elapsed()) + GRACE)
            .map_err(|_| {
                Failure::new(
                    Code::DEADLINE_EXCEEDED,
                    format_args!("no answer after {deadline:?}"),
                )
            })?;
        match came.map_err(ended)? {
            Came::Reply(reply) => output::print(&output::json(&method.reply_json(&reply)?))?,
            Came::End(..) if !args.show_metadata => return Ok(String::new()),
            Came::End(beside, behind) if behind.is_empty() => {
                return Ok(metadata::json(&beside));
            }
            Came::End(beside, behind) => {
                return Ok([&beside, &behind].map(metadata::json).concat());
            }
        }
    }
}

/// A call of several requests, of several replies, or of both.
async fn stream(
    session: &Session,
    handle: u32,
    requests: Vec<Vec<u8>>,
    (metadata, timeout): (MetadataBuf, Duration),
    came: impl Fn(Came),
) -> Result<(), Status> {
    let mut requests = requests.into_iter().map(RawBlock);
    let first = requests.next();
    let opening = Opening {
        metadata,
        timeout: Some(timeout),
        is_last: requests.len() == 0,
    };
    let (mut sender, mut replies) = session.open_stream(handle, first.as_ref(), opening).await?;
    session.spawn(async move {
        for request in requests {
            if sender.send(&request).await.is_err() {
                // How the call ended, the replies tell.
                return;
            }
        }
        sender.finish();
    });
    while let Some(reply) = replies.next().await? {
        came(Came::Reply(reply.to_vec()));
    }
    let beside = replies.metadata().await?.clone();
    came(Came::End(
        beside,
        replies.trailers().cloned().unwrap_or_default(),
    ));
    Ok(())
}

/// Serves until a signal comes, or the daemon ends the session.
pub(crate) fn serve(cli: &Cli, args: &Serve) -> Result<(), Failure> {
    let service = Service::load(&args.schema.files, &args.service)?;
    let name = service.name().to_owned();
    let json = args.answer.reply.as_deref().map(argument_or_stdin);
    let answers = Answers::new(service, args, json.transpose()?.as_deref())?;
    // Installed before anything else happens, so that no moment is left in which a signal kills.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        Failure::new(Code::INTERNAL, format_args!("no signal handlers: {error}"))
    })?;
    let session = open(cli, &args.schema.token, &args.label)?;
    let served = session.bind_server(Answering(Arc::new(answers)));
    block_on(&session, served).map_err(ended)?;
    output::tell(&format!("serving {name} on {}", cli.socket.display()));
    wait_for_the_end(session, signals)
}

/// Returns after a signal, once what has come is answered, or at another one; fails when the session ends by itself.
fn wait_for_the_end(session: Session, mut signals: Signals) -> Result<(), Failure> {
    let (sender, receiver) = channel();
    let session_ended: Sender<Option<Status>> = sender.clone();
    let (drained, draining) = (sender.clone(), session.clone());
    // Either thread may find that another was first: then nobody waits any more.
    thread::spawn(move || {
        let status = block_on(&session, session.closed());
        let _late = session_ended.send(Some(status));
    });
    thread::spawn(move || {
        let mut signals = signals.forever();
        let _which = signals.next();
        thread::spawn(move || {
            // A daemon that can't drain, or has gone, has nothing to wait for.
            let _whether = block_on(&draining, draining.drain());
            let _late = drained.send(None);
        });
        let _which = signals.next();
        let _late = sender.send(None);
    });
    match receiver.recv() {
        Ok(Some(status)) => Err(ended(status)),
        Ok(None) | Err(_) => Ok(()),
    }
}

fn open(cli: &Cli, token: &str, label: &str) -> Result<Session, Failure> {
    let mut options = SessionOptions::new(&cli.socket, token);
    options.app = "tollgate".to_owned();
    options.label = label.to_owned();
    // Whoever runs the command sees that the daemon is gone, and runs it again.
    options.reconnect = false;
    Session::open(options).map_err(|status| match status.code() {
        Code::UNAVAILABLE => unreachable(&cli.socket, status.message()),
        Code::UNAUTHENTICATED => {
            ended(status).hint("tollgate tenant add NAME, which prints a token")
        }
        _ => ended(status),
    })
}

/// A status that ended a call or a session, as this command's failure.
fn ended(status: Status) -> Failure {
    Failure::new(status.code(), status.message())
}

/// The argument itself, or all of standard input for `-`.
pub(crate) fn argument_or_stdin(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::input(format_args!("standard input can't be read: {error}")))?;
    Ok(text)
}
