//! Encodes an image as protobuf bytes, by interpretation.
//!
//! The output is written from its end to its front. A message's length is known once it has been
//! written, so one pass suffices without measuring first. Fields come out by number, arrays and
//! maps in the block's order, unknown fields last. Entries of maps always have their key and their
//! value.
//!
//! The image has been validated. It is checked again as far as memory safety and termination
//! require: every part lies inside the image, messages nest at most `MAX_DEPTH` deep, and the
//! output ends at `MAX_MESSAGE`, whatever overlaps.

use crate::bytes::{u32_at, u64_at};
use crate::guard::Guard;
use crate::program::{Program, StructProgram};
use crate::wire::{Shape, WireField, WireType, WireValue};
use crate::{Fault, FaultCode, MAX_DEPTH, MAX_MESSAGE};
use tollgate_schema::MessageId;

/// Writes the protobuf encoding of `image` into `out`, a scratch buffer whose content is lost.
/// Returns `start`; the encoding is `out[start..]`.
///
/// `image` has passed `accept`, or `gather` if it has no extents.
pub fn encode(program: &Program, image: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
    let mut encoder = Encoder {
        program,
        image,
        back: Back { at: out.len(), out },
    };
    encoder.structure(program.root_struct(), 0, 1)?;
    Ok(encoder.back.at)
}

struct Encoder<'a> {
    program: &'a Program,
    image: &'a [u8],
    back: Back<'a>,
}

