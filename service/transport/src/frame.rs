//! The wire format: one page.
//!
//! A link is a byte stream of frames in both directions. All integers are little-endian. A frame is a 32-byte header and
//! `len` bytes of payload:
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
//! Blank columns must be zero. *Image* is a message as the receiver's heap will hold it: the inline part of the stated
//! length, then each extent at the next multiple of 8. *Deadline* is what remains of it in microseconds, 0 for none: the
//! two hosts share no clock. *Retry* is after how many milliseconds it makes sense to try again, a u32, 0 if that is unknown.
//! *Code* has gRPC's numbers; *text* is UTF-8. *Charge* and the last two kinds are explained under Streams. Payloads have no
//! promised alignment.
//!
//! ```text
//! HELLO  0 magic "TOLLGATE" | 8 lowest version u16 | 10 highest version u16 | 12 features u32 | 16 nonce [32]
//!       48 granted bytes u64 | 56 granted calls u32 | 60 authentication u8 (0 none, 1 key) | 61 name length u8 | 62 zero u16
//!       64 name | with a key: instance [16] | flags u8 (1 unprotected) | address length u8 | target length u16 | address | target
//!       | whatever later versions append is skipped, but is part of what AUTH proves
//! AUTH   HMAC-SHA256(secret, "proof of the initiator" or "proof of the responder")
//! secret HMAC-SHA256(key, "tollgate link 2" | len u32 | initiator's HELLO payload | len u32 | responder's HELLO payload)
//! ```
//!
//! Links without a key speak version 1, whose HELLO ends with the name. Links with one speak version 2. Its initiator states the *target* that it
//! means to reach and the *address* that it has dialled, both as text; a responder's are empty. The responder is the first to prove itself. What
//! follows an end's AUTH goes with tags, unless both HELLOs say *unprotected*:
//!
//! ```text
//! header | tag [16] | payload                              a frame as a rule
//! header | tag [16] | metadata | tag [16] | body           a message of more than 64 KiB beside its metadata; the second tag is the body's
//! tag    HMAC-SHA256(frames' key, frames before it u64 | what u8 (0 a whole frame, 1 what is before a body, 2 a body) | what it covers), cut
//!        it covers the header and what is behind itself up to the end, or up to the body
//! frames' key   HMAC-SHA256(secret, "frames of the initiator" or "frames of the responder")
//! ```
//!
//! The header's length is the payload's in any case; credit counts no tags.
//!
//! Flags: bit 0, **E**, END_STREAM: the last message of this direction of the call. Every CALL, REPLY and STATUS must carry it,
//! but for a CALL that REQUESTs follow. Bit 1, TRACE, is reserved for [`TRACE_ROOM`] bytes of W3C trace context
//! (trace id \[16\], parent id \[8\], flags u8, zero \[7\]) between header and payload. Bit 2, **M**, METADATA: the payload begins
//! with a block of pairs, see below. Bit 3, **P**, PROTOBUF: the message is its protobuf encoding, and the inline length is zero.
//! Bit 4, **B**, BARE: there is no message, not even an empty one; the payload is the metadata, if there is M, or empty, the inline
//! length is zero, and there is no P but of a CALL, where it says which form the call's messages will have.
//!
//! Bits 1 to 3 become legal when both HELLOs offer the feature bit of the same position; this code offers [`FEATURES`]. Feature bit
//! 8 makes *retry* legal, feature bit 9 streams: the kinds 14 to 17, a CALL without E, B, M of a STATUS, and a STATUS of code 0; feature bit
//! 10 the kind 18.
//! A bit that an end doesn't know means nothing to it, so a link goes by what both offer, and each link by its own: daemons of different
//! ages meet in any order. What changes on the wire takes a bit of its own, and a version only if no bit can express it.
//!
//! A daemon that is upgraded goes on with its links, and what it offers may be more then: FEATURES replaces what the sender has offered so
//! far, from that frame on. What both offer stays among it, so that nothing on its way becomes illegal. A daemon that can't say that,
//! because it knows less, doesn't go on with the link.
//!
//! # Metadata
//!
//! ```text
//! length u32 (1 to 8192) | block of that many bytes, canonical: see `tollgate_shm_abi::metadata` | image, protobuf, text or nothing
//! ```
//!
//! All of it is the frame's payload, so it counts as bytes of credit; the message is what remains, at most 16 MiB. A STATUS
//! carries some, the trailers, if both ends offer streams and metadata; a REQUEST never does. An end that can't send
//! metadata, because its peer doesn't offer the feature, refuses the call and drops a reply's or a status's: a server may decide
//! by its request's metadata, but a handler that has run can't be undone.
//!
//! # Streams
//!
//! A call may have several messages, or none, in each direction:
//!
//! ```text
//! caller   CALL   REQUEST ...                                        the last with E; RESPONSE_CREDIT in between
//! server                 RESPONSE ...                STATUS or REPLY              REQUEST_CREDIT in between
//! ```
//!
//! The CALL or REQUEST that has E is the last. It may be bare: who learns late that nothing more comes says so in a frame of
//! its own. So may be a CALL that opens a stream before its first message, and a RESPONSE that brings metadata before its
//! first message. RESPONSEs don't answer the CALL: its one REPLY or STATUS still comes, and with it the call is over, whether or not
//! its requests have ended; what the caller sends until it knows means nothing. A STATUS ends the reply without a further
//! message, with code 0 if all is well; a REPLY is the last message and a good end at once. CANCEL is as for every call.
//!
//! *Id* is the number that the caller gave the call, in both directions: the sender's own in CALL, REQUEST, RESPONSE_CREDIT and
//! CANCEL, the receiver's in REPLY, STATUS, RESPONSE and REQUEST_CREDIT.
//!
//! REQUESTs and RESPONSEs use up no credit of the link: each direction of a stream has a window of its own. A message takes
//! *charge* bytes of it. Who has consumed *messages*, charged *bytes* together, gives them back: by REQUEST_CREDIT if it serves
//! the call, by RESPONSE_CREDIT if it called. The three are u32, and a credit gives something back. The windows themselves are
//! beyond the link, and so is which calls there are: it judges each frame alone, a RESPONSE also by whether any call is
//! unanswered at all.
//!
//! All messages of a call have P if and only if the CALL had it, bare or not: a server may speak first.
//!
//! # Schemas that differ
//!
//! A BIND states the hash of the caller's schema. If the server's has the same, BOUND is empty and every method travels as an
//! image. If not, and both ends offer PROTOBUF, BOUND brings the server's schema description (otherwise REFUSED does, for
//! the sentence). The caller's end then decides for each of its methods: as an image, if that method's messages have equal
//! layouts; as protobuf, if they are compatible; not at all. Each CALL says the method's index *in the server's schema* and,
//! by P, which of the two it is; its REPLY has P if and only if the CALL had it.
//!
//! A description over [`MAX_CONTROL`](crate::limits::MAX_CONTROL) bytes comes in several BOUNDs of the same id, one after the
//! other with no BOUND of another id in between, each with the length of the whole; the bind stands when all have come.
//!
//! Rules that a frame can't show: each end numbers the calls and binds that it originates; every CALL is answered by exactly
//! one REPLY or STATUS, a cancelled one and a stream's too; CALLs use up the receiver's credit ([`Kind::CREDIT`] returns it),
//! nothing else does; a PONG answers the latest PING. A frame that breaks a rule ends the link.

