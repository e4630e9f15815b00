//! Emits the walk over a block: one function per struct type, called for the root and recursively
//! for its parts.
//!
//! ```text
//! walk(base, inline_len, struct, cursor, context, depth) -> cursor after the struct's parts, or a raw fault
//! ```
//!
//! `struct` is the address of a fixed part that the caller has checked to be in bounds. The cursor
//! and `inline_len` are offsets from `base`, at most `MAX_MESSAGE`; so sums of them and of `u32`
//! lengths can't overflow. The order of checks is the interpreter's, so that both find the same
//! fault first. `gather` and `accept` share the code: the context tells the helper for extents
//! which of the two is running.
//!
//! Small structs without further structs are inlined at each use.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{FuncRef, InstBuilder, Value, types};
use tollgate_marshal::program::{Guard, Op, Program, Step, StructProgram};
use tollgate_marshal::{FaultCode, MAX_DEPTH};
use tollgate_schema::EXTENT_FLAG;

use crate::emit::{Emit, Helper, Place};
use crate::limits::MAX_INLINED_STEPS;

/// The number of parameters of a walk.
pub(crate) const PARAMS: usize = 6;

/// The helpers that it calls.
pub(crate) const HELPERS: &[Helper] = &[
    Helper::IsUtf8,
    Helper::AreBools,
    Helper::Extent,
    Helper::Unknown,
];

/// Emits the body of the walk of one struct type. `function_of` returns the walk of another, by its
/// index.
pub(crate) fn emit_walk(
    mut emit: Emit<'_, '_>,
    params: &[Value],
    program: &Program,
    index: usize,
    function_of: &mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
) {
    let [base, inline_len, at, cursor, context, depth] = *params else {
        unreachable!("a walk has {PARAMS} parameters");
    };
    let walk = &program.structs()[index];
    let mut body = Walk {
        emit: &mut emit,
        program,
        base,
        inline_len,
        context,
        function_of,
    };
    let cursor = body.structure(walk, at, cursor, depth);
    emit.close(cursor);
}

/// Whether structs of this type have no function of their own, except as a root.
pub(crate) fn is_inlined(callee: &StructProgram) -> bool {
    let leads_on = |step: &Step| matches!(step.op, Op::Struct { .. } | Op::Structs { .. });
    callee.steps.len() <= MAX_INLINED_STEPS && !callee.steps.iter().any(leads_on)
}

struct Walk<'w, 'a, 'f> {
    emit: &'w mut Emit<'a, 'f>,
    program: &'w Program,
    base: Value,
    inline_len: Value,
    context: Value,
    function_of: &'w mut dyn FnMut(&mut Emit<'_, '_>, usize) -> FuncRef,
}

/// An array that isn't empty: addresses of its first element and of its end, and the cursor after
/// it.
struct Array {
    first: Value,
    end: Value,
    cursor: Value,
}

/// The size and alignment of an array's elements in bytes.
#[derive(Clone, Copy)]
struct Element {
    size: u32,
    align: u32,
}

