//! The handling of values that are extents; the interpreter and machine code share this code.

use crate::bytes::{is_utf8, put};
use crate::{FaultCode, MAX_EXTENTS, MAX_MESSAGE};
use tollgate_schema::EXTENT_FLAG;
use tollgate_schema::layout::align_up;

/// `gather`: collects the length of each extent and of the whole image.
#[derive(Debug)]
pub struct Gathered<'a> {
    lens: &'a mut [u32; MAX_EXTENTS],
    count: usize,
    end: usize,
}

/// `accept`: assigns each extent its place in the image.
#[derive(Debug)]
pub struct Placed {
    count: usize,
    end: usize,
}

impl<'a> Gathered<'a> {
    /// For a block with `inline_len` inline bytes.
    pub fn new(inline_len: usize, lens: &'a mut [u32; MAX_EXTENTS]) -> Gathered<'a> {
        Gathered {
            lens,
            count: 0,
            end: inline_len,
        }
    }

    /// Adds the value with the slot `{off, len}`. Its bytes are elsewhere; their receiver checks
    /// them.
    pub fn extent(&mut self, off: u32, len: u32) -> Result<(), FaultCode> {
        let (_, end) = next(self.count, self.end, off, len)?;
        self.lens[self.count] = len;
        self.count += 1;
        self.end = end;
        Ok(())
    }

    /// The number of extents.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Placed {
    /// For an image with `inline_len` inline bytes.
    pub fn new(inline_len: usize) -> Placed {
        Placed {
            count: 0,
            end: inline_len,
        }
    }

    /// Checks the value with the slot `{off, len}` at `slot`, and writes its final offset into the
    /// slot.
    pub fn extent(
        &mut self,
        image: &mut [u8],
        slot: usize,
        off: u32,
        len: u32,
        utf8: bool,
    ) -> Result<(), FaultCode> {
        let (start, end) = next(self.count, self.end, off, len)?;
        let value = image.get(start..end).ok_or(FaultCode::Truncated)?;
        if utf8 && !is_utf8(value) {
            return Err(FaultCode::NotUtf8);
        }
        put(image, slot, &(start as u32).to_le_bytes()).ok_or(FaultCode::Truncated)?;
        self.count += 1;
        self.end = end;
        Ok(())
    }

    /// The end of the last extent, or the inline length if there was none.
    pub fn end(&self) -> usize {
        self.end
    }
}

/// The range of the extent after `count` others, which end at `end`.
fn next(count: usize, end: usize, off: u32, len: u32) -> Result<(usize, usize), FaultCode> {
    if len == 0 {
        return Err(FaultCode::EmptyWithOffset);
    }
    if count == MAX_EXTENTS {
        return Err(FaultCode::TooManyExtents);
    }
    if off != EXTENT_FLAG | count as u32 {
        return Err(FaultCode::ExtentOrder);
    }
    let start = align_up(end, 8);
    let end = start + len as usize;
    if end > MAX_MESSAGE {
        Err(FaultCode::TooLarge)
    } else {
        Ok((start, end))
    }
}