use crate::limits::HEADER;

/// First bytes of every HELLO.
pub const MAGIC: [u8; 8] = *b"TOLLGATE";

/// The version that this code speaks on links without a key.
pub const VERSION: u16 = 1;

/// The version that it speaks on links with a key, and the only one there.
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

/// A STATUS may say when to try again.
pub const FEATURE_RETRY: u32 = 1 << 8;

/// A call may have several messages, or none, in each direction.
pub const FEATURE_STREAMS: u32 = 1 << 9;

/// What an end offers may become more while the link stands.
pub const FEATURE_RENEWAL: u32 = 1 << 10;

/// What this code offers in its HELLO. The lower bits are those of the frame flags that they make legal.
pub const FEATURES: u32 =
    (FLAG_PROTOBUF | FLAG_METADATA) as u32 | FEATURE_RETRY | FEATURE_STREAMS | FEATURE_RENEWAL;

/// What the features of a link are called where an operator reads them, one after the other.
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

/// Bytes of trace context that [`FLAG_TRACE`] will announce.
pub const TRACE_ROOM: usize = 32;

/// Bytes before a frame's block of metadata.
pub(crate) const METADATA_FIXED: usize = 4;

/// Bytes of a frame's payload that a block of metadata takes; none if there is none.
pub const fn metadata_room(len: usize) -> usize {
    if len == 0 { 0 } else { METADATA_FIXED + len }
}

/// Bytes of a BIND's payload before the names.
pub(crate) const BIND_FIXED: usize = 36;

/// What a frame is. A newtype, so that an unknown value can be reported as it is.
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
    /// Whether a peer that offers these features may send such frames.
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

/// A header, fields as on the wire. Decoding is total; `proto/receive.rs` is where a peer's claims are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload that follow.
    pub len: u32,
    /// What the frame is.
    pub kind: Kind,
    /// END_STREAM, what the payload is, and reserved bits.
    pub flags: u8,
    /// CALL: index of the method in the binding's service.
    pub method: u16,
    /// The call, or a PING's opaque value.
    pub call: u64,
    /// The binding.
    pub bind: u32,
    /// Inline length, length of a description, code, reason, calls or messages, by kind.
    pub aux: u32,
    /// Deadline in microseconds, bytes of credit, charge, a sentence's length, or when to try again, by kind.
    pub amount: u64,
}

impl Header {
    /// A header of this kind with every other field zero, but END_STREAM if the kind has it.
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

    /// Reads a header; believes nothing.
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

    /// The same header, saying whether further messages follow.
    pub(crate) fn with_more(self, more: bool) -> Header {
        let flags = if more {
            self.flags & !FLAG_END_STREAM
        } else {
            self.flags | FLAG_END_STREAM
        };
        Header { flags, ..self }
    }

    /// The first field that this kind must leave zero but that isn't, or a flag that isn't legal; `features` are those that
    /// both ends offer.
    pub(crate) fn reserved(&self, features: u32) -> Option<&'static str> {
        let (required, choice) = self.legal_flags(features);
        let described = features & u32::from(FLAG_PROTOBUF) != 0;
        // method, call, bind, aux, amount: which of them the kind uses.
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

/// Where the body of a large message begins in a payload that is whole; `None` if it is none.
pub(crate) fn body_at(header: &Header, payload: &[u8]) -> Option<usize> {
    let at = match header.has_metadata() {
        true => metadata_room(u32_at(payload, 0) as usize),
        false => 0,
    };
    let is_large = || payload.len() - at > crate::limits::SMALL_BODY as usize;
    (header.kind.has_message() && is_large()).then_some(at)
}

/// The `u16` at `at`; the caller has checked that it is there.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The `u32` at `at`; the caller has checked that it is there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

/// The `u64` at `at`; the caller has checked that it is there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        bytes[at..at + 8]
            .try_into()
            .expect("a slice of eight bytes"),
    )
}
