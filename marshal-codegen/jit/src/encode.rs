//! Emits the protobuf encoding of an image: one function per struct type, writing from the end of a
//! buffer to its front.
//!
//! ```text
//! encode(image, image_len, struct, floor, back, depth) -> where its records begin, or a raw fault, or no room
//! ```
//!
//! `struct` is the address of a fixed part that the caller has checked to be in bounds; records are
//! written before `back` and never below `floor`. Room is checked once per struct for everything of
//! fixed length (its **budget**: tags, lengths, single scalars), and again, with the budget on top,
//! wherever bytes of variable length are written. Without room the root's caller tries again with a
//! longer buffer. Order, checks and faults are the interpreter's.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, FuncRef, InstBuilder, Type, Value, types};
use tollgate_marshal::program::{Guard, Program, StructProgram};
use tollgate_marshal::wire::{Shape, Varint, WireField, WireType, WireValue};
use tollgate_marshal::{FaultCode, MAX_DEPTH};

use crate::emit::{Emit, Helper, Place};
use crate::limits::MAX_INLINED_FIELDS;

/// The number of parameters of an encoder.
pub(crate) const PARAMS: usize = 6;

/// The helpers that it calls.
pub(crate) const HELPERS: &[Helper] = &[Helper::Copy, Helper::PutVarint];

/// Returned instead of an address if the buffer is too short. No fault has this code.
pub(crate) const NO_ROOM: i64 = i64::MIN | 0xff;

/// The longest tag, and the longest length, in bytes.
const MAX_TAG: i64 = 5;
/// The longest varint in bytes.
const MAX_VARINT: i64 = 10;
/// The bytes that are copied at once.
pub(crate) const CHUNK: i64 = 16;

/// Emits the body of the encoder of one struct type. `function_of` returns the encoder of another,
/// by its index.
pub(crate) fn emit_encode(
    mut emit: Emit<'_, '_>,
    params: &[Value],
    program: &Program,
    index: usize,
    function_of: &mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
) {
    let [image, image_len, at, floor, back, depth] = *params else {
        unreachable!("an encoder has {PARAMS} parameters");
    };
    let mut body = Encoder {
        emit: &mut emit,
        program,
        image,
        image_len,
        floor,
        function_of,
    };
    let back = body.structure(&program.structs()[index], at, back, depth);
    emit.close(back);
}

struct Encoder<'w, 'a, 'f> {
    emit: &'w mut Emit<'a, 'f>,
    program: &'w Program,
    image: Value,
    image_len: Value,
    floor: Value,
    function_of: &'w mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
}

/// The struct being written.
#[derive(Clone, Copy)]
struct Here<'p> {
    of: &'p StructProgram,
    at: Value,
    depth: Value,
    /// The lower limit for bytes of variable length, which leaves room for its parts of fixed
    /// length.
    limit: Value,
}

impl Here<'_> {
    fn place(&self, field: &WireField) -> Place {
        Place {
            message: self.of.id,
            field: Some(field.field),
        }
    }
}

