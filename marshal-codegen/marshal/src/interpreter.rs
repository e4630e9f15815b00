//! The reference executor: portable, without unsafe, a loop over the steps.
//!
//! It serves a message type until its machine code is ready, and on platforms without machine code.

use crate::bytes::{is_utf8, put, u32_at, u64_at};
pub use crate::decode::decode;
pub use crate::encode::encode;
use crate::extents::{Gathered, Placed};
use crate::guard::Guard;
use crate::limits::MAX_VIEW;
use crate::program::{Op, Program, Step, StructProgram};
use crate::projection::{ENTRY_LEN, Field, HEADER_LEN, Leaf, Projection, find_struct, is_set};
use crate::wire::check_unknown;
use crate::{Fault, FaultCode, MAX_DEPTH, MAX_EXTENTS};
use tollgate_schema::layout::align_up;
use tollgate_schema::{EXTENT_FLAG, MessageId};

/// Validates `block`, a private copy of a block's inline bytes, and lists its extents.
///
/// Writes each extent's length to `lens`, in canonical order, and returns their number. The
/// extents' own bytes aren't available here: the first reader, `accept` or `project`, checks their
/// text.
pub fn gather(
    program: &Program,
    block: &[u8],
    lens: &mut [u32; MAX_EXTENTS],
) -> Result<usize, Fault> {
    program.admit(block.len(), block.len())?;
    let gathered = Gathered::new(block.len(), lens);
    let mut walk = Walk {
        program,
        inline_len: block.len(),
        memory: Gathering { block, gathered },
    };
    walk.root()?;
    Ok(walk.memory.gathered.count())
}

/// Validates a whole image whose first `inline_len` bytes are the inline part, and writes the final
/// offset of each extent into its slot.
///
/// After a fault the image's slots are unspecified, and the image must not be used.
pub fn accept(program: &Program, image: &mut [u8], inline_len: usize) -> Result<(), Fault> {
    let len = image.len();
    program.admit(len, inline_len)?;
    let placed = Placed::new(inline_len);
    let mut walk = Walk {
        program,
        inline_len,
        memory: Accepting { image, placed },
    };
    walk.root()?;
    if walk.memory.placed.end() != len {
        return Err(program.fault(FaultCode::Trailing));
    }
    Ok(())
}

/// Copies the projection's fields of `image` into `view` and returns the view's length.
///
/// `image` has passed `gather` or `accept`. If a value is still an extent, `extent_offsets` holds
/// the offset in `image` at which the caller put each extent. The view's content is checked again
/// as far as memory safety and UTF-8 require, so an image that wasn't validated yields a fault or
/// meaningless values, never a panic.
pub fn project(
    projection: &Projection,
    image: &[u8],
    extent_offsets: &[u32],
    view: &mut [u8],
) -> Result<usize, Fault> {
    let room = view.len().min(MAX_VIEW);
    let at_root = projection.fault(FaultCode::ViewTooLarge);
    let view = view.get_mut(..room).ok_or(at_root)?;
    if image.len() < projection.root_size() {
        return Err(projection.fault(FaultCode::Truncated));
    }
    let mut end = projection.fixed_len();
    if end > room {
        return Err(at_root);
    }
    for (i, field) in projection.fields().iter().enumerate() {
        let at = HEADER_LEN + i * ENTRY_LEN;
        let entry = project_field(field, image, extent_offsets, view, &mut end)
            .map_err(|code| field.fault(code))?;
        put(view, at, &entry).ok_or(at_root)?;
    }
    for i in projection.fields().len()..projection.entries() {
        put(view, HEADER_LEN + i * ENTRY_LEN, &[0; ENTRY_LEN]).ok_or(at_root)?;
    }
    put(view, 0, &(end as u32).to_le_bytes()).ok_or(at_root)?;
    put(view, 4, &(projection.entries() as u32).to_le_bytes()).ok_or(at_root)?;
    Ok(end)
}

