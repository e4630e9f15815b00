//! Emits the decoder from protobuf bytes into a block: one function per struct type, for messages
//! in the usual form of encoders.
//!
//! ```text
//! decode(at, end, out, struct, cursor, context, depth) -> cursor after the struct's parts, or bail, or no room
//! ```
//!
//! `at..end` are the records, `out` is the block's start, `struct` and `cursor` are offsets in it;
//! the fixed part at `struct` is zero. The decoder expects fields in order of their numbers, each
//! once, arrays in one piece and in the schema's form, and unknown records only at the end. For any
//! other message, and for any error, it **bails**: the interpreter then decodes the message from
//! its beginning, and alone decides about faults. So this code decides nothing; it is a fast path
//! that must produce exactly the interpreter's bytes.
//!
//! It is one file because its functions call each other in a circle: messages have fields, which
//! are messages.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, FuncRef, InstBuilder, Value, types};
use tollgate_marshal::program::{Guard, Op, Program, StructProgram};
use tollgate_marshal::wire::{Shape, Varint, WireField, WireType, WireValue};
use tollgate_marshal::{MAX_DEPTH, wire};

use crate::emit::{Emit, Helper};
use crate::encode::{CHUNK, NO_ROOM, is_inlined, tag_bytes};

/// The number of parameters of a decoder.
pub(crate) const PARAMS: usize = 7;

/// The helpers that it calls.
pub(crate) const HELPERS: &[Helper] = &[
    Helper::IsUtf8,
    Helper::Copy,
    Helper::Zero,
    Helper::GetVarint,
    Helper::AllUnknown,
    Helper::CountVarints,
    Helper::Unpack,
];

/// Returned instead of a cursor if the interpreter must decode the message.
pub(crate) const BAIL: i64 = i64::MIN | 0xfe;

/// The offsets of the context's words; `machine` asserts them.
pub(crate) const CONTEXT_ROOM: u32 = 0;
pub(crate) const CONTEXT_NUMBER: u32 = 8;

/// The longest fixed part that is zeroed in place, in bytes.
const ZEROED_IN_PLACE: u32 = 128;

/// Emits the body of the decoder of one struct type. `function_of` returns the decoder of another,
/// by its index.
pub(crate) fn emit_decode(
    mut emit: Emit<'_, '_>,
    params: &[Value],
    program: &Program,
    index: usize,
    function_of: &mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
) {
    let [at, end, out, offset, cursor, context, depth] = *params else {
        unreachable!("a decoder has {PARAMS} parameters");
    };
    let room = emit.load(types::I64, context, CONTEXT_ROOM);
    let mut body = Decoder {
        emit: &mut emit,
        program,
        out,
        room,
        context,
        depth,
        function_of,
    };
    let cursor = body.structure(index, offset, Reading { at, cursor }, end);
    emit.close(cursor);
}

struct Decoder<'w, 'a, 'f> {
    emit: &'w mut Emit<'a, 'f>,
    program: &'w Program,
    out: Value,
    /// The bytes that the block may use.
    room: Value,
    context: Value,
    depth: Value,
    function_of: &'w mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
}

/// The position of the decoder.
#[derive(Clone, Copy)]
struct Reading {
    /// The address of the next record.
    at: Value,
    /// The offset after the last part.
    cursor: Value,
}

/// The struct being read.
#[derive(Clone, Copy)]
struct Here {
    /// The address of its fixed part.
    part: Value,
    /// The end of its records.
    end: Value,
}

/// An array's elements: their number, and the size and alignment of each in bytes.
#[derive(Clone, Copy)]
struct Elements {
    count: Value,
    size: i64,
    align: i64,
}

