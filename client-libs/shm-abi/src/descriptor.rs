//! Descriptors: 64 bytes on a ring that identify a call, its block and its outcome.
//!
//! ```text
//!  byte  0      1       2         4            8                      16
//!        ┌──────┬───────┬─────────┬────────────┬──────────────────────┐
//!        │ kind │ flags │ extents │ method     │ call                 │
//!     16 ├──────┴───────┴─────────┼────────────┼───────────┬──────────┤ 32
//!        │ offset                              │ len (24)  │ status   │
//!     32 ├────────────────────────┬────────────┼───────────┴──────────┤ 48
//!        │ deadline, or waited    │ total (40) │ metadata (44)        │
//!     48 ├────────────────────────┼────────────┴──────────────────────┤ 64
//!        │ delivered, retry or    │ zero                              │
//!        │ charge                 │                                   │
//!        └────────────────────────┴───────────────────────────────────┘
//!  RELEASE and RECLAIM: `flags` is a count (1..=6), and that many offsets, u64 each, are at 16..64 instead.
//! ```
//!
//! All integers are little-endian. `kind` and `flags` are u8, `extents` a u16, `method`, `len`,
//! `status`, `total`, `metadata`, `retry` and `charge` are u32, `call`, `offset`, `deadline`,
//! `waited` and `delivered` u64.
//!
//! | kind | submission (app → daemon) | completion (daemon → app) |
//! |---|---|---|
//! | 1 | CALL: flags method call offset len extents deadline metadata | CALL: flags method call offset len total deadline metadata delivered |
//! | 2 | REPLY: call offset len extents metadata waited | REPLY: call offset len total metadata |
//! | 3 | STATUS: call status [offset len metadata] waited retry | STATUS: call status [offset len metadata] retry |
//! | 4 | CANCEL: call | CANCEL: call |
//! | 5 | RELEASE: blocks of the receive heap | RECLAIM: blocks of the send heap |
//! | 6 | REQUEST: flags call offset len extents | REQUEST: flags call offset len total charge |
//! | 7 | RESPONSE: flags call offset len extents metadata waited | RESPONSE: flags call offset len total metadata charge |
//! | 8 | REQUEST_CREDIT: call len total | REQUEST_CREDIT: call len total |
//! | 9 | RESPONSE_CREDIT: call len total | RESPONSE_CREDIT: call len total |
//!
//! The side that issues a call chooses `call`: the app for its own, the daemon for incoming ones.
//! `offset` is in the heap of the direction. `deadline` is absolute CLOCK_MONOTONIC nanoseconds, 0
//! for none. Every block that the app submits is returned by exactly one RECLAIM, whatever happens
//! to the call; every delivered block is RELEASEd exactly once.
//!
//! # Streams
//!
//! REQUESTs of the same call follow a CALL with flag 1, MORE, up to the first without MORE. A
//! server may send RESPONSEs before its one REPLY or STATUS, which ends the call; a successful
//! stream ends with a STATUS of OK. CALL, REQUEST and RESPONSE may have flag 2, BARE: there is no
//! message, only metadata (RESPONSE's: before the first message), or the end of the requests. A
//! bare descriptor without metadata has no block. The reader of a stream reports its consumption
//! with REQUEST_CREDIT and RESPONSE_CREDIT: `len` messages, with charges of `total` together. See
//! [`stream`](crate::stream) for the flow control. All of this needs
//! [`FEATURE_STREAMS`](crate::messages::FEATURE_STREAMS).
//!
//! # Waiting
//!
//! A CALL may have its time of delivery, in CLOCK_MONOTONIC nanoseconds (0: none). The first answer
//! to it then has the time that it waited until its handler began, in nanoseconds, at least 1.
//! `retry` is the recommended time until a retry in milliseconds, 0 if unknown. Both are zero
//! unless session and daemon offer [`FEATURE_WAITS`](crate::messages::FEATURE_WAITS).
//!
//! # Extents
//!
//! A submitted block's inline part is `offset..offset+len`. With `extents` > 0 a table follows at
//! the next multiple of 8: per extent `{offset u64, len u32, zero u32}`, heap ranges of large
//! values. A delivered block has none: it is one image of `total` bytes whose first `len` were
//! inline.
//!
//! # Metadata
//!
//! With `metadata` > 0, a block of [`metadata`](crate::metadata) of that many bytes is at the next
//! multiple of 8: after the inline part and its extent table in a submission, after the image in a
//! delivery, and after the text of a STATUS, whose trailers it is. It is part of the same heap
//! block. The daemon delivers metadata only to a session that asked for it when it was opened, and
//! its answer says whether it accepts any
//! ([`FEATURE_METADATA`](crate::messages::FEATURE_METADATA)).
//!
//! # Invariant
//!
//! Bytes from a ring are [`Alleged`] until checked, and every descriptor has exactly one encoding:
//! unused fields are zero. So a checked value holds all the information.
//!
//! Kinds, checks and encodings stand in one file, so that each can be compared with the table
//! above.