impl Encoder<'_, '_, '_> {
    /// Writes the records of a struct before `back`; returns their start.
    fn structure(&mut self, of: &StructProgram, at: Value, mut back: Value, depth: Value) -> Value {
        let limit = self.emit.add_constant(self.floor, budget(of));
        let here = Here {
            of,
            at,
            depth,
            limit,
        };
        self.require_room(back, &here);
        if let Some(slot) = of.unknown {
            back = self.unknown(&here, slot, back);
        }
        for field in of.wire.iter().rev() {
            back = self.field(&here, field, back);
        }
        back
    }

    /// Leaves unless there is room for the struct's budget before `start`.
    fn require_room(&mut self, start: Value, here: &Here<'_>) {
        // Signed: addresses are positive, and the subtracted number is below 2^36.
        let short = self.emit.compare(IntCC::SignedLessThan, start, here.limit);
        self.emit.leave_with(short, NO_ROOM);
    }

    fn unknown(&mut self, here: &Here<'_>, slot: u32, back: Value) -> Value {
        let (some, done) = (self.emit.cold_block(), self.emit.block(1));
        let value = self.emit.load(types::I64, here.at, slot);
        let (off, len) = self.emit.halves(value);
        self.emit.branch(len, (some, &[]), (done, &[back]));
        self.emit.enter(some);
        let place = Place {
            message: here.of.id,
            field: None,
        };
        let start = self.copy(off, len, back, here, place);
        self.emit.jump(done, &[start]);
        self.emit.enter(done)[0]
    }

    fn field(&mut self, here: &Here<'_>, field: &WireField, back: Value) -> Value {
        match (&field.value, field.shape) {
            (value, Shape::One) => {
                let done = self.emit.block(1);
                if let Some(set) = self.emit.is_set(field.guard, here.at) {
                    let present = self.emit.block(0);
                    self.emit.branch(set, (present, &[]), (done, &[back]));
                    self.emit.enter(present);
                }
                let back = match value {
                    WireValue::Bytes { .. } => self.bytes_field(here, field, back, done),
                    WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                        self.message_field(here, field, *callee, back, done)
                    }
                    _ => self.scalar_field(here, field, back, done),
                };
                self.emit.jump(done, &[back]);
                self.emit.enter(done)[0]
            }
            (_, Shape::Many { packed }) => self.array(here, field, packed, back),
        }
    }

    /// Whether the value alone decides if the field is written.
    fn told_by_value(&self, here: &Here<'_>, field: &WireField) -> bool {
        field.guard == Guard::None && here.of.unknown.is_some()
    }

    /// Continues if `value` isn't 0, else at `done` with nothing written.
    fn unless_zero(&mut self, value: Value, back: Value, done: Block) {
        let some = self.emit.block(0);
        self.emit.branch(value, (some, &[]), (done, &[back]));
        self.emit.enter(some);
    }

    fn scalar_field(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        back: Value,
        done: Block,
    ) -> Value {
        let raw = self.scalar(here.at, field.offset, &field.value);
        if self.told_by_value(here, field) {
            self.unless_zero(raw, back, done);
        }
        let back = self.value(&field.value, raw, back);
        self.tag(field.number, field.value.wire_type(), back)
    }

    fn bytes_field(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        back: Value,
        done: Block,
    ) -> Value {
        let slot = self.emit.load(types::I64, here.at, field.offset);
        let (off, len) = self.emit.halves(slot);
        if self.told_by_value(here, field) {
            self.unless_zero(len, back, done);
            let back = self.copy(off, len, back, here, here.place(field));
            return self.len_and_tag(field, len, back);
        }
        self.bytes(here, field, off, len, back)
    }

    /// A `Len` record of bytes that may be empty.
    fn bytes(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        off: Value,
        len: Value,
        back: Value,
    ) -> Value {
        let (some, written) = (self.emit.block(0), self.emit.block(1));
        self.emit.branch(len, (some, &[]), (written, &[back]));
        self.emit.enter(some);
        let back = self.copy(off, len, back, here, here.place(field));
        self.emit.jump(written, &[back]);
        let back = self.emit.enter(written)[0];
        self.len_and_tag(field, len, back)
    }

    /// Copies bytes of the image before `back` and leaves room for the budget.
    fn copy(
        &mut self,
        off: Value,
        len: Value,
        back: Value,
        here: &Here<'_>,
        place: Place,
    ) -> Value {
        let end = self.require_in_image(off, len, place);
        let start = self.emit.builder.ins().isub(back, len);
        self.require_room(start, here);
        let (short, long, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(0));
        // A short value is copied together with the bytes before it in the image: later records
        // overwrite those. The budget leaves room for them.
        let fits = self
            .emit
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThanOrEqual, len, CHUNK);
        self.emit.branch(fits, (short, &[]), (long, &[]));
        self.emit.enter(short);
        let lies_deep =
            self.emit
                .builder
                .ins()
                .icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, end, CHUNK);
        let chunk = self.emit.block(0);
        self.emit.branch(lies_deep, (chunk, &[]), (long, &[]));
        self.emit.enter(chunk);
        let from = self.emit.add(self.image, end);
        let from = self.emit.add_constant(from, -CHUNK);
        let to = self.emit.add_constant(back, -CHUNK);
        let bytes = self.emit.load(types::I8X16, from, 0);
        self.emit.store(bytes, to, 0);
        self.emit.jump(done, &[]);
        self.emit.enter(long);
        let from = self.emit.add(self.image, off);
        self.emit.help(Helper::Copy, &[start, from, len]);
        self.emit.jump(done, &[]);
        self.emit.enter(done);
        start
    }

    /// The end of a part, after checking that it is inside the image.
    fn require_in_image(&mut self, off: Value, len: Value, place: Place) -> Value {
        let end = self.emit.add(off, len);
        let out = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, end, self.image_len);
        self.emit.fail_if(out, place, FaultCode::Truncated);
        end
    }

    fn message_field(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        callee: usize,
        back: Value,
        done: Block,
    ) -> Value {
        let off = self.emit.load_u32(here.at, field.offset);
        if self.told_by_value(here, field) {
            self.unless_zero(off, back, done);
        } else if field.guard == Guard::None {
            // The value of a map's entry: absent means empty.
            let (some, none) = (self.emit.block(0), self.emit.cold_block());
            self.emit.branch(off, (some, &[]), (none, &[]));
            self.emit.enter(none);
            let zero = self.emit.constant(0);
            let empty = self.len_and_tag(field, zero, back);
            self.emit.jump(done, &[empty]);
            self.emit.enter(some);
        } else {
            let missing = self.emit.is_zero(off);
            self.emit
                .fail_if(missing, here.place(field), FaultCode::MemberMissing);
        }
        self.require_depth(here, field);
        self.message(here, field, callee, off, back)
    }

    fn require_depth(&mut self, here: &Here<'_>, field: &WireField) {
        // Unvalidated images may nest without limit, whatever their type.
        let deep = self.emit.builder.ins().icmp_imm_u(
            IntCC::UnsignedGreaterThanOrEqual,
            here.depth,
            MAX_DEPTH as i64,
        );
        self.emit
            .fail_if(deep, here.place(field), FaultCode::TooDeep);
    }

    /// Writes the message whose fixed part is at offset `off`, as a record.
    fn message(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        callee: usize,
        off: Value,
        back: Value,
    ) -> Value {
        let program = self.program;
        let of = &program.structs()[callee];
        let group = field.value.wire_type() == WireType::Group;
        let end = match group {
            true => self.tag(field.number, WireType::EndGroup, back),
            false => back,
        };
        let size = self.emit.constant(i64::from(of.size));
        let place = Place {
            message: of.id,
            field: None,
        };
        self.require_in_image(off, size, place);
        let at = self.emit.add(self.image, off);
        let deeper = self.emit.add_constant(here.depth, 1);
        let start = if is_inlined(of) {
            self.structure(of, at, end, deeper)
        } else {
            let function = (self.function_of)(self.emit, callee);
            let arguments = [self.image, self.image_len, at, self.floor, end, deeper];
            let start = self.emit.call(function, &arguments);
            let failed = self
                .emit
                .builder
                .ins()
                .icmp_imm_s(IntCC::SignedLessThan, start, 0);
            self.emit.leave_if(failed, start);
            start
        };
        self.require_room(start, here);
        if group {
            return self.tag(field.number, WireType::Group, start);
        }
        let len = self.emit.builder.ins().isub(end, start);
        self.len_and_tag(field, len, start)
    }

    fn array(&mut self, here: &Here<'_>, field: &WireField, packed: bool, back: Value) -> Value {
        let (some, done) = (self.emit.block(0), self.emit.block(1));
        let slot = self.emit.load(types::I64, here.at, field.offset);
        let (off, count) = self.emit.halves(slot);
        self.emit.branch(count, (some, &[]), (done, &[back]));
        self.emit.enter(some);
        let size = match &field.value {
            WireValue::Bytes { .. } => 8,
            WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                self.program.structs()[*callee].size as usize
            }
            scalar => scalar.scalar_size(),
        };
        let bytes = self.emit.builder.ins().imul_imm_u(count, size as i64);
        self.require_in_image(off, bytes, here.place(field));
        let start = if packed {
            self.packed(here, field, off, count, bytes, back)
        } else {
            if field.value.is_message() {
                self.require_depth(here, field);
            }
            self.elements(here, field, off, bytes, size as i64, back)
        };
        self.emit.jump(done, &[start]);
        self.emit.enter(done)[0]
    }

    /// Writes one record per element, from the last to the first.
    fn elements(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        off: Value,
        bytes: Value,
        size: i64,
        back: Value,
    ) -> Value {
        let (again, done) = (self.emit.block(2), self.emit.block(1));
        let end = self.emit.add(off, bytes);
        self.emit.jump(again, &[end, back]);
        let state = self.emit.enter(again);
        let element = self.emit.add_constant(state[0], -size);
        let at = self.emit.add(self.image, element);
        let back = state[1];
        // The budget has room for one tag, length or scalar of the field; each element needs its
        // own.
        self.require_room(back, here);
        let start = match &field.value {
            WireValue::Bytes { .. } => {
                let slot = self.emit.load(types::I64, at, 0);
                let (off, len) = self.emit.halves(slot);
                self.bytes(here, field, off, len, back)
            }
            WireValue::Message { callee, .. } | WireValue::Group { callee } => {
                self.message(here, field, *callee, element, back)
            }
            value => {
                let raw = self.scalar(at, 0, value);
                let back = self.value(value, raw, back);
                self.tag(field.number, value.wire_type(), back)
            }
        };
        let more = self.emit.compare(IntCC::UnsignedGreaterThan, element, off);
        self.emit
            .branch(more, (again, &[element, start]), (done, &[start]));
        let start = self.emit.enter(done)[0];
        self.require_room(start, here);
        start
    }

    /// Writes all elements in one record.
    fn packed(
        &mut self,
        here: &Here<'_>,
        field: &WireField,
        off: Value,
        count: Value,
        bytes: Value,
        back: Value,
    ) -> Value {
        if matches!(field.value, WireValue::Fixed32 | WireValue::Fixed64) {
            // The block's form is the wire's.
            let start = self.copy(off, bytes, back, here, here.place(field));
            return self.len_and_tag(field, bytes, start);
        }
        let most = self.emit.builder.ins().imul_imm_u(count, MAX_VARINT);
        let least = self.emit.builder.ins().isub(back, most);
        self.require_room(least, here);
        let size = field.value.scalar_size() as i64;
        let (again, done) = (self.emit.block(2), self.emit.block(1));
        let first = self.emit.add(self.image, off);
        let end = self.emit.add(first, bytes);
        self.emit.jump(again, &[end, back]);
        let state = self.emit.enter(again);
        let element = self.emit.add_constant(state[0], -size);
        let raw = self.scalar(element, 0, &field.value);
        let start = self.value(&field.value, raw, state[1]);
        let more = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, element, first);
        self.emit
            .branch(more, (again, &[element, start]), (done, &[start]));
        let start = self.emit.enter(done)[0];
        let len = self.emit.builder.ins().isub(back, start);
        self.len_and_tag(field, len, start)
    }

    /// Loads a scalar of a block, zero-extended.
    fn scalar(&mut self, at: Value, offset: u32, value: &WireValue) -> Value {
        match value.scalar_size() {
            1 => {
                let byte = self.emit.load(types::I8, at, offset);
                self.emit.builder.ins().uextend(types::I64, byte)
            }
            4 => self.emit.load_u32(at, offset),
            _ => self.emit.load(types::I64, at, offset),
        }
    }

    /// Writes the payload of a scalar before `back`.
    fn value(&mut self, value: &WireValue, raw: Value, back: Value) -> Value {
        match value {
            WireValue::Fixed32 => self.store_before(back, types::I32, raw),
            WireValue::Fixed64 => self.store_before(back, types::I64, raw),
            WireValue::Varint(varint) => {
                let number = self.wire_number(*varint, raw);
                self.varint(number, back)
            }
            _ => {
                let number = self.wire_number(Varint::I32, raw);
                self.varint(number, back)
            }
        }
    }

    /// Like [`Varint::to_wire`].
    fn wire_number(&mut self, varint: Varint, raw: Value) -> Value {
        match varint {
            Varint::U32 | Varint::Word => raw,
            Varint::I32 => {
                let narrow = self.emit.builder.ins().ireduce(types::I32, raw);
                self.emit.builder.ins().sextend(types::I64, narrow)
            }
            Varint::Bool => {
                let set = self.emit.builder.ins().icmp_imm_u(IntCC::NotEqual, raw, 0);
                self.emit.builder.ins().uextend(types::I64, set)
            }
            Varint::Zigzag64 => {
                let twice = self.emit.builder.ins().ishl_imm_u(raw, 1);
                let sign = self.emit.builder.ins().sshr_imm_u(raw, 63);
                self.emit.builder.ins().bxor(twice, sign)
            }
            Varint::Zigzag32 => {
                let narrow = self.emit.builder.ins().ireduce(types::I32, raw);
                let twice = self.emit.builder.ins().ishl_imm_u(narrow, 1);
                let sign = self.emit.builder.ins().sshr_imm_u(narrow, 31);
                let zigzag = self.emit.builder.ins().bxor(twice, sign);
                self.emit.builder.ins().uextend(types::I64, zigzag)
            }
        }
    }

    fn len_and_tag(&mut self, field: &WireField, len: Value, back: Value) -> Value {
        let (tag, tag_len) = tag_bytes(field.number, WireType::Len);
        if tag_len > 1 {
            let back = self.varint(len, back);
            return self.tag(field.number, WireType::Len, back);
        }
        // Both are usually one byte: one store.
        let (short, long, done) = (
            self.emit.block(0),
            self.emit.cold_block(),
            self.emit.block(1),
        );
        let fits = self
            .emit
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThan, len, 0x80);
        self.emit.branch(fits, (short, &[]), (long, &[]));
        self.emit.enter(short);
        let high = self.emit.builder.ins().ishl_imm_u(len, 8);
        let both = self.emit.builder.ins().bor_imm_u(high, tag as i64);
        let start = self.store_before(back, types::I16, both);
        self.emit.jump(done, &[start]);
        self.emit.enter(long);
        let start = self.emit.help(Helper::PutVarint, &[back, len]);
        let start = self.tag(field.number, WireType::Len, start);
        self.emit.jump(done, &[start]);
        self.emit.enter(done)[0]
    }

    /// Writes a varint before `back`: one byte in place, longer ones by a helper.
    fn varint(&mut self, number: Value, back: Value) -> Value {
        let (short, long, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(1));
        let fits = self
            .emit
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThan, number, 0x80);
        self.emit.branch(fits, (short, &[]), (long, &[]));
        self.emit.enter(short);
        let start = self.store_before(back, types::I8, number);
        self.emit.jump(done, &[start]);
        self.emit.enter(long);
        let start = self.emit.help(Helper::PutVarint, &[back, number]);
        self.emit.jump(done, &[start]);
        self.emit.enter(done)[0]
    }

    fn tag(&mut self, number: u32, wire_type: WireType, back: Value) -> Value {
        let (bytes, len) = tag_bytes(number, wire_type);
        let mut back = back;
        // From the last byte to the first, in the largest pieces.
        let mut end = len;
        while end > 0 {
            let (width, of) = match end {
                1 => (1, types::I8),
                2 | 3 => (2, types::I16),
                _ => (4, types::I32),
            };
            let piece = bytes >> (8 * (end - width));
            let value = self.emit.constant((piece & 0xffff_ffff) as i64);
            back = self.store_before(back, of, value);
            end -= width;
        }
        back
    }

    /// Stores the low bytes of `value` before `back`; returns their start.
    fn store_before(&mut self, back: Value, of: Type, value: Value) -> Value {
        let start = self.emit.add_constant(back, -i64::from(of.bytes()));
        let narrow = if of == types::I64 {
            value
        } else {
            self.emit.builder.ins().ireduce(of, value)
        };
        self.emit.store(narrow, start, 0);
        start
    }
}

