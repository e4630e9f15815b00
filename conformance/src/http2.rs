//! A client of HTTP/2 that does what a library wouldn't: headers without a body, bodies byte by
//! byte, answers that it doesn't read.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// What a client of HTTP/2 begins with: its preface and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A stream of bytes with a patience.
trait Wire: Read + Write + Send {
    fn set_patience(&self, patience: Duration) -> std::io::Result<()>;
}

impl Wire for TcpStream {
    fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

impl Wire for UnixStream {
    fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(patience))?;
        self.set_write_timeout(Some(patience))
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an answer that has a message.
    Answered,
    /// With a status alone.
    Refused,
    /// The server has reset it.
    Reset,
    /// The server has closed the connection.
    Closed,
    /// It hasn't, in the time that was given.
    NotYet,
}

/// A connection from another address of loopback.
///
/// # Panics
/// If nobody listens there, or this host hasn't got that address.
pub fn connect_from(from: Ipv4Addr, at: SocketAddr) -> TcpStream {
    let connected = || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        connect(&socket, &at)?;
        Ok::<_, rustix::io::Errno>(socket)
    };
    TcpStream::from(connected().expect("loopback has many addresses"))
}

/// A connection.
pub struct RawClient {
    wire: Box<dyn Wire>,
    /// The next request's stream.
    next: u32,
    read: Vec<u8>,
    /// Streams whose answer has begun, and how those ended that have.
    begun: HashSet<u32>,
    done: HashMap<u32, Ended>,
}

impl std::fmt::Debug for RawClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawClient(next {})", self.next)
    }
}

impl RawClient {
    /// Connects to a socket.
    ///
    /// # Panics
    /// If nobody listens there.
    pub fn to_socket(path: &Path) -> RawClient {
        RawClient::over(Box::new(UnixStream::connect(path).expect("it listens")))
    }

    /// Connects to an address without TLS.
    ///
    /// # Panics
    /// If nobody listens there.
    pub fn to_address(at: SocketAddr) -> RawClient {
        RawClient::over(Box::new(TcpStream::connect(at).expect("it listens")))
    }

    /// The same, from another address of loopback.
    ///
    /// # Panics
    /// If nobody listens there, or this host hasn't got that address.
    pub fn from_address(from: Ipv4Addr, at: SocketAddr) -> RawClient {
        RawClient::over(Box::new(connect_from(from, at)))
    }

    fn over(mut wire: Box<dyn Wire>) -> RawClient {
        // A connection that was refused is found out by its reader.
        let _refused = wire.write_all(PREFACE);
        RawClient {
            wire,
            next: 1,
            read: Vec::new(),
            begun: HashSet::new(),
            done: HashMap::new(),
        }
    }

    /// Sends the header of a request. Returns its stream, or `None` if the connection is closed.
    ///
    /// # Panics
    /// If the path or token is too long.
    pub fn header(&mut self, path: &str, token: Option<&str>) -> Option<u32> {
        // Indexed fields and literals of RFC 7541, without Huffman's code.
        let mut block = vec![0x83, 0x86];
        let mut literal = |name: &[u8], value: &str| {
            block.extend(name);
            block.push(u8::try_from(value.len()).ok().filter(|len| *len < 127)?);
            block.extend(value.as_bytes());
            Some(())
        };
        let fits = [
            literal(&[0x04], path),
            literal(&[0x01], "localhost"),
            literal(&[0x0f, 0x10], "application/grpc"),
            literal(&[0x00, 2, b't', b'e'], "trailers"),
            token.map_or(Some(()), |token| {
                literal(&[0x0f, 0x08], &format!("Bearer {token}"))
            }),
        ];
        assert!(fits.iter().all(Option::is_some), "{path} is too long");
        let stream = self.next;
        self.next += 2;
        self.frame(HEADERS, END_HEADERS, stream, &block)?;
        Some(stream)
    }

    /// Sends a part of a body. `None`: the connection is closed, or takes no more.
    pub fn body(&mut self, stream: u32, bytes: &[u8], is_last: bool) -> Option<()> {
        self.frame(DATA, u8::from(is_last) * END_STREAM, stream, bytes)
    }

    /// Asks the server for a sign of life, and reads nothing.
    pub fn ping(&mut self) -> Option<()> {
        self.frame(PING, 0, 0, &[7; 8])
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<()> {
        let mut frame = u32::try_from(payload.len()).ok()?.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.wire.write_all(&frame).ok()
    }

    /// Reads until a request has ended, or for a time. What else comes is answered or skipped.
    pub fn ended(&mut self, stream: u32, within: Duration) -> Ended {
        let end = Instant::now() + within;
        loop {
            while let Some((kind, flags, of, payload)) = self.next_frame() {
                let is_last = flags & END_STREAM != 0;
                match kind {
                    SETTINGS if flags & ACK == 0 => drop(self.frame(SETTINGS, ACK, 0, &[])),
                    PING if flags & ACK == 0 => drop(self.frame(PING, ACK, 0, &payload)),
                    RESET => drop(self.done.entry(of).or_insert(Ended::Reset)),
                    HEADERS | DATA if is_last => {
                        let ended = match self.begun.contains(&of) {
                            true => Ended::Answered,
                            false => Ended::Refused,
                        };
                        self.done.insert(of, ended);
                    }
                    HEADERS | DATA => drop(self.begun.insert(of)),
                    _ => {}
                }
            }
            if let Some(ended) = self.done.remove(&stream) {
                return ended;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ended::NotYet;
            }
            if self.wire.set_patience(left).is_err() {
                return Ended::Closed;
            }
            let mut more = [0; 16 << 10];
            match self.wire.read(&mut more) {
                Ok(0) => return Ended::Closed,
                Ok(read) => self.read.extend(&more[..read]),
                Err(error) if is_patience(&error) => return Ended::NotYet,
                Err(_) => return Ended::Closed,
            }
        }
    }

    /// How long it takes until the server closes the connection; at most `within`.
    pub fn closes(&mut self, within: Duration) -> Option<Duration> {
        let began = Instant::now();
        // No request has this stream.
        (self.ended(u32::MAX >> 1, within) == Ended::Closed).then(|| began.elapsed())
    }

    /// Kind, flags, stream and payload of the next frame, if it is there.
    fn next_frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let head: [u8; 9] = self.read.get(..9)?.try_into().ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = self.read.get(9..9 + len)?.to_vec();
        self.read.drain(..9 + len);
        Some((kind, flags, u32::from_be_bytes(stream), payload))
    }
}

fn is_patience(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}

/// A message of gRPC without compression.
///
/// # Panics
/// If it has more than 4 GiB.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("messages are small");
    [&[0][..], &len.to_be_bytes(), bytes].concat()
}
