//! Common parts of all emitted functions: loads, checks that end in a fault, guards, calls of
//! helpers.
//!
//! Faults leave through cold blocks, one for each raw fault; see `Fault::to_raw`.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, FuncRef, InstBuilder, MemFlagsData, Type, Value, types};
use cranelift_frontend::FunctionBuilder;
use std::collections::BTreeMap;
use tollgate_marshal::program::Guard;
use tollgate_marshal::{Fault, FaultCode};
use tollgate_schema::MessageId;

/// The field that a check belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) message: MessageId,
    /// `None`: the message's unknown fields.
    pub(crate) field: Option<u16>,
}

/// Functions of `machine` that emitted code calls. All parameters and results are 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Helper {
    /// `(ptr, len) -> 1 if UTF-8, else 0`
    IsUtf8,
    /// `(ptr, len) -> 1 if all bytes are 0 or 1, else 0`
    AreBools,
    /// `(context, offset of the slot, the slot, 1 if text) -> 0, or the number of a fault's code`
    Extent,
    /// `(context, records, length, message type) -> 0, or the number of a fault's code`
    Unknown,
    /// `(to, from, len) -> 0`
    Copy,
    /// `(to, len) -> 0`
    Zero,
    /// `(end of the varint, number) -> where it begins`
    PutVarint,
    /// `(at, end, where the number goes) -> where the varint ends, or 0`
    GetVarint,
    /// `(context, struct, at, end) -> 1 if all records there are unknown, else 0`
    AllUnknown,
    /// `(at, end) -> how many varints, or -1`
    CountVarints,
    /// `(at, end, to, kind of varint) -> 0`: varints that have been counted, as elements
    Unpack,
}

/// The number of kinds of [`Helper`].
pub(crate) const HELPERS: usize = Helper::Unpack as usize + 1;

/// The helpers of `machine`, as declared in the function being emitted: those that it requested.
pub(crate) type Helpers = [Option<FuncRef>; HELPERS];

/// A function under construction.
pub(crate) struct Emit<'a, 'f> {
    pub(crate) builder: &'a mut FunctionBuilder<'f>,
    helpers: Helpers,
    /// Returns its parameter.
    fail: Block,
    /// A cold block for each constant exit value of the function, so that the hot path has none of
    /// them.
    exits: BTreeMap<i64, Block>,
}

impl<'a, 'f> Emit<'a, 'f> {
    /// Opens the function; also returns its parameters.
    pub(crate) fn open(
        builder: &'a mut FunctionBuilder<'f>,
        helpers: Helpers,
    ) -> (Emit<'a, 'f>, Vec<Value>) {
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        let params = builder.block_params(entry).to_vec();
        let fail = builder.create_block();
        builder.append_block_param(fail, types::I64);
        builder.set_cold_block(fail);
        (
            Emit {
                builder,
                helpers,
                fail,
                exits: BTreeMap::new(),
            },
            params,
        )
    }

    /// Ends the function: returns `value`, and emits the exits for faults.
    pub(crate) fn close(self, value: Value) {
        self.builder.ins().return_(&[value]);
        for (raw, exit) in self.exits {
            self.builder.switch_to_block(exit);
            let raw = self.builder.ins().iconst(types::I64, raw);
            self.builder.ins().jump(self.fail, &[raw.into()]);
        }
        self.builder.switch_to_block(self.fail);
        let raw = self.builder.block_params(self.fail)[0];
        self.builder.ins().return_(&[raw]);
        self.builder.seal_all_blocks();
    }

    pub(crate) fn constant(&mut self, value: i64) -> Value {
        self.builder.ins().iconst(types::I64, value)
    }

    /// Loads from checked memory, at any alignment.
    pub(crate) fn load(&mut self, of: Type, base: Value, offset: u32) -> Value {
        self.builder
            .ins()
            .load(of, flags(), base, offset.cast_signed())
    }

    /// Loads and zero-extends a `u32`.
    pub(crate) fn load_u32(&mut self, base: Value, offset: u32) -> Value {
        let narrow = self.load(types::I32, base, offset);
        self.builder.ins().uextend(types::I64, narrow)
    }

    /// The low and high half of a slot or reference word.
    pub(crate) fn halves(&mut self, value: Value) -> (Value, Value) {
        // Narrowing and widening is one move; a mask would be a constant in memory.
        let low = self.builder.ins().ireduce(types::I32, value);
        let low = self.builder.ins().uextend(types::I64, low);
        let high = self.builder.ins().ushr_imm_u(value, 32);
        (low, high)
    }

    pub(crate) fn store(&mut self, value: Value, base: Value, offset: u32) {
        self.builder
            .ins()
            .store(flags(), value, base, offset.cast_signed());
    }

    pub(crate) fn add(&mut self, a: Value, b: Value) -> Value {
        self.builder.ins().iadd(a, b)
    }

    pub(crate) fn add_constant(&mut self, a: Value, b: i64) -> Value {
        self.builder.ins().iadd_imm_s(a, b)
    }

    pub(crate) fn compare(&mut self, how: IntCC, a: Value, b: Value) -> Value {
        self.builder.ins().icmp(how, a, b)
    }

    pub(crate) fn is_zero(&mut self, a: Value) -> Value {
        self.builder.ins().icmp_imm_s(IntCC::Equal, a, 0)
    }

    /// A block with `params` 64-bit parameters.
    pub(crate) fn block(&mut self, params: usize) -> Block {
        let block = self.builder.create_block();
        for _ in 0..params {
            self.builder.append_block_param(block, types::I64);
        }
        block
    }

