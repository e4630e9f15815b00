//! Tags that authenticate frames and their order: the only place where a link's bytes are sealed
//! and opened.
//!
//! After its AUTH, an end sends each frame with a tag after the header. The body of a large message
//! has its own tag before it:
//!
//! ```text
//!   header | tag | payload                            an ordinary frame
//!   header | tag | metadata | body's tag | body       a message of more than SMALL_BODY bytes
//!   tag = HMAC-SHA256(key of this direction of this link, frames before this one u64 | what u8 | covered bytes), the first 16 bytes
//! ```
//!
//! *What* is 0 for a whole frame: the tag covers header and payload. It is 1 for the part before a
//! large body: the tag covers header, metadata and the body's tag. It is 2 for the body. So no part
//! of a frame is used before its tag was checked, and no byte of a body before all of the body was
//! checked: a changed, repeated, dropped, reordered, injected or reflected frame ends the link, and
//! so does one from another link.
//!
//! Deliberately absent: secrecy. TLS 1.3 is planned to replace this file and the proofs in
//! `handshake.rs`.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The bytes of a tag.
pub(crate) const TAG: usize = 16;

/// The covered part.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Whole = 0,
    Head = 1,
    Body = 2,
}

/// One direction of a link: its key and the number of its frames.
#[derive(Clone)]
pub(crate) struct Seal {
    keyed: Hmac<Sha256>,
    frames: u64,
}

/// Never prints the key.
impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seal({} frames)", self.frames)
    }
}

impl Seal {
    /// A seal with this key, before the frame with this number.
    pub(crate) fn new(key: &[u8; 32], frames: u64) -> Seal {
        Seal {
            keyed: Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length"),
            frames,
        }
    }

    /// The number of frames so far.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Moves on to the next frame.
    pub(crate) fn advance(&mut self) {
        self.frames += 1;
    }

    /// The cover of a part of the next frame, before any bytes.
    pub(crate) fn cover(&self, what: What) -> Cover {
        self.cover_at(what, self.frames)
    }

    /// The same for the previous frame.
    pub(crate) fn cover_of_last(&self, what: What) -> Cover {
        self.cover_at(what, self.frames.wrapping_sub(1))
    }

    fn cover_at(&self, what: What, number: u64) -> Cover {
        let mut mac = self.keyed.clone();
        mac.update(&number.to_le_bytes());
        mac.update(&[what as u8]);
        Cover(mac)
    }
}

/// An unfinished tag.
#[derive(Clone)]
pub(crate) struct Cover(Hmac<Sha256>);

impl Cover {
    pub(crate) fn of(mut self, pieces: &[&[u8]]) -> Cover {
        pieces.iter().for_each(|piece| self.see(piece));
        self
    }

    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn tag(self) -> [u8; TAG] {
        let whole = self.0.finalize().into_bytes();
        *whole.first_chunk().expect("SHA-256 has 32 bytes")
    }

    /// Compares with a tag, in constant time.
    pub(crate) fn is(self, tag: &[u8]) -> bool {
        tag.len() == TAG && self.0.verify_truncated_left(tag).is_ok()
    }
}
