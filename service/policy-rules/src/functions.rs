//! The functions of expressions: their names, their arguments, and the operations they become.

use tollgate_schema::spelling::did_you_mean;

use crate::check::Checker;
use crate::error::{ErrorAt, fail, shown};
use crate::ops::{Op, TextTest, TimePart, Typed};
use crate::parse::{Arithmetic, Node};
use crate::regex::Dfa;
use crate::time;
use crate::types::{Const, Type};

/// Functions of a value: `value.name(..)`.
const METHODS: &[&str] = &[
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "size",
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfYear",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];
/// Functions without a value before them.
const GLOBALS: &[&str] = &[
    "has",
    "size",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "timestamp",
    "duration",
    "matches",
];
/// Functions of CEL, or of its extensions, that rules don't have, and why.
const ABSENT: &[(&str, &str)] = &[
    ("type", "types are known when the rules are compiled"),
    ("dyn", "types are known when the rules are compiled"),
    ("bool", "compare with a constant"),
    ("map", "it makes a list, and a list is no value in rules"),
    ("filter", "it makes a list, and a list is no value in rules"),
    (
        "lowerAscii",
        "an extension of CEL that rules don't have; matches(\"(?i)..\") ignores the case",
    ),
    (
        "upperAscii",
        "an extension of CEL that rules don't have; matches(\"(?i)..\") ignores the case",
    ),
    ("split", "it makes a list, and a list is no value in rules"),
    ("replace", "an extension of CEL that rules don't have"),
    (
        "format",
        "an extension of CEL that rules don't have; + joins texts",
    ),
];

impl Checker<'_> {
    /// Checks a call.
    pub(crate) fn call(
        &mut self,
        at: usize,
        name: &str,
        target: Option<&Node>,
        arguments: &[Node],
    ) -> Result<Typed, ErrorAt> {
        if let Some(target) = target
            && let Some(path) = target.path()
            && name == "value"
            && path.len() == 1
        {
            return fail(at, "optional values aren't supported in rules");
        }
        let takes = |count: usize, form: &str| match arguments.len() == count {
            true => Ok(()),
            false => {
                let given = arguments.len();
                fail(at, format!("{form} is called with {given} arguments"))
            }
        };
        match (target, name) {
            (Some(target), "startsWith" | "endsWith" | "contains") => {
                takes(1, &format!("text.{name}(part)"))?;
                let test = match name {
                    "startsWith" => TextTest::StartsWith,
                    "endsWith" => TextTest::EndsWith,
                    _ => TextTest::Contains,
                };
                let text = self.expect(target, Type::String, &format!("what {name} tests"))?;
                let part = self.expect(&arguments[0], Type::String, "its argument")?;
                let fails = text.fails || part.fails;
                let op = Op::Text(test, Box::new(text), Box::new(part));
                Ok(Typed::new(Type::Bool, fails, op))
            }
            (Some(target), "matches") => {
                takes(1, "text.matches(pattern)")?;
                matches(self, target, &arguments[0])
            }
            (None, "matches") => {
                takes(2, "matches(text, pattern)")?;
                matches(self, &arguments[0], &arguments[1])
            }
            (Some(target), "size") => {
                takes(0, "value.size()")?;
                size(self, target)
            }
            (None, "size") => {
                takes(1, "size(value)")?;
                size(self, &arguments[0])
            }
            (None, "timestamp" | "duration") => {
                takes(1, &format!("{name}(text)"))?;
                moment(self, name, &arguments[0])
            }
            (None, "int" | "uint" | "double" | "string" | "bytes") => {
                takes(1, &format!("{name}(value)"))?;
                convert(self, at, name, &arguments[0])
            }
            (Some(target), _) if part_of(name).is_some() => part(self, at, name, target, arguments),
            _ => Err(unknown(at, name, target.is_some())),
        }
    }
}

fn unknown(at: usize, name: &str, is_method: bool) -> ErrorAt {
    if let Some((_, why)) = ABSENT.iter().find(|(absent, _)| *absent == name) {
        return ErrorAt::new(at, format!("{name}() isn't supported in rules: {why}"));
    }
    let (names, others) = match is_method {
        true => (METHODS, GLOBALS),
        false => (GLOBALS, METHODS),
    };
    if others.contains(&name) {
        let form = match is_method {
            true => format!("{name}(value)"),
            false => format!("value.{name}()"),
        };
        return ErrorAt::new(at, format!("{name} is written {form}"));
    }
    let meant = did_you_mean(name, names.iter().copied());
    let (name, names) = (shown(name), names.join(", "));
    ErrorAt::new(
        at,
        format!("no function is named {name}; there are {names}{meant}"),
    )
}

fn matches(checker: &mut Checker<'_>, text: &Node, pattern: &Node) -> Result<Typed, ErrorAt> {
    let text = checker.expect(text, Type::String, "what matches tests")?;
    let at = pattern.at;
    let pattern = checker.expect(pattern, Type::String, "a pattern")?;
    let Some(Const::String(pattern)) = pattern.as_const() else {
        return fail(
            at,
            "a pattern is a constant text: it becomes a table when the rules are compiled",
        );
    };
    let dfa = Dfa::compile(pattern).map_err(|reason| ErrorAt::new(at, reason))?;
    let fails = text.fails;
    let op = Op::Matches(Box::new(text), Box::new(dfa));
    Ok(Typed::new(Type::Bool, fails, op))
}