    pub(crate) fn cold_block(&mut self) -> Block {
        let block = self.builder.create_block();
        self.builder.set_cold_block(block);
        block
    }

    /// Continues emitting in `block`; returns its parameters.
    pub(crate) fn enter(&mut self, block: Block) -> Vec<Value> {
        self.builder.switch_to_block(block);
        self.builder.block_params(block).to_vec()
    }

    pub(crate) fn jump(&mut self, to: Block, with: &[Value]) {
        let with: Vec<_> = with.iter().map(|v| (*v).into()).collect();
        self.builder.ins().jump(to, &with);
    }

    pub(crate) fn branch(
        &mut self,
        condition: Value,
        yes: (Block, &[Value]),
        no: (Block, &[Value]),
    ) {
        let arguments = |with: &[Value]| with.iter().map(|v| (*v).into()).collect::<Vec<_>>();
        self.builder
            .ins()
            .brif(condition, yes.0, &arguments(yes.1), no.0, &arguments(no.1));
    }

    /// Leaves with a fault if `condition` isn't 0.
    pub(crate) fn fail_if(&mut self, condition: Value, place: Place, code: FaultCode) {
        let raw = Fault {
            code,
            message: place.message,
            field: place.field,
        }
        .to_raw();
        self.leave_with(condition, raw);
    }

    /// Leaves with the constant `raw` if `condition` isn't 0.
    pub(crate) fn leave_with(&mut self, condition: Value, raw: i64) {
        let exit = match self.exits.get(&raw) {
            Some(exit) => *exit,
            None => {
                let exit = self.cold_block();
                self.exits.insert(raw, exit);
                exit
            }
        };
        let go_on = self.block(0);
        self.branch(condition, (exit, &[]), (go_on, &[]));
        self.enter(go_on);
    }

    /// Leaves with `raw` if `condition` isn't 0.
    pub(crate) fn leave_if(&mut self, condition: Value, raw: Value) {
        let go_on = self.block(0);
        self.branch(condition, (self.fail, &[raw]), (go_on, &[]));
        self.enter(go_on);
    }

    /// Leaves with the fault whose code is `code`, unless that is 0.
    pub(crate) fn fail_with(&mut self, code: Value, place: Place) {
        let base = self.constant(Fault::raw_place(place.message, place.field));
        let raw = self.builder.ins().bor(base, code);
        self.leave_if(code, raw);
    }

    /// Calls a helper.
    pub(crate) fn help(&mut self, helper: Helper, arguments: &[Value]) -> Value {
        let function = self.helpers[helper as usize];
        self.call(function.expect("the function asked for it"), arguments)
    }

    pub(crate) fn call(&mut self, function: FuncRef, arguments: &[Value]) -> Value {
        let call = self.builder.ins().call(function, arguments);
        self.builder.inst_results(call)[0]
    }

    /// Leaves with `NotUtf8` unless the text is UTF-8.
    pub(crate) fn require_utf8(&mut self, text: Value, len: Value, place: Place) {
        let good = self.help(Helper::IsUtf8, &[text, len]);
        let bad = self.is_zero(good);
        self.fail_if(bad, place, FaultCode::NotUtf8);
    }

    /// Whether text is UTF-8. The text must not be empty, and must end at least 8 bytes after the
    /// start of its buffer. Up to 16 bytes of ASCII are recognized in place.
    pub(crate) fn is_utf8(&mut self, text: Value, len: Value) -> Value {
        const HIGH: i64 = 0x8080_8080_8080_8080_u64.cast_signed();
        let (small, medium, test) = (self.block(0), self.block(0), self.block(1));
        let (not_small, unsure, done) = (self.block(0), self.block(0), self.block(1));
        let end = self.add(text, len);
        let last = self.add_constant(end, -8);
        let last = self.load(types::I64, last, 0);
        let below = self
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThan, len, 8);
        self.branch(below, (small, &[]), (not_small, &[]));

        self.enter(small);
        // The bytes before the text are the low ones of the word.
        let bits = self.builder.ins().ishl_imm_u(len, 3);
        let before = self.builder.ins().ineg(bits);
        let word = self.builder.ins().ushr(last, before);
        self.jump(test, &[word]);

        self.enter(not_small);
        let fits = self
            .builder
            .ins()
            .icmp_imm_u(IntCC::UnsignedLessThanOrEqual, len, 16);
        self.branch(fits, (medium, &[]), (unsure, &[]));
        self.enter(medium);
        let first = self.load(types::I64, text, 0);
        let word = self.builder.ins().bor(first, last);
        self.jump(test, &[word]);

        let word = self.enter(test)[0];
        let high = self.constant(HIGH);
        let odd = self.builder.ins().band(word, high);
        let good = self.constant(1);
        self.branch(odd, (unsure, &[]), (done, &[good]));
        self.enter(unsure);
        let good = self.help(Helper::IsUtf8, &[text, len]);
        self.jump(done, &[good]);
        self.enter(done)[0]
    }

    /// Whether the struct at `at` has a field set; `None` if it doesn't record that.
    pub(crate) fn is_set(&mut self, guard: Guard, at: Value) -> Option<Value> {
        match guard {
            Guard::None => None,
            Guard::Bit { word, mask } => {
                let word = self.load_u32(at, word);
                Some(self.builder.ins().band_imm_u(word, i64::from(mask)))
            }
            Guard::Case { at: case, number } => {
                let case = self.load_u32(at, case);
                Some(
                    self.builder
                        .ins()
                        .icmp_imm_u(IntCC::Equal, case, i64::from(number)),
                )
            }
        }
    }
}

/// Checked memory (so it can't trap), little-endian like the host, at any alignment.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}
