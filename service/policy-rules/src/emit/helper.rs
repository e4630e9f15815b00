//! The names of the functions that rules call, and their types.

use wasm_encoder::ValType;

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;
const F64: ValType = ValType::F64;

/// Outcomes of [`Helper::Take`].
pub(crate) const TAKEN: u32 = 0;
pub(crate) const NO_TOKEN: u32 = 1;
pub(crate) const NO_ROOM: u32 = 2;

/// A function of the module's own library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// `(bytes) -> address`, 0 if memory is full.
    Allocate,
    /// `(a, b, len) -> bool`
    Same,
    /// `(a, len, b, len) -> -1, 0 or 1`
    Order,
    /// `(text, len, part, len) -> bool`
    Find,
    /// `(text, len) -> characters`
    Characters,
    /// `(text, len, table, mask) -> bool`
    LookUp,
    /// `(number, table, count) -> bool`
    Search,
    /// `(text, len, table, width, start) -> bool`
    Match,
    /// `(key, len, rule, interval, depth) -> outcome`: takes a token of the rule's bucket for the
    /// key. Interval and depth are in ns. The outcome is [`TAKEN`], [`NO_TOKEN`] or [`NO_ROOM`].
    Take,
    /// `(a, b) -> product, overflow`
    Multiply,
    /// `(a, b) -> product, overflow`
    MultiplyUnsigned,
    /// `(a, b) -> quotient`, rounded down; b is positive.
    FloorDivide,
    /// `(int, uint) -> -1, 0 or 1`
    CompareIntUint,
    /// `(int, double) -> -1, 0, 1, or 2 for no order`
    CompareIntDouble,
    /// `(uint, double) -> -1, 0, 1, or 2 for no order`
    CompareUintDouble,
    /// `(text, len) -> number, error`
    ParseInt,
    /// `(text, len) -> number, error`
    ParseUint,
    /// `(number) -> text, len`
    PrintInt,
    /// `(number) -> text, len`
    PrintUint,
    /// `(days since 1970, part) -> number`
    Date,
    /// `(text, len) -> bool`: printable ASCII.
    IsPrintable,
    /// `(text, len) -> bool`: a route's label.
    IsRoute,
    /// `(bytes) -> list of effects`: the call's, or a new one of zeros.
    List,
    /// `(entry, records)`: the verdict with the effects, or a denial if there are too many bytes.
    Finish,
    /// `(entry, status, text, len)`: a denial.
    Deny,
    /// `(entry, status, prefix, len, error)`: a denial because of an error.
    Fail,
}

impl Helper {
    /// What [`Helper::Fail`] calls.
    pub(crate) const FAIL_CALLS: [Helper; 2] = [Helper::Allocate, Helper::Deny];

    /// Its parameters and results.
    pub(crate) fn ty(self) -> (&'static [ValType], &'static [ValType]) {
        match self {
            Helper::Allocate | Helper::List => (&[I32], &[I32]),
            Helper::Same => (&[I32, I32, I32], &[I32]),
            Helper::Order | Helper::Find | Helper::LookUp => (&[I32, I32, I32, I32], &[I32]),
            Helper::Characters | Helper::IsPrintable | Helper::IsRoute => (&[I32, I32], &[I32]),
            Helper::Search => (&[I64, I32, I32], &[I32]),
            Helper::Match => (&[I32, I32, I32, I32, I32], &[I32]),
            Helper::Take => (&[I32, I32, I64, I64, I64], &[I32]),
            Helper::Multiply | Helper::MultiplyUnsigned => (&[I64, I64], &[I64, I32]),
            Helper::FloorDivide => (&[I64, I64], &[I64]),
            Helper::CompareIntUint => (&[I64, I64], &[I32]),
            Helper::CompareIntDouble | Helper::CompareUintDouble => (&[I64, F64], &[I32]),
            Helper::ParseInt | Helper::ParseUint => (&[I32, I32], &[I64, I32]),
            Helper::PrintInt | Helper::PrintUint => (&[I64], &[I32, I32]),
            Helper::Date => (&[I64, I32], &[I64]),
            Helper::Finish => (&[I32, I32], &[]),
            Helper::Deny => (&[I32, I32, I32, I32], &[]),
            Helper::Fail => (&[I32, I32, I32, I32, I32], &[]),
        }
    }
}
