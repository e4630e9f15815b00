//! The functions that a module's rules call: texts, numbers, times, buckets, and the verdicts.

use wasm_encoder::{BlockType, ValType};

use crate::emit::buckets;
use crate::emit::code::{Code, Local, add, at, parameter, unaligned, while_not_zero};
use crate::emit::hash::hash_of;
use crate::emit::helper::Helper;
use crate::emit::module::{EFFECTS, HEAP, Import, Module, PAGE};
use crate::limits;
use crate::ops::TimePart;
use crate::regex::{DEAD, MATCHED};

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;
const BOOL: BlockType = BlockType::Result(I32);

/// Words of an entry that the module writes.
pub(crate) const VERDICT: u32 = 12;
const STATUS: u32 = 16;
const MESSAGE: u32 = 20;
const MESSAGE_LEN: u32 = 24;
/// Verdicts.
pub(crate) const ALLOW: u32 = 1;
const DENY: u32 = 2;
const WITH_EFFECTS: u32 = 3;
/// Bytes of a record of the list of effects.
pub(crate) const RECORD: u32 = 16;
/// Kinds of effects whose value is an address and a length.
const KINDS_OF_BYTES: [u32; 3] = [3, 4, 8];

impl Module {
    /// Writes the helpers that were called, and those that they call. The one that knows all errors
    /// comes last.
    pub(crate) fn define_helpers(&mut self) {
        let fail = self.helpers().iter().find(|(one, _)| *one == Helper::Fail);
        let fail = fail.copied();
        if fail.is_some() {
            for helper in Helper::FAIL_CALLS {
                self.helper(helper);
            }
        }
        let mut next = 0;
        while let Some(&(helper, number)) = self.helpers().get(next) {
            next += 1;
            if helper != Helper::Fail {
                let code = code(self, helper);
                self.define(number, code);
            }
        }
        if let Some((helper, number)) = fail {
            let code = code(self, helper);
            self.define(number, code);
        }
    }
}

/// A helper's code.
fn code(module: &mut Module, helper: Helper) -> Code {
    let mut code = Code::new(helper.ty().0.len() as u32);
    let c = &mut code;
    match helper {
        Helper::Allocate => allocate(c),
        Helper::Same => same(c),
        Helper::Order => order(c),
        Helper::Find => find(module, c),
        Helper::Characters => characters(c),
        Helper::LookUp => look_up(module, c),
        Helper::Search => search(c),
        Helper::Match => match_table(c),
        Helper::Take => buckets::take(module, c),
        Helper::Multiply => multiply(c),
        Helper::MultiplyUnsigned => multiply_unsigned(c),
        Helper::FloorDivide => floor_divide(c),
        Helper::CompareIntUint => compare_int_uint(c),
        Helper::CompareIntDouble => compare_double(c, true),
        Helper::CompareUintDouble => compare_double(c, false),
        Helper::ParseInt => parse(c, true),
        Helper::ParseUint => parse(c, false),
        Helper::PrintInt => print(module, c, true),
        Helper::PrintUint => print(module, c, false),
        Helper::Date => date(module, c),
        Helper::IsPrintable => all_bytes(c, |c, byte| {
            c.get(byte).i32(0x20).op().i32_sub();
            c.i32(0x5f).op().i32_lt_u();
        }),
        Helper::IsRoute => is_route(c),
        Helper::List => list(module, c),
        Helper::Finish => finish(module, c),
        Helper::Deny => deny(c),
        Helper::Fail => fail(module, c),
    }
    code
}

fn allocate(c: &mut Code) {
    let bytes = parameter(0);
    let (begin, end) = (c.local(I32), c.local(I32));
    c.op().global_get(HEAP);
    c.tee(begin).get(bytes).op().i32_add();
    // Records are read as words.
    c.i32(7).op().i32_add();
    c.i32(!7).op().i32_and();
    c.tee(end);
    c.op().memory_size(0);
    c.i32(16).op().i32_shl().i32_gt_u();
    c.begin_if(BlockType::Empty);
    c.get(end);
    c.op().memory_size(0);
    c.i32(16).op().i32_shl().i32_sub();
    c.i32(PAGE - 1).op().i32_add();
    c.i32(16).op().i32_shr_u().memory_grow(0);
    c.i32(u32::MAX).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.i32(0).op().return_();
    c.end();
    c.end();
    c.get(end).op().global_set(HEAP);
    c.get(begin);
}

