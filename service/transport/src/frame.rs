//! The wire format: one page.
//!
//! A link is a byte stream of frames in both directions. All integers are little-endian. A frame is
//! a 32-byte header and `len` bytes of payload:
//!
//! ```text
//!  0        4    5     6      8               16       20       24              32
//! +--------+----+-----+------+---------------+--------+--------+---------------+----------------
//! | len    |kind|flags|method| call          | bind   | aux    | amount        | payload ...
//! | u32    | u8 | u8  | u16  | u64           | u32    | u32    | u64           | len bytes
//! +--------+----+-----+------+---------------+--------+--------+---------------+----------------
//! ```
//!
//! | kind | | flags | method | call | bind | aux | amount | payload |
//! |---|---|---|---|---|---|---|---|---|
//! | 1 | HELLO | | | | | | | see below |
//! | 2 | AUTH | | | | | | | 32 bytes: HMAC-SHA256 |
//! | 3 | BIND | | | | id | | | schema hash \[32\], tenant length u16, service length u16, tenant, service |
//! | 4 | BOUND | | | | id | description length | | a piece of the server's schema description |
//! | 5 | REFUSED | | | | id | code | sentence length | sentence, then the refuser's schema description (may be empty) |
//! | 6 | CALL | E P M B | index | id | id | inline length | deadline | \[metadata,\] image, or protobuf |
//! | 7 | REPLY | E P M | | id | | inline length | | \[metadata,\] image, or protobuf |
//! | 8 | STATUS | E M | | id | | code | retry | \[metadata,\] text |
//! | 9 | CANCEL | | | id | | | | |
//! | 10 | CREDIT | | | | | calls | bytes | |
//! | 11 | PING | | | opaque | | | | |
//! | 12 | PONG | | | the PING's | | | | |
//! | 13 | GOAWAY | | | | | reason | | text |
//! | 14 | REQUEST | E P B | | id | | inline length | charge | image, or protobuf |
//! | 15 | RESPONSE | P M B | | id | | inline length | charge | \[metadata,\] image, or protobuf |
//! | 16 | REQUEST_CREDIT | | | id | | messages | bytes | |
//! | 17 | RESPONSE_CREDIT | | | id | | messages | bytes | |
//! | 18 | FEATURES | | | | | features | | |
//!
//! Blank columns must be zero. *Image* is the message's layout in the receiver's heap: the inline
//! part of the stated length, then each extent at the next multiple of 8. *Deadline* is the
//! remaining time in microseconds, 0 for none: the two hosts share no clock. *Retry* is the
//! recommended time until a retry in milliseconds, a u32, 0 if unknown. *Code* has gRPC's numbers;
//! *text* is UTF-8. *Charge* and the last two kinds are explained under Streams. Payloads have no
//! alignment guarantee.
//!
//! ```text
//! HELLO  0 magic "TOLLGATE" | 8 lowest version u16 | 10 highest version u16 | 12 features u32 | 16 nonce [32]
//!       48 granted bytes u64 | 56 granted calls u32 | 60 authentication u8 (0 none, 1 key) | 61 name length u8 | 62 zero u16
//!       64 name | with a key: instance [16] | flags u8 (1 unprotected) | address length u8 | target length u16 | address | target
//!       | later versions may append fields, which are skipped, but covered by AUTH
//! AUTH   HMAC-SHA256(secret, "proof of the initiator" or "proof of the responder")
//! secret HMAC-SHA256(key, "tollgate link 2" | len u32 | initiator's HELLO payload | len u32 | responder's HELLO payload)
//! ```
//!
//! Links without a key speak version 1, whose HELLO ends with the name. Links with a key speak
//! version 2. Its initiator states its *target* and the *address* that it dialled, both as text; a
//! responder's are empty. The responder proves itself first. After its AUTH, an end's frames carry
//! tags, unless both HELLOs say *unprotected*:
//!
//! ```text
//! header | tag [16] | payload                              an ordinary frame
//! header | tag [16] | metadata | tag [16] | body           a message of more than 64 KiB, not counting metadata; the second tag is the body's
//! tag    HMAC-SHA256(frames' key, frames before it u64 | what u8 (0 a whole frame, 1 the part before a body, 2 a body) | covered bytes), truncated
//!        it covers the header and the bytes after the tag, up to the end or up to the body
//! frames' key   HMAC-SHA256(secret, "frames of the initiator" or "frames of the responder")
//! ```
//!
//! The header's length is the payload's in any case; credit doesn't count tags.
//!
//! Flags: bit 0, **E**, END_STREAM: the last message of this direction of the call. Every CALL,
//! REPLY and STATUS must carry it, except a CALL that REQUESTs follow. Bit 1, TRACE, is reserved
//! for [`TRACE_ROOM`] bytes of W3C trace context (trace id \[16\], parent id \[8\], flags u8, zero
//! \[7\]) between header and payload. Bit 2, **M**, METADATA: the payload begins with a block of
//! pairs, see below. Bit 3, **P**, PROTOBUF: the message is its protobuf encoding, and the inline
//! length is zero. Bit 4, **B**, BARE: there is no message, not even an empty one; the payload is
//! the metadata with M, otherwise empty; the inline length is zero. Only a bare CALL may have P,
//! which then announces the form of the call's messages.
//!
//! Bits 1 to 3 become legal when both HELLOs offer the feature bit of the same position; this code
//! offers [`FEATURES`]. Feature bit 8 makes *retry* legal. Feature bit 9 enables streams: the kinds
//! 14 to 17, a CALL without E, B, M of a STATUS, and a STATUS of code 0. Feature bit 10 enables the
//! kind 18. An end ignores unknown feature bits, so each link uses the features that its two ends
//! offer: daemons of different versions work together in any order. A change of the wire format
//! needs its own bit, and a new version only if no bit can express it.
//!
//! An upgraded daemon keeps its links, and may then offer more features: FEATURES replaces the
//! sender's earlier offer, from that frame on. It must include all features that both ends offered,
//! so that no frame in flight becomes illegal. A daemon that can't offer them, because it predates
//! them, drops the link.
//!
//! # Metadata
//!
//! ```text
//! length u32 (1 to 8192) | block of that many bytes, canonical: see `tollgate_shm_abi::metadata` | image, protobuf, text or nothing
//! ```
//!
//! The whole block is part of the frame's payload, so it counts as bytes of credit; the message is
//! the rest, at most 16 MiB. A STATUS carries metadata, its trailers, if both ends offer streams
//! and metadata; a REQUEST never does. If the peer doesn't offer metadata, an end refuses a call
//! that has some, and drops the metadata of a reply or a status: a server may decide by its
//! request's metadata, but a handler that has run can't be undone.
//!
//! # Streams
//!
//! A call may have several messages, or none, in each direction:
//!
//! ```text
//! caller   CALL   REQUEST ...                                        the last with E; RESPONSE_CREDIT in between
//! server                 RESPONSE ...                STATUS or REPLY              REQUEST_CREDIT in between
//! ```
//! The CALL or REQUEST with E is the last. It may be bare: a caller that learns late that no more
//! requests follow sends a frame without a message. A CALL that opens a stream before its first
//! message may be bare, too, and so may a RESPONSE that carries metadata before the first message.
//! RESPONSEs don't answer the CALL: its one REPLY or STATUS still comes and ends the call, whether
//! or not its requests have ended; frames that the caller sends until then are ignored. A STATUS
//! ends the reply without a further message, with code 0 for success; a REPLY is both the last
//! message and success. CANCEL works as for every call.
//!
//! *Id* is the caller's number of the call, in both directions: the sender's own in CALL, REQUEST,
//! RESPONSE_CREDIT and CANCEL, the receiver's in REPLY, STATUS, RESPONSE and REQUEST_CREDIT.
//!
//! REQUESTs and RESPONSEs use no credit of the link: each direction of a stream has its own window.
//! A message uses *charge* bytes of it. After consuming *messages* with a total charge of *bytes*,
//! the receiver returns them: a server by REQUEST_CREDIT, a caller by RESPONSE_CREDIT. The three
//! are u32, and a credit is never zero. The link doesn't know the windows or the calls: it checks
//! each frame alone; for a RESPONSE it also checks that some call is unanswered.
//!
//! All messages of a call have P if and only if the CALL had it, bare or not: a server may send
//! first.
//!
//! # Schemas that differ
//!
//! A BIND states the hash of the caller's schema. If the server's schema has the same hash, BOUND
//! is empty and every method uses images. If not, and both ends offer PROTOBUF, BOUND carries the
//! server's schema description (otherwise REFUSED does, for the error message). The caller's end
//! then chooses for each method: images, if the method's messages have equal layouts; protobuf, if
//! they are compatible; otherwise the method can't be called. Each CALL has the method's index *in
//! the server's schema* and, in P, the form; its REPLY has P if and only if the CALL had it.
//!
//! A description over [`MAX_CONTROL`](crate::limits::MAX_CONTROL) bytes comes in several
//! consecutive BOUNDs of the same id, with no BOUND of another id in between. Each states the
//! length of the whole. The bind is complete with the last one.
//!
//! Rules beyond single frames: each end numbers the calls and binds that it originates; every CALL
//! is answered by exactly one REPLY or STATUS, even a cancelled one and a stream's; only CALLs use
//! the receiver's credit ([`Kind::CREDIT`] returns it); a PONG answers the latest PING. A frame
//! that breaks a rule ends the link.

