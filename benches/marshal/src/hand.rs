//! `gather` and `accept` for the hotel service's messages as careful hand-written code: offsets as
//! constants, the same checks in the same order as the programs, nothing looked up in a table.
//!
//! The target for machine code is a ratio to these functions, so they have to be fast. Fixed parts
//! are read as arrays, which leaves one bounds check per struct. Slots are read as one word. Cases
//! that never happen in a healthy message are out of line. The tests compare the functions with the
//! interpreter on damaged blocks: same verdict, same code.

use tollgate_marshal::extents::Gathered;
use tollgate_marshal::wire::check_unknown;
use tollgate_marshal::{FaultCode, MAX_EXTENTS, MAX_MESSAGE, Program, is_utf8};
use tollgate_schema::{EXTENT_FLAG, MessageId};

/// Sizes of fixed parts, in bytes. The tests compare them with the layout.
const RESERVE_REQUEST: usize = 48;
const RESERVE_REPLY: usize = 24;
const AVAILABILITY_REQUEST: usize = 24;
const AVAILABILITY_REPLY: usize = 16;
const ROOMS_LEFT_ENTRY: usize = 16;
const STAY: usize = 24;
const ECHO_MESSAGE: usize = 16;

/// The message type, for checking unknown fields.
pub struct Types<'p> {
    /// Any program that reaches the type.
    pub program: &'p Program,
    /// The root type.
    pub root: MessageId,
    /// `hotel.Stay`.
    pub stay: MessageId,
}

/// The message type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hotel {
    /// `hotel.ReserveRequest`
    ReserveRequest,
    /// `hotel.ReserveReply`
    ReserveReply,
    /// `hotel.AvailabilityRequest`
    AvailabilityRequest,
    /// `hotel.AvailabilityReply`
    AvailabilityReply,
    /// `hotel.EchoMessage`
    EchoMessage,
}

impl Hotel {
    /// The message with this name.
    pub fn named(name: &str) -> Option<Hotel> {
        Some(match name {
            "ReserveRequest" => Hotel::ReserveRequest,
            "ReserveReply" => Hotel::ReserveReply,
            "AvailabilityRequest" => Hotel::AvailabilityRequest,
            "AvailabilityReply" => Hotel::AvailabilityReply,
            "EchoMessage" => Hotel::EchoMessage,
            _ => return None,
        })
    }

    /// Bytes of its fixed part.
    pub fn size(self) -> usize {
        match self {
            Hotel::ReserveRequest => RESERVE_REQUEST,
            Hotel::ReserveReply => RESERVE_REPLY,
            Hotel::AvailabilityRequest => AVAILABILITY_REQUEST,
            Hotel::AvailabilityReply => AVAILABILITY_REPLY,
            Hotel::EchoMessage => ECHO_MESSAGE,
        }
    }
}

/// Like `tollgate_marshal::interpreter::gather`.
#[inline]
pub fn gather(
    hotel: Hotel,
    types: &Types<'_>,
    block: &[u8],
    lens: &mut [u32; MAX_EXTENTS],
) -> Result<usize, FaultCode> {
    if block.len() > MAX_MESSAGE {
        return Err(FaultCode::TooLarge);
    }
    let mut memory = Gathering {
        block,
        gathered: Gathered::new(block.len(), lens),
    };
    if walk(hotel, types, &mut memory)? != block.len() {
        return Err(FaultCode::Trailing);
    }
    Ok(memory.gathered.count())
}

/// Like `tollgate_marshal::interpreter::accept`.
#[inline]
pub fn accept(
    hotel: Hotel,
    types: &Types<'_>,
    image: &mut [u8],
    inline_len: usize,
) -> Result<(), FaultCode> {
    let len = image.len();
    if len > MAX_MESSAGE {
        return Err(FaultCode::TooLarge);
    }
    if inline_len > len {
        return Err(FaultCode::Truncated);
    }
    let (inline, behind) = image.split_at_mut(inline_len);
    let mut memory = Accepting {
        inline,
        behind,
        count: 0,
        end: inline_len,
    };
    if walk(hotel, types, &mut memory)? != inline_len || memory.end != len {
        return Err(FaultCode::Trailing);
    }
    Ok(())
}

/// The inline bytes, and the meaning of an extent in them.
trait Memory {
    fn inline(&self) -> &[u8];
    fn extent(&mut self, slot: usize, off: u32, len: u32, utf8: bool) -> Result<(), FaultCode>;
}

