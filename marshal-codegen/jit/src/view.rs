//! Emits a projection: one function that copies the declared fields of an image into a view.
//!
//! ```text
//! project(image, image_len, extent_offsets, extent_count, view, view_len) -> length of the view, or a raw fault
//! ```
//!
//! The caller has checked that the root's fixed part is inside the image and the view's entries are
//! inside `view_len`. Everything else is checked here, although the image was validated before:
//! memory safety doesn't depend on the caller.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use tollgate_marshal::projection::{ENTRY_LEN, Field, HEADER_LEN, Leaf, Projection};
use tollgate_marshal::{FaultCode, program::Guard};
use tollgate_schema::EXTENT_FLAG;

use crate::emit::{Emit, Helper, Place};

/// The number of parameters of a projection.
pub(crate) const PARAMS: usize = 6;

/// The helpers that it calls.
pub(crate) const HELPERS: &[Helper] = &[Helper::IsUtf8, Helper::Copy];

/// Emits the body of the function.
pub(crate) fn emit_projection(mut emit: Emit<'_, '_>, params: &[Value], projection: &Projection) {
    let [image, image_len, offsets, offset_count, view, view_len] = *params else {
        unreachable!("a projection has {PARAMS} parameters");
    };
    let mut end = emit.constant(projection.fixed_len() as i64);
    let mut body = View {
        emit: &mut emit,
        image,
        image_len,
        offsets,
        offset_count,
        view,
        view_len,
    };
    for (i, field) in projection.fields().iter().enumerate() {
        let entry = (HEADER_LEN + i * ENTRY_LEN) as u32;
        if field.granted {
            end = body.field(field, entry, end);
        } else {
            body.absent(entry);
        }
    }
    for i in projection.fields().len()..projection.entries() {
        body.absent((HEADER_LEN + i * ENTRY_LEN) as u32);
    }
    let count = emit.constant((projection.entries() as i64) << 32);
    let header = emit.builder.ins().bor(count, end);
    emit.store(header, view, 0);
    emit.close(end);
}

struct View<'w, 'a, 'f> {
    emit: &'w mut Emit<'a, 'f>,
    image: Value,
    image_len: Value,
    offsets: Value,
    offset_count: Value,
    view: Value,
    view_len: Value,
}

