//! What a link is told before it starts: who it is, what it shares, what it grants.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::limits;

/// Which end of the connection this is. The roles differ only in the handshake: who says whom it means to reach, and who proves itself first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end connected.
    Initiator,
    /// This end accepted.
    Responder,
}

/// A key that both daemons were configured with. It never leaves the daemon; only proofs of it do.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Vec<u8>);

impl PresharedKey {
    /// Takes the configured secret as it is (no decoding, no trimming).
    ///
    /// # Errors
    /// [`ConfigError::KeyLength`] if it is shorter than [`limits::MIN_KEY`] or longer than [`limits::MAX_KEY`] bytes; [`ConfigError::KeyWeak`] if it
    /// is among those that are guessed first.
    pub fn new(secret: &[u8]) -> Result<PresharedKey, ConfigError> {
        if !(limits::MIN_KEY..=limits::MAX_KEY).contains(&secret.len()) {
            return Err(ConfigError::KeyLength { len: secret.len() });
        }
        match weakness(secret) {
            Some(why) => Err(ConfigError::KeyWeak { why }),
            None => Ok(PresharedKey(secret.to_vec())),
        }
    }

    /// Whatever it is: for tests, whose keys protect nothing.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_a_test(secret: &[u8]) -> PresharedKey {
        PresharedKey(secret.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Why a key is guessed soon, if it is. A proof can be attacked offline by whoever saw it, so a key has to be random: bytes, or as text hexadecimal
/// digits or base64. Any other text is a person's, and is guessed.
fn weakness(secret: &[u8]) -> Option<&'static str> {
    if let Some(why) = pattern(secret) {
        return Some(why);
    }
    let text = std::str::from_utf8(secret).ok()?;
    if text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    // As `openssl rand -base64 64` breaks its lines.
    let digits: Vec<u8> = secret
        .iter()
        .copied()
        .filter(|c| !matches!(c, b'\r' | b'\n'))
        .collect();
    let (decoded, is_base64) = match from_hex(&digits) {
        Some(decoded) => (decoded, false),
        None => match from_base64(&digits) {
            Some(decoded) => (decoded, true),
            None => return Some("it is text, and neither hexadecimal digits nor base64"),
        },
    };
    let changes = digits
        .windows(2)
        .filter(|pair| class(pair[0]) != class(pair[1]));
    match () {
        () if decoded.len() < limits::MIN_KEY => {
            Some("as hexadecimal digits or base64 it has too few bytes")
        }
        () if digits.iter().all(u8::is_ascii_digit) => Some("it is a number"),
        () if counts_for_long(&digits) => Some("it counts"),
        // Of random base64 two of three neighbours differ so; of words hardly any.
        () if is_base64 && changes.count() * 4 < digits.len() => Some("it consists of words"),
        () => pattern(&decoded),
    }
}

/// Capital, small letter, or neither.
fn class(c: u8) -> (bool, bool) {
    (c.is_ascii_uppercase(), c.is_ascii_lowercase())
}

/// What is wrong with bytes, whatever they mean.
fn pattern(bytes: &[u8]) -> Option<&'static str> {
    let mut seen = [false; 256];
    bytes
        .iter()
        .for_each(|byte| seen[usize::from(*byte)] = true);
    let variety = seen.iter().filter(|seen| **seen).count();
    let repeats = |period: usize| bytes[period..] == bytes[..bytes.len() - period];
    let mut steps = bytes.windows(2).map(step);
    let first = steps.next();
    match () {
        () if variety < limits::MIN_KEY_VARIETY => Some("it has hardly any different bytes"),
        () if (1..=bytes.len() / 2).any(repeats) => Some("it repeats a few bytes"),
        () if steps.all(|step| Some(step) == first) => Some("it only counts"),
        () => None,
    }
}

fn step(pair: &[u8]) -> u8 {
    pair[1].wrapping_sub(pair[0])
}

/// Whether so many characters in a row count up, count down or are the same: `01234567`, `hgfedcba`.
fn counts_for_long(text: &[u8]) -> bool {
    const STEPS: usize = 7;
    let steps: Vec<u8> = text.windows(2).map(step).collect();
    let is_run = |steps: &[u8]| {
        matches!(steps[0], 0 | 1 | u8::MAX) && steps.iter().all(|step| *step == steps[0])
    };
    steps.windows(STEPS).any(is_run)
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    let byte = |pair: &[u8; 2]| u8::try_from((digit(pair[0])? << 4) | digit(pair[1])?).ok();
    pairs.iter().map(byte).collect()
}

/// Of either alphabet of RFC 4648, with padding or without.
fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|c| **c == b'=').count();
    let digits = &text[..text.len() - padding];
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut have) = (0_u32, 0);
    for &c in digits {
        bits = (bits << 6) | u32::from(value(c)?);
        have += 6;
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
            bits &= (1 << have) - 1;
        }
    }
    Some(bytes)
}