struct Gathering<'a> {
    block: &'a [u8],
    gathered: Gathered<'a>,
}

impl Memory for Gathering<'_> {
    #[inline]
    fn inline(&self) -> &[u8] {
        self.block
    }

    #[cold]
    fn extent(&mut self, _slot: usize, off: u32, len: u32, _utf8: bool) -> Result<(), FaultCode> {
        self.gathered.extent(off, len)
    }
}

struct Accepting<'a> {
    inline: &'a mut [u8],
    behind: &'a mut [u8],
    /// Number of extents so far, and the end of the last one in the image.
    count: u32,
    end: usize,
}

impl Memory for Accepting<'_> {
    #[inline]
    fn inline(&self) -> &[u8] {
        self.inline
    }

    #[cold]
    fn extent(&mut self, slot: usize, off: u32, len: u32, utf8: bool) -> Result<(), FaultCode> {
        if len == 0 {
            return Err(FaultCode::EmptyWithOffset);
        }
        if self.count as usize == MAX_EXTENTS {
            return Err(FaultCode::TooManyExtents);
        }
        if off != EXTENT_FLAG | self.count {
            return Err(FaultCode::ExtentOrder);
        }
        let start = self.end.next_multiple_of(8);
        let end = start + len as usize;
        if end > MAX_MESSAGE {
            return Err(FaultCode::TooLarge);
        }
        let behind = self.inline.len();
        let value = self.behind.get(start - behind..end - behind);
        let value = value.ok_or(FaultCode::Truncated)?;
        if utf8 && !is_utf8(value) {
            return Err(FaultCode::NotUtf8);
        }
        self.inline[slot..slot + 4].copy_from_slice(&(start as u32).to_le_bytes());
        self.count += 1;
        self.end = end;
        Ok(())
    }
}

#[inline]
fn walk(hotel: Hotel, types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    match hotel {
        Hotel::ReserveRequest => reserve_request(types, memory),
        Hotel::ReserveReply => reserve_reply(types, memory),
        Hotel::AvailabilityRequest => availability_request(types, memory),
        Hotel::AvailabilityReply => availability_reply(types, memory),
        Hotel::EchoMessage => echo_message(types, memory),
    }
}

#[inline]
fn reserve_request(types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    let root: [u8; RESERVE_REQUEST] = fixed(memory, 0)?;
    let mut cursor = RESERVE_REQUEST;
    cursor = value(memory, 4, word(&root, 4), cursor, true)?;
    cursor = texts(memory, word(&root, 12), cursor)?;
    cursor = stay(types, memory, half(&root, 20), cursor)?;
    if root[0] & 1 != 0 {
        cursor = value(memory, 28, word(&root, 28), cursor, true)?;
    } else if word(&root, 28) != 0 {
        return Err(FaultCode::NotAbsent);
    }
    unknown(types, types.root, memory, word(&root, 36), cursor)
}

#[inline]
fn reserve_reply(types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    let root: [u8; RESERVE_REPLY] = fixed(memory, 0)?;
    let cursor = texts(memory, word(&root, 8), RESERVE_REPLY)?;
    unknown(types, types.root, memory, word(&root, 16), cursor)
}

#[inline]
fn availability_request(types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    let root: [u8; AVAILABILITY_REQUEST] = fixed(memory, 0)?;
    let mut cursor = texts(memory, word(&root, 0), AVAILABILITY_REQUEST)?;
    cursor = stay(types, memory, half(&root, 8), cursor)?;
    unknown(types, types.root, memory, word(&root, 16), cursor)
}

#[inline]
fn availability_reply(types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    let root: [u8; AVAILABILITY_REPLY] = fixed(memory, 0)?;
    let (start, mut cursor) = array(
        memory,
        word(&root, 0),
        AVAILABILITY_REPLY,
        ROOMS_LEFT_ENTRY,
        8,
    )?;
    let end = cursor;
    for at in (start..end).step_by(ROOMS_LEFT_ENTRY) {
        let entry: [u8; ROOMS_LEFT_ENTRY] = fixed(memory, at)?;
        cursor = value(memory, at, word(&entry, 0), cursor, true)?;
    }
    unknown(types, types.root, memory, word(&root, 8), cursor)
}

