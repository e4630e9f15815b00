//! `tollgate call` and `tollgate serve`: any method of any `.proto`, by reflection.
//!
//! They drive the same client library as generated stubs do, by its raw interface: blocks in,
//! blocks out. JSON exists on this side of it only.

use std::io::Read;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate::codec::RawBlock;
use tollgate::{MetadataBuf, Opening, Session, SessionOptions, Status, block_on};
use tollgate_shm_abi::status::Code;

use crate::admin::unreachable;
use crate::args::{Call, Cli, Serve};
use crate::failure::Failure;
use crate::metadata;
use crate::output;
use crate::schema::{Method, Service};

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
            Came::Reply(reply) => output::print(&format!("{}\n", method.reply_json(&reply)?)),
            Came::End(..) if !args.show_metadata => return Ok(String::new()),
            Came::End(beside, behind) if behind.is_empty() => {
                return Ok(format!("{}\n", metadata::json(&beside)));
            }
            Came::End(beside, behind) => {
                let lines = [&beside, &behind].map(metadata::json);
                return Ok(format!("{}\n{}\n", lines[0], lines[1]));
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
    let answers = Answers {
        replies: replies(&service, args)?,
        metadata: metadata::collect(&args.metadata)?,
        print_requests: args.print_requests,
        show_metadata: args.show_metadata,
        service: Service::load(&args.schema.files, &args.service)?,
    };
    // Installed before anything else happens, so that no moment is left in which a signal kills.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
        Failure::new(Code::INTERNAL, format_args!("no signal handlers: {error}"))
    })?;
    let session = open(cli, &args.schema.token, &args.label)?;
    let (descriptor_set, name) = (
        service.descriptor_set().to_owned(),
        service.name().to_owned(),
    );
    let handler = move |index: usize, request: &[u8], came: &MetadataBuf| {
        answers.answer(index, request, came)
    };
    let served = session.serve_raw_with(&descriptor_set, &name, handler);
    block_on(&session, served).map_err(ended)?;
    eprintln!("serving {name} on {}", cli.socket.display());
    wait_for_the_end(session, signals)
}

/// What a method answers.
enum Reply {
    Fixed(Vec<u8>),
    Echo,
    /// The given JSON isn't a reply of this method; the sentence says why.
    None(String),
}

/// One reply per method. A fixed reply fits some methods and not others; it must fit one.
fn replies(service: &Service, args: &Serve) -> Result<Vec<Reply>, Failure> {
    let methods = service.methods()?;
    let Some(json) = &args.answer.reply else {
        return methods.iter().map(echo).collect();
    };
    let json = argument_or_stdin(json)?;
    let blocks: Vec<_> = methods.iter().map(|method| method.reply(&json)).collect();
    if let (false, Some(Err(failure))) = (blocks.iter().any(Result::is_ok), blocks.first()) {
        return Err(failure.clone());
    }
    let reply = |block: Result<_, Failure>| {
        block.map_or_else(|failure| Reply::None(failure.sentence()), Reply::Fixed)
    };
    Ok(blocks.into_iter().map(reply).collect())
}

fn echo(method: &Method<'_>) -> Result<Reply, Failure> {
    if method.is_symmetric() {
        return Ok(Reply::Echo);
    }
    let sentence = format!(
        "method {} can't be echoed: its request and its reply have two types",
        method.name()
    );
    Err(Failure::input(sentence).hint("--reply '{}'"))
}

/// What this server has to say.
struct Answers {
    service: Service,
    replies: Vec<Reply>,
    /// Beside every reply.
    metadata: MetadataBuf,
    print_requests: bool,
    show_metadata: bool,
}

impl Answers {
    fn answer(
        &self,
        index: usize,
        request: &[u8],
        came: &MetadataBuf,
    ) -> Result<(Vec<u8>, MetadataBuf), Status> {
        let unknown = || {
            Status::new(
                Code::UNIMPLEMENTED,
                format!("{} has no method number {index}", self.service.name()),
            )
        };
        let reply = self.replies.get(index).ok_or_else(unknown)?;
        if self.print_requests {
            self.print(index, request, came)
                .map_err(Failure::into_status)?;
        }
        match reply {
            Reply::Fixed(block) => Ok((block.clone(), self.metadata.clone())),
            Reply::Echo => {
                let mut metadata = came.clone();
                for (key, value) in self.metadata.view().iter() {
                    metadata.push(key, value)?;
                }
                Ok((request.to_vec(), metadata))
            }
            Reply::None(why) => Err(Status::new(
                Code::UNIMPLEMENTED,
                format!("this server has no reply: {why}"),
            )),
        }
    }

    fn print(&self, index: usize, request: &[u8], came: &MetadataBuf) -> Result<(), Failure> {
        let json = self.service.methods()?[index].request_json(request)?;
        output::print(&format!("{json}\n"));
        if self.show_metadata {
            output::print(&format!("{}\n", metadata::json(came)));
        }
        Ok(())
    }
}

/// Returns on a signal; fails when the session ends by itself.
fn wait_for_the_end(session: Session, mut signals: Signals) -> Result<(), Failure> {
    let (sender, receiver) = channel();
    let session_ended: Sender<Option<Status>> = sender.clone();
    // Either thread may find that the other was first: then nobody waits any more.
    thread::spawn(move || {
        let status = block_on(&session, session.closed());
        let _late = session_ended.send(Some(status));
    });
    thread::spawn(move || {
        let _which = signals.forever().next();
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
fn argument_or_stdin(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::input(format_args!("standard input can't be read: {error}")))?;
    Ok(text)
}