/// The walked bytes, and the handling of their extents.
trait Memory {
    fn bytes(&self) -> &[u8];
    fn extent(&mut self, slot: usize, off: u32, len: u32, utf8: bool) -> Result<(), FaultCode>;
}

struct Gathering<'a> {
    block: &'a [u8],
    gathered: Gathered<'a>,
}

impl Memory for Gathering<'_> {
    fn bytes(&self) -> &[u8] {
        self.block
    }

    fn extent(&mut self, _slot: usize, off: u32, len: u32, _utf8: bool) -> Result<(), FaultCode> {
        self.gathered.extent(off, len)
    }
}

struct Accepting<'a> {
    image: &'a mut [u8],
    placed: Placed,
}

impl Memory for Accepting<'_> {
    fn bytes(&self) -> &[u8] {
        self.image
    }

    fn extent(&mut self, slot: usize, off: u32, len: u32, utf8: bool) -> Result<(), FaultCode> {
        self.placed.extent(self.image, slot, off, len, utf8)
    }
}

struct Walk<'p, M> {
    program: &'p Program,
    inline_len: usize,
    memory: M,
}

impl<M: Memory> Walk<'_, M> {
    fn root(&mut self) -> Result<(), Fault> {
        let root = self.program.root_struct();
        let end = self.structure(root, 0, root.size as usize, 1)?;
        if end != self.inline_len {
            return Err(self.program.fault(FaultCode::Trailing));
        }
        Ok(())
    }

    /// Walks the struct at `at`, whose fixed part is in bounds; returns the cursor after its parts.
    fn structure(
        &mut self,
        program: &StructProgram,
        at: usize,
        mut cursor: usize,
        depth: usize,
    ) -> Result<usize, Fault> {
        for step in &program.steps {
            cursor = self.step(program.id, step, at, cursor, depth)?;
        }
        Ok(cursor)
    }

    fn step(
        &mut self,
        id: MessageId,
        step: &Step,
        at: usize,
        cursor: usize,
        depth: usize,
    ) -> Result<usize, Fault> {
        let fault = |code| Fault {
            code,
            message: id,
            field: step.field,
        };
        match step.op {
            Op::Case {
                at: case,
                ref members,
            } => {
                let case = self.u32(at + case as usize).map_err(fault)?;
                if case != 0 && !members.contains(&case) {
                    return Err(fault(FaultCode::BadCase));
                }
                Ok(cursor)
            }
            Op::Required { at: word, mask } => {
                if self.u32(at + word as usize).map_err(fault)? & mask == 0 {
                    return Err(fault(FaultCode::RequiredMissing));
                }
                Ok(cursor)
            }
            Op::Bool { at: byte } => self
                .bools(at + byte as usize, 1)
                .map_err(fault)
                .map(|()| cursor),
            Op::Bytes { slot, utf8, guard } => {
                let slot = at + slot as usize;
                if !self.is_set(guard, at).map_err(fault)? {
                    return self.absent(slot).map_err(fault).map(|()| cursor);
                }
                self.bytes_value(slot, cursor, utf8).map_err(fault)
            }
            Op::Scalars { slot, size, bools } => {
                let (start, end, _) = self
                    .array(at + slot as usize, cursor, size, size)
                    .map_err(fault)?;
                if bools {
                    self.bools(start, end - start).map_err(fault)?;
                }
                Ok(end)
            }
            Op::BytesArray { slot, utf8 } => {
                let (start, end, count) = self
                    .array(at + slot as usize, cursor, 8, 4)
                    .map_err(fault)?;
                (0..count)
                    .try_fold(end, |cursor, i| {
                        self.bytes_value(start + i * 8, cursor, utf8)
                    })
                    .map_err(fault)
            }
            Op::Struct {
                reference,
                callee,
                guard,
            } => {
                let callee = self.callee(callee);
                let part = self
                    .reference(at, reference, cursor, callee.size, guard, depth)
                    .map_err(fault)?;
                part.map_or(Ok(cursor), |(start, end)| {
                    self.structure(callee, start, end, depth + 1)
                })
            }
            Op::Structs { slot, callee } => {
                let callee = self.callee(callee);
                let (start, end, count) = self
                    .array(at + slot as usize, cursor, callee.size, 8)
                    .map_err(fault)?;
                if count > 0 {
                    self.descend(depth).map_err(fault)?;
                }
                // A struct without steps has neither checks nor parts: no loop over its elements.
                let count = if callee.steps.is_empty() { 0 } else { count };
                (0..count).try_fold(end, |cursor, i| {
                    self.structure(callee, start + i * callee.size as usize, cursor, depth + 1)
                })
            }
            Op::Unknown { slot } => {
                let slot = at + slot as usize;
                let (off, len) = (
                    self.u32(slot).map_err(fault)?,
                    self.u32(slot + 4).map_err(fault)?,
                );
                if (off, len) == (0, 0) {
                    return Ok(cursor);
                }
                let end = self.part(off, cursor, len as usize).map_err(fault)?;
                let records = self.memory.bytes().get(cursor..end);
                let records = records.ok_or_else(|| fault(FaultCode::Truncated))?;
                check_unknown(self.program, id, records).map_err(fault)?;
                Ok(end)
            }
        }
    }

    fn u32(&self, at: usize) -> Result<u32, FaultCode> {
        u32_at(self.memory.bytes(), at).ok_or(FaultCode::Truncated)
    }

    /// Checks that a slot or reference is zero.
    fn absent(&self, slot: usize) -> Result<(), FaultCode> {
        match u64_at(self.memory.bytes(), slot) {
            Some(0) => Ok(()),
            _ => Err(FaultCode::NotAbsent),
        }
    }

    fn is_set(&self, guard: Guard, at: usize) -> Result<bool, FaultCode> {
        is_set(guard, self.memory.bytes(), at)
    }

    fn bools(&self, start: usize, len: usize) -> Result<(), FaultCode> {
        let bytes = self
            .memory
            .bytes()
            .get(start..start + len)
            .ok_or(FaultCode::Truncated)?;
        if bytes.iter().all(|b| *b <= 1) {
            Ok(())
        } else {
            Err(FaultCode::BadBool)
        }
    }

    /// Checks the string or bytes value with the slot at `slot`; returns the cursor after it.
    fn bytes_value(&mut self, slot: usize, cursor: usize, utf8: bool) -> Result<usize, FaultCode> {
        let (off, len) = (self.u32(slot)?, self.u32(slot + 4)?);
        if (off, len) == (0, 0) {
            return Ok(cursor);
        }
        if off & EXTENT_FLAG != 0 {
            return self.memory.extent(slot, off, len, utf8).map(|()| cursor);
        }
        let end = self.part(off, cursor, len as usize)?;
        if utf8 && !self.memory.bytes().get(cursor..end).is_some_and(is_utf8) {
            return Err(FaultCode::NotUtf8);
        }
        Ok(end)
    }

    /// Checks a part of `len` bytes that must begin at `start`; returns its end.
    fn part(&self, off: u32, start: usize, len: usize) -> Result<usize, FaultCode> {
        if off as usize != start {
            return Err(FaultCode::Misplaced);
        }
        if len == 0 {
            return Err(FaultCode::EmptyWithOffset);
        }
        // No overflow: `start` is a u32, and a length is below 2^32 elements of less than 2^16
        // bytes.
        let end = start as u64 + len as u64;
        if end > self.inline_len as u64 {
            Err(FaultCode::Truncated)
        } else {
            Ok(end as usize)
        }
    }

    /// Checks the array with the slot at `slot`: returns the start and end of its elements, and
    /// their number.
    fn array(
        &self,
        slot: usize,
        cursor: usize,
        size: u32,
        align: u32,
    ) -> Result<(usize, usize, usize), FaultCode> {
        let (off, count) = (self.u32(slot)?, self.u32(slot + 4)?);
        if (off, count) == (0, 0) {
            return Ok((cursor, cursor, 0));
        }
        let start = align_up(cursor, align as usize);
        let end = self.part(off, start, count as usize * size as usize)?;
        Ok((start, end, count as usize))
    }

    /// Checks a reference to a struct: returns the start and end of its fixed part, or `None` if
    /// it's absent.
    fn reference(
        &self,
        at: usize,
        reference: u32,
        cursor: usize,
        size: u32,
        guard: Guard,
        depth: usize,
    ) -> Result<Option<(usize, usize)>, FaultCode> {
        let off = self.u32(at + reference as usize)?;
        if !self.is_set(guard, at)? {
            return if off == 0 {
                Ok(None)
            } else {
                Err(FaultCode::NotAbsent)
            };
        }
        if off == 0 {
            return if guard == Guard::None {
                Ok(None)
            } else {
                Err(FaultCode::MemberMissing)
            };
        }
        let start = align_up(cursor, 8);
        let end = self.part(off, start, size as usize)?;
        self.descend(depth)?;
        Ok(Some((start, end)))
    }

    fn descend(&self, depth: usize) -> Result<(), FaultCode> {
        if depth >= MAX_DEPTH {
            Err(FaultCode::TooDeep)
        } else {
            Ok(())
        }
    }
}