impl Encoder<'_> {
    fn structure(&mut self, of: &StructProgram, at: usize, depth: usize) -> Result<(), Fault> {
        let whole = |code| fault(of.id, None, code);
        self.part(at as u64, u64::from(of.size)).map_err(whole)?;
        if let Some(slot) = of.unknown {
            let records = self.slot_bytes(at + slot as usize).map_err(whole)?;
            self.back.bytes(&self.image[records]).map_err(whole)?;
        }
        for field in of.wire.iter().rev() {
            self.field(of, field, at, depth)?;
        }
        Ok(())
    }

    fn field(
        &mut self,
        of: &StructProgram,
        field: &WireField,
        at: usize,
        depth: usize,
    ) -> Result<(), Fault> {
        let failed = |code| fault(of.id, Some(field.field), code);
        let place = at + field.offset as usize;
        match field.shape {
            Shape::Many { packed } => self.array(of, field, place, packed, depth),
            Shape::One => {
                let told = field.guard != Guard::None || of.unknown.is_none();
                if !self.is_set(field.guard, at).map_err(failed)? {
                    return Ok(());
                }
                match &field.value {
                    WireValue::Bytes { .. } => {
                        let bytes = self.slot_bytes(place).map_err(failed)?;
                        if told || !bytes.is_empty() {
                            self.len_record(field, bytes).map_err(failed)?;
                        }
                        Ok(())
                    }
                    WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                        let off = self.u32(place).map_err(failed)?;
                        match (off, field.guard) {
                            (0, Guard::None) if of.unknown.is_some() => Ok(()),
                            // The value of an entry: empty.
                            (0, Guard::None) => self.len_record(field, 0..0).map_err(failed),
                            (0, _) => Err(failed(FaultCode::MemberMissing)),
                            _ => self.message(of, field, *callee, off as usize, depth),
                        }
                    }
                    value => {
                        let raw = self.scalar(place, value.scalar_size()).map_err(failed)?;
                        if told || raw != 0 {
                            self.value(value, raw).map_err(failed)?;
                            self.tag(field.number, value.wire_type()).map_err(failed)?;
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    fn array(
        &mut self,
        of: &StructProgram,
        field: &WireField,
        slot: usize,
        packed: bool,
        depth: usize,
    ) -> Result<(), Fault> {
        let failed = |code| fault(of.id, Some(field.field), code);
        let (start, count) = (
            self.u32(slot).map_err(failed)? as usize,
            self.u32(slot + 4).map_err(failed)? as usize,
        );
        if count == 0 {
            return Ok(());
        }
        let size = match &field.value {
            WireValue::Bytes { .. } => 8,
            WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                self.program.structs()[*callee].size as usize
            }
            scalar => scalar.scalar_size(),
        };
        self.part(start as u64, count as u64 * size as u64)
            .map_err(failed)?;
        let before = self.back.written();
        for i in (0..count).rev() {
            let at = start + i * size;
            match &field.value {
                WireValue::Bytes { .. } => {
                    let bytes = self.slot_bytes(at).map_err(failed)?;
                    self.len_record(field, bytes).map_err(failed)?;
                }
                WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                    self.message(of, field, *callee, at, depth)?;
                }
                value => {
                    let raw = self.scalar(at, size).map_err(failed)?;
                    self.value(value, raw).map_err(failed)?;
                    if !packed {
                        self.tag(field.number, value.wire_type()).map_err(failed)?;
                    }
                }
            }
        }
        if packed {
            self.len_and_tag(field, before).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the message at `at` as a record of `field`.
    fn message(
        &mut self,
        of: &StructProgram,
        field: &WireField,
        callee: usize,
        at: usize,
        depth: usize,
    ) -> Result<(), Fault> {
        let failed = |code| fault(of.id, Some(field.field), code);
        if depth >= MAX_DEPTH {
            return Err(failed(FaultCode::TooDeep));
        }
        let group = field.value.wire_type() == WireType::Group;
        if group {
            self.tag(field.number, WireType::EndGroup).map_err(failed)?;
        }
        let before = self.back.written();
        let program = self.program;
        self.structure(&program.structs()[callee], at, depth + 1)?;
        if group {
            self.tag(field.number, WireType::Group).map_err(failed)
        } else {
            self.len_and_tag(field, before).map_err(failed)
        }
    }

    fn len_record(
        &mut self,
        field: &WireField,
        bytes: std::ops::Range<usize>,
    ) -> Result<(), FaultCode> {
        let before = self.back.written();
        self.back.bytes(&self.image[bytes])?;
        self.len_and_tag(field, before)
    }

    /// Ends a `Len` record: its payload has been written since `before`.
    fn len_and_tag(&mut self, field: &WireField, before: usize) -> Result<(), FaultCode> {
        let len = self.back.written() - before;
        self.back.varint(len as u64)?;
        self.tag(field.number, WireType::Len)
    }

    fn tag(&mut self, number: u32, wire_type: WireType) -> Result<(), FaultCode> {
        self.back.varint(u64::from(number) << 3 | wire_type as u64)
    }

    fn value(&mut self, value: &WireValue, raw: u64) -> Result<(), FaultCode> {
        match value {
            WireValue::Varint(varint) => self.back.varint(varint.to_wire(raw)),
            WireValue::Closed(_) => self.back.varint(crate::wire::Varint::I32.to_wire(raw)),
            WireValue::Fixed32 => self.back.bytes(&(raw as u32).to_le_bytes()),
            WireValue::Fixed64 => self.back.bytes(&raw.to_le_bytes()),
            WireValue::Bytes { .. } | WireValue::Message { .. } | WireValue::Group { .. } => {
                unreachable!("only scalars are values")
            }
        }
    }

    fn is_set(&self, guard: Guard, at: usize) -> Result<bool, FaultCode> {
        Ok(match guard {
            Guard::None => true,
            Guard::Bit { word, mask } => self.u32(at + word as usize)? & mask != 0,
            Guard::Case { at: case, number } => self.u32(at + case as usize)? == number,
        })
    }

    fn u32(&self, at: usize) -> Result<u32, FaultCode> {
        u32_at(self.image, at).ok_or(FaultCode::Truncated)
    }

    /// A scalar of 1, 4 or 8 bytes, zero-extended.
    fn scalar(&self, at: usize, size: usize) -> Result<u64, FaultCode> {
        let value = match size {
            1 => self.image.get(at).map(|b| u64::from(*b)),
            4 => u32_at(self.image, at).map(u64::from),
            _ => u64_at(self.image, at),
        };
        value.ok_or(FaultCode::Truncated)
    }

    /// The range of the bytes that the slot at `slot` refers to.
    fn slot_bytes(&self, slot: usize) -> Result<std::ops::Range<usize>, FaultCode> {
        let (off, len) = (self.u32(slot)?, self.u32(slot + 4)?);
        if len == 0 {
            return Ok(0..0);
        }
        self.part(u64::from(off), u64::from(len))?;
        Ok(off as usize..off as usize + len as usize)
    }

    fn part(&self, start: u64, len: u64) -> Result<(), FaultCode> {
        if start + len > self.image.len() as u64 {
            Err(FaultCode::Truncated)
        } else {
            Ok(())
        }
    }
}

fn fault(message: MessageId, field: Option<u16>, code: FaultCode) -> Fault {
    // No single field causes a message's length.
    let field = field.filter(|_| code != FaultCode::TooLarge);
    Fault {
        code,
        message,
        field,
    }
}

/// A buffer that is filled from its end.
struct Back<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
}

impl Back<'_> {
    fn written(&self) -> usize {
        self.out.len() - self.at
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), FaultCode> {
        if self.written() + bytes.len() > MAX_MESSAGE {
            return Err(FaultCode::TooLarge);
        }
        if self.at < bytes.len() {
            self.grow(bytes.len());
        }
        let start = self.at - bytes.len();
        self.out[start..self.at].copy_from_slice(bytes);
        self.at = start;
        Ok(())
    }

    fn varint(&mut self, mut number: u64) -> Result<(), FaultCode> {
        let mut bytes = [0; 10];
        let mut len = 0;
        while number >= 0x80 {
            bytes[len] = number as u8 | 0x80;
            number >>= 7;
            len += 1;
        }
        bytes[len] = number as u8;
        self.bytes(&bytes[..=len])
    }

    /// Makes room for at least `more` bytes at the front.
    fn grow(&mut self, more: usize) {
        let (old, at) = (self.out.len(), self.at);
        let new = (old * 2).max(old + more).max(256);
        self.out.resize(new, 0);
        self.out.copy_within(at..old, at + new - old);
        self.at = at + new - old;
    }
}