use crate::limits::HEADER;

/// First bytes of every HELLO.
pub const MAGIC: [u8; 8] = *b"TOLLGATE";

/// The version on links without a key.
pub const VERSION: u16 = 1;

/// The only version on links with a key.
pub const KEYED_VERSION: u16 = 2;

/// END_STREAM: the last message of this direction of the call.
pub const FLAG_END_STREAM: u8 = 1;

/// Reserved: a block of trace context follows the header.
pub const FLAG_TRACE: u8 = 2;

/// The payload begins with metadata.
pub const FLAG_METADATA: u8 = 4;

/// The payload is protobuf.
pub const FLAG_PROTOBUF: u8 = 8;

/// There is no message; with [`FLAG_METADATA`], metadata alone.
pub const FLAG_BARE: u8 = 16;

/// A STATUS may recommend a time until a retry.
pub const FEATURE_RETRY: u32 = 1 << 8;

/// A call may have several messages, or none, in each direction.
pub const FEATURE_STREAMS: u32 = 1 << 9;

/// An end may offer more features while the link is open.
pub const FEATURE_RENEWAL: u32 = 1 << 10;

/// The features that this code offers in its HELLO. The lower bits match the frame flags that they
/// make legal.
pub const FEATURES: u32 =
    (FLAG_PROTOBUF | FLAG_METADATA) as u32 | FEATURE_RETRY | FEATURE_STREAMS | FEATURE_RENEWAL;