/// Words of 8 bytes, then bytes.
fn same(c: &mut Code) {
    let (a, b, len) = (parameter(0), parameter(1), parameter(2));
    let words = c.block(BlockType::Empty);
    let top = c.begin_loop();
    c.get(len).i32(8).op().i32_lt_u();
    c.br_if(words);
    c.get(a).op().i64_load(unaligned(0));
    c.get(b).op().i64_load(unaligned(0)).i64_ne();
    c.begin_if(BlockType::Empty);
    c.i32(0).op().return_();
    c.end();
    add(c, a, 8);
    add(c, b, 8);
    add(c, len, 8_u32.wrapping_neg());
    c.br(top);
    c.end();
    c.end();
    while_not_zero(c, len, |c, _| {
        c.get(a).op().i32_load8_u(unaligned(0));
        c.get(b).op().i32_load8_u(unaligned(0)).i32_ne();
        c.begin_if(BlockType::Empty);
        c.i32(0).op().return_();
        c.end();
        add(c, a, 1);
        add(c, b, 1);
        add(c, len, u32::MAX);
    });
    c.i32(1);
}

fn order(c: &mut Code) {
    let (a, a_len, b, b_len) = (parameter(0), parameter(1), parameter(2), parameter(3));
    let left = c.local(I32);
    c.get(a_len)
        .get(b_len)
        .get(a_len)
        .get(b_len)
        .op()
        .i32_lt_u()
        .select();
    c.set(left);
    while_not_zero(c, left, |c, _| {
        c.get(a).op().i32_load8_u(unaligned(0));
        c.get(b).op().i32_load8_u(unaligned(0)).i32_ne();
        c.begin_if(BlockType::Empty);
        c.get(a).op().i32_load8_u(unaligned(0));
        c.get(b).op().i32_load8_u(unaligned(0)).i32_lt_u();
        c.begin_if(BlockType::Empty);
        c.i32(u32::MAX).op().return_();
        c.end();
        c.i32(1).op().return_();
        c.end();
        add(c, a, 1);
        add(c, b, 1);
        add(c, left, u32::MAX);
    });
    // One begins with the other: the shorter one is less.
    c.get(a_len).get(b_len).op().i32_gt_u();
    c.get(a_len).get(b_len).op().i32_lt_u().i32_sub();
}

fn find(module: &mut Module, c: &mut Code) {
    let (text, len, part, size) = (parameter(0), parameter(1), parameter(2), parameter(3));
    let same = module.helper(Helper::Same);
    let (last, first) = (c.local(I32), c.local(I32));
    c.get(size).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.i32(1).op().return_();
    c.end();
    c.get(size).get(len).op().i32_gt_u();
    c.begin_if(BlockType::Empty);
    c.i32(0).op().return_();
    c.end();
    c.get(part).op().i32_load8_u(unaligned(0));
    c.set(first);
    c.get(text).get(len).op().i32_add();
    c.get(size).op().i32_sub();
    c.set(last);
    let top = c.begin_loop();
    c.get(text).op().i32_load8_u(unaligned(0));
    c.get(first).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.get(text).get(part).get(size).call(same);
    c.begin_if(BlockType::Empty);
    c.i32(1).op().return_();
    c.end();
    c.end();
    add(c, text, 1);
    c.get(text).get(last).op().i32_le_u();
    c.br_if(top);
    c.end();
    c.i32(0);
}

