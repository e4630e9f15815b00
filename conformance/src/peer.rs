//! A peer daemon that breaks all rules: a link driven by hand, byte by byte.
//!
//! It implements the page in `service/transport/src/frame.rs` and shares no code with it, so it
//! also checks the bytes independently.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::testbed::SOON;

/// The kinds of frames, with the page's numbers.
#[allow(missing_docs, reason = "the page in `frame.rs` defines each")]
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const BIND: u8 = 3;
    pub const BOUND: u8 = 4;
    pub const REFUSED: u8 = 5;
    pub const CALL: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const STATUS: u8 = 8;
    pub const CANCEL: u8 = 9;
    pub const GOAWAY: u8 = 13;
}

/// END_STREAM.
pub const END: u8 = 1;

/// The body is protobuf; also the feature bit.
pub const PROTOBUF: u8 = 8;

/// A frame as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the page in `frame.rs` defines each")]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub method: u16,
    pub call: u64,
    pub bind: u32,
    pub aux: u32,
    pub amount: u64,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.payload.len() as u32).to_le_bytes().to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.method.to_le_bytes());
        bytes.extend(self.call.to_le_bytes());
        bytes.extend(self.bind.to_le_bytes());
        bytes.extend(self.aux.to_le_bytes());
        bytes.extend(self.amount.to_le_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// The payload as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// A link to a daemon that takes the test for another daemon: without a key, on loopback, any
/// process may connect.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
}

impl Peer {
    /// Connects and sends HELLO, with these features.
    ///
    /// # Panics
    /// If the daemon sends no HELLO.
    pub fn connect(address: SocketAddr, features: u32) -> Peer {
        Peer::try_connect(address, features).expect("the daemon greets")
    }

    /// Connects and sends HELLO; `None` if the daemon hangs up instead of answering.
    ///
    /// # Panics
    /// If the daemon doesn't listen, or neither answers nor hangs up.
    pub fn try_connect(address: SocketAddr, features: u32) -> Option<Peer> {
        Peer::try_connect_as(address, features, "impostor")
    }

    /// Like [`try_connect`](Peer::try_connect), as a daemon with this name.
    ///
    /// # Panics
    /// Like there.
    pub fn try_connect_as(address: SocketAddr, features: u32, name: &str) -> Option<Peer> {
        let stream = TcpStream::connect(address).expect("the daemon listens");
        Peer::greet(stream, features, name)
    }

    /// Accepts a dialling daemon's link.
    ///
    /// # Panics
    /// If none dials.
    pub fn accept(listener: &TcpListener, features: u32) -> Peer {
        let (stream, _) = listener.accept().expect("the daemon dials");
        Peer::greet(stream, features, "impostor").expect("the daemon greets")
    }

    fn greet(stream: TcpStream, features: u32, name: &str) -> Option<Peer> {
        stream
            .set_read_timeout(Some(SOON))
            .expect("a socket has timeouts");
        let mut peer = Peer { stream };
        let mut hello = b"TOLLGATE".to_vec();
        hello.extend([1, 0, 1, 0]);
        hello.extend(features.to_le_bytes());
        hello.extend([0x5a; 32]);
        hello.extend((64u64 << 20).to_le_bytes());
        hello.extend(1_000u32.to_le_bytes());
        hello.extend([0, name.len() as u8, 0, 0]);
        hello.extend(name.as_bytes());
        peer.send(&Frame {
            kind: kind::HELLO,
            payload: hello,
            ..Frame::default()
        });
        let theirs = peer.receive()?;
        assert_eq!(theirs.kind, kind::HELLO, "{theirs:?}");
        Some(peer)
    }

    /// Sends a frame; ignored if the daemon has hung up.
    pub fn send(&mut self, frame: &Frame) {
        let _hung_up = self.stream.write_all(&frame.encode());
    }

    /// Binds a service whose schema has this hash.
    pub fn bind(&mut self, bind: u32, tenant: &str, service: &str, hash: [u8; 32]) {
        let mut payload = hash.to_vec();
        payload.extend((tenant.len() as u16).to_le_bytes());
        payload.extend((service.len() as u16).to_le_bytes());
        payload.extend(tenant.as_bytes());
        payload.extend(service.as_bytes());
        self.send(&Frame {
            kind: kind::BIND,
            bind,
            payload,
            ..Frame::default()
        });
    }

    /// The next frame, except those for credit and liveness; `None` once the daemon has hung up.
    ///
    /// # Panics
    /// If it does neither in time.
    pub fn receive(&mut self) -> Option<Frame> {
        const CREDIT_AND_LIFE: std::ops::RangeInclusive<u8> = 10..=12;
        loop {
            let frame = self.any_frame()?;
            if !CREDIT_AND_LIFE.contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    fn any_frame(&mut self) -> Option<Frame> {
        let mut header = [0; 32];
        if let Err(error) = self.stream.read_exact(&mut header) {
            assert!(
                error.kind() != std::io::ErrorKind::WouldBlock,
                "the daemon neither answers nor hangs up"
            );
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight"));
        let mut payload = vec![0; u32_at(0) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some(Frame {
            kind: header[4],
            flags: header[5],
            method: u16::from_le_bytes([header[6], header[7]]),
            call: u64_at(8),
            bind: u32_at(16),
            aux: u32_at(20),
            amount: u64_at(24),
            payload,
        })
    }

    /// Whether the daemon sends nothing for a while.
    pub fn is_quiet(&mut self, timeout: Duration) -> bool {
        self.stream
            .set_read_timeout(Some(timeout))
            .expect("a socket has timeouts");
        let mut byte = [0];
        let quiet = self
            .stream
            .peek(&mut byte)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        self.stream
            .set_read_timeout(Some(SOON))
            .expect("a socket has timeouts");
        quiet
    }
}
