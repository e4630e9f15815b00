//! The service for testing every client library, `proto/interop.proto`: its stubs, and its server
//! in Rust.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt as _};
use tollgate::{Code, MetadataMap, Received, Reply, Request, Response, Status, Streaming};

/// The stubs of `proto/everything.proto`, whose messages have every shape.
pub mod everything {
    #![allow(missing_docs, unreachable_pub, reason = "generated")]
    tollgate::include_proto!("everything");
}

mod stubs {
    #![allow(missing_docs, unreachable_pub, reason = "generated")]
    tollgate::include_proto!("interop");
}

use everything::everything_server::Everything;
use everything::{All, Node};
pub use stubs::semantics_client::SemanticsClient;
pub use stubs::semantics_server::{Semantics, SemanticsServer};
pub use stubs::{Answer, Ask, SEMANTICS};

/// The answers of one call.
pub type Answers = Pin<Box<dyn Stream<Item = Result<Answer, Status>> + Send>>;

/// Follows the instructions in requests.
#[derive(Debug, Default)]
pub struct Server;

impl Semantics for Server {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let ask = request.get_ref().to_owned();
        pause(&ask).await;
        let mut answers = answers(&ask);
        let answer = match status(&ask) {
            Some(status) => return Err(echoed(status, &ask, request.metadata())),
            None => answers.next().unwrap_or_default(),
        };
        Ok(echo(Response::new(answer), &ask, request.metadata()))
    }

    async fn collect(&self, request: Request<Streaming<Ask>>) -> Reply<Answer> {
        let (metadata, mut asks) = request.into_parts();
        let mut sum = Answer::default();
        let mut last = Ask::default();
        while let Some(ask) = asks.message().await? {
            last = ask.to_owned();
            pause(&last).await;
            if let Some(status) = status(&last) {
                return Err(echoed(status, &last, &metadata));
            }
            sum.number += last.number;
            sum.payload.extend_from_slice(&last.payload);
        }
        Ok(echo(Response::new(sum), &last, &metadata))
    }

    type SpreadStream = Answers;

    async fn spread(&self, request: Request<Received<Ask>>) -> Reply<Answers> {
        let ask = request.get_ref().to_owned();
        pause(&ask).await;
        let status = status(&ask).map(|status| echoed(status, &ask, request.metadata()));
        let answers = stream::iter(answers(&ask).map(Ok)).chain(stream::iter(status.map(Err)));
        let answers: Answers = Box::pin(answers);
        Ok(echo(Response::new(answers), &ask, request.metadata()))
    }

    type ChatStream = Answers;

    async fn chat(&self, request: Request<Streaming<Ask>>) -> Reply<Answers> {
        let (metadata, asks) = request.into_parts();
        let beside = metadata.clone();
        let answers = asks.then(move |ask| {
            let metadata = metadata.clone();
            async move {
                let ask = ask?.to_owned();
                pause(&ask).await;
                let status = status(&ask).map(|status| echoed(status, &ask, &metadata));
                let answers: Vec<_> = answers(&ask).map(Ok).chain(status.map(Err)).collect();
                Ok(stream::iter(answers))
            }
        });
        let answers = answers.flat_map(|answers: Result<_, Status>| match answers {
            Ok(answers) => answers.left_stream(),
            Err(status) => stream::iter([Err(status)]).right_stream(),
        });
        // No request has named the keys to echo yet: everything is echoed.
        let mut response = Response::new(Box::pin(answers) as Answers);
        *response.metadata_mut() = beside.clone();
        *response.trailers_mut() = beside;
        Ok(response)
    }
}

impl Everything for Server {
    /// Like an application that keeps its input: with an owned message.
    async fn swap(&self, request: Request<Received<All>>) -> Reply<All> {
        Ok(Response::new(request.get_ref().to_owned()))
    }

    type FollowStream = stream::Empty<Result<Node, Status>>;

    async fn follow(&self, _: Request<Received<Node>>) -> Reply<Self::FollowStream> {
        Ok(Response::new(stream::empty()))
    }
}

/// The answers to one request.
fn answers(ask: &Ask) -> impl Iterator<Item = Answer> + use<> {
    let (first, bytes) = (ask.number, ask.response_bytes as usize);
    (0..u64::from(ask.responses)).map(move |k| Answer {
        number: first + k,
        payload: vec![(first + k) as u8; bytes],
    })
}

/// The call's error status, if the request has one.
fn status(ask: &Ask) -> Option<Status> {
    let code = Code(u32::try_from(ask.code).unwrap_or(Code::UNKNOWN.0));
    let status = Status::new(code, ask.message.clone());
    let status = match ask.details.is_empty() {
        true => Ok(status),
        false => status.with_details(&ask.details),
    };
    (ask.code != 0).then(|| status.unwrap_or_else(Status::from))
}

fn picked(keys: &[String], from: &MetadataMap) -> MetadataMap {
    let mut picked = MetadataMap::new();
    for key in keys {
        for value in from.get_all_bin(key) {
            let _came_from_as_much = picked.append_bin(key, value);
        }
    }
    picked
}

fn echo<T>(mut response: Response<T>, ask: &Ask, from: &MetadataMap) -> Response<T> {
    *response.metadata_mut() = picked(&ask.echo, from);
    *response.trailers_mut() = picked(&ask.echo_as_trailers, from);
    response
}

fn echoed(mut status: Status, ask: &Ask, from: &MetadataMap) -> Status {
    for (key, value) in picked(&ask.echo_as_trailers, from).iter() {
        let _came_from_as_much = status.metadata.push(key, value);
    }
    status
}

async fn pause(ask: &Ask) {
    if ask.delay_ms > 0 {
        sleep(Duration::from_millis(ask.delay_ms.into())).await;
    }
}

/// Handlers run on the thread that drives the session, so they must not block it.
async fn sleep(time: Duration) {
    let state: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let alarm = Arc::clone(&state);
    std::thread::spawn(move || {
        std::thread::sleep(time);
        let mut state = alarm.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    });
    std::future::poll_fn(|cx| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = Some(cx.waker().clone());
        match state.0 {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
