//! Code for expressions.
//!
//! A boolean is an i32: 0, 1, or from 2 on the number of an error. So `false && error` is false and
//! `true || error` is true, as CEL wants it, without exceptions. In all other values an error is a
//! branch: it leaves the code of the innermost boolean around it, with its number.
//!
//! | type | on the stack |
//! |---|---|
//! | bool | i32 |
//! | int, uint, timestamp, duration | i64 |
//! | double | f64 |
//! | string, bytes | i32 address, i32 length |

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Code, Label, Local, at};
use crate::emit::helper::Helper;
use crate::emit::module::{Import, Module};
use crate::limits;
use crate::ops::{Entry, Op, TimePart, Typed};
use crate::parse::{Arithmetic, Comparison, Quantifier};
use crate::time;
use crate::types::{Const, Scalar, Type};

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;
const F64: ValType = ValType::F64;
/// The type of a boolean's block.
const BOOL: BlockType = BlockType::Result(I32);

/// The errors of arithmetic.
const OVERFLOW: &str = "a number is out of range";
const BY_ZERO: &str = "a division by zero";
const NOT_A_NUMBER: &str = "a text is no number";
const TOO_LONG: &str = "a computed text is too long";

/// Bytes of a view before its entries, and of an entry.
const HEADER: u32 = 8;
const ENTRY: u32 = 16;
/// In an entry.
const PRESENT: u32 = 0;
const LENGTH: u32 = 4;
const VALUE: u32 = 8;

/// What is on the stack for a value.
fn stack(ty: Type) -> &'static [ValType] {
    match ty {
        Type::Bool => &[I32],
        Type::Int | Type::Uint | Type::Timestamp | Type::Duration => &[I64],
        Type::Double => &[F64],
        Type::String | Type::Bytes => &[I32, I32],
    }
}

/// Writes the code of expressions into a function.
pub(crate) struct Values<'a> {
    pub(crate) module: &'a mut Module,
    pub(crate) code: &'a mut Code,
    /// The view's address.
    pub(crate) view: Local,
    /// Fields in the view: metadata keys come after them.
    pub(crate) fields: usize,
    /// The current value of each loop around the code.
    pub(crate) loops: Vec<(Local, Local)>,
}