/// All bytes but those that continue a character.
fn characters(c: &mut Code) {
    let (text, left) = (parameter(0), parameter(1));
    let count = c.local(I32);
    while_not_zero(c, left, |c, _| {
        c.get(count).get(text).op().i32_load8_u(unaligned(0));
        c.i32(0xc0).op().i32_and();
        c.i32(0x80).op().i32_ne().i32_add();
        c.set(count);
        add(c, text, 1);
        add(c, left, u32::MAX);
    });
    c.get(count);
}

fn look_up(module: &mut Module, c: &mut Code) {
    let (text, len, table, mask) = (parameter(0), parameter(1), parameter(2), parameter(3));
    let same = module.helper(Helper::Same);
    let (hash, found) = (c.local(I32), c.local(I32));
    let (next, last) = (c.local(I32), c.local(I32));
    let state = hash_of(c, text, len);
    c.get(state).op().i32_wrap_i64();
    c.tee(hash).set(next);
    let top = c.begin_loop();
    c.get(table).get(next).get(mask).op().i32_and();
    c.i32(3).op().i32_shl().i32_add();
    c.tee(last).op().i32_load(at(4));
    c.tee(found).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.i32(0).op().return_();
    c.end();
    c.get(last).op().i32_load(at(0));
    c.get(hash).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.get(found).op().i32_load(unaligned(0));
    c.get(len).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.get(text).get(found).i32(4).op().i32_add();
    c.get(len).call(same);
    c.begin_if(BlockType::Empty);
    c.i32(1).op().return_();
    c.end();
    c.end();
    c.end();
    add(c, next, 1);
    c.br(top);
    c.end();
    c.op().unreachable();
}

/// By halves: the table is sorted.
fn search(c: &mut Code) {
    let (number, table, count) = (parameter(0), parameter(1), parameter(2));
    let (half, middle) = (c.local(I32), c.local(I32));
    let value = c.local(I64);
    while_not_zero(c, count, |c, _| {
        c.get(count).i32(1).op().i32_shr_u();
        c.tee(half).i32(3).op().i32_shl();
        c.get(table).op().i32_add();
        c.tee(middle).op().i64_load(unaligned(0));
        c.tee(value).get(number).op().i64_eq();
        c.begin_if(BlockType::Empty);
        c.i32(1).op().return_();
        c.end();
        c.get(value).get(number).op().i64_lt_s();
        c.begin_if(BlockType::Empty);
        c.get(middle).i32(8).op().i32_add();
        c.set(table);
        c.get(count).get(half).op().i32_sub();
        c.i32(1).op().i32_sub();
        c.set(count);
        c.begin_else();
        c.get(half).set(count);
        c.end();
    });
    c.i32(0);
}

fn match_table(c: &mut Code) {
    let (text, left, table) = (parameter(0), parameter(1), parameter(2));
    let (width, row) = (parameter(3), parameter(4));
    // The next row, for a class that is on the stack.
    let step = |c: &mut Code| {
        c.get(row).get(width).op().i32_mul().i32_add();
        c.i32(1).op().i32_shl();
        c.get(table).op().i32_add().i32_load16_u(unaligned(256));
        c.set(row);
    };
    while_not_zero(c, left, |c, done| {
        c.get(row).i32(DEAD.into()).op().i32_le_u();
        c.br_if(done);
        c.get(text).op().i32_load8_u(unaligned(0));
        c.get(table).op().i32_add().i32_load8_u(unaligned(0));
        step(c);
        add(c, text, 1);
        add(c, left, u32::MAX);
    });
    c.get(row).i32(DEAD.into()).op().i32_gt_u();
    c.begin_if(BlockType::Empty);
    c.get(width).i32(1).op().i32_sub();
    step(c);
    c.end();
    c.get(row).i32(MATCHED.into()).op().i32_eq();
}