impl<'p, M> Walk<'p, M> {
    fn callee(&self, index: usize) -> &'p StructProgram {
        &self.program.structs()[index]
    }
}

/// Projects one field: appends its bytes at `end` if it has any, and returns its entry.
fn project_field(
    field: &Field,
    image: &[u8],
    extent_offsets: &[u32],
    view: &mut [u8],
    end: &mut usize,
) -> Result<[u8; ENTRY_LEN], FaultCode> {
    if !field.granted {
        return Ok([0; ENTRY_LEN]);
    }
    let Some(at) = find_leaf(field, image)? else {
        return Ok([0; ENTRY_LEN]);
    };
    let u32_in = |at| u32_at(image, at).ok_or(FaultCode::Truncated);
    let mut entry = [0; ENTRY_LEN];
    entry[..4].copy_from_slice(&field.present.to_le_bytes());
    let value = match field.leaf {
        Leaf::Bool => u64::from(*image.get(at).ok_or(FaultCode::Truncated)?),
        Leaf::I32 => u32_in(at)?.cast_signed() as i64 as u64,
        Leaf::U32 => u64::from(u32_in(at)?),
        Leaf::Word => u64_at(image, at).ok_or(FaultCode::Truncated)?,
        Leaf::Bytes { utf8 } => {
            let bytes = value_bytes(image, u32_in(at)?, u32_in(at + 4)?, extent_offsets, utf8)?;
            let start = *end;
            put(view, start, bytes).ok_or(FaultCode::ViewTooLarge)?;
            *end += bytes.len();
            entry[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            start as u64
        }
    };
    entry[8..].copy_from_slice(&value.to_le_bytes());
    Ok(entry)
}

/// The leaf's offset in the image; `None` if the leaf, or a message on its path, isn't set.
fn find_leaf(field: &Field, image: &[u8]) -> Result<Option<usize>, FaultCode> {
    let Some(at) = find_struct(field, image)? else {
        return Ok(None);
    };
    Ok(is_set(field.guard, image, at)?.then_some(at + field.at as usize))
}

/// The bytes of a value, inline or in an extent. Text of an extent hasn't been checked before.
fn value_bytes<'i>(
    image: &'i [u8],
    off: u32,
    len: u32,
    extent_offsets: &[u32],
    utf8: bool,
) -> Result<&'i [u8], FaultCode> {
    if len == 0 {
        return Ok(&[]);
    }
    let extent = off & EXTENT_FLAG != 0;
    let start = if extent {
        *extent_offsets
            .get((off & !EXTENT_FLAG) as usize)
            .ok_or(FaultCode::ExtentMissing)? as usize
    } else {
        off as usize
    };
    let bytes = image
        .get(start..start.saturating_add(len as usize))
        .ok_or(FaultCode::Truncated)?;
    if extent && utf8 && !is_utf8(bytes) {
        Err(FaultCode::NotUtf8)
    } else {
        Ok(bytes)
    }
}
