//! The exports' work: converts bytes in the buffer to calls, and verdicts to bytes. For
//! [`crate::policy`](macro@crate::policy), not for authors.
//!
//! ```text
//!   buffer: | entry 0 | entry 1 | ... | views ...      entry, 32 bytes:
//!             view_off view_len method verdict status msg_off msg_len zero
//! ```
//!
//! Messages and effects are collected in a separate arena, which lives until the next evaluation:
//! the host reads them after the function has returned.
//!
//! ```text
//!   effects: | record 0 | record 1 | ... | their bytes     record, 16 bytes: kind u32 | field u32 | value u64
//! ```

use crate::value::word;
use crate::{Call, Effect, Effects, Level, NewValue, Policy, Verdict};

const ENTRY_BYTES: usize = 32;
const VERDICT_AT: usize = 12;

/// The bytes of a message that the host reads.
const MESSAGE_BYTES: usize = 1024;

const RECORD_BYTES: usize = 16;
const ALLOW: u32 = 1;
const DENY: u32 = 2;
const EFFECTS: u32 = 3;
/// The kinds of a record.
const CLEAR: u32 = 1;
const SET_BITS: u32 = 2;
const SET_BYTES: u32 = 3;
const SET_METADATA: u32 = 4;
const REMOVE_METADATA: u32 = 5;
const DELAY: u32 = 6;
const PRIORITY: u32 = 7;
const ROUTE: u32 = 8;

/// A policy and its buffer.
#[derive(Debug)]
pub struct Runtime<P> {
    policy: Option<P>,
    /// The allocation, with room for alignment.
    room: Vec<u8>,
    /// The buffer's offset in `room`.
    begin: usize,
    /// Messages and effects of one evaluation, or saved state.
    arena: Vec<u8>,
}

impl<P> Default for Runtime<P> {
    fn default() -> Runtime<P> {
        Runtime::new()
    }
}

impl<P> Runtime<P> {
    /// An empty runtime: the host first requests a buffer, then configures.
    pub const fn new() -> Runtime<P> {
        Runtime {
            policy: None,
            room: Vec::new(),
            begin: 0,
            arena: Vec::new(),
        }
    }

    /// The buffer's bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.begin..]
    }

    /// Messages and effects of the last evaluation.
    pub fn arena(&self) -> &[u8] {
        &self.arena
    }
}

impl<P: Policy> Runtime<P> {
    /// `tollgate_buffer`.
    pub fn buffer(&mut self, min_len: u32) -> u32 {
        // The old buffer is freed first, so that both needn't fit into memory.
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
        self.evaluate(count, P::request)
    }

    /// `tollgate_reply`.
    pub fn reply(&mut self, count: u32) -> u32 {
        self.evaluate(count, P::reply)
    }

    /// Generic over the hook, so that it is inlined into the loop: an indirect call costs as much
    /// as a small policy.
    #[inline]
    fn evaluate<H>(&mut self, count: u32, hook: H) -> u32
    where
        H: for<'a> Fn(&'a mut P, &Call<'_>) -> Verdict<'a>,
    {
        let policy = self
            .policy
            .as_mut()
            .expect("the host configures the policy before it evaluates calls");
        self.arena.clear();
        let (entries, views) = self.room[self.begin..].split_at_mut(count as usize * ENTRY_BYTES);
        for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
            let view = &views[word(entry, 0) as usize - count as usize * ENTRY_BYTES..]
                [..word(entry, 4) as usize];
            let answer = match hook(policy, &Call::new(word(entry, 8), view)) {
                Verdict::Allow => [ALLOW, 0, 0, 0],
                Verdict::Deny(status, message) => {
                    let begin = self.arena.len() as u32;
                    let len = message.floor_char_boundary(MESSAGE_BYTES);
                    self.arena.extend_from_slice(&message.as_bytes()[..len]);
                    [DENY, status.code(), begin, len as u32]
                }
                Verdict::Effects(effects) => {
                    let begin = self.arena.len() as u32;
                    [EFFECTS, 0, begin, append(&mut self.arena, &effects)]
                }
            };
            write_words(&mut entry[VERDICT_AT..], answer);
        }
        if !self.arena.is_empty() {
            place(entries, &mut self.arena);
        }
        0
    }

    /// `tollgate_tick`.
    pub fn tick(&mut self) -> u32 {
        let policy = self.policy.as_mut();
        policy.expect("the host configures before it ticks").tick();
        0
    }

    /// `tollgate_save`.
    pub fn save(&mut self) -> u64 {
        let policy = self.policy.as_mut();
        self.arena = policy.expect("the host configures before it saves").save();
        u64::from(address(&self.arena)) | (self.arena.len() as u64) << 32
    }

    /// `tollgate_restore`.
    pub fn restore(&mut self, version: u32, len: u32) -> u32 {
        let policy = self.policy.as_mut();
        let policy = policy.expect("the host configures before it restores");
        match policy.restore(version, &self.room[self.begin..][..len as usize]) {
            Ok(()) => 0,
            Err(reason) => {
                crate::log(Level::Error, &reason);
                1
            }
        }
    }
}

