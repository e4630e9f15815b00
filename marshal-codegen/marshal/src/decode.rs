//! Decodes protobuf bytes into a block, by interpretation.
//!
//! Records come in any order, arrays in pieces, messages in parts that must be merged; a block has
//! one order. So each struct is read in two passes: the first finds the records of each field (as
//! **runs** of neighbours), the second writes the fields by number. A message in several parts is a
//! list of **pieces**.
//!
//! ```text
//! records      1 1 3 3 2 1        runs of field 1: [1 1] [1], of 3: [3 3], of 2: [2]
//! block        fixed part | 1 1 1 | 2 | 3 3 | unknown
//! ```
//!
//! A record that a later one replaces is not read. The cost is linear in the bytes, times the depth
//! for groups, because the end of a group must be searched for. `MAX_RUNS` bounds the memory beyond
//! the block; encoders write fields in order, so a few runs suffice.

use crate::bytes::is_utf8;
use crate::guard::Guard;
use crate::limits::{MAX_GROUP_DEPTH, MAX_RUNS};
use crate::program::{Op, Program, StructProgram};
use crate::wire::{
    Owner, Record, Shape, Varint, WireField, WireType, WireValue, is_declared, put_varint,
    read_record, read_varint,
};
use crate::{Fault, FaultCode, MAX_DEPTH, MAX_MESSAGE};
use std::ops::Range;
use tollgate_schema::layout::align_up;

/// Reads protobuf bytes into a canonical block without extents, and replaces the content of `out`
/// with it.
///
/// Unknown records are kept. The block passes `gather` and `accept`.
pub fn decode(program: &Program, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    out.clear();
    if bytes.len() > MAX_MESSAGE {
        return Err(program.fault(FaultCode::TooLarge));
    }
    let mut decoder = Decoder {
        program,
        bytes,
        out,
        heads: Vec::new(),
        runs: Vec::new(),
        pieces: Vec::from([Piece {
            start: 0,
            end: bytes.len(),
        }]),
        split: Vec::new(),
    };
    let root = program.root_struct();
    let at = decoder
        .append(root.size as usize, 8)
        .map_err(|code| program.fault(code))?;
    decoder.structure(root, at, 0..1, 1)
}

/// The records of a field.
#[derive(Clone, Copy)]
struct Head {
    first: usize,
    last: usize,
}

impl Head {
    const EMPTY: Head = Head {
        first: usize::MAX,
        last: usize::MAX,
    };
}

/// Adjacent records of one field.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    end: usize,
    /// Start of its last record.
    last: usize,
    /// Index of the field's next run.
    next: usize,
}

/// A part of a message's records.
#[derive(Clone, Copy)]
struct Piece {
    start: usize,
    end: usize,
}

struct Decoder<'a> {
    program: &'a Program,
    bytes: &'a [u8],
    out: &'a mut Vec<u8>,
    // Stacks: each struct uses the part above the level at its entry.
    heads: Vec<Head>,
    runs: Vec<Run>,
    pieces: Vec<Piece>,
    /// Records of unknown values, split off packed records.
    split: Vec<u8>,
}

/// One struct being decoded.
struct Frame<'a> {
    of: &'a StructProgram,
    at: usize,
    depth: usize,
    /// Levels of the stacks on entry.
    heads: usize,
    runs: usize,
    split: usize,
}

impl Frame<'_> {
    fn fault(&self, field: Option<&WireField>, code: FaultCode) -> Fault {
        Fault {
            code,
            message: self.of.id,
            field: field.map(|f| f.field),
        }
    }
}

impl<'a> Decoder<'a> {
    /// Fills the fixed part at `at`, which is zero, from `pieces`, and appends its parts.
    fn structure(
        &mut self,
        of: &'a StructProgram,
        at: usize,
        pieces: Range<usize>,
        depth: usize,
    ) -> Result<(), Fault> {
        let frame = Frame {
            of,
            at,
            depth,
            heads: self.heads.len(),
            runs: self.runs.len(),
            split: self.split.len(),
        };
        let fields = of.wire.len();
        self.heads.resize(frame.heads + fields + 1, Head::EMPTY);
        for piece in pieces {
            self.scan(&frame, self.pieces[piece])
                .map_err(|code| frame.fault(None, code))?;
        }
        for (index, field) in of.wire.iter().enumerate() {
            let head = self.heads[frame.heads + index];
            // A map's entry always has a value, even if the encoding has none.
            let entry = of.unknown.is_none();
            if head.first != usize::MAX || entry && field.value.is_message() {
                self.field(&frame, field, head)?;
            }
        }
        self.unknown(&frame, self.heads[frame.heads + fields])
            .map_err(|code| frame.fault(None, code))?;
        self.heads.truncate(frame.heads);
        self.runs.truncate(frame.runs);
        self.split.truncate(frame.split);
        self.require(&frame)
    }