fn size(checker: &mut Checker<'_>, node: &Node) -> Result<Typed, ErrorAt> {
    if let Some(size) = checker.size_of_list(node) {
        return size;
    }
    let value = checker.check(node)?;
    match value.ty {
        Type::String | Type::Bytes => {
            let fails = value.fails;
            Ok(Typed::new(Type::Int, fails, Op::Size(Box::new(value))))
        }
        ty => fail(
            node.at,
            format!("{ty:#} has no size; a string, bytes and a list have"),
        ),
    }
}

/// `timestamp("..")` or `duration("..")`.
fn moment(checker: &mut Checker<'_>, name: &str, node: &Node) -> Result<Typed, ErrorAt> {
    let value = checker.check(node)?;
    match (name, value.ty, value.as_const()) {
        ("timestamp", Type::Timestamp, _) | ("duration", Type::Duration, _) => Ok(value),
        ("timestamp", _, Some(Const::String(text))) => {
            let time = time::timestamp(text).map_err(|reason| ErrorAt::new(node.at, reason))?;
            Ok(Typed::constant(Const::Timestamp(time)))
        }
        ("duration", _, Some(Const::String(text))) => {
            let time = time::duration(text).map_err(|reason| ErrorAt::new(node.at, reason))?;
            Ok(Typed::constant(Const::Duration(time)))
        }
        ("timestamp", Type::Int, _) => {
            let second = Typed::constant(Const::Int(1_000_000));
            let op = Op::Arithmetic(Arithmetic::Multiply, Box::new(value), Box::new(second));
            let us = Typed::new(Type::Int, true, op);
            Ok(Typed::new(Type::Timestamp, true, Op::Convert(Box::new(us))))
        }
        _ => fail(node.at, format!("{name}(..) takes a constant text")),
    }
}

fn convert(
    checker: &mut Checker<'_>,
    at: usize,
    name: &str,
    node: &Node,
) -> Result<Typed, ErrorAt> {
    let value = checker.check(node)?;
    let to = match name {
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        _ => Type::Bytes,
    };
    let from = value.ty;
    if from == to {
        return Ok(value);
    }
    let can_fail = match (from, to) {
        (Type::Int | Type::Uint, Type::Double) | (Type::Timestamp, Type::Int) => false,
        (Type::String, Type::Bytes) => false,
        (Type::Uint | Type::Double | Type::String, Type::Int) => true,
        (Type::Int | Type::Double | Type::String, Type::Uint) => true,
        (Type::Bool, Type::String) => false,
        (Type::Int | Type::Uint, Type::String) => true,
        _ => {
            return fail(
                at,
                format!("{from:#} can't be converted to {to:#} in rules"),
            );
        }
    };
    let fails = value.fails || can_fail;
    Ok(Typed::new(to, fails, Op::Convert(Box::new(value))))
}

fn part_of(name: &str) -> Option<TimePart> {
    Some(match name {
        "getFullYear" => TimePart::FullYear,
        "getMonth" => TimePart::Month,
        "getDate" => TimePart::Date,
        "getDayOfMonth" => TimePart::DayOfMonth,
        "getDayOfYear" => TimePart::DayOfYear,
        "getDayOfWeek" => TimePart::DayOfWeek,
        "getHours" => TimePart::Hours,
        "getMinutes" => TimePart::Minutes,
        "getSeconds" => TimePart::Seconds,
        "getMilliseconds" => TimePart::Milliseconds,
        _ => return None,
    })
}

/// `time.getHours()`, or `time.getHours("+02:00")`.
fn part(
    checker: &mut Checker<'_>,
    at: usize,
    name: &str,
    target: &Node,
    arguments: &[Node],
) -> Result<Typed, ErrorAt> {
    let Some(part) = part_of(name) else {
        return Err(unknown(at, name, true));
    };
    let mut time = checker.check(target)?;
    let offset = match arguments {
        [] => 0,
        [zone] => {
            let value = checker.expect(zone, Type::String, "a time zone")?;
            let Some(Const::String(text)) = value.as_const() else {
                return fail(zone.at, "a time zone is a constant text");
            };
            time::offset(text).map_err(|reason| ErrorAt::new(zone.at, reason))?
        }
        _ => return fail(at, format!("time.{name}() takes a time zone, or nothing")),
    };
    match time.ty {
        Type::Timestamp => {}
        Type::Duration => {
            return fail(
                at,
                format!("{name}() of a duration isn't supported in rules; compare durations"),
            );
        }
        ty => {
            return fail(
                at,
                format!("{name}() is asked of a timestamp; this is {ty:#}"),
            );
        }
    }
    if offset != 0 {
        let offset = Typed::constant(Const::Duration(offset));
        let op = Op::Arithmetic(Arithmetic::Add, Box::new(time), Box::new(offset));
        time = Typed::new(Type::Timestamp, true, op);
    }
    let fails = time.fails;
    Ok(Typed::new(Type::Int, fails, Op::Part(part, Box::new(time))))
}