use crate::limits::{
    ENTRY_BYTES, MAX_EXTENTS, MAX_MESSAGE_BYTES, MAX_METADATA_BYTES, MAX_OFFSETS,
    MAX_STATUS_TEXT_BYTES,
};
use crate::status::Code;
use crate::stream::Credit;

mod error;

pub use error::DescriptorError;

/// A ring entry as bytes.
pub type Entry = [u8; ENTRY_BYTES];

/// A descriptor as little-endian words, for checking and encoding.
type Words = [u64; ENTRY_BYTES / 8];

const CALL: u8 = 1;
const REPLY: u8 = 2;
const STATUS: u8 = 3;
const CANCEL: u8 = 4;
const GIVE_BACK: u8 = 5;
const REQUEST: u8 = 6;
const RESPONSE: u8 = 7;
const REQUEST_CREDIT: u8 = 8;
const RESPONSE_CREDIT: u8 = 9;

const MORE: u8 = 1;
const BARE: u8 = 2;

/// Bytes of one entry of an extent table.
pub const EXTENT_ENTRY_BYTES: usize = 16;

/// The lengths of a session's two heaps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSizes {
    /// The heap that the app writes.
    pub send: u64,
    /// The heap that the daemon writes.
    pub receive: u64,
}

/// A submitted block: its inline part, and the number of extents in its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRef {
    /// Its offset in the send heap; a multiple of 8.
    pub offset: u64,
    /// Bytes of the inline part.
    pub len: u32,
    /// The entries of the extent table after the inline part.
    pub extents: u16,
    /// The bytes of the metadata block after the extent table; 0 for none.
    pub metadata: u32,
}

impl BlockRef {
    /// The offset of the extent table in the heap: after the inline part, aligned to 8.
    #[inline]
    pub fn table_offset(&self) -> u64 {
        self.offset + u64::from(self.len).next_multiple_of(8)
    }

    /// The length of the extent table in bytes; 0 without extents.
    #[inline]
    pub fn table_len(&self) -> usize {
        usize::from(self.extents) * EXTENT_ENTRY_BYTES
    }

    /// The offset of the metadata block in the heap: after the extent table, whose end is aligned
    /// to 8.
    #[inline]
    pub fn metadata_offset(&self) -> u64 {
        self.table_offset() + self.table_len() as u64
    }

    /// Whether it occupies the heap: false for a bare descriptor without metadata.
    #[inline]
    pub fn exists(&self, bare: bool) -> bool {
        !bare || self.metadata > 0
    }

    /// The block of a bare descriptor, which can only have metadata.
    #[inline]
    fn bare(self) -> BlockRef {
        BlockRef {
            offset: if self.metadata > 0 { self.offset } else { 0 },
            len: 0,
            extents: 0,
            metadata: self.metadata,
        }
    }
}

/// A delivered block: one contiguous image in the receive heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Its offset in the receive heap; a multiple of 8.
    pub offset: u64,
    /// Bytes of its inline part.
    pub inline_len: u32,
    /// The bytes of the whole image; equals `inline_len` if no value was an extent.
    pub total_len: u32,
    /// The bytes of the metadata block after the image; 0 for none.
    pub metadata: u32,
}

