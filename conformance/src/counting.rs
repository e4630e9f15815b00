//! A server that counts how often each call reaches it, and distinguishable calls: for tests that
//! nothing is lost or done twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::{Code, Received, Reply, Request, Response, Status, Streaming};

use crate::interop::{Answer, Answers, Ask, Semantics};

/// A call with this number.
pub fn ask(number: u64) -> Ask {
    Ask {
        number,
        responses: 1,
        ..Ask::default()
    }
}

/// Counts how often each call is handled, and answers on a worker.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    /// The count per number.
    pub handled: Arc<Mutex<HashMap<u64, u32>>>,
}

impl Semantics for Counting {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let ask = request.get_ref().to_owned();
        *self
            .handled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(ask.number)
            .or_default() += 1;
        std::thread::sleep(Duration::from_millis(ask.delay_ms.into()));
        let mut payload = ask.payload;
        payload.reverse();
        let number = ask.number;
        Ok(Response::new(Answer { number, payload }))
    }

    async fn collect(&self, _: Request<Streaming<Ask>>) -> Reply<Answer> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }

    type SpreadStream = Answers;

    async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Answers> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }

    type ChatStream = Answers;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Answers> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }
}

/// The payload of a call with this number: small ones, ones with an extent, and ones of many pages.
pub fn payload(number: u64) -> Vec<u8> {
    let len = [0, 40, 3_000, 20_000, 300_000][number as usize % 5];
    (0..len).map(|k| (k as u64 ^ number) as u8).collect()
}