/// The features' names for operators.
pub fn feature_names(features: u32) -> impl Iterator<Item = &'static str> {
    const NAMES: [(u32, &str); 5] = [
        (FLAG_METADATA as u32, "metadata"),
        (FLAG_PROTOBUF as u32, "protobuf"),
        (FEATURE_RETRY, "retry"),
        (FEATURE_STREAMS, "streams"),
        (FEATURE_RENEWAL, "renewal"),
    ];
    let common = move |(bit, _): &(u32, &str)| features & bit != 0;
    NAMES.into_iter().filter(common).map(|(_, name)| name)
}

/// The bytes of trace context that [`FLAG_TRACE`] will announce.
pub const TRACE_ROOM: usize = 32;

/// The bytes before a frame's block of metadata.
pub(crate) const METADATA_FIXED: usize = 4;

/// The bytes of a frame's payload for a block of metadata; 0 if it is empty.
pub const fn metadata_room(len: usize) -> usize {
    if len == 0 { 0 } else { METADATA_FIXED + len }
}

/// The bytes of a BIND's payload before the names.
pub(crate) const BIND_FIXED: usize = 36;

/// The kind of a frame. A newtype, so that an unknown value can be reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(pub u8);

#[allow(
    missing_docs,
    reason = "the table in the file's documentation defines each"
)]
impl Kind {
    pub const HELLO: Kind = Kind(1);
    pub const AUTH: Kind = Kind(2);
    pub const BIND: Kind = Kind(3);
    pub const BOUND: Kind = Kind(4);
    pub const REFUSED: Kind = Kind(5);
    pub const CALL: Kind = Kind(6);
    pub const REPLY: Kind = Kind(7);
    pub const STATUS: Kind = Kind(8);
    pub const CANCEL: Kind = Kind(9);
    pub const CREDIT: Kind = Kind(10);
    pub const PING: Kind = Kind(11);
    pub const PONG: Kind = Kind(12);
    pub const GOAWAY: Kind = Kind(13);
    pub const REQUEST: Kind = Kind(14);
    pub const RESPONSE: Kind = Kind(15);
    pub const REQUEST_CREDIT: Kind = Kind(16);
    pub const RESPONSE_CREDIT: Kind = Kind(17);
    pub const FEATURES: Kind = Kind(18);
}