impl Image {
    /// The bytes of image and metadata: its size in the heap.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        held_bytes(self.total_len as usize, self.metadata as usize)
    }

    /// Like [`BlockRef::exists`].
    #[inline]
    pub fn exists(&self, bare: bool) -> bool {
        !bare || self.metadata > 0
    }

    #[inline]
    fn bare(self) -> Image {
        Image {
            offset: if self.metadata > 0 { self.offset } else { 0 },
            inline_len: 0,
            total_len: 0,
            metadata: self.metadata,
        }
    }
}

/// The size in a heap of an image of `total` bytes with `metadata` bytes of metadata.
#[inline]
pub const fn held_bytes(total: usize, metadata: usize) -> usize {
    if metadata == 0 {
        total
    } else {
        total.next_multiple_of(8) + metadata
    }
}

/// The part of a call's direction that one descriptor carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Further requests follow it.
    pub more: bool,
    /// There is no message, at most metadata. The block is empty or absent.
    pub bare: bool,
}

impl Part {
    /// The only message of its direction.
    pub const ONLY: Part = Part {
        more: false,
        bare: false,
    };

    #[inline]
    fn of_flags(flags: u8) -> Part {
        Part {
            more: flags & MORE != 0,
            bare: flags & BARE != 0,
        }
    }

    #[inline]
    fn flags(self) -> u8 {
        (u8::from(self.more) * MORE) | (u8::from(self.bare) * BARE)
    }
}

/// The additions to a status's code: a text, UTF-8 by convention and unchecked here, and trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// The text's offset in the heap of the direction; a multiple of 8.
    pub offset: u64,
    /// Bytes of the text, at most [`MAX_STATUS_TEXT_BYTES`].
    pub text: u32,
    /// The bytes of the metadata block after it; 0 for none. At least one of the two exists.
    pub metadata: u32,
}

impl Epilogue {
    /// The offset of the metadata block in the heap.
    #[inline]
    pub fn metadata_offset(&self) -> u64 {
        self.offset + u64::from(self.text).next_multiple_of(8)
    }

    /// The bytes of both: their size in the heap.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        held_bytes(self.text as usize, self.metadata as usize)
    }
}

/// One to six offsets of blocks that are returned to their owner. Past `count` they are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    count: u8,
    offsets: [u64; MAX_OFFSETS],
}

impl Offsets {
    /// Takes as many offsets from the front as fit (at most [`MAX_OFFSETS`]); `None` if there are
    /// none.
    #[inline]
    pub fn take_from(offsets: &[u64]) -> Option<Offsets> {
        let count = offsets.len().min(MAX_OFFSETS);
        let mut taken = Offsets {
            count: count as u8,
            offsets: [0; MAX_OFFSETS],
        };
        taken.offsets[..count].copy_from_slice(&offsets[..count]);
        (count > 0).then_some(taken)
    }

    #[inline]
    fn words(&self) -> Words {
        let [a, b, c, d, e, f] = self.offsets;
        [
            u64::from(GIVE_BACK) | u64::from(self.count) << 8,
            0,
            a,
            b,
            c,
            d,
            e,
            f,
        ]
    }

    /// The offsets.
    #[inline]
    pub fn as_slice(&self) -> &[u64] {
        &self.offsets[..usize::from(self.count)]
    }
}