fn multiply(c: &mut Code) {
    let (a, b) = (parameter(0), parameter(1));
    let product = c.local(I64);
    c.get(a).get(b).op().i64_mul();
    c.tee(product);
    c.get(a).op().i64_eqz();
    c.begin_if(BOOL);
    c.i32(0);
    c.begin_else();
    // -1 * MIN is the one product that division can't check.
    c.get(a).i64(-1).op().i64_eq();
    c.get(b).i64(i64::MIN).op().i64_eq();
    c.op().i32_and();
    c.begin_if(BOOL);
    c.i32(1);
    c.begin_else();
    // MIN / -1 would trap; -1 * b is checked by its negative.
    c.get(a).i64(-1).op().i64_eq();
    c.begin_if(BOOL);
    c.i32(0);
    c.begin_else();
    c.get(product).get(a).op().i64_div_s();
    c.get(b).op().i64_ne();
    c.end();
    c.end();
    c.end();
}

fn multiply_unsigned(c: &mut Code) {
    let (a, b) = (parameter(0), parameter(1));
    let product = c.local(I64);
    c.get(a).get(b).op().i64_mul();
    c.tee(product);
    c.get(a).op().i64_eqz();
    c.begin_if(BOOL);
    c.i32(0);
    c.begin_else();
    c.get(product).get(a).op().i64_div_u();
    c.get(b).op().i64_ne();
    c.end();
}

fn floor_divide(c: &mut Code) {
    let (a, b) = (parameter(0), parameter(1));
    c.get(a).get(b).op().i64_div_s();
    c.get(a).get(b).op().i64_rem_s();
    c.i64(0).op().i64_lt_s().i64_extend_i32_u().i64_sub();
}

fn compare_int_uint(c: &mut Code) {
    let (int, uint) = (parameter(0), parameter(1));
    c.get(int).i64(0).op().i64_lt_s();
    c.begin_if(BlockType::Empty);
    c.i32(u32::MAX).op().return_();
    c.end();
    c.get(int).get(uint).op().i64_gt_u();
    c.get(int).get(uint).op().i64_lt_u().i32_sub();
}

/// Exactly: the double is split into its integral part, which fits, and the rest.
fn compare_double(c: &mut Code, is_signed: bool) {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let (number, double) = (parameter(0), parameter(1));
    let whole = c.local(I64);
    let answer_if = |c: &mut Code, answer: u32| {
        c.begin_if(BlockType::Empty);
        c.i32(answer).op().return_();
        c.end();
    };
    let (least, most) = match is_signed {
        true => (-LIMIT, LIMIT),
        false => (0.0, 2.0 * LIMIT),
    };
    c.get(double).get(double).op().f64_ne();
    answer_if(c, 2);
    c.get(double).op().f64_const(most.into()).f64_ge();
    answer_if(c, u32::MAX);
    c.get(double).op().f64_const(least.into()).f64_lt();
    answer_if(c, 1);
    c.get(double);
    match is_signed {
        true => c.op().i64_trunc_f64_s(),
        false => c.op().i64_trunc_f64_u(),
    };
    c.set(whole);
    let compare = |c: &mut Code, is_less: bool| {
        c.get(number).get(whole);
        match (is_less, is_signed) {
            (true, true) => c.op().i64_lt_s(),
            (true, false) => c.op().i64_lt_u(),
            (false, true) => c.op().i64_gt_s(),
            (false, false) => c.op().i64_gt_u(),
        };
    };
    compare(c, true);
    answer_if(c, u32::MAX);
    compare(c, false);
    answer_if(c, 1);
    // The rest decides: the number is less if the double has one above zero.
    let rest = |c: &mut Code| {
        c.get(double).get(double).op().f64_trunc();
    };
    rest(c);
    c.op().f64_lt();
    rest(c);
    c.op().f64_gt().i32_sub();
}

