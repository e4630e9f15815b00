//! Tests of the link: in memory through a [`Pair`], and over loopback TCP.
//!
//! Files under `tests/golden` are reviewed like code. `TOLLGATE_BLESS=1 cargo test` rewrites them;
//! review the difference.

#![allow(clippy::unwrap_used)]

mod attacks;
mod flow;
mod frozen;
mod handshakes;
mod hostile;
mod marshal;
mod streams;
mod tcp;
mod wire;

use tollgate_shm_abi::metadata::Metadata;

use crate::config::LinkSetup;
use crate::config::{LinkConfig, PresharedKey, Role};
use crate::error::LinkError;
use crate::event::{Body, CallHead, Event, Image};
use crate::frame::{Header, Kind, u32_at};
use crate::limits;
use crate::proto::Link;
use crate::testing::*;
use crate::tx::Token;

/// The responder's address.
const HERE: &str = "127.0.0.1:7471";

fn setup(role: Role, nonce: u8) -> LinkSetup {
    LinkSetup {
        role,
        loopback: true,
        target: match role {
            Role::Initiator => HERE.to_owned(),
            Role::Responder => String::new(),
        },
        address: HERE.parse().unwrap(),
        nonce: [nonce; 32],
        now_ns: 0,
    }
}

/// A link, with the data that its daemon would keep.
struct End {
    link: Link,
    /// Every event as text; bodies above 64 bytes as length and sum.
    said: Vec<String>,
    /// The large body being read, and its event's text.
    body: Option<(Vec<u8>, String)>,
    /// Whether large bodies are skipped.
    skips: bool,
}

impl End {
    fn new(config: &LinkConfig, setup: &LinkSetup) -> End {
        End {
            link: Link::new(config, setup).unwrap(),
            said: Vec::new(),
            body: None,
            skips: false,
        }
    }

    /// Takes bytes from the peer and acts like a daemon.
    fn hear(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        loop {
            let n = self.link.receive(bytes);
            bytes = &bytes[n..];
            self.poll()?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> Result<(), LinkError> {
        loop {
            if let Some((body, words)) = &mut self.body {
                if !self.link.fill_body(body)?.is_empty() {
                    return Ok(());
                }
                self.said.push(format!("{words} {}", summary(body)));
                self.body = None;
            }
            let Some(event) = self.link.poll_event()? else {
                return Ok(());
            };
            let large = large(&event);
            let words = words(event);
            match large {
                Some(_) if self.skips => {
                    self.said.push(format!("{words} skipped"));
                    self.link.skip_body();
                }
                Some(len) => self.body = Some((vec![0; len], words)),
                None => self.said.push(words),
            }
        }
    }

    /// All queued bytes.
    fn bytes(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.link.transmit(&mut out, usize::MAX);
        out
    }
}

/// Two links; the test moves the bytes.
struct Pair {
    a: End,
    b: End,
}

impl Pair {
    /// Two daemons as configured, before any exchange.
    fn fresh(a: &LinkConfig, b: &LinkConfig) -> Pair {
        Pair {
            a: End::new(a, &setup(Role::Initiator, 0xaa)),
            b: End::new(b, &setup(Role::Responder, 0xbb)),
        }
    }

    /// Two ready links.
    fn ready() -> Pair {
        Pair::ready_as(&config("host-a"), &config("host-b"))
    }

    fn ready_as(a: &LinkConfig, b: &LinkConfig) -> Pair {
        let mut pair = Pair::fresh(a, b);
        pair.settle().unwrap();
        assert!(pair.a.link.is_ready() && pair.b.link.is_ready());
        pair.a.said.clear();
        pair.b.said.clear();
        pair
    }

    /// Two ready links, one of a daemon that predates this feature: neither end uses it.
    fn ready_without(feature: u32) -> Pair {
        let mut pair = Pair::fresh(&config("host-a"), &config("host-b"));
        let (mut to_b, mut to_a) = (pair.a.bytes(), pair.b.bytes());
        for hello in [&mut to_b, &mut to_a] {
            let at = limits::HEADER + 12;
            let offered = u32_at(hello, at) & !feature;
            hello[at..at + 4].copy_from_slice(&offered.to_le_bytes());
        }
        pair.b.hear(&to_b).unwrap();
        pair.a.hear(&to_a).unwrap();
        assert!(pair.a.link.is_ready() && pair.b.link.is_ready());
        pair.a.said.clear();
        pair.b.said.clear();
        pair
    }

    /// Moves bytes both ways until there are none left.
    fn settle(&mut self) -> Result<(), LinkError> {
        while self.a.link.wants_write() || self.b.link.wants_write() {
            let (to_b, to_a) = (self.a.bytes(), self.b.bytes());
            self.b.hear(&to_b)?;
            self.a.hear(&to_a)?;
        }
        Ok(())
    }

    /// Moves both ends' bytes to the other, ignoring errors; returns each end's error, if any.
    fn settle_to_errors(&mut self) -> [Option<LinkError>; 2] {
        while self.a.link.wants_write() || self.b.link.wants_write() {
            let (to_b, to_a) = (self.a.bytes(), self.b.bytes());
            let _ = self.b.hear(&to_b);
            let _ = self.a.hear(&to_a);
        }
        [
            self.a.link.failure().cloned(),
            self.b.link.failure().cloned(),
        ]
    }
}

/// A raw frame, for a peer that ignores the rules.
fn raw(header: Header, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        len: u32::try_from(payload.len()).unwrap(),
        ..header
    };
    [&header.encode()[..], payload].concat()
}

/// Compares with a reviewed file.
fn golden(name: &str, actual: &str) {
    let path = format!("{}/src/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{name} differs from the reviewed version; it is now:\n{actual}"
    );
}

/// A header of this kind, for tests that change one field.
fn header(kind: Kind) -> Header {
    Header::new(kind)
}