impl Decoder<'_, '_, '_> {
    /// Decodes all records up to `end`; returns the cursor.
    fn structure(&mut self, index: usize, offset: Value, from: Reading, end: Value) -> Value {
        let program = self.program;
        let of = &program.structs()[index];
        let here = Here {
            part: self.emit.add(self.out, offset),
            end,
        };
        let mut reading = from;
        for field in &of.wire {
            if let Some(wire_type) = expected(field) {
                reading = self.field(of, &here, field, wire_type, reading);
            }
        }
        self.require(of, &here);
        self.rest(index, of, &here, reading)
    }

    fn field(
        &mut self,
        of: &StructProgram,
        here: &Here,
        field: &WireField,
        wire_type: WireType,
        from: Reading,
    ) -> Reading {
        let (absent, next) = (self.emit.block(0), self.emit.block(2));
        let after_tag = self.require_tag(field.number, wire_type, from.at, here.end, absent);
        let read = match (&field.value, field.shape) {
            (WireValue::Bytes { utf8 }, Shape::One) => {
                self.set(here, field);
                let slot = self.emit.add_constant(here.part, i64::from(field.offset));
                self.text(here, after_tag, from.cursor, *utf8, slot)
            }
            (WireValue::Message { callee, .. }, Shape::One) => {
                self.set(here, field);
                self.message(here, field, *callee, after_tag, from.cursor)
            }
            (value, Shape::One) => {
                self.set(here, field);
                let (raw, at) = self.scalar(here, value, after_tag);
                self.store_scalar(value, raw, here.part, field.offset);
                Reading {
                    at,
                    cursor: from.cursor,
                }
            }
            (WireValue::Bytes { utf8 }, _) => self.texts(here, field, *utf8, from),
            (WireValue::Message { callee, .. }, _) => self.messages(here, field, *callee, from),
            (value, Shape::Many { packed: true }) => {
                self.packed(here, field, value, after_tag, from.cursor)
            }
            (value, _) => self.unpacked(here, field, value, from),
        };
        self.emit.jump(next, &[read.at, read.cursor]);
        self.emit.enter(absent);
        if of.unknown.is_none() && field.value.is_message() {
            // The value of a map's entry, which exists even if it was not sent.
            let always = self.emit.constant(1);
            self.bail_if(always);
        }
        self.emit.jump(next, &[from.at, from.cursor]);
        let state = self.emit.enter(next);
        Reading {
            at: state[0],
            cursor: state[1],
        }
    }

    /// Continues after the tag if it is next, else at `otherwise`.
    fn require_tag(
        &mut self,
        number: u32,
        wire_type: WireType,
        at: Value,
        end: Value,
        otherwise: Block,
    ) -> Value {
        let (bytes, len) = tag_bytes(number, wire_type);
        let left = self.emit.builder.ins().isub(end, at);
        let enough =
            self.emit
                .builder
                .ins()
                .icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, left, len as i64);
        self.go_on_if(enough, otherwise);
        let mut from = 0;
        while from < len {
            let (width, of) = match len - from {
                1 => (1, types::I8),
                2 | 3 => (2, types::I16),
                _ => (4, types::I32),
            };
            let found = self.emit.load(of, at, from as u32);
            let found = self.emit.builder.ins().uextend(types::I64, found);
            let piece = bytes >> (8 * from) & (u64::MAX >> (64 - 8 * width));
            let same = self
                .emit
                .builder
                .ins()
                .icmp_imm_u(IntCC::Equal, found, piece as i64);
            self.go_on_if(same, otherwise);
            from += width;
        }
        self.emit.add_constant(at, len as i64)
    }

    fn go_on_if(&mut self, condition: Value, otherwise: Block) {
        let go_on = self.emit.block(0);
        self.emit.branch(condition, (go_on, &[]), (otherwise, &[]));
        self.emit.enter(go_on);
    }

    fn bail_if(&mut self, condition: Value) {
        self.emit.leave_with(condition, BAIL);
    }

    fn bail_unless(&mut self, condition: Value) {
        let bad = self.emit.is_zero(condition);
        self.bail_if(bad);
    }

    /// Marks a field as set. A second member of a oneof bails: the first would have to be undone.
    fn set(&mut self, here: &Here, field: &WireField) {
        match field.guard {
            Guard::None => {}
            Guard::Bit { word, mask } => {
                let bits = self.emit.load(types::I32, here.part, word);
                let bits = self.emit.builder.ins().bor_imm_u(bits, i64::from(mask));
                self.emit.store(bits, here.part, word);
            }
            Guard::Case { at, number } => {
                let case = self.emit.load_u32(here.part, at);
                self.bail_if(case);
                let number = self
                    .emit
                    .builder
                    .ins()
                    .iconst(types::I32, i64::from(number));
                self.emit.store(number, here.part, at);
            }
        }
    }

    /// The varint at `at`, and its end.
    fn varint(&mut self, at: Value, end: Value) -> (Value, Value) {
        let (short, long, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(2));
        let empty = self.emit.compare(IntCC::Equal, at, end);
        self.bail_if(empty);
        let byte = self.emit.load(types::I8, at, 0);
        let byte = self.emit.builder.ins().uextend(types::I64, byte);
        let more = self.emit.builder.ins().band_imm_u(byte, 0x80);
        self.emit.branch(more, (long, &[]), (short, &[]));
        self.emit.enter(short);
        let after = self.emit.add_constant(at, 1);
        self.emit.jump(done, &[byte, after]);
        self.emit.enter(long);
        let number = self
            .emit
            .add_constant(self.context, i64::from(CONTEXT_NUMBER));
        let after = self.emit.help(Helper::GetVarint, &[at, end, number]);
        self.bail_unless(after);
        let number = self.emit.load(types::I64, self.context, CONTEXT_NUMBER);
        self.emit.jump(done, &[number, after]);
        let state = self.emit.enter(done);
        (state[0], state[1])
    }

    /// The length at `at`: the start of the payload, its length, and its end.
    fn payload(&mut self, at: Value, end: Value) -> (Value, Value, Value) {
        let (len, start) = self.varint(at, end);
        let left = self.emit.builder.ins().isub(end, start);
        let past = self.emit.compare(IntCC::UnsignedGreaterThan, len, left);
        self.bail_if(past);
        let payload_end = self.emit.add(start, len);
        (start, len, payload_end)
    }

    /// One scalar in the block's form, and its end.
    fn scalar(&mut self, here: &Here, value: &WireValue, at: Value) -> (Value, Value) {
        let fixed = match value {
            WireValue::Fixed32 => 4,
            WireValue::Fixed64 => 8,
            WireValue::Closed(values) => {
                let (number, after) = self.varint(at, here.end);
                self.require_declared(values, number);
                return (number, after);
            }
            WireValue::Varint(varint) => {
                let (number, after) = self.varint(at, here.end);
                return (self.block_value(*varint, number), after);
            }
            _ => unreachable!("only scalars"),
        };
        let left = self.emit.builder.ins().isub(here.end, at);
        let short = self
            .emit
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThan, left, fixed);
        self.bail_if(short);
        let raw = if fixed == 4 {
            self.emit.load_u32(at, 0)
        } else {
            self.emit.load(types::I64, at, 0)
        };
        (raw, self.emit.add_constant(at, fixed))
    }

    /// Bails unless the closed enum declares the number; tested as runs of consecutive values.
    fn require_declared(&mut self, values: &[i32], number: Value) {
        let mut runs: Vec<(i32, i32)> = Vec::new();
        for &value in values {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(value) => *last = value,
                _ => runs.push((value, value)),
            }
        }
        let narrow = self.emit.builder.ins().ireduce(types::I32, number);
        let value = self.emit.builder.ins().sextend(types::I64, narrow);
        let mut found = self.emit.constant(0);
        for (first, last) in runs {
            let from_first = self.emit.add_constant(value, -i64::from(first));
            let inside = self.emit.builder.ins().icmp_imm_u(
                IntCC::UnsignedLessThanOrEqual,
                from_first,
                i64::from(last) - i64::from(first),
            );
            let inside = self.emit.builder.ins().uextend(types::I64, inside);
            found = self.emit.builder.ins().bor(found, inside);
        }
        self.bail_unless(found);
    }

    /// Like [`Varint::to_block`].
    fn block_value(&mut self, varint: Varint, number: Value) -> Value {
        match varint {
            Varint::I32 | Varint::U32 | Varint::Word => number,
            Varint::Zigzag64 => self.unzigzag(number),
            Varint::Zigzag32 => {
                let narrow = self.emit.builder.ins().ireduce(types::I32, number);
                let value = self.unzigzag(narrow);
                self.emit.builder.ins().uextend(types::I64, value)
            }
            Varint::Bool => {
                let set = self
                    .emit
                    .builder
                    .ins()
                    .icmp_imm_u(IntCC::NotEqual, number, 0);
                self.emit.builder.ins().uextend(types::I64, set)
            }
        }
    }

    /// Undoes the zigzag encoding, at the width of `number`.
    fn unzigzag(&mut self, number: Value) -> Value {
        let half = self.emit.builder.ins().ushr_imm_u(number, 1);
        let odd = self.emit.builder.ins().band_imm_u(number, 1);
        let sign = self.emit.builder.ins().ineg(odd);
        self.emit.builder.ins().bxor(half, sign)
    }

    fn store_scalar(&mut self, value: &WireValue, raw: Value, part: Value, offset: u32) {
        let of = match value.scalar_size() {
            1 => types::I8,
            4 => types::I32,
            _ => return self.emit.store(raw, part, offset),
        };
        let narrow = self.emit.builder.ins().ireduce(of, raw);
        self.emit.store(narrow, part, offset);
    }

    /// Adds a part of `len` bytes at the next multiple of `align`; returns its offset and its end.
    /// The gap before it is zeroed.
    fn part(&mut self, cursor: Value, len: Value, align: i64) -> (Value, Value) {
        let start = if align == 1 {
            cursor
        } else {
            let up = self.emit.add_constant(cursor, align - 1);
            self.emit.builder.ins().band_imm_s(up, -align)
        };
        let end = self.emit.add(start, len);
        let past = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, end, self.room);
        self.emit.leave_with(past, NO_ROOM);
        if align > 1 {
            // The gap has at most 7 bytes, and at least the part's alignment follows it.
            let gap = self.emit.add(self.out, cursor);
            let word = if align == 8 { types::I64 } else { types::I32 };
            let zero = self.emit.builder.ins().iconst(word, 0);
            self.emit.store(zero, gap, 0);
        }
        (start, end)
    }

    fn store_slot(&mut self, at: Value, offset: u32, start: Value, len: Value) {
        let high = self.emit.builder.ins().ishl_imm_u(len, 32);
        let slot = self.emit.builder.ins().bor(start, high);
        self.emit.store(slot, at, offset);
    }

    /// Decodes the string or bytes value whose length is next, and writes its slot at `slot`.
    fn text(&mut self, here: &Here, at: Value, cursor: Value, utf8: bool, slot: Value) -> Reading {
        let (start, len, after) = self.payload(at, here.end);
        let (some, none, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(1));
        self.emit.branch(len, (some, &[]), (none, &[]));
        self.emit.enter(none);
        let zero = self.emit.constant(0);
        self.emit.store(zero, slot, 0);
        self.emit.jump(done, &[cursor]);
        self.emit.enter(some);
        let (part, end) = self.part(cursor, len, 1);
        self.copy(here, start, part, len);
        if utf8 {
            // The check uses the copy: it is after a fixed part, which has at least 8 bytes.
            let text = self.emit.add(self.out, part);
            let good = self.emit.is_utf8(text, len);
            self.bail_unless(good);
        }
        self.store_slot(slot, 0, part, len);
        self.emit.jump(done, &[end]);
        let cursor = self.emit.enter(done)[0];
        Reading { at: after, cursor }
    }

    /// Copies a value to the offset `part`. A short value is copied together with the following
    /// bytes of the records, if there are enough: they land after the cursor, where later parts
    /// overwrite them.
    fn copy(&mut self, here: &Here, from: Value, part: Value, len: Value) {
        let to = self.emit.add(self.out, part);
        let (short, long, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(0));
        let fits = self
            .emit
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThanOrEqual, len, CHUNK);
        self.emit.branch(fits, (short, &[]), (long, &[]));
        self.emit.enter(short);
        let left = self.emit.builder.ins().isub(here.end, from);
        let room = self.emit.builder.ins().isub(self.room, part);
        let least = self.emit.builder.ins().umin(left, room);
        let both =
            self.emit
                .builder
                .ins()
                .icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, least, CHUNK);
        let chunk = self.emit.block(0);
        self.emit.branch(both, (chunk, &[]), (long, &[]));
        self.emit.enter(chunk);
        let bytes = self.emit.load(types::I8X16, from, 0);
        self.emit.store(bytes, to, 0);
        self.emit.jump(done, &[]);
        self.emit.enter(long);
        self.emit.help(Helper::Copy, &[to, from, len]);
        self.emit.jump(done, &[]);
        self.emit.enter(done);
    }

    fn message(
        &mut self,
        here: &Here,
        field: &WireField,
        callee: usize,
        at: Value,
        cursor: Value,
    ) -> Reading {
        self.require_depth();
        let (start, _, after) = self.payload(at, here.end);
        let size = self.program.structs()[callee].size;
        let size_value = self.emit.constant(i64::from(size));
        let (part, end) = self.part(cursor, size_value, 8);
        self.zero(part, size);
        let narrow = self.emit.builder.ins().ireduce(types::I32, part);
        self.emit.store(narrow, here.part, field.offset);
        let from = Reading {
            at: start,
            cursor: end,
        };
        let cursor = self.callee(callee, part, from, after);
        Reading { at: after, cursor }
    }

    fn require_depth(&mut self) {
        if self.program.depth_checked() {
            let most = MAX_DEPTH as i64;
            let deep = self.emit.builder.ins().icmp_imm_u(
                IntCC::UnsignedGreaterThanOrEqual,
                self.depth,
                most,
            );
            self.bail_if(deep);
        }
    }

    fn zero(&mut self, part: Value, size: u32) {
        let to = self.emit.add(self.out, part);
        if size > ZEROED_IN_PLACE {
            let size = self.emit.constant(i64::from(size));
            self.emit.help(Helper::Zero, &[to, size]);
            return;
        }
        let zero = self.emit.constant(0);
        for word in 0..size / 8 {
            self.emit.store(zero, to, word * 8);
        }
    }

    /// Decodes another struct, in place or by a call; returns the cursor.
    fn callee(&mut self, callee: usize, part: Value, from: Reading, end: Value) -> Value {
        if is_inlined(&self.program.structs()[callee]) {
            return self.structure(callee, part, from, end);
        }
        let deeper = self.emit.add_constant(self.depth, 1);
        let function = (self.function_of)(self.emit, callee);
        let arguments = [
            from.at,
            end,
            self.out,
            part,
            from.cursor,
            self.context,
            deeper,
        ];
        let cursor = self.emit.call(function, &arguments);
        let failed = self
            .emit
            .builder
            .ins()
            .icmp_imm_s(IntCC::SignedLessThan, cursor, 0);
        self.emit.leave_if(failed, cursor);
        cursor
    }

    /// Runs `body` for each consecutive record of the field from `from` on, with the address after
    /// the tag and a value that is passed along; returns the end of the last one, and that value.
    fn each(
        &mut self,
        here: &Here,
        field: &WireField,
        from: Value,
        carried: &[Value],
        mut body: impl FnMut(&mut Self, Value, &[Value]) -> (Value, Vec<Value>),
    ) -> (Value, Vec<Value>) {
        let params = 1 + carried.len();
        let (again, done) = (self.emit.block(params), self.emit.block(params));
        let first: Vec<_> = [from].into_iter().chain(carried.iter().copied()).collect();
        self.emit.jump(again, &first);
        let state = self.emit.enter(again);
        let over = self.emit.block(0);
        let wire_type = field.value.wire_type();
        let after_tag = self.require_tag(field.number, wire_type, state[0], here.end, over);
        let (at, carried) = body(self, after_tag, &state[1..]);
        let next: Vec<_> = [at].into_iter().chain(carried).collect();
        self.emit.jump(again, &next);
        self.emit.enter(over);
        self.emit.jump(done, &state);
        let state = self.emit.enter(done);
        (state[0], state[1..].to_vec())
    }

    /// The number of consecutive records of the field.
    fn count(&mut self, here: &Here, field: &WireField, from: Value) -> Value {
        let zero = self.emit.constant(0);
        let (_, counted) = self.each(here, field, from, &[zero], |decoder, at, carried| {
            let after = match field.value.wire_type() {
                WireType::Len => decoder.payload(at, here.end).2,
                WireType::Varint => decoder.varint(at, here.end).1,
                fixed => {
                    let len = if fixed == WireType::Fixed32 { 4 } else { 8 };
                    let left = decoder.emit.builder.ins().isub(here.end, at);
                    let short =
                        decoder
                            .emit
                            .builder
                            .ins()
                            .icmp_imm_u(IntCC::UnsignedLessThan, left, len);
                    decoder.bail_if(short);
                    decoder.emit.add_constant(at, len)
                }
            };
            (after, vec![decoder.emit.add_constant(carried[0], 1)])
        });
        counted[0]
    }

    /// Adds an array's part and writes its slot; returns its size and position.
    fn array(
        &mut self,
        here: &Here,
        field: &WireField,
        of: Elements,
        cursor: Value,
    ) -> (Value, Value) {
        let len = self.emit.builder.ins().imul_imm_u(of.count, of.size);
        let (part, end) = self.part(cursor, len, of.align);
        self.store_slot(here.part, field.offset, part, of.count);
        (part, end)
    }

    fn texts(&mut self, here: &Here, field: &WireField, utf8: bool, from: Reading) -> Reading {
        let count = self.count(here, field, from.at);
        let (part, end) = self.array(
            here,
            field,
            Elements {
                count,
                size: 8,
                align: 4,
            },
            from.cursor,
        );
        let slot = self.emit.add(self.out, part);
        let carried = [end, slot];
        let (at, carried) = self.each(here, field, from.at, &carried, |decoder, at, carried| {
            let read = decoder.text(here, at, carried[0], utf8, carried[1]);
            let slot = decoder.emit.add_constant(carried[1], 8);
            (read.at, vec![read.cursor, slot])
        });
        Reading {
            at,
            cursor: carried[0],
        }
    }

    fn messages(
        &mut self,
        here: &Here,
        field: &WireField,
        callee: usize,
        from: Reading,
    ) -> Reading {
        self.require_depth();
        let count = self.count(here, field, from.at);
        let size = i64::from(self.program.structs()[callee].size);
        let (part, end) = self.array(
            here,
            field,
            Elements {
                count,
                size,
                align: 8,
            },
            from.cursor,
        );
        let to = self.emit.add(self.out, part);
        let len = self.emit.builder.ins().isub(end, part);
        self.emit.help(Helper::Zero, &[to, len]);
        let carried = [end, part];
        let (at, carried) = self.each(here, field, from.at, &carried, |decoder, at, carried| {
            let (start, _, after) = decoder.payload(at, here.end);
            let from = Reading {
                at: start,
                cursor: carried[0],
            };
            let cursor = decoder.callee(callee, carried[1], from, after);
            let next = decoder.emit.add_constant(carried[1], size);
            (after, vec![cursor, next])
        });
        Reading {
            at,
            cursor: carried[0],
        }
    }

    /// An array of scalars in one record.
    fn packed(
        &mut self,
        here: &Here,
        field: &WireField,
        value: &WireValue,
        at: Value,
        cursor: Value,
    ) -> Reading {
        let (start, len, after) = self.payload(at, here.end);
        let done = self.emit.block(1);
        // An empty array has no part.
        let some = self.emit.block(0);
        self.emit.branch(len, (some, &[]), (done, &[cursor]));
        self.emit.enter(some);
        let size = value.scalar_size() as i64;
        let end = if let WireValue::Varint(varint) = value {
            let count = self.emit.help(Helper::CountVarints, &[start, after]);
            let bad = self
                .emit
                .builder
                .ins()
                .icmp_imm_s(IntCC::SignedLessThan, count, 0);
            self.bail_if(bad);
            let (part, end) = self.array(
                here,
                field,
                Elements {
                    count,
                    size,
                    align: size,
                },
                cursor,
            );
            let to = self.emit.add(self.out, part);
            let kind = self.emit.constant(*varint as i64);
            self.emit.help(Helper::Unpack, &[start, after, to, kind]);
            end
        } else {
            let odd = self.emit.builder.ins().band_imm_u(len, size - 1);
            self.bail_if(odd);
            let count = self
                .emit
                .builder
                .ins()
                .ushr_imm_u(len, i64::from(size.trailing_zeros()));
            let (part, end) = self.array(
                here,
                field,
                Elements {
                    count,
                    size,
                    align: size,
                },
                cursor,
            );
            let to = self.emit.add(self.out, part);
            self.emit.help(Helper::Copy, &[to, start, len]);
            end
        };
        self.emit.jump(done, &[end]);
        let cursor = self.emit.enter(done)[0];
        Reading { at: after, cursor }
    }

    /// An array of scalars with one record each.
    fn unpacked(
        &mut self,
        here: &Here,
        field: &WireField,
        value: &WireValue,
        from: Reading,
    ) -> Reading {
        let count = self.count(here, field, from.at);
        let size = value.scalar_size() as i64;
        let (part, end) = self.array(
            here,
            field,
            Elements {
                count,
                size,
                align: size,
            },
            from.cursor,
        );
        let element = self.emit.add(self.out, part);
        let (at, _) = self.each(here, field, from.at, &[element], |decoder, at, carried| {
            let (raw, after) = decoder.scalar(here, value, at);
            decoder.store_scalar(value, raw, carried[0], 0);
            (after, vec![decoder.emit.add_constant(carried[0], size)])
        });
        Reading { at, cursor: end }
    }

    fn require(&mut self, of: &StructProgram, here: &Here) {
        for step in &of.steps {
            if let Op::Required { at, mask } = step.op {
                let word = self.emit.load_u32(here.part, at);
                let set = self.emit.builder.ins().band_imm_u(word, i64::from(mask));
                self.bail_unless(set);
            }
        }
    }

    /// After the known fields: nothing, or unknown records.
    fn rest(&mut self, index: usize, of: &StructProgram, here: &Here, reading: Reading) -> Value {
        let left = self.emit.builder.ins().isub(here.end, reading.at);
        let Some(slot) = of.unknown else {
            self.bail_if(left);
            return reading.cursor;
        };
        let (some, done) = (self.emit.cold_block(), self.emit.block(1));
        self.emit
            .branch(left, (some, &[]), (done, &[reading.cursor]));
        self.emit.enter(some);
        let index = self.emit.constant(index as i64);
        let arguments = [self.context, index, reading.at, here.end];
        let unknown = self.emit.help(Helper::AllUnknown, &arguments);
        self.bail_unless(unknown);
        let (part, end) = self.part(reading.cursor, left, 1);
        let to = self.emit.add(self.out, part);
        self.emit.help(Helper::Copy, &[to, reading.at, left]);
        self.store_slot(here.part, slot, part, left);
        self.emit.jump(done, &[end]);
        self.emit.enter(done)[0]
    }
}

/// The wire type in which a field is expected; `None` if only the interpreter decodes it: groups,
/// and arrays and maps of closed enums, whose undeclared values become unknown fields.
fn expected(field: &WireField) -> Option<WireType> {
    match (&field.value, field.shape) {
        (WireValue::Group { .. }, _)
        | (WireValue::Closed(_), Shape::Many { .. })
        | (
            WireValue::Message {
                closed: Some(_), ..
            },
            _,
        ) => None,
        (value, Shape::Many { packed: true }) if value.scalar_size() > 0 => {
            Some(wire::WireType::Len)
        }
        (value, _) => Some(value.wire_type()),
    }
}