/// A tag in wire form, first byte lowest, and its length.
pub(crate) fn tag_bytes(number: u32, wire_type: WireType) -> (u64, usize) {
    let mut tag = u64::from(number) << 3 | wire_type as u64;
    let (mut bytes, mut len) = (0, 0);
    loop {
        let more = u64::from(tag >= 0x80) << 7;
        bytes |= (tag & 0x7f | more) << (8 * len);
        len += 1;
        tag >>= 7;
        if more == 0 {
            return (bytes, len);
        }
    }
}

/// Whether structs of this type have no function of their own, except as a root.
pub(crate) fn is_inlined(of: &StructProgram) -> bool {
    of.wire.len() <= MAX_INLINED_FIELDS && !of.wire.iter().any(|f| f.value.is_message())
}

/// The most bytes for the tags, lengths and single scalars of a struct, and for the bytes that a
/// short copy overwrites.
fn budget(of: &StructProgram) -> i64 {
    let of_field = |field: &WireField| match &field.value {
        WireValue::Fixed32 | WireValue::Fixed64 => MAX_TAG + 8,
        WireValue::Varint(_) | WireValue::Closed(_) => MAX_TAG + MAX_VARINT,
        WireValue::Bytes { .. } | WireValue::Message { .. } => MAX_TAG + MAX_TAG,
        WireValue::Group { .. } => 2 * MAX_TAG,
    };
    let fields: i64 = of.wire.iter().map(of_field).sum();
    fields + CHUNK
}