impl Kind {
    /// Whether a peer that offers these features may send this kind.
    pub(crate) fn is_known(self, features: u32) -> bool {
        match self {
            Kind::FEATURES => features & FEATURE_RENEWAL != 0,
            _ if self > Kind::GOAWAY => {
                self <= Kind::RESPONSE_CREDIT && features & FEATURE_STREAMS != 0
            }
            _ => self >= Kind::HELLO,
        }
    }

    /// Whether the payload is a message, as image or protobuf.
    pub(crate) fn has_message(self) -> bool {
        matches!(
            self,
            Kind::CALL | Kind::REPLY | Kind::REQUEST | Kind::RESPONSE
        )
    }
}

const NAMES: [&str; 19] = [
    "",
    "HELLO",
    "AUTH",
    "BIND",
    "BOUND",
    "REFUSED",
    "CALL",
    "REPLY",
    "STATUS",
    "CANCEL",
    "CREDIT",
    "PING",
    "PONG",
    "GOAWAY",
    "REQUEST",
    "RESPONSE",
    "REQUEST_CREDIT",
    "RESPONSE_CREDIT",
    "FEATURES",
];

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match NAMES.get(usize::from(self.0)) {
            Some(name) if self.0 != 0 => f.write_str(name),
            _ => write!(f, "kind {}", self.0),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// A header, with the wire's fields. Decoding accepts any bytes; `proto/receive.rs` validates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The bytes of payload that follow.
    pub len: u32,
    /// The frame's kind.
    pub kind: Kind,
    /// END_STREAM, the form of the payload, and reserved bits.
    pub flags: u8,
    /// CALL: index of the method in the binding's service.
    pub method: u16,
    /// The call, or a PING's opaque value.
    pub call: u64,
    /// The binding.
    pub bind: u32,
    /// Depends on the kind: inline length, length of a description, code, reason, calls or
    /// messages.
    pub aux: u32,
    /// Depends on the kind: deadline in microseconds, bytes of credit, charge, a message's length,
    /// or the time until a retry.
    pub amount: u64,
}