/// Digits, after a minus if it is signed.
fn parse(c: &mut Code, is_signed: bool) {
    let (text, left) = (parameter(0), parameter(1));
    let (number, digit) = (c.local(I64), c.local(I64));
    let negative = c.local(I32);
    let wrong = |c: &mut Code| {
        c.begin_if(BlockType::Empty);
        c.i64(0).i32(1).op().return_();
        c.end();
    };
    c.get(left).op().i32_eqz();
    wrong(c);
    if is_signed {
        c.get(text).op().i32_load8_u(unaligned(0));
        c.i32('-'.into()).op().i32_eq();
        c.tee(negative);
        c.begin_if(BlockType::Empty);
        add(c, text, 1);
        add(c, left, u32::MAX);
        c.end();
        c.get(left).op().i32_eqz();
        wrong(c);
    }
    while_not_zero(c, left, |c, _| {
        c.get(text).op().i64_load8_u(unaligned(0));
        c.i64('0' as i64).op().i64_sub();
        c.tee(digit).i64(9).op().i64_gt_u();
        wrong(c);
        // number * 10 + digit fits into 64 bits.
        c.get(number)
            .i64(u64::MAX.wrapping_div(10).cast_signed())
            .op()
            .i64_gt_u();
        wrong(c);
        c.get(number).i64(10).op().i64_mul();
        c.tee(number).get(digit).op().i64_add();
        c.tee(digit).get(number).op().i64_lt_u();
        wrong(c);
        c.get(digit).set(number);
        add(c, text, 1);
        add(c, left, u32::MAX);
    });
    if is_signed {
        // At most 2^63 - 1, or 2^63 after a minus.
        c.get(number)
            .i64(i64::MAX)
            .get(negative)
            .op()
            .i64_extend_i32_u()
            .i64_add();
        c.op().i64_gt_u();
        wrong(c);
        c.i64(0).get(number).op().i64_sub();
        c.get(number).get(negative).op().select();
    } else {
        c.get(number);
    }
    c.i32(0);
}

/// The digits, from the last one on.
fn print(module: &mut Module, c: &mut Code, is_signed: bool) {
    const MOST: u32 = 24;
    let number = parameter(0);
    let allocate = module.helper(Helper::Allocate);
    let (end, next) = (c.local(I32), c.local(I32));
    let rest = c.local(I64);
    c.i32(MOST).call(allocate).tee(end).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.i32(0).i32(0).op().return_();
    c.end();
    add(c, end, MOST);
    c.get(end).set(next);
    c.get(number).set(rest);
    if is_signed {
        c.i64(0).get(number).op().i64_sub();
        c.get(number).get(number).i64(0).op().i64_lt_s().select();
        c.set(rest);
    }
    let top = c.begin_loop();
    add(c, next, u32::MAX);
    c.get(next).get(rest).i64(10).op().i64_rem_u();
    c.i64('0' as i64).op().i64_add().i64_store8(unaligned(0));
    c.get(rest).i64(10).op().i64_div_u();
    c.tee(rest).op().i64_eqz().i32_eqz();
    c.br_if(top);
    c.end();
    if is_signed {
        c.get(number).i64(0).op().i64_lt_s();
        c.begin_if(BlockType::Empty);
        add(c, next, u32::MAX);
        c.get(next).i32('-'.into()).op().i32_store8(unaligned(0));
        c.end();
    }
    c.get(next).get(end).get(next).op().i32_sub();
}