/// Never prints the key.
impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// What every link of one daemon has in common.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// This daemon's name, told to every peer: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// The key that peers must prove. Without one, no peer is accepted or dialled, because anybody who reaches the port could speak for any tenant.
    pub key: Option<PresharedKey>,
    /// Without a key, loopback peers are accepted and dialled all the same: everybody on this host is trusted.
    pub unauthenticated_loopback: bool,
    /// Frames of links with a key go without tags, and messages from where they lie, if the peer wants that, too. For networks that nobody but
    /// daemons reaches.
    pub unprotected: bool,
    /// Names by which peers may mean this daemon beside `name`: a host, which goes with the port that it listens at, or `host:port`.
    pub names: Arc<[String]>,
    /// Whether a peer has to mean one of these, or an address: that it has dialled the address at which its connection arrives isn't enough.
    pub only_names: bool,
    /// Tells this daemon from all others, and from itself before a restart: random.
    pub instance: [u8; 16],
    /// Calls that a peer may have unanswered. More hides longer round trips and holds more memory here.
    pub window_calls: u32,
    /// Bytes of calls that a peer may have unanswered; at least twice [`limits::MAX_MESSAGE`], else the largest
    /// message could wait for ever.
    pub window_bytes: u64,
}

impl LinkConfig {
    /// The defaults for a daemon of this name, without a key.
    ///
    /// # Panics
    /// If the kernel has no random bytes, which it always has.
    pub fn new(name: impl Into<String>) -> LinkConfig {
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).expect("the kernel has random bytes");
        LinkConfig {
            name: name.into(),
            key: None,
            unauthenticated_loopback: false,
            unprotected: false,
            names: Arc::default(),
            only_names: false,
            instance,
            window_calls: limits::WINDOW_CALLS,
            window_bytes: limits::WINDOW_BYTES,
        }
    }

    /// Checks every field against its documented range.
    ///
    /// # Errors
    /// The first field that is out of range, with its value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !valid_name(&self.name) {
            return Err(ConfigError::Name {
                name: self.name.clone(),
            });
        }
        check_window(self.window_calls, self.window_bytes)
    }
}

/// Whether a peer may have so many calls unanswered, of so many bytes.
pub(crate) fn check_window(calls: u32, bytes: u64) -> Result<(), ConfigError> {
    if !(1..=limits::MAX_WINDOW_CALLS).contains(&calls) {
        return Err(ConfigError::WindowCalls { calls });
    }
    if !(limits::MIN_WINDOW_BYTES..=limits::MAX_WINDOW_BYTES).contains(&bytes) {
        return Err(ConfigError::WindowBytes { bytes });
    }
    Ok(())
}

/// Whether a daemon may be called this: names travel into logs and metrics, so they are kept plain.
pub(crate) fn valid_name(name: &str) -> bool {
    (1..=limits::MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Whether a host's name is that of this host only. Every host calls itself `localhost` and the like, so a peer that means another one says that, too.
pub fn names_one_host(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let is_loopback = |name: &str| {
        matches!(
            name,
            "localhost" | "loopback" | "ip6-localhost" | "ip6-loopback"
        )
    };
    let first = host.split('.').next().unwrap_or_default();
    let last = host.rsplit('.').next().unwrap_or_default();
    !host.is_empty() && !is_loopback(first) && !is_loopback(last)
}

/// The operator's configuration can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key of this length.
    #[error(
        "the pre-shared key has {len} bytes; use {} to {}",
        limits::MIN_KEY,
        limits::MAX_KEY
    )]
    KeyLength {
        /// Its length, bytes.
        len: usize,
    },
    /// A key that is soon guessed.
    #[error("the pre-shared key is soon guessed: {why}. Make one with `openssl rand -base64 32`")]
    KeyWeak {
        /// What is wrong with it; says nothing of what it is.
        why: &'static str,
    },
    /// A target that no HELLO can state.
    #[error("the target has {len} bytes; the limit is {}", limits::MAX_TARGET)]
    Target {
        /// Its length, bytes.
        len: usize,
    },
    /// A daemon name that can't be told to peers.
    #[error(
        "the daemon name {name:?} must be 1 to {} letters, digits, '.', '_' or '-'",
        limits::MAX_NAME
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A window of calls out of range.
    #[error("window_calls is {calls}; use 1 to {}", limits::MAX_WINDOW_CALLS)]
    WindowCalls {
        /// The configured value.
        calls: u32,
    },
    /// A window of bytes out of range.
    #[error(
        "window_bytes is {bytes}; use {} to {}",
        limits::MIN_WINDOW_BYTES,
        limits::MAX_WINDOW_BYTES
    )]
    WindowBytes {
        /// The configured value.
        bytes: u64,
    },
}

/// What one link needs beyond its daemon's [`LinkConfig`].
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// Which end this is.
    pub role: Role,
    /// Whether the peer's address is a loopback address.
    pub loopback: bool,
    /// Whom the initiator means to reach: `host:port`, as the operator or an application has named it. Of a responder: nothing.
    pub target: String,
    /// What the initiator has dialled, or where the connection arrived at the responder.
    pub address: SocketAddr,
    /// 32 random bytes, fresh for every link.
    pub nonce: [u8; 32],
    /// Now, on any monotonic clock, ns; the same clock as [`Link::tick`](crate::Link::tick).
    pub now_ns: u64,
}
