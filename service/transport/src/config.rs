//! The configuration of a link: its identity, its key, and the credit that it grants.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::limits;

/// The end of the connection. The roles differ only in the handshake: the initiator states its
/// target, and the responder proves itself first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end connected.
    Initiator,
    /// This end accepted.
    Responder,
}

/// A key that both daemons are configured with. It never leaves the daemon; only proofs of it do.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Vec<u8>);

impl PresharedKey {
    /// Takes the configured secret unchanged (no decoding, no trimming).
    ///
    /// # Errors
    /// [`ConfigError::KeyLength`] if it is shorter than [`limits::MIN_KEY`] or longer than
    /// [`limits::MAX_KEY`] bytes; [`ConfigError::KeyWeak`] if it is easy to guess.
    pub fn new(secret: &[u8]) -> Result<PresharedKey, ConfigError> {
        if !(limits::MIN_KEY..=limits::MAX_KEY).contains(&secret.len()) {
            return Err(ConfigError::KeyLength { len: secret.len() });
        }
        match weakness(secret) {
            Some(why) => Err(ConfigError::KeyWeak { why }),
            None => Ok(PresharedKey(secret.to_vec())),
        }
    }

    /// Takes any secret, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_a_test(secret: &[u8]) -> PresharedKey {
        PresharedKey(secret.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The reason why a key is easy to guess, if it is. An observer of a proof can attack it offline,
/// so a key must be random: bytes, or hexadecimal digits or base64 as text. Any other text is made
/// by a person and can be guessed.
fn weakness(secret: &[u8]) -> Option<&'static str> {
    if let Some(why) = pattern(secret) {
        return Some(why);
    }
    let text = std::str::from_utf8(secret).ok()?;
    if text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    // `openssl rand -base64 64` adds such line breaks.
    let digits: Vec<u8> = secret
        .iter()
        .copied()
        .filter(|c| !matches!(c, b'\r' | b'\n'))
        .collect();
    let (decoded, is_base64) = match from_hex(&digits) {
        Some(decoded) => (decoded, false),
        None => match from_base64(&digits) {
            Some(decoded) => (decoded, true),
            None => return Some("it is text, but neither hexadecimal digits nor base64"),
        },
    };
    let changes = digits
        .windows(2)
        .filter(|pair| class(pair[0]) != class(pair[1]));
    match () {
        () if decoded.len() < limits::MIN_KEY => {
            Some("as hexadecimal digits or base64 it has too few bytes")
        }
        () if digits.iter().all(u8::is_ascii_digit) => Some("it is a decimal number"),
        () if counts_for_long(&digits) => Some("it contains a sequence of consecutive characters"),
        // In random base64, 2 of 3 neighbours differ in class; in words hardly any do.
        () if is_base64 && changes.count() * 4 < digits.len() => Some("it consists of words"),
        () => pattern(&decoded),
    }
}

/// The class of a character: capital, small letter, or neither.
fn class(c: u8) -> (bool, bool) {
    (c.is_ascii_uppercase(), c.is_ascii_lowercase())
}

/// A weakness of the bytes themselves.
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

/// Whether enough consecutive characters count up, count down or are equal: `01234567`, `hgfedcba`.
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

/// Decodes either alphabet of RFC 4648, with or without padding.
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

/// The common configuration of a daemon's links.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// This daemon's name, which every peer learns: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// The key that peers must prove. Without a key no peer is accepted or dialled, because anybody
    /// with access to the port could speak for any tenant.
    pub key: Option<PresharedKey>,
    /// Accepts and dials loopback peers even without a key: every process on this host is trusted.
    pub unauthenticated_loopback: bool,
    /// Frames of links with a key carry no tags, and messages are sent from shared memory, if the
    /// peer is configured the same way. For networks that only daemons can reach.
    pub unprotected: bool,
    /// Further names of this daemon for its peers: a host, which is combined with the port of the
    /// listener, or `host:port`.
    pub names: Arc<[String]>,
    /// Whether a peer must name one of these, or an address. Otherwise it suffices that the peer
    /// dialled the address at which its connection arrived.
    pub only_names: bool,
    /// A random id of this daemon's process, which differs after a restart.
    pub instance: [u8; 16],
    /// The number of unanswered calls that a peer may have. A larger number hides longer round
    /// trips and uses more memory here.
    pub window_calls: u32,
    /// The bytes of unanswered calls that a peer may have; at least twice [`limits::MAX_MESSAGE`],
    /// otherwise the largest message could wait for ever.
    pub window_bytes: u64,
}

impl LinkConfig {
    /// The defaults for a daemon of this name, without a key.
    ///
    /// # Panics
    /// If the kernel returns no random bytes, which doesn't happen.
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

/// Checks a window of unanswered calls and their bytes.
pub(crate) fn check_window(calls: u32, bytes: u64) -> Result<(), ConfigError> {
    if !(1..=limits::MAX_WINDOW_CALLS).contains(&calls) {
        return Err(ConfigError::WindowCalls { calls });
    }
    if !(limits::MIN_WINDOW_BYTES..=limits::MAX_WINDOW_BYTES).contains(&bytes) {
        return Err(ConfigError::WindowBytes { bytes });
    }
    Ok(())
}

/// Whether a daemon may have this name: names appear in logs and metrics, so they are kept plain.
pub(crate) fn valid_name(name: &str) -> bool {
    (1..=limits::MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Whether a host name identifies one host. Every host calls itself `localhost` and the like, so a
/// peer that means another host uses that name, too.
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
    /// A key that is easy to guess.
    #[error("the pre-shared key is easy to guess: {why}. Make one with `openssl rand -base64 32`")]
    KeyWeak {
        /// The weakness; it doesn't reveal the key.
        why: &'static str,
    },
    /// A target that is too long for a HELLO.
    #[error("the target has {len} bytes; the limit is {}", limits::MAX_TARGET)]
    Target {
        /// Its length, bytes.
        len: usize,
    },
    /// An invalid daemon name.
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

/// The parameters of one link, in addition to the daemon's [`LinkConfig`].
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// Which end this is.
    pub role: Role,
    /// Whether the peer's address is a loopback address.
    pub loopback: bool,
    /// The initiator's target: `host:port`, as the operator or an application gave it. Empty for a
    /// responder.
    pub target: String,
    /// The address that the initiator dialled, or at which the connection arrived at the responder.
    pub address: SocketAddr,
    /// 32 random bytes, fresh for every link.
    pub nonce: [u8; 32],
    /// Now, on any monotonic clock, ns; the same clock as [`Link::tick`](crate::Link::tick).
    pub now_ns: u64,
}