/// By the calendar of all centuries, whose years begin with March: the leap day is the last.
fn date(module: &mut Module, c: &mut Code) {
    let floor = module.helper(Helper::FloorDivide);
    let (days, part) = (parameter(0), parameter(1));
    let [era, of_era, year, of_year, month] = [0; 5].map(|_| c.local(I64));
    c.get(days).i64(719_468).op().i64_add();
    c.tee(days).i64(146_097).call(floor).tee(era);
    c.i64(-146_097).op().i64_mul();
    c.get(days).op().i64_add();
    c.tee(of_era);
    // (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365
    c.get(of_era).i64(1_460).op().i64_div_s().i64_sub();
    c.get(of_era).i64(36_524).op().i64_div_s().i64_add();
    c.get(of_era).i64(146_096).op().i64_div_s().i64_sub();
    c.i64(365).op().i64_div_s();
    c.set(year);
    // of_era - (365 * year + year / 4 - year / 100)
    c.get(of_era).get(year).i64(365).op().i64_mul().i64_sub();
    c.get(year).i64(4).op().i64_div_s().i64_sub();
    c.get(year).i64(100).op().i64_div_s().i64_add();
    c.set(of_year);
    c.get(of_year).i64(5).op().i64_mul();
    c.i64(2).op().i64_add();
    c.i64(153).op().i64_div_s();
    c.set(month);
    let is_part = |c: &mut Code, of: TimePart| {
        c.get(part).i32(of as u32).op().i32_eq();
        c.begin_if(BlockType::Empty);
    };
    for (of, first) in [(TimePart::Date, 1), (TimePart::DayOfMonth, 0)] {
        is_part(c, of);
        c.get(of_year).get(month).i64(153).op().i64_mul();
        c.i64(2).op().i64_add();
        c.i64(5).op().i64_div_s().i64_sub();
        c.i64(first).op().i64_add().return_();
        c.end();
    }
    is_part(c, TimePart::Month);
    // March is 2, and January 0.
    c.get(month).i64(2).op().i64_add();
    c.get(month).i64(10).op().i64_sub();
    c.get(month).i64(10).op().i64_lt_s().select().return_();
    c.end();
    // The year that began with January.
    c.get(era).i64(400).op().i64_mul();
    c.get(year).op().i64_add();
    c.get(month)
        .i64(10)
        .op()
        .i64_ge_s()
        .i64_extend_i32_u()
        .i64_add();
    c.set(year);
    is_part(c, TimePart::FullYear);
    c.get(year).op().return_();
    c.end();
    // The day of the year: January and February come after the other months here.
    c.get(month).i64(10).op().i64_ge_s();
    c.begin_if(BlockType::Result(I64));
    c.get(of_year).i64(306).op().i64_sub();
    c.begin_else();
    c.get(of_year).i64(59).op().i64_add();
    // One more in a leap year.
    let is_multiple = |c: &mut Code, of: i64| {
        c.get(year).i64(of).op().i64_rem_s().i64_eqz();
    };
    is_multiple(c, 4);
    is_multiple(c, 100);
    c.op().i32_eqz();
    is_multiple(c, 400);
    c.op().i32_or().i32_and().i64_extend_i32_u().i64_add();
    c.end();
}

/// Whether each byte passes a test, which leaves a boolean.
fn all_bytes(c: &mut Code, test: impl FnOnce(&mut Code, Local)) {
    let (text, left) = (parameter(0), parameter(1));
    let byte = c.local(I32);
    while_not_zero(c, left, |c, _| {
        c.get(text).op().i32_load8_u(unaligned(0));
        c.set(byte);
        test(c, byte);
        c.op().i32_eqz();
        c.begin_if(BlockType::Empty);
        c.i32(0).op().return_();
        c.end();
        add(c, text, 1);
        add(c, left, u32::MAX);
    });
    c.i32(1);
}

fn is_route(c: &mut Code) {
    c.get(parameter(1)).i32(1).op().i32_sub();
    c.i32(limits::ROUTE_BYTES as u32).op().i32_ge_u();
    c.begin_if(BlockType::Empty);
    c.i32(0).op().return_();
    c.end();
    all_bytes(c, |c, byte| {
        c.i32(0);
        for (first, last) in [('a', 'z'), ('0', '9'), ('-', '.'), ('_', '_')] {
            c.get(byte).i32(first.into()).op().i32_sub();
            c.i32(last as u32 - first as u32).op().i32_le_u().i32_or();
        }
    });
}

fn list(module: &mut Module, c: &mut Code) {
    let bytes = parameter(0);
    let allocate = module.helper(Helper::Allocate);
    let begin = c.local(I32);
    c.op().global_get(EFFECTS);
    c.tee(begin).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.get(bytes).call(allocate).tee(begin).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.op().unreachable();
    c.end();
    c.get(begin).i32(0).get(bytes).op().memory_fill(0);
    c.get(begin).op().global_set(EFFECTS);
    c.end();
    c.get(begin);
}

