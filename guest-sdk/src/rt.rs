//! What the exports do: bytes in the buffer to calls, verdicts to bytes. Used by [`crate::policy!`], not by authors.
//!
//! ```text
//!   buffer: | entry 0 | entry 1 | ... | views ...      entry, 32 bytes:
//!             view_off view_len method verdict status msg_off msg_len zero
//! ```
//!
//! Messages are collected in an arena of their own, which lives until the next judgement: the host reads them
//! after the function has returned.

use crate::call::word;
use crate::{Call, Policy, Verdict};

const ENTRY_BYTES: usize = 32;
const VERDICT_AT: usize = 12;

/// Bytes of a message that the host reads.
const MESSAGE_BYTES: usize = 1024;

/// A policy and its buffer.
#[derive(Debug)]
pub struct Runtime<P> {
    policy: Option<P>,
    /// Room for the buffer and for aligning it.
    room: Vec<u8>,
    /// Where in `room` the buffer begins.
    begin: usize,
    messages: Vec<u8>,
}

impl<P> Default for Runtime<P> {
    fn default() -> Runtime<P> {
        Runtime::new()
    }
}

impl<P> Runtime<P> {
    /// Nothing yet: the host asks for a buffer first, then configures.
    pub const fn new() -> Runtime<P> {
        Runtime {
            policy: None,
            room: Vec::new(),
            begin: 0,
            messages: Vec::new(),
        }
    }

    /// The buffer's bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.begin..]
    }
}

impl<P: Policy> Runtime<P> {
    /// `tollgate_buffer`.
    pub fn buffer(&mut self, min_len: u32) -> u32 {
        // The old one goes first, so that both needn't fit into memory.
        self.room = Vec::new();
        self.room = vec![0; min_len as usize + 8];
        self.begin = self.room.as_ptr().align_offset(8);
        address(self.bytes_mut())
    }

    /// `tollgate_configure`.
    pub fn configure(&mut self, len: u32) -> u32 {
        match P::configure(&self.bytes_mut()[..len as usize]) {
            Ok(policy) => {
                self.policy = Some(policy);
                0
            }
            Err(text) => {
                let text = if text.is_empty() {
                    "no reason given"
                } else {
                    &text
                };
                let buffer = self.bytes_mut();
                let len = text.len().min(buffer.len());
                buffer[..len].copy_from_slice(&text.as_bytes()[..len]);
                len as u32
            }
        }
    }

    /// `tollgate_request`.
    pub fn request(&mut self, count: u32) -> u32 {
        self.judge(count, P::request)
    }

    /// `tollgate_reply`.
    pub fn reply(&mut self, count: u32) -> u32 {
        self.judge(count, P::reply)
    }

    #[inline]
    fn judge(&mut self, count: u32, hook: for<'a> fn(&'a mut P, &Call<'_>) -> Verdict<'a>) -> u32 {
        let policy = self
            .policy
            .as_mut()
            .expect("the host configures before it judges");
        self.messages.clear();
        let (entries, views) = self.room[self.begin..].split_at_mut(count as usize * ENTRY_BYTES);
        for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
            let view = &views[word(entry, 0) as usize - count as usize * ENTRY_BYTES..]
                [..word(entry, 4) as usize];
            let answer = match hook(policy, &Call::new(word(entry, 8), view)) {
                Verdict::Allow => [1, 0, 0, 0],
                Verdict::Deny(status, message) => {
                    let begin = self.messages.len() as u32;
                    let len = message.floor_char_boundary(MESSAGE_BYTES);
                    self.messages.extend_from_slice(&message.as_bytes()[..len]);
                    [2, status.code(), begin, len as u32]
                }
            };
            write_words(&mut entry[VERDICT_AT..], answer);
        }
        if !self.messages.is_empty() {
            place_messages(entries, address(&self.messages));
        }
        0
    }
}

/// Turns offsets in the arena into addresses, now that the arena doesn't move any more.
#[cold]
fn place_messages(entries: &mut [u8], base: u32) {
    for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
        if word(entry, 24) > 0 {
            let at = base.wrapping_add(word(entry, 20));
            write_words(&mut entry[20..], [at]);
        }
    }
}

fn write_words<const N: usize>(bytes: &mut [u8], words: [u32; N]) {
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Where bytes are, as the host counts. (Cut on other targets, where nobody uses it as an address.)
fn address(bytes: &[u8]) -> u32 {
    bytes.as_ptr().addr() as u32
}

/// The manifest as the content of a section.
pub const fn section<const N: usize>(manifest: &str) -> [u8; N] {
    match manifest.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => panic!("the section is as long as the manifest"),
    }
}