impl Header {
    /// A header of this kind with all other fields zero, except END_STREAM if the kind has it.
    pub fn new(kind: Kind) -> Header {
        let flags = match kind {
            Kind::CALL | Kind::REQUEST | Kind::REPLY | Kind::STATUS => FLAG_END_STREAM,
            _ => 0,
        };
        Header {
            len: 0,
            kind,
            flags,
            method: 0,
            call: 0,
            bind: 0,
            aux: 0,
            amount: 0,
        }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = self.kind.0;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.method.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.bind.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.aux.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.amount.to_le_bytes());
        bytes
    }

    /// Decodes a header without validation.
    pub fn decode(bytes: &[u8; HEADER]) -> Header {
        Header {
            len: u32_at(bytes, 0),
            kind: Kind(bytes[4]),
            flags: bytes[5],
            method: u16_at(bytes, 6),
            call: u64_at(bytes, 8),
            bind: u32_at(bytes, 16),
            aux: u32_at(bytes, 20),
            amount: u64_at(bytes, 24),
        }
    }

    /// Whether the payload is protobuf rather than an image.
    pub(crate) fn is_protobuf(&self) -> bool {
        self.flags & FLAG_PROTOBUF != 0
    }

    /// Whether the payload begins with metadata.
    pub(crate) fn has_metadata(&self) -> bool {
        self.flags & FLAG_METADATA != 0
    }

    /// Whether there is no message.
    pub(crate) fn is_bare(&self) -> bool {
        self.flags & FLAG_BARE != 0
    }

    /// Whether further messages of this direction of the call follow.
    pub(crate) fn more(&self) -> bool {
        self.flags & FLAG_END_STREAM == 0
    }

    /// The same header, with or without END_STREAM.
    pub(crate) fn with_more(self, more: bool) -> Header {
        let flags = if more {
            self.flags & !FLAG_END_STREAM
        } else {
            self.flags | FLAG_END_STREAM
        };
        Header { flags, ..self }
    }

    /// The first field that this kind must leave zero but that isn't, or an illegal flag;
    /// `features` are those that both ends offer.
    pub(crate) fn reserved(&self, features: u32) -> Option<&'static str> {
        let (required, choice) = self.legal_flags(features);
        let described = features & u32::from(FLAG_PROTOBUF) != 0;
        // Whether the kind uses method, call, bind, aux and amount.
        let [method, call, bind, aux, amount] = match self.kind {
            Kind::CALL => [true; 5],
            Kind::REPLY => [false, true, false, true, false],
            Kind::STATUS => [false, true, false, true, features & FEATURE_RETRY != 0],
            Kind::BIND => [false, false, true, false, false],
            Kind::BOUND => [false, false, true, described, false],
            Kind::REFUSED => [false, false, true, true, true],
            Kind::CANCEL | Kind::PING | Kind::PONG => [false, true, false, false, false],
            Kind::CREDIT => [false, false, false, true, true],
            Kind::GOAWAY | Kind::FEATURES => [false, false, false, true, false],
            Kind::REQUEST | Kind::RESPONSE | Kind::REQUEST_CREDIT | Kind::RESPONSE_CREDIT => {
                [false, true, false, true, true]
            }
            _ => [false; 5],
        };
        let aux = aux && !self.is_protobuf() && !self.is_bare();
        match () {
            () if self.flags & !choice != required => Some("flags"),
            () if self.is_protobuf() && self.is_bare() && self.kind != Kind::CALL => Some("flags"),
            () if !method && self.method != 0 => Some("method"),
            () if !call && self.call != 0 => Some("call"),
            () if !bind && self.bind != 0 => Some("bind"),
            () if !aux && self.aux != 0 => Some("aux"),
            () if !amount && self.amount != 0 => Some("amount"),
            () => None,
        }
    }

    /// The flags that this kind must have, and those that it may have.
    fn legal_flags(&self, features: u32) -> (u8, u8) {
        const E: u8 = FLAG_END_STREAM;
        let streams = features & FEATURE_STREAMS != 0;
        let metadata = features as u8 & FLAG_METADATA;
        let protobuf = features as u8 & FLAG_PROTOBUF;
        match self.kind {
            Kind::CALL if streams => (0, E | metadata | protobuf | FLAG_BARE),
            Kind::CALL | Kind::REPLY => (E, metadata | protobuf),
            Kind::STATUS if streams => (E, metadata),
            Kind::STATUS => (E, 0),
            Kind::REQUEST => (0, E | protobuf | FLAG_BARE),
            Kind::RESPONSE => (0, metadata | protobuf | FLAG_BARE),
            _ => (0, 0),
        }
    }
}

/// The offset of a large message's body in a whole payload; `None` if the message isn't large.
pub(crate) fn body_at(header: &Header, payload: &[u8]) -> Option<usize> {
    let at = match header.has_metadata() {
        true => metadata_room(u32_at(payload, 0) as usize),
        false => 0,
    };
    let is_large = || payload.len() - at > crate::limits::SMALL_BODY as usize;
    (header.kind.has_message() && is_large()).then_some(at)
}

/// The `u16` at `at`; the caller has checked the length.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The `u32` at `at`; the caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

/// The `u64` at `at`; the caller has checked the length.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        bytes[at..at + 8]
            .try_into()
            .expect("a slice of eight bytes"),
    )
}
