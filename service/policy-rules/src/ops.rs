//! The operations of expressions, with their types: what is left when the names are resolved.

use crate::error::{ErrorAt, fail};
use crate::parse::{Arithmetic, Comparison, Quantifier};
use crate::regex::Dfa;
use crate::types::{Const, FieldType, Scalar, Type};

/// An expression with its type.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    pub(crate) ty: Type,
    /// Whether its evaluation can end in an error.
    pub(crate) fails: bool,
    pub(crate) op: Op,
}

/// The operations of a module.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Const(Const),
    /// A field of the view, by its index there.
    Field {
        index: usize,
        scalar: Scalar,
        default: Option<Const>,
        /// The error if it is absent.
        withheld: Option<String>,
    },
    /// Whether a field of the view, or a metadata key, is present.
    IsPresent {
        entry: Entry,
    },
    /// The only value of a metadata key.
    OnlyValue {
        key: usize,
        none: String,
        many: String,
    },
    CountValues {
        key: usize,
    },
    /// The current value of the loop at this depth.
    Current(usize),
    Now,
    Not(Box<Typed>),
    Negate(Box<Typed>),
    And(Box<Typed>, Box<Typed>),
    Or(Box<Typed>, Box<Typed>),
    Choose(Box<Typed>, Box<Typed>, Box<Typed>),
    Compare(Comparison, Box<Typed>, Box<Typed>),
    Arithmetic(Arithmetic, Box<Typed>, Box<Typed>),
    Concatenate(Vec<Typed>),
    /// Of a string in characters, of bytes in bytes.
    Size(Box<Typed>),
    Text(TextTest, Box<Typed>, Box<Typed>),
    Matches(Box<Typed>, Box<Dfa>),
    InTexts(Box<Typed>, Vec<Vec<u8>>),
    /// Values as their 64 bits.
    InNumbers(Box<Typed>, Vec<i64>),
    Convert(Box<Typed>),
    Part(TimePart, Box<Typed>),
    /// Whether exactly one of these is true.
    One(Vec<Typed>),
    Loop {
        quantifier: Quantifier,
        key: usize,
        depth: usize,
        condition: Box<Typed>,
    },
}

/// An entry of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Field(usize),
    Key(usize),
}

/// A test of two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

/// A part of a time in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimePart {
    FullYear,
    /// From 0.
    Month,
    /// From 0.
    DayOfMonth,
    /// From 1.
    Date,
    /// From 0.
    DayOfYear,
    /// Sunday is 0.
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

impl Typed {
    pub(crate) fn new(ty: Type, fails: bool, op: Op) -> Typed {
        Typed { ty, fails, op }
    }

    pub(crate) fn constant(value: Const) -> Typed {
        Typed::new(value.ty(), false, Op::Const(value))
    }

    pub(crate) fn as_const(&self) -> Option<&Const> {
        match &self.op {
            Op::Const(value) => Some(value),
            _ => None,
        }
    }
}

/// Whether an entry of the view has a value.
pub(crate) fn present(entry: Entry) -> Typed {
    Typed::new(Type::Bool, false, Op::IsPresent { entry })
}

/// A field of the view.
pub(crate) fn field(index: usize, name: &str, ty: FieldType) -> Typed {
    let withheld = ty
        .is_always
        .then(|| format!("the field {name} isn't granted to the rules"));
    let op = Op::Field {
        index,
        scalar: ty.scalar,
        default: ty.default,
        withheld,
    };
    Typed::new(ty.scalar.ty(), ty.is_always, op)
}

/// The value of an absent field.
pub(crate) fn zero(ty: Type) -> Const {
    match ty {
        Type::Bool => Const::Bool(false),
        Type::Int => Const::Int(0),
        Type::Uint => Const::Uint(0),
        Type::Double => Const::Double(0.0),
        Type::String => Const::String(String::new()),
        Type::Bytes => Const::Bytes(Vec::new()),
        Type::Timestamp => Const::Timestamp(0),
        Type::Duration => Const::Duration(0),
    }
}

/// A comparison of two values of one type, or of two numbers.
pub(crate) fn compared(comparison: Comparison, a: Typed, b: Typed) -> Typed {
    let (a, b) = (converted(a, b.ty, &b), b);
    let b = converted(b, a.ty, &a);
    let fails = a.fails || b.fails;
    let op = Op::Compare(comparison, Box::new(a), Box::new(b));
    Typed::new(Type::Bool, fails, op)
}