impl Walk<'_, '_, '_> {
    fn structure(
        &mut self,
        walk: &StructProgram,
        at: Value,
        mut cursor: Value,
        depth: Value,
    ) -> Value {
        for step in &walk.steps {
            let place = Place {
                message: walk.id,
                field: step.field,
            };
            cursor = self.step(step, place, at, cursor, depth);
        }
        cursor
    }

    fn step(&mut self, step: &Step, place: Place, at: Value, cursor: Value, depth: Value) -> Value {
        match step.op {
            Op::Case {
                at: case,
                ref members,
            } => {
                self.case(at, case, members, place);
                cursor
            }
            Op::Required { at: word, mask } => {
                let word = self.emit.load_u32(at, word);
                let set = self.emit.builder.ins().band_imm_u(word, i64::from(mask));
                let missing = self.emit.is_zero(set);
                self.emit
                    .fail_if(missing, place, FaultCode::RequiredMissing);
                cursor
            }
            Op::Unknown { slot } => self.unknown(at, slot, cursor, place),
            Op::Bool { at: byte } => {
                let value = self.emit.load(types::I8, at, byte);
                let bad = self
                    .emit
                    .builder
                    .ins()
                    .icmp_imm_u(IntCC::UnsignedGreaterThan, value, 1);
                self.emit.fail_if(bad, place, FaultCode::BadBool);
                cursor
            }
            Op::Bytes { slot, utf8, guard } => {
                self.guarded_bytes(at, slot, utf8, guard, cursor, place)
            }
            Op::Scalars { slot, size, bools } => {
                let element = Element { size, align: size };
                self.array(at, slot, element, cursor, place, |walk, array| {
                    if bools {
                        walk.bools(&array, place);
                    }
                    array.cursor
                })
            }
            Op::BytesArray { slot, utf8 } => {
                let element = Element { size: 8, align: 4 };
                self.array(at, slot, element, cursor, place, |walk, array| {
                    walk.each(array, 8, |walk, element, cursor| {
                        walk.bytes(element, 0, utf8, cursor, place)
                    })
                })
            }
            Op::Struct {
                reference,
                callee,
                guard,
            } => self.reference(at, reference, callee, guard, cursor, depth, place),
            Op::Structs { slot, callee } => {
                let program = self.program;
                let elements = &program.structs()[callee];
                let element = Element {
                    size: elements.size,
                    align: 8,
                };
                self.array(at, slot, element, cursor, place, |walk, array| {
                    walk.descend(depth, place);
                    if elements.steps.is_empty() {
                        return array.cursor;
                    }
                    walk.each(array, elements.size, |walk, element, cursor| {
                        walk.callee(callee, element, cursor, depth)
                    })
                })
            }
        }
    }

    /// The case is 0 or one of the ascending `members`; tested as runs of consecutive numbers.
    fn case(&mut self, at: Value, offset: u32, members: &[u32], place: Place) {
        let case = self.emit.load_u32(at, offset);
        let mut runs: Vec<(u32, u32)> = vec![(0, 0)];
        for &member in members {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == member => *last = member,
                _ => runs.push((member, member)),
            }
        }
        let mut found = None;
        for (first, last) in runs {
            let from_first = self.emit.add_constant(case, -i64::from(first));
            let width = i64::from(last - first);
            let inside = self.emit.builder.ins().icmp_imm_u(
                IntCC::UnsignedLessThanOrEqual,
                from_first,
                width,
            );
            found = Some(match found {
                None => inside,
                Some(found) => self.emit.builder.ins().bor(found, inside),
            });
        }
        let found = found.expect("there is the run of 0");
        let bad = self.emit.is_zero(found);
        self.emit.fail_if(bad, place, FaultCode::BadCase);
    }

    fn bools(&mut self, array: &Array, place: Place) {
        let len = self.emit.builder.ins().isub(array.end, array.first);
        let good = self.emit.help(Helper::AreBools, &[array.first, len]);
        let bad = self.emit.is_zero(good);
        self.emit.fail_if(bad, place, FaultCode::BadBool);
    }

    fn guarded_bytes(
        &mut self,
        at: Value,
        slot: u32,
        utf8: bool,
        guard: Guard,
        cursor: Value,
        place: Place,
    ) -> Value {
        let Some(set) = self.emit.is_set(guard, at) else {
            return self.bytes(at, slot, utf8, cursor, place);
        };
        let (present, absent, done) = (self.emit.block(0), self.emit.block(0), self.emit.block(1));
        self.emit.branch(set, (present, &[]), (absent, &[]));
        self.emit.enter(absent);
        let value = self.emit.load(types::I64, at, slot);
        self.emit.fail_if(value, place, FaultCode::NotAbsent);
        self.emit.jump(done, &[cursor]);
        self.emit.enter(present);
        let end = self.bytes(at, slot, utf8, cursor, place);
        self.emit.jump(done, &[end]);
        self.emit.enter(done)[0]
    }

    /// The string or bytes value whose slot is at `at + slot`; returns the cursor after it.
    fn bytes(&mut self, at: Value, slot: u32, utf8: bool, cursor: Value, place: Place) -> Value {
        let (some, inline, elsewhere) = (
            self.emit.block(0),
            self.emit.block(0),
            self.emit.cold_block(),
        );
        let done = self.emit.block(1);
        let value = self.emit.load(types::I64, at, slot);
        self.emit.branch(value, (some, &[]), (done, &[cursor]));

        self.emit.enter(some);
        let (off, len) = self.emit.halves(value);
        let next = self.emit.compare(IntCC::Equal, off, cursor);
        self.emit.branch(next, (inline, &[]), (elsewhere, &[]));

        self.emit.enter(elsewhere);
        let extent = self
            .emit
            .builder
            .ins()
            .band_imm_u(off, i64::from(EXTENT_FLAG));
        let misplaced = self.emit.is_zero(extent);
        self.emit.fail_if(misplaced, place, FaultCode::Misplaced);
        let offset = self.emit.builder.ins().isub(at, self.base);
        let offset = self.emit.add_constant(offset, i64::from(slot));
        let text = self.emit.constant(i64::from(utf8));
        let code = self
            .emit
            .help(Helper::Extent, &[self.context, offset, value, text]);
        self.emit.fail_with(code, place);
        self.emit.jump(done, &[cursor]);

        self.emit.enter(inline);
        let end = self.end_of_part(cursor, len, len, place);
        if utf8 {
            let text = self.emit.add(self.base, cursor);
            // It is after a fixed part, which has at least 8 bytes.
            let good = self.emit.is_utf8(text, len);
            let bad = self.emit.is_zero(good);
            self.emit.fail_if(bad, place, FaultCode::NotUtf8);
        }
        self.emit.jump(done, &[end]);
        self.emit.enter(done)[0]
    }

    /// The unknown fields whose slot is at `at + slot`; returns the cursor after them.
    fn unknown(&mut self, at: Value, slot: u32, cursor: Value, place: Place) -> Value {
        let (some, done) = (self.emit.cold_block(), self.emit.block(1));
        let value = self.emit.load(types::I64, at, slot);
        self.emit.branch(value, (some, &[]), (done, &[cursor]));
        self.emit.enter(some);
        let (off, len) = self.emit.halves(value);
        let start = self.start_of_part(off, cursor, 1, place);
        let end = self.end_of_part(start, len, len, place);
        let records = self.emit.add(self.base, start);
        let id = self.emit.constant(i64::from(place.message.0));
        let code = self
            .emit
            .help(Helper::Unknown, &[self.context, records, len, id]);
        self.emit.fail_with(code, place);
        self.emit.jump(done, &[end]);
        self.emit.enter(done)[0]
    }

    /// The end of a part that starts at `start`, after checking that it isn't empty and ends in
    /// bounds.
    fn end_of_part(&mut self, start: Value, count: Value, bytes: Value, place: Place) -> Value {
        let empty = self.emit.is_zero(count);
        self.emit.fail_if(empty, place, FaultCode::EmptyWithOffset);
        self.end_in_bounds(start, bytes, place)
    }

    fn end_in_bounds(&mut self, start: Value, bytes: Value, place: Place) -> Value {
        let end = self.emit.add(start, bytes);
        let out = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, end, self.inline_len);
        self.emit.fail_if(out, place, FaultCode::Truncated);
        end
    }

    /// The start of a part with this alignment, after checking that `off` equals it.
    fn start_of_part(&mut self, off: Value, cursor: Value, align: u32, place: Place) -> Value {
        let start = if align == 1 {
            cursor
        } else {
            let up = self.emit.add_constant(cursor, i64::from(align) - 1);
            self.emit.builder.ins().band_imm_s(up, -i64::from(align))
        };
        let misplaced = self.emit.compare(IntCC::NotEqual, off, start);
        self.emit.fail_if(misplaced, place, FaultCode::Misplaced);
        start
    }

    /// The array whose slot is at `at + slot`: `body` returns the cursor after it and after its
    /// elements' parts. An empty array has no body.
    fn array(
        &mut self,
        at: Value,
        slot: u32,
        of: Element,
        cursor: Value,
        place: Place,
        body: impl FnOnce(&mut Self, Array) -> Value,
    ) -> Value {
        let (some, done) = (self.emit.block(0), self.emit.block(1));
        let value = self.emit.load(types::I64, at, slot);
        self.emit.branch(value, (some, &[]), (done, &[cursor]));
        self.emit.enter(some);
        let (off, count) = self.emit.halves(value);
        let start = self.start_of_part(off, cursor, of.align, place);
        let bytes = self
            .emit
            .builder
            .ins()
            .imul_imm_u(count, i64::from(of.size));
        let cursor = self.end_of_part(start, count, bytes, place);
        let first = self.emit.add(self.base, start);
        let end = self.emit.add(self.base, cursor);
        let cursor = body(self, Array { first, end, cursor });
        self.emit.jump(done, &[cursor]);
        self.emit.enter(done)[0]
    }

    /// Runs `body` for each element's address and passes the cursor along.
    fn each(
        &mut self,
        array: Array,
        size: u32,
        body: impl FnOnce(&mut Self, Value, Value) -> Value,
    ) -> Value {
        let (again, done) = (self.emit.block(2), self.emit.block(1));
        self.emit.jump(again, &[array.first, array.cursor]);
        let state = self.emit.enter(again);
        let cursor = body(self, state[0], state[1]);
        let next = self.emit.add_constant(state[0], i64::from(size));
        let more = self.emit.compare(IntCC::UnsignedLessThan, next, array.end);
        self.emit
            .branch(more, (again, &[next, cursor]), (done, &[cursor]));
        self.emit.enter(done)[0]
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "an Op::Struct spelled out, and the state of the walk"
    )]
    fn reference(
        &mut self,
        at: Value,
        reference: u32,
        callee: usize,
        guard: Guard,
        cursor: Value,
        depth: Value,
        place: Place,
    ) -> Value {
        let (some, done) = (self.emit.block(0), self.emit.block(1));
        let off = self.emit.load_u32(at, reference);
        match self.emit.is_set(guard, at) {
            None => self.emit.branch(off, (some, &[]), (done, &[cursor])),
            Some(set) => {
                let (present, absent) = (self.emit.block(0), self.emit.block(0));
                self.emit.branch(set, (present, &[]), (absent, &[]));
                self.emit.enter(absent);
                self.emit.fail_if(off, place, FaultCode::NotAbsent);
                self.emit.jump(done, &[cursor]);
                self.emit.enter(present);
                let missing = self.emit.is_zero(off);
                self.emit.fail_if(missing, place, FaultCode::MemberMissing);
                self.emit.jump(some, &[]);
            }
        }
        self.emit.enter(some);
        let start = self.start_of_part(off, cursor, 8, place);
        let size = self.program.structs()[callee].size;
        let size = self.emit.constant(i64::from(size));
        let end = self.end_in_bounds(start, size, place);
        self.descend(depth, place);
        let part = self.emit.add(self.base, start);
        let cursor = self.callee(callee, part, end, depth);
        self.emit.jump(done, &[cursor]);
        self.emit.enter(done)[0]
    }

    /// Checks that one more level may follow; types that can't nest too deeply need no count.
    fn descend(&mut self, depth: Value, place: Place) {
        if self.program.depth_checked() {
            let most = MAX_DEPTH as i64;
            let deep =
                self.emit
                    .builder
                    .ins()
                    .icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, depth, most);
            self.emit.fail_if(deep, place, FaultCode::TooDeep);
        }
    }

    /// Walks another struct, inline or by a call; returns the cursor after its parts.
    fn callee(&mut self, index: usize, at: Value, cursor: Value, depth: Value) -> Value {
        let program = self.program;
        let callee = &program.structs()[index];
        // An inlined struct has no further ones, so it doesn't need its depth.
        if is_inlined(callee) {
            return self.structure(callee, at, cursor, depth);
        }
        let deeper = self.emit.add_constant(depth, 1);
        let function = (self.function_of)(self.emit, index);
        let arguments = [self.base, self.inline_len, at, cursor, self.context, deeper];
        let cursor = self.emit.call(function, &arguments);
        let failed = self
            .emit
            .builder
            .ins()
            .icmp_imm_s(IntCC::SignedLessThan, cursor, 0);
        self.emit.leave_if(failed, cursor);
        cursor
    }
}