/// A submission: a message from an app to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Issue a call.
    Call {
        /// The handle that binding returned for the method.
        method: u32,
        /// The app's id for the call.
        call: u64,
        /// Whether it carries the request, and all of it.
        part: Part,
        /// The request.
        block: BlockRef,
        /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
        deadline_ns: u64,
    },
    /// A further request of a call.
    Request {
        /// The app's id for the call.
        call: u64,
        /// Whether it carries a request, and whether that is the last.
        part: Part,
        /// The request.
        block: BlockRef,
    },
    /// Answer an incoming call with one of several messages.
    Response {
        /// The daemon's id for the call.
        call: u64,
        /// It carries metadata only.
        bare: bool,
        /// The message.
        block: BlockRef,
        /// Like a reply's.
        waited_ns: u64,
    },
    /// The app consumed requests of an incoming call.
    RequestCredit {
        /// The daemon's id for the call.
        call: u64,
        /// The amount.
        credit: Credit,
    },
    /// The app consumed responses to one of its calls.
    ResponseCredit {
        /// The app's id for the call.
        call: u64,
        /// The amount.
        credit: Credit,
    },
    /// Answer an incoming call.
    Reply {
        /// The daemon's id for the call.
        call: u64,
        /// The reply.
        block: BlockRef,
        /// Nanoseconds until its handler began, if the call had its time of delivery; otherwise 0.
        waited_ns: u64,
    },
    /// Answer an incoming call with an error, or end its responses.
    Status {
        /// The daemon's id for the call.
        call: u64,
        /// OK only for a call that answers with a stream of responses.
        code: Code,
        /// Its text and trailers in the send heap, if it has any.
        epilogue: Option<Epilogue>,
        /// Like a reply's.
        waited_ns: u64,
        /// The recommended time until a retry, in milliseconds; 0 if unknown.
        retry_after_ms: u32,
    },
    /// Cancel a call of the app.
    Cancel {
        /// The app's id for the call.
        call: u64,
    },
    /// Blocks of the receive heap are returned to the daemon.
    Release(Offsets),
}

/// A completion: a message from the daemon to an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A call came in.
    Call {
        /// The handle that binding returned for the method.
        method: u32,
        /// The daemon's id for the call.
        call: u64,
        /// Whether it carries the request, and all of it.
        part: Part,
        /// The request.
        image: Image,
        /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
        deadline_ns: u64,
        /// The time of delivery, on the same clock, if the answer should report the wait; otherwise
        /// 0.
        delivered_ns: u64,
    },
    /// A further request of an incoming call.
    Request {
        /// The daemon's id for the call.
        call: u64,
        /// Whether it carries a request, and whether that is the last.
        part: Part,
        /// The request.
        image: Image,
        /// The credit for consuming it.
        charge: u32,
    },
    /// One of several messages of the answer to one of the app's calls.
    Response {
        /// The app's id for the call.
        call: u64,
        /// It carries metadata only.
        bare: bool,
        /// The message.
        image: Image,
        /// The credit for consuming it.
        charge: u32,
    },
    /// Requests of one of the app's calls were consumed.
    RequestCredit {
        /// The app's id for the call.
        call: u64,
        /// The amount.
        credit: Credit,
    },
    /// Responses to an incoming call were consumed.
    ResponseCredit {
        /// The daemon's id for the call.
        call: u64,
        /// The amount.
        credit: Credit,
    },
    /// One of the app's calls succeeded.
    Reply {
        /// The app's id for the call.
        call: u64,
        /// The reply.
        image: Image,
    },
    /// One of the app's calls failed, or its responses have ended.
    Status {
        /// The app's id for the call.
        call: u64,
        /// The status code.
        code: Code,
        /// Its text and trailers in the receive heap, if it has any.
        epilogue: Option<Epilogue>,
        /// The recommended time until a retry, in milliseconds; 0 if unknown.
        retry_after_ms: u32,
    },
    /// An incoming call was cancelled or expired; its handler may stop.
    Cancel {
        /// The daemon's id for the call.
        call: u64,
    },
    /// Blocks of the send heap are returned to the app.
    Reclaim(Offsets),
}

/// A descriptor from a peer: copied out, not checked.
#[derive(Clone, Copy)]
pub struct Alleged(Words);