/// Appends effects to the arena; returns the length of their records. Their offsets still count
/// from the arena's start.
#[cold]
fn append(arena: &mut Vec<u8>, effects: &Effects) -> u32 {
    let begin = arena.len();
    arena.resize(begin + effects.iter().len() * RECORD_BYTES, 0);
    let end = arena.len();
    for (effect, at) in effects.iter().zip((begin..end).step_by(RECORD_BYTES)) {
        let (kind, field, [low, high]) = match effect {
            Effect::Field(field, NewValue::Clear) => (CLEAR, *field, [0, 0]),
            Effect::Field(field, NewValue::Bits(bits)) => {
                (SET_BITS, *field, [*bits as u32, (*bits >> 32) as u32])
            }
            Effect::Field(field, NewValue::Bytes(bytes)) => (SET_BYTES, *field, keep(arena, bytes)),
            Effect::Metadata(key, Some(value)) => (SET_METADATA, *key, keep(arena, value)),
            Effect::Metadata(key, None) => (REMOVE_METADATA, *key, [0, 0]),
            Effect::Delay(us) => (DELAY, 0, [*us, 0]),
            Effect::Priority(priority) => (PRIORITY, 0, [u32::from(*priority), 0]),
            Effect::Route(route) => (ROUTE, 0, keep(arena, route.label().as_bytes())),
        };
        let record = [kind, field, low, high];
        write_words(&mut arena[at..], record);
    }
    (end - begin) as u32
}

/// Appends a value to the arena; returns its offset and length.
fn keep(arena: &mut Vec<u8>, bytes: &[u8]) -> [u32; 2] {
    let place = arena.len() as u32;
    arena.extend_from_slice(bytes);
    [place, bytes.len() as u32]
}

/// Turns offsets in the arena into addresses, once the arena doesn't move any more.
#[cold]
fn place(entries: &mut [u8], arena: &mut [u8]) {
    let base = address(arena);
    for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
        let (begin, len) = (word(entry, 20) as usize, word(entry, 24) as usize);
        if len == 0 {
            continue;
        }
        if word(entry, VERDICT_AT) == EFFECTS {
            for record in arena[begin..][..len].chunks_exact_mut(RECORD_BYTES) {
                if matches!(word(record, 0), SET_BYTES | SET_METADATA | ROUTE) {
                    let at = base.wrapping_add(word(record, 8));
                    write_words(&mut record[8..], [at]);
                }
            }
        }
        write_words(&mut entry[20..], [base.wrapping_add(begin as u32)]);
    }
}

/// A field that always has a value has none: the operator withholds it. The policy can't evaluate
/// the call, and reports the reason.
#[cold]
pub fn withheld(field: &str) -> ! {
    panic!("this policy needs the field `{field}`, which it isn't allowed to see")
}

fn write_words<const N: usize>(bytes: &mut [u8], words: [u32; N]) {
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// The address of bytes in the guest's memory. (Truncated on other targets, where it isn't used.)
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