    /// Assigns the records of one piece to fields.
    fn scan(&mut self, frame: &Frame<'_>, piece: Piece) -> Result<(), FaultCode> {
        let bytes = &self.bytes[..piece.end];
        let mut before = usize::MAX;
        let mut at = piece.start;
        while at < piece.end {
            let record = read_record(bytes, at, MAX_GROUP_DEPTH)?;
            if record.wire_type == WireType::EndGroup {
                return Err(FaultCode::BadGroup);
            }
            let owner = match frame.of.classify(&record, bytes) {
                Owner::Field(index) => {
                    self.choose(frame, index);
                    index
                }
                Owner::Unknown => frame.of.wire.len(),
            };
            let head = frame.heads + owner;
            let last = self.heads[head].last;
            if owner == before && last != usize::MAX {
                let run = &mut self.runs[last];
                (run.end, run.last) = (record.end, at);
            } else {
                self.begin_run(head, at, record.end)?;
            }
            before = owner;
            at = record.end;
        }
        Ok(())
    }

    fn begin_run(&mut self, head: usize, start: usize, end: usize) -> Result<(), FaultCode> {
        let new = self.runs.len();
        if new >= MAX_RUNS {
            return Err(FaultCode::TooScattered);
        }
        self.runs.push(Run {
            start,
            end,
            last: start,
            next: usize::MAX,
        });
        let head = &mut self.heads[head];
        match head.last {
            usize::MAX => head.first = new,
            last => self.runs[last].next = new,
        }
        head.last = new;
        Ok(())
    }

    /// Makes this field the set member of its oneof, and forgets the records of other members.
    fn choose(&mut self, frame: &Frame<'_>, index: usize) {
        let Guard::Case { at, number } = frame.of.wire[index].guard else {
            return;
        };
        let case = frame.at + at as usize;
        let before = u32::from_le_bytes(self.out[case..case + 4].try_into().expect("4 bytes"));
        if before != number {
            if let Ok(other) = frame.of.wire.binary_search_by_key(&before, |f| f.number) {
                self.heads[frame.heads + other] = Head::EMPTY;
            }
            self.put(case, &number.to_le_bytes());
        }
    }

    fn field(&mut self, frame: &Frame<'a>, field: &'a WireField, head: Head) -> Result<(), Fault> {
        let failed = |code| frame.fault(Some(field), code);
        if let Guard::Bit { word, mask } = field.guard {
            let at = frame.at + word as usize + mask.trailing_zeros() as usize / 8;
            self.out[at] |= 1 << (mask.trailing_zeros() % 8);
        }
        let place = frame.at + field.offset as usize;
        match (&field.value, field.shape) {
            (WireValue::Message { callee, .. } | WireValue::Group { callee }, _) => {
                let level = self.pieces.len();
                self.payloads(head).map_err(failed)?;
                self.messages(frame, field, *callee, level)?;
                self.pieces.truncate(level);
                Ok(())
            }
            (WireValue::Bytes { utf8 }, Shape::One) => {
                let record = self.record_at(self.runs[head.last].last);
                self.text(place, &record, *utf8).map_err(failed)
            }
            (WireValue::Bytes { utf8 }, Shape::Many { .. }) => {
                let count = self.each(head, |_, _| Ok(())).map_err(failed)?;
                let start = self.append(count * 8, 4).map_err(failed)?;
                self.slot(place, start, count);
                let mut at = start;
                self.each(head, |decoder, record| {
                    decoder.text(at, record, *utf8)?;
                    at += 8;
                    Ok(())
                })
                .map_err(failed)?;
                Ok(())
            }
            (value, Shape::One) => {
                let record = self.record_at(self.runs[head.last].last);
                let raw = self.raw(value, &record);
                self.put_scalar(place, value.scalar_size(), raw);
                Ok(())
            }
            (value, Shape::Many { .. }) => self
                .scalars(place, field.number, value, head)
                .map_err(failed),
        }
    }