/// Moves the records that are used to the list's begin, and counts the bytes of their values.
fn finish(module: &mut Module, c: &mut Code) {
    let (entry, left) = (parameter(0), parameter(1));
    let [next, end, kind, bytes] = [0; 4].map(|_| c.local(I32));
    c.op().global_get(EFFECTS);
    c.tee(next).tee(end).op().i32_eqz();
    c.begin_if(BlockType::Empty);
    c.op().return_();
    c.end();
    while_not_zero(c, left, |c, _| {
        c.get(next).op().i32_load(at(0));
        c.tee(kind);
        c.begin_if(BlockType::Empty);
        c.get(end).get(next).op().i64_load(at(0)).i64_store(at(0));
        c.get(end).get(next).op().i64_load(at(8)).i64_store(at(8));
        c.i32(0);
        for of_bytes in KINDS_OF_BYTES {
            c.get(kind).i32(of_bytes).op().i32_eq().i32_or();
        }
        c.begin_if(BlockType::Empty);
        c.get(bytes).get(end).op().i32_load(at(12)).i32_add();
        c.set(bytes);
        c.end();
        add(c, end, RECORD);
        c.end();
        add(c, next, RECORD);
        add(c, left, u32::MAX);
    });
    c.get(bytes)
        .i32(limits::COMPUTED_BYTES as u32)
        .op()
        .i32_gt_u();
    c.begin_if(BlockType::Empty);
    let text = module.constant(b"the values that the rules set have more than 65536 bytes");
    let deny = module.helper(Helper::Deny);
    let internal = tollgate_shm_abi::status::Code::INTERNAL.0;
    c.get(entry)
        .i32(internal)
        .i32(text.address)
        .i32(text.len)
        .call(deny);
    c.op().return_();
    c.end();
    c.get(entry).i32(WITH_EFFECTS).op().i32_store(at(VERDICT));
    c.get(entry).op().global_get(EFFECTS).i32_store(at(MESSAGE));
    c.get(entry).get(end).op().global_get(EFFECTS).i32_sub();
    c.op().i32_store(at(MESSAGE_LEN));
}

fn deny(c: &mut Code) {
    let (entry, status, text, len) = (parameter(0), parameter(1), parameter(2), parameter(3));
    c.get(entry).i32(DENY).op().i32_store(at(VERDICT));
    c.get(entry).get(status).op().i32_store(at(STATUS));
    c.get(entry).get(text).op().i32_store(at(MESSAGE));
    c.get(entry).get(len).op().i32_store(at(MESSAGE_LEN));
}

/// The text is the rule's prefix and the error.
fn fail(module: &mut Module, c: &mut Code) {
    let (entry, status, prefix, len) = (parameter(0), parameter(1), parameter(2), parameter(3));
    let error = parameter(4);
    let allocate = module.helper(Helper::Allocate);
    let deny = module.helper(Helper::Deny);
    let reasons = module.reasons();
    let [record, text] = [0; 2].map(|_| c.local(I32));
    // The first error has the number 2.
    c.get(error).i32(3).op().i32_shl();
    c.i32(reasons.wrapping_sub(16)).op().i32_add();
    c.set(record);
    c.get(len).get(record).op().i32_load(at(4)).i32_add();
    c.call(allocate).tee(text);
    c.begin_if(BlockType::Empty);
    c.get(text).get(prefix).get(len).op().memory_copy(0, 0);
    c.get(text).get(len).op().i32_add();
    c.get(record).op().i32_load(at(0));
    c.get(record).op().i32_load(at(4)).memory_copy(0, 0);
    c.get(text).set(prefix);
    c.get(len).get(record).op().i32_load(at(4)).i32_add();
    c.set(len);
    c.end();
    let errors = module.import(Import::Counter);
    c.i32(0).i64(1).call(errors);
    c.get(entry).get(status).get(prefix).get(len).call(deny);
}