/// A constant as the type of what it is compared with, if it has the same value there: comparing
/// numbers of two types takes more instructions.
fn converted(value: Typed, ty: Type, other: &Typed) -> Typed {
    /// Integers up to here are doubles, too.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if other.as_const().is_some() && value.as_const().is_some() || value.ty == ty {
        return value;
    }
    let Some(constant) = value.as_const() else {
        return value;
    };
    let integral =
        |value: f64| (value.trunc() == value && value.abs() <= EXACT).then_some(value as i64);
    let double = |value: f64| (value.abs() <= EXACT).then_some(Const::Double(value));
    let same = match (constant, ty) {
        (Const::Int(value), Type::Uint) => u64::try_from(*value).ok().map(Const::Uint),
        (Const::Uint(value), Type::Int) => i64::try_from(*value).ok().map(Const::Int),
        (Const::Int(value), Type::Double) => double(*value as f64),
        (Const::Uint(value), Type::Double) => double(*value as f64),
        (Const::Double(value), Type::Int) => integral(*value).map(Const::Int),
        (Const::Double(value), Type::Uint) => {
            let integral = integral(*value).and_then(|value| u64::try_from(value).ok());
            integral.map(Const::Uint)
        }
        _ => None,
    };
    same.map_or(value, Typed::constant)
}

/// `a + b` of two texts; sums of sums are one.
pub(crate) fn concatenated(ty: Type, a: Typed, b: Typed) -> Typed {
    let mut parts = Vec::new();
    for side in [a, b] {
        match side.op {
            Op::Concatenate(inner) => parts.extend(inner),
            _ => parts.push(side),
        }
    }
    // A sum can be longer than a value may be.
    Typed::new(ty, true, Op::Concatenate(parts))
}

/// `value in [..]`.
pub(crate) fn in_values(at: usize, value: Typed, items: Vec<Typed>) -> Result<Typed, ErrorAt> {
    let ty = value.ty;
    for item in &items {
        if item.ty != ty && !(item.ty.is_number() && ty.is_number()) {
            return fail(
                at,
                format!("{ty:#} is looked for in a list with {:#}", item.ty),
            );
        }
    }
    let constants: Option<Vec<_>> = items.iter().map(|item| item.as_const().cloned()).collect();
    let Some(constants) = constants else {
        let equal = |item| compared(Comparison::Equal, value.clone(), item);
        let tests = items.into_iter().map(equal).collect();
        return Ok(balanced(tests, false, Op::Or));
    };
    if ty.is_span() {
        let texts = constants
            .iter()
            .filter_map(|one| Some(one.bytes()?.to_vec()));
        return Ok(in_texts(value, texts.collect()));
    }
    let as_bits = |one: &Const| match (one, ty) {
        (Const::Int(number), Type::Int) => Some(*number),
        (Const::Uint(number), Type::Uint) => Some(number.cast_signed()),
        (Const::Int(number), Type::Uint) if *number >= 0 => Some(*number),
        (Const::Uint(number), Type::Int) => i64::try_from(*number).ok(),
        _ => None,
    };
    match constants.iter().map(as_bits).collect() {
        Some(numbers) => Ok(in_numbers(value, numbers)),
        None => {
            let equal = |item| compared(Comparison::Equal, value.clone(), item);
            let tests = items.into_iter().map(equal).collect();
            Ok(balanced(tests, false, Op::Or))
        }
    }
}

/// Whether a text is one of these.
pub(crate) fn in_texts(value: Typed, mut texts: Vec<Vec<u8>>) -> Typed {
    texts.sort();
    texts.dedup();
    let fails = value.fails;
    Typed::new(Type::Bool, fails, Op::InTexts(Box::new(value), texts))
}

/// Whether an integer is one of these.
pub(crate) fn in_numbers(value: Typed, mut numbers: Vec<i64>) -> Typed {
    numbers.sort_unstable();
    numbers.dedup();
    let fails = value.fails;
    Typed::new(Type::Bool, fails, Op::InNumbers(Box::new(value), numbers))
}

/// All conditions joined, in a tree that isn't deep.
pub(crate) fn balanced(
    mut conditions: Vec<Typed>,
    of_none: bool,
    join: fn(Box<Typed>, Box<Typed>) -> Op,
) -> Typed {
    while conditions.len() > 1 {
        let mut next = Vec::with_capacity(conditions.len().div_ceil(2));
        let mut all = conditions.into_iter();
        while let Some(a) = all.next() {
            next.push(match all.next() {
                Some(b) => {
                    let fails = a.fails || b.fails;
                    Typed::new(Type::Bool, fails, join(Box::new(a), Box::new(b)))
                }
                None => a,
            });
        }
        conditions = next;
    }
    let only = conditions.pop();
    only.unwrap_or_else(|| Typed::constant(Const::Bool(of_none)))
}