    /// Writes the messages of a field: `pieces` from `level` on are their payloads.
    fn messages(
        &mut self,
        frame: &Frame<'a>,
        field: &WireField,
        callee: usize,
        level: usize,
    ) -> Result<(), Fault> {
        let failed = |code| frame.fault(Some(field), code);
        if frame.depth >= MAX_DEPTH {
            return Err(failed(FaultCode::TooDeep));
        }
        let program = self.program;
        let callee = &program.structs()[callee];
        let (place, size) = (frame.at + field.offset as usize, callee.size as usize);
        let payloads = level..self.pieces.len();
        if field.shape == Shape::One {
            let part = self.append(size, 8).map_err(failed)?;
            self.put(place, &(part as u32).to_le_bytes());
            return self.structure(callee, part, payloads, frame.depth + 1);
        }
        let count = payloads.len();
        let start = self.append(count * size, 8).map_err(failed)?;
        self.slot(place, start, count);
        for (i, piece) in payloads.enumerate() {
            self.structure(callee, start + i * size, piece..piece + 1, frame.depth + 1)?;
        }
        Ok(())
    }

    fn scalars(
        &mut self,
        place: usize,
        number: u32,
        value: &WireValue,
        head: Head,
    ) -> Result<(), FaultCode> {
        let mut count = 0;
        self.each(head, |decoder, record| {
            count += decoder.elements(number, value, record)?;
            Ok(())
        })?;
        let size = value.scalar_size();
        let start = self.append(count * size, size)?;
        self.slot(place, start, count);
        let mut to = start;
        self.each(head, |decoder, record| {
            if record.wire_type == value.wire_type() {
                let raw = decoder.raw(value, record);
                decoder.put_scalar(to, size, raw);
                to += size;
                return Ok(());
            }
            let mut at = record.payload;
            while at < record.payload_end {
                let (raw, next) = decoder.packed(value, at)?;
                at = next;
                if let Some(raw) = raw {
                    decoder.put_scalar(to, size, raw);
                    to += size;
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// The number of elements in an array's record. Values that a closed enum doesn't declare
    /// become unknown fields.
    fn elements(
        &mut self,
        number: u32,
        value: &WireValue,
        record: &Record,
    ) -> Result<usize, FaultCode> {
        if record.wire_type == value.wire_type() {
            return Ok(1);
        }
        let len = record.payload_end - record.payload;
        match value.wire_type() {
            WireType::Fixed32 | WireType::Fixed64 => {
                if len.is_multiple_of(value.scalar_size()) {
                    Ok(len / value.scalar_size())
                } else {
                    Err(FaultCode::RecordTruncated)
                }
            }
            _ => {
                let bytes = &self.bytes[..record.payload_end];
                let mut count = 0;
                let mut at = record.payload;
                while at < record.payload_end {
                    let (raw, next) = read_varint(bytes, at)?;
                    at = next;
                    match value {
                        WireValue::Closed(values) if !is_declared(values, raw) => {
                            put_varint(&mut self.split, u64::from(number) << 3);
                            put_varint(&mut self.split, raw);
                        }
                        _ => count += 1,
                    }
                }
                Ok(count)
            }
        }
    }

    /// The element at `at` of a packed record that [`Decoder::elements`] has counted, in its block
    /// form, and the offset of the next one; `None` for an element that became an unknown field.
    fn packed(&self, value: &WireValue, at: usize) -> Result<(Option<u64>, usize), FaultCode> {
        Ok(match value.wire_type() {
            WireType::Fixed32 => (Some(self.little_endian(at, 4)), at + 4),
            WireType::Fixed64 => (Some(self.little_endian(at, 8)), at + 8),
            _ => {
                let (raw, next) = read_varint(self.bytes, at)?;
                match value {
                    WireValue::Closed(values) if !is_declared(values, raw) => (None, next),
                    _ => (Some(to_block(value, raw)), next),
                }
            }
        })
    }

    /// A record's single value, in its block form.
    fn raw(&self, value: &WireValue, record: &Record) -> u64 {
        match record.wire_type {
            WireType::Fixed32 => self.little_endian(record.payload, 4),
            WireType::Fixed64 => self.little_endian(record.payload, 8),
            _ => to_block(value, record.varint),
        }
    }

    fn little_endian(&self, at: usize, len: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&self.bytes[at..at + len]);
        u64::from_le_bytes(bytes)
    }

    /// Appends the bytes of a record, and writes their slot.
    fn text(&mut self, slot: usize, record: &Record, utf8: bool) -> Result<(), FaultCode> {
        let bytes = &self.bytes[record.payload..record.payload_end];
        if utf8 && !is_utf8(bytes) {
            return Err(FaultCode::NotUtf8);
        }
        let at = self.append(bytes.len(), 1)?;
        self.put(at, bytes);
        self.slot(slot, at, bytes.len());
        Ok(())
    }

    /// Appends the unknown records, after all other parts.
    fn unknown(&mut self, frame: &Frame<'_>, head: Head) -> Result<(), FaultCode> {
        // A map's entry keeps no unknown fields.
        let Some(slot) = frame.of.unknown else {
            return Ok(());
        };
        let start = self.out.len();
        let mut next = head.first;
        while next != usize::MAX {
            let run = self.runs[next];
            let bytes = &self.bytes[run.start..run.end];
            let at = self.append(bytes.len(), 1)?;
            self.put(at, bytes);
            next = run.next;
        }
        let split = self.split.split_off(frame.split);
        let at = self.append(split.len(), 1)?;
        self.put(at, &split);
        self.slot(frame.at + slot as usize, start, self.out.len() - start);
        Ok(())
    }

    fn require(&self, frame: &Frame<'_>) -> Result<(), Fault> {
        for step in &frame.of.steps {
            if let Op::Required { at, mask } = step.op {
                let at = frame.at + at as usize;
                let word = u32::from_le_bytes(self.out[at..at + 4].try_into().expect("4 bytes"));
                if word & mask == 0 {
                    return Err(Fault {
                        code: FaultCode::RequiredMissing,
                        message: frame.of.id,
                        field: step.field,
                    });
                }
            }
        }
        Ok(())
    }

    /// Pushes the payload of each of a field's records as a piece.
    fn payloads(&mut self, head: Head) -> Result<(), FaultCode> {
        self.each(head, |decoder, record| {
            if decoder.pieces.len() >= MAX_RUNS {
                return Err(FaultCode::TooScattered);
            }
            decoder.pieces.push(Piece {
                start: record.payload,
                end: record.payload_end,
            });
            Ok(())
        })?;
        Ok(())
    }

    /// Calls `f` for each record of a field; returns their number.
    fn each(
        &mut self,
        head: Head,
        mut f: impl FnMut(&mut Self, &Record) -> Result<(), FaultCode>,
    ) -> Result<usize, FaultCode> {
        let mut count = 0;
        let mut next = head.first;
        while next != usize::MAX {
            let run = self.runs[next];
            let mut at = run.start;
            while at < run.end {
                let record = self.record_at(at);
                f(self, &record)?;
                count += 1;
                at = record.end;
            }
            next = run.next;
        }
        Ok(count)
    }

    /// Reads a record again that `scan` has read before.
    fn record_at(&self, at: usize) -> Record {
        read_record(self.bytes, at, MAX_GROUP_DEPTH).expect("it was read before")
    }

    /// Appends zeros at the next multiple of `align`; returns their offset. For an empty part it
    /// appends nothing, not even padding.
    fn append(&mut self, len: usize, align: usize) -> Result<usize, FaultCode> {
        if len == 0 {
            return Ok(self.out.len());
        }
        let at = align_up(self.out.len(), align);
        if at + len > MAX_MESSAGE {
            return Err(FaultCode::TooLarge);
        }
        self.out.resize(at + len, 0);
        Ok(at)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.out[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_scalar(&mut self, at: usize, size: usize, raw: u64) {
        self.put(at, &raw.to_le_bytes()[..size]);
    }

    /// Writes a slot unless it's empty: an empty slot stays zero.
    fn slot(&mut self, at: usize, off: usize, len: usize) {
        let value = (off as u64) | (len as u64) << 32;
        self.put(at, &if len == 0 { 0 } else { value }.to_le_bytes());
    }
}

/// Converts a varint's number to the block's value.
fn to_block(value: &WireValue, number: u64) -> u64 {
    match value {
        WireValue::Varint(varint) => varint.to_block(number),
        _ => Varint::I32.to_block(number),
    }
}
