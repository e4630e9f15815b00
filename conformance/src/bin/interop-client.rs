//! The Rust library's client of the interoperability suite: `interop-client SOCKET TOKEN TARGET`,
//! see the library's `cases`.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, stdin};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::codec::{Message as _, Place, encode_inline};
use tollgate::{
    Channel, Code, MetadataMap, Received, Request, Session, SessionOptions, Status, Stream,
    Streaming, block_on,
};
use tollgate_conformance::cases::{base64, from_base64};
use tollgate_conformance::interop::everything::All;
use tollgate_conformance::interop::everything::everything_client::EverythingClient;
use tollgate_conformance::interop::{Answer, Ask, SemanticsClient};

/// The outcome of a case.
#[derive(Default)]
struct Outcome {
    responses: Vec<Value>,
    metadata: MetadataMap,
    trailers: MetadataMap,
    status: Option<Status>,
    /// The block of the reply to Swap.
    block: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, token, target] = &arguments[..] else {
        return Err(
            "give the daemon's socket, a tenant's token, and a target, which may be empty".into(),
        );
    };
    let session = Session::open(SessionOptions::new(socket, token))?;
    let channel = Channel::new(&session, target);
    let clients = Clients {
        semantics: SemanticsClient::new(channel.clone()),
        everything: EverythingClient::new(channel),
    };
    for line in stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let outcome = block_on(&session, run(&clients, &case));
        println!("{}", outcome.into_json());
    }
    Ok(())
}

struct Clients {
    semantics: SemanticsClient,
    everything: EverythingClient,
}

fn ask(told: &Value) -> Ask {
    let number = |key: &str| told[key].as_u64().unwrap_or(0);
    let keys = |key: &str| {
        let keys = told[key].as_array().into_iter().flatten();
        keys.filter_map(|key| Some(key.as_str()?.to_owned()))
            .collect()
    };
    Ask {
        number: number("number"),
        payload: vec![number("payload_byte") as u8; number("payload_len") as usize],
        responses: number("responses") as u32,
        response_bytes: number("response_bytes") as u32,
        code: number("code") as i32,
        message: told["message"].as_str().unwrap_or_default().to_owned(),
        details: from_base64(told["details"].as_str().unwrap_or_default()),
        delay_ms: number("delay_ms") as u32,
        echo: keys("echo"),
        echo_as_trailers: keys("echo_as_trailers"),
    }
}

/// A request with the case's metadata and timeout.
fn request<T>(case: &Value, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    for pair in case["metadata"].as_array().into_iter().flatten() {
        let (key, value) = (
            pair[0].as_str().unwrap_or_default(),
            pair[1].as_str().unwrap_or_default(),
        );
        let metadata = request.metadata_mut();
        match key.ends_with("-bin") {
            true => metadata.append_bin(key, &from_base64(value))?,
            false => metadata.append(key, value)?,
        }
    }
    if let Some(ms @ 1..) = case["timeout_ms"].as_u64() {
        request.set_timeout(Duration::from_millis(ms));
    }
    Ok(request)
}

async fn run(clients: &Clients, case: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    if let Err(status) = called(clients, case, &mut outcome).await {
        outcome.trailers = status.metadata.clone().into();
        outcome.status = Some(status);
    }
    outcome
}