impl From<Entry> for Alleged {
    #[inline]
    fn from(entry: Entry) -> Alleged {
        let mut words = [0; ENTRY_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(entry.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Alleged(words)
    }
}

impl Alleged {
    /// Checks it as a submission.
    ///
    /// # Errors
    /// The wrong field, with its value and the violated bound.
    #[inline]
    pub fn submission(&self, heaps: &HeapSizes) -> Result<Submission, DescriptorError> {
        let call = self.u64_at(8);
        let parsed = match self.u8_at(0) {
            CALL => Submission::Call {
                method: self.u32_at(4),
                call,
                part: self.part(),
                block: self.block(self.part().bare, heaps.send)?,
                deadline_ns: self.u64_at(32),
            },
            REPLY => Submission::Reply {
                call,
                block: self.block(false, heaps.send)?,
                waited_ns: self.u64_at(32),
            },
            REQUEST => Submission::Request {
                call,
                part: self.part(),
                block: BlockRef {
                    metadata: 0,
                    ..self.block(self.part().bare, heaps.send)?
                },
            },
            RESPONSE => Submission::Response {
                call,
                bare: self.part().bare,
                block: self.block(self.part().bare, heaps.send)?,
                waited_ns: self.u64_at(32),
            },
            REQUEST_CREDIT => Submission::RequestCredit {
                call,
                credit: self.credit(),
            },
            RESPONSE_CREDIT => Submission::ResponseCredit {
                call,
                credit: self.credit(),
            },
            STATUS => Submission::Status {
                call,
                code: self.code(),
                epilogue: self.epilogue(heaps.send)?,
                waited_ns: self.u64_at(32),
                retry_after_ms: self.u32_at(48),
            },
            CANCEL => Submission::Cancel { call },
            GIVE_BACK => Submission::Release(self.offsets(heaps.receive)?),
            kind => return Err(DescriptorError::UnknownKind { kind }),
        };
        self.same_as(parsed.words())?;
        Ok(parsed)
    }

    /// Checks it as a completion.
    ///
    /// # Errors
    /// The wrong field, with its value and the violated bound.
    #[inline]
    pub fn completion(&self, heaps: &HeapSizes) -> Result<Completion, DescriptorError> {
        let call = self.u64_at(8);
        let parsed = match self.u8_at(0) {
            CALL => Completion::Call {
                method: self.u32_at(4),
                call,
                part: self.part(),
                image: self.image(self.part().bare, heaps.receive)?,
                deadline_ns: self.u64_at(32),
                delivered_ns: self.u64_at(48),
            },
            REPLY => Completion::Reply {
                call,
                image: self.image(false, heaps.receive)?,
            },
            REQUEST => Completion::Request {
                call,
                part: self.part(),
                image: Image {
                    metadata: 0,
                    ..self.image(self.part().bare, heaps.receive)?
                },
                charge: self.u32_at(48),
            },
            RESPONSE => Completion::Response {
                call,
                bare: self.part().bare,
                image: self.image(self.part().bare, heaps.receive)?,
                charge: self.u32_at(48),
            },
            REQUEST_CREDIT => Completion::RequestCredit {
                call,
                credit: self.credit(),
            },
            RESPONSE_CREDIT => Completion::ResponseCredit {
                call,
                credit: self.credit(),
            },
            STATUS => Completion::Status {
                call,
                code: self.code(),
                epilogue: self.epilogue(heaps.receive)?,
                retry_after_ms: self.u32_at(48),
            },
            CANCEL => Completion::Cancel { call },
            GIVE_BACK => Completion::Reclaim(self.offsets(heaps.send)?),
            kind => return Err(DescriptorError::UnknownKind { kind }),
        };
        self.same_as(parsed.words())?;
        Ok(parsed)
    }

    #[inline]
    fn part(&self) -> Part {
        Part::of_flags(self.u8_at(1))
    }

    #[inline]
    fn credit(&self) -> Credit {
        Credit {
            messages: self.u32_at(24),
            bytes: self.u32_at(40),
        }
    }

    #[inline]
    fn block(&self, bare: bool, heap_len: u64) -> Result<BlockRef, DescriptorError> {
        let mut block = BlockRef {
            offset: self.u64_at(16),
            len: self.u32_at(24),
            extents: self.u16_at(2),
            metadata: self.u32_at(44),
        };
        if bare {
            block = block.bare();
        }
        if block.extents > MAX_EXTENTS {
            return Err(DescriptorError::TooManyExtents {
                extents: block.extents,
            });
        }
        check_len(block.len, MAX_MESSAGE_BYTES)?;
        check_range(block.offset, u64::from(block.len), heap_len)?;
        if block.extents > 0 {
            check_range(block.table_offset(), block.table_len() as u64, heap_len)?;
        }
        if block.metadata > 0 {
            check_len(block.metadata, MAX_METADATA_BYTES as u32)?;
            check_range(block.metadata_offset(), block.metadata.into(), heap_len)?;
        }
        Ok(block)
    }

    #[inline]
    fn image(&self, bare: bool, heap_len: u64) -> Result<Image, DescriptorError> {
        let mut image = Image {
            offset: self.u64_at(16),
            inline_len: self.u32_at(24),
            total_len: self.u32_at(40),
            metadata: self.u32_at(44),
        };
        if bare {
            image = image.bare();
        }
        check_len(image.total_len, MAX_MESSAGE_BYTES)?;
        if image.total_len < image.inline_len {
            return Err(DescriptorError::TotalBelowInline {
                inline_len: image.inline_len,
                total_len: image.total_len,
            });
        }
        check_len(image.metadata, MAX_METADATA_BYTES as u32)?;
        check_range(image.offset, image.held_bytes() as u64, heap_len)?;
        Ok(image)
    }

    #[inline]
    fn epilogue(&self, heap_len: u64) -> Result<Option<Epilogue>, DescriptorError> {
        let epilogue = Epilogue {
            offset: self.u64_at(16),
            text: self.u32_at(24),
            metadata: self.u32_at(44),
        };
        if (epilogue.text, epilogue.metadata) == (0, 0) {
            return Ok(None);
        }
        check_len(epilogue.text, MAX_STATUS_TEXT_BYTES)?;
        check_len(epilogue.metadata, MAX_METADATA_BYTES as u32)?;
        check_range(epilogue.offset, epilogue.held_bytes() as u64, heap_len)?;
        Ok(Some(epilogue))
    }

    #[inline]
    fn code(&self) -> Code {
        Code(self.u32_at(28))
    }

    #[inline]
    fn offsets(&self, heap_len: u64) -> Result<Offsets, DescriptorError> {
        let count = self.u8_at(1);
        if count == 0 || usize::from(count) > MAX_OFFSETS {
            return Err(DescriptorError::BadCount { count });
        }
        let mut offsets = Offsets {
            count,
            offsets: [0; MAX_OFFSETS],
        };
        for (at, offset) in offsets.offsets[..usize::from(count)].iter_mut().enumerate() {
            *offset = self.u64_at(16 + 8 * at);
            check_range(*offset, 1, heap_len)?;
        }
        Ok(offsets)
    }

    /// Refuses an entry that isn't the only encoding of the values read from it.
    #[inline]
    fn same_as(&self, canonical: Words) -> Result<(), DescriptorError> {
        for (at, (seen, want)) in self.0.iter().zip(canonical).enumerate() {
            if *seen != want {
                let byte = (seen ^ want).trailing_zeros() as usize / 8;
                return Err(DescriptorError::NotZero { at: 8 * at + byte });
            }
        }
        Ok(())
    }

    #[inline]
    fn u64_at(&self, at: usize) -> u64 {
        self.0[at / 8] >> (at % 8 * 8)
    }

    #[inline]
    fn u32_at(&self, at: usize) -> u32 {
        self.u64_at(at) as u32
    }

    #[inline]
    fn u16_at(&self, at: usize) -> u16 {
        self.u64_at(at) as u16
    }

    #[inline]
    fn u8_at(&self, at: usize) -> u8 {
        self.u64_at(at) as u8
    }
}

impl Submission {
    /// Its only encoding.
    #[inline]
    pub fn encode(&self) -> Entry {
        to_bytes(self.words())
    }

    #[inline]
    fn words(&self) -> Words {
        match *self {
            Submission::Call {
                method,
                call,
                part,
                block,
                deadline_ns,
            } => {
                let mut fields = Fields::of_block(CALL, call, block);
                fields.flags = part.flags();
                fields.method = method;
                fields.moment_ns = deadline_ns;
                fields.words()
            }
            Submission::Reply {
                call,
                block,
                waited_ns,
            } => {
                let mut fields = Fields::of_block(REPLY, call, block);
                fields.moment_ns = waited_ns;
                fields.words()
            }
            Submission::Request { call, part, block } => {
                let mut fields = Fields::of_block(REQUEST, call, block);
                fields.flags = part.flags();
                fields.words()
            }
            Submission::Response {
                call,
                bare,
                block,
                waited_ns,
            } => {
                let mut fields = Fields::of_block(RESPONSE, call, block);
                fields.flags = Part { more: false, bare }.flags();
                fields.moment_ns = waited_ns;
                fields.words()
            }
            Submission::RequestCredit { call, credit } => {
                Fields::of_credit(REQUEST_CREDIT, call, credit).words()
            }
            Submission::ResponseCredit { call, credit } => {
                Fields::of_credit(RESPONSE_CREDIT, call, credit).words()
            }
            Submission::Status {
                call,
                code,
                epilogue,
                waited_ns,
                retry_after_ms,
            } => {
                let mut fields = Fields::of_status(call, code, epilogue);
                fields.moment_ns = waited_ns;
                fields.last = retry_after_ms.into();
                fields.words()
            }
            Submission::Cancel { call } => Fields {
                kind: CANCEL,
                call,
                ..Fields::default()
            }
            .words(),
            Submission::Release(offsets) => offsets.words(),
        }
    }
}

impl Completion {
    /// Its only encoding.
    #[inline]
    pub fn encode(&self) -> Entry {
        to_bytes(self.words())
    }

    #[inline]
    fn words(&self) -> Words {
        match *self {
            Completion::Call {
                method,
                call,
                part,
                image,
                deadline_ns,
                delivered_ns,
            } => {
                let mut fields = Fields::of_image(CALL, call, image);
                fields.flags = part.flags();
                fields.method = method;
                fields.moment_ns = deadline_ns;
                fields.last = delivered_ns;
                fields.words()
            }
            Completion::Reply { call, image } => Fields::of_image(REPLY, call, image).words(),
            Completion::Request {
                call,
                part,
                image,
                charge,
            } => {
                let mut fields = Fields::of_image(REQUEST, call, image);
                fields.flags = part.flags();
                fields.last = charge.into();
                fields.words()
            }
            Completion::Response {
                call,
                bare,
                image,
                charge,
            } => {
                let mut fields = Fields::of_image(RESPONSE, call, image);
                fields.flags = Part { more: false, bare }.flags();
                fields.last = charge.into();
                fields.words()
            }
            Completion::RequestCredit { call, credit } => {
                Fields::of_credit(REQUEST_CREDIT, call, credit).words()
            }
            Completion::ResponseCredit { call, credit } => {
                Fields::of_credit(RESPONSE_CREDIT, call, credit).words()
            }
            Completion::Status {
                call,
                code,
                epilogue,
                retry_after_ms,
            } => {
                let mut fields = Fields::of_status(call, code, epilogue);
                fields.last = retry_after_ms.into();
                fields.words()
            }
            Completion::Cancel { call } => Fields {
                kind: CANCEL,
                call,
                ..Fields::default()
            }
            .words(),
            Completion::Reclaim(offsets) => offsets.words(),
        }
    }
}

/// The fields of every kind except the last, before encoding.
#[derive(Default)]
struct Fields {
    kind: u8,
    flags: u8,
    extents: u16,
    method: u32,
    call: u64,
    offset: u64,
    len: u32,
    status: u32,
    /// The deadline, or the time that it waited.
    moment_ns: u64,
    total: u32,
    metadata: u32,
    /// The time of delivery, the time until a retry, or the charge.
    last: u64,
}

impl Fields {
    #[inline]
    fn of_block(kind: u8, call: u64, block: BlockRef) -> Fields {
        let BlockRef {
            offset,
            len,
            extents,
            metadata,
        } = block;
        Fields {
            kind,
            call,
            offset,
            len,
            extents,
            metadata,
            ..Fields::default()
        }
    }

    #[inline]
    fn of_image(kind: u8, call: u64, image: Image) -> Fields {
        let Image {
            offset,
            inline_len: len,
            total_len: total,
            metadata,
        } = image;
        Fields {
            kind,
            call,
            offset,
            len,
            total,
            metadata,
            ..Fields::default()
        }
    }

    #[inline]
    fn of_status(call: u64, code: Code, epilogue: Option<Epilogue>) -> Fields {
        let (offset, len, metadata) =
            epilogue.map_or((0, 0, 0), |e| (e.offset, e.text, e.metadata));
        Fields {
            kind: STATUS,
            call,
            status: code.0,
            offset,
            len,
            metadata,
            ..Fields::default()
        }
    }

    #[inline]
    fn of_credit(kind: u8, call: u64, credit: Credit) -> Fields {
        Fields {
            kind,
            call,
            len: credit.messages,
            total: credit.bytes,
            ..Fields::default()
        }
    }

    #[inline]
    fn words(&self) -> Words {
        [
            u64::from(self.kind)
                | u64::from(self.flags) << 8
                | u64::from(self.extents) << 16
                | u64::from(self.method) << 32,
            self.call,
            self.offset,
            u64::from(self.len) | u64::from(self.status) << 32,
            self.moment_ns,
            u64::from(self.total) | u64::from(self.metadata) << 32,
            self.last,
            0,
        ]
    }
}

#[inline]
fn to_bytes(words: Words) -> Entry {
    let mut entry = [0; ENTRY_BYTES];
    for (bytes, word) in entry.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    entry
}

/// A heap range that holds one large value of a submitted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in the send heap; any alignment.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl Extent {
    /// Its entry in a block's extent table.
    #[inline]
    pub fn encode(&self) -> [u8; EXTENT_ENTRY_BYTES] {
        let mut entry = [0; EXTENT_ENTRY_BYTES];
        entry[..8].copy_from_slice(&self.offset.to_le_bytes());
        entry[8..12].copy_from_slice(&self.len.to_le_bytes());
        entry
    }

    /// Checks an entry of a copied-out extent table against the heap's length.
    ///
    /// # Errors
    /// If the range is longer than a message or leaves the heap, or the last four bytes aren't
    /// zero.
    #[inline]
    pub fn check(
        entry: &[u8; EXTENT_ENTRY_BYTES],
        heap_len: u64,
    ) -> Result<Extent, DescriptorError> {
        let word = u128::from_le_bytes(*entry);
        let extent = Extent {
            offset: word as u64,
            len: (word >> 64) as u32,
        };
        if word >> 96 != 0 {
            return Err(DescriptorError::NotZero { at: 12 });
        }
        check_len(extent.len, MAX_MESSAGE_BYTES)?;
        check_bounds(extent.offset, u64::from(extent.len), heap_len)?;
        Ok(extent)
    }
}

#[inline]
fn check_len(len: u32, limit: u32) -> Result<(), DescriptorError> {
    if len > limit {
        Err(DescriptorError::TooLong { len, limit })
    } else {
        Ok(())
    }
}

#[inline]
fn check_range(offset: u64, len: u64, heap_len: u64) -> Result<(), DescriptorError> {
    if !offset.is_multiple_of(8) {
        return Err(DescriptorError::Unaligned { offset });
    }
    check_bounds(offset, len, heap_len)
}

#[inline]
fn check_bounds(offset: u64, len: u64, heap_len: u64) -> Result<(), DescriptorError> {
    match offset.checked_add(len) {
        Some(end) if end <= heap_len => Ok(()),
        _ => Err(DescriptorError::OutOfHeap {
            offset,
            len,
            heap_len,
        }),
    }
}

#[cfg(test)]
mod tests;
