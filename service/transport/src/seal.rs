//! What proves that a frame is the peer's, whole and in its turn: the one place where a link's bytes are sealed and opened.
//!
//! After its AUTH, an end sends each frame with a tag behind the header, and the body of a large message with a tag of its own before it:
//!
//! ```text
//!   header | tag | payload                            a frame as a rule
//!   header | tag | metadata | body's tag | body       a message of more than SMALL_BODY bytes
//!   tag = HMAC-SHA256(key of this direction of this link, frames before this one u64 | what u8 | what it covers), the first 16 bytes
//! ```
//!
//! *What* is 0 of a whole frame: the tag covers header and payload. It is 1 of what comes before a large body: the tag covers header, metadata and
//! the body's tag. It is 2 of the body. So nothing of a frame is acted on before its tag was checked, and no byte of a body is used before
//! all of it was: a changed, repeated, dropped, reordered, injected or reflected frame ends the link, and so does one of another link.
//!
//! Deliberately absent: secrecy. TLS 1.3 is to take the place of this file, and of the proofs in `handshake.rs`.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a tag.
pub(crate) const TAG: usize = 16;

/// What a tag covers.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Whole = 0,
    Head = 1,
    Body = 2,
}

/// One direction of a link: its key, and how many frames there were.
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
    /// With this key, before the frame of this number.
    pub(crate) fn new(key: &[u8; 32], frames: u64) -> Seal {
        Seal {
            keyed: Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length"),
            frames,
        }
    }

    /// How many frames there were.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// The next frame is another one.
    pub(crate) fn advance(&mut self) {
        self.frames += 1;
    }

    /// What covers something of the next frame, once it has seen it.
    pub(crate) fn cover(&self, what: What) -> Cover {
        self.cover_at(what, self.frames)
    }

    /// The same of the frame before.
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

/// A tag in the making.
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

    /// Whether this is its tag, compared in constant time.
    pub(crate) fn is(self, tag: &[u8]) -> bool {
        tag.len() == TAG && self.0.verify_truncated_left(tag).is_ok()
    }
}