#[inline]
fn echo_message(types: &Types<'_>, memory: &mut impl Memory) -> Result<usize, FaultCode> {
    let root: [u8; ECHO_MESSAGE] = fixed(memory, 0)?;
    let cursor = value(memory, 0, word(&root, 0), ECHO_MESSAGE, false)?;
    unknown(types, types.root, memory, word(&root, 8), cursor)
}

/// The `Stay` that a reference refers to, or none.
#[inline]
fn stay(
    types: &Types<'_>,
    memory: &mut impl Memory,
    reference: u32,
    cursor: usize,
) -> Result<usize, FaultCode> {
    if reference == 0 {
        return Ok(cursor);
    }
    let at = cursor.next_multiple_of(8);
    if reference as usize != at {
        return Err(FaultCode::Misplaced);
    }
    let fields: [u8; STAY] = fixed(memory, at)?;
    let mut cursor = at + STAY;
    cursor = value(memory, at, word(&fields, 0), cursor, true)?;
    cursor = value(memory, at + 8, word(&fields, 8), cursor, true)?;
    unknown(types, types.stay, memory, word(&fields, 16), cursor)
}

/// A fixed part.
#[inline]
fn fixed<const N: usize>(memory: &impl Memory, at: usize) -> Result<[u8; N], FaultCode> {
    let rest = memory.inline().get(at..).ok_or(FaultCode::Truncated)?;
    rest.first_chunk().copied().ok_or(FaultCode::Truncated)
}

#[inline]
fn word<const N: usize>(fields: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(fields[at..at + 8].try_into().expect("8 bytes"))
}

#[inline]
fn half<const N: usize>(fields: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(fields[at..at + 4].try_into().expect("4 bytes"))
}

/// The string or bytes value of the slot at `at`; returns the cursor after it.
#[inline]
fn value(
    memory: &mut impl Memory,
    at: usize,
    slot: u64,
    cursor: usize,
    utf8: bool,
) -> Result<usize, FaultCode> {
    if slot == 0 {
        return Ok(cursor);
    }
    let (off, len) = (slot as u32, (slot >> 32) as u32);
    if off & EXTENT_FLAG != 0 {
        return memory.extent(at, off, len, utf8).map(|()| cursor);
    }
    let bytes = part(memory, off, cursor, len as usize)?;
    if utf8 && !is_utf8(bytes) {
        return Err(FaultCode::NotUtf8);
    }
    Ok(cursor + len as usize)
}

/// The bytes of a part that must begin at the cursor.
#[inline]
fn part(memory: &impl Memory, off: u32, cursor: usize, len: usize) -> Result<&[u8], FaultCode> {
    if off as usize != cursor {
        return Err(FaultCode::Misplaced);
    }
    if len == 0 {
        return Err(FaultCode::EmptyWithOffset);
    }
    let bytes = memory.inline().get(cursor..cursor + len);
    bytes.ok_or(FaultCode::Truncated)
}

/// An array: its start and its end.
#[inline]
fn array(
    memory: &impl Memory,
    slot: u64,
    cursor: usize,
    size: usize,
    align: usize,
) -> Result<(usize, usize), FaultCode> {
    if slot == 0 {
        return Ok((cursor, cursor));
    }
    let (off, count) = (slot as u32, (slot >> 32) as usize);
    let start = cursor.next_multiple_of(align);
    let bytes = part(memory, off, start, count * size)?;
    Ok((start, start + bytes.len()))
}

/// A repeated string.
#[inline]
fn texts(memory: &mut impl Memory, slot: u64, cursor: usize) -> Result<usize, FaultCode> {
    let (start, end) = array(memory, slot, cursor, 8, 4)?;
    let mut cursor = end;
    for at in (start..end).step_by(8) {
        let slot = u64::from_le_bytes(fixed(memory, at)?);
        cursor = value(memory, at, slot, cursor, true)?;
    }
    Ok(cursor)
}

#[inline]
fn unknown(
    types: &Types<'_>,
    id: MessageId,
    memory: &impl Memory,
    slot: u64,
    cursor: usize,
) -> Result<usize, FaultCode> {
    if slot == 0 {
        return Ok(cursor);
    }
    records(types, id, memory, slot, cursor)
}

#[cold]
fn records(
    types: &Types<'_>,
    id: MessageId,
    memory: &impl Memory,
    slot: u64,
    cursor: usize,
) -> Result<usize, FaultCode> {
    let (off, len) = (slot as u32, (slot >> 32) as usize);
    let records = part(memory, off, cursor, len)?;
    check_unknown(types.program, id, records)?;
    Ok(cursor + len)
}