impl View<'_, '_, '_> {
    /// Writes the entry at `entry` and appends the field's bytes at `end`; returns the new end.
    fn field(&mut self, field: &Field, entry: u32, end: Value) -> Value {
        let place = Place {
            message: field.place.0,
            field: Some(field.place.1),
        };
        let absent = self.emit.block(0);
        // The entry's two words, and the end of the view.
        let write = self.emit.block(3);
        let mut at = self.image;
        for hop in &field.hops {
            self.require_set(hop.guard, at, absent);
            let off = self.emit.load_u32(at, hop.reference);
            self.go_on_if(off, absent);
            let past = self.emit.add_constant(off, i64::from(hop.size));
            self.require_in_image(past, place);
            at = self.emit.add(self.image, off);
        }
        self.require_set(field.guard, at, absent);
        let present = self.emit.constant(field.present.into());
        match field.leaf {
            Leaf::Bytes { utf8 } => self.bytes(at, field, utf8, end, write, place),
            leaf => {
                let value = self.scalar(at, field.at, leaf);
                self.emit.jump(write, &[present, value, end]);
            }
        }
        self.emit.enter(absent);
        let zero = self.emit.constant(0);
        self.emit.jump(write, &[zero, zero, end]);
        let words = self.emit.enter(write);
        self.emit.store(words[0], self.view, entry);
        self.emit.store(words[1], self.view, entry + 8);
        words[2]
    }

    /// Writes the entry of a field that is always absent.
    fn absent(&mut self, entry: u32) {
        let zero = self.emit.constant(0);
        self.emit.store(zero, self.view, entry);
        self.emit.store(zero, self.view, entry + 8);
    }

    fn require_set(&mut self, guard: Guard, at: Value, absent: cranelift_codegen::ir::Block) {
        if let Some(set) = self.emit.is_set(guard, at) {
            self.go_on_if(set, absent);
        }
    }

    fn go_on_if(&mut self, condition: Value, otherwise: cranelift_codegen::ir::Block) {
        let go_on = self.emit.block(0);
        self.emit.branch(condition, (go_on, &[]), (otherwise, &[]));
        self.emit.enter(go_on);
    }

    fn require_in_image(&mut self, end: Value, place: Place) {
        let out = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, end, self.image_len);
        self.emit.fail_if(out, place, FaultCode::Truncated);
    }

    fn scalar(&mut self, at: Value, offset: u32, leaf: Leaf) -> Value {
        match leaf {
            Leaf::Bool => {
                let byte = self.emit.load(types::I8, at, offset);
                self.emit.builder.ins().uextend(types::I64, byte)
            }
            Leaf::I32 => {
                let narrow = self.emit.load(types::I32, at, offset);
                self.emit.builder.ins().sextend(types::I64, narrow)
            }
            Leaf::U32 => self.emit.load_u32(at, offset),
            Leaf::Word => self.emit.load(types::I64, at, offset),
            Leaf::Bytes { .. } => unreachable!("bytes are no scalar"),
        }
    }

    /// Copies the field's value, whose slot is in the struct at `at`, and jumps to `write`.
    fn bytes(
        &mut self,
        at: Value,
        field: &Field,
        utf8: bool,
        end: Value,
        write: cranelift_codegen::ir::Block,
        place: Place,
    ) {
        let slot = self.emit.load(types::I64, at, field.at);
        let (off, len) = self.emit.halves(slot);
        // {present, len} as one word.
        let high = self.emit.builder.ins().ishl_imm_u(len, 32);
        let present = i64::from(field.present);
        let first = self.emit.builder.ins().bor_imm_u(high, present);
        let (some, inline, extent) = (
            self.emit.block(0),
            self.emit.block(0),
            self.emit.cold_block(),
        );
        let found = self.emit.block(1);
        self.emit
            .branch(len, (some, &[]), (write, &[first, end, end]));

        self.emit.enter(some);
        let elsewhere = self
            .emit
            .builder
            .ins()
            .band_imm_u(off, i64::from(EXTENT_FLAG));
        self.emit.branch(elsewhere, (extent, &[]), (inline, &[]));

        self.emit.enter(extent);
        let index = self
            .emit
            .builder
            .ins()
            .band_imm_u(off, i64::from(!EXTENT_FLAG));
        let unknown =
            self.emit
                .compare(IntCC::UnsignedGreaterThanOrEqual, index, self.offset_count);
        self.emit.fail_if(unknown, place, FaultCode::ExtentMissing);
        let index = self.emit.builder.ins().ishl_imm_u(index, 2);
        let start = self.emit.add(self.offsets, index);
        let start = self.emit.load_u32(start, 0);
        let past = self.emit.add(start, len);
        self.require_in_image(past, place);
        if utf8 {
            let text = self.emit.add(self.image, start);
            self.emit.require_utf8(text, len, place);
        }
        self.emit.jump(found, &[start]);

        self.emit.enter(inline);
        let past = self.emit.add(off, len);
        self.require_in_image(past, place);
        self.emit.jump(found, &[off]);

        let start = self.emit.enter(found)[0];
        let new_end = self.emit.add(end, len);
        let full = self
            .emit
            .compare(IntCC::UnsignedGreaterThan, new_end, self.view_len);
        self.emit.fail_if(full, place, FaultCode::ViewTooLarge);
        let from = self.emit.add(self.image, start);
        let to = self.emit.add(self.view, end);
        self.emit.help(Helper::Copy, &[to, from, len]);
        self.emit.jump(write, &[first, end, new_end]);
    }
}