async fn called(clients: &Clients, case: &Value, outcome: &mut Outcome) -> Result<(), Status> {
    let asks: Vec<Ask> = case["requests"]
        .as_array()
        .into_iter()
        .flatten()
        .map(ask)
        .collect();
    let first = asks.first().cloned().unwrap_or_default();
    let client = &clients.semantics;
    let gate = Gate::new(&asks, case["lockstep"].as_bool().unwrap_or(false));
    match case["method"].as_str() {
        Some("Unary") => {
            let reply = client.unary(request(case, first)?).await?;
            outcome.one(reply);
        }
        Some("Collect") => {
            let reply = client.collect(request(case, gate)?).await?;
            outcome.one(reply);
        }
        Some("Spread") => {
            let reply = client.spread(request(case, first)?).await?;
            outcome.metadata = reply.metadata().clone();
            outcome.all(reply.into_inner(), case, &gate).await?;
        }
        Some("Chat") => {
            let reply = client.chat(request(case, gate.clone())?).await?;
            outcome.metadata = reply.metadata().clone();
            outcome.all(reply.into_inner(), case, &gate).await?;
        }
        Some("Swap") => {
            let block = from_base64(case["block"].as_str().unwrap_or_default());
            let all = All::from_view(All::view(Place::root(&block)));
            let reply = clients.everything.swap(all).await?;
            outcome.block = encode_inline(&reply.get_ref().to_owned()).unwrap_or_default();
        }
        other => {
            let text = format!("the case's method doesn't exist: {other:?}");
            return Err(Status::new(Code::UNIMPLEMENTED, text));
        }
    }
    Ok(())
}

impl Outcome {
    fn one(&mut self, reply: tollgate::Response<Received<Answer>>) {
        self.metadata = reply.metadata().clone();
        self.trailers = reply.trailers().clone();
        self.came(reply.get_ref());
    }

    async fn all(
        &mut self,
        mut answers: Streaming<Answer>,
        case: &Value,
        gate: &Gate,
    ) -> Result<(), Status> {
        let cancel_after = case["cancel_after"].as_i64().unwrap_or(-1);
        while let Some(answer) = answers.message().await? {
            self.came(&answer);
            gate.open();
            if usize::try_from(cancel_after) == Ok(self.responses.len()) {
                drop(answers);
                return Err(Status::new(
                    Code::CANCELLED,
                    "this program cancelled the call",
                ));
            }
        }
        self.trailers = answers.trailers().unwrap_or_default();
        Ok(())
    }

    fn came(&mut self, answer: &Received<Answer>) {
        let view = answer.view();
        let payload = view.payload();
        let byte = payload.first().copied().unwrap_or(0);
        assert!(
            payload.iter().all(|b| *b == byte),
            "a payload is one byte, again and again"
        );
        self.responses
            .push(json!({"number": view.number(), "len": payload.len(), "byte": byte}));
    }

    fn into_json(self) -> Value {
        let pairs = |metadata: &MetadataMap| {
            let shown = metadata
                .iter()
                .filter(|(key, _)| *key != "grpc-status-details-bin");
            let pair = |(key, value): (&str, &[u8])| match key.ends_with("-bin") {
                true => json!([key, base64(value)]),
                false => json!([key, String::from_utf8_lossy(value)]),
            };
            shown.map(pair).collect::<Vec<_>>()
        };
        let status = self.status.unwrap_or_else(|| Status::new(Code::OK, ""));
        json!({
            "responses": self.responses,
            "metadata": pairs(&self.metadata),
            "trailers": pairs(&self.trailers),
            "code": status.code.0,
            "message": status.message,
            "details": base64(status.details()),
            "block": base64(&self.block),
        })
    }
}

/// Requests. In lockstep, each waits for the answers to the previous ones.
#[derive(Clone)]
struct Gate(Arc<Mutex<Gated>>);

struct Gated {
    asks: VecDeque<Ask>,
    lockstep: bool,
    /// The number of outstanding answers.
    owed: u32,
    waker: Option<Waker>,
}

impl Gate {
    fn new(asks: &[Ask], lockstep: bool) -> Gate {
        Gate(Arc::new(Mutex::new(Gated {
            asks: asks.iter().cloned().collect(),
            lockstep,
            owed: 0,
            waker: None,
        })))
    }

    /// Records an answer.
    fn open(&self) {
        let mut gated = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gated.owed = gated.owed.saturating_sub(1);
        if let Some(waker) = gated.waker.take() {
            waker.wake();
        }
    }
}

impl Stream for Gate {
    type Item = Ask;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Ask>> {
        let mut gated = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gated.lockstep && gated.owed > 0 {
            gated.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let next = gated.asks.pop_front();
        gated.owed = next.as_ref().map_or(0, |ask| ask.responses);
        Poll::Ready(next)
    }
}