impl Values<'_> {
    /// Where an entry's word is, from the view's address.
    fn place(&self, entry: Entry, word: u32) -> u32 {
        let index = match entry {
            Entry::Field(index) => index,
            Entry::Key(index) => self.fields + index,
        };
        HEADER + ENTRY * index as u32 + word
    }

    fn load(&mut self, entry: Entry, word: u32) {
        let place = self.place(entry, word);
        self.code.get(self.view).op().i32_load(at(place));
    }

    /// If the i32 on the stack isn't 0, the error.
    pub(crate) fn fail_if(&mut self, reason: &str, error: Label) {
        let number = self.module.reason(reason);
        self.code.begin_if(BlockType::Empty);
        self.code.i32(number);
        self.code.br(error);
        self.code.end();
    }

    /// A boolean that can't be an error.
    fn certain(&mut self, node: &Typed, error: Label) {
        self.boolean(node);
        if node.fails {
            let found = self.code.local(I32);
            self.code.tee(found).i32(1).op().i32_gt_u();
            self.code.begin_if(BlockType::Empty);
            self.code.get(found);
            self.code.br(error);
            self.code.end();
            self.code.get(found);
            self.code.free(found);
        }
    }

    /// A value, or a branch to `error`.
    pub(crate) fn value(&mut self, node: &Typed, error: Label) {
        if node.ty == Type::Bool {
            return self.certain(node, error);
        }
        match &node.op {
            Op::Const(value) => self.constant(value),
            Op::Field {
                index,
                scalar,
                default,
                withheld,
            } => {
                let entry = Entry::Field(*index);
                if let Some(reason) = withheld {
                    self.load(entry, PRESENT);
                    self.code.op().i32_eqz();
                    self.fail_if(reason, error);
                }
                match default {
                    None => self.field(entry, *scalar),
                    Some(default) => {
                        let block = self.module.block(stack(node.ty));
                        self.load(entry, PRESENT);
                        self.code.begin_if(block);
                        self.field(entry, *scalar);
                        self.code.begin_else();
                        self.constant(default);
                        self.code.end();
                    }
                }
            }
            Op::OnlyValue { key, none, many } => self.only_value(*key, none, many, error),
            Op::CountValues { key } => {
                self.load(Entry::Key(*key), PRESENT);
                self.code.op().i64_extend_i32_u();
            }
            Op::Current(depth) => {
                let (address, len) = self.loops[*depth];
                self.code.get(address).get(len);
            }
            Op::Now => {
                let now = self.module.import(Import::Now);
                self.code.call(now).i64(1000).op().i64_mul();
            }
            Op::Negate(inner) => self.negate(node.ty, inner, error),
            Op::Choose(condition, a, b) => {
                let block = self.module.block(stack(node.ty));
                self.certain(condition, error);
                self.code.begin_if(block);
                self.value(a, error);
                self.code.begin_else();
                self.value(b, error);
                self.code.end();
            }
            Op::Arithmetic(operator, a, b) => {
                self.value(a, error);
                self.value(b, error);
                self.arithmetic(*operator, a.ty, node.ty, error);
            }
            Op::Concatenate(parts) => self.concatenate(parts, error),
            Op::Size(inner) => {
                self.value(inner, error);
                match inner.ty {
                    Type::Bytes => {
                        let len = self.code.local(I32);
                        self.code.set(len).op().drop();
                        self.code.get(len).free(len);
                    }
                    _ => {
                        let count = self.module.helper(Helper::Characters);
                        self.code.call(count);
                    }
                }
                self.code.op().i64_extend_i32_u();
            }
            Op::Convert(inner) => self.convert(inner, node.ty, error),
            Op::Part(part, inner) => {
                self.value(inner, error);
                self.part(*part);
            }
            Op::IsPresent { .. }
            | Op::Not(_)
            | Op::And(..)
            | Op::Or(..)
            | Op::Compare(..)
            | Op::Text(..)
            | Op::Matches(..)
            | Op::InTexts(..)
            | Op::InNumbers(..)
            | Op::One(_)
            | Op::Loop { .. } => self.certain(node, error),
        }
    }

    fn constant(&mut self, value: &Const) {
        match value {
            Const::Bool(value) => {
                self.code.i32((*value).into());
            }
            Const::Int(value) | Const::Timestamp(value) | Const::Duration(value) => {
                self.code.i64(*value);
            }
            Const::Uint(value) => {
                self.code.i64(value.cast_signed());
            }
            Const::Double(value) => {
                self.code.op().f64_const((*value).into());
            }
            Const::String(_) | Const::Bytes(_) => {
                let span = self.module.constant(value.bytes().unwrap_or_default());
                self.code.i32(span.address).i32(span.len);
            }
        }
    }

    fn field(&mut self, entry: Entry, scalar: Scalar) {
        let value = self.place(entry, VALUE);
        self.code.get(self.view);
        match scalar {
            Scalar::Bool => {
                self.code.op().i32_load(at(value));
            }
            Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 => {
                self.code.op().i64_load(at(value));
            }
            Scalar::Double => {
                self.code.op().f64_load(at(value));
            }
            Scalar::Float => {
                self.code.op().f32_load(at(value)).f64_promote_f32();
            }
            Scalar::String | Scalar::Bytes => {
                self.code.op().i32_load(at(value));
                self.code.get(self.view).op().i32_add();
                self.load(entry, LENGTH);
            }
        }
    }

    fn only_value(&mut self, key: usize, none: &str, many: &str, error: Label) {
        let entry = Entry::Key(key);
        let count = self.code.local(I32);
        let (none, many) = (self.module.reason(none), self.module.reason(many));
        self.load(entry, PRESENT);
        self.code.tee(count).i32(1).op().i32_ne();
        self.code.begin_if(BlockType::Empty);
        self.code.i32(many).i32(none).get(count).op().select();
        self.code.br(error);
        self.code.end();
        self.code.free(count);
        let begin = self.code.local(I32);
        self.load(entry, VALUE);
        self.code.get(self.view).op().i32_add();
        self.code.tee(begin).i32(4).op().i32_add();
        self.code
            .get(begin)
            .op()
            .i32_load(crate::emit::code::unaligned(0));
        self.code.free(begin);
    }

    fn negate(&mut self, ty: Type, inner: &Typed, error: Label) {
        if ty == Type::Double {
            self.value(inner, error);
            self.code.op().f64_neg();
            return;
        }
        let value = self.code.local(I64);
        self.value(inner, error);
        self.code.tee(value).i64(i64::MIN).op().i64_eq();
        self.fail_if(OVERFLOW, error);
        self.code.i64(0).get(value).op().i64_sub();
        self.code.free(value);
    }

    /// Two numbers on the stack become one.
    fn arithmetic(&mut self, operator: Arithmetic, left: Type, ty: Type, error: Label) {
        if ty == Type::Double {
            match operator {
                Arithmetic::Add => self.code.op().f64_add(),
                Arithmetic::Subtract => self.code.op().f64_sub(),
                Arithmetic::Multiply => self.code.op().f64_mul(),
                Arithmetic::Divide | Arithmetic::Modulo => self.code.op().f64_div(),
            };
            return;
        }
        let [a, b, result] = [0; 3].map(|_| self.code.local(I64));
        self.code.set(b).set(a);
        let is_unsigned = left == Type::Uint;
        match operator {
            Arithmetic::Add => {
                self.code.get(a).get(b).op().i64_add();
                self.code.set(result);
                match is_unsigned {
                    true => {
                        self.code.get(result).get(a).op().i64_lt_u();
                    }
                    false => {
                        self.code.get(a).get(result).op().i64_xor();
                        self.code.get(b).get(result).op().i64_xor();
                        self.code.op().i64_and();
                        self.code.i64(0).op().i64_lt_s();
                    }
                }
                self.fail_if(OVERFLOW, error);
            }
            Arithmetic::Subtract => {
                self.code.get(a).get(b).op().i64_sub();
                self.code.set(result);
                match is_unsigned {
                    true => {
                        self.code.get(a).get(b).op().i64_lt_u();
                    }
                    false => {
                        self.code.get(a).get(b).op().i64_xor();
                        self.code.get(a).get(result).op().i64_xor();
                        self.code.op().i64_and();
                        self.code.i64(0).op().i64_lt_s();
                    }
                }
                self.fail_if(OVERFLOW, error);
            }
            Arithmetic::Multiply => {
                let multiply = self.module.helper(match is_unsigned {
                    true => Helper::MultiplyUnsigned,
                    false => Helper::Multiply,
                });
                self.code.get(a).get(b).call(multiply);
                self.fail_if(OVERFLOW, error);
                self.code.set(result);
            }
            Arithmetic::Divide | Arithmetic::Modulo => {
                self.code.get(b).op().i64_eqz();
                self.fail_if(BY_ZERO, error);
                if !is_unsigned {
                    self.code.get(a).i64(i64::MIN).op().i64_eq();
                    self.code.get(b).i64(-1).op().i64_eq();
                    self.code.op().i32_and();
                    self.fail_if(OVERFLOW, error);
                }
                self.code.get(a).get(b);
                match (operator, is_unsigned) {
                    (Arithmetic::Divide, true) => self.code.op().i64_div_u(),
                    (Arithmetic::Divide, false) => self.code.op().i64_div_s(),
                    (_, true) => self.code.op().i64_rem_u(),
                    (_, false) => self.code.op().i64_rem_s(),
                };
                self.code.set(result);
            }
        }
        if matches!(ty, Type::Timestamp | Type::Duration) {
            self.check_time(result, ty, error);
        }
        self.code.get(result);
        self.code.free_all([a, b, result]);
    }

    fn check_time(&mut self, value: Local, ty: Type, error: Label) {
        let (least, most) = match ty {
            Type::Timestamp => time::TIMESTAMPS,
            _ => (-time::LONGEST, time::LONGEST),
        };
        self.code.get(value).i64(least).op().i64_lt_s();
        self.code.get(value).i64(most).op().i64_gt_s();
        self.code.op().i32_or();
        self.fail_if(OVERFLOW, error);
    }

    fn convert(&mut self, inner: &Typed, to: Type, error: Label) {
        self.value(inner, error);
        match (inner.ty, to) {
            (Type::Int, Type::Double) => {
                self.code.op().f64_convert_i64_s();
            }
            (Type::Uint, Type::Double) => {
                self.code.op().f64_convert_i64_u();
            }
            (Type::Int, Type::Uint) | (Type::Uint, Type::Int) => {
                let value = self.code.local(I64);
                self.code.tee(value).i64(0).op().i64_lt_s();
                self.fail_if(OVERFLOW, error);
                self.code.get(value).free(value);
            }
            (Type::Int, Type::Timestamp) => {
                let value = self.code.local(I64);
                self.code.set(value);
                self.check_time(value, to, error);
                self.code.get(value).free(value);
            }
            (Type::Timestamp, Type::Int) => {
                let floor = self.module.helper(Helper::FloorDivide);
                self.code.i64(1_000_000).call(floor);
            }
            (Type::Double, Type::Int | Type::Uint) => self.truncate(to, error),
            (Type::String, Type::Int | Type::Uint) => {
                let parse = self.module.helper(match to {
                    Type::Int => Helper::ParseInt,
                    _ => Helper::ParseUint,
                });
                self.code.call(parse);
                self.fail_if(NOT_A_NUMBER, error);
            }
            (Type::Int | Type::Uint, Type::String) => {
                let print = self.module.helper(match inner.ty {
                    Type::Int => Helper::PrintInt,
                    _ => Helper::PrintUint,
                });
                let [address, len] = [0; 2].map(|_| self.code.local(I32));
                self.code.call(print).set(len).tee(address).op().i32_eqz();
                self.fail_if(TOO_LONG, error);
                self.code.get(address).get(len).free(address);
                self.code.free(len);
            }
            (Type::Bool, Type::String) => {
                let block = self.module.block(&[I32, I32]);
                self.code.begin_if(block);
                self.constant(&Const::String("true".to_owned()));
                self.code.begin_else();
                self.constant(&Const::String("false".to_owned()));
                self.code.end();
            }
            // A string is bytes.
            _ => {}
        }
    }

    fn truncate(&mut self, to: Type, error: Label) {
        const LIMIT: f64 = 9_223_372_036_854_775_808.0;
        let value = self.code.local(F64);
        let (least, most) = match to {
            Type::Int => (-LIMIT, LIMIT),
            _ => (-1.0, 2.0 * LIMIT),
        };
        // What isn't between them is out of range, and so is a NaN.
        self.code.tee(value).op().f64_const(least.into()).f64_gt();
        self.code.get(value).op().f64_const(most.into()).f64_lt();
        self.code.op().i32_and().i32_eqz();
        self.fail_if(OVERFLOW, error);
        self.code.get(value);
        match to {
            Type::Int => self.code.op().i64_trunc_f64_s(),
            _ => self.code.op().i64_trunc_f64_u(),
        };
        self.code.free(value);
    }

    /// The time on the stack becomes a part of it.
    fn part(&mut self, part: TimePart) {
        const DAY: i64 = 86_400_000_000;
        let floor = self.module.helper(Helper::FloorDivide);
        let time = self.code.local(I64);
        self.code.set(time);
        let modulo = |code: &mut Code, unit: i64, of: i64| {
            // floor(time / unit) - floor(time / (unit * of)) * of
            code.get(time).i64(unit).call(floor);
            code.get(time)
                .i64(unit * of)
                .call(floor)
                .i64(of)
                .op()
                .i64_mul();
            code.op().i64_sub();
        };
        match part {
            TimePart::Milliseconds => modulo(self.code, 1_000, 1_000),
            TimePart::Seconds => modulo(self.code, 1_000_000, 60),
            TimePart::Minutes => modulo(self.code, 60_000_000, 60),
            TimePart::Hours => modulo(self.code, 3_600_000_000, 24),
            TimePart::DayOfWeek => {
                // 1970 began on a Thursday.
                self.code.get(time).i64(4 * DAY).op().i64_add();
                self.code.set(time);
                modulo(self.code, DAY, 7);
            }
            _ => {
                let date = self.module.helper(Helper::Date);
                self.code
                    .get(time)
                    .i64(DAY)
                    .call(floor)
                    .i32(part as u32)
                    .call(date);
            }
        }
        self.code.free(time);
    }

    /// Texts one after the other, in the heap.
    fn concatenate(&mut self, parts: &[Typed], error: Label) {
        let spans: Vec<_> = parts.iter().map(|part| self.span(part, error)).collect();
        let total = self.code.local(I32);
        self.code.i32(0);
        for (_, len) in &spans {
            self.code.get(*len).op().i32_add();
        }
        self.code
            .tee(total)
            .i32(limits::COMPUTED_BYTES as u32)
            .op()
            .i32_gt_u();
        self.fail_if(TOO_LONG, error);
        let [begin, next] = [0; 2].map(|_| self.code.local(I32));
        let allocate = self.module.helper(Helper::Allocate);
        self.code
            .get(total)
            .call(allocate)
            .tee(begin)
            .tee(next)
            .op()
            .i32_eqz();
        self.fail_if(TOO_LONG, error);
        for (address, len) in spans {
            self.code
                .get(next)
                .get(address)
                .get(len)
                .op()
                .memory_copy(0, 0);
            self.code.get(next).get(len).op().i32_add();
            self.code.set(next).free(address);
            self.code.free(len);
        }
        self.code.get(begin).get(total);
        self.code.free_all([total, begin, next]);
    }

    /// A text in two locals, which the caller frees.
    pub(crate) fn span(&mut self, node: &Typed, error: Label) -> (Local, Local) {
        self.value(node, error);
        let (address, len) = (self.code.local(I32), self.code.local(I32));
        self.code.set(len).set(address);
        (address, len)
    }

    /// A boolean, or an error's number.
    pub(crate) fn boolean(&mut self, node: &Typed) {
        match &node.op {
            Op::Const(Const::Bool(value)) => {
                self.code.i32((*value).into());
            }
            Op::IsPresent { entry } => {
                self.load(*entry, PRESENT);
                if matches!(entry, Entry::Key(_)) {
                    self.code.i32(0).op().i32_ne();
                }
            }
            Op::Not(inner) => {
                self.boolean(inner);
                if !inner.fails {
                    self.code.op().i32_eqz();
                    return;
                }
                let found = self.code.local(I32);
                self.code.tee(found).get(found).i32(1).op().i32_xor();
                self.code.get(found).i32(1).op().i32_gt_u().select();
                self.code.free(found);
            }
            Op::And(a, b) => self.and(a, b),
            Op::Or(a, b) => self.or(a, b),
            Op::Choose(condition, a, b) => {
                self.boolean(condition);
                if condition.fails {
                    let found = self.code.local(I32);
                    self.code.tee(found).i32(1).op().i32_gt_u();
                    self.code.begin_if(BOOL);
                    self.code.get(found);
                    self.code.begin_else();
                    self.code.get(found).free(found);
                }
                self.code.begin_if(BOOL);
                self.boolean(a);
                self.code.begin_else();
                self.boolean(b);
                self.code.end();
                if condition.fails {
                    self.code.end();
                }
            }
            Op::Loop {
                quantifier,
                key,
                depth,
                condition,
            } => self.each(*quantifier, *key, *depth, condition),
            _ => {
                let error = self.code.block(BOOL);
                self.test(node, error);
                self.code.end();
            }
        }
    }

    /// False, if either is; else an error, if either is one.
    fn and(&mut self, a: &Typed, b: &Typed) {
        self.boolean(a);
        if !a.fails {
            self.code.begin_if(BOOL);
            self.boolean(b);
            self.code.begin_else();
            self.code.i32(0);
            self.code.end();
            return;
        }
        let (left, right) = (self.code.local(I32), self.code.local(I32));
        self.code.tee(left);
        self.code.begin_if(BOOL);
        self.boolean(b);
        self.code.tee(right);
        self.code.begin_if(BOOL);
        self.code
            .get(left)
            .get(right)
            .get(left)
            .i32(1)
            .op()
            .i32_gt_u()
            .select();
        self.code.begin_else();
        self.code.i32(0);
        self.code.end();
        self.code.begin_else();
        self.code.i32(0);
        self.code.end();
        self.code.free(left);
        self.code.free(right);
    }

    /// True, if either is; else an error, if either is one.
    fn or(&mut self, a: &Typed, b: &Typed) {
        self.boolean(a);
        if !a.fails {
            self.code.begin_if(BOOL);
            self.code.i32(1);
            self.code.begin_else();
            self.boolean(b);
            self.code.end();
            return;
        }
        let (left, right) = (self.code.local(I32), self.code.local(I32));
        self.code.tee(left).i32(1).op().i32_eq();
        self.code.begin_if(BOOL);
        self.code.i32(1);
        self.code.begin_else();
        self.boolean(b);
        self.code.set(right);
        self.code.get(right).get(left);
        self.code.get(right).i32(1).op().i32_eq();
        self.code.get(left).op().i32_eqz().i32_or().select();
        self.code.end();
        self.code.free(left);
        self.code.free(right);
    }

    /// A test of values; their errors branch.
    fn test(&mut self, node: &Typed, error: Label) {
        match &node.op {
            Op::Field {
                index, withheld, ..
            } => {
                let entry = Entry::Field(*index);
                if let Some(reason) = withheld {
                    self.load(entry, PRESENT);
                    self.code.op().i32_eqz();
                    self.fail_if(reason, error);
                }
                match &node.op {
                    Op::Field {
                        default: Some(Const::Bool(true)),
                        ..
                    } => {
                        self.load(entry, VALUE);
                        self.load(entry, PRESENT);
                        self.code.op().i32_eqz().i32_or();
                    }
                    _ => self.load(entry, VALUE),
                }
            }
            Op::Compare(comparison, a, b) => self.compare(*comparison, a, b, error),
            Op::Text(test, a, b) => self.test_text(*test, a, b, error),
            Op::Matches(text, dfa) => {
                let table = self.module.table(&dfa.to_bytes());
                let matches = self.module.helper(Helper::Match);
                self.value(text, error);
                let (width, start) = (dfa.width as u32, u32::from(dfa.start));
                self.code.i32(table).i32(width).i32(start).call(matches);
            }
            Op::InTexts(value, all) => self.is_one_of(value, all, error),
            Op::InNumbers(value, all) => self.is_number_in(value, all, error),
            Op::One(conditions) => {
                self.code.i32(0);
                for condition in conditions {
                    self.certain(condition, error);
                    self.code.op().i32_add();
                }
                self.code.i32(1).op().i32_eq();
            }
            // All other booleans have code of their own.
            _ => {}
        }
    }

    fn compare(&mut self, comparison: Comparison, a: &Typed, b: &Typed, error: Label) {
        use Comparison::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        if a.ty.is_span() {
            return self.compare_texts(comparison, a, b, error);
        }
        self.value(a, error);
        self.value(b, error);
        let mut op = match (a.ty, b.ty) {
            (left, right) if left != right => return self.compare_mixed(comparison, left, right),
            _ => self.code.op(),
        };
        match (a.ty, comparison) {
            (Type::Bool, Equal) => op.i32_eq(),
            (Type::Bool, NotEqual) => op.i32_ne(),
            (Type::Bool, Less) => op.i32_lt_u(),
            (Type::Bool, LessEqual) => op.i32_le_u(),
            (Type::Bool, Greater) => op.i32_gt_u(),
            (Type::Bool, GreaterEqual) => op.i32_ge_u(),
            (Type::Double, Equal) => op.f64_eq(),
            (Type::Double, NotEqual) => op.f64_ne(),
            (Type::Double, Less) => op.f64_lt(),
            (Type::Double, LessEqual) => op.f64_le(),
            (Type::Double, Greater) => op.f64_gt(),
            (Type::Double, GreaterEqual) => op.f64_ge(),
            (_, Equal) => op.i64_eq(),
            (_, NotEqual) => op.i64_ne(),
            (Type::Uint, Less) => op.i64_lt_u(),
            (Type::Uint, LessEqual) => op.i64_le_u(),
            (Type::Uint, Greater) => op.i64_gt_u(),
            (Type::Uint, GreaterEqual) => op.i64_ge_u(),
            (_, Less) => op.i64_lt_s(),
            (_, LessEqual) => op.i64_le_s(),
            (_, Greater) => op.i64_gt_s(),
            (_, GreaterEqual) => op.i64_ge_s(),
        };
    }

    /// Two numbers of different types on the stack, by their values.
    fn compare_mixed(&mut self, comparison: Comparison, left: Type, right: Type) {
        let is_swapped = matches!(
            (left, right),
            (Type::Uint, Type::Int) | (Type::Double, Type::Int | Type::Uint)
        );
        let helper = match (left, right) {
            (Type::Int, Type::Uint) | (Type::Uint, Type::Int) => Helper::CompareIntUint,
            (Type::Int, _) | (_, Type::Int) => Helper::CompareIntDouble,
            _ => Helper::CompareUintDouble,
        };
        let compare = self.module.helper(helper);
        if is_swapped {
            let [first, second] = [left, right].map(|ty| self.code.local(stack(ty)[0]));
            self.code.set(second).set(first).get(second).get(first);
            self.code.free(first);
            self.code.free(second);
        }
        self.code.call(compare);
        self.order(comparison, is_swapped);
    }

    /// A comparison's -1, 0, 1, or 2 for numbers without order, on the stack, becomes a boolean.
    pub(crate) fn order(&mut self, comparison: Comparison, is_swapped: bool) {
        // Which of less, equal, greater, unordered are true: bits 0 to 3.
        let bits: u32 = match (comparison, is_swapped) {
            (Comparison::Equal, _) => 0b0010,
            (Comparison::NotEqual, _) => 0b1101,
            (Comparison::Less, false) | (Comparison::Greater, true) => 0b0001,
            (Comparison::LessEqual, false) | (Comparison::GreaterEqual, true) => 0b0011,
            (Comparison::Greater, false) | (Comparison::Less, true) => 0b0100,
            (Comparison::GreaterEqual, false) | (Comparison::LessEqual, true) => 0b0110,
        };
        let order = self.code.local(I32);
        self.code
            .set(order)
            .i32(bits)
            .get(order)
            .i32(1)
            .op()
            .i32_add()
            .i32_shr_u();
        self.code.i32(1).op().i32_and();
        self.code.free(order);
    }

    fn is_number_in(&mut self, value: &Typed, all: &[i64], error: Label) {
        /// Up to here comparing one after the other is faster.
        const FEW: usize = 6;
        self.value(value, error);
        if all.len() > FEW {
            let bytes: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
            let table = self.module.table(&bytes);
            let search = self.module.helper(Helper::Search);
            self.code.i32(table).i32(all.len() as u32).call(search);
            return;
        }
        let found = self.code.local(I64);
        self.code.set(found).i32(0);
        for number in all {
            self.code.get(found).i64(*number).op().i64_eq().i32_or();
        }
        self.code.free(found);
    }

    /// A macro over the values of a metadata key.
    fn each(&mut self, quantifier: Quantifier, key: usize, depth: usize, condition: &Typed) {
        let entry = Entry::Key(key);
        let [left, next, address, len, found, result] = [0; 6].map(|_| self.code.local(I32));
        self.load(entry, PRESENT);
        self.code.set(left);
        self.load(entry, VALUE);
        self.code.get(self.view).op().i32_add();
        self.code.set(next);
        self.code
            .i32((quantifier == Quantifier::All).into())
            .set(result);
        // The count of ExistsOne isn't a boolean, so its error has a way out of its own.
        let failed = self.code.block(BlockType::Empty);
        let done = self.code.block(BlockType::Empty);
        let top = self.code.begin_loop();
        self.code.get(left).op().i32_eqz();
        self.code.br_if(done);
        self.code
            .get(next)
            .op()
            .i32_load(crate::emit::code::unaligned(0));
        self.code.set(len);
        self.code.get(next).i32(4).op().i32_add();
        self.code.set(address);
        let before = self.loops.len();
        let hidden = match self.loops.get_mut(depth) {
            Some(place) => Some(std::mem::replace(place, (address, len))),
            None => {
                self.loops.push((address, len));
                None
            }
        };
        self.boolean(condition);
        match hidden {
            Some(hidden) => self.loops[depth] = hidden,
            None => self.loops.truncate(before),
        }
        self.code.set(found);
        match quantifier {
            Quantifier::All | Quantifier::Exists => {
                // The value that decides ends the loop; an error waits for it.
                let decides = u32::from(quantifier == Quantifier::Exists);
                self.code.get(found).i32(decides).op().i32_eq();
                self.code.begin_if(BlockType::Empty);
                self.code.i32(decides).set(result);
                self.code.br(done);
                self.code.end();
                if condition.fails {
                    self.code
                        .get(found)
                        .get(result)
                        .get(found)
                        .i32(1)
                        .op()
                        .i32_gt_u()
                        .select();
                    self.code.set(result);
                }
            }
            Quantifier::ExistsOne => {
                if condition.fails {
                    self.code.get(found).i32(1).op().i32_gt_u();
                    self.code.br_if(failed);
                }
                self.code.get(result).get(found).op().i32_add();
                self.code.set(result);
            }
        }
        self.code.get(address).get(len).op().i32_add();
        self.code.set(next);
        self.code.get(left).i32(1).op().i32_sub();
        self.code.set(left);
        self.code.br(top);
        self.code.end();
        self.code.end();
        if quantifier == Quantifier::ExistsOne {
            self.code.get(result).i32(1).op().i32_eq();
            self.code.set(result);
        }
        self.code.get(result).set(found);
        self.code.end();
        self.code.get(found);
        self.code
            .free_all([left, next, address, len, found, result]);
    }
}
