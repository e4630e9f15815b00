//! `tollgate call`: one call, with JSON in and JSON out.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::codec::RawBlock;
use tollgate::{MetadataBuf, Opening, Session, Status, StreamSender, block_on};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::input::{self, argument_or_stdin};
use crate::rpc::args::Call;
use crate::rpc::session::{ended, open};
use crate::schema::{Method, Service};
use crate::values::DAY;
use crate::{metadata, output, stderr, token};

/// The default deadline of a call.
const DEADLINE: Duration = Duration::from_secs(10);

/// Extra time for the daemon, which reports the deadline itself and with more details.
const GRACE: Duration = Duration::from_millis(500);

/// The events of a call, in this order.
enum Came {
    Reply(Vec<u8>),
    /// It ended successfully, with this metadata and these trailers.
    End(MetadataBuf, MetadataBuf),
}

/// The requests to send.
enum Requests {
    Known(Vec<Vec<u8>>),
    /// Each request as it is typed.
    Typed,
}

/// Calls the method once, and prints each reply as a line of JSON when it comes. Returns the text
/// to print at the end.
pub(crate) fn call(socket: &Path, args: &Call) -> Result<String, Failure> {
    let begin = Instant::now();
    let service = Arc::new(Service::load(&args.schema.files, &args.method.service)?);
    let method = service.method(&args.method.method)?;
    let token = token::token(
        socket,
        &args.schema.token,
        args.request.as_deref().as_slice(),
    )?;
    let requests = requests(&method, args.request.as_deref())?;
    let sent = metadata::collect(&args.metadata)?;
    let session = open(socket, &token, "")?;
    let deadline = args.deadline.unwrap_or(match requests {
        Requests::Known(_) => DEADLINE,
        Requests::Typed => DAY,
    });
    // The deadline covers everything from here on, including binding: a slow daemon or peer must
    // not keep a script waiting. So another thread does the work, and this one watches the clock.
    let (sender, receiver) = channel();
    let making = Making {
        session,
        service: Arc::clone(&service),
        method: method.name().to_owned(),
        is_stream: method.is_stream(),
        sender,
    };
    let target = args.to.clone();
    thread::spawn(move || {
        let left = || deadline.saturating_sub(begin.elapsed());
        if let Err(failure) = making.make(&target, requests, sent, left) {
            // After the deadline the receiver is gone, and so is the process.
            let _late = making.sender.send(Err(failure));
        }
    });
    loop {
        let came = receiver
            .recv_timeout(deadline.saturating_sub(begin.elapsed()) + GRACE)
            .map_err(|_| {
                Failure::new(
                    Code::DEADLINE_EXCEEDED,
                    format_args!("no answer after {deadline:?}"),
                )
            })?;
        match came? {
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

fn requests(method: &Method<'_>, argument: Option<&str>) -> Result<Requests, Failure> {
    let argument = match argument {
        Some("-") if method.takes_many() => return Ok(Requests::Typed),
        Some(argument) => argument_or_stdin(argument)?,
        None => {
            let hint = "- to read it, or '{}' for an empty request";
            if input::refuse_unread("request", hint)? {
                stderr::tell("the request is {}: standard input isn't read without -");
            }
            "{}".to_owned()
        }
    };
    if !method.takes_many() {
        return Ok(Requests::Known(vec![method.request(&argument)?]));
    }
    let mut known = Vec::new();
    input::each(argument.as_bytes(), |json| {
        known.push(method.request(json)?);
        Ok(())
    })?;
    Ok(Requests::Known(known))
}

/// The failure of a bind. A call without a peer is for this host, which is easily forgotten.
fn unbound(target: &str, status: Status) -> Failure {
    let is_unserved = matches!(
        status.code(),
        Code::UNIMPLEMENTED | Code::UNAVAILABLE | Code::NOT_FOUND
    );
    match is_unserved && target.is_empty() {
        true => ended(status).hint("--to HOST:PORT, if another host serves it"),
        false => ended(status),
    }
}

/// A call in progress.
struct Making {
    session: Session,
    service: Arc<Service>,
    method: String,
    is_stream: bool,
    sender: Sender<Result<Came, Failure>>,
}

impl Making {
    fn make(
        &self,
        target: &str,
        requests: Requests,
        metadata: MetadataBuf,
        left: impl Fn() -> Duration,
    ) -> Result<(), Failure> {
        let (name, method) = (self.service.name(), &self.method);
        let bound = async {
            let descriptor_set = self.service.descriptor_set();
            let binding = self
                .session
                .bind_client(descriptor_set, name, target)
                .await?;
            binding.handle(method).ok_or_else(|| {
                let text = format!("the daemon bound {name} without {method}");
                Status::new(Code::UNIMPLEMENTED, text)
            })
        };
        let handle = block_on(&self.session, bound);
        let handle = handle.map_err(|status| unbound(target, status))?;
        let timeout = left().max(Duration::from_millis(1));
        match requests {
            Requests::Known(requests) if !self.is_stream => {
                let request = requests.into_iter().next().unwrap_or_default();
                let once = self.once(handle, &request, metadata, timeout);
                block_on(&self.session, once).map_err(ended)
            }
            requests => {
                let stream = self.stream(handle, requests, metadata, timeout);
                block_on(&self.session, stream).map_err(ended)
            }
        }
    }

    fn came(&self, came: Came) {
        // The receiver is gone with the process.
        let _late = self.sender.send(Ok(came));
    }

    async fn once(
        &self,
        handle: u32,
        request: &[u8],
        metadata: MetadataBuf,
        timeout: Duration,
    ) -> Result<(), Status> {
        let call = self.session.call_raw(handle, request, Some(timeout));
        let mut reply = call.with_metadata(metadata).await?;
        let (beside, behind) = (reply.take_metadata(), reply.take_trailers());
        self.came(Came::Reply(reply.to_vec()));
        self.came(Came::End(beside, behind));
        Ok(())
    }

    /// A call with several requests, several replies, or both.
    async fn stream(
        &self,
        handle: u32,
        requests: Requests,
        metadata: MetadataBuf,
        timeout: Duration,
    ) -> Result<(), Status> {
        let (known, is_typed) = match requests {
            Requests::Known(known) => (known, false),
            Requests::Typed => (Vec::new(), true),
        };
        let mut known = known.into_iter().map(RawBlock);
        let first = known.next();
        let opening = Opening {
            metadata,
            timeout: Some(timeout),
            is_last: !is_typed && known.len() == 0,
        };
        let opened = self.session.open_stream(handle, first.as_ref(), opening);
        let (mut sender, mut replies) = opened.await?;
        if is_typed {
            self.send_typed(sender);
        } else {
            self.session.spawn(async move {
                for request in known {
                    if sender.send(&request).await.is_err() {
                        // The replies tell how the call ended.
                        return;
                    }
                }
                sender.finish();
            });
        }
        while let Some(reply) = replies.next().await? {
            self.came(Came::Reply(reply.to_vec()));
        }
        let beside = replies.metadata().await?.clone();
        self.came(Came::End(
            beside,
            replies.trailers().cloned().unwrap_or_default(),
        ));
        Ok(())
    }

    /// Sends each request of standard input when it is complete. Reading blocks, so it runs on its
    /// own thread.
    fn send_typed(&self, mut sender: StreamSender) {
        let (session, service) = (self.session.clone(), Arc::clone(&self.service));
        let (name, failed) = (self.method.clone(), self.sender.clone());
        thread::spawn(move || {
            let mut send = || {
                let method = service.method(&name)?;
                let mut is_over = false;
                input::each(std::io::stdin().lock(), |json| {
                    let request = RawBlock(method.request(json)?);
                    // The replies tell how the call ended. Requests typed after that are dropped.
                    is_over = is_over || block_on(&session, sender.send(&request)).is_err();
                    Ok(())
                })
            };
            match send() {
                Ok(()) => sender.finish(),
                Err(failure) => {
                    let _late = failed.send(Err(failure));
                }
            }
        });
    }
}
